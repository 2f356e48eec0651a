"""The disk: files in a data directory that belongs to one process, and the thread that syncs them.

DSK1  One process at a time works in a data directory.
DSK2  A file that was created or written whole is there whole after a power cut, or not at all.
DSK3  A failed sync is told once and never retried: the page cache may then show more than the disk has.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from antiphon.errors import DataDirectoryLocked, NoSpace, StorageFailed
from antiphon.journal.format import LOST_AND_FOUND, UNFINISHED
from antiphon.journal.journal import SyncTicket
from antiphon.journal.ports import Buffer
from antiphon.runtime.poison import Poison, boot_id

log = logging.getLogger("antiphon.storage")

LOCK: Final = "LOCK"
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_BUFFERS_MAX: Final = 1024  # IOV_MAX of Linux
_ZEROS: Final = memoryview(mmap.mmap(-1, 1 << 20))  # begins with a page, as `O_DIRECT` wants it
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 16 << 20
"""Kept for checkpoints, without which no space would ever come back: an empty file that is made with the
first segment. When there is no room for a checkpoint it is removed; the next segment brings it back."""


class FileDisk:
    """A data directory as the journal's `Disk`; two threads may use different files at once."""

    def __init__(
        self,
        path: str | Path,
        *,
        accept_possible_loss: bool = False,
        has_peers: bool = False,
        this_boot: str | None = None,
    ) -> None:
        self.path = Path(path)
        # Why the files here must not be used (`startup.start`); an error unless `has_peers`.
        self.distrusted = ""
        # Notes for the operator about the opening.
        self.notes: list[str] = []
        # Set by the thread in which a sync failed.
        self.has_failed_sync = False
        self._files: dict[str, int] = {}
        self._views: dict[str, tuple[mmap.mmap, memoryview]] = {}
        self._guard = threading.Lock()
        self._reserve_guard = threading.Lock()
        try:
            self.path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            self._lock = self._take_lock()
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            (self.path / LOST_AND_FOUND).mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            self._poison = Poison(self.path, this_boot or boot_id())
        except OSError as error:
            raise _failure(str(self.path), error) from error
        try:
            self._check_poison(accept_possible_loss, has_peers)
        except StorageFailed:
            self.close()
            raise

    def close(self) -> None:
        for name in list(self._views):
            self.forget_view(name)
        with self._guard:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
        os.close(self._directory)
        os.close(self._lock)

    # --- whose directory it is ---

    def _take_lock(self) -> int:
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise DataDirectoryLocked(
                f"process {holder} works in {self.path}: stop it, or use another data directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def mark_poisoned(self, why: str) -> None:
        """Mark the directory after a failed sync, for every process that opens it during this boot."""
        for problem in self._poison.leave(why):
            log.error("%s", problem)

    def trust(self) -> None:
        """Trust the files here: the others have been put aside durably."""
        self.distrusted = ""
        self._poison.clear()
        self.sync_directory()

    def _check_poison(self, accept_possible_loss: bool, has_peers: bool) -> None:
        why = self._poison.find()
        if why is None:
            return
        if why:
            if has_peers and not accept_possible_loss:
                self.distrusted = (
                    f"a sync failed in {self.path} since this machine was booted ({why}), so its "
                    "memory may show data that the disk does not have"
                )
                return
            if not accept_possible_loss:
                raise StorageFailed(
                    f"a sync failed in {self.path} since this machine was booted ({why}), so its "
                    "memory may show data that the disk does not have. Check the disk and reboot, or start "
                    "with --accept-possible-loss to go on with what the disk has"
                )
            self._drop_page_cache()
            self.notes.append("a sync had failed; went on with what the disk has, as asked for")
        else:
            self.notes.append("a sync had failed before the machine was booted; the disk was read anew")
        self._poison.clear()
        self.sync_directory()

    def _drop_page_cache(self) -> None:
        """Make the kernel read the files again, so that recovery judges the disk and not the memory."""
        for name in self.list_files():
            os.posix_fadvise(self._file(name), 0, 0, os.POSIX_FADV_DONTNEED)

    # --- the journal's port ---

    def list_files(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError as error:
            raise _failure(str(self.path), error) from error

    def create(self, name: str, size: int) -> None:
        if self.free_bytes() < size + (0 if self._has_reserve else RESERVE_BYTES):
            raise NoSpace(
                f"there is no room for {name}: {size >> 20} MiB, and {RESERVE_BYTES >> 20} MiB in reserve"
            )

        def fill(descriptor: int) -> None:
            # First the blocks, so that a full disk says so at once; then the zeros, so that later writes
            # change no metadata and a sync has only data to wait for.
            os.posix_fallocate(descriptor, 0, size)
            _fill_with_zeros(descriptor, size)

        self._make_whole(name, fill)
        self._keep_reserve()

    @property
    def _has_reserve(self) -> bool:
        return (self.path / RESERVE).exists()

    def _keep_reserve(self) -> None:
        with self._reserve_guard:
            if self._has_reserve:
                return
            try:
                self._make_whole(RESERVE, lambda descriptor: os.posix_fallocate(descriptor, 0, RESERVE_BYTES))
            except NoSpace:
                # Another process took the room. The next segment will bring the reserve.
                return

    def _give_reserve(self) -> bool:
        with self._reserve_guard:
            if not self._has_reserve:
                return False
            self.remove(RESERVE)
            self.sync_directory()
            return True

    def free_bytes(self) -> int:
        try:
            found = os.fstatvfs(self._directory)
        except OSError as error:
            raise _failure(str(self.path), error) from error
        return found.f_bavail * found.f_frsize

    def write_whole(self, name: str, buffers: Sequence[Buffer]) -> None:
        def fill(descriptor: int) -> None:
            _write_all(descriptor, 0, buffers)

        try:
            self._make_whole(name, fill)
        except NoSpace:
            if not self._give_reserve():
                raise
            self._make_whole(name, fill)

    def _make_whole(self, name: str, fill: Callable[[int], None]) -> None:
        path, unfinished = self.path / name, self.path / (name + UNFINISHED)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(unfinished, flags, _FILE_MODE)
            try:
                fill(descriptor)
                os.fsync(descriptor)
            except OSError:
                unfinished.unlink()
                raise
            finally:
                os.close(descriptor)
            self._let_go(name)
            os.rename(unfinished, path)
        except OSError as error:
            raise _failure(name, error) from error
        self.sync_directory()

    def size(self, name: str) -> int:
        try:
            return os.fstat(self._file(name)).st_size
        except OSError as error:
            raise _failure(name, error) from error

    def read(self, name: str, offset: int, length: int) -> bytes:
        descriptor = self._file(name)
        pieces = []
        try:
            # The kernel gives at most 2 GiB at once.
            while length and (piece := os.pread(descriptor, length, offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
        except OSError as error:
            raise _failure(name, error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def view(self, name: str) -> memoryview:
        with self._guard:
            found = self._views.get(name)
        if found is None:
            try:
                mapped = mmap.mmap(self._file(name), 0, prot=mmap.PROT_READ)
            except OSError as error:
                raise _failure(name, error) from error
            found = (mapped, memoryview(mapped))
            with self._guard:
                self._views[name] = found
        return found[1]

    def forget_view(self, name: str) -> bool:
        with self._guard:
            found = self._views.pop(name, None)
        if found is None:
            return True
        mapped, view = found
        try:
            view.release()
            mapped.close()
        except BufferError:
            # The mapping goes when its last reader lets go of it.
            return False
        return True

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        try:
            _write_all(self._file(name), offset, buffers)
        except OSError as error:
            raise _failure(name, error) from error

    def rename(self, old: str, new: str) -> None:
        self._let_go(old)
        self._let_go(new)
        try:
            os.rename(self.path / old, self.path / new)
            if new.startswith(f"{LOST_AND_FOUND}/"):
                self._sync_lost_and_found()
        except OSError as error:
            raise _failure(old, error) from error

    def _sync_lost_and_found(self) -> None:
        """A moved name is durable when both directories are; `sync_directory` syncs the other."""
        descriptor = os.open(self.path / LOST_AND_FOUND, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        self._let_go(name)
        try:
            os.unlink(self.path / name)
        except OSError as error:
            raise _failure(name, error) from error

    def sync(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                os.fdatasync(self._file(name))
            except OSError as error:
                # Even a full disk is a failed sync here: written bytes may be gone already.
                self.has_failed_sync = True
                raise StorageFailed(f"{name} could not be synced: {error.strerror}") from error

    def sync_directory(self) -> None:
        try:
            os.fsync(self._directory)
        except OSError as error:
            self.has_failed_sync = True
            raise StorageFailed(f"{self.path} could not be synced: {error.strerror}") from error

    def _file(self, name: str) -> int:
        descriptor = self._files.get(name)
        if descriptor is None:
            with self._guard:
                descriptor = self._files.get(name)
                if descriptor is None:
                    try:
                        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
                    except OSError as error:
                        raise _failure(name, error) from error
                    self._files[name] = descriptor
        return descriptor

    def _let_go(self, name: str) -> None:
        self.forget_view(name)
        with self._guard:
            descriptor = self._files.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)


class SyncEnd(NamedTuple):
    ticket: SyncTicket
    took_ns: int
    failure: StorageFailed | None = None


class SyncThread:
    """Syncs files beside the loop; one sync serves all requests from before it began.

    `done` is called in this thread; a failure is the last call.
    """

    def __init__(self, disk: FileDisk, done: Callable[[SyncEnd], None]) -> None:
        self._disk = disk
        self._done = done
        self._requests: SimpleQueue[SyncTicket | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="antiphon-sync", daemon=True)
        self._thread.start()

    def request(self, ticket: SyncTicket) -> None:
        """Sync the ticket's files soon. Its records must be written already."""
        self._requests.put(ticket)

    def sync_now(self, ticket: SyncTicket) -> SyncEnd:
        before = time.monotonic_ns()
        failure = None
        try:
            self._disk.sync(ticket.files)
        except StorageFailed as error:
            failure = error
        return SyncEnd(ticket, time.monotonic_ns() - before, failure)

    def close(self) -> None:
        """Sync the requested files, then end. After a failure there is nothing to wait for."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            ticket = self._requests.get()
            if ticket is None:
                return
            while True:
                try:
                    later = self._requests.get_nowait()
                except Empty:
                    break
                if later is None:
                    closing = True
                    break
                ticket = ticket.merge(later)
            try:
                end = self.sync_now(ticket)
            except Exception as error:
                # Any error is an end: the caller must not wait for a thread that is gone.
                end = SyncEnd(ticket, 0, StorageFailed(f"what was written could not be synced: {error}"))
            self._done(end)
            if end.failure is not None:
                return


def _fill_with_zeros(descriptor: int, size: int) -> None:
    """Write past the page cache where possible: the copy is most of the cost of a new segment."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        while size - done >= len(_ZEROS):
            _write_all(descriptor, done, [_ZEROS])
            done += len(_ZEROS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    for offset in range(done, size, len(_ZEROS)):
        _write_all(descriptor, offset, [_ZEROS[: size - offset]])


def _write_all(descriptor: int, offset: int, buffers: Sequence[Buffer]) -> None:
    for start in range(0, len(buffers), _BUFFERS_MAX):
        some = buffers[start : start + _BUFFERS_MAX] if len(buffers) > _BUFFERS_MAX else buffers
        wanted = sum(map(len, some))
        written = os.pwritev(descriptor, some, offset)
        if written < wanted:
            # Rare enough (a signal, the end of a quota) that a copy does not matter.
            rest = memoryview(b"".join(some))
            while written < wanted:
                written += os.pwrite(descriptor, rest[written:], offset + written)
        offset += wanted


def _failure(name: str, error: OSError) -> NoSpace | StorageFailed:
    if error.errno in _NO_SPACE:
        return NoSpace(f"there is no room for {name}: {error.strerror}")
    return StorageFailed(f"{name}: {error.strerror}")
