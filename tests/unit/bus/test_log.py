"""The order in memory: contiguous, cut and forgotten only at the ends of entries; heard without a gap."""

from __future__ import annotations

import pytest

from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.ids import Mid


def entry(first: int, count: int = 1, pseq: int = 0) -> Entry:
    return Entry(first, count, EntryKind.DATA, Mid(1, 1, pseq or first), 0, NO_DIGEST)


def a_log() -> CommitLog:
    """Base 4; entries 5, 6-8, 9, 10-19."""
    return CommitLog(4, [entry(5), entry(6, 3), entry(9), entry(10, 10)])


def test_an_entry_that_does_not_follow_is_refused() -> None:
    log = a_log()
    assert log.last == 19
    with pytest.raises(AssertionError, match="put behind 19"):
        log.append(entry(21))
    with pytest.raises(AssertionError, match="put behind 19"):
        log.append(entry(19))


@pytest.mark.parametrize(("number", "first"), [(5, 5), (6, 6), (8, 6), (9, 9), (10, 10), (19, 10)])
def test_the_entry_that_covers_a_number_is_found(number: int, first: int) -> None:
    found = a_log().covering(number)
    assert found is not None and found.first == first


def test_nothing_covers_a_number_outside() -> None:
    assert a_log().covering(4) is None
    assert a_log().covering(20) is None


def test_between_takes_whole_entries() -> None:
    log = a_log()
    assert [e.first for e in log.between(5, 9)] == [6, 9]
    assert [e.first for e in log.between(4, 19, most=2)] == [5, 6]
    assert log.between(9, 9) == ()
    with pytest.raises(AssertionError, match="inside an entry"):
        log.between(7, 9)
    with pytest.raises(AssertionError, match="no end of an entry"):
        log.between(5, 12)


def test_from_number_begins_with_the_entry_that_covers_it() -> None:
    log = a_log()
    assert [e.first for e in log.from_number(7, 9, 100)] == [6, 9]
    assert log.from_number(3, 9, 100) == ()
    assert log.from_number(20, 19, 100) == ()


def test_it_is_cut_at_the_end_of_an_entry_only() -> None:
    log = a_log()
    with pytest.raises(AssertionError, match="cannot be cut"):
        log.truncate(12)
    log.truncate(8)
    assert (log.last, len(log)) == (8, 2)
    log.truncate(4)
    assert (log.last, len(log), log.base) == (4, 0, 4)


def test_the_base_moves_to_the_end_of_an_entry_only() -> None:
    log = a_log()
    with pytest.raises(AssertionError, match="no end of an entry"):
        log.forget(7)
    log.forget(8)
    assert (log.base, log.last, len(log)) == (8, 19, 2)
    log.forget(19)
    assert (log.base, log.last, len(log)) == (19, 19, 0)
    log.append(entry(20))
    assert log.covering(20) == entry(20)


def test_how_far_it_agrees_with_other_entries() -> None:
    log = a_log()
    same = log.between(5, 19)
    assert log.common_through(5, same) == 19
    assert log.common_through(5, same[:1]) == 8
    assert log.common_through(5, ()) == 5
    assert log.common_through(5, (same[0], entry(9, 1, pseq=77))) == 8
    assert log.common_through(5, (entry(6, 2),)) == 5
    assert log.common_through(19, (entry(20),)) == 19


# -- prefix ------------------------------------------------------------------------------------------


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
