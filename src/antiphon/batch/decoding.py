"""From bytes of any origin to the parts of a batch.

DEC1  Bytes that are no batch raise ProtocolError and nothing else.
DEC2  Time and memory stay within a small multiple of the number of bytes: every count and length is
      compared with the bytes that are there before it is used. Values that are checked one by one are
      limited in number, see `contents`.
DEC3  A plain batch (bodies of bytes) costs the same few calls for any number of rows, with the loops over
      rows in C.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, Final, NamedTuple

from antiphon.batch.bodies import BodyKind
from antiphon.batch.column import FIXED_WIDTHS, OFFSET_BYTES, Column
from antiphon.batch.contents import check_blobs, check_bodies, check_count, check_ids, check_texts
from antiphon.batch.layout import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    BODY_KIND_MIXED,
    COLUMN_TYPES,
    DEDUP_ID_BYTES_MAX,
    ENTRY,
    HAS_PRESENCE,
    HEADER,
    IDENTIFIED_ROWS_MAX,
    PADDING,
    PRIORITY_MAX,
    PROPERTY_COLUMNS_MAX,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    VERSION,
    ColumnId,
    rules_of,
)
from antiphon.errors import ProtocolError
from antiphon.ids import I64_MAX, U64_MAX
from antiphon.names import property_name_complaint
from antiphon.values import FIXED_FORMATS, ValueType, decode_text

# Looking a member up in its enum is slow before Python 3.12; these are needed for every batch.
_BODY: Final = ColumnId.BODY
_PROPERTY: Final = ColumnId.PROPERTY
_OFFSETS: Final = ColumnId.NUMBER_OFFSET
_BOOL: Final = ValueType.BOOL
_BYTES: Final = ValueType.BYTES
_PLAIN: Final = BodyKind.BYTES

_COLUMN_IDS: Final = {int(id): id for id in ColumnId}
_COLUMN_TYPES: Final = {int(kind): kind for kind in ValueType if kind < ValueType.LIST}
_HAS_OFFSETS: Final = (ValueType.STR, ValueType.BYTES)
_TEXTS: Final = (ColumnId.KEY, ColumnId.CORRELATION_ID, ColumnId.REPLY_TO, ColumnId.TYPE)
_MAY_BE_ABSENT: Final = (*_TEXTS, ColumnId.DEDUP_ID)
_BODY_KINDS: Final = (*BodyKind, BODY_KIND_MIXED)
# A blob has as many bytes as its properties need; each of those is checked.
_LENGTHS_MAX: Final = {
    ColumnId.BODY: BODY_BYTES_MAX,
    ColumnId.DEDUP_ID: DEDUP_ID_BYTES_MAX,
    ColumnId.PROPERTIES: BATCH_BYTES_MAX,
}
_NUMBERS_MAX: Final = {
    ColumnId.BODY_KIND: max(BodyKind),
    ColumnId.TIMESTAMP: I64_MAX,
    ColumnId.PRIORITY: PRIORITY_MAX,
    ColumnId.EXPIRES: I64_MAX,
    ColumnId.DELIVER_AT: I64_MAX,
}


class BatchParts(NamedTuple):
    """The parts of a `Batch`, in its constructor's order."""

    rows: int
    producer: int
    first_number: int
    timestamp_ms: int
    body_kind: int
    first_bit: int
    body: Column
    columns: dict[ColumnId, Column]
    properties: dict[str, Column]
    offsets: Column | None = None


class _BatchHead(NamedTuple):
    version: int
    rules: int
    codec: int
    body_kind: int
    rows: int
    length: int
    columns: int
    first_bit: int
    names_length: int
    producer: bytes
    first_number: int
    timestamp_ms: int


class _Blocks:
    """The blocks behind the header, one by one, each with its padding checked."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, length: int) -> memoryview:
        start, end = self._at, self._at + length
        self._at = end + 7 & ~7
        if self._at > len(self._data):
            raise ProtocolError(f"a batch of {len(self._data)} bytes has a block that ends at {self._at}")
        if end != self._at and self._data[end : self._at] != PADDING[length & 7]:
            raise ProtocolError("a block of a batch is not padded with zeros")
        return self._data[start:end]

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError(f"{len(self._data) - self._at} bytes follow the last column of a batch")


def decode_parts(data: bytes | bytearray | memoryview, trusted: bool) -> BatchParts:
    view = memoryview(data)
    lone = lone_fields(view)
    return decode_any_parts(view, trusted) if lone is None else _lone_parts(view, lone)


def decode_any_parts(view: memoryview, trusted: bool) -> BatchParts:
    """The general way, for any batch."""
    header = _read_header(view)
    blocks = _Blocks(view, HEADER.size)
    directory = blocks.take(header.columns * ENTRY.size)
    names = _Names(blocks.take(header.names_length))
    columns: dict[ColumnId, Column] = {}
    properties: dict[str, Column] = {}
    for number, type_number, flags, name_length, length in ENTRY.iter_unpack(directory):
        id = _COLUMN_IDS.get(number)
        kind = _COLUMN_TYPES.get(type_number)
        if id is None or kind is None or flags > HAS_PRESENCE:
            raise ProtocolError(f"no batch has a column {number} of type {type_number}, flags {flags}")
        if id is _PROPERTY:
            if _OFFSETS in columns:
                raise ProtocolError("a property of a batch follows the offsets of its numbers")
            name = names.take(name_length)
            if name in properties:
                raise ProtocolError(f"a batch has two columns for the property {name!r}")
            properties[name] = _read_column(blocks, header, kind, flags, length, VALUE_BYTES_MAX)
            continue
        _check_entry(id, kind, flags, name_length, columns, properties)
        limit = _LENGTHS_MAX.get(id, VALUE_BYTES_MAX)
        columns[id] = _read_column(blocks, header, kind, flags, length, limit)
    blocks.finish()
    names.finish()
    body = columns.pop(_BODY, None)
    offsets = columns.pop(_OFFSETS, None)
    if body is None:
        raise ProtocolError("a batch has no bodies")
    if header.rules != rules_of(columns):
        raise ProtocolError(f"a batch with rules {header.rules:#x} has columns for {rules_of(columns):#x}")
    _check_number_offsets(header, offsets)
    if columns or properties or header.body_kind != _PLAIN:
        _check_numbers(header, columns, properties)
        if not trusted:
            _check_contents(header, body, columns, properties)
    return BatchParts(
        header.rows,
        int.from_bytes(header.producer, "little"),
        header.first_number,
        header.timestamp_ms,
        header.body_kind,
        header.first_bit,
        body,
        columns,
        properties,
        offsets,
    )


_LONE: Final = struct.Struct(f"{HEADER.format}{ENTRY.format[1:]}ii")
_LONE_HEAD: Final = (VERSION, 0, 0, int(_PLAIN), 1)
_LONE_ENTRY: Final = (int(_BODY), int(ValueType.BYTES), 0, 0)


def lone_fields(data: bytes | bytearray | memoryview) -> tuple[Any, ...] | None:
    """Header, entry and offsets of a batch that is one body of bytes and nothing else; None for any other.

    Messages that are sent one by one are all like this, and are read in a fifth of the time.
    """
    size = len(data)
    if size < _LONE.size:
        return None
    fields = _LONE.unpack_from(data)
    if fields[4] != 1:
        return None
    length, columns, first_bit, names_length, _, _, timestamp_ms = fields[5:12]
    body, start, stop = fields[16:]
    is_whole = length == size == _LONE.size + (body + 7 & ~7) and body <= BODY_BYTES_MAX
    if (
        fields[:5] != _LONE_HEAD
        or fields[12:16] != _LONE_ENTRY
        or not is_whole
        or columns != 1
        or names_length
        or first_bit > 7
        or timestamp_ms < 0
        or start < 0
        or stop - start != body
        or (body & 7 and data[_LONE.size + body :] != PADDING[body & 7])
    ):
        return None
    return fields


def _lone_parts(view: memoryview, fields: tuple[Any, ...]) -> BatchParts:
    first_bit, body = fields[7], fields[16]
    values = view[_LONE.size : _LONE.size + body]
    offsets = view[_LONE.size - 2 * OFFSET_BYTES : _LONE.size].cast("i")
    column = Column(_BYTES, values, offsets, None, first_bit)
    producer = int.from_bytes(fields[9], "little")
    return BatchParts(1, producer, fields[10], fields[11], fields[3], first_bit, column, {}, {})


def _read_header(view: memoryview) -> _BatchHead:
    if not HEADER.size <= len(view) <= BATCH_BYTES_MAX:
        raise ProtocolError(f"{len(view)} bytes are no batch: {HEADER.size} to {BATCH_BYTES_MAX}")
    header = _BatchHead._make(HEADER.unpack_from(view))
    if header.version != VERSION:
        raise ProtocolError(f"a batch of version {header.version:#x}; {VERSION:#x} is spoken here")
    if header.codec:
        raise ProtocolError(f"a batch with unknown codec {header.codec}")
    if header.length != len(view):
        raise ProtocolError(f"a batch says it has {header.length} bytes; it has {len(view)}")
    if not 1 <= header.rows <= ROWS_MAX:
        raise ProtocolError(f"a batch of {header.rows} rows; 1 to {ROWS_MAX} are allowed")
    if header.first_bit > 7 or header.timestamp_ms < 0:
        raise ProtocolError(f"a batch with first bit {header.first_bit}, time {header.timestamp_ms}")
    return header


def _check_entry(
    id: ColumnId,
    kind: ValueType,
    flags: int,
    name_length: int,
    columns: dict[ColumnId, Column],
    properties: dict[str, Column],
) -> None:
    """Raise unless this column, which is no property, may stand here in the directory."""
    if kind is not COLUMN_TYPES[id] or name_length or (flags and id not in _MAY_BE_ABSENT):
        raise ProtocolError(f"column {id.name} of a batch is of type {kind.name}, flags {flags}")
    # A dict gives its keys in the order of insertion; each column must come after all before it.
    if (properties and id is not _OFFSETS) or (columns and id <= next(reversed(columns))):
        raise ProtocolError(f"column {id.name} of a batch is out of order")


def _read_column(
    blocks: _Blocks, header: _BatchHead, kind: ValueType, flags: int, length: int, length_max: int
) -> Column:
    bits_length = header.first_bit + header.rows + 7 >> 3
    presence = blocks.take(bits_length) if flags & HAS_PRESENCE else None
    offsets = None
    if kind in _HAS_OFFSETS:
        offsets = blocks.take(OFFSET_BYTES * (header.rows + 1)).cast("i")
        _check_offsets(offsets.tolist(), length, length_max)
    elif length != (bits_length if kind is _BOOL else FIXED_WIDTHS.get(kind, 0) * header.rows):
        raise ProtocolError(f"{length} bytes for {header.rows} rows of type {kind.name}")
    values = blocks.take(length)
    if kind in FIXED_FORMATS:
        values = values.cast(FIXED_FORMATS[kind])  # type: ignore[call-overload]
    return Column(kind, values, offsets, presence, header.first_bit)


def _check_offsets(offsets: list[int], length: int, length_max: int) -> None:
    # Sorting a sorted list is one pass over it, the fastest there is in C.
    if offsets[0] < 0 or offsets[-1] - offsets[0] != length or sorted(offsets) != offsets:
        raise ProtocolError(f"the offsets of a column do not divide its {length} bytes")
    if length > length_max and max(map(operator.sub, offsets[1:], offsets)) > length_max:
        raise ProtocolError(f"a value in a batch is longer than {length_max} bytes")


def _check_number_offsets(header: _BatchHead, column: Column | None) -> None:
    """Raise unless the numbers of rows ascend, and are those of rows of one batch."""
    last = header.rows - 1
    if column is not None:
        offsets = column.values.tolist()
        if offsets[0] < 0 or offsets[-1] >= ROWS_MAX or not all(map(operator.lt, offsets, offsets[1:])):
            raise ProtocolError(f"the numbers of a batch do not ascend within {ROWS_MAX} rows")
        last = offsets[-1] - offsets[0]
    if header.first_number + last > U64_MAX:
        raise ProtocolError("the numbers of a batch do not fit 64 bits")


def _check_numbers(
    header: _BatchHead, columns: dict[ColumnId, Column], properties: dict[str, Column]
) -> None:
    """Raise unless header and columns agree and every number is in its range."""
    if (ColumnId.BODY_KIND in columns) != (header.body_kind == BODY_KIND_MIXED):
        raise ProtocolError("the kind of bodies is given twice, or not at all")
    if header.body_kind not in _BODY_KINDS:
        raise ProtocolError(f"no body is of kind {header.body_kind}")
    if ColumnId.TIMESTAMP in columns and header.timestamp_ms:
        raise ProtocolError("the time of messages is given twice")
    if len(properties) > PROPERTY_COLUMNS_MAX or (properties and ColumnId.PROPERTIES in columns):
        raise ProtocolError(f"properties are blobs, or up to {PROPERTY_COLUMNS_MAX} columns")
    if ColumnId.DEDUP_ID in columns and header.rows > IDENTIFIED_ROWS_MAX:
        raise ProtocolError(f"a batch of {header.rows} rows with ids; {IDENTIFIED_ROWS_MAX} are allowed")
    for id, number_max in _NUMBERS_MAX.items():
        column = columns.get(id)
        if column is not None and (min(column.values) < 0 or max(column.values) > number_max):
            raise ProtocolError(f"column {id.name} of a batch goes beyond 0 to {number_max}")


def _check_contents(
    header: _BatchHead, body: Column, columns: dict[ColumnId, Column], properties: dict[str, Column]
) -> None:
    """Raise unless every body, text and property can be read."""
    count = check_bodies(body, header.body_kind, columns.get(ColumnId.BODY_KIND))
    for id in _TEXTS:
        if id in columns:
            check_texts(columns[id])
    if ColumnId.DEDUP_ID in columns:
        check_ids(columns[ColumnId.DEDUP_ID], header.rows)
    for column in properties.values():
        if column.type is ValueType.STR:
            check_texts(column)
    blobs = columns.get(ColumnId.PROPERTIES)
    if blobs is not None:
        check_count(count + check_blobs(blobs))


class _Names:
    """The names of property columns, in the order of the directory."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, length: int) -> str:
        name = decode_text(self._data[self._at : self._at + length])
        self._at += length
        complaint = property_name_complaint(name)
        if complaint:
            raise ProtocolError(f"a property name in a batch {complaint}")
        return name

    def finish(self) -> None:
        # A position beyond the end is an error, too: the last name was cut.
        if self._at != len(self._data):
            raise ProtocolError("the names of a batch's properties are not as long as announced")
