"""The bytes of a batch. Little-endian; every block is padded with zeros to 8 bytes.

    header      48 bytes, below
    directory   8 bytes for each column: id u8, type u8 (`ValueType`), flags u8
                (bit 0: has presence bits), name length u8, length of the values u32
    names       UTF-8 names of the property columns, one behind the other
    columns     for each, in the order of the directory:
                    presence    a bit per row, if flagged
                    offsets     i32, count + 1 of them, if STR or BYTES
                    values      bits for BOOL, nothing for NULL, else by the type

    header      0  version u8       16  producer 16 bytes (the session's id)
                1  rules u8         32  first_number u64
                2  codec u8, 0      40  timestamp_ms i64, 0 if there is a column of them
                3  body_kind u8, 255 if there is a column of them
                4  count u32, the rows
                8  length u32, of the whole batch
               12  columns u8
               13  first_bit u8, 0 to 7: where row 0 lies in the first byte of bits
               14  length of names u16

A slice keeps the columns' bytes where they are. So offsets need not start at 0 (the values start at the first
one), and bits need not start at bit 0.

`rules` says which rules (`BatchRule`) the batch has columns for. Most batches have none, and every
tier sees that in one byte.

Rows are numbered on from `first_number`: the message ids of a batch take no space. Only of rows that were
taken here and there from a batch (`Batch.take`) a column says how far their numbers lie apart; no batch is
stored with one. A column with the same value in every row, or the default, is left out.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Final

from antiphon.values import VALUES_MAX, ValueType

if sys.byteorder != "little":
    raise ImportError("Antiphon reads columns in place and needs a little-endian machine")

VERSION: Final = 0xB2

ROWS_MAX: Final = 65_536
# Of a batch with ids of the application: each row may have an outcome of its own.
IDENTIFIED_ROWS_MAX: Final = 1_024
DEDUP_ID_BYTES_MAX: Final = 255
BODY_BYTES_MAX: Final = 1024 * 1024
# Of one property, key, correlation id, reply-to or type.
VALUE_BYTES_MAX: Final = 64 * 1024
PROPERTIES_MAX: Final = 128
# Beyond those of the application: the system says in properties where a dead message comes from.
SYSTEM_PROPERTIES_MAX: Final = 8
# And so many bytes of a batch stay for them.
SYSTEM_BYTES_MAX: Final = 64 * 1024
# More names than these go as one blob per row: a directory entry and presence bits for each would cost more
# than they save.
PROPERTY_COLUMNS_MAX: Final = 32
# A frame holds 2 MiB of batch and envelope; 64 KiB of it stay for the envelope.
BATCH_BYTES_MAX: Final = 2 * 1024 * 1024 - 64 * 1024

# Maps, lists and blobs of properties are checked value by value when they come in. So that a batch of tiny
# values takes no longer than others, a value weighs so many bytes at least, and a name that is new in the
# batch weighs more.
VALUE_WEIGHT: Final = BODY_BYTES_MAX // VALUES_MAX
NAME_WEIGHT: Final = 480
BATCH_VALUES_MAX: Final = BATCH_BYTES_MAX // VALUE_WEIGHT
BATCH_NAMES_MAX: Final = BATCH_BYTES_MAX // NAME_WEIGHT

PRIORITY_DEFAULT: Final = 4
PRIORITY_MAX: Final = 9

BODY_KIND_MIXED: Final = 255
HAS_PRESENCE: Final = 1

HEADER: Final = struct.Struct("<BBBBIIBBH16sQq")
ENTRY: Final = struct.Struct("<BBBBI")
assert HEADER.size == 48 and ENTRY.size == 8, "the layout is part of the protocol"


class ColumnId(IntEnum):
    """The kinds of columns. They stand in this order; only PROPERTY may come more than once."""

    BODY = 0
    BODY_KIND = 1
    TIMESTAMP = 2
    PRIORITY = 3
    EXPIRES = 4
    DELIVER_AT = 5
    PERSISTENT = 6
    KEY = 7
    CORRELATION_ID = 8
    REPLY_TO = 9
    TYPE = 10
    DEDUP_ID = 11
    PROPERTIES = 12  # one blob per row, instead of PROPERTY columns
    PROPERTY = 13
    # Of rows that were taken: row r has the number first_number + offset r - offset 0.
    NUMBER_OFFSET = 14


COLUMN_TYPES: Final[dict[int, ValueType]] = {
    ColumnId.BODY: ValueType.BYTES,
    ColumnId.BODY_KIND: ValueType.I8,
    ColumnId.TIMESTAMP: ValueType.I64,
    ColumnId.PRIORITY: ValueType.I8,
    ColumnId.EXPIRES: ValueType.I64,
    ColumnId.DELIVER_AT: ValueType.I64,
    ColumnId.PERSISTENT: ValueType.BOOL,
    ColumnId.KEY: ValueType.STR,
    ColumnId.CORRELATION_ID: ValueType.STR,
    ColumnId.REPLY_TO: ValueType.STR,
    ColumnId.TYPE: ValueType.STR,
    ColumnId.DEDUP_ID: ValueType.BYTES,
    ColumnId.PROPERTIES: ValueType.BYTES,
    ColumnId.NUMBER_OFFSET: ValueType.I32,
}


class BatchRule(IntFlag):
    """What some row of a batch may ask of the fold: a delivery rule, or a look at the application's id."""

    PRIORITY = 1
    EXPIRES = 2
    DELIVER_AT = 4
    TRANSIENT = 8
    KEY = 16
    DEDUP = 32


_RULES: Final[dict[int, int]] = {
    ColumnId.PRIORITY: int(BatchRule.PRIORITY),
    ColumnId.EXPIRES: int(BatchRule.EXPIRES),
    ColumnId.DELIVER_AT: int(BatchRule.DELIVER_AT),
    ColumnId.PERSISTENT: int(BatchRule.TRANSIENT),
    ColumnId.KEY: int(BatchRule.KEY),
    ColumnId.DEDUP_ID: int(BatchRule.DEDUP),
}

RULES_AT: Final = 1
"""The offset of the rules in a batch."""


def rules_of(columns: Iterable[int]) -> int:
    """The rules of a batch with these columns, as a plain number."""
    rules = 0
    for id in columns:
        rules |= _RULES.get(id, 0)
    return rules


def padded(length: int) -> int:
    return length + 7 & ~7


# By length modulo 8: the zeros that follow a block.
PADDING: Final = tuple(bytes(-length % 8) for length in range(8))


def pack_header(
    *,
    count: int,
    producer: int,
    first_number: int,
    timestamp_ms: int,
    body_kind: int,
    first_bit: int,
    length: int,
    columns: int,
    names_length: int,
    rules: int = 0,
) -> bytes:
    return HEADER.pack(
        VERSION,
        rules,
        0,
        body_kind,
        count,
        length,
        columns,
        first_bit,
        names_length,
        producer.to_bytes(16, "little"),
        first_number,
        timestamp_ms,
    )
