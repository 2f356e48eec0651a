"""Once: something that is done on first use, once, for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Runs a coroutine when it is first asked for, and remembers the result.

    Whoever is cancelled while waiting does not stop it for the others. A failure is told
    to all who waited; the next one to ask tries again.
    """

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._task: asyncio.Task[T] | None = None
        self.result: T | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def get(self) -> T:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._start())
            self._task.add_done_callback(self._note)
        return await asyncio.shield(self._task)

    def _note(self, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._task = None
        else:
            self.result = task.result()
