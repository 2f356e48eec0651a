"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any

from antiphon.client.consumer import Consumer
from antiphon.client.once import Once
from antiphon.client.producer import Producer
from antiphon.client.scope import SessionScope
from antiphon.errors import AntiphonError


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
        """How messages are acknowledged: "auto", "client" or "individual"."""
        return self._scope.ack_mode.name.lower()

    @property
    def closed(self) -> bool:
        return self._scope.is_closed

    def producer(self, destination: str) -> Producer:
        """A producer of messages for a destination such as "queue:orders".

        >>> producer = await session.producer("queue:orders")
        """
        return Producer(self._scope, destination)

    def consumer(self, destination: str, prefetch: int | None = None) -> Consumer:
        """A consumer of the messages of a destination.

        At most `prefetch` messages (1,000 if not given), and about 1 MiB, are sent ahead
        of what the application has taken.

        >>> async with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = await consumer.receive(timeout=1.0)
        """
        return Consumer(self._scope, destination, prefetch)

    async def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again.

        >>> await session.close()
        """
        await self._closing.get()

    def __await__(self) -> Generator[Any, None, Session]:
        return self._opened().__await__()

    async def __aenter__(self) -> Session:
        return await self._opened()

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

    async def _opened(self) -> Session:
        await self._scope.core()
        return self
