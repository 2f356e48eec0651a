"""The checkers of hands see what they are there to see, in histories with one thing wrong."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import Deliver, Piece, Register, Registered, Taker, Target
from antiphon.sim.checkers.hands import GivenOut, Hands, OneCopy
from antiphon.sim.checkers.watch import Begun, PortConsumer, Stand
from antiphon.sim.world import Violation, World

PRIMARY, CHANNEL, QUEUE, TERM, STREAM = 1, "a", 5, 3, 9
# By the key of a consumer at the primary: its client manager, its session, its number there.
NODES, SESSIONS, NUMBERS = {7: 2, 8: 3}, {7: 70, 8: 80}, {7: 1, 8: 2}
ONE, OTHER = 7, 8


class Town:
    """A channel with two consumers, each at a client manager of its own."""

    def __init__(self) -> None:
        self.world = World(1)
        self.hands = Hands(self.world)
        self.primary = GivenOut(self.world, CHANNEL, self.hands)
        for key in (ONE, OTHER):
            register = Register(key, SESSIONS[key], 1, QUEUE, 0, "", 9, 1 << 20, number=NUMBERS[key])
            self.primary.on_sent(NODES[key], register)

    def give(self, key: int, number: int, count: int = 1) -> None:
        target = Target(NODES[key], 1, (Taker(key, 1),), STREAM)
        self.primary.on_sent(PRIMARY, Deliver(TERM, QUEUE, (target,), (Piece(number, count, 0, []),)))

    def register(self, key: int, code: str = "") -> Stand:
        """The primary answers a registration; how the client manager stands when it has heard of that."""
        self.primary.on_sent(PRIMARY, Registered(key, TERM, code, stream=STREAM))
        return Stand(key, TERM, STREAM)

    def begin(
        self, key: int, number: int, redelivered: int = 0, stand: Stand | None = None, subscription: int = 0
    ) -> None:
        holder = PortConsumer(1, SESSIONS[key], NUMBERS[key])
        self.hands.on_begun(Begun(holder, CHANNEL, subscription, number, redelivered, stand))


def test_who_works_on_it_first_may() -> None:
    town = Town()
    town.give(ONE, 40, count=2)
    town.begin(ONE, 40)
    town.begin(ONE, 41)
    assert not town.world.probes


def test_the_second_to_work_on_a_message_is_told_so() -> None:
    town = Town()
    town.give(ONE, 40)
    town.begin(ONE, 40)
    town.give(OTHER, 40)
    with pytest.raises(
        Violation, match=r"I30 hands: 40 of a came to \(80, 2\) without a mark, behind \(70, 1\)"
    ):
        town.begin(OTHER, 40)


def test_what_is_told_to_be_redelivered_may_be_worked_on_by_a_second() -> None:
    town = Town()
    town.give(ONE, 40)
    town.begin(ONE, 40)
    town.give(OTHER, 40)
    town.begin(OTHER, 40, redelivered=1)
    assert town.world.probes == {"hands.worked_on_again": 1}


def test_a_consumer_may_get_again_what_it_had() -> None:
    town = Town()
    for _ in range(2):
        town.give(ONE, 40)
        town.begin(ONE, 40)
    assert not town.world.probes


def test_what_was_in_a_buffer_while_others_got_it_may_be_worked_on_by_who_cannot_know() -> None:
    town = Town()
    before = town.register(ONE)
    town.give(ONE, 40)
    town.give(OTHER, 40)
    town.begin(OTHER, 40, redelivered=1)
    town.begin(ONE, 40, stand=before)
    assert town.world.probes["hands.could_not_know"] == 1


def test_who_was_registered_again_since_and_heard_of_it_has_been_told() -> None:
    town = Town()
    town.give(ONE, 40)
    town.give(OTHER, 40)
    town.begin(OTHER, 40, redelivered=1)
    again = town.register(ONE)
    with pytest.raises(
        Violation, match=r"\(70, 1\) works on 40 of a, which \(80, 2\) got, and could have been"
    ):
        town.begin(ONE, 40, stand=again)


def test_an_answer_that_comes_again_tells_no_more_than_the_first() -> None:
    town = Town()
    first = town.register(ONE)
    town.give(ONE, 40)
    town.give(OTHER, 40)
    town.begin(OTHER, 40, redelivered=1)
    assert town.register(ONE) == first
    town.begin(ONE, 40, stand=first)
    assert town.world.probes["hands.could_not_know"] == 1


def test_a_registration_that_was_refused_tells_nothing() -> None:
    town = Town()
    town.give(ONE, 40)
    town.give(OTHER, 40)
    town.begin(OTHER, 40, redelivered=1)
    town.begin(ONE, 40, stand=town.register(ONE, code="refused"))
    assert town.world.probes["hands.could_not_know"] == 1


def test_every_subscription_of_a_topic_gets_its_own_copy() -> None:
    town = Town()
    town.begin(ONE, 40, subscription=11)
    town.begin(OTHER, 40, subscription=12)
    assert not town.world.probes


def test_a_number_of_another_channel_is_another_message() -> None:
    town = Town()
    town.give(ONE, 40)
    town.begin(ONE, 40)
    there = GivenOut(town.world, "b", town.hands)
    there.on_sent(NODES[OTHER], Register(OTHER, SESSIONS[OTHER], 1, QUEUE, 0, "", 9, 1 << 20, number=2))
    target = Target(NODES[OTHER], 1, (Taker(OTHER, 1),), STREAM)
    there.on_sent(PRIMARY, Deliver(TERM, QUEUE, (target,), (Piece(40, 1, 0, []),)))
    town.hands.on_begun(Begun(PortConsumer(1, SESSIONS[OTHER], 2), "b", 0, 40, 0, None))
    assert not town.world.probes


def test_no_consumer_has_a_message_twice() -> None:
    checker, holder = OneCopy(World(1)), PortConsumer(1, 70, 1)
    checker.on_has(holder, CHANNEL, [40, 41, 43])
    checker.on_has(holder, CHANNEL, [40])
    with pytest.raises(Violation, match=r"I31 one copy: .* has 41 of a twice"):
        checker.on_has(holder, CHANNEL, [40, 41, 43, 41])
