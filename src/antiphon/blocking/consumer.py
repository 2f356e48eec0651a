"""Consumer: receives the messages of one destination."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType

from antiphon.blocking.block import Block
from antiphon.blocking.loop import LoopThread
from antiphon.client import consumer as asynchronous
from antiphon.client.core_consumer import Span
from antiphon.client.durations import Duration
from antiphon.client.iteration import is_left_normally
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
        messages = self.receive_many(1, timeout)
        return messages[0] if messages else None

    def receive_many(self, n: int, timeout: Duration | None = None) -> list[Message]:
        """The next `n` messages; fewer, perhaps none, when no more came within `timeout`.

        In an auto session they are acknowledged, in the background, when this returns.

        >>> messages = consumer.receive_many(1000, timeout=1.0)
        """
        if not (isinstance(n, int) and n >= 0):
            raise LocalError(f"receive_many takes a number of messages; it was {n!r}")
        spans = self._take(n, timeout)
        self._loop.call(self._intake.given, spans)
        return [Message._of(message, self._loop) for span in spans for message in span.messages()]

    def __iter__(self) -> Iteration:
        """The messages as they come, until the consumer is closed.

        In an auto session a message is acknowledged when the next one is asked for, or when
        the loop is left by `break` or `return`. An exception leaves it unacknowledged.

        >>> for message in consumer:
        ...     print(message.body)
        """
        return Iteration(self, sys._getframe(1).f_code)

    def close(self) -> None:
        """Wait until the acknowledgements are confirmed, then receive nothing more.

        Messages that were received and not acknowledged will be delivered again.

        >>> consumer.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._consumer.close())

    def __repr__(self) -> str:
        return repr(self._consumer)

    # -- for iterations --------------------------------------------------------

    @property
    def _was_closed_here(self) -> bool:
        return self._intake.was_closed_here

    def _take(self, n: int, timeout: Duration | None) -> Sequence[Span]:
        """Messages that are not yet the application's: who is interrupted here has taken none."""
        return self._loop.run(self._intake.take(n, timeout), self._intake.put_back)

    def _given_in_turn(self, span: Span) -> Message:
        self._loop.call(self._intake.given_in_turn, span)
        return Message._of(span.message(), self._loop)

    def _done_with(self, span: Span) -> None:
        if not self._loop.is_over:
            self._loop.call(self._intake.done_with, span)


class Iteration:
    """The messages of a consumer, one by one; `for` makes it. See `antiphon.client.iteration`."""

    __slots__ = ("_consumer", "_function", "_last")

    def __init__(self, consumer: Consumer, function: CodeType) -> None:
        self._consumer = consumer
        self._function = function
        self._last: Span | None = None

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Message:
        self._finish()
        try:
            spans = self._consumer._take(1, None)
        except ConsumerClosed:
            if self._consumer._was_closed_here:
                raise StopIteration from None
            raise
        self._last = spans[0]
        return self._consumer._given_in_turn(spans[0])

    def _finish(self) -> None:
        """The application is done with the last message."""
        if self._last is not None:
            last, self._last = self._last, None
            self._consumer._done_with(last)

    def __del__(self) -> None:
        if self._last is not None and is_left_normally(self._function):
            self._finish()
