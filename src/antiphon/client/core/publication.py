"""Publication: messages on their way to one destination, until they leave as a batch.

A batch is built when it leaves, because only then the number of its first message is known. An abandoned
publication does not leave: its sender was told that it never left. A publication that has left cannot be
called back, nor a single message of many; cancelling a send therefore says nothing about its outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from antiphon.batch import BODY_BYTES_MAX, ROWS_MAX, Batch, BatchBuilder
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import IDENTIFIED_ROWS_MAX, PRIORITY_DEFAULT
from antiphon.errors import InvalidMessage, MessageTooLarge
from antiphon.ids import I64_MAX
from antiphon.values import PropertyValue
from antiphon.wire.commands import PUBLISH_BATCH_OFFSET, ConfirmItem, publish_buffers
from antiphon.wire.lone import lone_publish_buffers
from antiphon.wire.primitives import Buffer

# Past the constructor of a NamedTuple: there is one for every lone message.
_new: Final = tuple.__new__

GATHERED_BYTES_MAX = 256 * 1024
"""A batch of this size costs little more per message than a larger one, and is sooner on its way."""

ROW_BYTES = 8
"""The bytes that a plain body takes besides its own, about."""

HEAD_BYTES = 192
"""The bytes around a batch in a command, about."""

SECONDS_MAX: Final = I64_MAX // 10_000
"""The longest `ttl` and `delay`: added to the time of sending, in ms, it is still a number of 64 bits."""

Bodies: TypeAlias = list[bytes] | BatchBuilder | Batch
"""Bodies that travel together: plain ones, messages of any kind, or columns that lack only their numbers."""


class SendTicket(Protocol):
    """A sender that waits for the outcome of a message. An asyncio Future is one."""

    def done(self) -> bool:
        """Does the sender wait no more?"""


class FateTicket(SendTicket, Protocol):
    """A waiter for an outcome. An asyncio Future is one."""

    def set_result(self, result: None, /) -> None:
        """The outcome is known."""


def wake(waiting: Iterable[FateTicket]) -> None:
    for ticket in waiting:
        if not ticket.done():
            ticket.set_result(None)


class Row(NamedTuple):
    """One message as the application gave it; `ttl` and `delay` count from the time of sending."""

    body: Sendable
    properties: Mapping[str, PropertyValue] | None = None
    priority: int = PRIORITY_DEFAULT
    key: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    persistent: bool = True
    ttl: float | timedelta | None = None
    delay: float | timedelta | None = None
    dedup_id: str | bytes | None = None

    def _add_to(self, builder: BatchBuilder, timestamp_ms: int) -> None:
        builder.add(
            self.body,
            self.properties,
            timestamp_ms=timestamp_ms,
            priority=self.priority,
            expires_ms=0 if self.ttl is None else timestamp_ms + _milliseconds(self.ttl, "ttl", 1),
            deliver_at_ms=timestamp_ms + _milliseconds(self.delay, "delay", 0) if self.delay else 0,
            key=self.key,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            type=self.type,
            persistent=self.persistent,
            dedup_id=self.dedup_id,
        )


def _milliseconds(value: float | timedelta, what: str, least: int) -> int:
    """A duration, rounded up to whole milliseconds; raises InvalidMessage if it cannot be one."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= SECONDS_MAX:
        allowed = f"{'more than 0' if least else '0'} to {SECONDS_MAX:,} s"
        raise InvalidMessage(f"{what} is a number of seconds or a timedelta, {allowed}; it was {value!r}")
    milliseconds = -int(-given * 1000 // 1)
    if milliseconds < least:
        raise InvalidMessage(f"{what} is more than 0 seconds; without one the message never expires")
    return milliseconds


class Departure(NamedTuple):
    """A publication as it leaves: the buffers of its command, its count of numbers, its size."""

    buffers: list[Buffer]
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    size: int


class Publication:
    """Messages that leave as one command, with one ticket for all of them, or one for each.

    Plain bodies are only listed; the first other message brings a builder.
    """

    __slots__ = (
        "_columns",
        "_is_built",
        "_plain",
        "command",
        "count",
        "deadline_ns",
        "destination",
        "first_number",
        "has_ids",
        "is_settled",
        "is_taken",
        "outcomes",
        "settings_version",
        "size",
        "tickets",
        "timestamp_ms",
        "waiting",
    )

    def __init__(
        self,
        bodies: Bodies | None = None,
        size: int = HEAD_BYTES,
        ticket: SendTicket | None = None,
        *,
        destination: int,
        settings_version: int,
        timestamp_ms: int,
        deadline_ns: int,
    ) -> None:
        self.destination = destination
        self.settings_version = settings_version
        self.timestamp_ms = timestamp_ms
        self.deadline_ns = deadline_ns
        self._plain: list[bytes] = []
        self._columns: BatchBuilder | Batch | None = None
        self.count = 0
        self.size = size
        """Its bytes, about."""
        self.tickets: list[Any] = [] if ticket is None else [ticket]
        if bodies is None:
            pass  # they are added one by one
        elif isinstance(bodies, list):
            self._plain, self.count = bodies, len(bodies)
        else:
            self._columns, self.count = bodies, bodies.count
        self._is_built = False
        self.first_number = 0  # until it has left
        self.is_settled = False
        # Has the server taken these non-persistent messages? Then their senders wait no more.
        self.is_taken = False
        # Has any message an id of the application?
        self.has_ids = False
        self.outcomes: list[ConfirmItem] | None = None
        # The sent command, once its connection or its session is over without an outcome.
        self.command: list[Buffer] | None = None
        # Waiters for the outcome, or for that.
        self.waiting: list[FateTicket] = []

    @property
    def has_left(self) -> bool:
        return self.first_number > 0

    @property
    def is_wanted(self) -> bool:
        """Does a sender wait for it, or for the session's end?"""
        if self.is_taken:
            return True
        tickets = self.tickets
        if len(tickets) == 1:
            return not tickets[0].done()
        return any(not ticket.done() for ticket in tickets)

    @property
    def is_full(self) -> bool:
        """Must the next message go into another publication?"""
        rows_max = IDENTIFIED_ROWS_MAX if self.has_ids else ROWS_MAX
        return self._is_built or self.size >= GATHERED_BYTES_MAX or self.count >= rows_max

    def has_room_for(self, row: Row | None) -> bool:
        """May this message, or a plain body, go into this publication?"""
        has_id = row is not None and row.dedup_id is not None
        return not self.is_full and (not has_id or self.count < IDENTIFIED_ROWS_MAX)

    def add_plain(self, body: bytes, ticket: SendTicket | None = None) -> None:
        """Add bytes without properties or headers."""
        if len(body) > BODY_BYTES_MAX:
            raise MessageTooLarge(
                f"body of {len(body):,} bytes is larger than the {BODY_BYTES_MAX:,} allowed"
            )
        if self._columns is not None:
            self.add(Row(body), ticket)
            return
        self._plain.append(body)
        self.size += len(body) + ROW_BYTES
        self.count += 1
        if ticket is not None:
            self.tickets.append(ticket)

    def add(self, row: Row, ticket: SendTicket | None = None) -> None:
        """Add any message; raises, with nothing changed, if the message may not be sent."""
        builder = self._columns
        if builder is None:
            builder = BatchBuilder()
            for body in self._plain:
                builder.add(body, timestamp_ms=self.timestamp_ms)
        assert isinstance(builder, BatchBuilder), "columns that are whole take no more messages"
        row._add_to(builder, self.timestamp_ms)
        self._columns, self._plain = builder, []
        self.size = builder.byte_size
        self.count += 1
        self.has_ids = self.has_ids or row.dedup_id is not None
        if ticket is not None:
            self.tickets.append(ticket)

    def tell(self) -> None:
        """The outcomes are known, or never will be."""
        waiting, self.waiting = self.waiting, []
        wake(waiting)

    def build(self, session: int, first_number: int) -> Batch | None:
        """The batch, now that the first number is known; None for an abandoned publication."""
        columns, plain = self._columns, self._plain
        self._columns, self._plain = None, []
        self._is_built = True
        if not self.is_wanted:
            return None
        if columns is None:
            return Batch.of_bodies(plain, session, first_number, self.timestamp_ms)
        if isinstance(columns, Batch):
            return columns.numbered(session, first_number)
        return columns.build(session, first_number)

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        """The command, now that it leaves under this number; None for an abandoned publication."""
        if self.count == 1 and self._plain:
            return self._leave_alone(session, generation, number, confirmed_through)
        return self._leave_together(session, generation, number, confirmed_through)

    def _leave_together(
        self, session: int, generation: int, number: int, confirmed_through: int
    ) -> Departure | None:
        batch = self.build(session, number)
        if batch is None:
            return None
        buffers = publish_buffers(
            session, generation, number, confirmed_through,
            self.destination, self.settings_version, batch.buffers(), batch.count,
        )  # fmt: skip
        return Departure(buffers, batch.count, PUBLISH_BATCH_OFFSET + batch.byte_size)

    def _leave_alone(
        self, session: int, generation: int, number: int, confirmed_through: int
    ) -> Departure | None:
        """The command of a single body, in one go: the way of lone messages."""
        (body,), self._plain = self._plain, []
        self._is_built = True
        if not self.is_wanted:
            return None
        buffers, size = lone_publish_buffers(
            session, generation, number, confirmed_through,
            self.destination, self.settings_version, self.timestamp_ms, body,
        )  # fmt: skip
        return _new(Departure, (buffers, 1, size))


class Deadlines:
    """Publications by their time limit, in the order of sending: the heads expire first."""

    __slots__ = ("_watched",)

    def __init__(self) -> None:
        self._watched: dict[int, deque[Publication]] = {}

    def watch(self, publication: Publication, timeout_ns: int) -> None:
        watched = self._watched.get(timeout_ns)
        if watched is None:
            watched = self._watched[timeout_ns] = deque()
        while watched and watched[0].is_settled:
            watched.popleft()
        watched.append(publication)

    @property
    def is_awaited(self) -> bool:
        return any(not p.is_settled for watched in self._watched.values() for p in watched)

    def expire(self, now_ns: int) -> tuple[list[Publication], int | None]:
        """The publications whose time is over without an outcome, and the next such time."""
        expired: list[Publication] = []
        next_ns: int | None = None
        for timeout_ns, watched in list(self._watched.items()):
            while watched and (watched[0].is_settled or watched[0].deadline_ns <= now_ns):
                publication = watched.popleft()
                if not publication.is_settled:
                    expired.append(publication)
            if not watched:
                del self._watched[timeout_ns]
            elif next_ns is None or watched[0].deadline_ns < next_ns:
                next_ns = watched[0].deadline_ns
        return expired, next_ns

    def clear(self) -> None:
        self._watched.clear()
