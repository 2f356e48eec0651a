"""Strikes: a node or a client dies or sleeps at a step of a transaction.

A step is a command of a transaction that a client manager has just sent, or that a channel has just applied.
The victim is drawn: the coordinating client manager, the primary of the channel, a node of another channel, a
client.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon.bus.messages import BusMessage, Data, Entry
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.clients.process import ClientProcess
from antiphon.sim.runner import SimNode, Town
from antiphon.sim.world import MILLISECOND_NS, World
from antiphon.wire.commands import CommandKind, iterate_commands

_STEPS = frozenset(
    int(kind)
    for kind in (
        CommandKind.TX_COMMIT,
        CommandKind.TX_PREPARE,
        CommandKind.TX_DECIDE,
        CommandKind.TX_FINISH,
        CommandKind.TX_RESOLVE,
        CommandKind.TX_FORGET,
    )
)
_SOON_NS = 2 * MILLISECOND_NS
_SLEEP_NS_MAX = 400 * MILLISECOND_NS


class Strikes:
    """Decides at each step whether to strike, and the victim."""

    def __init__(self, world: World, count: int, probability: float) -> None:
        self.left = count
        self.town: Town | None = None
        self.clients: Sequence[ClientProcess] = ()
        self._world = world
        self._probability = probability
        self._chance: random.Random = world.random("strikes")

    def end(self) -> None:
        self.left = 0

    def step(self, moment: str, channel: str, kind: int, door: int) -> None:
        if not self.left or self._chance.random() >= self._probability:
            return
        self.left -= 1
        self._world.probe(f"strike.{moment}.{CommandKind(kind).name}")
        # Never in the middle of a node's step.
        delay = 0 if self._chance.random() < 0.5 else self._chance.randrange(_SOON_NS)
        self._world.after(delay, lambda: self._strike(channel, door))

    def _strike(self, channel: str, door: int) -> None:
        town, chance = self.town, self._chance
        assert town is not None, "nobody is there to be struck"
        whom = chance.choice(("door", "door", "primary", "other", "client", "link"))
        self._world.probe(f"strike.whom.{whom}")
        if whom == "client":
            chance.choice(self.clients).crash()
        elif whom == "link":
            one = chance.choice([runner.node_id for runner in town.managers_of(channel)])
            town.links.cut([(one, door), (door, one)], chance.randrange(_SLEEP_NS_MAX))
        else:
            runner = self._runner(whom, channel, door)
            if runner is not None and chance.random() < 0.6:
                runner.crash()
            elif runner is not None:
                runner.sleep(chance.randrange(_SLEEP_NS_MAX))

    def _runner(self, whom: str, channel: str, door: int) -> SimNode | None:
        assert self.town is not None, "nobody is there to be struck"
        if whom == "door":
            return self.town.doors.get(door)
        if whom == "other":
            channel = self._chance.choice(list(self.town.quarters))
        return self.town.leader(channel)


class StepWatch(Checker):
    """Sees the steps of transactions in one channel."""

    hears = (Data,)

    def __init__(self, world: World, channel: str, strikes: Strikes) -> None:
        super().__init__(world)
        self._channel = channel
        self._strikes = strikes
        self._applied = 0

    def on_sent(self, node: int, message: BusMessage) -> None:
        if self._strikes.left and isinstance(message, Data):
            self._look("said", node, message.payload)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if self._strikes.left and payload is not None and entry.last > self._applied:
            self._applied = entry.last
            self._look("applied", entry.mid.pid, payload)

    def _look(self, moment: str, door: int, payload: bytes | memoryview) -> None:
        for header, _, _ in iterate_commands(payload):
            if header.kind in _STEPS:
                self._strikes.step(moment, self._channel, header.kind, door)
