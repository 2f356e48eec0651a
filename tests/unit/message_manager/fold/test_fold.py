"""What commands do, one by one: numbers, generations, outcomes."""

from __future__ import annotations

import pytest

from antiphon.bus.ports import Location
from antiphon.errors import ProtocolError
from antiphon.message_manager.fold import (
    burials,
    client_ids,
    destinations,
    event_log,
    expiry,
    families,
    holds,
    messages,
    sessions,
    subscriptions,
    transactions,
)
from antiphon.message_manager.fold import turns as fold_turns
from antiphon.message_manager.fold.fold import RULES
from antiphon.message_manager.fold.messages import read_acknowledge
from antiphon.message_manager.state.sessions import Owner
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    CommandKind,
    CreateDestination,
    LogTime,
    Outcome,
    OutcomeCode,
    Publish,
    encode_command,
)
from tests.unit.message_manager.channel import SESSION, Channel, Client, bodies, of_node

C = OutcomeCode


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.flush()
    return destination


def stored(channel: Channel) -> list[tuple[int, int]]:
    return list(next(iter(channel.manager.state.directory)).live)


# -- publishing -----------------------------------------------------------------------


def test_a_batch_is_stored_under_the_numbers_of_its_command(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    assert stored(channel) == [(first, first + 5)]
    assert channel.exceptions() == []


def test_commands_of_one_envelope_take_numbers_one_after_the_other(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(
        client.publish(queue, bodies(3)), client.ack(queue, (1_000, 1_001)), client.publish(queue, bodies(2))
    )
    assert stored(channel) == [(first, first + 3), (first + 4, first + 6)]
    assert channel.exceptions() == [Outcome(first + 3, 1, C.ACK_LOST, 1_000, "1 of 1 were no longer there")]


def test_a_publish_to_nowhere_is_refused_and_takes_its_numbers(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(999, bodies(3)))
    channel.order(client.publish(queue, bodies(1)))
    assert channel.exceptions() == [Outcome(first, 3, C.NO_DESTINATION)]
    assert stored(channel) == [(first + 3, first + 4)]


def test_a_batch_that_is_none_is_refused(channel: Channel, client: Client, queue: int) -> None:
    channel.order(
        client.raw(CommandKind.PUBLISH, Publish(queue, 1, 0, b"no batch at all").encode(), count=2),
        client.raw(CommandKind.PUBLISH, b"short"),
        client.publish(queue, bodies(3), header_count=4),
    )
    assert [(o.code, o.count) for o in channel.exceptions()] == [
        (C.REFUSED, 2),
        (C.REFUSED, 1),
        (C.REFUSED, 4),
    ]
    assert stored(channel) == []


def test_a_repeated_publish_is_told_the_numbers_of_the_first(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(4)))
    again = channel.order(client.publish(queue, bodies(4), number=1))
    assert channel.exceptions() == [Outcome(again, 4, C.DUPLICATE, first)]
    assert stored(channel) == [(first, first + 4)]


def test_an_overlapping_batch_is_cut(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(4)))
    again = channel.order(client.publish(queue, bodies(6), number=3))
    assert channel.exceptions() == [Outcome(again, 2, C.DUPLICATE, first + 2)]
    assert stored(channel) == [(first, first + 4), (again + 2, again + 6)]
    channel.order(client.publish(queue, bodies(1), number=9))
    assert channel.exceptions() == []


def test_a_repeated_refusal_is_refused_again(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(999, bodies(2)))
    channel.exceptions()
    again = channel.order(client.publish(999, bodies(2), number=1))
    assert channel.exceptions() == [Outcome(again, 2, C.NO_DESTINATION)]


def test_a_gap_is_refused_until_it_is_filled(channel: Channel, client: Client, queue: int) -> None:
    late = channel.order(client.publish(queue, bodies(2), number=4))
    assert channel.exceptions() == [Outcome(late, 2, C.GAP)]
    channel.order(client.publish(queue, bodies(3), number=1), client.publish(queue, bodies(2), number=4))
    assert channel.exceptions() == []
    assert channel.manager.destinations()[0]["messages"] == 5


def test_a_command_of_an_unknown_session_does_nothing(channel: Channel, queue: int) -> None:
    stranger = Client(session=0xBAD)
    first = channel.order(stranger.publish(queue, bodies(2)))
    assert channel.exceptions() == [Outcome(first, 2, C.SESSION_UNKNOWN)]
    assert stored(channel) == []


# -- acknowledging ------------------------------------------------------------------------


def test_an_acknowledged_message_is_gone(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.order(client.ack(queue, (first + 1, first + 3)))
    assert stored(channel) == [(first, first + 1), (first + 3, first + 5)]
    row = channel.manager.destinations()[0]
    assert (row["messages"], row["published"], row["acknowledged"]) == (3, 5, 2)


def test_whoever_acknowledges_second_is_told_what_was_lost(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.order(client.ack(queue, (first, first + 2)))
    second = channel.order(client.ack(queue, (first, first + 4)))
    assert channel.exceptions() == [Outcome(second, 1, C.ACK_LOST, first, "2 of 4 were no longer there")]
    assert stored(channel) == [(first + 4, first + 5)]


def test_an_acknowledgement_of_nothing_does_what_it_asks(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.ack(queue))
    assert channel.exceptions() == []


def test_many_ranges_are_acknowledged_like_one(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(200)))
    every_other = [(first + at, first + at + 1) for at in range(0, 200, 2)]
    channel.order(client.ack(queue, *every_other))
    assert channel.exceptions() == []
    row = channel.manager.destinations()[0]
    assert (row["messages"], row["acknowledged"]) == (100, 100)


def test_a_repeated_acknowledgement_is_told_what_became_of_it(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    acknowledged = channel.order(client.ack(queue, (first, first + 1)))
    again = channel.order(client.ack(queue, (first, first + 1), number=3))
    assert channel.exceptions() == [Outcome(again, 1, C.DUPLICATE, acknowledged)]


@pytest.mark.parametrize("payload", [b"", bytes(15), bytes(17), bytes(16) + bytes(16)])
def test_an_acknowledgement_that_does_not_read_is_refused(
    channel: Channel, client: Client, queue: int, payload: bytes
) -> None:
    channel.order(client.raw(CommandKind.ACK, payload))
    assert [o.code for o in channel.exceptions()] == [C.REFUSED]


def test_the_quick_reader_of_acknowledgements_reads_what_the_format_says() -> None:
    wish = Acknowledge(destination=7, subscription=3, ranges=Ranges([(1, 5), (9, 10)]))
    assert read_acknowledge(memoryview(wish.encode())) == (7, 3, wish.ranges)
    with pytest.raises(ProtocolError):
        read_acknowledge(memoryview(wish.encode()[:-1]))


def test_a_queue_has_no_subscriptions(channel: Channel, client: Client, queue: int) -> None:
    wish = Acknowledge(destination=queue, subscription=3, ranges=Ranges([(1, 5)]))
    channel.order(client.raw(CommandKind.ACK, wish.encode()))
    assert [o.code for o in channel.exceptions()] == [C.REFUSED]


# -- destinations ---------------------------------------------------------------------------


def test_the_id_of_a_new_destination_is_the_number_of_its_creation(channel: Channel) -> None:
    number = channel.create("orders")
    assert channel.exceptions() == []
    found = channel.manager.find("queue:orders")
    assert found is not None and found["destination"] == number


def test_creating_what_exists_answers_its_id(channel: Channel) -> None:
    first = channel.create("orders")
    second = channel.create("orders")
    assert channel.exceptions() == [Outcome(second, 1, C.DUPLICATE, first)]


@pytest.mark.parametrize(
    "wish",
    [
        CreateDestination(kind=1, name=" orders", settings="{}"),
        CreateDestination(kind=1, name="", settings="{}"),
        CreateDestination(kind=9, name="orders", settings="{}"),
        CreateDestination(kind=1, name="orders", settings='{"retention":60}'),
        CreateDestination(kind=1, name="orders", settings='{"retention_bytes":60}'),
        CreateDestination(kind=2, name="prices", settings='{"retention":-1}'),
        CreateDestination(kind=2, name="prices", settings='{"retention":true}'),
        CreateDestination(kind=2, name="prices", settings='{"retention":NaN}'),
        CreateDestination(kind=2, name="prices", settings='{"retention":"for ever"}'),
        CreateDestination(kind=2, name="prices", settings='{"retention_bytes":1.5}'),
        CreateDestination(kind=2, name="prices", settings='{"color":"red"}'),
        CreateDestination(kind=2, name="prices", settings='["retention"]'),
        CreateDestination(kind=2, name="prices", settings="[" * 60_000),
        CreateDestination(kind=2, name="prices", settings="no JSON"),
    ],
)
def test_what_cannot_be_created_is_refused(channel: Channel, wish: CreateDestination) -> None:
    channel.order(of_node(wish))
    assert [o.code for o in channel.exceptions()] == [C.REFUSED]
    assert channel.manager.destinations() == []


def test_a_deleted_destination_is_gone_with_all_it_held(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(5)))
    channel.order(client.delete(queue))
    late = channel.order(client.publish(queue, bodies(1)), client.delete(queue))
    assert channel.exceptions() == [
        Outcome(late, 1, C.NO_DESTINATION),
        Outcome(late + 1, 1, C.NO_DESTINATION),
    ]
    assert channel.manager.live_bytes_by_segment() == {}
    assert channel.create("orders") > queue


# -- sessions ---------------------------------------------------------------------------------


def test_opening_a_session_twice_changes_nothing(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(2)))
    again = channel.order(client.open())
    assert channel.exceptions() == [Outcome(again, 1, C.DUPLICATE)]
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.last == 2


def test_a_resumed_session_goes_on_where_it_was(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.flush()
    second = channel.order(client.resume(2), client.publish(queue, bodies(5), number=2), pid=7)
    assert channel.exceptions() == [Outcome(second + 1, 2, C.DUPLICATE, first + 1)]


def test_what_a_former_client_manager_still_sends_is_void(
    channel: Channel, client: Client, queue: int
) -> None:
    old = Client()
    channel.order(client.resume(2), pid=7)
    late = channel.order(old.publish(queue, bodies(2)), old.close())
    assert channel.exceptions() == [Outcome(late, 2, C.STALE), Outcome(late + 2, 1, C.STALE)]
    assert stored(channel) == []


def test_a_resumption_that_comes_late_is_void(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.resume(3))
    late = channel.order(Client().resume(2))
    again = channel.order(client.resume(3))
    assert channel.exceptions() == [Outcome(late, 1, C.STALE), Outcome(again, 1, C.DUPLICATE)]


def test_a_session_that_is_not_known_cannot_be_resumed_or_closed(channel: Channel) -> None:
    channel.flush()
    stranger = Client(session=0xBAD)
    first = channel.order(stranger.resume(2), stranger.close())
    assert channel.exceptions() == [Outcome(first + at, 1, C.SESSION_UNKNOWN) for at in (0, 1)]


def test_opening_under_a_higher_generation_resumes(channel: Channel, client: Client, queue: int) -> None:
    """The resumption found no session, since the former manager's opening was still on its way."""
    channel.order(client.publish(queue, bodies(2)))
    channel.flush()
    later = Client(generation=2)
    channel.order(later.open(), later.publish(queue, bodies(2), number=1), pid=7)
    assert [o.code for o in channel.exceptions()] == [C.DUPLICATE]
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and (row.generation, row.owner.pid) == (2, 7)


def test_a_session_that_was_opened_late_is_not_the_one_that_its_client_knew(
    channel: Channel, client: Client, queue: int
) -> None:
    """It asked one door, which slept, and went to another, where it published; then its session ended."""
    late, there = Client(session=0xB2), Client(session=0xB2, generation=2)
    channel.order(there.open(), there.publish(queue, bodies(1)), pid=7)
    channel.order(there.close(), pid=7)
    channel.order(late.open())
    assert [o.code for o in channel.exceptions()] == []
    back = Client(session=0xB2)
    channel.flush()
    channel.order(back.resume(3, known=2), back.publish(queue, bodies(1), number=1), pid=7)
    assert [o.code for o in channel.exceptions()] == [C.SESSION_UNKNOWN, C.STALE], "never stored again"
    assert len(stored(channel)) == 1
    row = channel.manager.state.sessions.get(0xB2)
    assert row is not None and (row.generation, row.owner.pid) == (1, 1)


def test_a_session_is_resumed_by_whoever_knew_it_in_this_generation_or_before(
    channel: Channel, client: Client
) -> None:
    channel.order(client.resume(2, known=1), pid=7)
    channel.order(client.resume(5, known=2), pid=7)
    channel.order(client.resume(6, known=1), pid=7)
    assert channel.exceptions() == []
    again = channel.order(client.resume(6, known=6), pid=7)
    assert channel.exceptions() == [Outcome(again, 1, C.DUPLICATE)]


def test_a_resumption_that_does_not_read_is_refused(channel: Channel, client: Client) -> None:
    first = channel.order(encode_command(CommandKind.SESSION_RESUME, SESSION, 2, 0, 0, b"\x01"))
    ((place, _, code, _, _),) = channel.exceptions()
    assert (place, code) == (first, C.REFUSED)
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.generation == 1


def test_a_closed_session_is_forgotten(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.close())
    late = channel.order(client.publish(queue, bodies(1)))
    assert channel.exceptions() == [Outcome(late, 1, C.SESSION_UNKNOWN)]


def test_a_session_expires_only_by_the_word_of_the_current_primary(
    channel: Channel, client: Client, queue: int
) -> None:
    term = channel.manager.term
    channel.order(channel.expiry(term=term - 1))
    channel.order(channel.expiry(generation=2))
    assert [o.code for o in channel.exceptions()] == [C.STALE, C.STALE]
    assert channel.manager.state.sessions.get(SESSION) is not None
    channel.order(channel.expiry())
    assert channel.exceptions() == []
    assert channel.manager.state.sessions.get(SESSION) is None


def test_a_session_that_came_back_does_not_expire(channel: Channel, client: Client, queue: int) -> None:
    expire = channel.expiry()
    channel.order(client.resume(2))
    channel.order(expire)
    assert channel.manager.state.sessions.get(SESSION) is not None


def test_a_client_managers_new_life_detaches_the_sessions_of_its_former_one(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(Client(session=0xB2).open(), pid=7)
    channel.open_producer(1)
    owners = {row.id: row.owner.pid for row in channel.manager.state.sessions}
    assert owners == {SESSION: 0, 0xB2: 7}


def test_a_fence_detaches_only_in_its_own_term(channel: Channel, client: Client, queue: int) -> None:
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None
    channel.fence(1, term=channel.manager.term - 1)
    assert row.owner.pid == 1
    channel.fence(1, term=channel.manager.term)
    assert row.owner.pid == 0


def test_a_session_whose_manager_had_to_open_anew_is_attached_by_its_next_command(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.open_producer(1)
    channel.order(client.publish(queue, bodies(1)))
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.owner.pid == 1


# -- time, and envelopes that make no sense --------------------------------------------------------


def test_log_time_never_goes_back_and_only_the_primary_moves_it(channel: Channel) -> None:
    term = channel.manager.term
    for time_ms, of_term, expected in (
        (500, term, 500),
        (400, term, 500),
        (900, term - 1, 500),
        (600, term, 600),
    ):
        channel.order(of_node(LogTime(time_ms=time_ms, term=of_term)))
        assert channel.manager.state.log_time_ms == expected


def test_an_envelope_that_breaks_off_is_refused_from_there_on(
    channel: Channel, client: Client, queue: int
) -> None:
    good = client.publish(queue, bodies(2))
    first = channel.order(good, b"\xff" * 60, count=5)
    assert [(o.first, o.count, o.code) for o in channel.exceptions()] == [(first + 2, 3, C.REFUSED)]
    assert stored(channel) == [(first, first + 2)]
    assert channel.manager.applied == first + 4


def test_commands_cannot_take_more_numbers_than_their_envelope_has(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)), count=3)
    assert [(o.first, o.count, o.code) for o in channel.exceptions()] == [(first, 3, C.REFUSED)]
    assert stored(channel) == []


def test_the_count_of_a_message_goes_with_it(channel: Channel, client: Client, queue: int) -> None:
    topic = channel.create_topic("news")
    subscription = channel.order(client.subscribe(topic))
    first = channel.order(client.publish(queue, bodies(1)))
    second = channel.order(client.publish(topic, bodies(1)))
    for destination, number, id in ((queue, first, 0), (topic, second, subscription)):
        channel.order(client.give_back(destination, (number, number + 1), subscription=id))
        source = channel.manager.state.directory.source(destination, id)
        assert source is not None and list(source.counts.items()) == [(number, 1)]
        channel.order(client.ack(destination, (number, number + 1), subscription=id))
        assert not source.counts


def test_every_kind_of_command_has_one_rule() -> None:
    areas = (
        messages,
        burials,
        destinations,
        subscriptions,
        families,
        sessions,
        client_ids,
        transactions,
        holds,
        expiry,
        event_log,
    )
    kinds = [rule.kind for area in areas for rule in area.RULES]
    assert sorted(kinds) == sorted(CommandKind)
    assert list(RULES) == [int(kind) for kind in kinds]


def test_a_verdict_can_be_printed_without_a_channel_around_it() -> None:
    """A handler is a function of the channel, the turn and the payload, and returns what became of it."""
    channel = fold_turns.Channel("main")
    envelope = fold_turns.Envelope(memoryview(b""), Owner(1, 1), b"", Location(0, 0, 0, b""))
    header = CommandHeader(int(CommandKind.PUBLISH), 0, 0, 1, 1, 1, 0, SESSION)
    turn = fold_turns.Turn(header, 7, 0, envelope)
    verdict = messages.publish(channel, turn, Publish(999, 0, 0, b""))
    assert verdict == fold_turns.Verdict(int(C.NO_DESTINATION))
    assert list(channel.state.outcomes.page(0, 7)[2]) == []
