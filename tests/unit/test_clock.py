"""The clock goes on in a suspended machine; a timer strikes when the time has come, and not before."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import clock

HOUR_NS = 3_600_000_000_000


@pytest.fixture
def suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine was suspended for an hour since it started: the loop's clock is behind by that."""
    monkeypatch.setattr(clock, "now_ns", lambda: time.monotonic_ns() + HOUR_NS)


@given(ahead_ms=st.integers(0, 10**9), more_ns=st.integers(0, 999_999))
def test_a_timer_is_set_to_a_whole_millisecond_that_is_not_too_early(ahead_ms: int, more_ns: int) -> None:
    ahead_ns = ahead_ms * 1_000_000 + more_ns
    at_s = clock.timer_at(clock.now_ns() + ahead_ns)
    late_s = at_s - time.monotonic() - ahead_ns / 1e9
    assert at_s * 1000 == pytest.approx(round(at_s * 1000))
    # The clock is asked twice: what passes in between is not the timer's lateness.
    assert -0.5 < late_s < 0.002


@pytest.mark.usefixtures("suspended")
def test_a_timer_is_told_in_the_time_of_the_loop_which_stood_still_while_the_machine_was_suspended() -> None:
    before_s = time.monotonic()
    at_s = clock.timer_at(clock.now_ns() + 1_000_000_000)
    assert before_s + 1 <= at_s <= time.monotonic() + 1.002


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_the_clock_is_the_one_that_counts_what_a_machine_was_suspended() -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before_ns <= clock.now_ns() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
