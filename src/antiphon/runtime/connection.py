"""ClientConnection: one connection at the client port: its bytes, and when it is read from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from antiphon.client_manager.effects import WriteBlocked, WriteUnblocked
from antiphon.errors import RemoteError, TlsFailed
from antiphon.tls import begins_handshake
from antiphon.wire.buffer import HANDSHAKE_FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.frames import decode_client_frame

if TYPE_CHECKING:
    from antiphon.runtime.network import ClientPort

# The reasons for which a connection is not read from; several can hold at a time.
MANAGER_SAYS = 1
"""The client manager asked for it: the peer is ahead of what the channels can order."""
UNREAD = 2
"""The peer does not read: reading on would make ever more to write."""
NEXT_ROUND = 4
"""The peer has had its turn in this round of the event loop."""
TLS_TURN = 8
"""The peer's handshake, or its many small records, wait for their turn."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self.conn = 0
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self.buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
        self.timer: asyncio.TimerHandle | None = None
        self.is_welcome = False
        self.is_over = False  # nothing is read from the peer any more, and nothing but Goodbye is written
        self._holds = 0
        # The frames and bytes of the round in which the peer was last heard, and whether there were more.
        self._round = 0
        self._round_frames = 0
        self._round_bytes = 0
        self._is_behind = False
        # Totals, now and at the last look at all connections.
        self.received_bytes = 0
        self.received_frames = 0
        self.written_bytes = 0
        self.looked_bytes = 0
        self.looked_frames = 0
        self.looked_sent = 0
        # For how many looks the peer has said nothing, made no progress in a frame, read nothing.
        self.silent = 0
        self.crawling = 0
        self.stuck = 0

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and that the system has not taken: the peer does not read."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    # -- what the transport tells ----------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream, but uvloop's streams do not say so.
        self.transport = cast(asyncio.Transport, transport)
        self._port.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if not self.is_over:
            self._take(data)

    def _take(self, data: bytes) -> None:
        settings = self._port.settings
        if self._round != self._port.round:
            self._round, self._round_frames, self._round_bytes = self._port.round, 0, 0
        room = settings.round_frames_max - self._round_frames
        self._round_bytes += len(data)
        frames: list[Any] = []
        try:
            for kind, payload in self.buffer.feed(data):
                frames.append(decode_client_frame(kind, payload))
                if len(frames) >= room:
                    break
        except RemoteError as error:
            self._port.received(self, frames)
            text = error.text
            if self.received_bytes == len(data) and begins_handshake(data[:3]):
                text = f"the client speaks TLS and this port does not ({text})"
            self._port.end(self, error.code, text)
            return
        self._round_frames += len(frames)
        self._is_behind = len(frames) >= room
        self._port.received(self, frames)
        if (self._is_behind or self._round_bytes > settings.round_bytes_max) and not self.is_over:
            self.hold(NEXT_ROUND)
            self._port.wait_for_round(self)

    def fail_tls(self, text: str) -> None:
        """The two sides do not come together in TLS."""
        if not self.is_over:
            self._port.end(self, TlsFailed.code, text)

    def pause_writing(self) -> None:
        if self.is_over:
            return
        self.hold(UNREAD)
        self._port.write_blocked(self, WriteBlocked(self.conn))

    def resume_writing(self) -> None:
        self.release(UNREAD)
        self._port.write_blocked(self, WriteUnblocked(self.conn))

    def connection_lost(self, error: Exception | None) -> None:
        self._port.lost(self, error)
        # With TLS the two name each other, and the collector of cycles seldom comes by.
        self.transport = None

    # -- reading, and not reading ----------------------------------------------

    def is_held(self, reasons: int) -> bool:
        return bool(self._holds & reasons)

    def hold(self, reason: int) -> None:
        before, self._holds = self._holds, self._holds | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self, reason: int) -> None:
        """Remove a reason; after the last one read again, first the bytes in the buffer."""
        before, self._holds = self._holds, self._holds & ~reason
        if not before or self._holds or self.transport is None or self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self._is_behind and not self._holds and not self.is_over:
            self._take(b"")

    def listen_to_nothing(self) -> None:
        """Read and drop, so that the peer can finish sending."""
        assert self.is_over, "a peer that is not over is listened to"
        self.release(self._holds)

    def forget(self) -> None:
        self.is_over = True
        self.buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
