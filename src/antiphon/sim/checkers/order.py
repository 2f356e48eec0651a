"""One order for ever (I1, I2, I3, I5).

    I1  agreement   whatever is applied as number n, on any node and in any life, is the same entry
    I2  contiguity  a life applies start+1, start+2, … where start is 0 or the checkpoint it began with
    I3  integrity   what is applied was sent, with that digest, and an envelope has one place only
    I5  FIFO        the envelopes of one producer run have places in the order in which they were sent,
                    and none is missing in between

The ghost log `committed` holds the first entry ever seen committed at a number, over all lives.
"""

from __future__ import annotations

from bisect import bisect_right

from antiphon.bus.messages import BusMessage, Commit, Data, Entry, EntryKind
from antiphon.ids import Mid
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World


class Order(Checker):
    """Watches what is committed and applied."""

    promise = "I1-I3, I5 one order"
    hears = (Data, Commit)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.committed: dict[int, Entry] = {}
        self.committed_upto = 0
        self._firsts: list[int] = []
        self._sent: dict[Mid, bytes] = {}
        self._place_of: dict[Mid, int] = {}
        self._last_pseq: dict[tuple[int, int], int] = {}
        self._applied: dict[int, int] = {}

    def covering(self, number: int) -> Entry | None:
        """The committed entry that owns a number."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        entry = self.committed[self._firsts[at]]
        return entry if number <= entry.last else None

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self.on_restored(node, checkpoint)

    def on_restored(self, node: int, n: int) -> None:
        if n:
            entry = self.covering(n)
            if entry is None:
                self.fail(f"node {node} starts from a checkpoint at {n}, where nothing was committed")
            if entry.last != n:
                self.fail(f"the checkpoint of node {node} at {n} cuts {_words(entry)}")
        self._applied[node] = n

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Data):
            before = self._sent.setdefault(message.mid, message.digest)
            if before != message.digest:
                self.fail(f"envelope {message.mid} was sent with two different contents")
        elif isinstance(message, Commit):
            for entry in message.entries:
                self._commit(node, entry)

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        applied = self._applied[node]
        if entry.first != applied + 1:
            self.fail(f"node {node} applied {entry.first} after {applied}")
        self._applied[node] = entry.last
        self._commit(node, entry)

    def _commit(self, node: int, entry: Entry) -> None:
        known = self.committed.get(entry.first)
        if known is None:
            self._commit_first(entry)
        elif known != entry:
            self.fail(f"number {entry.first} was {_words(known)}, and node {node} now has {_words(entry)}")

    def _commit_first(self, entry: Entry) -> None:
        if entry.first != self.committed_upto + 1:
            self.fail(f"{_words(entry)} was committed behind {self.committed_upto}")
        self.committed[entry.first] = entry
        self._firsts.append(entry.first)
        self.committed_upto = entry.last
        if entry.kind is not EntryKind.DATA:
            return
        if self._sent.get(entry.mid) != entry.digest:
            self.fail(f"{_words(entry)} was never sent with that content")
        if (place := self._place_of.setdefault(entry.mid, entry.first)) != entry.first:
            self.fail(f"envelope {entry.mid} has two places, {place} and {entry.first}")
        run = (entry.mid.pid, entry.mid.pe)
        before = self._last_pseq.get(run, 0)
        if entry.mid.pseq != before + 1:
            self.fail(f"envelope {entry.mid} has a place behind number {before} of its run")
        self._last_pseq[run] = entry.mid.pseq


def _words(entry: Entry) -> str:
    return f"{entry.kind.name} {entry.first}..{entry.last} {tuple(entry.mid)}"
