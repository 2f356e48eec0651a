"""Promises to clients in a cluster, where client managers deliver the messages of message managers.

I14  a term has one primary; a node acts as primary only after it has applied its own claim; and a
     proposal of a primary is void unless its term is current
I17  once nothing fails any more, all replicas are equal, and one of them leads
I19  a page shows every message that was confirmed to the session before the page was asked for, and a
     subscription that was confirmed to the session is found
I24  a node keeps its disk even if the node's software cannot read it: no other node could read it either.
     Only a damaged superblock, a damaged order and a failed sync take a disk out of use, together with
     its id: under that id others would count what is not there any more
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
    Registered,
)
from antiphon.ids import epoch_node
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.model import Destinations
from antiphon.sim.checkers.watch import Checker, NodeFacts
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)


class Primaries(Checker):
    """The node that claimed each term, and the nodes that act as its primary."""

    promise = "I14 primary"
    hears = (Deliver, Registered, ConsumerEnded, Heartbeat)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._claims: dict[int, int] = {}
        self._claimed_at: dict[int, int] = {}
        # The terms that each node has applied in its present life, by entries or with a checkpoint.
        self._seen: dict[int, set[int]] = {}
        # The life in which the primary of a term spoke.
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
    """Compares pages with the messages that had been confirmed to the asking session."""

    promise = "I19 read"

    def __init__(self, world: World, destinations: Destinations) -> None:
        super().__init__(world)
        self._destinations = destinations
        self._confirmed: dict[int, set[int]] = {}
        # The destination and numbers that a page must show, unless they are acknowledged by then.
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
            # A topic need not keep what every subscription has acknowledged.
            return
        # Browsing leaves out messages that are early or over.
        shown = wanted.difference(self._destinations.ruled)
        missing = [n for n in sorted(shown.difference(numbers)) if n <= through and n in queue.live]
        self.world.probe("model.page_shown")
        if missing:
            self.fail(f"{missing[:3]} were confirmed before a page of {destination} and are not in it")


class Convergence(Checker):
    promise = "I17 liveness"

    def what_is_open(self, facts: dict[int, NodeFacts]) -> str:
        """What still has to happen, in words; empty when all is quiet."""
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


class SameDisks(Checker):
    """The first disk of each node."""

    promise = "I24 disks"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._disk_of: dict[int, bytes] = {}
        self._replaced: dict[int, set[bytes]] = {}

    def on_replaced(self, node: int) -> None:
        self._replaced.setdefault(node, set()).add(self._disk_of.pop(node, b""))

    def on_opened(self, node: int, disk_id: bytes, aside: int) -> None:
        known = self._disk_of.setdefault(node, disk_id)
        if disk_id != known:
            self.fail(f"node {node} gave up its disk {known.hex()[:8]}, which was whole")
        if disk_id in self._replaced.get(node, ()):
            self.fail(f"node {node} begins anew under the id of the disk that it put aside")
        if aside and node not in self._replaced:
            self.fail(f"node {node} put {aside} files of a whole disk aside")

    def on_refused(self, node: int, is_changed: bool) -> None:
        if is_changed:
            self.fail(f"node {node} refused to start and changed its disk all the same")
