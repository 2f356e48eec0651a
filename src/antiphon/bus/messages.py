"""The messages between the nodes of a channel.

Each is a frozen dataclass with a noun of the protocol as its name: `declare` has its number, its listeners
and its lane, and its fields are its bytes (see `schema.py`). The memory transport hands the objects over.

Entries, envelopes and items of a report, of which a message can have hundreds, are written and read in one
sweep. Payloads and batches come out as views, except small ones among several.

The first part is the messages of the bus's roles. The second part is those between client managers and
message managers, and of nodes about themselves. None of these is ordered: durable facts are commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from operator import lt
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, Final, NamedTuple

from xxhash import xxh3_128_digest

from antiphon.bus.schema import TO_ONE, Machine, declare
from antiphon.errors import ProtocolError
from antiphon.ids import MID_STRUCT, Mid
from antiphon.ranges import Ranges
from antiphon.wire.commands import Outcome, read_outcomes, write_outcomes
from antiphon.wire.lanes import Lane
from antiphon.wire.layout import (
    U16,
    U32,
    U64,
    U128,
    Bool,
    Bytes,
    Bytes16,
    Document,
    Field,
    Layout,
    SomeRanges,
    Text,
    Texts,
    U32s,
    U64s,
    View,
    enum_of,
    list_of,
)
from antiphon.wire.primitives import Buffer, Reader, Writer, pack
from antiphon.wire.transactions import STAGED_MESSAGES_MAX

MEMBER, DATA_SERVER, SEQUENCER = Machine.MEMBER, Machine.DATA_SERVER, Machine.SEQUENCER
COMMIT_SERVER, VOTER, LEARNER = Machine.COMMIT_SERVER, Machine.VOTER, Machine.LEARNER
CHECKPOINT_SERVER, HOLDER, JOINER = Machine.CHECKPOINT_SERVER, Machine.HOLDER, Machine.JOINER
PRESENCE, PRODUCER, LISTENER = Machine.PRESENCE, Machine.PRODUCER, Machine.LISTENER
MESSAGE_MANAGER, CLIENT_MANAGER, NODE = Machine.MESSAGE_MANAGER, Machine.CLIENT_MANAGER, Machine.NODE


class BusMessage:
    """A message of a node of a channel to others, or of one machine of a node to another."""

    __slots__ = ()


# The constructor of a tuple with names, without the Python call around it: half the time.
_new = tuple.__new__


def _write_mid(writer: Writer, mid: Mid) -> None:
    writer.raw(pack(MID_STRUCT, *mid))


def _read_mid(reader: Reader) -> Mid:
    return Mid(*reader.numbers(MID_STRUCT))


_MID: Final = Field(_write_mid, _read_mid)
MidField = Annotated[Mid, _MID]
Mids = Annotated[tuple[Mid, ...], list_of(_MID, MID_STRUCT.size)]
Outcomes = Annotated[
    tuple[Outcome, ...], Field(write_outcomes, lambda reader: read_outcomes(reader, Outcome))
]

# --- entries of the log --------------------------------------------------------------------------


class EntryKind(IntEnum):
    """The kinds of entries of the log."""

    DATA = 1
    PRODUCER_OPEN = 2
    PRODUCER_FENCE = 3
    PRIMARY_CLAIM = 4
    QUANTITY = 5
    TICK = 6
    CHECKPOINT_MARK = 7
    CHECKPOINT_STABLE = 8
    CONFIG = 9
    VOID = 10


class Entry(NamedTuple):
    """One place in the log: the numbers first … first+count-1 belong to envelope `mid`.

    The sequencer makes all entries but DATA; they have no payload, and a short `detail`.
    """

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    kind: EntryKind
    mid: Mid
    ts: int
    digest: bytes
    detail: bytes = b""

    @property
    def last(self) -> int:
        return self.first + self.count - 1


NO_DIGEST = bytes(16)
# mid, ts, count: the fields under the digest beside the payload.
_DIGEST_HEAD = Struct(MID_STRUCT.format + "QI")


def digest_of(mid: Mid, ts: int, count: int, payload: bytes | memoryview) -> bytes:
    """XXH3-128 over an envelope: guards against accidents, and is the record's checksum at rest."""
    pid, pe, pseq = mid
    return digest_of_parts(pid, pe, pseq, ts, count, payload)


def digest_of_parts(pid: int, pe: int, pseq: int, ts: int, count: int, payload: bytes | memoryview) -> bytes:
    """`digest_of` for an id that is taken apart already."""
    # Two hashes rather than one over a joined copy: the payload may be two megabytes.
    return xxh3_128_digest(_DIGEST_HEAD.pack(pid, pe, pseq, ts, count) + xxh3_128_digest(payload))


# first, count, kind, pid, pe, pseq, ts, digest, length of the detail
_ENTRY = Struct("<QIBHQQQ16sH")
ENTRY_BYTES_MIN: Final = _ENTRY.size
COUNT_MAX: Final = STAGED_MESSAGES_MAX
"""The most numbers one envelope may take: those of the largest commit, which cannot be cut in two."""

_NUMBER_END: Final = 1 << 64
_KINDS: Final = {int(kind): kind for kind in EntryKind}


class Entries(tuple[Entry, ...]):
    """Entries that keep their bytes: those that are sent to several nodes and written are encoded once."""

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
    writer.count(len(entries))
    try:
        writer.raw(encode_entries(entries))
    except StructError as error:
        raise ValueError(f"an entry that does not fit: {error}") from None


def read_entries(reader: Reader) -> tuple[Entry, ...]:
    """Entries, each beginning where the one before ends."""
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


# Entries come to a commit server twice, to be written and as committed, usually in the same bytes.
@lru_cache(maxsize=32)
def _read_plain(data: bytes) -> Entries | None:
    """Entries without details, as most are: rows of one length, which are read in one sweep."""
    rows = list(_ENTRY.iter_unpack(data))
    if any(row[8] for row in rows):
        return None
    entries = Entries(_checked(rows, []))
    entries.encoded = data
    return entries


def _checked(rows: list[tuple[Any, ...]], details: list[bytes]) -> list[Entry]:
    entries: list[Entry] = []
    expected = 0
    new, kinds = _new, _KINDS
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


EntriesField = Annotated[tuple[Entry, ...], Field(write_entries, read_entries)]


# --- envelopes and reports -----------------------------------------------------------------------

_ITEM = Struct("<HQQQII16s")
_DATA = Struct("<HQQQI16sI")
_COPIED_BYTES: Final = 65_536
ENVELOPE_BYTES: Final = _DATA.size
"""The bytes of an envelope among several beside its payload."""


class _DataFields(NamedTuple):
    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: bytes | memoryview


def _write_data(writer: Writer, data: _DataFields) -> None:
    payload = data.payload
    writer.parts += (pack(_DATA, *data.mid, data.ts, data.count, data.digest, len(payload)), payload)


def _read_data(reader: Reader) -> Data:
    pid, pe, pseq, ts, count, digest, size = reader.numbers(_DATA)
    return Data(Mid(pid, pe, pseq), ts, count, digest, reader.raw(size))


@declare(1, to=DATA_SERVER, lane=Lane.DATA, by_hand=Field(_write_data, _read_data))
class Data(_DataFields, BusMessage):
    """An envelope, from its producer to all data servers.

    A tuple and not a dataclass, for there is one for every envelope; its bytes are written by hand.
    """

    __slots__ = ()


def _write_datas(writer: Writer, datas: tuple[Data, ...]) -> None:
    """Write a count, then the fields of each, then the payloads end to end."""
    write = _DATA.pack
    writer.count(len(datas))
    try:
        rows = [
            write(pid, pe, pseq, ts, count, digest, len(payload))
            for (pid, pe, pseq), ts, count, digest, payload in datas
        ]
    except StructError as error:
        raise ValueError(f"an envelope that does not fit: {error}") from None
    writer.raw(b"".join(rows))
    writer.parts += [payload for _, _, _, _, payload in datas]


def _read_datas(reader: Reader) -> tuple[Data, ...]:
    count = reader.count(_DATA.size)
    rows = list(_DATA.iter_unpack(reader.raw(count * _DATA.size)))
    total = sum([row[6] for row in rows])
    payloads: Buffer = reader.raw(total)
    if count > 1 and total <= _COPIED_BYTES:
        # A piece of bytes costs less than a view, and does not keep its neighbours in memory.
        payloads = bytes(payloads)
    ends = accumulate([row[6] for row in rows])
    return tuple(
        [
            _new(Data, (_new(Mid, (pid, pe, pseq)), ts, count, digest, payloads[end - size : end]))
            for (pid, pe, pseq, ts, count, digest, size), end in zip(rows, ends, strict=True)
        ]
    )


Datas = Annotated[tuple[Data, ...], Field(_write_datas, _read_datas)]


class ReportItem(NamedTuple):
    """One envelope that a data server holds durably; `size` is the length of its payload."""

    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    size: int = 0


def _write_items(writer: Writer, items: tuple[ReportItem, ...]) -> None:
    write = _ITEM.pack
    writer.count(len(items))
    try:
        rows = [
            write(pid, pe, pseq, ts, count, size, digest)
            for (pid, pe, pseq), ts, count, digest, size in items
        ]
    except StructError as error:
        raise ValueError(f"an item that does not fit: {error}") from None
    writer.raw(b"".join(rows))


def _read_items(reader: Reader) -> tuple[ReportItem, ...]:
    rows = _ITEM.iter_unpack(reader.raw(reader.count(_ITEM.size) * _ITEM.size))
    return tuple(
        [
            _new(ReportItem, (_new(Mid, (pid, pe, pseq)), ts, count, digest, size))
            for pid, pe, pseq, ts, count, size, digest in rows
        ]
    )


ReportItems = Annotated[tuple[ReportItem, ...], Field(_write_items, _read_items)]


class NackReason(IntEnum):
    """Why the sequencer will not number an envelope."""

    DUPLICATE = 1
    FENCED = 2
    EXPIRED = 3
    GAP = 4
    NOT_OPEN = 6
    DIGEST = 7


class SpaceState(IntEnum):
    """The room on the primary's disk, for those who publish."""

    AMPLE = 0
    LOW = 1
    TIGHT = 2


class ServerStatus(IntEnum):
    """The standing of a commit server's disk."""

    OK = 0
    NO_SPACE = 1
    DAMAGED = 2
    # The disk is not the one that the configuration lists, and has no vote.
    AMNESIA = 3
    # The configuration is over; the refusal names the next one.
    RETIRED = 4


ReasonField = Annotated[NackReason, enum_of(NackReason)]
SpaceField = Annotated[SpaceState, enum_of(SpaceState)]
StatusField = Annotated[ServerStatus, enum_of(ServerStatus)]


# --- the order -----------------------------------------------------------------------------------


@declare(64, to=DATA_SERVER, lane=Lane.DATA)
@dataclass(frozen=True, slots=True)
class Envelopes(BusMessage):
    """Several DATA that one producer sent in one step, each as good as if it had come alone."""

    items: Datas


@declare(2, to=PRODUCER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Published(BusMessage):
    """A data server to a producer: that envelope is committed already, up to and including its pseq."""

    mid: MidField


@declare(3, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class DataReport(BusMessage):
    """A data server to the sequencer: these envelopes are durable here."""

    epoch_hint: U64
    items: ReportItems


@declare(4, to=(DATA_SERVER, PRODUCER), lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class ReportNack(BusMessage):
    """The sequencer refuses an envelope; the data server passes that on to the producer."""

    epoch: U64
    mid: MidField
    reason: ReasonField
    argument: U64 = 0


@declare(5, to=SEQUENCER, lane=Lane.CONTROL)
@dataclass(frozen=True, slots=True)
class ProducerOpen(BusMessage):
    """A node asks the sequencer to open it as a producer of this channel; idempotent per run id."""

    pid: U16
    run_id: Bytes16


@declare(6, to=PRODUCER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class ProducerOpened(BusMessage):
    """The sequencer answers a repeated `ProducerOpen`: it is committed already, as number `pe`."""

    pid: U16
    run_id: Bytes16
    pe: U64


@declare(7, to=VOTER, lane=TO_ONE, sometimes=(DATA_SERVER,))
@dataclass(frozen=True, slots=True)
class CommitSubmit(BusMessage):
    """The sequencer to the commit servers: append these behind `prev`."""

    epoch: U64
    prev: U64
    entries: EntriesField
    committed_upto: U64
    config_id: U32 = 1


@declare(8, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class CommitAcknowledge(BusMessage):
    """A commit server: my log of this epoch is durable through `last`."""

    epoch: U64
    last: U64
    status: StatusField = ServerStatus.OK


@declare(
    9,
    to=(MEMBER, LEARNER, PRODUCER),
    lane=Lane.CONTROL,
    sometimes=(DATA_SERVER, SEQUENCER, CHECKPOINT_SERVER),
    is_late=True,
)
@dataclass(frozen=True, slots=True)
class Commit(BusMessage):
    """The sequencer to all: these entries are committed."""

    epoch: U64
    entries: EntriesField
    committed_upto: U64


@declare(
    10,
    to=(
        MEMBER,
        DATA_SERVER,
        SEQUENCER,
        COMMIT_SERVER,
        CHECKPOINT_SERVER,
        JOINER,
        PRESENCE,
        PRODUCER,
        LISTENER,
    ),
    lane=Lane.CONTROL,
    is_periodic=True,
)
@dataclass(frozen=True, slots=True)
class Heartbeat(BusMessage):
    """The sequencer to all, periodically; also tells whether the primary serves, and how far it applied."""

    epoch: U64
    committed_upto: U64
    stable_checkpoint: U64
    nonce: U64
    applied: U64
    serving: Bool
    space: SpaceField = SpaceState.AMPLE


@declare(11, to=SEQUENCER, lane=TO_ONE, is_periodic=True, is_vote=True)
@dataclass(frozen=True, slots=True)
class HeartbeatAck(BusMessage):
    """A commit server answers a heartbeat, so that the sequencer knows it still leads a quorum; also tells
    how many segments its journal has while checkpoints would free some of them, else 0."""

    epoch: U64
    nonce: U64
    segments: U32 = 0


@declare(12, to=VOTER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class PreSeal(BusMessage):
    """A candidate asks whether any node still hears a sequencer (liveness only)."""

    counter: U64
    # How far the candidate has applied: a candidate that lags far behind had better not lead.
    applied: U64 = 0


@declare(13, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class PreSealOk(BusMessage):
    """A commit server has not heard a heartbeat within the suspicion time."""

    counter: U64


@declare(14, to=COMMIT_SERVER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Seal(BusMessage):
    """A candidate asks the commit servers to promise its epoch."""

    epoch: U64
    candidate_committed: U64
    config_id: U32 = 1


@declare(15, to=(SEQUENCER, JOINER), lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class SealOk(BusMessage):
    """A commit server promised the epoch (durably) and tells where its log stands."""

    epoch: U64
    log_epoch: U64
    base: U64
    last: U64
    committed_upto: U64


@declare(16, to=SEQUENCER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class SealNack(BusMessage):
    """A commit server refuses: it promised a higher epoch, or it may not vote.

    `config` is the configuration that followed the asker's, encoded, when that one is over.
    """

    promised: U64
    status: StatusField = ServerStatus.OK
    config: Bytes = b""


@declare(17, to=VOTER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchLog(BusMessage):
    """A candidate asks a commit server that promised its epoch for log entries, in pages."""

    epoch: U64
    start: U64


@declare(18, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class FetchLogReply(BusMessage):
    """Entries from `start` on; `last` tells where the log ends."""

    epoch: U64
    start: U64
    entries: EntriesField
    last: U64


@declare(19, to=VOTER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class EpochStart(BusMessage):
    """The new sequencer to a commit server: your log is your prefix below `from_seq` plus these.

    `log_epoch` is that of the adopted log. Of two logs of one epoch one is a prefix of the other, so a server
    whose log is of that epoch may keep more of it than it knows to be committed.

    A long log comes in pages, and changes nothing before the last: START_NEED asks for the next.
    """

    epoch: U64
    from_seq: U64
    entries: EntriesField
    committed_upto: U64
    log_epoch: U64 = 0
    # The configuration of this epoch: a server that knows of a later one refuses.
    config_id: U32 = 1
    # Where the log ends if more pages follow, else 0.
    through: U64 = 0


@declare(20, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class StartNeed(BusMessage):
    """A commit server cannot take a submit or a start: its log, of `log_epoch`, stands elsewhere."""

    epoch: U64
    committed_upto: U64
    last: U64
    log_epoch: U64 = 0


@declare(21, to=COMMIT_SERVER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchId(BusMessage):
    """A member asks a commit server for committed entries from number `first` on."""

    first: U64
    most: U32


@declare(22, to=(MEMBER, COMMIT_SERVER, JOINER, PRODUCER), lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchIdReply(BusMessage):
    """Committed entries; `base` tells how far back this server's log reaches."""

    entries: EntriesField
    committed_upto: U64
    base: U64


@declare(23, to=DATA_SERVER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchData(BusMessage):
    """A member asks a data server for payloads.

    Beside each id stands the first number of its entry, or 0: a data server finds delivered envelopes by
    number, and waiting ones by id.
    """

    mids: Mids
    firsts: U64s


@declare(24, to=DATA_SERVER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchDataReply(BusMessage):
    """Payloads of a data server, and the ids it does not know."""

    items: Datas
    unknown: Mids


@declare(38, to=DATA_SERVER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchRange(BusMessage):
    """A member that is far behind asks for committed entries and their payloads in one trip."""

    first: U64
    bytes_max: U32


@declare(39, to=(MEMBER, DATA_SERVER, JOINER), lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class FetchRangeReply(BusMessage):
    """Committed entries from the one that covers `first` on, with the payloads that this server has."""

    entries: EntriesField
    items: Datas
    committed_upto: U64
    base: U64


@declare(40, to=MEMBER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class ProducerStateGet(BusMessage):
    """A producer that was away for longer than the log reaches back asks a replica for its row."""

    pid: U16


@declare(41, to=PRODUCER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class ProducerState(BusMessage):
    """The row of a producer after number `upto`; all of pe up to last_pseq is committed, nothing else is."""

    pid: U16
    upto: U64
    pe: U64
    last_pseq: U64
    last_seq: U64
    previous_pe: U64
    previous_last_pseq: U64
    run_id: Bytes16


@declare(42, to=HOLDER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class CheckpointGet(BusMessage):
    """A joiner asks for a piece of the stable checkpoint at `n`; 0: for the number of the server's."""

    n: U64
    offset: U64


@declare(43, to=JOINER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class CheckpointChunk(BusMessage):
    """A piece of the checkpoint at `n`, whose whole has this digest and size; n is 0 if there is none.

    Without data it only tells which checkpoint the sender has.
    """

    n: U64
    digest: Bytes16
    size: U64
    offset: U64
    data: View
    # XXH3-128 of the data: the digest covers only the logical state.
    checksum: Bytes16 = NO_DIGEST


class Place(NamedTuple):
    """The place of a record in the holder's journal, and its envelope."""

    segment: U32
    offset: U32
    length: U32
    identity: U64


Places = Annotated[tuple[Place, ...], list_of(Layout(Place), 20)]


@declare(44, to=HOLDER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class StoredGet(BusMessage):
    """A joiner asks for the envelopes at places of the holder's journal that the checkpoint at `n` names."""

    n: U64
    places: Places


@declare(45, to=JOINER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class StoredReply(BusMessage):
    """Of the places in the question, the first ones with their envelopes, as many as fit.

    A place that is passed over cannot be read here; without any envelope, the first one cannot.
    """

    n: U64
    places: Places
    items: Datas
    is_gone: Bool = False


@declare(46, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class BatchGet(BusMessage):
    """A replica asks another for the envelopes of stored batches: some of its own are damaged.

    A batch is named by its destination and its first number, which are the same on all replicas.
    """

    destinations: U64s
    firsts: U64s


@declare(47, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class BatchReply(BusMessage):
    """Of the batches in the question, those that are stored here and can be read, as many as fit."""

    destinations: U64s
    firsts: U64s
    items: Datas


@declare(25, to=SEQUENCER, lane=TO_ONE, is_vote=True)
@dataclass(frozen=True, slots=True)
class CheckpointReport(BusMessage):
    """A checkpoint server: my checkpoint after number n is durable and has this digest.

    `took_ms` is how long its file took, without any wait for room; 0 for a file of an earlier life.
    """

    seq: U64
    digest: Bytes16
    took_ms: U64


@declare(26, to=(MEMBER, JOINER, PRESENCE, LISTENER), lane=Lane.CONTROL, is_periodic=True)
@dataclass(frozen=True, slots=True)
class Presence(BusMessage):
    """Every member to its channels, periodically: liveness and drift only, never safety."""

    name: Text
    role: Text
    applied: U64
    synchronized: Bool
    config_digest: Bytes
    load: U64
    config_id: U32 = 1


@declare(27, to=PRODUCER, lane=Lane.CONTROL, is_late=True)
@dataclass(frozen=True, slots=True)
class Applied(BusMessage):
    """The primary to all: everything through `upto` is applied and was done, but for these outcomes.

    The outcomes are those behind `after`: a node that has not heard the ones before asks (`AppliedGet`). The
    outcomes through `floor` are forgotten.
    """

    epoch: U64
    upto: U64
    exceptions: Outcomes = ()
    after: U64 = 0
    floor: U64 = 0


@declare(37, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class AppliedGet(BusMessage):
    """A producer missed the outcomes behind `after`; any replica may answer."""

    after: U64


# --- client managers and message managers --------------------------------------------------------

SESSION_DETACHED: Final = "session.detached"
"""The code of a refusal to attach a consumer: no client manager has its session, as the channel knows."""


def _write_buffers(writer: Writer, buffers: list[bytes | memoryview]) -> None:
    writer.u32(sum(map(len, buffers)))
    writer.parts.extend(buffers)


Buffers = Annotated[list[bytes | memoryview], Field(_write_buffers, lambda reader: [reader.bytes_()])]


@declare(28, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Register(BusMessage):
    """A client manager attaches a consumer at the primary; repeated on a new term.

    The client has given it a `number` in its session. A consumer `resumes` if its client or its session was
    lost to the primary in between, until a primary has attached it again. A primary answers when it has
    applied everything through `floor`, which was confirmed to clients.
    """

    consumer: U64
    session: U128
    generation: U32
    destination: U64
    subscription: U64
    selector: Text
    credit_messages: U64
    credit_bytes: U64
    held: SomeRanges = field(default_factory=Ranges)
    number: U32 = 0
    resumes: Bool = False
    # Held messages and credit are for the primary of this term.
    term: U64 = 0
    floor: U64 = 0


@declare(29, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Registered(BusMessage):
    """The primary's answer; `code` is empty when the consumer is attached.

    Of the held messages, `lost` are gone, or another's. The first answer has a number in the stream of the
    client manager, so that it comes before the messages.
    """

    consumer: U64
    term: U64
    code: Text = ""
    text: Text = ""
    lost: SomeRanges = field(default_factory=Ranges)
    stream: U64 = 0
    number: U64 = 0


@declare(30, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Unregister(BusMessage):
    """A client manager detaches a consumer; deliveries above `seen_through` never reached the application.

    A client that `is_lost` may come back: its messages are kept for a short while.
    """

    consumer: U64
    seen_through: U64
    is_lost: Bool = False
    term: U64 = 0


@declare(48, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Unregistered(BusMessage):
    """The primary's answer to `Unregister`: it has no such consumer any more."""

    consumer: U64
    term: U64


@declare(31, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class SessionDetached(BusMessage):
    """A client manager lost the client of a session; the primary lets it expire after a while.

    A primary answers when it has applied everything through `floor`, which was confirmed to clients.
    """

    session: U128
    generation: U32
    floor: U64 = 0


@declare(49, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class SessionDetachedHeard(BusMessage):
    """The primary's answer to `SessionDetached`; a session that `is_over` has ended or goes on elsewhere."""

    session: U128
    generation: U32
    term: U64
    is_over: Bool = False


class ConsumerCredit(NamedTuple):
    """The absolute credit of a consumer: deliveries and body bytes from its start.

    A consumer that `drains` wants the present messages, and is answered by `Drained`.
    """

    consumer: U64
    messages: U64
    bytes: U64
    drains: Bool = False


ConsumerCredits = Annotated[tuple[ConsumerCredit, ...], list_of(Layout(ConsumerCredit), 25)]


@declare(50, to=MESSAGE_MANAGER, lane=TO_ONE, is_periodic=True)
@dataclass(frozen=True, slots=True)
class Credits(BusMessage):
    """A client manager to the primary: the credit of these consumers, repeated until it is acknowledged.

    Without items it asks whether the primary still knows the client manager's stream. A client manager that
    `is_settled` has attached all consumers of an earlier term again. A primary takes the credit when it has
    applied everything through `floor`, which was confirmed to clients.
    """

    term: U64
    number: U64
    items: ConsumerCredits
    stream: U64 = 0
    is_settled: Bool = False
    floor: U64 = 0


def _write_offsets(writer: Writer, offsets: bytes) -> None:
    writer.bytes_(offsets)


def _read_offsets(reader: Reader) -> bytes:
    offsets = bytes(reader.bytes_())
    if offsets:
        numbers = _unpack_offsets(offsets)
        if numbers[0] or not all(map(lt, numbers, numbers[1:])):
            raise ProtocolError("the numbers of a piece do not ascend from its first one")
    return offsets


def offsets_of(numbers: Sequence[int]) -> bytes:
    """How far each of these numbers, which ascend, lies beyond the first."""
    first = numbers[0]
    return Struct(f"<{len(numbers)}H").pack(*[number - first for number in numbers])


def _unpack_offsets(offsets: bytes) -> tuple[int, ...]:
    if len(offsets) % 2:
        raise ProtocolError(f"{len(offsets)} bytes of offsets are not whole")
    return Struct(f"<{len(offsets) // 2}H").unpack(offsets)


Offsets = Annotated[bytes, Field(_write_offsets, _read_offsets)]


class Piece(NamedTuple):
    """Rows of one stored batch; `buffers` joined are the bytes of a batch.

    The rows have the numbers first_sequence … first_sequence+count-1. Those of rows that were taken here and
    there lie so far beyond the first as their `offsets` say.
    """

    first_sequence: U64
    count: U32  # type: ignore[assignment]  # a tuple has a method of that name
    redelivery_count: U32
    buffers: Buffers
    offsets: Offsets = b""

    @property
    def sequences(self) -> Sequence[int]:
        return sequences_of(self.first_sequence, self.count, self.offsets)


def sequences_of(first: int, count: int, offsets: bytes) -> Sequence[int]:
    """The numbers of the rows of a piece, ascending."""
    if not offsets:
        return range(first, first + count)
    return [first + offset for offset in _unpack_offsets(offsets)]


Pieces = Annotated[tuple[Piece, ...], list_of(Layout(Piece), 24)]


class Taker(NamedTuple):
    """A consumer of a delivery, and the number that the first message is to it.

    With the last one it has been given so many bytes of bodies since it was attached.
    """

    consumer: U64
    first_delivery: U64
    bytes_through: U64 = 0


Takers = Annotated[tuple[Taker, ...], list_of(Layout(Taker), 24)]


class Target(NamedTuple):
    """A client manager, the number of this delivery in its stream, and its takers."""

    node: U16
    number: U64
    takers: Takers
    stream: U64 = 0


Targets = Annotated[tuple[Target, ...], list_of(Layout(Target), 22)]


@declare(33, to=CLIENT_MANAGER, lane=Lane.DELIVERIES)
@dataclass(frozen=True, slots=True)
class Deliver(BusMessage):
    """The primary to one client manager or to several: messages of one destination.

    Of a family `topics` are the names of the pieces' topics; otherwise there are none.

    Each client manager has a stream of its own, numbered 1, 2, 3 … within a term. Several that need the same
    rows get one message, each under its own number. A stream is named after the run of its client manager, by
    the number of its PRODUCER_OPEN: another run, another stream.
    """

    term: U64
    destination: U64
    targets: Targets
    pieces: Pieces
    topics: Texts = ()


@declare(51, to=CLIENT_MANAGER, lane=TO_ONE, is_periodic=True)
@dataclass(frozen=True, slots=True)
class DeliverHead(BusMessage):
    """The primary to a client manager: how long its stream is, and which `Credits` were heard of.

    Sent when its end has not been acknowledged for a while, and in answer to `Credits`. Of a stream that
    `is_void` nothing comes any more, and its consumers are not attached. `sure` is the last of the `Credits`
    after whose arrival a quorum has said that it goes by no later primary.
    """

    term: U64
    number: U64
    credits_heard: U64
    stream: U64 = 0
    acknowledged: U64 = 0
    is_void: Bool = False
    sure: U64 = 0


@declare(52, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class DeliverAck(BusMessage):
    """A client manager to the primary: its stream came whole through `upto`; beyond, these are missing."""

    term: U64
    upto: U64
    missing: SomeRanges = field(default_factory=Ranges)
    stream: U64 = 0


@declare(34, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class ConsumerEnded(BusMessage):
    """The primary closed a consumer (its destination or session went away)."""

    consumer: U64
    term: U64
    code: Text
    text: Text
    stream: U64 = 0
    number: U64 = 0


@declare(65, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Drained(BusMessage):
    """The primary's answer to a credit that `drains`: there was no more for the consumer.

    Its credit through delivery number `through` is used up.
    """

    consumer: U64
    term: U64
    through: U64
    stream: U64 = 0
    number: U64 = 0


@declare(60, to=MESSAGE_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class RangeRequest(BusMessage):
    """A client manager asks a replica for the stored messages of some destinations between two numbers.

    `floor` is the highest number that this client manager confirmed. `since` goes with `destinations`: losses
    before do not count. For the rest see the frame `RangeRead`.
    """

    request: U64
    floor: U64
    start: U64
    stop: U64
    goal: U64
    page_bytes: U32
    ahead: U16
    ahead_from: U64
    allow_lost: Bool
    acks: Bool
    destinations: U64s
    since: U64s
    live: Bool = False


@declare(61, to=CLIENT_MANAGER, lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class RangeReply(BusMessage):
    """A replica's answer: the bytes of a page, for the client alone. `code` is empty if there is no error."""

    request: U64
    page: Buffers
    code: Text = ""
    text: Text = ""


class About(IntEnum):
    """The subject of a question, which decides who answers it."""

    NAMES = 0
    """Names and sessions: the primary, as others may not know them yet; or `anybody`."""
    RANGES = 1
    """Stored messages of a channel: any replica."""
    NODE = 2
    """The node that is asked."""


AboutField = Annotated[About, enum_of(About)]


@declare(66, to=(MESSAGE_MANAGER, NODE), lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Query(BusMessage):
    """A question to a replica or a node, as JSON.

    A replica answers from a state not before number `floor`; after `wait_ms`, or as soon as there is news.
    """

    request: U64
    about: AboutField
    question: Document
    floor: U64 = 0
    wait_ms: U32 = 0
    anybody: Bool = True


@declare(67, to=(CLIENT_MANAGER, NODE), lane=TO_ONE)
@dataclass(frozen=True, slots=True)
class Reply(BusMessage):
    """The answer, as JSON: an empty object if there is no such thing. `code` is empty without an error."""

    request: U64
    about: AboutField
    answer: Document
    code: Text = ""
    text: Text = ""


@declare(57, to=CLIENT_MANAGER, lane=Lane.CONTROL)
@dataclass(frozen=True, slots=True)
class Advertised(BusMessage):
    """The system channel's primary to all client managers: these names live in these channels from now on.

    A client manager that misses it asks when it needs to know.
    """

    names: Texts
    channels: Texts


@declare(58, to=CLIENT_MANAGER, lane=Lane.CONTROL)
@dataclass(frozen=True, slots=True)
class InDoubt(BusMessage):
    """A participant's primary to all client managers: this transaction has been prepared here for a while.

    A client manager asks channel `home` for the decision, and has it carried out here.
    """

    session: U128
    transaction: U64
    home: Text
    messages: U32


@declare(59, to=CLIENT_MANAGER, lane=Lane.CONTROL)
@dataclass(frozen=True, slots=True)
class Unfinished(BusMessage):
    """The home channel's primary to all client managers: this commit is not known to be complete.

    A client manager has it carried out in `channels`, which get so many `messages`, and then reports that.
    """

    session: U128
    transaction: U64
    channels: Texts
    messages: U32s
