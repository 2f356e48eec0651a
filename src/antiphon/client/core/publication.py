"""Gathering: messages on their way to one destination, until they leave as a batch.

A batch is built when it leaves, because only then the number of its first message is known.
A publication nobody waits for any more does not leave: whoever was told that it never
left was told the truth. One that has left cannot be called back, nor a single message of
many; cancelling a send therefore says nothing about its fate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from antiphon.batch import BODY_BYTES_MAX, ROWS_MAX, Batch, BatchBuilder
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.errors import MessageTooLarge
from antiphon.values import PropertyValue
from antiphon.wire.commands import PUBLISH_BATCH_OFFSET, ConfirmItem, publish_buffers
from antiphon.wire.lone import lone_publish_buffers
from antiphon.wire.primitives import Buffer

GATHERED_BYTES_MAX = 256 * 1024
"""A batch of this size costs little more per message than a larger one, and is sooner on its way."""

ROW_BYTES = 8
"""What a plain body takes besides its own bytes, about."""

HEAD_BYTES = 192
"""What stands around a batch in a command, about."""


Bodies: TypeAlias = Sequence[bytes] | BatchBuilder | Batch
"""What travels together: plain bodies, messages of any kind, or columns that lack only their numbers."""


class SendTicket(Protocol):
    """Whoever waits for the fate of a message. An asyncio Future is one."""

    def done(self) -> bool:
        """Does nobody wait any more?"""


class Row(NamedTuple):
    """One message as the application gave it."""

    body: Sendable
    properties: Mapping[str, PropertyValue] | None = None
    priority: int = PRIORITY_DEFAULT
    key: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    persistent: bool = True

    def _add_to(self, builder: BatchBuilder, timestamp_ms: int) -> None:
        """Check the message and put it in."""
        builder.add(
            self.body,
            self.properties,
            timestamp_ms=timestamp_ms,
            priority=self.priority,
            key=self.key,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            type=self.type,
            persistent=self.persistent,
        )


class Departure(NamedTuple):
    """A publication as it leaves: the buffers of its command, the numbers it takes, its size."""

    buffers: list[Buffer]
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    size: int


class Publication:
    """Messages that leave as one command. Its two kinds differ in who waits for them."""

    __slots__ = (
        "command",
        "deadline_ns",
        "destination",
        "first_number",
        "is_settled",
        "listeners",
        "outcomes",
        "settings_version",
        "timestamp_ms",
    )

    def __init__(
        self, *, destination: int, settings_version: int, timestamp_ms: int, deadline_ns: int
    ) -> None:
        self.destination = destination
        self.settings_version = settings_version
        self.timestamp_ms = timestamp_ms
        self.deadline_ns = deadline_ns
        self.first_number = 0  # until it has left
        self.is_settled = False
        self.outcomes: list[ConfirmItem] | None = None
        # What it left as, once its connection or its session is over without an outcome.
        self.command: list[Buffer] | None = None
        # Whoever wants to know when it has the one or the other.
        self.listeners: list[Callable[[], None]] = []

    @property
    def has_left(self) -> bool:
        return self.first_number > 0

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many messages it has."""
        raise NotImplementedError

    @property
    def is_wanted(self) -> bool:
        """Does anybody wait for it?"""
        raise NotImplementedError

    def tell(self) -> None:
        """Its outcomes are known, or never will be."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()

    def build(self, session: int, first_number: int) -> Batch | None:
        """Its batch, now that the first number is known; None when nobody waits for it any more."""
        raise NotImplementedError

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        """Its command, now that it leaves under this number; None when nobody waits for it any more."""
        batch = self.build(session, number)
        if batch is None:
            return None
        buffers = publish_buffers(
            session, generation, number, confirmed_through,
            self.destination, self.settings_version, batch.buffers(), batch.count,
        )  # fmt: skip
        return Departure(buffers, batch.count, PUBLISH_BATCH_OFFSET + batch.byte_size)


class Gathering(Publication):
    """Sends of about the same moment, each with a ticket of its own.

    As long as all are bytes without anything else they are only listed; the first
    other one brings a builder.
    """

    __slots__ = ("_builder", "_is_built", "_plain", "_size", "tickets")

    def __init__(
        self, *, destination: int, settings_version: int, timestamp_ms: int, deadline_ns: int
    ) -> None:
        super().__init__(
            destination=destination,
            settings_version=settings_version,
            timestamp_ms=timestamp_ms,
            deadline_ns=deadline_ns,
        )
        self._plain: list[bytes] = []
        self._builder: BatchBuilder | None = None
        self._is_built = False
        self._size = HEAD_BYTES
        self.tickets: list[SendTicket] = []

    @property
    def size(self) -> int:
        return self._size if self._builder is None else self._builder.byte_size

    @property
    def count(self) -> int:
        return len(self.tickets)

    @property
    def is_wanted(self) -> bool:
        tickets = self.tickets
        if len(tickets) == 1:
            return not tickets[0].done()
        return not all(ticket.done() for ticket in tickets)

    @property
    def is_full(self) -> bool:
        """Must the next message go into another one?"""
        return self._is_built or self.size >= GATHERED_BYTES_MAX or len(self.tickets) >= ROWS_MAX

    def add_plain(self, body: bytes, ticket: SendTicket) -> None:
        """Add bytes without properties or headers."""
        if len(body) > BODY_BYTES_MAX:
            raise MessageTooLarge(
                f"body of {len(body):,} bytes is larger than the {BODY_BYTES_MAX:,} allowed"
            )
        if self._builder is not None:
            self.add(Row(body), ticket)
            return
        self._plain.append(body)
        self._size += len(body) + ROW_BYTES
        self.tickets.append(ticket)

    def add(self, row: Row, ticket: SendTicket) -> None:
        """Add any message; if it may not be sent, this raises and nothing has changed."""
        builder = self._builder
        if builder is None:
            builder = BatchBuilder()
            for body in self._plain:
                builder.add(body, timestamp_ms=self.timestamp_ms)
        row._add_to(builder, self.timestamp_ms)
        self._builder, self._plain = builder, []
        self.tickets.append(ticket)

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        if len(self._plain) != 1:
            return super().leave(session, generation, number, confirmed_through)
        # The way of those who send one message at a time.
        (body,), self._plain = self._plain, []
        self._is_built = True
        if not self.is_wanted:
            return None
        buffers = lone_publish_buffers(
            session, generation, number, confirmed_through,
            self.destination, self.settings_version, self.timestamp_ms, body,
        )  # fmt: skip
        return Departure(buffers, 1, sum(map(len, buffers)))

    def build(self, session: int, first_number: int) -> Batch | None:
        builder, plain = self._builder, self._plain
        self._builder, self._plain = None, []
        self._is_built = True
        if not self.is_wanted:
            return None
        if builder is not None:
            return builder.build(session, first_number)
        return Batch.of_bodies(plain, session, first_number, self.timestamp_ms)


class Chunk(Publication):
    """A part of a `send_many`: bodies that share one ticket, and their fate until one is refused."""

    __slots__ = ("_bodies", "_columns", "_count", "_size", "ticket")

    def __init__(
        self,
        bodies: Bodies,
        size: int,
        ticket: SendTicket,
        *,
        destination: int,
        settings_version: int,
        timestamp_ms: int,
        deadline_ns: int,
    ) -> None:
        super().__init__(
            destination=destination,
            settings_version=settings_version,
            timestamp_ms=timestamp_ms,
            deadline_ns=deadline_ns,
        )
        self._columns = bodies if isinstance(bodies, BatchBuilder | Batch) else None
        self._bodies: Sequence[bytes] = () if isinstance(bodies, BatchBuilder | Batch) else bodies
        self._size = size
        self._count = bodies.count if isinstance(bodies, BatchBuilder | Batch) else len(bodies)
        self.ticket = ticket

    @property
    def size(self) -> int:
        return self._size

    @property
    def count(self) -> int:
        return self._count

    @property
    def is_wanted(self) -> bool:
        return not self.ticket.done()

    def build(self, session: int, first_number: int) -> Batch | None:
        columns, bodies = self._columns, self._bodies
        self._columns, self._bodies = None, ()
        if not self.is_wanted:
            return None
        if isinstance(columns, Batch):
            return columns.numbered(session, first_number)
        if columns is not None:
            return columns.build(session, first_number)
        return Batch.of_bodies(bodies, session, first_number, self.timestamp_ms)


class Deadlines:
    """Publications by the time they were given, in the order of sending: the heads expire first."""

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
        """Does anybody wait for the outcome of a publication?"""
        return any(not p.is_settled for watched in self._watched.values() for p in watched)

    def expire(self, now_ns: int) -> tuple[list[Publication], int | None]:
        """Those whose time is over without an outcome, and when the next time is over."""
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
