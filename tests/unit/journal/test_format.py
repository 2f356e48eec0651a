"""Blocks and records: what was written comes back, and only in the place it was written for."""

from __future__ import annotations

import pytest

from antiphon.ids import Mid
from antiphon.journal.format import (
    BLOCK_CAPACITY,
    PAGE,
    RECORD_HEADER_BYTES,
    Geometry,
    Settings,
    blocks_for,
    checkpoint_name,
    checkpoint_numbers,
    decode_block,
    decode_record_header,
    encode_group,
    encode_records,
    page_after,
    record_size,
    seed_of,
    segment_name,
    segment_numbers,
    split_order_payload,
)
from antiphon.journal.ports import Buffer, Location, Position
from tests.journals import DISK_ID

SEED = seed_of(DISK_ID)


def group(payload: bytes) -> list[bytes]:
    return encode_group(
        payload,
        seed=SEED,
        segment=3,
        first=5,
        run=9,
        previous=b"p" * 16,
        synced=Position(3, 4, 8192),
        before=Position(2, 8, 99_999),
        data_end=12_288,
        flags=1,
        highest=2**63,
    )


def header(payload: bytes = b"") -> bytes:
    return bytes(records([payload])[0][:RECORD_HEADER_BYTES])


def records(
    payloads: list[bytes], end: int = 1 << 20, locations: list[Location] | None = None
) -> list[Buffer]:
    buffers: list[Buffer] = []
    encode_records(
        [(Mid(1, 2, 3 + at), 4, 5, b"d" * 16, payload) for at, payload in enumerate(payloads)],
        [] if locations is None else locations,
        buffers,
        segment=3,
        offset=8192,
        end=end,
        previous=8000,
        run=9,
        flags=0,
        synced=Position(3, 4, 8192),
        seed=SEED,
    )
    return buffers


def test_several_records_lie_one_behind_the_other_and_none_beyond_the_end() -> None:
    payloads = [bytes(size) for size in (0, 1, 8, 4096, 4097, 5)]
    locations: list[Location] = []
    whole = b"".join(records(payloads, locations=locations))
    previous, at = 8000, 8192
    for place, payload in zip(locations, payloads, strict=True):
        assert place[:3] == (3, at, len(payload))
        read = decode_record_header(whole, at - 8192, SEED, 3, at)
        assert read is not None
        assert (read.previous, read.location, read.end) == (previous, place, at + record_size(len(payload)))
        previous = at = read.end
    assert len(whole) == at - 8192
    fewer: list[Location] = []
    assert b"".join(records(payloads, end=at - 1, locations=fewer)) == whole[: locations[-1].offset - 8192]
    assert fewer == locations[:-1]


def test_a_group_comes_back_block_by_block() -> None:
    payload = bytes(range(256)) * 40
    pages = group(payload)
    assert len(pages) == blocks_for(len(payload)) == 3
    blocks = [decode_block(page, SEED, 3, 5 + at) for at, page in enumerate(pages)]
    assert b"".join(block.payload for block in blocks if block) == payload
    previous = b"p" * 16
    for at, block in enumerate(blocks):
        assert block is not None
        assert (block.first, block.count, block.number, block.previous) == (5, 3, 5 + at, previous)
        assert (block.run, block.flags, block.highest, block.data_end) == (9, 1, 2**63, 12_288)
        assert (block.synced, block.before) == (Position(3, 4, 8192), Position(2, 8, 99_999))
        previous = block.checksum


def test_a_block_counts_only_where_it_was_written_for() -> None:
    (page,) = group(b"payload")
    assert decode_block(page, SEED, 3, 5) is not None
    assert decode_block(page, SEED, 3, 6) is None
    assert decode_block(page, SEED, 4, 5) is None
    assert decode_block(page, SEED + 1, 3, 5) is None


def test_a_record_counts_only_where_it_was_written_for() -> None:
    found = decode_record_header(header(), 0, SEED, 3, 8192)
    assert found is not None
    assert (found.mid, found.ts, found.count, found.digest) == (Mid(1, 2, 3), 4, 5, b"d" * 16)
    assert (found.previous, found.run, found.synced) == (8000, 9, Position(3, 4, 8192))
    assert decode_record_header(header(), 0, SEED, 4, 8192) is None
    assert decode_record_header(header(), 0, SEED, 3, 8200) is None
    assert decode_record_header(header(), 0, SEED + 1, 3, 8192) is None


def test_every_byte_of_a_block_and_of_a_record_header_is_covered() -> None:
    (page,) = group(b"payload")
    for at in range(PAGE):
        rotten = page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :]
        assert decode_block(rotten, SEED, 3, 5) is None
    good = header()
    for at in range(RECORD_HEADER_BYTES):
        rotten = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        assert decode_record_header(rotten, 0, SEED, 3, 8192) is None


def test_a_record_cut_short_is_none() -> None:
    for length in range(RECORD_HEADER_BYTES):
        assert decode_record_header(header()[:length], 0, SEED, 3, 8192) is None


def test_order_payloads_are_split_or_refused() -> None:
    assert split_order_payload(b"") == []
    assert split_order_payload(b"\x02\0\0\0ab\0\0\0\0") == [b"ab", b""]
    assert split_order_payload(b"\x02\0\0\0a") is None
    assert split_order_payload(b"\x02\0\0") is None


def test_the_smallest_and_the_usual_segment_have_room() -> None:
    usual = Settings().geometry()
    assert usual.order_blocks == 1024
    # An envelope may have two megabytes.
    assert usual.record_bytes_max > 2 << 20
    small = Settings(segment_bytes=256 << 10).geometry()
    assert (small.order_blocks, small.data_start) == (16, 34 * PAGE)
    assert small.order_bytes_max == 16 * BLOCK_CAPACITY - 4
    with pytest.raises(AssertionError, match="no room is left for data"):
        Geometry(128 << 10, 16)


def test_sizes_and_names() -> None:
    assert [page_after(offset) for offset in (0, 1, PAGE, PAGE + 1)] == [0, PAGE, PAGE, 2 * PAGE]
    assert record_size(0) == RECORD_HEADER_BYTES == 96
    assert record_size(1) == record_size(8) == 104
    names = ["LOCK", checkpoint_name(255), "segment-1", segment_name(12), segment_name(2) + ".tmp"]
    assert segment_numbers(names) == [12]
    assert checkpoint_numbers(names) == [255]
