"""The blocking face: each class of the asyncio face, with calls that wait.

Written by tools/blocking_face.py; edit the asyncio class, and run `make generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from antiphon.batch import Batch
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.blocking.by_hand import ConnectionByHand, ConsumerByHand, Message, ProducerByHand, SessionByHand
from antiphon.blocking.loop import Block, Face, LoopThread, run_fed
from antiphon.client.aio.admin import Admin as AsyncAdmin
from antiphon.client.aio.block import Duration
from antiphon.client.aio.connection import RECONNECT_S, AckName, State
from antiphon.client.aio.connection import connect as connect_asynchronously
from antiphon.client.aio.consumer import Start
from antiphon.client.aio.holds import LIMIT_DEFAULT_S, HoldReport
from antiphon.client.aio.ranges import PAGE_BYTES, Bound, ChannelHead, Match, RangeDestination, RangePage
from antiphon.client.aio.ranges import Ranges as AsyncRanges
from antiphon.client.aio.staging import TIME_LIMIT_S, Committed, StagedPart
from antiphon.client.aio.staging import PartWriter as AsyncPartWriter
from antiphon.client.aio.staging import Staging as AsyncStaging
from antiphon.client.core.publication import Row
from antiphon.client.core.receipts import Receipt, Receipts
from antiphon.values import PropertyValue


class Admin(Face[AsyncAdmin]):
    """Asks the node behind the connection.

    >>> admin = connection.admin()
    >>> admin.status()["channels"]
    """

    def status(self) -> dict[str, Any]:
        """Nodes, channels and how far they are.

        >>> [node["state"] for node in admin.status()["nodes"]]
        ['up']
        """
        return self._loop.run(self._inner.status())

    def destinations(self) -> list[dict[str, Any]]:
        """The destinations with their counts.

        >>> [destination["messages"] for destination in admin.destinations()]
        """
        return self._loop.run(self._inner.destinations())

    def digests(self) -> list[dict[str, Any]]:
        """The digest of every replica's state. Replicas that have applied the same must have the same
        digest.

        >>> {row["digest"] for row in admin.digests() if row["channel"] == "a"}
        """
        return self._loop.run(self._inner.digests())

    def holds(self) -> list[dict[str, Any]]:
        """The named readers for whom messages are kept, with how much that is; see `Ranges.hold`.

        >>> [(hold["name"], hold["rows"]) for hold in admin.holds()]
        """
        return self._loop.run(self._inner.holds())

    def create(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        channel: str | None = None,
    ) -> None:
        """Make a destination. If it exists and is set as asked for, that is fine too.

        A topic keeps what its subscriptions need, and beyond that everything that is younger than
        `retention` (seconds or a timedelta; an hour if not given) as long as it is among the last
        `retention_bytes` (1 GiB). "consumed": nothing beyond. A queue keeps what is not consumed.
        It lives in `channel`, or if that is not given in the one that has least to keep.

        >>> admin.create("topic:prices", retention=timedelta(days=7), retention_bytes=10**10)
        """
        self._loop.run(
            self._inner.create(
                destination, retention=retention, retention_bytes=retention_bytes, channel=channel
            )
        )


class Ranges(Block[AsyncRanges]):
    """Reads what is stored; `connection.ranges` makes them.

    >>> with connection.ranges() as ranges:
    ...     prices = ranges.destinations(["topic:prices"])
    ...     for channel, head in ranges.heads(prices).items():
    ...         for page in ranges.read(channel, head.first, head.next, prices):
    ...             print(page.rows)
    """

    @property
    def versions(self) -> dict[str, int]:
        """Of each channel that was listed, the number of the last change of what exists there."""
        return self._inner.versions

    def destinations(
        self, names: Iterable[str] = (), *, pattern: str | None = None, match: Match = "glob"
    ) -> tuple[RangeDestination, ...]:
        """Where destinations are, by their names or by a pattern for them.

        A missing destination is a DestinationError. A pattern is compared with whole names such as
        `topic:orders.eu`; nothing may match it. Later destinations are found by asking again:
        `head.version` differs from `ranges.versions` of its channel then.

        >>> ranges.destinations(pattern="topic:orders.*")
        (RangeDestination(name='topic:orders.eu', channel='a', id=17, since=0),)
        """
        return self._loop.run(self._inner.destinations(self._loop.taken(names), pattern=pattern, match=match))

    def channels(self) -> tuple[str, ...]:
        """The channels of the system.

        >>> ranges.channels()
        ('a', 'b')
        """
        return self._loop.run(self._inner.channels())

    def cluster(self) -> str:
        """The id of the cluster that answers: numbers mean something only together with it.

        >>> ranges.cluster()
        '7c41f09a5b0e4d2e8a1f6c3d9b507e12'
        """
        return self._loop.run(self._inner.cluster())

    def heads(
        self,
        destinations: Iterable[RangeDestination],
        above: Mapping[str, int] | None = None,
        *,
        wait: Duration = 0,
        channels: Iterable[str] = (),
        acks: bool = False,
    ) -> dict[str, ChannelHead]:
        """The extent of the destinations, by channel; also for `channels` of which none is wanted yet.

        With `wait`, this returns when one of them goes beyond its channel's number in `above`, when the
        destinations of a listed channel have changed, or when so many seconds are over. With `acks`,
        kept acknowledgements count like messages.

        >>> ranges.heads(prices, {"a": 5_000}, wait=0.1)["a"].next
        5012
        """
        return self._loop.run(
            self._inner.heads(
                self._loop.taken(destinations),
                above,
                wait=wait,
                channels=self._loop.taken(channels),
                acks=acks,
            )
        )

    def bound(
        self,
        channel: str,
        destinations: Iterable[RangeDestination],
        start: int,
        stop: int,
        *,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> Bound:
        """The number, `stop` at most, up to which there are at most so many messages, or so many bytes.

        At least one message if only `rows` limit it, and one stored batch if `bytes` do.

        >>> ranges.bound("a", prices, 1, 5_000, rows=100)
        Bound(stop=131, rows=100, bytes=25_600)
        """
        return self._loop.run(
            self._inner.bound(channel, self._loop.taken(destinations), start, stop, rows=rows, bytes=bytes)
        )

    def at_time(self, channel: str, log_time_ms: int) -> int:
        """The number from which on all messages lie that were stored at this time of the channel or later.

        Some of them may be a little older.

        >>> ranges.at_time("a", 1_700_000_000_000)
        5012
        """
        return self._loop.run(self._inner.at_time(channel, log_time_ms))

    def read(
        self,
        channel: str,
        start: int,
        stop: int,
        destinations: Iterable[RangeDestination],
        *,
        allow_lost: bool = False,
        acks: bool = False,
        live: bool = False,
        page_bytes: int = PAGE_BYTES,
    ) -> Iterator[RangePage]:
        """All stored messages of these destinations from number `start` on and below `stop`, page by page.

        Some pages are fetched ahead. A message that is not kept any more is a RangeLost, unless that is
        allowed: then the pages say what they miss. With `acks` they also have the acknowledgements that
        were kept because of a hold that asked for it. With `live`, messages of a queue that only a hold
        keeps are left out: others have consumed them.

        >>> for page in ranges.read("a", 1, 5_000, prices):
        ...     for piece in page.pieces:
        ...         print(piece.first, piece.batch.bodies())
        """
        return self._loop.each(
            self._inner.read(
                channel,
                start,
                stop,
                destinations,
                allow_lost=allow_lost,
                acks=acks,
                live=live,
                page_bytes=page_bytes,
            ),
            lambda one: one,
        )

    def hold(
        self,
        name: str,
        positions: Mapping[str, int],
        destinations: Iterable[RangeDestination],
        *,
        limit: Duration = LIMIT_DEFAULT_S,
        consume: bool = False,
        acks: bool = False,
    ) -> None:
        """Have everything of these destinations kept from `positions` on, which are one for each channel.

        A repeated call under the same name goes on from the new positions. The hold ends `limit` seconds
        after the last call, or when it is released. To `consume` a queue is to be the only reader that
        gets its messages: messages below the position are acknowledged. With `acks`, acknowledgements
        are kept, too.

        >>> ranges.hold("nightly", {"a": 5_000}, prices)
        """
        self._loop.run(
            self._inner.hold(
                name, positions, self._loop.taken(destinations), limit=limit, consume=consume, acks=acks
            )
        )

    def release(self, name: str, channels: Iterable[str] = ()) -> None:
        """End a hold, in these channels or in all.

        >>> ranges.release("nightly")
        """
        self._loop.run(self._inner.release(name, self._loop.taken(channels)))

    def holds(self) -> tuple[HoldReport, ...]:
        """All holds there are, in every channel.

        >>> [(hold.name, hold.rows) for hold in ranges.holds()]
        [('nightly', 120)]
        """
        return self._loop.run(self._inner.holds())

    def close(self) -> None:
        """Read no more. Holds stay.

        >>> ranges.close()
        """
        self._loop.close(self._inner.close)

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._inner.closed


class PartWriter(Block[AsyncPartWriter]):
    """Stages one part, batch by batch, for as many destinations as need be; `staging.writer` makes them.

    A batch is handed over when `write` returns, and stored when `seal` does. Without a `seal` the part
    is dropped at the end of the block.

    >>> with staging.writer() as writer:
    ...     writer.write("queue:alerts", batch)
    ...     part = writer.seal()
    """

    def write(self, destination: str, batch: Batch) -> None:
        """Have the rows of a batch stored without showing them; return when there is room for more.

        The writer gives the rows their producer and numbers, whatever the batch says. If this raises,
        nothing of the part can be committed.

        >>> writer.write("queue:alerts", batch)
        """
        self._loop.run(self._inner.write(destination, batch))

    def seal(self) -> StagedPart:
        """Return when everything is stored: the part, with all that was written.

        >>> part = writer.seal()
        """
        return self._loop.run(self._inner.seal())

    def close(self) -> None:
        """Drop an unsealed part, without waiting.

        >>> writer.close()
        """
        self._loop.close(self._inner.close)


class Staging(Block[AsyncStaging]):
    """Stages, commits and aborts parts of one application; `connection.staging` makes them.

    >>> with connection.staging("nightly-report") as staging:
    ...     part = staging.stage("queue:alerts", [b"a", b"b"])
    ...     staging.commit(7, [part])
    'committed'
    """

    @property
    def application(self) -> str:
        return self._inner.application

    def stage(
        self,
        destination: str,
        bodies: Iterable[Sendable | Row],
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> StagedPart:
        """Store messages without showing them; return when all of them are stored.

        They become visible when their part is committed, and go when it is aborted or when
        `time_limit` is over. Given a `part`, they are added to it, for this destination or another one;
        what is returned stands in its place then. If this raises, nothing of the part can be committed.

        >>> part = staging.stage("queue:alerts", [b"a", antiphon.Row(b"b", priority=7)])
        >>> part = staging.stage("topic:audit", [b"c"], part=part, time_limit=600)
        """
        return run_fed(
            self._loop,
            bodies,
            lambda bodies: self._inner.stage(
                destination, bodies, part=part, time_limit=time_limit, timeout=timeout
            ),
        )

    def writer(
        self,
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> PartWriter:
        """A way to stage a part that is written batch by batch, and to several destinations.

        `time_limit` is how long it waits for its commit, from its last batch on; `timeout` (60 s if not
        given) the time that storing may take.

        >>> with staging.writer() as writer:
        ...     writer.write("queue:alerts", batch)
        ...     part = writer.seal()
        """
        return PartWriter(
            self._loop,
            self._loop.open(lambda: self._inner.writer(part=part, time_limit=time_limit, timeout=timeout)),
        )

    def commit(
        self, version: int, parts: Iterable[StagedPart], *, timeout: Duration | None = None
    ) -> Committed:
        """Make all the parts visible, all at once; other parts of the application are not touched.

        Versions rise. If this one, or a later one, was committed before, the parts are dropped, and
        nothing happens twice: "committed before". TransactionRolledBack if it could not be, for one
        because a part is not there any more; the others stay staged. When the outcome is not known
        after `timeout` (60 s if not given) this raises CommitUncertain; committing the same version
        again is safe.

        >>> staging.commit(7, [part])
        'committed before'
        """
        return self._loop.run(self._inner.commit(version, self._loop.taken(parts), timeout=timeout))

    def abort(self, parts: Iterable[StagedPart]) -> None:
        """Drop staged parts. Committed ones stay, so this never does harm.

        >>> staging.abort([part])
        """
        self._loop.run(self._inner.abort(self._loop.taken(parts)))

    def close(self) -> None:
        """End its session. Staged parts stay.

        >>> staging.close()
        """
        self._loop.close(self._inner.close)

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._inner.closed


class Producer(ProducerByHand):
    """Sends messages to one destination; `session.producer` makes them.

    >>> producer = session.producer("queue:orders")
    >>> receipt = producer.send(b"...", properties={"region": "EU"})
    """

    @property
    def destination(self) -> str:
        return self._inner.destination

    @property
    def is_blocked(self) -> bool:
        """Would a send have to wait before it leaves? Because too much is unconfirmed, the server's
        disk is full, or there is no connection at this moment.

        >>> if not producer.is_blocked:
        ...     producer.send(b"...")
        """
        return self._loop.look(lambda: self._inner.is_blocked)

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
        return self._loop.run(
            self._inner.try_send(
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
        )

    def unblocked(self, timeout: Duration | None = None) -> None:
        """Return when a send need not wait any more. Without a timeout, wait for it.

        >>> producer.unblocked(timeout=60)
        """
        self._loop.run(self._inner.unblocked(timeout))

    def send_many(self, bodies: Iterable[Sendable | Row], *, timeout: Duration | None = None) -> Receipts:
        """Send many messages; return when all are stored.

        `bodies` is any iterable, taken from in the caller's thread, and may be longer than memory. When
        something goes wrong, nothing after it is sent, and `error.confirmed` says how many
        messages from the start are stored; an iterable that raises is the cause of a PublishRefused.
        `timeout` (60 s if not given) is the time each part has, not all of it.

        >>> receipts = producer.send_many(line.encode() for line in file)
        >>> len(receipts), receipts[0].sequence
        (10000, 13)
        """
        return run_fed(self._loop, bodies, lambda bodies: self._inner.send_many(bodies, timeout=timeout))

    def send_batches(self, batches: Iterable[Batch], *, timeout: Duration | None = None) -> Receipts:
        """Send messages that are columns already; return when all are stored. Not in a transaction.

        The producer gives the messages their session and numbers, whatever a batch says. Failures are
        told as by `send_many`.

        >>> receipts = producer.send_batches(columns())
        """
        return run_fed(
            self._loop,
            iter(batches),
            lambda batches: self._inner.send_batches(batches, timeout=timeout),
            at_once=1,
        )

    def close(self) -> None:
        """Send nothing more. Earlier messages are still confirmed to the sends that wait.

        >>> producer.close()
        """
        self._loop.close(self._inner.close)


class Consumer(ConsumerByHand):
    """Receives the messages of one destination; `session.consumer` makes them.

    A consumer that the application drops gives back the messages it has not handed out, unless the
    session is asked for the same consumer again at once: then that one goes on where this one was.

    >>> for message in session.consumer("queue:orders"):
    ...     print(message.body, message.properties)
    """

    @property
    def destination(self) -> str:
        """The name of its destination."""
        return self._inner.destination

    @property
    def closed(self) -> bool:
        """Was the consumer closed, here or by the server?"""
        return self._inner.closed

    def close(self) -> None:
        """Wait until the acknowledgements are confirmed, then receive nothing more.

        Messages that were received and not acknowledged will be delivered again.

        >>> consumer.close()
        """
        self._loop.close(self._inner.close)


class Session(SessionByHand):
    """Producers and consumers whose commands stay in order.

    It is open when the call that makes it returns. Closing it waits until
    everything sent and acknowledged in it is confirmed.

    >>> with connection.session(ack="individual") as session:
    ...     session.producer("queue:orders").send(b"...")
    """

    @property
    def ack(self) -> str:
        """How messages are acknowledged: "auto", "client", "individual", "dups_ok" or "transacted"."""
        return self._inner.ack

    @property
    def closed(self) -> bool:
        """Was the session closed, or can it not go on? A session that was away for minutes expires."""
        return self._inner.closed

    def producer(self, destination: str) -> Producer:
        """A producer of messages for a destination such as "queue:orders".

        >>> producer = session.producer("queue:orders")
        """
        return Producer(self._loop, self._loop.open(lambda: self._inner.producer(destination)))

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

        At most `prefetch` messages, and about 1 MiB, are sent ahead of those that the application has
        taken. By default that is 32 at first and up to 1,000 as the application takes them, so that
        workers which start one after the other share a backlog. With 0 nothing is sent ahead: each call
        asks for the messages it returns, and other consumers get the rest. A call that ends without a
        message leaves nothing behind: messages on their way go back to their queue as if they had not
        been delivered.

        A consumer of a topic has a subscription, which ends when the consumer is closed. A `durable`
        subscription has a name, unique for the connection's client id, and stays: messages wait in it
        until it is consumed again or `unsubscribe` ends it. A new subscription begins with the next
        published message, or where `start` says: "earliest" is the first message that is kept, a number
        is a sequence number. A durable subscription that exists goes on where it stands.

        A destination that does not exist is made, unless `create` is False: then DestinationError.

        A consumer that is dropped without being closed gives back the messages it has not handed out,
        after a moment. A call for the same consumer in that moment goes on where it was, so that calls
        like `session.consumer("queue:orders").receive()` may follow each other.

        >>> with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = consumer.receive(timeout=1.0)
        >>> consumer = session.consumer("topic:prices", durable="audit", start="earliest")
        """
        return Consumer(
            self._loop,
            self._loop.open(
                lambda: self._inner.consumer(
                    destination, prefetch, durable=durable, start=start, create=create
                )
            ),
        )

    def browse(self, destination: str, *, create: bool = True) -> Iterator[Message]:
        """The messages of a queue, or those that a topic keeps, without consuming them.

        They come in their order, also those that consumers have. Messages acknowledged meanwhile are
        left out, messages sent meanwhile come at the end. A destination that does not exist is made,
        unless `create` is False: then DestinationError.

        >>> for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        return self._loop.each(
            self._inner.browse(destination, create=create), lambda message: Message._of(message, self._loop)
        )

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription; messages that wait in it are lost to it.

        Refused (SubscriptionInUse) while another session consumes it.

        >>> session.unsubscribe("audit")
        """
        self._loop.run(self._inner.unsubscribe(name))

    def commit(self, timeout: Duration | None = None) -> None:
        """Make all messages sent since the last commit visible, and acknowledge all that were received.

        All of it, in every channel; or nothing, and TransactionRolledBack says why: then the received
        messages come again. When the outcome is not known after `timeout` (60 s if not given) this
        raises CommitUncertain; the commit goes on meanwhile, and `commit` again waits for it.

        >>> with connection.session(transacted=True) as session:
        ...     message = session.consumer("queue:orders").receive()
        ...     session.producer("queue:invoices").send(message.body)
        ...     session.commit()
        """
        self._loop.run(self._inner.commit(timeout))

    def rollback(self) -> None:
        """Forget all messages sent since the last commit, and give back all that were received.

        The received messages come again, in their order, and their `delivery_count` is one more. After a
        CommitUncertain this waits for the outcome of that commit; if it was committed after all,
        LocalError says so.

        >>> session.rollback()
        """
        self._loop.run(self._inner.rollback())

    def recover(self) -> None:
        """Give back all messages that were received and not acknowledged: they come again, in their order.

        For sessions that are not transacted.

        >>> with connection.session(ack="client") as session:
        ...     message = session.consumer("queue:orders").receive()
        ...     session.recover()
        """
        self._loop.run(self._inner.recover())

    def transaction(self, timeout: Duration | None = None) -> AbstractContextManager[None]:
        """Commit when the block is done; roll back when an exception leaves it.

        >>> with session.transaction():
        ...     producer.send(b"...")
        """
        return self._loop.block(self._inner.transaction(timeout))

    def close(self) -> None:
        """Wait until everything is confirmed, then end the session.

        Messages that were received and not acknowledged will be delivered again. Messages of a
        transaction that was not committed are forgotten.

        >>> session.close()
        """
        self._loop.close(self._inner.close)


class Connection(ConnectionByHand):
    """A connection to a server; `connect` makes them.

    >>> connection = antiphon.blocking.connect("antiphon://127.0.0.1:7420")
    >>> connection.close()
    """

    @property
    def on_lost(self) -> Callable[[], Any] | None:
        """Called when the connection is lost, in the connection's thread: it may not use the connection."""
        return self._inner.on_lost

    @on_lost.setter
    def on_lost(self, value: Callable[[], Any] | None) -> None:
        self._inner.on_lost = value

    @property
    def on_resumed(self) -> Callable[[], Any] | None:
        """Called when there is a connection again, in the connection's thread: it may not use the
        connection.
        """
        return self._inner.on_resumed

    @on_resumed.setter
    def on_resumed(self, value: Callable[[], Any] | None) -> None:
        self._inner.on_resumed = value

    @property
    def state(self) -> State:
        """ "connected"; "lost" while there is no connection and one is looked for; "closed".

        >>> connection.on_lost = lambda: print("no connection")
        >>> connection.state
        'connected'
        """
        return self._inner.state

    @property
    def closed(self) -> bool:
        """Was the connection closed, or given up? A connection that is lost for a while is not."""
        return self._inner.closed

    def session(self, ack: AckName | None = None, *, transacted: bool = False) -> Session:
        """A session, whose `ack` says when messages are acknowledged.

        auto: when `receive` returns them, or when `for` asks for the next one.
        client: `message.ack()` acknowledges everything the session was given so far.
        individual: `message.ack()` acknowledges this one.
        dups_ok: as auto, but lazily: after a failure more messages may come a second time.

        In a `transacted` session `session.commit()` acknowledges every received message, and makes every
        sent one visible.

        >>> with connection.session(ack="client") as session:
        ...     consumer = session.consumer("queue:orders")
        """
        return Session(self._loop, self._loop.open(lambda: self._inner.session(ack, transacted=transacted)))

    def staging(self, app_id: str) -> Staging:
        """Messages that are staged outside of sessions, and committed all at once, see `Staging`.

        >>> with connection.staging("nightly-report") as staging:
        ...     part = staging.stage("queue:alerts", [b"a", b"b"])
        ...     staging.commit(7, [part])
        """
        return Staging(self._loop, self._loop.open(lambda: self._inner.staging(app_id)))

    def ranges(self) -> Ranges:
        """Stored messages, read by ranges of numbers without consuming them, see `Ranges`.

        >>> with connection.ranges() as ranges:
        ...     prices = ranges.destinations(["topic:prices"])
        ...     heads = ranges.heads(prices)
        """
        return Ranges(self._loop, self._loop.open(lambda: self._inner.ranges()))

    def admin(self) -> Admin:
        """Questions to the system.

        >>> status = connection.admin().status()
        """
        return Admin(self._loop, self._inner.admin())


def connect(
    url: str,
    user: str | None = None,
    password: str | None = None,
    client_id: str | None = None,
    timeout: Duration = 10,
    reconnect: Duration = RECONNECT_S,
) -> Connection:
    """A connection to the first of the servers in `url` that lets us in.

    `timeout` is how long that may take; and how
    long the server may take later on to open a session, a producer or a consumer.

    A connection that is lost is made again by itself, to any of the servers, and everything goes on
    where it was: what was sent and not confirmed is sent again and stored once, what a consumer holds
    stays its own. The application only waits. This is tried for as long as anything waits or there is a
    consumer, and at least for `reconnect` seconds; then, or at once if that is 0, the connection is over
    (NotConnected). `connection.state` says how it is; `on_lost` and `on_resumed` are called when it
    changes.

    >>> with antiphon.blocking.connect("antiphon://127.0.0.1:7420,127.0.0.1:7421") as connection:
    ...     with connection.session() as session:
    ...         session.producer("queue:orders").send(b"...")
    """
    connection = connect_asynchronously(url, user, password, client_id, timeout, reconnect)
    return Connection(*LoopThread.with_opened(connection))
