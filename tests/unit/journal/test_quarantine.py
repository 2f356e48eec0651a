"""What must not be used is put aside; and with peers, less of it must be."""

from __future__ import annotations

import pytest

from antiphon.errors import Damaged
from antiphon.journal import quarantine
from antiphon.journal.format import (
    RECORD_HEADER_BYTES,
    SUPERBLOCK,
    checkpoint_name,
    segment_name,
)
from antiphon.journal.journal import Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location
from tests.journals import DISK_ID, SMALL, Desk, mid_of


def a_journal() -> tuple[MemoryDisk, list[Location]]:
    """Six records in two flushes, all of them synced and known to be."""
    disk = MemoryDisk()
    desk = Desk.new(disk)
    places = [desk.write_data(300) for _ in range(3)]
    desk.write_order(100, 3)
    desk.sync()
    places += [desk.write_data(300) for _ in range(3)]
    desk.write_order(100, 6)
    desk.sync()
    desk.journal.write_checkpoint(3, bytes(16), b"state", ())
    desk.journal.close()
    return disk, places


def mids_found(disk: MemoryDisk) -> tuple[list[int], list[str]]:
    _, found = Journal.open(disk, SMALL, has_peers=True)
    return [stored.mid.pseq for stored in found.data], found.lost


@pytest.mark.parametrize("at", [10, RECORD_HEADER_BYTES + 10], ids=["header", "payload"])
@pytest.mark.parametrize("number", range(6))
def test_with_peers_only_the_record_that_is_damaged_is_lost(number: int, at: int) -> None:
    disk, places = a_journal()
    disk.flip(segment_name(1), places[number].offset + at)
    with pytest.raises(Damaged):
        Journal.open(disk.copy(), SMALL)
    found, lost = mids_found(disk)
    assert found == [mid_of(one).pseq for one in range(1, 7) if one != number + 1]
    (text,) = lost
    assert text.startswith(f"{segment_name(1)} is damaged at byte {places[number].offset}")


def test_a_journal_goes_on_behind_a_record_that_was_passed_over() -> None:
    disk, places = a_journal()
    disk.flip(segment_name(1), places[-1].offset + 10)
    desk = Desk(disk, *Journal.open(disk, SMALL, has_peers=True))
    desk.data = [(mid_of(number), b"") for number in range(1, 7)]
    desk.write_data(300)
    desk.write_order(100, 7)
    desk.sync()
    desk.journal.close()
    found, lost = mids_found(disk)
    assert found == [1, 2, 3, 4, 5, 7]
    assert len(lost) == 1


def test_with_peers_damage_to_the_order_is_an_error_all_the_same() -> None:
    disk, _ = a_journal()
    for offset in SMALL.geometry().copies(0):
        disk.flip(segment_name(1), offset + 40)
    with pytest.raises(Damaged):
        Journal.open(disk, SMALL, has_peers=True)


def test_checkpoints_that_cannot_be_used_are_told() -> None:
    disk, _ = a_journal()
    disk.flip(checkpoint_name(3), 30)
    _, found = Journal.open(disk, SMALL, has_peers=True)
    assert found.checkpoint is None
    assert len(found.checkpoint_problems) == 1


def test_every_file_of_the_journal_is_put_aside_and_nothing_else() -> None:
    disk, _ = a_journal()
    disk.write_whole("LOCK", [b"17"])
    before = {name: disk.read(name, 0, disk.size(name)) for name in disk.list_files()}
    moved = quarantine.put_aside(disk, "0a0b", "it has rotted")
    assert disk.list_files() == ["LOCK"]
    assert disk.read("lost+found/0a0b-why.txt", 0, 99) == b"it has rotted\n"
    assert sorted(moved) == sorted(f"lost+found/0a0b-{name}" for name in before if name != "LOCK")
    for name in moved:
        assert disk.read(name, 0, disk.size(name)) == before[name.removeprefix("lost+found/0a0b-")]
    assert not Journal.is_formatted(disk)


@pytest.mark.parametrize("kept", range(3))
def test_a_power_cut_in_the_middle_leaves_no_half_journal_that_looks_whole(kept: int) -> None:
    disk, _ = a_journal()
    whole = disk.list_files()
    quarantine.put_aside(disk, "first", "why")
    assert len(whole) == 3
    # Only so many of the renamings have happened.
    order = [SUPERBLOCK, *[name for name in whole if name != SUPERBLOCK]]
    for name in order[kept:]:
        disk.rename(f"lost+found/first-{name}", name)
    if not kept:
        assert Journal.is_formatted(disk)
    else:
        with pytest.raises(Damaged, match="superblock"):
            Journal.is_formatted(disk)
        quarantine.put_aside(disk, "second", "why")
        Journal.format(disk, SMALL, DISK_ID[::-1], 1, "test")
        assert Journal.open(disk, SMALL)[1].disk_id == DISK_ID[::-1]
