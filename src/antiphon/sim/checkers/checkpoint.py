"""The state is a function of the order (I11).

Two checkpoints after the same number have the same digest, whichever life of whichever node made
them: one that restored an older checkpoint and applied the rest is equal to one that never stopped.
"""

from __future__ import annotations

from antiphon.bus.messages import BusMessage, CheckpointReport
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World


class Checkpoints(Checker):
    """Compares the digests that checkpoint servers report."""

    promise = "I11 checkpoint"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._digests: dict[int, bytes] = {}

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, CheckpointReport):
            known = self._digests.setdefault(message.seq, message.digest)
            if known is message.digest:
                self.world.probe("checkpoint.reported")
            elif known != message.digest:
                self.fail(f"node {node} has another state after {message.seq} than was reported before")
