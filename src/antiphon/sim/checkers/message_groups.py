"""Message groups: messages with the same key are with one consumer at a time, in order.

    order   a primary gives a consumer no message of a key while an earlier one of the same key and priority
            waits, or is with another consumer
    alone   a primary gives a consumer no message of a key while a consumer that lives has a later one

The keys are read off the published batches; who has a message, off the words between primaries and client
managers. Messages that wait for a time, or are locked, dead or in doubt, hold up no others.
"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.batch import Batch
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind, Register, Unregister
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.source import Source
from antiphon.ranges import Ranges
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import Publish, Return

Owner = tuple[int, int]
"""A consumer on one connection after the other: its session, and its number there."""

Given = tuple[int, int, int]
"""A message at a primary: term, source and number."""


class _Row(NamedTuple):
    """A message with a key."""

    destination: int
    key: str
    priority: int
    has_times: bool
    is_transient: bool


class _GroupTaker(NamedTuple):
    """A consumer as its client manager registered it."""

    owner: Owner
    source: int
    node: int
    generation: int


class GroupsKept(Checker):
    """Follows the messages with keys through the hands of consumers."""

    promise = "I37 message groups"
    hears = (Deliver, Register, Unregister)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._folded = 0
        self._rows: dict[int, _Row] = {}
        self._members: dict[tuple[int, str], list[int]] = {}
        self._states: dict[int, ChannelState] = {}
        # By entry: the messages of each source that were to be returned, with the number of the command and
        # its session; a primary's own command has session 0.
        self._returned: dict[int, list[tuple[int, int, int, Ranges]]] = {}
        # By term: the node that claimed it, and behind which number.
        self._claims: dict[int, tuple[int, int]] = {}
        # By client manager and key, and those that are to go; by consumer, as it was registered last.
        self._takers: dict[tuple[int, int], _GroupTaker] = {}
        self._stands: dict[tuple[Owner, int], _GroupTaker] = {}
        # Queues of which consumers have selectors, with groups for each; those are left out.
        self._selected: set[int] = set()
        self._leaving: set[tuple[int, int]] = set()
        self._told: set[tuple[int, int, int, int]] = set()
        # The consumer that was given a message, and whether it may not have it any more; those that say that
        # they hold it; and messages once given out.
        self._with: dict[Given, Owner] = {}
        self._doubted: set[Given] = set()
        self._held: dict[Given, dict[Owner, None]] = {}
        self._given: set[Given] = set()

    # -- the order -----------------------------------------------------------------

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._states.pop(node, None)

    def on_restored(self, node: int, n: int) -> None:
        # The state is another object; the next entry brings it. What was given out of the former is unknown.
        self._states.pop(node, None)
        for term, (primary, claimed_after) in self._claims.items():
            if primary == node:
                self._claims[term] = node, max(claimed_after, n)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        for header, wish, sequence in commands_of(entry, payload):
            if isinstance(wish, Publish):
                self._note(sequence, wish)
            elif isinstance(wish, Return):
                source = wish.subscription or wish.destination
                returned = self._returned.setdefault(entry.last, [])
                returned.append((sequence, header.session, source, wish.ranges))

    def _note(self, first: int, wish: Publish) -> None:
        batch = Batch.decode(wish.batch)
        for row in range(batch.count) if batch.rules else ():
            key = batch.key(row)
            if key is not None:
                has_times = bool(batch.expires_ms(row) or batch.deliver_at_ms(row))
                is_transient = not batch.is_persistent(row)
                one = _Row(wish.destination, key, batch.priority(row), has_times, is_transient)
                self._rows[first + row] = one
                self._members.setdefault((wish.destination, key), []).append(first + row)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        self._states[node] = state
        if entry.kind is EntryKind.PRIMARY_CLAIM and state.term == entry.mid.pe:
            self._claims.setdefault(state.term, (entry.mid.pid, entry.first - 1))
        returned = self._returned.get(entry.last, ())
        if returned and self._claims.get(state.term, (0, 0))[0] == node:
            exceptions = state.outcomes.within(entry.first, entry.last)
            refused = Ranges([(one.first, one.first + one.count) for one in exceptions])
            for sequence, session, source, numbers in returned:
                if sequence not in refused:
                    for number in numbers.numbers():
                        self._come_back((state.term, source, number), session)

    def _come_back(self, given: Given, session: int) -> None:
        """A session returns what its own consumers have; what others were given since stays with them."""
        owner = self._with.get(given)
        if owner is not None and session in (0, owner[0]):
            del self._with[given]
        held = self._held.get(given, {})
        for owner in [owner for owner in held if session in (0, owner[0])]:
            del held[owner]

    # -- the words -----------------------------------------------------------------

    def on_sent(self, node: int, message: BusMessage) -> None:
        match message:
            case Register():
                self._attach(node, message)
            case Unregister():
                taker = self._takers.get((node, message.consumer))
                if taker is not None:
                    self._leaving.add((node, message.consumer))
                    self._doubt(taker, message.term)
            case Deliver():
                for target in message.targets:
                    place = message.term, target.node, target.stream, target.number
                    if place not in self._told:
                        self._told.add(place)
                        for one in target.takers:
                            self._give(node, (target.node, one.consumer), message)

    def _attach(self, node: int, message: Register) -> None:
        source = message.subscription or message.destination
        if message.selector:
            self._selected.add(source)
        taker = _GroupTaker((message.session, message.number), source, node, message.generation)
        self._leaving.discard((node, message.consumer))
        self._takers[node, message.consumer] = self._stands[taker.owner, source] = taker
        self._doubt(taker, message.term)
        for number in message.held.numbers():
            self._held.setdefault((message.term, source, number), {})[taker.owner] = None

    def _doubt(self, taker: _GroupTaker, term: int) -> None:
        """When the primary hears this, it may give the consumer's messages to anybody."""
        for given, owner in self._with.items():
            if owner == taker.owner and given[:2] == (term, taker.source):
                self._doubted.add(given)

    def _give(self, node: int, key: tuple[int, int], message: Deliver) -> None:
        state, taker = self._states.get(node), self._takers[key]
        if state is None:
            return
        source = state.directory.subscription(taker.source) or state.directory.source(taker.source, 0)
        for piece in message.pieces:
            for number in piece.sequences:
                row = self._rows.get(number)
                is_alike = source is not None and not source.is_exclusive and source.id not in self._selected
                if row is not None and source is not None and is_alike:
                    self._look(state, source, taker, message.term, number, row)
                given = message.term, taker.source, number
                self._with[given] = taker.owner
                if key in self._leaving:
                    self._doubted.add(given)
                else:
                    self._doubted.discard(given)
                self._given.add(given)

    # -- the promise ---------------------------------------------------------------

    def _look(
        self, state: ChannelState, source: Source, taker: _GroupTaker, term: int, number: int, row: _Row
    ) -> None:
        members = Ranges([(one, one + 1) for one in self._members[row.destination, row.key]])
        idle = state.locks.get(source.id, Ranges()).union(source.doomed())
        for other in source.still(members).difference(idle).numbers():
            given = term, source.id, other
            if other < number and self._is_before(self._rows[other], row, given):
                self.world.probe("groups.earlier_there")
                if self._with.get(given) != taker.owner and taker.owner not in self._held.get(given, ()):
                    self.fail(
                        f"{number} of {row.key} goes to {taker.owner}, and {other} is with"
                        f" {self._with.get(given)}, held by {list(self._held.get(given, ()))}"
                    )
            elif other > number and given not in self._doubted:
                owner = self._with.get(given, taker.owner)
                if owner != taker.owner and self._lives(state, owner, source.id):
                    self.fail(f"{number} of {row.key} goes to {taker.owner}, and {owner} has {other}")

    def _is_before(self, earlier: _Row, row: _Row, given: Given) -> bool:
        """Must an earlier message that is still there be given out before the other?"""
        claimed_after = self._claims.get(given[0], (0, 1 << 64))[1]
        is_doubtful = earlier.is_transient and (given[2] <= claimed_after or given in self._given)
        return earlier.priority == row.priority and not earlier.has_times and not is_doubtful

    def _lives(self, state: ChannelState, owner: Owner, source: int) -> bool:
        stand, session = self._stands[owner, source], state.sessions.get(owner[0])
        return session is not None and (session.generation, session.owner.pid) == (
            stand.generation,
            stand.node,
        )
