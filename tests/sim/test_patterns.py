"""The patterns workload over many seeds: a subscription by a pattern gets what matches, from the first
message of a topic on, while topics are made and deleted and nodes of both tiers fail.

Replay one run:  antiphon sim patterns --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import Seeds

SEEDS = range(1, 31)
MORE_SEEDS = range(1, 241)

pytestmark = pytest.mark.timeout(900)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    "families.decided",
    "families.published_before_decided",
    "families.topic_deleted",
    "client.session_resumed",
    "faults.door_crashed",
    "model.restored_and_compared",
    "model.subscription_exists",
    "model.subscription_shared",
    "node.crashed",
)
# Too rare for the seeds of every day.
RARE = ("families.ended", "families.void_decision", "families.subscribed_too_late")


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("patterns", SEEDS)


def test_no_promise_is_broken(seeds: Seeds) -> None:
    """I39 besides those of the cluster workload."""
    assert not seeds.broken, seeds.broken


def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("patterns", MORE_SEEDS).missed(PROBES + RARE) == []
