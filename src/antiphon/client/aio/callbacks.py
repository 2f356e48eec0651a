"""Callbacks: the functions that an application has the connection call, one at a time and in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger("antiphon")


class Callbacks:
    """A call begins when the one before has ended. A coroutine function is awaited in a task."""

    def __init__(self) -> None:
        self._due: deque[tuple[str, Callable[[], Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_calling = False

    def call(self, name: str, function: Callable[..., Any] | None, *given: object) -> None:
        """Call it now, or after the calls that are under way; what it raises is logged."""
        if function is not None:
            self._due.append((name, partial(function, *given)))
            if self._task is None and not self._is_calling:
                self._go_on()

    def _go_on(self) -> None:
        self._is_calling, self._task = True, None
        while self._due and self._task is None:
            name, function = self._due.popleft()
            try:
                result = function()
            except Exception:
                log.exception("%s of a connection raised", name)
                continue
            if asyncio.iscoroutine(result):
                self._task = asyncio.get_running_loop().create_task(_logged(name, result))
                self._task.add_done_callback(lambda task: self._go_on())
        self._is_calling = False


async def _logged(name: str, callback: Any) -> None:
    try:
        await callback
    except Exception:
        log.exception("%s of a connection raised", name)
