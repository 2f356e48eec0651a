"""From a disk to a node: whose disk it is, and what happens if it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.bus.group import GroupConfig
from antiphon.errors import Damaged, FormatMismatch, StorageFailed
from antiphon.journal.format import SUPERBLOCK, Settings
from antiphon.journal.journal import Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.poison import POISONED
from antiphon.startup import CHANNEL, CLUSTER, Identity, StartSettings, start

SMALL = Settings(segment_bytes=160 * 1024, order_blocks=8)
OLD, NEW = b"the first disk  ", b"the second disk "
OTHERS = (b"disk of node two", b"and that of 3   ")
ALONE = StartSettings()
LISTED = StartSettings(group=GroupConfig.of(CHANNEL, (1, 2, 3), disk_ids=(OLD, *OTHERS)))
UNLISTED = StartSettings(group=GroupConfig.of(CHANNEL, (1, 2, 3)))
IDENTITY = Identity(disk_id=NEW, run_id=bytes(16), start_s=1)


def a_disk(node_id: int = 1, cluster: str = CLUSTER) -> MemoryDisk:
    disk = MemoryDisk()
    Journal.format(disk, SMALL, OLD, node_id, cluster)
    return disk


def rotten() -> MemoryDisk:
    disk = a_disk()
    for copy in range(3):
        disk.flip(SUPERBLOCK, copy * 4096 + 50)
    return disk


def test_an_empty_disk_gets_the_id_that_was_drawn_and_so_has_no_vote() -> None:
    started = start(MemoryDisk(), SMALL, IDENTITY, LISTED)
    assert started.found.disk_id == NEW
    assert started.node.channels[CHANNEL].replica.is_amnesiac
    assert started.alarms == []


@pytest.mark.parametrize("start_s", [-1, 0, 1 << 32, 1 << 40])
def test_a_node_whose_clock_shows_another_age_has_ids_all_the_same(start_s: int) -> None:
    ids = Identity(disk_id=NEW, run_id=bytes(16), start_s=start_s).ids(7, run=3)
    assert ids.next() >> 112 == 7 and ids.next() & 0xFFFF_FFFF_FFFF_FFFF == 3 << 32 | 2


def test_the_disk_that_is_listed_has_a_vote() -> None:
    started = start(a_disk(), SMALL, IDENTITY, LISTED)
    assert started.found.disk_id == OLD
    assert not started.node.channels[CHANNEL].replica.is_amnesiac


def test_in_a_group_a_ruined_disk_is_put_aside() -> None:
    disk = rotten()
    started = start(disk, SMALL, IDENTITY, LISTED)
    assert started.found.disk_id == NEW
    (alarm,) = started.alarms
    assert "superblock is damaged at byte" in alarm and "lost+found" in alarm
    assert started.node.channels[CHANNEL].replica.is_amnesiac


@pytest.mark.parametrize("settings", [ALONE, UNLISTED], ids=["alone", "disks are not listed"])
def test_otherwise_it_is_refused_and_left_as_it_is(settings: StartSettings) -> None:
    disk = rotten()
    with pytest.raises(Damaged, match="superblock is damaged at byte"):
        start(disk, SMALL, IDENTITY, settings)
    assert disk.all_files() == [SUPERBLOCK]
    with pytest.raises(StorageFailed, match="a sync failed"):
        start(disk, SMALL, IDENTITY, settings, distrusted="a sync failed")
    assert disk.all_files() == [SUPERBLOCK]


def test_the_id_of_the_lost_disk_is_never_given_to_a_new_one() -> None:
    same = Identity(disk_id=OLD, run_id=bytes(16), start_s=1)
    with pytest.raises(AssertionError, match="the id of the one that is lost"):
        start(rotten(), SMALL, same, LISTED)


@pytest.mark.parametrize(("node_id", "cluster"), [(2, CLUSTER), (1, "another")])
def test_the_disk_of_another_node_is_refused_and_not_put_aside(node_id: int, cluster: str) -> None:
    disk = a_disk(node_id, cluster)
    with pytest.raises(FormatMismatch, match=f"belongs to node {node_id} of '{cluster}'"):
        start(disk, SMALL, IDENTITY, LISTED)
    assert disk.list_files() == [SUPERBLOCK]


def test_after_a_failed_sync_the_files_of_a_real_directory_are_put_aside(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    Journal.format(disk, SMALL, OLD, 1, CLUSTER)
    disk.mark_poisoned("segment-00000001 could not be synced")
    disk.close()
    disk = FileDisk(tmp_path, has_peers=True)
    started = start(disk, SMALL, IDENTITY, LISTED, distrusted=disk.distrusted)
    disk.trust()
    disk.close()
    assert started.found.disk_id == NEW
    assert "could not be synced" in started.alarms[0]
    mark = NEW.hex()[:12]
    assert sorted(path.name for path in (tmp_path / "lost+found").iterdir()) == [
        f"{mark}-superblock",
        f"{mark}-why.txt",
    ]
    assert not (tmp_path / POISONED).exists()
    disk = FileDisk(tmp_path, has_peers=True)
    again = start(disk, SMALL, IDENTITY, LISTED, distrusted=disk.distrusted)
    assert again.found.disk_id == NEW and again.alarms == []
    disk.close()
