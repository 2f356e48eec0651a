"""ManagerObserver: shows the checkers what the message manager of a node applies and emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.bus import effects as bus
from antiphon.bus.messages import BusMessage, Entry
from antiphon.message_manager.effects import Effect, Propose
from antiphon.message_manager.manager import MessageManager
from antiphon.node import Observer
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.lives import Lives
from antiphon.sim.trace import summary


class ManagerObserver(Observer):
    """Of one life of a node. If `on_emitted` takes every message when it is emitted, the checkers hear when
    those were all; else the runner tells them at the end of the step."""

    def __init__(
        self,
        runner: Lives,
        watch: Watch,
        manager: MessageManager,
        on_emitted: Callable[[BusMessage], None] | None = None,
    ) -> None:
        self._runner = runner
        self._watch = watch
        self._manager = manager
        self._on_emitted = on_emitted

    def before_apply(self, channel: str, entry: Entry, payload: memoryview | None) -> None:
        runner = self._runner
        if runner.world.trace.is_on:
            runner.world.note(runner.name, f"applies {summary(entry)}")
        self._watch.on_applied(runner.node_id, entry, payload)

    def applied(self, channel: str, entry: Entry) -> None:
        self._watch.on_folded(self._runner.node_id, entry, self._manager.state)

    def emitted(self, channel: str, effects: Sequence[Effect]) -> None:
        node, clock = self._runner.node_id, self._runner.clock
        for effect in effects:
            if isinstance(effect, Propose):
                self._watch.on_proposed(node, clock.now_ns(), clock.wall_ms(), effect.command)
            elif self._on_emitted is not None and isinstance(effect, bus.Send | bus.Multicast):
                self._on_emitted(effect.message)
        if self._on_emitted is not None:
            self._watch.on_flushed(node)

    def installed(self, channel: str, n: int) -> None:
        self._runner.world.probe("node.took_over_a_checkpoint")
        self._watch.on_restored(self._runner.node_id, n)
