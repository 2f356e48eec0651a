"""The network between nodes: what is lost, late or twice, and what a cut and a clog do."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import Received
from antiphon.sim.links import LinkHabits, Links
from antiphon.sim.world import MILLISECOND_NS, SECOND_NS, World


class Stage:
    """Two nodes and what arrives."""

    def __init__(self, **habits: object) -> None:
        self.world = World(1)
        self.habits = LinkHabits(latency_ns=MILLISECOND_NS, **habits)  # type: ignore[arg-type]
        self.arrived: list[tuple[int, int]] = []
        self.links = Links(self.world, self.habits, self._arrive)

    def _arrive(self, to: int, event: Received) -> None:
        assert isinstance(event.message, m.PreSealOk)
        self.arrived.append((to, event.message.counter))

    def send(self, numbers: range, sender: int = 1, to: int = 2) -> None:
        for number in numbers:
            self.links.send(sender, to, Received(sender, m.PreSealOk(number)))

    def wait(self, ms: int) -> None:
        self.world.run(self.world.now_ns + ms * MILLISECOND_NS)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.arrived]


def test_a_good_network_loses_nothing() -> None:
    stage = Stage()
    stage.send(range(50))
    stage.wait(10)

    assert sorted(stage.numbers) == list(range(50))
    assert {to for to, _ in stage.arrived} == {2}


def test_messages_overtake_each_other_unless_the_link_keeps_their_order() -> None:
    hurried, orderly = Stage(), Stage(keeps_order=True)
    for stage in (hurried, orderly):
        stage.send(range(50))
        stage.wait(10)

    assert hurried.numbers != list(range(50))
    assert orderly.numbers == list(range(50))


@pytest.mark.parametrize(("drop", "duplicate", "least", "most"), [(0.3, 0.0, 50, 85), (0.0, 0.5, 130, 170)])
def test_some_are_lost_and_some_come_twice(drop: float, duplicate: float, least: int, most: int) -> None:
    stage = Stage(drop_probability=drop, duplicate_probability=duplicate)
    stage.send(range(100))
    stage.wait(10)

    assert least <= len(stage.arrived) <= most


def test_a_duplicate_may_come_when_the_first_is_long_forgotten() -> None:
    stage = Stage(duplicate_probability=1.0, replay_share=1.0)
    stage.send(range(10))
    stage.wait(10)
    soon = len(stage.arrived)
    stage.wait(3_000)

    assert soon < 15
    assert len(stage.arrived) == 20


def test_a_cut_loses_what_is_sent_and_not_what_is_under_way() -> None:
    stage = Stage()
    stage.send(range(1))
    stage.links.cut([(1, 2)], 20 * MILLISECOND_NS)
    stage.send(range(1, 2))
    stage.send(range(2, 3), sender=2, to=1)
    stage.wait(30)
    stage.send(range(3, 4))
    stage.wait(30)

    assert sorted(stage.arrived) == [(1, 2), (2, 0), (2, 3)]


def test_two_cuts_of_one_link_are_over_when_both_are() -> None:
    stage = Stage()
    stage.links.cut([(1, 2)], 10 * MILLISECOND_NS)
    stage.links.cut([(1, 2)], 30 * MILLISECOND_NS)
    stage.wait(20)
    stage.send(range(1))
    stage.wait(20)
    stage.send(range(1, 2))
    stage.wait(20)

    assert stage.numbers == [1]


def test_a_clogged_link_lets_everything_go_at_once() -> None:
    stage = Stage()
    stage.links.clog((1, 2), 100 * MILLISECOND_NS)
    stage.send(range(20))
    stage.wait(99)
    assert stage.numbers == []

    stage.wait(10)
    assert sorted(stage.numbers) == list(range(20))


def test_healing_mends_everything_and_old_cuts_do_not_come_back() -> None:
    stage = Stage(drop_probability=1.0)
    stage.links.cut([(1, 2)], 50 * MILLISECOND_NS)
    stage.links.clog((2, 1), SECOND_NS)
    stage.links.heal()
    stage.send(range(5))
    stage.wait(100)
    stage.links.cut([(1, 2)], 10 * MILLISECOND_NS)
    stage.send(range(5, 6))
    stage.wait(100)

    assert sorted(stage.numbers) == list(range(5))
