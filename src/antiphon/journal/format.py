"""The bytes of the journal.

A segment file, preallocated and zero-filled once, written front to back, recycled under a new number:

    0       header, twice (4 KiB each); never rewritten while the segment is in use
    8 KiB   order region A    blocks of 4 KiB
            order region B    the same blocks again
            data region       records, padded to 8; every flush starts on a new page

Two rules make a crash harmless. No synced page is ever written again, so a torn write can only tear
unacknowledged bytes. And every block and record carries its segment and place, the run that wrote it, and how
far the journal was synced then: leftovers are never taken for live, and lost durable bytes are damage.

All integers are little-endian. Checksums are XXH3 with a seed made from the disk id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest, xxh3_64_intdigest, xxh3_128_digest

from antiphon.ids import Mid
from antiphon.journal.ports import IDENTITY, Buffer, Location, Position, Row, identity_of

PAGE: Final = 4096
FORMAT_VERSION: Final = 5
SEAL_BYTES: Final = 16
BODY_BYTES: Final = PAGE - SEAL_BYTES
ZERO_PAGE: Final = bytes(PAGE)

HEADER_COPIES: Final = (0, PAGE)
_REGIONS_START: Final = 2 * PAGE


@dataclass(frozen=True, slots=True)
class Settings:
    """The sizes of a new journal's segments. An existing journal keeps its sizes."""

    # A segment takes about 0.1 s to fill with zeros, and a node keeps a few in reserve.
    segment_bytes: int = 64 << 20
    # 0: a sixteenth of the segment for each copy of the order, but at least sixteen blocks.
    order_blocks: int = 0
    spares_max: int = 4

    def geometry(self) -> Geometry:
        blocks = self.order_blocks or max(16, self.segment_bytes // 16 // PAGE)
        return Geometry(self.segment_bytes, blocks)


@dataclass(frozen=True, slots=True)
class Geometry:
    segment_bytes: int
    order_blocks: int

    def __post_init__(self) -> None:
        assert self.segment_bytes % PAGE == 0, f"a segment is whole pages, not {self.segment_bytes} bytes"
        assert self.segment_bytes < 1 << 32, "offsets in a segment are 32 bits"
        assert self.order_blocks >= 2, "a segment needs a block to open it and one to go on"
        assert self.data_start + PAGE <= self.segment_bytes, "no room is left for data"

    @property
    def data_start(self) -> int:
        return _REGIONS_START + 2 * self.order_blocks * PAGE

    @property
    def record_bytes_max(self) -> int:
        return self.segment_bytes - self.data_start - RECORD_HEADER_BYTES

    @property
    def order_bytes_max(self) -> int:
        return self.order_blocks * BLOCK_CAPACITY - ORDER_LENGTH.size

    def copies(self, block: int) -> tuple[int, int]:
        return _REGIONS_START + block * PAGE, _REGIONS_START + (self.order_blocks + block) * PAGE


def page_after(offset: int) -> int:
    """The offset itself if a page begins there, else the beginning of the next page."""
    return (offset + PAGE - 1) & ~(PAGE - 1)


# --- names ---------------------------------------------------------------------------------------

SUPERBLOCK: Final = "superblock"
LOST_AND_FOUND: Final = "lost+found"
UNFINISHED: Final = ".tmp"
_SEGMENT_NAME = re.compile(r"segment-(\d{8})")
_SPARE_NAME = re.compile(r"spare-(\d{8})")
_CHECKPOINT_NAME = re.compile(r"checkpoint-([0-9a-f]{16})")


def segment_name(number: int) -> str:
    return f"segment-{number:08d}"


def spare_name(number: int) -> str:
    return f"spare-{number:08d}"


def checkpoint_name(n: int) -> str:
    return f"checkpoint-{n:016x}"


def segment_numbers(names: list[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))


def spare_numbers(names: list[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := _SPARE_NAME.fullmatch(name)))


def checkpoint_numbers(names: list[str]) -> list[int]:
    return sorted(int(match[1], 16) for name in names if (match := _CHECKPOINT_NAME.fullmatch(name)))


def is_journal_file(name: str) -> bool:
    """Whether a file of the data directory belongs to the journal, whole or unfinished."""
    name = name.removesuffix(UNFINISHED)
    patterns = (_SEGMENT_NAME, _SPARE_NAME, _CHECKPOINT_NAME)
    return name == SUPERBLOCK or any(pattern.fullmatch(name) for pattern in patterns)


# --- sealed pages --------------------------------------------------------------------------------


def seed_of(disk_id: bytes) -> int:
    """The seed of every checksum on a disk: pages of another disk do not verify here."""
    return xxh3_64_intdigest(disk_id)


def seal_page(body: bytes, seed: int) -> bytes:
    padded = body.ljust(BODY_BYTES, b"\0")
    return xxh3_128_digest(padded, seed=seed) + padded


def open_page(page: bytes | memoryview, seed: int) -> bytes | None:
    body = bytes(page[SEAL_BYTES:])
    return body if xxh3_128_digest(body, seed=seed) == page[:SEAL_BYTES] else None


# --- segment header ------------------------------------------------------------------------------

_SEGMENT_MAGIC: Final = b"ANTIPSEG"
_SEGMENT_HEADER = Struct("<8sII16sQI")


def encode_segment_header(number: int, disk_id: bytes, geometry: Geometry) -> bytes:
    fields = (FORMAT_VERSION, number, disk_id, geometry.segment_bytes, geometry.order_blocks)
    return seal_page(_SEGMENT_HEADER.pack(_SEGMENT_MAGIC, *fields), seed_of(disk_id))


# --- order blocks --------------------------------------------------------------------------------

_BLOCK_MAGIC: Final = b"ORDR"
_BLOCK = Struct("<4sIIIII16s3I3IIIHHQ")
BLOCK_CAPACITY: Final = BODY_BYTES - _BLOCK.size
ORDER_LENGTH = Struct("<I")
PINNED: Final = 1
BOUND: Final = 2
CHAIN_START: Final = bytes(SEAL_BYTES)


class JournalBlock(NamedTuple):
    """A block of the order, a piece of the group that one flush wrote."""

    checksum: bytes
    segment: int
    number: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    run: int
    # The checksum of the block before: blocks of a later life have other successors.
    previous: bytes
    # Proven durable when this was written.
    synced: Position
    before: Position
    # Where the data written with this flush or before it end; a BOUND block means nothing without them.
    data_end: int
    flags: int
    highest: int
    payload: bytes


def encode_group(
    payload: bytes,
    *,
    seed: int,
    segment: int,
    first: int,
    run: int,
    previous: bytes,
    synced: Position,
    before: Position,
    data_end: int,
    flags: int,
    highest: int,
) -> list[bytes]:
    count = blocks_for(len(payload))
    pages = []
    for piece in range(count):
        part = payload[piece * BLOCK_CAPACITY : (piece + 1) * BLOCK_CAPACITY]
        head = _BLOCK.pack(
            _BLOCK_MAGIC,
            segment,
            first + piece,
            first,
            count,
            run,
            previous,
            *synced,
            *before,
            data_end,
            len(part),
            flags,
            0,
            highest,
        )
        page = seal_page(head + part, seed)
        pages.append(page)
        previous = page[:SEAL_BYTES]
    return pages


def blocks_for(payload_bytes: int) -> int:
    return -(-payload_bytes // BLOCK_CAPACITY) or 1


def decode_block(page: bytes | memoryview, seed: int, segment: int, number: int) -> JournalBlock | None:
    """None: the block is not whole, or was written to another place."""
    if page[SEAL_BYTES : SEAL_BYTES + 4] != _BLOCK_MAGIC:
        return None
    body = open_page(page, seed)
    if body is None:
        return None
    (_, seg, num, first, count, run, previous, s1, s2, s3, b1, b2, b3, data_end, used, flags, _, highest) = (
        _BLOCK.unpack_from(body)
    )
    if seg != segment or num != number:
        return None
    payload = body[_BLOCK.size : _BLOCK.size + used]
    synced, before = Position(s1, s2, s3), Position(b1, b2, b3)
    checksum = bytes(page[:SEAL_BYTES])
    return JournalBlock(
        checksum, seg, num, first, count, run, previous, synced, before, data_end, flags, highest, payload
    )


def looks_like_block(page: bytes | memoryview, segment: int, run: int) -> bool:
    """Whether a page that does not verify was meant to be a block of this run; only for reports."""
    if page[SEAL_BYTES : SEAL_BYTES + 4] != _BLOCK_MAGIC:
        return False
    fields = _BLOCK.unpack_from(page, SEAL_BYTES)
    return bool(fields[1] == segment and fields[5] == run)


def split_order_payload(payload: bytes) -> list[bytes] | None:
    """The order records of a group, or None if their lengths do not fit."""
    records, at = [], 0
    while at < len(payload):
        if at + ORDER_LENGTH.size > len(payload):
            return None
        (length,) = ORDER_LENGTH.unpack_from(payload, at)
        at += ORDER_LENGTH.size
        if at + length > len(payload):
            return None
        records.append(payload[at : at + length])
        at += length
    return records


# --- data records --------------------------------------------------------------------------------

_RECORD_MAGIC: Final = b"DATA"
_RECORD = Struct("<4sIIIIHHQQQII16s3I4x")
_RECORD_CHECKSUM_BYTES: Final = 8
RECORD_HEADER_BYTES: Final = _RECORD.size + _RECORD_CHECKSUM_BYTES
_SMALL_BYTES: Final = 4096
_PADDING: Final = tuple(bytes(size) for size in range(8))
_new = tuple.__new__
RELOCATED: Final = 1
_DIGEST_HEAD = Struct("<HQQQI")


class RecordHeader(NamedTuple):
    segment: int
    offset: int
    # Where the record before this one ends; between the two there is nothing.
    previous: int
    run: int
    flags: int
    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    length: int
    digest: bytes
    synced: Position

    @property
    def end(self) -> int:
        return self.offset + record_size(self.length)

    @property
    def location(self) -> Location:
        return Location(self.segment, self.offset, self.length, identity_of(self.digest))


RECORD_ALIGNMENT: Final = 8


def record_size(length: int) -> int:
    return (RECORD_HEADER_BYTES + length + 7) & ~7


def payload_digest(mid: Mid, ts: int, count: int, payload: bytes | memoryview) -> bytes:
    """XXH3-128 of an envelope, equal to the bus's (`bus.messages.digest_of`)."""
    # Two hashes rather than one over a joined copy: the payload may be two megabytes.
    return xxh3_128_digest(_DIGEST_HEAD.pack(*mid, ts, count) + xxh3_128_digest(payload))


def encode_records(
    rows: Sequence[Row],
    locations: list[Location],
    buffers: list[Buffer],
    *,
    segment: int,
    offset: int,
    end: int,
    previous: int,
    run: int,
    flags: int,
    synced: Position,
    seed: int,
) -> int:
    """Encode records one after the other, from `offset` of a segment on, as many as fit before `end`.

    The first of them says that the record before it ends at `previous`. Returns the end of the last one.
    """
    # One loop and no call for each: there is one record for every envelope.
    pack, small, unpack_identity = _RECORD.pack, _SMALL_BYTES, IDENTITY.unpack_from
    synced_segment, synced_blocks, synced_data = synced
    for (pid, pe, pseq), ts, count, digest, payload in rows:
        length = len(payload)
        after = offset + ((RECORD_HEADER_BYTES + length + 7) & ~7)
        if after > end:
            break
        head = pack(
            _RECORD_MAGIC, segment, offset, previous, run, flags, pid, pe, pseq, ts, count, length, digest,
            synced_segment, synced_blocks, synced_data,
        )  # fmt: skip
        checksum = xxh3_64_digest(head, seed=seed)
        padding = _PADDING[-length & 7]
        if length <= small:
            # A copy of it costs less than three buffers in one write.
            buffers.append(b"".join((head, checksum, payload, padding)))
        else:
            buffers += (head + checksum, payload, padding) if padding else (head + checksum, payload)
        locations.append(_new(Location, (segment, offset, length, unpack_identity(digest)[0])))
        previous = offset = after
    return previous


def decode_record_header(
    region: bytes | memoryview, at: int, seed: int, segment: int, offset: int
) -> RecordHeader | None:
    """None: the header at `region[at:]` is not whole, or was written to another place."""
    if region[at : at + 4] != _RECORD_MAGIC or at + RECORD_HEADER_BYTES > len(region):
        return None
    head = region[at : at + _RECORD.size]
    if xxh3_64_digest(head, seed=seed) != region[at + _RECORD.size : at + RECORD_HEADER_BYTES]:
        return None
    (_, seg, off, previous, run, flags, pid, pe, pseq, ts, count, length, digest, s1, s2, s3) = (
        _RECORD.unpack(head)
    )
    if seg != segment or off != offset:
        return None
    mid, synced = Mid(pid, pe, pseq), Position(s1, s2, s3)
    return RecordHeader(seg, off, previous, run, flags, mid, ts, count, length, digest, synced)


def looks_like_record(region: bytes | memoryview, at: int, segment: int, run: int) -> bool:
    """Whether bytes that do not verify were meant to be a record of this run; only for reports."""
    if region[at : at + 4] != _RECORD_MAGIC or at + _RECORD.size > len(region):
        return False
    fields = _RECORD.unpack_from(region, at)
    return bool(fields[1] == segment and fields[4] == run)
