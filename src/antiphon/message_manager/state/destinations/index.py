"""BatchIndex: the places of the stored batches of one destination.

A stored batch is one row in parallel arrays, 40 bytes; its messages stay in the journal. Rows are in the
order of their numbers, so a number is found by bisection.

IDX1  Every live number lies in exactly one row, and that row says where its bytes are.
IDX2  `SegmentUse` counts a batch as long as one of its messages lives, and no longer.
IDX3  Rows without a live message go: at the front when they are half of all, in the middle when they are more
      than half of the rest. Both cost a constant per row over its life.

The destination has the live numbers, and passes them to every call that needs them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from antiphon.bus.ports import Location
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

# Below this many rows nothing is gained by tidying up.
_TIDY_ROWS_MIN: Final = 64

_COLUMNS: Final = "QIIIIIIQ"
ROW_BYTES: Final = sum(array(code).itemsize for code in _COLUMNS)
_NO_ROWS: Final = [array(code) for code in _COLUMNS]
"""The columns of every index without rows: most destinations of very many are empty."""
_NO_COUNT: Final = bytes(4)
assert ROW_BYTES == 8 + 6 * 4 + 8, "this machine's integers are of another size"


class StoredBatch(NamedTuple):
    """A row: the messages first … first+count-1 and the place of their batch."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    location: Location
    offset: int
    length: int

    @property
    def stop(self) -> int:
        return self.first + self.count


class SegmentUse:
    """The bytes of live batches in each segment of the journal, over all destinations."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, segment: int, size: int) -> None:
        self._bytes[segment] = self._bytes.get(segment, 0) + size

    def drop(self, segment: int, size: int) -> None:
        left = self._bytes[segment] - size
        assert left >= 0, "a segment gave back more than it held"
        if left:
            self._bytes[segment] = left
        else:
            del self._bytes[segment]

    def by_segment(self) -> dict[int, int]:
        return dict(sorted(self._bytes.items()))


class BatchIndex:
    __slots__ = (
        "_counts",
        "_dead",
        "_firsts",
        "_head",
        "_identities",
        "_lengths",
        "_offsets",
        "_record_lengths",
        "_record_offsets",
        "_segments",
        "_use",
    )

    def __init__(self, use: SegmentUse) -> None:
        self._use = use
        self._become(_NO_ROWS)

    def _become(self, columns: list[array[int]]) -> None:
        (
            self._firsts,
            self._counts,
            self._segments,
            self._record_offsets,
            self._record_lengths,
            self._offsets,
            self._lengths,
            self._identities,
        ) = columns
        # Rows before `_head` are dead and wait to be cut off; `_dead` counts the dead ones behind it.
        self._head = 0
        self._dead = 0

    @property
    def _columns(self) -> list[array[int]]:
        return [
            self._firsts,
            self._counts,
            self._segments,
            self._record_offsets,
            self._record_lengths,
            self._offsets,
            self._lengths,
            self._identities,
        ]

    def __len__(self) -> int:
        return len(self._firsts) - self._head - self._dead

    @property
    def row_count(self) -> int:
        return len(self._firsts)

    # -- changing --------------------------------------------------------------

    def append(
        self,
        firsts: Sequence[int],
        counts: Sequence[int],
        location: Location,
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Take in batches of one record; their numbers lie above all that came before."""
        rows = len(firsts)
        assert not self._firsts or firsts[0] > self._firsts[-1], "a batch was stored out of order"
        segment, record_offset, record_length, identity = location
        if self._firsts is _NO_ROWS[0]:
            self._become([array(code) for code in _COLUMNS])
        self._firsts.extend(firsts)
        self._counts.extend(counts)
        self._segments.extend((segment,) * rows)
        self._record_offsets.extend((record_offset,) * rows)
        self._record_lengths.extend((record_length,) * rows)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)
        self._identities.extend((identity,) * rows)
        self._use.add(segment, sum(lengths))

    def forget(self, removed: Iterable[tuple[int, int]], live: Ranges) -> int:
        """Drop numbers that have just left `live`; returns their bytes.

        A message counts for an equal part of its batch, so that additions and removals agree to the byte.
        """
        firsts, counts, lengths = self._firsts, self._counts, self._lengths
        freed = 0
        touched = -1
        for start, stop in removed:
            at = bisect_right(firsts, start, self._head) - 1
            while start < stop:
                if at != touched:
                    if touched >= 0:
                        self._look_at(touched, live)
                    touched = at
                count = counts[at]
                end = firsts[at] + count
                upto = end if end < stop else stop
                freed += lengths[at] // count * (upto - start)
                start = upto
                at += 1
        # Only now: while its numbers were gone through, the last row must not be counted twice.
        if touched >= 0:
            self._look_at(touched, live)
        self._tidy(live)
        return freed

    def _look_at(self, at: int, live: Ranges) -> None:
        """Count a row as dead if its last message has gone."""
        first = self._firsts[at]
        end = first + self._counts[at]
        # Mostly all live numbers lie behind the row, which is quicker to see.
        if not live or live.first >= end or not live.clip(first, end):
            self._use.drop(self._segments[at], self._lengths[at])
            self._dead += 1

    def _tidy(self, live: Ranges) -> None:
        if not live:
            self._become(_NO_ROWS)
            return
        firsts = self._firsts
        if self._dead and live.first >= firsts[self._head] + self._counts[self._head]:
            head = bisect_right(firsts, live.first, self._head) - 1
            self._dead -= head - self._head
            self._head = head
        rows = len(firsts)
        if self._head * 2 > rows and self._head >= _TIDY_ROWS_MIN:
            head, dead = self._head, self._dead
            self._become([column[head:] for column in self._columns])
            self._dead = dead
        elif self._dead * 2 > rows - self._head and self._dead >= _TIDY_ROWS_MIN:
            self.compact(live)

    def compact(self, live: Ranges) -> None:
        if self._head or self._dead:
            self._become(self.live_columns(live))

    def live_columns(self, live: Ranges) -> list[array[int]]:
        """The rows with a live message, column by column."""
        if not self._head and not self._dead:
            return self._columns
        columns: list[array[int]] = [array(code) for code in _COLUMNS]
        for start, stop in self._live_spans(live):
            for kept, column in zip(columns, self._columns, strict=True):
                kept.extend(column[start:stop])
        return columns

    def _live_spans(self, live: Ranges) -> Iterator[tuple[int, int]]:
        """Positions [start, stop) of rows with a live message, ascending; neighbours are joined."""
        firsts = self._firsts
        span_start = span_stop = self._head
        for start, stop in live:
            at = bisect_right(firsts, start, span_stop) - 1
            after = bisect_right(firsts, stop - 1, at)
            if at > span_stop:
                if span_start < span_stop:
                    yield span_start, span_stop
                span_start = at
            span_stop = after
        if span_start < span_stop:
            yield span_start, span_stop

    def clear(self, live: Ranges) -> None:
        # Dead rows have left the count of their segment already.
        self.compact(live)
        for segment, length in zip(self._segments, self._lengths, strict=True):
            self._use.drop(segment, length)
        self._become(_NO_ROWS)

    # -- looking ---------------------------------------------------------------

    def find(self, sequence: int) -> StoredBatch:
        at = bisect_right(self._firsts, sequence, self._head) - 1
        assert at >= self._head, f"no stored batch holds number {sequence}"
        row = self._row(at)
        assert sequence < row.first + row.count, f"no stored batch holds number {sequence}"
        return row

    def beginning_at(self, first: int, live: Ranges) -> StoredBatch | None:
        """The batch that begins with this number, if one of its messages lives."""
        at = bisect_right(self._firsts, first, self._head) - 1
        if at < self._head or self._firsts[at] != first:
            return None
        row = self._row(at)
        return row if live.clip(first, row.stop) else None

    def weigh(self, numbers: Iterable[tuple[int, int]]) -> int:
        """The bytes of these live numbers, counted as by `forget`."""
        firsts, counts, lengths = self._firsts, self._counts, self._lengths
        weight = 0
        for start, stop in numbers:
            at = bisect_right(firsts, start, self._head) - 1
            while start < stop:
                count = counts[at]
                upto = min(firsts[at] + count, stop)
                weight += lengths[at] // count * (upto - start)
                start = upto
                at += 1
        return weight

    def reach(self, start: int, weight: int, live: Ranges) -> int:
        """The number before which the live numbers from `start` on have so many bytes, or just more."""
        firsts, counts, lengths = self._firsts, self._counts, self._lengths
        at = max(bisect_right(firsts, start, self._head) - 1, self._head)
        while True:
            assert at < len(firsts), "what is stored weighs less than was thought"
            first, count = firsts[at], counts[at]
            each = max(1, lengths[at] // count)
            for begin, end in live.clip(max(first, start), first + count):
                if (end - begin) * each >= weight:
                    return begin + -(-weight // each)
                weight -= (end - begin) * each
            at += 1

    def sizes(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """First number and bytes of the batches with numbers in [start, stop), also of dead ones."""
        at, end = self._between(start, stop)
        return zip(self._firsts[at:end], self._lengths[at:end], strict=True)

    def bytes_between(self, start: int, stop: int) -> int:
        """The bytes of the batches that `sizes` gives."""
        at, end = self._between(start, stop)
        return sum(self._lengths[at:end])

    def _between(self, start: int, stop: int) -> tuple[int, int]:
        firsts, head = self._firsts, self._head
        at = max(bisect_right(firsts, start, head) - 1, head)
        if at < len(firsts) and firsts[at] + self._counts[at] <= start:
            at += 1
        return at, bisect_right(firsts, stop - 1, at) if start < stop else at

    def _row(self, at: int) -> StoredBatch:
        return StoredBatch(
            self._firsts[at],
            self._counts[at],
            Location(
                self._segments[at], self._record_offsets[at], self._record_lengths[at], self._identities[at]
            ),
            self._offsets[at],
            self._lengths[at],
        )

    def rows_in(self, segment: int, live: Ranges) -> Iterator[StoredBatch]:
        self.compact(live)
        for at, where in enumerate(self._segments):
            if where == segment:
                yield self._row(at)

    def records(self) -> Iterator[Location]:
        """The record of each row."""
        return map(Location, self._segments, self._record_offsets, self._record_lengths, self._identities)

    def move_all(self, moved: Mapping[Location, Location]) -> None:
        """Move every record from another node's journal to this one's."""
        for at, old in enumerate(list(self.records())):
            new = moved[old]
            _check_copy(old, new)
            self._use.drop(old.segment, self._lengths[at])
            self._use.add(new.segment, self._lengths[at])
            self._segments[at] = new.segment
            self._record_offsets[at] = new.offset

    def move(self, first: int, old: Location, new: Location, live: Ranges) -> None:
        """Note that the record of the batch that begins at `first` was copied from `old` to `new`."""
        _check_copy(old, new)
        at = bisect_right(self._firsts, first, self._head) - 1
        if at < self._head:
            return
        row = self._row(at)
        if row.first != first or row.location != old or not live.clip(first, row.stop):
            # The last message went while the record was being copied.
            return
        length = self._lengths[at]
        self._segments[at] = new.segment
        self._record_offsets[at] = new.offset
        self._use.add(new.segment, length)
        self._use.drop(old.segment, length)

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer, live: Ranges) -> None:
        """Write the rows with a live message, column by column."""
        columns = self.live_columns(live)
        if not columns[0]:
            writer.raw(_NO_COUNT)
            return
        writer.count(len(columns[0]))
        writer.raw(b"".join([_little_endian(column) for column in columns]))

    @classmethod
    def read(cls, reader: Reader, use: SegmentUse) -> BatchIndex:
        index = cls(use)
        rows = reader.count(ROW_BYTES)
        if not rows:
            return index
        columns = []
        for code in _COLUMNS:
            column = array(code)
            column.frombytes(reader.raw(rows * column.itemsize))
            columns.append(_little_endian(column))
        index._become(columns)
        for segment, length in zip(index._segments, index._lengths, strict=True):
            use.add(segment, length)
        return index


def _check_copy(old: Location, new: Location) -> None:
    assert (old.length, old.identity) == (new.length, new.identity), "a copied record is another envelope"


def _little_endian(column: array[int]) -> array[int]:
    """The numbers with their bytes in the order of the disk, or back."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
