"""Archive: the messages of destinations go to Parquet files, each message once.

    heads, bounds  ->  ARCHIVING plans a round  ->  tasks write files  ->  one commit  ->  the hold moves on

ARC1  A message that is kept when the job begins is in the archive when the job ends, once: a round is planned
      from the last commit, and its files count when a commit names them. So the job may be killed at any
      moment, and two jobs may work on one archive.
ARC2  What is not archived yet is kept under the name of the job's hold, from run to run. The hold moves on
      when a commit is written, never before.
ARC3  What was lost all the same is written down as lost, with its numbers, and said.
ARC4  A message stands under the date of its channel's log time.
ARC5  The job ends, however fast producers write: it archives what was there when it began.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_hexdigest

from antiphon.errors import ArchiveError, DestinationError, DestinationUnavailable, LocalError
from antiphon.pipeline.holding import QueryHold
from antiphon.pipeline.jobs.choosing import find
from antiphon.pipeline.jobs.compaction import plan_joins
from antiphon.pipeline.jobs.files import JoinTask, SpanTask, join_files, write_span
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchiveLoss, ArchiveSource, ArchiveState
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges
from antiphon.pipeline.planning import TaskSpan

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import ChannelHead, DestinationHead, RangeDestination

log = logging.getLogger("antiphon.pipeline")

Runner = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
"""Runs a function on tasks: Spark, or a loop."""

FILE_ROWS: Final = 1_000_000
FILE_BYTES: Final = 128 * 1024 * 1024
"""A file has at most so many rows, or so many bytes as they are stored; Parquet makes them fewer."""

ROUND_ROWS: Final = 5_000_000
ROUND_BYTES: Final = 1024 * 1024 * 1024
"""So much is archived between two commits: a job that is killed repeats this much at most."""

HOLD_LIMIT_S: Final = 7 * 86_400.0
LISTINGS_MAX: Final = 20
DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class ArchiveSummary:
    """What a run has done, or with `dry_run` would do; with the keys of the JSON that the command prints."""

    archive: str
    dry_run: bool = False
    destinations: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    commits: int = 0
    joined_files: int = 0
    dropped_files: int = 0
    hold: str = ""
    lost: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How an archive is written."""

    words: tuple[str, ...]
    hold_name: str | None = None
    hold_limit_s: float = HOLD_LIMIT_S
    file_rows: int = FILE_ROWS
    file_bytes: int = FILE_BYTES
    round_rows: int = ROUND_ROWS
    round_bytes: int = ROUND_BYTES
    compacts: bool = True


@dataclass(slots=True)
class _Round:
    """The tasks between two commits; from where new sources want all; what was lost."""

    tasks: list[SpanTask] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    since: dict[ArchiveSource, int] = field(default_factory=dict)
    losses: list[ArchiveLoss] = field(default_factory=list)


class Archiving:
    """One run of the job, on the driver."""

    def __init__(
        self,
        ranges: PatientRanges,
        connection: ConnectionOptions,
        folder: ArchiveFolder,
        settings: ArchiveSettings,
        run: Runner,
        *,
        write: Callable[[SpanTask], ArchiveFile] = write_span,
        wall_s: Callable[[], float] = time.time,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`progress` is told how many rows are done, and of how many."""
        if not settings.words:
            raise LocalError("an archive needs destinations: names such as topic:orders, or 'topic:orders.*'")
        self._ranges = ranges
        self._connection = connection
        self._folder = folder
        self._settings = settings
        self._run = run
        self._write = write
        self._wall_s = wall_s
        self._progress = progress
        self._state = ArchiveState()
        self._midnights: dict[tuple[str, int], int] = {}
        self._goal: dict[ArchiveSource, int] = {}
        self._heads: dict[str, ChannelHead] = {}
        self._sources: dict[ArchiveSource, DestinationHead] = {}
        self._summary = ArchiveSummary(str(folder.root))

    def dry_run(self) -> ArchiveSummary:
        """What a run would archive; nothing is changed."""
        identity = self._folder.identity()
        if identity is not None:
            if identity.cluster != (cluster := self._ranges.cluster()):
                raise ArchiveError(
                    f"the archive {self._folder.root} is of cluster {identity.cluster},"
                    f" and this is cluster {cluster}"
                )
            self._state = self._folder.state()
        self._look()
        self._summary.dry_run = True
        for source, head in self._sources.items():
            start = self._start(source, head)
            waiting = self._ranges.bound(source.channel, [_destination(source)], start, head.next)
            self._tell(source, start, head.next, waiting.rows, waiting.bytes)
        return self._summary

    def archive(self) -> ArchiveSummary:
        """Archive what is there (ARC5)."""
        began_s = time.monotonic()
        identity = self._folder.establish(self._ranges.cluster())
        self._state = self._folder.state()
        self._look()
        settings = self._settings
        name = settings.hold_name or default_hold_name(identity.archive, settings.words)
        self._summary.hold = name
        hold = QueryHold(self._ranges, name, settings.hold_limit_s, consume=False, acks=False)
        try:
            self._hold(hold.begin)
            # Now nothing goes any more.
            self._look()
            self._goal = {source: head.next for source, head in self._sources.items()}
            before = {source: self._start(source, head) for source, head in self._sources.items()}
            total = sum(self._waiting(source, start) for source, start in before.items())
            while self._round(total):
                self._hold(hold.move)
            for source, start in before.items():
                self._tell_archived(source, start)
            if settings.compacts:
                self._compact()
        finally:
            hold.end()
        self._summary.dropped_files = self._folder.drop_orphans(self._state.paths, self._wall_s())
        self._summary.seconds = round(time.monotonic() - began_s, 1)
        return self._summary

    # -- what there is ---------------------------------------------------------

    def _look(self) -> None:
        """List the destinations, and where they begin and end."""
        known = frozenset(source.name for source in self._state.files)
        for _ in range(LISTINGS_MAX):
            destinations, gone = find(self._ranges, self._settings.words, known)
            try:
                self._heads = self._ranges.heads(destinations) if destinations else {}
            except DestinationUnavailable:
                raise
            except DestinationError:
                continue  # one was deleted meanwhile
            for name in gone:
                self._warn(f"{name} does not exist any more; the archive keeps what it has of it")
            by_place = {(one.channel, one.id): one for one in destinations}
            self._sources = {}
            for channel, head in self._heads.items():
                for told in head.destinations:
                    one = by_place[channel, told.id]
                    self._sources[ArchiveSource(one.name, channel, one.id)] = told
            return
        raise DestinationUnavailable("destinations are deleted faster than they can be listed; try again")

    def _warn(self, text: str) -> None:
        if text not in self._summary.warnings:
            self._summary.warnings.append(text)

    def _start(self, source: ArchiveSource, head: DestinationHead) -> int:
        """The first number that is not archived; of a new source, the first that is kept."""
        archived = self._state.next(source)
        return self._state.since.get(source, head.first) if archived is None else archived

    def _waiting(self, source: ArchiveSource, start: int) -> int:
        head = self._sources[source]
        if start >= head.next:
            return 0
        return self._ranges.bound(source.channel, [_destination(source)], start, head.next).rows

    # -- the hold --------------------------------------------------------------

    def _hold(self, change: Callable[[dict[str, int], tuple[RangeDestination, ...]], None]) -> None:
        """Begin or move the hold: everything that is not archived is kept (ARC2)."""
        if self._sources:
            change(self._positions(), tuple([_destination(source) for source in self._sources]))

    def _positions(self) -> dict[str, int]:
        """Of each channel the lowest number that waits. Sources of which nothing waits hold up no other."""
        positions = {}
        for channel, head in self._heads.items():
            waiting = [
                start
                for source, told in self._sources.items()
                if source.channel == channel and (start := self._start(source, told)) < told.next
            ]
            positions[channel] = min(waiting, default=head.next)
        return positions

    # -- rounds ----------------------------------------------------------------

    def _round(self, total: int) -> bool:
        """Archive the next part, and commit it; False if there is nothing left."""
        planned = self._plan()
        if not (planned.tasks or planned.since):
            return False
        try:
            written: list[ArchiveFile] = self._run(planned.tasks, self._write)
        except DestinationUnavailable:
            raise
        except DestinationError:
            # The files of the others are left: the next round writes them again.
            if not self._forget_deleted():
                raise
            return True
        if any(file.path and not self._folder.place_of(file.path).exists() for file in written):
            # The job has slept for longer than files without a commit are kept (FOL3).
            self._drop(written)
            self._state = self._folder.state()
            return True
        commit = self._state.next_commit(
            "archive",
            int(self._wall_s() * 1000),
            written,
            since=planned.since,
            losses=planned.losses,
        )
        digest = self._folder.add(commit)
        if digest is None:
            # Another run was quicker (FOL1): go on from where it is.
            self._drop(written)
            self._state = self._folder.state()
            return True
        self._state = self._state.after(commit, digest)
        summary = self._summary
        summary.commits += 1
        summary.rows += sum(file.rows for file in written)
        summary.files += sum(1 for file in written if file.path)
        summary.bytes += planned.bytes
        summary.file_bytes += sum(file.size for file in written)
        for loss in planned.losses:
            self._tell_loss(loss)
        self._progress(summary.rows, total)
        return True

    def _plan(self) -> _Round:
        """The next part of everything, within the limits of a round."""
        settings, planned = self._settings, _Round()
        for source, goal in self._goal.items():
            head = self._sources.get(source)
            if head is None:
                continue
            start = self._start(source, head)
            whole_from = self._state.since.get(source)
            if start >= goal:
                if whole_from is None:
                    # Nothing is there yet: whatever comes is wanted.
                    planned.since[source] = start
                continue
            if planned.rows >= settings.round_rows or planned.bytes >= settings.round_bytes:
                continue
            if whole_from is None:
                # What had gone before the hold is no loss of the archive.
                whole_from = planned.since[source] = head.lost_through + 1
            elif head.lost_through >= max(start, whole_from):
                planned.losses.append(ArchiveLoss(source, max(start, whole_from), head.lost_through))
                whole_from = planned.since[source] = head.lost_through + 1
            for date, first, stop in self._days(source.channel, start, goal):
                rows, size = settings.round_rows - planned.rows, settings.round_bytes - planned.bytes
                for span, span_rows, span_bytes in self._spans(source, first, stop, whole_from, rows, size):
                    planned.rows += span_rows
                    planned.bytes += span_bytes
                    planned.tasks.append(SpanTask(self._folder.root, self._connection, span, date))
        return planned

    def _spans(
        self, source: ArchiveSource, first: int, stop: int, since: int, rows: int, size: int
    ) -> Iterator[tuple[TaskSpan, int, int]]:
        """A range in files, as far as so many rows and bytes go."""
        settings, destination = self._settings, _destination(source)._replace(since=since)
        while first < stop and rows > 0 and size > 0:
            end = self._ranges.bound(
                source.channel,
                [destination],
                first,
                stop,
                rows=min(rows, settings.file_rows),
                bytes=min(size, settings.file_bytes),
            )
            span = TaskSpan(source.channel, first, end.stop, (destination,), allows_loss=False)
            yield span, end.rows, end.bytes
            first, rows, size = end.stop, rows - end.rows, size - end.bytes

    def _days(self, channel: str, start: int, stop: int) -> list[tuple[str, int, int]]:
        """A range cut at the midnights of log time (ARC4)."""
        log_time_ms = self._heads[channel].log_time_ms or int(self._wall_s() * 1000)
        day = log_time_ms // DAY_MS
        cuts: list[tuple[str, int, int]] = []
        while True:
            first = max(start, self._midnight(channel, day))
            if first < stop:
                date = datetime.fromtimestamp(day * 86_400, UTC)
                cuts.append((f"{date:%Y-%m-%d}", first, stop))
                stop = first
            if first == start:
                return cuts[::-1]
            day -= 1

    def _midnight(self, channel: str, day: int) -> int:
        """The first number of a day."""
        known = self._midnights.get((channel, day))
        if known is None:
            known = self._midnights[channel, day] = self._ranges.at_time(channel, day * DAY_MS)
        return known

    def _forget_deleted(self) -> bool:
        """Destinations were deleted while they were read: what they had is gone. False if none was."""
        before = self._sources
        self._look()
        deleted = sorted(before.keys() - self._sources.keys())
        for source in deleted:
            start = self._start(source, before[source])
            self._warn(
                f"{source.name} was deleted while it was archived: what it had from number {start} of channel"
                f" {source.channel} on is not in the archive"
            )
        return bool(deleted)

    def _drop(self, files: Sequence[ArchiveFile]) -> None:
        for file in files:
            if file.path:
                self._folder.place_of(file.path).unlink(missing_ok=True)

    # -- small files -------------------------------------------------------------

    def _compact(self) -> None:
        """Join small files that follow each other; the archive has the same messages after that."""
        while groups := plan_joins(self._state, self._settings.file_bytes, self._settings.file_rows):
            tasks = [JoinTask(self._folder.root, group) for group in groups]
            joined: list[ArchiveFile] = self._run(tasks, join_files)
            removed = tuple([file.path for group in groups for file in group if file.path])
            commit = self._state.next_commit("compact", int(self._wall_s() * 1000), joined, removed)
            digest = self._folder.add(commit)
            if digest is None:
                self._drop(joined)
                self._state = self._folder.state()
                return  # the other run does it, or the next one
            self._state = self._state.after(commit, digest)
            self._folder.outdated(removed)
            self._summary.joined_files += len(removed)

    # -- the summary -------------------------------------------------------------

    def _tell_archived(self, source: ArchiveSource, start: int) -> None:
        files = [file for file in self._state.files.get(source, ()) if file.stop > start]
        rows = sum(page.rows for file in files for page in file.pages if page.stop > start)
        stop = files[-1].stop if files else start
        self._tell(source, start, stop, rows, sum(file.size for file in files if file.start >= start))

    def _tell(self, source: ArchiveSource, start: int, stop: int, rows: int, size: int) -> None:
        self._summary.destinations.append(
            {
                "name": source.name,
                "channel": source.channel,
                "from": start,
                "next": stop,
                "rows": rows,
                "bytes": size,
            }
        )
        if self._summary.dry_run:
            self._summary.rows += rows
            self._summary.bytes += size

    def _tell_loss(self, loss: ArchiveLoss) -> None:
        source = loss.source
        self._summary.lost.append(
            {"name": source.name, "channel": source.channel, "first": loss.first, "last": loss.last}
        )
        log.warning(
            "messages of %s were gone before they were archived: numbers %d to %d of channel %s",
            *(source.name, loss.first, loss.last, source.channel),
        )


def default_hold_name(archive: str, words: Sequence[str]) -> str:
    """The hold of an archive, and of what a run archives: runs with other words do not move it."""
    return f"archive/{archive[:8]}/{xxh3_64_hexdigest(','.join(sorted(words)).encode())[:8]}"


def _destination(source: ArchiveSource) -> RangeDestination:
    from antiphon.client.aio.ranges import RangeDestination

    return RangeDestination(source.name, source.channel, source.id)
