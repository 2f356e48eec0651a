"""Producer: sends messages to one destination."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from antiphon.batch import Batch
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.blocking.block import Block
from antiphon.blocking.feeding import run_fed
from antiphon.blocking.loop import LoopThread
from antiphon.client import producer as asynchronous
from antiphon.client.core_gathering import Row
from antiphon.client.durations import Duration
from antiphon.client.receipts import Receipt, Receipts
from antiphon.client.transacting import Pack
from antiphon.values import PropertyValue


class Producer(Block):
    """Sends messages to one destination; `session.producer` makes them. See `antiphon.Producer`.

    >>> producer = session.producer("queue:orders")
    >>> receipt = producer.send(b"...", properties={"region": "EU"})
    """

    def __init__(self, loop: LoopThread, producer: asynchronous.Producer) -> None:
        self._loop = loop
        self._producer = producer
        self._pack: Pack | None = None

    @property
    def destination(self) -> str:
        return self._producer.destination

    def send(
        self,
        body: Sendable,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Receipt:
        """Send one message; return when it is stored.

        >>> producer.send({"total": 12.5}, properties={"region": "EU"}, priority=7)
        <Receipt 12 on a, ID:00000000000000000000000000000007-1@a>
        """
        pack = self._pack
        if (
            pack is not None
            and isinstance(body, bytes)
            and not properties
            and key is correlation_id is reply_to is type is message_id is None
            and priority == PRIORITY_DEFAULT
            and persistent
            and not self._loop.is_over
            and (receipt := pack.add(body)) is not None
        ):
            return receipt
        self._pack = None
        sending = self._producer.send(
            body,
            properties=properties,
            priority=priority,
            key=key,
            correlation_id=correlation_id,
            reply_to=reply_to,
            type=type,
            persistent=persistent,
            timeout=timeout,
            message_id=message_id,
        )
        if self._producer._transacted_lane is None:
            return self._loop.run(sending)
        receipt, self._pack = self._loop.run(self._send(sending))
        return receipt

    async def _send(self, sending: Coroutine[Any, Any, Receipt]) -> tuple[Receipt, Pack | None]:
        """In the loop: send this, and let the application gather what it sends next by itself."""
        receipt = await sending
        lane = self._producer._transacted_lane
        pack = lane.lend() if lane is not None else None
        if lane is not None and pack is not None:
            self._loop.lending[lane] = None
        return receipt, pack

    @property
    def is_blocked(self) -> bool:
        """Would a send have to wait before it leaves?"""

        async def look() -> bool:
            return self._producer.is_blocked

        return self._loop.run(look())

    def try_send(
        self,
        body: Sendable,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        timeout: Duration | None = None,
    ) -> Receipt | None:
        """Send one message as `send` does, unless it would have to wait: then None, at once.

        >>> receipt = producer.try_send(b"...")
        """
        sending = self._producer.try_send(
            body,
            properties=properties,
            priority=priority,
            key=key,
            correlation_id=correlation_id,
            reply_to=reply_to,
            type=type,
            persistent=persistent,
            timeout=timeout,
        )
        return self._loop.run(sending)

    def unblocked(self, timeout: Duration | None = None) -> None:
        """Return when a send need not wait any more.

        >>> producer.unblocked(timeout=60)
        """
        self._loop.run(self._producer.unblocked(timeout))

    def send_many(self, bodies: Iterable[Sendable | Row], *, timeout: Duration | None = None) -> Receipts:
        """Send many messages; return when all are stored. `bodies` may be longer than memory.

        They are taken from the iterable in the caller's thread.

        >>> receipts = producer.send_many(line.encode() for line in file)
        """
        return run_fed(self._loop, bodies, lambda rows: self._producer.send_many(rows, timeout=timeout))

    def send_batches(self, batches: Iterable[Batch], *, timeout: Duration | None = None) -> Receipts:
        """Send messages that are columns already; return when all are stored. Not in a transaction.

        >>> receipts = producer.send_batches(columns())
        """
        return run_fed(
            self._loop,
            iter(batches),
            lambda some: self._producer.send_batches(some, timeout=timeout),
            at_once=1,
        )

    def close(self) -> None:
        """Send nothing more.

        >>> producer.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._producer.close())

    def __repr__(self) -> str:
        return repr(self._producer)
