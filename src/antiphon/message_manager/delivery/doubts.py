"""Doubts: the primary's clock for transactions that no coordinator seems to finish.

DBT1  A part that has been prepared for a while is asked about, again and again, until it is finished.
DBT2  A commit that is not known to be complete after a while is announced, again and again, until it is.
DBT3  A participant is never asked to decide: it cannot know, however long it waits.

Any client manager may carry question and answer. The next term begins its waits anew.
"""

from __future__ import annotations

from typing import Final

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import InDoubt, Unfinished
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.transactions import Decision, PreparedPart, Transactions

_NS_PER_MS: Final = 1_000_000

_IN_DOUBT, _UNFINISHED = False, True
_Key = tuple[bool, int, int]


class Doubts:
    """The prepared parts and incomplete decisions of one term, and when to announce them."""

    __slots__ = ("_again_ns", "_fresh", "_next_ns", "_wait_ns", "_waiting")

    def __init__(self, transactions: Transactions, settings: MessageManagerSettings) -> None:
        self._wait_ns = settings.in_doubt_ms * _NS_PER_MS
        self._again_ns = settings.in_doubt_again_ms * _NS_PER_MS
        self._waiting: dict[_Key, tuple[int, InDoubt | Unfinished]] = {}
        # Added since the last flush: only a flush knows the time.
        self._fresh: dict[_Key, InDoubt | Unfinished] = {}
        self._next_ns: int | None = None
        for (session, transaction), part in sorted(transactions.prepared.items()):
            self.prepared(session, transaction, part)
        for session, transaction, decision in transactions.unfinished():
            self.decided(session, transaction, decision)

    def prepared(self, session: int, transaction: int, part: PreparedPart) -> None:
        said = InDoubt(session, transaction, part.home, part.messages)
        self._fresh[_IN_DOUBT, session, transaction] = said

    def finished(self, session: int, transaction: int) -> None:
        self._forget((_IN_DOUBT, session, transaction))

    def decided(self, session: int, transaction: int, decision: Decision) -> None:
        channels = tuple([participant.channel for participant in decision.participants])
        messages = tuple([participant.messages for participant in decision.participants])
        self._fresh[_UNFINISHED, session, transaction] = Unfinished(session, transaction, channels, messages)

    def completed(self, session: int, transaction: int) -> None:
        self._forget((_UNFINISHED, session, transaction))

    def _forget(self, key: _Key) -> None:
        if self._fresh.pop(key, None) is None:
            self._waiting.pop(key, None)
        if not self._waiting:
            self._next_ns = None

    def next_deadline_ns(self, now_ns: int) -> int | None:
        return now_ns if self._fresh else self._next_ns

    def flush(self, now_ns: int) -> list[Multicast]:
        if self._fresh:
            for key, said in self._fresh.items():
                self._waiting[key] = (now_ns + self._wait_ns, said)
            self._fresh.clear()
            self._look()
        if self._next_ns is None or now_ns < self._next_ns:
            return []
        due = [(key, said) for key, (at_ns, said) in self._waiting.items() if at_ns <= now_ns]
        for key, said in due:
            self._waiting[key] = (now_ns + self._again_ns, said)
        self._look()
        return [Multicast(said) for _, said in due]

    def _look(self) -> None:
        self._next_ns = min([at_ns for at_ns, _ in self._waiting.values()], default=None)
