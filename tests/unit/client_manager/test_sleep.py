"""A client manager that did nothing for a long while: what comes first may be old, and is not passed on."""

from __future__ import annotations

from antiphon.bus.messages import Credits, DeliverHead, Register
from antiphon.client_manager.effects import Woke
from antiphon.wire import frames
from tests.unit.client_manager.stage import RUN, Stage
from tests.unit.client_manager.test_consumers import attached, deliver, piece


def sleep(stage: Stage) -> int:
    """It wakes; the number of the word by which it asks whether the primary still knows it."""
    stage.step(Woke())
    return stage.to_primary(Credits)[-1].number


def test_what_comes_after_a_sleep_waits_for_the_primary() -> None:
    stage, _, key = attached()
    asked = sleep(stage)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    stage.tell(deliver(key, 2, piece(41, [b"two"])))
    assert stage.heard_of(frames.Deliver) == []
    # What was said before it slept tells nothing.
    stage.tell(DeliverHead(1, stage.said, asked - 1, RUN))
    assert stage.heard_of(frames.Deliver) == []

    stage.tell(DeliverHead(1, stage.said, asked, RUN))
    assert [frame.first_delivery for frame in stage.heard_of(frames.Deliver)] == [1, 2]
    stage.tell(deliver(key, 3, piece(42, [b"three"])))
    assert len(stage.heard_of(frames.Deliver)) == 3


def test_what_was_taken_from_the_dead_is_not_passed_on() -> None:
    stage, _, key = attached()
    asked = sleep(stage)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    stage.tell(DeliverHead(1, 0, asked, RUN, is_void=True))
    assert stage.heard_of(frames.Deliver) == []
    assert [register.consumer for register in stage.to_primary(Register)].count(key) >= 1


def test_the_question_is_asked_again_until_it_is_answered() -> None:
    stage, _, key = attached()
    asked = sleep(stage)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    stage.wait(stage.manager._settings.attachment_check_ms)
    again = stage.to_primary(Credits)[-1].number
    assert again > asked
    stage.tell(DeliverHead(1, stage.said, again, RUN))
    assert len(stage.heard_of(frames.Deliver)) == 1
