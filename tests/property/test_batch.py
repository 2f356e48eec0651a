"""The laws of batches: BAT1 to BAT3, DEC1, and what accepted bytes promise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.batch import Batch, BatchBuilder
from antiphon.errors import ProtocolError
from antiphon.values import Float32, Int8, Int16, Int32

# Few names, each mostly of one type, so that columns, gaps and blobs all come up.
property_values = {
    "flag": st.booleans(),
    "n": st.integers(-(2**63), 2**63 - 1),
    "i8": st.integers(-128, 127).map(Int8),
    "i16": st.integers(-(2**15), 2**15 - 1).map(Int16),
    "i32": st.integers(-(2**31), 2**31 - 1).map(Int32),
    "f": st.floats(allow_nan=False),
    "f32": st.floats(width=32, allow_nan=False).map(Float32),
    "größe": st.text(max_size=5),
    "raw": st.binary(max_size=5),
    "nothing": st.none(),
}
properties = st.fixed_dictionaries({}, optional=property_values) | st.dictionaries(
    st.sampled_from(["flag", "n", "other"]), st.one_of(*property_values.values()), max_size=2
)
bodies = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=10),
    st.none(),
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.lists(st.none(), max_size=2), max_size=3),
    st.lists(st.text(max_size=3) | st.booleans(), max_size=3),
)
times = st.integers(0, 2**63 - 1)
texts = st.text(max_size=5)
rows = st.fixed_dictionaries(
    {"body": bodies, "timestamp_ms": st.just(5) | times},
    optional={
        "properties": properties,
        "priority": st.integers(0, 9),
        "expires_ms": times,
        "deliver_at_ms": times,
        "key": texts,
        "correlation_id": texts,
        "reply_to": texts,
        "type": texts,
        "persistent": st.booleans(),
        "dedup_id": st.none() | st.binary(min_size=1, max_size=5),
    },
)
# Some batches of rows alike, where columns are left out; some with every row different.
messages = st.lists(rows, min_size=1, max_size=20) | st.builds(
    lambda row, count: [row] * count, rows, st.integers(1, 20)
)

DEFAULTS: dict[str, Any] = {
    "properties": {},
    "priority": 4,
    "expires_ms": 0,
    "deliver_at_ms": 0,
    "key": None,
    "correlation_id": None,
    "reply_to": None,
    "type": None,
    "persistent": True,
    "dedup_id": None,
}


def build(messages: list[dict[str, Any]]) -> Batch:
    builder = BatchBuilder()
    for message in messages:
        builder.add(**message)
    promised = builder.byte_size
    batch = builder.build(producer=2**127 + 3, first_number=11)
    assert batch.byte_size <= promised
    return batch


def read(batch: Batch) -> list[dict[str, Any]]:
    """Every row, through every accessor."""
    return [
        {
            "body": batch.body(row),
            "timestamp_ms": batch.timestamp_ms(row),
            "properties": batch.properties(row),
            "priority": batch.priority(row),
            "expires_ms": batch.expires_ms(row),
            "deliver_at_ms": batch.deliver_at_ms(row),
            "key": batch.key(row),
            "correlation_id": batch.correlation_id(row),
            "reply_to": batch.reply_to(row),
            "type": batch.type(row),
            "persistent": batch.is_persistent(row),
            "dedup_id": batch.dedup_id(row),
        }
        for row in range(batch.count)
    ]


def typed(rows: list[dict[str, Any]]) -> list[Any]:
    """With the types written out, for == does not see them: 1 == True == Int8(1)."""
    return [
        {**row, "properties": {k: (type(v), repr(v)) for k, v in row["properties"].items()}} for row in rows
    ]


def cuts(count: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, count), st.integers(0, count)).map(
        lambda pair: (min(*pair, count - 1), max(max(pair), min(*pair, count - 1) + 1))
    )


@given(messages)
def test_messages_come_back_from_their_bytes(messages: list[dict[str, Any]]) -> None:
    batch = build(messages)
    again = Batch.decode(batch.encode())
    assert again == batch
    assert (again.producer, again.first_number, again.count) == (2**127 + 3, 11, len(messages))
    assert typed(read(batch)) == typed(read(again)) == typed([DEFAULTS | message for message in messages])


@given(messages, st.data())
def test_a_slice_of_a_slice_is_the_slice_taken_at_once(messages: list[dict[str, Any]], data: Any) -> None:
    batch = build(messages)
    start, stop = data.draw(cuts(batch.count))
    first, last = data.draw(cuts(stop - start))
    inner = batch.slice(start, stop).slice(first, last)
    assert inner == batch.slice(start + first, start + last)
    assert inner == Batch.decode(batch.slice(start, stop).encode()).slice(first, last)
    assert inner.first_number == batch.first_number + start + first
    assert read(inner) == read(Batch.decode(inner.encode())) == read(batch)[start + first : start + last]


@given(messages, st.data())
def test_a_slice_copies_no_body_and_its_buffers_are_its_bytes(
    messages: list[dict[str, Any]], data: Any
) -> None:
    whole = build(messages).encode()
    batch = Batch.decode(whole)
    part = batch.slice(*data.draw(cuts(batch.count)))
    assert b"".join(part.buffers()) == part.encode()
    assert len(part.encode()) == part.byte_size
    assert part.byte_size % 8 == 0
    assert all(part.body_bytes(row).obj is whole for row in range(part.count))
    assert all(len(buffer) == memoryview(buffer).nbytes for buffer in part.buffers())


def places(count: int) -> st.SearchStrategy[list[int]]:
    """Some rows, ascending, often here and there."""
    return st.sets(st.integers(0, count - 1), min_size=1).map(sorted)


def numbers(batch: Batch) -> list[int]:
    return [batch.first_number + batch.offset(row) for row in range(batch.count)]


@given(messages, st.data())
def test_rows_that_are_taken_are_those_rows_one_by_one(messages: list[dict[str, Any]], data: Any) -> None:
    batch = build(messages)
    start, stop = data.draw(cuts(batch.count))
    # Of a slice too, whose bits begin anywhere.
    part = batch.slice(start, stop)
    rows = data.draw(places(part.count))
    taken = part.take(rows)
    assert numbers(taken) == [batch.first_number + start + row for row in rows]
    one_by_one = [part.slice(row, row + 1) for row in rows]
    assert typed(read(taken)) == typed([row for one in one_by_one for row in read(one)])
    assert [taken.row_bytes(row) for row in range(taken.count)] == [
        one.row_bytes(0) + 4 * taken.has_gaps for one in one_by_one
    ]
    assert taken.has_gaps == (rows != list(range(rows[0], rows[-1] + 1)))
    assert [row for begin, end, _ in taken.runs() for row in range(begin, end)] == list(range(taken.count))
    for begin, end, offset in taken.runs():
        assert [taken.offset(row) - offset for row in range(begin, end)] == list(range(end - begin))


@given(messages, st.data())
def test_taken_rows_come_back_from_their_bytes_and_are_cut_and_taken_again(
    messages: list[dict[str, Any]], data: Any
) -> None:
    batch = build(messages)
    rows = data.draw(places(batch.count))
    taken = batch.take(rows)
    again = Batch.decode(taken.encode())
    assert again == taken
    assert b"".join(taken.buffers()) == taken.encode()
    assert len(taken.encode()) == taken.byte_size
    start, stop = data.draw(cuts(taken.count))
    few = data.draw(places(taken.count))
    for part, wanted in (
        (again.slice(start, stop), rows[start:stop]),
        (again.take(few), [rows[i] for i in few]),
    ):
        assert numbers(part) == [batch.first_number + row for row in wanted]
        assert typed(read(part)) == typed([read(batch)[row] for row in wanted])
        assert Batch.decode(part.encode()) == part
    assert numbers(again.numbered(5, 100)) == [100 + row - rows[0] for row in rows]


@given(messages, st.integers(0, 600), st.data())
def test_taken_rows_fill_a_budget_and_do_not_exceed_it(
    messages: list[dict[str, Any]], budget: int, data: Any
) -> None:
    batch = build(messages)
    rows = data.draw(places(batch.count))
    weights = [batch.row_bytes(row) + 4 for row in rows]
    fitting = batch.fitting(rows, budget)
    assert sum(weights[:fitting]) <= budget or not fitting
    assert fitting == len(rows) or sum(weights[: fitting + 1]) > budget


@given(messages, st.integers(0, 400), st.data())
def test_a_budget_is_filled_and_not_exceeded(messages: list[dict[str, Any]], budget: int, data: Any) -> None:
    batch = build(messages)
    start = data.draw(st.integers(0, batch.count - 1))
    weights = [batch.row_bytes(row) for row in range(batch.count)]
    taken = batch.rows_within(start, budget)
    assert sum(weights[start : start + taken]) <= budget
    assert start + taken == batch.count or sum(weights[start : start + taken + 1]) > budget


@settings(max_examples=30)
@given(messages)
def test_a_batch_cut_anywhere_is_refused(messages: list[dict[str, Any]]) -> None:
    data = build(messages).encode()
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            Batch.decode(data[:end])


@settings(max_examples=300)
@given(messages, st.data())
def test_a_batch_with_changed_bytes_can_be_read_or_is_refused(
    messages: list[dict[str, Any]], data: Any
) -> None:
    """DEC1, and what decode accepts can be read by every accessor."""
    batch = build(messages)
    if data.draw(st.booleans()):
        batch = batch.take(data.draw(places(batch.count)))
    encoded = bytearray(batch.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 255]) | st.integers(0, 255))
    try:
        batch = Batch.decode(bytes(encoded))
    except ProtocolError:
        return
    read(batch)
    read(batch.slice(batch.count // 2, batch.count))
    assert numbers(batch) == sorted(set(numbers(batch))), "numbers ascend"
    assert batch.encode() == encoded


@given(st.binary(max_size=200), st.integers(0, 2))
def test_any_bytes_are_a_batch_or_a_protocol_error(data: bytes, rows: int) -> None:
    header = b"\xb2\0\0\0" + rows.to_bytes(4, "little") + (len(data) + 12).to_bytes(4, "little")
    for candidate in (data, header + data):
        try:
            read(Batch.decode(candidate))
        except ProtocolError:
            pass


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=50), st.data())
def test_bodies_come_back(bodies: list[bytes], data: Any) -> None:
    batch = Batch.of_bodies(bodies, producer=7, first_number=1, timestamp_ms=5)
    assert Batch.decode(batch.encode()).bodies() == bodies
    start, stop = data.draw(cuts(len(bodies)))
    part = batch.slice(start, stop)
    assert part.bodies() == Batch.decode(part.encode()).bodies() == bodies[start:stop]
