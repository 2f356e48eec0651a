"""Properties: their rules, and how those of a batch become columns.

A property that many rows have, always of one type, is a column: its name is written and checked once. Rows
that have little in common, or a name that changes its type, go as one blob per row: the map codec of
`antiphon.values`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from antiphon.batch.column import FIXED_WIDTHS, Column
from antiphon.batch.layout import PROPERTIES_MAX, PROPERTY_COLUMNS_MAX, VALUE_BYTES_MAX
from antiphon.errors import InvalidMessage, MessageTooLarge
from antiphon.names import check_property_name
from antiphon.values import (
    PropertyValue,
    ValueType,
    decode_map,
    encode_map,
    encode_text,
    scalar_type,
)

# The bytes of a blob for its count, for a name and tag, and for the length of a text.
_COUNT_BYTES: Final = 4
_NAME_BYTES: Final = 5
_LENGTH_BYTES: Final = 4


def check_properties(properties: Mapping[str, PropertyValue]) -> int:
    """Raise unless a message may have these properties; returns their bytes as a blob."""
    if not isinstance(properties, Mapping):
        raise InvalidMessage(f"properties are a mapping of names to values, not {type(properties).__name__}")
    if len(properties) > PROPERTIES_MAX:
        raise MessageTooLarge(f"{len(properties)} properties are more than the {PROPERTIES_MAX} allowed")
    return weigh_properties(properties)


def weigh_properties(properties: Mapping[str, PropertyValue]) -> int:
    """The bytes of properties as a blob; raises unless each of them may be a property."""
    size = _COUNT_BYTES
    for name, value in properties.items():
        check_property_name(name)
        name_length = len(name) if name.isascii() else len(name.encode())
        size += _NAME_BYTES + name_length + _value_bytes(name, value)
    return size


def _value_bytes(name: str, value: PropertyValue) -> int:
    """The bytes of a value behind its tag; raise if no property may have it."""
    kind = scalar_type(value)
    if kind is None:
        raise InvalidMessage(
            f"property {name!r} is of type {type(value).__name__};"
            " allowed are bool, int, float, str, bytes and None"
        )
    if isinstance(value, str):
        length = len(value) if value.isascii() else len(encode_text(value, f"property {name!r}"))
    elif isinstance(value, bytes):
        length = len(value)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidMessage(f"property {name!r} is an int that does not fit 64 bits")
    else:
        return FIXED_WIDTHS.get(kind, 1)
    if length > VALUE_BYTES_MAX:
        raise MessageTooLarge(
            f"property {name!r} of {length:,} bytes is larger than the {VALUE_BYTES_MAX:,} allowed"
        )
    return _LENGTH_BYTES + length


def build_properties(
    rows: Sequence[Mapping[str, PropertyValue]], blob_bytes: int
) -> tuple[dict[str, Column], Column | None]:
    """The properties of all rows as columns by name, or as one column of blobs.

    `blob_bytes` is the sum of the results of `check_properties`. Columns are chosen only where they take no
    more: a property that one row in a thousand has would take a slot in the other rows too.
    """
    columns = _build_columns(rows)
    if columns is not None:
        column_bytes = sum(len(block) for column in columns.values() for block in column.blocks())
        if column_bytes <= blob_bytes:
            return columns, None
    blobs = [encode_map({**properties}, "properties") if properties else b"" for properties in rows]
    return {}, Column.of_items(ValueType.BYTES, blobs)


def _build_columns(rows: Sequence[Mapping[str, PropertyValue]]) -> dict[str, Column] | None:
    """A column for each name, or None if there are too many or one changes its type."""
    types: dict[str, ValueType] = {}
    cells: dict[str, list[tuple[int, PropertyValue]]] = {}
    for row, properties in enumerate(rows):
        for name, value in properties.items():
            kind = scalar_type(value)
            assert kind is not None, "properties were checked when they were added"
            if types.setdefault(name, kind) is not kind:
                return None
            cells.setdefault(name, []).append((row, value))
        if len(types) > PROPERTY_COLUMNS_MAX:
            return None
    return {name: _build_column(types[name], cells[name], len(rows)) for name in types}


def _build_column(kind: ValueType, cells: list[tuple[int, Any]], count: int) -> Column:
    presence = None
    if len(cells) < count:
        presence = bytearray(count)
        for row, _ in cells:
            presence[row] = 1
    if kind is ValueType.NULL:
        return Column.of_nulls(presence)
    is_text = kind in (ValueType.STR, ValueType.BYTES)
    dense: list[Any] = [b"" if is_text else 0] * count
    for row, value in cells:
        dense[row] = value.encode() if kind is ValueType.STR else value
    if is_text:
        return Column.of_items(kind, dense, presence)
    if kind is ValueType.BOOL:
        return Column.of_flags(dense, presence)
    return Column.of_numbers(kind, dense, presence)


def decode_properties(blob: memoryview) -> dict[str, PropertyValue]:
    return cast(dict[str, PropertyValue], decode_map(blob)) if blob else {}
