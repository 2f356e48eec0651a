"""The cluster workload over many seeds: clients, client managers and message managers together keep what
clients are promised while everything fails, and come to rest once it stops.

Replay one run:  antiphon sim cluster --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import OF_DAMAGE, OF_DISKS, Seeds

SEEDS = range(1, 121)
MORE_SEEDS = range(1, 721)

pytestmark = pytest.mark.timeout(900)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    *OF_DISKS,
    *OF_DAMAGE,
    "disk.superblock_damaged",
    "disk.checkpoint_damaged",
    "checkpoint.written",
    "client.command_resent",
    "client.consumer_closed",
    "client.crashed",
    "client.created_in_bulk",
    "client.impatient",
    "client.left_uncertain",
    "client.moved",
    "client.outcome.DUPLICATE",
    "client.outcome.EXISTS",
    "client.outcome.SESSION_UNKNOWN",
    "client.returned",
    "client.session_resumed",
    "clock.stepped_ahead",
    "clock.stepped_back",
    "disk.crash_kept_everything",
    "disk.crash_kept_nothing",
    "disk.crash_kept_some",
    "disk.sync_stalled",
    "faults.blackout",
    "faults.clogged",
    "faults.door_crashed",
    "faults.door_slept",
    "faults.frozen",
    "faults.left_a_sleeper",
    "faults.partition_deaf",
    "faults.partition_halves",
    "faults.partition_mute",
    "faults.partition_one",
    "faults.partition_pair",
    "faults.slept",
    "journal.base_moved",
    "journal.rolled_over",
    "journal.segment_recycled",
    "library.came_back",
    "library.command_resent",
    "links.dropped",
    "links.duplicated",
    "links.replayed",
    "model.consumer_came_back",
    "model.duplicate_command",
    "model.page_shown",
    "model.session_expired",
    "model.stale_command",
    "model.subscription_exists",
    "model.subscription_shared",
    "model.subscription_sought",
    "network.connection_broken",
    "node.crashed",
    "node.power_lost_in_a_call",
    "recovery.from_checkpoint",
    *(f"shape.{shape}" for shape in ("one", "three", "witness")),
)
# Too rare for the seeds of every day.
RARE = (
    "checkpoint.piece_read",
    "client.outcome.ACK_LOST",
    "client.unsubscribed",
    "disk.envelopes_unreadable",
    "disk.sync_of_worker_failed",
    "journal.record_mended",
    "model.handed_out_again",
    "model.subscription_ended",
    "node.took_over_a_checkpoint",
)


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("cluster", SEEDS)


def test_no_promise_is_broken(seeds: Seeds) -> None:
    """I1–I5, I11, I13, I14 and I19 at every word, entry and delivery; then heal, drain, judge the history."""
    assert not seeds.broken, seeds.broken


def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


def test_the_seeds_move_messages_through_failures(seeds: Seeds) -> None:
    assert seeds.total("confirmed") > 35 * len(SEEDS)
    assert seeds.total("lives") > 6 * len(SEEDS)
    # Some messages were stored although their producer never learned it, and some came twice.
    assert seeds.total("recovered") > len(SEEDS) // 2
    assert seeds.total("redelivered") > len(SEEDS) // 3


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("cluster", MORE_SEEDS).missed(PROBES + RARE) == []
