"""Lone messages: a publish of one body of bytes, and its confirmation, read and written in one go.

LON1  A publish read here is as `read_command`, `Publish.decode` and `Batch.decode` would read it, and sound
      in every respect that they check; any other is None.
LON2  The bytes written here equal those of `publish_buffers` for `Batch.of_bodies` of one body.
LON3  A confirmation read here is as the layout of `Confirm` would read it; any other is None.

The layout of such a command is always the same:

    command header 48, publish head 16, batch header 48, entry of the body column 8, two offsets 8,
    the body, and zeros up to a multiple of eight
"""

from __future__ import annotations

import struct
from typing import Final

from antiphon.batch import BODY_BYTES_MAX
from antiphon.batch.bodies import BodyKind
from antiphon.batch.layout import ENTRY, HEADER, PADDING, VERSION, ColumnId
from antiphon.values import ValueType
from antiphon.wire.commands import (
    COMMAND_HEADER_SIZE,
    PUBLISH_BATCH_OFFSET,
    CommandHeader,
    CommandKind,
    ConfirmItem,
    OutcomeCode,
)
from antiphon.wire.primitives import Buffer

_LONE: Final = struct.Struct("<BBHIIIQQ16s" + "QII" + HEADER.format[1:] + ENTRY.format[1:] + "ii")
_BATCH_HEAD_BYTES: Final = _LONE.size - PUBLISH_BATCH_OFFSET
_NO_SESSION: Final = bytes(16)
_NUMBER_MAX: Final = (1 << 64) - 2
_PUBLISH: Final = int(CommandKind.PUBLISH)
_PLAIN: Final = int(BodyKind.BYTES)
_BODY: Final = int(ColumnId.BODY)
_BYTES: Final = int(ValueType.BYTES)
_new: Final = tuple.__new__

# A confirmation: its session and the length of its channel's name, the name, and its only item: how many
# there are, the numbers and how many, the outcome, the place, and how many texts there are.
_CONFIRM_HEAD: Final = struct.Struct("<16sH")
LONE_ITEM: Final = struct.Struct("<IQIBQI")
_OUTCOME_MAX: Final = int(max(OutcomeCode))


def read_lone_publish(data: Buffer) -> tuple[CommandHeader, int] | None:
    """Header and destination of a sound publish of one body (LON1)."""
    size = len(data)
    if size < _LONE.size:
        return None
    # fmt: off
    (
        kind, flags, reserved, length, count, generation, number, confirmed, session,
        destination, _, publish_flags,
        version, batch_flags, codec, body_kind, rows, batch_length, columns, first_bit, names_length,
        producer, first_number, timestamp_ms,
        column, value_type, entry_flags, entry_reserved, body,
        start, stop,
    ) = _LONE.unpack_from(data)
    # fmt: on
    if (
        kind != _PUBLISH
        or count != 1
        or rows != 1
        or version != VERSION
        or body_kind != _PLAIN
        or columns != 1
        or column != _BODY
        or value_type != _BYTES
        or first_bit > 7
    ):
        return None
    if flags or reserved or publish_flags or batch_flags or codec or names_length:
        return None
    if entry_flags or entry_reserved:
        return None
    if size != COMMAND_HEADER_SIZE + length or batch_length != size - PUBLISH_BATCH_OFFSET:
        return None
    if batch_length != _BATCH_HEAD_BYTES + (body + 7 & ~7) or body > BODY_BYTES_MAX:
        return None
    if start < 0 or stop - start != body or timestamp_ms < 0:
        return None
    if producer != session or first_number != number or session == _NO_SESSION:
        return None
    if not confirmed < number <= _NUMBER_MAX:
        return None
    if body & 7 and data[_LONE.size + body :] != PADDING[body & 7]:
        return None
    who = int.from_bytes(session, "little")
    return _new(CommandHeader, (kind, flags, length, 1, generation, number, confirmed, who)), destination


def lone_publish_buffers(
    session: int,
    generation: int,
    number: int,
    confirmed_through: int,
    destination: int,
    settings_version: int,
    timestamp_ms: int,
    body: bytes,
) -> tuple[list[Buffer], int]:
    """A whole publish command of one body, which is not copied (LON2), and its size."""
    size = len(body)
    padding = PADDING[size & 7]
    batch_length = _BATCH_HEAD_BYTES + size + len(padding)
    who = session.to_bytes(16, "little")
    # fmt: off
    head = _LONE.pack(
        _PUBLISH, 0, 0, PUBLISH_BATCH_OFFSET - COMMAND_HEADER_SIZE + batch_length, 1, generation, number,
        confirmed_through, who,
        destination, settings_version, 0,
        VERSION, 0, 0, _PLAIN, 1, batch_length, 1, 0, 0, who, number, timestamp_ms,
        _BODY, _BYTES, 0, 0, size,
        0, size,
    )
    # fmt: on
    return [head, body, padding] if padding else [head, body], PUBLISH_BATCH_OFFSET + batch_length


def read_lone_confirm(payload: Buffer) -> tuple[int, str, ConfirmItem] | None:
    """Session, channel and item of a Confirm with a single item and no text, as most are (LON3)."""
    start = len(payload) - LONE_ITEM.size
    if start < _CONFIRM_HEAD.size:
        return None
    session, name_length = _CONFIRM_HEAD.unpack_from(payload)
    if start != _CONFIRM_HEAD.size + name_length:
        return None
    rows, number, count, code, sequence, texts = LONE_ITEM.unpack_from(payload, start)
    if rows != 1 or texts or code > _OUTCOME_MAX:
        return None
    try:
        channel = str(payload[_CONFIRM_HEAD.size : start], "ascii")
    except UnicodeDecodeError:
        return None
    item = _new(ConfirmItem, (number, count, code, sequence, ""))
    return int.from_bytes(session, "little"), channel, item
