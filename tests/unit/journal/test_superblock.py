"""Four copies in two pairs: a torn write costs at most one pair, and rot in one copy costs nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from antiphon.errors import Damaged
from antiphon.journal.format import PAGE, SUPERBLOCK
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.superblock import Superblock, SuperblockFile, create, decode
from tests.journals import DISK_ID, SMALL, lose_everything

FACTS = Superblock(disk_id=DISK_ID, node_id=9, cluster="chœur", geometry=SMALL.geometry())


def fresh() -> MemoryDisk:
    disk = MemoryDisk()
    create(disk, FACTS)
    return disk


def test_facts_survive_encoding() -> None:
    facts = replace(FACTS, promised=2**64 - 1, epoch_claimed=5, run=6, clean=True, tail_start=7)
    assert decode(facts.encode()) == facts
    assert decode(facts.encode()[:-1]) is None
    assert decode(bytes(PAGE)) is None


def test_whatever_is_lost_of_a_write_the_old_or_the_new_version_is_there() -> None:
    for lost in product((False, True), repeat=2):
        disk = fresh()
        file = SuperblockFile.load(disk)
        file.write(replace(file.current, promised=1))
        pages = [file.current.encode(), file.current.encode()]
        disk.crash(lose_everything)
        for copy, (page, is_lost) in enumerate(zip(pages, lost, strict=True), start=2):
            disk.write(SUPERBLOCK, copy * PAGE, [page if not is_lost else page[:60] + bytes(PAGE - 60)])
        assert SuperblockFile.load(disk).current.promised == (0 if all(lost) else 1)


def test_a_version_that_is_durable_goes_into_all_copies() -> None:
    disk = fresh()
    file = SuperblockFile.load(disk)
    for promised in (1, 2, 3):
        sequence = file.write(replace(file.current, promised=promised))
        assert file.is_in_flight
        disk.sync([SUPERBLOCK])
        file.synced(sequence)
        assert not file.is_in_flight
    copies = [decode(disk.read(SUPERBLOCK, copy * PAGE, PAGE)) for copy in range(4)]
    assert copies == [file.current] * 4


def test_while_one_pair_can_be_torn_the_other_cannot() -> None:
    disk = fresh()
    file = SuperblockFile.load(disk)
    for _ in range(4):
        sequence = file.write(file.current)
        unsure = disk.unsynced_pages(SUPERBLOCK)
        assert unsure in ([0, 1], [2, 3])
        disk.sync([SUPERBLOCK])
        file.synced(sequence)
        assert disk.unsynced_pages(SUPERBLOCK) == [page for page in range(4) if page not in unsure]


def test_only_one_version_may_be_on_its_way() -> None:
    file = SuperblockFile.load(fresh())
    file.write(file.current)
    with pytest.raises(AssertionError, match="on its way"):
        file.write(file.current)


@pytest.mark.parametrize("bad", [[0], [3], [0, 1], [0, 2], [2, 3]])
def test_two_good_copies_are_enough_and_the_others_are_mended(bad: list[int]) -> None:
    disk = fresh()
    for copy in bad:
        disk.flip(SUPERBLOCK, copy * PAGE + 100)
    file = SuperblockFile.load(disk)
    assert len(file.repairs) == len(bad)
    file.settle(file.current)
    assert SuperblockFile.load(disk).repairs == []


def test_one_good_copy_is_not_enough() -> None:
    disk = fresh()
    for copy in (0, 1, 3):
        disk.flip(SUPERBLOCK, copy * PAGE + 100)
    with pytest.raises(Damaged, match="only 1 of 4 copies"):
        SuperblockFile.load(disk)


def test_a_single_copy_of_a_newer_version_counts() -> None:
    """It was synced and then rotted, or it was never confirmed; either way using it is right."""
    disk = fresh()
    file = SuperblockFile.load(disk)
    file.write(replace(file.current, promised=5))
    disk.sync([SUPERBLOCK])
    disk.flip(SUPERBLOCK, 2 * PAGE + 50)
    again = SuperblockFile.load(disk)
    assert again.current.promised == 5
    again.settle(replace(again.current, promised=6))
    assert SuperblockFile.load(disk).current.promised == 6
