"""What one peer may have of everything, and what all of them together may."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.client_manager.effects import (
    Answered,
    AskNode,
    ConnectionOpened,
    PauseReading,
    ResumeReading,
)
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import RANGES_MAX, Acknowledge, Return
from tests.unit.client_manager.stage import KNOWN, Stage, acknowledge, command, headers

LIMIT = "limit"


def ask(stage: Stage) -> frames.Ask:
    return frames.Ask(request=stage.request(), question="{}")


def session_open(stage: Stage, session: int = 0, generation: int = 0) -> frames.SessionOpen:
    return frames.SessionOpen(
        request=stage.request(), session=session, generation=generation, ack_mode=frames.AckMode.AUTO
    )


@pytest.mark.parametrize(("user", "client_id"), [("u" * 256, ""), ("", "ä" * 128)])
def test_a_name_that_would_be_kept_with_every_session_is_short(user: str, client_id: str) -> None:
    stage = Stage()
    stage.step(ConnectionOpened(1, "peer"))
    stage.say(1, frames.Hello(user=user, password="", client_id=client_id))
    assert stage.goodbye().code == ProtocolError.code
    assert "a user or client id of 256 bytes" in stage.goodbye().text
    assert stage.manager.connection_count == 0


def test_the_longest_names_are_welcome() -> None:
    stage = Stage()
    stage.step(ConnectionOpened(1, "peer"))
    stage.say(1, frames.Hello(user="u" * 255, password="p" * 10_000, client_id="c" * 255))
    stage.confirm_all()
    assert stage.heard_of(frames.Welcome)


def test_of_many_questions_at_once_some_are_refused_and_later_ones_are_answered() -> None:
    stage = Stage(questions_max=2)
    stage.connect()
    stage.say(1, *(ask(stage) for _ in range(5)))
    asked = stage.of_kind(AskNode)
    assert len(asked) == 2
    assert [failed.code for failed in stage.heard_of(frames.Failed)] == [LIMIT] * 3
    stage.step(Answered(1, asked[0].request, "{}"), Answered(1, asked[1].request, "no", "some.code"))
    stage.say(1, ask(stage))
    assert len(stage.of_kind(AskNode)) == 3


def test_all_connections_together_have_so_many_sessions() -> None:
    stage = Stage(sessions_total_max=3)
    for conn in (1, 2):
        stage.connect(conn)
        stage.say(conn, session_open(stage), session_open(stage))
    assert [failed.code for failed in stage.heard_of(frames.Failed, 2)] == [LIMIT]
    stage.lose(1)
    stage.open_session(2)
    assert stage.manager.session_count == 2


def test_a_connection_has_so_many_consumers_however_many_sessions_it_has() -> None:
    stage = Stage(connection_consumers_max=2)
    stage.connect(1)
    stage.connect(2)
    sessions = [stage.open_session(1) for _ in range(3)]
    for session in sessions[:2]:
        stage.open_consumer(session)
    stage.say(1, stage.consumer_open(sessions[2]))
    assert stage.heard_of(frames.Failed)[0].code == LIMIT
    stage.open_consumer(stage.open_session(2), conn=2)
    stage.say(
        1,
        frames.ConsumerClose(request=stage.request(), session=sessions[0], consumer=1, seen_through=0),
    )
    stage.open_consumer(sessions[2])


def test_consumers_leave_the_count_with_their_session() -> None:
    stage = Stage(connection_consumers_max=1)
    stage.connect(1)
    closing, taken = stage.open_session(), stage.open_session()
    stage.open_consumer(closing)
    stage.say(1, frames.SessionClose(request=stage.request(), session=closing))
    stage.confirm_all()
    stage.open_consumer(taken)
    stage.connect(2)
    stage.open_session(2, taken, 2)
    stage.open_consumer(stage.open_session(1))


def test_all_connections_together_have_so_many_consumers() -> None:
    stage = Stage(consumers_total_max=1)
    for conn in (1, 2):
        stage.connect(conn)
    stage.open_consumer(stage.open_session(1))
    session = stage.open_session(2)
    stage.say(2, stage.consumer_open(session))
    assert stage.heard_of(frames.Failed, 2)[0].code == LIMIT
    stage.lose(1)
    stage.open_consumer(session, conn=2)


def test_a_flood_of_tiny_commands_weighs_what_is_kept_of_them() -> None:
    stage = Stage(connection_bytes_max=100_000, command_weight=1_000)
    stage.connect()
    session = stage.open_session()
    sent = 0
    while not stage.of_kind(PauseReading):
        sent += 1
        stage.say(1, acknowledge(session, sent, (1, 2)))
    assert 80 < sent < 100
    stage.confirm_all()
    assert stage.of_kind(ResumeReading)
    assert stage.manager._ordering._unconfirmed_bytes == 0


@pytest.mark.parametrize("kind", [Acknowledge, Return])
def test_a_command_has_so_many_ranges_and_not_one_more(kind: type[Any]) -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    extras = {"counted": True} if kind is Return else {}
    for number, count in ((1, RANGES_MAX), (2, RANGES_MAX + 2)):
        ranges = Ranges((2 * at, 2 * at + 1) for at in range(count))
        stage.say(
            1, command(session, number, kind(destination=KNOWN, subscription=0, ranges=ranges, **extras))
        )
    assert "more than 16384 ranges" in stage.goodbye().text
    assert len(headers(stage.submitted[0])) == 2
