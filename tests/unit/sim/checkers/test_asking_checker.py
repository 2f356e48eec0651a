"""The checker of what was asked for sees what it is there to see."""

from __future__ import annotations

import pytest

from antiphon.ranges import Ranges
from antiphon.sim.checkers.hands import Asked
from antiphon.sim.checkers.watch import PortConsumer
from antiphon.sim.world import Violation, World

NODE, HOLDER = 1, PortConsumer(5, 9, 1)


def checker(credit: int = 0, *, is_one_by_one: bool = True) -> Asked:
    asked = Asked(World(1), is_one_by_one=is_one_by_one)
    asked.on_credit(NODE, HOLDER, credit, 0)
    return asked


def send(asked: Asked, delivery: int, sequence: int) -> None:
    asked.on_handed_out(NODE, HOLDER, sequence, 1, 0)
    asked.on_sent_through(NODE, HOLDER, delivery)


def test_what_was_asked_for_may_come_and_no_more() -> None:
    asked = checker()
    asked.on_credit(NODE, HOLDER, 1, None)
    send(asked, 1, 50)
    asked.on_acknowledged(HOLDER.session, 1, 0, Ranges([(50, 51)]))
    with pytest.raises(Violation, match="I32 asked"):
        send(asked, 2, 51)


def test_nothing_comes_behind_the_word_that_it_is_drained() -> None:
    asked = checker(credit=3)
    send(asked, 1, 50)
    asked.on_drained(NODE, HOLDER)
    with pytest.raises(Violation, match="asked for 1"):
        send(asked, 2, 51)


def test_without_a_prefetch_there_is_one_message_at_a_time() -> None:
    asked = checker()
    asked.on_credit(NODE, HOLDER, 2, None)
    send(asked, 1, 50)
    with pytest.raises(Violation, match="unacknowledged"):
        send(asked, 2, 51)


@pytest.mark.parametrize("is_one_by_one", [True, False])
def test_what_was_given_back_or_lost_is_not_had_any_more(is_one_by_one: bool) -> None:
    asked = checker(is_one_by_one=is_one_by_one)
    asked.on_credit(NODE, HOLDER, 3, None)
    send(asked, 1, 50)
    asked.on_given_back(NODE, HOLDER.session, 0, Ranges([(50, 51)]))
    send(asked, 2, 51)
    asked.on_lost_told(NODE, HOLDER, Ranges([(51, 52)]))
    send(asked, 3, 52)


def test_a_consumer_that_comes_back_has_what_it_kept() -> None:
    asked = checker()
    asked.on_holder_gone(NODE, HOLDER)
    again = PortConsumer(6, HOLDER.session, HOLDER.consumer)
    asked.on_credit(NODE, again, 2, 1)
    asked.on_kept(NODE, again, Ranges([(50, 51)]))
    with pytest.raises(Violation, match="unacknowledged"):
        asked.on_handed_out(NODE, again, 51, 1, 0)


def test_a_consumer_that_comes_back_has_not_what_it_gave_back_before_the_answer_came() -> None:
    asked = checker()
    asked.on_holder_gone(NODE, HOLDER)
    again = PortConsumer(6, HOLDER.session, HOLDER.consumer)
    asked.on_credit(NODE, again, 2, 1)
    asked.on_given_back(NODE, HOLDER.session, 0, Ranges([(50, 51)]))
    asked.on_kept(NODE, again, Ranges([(50, 51)]))
    asked.on_handed_out(NODE, again, 51, 1, 0)


def test_a_client_may_ask_before_it_hears_that_its_consumer_has_ended() -> None:
    asked = checker()
    asked.on_holder_gone(NODE, HOLDER)
    asked.on_credit(NODE, HOLDER, 11, None)
    asked.on_drained(NODE, HOLDER)
