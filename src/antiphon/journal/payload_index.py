"""The places of envelopes: by id until the envelope has its numbers, then by its first number.

Envelopes without a number are few and kept as objects. Those with one can be a hundred thousand until the
next checkpoint, and are kept in flat arrays: 28 bytes an entry and nothing for the garbage collector.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from antiphon.ids import Mid
from antiphon.journal.ports import Location, Record


class PayloadIndex:
    """The bus's view of the payloads in one journal (`bus.ports.Payloads`)."""

    __slots__ = (
        "_copies",
        "_copies_forgotten",
        "_first",
        "_identity",
        "_length",
        "_offset",
        "_read",
        "_record",
        "_segment",
        "_unplaced",
    )

    def __init__(
        self,
        read: Callable[[Location], memoryview],
        record: Callable[[Location], Record] | None = None,
    ) -> None:
        self._read = read
        self._record = record
        self._unplaced: dict[Mid, Location] = {}
        # Copies of another node's records, until a checkpoint refers to them.
        self._copies: dict[int, Location] = {}
        self._copies_forgotten = 0
        self._first = array("Q")
        self._segment = array("I")
        self._offset = array("I")
        self._length = array("I")
        self._identity = array("Q")

    def add(self, mid: Mid, location: Location) -> None:
        """Add an envelope; a second copy takes the place of the first."""
        self._unplaced[mid] = location

    def add_all(self, mids: Sequence[Mid], locations: Sequence[Location]) -> None:
        self._unplaced.update(zip(mids, locations, strict=True))

    def has(self, mid: Mid) -> bool:
        return mid in self._unplaced

    def locate(self, mid: Mid) -> Location | None:
        return self._unplaced.get(mid)

    def read(self, location: Location) -> memoryview:
        """The payload, verified; raises `errors.Damaged` rather than return other bytes."""
        return self._read(location)

    def record(self, location: Location) -> Record:
        """The envelope that lies there, verified; raises `errors.Damaged`."""
        assert self._record is not None, "these payloads cannot be read with their headers"
        return self._record(location)

    def place(self, mid: Mid, first: int, count: int) -> Location:
        """Give an envelope its committed numbers first … first+count-1."""
        assert count >= 1, f"{mid} was placed without a number"
        assert not self._first or first > self._first[-1], f"{mid} was placed at {first}, not at the end"
        location = self._unplaced.pop(mid)
        self._first.append(first)
        self._segment.append(location.segment)
        self._offset.append(location.offset)
        self._length.append(location.length)
        self._identity.append(location.identity)
        return location

    def location_of(self, first: int) -> Location | None:
        at = bisect_left(self._first, first)
        if at == len(self._first) or self._first[at] != first:
            return None
        return Location(self._segment[at], self._offset[at], self._length[at], self._identity[at])

    def discard(self, mid: Mid) -> None:
        """Drop an envelope that will never get a number."""
        self._unplaced.pop(mid, None)

    def add_copy(self, index: int, location: Location) -> None:
        """Note a copy of another node's record, by the index under which it was written."""
        if index > self._copies_forgotten:
            self._copies[index] = location

    def copied(self, index: int) -> Location | None:
        return self._copies.get(index)

    def forget_copies(self, upto: int) -> None:
        """Drop the copies up to this index, also those that are still to be written: a checkpoint refers to
        them, or none ever will."""
        self._copies_forgotten = upto
        self._copies = {index: location for index, location in self._copies.items() if index > upto}

    def forget_through(self, base: int) -> None:
        """Drop the envelopes that begin at `base` or earlier: a checkpoint covers them."""
        keep = bisect_right(self._first, base)
        for column in (self._first, self._segment, self._offset, self._length, self._identity):
            del column[:keep]

    def unplaced(self) -> Iterator[tuple[Mid, Location]]:
        return iter(list(self._unplaced.items()))

    @property
    def unplaced_count(self) -> int:
        return len(self._unplaced)

    @property
    def placed_count(self) -> int:
        return len(self._first)

    def oldest_segment_after(self, n: int) -> int | None:
        return min(self._segment[bisect_right(self._first, n) :], default=None)

    @property
    def oldest_segment(self) -> int | None:
        placed = min(self._segment, default=None)
        waiting = min((location.segment for location in self._unplaced.values()), default=None)
        copied = min((location.segment for location in self._copies.values()), default=None)
        return min([oldest for oldest in (placed, waiting, copied) if oldest is not None], default=None)
