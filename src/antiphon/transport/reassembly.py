"""Assembler: frames that were cut come together again.

Parts come in any order, once each (the replay window sees to that). What does not come together is let
go: when nothing of it has come for as long as anybody asks for a lost datagram, or when there is too much
of it, the oldest first.
"""

from __future__ import annotations

from antiphon.errors import ProtocolError


class _Partial:
    __slots__ = ("bytes", "count", "heard_ns", "pieces")

    def __init__(self, count: int) -> None:
        self.count = count
        self.pieces: dict[int, memoryview] = {}
        self.bytes = 0
        self.heard_ns = 0


class Assembler:
    """The unfinished frames of one stream, or of all streams of one member: whatever `key` tells apart."""

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
        """Let go of what has not moved for too long."""
        for key, partial in list(self._partials.items()):
            if now_ns - partial.heard_ns >= self._keep_ns:
                self._give_up(key)

    def _give_up(self, key: tuple[int, int]) -> None:
        self._drop(key)
        self.given_up += 1

    def _drop(self, key: tuple[int, int]) -> None:
        self.bytes -= self._partials.pop(key).bytes
