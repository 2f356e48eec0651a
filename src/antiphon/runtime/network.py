"""Client port: the sockets of clients, as frames to the client manager and as its effects back.

Where it sits
    TCP  <->  CLIENT PORT  <->  client_manager

What it promises
    N1  Frames of all connections that arrive in one round of the event loop are handed over together,
        those of one connection in their order.
    N2  Bytes that are no frame end their own connection, with a Goodbye that says why; the node and
        all other connections go on.
    N3  A peer costs bounded memory before and after it has shown who it is: a frame's length is judged
        before its bytes are kept, reading stops when the manager says so, and what a peer does not
        read is kept up to a limit, then the peer is cut off.
    N4  A peer that does not finish its greeting, falls silent, or sends a frame at a snail's pace is
        sent away.

What it leaves to others
    What frames mean is the client manager's. Its effects come in by `carry_out`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from antiphon.client_manager.effects import (
    AdmitConnection,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    Effect,
    FramesReceived,
    PauseReading,
    ResumeReading,
    SendFrames,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.errors import RemoteError
from antiphon.wire.buffer import HANDSHAKE_FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.frames import Goodbye, Ping, decode_client_frame, encode_frame
from antiphon.wire.primitives import Buffer

PortEvent: TypeAlias = ConnectionOpened | FramesReceived | ConnectionLost | WriteBlocked | WriteUnblocked

# Why a connection ended, when neither the peer nor the manager said so.
TOO_MANY = "connection.limit"
NO_GREETING = "connection.handshake"
SILENT = "connection.silent"
SLOW = "connection.slow"
STOPPING = "connection.stopping"

_SILENT_PING, _SILENT_CLOSE = 2, 6  # in half heartbeats: one, and three
_CRAWLING_CLOSE = 3

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """Limits of the client port."""

    connections_max: int = 10_000
    handshake_s: float = 10.0
    heartbeat_s: float = 10.0
    """A peer that says nothing for so long is pinged; for three times as long, it is gone."""

    progress_bytes_min: int = 1 * KIB
    """Bytes a second of a frame that has begun; fewer, for half a minute or so, and the peer is sent away."""

    write_high_bytes: int = 1 * MIB
    write_low_bytes: int = 256 * KIB
    """Between these marks the manager gives a peer no further credit."""

    write_bytes_max: int = 64 * MIB
    """What a peer has credit for may arrive all at once, so this is far above the high mark."""

    linger_s: float = 2.0
    """How long a closed connection may take to hear our Goodbye."""

    def __post_init__(self) -> None:
        marks = (0, self.write_low_bytes, self.write_high_bytes, self.write_bytes_max)
        assert list(marks) == sorted(marks), "the marks of a write buffer are out of order"


class ClientConnection(asyncio.Protocol):
    """One peer: its bytes, and what it owes us."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self.conn = 0
        self.transport: asyncio.Transport | None = None
        self.buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
        self.timer: asyncio.TimerHandle | None = None
        self.is_welcome = False
        self.is_over = False  # nothing is taken from it any more, and nothing but Goodbye said to it
        self.is_paused = False
        self.received_bytes = 0
        self.received_frames = 0
        # At the last look at everybody: how far it was, and for how many looks it has done too little.
        self.looked_bytes = 0
        self.looked_frames = 0
        self.silent = 0
        self.crawling = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream, but uvloop's streams do not say so.
        self.transport = cast(asyncio.Transport, transport)
        self._port.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.is_over:
            return
        frames: list[Any] = []
        try:
            for kind, payload in self.buffer.feed(data):
                frames.append(decode_client_frame(kind, payload))
        except RemoteError as error:
            if frames:
                self._port.received(self, frames)
            self._port.end(self, error.code, error.text)
            return
        if frames:
            self._port.received(self, frames)

    def pause_writing(self) -> None:
        self._port.write_blocked(self, WriteBlocked(self.conn))

    def resume_writing(self) -> None:
        self._port.write_blocked(self, WriteUnblocked(self.conn))

    def connection_lost(self, error: Exception | None) -> None:
        self._port.lost(self, error)


class ClientPort:
    """A listening port, and the connections of its clients.

    `take` gets the events of one round of the event loop; it steps the machine and hands the effects
    that concern connections to `carry_out`.
    """

    def __init__(self, take: Callable[[list[PortEvent]], None], settings: PortSettings | None = None) -> None:
        self.settings = settings or PortSettings()
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._connections: dict[int, ClientConnection] = {}
        self._next_conn = 1
        self._events: list[PortEvent] = []
        self._is_scheduled = False
        self._is_stopping = False
        self._nobody_left = asyncio.Event()
        self._nobody_left.set()
        self._look_timer: asyncio.TimerHandle | None = None
        self._carry: dict[type[Any], Callable[[Any], None]] = {
            SendFrames: self._send_frames,
            AdmitConnection: self._admit,
            CloseConnection: self._close_connection,
            PauseReading: self._pause_reading,
            ResumeReading: self._resume_reading,
        }

    # -- the port --------------------------------------------------------------

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 picks a free one."""
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=self.settings.handshake_s if tls else None,
            reuse_address=True,
        )
        self._look_timer = self._loop.call_later(self.settings.heartbeat_s / 2, self._look_again)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the port listens."""
        sockets = self._server.sockets if self._server is not None else ()
        return [listening.getsockname()[:2] for listening in sockets]

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def stop(self) -> None:
        """Listen no more, say Goodbye to everybody, and wait until they have gone."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for connection in list(self._connections.values()):
            self.end(connection, STOPPING, "the node is stopping")
        await self._nobody_left.wait()
        if self._server is not None:
            await self._server.wait_closed()

    # -- what the manager wants ------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Do this to a connection; if it is gone by now, nothing. Other effects are not for the port."""
        self._carry[type(effect)](effect)

    def _send_frames(self, effect: SendFrames) -> None:
        connection = self._connections.get(effect.conn)
        if connection is not None and not connection.is_over:
            self._write(connection, effect.buffers)

    def _admit(self, effect: AdmitConnection) -> None:
        connection = self._connections.get(effect.conn)
        if connection is not None and not connection.is_over:
            connection.is_welcome = True
            connection.buffer.limit = effect.frame_bytes_max
            self._cancel_timer(connection)

    def _close_connection(self, effect: CloseConnection) -> None:
        connection = self._connections.get(effect.conn)
        if connection is not None and not connection.is_over:
            self._say_goodbye(connection, effect.code, effect.text)

    def _pause_reading(self, effect: PauseReading) -> None:
        connection = self._connections.get(effect.conn)
        if connection is not None and not connection.is_over and not connection.is_paused:
            assert connection.transport is not None
            connection.is_paused = True
            connection.transport.pause_reading()

    def _resume_reading(self, effect: ResumeReading) -> None:
        connection = self._connections.get(effect.conn)
        if connection is not None and connection.is_paused:
            assert connection.transport is not None
            connection.is_paused = False
            connection.transport.resume_reading()

    # -- what connections tell -------------------------------------------------

    def opened(self, connection: ClientConnection) -> None:
        transport, settings = connection.transport, self.settings
        assert transport is not None
        connection.conn = self._next_conn
        self._next_conn += 1
        is_full = len(self._connections) >= settings.connections_max
        self._connections[connection.conn] = connection
        self._nobody_left.clear()
        transport.set_write_buffer_limits(high=settings.write_high_bytes, low=settings.write_low_bytes)
        if is_full or self._is_stopping:
            text = "the node is stopping" if self._is_stopping else "there are too many connections"
            self._say_goodbye(connection, STOPPING if self._is_stopping else TOO_MANY, text)
            return
        connection.timer = self._loop.call_later(
            settings.handshake_s,
            self.end,
            connection,
            NO_GREETING,
            f"the greeting took longer than {settings.handshake_s:g} s",
        )
        self._tell(ConnectionOpened(connection.conn, _peer_of(transport)))

    def received(self, connection: ClientConnection, frames: list[Any]) -> None:
        connection.received_frames += len(frames)
        self._tell(FramesReceived(connection.conn, frames))

    def write_blocked(self, connection: ClientConnection, event: WriteBlocked | WriteUnblocked) -> None:
        if not connection.is_over:
            self._tell(event)

    def lost(self, connection: ClientConnection, error: Exception | None) -> None:
        self._cancel_timer(connection)
        del self._connections[connection.conn]
        if not self._connections:
            self._nobody_left.set()
        if not connection.is_over:
            connection.is_over = True
            self._tell(ConnectionLost(connection.conn, text=str(error or "")))

    def end(self, connection: ClientConnection, code: str, text: str) -> None:
        """Send a peer away for a reason of our own, and tell the manager."""
        if not connection.is_over:
            self._tell(ConnectionLost(connection.conn, code, text))
            self._say_goodbye(connection, code, text)

    def _tell(self, event: PortEvent) -> None:
        self._events.append(event)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_scheduled = False
        events, self._events = self._events, []
        self._take(events)

    # -- writing ---------------------------------------------------------------

    def _write(self, connection: ClientConnection, buffers: Sequence[Buffer]) -> None:
        transport = connection.transport
        assert transport is not None
        transport.writelines(buffers)
        unread = transport.get_write_buffer_size()
        if unread > self.settings.write_bytes_max:
            # A Goodbye would stand behind all it does not read.
            connection.is_over = True
            text = f"the peer has left {unread} bytes unread"
            self._tell(ConnectionLost(connection.conn, SLOW, text))
            transport.abort()

    def _say_goodbye(self, connection: ClientConnection, code: str, text: str) -> None:
        """Close our side, and give the peer a moment to hear why.

        Closing at once while the peer still sends would make its kernel throw away what it has not
        read yet, our Goodbye among it. So we only say that we are done, and go on reading to nobody
        until the peer closes or the moment is over.
        """
        transport = connection.transport
        assert transport is not None
        connection.is_over = True
        self._cancel_timer(connection)
        if not code or transport.is_closing():
            transport.close()
        else:
            transport.write(encode_frame(Goodbye(code=code, text=text)))
            if transport.can_write_eof():
                if connection.is_paused:
                    transport.resume_reading()
                transport.write_eof()
            else:
                transport.close()
        connection.timer = self._loop.call_later(self.settings.linger_s, transport.abort)

    def _cancel_timer(self, connection: ClientConnection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None

    # -- who is still there ----------------------------------------------------

    def _look_again(self) -> None:
        self.look_at_everybody()
        self._look_timer = self._loop.call_later(self.settings.heartbeat_s / 2, self._look_again)

    def look_at_everybody(self) -> None:
        """Every half heartbeat: has each peer said anything, and does it get on with what it says (N4)?"""
        for connection in list(self._connections.values()):
            if connection.is_welcome and not connection.is_over:
                self._look_at(connection)

    def _look_at(self, connection: ClientConnection) -> None:
        progress = connection.received_bytes - connection.looked_bytes
        is_stuck = connection.received_frames == connection.looked_frames and connection.buffer.buffered_bytes
        connection.looked_bytes = connection.received_bytes
        connection.looked_frames = connection.received_frames
        if connection.is_paused:
            # We do not listen; it may be shouting.
            connection.silent = connection.crawling = 0
            return
        connection.silent = 0 if progress else connection.silent + 1
        is_crawling = is_stuck and progress < self.settings.progress_bytes_min * self.settings.heartbeat_s / 2
        connection.crawling = connection.crawling + 1 if is_crawling else 0
        if connection.silent >= _SILENT_CLOSE:
            self.end(connection, SILENT, f"nothing was heard for {3 * self.settings.heartbeat_s:g} s")
        elif connection.crawling >= _CRAWLING_CLOSE and progress:
            self.end(connection, SLOW, "a frame that has begun does not come to its end")
        elif connection.silent == _SILENT_PING:
            self._write(connection, [encode_frame(Ping(nonce=0))])


def _peer_of(transport: asyncio.Transport) -> str:
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
