"""What priority, delay and expiry mean for who is given what, and when."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.message_manager.delivery import delivery, dispatcher
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    CommandKind,
    DropMessages,
    ExpireMessages,
    OutcomeCode,
    Return,
    read_command,
)
from tests.unit.message_manager.channel import Channel, Client, numbers_to, of_node, proposals


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.pass_time(0)
    channel.flush()
    return destination


def rows(*priorities: int) -> list[dict[str, Any]]:
    return [{"priority": priority} for priority in priorities]


def wait(channel: Channel, ms: int) -> None:
    """Let the own clock go on; no mark is ordered."""
    channel.now_ns += ms * 1_000_000
    channel.wall_ms += ms


def expiries(channel: Channel) -> list[bytes]:
    found = [proposal.command for proposal in proposals(channel.flush())]
    return [command for command in found if read_command(command)[0].kind == CommandKind.EXPIRE]


def dispatcher_of(channel: Channel, source: int) -> Dispatcher:
    assert channel.manager.primary is not None
    found = channel.manager.primary.delivery.dispatcher(source)
    assert found is not None
    return found


def row_of(channel: Channel, name: str) -> dict[str, Any]:
    [row] = [row for row in channel.manager.destinations() if row["name"] == name]
    return row


# -- priority ------------------------------------------------------------------------------------


def test_the_highest_priority_goes_first_and_within_it_the_lowest_number(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(4, 9, 0, 9, 5, 4)))
    channel.register(1, queue)
    assert [number - first for number in numbers_to(channel.flush(), 1)] == [1, 3, 4, 0, 5, 2]


def test_an_urgent_message_overtakes_those_that_wait_for_credit(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, [b"plain"] * 5))
    channel.register(1, queue, credit=2)
    assert numbers_to(channel.flush(), 1) == [first, first + 1]
    urgent = channel.order(client.publish_rows(queue, *rows(9)))
    channel.credit(1, 4)
    assert numbers_to(channel.flush(), 1) == [urgent, first + 2]


def test_priority_holds_beyond_the_part_of_the_backlog_that_is_looked_at(
    channel: Channel, client: Client, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "RANGES_READY", 2)
    other = channel.create("other")
    wanted = []
    for at in range(8):
        wanted.append(channel.order(client.publish_rows(queue, *rows(4 if at < 6 else 7))))
        channel.order(client.publish(other, [b"a hole in the numbers"]))
    channel.register(1, queue, credit=3)
    assert numbers_to(channel.flush(), 1) == [*wanted[6:], wanted[0]]


def test_a_message_that_comes_back_goes_by_its_priority(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, *rows(4, 8, 4)))
    channel.register(1, queue, credit=2)
    assert numbers_to(channel.flush(), 1) == [first + 1, first]
    channel.order(client.give_back(queue, (first, first + 2)))
    channel.credit(1, 5)
    assert numbers_to(channel.flush(), 1) == [first + 1, first, first + 2]


def test_subscriptions_give_out_by_priority_too(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices")
    one = channel.order(client.subscribe(topic, "one"))
    first = channel.order(client.publish_rows(topic, *rows(1, 6, 4)))
    channel.register(1, topic, subscription=one)
    assert [number - first for number in numbers_to(channel.flush(), 1)] == [1, 2, 0]


def test_a_late_acknowledgement_of_a_message_nobody_looked_at_is_taken(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=0)
    channel.flush()
    first = channel.order(client.publish_rows(queue, *rows(9, 9, 4)))
    channel.order(client.ack(queue, (first, first + 1)))
    channel.credit(1, 5)
    assert numbers_to(channel.flush(), 1) == [first + 1, first + 2]


def test_rules_of_a_transaction_count_from_its_commit(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.tx_publish_rows(queue, *rows(4, 9)))
    state = channel.replica(channel.manager.capture(channel.mark())[1], after=channel.heard)
    assert state.state.transactions.uncommitted.live.count == 1
    first = channel.order(client.tx_commit(1, 2))
    channel.register(1, queue)
    assert numbers_to(channel.flush(), 1) == [first + 1, first]


def test_a_flagged_batch_that_does_not_decode_is_refused(
    channel: Channel, client: Client, queue: int
) -> None:
    command = bytearray(client.publish_rows(queue, *rows(9)))
    command[48 + 16 + 1] = 2
    outcome = channel.outcome(bytes(command))
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED
    assert row_of(channel, "queue:orders")["messages"] == 0


# -- delay ---------------------------------------------------------------------------------------


def test_a_delayed_message_is_given_out_at_its_time_and_not_before(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    late = {"deliver_at_ms": channel.wall_ms + 500}
    first = channel.order(client.publish_rows(queue, late, {}, late))
    assert numbers_to(channel.flush(), 1) == [first + 1]
    wait(channel, 499)
    assert numbers_to(channel.flush(), 1) == []
    wait(channel, 1)
    assert numbers_to(channel.flush(), 1) == [first, first + 2]


def test_the_next_deadline_is_the_earliest_delivery_time(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.publish_rows(queue, *[{"deliver_at_ms": channel.wall_ms + ms} for ms in (900, 300)]))
    channel.flush()
    channel.acknowledge(1)
    channel.flush()
    assert channel.manager.next_deadline_ns() == channel.now_ns + 300 * 1_000_000


def test_a_delayed_message_waits_where_it_is_when_a_consumer_attaches_later(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(
        client.publish_rows(queue, {"deliver_at_ms": channel.wall_ms + 500, "priority": 9}, {})
    )
    channel.register(1, queue)
    assert numbers_to(channel.flush(), 1) == [first + 1]
    wait(channel, 500)
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_delayed_message_of_a_topic_goes_to_the_subscriptions_of_its_time(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices")
    channel.pass_time(0)
    early = channel.order(client.subscribe(topic, "early"))
    first = channel.order(client.publish_rows(topic, {"deliver_at_ms": channel.wall_ms + 500}))
    late = channel.order(client.subscribe(topic, "late"))
    channel.register(1, topic, subscription=early)
    channel.register(2, topic, subscription=late)
    assert numbers_to(channel.flush(), 1) == []
    wait(channel, 500)
    effects = channel.flush()
    assert (numbers_to(effects, 1), numbers_to(effects, 2)) == ([first], [])


def test_a_new_primary_keeps_to_the_delay(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, {"deliver_at_ms": channel.wall_ms + 500}))
    channel.claim(2)
    channel.claim(1)
    channel.register(1, queue)
    assert numbers_to(channel.flush(), 1) == []
    wait(channel, 500)
    assert numbers_to(channel.flush(), 1) == [first]


# -- redelivery delay ------------------------------------------------------------------------------


@pytest.mark.parametrize("peeks", [False, True])
def test_a_message_that_came_back_waits_though_no_consumer_is_there_meanwhile(
    channel: Channel, client: Client, peeks: bool
) -> None:
    """A rollback gives a message back, and then begins its consumer anew."""
    queue = channel.create("orders", settings='{"redelivery_delay":2}')
    channel.pass_time(0)
    first = channel.order(client.publish_rows(queue, {}))
    channel.register(1, queue)
    assert numbers_to(channel.flush(), 1) == [first]
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.flush()
    channel.unregister(1, 1)
    if peeks:
        channel.register(2, queue)
        assert numbers_to(channel.flush(), 2) == []
        channel.unregister(2, 0)
    channel.register(3, queue)
    wait(channel, 1_999)
    assert numbers_to(channel.flush(), 3) == []
    wait(channel, 1)
    assert numbers_to(channel.flush(), 3) == [first]


def test_what_waits_is_forgotten_when_its_time_has_come_and_nobody_is_there(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders", settings='{"redelivery_delay":2}')
    channel.pass_time(0)
    first = channel.order(client.publish_rows(queue, {}))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.unregister(1, 1)
    channel.flush()
    assert dispatcher_of(channel, queue).ready.waiting.count == 1
    wait(channel, 2_000)
    channel.flush()
    assert channel.manager.primary is not None
    assert channel.manager.primary.delivery.dispatcher(queue) is None
    channel.register(2, queue)
    assert numbers_to(channel.flush(), 2) == [first]


# -- expiry --------------------------------------------------------------------------------------


def test_an_expired_message_is_not_given_out_and_leaves_by_the_log(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms + 100}, {}))
    channel.flush()
    wait(channel, 100)
    channel.register(1, queue)
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first + 1]
    [command] = [
        one.command for one in proposals(effects) if read_command(one.command)[0].kind == CommandKind.EXPIRE
    ]
    wish = ExpireMessages.decode(read_command(command)[1])
    assert (wish.destination, wish.ranges) == (queue, Ranges([(first, first + 1)]))
    channel.order(command)
    row = row_of(channel, "queue:orders")
    assert (row["published"], row["messages"], row["expired"], row["acknowledged"]) == (2, 1, 1, 0)
    assert expiries(channel) == []


def test_messages_expire_without_consumers_and_together(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, *[{"expires_ms": channel.wall_ms + 100}] * 5))
    assert expiries(channel) == []
    assert channel.manager.next_deadline_ns() == channel.now_ns + 100 * 1_000_000
    wait(channel, 100)
    [command] = expiries(channel)
    assert ExpireMessages.decode(read_command(command)[1]).ranges == Ranges([(first, first + 5)])
    assert expiries(channel) == []
    channel.order(command)
    assert row_of(channel, "queue:orders")["expired"] == 5


def test_a_message_that_was_over_when_it_came_expires_at_once(
    channel: Channel, client: Client, queue: int
) -> None:
    """Also within the same millisecond: no deadline stays in the past."""
    channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms - 500}))
    [command] = expiries(channel)
    channel.order(command)
    channel.flush()
    deadline_ns = channel.manager.next_deadline_ns()
    assert deadline_ns is None or deadline_ns > channel.now_ns


def test_a_message_in_flight_stays_with_its_consumer(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, *[{"expires_ms": channel.wall_ms + 100}] * 2))
    channel.register(1, queue)
    assert len(numbers_to(channel.flush(), 1)) == 2
    wait(channel, 200)
    assert expiries(channel) == []
    assert channel.outcome(client.ack(queue, (first, first + 1))) is None
    channel.order(client.give_back(queue, (first + 1, first + 2)))
    effects = channel.flush()
    assert numbers_to(effects, 1) == []
    assert channel.order_proposals(effects) >= 1
    row = row_of(channel, "queue:orders")
    assert (row["messages"], row["acknowledged"], row["expired"]) == (0, 1, 1)


def test_a_message_of_a_consumer_that_left_expires(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms + 100}))
    channel.register(1, queue)
    channel.flush()
    wait(channel, 200)
    channel.flush()
    channel.unregister(1, seen_through=0)
    assert len(expiries(channel)) == 1


def test_an_expiry_of_another_term_is_void(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms + 100}))
    wish = ExpireMessages(
        destination=queue, term=channel.manager.term - 1, ranges=Ranges([(first, first + 1)])
    )
    outcome = channel.outcome(of_node(wish))
    assert outcome is not None and outcome.code == OutcomeCode.STALE
    assert row_of(channel, "queue:orders")["messages"] == 1


def test_a_message_without_a_time_never_expires(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, [b"for ever"]))
    wish = ExpireMessages(destination=queue, term=channel.manager.term, ranges=Ranges([(first, first + 1)]))
    assert channel.outcome(of_node(wish)) is None
    assert row_of(channel, "queue:orders")["messages"] == 1


def test_an_expired_message_leaves_all_subscriptions_and_no_later_one_gets_it(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices")
    channel.pass_time(0)
    one, two = (channel.order(client.subscribe(topic, name)) for name in ("one", "two"))
    first = channel.order(client.publish_rows(topic, {"expires_ms": channel.wall_ms + 100}, {}))
    channel.flush()
    wait(channel, 100)
    channel.order_proposals(channel.flush())
    row = row_of(channel, "topic:prices")
    assert (row["messages"], row["expired"]) == (2, 2)
    assert [one["backlog"] for one in row["subscriptions"]] == [1, 1]
    three = channel.order(client.subscribe(topic, "three", "earliest"))
    for consumer, subscription in enumerate((one, two, three), 1):
        channel.register(consumer, topic, subscription=subscription)
    effects = channel.flush()
    assert [numbers_to(effects, consumer) for consumer in (1, 2, 3)] == [[first + 1]] * 3


def test_a_topic_that_keeps_nothing_loses_its_expired_messages(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices", settings='{"retention": "consumed"}')
    channel.pass_time(0)
    channel.order(client.subscribe(topic, "one"))
    channel.order(client.publish_rows(topic, {"expires_ms": channel.wall_ms + 100}))
    channel.flush()
    wait(channel, 100)
    channel.order_proposals(channel.flush())
    row = row_of(channel, "topic:prices")
    assert (row["messages"], row["expired"]) == (0, 1)


def test_what_one_subscriber_has_in_flight_expires_for_none(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices")
    channel.pass_time(0)
    one, two = (channel.order(client.subscribe(topic, name)) for name in ("one", "two"))
    first = channel.order(client.publish_rows(topic, {"expires_ms": channel.wall_ms + 100}))
    channel.register(1, topic, subscription=one)
    assert numbers_to(channel.flush(), 1) == [first]
    wait(channel, 100)
    channel.register(2, topic, subscription=two)
    effects = channel.flush()
    assert numbers_to(effects, 2) == []
    assert channel.order_proposals(effects) <= 1  # the log time
    channel.order(client.give_back(topic, (first, first + 1), subscription=one))
    channel.order_proposals(channel.flush())
    assert row_of(channel, "topic:prices")["expired"] == 2


def test_what_one_subscriber_acknowledges_late_expires_for_the_others(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices")
    channel.pass_time(0)
    one, two = (channel.order(client.subscribe(topic, name)) for name in ("one", "two"))
    first = channel.order(client.publish_rows(topic, {"expires_ms": channel.wall_ms + 100}))
    channel.register(1, topic, subscription=one)
    channel.flush()
    wait(channel, 100)
    channel.register(2, topic, subscription=two)
    assert expiries(channel) == []
    channel.order(client.ack(topic, (first, first + 1), subscription=one))
    [command] = expiries(channel)
    channel.order(command)
    row = row_of(channel, "topic:prices")
    assert (row["acknowledged"], row["expired"]) == (1, 1)


def test_a_locked_message_expires_when_it_is_unlocked(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms + 100}, {}))
    channel.order(client.hold("query", first, queue, consumes=True))
    channel.flush()
    wait(channel, 100)
    assert expiries(channel) == []
    channel.order(client.release("query"))
    [command] = expiries(channel)
    channel.order(command)
    assert row_of(channel, "queue:orders")["expired"] == 1


def test_a_consumer_of_an_earlier_term_keeps_its_expired_message(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, {"expires_ms": channel.wall_ms + 100}))
    wait(channel, 200)
    channel.claim(2)
    channel.claim(1)
    channel.register(1, queue, held=Ranges([(first, first + 1)]))
    effects = channel.flush()
    assert dispatcher_of(channel, queue).consumers and numbers_to(effects, 1) == []
    assert channel.outcome(client.ack(queue, (first, first + 1))) is None
    assert row_of(channel, "queue:orders")["acknowledged"] == 1


# -- non-persistent messages -----------------------------------------------------------------------


TRANSIENT = {"persistent": False}


def test_a_non_persistent_message_whose_consumer_vanished_is_dropped(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, TRANSIENT, {}))
    channel.register(1, queue)
    assert len(numbers_to(channel.flush(), 1)) == 2
    channel.order(client.close(), Client(0xB2).open())
    channel.register(2, queue, session=0xB2)
    effects = channel.flush()
    assert numbers_to(effects, 2) == [first + 1]
    channel.order_proposals(effects)
    row = row_of(channel, "queue:orders")
    assert (row["messages"], row["dropped"], row["published"]) == (1, 1, 2)
    assert numbers_to(channel.flush(), 2) == []


def test_a_non_persistent_message_that_was_seen_is_dropped_and_an_unseen_one_is_not(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, TRANSIENT, TRANSIENT))
    channel.register(1, queue)
    channel.flush()
    channel.unregister(1, seen_through=1)
    channel.register(2, queue)
    effects = channel.flush()
    assert numbers_to(effects, 2) == [first + 1]
    channel.order_proposals(effects)
    assert row_of(channel, "queue:orders")["dropped"] == 1


def test_a_message_in_doubt_that_was_locked_is_dropped_when_it_is_unlocked(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, TRANSIENT))
    channel.register(1, queue)
    assert numbers_to(channel.flush(), 1) == [first]
    channel.order(client.hold("query", first, queue, consumes=True))
    channel.unregister(1, seen_through=1)
    channel.order_proposals(channel.flush())
    assert row_of(channel, "queue:orders")["dropped"] == 0, "a hold has it"
    channel.order(client.release("query", heard=channel.heard))
    channel.register(2, queue)
    effects = channel.flush()
    assert numbers_to(effects, 2) == [], "a consumer may have seen it"
    channel.order_proposals(effects)
    assert row_of(channel, "queue:orders")["dropped"] == 1


def test_a_new_primary_drops_what_an_earlier_one_may_have_given_out(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, TRANSIENT, TRANSIENT, {}))
    channel.claim(2)
    channel.claim(1)
    channel.register(1, queue, held=Ranges([(first, first + 1)]))
    fresh = channel.order(client.publish_rows(queue, TRANSIENT))
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first + 2, fresh]
    channel.order_proposals(effects)
    # The consumer that holds one of them keeps it.
    assert channel.outcome(client.ack(queue, (first, first + 1))) is None
    row = row_of(channel, "queue:orders")
    assert (row["dropped"], row["acknowledged"], row["messages"]) == (1, 1, 2)


def test_a_non_persistent_message_that_its_consumer_returned_comes_again(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, TRANSIENT))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1)))
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_non_persistent_message_is_dropped_for_the_subscription_in_doubt_only(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices")
    one, two = (channel.order(client.subscribe(topic, name)) for name in ("one", "two"))
    first = channel.order(client.publish_rows(topic, TRANSIENT))
    channel.register(1, topic, subscription=one)
    channel.flush()
    channel.unregister(1, seen_through=1)
    channel.order_proposals(channel.flush())
    row = row_of(channel, "topic:prices")
    assert [one["backlog"] for one in row["subscriptions"]] == [0, 1]
    channel.register(2, topic, subscription=two)
    assert numbers_to(channel.flush(), 2) == [first]


def test_only_non_persistent_messages_are_dropped(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, [b"stays"]))
    wish = DropMessages(
        destination=queue, subscription=0, term=channel.manager.term, ranges=Ranges([(first, first + 1)])
    )
    assert channel.outcome(of_node(wish)) is None
    assert row_of(channel, "queue:orders")["messages"] == 1


# -- how much a proposal has -----------------------------------------------------------------------


def ranges_in(channel: Channel, kind: CommandKind) -> list[int]:
    """Of each proposed command of this kind, how many ranges it has."""
    found = []
    for proposal in proposals(channel.flush()):
        header, payload = read_command(proposal.command)[:2]
        if header.kind == kind:
            read = DropMessages if kind == CommandKind.DROP else Return
            found.append(len(read.decode(payload).ranges))
        channel.order(proposal.command)
    return found


def test_messages_in_doubt_are_dropped_in_parts_of_a_bounded_size(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus takes no envelope of any size, and its producer would send the command for ever."""
    monkeypatch.setattr(delivery, "RANGES_AT_ONCE", 4)
    queue = channel.create("orders")
    first = channel.order(client.publish_rows(queue, *[{"persistent": n % 2 == 0} for n in range(20)]))
    channel.claim(1)
    channel.register(1, queue)
    assert ranges_in(channel, CommandKind.DROP) == [4, 4, 2]
    store = channel.manager.state.directory.get(queue)
    assert store is not None and list(store.live.numbers()) == list(range(first, first + 20, 2))


def test_messages_of_a_consumer_that_left_come_back_in_parts_of_a_bounded_size(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RANGES_AT_ONCE", 4)
    queue = channel.create("orders")
    first = channel.order(client.publish_rows(queue, *[{"properties": {"n": n % 2}} for n in range(20)]))
    channel.register(1, queue, selector="n = 1")
    assert len(numbers_to(channel.flush(), 1)) == 10
    channel.unregister(1, 10)
    assert ranges_in(channel, CommandKind.RETURN) == [4, 4, 2]
    channel.register(2, queue)
    assert numbers_to(channel.flush(), 2) == list(range(first, first + 20))


# -- how much is looked at -------------------------------------------------------------------------


def test_a_step_looks_at_a_bounded_number_of_messages_that_wait(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million delayed messages would hold up the primary for longer than others wait for a heartbeat."""
    monkeypatch.setattr(dispatcher, "NUMBERS_READY", 4)
    queue = channel.create("orders")
    channel.pass_time(0)
    late = {"deliver_at_ms": channel.wall_ms + 60_000}
    first = channel.order(client.publish_rows(queue, *[late] * 18, {}))
    channel.register(1, queue)
    steps = 0
    while not (given := numbers_to(channel.flush(), 1)):
        waiting = dispatcher_of(channel, queue).ready.waiting.count
        steps += 1
        assert waiting <= 4 * (steps + 1)
        assert channel.manager.next_deadline_ns() == channel.now_ns, "the rest is looked at at once"
    assert given == [first + 18] and steps >= 3
