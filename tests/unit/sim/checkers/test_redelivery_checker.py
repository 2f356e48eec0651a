"""The checker of what comes back sees what it is there to see, in histories with one thing wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.bus.messages import Deliver, Register
from antiphon.ranges import Ranges
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.watch import PortConsumer
from antiphon.sim.image import Image
from antiphon.sim.world import Violation, World
from antiphon.wire.transactions import Consumed
from tests.unit.message_manager.channel import SESSION, Channel, Client, delivers

NODE, DOOR, CONSUMER = 1, 1, 7
HOLDER = PortConsumer(1, SESSION, CONSUMER)


class Log:
    """A queue of four messages with one consumer that may take two; everything is shown to the checker."""

    def __init__(self) -> None:
        self.checker = Redeliveries(World(1))
        self.channel, self.client = Channel(begin=False), Client()
        self.checker.on_started(NODE, Image(), 0)
        self.channel.claim(NODE)
        self.show()
        self.channel.open_producer(DOOR)
        self.show()
        self.order(self.client.open())
        self.queue = self.channel.create("q")
        self.show()
        self.first = self.order(self.client.publish(self.queue, [b"a", b"b", b"c", b"d"]))
        self.attach()

    @property
    def last(self) -> int:
        return self.first + 3

    def attach(self, held: Ranges | None = None) -> None:
        self.channel.register(CONSUMER, self.queue, credit=2, held=held)
        term = self.channel.manager.term
        register = Register(
            CONSUMER, SESSION, 1, self.queue, 0, "", 2, 1 << 40, held or Ranges(), CONSUMER, term=term
        )
        self.checker.on_sent(DOOR, register)

    def show(self) -> None:
        """The node has folded the last entry."""
        entry, payload = self.channel.log[-1]
        self.checker.on_applied(NODE, entry, None if payload is None else memoryview(payload))
        self.checker.on_folded(NODE, entry, self.channel.manager.state)

    def order(self, *commands: bytes) -> int:
        first = self.channel.order(*commands)
        self.show()
        return first

    def give_out(self, credit: int = 0) -> list[Deliver]:
        """What the primary gives out now, not shown yet."""
        if credit:
            self.channel.credit(CONSUMER, credit)
        return delivers(self.channel.flush())

    def tell(self, *said: Deliver) -> None:
        for one in said:
            self.checker.on_sent(NODE, one)
        self.checker.on_flushed(NODE)

    def give_back(self, number: int) -> None:
        self.order(self.client.give_back(self.queue, (number, number + 1)))

    def take(self, number: int, count: int) -> None:
        self.checker.on_received(HOLDER, number, b"", count)


def recounted(said: Deliver, count: int) -> Deliver:
    return replace(said, pieces=tuple([piece._replace(redelivery_count=count) for piece in said.pieces]))


def test_a_history_with_nothing_wrong_passes() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.take(log.first, 0)
    log.give_back(log.first)
    log.tell(*log.give_out(credit=4))
    log.take(log.first + 1, 0)
    log.take(log.first, 1)
    log.give_back(log.first)
    log.tell(*log.give_out(credit=9))
    log.take(log.first + 2, 0)
    log.take(log.first, 2)
    log.take(log.last, 0)


def test_what_an_earlier_term_may_have_given_out_says_so_and_is_not_counted() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.channel.claim(2)
    log.show()
    log.channel.claim(NODE)
    log.show()
    log.attach()
    said = log.give_out()
    assert [piece.redelivery_count for one in said for piece in one.pieces] == [1]
    log.tell(*said)
    log.take(log.first, 1)


@pytest.mark.parametrize("count", [0, 2])
def test_a_count_that_is_told_wrong_is_seen(count: int) -> None:
    log = Log()
    log.tell(*log.give_out())
    log.give_back(log.first)
    [said] = [one for one in log.give_out(credit=3) if one.pieces[0].first_sequence == log.first]
    with pytest.raises(Violation, match="given back 1 times"):
        log.tell(recounted(said, count))


def test_a_mark_on_what_was_never_given_out_is_seen() -> None:
    log = Log()
    [said] = log.give_out()
    with pytest.raises(Violation, match="0 to 0 is right"):
        log.tell(recounted(said, 1))


def test_no_mark_on_what_an_earlier_term_may_have_given_out_is_seen() -> None:
    log = Log()
    log.channel.claim(2)
    log.show()
    log.channel.claim(NODE)
    log.show()
    log.attach()
    [said] = log.give_out()
    with pytest.raises(Violation, match="1 to 1 is right"):
        log.tell(recounted(said, 0))


def test_a_primary_whose_state_is_replaced_tells_what_the_former_state_had_as_redelivered() -> None:
    log = Log()
    said = log.give_out(credit=4)
    log.checker.on_restored(NODE, log.last)
    with pytest.raises(Violation, match="1 to 1 is right"):
        log.tell(*said)
    log.tell(*[recounted(one, 1) for one in said])


def test_a_replica_that_counts_otherwise_is_seen() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.give_back(log.first)
    queue = log.channel.manager.state.directory.source(log.queue, 0)
    assert queue is not None
    queue.counts.raise_(Ranges([(log.first, log.first + 1)]))
    with pytest.raises(Violation, match="by the order and by itself"):
        log.order(log.client.publish(log.queue, [b"e"]))


def test_a_count_that_is_shown_otherwise_than_told_is_seen() -> None:
    log = Log()
    log.tell(*log.give_out())
    with pytest.raises(Violation, match="is shown to consumer"):
        log.take(log.first, 1)


def test_messages_that_are_shown_in_another_order_are_seen() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.take(log.first + 1, 0)
    with pytest.raises(Violation, match="is shown to consumer"):
        log.take(log.first, 0)


def test_a_higher_number_before_one_that_came_back_is_seen() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.give_back(log.first)
    [said] = log.give_out(credit=4)
    assert [piece.first_sequence for piece in said.pieces] == [log.first, log.first + 2]
    with pytest.raises(Violation, match="came back and waits"):
        log.tell(replace(said, pieces=said.pieces[1:]))


def test_what_a_replaced_state_let_wait_keeps_nobody_waiting() -> None:
    """The state that a primary takes over may be of a later term, with a claim that it never folds."""
    log = Log()
    log.tell(*log.give_out())
    log.give_back(log.first)
    (above,) = log.give_out(credit=4)
    cut = [piece for piece in above.pieces if log.first not in piece.sequences]
    log.checker.on_restored(NODE, log.last + 10)
    log.tell(recounted(replace(above, pieces=tuple(cut)), 1))


def test_what_is_locked_keeps_nobody_waiting() -> None:
    log = Log()
    log.tell(*log.give_out())
    log.give_back(log.first)
    log.order(log.client.prepare(0, 0, Consumed(log.queue, 0, Ranges([(log.first, log.first + 1)]))))
    [said] = log.give_out(credit=4)
    assert [piece.first_sequence for piece in said.pieces] == [log.first + 2]
    log.tell(said)
