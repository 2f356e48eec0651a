"""Outgoing: rows that Spark hands over in Arrow become our batches.

    Spark's record batches  ->  OUTGOING  ->  (destination, batch)  ->  staged, or sent

    OUT1  Columns stay columns: no row is looked at alone, unless properties have many names, no value or
          several types, or bodies are maps or lists.
    OUT2  What is held back is bounded, however many destinations there are. Rows of a destination stay in
          order.
    OUT3  A value that no message may have is refused here, by its column: the broker would only see a broken
          protocol.
    OUT4  Rows of our own source can be written as they are: kinds of bodies, types of properties and keys
          stay. A message gets a number, a time and an id of its own; those it had are among its properties.

The sink checks the columns of the schema, and decides where batches go.
"""

from __future__ import annotations

import base64
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
from antiphon.pipeline.bodies import COMPOSED, KINDS, decode_body
from antiphon.pipeline.columns import TEXT_COLUMNS
from antiphon.values import FIXED_FORMATS, NARROW_CLASSES, PropertyValue, ValueType

SECONDS_MAX: Final = 10**10
"""The longest time to live, and the longest delay."""

CHUNK_BYTES: Final = 448 * 1024
"""About the size of a batch. It fits an envelope with room to spare, so that one is on its way while the next
one is written; larger ones would travel one at a time."""

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much waits for more of its destination, all destinations together."""

ROW_BYTES: Final = 8
"""About how much a row takes besides its texts and its body."""

ORIGIN_BYTES: Final = 1024
"""How much the origin of a message takes among its properties at most."""

NAME_BYTES: Final = 16
"""How much a property takes besides the characters of its name and a text, generously."""

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
"""The types of a property, as Arrow calls them."""

# The same with offsets of 64 bits, which Spark uses when it is told to.
_NARROWED: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


ORIGIN_ID: Final = "origin_message_id"
ORIGIN_TIME: Final = "origin_timestamp"
"""Properties of a message that was read before it was written: its id, and when it was sent (ms since 1970).
If a message has them already, they stay: it comes from further away."""

PLACES: Final = ("channel", "sequence")
"""Columns of the source that say where a message was; a writer cannot say where it will be."""

_TYPES_BY_NAME: Final = {kind.name.lower(): kind for kind in ValueType}
_ARROW_TYPES: Final = {kind: arrow for arrow, kind in VALUE_TYPES.items()}


class OutgoingRows:
    """Gathers the rows of one writer.

    >>> outgoing = Outgoing("queue:alerts", wall_ms)
    >>> for destination, batch in outgoing.take(record_batches):
    ...     writer.write(destination, batch)
    """

    def __init__(self, destination: str | None, wall_ms: Callable[[], int]) -> None:
        """Without a destination every row names its own."""
        self._destination = destination
        self._wall_ms = wall_ms
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes: dict[str, int] = {}
        self.rows = 0

    def take(self, some: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Batch]]:
        """All batches that these rows make, in turn (OUT2)."""
        for rows in some:
            if rows.num_rows:
                self.rows += rows.num_rows
                for destination, own in self._by_destination(_plain(rows)):
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


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without places, and with times as numbers: Python cannot represent some of them."""
    kept = [name for name in rows.schema.names if name not in PLACES]
    columns = [rows.column(name) for name in kept]
    return pa.RecordBatch.from_arrays(
        [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns],
        kept,
    )


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
    # And one row, lest the rest of a rounding becomes a batch of its own.
    size = ends[-1] // pieces + ends[-1] // count
    start = before = 0
    while start < count:
        stop = bisect_right(ends, before + size, start)
        stop = min(max(stop, start + 1), start + ROWS_MAX, count)
        yield rows.slice(start, stop - start)
        start, before = stop, ends[stop - 1]


def batches_of(rows: pa.RecordBatch, timestamp_ms: int) -> list[Batch]:
    """The rows as batches, as a rule one. Their producer and numbers are set when they leave."""
    made = _columns_of(rows, timestamp_ms)
    if made is None:
        return list(_row_by_row(rows, timestamp_ms))
    if made.byte_size <= BATCH_BYTES_MAX:
        return [made]
    # Properties can take more than estimated: a slot in every row for values that few rows have.
    half = rows.num_rows // 2
    assert half, "one message always fits a batch"
    return [
        *batches_of(rows.slice(0, half), timestamp_ms),
        *batches_of(rows.slice(half), timestamp_ms),
    ]


def _columns_of(rows: pa.RecordBatch, timestamp_ms: int) -> Batch | None:
    """All rows as columns (OUT1); None if bodies or properties cannot be."""
    names = rows.schema.names
    made = _bodies(_narrow(rows.column("body")), rows.column("body_kind") if "body_kind" in names else None)
    if made is None:
        return None
    body, kind, kinds = made
    columns: dict[ColumnId, Column] = {}
    if kinds is not None:
        columns[ColumnId.BODY_KIND] = kinds
    if "priority" in names and (priorities := _priorities(rows.column("priority"))) is not None:
        columns[ColumnId.PRIORITY] = priorities
    expirations, deliveries = _expires(rows, timestamp_ms), _later(rows, "delay", timestamp_ms)
    for id, times in ((ColumnId.EXPIRES, expirations), (ColumnId.DELIVER_AT, deliveries)):
        if times is not None and pc.max(times).as_py():
            columns[id] = _numbers(ValueType.I64, times)
    if "persistent" in names and (persistent := _persistent(rows.column("persistent"))) is not None:
        columns[ColumnId.PERSISTENT] = persistent
    extras = 0
    for name, id in TEXT_COLUMNS.items():
        if name in names and (found := _texts(_narrow(rows.column(name)), name)) is not None:
            columns[id], longest = found
            extras += longest
    properties: dict[str, Column] = {}
    if "properties" in names:
        types = rows.column("property_types") if "property_types" in names else None
        told = _properties(rows.column("properties"), types)
        if told is None:
            return None
        properties, longest = told
        extras += longest
    if not _add_origin(rows, properties):
        return None
    extras += ORIGIN_BYTES
    if extras > EXTRAS_BYTES_MAX or len(properties) > PROPERTY_COLUMNS_MAX:
        # Perhaps no row has that much; the builder decides.
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


def _add_origin(rows: pa.RecordBatch, properties: dict[str, Column]) -> bool:
    """Move former ids and times of messages to their properties; False if some are there already."""
    names = rows.schema.names
    ids = _narrow(rows.column("message_id")) if "message_id" in names else None
    times = rows.column("timestamp") if "timestamp" in names else None
    for name, array in ((ORIGIN_ID, ids), (ORIGIN_TIME, times)):
        if array is None or array.null_count == len(array):
            continue
        if name in properties:
            if properties[name].presence is not None:
                return False
            continue
        presence = _bits(array.is_valid()) if array.null_count else None
        if name == ORIGIN_ID:
            _check_texts(array, "message_id")
            _check_length(array, "message_id", ORIGIN_BYTES)
            properties[name] = _items(ValueType.STR, array.fill_null(""), presence)
        else:
            properties[name] = _numbers(ValueType.I64, _milliseconds(array).fill_null(0), presence)
    return True


def _narrow(array: pa.Array) -> pa.Array:
    narrow = _NARROWED.get(array.type)
    return array if narrow is None else array.cast(narrow)


def _bodies(array: pa.Array, words: pa.Array | None) -> tuple[Column, int, Column | None] | None:
    """The bodies, their kind, and their kinds if they differ; None if some are made of values."""
    default = BodyKind.STR if array.type == pa.string() else BodyKind.BYTES
    if words is None or words.null_count == len(words):
        told = pa.repeat(pa.scalar(int(default), pa.int8()), len(array))
        different = {int(default)}
    else:
        told, different = _kinds_told(words, default)
    if different & COMPOSED:
        return None
    if array.null_count:
        told = pc.if_else(array.is_valid(), told, pa.scalar(int(BodyKind.NONE), pa.int8()))
        array = array.fill_null(b"" if array.type == pa.binary() else "")
        different = set(pc.unique(told).to_pylist())
    if int(BodyKind.STR) in different:
        texts = array if different == {int(BodyKind.STR)} else array.filter(pc.equal(told, int(BodyKind.STR)))
        _check_texts(texts if texts.type == pa.string() else texts.view(pa.string()), "body")
    if int(BodyKind.NONE) in different:
        none = array.filter(pc.equal(told, int(BodyKind.NONE)))
        if pc.max(pc.binary_length(none)).as_py():
            raise InvalidMessage("a row has a body, and none in its column body_kind")
    _check_length(array, "body", BODY_BYTES_MAX)
    body = _items(ValueType.BYTES, array)
    if len(different) == 1:
        return body, different.pop(), None
    return body, BODY_KIND_MIXED, _numbers(ValueType.I8, told)


def _kinds_told(words: pa.Array, default: BodyKind) -> tuple[pa.Array, set[int]]:
    """The kinds of a column of words, and which of them there are."""
    words = _narrow(words)
    known = pa.array(KINDS, pa.string())
    places = pc.index_in(words, value_set=known)
    wrong = words.filter(pc.and_(places.is_null(), words.is_valid()))
    if len(wrong):
        raise InvalidMessage(f"column body_kind is {', '.join(KINDS)}; it was {wrong[0].as_py()!r}")
    # The words stand in the order of the kinds' numbers.
    told = places.fill_null(int(default)).cast(pa.int8())
    return told, set(pc.unique(told).to_pylist())


def _milliseconds(times_us: pa.Array) -> pa.Array:
    return pc.divide(times_us, 1000)


def _expires(rows: pa.RecordBatch, timestamp_ms: int) -> pa.Array | None:
    """When rows expire, in ms, 0 for never: by their column ttl, else by expires."""
    times, names = _later(rows, "ttl", timestamp_ms), rows.schema.names
    if "expires" not in names or rows.column("expires").null_count == rows.num_rows:
        return times
    told = _milliseconds(rows.column("expires")).fill_null(0)
    if pc.min(told).as_py() < 0:
        raise InvalidMessage("column expires has a time before 1970")
    return told if times is None else pc.if_else(pc.equal(times, 0), told, times)


def _later(rows: pa.RecordBatch, name: str, timestamp_ms: int) -> pa.Array | None:
    """The time so many seconds after the rows are sent, in ms, by a column of seconds; 0 where it is null."""
    if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
        return None
    seconds = rows.column(name).cast(pa.float64())
    span = pc.min_max(seconds).as_py()
    is_wrong = pc.any(pc.invert(pc.is_finite(seconds))).as_py() or span["max"] > SECONDS_MAX
    if is_wrong or span["min"] < 0 or (name == "ttl" and not span["min"]):
        raise InvalidMessage(f"column {name} is a number of seconds above 0, or null for none")
    later = pc.ceil(pc.multiply(seconds, 1000.0)).cast(pa.int64())
    times = pc.add(later, timestamp_ms)
    return (times if name == "ttl" else pc.if_else(pc.equal(later, 0), 0, times)).fill_null(0)


def _persistent(array: pa.Array) -> Column | None:
    flags = array.fill_null(True)
    return None if pc.all(flags).as_py() else Column(ValueType.BOOL, _bits(flags))


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


def _properties(maps: pa.MapArray, types: pa.MapArray | None) -> tuple[dict[str, Column], int] | None:
    """A column for each name, and about how long all of a row are; None if that cannot be."""
    count = len(maps)
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first == last:
        return {}, 0
    keys = _narrow(maps.keys.slice(first, last - first))
    items = _narrow(maps.items.slice(first, last - first))
    names = pc.unique(keys).to_pylist()
    if items.null_count or len(names) > PROPERTY_COLUMNS_MAX:
        return None
    words = None
    if types is not None:
        words = _words_beside(types, keys)
        if words is None:
            return None
    _check_texts(keys, "properties")
    parents = pc.list_parent_indices(pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), keys))
    columns: dict[str, Column] = {}
    longest = 0
    for name in names:
        check_property_name(name)
        is_named = pc.equal(keys, name)
        owners, values = parents.filter(is_named), items.filter(is_named)
        if words is not None:
            said = pc.unique(words.filter(is_named)).to_pylist()
            typed = _typed(values, said[0], name) if len(said) == 1 else None
            if typed is None:
                return None
            values = typed
        kind = VALUE_TYPES[values.type]
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


def _words_beside(types: pa.MapArray, keys: pa.Array) -> pa.Array | None:
    """The types of properties, one beside each; None if the two maps do not run side by side."""
    offsets = types.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if last - first != len(keys) or not _narrow(types.keys.slice(first, last - first)).equals(keys):
        return None
    return _narrow(types.items.slice(first, last - first)).fill_null("str")


def _typed(texts: pa.Array, word: str, name: str) -> pa.Array | None:
    """Texts as the values that they stand for; None if they have to be parsed one by one."""
    kind = _TYPES_BY_NAME.get(word)
    if kind is ValueType.STR:
        return texts
    if kind is None or kind in (ValueType.BYTES, ValueType.NULL):
        return None
    try:
        return texts.cast(_ARROW_TYPES[kind])
    except pa.ArrowInvalid:
        raise InvalidMessage(f"property {name} is not of the type {word} that property_types says") from None


def _property_value(text: str | None, word: str | None, name: str) -> PropertyValue:
    """One value, from its text and the name of its type."""
    kind = _TYPES_BY_NAME.get(word or "str")
    try:
        match kind:
            case _ if text is None:
                return None
            case ValueType.STR:
                return text
            case ValueType.BOOL if text in ("true", "false"):
                return text == "true"
            case ValueType.BYTES:
                return base64.b64decode(text, validate=True)
            case ValueType.I64:
                return int(text)
            case ValueType.F64:
                return float(text)
            case ValueType.I8 | ValueType.I16 | ValueType.I32:
                return NARROW_CLASSES[kind](int(text))
            case ValueType.F32:
                return NARROW_CLASSES[kind](float(text))
    except (ValueError, InvalidMessage):
        pass
    raise InvalidMessage(f"property {name} is not of the type {word} that property_types says")


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
    """Rows that cannot become columns directly. The builder finds the best form, and knows all limits."""
    builder = BatchBuilder()
    expirations, deliveries = _expires(rows, timestamp_ms), _later(rows, "delay", timestamp_ms)
    for at, row in enumerate(rows.to_pylist()):
        if builder.is_full:
            yield builder.build(0, 0)
        priority, persistent, kind = row.get("priority"), row.get("persistent"), row.get("body_kind")
        builder.add(
            row["body"] if kind is None else decode_body(row["body"], kind),
            _properties_of(row),
            timestamp_ms=timestamp_ms,
            priority=PRIORITY_DEFAULT if priority is None else priority,
            expires_ms=expirations[at].as_py() if expirations is not None else 0,
            deliver_at_ms=deliveries[at].as_py() if deliveries is not None else 0,
            persistent=True if persistent is None else persistent,
            **{name: row.get(name) for name in TEXT_COLUMNS},
        )
    yield builder.build(0, 0)


def _properties_of(row: dict[str, Any]) -> dict[str, PropertyValue]:
    properties = dict(row.get("properties") or ())
    if "property_types" in row:
        types = dict(row["property_types"] or ())
        properties = {name: _property_value(text, types.get(name), name) for name, text in properties.items()}
    if row.get("message_id") is not None:
        properties.setdefault(ORIGIN_ID, row["message_id"])
    if row.get("timestamp") is not None:
        properties.setdefault(ORIGIN_TIME, row["timestamp"] // 1000)
    return properties


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
