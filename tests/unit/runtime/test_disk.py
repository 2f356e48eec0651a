"""Real files: one process per directory, whole files or none, and a thread that syncs once for many."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from antiphon.errors import Damaged, DataDirectoryLocked, NoSpace, StorageFailed
from antiphon.journal.format import PAGE, segment_name
from antiphon.journal.journal import SyncTicket
from antiphon.journal.ports import Position
from antiphon.runtime.disk import RESERVE, RESERVE_BYTES, FileDisk, SyncEnd, SyncThread
from antiphon.runtime.poison import POISONED
from tests.journals import Desk, payload_of


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path / "data")
    yield disk
    disk.close()


# --- whose directory it is ---


def test_a_second_process_is_told_who_works_here(disk: FileDisk) -> None:
    with pytest.raises(DataDirectoryLocked, match=f"process {os.getpid()} works in"):
        FileDisk(disk.path)


def test_after_closing_the_directory_is_free(tmp_path: Path) -> None:
    for _ in range(3):
        FileDisk(tmp_path / "data").close()


def test_nobody_else_may_read_what_is_stored(disk: FileDisk) -> None:
    old = os.umask(0)
    try:
        disk.create("a", PAGE)
        disk.write_whole("b", [b"text"])
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(disk.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(disk.path / "lost+found").st_mode) == 0o700
    for name in ("a", "b", "LOCK"):
        assert stat.S_IMODE(os.stat(disk.path / name).st_mode) == 0o600


def test_a_poisoned_directory_is_not_opened_in_the_same_boot(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, this_boot="boot 1")
    disk.write_whole("a", [b"text"])
    disk.mark_poisoned("segment-00000001 could not be synced")
    disk.close()
    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"reboot, or start with --accept-possible-loss"):
            FileDisk(tmp_path, this_boot="boot 1")
    accepted = FileDisk(tmp_path, this_boot="boot 1", accept_possible_loss=True)
    assert "as asked for" in accepted.notes[0]
    assert accepted.read("a", 0, 9) == b"text"
    accepted.close()
    FileDisk(tmp_path, this_boot="boot 1").close()


def test_with_peers_a_poisoned_directory_is_opened_but_not_trusted(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, this_boot="boot 1")
    disk.mark_poisoned("segment-00000001 could not be synced")
    disk.close()
    for _ in range(2):
        # Until its files are put aside, it stays so.
        disk = FileDisk(tmp_path, this_boot="boot 1", has_peers=True)
        assert "segment-00000001 could not be synced" in disk.distrusted
        disk.close()
    disk = FileDisk(tmp_path, this_boot="boot 1", has_peers=True)
    disk.trust()
    disk.close()
    disk = FileDisk(tmp_path, this_boot="boot 1", has_peers=True)
    assert disk.distrusted == ""
    disk.close()


def test_a_reboot_takes_the_poison_away(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, this_boot="boot 1")
    disk.mark_poisoned("why")
    disk.close()
    disk = FileDisk(tmp_path, this_boot="boot 2")
    assert "before the machine was booted" in disk.notes[0]
    assert POISONED not in disk.list_files()
    disk.close()


# --- files ---


def test_a_created_file_is_full_of_zeros_and_has_its_blocks(disk: FileDisk) -> None:
    disk.create("a", 3 << 20)
    assert disk.size("a") == 3 << 20
    assert disk.read("a", 0, 3 << 20) == bytes(3 << 20)
    assert os.stat(disk.path / "a").st_blocks * 512 >= 3 << 20


def test_what_is_written_is_read_and_seen(disk: FileDisk) -> None:
    disk.create("a", 2 * PAGE)
    view = disk.view("a")
    disk.write("a", 10, [b"one", memoryview(b"two"), bytearray(b"three")])
    assert disk.read("a", 10, 11) == b"onetwothree"
    assert view[10:21] == b"onetwothree"
    assert disk.read("a", 2 * PAGE - 1, 100) == b"\0"
    with pytest.raises(TypeError):
        view[0] = 1


def test_more_buffers_than_the_kernel_takes_at_once(disk: FileDisk) -> None:
    disk.create("a", PAGE)
    disk.write("a", 0, [b"%d" % (number % 10) for number in range(3000)])
    assert disk.read("a", 0, 3000) == b"0123456789" * 300


def test_a_short_write_is_continued(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.create("a", PAGE)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: os.pwrite(fd, buffers[0][:2], offset))
    disk.write("a", 5, [b"abc", b"def"])
    assert disk.read("a", 5, 6) == b"abcdef"


def test_a_file_keeps_its_bytes_under_a_new_name(disk: FileDisk) -> None:
    disk.create("a", PAGE)
    disk.write("a", 0, [b"text"])
    view = disk.view("a")[:4]
    disk.rename("a", "lost+found/a")
    disk.create("a", PAGE)
    assert disk.read("a", 0, 4) == bytes(4)
    assert disk.read("lost+found/a", 0, 4) == b"text"
    assert view == b"text"
    assert disk.list_files() == ["LOCK", "a", RESERVE]
    disk.remove("a")
    assert disk.list_files() == ["LOCK", RESERVE]


def test_a_view_in_use_is_told(disk: FileDisk) -> None:
    disk.create("a", PAGE)
    assert disk.forget_view("a")
    piece = disk.view("a")[:10]
    assert not disk.forget_view("a")
    assert piece == bytes(10)
    del piece
    disk.view("a")
    assert disk.forget_view("a")


def test_a_full_disk_leaves_no_half_file(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpace, match="no room for a"):
        disk.create("a", PAGE)
    assert disk.list_files() == ["LOCK"]


def test_a_missing_file_is_a_failure_with_a_name(disk: FileDisk) -> None:
    with pytest.raises(StorageFailed, match="nothing"):
        disk.read("nothing", 0, 1)


def test_a_failed_sync_is_a_failure_even_if_the_disk_is_only_full(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    disk.create("a", PAGE)
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(StorageFailed, match="a could not be synced"):
        disk.sync(["a"])


# --- with the journal ---


def test_a_journal_on_files_comes_back(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    desk = Desk.new(disk)
    for size in (10, 60_000, 60_000):
        desk.write_data(size)
        desk.write_order()
        desk.sync()
    written = desk.written()
    desk.journal.close()
    disk.close()

    disk = FileDisk(tmp_path)
    again = Desk.open(disk)
    assert again.found() == written
    # A crash of the process: nothing is closed but the lock.
    disk.close()
    disk = FileDisk(tmp_path)
    assert Desk.open(disk).found() == written
    disk.close()
    with (tmp_path / segment_name(1)).open("r+b") as file:
        file.truncate(100_000)
    disk = FileDisk(tmp_path)
    with pytest.raises(Damaged, match="segment-00000001 is damaged at byte 100000"):
        Desk.open(disk)
    disk.close()


def test_a_reader_keeps_his_bytes_when_the_segment_is_released(disk: FileDisk) -> None:
    desk = Desk.new(disk)
    place = desk.write_data(60_000)
    held = desk.journal.read(place)
    desk.sync()
    held = desk.journal.read(place)
    for _ in range(2):
        desk.write_data(60_000)
        desk.sync()
    for mid, _ in desk.data:
        desk.journal.payloads.discard(mid)
    assert desk.journal.release(0, ()) == 2
    desk.sync()
    desk.journal.prepare_spare()
    # Segment 2 became segment 4; segment 1 could not be used again and is gone from the directory.
    assert [name for name in disk.list_files() if name.startswith("s")] == [
        "segment-00000003",
        "segment-00000004",
        "superblock",
    ]
    desk.write_data(60_000)
    desk.sync()
    assert held == payload_of(1, 60_000)


# --- the thread ---


class SlowDisk(FileDisk):
    """Waits in every sync until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.began: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self.may_go: SimpleQueue[bool] = SimpleQueue()

    def sync(self, names: Sequence[str]) -> None:
        self.began.put(tuple(names))
        if not self.may_go.get(timeout=10):
            raise StorageFailed("the disk is gone")


def ticket(index: int, *files: str) -> SyncTicket:
    return SyncTicket(files, index, Position(1, index, 0))


def test_one_sync_serves_everything_requested_before_it_began(tmp_path: Path) -> None:
    disk, done = SlowDisk(tmp_path), SimpleQueue[SyncEnd]()
    thread = SyncThread(disk, done.put)
    thread.request(ticket(1, "a"))
    assert disk.began.get(timeout=10) == ("a",)
    for index, files in ((2, ("a",)), (3, ("b", "a")), (4, ("c",))):
        thread.request(ticket(index, *files))
    disk.may_go.put(True)
    assert done.get(timeout=10).ticket == ticket(1, "a")
    assert disk.began.get(timeout=10) == ("a", "b", "c")
    disk.may_go.put(True)
    assert done.get(timeout=10).ticket == ticket(4, "a", "b", "c")
    thread.close()
    disk.close()


def test_closing_waits_for_what_was_requested(tmp_path: Path) -> None:
    disk, done = SlowDisk(tmp_path), SimpleQueue[SyncEnd]()
    thread = SyncThread(disk, done.put)
    thread.request(ticket(1, "a"))
    disk.may_go.put(True)
    thread.close()
    assert done.get_nowait().ticket == ticket(1, "a")
    disk.close()


def test_a_failure_is_told_once_and_nothing_is_tried_again(tmp_path: Path) -> None:
    disk, done = SlowDisk(tmp_path), SimpleQueue[SyncEnd]()
    thread = SyncThread(disk, done.put)
    thread.request(ticket(1, "a"))
    disk.may_go.put(False)
    assert isinstance(done.get(timeout=10).failure, StorageFailed)
    thread.request(ticket(2, "a"))
    thread.close()
    assert done.empty() and disk.began.qsize() == 1
    disk.close()


def test_the_callback_runs_in_the_thread(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.create("a", PAGE)
    seen: SimpleQueue[str] = SimpleQueue()
    thread = SyncThread(disk, lambda _: seen.put(threading.current_thread().name))
    thread.request(ticket(1, "a"))
    assert seen.get(timeout=10) == "antiphon-sync"
    thread.close()
    disk.close()


@pytest.mark.parametrize("can_go_past_the_cache", [True, False])
def test_a_new_file_is_all_zeros_with_or_without_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_go_past_the_cache: bool
) -> None:
    disk = FileDisk(tmp_path)
    size = (2 << 20) + 3 * PAGE
    if not can_go_past_the_cache:
        real, direct = fcntl.fcntl, os.O_DIRECT

        def refusing(descriptor: int, what: int, argument: int = 0) -> int:
            if what == fcntl.F_SETFL and argument & direct:
                raise OSError(errno.EINVAL, "this file system cannot do so")
            return real(descriptor, what, argument)

        monkeypatch.setattr(fcntl, "fcntl", refusing)
    disk.create("a", size)
    assert disk.read("a", 0, 2 * size) == bytes(size)
    # What is written and read later goes through the cache again.
    disk.write("a", 5, [b"not a page"])
    assert disk.read("a", 0, 16) == bytes(5) + b"not a page" + bytes(1)
    disk.close()


def test_a_sync_says_how_long_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    disk.create("a", PAGE)
    thread = SyncThread(disk, lambda _: None)
    now = iter((10, 35))
    monkeypatch.setattr("antiphon.runtime.disk.time.monotonic_ns", lambda: next(now))
    assert thread.sync_now(ticket(1, "a")) == SyncEnd(ticket(1, "a"), 25)
    thread.close()
    disk.close()


def test_a_large_file_leaves_a_reserve(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "data")
    free = disk.free_bytes()
    with pytest.raises(NoSpace, match="in reserve"):
        disk.create("much", free - RESERVE_BYTES + (1 << 20))
    assert disk.list_files() == ["LOCK"]
    disk.close()
