"""Non-persistent messages: their client is told in the same step that they are taken, and later what became
of them."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import Batch, BatchBuilder
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, Outcome, OutcomeCode, publish_buffers
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, publish

APPLIED, TAKEN, REFUSED = OutcomeCode.APPLIED, OutcomeCode.TAKEN, OutcomeCode.REFUSED


def published(session: int, number: int, *rows: dict[str, Any], body: bytes = b"body") -> frames.Command:
    builder = BatchBuilder()
    for row in rows:
        builder.add(body, timestamp_ms=1, **row)
    return command_of(session, number, builder.build(session, number))


def command_of(session: int, number: int, batch: Batch) -> frames.Command:
    buffers = publish_buffers(session, 1, number, 0, KNOWN, 1, batch.buffers(), batch.count)
    return frames.Command(channel=CHANNEL, command=b"".join(buffers))


TRANSIENT = {"persistent": False}


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.connect()
    return stage


def items(stage: Stage) -> list[tuple[ConfirmItem, ...]]:
    return [frame.items for frame in stage.heard_of(frames.Confirm)]


def test_a_non_persistent_message_is_taken_before_it_is_ordered(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, published(session, 1, TRANSIENT))
    assert items(stage) == [(ConfirmItem(1, 1, TAKEN),)]
    stage.confirm()
    assert items(stage)[1:] == [(ConfirmItem(1, 1, APPLIED, 101),)]


def test_what_is_taken_in_one_step_is_told_together(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, published(session, 1, TRANSIENT, TRANSIENT), published(session, 3, TRANSIENT))
    assert items(stage) == [(ConfirmItem(1, 3, TAKEN),)]


def test_a_batch_with_a_persistent_message_is_not_taken(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, published(session, 1, TRANSIENT, {}), publish(session, 3))
    assert items(stage) == []
    stage.say(1, published(session, 4, TRANSIENT))
    assert items(stage) == [(ConfirmItem(4, 1, TAKEN),)]


def test_a_taken_message_that_is_refused_is_told_of_all_the_same(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, published(session, 1, TRANSIENT))
    stage.confirm(Outcome(1, 1, REFUSED, 0, "no"))
    assert items(stage)[1:] == [(ConfirmItem(1, 1, REFUSED, 101, "no"),)]


def test_a_slice_of_non_persistent_messages_is_taken_or_told_later(stage: Stage) -> None:
    session = stage.open_session()
    builder = BatchBuilder()
    for persistent in (True, False, False):
        builder.add(b"", timestamp_ms=1, persistent=persistent)
    whole = builder.build(session, 1)
    part = whole.slice(1, 3).numbered(session, 1)
    stage.say(1, command_of(session, 1, part))
    stage.confirm()
    # The bits of the slice share a byte with another message's.
    assert items(stage) == [(ConfirmItem(1, 2, APPLIED, 101),)]


def test_taken_messages_count_in_the_window_until_they_are_applied() -> None:
    stage = Stage(window_bytes=2_000)
    stage.connect()
    session = stage.open_session()
    stage.say(1, published(session, 1, TRANSIENT, body=bytes(1_500)))
    stage.say(1, published(session, 2, TRANSIENT, body=bytes(1_500)))
    stage.say(1, published(session, 3, TRANSIENT, body=bytes(10)))
    assert "window of 2000 bytes" in stage.goodbye().text


def test_a_message_out_of_turn_is_not_taken(stage: Stage) -> None:
    session = stage.open_session()
    stage.say(1, published(session, 2, TRANSIENT))
    assert items(stage) == []
    assert stage.goodbye().conn == 1
