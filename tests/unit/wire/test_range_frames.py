"""The bytes of a page: what was written is read, and nothing else."""

from __future__ import annotations

import pytest
from xxhash import xxh3_128_digest

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.range_frames import RangeAck, RangeLoss, decode_page, page_buffers

PIECES = [(7, 100, 3, 0, [b"off", memoryview(b"sets")]), (8, 200, 2, 4, [b"rows"])]

ACKS = [RangeAck(150, -1, 7, 0, Ranges([(100, 102)])), RangeAck(151, 5, 8, 9, Ranges())]


def made(rows: int = 5) -> bytes:
    return b"".join(page_buffers(250, rows, (300, 400), (RangeLoss(8, 90, 99),), PIECES, ACKS))


def test_a_page_is_read_as_it_was_written() -> None:
    page = decode_page(made())
    assert (page.through, page.rows, page.ends) == (250, 5, (300, 400))
    assert page.losses == ((8, 90, 99),)
    assert page.acks == tuple(ACKS)
    assert [(*piece[:4], bytes(piece.batch)) for piece in page.pieces] == [
        (7, 100, 3, 0, b"offsets"),
        (8, 200, 2, 4, b"rows"),
    ]


def test_batches_are_not_copied_into_a_page() -> None:
    batch = b"bytes of a batch"
    assert any(buffer is batch for buffer in page_buffers(1, 1, (), (), [(1, 1, 1, 0, [batch])]))


def test_every_byte_of_a_page_counts() -> None:
    original = made()
    for at in range(len(original)):
        spoiled = bytearray(original)
        spoiled[at] ^= 0x10
        with pytest.raises(ProtocolError, match="digest"):
            decode_page(spoiled)


def test_a_page_that_was_cut_or_is_too_long_is_refused() -> None:
    for data in (b"", made()[:10], made()[:-1], made() + b"x"):
        with pytest.raises(ProtocolError):
            decode_page(data)


def test_a_page_has_as_many_rows_as_the_replica_keeps() -> None:
    with pytest.raises(ProtocolError, match="other than the 6 rows"):
        decode_page(made(rows=6))


def test_counts_that_nobody_can_fulfil_are_refused_though_their_digest_is_right() -> None:
    for at in (16, 20, 24, 28):
        body = bytearray(made()[16:])
        body[at : at + 4] = b"\xff\xff\xff\x7f"
        with pytest.raises(ProtocolError):
            decode_page(xxh3_128_digest(bytes(body)) + bytes(body))
