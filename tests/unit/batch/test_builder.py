"""BatchBuilder: what it takes, what it refuses, and which columns it writes."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import BATCH_BYTES_MAX, Batch, BatchBuilder, BatchRule, BodyKind, ColumnId
from antiphon.batch.layout import IDENTIFIED_ROWS_MAX, PROPERTY_COLUMNS_MAX
from antiphon.errors import AntiphonError, InvalidMessage, InvalidName, MessageTooLarge
from antiphon.values import Int8, ValueType


def build(*rows: dict[str, Any]) -> Batch:
    builder = BatchBuilder()
    for row in rows:
        builder.add(**{"body": b"", "timestamp_ms": 5, **row})
    return builder.build(producer=7, first_number=1)


def test_messages_without_extras_make_the_batch_that_bodies_make() -> None:
    batch = build({"body": b"a"}, {"body": b"bc"})
    assert batch == Batch.of_bodies([b"a", b"bc"], producer=7, first_number=1, timestamp_ms=5)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\0\1", BodyKind.BYTES),
        ("größe", BodyKind.STR),
        ({"a": [1, None]}, BodyKind.MAP),
        ([1, {"b": b"x"}], BodyKind.LIST),
        (None, BodyKind.NONE),
        (b"", BodyKind.BYTES),
        ("", BodyKind.STR),
        ({}, BodyKind.MAP),
        ([], BodyKind.LIST),
    ],
)
def test_a_body_comes_back_as_what_it_was(body: Any, kind: BodyKind) -> None:
    alone = Batch.decode(build({"body": body}).encode())
    assert alone.column(ColumnId.BODY_KIND) is None
    among_others = Batch.decode(build({"body": b"x"}, {"body": "y"}, {"body": body}).encode())
    assert among_others.column(ColumnId.BODY_KIND) is not None
    for batch, row in ((alone, 0), (among_others, 2)):
        assert batch.body_kind(row) == kind
        assert batch.body(row) == body
        assert type(batch.body(row)) is type(body)


@pytest.mark.parametrize("body", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b")[::2]])
def test_bytes_like_bodies_arrive_as_bytes(body: Any) -> None:
    assert build({"body": body}).body(0) == b"ab"


def test_a_column_is_there_only_if_a_row_needs_it() -> None:
    batch = build({}, {"priority": 9}, {"persistent": False}, {"key": "k"})
    assert [batch.priority(row) for row in range(4)] == [4, 9, 4, 4]
    assert [batch.is_persistent(row) for row in range(4)] == [True, True, False, True]
    assert [batch.key(row) for row in range(4)] == [None, None, None, "k"]
    present = [id for id in ColumnId if batch.column(id) is not None]
    assert present == [ColumnId.BODY, ColumnId.PRIORITY, ColumnId.PERSISTENT, ColumnId.KEY]


def test_an_empty_text_is_not_the_same_as_none() -> None:
    batch = build({"key": ""}, {"key": None})
    assert (batch.key(0), batch.key(1)) == ("", None)


def test_properties_of_one_type_are_columns() -> None:
    batch = build(*({"properties": {"region": "EU", "n": n}} for n in range(10)))
    region, n = batch.property_column("region"), batch.property_column("n")
    assert region is not None and region.type is ValueType.STR and region.presence is None
    assert n is not None and n.values.tolist() == list(range(10))
    assert batch.column(ColumnId.PROPERTIES) is None


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1}, {"a": "one"}],
        [{"a": 1}, {"a": Int8(1)}],
        [{"a": 1}, {"a": None}],
        [{f"name{n}": n for n in range(PROPERTY_COLUMNS_MAX + 1)}] * 2,
        [{"rare": 1}] + [{}] * 100,
    ],
)
def test_properties_with_little_in_common_are_blobs(rows: list[dict[str, Any]]) -> None:
    batch = build(*({"properties": properties} for properties in rows))
    assert batch.column(ColumnId.PROPERTIES) is not None
    again = Batch.decode(batch.encode())
    for row, properties in enumerate(rows):
        assert again.properties(row) == properties
        assert list(map(type, again.properties(row).values())) == list(map(type, properties.values()))


def test_a_null_is_a_property_and_an_absent_one_is_not() -> None:
    batch = build(*[{"properties": {"a": None, "b": True}}, {"properties": {"b": False}}] * 20)
    assert batch.property_column("a") is not None
    assert batch.properties(0) == {"a": None, "b": True}
    assert batch.properties(1) == {"b": False}


@pytest.mark.parametrize(
    ("row", "error", "complaint"),
    [
        ({"body": 7}, InvalidMessage, "body is of type int; allowed are bytes, str, dict, list and None"),
        ({"body": (1, 2)}, InvalidMessage, "body is of type tuple"),
        ({"body": "\ud800"}, InvalidMessage, "body has characters that UTF-8 cannot express"),
        ({"body": {"a": object()}}, InvalidMessage, r"body\['a'\] is of type object"),
        ({"body": "é" * 524_289}, MessageTooLarge, "body of 1,048,578 bytes is larger than the 1,048,576"),
        ({"properties": {"a-b": 1}}, InvalidName, "property name 'a-b' is not an identifier"),
        ({"properties": {1: 1}}, InvalidName, "a property name is of type int"),
        ({"properties": {"a": [1]}}, InvalidMessage, "property 'a' is of type list; allowed are bool"),
        ({"properties": {"a": 2**63}}, InvalidMessage, "property 'a' is an int that does not fit 64 bits"),
        ({"properties": {"a": "\ud800"}}, InvalidMessage, "property 'a' has characters that UTF-8 cannot"),
        ({"properties": {"a": bytes(65_537)}}, MessageTooLarge, "property 'a' of 65,537 bytes is larger"),
        ({"properties": {"a": "é" * 32_769}}, MessageTooLarge, "property 'a' of 65,538 bytes is larger"),
        ({"properties": {f"n{n}": n for n in range(129)}}, MessageTooLarge, "129 properties are more than"),
        (
            {"properties": {f"n{n}": bytes(65_536) for n in range(8)}},
            MessageTooLarge,
            "more than the 524,288",
        ),
        ({"priority": 10}, InvalidMessage, "priority goes beyond 0 to 9"),
        ({"priority": "high"}, InvalidMessage, "priority is of type str, not int"),
        ({"expires_ms": -1}, InvalidMessage, "expires_ms goes beyond 0 to"),
        ({"expires_ms": None}, InvalidMessage, "expires_ms is of type NoneType"),
        ({"deliver_at_ms": 2**63}, InvalidMessage, "deliver_at_ms goes beyond"),
        ({"timestamp_ms": 1.5}, InvalidMessage, "timestamp_ms is of type float"),
        ({"key": b"k"}, InvalidMessage, "key is of type bytes, not str"),
        ({"correlation_id": "\ud800"}, InvalidMessage, "correlation_id has characters"),
        ({"type": "t" * 65_537}, MessageTooLarge, "type of 65,537 bytes is larger than the 65,536 allowed"),
    ],
)
def test_what_no_message_may_have_is_refused_and_named(
    row: dict[str, Any], error: type[AntiphonError], complaint: str
) -> None:
    builder = BatchBuilder()
    builder.add(b"before", timestamp_ms=5)
    with pytest.raises(error, match=complaint):
        builder.add(**{"body": b"", "timestamp_ms": 5, **row})
    assert builder.build(7, 1).bodies() == [b"before"]


def test_the_largest_message_fits_whenever_the_builder_is_not_full() -> None:
    builder = BatchBuilder()
    while not builder.is_full:
        builder.add(b"", timestamp_ms=builder.count, key="k", priority=builder.count % 10)
    assert builder.count > 6_000
    builder._rows.pop()
    builder._bytes -= 57
    properties = {f"n{n}": bytes(65_000) for n in range(8)}
    builder.add(bytes(1024 * 1024), properties, timestamp_ms=1)
    promised = builder.byte_size
    batch = builder.build(7, 1)
    assert batch.byte_size <= promised <= BATCH_BYTES_MAX
    assert Batch.decode(batch.encode()).properties(batch.count - 1) == properties


@pytest.mark.parametrize(
    "row",
    [
        {"body": []},
        {"body": {}},
        {"body": [None] * 30},
        {"body": [None] * 65_536},
        {"body": {"a": [[], {}, True]}},
        {"body": [[]] * 100, "properties": {"a": None, "b": None, "c": None}},
    ],
)
def test_a_full_batch_of_many_tiny_values_is_accepted(row: dict[str, Any]) -> None:
    builder = BatchBuilder()
    while not builder.is_full:
        # A property that changes its type goes as a blob, and so do its neighbours.
        mixed = {**row.get("properties", {}), "n": "x" if builder.count % 2 else 1}
        builder.add(row["body"], mixed if "properties" in row else None, timestamp_ms=5)
    batch = builder.build(7, 1)
    assert Batch.decode(batch.encode()) == batch


def test_a_full_batch_of_ever_new_property_names_is_accepted() -> None:
    builder = BatchBuilder()
    while not builder.is_full:
        builder.add(None, {f"n{builder.count * 128 + n}": None for n in range(128)}, timestamp_ms=5)
    batch = builder.build(7, 1)
    assert batch.count > 5
    assert Batch.decode(batch.encode()) == batch


def test_the_message_with_the_most_and_newest_of_everything_fits_when_the_builder_is_not_full() -> None:
    builder = BatchBuilder()
    properties = {f"n{n}": bytes(4_000) for n in range(128)}
    builder.add([None] * 65_536, properties, timestamp_ms=5)
    assert builder.byte_size < BATCH_BYTES_MAX
    assert builder.is_full
    assert Batch.decode(builder.build(7, 1).encode()).count == 1


def test_a_builder_starts_anew_after_each_batch() -> None:
    builder = BatchBuilder()
    empty = builder.byte_size
    builder.add(b"a", {"x": 1}, timestamp_ms=5)
    builder.build(7, 1)
    assert (builder.count, builder.byte_size) == (0, empty)
    builder.add(b"b", timestamp_ms=5)
    assert builder.build(7, 2).bodies() == [b"b"]


def test_what_the_caller_changes_later_does_not_change_the_message() -> None:
    properties = {"a": 1}
    builder = BatchBuilder()
    builder.add(b"", properties, timestamp_ms=5)
    properties["a"] = 2
    assert builder.build(7, 1).properties(0) == {"a": 1}


def test_properties_that_are_no_mapping_are_refused_in_words() -> None:
    with pytest.raises(InvalidMessage, match="mapping of names to values, not list"):
        build({"properties": [1]})


# -- ids of the application ----------------------------------------------------------------------------


def test_an_id_is_its_bytes_and_a_text_is_its_utf8() -> None:
    batch = Batch.decode(build({"dedup_id": "grün"}, {}, {"dedup_id": b"\xff\0"}).encode())
    assert [batch.dedup_id(row) for row in range(3)] == ["grün".encode(), None, b"\xff\0"]
    assert batch.has_ids and batch.rules == BatchRule.DEDUP
    assert batch.slice(1, 3).dedup_id(1) == b"\xff\0"
    assert not build({}).has_ids


@pytest.mark.parametrize("id", ["", b"", "x" * 256, b"x" * 256, "ä" * 128, "\ud800"])
def test_an_id_has_1_to_255_bytes(id: str | bytes) -> None:
    with pytest.raises(InvalidMessage, match="dedup_id"):
        build({"dedup_id": id})


def test_an_id_is_text_or_bytes() -> None:
    with pytest.raises(InvalidMessage, match="dedup_id is of type int, not str or bytes"):
        build({"dedup_id": 5})


def test_a_batch_with_ids_has_fewer_rows() -> None:
    builder = BatchBuilder()
    for _ in range(IDENTIFIED_ROWS_MAX):
        assert builder.takes_ids and not builder.is_full
        builder.add(b"", timestamp_ms=5)
    assert not builder.takes_ids and not builder.is_full
    builder.build(7, 1)
    builder.add(b"", timestamp_ms=5, dedup_id="a")
    for _ in range(IDENTIFIED_ROWS_MAX - 1):
        assert not builder.is_full
        builder.add(b"", timestamp_ms=5)
    assert builder.is_full


def test_a_row_of_another_batch_comes_without_its_id() -> None:
    source = build({"dedup_id": "a", "key": "k"})
    builder = BatchBuilder()
    builder.add_row(source, 0, {})
    taken = builder.build(7, 1)
    assert (taken.key(0), taken.dedup_id(0)) == ("k", None)


def test_a_batch_knows_whether_all_its_messages_are_non_persistent() -> None:
    transient = {"persistent": False}
    assert build(*[transient] * 20).is_transient
    assert Batch.decode(build(transient).encode()).is_transient
    assert not build({}, transient).is_transient
    assert not build({}).is_transient
