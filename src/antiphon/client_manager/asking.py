"""Asking: every question of a client manager to a channel, asked until it is answered or given up.

Where it sits
    destinations, subscriptions, ranges  ->  ASKING  ->  the primary or a replica, and back

What it promises
    ASK1  A replica that gives no answer is passed over: another one is asked, and stays the first for a
          while, but not for ever: it may be the primary, which has other work.
    ASK2  A question has one answer, the first; never an answer to an earlier life of this node. A question
          that has waited for too long is answered by None.
    ASK3  A name is looked up at the primary, repeatedly, and at once when the primary changes. Only when the
          primary has been silent for longer than a change takes, any replica may answer: the replica may not
          know the newest names, but existing ones can still be used.
    ASK4  An answer is not older than any confirmation that this client manager sent before the question.

What it leaves to others
    The node chooses the replica of an attempt. The asker handles an answer, and a client that has left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from antiphon.bus.messages import About, Query, RangeReply, RangeRequest, Reply
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary, SendToReplica
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.ids import U64_MAX
from antiphon.retries import Retries

if TYPE_CHECKING:
    from antiphon.client_manager.destination_service import Search
    from antiphon.client_manager.range_service import Wish
    from antiphon.client_manager.subscription_finder import Hunt

_NS_PER_MS = 1_000_000

_REMEMBERED_NS = 10_000 * _NS_PER_MS
"""How long a replica that gave no answer is passed over."""

Asked = RangeRequest | Query
Said = RangeReply | Reply
Answer = dict[str, Any]


class ClientQuestion(NamedTuple):
    """A client's own question to a channel."""

    conn: int
    request: int


Asker: TypeAlias = "Search | Hunt | Wish | ClientQuestion"
"""The asker, with its progress."""


class Patience(NamedTuple):
    """The interval at which a question is asked again, and the time after which it is given up, if ever.

    For `primary_ms` only the primary is asked.
    """

    repeat_ms: int
    wait_ms: int | None = None
    primary_ms: int = 0


@dataclass(slots=True)
class ChannelQuestion:
    """A question on its way, its asker, and the count of attempts."""

    channel: str
    message: Asked
    asker: Asker
    patience: Patience
    attempts: int


class Asking:
    """The questions of one client manager; `told` hands an answer, or None, to the asker.

    `floors` are the highest numbers confirmed in each channel.
    """

    def __init__(
        self,
        settings: ClientManagerSettings,
        outbox: Outbox,
        floors: Mapping[str, int],
        first_number: int,
        told: Callable[[ChannelQuestion, Said | None], None],
    ) -> None:
        self._told = told
        self._outbox = outbox
        self._floors = floors
        self._lookups = Patience(
            settings.lookup_repeat_ms, settings.directory_wait_ms, settings.primary_wait_ms
        )
        self._next_number = first_number
        self._questions: Retries[int, ChannelQuestion] = Retries()
        # The attempt that was answered last, in each channel: earlier replicas are passed over (ASK1).
        self._answering: dict[str, int] = {}
        # The end of that; None until this step ends.
        self._passed_over: dict[str, int | None] = {}

    def next_number(self) -> int:
        number = self._next_number
        self._next_number = number % U64_MAX + 1
        return number

    def put(self, channel: str, message: Asked, asker: Asker, patience: Patience, longer_ms: int = 0) -> None:
        """Ask; the first answer may take `longer_ms` than usual."""
        attempts = 0 if patience.primary_ms else self._answering.get(channel, 0)
        question = ChannelQuestion(channel, message, asker, patience, attempts)
        self._questions.put(
            message.request,
            question,
            patience.repeat_ms * _NS_PER_MS,
            wait_ns=None if patience.wait_ms is None else patience.wait_ms * _NS_PER_MS,
            longer_ns=longer_ms * _NS_PER_MS,
        )
        self._send(question)

    def look_up(self, channel: str, question: Mapping[str, Any], asker: Asker) -> None:
        """Ask for the channel's knowledge of a name or a session (ASK3)."""
        text, floor = json.dumps(question), self._floors[channel]
        query = Query(self.next_number(), About.NAMES, text, floor, anybody=False)
        self.put(channel, query, asker, self._lookups)

    def _send(self, question: ChannelQuestion) -> None:
        patience = question.patience
        attempt = question.attempts - patience.primary_ms // patience.repeat_ms
        if attempt < 0:
            self._outbox.do(SendToPrimary(question.channel, question.message))
            return
        if isinstance(question.message, Query) and not question.message.anybody:
            question.message = replace(question.message, anybody=True)
        self._outbox.do(SendToReplica(question.channel, question.message, attempt))

    def answered(self, channel: str, reply: Said) -> None:
        """A replica has answered; the first answer counts (ASK2)."""
        question = self._questions.get(reply.request)
        if question is None:
            return
        if question.patience.primary_ms:
            if reply.code:
                return  # it cannot say yet; it is asked again
        elif question.attempts != self._answering.get(channel, 0):
            self._answering[channel] = question.attempts
            self._passed_over[channel] = None
        self._questions.forget(reply.request)
        self._told(question, reply)

    def forget(self, number: int) -> None:
        self._questions.forget(number)

    def primary_changed(self, channel: str) -> None:
        """The asked node may be gone: ask again."""
        for _, question in self._questions.items():
            if question.channel == channel:
                self._send(question)

    def next_deadline_ns(self) -> int | None:
        return self._questions.next_deadline_ns()

    def keep_time(self, now_ns: int) -> None:
        """Ask another replica for overdue answers; questions that have waited for too long are given up."""
        for channel, until_ns in list(self._passed_over.items()):
            if until_ns is None:
                self._passed_over[channel] = now_ns + _REMEMBERED_NS
            elif until_ns <= now_ns:
                del self._passed_over[channel], self._answering[channel]
        for _, question, is_over in self._questions.due(now_ns):
            if is_over:
                self._told(question, None)
            else:
                question.attempts += 1
                self._send(question)
        self._questions.arm(now_ns)
