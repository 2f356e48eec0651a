"""Client port: the sockets of clients, as frames to the client manager and as its effects back.

PRT1  Frames of all connections that arrive in one round of the event loop are handed over together, those of
      one connection in their order, and of none more than its share.
PRT2  Bytes that are no frame, and errors of a socket, end their own connection, with a reason; the node and
      all other connections go on.
PRT3  A peer costs bounded memory, also before its greeting: a frame's length is checked before its bytes are
      kept, reading stops when the manager says so or when the peer does not read, and a peer that leaves too
      much unread is cut off. All peers together cost bounded memory, too.
PRT4  A peer that does not finish its greeting, falls silent, does not read, or sends a frame too slowly is
      sent away. Too many that do not greet push out each other, not those who do.
PRT5  Every peer that is sent away is logged, with the reason, within a limit on lines.

With TLS (`tls_transport.py`) all of this holds as well.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

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
from antiphon.errors import NodeError
from antiphon.events import CLIENT_REFUSED, CLIENTS_UNPROTECTED, LoggedEvent
from antiphon.runtime.connection import MANAGER_SAYS, NEXT_ROUND, UNREAD, ClientConnection
from antiphon.runtime.limits import Arrivals, KeptBytes, connections_possible
from antiphon.runtime.tls_transport import TlsTransport, TlsTurns
from antiphon.tls import TlsContext
from antiphon.wire.frames import Goodbye, Ping, encode_frame
from antiphon.wire.primitives import Buffer

PortEvent: TypeAlias = ConnectionOpened | FramesReceived | ConnectionLost | WriteBlocked | WriteUnblocked

# The reasons of the port itself for the end of a connection.
TOO_MANY = "connection.limit"
NO_GREETING = "connection.handshake"
SILENT = "connection.silent"
SLOW = "connection.slow"
STOPPING = "connection.stopping"

_BACKLOG = 512
"""Connections that wait to be accepted. One too many waits for a second, until its kernel tries again."""

_SILENT_PING, _SILENT_CLOSE = 2, 6  # in half heartbeats: one, and three
_STUCK_CLOSE = 6
_CRAWLING_CLOSE = 3

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    connections_max: int = 10_000
    """Fewer, if the process may not open so many files."""

    greeting_max: int = 1_000
    """Connections that have not finished their greeting. One more, and the oldest of them has to go."""

    lingering_max: int = 500
    """Closed connections that have not heard it yet. One more, and the oldest is cut off."""

    handshake_s: float = 10.0
    heartbeat_s: float = 10.0
    """A peer that is silent for so long is pinged; for three times as long, it is gone."""

    progress_bytes_min: int = 1 * KIB
    """Bytes a second of a frame that has begun; a peer that is slower for half a minute is sent away."""

    partial_bytes_max: int = 256 * MIB
    """Of unfinished frames, for all peers together. More, and the oldest of them has to go."""

    round_frames_max: int = 1_000
    round_bytes_max: int = 1 * MIB
    """Taken from one peer in a round of the event loop."""

    write_high_bytes: int = 1 * MIB
    write_low_bytes: int = 256 * KIB
    """Between these marks the manager gives a peer no further credit, and the port does not read from it."""

    write_bytes_max: int = 64 * MIB
    """All messages within a peer's credit may come at once, so this is far above the high mark."""

    unread_bytes_max: int = 512 * MIB
    """Unread by all peers together. More, and the peer that has left the most unread is cut off."""

    linger_s: float = 2.0
    """How long a closed connection may take to hear the Goodbye."""

    def __post_init__(self) -> None:
        marks = (0, self.write_low_bytes, self.write_high_bytes, self.write_bytes_max, self.unread_bytes_max)
        assert list(marks) == sorted(marks), "the marks of a write buffer are out of order"


class ClientPort:
    """A listening port, and the connections of its clients.

    `take` gets the events of one round of the event loop, steps the machine, and hands the effects for
    connections to `carry_out`.
    """

    def __init__(
        self,
        take: Callable[[list[PortEvent]], None],
        settings: PortSettings | None = None,
        *,
        note: Callable[[LoggedEvent], None] = lambda event: None,
    ) -> None:
        self.settings = settings or PortSettings()
        self.round = 0
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._tls: TlsContext | None = None
        self._connections: dict[int, ClientConnection] = {}
        self._connections_max = self.settings.connections_max
        self._greeting = Arrivals(self.settings.greeting_max)
        self._lingering = Arrivals(self.settings.lingering_max)
        self._partial = KeptBytes()
        self._unread = KeptBytes()
        self._next_conn = 1
        self._events: list[PortEvent] = []
        self._is_scheduled = False
        self._next_round: list[ClientConnection] = []
        self._is_stopping = False
        self._nobody_left = asyncio.Event()
        self._nobody_left.set()
        self._look_timer: asyncio.TimerHandle | None = None
        self._note = note
        self._carry: dict[type[Any], Callable[[ClientConnection, Any], None]] = {
            SendFrames: self._send_frames,
            AdmitConnection: self._admit,
            CloseConnection: self._close_connection,
            PauseReading: self._pause_reading,
            ResumeReading: self._resume_reading,
        }

    # -- the port --------------------------------------------------------------

    async def start(self, host: str, port: int, tls: TlsContext | None = None) -> None:
        self._connections_max = connections_possible(self.settings.connections_max)
        self._tls = tls
        make = self._accept if tls is None else partial(self._accept_tls, tls, TlsTurns(self._loop))
        try:
            self._server = await self._loop.create_server(
                make, host, port, reuse_address=True, backlog=_BACKLOG
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise NodeError(
                f"cannot listen on {host}:{port} for clients: {why}; "
                "--port chooses another port, 0 any that is free"
            ) from error
        if tls is None and not _is_loopback(host):
            self._note(CLIENTS_UNPROTECTED(host=host))
        self._look_timer = self._loop.call_later(self.settings.heartbeat_s / 2, self._look_again)

    def _accept(self) -> asyncio.BaseProtocol:
        return ClientConnection(self)

    def _accept_tls(self, tls: TlsContext, turns: TlsTurns) -> asyncio.BaseProtocol:
        return TlsTransport(ClientConnection(self), tls, turns)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        sockets = self._server.sockets if self._server is not None else ()
        return [listening.getsockname()[:2] for listening in sockets]

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def stop(self) -> None:
        """Stop listening, say Goodbye to every peer, and wait until all have gone."""
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
        """Carry out an effect, unless its connection is gone."""
        carry = self._carry[type(effect)]
        connection = self._connections.get(effect.conn)  # type: ignore[union-attr]
        if connection is None or connection.is_over:
            return
        try:
            carry(connection, effect)
        except (OSError, RuntimeError) as error:
            # The peer has gone away this very moment; its socket says so in one way or another.
            self._cut(connection, "", str(error))

    def _send_frames(self, connection: ClientConnection, effect: SendFrames) -> None:
        self._write(connection, effect.buffers)

    def _admit(self, connection: ClientConnection, effect: AdmitConnection) -> None:
        connection.is_welcome = True
        connection.buffer.limit = effect.frame_bytes_max
        self._greeting.leave(connection.conn)
        self._cancel_timer(connection)

    def _close_connection(self, connection: ClientConnection, effect: CloseConnection) -> None:
        if effect.code:
            self._note_refusal(connection, effect.code, effect.text)
        self._say_goodbye(connection, effect.code, effect.text)

    def _pause_reading(self, connection: ClientConnection, effect: PauseReading) -> None:
        connection.hold(MANAGER_SAYS)

    def _resume_reading(self, connection: ClientConnection, effect: ResumeReading) -> None:
        connection.release(MANAGER_SAYS)

    # -- what connections tell -------------------------------------------------

    def opened(self, connection: ClientConnection) -> None:
        transport, settings = connection.transport, self.settings
        assert transport is not None
        connection.conn = self._next_conn
        connection.peer = _peer_of(transport)
        self._next_conn += 1
        is_full = len(self._connections) >= self._connections_max
        self._connections[connection.conn] = connection
        self._nobody_left.clear()
        if is_full or self._is_stopping:
            self._turn_away(connection)
            return
        transport.set_write_buffer_limits(high=settings.write_high_bytes, low=settings.write_low_bytes)
        connection.timer = self._loop.call_later(
            settings.handshake_s,
            self.end,
            connection,
            NO_GREETING,
            f"the greeting took longer than {settings.handshake_s:g} s",
        )
        self._tell(ConnectionOpened(connection.conn, connection.peer))
        slowest = self._greeting.enter(connection.conn)
        if slowest is not None:
            self.end(self._connections[slowest], NO_GREETING, "too many others wait to be greeted")

    def received(self, connection: ClientConnection, frames: list[Any]) -> None:
        if frames:
            connection.received_frames += len(frames)
            self._tell(FramesReceived(connection.conn, frames))
        self._partial.note(connection.conn, connection.buffer.buffered_bytes, began=bool(frames))
        if self._partial.total > self.settings.partial_bytes_max:
            self.end(
                self._connections[self._partial.oldest], TOO_MANY, "too many unfinished frames wait here"
            )

    def wait_for_round(self, connection: ClientConnection) -> None:
        if not self._next_round:
            self._loop.call_soon(self._begin_round)
        self._next_round.append(connection)

    def _begin_round(self) -> None:
        self.round += 1
        waiting, self._next_round = self._next_round, []
        for connection in waiting:
            connection.release(NEXT_ROUND)

    def write_blocked(self, connection: ClientConnection, event: WriteBlocked | WriteUnblocked) -> None:
        if not connection.is_over:
            self._tell(event)

    def lost(self, connection: ClientConnection, error: Exception | None) -> None:
        was_over = connection.is_over
        self._forget(connection)
        self._lingering.leave(connection.conn)
        del self._connections[connection.conn]
        if not self._connections:
            self._nobody_left.set()
        if not was_over:
            self._tell(ConnectionLost(connection.conn, text=str(error or "")))

    def end(self, connection: ClientConnection, code: str, text: str) -> None:
        """Send a peer away for a reason of the port, and tell the manager."""
        if not connection.is_over:
            if code != STOPPING:
                self._note_refusal(connection, code, text)
            self._tell(ConnectionLost(connection.conn, code, text))
            self._say_goodbye(connection, code, text)

    def _note_refusal(self, connection: ClientConnection, code: str, text: str) -> None:
        self._note(CLIENT_REFUSED(peer=connection.peer, reason=code, problem=text))

    def _tell(self, event: PortEvent) -> None:
        self._events.append(event)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_scheduled = False
        self.round += 1
        events, self._events = self._events, []
        self._take(events)

    # -- writing ---------------------------------------------------------------

    def _write(self, connection: ClientConnection, buffers: Sequence[Buffer]) -> None:
        transport = connection.transport
        assert transport is not None
        transport.writelines(buffers)
        connection.written_bytes += sum(map(len, buffers))
        unread = transport.get_write_buffer_size()
        self._unread.note(connection.conn, unread)
        if unread > self.settings.write_bytes_max:
            self._cut_slow(connection)
        elif self._unread.total > self.settings.unread_bytes_max:
            self._cut_slowest()

    def _cut_slowest(self) -> None:
        """Cut off the peers with the most unread bytes, by fresh figures: reading causes no event."""
        for conn in self._unread:
            self._unread.note(conn, self._connections[conn].unread_bytes)
        while self._unread.total > self.settings.unread_bytes_max:
            self._cut_slow(self._connections[self._unread.largest])

    def _cut_slow(self, connection: ClientConnection) -> None:
        # A Goodbye would stand behind all that is unread.
        self._cut(connection, SLOW, f"the peer has left {connection.unread_bytes} bytes unread")

    def _cut(self, connection: ClientConnection, code: str, text: str) -> None:
        if code:
            self._note_refusal(connection, code, text)
        self._forget(connection)
        self._tell(ConnectionLost(connection.conn, code, text))
        assert connection.transport is not None
        connection.transport.abort()

    def _turn_away(self, connection: ClientConnection) -> None:
        """Refuse a connection without lingering: there is no room for it."""
        code, text = TOO_MANY, "there are too many connections"
        if self._is_stopping:
            code, text = STOPPING, "the node is stopping"
        else:
            self._note_refusal(connection, code, text)
        self._forget(connection)
        assert connection.transport is not None
        connection.transport.write(encode_frame(Goodbye(code=code, text=text)))
        connection.transport.close()

    def _say_goodbye(self, connection: ClientConnection, code: str, text: str) -> None:
        """Close this side, and give the peer a moment to hear why.

        Closing at once while the peer still sends would make its kernel throw away the Goodbye. So only the
        writing side is closed, and reading goes on until the peer closes or the moment is over.
        """
        transport = connection.transport
        assert transport is not None
        self._forget(connection)
        if not code or transport.is_closing():
            transport.close()
        else:
            transport.write(encode_frame(Goodbye(code=code, text=text)))
            self._write_end(connection, transport)
        connection.timer = self._loop.call_later(self.settings.linger_s, transport.abort)
        longest = self._lingering.enter(connection.conn)
        if longest is not None:
            self._abort(self._connections[longest])

    def _write_end(self, connection: ClientConnection, transport: asyncio.Transport) -> None:
        if not transport.can_write_eof():
            transport.close()
            return
        connection.listen_to_nothing()
        try:
            transport.write_eof()
        except OSError:
            # The peer was gone before it could hear the Goodbye.
            transport.abort()

    def _forget(self, connection: ClientConnection) -> None:
        connection.forget()
        self._cancel_timer(connection)
        self._greeting.leave(connection.conn)
        self._partial.note(connection.conn, 0)
        self._unread.note(connection.conn, 0)

    def _abort(self, connection: ClientConnection) -> None:
        self._lingering.leave(connection.conn)
        assert connection.transport is not None
        connection.transport.abort()

    def _cancel_timer(self, connection: ClientConnection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None

    # -- who is still there ----------------------------------------------------

    def _look_again(self) -> None:
        self.look_at_everybody()
        if self._tls is not None:
            self._tls.look()
        self._look_timer = self._loop.call_later(self.settings.heartbeat_s / 2, self._look_again)

    def look_at_everybody(self) -> None:
        """Every half heartbeat: check that each peer speaks, reads and makes progress (PRT4)."""
        for connection in list(self._connections.values()):
            if connection.is_welcome and not connection.is_over:
                self._look_at_reading(connection)
            if connection.is_welcome and not connection.is_over:
                self._look_at_speaking(connection)

    def _look_at_reading(self, connection: ClientConnection) -> None:
        unread = connection.unread_bytes
        self._unread.note(connection.conn, unread)
        sent = connection.written_bytes - unread
        is_stuck = connection.is_held(UNREAD) and sent == connection.looked_sent
        connection.looked_sent = sent
        connection.stuck = connection.stuck + 1 if is_stuck else 0
        if connection.stuck >= _STUCK_CLOSE:
            self._cut_slow(connection)

    def _look_at_speaking(self, connection: ClientConnection) -> None:
        progress = connection.received_bytes - connection.looked_bytes
        is_in_frame = (
            connection.received_frames == connection.looked_frames and connection.buffer.buffered_bytes
        )
        connection.looked_bytes = connection.received_bytes
        connection.looked_frames = connection.received_frames
        if connection.is_held(MANAGER_SAYS | UNREAD):
            # Nothing is read from the peer, so its silence means nothing.
            connection.silent = connection.crawling = 0
            return
        connection.silent = 0 if progress else connection.silent + 1
        is_slow = progress < self.settings.progress_bytes_min * self.settings.heartbeat_s / 2
        connection.crawling = connection.crawling + 1 if is_in_frame and is_slow else 0
        if connection.silent >= _SILENT_CLOSE:
            self.end(connection, SILENT, f"nothing was heard for {3 * self.settings.heartbeat_s:g} s")
        elif connection.crawling >= _CRAWLING_CLOSE and progress:
            self.end(connection, SLOW, "a frame that has begun does not come to its end")
        elif connection.silent == _SILENT_PING:
            self._write(connection, [encode_frame(Ping(nonce=0))])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _peer_of(transport: asyncio.Transport) -> str:
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
