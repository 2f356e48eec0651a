"""Consumers that drained queues without a message, and a subscriber whose message never left the primary.

1. The window of a client manager was one byte, as small as it can be: one unacknowledged number filled it.
2. Its consumers asked for one message at a time. The answers that there is none do not wait for room, but
   took room like deliveries. Each answer was taken after a while, and then its consumer asked once more.
3. So there was always an unacknowledged answer, and the subscriber waited for room behind it for ever.
4. Answers take no room now.

The steps behind it: tests/unit/message_manager/delivery/test_streams.py
Found by: antiphon sim holds --seed 203000201, and --seed 203000957
"""

from __future__ import annotations

from antiphon.sim.cluster.profile import ClusterProfile
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.cluster import ClusterRun


class _Asking(ClusterRun):
    """Everybody asks for one message at a time, and a number that came too early is asked for late."""

    def adjust(self, profile: ClusterProfile) -> None:
        profile.node.primary_waits["stream_window_bytes"] = 1
        profile.node.door_waits |= {"early_bytes_max": 0, "missing_delay_ms": 100}
        profile.clients.asking_share = 1.0
        profile.topics, profile.subscribers = 1, 3


def test_a_subscriber_gets_its_messages_while_others_ask_empty_queues() -> None:
    _Asking(27, Trace()).run()
