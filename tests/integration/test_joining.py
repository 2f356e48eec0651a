"""A node that was wiped, or away for long, comes back while the channel runs."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.joining import Phase
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


def a_busy_cluster(seed: int) -> tuple[Cluster, list[Traffic]]:
    cluster = Cluster(seed, **SETTINGS)
    assert cluster.run_ms(5_000, lambda: cluster.leader() != 0), "somebody leads"
    return cluster, [Traffic(cluster, 1), Traffic(cluster, 2)]


def other_bases_pass(cluster: Cluster, number: int) -> bool:
    return all(life.replica.base > number for life in cluster.lives.values())


def check_equal(cluster: Cluster) -> None:
    one, *others = cluster.lives.values()
    for other in others:
        assert other.manager.state.digest() == one.manager.state.digest()
        assert stored(other.manager) == stored(one.manager)
    assert not [alarm for life in cluster.lives.values() for alarm in life.alarms]


def settle(cluster: Cluster, traffic: list[Traffic]) -> None:
    for one in traffic:
        one.is_on = False
    assert cluster.run_ms(30_000, lambda: len(cluster.lives) == 3 and cluster.is_level()), "all are level"
    cluster.run_ms(1_500)
    assert cluster.is_level()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wipes", [True, False])
def test_a_node_joins_while_traffic_flows_and_is_equal_to_the_others(seed: int, wipes: bool) -> None:
    cluster, traffic = a_busy_cluster(seed)
    cluster.run_ms(300)
    applied = cluster.lives[3].replica.applied
    cluster.stop(3, wipes=wipes)
    assert cluster.run_ms(20_000, lambda: other_bases_pass(cluster, applied)), "the logs have moved on"
    cluster.loss = 0.05 if seed % 2 else 0.0
    gave: list[int] = []
    leader = cluster.leader()

    def note(sender: int, to: int, message: m.BusMessage) -> None:
        if isinstance(message, m.StoredReply) or (isinstance(message, m.CheckpointChunk) and message.data):
            gave.append(sender)

    cluster.on_said = note
    joiner = cluster.start(3)
    rounds = traffic[0].rounds
    assert cluster.run_ms(60_000, lambda: joiner.replica.base > applied and not joiner.replica.is_joining)
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
