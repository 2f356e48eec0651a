"""Outcomes: what is kept of them, in which pages they are told, and their bytes."""

from __future__ import annotations

import pytest

from antiphon.message_manager.state.outcomes import OUTCOMES_MAX, PAGE_MAX, Outcomes
from antiphon.wire.commands import Outcome, OutcomeCode
from antiphon.wire.primitives import Reader, Writer


def refused(first: int, count: int = 1) -> Outcome:
    return Outcome(first, count, OutcomeCode.REFUSED, 0, f"no {first}")


def outcomes_of(*rows: Outcome) -> Outcomes:
    outcomes = Outcomes()
    for row in rows:
        outcomes.note(row)
    return outcomes


def encoded(outcomes: Outcomes) -> bytes:
    writer = Writer()
    outcomes.write(writer)
    return writer.join()


def test_what_lies_behind_a_number_is_told_and_nothing_else() -> None:
    outcomes = outcomes_of(refused(3), refused(5, 2), refused(9))
    assert outcomes.page(0, 12) == (0, 12, (refused(3), refused(5, 2), refused(9)))
    assert outcomes.page(4, 12) == (4, 12, (refused(5, 2), refused(9)))
    assert outcomes.page(9, 12) == (9, 12, ())
    assert Outcomes().page(0, 12) == (0, 12, ())


def test_what_is_too_much_for_one_message_comes_in_pages_without_a_gap() -> None:
    rows = [refused(2 * at + 1) for at in range(PAGE_MAX + 10)]
    outcomes = outcomes_of(*rows)
    after, upto, first = outcomes.page(0, 5_000)
    assert (after, upto, len(first)) == (0, rows[PAGE_MAX - 1].first, PAGE_MAX)
    after, upto, rest = outcomes.page(upto, 5_000)
    assert (upto, list(first + rest)) == (5_000, rows)


def test_the_oldest_are_forgotten_and_nobody_vouches_for_them_any_more() -> None:
    outcomes = outcomes_of(*(refused(at) for at in range(1, OUTCOMES_MAX + 2)))
    assert len(outcomes) == OUTCOMES_MAX // 2 + 1
    assert outcomes.floor == OUTCOMES_MAX // 2
    after, _, rows = outcomes.page(0, 1 << 20)
    assert (after, rows[0].first) == (outcomes.floor, outcomes.floor + 1)


def test_all_replicas_forget_the_same_wherever_they_began() -> None:
    rows = [refused(at) for at in range(1, OUTCOMES_MAX + 100)]
    whole = outcomes_of(*rows)
    part = Outcomes.read(Reader(encoded(outcomes_of(*rows[:10_000]))))
    for row in rows[10_000:]:
        part.note(row)
    assert encoded(part) == encoded(whole)


def test_the_newest_few_begin_behind_the_one_before_them() -> None:
    outcomes = outcomes_of(refused(3), refused(5, 2), refused(9))
    assert outcomes.newest(3) == 0
    assert outcomes.newest(2) == 3
    assert outcomes.newest(1) == 6


def test_outcomes_come_in_the_order_of_their_numbers() -> None:
    outcomes = outcomes_of(refused(5))
    with pytest.raises(AssertionError, match="behind that of 5"):
        outcomes.note(refused(5))
