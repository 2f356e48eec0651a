"""Which replica nobody waits for: only one of a group that is whole, and never one that a quantity needs."""

from __future__ import annotations

import pytest

from antiphon.bus.group import GroupConfig
from tests.unit.bus.cluster import Cluster


def calm(config: GroupConfig) -> Cluster:
    cluster = Cluster(config)
    cluster.run_until(lambda: cluster.is_calm)
    # Everybody has said that it keeps up.
    cluster.run(3 * config.presence_ms)
    return cluster


def spares(cluster: Cluster) -> list[int]:
    return [node.node_id for node in cluster.living if node.replica.is_spare(node.clock.now_ns())]


def test_of_three_the_last_that_does_not_lead_is_spare() -> None:
    cluster = calm(GroupConfig.of("main", (1, 2, 3)))
    others = [node for node in (1, 2, 3) if node != cluster.leader.node_id]
    assert spares(cluster) == [max(others)]


def test_of_five_so_many_are_spare_as_may_fail() -> None:
    cluster = calm(GroupConfig.of("main", (1, 2, 3, 4, 5)))
    others = [node for node in (1, 2, 3, 4, 5) if node != cluster.leader.node_id]
    assert spares(cluster) == others[-2:]


@pytest.mark.parametrize("nodes", [(1,), (1, 2)])
def test_who_is_needed_is_not_spare(nodes: tuple[int, ...]) -> None:
    assert spares(calm(GroupConfig.of("main", nodes))) == []


def test_when_all_copies_are_asked_for_nobody_is_spare() -> None:
    assert spares(calm(GroupConfig.of("main", (1, 2, 3), data_quantity=3))) == []


def test_soon_after_another_has_failed_nobody_is_spare_until_it_is_back() -> None:
    cluster = calm(GroupConfig.of("main", (1, 2, 3)))
    (spare,) = spares(cluster)
    (needed,) = {1, 2, 3} - {spare, cluster.leader.node_id}
    cluster.crash(needed)
    cluster.run(4 * cluster.config.presence_ms)
    assert spares(cluster) == []
    cluster.restart(needed)
    cluster.run_until(lambda: spares(cluster) == [spare])
    cluster.crash(cluster.leader.node_id)
    cluster.run(4 * cluster.config.presence_ms)
    assert spares(cluster) == []
