"""Asking: what is asked of some replica of a channel, until one of them answers.

What it promises
    A1  A replica that gives no answer is not waited for: another one is asked. Whoever answered in its place
        is asked first the next time, but not for ever: it may be the primary, which has other things to do.
    A2  A question is answered once, whoever else answers it later; and never by what was said to an earlier
        life of this node, which counted elsewhere.

What it leaves to others
    Which replica an attempt means: reading is better done by one that does not deliver.
"""

from __future__ import annotations

from itertools import count
from typing import Generic, TypeVar

from antiphon.bus.messages import BrowseRequest, RangeAsk, RangeRequest
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToReplica

_NS_PER_MS = 1_000_000

_REMEMBERED_NS = 10_000 * _NS_PER_MS
"""How long who gave no answer is passed over."""

W = TypeVar("W")
Message = BrowseRequest | RangeRequest | RangeAsk


class _Asked(Generic[W]):
    """A question on its way: who has been asked it how often, and when to ask the next."""

    __slots__ = ("again_ns", "attempts", "channel", "gives_up_ns", "message", "patience_ns", "wish")

    def __init__(self, channel: str, wish: W, message: Message, attempts: int, patience_ns: int) -> None:
        self.channel = channel
        self.wish = wish
        self.message = message
        self.attempts = attempts
        self.patience_ns = patience_ns
        # Both are None until this step ends.
        self.again_ns: int | None = None
        self.gives_up_ns: int | None = None


class Asking(Generic[W]):
    """The questions of one kind; a wish is what its asker knows it by."""

    __slots__ = ("_answering", "_asked", "_numbers", "_outbox", "_passed_over", "_repeat_ns", "_wait_ns")

    def __init__(self, outbox: Outbox, first_number: int, repeat_ms: int, wait_ms: int | None = None) -> None:
        self._outbox = outbox
        self._repeat_ns = repeat_ms * _NS_PER_MS
        self._wait_ns = None if wait_ms is None else wait_ms * _NS_PER_MS
        self._numbers = count(first_number)
        self._asked: dict[int, _Asked[W]] = {}
        # The attempt that was answered last, in each channel: who gave no answer then is passed over (A1).
        self._answering: dict[str, int] = {}
        # Until when; None until this step ends.
        self._passed_over: dict[str, int | None] = {}

    def next_number(self) -> int:
        """A number for the next question."""
        return next(self._numbers)

    def put(self, channel: str, wish: W, message: Message, patience_ms: int = 0) -> None:
        """Ask; the answer may take `patience_ms` longer than usual."""
        attempts = self._answering.get(channel, 0)
        asked = _Asked(channel, wish, message, attempts, patience_ms * _NS_PER_MS)
        self._asked[message.request] = asked
        self._send(asked)

    def _send(self, asked: _Asked[W]) -> None:
        self._outbox.do(SendToReplica(asked.channel, asked.message, asked.attempts))

    def answered(self, channel: str, number: int) -> W | None:
        """A replica has answered: the wish, unless another one was quicker (A2)."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return None
        if asked.attempts != self._answering.get(channel, 0):
            self._answering[channel] = asked.attempts
            self._passed_over[channel] = None
        return asked.wish

    def forget(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._asked.pop(number, None)

    def primary_changed(self, channel: str) -> None:
        """Who was asked may be gone: ask again."""
        for asked in self._asked.values():
            if asked.channel == channel:
                self._send(asked)

    def next_deadline_ns(self) -> int | None:
        deadlines = [asked.again_ns for asked in self._asked.values() if asked.again_ns is not None]
        return min(deadlines, default=None)

    def keep_time(self, now_ns: int) -> list[W]:
        """Ask another replica for what did not come; those that have waited for too long are given up."""
        for channel, until_ns in list(self._passed_over.items()):
            if until_ns is None:
                self._passed_over[channel] = now_ns + _REMEMBERED_NS
            elif until_ns <= now_ns:
                del self._passed_over[channel], self._answering[channel]
        given_up: list[W] = []
        for number, asked in list(self._asked.items()):
            if asked.again_ns is None:
                asked.again_ns = now_ns + self._repeat_ns + asked.patience_ns
                if self._wait_ns is not None:
                    asked.gives_up_ns = now_ns + self._wait_ns + asked.patience_ns
            elif asked.again_ns <= now_ns:
                if asked.gives_up_ns is not None and asked.gives_up_ns <= now_ns:
                    del self._asked[number]
                    given_up.append(asked.wish)
                    continue
                asked.again_ns = now_ns + self._repeat_ns
                asked.attempts += 1
                self._send(asked)
        return given_up
