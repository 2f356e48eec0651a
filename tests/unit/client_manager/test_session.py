"""Sessions: opened, resumed, closed, and what remains of them when the client is gone."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import SessionDetached, Unregister
from antiphon.client_manager.awaited import LaneClosing, LaneDetached, SessionOpening
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.session import LaneState, SessionLane
from antiphon.errors import AccessDenied, SessionClosed
from antiphon.wire import frames
from antiphon.wire.commands import (
    CommandKind,
    ConfirmItem,
    OpenSession,
    Outcome,
    OutcomeCode,
    iterate_commands,
)
from tests.unit.client_manager.stage import CHANNEL, Stage, headers, kinds, publish

OPEN, RESUME, CLOSE, PUBLISH = (
    CommandKind.SESSION_OPEN,
    CommandKind.SESSION_RESUME,
    CommandKind.SESSION_CLOSE,
    CommandKind.PUBLISH,
)


def session_open(request: int, session: int = 0, generation: int = 0) -> frames.SessionOpen:
    return frames.SessionOpen(
        request=request, session=session, generation=generation, ack_mode=frames.AckMode.AUTO
    )


def test_a_new_session_is_opened_without_asking_the_channel() -> None:
    stage = Stage(window_bytes=12345)
    stage.connect()
    effects = stage.say(1, session_open(7))
    (opened,) = stage.heard_of(frames.SessionOpened)
    assert (opened.request, opened.generation, opened.window_bytes) == (7, 1, 12345)
    assert not stage.of_kind(SubmitEnvelope, effects)


def test_what_a_lane_waits_for_is_data_and_comes_in_its_order() -> None:
    lane = SessionLane(CHANNEL, None)
    assert lane.has_confirmed(LaneDetached(lane)), "nothing was received, so nothing is waited for"
    lane.received += 1
    assert not lane.has_confirmed(LaneClosing(lane, 7))
    lane.received += 1
    assert not lane.has_confirmed(LaneDetached(lane))
    assert lane.settle() and list(lane.pass_barriers()) == [LaneClosing(lane, 7)]
    assert lane.settle() and list(lane.pass_barriers()) == [LaneDetached(lane)]


def test_what_waits_for_the_channel_is_given_once_the_channel_has_answered() -> None:
    stage = Stage()
    stage.connect()
    known = stage.manager._connections[1].sessions[stage.open_session()]
    lane = known.lane(CHANNEL)
    assert not lane.has_answered(SessionOpening(known))
    assert lane.opened(LaneState.OPEN) == [SessionOpening(known)]
    assert lane.has_answered(SessionOpening(known))
    assert lane.opened(LaneState.OPEN) == []


def test_every_session_has_its_own_id() -> None:
    stage = Stage()
    stage.connect()
    assert len({stage.open_session() for _ in range(10)}) == 10


def test_sessions_of_a_connection_are_bounded() -> None:
    stage = Stage(sessions_max=2)
    stage.connect()
    stage.say(1, session_open(1), session_open(2), session_open(3))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (3, "limit")
    assert stage.manager.connection_count == 1


def test_a_session_that_never_was_opened_has_no_generation() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, session_open(1, session=0, generation=2))
    assert "cannot be in generation 2" in stage.goodbye().text


def test_the_first_envelope_begins_with_the_opening() -> None:
    stage = Stage()
    stage.connect(user="ann")
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    (envelope,) = stage.submitted
    assert kinds(envelope) == [OPEN, PUBLISH]
    (header, payload, _), _ = iterate_commands(envelope.payload)
    assert (header.session, header.generation, header.number) == (session, 1, 0)
    (welcome,) = stage.heard_of(frames.Welcome)
    opening = OpenSession(user="ann", client_id="", connection=welcome.connection)
    assert OpenSession.decode(payload) == opening


def test_a_session_is_opened_once() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.say(1, publish(session, 2))
    stage.confirm_all()
    stage.say(1, publish(session, 3))
    assert kinds(stage.submitted[0]) == [PUBLISH]


def test_a_resumed_session_is_resumed_before_its_first_command_wherever_it_stands() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session(session=0xABC, generation=4)
    assert session == 0xABC
    stage.say(1, publish(session, 41, [b"a", b"b"], generation=4), publish(session, 43, generation=4))
    (envelope,) = stage.submitted
    assert kinds(envelope) == [RESUME, PUBLISH, PUBLISH]
    assert [header.generation for header in headers(envelope)] == [4, 4, 4]


def test_a_resumed_session_may_name_a_destination_that_is_gone() -> None:
    stage = Stage()
    stage.connect()
    stage.open_session(session=0xABC, generation=2)
    stage.say(1, publish(0xABC, 3, generation=2, destination=99))
    assert kinds(stage.submitted[0]) == [RESUME, PUBLISH]
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION, 0, "gone"))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (ConfirmItem(3, 1, OutcomeCode.NO_DESTINATION, 101, "gone"),)


def test_a_client_that_comes_back_takes_its_session_over() -> None:
    stage = Stage()
    stage.connect(1)
    session = stage.open_session(1)
    stage.say(1, publish(session, 1))
    stage.connect(2)

    stage.open_session(2, session=session, generation=2)
    stage.say(2, publish(session, 1, generation=2))
    stage.confirm_all()

    # The old connection hears that it is gone and nothing more of it, and it is not away.
    (gone,) = stage.heard_of(frames.SessionGone, 1)
    assert (gone.session, gone.code) == (session, "session.stale")
    assert not stage.heard_of(frames.Confirm, 1)
    assert stage.heard_of(frames.Confirm, 2)
    assert not stage.to_primary(SessionDetached)
    assert stage.manager.session_count == 1
    # What it says for it meanwhile is not heard.
    stage.say(1, publish(session, 2))
    assert stage.submitted == []
    assert stage.manager.connection_count == 2


def test_a_session_is_not_resumed_in_a_generation_it_has_had() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.open_session(1, session=0xABC, generation=3)
    stage.say(2, session_open(9, session=0xABC, generation=3))
    assert stage.heard_of(frames.Failed, 2)[0].code == "session.stale"


def test_a_session_is_not_given_to_another_user() -> None:
    stage = Stage()
    stage.connect(1, user="ann")
    stage.connect(2, user="bob")
    session = stage.open_session(1)
    stage.say(2, session_open(9, session=session, generation=2))
    assert stage.heard_of(frames.Failed, 2)[0].code == AccessDenied.code


def test_a_session_the_channel_forgot_refuses_consumers_and_commands_and_is_gone() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session(session=0xABC, generation=2)
    stage.say(1, publish(session, 8, generation=2), stage.consumer_open(session))
    unknown = OutcomeCode.SESSION_UNKNOWN
    stage.confirm(Outcome(0, 1, unknown, 0, "expired"), Outcome(1, 1, unknown, 0, "expired"))
    assert stage.heard_of(frames.Failed)[0].code == SessionClosed.code
    assert stage.heard_of(frames.Confirm)[0].items[0].code == unknown
    assert [gone.text for gone in stage.heard_of(frames.SessionGone)] == ["expired"]
    # And there is nothing to detach or to close in a channel that does not know it.
    assert stage.manager.session_count == 0
    assert stage.lose() == []


def test_an_id_that_was_given_twice_stops_the_node() -> None:
    """The client would be told that its messages are stored already, and they are another session's."""
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    with pytest.raises(AssertionError, match="an id was given twice"):
        stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE), Outcome(1, 1, OutcomeCode.DUPLICATE, 40))
    assert not stage.heard_of(frames.Confirm)


def test_a_session_whose_client_resumed_it_elsewhere_before_its_opening_was_ordered_is_refused() -> None:
    """We slept with the opening in our queue; the client did not wait for us."""
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.confirm(Outcome(0, 1, OutcomeCode.STALE), Outcome(1, 1, OutcomeCode.STALE))
    assert [item.code for item in stage.heard_of(frames.Confirm)[0].items] == [OutcomeCode.STALE]
    assert stage.heard_of(frames.SessionGone)[0].text == "the session has been resumed elsewhere"


def test_closing_a_session_waits_for_its_commands_and_then_for_its_end() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1), frames.SessionClose(request=9, session=session))
    assert kinds(stage.submitted[0]) == [OPEN, PUBLISH]

    stage.confirm()
    assert kinds(stage.submitted[0]) == [CLOSE]
    assert stage.heard_of(frames.Done) == []

    stage.confirm()
    # Confirmations come before the answer that waited for them.
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.Confirm, frames.Done]
    assert stage.manager.session_count == 0
    assert not stage.to_primary(SessionDetached)


def test_a_session_that_said_nothing_is_closed_at_once() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, frames.SessionClose(request=9, session=session))
    assert stage.heard[1][-1] == frames.Done(request=9)
    assert stage.submitted == []


def test_a_closed_session_takes_no_commands() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, frames.SessionClose(request=9, session=session), publish(session, 1))
    assert "is not open on this connection" in stage.goodbye().text


def test_closing_a_session_that_is_not_ours_fails() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.SessionClose(request=9, session=0xABC))
    assert stage.heard_of(frames.Failed)[0].code == SessionClosed.code


def test_a_closing_session_is_not_resumed() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    session = stage.open_session(1)
    stage.say(1, publish(session, 1), frames.SessionClose(request=9, session=session))
    stage.say(2, session_open(9, session=session, generation=2))
    assert stage.heard_of(frames.Failed, 2)[0].code == SessionClosed.code


def test_what_was_received_is_ordered_though_the_client_is_gone() -> None:
    stage = Stage(submitted_bytes_max=1)
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.say(1, publish(session, 2))
    assert len(stage.submitted) == 1

    stage.lose()
    stage.confirm()
    assert kinds(stage.submitted[0]) == [PUBLISH]
    assert not stage.to_primary(SessionDetached)

    stage.confirm()
    assert stage.told_absent() == [(session, 1)]
    assert stage.manager.session_count == 0


def test_a_session_the_channel_never_heard_of_leaves_nothing_behind() -> None:
    stage = Stage()
    stage.connect()
    stage.open_session()
    assert stage.lose() == []
    assert stage.manager.session_count == 0


def test_a_lost_client_is_detached_after_its_consumers() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    key = stage.open_consumer(session)
    effects = stage.lose()
    messages = [effect.message for effect in effects]  # type: ignore[union-attr]
    assert [type(message) for message in messages] == [Unregister, SessionDetached]
    assert messages[0] == Unregister(key, 0, is_lost=True, term=1)
    assert stage.told_absent() == [(session, 1)]


def test_a_session_that_was_being_closed_ends_though_the_client_is_gone() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1), frames.SessionClose(request=9, session=session))
    stage.lose()
    stage.confirm_all()
    assert [kinds(e) for e in stage.of_kind(SubmitEnvelope)] == [[OPEN, PUBLISH], [CLOSE]]
    assert stage.manager.session_count == 0
    assert stage.submitted == []


def test_numbers_count_for_each_channel() -> None:
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    session = stage.open_session(session=0xABC, generation=2)
    elsewhere = frames.Command(channel="b", command=publish(session, 1, generation=2, destination=77).command)
    stage.say(1, publish(session, 1, generation=2), elsewhere)
    assert [envelope.channel for envelope in stage.submitted] == [CHANNEL, "b"]
    stage.confirm_all()
    assert [confirm.channel for confirm in stage.heard_of(frames.Confirm)] == [CHANNEL, "b"]
    stage.say(1, frames.SessionClose(request=9, session=session))
    stage.confirm()
    assert stage.heard_of(frames.Done) == []
    stage.confirm()
    assert stage.heard_of(frames.Done) == [frames.Done(request=9)]
