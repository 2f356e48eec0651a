"""The listener: what a client manager knows of a channel whose replicas are elsewhere."""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    LoadChanged,
    Multicast,
    PrimaryChanged,
    Received,
    ServiceChanged,
    SpaceChanged,
    Ticked,
    TimeMissed,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.listener import ROLE, Listener
from antiphon.bus.messages import SpaceState
from antiphon.ids import make_epoch

REPLICAS = (1, 2, 3)
HERE = 9
GROUP = GroupConfig.of(
    "a",
    (*REPLICAS, HERE),
    commit_servers=REPLICAS,
    data_servers=REPLICAS,
    checkpoint_servers=REPLICAS,
    candidates=REPLICAS,
    commit_quantity=2,
    seal_quantity=2,
)


def heartbeat(
    counter: int, node: int, *, serving: bool = True, space: SpaceState = SpaceState.AMPLE, nonce: int = 1
) -> Received:
    return Received(node, m.Heartbeat(make_epoch(counter, node), 10, 0, nonce, 10, serving, space))


def presence(node: int, *, synchronized: bool = True, load: int = 0, name: str = "") -> Received:
    return Received(node, m.Presence(name, "replica", 10, synchronized, bytes(16), load))


def news(listener: Listener, *events: Received, now_ns: int = 1) -> list[object]:
    """What is new, but for our own presence."""
    return [one for one in listener.step(now_ns, list(events)) if not isinstance(one, Multicast)]


def test_the_primary_is_who_leads_and_serves() -> None:
    listener = Listener(GROUP, HERE)
    assert news(listener, heartbeat(1, 2, serving=False)) == []
    assert listener.primary == 0
    epoch = make_epoch(1, 2)
    assert news(listener, heartbeat(1, 2), heartbeat(1, 2)) == [PrimaryChanged(epoch, 2)]
    assert (listener.term, listener.primary) == (epoch, 2)


def test_an_older_epoch_changes_nothing() -> None:
    listener = Listener(GROUP, HERE)
    news(listener, heartbeat(5, 2))
    assert news(listener, heartbeat(4, 1, space=SpaceState.TIGHT)) == []
    assert listener.primary == 2
    assert news(listener, heartbeat(6, 1)) == [PrimaryChanged(make_epoch(6, 1), 1)]


def test_nobody_speaks_for_another_epoch_than_its_own() -> None:
    listener = Listener(GROUP, HERE)
    assert news(listener, Received(3, heartbeat(1, 2).message)) == []
    assert listener.primary == 0


def test_room_on_the_disk_of_the_primary_is_told_once() -> None:
    listener = Listener(GROUP, HERE)
    news(listener, heartbeat(1, 2))
    (low,) = news(listener, heartbeat(1, 2, space=SpaceState.LOW), heartbeat(1, 2, space=SpaceState.LOW))
    assert isinstance(low, SpaceChanged) and low.is_low and not low.is_tight and "node 2" in low.text
    (tight,) = news(listener, heartbeat(1, 2, space=SpaceState.TIGHT))
    assert isinstance(tight, SpaceChanged) and tight.is_low and tight.is_tight
    (ample,) = news(listener, heartbeat(1, 2))
    assert isinstance(ample, SpaceChanged) and not ample.is_low
    news(listener, presence(2, name="mm-a-2"))
    (named,) = news(listener, heartbeat(1, 2, space=SpaceState.LOW))
    assert isinstance(named, SpaceChanged) and "the disk of mm-a-2, which serves channel a" in named.text


def test_that_nobody_serves_is_told_once_and_so_is_that_somebody_does_again() -> None:
    listener, late_ns = Listener(GROUP, HERE), GROUP.unserved_ms * MS
    assert late_ns > GROUP.suspicion_ms * MS, "a change of primary is no news of this kind"
    news(listener, heartbeat(1, 2), now_ns=1)
    assert news(listener, now_ns=late_ns) == []
    assert news(listener, heartbeat(2, 1, serving=False), now_ns=1 + late_ns) == [ServiceChanged(False)]
    assert news(listener, now_ns=2 * late_ns) == [] and not listener.is_served
    again = news(listener, heartbeat(2, 1), now_ns=3 * late_ns)
    assert again == [PrimaryChanged(make_epoch(2, 1), 1), ServiceChanged(True)]
    assert news(listener, heartbeat(2, 1, nonce=2), now_ns=3 * late_ns + 1) == []


def test_one_that_was_not_heard_for_a_while_serves_on_in_its_term() -> None:
    listener, late_ns = Listener(GROUP, HERE), GROUP.unserved_ms * MS
    news(listener, heartbeat(1, 2))
    assert news(listener, now_ns=1 + late_ns) == [ServiceChanged(False)]
    beats = late_ns // (GROUP.heartbeat_ms * MS)
    assert news(listener, heartbeat(1, 2, nonce=beats), now_ns=2 + late_ns) == [ServiceChanged(True)]


def test_the_load_is_that_of_the_primary() -> None:
    listener = Listener(GROUP, HERE)
    news(listener, heartbeat(1, 2), heartbeat(1, 1), presence(1, load=7))
    assert news(listener, presence(2, load=5)) == [LoadChanged(5)]
    assert news(listener, presence(2, load=5), presence(1, load=9)) == []


def test_a_primary_that_keeps_nothing_is_told_too() -> None:
    """Else its channel would count as one that nobody serves, and never get a destination."""
    listener = Listener(GROUP, HERE)
    news(listener, heartbeat(1, 2))
    assert news(listener, presence(2, load=0)) == [LoadChanged(0)]
    assert news(listener, presence(2, load=0)) == []


def test_it_says_that_it_is_there() -> None:
    listener = Listener(GROUP, HERE, "cm-1")
    first = listener.next_deadline_ns()
    assert first is not None and first <= GROUP.presence_ms * MS
    (said,) = listener.step(first, [Ticked()])
    assert isinstance(said, Multicast) and isinstance(said.message, m.Presence)
    assert (said.message.name, said.message.role) == ("cm-1", ROLE)
    due = listener.next_deadline_ns()
    assert due is not None and first < due <= first + GROUP.presence_ms * MS
    assert listener.step(due - 1, []) == []
    assert len(listener.step(due, [Ticked()])) == 1


def test_backups_that_keep_up_are_asked_to_read_first() -> None:
    listener = Listener(GROUP, HERE)
    assert listener.readers() == [1, 2, 3]
    news(listener, heartbeat(1, 1), presence(1), presence(2, synchronized=False), presence(3))
    assert listener.readers() == [3, 1, 2]


# -- a clock that stood still ------------------------------------------------------------------------

BEAT_NS = GROUP.heartbeat_ms * MS
SLEPT = GROUP.sure_ms // GROUP.heartbeat_ms  # in heartbeats


def listening(beats: int) -> Listener:
    """It has heard so many heartbeats, each in its time."""
    listener = Listener(GROUP, HERE)
    for nonce in range(1, beats + 1):
        news(listener, heartbeat(1, 2, nonce=nonce), now_ns=nonce * BEAT_NS)
    return listener


def test_heartbeats_that_come_in_their_time_tell_nothing() -> None:
    listener = listening(40)
    # Late ones, and those behind ones that were lost.
    assert news(listener, heartbeat(1, 2, nonce=41), now_ns=47 * BEAT_NS) == []
    assert news(listener, heartbeat(1, 2, nonce=61), now_ns=67 * BEAT_NS) == []


def test_heartbeats_that_run_ahead_of_our_clock_tell_that_it_stood_still() -> None:
    listener = listening(40)
    assert news(listener, heartbeat(1, 2, nonce=40 + 2 * SLEPT), now_ns=41 * BEAT_NS) == [TimeMissed()]
    # That is told once.
    assert news(listener, heartbeat(1, 2, nonce=41 + 2 * SLEPT), now_ns=42 * BEAT_NS) == []


def test_heartbeats_that_lay_in_a_socket_tell_it_whether_they_are_taken_at_once_or_one_by_one() -> None:
    slept = [heartbeat(1, 2, nonce=nonce) for nonce in range(41, 42 + 2 * SLEPT)]
    listener = listening(40)
    assert TimeMissed() in news(listener, *slept, now_ns=40 * BEAT_NS + 1)
    listener = listening(40)
    told = [news(listener, beat, now_ns=40 * BEAT_NS + at) for at, beat in enumerate(slept)]
    assert [TimeMissed()] in told


def test_clocks_of_different_rates_do_not_look_like_a_sleep() -> None:
    listener = Listener(GROUP, HERE)
    told = [
        news(listener, heartbeat(1, 2, nonce=nonce), now_ns=nonce * BEAT_NS * 2 // 3)
        for nonce in range(1, 400)
    ]
    assert [TimeMissed()] not in told


def test_a_primary_at_rest_is_a_clock_too() -> None:
    """Of the heartbeats of a sequencer at rest one in `rest_beats` is sent, with its own number."""
    listener, rest = listening(40), GROUP.rest_beats
    assert rest > 1
    rare = range(40 + rest, 100, rest)
    told = [news(listener, heartbeat(1, 2, nonce=nonce), now_ns=nonce * BEAT_NS) for nonce in rare]
    assert not any(told)
    woke_ns = rare[-1] * BEAT_NS + 1
    nonce = rare[-1] + rest * (1 + 2 * SLEPT // rest)
    assert news(listener, heartbeat(1, 2, nonce=nonce), now_ns=woke_ns) == [TimeMissed()]


def test_another_primary_counts_anew() -> None:
    listener = listening(40)
    changed = PrimaryChanged(make_epoch(2, 3), 3)
    assert news(listener, heartbeat(2, 3, nonce=900), now_ns=41 * BEAT_NS) == [changed]
