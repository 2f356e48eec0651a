"""Consumers with selectors against the obvious: who may have a message, has it, or nobody may."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.bus.messages import ConsumerEnded, Registered
from antiphon.message_manager.manager import MessageManagerSettings
from tests.unit.message_manager.channel import Channel, Client, delivered

CHOICES = {
    "": lambda n: True,
    "n = 1": lambda n: n == 1,
    "n > 1": lambda n: n > 1,
    "n IN ('x')": lambda n: False,
    "n BETWEEN 1 AND 2": lambda n: n in (1, 2),
}
CREDIT = 6


class SelectingConsumers(RuleBasedStateMachine):
    """A queue, consumers that come and go, and messages that are acknowledged and given back."""

    @initialize(work=st.sampled_from([480_000, 8 << 20]), is_plain=st.booleans())
    def begin(self, work: int, is_plain: bool) -> None:
        # Without other priorities a view forgets sooner what is free no more.
        self.is_plain = is_plain
        # A small flush: a step evaluates a few batches at most.
        self.channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=work))
        self.client = Client()
        self.channel.order(self.client.open())
        self.queue = self.channel.create("orders")
        self.other = self.channel.create("other")
        self.last = 0
        # By number: what a message says and how urgent it is; who has it.
        self.live: dict[int, tuple[int, int]] = {}
        self.holders: dict[int, int] = {}
        self.selectors: dict[int, str] = {}
        self.credit: dict[int, int] = {}
        for selector in ("n = 1", "n > 1"):
            self.come(selector)
        self.publish([(n, PRIORITY_DEFAULT) for n in (0, 1, 2, 1, 3)], is_mixed=False, between=False)

    def settle(self) -> None:
        """Let the primary do all it can, and take what it gives."""
        for _ in range(200):
            effects = self.channel.flush()
            for consumer, number, _, _ in delivered(effects):
                n, _ = self.live[number]
                assert number not in self.holders, f"{number} is given to two"
                assert CHOICES[self.selectors[consumer]](n), f"{number} does not match for {consumer}"
                self.holders[number] = consumer
                self.credit[consumer] -= 1
            self.channel.order_proposals(effects)
            deadline_ns = self.channel.manager.primary.delivery.next_deadline_ns(self.channel.now_ns)  # type: ignore[union-attr]
            if deadline_ns is None or deadline_ns > self.channel.now_ns:
                return
        raise AssertionError("the primary does not come to rest")

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([PRIORITY_DEFAULT, PRIORITY_DEFAULT, 2, 8])),
            min_size=1,
            max_size=6,
        ),
        is_mixed=st.booleans(),
        between=st.booleans(),
    )
    def publish(self, rows: list[tuple[int, int]], is_mixed: bool, between: bool) -> None:
        if between:
            self.channel.order(self.client.publish(self.other, [b"between"]))
        if self.is_plain:
            rows = [(n, PRIORITY_DEFAULT) for n, _ in rows]
        made: list[dict[str, Any]] = [
            {"properties": {"n": n} | ({"t": "x" if at else 1} if is_mixed else {}), "priority": priority}
            for at, (n, priority) in enumerate(rows)
        ]
        first = self.channel.order(self.client.publish_rows(self.queue, *made))
        self.live |= {first + at: row for at, row in enumerate(rows)}
        self.settle()

    @rule(selector=st.sampled_from(sorted(CHOICES)))
    def come(self, selector: str) -> None:
        if len(self.selectors) < 4:
            self.last += 1
            self.selectors[self.last] = selector
            self.credit[self.last] = CREDIT
            self.channel.register(self.last, self.queue, CREDIT, selector=selector)
            self.settle()

    @rule(which=st.integers(0, 3), seen=st.booleans())
    def go(self, which: int, seen: bool) -> None:
        if self.selectors:
            consumer = sorted(self.selectors)[which % len(self.selectors)]
            self.channel.unregister(consumer, 1 << 40 if seen else 0)
            del self.selectors[consumer], self.credit[consumer]
            self.holders = {number: one for number, one in self.holders.items() if one != consumer}
            self.settle()

    @rule(which=st.integers(0, 3), more=st.integers(1, 4))
    def grant(self, which: int, more: int) -> None:
        if self.selectors:
            consumer = sorted(self.selectors)[which % len(self.selectors)]
            dispatched = self.channel.manager.primary.delivery.dispatcher(self.queue)  # type: ignore[union-attr]
            assert dispatched is not None
            known = next(one for key, one in dispatched.consumers.items() if key.consumer == consumer)
            self.credit[consumer] += more
            self.channel.credit(consumer, known.credit_messages + more)
            self.settle()

    @rule(which=st.integers(0, 20), counted=st.booleans(), is_back=st.booleans())
    def finish(self, which: int, counted: bool, is_back: bool) -> None:
        if self.holders:
            number = sorted(self.holders)[which % len(self.holders)]
            del self.holders[number]
            pair = (number, number + 1)
            if is_back:
                self.channel.order(self.client.give_back(self.queue, pair, counted=counted))
            else:
                del self.live[number]
                self.channel.order(self.client.ack(self.queue, pair))
            self.settle()

    @invariant()
    def everybody_has_what_is_there_for_him(self) -> None:
        for number, (n, _) in getattr(self, "live", {}).items():
            if number not in self.holders:
                idle = [
                    consumer
                    for consumer, selector in self.selectors.items()
                    if CHOICES[selector](n) and self.credit[consumer] > 0
                ]
                assert not idle, f"{number} waits, and {idle} would have it"

    @invariant()
    def no_registration_is_refused(self) -> None:
        if hasattr(self, "channel"):
            said = [one for one in self.channel.flush() if isinstance(one, Registered | ConsumerEnded)]
            assert not any(one.code for one in said)


TestSelectingConsumers = SelectingConsumers.TestCase
TestSelectingConsumers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
