"""A state that comes back from its checkpoint as something else is seen, whatever part of it differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.sim.checkers import restores
from antiphon.sim.checkers.restores import Restores, difference, what_a_restore_changes
from antiphon.sim.world import Violation, World
from antiphon.wire.transactions import Consumed
from tests.planted.catalogue import with_and_without
from tests.unit.message_manager.channel import Channel, Client


class Log:
    """A channel with something of everything: sessions, holds of both modes, subscriptions, transactions."""

    def __init__(self) -> None:
        self.channel, self.client = Channel(), Client()
        channel, client = self.channel, self.client
        channel.order(client.open())
        self.queue, self.taken = channel.create("q"), channel.create("taken")
        self.topic = channel.create_topic("t", '{"retention":"consumed"}')
        channel.order(client.subscribe(self.topic, "audit"))
        for at in range(3):
            first = channel.order(client.publish(self.queue, [b"a", b"b", b"c"]))
            channel.order(client.publish(self.topic, [b"%d" % at]))
        channel.order(client.hold("reader", first, self.queue, acks=True))
        channel.order(client.hold("taker", 1, self.taken, consumes=True))
        channel.order(client.ack(self.queue, (first, first + 1)))
        channel.order(client.prepare(0, 0, Consumed(self.queue, 0, Ranges([(first + 1, first + 2)]))))
        channel.pass_time(5)

    @property
    def state(self) -> ChannelState:
        return self.channel.manager.state

    def restored(self) -> ChannelState:
        return ChannelState.restore(self.state.capture()[1])


def queue_of(state: ChannelState) -> Queue:
    queue = state.directory.named("queue:q")
    assert isinstance(queue, Queue)
    return queue


def topic_of(state: ChannelState) -> Topic:
    topic = state.directory.named("topic:t")
    assert isinstance(topic, Topic)
    return topic


def test_a_state_with_everything_in_it_comes_back_as_it_was() -> None:
    log = Log()
    assert what_a_restore_changes(log.state) is None


def _forget_where_it_is_held(state: ChannelState) -> None:
    queue_of(state).held_from = None


def _forget_who_asks(state: ChannelState) -> None:
    state.holds.is_audited = False


def _forget_from_where_it_is_asked(state: ChannelState) -> None:
    state.holds.acknowledgements.wanted_from = None


def _share_what_is_stored(state: ChannelState) -> None:
    queue_of(state).stored = queue_of(state).live


def _lock_elsewhere(state: ChannelState) -> None:
    state.locks = dict(state.locks)


def _lose_a_lock(state: ChannelState) -> None:
    state.locks.popitem()


def _lose_a_name(state: ChannelState) -> None:
    state.directory._by_name.popitem()


def _turn_destinations_round(state: ChannelState) -> None:
    by_id = state.directory._by_id
    for id in sorted(by_id):
        by_id[id] = by_id.pop(id)
    by_id[min(by_id)] = by_id.pop(min(by_id))


def _lose_a_subscription(state: ChannelState) -> None:
    state.directory._named.clear()


def _count_a_segment_twice(state: ChannelState) -> None:
    state.directory.use.add(1, 5)


def _lose_a_place(state: ChannelState) -> None:
    queue_of(state).index._firsts[0] += 1


def _move_a_horizon(state: ChannelState) -> None:
    topic_of(state).horizon += 1


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (_forget_where_it_is_held, "held_from"),
        (_forget_who_asks, "is_audited"),
        (_forget_from_where_it_is_asked, "wanted_from"),
        (_share_what_is_stored, "stored"),
        (_lock_elsewhere, "locks is the same as something else"),
        (_lose_a_lock, "locks"),
        (_lose_a_name, "_by_name"),
        (_turn_destinations_round, "_by_id"),
        (_lose_a_subscription, "_named"),
        (_count_a_segment_twice, "use"),
        (_lose_a_place, "the places of store"),
        (_move_a_horizon, "horizon"),
    ],
)
def test_a_part_that_did_not_come_back_is_named(spoil: Callable[[ChannelState], None], word: str) -> None:
    log = Log()
    again = log.restored()
    assert difference(log.state, again) is None
    spoil(again)
    assert word in (difference(log.state, again) or "")


def test_rows_without_a_live_message_are_no_part_of_the_state() -> None:
    log = Log()
    live = queue_of(log.state).live
    log.channel.order(log.client.release("reader", log.channel.heard))
    log.channel.order(log.client.ack(log.queue, (live.first, live.first + 3)))
    assert queue_of(log.state).index.row_count > len(queue_of(log.state).index)
    rows = queue_of(log.state).index.row_count
    assert what_a_restore_changes(log.state) is None
    assert queue_of(log.state).index.row_count == rows, "to capture a state changes nothing in it"


def test_a_state_that_is_refused_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(ChannelState, "capture", lambda self: (b"", b"AMS0"))
    assert "what was captured is refused" in (what_a_restore_changes(log.state) or "")


@with_and_without("restore-forgets-locks")
def test_the_checker_sees_locks_that_a_restore_forgets(
    is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores, "SAMPLE_ONE_IN", 1)
    log = Log()
    checker = Restores(World(1))
    entry = log.channel.log[-1][0]
    if is_planted:
        with pytest.raises(Violation, match="locks"):
            checker.on_folded(1, entry, log.state)
    else:
        checker.on_folded(1, entry, log.state)
