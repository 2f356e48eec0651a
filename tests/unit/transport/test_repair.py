"""Gaps and store, step by step: who asks when, and who gives what."""

from __future__ import annotations

from itertools import pairwise

from antiphon.bus.chance import Chance
from antiphon.transport.repair import (
    ASK_AFTER_NS,
    ASK_AGAIN_NS,
    ASK_SPREAD_NS,
    GIVE_AGAIN_NS,
    GIVE_BYTES_MAX,
    MS,
    Gaps,
    Sealed,
    Store,
    spans_of,
)
from antiphon.transport.replay import WINDOW

NOW = 1_000 * MS
GIVE_UP = 3_000 * MS


def gaps(*, is_shared: bool = False) -> Gaps:
    return Gaps(0, give_up_ns=GIVE_UP, is_shared=is_shared, chance=Chance(1))


def deadline(of: Gaps) -> int:
    assert of.next_ns is not None
    return of.next_ns


def test_a_gap_is_asked_for_after_a_moment() -> None:
    lacking = gaps()
    lacking.expect(NOW, 3)
    assert lacking.due(NOW) == []
    assert deadline(lacking) == NOW + ASK_AFTER_NS
    assert lacking.due(NOW + ASK_AFTER_NS) == [(0, 3)]


def test_what_came_in_the_meantime_is_not_asked_for() -> None:
    lacking = gaps()
    lacking.expect(NOW, 5)
    lacking.window.take(1)
    lacking.window.take(2)
    assert lacking.due(NOW + ASK_AFTER_NS) == [(0, 1), (3, 2)]


def test_when_all_has_come_there_is_nothing_to_wait_for() -> None:
    lacking = gaps()
    lacking.expect(NOW, 1)
    lacking.window.take(0)
    assert lacking.due(NOW + ASK_AFTER_NS) == []
    assert lacking.next_ns is None


def test_it_is_asked_for_again_less_and_less_often() -> None:
    lacking = gaps()
    lacking.expect(NOW, 1)
    asked_at = []
    at = deadline(lacking)
    while at < NOW + 200 * MS:
        if lacking.due(at):
            asked_at.append(at)
        at = deadline(lacking)
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses[:4] == [ASK_AGAIN_NS, 2 * ASK_AGAIN_NS, 4 * ASK_AGAIN_NS, 8 * ASK_AGAIN_NS]
    assert pauses == sorted(pauses)


def test_after_a_time_it_is_given_up() -> None:
    lacking = gaps()
    lacking.expect(NOW, 2)
    assert lacking.due(NOW + GIVE_UP) == []
    assert lacking.window.given_up == 2
    assert not lacking.window.is_fresh(0)
    assert lacking.next_ns is None


def test_where_others_may_lack_it_too_the_wait_is_drawn_by_lot() -> None:
    waits = set()
    for seed in range(20):
        lacking = Gaps(0, give_up_ns=GIVE_UP, is_shared=True, chance=Chance(seed))
        lacking.expect(NOW, 1)
        waits.add(deadline(lacking) - NOW)
    assert len(waits) > 10
    assert all(ASK_AFTER_NS <= wait < ASK_AFTER_NS + ASK_SPREAD_NS for wait in waits)


def test_who_hears_another_ask_stays_silent_for_an_interval() -> None:
    lacking = gaps(is_shared=True)
    lacking.expect(NOW, 4)
    at = deadline(lacking)
    lacking.overheard(at, [(2, 1)])
    assert lacking.due(at) == []
    assert deadline(lacking) == at + ASK_AGAIN_NS
    assert lacking.due(deadline(lacking)) == [(0, 4)]


def test_a_question_about_something_else_silences_nobody() -> None:
    lacking = gaps(is_shared=True)
    lacking.expect(NOW, 2)
    at = deadline(lacking)
    lacking.overheard(at, [(2, 100)])
    assert lacking.due(at) == [(0, 2)]


def test_gaps_found_later_are_asked_for_later() -> None:
    lacking = gaps()
    lacking.expect(NOW, 1)
    lacking.window.take(1)
    lacking.expect(NOW + ASK_AFTER_NS, 3)
    assert lacking.due(NOW + ASK_AFTER_NS) == [(0, 1)]
    assert lacking.due(NOW + 2 * ASK_AFTER_NS) == [(2, 1)]


def test_numbers_become_spans() -> None:
    assert spans_of([]) == []
    assert spans_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 1), (9, 2)]


def datagram(number: int, size: int = 10) -> Sealed:
    return Sealed(b"head %d" % number, b"x" * size)


def filled(count: int, *, size: int = 10, bytes_max: int = 1 << 30) -> Store:
    store = Store(bytes_max=bytes_max, keep_ns=GIVE_UP)
    for number in range(count):
        store.keep(NOW, number, datagram(number, size))
    return store


LATER = NOW + GIVE_AGAIN_NS


def test_what_was_kept_is_given_unchanged() -> None:
    assert filled(5).give(LATER, [(1, 2), (4, 1)]) == [datagram(1), datagram(2), datagram(4)]


def test_what_is_not_there_is_not_given() -> None:
    assert filled(3).give(LATER, [(3, 10), (1 << 60, 1 << 31)]) == []


def test_a_datagram_is_given_once_however_many_ask() -> None:
    store = filled(1)
    assert len(store.give(NOW, [(0, 1)])) == 1
    assert store.give(LATER - 1, [(0, 1)]) == []
    assert len(store.give(LATER, [(0, 1)])) == 1


def test_one_question_is_answered_with_so_many_bytes() -> None:
    store = filled(100, size=GIVE_BYTES_MAX // 4)
    assert len(store.give(LATER, [(0, 100)])) == 4
    assert len(store.give(LATER, [(0, 100)])) == 4, "and the next one with those that follow"


def test_the_oldest_goes_when_there_is_too_much() -> None:
    store = filled(10, size=100, bytes_max=350)
    assert (store.oldest, len(store), store.bytes) == (7, 3, 300)


def test_no_more_is_kept_than_a_window_reaches() -> None:
    assert filled(WINDOW + 5).oldest == 5


def test_what_nobody_asks_for_any_more_goes() -> None:
    store = filled(3)
    store.keep(NOW + 1, 3, datagram(3))
    store.expire(NOW + GIVE_UP)
    assert (store.oldest, len(store)) == (3, 1)
    store.expire(NOW + 1 + GIVE_UP)
    assert (store.oldest, len(store), store.bytes) == (4, 0, 0)
