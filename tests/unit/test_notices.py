"""What a node says of a channel in its log, look by look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.sequencer import State
from antiphon.channel_parts import ChannelParts
from antiphon.events import Severity
from antiphon.notices import ChannelNotices

NAMES = {1: "mm-1", 2: "mm-2", 3: "mm-3", 9: "cm-1"}
REPLICAS = (1, 2, 3)
GROUP = GroupConfig.of(
    "a",
    (*REPLICAS, 9),
    commit_servers=REPLICAS,
    data_servers=REPLICAS,
    checkpoint_servers=REPLICAS,
    candidates=REPLICAS,
    commit_quantity=2,
    seal_quantity=2,
)
LOOK_MS = 100


@dataclass
class FakeReplica:
    """What notices see of a replica."""

    node: int = 1
    config: GroupConfig = GROUP
    term: int = 0
    primary: int = 0
    last: int = 0
    applied: int = 0
    epoch: int = 0
    state: State = State.FOLLOWER
    is_joining: bool = False
    is_amnesiac: bool = False


@dataclass
class FakeListener:
    """What notices see of a listener."""

    term: int = 0
    primary: int = 0
    is_served: bool = True


@dataclass
class FakeParts:
    """A channel on a node that keeps it, or on a client manager."""

    replica: Any = None
    listener: Any = None
    producer: Any = field(default_factory=FakeReplica)
    is_ready: bool = False


class Watched:
    """A node whose log is read."""

    def __init__(self, parts: FakeParts, node: int) -> None:
        self.parts = parts
        self.now_ms = 0
        self.presence = PresenceKeeper(GROUP, node)
        if parts.replica is not None:
            parts.replica.presence = self.presence
        self._node = node
        self._notices = ChannelNotices(node, NAMES)
        self.look()

    def look(self) -> list[str]:
        """What is told now, warnings with a mark."""
        told = self._notices.look(self.now_ms * MS, cast(ChannelParts, self.parts))
        self.published = [event.kind.code for event, is_public in told if is_public]
        return [
            "! " * (event.kind.severity is Severity.WARNING)
            + event.shown(NAMES).sentence(NAMES[self._node], "a")
            for event, _ in told
        ]

    def passes(self, ms: int, *heard: int) -> list[str]:
        """What is told while so much time goes by, in which these members are heard."""
        told: list[str] = []
        for _ in range(ms // LOOK_MS):
            self.now_ms += LOOK_MS
            for node in heard:
                self.presence.hear(self.now_ms * MS, node)
            told += self.look()
        return told


def keeper(*, last: int = 0) -> Watched:
    """Replica 2 follows replica 1."""
    watched = Watched(FakeParts(FakeReplica(node=2, last=last)), 2)
    watched.passes(1_000, 1, 3, 9)
    return watched


def served(watched: Watched, term: int, primary: int) -> list[str]:
    one = watched.parts.replica or watched.parts.listener
    one.term, one.primary, watched.parts.is_ready = term, primary, True
    return watched.look()


def test_who_serves_is_told_once_and_who_did_before() -> None:
    watched = keeper()
    assert served(watched, 1, 1) == ["channel a is served by mm-1"]
    assert watched.passes(1_000, 1, 3, 9) == []
    assert served(watched, 2, 2) == ["channel a is served by mm-2 now, before by mm-1"]
    assert served(watched, 3, 2) == ["channel a is served by mm-2 again"]


def test_the_primary_of_a_former_life_is_not_told() -> None:
    watched = keeper()
    watched.parts.replica.term, watched.parts.replica.primary = 7, 2
    assert watched.look() == [], "nobody leads yet"


def test_a_silent_member_is_named_and_so_is_its_return() -> None:
    watched = keeper()
    assert watched.passes(GROUP.silence_ms, 1, 3) == ["! nothing has been heard of cm-1 for 2 s"]
    assert watched.passes(4_000, 1, 3) == []
    assert watched.passes(LOOK_MS, 1, 3, 9) == ["cm-1 is heard again, after 6 s"]


def test_a_lost_majority_is_told_once_with_the_names_of_the_missing() -> None:
    watched = keeper()
    assert watched.passes(5_000, 9) == [
        "! nothing has been heard of mm-1 for 2 s",
        "! nothing has been heard of mm-3 for 2 s",
        "! channel a has lost its majority: nothing is heard of mm-1 and mm-3. Nothing is stored until 2 of "
        "its 3 nodes are there",
    ]
    assert watched.passes(LOOK_MS, 3, 9) == [
        "mm-3 is heard again, after 5 s",
        "channel a has its majority again",
    ]


def test_members_that_are_started_later_are_waited_for() -> None:
    watched = Watched(FakeParts(FakeReplica(node=2)), 2)
    assert watched.passes(GROUP.leaderless_ms - LOOK_MS, 9) == []
    assert len(watched.passes(LOOK_MS, 9)) == 3


def test_a_node_that_slept_does_not_call_the_others_silent() -> None:
    watched = keeper()
    watched.now_ms += 10_000
    assert watched.look() == []
    assert watched.passes(3_000, 1, 3, 9) == []


def test_a_node_that_had_something_on_its_disk_says_when_it_has_recovered() -> None:
    watched = keeper(last=1_200)
    watched.parts.replica.applied = 1_234
    recovered = (
        "this node has recovered channel a: its disk had the order through 1,200, it has applied 1,234"
    )
    assert served(watched, 1, 1) == ["channel a is served by mm-1", recovered]
    assert served(watched, 2, 2) == ["channel a is served by mm-2 now, before by mm-1"]


def test_a_client_manager_says_that_nobody_serves_and_that_somebody_does_again() -> None:
    listener = FakeListener(is_served=False)
    watched = Watched(FakeParts(listener=listener), 9)
    assert watched.passes(5_000) == [], "at the start nobody has served yet"
    listener.is_served = True
    assert served(watched, 1, 1) == ["channel a is served by mm-1"]
    listener.is_served = False
    unserved = "! nobody has served channel a for 1 s, mm-1 did before: messages for it wait"
    assert watched.passes(1_000) == [unserved]
    listener.is_served = True
    assert watched.passes(1_000) == ["channel a is served by mm-1 again"]
    listener.is_served = False
    assert watched.passes(1_000) == [unserved]
    listener.is_served = True
    assert served(watched, 2, 3) == ["channel a is served by mm-3 now, before by mm-1"]
    assert watched.passes(1_000) == []


def test_the_primary_publishes_that_it_serves_and_the_others_only_note_it() -> None:
    watched = keeper()
    served(watched, 1, 1)
    assert watched.published == []
    served(watched, 2, 2)
    assert watched.published == ["primary.moved"]


def test_the_node_that_leads_tells_of_each_epoch_once() -> None:
    watched = keeper()
    watched.parts.replica.epoch = 7
    assert served(watched, 1, 2) == ["channel a is served by mm-2"]
    watched.parts.replica.state = State.LEADING
    assert watched.passes(1_000, 1, 3, 9) == ["epoch 7 of channel a begins, led by mm-2"]
    watched.parts.replica.epoch = 8
    assert watched.passes(1_000, 1, 3, 9) == ["epoch 8 of channel a begins, led by mm-2"]


def test_a_replica_tells_that_it_has_no_copy_and_that_it_has_one_again() -> None:
    watched = keeper()
    watched.parts.replica.is_joining = True
    assert watched.passes(1_000, 1, 3, 9) == [
        "! this node has no copy of channel a that it could go on with, and gets one from the others"
    ]
    watched.parts.replica.is_joining = False
    assert watched.passes(1_000, 1, 3, 9) == ["this node has a copy of channel a again"]
