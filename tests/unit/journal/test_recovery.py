"""Reading back: repair, cut off, or refuse, and never lose what was synced without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from antiphon.errors import Damaged, FormatMismatch
from antiphon.journal.format import (
    HEADER_COPIES,
    ORDER_LENGTH,
    PAGE,
    RECORD_HEADER_BYTES,
    SUPERBLOCK,
    encode_group,
    seal_page,
    seed_of,
    segment_name,
    spare_name,
)
from antiphon.journal.journal import Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import NOWHERE
from tests.journals import DISK_ID, SMALL, Desk, lose_everything, lose_nothing, payload_of
from tests.planted.catalogue import with_and_without

ONE = segment_name(1)
GEOMETRY = SMALL.geometry()


def crashed(desk: Desk, choose: Callable[[int], int] = lose_everything) -> MemoryDisk:
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.crash(choose)
    return desk.disk


def snapshot(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.read(name, 0, disk.size(name)) for name in disk.list_files()}


def refused(disk: MemoryDisk) -> Damaged:
    """The damage, which must have left the disk as it was."""
    before = snapshot(disk)
    with pytest.raises(Damaged) as damage:
        Journal.open(disk, SMALL)
    assert snapshot(disk) == before
    return damage.value


# --- every byte ---


def story() -> Desk:
    """Three flushes in two segments, all synced, of which each proves the one before."""
    desk = Desk.new()
    desk.write_data(3000)
    desk.write_data(500)
    desk.write_order(5000)
    desk.sync()
    desk.write_data(70_000)
    desk.write_order(300)
    desk.sync()
    desk.write_data(6001)
    desk.sync()
    desk.write_order(100)
    desk.sync()
    return desk


def used_bytes(desk: Desk) -> Iterator[tuple[str, int, int]]:
    """(file, start, stop) of everything that means something, headers first as pieces of their own."""
    for copy in range(4):
        yield SUPERBLOCK, copy * PAGE, copy * PAGE + 200
        yield SUPERBLOCK, copy * PAGE + 200, (copy + 1) * PAGE
    for segment, blocks in ((1, 2), (2, 2)):
        name = segment_name(segment)
        for header in HEADER_COPIES:
            yield name, header, header + 64
            yield name, header + 64, header + PAGE
        for block in range(blocks):
            for offset in GEOMETRY.copies(block):
                yield name, offset, offset + 100
                yield name, offset + 100, offset + PAGE
    for mid, payload in desk.data:
        location = desk.journal.payloads.locate(mid)
        assert location is not None
        name, start = segment_name(location.segment), location.offset
        yield name, start, start + RECORD_HEADER_BYTES
        yield name, start + RECORD_HEADER_BYTES, start + RECORD_HEADER_BYTES + len(payload)


def flips(pieces: list[tuple[str, int, int]]) -> Iterator[tuple[str, int]]:
    """Every byte of a header, every 97th of the rest."""
    for name, start, stop in pieces:
        for offset in range(start, stop, 1 if stop - start <= 200 else 97):
            yield name, offset


@pytest.mark.parametrize("ending", ["crash", "clean"])
def test_one_rotten_byte_is_mended_or_named(ending: str) -> None:
    desk = story()
    if ending == "clean":
        desk.journal.close()
    disk = crashed(desk)
    assert Desk.open(disk.copy()).found() == desk.written()
    records: dict[str, list[int]] = {SUPERBLOCK: []}
    for _, location in desk.journal.payloads.unplaced():
        records.setdefault(segment_name(location.segment), []).append(location.offset)
    mended = named = 0
    for name, offset in flips(list(used_bytes(desk))):
        rotten = disk.copy()
        rotten.flip(name, offset)
        try:
            again = Desk.open(rotten)
        except Damaged as damage:
            named += 1
            assert damage.file == name, (name, offset)
            assert damage.offset == max(start for start in records[name] if start <= offset), (name, offset)
        else:
            mended += 1
            assert again.found() == desk.written(), (name, offset)
            page = offset // PAGE * PAGE
            assert any(f"{name}:" in text and f"byte {page} " in text for text in again.recovered.repairs), (
                name,
                offset,
            )
            # And it stays mended.
            assert Desk.open(rotten).recovered.repairs == []
    assert mended > 1000 and named > 500


def test_rot_in_unused_space_means_nothing() -> None:
    desk = story()
    disk = crashed(desk)
    for offset in (GEOMETRY.copies(7)[0] + 5, GEOMETRY.copies(7)[1] + 5, SMALL.segment_bytes - 1):
        disk.flip(ONE, offset)
    again = Desk.open(disk)
    assert again.found() == desk.written()
    assert again.recovered.repairs == []


# --- torn or damaged ---


def test_a_half_written_record_is_left_out() -> None:
    desk = Desk.new()
    desk.write_data()
    desk.write_order()
    desk.sync()
    location = desk.write_data(20_000)
    desk.flush()
    disk = crashed(desk, lose_nothing)
    disk.write(ONE, location.offset + 2 * PAGE, [bytes(PAGE)])
    again = Desk.open(disk)
    assert again.found() == (desk.order, desk.data[:1])
    assert f"the data record at byte {location.offset} was not finished" in again.recovered.truncated[0]
    again.write_data(30_000)
    again.sync()
    third = Desk.open(crashed(again))
    assert [stored.location.length for stored in third.recovered.data] == [1000, 30_000]


def test_a_half_written_order_block_is_left_out() -> None:
    desk = Desk.new()
    desk.write_order()
    desk.sync()
    desk.write_order(9000)
    desk.flush()
    disk = crashed(desk, lose_nothing)
    for offset in GEOMETRY.copies(2):
        disk.flip(ONE, offset + 200)
    again = Desk.open(disk)
    assert again.recovered.order == desk.order[:1]
    assert "order block 1 at byte" in again.recovered.truncated[0]


def test_a_later_flush_may_arrive_before_an_earlier_one() -> None:
    """Neither was synced: that is no damage, and what came later is not seen without what came before."""
    desk = Desk.new()
    desk.write_order()
    desk.sync()
    for _ in range(2):
        desk.write_order(200)
        desk.write_data(200)
        desk.flush()
    disk = crashed(desk, lose_nothing)
    for offset in (*GEOMETRY.copies(1), GEOMETRY.data_start):
        disk.write(ONE, offset, [bytes(PAGE)])
    again = Desk.open(disk)
    assert again.found() == (desk.order[:1], [])
    # New writes take the place of the lost flush; the one behind it stays unseen.
    new = again.write_order(50)
    again.sync()
    assert Desk.open(crashed(again)).recovered.order == [desk.order[0], new]


def unfinished(*, bound: bool, lost: int = 0) -> tuple[Desk, MemoryDisk]:
    """Two flushes that were not synced, each with data and order; of the data of one a page is missing."""
    desk = Desk.new()
    desk.write_data(100)
    desk.write_order()
    desk.sync()
    places = []
    for _ in range(2):
        places.append(desk.write_data(9_000))
        desk.write_order(bound=bound)
        desk.flush()
    disk = crashed(desk, lose_nothing)
    disk.write(ONE, places[lost].offset + PAGE, [bytes(PAGE)])
    return desk, disk


@with_and_without("kept-without-data")
def test_order_that_is_bound_to_unfinished_data_is_left_out(is_planted: bool) -> None:
    desk, disk = unfinished(bound=True)
    again = Desk.open(disk)
    assert again.recovered.data[1:] == []
    assert again.recovered.order == (desk.order if is_planted else desk.order[:1])
    if not is_planted:
        assert any("order block 1 was written with data" in text for text in again.recovered.truncated)
        # What is written in its place counts, and what was left out stays so.
        new = again.write_order(50)
        again.sync()
        assert Desk.open(crashed(again)).recovered.order == [desk.order[0], new]


def test_order_before_unfinished_data_stays() -> None:
    desk, disk = unfinished(bound=True, lost=1)
    assert Desk.open(disk).found() == (desk.order[:2], desk.data[:2])


def test_order_that_is_not_bound_stays_without_the_data_beside_it() -> None:
    desk, disk = unfinished(bound=False)
    assert Desk.open(disk).found() == (desk.order, desk.data[:1])


@pytest.mark.parametrize("is_apart", [False, True])
def test_the_first_order_of_a_segment_is_left_out_too(is_apart: bool) -> None:
    """Also if the envelope was flushed before, since its entry did not come in time."""
    desk = Desk.new()
    place = desk.write_data(9_000)
    if is_apart:
        desk.flush()
    desk.write_order(bound=True)
    desk.flush()
    disk = crashed(desk, lose_nothing)
    disk.write(ONE, place.offset + PAGE, [bytes(PAGE)])
    again = Desk.open(disk)
    assert again.found() == ([], [])
    said = "order block 1 was written with data" if is_apart else "nothing of it was finished"
    assert said in again.recovered.truncated[-1]
    new = again.write_order(bound=True)
    again.sync()
    assert Desk.open(crashed(again)).recovered.order == [new]


def test_synced_data_that_order_is_bound_to_are_damage_when_they_are_gone() -> None:
    desk = Desk.new()
    place = desk.write_data(9_000)
    desk.write_order(bound=True)
    desk.sync()
    desk.write_order()
    desk.sync()
    disk = crashed(desk)
    disk.write(ONE, place.offset + PAGE, [bytes(PAGE)])
    assert refused(disk).offset == place.offset


def test_both_copies_of_a_synced_block_gone_is_damage() -> None:
    desk = Desk.new()
    for _ in range(3):
        desk.write_order()
        desk.sync()
    disk = crashed(desk)
    for offset in GEOMETRY.copies(1):
        disk.flip(ONE, offset + 999)
    damage = refused(disk)
    assert (damage.file, damage.offset) == (ONE, GEOMETRY.copies(1)[0])


def test_after_a_clean_end_the_last_record_too_is_known_to_have_been_there() -> None:
    desk = Desk.new()
    location = desk.write_data()
    desk.journal.close()
    disk = crashed(desk)
    disk.flip(ONE, location.offset + 500)
    damage = refused(disk)
    assert (damage.file, damage.offset) == (ONE, location.offset)


def test_after_a_mark_the_last_record_too_is_known_to_have_been_there() -> None:
    desk = Desk.new()
    location = desk.write_data()
    desk.sync()
    ticket = desk.journal.mark()
    assert ticket is not None
    desk.sync(ticket)
    assert desk.journal.mark() is None
    disk = crashed(desk)
    disk.flip(ONE, location.offset + 500)
    damage = refused(disk)
    assert (damage.file, damage.offset) == (ONE, location.offset)


def test_later_data_prove_earlier_data() -> None:
    desk = Desk.new()
    first = desk.write_data()
    desk.sync()
    desk.write_data()
    desk.sync()
    disk = crashed(desk)
    disk.flip(ONE, first.offset + 500)
    assert refused(disk).offset == first.offset


def test_a_torn_record_that_shares_its_page_with_a_whole_one_stays_cut_off() -> None:
    """Its header is whole and in place for ever; the run that goes on from there is the later one."""
    desk = Desk.new()
    desk.write_data(3000)
    torn = desk.write_data(20_000)
    desk.flush()
    disk = crashed(desk, lose_nothing)
    disk.write(ONE, torn.offset + PAGE, [bytes(PAGE)])
    desk = Desk.open(disk)
    desk.data.append((desk.recovered.data[0].mid, payload_of(1, 3000)))
    desk.write_data(0)
    desk.journal.close()
    for _ in range(3):
        assert Desk.open(crashed(desk)).found()[1] == desk.data


def test_a_block_that_does_not_follow_the_one_before_is_not_taken() -> None:
    desk = Desk.new()
    kept = desk.write_order()
    desk.sync()
    stranger = encode_group(
        ORDER_LENGTH.pack(3) + b"odd",
        seed=seed_of(DISK_ID),
        segment=1,
        first=1,
        run=1,
        previous=bytes(16),
        synced=NOWHERE,
        before=NOWHERE,
        data_end=GEOMETRY.data_start,
        flags=0,
        highest=0,
    )
    disk = crashed(desk)
    for offset in GEOMETRY.copies(1):
        disk.write(ONE, offset, stranger)
    assert Desk.open(disk).recovered.order == [kept]


def test_a_segment_begun_and_given_up_is_not_confused_with_its_successor() -> None:
    """Both say that they go on from the end of segment 1."""
    desk = Desk.new()
    desk.write_data(70_000)
    desk.sync()
    desk.write_data(70_000)
    desk.write_order(9000)
    assert desk.flush().position.segment == 2
    disk = crashed(desk, lose_nothing)
    for offset in GEOMETRY.copies(1):
        disk.flip(segment_name(2), offset)

    desk = Desk.open(disk)
    assert disk.list_files() == [ONE, spare_name(2), SUPERBLOCK]
    kept = desk.recovered.data
    assert desk.write_data(60_000).segment == 3
    desk.sync()
    for _ in range(3):
        desk = Desk.open(crashed(desk))
        assert desk.recovered.data[:1] == kept
        assert [stored.location.segment for stored in desk.recovered.data] == [1, 3]


# --- files ---


@pytest.mark.parametrize("change", [-PAGE, -1, 1, PAGE])
def test_a_segment_of_another_length_is_refused(change: int) -> None:
    desk = story()
    disk = crashed(desk)
    disk.truncate(ONE, SMALL.segment_bytes + change)
    damage = refused(disk)
    assert damage.file == ONE
    assert f"{SMALL.segment_bytes + change} bytes instead of {SMALL.segment_bytes}" in damage.what


def test_a_last_segment_of_another_length_is_refused() -> None:
    desk = Desk.new()
    desk.write_data()
    desk.sync()
    disk = crashed(desk)
    disk.truncate(ONE, 3 * PAGE)
    assert refused(disk).file == ONE


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_refused(number: int) -> None:
    desk = Desk.new()
    for _ in range(3):
        desk.write_data(70_000)
        desk.sync()
    disk = crashed(desk)
    disk.remove(segment_name(number))
    disk.sync_directory()
    damage = refused(disk)
    assert (damage.file, damage.what) == (segment_name(number), "the file is missing")


def test_segments_in_each_others_place_are_refused() -> None:
    desk = story()
    disk = crashed(desk)
    disk.rename(ONE, "x")
    disk.rename(segment_name(2), ONE)
    disk.rename("x", segment_name(2))
    assert "neither copy of its header" in refused(disk).what


def test_a_missing_superblock_is_no_empty_disk() -> None:
    disk = crashed(story())
    disk.remove(SUPERBLOCK)
    with pytest.raises(Damaged):
        Journal.is_formatted(disk)
    with pytest.raises(Damaged):
        Journal.format(disk, SMALL, DISK_ID, 1, "test")
    assert refused(disk).file == SUPERBLOCK


def test_another_format_is_named() -> None:
    disk = crashed(story())
    for copy in range(4):
        page = disk.read(SUPERBLOCK, copy * PAGE, PAGE)
        other = page[16:24] + (99).to_bytes(4, "little") + page[28:]
        disk.write(SUPERBLOCK, copy * PAGE, [seal_page(other, 0)])
    before = snapshot(disk)
    with pytest.raises(FormatMismatch, match="has format 99, this version of Antiphon reads format 5"):
        Journal.open(disk, SMALL)
    assert snapshot(disk) == before


def test_unfinished_files_are_removed_and_strays_put_aside() -> None:
    desk = story()
    disk = crashed(desk)
    disk.write_whole("checkpoint-0000000000000007.tmp", [b"half"])
    disk.write_whole(spare_name(9), [b"too short"])
    disk.write_whole("notes.txt", [b"not ours"])
    again = Desk.open(disk)
    assert again.found() == desk.written()
    assert disk.list_files() == ["notes.txt", ONE, segment_name(2), SUPERBLOCK]
    assert disk.size("lost+found/spare-00000009.1") == 9
    assert "moved to lost+found/spare-00000009.1" in again.recovered.repairs[0]


def test_a_prepared_segment_is_found_again_and_used() -> None:
    desk = Desk.new()
    desk.journal.prepare_spare()
    disk = crashed(desk)
    desk = Desk.open(disk)
    desk.journal.prepare_spare()
    desk.write_order()
    desk.sync()
    assert disk.list_files() == [segment_name(2), SUPERBLOCK]


def test_recovery_makes_durable_what_it_found() -> None:
    """After the death of the process alone, the pages are in memory and perhaps nowhere else."""
    desk = Desk.new()
    desk.write_data()
    desk.write_order()
    desk.flush()
    again = Desk.open(desk.disk)
    assert again.found() == desk.written()
    assert Desk.open(crashed(again)).found() == desk.written()
