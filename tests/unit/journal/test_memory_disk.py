"""The disk that loses power, tested itself: a checker that is blind proves nothing."""

from __future__ import annotations

import random

import pytest

from antiphon.errors import NoSpace, StorageFailed
from antiphon.journal.format import PAGE
from antiphon.journal.memory_disk import MemoryDisk
from tests.journals import lose_everything, lose_nothing


def disk_with_file() -> MemoryDisk:
    disk = MemoryDisk()
    disk.create("a", 4 * PAGE)
    return disk


def test_unsynced_pages_can_be_lost_one_by_one() -> None:
    outcomes = set()
    for seed in range(50):
        disk = disk_with_file()
        disk.write("a", 0, [b"x" * PAGE, b"y" * PAGE])
        disk.crash(random.Random(seed).randrange)
        outcomes.add(disk.read("a", 0, 1) + disk.read("a", PAGE, 1))
    assert outcomes == {b"\0\0", b"x\0", b"\0y", b"xy"}


def test_a_page_may_keep_any_version_since_the_sync() -> None:
    outcomes = set()
    for seed in range(50):
        disk = disk_with_file()
        for text in (b"1", b"2", b"3"):
            disk.write("a", 0, [text])
            if text == b"1":
                disk.sync(["a"])
        disk.crash(random.Random(seed).randrange)
        outcomes.add(disk.read("a", 0, 1))
    assert outcomes == {b"1", b"2", b"3"}


def test_a_page_may_be_torn() -> None:
    outcomes = set()
    for seed in range(50):
        disk = disk_with_file()
        disk.write("a", 0, [b"x" * PAGE])
        disk.crash(random.Random(seed).randrange, tear=True)
        outcomes.add(disk.read("a", 0, PAGE).count(b"x"))
    assert any(0 < count < PAGE for count in outcomes)


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    disk = disk_with_file()
    disk.write("a", 0, [b"old"])
    syncing = disk.begin_sync(["a"])
    disk.write("a", 0, [b"new"])
    disk.write("a", PAGE, [b"new"])
    disk.finish_sync(syncing)
    disk.crash(lose_everything)
    assert (disk.read("a", 0, 3), disk.read("a", PAGE, 3)) == (b"old", b"\0\0\0")


def test_a_renaming_may_not_have_happened() -> None:
    disk = disk_with_file()
    disk.rename("a", "b")
    disk.remove("b")
    disk.crash(lose_everything)
    assert disk.list_files() == ["a"]
    disk.rename("a", "b")
    disk.sync_directory()
    disk.crash(lose_everything)
    assert disk.list_files() == ["b"]


def test_the_death_of_the_process_loses_nothing() -> None:
    disk = disk_with_file()
    disk.write("a", 5, [b"here"])
    disk.rename("a", "b")
    disk.crash(lose_nothing)
    assert disk.read("b", 5, 4) == b"here"


def test_it_can_be_full_and_it_can_fail() -> None:
    disk = MemoryDisk(capacity=PAGE)
    with pytest.raises(NoSpace):
        disk.create("a", 2 * PAGE)
    with pytest.raises(NoSpace):
        disk.write_whole("a", [bytes(2 * PAGE)])
    disk.create("a", PAGE)
    disk.syncs_until_failure = 1
    disk.sync(["a"])
    with pytest.raises(StorageFailed):
        disk.sync(["a"])
