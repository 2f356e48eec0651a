"""Node: in which order the machines of a process hear what one step brings, and what they tell each other."""

from __future__ import annotations

from antiphon.bus.effects import Alarm, Received
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Credits, Deliver, Heartbeat, SpaceState
from antiphon.client_manager.effects import ChannelEvent
from antiphon.event_log import EventLogSettings
from antiphon.events import CLIENT_REFUSED, SYNC_SLOW
from antiphon.ids import make_epoch
from antiphon.names import LOG_TOPIC_NAME
from antiphon.node import InChannel, Leaving, Node, NodeEffect, Observed, RecordRows
from antiphon.standing import Agreed
from antiphon.startup import ClientManagerStart, Identity, start_client_manager
from tests.nodes import Cluster, Life

HERE = 9
GROUP = GroupConfig.of(
    "a",
    (1, HERE),
    commit_servers=(1,),
    data_servers=(1,),
    checkpoint_servers=(1,),
    candidates=(1,),
    commit_quantity=1,
    seal_quantity=1,
    data_quantity=1,
    checkpoint_quantity=1,
)


def client_manager() -> Node:
    identity = Identity(disk_id=bytes(16), run_id=bytes(16), start_s=1)
    start = ClientManagerStart(
        node_id=HERE, name="cm", cluster="test", agreed=Agreed(digest=""), groups=(GROUP,), servers=()
    )
    return start_client_manager(identity, start)


def said(message: Deliver | Heartbeat) -> InChannel:
    return InChannel("a", Received(1, message))


def beat(counter: int, nonce: int) -> InChannel:
    return said(Heartbeat(make_epoch(counter, 1), 0, 0, nonce, 0, True, SpaceState.AMPLE))


def test_a_client_manager_hears_what_primaries_say_of_themselves_before_what_they_delivered() -> None:
    node = client_manager()
    heard: list[str] = []
    manager = node.client_manager
    assert manager is not None
    step = manager.step

    def watched(now_ns: int, events: list[object]) -> object:
        heard.extend(type(event.event).__name__ for event in events if isinstance(event, ChannelEvent))
        return step(now_ns, events)  # type: ignore[arg-type]

    manager.step = watched  # type: ignore[method-assign,assignment]
    node.step(1 * MS, 0, [beat(1, 1)])
    heard.clear()
    # The clock of the node stood still while twenty heartbeats were said: they lie behind the delivery.
    beats = [beat(1, nonce) for nonce in range(2, 22)]
    node.step(2 * MS, 0, [said(Deliver(make_epoch(1, 1), 5, (), ())), *beats, beat(2, 1)])
    assert set(heard[:-1]) == {"TimeMissed", "PrimaryChanged"}
    assert heard[-1] == "Deliver"


def test_a_client_manager_that_waits_for_a_heartbeat_ends_the_rest_of_the_sequencer() -> None:
    cluster = Cluster(seed=1)
    assert cluster.run_ms(5_000, done=lambda: any(one.replica.is_at_rest for one in cluster.lives.values()))
    leader = cluster.lives[cluster.leader()]
    primary = leader.manager.primary
    assert primary is not None
    term = primary.term
    primary.delivery._streams.begin(9, run=1)
    leader.take(Received(9, Credits(term, 1, (), 1), b""))
    cluster.run_ms(1)
    assert not leader.replica.is_at_rest
    beats = leader.replica.beats
    cluster.run_ms(leader.replica.config.heartbeat_ms + 5)
    assert leader.replica.beats > beats
    assert not leader.manager.awaits_beat, "a quorum has answered it"


# --- events ------------------------------------------------------------------------------------------


def codes(effects: list[NodeEffect]) -> list[str]:
    """The events that a step has logged."""
    return [row.event.kind.code for one in effects if isinstance(one, RecordRows) for row in one.rows]


def test_a_node_logs_that_it_starts_what_it_is_told_and_that_it_leaves() -> None:
    node = client_manager()
    assert codes(node.step(1 * MS, 0, [])) == ["node.started"]
    assert codes(node.step(2 * MS, 0, [])) == []
    refused = Observed(CLIENT_REFUSED(peer="p", reason="r", problem="x"))
    slow = InChannel("a", Alarm(SYNC_SLOW(count=1, ms=200)))
    effects = node.step(3 * MS, 0, [refused, slow])
    assert codes(effects) == ["client.refused", "sync.slow"]
    assert [row.channel for one in effects if isinstance(one, RecordRows) for row in one.rows] == ["", "a"]
    assert codes(node.step(4 * MS, 0, [Leaving()])) == ["node.stopping"]


def test_a_client_manager_logs_that_a_channel_takes_nothing_and_that_it_does_again() -> None:
    node = client_manager()
    node.step(1 * MS, 0, [beat(1, 1)])
    low = Heartbeat(make_epoch(1, 1), 0, 0, 2, 0, True, SpaceState.LOW)
    assert codes(node.step(2 * MS, 0, [said(low)])) == ["flow.begun"]
    assert codes(node.step(3 * MS, 0, [said(low)])) == []
    assert codes(node.step(4 * MS, 0, [beat(1, 3)])) == ["flow.ended"]


def test_events_of_every_kind_of_node_get_into_the_order() -> None:
    """Backups order their own: a run of their producer begins with the first event."""
    cluster = Cluster(seed=2, events=EventLogSettings(is_published=True))

    def stored() -> int:
        topic = cluster.lives[1].manager.state.directory.named(LOG_TOPIC_NAME)
        return 0 if topic is None else topic.live.count

    published = {"node.started", "epoch.began", "primary.moved"}
    assert cluster.run_ms(20_000, done=lambda: stored() >= len(cluster.lives) + 2), stored()
    rows = [row for life in cluster.lives.values() for row in life.rows]
    assert {row.event.kind.code for row in rows} >= published
    assert cluster.run_ms(5_000, done=lambda: len({digest_of(one) for one in cluster.lives.values()}) == 1)


def digest_of(life: Life) -> tuple[int, bytes]:
    return life.manager.state.applied, life.manager.state.digest()


def test_a_primary_logs_the_producers_that_were_fenced() -> None:
    cluster = Cluster(seed=3, events=EventLogSettings(is_published=True))
    assert cluster.run_ms(20_000, done=lambda: all(one.parts.producer.pe for one in cluster.lives.values()))
    leader = cluster.lives[cluster.leader()]
    victim = next(number for number in cluster.lives if number != leader.node_id)
    cluster.stop(victim)
    assert cluster.run_ms(20_000, done=lambda: "producer.fenced" in said_by(leader))
    (fenced,) = [row for row in leader.rows if row.event.kind.code == "producer.fenced"]
    assert fenced.sentence.startswith(f"node {victim} was silent for so long") and fenced.channel == "a"
    assert cluster.run_ms(20_000, done=lambda: "node.down" in said_by(leader))


def said_by(life: Life) -> list[str]:
    return [row.event.kind.code for row in life.rows]
