"""Rows of Arrow become batches: the same messages that a builder would make of them, row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import BATCH_BYTES_MAX, Batch
from antiphon.errors import InvalidMessage, InvalidName, MessageTooLarge
from antiphon.pipeline import outgoing
from antiphon.pipeline.outgoing import OutgoingRows, batches_of

MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("key", pa.string()),
        ("priority", pa.int32()),
        ("type", pa.string()),
        ("properties", MAP),
    ]
)


def wall_ms() -> int:
    return 5


def as_sent(batch: Batch) -> Batch:
    """What the broker reads: it looks at everything."""
    return Batch.decode(batch.numbered(7, 1).encode())


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    return [
        {
            "body": batch.body(row),
            "key": batch.key(row),
            "priority": batch.priority(row),
            "type": batch.type(row),
            "properties": batch.properties(row),
        }
        for row in range(batch.count)
    ]


texts = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
rows = st.fixed_dictionaries(
    {
        "body": st.none() | st.binary(max_size=12),
        "key": texts,
        "priority": st.none() | st.integers(0, 9),
        "type": st.none() | st.just("order"),
        "properties": st.none()
        | st.dictionaries(st.sampled_from(["a", "b", "region"]), st.text("xyž", max_size=4), max_size=3)
        # No value: then it is written row by row.
        | st.just({"a": None}),
    }
)


@given(st.lists(rows, min_size=1, max_size=30), st.integers(0, 5), st.booleans())
def test_columns_say_what_the_rows_said(some: list[dict[str, Any]], skipped: int, is_large: bool) -> None:
    schema = SCHEMA
    if is_large:
        large = {"body": pa.large_binary(), "key": pa.large_string()}
        schema = pa.schema([(field.name, large.get(field.name, field.type)) for field in SCHEMA])
    record = pa.RecordBatch.from_pylist(
        [
            {**row, "properties": None if row["properties"] is None else list(row["properties"].items())}
            for row in some
        ],
        schema=schema,
    )
    # A slice: what Arrow has in memory begins elsewhere, and so do its bits.
    start = min(skipped, len(some) - 1)
    made = [as_sent(batch) for batch in batches_of(record.slice(start), 5)]
    expected = [
        {
            **row,
            "priority": 4 if row["priority"] is None else row["priority"],
            "properties": row["properties"] or {},
        }
        for row in some[start:]
    ]
    assert [row for batch in made for row in rows_of(batch)] == expected
    assert {batch.timestamp_ms(0) for batch in made} == {5}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [1, -2]),
        (pa.int32(), [1, 1 << 30]),
        (pa.int64(), [1, -(1 << 62)]),
        (pa.float32(), [0.5, 1.5]),
        (pa.float64(), [0.1, -1e300]),
        (pa.bool_(), [True, False]),
        (pa.binary(), [b"", b"\xff"]),
    ],
)
def test_properties_keep_their_type(kind: pa.DataType, values: list[Any]) -> None:
    maps = pa.array([[("n", values[0])], [], [("n", values[1])]], pa.map_(pa.string(), kind))
    record = pa.RecordBatch.from_arrays([pa.array(["x", "y", "z"]), maps], ["body", "properties"])
    (batch,) = (as_sent(one) for one in batches_of(record, 5))
    assert [batch.properties(row) for row in range(3)] == [{"n": values[0]}, {}, {"n": values[1]}]
    assert batch.bodies() == [b"x", b"y", b"z"] and batch.body(0) == "x"


def test_many_names_of_properties_are_written_too() -> None:
    maps = pa.array([[(f"p{row}_{n}", "x") for n in range(20)] for row in range(10)], MAP)
    record = pa.RecordBatch.from_arrays([pa.array([b"x"] * 10), maps], ["body", "properties"])
    (batch,) = (as_sent(one) for one in batches_of(record, 5))
    assert batch.properties(9) == {f"p9_{n}": "x" for n in range(20)}


def test_what_is_small_is_gathered_and_what_is_large_is_cut() -> None:
    small = pa.RecordBatch.from_pydict({"body": pa.array([bytes(10)] * 100)})
    made = list(OutgoingRows("queue:a", wall_ms).take([small] * 50))
    assert [(destination, batch.count) for destination, batch in made] == [("queue:a", 5_000)]
    large = pa.RecordBatch.from_pydict({"body": pa.array([bytes(1_000)] * 10_000)})
    made = list(OutgoingRows("queue:a", wall_ms).take([large]))
    assert sum(batch.count for _, batch in made) == 10_000
    assert all(batch.byte_size < 512 * 1024 for _, batch in made)
    assert len(made) == -(-10_000 * 1_008 // outgoing.CHUNK_BYTES)
    huge = pa.RecordBatch.from_pydict({"body": pa.array([bytes(1 << 20), b"", bytes(1 << 20)])})
    sizes = [as_sent(batch).byte_size for _, batch in OutgoingRows("queue:a", wall_ms).take([huge])]
    assert max(sizes) <= BATCH_BYTES_MAX and len(sizes) >= 2


def test_rows_of_one_destination_stay_in_order_whatever_else_goes_by() -> None:
    names = [f"queue:{number % 3}" for number in range(3_000)]
    bodies = [str(number).encode() for number in range(3_000)]
    record = pa.RecordBatch.from_pydict({"body": pa.array(bodies), "destination": pa.array(names)})
    found: dict[str, list[bytes]] = {}
    taking = OutgoingRows(None, wall_ms)
    for destination, batch in taking.take([record.slice(0, 700), record.slice(700)]):
        found.setdefault(destination, []).extend(as_sent(batch).bodies())
    assert taking.rows == 3_000
    for number in range(3):
        assert found[f"queue:{number}"] == bodies[number::3]


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "HELD_BYTES_MAX", 10_000)
    names = [f"queue:{number}" for number in range(100)]
    record = pa.RecordBatch.from_pydict(
        {"body": pa.array([bytes(100)] * 100), "destination": pa.array(names)}
    )
    taking = OutgoingRows(None, wall_ms)
    came: list[int] = []
    for _ in taking.take(record.slice(0, 100) for _ in range(20)):
        came.append(taking.rows)
        assert sum(taking._held_bytes.values()) <= 10_000 + record.nbytes
    assert came[0] < 200, "some left while others were still to come"


def test_the_option_overrides_what_rows_say() -> None:
    record = pa.RecordBatch.from_pydict({"body": pa.array([b"x"]), "destination": pa.array(["queue:b"])})
    ((destination, batch),) = OutgoingRows("queue:a", wall_ms).take([record])
    assert (destination, as_sent(batch).count) == ("queue:a", 1)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"body": pa.array([bytes((1 << 20) + 1)])}, MessageTooLarge, "column body has a value of 1,048,577"),
        ({"key": pa.array(["k" * 65_537])}, MessageTooLarge, "column key has a value of 65,537 bytes"),
        ({"priority": pa.array([10], pa.int64())}, InvalidMessage, "column priority has 10; it is 0 to 9"),
        ({"priority": pa.array([-1], pa.int8())}, InvalidMessage, "column priority has -1"),
        (
            {"key": pa.array([b"\xff"]).view(pa.string())},
            InvalidMessage,
            "column key has text that is not UTF-8",
        ),
        ({"body": pa.array([b"\xff"]).view(pa.string())}, InvalidMessage, "column body has text"),
        ({"properties": pa.array([[("a b", "x")]], MAP)}, InvalidName, "property name 'a b'"),
        ({"properties": pa.array([[("a", "x" * 65_537)]], MAP)}, MessageTooLarge, "properties: a"),
    ],
)
def test_what_no_message_may_have_is_refused_by_its_column(
    columns: dict[str, pa.Array], error: type[Exception], words: str
) -> None:
    record = pa.RecordBatch.from_pydict({"body": pa.array([b"x"]), **columns})
    with pytest.raises(error, match=words):
        list(OutgoingRows("queue:a", wall_ms).take([record]))


def test_a_row_without_a_destination_is_refused() -> None:
    names = pa.array(["queue:a", None])
    record = pa.RecordBatch.from_pydict({"body": pa.array([b"x", b"y"]), "destination": names})
    with pytest.raises(InvalidMessage, match="a row has no destination"):
        list(OutgoingRows(None, wall_ms).take([record]))


def timed(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"a", b"b", b"c"]), **columns})


@pytest.mark.parametrize("extra", [{}, {"properties": pa.array([[("a", None)], [], []], MAP)}])
def test_seconds_to_live_and_of_delay_become_times(extra: dict[str, pa.Array]) -> None:
    """By columns, and row by row where a property has no value."""
    rows = timed(
        ttl=pa.array([1.5, None, 0.0001]),
        expires=pa.array([None, 8_000_000, 8_000_000], pa.int64()),
        delay=pa.array([None, 0, 3], pa.int32()),
        **extra,
    )
    [batch] = map(as_sent, batches_of(rows, 1_000))
    assert [batch.expires_ms(row) for row in range(3)] == [2_500, 8_000, 1_001]
    assert [batch.deliver_at_ms(row) for row in range(3)] == [0, 0, 4_000]


def test_rows_without_times_have_no_rules() -> None:
    rows = timed(ttl=pa.array([None] * 3, pa.float64()), delay=pa.array([0, 0, None], pa.int64()))
    [batch] = map(as_sent, batches_of(rows, 1_000))
    assert batch.rules == 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttl", [0.0, 1.0, 2.0]),
        ("ttl", [-1.0, 1.0, 2.0]),
        ("delay", [1.0, float("inf"), 2.0]),
        ("delay", [-1, 1, 1]),
    ],
)
def test_times_that_cannot_be_are_refused_by_their_column(name: str, values: list[float]) -> None:
    with pytest.raises(InvalidMessage, match=f"column {name} is a number of seconds"):
        batches_of(timed(**{name: pa.array(values)}), 1_000)
