"""When to set a timer of an event loop to."""

from __future__ import annotations

_NS_PER_MS = 1_000_000


def timer_at(deadline_ns: int) -> float:
    """The time for `call_at`, such that the timer does not strike too early.

    A loop may count in whole milliseconds. Who wakes early finds nothing to do and sets the timer again, to
    nothing, and again, until the time has come.
    """
    return -(-deadline_ns // _NS_PER_MS) / 1000
