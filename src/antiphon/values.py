"""Typed values: the values of properties, and of map and list bodies.

On the wire a value is a tag byte and its content, little-endian:

    NULL    nothing             I8 I16 I32 I64   the integer
    BOOL    one byte, 0 or 1    F32 F64          the IEEE number
    STR     u32 length, UTF-8   BYTES            u32 length, the bytes
    LIST    u32 count, values   MAP              u32 count, then key (as STR) and value

Python's int travels as I64 and float as F64. `Int8`, `Int16`, `Int32` and `Float32` travel as narrower types,
and arrive as the same class. There is no pickle.

VAL1  decode(encode(x)) == x, with the same types.
VAL2  Any other bytes raise ProtocolError, in time and memory linear in their number.
VAL3  `count_values` accepts exactly the bytes that can be decoded, at a small part of the cost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from antiphon.errors import InvalidMessage, ProtocolError

DEPTH_MAX: Final = 16

VALUES_MAX: Final = 65_536
"""The most values of one map or list, with those of inner ones. A value may be a single byte, and each is
checked when a message comes in: a million would hold up all other clients for half a second."""


class ValueType(IntEnum):
    """The tag of a value; batch columns use the same numbers."""

    NULL = 0
    BOOL = 1
    I8 = 2
    I16 = 3
    I32 = 4
    I64 = 5
    F32 = 6
    F64 = 7
    STR = 8
    BYTES = 9
    LIST = 10
    MAP = 11


class _NarrowInt(int):
    """An int with fewer bits on the wire. Arithmetic gives a plain int again."""

    __slots__ = ()
    _bits: ClassVar[int]

    def __new__(cls, value: int) -> _NarrowInt:
        limit = 1 << cls._bits - 1
        if not -limit <= value < limit:
            raise InvalidMessage(f"{value} does not fit {cls.__name__}: -{limit} to {limit - 1}")
        return super().__new__(cls, value)


class Int8(_NarrowInt):
    """A property value sent as 8 bits."""

    _bits = 8


class Int16(_NarrowInt):
    """A property value sent as 16 bits."""

    _bits = 16


class Int32(_NarrowInt):
    """A property value sent as 32 bits."""

    _bits = 32


class Float32(float):
    """A property value sent as 32 bits, rounded when it is made."""

    __slots__ = ()

    def __new__(cls, value: float) -> Float32:
        try:
            (rounded,) = _F32.unpack(_F32.pack(value))
        except OverflowError:
            raise InvalidMessage(f"{value} does not fit Float32") from None
        return super().__new__(cls, rounded)


PropertyValue: TypeAlias = bool | int | float | str | bytes | None
Value: TypeAlias = PropertyValue | list["Value"] | dict[str, "Value"]

_Read = TypeVar("_Read")

_F32 = struct.Struct("<f")

# -- from Python to a type ---------------------------------------------------------

# Subclasses before their bases: bool is an int, Float32 a float.
_SCALAR_TYPES: Final[dict[type, ValueType]] = {
    type(None): ValueType.NULL,
    bool: ValueType.BOOL,
    Int8: ValueType.I8,
    Int16: ValueType.I16,
    Int32: ValueType.I32,
    int: ValueType.I64,
    Float32: ValueType.F32,
    float: ValueType.F64,
    str: ValueType.STR,
    bytes: ValueType.BYTES,
}
_VALUE_TYPES: Final[dict[type, ValueType]] = {**_SCALAR_TYPES, list: ValueType.LIST, dict: ValueType.MAP}

# The struct format of each type of fixed width.
FIXED_FORMATS: Final[dict[ValueType, str]] = {
    ValueType.I8: "b",
    ValueType.I16: "h",
    ValueType.I32: "i",
    ValueType.I64: "q",
    ValueType.F32: "f",
    ValueType.F64: "d",
}
# Types whose Python class has to be restored after unpacking.
NARROW_CLASSES: Final[dict[ValueType, Callable[..., PropertyValue]]] = {
    ValueType.I8: Int8,
    ValueType.I16: Int16,
    ValueType.I32: Int32,
    ValueType.F32: Float32,
}


def scalar_type(value: object) -> ValueType | None:
    """The wire type of a value that is no list and no map; None if it has none."""
    found = _SCALAR_TYPES.get(type(value))
    return found if found is not None else _type_of_subclass(value, _SCALAR_TYPES)


def _type_of_subclass(value: object, types: dict[type, ValueType]) -> ValueType | None:
    # An IntEnum is an int, a numpy.float64 a float: they travel as such.
    return next((tag for cls, tag in types.items() if isinstance(value, cls)), None)


# -- from Python to bytes ------------------------------------------------------------

_FIXED: Final = {
    int(tag): (struct.Struct(f"<{code}"), NARROW_CLASSES.get(tag)) for tag, code in FIXED_FORMATS.items()
}
_TAGGED: Final = {tag: struct.Struct(f"<B{code}") for tag, code in FIXED_FORMATS.items()} | {
    ValueType.BOOL: struct.Struct("<B?")
}
_TAG_U32 = struct.Struct("<BI")
_U32 = struct.Struct("<I")
_ALLOWED: Final = "allowed are bool, int, float, str, bytes, None, list and dict"


class _Unfit(Exception):
    """A value that has no place on the wire, and the path to it, innermost step first."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path: list[str] = []


class _Parts(list[bytes]):
    """The bytes so far, and the number of their values."""

    values = 0


def encode_map(values: dict[str, Value], what: str = "body") -> bytes:
    """A dict without the tag; raise InvalidMessage saying where in `what` a value is unfit.

    >>> encode_map({"when": {1, 2}})
    Traceback (most recent call last):
    antiphon.errors.InvalidMessage: body['when'] is of type set; allowed are bool, int, ...
    """
    return encode_counted(values, what)[0]


def encode_list(values: list[Value], what: str = "body") -> bytes:
    """A list without the tag; raise InvalidMessage saying where in `what` a value is unfit."""
    return encode_counted(values, what)[0]


def encode_counted(values: dict[str, Value] | list[Value], what: str = "body") -> tuple[bytes, int]:
    """A dict or list without the tag, and the number of its values, with those of inner ones."""
    parts = _Parts()
    try:
        if isinstance(values, dict):
            _write_map(values, parts, 1)
        else:
            _write_list(values, parts, 1)
    except _Unfit as unfit:
        raise InvalidMessage(f"{what}{''.join(reversed(unfit.path))} {unfit.reason}") from None
    if parts.values > VALUES_MAX:
        raise InvalidMessage(
            f"{what} has {parts.values:,} values, those of inner lists and dicts included;"
            f" at most {VALUES_MAX:,} are allowed"
        )
    return b"".join(parts), parts.values


def encode_text(text: str, what: str) -> bytes:
    """Bare UTF-8; raise InvalidMessage for half a surrogate pair in `what`."""
    try:
        return _utf8(text)
    except _Unfit as unfit:
        raise InvalidMessage(f"{what} {unfit.reason}") from None


def _write(value: Any, parts: _Parts, depth: int) -> None:
    tag = _VALUE_TYPES.get(type(value))
    if tag is None:
        tag = _type_of_subclass(value, _VALUE_TYPES)
    match tag:
        case None:
            raise _Unfit(f"is of type {type(value).__name__}; {_ALLOWED}")
        case ValueType.STR:
            text = _utf8(value)
            parts += (_TAG_U32.pack(tag, len(text)), text)
        case ValueType.BYTES:
            parts += (_TAG_U32.pack(tag, len(value)), value)
        case ValueType.NULL:
            parts.append(bytes((tag,)))
        case ValueType.LIST | ValueType.MAP:
            if depth >= DEPTH_MAX:
                raise _Unfit(f"is nested deeper than {DEPTH_MAX}")
            parts.append(bytes((tag,)))
            (_write_list if tag is ValueType.LIST else _write_map)(value, parts, depth + 1)
        case _:
            try:
                parts.append(_TAGGED[tag].pack(tag, value))
            except struct.error:
                raise _Unfit("does not fit 64 bits") from None


def _write_list(values: list[Value], parts: _Parts, depth: int) -> None:
    parts.append(_U32.pack(len(values)))
    parts.values += len(values)
    for index, value in enumerate(values):
        try:
            _write(value, parts, depth)
        except _Unfit as unfit:
            unfit.path.append(f"[{index}]")
            raise


def _write_map(values: dict[str, Value], parts: _Parts, depth: int) -> None:
    parts.append(_U32.pack(len(values)))
    parts.values += len(values)
    for key, value in values.items():
        if not isinstance(key, str):
            raise _Unfit(f"has a key of type {type(key).__name__}; keys are str")
        try:
            name = _utf8(key)
            parts += (_U32.pack(len(name)), name)
            _write(value, parts, depth)
        except _Unfit as unfit:
            unfit.path.append(f"[{key[:40]!r}]")
            raise


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _Unfit("has characters that UTF-8 cannot express") from None


# -- from bytes to Python ------------------------------------------------------------

# Plain numbers: looking a member up in its enum costs as much as reading a value.
_NULL, _BOOL, _STR, _BYTES = map(int, (ValueType.NULL, ValueType.BOOL, ValueType.STR, ValueType.BYTES))
_LIST, _MAP = int(ValueType.LIST), int(ValueType.MAP)
_ENTRY_BYTES_MIN: Final = 5  # of a map: the length of the key, and the tag of the value


def decode_map(data: bytes | memoryview) -> dict[str, Value]:
    return _decode(_read_map, data)


def decode_list(data: bytes | memoryview) -> list[Value]:
    return _decode(_read_list, data)


def decode_text(data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("text is not UTF-8") from None


def _decode(read: Callable[[bytes, int, int], tuple[_Read, int]], data: bytes | memoryview) -> _Read:
    data = bytes(data)
    try:
        value, end = read(data, 0, 1)
    except (struct.error, IndexError):
        raise ProtocolError(f"a value runs over the end of its {len(data)} bytes") from None
    except UnicodeDecodeError:
        raise ProtocolError("text in a value is not UTF-8") from None
    if end != len(data):
        raise ProtocolError(f"a value of {end} bytes is followed by {len(data) - end} more")
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    tag = data[at]
    at += 1
    if tag == _STR:
        return _read_text(data, at)
    if tag in _FIXED:
        fixed, narrow = _FIXED[tag]
        (value,) = fixed.unpack_from(data, at)
        return (narrow(value) if narrow else value), at + fixed.size
    if tag == _NULL:
        return None, at
    if tag == _BOOL:
        if data[at] > 1:
            raise ProtocolError(f"a bool of {data[at]}")
        return data[at] == 1, at + 1
    if tag == _BYTES:
        start, end = _read_extent(data, at, len(data))
        return data[start:end], end
    if tag in (_LIST, _MAP):
        if depth >= DEPTH_MAX:
            raise ProtocolError(f"a value is nested deeper than {DEPTH_MAX}")
        return (_read_list if tag == _LIST else _read_map)(data, at, depth + 1)
    raise ProtocolError(f"no value has the tag {tag}")


def _read_list(data: bytes, at: int, depth: int) -> tuple[list[Value], int]:
    count = _read_count(data, at, len(data), is_map=False)
    at += 4
    values: list[Value] = []
    for _ in range(count):
        value, at = _read(data, at, depth)
        values.append(value)
    return values, at


def _read_map(data: bytes, at: int, depth: int) -> tuple[dict[str, Value], int]:
    count = _read_count(data, at, len(data), is_map=True)
    at += 4
    values: dict[str, Value] = {}
    for _ in range(count):
        key, at = _read_text(data, at)
        values[key], at = _read(data, at, depth)
    if len(values) != count:
        raise ProtocolError("a map has the same key twice")
    return values, at


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    start, end = _read_extent(data, at, len(data))
    return data[start:end].decode(), end


def _read_extent(data: bytes, at: int, stop: int) -> tuple[int, int]:
    start = at + 4
    end = start + _U32.unpack_from(data, at)[0]
    if end > stop:
        raise ProtocolError(
            f"{end - start} bytes of text or bytes are announced, {max(0, stop - start)} follow"
        )
    return start, end


def _read_count(data: bytes, at: int, stop: int, *, is_map: bool) -> int:
    """The count of a list or map, believed only if so many values can still follow (VAL2)."""
    count: int = _U32.unpack_from(data, at)[0]
    room = stop - at - 4
    if room < 0:
        raise IndexError
    if count * (_ENTRY_BYTES_MIN if is_map else 1) > room:
        raise ProtocolError(f"a {'map' if is_map else 'list'} of {count} values has {room} bytes")
    return count


# -- looking without making ------------------------------------------------------------

# The size of a value of fixed width with its tag; 0 for the others.
WIDTHS: Final = tuple(
    1 if tag == ValueType.NULL else 1 + _FIXED[tag][0].size if tag in _FIXED else 0 for tag in range(256)
)


def count_values(data: bytes, at: int, stop: int, *, is_map: bool) -> int:
    """The number of values of the map or list in `data[at:stop]`; raises ProtocolError (VAL3)."""
    try:
        count, end = _walk(data, at, stop, is_map)
    except (struct.error, IndexError):
        end = stop + 1
    except UnicodeDecodeError:
        raise ProtocolError("text in a value is not UTF-8") from None
    if end > stop:
        raise ProtocolError(f"a value runs over the end of its {stop - at} bytes")
    if end < stop:
        raise ProtocolError(f"a value of {end - at} bytes is followed by {stop - end} more")
    return count


def _walk(data: bytes, at: int, stop: int, is_map: bool) -> tuple[int, int]:
    """The number of values, and where they end: perhaps behind `stop`, which the caller checks."""
    widths = WIDTHS
    # The remaining counts of the maps and lists around this one, and the keys of maps so far.
    outer: list[tuple[int, set[bytes] | None]] = []
    total = left = _read_count(data, at, stop, is_map=is_map)
    keys: set[bytes] | None = set() if is_map else None
    at += 4
    while True:
        if total > VALUES_MAX:
            raise ProtocolError(f"a map or list has more than {VALUES_MAX} values")
        while left and keys is None and widths[data[at]]:
            at += widths[data[at]]
            left -= 1
        if not left:
            if not outer:
                return total, at
            left, keys = outer.pop()
            continue
        left -= 1
        if keys is not None:
            at = _skip_key(data, at, stop, keys)
        tag = data[at]
        if widths[tag]:
            at += widths[tag]
        elif tag == _STR:
            start, at = _read_extent(data, at + 1, stop)
            data[start:at].decode()
        elif tag == _BYTES:
            _, at = _read_extent(data, at + 1, stop)
        elif tag == _BOOL:
            if data[at + 1] > 1:
                raise ProtocolError(f"a bool of {data[at + 1]}")
            at += 2
        elif tag in (_LIST, _MAP):
            if len(outer) + 1 >= DEPTH_MAX:
                raise ProtocolError(f"a value is nested deeper than {DEPTH_MAX}")
            outer.append((left, keys))
            left = _read_count(data, at + 1, stop, is_map=tag == _MAP)
            keys = set() if tag == _MAP else None
            total += left
            at += 5
        else:
            raise ProtocolError(f"no value has the tag {tag}")


def _skip_key(data: bytes, at: int, stop: int, keys: set[bytes]) -> int:
    start, end = _read_extent(data, at, stop)
    key = data[start:end]
    if not key.isascii():
        key.decode()
    if key in keys:
        raise ProtocolError("a map has the same key twice")
    keys.add(key)
    return end
