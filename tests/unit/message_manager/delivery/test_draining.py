"""Who drains a consumer learns that there is nothing for it, and has no credit left."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Send
from antiphon.bus.messages import Drained
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.manager import MessageManagerSettings
from tests.unit.message_manager.channel import (
    Channel,
    Client,
    bodies,
    delivered,
    delivers,
    numbers_to,
    proposals,
    sent,
)


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.register(1, destination, credit=0)
    channel.flush()
    return destination


def drained(effects: list[Effect]) -> list[tuple[int, int]]:
    """Who was told, and through which delivery number its credit is used up."""
    return [(one.consumer, one.through) for one in sent(effects) if isinstance(one, Drained)]


def test_there_is_nothing_and_nothing_comes_later_on_the_same_credit(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.credit(1, 3, drains=True)
    assert drained(channel.flush()) == [(1, 3)]
    first = channel.order(client.publish(queue, bodies(2)))
    assert delivers(channel.flush()) == []
    # A word that comes late, or again, gives nothing back.
    channel.credit(1, 3)
    assert delivers(channel.flush()) == []
    channel.credit(1, 4)
    [deliver] = delivers(channel.flush())
    assert [piece.first_sequence for piece in deliver.pieces] == [first]
    assert deliver.targets[0].takers[0].first_delivery == 4


def test_what_is_there_comes_before_the_word_that_there_is_no_more(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, bodies(2)))
    channel.credit(1, 5, drains=True)
    effects = [one for one in channel.flush() if isinstance(one, Send)]
    numbers = [
        one.message.number if isinstance(one.message, Drained) else one.message.targets[0].number
        for one in effects
        if one.message in delivers(effects) or isinstance(one.message, Drained)
    ]
    assert len(numbers_to(effects, 1)) == 2 and drained(effects) == [(1, 5)]
    assert numbers == [2, 3], "in one stream, in that order"


def test_all_that_was_asked_for_is_an_answer_too(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(3)))
    channel.credit(1, 1, drains=True)
    effects = channel.flush()
    assert len(numbers_to(effects, 1)) == 1 and drained(effects) == [(1, 1)]


def test_a_word_that_is_said_again_is_answered_once(channel: Channel, client: Client, queue: int) -> None:
    for _ in range(2):
        channel.credit(1, 1, drains=True)
    assert drained(channel.flush()) == [(1, 1)]
    channel.credit(1, 1, drains=True)
    assert drained(channel.flush()) == []
    channel.credit(1, 2, drains=True)
    assert drained(channel.flush()) == [(1, 2)]


def test_a_primary_that_has_not_applied_what_was_confirmed_does_not_say_that_there_is_nothing(
    channel: Channel, client: Client, queue: int
) -> None:
    floor = channel.manager.applied + 1
    channel.credit(1, 1, drains=True, floor=floor)
    assert drained(channel.flush()) == []
    first = channel.order(client.publish(queue, bodies(1)))
    # The client manager says again what was not acknowledged.
    channel.credit(1, 1, drains=True, floor=floor)
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first] and drained(effects) == [(1, 1)]


def test_a_primary_that_has_not_applied_what_was_confirmed_gives_out_nothing_for_new_credit(
    channel: Channel, client: Client, queue: int
) -> None:
    first, second = (channel.order(client.publish(queue, bodies(1))) for _ in range(2))
    channel.credit(1, 1)
    assert numbers_to(channel.flush(), 1) == [first]
    # The client gives the first message back. A backup was the first to say that the RETURN is applied.
    returned = channel.manager.applied + 1
    channel.credit(1, 2, floor=returned)
    assert numbers_to(channel.flush(), 1) == []
    assert channel.order(client.give_back(queue, (first, first + 1), counted=False)) == returned
    channel.credit(1, 2, floor=returned)
    assert numbers_to(channel.flush(), 1) == [first], f"{second} does not overtake what came back"


def test_a_new_primary_that_waits_for_consumers_does_not_say_that_there_is_nothing(
    client: Client,
) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=500))
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(1)))
    channel.claim(channel.manager.node)
    channel.register(1, queue, credit=0)
    channel.credit(1, 1, drains=True)
    assert drained(channel.flush()) == []
    channel.now_ns += 500 * 1_000_000
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first] and drained(effects) == [(1, 1)]


def test_a_consumer_whose_client_manager_has_no_room_is_answered_when_it_was_given_what_there_is(
    client: Client,
) -> None:
    channel = Channel(MessageManagerSettings(stream_window_bytes=1))
    channel.order(client.open())
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(2)))
    channel.register(1, queue, credit=1)
    assert len(numbers_to(channel.flush(), 1)) == 1
    channel.credit(1, 2, drains=True)
    assert drained(channel.flush()) == []
    channel.acknowledge(2)
    effects = channel.flush()
    assert len(numbers_to(effects, 1)) == 1 and drained(effects) == [(1, 2)]


def test_what_was_seen_is_counted_right_behind_numbers_that_were_passed_over(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(1)))
    channel.credit(1, 3, drains=True)
    channel.flush()
    second = channel.order(client.publish(queue, bodies(1)))
    third = channel.order(client.publish(queue, bodies(1)))
    channel.credit(1, 5)
    assert numbers_to(channel.flush(), 1) == [second, third]
    # Deliveries 1 and 4 were seen, 5 was not, and there were no others.
    channel.unregister(1, seen_through=4)
    [proposal] = proposals(channel.flush())
    channel.order(proposal.command)
    channel.register(2, queue)
    counts = {number: count for _, number, _, count in delivered(channel.flush())}
    assert counts == {first: 1, second: 1, third: 0}


def test_nobody_is_answered_who_is_gone(channel: Channel, client: Client, queue: int) -> None:
    channel.credit(1, 1, drains=True, floor=channel.manager.applied + 1)
    channel.unregister(1, 0)
    channel.order(client.publish(queue, bodies(1)))
    assert drained(channel.flush()) == []
