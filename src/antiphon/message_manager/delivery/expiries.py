"""MessageExpiries: the messages of a channel whose time is over, and those for which the log is to say so.

EXP1  A message is proposed for its end when its time is over by log time as the primary knows it, whether or
      not its destination has consumers.
EXP2  A message that a consumer holds, or that is locked, is not proposed before it comes back.
EXP3  Nothing is proposed twice before the first proposal is applied.

Only the log ends a message. A primary withholds an expired message, which the next primary may see otherwise.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges

_SPARE: Final = 1_024
"""Entries of messages that are gone, which are kept beyond as many as there were entries."""

RANGES_AT_ONCE: Final = 4_096
"""Ranges in one proposal; more take several: the bus takes no envelope of any size."""


class MessageExpiries:
    """The expiry times of all destinations, in one order, for one term."""

    __slots__ = ("_directory", "_leaving", "_limit", "_moved", "_overdue", "_times")

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        # A heap of (time, destination, start, stop); an entry may have numbers that are gone.
        self._times: list[tuple[int, int, int, int]] = []
        self._limit = 0
        # By destination: messages whose time is over and whose end is not proposed; and those whose end is.
        self._overdue: dict[int, Ranges] = {}
        self._leaving: dict[int, Ranges] = {}
        # Destinations with overdue messages that may have come back.
        self._moved: dict[int, None] = {}
        self._gather()

    def _gather(self) -> None:
        self._times = [
            (time_ms, destination.id, start, stop)
            for destination in self._directory
            if destination.rules.expires
            for time_ms, start, stop in destination.rules.expires
        ]
        heapify(self._times)
        self._limit = 2 * len(self._times) + _SPARE

    def leaving(self, destination: int) -> Ranges:
        """The messages of a destination or family whose end is being ordered; the set changes with time."""
        return self._leaving.setdefault(destination, Ranges())

    @property
    def earliest_ms(self) -> int | None:
        return self._times[0][0] if self._times else None

    @property
    def has_overdue(self) -> bool:
        """Is the time of a message over whose end is not ordered yet?"""
        return bool(self._overdue)

    @property
    def has_moved(self) -> bool:
        return bool(self._moved)

    def published(self, destination: int, start: int, stop: int) -> None:
        """Note the times of messages that have become visible."""
        store = self._directory.get(destination)
        assert store is not None, "messages of a destination that there is not"
        if store.rules.expires:
            for time_ms, first, end in store.rules.expires.among(Ranges([(start, stop)])):
                heappush(self._times, (time_ms, destination, first, end))
            if len(self._times) > self._limit:
                self._gather()

    def moved(self, destination: int) -> None:
        """Look again at the overdue messages of a destination or family: some may have come back."""
        if destination in self._overdue:
            self._moved[destination] = None
        elif self._overdue and self._directory.family(destination) is not None:
            self._moved |= dict.fromkeys(self._overdue)

    def unlocked(self) -> None:
        self._moved |= dict.fromkeys(self._overdue)

    def pass_time(self, now_ms: int) -> dict[int, Ranges]:
        """The messages whose time is over since the last call, by destination."""
        over: dict[int, Ranges] = {}
        while self._times and self._times[0][0] <= now_ms:
            _, destination, start, stop = heappop(self._times)
            over.setdefault(destination, Ranges()).add(start, stop)
        for destination, numbers in over.items():
            self._overdue.setdefault(destination, Ranges()).add_all(numbers)
            self._moved[destination] = None
        return over

    def take_moved(self) -> list[tuple[int, Ranges]]:
        """Destinations to look at, and their overdue messages that are still there."""
        moved, self._moved = self._moved, {}
        found = []
        for id in moved:
            store = self._directory.get(id)
            left = store.rules.expires.numbers.intersection(self._overdue[id]) if store else Ranges()
            if left:
                self._overdue[id] = left
                found.append((id, left.difference(self.leaving(id))))
            else:
                del self._overdue[id]
        return found

    def propose(self, destination: int, numbers: Ranges) -> list[Ranges]:
        """Note that the end of these is being ordered; returns them in parts for a proposal each (EXP3)."""
        for leaving in self._all_leaving(destination):
            leaving.add_all(numbers)
        return numbers.parts(RANGES_AT_ONCE)

    def applied(self, destination: int, numbers: Ranges) -> None:
        """Note that the log has ended these, but for locked ones, which come back when they are unlocked."""
        for leaving in self._all_leaving(destination):
            leaving.remove_all(numbers)

    def _all_leaving(self, destination: int) -> list[Ranges]:
        """The sets of a destination and of its families."""
        store = self._directory.get(destination)
        families = store.families if isinstance(store, Topic) else ()
        return [self.leaving(destination), *[self.leaving(family.id) for family in families]]

    def deleted(self, destination: int) -> None:
        for kept in (self._overdue, self._leaving, self._moved):
            kept.pop(destination, None)
