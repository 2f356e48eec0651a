"""The topic workload over many seeds: safety while everything fails, liveness once it stops.

Replay one run:  antiphon sim topic --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import OF_DISKS, Seeds

SEEDS = range(1, 61)
MORE_SEEDS = range(1, 201)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    *OF_DISKS,
    "disk.newest_checkpoint_damaged",
    "client.consumer_closed",
    "client.crashed",
    "client.moved",
    "client.outcome.DUPLICATE",
    "client.outcome.EXISTS",
    "client.returned",
    "client.session_resumed",
    "client.unsubscribed",
    "clock.stepped_ahead",
    "clock.stepped_back",
    "faults.frozen",
    "journal.record_relocated",
    "journal.segments_freed",
    "model.duplicate_command",
    "model.session_expired",
    "model.subscription_ended",
    "model.subscription_exists",
    "model.subscription_shared",
    "network.connection_broken",
    "node.crashed",
    "node.power_lost_in_a_call",
    "recovery.from_checkpoint",
)
# Too rare for the seeds of every day.
RARE = ("client.failed.subscription.in_use",)


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("topic", SEEDS)


@pytest.mark.timeout(600)
def test_no_promise_is_broken(seeds: Seeds) -> None:
    assert not seeds.broken, seeds.broken


@pytest.mark.timeout(600)
def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


@pytest.mark.timeout(600)
def test_the_seeds_move_messages(seeds: Seeds) -> None:
    assert seeds.total("confirmed") > 50 * len(SEEDS)
    assert seeds.total("received") > seeds.total("confirmed"), "a message reaches every subscriber"
    assert seeds.total("subscriptions") > len(SEEDS)
    assert seeds.total("redelivered") > len(SEEDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("topic", MORE_SEEDS).missed(PROBES + RARE) == []
