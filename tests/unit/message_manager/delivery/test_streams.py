"""Streams: what the primary says to client managers until it is known to have come."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import (
    SESSION_DETACHED,
    ConsumerEnded,
    Credits,
    Deliver,
    DeliverAck,
    DeliverHead,
    Register,
    Registered,
    SessionDetachedHeard,
    Unregistered,
)
from antiphon.errors import ConsumerClosed
from antiphon.message_manager.delivery.consumers import ConsumerKey
from antiphon.message_manager.delivery.streams import Stream
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, Return, read_command
from tests.unit.message_manager.channel import (
    CM,
    SESSION,
    Channel,
    Client,
    answers,
    batch_of,
    bodies,
    delivered,
    delivers,
    numbers_to,
    sent,
)

MS = 1_000_000
OTHER_CM = 2
OTHER_SESSION = 0xB2
SETTINGS = MessageManagerSettings(registration_wait_ms=0, stream_window_bytes=10_000, deliver_bytes_max=2_000)


@pytest.fixture
def channel() -> Channel:
    return Channel(SETTINGS)


@pytest.fixture
def other(channel: Channel) -> Client:
    """A session at another client manager."""
    other = Client(session=OTHER_SESSION)
    channel.order(other.open(), pid=OTHER_CM)
    return other


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    queue = channel.create("orders")
    channel.flush()
    return queue


def multicasts(effects: Iterable[Effect]) -> list[Deliver]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Multicast) and isinstance(effect.message, Deliver)
    ]


def returned(effects: Iterable[Effect]) -> list[tuple[int, int]]:
    """What the primary wants to have given back, counted."""
    commands = [read_command(effect.command) for effect in effects if isinstance(effect, Propose)]
    return [
        pair
        for header, body in commands
        if header.kind == CommandKind.RETURN
        for pair in Return.decode(body).ranges
    ]


def heads(effects: Iterable[Effect]) -> list[DeliverHead]:
    return [message for message in sent(effects) if isinstance(message, DeliverHead)]


def stream_to(channel: Channel, node: int) -> Stream:
    assert channel.manager.primary is not None
    [stream] = [one for one in channel.manager.primary.delivery._streams if one.node == node]
    return stream


def said_to(channel: Channel, node: int) -> int:
    """The last number in the stream of a client manager."""
    return stream_to(channel, node).number


def attached(channel: Channel) -> list[ConsumerKey]:
    assert channel.manager.primary is not None
    return list(channel.manager.primary.delivery._consumers)


def numbers_of(effects: Iterable[Effect]) -> list[int]:
    return [deliver.targets[0].number for deliver in delivers(effects)]


# -- sending again -----------------------------------------------------------------------------------


def test_what_is_missing_is_read_again_and_sent_under_its_number(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, bodies(5)))
    [first] = delivers(channel.flush())
    assert first.targets[0].number == 2
    channel.acknowledge(1, (2, 3))
    [again] = delivers(channel.flush())
    assert again.targets == first.targets
    assert batch_of(again.pieces[0].buffers).bodies() == bodies(5)
    assert delivers(channel.flush()) == [], "once for each time that it is asked for"


def test_an_answer_and_the_end_of_a_consumer_are_sent_again_too(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.delete(queue))
    said = answers(channel.flush())
    assert [type(answer) for answer in said] == [Registered, ConsumerEnded]
    assert [answer.number for answer in said] == [1, 2]
    channel.acknowledge(0, (1, 3))
    assert answers(channel.flush()) == said


def test_what_came_is_not_sent_again_whatever_is_said_later(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, bodies(5)))
    channel.flush()
    channel.acknowledge(2)
    channel.acknowledge(0, (1, 1 << 40))
    assert delivered(channel.flush()) == []


def test_rows_tell_how_often_they_were_given_back_when_they_were_sent(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.register(1, queue)
    counts = [count for _, _, _, count in delivered(channel.flush())]
    channel.acknowledge(1, (2, 3))
    assert [count for _, _, _, count in delivered(channel.flush())] == counts == [1, 0]


def test_messages_that_are_gone_leave_their_number_and_no_debt(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, [bytes(100)] * 4))
    channel.register(1, queue, credit=100, credit_bytes=300)
    channel.flush()
    primary = channel.manager.primary
    assert primary is not None
    # Somebody acknowledges what the consumer was to get, and never got.
    channel.order(client.ack(queue, (first, first + 2)))
    channel.acknowledge(1, (2, 3))
    [again] = delivers(channel.flush())[:1]
    assert [(piece.first_sequence, piece.count) for piece in again.pieces] == [(first + 2, 1)]
    # The bytes of the two count no more, and so there is credit for the fourth.
    [consumer] = primary.delivery._consumers.values()
    assert consumer.delivered_bytes == 200 and first + 3 in consumer.in_flight


def test_rows_that_were_taken_here_and_there_are_repeated_as_they_were(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish_rows(queue, *[{"properties": {"n": at % 2}} for at in range(9)]))
    channel.register(1, queue, selector="n = 0")
    [said] = delivers(channel.flush())
    channel.acknowledge(1, (2, 3))
    [again] = delivers(channel.flush())
    assert again.targets == said.targets
    [piece] = again.pieces
    assert list(piece.sequences) == [first, first + 2, first + 4, first + 6, first + 8]
    assert batch_of(piece.buffers) == batch_of(said.pieces[0].buffers)

    # Somebody acknowledges two of them that the consumer has not got.
    channel.order(client.ack(queue, (first + 2, first + 3), (first + 8, first + 9)))
    channel.acknowledge(1, (2, 3))
    [fewer] = delivers(channel.flush())
    assert [list(piece.sequences) for piece in fewer.pieces] == [[first, first + 4, first + 6]]
    assert [taker.first_delivery for taker in fewer.targets[0].takers] == [3]
    channel.unregister(1, seen_through=4)
    assert returned(channel.flush()) == [(first, first + 1), (first + 4, first + 5)]


def test_messages_in_the_middle_that_are_gone_do_not_hide_which_were_seen(
    channel: Channel, client: Client, queue: int
) -> None:
    """Its client counts what it got: two, the second of which is delivery 3 here."""
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.ack(queue, (first + 1, first + 2)))
    channel.acknowledge(1, (2, 3))
    [again] = delivers(channel.flush())
    assert [list(piece.sequences) for piece in again.pieces] == [[first, first + 2]]
    assert [taker.first_delivery for taker in again.targets[0].takers] == [2]
    more = channel.order(client.publish(queue, bodies(1)))
    [next_one] = delivers(channel.flush())
    assert [taker.first_delivery for taker in next_one.targets[0].takers] == [4]

    channel.unregister(1, seen_through=2)
    assert returned(channel.flush()) == [(first, first + 1)]
    channel.register(2, queue)
    assert numbers_to(channel.flush(), 2) == [first + 2, more]


def test_a_number_of_nobody_is_sent_empty(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, bodies(5)))
    channel.flush()
    channel.unregister(1, 0)
    channel.flush()
    channel.acknowledge(1, (2, 3))
    [again] = delivers(channel.flush())
    assert (again.pieces, again.targets[0].takers, again.targets[0].number) == ((), (), 2)


def test_a_late_word_of_another_term_or_run_is_not_heard(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, bodies(5)))
    channel.flush()
    run = channel._runs[CM][0]
    channel.say(DeliverAck(channel.manager.term - 1, 2, Ranges([(1, 3)]), run))
    assert sent(channel.flush()) == []
    channel.say(DeliverAck(channel.manager.term, 2, Ranges([(1, 3)]), run - 1))
    assert sent(channel.flush()) == [DeliverHead(channel.manager.term, 0, 0, run - 1, is_void=True)]


# -- the end of the stream ---------------------------------------------------------------------------


def test_who_does_not_acknowledge_is_told_how_long_its_stream_is_more_and_more_rarely(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.flush()
    told_ms = []
    while len(told_ms) < 7:
        deadline_ns = channel.manager.next_deadline_ns()
        assert deadline_ns is not None and deadline_ns > channel.now_ns
        channel.now_ns = deadline_ns
        if heads(channel.flush()):
            told_ms.append(channel.now_ns // MS)
    assert told_ms == [100, 300, 700, 1500, 2500, 3500, 4500]
    channel.acknowledge(1)
    channel.flush()
    assert channel.manager.next_deadline_ns() is None


def test_credit_is_answered_once_for_a_flush_with_what_was_heard_last(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=0)
    channel.flush()
    run = channel._runs[CM][0]
    for number in (3, 5, 4):
        channel.say(Credits(channel.manager.term, number, (), run))
    [head] = heads(channel.flush())
    assert (head.credits_heard, head.number, head.acknowledged) == (5, 1, 0)


def sure(channel: Channel, *heartbeats: tuple[int, int]) -> list[int]:
    """Which words are answered for in the end, after heartbeats that were said and answered so far."""
    for beat, answered in heartbeats:
        channel.manager.beaten(beat, answered)
    return [head.sure for head in heads(channel.flush())]


def test_a_word_is_answered_for_when_a_quorum_has_answered_a_heartbeat_that_was_said_after_it(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=0)
    assert sure(channel, (7, 6)) == []
    assert not channel.manager.awaits_beat
    run, term = channel._runs[CM][0], channel.manager.term
    channel.say(Credits(term, 3, (), run))
    # Heartbeat 7 was on its way when the word came: who answered it may have promised another since.
    assert sure(channel, (7, 7)) == [0]
    channel.say(Credits(term, 4, (), run))
    assert sure(channel, (8, 7)) == [0]
    # Too late for heartbeat 8, and the next one answers for it.
    channel.say(Credits(term, 5, (), run))
    assert sure(channel, (8, 8)) == [4]
    assert channel.manager.awaits_beat, "the fifth word is not answered for"
    assert sure(channel, (9, 8)) == []
    assert sure(channel, (9, 9)) == [5]
    assert not channel.manager.awaits_beat
    assert sure(channel, (10, 10)) == []


def test_credit_in_any_order_comes_to_the_same(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue, credit=0)
    channel.order(client.publish(queue, bodies(9)))
    channel.credit(1, 7)
    channel.credit(1, 4)
    assert len(numbers_to(channel.flush(), 1)) == 7


# -- the window --------------------------------------------------------------------------------------


def test_a_client_manager_that_acknowledges_nothing_stops_its_own_consumers_only(
    channel: Channel, client: Client, other: Client, queue: int
) -> None:
    second = channel.create("others")
    channel.register(1, queue)
    channel.register(2, queue, session=OTHER_SESSION, sender=OTHER_CM)
    channel.register(3, second, session=OTHER_SESSION, sender=OTHER_CM)
    taken = {1: 0, 2: 0, 3: 0}
    for _ in range(30):
        channel.order(client.publish(queue, [bytes(500)] * 4))
        channel.order(client.publish(second, [bytes(500)] * 2))
        for consumer, _, _, _ in delivered(channel.flush()):
            taken[consumer] += 1
        # The other one acknowledges whatever it gets, and so may go on.
        channel.acknowledge(said_to(channel, OTHER_CM), sender=OTHER_CM)
    for consumer, _, _, _ in delivered(channel.flush()):
        taken[consumer] += 1
    assert taken[3] == 60
    assert taken[1] < 30 and taken[1] + taken[2] == 120, taken
    deadline_ns = channel.manager.next_deadline_ns()
    assert deadline_ns is not None and deadline_ns > channel.now_ns, "it does not run in circles"


def test_who_was_stopped_goes_on_when_there_is_room(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    first = channel.order(client.publish(queue, [bytes(500)] * 40))
    effects = channel.flush()
    got = numbers_to(effects, 1)
    assert len(got) < 30
    upto = numbers_of(effects)[-1]
    channel.acknowledge(1)
    assert delivered(channel.flush()) == []
    channel.acknowledge(upto)
    while numbers := numbers_to(effects := channel.flush(), 1):
        got += numbers
        channel.acknowledge(numbers_of(effects)[-1])
    assert got == list(range(first, first + 40))


def test_who_leaves_while_it_is_stopped_is_forgotten(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, [bytes(500)] * 40))
    upto = numbers_of(channel.flush())[-1]
    channel.unregister(1, 0)
    channel.register(2, queue)
    channel.flush()
    channel.acknowledge(upto)
    assert len(numbers_to(channel.flush(), 2)) > 5


def test_answers_to_drains_take_no_room_from_deliveries(client: Client) -> None:
    """Applications that ask empty queues for messages, one after the other, must not starve a third."""
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, stream_window_bytes=1))
    channel.order(client.open())
    full = channel.create("full")
    for consumer, name in enumerate(("empty", "bare", "void"), start=1):
        channel.register(consumer, channel.create(name), credit=0)
    channel.register(9, full, credit=0)
    channel.flush()
    first = channel.order(client.publish(full, bodies(1)))
    channel.credit(1, 1, drains=True)
    channel.flush()
    # The stream has a number that is not acknowledged, and always will have.
    channel.credit(9, 1)
    got: list[int] = []
    for round_ in range(2, 20):
        upto = said_to(channel, CM)
        channel.credit(round_ % 3 + 1, round_, drains=True)
        got += numbers_to(channel.flush(), 9)
        channel.acknowledge(upto)
        got += numbers_to(channel.flush(), 9)
    assert got == [first]


def test_a_consumer_that_was_stopped_is_not_overtaken_by_one_of_the_same_client_manager(
    channel: Channel, client: Client, queue: int
) -> None:
    second = channel.create("others")
    channel.register(1, queue)
    channel.register(2, second)
    channel.flush()
    channel.acknowledge(2)
    while stream_to(channel, CM).room > 0:
        channel.order(client.publish(queue, bodies(1)))
        channel.flush()
    waiting = channel.order(client.publish(second, bodies(1)))
    assert delivered(channel.flush()) == []
    # There is a little room, again and again, and the other consumer has a use for it each time.
    got: list[int] = []
    for upto in range(3, 30):
        channel.order(client.publish(queue, bodies(1)))
        channel.acknowledge(upto)
        got += numbers_to(channel.flush(), 2)
    assert got == [waiting]


def test_a_consumer_that_was_stopped_goes_first_when_there_is_room(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, stream_window_bytes=1))
    channel.order(client.open())
    queue, second = channel.create("orders"), channel.create("others")
    channel.register(1, queue)
    channel.register(2, second)
    channel.order(client.publish(queue, bodies(1)))
    channel.flush()
    waiting = channel.order(client.publish(second, bodies(1)))
    assert delivered(channel.flush()) == []
    channel.order(client.publish(queue, bodies(1)))
    channel.acknowledge(said_to(channel, CM))
    assert [(who, number) for who, number, _, _ in delivered(channel.flush())] == [(2, waiting)]


# -- asking twice ------------------------------------------------------------------------------------


def test_a_registration_said_again_is_answered_again_beside_the_stream(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=3)
    channel.order(client.publish(queue, bodies(5)))
    assert len(delivered(channel.flush())) == 3
    channel.register(1, queue, credit=3)
    [answer] = answers(channel.flush())
    assert (answer.number, answer.stream) == (0, channel._runs[CM][0])
    assert delivered(channel.flush()) == []


def test_a_registration_for_another_term_is_not_heard(channel: Channel, client: Client, queue: int) -> None:
    run = channel._runs[CM][0]
    channel.say(Register(1, SESSION, 1, queue, 0, "", 10, 1_000, number=1, term=channel.manager.term - 1))
    channel.say(Register(1, SESSION, 1, queue, 0, "", 10, 1_000, number=1, term=channel.manager.term + 1))
    assert sent(channel.flush()) == []
    channel.say(Credits(channel.manager.term - 1, 1, (), run, is_settled=True))
    assert sent(channel.flush()) == []


def test_a_detachment_said_again_is_answered_again(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    channel.unregister(1, 0)
    channel.unregister(1, 0)
    unregistered = [message for message in sent(channel.flush()) if isinstance(message, Unregistered)]
    assert unregistered == 2 * [Unregistered(1, channel.manager.term)]


def test_a_registration_that_comes_behind_its_end_attaches_nobody(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.unregister(1, 0)
    channel.register(1, queue)
    assert [answer.code for answer in answers(channel.flush())] == ["", ConsumerClosed.code]
    assert attached(channel) == []


def test_a_registration_under_an_older_key_does_not_push_out_the_newer(
    channel: Channel, client: Client, queue: int
) -> None:
    def register(key: int) -> None:
        term = channel.manager.term
        channel.say(Register(key, SESSION, 1, queue, 0, "", 9, 900, number=1, resumes=True, term=term))

    register(5)
    register(7)
    register(6)
    assert [(answer.consumer, answer.code) for answer in answers(channel.flush())] == [
        (5, ""),
        (7, ""),
        (6, ConsumerClosed.code),
    ]
    channel.order(client.publish(queue, bodies(2)))
    assert len(numbers_to(channel.flush(), 7)) == 2


def test_one_that_is_attached_anew_under_another_key_keeps_what_it_holds(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(4)))
    channel.register(1, queue)
    channel.flush()
    held = Ranges([(first, first + 2)])
    term = channel.manager.term
    channel.say(Register(9, SESSION, 1, queue, 0, "", 9, 900, held, number=1, resumes=True, term=term))
    effects = channel.flush()
    assert [answer.lost for answer in answers(effects)] == [Ranges()]
    assert numbers_to(effects, 9) == [first + 2, first + 3], "what had not reached it comes again"


def test_that_a_session_is_without_client_is_answered(channel: Channel, client: Client) -> None:
    channel.lose_client()
    channel.lose_client(generation=7)
    heard = [message for message in sent(channel.flush()) if isinstance(message, SessionDetachedHeard)]
    term = channel.manager.term
    assert heard == [SessionDetachedHeard(SESSION, 1, term), SessionDetachedHeard(SESSION, 7, term, True)]


def test_a_primary_that_has_not_applied_what_was_confirmed_says_nothing_of_a_session() -> None:
    channel, client = Channel(), Client()
    queue = channel.create("orders")
    # The next primary was the first to say that the session is open.
    opened = channel.manager.applied + 1
    channel.register(1, queue, floor=opened)
    channel.lose_client(floor=opened)
    assert sent(channel.flush()) == []

    assert channel.order(client.open()) == opened
    channel.flush()
    # The client manager says again what was not answered.
    channel.register(1, queue, floor=opened)
    channel.lose_client(floor=opened)
    said = sent(channel.flush())
    assert [message.code for message in said if isinstance(message, Registered)] == [""]
    assert SessionDetachedHeard(SESSION, 1, channel.manager.term, is_over=False) in said


# -- runs of a client manager ------------------------------------------------------------------------


def test_another_run_of_a_client_manager_has_a_stream_of_its_own(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.order(client.publish(queue, bodies(2)))
    channel.flush()
    former = channel._runs[CM][0]
    channel.open_producer(CM)
    [void] = heads(channel.flush())
    assert (void.stream, void.is_void) == (former, True)
    newcomer = Client(session=0xC3)
    channel.order(newcomer.open())
    channel.register(20, queue, session=0xC3)
    [answer] = [one for one in answers(channel.flush()) if isinstance(one, Registered)]
    assert (answer.stream, answer.number) == (channel._runs[CM][0], 1)
    assert answer.stream > former


def test_a_late_registration_of_a_former_run_does_not_bring_its_stream_back(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.flush()
    channel.open_producer(CM)
    newcomer = Client(session=0xC3)
    channel.order(newcomer.open())
    channel.register(20, queue, session=0xC3)
    channel.flush()
    channel.register(1, queue)
    [refused] = answers(channel.flush())
    assert refused.code == SESSION_DETACHED
    channel.order(newcomer.publish(queue, bodies(1)))
    [deliver] = delivers(channel.flush())
    assert deliver.targets[0].stream == channel._runs[CM][0]


def test_a_fenced_client_manager_loses_its_consumers_and_another_gets_what_they_had(
    channel: Channel, client: Client, other: Client, queue: int
) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    client, other = Client(), Client(session=OTHER_SESSION)
    channel.order(client.open())
    channel.order(other.open(), pid=OTHER_CM)
    queue = channel.create("orders")
    channel.now_ns = 1_000 * MS
    channel.flush()
    channel.register(1, queue)
    first = channel.order(client.publish(queue, bodies(3)))
    assert numbers_to(channel.flush(), 1) == [first, first + 1, first + 2]
    channel.register(2, queue, session=OTHER_SESSION, sender=OTHER_CM)
    channel.fence(CM, channel.manager.term)
    effects = channel.flush()
    assert delivered(effects) == [], "its clients may find another way"
    assert [head.is_void for head in heads(effects)] == [True]
    channel.now_ns += 300 * MS
    assert [(n, count) for _, n, _, count in delivered(channel.flush())] == [
        (first, 1),
        (first + 1, 1),
        (first + 2, 1),
    ]
    assert [key.node for key in attached(channel)] == [OTHER_CM]


def test_the_session_of_a_fenced_client_manager_is_not_over_for_it(channel: Channel, client: Client) -> None:
    """The decision of a transaction may be ordered when its client is gone, and gives the session back."""
    queue = channel.create("orders")
    channel.fence(CM, channel.manager.term)
    channel.lose_client()
    said = sent(channel.flush())
    assert SessionDetachedHeard(SESSION, 1, channel.manager.term, is_over=False) in said

    channel.open_producer(CM)
    channel.order(client.publish(queue, bodies(1)))
    channel.lose_client()
    channel.flush()
    channel.now_ns += channel.settings.session_expiry_ms * MS
    channel.order_proposals(channel.flush())
    assert channel.manager.state.sessions.get(SESSION) is None


def test_a_session_that_is_resumed_elsewhere_is_over(channel: Channel, client: Client, other: Client) -> None:
    channel.order(client.resume(2), pid=OTHER_CM)
    channel.lose_client()
    said = sent(channel.flush())
    assert SessionDetachedHeard(SESSION, 1, channel.manager.term, is_over=True) in said


# -- several takers ----------------------------------------------------------------------------------


def subscribers(channel: Channel, *clients: tuple[Client, int]) -> tuple[int, list[int]]:
    """A topic, and a consumer of a subscription of each of these sessions, at its client manager."""
    topic = channel.create_topic("news")
    keys = []
    for key, (client, cm) in enumerate(clients, start=1):
        subscription = channel.order(client.subscribe(topic), pid=cm)
        channel.register(key, topic, session=client.session, sender=cm, subscription=subscription)
        keys.append(key)
    channel.flush()
    return topic, keys


def test_the_same_rows_for_several_of_one_client_manager_are_one_message(
    channel: Channel, client: Client
) -> None:
    topic, _ = subscribers(channel, (client, CM), (client, CM), (client, CM))
    channel.order(client.publish(topic, bodies(5)))
    effects = channel.flush()
    [deliver] = delivers(effects)
    [target] = deliver.targets
    assert [taker.consumer for taker in target.takers] == [1, 2, 3]
    assert multicasts(effects) == []


def test_what_one_of_several_needs_no_more_is_sent_again_to_the_others_alone(
    channel: Channel, client: Client
) -> None:
    """A late acknowledgement of who had the subscription before: it must not be given to it behind that."""
    topic, [one, two] = subscribers(channel, (client, CM), (client, CM))
    subscription = next(iter(channel.manager.state.directory.topics)).subscriptions
    first_of, _ = subscription
    first = channel.order(client.publish(topic, bodies(4)))
    channel.flush()
    channel.order(client.ack(topic, (first + 1, first + 2), subscription=first_of))

    channel.acknowledge(2, (3, 4))
    effects = channel.flush()
    assert numbers_to(effects, one) == [first, first + 2, first + 3]
    assert sorted(numbers_to(effects, two)) == [first, first + 1, first + 2, first + 3]
    counts = {number: count for who, number, _, count in delivered(effects) if who == two}
    assert set(counts.values()) == {0}, "nobody has seen any of it"


def test_rows_that_nobody_holds_any_more_are_not_sent_again_though_they_are_stored(
    channel: Channel, client: Client
) -> None:
    topic, [one] = subscribers(channel, (client, CM))
    [subscription] = next(iter(channel.manager.state.directory.topics)).subscriptions
    first = channel.order(client.publish(topic, bodies(3)))
    channel.flush()
    channel.order(client.ack(topic, (first, first + 1), subscription=subscription))

    channel.acknowledge(1, (2, 3))
    assert numbers_to(channel.flush(), one) == [first + 1, first + 2]


def test_the_same_rows_for_several_client_managers_leave_once(
    channel: Channel, client: Client, other: Client
) -> None:
    topic, _ = subscribers(channel, (client, CM), (other, OTHER_CM), (client, CM))
    channel.order(client.publish(topic, bodies(5)))
    effects = channel.flush()
    assert delivers(effects) == []
    [deliver] = multicasts(effects)
    assert [(target.node, target.number, len(target.takers)) for target in deliver.targets] == [
        (CM, 3, 2),
        (OTHER_CM, 2, 1),
    ]
    assert [target.stream for target in deliver.targets] == [
        channel._runs[CM][0],
        channel._runs[OTHER_CM][0],
    ]
    # Who missed it gets it alone.
    channel.acknowledge(1, (2, 3), sender=OTHER_CM)
    effects = channel.flush()
    assert multicasts(effects) == []
    [again] = delivers(effects)
    assert [(target.node, target.number) for target in again.targets] == [(OTHER_CM, 2)]


def test_many_rows_for_several_are_put_together_piece_by_piece(
    channel: Channel, client: Client, other: Client
) -> None:
    topic, _ = subscribers(channel, (client, CM), (other, OTHER_CM))
    for _ in range(3):
        channel.order(client.publish(topic, [bytes(800)]))
    effects = channel.flush()
    assert delivers(effects) == []
    said = multicasts(effects)
    assert [len(deliver.pieces) for deliver in said] == [2, 1]
    firsts = [taker.first_delivery for deliver in said for taker in deliver.targets[1].takers]
    assert firsts == [1, 3]


def test_who_is_behind_gets_its_own_and_both_keep_their_order(
    channel: Channel, client: Client, other: Client
) -> None:
    topic = channel.create_topic("news")
    one = channel.order(client.subscribe(topic))
    two = channel.order(other.subscribe(topic), pid=OTHER_CM)
    channel.register(1, topic, session=SESSION, subscription=one)
    channel.register(2, topic, credit=2, session=OTHER_SESSION, sender=OTHER_CM, subscription=two)
    first = channel.order(client.publish(topic, bodies(4)))
    effects = channel.flush()
    assert multicasts(effects) == []
    assert numbers_to(effects, 1) == list(range(first, first + 4))
    assert numbers_to(effects, 2) == [first, first + 1]
    channel.credit(2, 100, sender=OTHER_CM)
    more = channel.order(client.publish(topic, bodies(2)))
    effects = channel.flush()
    assert numbers_to(effects, 1) == [more, more + 1]
    assert numbers_to(effects, 2) == [first + 2, first + 3, more, more + 1]


def test_rows_of_a_queue_go_to_one_consumer_and_so_to_one_client_manager(
    channel: Channel, client: Client, other: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.register(2, queue, session=OTHER_SESSION, sender=OTHER_CM)
    channel.order(client.publish(queue, bodies(6)))
    effects = channel.flush()
    assert multicasts(effects) == []
    assert sorted([*numbers_to(effects, 1), *numbers_to(effects, 2)]) == list(
        range(channel.next - 6, channel.next)
    )


# -- a new term --------------------------------------------------------------------------------------


def failover() -> tuple[Channel, int, int]:
    """Two client managers, each with a consumer that holds two of five messages; then a new primary."""
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    client, other = Client(), Client(session=OTHER_SESSION)
    channel.order(client.open())
    channel.order(other.open(), pid=OTHER_CM)
    queue = channel.create("orders")
    channel.flush()
    channel.now_ns = 1_000 * MS
    first = channel.order(client.publish(queue, bodies(5)))
    channel.claim(1)
    return channel, queue, first


def settle(channel: Channel, sender: int) -> None:
    run = channel._runs[sender][0]
    channel.say(Credits(channel.manager.term, 1, (), run, is_settled=True), sender)


def test_a_new_primary_gives_out_what_nobody_holds_once_all_client_managers_are_here() -> None:
    channel, queue, first = failover()
    channel.register(1, queue, held=Ranges([(first, first + 2)]))
    settle(channel, CM)
    assert delivered(channel.flush()) == [], "the other one may hold some"
    held = Ranges([(first + 2, first + 4)])
    channel.register(2, queue, session=OTHER_SESSION, sender=OTHER_CM, held=held)
    settle(channel, OTHER_CM)
    effects = channel.flush()
    assert [(number, count) for _, number, _, count in delivered(effects)] == [(first + 4, 1)]
    assert [answer.lost for answer in answers(effects)] == [Ranges()]


def test_a_new_primary_does_not_wait_for_ever() -> None:
    channel, queue, first = failover()
    channel.register(1, queue, held=Ranges([(first, first + 2)]))
    settle(channel, CM)
    channel.flush()
    channel.now_ns += 300 * MS
    assert [number for _, number, _, _ in delivered(channel.flush())] == [first + 2, first + 3, first + 4]
    # Who comes too late hears what it has lost.
    channel.register(2, queue, session=OTHER_SESSION, sender=OTHER_CM, held=Ranges([(first + 2, first + 4)]))
    [answer] = [one for one in answers(channel.flush()) if one.consumer == 2]
    assert isinstance(answer, Registered) and answer.lost == Ranges([(first + 2, first + 4)])
