"""A server that fits in a test: real frames over a real loopback socket, one channel, no disk.

It orders what it is sent, delivers to whoever has credit, and remembers everything it
heard. A test can make it slow (`hold`), rude (`say`, `say_bytes`) or gone (`drop`).
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.batch import Batch
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    ConfirmItem,
    OutcomeCode,
    Publish,
    Return,
    decode_payload,
    read_command,
)
from antiphon.wire.range_frames import page_buffers
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction, TransactedPublish

CHANNEL = "a"
SESSION = 0x5E55


@dataclass
class Row:
    sequence: int
    batch: Batch
    redelivery_count: int = 0


@dataclass
class Consumer:
    number: int
    session: int
    destination: int
    messages: int
    bytes: int
    peer: Peer
    delivered: int = 0
    delivered_bytes: int = 0
    holds: dict[int, tuple[int, Row]] = field(default_factory=dict)  # sequence -> delivery number, row
    channel: str = CHANNEL


@dataclass
class FakeServer:
    """What a test sees: the address, what was heard, and ways to misbehave."""

    window_bytes: int = 4 * 1024 * 1024
    heartbeat_ms: int = 0
    sure_ms: int = 0
    assures: bool = True  # it answers whose the messages are
    is_mute: bool = False  # it hears, and says nothing
    lets_go: bool = True  # it closes the socket of a client that said Goodbye
    url: str = ""
    heard: list[frames.ClientFrame] = field(default_factory=list)
    commands: list[tuple[CommandHeader, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    refusals: dict[type[Any], tuple[str, str]] = field(default_factory=dict)
    judge: Callable[[CommandHeader, Any], ConfirmItem | None] = lambda header, payload: None
    greet: Callable[[frames.Hello], frames.ServerFrame | None] | None = None
    decide: Callable[[Any], tuple[TransactionFate, str] | None] = lambda wish: None
    show: Callable[[Any], frames.ServerFrame | None] = lambda wish: None  # what is said to who reads ranges
    creations: list[frames.DestinationsCreate] | None = None  # unless None, they wait here for an answer
    peers: list[Peer] = field(default_factory=list)
    has_tls: bool = False  # then a client that never gets through the handshake is no guest
    guests: set[Peer] = field(default_factory=set)  # whoever was accepted and is not gone
    is_over: bool = False
    ready: dict[int, deque[Row]] = field(default_factory=dict)
    consumers: dict[tuple[int, int], Consumer] = field(default_factory=dict)
    acknowledged: Ranges = field(default_factory=Ranges)
    sequence: int = 0
    expired: set[int] = field(default_factory=set)  # sessions that the channels have forgotten
    places: dict[str, str] = field(default_factory=dict)  # the channels of destinations elsewhere
    spans: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the channels of spanning ones
    away: set[str] = field(default_factory=set)  # channels that open no part of those
    has_subscriptions: bool = False  # who looks for a subscription finds it, in the usual channel
    uncommitted: dict[tuple[int, int], list[TransactedPublish]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _stored: dict[tuple[int, str, int], ConfirmItem] = field(default_factory=dict)
    _held: list[tuple[Peer, frames.Confirm]] | None = None
    _watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = field(default_factory=list)

    # -- for tests -------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something heard has made this true."""
        if not condition():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((condition, future))
            await asyncio.wait_for(future, 60)

    def heard_of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.heard if isinstance(frame, kind)]

    def published(self) -> list[tuple[CommandHeader, Batch]]:
        return [
            (header, Batch.decode(payload.batch))
            for header, payload in self.commands
            if isinstance(payload, Publish)
        ]

    def acks(self) -> list[Ranges]:
        return [payload.ranges for _, payload in self.commands if isinstance(payload, Acknowledge)]

    def hold(self) -> None:
        """Confirm nothing until `release`."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for peer, confirm in held:
            peer.say(confirm)

    def say(self, frame: frames.ServerFrame) -> None:
        self.peers[-1].say(frame)

    def say_bytes(self, data: bytes) -> None:
        self.peers[-1].transport.write(data)

    def drop(self) -> None:
        """Be gone, without a word."""
        for peer in self.peers:
            peer.transport.abort()

    def fill(self, name: str, bodies: list[bytes]) -> None:
        """Put messages in a queue, as one batch of another session."""
        self.store(self.destination(name), Batch.of_bodies(bodies, 7, 1, 0))

    def destination(self, name: str) -> int:
        """Its id, which is its channel's own: two channels may use the same."""
        number = len([known for known in self._names if self.places.get(known) == self.places.get(name)])
        return self._names.setdefault(name, number + 1)

    # -- the broker ------------------------------------------------------------

    def hear(self, peer: Peer, frame: frames.ClientFrame) -> None:
        self.heard.append(frame)
        if self.is_mute:
            return
        refusal = self.refusals.get(type(frame))
        if refusal is not None:
            peer.say(frames.Failed(request=frame.request, code=refusal[0], text=refusal[1]))
        else:
            self._carry_out(peer, frame)
        self._look()

    def _look(self) -> None:
        for condition, future in self._watchers:
            if not future.done() and condition():
                future.set_result(None)

    def _carry_out(self, peer: Peer, frame: frames.ClientFrame) -> None:
        match frame:
            case frames.Hello():
                welcome = self.greet(frame) if self.greet is not None else self.welcome()
                if welcome is not None:
                    peer.say(welcome)
            case frames.SessionOpen() if frame.session in self.expired and frame.channels:
                peer.say(frames.Failed(request=frame.request, code="local.session_closed", text="expired"))
            case frames.SubscriptionFind() if not frame.ends and not self.has_subscriptions:
                peer.say(frames.Failed(request=frame.request, code="subscription.unknown", text="none"))
            case frames.DestinationOpen(channel=channel) if channel and channel in self.away:
                text = f"channel {channel} is away"
                peer.say(frames.Failed(request=frame.request, code="destination.unavailable", text=text))
            case frames.DestinationOpen() if frame.name in self.spans:
                peer.say(self._spanning(frame))
            case (
                frames.SessionOpen()
                | frames.DestinationOpen()
                | frames.DestinationCreate()
                | frames.SubscriptionFind()
            ):
                peer.say(self._found(frame))
            case frames.DestinationsCreate():
                created = self.create(frame)
                if created is not None:
                    peer.say(created)
            case frames.ConsumerCheck():
                if self.assures:
                    peer.say(frames.Done(request=frame.request))
            case frames.RangeRead() if not frame.stop:
                peer.say(self._page(frame))
            case frames.RangeAsk() | frames.RangeRead():
                shown = self.show(frame)
                if shown is not None:
                    peer.say(shown)
            case frames.Command():
                header, payload = read_command(frame.command)
                self._on_command(peer, frame.channel, header, decode_payload(header.kind, payload))
            case frames.ConsumerOpen():
                consumer = Consumer(
                    frame.consumer, frame.session, frame.destination,
                    frame.credit_messages, frame.credit_bytes, peer, channel=frame.channel,
                )  # fmt: skip
                self.consumers[frame.session, frame.consumer] = consumer
                peer.say(frames.Done(request=frame.request))
                self.deliver()
            case frames.ConsumerResume():
                self._resume_consumer(peer, frame)
            case frames.Credit():
                consumer = self.consumers[frame.session, frame.consumer]
                consumer.messages, consumer.bytes = frame.messages, frame.bytes
                self.deliver()
            case frames.ConsumerDrain():
                consumer = self.consumers[frame.session, frame.consumer]
                consumer.messages, consumer.bytes = frame.messages, frame.bytes
                self.deliver()
                consumer.messages = consumer.delivered
                peer.say(frames.Done(request=frame.request))
            case frames.ConsumerClose():
                self._give_back(self.consumers.pop((frame.session, frame.consumer)), frame.seen_through)
                peer.say(frames.Done(request=frame.request))
            case frames.SessionClose():
                peer.say(frames.Done(request=frame.request))
            case frames.Ask():
                answer = self.answers[json.loads(frame.question)["question"]]
                if isinstance(answer, list):  # one after the other
                    answer = answer.pop(0)
                peer.say(frames.Answer(request=frame.request, answer=answer))
            case frames.TransactionCommit() | frames.TransactionAsk():
                decided = self.decide(frame)
                if decided is not None:
                    peer.say(
                        frames.TransactionDecided(request=frame.request, fate=decided[0], text=decided[1])
                    )
            case frames.Ping():
                peer.say(frames.Pong(nonce=frame.nonce))
            case frames.Goodbye() if self.lets_go:
                peer.transport.close()

    def _found(
        self,
        frame: frames.SessionOpen
        | frames.DestinationOpen
        | frames.DestinationCreate
        | frames.SubscriptionFind,
    ) -> frames.SessionOpened | frames.DestinationOpened | frames.SubscriptionFound:
        """What was asked for is there, or is made."""
        match frame:
            case frames.SessionOpen():
                return frames.SessionOpened(
                    request=frame.request,
                    session=frame.session or SESSION + len(self.heard_of(frames.SessionOpen)) - 1,
                    generation=frame.generation or 1,
                    window_bytes=self.window_bytes,
                )
            case frames.SubscriptionFind():
                return frames.SubscriptionFound(
                    request=frame.request,
                    subscription=77,
                    destination=1,
                    channel=CHANNEL,
                    topic="topic:prices",
                )
        return frames.DestinationOpened(
            request=frame.request,
            destination=self.destination(frame.name),
            settings_version=1,
            channel=self.places.get(frame.name, CHANNEL),
        )

    def _spanning(self, frame: frames.DestinationOpen) -> frames.DestinationOpened:
        """A spanning destination, or its part in a channel."""
        part = f"{frame.name} in {frame.channel}"
        return frames.DestinationOpened(
            request=frame.request,
            destination=self.destination(part) if frame.channel else 0,
            settings_version=1,
            channel=frame.channel,
            channels=() if frame.channel else self.spans[frame.name],
        )

    def _resume_consumer(self, peer: Peer, frame: frames.ConsumerResume) -> None:
        former = self.consumers.pop((frame.session, frame.consumer), None)
        consumer = Consumer(
            frame.consumer, frame.session, frame.destination, frame.credit_messages, frame.credit_bytes,
            peer, frame.delivered_messages, frame.delivered_bytes, channel=frame.channel,
        )  # fmt: skip
        rows = former.holds if former is not None else {}
        consumer.holds = {number: row for number, row in rows.items() if number in frame.held}
        if former is not None:
            former.holds = {number: row for number, row in rows.items() if number not in frame.held}
            self._give_back(former, 0)
        self.consumers[frame.session, frame.consumer] = consumer
        lost = frame.held.difference(Ranges((number, number + 1) for number in consumer.holds))
        peer.say(frames.ConsumerResumed(request=frame.request, lost=lost))
        self.deliver()

    def create(self, frame: frames.DestinationsCreate) -> frames.DestinationsCreated | None:
        """Make those that are not there, unless `creations` gathers the requests: then there is no answer."""
        if self.creations is not None:
            self.creations.append(frame)
            return None
        new = [at for at, name in enumerate(frame.names) if name not in self._names]
        for name in frame.names:
            self.destination(name)
        made = Ranges([(at, at + 1) for at in new])
        return frames.DestinationsCreated(request=frame.request, made=made, refused=())

    def welcome(self) -> frames.Welcome:
        return frames.Welcome(
            node=1,
            cluster="test",
            servers=(),
            connection=1,
            frame_limit=FRAME_BYTES_MAX,
            heartbeat_ms=self.heartbeat_ms,
            sure_ms=self.sure_ms,
        )

    def _page(self, frame: frames.RangeRead) -> frames.RangePage:
        """What waits in a destination, two messages to a page."""
        (wanted,) = frame.destinations
        rows = [row for row in self.ready.get(wanted.destination, ()) if row.sequence >= frame.start]
        through = rows[1].sequence if len(rows) > 2 else max(self.sequence, frame.start - 1)
        pieces = [
            (wanted.destination, row.sequence, row.batch.count, row.redelivery_count, [row.batch.encode()])
            for row in rows[:2]
        ]
        ends = [through + 3] if len(rows) > 2 else []
        page = page_buffers(through, sum(piece[2] for piece in pieces), ends, (), pieces)
        return frames.RangePage(request=frame.request, page=b"".join(page))

    def _on_command(self, peer: Peer, channel: str, header: CommandHeader, payload: Any) -> None:
        self.commands.append((header, payload))
        item = self.judge(header, payload)
        known = self._stored.get((header.session, channel, header.number))
        if item is None and known is not None:
            item = known._replace(code=OutcomeCode.DUPLICATE)
        if item is None:
            item = ConfirmItem(header.number, header.count, OutcomeCode.APPLIED, self.sequence + 1)
            self._apply(header.session, payload)
            self._stored[header.session, channel, header.number] = item
        confirm = frames.Confirm(session=header.session, channel=channel, items=(item,))
        if self._held is not None:
            self._held.append((peer, confirm))
        else:
            peer.say(confirm)

    def _apply(self, session: int, payload: Any) -> None:
        match payload:
            case Publish():
                self.store(payload.destination, Batch.decode(payload.batch))
                return
            case CommitTransaction():
                for one in self.uncommitted.pop((session, payload.transaction), ()):
                    self.store(one.destination, Batch.decode(one.batch))
                for consumed in payload.consumed:
                    self._acknowledge(consumed.numbers)
                return
            case TransactedPublish():
                self.uncommitted.setdefault((session, payload.transaction), []).append(payload)
            case RollBackTransaction():
                self.uncommitted.pop((session, payload.transaction), None)
            case Acknowledge():
                self._acknowledge(payload.ranges)
            case Return():
                self._return(payload.ranges, is_counted=payload.counted)
        self.sequence += 1

    def _acknowledge(self, numbers: Ranges) -> None:
        self.acknowledged.add_all(numbers)
        for consumer in self.consumers.values():
            for number in numbers.numbers():
                consumer.holds.pop(number, None)

    def _return(self, numbers: Ranges, *, is_counted: bool) -> None:
        for consumer in list(self.consumers.values()):
            given = {number: row for number, row in consumer.holds.items() if number in numbers}
            if given:
                consumer.holds = {
                    number: row for number, row in consumer.holds.items() if number not in given
                }
                former = Consumer(0, 0, consumer.destination, 0, 0, consumer.peer, holds=given)
                self._give_back(former, seen_through=consumer.delivered if is_counted else 0)

    def store(self, destination: int, batch: Batch) -> None:
        queue = self.ready.setdefault(destination, deque())
        for row in range(batch.count):
            self.sequence += 1
            queue.append(Row(self.sequence, batch.slice(row, row + 1)))
        self.deliver()

    def _give_back(self, consumer: Consumer, seen_through: int) -> None:
        rows = []
        for delivery, row in consumer.holds.values():
            row.redelivery_count += delivery <= seen_through
            rows.append(row)
        queue = self.ready.setdefault(consumer.destination, deque())
        self.ready[consumer.destination] = deque(sorted([*rows, *queue], key=lambda row: row.sequence))
        self.deliver()

    def deliver(self) -> None:
        for consumer in self.consumers.values():
            queue = self.ready.setdefault(consumer.destination, deque())
            first = consumer.delivered + 1
            pieces = []
            while (
                queue and consumer.delivered < consumer.messages and consumer.delivered_bytes < consumer.bytes
            ):
                row = queue.popleft()
                consumer.delivered += 1
                consumer.delivered_bytes += len(row.batch.body_bytes(0))
                consumer.holds[row.sequence] = (consumer.delivered, row)
                pieces.append(frames.DeliverPiece(row.sequence, row.redelivery_count, row.batch.encode()))
            if pieces:
                consumer.peer.say(
                    frames.Deliver(
                        session=consumer.session,
                        destination=consumer.destination,
                        term=1,
                        first_delivery=first,
                        consumer=consumer.number,
                        channel=consumer.channel,
                        pieces=tuple(pieces),
                    )
                )


class Peer(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._buffer = FrameBuffer(FRAME_BYTES_MAX)
        self.is_gone = False
        if not server.has_tls:
            server.guests.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.guests.add(self)
        self._server.peers.append(self)
        if self._server.is_over:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        for kind, payload in self._buffer.feed(data):
            self._server.hear(self, frames.decode_client_frame(kind, payload))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self._server.guests.discard(self)
        self._server._look()

    def say(self, frame: frames.ServerFrame) -> None:
        self.transport.write(frames.encode_frame(frame))


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[FakeServer]:
    """A fake server, for as long as the block lasts."""
    server = FakeServer(has_tls=tls is not None, **options)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Peer(server), "127.0.0.1", 0, ssl=tls)
    host, port = listener.sockets[0].getsockname()
    server.url = f"{'antiphon' if tls is None else 'antiphons'}://{host}:{port}"
    try:
        yield server
    finally:
        # Nobody is accepted any more. A client that came back at the last moment has been, and is met before
        # the listener closes: asyncio would lose its socket.
        if tls is None:
            loop.remove_reader(listener.sockets[0].fileno())
        await asyncio.sleep(0)
        server.is_over = True
        server.drop()
        await server.until(lambda: not server.guests)
        listener.close()


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test be a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 10))

    return run
