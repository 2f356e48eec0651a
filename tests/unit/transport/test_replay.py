"""The replay window, step by step."""

from __future__ import annotations

from antiphon.transport.replay import ReplayWindow

Window = ReplayWindow[None]


def test_in_order_nothing_is_kept() -> None:
    window = Window(0)
    for number in range(10_000):
        assert window.is_fresh(number)
        window.take(number)
    assert not window.missing
    assert not window.is_fresh(9_999)


def test_what_was_overtaken_may_still_come_once() -> None:
    window = Window(0)
    window.take(2)
    assert list(window.missing) == [0, 1]
    window.take(1)
    assert not window.is_fresh(1)
    assert window.is_fresh(0)


def test_what_was_there_before_the_beginning_is_never_fresh() -> None:
    window = Window(100)
    assert not window.is_fresh(99)
    window.take(100)
    assert not window.is_fresh(99)


def test_what_is_further_behind_than_the_window_is_given_up() -> None:
    window = Window(0, size=4)
    window.take(1)
    for number in range(2, 6):
        window.take(number)
    assert not window.is_fresh(0)
    assert window.given_up == 1


def test_a_jump_keeps_no_more_than_the_window() -> None:
    window = Window(0, size=4)
    window.take(1_000_000)
    # The window reaches four numbers back from the next one.
    assert list(window.missing) == [999_997, 999_998, 999_999]
    assert window.given_up == 999_997


def test_hearing_how_far_a_stream_is_shows_what_is_missing() -> None:
    window = Window(0)
    assert window.expect(3) == range(3)
    assert window.expect(3) == range(0)
    assert window.expect(2) == range(0)
    window.take(3)
    assert list(window.missing) == [0, 1, 2]


def test_what_cannot_be_had_any_more_is_given_up() -> None:
    window = Window(0)
    window.expect(5)
    window.give_up_below(3)
    assert list(window.missing) == [3, 4]
    assert window.given_up == 3
    assert not window.is_fresh(2)
