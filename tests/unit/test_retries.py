"""When a question is asked again: at equal distances, to its end, and only so many at once."""

from __future__ import annotations

from antiphon.retries import _MOMENT_NS, _STALE_MAX, Due, Retries


def armed(now_ns: int = 0, at_once: int | None = None, **entries: int) -> Retries[str, str]:
    """Entries with these intervals, put in a step that ended at `now_ns`."""
    retries: Retries[str, str] = Retries(at_once)
    for key, interval_ns in entries.items():
        retries.put(key, key.upper(), interval_ns)
    retries.arm(now_ns)
    return retries


def due(retries: Retries[str, str], now_ns: int) -> list[str]:
    return [key for key, _, _ in retries.due(now_ns)]


def test_an_entry_is_due_at_equal_distances_until_it_is_forgotten() -> None:
    retries = armed(100, a=10)
    assert retries.next_deadline_ns() == 110
    assert due(retries, 109) == []
    assert list(retries.due(110)) == [Due("a", "A", False)]
    assert due(retries, 110) == [] and retries.next_deadline_ns() == 120
    assert due(retries, 125) == ["a"] and retries.next_deadline_ns() == 135
    assert retries.forget("a") == "A" and retries.forget("a") is None
    assert (due(retries, 135), retries.next_deadline_ns(), len(retries)) == ([], None, 0)


def test_an_entry_waits_from_the_end_of_its_step_on() -> None:
    retries: Retries[str, str] = Retries()
    retries.put("a", "A", 10)
    assert retries.next_deadline_ns() is None
    assert retries.get("a") == "A", "an answer may come in the same step"
    retries.arm(5)
    retries.arm(9)
    assert retries.next_deadline_ns() == 15


def test_of_two_entries_with_one_key_the_later_one_counts() -> None:
    retries = armed(a=10)
    retries.put("a", "other", 30)
    retries.arm(5)
    assert due(retries, 10) == []
    assert list(retries.due(35)) == [Due("a", "other", False)]


def test_an_entry_with_an_end_is_over_then_and_forgotten() -> None:
    retries: Retries[str, str] = Retries()
    retries.put("a", "A", 300, wait_ns=1_000)
    retries.put("b", "B", 300, wait_ns=300, longer_ns=500)
    retries.arm(0)
    assert [list(retries.due(at)) for at in (300, 600, 799)] == [[("a", "A", False)], [("a", "A", False)], []]
    assert list(retries.due(800)) == [("b", "B", True)]
    assert due(retries, 900) == ["a"] and retries.next_deadline_ns() == 1_000
    assert list(retries.due(1_000)) == [("a", "A", True)]
    assert retries.get("a") is None and retries.next_deadline_ns() is None


def test_only_so_many_are_due_at_once_and_those_that_wait_longest_first() -> None:
    retries = armed(at_once=2, e=5, d=4, c=3, b=2, a=1)
    assert due(retries, 10) == ["a", "b"]
    assert due(retries, 10) == [] and retries.next_deadline_ns() == 10 + _MOMENT_NS
    retries.forget("c")
    assert due(retries, 10 + _MOMENT_NS) == ["d", "e"]


def test_what_is_hurried_is_due_in_the_same_step_and_then_in_its_turn() -> None:
    retries = armed(a=10, b=20)
    retries.put("c", "C", 30)
    retries.hurry("c")
    retries.hurry("b")
    assert due(retries, 5) == ["c", "b"]
    retries.arm(5)
    assert [due(retries, at) for at in (10, 25, 35)] == [["a"], ["a", "b"], ["c", "a"]]


def test_what_happens_to_one_entry_may_forget_or_put_another() -> None:
    retries = armed(a=10, b=10, c=10)
    seen = []
    for key, _, _ in retries.due(10):
        seen.append(key)
        retries.forget("b")
        retries.put("d", "D", 10)
    assert seen == ["a", "c"]
    retries.arm(10)
    assert due(retries, 20) == ["a", "c", "d"]


def test_forgotten_entries_take_no_memory_for_long() -> None:
    retries = armed(a=1_000)
    for _ in range(1_000):
        retries.put("b", "B", 1_000)
        retries.arm(0)
        retries.forget("b")
    assert len(retries._due) <= 2 + _STALE_MAX + 1
    assert due(retries, 1_000) == ["a"]
