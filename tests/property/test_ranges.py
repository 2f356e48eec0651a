"""Ranges against Python's set of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges

numbers = st.integers(0, 300)
# Dense enough that ranges touch, many enough that the walk over both sets is taken too.
# And many in a small part of all numbers.
sets = st.one_of(
    st.sets(numbers, max_size=20),
    st.sets(numbers, min_size=100, max_size=200),
    st.sets(st.integers(100, 230), min_size=60, max_size=90),
)


def ranges_of(members: set[int]) -> Ranges:
    return Ranges((number, number + 1) for number in sorted(members))


class RangesAgainstASet(RuleBasedStateMachine):
    """Whatever is added and removed, the ranges hold what the set holds, in normal form (RNG1, RNG2)."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges()
        self.model: set[int] = set()

    @rule(start=numbers, stop=numbers)
    def add(self, start: int, stop: int) -> None:
        added = set(range(start, stop))
        assert self.ranges.add(start, stop) == len(added - self.model)
        self.model |= added

    @rule(start=numbers, stop=numbers)
    def remove(self, start: int, stop: int) -> None:
        removed = set(range(start, stop))
        assert self.ranges.remove(start, stop) == len(removed & self.model)
        self.model -= removed

    @rule(other=sets)
    def add_all(self, other: set[int]) -> None:
        assert self.ranges.add_all(ranges_of(other)) == len(other - self.model)
        self.model |= other

    @rule(other=sets)
    def remove_all(self, other: set[int]) -> None:
        assert self.ranges.remove_all(ranges_of(other)) == len(other & self.model)
        self.model -= other

    @invariant()
    def holds_what_the_set_holds(self) -> None:
        assert list(self.ranges.numbers()) == sorted(self.model)
        assert self.ranges.count == len(self.model)
        assert bool(self.ranges) == bool(self.model)

    @invariant()
    def is_in_normal_form(self) -> None:
        flat = [edge for pair in self.ranges for edge in pair]
        assert flat == sorted(set(flat))


TestRangesAgainstASet = RangesAgainstASet.TestCase


@given(sets, sets)
def test_two_sets_combine_as_sets_do(left: set[int], right: set[int]) -> None:
    a, b = ranges_of(left), ranges_of(right)
    assert a.union(b) == ranges_of(left | right)
    assert a.difference(b) == ranges_of(left - right)
    assert a.intersection(b) == ranges_of(left & right)
    assert (a, b) == (ranges_of(left), ranges_of(right))


@given(sets, numbers, numbers)
def test_a_part_is_what_the_set_has_there(members: set[int], start: int, stop: int) -> None:
    ranges = ranges_of(members)
    ordered = sorted(members)
    assert ranges.clip(start, stop) == ranges_of({n for n in members if start <= n < stop})
    assert ranges.take(stop) == ranges_of(set(ordered[:stop]))
    assert ranges.take_from(start, stop) == ranges_of({*[n for n in ordered if n >= start][:stop]})
    assert ranges.covers(start, stop) == set(range(start, stop)).issubset(members)
    assert (start in ranges) == (start in members)


@given(sets)
def test_ascending_numbers_make_their_set(members: set[int]) -> None:
    assert Ranges.of_numbers(sorted(members)) == ranges_of(members)


@given(sets)
def test_ranges_come_back_from_their_bytes(members: set[int]) -> None:
    ranges = ranges_of(members)
    data = ranges.encode()
    assert Ranges.decode(data) == ranges
    assert Ranges.decode(memoryview(data)).count == len(members)


@given(st.binary(max_size=100))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    try:
        ranges = Ranges.decode(data)
    except ProtocolError:
        return
    assert ranges.encode() == data


@given(sets)
def test_truncated_ranges_are_refused_or_fewer(members: set[int]) -> None:
    data = ranges_of(members).encode()
    for end in range(0, len(data), 7):
        if end % 16:
            with pytest.raises(ProtocolError):
                Ranges.decode(data[:end])


@given(sets, numbers)
def test_the_nearest_numbers_are_those_of_the_set(members: set[int], number: int) -> None:
    ranges = ranges_of(members)
    assert ranges.next_from(number) == min((n for n in members if n >= number), default=None)
    assert ranges.last_before(number) == max((n for n in members if n < number), default=None)
    stop = ranges.run_stop(number)
    assert (stop is None) == (number not in members)
    if stop is not None:
        assert members.issuperset(range(number, stop)) and stop not in members


@given(sets, numbers, st.integers(0, 8))
def test_the_first_ranges_from_a_number_on_are_a_part_in_one_piece(
    members: set[int], start: int, most: int
) -> None:
    ranges = ranges_of(members)
    taken = ranges.take_ranges(start, most)
    assert len(taken) <= most
    assert taken == ranges.clip(start, taken.last + 1 if taken else start)
    if len(taken) < most:
        assert taken == ranges.clip(start, 1_000)
