"""Files of messages: one task writes a part of a range to Parquet, or joins small files to a larger one.

PQF1  A file has the rows of a range in the order of their numbers, with every column of the source. A row
      group consists of whole pages.
PQF2  The digest of a page is taken of the rows that came from the replica, not of those that were written: a
      mistake on the way into the file shows when the file is read.
PQF3  A file is durable when its task ends. A task that fails takes its file back; that of a killed one is
      named by no commit.
PQF4  Joining reads files with their digests and page by page: damage is not passed on as if it were sound.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.errors import ArchiveDamaged, ArchiveError
from antiphon.pipeline import connections
from antiphon.pipeline.columns import ARCHIVED
from antiphon.pipeline.jobs.folder import ArchiveFolder, digest_of, sync_folder
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchivePage, ArchiveSource
from antiphon.pipeline.jobs.row_digests import rows_digest
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges
from antiphon.pipeline.planning import TaskSpan
from antiphon.pipeline.reading import read_pages
from antiphon.pipeline.rows import arrow_schema

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 16 * 1024 * 1024
"""A row group is written when it has so many rows, or bytes in memory."""

DICTIONARY_COLUMNS: Final = ["destination", "channel", "type", "reply_to", "body_kind"]


@dataclass(frozen=True, slots=True)
class SpanTask:
    """A part of a source's range, on its way to a file."""

    folder: Path
    connection: ConnectionOptions
    span: TaskSpan
    date: str

    @property
    def source(self) -> ArchiveSource:
        (one,) = self.span.destinations
        return ArchiveSource(one.name, one.channel, one.id)


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Files that follow each other, and become one."""

    folder: Path
    files: tuple[ArchiveFile, ...]


def write_span(task: SpanTask) -> ArchiveFile:
    """Read a range from the cluster and write it to a file; in a task."""
    return write_range(task, connections.ranges(task.connection))


def write_range(task: SpanTask, ranges: PatientRanges) -> ArchiveFile:
    """Read a range and write it to a file. Without a message in the range no file is made."""
    source, span = task.source, task.span
    empty = ArchiveFile(source, span.start, span.stop, task.date, 0, ())
    pages = ((page.through + 1, batches) for page, batches in read_pages(ranges, span, ARCHIVED))
    with _writing(ArchiveFolder(task.folder), empty) as writing:
        for stop, batches in pages:
            writing.add(stop, batches)
        return writing.end()


def join_files(task: JoinTask) -> ArchiveFile:
    """Write files that follow each other into one; in a task."""
    folder, first = ArchiveFolder(task.folder), task.files[0]
    empty = ArchiveFile(first.source, first.start, task.files[-1].stop, first.date, 0, ())
    with _writing(folder, empty) as writing:
        for file in task.files:
            for page, batches in checked_pages(folder, file):
                writing.add(page.stop, batches, page.digest)
        return writing.end()


# -- writing -------------------------------------------------------------------------------


class _Writing:
    """A file on its way."""

    def __init__(self, folder: ArchiveFolder, file: ArchiveFile) -> None:
        self._file = file
        source = file.source
        self._path = folder.new_path(source.name, source.channel, file.date, file.start)
        self.place = folder.place_of(self._path)
        self._schema = arrow_schema(ARCHIVED.names)
        self._writer: pq.ParquetWriter | None = None
        self._pages: list[ArchivePage] = []
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._size = 0

    def add(self, stop: int, batches: list[pa.RecordBatch], digest: str | None = None) -> None:
        rows = sum(batch.num_rows for batch in batches)
        self._pages.append(ArchivePage(stop, rows, digest or rows_digest(batches)))
        self._waiting += batches
        self._rows += rows
        self._size += sum(batch.nbytes for batch in batches)
        if self._rows >= GROUP_ROWS or self._size >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self.place, self._schema, compression="zstd", use_dictionary=DICTIONARY_COLUMNS
            )
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._size = [], 0, 0

    def end(self) -> ArchiveFile:
        self._write_group()
        rows = sum(page.rows for page in self._pages)
        made = replace(self._file, rows=rows, pages=tuple(self._pages))
        if self._writer is None:
            return made
        self.close()
        with self.place.open("rb") as file:
            os.fsync(file.fileno())
        for folder in self.place.parents[:3]:
            # Folders may be new, too.
            sync_folder(folder)
        digest, size = digest_of(self.place)
        return replace(made, path=self._path, size=size, digest=digest)

    def close(self) -> None:
        if self._writer is not None and self._writer.is_open:
            self._writer.close()


@contextmanager
def _writing(folder: ArchiveFolder, file: ArchiveFile) -> Iterator[_Writing]:
    """A file that is taken back if something goes wrong (PQF3)."""
    writing = _Writing(folder, file)
    try:
        yield writing
    except BaseException as error:
        try:
            writing.close()
        except (OSError, pa.ArrowException):
            pass  # the error below says what is wrong
        writing.place.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ArchiveError(f"{writing.place} cannot be written: {error.strerror or error}") from None
        raise


# -- reading -------------------------------------------------------------------------------


def checked_pages(
    folder: ArchiveFolder, file: ArchiveFile
) -> Iterator[tuple[ArchivePage, list[pa.RecordBatch]]]:
    """The pages of a file, each as it came from the replica; raises ArchiveDamaged at the first other one."""
    start = file.start
    for page, batches in file_pages(folder, file):
        if rows_digest(batches) != page.digest:
            raise ArchiveDamaged(
                f"{file.path} has other messages than were archived, from number {start} to {page.stop - 1}"
            )
        yield page, batches
        start = page.stop


def file_pages(
    folder: ArchiveFolder, file: ArchiveFile
) -> Iterator[tuple[ArchivePage, list[pa.RecordBatch]]]:
    """The pages of a file with as many rows as each is said to have; raises ArchiveDamaged."""
    if not file.path:
        yield from ((page, []) for page in file.pages)
        return
    place = folder.kept(file)
    try:
        with pq.ParquetFile(place) as opened:
            if not opened.schema_arrow.equals(arrow_schema(ARCHIVED.names)):
                raise ArchiveDamaged(f"{file.path} has other columns than an archive")
            yield from _cut(file, _batches(opened))
    except (pa.ArrowException, OSError) as error:
        raise ArchiveDamaged(f"{file.path} is no Parquet file that can be read: {error}") from None


def _batches(opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in range(opened.num_row_groups):
        yield from opened.read_row_group(group).to_batches()


def _cut(
    file: ArchiveFile, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[ArchivePage, list[pa.RecordBatch]]]:
    """Rows in pages, by how many each page has."""
    coming = iter(batches)
    rest: pa.RecordBatch | None = None
    for page in file.pages:
        taken: list[pa.RecordBatch] = []
        missing = page.rows
        while missing:
            rest = rest if rest is not None else next(coming, None)
            if rest is None:
                raise ArchiveDamaged(f"{file.path} has fewer messages than were archived")
            part = rest.slice(0, missing)
            missing -= part.num_rows
            taken.append(part)
            rest = rest.slice(part.num_rows) if part.num_rows < rest.num_rows else None
        yield page, taken
    if rest is not None or any(batch.num_rows for batch in coming):
        raise ArchiveDamaged(f"{file.path} has more messages than were archived")
