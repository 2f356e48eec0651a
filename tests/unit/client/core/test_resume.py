"""One session on one connection after the other, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.client.core.client import ClientCore
from antiphon.client.core.consumer import HELD_RANGES_MAX, ConsumerCore
from antiphon.client.core.events import (
    ConsumerStopped,
    Ended,
    Refused,
    RequestAnswered,
    SessionEnded,
    Settled,
    Unheard,
)
from antiphon.client.core.session import Acknowledgement, SessionCore
from antiphon.errors import AcknowledgeRefused, ProtocolError, SessionClosed
from antiphon.ranges import Ranges
from antiphon.wire.commands import Acknowledge, CommandHeader, ConfirmItem, OutcomeCode, read_command
from antiphon.wire.frames import (
    AckMode,
    Ask,
    ClientFrame,
    Command,
    Confirm,
    ConsumerClose,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    Credit,
    Deliver,
    DeliverPiece,
    DestinationOpen,
    DestinationOpened,
    Done,
    Failed,
    FlowState,
    Goodbye,
    Hello,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    Welcome,
)
from tests.unit.client.core.test_client import (
    OPENED,
    SESSION,
    WELCOME,
    chunk,
    deliver,
    open_consumer,
    open_session,
    said,
    welcome_core,
)


def known_session(core: ClientCore) -> SessionCore:
    """A session that channel `a` knows."""
    session = open_session(core)
    request = core.open_destination("queue:a", create=True, session=SESSION)
    core.receive(0, DestinationOpened(request=request, destination=3, settings_version=1, channel="a"))
    core.take_output()
    return session


def greet_again(core: ClientCore) -> list[ClientFrame]:
    """The connection is lost and another is made: what is said after the welcome."""
    core.lose()
    core.greet()
    (hello,) = said(core)
    assert isinstance(hello, Hello)
    assert (hello.connection, hello.generation > 1) == (WELCOME.connection, True)
    core.receive(0, WELCOME)
    return said(core)


def resume(core: ClientCore, window_bytes: int = 1 << 20) -> list[ClientFrame]:
    """Another connection, on which the session goes on: what is said there after that."""
    (wish,) = [frame for frame in greet_again(core) if isinstance(frame, SessionOpen)]
    opened = SessionOpened(
        request=wish.request, session=wish.session, generation=wish.generation, window_bytes=window_bytes
    )
    core.receive(0, opened)
    return said(core)


def headers(frames: list[ClientFrame]) -> list[CommandHeader]:
    return [read_command(frame.command)[0] for frame in frames if isinstance(frame, Command)]


def confirmed(number: int, count: int = 1, code: int = OutcomeCode.APPLIED, sequence: int = 40) -> Confirm:
    return Confirm(session=SESSION, channel="a", items=(ConfirmItem(number, count, code, sequence),))


# -- coming back ---------------------------------------------------------------------


def test_a_connection_names_itself_once_it_has_a_name_and_counts_its_attempts() -> None:
    core = ClientCore(user="u", password="p", client_id="c")
    for _ in range(2):
        assert said(core) == [Hello(user="u", password="p", client_id="c")]
        core.lose()
        core.greet()
    core.receive(0, WELCOME)
    core.take_output()
    for generation in (2, 3):
        core.lose()
        core.greet()
        named = Hello(
            user="u",
            password="p",
            client_id="c",
            connection=WELCOME.connection,
            generation=generation,
        )
        assert said(core) == [named]
    with pytest.raises(ProtocolError, match="another connection"):
        core.receive(0, replace(WELCOME, connection=WELCOME.connection + 1))


def test_a_session_is_resumed_under_a_higher_generation_in_the_channels_that_know_it() -> None:
    core = welcome_core()
    known_session(core)
    (wish,) = greet_again(core)
    assert wish == SessionOpen(
        request=wish.request,
        session=SESSION,
        generation=2,
        ack_mode=AckMode.AUTO,
        channels=("a",),
        known=(1,),
    )


def test_who_comes_back_says_under_which_generation_each_channel_was_first_heard_to_know_it() -> None:
    """A session that is resumed need not be in all of its channels: one of them may not answer."""
    core = welcome_core()
    known_session(core)
    greet_again(core)
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    assert (wish.generation, wish.known) == (3, (1,))
    core.receive(0, SessionOpened(request=wish.request, session=SESSION, generation=3, window_bytes=1 << 20))
    request = core.open_destination("queue:other", create=True, session=SESSION)
    said(core)
    core.receive(0, DestinationOpened(request=request, destination=9, settings_version=1, channel="b"))
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    assert (wish.generation, wish.channels, wish.known) == (4, ("a", "b"), (1, 3))


def test_a_session_that_never_spoke_to_a_channel_is_resumed_in_none() -> None:
    core = welcome_core()
    open_session(core)
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    assert (wish.session, wish.generation, wish.channels) == (SESSION, 2, ())


def test_every_attempt_has_a_generation_of_its_own() -> None:
    """The server may have heard of one whose answer we did not hear."""
    core = welcome_core()
    known_session(core)
    generations = []
    for _ in range(3):
        (wish,) = greet_again(core)
        assert isinstance(wish, SessionOpen)
        generations.append(wish.generation)
    assert generations == [2, 3, 4]


def test_another_session_than_the_one_that_was_asked_for_breaks_the_protocol() -> None:
    core = welcome_core()
    known_session(core)
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    with pytest.raises(ProtocolError, match="another one was"):
        core.receive(
            0, SessionOpened(request=wish.request, session=SESSION, generation=1, window_bytes=1 << 20)
        )


# -- commands ------------------------------------------------------------------------


def test_what_has_no_outcome_is_sent_again_in_order_with_nothing_changed_but_the_header() -> None:
    core = welcome_core()
    session = known_session(core)
    session.submit("a", chunk(b"a", b"b"))
    session.outbox("a").acknowledge(
        Acknowledge(destination=3, subscription=0, ranges=Ranges([(7, 9)])), "acknowledgement"
    )
    session.submit("a", chunk(b"c"))
    before = [frame for frame in said(core) if isinstance(frame, Command)]
    core.receive(0, confirmed(1, 2))

    again = [frame for frame in resume(core) if isinstance(frame, Command)]
    assert [(h.number, h.count, h.generation, h.confirmed_through) for h in headers(again)] == [
        (3, 1, 2, 2),
        (4, 1, 2, 2),
    ]
    assert [bytes(f.command)[48:] for f in again] == [bytes(f.command)[48:] for f in before[1:]]


def test_a_command_that_is_partly_confirmed_is_sent_again_whole() -> None:
    core = welcome_core()
    session = known_session(core)
    publication = chunk(b"a", b"b", b"c")
    session.submit("a", publication)
    core.receive(0, confirmed(1, 1, sequence=40))
    assert [(h.number, h.count) for h in headers(resume(core))] == [(1, 3)]
    # The channel had them all: the part that is new to us counts, with the numbers of the first time.
    (settled,) = core.receive(0, confirmed(1, 3, OutcomeCode.DUPLICATE, sequence=40))
    assert isinstance(settled, Settled)
    assert settled.outcomes == [
        ConfirmItem(1, 1, OutcomeCode.APPLIED, 40),
        ConfirmItem(2, 2, OutcomeCode.DUPLICATE, 41),
    ]
    assert publication.outcomes == settled.outcomes


def test_nothing_leaves_while_there_is_no_connection_and_nothing_is_lost() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 40, 2))
    core.lose()
    session.submit("a", chunk(b"a"))
    spans = session.take(consumer, 2)
    session.gather(0, consumer, spans)
    session.send_gathered(consumer)
    session.submit("a", chunk(b"b"))
    assert core.take_output() == []

    core.greet()
    said(core)
    core.receive(0, WELCOME)
    (wish,) = said(core)
    assert isinstance(wish, SessionOpen)
    core.receive(0, SessionOpened(request=wish.request, session=SESSION, generation=2, window_bytes=1 << 20))
    frames = said(core)
    # The acknowledgement got its number first: a publication has none before it leaves.
    assert [(h.number, h.generation) for h in headers(frames)] == [(1, 2), (2, 2), (3, 2)]
    assert isinstance(frames[-1], ConsumerResume)


def test_resending_keeps_to_the_window_of_the_new_server() -> None:
    core = welcome_core()
    session = known_session(core)
    for _ in range(3):
        session.submit("a", chunk(bytes(400)))
    core.take_output()
    assert [h.number for h in headers(resume(core, window_bytes=1_200))] == [1, 2]
    session.submit("a", chunk(b"new"))
    assert said(core) == []
    core.receive(0, confirmed(1, sequence=40))
    assert [h.number for h in headers(said(core))] == [3, 4]


def test_what_was_not_sent_again_yet_cannot_be_confirmed() -> None:
    core = welcome_core()
    session = known_session(core)
    for _ in range(3):
        session.submit("a", chunk(bytes(400)))
    resume(core, window_bytes=1_200)
    with pytest.raises(ProtocolError, match="2 is the last that was sent"):
        core.receive(0, confirmed(1, 3))


# -- consumers -----------------------------------------------------------------------


def resumption(frames: list[ClientFrame]) -> ConsumerResume:
    (wish,) = [frame for frame in frames if isinstance(frame, ConsumerResume)]
    return wish


def test_a_consumer_comes_back_with_its_selector() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = session.new_consumer("queue:a", OPENED, selector="n = 1")
    core.open_consumer(session, consumer)
    assert resumption(resume(core)).selector == "n = 1"


def test_a_consumer_claims_what_it_was_given_and_has_not_had_confirmed() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session, prefetch_messages=10)
    core.receive(0, deliver(1, 40, 6))
    confirmed_, unconfirmed, held = (session.take(consumer, 1) for _ in range(3))
    session.acknowledge(consumer, Ranges([confirmed_[0].numbers]))
    core.receive(0, confirmed(1))
    session.acknowledge(consumer, Ranges([unconfirmed[0].numbers]))
    consumer.hold(held)

    frames = resume(core)
    wish = resumption(frames)
    # One was acknowledged and is known to be. Whether the next one is, the server may not know either.
    assert wish.held == Ranges([(41, 46)])
    assert (wish.delivered_messages, wish.delivered_bytes) == (6, 6)
    assert (wish.consumer, wish.destination, wish.credit_messages) == (1, 3, 10)
    # It comes behind the acknowledgement that is sent again.
    assert [type(frame) for frame in frames] == [Command, ConsumerResume]


def test_deliveries_go_on_where_they_stopped() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 40, 2))
    wish = resumption(resume(core))
    core.receive(0, ConsumerResumed(request=wish.request, lost=Ranges()))
    core.receive(0, deliver(3, 50))
    taken = [number for span in session.take(consumer, 9) for number in range(*span.numbers)]
    assert taken == [40, 41, 50]


def test_what_was_given_to_others_and_not_taken_yet_is_not_taken_any_more() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session, prefetch_messages=8)
    core.receive(0, deliver(1, 40, 6))
    consumer.hold(session.take(consumer, 1))
    core.take_output()
    wish = resumption(resume(core))
    core.receive(0, ConsumerResumed(request=wish.request, lost=Ranges([(40, 42), (43, 44)])))
    assert consumer.buffered == 3
    assert consumer.unconfirmed == Ranges([(42, 43), (44, 46)])
    taken = [number for span in session.take(consumer, 9) for number in range(*span.numbers)]
    assert taken == [42, 44, 45]
    # What was dropped counts as worked off: there is room for as much as ever.
    assert consumer.taken_through == 6
    (credit,) = said(core)
    assert isinstance(credit, Credit)
    assert credit.messages == 14
    # The application has number 40 in its hands, and cannot acknowledge it any more.
    assert (consumer.held, consumer.forfeited) == (Ranges(), Ranges([(40, 41)]))
    with pytest.raises(AcknowledgeRefused, match="message 40 was given to another consumer"):
        session.acknowledge_one(consumer, 40)


def test_a_consumer_that_lost_all_it_was_sent_asks_for_more() -> None:
    """Nobody will take anything of it, so nobody else would."""
    core = welcome_core()
    session = known_session(core)
    open_consumer(core, session, prefetch_messages=1)
    core.receive(0, deliver(1, 40))
    wish = resumption(resume(core))
    said(core)
    core.receive(0, ConsumerResumed(request=wish.request, lost=Ranges([(40, 41)])))
    (credit,) = said(core)
    assert isinstance(credit, Credit)
    assert credit.messages == 2


def test_a_consumer_with_countless_holes_claims_what_fits() -> None:
    consumer = ConsumerCore(consumer=1, name="queue:a", destination=3, channel="a")
    for number in range(0, 2 * HELD_RANGES_MAX + 10, 2):
        consumer.unconfirmed.add(number, number + 1)
    assert len(consumer.resumption(1, 9).held) == HELD_RANGES_MAX


def test_a_consumer_that_was_being_opened_is_opened_with_what_came_before_the_answer() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = session.new_consumer("queue:a", OPENED)
    request = core.open_consumer(session, consumer)
    core.receive(0, deliver(1, 40))
    wish = resumption(resume(core))
    assert (wish.request, wish.held) == (request, Ranges([(40, 41)]))
    # Whoever waits is answered as if nothing had happened.
    assert core.receive(0, ConsumerResumed(request=request, lost=Ranges())) == [
        RequestAnswered(request=request, reply=Done(request=request))
    ]


def test_a_consumer_that_cannot_be_attached_again_has_ended() -> None:
    core = welcome_core()
    session = known_session(core)
    open_consumer(core, session)
    wish = resumption(resume(core))
    (ended,) = core.receive(0, Failed(request=wish.request, code="destination.unknown", text="deleted"))
    assert isinstance(ended, ConsumerStopped)
    assert ended.error.text == "deleted"


def test_a_consumer_that_was_being_closed_is_not_attached_again() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    request = core.close_consumer(session, consumer)
    assert resume(core) == [ConsumerClose(request=request, session=SESSION, consumer=1, seen_through=0)]


def test_an_acknowledged_message_is_not_claimed_once_that_is_confirmed() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 40, 3))
    session.take(consumer, 3)
    (tag,) = session.acknowledge(consumer, Ranges([(40, 42)]))
    assert isinstance(tag, Acknowledgement)
    assert consumer.unconfirmed == Ranges([(40, 43)])
    core.receive(0, confirmed(1))
    assert consumer.unconfirmed == Ranges([(42, 43)])


# -- requests ------------------------------------------------------------------------


def test_requests_are_repeated_under_their_numbers_those_of_a_session_once_it_is_back() -> None:
    core = welcome_core()
    known_session(core)
    question = core.ask({"question": "status"})
    destination = core.open_destination("queue:b", create=True, session=SESSION)
    frames = greet_again(core)
    assert [type(frame) for frame in frames] == [SessionOpen, Ask]
    (wish, asked) = frames
    assert isinstance(wish, SessionOpen) and isinstance(asked, Ask)
    assert asked.request == question
    core.receive(0, SessionOpened(request=wish.request, session=SESSION, generation=2, window_bytes=1 << 20))
    assert said(core) == [DestinationOpen(request=destination, name="queue:b", create=True, session=SESSION)]


def test_a_session_that_was_being_opened_is_opened_elsewhere() -> None:
    core = welcome_core()
    request = core.open_session(AckMode.AUTO)
    assert greet_again(core) == [SessionOpen(request=request, session=0, generation=0, ack_mode=AckMode.AUTO)]


def test_what_is_asked_without_a_connection_is_asked_on_the_next_one() -> None:
    core = welcome_core()
    core.lose()
    request = core.ask({})
    assert core.take_output() == []
    core.greet()
    said(core)
    core.receive(0, WELCOME)
    (asked,) = said(core)
    assert isinstance(asked, Ask)
    assert asked.request == request


def test_what_nobody_waits_for_is_not_asked_again() -> None:
    core = welcome_core()
    session = known_session(core)
    core.abandon_request(core.ask({}))
    consumer = session.new_consumer("queue:a", OPENED)
    core.abandon_request(core.open_consumer(session, consumer))
    core.abandon_request(core.open_session(AckMode.AUTO))
    assert resume(core) == []
    assert session.consumers == {}


def test_a_session_whose_end_nobody_waits_for_is_not_resumed() -> None:
    core = welcome_core()
    known_session(core)
    core.abandon_request(core.close_session(SESSION))
    assert greet_again(core) == []
    assert core.sessions == {}


# -- not coming back -----------------------------------------------------------------


def test_a_session_that_has_expired_leaves_its_publications_uncertain_and_its_consumers_closed() -> None:
    core = welcome_core()
    session = known_session(core)
    open_consumer(core, session)
    left = chunk(b"a")
    session.submit("a", left)
    destination = core.open_destination("queue:b", create=True, session=SESSION)
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    waiting = chunk(b"b")
    session.submit("a", waiting)

    ended, refused, over, unheard = core.receive(
        0, Failed(request=wish.request, code="local.session_closed", text="it has expired")
    )
    assert isinstance(ended, ConsumerStopped) and isinstance(ended.error, SessionClosed)
    assert isinstance(refused, Refused) and refused.request == destination
    assert isinstance(over, SessionEnded)
    assert over.tags == [left, waiting]
    assert isinstance(unheard, Unheard) and isinstance(unheard.error, SessionClosed)
    assert left.has_left and not waiting.has_left
    # The bytes are kept: they are what sending it again takes.
    assert left.command is not None and waiting.command is None
    assert core.sessions == {}
    with pytest.raises(SessionClosed, match="has expired"):
        session.check()


def test_a_session_that_is_closed_already_was_closed() -> None:
    """It was carried out, and only the answer was lost."""
    core = welcome_core()
    known_session(core)
    request = core.close_session(SESSION)
    (wish,) = greet_again(core)
    assert isinstance(wish, SessionOpen)
    events = core.receive(0, Failed(request=wish.request, code="local.session_closed", text="unknown"))
    assert events[0] == RequestAnswered(request=request, reply=Done(request=request))
    assert not any(isinstance(event, Unheard) for event in events)


def test_a_session_that_is_resumed_elsewhere_is_over_here() -> None:
    core = welcome_core()
    session = known_session(core)
    session.submit("a", chunk(b"a"))
    over, unheard = core.receive(
        0, SessionGone(session=SESSION, code="session.stale", text="resumed elsewhere")
    )
    assert isinstance(unheard, Unheard) and "resumed elsewhere" in str(unheard.error)
    assert isinstance(over, SessionEnded)
    assert len(over.tags) == 1
    # What the server had said before it knew is not a breach.
    assert core.receive(0, confirmed(1)) == []


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        ("", False),
        ("connection.stopping", False),
        ("connection.silent", False),
        ("remote.protocol", True),
        ("remote.version_mismatch", True),
        ("local.access_denied", True),
    ],
)
def test_a_server_that_says_goodbye_may_be_asked_again_unless_it_was_our_fault(
    code: str, is_final: bool
) -> None:
    (event,) = welcome_core().receive(0, Goodbye(code=code, text="why"))
    assert isinstance(event, Ended)
    assert event.is_final == is_final


# -- flow ----------------------------------------------------------------------------


def test_publications_wait_while_the_channel_is_blocked_and_acknowledgements_do_not() -> None:
    core = welcome_core()
    session = known_session(core)
    core.receive(0, FlowState(channel="a", blocked=True, reason="full"))
    session.submit("a", chunk(b"a"))
    session.outbox("a").acknowledge(
        Acknowledge(destination=3, subscription=0, ranges=Ranges([(7, 9)])), "acknowledgement"
    )
    assert [h.number for h in headers(said(core))] == [1]
    assert not session.outbox("a").has_room(1)
    core.receive(0, FlowState(channel="a", blocked=False, reason=""))
    assert [h.number for h in headers(said(core))] == [2]
    assert session.outbox("a").has_room(1)


def test_another_server_says_anew_whether_a_channel_is_blocked() -> None:
    core = welcome_core()
    session = known_session(core)
    core.receive(0, FlowState(channel="a", blocked=True, reason="full"))
    session.submit("a", chunk(b"a"))
    assert [h.number for h in headers(resume(core))] == [1]

    session.submit("a", chunk(b"b"))
    said(core)
    core.lose()
    core.greet()
    said(core)
    core.receive(0, WELCOME)
    (wish,) = said(core)
    assert isinstance(wish, SessionOpen)
    core.receive(0, FlowState(channel="a", blocked=True, reason="full"))
    core.receive(
        0,
        SessionOpened(
            request=wish.request, session=SESSION, generation=wish.generation, window_bytes=1 << 20
        ),
    )
    # What was sent before may be stored already; only what is new waits.
    assert [h.number for h in headers(said(core))] == [1, 2]
    session.submit("a", chunk(b"c"))
    assert said(core) == []


def test_there_is_room_up_to_the_window_and_none_without_a_connection() -> None:
    core = welcome_core()
    session = known_session(core)
    outbox = session.outbox("a")
    assert outbox.has_room(10 << 20), "one message of any size may be on its way"
    session.submit("a", chunk(bytes(1 << 19)))
    assert outbox.has_room(1 << 18)
    assert not outbox.has_room(1 << 20)
    core.lose()
    assert not outbox.has_room(1)


# -- adopted sessions ------------------------------------------------------------------


def test_an_adopted_session_repeats_a_number_and_confirms_nothing() -> None:
    core = welcome_core()
    request = core.adopt_session(77, 5, "a")
    (wish,) = said(core)
    assert wish == SessionOpen(
        request=request, session=77, generation=5, ack_mode=AckMode.AUTO, channels=("a",), known=(0,)
    )
    core.receive(0, SessionOpened(request=request, session=77, generation=5, window_bytes=1 << 20))
    session = core.sessions[77]
    assert session.is_adopted
    other = welcome_core()
    known_session(other).submit("a", chunk(b"body"))
    (sent,) = said(other)
    assert isinstance(sent, Command)
    session.outbox("a").repeat(41, 1, [bytes(sent.command)], "tag")
    (header,) = headers(said(core))
    assert (header.generation, header.confirmed_through) == (5, 0)
    (settled,) = core.receive(
        0, Confirm(session=77, channel="a", items=(ConfirmItem(41, 1, OutcomeCode.DUPLICATE, 12),))
    )
    assert isinstance(settled, Settled)
    core.forget_adopted(77)
    assert core.sessions == {}


def test_bodies_of_a_claimed_batch_stay_readable() -> None:
    """A delivered batch is cut, not copied, when part of it is lost."""
    consumer = ConsumerCore(consumer=1, name="queue:a", destination=3, channel="a")
    batch = Batch.of_bodies([b"%d" % row for row in range(5)], 7, 1, 0).encode()
    fields: dict[str, Any] = {"session": 9, "destination": 3, "term": 1, "consumer": 1, "channel": "a"}
    consumer.arrive(Deliver(first_delivery=1, pieces=(DeliverPiece(40, 0, batch),), **fields))
    consumer.drop(Ranges([(41, 42), (44, 45)]))
    bodies = [message.body for span in consumer.take(9) for message in span.messages()]
    assert bodies == [b"0", b"2", b"3"]


def test_a_welcome_may_come_from_another_server_with_another_heart() -> None:
    core = welcome_core(heartbeat_ms=100)
    core.lose()
    assert core.on_time(10**12) == [], "there is nobody to be silent"
    core.greet()
    said(core)
    core.receive(
        0,
        Welcome(
            node=2,
            cluster="c",
            servers=(),
            connection=WELCOME.connection,
            frame_limit=1 << 21,
            heartbeat_ms=0,
        ),
    )
    assert core.on_time(10**13) == []


def test_a_closing_session_is_closed_on_the_next_connection() -> None:
    core = welcome_core()
    known_session(core)
    request = core.close_session(SESSION)
    assert resume(core) == [SessionClose(request=request, session=SESSION)]


def test_an_open_consumer_is_not_asked_for_twice() -> None:
    core = welcome_core()
    session = known_session(core)
    open_consumer(core, session)
    frames = resume(core)
    assert not any(isinstance(frame, ConsumerOpen) for frame in frames)


def test_an_answer_that_comes_behind_the_end_of_its_session_is_nothing() -> None:
    """Another channel than the one that is asked did not know the session any more."""
    core = welcome_core()
    known_session(core)
    request = core.open_destination("queue:other", create=True, session=SESSION)
    events = core.receive(0, SessionGone(session=SESSION, code="local.session_closed", text="expired"))
    assert [event.request for event in events if isinstance(event, Refused)] == [request]
    assert core.receive(0, Failed(request=request, code="local.session_closed", text="expired")) == []
    with pytest.raises(ProtocolError, match="never asked or answered before"):
        core.receive(0, Failed(request=request, code="local.session_closed", text="expired"))
