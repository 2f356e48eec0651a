"""Offsets: what lives in users' checkpoints."""

from __future__ import annotations

import json

import pytest

from antiphon.pipeline.offsets import BadOffset, Choice, Offset, parse_choice, parse_offset


def test_keys_stand_in_the_order_of_names() -> None:
    text = json.dumps(Offset({"b": 17, "a": 5000}, cluster="c1", subscribed="topic:x").as_json())
    assert text == '{"v": 2, "cluster": "c1", "channels": {"a": 5000, "b": 17}, "subscribed": "topic:x"}'


def test_since_and_behind_are_there_only_when_they_are_needed() -> None:
    offset = Offset({"a": 10}, {"topic:b": 900, "topic:a": 12}, {"topic:y": 7})
    said = offset.as_json()
    assert list(said) == ["v", "cluster", "channels", "subscribed", "behind", "since"]
    assert json.dumps(said["since"]) == '{"topic:a": 12, "topic:b": 900}'
    assert parse_offset(json.loads(json.dumps(said))) == offset
    assert (offset.next_of("topic:y", "a"), offset.next_of("topic:x", "a")) == (7, 10)


def test_an_offset_that_is_written_by_hand_needs_only_its_channels() -> None:
    assert parse_offset({"channels": {"a": 10}}) == Offset({"a": 10})
    assert parse_offset({"v": 1, "channels": {"a": 10}, "since": {"topic:x": 20}}).subscribed == ""


def test_what_was_subscribed_is_read_again_as_it_was() -> None:
    for choice in (
        Choice(("topic:x", "queue:y")),
        Choice(pattern="topic:eu,.*"),
        Choice(pattern="regex:*", match="glob"),
    ):
        assert parse_choice(choice.text) == choice


def test_a_channel_that_is_not_named_begins_at_its_first_number() -> None:
    assert Offset({"a": 10}).next("b") == 1


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        {"v": 1},
        {"v": 3, "channels": {}},
        {"v": True, "channels": {}},
        {"v": 2, "channels": {}, "cluster": 7},
        {"v": 2, "channels": {}, "behind": {"topic:a": -1}},
        {"v": 1, "channels": {}, "subscribed": "topic:x"},
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
