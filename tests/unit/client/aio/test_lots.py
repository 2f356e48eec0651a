"""What a thread hands out by itself, and what the loop takes note of."""

from __future__ import annotations

from antiphon import clock
from antiphon.client.aio.lots import Lot, LotProgress
from antiphon.client.core.client import NEVER_NS


def lot(count: int = 5, until_ns: int = NEVER_NS) -> Lot:
    return Lot([], count, until_ns)


def test_places_are_handed_out_in_order_and_once() -> None:
    one = lot(3)
    assert [one.hand_out() for _ in range(5)] == [0, 1, 2, -1, -1]


def test_the_loop_sees_what_is_new_since_it_last_looked() -> None:
    one = lot()
    one.hand_out()
    one.hand_out()
    assert one.look(is_last=False) == LotProgress(0, 2, frozenset(), was_called=True)
    assert one.look(is_last=False) == LotProgress(2, 2, frozenset())
    one.hand_out()
    assert one.look(is_last=True) == LotProgress(2, 3, frozenset(), was_called=True)
    assert one.hand_out() == -1


def test_nothing_is_handed_out_when_it_may_be_anothers() -> None:
    one = lot(until_ns=clock.now_ns())
    assert one.hand_out() == -1
    assert one.hand_out_in_turn(-1) == -1
    assert one.look(is_last=False) == LotProgress(0, 0, frozenset())


def test_an_iteration_is_done_with_one_when_it_takes_the_next() -> None:
    one = lot(3)
    assert one.hand_out_in_turn(-1) == 0
    assert one.look(is_last=False).in_turn == {0}
    assert one.hand_out_in_turn(0) == 1
    assert one.hand_out_in_turn(-1) == 2, "another iteration"
    assert one.look(is_last=False) == LotProgress(1, 3, frozenset({1, 2}))
    assert one.hand_out_in_turn(1) == -1, "there are no more, so it is not done with that one yet"
    assert one.look(is_last=False).in_turn == {1, 2}
    assert one.finish(1)
    assert one.look(is_last=True).in_turn == {2}


def test_iterations_are_done_with_theirs_when_receive_takes_one() -> None:
    one = lot(3)
    assert one.hand_out_in_turn(-1) == 0
    assert one.hand_out() == 1
    assert one.look(is_last=False) == LotProgress(0, 2, frozenset(), was_called=True)
    assert one.hand_out_in_turn(0) == 2
    assert one.look(is_last=False) == LotProgress(2, 3, frozenset({2}))


def test_whoever_is_done_after_the_recall_has_to_say_so() -> None:
    one = lot()
    one.hand_out_in_turn(-1)
    assert one.look(is_last=True) == LotProgress(0, 1, frozenset({0}))
    assert one.hand_out_in_turn(0) == -1
    assert not one.finish(0)


def test_what_iterations_work_on_stands_between_runs_of_the_others() -> None:
    assert list(LotProgress(3, 9, frozenset({1, 4, 5, 8})).runs()) == [
        (1, False),
        (1, True),
        (1, True),
        (2, False),
        (1, True),
    ]
    assert list(LotProgress(3, 3, frozenset({1})).runs()) == []
