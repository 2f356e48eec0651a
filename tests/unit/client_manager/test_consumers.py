"""Consumers: attached, fed, credited, detached, and attached again when the primary changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.bus.effects import Received
from antiphon.bus.messages import (
    ConsumerCredit,
    ConsumerEnded,
    Credits,
    Deliver,
    Piece,
    Register,
    Registered,
    Taker,
    Target,
    Unregister,
    offsets_of,
)
from antiphon.client_manager.effects import (
    ChannelEvent,
    SendFrames,
    SubmitEnvelope,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.errors import ConsumerClosed, InvalidSelector, SessionClosed
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode, Return
from tests.unit.client_manager.stage import CHANNEL, KNOWN, RUN, Stage, acknowledge, command, kinds, publish


def piece(first: int, bodies: list[bytes], redelivered: int = 0) -> Piece:
    batch = Batch.of_bodies(bodies, producer=9, first_number=1, timestamp_ms=1)
    return Piece(first, len(bodies), redelivered, batch.buffers())


def deliver(
    key: int, first_delivery: int, *pieces: Piece, term: int = 1, number: int = 0, stream: int = RUN
) -> Deliver:
    target = Target(1, number, (Taker(key, first_delivery),), stream)
    return Deliver(term, KNOWN, (target,), pieces)


def attached(**settings: Any) -> tuple[Stage, int, int]:
    stage = Stage(**settings)
    stage.connect()
    session = stage.open_session()
    return stage, session, stage.open_consumer(session)


def consumer_close(session: int, seen_through: int = 0, consumer: int = 1) -> frames.ConsumerClose:
    return frames.ConsumerClose(request=90, session=session, consumer=consumer, seen_through=seen_through)


def credit(session: int, messages: int, consumer: int = 1) -> frames.Credit:
    return frames.Credit(session=session, consumer=consumer, messages=messages, bytes=messages * 1000)


# -- attaching -------------------------------------------------------------------------------------


def test_a_consumer_is_registered_once_the_channel_knows_its_session() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session, credit=500))
    assert kinds(stage.submitted[0]) == [CommandKind.SESSION_OPEN]
    assert stage.to_primary(Register) == []

    stage.confirm()
    (register,) = stage.to_primary(Register)
    assert (register.session, register.generation, register.destination) == (session, 1, KNOWN)
    assert (register.credit_messages, register.credit_bytes) == (500, 1 << 20)
    assert register.held == Ranges()
    assert stage.heard_of(frames.Done) == []

    stage.step(ChannelEvent(CHANNEL, Received(1, Registered(register.consumer, 1))))
    assert len(stage.heard_of(frames.Done)) == 1


def test_the_second_consumer_need_not_wait() -> None:
    stage, session, first = attached()
    stage.say(1, stage.consumer_open(session, consumer=2))
    assert stage.submitted == []
    keys = [register.consumer for register in stage.to_primary(Register)]
    assert keys[0] == first and keys[1] != first


def test_a_consumer_the_primary_refuses_has_failed() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    key = stage.to_primary(Register)[0].consumer
    stage.tell(Registered(consumer=key, term=1, code="destination.unknown", text="it was deleted"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, failed.text) == ("destination.unknown", "it was deleted")
    assert stage.manager.consumer_count == 0


def test_a_consumer_of_a_session_that_is_not_ours_has_failed() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, stage.consumer_open(0xABC))
    assert stage.heard_of(frames.Failed)[0].code == SessionClosed.code


def test_a_consumer_of_an_unknown_destination_has_failed() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    (register,) = stage.to_primary(Register)
    stage.tell(Registered(consumer=register.consumer, term=1, code="destination.unknown", text="gone"))
    assert stage.heard_of(frames.Failed)[0].code == "destination.unknown"


def test_a_consumer_in_a_channel_that_does_not_exist_is_a_breach() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, replace(stage.consumer_open(session), channel="b"))
    assert "there is no channel 'b'" in stage.goodbye().text


def test_a_selector_goes_with_every_registration() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, replace(stage.consumer_open(session), selector="n = 1"))
    stage.confirm()
    assert [register.selector for register in stage.to_primary(Register)] == ["n = 1"]
    stage.new_term(2)
    assert {register.selector for register in stage.to_primary(Register)} == {"n = 1"}
    assert stage.to_primary(Register)[-1].term == 2


def test_a_text_that_is_no_selector_is_refused_with_its_place() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, replace(stage.consumer_open(session), selector="n = "))
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == InvalidSelector.code
    assert "column 5" in failed.text
    assert stage.manager.consumer_count == 0


def test_a_topics_consumer_has_the_selector_of_its_subscription() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, replace(stage.consumer_open(session, subscription=8), selector="n = 1"))
    assert "that of its subscription" in stage.goodbye().text


def test_consumers_of_a_session_are_bounded() -> None:
    stage = Stage(consumers_max=2)
    stage.connect()
    session = stage.open_session()
    stage.say(1, *(stage.consumer_open(session, number) for number in (1, 2, 3)))
    assert stage.heard_of(frames.Failed)[0].code == "limit"


def test_a_consumer_number_used_twice_ends_the_connection() -> None:
    stage, session, _ = attached()
    stage.say(1, stage.consumer_open(session, 1))
    assert "consumer 1 a second time" in stage.goodbye().text


# -- delivering ------------------------------------------------------------------------------------


def test_a_delivery_is_passed_on_without_joining_its_batches() -> None:
    stage, session, key = attached()
    pieces = (piece(40, [b"a", b"b"]), piece(50, [b"c"], redelivered=2))
    (sent,) = stage.tell(deliver(key, 1, *pieces))
    assert isinstance(sent, SendFrames)
    for each in pieces:
        assert any(buffer is each.buffers[0] for buffer in sent.buffers)
    (frame,) = stage.heard_of(frames.Deliver)
    assert (frame.session, frame.consumer, frame.channel, frame.destination) == (session, 1, CHANNEL, KNOWN)
    assert (frame.term, frame.first_delivery) == (1, 1)
    assert [(each.first_sequence, each.redelivery_count) for each in frame.pieces] == [(40, 0), (50, 2)]
    assert Batch.decode(frame.pieces[0].batch).bodies() == [b"a", b"b"]


def scattered(first: int, rows: list[int], redelivered: int = 0) -> Piece:
    """Rows that were taken here and there from a batch, whose first row has this number."""
    batch = Batch.of_bodies([b"x"] * (rows[-1] + 1), producer=9, first_number=1, timestamp_ms=1).take(rows)
    offsets = offsets_of([first + row for row in rows])
    return Piece(first + rows[0], len(rows), redelivered, batch.buffers(), offsets)


def test_a_primary_hears_which_rows_a_consumer_has_that_were_taken_here_and_there() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, scattered(40, [1, 2, 5]), piece(50, [b"c"])))
    (frame,) = stage.heard_of(frames.Deliver)
    assert Batch.decode(frame.pieces[0].batch).runs() == [(0, 2, 0), (2, 3, 4)]
    stage.tell(deliver(key, 5, scattered(60, [0, 3])))
    assert stage.heard_of(frames.Deliver)[-1].first_delivery == 5
    stage.say(1, acknowledge(session, 1, (42, 43), (60, 61)))
    stage.confirm()
    stage.new_term(2)
    held = Ranges([(41, 42), (45, 46), (50, 51), (63, 64)])
    assert stage.to_primary(Register)[-1].held == held


def test_only_the_rows_that_came_again_are_void() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, scattered(40, [0, 2, 4])))
    stage.tell(deliver(key, 4, scattered(40, [1, 4], 1)))
    lost = Ranges([(41, 42), (44, 45)])
    assert lost_told(stage) == [frames.ConsumerLost(session=session, consumer=1, lost=lost)]


def test_a_delivery_said_twice_is_passed_on_once() -> None:
    stage, _, key = attached()
    said = deliver(key, 1, piece(40, [b"a", b"b"]), number=2)
    stage.tell(said)
    assert stage.of_kind(SendFrames, stage.tell(said)) == []


def test_a_delivery_to_nobody_is_dropped_and_nobody_is_detached() -> None:
    stage, _, _ = attached()
    effects = stage.tell(deliver(12345, 1, piece(40, [b"a"])))
    assert stage.of_kind(SendFrames, effects) == []
    assert stage.to_primary(Unregister) == [Unregister(12345, 0, term=1)]


def test_a_consumer_ended_by_the_primary_is_told_so() -> None:
    stage, session, key = attached()
    stage.tell(ConsumerEnded(consumer=key, term=1, code="destination.deleted", text="deleted"))
    assert stage.heard[1][-1] == frames.ConsumerGone(
        session=session, consumer=1, code="destination.deleted", text="deleted"
    )
    # Closing it crosses with that word, and is fine.
    stage.say(1, consumer_close(session))
    assert stage.heard_of(frames.Done)[-1].request == 90
    assert stage.to_primary(Unregister) == []


def credits_told(stage: Stage) -> list[ConsumerCredit]:
    return [item for credits in stage.to_primary(Credits) for item in credits.items]


# -- credit ----------------------------------------------------------------------------------------


def test_credit_is_passed_on_once_a_step() -> None:
    stage, session, key = attached()
    stage.say(1, credit(session, 1100), credit(session, 1300), credit(session, 1200))
    assert credits_told(stage) == [ConsumerCredit(key, 1300, 1300 * 1000)]


def test_credit_of_nobody_is_dropped() -> None:
    stage, session, _ = attached()
    assert stage.say(1, credit(session, 5, consumer=9), credit(0xABC, 5)) == []


def test_a_peer_that_does_not_read_gets_no_credit_until_it_does() -> None:
    stage, session, key = attached()
    other = stage.open_consumer(session, consumer=2)
    stage.step(WriteBlocked(1))
    stage.say(1, credit(session, 2000), credit(session, 3000), credit(session, 2000, consumer=2))
    assert credits_told(stage) == []
    stage.step(WriteUnblocked(1))
    assert [(update.consumer, update.messages) for update in credits_told(stage)] == [
        (key, 3000),
        (other, 2000),
    ]


def test_one_who_does_not_read_takes_no_credit_from_others() -> None:
    stage, _, _ = attached()
    stage.connect(2)
    session = stage.open_session(2)
    key = stage.open_consumer(session, conn=2)
    stage.step(WriteBlocked(1))
    stage.say(2, credit(session, 2000))
    assert [update.consumer for update in credits_told(stage)] == [key]


def test_credit_before_the_session_is_known_goes_with_the_registration() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session, credit=10), credit(session, 5000))
    stage.confirm()
    assert stage.to_primary(Register)[0].credit_messages == 5000
    assert credits_told(stage) == []


# -- detaching -------------------------------------------------------------------------------------


def test_a_consumer_is_detached_when_its_acknowledgements_are_confirmed() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, acknowledge(session, 1, (40, 44)), consumer_close(session, seen_through=6))
    assert stage.to_primary(Unregister) == []

    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 6, term=1)]
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.Confirm, frames.Done]
    assert stage.manager.consumer_count == 0


def test_later_commands_do_not_hold_up_a_closing() -> None:
    stage, session, key = attached(submitted_bytes_max=1)
    stage.say(1, acknowledge(session, 1, (40, 44)))
    stage.say(1, consumer_close(session), publish(session, 2))
    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 0, term=1)]


def test_nothing_is_delivered_to_a_consumer_that_is_closing() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"])))
    stage.say(1, publish(session, 1), consumer_close(session, seen_through=1))
    assert stage.of_kind(SendFrames, stage.tell(deliver(key, 2, piece(41, [b"b"])))) == []
    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 1, term=1)]


def test_nobody_has_seen_more_than_was_sent() -> None:
    stage, session, key = attached()
    stage.say(1, consumer_close(session, seen_through=1 << 60))
    assert stage.to_primary(Unregister) == [Unregister(key, 0, term=1)]


def test_a_lost_client_may_have_seen_all_it_was_sent() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, acknowledge(session, 1, (40, 44)))
    stage.lose()
    assert stage.to_primary(Unregister) == []
    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 10, is_lost=True, term=1)]


def test_a_consumer_closed_before_it_is_known_was_never_there() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session), consumer_close(session))
    stage.confirm()
    assert stage.to_primary(Register) == []
    assert stage.to_primary(Unregister) == []
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.Failed, frames.Done]
    assert stage.heard_of(frames.Failed)[0].code == ConsumerClosed.code


def test_a_consumer_closed_while_it_is_registered_is_unregistered() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    key = stage.to_primary(Register)[0].consumer
    stage.say(1, consumer_close(session))
    assert stage.to_primary(Unregister) == [Unregister(key, 0, term=1)]
    assert stage.of_kind(SendFrames, stage.tell(Registered(consumer=key, term=1))) == []
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.Failed, frames.Done]


def test_a_client_lost_while_its_session_is_opened_leaves_nothing_behind() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.lose()
    stage.confirm_all()
    assert stage.to_primary(Register) == []
    assert (stage.manager.session_count, stage.manager.consumer_count) == (0, 0)


def test_closing_a_session_detaches_its_consumers_before_its_end_is_ordered() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 3)))
    stage.say(1, acknowledge(session, 1, (40, 41)), frames.SessionClose(request=91, session=session))
    effects = stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 3, term=1)]
    assert kinds(stage.of_kind(SubmitEnvelope, effects)[0]) == [CommandKind.SESSION_CLOSE]
    stage.confirm()
    assert stage.heard[1][-1] == frames.Done(request=91)


# -- a new primary ---------------------------------------------------------------------------------


def test_a_new_primary_hears_what_consumers_hold() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10), piece(60, [b"a"] * 10)))
    back = Return(destination=KNOWN, subscription=0, counted=False, ranges=Ranges([(65, 70)]))
    stage.say(1, acknowledge(session, 1, (40, 44)), command(session, 2, back))
    stage.confirm(Outcome(0, 1, OutcomeCode.ACK_LOST, 41))
    stage.say(1, acknowledge(session, 3, (44, 46)))  # not confirmed: it still holds them

    stage.new_term(2)

    register = stage.to_primary(Register)[-1]
    assert register.consumer == key
    assert register.held == Ranges([(44, 50), (60, 65)])


def test_delivery_numbers_go_on_for_the_client_when_the_primary_changes() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, credit(session, 1010))

    stage.new_term(2)
    register = stage.to_primary(Register)[-1]
    assert register.credit_messages == 1000
    assert register.credit_bytes == 1 << 20

    stage.tell(Registered(consumer=key, term=2))
    stage.tell(deliver(key, 1, piece(80, [b"b"] * 5), term=2))
    assert [frame.first_delivery for frame in stage.heard_of(frames.Deliver)] == [1, 11]

    stage.say(1, credit(session, 2000))
    assert credits_told(stage)[-1].messages == 1990

    stage.say(1, consumer_close(session, seen_through=12))
    assert stage.to_primary(Unregister) == [Unregister(key, 2, term=2)]


def test_the_client_hears_one_answer_though_the_primary_changes_meanwhile() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    key = stage.to_primary(Register)[0].consumer
    stage.new_term(2)
    assert stage.tell(Registered(consumer=key, term=1)) == []
    stage.tell(Registered(consumer=key, term=2))
    stage.tell(Registered(consumer=key, term=2))
    assert len(stage.heard_of(frames.Done)) == 1


def test_a_former_primary_delivers_to_nobody() -> None:
    stage, _, key = attached()
    stage.new_term(2)
    assert stage.tell(deliver(key, 1, piece(40, [b"a"]), term=1)) == []
    assert stage.tell(ConsumerEnded(consumer=key, term=1, code="x", text="")) == []


def test_a_term_told_again_registers_nobody() -> None:
    stage, _, _ = attached()
    assert len(stage.new_term(2)) == 1
    assert stage.new_term(2) == []
    assert stage.new_term(1) == []


def test_a_consumer_lost_in_a_failover_is_told_so() -> None:
    stage, session, key = attached()
    stage.new_term(2)
    stage.tell(Registered(consumer=key, term=2, code="session.closed", text="gone"))
    assert stage.heard[1][-1] == frames.ConsumerGone(
        session=session, consumer=1, code="session.closed", text="gone"
    )


def test_a_closing_consumer_keeps_what_it_holds_until_its_acknowledgements_are_confirmed() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, acknowledge(session, 1, (40, 50)), consumer_close(session, seen_through=10))
    stage.new_term(2)
    register = stage.to_primary(Register)[-1]
    assert (register.held, register.credit_messages) == (Ranges([(40, 50)]), 0)
    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 0, term=2)]


def test_a_primary_that_was_told_of_messages_whose_acknowledgement_was_refused_hears_that_they_are_free() -> (
    None
):
    """The acknowledgement was refused before this primary led: it does not know who let go of what."""
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, acknowledge(session, 1, (40, 44)))
    stage.new_term(2)
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 50)])
    stage.tell(Registered(consumer=key, term=2, stream=RUN))

    stage.confirm(Outcome(0, 1, OutcomeCode.ACK_LOST, 40))

    again = stage.to_primary(Register)[-1]
    assert again.consumer != key and again.resumes and again.number == 1
    assert again.held == Ranges([(44, 50)])


def test_a_registration_that_turns_out_wrong_is_followed_by_another_when_it_is_answered() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.say(1, acknowledge(session, 1, (40, 44)))
    stage.new_term(2)
    stage.confirm(Outcome(0, 1, OutcomeCode.ACK_LOST, 40))
    assert [one.consumer for one in stage.to_primary(Register)] == [key, key]
    stage.tell(Registered(consumer=key, term=2, stream=RUN))
    assert stage.to_primary(Register)[-1].held == Ranges([(44, 50)])
    assert stage.to_primary(Register)[-1].consumer != key


@pytest.mark.parametrize("outcomes", [(), (Outcome(0, 1, OutcomeCode.ACK_LOST, 40),)])
def test_no_primary_hears_again_that_was_told_nothing_wrong(outcomes: tuple[Outcome, ...]) -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    if not outcomes:
        stage.new_term(2)
        stage.tell(Registered(consumer=key, term=2, stream=RUN))
    registrations = len(stage.to_primary(Register))
    stage.say(1, acknowledge(session, 1, (40, 44)))
    stage.confirm(*outcomes)
    assert len(stage.to_primary(Register)) == registrations


# -- what others have got meanwhile ----------------------------------------------------------------


def lost_told(stage: Stage) -> list[frames.ConsumerLost]:
    return stage.heard_of(frames.ConsumerLost)


def test_a_connected_client_hears_at_once_what_a_new_primary_gave_to_others() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.new_term(2)
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 50)])

    stage.tell(
        Registered(consumer=key, term=2, lost=Ranges([(40, 45)])),
        deliver(key, 1, piece(40, [b"a"], redelivered=1), term=2),
    )

    told = frames.ConsumerLost(session=session, consumer=1, lost=Ranges([(40, 45)]))
    assert stage.heard[1][-2] == told, "before what comes again"
    assert lost_told(stage) == [told]
    stage.new_term(3)
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 41), (45, 50)])


def test_nobody_is_told_who_lost_nothing() -> None:
    stage, _, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 10)))
    stage.new_term(2)
    assert stage.of_kind(SendFrames, stage.tell(Registered(consumer=key, term=2))) == []


def test_an_answer_that_was_said_again_takes_nothing_that_was_delivered_meanwhile() -> None:
    stage, _, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"])))
    stage.new_term(2)
    answer = Registered(consumer=key, term=2, lost=Ranges([(40, 41)]), stream=RUN)
    stage.tell(replace(answer, number=1), deliver(key, 1, piece(40, [b"a"], 1), term=2, number=2))
    assert len(lost_told(stage)) == 1

    # Beside the stream, and late: when it was said, the message was still another's.
    stage.step(ChannelEvent(CHANNEL, answer))

    assert len(lost_told(stage)) == 1
    stage.new_term(3)
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 41)])


def test_a_number_that_comes_to_a_consumer_that_has_it_replaces_what_it_has() -> None:
    """The first answer in the stream is late, and the one beside it knew what was given back to us."""
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"])))
    stage.new_term(2)
    stage.step(ChannelEvent(CHANNEL, Registered(consumer=key, term=2, stream=RUN)))
    assert lost_told(stage) == []

    stage.tell(
        Registered(consumer=key, term=2, lost=Ranges([(40, 41)]), stream=RUN, number=1),
        deliver(key, 1, piece(40, [b"a"], 1), term=2, number=2),
    )

    told = frames.ConsumerLost(session=session, consumer=1, lost=Ranges([(40, 41)]))
    assert lost_told(stage) == [told]
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.ConsumerLost, frames.Deliver]


def test_what_comes_again_to_one_who_gives_back_makes_void_what_it_had() -> None:
    """A return may take from it a later copy than the one that it was about."""
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"])))
    back = Return(destination=KNOWN, subscription=0, counted=True, ranges=Ranges([(40, 41)]))
    stage.say(1, command(session, 1, back))
    stage.tell(deliver(key, 2, piece(40, [b"a"], 1), piece(50, [b"b"])))
    assert lost_told(stage) == [frames.ConsumerLost(session=session, consumer=1, lost=Ranges([(40, 41)]))]


def test_what_came_again_before_its_acknowledgement_was_refused_is_held() -> None:
    """A consuming hold had locked it, and ended: the message came again sooner than the outcome."""
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 4)))
    stage.say(1, acknowledge(session, 1, (40, 43)))
    stage.tell(deliver(key, 5, piece(40, [b"a"] * 2, 1)))
    stage.confirm(Outcome(0, 1, OutcomeCode.ACK_LOST, 41))
    stage.new_term(2)
    assert stage.to_primary(Register)[-1].held == Ranges([(41, 42), (43, 44)])
    stage.tell(Registered(consumer=key, term=2, stream=RUN))
    # The next outcome is about the copy that came again.
    stage.say(1, acknowledge(session, 2, (41, 42)))
    stage.confirm(Outcome(0, 1, OutcomeCode.ACK_LOST, 41))
    assert stage.to_primary(Register)[-1].held == Ranges([(43, 44)])


def test_what_came_again_before_its_acknowledgement_counted_is_held_no_more() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a"] * 4)))
    stage.say(1, acknowledge(session, 1, (40, 43)))
    stage.tell(deliver(key, 5, piece(40, [b"a"] * 2, 1)))
    stage.confirm()
    stage.new_term(2)
    assert stage.to_primary(Register)[-1].held == Ranges([(43, 44)])


def test_a_great_many_losses_are_told_in_frames_that_fit() -> None:
    stage, _, key = attached()
    lost = Ranges((number, number + 1) for number in range(0, 140_000, 2))
    stage.new_term(2)
    stage.tell(Registered(consumer=key, term=2, lost=lost))
    told = lost_told(stage)
    assert [len(frame.lost) for frame in told] == [65_536, 4_464]
    assert sum(frame.lost.count for frame in told) == lost.count


def test_a_delivery_of_a_family_is_passed_on_with_the_names_of_topics() -> None:
    stage, _, key = attached()
    stage.tell(replace(deliver(key, 1, piece(40, [b"a"]), piece(50, [b"b"])), topics=("topic:x", "topic:y")))
    (frame,) = stage.heard_of(frames.Deliver)
    assert frame.topics == ("topic:x", "topic:y")
    stage.tell(deliver(key, 3, piece(60, [b"c"])))
    assert stage.heard_of(frames.Deliver)[-1].topics == ()
