"""Several client managers make, find and delete the same few names in several channels, in any order.

What they say to the channels is taken up in any order between them, and questions, answers and advertisements
may be lost. At no time are there two destinations of one name, and whoever is told where a destination lives
is told what was true.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.bus.effects import (
    EnvelopeCommitted,
    EnvelopeConfirmed,
    LoadChanged,
    Multicast,
    Send,
    ServiceChanged,
)
from antiphon.bus.messages import Advertised, Applied, Query, Reply
from antiphon.client_manager.effects import (
    ChannelEvent,
    ConnectionOpened,
    Effect,
    Event,
    FramesReceived,
    SendFrames,
    SendToPrimary,
    SendToReplica,
    SubmitEnvelope,
    TimePassed,
)
from antiphon.client_manager.manager import ClientManager, ClientManagerSettings
from antiphon.ids import IdSource
from antiphon.message_manager.manager import MessageManager
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import DeleteDestination, Outcome
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import AT_ONCE, NODE, of_node

CHANNELS = ("a", "b", "c")
NAMES = ("queue:x", "queue:y")
MS = 1_000_000


class Place:
    """One channel: its log, and the places where each name has ever been in it."""

    def __init__(self, name: str) -> None:
        self.channel = RestoredChannel(begin=False)
        self.channel.manager = MessageManager(name, NODE, self.channel.payloads, AT_ONCE)
        self.channel.claim(NODE)
        self.channel.flush()
        self.ever: set[tuple[str, int]] = set()

    def order(self, node: int, envelope: SubmitEnvelope) -> tuple[int, tuple[Outcome, ...]]:
        first = self.channel.order(envelope.payload, pid=node)
        last = first + envelope.count - 1
        said = self.flush()
        exceptions = [
            outcome for message in said if isinstance(message, Applied) for outcome in message.exceptions
        ]
        self.advertised = [message for message in said if isinstance(message, Advertised)]
        self.ever |= {(one.name, one.id) for one in self.channel.manager.state.directory}
        return first, tuple(outcome for outcome in exceptions if first <= outcome.first <= last)

    def flush(self) -> list[object]:
        return [effect.message for effect in self.channel.flush() if isinstance(effect, Multicast | Send)]

    def names(self) -> list[str]:
        return [one.name for one in self.channel.manager.state.directory]


class Door:
    """One client manager with one client."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.manager = ClientManager(
            node, f"cm-{node}", "test", [], IdSource(node, 2, 3, 4), CHANNELS, ClientManagerSettings()
        )
        self.now_ns = 0
        self.wants: dict[int, str] = {}  # name by request
        self.many: set[int] = set()  # requests for all names at once
        self.submitted: dict[str, list[SubmitEnvelope]] = {channel: [] for channel in CHANNELS}
        self.asked: list[tuple[str, Query]] = []
        self.opened: list[tuple[str, frames.DestinationOpened]] = []
        self._stream = FrameBuffer(FRAME_BYTES_MAX)
        self.step(ConnectionOpened(1, "peer"))
        self.step(FramesReceived(1, [frames.Hello(user="", password="", client_id="")]))

    def step(self, *events: Event) -> None:
        for effect in self.manager.step(self.now_ns, events):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SubmitEnvelope():
                self.submitted[effect.channel].append(effect)
            case SendToPrimary() | SendToReplica():
                assert isinstance(effect.message, Query)
                self.asked.append((effect.channel, effect.message))
            case SendFrames(buffers=buffers):
                for kind, payload in self._stream.feed(b"".join(buffers)):
                    frame = frames.decode_server_frame(kind, payload)
                    if isinstance(frame, frames.DestinationsCreated):
                        self.many.discard(frame.request)
                    elif isinstance(frame, frames.DestinationOpened | frames.Failed):
                        name = self.wants.pop(frame.request)
                        if isinstance(frame, frames.DestinationOpened):
                            self.opened.append((name, frame))

    def want(self, request: int, name: str, kind: int, channel: str) -> None:
        self.wants[request] = name
        if kind == 2:
            wish = f'{{"channel":"{channel}"}}'
            frame: frames.ClientFrame = frames.DestinationCreate(request=request, name=name, settings=wish)
        else:
            frame = frames.DestinationOpen(request=request, name=name, create=bool(kind))
        self.step(FramesReceived(1, [frame]))

    def want_all(self, request: int) -> None:
        self.many.add(request)
        wish = frames.DestinationsCreate(request=request, names=NAMES, settings="{}")
        self.step(FramesReceived(1, [wish]))

    def tick(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.step(TimePassed())


class Scene:
    """All of them, and what is on its way between them."""

    def __init__(self, seed: int, doors: int) -> None:
        self.chance = random.Random(seed)
        self.places = {name: Place(name) for name in CHANNELS}
        self.doors = [Door(node) for node in range(11, 11 + doors)]
        self._requests = 0

    def move(self) -> None:
        chance, door = self.chance, self.chance.choice(self.doors)
        kind = chance.randrange(12)
        if kind < 3:
            self._requests += 1
            if chance.random() < 0.2:
                door.want_all(self._requests)
                return
            door.want(self._requests, chance.choice(NAMES), chance.randrange(3), chance.choice(CHANNELS))
        elif kind < 7:
            self.take_envelope(door)
        elif kind < 9:
            self.answer(door, is_lost=chance.random() < 0.2)
        elif kind == 9:
            self.delete()
        elif kind == 10:
            door.tick(chance.choice((50, 250, 6_000)))
        else:
            load = chance.randrange(10 << 20)
            event = LoadChanged(load) if chance.random() < 0.7 else ServiceChanged(chance.random() < 0.5)
            door.step(ChannelEvent(chance.choice(CHANNELS), event))
        self.check()

    def take_envelope(self, door: Door) -> None:
        ready = [channel for channel in CHANNELS if door.submitted[channel]]
        if not ready:
            return
        channel = self.chance.choice(ready)
        envelope, place = door.submitted[channel].pop(0), self.places[channel]
        first, exceptions = place.order(door.node, envelope)
        for message in place.advertised:
            for other in self.doors:
                if self.chance.random() < 0.7:
                    other.step(ChannelEvent(channel, message))
        door.step(
            ChannelEvent(channel, EnvelopeCommitted(envelope.tag, first, envelope.count)),
            ChannelEvent(channel, EnvelopeConfirmed(envelope.tag, first, envelope.count, exceptions)),
        )

    def answer(self, door: Door, *, is_lost: bool) -> None:
        if not door.asked:
            return
        channel, lookup = door.asked.pop(self.chance.randrange(len(door.asked)))
        place = self.places[channel]
        place.channel.say(lookup, sender=door.node)
        for message in place.flush():
            if isinstance(message, Reply) and not is_lost:
                door.step(ChannelEvent(channel, message))

    def delete(self) -> None:
        place = self.places[self.chance.choice(CHANNELS)]
        there = list(place.channel.manager.state.directory)
        if there:
            gone = self.chance.choice(there)
            place.channel.order(of_node(DeleteDestination(destination=gone.id)))
            place.flush()

    def check(self) -> None:
        names = [name for place in self.places.values() for name in place.names()]
        assert len(names) == len(set(names)), f"one name in two channels: {names}"
        for door in self.doors:
            for name, opened in door.opened:
                assert (name, opened.destination) in self.places[opened.channel].ever, (name, opened)
            door.opened.clear()

    def settle(self) -> None:
        """Nothing is lost any more: everybody who waits is told."""
        for _ in range(200):
            for door in self.doors:
                for _ in range(3):
                    self.take_envelope(door)
                    self.answer(door, is_lost=False)
                door.tick(100)
                self.check()
            if not any(door.wants or door.many for door in self.doors):
                return
        raise AssertionError(f"never told: {[door.wants for door in self.doors]}")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), doors=st.integers(1, 3), moves=st.integers(10, 120))
def test_a_name_lives_in_one_channel_and_everybody_is_told_the_truth(
    seed: int, doors: int, moves: int
) -> None:
    scene = Scene(seed, doors)
    for _ in range(moves):
        scene.move()
    scene.settle()
    for door in scene.doors:
        assert door.manager.next_deadline_ns() is None, "nothing is asked for ever"
