"""The free numbers of a source by priority, and those that wait."""

from __future__ import annotations

from antiphon.message_manager.delivery.ready import Ready
from antiphon.ranges import Ranges


def test_free_numbers_are_counted_over_all_priorities() -> None:
    ready = Ready()
    assert not ready and not ready.has_others
    ready.plain.add(1, 4)
    ready.of(7).add(10, 12)
    assert (ready.count, len(ready), ready.has(7), ready.has(9)) == (5, 2, True, False)
    assert ready.all() == Ranges([(1, 4), (10, 12)])
    assert ready.clip(3, 11) == Ranges([(3, 4), (10, 11)])


def test_numbers_are_taken_wherever_they_are() -> None:
    ready = Ready()
    ready.plain.add(1, 4)
    ready.of(7).add(10, 12)
    ready.wait(5_000, 20, 22)
    assert ready.take(Ranges([(3, 21)])) == Ranges([(3, 4), (10, 12), (20, 21)])
    assert (ready.all(), ready.waiting) == (Ranges([(1, 3)]), Ranges([(21, 22)]))
    assert ready.remove_all(Ranges([(1, 30)])) == 3
    assert not ready and ready.wakes_at_ms is None


def test_numbers_wake_at_their_time_in_any_order() -> None:
    ready = Ready()
    ready.wait(300, 1, 3)
    ready.wait(100, 7, 8)
    ready.wait(200, 5, 6)
    assert ready.wakes_at_ms == 100
    assert ready.wake(99) == Ranges()
    assert ready.wake(200) == Ranges([(5, 6), (7, 8)])
    assert (ready.wakes_at_ms, ready.waiting) == (300, Ranges([(1, 3)]))


def test_entries_of_numbers_that_wait_no_more_are_dropped() -> None:
    ready = Ready()
    for number in range(1_000):
        ready.wait(1_000_000 - number, number, number + 1)
    ready.remove_all(Ranges([(2, 1_000)]))
    assert len(ready._times) <= 20 and ready.waiting.count == 2
    assert ready.wakes_at_ms == 999_999
