"""What a client gives back is not held here any more, from the moment it says so."""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.bus.messages import Deliver, DeliverHead, Piece, Register, Taker, Target
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import Return
from tests.unit.client_manager.stage import KNOWN, RUN, Stage, command


def deliver(key: int, first_delivery: int, sequence: int, count: int, redelivered: int = 0) -> Deliver:
    batch = Batch.of_bodies([b"x"] * count, 1, 1, 0).encode()
    target = Target(1, 0, (Taker(key, first_delivery),))
    return Deliver(1, KNOWN, (target,), (Piece(sequence, count, redelivered, (batch,)),))


def give_back(session: int, number: int, *pairs: tuple[int, int]) -> frames.Command:
    wish = Return(destination=KNOWN, subscription=0, counted=True, ranges=Ranges(pairs))
    return command(session, number, wish)


def consumer_with_messages() -> tuple[Stage, int, int]:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    key = stage.open_consumer(session)
    stage.tell(deliver(key, 1, 40, 5))
    return stage, session, key


def test_a_new_primary_hears_of_the_consumer_when_the_return_is_ordered_and_not_that_they_are_held() -> None:
    """Before that it would give them to the consumer again, and take the copies for what is returned."""
    stage, session, _ = consumer_with_messages()
    stage.say(1, give_back(session, 1, (41, 43)))
    before = len(stage.to_primary(Register))
    stage.new_term(2)
    assert len(stage.to_primary(Register)) == before
    stage.confirm_all()
    register = stage.to_primary(Register)[-1]
    assert (register.term, register.held) == (2, Ranges([(40, 41), (43, 45)]))


def test_a_consumer_that_is_attached_anew_waits_until_its_returns_are_ordered() -> None:
    stage, session, _ = consumer_with_messages()
    stage.say(1, give_back(session, 1, (41, 43)))
    before = len(stage.to_primary(Register))
    stage.tell(DeliverHead(1, 0, 0, stream=RUN, is_void=True))
    assert len(stage.to_primary(Register)) == before
    stage.confirm_all()
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 41), (43, 45)])


def test_a_consumer_of_a_session_that_came_back_waits_until_its_returns_are_ordered() -> None:
    """Ordered later, they would take from the new consumer what it got in the meantime."""
    stage = Stage()
    stage.connect()
    session = stage.open_session(session=0xABC, generation=2)
    back = Return(destination=KNOWN, subscription=0, counted=True, ranges=Ranges([(41, 43)]))
    stage.say(1, command(session, 8, back, generation=2), stage.consumer_open(session))
    assert not stage.to_primary(Register)
    stage.confirm_all()
    assert len(stage.to_primary(Register)) == 1


def test_what_came_again_before_the_return_was_confirmed_is_held() -> None:
    stage, session, key = consumer_with_messages()
    stage.say(1, give_back(session, 1, (41, 43)))
    stage.tell(deliver(key, 6, 41, 2, redelivered=1))
    stage.confirm_all()
    stage.new_term(2)
    assert stage.to_primary(Register)[-1].held == Ranges([(40, 45)])
