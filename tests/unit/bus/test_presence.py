"""Steps of a presence keeper: when it speaks, and what it remembers of the others."""

from __future__ import annotations

from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.effects import Multicast, Received
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.presence import PresenceKeeper

DISK = b"disk of node two"


def keeper(nodes: tuple[int, ...] = (1, 2, 3), **settings: Any) -> PresenceKeeper:
    return PresenceKeeper(GroupConfig.of("main", nodes, **settings), 1, "one", "replica")


def said(effects: list[Any]) -> list[m.Presence]:
    return [effect.message for effect in effects if isinstance(effect, Multicast)]


def presence(applied: int = 0, config_id: int = 1) -> m.Presence:
    return m.Presence("two", "replica", applied, True, b"digest", 0, config_id)


def test_a_node_says_that_it_is_there_at_once_and_then_every_so_often() -> None:
    here = keeper(presence_ms=200)
    here.applied = 7
    (first,) = said(here.step(1_000 * MS, []))
    assert (first.name, first.role, first.applied, first.synchronized) == ("one", "replica", 7, False)
    assert here.next_deadline_ns() == 1_200 * MS
    assert here.step(1_199 * MS, []) == []
    assert len(said(here.step(1_200 * MS, []))) == 1


def test_a_presence_leaves_with_a_heartbeat_that_comes_shortly_before_it_is_due() -> None:
    here = keeper(presence_ms=240)
    beat = Received(2, m.Heartbeat(1, 0, 0, 1, 0, True))
    here.step(1_000 * MS, [])
    assert here.step(1_159 * MS, [beat]) == []
    assert here.step(1_160 * MS, []) == []
    assert len(said(here.step(1_160 * MS, [beat]))) == 1
    assert here.next_deadline_ns() == 1_400 * MS


def test_a_change_is_told_before_its_time_but_not_more_often_than_a_heartbeat() -> None:
    here = keeper(presence_ms=200, heartbeat_ms=50)
    here.step(1_000 * MS, [])
    here.is_synchronized = True
    assert here.next_deadline_ns() == 1_050 * MS
    assert here.step(1_020 * MS, []) == []
    (told,) = said(here.step(1_050 * MS, []))
    assert told.synchronized
    here.role = "primary"
    assert here.next_deadline_ns() == 1_100 * MS
    here.role = "replica"
    assert here.next_deadline_ns() == 1_250 * MS, "it came and went"


def test_an_applied_number_alone_is_no_change() -> None:
    here = keeper(presence_ms=200)
    here.step(1_000 * MS, [])
    here.applied = 99
    assert here.next_deadline_ns() == 1_200 * MS


def test_a_node_that_is_alone_says_nothing() -> None:
    here = keeper((1,))
    assert here.next_deadline_ns() is None
    assert here.step(1_000 * MS, []) == []


def test_what_a_presence_tells_is_remembered_with_the_disk_it_came_from() -> None:
    here = keeper()
    here.step(5 * MS, [Received(2, presence(41, 3), DISK)])
    seen = here.seen(2)
    assert seen is not None
    assert (seen.heard_at, seen.applied, seen.is_synchronized) == (5 * MS, 41, True)
    assert (seen.config_id, seen.config_digest, seen.disk_id) == (3, b"digest", DISK)
    assert here.applied_max == 41


def test_any_message_of_a_node_is_a_sign_of_life() -> None:
    here = keeper(silence_ms=2_000)
    here.step(0, [Received(2, m.PreSealOk(1))])
    assert here.seen(2) is not None and here.seen(3) is None
    here.hear(500 * MS, 2)
    assert not here.is_silent(2, 0, 2_499 * MS)
    assert here.is_silent(2, 0, 2_500 * MS)


def test_a_silence_is_counted_from_when_somebody_began_to_listen() -> None:
    here = keeper(silence_ms=2_000)
    assert here.is_silent(3, 0, 2_000 * MS), "never heard"
    assert not here.is_silent(3, 1_000 * MS, 2_000 * MS)


def test_strangers_and_ourselves_are_not_remembered() -> None:
    here = keeper()
    here.step(0, [Received(9, presence(1_000)), Received(1, presence(1_000))])
    assert here.seen(9) is None and here.seen(1) is None
    assert here.applied_max == 0


def test_a_configuration_without_a_node_forgets_it_and_is_told_at_once() -> None:
    here = keeper(presence_ms=10_000, heartbeat_ms=50)
    here.step(0, [Received(2, presence(5)), Received(3, presence(9))])
    here.reconfigure(GroupConfig.of("main", (1, 2), config_id=2))
    assert here.seen(2) is not None and here.seen(3) is None
    (told,) = said(here.step(50 * MS, []))
    assert told.config_id == 2
