"""Columns as Arrow arrays: the same values, and the same bytes where that is possible."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch, BatchBuilder, ColumnId
from antiphon.batch_arrow import body_array, sequence_array, timestamp_array

pyarrow = pytest.importorskip("pyarrow")

BODIES = [b"a", b"", b"ccc", b"dd"]


def plain() -> Batch:
    return Batch.of_bodies(BODIES, producer=7, first_number=1, timestamp_ms=1_700_000_000_250)


def with_timestamps() -> Batch:
    builder = BatchBuilder()
    for number, body in enumerate(BODIES):
        builder.add(body, timestamp_ms=1_700_000_000_000 + number)
    return builder.build(producer=7, first_number=1)


@pytest.mark.parametrize("batch", [plain(), Batch.decode(plain().encode()), with_timestamps()])
def test_bodies_are_a_binary_array(batch: Batch) -> None:
    array = body_array(batch)
    array.validate(full=True)
    assert array.type == pyarrow.binary()
    assert array.to_pylist() == BODIES


def test_bodies_that_start_at_0_are_not_copied_nor_are_their_offsets() -> None:
    batch = plain()
    body = batch.column(ColumnId.BODY)
    assert body is not None and body.offsets is not None
    _, offsets, values = body_array(batch).buffers()
    assert offsets.address == pyarrow.py_buffer(body.offsets.cast("B")).address
    assert values.address == pyarrow.py_buffer(body.values).address


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (2, 4), (3, 4)])
def test_a_slice_is_the_slice_of_the_array_and_copies_no_body(start: int, stop: int) -> None:
    for batch in (plain(), with_timestamps()):
        part = batch.slice(start, stop)
        body = part.column(ColumnId.BODY)
        assert body is not None
        array = body_array(part)
        array.validate(full=True)
        assert array.to_pylist() == BODIES[start:stop]
        assert array.buffers()[2].address == pyarrow.py_buffer(body.values).address
        assert timestamp_array(part) == timestamp_array(batch)[start:stop]
        assert body_array(Batch.decode(part.encode())) == array


def test_timestamps_are_milliseconds_utc() -> None:
    assert timestamp_array(plain()).type == pyarrow.timestamp("ms", tz="UTC")
    assert timestamp_array(plain()).cast("int64").to_pylist() == [1_700_000_000_250] * 4
    assert timestamp_array(with_timestamps()).cast("int64").to_pylist() == [
        1_700_000_000_000 + number for number in range(4)
    ]


def test_sequence_numbers_count_on() -> None:
    array = sequence_array(2**40, 3)
    assert array.type == pyarrow.int64()
    assert array.to_pylist() == [2**40, 2**40 + 1, 2**40 + 2]
