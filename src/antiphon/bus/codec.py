"""Codec: the bytes of every bus message.

Where it sits
    a role's effect  ->  CODEC  ->  a datagram or a stream  ->  CODEC  ->  a role's event

What it promises
    P1  decode(encode(m)) equals m, and decode of any bytes gives a message or `ProtocolError`, in time
        and memory linear in their number.
    P2  Entries of one message are contiguous; enumerations hold known values. A role may rely on it.

What it leaves to others
    Whether the sender is who it says it is (the transport's), and whether it may say this (the roles').

    magic u16, version u8, type u8, config id u32, sender u16, run id and disk id 16 bytes each,
    group text, fields

The tables below are the format: the order of the fields in a message class, and how each is written.
What there can be hundreds of in a message, entries, envelopes and items of a report, is written and read in
one sweep. Payloads and batches come out as views into what was decoded, except small ones among several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import IntEnum
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeVar

from antiphon.bus import messages as m
from antiphon.bus.entries import read_entries, write_entries
from antiphon.errors import ProtocolError
from antiphon.ids import MID_STRUCT, Mid
from antiphon.ranges import Ranges
from antiphon.wire.commands import Outcome, read_outcomes, write_outcomes
from antiphon.wire.layout import Field, list_of
from antiphon.wire.primitives import Buffer, Reader, Writer, encode_text, pack

MAGIC: Final = 0xA971
VERSION: Final = 6

_HEAD = Struct("<HBBIH16s16s")
_START: Final = pack(Struct("<HB"), MAGIC, VERSION)
_HEADERS_MAX: Final = 1_024
_ITEM = Struct("<HQQQII16s")
_DATA = Struct("<HQQQI16sI")
_COPIED_BYTES: Final = 65_536
ENVELOPE_BYTES: Final = _DATA.size
"""What one of several envelopes takes beside its payload."""
_PIECE = Struct("<QII")
_PLACE = Struct("<IIIQ")
_CREDIT = Struct("<QQQ?")
_TAKER = Struct("<QQQ")
_TARGET = Struct("<HQQ")


# What a tuple with names does when it is made, without the Python call around it: half the time.
_new = tuple.__new__

NO_DISK: Final = bytes(16)
"""The disk id of who has none: a client manager."""


class Header(NamedTuple):
    """Who says it, in which run and with which disk, and to which group under which configuration."""

    group: str
    config_id: int
    sender: int
    run_id: bytes
    disk_id: bytes = NO_DISK


# --- fields --------------------------------------------------------------------------------------

E = TypeVar("E", bound=IntEnum)


def _enum(kind: type[E]) -> Field[E]:
    known = {int(value): value for value in kind}

    def read(reader: Reader) -> E:
        number = reader.u8()
        value = known.get(number)
        if value is None:
            raise ProtocolError(f"{number} is no {kind.__name__}")
        return value

    return Field(Writer.u8, read)


def _fixed(size: int) -> Field[bytes]:
    def write(writer: Writer, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} belong")
        writer.raw(value)

    return Field(write, lambda reader: bytes(reader.raw(size)))


def _write_mid(writer: Writer, mid: Mid) -> None:
    writer.raw(pack(MID_STRUCT, *mid))


def _read_mid(reader: Reader) -> Mid:
    return Mid(*reader.numbers(MID_STRUCT))


def _write_items(writer: Writer, items: tuple[m.ReportItem, ...]) -> None:
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


def _read_items(reader: Reader) -> tuple[m.ReportItem, ...]:
    rows = _ITEM.iter_unpack(reader.raw(reader.count(_ITEM.size) * _ITEM.size))
    return tuple(
        [
            _new(m.ReportItem, (_new(Mid, (pid, pe, pseq)), ts, count, digest, size))
            for pid, pe, pseq, ts, count, size, digest in rows
        ]
    )


def _write_data(writer: Writer, data: m.Data) -> None:
    payload = data.payload
    writer.parts += (pack(_DATA, *data.mid, data.ts, data.count, data.digest, len(payload)), payload)


def _read_data(reader: Reader) -> m.Data:
    pid, pe, pseq, ts, count, digest, size = reader.numbers(_DATA)
    return m.Data(Mid(pid, pe, pseq), ts, count, digest, reader.raw(size))


def _write_datas(writer: Writer, datas: tuple[m.Data, ...]) -> None:
    """A count, then what is known of each, then the payloads end to end."""
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


def _read_datas(reader: Reader) -> tuple[m.Data, ...]:
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
            _new(m.Data, (_new(Mid, (pid, pe, pseq)), ts, count, digest, payloads[end - size : end]))
            for (pid, pe, pseq, ts, count, digest, size), end in zip(rows, ends, strict=True)
        ]
    )


def _write_piece(writer: Writer, piece: m.Piece) -> None:
    writer.raw(pack(_PIECE, piece.first_sequence, piece.count, piece.redelivery_count))
    writer.u32(sum(map(len, piece.buffers)))
    writer.parts.extend(piece.buffers)


def _read_piece(reader: Reader) -> m.Piece:
    first, count, redelivery_count = _PIECE.unpack(reader.raw(_PIECE.size))
    return m.Piece(first, count, redelivery_count, [reader.bytes_()])


def _write_buffers(writer: Writer, buffers: list[bytes | memoryview]) -> None:
    writer.u32(sum(map(len, buffers)))
    writer.parts.extend(buffers)


def _write_numbers(writer: Writer, numbers: tuple[int, ...]) -> None:
    writer.count(len(numbers))
    writer.raw(pack(Struct(f"<{len(numbers)}Q"), *numbers))


def _read_numbers(reader: Reader) -> tuple[int, ...]:
    count = reader.count(8)
    return Struct(f"<{count}Q").unpack(reader.raw(8 * count))


def _write_place(writer: Writer, place: m.Place) -> None:
    writer.raw(pack(_PLACE, *place))


def _read_place(reader: Reader) -> m.Place:
    return m.Place(*_PLACE.unpack(reader.raw(_PLACE.size)))


def _write_credit(writer: Writer, credit: m.ConsumerCredit) -> None:
    writer.raw(pack(_CREDIT, *credit))


def _read_credit(reader: Reader) -> m.ConsumerCredit:
    return m.ConsumerCredit(*_CREDIT.unpack(reader.raw(_CREDIT.size)))


def _write_target(writer: Writer, target: m.Target) -> None:
    writer.raw(pack(_TARGET, target.node, target.stream, target.number))
    writer.count(len(target.takers))
    for taker in target.takers:
        writer.raw(pack(_TAKER, *taker))


def _read_target(reader: Reader) -> m.Target:
    node, stream, number = _TARGET.unpack(reader.raw(_TARGET.size))
    takers = [m.Taker(*_TAKER.unpack(reader.raw(_TAKER.size))) for _ in range(reader.count(_TAKER.size))]
    return m.Target(node, number, tuple(takers), stream)


def _write_ranges(writer: Writer, ranges: Ranges) -> None:
    writer.bytes_(ranges.encode())


def _write_outcomes(writer: Writer, outcomes: Sequence[Outcome]) -> None:
    write_outcomes(writer, outcomes)


_U16 = Field(Writer.u16, Reader.u16)
_U32 = Field(Writer.u32, Reader.u32)
_U64 = Field(Writer.u64, Reader.u64)
_U128 = Field(Writer.u128, Reader.u128)
_BOOL = Field(Writer.bool_, Reader.bool_)
_TEXT = Field(Writer.text, Reader.text)
_BYTES: Field[bytes] = Field(Writer.bytes_, lambda reader: bytes(reader.bytes_()))
_ID = _fixed(16)
_MID = Field(_write_mid, _read_mid)
_MIDS = list_of(_MID, MID_STRUCT.size)
_NUMBERS = list_of(_U64, 8)
_MANY_NUMBERS = Field(_write_numbers, _read_numbers)
_BUFFERS: Field[list[bytes | memoryview]] = Field(_write_buffers, lambda reader: [reader.bytes_()])
_COUNTS = list_of(_U32, 4)
_ITEMS = Field(_write_items, _read_items)
_ENTRIES = Field(write_entries, read_entries)
_DATAS = Field(_write_datas, _read_datas)
_PIECES = list_of(Field(_write_piece, _read_piece), _PIECE.size + 4)
_PLACES = list_of(Field(_write_place, _read_place), _PLACE.size)
_VIEW: Field[Buffer] = Field(Writer.bytes_, Reader.bytes_)
_RANGES = Field(_write_ranges, lambda reader: Ranges.decode(reader.bytes_()))
_OUTCOMES = Field(_write_outcomes, lambda reader: read_outcomes(reader, Outcome))
_CREDITS = list_of(Field(_write_credit, _read_credit), _CREDIT.size)
_TARGETS = list_of(Field(_write_target, _read_target), _TARGET.size + 4)
_TEXTS = list_of(_TEXT, 2)
_LONG_TEXT = Field(Writer.document, Reader.document)
_STATUS = _enum(m.ServerStatus)
_SPACE = _enum(m.SpaceState)
_REASON = _enum(m.NackReason)

# --- messages ------------------------------------------------------------------------------------

# Numbers are never used twice, also not those of messages that are gone.
_TABLE: tuple[tuple[int, type[Any], tuple[Field[Any], ...]], ...] = (
    (2, m.Published, (_MID,)),
    (3, m.DataReport, (_U64, _ITEMS)),
    (4, m.ReportNack, (_U64, _MID, _REASON, _U64)),
    (5, m.ProducerOpen, (_U16, _ID)),
    (6, m.ProducerOpened, (_U16, _ID, _U64)),
    (7, m.CommitSubmit, (_U64, _U64, _ENTRIES, _U64, _U32)),
    (8, m.CommitAcknowledge, (_U64, _U64, _STATUS)),
    (9, m.Commit, (_U64, _ENTRIES, _U64)),
    (10, m.Heartbeat, (_U64, _U64, _U64, _U64, _U64, _BOOL, _SPACE)),
    (11, m.HeartbeatAck, (_U64, _U64, _BOOL)),
    (12, m.PreSeal, (_U64, _U64)),
    (13, m.PreSealOk, (_U64,)),
    (14, m.Seal, (_U64, _U64, _U32)),
    (15, m.SealOk, (_U64, _U64, _U64, _U64, _U64)),
    (16, m.SealNack, (_U64, _STATUS, _BYTES)),
    (17, m.FetchLog, (_U64, _U64)),
    (18, m.FetchLogReply, (_U64, _U64, _ENTRIES, _U64)),
    (19, m.EpochStart, (_U64, _U64, _ENTRIES, _U64, _U64, _U32, _U64)),
    (20, m.StartNeed, (_U64, _U64, _U64, _U64)),
    (21, m.FetchId, (_U64, _U32)),
    (22, m.FetchIdReply, (_ENTRIES, _U64, _U64)),
    (23, m.FetchData, (_MIDS, _NUMBERS)),
    (24, m.FetchDataReply, (_DATAS, _MIDS)),
    (25, m.CheckpointReport, (_U64, _ID, _U64)),
    (26, m.Presence, (_TEXT, _TEXT, _U64, _BOOL, _BYTES, _U64, _U32)),
    (27, m.Applied, (_U64, _U64, _OUTCOMES, _U64, _U64)),
    (28, m.Register, (_U64, _U128, _U32, _U64, _U64, _TEXT, _U64, _U64, _RANGES, _U32, _BOOL, _U64)),
    (29, m.Registered, (_U64, _U64, _TEXT, _TEXT, _RANGES, _U64, _U64)),
    (30, m.Unregister, (_U64, _U64, _BOOL, _U64)),
    (31, m.SessionDetached, (_U128, _U32)),
    (33, m.Deliver, (_U64, _U64, _TARGETS, _PIECES)),
    (34, m.ConsumerEnded, (_U64, _U64, _TEXT, _TEXT, _U64, _U64)),
    (35, m.BrowseRequest, (_U64, _U64, _U64, _U64, _U32)),
    (36, m.BrowseReply, (_U64, _U64, _BOOL, _PIECES, _TEXT, _TEXT)),
    (37, m.AppliedGet, (_U64,)),
    (38, m.FetchRange, (_U64, _U32)),
    (39, m.FetchRangeReply, (_ENTRIES, _DATAS, _U64, _U64)),
    (40, m.ProducerStateGet, (_U16,)),
    (41, m.ProducerState, (_U16, _U64, _U64, _U64, _U64, _U64, _U64, _ID)),
    (42, m.CheckpointGet, (_U64, _U64)),
    (43, m.CheckpointChunk, (_U64, _ID, _U64, _U64, _VIEW, _ID)),
    (44, m.StoredGet, (_U64, _PLACES)),
    (45, m.StoredReply, (_U64, _PLACES, _DATAS, _BOOL)),
    (46, m.BatchGet, (_NUMBERS, _NUMBERS)),
    (47, m.BatchReply, (_NUMBERS, _NUMBERS, _DATAS)),
    (48, m.Unregistered, (_U64, _U64)),
    (49, m.SessionDetachedHeard, (_U128, _U32, _BOOL)),
    (50, m.Credits, (_U64, _U64, _CREDITS, _U64, _BOOL, _U64)),
    (51, m.DeliverHead, (_U64, _U64, _U64, _U64, _U64, _BOOL, _U64)),
    (52, m.DeliverAck, (_U64, _U64, _RANGES, _U64)),
    (53, m.Lookup, (_U64, _U64, _LONG_TEXT, _BOOL)),
    (54, m.LookupReply, (_U64, _LONG_TEXT)),
    (55, m.AdminAsk, (_U64, _LONG_TEXT)),
    (56, m.AdminAnswer, (_U64, _TEXT, _LONG_TEXT)),
    (57, m.Advertised, (_TEXTS, _TEXTS)),
    (58, m.InDoubt, (_U128, _U64, _TEXT, _U32)),
    (59, m.Unfinished, (_U128, _U64, _TEXTS, _COUNTS)),
    (
        60,
        m.RangeRequest,
        (
            *(_U64, _U64, _U64, _U64, _U64, _U32, _U16, _U64, _BOOL, _BOOL),
            *(_MANY_NUMBERS, _MANY_NUMBERS, _BOOL),
        ),
    ),
    (61, m.RangeReply, (_U64, _BUFFERS, _TEXT, _TEXT)),
    (62, m.RangeAsk, (_U64, _U64, _U32, _LONG_TEXT)),
    (63, m.RangeTold, (_U64, _LONG_TEXT, _TEXT, _TEXT)),
    (64, m.Envelopes, (_DATAS,)),
    (65, m.Drained, (_U64, _U64, _U64, _U64, _U64)),
)

_Write = Callable[[Writer, Any], None]
_Read = Callable[[Reader], Any]


def _compile(kind: type[Any], formats: tuple[Field[Any], ...]) -> tuple[_Write, _Read]:
    names = [field.name for field in fields(kind)]
    assert len(names) == len(formats), f"{kind.__name__} has {len(names)} fields and {len(formats)} formats"
    steps = [(name, format_.write) for name, format_ in zip(names, formats, strict=True)]
    reads = [format_.read for format_ in formats]

    def write(writer: Writer, message: Any) -> None:
        for name, write_field in steps:
            write_field(writer, getattr(message, name))

    def read(reader: Reader) -> Any:
        return kind(*[read_field(reader) for read_field in reads])

    return write, read


# DATA is written by hand: it is the one that is large.
_WRITERS: dict[type[Any], tuple[int, _Write]] = {m.Data: (1, _write_data)}
_READERS: dict[int, _Read] = {1: _read_data}
for _number, _kind, _formats in _TABLE:
    _write, _read = _compile(_kind, _formats)
    _WRITERS[_kind] = (_number, _write)
    _READERS[_number] = _read


def encode_parts(
    message: m.BusMessage,
    group: str,
    config_id: int,
    sender: int,
    run_id: bytes,
    disk_id: bytes = NO_DISK,
) -> list[Buffer]:
    """The message as buffers to be sent one after the other; payloads are not copied."""
    number, write = _WRITERS[type(message)]
    writer = Writer()
    writer.raw(_encode_head(number, Header(group, config_id, sender, run_id, disk_id)))
    write(writer, message)
    return writer.parts


def _encode_head(number: int, header: Header) -> bytes:
    group, config_id, sender, run_id, disk_id = header
    if len(run_id) != 16 or len(disk_id) != 16:
        raise ValueError(f"ids have 16 bytes, not {len(run_id)} and {len(disk_id)}")
    fixed = pack(_HEAD, MAGIC, VERSION, number, config_id, sender, run_id, disk_id)
    return fixed + encode_text(group)


def encode(
    message: m.BusMessage,
    group: str,
    config_id: int,
    sender: int,
    run_id: bytes,
    disk_id: bytes = NO_DISK,
) -> bytes:
    """The message as one byte string."""
    return b"".join(encode_parts(message, group, config_id, sender, run_id, disk_id))


class Encoder:
    """`encode_parts` for who has always the same to say in the header: it is written once."""

    __slots__ = ("_kinds",)

    def __init__(self, header: Header) -> None:
        self._kinds = {
            kind: (_encode_head(number, header), write) for kind, (number, write) in _WRITERS.items()
        }

    def encode_parts(self, message: m.BusMessage) -> list[Buffer]:
        """The message as buffers to be sent one after the other; payloads are not copied."""
        head, write = self._kinds[type(message)]
        writer = Writer()
        writer.parts.append(head)
        write(writer, message)
        return writer.parts


class Decoder:
    """`decode` for who hears the same few others again and again: of each the header is read once."""

    __slots__ = ("_headers",)

    def __init__(self) -> None:
        self._headers: dict[bytes, Header] = {}

    def decode(self, data: Buffer) -> tuple[Header, m.BusMessage]:
        """Header and message of exactly these bytes, or `ProtocolError`."""
        end = _HEAD.size + 2 + int.from_bytes(data[_HEAD.size : _HEAD.size + 2], "little")
        # All of it but the type, which stands behind magic and version.
        head = bytes(data[4:end])
        header = self._headers.get(head)
        if header is None or data[:3] != _START:
            header, message = decode(data)
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            self._headers[head] = header
            return header, message
        read = _READERS.get(data[3])
        if read is None:
            raise ProtocolError(f"a bus message of type {data[3]}")
        reader = Reader(data, end)
        message = read(reader)
        reader.finish()
        return header, message


def decode(data: Buffer) -> tuple[Header, m.BusMessage]:
    """Header and message of exactly these bytes, or `ProtocolError`."""
    reader = Reader(data)
    magic, version, number, config_id, sender, run_id, disk_id = _HEAD.unpack(reader.raw(_HEAD.size))
    if magic != MAGIC:
        raise ProtocolError("these bytes are no bus message")
    if version != VERSION:
        raise ProtocolError(f"a bus message of version {version}; this node speaks version {VERSION}")
    read = _READERS.get(number)
    if read is None:
        raise ProtocolError(f"a bus message of type {number}")
    header = Header(reader.text(), config_id, sender, run_id, disk_id)
    message: m.BusMessage = read(reader)
    reader.finish()
    return header, message
