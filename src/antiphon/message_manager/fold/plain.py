"""Publishing: the plain publishes that an envelope begins with, applied together.

PLA1  Each publish has the effect that the fold would give it. The first command that is not a plain publish,
      or could be wrong in any way, ends the run and is left to the fold.
PLA2  Only the log and the state decide how far the run goes: as far on every replica.

Where many clients send one message at a time, an envelope is a hundred small commands. For each of them the
fold would take a dozen calls, on every replica.
"""

from __future__ import annotations

import struct
from typing import Final

from antiphon.batch.layout import HEADER, VERSION
from antiphon.message_manager.delivery.primary import Primary
from antiphon.message_manager.fold.turns import Channel, Envelope
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.wire.commands import COMMAND_HEADER_SIZE, PUBLISH_BATCH_OFFSET, CommandKind

# The header of a command, the head of a publish, the header of its batch: 112 bytes, read at once.
_PLAIN: Final = struct.Struct("<BBHIIIQQ16s" + "QII" + HEADER.format[1:])
assert _PLAIN.size == PUBLISH_BATCH_OFFSET + HEADER.size, "a publish has another layout"

_PUBLISH: Final = int(CommandKind.PUBLISH)
_HEAD_BYTES: Final = PUBLISH_BATCH_OFFSET - COMMAND_HEADER_SIZE


def take_plain(channel: Channel, envelope: Envelope, sequence: int, end: int) -> tuple[int, int]:
    """Apply the plain publishes of an envelope with the numbers from `sequence` to before `end` (PLA1).

    Returns the offset and the number of the first command that is left.
    """
    payload, owner, _, _ = envelope
    state, primary = channel.state, channel.primary
    size = len(payload)
    row_of, from_bytes, unpack = state.sessions.get, int.from_bytes, _PLAIN.unpack_from
    queue: Queue | None = None
    queue_id = -1
    first = sequence
    offsets: list[int] = []
    lengths: list[int] = []
    at = 0
    while sequence < end and at + _PLAIN.size <= size:
        # fmt: off
        (
            kind, flags, reserved, length, count, generation, number, confirmed, session,
            destination, _, publish_flags,
            version, rules, _, _, rows, batch_length, _, _, _, _, _, _,
        ) = unpack(payload, at)
        # fmt: on
        stop = at + COMMAND_HEADER_SIZE + length
        if kind != _PUBLISH or count != 1 or rows != 1 or version != VERSION or stop > size:
            break
        if flags or reserved or publish_flags or rules or batch_length != length - _HEAD_BYTES:
            break
        row = row_of(from_bytes(session, "little"))
        if row is None or number != row.last + 1 or generation != row.generation or row.owner != owner:
            break
        if destination != queue_id:
            if queue is not None:
                _store(queue, primary, envelope, first, offsets, lengths)
                first, offsets, lengths = sequence, [], []
            found = state.directory.get(destination)
            if type(found) is not Queue or found.is_reserved:
                queue = None
                break
            queue, queue_id = found, destination
        row.note_next(confirmed, sequence)
        offsets.append(at + PUBLISH_BATCH_OFFSET)
        lengths.append(batch_length)
        at = stop
        sequence += 1
    if queue is not None and offsets:
        _store(queue, primary, envelope, first, offsets, lengths)
    return at, sequence


def _store(
    queue: Queue,
    primary: Primary | None,
    envelope: Envelope,
    first: int,
    offsets: list[int],
    lengths: list[int],
) -> None:
    queue.publish_run(first, envelope.location, offsets, lengths, envelope.digest)
    if primary is not None:
        primary.delivery.published(queue.id, first, first + len(offsets))
