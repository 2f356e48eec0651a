"""Where a storage syncs: beside the loop, or in it when that takes less than the way to the thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antiphon.bus import effects as bus
from antiphon.bus.ports import JournalCounter
from antiphon.errors import StorageFailed
from antiphon.ids import Mid
from antiphon.journal.format import Settings
from antiphon.journal.journal import Journal
from antiphon.message_manager.manager import MessageManager
from antiphon.runtime.disk import POISONED, FileDisk
from antiphon.runtime.storage import SYNCED_AT_ONCE_BYTES, ChannelStorage

LIMIT_S = 10.0
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
        self._news = asyncio.Event()
        self._counter = JournalCounter()
        manager = MessageManager("a", 1, self.journal.payloads)
        self.storage = ChannelStorage(
            self.disk, self.journal, found, self._counter, manager, tell=self._tell, fail=self.failures.append
        )
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, _: int) -> None:
        name = threading.current_thread().name
        if name.startswith("antiphon-files"):
            # A segment is made ready.
            return
        self.threads.append(name)
        if self.is_broken:
            raise OSError(5, "the disk is gone")

    def _tell(self, event: bus.Event) -> None:
        if isinstance(event, bus.Synced):
            self.synced.append(event.index)
            self._news.set()

    def write(self, size: int = 10) -> int:
        index = self._counter.next()
        record = bus.DataRecord(Mid(1, 1, index), 0, 1, b"x" * 16, bytes(size))
        self.storage.carry_out(bus.Append(index, record))
        self.storage.flush()
        return index

    async def until_synced(self, index: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while index not in self.synced:
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
        large = cellar.write(SYNCED_AT_ONCE_BYTES + 1)
        behind = cellar.write()
        assert not {large, behind} & set(cellar.synced)
        await cellar.until_synced(behind)
        assert set(cellar.threads) == {"antiphon-sync"}
        assert cellar.write() in cellar.synced

    play(story, tmp_path, monkeypatch)


def test_a_flush_that_nobody_asked_anything_of_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        cellar.write()
        told = list(cellar.synced)
        cellar.storage.flush()
        assert cellar.synced == told and cellar.threads == ["MainThread"]

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
