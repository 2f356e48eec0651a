"""Order records: a commit server's log on disk.

A record is one atomic step: the journal has it whole or not at all. A record holds only changes. An epoch
that begins with the present log costs a few bytes, however long the log is: `keep_through` names the part
that stays. Of a long difference all but the end is staged in earlier records, which mean nothing until the
record of the epoch follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from antiphon.bus.messages import Entry, encode_entries, read_entries
from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer, Reader, Writer, pack

_ENTRIES_APPENDED: Final = 1
_EPOCH_STARTED: Final = 2
_BASE_MOVED: Final = 3
_ENTRIES_STAGED: Final = 4
_ENTRIES_WITH_ENVELOPES: Final = 5
# Head of the records with entries: kind, epoch, the number before the first, how many entries follow.
_HEAD = Struct("<BQQI")
# Head of a start: the same, with the id of the configuration before the number of entries.
_START = Struct("<BQQII")

# A record of the order takes a block of 4 KiB with every sync; small envelopes find room there, or in a
# second block, which costs less than a second sync.
EMBEDDED_BYTES_MAX: Final = 7_168

LEARNED: Final = 0
"""The configuration of a log that no sequencer wrote: its server had no vote and wrote down committed
entries. The epoch beside it is only a promise that must not be forgotten."""


@dataclass(frozen=True, slots=True)
class EntriesAppended:
    """Under `log_epoch`, these entries follow number `prev`."""

    log_epoch: int
    prev: int
    entries: tuple[Entry, ...]
    # Payloads of entries, by the index of the entry.
    envelopes: tuple[tuple[int, Buffer], ...] = ()


@dataclass(frozen=True, slots=True)
class EntriesStaged:
    """Under `epoch`, should it start, these entries follow number `prev`."""

    epoch: int
    prev: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """The log is unchanged through `keep_through`, then these entries, all under `epoch`.

    If they do not follow `keep_through`, the entries staged for this epoch stand in between.
    """

    epoch: int
    keep_through: int
    entries: tuple[Entry, ...]
    config_id: int = 1


@dataclass(frozen=True, slots=True)
class BaseMoved:
    """The log begins after `base`; `ledger` is the fold of everything through it.

    The epoch of the log and its configuration are repeated because the segment with the first record of them
    may be freed.
    """

    base: int
    log_epoch: int
    ledger: bytes
    checkpoint_digest: bytes
    config_id: int = 1


OrderBody: TypeAlias = EntriesAppended | EntriesStaged | EpochStarted | BaseMoved


def encode_order(body: OrderBody) -> bytes:
    match body:
        case EntriesAppended(log_epoch, prev, entries, envelopes):
            return encode_appended(log_epoch, prev, entries, envelopes)
        case EntriesStaged(epoch, prev, entries):
            return pack(_HEAD, _ENTRIES_STAGED, epoch, prev, len(entries)) + encode_entries(entries)
        case EpochStarted(epoch, keep_through, entries, config_id):
            head = pack(_START, _EPOCH_STARTED, epoch, keep_through, config_id, len(entries))
            return head + encode_entries(entries)
        case BaseMoved(base, log_epoch, ledger, checkpoint_digest, config_id):
            writer = Writer()
            writer.u8(_BASE_MOVED)
            writer.u64(base)
            writer.u64(log_epoch)
            writer.bytes_(ledger)
            writer.bytes_(checkpoint_digest)
            writer.u32(config_id)
            return writer.join()


def encode_appended(
    log_epoch: int, prev: int, entries: tuple[Entry, ...], envelopes: Sequence[tuple[int, Buffer]] = ()
) -> bytes:
    """An `EntriesAppended` for every commit, without making the object."""
    if envelopes:
        writer = Writer()
        writer.raw(pack(_HEAD, _ENTRIES_WITH_ENVELOPES, log_epoch, prev, len(entries)))
        writer.raw(encode_entries(entries))
        writer.count(len(envelopes))
        for at, payload in envelopes:
            writer.u32(at)
            writer.bytes_(payload)
        return writer.join()
    return pack(_HEAD, _ENTRIES_APPENDED, log_epoch, prev, len(entries)) + encode_entries(entries)


def decode_order(data: Buffer) -> OrderBody:
    reader = Reader(data)
    kind = reader.u8()
    body: OrderBody
    if kind == _ENTRIES_APPENDED:
        body = EntriesAppended(reader.u64(), reader.u64(), read_entries(reader))
    elif kind == _ENTRIES_WITH_ENVELOPES:
        epoch, prev, entries = reader.u64(), reader.u64(), read_entries(reader)
        envelopes = [(reader.u32(), reader.bytes_()) for _ in range(reader.count(8))]
        if any(at >= len(entries) for at, _ in envelopes):
            raise ProtocolError("an envelope without its entry")
        body = EntriesAppended(epoch, prev, entries, tuple(envelopes))
    elif kind == _ENTRIES_STAGED:
        body = EntriesStaged(reader.u64(), reader.u64(), read_entries(reader))
    elif kind == _EPOCH_STARTED:
        epoch, keep_through, config_id = reader.u64(), reader.u64(), reader.u32()
        body = EpochStarted(epoch, keep_through, read_entries(reader), config_id)
    elif kind == _BASE_MOVED:
        base, log_epoch = reader.u64(), reader.u64()
        ledger, digest = bytes(reader.bytes_()), bytes(reader.bytes_())
        body = BaseMoved(base, log_epoch, ledger, digest, reader.u32())
    else:
        raise ProtocolError(f"an order record of kind {kind}")
    reader.finish()
    if not isinstance(body, BaseMoved) and body.entries:
        first = body.entries[0].first
        prev = body.keep_through if isinstance(body, EpochStarted) else body.prev
        if first <= prev or (first > prev + 1 and not isinstance(body, EpochStarted)):
            raise ProtocolError(f"an order record whose entries begin at {first} after {prev}")
    return body
