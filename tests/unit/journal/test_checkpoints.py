"""Checkpoint files: the newest that verifies counts."""

from __future__ import annotations

import pytest

from antiphon.errors import Damaged, FormatMismatch
from antiphon.journal import checkpoints
from antiphon.journal.checkpoints import CheckpointHead
from antiphon.journal.format import checkpoint_name
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.opening import Opening
from antiphon.journal.ports import Location
from tests.journals import SMALL, Desk, lose_everything

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
    found = Desk.open(desk.disk).recovered
    assert found.checkpoint is None
    assert "under a wrong name" in found.checkpoint_problems[0]


def test_a_whole_file_of_another_format_is_refused_and_no_older_one_is_taken() -> None:
    desk = desk_with(10, 20)
    assert isinstance(desk.disk, MemoryDisk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "FORMAT_VERSION", checkpoints.FORMAT_VERSION + 1)
        desk.journal.write_checkpoint(30, DIGEST, b"state 30", ())
    before = desk.disk.copy()
    with pytest.raises(FormatMismatch, match=f"{checkpoint_name(30)} has format .* nothing was changed"):
        Desk.open(desk.disk)
    assert desk.disk.contents() == before.contents()


def test_of_checkpoints_that_are_passed_over_the_next_older_one_counts_and_all_keep_their_segments() -> None:
    desk = Desk.new()
    assert isinstance(desk.disk, MemoryDisk)
    for n in (10, 20, 30, 40):
        desk.journal.write_checkpoint(n, DIGEST, b"state %d" % n, {n})
    desk.disk.flip(checkpoint_name(40), desk.disk.size(checkpoint_name(40)) - 1)
    opening = Opening(desk.disk)
    before = desk.disk.contents()
    opening.pass_over(30, "it does not read")
    found = opening.found
    assert found.checkpoint is not None and found.checkpoint.n == 20
    assert found.older_checkpoint is not None and found.older_checkpoint.n == 10
    assert found.checkpoint_problems == [
        f"{checkpoint_name(40)} cannot be used: its checksum does not fit, or it belongs to another disk",
        f"{checkpoint_name(30)} cannot be used: it does not read",
    ]
    assert found.checkpoint_segments == {10: {10}, 20: {20}, 30: {30}, 40: {40}}
    opening.pass_over(20, "nor this")
    opening.pass_over(10, "nor this")
    assert opening.found.checkpoint is None
    assert desk.disk.contents() == before, "nothing is changed by looking"
    opening.begin(SMALL)
    assert desk.disk.contents() != before, "a new run has begun"


def test_a_record_in_a_segment_that_is_not_there_is_damage() -> None:
    opening = Opening(reopen(desk_with(10)).disk)
    with pytest.raises(Damaged) as damage:
        opening.verify(Location(77, 4096, 10, 0))
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
