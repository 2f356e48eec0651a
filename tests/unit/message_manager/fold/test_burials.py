"""How messages die, step by step: what the fold does, and what the primary proposes when."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch
from antiphon.dead import (
    DEAD_REASON,
    DEAD_TIME,
    DELIVERY_COUNT,
    ORIGINAL_CHANNEL,
    ORIGINAL_DESTINATION,
    ORIGINAL_MESSAGE_ID,
    ORIGINAL_SEQUENCE,
)
from antiphon.ids import format_message_id
from antiphon.message_manager.effects import Propose
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.names import DEAD_QUEUE_NAME
from antiphon.wire.commands import (
    AlterDestination,
    BuryMessages,
    CommandKind,
    CreateDestination,
    DeadReason,
    OutcomeCode,
    PurgeDestination,
    decode_payload,
    iterate_commands,
)
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import SESSION, Channel, Client, bodies, of_node

C = OutcomeCode
LIMIT_ONE = '{"redelivery_limit":1}'


@pytest.fixture
def channel() -> Channel:
    return RestoredChannel()


def proposed(channel: Channel) -> list[bytes]:
    """The commands of now about dead messages."""
    kinds = (CommandKind.DEAD, CommandKind.CREATE)
    commands = [effect.command for effect in channel.flush() if isinstance(effect, Propose)]
    return [one for one in commands if next(iterate_commands(one))[0].kind in kinds]


def bury(channel: Channel) -> list[BuryMessages]:
    """Have everything ordered that is proposed, until nothing is."""
    found = []
    while commands := proposed(channel):
        for command in commands:
            header, body, _ = next(iterate_commands(command))
            wish = decode_payload(header.kind, body)
            if isinstance(wish, BuryMessages):
                found.append(wish)
            channel.order(command)
    return found


def dead_queue(channel: Channel) -> Queue:
    found = channel.manager.state.directory.named(DEAD_QUEUE_NAME)
    assert isinstance(found, Queue)
    return found


def rows(wish: BuryMessages) -> list[dict[str, object]]:
    batch = Batch.decode(wish.batch)
    return [dict(batch.properties(row)) for row in range(batch.count)]


def test_a_message_that_came_back_too_often_is_moved_with_its_origin(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders", settings=LIMIT_ONE)
    first = channel.order(client.publish(queue, bodies(3)))
    channel.order(client.give_back(queue, (first + 1, first + 2)))
    assert bury(channel) == []
    channel.order(client.give_back(queue, (first + 1, first + 2)))
    (wish,) = bury(channel)
    (properties,) = rows(wish)
    assert properties == {
        ORIGINAL_DESTINATION: "queue:orders",
        ORIGINAL_CHANNEL: "main",
        ORIGINAL_SEQUENCE: first + 1,
        ORIGINAL_MESSAGE_ID: format_message_id(SESSION, "main", 2),
        DEAD_REASON: "redelivery_limit",
        DEAD_TIME: channel.wall_ms,
        DELIVERY_COUNT: 2,
    }
    source = channel.manager.state.directory.get(queue)
    assert source is not None
    assert (source.published, source.live.count, source.dead) == (3, 2, 1)
    assert dead_queue(channel).live.count == 1
    assert not source.counts
    assert channel.replica().state.digest() == channel.manager.state.digest()


def test_a_rejected_message_is_moved_and_others_keep_their_place(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    assert channel.outcome(client.reject(queue, (first, first + 1))) is None
    (wish,) = bury(channel)
    assert (wish.reason, list(wish.numbers)) == (DeadReason.REJECTED, [(first, first + 1)])
    channel.order(client.ack(queue, (first + 1, first + 3)))
    assert channel.manager.destinations()[0]["messages"] == 0


def test_rejecting_what_is_not_there_is_told(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(2)))
    channel.order(client.ack(queue, (first, first + 1)))
    told = channel.outcome(client.reject(queue, (first, first + 2)))
    assert told is not None
    assert (told.code, told.original, told.text) == (C.ACK_LOST, first, "1 of 2 were no longer there")


def test_a_dead_message_is_not_rejected_again(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(1)))
    channel.order(client.reject(queue, (first, first + 1)))
    bury(channel)
    dead = dead_queue(channel)
    told = channel.outcome(client.reject(dead.id, (dead.live.first, dead.live.last + 1)))
    assert told is not None and told.code == C.REFUSED and "acknowledge, move or retry" in told.text


def test_nobody_publishes_to_the_dead_queue(channel: Channel, client: Client) -> None:
    channel.create("_DMQ")
    dead = dead_queue(channel)
    for command in (client.publish(dead.id, bodies(1)), client.publish(dead.id, bodies(3))):
        told = channel.outcome(command)
        assert told is not None
        assert (told.code, told.text) == (
            C.REFUSED,
            "queue:_DMQ belongs to the system, and clients do not publish to it",
        )
    told = channel.outcome(client.tx_publish(dead.id, bodies(1)))
    assert told is not None and told.code in (C.REFUSED, C.TX_ROLLED_BACK)
    assert dead.published == 0
    other = channel.outcome(of_node(CreateDestination(kind=1, name="_LOG", settings="{}")))
    assert other is not None and other.code == C.REFUSED


def test_what_was_acknowledged_meanwhile_is_refused_whole_and_the_rest_is_proposed_anew(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders")
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(3)))
    channel.order(client.reject(queue, (first, first + 3)))
    (command,) = proposed(channel)
    channel.order(client.ack(queue, (first + 1, first + 2)))
    told = channel.outcome(command)
    assert told is not None and told.code == C.REFUSED and "1 of 3" in told.text
    assert dead_queue(channel).published == 0
    (wish,) = bury(channel)
    assert list(wish.numbers) == [(first, first + 1), (first + 2, first + 3)]
    assert channel.manager.destinations()[0]["messages"] == 0


def test_a_command_of_another_term_is_void_and_the_next_primary_moves_the_message(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders")
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(1)))
    channel.order(client.reject(queue, (first, first + 1)))
    (command,) = proposed(channel)
    channel.claim(1)
    told = channel.outcome(command)
    assert told is not None and told.code == C.STALE
    assert dead_queue(channel).published == 0
    assert len(bury(channel)) == 1
    assert channel.outcome(command) is not None
    assert dead_queue(channel).published == 1


def test_one_command_is_on_its_way_and_is_repeated_if_it_is_lost(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(1)))
    channel.order(client.reject(queue, (first, first + 1)))
    assert len(proposed(channel)) == 1
    assert proposed(channel) == []
    channel.now_ns += 1_000_000_000
    assert len(proposed(channel)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        MessageManagerSettings(registration_wait_ms=0, dead_rows_max=4),
        # A command ends with the message that exceeds the limit.
        MessageManagerSettings(registration_wait_ms=0, dead_bytes_max=45_000),
    ],
    ids=["rows", "bytes"],
)
def test_many_dead_messages_take_several_commands(settings: MessageManagerSettings) -> None:
    channel = RestoredChannel(settings)
    client = Client()
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, [bytes(12_000)] * 10))
    channel.order(client.reject(queue, (first, first + 10)))
    assert [wish.numbers.count for wish in bury(channel)] == [4, 4, 2]


def test_a_message_that_a_consumer_has_does_not_die_before_it_comes_back(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(1)))
    for _ in range(2):
        channel.order(client.give_back(queue, (first, first + 1)))
    channel.register(1, queue)
    channel.flush()
    alter = of_node(AlterDestination(destination=queue, settings=LIMIT_ONE))
    assert channel.outcome(alter) is None
    assert bury(channel) == []
    channel.unregister(1, 1)
    channel.order_proposals(channel.flush())
    (wish,) = bury(channel)
    assert rows(wish)[0][DELIVERY_COUNT] == 3


def test_a_lower_limit_kills_and_a_higher_one_revives(channel: Channel, client: Client) -> None:
    queue = channel.create("orders", settings=LIMIT_ONE)
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(1)))
    for _ in range(2):
        channel.order(client.give_back(queue, (first, first + 1)))
    assert len(proposed(channel)) == 1  # and is lost
    channel.order(of_node(AlterDestination(destination=queue, settings='{"redelivery_limit":5}')))
    channel.now_ns += 1_000_000_000
    assert proposed(channel) == []
    channel.order(of_node(AlterDestination(destination=queue, settings=LIMIT_ONE)))
    assert len(bury(channel)) == 1


def test_settings_that_cannot_be_change_nothing(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    before = channel.manager.state.digest()
    for settings, text in (
        ('{"redelivery_limit":-1}', "redelivery_limit is a number of redeliveries"),
        ('{"redelivery_delay":4000}', "redelivery_delay is 0 to 3,600 seconds"),
        ('{"dead_to":"x"}', "dead_to is one of"),
        ("7", "not a JSON object"),
        ("{", "not JSON"),
        ("[]", "not a flat JSON object"),
        ('{"exclusive":{}}', "not a flat JSON object"),
        ("{" + " " * 4_096 + "}", "at most 4,096 characters"),
    ):
        told = channel.outcome(of_node(AlterDestination(destination=queue, settings=settings)))
        assert told is not None and told.code == C.REFUSED and text in told.text
    assert channel.manager.state.digest() != before  # outcomes are part of the state
    there = channel.manager.state.directory.get(queue)
    assert there is not None and there.settings_version == 1


def test_a_locked_message_dies_when_it_is_unlocked(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(1)))
    channel.order(client.hold("reader", 0, queue, consumes=True))
    channel.order(client.reject(queue, (first, first + 1)))
    assert proposed(channel) == []
    channel.order(client.release("reader"))
    assert len(bury(channel)) == 1


def test_the_dead_of_a_subscription_stay_with_the_others(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("news", settings='{"redelivery_limit":1,"retention":"consumed"}')
    mine = channel.order(client.subscribe(topic))
    other = channel.order(client.subscribe(topic))
    first = channel.order(client.publish(topic, bodies(2)))
    channel.order(client.reject(topic, (first, first + 1), subscription=mine))
    (wish,) = bury(channel)
    assert (wish.subscription, rows(wish)[0][ORIGINAL_DESTINATION]) == (mine, "topic:news")
    state = channel.manager.state
    backlogs = [state.directory.subscription(id).backlog for id in (mine, other)]  # type: ignore[union-attr]
    assert backlogs == [1, 2]


def test_a_purge_drops_all_and_counts_it(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue, credit=2)
    channel.flush()
    assert channel.outcome(of_node(PurgeDestination(destination=queue))) is None
    row = channel.manager.destinations()[0]
    assert (row["messages"], row["purged"], row["in_flight"], row["bytes"]) == (0, 5, 0, 0)
    told = channel.outcome(client.ack(queue, (first, first + 1)))
    assert told is not None and told.code == C.ACK_LOST
    assert channel.replica().state.digest() == channel.manager.state.digest()


def test_dead_messages_that_go_nowhere_are_only_counted(channel: Channel, client: Client) -> None:
    queue = channel.create("orders", settings='{"dead_to":"nowhere"}')
    first = channel.order(client.publish(queue, bodies(3)))
    channel.order(client.reject(queue, (first, first + 3)))
    (wish,) = bury(channel)
    assert (wish.target, wish.batch) == (0, b"")
    assert channel.manager.destinations()[0]["dead"] == 3
    assert channel.manager.state.directory.named(DEAD_QUEUE_NAME) is None


def test_a_message_without_a_consumer_of_its_own_is_not_given_out_while_it_dies(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders", settings=LIMIT_ONE)
    first = channel.order(client.publish(queue, bodies(2)))
    for _ in range(2):
        channel.order(client.give_back(queue, (first, first + 1)))
    channel.register(1, queue)
    channel.flush()
    delivery = channel.manager.primary
    assert delivery is not None
    dispatcher = delivery.delivery.dispatcher(queue)
    assert dispatcher is not None
    assert list(dispatcher.dying) == [(first, first + 1)]
    assert dispatcher.in_flight == 1


def test_replicas_agree_on_settings_however_deep_their_calls_are(channel: Channel, client: Client) -> None:
    """Python refuses what nests too deep, and how deep that is depends on the caller."""
    queue = channel.create("orders")
    for depth in range(900, 1_000, 10):
        settings = '{"exclusive":' + "[" * depth + "]" * depth + "}"
        channel.order(of_node(AlterDestination(destination=queue, settings=settings)))

    def deeper(calls: int) -> bytes:
        return deeper(calls - 1) if calls else channel.replica().state.digest()

    assert deeper(40) == channel.manager.state.digest()
