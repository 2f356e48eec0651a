"""The jobs of `antiphon pipeline` on the history of destinations."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.cli.options import add_connection_options, duration_option
from antiphon.cli.progress import Progress
from antiphon.pipeline.jobs.calls import LOCAL, archive, audit

if TYPE_CHECKING:
    from antiphon.pipeline.jobs.archiving import ArchiveSummary
    from antiphon.pipeline.jobs.auditing import AuditSummary

T = TypeVar("T")

DESTINATIONS = "names such as topic:orders, or patterns such as 'topic:orders.*'"


def add_jobs(jobs: Any) -> None:
    _add_archive(jobs)
    _add_audit(jobs)


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
    with_progress = _Shown("archiving")
    summary = _ended(
        lambda: archive(
            arguments.url,
            arguments.destination,
            arguments.to,
            master=arguments.master,
            hold=arguments.hold,
            hold_limit_s=arguments.hold_limit,
            dry_run=arguments.dry_run,
            compact=not arguments.no_compact,
            progress=with_progress,
        ),
        with_progress,
    )
    if arguments.json:
        print(json.dumps(summary.as_json(), ensure_ascii=False))
    else:
        _show_archived(summary)
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
                f"{one['name']}: {one['rows']:,} messages, numbers {one['from']} to {one['next'] - 1}"
                f" of channel {one['channel']}"
            )
    many = f"{summary.rows:,} messages of {len(summary.destinations):,} destinations"
    if summary.dry_run:
        print(f"would archive {many}, {summary.bytes:,} bytes")
        return
    print(f"archived {many} in {summary.files:,} files of {summary.file_bytes:,} bytes")
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
    with_progress = _Shown("auditing")
    summary = _ended(
        lambda: audit(
            arguments.destination,
            arguments.archive,
            None if arguments.offline else arguments.url,
            master=arguments.master,
            progress=with_progress,
        ),
        with_progress,
    )
    if arguments.json:
        print(json.dumps(summary.as_json(), ensure_ascii=False))
    else:
        _show_audited(summary)
    return 1 if summary.problems else 0


def _show_audited(summary: AuditSummary) -> None:
    for one in summary.destinations:
        print(
            f"{one['name']}: {one['rows']:,} messages, numbers {one['from']} to {one['next'] - 1} of channel"
            f" {one['channel']}; replicas still list {one['compared']:,}"
        )
    for problem in summary.problems:
        place = ""
        if problem.destination:
            place = (
                f"{problem.destination}, numbers {problem.first} to {problem.last} of channel"
                f" {problem.channel}: "
            )
        print(f"antiphon: {problem.what}: {place}{problem.text}", file=sys.stderr)
    told = f"{len(summary.problems):,} problems" if summary.problems else "every message once"
    print(f"{summary.rows:,} messages in {summary.files:,} files: {told}")
    if summary.waiting:
        print(f"{summary.waiting:,} later messages are not archived yet")


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


def _ended(job: Callable[[], T], shown: _Shown) -> T:
    """What a job returns, with its terminal and its connections left in order."""
    from antiphon.pipeline.connections import close_all

    try:
        return job()
    finally:
        shown.finish()
        close_all()
