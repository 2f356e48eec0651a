"""What is said to a primary again until it answers: registrations and their end, lost clients, credit."""

from __future__ import annotations

from dataclasses import replace

from antiphon.bus.effects import EnvelopeConfirmed
from antiphon.bus.messages import (
    SESSION_DETACHED,
    ConsumerCredit,
    Credits,
    DeliverHead,
    Register,
    Registered,
    SessionDetached,
    SessionDetachedHeard,
    Unregister,
    Unregistered,
)
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.requests import Requests
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import ConsumerClosed
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode, ResumeSession, iterate_commands
from tests.unit.client_manager.stage import RUN, Stage, acknowledge, kinds, publish
from tests.unit.client_manager.test_consumers import attached, consumer_close, credit, deliver, piece

# The number of the session's OPEN, which is all that was confirmed.
FLOOR = 100


def head(
    credits_heard: int, number: int = 1, *, stream: int = RUN, term: int = 1, is_void: bool = False
) -> DeliverHead:
    return DeliverHead(term, number, credits_heard, stream, number, is_void)


def registering() -> tuple[Stage, int, Register]:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    [register] = stage.to_primary(Register)
    return stage, session, register


# -- floors ------------------------------------------------------------------------------------------


def test_requests_about_a_session_name_what_was_confirmed() -> None:
    """A primary that has not applied that far would take the session for one that has ended."""
    stage, session, register = registering()
    assert register.floor == FLOOR
    stage.tell(Registered(consumer=register.consumer, term=1))
    stage.lose()
    stage.tell(Unregistered(register.consumer, 1))
    assert stage.to_primary(SessionDetached) == [SessionDetached(session, 1, FLOOR)]


# -- registrations -----------------------------------------------------------------------------------


def test_a_registration_is_repeated_until_it_is_answered() -> None:
    stage, _, register = registering()
    stage.wait(199)
    assert stage.to_primary(Register) == [register]
    stage.wait(401)
    assert stage.to_primary(Register) == 4 * [register]
    stage.tell(Registered(consumer=register.consumer, term=1))
    stage.wait(900)
    assert len(stage.to_primary(Register)) == 4


def test_a_refusal_is_an_answer_too() -> None:
    stage, _, register = registering()
    stage.tell(Registered(register.consumer, 1, "destination.unknown", "there is no such destination"))
    stage.wait(1_000)
    assert len(stage.to_primary(Register)) == 1


def test_a_registration_names_its_term_and_goes_to_a_new_primary_at_once() -> None:
    stage, _, register = registering()
    stage.new_term(2)
    again = stage.to_primary(Register)[-1]
    assert (register.term, again.term) == (1, 2)
    stage.wait(200)
    assert [one.term for one in stage.to_primary(Register)] == [1, 2, 2]
    stage.tell(Registered(consumer=register.consumer, term=1, stream=RUN, number=1))
    stage.wait(200)
    assert len(stage.to_primary(Register)) == 4, "an answer of the former primary is none"


def test_before_a_primary_is_known_nobody_is_registered() -> None:
    stage = Stage(is_led=False)
    stage.connect()
    session = stage.open_session()
    stage.say(1, stage.consumer_open(session))
    stage.confirm()
    assert stage.to_primary(Register) == []
    stage.new_term(2)
    assert [register.term for register in stage.to_primary(Register)] == [2]


def test_a_detachment_is_repeated_until_it_is_answered() -> None:
    stage, session, key = attached()
    stage.say(1, consumer_close(session))
    stage.wait(450)
    assert stage.to_primary(Unregister) == 3 * [Unregister(key, 0, term=1)]
    stage.tell(Unregistered(key, 1))
    stage.wait(1_000)
    assert len(stage.to_primary(Unregister)) == 3


def test_a_detachment_takes_the_place_of_a_registration_that_was_never_answered() -> None:
    stage, session, register = registering()
    stage.say(1, consumer_close(session))
    stage.wait(200)
    assert len(stage.to_primary(Register)) == 1
    assert stage.to_primary(Unregister) == 2 * [Unregister(register.consumer, 0, term=1)]
    stage.tell(Registered(consumer=register.consumer, term=1))
    stage.wait(200)
    assert len(stage.to_primary(Unregister)) == 3, "attached there after all"


def test_a_new_primary_knows_nobody_who_was_to_be_detached() -> None:
    stage, session, _ = attached()
    stage.say(1, consumer_close(session))
    stage.new_term(2)
    stage.wait(1_000)
    assert len(stage.to_primary(Unregister)) == 1
    assert len(stage.to_primary(Register)) == 1


# -- sessions without a client -----------------------------------------------------------------------------


def detached() -> tuple[Stage, int]:
    stage, session, key = attached()
    stage.lose()
    stage.tell(Unregistered(key, 1))
    return stage, session


def test_that_a_client_is_gone_is_repeated_until_the_primary_has_heard_it() -> None:
    stage, session = detached()
    stage.wait(200)
    assert stage.told_absent() == 2 * [(session, 1)]
    stage.tell(SessionDetachedHeard(session, 1, 1))
    stage.wait(1_000)
    assert len(stage.to_primary(SessionDetached)) == 2


def test_every_new_primary_hears_of_it_until_one_says_that_it_is_over() -> None:
    stage, session = detached()
    stage.tell(SessionDetachedHeard(session, 1, 1))
    stage.new_term(2)
    assert stage.told_absent() == 2 * [(session, 1)]
    stage.tell(SessionDetachedHeard(session, 1, 2, is_over=True))
    stage.new_term(3)
    assert len(stage.to_primary(SessionDetached)) == 2


def test_a_new_primary_hears_of_it_though_the_former_one_answers_late() -> None:
    stage, session = detached()
    stage.new_term(2)
    told = len(stage.to_primary(SessionDetached))
    stage.tell(SessionDetachedHeard(session, 1, 1))
    stage.wait(200)
    assert len(stage.to_primary(SessionDetached)) == told + 1
    stage.tell(SessionDetachedHeard(session, 1, 2))
    stage.wait(1_000)
    assert len(stage.to_primary(SessionDetached)) == told + 1


def test_now_and_then_it_is_asked_whether_it_is_over() -> None:
    stage, session = detached()
    stage.tell(SessionDetachedHeard(session, 1, 1))
    stage.wait(299_000)
    assert len(stage.to_primary(SessionDetached)) == 1
    stage.wait(2_000)
    assert len(stage.to_primary(SessionDetached)) > 1
    stage.tell(SessionDetachedHeard(session, 1, 1, is_over=True))
    assert stage.manager._requests.next_deadline_ns() is None


def test_a_client_that_is_back_is_not_told_to_be_gone() -> None:
    stage, session = detached()
    stage.connect(2)
    stage.say(
        2,
        frames.SessionOpen(
            request=80, session=session, generation=2, ack_mode=frames.AckMode.CLIENT, channels=("a",)
        ),
    )
    stage.wait(1_000)
    stage.new_term(2)
    assert len(stage.to_primary(SessionDetached)) == 1


def test_a_channel_not_named_by_who_comes_back_hears_that_the_former_generation_has_no_client() -> None:
    stage, session = detached()
    stage.tell(SessionDetachedHeard(session, 1, 1))
    stage.connect(2)
    stage.open_session(2, session, 2)
    stage.new_term(2)
    assert stage.told_absent() == 2 * [(session, 1)]


def test_so_it_does_if_its_last_command_is_confirmed_behind_the_return() -> None:
    stage, session, key = attached()
    stage.say(1, acknowledge(session, 1, (7, 8)))
    stage.connect(2)
    stage.open_session(2, session, 2)
    assert stage.told_absent() == []
    stage.confirm_all()
    stage.tell(Unregistered(key, 1))
    assert stage.told_absent() == [(session, 1)]


def test_what_a_former_generation_waited_for_does_not_hide_that_the_later_one_is_gone() -> None:
    outbox = Outbox()
    requests = Requests(ClientManagerSettings(), outbox)
    for generation in (2, 1, 3):
        requests.detach("a", SessionDetached(7, generation))
    said = [one.message for one in outbox._effects if isinstance(one, SendToPrimary)]
    assert said == [SessionDetached(7, 2), SessionDetached(7, 3)]


def test_a_crowd_is_repeated_in_parts() -> None:
    stage, session, _ = attached()
    for number in range(2, 902):
        stage.say(1, stage.consumer_open(session, number))
    before = len(stage.to_primary(Register))
    stage.wait(200)
    assert len(stage.to_primary(Register)) == before + 512
    stage.wait(10)
    assert len(stage.to_primary(Register)) == before + 900


# -- credit ------------------------------------------------------------------------------------------------


def test_credit_is_repeated_under_a_new_number_until_it_is_heard_of() -> None:
    stage, session, key = attached()
    stage.say(1, credit(session, 1_500))
    [said] = stage.to_primary(Credits)
    assert said == Credits(1, 1, (ConsumerCredit(key, 1_500, 1_500_000),), RUN, floor=FLOOR)
    stage.tell(head(0))
    stage.wait(200)
    assert stage.to_primary(Credits) == [said, Credits(1, 2, said.items, RUN, floor=FLOOR)]
    stage.tell(head(1))
    stage.wait(200)
    assert stage.to_primary(Credits)[-1].number == 3, "what was heard of is an older word"
    stage.tell(head(3))
    stage.wait(700)
    assert len(stage.to_primary(Credits)) == 3


def test_that_a_later_word_was_heard_says_nothing_about_an_earlier_one() -> None:
    stage, session, one = attached()
    two = stage.open_consumer(session, consumer=2)
    stage.say(1, credit(session, 1_500))
    stage.say(1, credit(session, 1_600, consumer=2))
    assert {item.consumer for item in stage.to_primary(Credits)[-1].items} == {one, two}
    stage.tell(head(2, number=2))
    stage.wait(200)
    assert len(stage.to_primary(Credits)) == 2


def test_credit_is_repeated_as_it_stands_by_then() -> None:
    stage, session, key = attached()
    stage.say(1, credit(session, 1_500))
    stage.say(1, credit(session, 1_800))
    assert [said.items[0].messages for said in stage.to_primary(Credits)] == [1_500, 1_800]
    stage.wait(200)
    again = stage.to_primary(Credits)[-1]
    assert again.items == (ConsumerCredit(key, 1_800, 1_800_000),)


def test_credit_of_one_who_is_not_attached_yet_waits_for_the_answer() -> None:
    stage, session, register = registering()
    stage.say(1, credit(session, 1_500))
    stage.wait(100)
    assert stage.to_primary(Credits) == []
    stage.tell(Registered(consumer=register.consumer, term=1))
    assert stage.to_primary(Credits) == [
        Credits(1, 1, (ConsumerCredit(register.consumer, 1_500, 1_500_000),), RUN, floor=FLOOR)
    ]


def test_credit_of_one_who_left_is_not_repeated() -> None:
    stage, session, _ = attached()
    stage.say(1, credit(session, 1_500), consumer_close(session))
    stage.wait(300)
    assert not [item for said in stage.to_primary(Credits) for item in said.items]


def test_the_primary_is_asked_now_and_then_whether_it_knows_us() -> None:
    stage, session, _ = attached()
    stage.wait(999)
    assert stage.to_primary(Credits) == []
    stage.wait(1)
    assert stage.to_primary(Credits) == [Credits(1, 1, (), RUN, floor=FLOOR)]
    stage.say(1, consumer_close(session))
    stage.wait(5_000)
    assert len(stage.to_primary(Credits)) == 1, "there is nobody to be known"


# -- attached again ------------------------------------------------------------------------------------------


def test_a_new_primary_is_told_when_everybody_is_attached_again() -> None:
    stage, session, one = attached()
    two = stage.open_consumer(session, consumer=2)
    stage.new_term(2)
    stage.tell(Registered(consumer=one, term=2))
    assert stage.to_primary(Credits) == []
    stage.tell(Registered(consumer=two, term=2))
    [said] = stage.to_primary(Credits)
    assert said == Credits(2, 1, (), RUN, is_settled=True, floor=FLOOR)
    stage.wait(200)
    assert stage.to_primary(Credits)[-1] == Credits(2, 2, (), RUN, is_settled=True, floor=FLOOR)
    stage.tell(head(2, term=2))
    stage.wait(200)
    assert len(stage.to_primary(Credits)) == 2


def test_who_had_nobody_says_so_at_once_and_who_was_not_here_says_nothing() -> None:
    stage = Stage()
    assert stage.to_primary(Credits) == [], (
        "an earlier life may have had clients, which are on their way back"
    )
    stage.new_term(2)
    assert stage.to_primary(Credits) == [Credits(2, 1, (), 0, is_settled=True)]
    stage.tell(head(1, stream=0, term=2, is_void=True))
    stage.wait(1_000)
    assert len(stage.to_primary(Credits)) == 1


def test_one_who_leaves_is_not_waited_for() -> None:
    stage, session, _ = attached()
    stage.new_term(2)
    stage.say(1, consumer_close(session))
    assert [said.is_settled for said in stage.to_primary(Credits)] == [True]


def test_who_was_taken_for_dead_attaches_its_consumers_again_with_what_they_hold() -> None:
    stage, _, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a", b"b"])))
    stage.tell(head(0, number=0, is_void=True))
    register = stage.to_primary(Register)[-1]
    assert register.consumer > key, "whatever is still on its way about the former key is about nobody"
    assert (register.resumes, register.number, register.held) == (True, 1, Ranges([(40, 42)]))
    assert register.credit_messages == 998

    # The channel has let go of the session; it hears that it is still here.
    stage.tell(Registered(register.consumer, 1, SESSION_DETACHED, "no client manager has the session"))
    assert kinds(stage.submitted[-1]) == [CommandKind.SESSION_RESUME]
    ((_, claim, _),) = iterate_commands(stage.submitted[-1].payload)
    assert ResumeSession.decode(claim).known == 1, "only if it is still the one that we opened"
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE))
    again = stage.to_primary(Register)[-1]
    # Only a primary that has applied the claim can answer.
    assert again == replace(register, floor=FLOOR + 1) and len(stage.to_primary(Register)) == 3

    stage.tell(Registered(again.consumer, 1, stream=RUN + 1, number=1))
    stage.tell(deliver(again.consumer, 1, piece(50, [b"c"]), number=2, stream=RUN + 1))
    assert [frame.first_delivery for frame in stage.heard_of(frames.Deliver)] == [1, 3]
    assert stage.heard_of(frames.ConsumerGone) == []


def test_who_was_taken_for_dead_for_too_long_tells_outcomes_and_then_that_sessions_are_gone() -> None:
    stage, session, _ = attached()
    stage.tell(head(0, number=0, is_void=True))
    register = stage.to_primary(Register)[-1]
    stage.say(1, publish(session, 1))
    stage.tell(Registered(register.consumer, 1, SESSION_DETACHED, "no client manager has the session"))
    sent, stage.submitted = stage.submitted, []
    assert [kinds(one) for one in sent] == [[CommandKind.PUBLISH], [CommandKind.SESSION_RESUME]]

    # Both are applied within one step.
    unknown = [(Outcome(first, 1, OutcomeCode.SESSION_UNKNOWN),) for first in (200, 201)]
    stage.tell(
        *(EnvelopeConfirmed(one.tag, why[0].first, 1, why) for one, why in zip(sent, unknown, strict=True))
    )

    told = [type(frame) for frame in stage.heard[1][-3:]]
    assert told == [frames.ConsumerGone, frames.Confirm, frames.SessionGone]
    assert stage.manager.session_count == 0


def test_who_was_taken_for_dead_and_whose_session_went_elsewhere_is_told() -> None:
    stage, _, _ = attached()
    stage.tell(head(0, number=0, is_void=True))
    register = stage.to_primary(Register)[-1]
    stage.tell(Registered(register.consumer, 1, SESSION_DETACHED, "no client manager has the session"))
    stage.confirm(Outcome(0, 1, OutcomeCode.STALE))
    [gone] = stage.heard_of(frames.ConsumerGone)
    assert "resumed elsewhere" in gone.text


def test_a_word_about_another_stream_changes_nothing() -> None:
    stage, _, _ = attached()
    stage.tell(head(0, number=0, stream=RUN - 1, is_void=True))
    stage.tell(head(0, number=0, term=3, is_void=True))
    assert len(stage.to_primary(Register)) == 1


def test_a_later_stream_tells_that_the_former_is_void() -> None:
    stage, _, key = attached()
    stage.tell(Registered(consumer=key + 50, term=1, stream=RUN + 1, number=1))
    register = stage.to_primary(Register)[-1]
    assert register.consumer != key and register.resumes


def test_acknowledgements_on_their_way_are_confirmed_before_a_consumer_is_detached_at_a_new_primary() -> None:
    stage, session, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a", b"b"])))
    stage.say(1, acknowledge(session, 1, (40, 41)), consumer_close(session, seen_through=2))
    stage.new_term(2)
    register = stage.to_primary(Register)[-1]
    assert (register.held, register.credit_messages) == (Ranges([(40, 42)]), 0)
    assert stage.to_primary(Unregister) == []
    stage.confirm()
    assert stage.to_primary(Unregister) == [Unregister(key, 0, term=2)]


def test_a_late_answer_to_who_has_left_does_not_end_the_wish_to_leave() -> None:
    stage, session, register = registering()
    stage.say(1, consumer_close(session))
    stage.tell(Registered(register.consumer, 1, ConsumerClosed.code, "the consumer was detached"))
    stage.wait(200)
    assert len(stage.to_primary(Unregister)) == 2


def test_nothing_is_asked_of_a_primary_that_has_answered_everything() -> None:
    stage, session, key = attached()
    stage.say(1, consumer_close(session))
    stage.tell(Unregistered(key, 1))
    # Until then what came before is acknowledged.
    stage.wait(20)
    assert stage.wait(10_000) == []
