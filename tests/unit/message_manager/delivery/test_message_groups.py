"""Message groups at the primary: one consumer for the messages of a key, in order."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus.messages import Register, Unregister
from antiphon.message_manager.delivery import message_groups, views
from antiphon.message_manager.delivery.consumers import ConsumerKey
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from antiphon.wire.commands import AlterDestination
from antiphon.wire.transactions import Consumed
from tests.unit.message_manager.channel import (
    CM,
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    delivered,
    finish,
    numbers_to,
    of_node,
)

OTHER, THIRD = 0xB2, 0xC3


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.pass_time(0)
    channel.flush()
    return destination


def rows(keys: str, **more: Any) -> list[dict[str, Any]]:
    """A message for each letter, with that key; a blank has none."""
    return [{"key": None if key == " " else key, **more} for key in keys]


def dispatcher_of(channel: Channel, source: int) -> Dispatcher:
    assert channel.manager.primary is not None
    found = channel.manager.primary.delivery.dispatcher(source)
    assert found is not None
    return found


class Keys:
    """Publishes messages with keys, and shows who got which."""

    def __init__(self, channel: Channel, client: Client, queue: int) -> None:
        self.channel, self.client, self.queue = channel, client, queue
        self.key_of: dict[int, str] = {}

    def publish(self, keys: str, **more: Any) -> int:
        first = self.channel.order(self.client.publish_rows(self.queue, *rows(keys, **more)))
        self.key_of |= dict(enumerate(keys, first))
        return first

    def given(self) -> dict[int, str]:
        """The keys of the messages that consumers are given now, in their order."""
        effects = self.channel.flush()
        found: dict[int, str] = {}
        for consumer, number, _, _ in delivered(effects):
            found[consumer] = found.get(consumer, "") + self.key_of[number]
        self.channel.order_proposals(effects)
        return found


@pytest.fixture
def keys(channel: Channel, client: Client, queue: int) -> Keys:
    return Keys(channel, client, queue)


# -- one consumer for a key --------------------------------------------------------------------------


def test_messages_with_one_key_go_to_one_consumer_in_order(channel: Channel, queue: int, keys: Keys) -> None:
    for consumer in (1, 2):
        channel.register(consumer, queue)
    keys.publish("abab")
    given = keys.given()
    assert sorted(given.values()) == ["aa", "bb"], "every consumer has a group"
    for _ in range(3):
        keys.publish("ba")
        assert {who: more[0] for who, more in given.items()} == keys.given()


def test_groups_are_spread_over_the_consumers(channel: Channel, queue: int, keys: Keys) -> None:
    for consumer in (1, 2, 3):
        channel.register(consumer, queue)
    keys.publish("abcdefghijkl" * 20)
    assert sorted(len(set(given)) for given in keys.given().values()) == [4, 4, 4]


def test_messages_without_a_key_are_free(channel: Channel, queue: int, keys: Keys) -> None:
    for consumer in (1, 2):
        channel.register(consumer, queue)
    keys.publish("a")
    [owner] = keys.given()
    channel.credit(3 - owner, 1_000)
    keys.publish("a a a a a ")
    given = keys.given()
    assert given[owner].count("a") == 5
    assert given[3 - owner].strip("a") == given[3 - owner], "only those without a key"
    assert sum(map(len, given.values())) == 10


def test_a_group_whose_consumer_has_no_credit_holds_up_no_other(
    channel: Channel, queue: int, keys: Keys
) -> None:
    channel.register(1, queue, credit=1)
    keys.publish("a")
    assert keys.given() == {1: "a"}
    channel.register(2, queue)
    keys.publish("a" * 500 + "bc a")
    assert keys.given() == {2: "bc "}
    channel.credit(1, 4)
    assert keys.given() == {1: "aaa"}


def test_an_idle_consumer_keeps_its_groups(channel: Channel, client: Client, queue: int, keys: Keys) -> None:
    channel.register(1, queue)
    first = keys.publish("abc")
    assert keys.given() == {1: "abc"}
    channel.order(client.ack(queue, (first, first + 3)))
    channel.register(2, queue)
    keys.publish("abcd")
    assert keys.given() == {1: "abc", 2: "d"}


def test_a_consumer_is_given_no_more_groups_than_it_can_take_now(
    channel: Channel, queue: int, keys: Keys
) -> None:
    """Those of a long backlog are left to consumers that come later."""
    keys.publish("abcdefgh")
    channel.register(1, queue, credit=2)
    assert keys.given() == {1: "ab"}
    channel.register(2, queue, credit=10)
    assert keys.given() == {2: "cdefgh"}


def test_a_group_begins_where_the_first_key_comes(channel: Channel, queue: int, keys: Keys) -> None:
    """Consumers were there before any message had a key, and shared what came."""
    for consumer in (1, 2):
        channel.register(consumer, queue)
    keys.publish("    ")
    assert sorted(map(len, keys.given().values())) == [2, 2]
    assert dispatcher_of(channel, queue).groups is None, "without a key nothing is done for groups"
    keys.publish("aaaa  ")
    assert sorted(keys.given().values()) == ["  ", "aaaa"]


def test_an_exclusive_queue_has_no_groups_until_it_is_exclusive_no_more(
    channel: Channel, client: Client, keys: Keys
) -> None:
    keys.queue = channel.create("line", settings='{"exclusive":true}')
    for consumer in (1, 2):
        channel.register(consumer, keys.queue, credit=4)
    keys.publish("abcd")
    assert keys.given() == {1: "abcd"}
    channel.credit(1, 6)
    channel.order(of_node(AlterDestination(destination=keys.queue, settings='{"exclusive":false}')))
    keys.publish("daef")
    given = keys.given()
    assert given[1][:2] == "da", "the groups of messages that it holds are its own"
    assert sorted(given[1][2:] + given[2]) == ["e", "f"]
    channel.order(of_node(AlterDestination(destination=keys.queue, settings='{"exclusive":true}')))
    channel.credit(1, 100)
    keys.publish("ef")
    assert keys.given() == {1: "ef"}


def test_each_subscription_has_groups_of_its_own(channel: Channel, client: Client, keys: Keys) -> None:
    keys.queue = topic = channel.create_topic("news")
    shared = channel.order(client.subscribe(topic, shared="workers"))
    alone = channel.order(client.subscribe(topic))
    channel.register(1, topic, subscription=shared)
    channel.register(2, topic, subscription=shared)
    channel.register(3, topic, subscription=alone)
    keys.publish("abab")
    given = keys.given()
    assert given.pop(3) == "abab"
    assert sorted(given.values()) == ["aa", "bb"]
    assert dispatcher_of(channel, alone).groups is None


def test_the_order_within_a_group_is_by_priority_then_number(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=0)
    first = channel.order(client.publish_rows(queue, *rows("ab"), *rows("ab", priority=9), *rows("a")))
    channel.flush()
    channel.credit(1, 10)
    assert [number - first for number in numbers_to(channel.flush(), 1)] == [2, 3, 0, 1, 4]


# -- consumers go --------------------------------------------------------------------------------------


@pytest.fixture
def kept() -> Keys:
    """Two sessions of which the first has a group and is lost, and the second would take the group."""
    channel, client = Channel(MessageManagerSettings(registration_wait_ms=300)), Client()
    channel.order(client.open(), Client(OTHER).open(), Client(THIRD).open())
    keys = Keys(channel, client, channel.create("orders"))
    channel.now_ns = SECOND_NS
    channel.flush()
    channel.register(1, keys.queue, credit=1)
    channel.register(2, keys.queue, session=OTHER, credit=0)
    keys.publish("aaa")
    assert keys.given() == {1: "a"}
    channel.credit(2, 10)
    channel.say(Unregister(1, 1, is_lost=True, term=channel.manager.term))
    assert keys.given() == {}, "the client may come back"
    return keys


def test_the_groups_of_a_consumer_that_is_gone_go_to_others_when_its_messages_have_come_back(
    channel: Channel, queue: int, keys: Keys
) -> None:
    channel.register(1, queue, credit=3)
    keys.publish("aab")
    assert keys.given() == {1: "aab"}
    channel.register(2, queue)
    first = keys.publish("abc")
    assert keys.given() == {2: "c"}
    channel.unregister(1, 2)
    effects = channel.flush()
    assert numbers_to(effects, 2) == [], "the return of what was seen is being ordered"
    channel.order_proposals(effects)
    given = numbers_to(channel.flush(), 2)
    assert given == [first - 3, first - 2, first - 1, first, first + 1]


def test_groups_go_on_when_what_was_held_is_acknowledged_late(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    channel.register(1, queue, credit=1)
    channel.register(2, queue, credit=0)
    first = keys.publish("aa")
    assert keys.given() == {1: "a"}
    channel.credit(2, 5)
    channel.unregister(1, 1)
    channel.flush()
    channel.order(client.ack(queue, (first, first + 1)))
    assert numbers_to(channel.flush(), 2) == [first + 1]


def test_what_a_consumer_never_saw_goes_on_at_once(channel: Channel, queue: int, keys: Keys) -> None:
    channel.register(1, queue, credit=2)
    keys.publish("aaa")
    assert keys.given() == {1: "aa"}
    channel.register(2, queue)
    channel.unregister(1, 0)
    assert keys.given() == {2: "aaa"}


def test_a_session_that_begins_its_consumer_anew_keeps_its_groups(kept: Keys) -> None:
    """So does a client after `rollback` and `recover`."""
    channel = kept.channel
    kept.publish("b")
    assert kept.given() == {2: "b"}
    channel.unregister(2, 10)
    kept.publish("b")
    assert kept.given() == {}, "its session may have another consumer"
    channel.register(3, kept.queue, session=THIRD)
    channel.register(4, kept.queue, session=OTHER)
    kept.publish("cd")
    given = kept.given()
    assert given[4].startswith("bb")
    assert "b" not in given[3]


def test_groups_go_to_others_when_the_session_has_no_consumer_any_more(kept: Keys) -> None:
    channel = kept.channel
    kept.publish("b")
    assert kept.given() == {2: "b"}
    channel.register(3, kept.queue, session=THIRD)
    channel.unregister(2, 0)
    assert kept.given() == {}
    channel.now_ns += SECOND_NS
    assert kept.given().get(3, "").endswith("b")


def test_what_comes_back_when_groups_have_moved_goes_before_what_was_looked_at(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    channel.order(Client(OTHER).open())
    channel.register(2, queue, credit=1, session=OTHER)
    before = keys.publish("z")
    assert keys.given() == {2: "z"}
    channel.register(1, queue, credit=5, credit_bytes=1)
    first = keys.publish("azaza", body=b"four")
    assert keys.given() == {1: "a"}
    channel.credit(1, 5, 5)
    assert keys.given() == {1: "a"}
    channel.unregister(2, 0)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.credit(1, 10)
    assert numbers_to(channel.flush(), 1) == [before, first, first + 1, first + 3, first + 4]


def test_groups_of_a_session_that_has_ended_wait_for_nobody(kept: Keys) -> None:
    channel = kept.channel
    kept.publish("b")
    assert kept.given() == {2: "b"}
    channel.register(3, kept.queue, session=THIRD)
    channel.unregister(2, 0)
    assert kept.given() == {}
    channel.order(Client(OTHER).close())
    assert kept.given() == {3: "b"}


def test_a_returned_message_goes_before_later_ones_of_its_group(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    for consumer in (1, 2):
        channel.register(consumer, queue, credit=0)
    first = keys.publish("aa")
    channel.credit(1, 1)
    assert keys.given() == {1: "a"}
    channel.credit(2, 10)
    channel.order(client.give_back(queue, (first, first + 1)))
    assert keys.given() == {}, "the group stays with its consumer"
    channel.credit(1, 3)
    assert numbers_to(channel.flush(), 1) == [first, first + 1]


def test_a_message_that_waits_for_a_time_is_passed(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    later_ms = channel.wall_ms + 5_000
    first = channel.order(client.publish_rows(queue, *rows("a", deliver_at_ms=later_ms), *rows("a")))
    assert numbers_to(channel.flush(), 1) == [first + 1]
    channel.register(2, queue)
    channel.pass_time(6_000)
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_lost_client_keeps_its_groups_until_it_is_given_up(kept: Keys) -> None:
    kept.channel.now_ns += SECOND_NS
    assert kept.given() == {}, "what it saw is being returned"
    assert kept.given() == {2: "aaa"}


def test_a_client_that_comes_back_has_its_groups(kept: Keys) -> None:
    channel = kept.channel
    back = Register(
        consumer=5,
        session=SESSION,
        generation=1,
        destination=kept.queue,
        subscription=0,
        selector="",
        credit_messages=3,
        credit_bytes=1 << 40,
        held=Ranges([(min(kept.key_of), min(kept.key_of) + 1)]),
        number=1,
        resumes=True,
        term=channel.manager.term,
    )
    channel.say(back)
    assert kept.given() == {5: "aa"}
    channel.now_ns += 2 * SECOND_NS
    kept.publish("ab")
    assert kept.given() == {2: "b", 5: "a"}


def test_a_group_waits_for_a_transaction_that_has_a_message_of_it(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    channel.order(Client(OTHER).open())
    channel.register(1, queue, credit=1)
    first = keys.publish("aab")
    assert keys.given() == {1: "a"}
    channel.order(client.prepare(0, 0, Consumed(queue, 0, Ranges([(first, first + 1)]))))
    channel.register(2, queue, session=OTHER)
    channel.unregister(1, 1)
    assert keys.given() == {2: "b"}
    assert keys.given() == {}, "the first message may come back"
    channel.order(finish(SESSION, 1, commits=False))
    assert keys.given() == {2: "aa"}


# -- a new primary -------------------------------------------------------------------------------------


def test_a_new_primary_binds_the_groups_of_what_consumers_hold(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    first = keys.publish("abab")
    channel.register(2, queue, credit=0)
    channel.register(1, queue, credit=2)
    assert keys.given() == {1: "ab"}
    channel.claim(1)
    channel.register(2, queue)
    channel.register(1, queue, held=Ranges([(first, first + 2)]))
    keys.publish("c")
    assert keys.given() == {1: "ab", 2: "c"}


def test_a_message_of_a_group_that_another_has_meanwhile_is_lost_to_its_holder(
    channel: Channel, client: Client, queue: int, keys: Keys
) -> None:
    first = keys.publish("aa")
    channel.register(1, queue, credit=2)
    assert keys.given() == {1: "aa"}
    channel.claim(1)
    channel.register(2, queue, credit=1)
    assert keys.given() == {2: "a"}
    channel.register(1, queue, held=Ranges([(first + 1, first + 2)]))
    assert keys.given() == {}
    assert not dispatcher_of(channel, queue).consumers[ConsumerKey(CM, 1)].in_flight
    channel.credit(2, 5)
    [(consumer, number, _, count)] = delivered(channel.flush())
    assert (consumer, number) == (2, first + 1)
    assert count, "the other may have seen it"


# -- selectors -----------------------------------------------------------------------------------------


def selected(pairs: str) -> list[dict[str, Any]]:
    """Messages by a key and a digit: `a1b2`."""
    return [{"key": key, "properties": {"n": int(n)}} for key, n in zip(pairs[::2], pairs[1::2], strict=True)]


def test_groups_are_kept_among_consumers_of_the_same_selector(
    channel: Channel, client: Client, queue: int
) -> None:
    for consumer, selector in ((1, "n = 1"), (2, "n = 1"), (3, "n = 2")):
        channel.register(consumer, queue, selector=selector)
    first = channel.order(client.publish_rows(queue, *selected("a1b1a2a1b1b2")))
    effects = channel.flush()
    given = [[number - first for number in numbers_to(effects, consumer)] for consumer in (1, 2, 3)]
    assert sorted(given[:2]) == [[0, 3], [1, 4]]
    assert given[2] == [2, 5]


def test_a_subscription_with_selector_and_keys_skips_what_it_does_not_want(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("prices", '{"retention": "consumed"}')
    id = channel.order(client.subscribe(topic, shared="workers", selector="n = 1"))
    for consumer in (1, 2):
        channel.register(consumer, topic, subscription=id)
    first = channel.order(client.publish_rows(topic, *selected("a2a1b2b1")))
    effects = channel.flush()
    assert sorted(numbers_to(effects, 1) + numbers_to(effects, 2)) == [first + 1, first + 3]
    channel.order_proposals(effects)
    store = channel.manager.state.directory.get(topic)
    assert store is not None
    assert list(store.live.numbers()) == [first + 1, first + 3]


# -- bounds --------------------------------------------------------------------------------------------


def test_more_keys_than_buckets_cost_no_more_memory(
    channel: Channel, client: Client, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_groups, "BUCKETS", 8)
    for consumer in (1, 2):
        channel.register(consumer, queue)
    first = channel.order(client.publish_rows(queue, *[{"key": f"key {at}"} for at in range(200)]))
    effects = [*channel.flush(), *channel.flush()]
    given = [set(numbers_to(effects, consumer)) for consumer in (1, 2)]
    assert given[0] | given[1] == set(range(first, first + 200))
    [groups] = (dispatcher_of(channel, queue).groups or {}).values()
    assert len(groups.shares) == 8
    again = channel.order(client.publish_rows(queue, *[{"key": f"key {at}"} for at in range(200)]))
    effects = [*channel.flush(), *channel.flush()]
    for consumer, had in zip((1, 2), given, strict=True):
        assert {number - again + first for number in numbers_to(effects, consumer)} == had


def test_a_long_backlog_of_a_group_is_passed_in_several_steps() -> None:
    channel = Channel(
        MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=1_000 * views.WORK_BYTES)
    )
    client = Client()
    channel.order(client.open())
    queue = channel.create("orders")
    channel.register(1, queue, credit=1)
    channel.order(client.publish_rows(queue, *rows("a")))
    channel.flush()
    for _ in range(10):
        channel.order(client.publish_rows(queue, *rows("a" * 500)))
    wanted = channel.order(client.publish_rows(queue, *rows("b")))
    channel.register(2, queue)
    steps = 0
    while not (found := numbers_to(channel.flush(), 2)):
        steps += 1
        assert steps < 100
    assert found == [wanted]
    assert steps > 5
