"""ManagerObserver: shows the checkers the entries and messages of a node's message manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.bus import effects as bus
from antiphon.bus.messages import BusMessage, Entry
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.manager import MessageManager
from antiphon.node import Observer
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.trace import summary
from antiphon.sim.world import NodeClock, World


class ManagerObserver(Observer):
    """The observer of one life. `on_emitted` takes every emitted message; `on_flushed` tells the checkers
    that those were all."""

    def __init__(
        self,
        world: World,
        node: int,
        clock: NodeClock,
        watch: Watch,
        manager: MessageManager,
        on_emitted: Callable[[BusMessage], None],
    ) -> None:
        self._world = world
        self._node = node
        self._clock = clock
        self._watch = watch
        self._manager = manager
        self._on_emitted = on_emitted

    def before_apply(self, channel: str, entry: Entry, payload: memoryview | None) -> None:
        if self._world.trace.is_on:
            self._world.note(f"node {self._node}", f"applies {summary(entry)}")
        self._watch.on_applied(self._node, entry, payload)

    def applied(self, channel: str, entry: Entry) -> None:
        self._watch.on_folded(self._node, entry, self._manager.state)

    def emitted(self, channel: str, effects: Sequence[Effect]) -> None:
        node, clock = self._node, self._clock
        for effect in effects:
            if isinstance(effect, Propose):
                self._watch.on_proposed(node, clock.now_ns(), clock.wall_ms(), effect.command)
            elif isinstance(effect, bus.Send | bus.Multicast):
                self._on_emitted(effect.message)
        self._watch.on_flushed(node)

    def installed(self, channel: str, n: int) -> None:
        self._world.probe("node.took_over_a_checkpoint")
        self._watch.on_restored(self._node, n)
