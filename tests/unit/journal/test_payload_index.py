"""Which envelope lies where, before and after it has its numbers."""

from __future__ import annotations

import pytest

from antiphon.ids import Mid
from antiphon.journal.payload_index import PayloadIndex
from antiphon.journal.ports import Location


def index_with(count: int) -> PayloadIndex:
    index = PayloadIndex(lambda location: memoryview(b"%d" % location.offset))
    for number in range(1, count + 1):
        index.add(Mid(1, 1, number), Location(number // 3 + 1, 8 * number, 100 + number, 7))
    return index


def test_an_envelope_is_found_by_its_id_until_it_has_numbers() -> None:
    index = index_with(2)
    assert index.has(Mid(1, 1, 1)) and not index.has(Mid(1, 1, 3))
    assert index.locate(Mid(1, 1, 1)) == Location(1, 8, 101, 7)
    assert index.place(Mid(1, 1, 1), 10, 5) == Location(1, 8, 101, 7)
    assert not index.has(Mid(1, 1, 1))
    assert index.locate(Mid(1, 1, 1)) is None
    assert index.location_of(10) == Location(1, 8, 101, 7)
    assert index.location_of(11) is None and index.location_of(9) is None
    assert [mid.pseq for mid, _ in index.unplaced()] == [2]


def test_numbers_are_given_in_order() -> None:
    index = index_with(2)
    index.place(Mid(1, 1, 2), 10, 5)
    with pytest.raises(AssertionError, match="not at the end"):
        index.place(Mid(1, 1, 1), 10, 1)


def test_what_a_checkpoint_covers_is_forgotten() -> None:
    index = index_with(9)
    for number in range(1, 10):
        index.place(Mid(1, 1, number), 10 * number, 10)
    assert index.oldest_segment == 1
    assert (index.oldest_segment_after(59), index.oldest_segment_after(90)) == (3, None)
    index.forget_through(59)
    assert index.placed_count == 4
    assert index.location_of(50) is None
    assert index.location_of(60) == Location(3, 48, 106, 7)
    assert index.oldest_segment == 3
    index.forget_through(1000)
    assert index.oldest_segment is None


def test_a_discarded_envelope_holds_no_segment() -> None:
    index = index_with(3)
    assert index.oldest_segment == 1
    index.discard(Mid(1, 1, 1))
    index.discard(Mid(1, 1, 2))
    index.discard(Mid(9, 9, 9))
    assert index.oldest_segment == 2
    assert index.unplaced_count == 1


def test_reading_goes_to_the_journal() -> None:
    index = index_with(1)
    assert index.read(Location(1, 77, 2, 7)) == b"77"


def test_a_copy_is_found_by_its_index_and_holds_its_segment() -> None:
    index = index_with(0)
    index.add_copy(41, Location(2, 8, 100, 7))
    index.add_copy(42, Location(5, 8, 100, 7))
    assert index.copied(42) == Location(5, 8, 100, 7) and index.copied(43) is None
    assert not index.has(Mid(1, 1, 1))
    assert index.oldest_segment == 2
    index.forget_copies(42)
    assert index.copied(42) is None and index.oldest_segment is None


def test_a_copy_that_is_forgotten_before_it_is_written_holds_no_segment() -> None:
    index = index_with(0)
    index.forget_copies(41)
    index.add_copy(41, Location(2, 8, 100, 7))
    assert index.copied(41) is None and index.oldest_segment is None
    index.add_copy(42, Location(5, 8, 100, 7))
    assert index.oldest_segment == 5, "of the next time"
