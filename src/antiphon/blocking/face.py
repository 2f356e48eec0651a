"""The blocking face: each class of the asyncio face, with calls that wait.

Written by tools/blocking_face.py; edit the asyncio class, and run `make generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from antiphon.batch import Batch
from antiphon.batch.bodies import Sendable
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.blocking.by_hand import ConnectionByHand, ConsumerByHand, Message, ProducerByHand, SessionByHand
from antiphon.blocking.loop import Block, Face, LoopThread, run_fed
from antiphon.client.aio.admin import Admin as AsyncAdmin
from antiphon.client.aio.admin import DeadTo
from antiphon.client.aio.block import Duration
from antiphon.client.aio.connection import RECONNECT_S, AckName, State
from antiphon.client.aio.connection import connect as connect_asynchronously
from antiphon.client.aio.creating import CreationResult
from antiphon.client.aio.holds import LIMIT_DEFAULT_S, HoldReport
from antiphon.client.aio.ranges import PAGE_BYTES, Bound, ChannelHead, RangeDestination, RangePage
from antiphon.client.aio.ranges import Ranges as AsyncRanges
from antiphon.client.aio.staging import TIME_LIMIT_S, Committed, StagedPart
from antiphon.client.aio.staging import PartWriter as AsyncPartWriter
from antiphon.client.aio.staging import Staging as AsyncStaging
from antiphon.client.aio.subscribing import Start
from antiphon.client.core.publication import Row
from antiphon.client.core.receipts import Receipt, Receipts
from antiphon.errors import AntiphonError
from antiphon.message import MessageView
from antiphon.names import Match
from antiphon.tls import TlsChoice
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

    def destinations(self, *, log: bool = False) -> list[dict[str, Any]]:
        """The destinations with their counts; with `log` also the topic of events, "topic:_LOG".

        One that has several channels is one row, with its parts.

        >>> [destination["messages"] for destination in admin.destinations()]
        """
        return self._loop.run(self._inner.destinations(log=log))

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
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
        channel: str | None = None,
        channels: int | Sequence[str] | None = None,
    ) -> None:
        """Make a destination. If it exists and is set as asked for, that is fine too.

        A topic keeps what its subscriptions need, and beyond that everything that is younger than
        `retention` (seconds or a timedelta; an hour if not given) as long as it is among the last
        `retention_bytes` (1 GiB). "consumed": nothing beyond. A queue keeps what is not consumed.
        It lives in `channel`, or if that is not given in the one that has least to keep.

        A message that came back more often than `redelivery_limit` (10 for a queue; 0 for a topic, which
        is no limit) is dead, as is one that a consumer rejected. `dead_to` says where dead messages go:
        to the queue of dead messages of their channel, "_DMQ", which is the default; with "_DMQ+expired"
        expired messages of a queue go there, too; "nowhere" drops them. A message that came back waits
        for `redelivery_delay` (seconds or a timedelta, 0 if not given) before it is delivered again, and
        twice as long each further time, an hour at most.

        The ids of messages (`dedup_id` of `send`) are remembered for `dedup_window` (seconds or a
        timedelta, 10 minutes if not given, a week at most), but not more than the last 262,144 of them.
        0: a message is stored whatever its id.

        An `exclusive` queue gives its messages to one consumer at a time; the others wait in line, and
        the next takes over when the first is closed or lost.

        With `channels`, a number of them or their names, the destination has a part in each, and so may
        be larger and faster than one channel is. Messages with the same `key` go to the same channel and
        stay in order; other messages are spread over the channels. Limits such as `retention_bytes` are
        those of each part. The channels of a name stay, also when it is deleted; an exclusive queue has
        one channel.

        >>> admin.create("topic:prices", retention=timedelta(days=7), retention_bytes=10**10)
        >>> admin.create("queue:orders", channels=2)
        """
        self._loop.run(
            self._inner.create(
                destination,
                retention=retention,
                retention_bytes=retention_bytes,
                redelivery_limit=redelivery_limit,
                redelivery_delay=redelivery_delay,
                dead_to=dead_to,
                dedup_window=dedup_window,
                exclusive=exclusive,
                channel=channel,
                channels=channels,
            )
        )

    def create_many(
        self,
        destinations: Iterable[str],
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
        channel: str | None = None,
        channels: int | Sequence[str] | None = None,
    ) -> list[CreationResult]:
        """Make many destinations with the same settings, see `create`; thousands of them take a second.

        The results have for each name, in their order, the `outcome`: "made"; "exists", set as asked
        for; or "refused", with the `code` of the error and the reason as `text`. One that is refused
        does not hinder the others. If an error is raised in between, some are made: call again, and the
        rest will be.

        >>> results = admin.create_many(f"topic:prices.{isin}" for isin in isins)
        >>> [result for result in results if result.outcome == "refused"]
        []
        """
        return self._loop.run(
            self._inner.create_many(
                self._loop.taken(destinations),
                retention=retention,
                retention_bytes=retention_bytes,
                redelivery_limit=redelivery_limit,
                redelivery_delay=redelivery_delay,
                dead_to=dead_to,
                dedup_window=dedup_window,
                exclusive=exclusive,
                channel=channel,
                channels=channels,
            )
        )

    def change(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
    ) -> None:
        """Change settings of a destination that exists, while it is used; the others stay. See `create`.

        Of "topic:_LOG" the parts of all channels are changed.

        >>> admin.change("queue:orders", redelivery_limit=3)
        """
        self._loop.run(
            self._inner.change(
                destination,
                retention=retention,
                retention_bytes=retention_bytes,
                redelivery_limit=redelivery_limit,
                redelivery_delay=redelivery_delay,
                dead_to=dead_to,
                dedup_window=dedup_window,
                exclusive=exclusive,
            )
        )

    def delete(self, destination: str) -> None:
        """Delete a destination with all its messages and subscriptions; its consumers are closed and told.

        If that was interrupted, repeat it: of a destination with several channels, a part may be left.

        >>> admin.delete("queue:orders")
        """
        self._loop.run(self._inner.delete(destination))

    def purge(self, destination: str, *, channel: str = "") -> None:
        """Drop all messages of a destination, also those that consumers have; subscriptions stay.

        Messages of a transaction that is being committed stay. `channel` is for "queue:_DMQ".

        >>> admin.purge("queue:orders")
        """
        self._loop.run(self._inner.purge(destination, channel=channel))

    def dead(self, destination: str | None = None) -> list[dict[str, Any]]:
        """The dead messages of a destination, or all: where they died, why, and after how many deliveries.

        >>> [(row["destination"], row["reason"]) for row in admin.dead()]
        """
        return self._loop.run(self._inner.dead(destination))

    def retry(self, destination: str | None = None, *, ids: Iterable[str] = ()) -> int:
        """Send dead messages back to where they died; returns how many.

        All, those of a destination, or those with these ids, as `dead` tells them. Each is sent back
        once, as a new message without the properties of its death; that is so, too, when the caller is
        killed in the middle, and calls again. To a topic they are published: all of its subscriptions
        get them.

        >>> admin.retry("queue:orders")
        """
        return self._loop.run(self._inner.retry(destination, ids=self._loop.taken(ids)))

    def move(self, source: str, target: str, *, channel: str = "") -> int:
        """Move the messages of a queue that no consumer has at the moment; returns how many.

        Each is moved once, also when the caller is killed in the middle. `channel` is for "queue:_DMQ".

        This takes messages as one more consumer does. So what stays is: messages that consumers have;
        those with a key of a group that a consumer has; everything in an exclusive queue that has a
        consumer; and delayed messages. Close the consumers to move all but the delayed ones.

        >>> admin.move("queue:orders", "queue:orders.later")
        """
        return self._loop.run(self._inner.move(source, target, channel=channel))

    def consumers(self, destination: str | None = None) -> list[dict[str, Any]]:
        """The consumers of a destination, or all, with the messages that they have.

        >>> [(row["destination"], row["in_flight"]) for row in admin.consumers()]
        """
        return self._loop.run(self._inner.consumers(destination))


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
        """Where destinations are, by their names or by a pattern for them; of a spanning one, all parts.

        A missing destination is a DestinationError. A pattern is compared with whole names such as
        `topic:orders.eu`; nothing may match it. Later destinations are found by asking again:
        `head.version` differs from `ranges.versions` of its channel then.

        >>> ranges.destinations(pattern="topic:orders.*")
        (RangeDestination(name='topic:orders.eu', channel='a', id=17, since=0, is_part=False),)
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
        ttl: Duration | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        dedup_id: str | bytes | None = None,
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
                ttl=ttl,
                delay=delay,
                key=key,
                correlation_id=correlation_id,
                reply_to=reply_to,
                type=type,
                persistent=persistent,
                dedup_id=dedup_id,
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

        Calls that wait for a message end with ConsumerClosed. Messages that were received and not
        acknowledged come again; in a client or transacted session they stay with the session, which may
        still acknowledge them.

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

    @property
    def unstored(self) -> int:
        """How many non-persistent messages, whose `send` had returned, were refused or may be lost so far.

        >>> if session.unstored:
        ...     print("some messages did not get there; the log says why")
        """
        return self._inner.unstored

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

        At most `prefetch` messages, and about 1 MiB, are sent ahead of those that the application has
        taken. By default that is 32 at first and up to 1,000 as the application takes them, so that
        workers which start one after the other share a backlog. With 0 nothing is sent ahead: each call
        asks for the messages it returns, and a call that ends without a message leaves nothing behind.

        A consumer of a topic has a subscription, which ends when the consumer is closed. A `durable`
        subscription has a name, unique for the connection's client id, and stays: messages wait in it
        until it is consumed again or `unsubscribe` ends it. It has one consumer at a time. A new
        subscription begins with the next published message, or where `start` says: "earliest" is the
        first that is kept, a number is a sequence number (of each channel: {"a": 1, "b": 8}). One that
        exists goes on where it is. With `no_local` messages of the own connection are left out; of a
        durable one, those of its client id.

        Several consumers share a subscription as they share a queue, in any sessions and connections:
        `shared="workers"` ends with the last of them, `durable="audit", shared=True` stays. Consumers
        share it if their connections have the same client id, or none.

        With a `selector` only the messages that match it come; those of a queue that do not stay for
        other consumers. All consumers of a subscription have its topic and its selector. A durable
        subscription that had others begins anew, or SubscriptionInUse while a consumer has it.

        With `match` the name is a pattern of topics: those that match are consumed as one, also those
        that are made later, each from its first message on. In a "glob" `*` and `?` stand for any
        characters, dots included; a "regex" is one of RE2. The whole name must match, without its
        "topic:".

        A destination that does not exist is made, unless `create` is False: then DestinationError. Every
        channel has a part of "queue:_DMQ", the dead messages, of "topic:_LOG", the events, and of a
        pattern: the parts are consumed as one, or that of one `channel`. A message's `channel` says
        where it is from.

        >>> with session.consumer("queue:orders", prefetch=100) as consumer:
        ...     message = consumer.receive(timeout=1.0)
        >>> consumer = session.consumer("topic:prices", durable="audit", start="earliest")
        >>> urgent = session.consumer("queue:orders", selector="region = 'EU' AND JMSPriority >= 7")
        >>> everything = session.consumer("topic:prices.*", match="glob")
        """
        return Consumer(
            self._loop,
            self._loop.open(
                lambda: self._inner.consumer(
                    destination,
                    prefetch,
                    selector=selector,
                    durable=durable,
                    shared=shared,
                    no_local=no_local,
                    start=start,
                    match=match,
                    create=create,
                    channel=channel,
                )
            ),
        )

    def browse(
        self, destination: str, *, selector: str | None = None, create: bool = True, channel: str = ""
    ) -> Iterator[Message]:
        """The messages of a queue, or those that a topic keeps, without consuming them.

        They come in their order, also those that consumers have. Messages acknowledged meanwhile are
        left out, messages sent meanwhile come at the end. With a `selector` only those that match come;
        the client chooses them, so that all of them travel. A destination that does not exist is made,
        unless `create` is False: then DestinationError. Of dead messages ("queue:_DMQ") and events
        ("topic:_LOG") `channel` names the channel whose are to be seen; without it those of one channel
        come after those of another.

        >>> for message in session.browse("queue:orders"):
        ...     print(message.sequence, message.body)
        """
        return self._loop.each(
            self._inner.browse(destination, selector=selector, create=create, channel=channel),
            lambda message: Message._of(message, self._loop),
        )

    def temporary_queue(self) -> str:
        """Make a queue that lives with this session; returns its name, such as "queue:_TEMP.a.4711".

        Anybody may send to it, by its name. Only sessions of this connection consume it or delete it. It
        goes with the session, with what is in it: when that is closed, or expires because there was no
        connection for too long. A session that goes on with another server keeps it.

        >>> replies = session.temporary_queue()
        >>> session.producer("queue:quotes").send(b"ACME?", reply_to=replies)
        >>> answer = session.consumer(replies).receive(timeout=5)
        """
        return self._loop.run(self._inner.temporary_queue())

    def temporary_topic(self) -> str:
        """Make a topic that lives with this session; returns its name. See `temporary_queue`.

        >>> news = session.temporary_topic()
        """
        return self._loop.run(self._inner.temporary_topic())

    def delete_temporary(self, name: str) -> None:
        """Delete a temporary queue or topic of this connection before its session ends.

        DestinationInUse while a consumer has it. Later sends to it are refused.

        >>> session.delete_temporary(replies)
        """
        self._loop.run(self._inner.delete_temporary(name))

    def request(
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

        The reply is the first message with this request's `correlation_id` that comes to its `reply_to`:
        the other side sends it with `session.reply`. Many requests may wait at the same time; they share
        one temporary queue. A reply that comes too late is dropped. Not in a transacted session.

        >>> reply = session.request("queue:quotes", b"ACME?", timeout=5)
        >>> print(reply.body)
        """
        return Message._of(
            self._loop.run(
                self._inner.request(
                    destination,
                    body,
                    timeout=timeout,
                    properties=properties,
                    priority=priority,
                    ttl=ttl,
                    key=key,
                    type=type,
                    persistent=persistent,
                )
            ),
            self._loop,
        )

    def reply(
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

        When the application that asked is gone, DestinationError or PublishRefused says so. In a
        transacted session the reply leaves with the commit.

        >>> for message in session.consumer("queue:quotes"):
        ...     session.reply(message, {"price": 17.25})
        """
        return self._loop.run(
            self._inner.reply(
                message,
                body,
                properties=properties,
                priority=priority,
                ttl=ttl,
                type=type,
                persistent=persistent,
                timeout=timeout,
            )
        )

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription; messages that wait in it are lost to it.

        Refused (SubscriptionInUse) while a consumer has it, or a transaction some of its messages.

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
    def on_error(self) -> Callable[[AntiphonError], Any] | None:
        """Called with an error that no call raises, see `connect`; in the connection's thread: it may not
        use the connection.
        """
        return self._inner.on_error

    @on_error.setter
    def on_error(self, value: Callable[[AntiphonError], Any] | None) -> None:
        self._inner.on_error = value

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

    @property
    def is_started(self) -> bool:
        """Do consumers give out messages? Not after `stop`, until `start`.

        >>> connection = antiphon.blocking.connect("antiphon://127.0.0.1:7420", started=False)
        >>> connection.is_started
        False
        """
        return self._inner.is_started

    def stop(self) -> None:
        """Have the consumers of all sessions give out nothing until `start`.

        When this returns no `receive` returns a message, and no loop goes on to its next one. Calls that
        wait go on waiting, and their timeouts run on: then they return nothing. What the application is
        working on is not waited for. Sending, acknowledging, commits and browsing go on as usual;
        replies to requests wait, as other messages do. Messages that were sent ahead stay with their
        consumers.

        >>> connection.stop()
        """
        self._loop.run(self._inner.stop())

    def start(self) -> None:
        """Have the consumers give out messages again. A connection is started if `connect` is not told
        otherwise.

        >>> connection.start()
        """
        self._loop.run(self._inner.start())

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
    spread: bool = True,
    started: bool = True,
    tls: TlsChoice = None,
) -> Connection:
    """A connection to one of the servers in `url`.

    The servers are tried in an order that each connection draws, so that many clients with the same
    `url` spread over the servers, and those of a lost server over the others; in the order of the `url`,
    if `spread` is False.

    `timeout` is how long that may take; and how
    long the server may take later on to open a session, a producer or a consumer.

    A connection that is lost is made again by itself, to any of the servers, and everything goes on
    where it was: what was sent and not confirmed is sent again and stored once, what a consumer holds
    stays its own. The application only waits. This is tried for as long as anything waits or there is a
    consumer, and at least for `reconnect` seconds; then, or at once if that is 0, the connection is over
    (NotConnected). `connection.state` says how it is; `on_lost` and `on_resumed` are called when it
    changes.

    With `started=False` consumers give out nothing before `connection.start()`.

    `on_error` is called with an error that no call raises. NotConnected: the connection is over.
    SessionClosed: a session cannot go on. AcknowledgeRefused: an acknowledgement that the library sent
    in the background came too late. PublishRefused, PublishUncertain: a non-persistent message, whose
    `send` had returned, is not stored, or perhaps not.

    A `client_id` belongs to one connection in the whole cluster, until that is closed: another one
    raises ClientIdInUse. A connection that is lost keeps it for two seconds, and then until another
    takes it: if the first comes back then, it is over.

    With `antiphons://` the connection speaks TLS, and the servers' certificates are verified. `tls` is
    the path of the CA's file, a `Tls` or a mapping with its fields, or an ssl.SSLContext; None trusts
    the CAs that this machine trusts. Files that change are read again for the next connection. If no
    server passes, `connect` raises TlsFailed; a connection that was lost is given up for that after
    `reconnect` seconds, whatever waits for it.

    >>> with antiphon.blocking.connect("antiphon://127.0.0.1:7420,127.0.0.1:7421") as connection:
    ...     with connection.session() as session:
    ...         session.producer("queue:orders").send(b"...")
    """
    connection = connect_asynchronously(
        url, user, password, client_id, timeout, reconnect, spread, started, tls
    )
    return Connection(*LoopThread.with_opened(connection))
