"""A client port with real sockets on the loopback, and peers that speak to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from antiphon.client_manager.effects import AdmitConnection, FramesReceived, SendFrames
from antiphon.events import LoggedEvent
from antiphon.runtime.network import ClientPort, PortEvent, PortSettings
from antiphon.tls import ClientTls, TlsContext
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.frames import Frame, Goodbye, Hello, Pong, decode_frame, encode_frame
from tests.certificates import certificates

T = TypeVar("T")
HELLO = Hello(user="ann", password="", client_id="")


class Hall:
    """A port, and everything it told."""

    def __init__(self) -> None:
        self.port: ClientPort
        self.rounds: list[list[PortEvent]] = []
        self.does: Callable[[PortEvent], None] = lambda event: None
        self._news = asyncio.Event()

    @property
    def events(self) -> list[PortEvent]:
        return [event for events in self.rounds for event in events]

    def of_kind(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def frames(self, conn: int = 1) -> list[Any]:
        return [
            frame for event in self.of_kind(FramesReceived) if event.conn == conn for frame in event.frames
        ]

    def take(self, events: list[PortEvent]) -> None:
        self.rounds.append(events)
        for event in events:
            self.does(event)
        self._news.set()

    async def until(self, is_true: Callable[[], object]) -> None:
        while not is_true():
            self._news.clear()
            await self._news.wait()

    async def heard(self, kind: type[T], count: int = 1) -> T:
        await self.until(lambda: len(self.of_kind(kind)) >= count)
        return self.of_kind(kind)[count - 1]

    def admit(self, event: PortEvent) -> None:
        """What the manager does to everybody who says Hello."""
        if isinstance(event, FramesReceived) and isinstance(event.frames[0], Hello):
            self.port.carry_out(AdmitConnection(event.conn, FRAME_BYTES_MAX))
            self.port.carry_out(SendFrames(event.conn, [encode_frame(Pong(nonce=0))]))


class Peer:
    """A client with a raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._buffer = FrameBuffer(FRAME_BYTES_MAX)
        self._frames: list[Frame] = []

    def send(self, *frames: Frame) -> None:
        self.send_bytes(b"".join(map(encode_frame, frames)))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> bytes:
        return await self.reader.read(1 << 16)

    async def receive(self) -> Frame | None:
        """The next frame, or None at the end."""
        while not self._frames:
            data = await self.read()
            if not data:
                return None
            self._frames += [decode_frame(kind, payload) for kind, payload in self._buffer.feed(data)]
        return self._frames.pop(0)

    async def goodbye(self) -> Goodbye:
        """The last frame, whatever came before."""
        last = None
        while (frame := await self.receive()) is not None:
            last = frame
        assert isinstance(last, Goodbye), last
        return last


class TlsPeer(Peer):
    """A client with TLS on a raw connection: like its neighbour, it reads only when it is asked to."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        super().__init__(reader, writer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                self.writer.write(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                self.writer.write(self._outgoing.read())
                if not (data := await self.reader.read(1 << 16)):
                    raise ConnectionResetError("the server closed the connection") from None
                self._incoming.write(data)

    def send_bytes(self, data: bytes) -> None:
        self.tls.write(data)
        self.writer.write(self._outgoing.read())

    def end(self) -> None:
        """Say the end, and leave the socket open."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self.writer.write(self._outgoing.read())

    async def read(self) -> bytes:
        while True:
            try:
                return self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection without a word"
                self._incoming.write(data)


class Scene:
    def __init__(self, hall: Hall, tls: ClientTls | None = None) -> None:
        self.hall = hall
        self.tls = tls
        self.port = hall.port
        self.peers: list[Peer] = []

    async def connect(self, *, is_admitted: bool = True, receive_buffer: int | None = None) -> Peer:
        host, port = self.port.addresses[0]
        raw = socket.create_connection((host, port))
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        streams = await asyncio.open_connection(sock=raw, limit=1 << 16)
        peer: Peer
        if self.tls is None:
            peer = Peer(*streams)
        else:
            peer = secure = TlsPeer(*streams, self.tls.context())
            await secure.shake_hands()
        self.peers.append(peer)
        if is_admitted:
            self.hall.does = self.hall.admit
            peer.send(HELLO)
            assert await peer.receive() == Pong(nonce=0)
        return peer

    async def turned_away(self) -> None:
        """One more peer finds that there is no room; with TLS it hears nothing, for nothing was agreed."""
        if self.tls is not None:
            with pytest.raises(ConnectionResetError):
                await self.connect(is_admitted=False)
            return
        peer = await self.connect(is_admitted=False)
        assert (await peer.goodbye()).code == "connection.limit"


@contextlib.asynccontextmanager
async def open_scene(
    note: Callable[[LoggedEvent], None] = lambda event: None, **settings: Any
) -> AsyncIterator[Scene]:
    tls = TLS.get()
    hall = Hall()
    hall.port = ClientPort(hall.take, PortSettings(**{"linger_s": 0.2, **settings}), note=note)
    await hall.port.start("127.0.0.1", 0, tls[0] if tls else None)
    scene = Scene(hall, tls[1] if tls else None)
    try:
        yield scene
    finally:
        for peer in scene.peers:
            peer.writer.close()
        await hall.port.stop()


TLS: ContextVar[tuple[TlsContext, ClientTls] | None] = ContextVar("TLS", default=None)
"""The server's and the peers' half of it, in scenes with TLS."""

LOOPS = ("asyncio", "uvloop", "asyncio+tls", "uvloop+tls")

Play = Callable[[Coroutine[Any, Any, None]], None]


def run(scene: Coroutine[Any, Any, None], loop: str) -> None:
    """Play a scene on one of LOOPS; an error that only the loop sees is one of the test."""
    kind, _, tls = loop.partition("+")
    TLS.set(certificates().both() if tls else None)
    factory = pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else None
    unseen: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        runner.run(asyncio.wait_for(scene, 20))
    assert unseen == []
