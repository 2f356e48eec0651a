"""A timer that is set so strikes when the time has come, and not before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.timers import timer_at


@given(st.integers(0, 10**16))
def test_a_timer_is_set_to_the_first_whole_millisecond_that_is_not_too_early(deadline_ns: int) -> None:
    at_ms = round(timer_at(deadline_ns) * 1000)
    assert 0 <= at_ms * 1_000_000 - deadline_ns < 1_000_000
