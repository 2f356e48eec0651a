"""Row digests: the same for the same rows, however they are cut, and another one for other rows."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given
from hypothesis import strategies as st

from antiphon.batch import BatchBuilder
from antiphon.pipeline.columns import ARCHIVED
from antiphon.pipeline.jobs.row_digests import rows_digest
from antiphon.pipeline.rows import BatchRows, record_batches
from tests.unit.pipeline.test_round_trip import messages

rows_of = st.lists(messages, min_size=1, max_size=6)


def read(said: list[dict[str, Any]], first: int = 1) -> list[pa.RecordBatch]:
    builder = BatchBuilder()
    for message in said:
        builder.add(**{"timestamp_ms": 5, **message})
    batch = builder.build(producer=0xA1, first_number=1)
    return list(record_batches("a", [BatchRows("topic:a", first, batch)], ARCHIVED))


@given(rows_of, st.integers(0, 6))
def test_rows_have_one_digest_however_they_are_cut(said: list[dict[str, Any]], cut: int) -> None:
    (whole,) = read(said)
    assert rows_digest([whole]) == rows_digest([whole.slice(0, cut), whole.slice(cut)])


@given(rows_of)
def test_rows_have_one_digest_before_and_after_parquet(said: list[dict[str, Any]]) -> None:
    batches = read(said)
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches), written)
    found = pq.read_table(pa.BufferReader(written.getvalue()))
    assert rows_digest(found.to_batches()) == rows_digest(batches)


@given(rows_of, rows_of)
def test_other_rows_have_another_digest(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    (left,), (right,) = read(one), read(other)
    assume(left.to_pylist() != right.to_pylist())
    assert rows_digest([left]) != rows_digest([right])


def test_every_column_counts() -> None:
    (rows,) = read([{"body": {"a": 1}, "key": "k", "properties": {"a": 1}, "priority": 7, "expires_ms": 9}])
    seen = {rows_digest([rows])}
    for at, column in enumerate(rows.columns):
        other = _other(column)
        assert other != column
        seen.add(rows_digest([rows.set_column(at, rows.schema.field(at), other)]))
    assert len(seen) == 1 + rows.num_columns


def _other(column: pa.Array) -> pa.Array:
    """Another value of the same type: null, if there is one, and else a value."""
    if pa.types.is_map(column.type):
        return pa.array([[("a", "2")]], column.type)
    if column.null_count:
        return pa.array([5 if pa.types.is_timestamp(column.type) else b"x"[:1]], column.type)
    return pa.nulls(1, column.type)


def test_empty_and_absent_are_not_the_same() -> None:
    assert rows_digest(read([{"body": "x", "key": ""}])) != rows_digest(read([{"body": "x"}]))
    two, one = [{"body": "ab"}, {"body": "c"}], [{"body": "a"}, {"body": "bc"}]
    assert rows_digest(read(two)) != rows_digest(read(one))
