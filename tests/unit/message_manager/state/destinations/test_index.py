"""Where stored batches lie: found by number, moved, and forgotten in time."""

from __future__ import annotations

import pytest

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.index import ROW_BYTES, BatchIndex, SegmentUse
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer


class Shelf:
    """An index and the live numbers it is asked about."""

    def __init__(self) -> None:
        self.use = SegmentUse()
        self.index = BatchIndex(self.use)
        self.live = Ranges()

    def store(self, first: int, count: int, segment: int = 1, length: int = 100) -> None:
        self.index.append((first,), (count,), Location(segment, first * 1_000, 500, 7), (68,), (length,))
        self.live.add(first, first + count)

    def drop(self, start: int, stop: int) -> int:
        assert self.live.remove(start, stop) == stop - start
        return self.index.forget([(start, stop)], self.live)


def test_a_number_is_found_in_the_batch_that_holds_it() -> None:
    shelf = Shelf()
    shelf.store(10, 5)
    shelf.store(20, 1)
    assert shelf.index.find(14).first == 10
    assert shelf.index.find(20).location == Location(1, 20_000, 500, 7)


def test_asking_for_a_number_between_batches_is_a_bug_of_ours() -> None:
    shelf = Shelf()
    shelf.store(10, 5)
    shelf.store(20, 5)
    for missing in (3, 16, 25):
        with pytest.raises(AssertionError):
            shelf.index.find(missing)


def test_a_row_takes_few_bytes() -> None:
    assert ROW_BYTES == 40


def test_a_message_weighs_an_equal_part_of_its_batch() -> None:
    shelf = Shelf()
    shelf.store(10, 3, length=100)
    assert shelf.drop(10, 11) == 33
    assert shelf.drop(11, 13) == 66


def test_a_segment_is_in_use_until_the_last_message_of_its_last_batch_goes() -> None:
    shelf = Shelf()
    shelf.store(10, 5, segment=1)
    shelf.store(20, 5, segment=2)
    shelf.drop(10, 14)
    assert shelf.use.by_segment() == {1: 100, 2: 100}
    shelf.drop(14, 15)
    assert shelf.use.by_segment() == {2: 100}


def test_one_acknowledgement_over_several_batches_frees_each_of_them_once() -> None:
    shelf = Shelf()
    for at in range(5):
        shelf.store(10 + 10 * at, 10, segment=at)
    shelf.drop(15, 55)
    assert shelf.use.by_segment() == {0: 100, 4: 100}
    assert len(shelf.index) == 2


def test_a_batch_that_loses_several_parts_at_once_dies_once() -> None:
    shelf = Shelf()
    shelf.store(10, 10, segment=1)
    shelf.store(30, 10, segment=2)
    shelf.drop(14, 15)
    gone = Ranges([(10, 14), (15, 20), (31, 32), (34, 35)])
    shelf.live.remove_all(gone)
    assert shelf.index.forget(gone, shelf.live) == 11 * 10
    assert shelf.use.by_segment() == {2: 100}


def test_rows_at_the_front_are_cut_off_when_they_are_half_of_all() -> None:
    shelf = Shelf()
    for at in range(1_000):
        shelf.store(1 + at, 1)
    for at in range(700):
        shelf.drop(1 + at, 2 + at)
    assert len(shelf.index) == 300
    assert shelf.index.row_count < 1_000
    assert shelf.index.find(701).first == 701


def test_holes_in_the_middle_are_closed_when_more_than_half_is_dead() -> None:
    shelf = Shelf()
    for at in range(1_000):
        shelf.store(1 + at, 1)
    for at in range(1, 999):
        if at % 3:
            shelf.drop(1 + at, 2 + at)
    assert len(shelf.index) == len(shelf.live)
    assert shelf.index.row_count < 2 * len(shelf.index) + 64
    assert all(shelf.index.find(number).first == number for number in shelf.live.numbers())


def test_the_last_acknowledgement_leaves_nothing_behind() -> None:
    shelf = Shelf()
    shelf.store(10, 5)
    shelf.drop(10, 15)
    assert (shelf.index.row_count, shelf.use.by_segment()) == (0, {})


def test_clearing_frees_what_still_lived_and_nothing_twice() -> None:
    shelf = Shelf()
    shelf.store(10, 5, segment=1)
    shelf.store(20, 5, segment=2)
    shelf.store(30, 5, segment=3)
    shelf.drop(20, 25)
    shelf.index.clear(shelf.live)
    assert shelf.use.by_segment() == {}


def test_a_moved_record_is_found_at_its_new_place() -> None:
    shelf = Shelf()
    shelf.store(10, 5, segment=1)
    old = shelf.index.find(10).location
    new = Location(9, 77, 500, 7)
    shelf.index.move(10, old, new, shelf.live)
    assert shelf.index.find(12).location == new
    assert shelf.use.by_segment() == {9: 100}


def test_a_record_whose_messages_went_meanwhile_is_not_moved() -> None:
    shelf = Shelf()
    for at in range(3):
        shelf.store(10 + 10 * at, 5, segment=at)
    old = shelf.index.find(20).location
    shelf.drop(20, 25)
    shelf.index.move(20, old, Location(9, 77, 500, 7), shelf.live)
    assert shelf.use.by_segment() == {0: 100, 2: 100}


def test_what_is_written_reads_back_without_its_dead_rows() -> None:
    shelf = Shelf()
    for at in range(10):
        shelf.store(10 + 10 * at, 5, segment=at)
    shelf.drop(20, 25)
    shelf.drop(52, 53)
    writer = Writer()
    shelf.index.write(writer, shelf.live)
    use = SegmentUse()
    again = BatchIndex.read(Reader(writer.join()), use)
    assert len(again) == again.row_count == 9
    assert use.by_segment() == shelf.use.by_segment()
    assert [again.find(n) for n in shelf.live.numbers()] == [
        shelf.index.find(n) for n in shelf.live.numbers()
    ]
