"""FrameBuffer: whole frames out of a stream that arrives in pieces.

A frame is `[u32 length][u8 type][payload]`; the length counts type and payload. A frame within one piece is a
view of it; a frame that spans pieces is gathered once. So the work is linear in the bytes.

The length is checked as soon as its four bytes are there: a frame that is too long is refused before any of
it is kept, and a peer that announces much and sends little costs what it has sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer

HANDSHAKE_FRAME_BYTES_MAX = 64 * 1024
"""The limit before the greeting."""

FRAME_BYTES_MAX = 2 * 1024 * 1024 + 64 * 1024
"""The largest batch, 2 MiB - 64 KiB, with room around it."""

_LENGTH = struct.Struct("<I")
_LENGTH_SIZE = _LENGTH.size


class FrameBuffer:
    """Feed bytes as they come, walk over the frames they complete.

        for kind, payload in buffer.feed(data):
            frame = decode_frame(kind, payload)

    `limit` holds from the next frame on. After a `ProtocolError` every later feed raises it again. Payloads
    are views of the bytes fed, which must not change; copy a small payload that is kept for long.
    """

    __slots__ = ("_chunk", "_fault", "_offset", "_partial", "limit")

    def __init__(self, limit: int = HANDSHAKE_FRAME_BYTES_MAX) -> None:
        self.limit = limit
        self._chunk = memoryview(b"")
        self._offset = 0  # walked over so far
        self._partial = bytearray()  # the beginning of one frame, never a whole one
        self._fault: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of frames not yet complete, or not yet taken."""
        return len(self._partial) + len(self._chunk) - self._offset

    def feed(self, data: Buffer) -> Iterator[tuple[int, memoryview]]:
        """Take bytes; returns (type, payload) of the frames that are now whole.

        A walk that is left early is taken up by the next feed.
        """
        if self._fault is not None:
            raise self._fault
        if self._offset < len(self._chunk):
            data = b"".join((self._chunk[self._offset :], data))
        view = memoryview(data)
        self._chunk = view if view.readonly else view.toreadonly()
        self._offset = 0
        return self._walk()

    def _walk(self) -> Iterator[tuple[int, memoryview]]:
        if self._partial and self._complete_partial():
            frame = memoryview(self._partial).toreadonly()
            self._partial = bytearray()
            yield frame[_LENGTH_SIZE], frame[_LENGTH_SIZE + 1 :]
        chunk, offset = self._chunk, self._offset
        end = len(chunk)
        unpack_length = _LENGTH.unpack_from
        while end - offset >= _LENGTH_SIZE:
            (length,) = unpack_length(chunk, offset)
            if not 0 < length <= self.limit:
                self._refuse(length)
            start = offset + _LENGTH_SIZE
            stop = start + length
            if stop > end:
                break
            self._offset = offset = stop
            yield chunk[start], chunk[start + 1 : stop]
        if offset < end:
            self._partial += chunk[offset:]
        self._chunk = memoryview(b"")  # the frames hold what they need
        self._offset = 0

    def _complete_partial(self) -> bool:
        """Fill the partial frame from the chunk; whether it is whole now."""
        if not self._move_up_to(_LENGTH_SIZE):
            return False
        (length,) = _LENGTH.unpack_from(self._partial)
        if not 0 < length <= self.limit:
            self._refuse(length)
        return self._move_up_to(_LENGTH_SIZE + length)

    def _move_up_to(self, size: int) -> bool:
        missing = size - len(self._partial)
        if missing > 0:
            piece = self._chunk[self._offset : self._offset + missing]
            self._partial += piece
            self._offset += len(piece)
        return len(self._partial) >= size

    def _refuse(self, length: int) -> None:
        self._fault = ProtocolError(f"a frame of {length} bytes; allowed are 1 to {self.limit}")
        self._chunk = memoryview(b"")
        self._offset = 0
        self._partial = bytearray()
        raise self._fault
