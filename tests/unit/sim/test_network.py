"""The simulated network: bytes in order, late and in pieces, until the connection breaks."""

from __future__ import annotations

from antiphon.client_manager.effects import (
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    FramesReceived,
    SendFrames,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.node import NodeEvent
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.network import ClientPort, Connection, Network
from antiphon.sim.world import SECOND_NS, World
from antiphon.wire.frames import Goodbye, Hello, Ping, Pong, ServerFrame, encode_frame


class Client:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.heard: list[ServerFrame] = []
        self.is_lost = False

    def on_frame(self, frame: ServerFrame) -> None:
        self.heard.append(frame)

    def on_lost(self) -> None:
        self.is_lost = True


class Scene:
    """One client, one port, one connection."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.events: list[NodeEvent] = []
        self.port = ClientPort(self.world, 1, Watch([]), self.events.extend)
        self.client = Client()
        self.connection: Connection = self.network.connect(self.client, self.port)

    def run(self) -> None:
        self.world.run(self.world.now_ns + SECOND_NS)

    def said(self) -> list[object]:
        return [frame for event in self.events if isinstance(event, FramesReceived) for frame in event.frames]


def test_frames_arrive_whole_and_in_order_however_they_are_cut() -> None:
    scene = Scene()
    scene.network.habits.chunk_probability = 1.0
    frames = [Ping(nonce=nonce) for nonce in range(50)]
    for frame in frames:
        scene.connection.send(frame)
        scene.port.carry_out(SendFrames(1, [encode_frame(Pong(nonce=frame.nonce))]))

    scene.run()

    assert scene.events[0] == ConnectionOpened(1, "sim")
    assert scene.said() == frames
    assert scene.client.heard == [Pong(nonce=nonce) for nonce in range(50)]


def test_a_client_that_dies_is_heard_to_the_end() -> None:
    scene = Scene()
    scene.connection.send(Ping(nonce=1))
    scene.connection.abandon()

    scene.run()

    assert scene.said() == [Ping(nonce=1)]
    assert isinstance(scene.events[-1], ConnectionLost)


def test_a_broken_connection_loses_what_was_under_way_and_tells_both_sides() -> None:
    scene = Scene()
    scene.connection.send(Ping(nonce=1))
    scene.connection.break_off()

    scene.run()

    assert scene.said() == []
    assert scene.client.is_lost
    assert isinstance(scene.events[-1], ConnectionLost)


def test_a_node_that_sends_a_client_away_says_why() -> None:
    scene = Scene()
    scene.port.carry_out(CloseConnection(1, "limit", "too many"))

    scene.run()

    assert scene.client.heard == [Goodbye(code="limit", text="too many")]
    assert scene.client.is_lost
    # The node knows; nobody tells it.
    assert not any(isinstance(event, ConnectionLost) for event in scene.events)


def test_nonsense_ends_the_connection() -> None:
    scene = Scene()
    scene.connection.send(Hello(user="a", password="", client_id=""))
    scene.connection.send_bytes(b"\1\0\0\0\xff")

    scene.run()

    assert len(scene.said()) == 1
    assert scene.events[-1] == ConnectionLost(1, "remote.protocol", "frame type 255 is not known")


def test_a_paused_client_is_heard_after_all() -> None:
    scene = Scene()
    scene.connection.pause_reading()
    scene.connection.send(Ping(nonce=1))
    scene.run()
    assert scene.said() == []

    scene.connection.resume_reading()
    assert scene.said() == [Ping(nonce=1)]


def test_a_node_learns_that_a_client_does_not_keep_up() -> None:
    scene = Scene()
    scene.network.habits.write_buffer_bytes = 100
    scene.port.carry_out(SendFrames(1, [encode_frame(Pong(nonce=1))] * 20))

    scene.run()

    assert scene.events[1:] == [WriteBlocked(1), WriteUnblocked(1)]
