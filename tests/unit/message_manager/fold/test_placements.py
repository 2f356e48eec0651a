"""Which channel a destination lives in: one place for each name, the same on every replica."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import Advertised
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.destinations import placements
from antiphon.wire.commands import AlterDestination, Outcome, PlaceDestination
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


# -- spanning destinations ---------------------------------------------------------------------

PART = '{"channels":"main,b"}'


def test_a_spanning_destination_is_made_in_each_of_its_channels(channel: Channel) -> None:
    place(channel, "queue:orders", "main,b")
    queue = channel.create("orders", settings=PART)
    assert channel.exceptions() == []
    again = channel.create("orders", settings=PART)
    assert channel.exceptions() == [Outcome(again, 1, C.DUPLICATE, queue)]
    other = channel.create("orders", settings='{"channels":"main,c"}')
    (said,) = channel.exceptions()
    assert (said.first, said.code) == (other, C.REFUSED)
    assert "its channels is main,b, not main,c" in said.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ('{"channels":"b,c"}', "channel main is none of its channels b,c"),
        ('{"channels":"main"}', "channels are the names of several channels"),
        ('{"channels":"main,main"}', "channels are the names of several channels"),
        ('{"channels":"main,"}', "channels are the names of several channels"),
        ('{"channels":7}', "channels are the names of several channels"),
        ('{"channels":"main,b","exclusive":true}', "an exclusive queue lives in one channel"),
    ],
)
def test_a_part_that_cannot_be_is_refused(channel: Channel, settings: str, text: str) -> None:
    channel.create("orders", settings=settings)
    (said,) = channel.exceptions()
    assert said.code == C.REFUSED
    assert text in said.text
    assert channel.manager.find("queue:orders") is None


def test_a_name_with_parts_elsewhere_has_none_here(channel: Channel) -> None:
    place(channel, "queue:orders", "b,c")
    number = channel.create("orders", settings='{"channels":"b,c"}')
    assert channel.exceptions() == [Outcome(number, 1, C.EXISTS, 0, "b,c")]


def test_a_spanning_name_keeps_its_channels_when_a_part_is_deleted(channel: Channel) -> None:
    """The other parts may still be there."""
    client = Client()
    place(channel, "queue:orders", "main,b")
    queue = channel.create("orders", settings=PART)
    channel.order(client.open())
    channel.order(client.delete(queue))
    assert channel.manager.find("queue:orders") is None
    assert channel.manager.find_placement("queue:orders") == {"channel": "main,b"}


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ('{"exclusive":true}', "an exclusive queue lives in one channel"),
        ('{"channels":"main,c"}', "keeps its channels"),
    ],
)
def test_a_part_is_not_changed_into_something_else(channel: Channel, wish: str, text: str) -> None:
    client = Client()
    queue = channel.create("orders", settings=PART)
    channel.order(client.open())
    channel.exceptions()
    channel.order(client.command(AlterDestination(destination=queue, settings=wish)))
    (said,) = channel.exceptions()
    assert (said.code, text in said.text) == (C.REFUSED, True)
    channel.order(client.command(AlterDestination(destination=queue, settings='{"redelivery_limit":3}')))
    assert channel.exceptions() == []


def test_an_ordinary_destination_does_not_become_a_part(channel: Channel) -> None:
    client = Client()
    queue = channel.create("orders")
    channel.order(client.open())
    channel.exceptions()
    channel.order(client.command(AlterDestination(destination=queue, settings=PART)))
    (said,) = channel.exceptions()
    assert (said.code, "keeps its channels" in said.text) == (C.REFUSED, True)


@pytest.mark.parametrize("where", ["b,", ",b", "b,b", ",".join(str(at) for at in range(65))])
def test_channels_that_cannot_be_are_no_placement(channel: Channel, where: str) -> None:
    place(channel, "queue:orders", where)
    (said,) = channel.exceptions()
    assert said.code == C.REFUSED
    assert channel.manager.find_placement("queue:orders") is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ('{"channels":"main,b","exclusive":true}', "an exclusive queue lives in one channel"),
        ('{"channels":"main,b","retention":5}', "the retention of a queue"),
        ("{", "are not JSON"),
    ],
)
def test_a_spanning_name_that_could_not_be_made_is_not_placed(
    channel: Channel, settings: str, text: str
) -> None:
    wish = PlaceDestination(name="queue:orders", channel="main,b", settings=settings)
    channel.order(of_node(wish))
    (said,) = channel.exceptions()
    assert (said.code, text in said.text) == (C.REFUSED, True)
    assert channel.manager.find_placement("queue:orders") is None
