"""Owners: of which topic each message of a family is.

OWN1  A run of consecutive numbers of one topic is one row of 24 bytes, however many batches it is.
OWN2  Rows without a live message go before they are more than about half of all.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from antiphon.ranges import Ranges

# Below this many rows nothing is gained by tidying up.
_SPARE: Final = 16


class OwnedRun(NamedTuple):
    """The messages start … stop-1 are of this topic."""

    start: int
    stop: int
    topic: int


class Owners:
    """The topics of numbers, in runs that do not overlap."""

    __slots__ = ("_gone", "_starts", "_stops", "_topics")

    def __init__(self) -> None:
        self._become([])

    def _become(self, runs: list[OwnedRun]) -> None:
        self._starts = array("Q", [run.start for run in runs])
        self._stops = array("Q", [run.stop for run in runs])
        self._topics = array("Q", [run.topic for run in runs])
        # Ranges that were let go since: at least as many as there are rows without a live message.
        self._gone = 0

    def __iter__(self) -> Iterator[OwnedRun]:
        return map(OwnedRun, self._starts, self._stops, self._topics)

    def add(self, topic: int, start: int, stop: int) -> None:
        """Add numbers of a topic above all others."""
        if self._stops and self._stops[-1] == start and self._topics[-1] == topic:
            self._stops[-1] = stop
            return
        assert not self._stops or self._stops[-1] <= start, "numbers of a family were added out of order"
        self._starts.append(start)
        self._stops.append(stop)
        self._topics.append(topic)

    def let_go(self, numbers: Ranges, live: Ranges) -> None:
        """Drop numbers of a topic that have left `live`, now or later."""
        self._gone += len(numbers)
        if 2 * self._gone > len(self._starts) + _SPARE:
            self._become(list(self.living(live)))

    def join(self, runs: Iterable[OwnedRun], live: Ranges) -> None:
        """Add the numbers of topics that join, which lie anywhere; `live` are those that were here before."""
        self._become(sorted([*self.living(live), *runs]))

    def living(self, live: Ranges) -> Iterator[OwnedRun]:
        """The runs of live messages, each as long as can be."""
        last: OwnedRun | None = None
        for start, stop, topic in self:
            for begin, end in live.clip(start, stop):
                if last is not None and (last.stop, last.topic) == (begin, topic):
                    last = last._replace(stop=end)
                    continue
                if last is not None:
                    yield last
                last = OwnedRun(begin, end, topic)
        if last is not None:
            yield last

    def of(self, number: int) -> int:
        """The topic of a live message."""
        at = bisect_right(self._starts, number) - 1
        assert at >= 0 and number < self._stops[at], f"no topic of the family has number {number}"
        return self._topics[at]

    def sort_out(self, numbers: Ranges) -> dict[int, Ranges]:
        """These live messages, by topic."""
        found: dict[int, Ranges] = {}
        starts, stops = self._starts, self._stops
        for start, stop in numbers:
            at = bisect_right(starts, start) - 1
            while start < stop:
                end = min(stop, stops[at])
                assert starts[at] <= start < end, f"no topic of the family has number {start}"
                found.setdefault(self._topics[at], Ranges()).add(start, end)
                start, at = end, at + 1
        return found
