"""One column of a batch: views into bytes that it shares with its slices."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from antiphon.values import FIXED_FORMATS, NARROW_CLASSES, PropertyValue, ValueType, decode_text

FIXED_WIDTHS: Final = {kind: struct.calcsize(code) for kind, code in FIXED_FORMATS.items()}
OFFSET_BYTES: Final = 4

# Looking a member up in its enum is slow before Python 3.12; these are needed for every row.
_STR: Final = ValueType.STR
_BOOL: Final = ValueType.BOOL
_NULL: Final = ValueType.NULL

_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")


class Column:
    """The values of all rows, or of those whose presence bit is set.

    `offsets` and the values of fixed width are views that give numbers; the values of STR and BYTES are one
    flat view, those of BOOL are bits.
    """

    __slots__ = ("first_bit", "offsets", "presence", "type", "values")

    def __init__(
        self,
        type: ValueType,
        values: memoryview,
        offsets: memoryview | None = None,
        presence: memoryview | None = None,
        first_bit: int = 0,
    ) -> None:
        self.type = type
        self.values = values
        self.offsets = offsets
        self.presence = presence
        self.first_bit = first_bit

    # -- making ----------------------------------------------------------------

    @classmethod
    def of_items(
        cls, type: ValueType, items: Sequence[bytes | memoryview], presence: Sequence[int] | None = None
    ) -> Column:
        """A column of STR (encoded already) or BYTES."""
        offsets = pack_offsets(list(map(len, items)))
        return cls(type, memoryview(b"".join(items)), memoryview(offsets).cast("i"), _presence(presence))

    @classmethod
    def of_numbers(
        cls, type: ValueType, numbers: Sequence[float], presence: Sequence[int] | None = None
    ) -> Column:
        code = FIXED_FORMATS[type]
        values = struct.pack(f"<{len(numbers)}{code}", *numbers)
        return cls(type, memoryview(values).cast(code), None, _presence(presence))  # type: ignore[call-overload]

    @classmethod
    def of_flags(cls, flags: Sequence[int], presence: Sequence[int] | None = None) -> Column:
        return cls(ValueType.BOOL, memoryview(pack_bits(flags)), None, _presence(presence))

    @classmethod
    def of_nulls(cls, presence: Sequence[int] | None) -> Column:
        return cls(ValueType.NULL, memoryview(b""), None, _presence(presence))

    # -- reading ---------------------------------------------------------------

    def is_present(self, row: int) -> bool:
        return self.presence is None or self._bit(self.presence, row)

    def flag(self, row: int) -> bool:
        return self._bit(self.values, row)

    def _bit(self, bits: memoryview, row: int) -> bool:
        at = self.first_bit + row
        return bool(bits[at >> 3] >> (at & 7) & 1)

    def item(self, row: int) -> memoryview:
        """The bytes of a STR or BYTES, in place."""
        offsets = self.offsets
        assert offsets is not None, "only STR and BYTES have items"
        base = offsets[0]
        return self.values[offsets[row] - base : offsets[row + 1] - base]

    def value(self, row: int) -> PropertyValue:
        """The value in Python. Ask `is_present` first."""
        kind = self.type
        if self.offsets is not None:
            item = self.item(row)
            return decode_text(item) if kind is _STR else bytes(item)
        if kind is _BOOL:
            return self.flag(row)
        if kind is _NULL:
            return None
        number: int | float = self.values[row]
        narrow = NARROW_CLASSES.get(kind)
        return narrow(number) if narrow else number

    def extent(self, start: int, stop: int) -> int:
        """The bytes of these rows, bits not counted."""
        if self.offsets is not None:
            return self.offsets[stop] - self.offsets[start] + OFFSET_BYTES * (stop - start)
        return FIXED_WIDTHS.get(self.type, 0) * (stop - start)

    # -- slicing and writing ---------------------------------------------------

    def slice(self, start: int, stop: int) -> Column:
        """The rows `[start, stop)`; the bytes stay where they are."""
        bit = self.first_bit + start
        bits = slice(bit >> 3, self.first_bit + stop + 7 >> 3)
        offsets = self.offsets
        if offsets is not None:
            base = offsets[0]
            values = self.values[offsets[start] - base : offsets[stop] - base]
            offsets = offsets[start : stop + 1]
        elif self.type is _BOOL:
            values = self.values[bits]
        else:
            values = self.values[start:stop]
        presence = self.presence
        return Column(self.type, values, offsets, presence and presence[bits], bit & 7)

    def take(self, rows: Sequence[int]) -> Column:
        """These rows; their bytes are copied, and bits begin at bit 0."""
        presence = None if self.presence is None else self._flags(self.presence, rows)
        if self.offsets is not None:
            return Column.of_items(self.type, list(map(self.item, rows)), presence)
        if self.type is _BOOL:
            return Column.of_flags(self._flags(self.values, rows), presence)
        if self.type is _NULL:
            return Column.of_nulls(presence)
        width, bytes_ = self.values.itemsize, self.values.cast("B")
        values = b"".join([bytes_[row * width : (row + 1) * width] for row in rows])
        code = FIXED_FORMATS[self.type]
        return Column(self.type, memoryview(values).cast(code), None, _presence(presence))  # type: ignore[call-overload]

    def _flags(self, bits: memoryview, rows: Sequence[int]) -> list[int]:
        first = self.first_bit
        return [bits[first + row >> 3] >> (first + row & 7) & 1 for row in rows]

    def blocks(self) -> Iterable[memoryview]:
        """The blocks of bytes in the order of the layout, without padding."""
        if self.presence is not None:
            yield self.presence
        if self.offsets is not None:
            yield self.offsets.cast("B")
        yield self.values.cast("B")


def pack_offsets(lengths: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))


def pack_bits(flags: Sequence[int]) -> bytes:
    """Bits in rows' order, the lowest bit of a byte first; each flag is 0 or 1."""
    digits = bytes(flags)[::-1].translate(_DIGITS)
    return int(digits, 2).to_bytes(len(flags) + 7 >> 3, "little")


def _presence(flags: Sequence[int] | None) -> memoryview | None:
    return None if flags is None else memoryview(pack_bits(flags))
