"""Traffic on a cluster of whole nodes (`tests/nodes.py`), and when it has stopped, whether all are equal."""

from __future__ import annotations

from typing import Any

from antiphon.wire.commands import CreateDestination
from tests.nodes import Cluster, stored
from tests.unit.message_manager.channel import Client, of_node

SETTINGS = {"checkpoint_entries": 40, "fetch_entries_max": 16, "checkpoint_piece_bytes": 1_024}


class Traffic:
    """A client that publishes to a queue and a topic through one node, and takes some of it back."""

    def __init__(self, cluster: Cluster, through: int) -> None:
        self.cluster, self.through = cluster, through
        self.client = Client(session=0xA0 + through)
        self.is_on = True
        self.rounds = 0
        self._say(of_node(CreateDestination(kind=1, name="orders", settings="{}")))
        settings = '{"retention_bytes": 20000}'
        self._say(of_node(CreateDestination(kind=2, name="news", settings=settings)))
        self._say(self.client.open())
        self._go_on()

    def _say(self, *commands: bytes, count: int = 1) -> None:
        life = self.cluster.lives.get(self.through)
        if life is not None:
            life.submit(b"".join(commands), count)

    def _go_on(self) -> None:
        """Every 15 ms a few messages; most are acknowledged soon, the oldest never."""
        if not self.is_on:
            return
        self.cluster.world.after(15_000_000, self._go_on)
        life = self.cluster.lives.get(self.through)
        directory = life.manager.state.directory if life is not None else None
        if directory is None or directory.named("topic:news") is None:
            return
        queue, topic = directory.named("queue:orders"), directory.named("topic:news")
        self.rounds += 1
        if self.rounds == 5:
            self._say(self.client.subscribe(topic.id, durable=f"reader{self.through}"))
        bodies = [b"%d.%d." % (self.through, self.rounds) + bytes(200)] * 3
        self._say(self.client.publish(queue.id, bodies), self.client.publish(topic.id, bodies), count=6)
        live = [number for start, stop in queue.live for number in range(start, stop)]
        if len(live) > 40:
            # Checkpoints refer to records that lie far back.
            self._say(self.client.ack(queue.id, *((number, number + 1) for number in live[9:-10])))


def a_busy_cluster(seed: int, **settings: Any) -> tuple[Cluster, list[Traffic]]:
    cluster = Cluster(seed, **{**SETTINGS, **settings})
    assert cluster.run_ms(5_000, lambda: cluster.leader() != 0), "somebody leads"
    return cluster, [Traffic(cluster, 1), Traffic(cluster, 2)]


def other_bases_pass(cluster: Cluster, number: int) -> bool:
    return all(life.replica.base > number for life in cluster.lives.values())


def check_equal(cluster: Cluster, *, alarms: bool = False) -> None:
    """The same state, the same messages on every disk; and nothing to complain of but what is expected."""
    one, *others = cluster.lives.values()
    for other in others:
        assert other.manager.state.digest() == one.manager.state.digest()
        assert stored(other.manager) == stored(one.manager)
    assert alarms or not [alarm for life in cluster.lives.values() for alarm in life.alarms]


def settle(cluster: Cluster, traffic: list[Traffic]) -> None:
    for one in traffic:
        one.is_on = False
    assert cluster.run_ms(30_000, lambda: len(cluster.lives) == 3 and cluster.is_level()), "all are level"
    cluster.run_ms(1_500)
    assert cluster.is_level()
