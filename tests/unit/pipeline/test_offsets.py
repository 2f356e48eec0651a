"""Offsets: what lives in users' checkpoints."""

from __future__ import annotations

import json

import pytest

from antiphon.pipeline.offsets import BadOffset, Offset, parse_offset


def test_keys_stand_in_the_order_of_names() -> None:
    text = json.dumps(Offset({"b": 17, "a": 5000}).as_json())
    assert text == '{"v": 1, "channels": {"a": 5000, "b": 17}}'


def test_since_is_there_only_when_it_is_needed() -> None:
    said = Offset({"a": 10}, {"topic:b": 900, "topic:a": 12}).as_json()
    assert json.dumps(said) == '{"v": 1, "channels": {"a": 10}, "since": {"topic:a": 12, "topic:b": 900}}'
    assert parse_offset(json.loads(json.dumps(said))) == Offset({"a": 10}, {"topic:a": 12, "topic:b": 900})


def test_a_channel_that_is_not_named_begins_at_its_first_number() -> None:
    assert Offset({"a": 10}).next("b") == 1


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        {"v": 1},
        {"v": 2, "channels": {}},
        {"v": 1, "channels": [1]},
        {"v": 1, "channels": {"a": "5"}},
        {"v": 1, "channels": {"a": 1.0}},
        {"v": 1, "channels": {"a": True}},
        {"v": 1, "channels": {"a": -3}},
        {"v": 1, "channels": {"a": 1 << 63}},
        {"v": 1, "channels": {}, "since": {"topic:a": 0}},
        {"v": 1, "channels": {}, "partitions": 3},
    ],
)
def test_anything_else_is_refused(said: object) -> None:
    with pytest.raises(BadOffset):
        parse_offset(said)
