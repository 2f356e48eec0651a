"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from antiphon.blocking.block import Block
from antiphon.blocking.consumer import Consumer, Message
from antiphon.blocking.loop import LoopThread
from antiphon.blocking.producer import Producer
from antiphon.client import consumer as asynchronous_consumer
from antiphon.client import session as asynchronous
from antiphon.client.durations import Duration
from antiphon.client.subscribing import Start
from antiphon.client.transactions import ATTEMPTS, pauses
from antiphon.errors import TransactionRolledBack
from antiphon.message import MessageView

T = TypeVar("T")


class Session(Block):
    """Producers and consumers whose commands stay in order; see `antiphon.Session`.

    >>> with connection.session(ack="individual") as session:
    ...     session.producer("queue:orders").send(b"...")
    """

    def __init__(self, loop: LoopThread, session: asynchronous.Session) -> None:
        self._loop = loop
        self._session = session

    @property
    def ack(self) -> str:
        """How messages are acknowledged: "auto", "client", "individual", "dups_ok" or "transacted"."""
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
        self._loop.run(producer._opened())
        return Producer(self._loop, producer)

    def consumer(
        self,
        destination: str,
        prefetch: int | None = None,
        *,
        durable: str | None = None,
        start: Start | None = None,
        create: bool = True,
    ) -> Consumer:
        """A consumer of the messages of a destination, attached when this returns.

        See `antiphon.Session.consumer` for what the options mean.

        >>> with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = consumer.receive(timeout=1.0)
        """

        async def opened() -> asynchronous_consumer.Consumer:
            # In the loop, which knows of consumers that were dropped.
            return await self._session.consumer(
                destination, prefetch, durable=durable, start=start, create=create
            )

        return Consumer(self._loop, self._loop.run(opened()))

    def browse(self, destination: str, *, create: bool = True) -> Iterator[Message]:
        """The messages of a queue, or what a topic keeps, without consuming them.

        >>> for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        return self._each(self._session.browse(destination, create=create))

    def _each(self, messages: AsyncIterator[MessageView]) -> Iterator[Message]:
        async def following() -> MessageView | None:
            return await anext(messages, None)

        while (message := self._loop.run(following())) is not None:
            yield Message._of(message, self._loop)

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription; what waits in it is lost to it.

        >>> session.unsubscribe("audit")
        """
        self._loop.run(self._session.unsubscribe(name))

    # -- transactions ----------------------------------------------------------

    def commit(self, timeout: Duration | None = None) -> None:
        """Make all that was sent since the last commit visible, and acknowledge all that was received.

        See `antiphon.Session.commit`.

        >>> with connection.session(transacted=True) as session:
        ...     message = session.consumer("queue:orders").receive()
        ...     session.producer("queue:invoices").send(message.body)
        ...     session.commit()
        """
        self._loop.run(self._session.commit(timeout))

    def rollback(self) -> None:
        """Forget all that was sent since the last commit, and give back all that was received.

        >>> session.rollback()
        """
        self._loop.run(self._session.rollback())

    def recover(self) -> None:
        """Give back all that was received and not acknowledged, in a session that is not transacted.

        >>> session.recover()
        """
        self._loop.run(self._session.recover())

    @contextmanager
    def transaction(self, timeout: Duration | None = None) -> Iterator[None]:
        """Commit when the block is done; roll back when an exception leaves it.

        >>> with session.transaction():
        ...     producer.send(b"...")
        """
        self._session._check_transacted("committed")
        try:
            yield
        except BaseException:
            if not self._loop.is_over:
                self._loop.run(self._session._give_up(timeout))
            raise
        self.commit(timeout)

    def run_transaction(
        self, function: Callable[[Session], T], attempts: int = ATTEMPTS, timeout: Duration | None = None
    ) -> T:
        """Call the function, commit, and return what it returned; repeat it if that was rolled back.

        See `antiphon.Session.run_transaction`.

        >>> session.run_transaction(lambda session: producer.send(consumer.receive().body))
        """
        for pause in pauses(attempts):
            try:
                with self.transaction(timeout):
                    return function(self)
            except TransactionRolledBack:
                time.sleep(pause)
        with self.transaction(timeout):
            return function(self)

    def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again. What was sent in a
        transaction and not committed is forgotten.

        >>> session.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._session.close())

    def __repr__(self) -> str:
        return repr(self._session)
