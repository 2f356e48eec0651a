"""The few calls of the blocking face that are more than a call of the asyncio face.

Going to the loop's thread costs as much as twenty messages. So the loop lends the application's thread the
messages that lie ready (`antiphon.client.aio.lots`), and a pack in which a transaction gathers what is sent
(`antiphon.client.aio.transacting`). The rest of the face is generated (`antiphon.blocking.face`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.blocking.loop import Block, LoopThread
from antiphon.client.aio.block import Duration
from antiphon.client.aio.connection import Connection as AsyncConnection
from antiphon.client.aio.consumer import Consumer as AsyncConsumer
from antiphon.client.aio.lots import Lot
from antiphon.client.aio.producer import Producer as AsyncProducer
from antiphon.client.aio.session import Session as AsyncSession
from antiphon.client.aio.transacting import Pack
from antiphon.client.aio.transactions import ATTEMPTS, pauses
from antiphon.client.core.consumer import Span
from antiphon.client.core.receipts import Receipt
from antiphon.errors import ConsumerClosed, LocalError, TransactionRolledBack
from antiphon.message import MessageView
from antiphon.values import PropertyValue

T = TypeVar("T")


class ConnectionByHand(Block[AsyncConnection]):
    """A connection has the thread of its loop."""

    def close(self) -> None:
        """Close the sessions, each of which waits until everything in it is confirmed, then say goodbye.

        >>> connection.close()
        """
        if self._loop.is_over:
            return
        try:
            self._loop.run(self._inner.close())
        finally:
            self._loop.end()


class SessionByHand(Block[AsyncSession]):
    """What a transaction consists of happens in the caller's thread."""

    def run_transaction(
        self, function: Callable[[Self], T], attempts: int = ATTEMPTS, timeout: Duration | None = None
    ) -> T:
        """Call the function, commit, and return what it returned; repeat it if that was rolled back.

        See `antiphon.Session.run_transaction`.

        >>> session.run_transaction(lambda session: producer.send(consumer.receive().body))
        """
        for pause in pauses(attempts):
            try:
                with self._loop.block(self._inner.transaction(timeout)):
                    return function(self)
            except TransactionRolledBack:
                time.sleep(pause)
        with self._loop.block(self._inner.transaction(timeout)):
            return function(self)


class ProducerByHand(Block[AsyncProducer]):
    """Sends of a transaction go to the loop once for many messages."""

    def __init__(self, loop: LoopThread, inner: AsyncProducer) -> None:
        super().__init__(loop, inner)
        self._pack: Pack | None = None

    def send(
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
        """Send one message; return when it is stored. See `antiphon.Producer.send`.

        >>> producer.send({"total": 12.5}, properties={"region": "EU"}, priority=7)
        <Receipt 12 on a, ID:00000000000000000000000000000007-1@a>
        """
        pack = self._pack
        if (
            pack is not None
            and isinstance(body, bytes)
            and not properties
            and ttl is delay is None
            and key is correlation_id is reply_to is type is message_id is dedup_id is None
            and priority == PRIORITY_DEFAULT
            and persistent
            and not self._loop.is_over
            and (receipt := pack.add(body)) is not None
        ):
            return receipt
        self._pack = None
        sending = self._inner.send(
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
            message_id=message_id,
        )
        if self._inner._transacted_lane is None:
            return self._loop.run(sending)
        receipt, self._pack = self._loop.run(self._send(sending))
        return receipt

    async def _send(self, sending: Coroutine[Any, Any, Receipt]) -> tuple[Receipt, Pack | None]:
        """In the loop: send this, and let the application gather what it sends next by itself."""
        receipt = await sending
        lane = self._inner._transacted_lane
        pack = lane.lend() if lane is not None else None
        if lane is not None and pack is not None:
            self._loop.lending[lane] = None
        return receipt, pack


class Message(MessageView):
    """A message as it was delivered; see `antiphon.Message`.

    >>> for message in consumer:
    ...     print(message.sequence, message.body, message.properties)
    ...     message.ack()
    """

    __slots__ = ("_loop",)

    _loop: LoopThread

    @classmethod
    def _of(cls, message: MessageView, loop: LoopThread) -> Message:
        blocking = cls(message._batch, message._row, message._delivery)
        blocking._loop = loop
        return blocking

    def ack(self) -> None:
        """Say that the message is done with; what else that covers is up to the session's mode."""
        acknowledge = self._delivery.acknowledge
        if acknowledge is None:
            raise LocalError("this message was not given by a consumer; there is nothing to acknowledge")
        self._loop.run(acknowledge(self))

    def reject(self) -> None:
        """Say that the message cannot be processed, ever: it goes to the dead queue at once."""
        reject = self._delivery.reject
        if reject is None:
            raise LocalError("this message was not given by a consumer; there is nothing to reject")
        self._loop.run(reject(self))


class ConsumerByHand(Block[AsyncConsumer]):
    """The loop is asked once for many messages."""

    def __init__(self, loop: LoopThread, inner: AsyncConsumer) -> None:
        super().__init__(loop, inner)
        self._intake = inner._intake
        self._lot: Lot | None = None

    def receive(self, timeout: Duration | None = None) -> Message | None:
        """The next message; None when none came within `timeout`. See `antiphon.Consumer.receive`.

        In an auto session the message is acknowledged, in the background, when this returns.

        >>> message = consumer.receive(timeout=1.0)
        """
        lot = self._lot
        if lot is not None and not self._loop.is_over and (place := lot.hand_out()) >= 0:
            message: Message = lot.messages[place]
            return message
        span = self._take_next(timeout)
        if span is None:
            return None
        self._loop.call(self._intake.given, [span])
        return Message._of(span.message(), self._loop)

    def receive_many(self, n: int, timeout: Duration | None = None) -> list[Message]:
        """The next `n` messages; fewer when no more came within `timeout`.

        In an auto session they are acknowledged, in the background, when this returns.

        >>> messages = consumer.receive_many(1000, timeout=1.0)
        """
        if not (isinstance(n, int) and n >= 0):
            raise LocalError(f"receive_many takes a number of messages; it was {n!r}")
        spans = self._loop.run(self._intake.take(n, timeout), self._intake.put_back)
        self._loop.call(self._intake.given, spans)
        return self._messages(spans)

    def __iter__(self) -> Iteration:
        """The messages as they come, until the consumer is closed.

        In an auto session a message is acknowledged when the next one is asked for, by the loop or by
        `receive`, or by `message.ack()`. The message at which a loop is left comes again.

        >>> for message in consumer:
        ...     print(message.body)
        ...     if message.type == "last":
        ...         message.ack()
        ...         break
        """
        return Iteration(self)

    # -- taking ----------------------------------------------------------------

    def _take_next(self, timeout: Duration | None, *, in_turn: bool = False) -> Span | None:
        """The next message, which is not yet the application's: who is interrupted here has taken none.

        What lies behind it the application may then hand out by itself.
        """
        self._lot = None
        span, lot = self._loop.run(self._next(timeout, in_turn), self._undo)
        if lot is not None:
            lot.messages = self._messages(lot.spans)
            self._lot = lot
        return span

    async def _next(self, timeout: Duration | None, in_turn: bool) -> tuple[Span | None, Lot | None]:
        # In the loop.
        spans = await self._intake.take(1, timeout, in_turn=in_turn)
        if not spans:
            return None, None
        lot = self._intake.lend()
        if lot is not None:
            self._loop.lending[self._intake] = None
        return spans[0], lot

    def _undo(self, taken: tuple[Span | None, Lot | None]) -> None:
        span, _ = taken
        if span is not None:
            self._intake.put_back([span])

    def _messages(self, spans: Sequence[Span]) -> list[Message]:
        return [Message._of(message, self._loop) for span in spans for message in span.messages()]


class Iteration:
    """The messages of a consumer, one by one; `for` makes it."""

    __slots__ = ("_consumer", "_intake", "_last", "_loop", "_lot")

    def __init__(self, consumer: ConsumerByHand) -> None:
        self._consumer = consumer
        self._intake = consumer._intake
        self._loop = consumer._loop
        # What the application works on, if anything: a place in the lot, or messages of none.
        self._last: int | Span | None = None
        self._lot: Lot | None = None

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Message:
        lot = self._consumer._lot
        if lot is not None and not self._loop.is_over:
            last = self._last
            if lot is not self._lot or not isinstance(last, int):
                self._finish()
                last = -1
            if (place := lot.hand_out_in_turn(last)) >= 0:
                self._lot, self._last = lot, place
                message: Message = lot.messages[place]
                return message
        self._finish()
        try:
            span = self._consumer._take_next(None, in_turn=True)
        except ConsumerClosed:
            if self._intake.was_closed_here:
                raise StopIteration from None
            raise
        assert span is not None, "a call that waits for ever gets a message"
        self._last = span
        self._loop.call(self._intake.given_in_turn, span)
        return Message._of(span.message(), self._loop)

    def _finish(self) -> None:
        """The application is done with the last message."""
        last, self._last = self._last, None
        if last is None or self._loop.is_over:
            return
        if isinstance(last, Span):
            self._loop.call(self._intake.done_with, last)
        elif self._lot is not None and not self._lot.finish(last):
            self._loop.call(self._intake.finished, self._lot, last)
