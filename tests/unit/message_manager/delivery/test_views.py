"""Selectors at the primary: who gets what, how much is evaluated at a time, and what is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus.effects import Alarm
from antiphon.bus.messages import Drained, Registered
from antiphon.errors import InvalidSelector
from antiphon.message_manager.delivery import dispatcher, views
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, OutcomeCode, Publish, SkipMessages, read_command
from tests.unit.message_manager.channel import (
    Channel,
    Client,
    answers,
    batch_of,
    delivered,
    delivers,
    numbers_to,
    of_node,
    proposals,
    sent,
)


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.pass_time(0)
    channel.flush()
    return destination


def rows(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"properties": {"n": number}, **more} for number in numbers]


def dispatcher_of(channel: Channel, source: int) -> Dispatcher:
    assert channel.manager.primary is not None
    found = channel.manager.primary.delivery.dispatcher(source)
    assert found is not None
    return found


def skips(channel: Channel) -> list[bytes]:
    found = [proposal.command for proposal in proposals(channel.flush())]
    return [command for command in found if read_command(command)[0].kind == CommandKind.SKIP]


def skipped_numbers(command: bytes) -> list[int]:
    return list(SkipMessages.decode(read_command(command)[1]).ranges.numbers())


# -- queues --------------------------------------------------------------------------------------


def test_a_consumer_gets_what_matches_in_order_and_the_rest_stays(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2, 1, 1, 3)))
    channel.register(1, queue, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [first, first + 2, first + 3]
    channel.register(2, queue)
    assert numbers_to(channel.flush(), 2) == [first + 1, first + 4]


def test_matches_of_a_batch_travel_as_one_piece_that_knows_their_numbers(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2, 1, 1, 3, 1)))
    second = channel.order(client.publish_rows(queue, *rows(2, 1, 1, 2)))
    channel.register(1, queue, selector="n = 1")
    [deliver] = delivers(channel.flush())
    scattered, neighbours = deliver.pieces
    assert list(scattered.sequences) == [first, first + 2, first + 3, first + 5]
    assert list(neighbours.sequences) == [second + 1, second + 2]
    assert not neighbours.offsets, "rows that are neighbours are a slice"
    batch = batch_of(scattered.buffers)
    assert [batch.properties(row) for row in range(batch.count)] == [{"n": 1}] * 4
    whole = batch.first_number
    assert [whole + batch.offset(row) for row in range(4)] == [whole, whole + 2, whole + 3, whole + 5]


def test_matches_that_came_back_and_others_are_pieces_of_their_own(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2, 1, 2, 1, 2, 1)))
    channel.register(1, queue, credit=2, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [first, first + 2]
    channel.order(client.give_back(queue, (first, first + 1), (first + 2, first + 3)))
    channel.credit(1, 10)
    [deliver] = delivers(channel.flush())
    told = [(list(piece.sequences), piece.redelivery_count) for piece in deliver.pieces]
    assert told == [([first, first + 2], 1), ([first + 4, first + 6], 0)]


def test_matches_are_given_within_the_credit_in_messages_and_in_bytes(
    channel: Channel, client: Client, queue: int
) -> None:
    wanted = [{"properties": {"n": at % 2}, "body": bytes(100)} for at in range(20)]
    first = channel.order(client.publish_rows(queue, *wanted))
    channel.register(1, queue, credit=3, selector="n = 0")
    assert numbers_to(channel.flush(), 1) == [first, first + 2, first + 4]
    channel.register(2, queue, credit=10, credit_bytes=250, selector="n = 0")
    given = numbers_to(channel.flush(), 2)
    # A row counts with all its columns, and a message that begins within the credit may end beyond it.
    assert given == [first + 6, first + 8, first + 10]


def test_what_was_given_out_between_is_evaluated_with_the_rest_at_once(
    channel: Channel, client: Client, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    evaluate = views.evaluate

    def evaluate_and_count(*arguments: Any) -> views.Evaluated:
        done = evaluate(*arguments)
        asked.append((arguments[4], done.stop))
        return done

    monkeypatch.setattr(views, "evaluate", evaluate_and_count)
    first = channel.order(client.publish_rows(queue, *rows(*[0, 1, 2] * 20, *[0] * 140, *[2])))
    channel.register(1, queue, selector="n = 1")
    channel.flush()
    channel.register(2, queue, selector="n = 0")
    channel.flush()
    asked.clear()
    channel.register(3, queue, selector="n = 2")
    assert len(numbers_to(channel.flush(), 3)) == 21
    # As many messages that another has are not worth it.
    assert asked == [(first + 2, first + 60), (first + 200, first + 201)]


def test_a_message_goes_to_one_consumer_whatever_matches_it(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(*range(12))))
    for consumer, selector in ((1, "n > 3"), (2, "n < 9"), (3, "n > 3"), (4, "")):
        channel.register(consumer, queue, selector=selector)
    given = [(number - first, who) for who, number, _, _ in delivered(channel.flush())]
    assert sorted(number for number, _ in given) == list(range(12))
    assert all(number > 3 for number, who in given if who in (1, 3))
    assert all(number < 9 for number, who in given if who == 2)
    assert {who for _, who in given} == {1, 2, 3, 4}


def test_consumers_of_one_selector_share_a_view_that_ends_with_the_last(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(*range(10))))
    channel.register(1, queue, selector="n >= 0")
    channel.register(2, queue, selector="n >= 0")
    given = channel.flush()
    assert len(numbers_to(given, 1)) == len(numbers_to(given, 2)) == 5
    found = dispatcher_of(channel, queue)
    assert list(found.views) == ["n >= 0"]
    channel.unregister(1, 0)
    assert numbers_to(channel.flush(), 2) == sorted(set(range(first, first + 10)) - set(numbers_to(given, 2)))
    channel.register(3, queue)
    channel.unregister(2, 0)
    assert not found.views


def test_what_does_not_match_starves_nobody_behind_it(
    channel: Channel, client: Client, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matches lie behind more ranges than are looked at ahead."""
    monkeypatch.setattr(dispatcher, "RANGES_READY", 2)
    other = channel.create("other")
    for _ in range(8):
        channel.order(client.publish_rows(queue, *rows(0, 0)))
        channel.order(client.publish(other, [b"between"]))
    wanted = channel.order(client.publish_rows(queue, *rows(1)))
    channel.register(1, queue, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [wanted]
    channel.order(client.publish_rows(queue, *rows(0)))
    channel.order(client.publish(other, [b"between"]))
    assert numbers_to(channel.flush(), 1) == []
    wanted = channel.order(client.publish_rows(queue, *rows(1)))
    assert numbers_to(channel.flush(), 1) == [wanted]


def test_a_match_that_comes_back_is_given_again_in_its_place(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2, 1, 1)))
    channel.register(1, queue, credit=2, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [first, first + 2]
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.credit(1, 10)
    given = delivered(channel.flush())
    assert [(number, count) for _, number, _, count in given] == [(first, 1), (first + 3, 0)]


def test_a_match_that_another_consumer_had_comes_to_this_one(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2)))
    channel.register(2, queue)
    assert numbers_to(channel.flush(), 2) == [first, first + 1]
    channel.register(1, queue, selector="n = 1")
    later = channel.order(client.publish_rows(queue, *rows(1)))
    channel.flush()
    channel.unregister(2, 0)
    given = numbers_to(channel.flush(), 1)
    assert first in given
    assert set(given) <= {first, later}


def test_an_acknowledged_match_is_not_given(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 1, 1)))
    channel.register(1, queue, credit=1, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [first]
    # The view knows the other two, and a session acknowledges one of them without having been given it.
    channel.order(client.ack(queue, (first + 1, first + 2)))
    channel.credit(1, 5)
    assert numbers_to(channel.flush(), 1) == [first + 2]


def test_matches_come_by_priority(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish_rows(queue, *rows(1, 2), *rows(1, 2, priority=9), *rows(1)))
    channel.register(1, queue, selector="n = 1")
    assert [number - first for number in numbers_to(channel.flush(), 1)] == [2, 0, 4]
    urgent = channel.order(client.publish_rows(queue, *rows(2, 1, priority=8)))
    assert numbers_to(channel.flush(), 1) == [urgent + 1]


def test_a_delayed_match_comes_when_its_time_has_come(channel: Channel, client: Client, queue: int) -> None:
    later_ms = channel.wall_ms + 5_000
    first = channel.order(client.publish_rows(queue, *rows(1, deliver_at_ms=later_ms), *rows(2, 1)))
    channel.register(1, queue, selector="n = 1")
    assert numbers_to(channel.flush(), 1) == [first + 2]
    channel.pass_time(6_000)
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_match_whose_time_has_come_hides_none_before_it(
    channel: Channel, client: Client, queue: int
) -> None:
    """Urgent messages were evaluated further than those of the usual priority."""
    channel.register(1, queue, credit=1, selector="n = 1")
    later_ms = channel.wall_ms + 5_000
    made = [*rows(1, 1, 1), *rows(1, deliver_at_ms=later_ms), *rows(1, priority=9)]
    first = channel.order(client.publish_rows(queue, *made))
    assert numbers_to(channel.flush(), 1) == [first + 4]
    channel.pass_time(6_000)
    channel.credit(1, 10)
    assert [number - first for number in numbers_to(channel.flush(), 1)] == [0, 1, 2, 3]


def test_a_drain_ends_when_nothing_matches_now(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish_rows(queue, *rows(2, 2, 2)))
    channel.register(1, queue, credit=0, selector="n = 1")
    channel.flush()
    channel.credit(1, 5, drains=True)
    assert [type(message) for message in sent(channel.flush()) if isinstance(message, Drained)] == [Drained]
    channel.order(client.publish_rows(queue, *rows(1)))
    assert numbers_to(channel.flush(), 1) == [], "the credit is used up"
    channel.credit(1, 6)
    assert len(numbers_to(channel.flush(), 1)) == 1


def test_much_is_evaluated_in_several_steps() -> None:
    """Work counts against the bytes of a flush, and the next step goes on where this one ended."""
    bytes_max = 1_000 * views.WORK_BYTES
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=bytes_max))
    client = Client()
    channel.order(client.open())
    queue, other = channel.create("orders"), channel.create("other")
    for _ in range(10):
        channel.order(client.publish_rows(queue, *rows(*[0] * 200)))
    wanted = channel.order(client.publish_rows(queue, *rows(1)))
    channel.register(1, queue, selector="n = 1")
    channel.register(2, other)
    found, steps, between = [], 0, 0
    while not found:
        effects = channel.flush()
        steps += 1
        found = numbers_to(effects, 1)
        between += len(numbers_to(effects, 2))
        channel.order(client.publish(other, [b"meanwhile"]))
        if not found:
            deadline_ns = channel.manager.next_deadline_ns()
            assert deadline_ns is not None and deadline_ns <= channel.now_ns, "there is more to do"
    assert found == [wanted]
    assert 5 < steps < 20
    assert between >= steps - 2, "consumers of other queues have their turns"


def test_scattered_matches_are_given_in_several_steps() -> None:
    work = 600
    bytes_max = work * views.WORK_BYTES
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=bytes_max))
    client = Client()
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish_rows(queue, *rows(*[1, 0] * 50)))
    channel.register(1, queue, selector="n = 1")
    steps = []
    while sum(map(len, steps)) < 50:
        steps.append(numbers_to(channel.flush(), 1))
        assert 0 < len(steps[-1]) <= work // views.MATCH_WORK
    assert [number for step in steps for number in step] == list(range(first, first + 100, 2))


def test_a_consumer_whose_matches_are_given_out_rests(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish_rows(queue, *rows(2, 2)))
    channel.register(1, queue, selector="n = 1")
    channel.flush()
    assert not dispatcher_of(channel, queue).can_go_on, "nothing is to be done before something comes"


def test_an_invalid_selector_is_refused_with_its_reason(channel: Channel, queue: int) -> None:
    channel.register(1, queue, selector="n = ")
    [answer] = answers(channel.flush())
    assert isinstance(answer, Registered)
    assert answer.code == InvalidSelector.code
    assert "column 5" in answer.text


def test_a_batch_that_cannot_be_read_is_set_aside(channel: Channel, client: Client, queue: int) -> None:
    good = client.publish_rows(queue, *rows(1))
    payload = read_command(good)[1]
    publish = Publish.decode(payload)
    broken = bytearray(publish.batch)
    client.number -= 1
    broken[48] = 200  # a column that there is not
    channel.order(client.raw(CommandKind.PUBLISH, Publish(queue, 1, 0, bytes(broken)).encode()))
    wanted = channel.order(client.publish_rows(queue, *rows(1)))
    channel.register(1, queue, selector="n = 1")
    effects = channel.flush()
    assert numbers_to(effects, 1) == [wanted]
    assert any(isinstance(effect, Alarm) for effect in effects)


# -- topics --------------------------------------------------------------------------------------


def subscribed(channel: Channel, client: Client, selector: str, durable: str = "") -> tuple[int, int]:
    topic = channel.create_topic("prices", '{"retention": "consumed"}')
    subscription = channel.order(client.subscribe(topic, durable, selector=selector))
    channel.register(1, topic, subscription=subscription)
    channel.pass_time(0)
    channel.flush()
    return topic, subscription


def test_what_a_subscription_does_not_want_leaves_it_and_its_topic(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "n = 1")
    first = channel.order(client.publish_rows(topic, *rows(2, 1, 2, 3)))
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first + 1]
    subscription = channel.manager.state.directory.subscription(id)
    assert subscription is not None
    assert subscription.backlog == 4
    channel.order_proposals(effects)
    assert (subscription.backlog, subscription.skipped) == (1, 3)
    store = channel.manager.state.directory.get(topic)
    assert store is not None
    assert list(store.live.numbers()) == [first + 1], "no other is kept"
    channel.order(client.ack(topic, (first + 1, first + 2), subscription=id))
    assert (subscription.backlog, store.acknowledged, store.live.count) == (0, 1, 0)


def test_one_proposal_to_skip_is_under_way_at_a_time(channel: Channel, client: Client) -> None:
    topic, _ = subscribed(channel, client, "n = 1")
    first = channel.order(client.publish_rows(topic, *rows(2)))
    [command] = skips(channel)
    for _ in range(5):
        channel.order(client.publish_rows(topic, *rows(2)))
        assert skips(channel) == []
    assert skipped_numbers(command) == [first]
    channel.order(command)
    [command] = skips(channel)
    assert len(skipped_numbers(command)) == 5, "those that gathered meanwhile"
    channel.order(command)
    assert skips(channel) == []


def test_many_unwanted_messages_do_not_wait_for_a_proposal(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SKIPPED_AT_ONCE", 4)
    topic, _ = subscribed(channel, client, "n = 1")
    channel.order(client.publish_rows(topic, *rows(2)))
    assert len(skips(channel)) == 1
    channel.order(client.publish_rows(topic, *rows(2, 2, 2, 2)))
    assert len(skips(channel)) == 1


def test_a_skip_counts_in_its_term_only(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "n = 1")
    first = channel.order(client.publish_rows(topic, *rows(2, 2)))
    stale = SkipMessages(subscription=id, term=channel.manager.term - 1, ranges=Ranges([(first, first + 1)]))
    outcome = channel.outcome(of_node(stale))
    assert outcome is not None and outcome.code == OutcomeCode.STALE
    nobody = SkipMessages(subscription=999, term=channel.manager.term, ranges=Ranges([(first, first + 1)]))
    outcome = channel.outcome(of_node(nobody))
    assert outcome is not None and outcome.code == OutcomeCode.NO_DESTINATION
    subscription = channel.manager.state.directory.subscription(id)
    assert subscription is not None and subscription.skipped == 0


def test_a_message_is_skipped_once(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "n = 1")
    first = channel.order(client.publish_rows(topic, *rows(2, 2)))
    skip = SkipMessages(subscription=id, term=channel.manager.term, ranges=Ranges([(first, first + 2)]))
    channel.order(of_node(skip))
    channel.order(of_node(skip))
    subscription = channel.manager.state.directory.subscription(id)
    assert subscription is not None and (subscription.skipped, subscription.backlog) == (2, 0)


def test_selector_and_skipped_messages_survive_a_checkpoint(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "n = 1", durable="audit")
    channel.order(client.publish_rows(topic, *rows(2, 1, 2)))
    channel.order_proposals(channel.flush())
    digest, data = channel.manager.state.capture()
    restored = ChannelState.restore(data)
    assert restored.digest() == digest
    subscription = restored.directory.subscription(id)
    assert subscription is not None
    assert (subscription.selector, subscription.skipped, subscription.backlog) == ("n = 1", 2, 1)


def test_a_durable_subscription_with_another_selector_is_told_apart(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "n = 1", durable="audit")
    outcome = channel.outcome(client.subscribe(topic, "audit", selector="n = 1"))
    assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.EXISTS, id)
    outcome = channel.outcome(client.subscribe(topic, "audit", selector="n = 2"))
    assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.DIFFERS, id)


def test_a_subscription_without_a_selector_skips_nothing(channel: Channel, client: Client) -> None:
    topic, id = subscribed(channel, client, "")
    channel.order(client.publish_rows(topic, *rows(2)))
    assert skips(channel) == []
    assert not dispatcher_of(channel, id).views


# -- subscriptions without a consumer --------------------------------------------------------------


def alone(channel: Channel, client: Client) -> tuple[int, int]:
    topic = channel.create_topic("prices", '{"retention": "consumed"}')
    subscription = channel.order(client.subscribe(topic, "audit", selector="n = 1"))
    channel.pass_time(0)
    channel.flush()
    return topic, subscription


def kept(channel: Channel, topic: int) -> list[int]:
    store = channel.manager.state.directory.get(topic)
    assert store is not None
    return list(store.live.numbers())


def test_nothing_is_kept_for_a_subscription_that_does_not_want_it_and_has_no_consumer(
    channel: Channel, client: Client
) -> None:
    topic, _ = alone(channel, client)
    first = channel.order(client.publish_rows(topic, *rows(2, 1, 3)))
    deadline_ns = channel.manager.next_deadline_ns()
    assert deadline_ns is not None and deadline_ns <= channel.now_ns
    channel.order_proposals(channel.flush())
    assert kept(channel, topic) == [first + 1]
    assert skips(channel) == []


def test_a_new_primary_evaluates_what_waits(channel: Channel, client: Client) -> None:
    topic, _ = alone(channel, client)
    first = channel.order(client.publish_rows(topic, *rows(2, 1, 3)))
    channel.claim(1)
    channel.order_proposals(channel.flush())
    assert kept(channel, topic) == [first + 1]


def test_messages_are_evaluated_when_the_last_consumer_has_gone(channel: Channel, client: Client) -> None:
    topic, id = alone(channel, client)
    channel.register(1, topic, subscription=id)
    first = channel.order(client.publish_rows(topic, *rows(1, 2)))
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first]
    channel.order_proposals(effects)
    channel.unregister(1, 0)
    channel.flush()
    later = channel.order(client.publish_rows(topic, *rows(3, 1)))
    channel.order_proposals(channel.flush())
    assert kept(channel, topic) == [first, later + 1]
    channel.register(2, topic, subscription=id)
    assert numbers_to(channel.flush(), 2) == [first, later + 1]


def test_a_subscription_that_has_ended_is_not_evaluated(channel: Channel, client: Client) -> None:
    topic, id = alone(channel, client)
    channel.order(client.publish_rows(topic, *rows(2)))
    channel.order(client.unsubscribe(id))
    assert skips(channel) == []
    assert channel.manager.primary is not None
    assert channel.manager.primary.delivery.next_deadline_ns(channel.now_ns) is None


def test_a_long_backlog_is_evaluated_in_several_steps() -> None:
    bytes_max = 1_000 * views.WORK_BYTES
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=bytes_max))
    client = Client()
    channel.order(client.open())
    topic, _ = alone(channel, client)
    for _ in range(10):
        channel.order(client.publish_rows(topic, *rows(*[0] * 200)))
    wanted = channel.order(client.publish_rows(topic, *rows(1)))
    steps = 0
    while kept(channel, topic) != [wanted]:
        channel.order_proposals(channel.flush())
        steps += 1
        assert steps < 20
    assert steps > 5


# -- without a consumer --------------------------------------------------------------------------


def settle_all(channel: Channel) -> None:
    """Order everything that is proposed, until nothing is."""
    while channel.order_proposals(channel.flush()):
        channel.now_ns += 100 * 1_000_000
        channel.wall_ms += 100


@pytest.mark.parametrize("held", [{}, {"persistent": False}, None])
def test_a_subscription_is_evaluated_behind_its_last_consumer_whatever_that_had(
    channel: Channel, client: Client, held: dict[str, Any] | None
) -> None:
    topic, id = subscribed(channel, client, "n = 1")
    kept = 0
    if held is not None:
        channel.order(client.publish_rows(topic, *rows(1, **held)))
        kept = 0 if "persistent" in held else 1
    channel.flush()
    channel.unregister(1, 10)
    settle_all(channel)
    channel.order(client.publish_rows(topic, *rows(*[2] * 20)))
    settle_all(channel)
    subscription = channel.manager.state.directory.subscription(id)
    assert subscription is not None and subscription.backlog == kept
    channel.register(2, topic, subscription=id)
    channel.order(client.publish_rows(topic, *rows(1, 2)))
    assert len(numbers_to(channel.flush(), 2)) == kept + 1


def test_what_waited_for_its_time_is_evaluated_behind_the_last_consumer(
    channel: Channel, client: Client
) -> None:
    topic, id = subscribed(channel, client, "n = 1")
    channel.order(client.publish_rows(topic, *rows(2, 2, deliver_at_ms=channel.wall_ms + 60_000)))
    channel.order(client.publish_rows(topic, *rows(2)))
    settle_all(channel)
    channel.unregister(1, 0)
    settle_all(channel)
    subscription = channel.manager.state.directory.subscription(id)
    assert subscription is not None and subscription.backlog == 0
