"""Which envelope lies where: by id until it has its numbers, by its first number from then on.

What waits for a number is little and is kept as objects. What has one can be a hundred thousand entries
until the next checkpoint covers them, and is kept in flat arrays: 28 bytes an entry and nothing for the
garbage collector to walk through.
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
        # Copies of what lies in another node's journal, until a checkpoint refers to them.
        self._copies: dict[int, Location] = {}
        self._first = array("Q")
        self._segment = array("I")
        self._offset = array("I")
        self._length = array("I")
        self._identity = array("Q")

    def add(self, mid: Mid, location: Location) -> None:
        """An envelope was written; a second copy of the same one takes the place of the first."""
        self._unplaced[mid] = location

    def add_all(self, mids: Sequence[Mid], locations: Sequence[Location]) -> None:
        """Several envelopes were written."""
        self._unplaced.update(zip(mids, locations, strict=True))

    def has(self, mid: Mid) -> bool:
        """Is this envelope written here, without a number and not given up?"""
        return mid in self._unplaced

    def locate(self, mid: Mid) -> Location | None:
        """Where an envelope without a number lies."""
        return self._unplaced.get(mid)

    def read(self, location: Location) -> memoryview:
        """The payload, verified; raises `errors.Damaged` rather than return other bytes."""
        return self._read(location)

    def record(self, location: Location) -> Record:
        """The envelope that lies there, verified; raises `errors.Damaged`."""
        assert self._record is not None, "these payloads cannot be read with their headers"
        return self._record(location)

    def place(self, mid: Mid, first: int, count: int) -> Location:
        """The envelope got the numbers first … first+count-1, and they are committed."""
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
        """Where the envelope lies whose first number this is."""
        at = bisect_left(self._first, first)
        if at == len(self._first) or self._first[at] != first:
            return None
        return Location(self._segment[at], self._offset[at], self._length[at], self._identity[at])

    def discard(self, mid: Mid) -> None:
        """The envelope will never get a number: its space may go."""
        self._unplaced.pop(mid, None)

    def add_copy(self, index: int, location: Location) -> None:
        """A copy of a record of another node was written, as the record with this index."""
        self._copies[index] = location

    def copied(self, index: int) -> Location | None:
        """Where the copy lies that was written as the record with this index."""
        return self._copies.get(index)

    def forget_copies(self) -> None:
        """A checkpoint refers to the copies by now, or nobody ever will."""
        self._copies.clear()

    def forget_through(self, base: int) -> None:
        """A checkpoint covers everything through `base`: what begins there or earlier is no longer ours."""
        keep = bisect_right(self._first, base)
        for column in (self._first, self._segment, self._offset, self._length, self._identity):
            del column[:keep]

    def unplaced(self) -> Iterator[tuple[Mid, Location]]:
        """Envelopes without a number, in the order in which they were written."""
        return iter(list(self._unplaced.items()))

    @property
    def unplaced_count(self) -> int:
        return len(self._unplaced)

    @property
    def placed_count(self) -> int:
        return len(self._first)

    def oldest_segment_after(self, n: int) -> int | None:
        """The oldest segment with the record of an entry that begins behind number n."""
        return min(self._segment[bisect_right(self._first, n) :], default=None)

    @property
    def oldest_segment(self) -> int | None:
        """The oldest segment with a record that is still looked up here."""
        placed = min(self._segment, default=None)
        waiting = min((location.segment for location in self._unplaced.values()), default=None)
        copied = min((location.segment for location in self._copies.values()), default=None)
        return min([oldest for oldest in (placed, waiting, copied) if oldest is not None], default=None)
