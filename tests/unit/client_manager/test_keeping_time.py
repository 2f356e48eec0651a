"""Who looks at the time: those who say things again, when something is their business, and no oftener."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import EnvelopeUncertain
from antiphon.client_manager.effects import TimePassed
from antiphon.wire import frames
from antiphon.wire.commands import Outcome, OutcomeCode
from tests.unit.client_manager.stage import CHANNEL, Stage, acknowledge, publish


class Watch:
    """A part that keeps time, and counts how often it looks."""

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self.looks = 0

    def next_deadline_ns(self) -> int | None:
        return self.due_ns

    def keep_time(self, now_ns: int) -> None:
        self.looks += 1
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.due_ns = None

    def looks_since(self) -> int:
        looks, self.looks = self.looks, 0
        return looks


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.connect()
    return stage


@pytest.fixture
def watch(stage: Stage) -> Watch:
    watch = Watch()
    stage.manager._timed = (*stage.manager._timed, watch)
    return watch


def calm_down(stage: Stage, watch: Watch) -> None:
    """What was stirred up is over when nobody looks any more."""
    stage.confirm_all()
    for _ in range(3):
        stage.step()
    watch.looks_since()
    stage.step()
    assert watch.looks_since() == 0


def test_commands_and_their_confirmations_are_nobodys_business(stage: Stage, watch: Watch) -> None:
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    calm_down(stage, watch)
    for number in range(2, 10):
        stage.say(1, publish(session, number) if number % 2 else acknowledge(session, number, (1, 2)))
        stage.confirm_all()
    assert watch.looks_since() == 0
    assert len(stage.heard_of(frames.Confirm)) == 9


@pytest.mark.parametrize("what", ["request", "ping", "tick", "breach", "uncertain"])
def test_everything_else_is_looked_at_twice(stage: Stage, watch: Watch, what: str) -> None:
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    calm_down(stage, watch)
    match what:
        case "request":
            stage.say(1, frames.DestinationOpen(request=77, name="queue:known", create=False, session=0))
        case "ping":
            stage.say(1, frames.Ping(nonce=1))
        case "tick":
            stage.step(TimePassed())
        case "breach":
            stage.say(1, publish(session, 99))
            assert stage.goodbye().code
        case "uncertain":
            stage.tell(EnvelopeUncertain(1))
    looks = watch.looks_since()
    assert looks >= 1
    stage.step()
    assert looks + watch.looks_since() >= 2


def test_a_command_with_an_outcome_that_others_do_something_about_is_looked_at(
    stage: Stage, watch: Watch
) -> None:
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    calm_down(stage, watch)
    stage.say(1, publish(session, 2))
    assert watch.looks_since() == 0
    stage.confirm(Outcome(0, 1, OutcomeCode.NO_DESTINATION, 0))
    assert watch.looks_since() == 1


def test_a_barrier_that_is_reached_is_looked_at(stage: Stage, watch: Watch) -> None:
    """An answer that waited for confirmations may be the beginning of something."""
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    calm_down(stage, watch)
    stage.say(1, publish(session, 2))
    stage.say(1, frames.SessionClose(request=50, session=session))
    stage.step()
    stage.step()
    watch.looks_since()
    stage.confirm()
    assert watch.looks_since() >= 1


def test_what_is_due_is_looked_at_whatever_happens(stage: Stage, watch: Watch) -> None:
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.confirm_all()
    watch.due_ns = 5_000_000
    calm_down(stage, watch)
    assert stage.manager.next_deadline_ns() == 5_000_000
    stage.now_ns = 4_999_999
    stage.say(1, publish(session, 2))
    assert watch.looks_since() == 0
    stage.now_ns = 5_000_000
    stage.say(1, publish(session, 3))
    assert watch.looks_since() == 1
    assert watch.due_ns is None
    assert stage.manager.next_deadline_ns() is None


def test_a_question_nobody_answers_is_asked_again_in_the_midst_of_commands(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    stage.confirm_all()
    stage.silent.add(CHANNEL)
    stage.say(1, frames.DestinationOpen(request=77, name="queue:known", create=False, session=0))
    due_ns = stage.manager.next_deadline_ns()
    assert due_ns is not None
    asked = len(stage.effects)
    number = 2
    while stage.now_ns < due_ns:
        stage.now_ns += 20_000_000
        stage.say(1, publish(session, number))
        stage.confirm_all()
        number += 1
    assert any(
        type(effect).__name__ in ("SendToPrimary", "SendToReplica") for effect in stage.effects[asked:]
    )
