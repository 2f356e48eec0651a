"""What is buffered is handed out while it is sure to be ours; who slept, or heard nothing for long, asks."""

from __future__ import annotations

from dataclasses import replace

from antiphon.client.core.client import ClientCore
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import Arrived
from antiphon.client.core.session import SessionCore
from antiphon.ranges import Ranges
from antiphon.wire.frames import (
    ConsumerCheck,
    ConsumerResume,
    ConsumerResumed,
    Done,
    SessionOpen,
    SessionOpened,
)
from tests.unit.client.core.test_client import SESSION, WELCOME, deliver, open_consumer, open_session, said

MS = 1_000_000
SURE_MS = 100
ARRIVED = [Arrived(session=SESSION, consumer=1)]


class Stage:
    """A client with one consumer, which was sent message 40 at time 0."""

    def __init__(self, sure_ms: int = SURE_MS) -> None:
        self.core = ClientCore(user="u", password="p", client_id="c")
        self.core.receive(0, replace(WELCOME, sure_ms=sure_ms))
        self.session: SessionCore = open_session(self.core)
        self.consumer: ConsumerCore = open_consumer(self.core, self.session)
        self.core.receive(0, deliver(1, 40))

    def is_sure(self, at_ms: int) -> bool:
        return self.core.sureness.is_sure(at_ms * MS, self.session, self.consumer)

    def asked(self) -> list[int]:
        """The requests by which the server was asked since the last look."""
        return [frame.request for frame in said(self.core) if isinstance(frame, ConsumerCheck)]

    def answer(self, request: int, at_ms: int) -> object:
        return self.core.receive(at_ms * MS, Done(request=request))

    def be_sure(self, at_ms: int) -> None:
        assert not self.is_sure(at_ms)
        (request,) = self.asked()
        self.answer(request, at_ms)


def test_the_server_is_asked_once_and_its_answer_wakes_whoever_wants_to_take() -> None:
    stage = Stage()
    assert not stage.is_sure(1) and not stage.is_sure(2)
    (request,) = stage.asked()
    assert stage.answer(request, 3) == ARRIVED
    assert stage.is_sure(4)
    # It holds from the moment of asking.
    assert stage.is_sure(1 + SURE_MS - 1)
    assert not stage.is_sure(1 + SURE_MS)


def test_a_server_that_does_not_say_how_long_its_word_holds_is_not_asked() -> None:
    stage = Stage(sure_ms=0)
    assert stage.is_sure(10**9)
    assert stage.asked() == []


def test_deliveries_that_follow_each_other_make_asking_needless() -> None:
    stage = Stage()
    stage.be_sure(0)
    for at in range(1, 20):
        stage.core.receive(at * 90 * MS, deliver(1 + at, 40 + at))
        assert stage.is_sure(at * 90)
    assert stage.asked() == []


def test_a_delivery_that_comes_after_a_long_silence_is_asked_about() -> None:
    stage = Stage()
    stage.be_sure(0)
    stage.core.receive(3 * SURE_MS * MS, deliver(2, 41))
    assert not stage.is_sure(3 * SURE_MS)
    assert len(stage.asked()) == 1


def test_a_process_that_slept_asks_though_deliveries_lie_in_its_socket() -> None:
    stage = Stage()
    stage.be_sure(0)
    for at in range(3):
        stage.core.receive(9 * SURE_MS * MS, deliver(2 + at, 41 + at))
    assert not stage.is_sure(9 * SURE_MS)


def test_an_answer_that_lay_in_the_socket_while_we_slept_is_asked_for_once_more() -> None:
    stage = Stage()
    stage.is_sure(0)
    (request,) = stage.asked()
    stage.answer(request, 5 * SURE_MS)
    assert not stage.is_sure(5 * SURE_MS)
    (request,) = stage.asked()
    stage.answer(request, 5 * SURE_MS + 1)
    assert stage.is_sure(5 * SURE_MS + 2)


def test_a_server_that_always_takes_long_is_believed_for_a_moment() -> None:
    stage = Stage()
    stage.is_sure(0)
    stage.answer(*stage.asked(), 2 * SURE_MS)
    assert not stage.is_sure(2 * SURE_MS)
    stage.answer(*stage.asked(), 4 * SURE_MS)
    assert stage.is_sure(4 * SURE_MS + 1)
    assert not stage.is_sure(4 * SURE_MS + SURE_MS // 2)


def test_without_a_connection_nothing_is_sure_and_another_server_is_asked() -> None:
    stage = Stage()
    stage.be_sure(0)
    core = stage.core
    core.lose()
    assert not stage.is_sure(1)
    core.greet()
    core.receive(2 * MS, replace(WELCOME, sure_ms=SURE_MS))
    (wish,) = [frame for frame in said(core) if isinstance(frame, SessionOpen)]
    opened = SessionOpened(request=wish.request, session=SESSION, generation=2, window_bytes=1 << 20)
    core.receive(2 * MS, opened)
    (resumption,) = [frame for frame in said(core) if isinstance(frame, ConsumerResume)]
    # Whoever waits is woken, and asks.
    assert core.receive(3 * MS, ConsumerResumed(request=resumption.request, lost=Ranges())) == ARRIVED
    stage.be_sure(3)
    assert stage.is_sure(4)
