"""Carrier: passes every message of a node through the codec and by the checkers, also to the same node."""

from __future__ import annotations

from antiphon.bus import codec
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.trace import summary
from antiphon.sim.world import World


class Carrier:
    def __init__(
        self, world: World, watch: Watch, config: GroupConfig, node: int, run_id: bytes, disk_id: bytes
    ) -> None:
        self._world = world
        self._watch = watch
        self._node = node
        self._name = f"node {node}"
        self._head = (config.group, config.config_id, node, run_id, disk_id)
        # A message to several nodes is coded once: all get the same bytes.
        self._said: BusMessage | None = None
        self._heard: BusMessage | None = None
        self.disk_id = disk_id

    def carry(self, message: BusMessage) -> BusMessage:
        """The message as its receiver decodes it."""
        if message is self._said and self._heard is not None:
            return self._heard
        if self._world.trace.is_on:
            self._world.note(self._name, f"says {summary(message)}")
        self._watch.on_sent(self._node, message)
        _, heard = codec.decode(codec.encode(message, *self._head))
        self._said, self._heard = message, heard
        return heard
