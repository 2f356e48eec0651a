"""Line: one socket to one server, until it breaks. What goes over it is the link's business."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from antiphon.client.servers import Server
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.frames import ClientFrame, Welcome, encode_frame
from antiphon.wire.primitives import Buffer

FAREWELL_S = 2.0
"""How long a peer may take to read our last words."""


class Owner(Protocol):
    """Whoever speaks over the line."""

    def line_up(self, line: Line) -> None:
        """There is a connection."""

    def line_said(self, line: Line, data: bytes) -> None:
        """The server said this."""

    def line_lost(self, line: Line, error: Exception | None) -> None:
        """There is no connection any more."""


class Line(asyncio.Protocol):
    """One attempt to speak with a server: `welcomed` tells how the greeting went."""

    def __init__(self, server: Server, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        self.server = server
        self.buffer = FrameBuffer()
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    @property
    def is_up(self) -> bool:
        return self._transport is not None

    def write(self, buffers: Sequence[Buffer]) -> None:
        assert self._transport is not None, "nothing is written before there is a connection"
        self._transport.writelines(buffers)

    def close(self, last_word: ClientFrame | None = None) -> None:
        """Everything that was written is still sent, and this."""
        if self._transport is not None:
            if last_word is not None:
                self._transport.write(encode_frame(last_word))
            self._transport.close()

    async def closed(self) -> None:
        """Wait until the socket is closed; with a peer that reads nothing any more, not for long."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._transport.abort()
            await self._gone

    def abort(self) -> None:
        """Give up without a word."""
        self.welcomed.cancel()
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio calls ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream, but uvloop's streams do not say so.
        self._transport = cast(asyncio.Transport, transport)
        connected: socket.socket | None = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.line_up(self)

    def data_received(self, data: bytes) -> None:
        self._owner.line_said(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set_result(None)
        self._owner.line_lost(self, error)
