"""Node: in which order the machines of a process hear what one step brings, and what they tell each other."""

from __future__ import annotations

from antiphon.bus.effects import Received
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Credits, Deliver, Heartbeat, SpaceState
from antiphon.client_manager.effects import ChannelEvent
from antiphon.ids import make_epoch
from antiphon.node import InChannel, Node
from antiphon.standing import Agreed
from antiphon.startup import ClientManagerStart, Identity, start_client_manager
from tests.nodes import Cluster

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
