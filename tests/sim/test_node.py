"""The node workload over many seeds: safety while everything fails, liveness once it stops.

Replay one run:  antiphon sim node --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import OF_DISKS, Seeds

SEEDS = range(1, 91)
MORE_SEEDS = range(1, 301)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    *OF_DISKS,
    "disk.newest_checkpoint_damaged",
    "bus.data_late",
    "bus.data_lost",
    "bus.data_twice",
    "bus.lost.CommitAcknowledge",
    "bus.lost.CommitSubmit",
    "bus.lost.DataReport",
    "checkpoint.dropped",
    "checkpoint.reported",
    "client.command_resent",
    "client.consumer_closed",
    "client.crashed",
    "client.left_uncertain",
    "client.moved",
    "client.outcome.DUPLICATE",
    "client.outcome.SESSION_UNKNOWN",
    "client.returned",
    "client.session_resumed",
    "clock.stepped_ahead",
    "clock.stepped_back",
    "disk.crash_kept_everything",
    "disk.crash_kept_nothing",
    "disk.crash_kept_some",
    "disk.directory_in_doubt",
    "disk.pages_torn",
    "disk.sync_stalled",
    "faults.frozen",
    "journal.base_moved",
    "journal.record_relocated",
    "journal.rolled_over",
    "journal.segment_recycled",
    "journal.segments_freed",
    "journal.written_during_sync",
    "library.left_uncertain",
    "model.duplicate_command",
    "model.session_expired",
    "network.connection_broken",
    "network.frame_cut",
    "network.reading_paused",
    "node.crashed",
    "node.paused",
    "node.power_lost_in_a_call",
    "node.stopped_in_order",
    "recovery.after_clean_end",
    "recovery.from_checkpoint",
    "recovery.repaired",
    "recovery.torn_tail_cut",
)
# Too rare for the seeds of every day.
RARE = (
    "bus.lost.Commit",
    "bus.lost.SealOk",
    "client.outcome.ACK_LOST",
    "network.write_blocked",
    "node.power_lost_while_starting",
)


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("node", SEEDS)


@pytest.mark.timeout(600)
def test_no_promise_is_broken(seeds: Seeds) -> None:
    """I1–I5, I8, I11, I13, I15 after every step; then heal, drain the queues, and judge the history."""
    assert not seeds.broken, seeds.broken


@pytest.mark.timeout(600)
def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


@pytest.mark.timeout(600)
def test_the_seeds_move_messages(seeds: Seeds) -> None:
    assert seeds.total("confirmed") > 50 * len(SEEDS)
    # Some messages were stored although their producer never learned it, and some came twice.
    assert seeds.total("recovered") > len(SEEDS)
    assert seeds.total("redelivered") > len(SEEDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("node", MORE_SEEDS).missed(PROBES + RARE) == []
