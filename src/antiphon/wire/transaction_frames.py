"""Frames about transactions in several channels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

from antiphon.errors import ProtocolError
from antiphon.wire.layout import U32, U64, U128, Field, Text, list_of
from antiphon.wire.primitives import Reader, Writer
from antiphon.wire.transactions import Consumed, read_consumed, write_consumed


class TransactionPart(NamedTuple):
    """A part of a transaction: see `PrepareTransaction`."""

    channel: str
    batches: int
    messages: int
    consumed: tuple[Consumed, ...] = ()
    staged: tuple[int, ...] = ()


class TransactionFate(IntEnum):
    COMMITTED = 0
    ROLLED_BACK = 1
    COMMITTED_BEFORE = 2
    """The application's version was committed before, and the parts staged now are dropped."""


def _write_part(writer: Writer, part: TransactionPart) -> None:
    writer.text(part.channel)
    writer.u32(part.batches)
    writer.u32(part.messages)
    _ALL_CONSUMED.write(writer, part.consumed)
    _STAGED.write(writer, part.staged)


def _read_part(reader: Reader) -> TransactionPart:
    return TransactionPart(
        reader.text(), reader.u32(), reader.u32(), _ALL_CONSUMED.read(reader), _STAGED.read(reader)
    )


def _read_fate(reader: Reader) -> TransactionFate:
    fate = reader.u8()
    if fate > _FATE_MAX:
        raise ProtocolError(f"the fate {fate} of a transaction is not known")
    return TransactionFate(fate)


_ALL_CONSUMED = list_of(Field(write_consumed, read_consumed), 20)
_STAGED = list_of(Field(Writer.u128, Reader.u128), 16)
_FATE_MAX = max(TransactionFate)

PartsOfChannels = Annotated[tuple[TransactionPart, ...], list_of(Field(_write_part, _read_part), 18)]
FateField = Annotated[TransactionFate, Field(Writer.u8, _read_fate)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommit:
    """Commit a transaction that has parts in several channels, or staged ones; TransactionDecided answers.

    The transaction of an `application` has a `version`; the system channel decides it.
    """

    request: U32
    session: U128
    transaction: U64
    parts: PartsOfChannels
    application: Text = ""
    version: U64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAsk:
    """Ask for the decision on a commit that was under way when the connection was lost.

    TransactionDecided answers. `home` is the lowest channel. An undecided transaction is rolled back.
    """

    request: U32
    session: U128
    transaction: U64
    home: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDecided:
    """The decision; `text` says why the transaction was rolled back."""

    request: U32
    fate: FateField
    text: Text = ""
