"""Rows: record batches say what the messages say, in exactly the columns that were promised."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.batch import Batch, BatchBuilder
from antiphon.batch.bodies import BodyKind
from antiphon.ids import format_message_id
from antiphon.pipeline import decode_body, rows
from antiphon.pipeline.columns import ALL, EVERY_COLUMN, Chosen, names_of
from antiphon.pipeline.filters import Narrowed
from antiphon.pipeline.rows import (
    AcknowledgedRow,
    BatchRows,
    acknowledgements,
    arrow_schema,
    may_have,
    property_text,
    property_type,
    record_batches,
    within_times,
)
from antiphon.values import Float32, Int8, Int16, Int32

CHANNEL = "a"


def by_row(piece: BatchRows, row: int, is_json: bool) -> dict[str, Any]:
    """A row as one would write it down by hand: what the columns are held against."""
    batch = piece.batch
    kind = BodyKind(batch.body_kind(row))
    properties = batch.properties(row)
    return {
        "destination": piece.destination,
        "channel": CHANNEL,
        "sequence": piece.first + row,
        "message_id": format_message_id(batch.producer, CHANNEL, batch.first_number + row),
        "timestamp": batch.timestamp_ms(row) * 1000,
        "priority": batch.priority(row),
        "key": batch.key(row),
        "correlation_id": batch.correlation_id(row),
        "reply_to": batch.reply_to(row),
        "type": batch.type(row),
        "properties": [(name, property_text(value)) for name, value in properties.items()],
        "property_types": [(name, property_type(value)) for name, value in properties.items()],
        "body_kind": kind.name.lower(),
        "expires": batch.expires_ms(row) * 1000 or None,
        "persistent": batch.is_persistent(row),
        "body": shown_body(batch, row, is_json),
    }


def shown_body(batch: Batch, row: int, is_json: bool) -> bytes | None:
    if is_json and batch.body_kind(row) in (BodyKind.MAP, BodyKind.LIST):
        return json.dumps(batch.body(row), separators=(",", ":")).encode()
    return None if batch.body_kind(row) == BodyKind.NONE else bytes(batch.body_bytes(row))


def shown(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Times as numbers, so that a year 200,000 can be compared too."""
    columns = {
        name: batch.column(name).cast("int64") if pa.types.is_timestamp(kind) else batch.column(name)
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True)
    }
    return pa.table(columns).to_pylist()  # type: ignore[no-any-return]


def check(pieces: list[BatchRows], wanted: Chosen = ALL) -> None:
    found: list[dict[str, Any]] = []
    for batch in record_batches(CHANNEL, pieces, wanted):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(wanted.names))
        found += shown(batch)
    written = [by_row(piece, row, wanted.is_json) for piece in pieces for row in range(piece.batch.count)]
    assert found == [{name: row[name] for name in wanted.names} for row in written]


texts = st.none() | st.text(max_size=5)
values = st.one_of(
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
messages = st.fixed_dictionaries(
    {
        "body": st.one_of(
            st.binary(max_size=9), st.text(max_size=9), st.none(), st.just({"a": 1}), st.just([1])
        )
    },
    optional={
        "timestamp_ms": st.integers(0, 1 << 45),
        "priority": st.integers(0, 9),
        "expires_ms": st.integers(0, 1 << 45),
        "persistent": st.booleans(),
        "key": texts,
        "correlation_id": texts,
        "reply_to": texts,
        "type": texts,
        "properties": st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3),
    },
)


def build(said: list[dict[str, Any]], first_number: int) -> Batch:
    builder = BatchBuilder()
    for message in said:
        builder.add(
            message["body"], **{"timestamp_ms": 5, **{k: v for k, v in message.items() if k != "body"}}
        )
    return builder.build(producer=0xA1, first_number=first_number)


@st.composite
def pieces(draw: st.DrawFn) -> list[BatchRows]:
    """Batches of several destinations, whole or cut out of larger ones, with or without gaps."""
    made = []
    first = 1
    for _ in range(draw(st.integers(1, 5))):
        batch = build(draw(st.lists(messages, min_size=1, max_size=12)), first_number=first)
        if draw(st.booleans()):
            start = draw(st.integers(0, batch.count - 1))
            batch = batch.slice(start, draw(st.integers(start + 1, batch.count)))
        made.append(BatchRows(draw(st.sampled_from(["topic:a", "queue:b"])), first, batch))
        first += batch.count + draw(st.integers(0, 1))
    return made


choices = st.lists(st.sampled_from(ALL.names), min_size=1, unique=True).map(tuple)


@settings(deadline=None)
@given(pieces(), st.just(ALL.names) | choices, st.booleans())
def test_columns_say_what_rows_say(made: list[BatchRows], names: tuple[str, ...], is_json: bool) -> None:
    check(made, Chosen(names, is_json))


def test_of_columns_that_nobody_asked_for_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noting(name: str, maker: Any) -> Any:
        return lambda making: (made.append(name), maker(making))[1]

    for name, maker in rows._MAKERS.items():
        monkeypatch.setitem(rows._MAKERS, name, noting(name, maker))
    batch = build([{"body": b"x", "properties": {"a": 1}}], first_number=1)
    check([BatchRows("topic:a", 1, batch)], Chosen(("sequence", "body")))
    assert made == ["sequence", "body"]


def test_a_map_arrives_as_json_and_as_it_is_stored_if_that_is_asked_for() -> None:
    body = {"total": 12.5, "ids": [1, 2], "raw": b"\xff", "name": "ž", "most": math.inf}
    batch = build([{"body": body}, {"body": "text"}], first_number=1)
    (shown,) = record_batches(CHANNEL, [BatchRows("topic:a", 1, batch)])
    text, kind = shown.column("body")[0].as_py(), shown.column("body_kind")[0].as_py()
    assert text.decode() == '{"total":12.5,"ids":[1,2],"raw":{"base64":"/w=="},"name":"ž","most":"inf"}'
    assert decode_body(text, kind) == {**body, "most": "inf"}
    (stored,) = record_batches(CHANNEL, [BatchRows("topic:a", 1, batch)], ALL._replace(is_json=False))
    assert decode_body(stored.column("body")[0].as_py(), kind) == body


def test_plain_batches_beyond_what_is_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"%d" % number for number in range(rows.CONSTANT_ROWS + 10)]
    big = Batch.of_bodies(bodies, producer=7, first_number=1, timestamp_ms=1_700_000_000_250)
    check([BatchRows("topic:a", 11, big)])


def test_small_batches_are_gathered_and_large_ones_are_not() -> None:
    small = [
        BatchRows(
            "topic:a", 1 + 10 * n, Batch.of_bodies([b"x"] * 10, producer=7, first_number=1, timestamp_ms=n)
        )
        for n in range(rows.ROWS_AT_ONCE // 5)
    ]
    sizes = [batch.num_rows for batch in record_batches(CHANNEL, small)]
    assert len(sizes) == 2 and sum(sizes) == 10 * len(small)
    large = [
        BatchRows(
            "topic:a", 1, Batch.of_bodies([b"x" * 1000] * 1500, producer=7, first_number=1, timestamp_ms=0)
        )
    ] * 6
    assert [batch.num_rows for batch in record_batches(CHANNEL, large)] == [4500, 4500]


def test_rows_of_other_times_are_left_out_and_batches_of_other_times_are_not_looked_at() -> None:
    said = [build([{"body": b"%d" % n, "timestamp_ms": n} for n in some], 1) for some in ([1, 5, 9], [7, 7])]
    pieces = [BatchRows("topic:a", 1, said[0]), BatchRows("topic:a", 4, said[1])]
    for since, until, left in ((5_000, 9_000, [5, 7, 7]), (6_000, 7_001, [7, 7]), (8_000, 1 << 63, [9])):
        narrowed = Narrowed(since_us=since, until_us=until)
        made = within_times(record_batches(CHANNEL, pieces), narrowed)
        assert [int(body) for batch in made for body in batch.column("body").to_pylist()] == left
    assert may_have(pieces[0], Narrowed(since_us=10_000))
    assert may_have(pieces[1], Narrowed(since_us=7_000))
    assert not may_have(pieces[1], Narrowed(since_us=7_001))
    assert not may_have(pieces[1], Narrowed(until_us=7_000))


def test_numbers_of_messages_may_be_as_large_as_they_get() -> None:
    last = (1 << 64) - 2
    batch = Batch.of_bodies([b"x", b"y"], producer=7, first_number=last, timestamp_ms=0)
    check([BatchRows("topic:a", 1, batch)])


@pytest.mark.parametrize("first", [1, 995, 999, 1_000, 9_990, 99_999_999, (1 << 63) - 2_500])
def test_ids_of_messages_are_spelled_as_they_are_everywhere(first: int) -> None:
    batch = Batch.of_bodies([b"x"] * 2_100, producer=7, first_number=first, timestamp_ms=0)
    check([BatchRows("topic:a", 1, batch)], Chosen(("message_id", "sequence")))


def test_without_bodies_there_is_no_column_for_them() -> None:
    batch = Batch.of_bodies([b"x"], producer=7, first_number=1, timestamp_ms=0)
    (made,) = record_batches(CHANNEL, [BatchRows("topic:a", 1, batch)], Chosen(names_of(False)))
    assert made.schema.equals(arrow_schema(names_of(False)))
    assert "body" not in made.schema.names


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (True, "true", "bool"),
        (Int8(-3), "-3", "i8"),
        (7, "7", "i64"),
        (1.0, "1.0", "f64"),
        (Float32(0.5), "0.5", "f32"),
        ("x", "x", "str"),
        (b"\x00\xff", "AP8=", "bytes"),
        (None, None, "null"),
    ],
)
def test_properties_are_texts_with_the_names_of_their_types(value: Any, text: str | None, kind: str) -> None:
    assert (property_text(value), property_type(value)) == (text, kind)


def test_acknowledgements_are_rows_without_a_message() -> None:
    said = [
        AcknowledgedRow("queue:a", 40, 1_000, 0, [(5, 8), (9, 10)]),
        AcknowledgedRow("topic:b", 41, 2_000, 17, [(1, 2)]),
    ]
    made = acknowledgements(CHANNEL, said, names_of(True, has_acks=True))
    made.validate(full=True)
    assert made.schema.equals(arrow_schema(names_of(True, has_acks=True)))
    first, second = made.to_pylist()
    assert (first["destination"], first["sequence"], first["body_kind"]) == ("queue:a", 40, "acknowledgement")
    assert first["acknowledged"]["ranges"] == [{"first": 5, "last": 7}, {"first": 9, "last": 9}]
    assert (second["acknowledged"]["subscription"], second["acknowledged"]["time"].timestamp()) == (17, 2)
    assert first["message_id"] is None and first["body"] is None and first["properties"] is None


def test_messages_beside_acknowledgements_have_the_same_columns() -> None:
    batch = Batch.of_bodies([b"x"], producer=7, first_number=1, timestamp_ms=0)
    (made,) = record_batches(CHANNEL, [BatchRows("topic:a", 1, batch)], Chosen(names_of(True, has_acks=True)))
    assert made.schema.equals(arrow_schema(names_of(True, has_acks=True)))
    assert made.column("acknowledged").to_pylist() == [None]


@pytest.mark.parametrize("has_acks", [True, False])
@pytest.mark.parametrize("has_body", [True, False])
def test_the_schema_is_what_spark_makes_of_its_own_words(has_body: bool, has_acks: bool) -> None:
    """Spark refuses record batches whose schema differs in anything, nullability included."""
    spark = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    simple = {
        "string": spark.StringType(),
        "bigint": spark.LongType(),
        "timestamp": spark.TimestampType(),
        "int": spark.IntegerType(),
        "boolean": spark.BooleanType(),
        "binary": spark.BinaryType(),
        "map<string,string>": spark.MapType(spark.StringType(), spark.StringType()),
    }
    extent = spark.StructType([spark.StructField(word, spark.LongType()) for word in ("first", "last")])
    acknowledged = spark.StructType(
        [
            spark.StructField("subscription", spark.LongType()),
            spark.StructField("time", spark.TimestampType()),
            spark.StructField("ranges", spark.ArrayType(extent)),
        ]
    )
    simple[acknowledged.simpleString()] = acknowledged
    structure = spark.StructType(
        [spark.StructField(name, simple[EVERY_COLUMN[name]]) for name in names_of(has_body, has_acks)]
    )
    assert to_arrow_schema(structure, timezone="UTC").equals(arrow_schema(names_of(has_body, has_acks)))
