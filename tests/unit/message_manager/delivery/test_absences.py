"""Consumers whose clients were lost: what is kept for them, for how long, and what becomes of it."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import ConsumerEnded, Register, Registered, Unregister
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, Return, read_command
from tests.unit.message_manager.channel import (
    CM,
    NODE,
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    answers,
    bodies,
    delivered,
    numbers_to,
    proposals,
)

WAIT_NS = 3 * SECOND_NS // 10
OTHER = 0xB2


@pytest.fixture
def channel() -> Channel:
    return Channel(MessageManagerSettings(registration_wait_ms=300))


@pytest.fixture
def client(channel: Channel) -> Client:
    client = Client()
    channel.order(client.open(), Client(session=OTHER).open())
    return client


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    queue = channel.create("orders")
    channel.now_ns = SECOND_NS
    channel.flush()
    return queue


def register(
    channel: Channel,
    key: int,
    queue: int,
    credit: int = 1_000,
    *,
    session: int = SESSION,
    generation: int = 1,
    number: int = 1,
    subscription: int = 0,
    held: Ranges | None = None,
    resumes: bool = False,
) -> None:
    channel.say(
        Register(
            consumer=key,
            session=session,
            generation=generation,
            destination=queue,
            subscription=subscription,
            selector="",
            credit_messages=credit,
            credit_bytes=1 << 40,
            held=held or Ranges(),
            number=number,
            resumes=resumes,
            term=channel.manager.term,
        )
    )


def lose(channel: Channel, key: int, seen_through: int) -> None:
    channel.say(Unregister(key, seen_through, is_lost=True, term=channel.manager.term), CM)


def held_by_a_lost_client(channel: Channel, client: Client, queue: int) -> int:
    """Consumer 1 was given three messages, saw two of them, and its client was lost; the first number."""
    first = channel.order(client.publish(queue, bodies(3)))
    register(channel, 1, queue)
    assert numbers_to(channel.flush(), 1) == [first, first + 1, first + 2]
    lose(channel, 1, seen_through=2)
    register(channel, 9, queue, session=OTHER)
    return first


def lost_by(channel: Channel, key: int) -> Ranges:
    """What the answer to the registration of this consumer calls lost."""
    (answer,) = [answer for answer in answers(channel.flush()) if answer.consumer == key]
    assert isinstance(answer, Registered)
    return answer.lost


def test_what_reached_a_lost_client_is_kept_for_it_and_the_rest_goes_to_others(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    assert numbers_to(channel.flush(), 9) == [first + 2]
    channel.now_ns += WAIT_NS - 1
    assert delivered(channel.flush()) == []
    assert channel.manager.next_deadline_ns() == SECOND_NS + WAIT_NS


def test_a_client_that_stays_away_is_taken_for_dead_and_what_it_saw_comes_back_counted(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    channel.flush()
    channel.now_ns += WAIT_NS
    effects = channel.flush()
    assert delivered(effects) == [], "nobody gets it before its return is ordered"
    (back,) = [
        payload
        for proposal in proposals(effects)
        for header, body in [read_command(proposal.command)]
        if header.kind == CommandKind.RETURN
        for payload in [Return.decode(body)]
    ]
    assert back.counted
    assert back.ranges == Ranges([(first, first + 2)])
    channel.order_proposals(effects)
    assert [(n, count) for _, n, _, count in delivered(channel.flush())] == [(first, 1), (first + 1, 1)]


def test_a_client_manager_that_has_forgotten_the_lost_client_says_nothing_about_what_it_saw(
    channel: Channel, client: Client, queue: int
) -> None:
    """A delivery that was late comes to a client manager that does not know the consumer any more."""
    first = held_by_a_lost_client(channel, client, queue)
    assert numbers_to(channel.flush(), 9) == [first + 2]
    channel.say(Unregister(1, 0, term=channel.manager.term), CM)
    assert delivered(channel.flush()) == [], "its client may still come back"
    channel.now_ns += WAIT_NS
    channel.order_proposals(channel.flush())
    assert [(n, count) for _, n, _, count in delivered(channel.flush())] == [(first, 1), (first + 1, 1)]


def test_a_client_that_comes_back_has_what_it_holds_and_gets_what_it_never_got(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    register(channel, 1, queue, credit=4)
    channel.flush()
    lose(channel, 1, seen_through=4)
    channel.flush()
    channel.order(client.resume(2))
    # Of four it got two before the connection broke.
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 2)]), resumes=True)
    effects = channel.flush()
    (answer,) = [answer for answer in answers(effects) if answer.consumer == 2]
    assert isinstance(answer, Registered)
    assert (answer.code, answer.lost) == ("", Ranges())
    # In order, as if nothing had happened, and nobody's fault.
    assert [(n, count) for _, n, _, count in delivered(effects)] == [(first + n, 0) for n in (2, 3, 4)]
    channel.now_ns += WAIT_NS
    assert proposals(channel.flush()) == []


def test_a_client_that_comes_back_too_late_hears_what_it_has_lost(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    channel.flush()
    channel.now_ns += WAIT_NS
    channel.order_proposals(channel.flush())
    assert numbers_to(channel.flush(), 9) == [first, first + 1]
    channel.order(client.resume(2))
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 2)]), resumes=True)
    assert lost_by(channel, 2) == Ranges([(first, first + 2)])


def test_what_a_former_primary_may_have_given_to_others_is_lost_to_a_client_that_comes_back(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    register(channel, 1, queue)
    channel.flush()
    channel.order(client.resume(2))
    # Others were given the messages, and have gone since: the state does not tell.
    channel.claim(NODE)
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 2)]), resumes=True)
    assert lost_by(channel, 2) == Ranges([(first, first + 2)])


def test_so_is_what_the_consumers_of_a_client_manager_had_that_was_taken_for_dead(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(1)))
    register(channel, 1, queue)
    channel.flush()
    channel.fence(CM, channel.manager.term)
    channel.claim(NODE)
    channel.open_producer(CM)
    channel.order(client.resume(1))
    register(channel, 1, queue, held=Ranges([(first, first + 1)]))
    assert lost_by(channel, 1) == Ranges([(first, first + 1)])


def test_a_client_that_moved_twice_around_a_claim_loses_what_it_had_before_the_first_move(
    channel: Channel, client: Client, queue: int
) -> None:
    """The client left its second client manager before its consumer was attached there."""
    first = channel.order(client.publish(queue, bodies(2)))
    register(channel, 1, queue)
    register(channel, 9, queue, session=OTHER, credit=0)
    channel.flush()
    channel.order(client.resume(2))
    channel.flush()
    channel.now_ns += WAIT_NS
    channel.flush()
    # Other consumers work on both messages from here on, and only the former primary knows.
    register(channel, 9, queue, session=OTHER)
    assert numbers_to(channel.flush(), 9) == [first, first + 1]
    kept = channel.order(client.publish(queue, bodies(1)))
    channel.claim(NODE)
    channel.order(client.resume(3))
    held = Ranges([(first, first + 2), (kept, kept + 1)])
    register(channel, 3, queue, generation=3, held=held, resumes=True)
    assert lost_by(channel, 3) == Ranges([(first, first + 2)])


def test_so_does_a_client_that_leaves_a_client_manager_which_was_taken_for_dead(
    channel: Channel, client: Client, queue: int
) -> None:
    """The client manager had the session again before the claim, and attached no consumer."""
    first = channel.order(client.publish(queue, bodies(1)))
    register(channel, 1, queue)
    channel.flush()
    channel.fence(CM, channel.manager.term)
    channel.open_producer(CM)
    channel.order(client.resume(1))
    channel.claim(NODE)
    channel.order(client.resume(2))
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 1)]), resumes=True)
    assert lost_by(channel, 2) == Ranges([(first, first + 1)])


def test_a_client_that_comes_back_to_a_new_primary_keeps_what_was_not_returned_meanwhile(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    channel.flush()
    channel.now_ns += WAIT_NS
    channel.order_proposals(channel.flush())
    kept = channel.order(client.publish(queue, bodies(1)))
    channel.claim(NODE)
    channel.order(client.resume(2))
    register(
        channel, 2, queue, generation=2, held=Ranges([(first, first + 2), (kept, kept + 1)]), resumes=True
    )
    assert lost_by(channel, 2) == Ranges([(first, first + 2)])


def test_a_client_that_comes_back_when_its_messages_are_free_again_gets_them_as_redelivered(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(1)))
    register(channel, 1, queue)
    register(channel, 9, queue, credit=0, session=OTHER, number=9)
    channel.flush()
    channel.order(client.resume(2))
    channel.flush()
    channel.now_ns += WAIT_NS
    channel.flush()
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 1)]), resumes=True)
    effects = channel.flush()
    (answer,) = [answer for answer in answers(effects) if answer.consumer == 2]
    assert isinstance(answer, Registered) and answer.lost == Ranges([(first, first + 1)])
    assert [(key, n, count) for key, n, _, count in delivered(effects)] == [(2, first, 1)]


def test_an_acknowledgement_counts_while_its_client_is_away(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    channel.order(client.resume(2), client.ack(queue, (first, first + 1)))
    channel.flush()
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 2)]), resumes=True)
    assert lost_by(channel, 2) == Ranges([(first, first + 1)])


def test_a_resumed_session_keeps_what_its_consumers_hold_until_they_are_here_too(
    channel: Channel, client: Client, queue: int
) -> None:
    """Its former client manager may not even have noticed that it is gone."""
    first = channel.order(client.publish(queue, bodies(2)))
    register(channel, 1, queue)
    channel.flush()
    register(channel, 9, queue, session=OTHER)
    channel.order(client.resume(2))
    effects = channel.flush()
    assert [type(answer) for answer in answers(effects)] == [Registered, ConsumerEnded]
    assert delivered(effects) == []
    register(channel, 2, queue, generation=2, held=Ranges([(first, first + 2)]), resumes=True)
    assert delivered(channel.flush()) == []


def test_two_consumers_of_one_session_get_back_each_its_own(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    register(channel, 1, queue, credit=1, number=1)
    register(channel, 2, queue, credit=1, number=2)
    channel.flush()
    channel.order(client.resume(2))
    register(channel, 3, queue, generation=2, number=1, held=Ranges([(first, first + 1)]), resumes=True)
    assert delivered(channel.flush()) == [], "what the other one held is not given to this one"
    register(channel, 4, queue, generation=2, number=2, held=Ranges([(first + 1, first + 2)]), resumes=True)
    assert delivered(channel.flush()) == []


def test_a_session_that_ends_gives_everything_back_at_once(
    channel: Channel, client: Client, queue: int
) -> None:
    first = held_by_a_lost_client(channel, client, queue)
    channel.flush()
    channel.order(client.close())
    effects = channel.flush()
    assert [(n, count) for _, n, _, count in delivered(effects)] == [(first, 1), (first + 1, 1)]
    assert answers(effects) == [], "who is away is told nothing"


def test_the_clients_of_a_restarted_client_manager_are_waited_for(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(1)))
    register(channel, 1, queue)
    channel.flush()
    channel.open_producer(CM)
    channel.order(Client(session=0xC3).open())
    register(channel, 9, queue, session=0xC3)
    assert delivered(channel.flush()) == []
    channel.now_ns += WAIT_NS
    assert [(n, count) for _, n, _, count in delivered(channel.flush())] == [(first, 1)]


def test_a_deleted_destination_is_not_told_to_who_is_away(
    channel: Channel, client: Client, queue: int
) -> None:
    held_by_a_lost_client(channel, client, queue)
    channel.flush()
    channel.order(client.delete(queue))
    assert [answer.consumer for answer in answers(channel.flush())] == [9]
    channel.now_ns += WAIT_NS
    assert delivered(channel.flush()) == []


def test_who_is_away_does_not_keep_others_from_a_subscription(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices")
    subscription = channel.order(client.subscribe(topic, durable="audit"))
    channel.now_ns = SECOND_NS
    register(channel, 1, topic, subscription=subscription)
    channel.flush()
    register(channel, 2, topic, session=OTHER, subscription=subscription)
    (refused,) = answers(channel.flush())
    assert refused.code == "subscription.in_use"
    lose(channel, 1, seen_through=0)
    register(channel, 3, topic, session=OTHER, subscription=subscription)
    (answer,) = answers(channel.flush())
    assert (answer.consumer, answer.code) == (3, "")
