"""Rows: stored batches become Arrow record batches with exactly the columns that Spark was promised.

ROW1  Every record batch has the schema of `arrow_schema`, to the letter: Spark compares.
ROW2  No loop over rows, except where each row has properties of its own, or a map or list to be read.
ROW3  Small batches are gathered: Spark works best with some thousands of rows at once, and a batch may
      have been sent with a single one.
ROW4  Columns that are not wanted are not made.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.batch import Batch, ColumnId
from antiphon.batch.bodies import BodyKind
from antiphon.batch.column import Column
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.batch_arrow import (
    body_array,
    bytes_array,
    flag_array,
    number_array,
    presence_array,
    sequence_array,
    text_array,
)
from antiphon.json_values import json_text
from antiphon.pipeline.bodies import COMPOSED
from antiphon.pipeline.columns import ACKNOWLEDGED, ACKNOWLEDGEMENT, ALL, EVERY_COLUMN, Chosen
from antiphon.pipeline.filters import NUMBER_MAX, Narrowed
from antiphon.values import PropertyValue, ValueType, decode_list, decode_map, scalar_type

ROWS_AT_ONCE: Final = 8_192
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
CONSTANT_ROWS: Final = 4 * ROWS_AT_ONCE
"""The length of columns with one value, of which record batches share slices: what is gathered exceeds
ROWS_AT_ONCE by up to a stored batch."""

THOUSAND: Final = 1_000

MOMENT: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
_RANGE: Final = pa.struct([pa.field("first", pa.int64()), pa.field("last", pa.int64())])
_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": MOMENT,
    "map<string,string>": _MAP,
    ACKNOWLEDGED["acknowledged"]: pa.struct(
        [
            pa.field("subscription", pa.int64()),
            pa.field("time", MOMENT),
            pa.field("ranges", pa.list_(_RANGE)),
        ]
    ),
}
_KINDS: Final = {int(kind): kind.name.lower() for kind in BodyKind}
_TYPE_NAMES: Final = {kind: kind.name.lower() for kind in ValueType}


class BatchRows(NamedTuple):
    """Rows of one destination: row r of the batch has the number `first + r`."""

    destination: str
    first: int
    batch: Batch


class AcknowledgedRow(NamedTuple):
    """An acknowledgement of messages of a destination; of a queue, `subscription` is 0."""

    destination: str
    number: int
    time_ms: int  # 0 if it is not known
    subscription: int
    ranges: Sequence[tuple[int, int]]  # first and one behind the last


@lru_cache(maxsize=16)
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The schema of these columns in Arrow's types."""
    return pa.schema([pa.field(name, _TYPES[EVERY_COLUMN[name]]) for name in names])


def record_batches(
    channel: str, pieces: Iterable[BatchRows], wanted: Chosen = ALL
) -> Iterator[pa.RecordBatch]:
    """All pieces, in their order, a few thousand rows at a time."""
    waiting: list[BatchRows] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.batch.count
        size += piece.batch.byte_size
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield to_record_batch(channel, waiting, wanted)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield to_record_batch(channel, waiting, wanted)


def acknowledgements(channel: str, said: Sequence[AcknowledgedRow], names: tuple[str, ...]) -> pa.RecordBatch:
    """Acknowledgements as rows: the columns of a message are null, `acknowledged` has the numbers."""
    schema = arrow_schema(names)
    filled: dict[str, Callable[[], Any]] = {
        "destination": lambda: pa.array([one.destination for one in said], pa.string()),
        "channel": lambda: _text_constant(channel, len(said)),
        "sequence": lambda: pa.array([one.number for one in said], pa.int64()),
        "body_kind": lambda: _text_constant(ACKNOWLEDGEMENT, len(said)),
        "acknowledged": lambda: pa.array(
            [
                {
                    "subscription": one.subscription,
                    "time": one.time_ms * 1000 or None,
                    "ranges": [{"first": first, "last": stop - 1} for first, stop in one.ranges],
                }
                for one in said
            ],
            _TYPES[ACKNOWLEDGED["acknowledged"]],
        ),
    }
    made = [
        filled[field.name]() if field.name in filled else pa.nulls(len(said), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def to_record_batch(channel: str, pieces: Sequence[BatchRows], wanted: Chosen = ALL) -> pa.RecordBatch:
    """The rows of all these pieces as one record batch, with the wanted columns only (ROW4)."""
    making = _Making(channel, pieces, wanted)
    made = [_MAKERS[name](making) for name in wanted.names]
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(wanted.names))


def may_have(piece: BatchRows, narrowed: Narrowed) -> bool:
    """May a piece have rows of these times? Quick for a batch whose rows were all sent at once."""
    if piece.batch.column(ColumnId.TIMESTAMP) is not None:
        return True
    return narrowed.since_us <= piece.batch.timestamp_ms(0) * 1000 < narrowed.until_us


def within_times(made: Iterable[pa.RecordBatch], narrowed: Narrowed) -> Iterator[pa.RecordBatch]:
    """The rows of these times, by the column of times."""
    for batch in made:
        times = batch.column("timestamp").cast(pa.int64())
        since = pc.greater_equal(times, pa.scalar(narrowed.since_us, pa.int64()))
        until = pc.less(times, pa.scalar(min(narrowed.until_us, NUMBER_MAX - 1), pa.int64()))
        left = batch.filter(pc.and_(since, until))
        if left.num_rows:
            yield left


class _Making:
    """Pieces on their way to a record batch."""

    def __init__(self, channel: str, pieces: Sequence[BatchRows], wanted: Chosen) -> None:
        self.channel = channel
        self.pieces = pieces
        self.batches = [piece.batch for piece in pieces]
        self.count = sum(batch.count for batch in self.batches)
        self.is_json = wanted.is_json

    @cached_property
    def properties(self) -> tuple[Any, Any]:
        """Values and types, which are made together."""
        return _properties(self.batches, self.count)


def _message_id_column(making: _Making) -> Any:
    runs = _id_runs(making.batches)
    return _joined([_message_ids(producer, making.channel, first, rows) for producer, first, rows in runs])


_MAKERS: Final[dict[str, Callable[[_Making], Any]]] = {
    "destination": lambda making: _joined(
        [_text_constant(name, rows) for name, rows in _destination_runs(making.pieces)]
    ),
    "channel": lambda making: _text_constant(making.channel, making.count),
    "sequence": lambda making: _joined(
        [sequence_array(first, rows) for first, rows in _sequence_runs(making.pieces)]
    ),
    "message_id": _message_id_column,
    "timestamp": lambda making: _moments(
        _numbers(making.batches, ColumnId.TIMESTAMP, lambda batch: batch.timestamp_ms(0))
    ),
    "priority": lambda making: _priorities(making.batches, making.count),
    "key": lambda making: _texts(making.batches, ColumnId.KEY, making.count),
    "correlation_id": lambda making: _texts(making.batches, ColumnId.CORRELATION_ID, making.count),
    "reply_to": lambda making: _texts(making.batches, ColumnId.REPLY_TO, making.count),
    "type": lambda making: _texts(making.batches, ColumnId.TYPE, making.count),
    "properties": lambda making: making.properties[0],
    "property_types": lambda making: making.properties[1],
    "body_kind": lambda making: _kinds(making.batches),
    "expires": lambda making: _times(making.batches, ColumnId.EXPIRES, making.count),
    "persistent": lambda making: _persistent(making.batches, making.count),
    "body": lambda making: _joined([_bodies(batch, making.is_json) for batch in making.batches]),
    "stored_body": lambda making: _joined([_stored_bodies(batch) for batch in making.batches]),
    "deliver_at": lambda making: _times(making.batches, ColumnId.DELIVER_AT, making.count),
    "acknowledged": lambda making: _nulls(_TYPES[ACKNOWLEDGED["acknowledged"]], making.count),
}


# -- where a row stands --------------------------------------------------------------------


def _destination_runs(pieces: Sequence[BatchRows]) -> Iterator[tuple[str, int]]:
    for name, run in groupby(pieces, key=lambda piece: piece.destination):
        yield name, sum(piece.batch.count for piece in run)


def _sequence_runs(pieces: Sequence[BatchRows]) -> Iterator[tuple[int, int]]:
    """Numbers without a gap, from their first, however many pieces they are."""
    return _runs((piece.first, piece.batch.count) for piece in pieces)


def _runs(extents: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first = rows = 0
    for start, count in extents:
        if rows and start == first + rows:
            rows += count
            continue
        if rows:
            yield first, rows
        first, rows = start, count
    if rows:
        yield first, rows


def _id_runs(batches: Sequence[Batch]) -> Iterator[tuple[int, int, int]]:
    for producer, run in groupby(batches, key=lambda batch: batch.producer):
        for first, rows in _runs((batch.first_number, batch.count) for batch in run):
            yield producer, first, rows


def _message_ids(producer: int, channel: str, first: int, rows: int) -> Any:
    """As `antiphon.ids.format_message_id` writes them; of a thousand only the last digits differ."""
    head, tails = f"ID:{producer:032x}-", _tails(channel)
    parts: list[Any] = []
    stop = first + rows
    while first < stop:
        if first < THOUSAND:
            end = min(stop, THOUSAND)
            parts.append(pa.array([f"{head}{number}@{channel}" for number in range(first, end)], pa.string()))
        else:
            # As far as numbers have as many digits.
            end = min(stop, 10 ** len(str(first)))
            parts.append(_ids_of_one_width(head, tails, first, end))
        first = end
    return _joined(parts)


def _ids_of_one_width(head: str, tails: list[bytes], first: int, stop: int) -> Any:
    texts = []
    for thousand in range(first // THOUSAND, (stop - 1) // THOUSAND + 1):
        start = thousand * THOUSAND
        own = tails[max(first - start, 0) : stop - start]
        before = f"{head}{thousand}".encode()
        texts += [before, before.join(own)]
    data = b"".join(texts)
    count = stop - first
    offsets = array("i", range(0, len(data) + 1, len(data) // count))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


@lru_cache(maxsize=16)
def _tails(channel: str) -> list[bytes]:
    return [f"{number:03}@{channel}".encode() for number in range(THOUSAND)]


# -- what the producer said ----------------------------------------------------------------


def _numbers(batches: Sequence[Batch], id: ColumnId, constant: Callable[[Batch], int]) -> Any:
    """A column of 64-bit numbers over all batches; a batch without it has one number for all rows."""
    pieces: list[Any] = []
    for batch in batches:
        column = batch.column(id)
        if column is None:
            pieces.append(array("q", (constant(batch),)) * batch.count)
        else:
            pieces.append(column.values)
    count = sum(batch.count for batch in batches)
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(joined)])


def _moments(numbers_ms: Any) -> Any:
    # Wrapping is right here: an absurd time of a sender must not end a query.
    return pc.multiply(numbers_ms, 1000).cast(MOMENT)


def _times(batches: Sequence[Batch], id: ColumnId, count: int) -> Any:
    """A column of times, of which 0 means none."""
    if not _any_has(batches, id):
        return _nulls(MOMENT, count)
    numbers = _numbers(batches, id, lambda batch: 0)
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, MOMENT), _moments(numbers))


def _priorities(batches: Sequence[Batch], count: int) -> Any:
    if not _any_has(batches, ColumnId.PRIORITY):
        return _constant(PRIORITY_DEFAULT, pa.int32(), count)
    return _by_column(
        batches,
        ColumnId.PRIORITY,
        lambda column, rows: number_array(column, rows).cast(pa.int32()),
        lambda rows: _constant(PRIORITY_DEFAULT, pa.int32(), rows),
    )


def _persistent(batches: Sequence[Batch], count: int) -> Any:
    if not _any_has(batches, ColumnId.PERSISTENT):
        return _constant(True, pa.bool_(), count)
    return _by_column(
        batches, ColumnId.PERSISTENT, flag_array, lambda rows: _constant(True, pa.bool_(), rows)
    )


def _texts(batches: Sequence[Batch], id: ColumnId, count: int) -> Any:
    if not _any_has(batches, id):
        return _nulls(pa.string(), count)
    return _by_column(batches, id, text_array, lambda rows: _nulls(pa.string(), rows))


def _kinds(batches: Sequence[Batch]) -> Any:
    parts: list[Any] = []
    for kind, run in groupby(batches, key=_one_kind):
        if kind is not None:
            parts.append(_text_constant(_KINDS[kind], sum(batch.count for batch in run)))
            continue
        for batch in run:
            column = batch.column(ColumnId.BODY_KIND)
            assert column is not None, "bodies of mixed kinds have a column of them"
            parts.append(pa.array(list(map(_KINDS.__getitem__, bytes(column.values))), pa.string()))
    return _joined(parts)


def _one_kind(batch: Batch) -> int | None:
    """The kind of all bodies; None if they differ."""
    return None if batch.column(ColumnId.BODY_KIND) is not None else batch.body_kind(0)


def _bodies(batch: Batch, is_json: bool) -> Any:
    """The bytes of bodies: null for a message without one, and of maps and lists their JSON if wanted."""
    kinds = batch.column(ColumnId.BODY_KIND)
    if kinds is None:
        kind = batch.body_kind(0)
        if kind == BodyKind.NONE:
            return _nulls(pa.binary(), batch.count)
        if is_json and kind in COMPOSED:
            return pa.array([_json_body(kind, data) for data in batch.bodies()], pa.binary())
        return body_array(batch)
    different = set(kinds.values)
    if is_json and different & COMPOSED:
        # Row by row: a map has to be read before it can be written as JSON.
        pairs = zip(kinds.values, batch.bodies(), strict=True)
        return pa.array([_shown_body(kind, data) for kind, data in pairs], pa.binary())
    has_none = pc.equal(number_array(kinds, batch.count), int(BodyKind.NONE))
    return pc.if_else(has_none, pa.scalar(None, pa.binary()), body_array(batch))


def _stored_bodies(batch: Batch) -> Any:
    """Maps and lists as they are stored; null for other bodies."""
    kinds = batch.column(ColumnId.BODY_KIND)
    if kinds is None:
        return body_array(batch) if batch.body_kind(0) in COMPOSED else _nulls(pa.binary(), batch.count)
    pairs = zip(kinds.values, batch.bodies(), strict=True)
    return pa.array([data if kind in COMPOSED else None for kind, data in pairs], pa.binary())


def _shown_body(kind: int, data: bytes) -> bytes | None:
    if kind in COMPOSED:
        return _json_body(kind, data)
    return None if kind == BodyKind.NONE else data


def _json_body(kind: int, data: bytes) -> bytes:
    return json_text(decode_map(data) if kind == BodyKind.MAP else decode_list(data))


# -- properties ----------------------------------------------------------------------------


def _properties(batches: Sequence[Batch], count: int) -> tuple[Any, Any]:
    """The properties of all rows as texts, and their types."""
    if not any(batch.has_properties for batch in batches):
        return _empty_maps(count), _empty_maps(count)
    maps = [_properties_of(batch) for batch in batches]
    return _joined([values for values, _ in maps]), _joined([types for _, types in maps])


def _properties_of(batch: Batch) -> tuple[Any, Any]:
    if batch.column(ColumnId.PROPERTIES) is not None:
        return _properties_by_row(batch)
    if not batch.has_properties:
        return _empty_maps(batch.count), _empty_maps(batch.count)
    return _properties_by_column(batch)


def _properties_by_row(batch: Batch) -> tuple[Any, Any]:
    """Row by row, for properties that rows have little in common of."""
    rows = [batch.properties(row) for row in range(batch.count)]
    offsets = array("i", [0])
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    names = pa.array(list(chain.from_iterable(rows)), pa.string())
    values = list(chain.from_iterable(row.values() for row in rows))
    return (
        _maps(offsets, names, pa.array([property_text(value) for value in values], pa.string())),
        _maps(offsets, names, pa.array([property_type(value) for value in values], pa.string())),
    )


def _properties_by_column(batch: Batch) -> tuple[Any, Any]:
    """Columns side by side become rows one below the other, without the absent values."""
    count = batch.count
    names = batch.property_names
    columns = [batch.property_column(name) for name in names]
    known = [column for column in columns if column is not None]
    width = len(known)
    # Column by column in memory: cell (row, place) stands at place * count + row.
    order = pa.array([place * count + row for row in range(count) for place in range(width)], pa.int32())
    present = pc.take(_joined([presence_array(column, count) for column in known]), order)
    cells = pc.filter(order, present)
    values = pc.take(_joined([_property_texts(column, count) for column in known]), cells)
    spelled = pc.take(_joined([_text_constant(name, count) for name in names]), cells)
    types = pc.take(_joined([_text_constant(_TYPE_NAMES[column.type], count) for column in known]), cells)
    if all(column.presence is None for column in known):
        offsets = array("i", range(0, count * width + 1, width))
    else:
        offsets = array("i", [0])
        flags = present.to_pylist()
        for at in range(0, count * width, width):
            offsets.append(offsets[-1] + sum(flags[at : at + width]))
    return _maps(offsets, spelled, values), _maps(offsets, spelled, types)


def _property_texts(column: Column, count: int) -> Any:
    """The values of a column as texts, null where there is none."""
    match column.type:
        case ValueType.NULL:
            return _nulls(pa.string(), count)
        case ValueType.STR:
            return text_array(column, count)
        case ValueType.BOOL:
            return flag_array(column, count).cast(pa.string())
        case ValueType.BYTES:
            texts = map(property_text, bytes_array(column, count).to_pylist())
        case ValueType.F32 | ValueType.F64:
            texts = map(property_text, number_array(column, count).to_pylist())
        case _:
            return number_array(column, count).cast(pa.string())
    return pa.array(list(texts), pa.string())


def property_text(value: PropertyValue) -> str | None:
    """A property as text: numbers in decimal, bytes in base64, `true` and `false`."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return repr(float(value))
    return str(int(value))


def property_type(value: PropertyValue) -> str:
    """The name of a property's type: bool, i8, i16, i32, i64, f32, f64, str, bytes or null."""
    kind = scalar_type(value)
    assert kind is not None, "a stored property has a type"
    return _TYPE_NAMES[kind]


def _maps(offsets: array[int], names: Any, values: Any) -> Any:
    numbers = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.MapArray.from_arrays(numbers, names, values)


# -- constants -----------------------------------------------------------------------------


def _any_has(batches: Sequence[Batch], id: ColumnId) -> bool:
    return any(batch.column(id) is not None for batch in batches)


def _by_column(
    batches: Sequence[Batch],
    id: ColumnId,
    convert: Callable[[Column, int], Any],
    default: Callable[[int], Any],
) -> Any:
    parts = []
    for batch in batches:
        column = batch.column(id)
        parts.append(default(batch.count) if column is None else convert(column, batch.count))
    return _joined(parts)


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _constant(value: Any, kind: Any, count: int) -> Any:
    return (
        _long_constant(value, kind).slice(0, count)
        if count <= CONSTANT_ROWS
        else _repeated(value, kind, count)
    )


def _text_constant(text: str, count: int) -> Any:
    return _constant(text, pa.string(), count)


def _nulls(kind: Any, count: int) -> Any:
    return _constant(None, kind, count)


def _repeated(value: Any, kind: Any, count: int) -> Any:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=256)
def _long_constant(value: Any, kind: Any) -> Any:
    """One array for all; slices share it."""
    return _repeated(value, kind, CONSTANT_ROWS)


def _empty_maps(count: int) -> Any:
    return _long_empty_maps().slice(0, count) if count <= CONSTANT_ROWS else _made_empty_maps(count)


@lru_cache(maxsize=1)
def _long_empty_maps() -> Any:
    return _made_empty_maps(CONSTANT_ROWS)


def _made_empty_maps(count: int) -> Any:
    nothing = pa.array([], pa.string())
    return _maps(array("i", bytes(4 * (count + 1))), nothing, nothing)
