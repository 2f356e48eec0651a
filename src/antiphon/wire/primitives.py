"""Numbers, texts and byte strings: read within bounds, written without joining.

All integers are little-endian. A text is a u16 length and strict UTF-8, a byte string a u32 length and its
bytes, a list a u32 count and its elements.

`Reader` raises `ProtocolError`, since its bytes come from a peer. `Writer` raises `ValueError`, since its
values come from this process.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from antiphon.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

TEXT_BYTES_MAX = 0xFFFF

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")


class Reader:
    """Walks once over bytes from outside; nothing is read beyond their end.

    Byte strings are read-only views, which keep all the bytes around them alive.
    """

    __slots__ = ("_end", "_offset", "_view")

    def __init__(self, data: Buffer, offset: int = 0) -> None:
        view = memoryview(data)
        self._view = view if view.readonly else view.toreadonly()
        self._offset = offset
        self._end = len(view)

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def remaining(self) -> int:
        return self._end - self._offset

    def u8(self) -> int:
        start = self._offset
        if start >= self._end:
            raise ProtocolError(f"the bytes end at {self._end}, inside a number of 1 bytes")
        self._offset = start + 1
        return self._view[start]

    def u16(self) -> int:
        return self._number(_U16)

    def u32(self) -> int:
        return self._number(_U32)

    def u64(self) -> int:
        return self._number(_U64)

    def i64(self) -> int:
        return self._number(_I64)

    def u128(self) -> int:
        return int.from_bytes(self.raw(16), "little")

    def bool_(self) -> bool:
        value = self.u8()
        if value > 1:
            raise ProtocolError(f"a yes or no of {value} at offset {self._offset - 1}")
        return value == 1

    def raw(self, size: int) -> memoryview:
        start = self._offset
        stop = start + size
        if stop > self._end:
            raise ProtocolError(f"{size} bytes announced at offset {start}, {self._end - start} are left")
        self._offset = stop
        return self._view[start:stop]

    def ahead(self, size: int) -> memoryview:
        """The next `size` bytes, or as many as there are, which remain to be read."""
        return self._view[self._offset : self._offset + size]

    def bytes_(self) -> memoryview:
        return self.raw(self._number(_U32))

    def rest(self) -> memoryview:
        start = self._offset
        self._offset = self._end
        return self._view[start:]

    def text(self) -> str:
        return self._utf8(self._number(_U16))

    def document(self) -> str:
        """A text that may be longer than 64 KiB: its length is a u32."""
        return self._utf8(self._number(_U32))

    def count(self, element_bytes_min: int) -> int:
        """The count of a list whose elements take at least so many bytes each.

        Checked against the bytes that are left, so that a false count costs no memory.
        """
        count = self._number(_U32)
        if count * element_bytes_min > self._end - self._offset:
            raise ProtocolError(f"{count} elements announced, {self._end - self._offset} bytes are left")
        return count

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Several fields of fixed width at once."""
        start = self._offset
        stop = start + layout.size
        if stop > self._end:
            raise ProtocolError(f"the bytes end at {self._end}, inside a field of {layout.size} bytes")
        self._offset = stop
        return layout.unpack_from(self._view, start)

    def finish(self) -> None:
        """Raise if bytes are left: the two sides disagree."""
        if self._offset != self._end:
            raise ProtocolError(f"{self._end - self._offset} bytes after the end")

    def _number(self, layout: struct.Struct) -> int:
        start = self._offset
        stop = start + layout.size
        if stop > self._end:
            raise ProtocolError(f"the bytes end at {self._end}, inside a number of {layout.size} bytes")
        self._offset = stop
        value: int = layout.unpack_from(self._view, start)[0]
        return value

    def _utf8(self, size: int) -> str:
        data = self.raw(size)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a text before offset {self._offset} is not UTF-8: {error.reason}") from None


class Writer:
    """Gathers the parts of a message.

    `parts` can go to the network as they are; `join` makes one bytes of them, and is the only copy.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Buffer] = []

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    def join(self) -> bytes:
        return b"".join(self.parts)

    def u8(self, value: int) -> None:
        self.parts.append(pack(_U8, value))

    def u16(self, value: int) -> None:
        self.parts.append(pack(_U16, value))

    def u32(self, value: int) -> None:
        self.parts.append(pack(_U32, value))

    def u64(self, value: int) -> None:
        self.parts.append(pack(_U64, value))

    def i64(self, value: int) -> None:
        self.parts.append(pack(_I64, value))

    def u128(self, value: int) -> None:
        self.parts.append(encode_u128(value))

    def bool_(self, value: bool) -> None:
        self.parts.append(b"\x01" if value else b"\x00")

    def raw(self, data: Buffer) -> None:
        """Bytes without a length: the reader knows it, or reads to the end."""
        self.parts.append(data)

    def bytes_(self, data: Buffer) -> None:
        self.parts.append(pack(_U32, len(data)))
        self.parts.append(data)

    def text(self, value: str) -> None:
        self.parts.append(encode_text(value))

    def document(self, value: str) -> None:
        self.bytes_(value.encode("utf-8"))

    def count(self, value: int) -> None:
        self.parts.append(pack(_U32, value))


def pack(layout: struct.Struct, *values: int | bytes) -> bytes:
    """Pack, with a `ValueError` for values that do not fit."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"{values} do not fit {layout.format!r}: {error}") from None


def encode_text(value: str) -> bytes:
    data = value.encode("utf-8")
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes; at most {TEXT_BYTES_MAX} can be sent")
    return _U16.pack(len(data)) + data


def encode_u128(value: int) -> bytes:
    try:
        return value.to_bytes(16, "little")
    except OverflowError:
        raise ValueError(f"{value} does not fit 128 bits") from None
