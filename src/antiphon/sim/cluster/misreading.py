"""Misreading: for a while the software of all nodes cannot read the states that it has written.

Meanwhile nodes are restarted, as in a rolling restart to a faulty version. Some faults hit only the newest
checkpoint of a node, others all its checkpoints and all it receives. Then the fault is mended, and nodes
without a state are restarted, as an operator would.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import TYPE_CHECKING

from antiphon.sim.world import MILLISECOND_NS

if TYPE_CHECKING:
    from antiphon.sim.cluster.profile import ClusterProfile
    from antiphon.sim.runner import Town

_SHARE = 0.2
_LASTS_NS = 500 * MILLISECOND_NS


class Misreads(Enum):
    """The states that cannot be read."""

    NOTHING = "nothing"
    NEWEST = "newest"
    ALL = "all"


class Misreading:
    def __init__(self, town: Town, profile: ClusterProfile) -> None:
        self._town = town
        self._world = town.world
        self._safety_ns = profile.safety_ns
        self._chance: random.Random = town.world.random("misreading")
        drawn = self._chance.randint(1, 2) if self._chance.random() < _SHARE else 0
        self._times = drawn if profile.misreads is None else profile.misreads
        self._is_over = False

    def plan(self) -> None:
        """Plan the faulty times, and the nodes that are restarted meanwhile."""
        for _ in range(self._times):
            self._world.after(self._chance.randrange(self._safety_ns), self._begin)

    def _begin(self) -> None:
        town, chance = self._town, self._chance
        if self._is_over or town.misreads is not Misreads.NOTHING:
            return
        town.misreads = chance.choice((Misreads.NEWEST, Misreads.NEWEST, Misreads.ALL))
        self._world.probe(f"misreading.{town.misreads.value}")
        self._world.note("world", f"the software cannot read: {town.misreads.value}")
        lasts_ns = chance.randrange(_LASTS_NS // 2, _LASTS_NS)
        channel = chance.choice(list(town.quarters))
        for runner in town.managers_of(channel):
            if chance.random() < 0.8:
                self._world.after(chance.randrange(lasts_ns), runner.crash)
        self._world.after(lasts_ns, self._mend)

    def _mend(self) -> None:
        if self._town.misreads is Misreads.NOTHING:
            return
        self._town.misreads = Misreads.NOTHING
        self._world.note("world", "the software can read again")
        for runner in self._town.managers.values():
            if runner.has_no_state:
                runner.crash()

    def end(self) -> None:
        self._is_over = True
        self._mend()
