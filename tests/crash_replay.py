"""Crash replay: what the real disk was asked for, call by call, and what a power cut after each call leaves.

`Recorder` stands in for the module `os` in `runtime/disk.py`: every call is passed on and noted. `Replay`
walks through the notes and makes the image of the directory that a power cut at this moment may leave:

    - of a file, all that was written before an fsync of it began that has ended; of later writes, any pages;
    - of the directory, all names that were made, changed or removed before an fsync of it began that has
      ended; of what was done since, any beginning.

Nothing else is durable: not a name because its file was synced, not a file because its name was.

`LastingRecorder` is for a process that is killed: its notes are in a file (`read_notes`), and its syncs can
be held up (`Hold`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.journal.format import PAGE
from antiphon.journal.memory_disk import MemoryDisk

Choose = Callable[[int], int]
Keep = Callable[[str, int], bool]
HOLD_SECONDS: Final = 0.01


class Note(NamedTuple):
    """One call that has ended, or something that was told."""

    kind: str
    file: int = 0
    name: str = ""
    new_name: str = ""
    offset: int = 0
    data: bytes = b""
    # Of a sync: how many notes there were when it began. What was noted later it need not cover.
    began: int = 0
    told: Any = None


class Recorder:
    """`os`, with notes of everything that changes a directory or its files."""

    def __init__(self, path: Path, sync_seconds: float = 0.0) -> None:
        self.notes: list[Note] = []
        # How much longer than it takes a sync takes that is asked for by a thread of its own.
        self._sync_seconds = sync_seconds
        self._nothing = threading.Event()
        self._path = path
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._last_file = 0
        for found in sorted(path.rglob("*")):
            if found.is_file():
                self._find(self._name(found), found.read_bytes())
        if self._files:
            self._note(Note("names", began=len(self.notes)))

    def _find(self, name: str, content: bytes) -> None:
        """Note a file that was there before the recording began: all of it is durable."""
        file = self._new_file(name)
        self._note(Note("size", file, offset=len(content)))
        self._note(Note("write", file, data=content.rstrip(b"\0")))
        self._note(Note("sync", file, began=len(self.notes)))

    def _new_file(self, name: str) -> int:
        self._last_file += 1
        self._files[name] = self._last_file
        self._note(Note("create", self._last_file, name))
        return self._last_file

    def _note(self, note: Note) -> None:
        self.notes.append(note)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def tell(self, told: Any) -> None:
        """Somebody was told something that a later power cut must not make untrue."""
        with self._lock:
            self._note(Note("told", told=told))

    def _name(self, path: str | Path) -> str:
        return str(Path(path).relative_to(self._path))

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            descriptor = os.open(path, flags, mode)
            name = self._name(path)
            if flags & os.O_DIRECTORY:
                self._open[descriptor] = 0
                return descriptor
            if name not in self._files:
                assert flags & os.O_CREAT, f"{name} was there before the recording began"
                self._new_file(name)
            elif flags & os.O_TRUNC:
                self._note(Note("size", self._files[name], offset=0))
            self._open[descriptor] = self._files[name]
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            os.close(descriptor)
            del self._open[descriptor]

    def pwritev(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        with self._lock:
            written = os.pwritev(descriptor, buffers, offset)
            data = b"".join(buffers)[:written]
            self._note(Note("write", self._open[descriptor], offset=offset, data=data))
            return written

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        return self.pwritev(descriptor, [data], offset)

    def posix_fallocate(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            os.posix_fallocate(descriptor, offset, length)
            self._note(Note("size", self._open[descriptor], offset=offset + length))

    def ftruncate(self, descriptor: int, length: int) -> None:
        with self._lock:
            os.ftruncate(descriptor, length)
            self._note(Note("size", self._open[descriptor], offset=length))

    def rename(self, old: str | Path, new: str | Path) -> None:
        with self._lock:
            os.rename(old, new)
            self._files[self._name(new)] = self._files.pop(self._name(old))
            self._note(Note("rename", name=self._name(old), new_name=self._name(new)))

    def unlink(self, path: str | Path) -> None:
        with self._lock:
            os.unlink(path)
            del self._files[self._name(path)]
            self._note(Note("remove", name=self._name(path)))

    def fsync(self, descriptor: int) -> None:
        self._sync(os.fsync, descriptor)

    def fdatasync(self, descriptor: int) -> None:
        self._sync(os.fdatasync, descriptor)

    def _sync(self, sync: Callable[[int], None], descriptor: int) -> None:
        with self._lock:
            began, file = len(self.notes), self._open[descriptor]
        # Not under the lock: others write meanwhile.
        sync(descriptor)
        self._dawdle()
        with self._lock:
            self._note(Note("sync", file, began=began) if file else Note("names", began=began))

    def _dawdle(self) -> None:
        if threading.current_thread().name == "antiphon-sync":
            # A slow disk: nothing happens, for so long.
            self._nothing.wait(self._sync_seconds)


class Hold:
    """Syncs in a directory do not end while a file beside it is there; one that waits writes to the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(path.name + ".hold")

    def begin(self) -> None:
        self._file.touch()

    def end(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def is_met(self) -> bool:
        """Does a sync wait?"""
        return self._file.stat().st_size > 0

    def meet(self) -> bool:
        """Whether a sync must wait."""
        try:
            # Not made anew: the hold may end at this moment.
            with self._file.open("r+") as file:
                file.write("met")
        except FileNotFoundError:
            return False
        return True


def hold_syncs(paths: Sequence[Path], seconds: float) -> None:
    """Hold up the syncs of directories, and return when one waits in each of them, or after so long.

    A node to which nothing comes any more, since others wait, has nothing to sync.
    """
    holds = [Hold(path) for path in paths]
    for hold in holds:
        hold.begin()
    nothing, deadline = threading.Event(), time.monotonic() + seconds
    while not all(hold.is_met for hold in holds) and time.monotonic() < deadline:
        nothing.wait(HOLD_SECONDS)


class LastingRecorder(Recorder):
    """A recorder whose notes lie in a file beside the directory, where a kill of the process leaves them."""

    def __init__(self, path: Path, sync_seconds: float = 0.0) -> None:
        self._hold = Hold(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(notes_of(path), flags, 0o600)
        super().__init__(path, sync_seconds)

    def _note(self, note: Note) -> None:
        # Here only the number of notes is needed.
        super()._note(note._replace(data=b""))
        text = pickle.dumps(note)
        assert os.write(self._file, text) == len(text), "there is no room for a note"

    def _dawdle(self) -> None:
        super()._dawdle()
        while self._hold.meet():
            self._nothing.wait(HOLD_SECONDS)


def notes_of(path: Path) -> Path:
    return path.with_name(path.name + ".notes")


def read_notes(path: Path) -> list[Note]:
    """The notes about a directory. The last one is left out if the kill came while it was written."""
    notes: list[Note] = []
    with notes_of(path).open("rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            notes.append(pickle.load(file))
    return notes


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    # What was done since, with the numbers of the notes.
    pending: list[tuple[int, Note]] = field(default_factory=list)


class Replay:
    """The directory as it is and as it may be left, after each note."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._pending: list[tuple[int, Note]] = []

    def walk(self, notes: Sequence[Note]) -> Iterator[tuple[int, Note]]:
        """Take in one note after the other; the image can be asked for after each."""
        for at, note in enumerate(notes):
            match note.kind:
                case "create":
                    self._files[note.file] = _File()
                    self._pending.append((at, note))
                case "rename" | "remove":
                    self._pending.append((at, note))
                case "write" | "size":
                    self._files[note.file].pending.append((at, note))
                case "sync":
                    file = self._files[note.file]
                    covered = [one for one in file.pending if one[0] < note.began]
                    for _, done in covered:
                        _do(file.durable, done)
                    file.pending = file.pending[len(covered) :]
                case "names":
                    covered = [one for one in self._pending if one[0] < note.began]
                    for _, done in covered:
                        _rename(self._names, done)
                    self._pending = self._pending[len(covered) :]
            yield at, note

    def image(self, choose: Choose, keep: Keep | None = None) -> MemoryDisk:
        """What a power cut leaves; `choose(n)` gives a number below n, 0 for what is surely durable.

        `keep`, if it is given, says of each unsynced page of a file whether it is left.
        """
        names = dict(self._names)
        for _, note in self._pending[: choose(len(self._pending) + 1)]:
            _rename(names, note)
        disk = MemoryDisk()
        for name, file in names.items():
            kept = partial(keep, name) if keep else lambda start: bool(choose(2))
            disk.write_whole(name, [self._content(self._files[file], choose, kept)])
        return disk

    def _content(self, file: _File, choose: Choose, kept: Callable[[int], bool]) -> bytes:
        if not file.pending:
            return bytes(file.durable)
        content = bytearray(file.durable)
        for _, note in file.pending:
            if note.kind == "size":
                if choose(2):
                    _do(content, note)
                continue
            for start in range(note.offset // PAGE * PAGE, note.offset + len(note.data), PAGE):
                if kept(start):
                    begin, end = max(start, note.offset), min(start + PAGE, note.offset + len(note.data))
                    piece = note.data[begin - note.offset : end - note.offset]
                    _do(content, note._replace(offset=begin, data=piece))
        return bytes(content)


def cut_power(path: Path, notes: Sequence[Note], choose: Choose, keep: Keep | None = None) -> None:
    """Leave of a directory what a power cut leaves, after the kill of the process that the notes are of."""
    replay = Replay()
    for _ in replay.walk(notes):
        pass
    image = replay.image(choose, keep).contents()
    noted = {note.name for note in notes} | {note.new_name for note in notes}
    for name in noted - {""} - image.keys():
        (path / name).unlink(missing_ok=True)
    for name, content in image.items():
        (path / name).write_bytes(content)


def _do(content: bytearray, note: Note) -> None:
    if note.kind == "size":
        if len(content) < note.offset:
            content.extend(bytes(note.offset - len(content)))
        elif note.offset == 0:
            content.clear()
        return
    end = note.offset + len(note.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[note.offset : end] = note.data


def _rename(names: dict[str, int], note: Note) -> None:
    match note.kind:
        case "create":
            names[note.name] = note.file
        case "rename":
            names[note.new_name] = names.pop(note.name)
        case "remove":
            del names[note.name]
