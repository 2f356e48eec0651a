"""TcpTransport: the same frames over streams, where there is no multicast.

Where it sits
    driver and link  ->  TCP  ->  the network

What it promises
    TCP1  One connection per pair of members: the member with the higher number calls, and calls again, less
          and less often, until the other answers.
    TCP2  A connection belongs to a member once that member has sealed something fresh over it. Until then it
          may carry little, and not for long.
    TCP3  A member that does not read loses what is beyond its queue; the others do not wait for it.

What it leaves to others
    Frames on their way when a connection breaks are lost; the roles of the bus ask for what they need.

A record is `[u32 length][u8 0]` and a sealed datagram of up to 64 KiB, as it would be sent over UDP: a
multicast is sealed once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, cast

from antiphon import clock
from antiphon.errors import NodeError, ProtocolError
from antiphon.transport.driver import Driver
from antiphon.transport.faults import FaultLayer
from antiphon.transport.interface import Deliver, TransportSettings, drop_all
from antiphon.transport.link import Out
from antiphon.transport.sealing import LANE, UNICAST, claimed_sender
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

RECORD_BYTES: Final = 64 * 1024
_RECORD_HEAD = Struct("<IB")
_RECORD_PARTS: Final = 3
_LENGTH_MAX: Final = RECORD_BYTES + 1

CALL_SECONDS: Final = 0.05
CALL_SECONDS_MAX: Final = 2.0
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
UNKNOWN_MAX: Final = 64
"""The most connections whose member is not known yet."""


_logger = logging.getLogger("antiphon.transport")


class _TcpConnection(asyncio.Protocol):
    """One stream, and the member at its other end once that is known."""

    def __init__(self, owner: TcpTransport, expected: int | None) -> None:
        self.owner = owner
        self.node: int | None = None
        """The member, once that is known (TCP2)."""
        self.expected = expected
        """The member that we called, or that the other side claims to be."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heard_ns = clock.now_ns()
        self.transport: asyncio.Transport
        self._buffer = FrameBuffer(_LENGTH_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of a TCP connection is one; uvloop's class does not say so.
        self.transport = cast(asyncio.Transport, transport)
        self.owner.began(self)

    def data_received(self, data: bytes) -> None:
        try:
            for _, record in self._buffer.feed(data):
                self.owner.received(self, record)
        except ProtocolError:
            self.owner.spoke_nonsense(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.owner.ended(self)
        if not self.over.done():
            self.over.set_result(None)


class TcpTransport(Driver):
    """Frames over TCP."""

    def __init__(
        self,
        settings: TransportSettings,
        deliver: Deliver = drop_all,
        *,
        faults: FaultLayer | None = None,
        fault_file: Path | None = None,
    ) -> None:
        super().__init__(
            settings,
            deliver,
            is_repairing=False,
            datagram_bytes=RECORD_BYTES,
            faults=faults,
            fault_file=fault_file,
        )
        self._listeners = {
            LANE + lane: [node for node in settings.others if lane in settings.peers[node].lanes]
            for lane in Lane
        }
        self._is_closed = False
        self._bound: dict[int, _TcpConnection] = {}
        self._unknown: list[_TcpConnection] = []
        self._callers: list[asyncio.Task[None]] = []
        self._look_again: asyncio.TimerHandle | None = None

    @property
    def window_bytes(self) -> int:
        """How much may wait for a member that does not read."""
        return self.settings.queue_bytes_max

    async def _open(self) -> None:
        own = self.settings.peers[self.settings.node]
        try:
            self._server = await self._loop.create_server(
                lambda: _TcpConnection(self, None), own.host, own.port, reuse_address=True
            )
        except OSError as error:
            raise NodeError(f"cannot listen on tcp {own.host}:{own.port}: {error.strerror}") from None
        lower = [node for node in self.settings.others if node < self.settings.node]
        self._callers = [self._loop.create_task(self._keep_calling(node)) for node in lower]
        self._look_again = self._loop.call_later(LOOK_SECONDS, self._look)

    async def _close(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        self._is_closed = True
        self._server.close()
        for caller in self._callers:
            caller.cancel()
        connections = list(self._connections())
        for connection in connections:
            connection.transport.close()
        await asyncio.gather(*self._callers, return_exceptions=True)
        if connections:
            await asyncio.wait([connection.over for connection in connections], timeout=LOOK_SECONDS)
        for connection in list(self._connections()):
            connection.transport.abort()

    def _connections(self) -> Iterator[_TcpConnection]:
        yield from list(self._bound.values())
        yield from list(self._unknown)

    # -- connections -----------------------------------------------------------

    async def _keep_calling(self, node: int) -> None:
        """Keep a connection to this member (TCP1)."""
        peer = self.settings.peers[node]
        pause_s = CALL_SECONDS
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, connection = await self._loop.create_connection(
                        lambda: _TcpConnection(self, node), peer.host, peer.port
                    )
            except OSError:
                pass
            else:
                await connection.over
                if connection.node is not None:
                    pause_s = CALL_SECONDS
            # Spread out, so that not all call at once when a member comes back.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, CALL_SECONDS_MAX)

    def began(self, connection: _TcpConnection) -> None:
        """A connection is made, with an unknown member."""
        if self._is_closed:
            connection.transport.abort()
            return
        self._unknown.append(connection)
        if connection.expected is not None:
            self._link.greet(clock.now_ns(), connection.expected)
            self._schedule()
        elif len(self._unknown) > UNKNOWN_MAX:
            self._unknown[0].transport.abort()

    def ended(self, connection: _TcpConnection) -> None:
        if connection in self._unknown:
            self._unknown.remove(connection)
        if connection.node is not None and self._bound.get(connection.node) is connection:
            del self._bound[connection.node]

    def spoke_nonsense(self, connection: _TcpConnection) -> None:
        """A record has an impossible length: this is no member."""
        self._link.note_garbage()
        connection.transport.abort()

    def _bind(self, connection: _TcpConnection, node: int) -> None:
        """This is that member's connection, and the only one (TCP2)."""
        self._unknown.remove(connection)
        former = self._bound.get(node)
        self._bound[node] = connection
        connection.node = node
        if former is not None:
            former.transport.abort()
        # The member may not know us yet.
        self._link.greet(clock.now_ns(), node)

    def _route(self, node: int) -> _TcpConnection | None:
        connection = self._bound.get(node)
        if connection is None:
            connection = next((one for one in reversed(self._unknown) if one.expected == node), None)
        return connection

    def _look(self) -> None:
        """End connections that are silent, or whose member stays unknown."""
        self._look_again = self._loop.call_later(LOOK_SECONDS, self._look)
        limit_ns = clock.now_ns() - int(SILENCE_SECONDS * 1e9)
        for connection in self._connections():
            if connection.heard_ns < limit_ns:
                connection.transport.abort()

    # -- records ---------------------------------------------------------------

    def received(self, connection: _TcpConnection, record: memoryview) -> None:
        """A whole record came over a connection."""
        now_ns = clock.now_ns()
        if self._faults is None:
            self._take(now_ns, connection, record)
        else:
            for arrived in self._faults.arrive(now_ns, claimed_sender(record), bytes(record)):
                self._take(now_ns, connection, arrived)
        self._schedule()

    def _take(self, now_ns: int, connection: _TcpConnection | None, record: Buffer) -> None:
        link = self._link
        answers_from = len(link.outgoing)
        run = link.receive(now_ns, record)
        if run is None or connection is None:
            return
        if connection.node is None:
            connection.expected = run.sender
            if run.is_proven:
                self._bind(connection, run.sender)
        elif connection.node != run.sender:
            return
        connection.heard_ns = now_ns
        # An answer goes where the question came from: the member may have another, dying connection.
        answers = link.outgoing[answers_from:]
        if answers:
            mine = [datagram for destination, datagram in answers if destination == UNICAST + run.sender]
            link.outgoing[answers_from:] = [out for out in answers if out[0] != UNICAST + run.sender]
            for datagram in mine:
                self._write(connection, run.sender, _record(datagram))

    def _take_late(self, now_ns: int) -> None:
        assert self._faults is not None
        for sender, record in self._faults.due(now_ns):
            self._take(now_ns, self._route(sender), record)

    def _has_room(self, stream: int) -> bool:
        if stream >= UNICAST:
            return self._takes_more(self._route(stream - UNICAST))
        # A multicast counts as sent if a single member receives it; the others miss it.
        for node in self._listeners[stream]:
            if not self._takes_more(self._route(node)):
                self._link.counters[node].dropped += 1
        return True

    def _takes_more(self, connection: _TcpConnection | None) -> bool:
        if connection is None or connection.transport.is_closing():
            return False
        return connection.transport.get_write_buffer_size() <= self.settings.queue_bytes_max

    def _transmit(self, outgoing: list[Out]) -> None:
        gathered: dict[int, list[bytes]] = {}
        for destination, datagram in outgoing:
            record = _record(datagram)
            nodes = self._listeners[destination] if destination < UNICAST else [destination - UNICAST]
            for node in nodes:
                gathered.setdefault(node, []).extend(record)
        for node, parts in gathered.items():
            self._write(self._route(node), node, parts)

    def _write(self, connection: _TcpConnection | None, node: int, parts: list[bytes]) -> None:
        if self._takes_more(connection):
            assert connection is not None
            connection.transport.writelines(parts)
        elif connection is not None:
            # The queue has filled up since the step began; frames for no member were counted when they were
            # sent.
            self._link.counters[node].dropped += len(parts) // _RECORD_PARTS


def _record(datagram: tuple[bytes, bytes]) -> list[bytes]:
    head, rest = datagram
    return [_RECORD_HEAD.pack(1 + len(head) + len(rest), 0), head, rest]
