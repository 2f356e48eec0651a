"""The real storage on the real disk, and a power cut after every call: what was reported durable is there.

All calls of a run are noted (`tests/crash_replay.py`). For every prefix of them the directory is made as a
power cut would leave it: with nothing that is not surely durable, with everything, and with pages and names
chosen by chance. Each image must be recovered from, and must hold what had been told by then.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import pytest

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.bus.keeper import Keeper, KeeperSettings
from antiphon.bus.ports import JournalCounter
from antiphon.errors import AntiphonError, Damaged
from antiphon.ids import Mid
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.chores import Chore
from antiphon.journal.format import PAGE, SUPERBLOCK, Settings, payload_digest
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location
from antiphon.runtime import disk as disk_module
from antiphon.runtime.disk import FileDisk, SyncEnd, SyncThread
from antiphon.runtime.storage import ChannelStorage
from tests.crash_replay import Note, Recorder, Replay
from tests.journals import DISK_ID, payload_of

LIMIT_S = 60.0
SMALL = Settings(segment_bytes=26 * PAGE, order_blocks=5, spares_max=2)
SLOW_SECONDS = 0.02
ROUNDS = 60
_ROW = Struct("<IIIQ")


class Released(NamedTuple):
    """Told to the journal: what has a number up to here is covered by checkpoints."""

    base: int


class Written(NamedTuple):
    """Told to the journal: this record has this index, and an envelope of it this number."""

    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    record: bus.DataRecord | bus.OrderRecord | bus.SuperblockRecord
    number: int


class Records:
    """Who refers to records: some messages live long, most die soon."""

    def __init__(self) -> None:
        self.live: dict[int, Location] = {}

    def live_bytes_by_segment(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for place in self.live.values():
            found[place.segment] = found.get(place.segment, 0) + place.length
        return found

    def records_in(self, segment: int) -> list[Location]:
        return sorted(place for place in self.live.values() if place.segment == segment)

    def relocated(self, old: Location, new: Location) -> None:
        self.live = {number: new if place == old else place for number, place in self.live.items()}

    def damaged(self, place: Location, error: Damaged) -> None:
        raise error

    def capture(self) -> bytes:
        return b"".join(_ROW.pack(*place) for place in self.live.values())


class Run:
    """One life of a storage on a real directory, with everything it is asked for and tells on record."""

    def __init__(self, path: Path, recorder: Recorder, chance: random.Random, quick_ns: int) -> None:
        self.recorder = recorder
        self.chance = chance
        self.disk = FileDisk(path)
        Journal.format(self.disk, SMALL, DISK_ID, 1, "test")
        self.journal, found = Journal.open(self.disk, SMALL)
        self.records = Records()
        self.counter = JournalCounter()
        self.durable = self.number = 0
        self.checkpoints: list[int] = []
        self.failures: list[BaseException] = []
        self._unplaced: list[Written] = []
        self._asked = 0
        self._news = asyncio.Event()
        settings = KeeperSettings(quick_ns=quick_ns, stall_ns=quick_ns)
        keeper = Keeper(self.journal, found, self.counter, self.records, clock.now_ns(), settings)
        self.storage = ChannelStorage(self.disk, keeper, tell=self._tell, fail=self._fail)

    def _tell(self, event: bus.Event) -> None:
        self.recorder.tell(event)
        if isinstance(event, bus.Synced):
            self.durable = event.index
        if isinstance(event, bus.CheckpointWritten):
            self.checkpoints.append(event.n)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self._news.set()

    async def until(self, is_true: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                assert not self.failures, self.failures
                self._news.clear()
                await self._news.wait()

    def write(self, record: bus.DataRecord | bus.OrderRecord | bus.SuperblockRecord, number: int = 0) -> None:
        index = self.counter.next()
        written = Written(index, record, number)
        self.recorder.tell(written)
        self.storage.carry_out(bus.Append(index, record))
        if number:
            self._unplaced.append(written)

    def publish(self, size: int) -> None:
        """An envelope and its place in the order."""
        self.number += 1
        payload, mid = payload_of(self.number, size), Mid(1, 1, self.number)
        digest = payload_digest(mid, self.number, 1, payload)
        self.write(bus.DataRecord(mid, self.number, 1, digest, payload), self.number)
        self.write(bus.OrderRecord(b"number %d is %d" % (self.number, mid.pseq), self.number))

    def apply(self) -> None:
        """What is durable is committed, as this node is alone; and messages die."""
        while self._unplaced and self._unplaced[0].index <= self.durable:
            written = self._unplaced.pop(0)
            place = self.journal.payloads.place(Mid(1, 1, written.number), written.number, 1)
            self.records.live[written.number] = place
        for number in list(self.records.live):
            if self.chance.random() < (0.05 if number % 8 == 0 else 0.5):
                del self.records.live[number]

    def take_checkpoint(self) -> None:
        n = self._unplaced[0].number - 1 if self._unplaced else self.number
        if self._asked not in (0, *self.checkpoints) or n <= self._asked:
            # One at a time.
            return
        self._asked = n
        segments = tuple(self.records.live_bytes_by_segment())
        self.storage.carry_out(bus.WriteCheckpoint(n, b"d" * 16, self.records.capture(), segments))

    def release(self) -> None:
        """The base stands at the checkpoint before the newest."""
        if len(self.checkpoints) > 1:
            base = self.checkpoints[-2]
            self.recorder.tell(Released(base))
            self.storage.carry_out(bus.ReleaseSpace(base))

    async def play(self, rounds: int) -> None:
        chance = self.chance
        for number in range(1, rounds + 1):
            for _ in range(chance.randint(1, 3)):
                self.publish(chance.choice((100, 700, 3_000)))
            if number % 9 == 0:
                self.write(bus.SuperblockRecord(number, number))
            # For a while there are none, and nothing makes names durable that a chore has left behind.
            is_calm = 24 <= number % 60 < 40
            if number % 4 == 0 and not is_calm:
                self.take_checkpoint()
            self.storage.flush()
            if chance.random() < 0.7:
                await self.until(lambda: self.durable == self.counter.last)
            else:
                await asyncio.sleep(0)
            self.apply()
            if number % 4 == 2 and not is_calm:
                self.release()
                self.storage.flush()
                if chance.random() < 0.5:
                    # What was moved just now is on its way to the disk.
                    self.take_checkpoint()
                    self.storage.flush()
            if self._asked and chance.random() < 0.8:
                await self.until(lambda: self._asked in self.checkpoints)
        await self.until(lambda: self.durable == self.counter.last)
        self.storage.close()
        self.disk.close()


def record(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int, *, is_quick: bool
) -> list[Note]:
    """The calls of one run; a quick disk is synced in the loop, another one by the thread."""
    recorder = Recorder(path, SLOW_SECONDS)
    monkeypatch.setattr(disk_module, "os", recorder)
    monkeypatch.setattr(disk_module, "RESERVE_BYTES", 4 * PAGE)
    quick_ns = int(LIMIT_S * 1e9) if is_quick else 0

    async def run() -> None:
        await Run(path, recorder, random.Random(seed), quick_ns).play(rounds)

    asyncio.run(run())
    monkeypatch.setattr(disk_module, "os", os)
    return recorder.notes


class Told:
    """What must be true of every image from now on."""

    def __init__(self) -> None:
        self.durable = self.base = self.promised = 0
        self.records: list[Written] = []
        self.checkpoints: list[int] = []

    def take(self, told: Any) -> None:
        match told:
            case Written():
                self.records.append(told)
            case Released(base):
                self.base = base
            case bus.Synced(index):
                self.durable = index
            case bus.CheckpointWritten(n):
                self.checkpoints.append(n)

    def compare(self, image: MemoryDisk) -> None:
        """Recover from the image, and look for everything. Raises what is wrong."""
        if not Journal.is_formatted(image):
            assert not self.records, "the superblock is missing"
            return
        journal, found = Journal.open(image, SMALL)
        data = {stored.mid: stored.digest for stored in found.data}
        order = set(found.order)
        for index, record, number in self.records:
            if index > self.durable:
                break
            match record:
                case bus.DataRecord():
                    is_there = data.get(record.mid) == record.digest
                    assert is_there or number <= self.base, f"envelope {number} is missing"
                case bus.OrderRecord():
                    is_there = record.body in order
                    assert is_there or record.highest <= self.base, f"order of {record.highest} is missing"
                case bus.SuperblockRecord():
                    assert found.promised >= record.promised, f"the promise {record.promised} is missing"
        kept = [one for one in (found.checkpoint, found.older_checkpoint) if one is not None]
        for told, there in zip(
            reversed(self.checkpoints[-2:]), [one.n for one in kept] + [0, 0], strict=False
        ):
            assert there >= told, f"checkpoint {told} is missing"
        for checkpoint in kept:
            for row in _ROW.iter_unpack(checkpoint.state):
                try:
                    journal.verify(Location(*row))
                except Damaged as error:
                    raise AssertionError(f"checkpoint {checkpoint.n} refers to {row}: {error}") from error


def look(notes: list[Note], seed: int, share: float) -> str:
    """The first prefix after which a power cut breaks a promise, and which; empty if there is none.

    What is surely there is looked at after every call; what may be there, after so many of the others.
    """
    replay, told, chance = Replay(), Told(), random.Random(seed)
    for at, note in replay.walk(notes):
        told.take(note.told)
        choices: list[tuple[str, Callable[[int], int]]] = []
        if note.kind in ("sync", "names", "told"):
            # Between these what is surely durable does not change, nor does what it must hold.
            choices.append(("nothing more", lambda n: 0))
        if note.kind in ("create", "rename", "remove") or (note.kind == "write" and chance.random() < share):
            choices.append(("everything", lambda n: n - 1))
        if chance.random() < share / 2:
            choices.append(("some", chance.randrange))
            choices.append(("most", lambda n: n - 1 if chance.random() < 0.9 else chance.randrange(n)))
        for kept, choose in choices:
            try:
                told.compare(replay.image(choose))
            except (AssertionError, AntiphonError) as error:
                return f"after call {at} of {len(notes)} ({note.kind} {note.name}), {kept} is kept: {error}"
    return ""


def check(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int, share: float, *, is_quick: bool
) -> None:
    notes = record(path, monkeypatch, seed, rounds, is_quick=is_quick)
    told = [note.told for note in notes if note.kind == "told"]
    assert sum(isinstance(one, bus.CheckpointWritten) for one in told) > rounds // 8
    recycled = [note for note in notes if note.kind == "rename" and note.name.startswith("segment-")]
    assert recycled, "no segment was used again"
    assert any(note.kind == "remove" for note in notes), "no checkpoint was dropped"
    assert (broken := look(notes, seed, share)) == "", f"seed {seed}: {broken}"


@pytest.mark.parametrize("is_quick", [True, False])
def test_after_every_call_to_the_disk_a_power_cut_takes_nothing_that_was_reported_durable(
    is_quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, 1, ROUNDS, 0.2, is_quick=is_quick)


@pytest.mark.long
@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("seed", range(2, 7))
def test_so_it_is_with_other_seeds_and_everything_that_may_be_there(
    seed: int, is_quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, seed, 2 * ROUNDS, 1.0, is_quick=is_quick)


def only_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of the fallback checkpoint are freed early."""

    def release(self: CheckpointLine[Any], before: int) -> set[int]:
        segments = self._files | self._asked
        return set(segments[max(segments)])

    monkeypatch.setattr(CheckpointLine, "release", release)


def without_the_superblock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick sync leaves the superblock out."""
    sync_now = SyncThread.sync_now

    def sync(self: SyncThread, ticket: SyncTicket) -> SyncEnd:
        files = tuple(name for name in ticket.files if name != SUPERBLOCK)
        return sync_now(self, SyncTicket(files, ticket.upto_index, ticket.position, ticket.superblock))

    monkeypatch.setattr(SyncThread, "sync_now", sync)


def no_names_behind_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory sync follows the renaming of a file that was written whole."""
    make, sync = FileDisk._make_whole, FileDisk.sync_directory
    making = threading.local()

    def make_whole(self: FileDisk, name: str, fill: Callable[[int], None]) -> None:
        making.is_under_way = True
        make(self, name, fill)
        making.is_under_way = False

    def sync_directory(self: FileDisk) -> None:
        if not getattr(making, "is_under_way", False):
            sync(self)

    monkeypatch.setattr(FileDisk, "_make_whole", make_whole)
    monkeypatch.setattr(FileDisk, "sync_directory", sync_directory)


def no_names_behind_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory sync follows the renaming of a file that becomes a segment."""
    prepare = Chore._prepare

    class Careless:
        def __init__(self, disk: Any) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> Any:
            return getattr(self._disk, name)

        def sync_directory(self) -> None:
            """Nothing."""

    def careless(self: Chore, number: int) -> None:
        disk, self.disk = self.disk, Careless(self.disk)  # type: ignore[assignment]
        try:
            prepare(self, number)
        finally:
            self.disk = disk

    monkeypatch.setattr(Chore, "_prepare", careless)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is written before what it refers to is durable."""
    due = CheckpointLine.due
    monkeypatch.setattr(CheckpointLine, "due", lambda self, durable_index: due(self, 1 << 62))


def synced_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced at all, and all is said to be."""
    monkeypatch.setattr(FileDisk, "sync", lambda self, names: None)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], bool, str]] = [
    (only_the_newest, True, "refers to"),
    (without_the_superblock, True, "is missing"),
    (no_names_behind_a_whole_file, False, "is missing"),
    (no_names_behind_a_segment, True, "is missing"),
    (at_once, False, "refers to"),
    (synced_without_a_sync, True, "is missing"),
]


@pytest.mark.parametrize(("plant", "is_quick", "words"), PLANTED, ids=[one[0].__name__ for one in PLANTED])
def test_a_planted_bug_in_the_order_of_syncs_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None],
    is_quick: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(1, 9):
        # Threads take part, so that one run may pass by what another one shows.
        with monkeypatch.context() as planted:
            plant(planted)
            notes = record(tmp_path / str(seed), planted, seed, ROUNDS, is_quick=is_quick)
        if broken := look(notes, seed, 0.0):
            assert words in broken, f"seed {seed}: {broken}"
            return
    raise AssertionError("nothing was seen")
