"""What a client manager passes on is sure to be its own: a primary that led has said so a moment ago."""

from __future__ import annotations

from antiphon.bus.effects import TimeMissed
from antiphon.bus.messages import Credits, DeliverHead, Register, Registered
from antiphon.errors import ProtocolError
from antiphon.wire import frames
from tests.unit.client_manager.stage import CHANNEL, RUN, Stage
from tests.unit.client_manager.test_consumers import attached, deliver, piece

SURE_MS = 200


def asked(stage: Stage) -> int:
    """The number of the last word by which the primary was asked."""
    return stage.to_primary(Credits)[-1].number


def answer(stage: Stage, number: int, *, sure: int | None = None) -> None:
    """The primary has heard this word, and is known to have led then."""
    stage.tell(DeliverHead(1, stage.said, number, RUN, sure=number if sure is None else sure))


def sure() -> tuple[Stage, int, int]:
    """A stage with a consumer whose stream is sure to be ours; its session, and its key at the primary."""
    stage, session, key = attached(sure_ms=SURE_MS)
    answer(stage, asked(stage))
    return stage, session, key


def sleep(stage: Stage, ms: int) -> None:
    """The node takes no step for so long."""
    stage.now_ns += ms * 1_000_000


def passed_on(stage: Stage) -> list[int]:
    return [frame.first_delivery for frame in stage.heard_of(frames.Deliver)]


def check(stage: Stage, session: int, request: int = 70) -> list[int]:
    """The client asks whether what it has is its own; the requests that are carried out."""
    stage.say(1, frames.ConsumerCheck(request=request, session=session, consumer=1))
    return done(stage)


def done(stage: Stage) -> list[int]:
    return [frame.request for frame in stage.heard_of(frames.Done) if frame.request >= 70]


def test_the_first_delivery_of_a_stream_waits_for_the_word_of_a_primary_that_leads() -> None:
    stage, _, key = attached(sure_ms=SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == []
    # It was heard, and nobody can say yet whether by somebody who leads.
    answer(stage, asked(stage), sure=0)
    assert passed_on(stage) == []
    answer(stage, asked(stage))
    assert passed_on(stage) == [1]


def test_where_the_primary_is_in_the_same_process_nothing_waits() -> None:
    stage, _, key = attached()
    sleep(stage, 60_000)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == [1]


def test_what_comes_after_a_sleep_waits_for_the_primary() -> None:
    stage, _, key = sure()
    before = asked(stage)
    sleep(stage, 3 * SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    stage.tell(deliver(key, 2, piece(41, [b"two"])))
    assert passed_on(stage) == []
    # What was said before it slept tells nothing.
    answer(stage, before)
    assert passed_on(stage) == []

    assert asked(stage) > before
    answer(stage, asked(stage))
    assert passed_on(stage) == [1, 2]
    stage.tell(deliver(key, 3, piece(42, [b"three"])))
    assert passed_on(stage) == [1, 2, 3]


def test_who_slept_for_less_than_its_word_holds_goes_on() -> None:
    stage, _, key = sure()
    sleep(stage, SURE_MS - 1)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == [1]


def test_an_answer_that_lay_in_a_socket_while_the_node_slept_is_none() -> None:
    stage, _, key = sure()
    stage.wait(SURE_MS // 2)
    late = asked(stage)
    sleep(stage, 3 * SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])), DeliverHead(1, 2, late, RUN, sure=late))
    assert passed_on(stage) == []


def test_a_primary_that_is_slow_is_asked_again_and_again_and_what_came_by_then_passes() -> None:
    stage, _, key = sure()
    sleep(stage, 3 * SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    slow = asked(stage)
    stage.wait(SURE_MS * 3 // 2)
    answer(stage, slow)
    assert passed_on(stage) == [1]
    # Only what had come: the answer is older than a word may be.
    stage.tell(deliver(key, 2, piece(41, [b"two"])))
    assert passed_on(stage) == [1]


def test_a_node_whose_clock_stood_still_asks_when_the_heartbeats_tell() -> None:
    stage, _, key = sure()
    before = asked(stage)
    stage.tell(TimeMissed(), deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == []
    # By our clock this was said a moment ago.
    answer(stage, before)
    assert passed_on(stage) == []
    answer(stage, asked(stage))
    assert passed_on(stage) == [1]


def test_what_was_taken_from_the_dead_is_not_passed_on() -> None:
    stage, _, key = sure()
    sleep(stage, 3 * SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    stage.tell(DeliverHead(1, 0, asked(stage), RUN, is_void=True))
    stage.tell(deliver(key, 2, piece(41, [b"two"])))
    answer(stage, asked(stage))
    assert passed_on(stage) == []
    assert [register.consumer for register in stage.to_primary(Register)].count(key) >= 1


def test_of_a_stream_that_is_void_nothing_more_is_passed_on_though_nobody_slept() -> None:
    stage, _, key = sure()
    stage.tell(DeliverHead(1, 0, asked(stage), RUN, is_void=True))
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == []


def test_the_question_is_asked_again_until_it_is_answered() -> None:
    stage, _, key = sure()
    sleep(stage, 3 * SURE_MS)
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    first = asked(stage)
    stage.wait(SURE_MS // 2)
    assert asked(stage) > first
    answer(stage, asked(stage))
    assert passed_on(stage) == [1]


def test_a_node_with_consumers_asks_so_often_that_it_stays_sure() -> None:
    stage, _, key = sure()
    for _ in range(20):
        stage.wait(SURE_MS // 4)
        answer(stage, asked(stage))
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == [1]


# -- a client asks -----------------------------------------------------------------------------------


def test_of_words_that_a_primary_never_answers_only_those_are_kept_that_could_still_count() -> None:
    """Found by: antiphon sim cluster --seed 4410001."""
    stage, _, key = sure()
    for _ in range(1_000):
        stage.wait(SURE_MS // 4)
    words = stage.manager._consumers.credits._accounts[CHANNEL].words
    assert asked(stage) > 500 and len(words) <= 32
    # Who has been away so long is believed when it answers for the last of them.
    stage.tell(deliver(key, 1, piece(40, [b"one"])))
    assert passed_on(stage) == []
    answer(stage, asked(stage))
    assert passed_on(stage) == [1]


def test_a_client_is_told_at_once_that_what_it_has_is_its_own_while_that_is_sure() -> None:
    stage, session, _ = sure()
    assert check(stage, session) == [70]


def test_a_client_waits_until_the_node_is_sure_again() -> None:
    stage, session, _ = sure()
    sleep(stage, 3 * SURE_MS)
    assert check(stage, session) == []
    answer(stage, asked(stage))
    assert done(stage) == [70]


def test_a_client_waits_until_its_consumer_is_attached_again() -> None:
    stage, session, _ = sure()
    stage.new_term(2)
    assert check(stage, session) == []
    key = stage.to_primary(Register)[-1].consumer
    stage.tell(Registered(consumer=key, term=2))
    # The consumer is attached, and nobody has said yet that this primary leads.
    assert done(stage) == []
    stage.tell(DeliverHead(2, stage.said, asked(stage), RUN, sure=asked(stage)))
    assert done(stage) == [70]


def test_a_client_whose_consumer_ends_does_not_wait_for_ever() -> None:
    stage, session, _ = sure()
    sleep(stage, 3 * SURE_MS)
    check(stage, session)
    stage.say(1, frames.ConsumerClose(request=71, session=session, consumer=1, seen_through=0))
    assert done(stage) == [70, 71]
    assert check(stage, session, 72) == [70, 71, 72]


def test_a_client_that_asks_twice_before_it_has_an_answer_breaks_the_protocol() -> None:
    stage, session, _ = sure()
    sleep(stage, 3 * SURE_MS)
    check(stage, session)
    check(stage, session, 71)
    assert stage.goodbye().code == ProtocolError.code
