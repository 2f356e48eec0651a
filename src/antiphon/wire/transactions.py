"""The commands of transactions, and of staged parts; see docs/design/transactions.md.

A transaction is named by its session and a number that its client counts: 1, 2, 3 and so on. In each channel
it has a *part*: the batches stored for it, and the messages that it acknowledges.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Self

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.layout import U32, U64, U128, Bool, Field, Text, list_of
from antiphon.wire.payload import AnnotatedPayload
from antiphon.wire.primitives import Buffer, Reader, Writer, encode_text, encode_u128, pack

TRANSACTED_NUMBER: Final = 1 << 63
"""Set in the numbers of messages that were sent in a transaction, or staged: their command takes one number
for all of them, so their ids are counted apart, in each (session, channel).
"""

TRANSACTION_MESSAGES_MAX: Final = 131_072
"""Messages of a transaction in one channel."""

STAGED_MESSAGES_MAX: Final = 16_777_216
"""Messages of staged parts that a commit may bring to one channel. The cost is by batches, not by messages;
and a Spark batch must fit, for it cannot be cut in two."""

TRANSACTION_BYTES_MAX: Final = 256 << 20
"""Bytes of a transaction's batches in one channel."""

STAGED_BYTES_MAX: Final = 4 << 30
"""Bytes that one application may have staged in one channel."""

STAGED_SECONDS_MAX: Final = 7 * 86_400

_TRANSACTED_HEAD = struct.Struct("<QIIQII")
_STAGED_HEAD = struct.Struct("<16sIIIQIIH")


class TransactedPublish(NamedTuple):
    """Store a batch that becomes visible when its transaction commits.

    `index` counts the batches of the transaction in this channel: a part that lost some never looks whole.
    """

    transaction: int
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    rows: int
    destination: int
    settings_version: int
    flags: int
    batch: Buffer

    def encode(self) -> bytes:
        return b"".join((pack(_TRANSACTED_HEAD, *self[:6]), self.batch))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        if len(data) < _TRANSACTED_HEAD.size:
            raise ProtocolError(f"a transacted publish of {len(data)} bytes")
        *numbers, flags = _TRANSACTED_HEAD.unpack_from(data)
        if flags:
            raise ProtocolError("a transacted publish with bits set that have no meaning")
        return cls._make((*numbers, flags, memoryview(data)[_TRANSACTED_HEAD.size :]))


class StagedPublish(NamedTuple):
    """Store a batch for an application that writes outside of sessions; see `CommitTransaction.staged`.

    The writer makes up the number `part`, which is kept for `seconds` of log time. `index` counts the batches
    of the part in this channel.
    """

    part: int
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    rows: int
    seconds: int
    destination: int
    settings_version: int
    flags: int
    application: str
    batch: Buffer

    def encode(self) -> bytes:
        name = encode_text(self.application)
        head = pack(_STAGED_HEAD, encode_u128(self.part), *self[1:7], len(name) - 2)
        return b"".join((head, name[2:], self.batch))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        view = memoryview(data)
        if len(view) < _STAGED_HEAD.size:
            raise ProtocolError(f"a staged publish of {len(view)} bytes")
        part, *numbers, flags, length = _STAGED_HEAD.unpack_from(view)
        start = _STAGED_HEAD.size + length
        if flags or start > len(view):
            raise ProtocolError("a staged publish that ends early, or has bits set that have no meaning")
        try:
            application = str(view[_STAGED_HEAD.size : start], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the name of an application is not UTF-8: {error.reason}") from None
        return cls._make((int.from_bytes(part, "little"), *numbers, flags, application, view[start:]))


class Consumed(NamedTuple):
    """Messages of a queue, or of a subscription when it is not 0, that a transaction acknowledges."""

    destination: int
    subscription: int
    numbers: Ranges


def write_consumed(writer: Writer, consumed: Consumed) -> None:
    writer.u64(consumed.destination)
    writer.u64(consumed.subscription)
    writer.bytes_(consumed.numbers.encode())


def read_consumed(reader: Reader) -> Consumed:
    return Consumed(reader.u64(), reader.u64(), Ranges.decode(reader.bytes_()))


class Participant(NamedTuple):
    """A channel with a part of a transaction, and the number of messages in that."""

    channel: str
    messages: int


def _write_participant(writer: Writer, participant: Participant) -> None:
    writer.text(participant.channel)
    writer.u32(participant.messages)


def _read_participant(reader: Reader) -> Participant:
    return Participant(reader.text(), reader.u32())


AllConsumed = Annotated[tuple[Consumed, ...], list_of(Field(write_consumed, read_consumed), 20)]
Participants = Annotated[tuple[Participant, ...], list_of(Field(_write_participant, _read_participant), 6)]
Parts = Annotated[tuple[int, ...], list_of(Field(Writer.u128, Reader.u128), 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransaction(AnnotatedPayload):
    """Commit a transaction all of which is in this channel: a command of the client, in one phase.

    The commit takes as many numbers as it makes messages visible, one if none. TX_ROLLED_BACK unless all
    `batches` with all `messages` are stored, and all consumed messages are there and not locked.
    """

    transaction: U64
    batches: U32
    messages: U32
    consumed: AllConsumed


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackTransaction(AnnotatedPayload):
    """Drop the open part of a transaction, if there is one: a command of the client."""

    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareTransaction(AnnotatedPayload):
    """Promise to commit this channel's part, whatever happens, until channel `home` has decided.

    The client manager sends this in the name of the session. TX_ROLLED_BACK: there is no promise.
    """

    transaction: U64
    home: Text
    batches: U32
    messages: U32
    consumed: AllConsumed
    staged: Parts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideTransaction(AnnotatedPayload):
    """Decide in the home channel: commit, if its own part can be, which takes effect there at once.

    All `participants` are prepared. The first decision holds, and is told again. A commit of an `application`
    has a `version`: if that version, or a later one, was committed before, this is a DUPLICATE.
    """

    transaction: U64
    batches: U32
    messages: U32
    consumed: AllConsumed
    staged: Parts = ()
    participants: Participants
    application: Text = ""
    version: U64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTransaction(AnnotatedPayload):
    """Carry out the home channel's decision in a participant; repeated, the command does nothing.

    A commit takes as many numbers as it makes messages visible, one if none.
    """

    session: U128
    transaction: U64
    commits: Bool
    messages: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveTransaction(AnnotatedPayload):
    """Ask for the home channel's decision; without one the home decides to roll back (TX_ROLLED_BACK)."""

    session: U128
    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTransaction(AnnotatedPayload):
    """Forget a decision to commit: every participant has carried it out."""

    session: U128
    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStaged(AnnotatedPayload):
    """Drop staged parts that are not committed: a command of the client."""

    parts: Parts
