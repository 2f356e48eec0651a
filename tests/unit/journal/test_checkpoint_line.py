"""When the file of a checkpoint is begun, and which segments the files need."""

from __future__ import annotations

from typing import NamedTuple

from antiphon.journal.checkpoint_line import CheckpointLine


class Asked(NamedTuple):
    n: int
    segments: tuple[int, ...] = ()


def line_with(found: dict[int, set[int]]) -> CheckpointLine[Asked]:
    return CheckpointLine({n: frozenset(segments) for n, segments in found.items()})


def test_a_file_is_begun_once_and_when_all_records_before_it_are_durable() -> None:
    line = line_with({})
    line.ask(Asked(10), depends_on=5)
    line.ask(Asked(20), depends_on=9)
    assert line.due(4) == []
    assert line.due(5) == [Asked(10)]
    assert line.due(8) == []
    assert line.due(9) == [Asked(20)]
    assert line.due(100) == []


def test_one_that_depends_on_nothing_new_is_begun_at_once() -> None:
    line = line_with({})
    line.ask(Asked(10), depends_on=0)
    assert line.due(0) == [Asked(10)]


def test_one_that_found_no_room_is_asked_for_again_and_its_segments_stay_meanwhile() -> None:
    line = line_with({5: {1}, 6: {1}})
    line.ask(Asked(10, (2, 3)), depends_on=1)
    assert line.due(1) == [Asked(10, (2, 3))]
    assert line.release(10) == {1, 2, 3}
    line.ask(Asked(10, (2, 3)), depends_on=4)
    assert line.due(3) == []
    assert line.due(4) == [Asked(10, (2, 3))]


def test_the_segments_of_a_checkpoint_are_needed_from_when_it_is_asked_for() -> None:
    line = line_with({})
    line.ask(Asked(10, (2, 3)), depends_on=5)
    assert line.release(10) == {2, 3}


def test_a_released_checkpoint_gives_up_its_segments_but_never_one_of_the_two_newest_files() -> None:
    line = line_with({10: {1}, 20: {2}, 30: {3}})
    assert line.release(20) == {2, 3}
    assert line.release(1_000) == {2, 3}, "the files stay, so what they refer to stays"
    line.ask(Asked(40, (4,)), depends_on=1)
    assert line.release(1_000) == {2, 3, 4}, "it is not there yet to fall back on"
    line.written(40)
    assert line.release(30) == {3, 4}


def test_what_is_held_for_another_node_stays() -> None:
    line = line_with({10: {1}, 20: {2}, 30: {3}, 40: {4}})
    assert line.release(20) == {2, 3, 4}


def test_a_file_that_is_written_again_needs_its_old_segments_until_the_new_file_is_durable() -> None:
    line = line_with({10: {1}, 20: {2}})
    line.ask(Asked(20, (3,)), depends_on=5)
    assert line.release(10) == {1, 2, 3}, "a crash now leaves the old file"
    assert line.due(5) == [Asked(20, (3,))]
    assert line.release(10) == {1, 2, 3}, "it is begun, and not durable"
    line.written(20)
    assert line.release(10) == {1, 3}


def test_a_file_that_found_no_room_leaves_the_old_file_with_its_segments() -> None:
    line = line_with({10: {1}, 20: {2}})
    for depends_on in (5, 6):
        line.ask(Asked(20, (3,)), depends_on)
        assert line.due(depends_on) == [Asked(20, (3,))]
        assert line.release(10) == {1, 2, 3}


def test_a_dropped_file_that_is_written_again_keeps_the_segments_that_were_asked_for() -> None:
    line = line_with({10: {1}, 20: {2}, 30: {3}})
    line.ask(Asked(10, (4,)), depends_on=5)
    assert line.release(20) == {2, 3, 4}
