"""Requests: what is said to a primary again and again, until it answers.

Where it sits
    consumers, session_service  ->  REQUESTS  ->  the primary of the channel

What it promises
    R1  What was asked for and not answered is said again, at equal distances.
    R2  There is one request for each key: who asks again under the same one means the later.
    R3  What was meant for one term is not said in another. A session whose client is gone is told to every
        new primary until one says that it is over: only primaries know who is to expire, and each forgets.
    R4  However many there are, only so many are repeated at once.

What it leaves to others
    That a request does no harm when it comes twice, late, or behind a later one, the primary sees to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from antiphon.bus.effects import PrimaryChanged
from antiphon.bus.messages import (
    Register,
    SessionDetached,
    SessionDetachedHeard,
    Unregister,
    Unregistered,
)
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.settings import ClientManagerSettings

_NS_PER_MS: Final = 1_000_000

_AT_ONCE: Final = 512
"""Repetitions in one step (R4); the rest follow a moment later."""

_MOMENT_NS: Final = 10 * _NS_PER_MS

_DETACHED_MAX: Final = 50_000
"""Sessions without a client that are remembered for the next primary; of more, the oldest are forgotten."""

Key = tuple[str, int]
"""A channel, and the id of a consumer or a session."""


@dataclass(slots=True)
class _Request:
    channel: str
    message: Register | Unregister | SessionDetached
    due_ns: int = 0


class Requests:
    """Everything that one client manager waits to have answered by its channels."""

    __slots__ = (
        "_asked",
        "_detached",
        "_fresh",
        "_heard",
        "_interval_ns",
        "_outbox",
        "_resumes_ns",
        "_reviewed_ns",
    )

    def __init__(self, settings: ClientManagerSettings, outbox: Outbox) -> None:
        self._interval_ns = settings.request_interval_ms * _NS_PER_MS
        self._reviewed_ns = settings.detached_review_ms * _NS_PER_MS
        self._outbox = outbox
        # By when they are due, the earliest first: all wait equally long.
        self._asked: dict[Key, _Request] = {}
        # Of this step: the time is known at its end.
        self._fresh: dict[Key, _Request] = {}
        # Heard of by a primary, and to be told to the next one (R3), and those of this step.
        self._detached: dict[Key, _Request] = {}
        self._heard: dict[Key, _Request] = {}
        self._resumes_ns = 0

    # -- asking ----------------------------------------------------------------

    def register(self, channel: str, message: Register) -> None:
        self._ask((channel, message.consumer), _Request(channel, message))

    def unregister(self, channel: str, message: Unregister) -> None:
        self._ask((channel, message.consumer), _Request(channel, message))

    def detach(self, channel: str, message: SessionDetached) -> None:
        """The client of a session is gone; who comes back is `resumed`."""
        key = (channel, message.session)
        for known in (self._fresh, self._asked, self._heard, self._detached):
            asked = known[key].message if key in known else None
            if isinstance(asked, SessionDetached) and asked.generation > message.generation:
                # What a former generation waited for came to its end behind that of a later one.
                return
        self._ask(key, _Request(channel, message))

    def _ask(self, key: Key, asked: _Request) -> None:
        self._forget(key)
        self._fresh[key] = asked
        self._outbox.do(SendToPrimary(asked.channel, asked.message))

    # -- answers ---------------------------------------------------------------

    def is_leaving(self, channel: str, consumer: int) -> bool:
        """Was the primary asked to detach this consumer, and has not answered?"""
        asked = self._asked.get((channel, consumer)) or self._fresh.get((channel, consumer))
        return asked is not None and isinstance(asked.message, Unregister)

    def registered(self, channel: str, consumer: int) -> None:
        """The primary has answered a `Register`, or nobody waits for that any more."""
        if not self.is_leaving(channel, consumer):
            self._forget((channel, consumer))

    def unregistered(self, channel: str, message: Unregistered) -> None:
        if self.is_leaving(channel, message.consumer):
            self._forget((channel, message.consumer))

    def detached_heard(self, channel: str, message: SessionDetachedHeard) -> None:
        key = channel, message.session
        asked = self._asked.get(key) or self._fresh.get(key)
        if asked is None or asked.message != SessionDetached(message.session, message.generation):
            return
        self._forget(key)
        if message.is_over:
            return
        if len(self._detached) >= _DETACHED_MAX:
            del self._detached[next(iter(self._detached))]
        self._heard[key] = asked

    def resumed(self, channel: str, session: int) -> None:
        """Its client is here again."""
        self._forget((channel, session))

    def _forget(self, key: Key) -> None:
        self._asked.pop(key, None)
        self._fresh.pop(key, None)
        self._detached.pop(key, None)
        self._heard.pop(key, None)

    def primary_changed(self, channel: str, event: PrimaryChanged) -> None:
        """What was for the former primary is void; of detached sessions the new one is told (R3)."""
        everything = {**self._detached, **self._heard, **self._asked, **self._fresh}
        due: dict[Key, _Request] = {}
        for key, asked in everything.items():
            if asked.channel == channel:
                self._forget(key)
                if isinstance(asked.message, SessionDetached):
                    # There may be very many of them: they are due, and go in their turn (R4).
                    asked.due_ns = 0
                    due[key] = asked
        self._asked = {**due, **self._asked}

    # -- time ------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        deadlines = []
        for asked in self._asked.values():
            deadlines.append(max(asked.due_ns, self._resumes_ns))
            break
        for asked in self._detached.values():
            deadlines.append(asked.due_ns)
            break
        return min(deadlines, default=None)

    def keep_time(self, now_ns: int) -> None:
        if self._asked and now_ns >= self._resumes_ns:
            self._repeat(now_ns)
        if self._detached:
            self._review(now_ns)
        if self._fresh:
            _move(self._fresh, self._asked, now_ns + self._interval_ns)
        if self._heard:
            _move(self._heard, self._detached, now_ns + self._reviewed_ns)

    def _repeat(self, now_ns: int) -> None:
        due: list[Key] = []
        for key, asked in self._asked.items():
            if asked.due_ns > now_ns:
                break
            if len(due) == _AT_ONCE:
                self._resumes_ns = now_ns + _MOMENT_NS
                break
            due.append(key)
        for key in due:
            asked = self._asked.pop(key)
            asked.due_ns = now_ns + self._interval_ns
            self._asked[key] = asked
            self._outbox.do(SendToPrimary(asked.channel, asked.message))

    def _review(self, now_ns: int) -> None:
        """Ask now and then whether a detached session is still one: it may have expired meanwhile."""
        due: list[Key] = []
        for key, asked in self._detached.items():
            if asked.due_ns > now_ns or len(due) == _AT_ONCE:
                break
            due.append(key)
        for key in due:
            self._ask(key, self._detached.pop(key))


def _move(fresh: dict[Key, _Request], known: dict[Key, _Request], due_ns: int) -> None:
    for key, asked in fresh.items():
        asked.due_ns = due_ns
        known[key] = asked
    fresh.clear()
