"""Bytes of log entries, on the wire and on disk, and of what their details say.

An entry is 57 bytes and its detail. Details are the few facts of entries that have no payload:

    PRODUCER_OPEN      pid u16, run id 16 bytes
    PRODUCER_FENCE     pid u16, pe u64, term u64
    CHECKPOINT_STABLE  n u64, digest 16 bytes, holders: a count u16 and node ids u16
    PRIMARY_CLAIM      nothing: the epoch and the node of its mid are the term and the primary
    QUANTITY           data quantity u16
    CONFIG             the whole configuration, encoded
    VOID               first number u64 of an entry whose payload is lost for good
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from antiphon.bus.messages import Entry, EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import Mid
from antiphon.wire.primitives import Buffer, Reader, Writer
from antiphon.wire.transactions import STAGED_MESSAGES_MAX

# first, count, kind, pid, pe, pseq, ts, digest, length of the detail
_ENTRY = Struct("<QIBHQQQ16sH")
ENTRY_BYTES_MIN: Final = _ENTRY.size
COUNT_MAX: Final = STAGED_MESSAGES_MAX
"""The most numbers one envelope may take: those of the largest commit, which cannot be cut in two."""

_NUMBER_END: Final = 1 << 64
_KINDS: Final = {int(kind): kind for kind in EntryKind}


class Entries(tuple[Entry, ...]):
    """Entries that know their bytes: what is said to several and written down is encoded once."""

    encoded: bytes

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Entries:
        made = cls(entries)
        made.encoded = _encode(made)
        return made


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """The entries end to end, without a count."""
    return entries.encoded if type(entries) is Entries else _encode(entries)


def _encode(entries: Sequence[Entry]) -> bytes:
    pack = _ENTRY.pack
    return b"".join(
        [
            pack(first, count, kind, mid[0], mid[1], mid[2], ts, digest, len(detail)) + detail
            for first, count, kind, mid, ts, digest, detail in entries
        ]
    )


def write_entries(writer: Writer, entries: Sequence[Entry]) -> None:
    """A count, then the entries."""
    writer.count(len(entries))
    try:
        writer.raw(encode_entries(entries))
    except StructError as error:
        raise ValueError(f"an entry that does not fit: {error}") from None


def read_entries(reader: Reader) -> tuple[Entry, ...]:
    """What `write_entries` wrote: whole entries, each beginning where the one before ends."""
    count = reader.count(ENTRY_BYTES_MIN)
    size = count * ENTRY_BYTES_MIN
    plain = _read_plain(bytes(reader.ahead(size)))
    if plain is not None:
        reader.raw(size)
        return plain
    rows: list[tuple[Any, ...]] = []
    details: list[bytes] = []
    for _ in range(count):
        rows.append(reader.numbers(_ENTRY))
        details.append(bytes(reader.raw(rows[-1][8])))
    return tuple(_checked(rows, details))


# What a commit server is told to write, it is soon told to be committed: in the same bytes, as a rule.
@lru_cache(maxsize=32)
def _read_plain(data: bytes) -> Entries | None:
    """Entries without details, as a rule all are: rows of one length, which are read in one sweep."""
    rows = list(_ENTRY.iter_unpack(data))
    if any(row[8] for row in rows):
        return None
    entries = Entries(_checked(rows, []))
    entries.encoded = data
    return entries


def _checked(rows: list[tuple[Any, ...]], details: list[bytes]) -> list[Entry]:
    entries: list[Entry] = []
    expected = 0
    new, kinds = tuple.__new__, _KINDS
    for first, count, kind_number, pid, pe, pseq, ts, digest, _ in rows:
        kind = kinds.get(kind_number)
        if kind is None:
            raise ProtocolError(f"an entry of kind {kind_number}")
        if not 1 <= count <= COUNT_MAX:
            raise ProtocolError(f"an entry that takes {count} numbers")
        if first < 1 or (expected and first != expected):
            raise ProtocolError(f"an entry at {first} where {expected or 'a number'} was expected")
        expected = first + count
        detail = details[len(entries)] if details else b""
        entries.append(new(Entry, (first, count, kind, new(Mid, (pid, pe, pseq)), ts, digest, detail)))
    if expected > _NUMBER_END:
        raise ProtocolError(f"entries up to {expected - 1}, which does not fit 64 bits")
    return entries


# --- details -------------------------------------------------------------------------------------

_OPEN = Struct("<H16s")
_FENCE = Struct("<HQQ")
_STABLE = Struct("<Q16sH")
_NODE = Struct("<H")
_QUANTITY = Struct("<H")
_VOID = Struct("<Q")


class OpenDetail(NamedTuple):
    """Which node opened as a producer, and in which run."""

    pid: int
    run_id: bytes

    def encode(self) -> bytes:
        return _OPEN.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> OpenDetail:
        if len(data) != _OPEN.size:
            raise ProtocolError(f"the detail of a PRODUCER_OPEN has {len(data)} bytes")
        return cls(*_OPEN.unpack(data))


class FenceDetail(NamedTuple):
    """Which run of a producer is over, as the primary of a term proposes."""

    pid: int
    pe: int
    term: int

    def encode(self) -> bytes:
        return _FENCE.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> FenceDetail:
        if len(data) != _FENCE.size:
            raise ProtocolError(f"the detail of a PRODUCER_FENCE has {len(data)} bytes")
        return cls(*_FENCE.unpack(data))


class StableDetail(NamedTuple):
    """Which checkpoint is held by enough servers, with which digest, and by whom."""

    n: int
    digest: bytes
    holders: tuple[int, ...]

    def encode(self) -> bytes:
        nodes = b"".join([_NODE.pack(node) for node in self.holders])
        return _STABLE.pack(self.n, self.digest, len(self.holders)) + nodes

    @classmethod
    def decode(cls, data: Buffer) -> StableDetail:
        reader = Reader(data)
        n, digest, count = _STABLE.unpack(reader.raw(_STABLE.size))
        holders = tuple([reader.u16() for _ in range(count)])
        reader.finish()
        return cls(n, digest, holders)


class QuantityDetail(NamedTuple):
    """How many data servers must hold an envelope before it is numbered, from now on."""

    data_quantity: int

    def encode(self) -> bytes:
        return _QUANTITY.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> QuantityDetail:
        if len(data) != _QUANTITY.size:
            raise ProtocolError(f"the detail of a QUANTITY has {len(data)} bytes")
        return cls(*_QUANTITY.unpack(data))


class VoidDetail(NamedTuple):
    """Which entry goes on without its payload: the first of its numbers."""

    first: int

    def encode(self) -> bytes:
        return _VOID.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> VoidDetail:
        if len(data) != _VOID.size:
            raise ProtocolError(f"the detail of a VOID has {len(data)} bytes")
        return cls(*_VOID.unpack(data))
