"""A disk in memory that can lose its power: unsynced bytes are kept, lost or torn as chance wills.

Chance is a parameter (`choose(n)` gives a number below n). Every page remembers all versions since its last
sync, because a real disk may have stored any of them. Directory operations take effect in order: after a
crash a beginning of them has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from antiphon.errors import NoSpace, StorageFailed
from antiphon.journal.format import PAGE
from antiphon.journal.ports import Buffer

_SECTOR: Final = 512
Choose = Callable[[int], int]


@dataclass(slots=True)
class _File:
    now: bytearray
    # Page number -> its bytes at the last sync, then every version since.
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    # Versions of a page that were synced since they were first noted, so that a late sync is not early.
    dropped: dict[int, int] = field(default_factory=dict)


# For every file: for every page that is not durable, how many versions the sync covers.
Syncing = list[tuple[_File, dict[int, int]]]


@dataclass(slots=True)
class MemoryDisk:
    """A `Disk` for tests and for the simulator."""

    capacity: int | None = None
    # The disk fails once after so many more syncs; None for never.
    syncs_until_failure: int | None = None
    writes: int = 0
    _files: dict[str, _File] = field(default_factory=dict)
    _directories: list[dict[str, _File]] = field(default_factory=list)

    # --- the port ---

    def list_files(self) -> list[str]:
        return sorted(name for name in self._files if "/" not in name)

    def create(self, name: str, size: int) -> None:
        assert name not in self._files, f"{name} exists already"
        if self.capacity is not None and self.bytes_used + size > self.capacity:
            raise NoSpace(f"there is no room for the {size} bytes of {name}")
        self._files[name] = _File(bytearray(size))
        self.sync_directory()

    def size(self, name: str) -> int:
        return len(self._files[name].now)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._files[name].now)[offset : offset + length])

    def view(self, name: str) -> memoryview:
        return memoryview(self._files[name].now).toreadonly()

    def forget_view(self, name: str) -> bool:
        return name in self._files

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self.writes += 1
        file = self._files[name]
        data = b"".join(buffers)
        assert offset + len(data) <= len(file.now), f"a write goes beyond the end of {name}"
        pages = range(offset // PAGE, (offset + len(data) + PAGE - 1) // PAGE)
        for page in pages:
            file.versions.setdefault(page, [bytes(file.now[page * PAGE : (page + 1) * PAGE])])
        file.now[offset : offset + len(data)] = data
        for page in pages:
            file.versions[page].append(bytes(file.now[page * PAGE : (page + 1) * PAGE]))

    def rename(self, old: str, new: str) -> None:
        self._note_directory()
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        self._note_directory()
        del self._files[name]

    def sync(self, names: Sequence[str]) -> None:
        self.finish_sync(self.begin_sync(names))

    def sync_directory(self) -> None:
        self._directories.clear()

    def write_whole(self, name: str, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        if self.capacity is not None and self.bytes_used + len(data) > self.capacity:
            raise NoSpace(f"there is no room for the {len(data)} bytes of {name}")
        self._files[name] = _File(bytearray(data))
        self.sync_directory()

    # --- what only an invented disk can do ---

    @property
    def bytes_used(self) -> int:
        return sum(len(file.now) for file in self._files.values())

    def begin_sync(self, names: Sequence[str]) -> Syncing:
        """Begin a sync that takes time: it covers the writes so far."""
        if self.syncs_until_failure is not None:
            self.syncs_until_failure -= 1
            if self.syncs_until_failure < 0:
                raise StorageFailed("the disk failed while it was asked to sync")
        syncing: Syncing = []
        for name in names:
            file = self._files[name]
            counts = {
                page: file.dropped.get(page, 0) + len(found) - 1 for page, found in file.versions.items()
            }
            syncing.append((file, counts))
        return syncing

    def finish_sync(self, syncing: Syncing) -> None:
        for file, counts in syncing:
            for page, count in counts.items():
                done = count - file.dropped.get(page, 0)
                if done <= 0 or page not in file.versions:
                    continue
                del file.versions[page][:done]
                file.dropped[page] = count
                if len(file.versions[page]) == 1:
                    del file.versions[page]

    def crash(self, choose: Choose, *, tear: bool = False) -> None:
        """Lose the power. With `tear`, a page may be a mixture of versions, sector by sector."""
        if self._directories:
            past = [*self._directories, self._files]
            self._files = past[choose(len(past))]
        for file in [self._files[name] for name in sorted(self._files)]:
            kept = bytearray(file.now)
            for page in sorted(file.versions):
                found = file.versions[page]
                kept[page * PAGE : (page + 1) * PAGE] = _survivor(found, choose, tear)
            # A new array: a view of the old one belongs to the life that is over.
            file.now = kept
            file.versions.clear()
            file.dropped.clear()
        self._directories.clear()
        self.syncs_until_failure = None

    def all_files(self) -> list[str]:
        return sorted(self._files)

    def contents(self) -> dict[str, bytes]:
        return {name: bytes(self._files[name].now) for name in self.all_files()}

    def unsynced_pages(self, name: str) -> list[int]:
        return sorted(self._files[name].versions)

    def flip(self, name: str, offset: int, mask: int = 0xFF) -> None:
        """Rot: change bits on the durable medium."""
        self._files[name].now[offset] ^= mask

    def part_from_views(self) -> None:
        """Views that were taken so far keep their bytes: a process has those pages in its memory."""
        for file in self._files.values():
            file.now = bytearray(file.now)

    def truncate(self, name: str, size: int) -> None:
        file = self._files[name]
        file.now = bytearray(bytes(file.now[:size]).ljust(size, b"\0"))

    def copy(self) -> MemoryDisk:
        files = {name: _File(bytearray(file.now)) for name, file in self._files.items()}
        return MemoryDisk(capacity=self.capacity, _files=files)

    def _note_directory(self) -> None:
        self._directories.append(dict(self._files))


def _survivor(versions: list[bytes], choose: Choose, tear: bool) -> bytes:
    if not tear or choose(4):
        return versions[choose(len(versions))]
    return b"".join(versions[choose(len(versions))][at : at + _SECTOR] for at in range(0, PAGE, _SECTOR))
