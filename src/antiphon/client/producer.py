"""Producer: sends messages to one destination."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any

from antiphon.batch import BatchBuilder
from antiphon.batch.bodies import Body
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.client.core_gathering import Row
from antiphon.client.durations import Duration, seconds
from antiphon.client.once import Once
from antiphon.client.publications import Route, Sends
from antiphon.client.receipts import Receipt, Receipts
from antiphon.client.scope import SessionScope
from antiphon.client.sending import Sending, check_plain
from antiphon.errors import InvalidMessage, InvalidName, LocalError, SessionClosed
from antiphon.names import parse_destination
from antiphon.values import PropertyValue

TIMEOUT_DEFAULT_S = 60.0

AGE_SHARE = 16
"""What travels together expires together. So messages join others only while those are young: no older
than a sixteenth of the time they have."""


class Producer:
    """Sends messages to one destination; `session.producer` makes them.

    >>> producer = session.producer("queue:orders")
    >>> receipt = await producer.send(b"...", properties={"region": "EU"})
    """

    def __init__(self, scope: SessionScope, destination: str) -> None:
        if parse_destination(destination).is_reserved:
            raise InvalidName(f"{destination}: names that begin with _ are the system's own")
        self.destination = destination
        self._scope = scope
        self._opening = Once(self._open)
        self._route: Route | None = None
        self._sends: Sends | None = None
        self._is_closed = False

    async def send(
        self,
        body: Body | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Send one message; return when it is stored.

        Sends that are started together travel together: a thousand of them in an
        `asyncio.gather` cost little more than one. When the outcome is not known after
        `timeout` (60 s if not given) this raises PublishUncertain. Cancelling a send does
        not take the message back.

        >>> await producer.send({"total": 12.5}, properties={"region": "EU"}, priority=7)
        <Receipt 12 on a, ID:00000000000000000000000000000007-1@a>
        """
        row: Row | None = None
        if not (
            isinstance(body, bytes)
            and not properties
            and priority == PRIORITY_DEFAULT
            and key is None
            and correlation_id is None
            and reply_to is None
            and type is None
            and persistent
        ):
            row = Row(body, properties, priority, key, correlation_id, reply_to, type, persistent)
        route = self._route
        if route is None:
            # What may not be sent should not bring a destination into being either.
            (row or Row(body)).add_to(BatchBuilder(), timestamp_ms=0)
            route = await self._opening.get()
        sends = self._gather(route, timeout)
        ticket: asyncio.Future[Receipt] = route.link.loop.create_future()
        if row is None:
            assert isinstance(body, bytes), "only bytes are plain"
            sends.add_plain(body, ticket)
        else:
            sends.add(row, ticket)
        return await ticket

    async def send_many(
        self, bodies: Iterable[Body] | AsyncIterable[Body], *, timeout: Duration | None = None
    ) -> Receipts:
        """Send many messages; return when all are stored.

        `bodies` is any iterable or async iterable, and may be longer than memory. When
        something goes wrong, nothing after it is sent, and `error.confirmed` says how many
        messages from the start are stored. `timeout` (60 s if not given) is the time each
        part has, not all of it.

        >>> receipts = await producer.send_many(line.encode() for line in file)
        >>> len(receipts), receipts[0].sequence
        (10000, 13)
        """
        if isinstance(bodies, bytes | bytearray | memoryview | str | Mapping):
            raise InvalidMessage("send_many takes an iterable of bodies; one message is sent with send")
        check_plain(bodies)
        route = self._route or await self._opening.get()
        self._check_open(route)
        self._submit()  # what was sent before comes before
        return await Sending(route, _timeout_s(timeout)).send(bodies)

    async def close(self) -> None:
        """Send nothing more. What was sent is still confirmed to those who wait for it.

        >>> await producer.close()
        """
        self._is_closed = True
        self._scope.parts.pop(self, None)
        self._submit()

    def __await__(self) -> Generator[Any, None, Producer]:
        return self._opened().__await__()

    async def __aenter__(self) -> Producer:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer for {self.destination}>"

    # -- opening ---------------------------------------------------------------

    async def _opened(self) -> Producer:
        self._check_open(await self._opening.get())
        return self

    async def _open(self) -> Route:
        core = await self._scope.core()
        opened = await self._scope.open_destination(self.destination)
        self._scope.parts[self] = None
        self._route = Route(
            self._scope.link, core, opened.channel, opened.destination, opened.settings_version
        )
        return self._route

    def _check_open(self, route: Route) -> None:
        if self._is_closed:
            raise LocalError("the producer is closed")
        if self._scope.is_closed:
            raise SessionClosed("the session is closed")
        route.link.check()

    # -- gathering -------------------------------------------------------------

    def _gather(self, route: Route, timeout: Duration | None) -> Sends:
        """Where the next message goes: to those that have not left yet, or to new ones."""
        timeout_s = TIMEOUT_DEFAULT_S if timeout is None else _timeout_s(timeout)
        sends = self._sends
        if sends is not None and not sends.is_full and sends.timeout_s == timeout_s:
            age_ns = time.monotonic_ns() - sends.opened_ns
            if not sends.is_submitted or age_ns * AGE_SHARE < timeout_s * 1e9:
                return sends
        self._check_open(route)
        self._submit()
        self._sends = sends = Sends(route, timeout_s)
        route.link.core.watch(sends, int(timeout_s * 1e9))
        route.link.at_tick(self._submit)
        return sends

    def _submit(self) -> None:
        """Hand over what was gathered. While it waits for room it may still grow."""
        sends, route = self._sends, self._route
        if sends is None or sends.is_submitted or route is None:
            return
        sends.is_submitted = True
        if route.link.error is not None:
            sends.lose(route.link.lost())
        elif sends.tickets:
            route.submit(sends)


def _timeout_s(timeout: Duration | None) -> float:
    return TIMEOUT_DEFAULT_S if timeout is None else seconds(timeout, "timeout")
