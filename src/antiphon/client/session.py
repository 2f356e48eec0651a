"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any

from antiphon.client.browsing import browse
from antiphon.client.consumer import Consumer
from antiphon.client.once import Once
from antiphon.client.producer import Producer
from antiphon.client.scope import SessionScope
from antiphon.client.subscribing import Start, unsubscribe
from antiphon.errors import AntiphonError
from antiphon.message import Message
from antiphon.names import parse_destination


class Session:
    """Producers and consumers whose commands stay in order.

    It opens when it is awaited or entered, or else on first use. Closing it waits until
    everything sent and acknowledged in it is confirmed.

    >>> async with connection.session(ack="individual") as session:
    ...     await session.producer("queue:orders").send(b"...")
    """

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._closing = Once(scope.close)

    @property
    def ack(self) -> str:
        """How messages are acknowledged: "auto", "client", "individual" or "dups_ok"."""
        return self._scope.ack_mode.name.lower()

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on? One that was away for minutes expires."""
        return self._scope.is_over

    def producer(self, destination: str) -> Producer:
        """A producer of messages for a destination such as "queue:orders".

        >>> producer = await session.producer("queue:orders")
        """
        return Producer(self._scope, destination)

    def consumer(
        self,
        destination: str,
        prefetch: int | None = None,
        *,
        durable: str | None = None,
        start: Start | None = None,
    ) -> Consumer:
        """A consumer of the messages of a destination.

        At most `prefetch` messages (1,000 if not given), and about 1 MiB, are sent ahead
        of what the application has taken.

        A consumer of a topic has a subscription, which ends when the consumer is closed. A `durable`
        one has a name, unique for the connection's client id, and stays: messages wait in it until
        somebody consumes it again or `unsubscribe` ends it. A new subscription begins with what is
        published from now on, or where `start` says: "earliest" is the first message that is kept,
        a number is a sequence number. A durable subscription that exists goes on where it stands.

        >>> async with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = await consumer.receive(timeout=1.0)
        >>> consumer = await session.consumer("topic:prices", durable="audit", start="earliest")
        """
        return Consumer(self._scope, destination, prefetch, durable, start)

    def browse(self, destination: str) -> AsyncIterator[Message]:
        """The messages of a queue, or what a topic keeps, without consuming them.

        They come in their order, those in the hands of consumers too. What is acknowledged
        meanwhile is left out, what is sent meanwhile comes at the end.

        >>> async for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        parse_destination(destination)
        return browse(self._scope, destination)

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription; what waits in it is lost to it.

        Refused (SubscriptionInUse) while another session consumes it.

        >>> await session.unsubscribe("audit")
        """
        await unsubscribe(self._scope, name)

    async def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again.

        >>> await session.close()
        """
        await self._closing.get()

    def __await__(self) -> Generator[Any, None, Session]:
        return self.opened().__await__()

    async def __aenter__(self) -> Session:
        return await self.opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AntiphonError:
            # What went wrong inside says more than that the end went wrong too.
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"<Session ack={self.ack}{' closed' if self.closed else ''}>"

    async def opened(self) -> Session:
        """What awaiting it does."""
        await self._scope.core()
        return self
