"""Writing: what a flush does, what a ticket covers, where segments come from and go to."""

from __future__ import annotations

import pytest

from antiphon.errors import Damaged, NoSpace, StorageFailed
from antiphon.journal.format import (
    BLOCK_CAPACITY,
    PAGE,
    SUPERBLOCK,
    Settings,
    payload_digest,
    segment_name,
    segment_numbers,
)
from antiphon.journal.journal import REST_ROUNDS, Journal, SyncTicket
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location, Position
from tests.journals import DISK_ID, SMALL, Desk, lose_everything, mid_of, payload_of


def reopen(desk: Desk) -> Desk:
    """After the unluckiest power cut."""
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.crash(lose_everything)
    return Desk.open(desk.disk)


# --- flush and sync ---


def test_what_was_synced_is_there_after_a_power_cut() -> None:
    desk = Desk.new()
    desk.write_data()
    desk.write_order()
    desk.write_data(5000)
    desk.sync()
    assert reopen(desk).found() == desk.written()


def test_several_in_one_call_are_what_they_would_be_one_by_one() -> None:
    sizes = [0, 1, 300, 4096, 5000, 7, 20_000, 300]
    together, apart = Desk.new(), Desk.new()
    assert together.write_envelopes(*sizes) == len(sizes)
    for size in sizes:
        apart.write_data(size)
    places = [[desk.journal.payloads.locate(mid) for mid, _ in desk.data] for desk in (together, apart)]
    assert places[0] == places[1] and None not in places[0]
    assert [bytes(together.journal.read(place)) for place in places[0] if place] == [
        payload for _, payload in together.data
    ], "also before they are written"
    tickets = [desk.flush() for desk in (together, apart)]
    assert tickets[0] == tickets[1]
    for desk, ticket in zip((together, apart), tickets, strict=True):
        desk.sync(ticket)
    assert together.disk.read(segment_name(1), 0, 1 << 20) == apart.disk.read(segment_name(1), 0, 1 << 20)
    assert reopen(together).found() == together.written()


def test_several_in_one_call_that_need_more_than_a_segment_are_durable_part_by_part() -> None:
    desk = Desk.new()
    sizes = [30_000] * 7
    assert desk.write_envelopes(*sizes) == len(sizes)
    first = desk.flush()
    assert 0 < first.upto_index < desk.index, "a segment holds two of them"
    desk.sync(first)
    while desk.journal.has_gathered:
        desk.sync()
    assert desk.journal.end_position.segment == 4
    assert reopen(desk).found() == desk.written()


def test_of_several_in_one_call_those_before_the_first_without_room_are_taken() -> None:
    disk = MemoryDisk()
    desk = Desk.new(disk)
    desk.write_order()
    desk.sync()
    disk.capacity = disk.bytes_used
    assert desk.write_envelopes(30_000, 30_000, 30_000, 10) == 2
    desk.sync()
    disk.capacity = None
    assert desk.write_envelopes(30_000, 10) == 2
    while desk.journal.has_gathered:
        desk.sync()
    assert reopen(desk).found() == desk.written()


def test_what_was_only_flushed_may_be_gone() -> None:
    desk = Desk.new()
    desk.write_data()
    desk.write_order()
    desk.flush()
    assert reopen(desk).found() == ([], [])


def test_a_flush_writes_the_data_once_and_each_copy_of_the_order_once() -> None:
    desk = Desk.new()
    desk.write_order()
    desk.sync()
    assert isinstance(desk.disk, MemoryDisk)
    before = desk.disk.writes
    for _ in range(5):
        desk.write_data(300)
        desk.write_order(300)
    ticket = desk.flush()
    assert desk.disk.writes == before + 3
    assert ticket.files == (segment_name(1),)
    assert ticket.upto_index == desk.index


def test_nothing_gathered_is_nothing_to_flush() -> None:
    desk = Desk.new()
    assert desk.journal.flush() is None
    desk.write_order()
    desk.sync()
    assert not desk.journal.has_gathered
    assert desk.journal.flush() is None


def test_a_record_can_be_read_before_and_after_it_is_written() -> None:
    desk = Desk.new()
    location = desk.write_data(12_345)
    assert desk.journal.read(location) == payload_of(1, 12_345)
    desk.flush()
    assert desk.journal.read(location) == payload_of(1, 12_345)


def test_no_page_that_was_synced_is_written_again() -> None:
    desk = Desk.new()
    assert isinstance(desk.disk, MemoryDisk)
    first = desk.write_data(10)
    desk.sync()
    second = desk.write_data(10)
    assert first.offset // PAGE != second.offset // PAGE


def test_two_tickets_make_one() -> None:
    one = SyncTicket(("a", "b"), 3, Position(1, 2, 8192), 7)
    two = SyncTicket(("b", "c"), 5, Position(2, 1, 4096), 0)
    assert one.merge(two) == SyncTicket(("a", "b", "c"), 5, Position(2, 1, 4096), 7)


def test_an_order_record_may_span_blocks() -> None:
    desk = Desk.new()
    desk.write_order(3 * BLOCK_CAPACITY)
    desk.write_order(0)
    desk.sync()
    assert desk.journal.end_position.blocks == 4
    assert reopen(desk).found() == desk.written()


def test_records_must_come_in_the_order_of_their_indices() -> None:
    desk = Desk.new()
    desk.journal.append_order(5, b"five")
    with pytest.raises(AssertionError, match="record 5 was appended after record 5"):
        desk.journal.append_order(5, b"five again")


# --- superblock ---


def test_the_superblock_keeps_promises() -> None:
    desk = Desk.new()
    desk.journal.append_superblock(1, 77, 66)
    desk.sync()
    found = reopen(desk).recovered
    assert (found.promised, found.epoch_claimed) == (77, 66)
    assert (found.node_id, found.cluster, found.disk_id) == (1, "test", DISK_ID)


def test_a_superblock_waits_for_the_one_before_and_is_not_reported_early() -> None:
    desk = Desk.new()
    desk.write_order()
    desk.sync()
    desk.journal.append_superblock(2, 1, 0)
    first = desk.flush()
    assert (first.files, first.upto_index) == ((SUPERBLOCK,), 2)

    desk.journal.append_superblock(3, 2, 0)
    assert desk.journal.flush() is None

    desk.journal.append_order(4, b"later")
    second = desk.flush()
    assert (second.files, second.upto_index) == ((segment_name(1),), 2)

    desk.sync(first)
    third = desk.flush()
    assert (third.files, third.upto_index) == ((SUPERBLOCK,), 4)


def test_every_opening_is_another_run() -> None:
    desk = Desk.new()
    assert desk.recovered.run == 1
    assert reopen(desk).recovered.run == 2


# --- segments ---


def test_a_full_data_region_rolls_over_and_no_record_spans_segments() -> None:
    desk = Desk.new()
    sizes = [30_000, 30_000, 30_000, 70_000, 10]
    locations = []
    for size in sizes:
        locations.append(desk.write_data(size))
        desk.sync()
    assert [location.segment for location in locations] == [1, 1, 2, 3, 3]
    assert reopen(desk).found() == desk.written()


def test_a_full_order_region_rolls_over() -> None:
    desk = Desk.new()
    for _ in range(20):
        desk.write_order()
        desk.sync()
    assert desk.journal.end_position.segment == 3
    assert reopen(desk).found() == desk.written()


def test_nothing_goes_into_a_new_segment_before_the_old_one_is_durable() -> None:
    desk = Desk.new()
    desk.write_data(50_000)
    desk.write_data(50_000)
    first = desk.flush()
    assert (first.upto_index, first.position.segment) == (1, 1)
    assert desk.journal.has_gathered
    assert desk.journal.flush() is None
    assert desk.journal.read(desk.journal.payloads.locate(mid_of(2))) == payload_of(2, 50_000)

    desk.sync(first)
    second = desk.flush()
    assert (second.upto_index, second.position.segment) == (2, 2)
    desk.sync(second)
    assert reopen(desk).found() == desk.written()


def test_a_prepared_segment_is_used_at_the_roll_over() -> None:
    desk = Desk.new()
    assert desk.journal.needs_spare()
    desk.journal.prepare_spare()
    assert not desk.journal.needs_spare()
    assert desk.disk.list_files() == ["segment-00000001", "superblock"]
    desk.write_order()
    assert desk.journal.needs_spare()
    assert desk.disk.list_files() == ["segment-00000001", "superblock"]


def test_a_chore_that_is_overtaken_leaves_a_file_to_use_later() -> None:
    desk = Desk.new()
    slow = desk.journal.chore()
    assert slow is not None and slow.number == 1
    assert desk.journal.chore() is None
    desk.write_order()
    desk.sync()
    slow.run()
    desk.journal.chore_done(slow)
    assert desk.journal.end_position.segment == 2
    # Segment 1 was made for nothing and becomes the source of segment 3.
    desk.journal.prepare_spare()
    assert desk.disk.list_files() == ["segment-00000002", "segment-00000003", "superblock"]
    assert reopen(desk).found() == desk.written()


def test_a_full_disk_refuses_the_record_and_nothing_else() -> None:
    disk = MemoryDisk()
    desk = Desk.new(disk)
    location = desk.write_data(50_000)
    desk.sync()
    disk.capacity = disk.bytes_used
    with pytest.raises(NoSpace):
        desk.write_data(50_000)
    with pytest.raises(NoSpace):
        desk.journal.prepare_spare()
    # What still fits is taken, what is there can be read.
    desk.write_order()
    desk.sync()
    assert desk.journal.read(location) == payload_of(1, 50_000)

    disk.capacity = None
    desk.write_data(50_000)
    desk.sync()
    assert reopen(desk).found() == desk.written()


def test_a_roll_over_that_finds_no_space_keeps_what_was_gathered() -> None:
    disk = MemoryDisk()
    desk = Desk.new(disk)
    desk.write_order()
    desk.sync()
    disk.capacity = disk.bytes_used
    desk.write_data(50_000)
    desk.write_order()
    with pytest.raises(NoSpace):
        desk.write_data(50_000)
    desk.sync()
    assert reopen(desk).found() == desk.written()


def test_after_a_failed_write_nothing_is_accepted() -> None:
    class FailingDisk(MemoryDisk):
        def write(self, *arguments: object) -> None:
            raise StorageFailed("the disk is gone")

    desk = Desk.new()
    desk.write_order()
    desk.journal._disk = FailingDisk()
    with pytest.raises(StorageFailed, match="the disk is gone"):
        desk.journal.flush()
    with pytest.raises(StorageFailed):
        desk.write_order()
    with pytest.raises(StorageFailed):
        desk.journal.flush()


def test_after_a_failed_sync_nothing_is_accepted() -> None:
    desk = Desk.new()
    desk.journal.failed("fdatasync said no")
    with pytest.raises(StorageFailed, match="fdatasync said no"):
        desk.write_data()


# --- closing ---


def test_a_clean_end_writes_everything_and_says_so() -> None:
    desk = Desk.new()
    for size in (60_000, 60_000, 60_000):
        desk.write_data(size)
        desk.write_order()
    desk.journal.append_superblock(desk.index + 1, 5, 5)
    desk.journal.close()
    again = reopen(desk)
    assert again.found() == desk.written()
    assert again.recovered.was_clean
    assert not reopen(again).recovered.was_clean
    with pytest.raises(StorageFailed, match="closed"):
        desk.write_data()


# --- space ---


def fill(desk: Desk, segments: int) -> list[Location]:
    """Entries 1, 2, 3, …: a payload and its order record each; two fill a segment."""
    locations = []
    for _ in range(2 * segments):
        locations.append(desk.write_data(30_000))
        desk.write_order(100, len(desk.data))
        desk.sync()
    for number, (mid, _) in enumerate(desk.data, start=1):
        desk.journal.payloads.place(mid, number, 1)
    return locations


def checkpoint(desk: Desk, base: int, referenced: set[int] | None = None) -> int:
    desk.journal.payloads.forget_through(base)
    freed = desk.journal.release(base, referenced or set())
    if desk.journal.has_gathered:
        desk.sync()
    return freed


def test_segments_below_the_base_are_used_again_under_new_numbers() -> None:
    desk = Desk.new()
    fill(desk, 4)
    assert desk.journal.segments_in_use == 4
    assert checkpoint(desk, 5) == 2
    assert (desk.journal.segments_in_use, desk.journal.tail_start) == (2, 3)
    assert desk.journal.bytes_in_use == 2 * SMALL.segment_bytes
    assert desk.journal.bytes_spare == 2 * SMALL.segment_bytes
    desk.journal.prepare_spare()
    assert desk.disk.list_files() == [*map(segment_name, (2, 3, 4, 5)), SUPERBLOCK]
    again = reopen(desk)
    assert again.found() == (desk.order[4:], desk.data[4:])


def test_spares_go_when_no_segment_was_begun_for_a_while() -> None:
    desk = Desk.new()
    fill(desk, 4)
    checkpoint(desk, 7)
    desk.journal.prepare_spare()
    assert len(segment_numbers(desk.disk.list_files())) == 4, "those that were freed are used again"
    for _ in range(REST_ROUNDS - 1):
        desk.journal.tidy()
        desk.journal.prepare_spare()
        assert len(segment_numbers(desk.disk.list_files())) == 4, "it may go on at once"
    desk.journal.tidy()
    desk.journal.prepare_spare()
    assert desk.disk.list_files() == [*map(segment_name, (4, 5)), SUPERBLOCK], "the last, and the next"


def test_a_segment_that_is_begun_keeps_the_spares() -> None:
    desk = Desk.new()
    fill(desk, 4)
    checkpoint(desk, 7)
    for _ in range(REST_ROUNDS - 1):
        desk.journal.tidy()
    desk.journal.prepare_spare()
    desk.write_data(60_000)
    desk.write_data(60_000)
    desk.sync()
    desk.journal.tidy()
    desk.journal.prepare_spare()
    assert len(segment_numbers(desk.disk.list_files())) == 4


def test_a_journal_holds_space_if_its_log_takes_more_segments_than_one_at_rest() -> None:
    desk = Desk.new()
    fill(desk, 4)
    assert desk.journal.holds_space(0, ()), "four segments, and one is to be spare"
    assert desk.journal.holds_space(3, ()), "the second segment has 3 and 4"
    assert not desk.journal.holds_space(4, ()), "the log has two when the base is there"
    assert desk.journal.holds_space(2, ()), "the log has three"
    assert not desk.journal.holds_space(100, ())
    checkpoint(desk, 4)
    assert not desk.journal.holds_space(4, ())


def test_a_journal_holds_space_for_envelopes_that_lie_before_their_numbers() -> None:
    desk = Desk.new()
    for _ in range(5):
        desk.write_data(30_000)
        desk.sync()
    desk.write_order(100, 5)
    desk.sync()
    assert not desk.journal.holds_space(0, ()), "nothing has a number"
    for number, (mid, _) in enumerate(desk.data, start=1):
        desk.journal.payloads.place(mid, number, 1)
    assert desk.journal.holds_space(0, ())
    assert not desk.journal.holds_space(2, ()), "3 and 4 are in the second segment"


def test_a_journal_holds_space_for_a_record_of_the_base_that_lies_before_the_log() -> None:
    desk = Desk.new()
    desk.write_order(100, 4, pinned=True)
    fill(desk, 3)
    assert desk.journal.holds_space(4, ()), "the first segment stays for that record, and with it all behind"
    desk.write_order(100, 4, pinned=True)
    desk.sync()
    assert not desk.journal.holds_space(4, ())


def test_a_journal_holds_space_if_only_checkpoints_refer_to_segments() -> None:
    desk = Desk.new()
    fill(desk, 4)
    checkpoint(desk, 7, {1, 2})
    assert not desk.journal.holds_space(7, (1, 2)), "what is live is not held"
    assert not desk.journal.holds_space(7, (1,)), "as many as at rest"
    assert desk.journal.holds_space(7, ()), "the next checkpoints do not refer to them"


def test_what_an_old_life_left_in_a_file_is_never_taken_for_live() -> None:
    desk = Desk.new()
    fill(desk, 3)
    checkpoint(desk, 4)
    desk.journal.prepare_spare()
    desk.write_data(50_000)
    desk.write_data(50_000)
    desk.journal.close()
    assert reopen(desk).found() == (desk.order[4:], desk.data[4:])


def test_files_are_touched_only_when_the_superblock_does_not_need_them() -> None:
    desk = Desk.new()
    fill(desk, 3)
    desk.journal.payloads.forget_through(4)
    assert desk.journal.release(4, set()) == 2
    chore = desk.journal.chore()
    assert chore is not None and (chore.source, chore.remove) == (None, ())
    again = reopen(desk)
    assert again.found() == desk.written()


def test_a_segment_is_kept_for_what_refers_to_it() -> None:
    desk = Desk.new()
    locations = fill(desk, 4)
    assert checkpoint(desk, 6, {1}) == 2
    assert desk.journal.read(locations[0]) == payload_of(1, 30_000)
    with pytest.raises(Damaged, match="no such segment"):
        desk.journal.read(locations[3])
    assert checkpoint(desk, 6) == 1


def test_a_segment_is_kept_for_an_envelope_without_a_number() -> None:
    desk = Desk.new()
    fill(desk, 1)
    stuck = desk.write_data(10)
    desk.sync()
    for _ in range(6):
        desk.write_data(60_000)
        desk.write_order(100, 3)
        desk.sync()
        desk.journal.payloads.place(desk.data[-1][0], len(desk.data), 1)
    assert checkpoint(desk, 100) == 0
    assert stuck.segment == 1
    assert not desk.journal.can_release(100)
    desk.journal.payloads.discard(mid_of(3))
    assert desk.journal.can_release(100)
    assert not desk.journal.can_release(0), "the base has not passed it"
    assert checkpoint(desk, 100) > 0


def test_a_pinned_record_is_kept_until_the_next_one_is_durable() -> None:
    desk = Desk.new()
    kept = desk.write_order(pinned=True)
    desk.sync()
    fill(desk, 3)
    assert checkpoint(desk, 4) == 0
    assert reopen(desk).recovered.order[0] == kept

    desk = Desk.open(desk.disk)
    for mid, _ in list(desk.journal.payloads.unplaced()):
        desk.journal.payloads.discard(mid)
    next_kept = desk.write_order(pinned=True)
    ticket = desk.flush()
    assert desk.journal.release(4, set()) == 0
    desk.sync(ticket)
    assert checkpoint(desk, 4) == 2
    assert next_kept in reopen(desk).recovered.order


def test_a_new_pin_counts_only_when_it_is_durable() -> None:
    desk = Desk.new()
    desk.write_order(pinned=True)
    desk.sync()
    for _ in range(20):
        desk.write_order()
        desk.sync()
    desk.write_order()
    earlier = desk.flush()
    desk.write_order(pinned=True)
    later = desk.flush()
    desk.sync(earlier)
    assert desk.journal.release(0, ()) == 0
    desk.sync(later)
    assert desk.journal.release(0, ()) == 2


def test_the_segment_in_use_is_never_released() -> None:
    desk = Desk.new()
    fill(desk, 3)
    assert checkpoint(desk, 100) == 2
    assert desk.journal.segments_in_use == 1
    desk.write_data(10)
    desk.sync()
    assert reopen(desk).found()[1] == desk.data[4:]


def test_the_highest_entry_outlives_a_cut_of_the_log_and_is_0_in_a_new_journal() -> None:
    desk = Desk.new()
    assert desk.journal.highest_entry == 0
    desk.write_order(highest=7)
    desk.write_order(highest=5)
    desk.sync()
    assert reopen(desk).journal.highest_entry == 7


def test_the_pin_outlives_a_restart() -> None:
    desk = Desk.new()
    desk.write_order(pinned=True)
    desk.sync()
    fill(desk, 3)
    again = reopen(desk)
    for stored in again.recovered.data:
        again.journal.payloads.discard(stored.mid)
    assert checkpoint(again, 100) == 0


def test_no_more_than_four_spares_are_kept() -> None:
    desk = Desk.new()
    fill(desk, 9)
    assert checkpoint(desk, 16) == 8
    desk.journal.prepare_spare()
    # Four spares, of which one became the next segment, and the current one.
    assert len(desk.disk.list_files()) == 1 + 4 + 1


def test_a_record_moved_out_of_a_sparse_segment_lets_the_segment_go() -> None:
    desk = Desk.new()
    locations = fill(desk, 3)
    checkpoint(desk, 4, {1, 2})
    live = {1: 30_000, 2: 60_000}
    assert desk.journal.sparse_segments(live, 0.5) == [1]
    desk.index += 1
    moved = desk.journal.relocate(desk.index, locations[0])
    assert desk.journal.read(moved) == payload_of(1, 30_000)
    desk.sync()
    assert checkpoint(desk, 4, {2, moved.segment}) == 1
    assert desk.journal.read(moved) == payload_of(1, 30_000)
    again = reopen(desk)
    # It is no envelope that waits for a number, but it can be read where the state says it is.
    assert mid_of(1) not in [stored.mid for stored in again.recovered.data]
    assert again.journal.read(moved) == payload_of(1, 30_000)


def test_a_location_is_verified_on_request() -> None:
    desk = Desk.new()
    locations = [desk.write_data(10_000) for _ in range(4)]
    desk.sync()
    for location in locations:
        desk.journal.verify(location)
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.flip(segment_name(1), locations[1].offset + 5000)
    with pytest.raises(Damaged) as damage:
        desk.journal.verify(locations[1])
    assert (damage.value.file, damage.value.offset) == (segment_name(1), locations[1].offset)


def test_a_damaged_record_is_never_served() -> None:
    desk = Desk.new()
    location = desk.write_data(10_000)
    desk.sync()
    assert isinstance(desk.disk, MemoryDisk)
    desk.disk.flip(segment_name(1), location.offset + 20)
    with pytest.raises(Damaged, match="segment-00000001 is damaged at byte"):
        desk.journal.read(location)


def test_the_largest_record_fits_and_a_larger_one_does_not() -> None:
    desk = Desk.new()
    desk.write_data(desk.journal.geometry.record_bytes_max)
    desk.write_order(desk.journal.geometry.order_bytes_max)
    desk.sync()
    assert reopen(desk).found() == desk.written()
    with pytest.raises(AssertionError):
        desk.write_data(desk.journal.geometry.record_bytes_max + 1)
    with pytest.raises(AssertionError):
        desk.write_order(desk.journal.geometry.order_bytes_max + 1)


def test_an_existing_journal_keeps_the_sizes_it_was_made_with() -> None:
    desk = Desk.new()
    desk.write_order()
    desk.journal.close()
    journal, _ = Journal.open(desk.disk, Settings())
    assert journal.geometry == SMALL.geometry()


def test_the_journal_and_the_bus_agree_on_the_digest() -> None:
    messages = pytest.importorskip("antiphon.bus.messages")
    payload = payload_of(1, 1000)
    assert payload_digest(mid_of(1), 5, 6, payload) == messages.digest_of(mid_of(1), 5, 6, payload)


# -- copies of what lies in another journal ------------------------------------------------------------


def write_copy(desk: Desk, number: int, size: int = 1_000) -> Location:
    mid, payload = mid_of(number), payload_of(number, size)
    desk.index += 1
    digest = payload_digest(mid, number, 1, payload)
    return desk.journal.append_copy(desk.index, mid, number, 1, digest, payload)


def test_a_record_is_read_with_its_header() -> None:
    desk = Desk.new()
    location = desk.write_data()
    desk.sync()
    record = desk.journal.record(location)
    assert (record.mid, record.ts, record.count) == (mid_of(1), 1, 1)
    assert record.payload == payload_of(1, 1_000)
    assert record.digest == payload_digest(mid_of(1), 1, 1, record.payload)
    with pytest.raises(Damaged):
        desk.journal.record(location._replace(offset=location.offset + 8))


def test_another_envelope_at_the_same_place_is_damage_and_is_not_read() -> None:
    desk = Desk.new()
    desk.write_data()
    desk.sync()
    lost = desk.write_data(3_000)
    desk.flush()
    again = reopen(desk)
    with pytest.raises(Damaged):
        again.journal.read(lost)
    again.data.append(desk.data[0])
    again.data.append(desk.data[0])
    other = again.write_data(3_000)
    assert other[:3] == lost[:3] and other != lost, "the next life writes over what a crash cut off"
    for _ in range(2):
        for read in (again.journal.read, again.journal.record, again.journal.verify):
            with pytest.raises(Damaged, match="segment-00000001"):
                read(lost)
        again.sync()
        assert again.journal.read(other) == payload_of(3, 3_000)
        again.write_data()
    with pytest.raises(Damaged, match="another envelope lies there"):
        again.journal.relocate(again.index + 1, lost)


def test_a_copy_is_found_by_its_index_alone_and_after_a_crash_not_at_all() -> None:
    desk = Desk.new()
    location = write_copy(desk, 7)
    assert desk.journal.payloads.copied(desk.index) == location
    assert not desk.journal.payloads.has(mid_of(7))
    desk.sync()
    assert desk.journal.record(location).mid == mid_of(7)
    again = reopen(desk)
    assert again.recovered.data == [], "only a checkpoint that refers to it gives it a meaning"
    assert again.journal.record(location).payload == payload_of(7, 1_000), "it lies there all the same"


def test_copies_are_kept_until_a_checkpoint_refers_to_them() -> None:
    desk = Desk.new()
    location = write_copy(desk, 1)
    desk.sync()
    for _ in range(12):
        desk.write_data(8_000)
        desk.write_order(highest=5)
        desk.sync()
    for mid, _ in desk.journal.payloads.unplaced():
        desk.journal.payloads.discard(mid)
    desk.journal.release(5, ())
    assert desk.journal.record(location).mid == mid_of(1)
    desk.journal.payloads.forget_copies(1)
    desk.journal.release(5, (location.segment,))
    assert desk.journal.record(location).mid == mid_of(1), "a checkpoint lists its segment"
    desk.journal.release(5, ())
    with pytest.raises(Damaged):
        desk.journal.record(location)
