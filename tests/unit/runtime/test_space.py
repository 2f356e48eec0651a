"""A disk that fills up: it is told in time, records wait, and go on when there is room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.bus import effects as bus
from antiphon.bus.ports import JournalCounter
from antiphon.errors import NoSpace
from antiphon.ids import Mid
from antiphon.journal.format import Settings
from antiphon.journal.journal import REST_SEGMENTS, Journal
from antiphon.message_manager.manager import MessageManager
from antiphon.runtime import storage as module
from antiphon.runtime.disk import RESERVE_BYTES, FileDisk
from antiphon.runtime.storage import ChannelStorage

SMALL = Settings(segment_bytes=1 << 20, order_blocks=16)


class SmallDisk(FileDisk):
    """Has room for a segment only while the test says so."""

    has_room = True

    def create(self, name: str, size: int) -> None:
        if not self.has_room:
            raise NoSpace(f"there is no room for {name}")
        super().create(name, size)


class Cellar:
    """A storage, and everything it told."""

    def __init__(self, path: Path) -> None:
        self.disk = SmallDisk(path)
        Journal.format(self.disk, SMALL, b"d" * 16, 1, "test")
        self.journal, found = Journal.open(self.disk, SMALL)
        self.told: list[bus.Event] = []
        self._news = asyncio.Event()
        self._index = 0
        self._counter = JournalCounter()
        manager = MessageManager("a", 1, self.journal.payloads)
        self.storage = ChannelStorage(
            self.disk, self.journal, found, self._counter, manager, tell=self._tell, fail=self._fail
        )

    def _tell(self, event: bus.Event) -> None:
        self.told.append(event)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        raise AssertionError("the storage gave up") from error

    def write(self, size: int) -> int:
        """Have a record of this size written; its index."""
        index = self._counter.next()
        record = bus.DataRecord(Mid(1, 1, index), 0, 1, b"x" * 16, bytes(size))
        self.storage.carry_out(bus.Append(index, record))
        self.storage.flush()
        return index

    def write_all(self, *sizes: int) -> list[int]:
        """The same of several at once, and of an order record behind them; their indexes."""
        appends = [
            bus.Append(index, bus.DataRecord(Mid(1, 1, index), 0, 1, b"x" * 16, bytes(size)))
            for size in sizes
            for index in [self._counter.next()]
        ]
        appends.append(bus.Append(self._counter.next(), bus.OrderRecord(b"order", 1)))
        self.storage.append_all(appends)
        self.storage.flush()
        return [append.index for append in appends]

    def write_order(self, number: int) -> int:
        """Have an order record written that ends with this number; its index."""
        index = self._counter.next()
        self.storage.carry_out(bus.Append(index, bus.OrderRecord(b"order", number)))
        self.storage.flush()
        return index

    @property
    def held(self) -> list[bool]:
        return [event.is_held for event in self.told if isinstance(event, bus.SpaceHeld)]

    @property
    def segments(self) -> int:
        return len([name for name in self.disk.list_files() if name.startswith(("segment-", "spare-"))])

    @property
    def spaces(self) -> list[tuple[bool, bool]]:
        return [(event.is_low, event.is_tight) for event in self.told if isinstance(event, bus.SpaceChanged)]

    @property
    def synced(self) -> int:
        return max((event.index for event in self.told if isinstance(event, bus.Synced)), default=0)

    async def until(self, is_true: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not is_true():
                self._news.clear()
                # Not everything that changes is told.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.01)

    def close(self) -> None:
        self.storage.close()
        self.disk.close()


def play(story: Callable[[Cellar], Any], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_SPACE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "PULSE_SECONDS", 0.01)

    async def run() -> None:
        cellar = Cellar(path)
        try:
            await story(cellar)
        finally:
            cellar.close()

    asyncio.run(run())


async def use_the_spare(cellar: Cellar) -> None:
    """Fill the first segment and go on in the second, the last one there is room for."""
    first = cellar.write(850_000)
    # Nothing is written to the second while the first is not durable, and until then it counts as full.
    await cellar.until(lambda: cellar.journal.has_spare and cellar.synced >= first)
    cellar.disk.has_room = False
    last = cellar.write(100_000)
    await cellar.until(lambda: cellar.spaces)
    await cellar.until(lambda: cellar.synced >= last)


async def filling_up(cellar: Cellar) -> None:
    await use_the_spare(cellar)
    assert cellar.spaces[0] == (True, False)
    assert not cellar.storage.is_full, "there is still room for what frees room"
    # Half of the last segment: publishing stops altogether.
    last = cellar.write(400_000)
    await cellar.until(lambda: (True, True) in cellar.spaces)
    await cellar.until(lambda: cellar.synced >= last)
    # And then records wait, in their order.
    late = [cellar.write(500_000), cellar.write(10)]
    assert cellar.storage.is_full
    assert cellar.synced == last
    cellar.disk.has_room = True
    await cellar.until(lambda: cellar.synced >= late[-1])
    await cellar.until(lambda: cellar.spaces[-1] == (False, False))
    assert not cellar.storage.is_full


async def coming_to_rest(cellar: Cellar) -> None:
    for number in range(1, 60):
        index = cellar.write_order(number)
        await cellar.until(lambda index=index: cellar.synced >= index)  # type: ignore[misc]
    await cellar.until(lambda: cellar.held == [True])
    assert cellar.segments > REST_SEGMENTS
    for n in (59, 60):
        cellar.storage.carry_out(bus.WriteCheckpoint(n, b"d" * 16, b"state", ()))
    await cellar.until(lambda: bus.CheckpointWritten(60) in cellar.told)
    assert cellar.held == [True], "the log still begins where it did"
    cellar.storage.carry_out(bus.ReleaseSpace(59))
    cellar.storage.flush()
    await cellar.until(lambda: cellar.held == [True, False])
    await cellar.until(lambda: cellar.segments <= REST_SEGMENTS)


async def filling_up_at_once(cellar: Cellar) -> None:
    await use_the_spare(cellar)
    # The first two fit into what is left; the rest waits, and what is said later waits behind it.
    _, second, third, _, order = cellar.write_all(300_000, 300_000, 300_000, 10)
    assert cellar.storage.is_full
    later = cellar.write_all(10, 10)
    await cellar.until(lambda: cellar.synced >= second)
    assert cellar.synced == second
    cellar.disk.has_room = True
    await cellar.until(lambda: cellar.synced >= later[-1])
    assert third < order < later[0]
    mids = [mid.pseq for mid, _ in cellar.journal.payloads.unplaced()]
    assert mids[-6:] == [second - 1, second, third, third + 1, *later[:2]], "each once, in their order"


def test_of_several_at_once_those_for_which_there_is_no_room_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(filling_up_at_once, tmp_path / "data", monkeypatch)


def test_room_is_told_to_be_low_then_tight_then_records_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(filling_up, tmp_path / "data", monkeypatch)


def test_a_journal_that_is_too_long_is_told_and_comes_to_rest_when_checkpoints_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(coming_to_rest, tmp_path / "data", monkeypatch)


async def saying_so_again(cellar: Cellar) -> None:
    await use_the_spare(cellar)
    await cellar.until(lambda: len(cellar.spaces) >= 4)
    assert set(cellar.spaces) == {(True, False)}
    # Everything is still written, though less often.
    last = cellar.write(1_000)
    await cellar.until(lambda: cellar.synced >= last)


def test_while_room_is_low_that_is_said_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the bus looks for what it does not need any more."""
    play(saying_so_again, tmp_path / "data", monkeypatch)


def test_a_large_file_leaves_a_reserve(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "data")
    free = disk.free_bytes()
    with pytest.raises(NoSpace, match="in reserve"):
        disk.create("much", free - RESERVE_BYTES + (1 << 20))
    assert disk.list_files() == ["LOCK"]
    disk.close()
