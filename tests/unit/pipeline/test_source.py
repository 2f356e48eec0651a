"""What Spark calls: readers that can be pickled, limits, and what it makes of a plan without parts."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antiphon.errors import InvalidOption
from antiphon.pipeline import source
from antiphon.pipeline.columns import ALL, EVERY_COLUMN
from antiphon.pipeline.planning import NO_LIMIT, Limit, Planner, TaskSpan
from pyspark_antiphon import DefaultSource

LEAST = {"servers": "127.0.0.1:1", "subscribe": "topic:orders"}
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
OURS = StructType([StructField(name, TYPES[EVERY_COLUMN[name]]) for name in ALL.names])


def stream(**options: str) -> source.StreamSourceReader:
    return source.stream_reader({**LEAST, **options}, OURS)


def test_spark_finds_us_by_name_and_asks_for_our_columns() -> None:
    assert DefaultSource.name() == "antiphon"
    assert (
        DefaultSource(options=LEAST)
        .schema()
        .startswith("destination string, channel string, sequence bigint")
    )
    assert "body" not in DefaultSource(options={**LEAST, "includebody": "false"}).schema().split()


def test_readers_and_parts_travel_and_take_no_planner_along() -> None:
    reader = stream(minPartitions="3")
    reader._planner = object()  # type: ignore[assignment]
    again = pickle.loads(pickle.dumps(reader))
    assert again.options == reader.options
    assert again._planner is None
    part = source.TaskPartition(TaskSpan("a", 1, 5, (), False))
    assert pickle.loads(pickle.dumps(part)).span == part.span


def test_a_plan_without_parts_reads_nothing_and_connects_to_nobody() -> None:
    assert list(stream().read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "default"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxBytes(7)),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}, ReadMaxRows(5)),
    ],
)
def test_the_limit_that_spark_is_told(options: dict[str, str], default: Any) -> None:
    assert stream(**options).getDefaultReadLimit() == default


def test_both_limits_hold_when_spark_limits_and_none_when_it_wants_everything() -> None:
    reader = stream(maxOffsetsPerTrigger="5", maxBytesPerTrigger="7")
    assert reader._limit(ReadMaxRows(4)) == Limit(4, 7)
    assert reader._limit(ReadMaxBytes(6)) == Limit(5, 6)
    assert reader._limit(ReadAllAvailable()) == NO_LIMIT


def test_a_schema_of_fewer_columns_reads_only_those() -> None:
    fewer = StructType([StructField("body", BinaryType()), StructField("sequence", LongType())])
    assert source.batch_reader(LEAST, fewer).options.wanted.names == ("body", "sequence")
    options = {**LEAST, "columns": "key, body"}
    assert DefaultSource(options=options).schema() == "key string, body binary"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("value", BinaryType()), "has a column value; Antiphon's source has destination"),
        (StructField("body", StringType()), "has body as string; it is binary: cast it later"),
        (StructField("sequence", LongType(), False), "has sequence as bigint NOT NULL; it is bigint"),
        (StructField("acknowledged", StringType()), "has a column acknowledged"),
    ],
)
def test_a_schema_of_other_columns_is_refused_by_name(field: StructField, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        source.batch_reader(LEAST, StructType([field]))


def test_foreign_checkpoints_are_refused() -> None:
    reader = stream()
    reader._planner = Planner.__new__(Planner)
    with pytest.raises(InvalidOption, match="an offset that is not one of Antiphon's source"):
        reader.commit({"topic": {"0": 5}})
