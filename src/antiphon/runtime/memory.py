"""Memory that was needed for a moment, given back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Let the C library return free memory, where it can.

    A checkpoint's bytes are many megabytes for a moment. glibc keeps such memory for the next one,
    which would double what a backlog costs. Takes a millisecond or so; call it in a worker thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
