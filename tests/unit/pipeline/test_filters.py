"""Filters: what the source takes of a WHERE clause, and what it leaves to Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from antiphon.pipeline.filters import EVERYTHING, Narrowed, narrow
from antiphon.pipeline.options import SourceOptions
from antiphon.pipeline.source import BatchSourceReader

NUMBER, TIME, NAME, CHANNEL = ("sequence",), ("timestamp",), ("destination",), ("channel",)
NOON = datetime(1970, 1, 1, 12, tzinfo=UTC)
NOON_US = 12 * 3600 * 1_000_000


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([GreaterThanOrEqual(NUMBER, 10), LessThan(NUMBER, 20)], Narrowed(first=10, stop=20)),
        ([GreaterThan(NUMBER, 10), LessThanOrEqual(NUMBER, 20)], Narrowed(first=11, stop=21)),
        ([EqualTo(NUMBER, 7), IsNotNull(NUMBER)], Narrowed(first=7, stop=8)),
        ([GreaterThan(TIME, NOON)], Narrowed(since_us=NOON_US + 1)),
        ([LessThan(TIME, NOON), IsNotNull(TIME)], Narrowed(first=0, until_us=NOON_US)),
        ([EqualNullSafe(NAME, "topic:a")], Narrowed(destinations=frozenset({"topic:a"}))),
        ([In(NAME, ("a", "b", None)), In(NAME, ("b", "c"))], Narrowed(destinations=frozenset({"b"}))),
        ([StringStartsWith(NAME, "topic:o")], Narrowed(prefixes=("topic:o",))),
        ([EqualTo(CHANNEL, "a"), IsNotNull(CHANNEL)], Narrowed(channels=frozenset({"a"}))),
    ],
)
def test_filters_that_the_source_does_itself(filters: list[Any], left: Narrowed) -> None:
    narrowed, rest = narrow(filters, has_acks=False)
    assert rest == []
    assert (narrowed.first, narrowed.stop) == (max(left.first, 0), left.stop)
    assert narrowed == left


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("key",), "k"),
        EqualTo(("properties", "sequence"), "1"),
        Not(EqualTo(NUMBER, 5)),
        IsNull(NUMBER),
        StringContains(NAME, "x"),
        StringStartsWith(CHANNEL, "x"),
        EqualTo(TIME, datetime(1970, 1, 1)),  # of which zone?
        EqualTo(NUMBER, 1.5),
    ],
)
def test_all_other_filters_are_left_to_spark(one: Any) -> None:
    assert narrow([one], has_acks=False) == (EVERYTHING, [one])


def test_a_list_of_numbers_narrows_and_is_left_to_spark_too() -> None:
    one = In(NUMBER, (5, 9, None))
    assert narrow([one], has_acks=False) == (Narrowed(first=5, stop=10), [one])


def test_of_acknowledgements_a_time_may_be_null() -> None:
    assert narrow([IsNotNull(TIME)], has_acks=True) == (EVERYTHING, [IsNotNull(TIME)])


def test_a_query_without_the_setting_for_filters_is_not_refused() -> None:
    """Spark fails it if `pushFilters` is another one than its own, and asks in this way."""
    options = SourceOptions.parse({"servers": "127.0.0.1:1", "subscribe": "topic:orders"})
    reader = BatchSourceReader(options)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert reader.pushFilters([EqualTo(NUMBER, 7), IsNull(TIME)]) == [IsNull(TIME)]
    assert reader.narrowed == Narrowed(first=7, stop=8)
