"""Helpers of the face's classes: durations, opening on first use, and blocks that close."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from antiphon.errors import AntiphonError, LocalError

Duration: TypeAlias = float | timedelta


def seconds(value: Duration, what: str) -> float:
    """The duration in seconds; LocalError when it cannot be waited for."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        raise LocalError(f"{what} is a number of seconds or a timedelta, and not negative; it was {value!r}")
    return float(given)


TIMEOUT_DEFAULT_S = 60.0


def timeout_s(timeout: Duration | None) -> float:
    """A time limit in seconds."""
    return TIMEOUT_DEFAULT_S if timeout is None else seconds(timeout, "timeout")


T = TypeVar("T")


class Once(Generic[T]):
    """Runs a coroutine on the first call, and remembers the result.

    A cancelled waiter does not stop the coroutine for the others. A failure is told to all waiters; the next
    call tries again. With `undo` the coroutine is cancelled when no waiter is left; a result that comes in
    that instant is undone.
    """

    def __init__(
        self, start: Callable[[], Coroutine[Any, Any, T]], undo: Callable[[T], None] | None = None
    ) -> None:
        self._start = start
        self._undo = undo
        self._waiting = 0
        self._task: asyncio.Task[T] | None = None
        self.result: T | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def get(self) -> T:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._start())
            self._task.add_done_callback(self._note)
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._undo is not None and self._waiting == 1:
                self._abandon(task, self._undo)
            raise
        finally:
            self._waiting -= 1

    def _abandon(self, task: asyncio.Task[T], undo: Callable[[T], None]) -> None:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            undo(task.result())
        self._task = None
        self.result = None

    def _note(self, task: asyncio.Task[T]) -> None:
        if self._task is not task:
            return
        if task.cancelled() or task.exception() is not None:
            self._task = None
        else:
            self.result = task.result()


class Block:
    """An object that an application opens, uses for a while, and closes."""

    async def _opened(self) -> Self:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AntiphonError:
            # A failure inside the block says more than a failure of its end.
            if kind is None:
                raise
