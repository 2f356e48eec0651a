"""FaultTable: the faults of a run, row by row: a name, how often, and the act.

The name is that of a field of the run's profile, which says how often. All faults are planned when a run
begins; the victim is drawn at the moment, half of the time the leader, where most can be broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from antiphon.sim.links import Links, Pair
from antiphon.sim.world import MILLISECOND_NS, World

Act = Callable[[], None]


are_drawn = True
"""Do clocks of the bus and of a lone node stand still? Not for seeds from before that fault."""


class Sleeper(Protocol):
    """A node whose process can be stopped."""

    def sleep(self, duration_ns: int, *, is_frozen: bool = False) -> None:
        """Take no step for a while, beginning now; the clock of a frozen node stands still."""


class FaultTable:
    """Plans the faults of a run; subclasses know the victims."""

    def __init__(
        self, world: World, chance: random.Random, safety_ns: int, *, may_freeze: bool = True
    ) -> None:
        self._world = world
        self._chance = chance
        self._safety_ns = safety_ns
        self._is_over = False
        # The share of sleeping nodes whose clock stands still meanwhile: their machine is paused.
        self._freezes: random.Random = world.random("freezes")
        self._frozen_share = self._freezes.choice((0.0, 0.0, 0.5, 1.0)) if may_freeze else 0.0

    def plan_rows(self, profile: object, acts: Mapping[str, Act]) -> None:
        """Plan each act as often as the profile says under its name."""
        for name, act in acts.items():
            for _ in range(getattr(profile, name)):
                self.plan_one(act)

    def plan_one(self, act: Act) -> None:
        """Plan the act once, at some time before the safety phase ends."""
        self.after(self._chance.randrange(self._safety_ns), act)

    def after(self, delay_ns: int, act: Act) -> None:
        """Plan the act after a while, unless nothing fails any more by then."""

        def strike() -> None:
            if not self._is_over:
                act()

        self._world.after(delay_ns, strike)

    def end(self) -> None:
        self._is_over = True

    def sleep(self, node: Sleeper, duration_ns: int) -> None:
        """A process is not given the processor for a while, or its machine is paused."""
        node.sleep(duration_ns, is_frozen=self._freezes.random() < self._frozen_share)

    def part(self, links: Links[Any], kind: str, nodes: list[int], one: int, longest_ns: int) -> None:
        """Cut nodes off from each other for a while."""
        self._world.probe(f"faults.partition_{kind}")
        pairs = self._pairs(kind, nodes, one)
        duration = self._chance.randrange(20 * MILLISECOND_NS, longest_ns)
        self._world.note("world", f"partition {kind} for {duration // MILLISECOND_NS} ms: {pairs}")
        links.cut(pairs, duration)

    def _pairs(self, kind: str, nodes: list[int], one: int) -> list[Pair]:
        every = [(a, b) for a in nodes for b in nodes if a != b]
        if kind == "one":
            return [pair for pair in every if one in pair]
        if kind == "deaf":
            return [pair for pair in every if pair[1] == one]
        if kind == "mute":
            return [pair for pair in every if pair[0] == one]
        if kind == "pair":
            other = self._chance.choice([node for node in nodes if node != one])
            return [(one, other), (other, one)]
        self._chance.shuffle(nodes)
        if kind == "ring":
            at = {node: place for place, node in enumerate(nodes)}
            return [(a, b) for a, b in every if abs(at[a] - at[b]) not in (1, len(nodes) - 1)]
        left = set(nodes[: len(nodes) // 2])
        apart = [(a, b) for a, b in every if (a in left) != (b in left)]
        return apart if kind == "halves" else [pair for pair in apart if nodes[0] not in pair]

    def clog(self, links: Links[Any], nodes: Sequence[int], longest_ns: int) -> None:
        """All messages from one node to another wait for a while."""
        self._world.probe("faults.clogged")
        sender, to = self._chance.sample(nodes, 2)
        links.clog((sender, to), self._chance.randrange(longest_ns))
