"""Proposals: commands that the primary proposes because time has passed or a consumer has gone.

The fold has no clock. Sessions and the client ids of lost connections expire, and log time moves, by ordered
commands that name the primary's term; in any other term the command is void.
"""

from __future__ import annotations

from antiphon.bus.effects import Alarm
from antiphon.events import CLOCK_DIFFERS
from antiphon.message_manager.delivery.delivery import (
    DoubtfulNumbers,
    ExpiredNumbers,
    SeenReturn,
    UnwantedNumbers,
)
from antiphon.message_manager.delivery.log_clock import LogClock
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.state.client_ids import Claim
from antiphon.message_manager.state.sessions import Session
from antiphon.wire.commands import (
    NODE_SESSION,
    DropMessages,
    ExpireClientId,
    ExpireMessages,
    ExpireSession,
    LogTime,
    Payload,
    Return,
    SkipMessages,
    encode_command,
    kind_of,
)

_NS_PER_MS = 1_000_000


def node_command(payload: Payload, count: int = 1) -> Propose:
    command = encode_command(kind_of(payload), NODE_SESSION, 0, 0, 0, payload.encode(), count)
    return Propose(command=command, count=count)


def counted_return(seen: SeenReturn) -> Propose:
    payload = Return(
        destination=seen.destination, subscription=seen.subscription, counted=True, ranges=seen.numbers
    )
    return node_command(payload)


def expiry(term: int, expired: ExpiredNumbers) -> Propose:
    """The end of expired messages. Nothing else proposes one."""
    return node_command(ExpireMessages(destination=expired.destination, term=term, ranges=expired.numbers))


def skipping(term: int, unwanted: UnwantedNumbers) -> Propose:
    """The end of messages in a subscription that does not want them. Nothing else proposes one."""
    payload = SkipMessages(subscription=unwanted.subscription, term=term, ranges=unwanted.numbers)
    return node_command(payload)


def removal(term: int, doubtful: DoubtfulNumbers) -> Propose:
    """The end of non-persistent messages that a consumer may have seen."""
    return node_command(
        DropMessages(
            destination=doubtful.destination,
            subscription=doubtful.subscription,
            term=term,
            ranges=doubtful.numbers,
        )
    )


class Proposals:
    __slots__ = (
        "_clock",
        "_detached",
        "_due_ns",
        "_expiry_ns",
        "_interval_ns",
        "_kept_ns",
        "_lost_ids",
        "_next_time_ns",
        "_term",
        "due_ms",
        "has_traffic",
        "waiting_ms",
    )

    def __init__(
        self,
        *,
        term: int,
        now_ns: int,
        session_expiry_ms: int,
        log_time_interval_ms: int,
        clock: LogClock,
        client_id_kept_ms: int = 0,
    ) -> None:
        self._term = term
        self._clock = clock
        clock.begin()
        self._expiry_ns = session_expiry_ms * _NS_PER_MS
        self._interval_ns = log_time_interval_ms * _NS_PER_MS
        self._next_time_ns = now_ns
        # Session -> (row, its generation, when to propose its end), earliest first: all wait equally long.
        self._detached: dict[int, tuple[Session, int, int]] = {}
        # Client ids of lost connections: claim, generation, and when to propose the end; 0 before a flush.
        self._kept_ns = client_id_kept_ms * _NS_PER_MS
        self._lost_ids: dict[str, tuple[Claim, int, int]] = {}
        # Whether a command other than LOG_TIME was applied since the last proposal of a time.
        self.has_traffic = False
        # The log time at which a message becomes too old to be kept: then time must move, traffic or not.
        self.due_ms: int | None = None
        # The log time at which a message expires or may be given out. The primary goes by its own estimate;
        # where log time has to make up for a pause, marks make it faster.
        self.waiting_ms: int | None = None
        self._due_ns: int | None = None

    def detached(self, now_ns: int, session: Session) -> None:
        """A repetition does not begin the wait anew."""
        known = self._detached.get(session.id)
        if known is None or known[1] != session.generation:
            self._detached.pop(session.id, None)
            self._detached[session.id] = (session, session.generation, now_ns + self._expiry_ns)

    def attached(self, session: int) -> None:
        self._detached.pop(session, None)

    def client_id_lost(self, claim: Claim) -> None:
        self._lost_ids[claim.client_id] = claim, claim.generation, 0

    def client_id_kept(self, claim: Claim) -> None:
        """The connection has come back, or the client id is free."""
        self._lost_ids.pop(claim.client_id, None)

    def next_deadline_ns(self) -> int | None:
        earliest = self._next_time_ns if self.has_traffic else self._due_ns
        for _, _, deadline_ns in self._lost_ids.values() if self._lost_ids else ():
            earliest = deadline_ns if earliest is None else min(earliest, deadline_ns)
        for _, _, deadline_ns in self._detached.values():
            return deadline_ns if earliest is None else min(earliest, deadline_ns)
        return earliest

    def flush(self, now_ns: int, wall_ms: int) -> list[Effect]:
        effects: list[Effect] = [self._expire(now_ns, session) for session in self._due(now_ns)]
        if self._lost_ids:
            effects += self._free_client_ids(now_ns)
        if now_ns >= self._next_time_ns and (self.has_traffic or self._is_due(now_ns)):
            self.has_traffic = False
            self._next_time_ns = now_ns + self._interval_ns
            time_ms = self._clock.tell(now_ns, wall_ms)
            if time_ms > self._clock.told_ms:
                effects.append(node_command(LogTime(time_ms=time_ms, term=self._term)))
            if alarm := self._clock.alarm():
                effects.append(Alarm(CLOCK_DIFFERS(problem=alarm)))
        due_ms = self._earliest_ms
        self._due_ns = None if due_ms is None else max(self._next_time_ns, self._clock.when(due_ms))
        return effects

    @property
    def _earliest_ms(self) -> int | None:
        if self.waiting_ms is None:
            return self.due_ms
        return self.waiting_ms if self.due_ms is None else min(self.due_ms, self.waiting_ms)

    def _is_due(self, now_ns: int) -> bool:
        due_ms = self._earliest_ms
        return due_ms is not None and now_ns >= self._clock.when(due_ms)

    def _due(self, now_ns: int) -> list[int]:
        due = []
        for session, (_, _, deadline) in self._detached.items():
            if deadline > now_ns:
                break
            due.append(session)
        return due

    def _free_client_ids(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for client_id, (claim, generation, deadline_ns) in list(self._lost_ids.items()):
            if deadline_ns > now_ns:
                continue
            if deadline_ns:
                expire = ExpireClientId(
                    client_id=client_id, connection=claim.connection, generation=generation, term=self._term
                )
                effects.append(node_command(expire))
            # A proposal that is lost is repeated after the same while.
            self._lost_ids[client_id] = claim, generation, now_ns + self._kept_ns
        return effects

    def _expire(self, now_ns: int, session: int) -> Propose:
        row, generation, _ = self._detached.pop(session)
        # A proposal that is lost is repeated after the same while.
        self._detached[session] = (row, generation, now_ns + self._expiry_ns)
        pid, pe = row.owner
        expire = ExpireSession(session=session, generation=generation, pid=pid, pe=pe, term=self._term)
        return node_command(expire)
