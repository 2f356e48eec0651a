"""Consumer: receives the messages of one destination."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.blocking.block import Block
from antiphon.blocking.loop import LoopThread
from antiphon.client import consumer as asynchronous
from antiphon.client.core_consumer import Span
from antiphon.client.durations import Duration
from antiphon.client.lots import Lot
from antiphon.errors import ConsumerClosed, LocalError
from antiphon.message import MessageView


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


class Consumer(Block):
    """Receives the messages of one destination; `session.consumer` makes them. See `antiphon.Consumer`.

    >>> for message in session.consumer("queue:orders"):
    ...     print(message.body, message.properties)
    """

    def __init__(self, loop: LoopThread, consumer: asynchronous.Consumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._intake = consumer._intake
        self._lot: Lot | None = None

    @property
    def destination(self) -> str:
        return self._consumer.destination

    @property
    def closed(self) -> bool:
        """Was it closed, here or by the server?"""
        return self._consumer.closed

    def receive(self, timeout: Duration | None = None) -> Message | None:
        """The next message; None when none came within `timeout`. Without a timeout, wait for it.

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
        """The next `n` messages; fewer, perhaps none, when no more came within `timeout`.

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
        `receive`, or by `message.ack()`. The message at which a loop is left stays unacknowledged and comes
        again, however the loop is left: whoever wants one message more and then leaves says `message.ack()`.

        >>> for message in consumer:
        ...     print(message.body)
        ...     if message.type == "last":
        ...         message.ack()
        ...         break
        """
        return Iteration(self)

    def close(self) -> None:
        """Wait until the acknowledgements are confirmed, then receive nothing more.

        Messages that were received and not acknowledged will be delivered again.

        >>> consumer.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._consumer.close())

    def __repr__(self) -> str:
        return repr(self._consumer)

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

    def __init__(self, consumer: Consumer) -> None:
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
        assert span is not None, "whoever waits for ever gets a message"
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
