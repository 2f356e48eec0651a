"""Lives that begin within one second must not give the same ids twice.

1. A node gave out session ids made of the second it started in and a counter.
2. It crashed and was back within that second, or its clock had been set back.
3. It gave the ids of the former life to new sessions. The channel knew those, and the node stopped:
   "an id was given twice".

Found by: antiphon sim node --seed 4
"""

from __future__ import annotations

import pytest

from antiphon.sim.trace import Trace
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.profile import Profile
from antiphon.sim.world import MILLISECOND_NS


class _ManyLivesRun(NodeRun):
    def adjust(self, profile: Profile) -> None:
        profile.safety_ns = 300 * MILLISECOND_NS
        profile.crashes, profile.client_crashes, profile.clock_jumps = 6, 6, 6
        profile.clients.resume_probability = 0.5


@pytest.mark.parametrize("seed", range(1, 6))
def test_lives_within_one_second_give_different_ids(seed: int) -> None:
    run = _ManyLivesRun(seed, Trace())

    run.run()

    assert run.node.life > 3
