"""Columns of a batch as Arrow arrays, without a loop over rows.

pyarrow comes with the extra `spark`; it is imported when a function is called.
The arrays share the bytes of the batch and keep them alive.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from antiphon.batch import Batch, ColumnId

if TYPE_CHECKING:
    import pyarrow


def body_array(batch: Batch) -> pyarrow.BinaryArray:
    """The bytes of all bodies, whatever their kind, as `binary`."""
    import pyarrow
    import pyarrow.compute

    body = batch.column(ColumnId.BODY)
    assert body is not None and body.offsets is not None, "every batch has bodies"
    offsets = pyarrow.py_buffer(body.offsets.cast("B"))
    if body.offsets[0]:
        # A slice: its values start at the first offset, Arrow's would start at 0.
        base = pyarrow.scalar(body.offsets[0], pyarrow.int32())
        numbers = pyarrow.Array.from_buffers(pyarrow.int32(), batch.count + 1, [None, offsets])
        offsets = pyarrow.compute.subtract(numbers, base).buffers()[1]
    values = pyarrow.py_buffer(body.values)
    return pyarrow.BinaryArray.from_buffers(pyarrow.binary(), batch.count, [None, offsets, values])


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

    return _array_over(pyarrow.int64(), count, array("q", range(first, first + count)))


def _array_over(kind: Any, count: int, numbers: memoryview | array[int]) -> Any:
    import pyarrow

    return pyarrow.Array.from_buffers(kind, count, [None, pyarrow.py_buffer(numbers)])
