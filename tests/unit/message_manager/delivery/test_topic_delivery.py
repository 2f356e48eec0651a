"""Subscribers of a topic: each gets everything, in order, at its own pace."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import ConsumerEnded, Registered
from antiphon.message_manager.delivery import dispatcher as dispatcher_module
from antiphon.ranges import Ranges
from antiphon.wire.commands import OutcomeCode
from tests.unit.message_manager.channel import (
    CM,
    Channel,
    Client,
    answers,
    bodies,
    delivered,
    numbers_to,
    proposals,
)

FAST, SLOW = 1, 2


@pytest.fixture
def topic(channel: Channel, client: Client) -> int:
    destination = channel.create_topic("prices")
    channel.flush()
    return destination


def attach(
    channel: Channel,
    client: Client,
    topic: int,
    consumer: int,
    credit: int = 1_000,
    start: str | int = "latest",
) -> int:
    subscription = channel.order(client.subscribe(topic, start=start))
    channel.register(consumer, topic, credit, subscription=subscription)
    assert [answer.code for answer in answers(channel.flush())] == [""]
    return subscription


def share(channel: Channel, clients: dict[int, Client], topic: int, credit: int = 1_000) -> int:
    """Consumers of a shared subscription, by their numbers, each in a session of its own."""
    ids = set()
    for consumer, client in clients.items():
        channel.order(client.open())
        channel.order(client.subscribe(topic, shared="workers"))
        found = channel.manager.state.directory.subscription_named("", "workers", is_durable=False)
        assert found is not None
        channel.register(consumer, topic, credit, subscription=found.id, session=client.session)
        assert [answer.code for answer in answers(channel.flush())] == [""]
        ids.add(found.id)
    (id,) = ids
    return id


def refusals(channel: Channel) -> list[str]:
    return [answer.code for answer in answers(channel.flush()) if isinstance(answer, Registered)]


# -- pace ---------------------------------------------------------------------------------------------


def test_every_subscriber_gets_every_message(channel: Channel, client: Client, topic: int) -> None:
    attach(channel, client, topic, FAST)
    attach(channel, client, topic, SLOW)
    first = channel.order(client.publish(topic, bodies(3)))
    effects = channel.flush()
    assert numbers_to(effects, FAST) == numbers_to(effects, SLOW) == [first, first + 1, first + 2]
    assert [body for _, _, body, _ in delivered(effects)] == 2 * bodies(3)


def test_a_slow_subscriber_holds_up_no_fast_one(channel: Channel, client: Client, topic: int) -> None:
    fast = attach(channel, client, topic, FAST, credit=10)
    slow = attach(channel, client, topic, SLOW, credit=10)
    got: list[int] = []
    stuck: list[int] = []
    for round in range(20):
        channel.order(client.publish(topic, bodies(5)))
        effects = channel.flush()
        stuck += numbers_to(effects, SLOW)
        news = numbers_to(effects, FAST)
        got += news
        channel.order(client.ack(topic, *Ranges((n, n + 1) for n in news), subscription=fast))
        channel.credit(FAST, 10 + 5 * (round + 1))
    assert len(got) == 100 and got == sorted(got)
    assert stuck == got[:10], "as much as it has credit for, and no more"
    # It wakes up, and gets the rest in order.
    channel.order(client.ack(topic, *Ranges((n, n + 1) for n in stuck), subscription=slow))
    channel.credit(SLOW, 1_000)
    assert numbers_to(channel.flush(), SLOW) == got[10:]


def test_a_backlog_is_looked_at_in_parts(
    channel: Channel, client: Client, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "RANGES_READY", 4)
    id = attach(channel, client, topic, SLOW, credit=0)
    numbers = []
    for _ in range(50):
        numbers.append(channel.order(client.publish(topic, bodies(1))))
        channel.mark()  # between any two messages lies a number that is none
    primary = channel.manager.primary
    assert primary is not None
    giver = primary.delivery.dispatcher(id)
    assert giver is not None and len(giver.ready) <= 4
    channel.credit(SLOW, 20)
    assert numbers_to(channel.flush(), SLOW) == numbers[:20]
    assert len(giver.ready) <= 4
    channel.order(client.ack(topic, (numbers[30], numbers[30] + 1), subscription=id))
    channel.credit(SLOW, 1_000)
    assert numbers_to(channel.flush(), SLOW) == numbers[20:30] + numbers[31:]


# -- no-local -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", ["", "JMSPriority > 0"])
@pytest.mark.parametrize("ready", [1_024, 0])
def test_a_consumer_gets_what_others_publish_and_not_what_its_own_connection_does(
    channel: Channel, topic: int, selector: str, ready: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only a part of the backlog is looked at, and after a selector."""
    monkeypatch.setattr(dispatcher_module, "RANGES_READY", ready or 1)
    one, other = Client(0xC1), Client(0xC2)
    channel.order(one.open(connection=5), other.open(connection=6))
    id = channel.order(one.subscribe(topic, no_local=True, selector=selector))
    channel.register(FAST, topic, 3, subscription=id, session=one.session)
    numbers = []
    for _ in range(4):
        channel.order(one.publish(topic, bodies(2)))
        numbers.append(channel.order(other.publish(topic, bodies(1))))
        channel.mark()
    assert numbers_to(channel.flush(), FAST) == numbers[:3]
    channel.credit(FAST, 99)
    assert numbers_to(channel.flush(), FAST) == numbers[3:]
    channel.order(one.publish(topic, bodies(2)))
    assert delivered(channel.flush()) == []


# -- sharing ------------------------------------------------------------------------------------------


def test_consumers_share_the_messages_of_a_shared_subscription(
    channel: Channel, client: Client, topic: int
) -> None:
    share(channel, {FAST: Client(0xC1), SLOW: Client(0xC2)}, topic)
    alone = 3
    attach(channel, client, topic, alone)
    first = channel.order(client.publish(topic, bodies(10)))
    effects = channel.flush()
    parts = [numbers_to(effects, consumer) for consumer in (FAST, SLOW)]
    assert all(parts) and sorted(parts[0] + parts[1]) == list(range(first, first + 10))
    assert numbers_to(effects, alone) == list(range(first, first + 10))


def test_what_one_consumer_gives_back_comes_to_another_that_shares(
    channel: Channel, client: Client, topic: int
) -> None:
    one, two = Client(0xC1), Client(0xC2)
    share(channel, {FAST: one, SLOW: two}, topic, credit=0)
    channel.credit(FAST, 2)
    first = channel.order(client.publish(topic, bodies(2)))
    assert numbers_to(channel.flush(), FAST) == [first, first + 1]
    channel.credit(SLOW, 2)
    channel.unregister(FAST, seen_through=1)
    effects = channel.flush()
    assert numbers_to(effects, SLOW) == [first + 1], "the other was perhaps seen: its return is ordered"
    channel.order_proposals(effects)
    assert [row[1:] for row in delivered(channel.flush())] == [(first, b"m0", 1)]


def test_a_message_that_one_has_acknowledged_comes_to_none_that_shares(
    channel: Channel, client: Client, topic: int
) -> None:
    one, two = Client(0xC1), Client(0xC2)
    id = share(channel, {FAST: one, SLOW: two}, topic, credit=0)
    channel.credit(FAST, 1)
    first = channel.order(client.publish(topic, bodies(2)))
    assert numbers_to(channel.flush(), FAST) == [first]
    channel.order(one.ack(topic, (first, first + 1), subscription=id))
    channel.unregister(FAST, seen_through=1)
    channel.credit(SLOW, 9)
    assert numbers_to(channel.flush(), SLOW) == [first + 1]


def test_who_shares_no_more_is_detached_and_its_messages_go_to_the_others(
    channel: Channel, client: Client, topic: int
) -> None:
    one, two = Client(0xC1), Client(0xC2)
    id = share(channel, {FAST: one, SLOW: two}, topic, credit=0)
    channel.credit(FAST, 1)
    first = channel.order(client.publish(topic, bodies(1)))
    channel.flush()
    channel.credit(SLOW, 1)
    channel.order(one.unsubscribe(id))
    effects = channel.flush()
    (ended,) = [answer for answer in answers(effects) if isinstance(answer, ConsumerEnded)]
    assert (ended.consumer, ended.code) == (FAST, "subscription.deleted")
    assert [row[:2] for row in delivered(effects)] == [(SLOW, first)]


def test_only_a_session_that_has_joined_consumes_a_shared_subscription(
    channel: Channel, client: Client, topic: int
) -> None:
    id = share(channel, {FAST: Client(0xC1)}, topic)
    channel.register(SLOW, topic, subscription=id)
    assert refusals(channel) == ["subscription.unknown"]


def test_the_members_of_a_shared_subscription_go_on_in_the_next_term(
    channel: Channel, client: Client, topic: int
) -> None:
    one, two = Client(0xC1), Client(0xC2)
    id = share(channel, {FAST: one, SLOW: two}, topic)
    first = channel.order(client.publish(topic, bodies(4)))
    effects = channel.flush()
    had = {consumer: numbers_to(effects, consumer) for consumer in (FAST, SLOW)}
    channel.claim(1)
    for consumer, session in ((FAST, one.session), (SLOW, two.session)):
        held = Ranges([(number, number + 1) for number in had[consumer]])
        channel.register(consumer, topic, subscription=id, session=session, held=held)
    assert not delivered(channel.flush()), "nobody gets what another holds"
    channel.order(one.close())
    assert numbers_to(channel.flush(), SLOW) == had[FAST]
    channel.order(two.close())
    assert channel.manager.state.directory.subscription(id) is None
    assert first in had[FAST] + had[SLOW]


def test_what_a_consumer_holds_from_an_earlier_term_is_found_deep_in_the_backlog(
    channel: Channel, client: Client, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "RANGES_READY", 4)
    subscription = channel.order(client.subscribe(topic))
    numbers = []
    for _ in range(20):
        numbers.append(channel.order(client.publish(topic, bodies(1))))
        channel.mark()
    channel.claim(1)
    held = Ranges([(numbers[14], numbers[14] + 1)])
    channel.register(FAST, topic, subscription=subscription, held=held)
    assert numbers_to(channel.flush(), FAST) == numbers[:14] + numbers[15:]


def test_a_start_in_the_future_is_waited_for(channel: Channel, client: Client, topic: int) -> None:
    start = channel.next + 4
    attach(channel, client, topic, FAST, start=start)
    channel.order(client.publish(topic, bodies(9)))
    assert numbers_to(channel.flush(), FAST)[0] == start


# -- coming and going ----------------------------------------------------------------------------------


def test_a_durable_subscription_gathers_what_comes_while_nobody_consumes_it(
    channel: Channel, client: Client, topic: int
) -> None:
    subscription = channel.order(client.subscribe(topic, "audit"))
    first = channel.order(client.publish(topic, bodies(3)))
    channel.register(FAST, topic, subscription=subscription)
    effects = channel.flush()
    assert numbers_to(effects, FAST) == [first, first + 1, first + 2]
    channel.order(client.ack(topic, (first, first + 1), subscription=subscription))
    channel.unregister(FAST, seen_through=2)
    channel.order_proposals(channel.flush())
    channel.order(client.publish(topic, bodies(1, "late")))
    channel.register(SLOW, topic, subscription=subscription)
    assert [(body, count) for _, _, body, count in delivered(channel.flush())] == [
        (b"m1", 1),
        (b"m2", 0),
        (b"late0", 0),
    ]


def test_a_return_concerns_one_subscription(channel: Channel, client: Client, topic: int) -> None:
    attach(channel, client, topic, FAST)
    slow = attach(channel, client, topic, SLOW)
    channel.order(client.publish(topic, bodies(2)))
    channel.flush()
    channel.unregister(SLOW, seen_through=2)
    effects = channel.flush()
    assert len(proposals(effects)) == 1
    channel.order_proposals(effects)
    assert delivered(channel.flush()) == [], "the other one has not given back anything"
    channel.register(3, topic, subscription=slow)
    assert [count for _, _, _, count in delivered(channel.flush())] == [1, 1]


def test_a_failover_says_redelivered_only_where_something_may_have_been_delivered(
    channel: Channel, client: Client, topic: int
) -> None:
    old = channel.order(client.subscribe(topic))
    channel.order(client.publish(topic, bodies(2)))
    channel.claim(1)
    young = channel.order(client.subscribe(topic, start="earliest"))
    channel.register(FAST, topic, subscription=old)
    channel.register(SLOW, topic, subscription=young)
    counts = {who: count for who, _, _, count in delivered(channel.flush())}
    assert counts == {FAST: 1, SLOW: 0}


def test_a_subscription_has_one_consumer_at_a_time(channel: Channel, client: Client, topic: int) -> None:
    subscription = channel.order(client.subscribe(topic, "audit"))
    channel.register(FAST, topic, subscription=subscription)
    channel.register(SLOW, topic, subscription=subscription)
    channel.register(FAST, topic, subscription=subscription)  # said again
    assert refusals(channel) == ["", "subscription.in_use", ""]
    channel.unregister(FAST, seen_through=0)
    channel.register(SLOW, topic, subscription=subscription)
    assert refusals(channel) == [""]


def test_who_may_consume_a_subscription(channel: Channel, client: Client, topic: int) -> None:
    other = Client(0xB2)
    stranger = Client(0xC3)
    channel.order(other.open(), stranger.open(client_id="lab"))
    durable = channel.order(client.subscribe(topic, "audit"))
    passing = channel.order(client.subscribe(topic))
    queue = channel.create("orders")
    channel.flush()
    for session, destination, subscription, code in (
        (client, topic, 0, "destination.refused"),
        (client, topic, 999, "subscription.unknown"),
        (client, queue, durable, "subscription.unknown"),
        (client, 999, durable, "destination.unknown"),
        (stranger, topic, durable, "subscription.unknown"),
        (other, topic, passing, "subscription.unknown"),
        (other, topic, durable, ""),
        (client, topic, passing, ""),
        (client, queue, 0, ""),
    ):
        channel.register(
            10 + session.session, destination, session=session.session, subscription=subscription
        )
        assert refusals(channel) == [code]


def test_when_a_subscription_ends_its_consumer_is_told(channel: Channel, client: Client, topic: int) -> None:
    subscription = attach(channel, client, topic, FAST)
    attach(channel, client, topic, SLOW)
    channel.order(client.publish(topic, bodies(2)))
    channel.flush()
    channel.order(client.unsubscribe(subscription))
    [ended] = answers(channel.flush())
    assert isinstance(ended, ConsumerEnded)
    assert (ended.consumer, ended.code) == (FAST, "subscription.deleted")
    channel.order(client.publish(topic, bodies(1)))
    assert [who for who, _, _, _ in delivered(channel.flush())] == [SLOW]
    channel.unregister(FAST, seen_through=2)
    assert proposals(channel.flush()) == []


def test_when_a_topic_is_deleted_all_its_consumers_are_told(
    channel: Channel, client: Client, topic: int
) -> None:
    for consumer in (FAST, SLOW):
        attach(channel, client, topic, consumer)
    channel.order(client.delete(topic))
    ended = [answer for answer in answers(channel.flush()) if isinstance(answer, ConsumerEnded)]
    assert [(end.consumer, end.code) for end in ended] == [
        (FAST, "destination.deleted"),
        (SLOW, "destination.deleted"),
    ]


def test_a_session_that_ends_takes_its_consumers_along(channel: Channel, client: Client, topic: int) -> None:
    attach(channel, client, topic, FAST)
    channel.order(client.publish(topic, bodies(2)))
    channel.flush()
    channel.order(client.close())
    [ended] = answers(channel.flush())
    assert isinstance(ended, ConsumerEnded)
    primary = channel.manager.primary
    assert primary is not None and primary.delivery.consumer_count(topic) == 0
    other = Client(0xB2)
    channel.order(other.open(), other.publish(topic, bodies(1)))
    assert delivered(channel.flush()) == []


# -- what is told ----------------------------------------------------------------------------------------


def test_the_overview_counts_what_is_stored_and_what_each_still_needs(
    channel: Channel, client: Client, topic: int
) -> None:
    subscription = attach(channel, client, topic, FAST)
    channel.order(client.subscribe(topic, "audit"))
    first = channel.order(client.publish(topic, bodies(4)))
    channel.flush()
    channel.order(client.ack(topic, (first, first + 1), subscription=subscription))
    [row] = channel.manager.destinations()
    assert (row["messages"], row["published"], row["acknowledged"]) == (4, 4, 1)
    assert (row["in_flight"], row["consumers"]) == (3, 1)
    assert row["subscriptions"] == [
        {"name": "", "client_id": "", "durable": False, "shared": False, "backlog": 3},
        {"name": "audit", "client_id": "", "durable": True, "shared": False, "backlog": 4},
    ]


def test_a_durable_subscription_is_found_with_those_who_consume_it(
    channel: Channel, client: Client, topic: int
) -> None:
    subscription = channel.order(client.subscribe(topic, "audit"))
    found = {
        "subscription": subscription,
        "destination": topic,
        "channel": "main",
        "topic": "topic:prices",
        "channels": (),
        "consumers": [],
        "locked": False,
    }
    find = channel.manager.find_subscription
    assert find("", "audit", is_durable=True) == found
    channel.register(FAST, topic, subscription=subscription)
    assert find("", "audit", is_durable=True) == found | {"consumers": [(CM, FAST)]}
    assert find("desk", "audit", is_durable=True) is None
    assert find("", "audit", is_durable=False) is None


def test_an_acknowledgement_of_what_was_trimmed_is_reported_lost(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices", '{"retention":"consumed"}')
    subscription = attach(channel, client, topic, FAST)
    first = channel.order(client.publish(topic, bodies(2)))
    channel.order(client.ack(topic, (first, first + 2), subscription=subscription))
    assert channel.exceptions() == []
    channel.order(client.ack(topic, (first, first + 2), subscription=subscription))
    assert [outcome.code for outcome in channel.exceptions()] == [OutcomeCode.ACK_LOST]
