"""The commands of transactions, and of what is staged; docs/design/transactions.md tells how they work.

A transaction is named by its session and a number that its client counts: 1, 2, 3 and so on. In each channel
it has a *part*: the batches that were stored for it, and the messages that it acknowledges.
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
"""Set in the numbers of messages that were sent in a transaction, or staged.

Their command takes one number, whatever it holds; so their ids are counted apart, in each (session, channel).
"""

TRANSACTION_MESSAGES_MAX: Final = 131_072
"""Messages that one session's transaction may bring to one channel."""

STAGED_MESSAGES_MAX: Final = 16_777_216
"""Messages that one commit of staged parts may bring to one channel. Its work is by the batch, not by the
message; and what a Spark batch has must fit, for it cannot be cut in two."""

TRANSACTION_BYTES_MAX: Final = 256 << 20
"""Bytes of batches that one transaction may bring to one channel."""

STAGED_BYTES_MAX: Final = 4 << 30
"""Bytes that one application may have staged in one channel."""

STAGED_SECONDS_MAX: Final = 7 * 86_400

_TRANSACTED_HEAD = struct.Struct("<QIIQII")
_STAGED_HEAD = struct.Struct("<16sIIIQIIH")


class TransactedPublish(NamedTuple):
    """Store a batch that becomes visible when its transaction commits.

    `index` says how many batches of the transaction went to this channel before: so a part that was rolled
    back halfway never looks whole.
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

    `part` is whatever number the writer made up. It is kept for `seconds` of log time. `index` counts the
    batches of the part in this channel.
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
    """A channel that has a part of a transaction, and how many messages it gets by it."""

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

    It takes as many numbers as it makes messages visible, one if none. TX_ROLLED_BACK unless all `batches`
    with all `messages` are stored, and all that was consumed is there and nobody else's.
    """

    transaction: U64
    batches: U32
    messages: U32
    consumed: AllConsumed


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackTransaction(AnnotatedPayload):
    """Drop what is stored for an open transaction: a command of the client. What is not there is fine."""

    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareTransaction(AnnotatedPayload):
    """Promise to commit this channel's part, whatever happens, until channel `home` has decided.

    Said by the client manager in the name of the session. TX_ROLLED_BACK if it cannot be promised.
    """

    transaction: U64
    home: Text
    batches: U32
    messages: U32
    consumed: AllConsumed
    staged: Parts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideTransaction(AnnotatedPayload):
    """The decision, in the home channel: commit, if its own part can be. It takes effect there at once.

    All `participants` are prepared. Whatever was decided first holds, and is told again. A commit of an
    `application` has a `version`: if that one, or a later one, was committed before, this is a DUPLICATE.
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
    """Carry out in a participant what the home channel has decided. It is done once; again, it does nothing.

    A commit takes as many numbers as it makes messages visible, one if none.
    """

    session: U128
    transaction: U64
    commits: Bool
    messages: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveTransaction(AnnotatedPayload):
    """What has the home channel decided? Nothing yet: then it decides now, to roll back (TX_ROLLED_BACK)."""

    session: U128
    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTransaction(AnnotatedPayload):
    """Every participant has carried out the home channel's decision to commit: nobody will ask again."""

    session: U128
    transaction: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStaged(AnnotatedPayload):
    """Drop parts that were staged: a command of the client. What is gone or committed is left alone."""

    parts: Parts
