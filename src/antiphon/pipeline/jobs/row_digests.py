"""Row digests: one digest of the rows of a page, however they are cut into record batches.

DIG1  Equal rows in the same order have equal digests: as they come from a replica, as a Parquet file gives
      them back, in one record batch or in many.
DIG2  Rows that differ in any column, also only in a null or in the type of a property, have different
      digests.

The digest of a page is taken when the page comes from the replica that vouches for the page, and is compared
with the archive's own files later on, when no replica has the messages any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128

_WIDTHS: Final = {pa.int32(): 4, pa.int64(): 8, pa.uint8(): 1}


def rows_digest(batches: Iterable[pa.RecordBatch]) -> str:
    """The digest of all these rows, which have the same columns."""
    whole: dict[str, Any] = {}
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for part, data in _parts(name, column):
                whole.setdefault(part, xxh3_128()).update(data)
    told = xxh3_128(rows.to_bytes(8, "big"))
    for part, digest in whole.items():
        told.update(f"{part}\n".encode())
        told.update(digest.digest())
    return str(told.hexdigest())


def _parts(name: str, array: pa.Array) -> Iterator[tuple[str, memoryview]]:
    """What a column consists of, each part a run of bytes that goes on with the next record batch."""
    kind = array.type
    yield f"{name} present", _fixed(array.is_valid().cast(pa.uint8()))
    if pa.types.is_map(kind):
        assert not array.null_count, "a map may be empty, and is there"
        offsets = array.offsets
        first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
        yield f"{name} lengths", _fixed(pc.subtract(offsets.slice(1), offsets.slice(0, len(array))))
        yield from _parts(f"{name} names", array.keys.slice(first, count))
        yield from _parts(f"{name} values", array.items.slice(first, count))
    elif kind in (pa.string(), pa.binary()):
        if array.null_count:
            array = array.fill_null("" if kind == pa.string() else b"")
        yield f"{name} lengths", _fixed(pc.binary_length(array))
        yield f"{name} bytes", _items(array)
    else:
        if pa.types.is_boolean(kind):
            array = array.cast(pa.uint8())
        elif pa.types.is_timestamp(kind):
            array = array.cast(pa.int64())
        yield name, _fixed(array.fill_null(0) if array.null_count else array)


def _fixed(array: pa.Array) -> memoryview:
    """The bytes of numbers."""
    width = _WIDTHS[array.type]
    data = array.buffers()[1]
    if data is None:
        return memoryview(b"")
    return memoryview(data).cast("B")[array.offset * width : (array.offset + len(array)) * width]


def _items(array: pa.Array) -> memoryview:
    """The bytes of texts, one behind the other."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("i")
    return memoryview(data).cast("B")[ends[array.offset] : ends[array.offset + len(array)]]
