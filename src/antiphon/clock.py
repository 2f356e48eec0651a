"""The clock of all machines of a process, and the timers of its event loop.

The clock goes on while the machine is suspended (CLOCK_BOOTTIME), where the system has such a clock. A
virtual machine that is paused sees no time pass by any clock of its own, so no promise may rest on a clock
alone.
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
    """The time for `call_at` of an event loop, such that the timer does not fire before its deadline.

    A loop may count in whole milliseconds. A process that wakes early finds nothing to do and sets the timer
    again, in vain, until the time has come.
    """
    # In this order: time that passes in between makes the timer late, and not early.
    ahead_ns = now_ns() - time.monotonic_ns()
    return -(-(deadline_ns - ahead_ns) // _NS_PER_MS) / 1000
