"""The holds workload over many seeds: whoever reads in ranges under a hold misses nothing and gets nothing
late, while clients, client managers and message managers fail.

Replay one run:  antiphon sim holds --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import OF_DAMAGE, OF_DISKS, Seeds

SEEDS = range(1, 41)
MORE_SEEDS = range(1, 121)

pytestmark = pytest.mark.timeout(900)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    *OF_DISKS,
    *OF_DAMAGE,
    "disk.superblock_damaged",
    "checkpoint.written",
    "client.command_resent",
    "client.crashed",
    "clock.stepped_ahead",
    "clock.stepped_back",
    "faults.frozen",
    "holder.fell_silent",
    "holder.released",
    "journal.base_moved",
    "model.acknowledged_and_held",
    "model.acknowledged_what_is_anothers",
    "model.consumed_by_a_hold",
    "model.hold_began",
    "model.hold_expired",
    "model.hold_outdated",
    "model.queue_is_anothers",
    "model.queue_taken",
    "model.read_under_a_hold",
    "model.read_without_a_hold",
    "model.restored_and_compared",
    "node.crashed",
    "recovery.from_checkpoint",
)
# Too rare for the seeds of every day.
RARE = ("node.took_over_a_checkpoint",)


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("holds", SEEDS)


def test_no_promise_is_broken(seeds: Seeds) -> None:
    """I20 after every entry and for every range that is read, and all that the cluster promises."""
    assert not seeds.broken, seeds.broken


def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("holds", MORE_SEEDS).missed(PROBES + RARE) == []
