"""Checkpoint files: the newest that verifies counts."""

from __future__ import annotations

import pytest

from antiphon.errors import Damaged
from antiphon.journal.checkpoints import CheckpointHead
from antiphon.journal.format import checkpoint_name
from antiphon.journal.memory_disk import MemoryDisk
from tests.journals import Desk, lose_everything

DIGEST = bytes(range(100, 116))


def desk_with(*numbers: int) -> Desk:
    desk = Desk.new()
    for n in numbers:
        desk.journal.write_checkpoint(n, DIGEST, b"state %d" % n, ())
    return desk


def reopen(desk: Desk) -> Desk:
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.crash(lose_everything)
    return Desk.open(desk.disk)


def test_a_checkpoint_comes_back_as_it_was() -> None:
    desk = Desk.new()
    for _ in range(3):
        desk.write_data(60_000)
        desk.sync()
    desk.journal.write_checkpoint(12, DIGEST, b"state", {2, 1})
    found = reopen(desk).recovered.checkpoint
    assert found is not None
    assert (found.n, found.digest, found.state, found.segments) == (12, DIGEST, b"state", (1, 2))


def test_the_two_newest_are_found() -> None:
    found = reopen(desk_with(10, 300, 20)).recovered
    assert found.checkpoint is not None and found.checkpoint.n == 300
    assert found.older_checkpoint is not None and found.older_checkpoint.n == 20
    assert found.checkpoint_problems == []


def test_of_earlier_ones_the_heads_are_found() -> None:
    desk = Desk.new()
    for n in (10, 20, 30, 40, 50):
        desk.journal.write_checkpoint(n, DIGEST, b"state %d" % n, {7, n} if n < 40 else ())
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.flip(checkpoint_name(20), 20)
    desk.disk.truncate(checkpoint_name(10), 40)
    found = reopen(desk).recovered
    assert found.earlier_checkpoints == (CheckpointHead(30, DIGEST, len(b"state 30"), (7, 30)),)
    assert found.checkpoint_problems == [], "nothing begins with those"
    assert found.checkpoint_segments == {30: {7, 30}, 40: set(), 50: set()}


def test_without_a_checkpoint_there_is_none() -> None:
    assert reopen(Desk.new()).recovered.checkpoint is None


def test_every_rotten_byte_of_the_newest_makes_the_older_one_count() -> None:
    desk = desk_with(10, 20)
    assert isinstance(desk.disk, MemoryDisk)
    for offset in range(desk.disk.size(checkpoint_name(20))):
        disk = desk.disk.copy()
        disk.flip(checkpoint_name(20), offset)
        found = Desk.open(disk).recovered
        assert found.checkpoint is not None and found.checkpoint.n == 10
        assert found.older_checkpoint is None
        assert checkpoint_name(20) in found.checkpoint_problems[0]


def test_a_cut_or_renamed_checkpoint_is_not_used() -> None:
    desk = desk_with(10, 20)
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.truncate(checkpoint_name(20), 40)
    assert "too short" in Desk.open(desk.disk).recovered.checkpoint_problems[0]
    desk.disk.rename(checkpoint_name(10), checkpoint_name(30))
    with pytest.raises(Damaged, match="under a wrong name"):
        Desk.open(desk.disk)


def test_a_node_whose_only_checkpoint_is_damaged_does_not_start_empty() -> None:
    desk = desk_with(10)
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.flip(checkpoint_name(10), 70)
    with pytest.raises(Damaged) as damage:
        Desk.open(desk.disk)
    assert damage.value.file == checkpoint_name(10)


def test_a_segment_that_the_checkpoint_refers_to_must_be_there() -> None:
    desk = desk_with(10)
    desk.journal.write_checkpoint(11, DIGEST, b"", {77})
    with pytest.raises(Damaged) as damage:
        reopen(desk)
    assert (damage.value.file, damage.value.what) == ("segment-00000077", "the file is missing")


def test_old_checkpoints_go_when_told_but_never_the_two_newest() -> None:
    desk = desk_with(10, 20, 30, 40)
    assert desk.journal.drop_checkpoints_before(20) == 1
    assert desk.journal.drop_checkpoints_before(1000) == 1
    assert [name for name in desk.disk.list_files() if name.startswith("checkpoint")] == [
        checkpoint_name(30),
        checkpoint_name(40),
    ]


def test_one_checkpoint_is_read_by_its_number() -> None:
    desk = desk_with(3, 7)
    assert desk.journal.read_checkpoint(3).state == b"state 3"
    with pytest.raises(Damaged, match="the file is missing"):
        desk.journal.read_checkpoint(5)
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.flip(checkpoint_name(7), 60)
    with pytest.raises(Damaged):
        desk.journal.read_checkpoint(7)
