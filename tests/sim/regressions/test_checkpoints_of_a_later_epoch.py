"""A checkpoint says what is committed, not which epoch's log holds it.

1. A led epoch e and had numbered entries that nobody else held. B and C went on in a later epoch,
   committed others in their place, and made a checkpoint of them.
2. C, whose log was still of epoch e on its disk, took the checkpoint over, and acknowledged its last
   number in epoch e: that is the epoch of my log, and through there I have everything.
3. To A, had it still listened, its own entries would have been committed now: a second order.

Found by: antiphon sim bus --seed 77, with a checkpoint every few entries
"""

from __future__ import annotations

from antiphon.sim.bus.profile import BusProfile
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.bus import BusRun


class CheckpointRun(BusRun):
    """A checkpoint every ten entries, and nodes that miss some of them."""

    def adjust(self, profile: BusProfile) -> None:
        profile.shape = "three"
        profile.checkpoint_entries = 10
        profile.crashes, profile.pauses = 4, 3
        profile.settings.update(suspicion_ms=100, lifetime=1 << 40)


def test_a_checkpoint_of_a_later_epoch_is_not_acknowledged_in_an_earlier_one() -> None:
    taken_over = 0
    for seed in range(1, 61):
        run = CheckpointRun(seed, Trace())
        run.run()
        taken_over += run.world.probes["node.took_over_a_checkpoint"]

    assert taken_over > 3
