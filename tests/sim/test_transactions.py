"""The transactions workload over many seeds: money moves between accounts of several channels, wholly or not
at all, while clients and nodes die at every step.

Replay one run:  antiphon sim transactions --seed 17 --trace
"""

from __future__ import annotations

import pytest

from tests.sim.seeds import OF_DAMAGE, OF_DISKS, Seeds

SEEDS = range(1, 101)
MORE_SEEDS = range(1, 201)

pytestmark = pytest.mark.timeout(900)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    # Transactions seldom write so much within a run that a full disk stops the order.
    *[one for one in OF_DISKS if one != "disk.full"],
    *OF_DAMAGE,
    "disk.newest_checkpoint_damaged",
    "bank.collected",
    "bank.copies.1",
    "bank.copies.2",
    "bank.decided.False",
    "bank.decided.True",
    "bank.page_shown",
    "bank.told.COMMITTED",
    "bank.told.COMMITTED_BEFORE",
    "bank.told.ROLLED_BACK",
    "checkpoint.written",
    "client.command_resent",
    "client.crashed",
    "client.created_in_bulk",
    "client.impatient",
    "client.left_uncertain",
    "client.moved",
    "client.outcome.DUPLICATE",
    "client.outcome.SESSION_UNKNOWN",
    "client.session_replaced",
    "client.session_resumed",
    "client.spanning",
    "clock.stepped_ahead",
    "clock.stepped_back",
    "faults.blackout",
    "faults.door_crashed",
    "faults.door_slept",
    "faults.frozen",
    "faults.left_a_sleeper",
    "faults.partition_halves",
    "faults.partition_one",
    "faults.slept",
    "journal.base_moved",
    "journal.record_relocated",
    "ledger.consumed_of_subscription",
    "ledger.checkpoint_with.open",
    "ledger.checkpoint_with.prepared",
    "ledger.checkpoint_with.staged",
    "ledger.decide.DUPLICATE",
    "ledger.finished_before",
    "ledger.prepared",
    "ledger.restored_with.decisions",
    "ledger.restored_with.open",
    "ledger.restored_with.prepared",
    "ledger.restored_with.staged",
    "library.came_back",
    "trader.closed_a_consumer",
    "trader.closed_an_empty_consumer",
    "trader.found_its_subscription",
    "trader.rolled_back_on_purpose",
    "trader.told.COMMITTED",
    "trader.told.ROLLED_BACK",
    "links.duplicated",
    "links.replayed",
    "network.connection_broken",
    "node.power_lost_in_a_call",
    "recovery.from_checkpoint",
    "stager.asked",
    "stager.died_in_commit",
    "stager.dropped",
    "rude_trader.asked",
    "rude_trader.consumer_came_back",
    "rude_trader.died_in_commit",
    "rude_trader.left_its_consumers",
    "rude_trader.left_uncertain",
    "rude_trader.rolled_back_on_purpose",
    *(f"shape.{shape}" for shape in ("one", "three", "witness")),
    "strike.applied.TX_FINISH",
    "strike.applied.TX_PREPARE",
    "strike.said.TX_DECIDE",
    "strike.said.TX_FINISH",
    "strike.said.TX_PREPARE",
    *(f"strike.whom.{whom}" for whom in ("door", "primary", "other", "client", "link")),
)
# Too rare for the seeds of every day.
RARE = (
    "library.outcome.TX_ROLLED_BACK",
    "ledger.decide.SESSION_UNKNOWN",
    "ledger.decide.STALE",
    "trader.died_in_commit",
    "trader.doomed",
    "node.took_over_a_checkpoint",
    "rude_trader.died_before_commit",
    "library.lost_to_others",
    "rude_trader.went_on",
    "strike.applied.TX_COMMIT",
    "strike.applied.TX_DECIDE",
    "strike.applied.TX_FORGET",
    "strike.applied.TX_RESOLVE",
    "strike.said.TX_COMMIT",
    "strike.said.TX_FORGET",
    "strike.said.TX_RESOLVE",
)


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("transactions", SEEDS)


def test_no_promise_is_broken(seeds: Seeds) -> None:
    """All or nothing, truth, no dirty read, at every step; then heal: no doubt, no money lost."""
    assert not seeds.broken, seeds.broken


def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


def test_the_seeds_move_money_across_channels(seeds: Seeds) -> None:
    assert seeds.total("committed") > 10 * len(SEEDS)
    assert seeds.total("across") > 2 * len(SEEDS)
    # Some transactions came to nothing, and of some nobody was ever told.
    assert seeds.total("transactions") > seeds.total("committed") + len(SEEDS)
    assert seeds.total("transactions") > seeds.total("told") + len(SEEDS) // 2
    assert seeds.total("versions") > len(SEEDS)
    assert seeds.total("to topics") > len(SEEDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("transactions", MORE_SEEDS).missed(PROBES + RARE) == []
