"""Lot: messages of one consumer that a thread hands out without asking the loop for each.

Where it sits
    the loop's thread: `Intake.lend`  ->  LOT  ->  the application's thread: `blocking.Consumer`

What it promises
    LOT1  A message is handed out once, and in its order: while there is a lot, only the lot's thread takes
          messages.
    LOT2  A handed out message is taken: the loop looks at the thread's progress before it does anything with
          the consumer, and every few milliseconds. Until then the messages are in the consumer's buffer.
    LOT3  Nothing is handed out after the loop has recalled the lot, or when the messages are not sure any
          more to be the consumer's.

What it leaves to others
    The consumer has credit, acknowledgements and held messages, as without a lot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from antiphon import clock
from antiphon.client.core.consumer import Span


class LotProgress(NamedTuple):
    """A thread's progress: places from `start` on and below `stop` are new; loops work on those in turn.

    When `receive` was called, loops are done with all earlier messages.
    """

    start: int
    stop: int
    in_turn: frozenset[int]
    was_called: bool = False

    def runs(self) -> Iterator[tuple[int, bool]]:
        """The new places as runs: their length, and does an iteration work on the run?"""
        start = self.start
        for place in sorted(place for place in self.in_turn if self.start <= place < self.stop):
            if start < place:
                yield place - start, False
            yield 1, True
            start = place + 1
        if start < self.stop:
            yield self.stop - start, False


class Lot:
    """The first messages of a consumer's buffer, which are sure to be its own until `until_ns`."""

    __slots__ = (
        "_guard",
        "_in_turn",
        "_is_over",
        "_next",
        "_seen",
        "_stop",
        "_until_ns",
        "_was_called",
        "in_hand",
        "messages",
        "spans",
    )

    def __init__(self, spans: Sequence[Span], count: int, until_ns: int) -> None:
        self.spans = spans
        self.messages: list[Any] = []
        """The messages for the application; the thread that hands them out makes them."""
        self.in_hand: dict[int, Span] = {}
        """The messages that iterations work on, as the loop knows."""
        self._until_ns = until_ns
        self._stop = count
        self._next = 0
        self._seen = 0
        self._in_turn: set[int] = set()
        self._was_called = False
        self._is_over = False
        # The thread that holds it may be interrupted by a signal, whose handler asks for it.
        self._guard = threading.RLock()

    # -- the thread that hands out ---------------------------------------------

    def hand_out(self) -> int:
        """The place of the next message, which is the application's from now on; -1: ask the loop.

        Called by `receive`, with which loops are done with their messages.
        """
        with self._guard:
            place = self._next
            if place >= self._stop or clock.now_ns() >= self._until_ns:
                return -1
            self._was_called = True
            if self._in_turn:
                self._in_turn.clear()
            self._next = place + 1
            return place

    def hand_out_in_turn(self, done: int) -> int:
        """The same for an iteration, which is done with another place; -1: ask the loop."""
        with self._guard:
            place = self._next
            if place >= self._stop or clock.now_ns() >= self._until_ns:
                return -1
            self._in_turn.discard(done)
            self._in_turn.add(place)
            self._next = place + 1
            return place

    def finish(self, place: int) -> bool:
        """The application is done with this message; False: the loop has to be told."""
        with self._guard:
            if not self._is_over:
                self._in_turn.discard(place)
            return not self._is_over

    # -- the loop's thread -----------------------------------------------------

    def look(self, *, is_last: bool) -> LotProgress:
        """The thread's progress since the last look; after the last look there is no more."""
        with self._guard:
            progress = LotProgress(self._seen, self._next, frozenset(self._in_turn), self._was_called)
            self._seen, self._was_called = self._next, False
            if is_last:
                self._stop, self._is_over = self._next, True
        return progress
