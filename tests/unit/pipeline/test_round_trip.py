"""From a topic through Spark's columns to a topic: what the sink makes of the source's own rows."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import math
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.batch import Batch, BatchBuilder
from antiphon.errors import InvalidMessage
from antiphon.ids import format_message_id
from antiphon.pipeline import decode_body
from antiphon.pipeline.columns import ALL
from antiphon.pipeline.outgoing import ORIGIN_ID, ORIGIN_TIME, OutgoingRows
from antiphon.pipeline.rows import BatchRows, record_batches
from antiphon.values import Float32, Int8, Int16, Int32

texts = st.none() | st.text(max_size=5)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.integers(-5, 5).map(Int8),
    st.integers(-500, 500).map(Int16),
    st.integers(-50_000, 50_000).map(Int32),
)
# What JSON says as it is.
simple = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text(max_size=5) | st.binary()
values = st.recursive(simple, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
bodies = st.one_of(
    st.none(),
    st.binary(max_size=9),
    st.text(max_size=9),
    st.lists(values, max_size=3),
    st.dictionaries(st.text(max_size=3), values, max_size=3),
)
messages = st.fixed_dictionaries(
    {"body": bodies},
    optional={
        "timestamp_ms": st.integers(0, 1 << 45),
        "priority": st.integers(0, 9),
        "expires_ms": st.integers(0, 1 << 45),
        "persistent": st.booleans(),
        "key": texts,
        "correlation_id": texts,
        "reply_to": texts,
        "type": texts,
        "properties": st.dictionaries(st.sampled_from(["a", "b", ORIGIN_ID]), scalars, max_size=3),
    },
)


def build(said: list[dict[str, Any]]) -> Batch:
    builder = BatchBuilder()
    for message in said:
        builder.add(**{"timestamp_ms": 5, **message})
    return builder.build(producer=0xA1, first_number=1)


def through_spark(batch: Batch, is_json: bool = True) -> Batch:
    """Read, and written as it was read."""
    read = record_batches("a", [BatchRows("topic:a", 1, batch)], ALL._replace(is_json=is_json))
    ((destination, written),) = OutgoingRows("topic:b", lambda: 77).take(read)
    assert destination == "topic:b"
    return Batch.decode(written.numbered(7, 1).encode())


def typed(properties: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    return {name: (type(value), value) for name, value in properties.items()}


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=10), st.booleans())
def test_from_topic_to_topic_kinds_properties_and_keys_stay(
    said: list[dict[str, Any]], is_json: bool
) -> None:
    before = build(said)
    after = through_spark(before, is_json)
    assert after.count == before.count
    for row in range(before.count):
        assert after.body_kind(row) == before.body_kind(row)
        assert after.body(row) == before.body(row)
        for column in ("key", "correlation_id", "reply_to", "type", "priority", "expires_ms"):
            assert getattr(after, column)(row) == getattr(before, column)(row)
        assert after.is_persistent(row) == before.is_persistent(row)
        origin = {ORIGIN_ID: format_message_id(0xA1, "a", 1 + row), ORIGIN_TIME: before.timestamp_ms(row)}
        assert typed(after.properties(row)) == typed({**origin, **before.properties(row)})
        assert after.timestamp_ms(row) == 77


@pytest.mark.parametrize("body", [b"\xff\x00", "text", {"a": [1, None, b"x"]}, [1.5, {"b": True}], None])
def test_a_body_of_each_kind_goes_through_a_column_of_its_own_kind(body: Any) -> None:
    after = through_spark(build([{"body": body}] * 3))
    assert [after.body(row) for row in range(3)] == [body] * 3


def test_types_that_json_has_not_stay_if_maps_go_as_they_are_stored() -> None:
    body = {"narrow": Int8(3), "half": Float32(0.5), "most": math.inf}
    after = through_spark(build([{"body": body}]), is_json=False).body(0)
    assert isinstance(after, dict) and typed(after) == typed(body)
    assert through_spark(build([{"body": body}])).body(0) == {"narrow": 3, "half": 0.5, "most": "inf"}


def test_plain_rows_of_the_source_are_written_column_by_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("row by row")

    monkeypatch.setattr("antiphon.pipeline.outgoing._row_by_row", refused)
    said = [
        {"body": b"x%d" % row if row % 2 else "text", "key": str(row), "properties": {"n": row, "half": 0.5}}
        for row in range(100)
    ]
    after = through_spark(build(said))
    assert after.properties(99) == {
        "n": 99,
        "half": 0.5,
        ORIGIN_ID: format_message_id(0xA1, "a", 100),
        ORIGIN_TIME: 5,
    }
    assert (after.body(98), after.body(99), after.key(98)) == ("text", b"x99", "98")


MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body_kind": pa.array(["text"])}, "column body_kind is bytes, str, map, list, none; it was 'text'"),
        ({"body_kind": pa.array(["acknowledgement"])}, "it was 'acknowledgement'"),
        ({"body_kind": pa.array(["map"])}, "a body of kind map is not JSON"),
        ({"body_kind": pa.array(["list"]), "body": pa.array([b"{}"])}, "a body of kind list is a JSON dict"),
        ({"body_kind": pa.array(["none"])}, "a row has a body, and none in its column body_kind"),
        (
            {"body_kind": pa.array(["str"]), "body": pa.array([b"\xff"])},
            "column body has text that is",
        ),
        (
            {"properties": pa.array([[("n", "x")]], MAP), "property_types": pa.array([[("n", "i32")]], MAP)},
            "property n is not of the type i32 that property_types says",
        ),
        (
            {"properties": pa.array([[("n", "x")]], MAP), "property_types": pa.array([[("n", "int")]], MAP)},
            "property n is not of the type int",
        ),
        (
            {"properties": pa.array([[("n", "300")]], MAP), "property_types": pa.array([[("n", "i8")]], MAP)},
            "property n is not of the type i8",
        ),
    ],
)
def test_what_the_columns_of_the_source_cannot_say_is_refused(columns: dict[str, Any], words: str) -> None:
    record = pa.RecordBatch.from_pydict({"body": pa.array([b"xyzw"]), **columns})
    with pytest.raises(InvalidMessage, match=words):
        list(OutgoingRows("queue:a", lambda: 5).take([record]))


@pytest.mark.parametrize(
    ("data", "kind", "body"),
    [
        (b"\xff", "bytes", b"\xff"),
        (b"\xc5\xbe", "str", "ž"),
        ('{"a":1}', "map", {"a": 1}),
        (bytearray(b"[1,2]"), "list", [1, 2]),
        (b"[]", "list", []),
        (None, "none", None),
        (b"\x00\x00\x00\x00", "map", {}),
    ],
)
def test_a_body_is_decoded_from_its_bytes_and_its_kind(data: Any, kind: str, body: Any) -> None:
    assert decode_body(data, kind) == body
