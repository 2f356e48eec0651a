"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from antiphon.client.aio.block import Block, Duration, Once, timeout_s
from antiphon.client.aio.consumer import Consumer, Intake, Start
from antiphon.client.aio.producer import Producer
from antiphon.client.aio.ranges import browse
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.transactions import ATTEMPTS, SessionTransactions, run, transaction
from antiphon.client.core.outcomes import subscription_error
from antiphon.errors import LocalError
from antiphon.message import Message
from antiphon.names import check_subscription_name, parse_destination
from antiphon.wire.commands import Unsubscribe
from antiphon.wire.frames import SubscriptionFound

T = TypeVar("T")


class Session(Block):
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
        """How messages are acknowledged: "auto", "client", "individual", "dups_ok" or "transacted"."""
        return self._scope.ack_mode.name.lower()

    @property
    def closed(self) -> bool:
        """Was the session closed, or can it not go on? A session that was away for minutes expires."""
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
        create: bool = True,
    ) -> Consumer:
        """A consumer of the messages of a destination.

        At most `prefetch` messages, and about 1 MiB, are sent ahead of those that the application has taken.
        By default that is 32 at first and up to 1,000 as the application takes them, so that workers which
        start one after the other share a backlog. With 0 nothing is sent ahead: each call asks for the
        messages it returns, and other consumers get the rest. A call that ends without a message leaves
        nothing behind: messages on their way go back to their queue as if they had not been delivered.

        A consumer of a topic has a subscription, which ends when the consumer is closed. A `durable`
        subscription has a name, unique for the connection's client id, and stays: messages wait in it until
        it is consumed again or `unsubscribe` ends it. A new subscription begins with the next published
        message, or where `start` says: "earliest" is the first message that is kept, a number is a sequence
        number. A durable subscription that exists goes on where it stands.

        A destination that does not exist is made, unless `create` is False: then DestinationError.

        A consumer that is dropped without being closed gives back the messages it has not handed out, after a
        moment. A call for the same consumer in that moment goes on where it was, so that calls like
        `session.consumer("queue:orders").receive()` may follow each other.

        >>> async with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = await consumer.receive(timeout=1.0)
        >>> consumer = await session.consumer("topic:prices", durable="audit", start="earliest")
        """
        intake = Intake(self._scope, destination, prefetch, durable, start, create=create)
        for dropped in list(self._scope.dropped):
            if isinstance(dropped, Intake) and dropped.options == intake.options and dropped.error is None:
                return Consumer(dropped.taken_over())
        return Consumer(intake)

    def browse(self, destination: str, *, create: bool = True) -> AsyncIterator[Message]:
        """The messages of a queue, or those that a topic keeps, without consuming them.

        They come in their order, also those that consumers have. Messages acknowledged meanwhile are left
        out, messages sent meanwhile come at the end. A destination that does not exist is made, unless
        `create` is False: then DestinationError.

        >>> async for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        parse_destination(destination)
        return browse(self._scope, destination, create=create)

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription; messages that wait in it are lost to it.

        Refused (SubscriptionInUse) while another session consumes it.

        >>> await session.unsubscribe("audit")
        """
        check_subscription_name(name)
        scope = self._scope
        core = await scope.core()
        link = scope.link
        request = link.core.find_subscription(core, name)
        found = await link.call(request, SubscriptionFound, scope.timeout)
        ended = await scope.order(found.channel, Unsubscribe(subscription=found.subscription))
        error = subscription_error(ended)
        if error is not None:
            raise error

    async def commit(self, timeout: Duration | None = None) -> None:
        """Make all messages sent since the last commit visible, and acknowledge all that were received.

        All of it, in every channel; or nothing, and TransactionRolledBack says why: then the received
        messages come again. When the outcome is not known after `timeout` (60 s if not given) this raises
        CommitUncertain; the commit goes on meanwhile, and `commit` again waits for it.

        >>> async with connection.session(transacted=True) as session:
        ...     message = await session.consumer("queue:orders").receive()
        ...     await session.producer("queue:invoices").send(message.body)
        ...     await session.commit()
        """
        await self._transactions("committed").commit(timeout_s(timeout))

    async def rollback(self) -> None:
        """Forget all messages sent since the last commit, and give back all that were received.

        The received messages come again, in their order, and their `delivery_count` is one more. After a
        CommitUncertain this waits for the outcome of that commit; if it was committed after all, LocalError
        says so.

        >>> await session.rollback()
        """
        await self._transactions("rolled back").rollback(timeout_s(None))

    async def recover(self) -> None:
        """Give back all messages that were received and not acknowledged: they come again, in their order.

        For sessions that are not transacted.

        >>> async with connection.session(ack="client") as session:
        ...     message = await session.consumer("queue:orders").receive()
        ...     await session.recover()
        """
        if self._scope.transactions is not None:
            raise LocalError("a transacted session is rolled back, not recovered")
        await self._scope.recover()

    def transaction(self, timeout: Duration | None = None) -> AbstractAsyncContextManager[None]:
        """Commit when the block is done; roll back when an exception leaves it.

        >>> async with session.transaction():
        ...     await producer.send(b"...")
        """
        return transaction(self._transactions("committed"), timeout_s(timeout))

    async def run_transaction(
        self,
        function: Callable[[Session], Awaitable[T]],
        attempts: int = ATTEMPTS,
        timeout: Duration | None = None,
    ) -> T:
        """Call the function, commit, and return what it returned.

        If the transaction is rolled back by a failure, all of this is repeated after a while, `attempts`
        times at most. Any other exception of the function rolls it back, and is raised. So is
        CommitUncertain, which `commit` raises: then the transaction is not repeated, and not rolled back.

        >>> async def move(session):
        ...     message = await consumer.receive()
        ...     await producer.send(message.body)
        >>> await session.run_transaction(move)
        """
        transactions = self._transactions("committed")
        return await run(transactions, lambda: function(self), attempts, timeout_s(timeout))

    async def _give_up(self, timeout: Duration | None = None) -> None:
        """Called by `transaction` when an exception leaves its block."""
        await self._transactions("rolled back").give_up(timeout_s(timeout))

    def _check_transacted(self, done: str) -> None:
        self._transactions(done)

    def _transactions(self, done: str) -> SessionTransactions:
        transactions = self._scope.transactions
        if transactions is None:
            raise LocalError(
                f"only a transacted session is {done}: connection.session(transacted=True); "
                f"this one has ack={self.ack!r}"
            )
        return transactions

    async def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again. Messages of a transaction
        that was not committed are forgotten.

        >>> await session.close()
        """
        await self._closing.get()

    def __repr__(self) -> str:
        return f"<Session ack={self.ack}{' closed' if self.closed else ''}>"

    async def _opened(self) -> Session:
        await self._scope.core()
        return self
