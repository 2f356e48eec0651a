"""Session: an ordered stream of sends and acknowledgements inside a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.client.aio.block import Block, Duration, Once, timeout_s
from antiphon.client.aio.consumer import Consumer, Intake
from antiphon.client.aio.merging import MergedIntake, browse_merged, check_channel
from antiphon.client.aio.producer import Producer
from antiphon.client.aio.ranges import browse
from antiphon.client.aio.requesting import KeptProducers, Requester
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.subscribing import Start, SubscriptionWish, consumed_name, end_subscription
from antiphon.client.aio.temporaries import delete_temporary, make_temporary
from antiphon.client.aio.transactions import ATTEMPTS, SessionTransactions, run, transaction
from antiphon.client.core.receipts import Receipt
from antiphon.errors import LocalError
from antiphon.message import Message, MessageView
from antiphon.names import Match, check_stored, check_subscription_name, parse_destination
from antiphon.selectors import compile_selector
from antiphon.values import PropertyValue

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
        self._producers = KeptProducers(scope)
        self._requester = Requester(scope, self._producers)
        self._closing = Once(self._close)

    @property
    def ack(self) -> str:
        """How messages are acknowledged: "auto", "client", "individual", "dups_ok" or "transacted"."""
        return self._scope.ack_mode.name.lower()

    @property
    def closed(self) -> bool:
        """Was the session closed, or can it not go on? A session that was away for minutes expires."""
        return self._scope.is_over

    @property
    def unstored(self) -> int:
        """How many non-persistent messages, whose `send` had returned, were refused or may be lost so far.

        >>> if session.unstored:
        ...     print("some messages did not get there; the log says why")
        """
        core = self._scope.opened_core
        return 0 if core is None else core.unstored

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
        selector: str | None = None,
        durable: str | None = None,
        shared: str | bool = False,
        no_local: bool = False,
        start: Start | None = None,
        match: Match | None = None,
        create: bool = True,
        channel: str = "",
    ) -> Consumer:
        """A consumer of the messages of a destination.

        At most `prefetch` messages, and about 1 MiB, are sent ahead of those that the application has taken.
        By default that is 32 at first and up to 1,000 as the application takes them, so that workers which
        start one after the other share a backlog. With 0 nothing is sent ahead: each call asks for the
        messages it returns, and a call that ends without a message leaves nothing behind.

        A consumer of a topic has a subscription, which ends when the consumer is closed. A `durable`
        subscription has a name, unique for the connection's client id, and stays: messages wait in it until
        it is consumed again or `unsubscribe` ends it. It has one consumer at a time. A new subscription
        begins with the next published message, or where `start` says: "earliest" is the first that is kept, a
        number is a sequence number (of each channel: {"a": 1, "b": 8}). One that exists goes on where it is.
        With `no_local` messages of the own connection are left out; of a durable one, those of its client id.

        Several consumers share a subscription as they share a queue, in any sessions and connections:
        `shared="workers"` ends with the last of them, `durable="audit", shared=True` stays. Consumers share
        it if their connections have the same client id, or none.

        With a `selector` only the messages that match it come; those of a queue that do not stay for other
        consumers. All consumers of a subscription have its topic and its selector. A durable subscription
        that had others begins anew, or SubscriptionInUse while a consumer has it.

        With `match` the name is a pattern of topics: those that match are consumed as one, also those that
        are made later, each from its first message on. In a "glob" `*` and `?` stand for any characters, dots
        included; a "regex" is one of RE2. The whole name must match, without its "topic:".

        A destination that does not exist is made, unless `create` is False: then DestinationError. Every
        channel has a part of "queue:_DMQ", the dead messages, of "topic:_LOG", the events, and of a pattern:
        the parts are consumed as one, or that of one `channel`. A message's `channel` says where it is from.

        >>> async with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = await consumer.receive(timeout=1.0)
        >>> consumer = await session.consumer("topic:prices", durable="audit", start="earliest")
        >>> urgent = session.consumer("queue:orders", selector="region = 'EU' AND JMSPriority >= 7")
        >>> everything = session.consumer("topic:prices.*", match="glob")
        """
        text = compile_selector(selector).text
        name = consumed_name(destination, match)
        check_channel(name, channel)
        wish = SubscriptionWish(name, durable, shared, start, text, no_local)

        def intake(channel: str) -> Intake:
            """The whole consumer, or its part in one channel."""
            may_create = create or name.is_family
            made = Intake(self._scope, str(name), prefetch, wish, create=may_create, channel=channel)
            for dropped in list(self._scope.dropped):
                if isinstance(dropped, Intake) and dropped.options == made.options and dropped.error is None:
                    return dropped.taken_over()
            return made

        if channel or not name.has_parts:
            return self._consumer(str(name), intake, channel)
        is_named, is_family = bool(wish.name), name.is_family
        return Consumer(
            MergedIntake(self._scope, destination, intake, is_named=is_named, is_family=is_family)
        )

    def _consumer(self, destination: str, intake: Callable[[str], Intake], channel: str) -> Consumer:
        """A consumer; when it is opened, or before, the session knows whether that takes several parts."""

        def merged(channels: tuple[str, ...]) -> MergedIntake:
            self._scope.spanning[destination] = channels
            return MergedIntake(self._scope, destination, intake, channels)

        channels = self._scope.spanning.get(destination)
        return Consumer(intake(channel), merged) if channels is None else Consumer(merged(channels))

    def browse(
        self, destination: str, *, selector: str | None = None, create: bool = True, channel: str = ""
    ) -> AsyncIterator[Message]:
        """The messages of a queue, or those that a topic keeps, without consuming them.

        They come in their order, also those that consumers have. Messages acknowledged meanwhile are left
        out, messages sent meanwhile come at the end. With a `selector` only those that match come; the client
        chooses them, so that all of them travel. A destination that does not exist is made, unless
        `create` is False: then DestinationError. Of dead messages ("queue:_DMQ") and events ("topic:_LOG")
        `channel` names the channel whose are to be seen; without it those of one channel come after those of
        another.

        >>> async for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        matches = compile_selector(selector)
        name = parse_destination(destination)
        check_stored(name)
        check_channel(name, channel)
        if name.has_parts and not channel:
            return browse_merged(self._scope, destination, matches, create=create)
        return browse(self._scope, destination, matches, create=create, channel=channel)

    async def temporary_queue(self) -> str:
        """Make a queue that lives with this session; returns its name, such as "queue:_TEMP.a.4711".

        Anybody may send to it, by its name. Only sessions of this connection consume it or delete it. It goes
        with the session, with what is in it: when that is closed, or expires because there was no connection
        for too long. A session that goes on with another server keeps it.

        >>> replies = await session.temporary_queue()
        >>> await session.producer("queue:quotes").send(b"ACME?", reply_to=replies)
        >>> answer = await session.consumer(replies).receive(timeout=5)
        """
        return await make_temporary(self._scope, "queue")

    async def temporary_topic(self) -> str:
        """Make a topic that lives with this session; returns its name. See `temporary_queue`.

        >>> news = await session.temporary_topic()
        """
        return await make_temporary(self._scope, "topic")

    async def delete_temporary(self, name: str) -> None:
        """Delete a temporary queue or topic of this connection before its session ends.

        DestinationInUse while a consumer has it. Later sends to it are refused.

        >>> await session.delete_temporary(replies)
        """
        await delete_temporary(self._scope, name)

    async def request(
        self,
        destination: str,
        body: Sendable,
        *,
        timeout: Duration | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        ttl: Duration | None = None,
        key: str | None = None,
        type: str | None = None,
        persistent: bool = True,
    ) -> Message:
        """Send a message and return the reply to it; Timeout when none came within `timeout` (60 s).

        The reply is the first message with this request's `correlation_id` that comes to its `reply_to`: the
        other side sends it with `session.reply`. Many requests may wait at the same time; they share one
        temporary queue. A reply that comes too late is dropped. Not in a transacted session.

        >>> reply = await session.request("queue:quotes", b"ACME?", timeout=5)
        >>> print(reply.body)
        """
        return await self._requester.request(
            destination,
            body,
            timeout_s(timeout),
            {
                "properties": properties,
                "priority": priority,
                "ttl": ttl,
                "key": key,
                "type": type,
                "persistent": persistent,
            },
        )

    async def reply(
        self,
        message: MessageView,
        body: Sendable,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        priority: int = PRIORITY_DEFAULT,
        ttl: Duration | None = None,
        type: str | None = None,
        persistent: bool = True,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Reply to a message: send to its `reply_to`, under its `correlation_id` or else its `message_id`.

        When the application that asked is gone, DestinationError or PublishRefused says so. In a transacted
        session the reply leaves with the commit.

        >>> async for message in session.consumer("queue:quotes"):
        ...     await session.reply(message, {"price": 17.25})
        """
        return await self._producers.reply(
            message,
            body,
            properties=properties,
            priority=priority,
            ttl=ttl,
            type=type,
            persistent=persistent,
            timeout=timeout,
        )

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription; messages that wait in it are lost to it.

        Refused (SubscriptionInUse) while a consumer has it, or a transaction some of its messages.

        >>> await session.unsubscribe("audit")
        """
        check_subscription_name(name)
        await end_subscription(self._scope, name)

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

    async def _close(self) -> None:
        try:
            await self._requester.close()
        finally:
            await self._scope.close()

    def __repr__(self) -> str:
        return f"<Session ack={self.ack}{' closed' if self.closed else ''}>"

    async def _opened(self) -> Session:
        await self._scope.core()
        return self
