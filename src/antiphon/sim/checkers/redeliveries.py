"""A returned message comes back in its place, with the count of its returns (promise 3).

    counts  after every entry every replica counts the counted returns of each message that is still there
    told    a primary tells that count. A message without returns is told as redelivered if it was published
            before the primary's term or delivered in it; no other is. A primary whose state is replaced
            tells all messages of the former state as redelivered
    shown   an application is shown the counts told to its consumer, in that order
    place   a primary delivers nothing while a returned message with a lower number waits; messages with
            delivery rules of their own are left to `rules`

The model counts the RETURNs in the log that a replica says it applied. Deliveries after a failover are not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from antiphon.batch.layout import RULES_AT
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind, Register
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.source import Source
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker, PortConsumer
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import Return

Place = tuple[int, int]
"""A message of a source: the id of its queue or subscription, and its number."""

Given = tuple[int, int, int]
"""A delivery of a primary: term, source and number."""


class _Returned(NamedTuple):
    """An applied RETURN: its session, its source and its messages."""

    session: int
    source: int
    numbers: Ranges
    is_counted: bool


class _Taker(NamedTuple):
    """A consumer as its client knows it, its source, and has it a selector?"""

    session: int
    consumer: int
    source: int
    is_selecting: bool


class Redeliveries(Checker):
    """Counts returns, and compares the counts that primaries tell and applications are shown."""

    promise = "I21 redelivery"
    hears = (Deliver, Register)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._folded = 0
        self._applied: dict[int, int] = {}
        self._states: dict[int, ChannelState] = {}
        # By term: the node that claimed it, and through which number everything is told as redelivered.
        self._claims: dict[int, tuple[int, int]] = {}
        # Counted returns of messages that are still there: now, after each folded entry, and for each message
        # by the numbers of the entries that changed its count.
        self._counts: dict[Place, int] = {}
        self._after: dict[int, dict[Place, int]] = {0: {}}
        self._history: dict[Place, list[tuple[int, int]]] = {}
        self._commands: list[tuple[int, _Returned]] = []
        self._returned: dict[int, list[_Returned]] = {}
        # Consumers by the key that their client manager gave them.
        self._takers: dict[tuple[int, int], _Taker] = {}
        # Places in the streams to client managers that a delivery had.
        self._told: set[tuple[int, int, int, int]] = set()
        # By consumer and term: the numbers and counts it was told; and how far its application has come.
        self._log: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
        self._shown: dict[tuple[int, int], tuple[int, int]] = {}
        # The session that was given a message last; and the messages that a consumer claims to hold.
        self._with: dict[Given, int] = {}
        self._claimed: set[Given] = set()
        # Returned messages that wait, by term; and the highest number of each source in this flush.
        self._waiting: dict[int, dict[int, set[int]]] = {}
        self._highest: dict[int, dict[int, int]] = {}
        # Messages of batches with delivery rules.
        self._ruled: set[int] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._applied[node] = checkpoint
        self._highest.pop(node, None)

    def on_restored(self, node: int, n: int) -> None:
        for term, (primary, claimed_after) in self._claims.items():
            if primary == node:
                # The node forgets what it gave out of the state that is replaced.
                self._claims[term] = node, max(claimed_after, self._applied[node])
        self._applied[node] = n
        # The former state, perhaps of an earlier term, says nothing any more; the next entry shows another.
        self._states.pop(node, None)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        self.on_flushed(node)
        if entry.last <= self._folded:
            return
        self._commands = []
        for header, wish, sequence in commands_of(entry, payload):
            if isinstance(wish, Return):
                source = wish.subscription or wish.destination
                is_counted = wish.counted and not wish.rejected
                returned = _Returned(header.session, source, wish.ranges, is_counted)
                self._commands.append((sequence, returned))

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        self._applied[node] = entry.last
        self._states[node] = state
        if entry.kind is EntryKind.PRIMARY_CLAIM and state.term == entry.mid.pe:
            self._claims.setdefault(state.term, (entry.mid.pid, entry.first - 1))
        if entry.last > self._folded:
            self._fold(entry, state)
        self._compare(node, entry.last, state)
        for one in self._returned.get(entry.last, ()):
            self._wait(node, one, state)

    def _fold(self, entry: Entry, state: ChannelState) -> None:
        self._folded = entry.last
        applied: list[_Returned] = []
        if self._commands:
            exceptions = state.outcomes.within(entry.first, entry.last)
            refused = Ranges([(one.first, one.first + one.count) for one in exceptions])
            applied = [one for sequence, one in self._commands if sequence not in refused]
            self._returned[entry.last] = applied
        before = self._counts
        counts = dict(before)
        for one in applied:
            for number in one.numbers.numbers() if one.is_counted else ():
                counts[one.source, number] = counts.get((one.source, number), 0) + 1
        for place in [place for place in counts if not _is_there(state, place)]:
            del counts[place]
        for place in {*before, *counts}:
            if before.get(place) != counts.get(place):
                self._history.setdefault(place, []).append((entry.last, counts.get(place, 0)))
        if max(counts.values(), default=0) > 1:
            self.world.probe("redelivery.counted_twice")
        self._counts = counts
        self._after[entry.last] = counts

    def _compare(self, node: int, n: int, state: ChannelState) -> None:
        model = self._after[n]
        counted: dict[Place, int] = {}
        for source in _sources(state):
            counted.update({(source.id, number): count for number, count in source.counts.items()})
        if counted != model:
            wrong = sorted(
                (place, model.get(place, 0), counted.get(place, 0))
                for place in {*model, *counted}
                if model.get(place) != counted.get(place)
            )
            self.fail(f"after {n} node {node} counts, by the order and by itself: {wrong[:3]}")

    def _count_at(self, place: Place, applied: int) -> int:
        count = 0
        for at, since in self._history.get(place, ()):
            if at > applied:
                break
            count = since
        return count

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            source = message.subscription or message.destination
            self._takers[node, message.consumer] = _Taker(
                message.session, message.number, source, bool(message.selector)
            )
            for number in message.held.numbers():
                # Whether the consumer gets the message depends on when its claim arrives.
                self._claimed.add((message.term, source, number))
        elif isinstance(message, Deliver):
            for target in message.targets:
                place = message.term, target.node, target.stream, target.number
                if place not in self._told:
                    self._told.add(place)
                    for taker in target.takers:
                        self._check_told(node, self._takers[target.node, taker.consumer], message)

    def _check_told(self, node: int, taker: _Taker, message: Deliver) -> None:
        session, consumer, source, is_selecting = taker
        term, applied = message.term, self._applied[node]
        log = self._log.setdefault((session, consumer), {}).setdefault(term, [])
        waiting = self._waiting.get(term, {}).get(source)
        highest = self._highest.setdefault(node, {})
        for piece in message.pieces:
            numbers, count, buffers = piece.sequences, piece.redelivery_count, piece.buffers
            for number in numbers:
                given = (term, source, number)
                self._check_count(given, count, self._count_at((source, number), applied))
                log.append((number, count))
                self._with[given] = session
                if waiting is not None:
                    waiting.discard(number)
            if buffers and len(buffers[0]) > RULES_AT and buffers[0][RULES_AT]:
                self._ruled.update(numbers)
            elif not is_selecting:
                # A message that came back and is not wanted may wait.
                highest[source] = max(highest.get(source, 0), numbers[-1])

    def _check_count(self, given: Given, told: int, returns: int) -> None:
        term, source, number = given
        _, claimed_after = self._claims[term]
        if returns:
            self.world.probe("redelivery.told_with_its_count")
            least = most = returns
        elif number <= claimed_after and source <= claimed_after:
            least = most = 1
        else:
            least, most = 0, int(given in self._with)
        if not least <= told <= most:
            self.fail(
                f"{number} of {source} was given back {returns} times, and is told to have been delivered "
                f"{told} times before; {least} to {most} is right"
            )

    def _wait(self, node: int, returned: _Returned, state: ChannelState) -> None:
        """This node has applied a return: the messages of its sender are ready there, if the node leads."""
        term = state.term
        if self._claims.get(term, (0, 0))[0] != node:
            return
        for number in returned.numbers.numbers():
            given = (term, returned.source, number)
            is_known = given not in self._claimed and self._with.get(given) == returned.session
            is_known = is_known and number not in self._ruled
            if is_known and _is_there(state, (returned.source, number)):
                self.world.probe("redelivery.came_back")
                self._waiting.setdefault(term, {}).setdefault(returned.source, set()).add(number)

    def on_flushed(self, node: int) -> None:
        highests, state = self._highest.pop(node, {}), self._states.get(node)
        if state is None:
            return
        for source, highest in highests.items():
            for number in sorted(self._waiting.get(state.term, {}).get(source, ())):
                place = (source, number)
                is_ready = (state.term, *place) not in self._claimed and _is_there(state, place)
                is_ready = is_ready and not _is_locked(state, place) and not _is_doomed(state, place)
                if number < highest and is_ready:
                    self.fail(f"{number} of {source} came back and waits, and {highest} is given out")

    def on_received(self, holder: PortConsumer, sequence: int, body: bytes, redelivered: int) -> None:
        self.shown(holder.session, holder.consumer, sequence, redelivered)

    def shown(self, session: int, consumer: int, number: int, count: int) -> None:
        """A message reached the application of a consumer, with this count."""
        log = self._log.get((session, consumer), {})
        term, at = self._shown.get((session, consumer), (0, 0))
        for later in sorted(one for one in log if one >= term):
            start = at if later == term else 0
            if (number, count) in log[later][start:]:
                self._shown[session, consumer] = later, log[later].index((number, count), start) + 1
                return
        told = [(term, said) for term, of_term in log.items() for said in of_term if said[0] == number]
        self.fail(
            f"{number} is shown to consumer {consumer} of {session:#x} with count {count}, behind what "
            f"came later or otherwise than told; by term the consumer was told {told}"
        )


def _sources(state: ChannelState) -> Iterator[Source]:
    for destination in state.directory:
        if isinstance(destination, Topic):
            yield from destination.subscriptions.values()
        else:
            yield destination
    for family in state.directory.families:
        yield from family.subscriptions.values()


def _is_there(state: ChannelState, place: Place) -> bool:
    id, number = place
    source = state.directory.subscription(id) or state.directory.source(id, 0)
    return source is not None and bool(source.still(Ranges([(number, number + 1)])))


def _is_doomed(state: ChannelState, place: Place) -> bool:
    id, number = place
    source = state.directory.subscription(id) or state.directory.source(id, 0)
    return source is not None and number in source.doomed()


def _is_locked(state: ChannelState, place: Place) -> bool:
    id, number = place
    return id in state.locks and number in state.locks[id]
