"""Producer: sends messages to one destination."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Iterable, Mapping

from antiphon.batch import Batch, BatchBuilder
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.client.aio.block import Block, Duration, Once, seconds, timeout_s
from antiphon.client.aio.resending import send_under_id
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.sending import SendLane, check_plain
from antiphon.client.aio.spanning import SpanningLane
from antiphon.client.aio.transacting import TransactedLane
from antiphon.client.core.publication import Row
from antiphon.client.core.receipts import Receipt, Receipts
from antiphon.errors import InvalidMessage, InvalidName, LocalError, SessionClosed, Timeout
from antiphon.names import parse_destination
from antiphon.values import PropertyValue


class Producer(Block):
    """Sends messages to one destination; `session.producer` makes them.

    >>> producer = session.producer("queue:orders")
    >>> receipt = await producer.send(b"...", properties={"region": "EU"})
    """

    def __init__(self, scope: SessionScope, destination: str) -> None:
        if parse_destination(destination).is_reserved:
            raise InvalidName(f"{destination}: names that begin with _ are the system's own")
        self.destination = destination
        self._scope = scope
        self._opening = Once(self._open_lane)
        self._is_closed = False

    async def send(
        self,
        body: Sendable,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        dedup_id: str | bytes | None = None,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Receipt:
        """Send one message; return when it is stored.

        Sends that are started together travel together: a thousand of them in an `asyncio.gather` cost little
        more than one. When the outcome is not known after `timeout` (60 s if not given) this raises
        PublishUncertain. Cancelling a send does not take the message back.

        Messages of a higher `priority` (0 to 9) come first. A message that was not received `ttl` seconds
        after it was sent expires. With a `delay` it is neither delivered nor browsed before.

        A `message_id` is that of a message whose fate another process, or an earlier life of this one, does
        not know: it is stored once, however often it is sent under its id. The session it was sent in cannot
        go on after that.

        A `dedup_id` (text or up to 255 bytes) is the application's own name for the message: while the
        destination remembers it, a second message with it is not stored, whichever session or process sends
        it. Its receipt says `duplicate`, and has the place of the first.

        With `persistent=False` this returns when the server has taken the message: the receipt has no
        sequence. Such a message is delivered at most once; a later refusal is counted in `session.unstored`.

        In a transacted session it returns when there is room for the message, which the commit stores.

        >>> await producer.send({"total": 12.5}, properties={"region": "EU"}, priority=7)
        <Receipt 12 on a, ID:00000000000000000000000000000007-1@a>
        """
        row: Row | None = None
        if not (
            isinstance(body, bytes)
            and not properties
            and priority == PRIORITY_DEFAULT
            and ttl is delay is None
            and key is correlation_id is reply_to is type is None
            and persistent
            and dedup_id is None
        ):
            headers = (key, correlation_id, reply_to, type)
            row = Row(body, properties, priority, *headers, persistent, ttl, delay, dedup_id)
        if self._opening.result is None:
            # A message that may not be sent should not bring a destination into being either.
            (row or Row(body))._add_to(BatchBuilder(), timestamp_ms=0)
        lane, limit_s = self._ready_lane, timeout_s(timeout)
        if lane is None:
            lane, limit_s = await self._open_within(limit_s)
        plain = body if row is None and isinstance(body, bytes) else None
        if isinstance(lane, TransactedLane) and plain is not None and message_id is None:
            receipt = lane.join(plain)
            if receipt is not None:
                return receipt
        if message_id is not None:
            target = await lane.target_of(message_id, limit_s)
            return await send_under_id(lane.link, target, row or Row(body), message_id, limit_s)
        return await lane.send(plain, row, limit_s)

    @property
    def is_blocked(self) -> bool:
        """Would a send have to wait before it leaves? Because too much is unconfirmed, the server's
        disk is full, or there is no connection at this moment.

        >>> if not producer.is_blocked:
        ...     await producer.send(b"...")
        """
        lane = self._opening.result
        return lane is not None and lane.is_blocked

    async def try_send(
        self,
        body: Sendable,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        dedup_id: str | bytes | None = None,
        timeout: Duration | None = None,
    ) -> Receipt | None:
        """Send one message as `send` does, unless it would have to wait: then None, at once.

        >>> receipt = await producer.try_send(b"...")
        """
        lane = await self._open()
        if lane.would_block(key, dedup_id):
            return None
        return await self.send(
            body,
            properties=properties,
            priority=priority,
            ttl=ttl,
            delay=delay,
            key=key,
            correlation_id=correlation_id,
            reply_to=reply_to,
            type=type,
            persistent=persistent,
            dedup_id=dedup_id,
            timeout=timeout,
        )

    async def unblocked(self, timeout: Duration | None = None) -> None:
        """Return when a send need not wait any more. Without a timeout, wait for it.

        >>> await producer.unblocked(timeout=60)
        """
        lane = await self._open()
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                while lane.is_blocked:
                    await lane.link.news()
                    lane.link.check()
                    lane.core.check()
        except TimeoutError:
            why = lane.core.why_blocked(lane.channel)
            raise Timeout(f"{self.destination} has been blocked for {limit:g} s{why}") from None

    async def send_many(
        self,
        bodies: Iterable[Sendable | Row] | AsyncIterable[Sendable | Row],
        *,
        timeout: Duration | None = None,
    ) -> Receipts:
        """Send many messages; return when all are stored.

        `bodies` is any iterable or async iterable, and may be longer than memory. When
        something goes wrong, nothing after it is sent, and `error.confirmed` says how many
        messages from the start are stored; an iterable that raises is the cause of a PublishRefused.
        `timeout` (60 s if not given) is the time each part has, not all of it.

        >>> receipts = await producer.send_many(line.encode() for line in file)
        >>> len(receipts), receipts[0].sequence
        (10000, 13)
        """
        if isinstance(bodies, bytes | bytearray | memoryview | str | Mapping):
            raise InvalidMessage("send_many takes an iterable of bodies; one message is sent with send")
        check_plain(bodies)
        lane = self._ready_lane or (await self._open_within(timeout_s(timeout)))[0]
        return await lane.send_many(bodies, timeout_s(timeout))

    async def send_batches(
        self, batches: AsyncIterable[Batch], *, timeout: Duration | None = None
    ) -> Receipts:
        """Send messages that are columns already; return when all are stored. Not in a transaction.

        The producer gives the messages their session and numbers, whatever a batch says. Failures are told as
        by `send_many`.

        >>> receipts = await producer.send_batches(columns())
        """
        lane = await self._open()
        return await lane.send_batches(batches, timeout_s(timeout))

    async def close(self) -> None:
        """Send nothing more. Earlier messages are still confirmed to the sends that wait.

        >>> await producer.close()
        """
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<Producer for {self.destination}>"

    async def _opened(self) -> Producer:
        await self._open()
        return self

    async def _open_lane(self) -> SendLane | SpanningLane:
        return await self._scope.open_lane(self.destination)

    @property
    def _transacted_lane(self) -> TransactedLane | None:
        """The lane, if its messages wait for a commit, and nothing is in the way."""
        lane = self._ready_lane
        return lane if isinstance(lane, TransactedLane) else None

    @property
    def _ready_lane(self) -> SendLane | SpanningLane | None:
        """The lane, if nothing at all is in the way; if not, `_open` waits or raises."""
        lane = self._opening.result
        if lane is None or self._is_closed or self._scope.is_closed:
            return None
        return lane if lane.link.error is None and lane.core.error is None else None

    async def _open_within(self, timeout_s: float) -> tuple[SendLane | SpanningLane, float]:
        """The lane, and the rest of a send's time; an error if nothing is left."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                lane = await self._open()
                return lane, max(0.0, timeout_s - (time.monotonic() - began_s))
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise self._scope.unopened(self.destination, timeout_s) from None

    async def _open(self) -> SendLane | SpanningLane:
        """The lane, if sending is possible at all."""
        if self._is_closed:
            raise LocalError("the producer is closed")
        lane = self._opening.result or await self._opening.get()
        if self._scope.is_closed:
            raise SessionClosed("the session is closed")
        lane.link.check()
        lane.core.check()
        return lane
