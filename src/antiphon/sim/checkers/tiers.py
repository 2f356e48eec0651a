"""What clients are promised, where several nodes keep the messages and others hand them out.

    I13  a message has at most one accepted acknowledgement; a primary that has applied it does not push the
         message again; enqueued = live + acknowledged, on every replica after every entry
    I14  a term has one primary; who has not applied its own claim does not act as one; and what a primary
         proposes is void unless its term is current: every replica has the sessions that the model has
    I19  a page shows everything that was confirmed to the session before it was asked for, and a
         subscription that was confirmed to it is found

The model of queues and topics is that of one node. Here a node is held only against what it has applied, and
what was pushed before an acknowledgement may arrive behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from antiphon.bus.messages import (
    BusMessage,
    ConsumerEnded,
    Deliver,
    Entry,
    EntryKind,
    Heartbeat,
    Register,
    Registered,
)
from antiphon.ids import epoch_node
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.sim.checkers.topic import Topics
from antiphon.sim.checkers.total_topic import TotalTopic
from antiphon.sim.checkers.watch import Checker, Holder, NodeFacts
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode

Books = tuple[int, int, tuple[tuple[int, int], ...]]
"""Term, number of sessions, and how many messages each queue and each subscription still has."""

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)


class Destinations(Topics):
    """Queues and topics of a channel with several replicas."""

    promise = "I13 destinations"
    hears = (Deliver, Register)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Is a message given to nobody while a living consumer holds it? Not if client managers are cut off.
        self.is_exclusive = False
        self._applied: dict[int, int] = {}
        self._books: dict[int, Books] = {}
        self._node_of: dict[Holder, int] = {}
        # What was ever given back: session, subscription and number.
        self._given_back: set[tuple[int, int, int]] = set()

    # What each replica has applied.

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._applied[node] = checkpoint

    def on_restored(self, node: int, n: int) -> None:
        self._applied[node] = n

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        is_first = entry.last > self._folded
        super().on_applied(node, entry, payload)
        self._applied[node] = entry.last
        if is_first:
            self._books[entry.last] = self._model_books()

    def _knows(self, node: int, number: int) -> bool:
        return number <= self._applied.get(node, 0)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        books, model = _books_of(state), self._books[entry.last]
        if books[2] != model[2]:
            self.fail(f"after {entry.last} node {node} holds {books[2]}, and by the order it is {model[2]}")
        if books[:2] != model[:2]:
            self.fail(
                f"I14: after {entry.last} node {node} has term {books[0]:#x} and {books[1]} sessions, by the "
                f"order it is {model[0]:#x} and {model[1]}"
            )

    def _model_books(self) -> Books:
        held = [(id, len(queue.live)) for id, queue in self.queues.items()]
        held += [(id, len(one.wanted) - len(one.done)) for id, one in self.subscriptions.items()]
        return self._term, len(self._sessions), tuple(sorted(held))

    # Who holds what.

    def on_handed_out(self, node: int, holder: Holder, sequence: int, count: int, redelivered: int) -> None:
        self._node_of[holder] = node
        id = self.subscription_of[holder.session, holder.consumer]
        for number in range(sequence, sequence + count):
            other = self._holding.get((id, number)) if id else self._holders.get(number)
            if other is not None and self._may_lose(other, holder, id, number):
                self.world.probe("model.handed_out_again")
                if id:
                    self._let_go((id, number))
                else:
                    self._release(number)
        super().on_handed_out(node, holder, sequence, count, redelivered)

    def _may_lose(self, other: Holder, holder: Holder, subscription: int, number: int) -> bool:
        """May what one consumer holds come to another, or once more to the same?

        What a client gave back is not told to a new primary as held. If it hands that out before the return
        is ordered, it does so again behind it.
        """
        if (other.session, subscription, number) in self._given_back:
            return True
        return other != holder and not self.is_exclusive

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        super().on_given_back(node, session, subscription, numbers)
        self._given_back.update((session, subscription, number) for number in numbers.numbers())

    def on_lost_told(self, node: int, holder: Holder, numbers: Ranges) -> None:
        if self.is_exclusive:
            taken = [number for number in numbers.numbers() if self._is_taken_away(holder, number)]
            if taken:
                self.fail(f"{taken[:3]} were taken from {holder}, which lives")
        super().on_lost_told(node, holder, numbers)

    def _is_taken_away(self, holder: Holder, number: int) -> bool:
        """Does a consumer hold this, which nobody has acknowledged?"""
        id = self.subscription_of[holder.session, holder.consumer]
        other = self._holding.get((id, number)) if id else self._holders.get(number)
        return other == holder and not self._is_done(holder, number)

    def on_kept(self, node: int, holder: Holder, numbers: Ranges) -> None:
        self._node_of[holder] = node
        super().on_kept(node, holder, numbers)

    def on_crashed(self, node: int) -> None:
        """What the consumers of a client manager held is held by nobody; other nodes hand out nothing."""
        for holder in [holder for holder, at in self._node_of.items() if at == node]:
            self.on_holder_gone(node, holder)

    def on_holder_gone(self, node: int, holder: Holder) -> None:
        self._node_of.pop(holder, None)
        super().on_holder_gone(node, holder)


def _books_of(state: ChannelState) -> Books:
    held: list[tuple[int, int]] = []
    for destination in state.directory:
        if isinstance(destination, Topic):
            held += [(one.id, one.backlog) for one in destination.subscriptions.values()]
        else:
            held.append((destination.id, destination.live.count))
    return state.term, len(state.sessions), tuple(sorted(held))


class Primaries(Checker):
    """Who claimed which term, and who acts as its primary."""

    promise = "I14 primary"
    hears = (Deliver, Registered, ConsumerEnded, Heartbeat)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._claims: dict[int, int] = {}
        self._claimed_at: dict[int, int] = {}
        # Which terms each node has applied in its present life, by itself or with the state of another.
        self._seen: dict[int, set[int]] = {}
        # In which of its lives the primary of a term spoke.
        self._lives: Counter[int] = Counter()
        self._spoke_in: dict[int, int] = {}

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._seen[node] = set()
        self._lives[node] += 1

    def on_restored(self, node: int, n: int) -> None:
        self._seen[node].update(term for term, at in self._claimed_at.items() if at <= n)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if entry.kind is EntryKind.PRIMARY_CLAIM:
            term, primary = entry.mid.pe, entry.mid.pid
            self._seen[node].add(term)
            self._claimed_at[term] = entry.first
            if self._claims.setdefault(term, primary) != primary:
                self.fail(f"nodes {self._claims[term]} and {primary} claim term {term:#x}")
        if state.primary != self._claims.get(state.term, state.primary):
            self.fail(f"node {node} takes node {state.primary} for the primary of term {state.term:#x}")

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Heartbeat):
            if message.serving and epoch_node(message.epoch) != node:
                self.fail(f"node {node} says that it serves epoch {message.epoch:#x}, which is another's")
        elif isinstance(message, Deliver | Registered | ConsumerEnded):
            self._check(node, message.term)

    def _check(self, node: int, term: int) -> None:
        if self._claims.get(term) != node:
            self.fail(f"node {node} speaks for term {term:#x}, which it did not claim")
        if term not in self._seen[node]:
            self.fail(f"node {node} speaks for term {term:#x}, and has not applied its claim in this life")
        if self._spoke_in.setdefault(term, self._lives[node]) != self._lives[node]:
            self.fail(f"node {node} speaks for term {term:#x}, which it claimed in a former life")


class Reads(Checker):
    """Holds pages against what had been confirmed to the session that asked for them."""

    promise = "I19 read"

    def __init__(self, world: World, destinations: Destinations) -> None:
        super().__init__(world)
        self._destinations = destinations
        self._confirmed: dict[int, set[int]] = {}
        # What must be in a page, unless it is acknowledged by then: destination and numbers.
        self._wanted: dict[int, tuple[int, set[int]]] = {}
        self._sought: dict[tuple[int, int], int] = {}

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        if code in _STORED:
            self._confirmed.setdefault(session, set()).update(range(sequence, sequence + count))

    def on_look(self, look: int, session: int, destination: int, after: int) -> None:
        confirmed = {number for number in self._confirmed.get(session, ()) if number > after}
        self._wanted[look] = destination, confirmed

    def on_sought(self, look: int, session: int, subscription: int) -> None:
        self._sought[session, look] = subscription

    def on_found(self, look: int, session: int, is_there: bool) -> None:
        subscription = self._sought.pop((session, look))
        self.world.probe("model.subscription_sought")
        if not is_there and subscription in self._destinations.subscriptions:
            self.fail(f"subscription {subscription} was confirmed, and its session is told it does not exist")

    def on_looked(self, look: int, through: int, numbers: Sequence[int]) -> None:
        destination, wanted = self._wanted.pop(look)
        queue = self._destinations.queues.get(destination)
        if queue is None:
            # A topic need not keep what everybody has got.
            return
        missing = [n for n in sorted(wanted.difference(numbers)) if n <= through and n in queue.live]
        self.world.probe("model.page_shown")
        if missing:
            self.fail(f"{missing[:3]} were confirmed before a page of {destination} and are not in it")


class Convergence(Checker):
    """Once nothing fails any more, all replicas are equal, and one of them leads."""

    promise = "I17 liveness"

    def what_is_open(self, facts: dict[int, NodeFacts]) -> str:
        """What still has to happen; nothing when all is quiet."""
        leading = [node for node, fact in facts.items() if fact.is_leading]
        if len(leading) != 1:
            return f"nodes {leading} lead"
        applied = {fact.applied for fact in facts.values()}
        if len(applied) > 1:
            return f"the replicas have applied {sorted(applied)}"
        return ""

    def at_end(self, facts: dict[int, NodeFacts]) -> None:
        if text := self.what_is_open(facts):
            self.fail(text)
        digests = {fact.digest: node for node, fact in facts.items()}
        if len(digests) > 1:
            self.fail(f"nodes {sorted(digests.values())} differ after the same number")


class TotalDestinations(TotalTopic):
    """The history of queues and topics together."""

    promise = "total history"

    def at_quiet(self, facts: dict[int, int]) -> None:
        super().at_quiet(facts)
        assert self.topics is not None, "the model watches, too"
        for queue in self.topics.queues.values():
            places = queue.live.union(queue.acknowledged)
            lost = sorted(
                place
                for body, place in self._confirmed.items()
                if place in places and body not in self._number_of
            )
            if lost:
                self.fail(f"{len(lost)} confirmed messages were never delivered, the first is {lost[0]}")
