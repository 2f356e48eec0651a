"""Batch: reading, slicing and writing, by example. The laws are in tests/property."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import BATCH_BYTES_MAX, BODY_BYTES_MAX, ROWS_MAX, Batch, BatchBuilder, ColumnId
from antiphon.errors import InvalidMessage, MessageTooLarge

BODIES = [b"a", b"", b"ccc", b"dd"]


def of_bodies(bodies: Any) -> Batch:
    return Batch.of_bodies(bodies, producer=7, first_number=1, timestamp_ms=5)


def test_a_plain_batch_is_its_header_one_entry_the_offsets_and_the_bodies() -> None:
    """The format, byte for byte: a change here is a change of protocol."""
    batch = Batch.of_bodies([b"a", b"bc"], producer=0x0102, first_number=3, timestamp_ms=4)
    assert batch.encode() == b"".join(
        [
            b"\xb2\0\0\0",  # version, flags, codec, kind: bytes
            b"\2\0\0\0",  # count
            b"\x50\0\0\0",  # length
            b"\1\0\0\0",  # one column, first bit 0, no names
            b"\2\1" + bytes(14),  # producer
            b"\3" + bytes(7),  # first number
            b"\4" + bytes(7),  # timestamp
            b"\0\x09\0\0\3\0\0\0",  # column 0, BYTES, no presence, no name, 3 bytes
            b"\0\0\0\0\1\0\0\0\3\0\0\0" + bytes(4),  # offsets
            b"abc" + bytes(5),
        ]
    )


def test_bodies_come_back_one_by_one_and_all_at_once() -> None:
    batch = of_bodies(BODIES)
    assert batch.count == 4
    assert [batch.body(row) for row in range(4)] == BODIES
    assert [bytes(batch.body_bytes(row)) for row in range(4)] == BODIES
    assert batch.bodies() == BODIES


def test_a_plain_batch_has_defaults_for_everything_else() -> None:
    batch = of_bodies(BODIES)
    assert (batch.producer, batch.first_number, batch.timestamp_ms(3)) == (7, 1, 5)
    assert (batch.priority(0), batch.expires_ms(0), batch.deliver_at_ms(0)) == (4, 0, 0)
    assert batch.is_persistent(0)
    assert batch.key(0) is batch.correlation_id(0) is batch.reply_to(0) is batch.type(0) is None
    assert batch.properties(0) == {}
    assert batch.column(ColumnId.EXPIRES) is None
    assert batch.property_column("region") is None


def test_rows_taken_here_and_there_keep_their_numbers_in_a_last_column() -> None:
    """The format, byte for byte: a change here is a change of protocol."""
    taken = of_bodies(BODIES).take([0, 2, 3])
    assert (taken.count, taken.first_number, taken.bodies()) == (3, 1, [b"a", b"ccc", b"dd"])
    assert [taken.offset(row) for row in range(3)] == [0, 2, 3]
    assert taken.encode() == b"".join(
        [
            b"\xb2\0\0\0" + b"\3\0\0\0" + b"\x68\0\0\0",  # three rows
            b"\2\0\0\0",  # two columns
            b"\7" + bytes(15) + b"\1" + bytes(7) + b"\5" + bytes(7),
            b"\0\x09\0\0\6\0\0\0",  # the bodies
            b"\x0e\4\0\0\x0c\0\0\0",  # column 14, I32: how far the numbers lie apart
            b"\0\0\0\0\1\0\0\0\4\0\0\0\6\0\0\0" + b"acccdd\0\0",
            b"\0\0\0\0\2\0\0\0\3\0\0\0" + bytes(4),
        ]
    )


def test_rows_taken_here_and_there_may_be_closed_up() -> None:
    batch = Batch.of_bodies([b"%d" % at for at in range(6)], 7, 100, 1)
    taken = batch.take([1, 3, 4])
    closed = taken.closed_up()
    assert (closed.has_gaps, taken.has_gaps) == (False, True)
    assert Batch.decode(closed.encode()) == closed
    assert (closed.bodies(), closed.runs()) == ([b"1", b"3", b"4"], [(0, 3, 0)])
    assert batch.closed_up() is batch


def test_neighbours_that_are_taken_are_a_slice() -> None:
    batch = of_bodies(BODIES)
    taken = batch.take([1, 2])
    assert taken == batch.slice(1, 3)
    assert not taken.has_gaps
    assert taken.body_bytes(1).obj is batch.body_bytes(2).obj, "no body is copied"
    assert batch.take(range(4)) is batch


def test_a_slice_has_its_own_numbers_and_shares_the_bytes() -> None:
    batch = of_bodies(BODIES)
    part = batch.slice(1, 4).slice(1, 2)
    assert (part.count, part.first_number, part.bodies()) == (1, 3, [b"ccc"])
    assert part.body_bytes(0).obj is batch.body_bytes(0).obj is batch.encode()


def test_the_same_rows_can_be_somebody_elses_under_other_numbers() -> None:
    batch = Batch.of_bodies([b"a", b"bc"], producer=0, first_number=0, timestamp_ms=5)
    other = Batch.decode(batch.numbered(7, 100).encode())
    assert (other.producer, other.first_number, other.count) == (7, 100, 2)
    assert other.bodies() == [b"a", b"bc"] and other.timestamp_ms(1) == 5
    assert (batch.producer, batch.first_number) == (0, 0)


def test_the_whole_is_no_new_slice() -> None:
    batch = of_bodies(BODIES)
    assert batch.slice(0, 4) is batch


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 1), (-1, 2), (0, 5)])
def test_there_is_no_empty_slice_and_none_beyond_the_rows(start: int, stop: int) -> None:
    with pytest.raises(AssertionError, match="in a batch of 4"):
        of_bodies(BODIES).slice(start, stop)


def test_the_buffers_of_a_slice_are_views_of_the_whole() -> None:
    batch = of_bodies([bytes(1000), b"\1" * 1000, bytes(1000)])
    buffers = batch.slice(1, 2).buffers()
    assert b"".join(buffers) == batch.slice(1, 2).encode()
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert [(view.format, view.nbytes) for view in views] == [("B", 8), ("B", 1000)]
    assert all(view.obj is batch.encode() for view in views)


def test_a_decoded_batch_is_written_as_it_came() -> None:
    data = memoryview(of_bodies(BODIES).encode())
    (buffer,) = Batch.decode(data).buffers()
    assert isinstance(buffer, memoryview) and buffer.obj is data.obj


def test_a_row_weighs_its_bytes_in_all_columns() -> None:
    assert of_bodies(BODIES).row_bytes(2) == 3 + 4
    builder = BatchBuilder()
    builder.add(b"ccc", {"n": 1}, timestamp_ms=1, key="kk")
    builder.add(b"ccc", {"n": 2}, timestamp_ms=2, key="kk")
    batch = builder.build(7, 1)
    assert batch.row_bytes(0) == (3 + 4) + (2 + 4) + 8 + 8


@pytest.mark.parametrize(
    ("start", "budget", "rows"),
    [(0, 0, 0), (0, 4, 0), (0, 5, 1), (0, 8, 1), (0, 9, 2), (0, 15, 2), (0, 16, 3), (0, 22, 4), (2, 7, 1)],
)
def test_as_many_rows_as_a_budget_allows(start: int, budget: int, rows: int) -> None:
    """They weigh 5, 4, 7 and 6."""
    assert of_bodies(BODIES).rows_within(start, budget) == rows


def test_sizes_are_known_before_anything_is_written() -> None:
    batch = of_bodies(BODIES)
    for part in (batch, batch.slice(1, 3), Batch.decode(batch.encode())):
        assert part.byte_size == len(part.encode())


@pytest.mark.parametrize(
    ("bodies", "complaint"),
    [
        ([b"a", "b"], "body 1 is of type str, not bytes"),
        ([b"a", 7], "body 1 is of type int, not bytes"),
        ([memoryview(bytes(8)).cast("q")], "body 0 is of type memoryview, not bytes"),
    ],
)
def test_a_body_that_is_not_bytes_is_refused(bodies: Any, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        of_bodies(bodies)


def test_a_body_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    batch = of_bodies([bytes(BODY_BYTES_MAX)])
    assert Batch.decode(batch.encode()).bodies() == [bytes(BODY_BYTES_MAX)]
    with pytest.raises(MessageTooLarge, match="body 1 of 1,048,577 bytes is larger than the 1,048,576"):
        of_bodies([b"", bytes(BODY_BYTES_MAX + 1)])


def test_a_batch_has_limits_of_rows_and_bytes() -> None:
    assert Batch.decode(of_bodies([b""] * ROWS_MAX).encode()).count == ROWS_MAX
    with pytest.raises(MessageTooLarge, match="65,537 messages"):
        of_bodies([b""] * (ROWS_MAX + 1))
    largest = [bytes(BODY_BYTES_MAX), bytes(BATCH_BYTES_MAX - BODY_BYTES_MAX - 88)]
    assert Batch.decode(of_bodies(largest).encode()).count == 2
    with pytest.raises(MessageTooLarge, match="2 messages"):
        of_bodies([*largest[:1], largest[1] + bytes(8)])
    with pytest.raises(MessageTooLarge, match="0 messages"):
        of_bodies([])
