"""Marks of the channel's time: from a time to a number and back, in little room."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.message_manager.state.log_times import MARKS_MAX, LogTimes
from antiphon.wire.primitives import Reader, Writer
from tests.unit.message_manager.channel import Channel, Client


def marked(*marks: tuple[int, int]) -> LogTimes:
    times = LogTimes()
    for number, time_ms in marks:
        times.mark(number, time_ms)
    return times


def test_a_time_begins_behind_the_last_mark_before_it() -> None:
    times = marked((10, 1_000), (20, 2_000), (30, 3_000))
    assert [times.at_time(ms) for ms in (0, 1_000, 1_001, 2_000, 2_001, 9_000)] == [1, 1, 11, 11, 21, 31]


def test_the_time_of_a_number_is_that_of_the_last_mark_up_to_it() -> None:
    times = marked((10, 1_000), (20, 2_000))
    assert [times.time_of(number) for number in (9, 10, 19, 20, 99)] == [0, 1_000, 1_000, 2_000, 2_000]


def test_a_time_that_does_not_move_on_is_no_mark() -> None:
    times = marked((10, 1_000), (20, 1_000), (30, 999))
    assert len(times) == 1 and times.at_time(2_000) == 11


def test_many_marks_are_thinned_and_never_begin_too_late() -> None:
    """The further back, the wider the spacing; of the newer half every mark is there."""
    count = 5 * MARKS_MAX
    times = marked(*((10 * at, 1_000 * at) for at in range(1, count + 1)))
    assert len(times) <= MARKS_MAX
    begun = [times.at_time(1_000 * at + 1) for at in range(1, count + 1)]
    exact = [10 * at + 1 for at in range(1, count + 1)]
    assert all(found <= wanted for found, wanted in zip(begun, exact, strict=True))
    assert begun == sorted(begun)
    assert begun[-MARKS_MAX // 2 :] == exact[-MARKS_MAX // 2 :]
    assert begun[0] == 1


def test_marks_survive_in_bytes_and_those_that_fall_are_refused() -> None:
    times = marked((10, 1_000), (20, 2_000))
    writer = Writer()
    times.write(writer)
    data = writer.join()
    again = LogTimes.read(Reader(data))
    assert (again.at_time(2_001), again.time_of(15), len(again)) == (21, 1_000, 2)
    for start in (4, 20):
        damaged = data[:start] + data[start + 8 : start + 16] + data[start : start + 8] + data[start + 16 :]
        with pytest.raises(ProtocolError, match="ascend"):
            LogTimes.read(Reader(damaged))


def test_the_fold_marks_the_time_where_it_is_told() -> None:
    channel, client = Channel(), Client()
    channel.order(client.open())
    queue = channel.create("orders")
    channel.pass_time(1_000)
    told = channel.manager.applied
    channel.order(client.publish(queue, [b"a"]))
    channel.pass_time(1_000)
    times = channel.manager.state.times
    assert times.at_time(channel.wall_ms) == told + 1
    assert times.time_of(told) == channel.wall_ms - 1_000
    n = channel.mark()
    _, state, _ = channel.manager.capture(n)
    again = type(channel.manager.state).restore(state)
    assert again.times.at_time(channel.wall_ms) == told + 1
