"""Client managers and the primary of one channel, and between them a network that a test is in charge of.

What is ordered is ordered at once and surely: the bus is not what is looked at here. Everything else that
the two tiers say to each other passes through `Network`, in bytes, and may be lost, doubled, delayed and
reordered.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from antiphon.batch import Batch
from antiphon.bus import codec
from antiphon.bus.effects import EnvelopeCommitted, EnvelopeConfirmed, Multicast, PrimaryChanged, Send
from antiphon.bus.messages import Applied, BusMessage, Deliver
from antiphon.client_manager.effects import (
    ChannelEvent,
    ConnectionLost,
    ConnectionOpened,
    Effect,
    Event,
    FramesReceived,
    SendFrames,
    SendToPrimary,
    SubmitEnvelope,
    TimePassed,
)
from antiphon.client_manager.manager import ClientManager, ClientManagerSettings
from antiphon.ids import IdSource
from antiphon.message_manager.effects import Propose
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    Outcome,
    Payload,
    StartKind,
    Subscribe,
    encode_command,
    kind_of,
    publish_buffers,
)
from tests.unit.message_manager.channel import Channel

CHANNEL = "main"
PRIMARY = 1
MS = 1_000_000
BODY = bytes(50)
CONN = 1

T = TypeVar("T")


@dataclass
class Network:
    """How badly things go, in parts of a thousand, and by how many milliseconds they may be late."""

    chance: random.Random
    lost: int = 0
    doubled: int = 0
    delayed: int = 0
    delay_ms_max: int = 0
    # Said so to whoever asks; True loses the message.
    is_cut: Callable[[int, int, BusMessage], bool] = field(default=lambda sender, to, message: False)

    def heal(self) -> None:
        self.lost = self.doubled = self.delayed = 0
        self.is_cut = lambda sender, to, message: False

    def delays_ms(self, sender: int, to: int, message: BusMessage) -> list[float]:
        """When each copy of a message arrives."""
        if self.is_cut(sender, to, message) or self._happens(self.lost):
            return []
        copies = 2 if self._happens(self.doubled) else 1
        return [
            1 + (self.chance.random() * self.delay_ms_max if self._happens(self.delayed) else 0)
            for _ in range(copies)
        ]

    def _happens(self, per_mille: int) -> bool:
        return per_mille > 0 and self.chance.randrange(1000) < per_mille


@dataclass
class Taken:
    """A consumer as its client sees it."""

    number: int
    subscription: int
    credit: int
    is_open: bool = False
    is_gone: bool = False
    delivered: int = 0
    # Every message that came: its number, and whether it came as redelivered.
    seen: list[tuple[int, bool]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)


class Door:
    """A client manager, with one client that has one session."""

    def __init__(self, tiers: Tiers, node: int, life: int = 1) -> None:
        self.tiers = tiers
        self.node = node
        settings = ClientManagerSettings()
        ids = IdSource(1, node, 3, life)
        self.manager = ClientManager(node, f"cm-{node}", "test", ["-"], ids, [CHANNEL], settings)
        self.consumers: dict[int, Taken] = {}
        self.session = 0
        self.number = 1
        self.answers: dict[int, frames.ServerFrame] = {}
        self.confirmed: dict[int, int] = {}
        self.is_down = False
        self._bytes = FrameBuffer(FRAME_BYTES_MAX)
        self._request = 0

    # -- driving -----------------------------------------------------------------

    def step(self, *events: Event) -> None:
        if not self.is_down:
            for effect in self.manager.step(self.tiers.now_ns, events):
                self._perform(effect)

    def hear(self, *events: object) -> None:
        self.step(*[ChannelEvent(CHANNEL, event) for event in events])  # type: ignore[arg-type]

    def say(self, *said: frames.ClientFrame) -> None:
        self.step(FramesReceived(CONN, list(said)))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendToPrimary(message=message):
                self.tiers.send(self.node, PRIMARY, message)
            case SubmitEnvelope():
                self.tiers.order(self, effect)
            case SendFrames(buffers=buffers):
                for kind, payload in self._bytes.feed(b"".join(buffers)):
                    self._take(frames.decode_server_frame(kind, payload))
            case _:
                pass

    # -- the client ----------------------------------------------------------------

    def connect(self) -> None:
        self.step(ConnectionOpened(CONN, "peer"))
        self.say(frames.Hello(user="ann", password="", client_id=""))
        self.session = self._ask_for(
            frames.SessionOpened,
            lambda request: frames.SessionOpen(
                request=request, session=0, generation=0, ack_mode=frames.AckMode.CLIENT
            ),
        ).session

    def _ask_for(self, kind: type[T], ask: Callable[[int], frames.ClientFrame]) -> T:
        self._request += 1
        self.say(ask(self._request))
        answer = self.answers[self._request]
        assert isinstance(answer, kind), answer
        return answer

    def _take(self, frame: frames.ServerFrame) -> None:
        match frame:
            case frames.Done(request=request):
                self.answers[request] = frame
                for taken in self.consumers.values():
                    taken.is_open = taken.is_open or taken.number == request
            case frames.SessionOpened(request=request) | frames.Failed(request=request):
                self.answers[request] = frame
            case frames.Confirm(items=items):
                for item in items:
                    for at in range(item.count):
                        self.confirmed[item.number + at] = item.code
            case frames.ConsumerGone(consumer=consumer):
                self.consumers[consumer].is_gone = True
            case frames.Deliver(consumer=consumer):
                self._take_delivery(self.consumers[consumer], frame)
            case _:
                pass

    def _take_delivery(self, taken: Taken, frame: frames.Deliver) -> None:
        assert taken.is_open, "deliveries come behind the answer to the opening"
        assert frame.first_delivery == taken.delivered + 1, "deliveries are numbered without gaps"
        for piece in frame.pieces:
            batch = Batch.decode(piece.batch)
            for row in range(batch.count):
                number = piece.first_sequence + batch.offset(row)
                taken.delivered += 1
                taken.seen.append((number, piece.redelivery_count > 0))
                taken.held.add(number)
                self.tiers.handed_out(self, taken, number)
        assert taken.delivered <= taken.credit, "more than its credit"

    def open_consumer(self, credit: int, subscription: int = 0, destination: int = 0) -> Taken:
        """Its number is that of the request, too."""
        self._request += 1
        taken = self.consumers[self._request] = Taken(self._request, subscription, credit)
        self.say(
            frames.ConsumerOpen(
                request=taken.number,
                session=self.session,
                consumer=taken.number,
                channel=CHANNEL,
                destination=destination or self.tiers.queue,
                subscription=subscription,
                credit_messages=credit,
                credit_bytes=credit * 1_000,
            )
        )
        return taken

    def close_consumer(self, taken: Taken, seen_through: int) -> None:
        self._request += 1
        del self.consumers[taken.number]
        self.tiers.let_go(taken)
        self.say(
            frames.ConsumerClose(
                request=self._request, session=self.session, consumer=taken.number, seen_through=seen_through
            )
        )

    def grant(self, taken: Taken, more: int) -> None:
        taken.credit += more
        self.say(
            frames.Credit(
                session=self.session,
                consumer=taken.number,
                messages=taken.credit,
                bytes=taken.credit * 1_000,
            )
        )

    def publish(self, destination: int, count: int) -> None:
        batch = Batch.of_bodies([BODY] * count, self.session, self.number, 1)
        buffers = publish_buffers(self.session, 1, self.number, 0, destination, 1, batch.buffers(), count)
        self.number += count
        self.say(frames.Command(channel=CHANNEL, command=b"".join(buffers)))

    def command(self, payload: Payload) -> None:
        data = encode_command(kind_of(payload), self.session, 1, self.number, 0, payload.encode())
        self.number += 1
        self.say(frames.Command(channel=CHANNEL, command=data))

    def subscribe(self, topic: int) -> int:
        """The id of a subscription of this session."""
        wish = Subscribe(
            destination=topic,
            durable=False,
            shared=False,
            name="",
            client_id="",
            start=StartKind.LATEST,
            number=0,
        )
        before = self.tiers.channel.next
        self.command(wish)
        topics = self.tiers.channel.manager.state.directory.topics
        (subscription,) = [id for topic in topics for id in topic.subscriptions if id >= before]
        return subscription

    def acknowledge(self, taken: Taken, count: int) -> None:
        numbers = sorted(taken.held)[:count]
        if numbers:
            taken.held.difference_update(numbers)
            ranges = Ranges((number, number + 1) for number in numbers)
            destination = self.tiers.topic if taken.subscription else self.tiers.queue
            self.tiers.done(taken, numbers)
            self.command(Acknowledge(destination=destination, subscription=taken.subscription, ranges=ranges))

    def lose_client(self) -> None:
        self.step(ConnectionLost(CONN))


class Tiers:
    """One primary, some client managers, and what is between them."""

    def __init__(
        self,
        doors: int = 1,
        *,
        seed: int = 0,
        settings: MessageManagerSettings | None = None,
    ) -> None:
        self.network = Network(random.Random(seed))
        self.channel = Channel(settings or MessageManagerSettings())
        self.said: list[tuple[int, int, BusMessage]] = []
        self.multicasts: list[Deliver] = []
        # (source, number) -> who holds it, by the words that reached clients.
        self.holders: dict[tuple[int, int], Taken] = {}
        self.redelivered_while_held = 0
        self._late: list[tuple[int, int, int, int, bytes]] = []
        self._count = 0
        self._is_flushing = False
        self._wants_flush = False
        self._exceptions: list[Outcome] = []
        self.queue = self.channel.create("orders")
        self.topic = self.channel.create_topic("news", '{"retention_bytes":0}')
        self.flush()
        self.doors = [Door(self, 2 + at) for at in range(doors)]
        for door in self.doors:
            self.channel.open_producer(door.node)
            self.tell_primary(door)
            door.connect()

    @property
    def now_ns(self) -> int:
        return self.channel.now_ns

    def door(self, node: int) -> Door:
        return self.doors[node - 2]

    # -- what goes between the tiers ---------------------------------------------------

    def send(self, sender: int, to: int, message: BusMessage) -> None:
        self.said.append((sender, to, message))
        data = codec.encode(message, CHANNEL, 1, sender, bytes(16))
        for delay_ms in self.network.delays_ms(sender, to, message):
            self._count += 1
            at_ns = self.now_ns + int(delay_ms * MS)
            heapq.heappush(self._late, (at_ns, self._count, sender, to, data))

    def order(self, door: Door, envelope: SubmitEnvelope) -> None:
        """At once, and confirmed when the step that wanted it is over."""
        first = self.channel.order(envelope.payload, pid=door.node, count=envelope.count)
        self.flush()
        last = first + envelope.count - 1
        exceptions = tuple([one for one in self._exceptions if first <= one.first <= last])
        self._exceptions = [one for one in self._exceptions if one not in exceptions]
        door.hear(
            EnvelopeCommitted(envelope.tag, first, envelope.count),
            EnvelopeConfirmed(envelope.tag, first, envelope.count, exceptions),
        )

    def flush(self) -> None:
        """What the message manager has to say leaves; its proposals are ordered."""
        self._wants_flush = True
        if self._is_flushing:
            return
        self._is_flushing = True
        while self._wants_flush:
            self._wants_flush = False
            for effect in self.channel.flush():
                match effect:
                    case Send(to=to, message=message):
                        self.send(PRIMARY, to, message)
                    case Multicast(message=Applied(exceptions=exceptions)):
                        self._exceptions += exceptions
                    case Multicast(message=Deliver() as message):
                        self.multicasts.append(message)
                        for door in self.doors:
                            self.send(PRIMARY, door.node, message)
                    case Propose(command=command):
                        self.channel.order(command)
                        self._wants_flush = True
                    case _:
                        pass
        self._is_flushing = False

    def _arrive(self, sender: int, to: int, data: bytes) -> None:
        _, message = codec.decode(data)
        if to == PRIMARY:
            self.channel.say(message, sender)
            self.flush()
        else:
            self.door(to).hear(message)

    # -- time ----------------------------------------------------------------------------

    def run_ms(self, ms: float) -> None:
        end_ns = self.now_ns + int(ms * MS)
        while True:
            deadlines = [(end_ns, 3, 0)]
            if self._late:
                deadlines.append((self._late[0][0], 0, 0))
            if (due_ns := self.channel.manager.next_deadline_ns()) is not None:
                deadlines.append((due_ns, 1, 0))
            for door in self.doors:
                if not door.is_down and (due_ns := door.manager.next_deadline_ns()) is not None:
                    deadlines.append((due_ns, 2, door.node))
            at_ns, what, node = min(deadlines)
            self.channel.now_ns = max(self.now_ns, at_ns)
            match what:
                case 0:
                    _, _, sender, to, data = heapq.heappop(self._late)
                    self._arrive(sender, to, data)
                case 1:
                    self.flush()
                case 2:
                    self.door(node).step(TimePassed())
                case _:
                    return

    # -- what happens to nodes -------------------------------------------------------------

    def tell_primary(self, door: Door) -> None:
        door.hear(PrimaryChanged(self.channel.manager.term, PRIMARY))

    def change_primary(self) -> None:
        """The channel is claimed anew, by the same node: for everybody that is another primary."""
        self.channel.claim(PRIMARY)
        self.flush()

    def fence(self, door: Door) -> None:
        """The sequencer takes a client manager for dead, which opens itself again."""
        self.channel.fence(door.node, self.channel.manager.term)
        self.channel.open_producer(door.node)
        self.flush()

    # -- what clients see --------------------------------------------------------------------

    def handed_out(self, door: Door, taken: Taken, number: int) -> None:
        source = taken.subscription or self.queue
        other = self.holders.get((source, number))
        if other is not None:
            self.redelivered_while_held += 1
        self.holders[source, number] = taken

    def done(self, taken: Taken, numbers: list[int]) -> None:
        for number in numbers:
            self.holders.pop((taken.subscription or self.queue, number), None)

    def let_go(self, taken: Taken) -> None:
        self.done(taken, list(taken.held))

    def live(self) -> list[int]:
        """What is in the queue."""
        stored = self.channel.manager.state.directory.get(self.queue)
        assert stored is not None
        return list(stored.live.numbers())

    def kinds_said(self, kind: type[T]) -> list[T]:
        return [message for _, _, message in self.said if isinstance(message, kind)]
