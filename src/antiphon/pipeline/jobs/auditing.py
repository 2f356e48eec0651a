"""Audit: is every message in the archive, once, and nothing else?

    files + manifest  ->  AUDITING a file (a task)  <-  pages of the same range, as a replica vouches for them

AUD1  Every file is read whole: its bytes, its rows, and the digest of each page, taken when the page came.
      That also holds for what no replica has any more.
AUD2  What replicas still list of an archived range is read again and compared: each message listed is in the
      archive, with the same content. A message in the archive that a topic ought to list and does not list is
      an error, too.
AUD3  The messages of each producer stand in the order in which they were sent.
AUD4  What is wrong is named by destination and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.errors import ArchiveDamaged, ArchiveError, DestinationError, DestinationUnavailable
from antiphon.pipeline import connections
from antiphon.pipeline.columns import ARCHIVED
from antiphon.pipeline.jobs.archiving import Runner
from antiphon.pipeline.jobs.files import file_pages
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchivePage, ArchiveSource, ArchiveState
from antiphon.pipeline.jobs.row_digests import rows_digest
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges
from antiphon.pipeline.planning import TaskSpan
from antiphon.pipeline.reading import read_pages
from antiphon.pipeline.rows import arrow_schema

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import RangeDestination

RANGES_TOLD: Final = 20
"""So many ranges of numbers are named of one kind of error in a page; the last one goes to the end."""

TASKS_AT_ONCE: Final = 512

_ID: Final = r"^ID:(?P<producer>[0-9a-f]{32})-(?P<number>\d+)@"


class AuditProblem(NamedTuple):
    """What is wrong with a range of numbers.

    `what` is one of missing, extra, changed, doubled, order, damaged, lost, manifest.
    """

    what: str
    destination: str
    channel: str
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class AuditTask:
    """A file, and where replicas have the same range; None if they have it no more, or are not asked."""

    folder: Path
    connection: ConnectionOptions | None
    file: ArchiveFile
    live: RangeDestination | None = None


@dataclass(slots=True)
class AuditedFile:
    """The findings in one file. `producers` has the first and the last number of each one's messages."""

    file: ArchiveFile
    rows: int = 0
    compared: int = 0
    problems: list[AuditProblem] = field(default_factory=list)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def tell(self, what: str, first: int, last: int, text: str) -> None:
        source = self.file.source
        self.problems.append(AuditProblem(what, source.name, source.channel, first, last, text))

    def tell_numbers(self, what: str, numbers: list[int], text: str) -> None:
        """The same of numbers here and there."""
        for first, last in _runs(numbers):
            self.tell(what, first, last, text)


@dataclass(slots=True)
class AuditSummary:
    """What an audit has found, with the keys of the JSON that the command prints."""

    archive: str
    destinations: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    compared: int = 0
    files: int = 0
    waiting: int = 0
    problems: list[AuditProblem] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "problems": [problem._asdict() for problem in self.problems]}


# -- on the driver -------------------------------------------------------------------------


class Auditing:
    """One audit; without `ranges` only the archive's own files are looked at."""

    def __init__(
        self,
        folder: ArchiveFolder,
        words: Sequence[str],
        run: Runner,
        ranges: PatientRanges | None = None,
        connection: ConnectionOptions | None = None,
        *,
        check: Callable[[AuditTask], AuditedFile] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._folder = folder
        self._words = words
        self._run = run
        self._ranges = ranges
        self._connection = connection
        self._check = check or audit_file
        self._progress = progress
        self._summary = AuditSummary(str(folder.root))

    def audit(self) -> AuditSummary:
        began_s = time.monotonic()
        identity = self._folder.require()
        if self._ranges is not None and (cluster := self._ranges.cluster()) != identity.cluster:
            raise ArchiveError(
                f"the archive {self._folder.root} is of cluster {identity.cluster}, and this is cluster"
                f" {cluster}: only its own cluster can vouch for it"
            )
        summary = self._summary
        try:
            state = self._folder.state()
        except ArchiveDamaged as error:
            summary.problems.append(AuditProblem("manifest", "", "", 0, 0, str(error)))
            return summary
        sources = self._folder.chosen(state, self._words)
        live = self._live(sources, state)
        files = [file for source in sources for file in state.files.get(source, ())]
        audited = self._audited(files, live)
        for source, own in groupby(audited, key=lambda one: one.file.source):
            self._tell(source, list(own), source in live)
        for loss in state.losses:
            if loss.source in sources:
                text = "some of these were gone before they were archived"
                summary.problems.append(
                    AuditProblem("lost", loss.source.name, loss.source.channel, loss.first, loss.last, text)
                )
        summary.seconds = round(time.monotonic() - began_s, 1)
        return summary

    def _live(
        self, sources: list[ArchiveSource], state: ArchiveState
    ) -> dict[ArchiveSource, RangeDestination]:
        """Those that still exist."""
        found: dict[ArchiveSource, RangeDestination] = {}
        if self._ranges is None:
            return found
        for source in sources:
            try:
                named = self._ranges.destinations([source.name])
                own = [one for one in named if (one.channel, one.id) == (source.channel, source.id)]
                if not own:
                    continue
                above = {source.channel: state.next(source) or 1}
                self._summary.waiting += self._ranges.heads(own, above)[source.channel].rows
            except DestinationUnavailable:
                raise
            except DestinationError:
                continue
            (found[source],) = own
        return found

    def _audited(
        self, files: list[ArchiveFile], live: dict[ArchiveSource, RangeDestination]
    ) -> Iterator[AuditedFile]:
        """The findings in all files, in their order."""
        tasks = [
            AuditTask(self._folder.root, self._connection, file, live.get(file.source)) for file in files
        ]
        total, done = sum(file.rows for file in files), 0
        for at in range(0, len(tasks), TASKS_AT_ONCE):
            for one in self._run(tasks[at : at + TASKS_AT_ONCE], self._check):
                done += one.rows
                yield one
            self._progress(done, total)

    def _tell(self, source: ArchiveSource, audited: list[AuditedFile], exists: bool) -> None:
        """The findings in all files of a source."""
        summary = self._summary
        last: dict[str, int] = {}
        for one in audited:
            file = one.file
            for producer, (first_number, last_number) in one.producers.items():
                if last.get(producer, 0) >= first_number:
                    text = f"messages of producer {producer} stand behind later ones of an earlier file"
                    one.tell("order", file.start, file.stop - 1, text)
                last[producer] = last_number
            summary.problems += one.problems
        rows, compared = sum(one.rows for one in audited), sum(one.compared for one in audited)
        summary.rows += rows
        summary.compared += compared
        summary.files += sum(1 for one in audited if one.file.path)
        summary.destinations.append(
            {
                "name": source.name,
                "channel": source.channel,
                "from": audited[0].file.start,
                "next": audited[-1].file.stop,
                "rows": rows,
                "compared": compared,
                "exists": exists,
            }
        )


# -- in a task -----------------------------------------------------------------------------


def audit_file(task: AuditTask) -> AuditedFile:
    """Check one file; in a task."""
    ranges = None
    if task.connection is not None and task.live is not None:
        ranges = connections.ranges(task.connection)
    return audit_range(task, ranges)


def audit_range(task: AuditTask, ranges: PatientRanges | None) -> AuditedFile:
    """Check one file, and compare it with what a replica lists of its range."""
    found = AuditedFile(task.file)
    archived = _Archived(task, found)
    if ranges is None or task.live is None:
        archived.read_rest()
        return found
    span = TaskSpan(task.file.source.channel, task.file.start, task.file.stop, (task.live,), allows_loss=True)
    try:
        for page, batches in read_pages(ranges, span, ARCHIVED):
            rows = archived.read_through(page.through)
            if rows is None:
                return found
            listed = pa.Table.from_batches(batches, schema=arrow_schema(ARCHIVED.names))
            found.compared += listed.num_rows
            _compare(found, listed, rows, max([loss.last for loss in page.lost], default=0))
    except DestinationUnavailable:
        raise
    except DestinationError:
        # Deleted meanwhile: no replica lists anything any more.
        archived.read_rest()
    return found


class _Archived:
    """The rows of a file, page by page, each checked once (AUD1, AUD3)."""

    def __init__(self, task: AuditTask, found: AuditedFile) -> None:
        self._file = task.file
        self._found = found
        self._pages: Iterator[tuple[ArchivePage, list[pa.RecordBatch]]] = file_pages(
            ArchiveFolder(task.folder), task.file
        )
        self._schema = arrow_schema(ARCHIVED.names)
        self._rest = self._schema.empty_table()
        self._stop = task.file.start
        self._is_damaged = False

    def read_through(self, number: int) -> pa.Table | None:
        """The rows up to this number that were not given yet; None if the file cannot be read."""
        tables = [self._rest]
        try:
            while self._stop <= number and not self._is_damaged:
                page, batches = next(self._pages)
                tables.append(self._checked(page, batches))
                self._stop = page.stop
            if self._stop == self._file.stop:
                # A file has nothing behind its last page.
                next(self._pages, None)
        except ArchiveDamaged as error:
            self._is_damaged = True
            self._found.tell("damaged", self._stop, self._file.stop - 1, str(error))
        if self._is_damaged:
            return None
        table = pa.concat_tables(tables)
        is_due = pc.less_equal(table["sequence"], number)
        self._rest = table.filter(pc.invert(is_due))
        return table.filter(is_due)

    def read_rest(self) -> None:
        """Check the pages that are left, one by one."""
        while self._stop < self._file.stop and self.read_through(self._stop) is not None:
            self._rest = self._schema.empty_table()

    def _checked(self, page: ArchivePage, batches: list[pa.RecordBatch]) -> pa.Table:
        found, source = self._found, self._file.source
        table = pa.Table.from_batches(batches, schema=self._schema)
        found.rows += table.num_rows
        if rows_digest(batches) != page.digest:
            text = f"the file {self._file.path} has other rows than the replica gave"
            found.tell("changed", self._stop, page.stop - 1, text)
        numbers = table["sequence"].to_pylist()
        doubled = sorted({one for one, other in pairwise(numbers) if one == other})
        found.tell_numbers("doubled", doubled, "in the file twice")
        foreign = [number for number in numbers if not self._stop <= number < page.stop]
        found.tell_numbers(
            "extra", sorted(foreign), f"outside of the range of their page in {self._file.path}"
        )
        for name, wanted in (("destination", source.name), ("channel", source.channel)):
            if pc.any(pc.not_equal(table[name], wanted)).as_py():
                text = f"the file {self._file.path} has rows of another {name}"
                found.tell("extra", self._stop, page.stop - 1, text)
        self._check_order(table)
        return table

    def _check_order(self, table: pa.Table) -> None:
        """AUD3: by the producer and the number in the ids of messages. Staged ones have 64 bits."""
        if not table.num_rows:
            return
        parts = pc.extract_regex(table["message_id"].combine_chunks(), _ID)
        numbered = pa.table(
            {
                "producer": parts.field("producer"),
                "number": parts.field("number").cast(pa.uint64()),
                "sequence": table["sequence"],
            }
        ).sort_by([("producer", "ascending"), ("sequence", "ascending")])
        producers, numbers = numbered["producer"].combine_chunks(), numbered["number"].combine_chunks()
        sequences = numbered["sequence"]
        is_same = pc.equal(producers.slice(1), producers.slice(0, len(producers) - 1))
        falls = pc.less_equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
        wrong = sequences.slice(1).filter(pc.and_(is_same, falls)).to_pylist()
        text = "stands behind a later message of its producer"
        self._found.tell_numbers("order", sorted(wrong), text)
        starts = [0, *[at + 1 for at, same in enumerate(is_same.to_pylist()) if not same], len(producers)]
        known = self._found.producers
        for start, stop in pairwise(starts):
            producer = producers[start].as_py()
            first, last = numbers[start].as_py(), numbers[stop - 1].as_py()
            before = known.get(producer)
            if before is not None and before[1] >= first:
                at = sequences[start].as_py()
                self._found.tell("order", at, at, text)
            known[producer] = (first if before is None else before[0], last)


def _compare(found: AuditedFile, listed: pa.Table, archived: pa.Table, lost_through: int) -> None:
    """What a replica lists of a range, and what the archive has of it (AUD2)."""
    if rows_digest(listed.to_batches()) == rows_digest(archived.to_batches()):
        return
    here, there = archived["sequence"], listed["sequence"]
    missing = listed.filter(pc.invert(pc.is_in(there, value_set=here)))
    found.tell_numbers(
        "missing", missing["sequence"].to_pylist(), "a replica lists these, the archive has not"
    )
    if found.file.source.name.startswith("topic:"):
        is_extra = pc.and_(pc.invert(pc.is_in(here, value_set=there)), pc.greater(here, lost_through))
        more = archived.filter(is_extra)
        text = "the archive has these, no replica lists them, and the topic has not dropped them"
        found.tell_numbers("extra", more["sequence"].to_pylist(), text)
    common_here = archived.filter(pc.is_in(here, value_set=there))
    common_there = listed.filter(pc.is_in(there, value_set=here))
    if rows_digest(common_here.to_batches()) != rows_digest(common_there.to_batches()):
        changed = [
            one["sequence"]
            for one, other in zip(common_here.to_pylist(), common_there.to_pylist(), strict=False)
            if one != other
        ]
        found.tell_numbers("changed", changed, "a replica has other content under these numbers")


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Numbers as ranges, first and last; beyond many ranges, one that goes to the end."""
    told, at = 0, 0
    while at < len(numbers):
        stop = at + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1:
            stop += 1
        told += 1
        if told == RANGES_TOLD:
            stop = len(numbers)
        yield numbers[at], numbers[stop - 1]
        at = stop
