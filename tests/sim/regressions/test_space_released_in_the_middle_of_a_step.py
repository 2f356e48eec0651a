"""Copying live records takes numbers of the journal, and must wait for those already given out.

1. In one step a node moved its base, which frees space, and wrote a record behind it.
2. The driver freed the space at once: it copied what was still live in a nearly empty segment, and the
   copies took the next numbers of the journal.
3. Then came the record of the same step, with the lower number it had got before: "record 108 was
   appended after record 109", and the node stopped.

Found by: antiphon sim node --seed 1
"""

from __future__ import annotations

from antiphon.sim.trace import Trace
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.profile import Profile


class _MovingRun(NodeRun):
    def adjust(self, profile: Profile) -> None:
        profile.node.checkpoint_entries = 10
        profile.clients.acknowledge_pause_ns *= 4


def test_records_keep_their_order_while_space_is_released() -> None:
    relocated = 0
    for seed in range(1, 11):
        run = _MovingRun(seed, Trace())
        run.run()
        relocated += run.world.probes["journal.record_relocated"]

    assert relocated > 20
