"""Subscriptions as the log makes and ends them, and destinations with settings."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.message_manager.fold import subscriptions
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    CommandKind,
    CreateDestination,
    LogTime,
    Outcome,
    StartKind,
    Subscribe,
)
from antiphon.wire.commands import OutcomeCode as C
from tests.unit.message_manager.channel import SESSION, Channel, Client, bodies, of_node, proposals

OTHER = 0xB2


@pytest.fixture
def client(channel: Channel) -> Client:
    client = Client()
    channel.order(client.open(client_id="desk"))
    return client


@pytest.fixture
def topic(channel: Channel, client: Client) -> int:
    destination = channel.create_topic("prices")
    channel.flush()
    return destination


def stored(channel: Channel, topic: int) -> Topic:
    found = channel.manager.state.directory.get(topic)
    assert isinstance(found, Topic)
    return found


def subscription(channel: Channel, id: int) -> Subscription:
    found = channel.manager.state.directory.subscription(id)
    assert found is not None
    return found


def refusal(channel: Channel) -> str:
    [outcome] = channel.exceptions()
    assert outcome.code == C.REFUSED
    return outcome.text


# -- beginning ---------------------------------------------------------------------------------------


def test_the_number_of_the_command_is_the_id_of_the_subscription(
    channel: Channel, client: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, client_id="desk"))
    assert channel.exceptions() == []
    made = subscription(channel, id)
    assert (made.is_durable, made.members, made.client_id) == (False, {SESSION: 1}, "desk")


def test_a_subscription_begins_at_its_place_in_the_order(
    channel: Channel, client: Client, topic: int
) -> None:
    channel.order(client.publish(topic, bodies(3)))
    id = channel.order(client.subscribe(topic, client_id="desk"))
    after = channel.order(client.publish(topic, bodies(2)))
    assert subscription(channel, id).pending(0, 9)[0] == Ranges([(after, after + 2)])


def test_the_earliest_is_the_first_that_is_kept(channel: Channel, client: Client, topic: int) -> None:
    first = channel.order(client.publish(topic, bodies(3)))
    id = channel.order(client.subscribe(topic, start="earliest", client_id="desk"))
    assert subscription(channel, id).pending(0, 9)[0] == Ranges([(first, first + 3)])


@pytest.mark.parametrize(("back", "expected"), [(0, 1), (2, 3), (10_000, 3), (-5, 0)])
def test_a_number_is_where_to_begin_and_no_earlier_than_what_is_kept(
    channel: Channel, client: Client, topic: int, back: int, expected: int
) -> None:
    last = channel.order(client.publish(topic, bodies(3))) + 2
    id = channel.order(client.subscribe(topic, start=max(0, last - back), client_id="desk"))
    assert subscription(channel, id).backlog == expected


def test_a_durable_subscription_that_exists_is_answered_with_its_id(
    channel: Channel, client: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.publish(topic, bodies(3)))
    channel.order(client.close())
    again = Client(OTHER)
    channel.order(again.open(client_id="desk"))
    channel.flush()
    second = channel.order(again.subscribe(topic, "audit", start="earliest", client_id="desk"))
    assert channel.exceptions() == [Outcome(second, 1, C.EXISTS, id)]
    assert subscription(channel, id).backlog == 3, "it stands where it stood"


def test_a_repeated_subscribe_is_told_what_became_of_the_first(
    channel: Channel, client: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.flush()
    again = channel.order(client.subscribe(topic, "audit", client_id="desk", number=1))
    assert channel.exceptions() == [Outcome(again, 1, C.DUPLICATE, id)]
    again = channel.order(client.subscribe(topic, "audit", client_id="desk", number=2))
    assert channel.exceptions() == [Outcome(again, 1, C.EXISTS, id)]


def test_names_belong_to_client_ids(channel: Channel, client: Client, topic: int) -> None:
    other = Client(OTHER)
    channel.order(other.open(client_id="lab"))
    one = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    two = channel.order(other.subscribe(topic, "audit", client_id="lab"))
    assert channel.exceptions() == []
    assert one != two
    channel.order(other.subscribe(topic, "audit", client_id="desk"))
    assert "another client id" in refusal(channel)


@pytest.mark.parametrize("names", [{"durable": "audit"}, {"shared": "audit"}], ids=str)
def test_a_name_that_is_used_for_another_topic_is_told(
    channel: Channel, client: Client, topic: int, names: dict[str, Any]
) -> None:
    other = channel.create_topic("weather")
    id = channel.order(client.subscribe(topic, **names, client_id="desk"))
    channel.flush()
    second = channel.order(client.subscribe(other, **names, client_id="desk"))
    assert channel.exceptions() == [
        Outcome(second, 1, C.DIFFERS, id, "subscription audit is one to topic:prices")
    ]
    assert not stored(channel, other).subscriptions


def test_only_topics_are_subscribed_to(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.order(client.subscribe(queue, client_id="desk"))
    assert "is a queue" in refusal(channel)
    channel.order(client.subscribe(999, client_id="desk"))
    assert [outcome.code for outcome in channel.exceptions()] == [C.NO_DESTINATION]


def wish(topic: int, **changes: object) -> Subscribe:
    fields: dict[str, object] = {
        "destination": topic,
        "durable": True,
        "shared": False,
        "name": "audit",
        "client_id": "desk",
        "start": StartKind.LATEST,
        "number": 0,
    }
    return Subscribe(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"durable": False}, "only a durable or shared"),
        ({"name": ""}, "0 bytes"),
        ({"name": "", "shared": True, "durable": False}, "0 bytes"),
        ({"shared": True, "no_local": True}, "of all connections"),
        ({"name": "a\nb"}, "control character"),
        ({"name": "x" * 256}, "256 bytes"),
    ],
)
def test_what_cannot_be_subscribed_is_refused(
    channel: Channel, client: Client, topic: int, changes: dict[str, object], reason: str
) -> None:
    channel.order(client.raw(CommandKind.SUBSCRIBE, wish(topic, **changes).encode()))
    assert reason in refusal(channel)


def test_bytes_that_are_no_subscription_are_refused(channel: Channel, client: Client, topic: int) -> None:
    channel.order(client.raw(CommandKind.SUBSCRIBE, wish(topic).encode()[:-1]))
    assert [outcome.code for outcome in channel.exceptions()] == [C.REFUSED]
    channel.order(client.raw(CommandKind.UNSUBSCRIBE, b"xyz"))
    assert [outcome.code for outcome in channel.exceptions()] == [C.REFUSED]


def test_the_node_itself_does_not_subscribe(channel: Channel, topic: int) -> None:
    channel.order(of_node(wish(topic)))
    assert "only a session" in refusal(channel)


def test_a_topic_has_only_so_many_subscriptions(
    channel: Channel, client: Client, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 2)
    channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.subscribe(topic, client_id="desk"))
    assert channel.exceptions() == []
    channel.order(client.subscribe(topic, client_id="desk"))
    assert "2 subscriptions already" in refusal(channel)
    channel.order(client.subscribe(topic, "audit", client_id="desk"))
    assert [outcome.code for outcome in channel.exceptions()] == [C.EXISTS]


# -- sharing -----------------------------------------------------------------------------------------


@pytest.fixture
def other(channel: Channel, client: Client) -> Client:
    other = Client(OTHER)
    channel.order(other.open(client_id="desk"))
    return other


def test_who_shares_a_subscription_is_answered_with_its_id(
    channel: Channel, client: Client, other: Client, topic: int
) -> None:
    for names in ({"shared": "workers"}, {"durable": "audit", "shared": True}):
        id = channel.order(client.subscribe(topic, **names, client_id="desk"))
        channel.order(client.publish(topic, bodies(3)))
        channel.flush()
        second = channel.order(other.subscribe(topic, **names, start="earliest", client_id="desk"))
        assert channel.exceptions() == [Outcome(second, 1, C.EXISTS, id)]
        assert subscription(channel, id).backlog == 3


def test_a_shared_subscription_lives_as_long_as_the_last_session_with_a_consumer(
    channel: Channel, client: Client, other: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, shared="workers", client_id="desk"))
    for one in (client, other):
        channel.order(one.subscribe(topic, shared="workers", client_id="desk"))
    assert subscription(channel, id).members == {SESSION: 2, OTHER: 1}
    channel.order(client.unsubscribe(id))
    assert subscription(channel, id).members == {SESSION: 1, OTHER: 1}
    channel.order(client.close())
    assert subscription(channel, id).members == {OTHER: 1}
    channel.order(other.unsubscribe(id))
    assert channel.manager.state.directory.subscription(id) is None
    assert channel.manager.state.directory.subscription_named("desk", "workers", is_durable=False) is None


def test_who_does_not_share_a_subscription_does_not_end_it(
    channel: Channel, client: Client, other: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, shared="workers", client_id="desk"))
    channel.order(other.unsubscribe(id))
    assert "no subscription" in refusal(channel)
    assert subscription(channel, id).members == {SESSION: 1}


def test_a_shared_subscription_that_stays_belongs_to_its_client_id_and_to_no_session(
    channel: Channel, client: Client, other: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, "audit", shared=True, client_id="desk"))
    channel.order(client.close())
    assert subscription(channel, id).is_shared
    channel.order(other.unsubscribe(id))
    assert channel.manager.state.directory.subscription(id) is None


def test_a_durable_name_is_shared_or_not(channel: Channel, client: Client, topic: int) -> None:
    channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.subscribe(topic, "audit", shared=True, client_id="desk"))
    assert refusal(channel) == "subscription audit is not shared"
    channel.order(client.subscribe(topic, "book", shared=True, client_id="desk"))
    channel.order(client.subscribe(topic, "book", client_id="desk"))
    assert refusal(channel) == "subscription book is shared"


def test_a_shared_subscription_that_passes_is_apart_from_a_durable_one_of_that_name(
    channel: Channel, client: Client, topic: int
) -> None:
    ids = {
        channel.order(client.subscribe(topic, **names, client_id="desk"))
        for names in ({"shared": "audit"}, {"durable": "audit", "shared": True})
    }
    assert channel.exceptions() == []
    assert set(stored(channel, topic).subscriptions) == ids


@pytest.mark.parametrize("durable", ["", "workers"])
def test_all_who_share_a_subscription_have_its_selector(
    channel: Channel, client: Client, topic: int, durable: str
) -> None:
    shared = bool(durable) or "workers"
    id = channel.order(client.subscribe(topic, durable, shared=shared, client_id="desk", selector="n = 1"))
    channel.flush()
    second = channel.order(
        client.subscribe(topic, durable, shared=shared, client_id="desk", selector="n = 2")
    )
    assert channel.exceptions() == [
        Outcome(second, 1, C.DIFFERS, id, "subscription workers has another selector")
    ]


def test_a_subscription_of_which_a_transaction_has_messages_does_not_end(
    channel: Channel, client: Client, topic: int
) -> None:
    id = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    first = channel.order(client.publish(topic, bodies(2)))
    channel.manager.state.locks[id] = Ranges([(first, first + 1)])
    channel.order(client.unsubscribe(id))
    assert "a transaction has messages" in refusal(channel)
    del channel.manager.state.locks[id]
    channel.order(client.unsubscribe(id))
    assert channel.exceptions() == []


# -- no-local ----------------------------------------------------------------------------------------

HERE, ELSEWHERE = 0xC0, 0xC1


def sessions(channel: Channel) -> tuple[Client, Client, Client]:
    """Two sessions of one connection, and one of another connection with the same client id."""
    clients = Client(0xD1), Client(0xD2), Client(0xD3)
    for client, connection in zip(clients, (HERE, HERE, ELSEWHERE), strict=True):
        channel.order(client.open(client_id="desk", connection=connection))
    return clients


def waiting(channel: Channel, id: int) -> list[int]:
    return list(subscription(channel, id).pending(0, 99)[0].numbers())


def test_what_the_own_connection_publishes_does_not_enter_the_subscription(
    channel: Channel, topic: int
) -> None:
    one, two, other = sessions(channel)
    id = channel.order(one.subscribe(topic, client_id="desk", no_local=True))
    plain = channel.order(one.subscribe(topic, client_id="desk"))
    firsts = [channel.order(client.publish(topic, bodies(2))) for client in (one, two, other)]
    assert waiting(channel, id) == [firsts[2], firsts[2] + 1]
    assert subscription(channel, id).backlog == 2
    assert len(waiting(channel, plain)) == 6


def test_a_durable_one_leaves_out_what_any_connection_of_its_client_id_publishes(
    channel: Channel, topic: int
) -> None:
    one, _, other = sessions(channel)
    stranger = Client(0xD4)
    channel.order(stranger.open(client_id="lab", connection=HERE))
    id = channel.order(one.subscribe(topic, "audit", client_id="desk", no_local=True))
    for client in (one, other):
        channel.order(client.publish(topic, bodies(2)))
    first = channel.order(stranger.publish(topic, bodies(1)))
    assert waiting(channel, id) == [first]


def test_a_session_without_connection_or_client_id_is_nobody_s_own(channel: Channel, topic: int) -> None:
    one, two = Client(0xD1), Client(0xD2)
    channel.order(one.open(), two.open())
    ids = [channel.order(one.subscribe(topic, name, no_local=True)) for name in ("", "audit")]
    first = channel.order(two.publish(topic, bodies(1)))
    assert [waiting(channel, id) for id in ids] == [[first], [first]]


def test_a_topic_keeps_nothing_for_a_subscription_that_leaves_it_out(channel: Channel) -> None:
    topic = channel.create_topic("short", '{"retention":"consumed"}')
    one, _, other = sessions(channel)
    channel.order(one.subscribe(topic, client_id="desk", no_local=True))
    channel.order(one.publish(topic, bodies(3)))
    assert stored(channel, topic).live.count == 0
    channel.order(other.publish(topic, bodies(3)))
    assert stored(channel, topic).live.count == 3


def test_messages_of_a_transaction_are_their_session_s_own(channel: Channel, topic: int) -> None:
    one, two, other = sessions(channel)
    id = channel.order(one.subscribe(topic, client_id="desk", no_local=True))
    for client in (two, other):
        channel.order(client.tx_publish(topic, bodies(2)))
        channel.order(client.tx_commit(1, 2))
    assert subscription(channel, id).backlog == 2


def test_a_repeated_publish_is_left_out_once(channel: Channel, topic: int) -> None:
    one, _, _ = sessions(channel)
    id = channel.order(one.subscribe(topic, client_id="desk", no_local=True))
    channel.order(one.publish(topic, bodies(2)))
    skipped = subscription(channel, id).skipped
    channel.order(one.publish(topic, bodies(3), number=one.number - 2))
    assert (subscription(channel, id).skipped, skipped) == (3, 2)
    assert waiting(channel, id) == []


def test_a_durable_subscription_with_no_local_set_otherwise_is_told(channel: Channel, topic: int) -> None:
    one, _, _ = sessions(channel)
    for name, first in (("a", False), ("b", True)):
        id = channel.order(one.subscribe(topic, name, client_id="desk", no_local=first))
        channel.flush()
        channel.order(one.subscribe(topic, name, client_id="desk", no_local=not first))
        (outcome,) = channel.exceptions()
        assert (outcome.code, outcome.original) == (C.DIFFERS, id)
        assert "its own client id publishes" in outcome.text


# -- ending ------------------------------------------------------------------------------------------


def test_a_subscription_that_is_not_durable_ends_with_its_session(
    channel: Channel, client: Client, topic: int
) -> None:
    channel.order(client.subscribe(topic, client_id="desk"))
    durable = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.close())
    assert list(stored(channel, topic).subscriptions) == [durable]
    assert channel.manager.state.directory.leave_all(SESSION) == []


def test_so_it_does_when_the_session_expires(channel: Channel, client: Client, topic: int) -> None:
    id = channel.order(client.subscribe(topic, client_id="desk"))
    channel.order(client.resume(2))
    assert channel.manager.state.directory.subscription(id) is not None, "a resumed session keeps it"
    channel.order(channel.expiry(generation=2))
    assert channel.manager.state.directory.subscription(id) is None


def test_what_only_an_ended_subscription_needed_goes(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices", '{"retention":"consumed"}')
    one = channel.order(client.subscribe(topic, client_id="desk"))
    first = channel.order(client.publish(topic, bodies(4)))
    channel.order(client.subscribe(topic, client_id="desk", start=first + 2))
    channel.order(client.unsubscribe(one))
    assert channel.exceptions() == []
    assert stored(channel, topic).live == Ranges([(first + 2, first + 4)])


def test_a_subscription_is_ended_by_those_it_belongs_to(channel: Channel, client: Client, topic: int) -> None:
    other = Client(OTHER)
    channel.order(other.open(client_id="lab"))
    friend = Client(0xC3)
    channel.order(friend.open(client_id="desk"))
    durable = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    passing = channel.order(client.subscribe(topic, client_id="desk"))
    channel.flush()
    for stranger, id in ((other, durable), (other, passing), (friend, passing), (client, 999)):
        channel.order(stranger.unsubscribe(id))
        assert f"no subscription {id}" in refusal(channel)
    channel.order(friend.unsubscribe(durable), client.unsubscribe(passing))
    assert channel.exceptions() == []
    assert stored(channel, topic).subscriptions == {}


def test_a_name_may_be_used_again_once_it_is_free(channel: Channel, client: Client, topic: int) -> None:
    one = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    channel.order(client.unsubscribe(one))
    two = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    assert channel.exceptions() == []
    assert subscription(channel, two).backlog == 0


def test_with_a_topic_its_subscriptions_go(channel: Channel, client: Client, topic: int) -> None:
    id = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    passing = channel.order(client.subscribe(topic, client_id="desk"))
    channel.order(client.publish(topic, bodies(3)))
    channel.order(client.delete(topic))
    directory = channel.manager.state.directory
    assert directory.subscription(id) is None and directory.subscription(passing) is None
    assert channel.manager.live_bytes_by_segment() == {}
    channel.order(client.close())
    assert channel.exceptions() == []


# -- acknowledging -----------------------------------------------------------------------------------


def test_each_subscription_acknowledges_for_itself(channel: Channel, client: Client, topic: int) -> None:
    one, two = (channel.order(client.subscribe(topic, client_id="desk")) for _ in range(2))
    first = channel.order(client.publish(topic, bodies(5)))
    channel.order(client.ack(topic, (first, first + 3), subscription=one))
    assert channel.exceptions() == []
    assert (subscription(channel, one).backlog, subscription(channel, two).backlog) == (2, 5)
    channel.order(client.ack(topic, (first, first + 4), subscription=one))
    [lost] = channel.exceptions()
    assert (lost.code, lost.original) == (C.ACK_LOST, first)
    assert subscription(channel, one).backlog == 1


def test_deliveries_in_vain_are_counted_for_each(channel: Channel, client: Client, topic: int) -> None:
    one, two = (channel.order(client.subscribe(topic, client_id="desk")) for _ in range(2))
    first = channel.order(client.publish(topic, bodies(5)))
    channel.order(client.give_back(topic, (first, first + 2), subscription=one))
    assert subscription(channel, one).counts.of(first) == 1
    assert subscription(channel, two).counts.of(first) == 0


@pytest.mark.parametrize("kind", ["ack", "give_back"])
def test_a_topic_has_no_messages_but_its_subscriptions_do(
    channel: Channel, client: Client, topic: int, kind: str
) -> None:
    queue = channel.create("orders")
    other = channel.create_topic("weather")
    id = channel.order(client.subscribe(topic, client_id="desk"))
    channel.flush()
    command = getattr(client, kind)
    for destination, subscription, reason in (
        (topic, 0, "is a topic"),
        (topic, 999, "no subscription 999"),
        (other, id, f"no subscription {id}"),
        (queue, id, "is a queue"),
    ):
        channel.order(command(destination, (1, 2), subscription=subscription))
        assert reason in refusal(channel)
    channel.order(command(999, (1, 2), subscription=id))
    assert [outcome.code for outcome in channel.exceptions()] == [C.NO_DESTINATION]


# -- settings ----------------------------------------------------------------------------------------


def create(channel: Channel, settings: str) -> list[Outcome]:
    channel.create_topic("prices", settings)
    return channel.exceptions()


def test_a_topic_keeps_an_hour_and_a_gigabyte_unless_told_otherwise(channel: Channel, topic: int) -> None:
    assert stored(channel, topic).retention == (3_600_000, 1 << 30)
    assert stored(channel, topic).settings == (
        '{"dead_to":"_DMQ","dedup_window":600,"redelivery_delay":0,"redelivery_limit":0,"retention":3600,'
        '"retention_bytes":1073741824}'
    )


def test_an_existing_destination_is_fine_if_it_is_set_as_asked_for(channel: Channel) -> None:
    assert create(channel, '{"retention":60,"retention_bytes":5000}') == []
    for settings in ("{}", "", '{"retention":60.0}', '{"retention_bytes":5000,"retention":60}'):
        [outcome] = create(channel, settings)
        assert outcome.code == C.DUPLICATE


def test_with_other_settings_it_is_refused_and_said_which(channel: Channel) -> None:
    create(channel, '{"retention":60}')
    [outcome] = create(channel, '{"retention":60,"retention_bytes":5000}')
    assert outcome.code == C.REFUSED
    assert outcome.text == "topic:prices exists, and its retention_bytes is 1073741824, not 5000"
    [outcome] = create(channel, '{"retention":"consumed"}')
    assert outcome.text == "topic:prices exists, and its retention is 60, not consumed"


def test_a_setting_nobody_knows_is_refused_by_name(channel: Channel) -> None:
    [outcome] = create(channel, '{"color":"red"}')
    assert outcome.text == (
        "topic:prices: a topic has no setting 'color'; "
        "it has retention, retention_bytes, redelivery_limit, redelivery_delay, dead_to, dedup_window"
    )
    channel.order(of_node(CreateDestination(kind=1, name="orders", settings='{"retention":"consumed"}')))
    assert channel.exceptions() == []


# -- time --------------------------------------------------------------------------------------------


def test_messages_become_too_old_without_traffic(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices", '{"retention":60}')
    channel.order(client.publish(topic, bodies(3)))
    channel.pass_time(1_000)
    channel.flush()
    channel.order_proposals(channel.flush())
    due = channel.manager.next_deadline_ns()
    assert due is not None and due == channel.now_ns + 60_000_000_000
    channel.now_ns, channel.wall_ms = due, channel.wall_ms + 60_000
    assert channel.order_proposals(channel.flush()) == 1
    assert stored(channel, topic).live.count == 0
    channel.flush()
    assert channel.manager.next_deadline_ns() is None


def test_a_new_primary_knows_when_messages_become_too_old(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices", '{"retention":60}')
    channel.order(client.publish(topic, bodies(3)))
    channel.claim(1)
    assert len(proposals(channel.flush())) == 1, "how old the last messages are has not been told yet"


def test_a_late_mark_of_log_time_makes_no_message_older(channel: Channel, client: Client) -> None:
    """The command may be ordered long after it was proposed, behind messages that came meanwhile."""
    topic = channel.create_topic("aging", '{"retention":1}')
    channel.pass_time(0)
    first = channel.order(client.publish(topic, bodies(1)))
    late = LogTime(time_ms=channel.wall_ms - 500, term=channel.manager.term)
    channel.order(of_node(late))
    store = channel.manager.state.directory.get(topic)
    assert store is not None
    channel.pass_time(900)
    channel.pass_time(999)
    assert first in store.live, "its age counts from the first mark behind it"
    channel.pass_time(1)
    assert first not in store.live
