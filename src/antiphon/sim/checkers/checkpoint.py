"""The state is a function of the order (I11).

Two checkpoints after the same number have the same digest, whichever life of whichever node made
them: one that restored an older checkpoint and applied the rest is equal to one that never stopped. And
what the order calls stable is a checkpoint that was reported, with that digest, by those it names.
"""

from __future__ import annotations

from antiphon.bus.entries import StableDetail
from antiphon.bus.messages import BusMessage, CheckpointReport, Entry, EntryKind
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World


class Checkpoints(Checker):
    """Compares the digests that checkpoint servers report."""

    promise = "I11 checkpoint"
    hears = (CheckpointReport,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._digests: dict[int, bytes] = {}
        self._holders: dict[int, set[int]] = {}

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, CheckpointReport):
            known = self._digests.setdefault(message.seq, message.digest)
            self._holders.setdefault(message.seq, set()).add(node)
            if known is message.digest:
                self.world.probe("checkpoint.reported")
            elif known != message.digest:
                self.fail(f"node {node} has another state after {message.seq} than was reported before")

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.kind is not EntryKind.CHECKPOINT_STABLE:
            return
        stable = StableDetail.decode(entry.detail)
        if self._digests.get(stable.n) != stable.digest:
            self.fail(f"the checkpoint at {stable.n} is called stable with a digest that nobody reported")
        if not self._holders[stable.n].issuperset(stable.holders):
            self.fail(f"the checkpoint at {stable.n} is called stable at nodes that never reported it")
