"""Batch: messages of one producer for one destination, in columns.

    BAT1  A batch does not change. Slices and reads share its bytes and copy no body.
    BAT2  decode(encode(batch)) == batch, also for slices; a slice of a slice is the slice taken at once.
          Rows that are taken here and there are copied, and keep their numbers.
    BAT3  `b"".join(buffers())` is `encode()`.

A caller that gives `decode` a view must not change the bytes behind it. Sequence numbers, destinations and
redeliveries are no part of a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from antiphon.batch.bodies import Body, BodyKind, decode_body
from antiphon.batch.column import OFFSET_BYTES, Column, pack_offsets
from antiphon.batch.decoding import decode_parts
from antiphon.batch.layout import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    BODY_KIND_MIXED,
    ENTRY,
    HAS_PRESENCE,
    HEADER,
    PADDING,
    PRIORITY_DEFAULT,
    ROWS_MAX,
    ColumnId,
    pack_header,
    padded,
    rules_of,
)
from antiphon.batch.properties import decode_properties
from antiphon.errors import InvalidMessage, MessageTooLarge
from antiphon.values import PropertyValue, ValueType, decode_text


class Batch:
    """A block of messages. Rows count from 0; row r has the number `first_number + offset(r)`.

    >>> batch = Batch.of_bodies([b"a", b"bc"], producer=7, first_number=1, timestamp_ms=0)
    >>> Batch.decode(batch.encode()).slice(1, 2).bodies()
    [b'bc']
    """

    __slots__ = (
        "_body",
        "_body_kind",
        "_columns",
        "_encoded",
        "_first_bit",
        "_offsets",
        "_properties",
        "_timestamp_ms",
        "count",
        "first_number",
        "producer",
    )

    def __init__(
        self,
        count: int,
        producer: int,
        first_number: int,
        timestamp_ms: int,
        body_kind: int,
        first_bit: int,
        body: Column,
        columns: dict[ColumnId, Column],
        properties: dict[str, Column],
        offsets: Column | None = None,
        encoded: bytes | memoryview | None = None,
    ) -> None:
        """For builder and decoder: nothing is checked here."""
        self.count = count
        self.producer = producer
        self.first_number = first_number
        self._timestamp_ms = timestamp_ms
        self._body_kind = body_kind
        self._first_bit = first_bit
        self._body = body
        self._columns = columns
        self._properties = properties
        # How far the numbers of rows lie apart; None: by one.
        self._offsets = offsets
        self._encoded = encoded

    @classmethod
    def of_bodies(cls, bodies: Sequence[bytes], producer: int, first_number: int, timestamp_ms: int) -> Batch:
        """A batch of bodies of bytes and nothing else, the common case: written at once, copied once."""
        try:
            lengths = list(map(len, bodies))
            size = sum(lengths)
            _check_sizes(lengths, size)
            offsets = _offsets_of(lengths)
            offsets_at = HEADER.size + ENTRY.size
            values_at = offsets_at + padded(len(offsets))
            header = pack_header(
                count=len(lengths),
                producer=producer,
                first_number=first_number,
                timestamp_ms=timestamp_ms,
                body_kind=BodyKind.BYTES,
                first_bit=0,
                length=values_at + padded(size),
                columns=1,
                names_length=0,
            )
            entry = ENTRY.pack(ColumnId.BODY, ValueType.BYTES, 0, 0, size)
            encoded = b"".join(
                [header, entry, offsets, PADDING[len(offsets) & 7], *bodies, PADDING[size & 7]]
            )
        except TypeError:
            raise _unfit_body(bodies) from None
        if len(encoded) != values_at + padded(size):
            raise _unfit_body(bodies)
        view = memoryview(encoded)
        body = Column(
            ValueType.BYTES,
            view[values_at : values_at + size],
            view[offsets_at : offsets_at + len(offsets)].cast("i"),
        )
        return cls(
            len(lengths), producer, first_number, timestamp_ms, BodyKind.BYTES, 0, body, {}, {}, None, encoded
        )

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, trusted: bool = False) -> Batch:
        """Read a batch in place; raise ProtocolError unless the bytes are exactly one batch.

        No accessor of an accepted batch fails later. `trusted` skips the check of texts, maps and blobs, for
        bytes that passed it before.
        """
        return cls(
            *decode_parts(data, trusted), encoded=data if isinstance(data, bytes) else memoryview(data)
        )

    # -- columns ---------------------------------------------------------------

    def body_bytes(self, row: int) -> memoryview:
        """The bytes of a body, in place."""
        return self._body.item(row)

    def body_kind(self, row: int) -> int:
        if self._body_kind != BODY_KIND_MIXED:
            return self._body_kind
        return self._number(ColumnId.BODY_KIND, row, 0)

    def body(self, row: int) -> Body:
        return decode_body(self.body_kind(row), self._body.item(row))

    def bodies(self) -> list[bytes]:
        """The bytes of all bodies, whatever their kind; much quicker than one by one."""
        values = self._body.values.tobytes()
        offsets = self._body.offsets
        assert offsets is not None, "the column of bodies has offsets"
        numbers = offsets.tolist()
        if numbers[0]:
            base = numbers[0]
            numbers = [number - base for number in numbers]
        return [values[start:stop] for start, stop in pairwise(numbers)]

    def timestamp_ms(self, row: int) -> int:
        return self._number(ColumnId.TIMESTAMP, row, self._timestamp_ms)

    def priority(self, row: int) -> int:
        return self._number(ColumnId.PRIORITY, row, PRIORITY_DEFAULT)

    def expires_ms(self, row: int) -> int:
        """When the message expires, in ms since 1970; 0: never."""
        return self._number(ColumnId.EXPIRES, row, 0)

    def deliver_at_ms(self, row: int) -> int:
        """Before when the message is not to be delivered, in ms since 1970; 0: at once."""
        return self._number(ColumnId.DELIVER_AT, row, 0)

    def is_persistent(self, row: int) -> bool:
        column = self._columns.get(ColumnId.PERSISTENT)
        return column is None or column.flag(row)

    def key(self, row: int) -> str | None:
        return self._text(ColumnId.KEY, row)

    def correlation_id(self, row: int) -> str | None:
        return self._text(ColumnId.CORRELATION_ID, row)

    def reply_to(self, row: int) -> str | None:
        return self._text(ColumnId.REPLY_TO, row)

    def type(self, row: int) -> str | None:
        return self._text(ColumnId.TYPE, row)

    def dedup_id(self, row: int) -> bytes | None:
        """The id that the application gave the message."""
        column = self._columns.get(ColumnId.DEDUP_ID)
        return bytes(column.item(row)) if column is not None and column.is_present(row) else None

    @property
    def has_ids(self) -> bool:
        """May any message have an id of the application?"""
        return ColumnId.DEDUP_ID in self._columns

    @property
    def is_transient(self) -> bool:
        """Is every row non-persistent? A slice may say no although it is so."""
        column = self._columns.get(ColumnId.PERSISTENT)
        return column is not None and not any(column.values)

    def properties(self, row: int) -> dict[str, PropertyValue]:
        blobs = self._columns.get(ColumnId.PROPERTIES)
        if blobs is not None:
            return decode_properties(blobs.item(row))
        return {
            name: column.value(row) for name, column in self._properties.items() if column.is_present(row)
        }

    def column(self, id: ColumnId) -> Column | None:
        """The column itself, for questions about all rows; None if no row needs it."""
        return self._body if id is ColumnId.BODY else self._columns.get(id)

    def offset(self, row: int) -> int:
        """How far the number of a row lies beyond `first_number`."""
        offsets = self._offsets
        return row if offsets is None else offsets.values[row] - offsets.values[0]

    @property
    def has_gaps(self) -> bool:
        """Were the rows taken here and there?"""
        return self._offsets is not None

    def runs(self) -> list[tuple[int, int, int]]:
        """The rows in runs of consecutive numbers: `[start, stop)` of each, and the offset of row start."""
        if self._offsets is None:
            return [(0, self.count, 0)]
        offsets = self._offsets.values.tolist()
        starts = [0, *[row for row, (one, next_) in enumerate(pairwise(offsets), 1) if next_ - one > 1]]
        stops = [*starts[1:], self.count]
        return [(start, stop, offsets[start] - offsets[0]) for start, stop in zip(starts, stops, strict=True)]

    def property_column(self, name: str) -> Column | None:
        """The column of a property; None if no row has it, or if properties are blobs here."""
        return self._properties.get(name)

    @property
    def rules(self) -> int:
        """What rows may ask of the fold (`BatchRule`); a slice has the rules of the whole batch."""
        return rules_of(self._columns) if self._columns else 0

    @property
    def property_names(self) -> tuple[str, ...]:
        """The properties that have a column of their own."""
        return tuple(self._properties)

    @property
    def has_properties(self) -> bool:
        """Does any row have properties, in columns or blobs?"""
        return bool(self._properties) or ColumnId.PROPERTIES in self._columns

    def _number(self, id: ColumnId, row: int, default: int) -> int:
        column = self._columns.get(id)
        if column is None:
            return default
        number: int = column.values[row]
        return number

    def _text(self, id: ColumnId, row: int) -> str | None:
        column = self._columns.get(id)
        return decode_text(column.item(row)) if column is not None and column.is_present(row) else None

    # -- rows ------------------------------------------------------------------

    def numbered(self, producer: int, first_number: int) -> Batch:
        """The same rows of another producer, counted from there on; nothing is copied."""
        return Batch(
            self.count,
            producer,
            first_number,
            self._timestamp_ms,
            self._body_kind,
            self._first_bit,
            self._body,
            self._columns,
            self._properties,
            self._offsets,
        )

    def slice(self, start: int, stop: int) -> Batch:
        """The rows `[start, stop)` as a batch of their own; no body is copied."""
        assert 0 <= start < stop <= self.count, f"no rows {start} to {stop} in a batch of {self.count}"
        if stop - start == self.count:
            return self
        return Batch(
            stop - start,
            self.producer,
            self.first_number + self.offset(start),
            self._timestamp_ms,
            self._body_kind,
            self._first_bit + start & 7,
            self._body.slice(start, stop),
            {id: column.slice(start, stop) for id, column in self._columns.items()},
            {name: column.slice(start, stop) for name, column in self._properties.items()},
            None if self._offsets is None else self._offsets.slice(start, stop),
        )

    def take(self, rows: Sequence[int]) -> Batch:
        """These rows, ascending, as a batch of their own: a slice, or a copy of rows that lie here and there.

        The copy begins with bit 0, and has a column of how far the numbers of its rows lie apart.
        """
        first, stop = rows[0], rows[-1] + 1
        assert 0 <= first < stop <= self.count, f"no rows {first} to {stop} in a batch of {self.count}"
        if stop - first == len(rows):
            return self.slice(first, stop)
        places = rows if self._offsets is None else [self._offsets.values[row] for row in rows]
        return Batch(
            len(rows),
            self.producer,
            self.first_number + self.offset(first),
            self._timestamp_ms,
            self._body_kind,
            0,
            self._body.take(rows),
            {id: column.take(rows) for id, column in self._columns.items()},
            {name: column.take(rows) for name, column in self._properties.items()},
            Column.of_numbers(ValueType.I32, [place - places[0] for place in places]),
        )

    def closed_up(self) -> Batch:
        """The same rows with consecutive numbers, wherever they were taken from; nothing is copied."""
        if self._offsets is None:
            return self
        closed = self.numbered(self.producer, self.first_number)
        closed._offsets = None
        return closed

    def row_bytes(self, row: int) -> int:
        """The bytes of a row in all columns, bits and padding not counted."""
        return self._extent(row, row + 1)

    def rows_within(self, start: int, byte_budget: int) -> int:
        """How many rows from `start` on fit the budget together; may be 0."""
        if self._extent(start, self.count) <= byte_budget:
            return self.count - start
        stops = range(start + 1, self.count + 1)
        return bisect_right(stops, byte_budget, key=lambda stop: self._extent(start, stop))

    def fitting(self, rows: Sequence[int], byte_budget: int) -> int:
        """How many of these rows, ascending, fit the budget when they are taken together; may be 0."""
        if self._extent(rows[0], rows[-1] + 1) + OFFSET_BYTES * len(rows) <= byte_budget:
            return len(rows)
        sizes = accumulate([self.row_bytes(row) + OFFSET_BYTES for row in rows])
        return bisect_right(list(sizes), byte_budget)

    def _extent(self, start: int, stop: int) -> int:
        extent = self._body.extent(start, stop)
        if self._columns:
            extent += sum(column.extent(start, stop) for column in self._columns.values())
        if self._properties:
            extent += sum(column.extent(start, stop) for column in self._properties.values())
        return extent if self._offsets is None else extent + self._offsets.extent(start, stop)

    # -- bytes -----------------------------------------------------------------

    @property
    def byte_size(self) -> int:
        if self._encoded is not None:
            return len(self._encoded)
        return sum(map(len, self.buffers()))

    def encode(self) -> bytes:
        if self._encoded is None:
            return b"".join(self.buffers())
        return bytes(self._encoded)

    def buffers(self) -> list[bytes | memoryview]:
        """The encoded batch in pieces, for a gathering write; bodies are not copied (BAT3)."""
        if self._encoded is not None:
            return [self._encoded]
        names = [name.encode() for name in self._properties]
        entries = [_entry(ColumnId.BODY, self._body)]
        entries += [_entry(id, column) for id, column in self._columns.items()]
        entries += [
            _entry(ColumnId.PROPERTY, column, len(name))
            for name, column in zip(names, self._properties.values(), strict=True)
        ]
        columns = [self._body, *self._columns.values(), *self._properties.values()]
        if self._offsets is not None:
            entries.append(_entry(ColumnId.NUMBER_OFFSET, self._offsets))
            columns.append(self._offsets)
        pieces: list[bytes | memoryview] = []
        for column in columns:
            for block in column.blocks():
                pieces.append(block)
                if len(block) & 7:
                    pieces.append(PADDING[len(block) & 7])
        names_length = sum(map(len, names))
        head_length = HEADER.size + len(entries) * ENTRY.size + padded(names_length)
        header = pack_header(
            count=self.count,
            producer=self.producer,
            first_number=self.first_number,
            timestamp_ms=self._timestamp_ms,
            body_kind=self._body_kind,
            first_bit=self._first_bit,
            length=head_length + sum(map(len, pieces)),
            columns=len(entries),
            names_length=names_length,
            rules=self.rules,
        )
        return [b"".join([header, *entries, *names, PADDING[names_length & 7]]), *pieces]

    def __eq__(self, other: object) -> bool:
        return self.encode() == other.encode() if isinstance(other, Batch) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Batch of {self.count} from {self.producer:032x}, first {self.first_number}>"


def _entry(id: int, column: Column, name_length: int = 0) -> bytes:
    flags = 0 if column.presence is None else HAS_PRESENCE
    return ENTRY.pack(id, column.type, flags, name_length, column.values.nbytes)


def _check_sizes(lengths: list[int], size: int) -> None:
    if size > BODY_BYTES_MAX and max(lengths) > BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"body {lengths.index(max(lengths))} of {max(lengths):,} bytes is larger than"
            f" the {BODY_BYTES_MAX:,} allowed"
        )
    # The head, and the paddings of two blocks, take less than 80 bytes.
    if not 1 <= len(lengths) <= ROWS_MAX or size + 4 * len(lengths) + 80 > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"{len(lengths):,} messages of {size:,} bytes are not one batch")


def _offsets_of(lengths: list[int]) -> bytes:
    """Packed offsets, cached: messages of one size are common."""
    count = len(lengths)
    if count <= 1024 and lengths.count(lengths[0]) == count:
        return _even_offsets(count, lengths[0])
    return pack_offsets(lengths)


@lru_cache(maxsize=64)
def _even_offsets(count: int, length: int) -> bytes:
    return pack_offsets([length] * count)


def _unfit_body(bodies: Sequence[object]) -> InvalidMessage:
    for index, body in enumerate(bodies):
        if not isinstance(body, bytes | bytearray):
            return InvalidMessage(f"body {index} is of type {type(body).__name__}, not bytes")
    return InvalidMessage("a body is not bytes")
