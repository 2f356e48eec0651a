"""Delivery rules: nothing goes out early, nothing expired, and the most urgent goes first.

    early   a primary gives out no message before its time, by log time as the primary knows it
    over    a primary gives out no message for the first time after a mark that it has applied says that the
            message's time is over; a number of a stream that is repeated is no new delivery
    urgent  a primary gives out no message while a more urgent one waits that was published in its term, has
            no times, was never given out, and has no key: a message group waits for its consumer

The rules are read off the published batches, not off the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from antiphon.batch import Batch
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind, Register
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.ranges import Ranges
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import Publish

PLAIN = 4


class RowRules(NamedTuple):
    """The rules of one message."""

    destination: int
    priority: int
    expires_ms: int
    deliver_at_ms: int
    has_key: bool


class RulesKept(Checker):
    """Compares the deliveries of primaries with the rules of messages; `now_ms` tells a node's log time."""

    promise = "I33 delivery rules"
    hears = (Deliver, Register)

    def __init__(self, world: World, now_ms: Callable[[int], int | None]) -> None:
        super().__init__(world)
        self._now_ms = now_ms
        self._folded = 0
        # Messages that are not plain, by number.
        self.rules: dict[int, RowRules] = {}
        self._states: dict[int, ChannelState] = {}
        # By term: behind which number it was claimed.
        self._claims: dict[int, int] = {}
        # By consumer: its source, and has it a selector?
        self._takers: dict[tuple[int, int], tuple[int, bool]] = {}
        self._told: set[tuple[int, int, int, int]] = set()
        # By term and source: the numbers given out, and the lowest priority of this flush by node.
        self._given: dict[tuple[int, int], set[int]] = {}
        self._lowest: dict[int, dict[int, int]] = {}

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._states.pop(node, None)
        self._lowest.pop(node, None)

    def on_restored(self, node: int, n: int) -> None:
        # The state is another object; the next entry brings it.
        self._states.pop(node, None)
        self._lowest.pop(node, None)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        self.on_flushed(node)
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        for _, wish, sequence in commands_of(entry, payload):
            if isinstance(wish, Publish):
                self._note(sequence, wish)

    def _note(self, first: int, wish: Publish) -> None:
        batch = Batch.decode(wish.batch)
        for row in range(batch.count) if batch.rules else ():
            times = batch.expires_ms(row), batch.deliver_at_ms(row)
            rules = RowRules(wish.destination, batch.priority(row), *times, batch.key(row) is not None)
            self.rules[first + row] = rules

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        self._states[node] = state
        if entry.kind is EntryKind.PRIMARY_CLAIM and state.term == entry.mid.pe:
            self._claims.setdefault(state.term, entry.first - 1)

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            source = message.subscription or message.destination
            self._takers[node, message.consumer] = source, bool(message.selector)
        elif isinstance(message, Deliver):
            for target in message.targets:
                place = message.term, target.node, target.stream, target.number
                if place not in self._told:
                    self._told.add(place)
                    for taker in target.takers:
                        self._check(node, *self._takers[target.node, taker.consumer], message)

    def _check(self, node: int, source: int, is_selecting: bool, message: Deliver) -> None:
        state, now_ms = self._states.get(node), self._now_ms(node)
        given = self._given.setdefault((message.term, source), set())
        lowest = self._lowest.setdefault(node, {})
        for piece in message.pieces:
            for number in piece.sequences:
                given.add(number)
                rules = self.rules.get(number)
                priority = PLAIN if rules is None else rules.priority
                if not is_selecting:
                    # A more urgent message that is not wanted may wait.
                    lowest[source] = min(lowest.get(source, priority), priority)
                if rules is None:
                    continue
                if now_ms is not None and rules.deliver_at_ms > now_ms:
                    self.fail(f"{number} is given out at {now_ms}, and may be from {rules.deliver_at_ms} on")
                if state is not None and 0 < rules.expires_ms <= state.log_time_ms:
                    self.fail(
                        f"{number} is given out at {state.log_time_ms}, and expired at {rules.expires_ms}"
                    )
                if rules.deliver_at_ms:
                    self.world.probe("rules.given_out_late")

    def on_flushed(self, node: int) -> None:
        for source, lowest in self._lowest.pop(node, {}).items():
            state = self._states.get(node)
            if state is None:
                continue
            there = state.directory.subscription(source) or state.directory.source(source, 0)
            if there is None:
                continue
            given, claimed_after = self._given[state.term, source], self._claims.get(state.term)
            for number, rules in self.rules.items() if claimed_after is not None else ():
                is_fresh = number > max(claimed_after or 0, source) and number not in given
                is_free = not (rules.expires_ms or rules.deliver_at_ms or rules.has_key)
                is_ready = is_free and number <= state.applied
                if rules.priority <= lowest or rules.destination != there.destination:
                    continue
                if is_fresh and is_ready and there.still(Ranges([(number, number + 1)])):
                    self.fail(f"{number} of {source} waits with priority {rules.priority}, {lowest} goes out")
                self.world.probe("rules.urgent")
