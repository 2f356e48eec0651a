"""When a question is asked: after a while, less and less often, and at once behind an answer."""

from __future__ import annotations

from itertools import pairwise

from antiphon.bus.chance import Chance
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.repair import Repair

CONFIG = GroupConfig.of("main", (1,), fetch_delay_ms=10, fetch_delay_ms_max=80)


def wait(repair: Repair) -> int:
    """Until the next question; returns when it was asked."""
    assert repair.at is not None
    assert not repair.is_due(repair.at - 1)
    at = repair.at
    assert repair.is_due(at)
    return at


def test_nobody_asks_at_once() -> None:
    repair = Repair(CONFIG, Chance(1))
    assert repair.at is None
    assert not repair.is_due(0)
    assert 10 * MS <= wait(repair) < 20 * MS


def test_nodes_do_not_ask_at_the_same_moment() -> None:
    first = set()
    for seed in range(20):
        repair = Repair(CONFIG, Chance(seed))
        repair.is_due(0)
        first.add(wait(repair))
    assert len(first) == 20


def test_questions_in_vain_grow_rarer_up_to_a_limit_and_never_end() -> None:
    repair = Repair(CONFIG, Chance(1))
    repair.is_due(0)
    asked = [wait(repair) for _ in range(8)]
    waits = [after - before for before, after in pairwise(asked)]
    limits = [20, 40, 80, 80, 80, 80, 80]
    assert all(limit * MS <= one < 2 * limit * MS for one, limit in zip(waits, limits, strict=True))
    assert repair.attempts == 8


def test_what_moves_by_itself_is_waited_for_from_the_beginning() -> None:
    repair = Repair(CONFIG, Chance(1))
    repair.is_due(0)
    for _ in range(5):
        now_ns = wait(repair)
    assert not repair.is_due(now_ns, has_moved=True)
    assert repair.attempts == 0
    assert wait(repair) < now_ns + 20 * MS


def test_behind_an_answer_the_next_question_follows_at_once() -> None:
    repair = Repair(CONFIG, Chance(1))
    repair.is_due(0)
    now_ns = wait(repair)
    assert repair.is_due(now_ns + 1, has_moved=True, is_answered=True)
    assert not repair.is_due(now_ns + 2), "one question at a time"


def test_when_nothing_is_missing_there_is_no_deadline() -> None:
    repair = Repair(CONFIG, Chance(1))
    repair.is_due(0)
    repair.rest()
    assert repair.at is None
