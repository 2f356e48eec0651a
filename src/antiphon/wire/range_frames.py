"""Frames about ranges of stored messages.

Questions and answers are JSON. A page is bytes that a replica makes and the client reads:

    digest 16 bytes, over all that follows
    through u64, rows u64, then four counts u32: ends, losses, acknowledgements, pieces
    ends u64 each; losses of three u64 each
    acknowledgements: number u64, log time i64, destination u64, subscription u64, ranges as a byte string
    of each piece destination u64, first u64, count u32, redelivery count u32, bytes u32
    the batches of the pieces, end to end

`rows` is counted from what the replica keeps in the range, and not from the pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from xxhash import xxh3_128

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.layout import U16, U32, U64, Bool, Document, Field, Rest, Text
from antiphon.wire.primitives import Buffer, Reader, Writer

DIGEST_BYTES: Final = 16
_PAGE = struct.Struct("<QQIIII")
_NUMBER = struct.Struct("<Q")
_LOSS = struct.Struct("<QQQ")
_PIECE = struct.Struct("<QQIII")
_ACK = struct.Struct("<QqQQI")
_WANTED = struct.Struct("<QQ")

ACK_BYTES: Final = _ACK.size
LOSS_BYTES: Final = _LOSS.size
PIECE_BYTES: Final = _PIECE.size
"""The bytes of a piece beside its batch."""


class RangeWanted(NamedTuple):
    """A destination to read; losses below number `since` do not count."""

    destination: int
    since: int = 0


class RangeLoss(NamedTuple):
    """Some or all messages first … last of this destination have been trimmed."""

    destination: int
    first: int
    last: int


class RangeAck(NamedTuple):
    """The acknowledgement of command `number`, and about its log time; 0 if that is not known."""

    number: int
    log_time_ms: int
    destination: int
    subscription: int
    numbers: Ranges


class PagePiece(NamedTuple):
    """Messages of one destination with consecutive numbers; `batch` are the bytes of a batch.

    `redelivery_count` is 0 except in a `live` read.
    """

    destination: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    redelivery_count: int
    batch: memoryview


class PageContents(NamedTuple):
    """A page that has been read, through number `through`; the pages that follow might end before `ends`."""

    through: int
    rows: int
    ends: tuple[int, ...]
    losses: tuple[RangeLoss, ...]
    pieces: tuple[PagePiece, ...]
    acks: tuple[RangeAck, ...] = ()


def _write_wanted(writer: Writer, wanted: Sequence[RangeWanted]) -> None:
    writer.count(len(wanted))
    writer.raw(b"".join([_WANTED.pack(*one) for one in wanted]))


def _read_wanted(reader: Reader) -> tuple[RangeWanted, ...]:
    data = reader.raw(reader.count(_WANTED.size) * _WANTED.size)
    return tuple(map(RangeWanted._make, _WANTED.iter_unpack(data)))


Wanted = Annotated[tuple[RangeWanted, ...], Field(_write_wanted, _read_wanted)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeAsk:
    """A question about the ranges of a channel, in JSON; without a channel, to the client manager itself.

    RangeTold answers, from a state not before number `floor`. With `wait_ms` the answer may wait for news.
    """

    request: U32
    channel: Text
    floor: U64 = 0
    wait_ms: U32 = 0
    question: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTold:
    request: U32
    answer: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRead:
    """Read the messages of these destinations from number `start` on and below `stop`; RangePage answers.

    `stop` and `goal` are 0 in an open read, which ends with the last number that the replica has applied. A
    page has up to `page_bytes`, and says where the next `ahead` pages might end, from number `ahead_from` on
    (0: from its own end) and below `goal`, so that several can be asked for at once. With `acks`, the page
    has kept acknowledgements, too. A `live` read leaves out messages of a queue that are acknowledged and
    kept for a hold. Browsing is an open live read, page after page until a page names no end of a next one.
    """

    request: U32
    channel: Text
    start: U64
    stop: U64
    goal: U64
    floor: U64 = 0
    page_bytes: U32
    ahead: U16 = 0
    ahead_from: U64 = 0
    allow_lost: Bool = False
    acks: Bool = False
    live: Bool = False
    destinations: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePage:
    request: U32
    page: Rest


def page_buffers(
    through: int,
    rows: int,
    ends: Sequence[int],
    losses: Sequence[RangeLoss],
    pieces: Sequence[tuple[int, int, int, int, Sequence[bytes | memoryview]]],
    acks: Sequence[RangeAck] = (),
) -> list[bytes | memoryview]:
    """The bytes of a page; batches are not copied.

    A piece is (destination, first, count, redelivery count, the buffers of its batch).
    """
    buffers: list[bytes | memoryview] = []
    heads: list[bytes] = [_PAGE.pack(through, rows, len(ends), len(losses), len(acks), len(pieces))]
    heads += map(_NUMBER.pack, ends)
    heads += [_LOSS.pack(*loss) for loss in losses]
    for number, log_time_ms, destination, subscription, numbers in acks:
        encoded = numbers.encode()
        heads.append(_ACK.pack(number, log_time_ms, destination, subscription, len(encoded)) + encoded)
    for destination, first, count, redelivery_count, batch in pieces:
        heads.append(_PIECE.pack(destination, first, count, redelivery_count, sum(map(len, batch))))
        buffers += batch
    head = b"".join(heads)
    digest = xxh3_128(head)
    for buffer in buffers:
        digest.update(buffer)
    return [digest.digest() + head, *buffers]


def decode_page(page: Buffer) -> PageContents:
    """The contents of a page; raises ProtocolError if the digest or the number of rows is wrong."""
    reader = Reader(page)
    digest = reader.raw(DIGEST_BYTES)
    if xxh3_128(reader.ahead(reader.remaining)).digest() != digest:
        raise ProtocolError("a page of a range is not what the replica sent: its digest differs")
    through, rows, ends_count, losses_count, acks_count, pieces_count = reader.numbers(_PAGE)
    ends = _rows(reader, _NUMBER, ends_count)
    losses = tuple(map(RangeLoss._make, _rows(reader, _LOSS, losses_count)))
    acks = []
    for _ in range(acks_count):
        number, log_time_ms, destination, subscription, size = reader.numbers(_ACK)
        numbers = Ranges.decode(reader.raw(size))
        acks.append(RangeAck(number, log_time_ms, destination, subscription, numbers))
    pieces = []
    for destination, first, count, redelivery_count, size in _rows(reader, _PIECE, pieces_count):
        pieces.append(PagePiece(destination, first, count, redelivery_count, reader.raw(size)))
    reader.finish()
    if sum([piece.count for piece in pieces]) != rows:
        raise ProtocolError(f"a page of a range has other than the {rows} rows that the replica keeps in it")
    return PageContents(through, rows, tuple([end for (end,) in ends]), losses, tuple(pieces), tuple(acks))


def _rows(reader: Reader, layout: struct.Struct, count: int) -> list[tuple[int, ...]]:
    # Reading within bounds keeps a false count from costing memory.
    return list(layout.iter_unpack(reader.raw(count * layout.size)))
