"""Memory: given back to the system when it was needed for a moment, and looked through seldom."""

from __future__ import annotations

import ctypes
import gc


def give_back() -> None:
    """Let the C library return free memory, where it can.

    A checkpoint's bytes are many megabytes for a moment. glibc keeps such memory for the next one,
    which would double what a backlog costs. Takes a millisecond or so; call it in a worker thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_seldom() -> None:
    """Let the garbage collector look for cycles seldom, and never again at what is there by now.

    What is made for an envelope is freed without it. At its default it would look through everything that
    is on its way after every seven hundred objects: a sixth of the time of a busy member.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
