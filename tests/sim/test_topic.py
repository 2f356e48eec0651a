"""The topic workload over many seeds: safety while everything fails, liveness once it stops.

Replay one run:  antiphon sim topic --seed 17 --trace
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from antiphon.sim.runs import Report, run

SEEDS = range(1, 201)

# What must have happened somewhere in these seeds, or they prove less than they seem to.
PROBES = (
    "client.consumer_closed",
    "client.crashed",
    "client.failed.subscription.in_use",
    "client.moved",
    "client.outcome.DUPLICATE",
    "client.outcome.EXISTS",
    "client.returned",
    "client.session_resumed",
    "client.unsubscribed",
    "journal.record_relocated",
    "journal.segments_freed",
    "model.duplicate_command",
    "model.session_expired",
    "model.subscription_ended",
    "model.subscription_exists",
    "network.connection_broken",
    "node.crashed",
    "node.power_lost_in_a_call",
    "recovery.from_checkpoint",
)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    reports = []
    for seed in SEEDS:
        reports.append(run("topic", seed))
        gc.collect(0)
    return reports


@pytest.mark.timeout(600)
def test_no_promise_is_broken_in_200_seeds(reports: list[Report]) -> None:
    broken = [f"{report.violation}\n    {report.replay}" for report in reports if not report.is_clean]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.timeout(600)
def test_the_seeds_reach_the_rare_branches(reports: list[Report]) -> None:
    hit: Counter[str] = Counter()
    for report in reports:
        hit.update(report.probes)
    assert [name for name in PROBES if not hit[name]] == []


@pytest.mark.timeout(600)
def test_the_seeds_move_messages(reports: list[Report]) -> None:
    figures: Counter[str] = Counter()
    for report in reports:
        figures.update(report.figures)
    assert figures["confirmed"] > 50 * len(SEEDS)
    assert figures["received"] > figures["confirmed"], "a message reaches every subscriber"
    assert figures["subscriptions"] > len(SEEDS)
    assert figures["redelivered"] > len(SEEDS)


@pytest.mark.long
def test_no_promise_is_broken_in_five_thousand_seeds() -> None:
    for seed in range(100_000, 105_000):
        report = run("topic", seed)
        gc.collect(0)
        assert report.is_clean, f"{report.violation}\n    {report.replay}"
