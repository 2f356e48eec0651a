"""The model of holds sees what it is there to see, in histories with one thing wrong."""

from __future__ import annotations

import pytest

from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.ranges import Ranges
from antiphon.sim.checkers.held import HeldDestinations
from antiphon.sim.checkers.watch import PortConsumer
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import ExpireMessages
from tests.planted.catalogue import with_and_without
from tests.unit.message_manager.channel import Channel, Client, delivers, of_node

NODE = 1


class Log:
    """A queue with four messages, which "taker" has alone; the model sees every entry."""

    def __init__(self) -> None:
        self.checker = HeldDestinations(World(1))
        self.channel, self.client = Channel(begin=False), Client()
        self.channel.claim(NODE)
        self.channel.open_producer(1)
        self._shown = 0
        self.order(self.client.open())
        self.id = self.channel.create("q")
        self.first = self.order(self.client.publish(self.id, [b"a", b"b", b"c", b"d"]))
        self.heard_early = self.channel.heard
        self.hold(self.first)

    def hold(self, position: int, heard: int | None = None) -> None:
        heard = self.channel.heard if heard is None else heard
        self.order(self.client.hold("taker", position, self.id, consumes=True, heard=heard))

    def order(self, *commands: bytes) -> int:
        first = self.channel.order(*commands)
        self.show()
        return first

    def show(self) -> None:
        """The model has seen all entries; a node has folded the last."""
        for entry, payload in self.channel.log[self._shown :]:
            self.checker.on_applied(NODE, entry, memoryview(payload) if payload is not None else None)
        self._shown = len(self.channel.log)
        self.checker.on_folded(NODE, self.channel.log[-1][0], self.channel.manager.state)

    @property
    def queue(self) -> Queue:
        queue = self.channel.manager.state.directory.get(self.id)
        assert isinstance(queue, Queue)
        return queue


def test_a_history_with_nothing_wrong_passes() -> None:
    log = Log()
    log.order(log.client.ack(log.id, (log.first, log.first + 1)))
    log.hold(log.first + 2)
    log.hold(log.first, heard=log.heard_early)
    log.order(log.client.release("taker", log.heard_early))
    log.channel.pass_time(1)
    log.channel.pass_time(60_001)
    log.show()
    log.hold(log.first + 3)
    log.order(log.client.release("taker", log.channel.heard))
    log.order(log.client.ack(log.id, (log.first, log.first + 4)))
    assert not log.queue.live and log.queue.acknowledged == 4


def test_ids_are_forgotten_and_what_is_held_alone_does_not_expire() -> None:
    log = Log()
    log.order(log.client.release("taker", log.channel.heard))
    log.order(log.client.ack(log.id, (log.first, log.first + 4)))
    named = {"body": b"x", "dedup_id": "x", "expires_ms": 600_005}
    log.order(log.client.publish_rows(log.id, named))
    log.order(log.client.publish_rows(log.id, named))
    assert log.queue.live.count == 1
    log.channel.pass_time(1)
    log.channel.pass_time(600_001)
    log.show()
    log.order(log.client.publish_rows(log.id, named))
    assert log.queue.live.count == 2
    log.hold(log.channel.heard)
    term = log.channel.manager.state.term
    log.order(of_node(ExpireMessages(destination=log.id, term=term, ranges=log.queue.live)))
    assert log.queue.live.count == 2


def test_an_acknowledgement_of_somebody_else_that_counts_is_seen() -> None:
    log = Log()
    log.channel.manager.state.locks.clear()
    with pytest.raises(Violation, match="by the order it is"):
        log.order(log.client.ack(log.id, (log.first, log.first + 1)))


def test_what_the_position_passed_and_is_not_acknowledged_is_seen() -> None:
    log = Log()
    log.channel.manager.state.holds.rows["taker"].position = log.first + 1
    with pytest.raises(Violation, match="by the order it is"):
        log.hold(log.first + 1)


@with_and_without("outdated-hold-taken")
def test_a_word_that_comes_late_and_counts_is_seen(is_planted: bool) -> None:
    log = Log()
    log.order(log.client.release("taker", log.channel.heard))
    if is_planted:
        with pytest.raises(Violation, match="has the holds"):
            log.hold(log.first, heard=log.heard_early)
    else:
        log.hold(log.first, heard=log.heard_early)


def test_a_hold_that_does_not_end_in_time_is_seen() -> None:
    log = Log()
    log.channel.pass_time(1)
    log.show()
    log.channel.manager.state.holds.rows["taker"].limit_ms += 1
    log.channel.pass_time(60_001)
    with pytest.raises(Violation, match="has the holds"):
        log.show()


def test_what_was_acknowledged_in_vain_may_come_to_the_same_consumer_again() -> None:
    log, holder = Log(), PortConsumer(1, 0xA1, 7)
    log.checker.subscription_of[0xA1, 7] = 0
    for number in (log.first, log.first + 1):
        log.checker.on_handed_out(NODE, holder, number, 1, 0)
    log.order(log.client.ack(log.id, (log.first, log.first + 1)))
    log.checker.on_handed_out(NODE, holder, log.first, 1, 1)
    with pytest.raises(Violation, match="holds it"):
        log.checker.on_handed_out(NODE, holder, log.first + 1, 1, 1)


def test_a_consumer_may_be_told_that_it_lost_what_is_somebody_elses_alone() -> None:
    log, holder = Log(), PortConsumer(1, 0xA1, 7)
    log.checker.is_exclusive = True
    other = log.channel.create("other")
    number = log.order(log.client.publish(other, [b"x"]))
    log.checker.subscription_of[0xA1, 7] = 0
    for one in (log.first, number):
        log.checker.on_handed_out(NODE, holder, one, 1, 0)
    log.checker.on_lost_told(NODE, holder, Ranges([(log.first, log.first + 1)]))
    with pytest.raises(Violation, match="were taken from"):
        log.checker.on_lost_told(NODE, holder, Ranges([(number, number + 1)]))


def test_messages_of_a_queue_that_is_somebody_elses_are_seen_where_they_are_handed_out() -> None:
    log = Log()
    log.channel.manager.state.locks.clear()
    log.channel.claim(NODE)
    log.channel.register(7, log.id)
    log.show()
    (deliver,) = delivers(log.channel.flush())
    with pytest.raises(Violation, match="which somebody has alone since"):
        log.checker.on_sent(NODE, deliver)
