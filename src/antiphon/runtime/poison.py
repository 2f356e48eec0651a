"""Poison: the mark of a failed sync, for every process that opens the data directory during the same boot.

POI1  The mark is left in the data directory, for an operator, and outside: the failed disk may not take it.
POI2  A mark counts during the boot in which it was left: the page cache does not outlive that.
POI3  The mark outside counts for this very directory, by path and inode, and only while files of a journal
      are in it: a directory that was replaced or emptied has nothing to be distrusted.

Outside is `/run/antiphon` for root, `$XDG_RUNTIME_DIR/antiphon` for others, and a directory of the user's own
among the temporary files for both; `ANTIPHON_RUN_DIR` names another one instead. Each is best effort.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

from antiphon.journal.format import is_journal_file

POISONED: Final = "POISONED"
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def outside() -> list[Path]:
    """Directories for the mark that are not the data directory."""
    chosen = os.environ.get("ANTIPHON_RUN_DIR")
    if chosen:
        return [Path(chosen)]
    found = [Path("/run/antiphon")] if os.geteuid() == 0 else []
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(runtime) / "antiphon")
    return [*found, Path(tempfile.gettempdir()) / f"antiphon-{os.geteuid()}"]


class Poison:
    def __init__(self, path: Path, this_boot: str) -> None:
        self._path = path
        self._this_boot = this_boot
        found = path.stat()
        # A new directory at the same path is another.
        self._which = f"{found.st_dev}:{found.st_ino}"
        name = blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()
        self._outside = [directory / f"poisoned-{name}" for directory in outside()]

    def leave(self, why: str) -> list[str]:
        """Leave the mark wherever possible; returns the problems."""
        problems = []
        text = f"{self._this_boot}\n{self._which}\n{why}\n"
        for place in (self._path / POISONED, *self._outside):
            try:
                if place.parent != self._path:
                    _make_own(place.parent)
                _write_durably(place, text)
            except OSError as error:
                problems.append(f"{place} could not be written: {error}")
        return problems

    def find(self) -> str | None:
        """Why the directory is not to be trusted in this boot; empty: in an earlier boot; None: no mark."""
        found = [words for words in self._words() if self._concerns_us(*words)]
        now = [why for _, boot, _, why in found if boot == self._this_boot]
        if now:
            return now[0] or "nobody noted why"
        return "" if found else None

    def clear(self) -> None:
        for place in (self._path / POISONED, *self._outside):
            try:
                place.unlink(missing_ok=True)
            except OSError:
                # Another user's, so it did not count either.
                continue

    def _words(self) -> Iterator[tuple[Path, str, str, str]]:
        for place in (self._path / POISONED, *self._outside):
            try:
                if place.parent != self._path and not _is_own(place.parent):
                    continue
                boot, _, rest = place.read_text(encoding="utf-8", errors="replace").partition("\n")
            except OSError:
                continue
            which, _, why = rest.partition("\n")
            yield place, boot.strip(), which.strip(), why.strip()

    def _concerns_us(self, place: Path, boot: str, which: str, why: str) -> bool:
        if place.parent == self._path:
            return True
        return which == self._which and any(is_journal_file(name) for name in os.listdir(self._path))


def _make_own(directory: Path) -> None:
    directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    if not _is_own(directory):
        raise PermissionError("it is not a directory that belongs to this user alone")


def _is_own(directory: Path) -> bool:
    """Whether no other user can have put a mark there."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _write_durably(place: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(place, flags, _FILE_MODE), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
