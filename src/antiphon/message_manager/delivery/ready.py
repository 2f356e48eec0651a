"""Ready: the messages of one source that no consumer holds, by priority, and those that wait for a time.

RDY1  A number is free, of one priority, or it waits; never both.
RDY2  The free number to give next is the lowest of the highest priority.
RDY3  Waiting costs one entry for each run of numbers with the same time, and no timer each.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from antiphon.batch.layout import PRIORITY_DEFAULT, PRIORITY_MAX
from antiphon.ranges import Ranges

PRIORITIES: Final = tuple(range(PRIORITY_MAX, -1, -1))
"""All priorities, the most urgent first."""

_TIDY_ENTRIES_MIN: Final = 16


class LogMoment:
    """Log time as the primary knew it last; all its dispatchers look here."""

    __slots__ = ("ms",)

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms


class Ready:
    """Free and waiting numbers. Length, truth and count are those of the free ones."""

    __slots__ = ("_others", "_times", "plain", "waiting")

    def __init__(self) -> None:
        # The free numbers of the default priority, and those of others.
        self.plain = Ranges()
        self._others: dict[int, Ranges] = {}
        self.waiting = Ranges()
        # A heap of (time, start, stop); an entry may have numbers that wait no more.
        self._times: list[tuple[int, int, int]] = []

    # -- free numbers ------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.plain) or (bool(self._others) and any(self._others.values()))

    def __len__(self) -> int:
        return len(self.plain) + sum(map(len, self._others.values()))

    @property
    def count(self) -> int:
        if not self._others:
            return self.plain.count
        return self.plain.count + sum([free.count for free in self._others.values()])

    @property
    def has_others(self) -> bool:
        """Are there free numbers of another priority than the default one?"""
        return bool(self._others) and any(self._others.values())

    def has(self, priority: int) -> bool:
        """Are there free numbers of this priority?"""
        return bool(self.plain if priority == PRIORITY_DEFAULT else self._others.get(priority))

    def of(self, priority: int) -> Ranges:
        """The free numbers of a priority; a caller may change them."""
        if priority == PRIORITY_DEFAULT:
            return self.plain
        return self._others.setdefault(priority, Ranges())

    def all(self) -> Ranges:
        """The free numbers of all priorities."""
        return self.clip(0, 1 << 65)

    def clip(self, start: int, stop: int) -> Ranges:
        found = self.plain.clip(start, stop)
        for free in self._others.values():
            found.add_all(free.clip(start, stop))
        return found

    def take(self, numbers: Ranges) -> Ranges:
        """Remove these numbers, free and waiting; returns those that were here."""
        found = Ranges()
        for kept in (self.plain, *self._others.values(), self.waiting):
            mine = kept.intersection(numbers)
            if mine:
                kept.remove_all(mine)
                found.add_all(mine)
        self._tidy()
        return found

    def remove_all(self, numbers: Ranges) -> int:
        """Remove these numbers, free and waiting; returns how many were here."""
        removed = self.plain.remove_all(numbers)
        if self._others or self.waiting:
            removed += sum([free.remove_all(numbers) for free in self._others.values()])
            removed += self.waiting.remove_all(numbers)
            self._tidy()
        return removed

    # -- waiting numbers ---------------------------------------------------------

    @property
    def wakes_at_ms(self) -> int | None:
        """The log time at which a number waits no more, or before."""
        return self._times[0][0] if self._times else None

    def wait(self, until_ms: int, start: int, stop: int) -> None:
        """Let numbers that are not free wait until this log time."""
        self.waiting.add(start, stop)
        heappush(self._times, (until_ms, start, stop))

    def wake(self, now_ms: int) -> Ranges:
        """End the waiting of those whose time has come; returns them."""
        woken = Ranges()
        while self._times and self._times[0][0] <= now_ms:
            _, start, stop = heappop(self._times)
            woken.add_all(self.waiting.clip(start, stop))
        self.waiting.remove_all(woken)
        self._tidy()
        return woken

    def _tidy(self) -> None:
        for priority in [priority for priority, free in self._others.items() if not free]:
            del self._others[priority]
        if not self.waiting:
            self._times.clear()
        elif len(self._times) > 2 * self.waiting.count + _TIDY_ENTRIES_MIN:
            self._times = [entry for entry in self._times if self.waiting.clip(*entry[1:])]
            heapify(self._times)
