"""Families: which topics belong to a pattern, and what their subscriptions get and keep."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.message_manager.delivery import matching
from antiphon.message_manager.state.destinations import family as family_module
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import family_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    CommandKind,
    CreateDestination,
    DeleteDestination,
    ExpireMessages,
    MatchTopics,
    PurgeDestination,
)
from antiphon.wire.commands import OutcomeCode as C
from antiphon.wire.transactions import Consumed
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import (
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    bodies,
    delivers,
    numbers_to,
    of_node,
    proposals,
)

CONSUMED = '{"retention":"consumed"}'
ME = 1


@pytest.fixture
def channel() -> Channel:
    """Captured and restored after every entry."""
    return RestoredChannel()


@pytest.fixture
def client(channel: Channel) -> Client:
    client = Client()
    channel.order(client.open(connection=7))
    return client


def make_family(channel: Channel, pattern: str = "topic:prices.*", match: str = "glob") -> int:
    name = family_name(match, pattern).removeprefix("topic:")
    return channel.order(of_node(CreateDestination(kind=2, name=name, settings="{}")))


def family_of(channel: Channel, id: int) -> Family:
    found = channel.manager.state.directory.family(id)
    assert found is not None
    return found


def topic_of(channel: Channel, id: int) -> Topic:
    found = channel.manager.state.directory.get(id)
    assert isinstance(found, Topic)
    return found


def subscription_of(channel: Channel, id: int) -> Subscription:
    found = channel.manager.state.directory.subscription(id)
    assert found is not None
    return found


def decisions(channel: Channel) -> list[bytes]:
    """What the primary proposes now about families."""
    kind = int(CommandKind.MATCH)
    return [one.command for one in proposals(channel.flush()) if one.command[0] == kind]


def decide(channel: Channel) -> int:
    """Let the primary decide about all topics; returns how many commands that took."""
    count = 0
    while channel.manager.state.directory.undecided.families:
        for command in decisions(channel):
            count += 1
            channel.order(command)
    return count


def settle(channel: Channel) -> None:
    """Order what the primary proposes, until that is nothing but marks of log time."""
    kind = int(CommandKind.LOG_TIME)
    while commands := [one.command for one in proposals(channel.flush()) if one.command[0] != kind]:
        for command in commands:
            channel.order(command)


def needed(channel: Channel, subscription: int) -> list[int]:
    found = subscription_of(channel, subscription)
    numbers = list(found.needs(found.topic.live).numbers())
    assert found.backlog == len(numbers)
    return numbers


def attach(channel: Channel, family: int, subscription: int, consumer: int = ME, credit: int = 1_000) -> None:
    channel.register(consumer, family, credit, subscription=subscription)
    channel.flush()


# -- which topics --------------------------------------------------------------------------------------


def test_topics_that_match_belong_to_the_family(channel: Channel, client: Client) -> None:
    before = channel.create_topic("prices.eu")
    other = channel.create_topic("news")
    family = make_family(channel)
    after = channel.create_topic("prices.us")
    decide(channel)
    assert sorted(family_of(channel, family).topics) == [before, after]
    assert topic_of(channel, other).families == ()
    assert topic_of(channel, after).families == (family_of(channel, family),)


def test_a_queue_and_a_temporary_topic_belong_to_no_family(channel: Channel, client: Client) -> None:
    family = make_family(channel, "topic:*")
    channel.create("prices")
    channel.order(client.create_temporary(2))
    topic = channel.create_topic("prices")
    decide(channel)
    assert list(family_of(channel, family).topics) == [topic]


@pytest.mark.parametrize(
    ("match", "pattern", "names"),
    [
        ("glob", "topic:a.*c", ["a.c", "a.b.c"]),
        ("glob", "topic:a?c", ["a.c"]),
        ("glob", "topic:a[b]c", ["a[b]c"]),
        ("regex", "topic:a(b|\\.b\\.)?c", ["ac", "a.b.c"]),
        ("regex", "topic:b", []),
    ],
)
def test_the_whole_name_matches(
    channel: Channel, client: Client, match: str, pattern: str, names: list[str]
) -> None:
    family = make_family(channel, pattern, match)
    for name in ("ac", "a.c", "a.b.c", "a[b]c", "xac", "acx"):
        channel.create_topic(name)
    decide(channel)
    found = [topic.name for topic in family_of(channel, family).topics.values()]
    assert found == [f"topic:{name}" for name in names]


def test_the_same_pattern_is_one_family(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    name = family_name("glob", "topic:prices.*").removeprefix("topic:")
    again = of_node(CreateDestination(kind=2, name=name, settings="{}"))
    outcome = channel.outcome(again)
    assert outcome is not None and (outcome.code, outcome.original) == (C.DUPLICATE, family)
    assert make_family(channel, match="regex") != family


def test_there_is_a_limit_of_families(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.message_manager.fold.families.FAMILIES_MAX", 1)
    make_family(channel)
    name = family_name("glob", "topic:b*").removeprefix("topic:")
    outcome = channel.outcome(of_node(CreateDestination(kind=2, name=name, settings="{}")))
    assert outcome is not None and outcome.code == C.REFUSED
    assert "topic:b* (glob): there are 1 patterns with subscriptions already" in outcome.text


def test_a_match_of_another_term_or_of_other_topics_is_void(channel: Channel, client: Client) -> None:
    family, topic = make_family(channel), channel.create_topic("prices.eu")
    [proposal] = decisions(channel)
    term = channel.manager.term
    for wish in (
        MatchTopics(family=family, term=term - 1, after=0, through=topic, topics=Ranges()),
        MatchTopics(family=family, term=term, after=1, through=topic, topics=Ranges()),
        MatchTopics(family=family, term=term, after=0, through=0, topics=Ranges()),
    ):
        outcome = channel.outcome(of_node(wish))
        assert outcome is not None and outcome.code == C.STALE
    assert channel.outcome(proposal) is None
    assert list(family_of(channel, family).topics) == [topic]
    again = channel.outcome(proposal)
    assert again is not None and again.code == C.STALE
    gone = MatchTopics(family=topic, term=term, after=0, through=topic, topics=Ranges())
    outcome = channel.outcome(of_node(gone))
    assert outcome is not None and outcome.code == C.NO_DESTINATION


def test_many_topics_are_decided_in_portions(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "NAMES_AT_ONCE", 2)
    topics = [channel.create_topic(f"prices.{at}") for at in range(5)]
    family = make_family(channel)
    assert decide(channel) == 3
    assert list(family_of(channel, family).topics) == topics


def test_a_new_primary_goes_on_where_the_log_stands(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "NAMES_AT_ONCE", 1)
    family = make_family(channel)
    first, second = channel.create_topic("prices.a"), channel.create_topic("prices.b")
    [command] = decisions(channel)
    channel.order(command)
    late = decisions(channel)
    assert family_of(channel, family).decided_through == first
    channel.claim(1)
    assert [outcome.code for one in late if (outcome := channel.outcome(one))] == [C.STALE]
    decide(channel)
    assert list(family_of(channel, family).topics) == [first, second]


def test_a_lost_proposal_is_made_again(channel: Channel, client: Client) -> None:
    make_family(channel)
    channel.create_topic("prices.a")
    assert len(decisions(channel)) == 1
    assert decisions(channel) == []
    while not decisions(channel):
        due_ns = channel.manager.next_deadline_ns()
        assert due_ns is not None and due_ns <= 2 * SECOND_NS
        channel.now_ns = max(due_ns, channel.now_ns + 1)


def test_a_pattern_that_this_node_cannot_evaluate_is_told_once_and_loses_nothing(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(match: str, pattern: str) -> Any:
        raise matching.InvalidPattern("no google-re2")

    monkeypatch.setattr(matching, "compile_pattern", refuse)
    family = make_family(channel, match="regex")
    subscription = channel.order(client.subscribe(family))
    topic = channel.create_topic("prices.eu", CONSUMED)
    first = channel.order(client.publish(topic, bodies(2)))
    alarms = [effect.event for effect in channel.flush() if isinstance(effect, matching.Alarm)]
    assert [alarm.sentence("node", "main") for alarm in alarms] == [
        "channel main cannot tell which topics belong to topic:prices.* (regex): no google-re2"
    ]
    assert not [effect for effect in channel.flush() if isinstance(effect, matching.Alarm)]
    assert list(topic_of(channel, topic).live.numbers()) == [first, first + 1]
    # Another primary can.
    monkeypatch.undo()
    channel.claim(1)
    decide(channel)
    assert needed(channel, subscription) == [first, first + 1]


# -- what a subscription gets --------------------------------------------------------------------------


def test_a_topic_made_later_is_there_from_its_first_message_on(channel: Channel, client: Client) -> None:
    """Though the topic keeps nothing beyond what subscriptions need, and others have been acknowledged."""
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    known = channel.create_topic("prices.a", CONSUMED)
    decide(channel)
    late = channel.create_topic("prices.b", CONSUMED)
    other = channel.create_topic("news", CONSUMED)
    first = channel.order(client.publish(late, bodies(2)))
    kept = channel.order(client.publish(other, bodies(1)))
    second = channel.order(client.publish(known, bodies(1)))
    channel.order(client.ack(family, (second, second + 1), subscription=subscription))
    assert subscription_of(channel, subscription).floor >= second
    assert list(topic_of(channel, other).live.numbers()) == [kept]
    decide(channel)
    assert needed(channel, subscription) == [first, first + 1]
    assert not topic_of(channel, other).live
    channel.order(client.ack(family, (first, first + 2), subscription=subscription))
    assert needed(channel, subscription) == []
    assert not topic_of(channel, late).live and topic_of(channel, late).acknowledged == 2


def test_a_subscription_begins_with_new_messages_or_with_the_kept_ones(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices.a")
    old = channel.order(client.publish(topic, bodies(2)))
    family = make_family(channel)
    decide(channel)
    latest = channel.order(client.subscribe(family))
    earliest = channel.order(client.subscribe(family, start="earliest"))
    new = channel.order(client.publish(topic, bodies(1)))
    assert needed(channel, latest) == [new]
    assert needed(channel, earliest) == [old, old + 1, new]


def test_topics_that_join_bring_what_came_after_the_beginning(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices.a")
    old = channel.order(client.publish(topic, bodies(1)))
    family = make_family(channel)
    latest = channel.order(client.subscribe(family))
    earliest = channel.order(client.subscribe(family, start="earliest"))
    new = channel.order(client.publish(topic, bodies(1)))
    decide(channel)
    assert needed(channel, latest) == [new]
    assert needed(channel, earliest) == [old, new]


def test_the_messages_of_all_topics_are_delivered_with_their_names(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription)
    one, two = channel.create_topic("prices.a"), channel.create_topic("prices.b")
    decide(channel)
    numbers = [channel.order(client.publish(topic, bodies(1))) for topic in (one, two, one)]
    effects = channel.flush()
    assert numbers_to(effects, ME) == numbers
    names = [name for deliver in delivers(effects) for name in deliver.topics]
    assert names == ["topic:prices.a", "topic:prices.b", "topic:prices.a"]
    assert {deliver.destination for deliver in delivers(effects)} == {family}


def test_a_consumer_gets_what_joins_behind_what_it_has_had(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription)
    known = channel.create_topic("prices.a")
    decide(channel)
    late = channel.create_topic("prices.b")
    first = channel.order(client.publish(late, bodies(2)))
    second = channel.order(client.publish(known, bodies(1)))
    effects = channel.flush()
    assert numbers_to(effects, ME) == [second]
    channel.order_proposals(effects)
    assert numbers_to(channel.flush(), ME) == [first, first + 1]


def test_what_joins_comes_by_priority(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription, credit=0)
    known, late = channel.create_topic("prices.a"), None
    decide(channel)
    plain = channel.order(client.publish(known, bodies(1)))
    channel.flush()
    late = channel.create_topic("prices.b")
    rows = [{"body": b"x", "priority": 9}, {"body": b"y"}]
    first = channel.order(client.publish_rows(late, *rows))
    decide(channel)
    channel.credit(ME, 10)
    assert numbers_to(channel.flush(), ME) == [first, plain, first + 1]


def test_a_selector_chooses_of_what_joins(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family, selector="JMSPriority > 4"))
    known = channel.create_topic("prices.a")
    decide(channel)
    channel.order(client.publish_rows(known, {"priority": 5}))
    late = channel.create_topic("prices.b")
    first = channel.order(client.publish_rows(late, {"priority": 1}, {"priority": 6}))
    settle(channel)
    assert needed(channel, subscription)[-1] == first + 1 and first not in needed(channel, subscription)
    attach(channel, family, subscription)


def test_no_local_leaves_out_what_the_own_connection_publishes(channel: Channel, client: Client) -> None:
    """Also in a topic that was not decided when it was published."""
    stranger = Client(0xB2)
    channel.order(stranger.open())
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family, no_local=True))
    topic = channel.create_topic("prices.a")
    channel.order(client.publish(topic, bodies(1)))
    theirs = [channel.order(stranger.publish(topic, bodies(1)))]
    decide(channel)
    assert family_of(channel, family).own == {}
    channel.order(client.publish(topic, bodies(1)))
    theirs.append(channel.order(stranger.publish(topic, bodies(1))))
    assert needed(channel, subscription) == theirs
    attach(channel, family, subscription)


def test_a_shared_and_a_durable_subscription_are_as_those_of_a_topic(channel: Channel) -> None:
    client = Client()
    channel.order(client.open(client_id="desk"))
    family, other = make_family(channel), make_family(channel, "topic:*")
    durable = channel.order(client.subscribe(family, "audit", client_id="desk"))
    again = channel.outcome(client.subscribe(family, "audit", client_id="desk"))
    assert again is not None and (again.code, again.original) == (C.EXISTS, durable)
    differs = channel.outcome(client.subscribe(other, "audit", client_id="desk"))
    assert differs is not None and differs.code == C.DIFFERS
    shared = channel.order(client.subscribe(family, shared="workers", client_id="desk"))
    topic = channel.create_topic("prices.a")
    decide(channel)
    first = channel.order(client.publish(topic, bodies(1)))
    assert needed(channel, durable) == needed(channel, shared) == [first]


def test_a_transaction_is_consumed_and_published_through_a_family(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    topic = channel.create_topic("prices.a", CONSUMED)
    decide(channel)
    channel.order(client.tx_publish(topic, bodies(2)))
    first = channel.order(client.tx_commit(1, 2))
    assert needed(channel, subscription) == [first, first + 1]
    consumed = Consumed(family, subscription, Ranges([(first, first + 1)]))
    channel.order(client.tx_commit(0, 0, consumed, transaction=2))
    assert needed(channel, subscription) == [first + 1]
    assert list(topic_of(channel, topic).live.numbers()) == [first + 1]


# -- what a topic keeps ----------------------------------------------------------------------------------


def test_a_topic_keeps_what_a_subscription_of_its_family_needs(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    topic = channel.create_topic("prices.a", CONSUMED)
    decide(channel)
    first = channel.order(client.publish(topic, bodies(3)))
    assert topic_of(channel, topic).live.count == 3
    channel.order(client.ack(family, (first, first + 1), subscription=subscription))
    assert list(topic_of(channel, topic).live.numbers()) == [first + 1, first + 2]
    channel.order(client.unsubscribe(subscription))
    assert not topic_of(channel, topic).live and not family_of(channel, family).live


def test_the_end_of_a_subscription_frees_what_undecided_topics_kept(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    topic = channel.create_topic("prices.a", CONSUMED)
    channel.order(client.publish(topic, bodies(3)))
    assert topic_of(channel, topic).live.count == 3
    channel.order(client.unsubscribe(subscription))
    assert not topic_of(channel, topic).live


def test_a_topic_with_no_family_keeps_no_more_than_before(channel: Channel, client: Client) -> None:
    make_family(channel)
    topic = channel.create_topic("prices.a", CONSUMED)
    channel.order(client.publish(topic, bodies(3)))
    assert not topic_of(channel, topic).live


def test_acknowledgements_are_counted_and_audited_under_the_topics(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    one, two = channel.create_topic("prices.a"), channel.create_topic("prices.b")
    decide(channel)
    channel.order(client.hold("audit", 1, two, acks=True))
    first = channel.order(client.publish(one, bodies(1)), client.publish(two, bodies(1)))
    number = channel.order(client.ack(family, (first, first + 2), subscription=subscription))
    assert [topic_of(channel, id).acknowledged for id in (one, two)] == [1, 1]
    log = channel.manager.state.holds.acknowledgements
    assert [row.told for row in log.between(number, number + 1)] == [
        (Consumed(two, subscription, Ranges([(first + 1, first + 2)])),)
    ]


def test_a_topic_that_is_purged_leaves_the_others(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription, credit=0)
    one, two = channel.create_topic("prices.a"), channel.create_topic("prices.b")
    decide(channel)
    channel.order(client.publish(one, bodies(2)))
    kept = channel.order(client.publish(two, bodies(1)))
    channel.order(client.command(PurgeDestination(destination=one)))
    assert needed(channel, subscription) == [kept] and topic_of(channel, one).purged == 2
    channel.credit(ME, 10)
    assert numbers_to(channel.flush(), ME) == [kept]


def test_a_topic_that_is_deleted_takes_its_messages_along(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription, credit=1)
    one, two = channel.create_topic("prices.a"), channel.create_topic("prices.b")
    decide(channel)
    first = channel.order(client.publish(one, bodies(2)))
    kept = channel.order(client.publish(two, bodies(1)))
    assert numbers_to(channel.flush(), ME) == [first]
    channel.order(client.command(DeleteDestination(destination=one)))
    assert needed(channel, subscription) == [kept]
    assert list(family_of(channel, family).topics) == [two]
    channel.credit(ME, 10)
    assert numbers_to(channel.flush(), ME) == [kept]
    outcome = channel.outcome(client.ack(family, (first, first + 1), subscription=subscription))
    assert outcome is not None and outcome.code == C.ACK_LOST


def test_the_last_undecided_topic_may_be_deleted(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    topic = channel.create_topic("prices.a")
    channel.order(client.command(DeleteDestination(destination=topic)))
    assert channel.manager.state.directory.undecided.families == []
    assert decisions(channel) == [] and not family_of(channel, family).topics


def test_expired_messages_leave_the_subscriptions_of_the_family(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription, credit=0)
    known = channel.create_topic("prices.a")
    decide(channel)
    soon = {"expires_ms": channel.wall_ms + 50}
    late = channel.create_topic("prices.b")
    first = channel.order(client.publish_rows(known, soon, {}))
    joined = channel.order(client.publish_rows(late, soon, {}))
    decide(channel)
    assert len(needed(channel, subscription)) == 4
    channel.pass_time(100)
    settle(channel)
    assert needed(channel, subscription) == [first + 1, joined + 1]
    channel.credit(ME, 10)
    assert sorted(numbers_to(channel.flush(), ME)) == [first + 1, joined + 1]


def test_what_expired_before_a_topic_joined_does_not_come(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    topic = channel.create_topic("prices.a")
    first = channel.order(client.publish_rows(topic, {"expires_ms": 1}, {}))
    term = channel.manager.term
    expire = ExpireMessages(destination=topic, term=term, ranges=Ranges([(first, first + 1)]))
    channel.order(of_node(expire))
    decide(channel)
    assert needed(channel, subscription) == [first + 1]


def test_each_topic_has_its_own_limit_and_its_own_way_of_the_dead(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription)
    one = channel.create_topic("prices.a", '{"redelivery_limit":1,"dead_to":"nowhere"}')
    two = channel.create_topic("prices.b", '{"redelivery_limit":1}')
    three = channel.create_topic("prices.c")
    decide(channel)
    channel.flush()
    first = channel.order(*[client.publish(topic, bodies(1)) for topic in (one, two, three)])
    for _ in range(2):
        channel.flush()
        channel.order(client.give_back(family, (first, first + 3), subscription=subscription))
    settle(channel)
    assert needed(channel, subscription) == [first + 2]
    assert [topic_of(channel, id).dead for id in (one, two, three)] == [1, 1, 0]
    dead = channel.manager.state.directory.named("queue:_DMQ")
    assert dead is not None and dead.live.count == 1


def test_each_topic_has_its_own_redelivery_delay(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family))
    attach(channel, family, subscription)
    one = channel.create_topic("prices.a", '{"redelivery_delay":10}')
    two = channel.create_topic("prices.b")
    decide(channel)
    first = channel.order(client.publish(one, bodies(1)), client.publish(two, bodies(1)))
    channel.flush()
    channel.order(client.give_back(family, (first, first + 2), subscription=subscription))
    assert numbers_to(channel.flush(), ME) == [first + 1]
    channel.pass_time(11_000)
    assert numbers_to(channel.flush(), ME) == [first]


# -- the end ---------------------------------------------------------------------------------------------


def test_a_family_without_a_subscription_ends_after_a_while(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    topic = channel.create_topic("prices.a")
    decide(channel)
    assert channel.manager.state.due_ms() == 0
    channel.pass_time(1)
    channel.pass_time(family_module.IDLE_MS - 1)
    subscription = channel.order(client.subscribe(family))
    channel.pass_time(10 * family_module.IDLE_MS)
    assert family_of(channel, family).subscriptions
    channel.order(client.unsubscribe(subscription))
    channel.pass_time(1)
    due_ms = channel.manager.state.due_ms()
    assert due_ms == channel.wall_ms + family_module.IDLE_MS
    channel.pass_time(family_module.IDLE_MS)
    assert channel.manager.state.directory.family(family) is None
    assert topic_of(channel, topic).families == ()
    outcome = channel.outcome(client.subscribe(family))
    assert outcome is not None and outcome.code == C.NO_DESTINATION


def test_nothing_but_a_consumer_uses_a_family(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    for command in (
        client.publish(family, bodies(1)),
        client.command(PurgeDestination(destination=family)),
        client.command(DeleteDestination(destination=family)),
        client.hold("h", 1, family),
    ):
        outcome = channel.outcome(command)
        assert outcome is not None and outcome.code == C.NO_DESTINATION
    outcome = channel.outcome(client.ack(family, (1, 2)))
    assert outcome is not None and "its subscriptions have messages" in outcome.text


def test_a_replica_that_begins_in_the_middle_is_equal(channel: Channel, client: Client) -> None:
    family = make_family(channel)
    subscription = channel.order(client.subscribe(family, no_local=True))
    topic = channel.create_topic("prices.a", CONSUMED)
    channel.order(client.publish(topic, bodies(2)))
    channel.create_topic("prices.b")
    middle, (_, state, _) = channel.manager.applied, channel.manager.capture(channel.manager.applied)
    channel.order_proposals(channel.flush())
    first = channel.order(client.publish_rows(topic, {"priority": 8}, {}))
    channel.order(client.ack(family, (first, first + 1), subscription=subscription))
    assert channel.replica(state, middle).state.digest() == channel.manager.state.digest()
    assert channel.replica().state.digest() == channel.manager.state.digest()
    assert SESSION in subscription_of(channel, subscription).members
