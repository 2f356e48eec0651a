"""Retries: when a question that was not answered is to be asked again.

Where it sits
    Asking and Requests of a client manager, Inquiries of a node  ->  RETRIES

What it promises
    RET1  An entry is due an interval after the step in which the entry was put or was due, until the asker
          forgets the key of the entry. There is one entry for each key: the later one counts.
    RET2  An entry with an end is due at the end at the latest, marked as over, and is forgotten then.
    RET3  At most `at_once` entries are due at a time, the earliest first; the rest follow a moment later.

What it leaves to others
    What an entry means, and to which node it is sent.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K")
T = TypeVar("T")

_MOMENT_NS: Final = 10_000_000
_STALE_MAX: Final = 64


class Due(NamedTuple, Generic[K, T]):
    """An entry to be sent again; or, if it `is_over`, to be given up."""

    key: K
    item: T
    is_over: bool


class _Times:
    """When an entry is due. The time of the step is not known before the step ends."""

    __slots__ = ("due", "ends_ns", "interval_ns", "longer_ns", "wait_ns")

    def __init__(self, interval_ns: int, wait_ns: int | None, longer_ns: int) -> None:
        self.interval_ns = interval_ns
        self.wait_ns = wait_ns
        self.longer_ns = longer_ns
        self.ends_ns: int | None = None
        # The number under which the entry stands in the heap, 0 until the step ends.
        self.due = 0


class Retries(Generic[K, T]):
    """All that one asker waits for, by keys."""

    __slots__ = ("_at_once", "_due", "_fresh", "_items", "_numbers", "_resumes_ns", "_times")

    def __init__(self, at_once: int | None = None) -> None:
        self._at_once = at_once
        self._items: dict[K, T] = {}
        self._times: dict[K, _Times] = {}
        # A heap of times, numbers and keys; an entry counts under its last number.
        self._due: list[tuple[int, int, K]] = []
        self._numbers = count(1)
        self._fresh: list[K] = []
        self._resumes_ns = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def get(self, key: K) -> T | None:
        return self._items.get(key)

    def items(self) -> ItemsView[K, T]:
        return self._items.items()

    def put(
        self, key: K, item: T, interval_ns: int, *, wait_ns: int | None = None, longer_ns: int = 0
    ) -> None:
        """Wait for an answer, `wait_ns` at most; the first one may take `longer_ns` than usual."""
        self.forget(key)
        self._items[key] = item
        self._times[key] = _Times(interval_ns, wait_ns, longer_ns)
        self._fresh.append(key)

    def forget(self, key: K) -> T | None:
        """There is an answer, or no asker any more."""
        self._times.pop(key, None)
        return self._items.pop(key, None)

    def hurry(self, key: K) -> None:
        """The entry is due in this step."""
        self._push(0, key, self._times[key])

    def arm(self, now_ns: int) -> None:
        """The step ends: the entries that were put during the step wait from now on."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        for key in fresh:
            times = self._times.get(key)
            if times is not None and not times.due:
                if times.wait_ns is not None:
                    times.ends_ns = now_ns + times.wait_ns + times.longer_ns
                self._wait(now_ns + times.longer_ns, key, times)

    def _wait(self, from_ns: int, key: K, times: _Times) -> None:
        due_ns = from_ns + times.interval_ns
        self._push(due_ns if times.ends_ns is None else min(due_ns, times.ends_ns), key, times)

    def _push(self, due_ns: int, key: K, times: _Times) -> None:
        times.due = next(self._numbers)
        heappush(self._due, (due_ns, times.due, key))
        if len(self._due) > 2 * len(self._times) + _STALE_MAX:
            self._due = [one for one in self._due if self._counts(one)]
            heapify(self._due)

    def _counts(self, one: tuple[int, int, K]) -> bool:
        times = self._times.get(one[2])
        return times is not None and times.due == one[1]

    def next_deadline_ns(self) -> int | None:
        while self._due and not self._counts(self._due[0]):
            heappop(self._due)
        return max(self._due[0][0], self._resumes_ns) if self._due else None

    def due(self, now_ns: int) -> Iterable[Due[K, T]]:
        """The entries that are due; what happens to one of them may have the asker forget another."""
        if not self._due or self._due[0][0] > now_ns or self._resumes_ns > now_ns:
            return ()
        return self._give(now_ns)

    def _give(self, now_ns: int) -> Iterator[Due[K, T]]:
        given = 0
        while (due_ns := self.next_deadline_ns()) is not None and due_ns <= now_ns:
            if given == self._at_once:
                self._resumes_ns = now_ns + _MOMENT_NS
                return
            given += 1
            _, _, key = heappop(self._due)
            item, times = self._items[key], self._times[key]
            is_over = times.ends_ns is not None and times.ends_ns <= now_ns
            if is_over:
                self.forget(key)
            else:
                self._wait(now_ns, key, times)
            yield Due(key, item, is_over)
