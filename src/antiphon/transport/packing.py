"""Packing: frames into the bodies of datagrams, and out again.

    FRAMES      u8 1, then for each frame u32 size and its bytes
    PART        u8 2, index u32, count u32, and a piece of a frame that is too large for one datagram

    HEADS       u8 3, then for each stream u32 stream, u64 oldest, u64 next
    ASK         u8 4, u16 whom, u32 stream, then for each run of numbers u64 first, u32 count
    CHALLENGE   u8 5, 16 bytes
    ECHO        u8 6, 16 bytes

Small frames for the same receivers share a datagram: most of the cost of a datagram does not depend on its
size. The parts of a frame take consecutive numbers of their stream, so that number and index say which frame
they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.transport.repair import Span
from antiphon.wire.primitives import Buffer

FRAMES: Final = 1
PART: Final = 2
HEADS: Final = 3
ASK: Final = 4
CHALLENGE: Final = 5
ECHO: Final = 6

NONCE_BYTES: Final = 16

_SIZE = Struct("<I")
_PART = Struct("<BII")
_HEAD = Struct("<IQQ")
_ASK = Struct("<BHI")
_SPAN = Struct("<QI")
_FRAMES: Final = bytes([FRAMES])
_HEADS: Final = bytes([HEADS])

PARTS_MAX: Final = 65_536


class Packer:
    """Frames for the same receivers, gathered into bodies of at most `capacity` bytes."""

    __slots__ = ("_bodies", "_capacity", "_frame_bytes_max", "_pieces", "_size")

    def __init__(self, capacity: int, frame_bytes_max: int) -> None:
        assert capacity > 64, f"{capacity} bytes are no room for frames"
        self._capacity = capacity
        self._frame_bytes_max = frame_bytes_max
        self._bodies: list[bytes] = []
        self._pieces: list[Buffer] = [_FRAMES]
        self._size = 1

    @property
    def whole_bytes(self) -> int:
        return self._capacity - len(_FRAMES) - _SIZE.size

    def add(self, buffers: Sequence[Buffer]) -> None:
        """Add a frame. Its buffers must not change before `take`."""
        size = sum(map(len, buffers))
        taken = self._size + _SIZE.size + size
        if taken > self._capacity:
            self._close()
            taken = self._size + _SIZE.size + size
            if taken > self._capacity:
                self._cut(buffers, size)
                return
        self._pieces.append(_SIZE.pack(size))
        self._pieces += buffers
        self._size = taken

    def take(self) -> list[bytes]:
        """The bodies to be sent, in this order."""
        self._close()
        bodies, self._bodies = self._bodies, []
        return bodies

    def _close(self) -> None:
        if self._size > 1:
            self._bodies.append(b"".join(self._pieces))
            self._pieces = [_FRAMES]
            self._size = 1

    def _cut(self, buffers: Sequence[Buffer], size: int) -> None:
        room = self._capacity - _PART.size
        count = -(-size // room)
        if size > self._frame_bytes_max or count > PARTS_MAX:
            raise ValueError(f"a frame of {size} bytes; allowed are {self._frame_bytes_max}")
        whole = memoryview(b"".join(buffers))
        self._bodies += [
            b"".join((_PART.pack(PART, index, count), whole[index * room : (index + 1) * room]))
            for index in range(count)
        ]


def unpack_frames(body: bytes) -> list[memoryview]:
    """The frames in a FRAMES body, as views of it."""
    view = memoryview(body)
    frames = []
    at, end = 1, len(body)
    while at < end:
        if end - at < _SIZE.size:
            raise ProtocolError("a body ends in the middle of a frame's size")
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if size > end - at:
            raise ProtocolError("a body ends in the middle of a frame")
        frames.append(view[at : at + size])
        at += size
    return frames


def unpack_part(body: bytes) -> tuple[int, int, memoryview]:
    """Index, count and piece of a PART body."""
    if len(body) <= _PART.size:
        raise ProtocolError("a part of a frame without bytes")
    _, index, count = _PART.unpack_from(body)
    if not 0 <= index < count <= PARTS_MAX:
        raise ProtocolError(f"part {index} of {count} of a frame")
    return index, count, memoryview(body)[_PART.size :]


class _Partial:
    __slots__ = ("bytes", "count", "heard_ns", "pieces")

    def __init__(self, count: int) -> None:
        self.count = count
        self.pieces: dict[int, memoryview] = {}
        self.bytes = 0
        self.heard_ns = 0


class Assembler:
    """The incomplete frames of one stream, or of all streams of one member, by `key`.

    Parts come in any order, once each (by the replay window). An incomplete frame is dropped when no part of
    it has come for as long as lost datagrams are asked for, or when there are too many, the oldest first.
    """

    __slots__ = ("_bytes_max", "_frame_bytes_max", "_keep_ns", "_partials", "bytes", "given_up")

    def __init__(self, *, bytes_max: int, frame_bytes_max: int, keep_ns: int) -> None:
        self._bytes_max = bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._keep_ns = keep_ns
        self._partials: dict[tuple[int, int], _Partial] = {}
        self.bytes = 0
        self.given_up = 0
        """Frames that never came together."""

    def __len__(self) -> int:
        return len(self._partials)

    def add(
        self, now_ns: int, key: tuple[int, int], index: int, count: int, piece: memoryview
    ) -> bytes | None:
        """A part of the frame that `key` names; returns the frame when it is whole."""
        partial = self._partials.get(key)
        if partial is None:
            partial = self._partials[key] = _Partial(count)
        if partial.count != count or index in partial.pieces:
            raise ProtocolError("the parts of a frame contradict each other")
        partial.pieces[index] = piece
        partial.bytes += len(piece)
        partial.heard_ns = now_ns
        self.bytes += len(piece)
        if len(partial.pieces) == count:
            self._drop(key)
            return b"".join([partial.pieces[number] for number in range(count)])
        if partial.bytes > self._frame_bytes_max:
            self._drop(key)
            self.given_up += 1
            raise ProtocolError("a frame is larger than any may be")
        while self.bytes > self._bytes_max:
            self._give_up(next(iter(self._partials)))
        return None

    def expire(self, now_ns: int) -> None:
        """Drop frames that got no part for too long."""
        for key, partial in list(self._partials.items()):
            if now_ns - partial.heard_ns >= self._keep_ns:
                self._give_up(key)

    def _give_up(self, key: tuple[int, int]) -> None:
        self._drop(key)
        self.given_up += 1

    def _drop(self, key: tuple[int, int]) -> None:
        self.bytes -= self._partials.pop(key).bytes


def pack_heads(heads: Iterable[tuple[int, int, int]]) -> bytes:
    """The heads of these streams: (stream, oldest number to be had, next number)."""
    return b"".join([_HEADS, *[_HEAD.pack(*head) for head in heads]])


def unpack_heads(body: bytes) -> list[tuple[int, int, int]]:
    return list(_unpack_list(_HEAD, body, 1))  # type: ignore[arg-type]


def pack_ask(whom: int, stream: int, spans: Iterable[Span]) -> bytes:
    """A request to send these numbers again."""
    return b"".join((_ASK.pack(ASK, whom, stream), *(_SPAN.pack(*span) for span in spans)))


def unpack_ask(body: bytes) -> tuple[int, int, list[Span]]:
    if len(body) < _ASK.size:
        raise ProtocolError("a question without a stream")
    _, whom, stream = _ASK.unpack_from(body)
    return whom, stream, [(first, count) for first, count in _unpack_list(_SPAN, body, _ASK.size)]


def pack_nonce(kind: int, nonce: bytes) -> bytes:
    assert len(nonce) == NONCE_BYTES
    return bytes([kind]) + nonce


def unpack_nonce(body: bytes) -> bytes:
    if len(body) != 1 + NONCE_BYTES:
        raise ProtocolError("a challenge of another size")
    return body[1:]


def _unpack_list(row: Struct, body: bytes, at: int) -> Iterable[tuple[int, ...]]:
    try:
        return row.iter_unpack(memoryview(body)[at:])
    except StructError:
        raise ProtocolError("a list ends in the middle of a row") from None
