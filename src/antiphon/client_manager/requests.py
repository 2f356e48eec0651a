"""Requests: messages that are sent to a primary again and again, until the primary answers.

Where it sits
    consumers, session_service  ->  REQUESTS  ->  the primary of the channel

What it promises
    REQ1  A request that was not answered is sent again, at equal distances (`Retries`).
    REQ2  There is one request for each key: of two requests under the same key the later one counts.
    REQ3  A request for one term is not sent in another. A session whose client is gone is told to every new
          primary until one says that the session is over: only primaries know which sessions are to expire,
          and each primary forgets.
    REQ4  However many requests there are, only so many are repeated at once.

What it leaves to others
    A primary does not answer before it has applied what was confirmed here (`floor`): a session that a former
    primary does not know yet has not ended.
    The primary makes a request harmless that comes twice, late, or behind a later one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from antiphon.bus.effects import PrimaryChanged
from antiphon.bus.messages import Register, SessionDetached, SessionDetachedHeard, Unregister, Unregistered
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.retries import Retries

_NS_PER_MS: Final = 1_000_000

_AT_ONCE: Final = 512
"""Repetitions in one step (REQ4); the rest follow a moment later."""

_DETACHED_MAX: Final = 50_000
"""Sessions without a client that are remembered for the next primary; the oldest above that are forgotten."""

Key = tuple[str, int]
"""A channel, and the id of a consumer or a session."""


Asked = Register | Unregister | SessionDetached


class Requests:
    """The unanswered requests of one client manager."""

    def __init__(self, settings: ClientManagerSettings, outbox: Outbox) -> None:
        self._interval_ns = settings.request_interval_ms * _NS_PER_MS
        self._reviewed_ns = settings.detached_review_ms * _NS_PER_MS
        self._outbox = outbox
        # The term of each channel's primary.
        self._terms: dict[str, int] = {}
        self._asked: Retries[Key, Asked] = Retries(_AT_ONCE)
        # Known to a primary, and to be told to the next one (REQ3).
        self._detached: Retries[Key, Asked] = Retries(_AT_ONCE)

    def register(self, channel: str, message: Register) -> None:
        self._ask((channel, message.consumer), message)

    def unregister(self, channel: str, message: Unregister) -> None:
        self._ask((channel, message.consumer), message)

    def detach(self, channel: str, message: SessionDetached) -> None:
        """The client of a session is gone; a client that comes back is `resumed`."""
        key = (channel, message.session)
        asked = self._asked.get(key) or self._detached.get(key)
        if isinstance(asked, SessionDetached) and asked.generation > message.generation:
            # The commands of a former generation were confirmed behind those of a later one.
            return
        self._ask(key, message)

    def ordered_behind(self, channel: str, session: int, floor: int) -> None:
        """A command of the session was applied, perhaps behind the word that its client is gone.

        If this node had been fenced meanwhile, the primary takes the session for one with a client again.
        """
        told = self._detached.get((channel, session))
        if isinstance(told, SessionDetached):
            self._ask((channel, session), replace(told, floor=floor))

    def _ask(self, key: Key, message: Asked) -> None:
        self._forget(key)
        self._asked.put(key, message, self._interval_ns)
        self._outbox.do(SendToPrimary(key[0], message))

    def is_leaving(self, channel: str, consumer: int) -> bool:
        """Was the primary asked to detach this consumer, and has not answered?"""
        return isinstance(self._asked.get((channel, consumer)), Unregister)

    def registered(self, channel: str, consumer: int) -> None:
        """The primary has answered a `Register`, or the answer is not awaited any more."""
        if not self.is_leaving(channel, consumer):
            self._forget((channel, consumer))

    def unregistered(self, channel: str, message: Unregistered) -> None:
        if self.is_leaving(channel, message.consumer):
            self._forget((channel, message.consumer))

    def detached_heard(self, channel: str, message: SessionDetachedHeard) -> None:
        key = channel, message.session
        asked = self._asked.get(key)
        if not isinstance(asked, SessionDetached) or asked.generation != message.generation:
            return
        if message.term != self._terms.get(channel):
            # A former primary has heard of it, and has forgotten it.
            return
        self._forget(key)
        if message.is_over:
            return
        if len(self._detached) >= _DETACHED_MAX:
            self._detached.forget(next(iter(self._detached)))
        self._detached.put(key, asked, self._reviewed_ns)

    def resumed(self, channel: str, session: int) -> SessionDetached | None:
        """The client of a session is here again; returns what the primary is told of its absence."""
        told = self._forget((channel, session))
        return told if isinstance(told, SessionDetached) else None

    def _forget(self, key: Key) -> Asked | None:
        asked, detached = self._asked.forget(key), self._detached.forget(key)
        return asked or detached

    def primary_changed(self, channel: str, event: PrimaryChanged) -> None:
        """Requests to the former primary are void; the new one is told of detached sessions (REQ3)."""
        self._terms[channel] = event.term
        for key, message in [*self._detached.items(), *self._asked.items()]:
            if key[0] == channel:
                self._forget(key)
                if isinstance(message, SessionDetached):
                    # There may be very many: they are due, and go in their turn (REQ4).
                    self._asked.put(key, message, self._interval_ns)
                    self._asked.hurry(key)

    def next_deadline_ns(self) -> int | None:
        asked_ns, detached_ns = self._asked.next_deadline_ns(), self._detached.next_deadline_ns()
        if asked_ns is None or detached_ns is None:
            return detached_ns if asked_ns is None else asked_ns
        return min(asked_ns, detached_ns)

    def keep_time(self, now_ns: int) -> None:
        for key, message, _ in self._asked.due(now_ns):
            self._outbox.do(SendToPrimary(key[0], message))
        # A detached session may have expired meanwhile: the primary is asked now and then.
        for key, message, _ in self._detached.due(now_ns):
            self._ask(key, message)
        self._asked.arm(now_ns)
        self._detached.arm(now_ns)
