"""Ranges, step by step. The laws are in tests/property."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges


def test_neighbours_melt_into_one_range() -> None:
    ranges = Ranges([(1, 3), (5, 7)])
    assert ranges.add(3, 5) == 2
    assert list(ranges) == [(1, 7)]


def test_adding_says_how_many_are_new_and_removing_how_many_were_there() -> None:
    ranges = Ranges([(10, 20)])
    assert ranges.add(15, 25) == 5
    assert ranges.add(15, 25) == 0
    assert ranges.remove(0, 12) == 2
    assert ranges.remove(0, 12) == 0
    assert (list(ranges), ranges.count) == ([(12, 25)], 13)


def test_a_hole_splits_a_range() -> None:
    ranges = Ranges([(10, 20)])
    assert ranges.remove(12, 15) == 3
    assert list(ranges) == [(10, 12), (15, 20)]
    assert 11 in ranges and 12 not in ranges and 14 not in ranges and 15 in ranges
    assert ranges.covers(15, 20) and not ranges.covers(11, 13) and not ranges.covers(10, 20)


def test_an_empty_range_changes_nothing() -> None:
    ranges = Ranges([(1, 3)])
    assert ranges.add(5, 5) == ranges.add(7, 6) == ranges.remove(2, 2) == ranges.remove(3, 1) == 0
    assert list(ranges) == [(1, 3)]


def test_taking_gives_the_lowest_and_leaves_them_there() -> None:
    ranges = Ranges([(1, 3), (5, 9)])
    assert list(ranges.take(4)) == [(1, 3), (5, 7)]
    assert list(ranges.take_from(2, 3)) == [(2, 3), (5, 7)]
    assert list(ranges.take_from(6, 100)) == [(6, 9)]
    assert not ranges.take(0) and not Ranges().take(5)
    assert ranges.count == 6


def test_first_and_last_are_integers_of_the_set() -> None:
    ranges = Ranges([(3, 5), (8, 10)])
    assert (ranges.first, ranges.last) == (3, 9)


def test_empty_ranges_have_no_first() -> None:
    with pytest.raises(AssertionError, match="no first"):
        _ = Ranges().first


def test_a_copy_goes_its_own_way() -> None:
    ranges = Ranges([(1, 3)])
    other = ranges.copy()
    other.add(7, 8)
    assert list(ranges) == [(1, 3)]


def test_ranges_can_be_taken_out_of_themselves() -> None:
    ranges = Ranges((start, start + 1) for start in range(0, 20, 2))
    assert ranges.add_all(ranges) == 0
    assert ranges.remove_all(ranges) == 10
    assert not ranges


def test_a_hundred_thousand_holes_are_made_in_one_walk() -> None:
    """One by one, each would shift the lists behind it: seconds instead of milliseconds (RNG3)."""
    ranges = Ranges([(0, 400_000)])
    holes = Ranges((start, start + 1) for start in range(1, 400_000, 4))
    assert ranges.remove_all(holes) == 100_000
    assert len(ranges) == 100_001
    assert ranges.intersection(holes).count == 0
    assert ranges.add_all(holes) == 100_000
    assert list(ranges) == [(0, 400_000)]


@pytest.mark.parametrize("pairs", [[(5, 5)], [(7, 5)], [(1, 3), (3, 5)], [(1, 3), (2, 5)], [(5, 7), (1, 3)]])
def test_bytes_that_are_not_disjoint_ascending_ranges_are_refused(pairs: list[tuple[int, int]]) -> None:
    data = b"".join(number.to_bytes(8, "little") for pair in pairs for number in pair)
    with pytest.raises(ProtocolError, match="overlap, touch, are empty or out of order"):
        Ranges.decode(data)


def test_edges_are_starts_and_stops_in_turn() -> None:
    assert Ranges.of_edges([1, 3, 5, 6]) == Ranges([(1, 3), (5, 6)])
    assert Ranges.of_edges([1, 3, 5, 6]).count == 3
    assert Ranges.of_edges([]) == Ranges()
