"""Clients that come back: their sessions, their consumers, and whoever spoke for them meanwhile."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import ServiceChanged, SpaceChanged
from antiphon.bus.messages import Register, Registered, Unregister
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.flow import orders_nothing
from antiphon.errors import SessionClosed
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    CommandKind,
    Outcome,
    OutcomeCode,
    ResumeSession,
    iterate_commands,
    renew_header,
)
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, acknowledge, headers, kinds, publish

OPEN, RESUME, PUBLISH, ACK = (
    CommandKind.SESSION_OPEN,
    CommandKind.SESSION_RESUME,
    CommandKind.PUBLISH,
    CommandKind.ACK,
)
SESSION = 0xABC


def resume(
    request: int = 7,
    generation: int = 2,
    channels: tuple[str, ...] = (CHANNEL,),
    session: int = SESSION,
    known: tuple[int, ...] = (),
) -> frames.SessionOpen:
    return frames.SessionOpen(
        request=request,
        session=session,
        generation=generation,
        ack_mode=frames.AckMode.AUTO,
        channels=channels,
        known=known,
    )


def consumer_resume(request: int = 8, held: Ranges | None = None, **more: int) -> frames.ConsumerResume:
    fields = {
        "session": SESSION,
        "consumer": 1,
        "destination": KNOWN,
        "subscription": 0,
        "credit_messages": 60,
        "credit_bytes": 6_000,
        "delivered_messages": 50,
        "delivered_bytes": 5_000,
    } | more
    return frames.ConsumerResume(request=request, channel=CHANNEL, held=held or Ranges(), **fields)


def knowing(envelope: SubmitEnvelope) -> int:
    """What the resumption at the head of an envelope says."""
    header, payload, _ = next(iterate_commands(envelope.payload))
    assert header.kind == RESUME
    return ResumeSession.decode(payload).known


def resumed() -> Stage:
    """A client that has come back, to a node that knows nothing of it."""
    stage = Stage()
    stage.connect()
    stage.say(1, resume())
    stage.confirm()
    return stage


# -- sessions --------------------------------------------------------------------------


def test_a_session_is_resumed_at_once_and_told_when_the_channel_has() -> None:
    """At once, though nothing is to be sent: one that nobody hears of expires."""
    stage = Stage()
    stage.connect()
    stage.say(1, resume())
    (envelope,) = stage.submitted
    assert kinds(envelope) == [RESUME]
    assert headers(envelope)[0].generation == 2
    assert stage.heard_of(frames.SessionOpened) == []
    stage.confirm()
    (opened,) = stage.heard_of(frames.SessionOpened)
    assert (opened.request, opened.session, opened.generation) == (7, SESSION, 2)


def test_a_session_is_resumed_when_one_of_its_channels_has() -> None:
    """The other one may be without a primary for long: what is sent there waits for it."""
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(channels=(CHANNEL, "b")))
    assert stage.heard_of(frames.SessionOpened) == []
    stage.confirm()
    assert len(stage.heard_of(frames.SessionOpened)) == 1
    stage.say(1, publish(SESSION, 3, generation=2))
    assert kinds(stage.submitted[-1]) == [PUBLISH]
    stage.say(1, frames.Command(channel="b", command=publish(SESSION, 5, generation=2).command))
    waiting = [kind for one in stage.submitted for kind in kinds(one) if one.channel == "b"]
    assert waiting == [RESUME, PUBLISH]


def test_a_session_that_its_second_channel_does_not_know_is_told_to_be_gone() -> None:
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(channels=(CHANNEL, "b")))
    stage.confirm()
    assert stage.heard_of(frames.SessionGone) == []
    stage.confirm(Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN))
    (gone,) = stage.heard_of(frames.SessionGone)
    assert (gone.session, gone.code) == (SESSION, SessionClosed.code)
    assert "expired" in gone.text
    assert stage.manager.session_count == 0
    # What is said for it meanwhile is not a breach.
    stage.say(1, publish(SESSION, 3, generation=2))
    assert stage.manager.connection_count == 1


@pytest.mark.parametrize("confirmed", [0, 1])
def test_a_session_that_is_closed_before_a_channel_does_not_know_it_is_closed(confirmed: int) -> None:
    """Whether or not its client was told by then that it is resumed."""
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(channels=(CHANNEL, "b")))
    for _ in range(confirmed):
        stage.confirm()
    stage.say(1, frames.SessionClose(request=9, session=SESSION))
    while stage.submitted:
        stage.confirm(Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN))
    assert [done.request for done in stage.heard_of(frames.Done)] == [9]
    assert stage.heard_of(frames.SessionGone) == []
    assert stage.manager.session_count == 0


def test_generations_that_are_not_one_for_each_channel_are_a_breach() -> None:
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(channels=(CHANNEL, "b"), known=(1,)))
    assert "1 generations for 2 channels" in stage.goodbye().text


def test_a_session_that_one_channel_does_not_know_is_refused_and_gone() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume())
    stage.confirm(Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (7, SessionClosed.code)
    assert "expired" in failed.text
    assert stage.manager.session_count == 0
    # What it says for it before it has heard that is not a breach.
    stage.say(1, publish(SESSION, 3, generation=2))
    assert stage.manager.connection_count == 1
    assert stage.submitted == []


def test_a_session_that_was_resumed_elsewhere_first_is_refused() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume())
    stage.confirm(Outcome(0, 1, OutcomeCode.STALE))
    (failed,) = stage.heard_of(frames.Failed)
    assert "elsewhere" in failed.text


def test_the_channels_hear_under_which_generation_they_are_said_to_know_it() -> None:
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(generation=5, channels=(CHANNEL, "b"), known=(3, 2)))
    assert {one.channel: knowing(one) for one in stage.submitted} == {CHANNEL: 3, "b": 2}


def test_a_channel_that_is_not_named_is_not_told_that_it_knew_the_session() -> None:
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    stage.say(1, resume(generation=5, known=(3,)))
    stage.confirm()
    stage.say(1, frames.Command(channel="b", command=publish(SESSION, 1, generation=5).command))
    assert knowing(stage.submitted[-1]) == 0


@pytest.mark.parametrize("known", [2, 3])
def test_a_generation_that_has_not_been_is_a_breach(known: int) -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume(generation=2, known=(known,)))
    assert f"generation {known} does not come before 2" in stage.goodbye().text


def test_a_channel_that_is_not_there_breaks_the_protocol() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume(channels=("nowhere",)))
    assert "nowhere" in stage.goodbye().text


def test_a_new_session_is_known_in_no_channel() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume(session=0, generation=0))
    assert "cannot be resumed" in stage.goodbye().text


def test_a_client_that_is_lost_while_it_comes_back_leaves_nothing_behind() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume())
    stage.lose()
    stage.confirm()
    assert stage.manager.session_count == 0
    # The channel has resumed it: without this nobody would ever let it expire.
    assert stage.told_absent() == [(SESSION, 2)]


@pytest.mark.parametrize("is_resumed", [True, False])
def test_a_session_that_opens_late_is_away_unless_its_next_generation_is_resumed(is_resumed: bool) -> None:
    stage = Stage()
    stage.connect(1)
    session = stage.open_session(1)
    stage.say(1, publish(session, 1))
    stage.lose(1)
    # The client was elsewhere meanwhile, where the session ended, and comes back.
    stage.connect(2)
    stage.say(2, resume(session=session, generation=3, known=(2,)))
    stage.confirm()
    assert not stage.told_absent()

    unknown = Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN, 0, "")
    stage.confirm(*() if is_resumed else (unknown,))

    # Of the session that was opened too late nobody else knows: without this it would never expire.
    assert stage.told_absent() == ([] if is_resumed else [(session, 1)])


@pytest.mark.parametrize("is_resumed", [True, False])
def test_the_absence_of_a_client_is_told_again_if_its_next_generation_is_refused(is_resumed: bool) -> None:
    stage = Stage()
    stage.connect(1)
    session = stage.open_session(1)
    stage.say(1, publish(session, 1))
    stage.confirm()
    stage.lose(1)
    assert stage.told_absent() == [(session, 1)]
    # The primary has not answered. The client was elsewhere meanwhile, where the session ended.
    stage.connect(2)
    stage.say(2, resume(session=session, generation=3, known=(2,)))
    stage.effects.clear()

    unknown = Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN, 0, "")
    stage.confirm(*() if is_resumed else (unknown,))

    assert stage.told_absent() == ([] if is_resumed else [(session, 1)])


def test_a_client_that_may_not_resume_a_session_is_still_away() -> None:
    stage = Stage()
    stage.connect(1)
    session = stage.open_session(1)
    stage.say(1, publish(session, 1))
    stage.confirm()
    stage.lose(1)
    stage.connect(2)
    stage.say(2, resume(session=session, generation=2, channels=()))
    stage.connect(3)
    stage.say(3, resume(session=session, generation=2))
    stage.effects.clear()

    stage.new_term(2)
    stage.wait(1_000)

    assert (session, 1) in stage.told_absent()


def test_the_connection_that_had_a_session_is_told_and_keeps_its_others() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    session, other = stage.open_session(1), stage.open_session(1)
    stage.say(2, resume(session=session, channels=()))
    (gone,) = stage.heard_of(frames.SessionGone, 1)
    assert (gone.session, gone.code) == (session, "session.stale")
    stage.say(1, publish(other, 1))
    assert kinds(stage.submitted[0]) == [OPEN, PUBLISH]


def test_a_session_that_is_resumed_on_its_own_connection_is_not_gone() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, resume(session=session, channels=()))
    assert stage.heard_of(frames.SessionGone) == []
    stage.say(1, publish(session, 12, generation=2))
    assert headers(stage.submitted[0])[-1].generation == 2


# -- the first word in a channel ---------------------------------------------------------


def destination_open(session: int, request: int = 9) -> frames.DestinationOpen:
    return frames.DestinationOpen(request=request, name="queue:known", create=True, session=session)


def test_a_destination_is_told_to_a_session_when_the_channel_knows_the_session() -> None:
    """So a client whose commands were lost knows that the channel cannot have forgotten its session."""
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, destination_open(session))
    assert stage.heard_of(frames.DestinationOpened) == []
    assert kinds(stage.submitted[0]) == [OPEN]
    stage.confirm()
    (opened,) = stage.heard_of(frames.DestinationOpened)
    assert (opened.request, opened.channel) == (9, CHANNEL)
    stage.say(1, publish(session, 1))
    assert kinds(stage.submitted[0]) == [PUBLISH]


def test_a_channel_that_a_resumed_session_never_spoke_to_may_not_know_it_yet() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume(channels=()))
    stage.say(1, destination_open(SESSION))
    (envelope,) = stage.submitted
    assert kinds(envelope) == [OPEN]
    assert headers(envelope)[0].generation == 2
    # The word of a former life was heard after all.
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE))
    assert len(stage.heard_of(frames.DestinationOpened)) == 1


def test_a_destination_that_has_to_be_made_is_told_when_both_are_there() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, frames.DestinationOpen(request=9, name="queue:new", create=True, session=session))
    stage.confirm()
    assert stage.heard_of(frames.DestinationOpened) == []
    stage.confirm()
    assert len(stage.heard_of(frames.DestinationOpened)) == 1


def test_a_destination_is_not_told_to_a_session_that_is_not_there() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, destination_open(0x77))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (9, SessionClosed.code)


def test_a_destination_is_refused_to_a_session_that_the_channel_refused() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, resume(channels=()))
    stage.say(1, destination_open(SESSION))
    stage.confirm(Outcome(0, 1, OutcomeCode.STALE))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (9, SessionClosed.code)


@pytest.mark.parametrize("code", [OutcomeCode.SESSION_UNKNOWN, OutcomeCode.STALE])
def test_a_session_that_a_channel_refuses_is_gone_however_the_channel_came_to_be_asked(
    code: OutcomeCode,
) -> None:
    """Else all requests for this channel would fail for ever, in a session that the client takes for open."""
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    session = stage.open_session()
    stage.say(1, frames.Command(channel="b", command=publish(session, 1).command))
    stage.confirm()
    stage.say(1, destination_open(session))
    while kinds(stage.submitted[0]) != [OPEN]:
        stage.confirm()
    # The envelope was ordered once more, when the session that it had opened was over.
    stage.confirm(Outcome(0, 1, code))
    assert [frame.request for frame in stage.heard_of(frames.Failed)] == [9]
    (gone,) = stage.heard_of(frames.SessionGone)
    assert (gone.session, gone.code) == (session, SessionClosed.code)
    assert isinstance(stage.heard[1][-1], frames.SessionGone), "the request has its own answer before"
    assert stage.told_absent() == [(session, 1)], "channel b may let it expire"
    assert stage.manager.session_count == 0
    stage.say(1, publish(session, 1))
    assert stage.submitted == [] and stage.manager.connection_count == 1


@pytest.mark.parametrize("code", [OutcomeCode.SESSION_UNKNOWN, OutcomeCode.STALE])
def test_a_session_that_ended_while_it_only_published_is_gone(code: OutcomeCode) -> None:
    """The client manager was taken for dead; without consumers the session was not claimed."""
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.confirm()
    stage.say(1, publish(session, 2), publish(session, 3))
    stage.confirm(Outcome(0, 2, code))
    told = [item[:3] for confirm in stage.heard_of(frames.Confirm) for item in confirm.items]
    assert told == [(1, 1, OutcomeCode.APPLIED), (2, 1, code), (3, 1, code)]
    (gone,) = stage.heard_of(frames.SessionGone)
    assert (gone.session, stage.heard[1][-1]) == (session, gone)
    assert stage.manager.session_count == 0
    assert stage.told_absent() == [], "the channel does not know the session"


def test_commands_have_their_outcomes_before_their_session_is_gone() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.say(1, publish(session, 2))
    stage.confirm(Outcome(0, 2, OutcomeCode.SESSION_UNKNOWN))
    stage.say(1, stage.consumer_open(session))
    assert [failed.code for failed in stage.heard_of(frames.Failed)] == [SessionClosed.code]
    assert stage.heard_of(frames.SessionGone) == []
    stage.confirm(Outcome(0, 1, OutcomeCode.SESSION_UNKNOWN))
    told = [item[:3] for confirm in stage.heard_of(frames.Confirm) for item in confirm.items]
    assert told == [(number, 1, OutcomeCode.SESSION_UNKNOWN) for number in (1, 2)]
    assert isinstance(stage.heard[1][-1], frames.SessionGone)


# -- consumers -----------------------------------------------------------------------------


def test_a_consumer_comes_back_with_what_it_holds_and_counts_on() -> None:
    stage = resumed()
    stage.say(1, consumer_resume(held=Ranges([(40, 45)])))
    (register,) = stage.to_primary(Register)
    assert (register.session, register.generation, register.number) == (SESSION, 2, 1)
    assert register.resumes
    assert register.held == Ranges([(40, 45)])
    # The primary counts from this registration.
    assert (register.credit_messages, register.credit_bytes) == (10, 1_000)


def test_a_consumer_hears_what_it_has_lost() -> None:
    stage = resumed()
    stage.say(1, consumer_resume(held=Ranges([(40, 45)])))
    key = stage.to_primary(Register)[0].consumer
    stage.tell(Registered(consumer=key, term=1, lost=Ranges([(41, 42)])))
    assert stage.heard[1][-1] == frames.ConsumerResumed(request=8, lost=Ranges([(41, 42)]))
    # A new primary is told only what is still its own, and that there was no break since.
    stage.new_term(2)
    register = stage.to_primary(Register)[-1]
    assert (register.held, register.resumes) == (Ranges([(40, 41), (42, 45)]), False)


def test_credit_that_was_overdrawn_is_none() -> None:
    """A message that began within the byte credit may have ended beyond it."""
    stage = resumed()
    stage.say(1, consumer_resume(delivered_messages=60, delivered_bytes=7_000))
    (register,) = stage.to_primary(Register)
    assert (register.credit_messages, register.credit_bytes) == (0, 0)


def test_resent_acknowledgements_come_before_the_consumer() -> None:
    stage = resumed()
    stage.say(
        1,
        frames.Command(channel=CHANNEL, command=acknowledge_bytes(SESSION, 9, (40, 42))),
        consumer_resume(held=Ranges([(40, 45)])),
    )
    assert kinds(stage.submitted[0]) == [ACK]
    assert not stage.to_primary(Register)
    stage.confirm()
    assert stage.to_primary(Register)[0].held == Ranges([(42, 45)])


def acknowledge_bytes(session: int, number: int, *pairs: tuple[int, int]) -> bytes:
    return renew_header(acknowledge(session, number, *pairs).command, 2, 0)


def test_only_a_client_that_was_lost_is_waited_for() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    key = stage.open_consumer(session)
    stage.say(1, frames.Goodbye(code="", text=""))
    assert stage.to_primary(Unregister) == [Unregister(key, 0, is_lost=False, term=1)]


# -- flow ----------------------------------------------------------------------------------


def blocked_frames(stage: Stage, conn: int) -> list[bool]:
    return [frame.blocked for frame in stage.heard_of(frames.FlowState, conn)]


def test_clients_of_a_channel_hear_when_it_is_blocked_and_newcomers_that_it_is() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.say(1, frames.DestinationOpen(request=9, name="queue:known", create=True))
    stage.tell(SpaceChanged(True, text="full"))
    stage.tell(SpaceChanged(True, text="full"))
    assert blocked_frames(stage, 1) == [True], "it is news only once"
    assert blocked_frames(stage, 2) == [], "it has nothing to do with the channel"
    stage.say(2, frames.DestinationOpen(request=9, name="queue:known", create=True))
    assert [type(frame) for frame in stage.heard[2][-2:]] == [frames.FlowState, frames.DestinationOpened]
    stage.tell(SpaceChanged(False))
    assert blocked_frames(stage, 1) == [True, False]
    assert blocked_frames(stage, 2) == [True, False]


def test_clients_hear_that_nobody_serves_a_channel_and_why_they_have_to_wait() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.DestinationOpen(request=9, name="queue:known", create=True))
    stage.tell(SpaceChanged(True, text="full"))
    stage.tell(ServiceChanged(False))
    stage.tell(ServiceChanged(True))
    stage.tell(SpaceChanged(False))
    told = [(frame.blocked, frame.reason) for frame in stage.heard_of(frames.FlowState, 1)]
    unserved = orders_nothing(CHANNEL)
    assert told == [(True, "full"), (True, unserved), (True, "full"), (False, "")]


def test_a_client_that_comes_back_hears_it_before_its_session_goes_on() -> None:
    stage = Stage()
    stage.tell(SpaceChanged(True, text="full"))
    stage.connect()
    stage.say(1, resume())
    stage.confirm()
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.FlowState, frames.SessionOpened]


def test_what_was_sent_before_goes_on_until_it_is_tight_and_acknowledgements_even_then() -> None:
    stage = Stage()
    stage.connect()
    publisher, consumer = stage.open_session(), stage.open_session()
    stage.tell(SpaceChanged(True, text="nearly full"))
    stage.say(1, publish(publisher, 1))
    assert kinds(stage.submitted[0]) == [OPEN, PUBLISH]
    stage.confirm()

    stage.tell(SpaceChanged(True, is_tight=True, text="full"))
    stage.say(1, publish(publisher, 2), acknowledge(publisher, 3, (7, 8)))
    assert stage.submitted == [], "what a session sends stays in order"
    stage.say(1, acknowledge(consumer, 1, (8, 9)), publish(consumer, 2))
    assert kinds(stage.submitted[0]) == [OPEN, ACK]
    stage.confirm()

    stage.tell(SpaceChanged(False))
    assert kinds(stage.submitted[0]) == [PUBLISH, ACK, PUBLISH]
    stage.confirm()
    assert len(stage.of_kind(SubmitEnvelope)) == 3
