"""Credit is said until the primary has heard of it, whichever of our words got lost."""

from __future__ import annotations

from antiphon.bus.messages import Credits, DeliverHead
from antiphon.wire import frames
from tests.unit.client_manager.stage import RUN, Stage


def credit(session: int, consumer: int, messages: int) -> frames.Credit:
    return frames.Credit(session=session, consumer=consumer, messages=messages, bytes=messages << 16)


def two_consumers() -> tuple[Stage, int, int, int]:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    first, second = stage.open_consumer(session, 1), stage.open_consumer(session, 2)
    return stage, session, first, second


def told(credits: Credits) -> dict[int, int]:
    return {item.consumer: item.messages for item in credits.items}


def test_a_word_that_was_heard_says_nothing_about_an_earlier_one_that_was_lost() -> None:
    stage, session, first, second = two_consumers()
    stage.say(1, credit(session, 1, 2_000))
    stage.say(1, credit(session, 2, 3_000))
    lost, heard = stage.to_primary(Credits)[-2:]
    assert told(lost) == {first: 2_000}
    # The first one is not known to be heard, so it is in the second word as well.
    assert told(heard) == {first: 2_000, second: 3_000}


def test_what_was_heard_is_not_said_again() -> None:
    stage, session, _, second = two_consumers()
    stage.say(1, credit(session, 1, 2_000))
    number = stage.to_primary(Credits)[-1].number
    stage.tell(DeliverHead(1, stage.said, number, RUN, stage.said))
    stage.say(1, credit(session, 2, 3_000))
    assert told(stage.to_primary(Credits)[-1]) == {second: 3_000}
