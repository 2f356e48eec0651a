"""Feeding: bodies that are taken from an iterable in the caller's thread, and sent in the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from antiphon.blocking.loop import Call, LoopThread

T = TypeVar("T")

ROWS_AT_ONCE = 1_000
"""Bodies handed from the caller's thread to the loop's: going over costs as much as sending a few."""

# Nothing has to be waited for to take these; or they are no bodies, and refused.
_ALL_THERE = (list, tuple, str, bytes, bytearray, memoryview, Mapping)


def run_fed(
    loop: LoopThread,
    bodies: Iterable[Any],
    send: Callable[[Any], Coroutine[Any, Any, T]],
    at_once: int = ROWS_AT_ONCE,
) -> T:
    """Run what sends these, and wait for its result."""
    if isinstance(bodies, _ALL_THERE) or not isinstance(bodies, Iterable):
        return loop.run(send(bodies))
    iterator, feed = iter(bodies), Feed()
    call = loop.begin(send(feed.bodies()))
    try:
        while not call.is_done and (rows := feed.take(iterator, at_once)):
            loop.run(feed.put(rows, call))
    except BaseException:
        call.abandon()
        raise
    loop.call(feed.end)
    return loop.wait(call)


class Feed:
    """Bodies on their way from the thread that has them to the loop that sends them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[Any] | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._error: Exception | None = None

    def take(self, iterator: Iterator[Any], at_once: int) -> list[Any]:
        """The next bodies; none when the iterable is at its end, or raised."""
        try:
            return list(islice(iterator, at_once))
        except Exception as error:
            self._error = error
            return []

    async def put(self, rows: list[Any], call: Call[Any]) -> None:
        """Hand these over, once those before are taken. When sending has ended nobody takes them."""
        while not self._room.is_set() and not call.is_done:
            await call.progress(self._room.wait())
        self._room.clear()
        self._queue.put_nowait(rows)

    def end(self) -> None:
        """There will be no more."""
        self._queue.put_nowait(None)

    async def bodies(self) -> AsyncIterator[Any]:
        while (rows := await self._queue.get()) is not None:
            self._room.set()
            for body in rows:
                yield body
        if self._error is not None:
            raise self._error
