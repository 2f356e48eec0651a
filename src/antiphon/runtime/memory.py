"""Memory: returned to the system after a checkpoint, and garbage collected seldom."""

from __future__ import annotations

import ctypes
import gc


def give_back() -> None:
    """Let the C library return free memory, where it can: glibc keeps the megabytes of a checkpoint.

    Takes a millisecond or so; call it in a worker thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_seldom() -> None:
    """Let the garbage collector look for cycles seldom, and never again at the present objects.

    By default it would look through everything under way after every seven hundred objects: a sixth of the
    time of a busy node. The objects of an envelope are freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
