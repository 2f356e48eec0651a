"""A subscription by a pattern against the obvious: what was published to topics that match, since it began.

Topics are made and deleted, decided now or later, by this primary or the next. After every entry the state is
captured, restored and compared (RestoredChannel).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.delivery import matching
from antiphon.message_manager.state.destinations import owners
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import family_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, CreateDestination
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Client, bodies, numbers_to, of_node, proposals

RETENTIONS = ('{"retention":0}', '{"retention":5}', '{"retention":"consumed"}', '{"retention_bytes":200}')
PATTERNS: dict[str, Callable[[str], bool]] = {
    "topic:a*": lambda name: name.startswith("a"),
    "topic:*3": lambda name: name.endswith("3"),
    "topic:*": lambda name: True,
}


class Town:
    """Topics, and subscriptions by patterns, of which it is known what each of them needs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.channel = RestoredChannel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.topics: dict[int, str] = {}
        self.families = {pattern: self.make(pattern) for pattern in PATTERNS}
        # By subscription: its pattern, what it needs, and what its consumer was given in this term.
        self.needs: dict[int, tuple[str, set[int]]] = {}
        self.given: dict[int, set[int]] = {}
        self.steps = (
            *(self.publish, self.publish, self.publish, self.transact, self.acknowledge, self.acknowledge),
            *(self.create, self.create, self.delete, self.subscribe, self.subscribe, self.unsubscribe),
            *(self.decide, self.decide, self.deliver, self.claim, self.pass_time),
        )

    def make(self, pattern: str) -> int:
        name = family_name("glob", pattern).removeprefix("topic:")
        return self.channel.order(of_node(CreateDestination(kind=2, name=name, settings="{}")))

    def topic(self, id: int) -> Topic:
        found = self.channel.manager.state.directory.get(id)
        assert isinstance(found, Topic)
        return found

    def subscription(self, id: int) -> Subscription:
        found = self.channel.manager.state.directory.subscription(id)
        assert found is not None
        return found

    # -- steps -------------------------------------------------------------------

    def create(self) -> None:
        name = f"{self.chance.choice('ab')}{self.channel.next}"
        self.topics[self.channel.create_topic(name, self.chance.choice(RETENTIONS))] = name

    def delete(self) -> None:
        if self.topics and self.chance.random() < 0.5:
            id = self.chance.choice(sorted(self.topics))
            gone = set(self.topic(id).live.numbers())
            del self.topics[id]
            self.channel.order(self.client.delete(id))
            for _, needed in self.needs.values():
                needed -= gone

    def publish(self) -> None:
        if self.topics:
            id, count = self.chance.choice(sorted(self.topics)), self.chance.randint(1, 3)
            rows = [{"priority": self.chance.choice((4, 4, 9))} for _ in range(count)]
            self.note(id, self.channel.order(self.client.publish_rows(id, *rows)), count)

    def transact(self) -> None:
        if self.topics:
            id, count = self.chance.choice(sorted(self.topics)), self.chance.randint(1, 3)
            self.channel.order(self.client.tx_publish(id, bodies(count)))
            self.note(id, self.channel.order(self.client.tx_commit(1, count)), count)

    def note(self, id: int, first: int, count: int) -> None:
        for pattern, needed in self.needs.values():
            if PATTERNS[pattern](self.topics[id]):
                needed.update(range(first, first + count))

    def subscribe(self) -> None:
        pattern, start = self.chance.choice(sorted(PATTERNS)), self.chance.choice(("latest", "earliest"))
        matching_topics = [id for id, name in self.topics.items() if PATTERNS[pattern](name)]
        there = {number for id in matching_topics for number in self.topic(id).live.numbers()}
        id = self.channel.order(self.client.subscribe(self.families[pattern], start=start))
        self.needs[id] = pattern, there if start == "earliest" else set()
        self.attach(id)

    def attach(self, id: int) -> None:
        self.given[id] = set()
        family = self.families[self.needs[id][0]]
        self.channel.register(id, family, subscription=id)

    def unsubscribe(self) -> None:
        if self.needs and self.chance.random() < 0.4:
            id = self.chance.choice(sorted(self.needs))
            del self.needs[id], self.given[id]
            self.channel.order(self.client.unsubscribe(id))

    def acknowledge(self) -> None:
        """Some of what is there, given out or not: a consumer of an earlier term may have it."""
        if self.needs:
            id = self.chance.choice(sorted(self.needs))
            subscription = self.subscription(id)
            there = sorted(subscription.needs(subscription.topic.live).numbers())
            some = there[self.chance.randrange(len(there) + 1) :][: self.chance.randint(1, 6)]
            if some:
                pairs = list(Ranges.of_numbers(some))
                self.channel.order(self.client.ack(subscription.destination, *pairs, subscription=id))
                self.needs[id][1].difference_update(some)

    def decide(self) -> None:
        """Order what the primary proposes about families, or lose it."""
        commands = [one.command for one in proposals(self.flush())]
        for command in commands:
            if command[0] == CommandKind.MATCH and self.chance.random() < 0.8:
                self.channel.order(command)

    def deliver(self) -> None:
        self.flush()

    def flush(self) -> list[object]:
        effects = self.channel.flush()
        for id, got in self.given.items():
            for number in numbers_to(effects, id):
                assert number not in got, f"subscription {id} was given {number} twice"
                got.add(number)
        self.channel.acknowledge(1 << 20)
        return list(effects)

    def claim(self) -> None:
        if self.chance.random() < 0.4:
            self.channel.claim(1)
            for id in self.needs:
                self.attach(id)

    def pass_time(self) -> None:
        self.channel.pass_time(self.chance.choice((1, 3_000)))

    def step(self) -> None:
        self.chance.choice(self.steps)()
        self.check()

    def check(self) -> None:
        """Whatever a subscription needs, or will need when its topics are decided, is kept."""
        live = {number for id in self.topics for number in self.topic(id).live.numbers()}
        for _, needed in self.needs.values():
            assert needed <= live

    def end(self) -> None:
        """Decide everything, and give out everything."""
        directory = self.channel.manager.state.directory
        while directory.undecided.families:
            self.channel.now_ns += 2_000_000_000
            self.channel.order_proposals(self.flush())  # type: ignore[arg-type]
        self.flush()
        for id, (_, needed) in self.needs.items():
            subscription = self.subscription(id)
            assert set(subscription.needs(subscription.topic.live).numbers()) == needed
            assert subscription.backlog == len(needed)
            assert needed <= self.given[id]
        for family in directory.families:
            topics = family.topics.values()
            assert set(family.live.numbers()) == {n for topic in topics for n in topic.live.numbers()}


@given(st.integers(0, 1 << 32), st.integers(10, 60), st.integers(1, 3))
def test_a_pattern_brings_what_matches_since_the_beginning(seed: int, steps: int, portion: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "NAMES_AT_ONCE", portion)
        patch.setattr(owners, "_SPARE", portion)
        town = Town(seed)
        for _ in range(steps):
            town.step()
        town.end()
        digest = town.channel.manager.state.digest()
        assert town.channel.replica().state.digest() == digest
