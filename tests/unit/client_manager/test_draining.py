"""A client that drains a consumer hears when the primary has used up its credit, and not before."""

from __future__ import annotations

from antiphon.bus.messages import ConsumerCredit, Credits, DeliverHead, Drained, Register, Registered
from antiphon.client_manager.effects import WriteBlocked, WriteUnblocked
from antiphon.wire import frames
from tests.unit.client_manager.stage import RUN, Stage
from tests.unit.client_manager.test_consumers import deliver, piece

BYTES = 1 << 21


def without_prefetch() -> tuple[Stage, int, int]:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    key = stage.open_consumer(session, credit=0)
    stage.effects.clear()
    stage.heard.clear()
    return stage, session, key


def drain(session: int, messages: int, request: int = 77) -> frames.ConsumerDrain:
    return frames.ConsumerDrain(request=request, session=session, consumer=1, messages=messages, bytes=BYTES)


def credit(session: int, messages: int) -> frames.Credit:
    return frames.Credit(session=session, consumer=1, messages=messages, bytes=BYTES)


def answers(stage: Stage) -> list[int]:
    return [done.request for done in stage.heard_of(frames.Done)]


def items(stage: Stage) -> list[ConsumerCredit]:
    return [item for said in stage.to_primary(Credits) for item in said.items]


def test_it_is_answered_when_the_primary_has_used_up_the_credit() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 1))
    assert items(stage) == [ConsumerCredit(key, 1, BYTES, drains=True)]
    assert answers(stage) == []
    stage.tell(Drained(key, 1, 1))
    assert answers(stage) == [77]


def test_what_was_delivered_before_reaches_the_client_before_the_answer() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 2))
    stage.tell(deliver(key, 1, piece(50, [b"a"])), Drained(key, 1, 2))
    heard = [type(frame) for frame in stage.heard[1]]
    assert heard[-2:] == [frames.Deliver, frames.Done] and answers(stage) == [77]


def test_delivery_numbers_go_on_without_a_gap_behind_credit_that_was_used_up() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 3))
    stage.tell(Drained(key, 1, 3))
    stage.effects.clear()
    stage.say(1, credit(session, 1))
    # To the primary it is the fourth.
    assert items(stage) == [ConsumerCredit(key, 4, BYTES)]
    stage.tell(deliver(key, 4, piece(50, [b"a"])))
    [frame] = stage.heard_of(frames.Deliver)
    assert frame.first_delivery == 1


def test_a_drain_that_was_not_heard_of_is_said_again_and_one_that_was_answered_is_not() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 1))
    stage.wait(1_000)
    assert items(stage)[-1] == ConsumerCredit(key, 1, BYTES, drains=True) and len(items(stage)) > 1
    stage.tell(Drained(key, 1, 1))
    stage.effects.clear()
    stage.wait(1_000)
    assert not any(item.drains for item in items(stage))


def test_a_new_primary_is_asked_again_for_what_was_not_answered() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 2))
    stage.tell(deliver(key, 1, piece(50, [b"a"])))
    stage.effects.clear()
    stage.new_term(2)
    [register] = stage.to_primary(Register)
    assert register.credit_messages == 1
    stage.effects.clear()
    stage.tell(Registered(register.consumer, 2))
    assert items(stage) == [ConsumerCredit(register.consumer, 1, BYTES, drains=True)]
    assert answers(stage) == []
    stage.tell(Drained(register.consumer, 2, 1))
    assert answers(stage) == [77]


def test_a_new_primary_has_nothing_to_drain_when_all_that_was_asked_for_has_come() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 1))
    stage.tell(deliver(key, 1, piece(50, [b"a"])))
    stage.new_term(2)
    [*_, register] = stage.to_primary(Register)
    stage.effects.clear()
    stage.tell(Registered(register.consumer, 2))
    assert items(stage) == [] and answers(stage) == [77]


def test_messages_that_were_gone_when_they_were_sent_again_are_still_to_be_drained() -> None:
    stage, session, key = without_prefetch()
    stage.say(1, drain(session, 3))
    stage.effects.clear()
    # Two of the three are gone: the third is the only one that the client gets, and is its first.
    stage.tell(deliver(key, 3, piece(50, [b"a"])), Drained(key, 1, 3))
    assert items(stage) == [ConsumerCredit(key, 5, BYTES, drains=True)] and answers(stage) == []
    stage.tell(Drained(key, 1, 5))
    assert answers(stage) == [77]


def test_a_peer_that_does_not_read_is_drained_when_its_credit_is_passed_on() -> None:
    stage, session, key = without_prefetch()
    stage.step(WriteBlocked(1))
    stage.say(1, drain(session, 1))
    assert items(stage) == []
    stage.step(WriteUnblocked(1))
    assert items(stage) == [ConsumerCredit(key, 1, BYTES, drains=True)]


def test_a_consumer_that_is_gone_is_drained() -> None:
    stage, session, _ = without_prefetch()
    stage.say(1, drain(session, 1))
    stage.say(1, frames.ConsumerClose(request=90, session=session, consumer=1, seen_through=0))
    assert answers(stage) == [77, 90]
    stage.say(1, drain(session, 1, request=78))
    assert answers(stage) == [77, 90, 78]


def test_a_second_drain_before_the_answer_is_a_breach() -> None:
    stage, session, _ = without_prefetch()
    stage.say(1, drain(session, 1), drain(session, 1, request=78))
    assert "a second time before the first answer" in stage.goodbye().text


def test_the_word_that_there_is_nothing_waits_until_the_stream_is_sure_to_be_ours() -> None:
    stage = Stage(sure_ms=100)
    stage.connect()
    session = stage.open_session()
    key = stage.open_consumer(session, credit=0)
    stage.tell(DeliverHead(1, stage.said, stage.to_primary(Credits)[-1].number, RUN, stage.said))
    stage.effects.clear()
    stage.heard.clear()
    stage.say(1, drain(session, 1))
    stage.tell(Drained(key, 1, 1))
    assert answers(stage) == []
    number = stage.to_primary(Credits)[-1].number
    stage.tell(DeliverHead(1, stage.said, number, RUN, stage.said, sure=number))
    assert answers(stage) == [77]
