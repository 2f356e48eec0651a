"""Message groups against the obvious: who has a key, has it alone and in order, or nobody waits for it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from tests.unit.message_manager.channel import SESSION, Channel, Client, delivered

SELECTORS = {"": lambda n: True, "n > 1": lambda n: n > 1}
CREDIT = 5
OTHER = 0xB2


class CompetingConsumers(RuleBasedStateMachine):
    """A queue with keys, consumers that come and go, primaries that change, and messages that come back."""

    @initialize(work=st.sampled_from([60_000, 8 << 20]), has_selectors=st.booleans())
    def begin(self, work: int, has_selectors: bool) -> None:
        self.selectors_there = sorted(SELECTORS) if has_selectors else [""]
        self.channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=work))
        self.clients = [Client(SESSION), Client(OTHER)]
        self.channel.order(*[client.open() for client in self.clients])
        self.queue = self.channel.create("orders")
        self.last = 0
        # By number: key, number for selectors, priority; and who has it.
        self.live: dict[int, tuple[str | None, int, int]] = {}
        self.holders: dict[int, int] = {}
        self.selectors: dict[int, str] = {}
        self.credit: dict[int, int] = {}
        # The consumer that was given a key, by selector and key.
        self.owners: dict[tuple[str, str], int] = {}
        self.come(0)
        self.come(1)

    def dispatcher(self) -> Dispatcher:
        dispatcher = self.channel.manager.primary.delivery.dispatcher(self.queue)  # type: ignore[union-attr]
        assert dispatcher is not None
        return dispatcher

    def settle(self) -> None:
        """Let the primary do all it can, and take what it gives."""
        for _ in range(200):
            effects = self.channel.flush()
            given = [(consumer, number) for consumer, number, _, _ in delivered(effects)]
            for consumer, number in given:
                self.take(consumer, number)
            for at, (consumer, number) in enumerate(given):
                self.look_at_order(consumer, number, given[at:])
            self.channel.order_proposals(effects)
            deadline_ns = self.channel.manager.primary.delivery.next_deadline_ns(self.channel.now_ns)  # type: ignore[union-attr]
            if deadline_ns is None or deadline_ns > self.channel.now_ns:
                return
        raise AssertionError("the primary does not come to rest")

    def take(self, consumer: int, number: int) -> None:
        key, n, _ = self.live[number]
        selector = self.selectors[consumer]
        assert number not in self.holders, f"{number} is given to two"
        assert SELECTORS[selector](n), f"{number} does not match for {consumer}"
        if key is not None:
            owner = self.owners.setdefault((selector, key), consumer)
            assert owner == consumer, f"{number} of {key} goes to {consumer}, and {owner} has the group"
        self.holders[number] = consumer
        self.credit[consumer] -= 1

    def look_at_order(self, consumer: int, number: int, later: list[tuple[int, int]]) -> None:
        """Was there an earlier message of the group that had to be given out before?"""
        key, _, priority = self.live[number]
        for other, row in self.live.items():
            is_before = other < number and key is not None and (row[0], row[2]) == (key, priority)
            if is_before and SELECTORS[self.selectors[consumer]](row[1]):
                assert other in self.holders, f"{other} of {key} waits, and {number} is given out"
                assert (consumer, other) not in later, f"{other} of {key} comes behind {number}"

    @rule(
        rows=st.lists(
            st.tuples(
                st.sampled_from([None, "a", "b", "c", "d", "e"]),
                st.integers(1, 2),
                st.sampled_from([PRIORITY_DEFAULT, PRIORITY_DEFAULT, 7]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def publish(self, rows: list[tuple[str | None, int, int]]) -> None:
        made = [{"key": key, "properties": {"n": n}, "priority": priority} for key, n, priority in rows]
        first = self.channel.order(self.clients[0].publish_rows(self.queue, *made))
        self.live |= dict(enumerate(rows, first))
        self.settle()

    @rule(which=st.integers(0, 1))
    def come(self, which: int) -> None:
        if len(self.selectors) < 4:
            self.last += 1
            self.selectors[self.last] = self.selectors_there[which % len(self.selectors_there)]
            self.credit[self.last] = CREDIT
            self.register(self.last)
            self.settle()

    def client_of(self, consumer: int) -> Client:
        return self.clients[consumer % 2]

    def register(self, consumer: int) -> None:
        """Attach a consumer with what it holds."""
        theirs = sorted(number for number, holder in self.holders.items() if holder == consumer)
        self.channel.register(
            consumer,
            self.queue,
            CREDIT,
            selector=self.selectors[consumer],
            held=Ranges([(number, number + 1) for number in theirs]),
            session=self.client_of(consumer).session,
        )

    @rule(which=st.integers(0, 3), seen=st.booleans())
    def go(self, which: int, seen: bool) -> None:
        if self.selectors:
            consumer = sorted(self.selectors)[which % len(self.selectors)]
            self.channel.unregister(consumer, 1 << 40 if seen else 0)
            del self.selectors[consumer], self.credit[consumer]
            self.holders = {number: one for number, one in self.holders.items() if one != consumer}
            self.owners = {group: one for group, one in self.owners.items() if one != consumer}
            self.settle()

    @rule(which=st.integers(0, 3), more=st.integers(1, 6))
    def grant(self, which: int, more: int) -> None:
        if self.selectors:
            consumer = sorted(self.selectors)[which % len(self.selectors)]
            known = next(one for key, one in self.dispatcher().consumers.items() if key.consumer == consumer)
            self.credit[consumer] += more
            self.channel.credit(consumer, known.credit_messages + more)
            self.settle()

    @rule(which=st.integers(0, 20), counted=st.booleans(), is_back=st.booleans())
    def finish(self, which: int, counted: bool, is_back: bool) -> None:
        if self.holders:
            number = sorted(self.holders)[which % len(self.holders)]
            client, pair = self.client_of(self.holders.pop(number)), (number, number + 1)
            if is_back:
                self.channel.order(client.give_back(self.queue, pair, counted=counted))
            else:
                del self.live[number]
                self.channel.order(client.ack(self.queue, pair))
            self.settle()

    @rule(stays=st.lists(st.booleans(), min_size=4, max_size=4))
    def change_the_primary(self, stays: list[bool]) -> None:
        """Consumers attach again with what they hold; some have gone."""
        self.channel.claim(1)
        there = dict(zip(sorted(self.selectors), stays, strict=False))
        self.selectors = {one: text for one, text in self.selectors.items() if there[one]}
        self.holders = {number: one for number, one in self.holders.items() if one in self.selectors}
        # A group of which a consumer holds nothing may go to another.
        self.owners = {
            (self.selectors[one], key): one
            for number, one in self.holders.items()
            if (key := self.live[number][0]) is not None
        }
        self.credit = dict.fromkeys(self.selectors, CREDIT)
        for one in self.selectors:
            self.register(one)
        self.settle()

    @invariant()
    def what_is_held_agrees(self) -> None:
        if hasattr(self, "channel") and self.selectors:
            for key, one in self.dispatcher().consumers.items():
                theirs = [number for number, holder in self.holders.items() if holder == key.consumer]
                assert list(one.in_flight.numbers()) == sorted(theirs)

    @invariant()
    def nobody_waits_for_what_nobody_has(self) -> None:
        for number, (key, n, _) in getattr(self, "live", {}).items():
            if number in self.holders:
                continue
            for consumer, selector in self.selectors.items():
                if self.credit[consumer] > 0 and SELECTORS[selector](n):
                    assert key is not None, f"{number} waits, and {consumer} would have it"
                    owner = self.owners.get((selector, key))
                    assert owner != consumer, f"{number} waits for {consumer}, which has the group"
                    assert owner is not None or self.is_promised(number, selector), (
                        f"{number} waits for nobody"
                    )

    def is_promised(self, number: int, selector: str) -> bool:
        """Has a consumer without credit got the group, before it was given any message of it?"""
        dispatcher = self.dispatcher()
        groups = (dispatcher.groups or {})[selector]
        return any(self.credit.get(one.consumer.key.consumer, 0) <= 0 for one in groups.shares.values())


TestCompetingConsumers = CompetingConsumers.TestCase
TestCompetingConsumers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
