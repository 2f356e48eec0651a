"""DeliveryRules: which messages of a destination have delivery rules of their own, by ranges of numbers.

RUL1  Rules are noted when a message becomes visible, from its batch, and forgotten when it leaves: the fold
      reads no journal later.
RUL2  Every message of the destination without an entry is plain. Plain messages cost nothing here.
RUL3  Entries of messages that are gone are dropped together, before they are more than half of all.

The fold only notes. The primary decides what the rules mean for delivery now, by its estimate of log time.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from antiphon.batch import Batch, BatchRule, ColumnId
from antiphon.batch.layout import PRIORITY_DEFAULT, PRIORITY_MAX, RULES_AT
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Buffer, Reader, Writer

# Below this many entries nothing is gained by dropping dead ones.
_TIDY_ENTRIES_MIN: Final = 16

_NONE: Final = b"\x00"

# An id is no delivery rule.
_DEDUP: Final = int(BatchRule.DEDUP)


class TimedRun(NamedTuple):
    """The messages start … stop-1 have this time."""

    time_ms: int
    start: int
    stop: int


class TimedRanges:
    """Numbers with a time in ms. Numbers are added in ascending order."""

    __slots__ = ("_starts", "_stops", "_times", "numbers")

    def __init__(self) -> None:
        self.numbers = Ranges()
        # An entry may have numbers that were forgotten.
        self._starts = array("Q")
        self._stops = array("Q")
        self._times = array("q")

    def __len__(self) -> int:
        """The entries, with those of forgotten numbers."""
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def __iter__(self) -> Iterator[TimedRun]:
        return self.among(self.numbers)

    def add(self, time_ms: int, start: int, stop: int) -> None:
        if self._stops and self._stops[-1] == start and self._times[-1] == time_ms:
            self._stops[-1] = stop
        else:
            assert not self._stops or self._stops[-1] <= start, "times were added out of order"
            self._starts.append(start)
            self._stops.append(stop)
            self._times.append(time_ms)
        self.numbers.add(start, stop)

    def merge(self, others: list[TimedRanges]) -> None:
        """Add the numbers of these, which lie anywhere, and are in none of the others."""
        runs = sorted([run for one in (self, *others) for run in one], key=lambda run: run.start)
        self.numbers, self._starts, self._stops, self._times = Ranges(), array("Q"), array("Q"), array("q")
        for time_ms, start, stop in runs:
            self.add(time_ms, start, stop)

    def forget(self, numbers: Ranges) -> None:
        if self.numbers.remove_all(numbers) and len(self._starts) > (
            2 * self.numbers.count + _TIDY_ENTRIES_MIN if self.numbers else 0
        ):
            left = list(self)
            self._starts = array("Q", [one.start for one in left])
            self._stops = array("Q", [one.stop for one in left])
            self._times = array("q", [one.time_ms for one in left])

    def among(self, numbers: Ranges) -> Iterator[TimedRun]:
        """The times of those of these numbers that have one, in the order of the numbers."""
        starts, stops, times = self._starts, self._stops, self._times
        at = 0
        for start, stop in self.numbers.intersection(numbers):
            at = bisect_right(stops, start, at)
            while at < len(starts) and starts[at] < stop:
                yield TimedRun(times[at], max(start, starts[at]), min(stop, stops[at]))
                if stops[at] > stop:
                    break
                at += 1

    def due(self, numbers: Ranges, now_ms: int) -> Ranges:
        """Those of these numbers whose time has come."""
        return Ranges([(start, stop) for time_ms, start, stop in self.among(numbers) if time_ms <= now_ms])

    def write(self, writer: Writer) -> None:
        writer.bytes_(self.numbers.encode())
        count = len(self._starts)
        writer.count(count)
        writer.raw(struct.pack(f"<{count}Q", *self._starts))
        writer.raw(struct.pack(f"<{count}Q", *self._stops))
        writer.raw(struct.pack(f"<{count}q", *self._times))

    @classmethod
    def read(cls, reader: Reader) -> TimedRanges:
        timed = cls()
        timed.numbers = Ranges.decode(reader.bytes_())
        count = reader.count(8 + 8 + 8)
        for column, code in ((timed._starts, "Q"), (timed._stops, "Q"), (timed._times, "q")):
            column.extend(struct.unpack(f"<{count}{code}", reader.raw(8 * count)))
        edges = [edge for pair in zip(timed._starts, timed._stops, strict=True) for edge in pair]
        if any(left > right for left, right in pairwise(edges)):
            raise ProtocolError("the times of messages are out of order")
        return timed


class DeliveryRules:
    """The rules of a destination's messages; or of a batch's rows, counted from 0, before their commit."""

    __slots__ = ("_is_used", "deliver_at", "expires", "keyed", "lapsed", "priorities", "transient")

    def __init__(self) -> None:
        # Numbers by priority, but for the default one.
        self.priorities: dict[int, Ranges] = {}
        self.expires = TimedRanges()
        self.deliver_at = TimedRanges()
        self.transient = Ranges()
        self.keyed = Ranges()
        # Expired, and still stored for the retention of a topic.
        self.lapsed = Ranges()
        self._is_used = False

    def __bool__(self) -> bool:
        return self._is_used

    def _look(self) -> None:
        """Note whether any message has rules: every publish and acknowledgement asks."""
        self._is_used = bool(
            self.priorities or self.expires or self.deliver_at or self.transient or self.keyed or self.lapsed
        )

    @classmethod
    def of(cls, batch: Buffer) -> DeliveryRules | None:
        """The rules of a batch's rows, None if it has none; raises ProtocolError if it does not decode."""
        if not batch[RULES_AT] & ~_DEDUP:
            return None
        # The client manager checked the texts when the batch came in.
        columns, rules = Batch.decode(batch, trusted=True), cls()
        for value, start, stop in _runs(columns, ColumnId.PRIORITY):
            if value != PRIORITY_DEFAULT:
                rules.priorities.setdefault(value, Ranges()).add(start, stop)
        for timed, id in ((rules.expires, ColumnId.EXPIRES), (rules.deliver_at, ColumnId.DELIVER_AT)):
            for value, start, stop in _runs(columns, id):
                if value:
                    timed.add(value, start, stop)
        rules.transient = _rows(columns, ColumnId.PERSISTENT, lambda row: not columns.is_persistent(row))
        keys = columns.column(ColumnId.KEY)
        rules.keyed = _rows(columns, ColumnId.KEY, lambda row: keys is not None and keys.is_present(row))
        rules._look()
        return rules

    def note(self, rows: DeliveryRules, first: int, skip: int = 0) -> DeliveryRules:
        """Note the rules of a batch whose rows have the numbers from `first` on, but for the first `skip`.

        Returns the rules of the destination: these, or others in place of PLAIN.
        """
        noted = DeliveryRules() if self is PLAIN else self
        for priority, ranges in rows.priorities.items():
            _shift(ranges, first, skip, noted.priorities.setdefault(priority, Ranges()))
            if not noted.priorities[priority]:
                del noted.priorities[priority]
        for timed, of_rows in ((noted.expires, rows.expires), (noted.deliver_at, rows.deliver_at)):
            for time_ms, start, stop in of_rows:
                if stop > skip:
                    timed.add(time_ms, first + max(start, skip), first + stop)
        _shift(rows.transient, first, skip, noted.transient)
        _shift(rows.keyed, first, skip, noted.keyed)
        noted._look()
        return noted if noted else PLAIN

    def merge(self, others: list[DeliveryRules]) -> DeliveryRules:
        """Note the rules of other destinations' messages, too; returns as `note`."""
        if not others:
            return self
        merged = DeliveryRules() if self is PLAIN else self
        for one in others:
            for priority, ranges in one.priorities.items():
                merged.priorities.setdefault(priority, Ranges()).add_all(ranges)
            for mine, theirs in (
                (merged.transient, one.transient),
                (merged.keyed, one.keyed),
                (merged.lapsed, one.lapsed),
            ):
                mine.add_all(theirs)
        merged.expires.merge([one.expires for one in others])
        merged.deliver_at.merge([one.deliver_at for one in others])
        merged._look()
        return merged if merged else PLAIN

    def lapse(self, numbers: Ranges) -> None:
        """Note that these have expired, and stay stored."""
        self.lapsed.add_all(numbers)
        self.expires.forget(numbers)
        self._look()

    def forget(self, numbers: Ranges) -> DeliveryRules:
        """Forget messages that have left the destination; returns the rules of those that are left."""
        for priority in list(self.priorities):
            ranges = self.priorities[priority]
            ranges.remove_all(numbers)
            if not ranges:
                del self.priorities[priority]
        for timed in (self.expires, self.deliver_at):
            if timed:
                timed.forget(numbers)
        for kept in (self.transient, self.keyed, self.lapsed):
            if kept:
                kept.remove_all(numbers)
        self._look()
        return self if self else PLAIN

    def write(self, writer: Writer) -> None:
        if not self._is_used:
            writer.raw(_NONE)
            return
        writer.bool_(True)
        writer.count(len(self.priorities))
        for priority, ranges in sorted(self.priorities.items()):
            writer.u8(priority)
            writer.bytes_(ranges.encode())
        self.expires.write(writer)
        self.deliver_at.write(writer)
        for kept in (self.transient, self.keyed, self.lapsed):
            writer.bytes_(kept.encode())

    @classmethod
    def read(cls, reader: Reader) -> DeliveryRules:
        if not reader.bool_():
            return PLAIN
        rules = cls()
        for _ in range(reader.count(1 + 4)):
            priority = reader.u8()
            rules.priorities[priority] = Ranges.decode(reader.bytes_())
        if not rules.priorities.keys() <= _OTHER_PRIORITIES:
            raise ProtocolError("messages of a priority that there is not")
        rules.expires = TimedRanges.read(reader)
        rules.deliver_at = TimedRanges.read(reader)
        rules.transient = Ranges.decode(reader.bytes_())
        rules.keyed = Ranges.decode(reader.bytes_())
        rules.lapsed = Ranges.decode(reader.bytes_())
        rules._look()
        return rules


PLAIN: Final = DeliveryRules()
"""The rules of every destination without a message that has some. Nothing is noted here."""

_OTHER_PRIORITIES: Final = frozenset(range(PRIORITY_MAX + 1)) - {PRIORITY_DEFAULT}


def _runs(batch: Batch, id: ColumnId) -> Iterator[tuple[int, int, int]]:
    """The values of a column of numbers: value, first row, row behind the last one that has it."""
    column = batch.column(id)
    at = 0
    for value, rows in groupby(column.values.tolist() if column is not None else ()):
        stop = at + sum(1 for _ in rows)
        yield value, at, stop
        at = stop


def _rows(batch: Batch, id: ColumnId, holds: Callable[[int], bool]) -> Ranges:
    if batch.column(id) is None:
        return Ranges()
    return Ranges([(row, row + 1) for row in range(batch.count) if holds(row)])


def _shift(rows: Iterable[tuple[int, int]], first: int, skip: int, to: Ranges) -> None:
    for start, stop in rows:
        to.add(first + max(start, skip), first + stop)
