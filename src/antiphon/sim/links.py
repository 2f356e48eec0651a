"""Links: the network between the nodes, one link for each pair and direction.

A message is lost, arrives once or several times, soon or much later, in order or not. A cut link loses
everything; a clogged link keeps everything back and then delivers it in one burst. A message that was under
way when a cut began still arrives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, World

Pair = tuple[int, int]
"""Sender and receiver."""

Parcel = TypeVar("Parcel")

_REPLAY_NS = 2_000 * MILLISECOND_NS


@dataclass(slots=True)
class LinkHabits:
    """The faults of this run's network."""

    latency_ns: int = 200 * MICROSECOND_NS
    # How often a message takes how many times longer.
    tail_probability: float = 0.0
    tail_factor: int = 50
    drop_probability: float = 0.0
    duplicate_probability: float = 0.0
    # The share of duplicates that come when the first is long forgotten.
    replay_share: float = 0.0
    keeps_order: bool = False

    def heal(self) -> None:
        """No message is lost or late any more."""
        self.drop_probability = self.duplicate_probability = self.tail_probability = 0.0
        self.latency_ns = min(self.latency_ns, MILLISECOND_NS)


class Links(Generic[Parcel]):
    """All links between some nodes."""

    def __init__(self, world: World, habits: LinkHabits, arrive: Callable[[int, Parcel], None]) -> None:
        self.habits = habits
        self._world = world
        self._arrive = arrive
        self._chance: random.Random = world.random("links")
        self._cut: Counter[Pair] = Counter()
        self._clogged: dict[Pair, list[Parcel]] = {}
        self._latest: dict[Pair, int] = {}
        self._healed = 0

    def send(self, sender: int, to: int, event: Parcel) -> None:
        habits, chance, world = self.habits, self._chance, self._world
        pair = (sender, to)
        if self._cut[pair] > 0:
            return
        if habits.drop_probability and chance.random() < habits.drop_probability:
            world.probe("links.dropped")
            return
        if pair in self._clogged:
            self._clogged[pair].append(event)
            return
        self._launch(pair, event, self._latency())
        if habits.duplicate_probability and chance.random() < habits.duplicate_probability:
            world.probe("links.duplicated")
            late = chance.random() < habits.replay_share
            if late:
                world.probe("links.replayed")
            self._launch(pair, event, chance.randrange(_REPLAY_NS) if late else self._latency())

    def _latency(self) -> int:
        habits, chance = self.habits, self._chance
        latency = int(habits.latency_ns * (0.5 + chance.random()))
        if habits.tail_probability and chance.random() < habits.tail_probability:
            latency *= chance.randint(2, habits.tail_factor)
        return latency

    def _launch(self, pair: Pair, event: Parcel, latency_ns: int) -> None:
        if self.habits.keeps_order:
            at = max(self._world.now_ns + latency_ns, self._latest.get(pair, 0) + 1)
            self._latest[pair] = at
            latency_ns = at - self._world.now_ns
        arrive, to = self._arrive, pair[1]
        self._world.after(latency_ns, lambda: arrive(to, event))

    def cut(self, pairs: Iterable[Pair], duration_ns: int) -> None:
        """Lose everything on these links for a while."""
        pairs = tuple(pairs)
        self._cut.update(pairs)
        healed = self._healed

        def mend() -> None:
            if healed == self._healed:
                self._cut.subtract(pairs)

        self._world.after(duration_ns, mend)

    def clog(self, pair: Pair, duration_ns: int) -> None:
        """Keep everything on this link back for a while, then deliver it at once."""
        if pair in self._clogged:
            return
        self._clogged[pair] = []
        self._world.after(duration_ns, lambda: self._unclog(pair))

    def _unclog(self, pair: Pair) -> None:
        for event in self._clogged.pop(pair, ()):
            self._launch(pair, event, self._latency())

    def heal(self) -> None:
        self._healed += 1
        self._cut.clear()
        for pair in list(self._clogged):
            self._unclog(pair)
        self.habits.heal()
