"""SimDisk: a data directory with a power switch, latencies and faults.

`MemoryDisk` knows what a crash may leave: a write is seen at once and is durable when a sync has finished
that began after it; every unsynced page comes back in any version it had, or torn between versions. Here the
seed decides which, in one of several styles, because a crash that keeps everything and one that keeps nothing
find other mistakes than a fair coin does.

The power can also go in the middle of a call (`cut_after`): then `PowerLost` comes out of some write or
renaming, with the operation done in part or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.journal.format import PAGE
from antiphon.journal.memory_disk import MemoryDisk, Syncing
from antiphon.journal.ports import Buffer
from antiphon.sim.world import MICROSECOND_NS, World

_STALL = 60
_STYLES = ("nothing", "nothing", "everything", "some", "some", "most", "few")
_KEPT = {"some": 0.5, "most": 0.9, "few": 0.1}


class PowerLost(Exception):
    """The power went in the middle of a call. Only the driver catches this."""


class SyncFailed(Exception):
    """A sync failed. The life is over, and the next one must not read its files."""


@dataclass(slots=True)
class DiskHabits:
    """How quick and how reliable the disk of this run is."""

    sync_ns: int = 200 * MICROSECOND_NS
    stall_probability: float = 0.0
    tear_probability: float = 0.5
    styles: Sequence[str] = _STYLES


@dataclass(slots=True)
class DiskProfile:
    """How often each of these faults happens."""

    failed_syncs: int = 0
    full_disks: int = 0
    damages: int = 0
    cut_recyclings: int = 0
    cut_checkpoints: int = 0


class SimDisk(MemoryDisk):
    def __init__(self, world: World, part: str = "disk") -> None:
        super().__init__()
        self.world = world
        self.habits = DiskHabits()
        self.cut_after: int | None = None
        # Does the sync fail that ends now? Asked only then.
        self.fails: Callable[[], bool] | None = None
        # The work during which the power goes, and after how many operations of it.
        self.cut_in: tuple[str, int] | None = None
        self._is_work_cut = False
        self._chance: random.Random = world.random(part)

    def latency_ns(self) -> int:
        """The duration of the next sync."""
        latency = int(self.habits.sync_ns * self._chance.uniform(0.5, 2.0))
        if self._chance.random() < self.habits.stall_probability:
            self.world.probe("disk.sync_stalled")
            latency *= _STALL
        return latency

    def lose_power(self) -> None:
        """Forget some or all unsynced pages; the next life finds the rest."""
        self.cut_after = None
        self._is_work_cut = False
        style = self._chance.choice(self.habits.styles)
        tears = self._chance.random() < self.habits.tear_probability
        unsynced = sum(len(file.versions) for file in self._files.values())
        if unsynced:
            self.world.probe(f"disk.crash_kept_{style}", 1)
            self.world.probe("disk.pages_in_doubt", unsynced)
            if tears:
                self.world.probe("disk.pages_torn")
        if self._directories:
            self.world.probe("disk.directory_in_doubt")
        self.crash(self._chooser(style), tear=tears and style in _KEPT)

    def heal(self) -> None:
        """No operation fails from now on, and there is room."""
        self.cut_after = self.cut_in = self.fails = self.capacity = None

    def durable(self) -> MemoryDisk:
        """A disk as it would be if the power went now, and no unsynced page were kept."""
        files = self._directories[0] if self._directories else self._files
        left = MemoryDisk(_files=dict(files)).copy()
        for name, file in files.items():
            for page, versions in file.versions.items():
                left._files[name].now[page * PAGE : (page + 1) * PAGE] = versions[0]
        return left

    def begin_work(self, name: str) -> None:
        """The worker begins this work, during which the power may go."""
        if self.cut_in is not None and self.cut_in[0] == name:
            self.cut_after, self.cut_in = self.cut_in[1], None
            self._is_work_cut = True
            self.world.probe(f"disk.power_lost_in_{name}")

    def end_work(self) -> None:
        """The worker is through; the power may go before the node is told."""
        if self._is_work_cut:
            raise PowerLost("when the worker was through")

    def _chooser(self, style: str) -> Callable[[int], int]:
        """The choice of a crash among the versions of a page; 0 is the last synced one."""
        if style == "nothing":
            return lambda versions: 0
        if style == "everything":
            return lambda versions: versions - 1
        share, chance = _KEPT[style], self._chance

        def choose(versions: int) -> int:
            return chance.randrange(1, versions) if versions > 1 and chance.random() < share else 0

        return choose

    def forget_view(self, name: str) -> bool:
        content = self._files[name].now
        try:
            # Python refuses to resize bytes that have a view: so views are found.
            content.append(0)
        except BufferError:
            self.world.probe("disk.view_still_held")
            return False
        content.pop()
        return True

    def create(self, name: str, size: int) -> None:
        self._operate("create", name)
        super().create(name, size)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        if self._is_cut():
            data = b"".join(buffers)
            # A part of this very write may be done before the power goes.
            MemoryDisk.write(self, name, offset, [data[: self._chance.randrange(len(data) + 1)]])
            raise PowerLost(f"while writing {name} at {offset}")
        super().write(name, offset, buffers)

    def rename(self, old: str, new: str) -> None:
        self._operate("rename", old)
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._operate("remove", name)
        super().remove(name)

    def sync(self, names: Sequence[str]) -> None:
        self._operate("sync", *names)
        super().sync(names)

    def finish_sync(self, syncing: Syncing) -> None:
        if self.fails is not None and self.fails():
            raise SyncFailed
        super().finish_sync(syncing)

    def sync_directory(self) -> None:
        self._operate("sync", "the directory")
        super().sync_directory()

    def write_whole(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._operate("write", name)
        super().write_whole(name, buffers)

    def _operate(self, *words: str) -> None:
        if self._is_cut():
            raise PowerLost("before " + " ".join(words))

    def _is_cut(self) -> bool:
        if self.cut_after is None:
            return False
        self.cut_after -= 1
        return self.cut_after < 0
