"""The bus workload over many seeds: a group of nodes keeps its promises while everything fails, and
comes to rest once it stops.

Replay one run:  antiphon sim bus --seed 17 --trace
"""

from __future__ import annotations

import pytest

from antiphon.sim.runs import run
from tests.sim.seeds import Seeds, verdict

SEEDS = range(1, 251)
MORE_SEEDS = range(1, 1_001)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    "checkpoint.no_room",
    "checkpoint.piece_read",
    "checkpoint.written",
    "disk.crash_kept_everything",
    "disk.crash_kept_nothing",
    "disk.crash_kept_some",
    "disk.envelopes_missing",
    "disk.full",
    "disk.log_damaged",
    "disk.low",
    "disk.sync_failed",
    "disk.sync_stalled",
    "disk.tight",
    "faults.blackout",
    "faults.change_proposed",
    "faults.clock_leapt",
    "faults.clogged",
    "faults.frozen",
    "faults.held_back",
    "faults.partition_bridge",
    "faults.partition_deaf",
    "faults.partition_halves",
    "faults.partition_mute",
    "faults.partition_one",
    "faults.partition_ring",
    "faults.paused",
    "faults.sequencer_muted",
    "journal.base_moved",
    "journal.rolled_over",
    "journal.written_during_sync",
    "links.dropped",
    "links.duplicated",
    "links.replayed",
    "node.began_anew",
    "node.crashed",
    "node.disk_replaced",
    "node.power_lost_in_a_call",
    "node.reconfigured",
    "node.took_over_a_checkpoint",
    "order.CHECKPOINT_MARK",
    "order.CHECKPOINT_STABLE",
    "order.CONFIG",
    "order.DATA",
    "order.PRIMARY_CLAIM",
    "order.PRODUCER_FENCE",
    "order.PRODUCER_OPEN",
    "order.QUANTITY",
    "order.TICK",
    "producer.confirmed",
    "producer.last_words",
    "producer.said_together",
    "recovery.from_checkpoint",
    *(f"shape.{shape}" for shape in ("one", "three", "witness", "five")),
    *(
        f"unusual.{setting}"
        for setting in ("submit_entries_max", "fetch_entries_max", "window_entries", "lifetime", "silence_ms")
    ),
)
# Too rare for the seeds of every day.
RARE = ("disk.checkpoint_damaged", "disk.envelopes_unreadable", "faults.change_doubled")


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return Seeds("bus", SEEDS)


@pytest.mark.timeout(900)
def test_no_promise_is_broken(seeds: Seeds) -> None:
    """I1–I12 and I14–I18 after every message, record and delivery; then heal, and I17."""
    assert not seeds.broken, seeds.broken


@pytest.mark.timeout(900)
def test_the_seeds_reach_the_rare_branches(seeds: Seeds) -> None:
    assert seeds.missed(PROBES) == []


@pytest.mark.timeout(900)
def test_the_seeds_order_envelopes_through_many_reigns(seeds: Seeds) -> None:
    assert seeds.total("confirmed") > 15 * len(SEEDS)
    assert seeds.total("reigns") > 2 * len(SEEDS)
    assert seeds.total("lives") > 5 * len(SEEDS)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_group_without_faults_confirms_everything(nodes: int) -> None:
    report = run("bus", 1, profile="muted-sequencers", nodes=nodes)

    assert report.is_clean, verdict(report)
    assert report.figures["confirmed"] > 0
    assert report.replay == f"antiphon sim bus --seed 1 --profile muted-sequencers --nodes {nodes} --trace"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_seeds_reach_the_rarest_branches() -> None:
    assert Seeds("bus", MORE_SEEDS).missed(PROBES + RARE) == []
