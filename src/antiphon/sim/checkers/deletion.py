"""What is deleted is needed by nobody (I12).

-  payloads and entries up to a number go only when a checkpoint at or behind it is stable, and the
   entry that says so is committed
-  an envelope without a number goes only when it can never get one: it is not in the order, and its
   run is over or the order has passed ts + L
"""

from __future__ import annotations

from antiphon.bus.entries import StableDetail
from antiphon.bus.messages import Entry, EntryKind
from antiphon.ids import Mid
from antiphon.sim.checkers.committed import Committed
from antiphon.sim.checkers.producers import Failures
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World


class Deletions(Checker):
    """Watches the base of every log, and what is given up."""

    promise = "I12 deletion"

    def __init__(
        self, world: World, disks: WriteBeforeSend, committed: Committed, failures: Failures
    ) -> None:
        super().__init__(world)
        self._disks = disks
        self._committed = committed
        self._failures = failures
        committed.followers.append(self._on_committed)
        self._stable = 0
        self._bases: dict[int, int] = {}
        self._damaged: set[int] = set()

    def _on_committed(self, entry: Entry) -> None:
        if entry.kind is EntryKind.CHECKPOINT_STABLE:
            self._stable = max(self._stable, StableDetail.decode(entry.detail).n)

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._bases[node] = found.base
        self.on_released(node, found.base)

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_durable(self, node: int, index: int) -> None:
        base = self._disks.images[node].base
        if base != self._bases[node]:
            self._bases[node] = base
            self.on_released(node, base)

    def on_released(self, node: int, base: int) -> None:
        if base > self._stable:
            self.fail(
                f"node {node} gives up all through {base}, the last stable checkpoint is {self._stable}"
            )

    def on_restored(self, node: int, n: int) -> None:
        if n > self._stable:
            self.fail(f"node {node} took over the checkpoint at {n}, the last stable one is {self._stable}")

    def on_discarded(self, node: int, mid: Mid) -> None:
        first = self._committed.place_of.get(mid)
        if first is None:
            if not self._failures.is_hopeless(mid):
                self.fail(f"node {node} gives up {tuple(mid)}, which may still get a number")
        elif self._committed.log[first].last > self._stable and node not in self._damaged:
            # On a damaged disk it is a copy that cannot be read, and another holder has it.
            self.fail(f"node {node} gives up {tuple(mid)}, and no stable checkpoint covers number {first}")
