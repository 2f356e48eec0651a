"""LoopThread: an event loop in a thread of its own, and calls into it from other threads.

A call waits until the loop has its answer. A thread that is interrupted while waiting (Ctrl-C) leaves
nothing half done: the call is cancelled, and if its result was on the way already, undone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from antiphon import errors
from antiphon.client.aio import block

T = TypeVar("T")
S = TypeVar("S")
OpenedT = TypeVar("OpenedT", bound=block.Block)

ROWS_AT_ONCE = 1_000
"""Bodies handed from the caller's thread to the loop's: going over costs as much as sending a few."""

# Nothing has to be waited for to take these; or they are no bodies, and refused.
_ALL_THERE = (list, tuple, str, bytes, bytearray, memoryview, Mapping)


class PublishUncertain(errors.PublishUncertain):
    """The answer was lost. The messages may or may not have been stored.

    >>> try:
    ...     receipt = producer.send(b"...")
    ... except antiphon.PublishUncertain as error:
    ...     receipt = error.resend(timeout=300)
    """

    _loop: LoopThread

    def resend(self, timeout: Any = None) -> Any:
        """Send the messages again under the same ids, and wait for their outcome for `timeout` seconds.

        Returns the receipt of a `send`, or the receipts of those messages of a `send_many` whose fate was
        not known: they follow the `confirmed` first ones.
        """
        if not self._loop.is_over:
            return self._loop.run(super().resend(timeout))
        # The connection was closed, and its thread with it. This goes over another one.
        loop = LoopThread()
        try:
            return loop.run(super().resend(timeout))
        finally:
            loop.end()


class Lender(Protocol):
    """Lets the application do something in its own thread, without asking the loop for each message."""

    def recall(self) -> None:
        """Take note of what it did; from now on it asks."""


class Call(Generic[T]):
    """A coroutine on its way in the loop, and the other thread that waits for it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None) -> None:
        self._coroutine = coroutine
        self._undo = undo
        self._task: asyncio.Task[T] | None = None
        self._is_abandoned = False
        self._guard = threading.Lock()
        self._ended = threading.Event()

    def begin(self) -> None:
        # In the loop's thread.
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._end)
        if self._is_abandoned:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        with self._guard:
            self._ended.set()
            is_in_vain = self._is_abandoned
        if is_in_vain and not task.cancelled() and task.exception() is None and self._undo is not None:
            self._undo(task.result())

    def abandon(self) -> None:
        """Nobody waits any more."""
        with self._guard:
            is_late = self._ended.is_set()
            self._is_abandoned = True
        if self._task is None:
            return
        loop = self._task.get_loop()
        loop.call_soon_threadsafe(self._end if is_late else self._cancel, self._task)

    def _cancel(self, task: asyncio.Task[T]) -> None:
        task.cancel()

    @property
    def is_done(self) -> bool:
        return self._ended.is_set()

    async def progress(self, event: Coroutine[Any, Any, Any]) -> None:
        """In the loop: wait for this, or until the call has ended."""
        assert self._task is not None, "calls begin in the order of asking"
        waiting = asyncio.ensure_future(event)
        await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    def wait(self) -> T:
        """The result, or the error, of the coroutine."""
        try:
            self._ended.wait()
        except BaseException:
            self.abandon()
            raise
        assert self._task is not None, "a call has ended that never began"
        return self._task.result()


class LoopThread:
    """An event loop in a thread; `end` ends both."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="antiphon-client", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        self._is_ended = False
        self.lending: dict[Lender, None] = {}
        """In the loop's thread alone: where the application may go on by itself."""

    @property
    def is_over(self) -> bool:
        """Has it ended? In a process made by `fork` there is no such thread, and there never will be."""
        return self._is_ended or os.getpid() != self._process

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _cancel_all(self) -> None:
        """What an interrupted thread left behind."""
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> Call[T]:
        """Start a coroutine in the loop's thread. `undo` takes back a result that nobody waits for."""
        call = Call(coroutine, undo)
        try:
            self.call(self._begin, call)
        except errors.LocalError:
            coroutine.close()
            raise
        return call

    def _begin(self, call: Call[Any]) -> None:
        # What the application has done by itself comes before what it asks for now.
        lending, self.lending = self.lending, {}
        for lender in lending:
            lender.recall()
        call.begin()

    def run(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """Run a coroutine in the loop's thread, and wait for its result."""
        return self.wait(self.begin(coroutine, undo))

    def wait(self, call: Call[T]) -> T:
        """The result of what was begun; its errors are those of the blocking face."""
        try:
            return call.wait()
        except errors.PublishUncertain as error:
            raise self.with_loop(error) from error

    def with_loop(self, error: errors.PublishUncertain) -> PublishUncertain:
        """The same error, to be sent again without `await`."""
        blocking = PublishUncertain(error.text, message_ids=error.message_ids, confirmed=error.confirmed)
        blocking._again = error._again
        blocking._loop = self
        return blocking

    @classmethod
    def with_opened(cls, inner: OpenedT) -> tuple[LoopThread, OpenedT]:
        """A new loop, in which this was opened."""
        loop = cls()
        try:
            return loop, loop.open(lambda: inner)
        except BaseException:
            loop.end()
            raise

    def open(self, make: Callable[[], OpenedT]) -> OpenedT:
        """Make this in the loop's thread, and open it."""

        async def opened() -> OpenedT:
            return await make()

        return self.run(opened())

    def close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close this. When the loop is over, everything in it is closed."""
        if not self.is_over:
            self.run(close())

    def look(self, look: Callable[[], T]) -> T:
        """What the loop's thread sees."""

        async def looked() -> T:
            return look()

        return self.run(looked())

    def taken(self, values: Iterable[T]) -> Iterable[T]:
        """The same, but for an iterator: what it gives is taken in the caller's thread."""
        return list(values) if isinstance(values, Iterator) else values

    def each(self, values: AsyncIterator[S], face: Callable[[S], T]) -> Iterator[T]:
        """What comes one by one."""

        async def following() -> S | None:
            return await anext(values, None)

        async def closed() -> None:
            if isinstance(values, AsyncGenerator):
                await values.aclose()

        try:
            while (value := self.run(following())) is not None:
                yield face(value)
        finally:
            self.leave(closed())

    @contextmanager
    def block(self, inner: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What `async with` does."""
        entered = self.run(inner.__aenter__())
        try:
            yield entered
        except BaseException as error:
            if not self.is_over:
                self.run(inner.__aexit__(type(error), error, error.__traceback__))
            raise
        self.run(inner.__aexit__(None, None, None))

    def call(self, action: Callable[..., Any], *args: Any) -> None:
        """Do this soon in the loop's thread, in the order of asking."""
        if threading.current_thread() is self._thread:
            raise errors.LocalError("a callback may not use the connection: have another thread do that")
        if os.getpid() != self._process:
            raise errors.NotConnected(
                f"the connection belongs to process {self._process}, from which this one ({os.getpid()}) was "
                "forked: connect again here"
            )
        try:
            if not self.is_over:
                self._loop.call_soon_threadsafe(action, *args)
                return
        except RuntimeError:
            # It was closed by another thread just now.
            pass
        raise errors.NotConnected("the connection is closed")

    def leave(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have this done without waiting for it.

        What ends when it is garbage may do so in any thread, the loop's own too, and when the interpreter
        ends and no other thread runs any more: a thread that waited then would wait for ever.
        """
        try:
            if os.getpid() == self._process:
                self._loop.call_soon_threadsafe(Call(coroutine, None).begin)
                return
        except RuntimeError:
            # The loop is closed, and what was open in it, too.
            pass
        coroutine.close()

    def end(self) -> None:
        """Stop the loop and wait for the thread. Once more does nothing."""
        if not self.is_over:
            self._is_ended = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


# -- the classes of the face -----------------------------------------------------------------------


class Face(Generic[T]):
    """A class of the asyncio face, whose calls wait."""

    def __init__(self, loop: LoopThread, inner: T) -> None:
        self._loop = loop
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


class Block(Face[T]):
    """A class whose objects an application uses for a while, and closes; they were opened by the call that
    made them."""

    def close(self) -> None:
        """What the end of its block does."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except errors.AntiphonError:
            # What went wrong inside says more than that the end went wrong too.
            if kind is None:
                raise


# -- bodies that are taken from an iterable in the caller's thread, and sent in the loop's ---------


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
