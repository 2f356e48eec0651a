"""The event loop of a process, and the signals that end it.

A launcher needs no more of a server than this, so nothing else is loaded here.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def stop_signal() -> asyncio.Future[None]:
    """Done when SIGTERM or SIGINT asks this process to stop."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
