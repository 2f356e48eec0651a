"""Lookups: questions about names and sessions, put to the channels until they are answered.

Where it sits
    destination service and others  ->  LOOKUPS  ->  a replica of the channel, and back

What it promises
    U1  Every question has one answer, or None after a while in which nobody gave one.
    U2  The primary is asked, again and again and at once when there is another. Only when it has been
        silent for longer than a change of primary takes, any replica may answer: it may not know yet
        what was made last, but what exists can still be used.
    U3  An answer is not older than what this client manager has confirmed to anybody before it asked.

What it leaves to others
    What an answer means is its asker's business, and so is a client that has left meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from antiphon.bus.messages import Lookup, LookupReply
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary, SendToReplica
from antiphon.client_manager.settings import ClientManagerSettings

Answer = dict[str, Any]
Then = Callable[[Answer | None], None]

_NS_PER_MS = 1_000_000


class _Question:
    """One question on its way."""

    __slots__ = ("again_ns", "attempts", "channel", "floor", "text", "then")

    def __init__(self, channel: str, text: str, floor: int, then: Then) -> None:
        self.channel = channel
        self.text = text
        self.floor = floor
        self.then = then
        self.attempts = 0
        # When to ask again; None until this step ends.
        self.again_ns: int | None = None


class Lookups:
    """What one client manager has asked. `floors` are the highest numbers confirmed in each channel."""

    __slots__ = (
        "_attempts_max",
        "_by_number",
        "_floors",
        "_fresh",
        "_numbers",
        "_outbox",
        "_patience",
        "_repeat_ns",
    )

    def __init__(
        self,
        settings: ClientManagerSettings,
        outbox: Outbox,
        floors: Mapping[str, int],
        first_number: int,
    ) -> None:
        self._outbox = outbox
        self._floors = floors
        self._repeat_ns = settings.lookup_repeat_ms * _NS_PER_MS
        self._attempts_max = max(1, settings.directory_wait_ms // settings.lookup_repeat_ms)
        self._patience = settings.primary_wait_ms // settings.lookup_repeat_ms
        self._numbers = count(first_number)
        # In the order in which they are to be asked again: all wait equally long.
        self._by_number: dict[int, _Question] = {}
        # Asked in this step.
        self._fresh: list[_Question] = []

    def ask(self, channel: str, question: Mapping[str, Any], then: Then) -> None:
        """Ask the channel; `then` is given the answer, or None if there was none in time."""
        number = next(self._numbers)
        asked = _Question(channel, json.dumps(question), self._floors[channel], then)
        self._by_number[number] = asked
        self._fresh.append(asked)
        self._send(number)

    def _send(self, number: int) -> None:
        question = self._by_number[number]
        attempt = question.attempts - self._patience
        anybody = attempt >= 0
        lookup = Lookup(number, question.floor, question.text, anybody)
        if anybody:
            self._outbox.do(SendToReplica(question.channel, lookup, attempt))
        else:
            self._outbox.do(SendToPrimary(question.channel, lookup))

    def answered(self, channel: str, reply: LookupReply) -> None:
        """A replica's answer; the first one counts."""
        question = self._by_number.pop(reply.request, None)
        if question is not None:
            question.then(json.loads(reply.answer))

    def primary_changed(self, channel: str) -> None:
        """Who was asked may be gone: ask again at once."""
        for number, question in self._by_number.items():
            if question.channel == channel:
                self._send(number)

    def next_deadline_ns(self) -> int | None:
        return next((question.again_ns for question in self._by_number.values()), None)

    def keep_time(self, now_ns: int) -> None:
        """Note when the new questions are to be repeated; repeat what is due, or give it up (U1)."""
        while self._by_number:
            number, question = next(iter(self._by_number.items()))
            if question.again_ns is None or question.again_ns > now_ns:
                break
            del self._by_number[number]
            question.attempts += 1
            if question.attempts >= self._attempts_max:
                question.then(None)
            else:
                question.again_ns = now_ns + self._repeat_ns
                self._by_number[number] = question
                self._send(number)
        for question in self._fresh:
            question.again_ns = now_ns + self._repeat_ns
        self._fresh.clear()
