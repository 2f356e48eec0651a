"""Laggards: a slow replica is waited for, for a while; then the others go on."""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.effects import Alarm, Received, RoleEffect
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.laggards import Laggards
from antiphon.bus.presence import PresenceKeeper
from antiphon.ids import Mid
from tests.unit.bus.chair import keep_leading, lead_three, numbered

CONFIG = GroupConfig.of("main", (1, 2, 3), lag_max=100, laggard_wait_ms=1_000, silence_ms=5_000)


class Group:
    """Node 1 leads, 2 keeps up, and 3 says how far it is."""

    def __init__(self) -> None:
        self.presence = PresenceKeeper(CONFIG, 1)
        self.laggards = Laggards(1, self.presence, 0)
        self.alarms: list[RoleEffect] = []

    def at(self, now_ms: int, last: int, applied: int, acknowledged: int = 0) -> bool:
        """Does anybody hold the numbering back?"""
        for node, number in ((2, last), (3, applied)):
            said = m.Presence("", "", number, True, b"", 0)
            self.presence.step(now_ms * MS, [Received(node, said)])
        match = {1: last, 2: last, 3: acknowledged}
        self.laggards.look(now_ms * MS, CONFIG, last, match, self.alarms)
        return self.laggards.holds_back


def test_whoever_is_within_the_limit_holds_back_nobody() -> None:
    group = Group()
    assert not group.at(0, last=100, applied=0)
    assert not group.at(10_000, last=200, applied=100)


def test_a_laggard_holds_the_numbering_back_until_it_has_caught_up() -> None:
    group = Group()
    assert group.at(0, last=101, applied=0)
    assert group.at(500, last=101, applied=0)
    assert not group.at(600, last=101, applied=60)
    assert group.alarms == []


def test_what_it_acknowledged_is_newer_than_what_it_said() -> None:
    assert not Group().at(0, last=500, applied=0, acknowledged=490)


def test_after_a_while_it_is_left_and_the_others_go_on() -> None:
    group = Group()
    assert group.at(0, last=101, applied=0)
    assert not group.at(1_000, last=101, applied=0)
    assert [type(alarm) for alarm in group.alarms] == [Alarm]
    assert not group.at(9_000, last=5_000, applied=10)
    assert len(group.alarms) == 1


def test_it_counts_again_when_it_is_back_within_half_the_limit() -> None:
    group = Group()
    group.at(0, last=101, applied=0)
    group.at(1_000, last=101, applied=0)
    assert not group.at(2_000, last=300, applied=210), "not there yet"
    assert not group.at(3_000, last=300, applied=260)
    assert group.at(4_000, last=400, applied=270)


def test_who_is_silent_holds_back_nobody() -> None:
    group = Group()
    assert group.at(0, last=101, applied=0)
    group.presence.step(5_000 * MS, [Received(2, m.Presence("", "", 101, True, b"", 0))])
    group.laggards.look(5_000 * MS, CONFIG, 101, {}, group.alarms)
    assert not group.laggards.holds_back


def test_a_group_of_one_waits_for_nobody() -> None:
    alone = Laggards(1, None, 0)
    alone.look(0, GroupConfig.of("main", (1,)), 1 << 40, {}, [])
    assert not alone.holds_back


def test_a_sequencer_numbers_nothing_while_it_waits_and_goes_on_when_the_wait_is_over() -> None:
    chair = lead_three(lag_max=3, laggard_wait_ms=500, data_quantity=1, tick_ms=60_000, silence_ms=60_000)
    pe = chair.open()
    chair.acknowledge(2, 2)
    assert numbered(chair.report(*(Mid(1, pe, pseq) for pseq in (1, 2)))) == [(3, 1), (4, 2)]
    keep_leading(chair, 100)  # node 3 said that it has applied nothing: it lags by four
    assert numbered(chair.report(Mid(1, pe, 3))) == []
    assert numbered(keep_leading(chair, 300)) == []
    assert numbered(keep_leading(chair, 300)) == [(5, 3)]
