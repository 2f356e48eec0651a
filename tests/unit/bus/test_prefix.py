"""What has been heard of the order comes out without a gap."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.prefix import Prefix
from antiphon.ids import Mid


def entry(first: int, count: int = 1, pseq: int = 0) -> Entry:
    return Entry(first, count, EntryKind.DATA, Mid(1, 1, pseq or first), 0, NO_DIGEST)


def test_what_comes_in_order_comes_out_at_once() -> None:
    known = Prefix()
    assert list(known.learn((entry(1, 3), entry(4)), 4)) == [entry(1, 3), entry(4)]
    assert (known.upto, known.has_gap) == (4, False)


def test_what_is_ahead_waits_for_the_gap_to_close() -> None:
    known = Prefix()
    assert list(known.learn((entry(3),), 3)) == []
    assert known.has_gap
    assert list(known.learn((entry(1, 2),), 2)) == [entry(1, 2), entry(3)]
    assert not known.has_gap


def test_what_is_heard_twice_comes_out_once() -> None:
    known = Prefix()
    known.learn((entry(1), entry(2)), 2)
    assert list(known.learn((entry(1), entry(2), entry(3)), 3)) == [entry(3)]


def test_being_told_of_a_higher_number_shows_the_gap() -> None:
    known = Prefix(5)
    known.learn((), 7)
    assert known.has_gap


def test_two_entries_at_one_number_stop_the_node() -> None:
    known = Prefix()
    known.learn((entry(3),), 3)
    with pytest.raises(AssertionError, match="two entries are committed at 3"):
        known.learn((entry(3, pseq=9),), 3)


def test_an_entry_across_the_end_of_the_known_stops_the_node() -> None:
    known = Prefix(5)
    with pytest.raises(AssertionError, match="cuts the prefix"):
        known.learn((entry(5, 2),), 6)


def test_a_part_that_is_known_by_other_means_is_skipped_and_what_follows_comes_out() -> None:
    prefix = Prefix()
    prefix.learn([entry(3), entry(5), entry(6)], 9)
    assert prefix.skip(4) == [entry(5), entry(6)]
    assert (prefix.upto, prefix.has_gap) == (6, True)
    assert prefix.skip(20) == []
    assert (prefix.upto, prefix.has_gap) == (20, False)
    with pytest.raises(AssertionError, match="cannot go back"):
        prefix.skip(19)
