"""ClientConnection: one peer at the client port, its bytes and what it owes us."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from antiphon.client_manager.effects import WriteBlocked, WriteUnblocked
from antiphon.errors import RemoteError
from antiphon.wire.buffer import HANDSHAKE_FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.frames import decode_client_frame

if TYPE_CHECKING:
    from antiphon.runtime.network import ClientPort

# Why a peer is not read from. There may be several reasons at a time.
MANAGER_SAYS = 1
"""It is ahead of what the channels can order."""
UNREAD = 2
"""It does not read what we say: to listen on would be to have ever more to say."""
NEXT_ROUND = 4
"""It has had its turn in this round of the event loop."""


class ClientConnection(asyncio.Protocol):
    """One peer. What it sends becomes frames here; everything else is the port's."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self.conn = 0
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self.buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
        self.timer: asyncio.TimerHandle | None = None
        self.is_welcome = False
        self.is_over = False  # nothing is taken from it any more, and nothing but Goodbye said to it
        self._holds = 0
        # What it took of the round in which it was last heard, and whether there was more.
        self._round = 0
        self._round_frames = 0
        self._round_bytes = 0
        self._is_behind = False
        # What came and went in all, and at the last look at everybody.
        self.received_bytes = 0
        self.received_frames = 0
        self.written_bytes = 0
        self.looked_bytes = 0
        self.looked_frames = 0
        self.looked_sent = 0
        # For how many looks it has said nothing, got nowhere with a frame, read nothing.
        self.silent = 0
        self.crawling = 0
        self.stuck = 0

    @property
    def unread_bytes(self) -> int:
        """What we wrote and the system has not taken: the peer does not read."""
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
        """Read frames, as many as one peer may have in a round; the buffer keeps the rest."""
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
            self._port.end(self, error.code, error.text)
            return
        self._round_frames += len(frames)
        self._is_behind = len(frames) >= room
        self._port.received(self, frames)
        if (self._is_behind or self._round_bytes > settings.round_bytes_max) and not self.is_over:
            self.hold(NEXT_ROUND)
            self._port.wait_for_round(self)

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

    # -- reading, and not reading ----------------------------------------------

    def is_held(self, reasons: int) -> bool:
        return bool(self._holds & reasons)

    def hold(self, reason: int) -> None:
        """Do not read, for this reason."""
        before, self._holds = self._holds, self._holds | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self, reason: int) -> None:
        """This reason is gone; if it was the last one, read again, what is here already first."""
        before, self._holds = self._holds, self._holds & ~reason
        if not before or self._holds or self.transport is None or self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self._is_behind and not self.is_over:
            self._take(b"")

    def listen_to_nothing(self) -> None:
        """Read on, so that the peer gets rid of what it says; nobody hears it."""
        assert self.is_over, "a peer that is not over is listened to"
        self.release(self._holds)

    def forget(self) -> None:
        """It is over: what came of a frame is of no use to anybody."""
        self.is_over = True
        self.buffer = FrameBuffer(HANDSHAKE_FRAME_BYTES_MAX)
