"""Proposals: commands that the primary proposes because time has passed or a consumer has gone.

The fold has no clock. Sessions expire and log time moves by ordered commands that name the primary's term; in
any other term the command is void.
"""

from __future__ import annotations

from antiphon.bus.effects import Alarm
from antiphon.message_manager.delivery.delivery import SeenReturn
from antiphon.message_manager.delivery.log_clock import LogClock
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.state.sessions import Session
from antiphon.wire.commands import (
    NODE_SESSION,
    ExpireSession,
    LogTime,
    Payload,
    Return,
    encode_command,
    kind_of,
)

_NS_PER_MS = 1_000_000


def node_command(payload: Payload) -> Propose:
    command = encode_command(kind_of(payload), NODE_SESSION, 0, 0, 0, payload.encode())
    return Propose(command=command, count=1)


def counted_return(seen: SeenReturn) -> Propose:
    payload = Return(
        destination=seen.destination, subscription=seen.subscription, counted=True, ranges=seen.numbers
    )
    return node_command(payload)


class Proposals:
    __slots__ = (
        "_clock",
        "_detached",
        "_due_ns",
        "_expiry_ns",
        "_interval_ns",
        "_next_time_ns",
        "_term",
        "due_ms",
        "has_traffic",
    )

    def __init__(
        self, *, term: int, now_ns: int, session_expiry_ms: int, log_time_interval_ms: int, clock: LogClock
    ) -> None:
        self._term = term
        self._clock = clock
        clock.begin()
        self._expiry_ns = session_expiry_ms * _NS_PER_MS
        self._interval_ns = log_time_interval_ms * _NS_PER_MS
        self._next_time_ns = now_ns
        # Session -> (row, its generation, when to propose its end), earliest first: all wait equally long.
        self._detached: dict[int, tuple[Session, int, int]] = {}
        # Whether a command other than LOG_TIME was applied since the last proposal of a time.
        self.has_traffic = False
        # The log time at which a message becomes too old to be kept: then time must move, traffic or not.
        self.due_ms: int | None = None
        self._due_ns: int | None = None

    def detached(self, now_ns: int, session: Session) -> None:
        """A repetition does not begin the wait anew."""
        known = self._detached.get(session.id)
        if known is None or known[1] != session.generation:
            self._detached.pop(session.id, None)
            self._detached[session.id] = (session, session.generation, now_ns + self._expiry_ns)

    def attached(self, session: int) -> None:
        self._detached.pop(session, None)

    def next_deadline_ns(self) -> int | None:
        earliest = self._next_time_ns if self.has_traffic else self._due_ns
        for _, _, deadline_ns in self._detached.values():
            return deadline_ns if earliest is None else min(earliest, deadline_ns)
        return earliest

    def flush(self, now_ns: int, wall_ms: int) -> list[Effect]:
        effects: list[Effect] = [self._expire(now_ns, session) for session in self._due(now_ns)]
        if now_ns >= self._next_time_ns and (self.has_traffic or self._is_due(now_ns)):
            self.has_traffic = False
            self._next_time_ns = now_ns + self._interval_ns
            time_ms = self._clock.tell(now_ns, wall_ms)
            if time_ms > self._clock.told_ms:
                effects.append(node_command(LogTime(time_ms=time_ms, term=self._term)))
            if alarm := self._clock.alarm():
                effects.append(Alarm(alarm))
        if self.due_ms is None:
            self._due_ns = None
        else:
            self._due_ns = max(self._next_time_ns, self._clock.when(self.due_ms))
        return effects

    def _is_due(self, now_ns: int) -> bool:
        return self.due_ms is not None and now_ns >= self._clock.when(self.due_ms)

    def _due(self, now_ns: int) -> list[int]:
        due = []
        for session, (_, _, deadline) in self._detached.items():
            if deadline > now_ns:
                break
            due.append(session)
        return due

    def _expire(self, now_ns: int, session: int) -> Propose:
        row, generation, _ = self._detached.pop(session)
        # A proposal that is lost is repeated after the same while.
        self._detached[session] = (row, generation, now_ns + self._expiry_ns)
        pid, pe = row.owner
        expire = ExpireSession(session=session, generation=generation, pid=pid, pe=pe, term=self._term)
        return node_command(expire)
