"""Calls: the jobs as functions, which applications and the command line call.

Spark and Arrow are loaded when a job runs, so that the rest of the package works without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.pipeline.session import JobSession, require_packages
from antiphon.tls import Tls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from antiphon.pipeline.jobs.archiving import ArchiveSummary
    from antiphon.pipeline.jobs.auditing import AuditSummary
    from antiphon.pipeline.jobs.lagging import ReaderLag
    from antiphon.pipeline.jobs.replaying import ReplaySummary

LOCAL = "local[*]"

PACKAGES = ("pyspark", "pyarrow")


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
    tls: Tls | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> ArchiveSummary:
    """Write the messages of destinations, by name or pattern, to the archive in a folder, each once.

    What is not archived yet is kept under the name `hold`, from one run to the next, for at most
    `hold_limit_s` (seven days). With `spark` or an active session the job runs there, else on `master`.

    >>> antiphon.pipeline.archive("antiphon://127.0.0.1:7420", ["topic:orders"], "archive").rows
    1200
    """
    require_packages(*PACKAGES)
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.archiving import HOLD_LIMIT_S, ArchiveSettings, Archiving
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder

    options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s, tls=tls)
    ranges = connections.ranges(options, waits_at_first=False)
    settings = ArchiveSettings(
        words=_words(destinations),
        hold_name=hold,
        hold_limit_s=HOLD_LIMIT_S if hold_limit_s is None else hold_limit_s,
        compacts=compact,
    )
    folder = ArchiveFolder(to)
    with JobSession(master, "antiphon archive", spark) as session:
        job = Archiving(ranges, options, folder, settings, session.run, progress=progress)
        return job.dry_run() if dry_run else job.archive()


def archive_files(archive: Path | str, sources: Sequence[str] = ("*",)) -> list[str]:
    """The files of an archive, of sources by name or pattern, for a reader of Parquet.

    >>> spark.read.parquet(*antiphon.pipeline.archive_files("archive", ["topic:orders"])).count()
    1200
    """
    from antiphon.pipeline.jobs.folder import ArchiveFolder

    folder = ArchiveFolder(archive)
    folder.require()
    state = folder.state()
    return [
        str(folder.place_of(file.path))
        for source in folder.chosen(state, _words(sources))
        for file in state.files.get(source, ())
        if file.path
    ]


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
    tls: Tls | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> AuditSummary:
    """Check that an archive has every message of destinations once, and nothing else.

    With the `url` of the cluster the archive is compared with what the replicas still list, too. All is well
    if the summary has no `problems`.

    >>> antiphon.pipeline.audit(["topic:orders"], "archive", "antiphon://127.0.0.1:7420").problems
    []
    """
    require_packages(*PACKAGES)
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.auditing import Auditing
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder

    folder = ArchiveFolder(archive)
    ranges = options = None
    if url is not None:
        options = connection_options(
            url, user=user, password_file=password_file, timeout_s=timeout_s, tls=tls
        )
        ranges = connections.ranges(options, waits_at_first=False)
    with JobSession(master, "antiphon audit", spark) as session:
        words = _words(destinations)
        return Auditing(folder, words, session.run, ranges, options, progress=progress).audit()


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
    tls: Tls | None = None,
    progress: Callable[[int, int], None] = _ignore,
) -> ReplaySummary:
    """Send the messages of an archive to a destination, each once.

    `numbers` are the first and the last one, of all channels or of one; `since_ms` and `until_ms` go by the
    time at which a message was sent. A replay has a name, by default made of what it replays: called again
    under its name it goes on where it was, and does nothing if it was done.

    >>> antiphon.pipeline.replay("antiphon://127.0.0.1:7420", "topic:again", "archive").rows
    17
    """
    require_packages(*PACKAGES)
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder
    from antiphon.pipeline.jobs.replay_work import replay_work
    from antiphon.pipeline.jobs.replaying import NumberRange, Replaying, ReplaySettings

    options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s, tls=tls)
    ranges = connections.ranges(options, waits_at_first=False)
    folder = ArchiveFolder(archive)
    settings = ReplaySettings(
        destination=destination,
        words=_words(sources),
        where=where,
        numbers=None if numbers is None else NumberRange(*numbers),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    with JobSession(master, "antiphon replay", spark) as session:
        work = replay_work(session, folder, settings, options)
        job = Replaying(folder, settings, ranges, work, name=name, rate=rate, progress=progress)
        return job.dry_run() if dry_run else job.replay()


def lag(
    url: str,
    names: Sequence[str] = (),
    *,
    checkpoints: Sequence[Path | str] = (),
    user: str | None = None,
    password_file: str | None = None,
    timeout_s: float | None = None,
    tls: Tls | None = None,
) -> list[ReaderLag]:
    """How far readers are behind: holds and subscriptions by name, queries by their checkpoints, or all.

    >>> [(one.name, one.rows) for one in antiphon.pipeline.lag("antiphon://127.0.0.1:7420")]
    [('nightly', 120)]
    """
    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.lagging import Lagging

    options = connection_options(url, user=user, password_file=password_file, timeout_s=timeout_s, tls=tls)
    lagging = Lagging(
        connections.ranges(options, waits_at_first=False),
        lambda: connections.connection(options).admin().destinations(),
    )
    return lagging.lags(_words(names), [Path(folder) for folder in checkpoints])


def _words(destinations: Sequence[str]) -> tuple[str, ...]:
    return (destinations,) if isinstance(destinations, str) else tuple(destinations)
