"""Outgoing: rows that Spark hands over in Arrow, on their way to becoming our batches.

Where it sits
    Spark's record batches  ->  OUTGOING  ->  (destination, batch)  ->  staged, or sent

What it promises
    O1  Columns stay columns: nobody looks at a single row, unless properties have many names or no value.
    O2  What is held back is bounded, however many destinations there are. Rows of one of them stay in order.
    O3  What no message may have is refused here, by its column: the broker would only see a broken protocol.

What it leaves to others
    Which columns there may be is checked with the schema (sink); where batches go, likewise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.batch import BATCH_BYTES_MAX, BODY_BYTES_MAX, ROWS_MAX, Batch, BatchBuilder, ColumnId
from antiphon.batch.bodies import BodyKind
from antiphon.batch.builder import EXTRAS_BYTES_MAX
from antiphon.batch.column import Column, pack_bits
from antiphon.batch.layout import (
    BODY_KIND_MIXED,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PROPERTY_COLUMNS_MAX,
    VALUE_BYTES_MAX,
)
from antiphon.errors import InvalidMessage, MessageTooLarge
from antiphon.names import check_property_name
from antiphon.pipeline.columns import TEXT_COLUMNS
from antiphon.values import FIXED_FORMATS, ValueType

CHUNK_BYTES: Final = 448 * 1024
"""About what a batch takes. It fits an envelope with room to spare, so that one is on its way while the next
one is written; larger ones would travel one at a time."""

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""What waits for more of its destination, all destinations together."""

ROW_BYTES: Final = 8
"""What a row takes besides its texts and its body, about."""

NAME_BYTES: Final = 16
"""What a property takes besides the characters of its name and a text, generously."""

VALUE_TYPES: Final = {
    pa.string(): ValueType.STR,
    pa.binary(): ValueType.BYTES,
    pa.bool_(): ValueType.BOOL,
    pa.int8(): ValueType.I8,
    pa.int16(): ValueType.I16,
    pa.int32(): ValueType.I32,
    pa.int64(): ValueType.I64,
    pa.float32(): ValueType.F32,
    pa.float64(): ValueType.F64,
}
"""What a property may be, as Arrow calls it."""

# The same with offsets of 64 bits, which Spark uses when it is told to.
_NARROWED: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


class Outgoing:
    """Gathers the rows of one writer.

    >>> outgoing = Outgoing("queue:alerts", wall_ms)
    >>> for destination, batch in outgoing.take(record_batches):
    ...     writer.write(destination, batch)
    """

    def __init__(self, destination: str | None, wall_ms: Callable[[], int]) -> None:
        """Without a destination every row says its own."""
        self._destination = destination
        self._wall_ms = wall_ms
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes: dict[str, int] = {}
        self.rows = 0

    def take(self, some: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Batch]]:
        """Everything that comes of these, in turn (O2)."""
        for rows in some:
            if rows.num_rows:
                self.rows += rows.num_rows
                for destination, own in self._by_destination(rows):
                    self._hold(destination, own)
                yield from self._release()
        for destination in list(self._held):
            yield from self._leave(destination)

    def _by_destination(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        place = rows.schema.get_field_index("destination")
        if self._destination is not None:
            yield self._destination, rows if place < 0 else rows.drop_columns(["destination"])
            return
        names = _narrow(rows.column(place))
        if names.null_count:
            raise InvalidMessage("a row has no destination, and the option destination is not given")
        _check_texts(names, "destination")
        rest = rows.drop_columns(["destination"])
        different = pc.unique(names).to_pylist()
        for name in different:
            yield name, rest if len(different) == 1 else rest.filter(pc.equal(names, name))

    def _hold(self, destination: str, rows: pa.RecordBatch) -> None:
        self._held.setdefault(destination, []).append(rows)
        self._held_bytes[destination] = self._held_bytes.get(destination, 0) + rows.nbytes

    def _release(self) -> Iterator[tuple[str, Batch]]:
        for destination, size in list(self._held_bytes.items()):
            if size >= CHUNK_BYTES:
                yield from self._leave(destination)
        while sum(self._held_bytes.values()) > HELD_BYTES_MAX:
            yield from self._leave(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _leave(self, destination: str) -> Iterator[tuple[str, Batch]]:
        held = self._held.pop(destination)
        del self._held_bytes[destination]
        rows = held[0] if len(held) == 1 else _joined(held)
        timestamp_ms = self._wall_ms()
        for piece in _cut(rows):
            for batch in batches_of(piece, timestamp_ms):
                yield destination, batch


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return joined


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about a chunk each, and all about as large."""
    count = rows.num_rows
    sizes = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), count)
    for column in rows.columns:
        if column.type in (pa.string(), pa.binary(), *_NARROWED):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes = pc.add(sizes, lengths.cast(pa.int64()))
        else:
            sizes = pc.add(sizes, pa.scalar(column.nbytes // count, pa.int64()))
    ends = memoryview(pc.cumulative_sum(sizes).buffers()[1]).cast("B").cast("q")[:count]
    pieces = -(-ends[-1] // CHUNK_BYTES)
    # And one row, lest what is left over by rounding becomes a batch of its own.
    size = ends[-1] // pieces + ends[-1] // count
    start = before = 0
    while start < count:
        stop = bisect_right(ends, before + size, start)
        stop = min(max(stop, start + 1), start + ROWS_MAX, count)
        yield rows.slice(start, stop - start)
        start, before = stop, ends[stop - 1]


def batches_of(rows: pa.RecordBatch, timestamp_ms: int) -> list[Batch]:
    """The rows as batches, one as a rule. Whose they are, and their numbers, is said when they leave."""
    made = _columns_of(rows, timestamp_ms)
    if made is None:
        return list(_row_by_row(rows, timestamp_ms))
    if made.byte_size <= BATCH_BYTES_MAX:
        return [made]
    # Properties can take more than was thought: a slot in every row for what few rows have.
    half = rows.num_rows // 2
    assert half, "one message always fits a batch"
    return [
        *batches_of(rows.slice(0, half), timestamp_ms),
        *batches_of(rows.slice(half), timestamp_ms),
    ]


def _columns_of(rows: pa.RecordBatch, timestamp_ms: int) -> Batch | None:
    """All rows as columns (O1); None if their properties do not lend themselves to it."""
    body, kind, kinds = _bodies(_narrow(rows.column("body")))
    columns: dict[ColumnId, Column] = {}
    if kinds is not None:
        columns[ColumnId.BODY_KIND] = kinds
    names = rows.schema.names
    if "priority" in names and (priorities := _priorities(rows.column("priority"))) is not None:
        columns[ColumnId.PRIORITY] = priorities
    extras = 0
    for name, id in TEXT_COLUMNS.items():
        if name in names and (found := _texts(_narrow(rows.column(name)), name)) is not None:
            columns[id], longest = found
            extras += longest
    properties: dict[str, Column] = {}
    if "properties" in names:
        made = _properties(rows.column("properties"))
        if made is None:
            return None
        properties, longest = made
        extras += longest
    if extras > EXTRAS_BYTES_MAX:
        # Perhaps no row has that much; that is for the builder to say.
        return None
    return Batch(
        rows.num_rows,
        0,
        0,
        timestamp_ms,
        BODY_KIND_MIXED if kinds is not None else kind,
        0,
        body,
        columns,
        properties,
    )


def _narrow(array: pa.Array) -> pa.Array:
    narrow = _NARROWED.get(array.type)
    return array if narrow is None else array.cast(narrow)


def _bodies(array: pa.Array) -> tuple[Column, BodyKind, Column | None]:
    """The bodies, their kind, and their kinds if some of them are no body at all."""
    kind = BodyKind.STR if array.type == pa.string() else BodyKind.BYTES
    if kind is BodyKind.STR:
        _check_texts(array, "body")
    _check_length(array, "body", BODY_BYTES_MAX)
    kinds = None
    if array.null_count:
        told = pc.if_else(array.is_valid(), pa.scalar(int(kind), pa.int8()), int(BodyKind.NONE))
        kinds = _numbers(ValueType.I8, told.cast(pa.int8()))
        array = array.fill_null(b"" if kind is BodyKind.BYTES else "")
    return _items(ValueType.BYTES, array), kind, kinds


def _priorities(array: pa.Array) -> Column | None:
    span = pc.min_max(array).as_py()
    if span["min"] is None:
        return None
    if not 0 <= span["min"] <= span["max"] <= PRIORITY_MAX:
        wrong = span["min"] if span["min"] < 0 else span["max"]
        raise InvalidMessage(f"column priority has {wrong}; it is 0 to {PRIORITY_MAX}")
    if span["min"] == span["max"] == PRIORITY_DEFAULT:
        return None
    return _numbers(ValueType.I8, array.cast(pa.int8()).fill_null(PRIORITY_DEFAULT))


def _texts(array: pa.Array, what: str) -> tuple[Column, int] | None:
    """The texts that are there, and how long the longest is; None if there are none."""
    if array.null_count == len(array):
        return None
    _check_texts(array, what)
    longest = _check_length(array, what, VALUE_BYTES_MAX)
    presence = None
    if array.null_count:
        presence = _bits(array.is_valid())
        array = array.fill_null("")
    return _items(ValueType.STR, array, presence), longest


def _properties(maps: pa.MapArray) -> tuple[dict[str, Column], int] | None:
    """A column for each name, and about how long all of a row are; None if that cannot be."""
    count = len(maps)
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first == last:
        return {}, 0
    keys = _narrow(maps.keys.slice(first, last - first))
    items = _narrow(maps.items.slice(first, last - first))
    kind = VALUE_TYPES[items.type]
    names = pc.unique(keys).to_pylist()
    if items.null_count or len(names) > PROPERTY_COLUMNS_MAX:
        return None
    _check_texts(keys, "properties")
    parents = pc.list_parent_indices(pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), keys))
    columns: dict[str, Column] = {}
    longest = 0
    for name in names:
        check_property_name(name)
        is_named = pc.equal(keys, name)
        owners, values = parents.filter(is_named), items.filter(is_named)
        presence = None
        if len(owners) < count:
            # Where among the values the one of a row is, if it has one.
            every = pa.array(range(count), owners.type)
            values = values.take(pc.index_in(every, value_set=owners))
            presence = _bits(values.is_valid())
        longest += NAME_BYTES + len(name)
        if kind in (ValueType.STR, ValueType.BYTES):
            what = f"properties: {name}"
            if kind is ValueType.STR:
                _check_texts(values, what)
            longest += _check_length(values, what, VALUE_BYTES_MAX)
        columns[name] = _property(kind, values, presence)
    return columns, longest


def _property(kind: ValueType, values: pa.Array, presence: memoryview | None) -> Column:
    match kind:
        case ValueType.STR:
            return _items(kind, values.fill_null(""), presence)
        case ValueType.BYTES:
            return _items(kind, values.fill_null(b""), presence)
        case ValueType.BOOL:
            return Column(kind, _bits(values.fill_null(False)), None, presence)
    return _numbers(kind, values.fill_null(0), presence)


def _row_by_row(rows: pa.RecordBatch, timestamp_ms: int) -> Iterator[Batch]:
    """What does not lend itself to columns. The builder finds the best form, and knows all limits."""
    builder = BatchBuilder()
    for row in rows.to_pylist():
        if builder.is_full:
            yield builder.build(0, 0)
        priority = row.get("priority")
        builder.add(
            row["body"],
            dict(row.get("properties") or ()),
            timestamp_ms=timestamp_ms,
            priority=PRIORITY_DEFAULT if priority is None else priority,
            **{name: row.get(name) for name in TEXT_COLUMNS},
        )
    yield builder.build(0, 0)


# -- columns over Arrow's memory ---------------------------------------------------


def _items(kind: ValueType, array: pa.Array, presence: memoryview | None = None) -> Column:
    _, offsets, data = array.buffers()
    start, count = array.offset, len(array)
    ends = memoryview(offsets).cast("B").cast("i")[start : start + count + 1]
    values = memoryview(data if data is not None else b"").cast("B")[ends[0] : ends[-1]]
    return Column(kind, values, ends, presence)


def _numbers(kind: ValueType, array: pa.Array, presence: memoryview | None = None) -> Column:
    code: Any = FIXED_FORMATS[kind]
    values = memoryview(array.buffers()[1]).cast("B").cast(code)[array.offset : array.offset + len(array)]
    return Column(kind, values, None, presence)


def _bits(flags: pa.BooleanArray) -> memoryview:
    """A bit per row from bit 0 on, wherever they begin in Arrow's memory."""
    numbers = flags.cast(pa.uint8())
    data = memoryview(numbers.buffers()[1]).cast("B")[numbers.offset : numbers.offset + len(numbers)]
    return memoryview(pack_bits(bytes(data)))


def _check_texts(array: pa.Array, what: str) -> None:
    """Spark passes on whatever bytes a string has."""
    if array.type == pa.string():
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidMessage(f"column {what} has text that is not UTF-8") from None


def _check_length(array: pa.Array, what: str, length_max: int) -> int:
    longest: int = pc.max(pc.binary_length(array)).as_py() or 0
    if longest > length_max:
        raise MessageTooLarge(
            f"column {what} has a value of {longest:,} bytes, which is larger than the {length_max:,} allowed"
        )
    return longest
