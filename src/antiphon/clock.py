"""The clock by which every machine of a process counts, and when to set a timer of an event loop to.

What it promises
    P1  The clock goes on while the machine is suspended (CLOCK_BOOTTIME), where the system has such a clock.
    P2  A timer does not strike before the clock shows its deadline.

What it leaves to others
    A virtual machine that is paused sees no time pass at all, by no clock of its own. Nothing that must
    be true may rest on a clock alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

_NS_PER_MS = 1_000_000

# Event loops count by CLOCK_MONOTONIC, which stands still in a suspended machine.
if sys.platform == "linux":
    now_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
else:
    now_ns = time.monotonic_ns


def timer_at(deadline_ns: int) -> float:
    """The time for `call_at` of an event loop, such that the timer does not strike too early.

    A loop may count in whole milliseconds. Who wakes early finds nothing to do and sets the timer again, to
    nothing, and again, until the time has come.
    """
    # Asked in this order: what passes in between makes the timer late, and not early.
    ahead_ns = now_ns() - time.monotonic_ns()
    return -(-(deadline_ns - ahead_ns) // _NS_PER_MS) / 1000
