"""Ranges: a set of integers, kept as sorted disjoint half-open ranges.

The sets of numbers that a queue holds, that a consumer has in flight and that were acknowledged come in long
runs. Two parallel lists of starts and stops cost a few machine words per run, and `bisect` is fast.

RNG1  Ranges are sorted, none is empty, and between two there is a gap. So equal sets have equal bytes.
RNG2  `count` is always the number of integers; asking costs nothing.
RNG3  An operation on two sets costs no more than a walk over both, however many holes a peer may have made in
      them; where one has few holes, or lies in a small part of the other, little more than a walk over that
      one, or that part.
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from antiphon.errors import ProtocolError

_PAIR: Final = struct.Struct("<QQ")
_PAIR_BYTES: Final = _PAIR.size

# Up to so many ranges are put in one by one, each with a bisection and a shift of the lists behind it. For
# more, one walk over both sets is cheaper (RNG3).
_FEW: Final = 32


class Ranges:
    """A mutable set of integers in ranges `[start, stop)`.

    `in` asks for an integer, `count` counts integers; iterating and `len` go by ranges. Methods that return a
    `Ranges` leave this one as it is.

    >>> live = Ranges([(10, 20)])
    >>> live.remove(12, 15)
    3
    >>> live, live.count
    (Ranges([(10, 12), (15, 20)]), 7)
    """

    __slots__ = ("_count", "_starts", "_stops")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._count = 0
        for start, stop in pairs:
            self.add(start, stop)

    @classmethod
    def _of(cls, starts: list[int], stops: list[int]) -> Ranges:
        """Take over two lists that already keep RNG1."""
        ranges = cls.__new__(cls)
        ranges._starts = starts
        ranges._stops = stops
        ranges._count = sum(stops) - sum(starts)
        return ranges

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Ranges:
        """The set of these integers, which ascend (RNG1)."""
        if not numbers:
            return cls()
        gaps = [(before + 1, number) for before, number in pairwise(numbers) if number - before > 1]
        starts = [numbers[0], *[number for _, number in gaps]]
        return cls._of(starts, [*[stop for stop, _ in gaps], numbers[-1] + 1])

    @classmethod
    def of_edges(cls, edges: list[int]) -> Ranges:
        """The ranges whose starts and stops these are in turn, ascending and none twice (RNG1)."""
        return cls._of(edges[::2], edges[1::2])

    def copy(self) -> Ranges:
        return Ranges._of(self._starts[:], self._stops[:])

    # -- looking ---------------------------------------------------------------

    @property
    def count(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        assert self._starts, "empty ranges have no first number"
        return self._starts[0]

    @property
    def last(self) -> int:
        assert self._stops, "empty ranges have no last number"
        return self._stops[-1] - 1

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._stops, number)
        return at < len(self._starts) and self._starts[at] <= number

    def covers(self, start: int, stop: int) -> bool:
        """Whether every integer of `[start, stop)` is here."""
        if start >= stop:
            return True
        at = bisect_right(self._stops, start)
        return at < len(self._starts) and self._starts[at] <= start and stop <= self._stops[at]

    def next_from(self, number: int) -> int | None:
        """The lowest integer that is not below `number`."""
        at = bisect_right(self._stops, number)
        if at == len(self._starts):
            return None
        return max(number, self._starts[at])

    def last_before(self, number: int) -> int | None:
        """The highest integer below `number`."""
        at = bisect_left(self._starts, number) - 1
        if at < 0:
            return None
        return min(number, self._stops[at]) - 1

    def run_stop(self, number: int) -> int | None:
        """The end of the range that holds `number`; None when it is not here."""
        at = bisect_right(self._stops, number)
        if at == len(self._starts) or self._starts[at] > number:
            return None
        return self._stops[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def numbers(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self._starts, self._stops))

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    # -- changing --------------------------------------------------------------

    def add(self, start: int, stop: int) -> int:
        """Add `[start, stop)`; returns how many of its integers were not here before."""
        starts, stops = self._starts, self._stops
        if start >= stop:
            return 0
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            self._count += stop - start
            return stop - start
        if start == stops[-1]:
            # The usual case: numbers come in order.
            stops[-1] = stop
            self._count += stop - start
            return stop - start
        left = bisect_left(stops, start)
        right = bisect_right(starts, stop)
        before = sum(stops[left:right]) - sum(starts[left:right])
        if left < right:
            start = min(start, starts[left])
            stop = max(stop, stops[right - 1])
        starts[left:right] = [start]
        stops[left:right] = [stop]
        added = stop - start - before
        self._count += added
        return added

    def remove(self, start: int, stop: int) -> int:
        """Remove `[start, stop)`; returns how many of its integers were here."""
        starts, stops = self._starts, self._stops
        left = bisect_right(stops, start)
        right = bisect_left(starts, stop)
        if start >= stop or left >= right:
            return 0
        head, tail = starts[left], stops[right - 1]
        removed = sum(stops[left:right]) - sum(starts[left:right])
        kept_starts, kept_stops = [], []
        if head < start:
            kept_starts.append(head)
            kept_stops.append(start)
            removed -= start - head
        if tail > stop:
            kept_starts.append(stop)
            kept_stops.append(tail)
            removed -= tail - stop
        starts[left:right] = kept_starts
        stops[left:right] = kept_stops
        self._count -= removed
        return removed

    def add_all(self, other: Ranges) -> int:
        """Add every integer of `other`; returns how many were not here before."""
        if len(other) <= _FEW:
            return sum(self.add(start, stop) for start, stop in list(other))
        # Ranges that touch the ends of `other` are joined with it.
        left = bisect_left(self._stops, other.first)
        right = bisect_right(self._starts, other._stops[-1])
        if left == right:
            return self._splice(left, right, other)
        between = zip(self._starts[left:right], self._stops[left:right], strict=True)
        # In ascending order every `add` works at the end of the lists.
        return self._splice(left, right, Ranges(sorted([*between, *other])))

    def remove_all(self, other: Ranges) -> int:
        """Remove every integer of `other`; returns how many were here."""
        if len(other) <= _FEW:
            return sum(self.remove(start, stop) for start, stop in list(other))
        left = bisect_right(self._stops, other.first)
        right = bisect_left(self._starts, other._stops[-1])
        if len(other) > _FEW * (right - left):
            # Most of `other` may not be here.
            other = self.intersection(other)
            if len(other) <= _FEW:
                return self.remove_all(other)
        touched = Ranges._of(self._starts[left:right], self._stops[left:right])
        # Removing `other` is intersecting with its gaps.
        edges = (min(touched.first, other.first), max(touched._stops[-1], other._stops[-1]))
        kept = touched._walk([edges[0], *other._stops], [*other._starts, edges[1]])
        return -self._splice(left, right, kept)

    def clear(self) -> None:
        self._starts, self._stops, self._count = [], [], 0

    def _splice(self, left: int, right: int, other: Ranges) -> int:
        """Put `other` in the place of the ranges at `[left, right)`; by how much there are more integers."""
        grown = other._count - sum(self._stops[left:right]) + sum(self._starts[left:right])
        self._starts[left:right] = other._starts
        self._stops[left:right] = other._stops
        self._count += grown
        return grown

    # -- combining -------------------------------------------------------------

    def union(self, other: Ranges) -> Ranges:
        few, many = sorted((self, other), key=len)
        result = many.copy()
        result.add_all(few)
        return result

    def difference(self, other: Ranges) -> Ranges:
        result = self.copy()
        result.remove_all(other)
        return result

    def intersection(self, other: Ranges) -> Ranges:
        few, many = sorted((self, other), key=len)
        if len(few) > _FEW:
            return few._walk(many._starts, many._stops)
        # Ranges of `few` have gaps between them, and so have the pieces (RNG1).
        pieces = [many.clip(start, stop) for start, stop in few]
        starts = list(chain.from_iterable(piece._starts for piece in pieces))
        stops = list(chain.from_iterable(piece._stops for piece in pieces))
        return Ranges._of(starts, stops)

    def _walk(self, other_starts: list[int], other_stops: list[int]) -> Ranges:
        """The intersection with the other lists; their ranges may touch and be empty."""
        starts, stops = self._starts, self._stops
        here = there = 0
        both_starts, both_stops = [], []
        while here < len(starts) and there < len(other_starts):
            start = max(starts[here], other_starts[there])
            stop = min(stops[here], other_stops[there])
            if start < stop:
                both_starts.append(start)
                both_stops.append(stop)
            # A range that ends before the other side begins is skipped in one bound.
            if stops[here] < other_stops[there]:
                here += 1
                if here < len(starts) and stops[here] <= other_starts[there]:
                    here = bisect_right(stops, other_starts[there], here)
            else:
                there += 1
                if there < len(other_starts) and other_stops[there] <= starts[here]:
                    there = bisect_right(other_stops, starts[here], there)
        return Ranges._of(both_starts, both_stops)

    def clip(self, start: int, stop: int) -> Ranges:
        left = bisect_right(self._stops, start)
        right = bisect_left(self._starts, stop)
        if start >= stop or left >= right:
            return Ranges()
        starts, stops = self._starts[left:right], self._stops[left:right]
        starts[0] = max(starts[0], start)
        stops[-1] = min(stops[-1], stop)
        return Ranges._of(starts, stops)

    def take(self, count: int) -> Ranges:
        """The lowest `count` integers, or all when there are fewer. They stay here too."""
        return self.take_from(self.first, count) if self else Ranges()

    def take_from(self, start: int, count: int) -> Ranges:
        """The lowest `count` integers that are not below `start`. They stay here too."""
        starts, stops = [], []
        for at in range(bisect_right(self._stops, start), len(self._starts)):
            if count <= 0:
                break
            start = max(start, self._starts[at])
            stop = min(start + count, self._stops[at])
            starts.append(start)
            stops.append(stop)
            count -= stop - start
        return Ranges._of(starts, stops)

    def take_ranges(self, start: int, most: int) -> Ranges:
        """The lowest `most` ranges, without the part below `start`. They stay here too."""
        at = bisect_right(self._stops, start)
        starts, stops = self._starts[at : at + most], self._stops[at : at + most]
        if starts:
            starts[0] = max(starts[0], start)
        return Ranges._of(starts, stops)

    def parts(self, most: int) -> list[Ranges]:
        """All of these in their order, at most so many ranges in each part."""
        if len(self._starts) <= most:
            return [self] if self._starts else []
        return [
            Ranges._of(self._starts[at : at + most], self._stops[at : at + most])
            for at in range(0, len(self._starts), most)
        ]

    # -- bytes -----------------------------------------------------------------

    def encode(self) -> bytes:
        """Pairs of u64: start, stop, start, stop, ..."""
        if len(self._starts) == 1:
            return _PAIR.pack(self._starts[0], self._stops[0])
        flat = [0] * (2 * len(self._starts))
        flat[::2] = self._starts
        flat[1::2] = self._stops
        return struct.pack(f"<{len(flat)}Q", *flat)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Ranges:
        if len(data) % _PAIR_BYTES:
            raise ProtocolError(f"ranges of {len(data)} bytes are not whole pairs of {_PAIR_BYTES}")
        flat = struct.unpack(f"<{len(data) // 8}Q", data)
        # RNG1: start < stop < next start < next stop ...
        if not all(map(operator.lt, flat, flat[1:])):
            raise ProtocolError("ranges overlap, touch, are empty or out of order")
        return cls._of(list(flat[::2]), list(flat[1::2]))
