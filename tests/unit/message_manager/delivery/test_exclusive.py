"""Exclusive queues: one consumer receives, and the others wait in line."""

from __future__ import annotations

import pytest

from antiphon.message_manager.delivery.consumers import ConsumerKey
from antiphon.ranges import Ranges
from antiphon.wire.commands import AlterDestination
from tests.unit.message_manager.channel import CM, Channel, Client, bodies, of_node


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    return channel.create("orders", settings='{"exclusive":true}')


def held(channel: Channel, queue: int) -> dict[int, list[tuple[int, int]]]:
    """What each consumer has, by its number."""
    channel.flush()
    assert channel.manager.primary is not None
    dispatcher = channel.manager.primary.delivery.dispatcher(queue)
    assert dispatcher is not None
    return {key.consumer: list(one.in_flight) for key, one in dispatcher.consumers.items()}


def test_the_first_consumer_gets_all_that_it_has_credit_for(
    channel: Channel, client: Client, queue: int
) -> None:
    for consumer in (1, 2):
        channel.register(consumer, queue, credit=3)
    first = channel.order(client.publish(queue, bodies(5)))
    assert held(channel, queue) == {1: [(first, first + 3)], 2: []}
    channel.credit(1, 5)
    assert held(channel, queue) == {1: [(first, first + 5)], 2: []}


def test_the_next_in_line_begins_with_what_the_first_had_seen(
    channel: Channel, client: Client, queue: int
) -> None:
    for consumer in (1, 2, 3):
        channel.register(consumer, queue, credit=9)
    first = channel.order(client.publish(queue, bodies(4)))
    channel.flush()
    channel.unregister(1, 2)
    effects = channel.flush()
    assert held(channel, queue) == {2: [], 3: []}  # the return is being ordered
    channel.order_proposals(effects)
    assert held(channel, queue) == {2: [(first, first + 4)], 3: []}


def test_the_next_in_line_goes_on_when_what_the_first_had_seen_is_acknowledged_late(
    channel: Channel, client: Client, queue: int
) -> None:
    """Nothing comes back then, and nothing else would tell the next one."""
    for consumer in (1, 2):
        channel.register(consumer, queue, credit=1)
    first = channel.order(client.publish(queue, bodies(2)))
    channel.flush()
    channel.unregister(1, 1)
    effects = channel.flush()
    channel.order(client.ack(queue, (first, first + 1)))
    channel.order_proposals(effects)
    assert held(channel, queue) == {2: [(first + 1, first + 2)]}


def test_a_drain_of_a_consumer_in_line_is_answered(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue, credit=1)
    channel.register(2, queue, credit=0)
    channel.order(client.publish(queue, bodies(2)))
    channel.flush()
    channel.credit(2, 5, drains=True)
    channel.flush()
    assert channel.manager.primary is not None
    consumer = channel.manager.primary.delivery.dispatcher(queue).consumers[ConsumerKey(CM, 2)]  # type: ignore[union-attr]
    assert consumer.drained_through == 5


def test_whoever_holds_messages_of_an_earlier_term_goes_on_first(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue, credit=9)
    channel.flush()
    channel.claim(1)
    channel.register(2, queue, credit=9)
    channel.register(1, queue, credit=9, held=Ranges([(first, first + 1)]))
    assert held(channel, queue)[2] in ([], [(first + 1, first + 3)])
    assert list(held(channel, queue)) == [1, 2]


def test_a_queue_that_is_not_exclusive_any_more_serves_all(
    channel: Channel, client: Client, queue: int
) -> None:
    for consumer in (1, 2):
        channel.register(consumer, queue, credit=2)
    first = channel.order(client.publish(queue, bodies(4)))
    channel.flush()
    channel.order(of_node(AlterDestination(destination=queue, settings='{"exclusive":false}')))
    assert held(channel, queue) == {1: [(first, first + 2)], 2: [(first + 2, first + 4)]}


def test_a_topic_has_no_such_setting(channel: Channel, client: Client) -> None:
    channel.create_topic("news", settings='{"exclusive":true}')
    assert channel.manager.state.directory.named("topic:news") is None
