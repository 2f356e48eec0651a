"""Questions: what a replica says of names, sessions and stored ranges when a client manager asks.

Where it sits
    client manager  ->  QUESTIONS  ->  the state of the channel  ->  client manager

What it promises
    L1  Every replica answers, and not before it has applied what the client manager has confirmed: who
        asks finds what it made.
    L2  Whoever asks again before the answer could be given is answered once.
    L3  What waits is bounded: the oldest question is forgotten, and its asker says it again.
    L4  A question that may wait is answered as soon as there is news, but no more often than the state can
        be looked at without being in the way.

What it leaves to others
    Who is asked, and what to make of an answer that is not the newest, is the client manager's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from antiphon.bus.effects import Send
from antiphon.bus.messages import About, Query, Reply
from antiphon.errors import ProtocolError
from antiphon.message_manager.range_questions import (
    NoSuchDestination,
    answer,
    has_news,
    read_question,
    weight_of,
)
from antiphon.message_manager.state.channel_state import ChannelState

UNKNOWN: Final = "destination.unknown"
UNAVAILABLE: Final = "range.unavailable"

WAITING_MAX: Final = 4_096

_NS_PER_MS: Final = 1_000_000
_LOOK_NS: Final = 5 * _NS_PER_MS
_LOOK_NS_EACH: Final = 10_000
"""Between two looks at whether there is news, and for each destination that is looked at: there may be many
who wait, for many of them, and many commands a second."""

TOO_EARLY_NS: Final = 1_000 * _NS_PER_MS
"""After which what the primary has not applied does not exist."""

Key = tuple[int, int]  # a client manager and its request
Teller = Callable[[dict[str, Any]], dict[str, Any] | None]


class _Waiting(NamedTuple):
    query: Query
    # A question about ranges, taken apart; None of another one.
    question: dict[str, Any] | None
    since_ns: int

    @property
    def until_ns(self) -> int:
        return self.since_ns + self.query.wait_ms * _NS_PER_MS


class Questions:
    """The questions of client managers that wait; `tellers` answers those about names, by their kind."""

    __slots__ = ("_looked_at", "_next_look_ns", "_refused", "_tellers", "_waiting")

    def __init__(self, tellers: dict[str, Teller]) -> None:
        self._tellers = tellers
        self._waiting: dict[Key, _Waiting] = {}
        self._refused: list[Send] = []
        # When to look again whether there is news for those who wait, and at which state we last did.
        self._next_look_ns = 0
        self._looked_at = -1

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._refused)

    def ask(self, now_ns: int, sender: int, query: Query) -> None:
        """A client manager wants to know; what it says again waits once."""
        question = None
        if query.about is About.RANGES:
            try:
                question = read_question(query.question)
            except ProtocolError as error:
                self._refused.append(Send(sender, _reply(query, "", ProtocolError.code, error.text)))
                return
        self._waiting.setdefault((sender, query.request), _Waiting(query, question, now_ns))
        keep_newest(self._waiting)
        if question is not None:
            # It may be known already.
            self._looked_at = -1
            self._next_look_ns = now_ns

    def next_deadline_ns(self, applied: int) -> int | None:
        """When to flush even if nothing happens."""
        deadlines = [
            one.since_ns + TOO_EARLY_NS if one.query.floor > applied else one.until_ns
            for one in self._waiting.values()
        ]
        if self._looked_at != applied and any(one.question for one in self._waiting.values()):
            deadlines.append(self._next_look_ns)
        return min(deadlines, default=None)

    def flush(self, now_ns: int, state: ChannelState, *, is_primary: bool) -> list[Send]:
        """The answers that can be given now; the other questions wait (L1)."""
        told, self._refused = self._refused, []
        may_look = self._looked_at != state.applied and now_ns >= self._next_look_ns
        for key, waiting in list(self._waiting.items()):
            query = waiting.query
            if query.floor > state.applied:
                if now_ns >= waiting.since_ns + TOO_EARLY_NS:
                    del self._waiting[key]
                    if is_primary:
                        text = f"number {query.floor} does not exist yet"
                        told.append(Send(key[0], _reply(query, "", UNAVAILABLE, text)))
                continue
            if now_ns >= waiting.until_ns or may_look:
                said = self._tell(state, waiting, is_over=now_ns >= waiting.until_ns)
                if said is not None:
                    del self._waiting[key]
                    told.append(Send(key[0], said))
        if may_look:
            weight = sum([weight_of(one.question) for one in self._waiting.values() if one.question])
            self._next_look_ns = now_ns + _LOOK_NS + weight * _LOOK_NS_EACH
            self._looked_at = state.applied
        return told

    def _tell(self, state: ChannelState, waiting: _Waiting, *, is_over: bool) -> Reply | None:
        query, question = waiting.query, waiting.question
        if question is None:
            return _reply(query, self._find(query.question))
        try:
            if is_over or has_news(state, question):
                return _reply(query, answer(state, question))
        except NoSuchDestination as error:
            return _reply(query, "", UNKNOWN, str(error.id))
        except ProtocolError as error:
            return _reply(query, "", ProtocolError.code, error.text)
        return None

    def _find(self, question: str) -> str:
        """An empty object if there is no such thing, or no such question."""
        try:
            asked = json.loads(question)
            tell = self._tellers[asked["question"]]
            return json.dumps(tell(asked) or {})
        except (ValueError, KeyError, TypeError, RecursionError):
            return "{}"


def _reply(query: Query, said: str, code: str = "", text: str = "") -> Reply:
    return Reply(query.request, query.about, said, code, text)


def keep_newest(waiting: dict[Key, Any]) -> None:
    """What waits is bounded: the oldest goes, and its asker says it again."""
    if len(waiting) > WAITING_MAX:
        del waiting[next(iter(waiting))]
