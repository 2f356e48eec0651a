"""What a peer may say when, and what a breach costs: its own connection and nothing else."""

from __future__ import annotations

import pytest

from antiphon.client_manager.effects import (
    AdmitConnection,
    Answered,
    AskNode,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    SendFrames,
)
from antiphon.errors import ProtocolError
from antiphon.wire import frames
from tests.unit.client_manager.stage import Stage

HELLO = frames.Hello(user="ann", password="", client_id="")


def test_hello_is_welcomed_and_admitted() -> None:
    stage = Stage()
    stage.step(ConnectionOpened(1, "peer"))

    effects = stage.say(1, HELLO)

    assert effects[0] == AdmitConnection(1, stage.heard_of(frames.Welcome)[0].frame_limit)
    (welcome,) = stage.heard[1]
    assert isinstance(welcome, frames.Welcome)
    assert (welcome.node, welcome.cluster, welcome.servers) == (1, "test", ("127.0.0.1:7420",))
    assert welcome.connection != 0


def test_two_connections_have_different_ids() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    assert stage.heard_of(frames.Welcome, 1)[0].connection != stage.heard_of(frames.Welcome, 2)[0].connection


@pytest.mark.parametrize(
    "first",
    [
        frames.Ping(nonce=1),
        frames.SessionOpen(request=1, session=0, generation=0, ack_mode=frames.AckMode.AUTO),
        frames.Command(channel="a", command=b""),
        frames.Ask(request=1, question="{}"),
        frames.Goodbye(code="", text=""),
    ],
)
def test_whatever_comes_before_hello_ends_the_connection(first: frames.ClientFrame) -> None:
    stage = Stage()
    stage.step(ConnectionOpened(1, "peer"))

    effects = stage.say(1, first, HELLO)

    (closed,) = effects
    assert isinstance(closed, CloseConnection)
    assert closed.code == ProtocolError.code
    assert "before Hello" in closed.text
    assert stage.manager.connection_count == 0


def test_a_second_hello_ends_the_connection() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, HELLO)
    assert "second time" in stage.goodbye().text


def test_a_frame_only_servers_may_send_ends_the_connection() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.Done(request=1))  # type: ignore[arg-type]
    assert "not for a client" in stage.goodbye().text


def test_what_was_answered_before_a_breach_is_sent_before_the_goodbye() -> None:
    stage = Stage()
    stage.connect()

    effects = stage.say(1, frames.Ping(nonce=7), HELLO)

    assert [type(effect) for effect in effects] == [SendFrames, CloseConnection]
    assert stage.heard_of(frames.Pong) == [frames.Pong(nonce=7)]


def test_a_breach_ends_no_other_connection() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.say(1, HELLO)
    stage.say(2, frames.Ping(nonce=8))
    assert stage.heard_of(frames.Pong, 2) == [frames.Pong(nonce=8)]
    assert stage.manager.connection_count == 1


def test_goodbye_is_not_answered() -> None:
    stage = Stage()
    stage.connect()
    assert stage.say(1, frames.Goodbye(code="", text="enough")) == [CloseConnection(1, "", "")]


def test_nothing_is_taken_from_a_connection_that_is_over() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.Goodbye(code="", text=""), frames.Ping(nonce=1))
    assert stage.say(1, frames.Ping(nonce=2)) == []
    assert stage.step(ConnectionLost(1)) == []
    assert stage.heard_of(frames.Pong) == []


def test_all_that_is_said_to_a_peer_in_one_step_is_sent_at_once() -> None:
    stage = Stage()
    stage.connect()
    effects = stage.say(1, *(frames.Ping(nonce=nonce) for nonce in range(5)))
    assert [type(effect) for effect in effects] == [SendFrames]
    assert [pong.nonce for pong in stage.heard_of(frames.Pong)] == list(range(5))


def test_a_request_number_is_free_again_once_it_is_answered() -> None:
    stage = Stage()
    stage.connect()
    ask = frames.Ask(request=3, question="{}")
    assert stage.say(1, ask) == [AskNode(1, 3, "{}")]
    stage.step(Answered(1, 3, '{"nodes": []}'))
    assert stage.heard[1][-1] == frames.Answer(request=3, answer='{"nodes": []}')
    assert stage.say(1, ask) == [AskNode(1, 3, "{}")]


def test_a_request_number_used_twice_at_once_ends_the_connection() -> None:
    stage = Stage()
    stage.connect()
    ask = frames.Ask(request=3, question="{}")
    stage.say(1, ask, ask)
    assert "request 3 a second time" in stage.goodbye().text


def test_requests_without_an_answer_are_bounded() -> None:
    stage = Stage(requests_max=2)
    stage.connect()
    stage.say(1, *(frames.Ask(request=request, question="{}") for request in range(3)))
    assert "more than 2 requests" in stage.goodbye().text


def test_the_node_may_refuse_to_answer() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.Ask(request=3, question="?"))
    stage.step(Answered(1, 3, "no such question", code="local"))
    assert stage.heard[1][-1] == frames.Failed(request=3, code="local", text="no such question")


def test_a_question_of_any_length_is_refused() -> None:
    stage = Stage(question_length_max=10)
    stage.connect()
    assert not stage.of_kind(AskNode, stage.say(1, frames.Ask(request=3, question="x" * 11)))
    assert stage.heard_of(frames.Failed)[0].code == "limit"


def test_an_answer_for_a_peer_that_is_gone_is_dropped() -> None:
    stage = Stage()
    stage.connect()
    stage.say(1, frames.Ask(request=3, question="{}"))
    stage.lose()
    assert stage.step(Answered(1, 3, "{}")) == []


def test_an_answer_that_no_frame_holds_is_refused() -> None:
    stage = Stage(answer_length_max=10)
    stage.connect()
    stage.say(1, frames.Ask(request=3, question="?"))
    stage.step(Answered(1, 3, "x" * 11))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (3, "limit")
    assert stage.manager.connection_count == 1
