"""Order records: what a commit server writes so that a later life finds its log again.

Where it sits
    commit_server  ->  RECORDS  ->  journal  ->  RECORDS  ->  recovery

What it promises
    P1  decode(encode(x)) == x, and decode of any bytes gives a record or `ProtocolError`.
    P2  One record is one atomic step: the journal has it whole or not at all.

What it leaves to others
    The order of records and their checksums are the journal's, their meaning is recovery's.

A record never says more than changed. An epoch that begins with the log we have costs a few bytes,
however long the log is: `keep_through` names the part that stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from antiphon.bus.entries import encode_entries, read_entries
from antiphon.bus.messages import Entry
from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer, Reader, Writer, pack

_ENTRIES_APPENDED: Final = 1
_EPOCH_STARTED: Final = 2
_BASE_MOVED: Final = 3
# Of the records with entries: kind, epoch, the number before the first, how many entries follow.
_HEAD = Struct("<BQQI")


@dataclass(frozen=True, slots=True)
class EntriesAppended:
    """Under `log_epoch`, these entries follow number `prev`."""

    log_epoch: int
    prev: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """The log is what it was through `keep_through`, then these entries, all under `epoch`."""

    epoch: int
    keep_through: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class BaseMoved:
    """The log begins after `base`; `ledger` is the fold of everything through it.

    `log_epoch` is repeated here because the record that said it first may lie in a segment that goes.
    """

    base: int
    log_epoch: int
    ledger: bytes
    checkpoint_digest: bytes


OrderBody: TypeAlias = EntriesAppended | EpochStarted | BaseMoved


def encode_order(body: OrderBody) -> bytes:
    match body:
        case EntriesAppended(log_epoch, prev, entries):
            return encode_appended(log_epoch, prev, entries)
        case EpochStarted(epoch, keep_through, entries):
            return pack(_HEAD, _EPOCH_STARTED, epoch, keep_through, len(entries)) + encode_entries(entries)
        case BaseMoved(base, log_epoch, ledger, checkpoint_digest):
            writer = Writer()
            writer.u8(_BASE_MOVED)
            writer.u64(base)
            writer.u64(log_epoch)
            writer.bytes_(ledger)
            writer.bytes_(checkpoint_digest)
            return writer.join()


def encode_appended(log_epoch: int, prev: int, entries: tuple[Entry, ...]) -> bytes:
    """An `EntriesAppended`, without making one: there is one for every commit."""
    return pack(_HEAD, _ENTRIES_APPENDED, log_epoch, prev, len(entries)) + encode_entries(entries)


def decode_order(data: Buffer) -> OrderBody:
    reader = Reader(data)
    kind = reader.u8()
    body: OrderBody
    if kind == _ENTRIES_APPENDED:
        body = EntriesAppended(reader.u64(), reader.u64(), read_entries(reader))
    elif kind == _EPOCH_STARTED:
        body = EpochStarted(reader.u64(), reader.u64(), read_entries(reader))
    elif kind == _BASE_MOVED:
        body = BaseMoved(reader.u64(), reader.u64(), bytes(reader.bytes_()), bytes(reader.bytes_()))
    else:
        raise ProtocolError(f"an order record of kind {kind}")
    reader.finish()
    if not isinstance(body, BaseMoved) and body.entries:
        prev = body.prev if isinstance(body, EntriesAppended) else body.keep_through
        if body.entries[0].first != prev + 1:
            raise ProtocolError(
                f"an order record whose entries begin at {body.entries[0].first} after {prev}"
            )
    return body
