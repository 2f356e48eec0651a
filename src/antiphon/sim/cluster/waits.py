"""Waits: the waiting times of nodes and clients, drawn for each run, tiny and large.

Only speed may depend on them. The waits have a generator of their own, so that they do not change the rest of
a run; `without=("Waits",)` leaves the usual ones.
"""

from __future__ import annotations

import random

from antiphon.client.core.pace import Pace
from antiphon.sim.cluster.profile import ClusterProfile
from antiphon.sim.world import MILLISECOND_NS

NAME = "Waits"

OF_DOORS: dict[str, tuple[int, ...]] = {
    "request_interval_ms": (5, 50, 200, 1_000),
    "attachment_check_ms": (20, 200, 1_000),
    "acknowledge_delay_ms": (1, 20, 100),
    "acknowledge_bytes": (1, 1_000, 256 << 10),
    "missing_delay_ms": (1, 20),
    "missing_interval_ms": (5, 100),
    "early_bytes_max": (0, 500, 8 << 20),
    "detached_review_ms": (20, 300_000),
    "lookup_repeat_ms": (5, 200),
}
OF_PRIMARIES: dict[str, tuple[int, ...]] = {
    "stream_window_bytes": (1, 3_000, 4 << 20),
    "stream_probe_ms": (2, 50),
    "stream_probe_ms_max": (10, 1_000),
    "deliver_bytes_max": (1, 500, 1 << 20),
    "batches_kept": (1, 16),
}


def draw_waits(chance: random.Random, profile: ClusterProfile) -> None:
    """Draw the waits of a run without a named profile."""
    node = profile.node
    node.door_waits = {name: chance.choice(choices) for name, choices in OF_DOORS.items()}
    node.primary_waits = {name: chance.choice(choices) for name, choices in OF_PRIMARIES.items()}
    registration_wait_ms = chance.choice((0, 2, 20, 300))
    if not profile.is_gentle:
        # In a gentle run a new primary waits for all client managers.
        node.registration_wait_ms = registration_wait_ms
        profile.missed_failovers = chance.choice((0, 0, 1, 2))
    profile.clients.pace = Pace(
        ack_delay_ns=chance.choice((0, 1, 5, 60)) * MILLISECOND_NS,
        ack_bytes=chance.choice((1, 200, 65_536)),
        linger_commands=chance.choice((1, 2, 4, 16)),
        small_bytes=chance.choice((1, 100, 65_536)),
    )
    # Drawn last, so that the draws above stay the same.
    profile.clients.asking_share = chance.choice((0.0, 0.0, 0.4, 1.0))
