"""Where a storage syncs: beside the loop, or in it when that takes less than the way to the thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.bus.keeper import Keeper, KeeperEffect, KeeperSettings
from antiphon.bus.ports import JournalCounter
from antiphon.errors import NoSpace, StorageFailed
from antiphon.ids import Mid
from antiphon.journal.format import SUPERBLOCK, Settings
from antiphon.journal.journal import Journal
from antiphon.journal.ports import Buffer
from antiphon.message_manager.manager import MessageManager
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.poison import POISONED
from antiphon.runtime.storage import ChannelStorage

LIMIT_S = 60.0
MUCH = KeeperSettings().in_place_bytes_max + 1
"""So much is never synced in the loop, however quick the disk is."""
SMALL = Settings(segment_bytes=1 << 20, order_blocks=16)


class Cellar:
    """A storage, everything it told, and which thread synced."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = FileDisk(path)
        Journal.format(self.disk, SMALL, b"d" * 16, 1, "test")
        self.journal, found = Journal.open(self.disk, SMALL)
        self.journal.prepare_spare()
        self.synced: list[int] = []
        self.failures: list[BaseException] = []
        self.threads: list[str] = []
        self.is_broken = False
        self.written: list[int] = []
        # The sync thread waits for this.
        self.may_sync = threading.Event()
        self.may_sync.set()
        self._news = asyncio.Event()
        self._counter = JournalCounter()
        manager = MessageManager("a", 1, self.journal.payloads)
        settings = KeeperSettings(no_space_retry_ns=10_000_000)
        keeper = Keeper(self.journal, found, self._counter, manager, clock.now_ns(), settings)
        self.storage = ChannelStorage(self.disk, keeper, tell=self._tell, fail=self._failed)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, _: int) -> None:
        name = threading.current_thread().name
        if name.startswith("antiphon-files"):
            # A segment is made ready.
            return
        self.threads.append(name)
        assert self.may_sync.wait(LIMIT_S), "nobody let the sync end"
        if self.is_broken:
            raise OSError(5, "the disk is gone")

    def _tell(self, event: bus.Event) -> None:
        if isinstance(event, bus.Synced):
            self.synced.append(event.index)
        if isinstance(event, bus.CheckpointWritten):
            self.written.append(event.n)
        self._news.set()

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self._news.set()

    def write(self, size: int = 10) -> int:
        index = self._counter.next()
        record = bus.DataRecord(Mid(1, 1, index), 0, 1, b"x" * 16, bytes(size))
        self.storage.carry_out(bus.Append(index, record))
        self.storage.flush()
        return index

    async def until_synced(self, index: int) -> None:
        await self.until(lambda: index in self.synced)

    async def until(self, is_true: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                self._news.clear()
                await self._news.wait()


def play(story: Callable[[Cellar], Awaitable[None]], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cellar = Cellar(path, monkeypatch)
        # The first sync tells that the disk is quick.
        await cellar.until_synced(cellar.write())
        assert set(cellar.threads) == {"antiphon-sync"}
        cellar.threads.clear()
        try:
            await story(cellar)
        finally:
            if cellar.failures:
                cellar.storage.abandon()
            else:
                cellar.storage.close()
            cellar.disk.close()

    asyncio.run(run())


def test_a_quick_disk_is_synced_before_the_flush_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        index = cellar.write()
        assert cellar.synced[-1] == index
        assert cellar.threads == ["MainThread"]

    play(story, tmp_path, monkeypatch)


def test_what_is_large_or_comes_behind_it_is_synced_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        large = cellar.write(MUCH)
        behind = cellar.write()
        assert not {large, behind} & set(cellar.synced)
        await cellar.until_synced(behind)
        assert set(cellar.threads) == {"antiphon-sync"}
        assert cellar.write() in cellar.synced

    play(story, tmp_path, monkeypatch)


def test_a_sync_that_fails_in_the_loop_is_as_final_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        told = list(cellar.synced)
        cellar.is_broken = True
        cellar.write()
        assert cellar.synced == told, "it was called durable"
        (failure,) = cellar.failures
        assert isinstance(failure, StorageFailed)
        assert (tmp_path / POISONED).exists()
        with pytest.raises(StorageFailed):
            cellar.write()
        assert len(cellar.threads) == 1, "a failed sync was tried again"

    play(story, tmp_path, monkeypatch)


def test_a_sync_that_fails_at_the_end_is_as_final_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        cellar = Cellar(tmp_path, monkeypatch)
        await cellar.until_synced(cellar.write())
        # It had to wait for another sync, and now the node is to stop.
        cellar.journal.append_data(2, Mid(1, 1, 2), 0, 1, b"x" * 16, b"a body")
        cellar.is_broken = True
        with pytest.raises(StorageFailed):
            cellar.storage.close()
        assert (tmp_path / POISONED).exists(), "the next life would take for durable what memory shows"
        cellar.disk.close()

    asyncio.run(run())


def test_an_error_in_what_the_loop_calls_ends_the_node_and_nothing_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pair of the superblock is written when the sync of the first has ended, by a callback."""

    async def story(cellar: Cellar) -> None:
        cellar.may_sync.clear()
        cellar.storage.keeper._is_quick = False
        index = cellar._counter.next()
        cellar.storage.carry_out(bus.Append(index, bus.SuperblockRecord(7, 0)))
        cellar.storage.flush()
        write = cellar.disk.write

        def refuse(name: str, offset: int, buffers: Sequence[Buffer]) -> None:
            if name == SUPERBLOCK:
                raise NoSpace("there is no room for superblock: No space left on device")
            write(name, offset, buffers)

        monkeypatch.setattr(cellar.disk, "write", refuse)
        cellar.may_sync.set()
        await cellar.until(lambda: cellar.failures)
        (failure,) = cellar.failures
        assert isinstance(failure, NoSpace)
        assert index not in cellar.synced
        with pytest.raises(StorageFailed):
            cellar.write()
        assert index not in cellar.synced and len(cellar.failures) == 1

    play(story, tmp_path, monkeypatch)


def test_an_error_in_a_timer_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(now_ns: int) -> list[KeeperEffect]:
        raise KeyError("a bug")

    async def story(cellar: Cellar) -> None:
        monkeypatch.setattr(cellar.storage.keeper, "tick", fail)
        cellar.write()
        await cellar.until(lambda: cellar.failures)
        assert isinstance(cellar.failures[0], KeyError)

    play(story, tmp_path, monkeypatch)


@pytest.mark.parametrize("error", [StorageFailed("the cable came off"), KeyError("a bug")])
def test_an_error_in_the_worker_thread_ends_the_node(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(cellar.journal, "write_checkpoint", fail)
        cellar.storage.carry_out(bus.WriteCheckpoint(7, b"d" * 16, b"the state", ()))
        cellar.storage.flush()
        await cellar.until(lambda: cellar.failures)
        assert cellar.failures == [error] and not cellar.written
        assert not (tmp_path / POISONED).exists(), "no sync has failed"

    play(story, tmp_path, monkeypatch)


def test_a_sync_of_the_worker_that_fails_is_as_final_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    async def story(cellar: Cellar) -> None:
        def fail(descriptor: int) -> None:
            if descriptor == cellar.disk._directory and threading.current_thread().name != "MainThread":
                raise OSError(5, "the directory could not be written")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail)
        cellar.storage.carry_out(bus.WriteCheckpoint(7, b"d" * 16, b"the state", ()))
        cellar.storage.flush()
        await cellar.until(lambda: cellar.failures)
        assert not cellar.written
        assert (tmp_path / POISONED).exists(), "the name of the file may be known to the memory alone"

    play(story, tmp_path, monkeypatch)


def test_an_error_in_the_sync_thread_that_nobody_expected_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        def fail(_: object) -> None:
            # What the first sync left to do may be synced in the loop.
            if threading.current_thread().name == "antiphon-sync":
                raise KeyError("a bug")

        monkeypatch.setattr(cellar.disk, "sync", fail)
        index = cellar.write(MUCH)
        await cellar.until(lambda: cellar.failures)
        assert isinstance(cellar.failures[0], StorageFailed)
        assert index not in cellar.synced

    play(story, tmp_path, monkeypatch)
