"""Which channel a destination lives in: one place for each name, the same on every replica."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import Advertised
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.destinations import placements
from antiphon.wire.commands import Outcome, PlaceDestination
from antiphon.wire.commands import OutcomeCode as C
from tests.unit.message_manager.channel import AT_ONCE, Channel, Client, MemoryPayloads, of_node, show

HERE = "main"  # what the channel of these tests is called


def place(channel: Channel, name: str, where: str) -> int:
    return channel.order(of_node(PlaceDestination(name=name, channel=where)))


def advertised(channel: Channel) -> list[tuple[str, str]]:
    said = [effect.message for effect in channel.flush() if isinstance(effect, Multicast)]
    return [
        pair
        for message in said
        if isinstance(message, Advertised)
        for pair in zip(message.names, message.channels, strict=True)
    ]


@pytest.fixture
def channel() -> Channel:
    channel = Channel()
    channel.flush()
    return channel


def test_a_name_is_given_its_place_and_keeps_it(channel: Channel) -> None:
    place(channel, "queue:orders", "b")
    assert channel.exceptions() == []
    again = place(channel, "queue:orders", "c")
    assert channel.exceptions() == [Outcome(again, 1, C.EXISTS, 0, "b")]
    assert channel.manager.find_placement("queue:orders") == {"channel": "b"}
    assert channel.manager.find_placement("topic:orders") is None


def test_a_destination_that_was_made_without_a_place_has_it_here(channel: Channel) -> None:
    channel.create("orders")
    number = place(channel, "queue:orders", "b")
    assert channel.exceptions() == [Outcome(number, 1, C.EXISTS, 0, HERE)]
    assert channel.manager.find_placement("queue:orders") == {"channel": HERE}


def test_a_name_that_has_its_place_elsewhere_is_not_made_here(channel: Channel) -> None:
    place(channel, "queue:orders", "b")
    channel.flush()
    number = channel.create("orders")
    assert channel.exceptions() == [Outcome(number, 1, C.EXISTS, 0, "b")]
    assert channel.manager.find("queue:orders") is None


def test_a_name_that_has_its_place_here_is_made_here(channel: Channel) -> None:
    place(channel, "queue:orders", HERE)
    channel.create("orders")
    assert channel.exceptions() == []
    assert channel.manager.find("queue:orders") is not None


def test_a_deleted_destination_leaves_its_place(channel: Channel) -> None:
    client = Client()
    place(channel, "queue:orders", HERE)
    queue = channel.create("orders")
    channel.order(client.open())
    channel.order(client.delete(queue))
    assert channel.manager.find_placement("queue:orders") is None
    place(channel, "queue:orders", "b")
    assert channel.manager.find_placement("queue:orders") == {"channel": "b"}


@pytest.mark.parametrize(
    ("name", "where"),
    [("orders", "b"), ("queue:", "b"), ("queue:" + "x" * 300, "b"), ("queue:a", ""), ("queue:a", "x" * 65)],
)
def test_what_cannot_be_placed_is_refused(channel: Channel, name: str, where: str) -> None:
    place(channel, name, where)
    (outcome,) = channel.exceptions()
    assert outcome.code == C.REFUSED
    assert len(channel.manager.state.placements) == 0


def test_places_are_bounded(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "PLACEMENTS_MAX", 1)
    place(channel, "queue:a", "b")
    place(channel, "queue:b", "b")
    (outcome,) = channel.exceptions()
    assert (outcome.code, outcome.text) == (C.REFUSED, "there are 1 destinations already")


def test_the_primary_tells_all_of_new_places_once(channel: Channel) -> None:
    place(channel, "queue:a", "b")
    place(channel, "queue:b", "c")
    place(channel, "queue:a", "c")
    assert advertised(channel) == [("queue:a", "b"), ("queue:b", "c")]
    assert advertised(channel) == []


def test_a_backup_tells_nobody() -> None:
    channel = Channel(begin=False)
    channel.claim(2)
    place(channel, "queue:a", "b")
    assert advertised(channel) == []
    assert channel.manager.find_placement("queue:a") == {"channel": "b"}


def test_places_are_in_checkpoints_and_in_the_digest(channel: Channel) -> None:
    before = channel.manager.state.digest()
    for name in ("queue:z", "queue:a", "queue:m"):
        place(channel, name, "b")
    client = Client()
    channel.order(client.open())
    digest, state, _ = channel.manager.capture(channel.manager.applied)
    assert digest != before
    again = MessageManager(HERE, 2, MemoryPayloads(), AT_ONCE)
    again.restore(state)
    assert again.state.digest() == digest
    place(channel, "queue:b", "c")
    show(again, MemoryPayloads(), *channel.log[-1])
    assert again.state.digest() == channel.manager.state.digest()
    assert again.find_placement("queue:z") == {"channel": "b"}


def test_two_places_differ_in_the_digest() -> None:
    first, second = Channel(), Channel()
    place(first, "queue:a", "b")
    place(second, "queue:a", "c")
    assert first.manager.state.digest() != second.manager.state.digest()
