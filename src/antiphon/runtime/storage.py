"""Storage: the threads and files of one channel's keeper (`bus/keeper.py`), which decides everything.

An fsync error is final: the directory is marked, and the node ends. So is every other error of a callback or
a thread here: asyncio would only log it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.bus.keeper import CheckpointFile, Do, Keeper, KeeperEffect, Sync, Tell, Work
from antiphon.errors import StorageFailed
from antiphon.runtime.disk import FileDisk, SyncEnd, SyncThread
from antiphon.runtime.memory import give_back


class ChannelStorage:
    def __init__(
        self,
        disk: FileDisk,
        keeper: Keeper,
        tell: Callable[[bus.Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._tell = tell
        self._fail = fail
        self.keeper = keeper
        self.carry_out = keeper.take
        self._loop = asyncio.get_running_loop()
        self._sync = SyncThread(disk, self._sync_ended)
        self._sync_failure: StorageFailed | None = None
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-files")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0
        self._is_soon = False
        self._arm(keeper.next_deadline_ns())

    def flush(self) -> None:
        if self.keeper.is_asked:
            self._do(self.keeper.flush(clock.now_ns()))

    # --- effects -----------------------------------------------------------------------------------

    def _do(self, effects: list[KeeperEffect]) -> None:
        for effect in effects:
            if self.keeper.is_over:
                return
            match effect:
                case Tell(event):
                    self._tell(event)
                case Sync(ticket, is_in_place):
                    if is_in_place:
                        self._on_sync(self._sync.sync_now(ticket))
                    else:
                        self._sync.request(ticket)
                case Do(work):
                    self._in_thread(work)
        deadline_ns = self.keeper.next_deadline_ns()
        # A timer that is too early costs one idle tick; moving it with every sync would cost more. But
        # one of envelopes that wait would strike with each of them, though the entries have come.
        if (
            self._timer is None
            or deadline_ns < self._timer_at_ns
            or (self._is_soon and not self.keeper.is_waiting)
        ):
            self._arm(deadline_ns)

    def _sync_ended(self, end: SyncEnd) -> None:
        # In the sync thread. A failure is noted here too: the loop may take no more steps.
        self._sync_failure = end.failure
        self._loop.call_soon_threadsafe(self._guard, self._on_sync, end)

    def _on_sync(self, end: SyncEnd) -> None:
        if end.failure is not None:
            self._disk.mark_poisoned(end.failure.text)
            self._give_up(end.failure)
        else:
            self._do(self.keeper.synced(clock.now_ns(), end.ticket, end.took_ns))

    def _in_thread(self, work: Work) -> None:
        ended = self._loop.run_in_executor(self._workers, work.run)
        ended.add_done_callback(lambda future: self._guard(self._on_work, future, work))

    def _on_work(self, future: asyncio.Future[None], work: Work) -> None:
        # A failed write is as final as a failed sync: the thread's error is raised here.
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if self._disk.has_failed_sync:
                # Until the next boot the system's memory may show names of files that no disk holds.
                self._disk.mark_poisoned(str(error))
            raise error
        self._do(self.keeper.done(clock.now_ns(), work))
        if isinstance(work, CheckpointFile):
            # Behind everything that still refers to the checkpoint's bytes.
            self._loop.call_soon(self._guard, self._give_back)

    def _give_back(self) -> None:
        self._workers.submit(give_back)

    def _arm(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ns = deadline_ns
        self._is_soon = self.keeper.is_waiting
        self._timer = self._loop.call_at(clock.timer_at(deadline_ns), self._guard, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._do(self.keeper.tick(clock.now_ns()))

    # --- the end -----------------------------------------------------------------------------------

    def _guard(self, callback: Callable[..., object], *args: Any) -> None:
        if self.keeper.is_over:
            return
        try:
            callback(*args)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._end(str(error))
        self._fail(error)

    def close(self) -> None:
        """Sync everything and note that this was an orderly end. Blocking."""
        self._cancel_timer()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._sync.close()
        try:
            if self._sync_failure is not None:
                raise self._sync_failure
            # The last end of a sync was told to a loop that takes no more steps.
            self.keeper.close()
        except StorageFailed as error:
            self.keeper.fail(error.text)
            self._disk.mark_poisoned(error.text)
            raise

    def abandon(self) -> None:
        """Leave the disk as it is: the node failed."""
        self._end("the node failed")
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _end(self, why: str) -> None:
        self.keeper.fail(why)
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
