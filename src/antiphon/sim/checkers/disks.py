"""A node keeps its disk, whatever its software cannot read.

What one node cannot read because of a fault of the software no other node can: a disk that is put aside for
it is the first of all. Only damage of superblock or order takes a disk out of use; the runs that this checker
watches have none.
"""

from __future__ import annotations

from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World


class SameDisks(Checker):
    """Knows with which disk each node began first."""

    promise = "I24 disks"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._disk_of: dict[int, bytes] = {}

    def on_replaced(self, node: int) -> None:
        self._disk_of.pop(node, None)

    def on_opened(self, node: int, disk_id: bytes, aside: int) -> None:
        known = self._disk_of.setdefault(node, disk_id)
        if disk_id != known:
            self.fail(f"node {node} gave up its disk {known.hex()[:8]}, which was whole")
        if aside:
            self.fail(f"node {node} put {aside} files of a whole disk aside")

    def on_refused(self, node: int, is_changed: bool) -> None:
        if is_changed:
            self.fail(f"node {node} refused to start and changed its disk all the same")
