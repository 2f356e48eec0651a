"""Calls: the jobs as functions, which applications and the command line call.

Spark and Arrow are loaded when a job runs, so that the rest of the package works without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from antiphon.pipeline.jobs.archiving import ArchiveSummary
    from antiphon.pipeline.jobs.auditing import AuditSummary
    from antiphon.pipeline.jobs.replaying import ReplaySummary

LOCAL = "local[*]"


def _ignore(done: int, total: int) -> None:
    return


def archive(
    url: str,
    destinations: Sequence[str],
    to: Path | str,
    *,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    hold: str | None = None,
    hold_limit_s: float | None = None,
    dry_run: bool = False,
    compact: bool = True,
    user: str | None = None,
    password_file: str | None = None,
    timeout_s: float | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> ArchiveSummary:
    """Write the messages of destinations, by name or pattern, to the archive in a folder, each once.

    What is not archived yet is kept under the name `hold`, from one run to the next, for at most
    `hold_limit_s` (seven days). With `spark` or an active session the job runs there, else on `master`.

    >>> antiphon.pipeline.archive("antiphon://127.0.0.1:7420", ["topic:orders"], "archive").rows
    1200
    """
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.archiving import HOLD_LIMIT_S, ArchiveSettings, Archiving
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder
    from antiphon.pipeline.session import run_tasks, spark_session

    options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s)
    ranges = connections.ranges(options, waits_at_first=False)
    settings = ArchiveSettings(
        words=_words(destinations),
        hold_name=hold,
        hold_limit_s=HOLD_LIMIT_S if hold_limit_s is None else hold_limit_s,
        compacts=compact,
    )
    making = partial(Archiving, ranges, options, ArchiveFolder(to), settings, progress=progress)
    if dry_run:
        return making(run=_no_tasks).dry_run()
    # Fails at once if the cluster is not there: Spark takes a while to start.
    ranges.cluster()
    with spark_session(master, "antiphon archive", spark) as session:
        return making(run=partial(run_tasks, session)).archive()


def audit(
    destinations: Sequence[str],
    archive: Path | str,
    url: str | None = None,
    *,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    user: str | None = None,
    password_file: str | None = None,
    timeout_s: float | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> AuditSummary:
    """Check that an archive has every message of destinations once, and nothing else.

    With the `url` of the cluster the archive is compared with what the replicas still list, too. All is well
    if the summary has no `problems`.

    >>> antiphon.pipeline.audit(["topic:orders"], "archive", "antiphon://127.0.0.1:7420").problems
    []
    """
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.auditing import Auditing
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder
    from antiphon.pipeline.session import run_tasks, spark_session

    folder = ArchiveFolder(archive)
    folder.require()
    ranges = options = None
    if url is not None:
        options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s)
        ranges = connections.ranges(options, waits_at_first=False)
        ranges.cluster()
    with spark_session(master, "antiphon audit", spark) as session:
        run = partial(run_tasks, session)
        return Auditing(folder, _words(destinations), run, ranges, options, progress=progress).audit()


def replay(
    url: str,
    destination: str,
    archive: Path | str,
    *,
    sources: Sequence[str] = ("*",),
    where: str | None = None,
    numbers: tuple[int, int] | tuple[int, int, str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    rate: float | None = None,
    name: str | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    user: str | None = None,
    password_file: str | None = None,
    timeout_s: float | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> ReplaySummary:
    """Send the messages of an archive to a destination, each once.

    `numbers` are the first and the last one, of all channels or of one; `since_ms` and `until_ms` go by the
    time at which a message was sent. A replay has a name, by default made of what it replays: called again
    under its name it goes on where it was, and does nothing if it was done.

    >>> antiphon.pipeline.replay("antiphon://127.0.0.1:7420", "topic:again", "archive").rows
    17
    """
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder
    from antiphon.pipeline.jobs.replay_work import replay_work
    from antiphon.pipeline.jobs.replaying import NumberRange, Replaying, ReplaySettings, ReplayWork
    from antiphon.pipeline.session import spark_session

    options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s)
    ranges = connections.ranges(options, waits_at_first=False)
    folder = ArchiveFolder(archive)
    folder.require()
    settings = ReplaySettings(
        destination=destination,
        words=_words(sources),
        where=where,
        numbers=None if numbers is None else NumberRange(*numbers),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    making = partial(Replaying, folder, settings, ranges, name=name, rate=rate, progress=progress)
    if dry_run:
        return making(ReplayWork(_no_tasks, _no_tasks)).dry_run()
    ranges.cluster()
    with spark_session(master, "antiphon replay", spark) as session:
        return making(replay_work(session, folder, settings, options)).replay()


def _words(destinations: Sequence[str]) -> tuple[str, ...]:
    return (destinations,) if isinstance(destinations, str) else tuple(destinations)


def _no_tasks(*_: object) -> Any:
    raise AssertionError("a dry run has no tasks")
