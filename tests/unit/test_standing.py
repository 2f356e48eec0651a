"""What a node says about itself: questions it knows, pages, and what it does not answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon import standing as module
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import About, Query
from antiphon.channel_parts import ChannelParts
from antiphon.journal.format import Settings
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.standing import Agreed, Standing
from antiphon.startup import EMBEDDED_NODE_ID, Identity, StartSettings, start
from tests.unit.message_manager.channel import Channel

SEGMENTS = Settings(segment_bytes=160 * 1024, order_blocks=8)


def standing(**channels: int) -> Standing:
    """Of a node that keeps these channels, with so many destinations."""
    parts: dict[str, ChannelParts] = {}
    for name, count in channels.items():
        identity = Identity(disk_id=b"d" * 16, run_id=b"r" * 16, start_s=1)
        settings = StartSettings(group=GroupConfig.of(name, (EMBEDDED_NODE_ID,)))
        parts[name] = start(MemoryDisk(), SEGMENTS, identity, settings).node.channels[name]
        parts[name].is_blocked = name == "b"
        # Another log, in which it is quickly said what there is.
        channel = Channel()
        for number in range(count):
            channel.create(f"{name}-{number}")
        parts[name].manager = channel.manager
    return Standing(1, "node-1", "embedded", "test", Agreed(digest="d"), None, parts)


def told(one: Standing, **question: Any) -> Any:
    text = one.tell(json.dumps(question))
    return None if text is None else json.loads(text)


def all_pages(one: Standing) -> list[Any]:
    pages = [told(one, question="destinations")]
    while pages[-1]["next"] is not None:
        pages.append(told(one, question="destinations", **pages[-1]["next"]))
    return pages


def test_destinations_are_told_channel_after_channel() -> None:
    pages = all_pages(standing(a=2, b=1))
    assert [[row["name"] for row in page["rows"]] for page in pages] == [
        ["queue:a-0", "queue:a-1"],
        ["queue:b-0"],
    ]
    assert [[row["blocked"] for row in page["rows"]] for page in pages] == [[False, False], [True]]


def test_a_long_list_is_told_in_pages_that_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_LENGTH_MAX", 500)
    pages = all_pages(standing(a=11))
    assert len(pages) > 3
    names = [row["name"] for page in pages for row in page["rows"]]
    assert names == [f"queue:a-{number}" for number in range(11)]


def test_a_row_that_is_longer_than_a_page_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_LENGTH_MAX", 1)
    assert [len(page["rows"]) for page in all_pages(standing(a=3))] == [1, 1, 1]


def test_an_empty_channel_has_an_empty_page() -> None:
    assert all_pages(standing(a=0)) == [{"rows": [], "next": None}]


@pytest.mark.parametrize(
    "question",
    [
        *({"question": "?"}, {"question": []}, {"question": "destinations", "channel": "z"}),
        *({"question": "kept"}, {"question": "kept", "channel": "a", "after": "x"}),
        {"question": "kept", "channel": "z", "after": 0},
    ],
)
def test_what_it_does_not_know_has_no_answer(question: dict[str, Any]) -> None:
    one = standing(a=1)
    assert told(one, **question) is None
    assert one.answer(Query(4, About.NODE, json.dumps(question))).answer == ""


def test_an_answer_that_no_message_holds_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    one = standing(a=1)
    ask = Query(4, About.NODE, '{"question": "kept", "channel": "a", "after": 0}')
    assert json.loads(one.answer(ask).answer)["rows"][0]["name"] == "queue:a-0"
    monkeypatch.setattr(module, "ANSWER_LENGTH_MAX", 10)
    assert (one.answer(ask).request, one.answer(ask).answer) == (4, "")


def test_the_digest_of_a_channel_tells_whether_two_states_are_the_same() -> None:
    (one,), (same,), (other,) = [told(standing(a=count), question="digests") for count in (2, 2, 1)]
    assert (one["name"], one["channel"]) == ("node-1", "a")
    assert one["applied"] > other["applied"]
    assert one == same and one["digest"] != other["digest"]


def test_a_node_whose_disk_is_not_the_listed_one_is_joining() -> None:
    group = replace(GroupConfig.of("a", (1, 2, 3)), disk_ids=(b"x" * 16, b"y" * 16, b"z" * 16))
    states = []
    for disk_id in (b"x" * 16, b"d" * 16):
        identity = Identity(disk_id=disk_id, run_id=b"r" * 16, start_s=1)
        parts = start(MemoryDisk(), SEGMENTS, identity, StartSettings(group=group), 1).node.channels
        one = Standing(1, "node-1", "message-manager", "test", Agreed(digest="d"), None, parts)
        states += [row["state"] for row in one.status()["nodes"]]
    assert states == ["up", "joining"]


def test_the_row_of_a_channel_says_how_far_its_time_is_from_the_clock() -> None:
    (channel,) = told(standing(a=1), question="status")["channels"]
    assert channel["clock_difference_ms"] == 0
