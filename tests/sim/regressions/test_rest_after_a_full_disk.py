"""A checkpoint that waited for room says nothing about how long a checkpoint takes to write.

1. The disk of a node was full. A checkpoint was marked, and could not be written for a second.
2. When there was room, the checkpoint became stable. The sequencer took that second for the time of writing,
   and marked none for sixteen seconds, though the journal held segments that the next ones would free.
3. After an hour without room it would have been sixteen hours.

Found by: antiphon sim transactions --seed 202000369
"""

from __future__ import annotations

from antiphon.sim.trace import Trace
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.profile import Profile
from antiphon.sim.world import SECOND_NS


class FullDiskRun(NodeRun):
    """The disk is full for most of act one, in one life of the node."""

    def adjust(self, profile: Profile) -> None:
        profile.safety_ns = 4 * SECOND_NS
        profile.node.checkpoint_entries = 40
        profile.crashes = profile.power_cuts = 0

    def _begin(self) -> None:
        super()._begin()
        self.world.after(SECOND_NS // 5, self._fill)

    def _fill(self) -> None:
        self.node.disk.capacity = self.node.disk.bytes_used


def test_a_journal_comes_to_rest_soon_after_its_disk_was_full() -> None:
    waited = 0
    for seed in range(1, 11):
        run = FullDiskRun(seed, Trace())
        run.run()
        waited += run.world.probes["checkpoint.no_room"]

    assert waited > 10
