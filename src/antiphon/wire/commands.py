"""Commands: a header of 48 bytes and a payload, ordered by the bus and applied by the fold.

An envelope's payload is commands end to end; a command passes the client manager, the bus, the journal and
the fold as the same bytes, and on that way only its header is read.

    kind u8, flags u8, reserved u16, length u32 (of the payload), count u32,
    generation u32, number u64, confirmed_through u64, session 16 bytes

`count` is how many numbers of the log the command takes: the messages of a publish, or those that a commit
makes visible, else 1. `number` counts within (session, channel): 1, 2, 3 and so on, by as many as the command
takes. Commands of a client manager for a session (open, resume, close, prepare, decide) have number 0, as
have the node's own commands, under session 0.

Outcomes are here, too: the results of commands, as the fold tells them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import starmap
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, TypeVar

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.layout import (
    I64,
    U8,
    U16,
    U32,
    U64,
    U128,
    Bool,
    Field,
    Rest,
    SomeRanges,
    Text,
    enum_of,
)
from antiphon.wire.payload import AnnotatedPayload
from antiphon.wire.primitives import Buffer, Reader, Writer, encode_u128, pack
from antiphon.wire.transactions import (
    STAGED_MESSAGES_MAX,
    TRANSACTION_MESSAGES_MAX,
    CommitTransaction,
    DecideTransaction,
    DropStaged,
    FinishTransaction,
    ForgetTransaction,
    PrepareTransaction,
    ResolveTransaction,
    RollBackTransaction,
    StagedPublish,
    TransactedPublish,
)


class CommandKind(IntEnum):
    SESSION_OPEN = 1
    SESSION_RESUME = 2
    SESSION_CLOSE = 3
    PUBLISH = 4
    ACK = 5
    RETURN = 6
    CREATE = 7
    DELETE = 8
    SESSION_EXPIRE = 9
    LOG_TIME = 10
    SUBSCRIBE = 11
    UNSUBSCRIBE = 12
    PLACE = 13
    TX_PUBLISH = 14
    TX_COMMIT = 15
    TX_ROLLBACK = 16
    TX_PREPARE = 17
    TX_DECIDE = 18
    TX_FINISH = 19
    TX_RESOLVE = 20
    TX_FORGET = 21
    STAGE = 22
    DROP_STAGED = 23
    HOLD = 24
    RELEASE = 25
    EXPIRE = 26
    DEAD = 27
    SKIP = 28
    ALTER = 29
    PURGE = 30
    DROP = 31
    CLAIM_ID = 40
    RELEASE_ID = 41
    EXPIRE_ID = 42
    CREATE_TEMPORARY = 50
    MATCH = 60
    LOG_EVENTS = 70


COMMAND_FLAGS_KNOWN = 0
PUBLISH_FLAGS_KNOWN = 0
"""No flags have a meaning yet. Admission refuses an unknown flag: replicas of different age would otherwise
disagree on what a command did."""

PUBLISH_COUNT_MAX = 65_536
RANGES_MAX = 16_384
"""Ranges in one command of a client; more take several commands."""
NODE_SESSION = 0

_HEADER = struct.Struct("<BBHIIIQQ16s")
COMMAND_HEADER_SIZE = _HEADER.size
NUMBER_AT = 16
"""The offset of the number in a header, in 8 bytes."""

# The two fields that differ when a command is sent again.
_GENERATION, _GENERATION_OFFSET = struct.Struct("<I"), 12
_CONFIRMED, _CONFIRMED_OFFSET = struct.Struct("<Q"), 24

_PUBLISH_HEAD = struct.Struct("<QII")
PUBLISH_BATCH_OFFSET = COMMAND_HEADER_SIZE + _PUBLISH_HEAD.size
"""Where a publish command's batch begins, counted from the command's first byte."""

# Plain numbers: looking up a member of an enum costs as much as reading a field.
_PUBLISH = int(CommandKind.PUBLISH)
_NUMBER_END = 1 << 64
_KINDS = frozenset(int(kind) for kind in CommandKind)
UNNUMBERED = frozenset((1, 2, 3, 17, 18))
"""Commands of a client manager for a session: they have no number of the session's."""
OF_THE_NODE = frozenset((9, 10, 13, 19, 20, 21, 26, 27, 28, 31, 60, 70))
"""Commands that only a node may ask for, never a session."""
# How many numbers a command of this kind may take, if not exactly one.
_COUNT_MAX = {
    _PUBLISH: PUBLISH_COUNT_MAX,
    int(CommandKind.TX_COMMIT): TRANSACTION_MESSAGES_MAX,
    int(CommandKind.TX_DECIDE): STAGED_MESSAGES_MAX,
    int(CommandKind.TX_FINISH): STAGED_MESSAGES_MAX,
    int(CommandKind.DEAD): PUBLISH_COUNT_MAX,
    int(CommandKind.LOG_EVENTS): PUBLISH_COUNT_MAX,
}
_NO_SESSION = bytes(16)


class CommandHeader(NamedTuple):
    kind: int
    flags: int
    length: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    generation: int
    number: int
    confirmed_through: int
    session: int


def iterate_commands(data: Buffer, offset: int = 0) -> Iterator[tuple[CommandHeader, memoryview, int]]:
    """(header, payload, offset of the header) of commands that stand end to end, from an offset on."""
    view = memoryview(data)
    end = len(view)
    unpack_header, from_bytes, new = _HEADER.unpack_from, int.from_bytes, tuple.__new__
    while offset < end:
        start = offset + COMMAND_HEADER_SIZE
        if start > end:
            raise ProtocolError(f"a command at {offset} ends at {end}, inside its header")
        kind, flags, reserved, length, count, generation, number, confirmed, session = unpack_header(
            view, offset
        )
        stop = start + length
        if stop > end:
            raise ProtocolError(f"a command at {offset} announces {length} bytes, {end - start} are left")
        fault = _fault_of(kind, flags | reserved << 8, count, number, session == _NO_SESSION)
        if fault is not None:
            raise ProtocolError(f"a command at {offset}: {fault}")
        fields = (kind, flags, length, count, generation, number, confirmed, from_bytes(session, "little"))
        # Past the NamedTuple's own constructor, which would take about a quarter of the walk.
        header = new(CommandHeader, fields)
        yield header, view[start:stop], offset
        offset = stop


def read_command(data: Buffer) -> tuple[CommandHeader, memoryview]:
    """Exactly one command, as a client sends it."""
    view = memoryview(data)
    if len(view) >= COMMAND_HEADER_SIZE:
        kind, flags, reserved, length, count, generation, number, confirmed, session = _HEADER.unpack_from(
            view
        )
        fault = _fault_of(kind, flags | reserved << 8, count, number, session == _NO_SESSION)
        if fault is None and COMMAND_HEADER_SIZE + length == len(view):
            who = int.from_bytes(session, "little")
            fields = (kind, flags, length, count, generation, number, confirmed, who)
            return tuple.__new__(CommandHeader, fields), view[COMMAND_HEADER_SIZE:]
    # A walk in slow steps finds the fault.
    for header, payload, _ in iterate_commands(data):
        if COMMAND_HEADER_SIZE + header.length != len(data):
            raise ProtocolError("more than one command where one belongs")
        return header, payload
    raise ProtocolError("no command where one belongs")


def count_of(data: Buffer) -> int:
    """The numbers that the commands take together."""
    view = data if type(data) is bytes else memoryview(data)
    end = len(view)
    offset = total = 0
    unpack_header = _HEADER.unpack_from
    while offset + COMMAND_HEADER_SIZE <= end:
        kind, flags, reserved, length, count, _, number, _, session = unpack_header(view, offset)
        offset += COMMAND_HEADER_SIZE + length
        if offset <= end and kind == _PUBLISH and count == 1 and not (flags or reserved):
            # By far the most there are; of these little can be wrong.
            is_sound = number > 0 and session != _NO_SESSION
        else:
            is_sound = offset <= end and not _fault_of(
                kind, flags | reserved << 8, count, number, session == _NO_SESSION
            )
        if not is_sound:
            offset = -1
            break
        total += count
    if offset != end:
        # A walk in slow steps finds the fault.
        total = sum(header.count for header, _, _ in iterate_commands(data))
    return total


def _fault_of(kind: int, flags: int, count: int, number: int, is_of_node: bool) -> str | None:
    """The fault of a header, in words; None if there is none."""
    if kind not in _KINDS:
        return f"kind {kind} is not known"
    if flags & ~COMMAND_FLAGS_KNOWN:
        return "bits are set that have no meaning"
    if count != 1 and not 0 < count <= _COUNT_MAX.get(kind, 1):
        return f"it cannot take {count} numbers"
    if is_of_node:
        if kind in UNNUMBERED:
            return "it names no session"
        if number:
            return "the node's own commands have no number"
    elif kind in OF_THE_NODE:
        return "a session may not ask for this"
    elif (number == 0) != (kind in UNNUMBERED):
        return f"number {number} does not fit its kind"
    if number + count > _NUMBER_END:
        return "its numbers do not fit 64 bits"
    return None


def encode_header(
    kind: int,
    session: int,
    generation: int,
    number: int,
    confirmed_through: int,
    length: int,
    count: int = 1,
    flags: int = 0,
) -> bytes:
    fault = _fault_of(kind, flags, count, number, session == NODE_SESSION)
    if fault is not None:
        raise ValueError(f"command of kind {kind}: {fault}")
    return pack(
        _HEADER, kind, flags, 0, length, count, generation, number, confirmed_through, encode_u128(session)
    )


def renew_header(command: Buffer, generation: int, confirmed_through: int) -> bytes:
    """The bytes of a command as they are sent in a later generation."""
    renewed = bytearray(command)
    _GENERATION.pack_into(renewed, _GENERATION_OFFSET, generation)
    _CONFIRMED.pack_into(renewed, _CONFIRMED_OFFSET, confirmed_through)
    return bytes(renewed)


def encode_command(
    kind: int,
    session: int,
    generation: int,
    number: int,
    confirmed_through: int,
    payload: Buffer,
    count: int = 1,
    flags: int = 0,
) -> bytes:
    header = encode_header(kind, session, generation, number, confirmed_through, len(payload), count, flags)
    return b"".join((header, payload))


def publish_buffers(
    session: int,
    generation: int,
    number: int,
    confirmed_through: int,
    destination: int,
    settings_version: int,
    batch: Sequence[Buffer],
    count: int,
) -> list[Buffer]:
    """A whole publish command around the buffers of a batch, which are not copied."""
    head = pack(_PUBLISH_HEAD, destination, settings_version, 0)
    length = len(head) + sum(map(len, batch))
    header = encode_header(_PUBLISH, session, generation, number, confirmed_through, length, count)
    return [header + head, *batch]


# Payloads. Their order of fields is their format.


class Publish(NamedTuple):
    """Store the rows of a batch in a destination; a tuple, for there is one for every publish."""

    destination: int
    settings_version: int
    flags: int
    batch: Buffer

    def encode(self) -> bytes:
        head = pack(_PUBLISH_HEAD, self.destination, self.settings_version, self.flags)
        return b"".join((head, self.batch))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        if len(data) < _PUBLISH_HEAD.size:
            raise ProtocolError(f"a publish of {len(data)} bytes")
        destination, settings_version, flags = _PUBLISH_HEAD.unpack_from(data)
        if flags & ~PUBLISH_FLAGS_KNOWN:
            raise ProtocolError("a publish with bits set that have no meaning")
        view = data if type(data) is memoryview else memoryview(data)
        # Past the NamedTuple's own constructor, as in `iterate_commands`.
        return tuple.__new__(cls, (destination, settings_version, flags, view[_PUBLISH_HEAD.size :]))


def _read_ranges(reader: Reader) -> Ranges:
    return Ranges.decode(reader.rest())


def _write_ranges(writer: Writer, ranges: Ranges) -> None:
    try:
        writer.raw(ranges.encode())
    except struct.error as error:
        raise ValueError(f"ranges that do not fit: {error}") from None


RangesToEnd = Annotated[Ranges, Field(_write_ranges, _read_ranges)]


class StartKind(IntEnum):
    LATEST = 0
    EARLIEST = 1
    NUMBER = 2


_START_KIND_MAX = max(StartKind)


def _read_start_kind(reader: Reader) -> StartKind:
    kind = reader.u8()
    if kind > _START_KIND_MAX:
        raise ProtocolError(f"start {kind} is not known")
    return StartKind(kind)


StartKindField = Annotated[StartKind, Field(Writer.u8, _read_start_kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession(AnnotatedPayload):
    """Begin a session of this user and connection; the first command of a session in a channel."""

    user: Text
    client_id: Text
    connection: U128 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSession(AnnotatedPayload):
    """Go on with the header's session under the header's generation, which voids all lower ones.

    `known` is the generation under which the channel knew the session, as the client heard. If the channel
    knows only a lower one, the session has ended since, and a late opening has made another one.
    """

    known: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession(AnnotatedPayload):
    """Forget the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(AnnotatedPayload):
    """Remove these numbers from the queue, or from the subscription when it is not 0."""

    destination: U64
    subscription: U64
    ranges: RangesToEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Return(AnnotatedPayload):
    """Make these numbers ready again; `counted` if this counts as a failed delivery.

    `rejected`: they are not to be delivered again. The primary has them moved to the dead queue.
    """

    destination: U64
    subscription: U64
    counted: Bool
    rejected: Bool = False
    ranges: RangesToEnd


class DeadReason(IntEnum):
    """Why a message is dead."""

    LIMIT = 1
    REJECTED = 2
    EXPIRED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BuryMessages(AnnotatedPayload):
    """Take dead messages from a queue or subscription, and store `batch` in the dead queue `target`.

    The batch has a row for each of the numbers, in their order; the rows take the numbers of this command.
    Without a target the messages are dropped, and there is no batch. Void in another term. Refused if one of
    the numbers is not there any more, or is locked.
    """

    destination: U64
    subscription: U64
    reason: Annotated[DeadReason, enum_of(DeadReason)]
    term: U64
    target: U64
    numbers: SomeRanges
    batch: Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterDestination(AnnotatedPayload):
    """Change these settings of a destination (canonical JSON); the others stay."""

    destination: U64
    settings: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeDestination(AnnotatedPayload):
    """Drop all messages that a queue has, or a topic has for its subscriptions and for retention."""

    destination: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDestination(AnnotatedPayload):
    """Make a destination; the settings are canonical JSON, understood by the message manager."""

    kind: U8
    name: Text
    settings: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTemporary(AnnotatedPayload):
    """Make a destination that lives with the header's session; its id is the number of this command."""

    kind: U8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDestination(AnnotatedPayload):
    destination: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSession(AnnotatedPayload):
    """Forget a session that has been away too long, unless it has been resumed since.

    `pid` and `pe` are the client manager that had the session when its end was proposed, 0 for none: a client
    manager that was taken for dead and comes back resumes the session in the same generation.
    """

    session: U128
    generation: U32
    pid: U16
    pe: U64
    term: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTime(AnnotatedPayload):
    """Move the channel's log time."""

    time_ms: I64
    term: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireMessages(AnnotatedPayload):
    """Remove messages whose time is over by log time, from the queue or from all subscriptions."""

    destination: U64
    term: U64
    ranges: RangesToEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class DropMessages(AnnotatedPayload):
    """Remove non-persistent messages that a consumer may have seen, from the queue or the subscription."""

    destination: U64
    subscription: U64
    term: U64
    ranges: RangesToEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(AnnotatedPayload):
    """Begin a subscription to a topic; its id is the number of this command.

    A durable or shared subscription is known by its client id and name. An existing one is answered by
    EXISTS with its id, or by DIFFERS when it has another topic or selector. A subscription that is not
    durable ends with the last of its sessions: each Subscribe joins it, and an Unsubscribe leaves. `number`
    counts for StartKind.NUMBER only. `no_local`: without what the own connection publishes; of a durable
    subscription, what any connection of its client id does.
    """

    destination: U64
    durable: Bool
    shared: Bool
    name: Text
    client_id: Text
    start: StartKindField
    number: U64
    selector: Text = ""
    no_local: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe(AnnotatedPayload):
    subscription: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipMessages(AnnotatedPayload):
    """Pass over the messages of a topic that the selector of a subscription does not want."""

    subscription: U64
    term: U64
    ranges: RangesToEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTopics(AnnotatedPayload):
    """Decide which topics with ids above `after`, up to `through`, belong to a family: those of these ids.

    Void in another term, or if the family was decided through another id meanwhile.
    """

    family: U64
    term: U64
    after: U64
    through: U64
    topics: RangesToEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceDestination(AnnotatedPayload):
    """Place a destination of this name in this channel; ordered in the system channel only.

    A name that has a placement keeps it: EXISTS, and the text of the outcome is the channel. A spanning
    destination has a list of channels, such as `a,b`, which it keeps: so its `settings` are given, too, and
    impossible ones are refused here.
    """

    name: Text
    channel: Text
    settings: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimClientId(AnnotatedPayload):
    """Give a client id to a connection of this client manager; ordered in the system channel only.

    EXISTS: another connection has it; `original` is 1 if that connection is lost. STALE: the connection goes
    on elsewhere, in a higher generation.
    """

    client_id: Text
    connection: U128
    generation: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseClientId(AnnotatedPayload):
    """The connection is over; or it `is_lost`, and the client id is kept for it for a while."""

    client_id: Text
    connection: U128
    generation: U32
    is_lost: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireClientId(AnnotatedPayload):
    """Free the client id of a connection that has been lost for too long, unless it has come back since."""

    client_id: Text
    connection: U128
    generation: U32
    term: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvents(AnnotatedPayload):
    """Store events of a node in the channel's part of `topic:_LOG`; refused if there is none.

    The rows of the batch take the numbers of this command.
    """

    batch: Rest


Payload: TypeAlias = (
    OpenSession
    | ResumeSession
    | CloseSession
    | Publish
    | Acknowledge
    | Return
    | CreateDestination
    | CreateTemporary
    | DeleteDestination
    | ExpireSession
    | LogTime
    | Subscribe
    | Unsubscribe
    | PlaceDestination
    | TransactedPublish
    | CommitTransaction
    | RollBackTransaction
    | PrepareTransaction
    | DecideTransaction
    | FinishTransaction
    | ResolveTransaction
    | ForgetTransaction
    | StagedPublish
    | DropStaged
    | Hold
    | ReleaseHold
    | ExpireMessages
    | BuryMessages
    | AlterDestination
    | PurgeDestination
    | SkipMessages
    | DropMessages
    | ClaimClientId
    | ReleaseClientId
    | ExpireClientId
    | MatchTopics
    | LogEvents
)

_PAYLOADS: dict[int, type[Any]] = {
    CommandKind.SESSION_OPEN: OpenSession,
    CommandKind.SESSION_RESUME: ResumeSession,
    CommandKind.SESSION_CLOSE: CloseSession,
    CommandKind.PUBLISH: Publish,
    CommandKind.ACK: Acknowledge,
    CommandKind.RETURN: Return,
    CommandKind.CREATE: CreateDestination,
    CommandKind.DELETE: DeleteDestination,
    CommandKind.SESSION_EXPIRE: ExpireSession,
    CommandKind.LOG_TIME: LogTime,
    CommandKind.SUBSCRIBE: Subscribe,
    CommandKind.UNSUBSCRIBE: Unsubscribe,
    CommandKind.PLACE: PlaceDestination,
    CommandKind.TX_PUBLISH: TransactedPublish,
    CommandKind.TX_COMMIT: CommitTransaction,
    CommandKind.TX_ROLLBACK: RollBackTransaction,
    CommandKind.TX_PREPARE: PrepareTransaction,
    CommandKind.TX_DECIDE: DecideTransaction,
    CommandKind.TX_FINISH: FinishTransaction,
    CommandKind.TX_RESOLVE: ResolveTransaction,
    CommandKind.TX_FORGET: ForgetTransaction,
    CommandKind.STAGE: StagedPublish,
    CommandKind.DROP_STAGED: DropStaged,
    CommandKind.HOLD: Hold,
    CommandKind.RELEASE: ReleaseHold,
    CommandKind.EXPIRE: ExpireMessages,
    CommandKind.DEAD: BuryMessages,
    CommandKind.ALTER: AlterDestination,
    CommandKind.PURGE: PurgeDestination,
    CommandKind.SKIP: SkipMessages,
    CommandKind.DROP: DropMessages,
    CommandKind.CLAIM_ID: ClaimClientId,
    CommandKind.RELEASE_ID: ReleaseClientId,
    CommandKind.EXPIRE_ID: ExpireClientId,
    CommandKind.CREATE_TEMPORARY: CreateTemporary,
    CommandKind.MATCH: MatchTopics,
    CommandKind.LOG_EVENTS: LogEvents,
}
_KIND_OF: dict[type[Any], CommandKind] = {cls: CommandKind(kind) for kind, cls in _PAYLOADS.items()}


def decode_payload(kind: int, data: Buffer) -> Payload:
    cls = _PAYLOADS.get(kind)
    if cls is None:
        raise ProtocolError(f"command kind {kind} is not known")
    payload: Payload = cls.decode(data)
    return payload


def kind_of(payload: Payload) -> CommandKind:
    return _KIND_OF[type(payload)]


# Outcomes.


class OutcomeCode(IntEnum):
    APPLIED = 0
    DUPLICATE = 1
    NO_DESTINATION = 2
    REFUSED = 3
    STALE = 4
    GAP = 5
    TX_ROLLED_BACK = 6
    ACK_LOST = 7
    SESSION_UNKNOWN = 8
    EXISTS = 9
    OUTDATED = 10
    FORGOTTEN = 11
    DIFFERS = 12
    KNOWN = 13
    TAKEN = 14


class Outcome(NamedTuple):
    """The result of the numbers first .. first + count - 1.

    `original` is the first command's number for a DUPLICATE; for KNOWN it is the number of the first message
    with the same id of the application, and the numbers for the other rows follow; the first lost number for
    ACK_LOST, the id of the existing thing for EXISTS (or `text` is its channel) and for DIFFERS, which has
    another topic or selector, and the number that must have been heard of for OUTDATED; else 0. FORGOTTEN:
    the command was applied or refused before, and it is unknown which.

    TAKEN is no outcome, and never in the log: a client manager has non-persistent messages, and their sender
    need not wait for the outcome.
    """

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    code: int
    original: int = 0
    text: str = ""


class ConfirmItem(NamedTuple):
    """An outcome for a client in its session's numbers; `sequence` is the first one's place in the log."""

    number: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    code: int
    sequence: int = 0
    text: str = ""


Row = TypeVar("Row", Outcome, ConfirmItem)

_ROW = struct.Struct("<QIBQ")
_ROW_CODE_OFFSET = 12
_CODE_MAX = max(OutcomeCode)
_TEXT_BYTES_MIN = 4 + 2


def write_outcomes(writer: Writer, rows: Sequence[Row]) -> None:
    """Write all rows in fixed width, then the texts of the few that have one: [u32 row, text]."""
    writer.count(len(rows))
    writer.parts.extend([pack(_ROW, first, count, code, where) for first, count, code, where, _ in rows])
    texts = [(index, row.text) for index, row in enumerate(rows) if row.text]
    writer.count(len(texts))
    for index, text in texts:
        writer.u32(index)
        writer.text(text)


def read_outcomes(reader: Reader, make: Callable[..., Row]) -> tuple[Row, ...]:
    """The rows that `write_outcomes` wrote, each made by `Outcome` or `ConfirmItem`."""
    count = reader.count(_ROW.size)
    data = reader.raw(count * _ROW.size)
    if count and max(data[_ROW_CODE_OFFSET :: _ROW.size]) > _CODE_MAX:
        raise ProtocolError("an outcome that is not known")
    rows = list(starmap(make, _ROW.iter_unpack(data)))
    before = -1
    for _ in range(reader.count(_TEXT_BYTES_MIN)):
        index = reader.u32()
        text = reader.text()
        if not before < index < count or not text:
            raise ProtocolError(f"the text of outcome {index} of {count} is out of place or empty")
        rows[index] = rows[index]._replace(text=text)
        before = index
    return tuple(rows)
