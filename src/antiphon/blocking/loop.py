"""LoopThread: an event loop in a thread of its own, and calls into it from other threads.

A call waits until the loop has its answer. Whoever is interrupted while waiting (Ctrl-C) leaves
nothing half done: the call is cancelled, and if its result was on the way already, undone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from antiphon import errors

T = TypeVar("T")


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
    """A coroutine on its way in the loop, and whoever waits for it in another thread."""

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
        """What was left behind by whoever was interrupted."""
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
        ends and no other thread runs any more: whoever waited then would wait for ever.
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
