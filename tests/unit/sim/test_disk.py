"""The simulated disk: what a crash may keep, and what it may not."""

from __future__ import annotations

import pytest

from antiphon.journal.chores import Chore
from antiphon.journal.format import Geometry, segment_name
from antiphon.sim.disk import PowerLost, SimDisk, SyncFailed
from antiphon.sim.disk_faults import MOMENTS
from antiphon.sim.world import World

PAGE = 4096


def make_disk(style: str = "nothing") -> SimDisk:
    disk = SimDisk(World(1))
    disk.habits.styles = (style,)
    disk.habits.tear_probability = 0.0
    disk.create("file", 4 * PAGE)
    return disk


def test_what_was_synced_survives_every_crash() -> None:
    for style in ("nothing", "everything", "some", "most", "few"):
        disk = make_disk(style)
        disk.write("file", 0, [b"a" * PAGE])
        disk.sync(["file"])
        disk.write("file", PAGE, [b"b" * PAGE])

        disk.lose_power()

        assert disk.read("file", 0, PAGE) == b"a" * PAGE


def test_what_was_not_synced_is_lost_by_a_crash_that_keeps_nothing() -> None:
    disk = make_disk("nothing")
    disk.write("file", 0, [b"a" * PAGE])
    assert disk.read("file", 0, 1) == b"a"

    disk.lose_power()

    assert disk.read("file", 0, PAGE) == bytes(PAGE)


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    disk = make_disk("nothing")
    disk.write("file", 0, [b"a"])
    sync = disk.begin_sync(["file"])
    disk.write("file", PAGE, [b"b"])
    disk.finish_sync(sync)

    disk.lose_power()

    assert disk.read("file", 0, 1) == b"a"
    assert disk.read("file", PAGE, 1) == b"\0"


def test_a_write_during_a_sync_may_survive_as_well() -> None:
    disk = make_disk("everything")
    disk.write("file", 0, [b"a"])
    sync = disk.begin_sync(["file"])
    disk.write("file", PAGE, [b"b"])
    disk.finish_sync(sync)

    disk.lose_power()

    assert disk.read("file", PAGE, 1) == b"b"


def test_a_page_may_be_torn_between_its_sectors() -> None:
    for seed in range(50):
        disk = SimDisk(World(seed))
        disk.habits.styles = ("some",)
        disk.habits.tear_probability = 1.0
        disk.create("file", PAGE)
        disk.write("file", 0, [b"a" * PAGE])
        disk.lose_power()
        content = disk.read("file", 0, PAGE)
        if 0 < content.count(b"a") < PAGE:
            assert content.count(b"a") % 512 == 0
            return
    pytest.fail("no page was torn in 50 crashes")


def test_the_power_can_go_in_the_middle_of_a_write() -> None:
    disk = make_disk("everything")
    disk.cut_after = 1
    disk.write("file", 0, [b"a" * PAGE])

    with pytest.raises(PowerLost):
        disk.write("file", PAGE, [b"b" * PAGE])


def test_a_file_somebody_looks_at_is_not_called_free() -> None:
    disk = make_disk()
    piece = disk.view("file")[10:20]

    assert not disk.forget_view("file")

    piece.release()
    assert disk.forget_view("file")


def test_a_stalled_sync_takes_sixty_times_as_long() -> None:
    disk = make_disk()
    disk.habits.sync_ns = 100
    disk.habits.stall_probability = 1.0

    assert 60 * 50 <= disk.latency_ns() <= 60 * 200


def test_what_a_failed_sync_should_have_covered_is_in_doubt() -> None:
    disk = make_disk("nothing")
    disk.write("file", 0, [b"a"])
    disk.fails = lambda: True

    with pytest.raises(SyncFailed):
        disk.sync(["file"])
    disk.lose_power()

    assert disk.read("file", 0, 1) == b"\0"


def test_what_is_durable_is_what_a_crash_that_keeps_nothing_leaves() -> None:
    disk = make_disk("nothing")
    disk.write("file", 0, [b"a" * PAGE])
    disk.sync(["file"])
    disk.write("file", 10, [b"b" * PAGE])
    disk.rename("file", "other")

    durable = disk.durable().contents()

    assert disk.read("other", 10, 1) == b"b", "the disk itself goes on"
    disk.lose_power()
    assert durable == disk.contents()


@pytest.mark.parametrize("moment", range(MOMENTS["recycling"]))
def test_the_power_goes_at_each_moment_of_a_recycling(moment: int) -> None:
    disk = make_disk()
    chore = Chore(disk, bytes(16), Geometry(16 * PAGE, 2), number=2, source="file")
    disk.cut_in = "recycling", moment
    disk.begin_work("checkpoint")
    disk.end_work()
    disk.begin_work("recycling")

    with pytest.raises(PowerLost):
        chore.run()
        disk.end_work()

    is_ready = segment_name(2) in disk.list_files()
    assert is_ready == (moment >= MOMENTS["recycling"] - 2), "only after its last renaming"


def test_the_power_goes_before_a_checkpoint_is_written_or_before_anybody_is_told() -> None:
    for moment in range(MOMENTS["checkpoint"]):
        disk = make_disk()
        disk.cut_in = "checkpoint", moment
        disk.begin_work("checkpoint")
        with pytest.raises(PowerLost):
            disk.write_whole("whole", [b"a"])
            disk.end_work()
        assert ("whole" in disk.list_files()) == (moment == 1)
