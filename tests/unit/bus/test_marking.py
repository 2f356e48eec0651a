"""When a sequencer calls for a checkpoint."""

from __future__ import annotations

from antiphon.bus.group import KIB, MS, GroupConfig
from antiphon.bus.marking import (
    MARK_LOST_MS,
    MARKS_APART_MS,
    MARKS_APART_TIMES,
    MARKS_IN_VAIN_MAX,
    Marking,
)


def config(entries: int = 1_000, size: int = 1 << 40) -> GroupConfig:
    return GroupConfig.of("main", (1,), checkpoint_entries=entries, checkpoint_bytes=size)


class Sequence:
    """The marks of one sequencer: each is committed at once, and its checkpoint stable when told."""

    def __init__(self) -> None:
        self.marking = Marking()
        self.now_ns = 1_000 * MS
        self.last = 10
        self.work_last = 10
        self.stable = 0

    def held(self, after_ms: int = 0, server: int = 1, segments: int = 9) -> bool:
        """The journal of a server holds space: is there a mark?"""
        self.now_ns += after_ms * MS
        if not self.marking.helps_held_space(self.now_ns, self.stable, self.work_last, server, segments):
            return False
        self.last += 1
        self.marking.marked(self.last)
        self.marking.mark_committed(self.now_ns)
        return True

    def settle(self, after_ms: int = 0, took_ms: int = 0) -> None:
        """Servers that hold no space make the checkpoint stable."""
        self.now_ns += after_ms * MS
        self.marking.on_report(9, self.marking.newest, took_ms)
        self.stable = self.marking.newest
        self.marking.became_stable(self.now_ns)


def test_a_mark_is_due_after_so_many_entries() -> None:
    marking = Marking()
    assert not marking.is_due(config(entries=4), 3)
    assert marking.is_due(config(entries=4), 1)
    marking.marked(5)
    assert not marking.is_due(config(entries=4), 3)


def test_a_mark_is_due_after_so_many_bytes_of_the_journal() -> None:
    marking = Marking()
    assert not marking.is_due(config(size=36 * KIB), 1), "a page of data, and one of the order in both copies"
    assert not marking.is_due(config(size=36 * KIB), 1)
    assert marking.is_due(config(size=36 * KIB), 1)
    marking.marked(4)
    marking.bytes += 30 * KIB
    assert marking.is_due(config(size=36 * KIB), 1)


def test_what_was_adopted_counts_from_its_last_mark_on() -> None:
    marking = Marking()
    for is_mark in (False, False, True, False):
        marking.adopted(is_mark=is_mark)
    assert not marking.is_due(config(entries=4), 2)
    assert marking.is_due(config(entries=4), 1)


def test_two_marks_free_what_low_room_needs_and_a_third_would_free_nothing() -> None:
    sequence = Sequence()
    marks = 0
    for _ in range(5):
        if sequence.marking.helps_low_space(sequence.now_ns, sequence.stable, sequence.work_last):
            marks += 1
            sequence.last += 1
            sequence.marking.marked(sequence.last)
            sequence.marking.mark_committed(sequence.now_ns)
            assert not sequence.marking.helps_low_space(sequence.now_ns, sequence.stable, 10), "on its way"
            sequence.settle()
    assert marks == 2


def test_a_journal_that_holds_space_has_checkpoints_without_any_traffic() -> None:
    sequence = Sequence()
    assert sequence.held()
    assert not sequence.held(), "one is on its way"
    sequence.settle()
    assert not sequence.held(after_ms=MARKS_APART_MS - 1)
    assert sequence.held(after_ms=1)


def test_checkpoints_for_held_space_take_a_small_part_of_the_time() -> None:
    sequence = Sequence()
    assert sequence.held()
    sequence.settle(after_ms=500, took_ms=500)
    assert not sequence.held(after_ms=500 * MARKS_APART_TIMES - 1)
    assert sequence.held(after_ms=1)


def test_a_checkpoint_that_waited_for_room_or_for_a_server_that_was_down_has_taken_no_time() -> None:
    sequence = Sequence()
    assert sequence.held()
    sequence.settle(after_ms=3_600_000, took_ms=10)
    assert not sequence.held(after_ms=MARKS_APART_MS - 1)
    assert sequence.held(after_ms=1)


def test_the_slowest_server_says_how_long_a_checkpoint_takes() -> None:
    sequence = Sequence()
    assert sequence.held()
    sequence.marking.on_report(2, sequence.last, 500)
    sequence.settle(took_ms=100)
    assert not sequence.held(after_ms=500 * MARKS_APART_TIMES - 1)
    assert sequence.held(after_ms=1)
    sequence.settle()
    assert sequence.held(after_ms=MARKS_APART_MS), "that was another checkpoint"


def test_a_journal_that_checkpoints_cannot_help_has_a_few_and_then_none_until_there_is_data() -> None:
    sequence = Sequence()
    for _ in range(MARKS_IN_VAIN_MAX):
        assert sequence.held(after_ms=MARKS_APART_MS)
        sequence.settle()
    assert not sequence.held(after_ms=60_000)
    sequence.last = sequence.work_last = sequence.last + 1
    assert sequence.held()


def test_a_journal_that_checkpoints_help_has_more_of_them_until_they_do_not() -> None:
    """Little is copied at once to empty segments: many checkpoints may be needed, and each frees some."""
    sequence = Sequence()
    for segments in range(40, 10, -1):
        assert sequence.held(after_ms=MARKS_APART_MS, segments=segments)
        sequence.settle()
    marks = 0
    for segments in (13, 11, 12) * MARKS_IN_VAIN_MAX:
        # The entries of checkpoints fill segments too: only fewer than ever before are a gain.
        if sequence.held(after_ms=MARKS_APART_MS, segments=segments):
            marks += 1
            sequence.settle()
    assert marks == MARKS_IN_VAIN_MAX - 1, "one was for the fewest"


def test_a_server_that_was_away_while_others_were_helped_is_helped_too() -> None:
    sequence = Sequence()
    for _ in range(MARKS_IN_VAIN_MAX):
        assert sequence.held(after_ms=MARKS_APART_MS)
        sequence.settle()
    assert not sequence.held(after_ms=60_000)
    assert sequence.held(server=2)


def test_a_server_that_takes_no_checkpoints_yet_is_helped_when_it_has_caught_up() -> None:
    sequence = Sequence()
    sequence.marking.reported[1] = 5
    assert sequence.held()
    sequence.settle()
    assert not sequence.held(after_ms=MARK_LOST_MS - 1), "others have taken it, and this one has not"
    sequence.marking.reported[1] = sequence.last
    assert sequence.held()
    sequence.settle()
    assert sequence.held(after_ms=MARK_LOST_MS), "what it took since was not the last one"


def test_a_server_without_a_checkpoint_in_this_reign_has_not_taken_the_last() -> None:
    sequence = Sequence()
    sequence.marking = Marking(checkpoint_servers=(1, 2))
    assert sequence.held(), "there was no mark that it could have taken"
    sequence.settle()
    assert not sequence.held(after_ms=MARK_LOST_MS - 1), "its disk may be full"
    assert sequence.held(after_ms=1)
    sequence.settle()
    assert sequence.held(after_ms=MARKS_APART_MS, server=3), "a witness takes none"
    sequence.settle()
    assert sequence.held(after_ms=MARKS_APART_MS, server=3)


def test_a_mark_in_vain_does_not_keep_others_back_for_ever() -> None:
    sequence = Sequence()
    assert sequence.held()
    assert not sequence.held(after_ms=MARK_LOST_MS - 1)
    assert not sequence.marking.helps_low_space(sequence.now_ns, 0, sequence.work_last)
    assert sequence.marking.helps_low_space(sequence.now_ns + MS, 0, sequence.work_last)
    assert sequence.held(after_ms=1)


def test_a_mark_that_is_not_committed_is_on_its_way_however_long_it_takes() -> None:
    sequence = Sequence()
    sequence.marking.marked(11)
    assert not sequence.held(after_ms=10 * MARK_LOST_MS)
