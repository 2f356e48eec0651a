"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from antiphon.blocking.consumer import Consumer, Message
from antiphon.blocking.loop import LoopThread
from antiphon.blocking.producer import Producer
from antiphon.client import session as asynchronous
from antiphon.client.subscribing import Start
from antiphon.errors import AntiphonError
from antiphon.message import MessageView


class Session:
    """Producers and consumers whose commands stay in order; see `antiphon.Session`.

    >>> with connection.session(ack="individual") as session:
    ...     session.producer("queue:orders").send(b"...")
    """

    def __init__(self, loop: LoopThread, session: asynchronous.Session) -> None:
        self._loop = loop
        self._session = session

    @property
    def ack(self) -> str:
        """How messages are acknowledged: "auto", "client", "individual" or "dups_ok"."""
        return self._session.ack

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on? One that was away for minutes expires."""
        return self._session.closed

    def producer(self, destination: str) -> Producer:
        """A producer of messages for a destination such as "queue:orders", open when this returns.

        >>> producer = session.producer("queue:orders")
        """
        producer = self._session.producer(destination)
        self._loop.run(producer.opened())
        return Producer(self._loop, producer)

    def consumer(
        self,
        destination: str,
        prefetch: int | None = None,
        *,
        durable: str | None = None,
        start: Start | None = None,
    ) -> Consumer:
        """A consumer of the messages of a destination, attached when this returns.

        See `antiphon.Session.consumer` for what `prefetch`, `durable` and `start` mean.

        >>> with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = consumer.receive(timeout=1.0)
        """
        consumer = self._session.consumer(destination, prefetch, durable=durable, start=start)
        self._loop.run(consumer.opened())
        return Consumer(self._loop, consumer)

    def browse(self, destination: str) -> Iterator[Message]:
        """The messages of a queue, or what a topic keeps, without consuming them.

        >>> for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        return self._each(self._session.browse(destination))

    def _each(self, messages: AsyncIterator[MessageView]) -> Iterator[Message]:
        async def following() -> MessageView | None:
            return await anext(messages, None)

        while (message := self._loop.run(following())) is not None:
            yield Message.of(message, self._loop)

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription; what waits in it is lost to it.

        >>> session.unsubscribe("audit")
        """
        self._loop.run(self._session.unsubscribe(name))

    def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again.

        >>> session.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._session.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except AntiphonError:
            # What went wrong inside says more than that the end went wrong too.
            if kind is None:
                raise

    def __repr__(self) -> str:
        return repr(self._session)
