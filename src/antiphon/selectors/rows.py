"""Rows: headers and properties of a part of a batch, as vectors.

BRW1  A name is read once for all conditions that ask for it, and only if one does.
BRW2  A property column is read as a whole; properties in blobs are decoded row by row, once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from antiphon.batch import Batch, ColumnId
from antiphon.batch.column import Column
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.ids import format_message_id
from antiphon.selectors.vectors import (
    APPROXIMATE,
    EXACT,
    FLAG,
    OTHER,
    TEXT,
    Cells,
    ValueKind,
    Vector,
    constant,
    vector_of,
)
from antiphon.values import PropertyValue, ValueType

_KINDS: Final[dict[ValueType, ValueKind]] = {
    ValueType.I8: EXACT,
    ValueType.I16: EXACT,
    ValueType.I32: EXACT,
    ValueType.I64: EXACT,
    ValueType.F32: APPROXIMATE,
    ValueType.F64: APPROXIMATE,
}


class RowValues:
    """The rows `[start, stop)` of a batch that is stored in a channel, counted from 0 here."""

    __slots__ = ("_batch", "_channel", "_known", "_properties", "_start", "count", "everything")

    def __init__(self, batch: Batch, start: int, stop: int, channel: str) -> None:
        assert 0 <= start < stop <= batch.count, f"no rows {start} to {stop} in a batch of {batch.count}"
        self._batch = batch
        self._start = start
        self._channel = channel
        self.count = stop - start
        self.everything = (1 << self.count) - 1
        self._known: dict[str, Vector] = {}
        self._properties: list[dict[str, PropertyValue]] | None = None

    def vector(self, name: str) -> Vector:
        """The values of a header or a property."""
        found = self._known.get(name)
        if found is None:
            header = HEADERS.get(name)
            found = self._known[name] = self._property(name) if header is None else header(self)
        return found

    def _property(self, name: str) -> Vector:
        column = self._batch.property_column(name)
        if column is not None:
            return self._column(column)
        if self._batch.column(ColumnId.PROPERTIES) is None:
            return {}
        if self._properties is None:
            rows = range(self._start, self._start + self.count)
            self._properties = list(map(self._batch.properties, rows))
        return vector_of([properties.get(name) for properties in self._properties])

    def _column(self, column: Column) -> Vector:
        if column.type is ValueType.NULL:
            return {}
        rows = self.everything if column.presence is None else self._bits(column, column.presence)
        if not rows:
            return {}
        start, stop = self._start, self._start + self.count
        kind = _KINDS.get(column.type)
        if kind is not None:
            return {kind: Cells(rows, column.values[start:stop].tolist())}
        if column.type is ValueType.STR:
            return {TEXT: Cells(rows, _items(column, start, stop))}
        if column.type is ValueType.BOOL:
            return {FLAG: Cells(rows, self._bits(column, column.values))}
        return {OTHER: Cells(rows, None)}

    def _bits(self, column: Column, bits: memoryview) -> int:
        return int.from_bytes(bits, "little") >> column.first_bit + self._start & self.everything

    # -- headers ---------------------------------------------------------------

    def _header(self, id: ColumnId, default: int | str | None) -> Vector:
        column = self._batch.column(id)
        if column is not None:
            return self._column(column)
        return {} if default is None else constant(default, self.everything)

    def _message_ids(self) -> Vector:
        first = self._batch.first_number + self._start
        producer, channel = self._batch.producer, self._channel
        numbers = range(first, first + self.count)
        ids = [format_message_id(producer, channel, number).encode() for number in numbers]
        return {TEXT: Cells(self.everything, ids)}

    def _modes(self) -> Vector:
        column = self._batch.column(ColumnId.PERSISTENT)
        if column is None:
            return constant(PERSISTENT, self.everything)
        flags = (column.flag(row) for row in range(self._start, self._start + self.count))
        modes = [PERSISTENT.encode() if flag else NON_PERSISTENT.encode() for flag in flags]
        return {TEXT: Cells(self.everything, modes)}

    def _timestamps(self) -> Vector:
        return self._header(ColumnId.TIMESTAMP, self._batch.timestamp_ms(0))


PERSISTENT: Final = "PERSISTENT"
NON_PERSISTENT: Final = "NON_PERSISTENT"

HEADERS: Final[dict[str, Callable[[RowValues], Vector]]] = {
    "JMSDeliveryMode": RowValues._modes,
    "JMSPriority": lambda rows: rows._header(ColumnId.PRIORITY, PRIORITY_DEFAULT),
    "JMSMessageID": RowValues._message_ids,
    "JMSTimestamp": RowValues._timestamps,
    "JMSCorrelationID": lambda rows: rows._header(ColumnId.CORRELATION_ID, None),
    "JMSType": lambda rows: rows._header(ColumnId.TYPE, None),
    "JMSXGroupID": lambda rows: rows._header(ColumnId.KEY, None),
}
TEXT_HEADERS: Final = ("JMSDeliveryMode", "JMSMessageID", "JMSCorrelationID", "JMSType")


def _items(column: Column, start: int, stop: int) -> list[Any]:
    offsets = column.offsets
    assert offsets is not None, "a column of texts has offsets"
    base, first, last = offsets[0], offsets[start], offsets[stop]
    data = column.values[first - base : last - base].tobytes()
    places = offsets[start : stop + 1].tolist()
    if first:
        places = [place - first for place in places]
    return [data[begin:end] for begin, end in pairwise(places)]
