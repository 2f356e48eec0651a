"""A node that was wiped, or away for long, comes back while the channel runs."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.joining import Phase
from tests.traffic import a_busy_cluster, check_equal, other_bases_pass, settle


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wipes", [True, False])
def test_a_node_joins_while_traffic_flows_and_is_equal_to_the_others(seed: int, wipes: bool) -> None:
    cluster, traffic = a_busy_cluster(seed)
    cluster.run_ms(300)
    # Beyond its log: what it has logged and not applied yet it needs from nobody.
    logged = cluster.lives[3].replica.last
    cluster.stop(3, wipes=wipes)
    assert cluster.run_ms(20_000, lambda: other_bases_pass(cluster, logged)), "the logs have moved on"
    cluster.loss = 0.05 if seed % 2 else 0.0
    gave: list[int] = []
    leader = cluster.leader()

    def note(sender: int, to: int, message: m.BusMessage) -> None:
        if isinstance(message, m.StoredReply) or (isinstance(message, m.CheckpointChunk) and message.data):
            gave.append(sender)

    cluster.on_said = note
    joiner = cluster.start(3)
    rounds = traffic[0].rounds
    assert cluster.run_ms(60_000, lambda: joiner.replica.base > logged and not joiner.replica.is_joining)
    assert traffic[0].rounds > rounds + 10, "the others went on meanwhile"
    if cluster.leader() == leader:
        assert gave and leader not in gave, "the sequencer has enough to do"
    cluster.loss = 0.0
    settle(cluster, traffic)
    check_equal(cluster)
    assert joiner.replica.is_synchronized
    # What it has now is its own: it begins with it, and is level again.
    cluster.stop(3)
    cluster.start(3)
    assert cluster.lives[3].replica.applied >= joiner.replica.base
    settle(cluster, traffic)
    check_equal(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_a_joiner_that_dies_again_and_again_ends_up_equal(seed: int) -> None:
    """Whenever the power goes, the next life begins with the old state or with the new one."""
    cluster, traffic = a_busy_cluster(seed)
    cluster.run_ms(300)
    applied = cluster.lives[3].replica.applied
    cluster.stop(3, wipes=bool(seed % 2))
    assert cluster.run_ms(20_000, lambda: other_bases_pass(cluster, applied))
    for _ in range(8):
        replica = cluster.start(3).replica
        cluster.run_ms(3_000, lambda replica=replica: replica.is_joining or replica.base > applied)
        cluster.run_ms(cluster.chance.randint(0, 60))
        cluster.stop(3)
    cluster.start(3)
    settle(cluster, traffic)
    check_equal(cluster)


PHASES = [Phase.ASKING, Phase.FETCHING, Phase.COPYING, Phase.WRITING, Phase.FOLLOWING]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kept", ["nothing", "everything"])
def test_a_joiner_that_dies_in_the_middle_begins_with_the_old_state_or_the_new_one(
    phase: Phase, kept: str
) -> None:
    cluster, traffic = a_busy_cluster(1)
    cluster.run_ms(300)
    cluster.stop(3)
    before = cluster.start(3).replica.applied
    cluster.stop(3)
    assert cluster.run_ms(20_000, lambda: other_bases_pass(cluster, before))
    joiner = cluster.start(3)
    joiner.disk.habits.styles = (kept,)
    assert cluster.run_ms(10_000, lambda: joiner.replica.join_phase is phase)
    cluster.stop(3)
    again = cluster.start(3)
    assert again.manager.applied == again.replica.applied
    if phase is Phase.FOLLOWING:
        assert before < again.replica.applied <= joiner.manager.applied, "the file decides"
    elif phase is not Phase.WRITING:
        assert again.replica.applied == before
    settle(cluster, traffic)
    check_equal(cluster)
    assert not again.replica.is_joining


def test_what_a_joiner_holds_without_a_number_stays_or_goes_by_the_ledger() -> None:
    cluster, traffic = a_busy_cluster(0)
    cluster.run_ms(300)
    applied = cluster.lives[3].replica.applied
    cluster.stop(3, wipes=True)
    assert cluster.run_ms(20_000, lambda: other_bases_pass(cluster, applied))
    joiner = cluster.start(3)
    cluster.run_ms(60_000, lambda: joiner.replica.base > applied)
    settle(cluster, traffic)
    left = [mid for mid, _ in joiner.journal.payloads.unplaced()]
    assert left == [], f"envelopes that are committed and covered wait for ever: {left[:3]}"
