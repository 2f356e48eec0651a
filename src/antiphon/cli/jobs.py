"""The jobs of `antiphon pipeline` on the history of destinations."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from antiphon.cli.options import add_connection_options, duration_option, not_negative, tls_option
from antiphon.cli.progress import Progress
from antiphon.errors import InvalidOption, LocalError
from antiphon.pipeline.connections import close_all
from antiphon.pipeline.jobs.calls import LOCAL, archive, audit, lag, replay

if TYPE_CHECKING:
    from antiphon.pipeline.jobs.archiving import ArchiveSummary
    from antiphon.pipeline.jobs.auditing import AuditSummary
    from antiphon.pipeline.jobs.replaying import ReplaySummary

DESTINATIONS = "names such as topic:orders, or patterns such as 'topic:orders.*'"


def add_jobs(jobs: Any) -> None:
    _add_archive(jobs)
    _add_audit(jobs)
    _add_replay(jobs)
    _add_lag(jobs)


def _add_job(jobs: Any, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = jobs.add_parser(name, help=help)
    add_connection_options(parser)
    return parser


def _add_master(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", default=LOCAL, metavar="URL", help="where Spark runs (default: %(default)s)"
    )


def _add_archive(jobs: Any) -> None:
    parser = _add_job(jobs, "archive", "write messages to Parquet files, each once; goes on where it was")
    parser.add_argument("destination", nargs="+", help=DESTINATIONS)
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="the folder of the archive")
    parser.add_argument("--hold", metavar="NAME", help="the hold that keeps what is not archived yet")
    parser.add_argument(
        "--hold-limit",
        type=duration_option,
        default=duration_option("7d"),
        metavar="TIME",
        help="how long the hold outlives the last run (default: 7d)",
    )
    parser.add_argument("--no-compact", action="store_true", help="leave small files as they are")
    parser.add_argument("--dry-run", action="store_true", help="say how much there is, and change nothing")
    _add_master(parser)
    parser.set_defaults(run=_archive)


def _archive(arguments: argparse.Namespace) -> int:
    summary = _run(
        arguments,
        "archiving",
        lambda progress: archive(
            arguments.url,
            arguments.destination,
            arguments.to,
            master=arguments.master,
            hold=arguments.hold,
            hold_limit_s=arguments.hold_limit,
            dry_run=arguments.dry_run,
            compact=not arguments.no_compact,
            tls=tls_option(arguments),
            progress=progress,
        ),
        _show_archived,
    )
    for text in summary.warnings:
        print(f"antiphon: {text}", file=sys.stderr)
    for loss in summary.lost:
        print(
            f"antiphon: messages of {loss['name']} were gone before they were archived:"
            f" numbers {loss['first']} to {loss['last']} of channel {loss['channel']}",
            file=sys.stderr,
        )
    return 1 if summary.lost else 0


def _show_archived(summary: ArchiveSummary) -> None:
    for one in summary.destinations:
        if one["rows"]:
            print(
                f"{one['name']}: {_many(one['rows'], 'message')}, numbers {one['from']} to {one['next'] - 1}"
                f" of channel {one['channel']}"
            )
    many = f"{_many(summary.rows, 'message')} of {_many(len(summary.destinations), 'destination')}"
    if summary.dry_run:
        print(f"would archive {many}, {summary.bytes:,} bytes")
        return
    print(f"archived {many} in {_many(summary.files, 'file')} of {summary.file_bytes:,} bytes")
    if summary.joined_files:
        print(f"joined {summary.joined_files:,} small files")
    if summary.hold:
        print(f"the hold {summary.hold} keeps what comes next")


def _add_audit(jobs: Any) -> None:
    parser = _add_job(jobs, "audit", "check that an archive has every message once, and nothing else")
    parser.add_argument("destination", nargs="+", help=DESTINATIONS)
    parser.add_argument(
        "--archive", required=True, type=Path, metavar="DIR", help="the folder of the archive"
    )
    parser.add_argument(
        "--offline", action="store_true", help="check the archive's own files, and ask no replica"
    )
    _add_master(parser)
    parser.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    summary = _run(
        arguments,
        "auditing",
        lambda progress: audit(
            arguments.destination,
            arguments.archive,
            None if arguments.offline else arguments.url,
            master=arguments.master,
            tls=tls_option(arguments),
            progress=progress,
        ),
        _show_audited,
    )
    return 1 if summary.problems else 0


def _show_audited(summary: AuditSummary) -> None:
    for one in summary.destinations:
        print(
            f"{one['name']}: {_many(one['rows'], 'message')}, numbers {one['from']} to {one['next'] - 1} of"
            f" channel {one['channel']}; {one['compared']:,} compared with replicas"
        )
    for problem in summary.problems:
        place = ""
        if problem.destination:
            place = (
                f"{problem.destination}, numbers {problem.first} to {problem.last} of channel"
                f" {problem.channel}: "
            )
        print(f"antiphon: {problem.what}: {place}{problem.text}", file=sys.stderr)
    told = _many(len(summary.problems), "problem") if summary.problems else "every message once"
    print(f"{_many(summary.rows, 'message')} in {_many(summary.files, 'file')}: {told}")
    if summary.waiting:
        print(f"{_many(summary.waiting, 'later message')} not archived yet")


def _add_replay(jobs: Any) -> None:
    parser = _add_job(jobs, "replay", "send the messages of an archive to a destination, each once")
    parser.add_argument("destination", help="where the messages go")
    parser.add_argument(
        "--from", required=True, type=Path, metavar="DIR", dest="archive", help="the folder of the archive"
    )
    parser.add_argument(
        "--source", action="append", metavar="DEST", help="only what was archived of it; a name or a pattern"
    )
    parser.add_argument(
        "--where", metavar="SQL", help="only messages that match, by the columns of the archive"
    )
    parser.add_argument(
        "--range",
        type=_numbers,
        metavar="[CHANNEL:]FIRST-LAST",
        help="only these numbers, of all channels or of one",
    )
    parser.add_argument(
        "--since", type=_moment("--since"), metavar="TIME", help="only messages sent since then"
    )
    parser.add_argument("--until", type=_moment("--until"), metavar="TIME", help="only what was sent before")
    parser.add_argument("--rate", type=float, metavar="N", help="messages per second at most")
    parser.add_argument(
        "--name", help="of this replay, by which it goes on; without one its other words are its name"
    )
    parser.add_argument("--dry-run", action="store_true", help="say how much there is, and send nothing")
    _add_master(parser)
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    _run(
        arguments,
        "replaying",
        lambda progress: replay(
            arguments.url,
            arguments.destination,
            arguments.archive,
            sources=arguments.source or ("*",),
            where=arguments.where,
            numbers=arguments.range,
            since_ms=arguments.since,
            until_ms=arguments.until,
            rate=arguments.rate,
            name=arguments.name,
            dry_run=arguments.dry_run,
            master=arguments.master,
            tls=tls_option(arguments),
            progress=progress,
        ),
        _show_replayed,
    )
    return 0


def _show_replayed(summary: ReplaySummary) -> None:
    if summary.dry_run:
        print(
            f"would replay at most {summary.planned:,} messages of {', '.join(summary.sources)} in"
            f" {summary.chunks - summary.done_before:,} of {summary.chunks:,} chunks,"
            f" {summary.bytes:,} bytes of files"
        )
        return
    if summary.done_before == summary.chunks:
        print(f"the replay {summary.name} was done before; --name NAME makes another one")
        return
    if summary.done_before:
        print(f"went on behind {summary.done_before:,} chunks that were sent before")
    many = _many(summary.rows, "message")
    print(f"replayed {many} to {summary.destination}; the replay's name is {summary.name}")


def _numbers(text: str) -> tuple[int, int] | tuple[int, int, str]:
    """`FIRST-LAST` or `CHANNEL:FIRST-LAST`."""
    channel, _, numbers = text.rpartition(":")
    first, dash, last = numbers.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of numbers such as 100-199 or a:100-199")
    return (int(first), int(last), channel) if channel else (int(first), int(last))


def _moment(option: str) -> Callable[[str], int]:
    """Reads a time in ms since 1970, or a date and time."""

    def moment(text: str) -> int:
        from antiphon.pipeline.options import parse_moment

        try:
            return parse_moment(text, option)
        except InvalidOption as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return moment


def _add_lag(jobs: Any) -> None:
    parser = _add_job(jobs, "lag", "say how far readers are behind; exit code 1 beyond a limit")
    parser.add_argument("name", nargs="*", help="of a hold or a subscription; all, if none is named")
    parser.add_argument(
        "--checkpoint", type=Path, action="append", default=[], metavar="DIR", help="of a query on Spark"
    )
    parser.add_argument("--max-rows", type=not_negative, metavar="N", help="more messages are an alarm")
    parser.add_argument("--max-bytes", type=not_negative, metavar="N", help="more bytes are an alarm")
    parser.add_argument(
        "--max-age", type=duration_option, metavar="TIME", help="an older message is an alarm"
    )
    parser.add_argument("--prometheus", action="store_true", help="print Prometheus' text format")
    parser.set_defaults(run=_lag)


def _lag(arguments: argparse.Namespace) -> int:
    from antiphon.pipeline.jobs.lagging import LagLimits, prometheus_text

    if arguments.json and arguments.prometheus:
        raise LocalError("print JSON or Prometheus' text, not both")
    try:
        tls = tls_option(arguments)
        lags = lag(arguments.url, arguments.name, checkpoints=arguments.checkpoint, tls=tls)
    finally:
        close_all()
    if arguments.json:
        print(json.dumps([one.as_json() for one in lags], ensure_ascii=False))
    elif arguments.prometheus:
        print(prometheus_text(lags), end="")
    else:
        for one in lags:
            size = "" if one.bytes is None else f", {one.bytes:,} bytes"
            age = "" if one.seconds is None else f", the oldest {one.seconds:,.0f} s old" if one.rows else ""
            print(f"{one.kind} {one.name} on channel {one.channel}: {_many(one.rows, 'message')}{size}{age}")
    alarms = LagLimits(arguments.max_rows, arguments.max_bytes, arguments.max_age).alarms(lags)
    for text in alarms:
        print(f"antiphon: {text}", file=sys.stderr)
    return 1 if alarms else 0


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class _Shown:
    """A job's progress, on a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown: Progress | None = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            self._shown = Progress(self._what, total)
        self._shown.advance(done - self._done)
        self._done = done

    def finish(self) -> None:
        if self._shown is not None:
            self._shown.finish()


class _Summary(Protocol):
    def as_json(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=_Summary)


def _run(
    arguments: argparse.Namespace, what: str, job: Callable[[_Shown], S], show: Callable[[S], None]
) -> S:
    """Do a job with its progress shown, and print its summary."""
    shown = _Shown(what)
    try:
        summary = job(shown)
    finally:
        shown.finish()
        close_all()
    if arguments.json:
        print(json.dumps(summary.as_json(), ensure_ascii=False))
    else:
        show(summary)
    return summary
