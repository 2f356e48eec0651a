"""What a primary may say the time is, whatever its wall clock says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from antiphon.bus.effects import Alarm
from antiphon.message_manager.delivery.log_clock import CATCH_UP_RATE, LogClock
from tests.planted.catalogue import planted
from tests.unit.message_manager.channel import NODE, Channel, Client, proposals

SECOND_NS = 1_000_000_000
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
OTHER = 5


def begun(told_ms: int = 0) -> LogClock:
    """A clock of a primary whose replica applied this mark at its second 0."""
    clock = LogClock(1_000)
    if told_ms:
        clock.told(0, told_ms)
    clock.begin()
    return clock


def each_second(clock: LogClock, seconds: range, wall_ms: int, *, stands: bool = False) -> list[int]:
    """What is told in these seconds while the wall clock shows `wall_ms` at second 0, or all the time."""
    return [
        clock.tell(second * SECOND_NS, wall_ms if stands else wall_ms + 1_000 * second) for second in seconds
    ]


# -- pacing ---------------------------------------------------------------------------------------


def test_the_first_mark_is_the_wall_clocks_time() -> None:
    assert begun().tell(5 * SECOND_NS, START_MS) == START_MS
    assert begun().tell(5 * SECOND_NS, -3) == 1, "a time of 0 would mean that none was told"


def test_a_wall_clock_that_is_right_is_followed_to_the_millisecond() -> None:
    clock = begun()
    assert each_second(clock, range(100), START_MS) == [START_MS + 1_000 * second for second in range(100)]


@pytest.mark.parametrize("days", [400, -400])
def test_a_second_of_a_wrong_wall_clock_moves_log_time_by_a_slack_at_most(days: int) -> None:
    clock = begun()
    each_second(clock, range(10), START_MS)
    wrong = clock.tell(10 * SECOND_NS, START_MS + 10_000 + days * DAY_MS)
    assert START_MS + 10_000 <= wrong <= START_MS + 10_050
    right = each_second(clock, range(11, 60), START_MS)
    assert right[-1] in range(START_MS + 59_000, START_MS + 59_051)


@pytest.mark.parametrize("days", [400, -400])
def test_log_time_goes_on_with_the_own_clock_though_the_wall_clock_stays_wrong(days: int) -> None:
    clock = begun()
    each_second(clock, range(10), START_MS)
    told = each_second(clock, range(10, 1_010), START_MS + days * DAY_MS)
    assert 1_000_000 <= told[-1] - START_MS - 9_000 <= 1_000_000 * 21 // 20
    assert told == sorted(set(told))


def test_log_time_goes_on_though_the_wall_clock_stands_still() -> None:
    clock = begun()
    told = each_second(clock, range(1, 100), START_MS, stands=True)
    assert told[-1] - told[0] == 98_000


def test_after_an_idle_hour_log_time_has_moved_by_that_hour_and_one_slack() -> None:
    clock = begun()
    each_second(clock, range(10), START_MS)
    assert clock.tell(3_609 * SECOND_NS, START_MS + 400 * DAY_MS) == START_MS + 3_609_050


# -- terms ----------------------------------------------------------------------------------------


def test_what_passed_since_the_last_mark_was_applied_counts_at_once() -> None:
    clock = begun(told_ms=START_MS)
    assert clock.tell(90 * SECOND_NS, START_MS + 90_000) == START_MS + 90_000
    clock = begun(told_ms=START_MS)
    assert clock.tell(90 * SECOND_NS, START_MS - DAY_MS) == START_MS + 90_000


def test_a_nights_stop_is_made_up_within_minutes_and_never_faster_than_sixty_times() -> None:
    night_ms = 8 * 3_600_000
    clock = begun(told_ms=START_MS)
    told = each_second(clock, range(1, 600), START_MS + night_ms)
    steps = [later - before for before, later in pairwise(told)]
    assert max(steps) <= CATCH_UP_RATE * 1_000 + 50
    met = next(at for at, ms in enumerate(told, 1) if ms == START_MS + night_ms + 1_000 * at)
    assert met <= night_ms / 1_000 / (CATCH_UP_RATE - 1) + 1 < 500
    assert set(steps[met:]) == {1_000}


def test_once_the_wall_clock_was_met_no_later_step_is_made_up() -> None:
    clock = begun(told_ms=START_MS)
    each_second(clock, range(1, 10), START_MS + 5_000)
    assert clock.tell(10 * SECOND_NS, START_MS + DAY_MS) <= START_MS + 5_000 + 10_000 + 50


def test_a_wall_clock_that_is_set_right_after_a_stop_is_still_made_up() -> None:
    """A machine without a battery starts in 1970, until it hears of the time."""
    clock = begun(told_ms=START_MS)
    each_second(clock, range(1, 10), 0)
    told = each_second(clock, range(10, 600), START_MS + DAY_MS // 3)
    assert told[-1] == START_MS + DAY_MS // 3 + 599_000


def test_what_was_proposed_in_a_former_term_and_never_ordered_counts_for_nothing() -> None:
    clock = begun(told_ms=START_MS)
    each_second(clock, range(1, 100), START_MS + 400 * DAY_MS)
    clock.begin()
    assert clock.tell(100 * SECOND_NS, START_MS + 100_000) == START_MS + 100_000


def test_a_backup_that_becomes_the_primary_goes_on_from_the_mark_it_applied() -> None:
    channel = Channel(node=NODE, begin=False)
    channel.claim(OTHER)
    channel.wall_ms = START_MS
    channel.pass_time(0)
    channel.now_ns += 30 * SECOND_NS
    channel.claim(NODE)
    channel.wall_ms = START_MS + 30 * DAY_MS
    channel.create("q")
    channel.order_proposals(channel.flush())
    assert channel.manager.state.log_time_ms == START_MS + CATCH_UP_RATE * 30_000 + 50


# -- what comes of it -------------------------------------------------------------------------------


def kept_after_a_wrong_second() -> tuple[int, int, int]:
    """What a topic keeps for a day, how many holds are left, and log time, after a second of +400 days."""
    channel = Channel()
    channel.wall_ms = START_MS
    client = Client()
    channel.order(client.open())
    topic = channel.create_topic("t", '{"retention": 86400}')
    channel.order(client.hold("archive", 1, channel.create("q")))
    for wrong_ms in (0, 0, 400 * DAY_MS, 0):
        channel.order(client.publish(topic, [b"confirmed"]))
        channel.now_ns += SECOND_NS
        channel.wall_ms = START_MS + channel.now_ns // 1_000_000 + wrong_ms
        channel.order_proposals(channel.flush())
    state = channel.manager.state
    stored = state.directory.get(topic)
    assert stored is not None
    return stored.live.count, len(state.holds.rows), state.log_time_ms


def test_nothing_goes_in_a_second_of_a_wrong_clock() -> None:
    kept, holds, time_ms = kept_after_a_wrong_second()
    assert (kept, holds) == (4, 1)
    assert START_MS + 4_000 <= time_ms <= START_MS + 4_050


def test_with_the_bug_planted_everything_goes_in_a_second_of_a_wrong_clock() -> None:
    with planted("wall-clock-believed"):
        kept, holds, time_ms = kept_after_a_wrong_second()
    assert kept < 4 and holds == 0 and time_ms > START_MS + 399 * DAY_MS


def test_what_is_too_old_goes_though_the_wall_clock_is_a_year_behind() -> None:
    channel = Channel()
    channel.wall_ms = START_MS
    client = Client()
    channel.order(client.open())
    topic = channel.create_topic("t", '{"retention": 60}')
    channel.order(client.publish(topic, [b"old"]))
    channel.order_proposals(channel.flush())
    channel.wall_ms -= 365 * DAY_MS
    for _ in range(5):
        channel.order_proposals(channel.flush())
        channel.flush()
        due_ns = channel.manager.next_deadline_ns()
        if due_ns is None:
            break
        channel.now_ns = due_ns
    stored = channel.manager.state.directory.get(topic)
    assert stored is not None and stored.live.count == 0
    assert channel.now_ns < 70 * SECOND_NS


# -- the alarm --------------------------------------------------------------------------------------


def alarms(clock: LogClock, seconds: range, wall_ms: int) -> list[str]:
    told = []
    for second in seconds:
        clock.tell(second * SECOND_NS, wall_ms + 1_000 * second)
        if text := clock.alarm():
            told.append(text)
    return told


def test_a_difference_of_more_than_a_minute_is_told_once_until_it_is_over() -> None:
    clock = begun()
    assert alarms(clock, range(10), START_MS) == []
    assert alarms(clock, range(10, 20), START_MS + 59_000) == []
    (text,) = alarms(clock, range(20, 30), START_MS + DAY_MS)
    assert "86,3" in text and "ahead of log time, which does not follow it" in text
    assert alarms(clock, range(30, 40), START_MS) == []
    (text,) = alarms(clock, range(40, 50), START_MS - DAY_MS)
    assert "behind log time, which goes on without it" in text


def test_a_stop_that_is_being_made_up_says_how_long_that_takes() -> None:
    (text,) = alarms(begun(told_ms=START_MS), range(1, 600), START_MS + 8 * 3_600_000)
    assert "makes that up within 488 s" in text


def test_a_primary_tells_its_operator_and_its_status() -> None:
    channel = Channel()
    channel.wall_ms = START_MS
    channel.create("q")
    assert not [one for one in channel.flush() if isinstance(one, Alarm)]
    assert channel.manager.status()["clock_difference_ms"] == 0
    channel.create("r")
    channel.now_ns += SECOND_NS
    channel.wall_ms += DAY_MS
    effects = channel.flush()
    assert len(proposals(effects)) == 1
    (alarm,) = [one for one in effects if isinstance(one, Alarm)]
    assert "ahead of log time" in alarm.text
    assert channel.manager.status()["clock_difference_ms"] == 1_050 - DAY_MS
    channel.claim(OTHER)
    assert channel.manager.status()["clock_difference_ms"] is None
