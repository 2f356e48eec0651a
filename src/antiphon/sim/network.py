"""Network: connections between clients and a node, as bytes that arrive late and cut anywhere.

Each direction of a connection is a pipe that keeps order and loses nothing until it breaks, as a stream
promises. Both ends speak real frames through the real `FrameBuffer`. When a connection breaks, either side
learns of it in its own time, and bytes under way are gone: the sender never knows how many arrived.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.batch import Batch
from antiphon.client_manager.effects import (
    AdmitConnection,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    FramesReceived,
    PauseReading,
    ResumeReading,
    SendFrames,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.errors import ProtocolError
from antiphon.node import NodeEffect, NodeEvent
from antiphon.sim.checkers.watch import PortConsumer, Stand, Watch
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, World
from antiphon.wire.buffer import FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import CommandKind, OutcomeCode, Return, read_command
from antiphon.wire.frames import (
    ClientFrame,
    Command,
    Confirm,
    ConsumerClose,
    ConsumerDrain,
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    Credit,
    Deliver,
    Done,
    Goodbye,
    ServerFrame,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    decode_client_frame,
    decode_server_frame,
    encode_frame,
)
from antiphon.wire.primitives import Buffer

_CLOSED = "the client closed the connection"

Stands = dict[tuple[int, int], Stand]
"""The attached consumers of a connection, by session and number."""


@dataclass(slots=True)
class NetworkHabits:
    """The latencies and breaks of this run's connections."""

    latency_ns: int = 100 * MICROSECOND_NS
    stall_probability: float = 0.0
    stall_ns: int = 20 * MILLISECOND_NS
    chunk_probability: float = 0.2
    write_buffer_bytes: int = 64 * 1024


class ClientEnd(Protocol):
    """The client's end of a connection."""

    def on_frame(self, frame: ServerFrame) -> None:
        """The node sent this frame."""

    def on_lost(self) -> None:
        """The connection is gone."""


class Pipe:
    """One direction: bytes in order, late, and in pieces of any size."""

    def __init__(self, network: Network, deliver: Callable[[bytes], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._last_arrival_ns = 0
        self._held: list[bytes] = []
        self.is_paused = False
        self.is_cut = False
        self.under_way = 0

    def send(self, data: bytes) -> None:
        if self.is_cut or not data:
            return
        chance, habits = self._network.chance, self._network.habits
        self.under_way += len(data)
        pieces = [data]
        if len(data) > 1 and chance.random() < habits.chunk_probability:
            cut = chance.randrange(1, len(data))
            pieces = [data[:cut], data[cut:]]
            self._network.world.probe("network.frame_cut")
        for piece in pieces:
            self._schedule(lambda piece=piece: self._arrive(piece))  # type: ignore[misc]

    def after_all(self, action: Callable[[], None]) -> None:
        """Act when everything sent so far has arrived."""
        self._schedule(action)

    def cut(self) -> None:
        """Break: nothing under way arrives."""
        self.is_cut = True
        self._held.clear()

    def pause(self) -> None:
        """The receiver does not read."""
        self.is_paused = True

    def resume(self) -> None:
        """The receiver reads again, first the bytes that have waited."""
        self.is_paused = False
        held, self._held = self._held, []
        for data in held:
            self._arrive(data)

    def _schedule(self, action: Callable[[], None]) -> None:
        network = self._network
        arrival = max(network.world.now_ns + network.latency_ns(), self._last_arrival_ns)
        self._last_arrival_ns = arrival
        network.world.after(arrival - network.world.now_ns, action)

    def _arrive(self, data: bytes) -> None:
        if self.is_cut:
            return
        if self.is_paused:
            self._held.append(data)
            return
        self.under_way -= len(data)
        self._deliver(data)


class Connection:
    """A stream between one client and one node."""

    def __init__(self, network: Network, number: int, client: ClientEnd, node: ClientPort) -> None:
        self.number = number
        self.node_id = node.node_id
        self._network = network
        self._client = client
        self._node = node
        self._client_buffer = FrameBuffer(FRAME_BYTES_MAX)
        self._node_buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
        self._to_node = Pipe(network, self._arrive_at_node)
        self._to_client = Pipe(network, self._arrive_at_client)
        self._client_knows_end = False
        self._node_knows_end = False
        self._is_blocked = False
        # The node's standing when it sent the last frame that the client received; and its standings since,
        # by the count of bytes up to then.
        self.heard: Stands = {}
        self._stands: deque[tuple[int, Stands]] = deque()
        self._written = self._read = 0

    def send(self, frame: ClientFrame) -> None:
        self.send_bytes(encode_frame(frame))

    def send_bytes(self, data: bytes) -> None:
        """The client sends an encoded frame."""
        if not self._client_knows_end:
            self._to_node.send(data)

    def abandon(self) -> None:
        """The client's process dies: its bytes may still arrive, then the node sees the end."""
        self._client_knows_end = True
        self._to_client.cut()
        self._to_node.after_all(lambda: self._end_at_node("", _CLOSED))

    def admit(self, frame_bytes_max: int) -> None:
        """The client is authenticated."""
        self._node_buffer.limit = frame_bytes_max

    def write(self, buffers: Sequence[Buffer], stands: Stands | None = None) -> None:
        """The node writes to the client, with its standing at this moment."""
        if self._node_knows_end:
            return
        data = b"".join(buffers)
        self._written += len(data)
        if stands is not None:
            self._stands.append((self._written, stands))
        self._to_client.send(data)
        if not self._is_blocked and self._to_client.under_way > self._network.habits.write_buffer_bytes:
            self._is_blocked = True
            self._network.world.probe("network.write_blocked")
            self._node.on_blocked(self, True)

    def pause_reading(self) -> None:
        self._network.world.probe("network.reading_paused")
        self._to_node.pause()

    def resume_reading(self) -> None:
        self._to_node.resume()

    def close(self, code: str, text: str) -> None:
        if code:
            self.write([encode_frame(Goodbye(code=code, text=text))])
        self._node_knows_end = True
        self._to_node.cut()
        self._to_client.after_all(self._end_at_client)

    def die(self) -> None:
        """The node's process dies; the bytes it had written may still arrive, in part."""
        self._node_knows_end = True
        self._to_node.cut()
        if self._network.chance.random() < 0.5:
            self._to_client.cut()
        self._to_client.after_all(self._end_at_client)

    def break_off(self) -> None:
        """The network between the two failed: each side learns of it in its own time."""
        chance = self._network.chance
        self._to_node.cut()
        self._to_client.cut()
        for learn in (self._end_at_client, lambda: self._end_at_node("", "the connection was reset")):
            self._network.world.after(chance.randrange(20 * MILLISECOND_NS), learn)

    def _arrive_at_node(self, data: bytes) -> None:
        if self._node_knows_end:
            return
        frames: list[ClientFrame] = []
        try:
            frames.extend(decode_client_frame(kind, body) for kind, body in self._node_buffer.feed(data))
        except ProtocolError as error:
            self._node.on_frames(self, frames)
            self._end_at_node(error.code, str(error))
            return
        if frames:
            self._node.on_frames(self, frames)

    def _arrive_at_client(self, data: bytes) -> None:
        if self._client_knows_end:
            return
        if self._is_blocked and self._to_client.under_way < self._network.habits.write_buffer_bytes // 2:
            self._is_blocked = False
            self._node.on_blocked(self, False)
        self._read += len(data)
        for kind, body in self._client_buffer.feed(data):
            self._client.on_frame(decode_server_frame(kind, body))
        while self._stands and self._stands[0][0] <= self._read:
            self.heard = self._stands.popleft()[1]

    def _end_at_client(self) -> None:
        if not self._client_knows_end:
            self._client_knows_end = True
            self._to_node.cut()
            self._client.on_lost()
            if not self._node_knows_end:
                self._network.world.after(0, lambda: self._end_at_node("", _CLOSED))

    def _end_at_node(self, code: str, text: str) -> None:
        if not self._node_knows_end:
            self._node_knows_end = True
            self._to_client.after_all(self._end_at_client)
            self._node.on_lost(self, code, text)


class Network:
    """Makes the connections of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance: random.Random = world.random("network")
        self.habits = NetworkHabits()
        self._connections = 0

    def connect(self, client: ClientEnd, node: ClientPort) -> Connection:
        """Connect a client to a node that is up. Numbers are never given twice."""
        self._connections += 1
        connection = Connection(self, self._connections, client, node)
        node.on_connected(connection)
        return connection

    def latency_ns(self) -> int:
        """The latency of the next bytes."""
        latency = int(self.habits.latency_ns * self.chance.uniform(0.2, 2.0))
        if self.chance.random() < self.habits.stall_probability:
            latency += self.chance.randrange(self.habits.stall_ns)
        return latency


class ClientPort:
    """The connections of one life of a node: frames to its client manager, and its effects back."""

    def __init__(
        self, world: World, node: int, watch: Watch, take: Callable[[list[NodeEvent]], None]
    ) -> None:
        self.is_listening = False
        self.stands_of: Callable[[int], Stands] | None = None
        self.node_id = node
        self._world = world
        self._node = node
        self._watch = watch
        self._take = take
        self._connections: dict[int, Connection] = {}
        self._holders: dict[PortConsumer, None] = {}
        # Sessions that clients were told to have, by connection and session: the generation.
        self._attached: dict[tuple[int, int], int] = {}
        # Consumers to be attached again, by connection and request.
        self._coming_back: dict[tuple[int, int], ConsumerResume] = {}
        self._draining: dict[tuple[int, int], PortConsumer] = {}
        # Consumers that were closed in this step.
        self._closed: list[ConsumerClose] = []

    def on_connected(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._take([ConnectionOpened(connection.number, "sim")])

    def on_frames(self, connection: Connection, frames: list[ClientFrame]) -> None:
        self._take([FramesReceived(connection.number, frames)])

    def on_lost(self, connection: Connection, code: str, text: str) -> None:
        """The client is gone, or sent no valid frame."""
        if self._connections.pop(connection.number, None) is not None:
            self._take([ConnectionLost(connection.number, code, text)])

    def on_blocked(self, connection: Connection, is_blocked: bool) -> None:
        """Does the client read more slowly than the node writes?"""
        event = WriteBlocked if is_blocked else WriteUnblocked
        self._take([event(connection.number)])

    def carry_out(self, effect: NodeEffect) -> None:
        """Execute the effect; without its connection the effect has no meaning any more."""
        match effect:
            case SendFrames(conn=conn, buffers=buffers):
                if (connection := self._connections.get(conn)) is not None:
                    self._look_at(conn, buffers)
                    connection.write(buffers, None if self.stands_of is None else self.stands_of(conn))
            case AdmitConnection(conn=conn, frame_bytes_max=limit):
                if (connection := self._connections.get(conn)) is not None:
                    connection.admit(limit)
            case CloseConnection(conn=conn, code=code, text=text):
                if (connection := self._connections.pop(conn, None)) is not None:
                    self._world.probe(f"port.closed.{code}")
                    self._let_go(conn, None, None)
                    self._leave(conn, None)
                    connection.close(code, text)
            case PauseReading(conn=conn):
                if (connection := self._connections.get(conn)) is not None:
                    connection.pause_reading()
            case ResumeReading(conn=conn):
                if (connection := self._connections.get(conn)) is not None:
                    connection.resume_reading()
            case _:
                raise AssertionError(f"{type(effect).__name__} is nothing a client port can do")

    def close_all(self, code: str, text: str) -> None:
        """Send `Goodbye` to all clients."""
        for connection in self._connections.values():
            connection.close(code, text)
        self._connections.clear()
        self._leave(None, None)

    def die(self) -> None:
        for connection in self._connections.values():
            connection.die()
        self._connections.clear()
        self._leave(None, None)

    def before_step(self, events: list[NodeEvent]) -> None:
        """The node receives these events: the messages of closed consumers may go to others from here on."""
        for event in events:
            if isinstance(event, ConnectionLost):
                self._let_go(event.conn, None, None)
                self._leave(event.conn, None)
            elif isinstance(event, FramesReceived):
                for frame in event.frames:
                    if isinstance(frame, Command):
                        self._look_at_command(frame)
                    elif isinstance(frame, ConsumerClose):
                        self._let_go(None, frame.session, frame.consumer)
                        self._closed.append(frame)
                    elif isinstance(frame, SessionOpen | SessionClose) and frame.session:
                        self._let_go(None, frame.session, None)
                        self._leave(None, frame.session)
                    else:
                        self._look_at_credit(event.conn, frame)

    def after_step(self) -> None:
        """Messages that came before a consumer's end, and were delivered in the same step, are not held
        either."""
        for frame in self._closed:
            self._let_go(None, frame.session, frame.consumer)
        self._closed.clear()

    def _look_at_credit(self, conn: int, frame: ClientFrame) -> None:
        if not isinstance(frame, ConsumerOpen | ConsumerResume | ConsumerDrain | Credit):
            return
        holder = PortConsumer(conn, frame.session, frame.consumer)
        match frame:
            case ConsumerResume():
                self._coming_back[conn, frame.request] = frame
                self._watch.on_credit(self._node, holder, frame.credit_messages, frame.delivered_messages)
            case ConsumerOpen():
                self._watch.on_credit(self._node, holder, frame.credit_messages, 0)
            case ConsumerDrain():
                self._draining[conn, frame.request] = holder
                self._watch.on_credit(self._node, holder, frame.messages, None)
            case Credit():
                self._watch.on_credit(self._node, holder, frame.messages, None)

    def _look_at_command(self, frame: Command) -> None:
        header, body = read_command(frame.command)
        if header.kind == CommandKind.RETURN:
            back = Return.decode(body)
            self._watch.on_given_back(self._node, header.session, back.subscription, back.ranges)

    def _look_at(self, conn: int, buffers: Sequence[Buffer]) -> None:
        for kind, payload in FrameBuffer(FRAME_BYTES_MAX).feed(b"".join(buffers)):
            frame = decode_server_frame(kind, payload)
            if isinstance(frame, Confirm):
                for item in [one for one in frame.items if one.code != OutcomeCode.TAKEN]:
                    self._watch.on_confirm_left(
                        self._node, frame.session, item.number, item.count, item.code, item.sequence
                    )
            elif isinstance(frame, Deliver):
                holder = PortConsumer(conn, frame.session, frame.consumer)
                self._holders[holder] = None
                delivery = frame.first_delivery - 1
                for first, redelivered, data in frame.pieces:
                    batch = Batch.decode(data)
                    delivery += batch.count
                    for start, stop, offset in batch.runs():
                        self._watch.on_handed_out(
                            self._node, holder, first + offset, stop - start, redelivered
                        )
                self._watch.on_sent_through(self._node, holder, delivery)
            elif isinstance(frame, Done):
                if (drained := self._draining.pop((conn, frame.request), None)) is not None:
                    self._watch.on_drained(self._node, drained)
            elif isinstance(frame, ConsumerLost):
                holder = PortConsumer(conn, frame.session, frame.consumer)
                self._watch.on_lost_told(self._node, holder, frame.lost)
            elif isinstance(frame, SessionOpened):
                self._attached[conn, frame.session] = frame.generation
                self._watch.on_attached(self._node, frame.session, frame.generation)
            elif isinstance(frame, SessionGone):
                self._leave(conn, frame.session)
            elif isinstance(frame, ConsumerGone):
                self._let_go(None, frame.session, frame.consumer)
            elif isinstance(frame, ConsumerResumed):
                wish = self._coming_back.pop((conn, frame.request))
                holder = PortConsumer(conn, wish.session, wish.consumer)
                self._holders[holder] = None
                self._watch.on_kept(self._node, holder, wish.held.difference(frame.lost))

    def _leave(self, conn: int | None, session: int | None) -> None:
        for at, known in list(self._attached):
            if (conn is None or at == conn) and (session is None or known == session):
                self._watch.on_left(self._node, known, self._attached.pop((at, known)))

    def _let_go(self, conn: int | None, session: int | None, consumer: int | None) -> None:
        for holder in list(self._holders):
            if (
                (conn is None or holder.connection == conn)
                and (session is None or holder.session == session)
                and (consumer is None or holder.consumer == consumer)
            ):
                del self._holders[holder]
                self._watch.on_holder_gone(self._node, holder)
