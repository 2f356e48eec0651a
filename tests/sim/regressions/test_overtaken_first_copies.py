"""The first copy of a message may lie in a client's buffer while the second one is consumed.

1. A consumer of the library was sent a message, which its application had not taken yet. The node lost power.
2. The node came back, and gave the message to another consumer, marked as delivered before. That one's
   application took it.
3. The first consumer found the node again, and its application took the copy in its buffer, before the node
   could say that it belongs to another now. That copy does not say that it comes again: it was the first.

No promise is broken by that: of all copies of a message one at most does not say so. The checker had taken
the first to arrive for the first that was sent.

Found by: antiphon sim node --seed 100172
"""

from __future__ import annotations

import pytest

from antiphon.sim.trace import Trace
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.profile import Profile
from antiphon.sim.world import MILLISECOND_NS


class _OvertakenRun(NodeRun):
    def adjust(self, profile: Profile) -> None:
        profile.safety_ns = 400 * MILLISECOND_NS
        profile.producers, profile.consumers, profile.queues, profile.library_share = 2, 3, 1, 1.0
        profile.crashes, profile.power_cuts, profile.pauses = 0, 6, 4
        clients = profile.clients
        clients.take_pause_ns = 3 * MILLISECOND_NS
        clients.acknowledge_pause_ns = clients.reconnect_ns = 20 * MILLISECOND_NS
        clients.resume_probability, clients.batch_rows_max = 1.0, 1
        profile.node.registration_wait_ms = 5


@pytest.mark.parametrize("seed", range(26, 41))
def test_a_first_copy_that_is_overtaken_breaks_no_promise(seed: int) -> None:
    _OvertakenRun(seed, Trace()).run()
