"""Lookups: what a replica says of names and sessions when a client manager asks.

Where it sits
    client manager  ->  LOOKUPS  ->  the state of the channel  ->  client manager

What it promises
    L1  Every replica answers, and not before it has applied what the client manager has confirmed: who
        asks finds what it made.
    L2  Whoever asks again before the answer could be given is answered once.
    L3  What waits is bounded: the oldest question is forgotten, and its asker says it again.

What it leaves to others
    Who is asked, and what to make of an answer that is not the newest, is the client manager's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from antiphon.bus.effects import Send
from antiphon.bus.messages import Lookup, LookupReply

WAITING_MAX: Final = 4_096

Teller = Callable[[dict[str, Any]], dict[str, Any] | None]


class Lookups:
    """The questions of client managers that wait; `tellers` answers them by their kind."""

    __slots__ = ("_tellers", "_waiting")

    def __init__(self, tellers: dict[str, Teller]) -> None:
        self._tellers = tellers
        self._waiting: dict[tuple[int, int], Lookup] = {}

    def ask(self, sender: int, lookup: Lookup) -> None:
        self._waiting[sender, lookup.request] = lookup
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]

    def flush(self, applied: int) -> list[Send]:
        """The answers that can be given now; the other questions wait (L1)."""
        if not self._waiting:
            return []
        ripe = {key: lookup for key, lookup in self._waiting.items() if lookup.floor <= applied}
        for key in ripe:
            del self._waiting[key]
        return [
            Send(sender, LookupReply(request, self._answer(lookup.question)))
            for (sender, request), lookup in ripe.items()
        ]

    def _answer(self, question: str) -> str:
        """An empty object if there is no such thing, or no such question."""
        try:
            asked = json.loads(question)
            tell = self._tellers[asked["question"]]
            return json.dumps(tell(asked) or {})
        except (ValueError, KeyError, TypeError, RecursionError):
            return "{}"
