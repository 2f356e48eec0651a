"""Questions: the answers of a replica about names, sessions and stored ranges.

QST1  Every replica answers, but only after it has applied all that the client manager has confirmed.
QST2  A question that is repeated before its answer is answered once.
QST3  The number of waiting questions is bounded: the oldest is dropped, and its client manager repeats it.
QST4  A question that may wait is answered when there is news, within a limit on looks at the state.
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
"""The time between two looks for news, and the addition for each destination of a waiting question."""

TOO_EARLY_NS: Final = 1_000 * _NS_PER_MS
"""A number that the primary has not applied after this time does not exist."""


class NotYet(Exception):
    """The answer is not known yet: the client manager asks again."""


Key = tuple[int, int]  # a client manager and its request
Teller = Callable[[dict[str, Any]], dict[str, Any] | None]


class _Waiting(NamedTuple):
    query: Query
    # None: the question is not about ranges.
    question: dict[str, Any] | None
    since_ns: int

    @property
    def until_ns(self) -> int:
        return self.since_ns + self.query.wait_ms * _NS_PER_MS


class Questions:
    """The waiting questions of client managers; `tellers` has the functions that answer those about names."""

    __slots__ = ("_looked_at", "_next_look_ns", "_refused", "_tellers", "_waiting")

    def __init__(self, tellers: dict[str, Teller]) -> None:
        self._tellers = tellers
        self._waiting: dict[Key, _Waiting] = {}
        self._refused: list[Send] = []
        # The time of the next look for news, and the number that was applied at the last look.
        self._next_look_ns = 0
        self._looked_at = -1

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._refused)

    def ask(self, now_ns: int, sender: int, query: Query) -> None:
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
            # The answer may be known already.
            self._looked_at = -1
            self._next_look_ns = now_ns

    def next_deadline_ns(self, applied: int) -> int | None:
        deadlines = [
            one.since_ns + TOO_EARLY_NS if one.query.floor > applied else one.until_ns
            for one in self._waiting.values()
        ]
        if self._looked_at != applied and any(one.question for one in self._waiting.values()):
            deadlines.append(self._next_look_ns)
        return min(deadlines, default=None)

    def flush(self, now_ns: int, state: ChannelState, *, is_primary: bool) -> list[Send]:
        """The answers that can be given now; the other questions wait (QST1)."""
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
            try:
                return _reply(query, self._find(query.question))
            except NotYet as reason:
                return _reply(query, "", UNAVAILABLE, str(reason))
        try:
            if is_over or has_news(state, question):
                return _reply(query, answer(state, question))
        except NoSuchDestination as error:
            return _reply(query, "", UNKNOWN, str(error.id))
        except ProtocolError as error:
            return _reply(query, "", ProtocolError.code, error.text)
        return None

    def _find(self, question: str) -> str:
        """The answer as JSON: an empty object if the thing, or the kind of question, does not exist."""
        try:
            asked = json.loads(question)
            tell = self._tellers[asked["question"]]
            return json.dumps(tell(asked) or {})
        except (ValueError, KeyError, TypeError, RecursionError):
            return "{}"


def _reply(query: Query, said: str, code: str = "", text: str = "") -> Reply:
    return Reply(query.request, query.about, said, code, text)


def keep_newest(waiting: dict[Key, Any]) -> None:
    """Drop the oldest if too many wait (QST3)."""
    if len(waiting) > WAITING_MAX:
        del waiting[next(iter(waiting))]
