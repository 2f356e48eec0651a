"""What the envelopes of a producer that is dead come to."""

from __future__ import annotations

from antiphon.bus.effects import Received
from antiphon.bus.group import GroupConfig
from antiphon.ids import Mid
from tests.stage import data_of
from tests.unit.bus.cluster import Cluster


def of_former_life(cluster: Cluster, pseq: int, *servers: int) -> None:
    """An envelope of node 2's run reaches some data servers, `pseq` places behind its last one."""
    row = cluster.leader.replica._member.ledger.rows[2]
    data = data_of(Mid(2, row.pe, row.last_pseq + pseq), ts=row.last_seq)
    for server in servers:
        cluster.nodes[server].take_now(Received(2, data, cluster.nodes[2].disk_id))


def test_the_run_of_a_former_life_ends_though_the_node_has_nothing_to_send() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3)))
    cluster.submit(2, 3)
    cluster.run_until(lambda: cluster.is_calm)
    of_former_life(cluster, 2, 1, 3)
    cluster.restart(2)
    cluster.run_until(lambda: cluster.nodes[1].replica.unsettled == cluster.nodes[3].replica.unsettled == 0)
    last = cluster.leader.replica.last
    cluster.run(5_000)
    assert cluster.leader.replica.last == last, "nothing waits any more, so no time has to pass"


def test_an_envelope_that_only_the_sequencer_s_node_holds_gets_its_number() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3), silence_ms=60_000))
    cluster.submit(2, 3)
    cluster.run_until(lambda: cluster.has_leader and cluster.is_calm)
    leader = cluster.leader
    assert leader.node_id != 2
    cluster.crash(2)
    of_former_life(cluster, 1, leader.node_id)
    cluster.run_until(lambda: leader.replica.unsettled == 0)
    last = cluster.applied[leader.node_id][-1].mid
    assert last.pid == 2 and last.pseq == 4
