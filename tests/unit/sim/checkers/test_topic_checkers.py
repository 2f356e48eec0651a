"""The checkers of topics see what they are there to see, in histories with one thing wrong."""

from __future__ import annotations

import itertools

import pytest

from antiphon.bus.messages import Deliver, Entry, EntryKind, Piece, Register, Taker, Target
from antiphon.ids import Mid
from antiphon.ranges import Ranges
from antiphon.sim.checkers.history import TotalTopic
from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.watch import PortConsumer
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import (
    Acknowledge,
    CloseSession,
    CreateDestination,
    OpenSession,
    OutcomeCode,
    Payload,
    Publish,
    StartKind,
    Subscribe,
    Unsubscribe,
    encode_command,
    kind_of,
)

NODE = 1
SESSION = 77
TOPIC, SUBSCRIPTION = 2, 3
KEY, OTHER_KEY = 501, 502
HOLDER, OTHER = PortConsumer(1, SESSION, 1), PortConsumer(2, SESSION, 2)


class Log:
    """Commands of one session, shown to a checker: an opening, a topic, and a durable subscription to it."""

    def __init__(self, *, is_durable: bool = True) -> None:
        self.topics = Topics(World(1))
        self.next = 1
        self._number = 1
        self.apply(OpenSession(user="a", client_id=""), 0)
        self.apply(CreateDestination(kind=2, name="t", settings="{}"), 0, session=0)
        self.subscribe("audit" if is_durable else "")
        for number, key in ((1, KEY), (2, OTHER_KEY)):
            self.topics.on_sent(
                NODE, Register(key, SESSION, 1, TOPIC, SUBSCRIPTION, "", 9, 9, Ranges(), number)
            )

    def apply(
        self, payload: Payload, number: int | None = None, count: int = 1, session: int = SESSION
    ) -> None:
        if number is None:
            number = self._number
            self._number += count
        data = encode_command(
            kind_of(payload), session, 1 if session else 0, number, 0, payload.encode(), count
        )
        entry = Entry(self.next, count, EntryKind.DATA, Mid(1, 1, self.next), 0, bytes(16))
        self.topics.on_applied(NODE, entry, memoryview(data))
        self.next += count

    def subscribe(self, name: str) -> None:
        self.apply(
            Subscribe(
                destination=TOPIC,
                durable=bool(name),
                shared=False,
                name=name,
                client_id="",
                start=StartKind.LATEST,
                number=0,
            )
        )

    def publish(self, count: int) -> int:
        first = self.next
        self.apply(Publish(TOPIC, 1, 0, b""), count=count)
        return first

    def acknowledge(self, start: int, stop: int, subscription: int = SUBSCRIPTION) -> None:
        self.apply(Acknowledge(destination=TOPIC, subscription=subscription, ranges=Ranges([(start, stop)])))


NUMBERS = itertools.count(1)
"""Of a stream: what is said under a number that was used before is no second delivery."""


def deliver(first: int, count: int, consumer: int = KEY) -> Deliver:
    return Deliver(
        1, TOPIC, (Target(1, next(NUMBERS), (Taker(consumer, 1),)),), (Piece(first, count, 0, []),)
    )


def test_delivering_what_is_wanted_passes_and_what_is_acknowledged_is_seen() -> None:
    log = Log()
    first = log.publish(3)
    log.topics.on_sent(NODE, deliver(first, 3))
    log.acknowledge(first + 1, first + 2)
    log.topics.on_sent(NODE, deliver(first + 2, 1))
    with pytest.raises(Violation, match="after it was acknowledged there"):
        log.topics.on_sent(NODE, deliver(first, 3))


def test_what_was_published_before_a_subscription_is_not_for_it() -> None:
    log = Log()
    log.publish(1)
    late = log.next
    log.subscribe("late")
    log.topics.on_sent(NODE, Register(600, SESSION, 1, TOPIC, late, "", 9, 9, Ranges(), 3))
    log.publish(1)
    log.topics.on_sent(NODE, deliver(late + 1, 1, consumer=600))
    with pytest.raises(Violation, match="which it is not for"):
        log.topics.on_sent(NODE, deliver(late - 1, 1, consumer=600))


@pytest.mark.parametrize("end", [Unsubscribe(subscription=SUBSCRIPTION), CloseSession()])
def test_a_delivery_to_a_subscription_that_has_ended_is_seen(end: Payload) -> None:
    log = Log(is_durable=False)
    first = log.publish(1)
    log.apply(end, 0 if isinstance(end, CloseSession) else None)
    with pytest.raises(Violation, match="has ended"):
        log.topics.on_sent(NODE, deliver(first, 1))


def test_a_durable_subscription_outlives_its_session() -> None:
    log = Log()
    log.apply(CloseSession(), 0)
    assert list(log.topics.subscriptions) == [SUBSCRIPTION]


def test_a_message_in_two_hands_of_one_subscription_is_seen() -> None:
    log = Log()
    first = log.publish(2)
    log.topics.on_handed_out(NODE, HOLDER, first, 2, 0)
    with pytest.raises(Violation, match="while"):
        log.topics.on_handed_out(NODE, OTHER, first, 1, 0)


def test_a_message_may_pass_to_another_when_its_holder_is_gone() -> None:
    log = Log()
    first = log.publish(2)
    log.topics.on_handed_out(NODE, HOLDER, first, 2, 0)
    log.topics.on_holder_gone(NODE, HOLDER)
    log.topics.on_handed_out(NODE, OTHER, first, 2, 0)


def test_fresh_messages_out_of_order_are_seen() -> None:
    log = Log()
    first = log.publish(3)
    log.topics.on_handed_out(NODE, HOLDER, first + 2, 1, 0)
    log.topics.on_handed_out(NODE, HOLDER, first, 1, 1)
    with pytest.raises(Violation, match="behind"):
        log.topics.on_handed_out(NODE, HOLDER, first + 1, 1, 0)


def test_books_that_cannot_be_are_seen() -> None:
    log = Log()
    first = log.publish(2)
    with pytest.raises(Violation, match="still needs"):
        log.topics.at_quiet({TOPIC: 2})
    log.acknowledge(first, first + 2)
    log.topics.at_quiet({TOPIC: 2})
    log.topics.at_quiet({TOPIC: 0})
    for facts in ({TOPIC: 3}, {}):
        with pytest.raises(Violation, match="keeps"):
            log.topics.at_quiet(facts)


def history(log: Log) -> TotalTopic:
    total = TotalTopic(World(1))
    total.topics = log.topics
    return total


def test_a_message_that_reached_one_subscription_and_not_another_is_lost() -> None:
    log = Log()
    other = log.next
    log.subscribe("other")
    log.topics.on_sent(NODE, Register(600, SESSION, 1, TOPIC, other, "", 9, 9, Ranges(), 3))
    total = history(log)
    total.on_published(SESSION, 3, [b"a"])
    first = log.publish(1)
    total.on_confirmed(SESSION, 3, 1, OutcomeCode.APPLIED, first)
    total.on_received(HOLDER, first, b"a", 0)
    with pytest.raises(Violation, match=f"1 messages never reached subscription {other}"):
        total.at_quiet({})
    total.on_received(PortConsumer(3, SESSION, 3), first, b"a", 0)
    total.at_quiet({})
    assert total.figures["received"] == 2 and total.figures["redelivered"] == 0


def test_a_repetition_in_one_subscription_that_does_not_say_so_is_seen() -> None:
    log = Log()
    total = history(log)
    total.on_published(SESSION, 2, [b"a"])
    first = log.publish(1)
    total.on_received(HOLDER, first, b"a", 0)
    total.on_received(OTHER, first, b"a", 1)
    with pytest.raises(Violation, match="without saying so"):
        total.on_received(OTHER, first, b"a", 0)
