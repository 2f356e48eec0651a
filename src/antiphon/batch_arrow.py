"""Columns of a batch as Arrow arrays, without a loop over rows.

pyarrow comes with the extra `spark`; it is imported when a function is called.
The arrays share the bytes of the batch and keep them alive.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, Any

from antiphon.batch import ROWS_MAX, Batch, ColumnId
from antiphon.batch.column import Column
from antiphon.values import FIXED_FORMATS, ValueType

if TYPE_CHECKING:
    import pyarrow


def body_array(batch: Batch) -> pyarrow.BinaryArray:
    """The bytes of all bodies, whatever their kind, as `binary`."""
    import pyarrow

    body = batch.column(ColumnId.BODY)
    assert body is not None, "every batch has bodies"
    return _items_array(pyarrow.binary(), body, batch.count)


def text_array(column: Column, count: int) -> pyarrow.StringArray:
    """A column of STR as `string`; null where a row has none."""
    import pyarrow

    return _with_presence(_items_array(pyarrow.string(), column, count), column)


def bytes_array(column: Column, count: int) -> pyarrow.BinaryArray:
    """A column of BYTES as `binary`; null where a row has none."""
    import pyarrow

    return _with_presence(_items_array(pyarrow.binary(), column, count), column)


def flag_array(column: Column, count: int) -> pyarrow.BooleanArray:
    """A column of BOOL as `bool`; null where a row has none."""
    return _with_presence(_bits_array(column.values, column.first_bit, count), column)


def number_array(column: Column, count: int) -> pyarrow.Array:
    """A column of numbers as the Arrow type of the same width; null where a row has none."""
    import pyarrow

    kinds: dict[ValueType, Any] = {
        ValueType.I8: pyarrow.int8(),
        ValueType.I16: pyarrow.int16(),
        ValueType.I32: pyarrow.int32(),
        ValueType.I64: pyarrow.int64(),
        ValueType.F32: pyarrow.float32(),
        ValueType.F64: pyarrow.float64(),
    }
    assert column.type in FIXED_FORMATS, f"{column.type.name} is no number"
    return _with_presence(_array_over(kinds[column.type], count, column.values), column)


def presence_array(column: Column, count: int) -> pyarrow.BooleanArray:
    import pyarrow

    if column.presence is None:
        return pyarrow.repeat(pyarrow.scalar(True), count)
    return _bits_array(column.presence, column.first_bit, count)


def timestamp_array(batch: Batch) -> pyarrow.TimestampArray:
    """When the messages were sent, as `timestamp[ms, UTC]`."""
    import pyarrow

    kind = pyarrow.timestamp("ms", tz="UTC")
    column = batch.column(ColumnId.TIMESTAMP)
    if column is None:
        return pyarrow.repeat(pyarrow.scalar(batch.timestamp_ms(0), kind), batch.count)
    return _array_over(kind, batch.count, column.values)


def sequence_array(first: int, count: int) -> pyarrow.Int64Array:
    """The sequence numbers of `count` rows from `first` on, as `int64`."""
    import pyarrow
    import pyarrow.compute

    counted = _counted() if count <= ROWS_MAX else _count(count)
    return pyarrow.compute.add(counted.slice(0, count), pyarrow.scalar(first, pyarrow.int64()))


@cache
def _counted() -> pyarrow.Int64Array:
    """The numbers from 0 on, made once: adding to them is much quicker than counting."""
    return _count(ROWS_MAX)


def _count(stop: int) -> pyarrow.Int64Array:
    import pyarrow

    return _array_over(pyarrow.int64(), stop, array("q", range(stop)))


def _items_array(kind: Any, column: Column, count: int) -> Any:
    """Texts or bytes, without regard to presence."""
    import pyarrow
    import pyarrow.compute

    assert column.offsets is not None, "only texts and bytes are asked for"
    offsets = pyarrow.py_buffer(column.offsets.cast("B"))
    if column.offsets[0]:
        # A slice: its values start at the first offset, Arrow's would start at 0.
        base = pyarrow.scalar(column.offsets[0], pyarrow.int32())
        numbers = pyarrow.Array.from_buffers(pyarrow.int32(), count + 1, [None, offsets])
        offsets = pyarrow.compute.subtract(numbers, base).buffers()[1]
    return pyarrow.Array.from_buffers(kind, count, [None, offsets, pyarrow.py_buffer(column.values)])


def _with_presence(values: Any, column: Column) -> Any:
    import pyarrow
    import pyarrow.compute

    if column.presence is None:
        return values
    present = presence_array(column, len(values))
    return pyarrow.compute.if_else(present, values, pyarrow.scalar(None, values.type))


def _bits_array(bits: memoryview, first_bit: int, count: int) -> Any:
    import pyarrow

    return pyarrow.Array.from_buffers(
        pyarrow.bool_(), count, [None, pyarrow.py_buffer(bits)], offset=first_bit
    )


def _array_over(kind: Any, count: int, numbers: memoryview | array[int]) -> Any:
    import pyarrow

    return pyarrow.Array.from_buffers(kind, count, [None, pyarrow.py_buffer(numbers)])
