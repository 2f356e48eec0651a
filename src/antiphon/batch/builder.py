"""BatchBuilder: checks messages one by one, and makes columns of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from antiphon.batch.batch import Batch
from antiphon.batch.bodies import BodyKind, Sendable, encode_body
from antiphon.batch.column import Column
from antiphon.batch.layout import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    BODY_KIND_MIXED,
    COLUMN_TYPES,
    DEDUP_ID_BYTES_MAX,
    IDENTIFIED_ROWS_MAX,
    NAME_WEIGHT,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PROPERTIES_MAX,
    ROWS_MAX,
    SYSTEM_PROPERTIES_MAX,
    VALUE_BYTES_MAX,
    VALUE_WEIGHT,
    ColumnId,
)
from antiphon.batch.properties import build_properties, check_properties, weigh_properties
from antiphon.errors import InvalidMessage, MessageTooLarge
from antiphon.ids import I64_MAX, U64_MAX
from antiphon.values import PropertyValue, ValueType, count_values, encode_text

# The most bytes of a message besides its body. A batch has room for the largest message behind almost 400 KB
# of smaller ones.
EXTRAS_BYTES_MAX: Final = 512 * 1024

# Upper bounds: a slot in every column that is not a property, rounded up; header,
# directory and paddings of every column there can be.
_ROW_BYTES: Final = 64
_HEAD_BYTES: Final = 4096
# The weight of a value was chosen such that a body weighs no more than it may have bytes.
_MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX + EXTRAS_BYTES_MAX + _ROW_BYTES + NAME_WEIGHT * PROPERTIES_MAX


class _BuiltRow(NamedTuple):
    """One message, checked, its texts encoded."""

    kind: int
    body: bytes
    timestamp_ms: int
    priority: int
    expires_ms: int
    deliver_at_ms: int
    persistent: bool
    key: bytes | None
    correlation_id: bytes | None
    reply_to: bytes | None
    type: bytes | None
    dedup_id: bytes | None
    properties: Mapping[str, PropertyValue]


class BatchBuilder:
    """Gathers messages for one batch.

    Ask `is_full` before each `add`, and `takes_ids` for a message with an id; `build` first if there is no
    room.

    >>> builder = BatchBuilder()
    >>> builder.add({"total": 12.5}, {"region": "EU"}, timestamp_ms=1_700_000_000_000)
    >>> builder.build(producer=7, first_number=1).properties(0)
    {'region': 'EU'}
    """

    __slots__ = ("_bytes", "_has_ids", "_names", "_property_bytes", "_rows")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rows: list[_BuiltRow] = []
        self._bytes = _HEAD_BYTES
        self._property_bytes = 0
        self._names: set[str] = set()
        self._has_ids = False

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def byte_size(self) -> int:
        """An upper bound of the batch's size; many tiny values count for more than their bytes."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Might the next message not fit? Then build first."""
        most = IDENTIFIED_ROWS_MAX if self._has_ids else ROWS_MAX
        return BATCH_BYTES_MAX - self._bytes < _MESSAGE_BYTES_MAX or len(self._rows) == most

    @property
    def has_ids(self) -> bool:
        """Has any message an id of the application?"""
        return self._has_ids

    @property
    def takes_ids(self) -> bool:
        """May the next message have an id of the application?"""
        return len(self._rows) < IDENTIFIED_ROWS_MAX

    def add(
        self,
        body: Sendable,
        properties: Mapping[str, PropertyValue] | None = None,
        *,
        timestamp_ms: int,
        priority: int = PRIORITY_DEFAULT,
        expires_ms: int = 0,
        deliver_at_ms: int = 0,
        key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        persistent: bool = True,
        dedup_id: str | bytes | None = None,
    ) -> None:
        """Add a message. If this raises InvalidMessage, InvalidName or MessageTooLarge, nothing changed."""
        assert not self.is_full, "a full batch is built before the next message is added"
        assert dedup_id is None or self.takes_ids, "a batch with ids has fewer rows"
        kind, data, values = encode_body(body)
        property_bytes = check_properties(properties) if properties else 0
        row = _BuiltRow(
            kind,
            data,
            _check_number("timestamp_ms", timestamp_ms, I64_MAX),
            _check_number("priority", priority, PRIORITY_MAX),
            _check_number("expires_ms", expires_ms, I64_MAX),
            _check_number("deliver_at_ms", deliver_at_ms, I64_MAX),
            bool(persistent),
            None if key is None else _encode_header("key", key),
            None if correlation_id is None else _encode_header("correlation_id", correlation_id),
            None if reply_to is None else _encode_header("reply_to", reply_to),
            None if type is None else _encode_header("type", type),
            None if dedup_id is None else encode_dedup_id(dedup_id),
            dict(properties) if properties else {},
        )
        texts = (row.key, row.correlation_id, row.reply_to, row.type, row.dedup_id)
        extras = property_bytes + sum(len(text) for text in texts if text)
        if extras > EXTRAS_BYTES_MAX:
            raise MessageTooLarge(
                f"properties and headers of {extras:,} bytes are more than the {EXTRAS_BYTES_MAX:,} allowed"
            )
        self._rows.append(row)
        self._has_ids = self._has_ids or dedup_id is not None
        self._bytes += _ROW_BYTES + max(len(data), VALUE_WEIGHT * values) + extras
        self._property_bytes += property_bytes
        if row.properties:
            self._weigh_properties(row.properties, property_bytes)

    def add_row(self, batch: Batch, row: int, system: Mapping[str, PropertyValue]) -> None:
        """Add a row of another batch as it is, with properties of the system beyond its own.

        The row kept to the limits when it was sent; the system's few properties do not count. The id of its
        application is left out: a destination has taken the message by it already.
        """
        assert not self.is_full, "a full batch is built before the next message is added"
        assert len(system) <= SYSTEM_PROPERTIES_MAX, "a reader would refuse so many properties"
        kind, data = batch.body_kind(row), bytes(batch.body_bytes(row))
        is_structure = kind in (BodyKind.MAP, BodyKind.LIST)
        values = 1 + count_values(data, 0, len(data), is_map=kind == BodyKind.MAP) if is_structure else 0
        properties = {**batch.properties(row), **system}
        headers = (batch.key(row), batch.correlation_id(row), batch.reply_to(row), batch.type(row))
        texts = [None if text is None else text.encode() for text in headers]
        key, correlation_id, reply_to, type = texts
        self._rows.append(
            _BuiltRow(
                kind,
                data,
                batch.timestamp_ms(row),
                batch.priority(row),
                batch.expires_ms(row),
                batch.deliver_at_ms(row),
                batch.is_persistent(row),
                key,
                correlation_id,
                reply_to,
                type,
                None,
                properties,
            )
        )
        property_bytes = weigh_properties(properties)
        extras = property_bytes + sum(len(text) for text in texts if text)
        self._bytes += _ROW_BYTES + max(len(data), VALUE_WEIGHT * values) + extras
        self._property_bytes += property_bytes
        self._weigh_properties(properties, property_bytes)

    def _weigh_properties(self, properties: Mapping[str, PropertyValue], property_bytes: int) -> None:
        """Add the weight of properties beyond their bytes."""
        known = len(self._names)
        self._names.update(properties)
        self._bytes += NAME_WEIGHT * (len(self._names) - known)
        self._bytes += max(0, VALUE_WEIGHT * len(properties) - property_bytes)

    def build(self, producer: int, first_number: int) -> Batch:
        """The batch of the added messages; the builder is empty again."""
        assert self._rows, "a batch has at least one message"
        assert first_number + len(self._rows) - 1 <= U64_MAX, "message numbers fit 64 bits"
        kind, timestamp_ms = self._rows[0].kind, self._rows[0].timestamp_ms
        # Transposed: each name now holds the values of all rows.
        (
            kinds,
            bodies,
            timestamps,
            priorities,
            expirations,
            deliveries,
            persistent,
            keys,
            correlation_ids,
            reply_tos,
            types,
            dedup_ids,
            properties,
        ) = zip(*self._rows, strict=True)
        columns: dict[ColumnId, Column] = {}
        _put_numbers(columns, ColumnId.BODY_KIND, kinds, kind)
        _put_numbers(columns, ColumnId.TIMESTAMP, timestamps, timestamp_ms)
        _put_numbers(columns, ColumnId.PRIORITY, priorities, PRIORITY_DEFAULT)
        _put_numbers(columns, ColumnId.EXPIRES, expirations, 0)
        _put_numbers(columns, ColumnId.DELIVER_AT, deliveries, 0)
        if not all(persistent):
            columns[ColumnId.PERSISTENT] = Column.of_flags(persistent)
        _put_texts(columns, ColumnId.KEY, keys)
        _put_texts(columns, ColumnId.CORRELATION_ID, correlation_ids)
        _put_texts(columns, ColumnId.REPLY_TO, reply_tos)
        _put_texts(columns, ColumnId.TYPE, types)
        _put_texts(columns, ColumnId.DEDUP_ID, dedup_ids)
        property_columns: dict[str, Column] = {}
        if self._property_bytes:
            property_columns, blobs = build_properties(properties, self._property_bytes)
            if blobs is not None:
                columns[ColumnId.PROPERTIES] = blobs
        batch = Batch(
            len(self._rows),
            producer,
            first_number,
            0 if ColumnId.TIMESTAMP in columns else timestamp_ms,
            BODY_KIND_MIXED if ColumnId.BODY_KIND in columns else kind,
            0,
            Column.of_items(ValueType.BYTES, bodies),
            columns,
            property_columns,
        )
        self._clear()
        return batch


def _put_numbers(columns: dict[ColumnId, Column], id: ColumnId, numbers: Sequence[int], default: int) -> None:
    if numbers.count(default) != len(numbers):
        columns[id] = Column.of_numbers(COLUMN_TYPES[id], numbers)


def _put_texts(columns: dict[ColumnId, Column], id: ColumnId, texts: Sequence[bytes | None]) -> None:
    absent = texts.count(None)
    if absent != len(texts):
        presence = [text is not None for text in texts] if absent else None
        columns[id] = Column.of_items(COLUMN_TYPES[id], [text or b"" for text in texts], presence)


def _check_number(what: str, number: int, number_max: int) -> int:
    if not isinstance(number, int):
        raise InvalidMessage(f"{what} is of type {type(number).__name__}, not int")
    if not 0 <= number <= number_max:
        raise InvalidMessage(f"{what} goes beyond 0 to {number_max}")
    return number


def encode_dedup_id(id: str | bytes) -> bytes:
    """An application's own id as its bytes; a text is its UTF-8. Raises InvalidMessage."""
    if not isinstance(id, str | bytes):
        raise InvalidMessage(f"dedup_id is of type {type(id).__name__}, not str or bytes")
    data = encode_text(id, "dedup_id") if isinstance(id, str) else id
    if not 0 < len(data) <= DEDUP_ID_BYTES_MAX:
        raise InvalidMessage(f"dedup_id has {len(data)} bytes; it has 1 to {DEDUP_ID_BYTES_MAX}")
    return data


def _encode_header(what: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} is of type {type(text).__name__}, not str")
    data = encode_text(text, what)
    if len(data) > VALUE_BYTES_MAX:
        raise MessageTooLarge(f"{what} of {len(data):,} bytes is larger than the {VALUE_BYTES_MAX:,} allowed")
    return data
