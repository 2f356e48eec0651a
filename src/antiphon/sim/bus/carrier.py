"""Carrier: whatever a node says passes through the codec, also to a machine of the same node, and the
checkers see it on the way.
"""

from __future__ import annotations

from antiphon.bus import codec
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.trace import summary
from antiphon.sim.world import World


class Carrier:
    """Carries what one life of a node says through the codec, and lets the checkers see it."""

    def __init__(
        self, world: World, watch: Watch, config: GroupConfig, node: int, run_id: bytes, disk_id: bytes
    ) -> None:
        self._world = world
        self._watch = watch
        self._node = node
        self._name = f"node {node}"
        self._head = (config.group, config.config_id, node, run_id, disk_id)
        # A message to several is said once: they all get the same bytes.
        self._said: BusMessage | None = None
        self._heard: BusMessage | None = None
        self.disk_id = disk_id

    def carry(self, message: BusMessage) -> BusMessage:
        """The message as whoever hears it decodes it."""
        if message is self._said and self._heard is not None:
            return self._heard
        if self._world.trace.is_on:
            self._world.note(self._name, f"says {summary(message)}")
        self._watch.on_sent(self._node, message)
        _, heard = codec.decode(codec.encode(message, *self._head))
        self._said, self._heard = message, heard
        return heard
