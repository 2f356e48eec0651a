"""A channel at rest: how often its nodes wake when nothing is going on, in invented time.

The wake-ups of the transport are looked at in `tests/unit/transport/test_link.py`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import Effect, Event
from antiphon.bus.group import GroupConfig
from antiphon.bus.replica import Replica
from tests.unit.bus.cluster import Cluster

WAKE_UPS_MAX = 40
"""In a second."""

# Three message managers, and a node without a role, as a client manager is one for the others.
ROLES = dict.fromkeys(("commit_servers", "data_servers", "checkpoint_servers", "candidates"), (1, 2, 3))
GROUP = GroupConfig.of("main", (1, 2, 3, 4), commit_quantity=2, seal_quantity=2, **ROLES)


def calm() -> Cluster:
    cluster = Cluster(GROUP)
    cluster.run_until(lambda: cluster.is_calm)
    cluster.run(2_000)
    return cluster


def test_a_node_at_rest_wakes_at_most_forty_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = calm()
    woken: dict[int, set[int]] = defaultdict(set)
    step = Replica.step

    def noted(self: Replica, now_ns: int, events: list[Event]) -> list[Effect]:
        woken[self.node].add(cluster.world.now_ns)
        return step(self, now_ns, events)

    monkeypatch.setattr(Replica, "step", noted)
    cluster.run(10_000)
    assert sorted(woken) == [1, 2, 3, 4]
    for node, times in woken.items():
        assert len(times) <= 10 * WAKE_UPS_MAX, f"node {node}"


def test_at_rest_nothing_is_said_but_heartbeats_their_answers_and_presences() -> None:
    cluster = calm()
    cluster.sent.clear()
    cluster.run(10_000)
    kinds = {type(message) for _, _, message in cluster.sent}
    assert kinds == {m.Heartbeat, m.HeartbeatAck, m.Presence}


def test_the_silence_of_a_sequencer_at_rest_is_noticed_as_soon_as_ever() -> None:
    cluster = calm()
    config = cluster.config
    leader = cluster.leader.node_id
    cluster.crash(leader)
    limit_ms = config.suspicion_ms + config.rank_delay_ms + config.suspicion_spread_ms
    cluster.run_until(lambda: cluster.has_leader, limit_ms + 50)
    assert cluster.leader.node_id != leader


@pytest.mark.parametrize("lost", [1, 2])
def test_two_lost_heartbeats_in_a_row_are_no_silence(lost: int) -> None:
    """Whatever the moment at which they are lost."""
    cluster = calm()
    leader = cluster.leader.node_id
    epoch = cluster.leader.replica.epoch
    links, asked = cluster._hall.links, len(cluster.said(m.PreSeal))
    for _ in range(20):
        beats = 0
        send = links.send

        def lossy(sender: int, to: int, event: object, send: object = send) -> None:
            nonlocal beats
            is_beat = isinstance(event.message, m.Heartbeat)  # type: ignore[attr-defined]
            beats += is_beat and to == max({1, 2, 3} - {leader})
            if not is_beat or beats > lost:
                send(sender, to, event)  # type: ignore[operator]

        links.send = lossy  # type: ignore[method-assign, assignment]
        cluster.run(730)
        links.send = send  # type: ignore[method-assign]
        cluster.run(70)
    assert cluster.leader.node_id == leader and cluster.leader.replica.epoch == epoch
    assert len(cluster.said(m.PreSeal)) == asked, "nobody suspects it"
