"""One order for ever, and statements about it stay true (I1-I5, I8, I10, I11).

    I1   agreement   the entry applied as number n is the same on every node and in every life
    I2   contiguity  a life applies start+1, start+2, … where start is 0 or the checkpoint it began with
    I3   integrity   an applied envelope was sent, with that digest, and has one place only
    I4   durability  a command that was confirmed to a client has the place it was told, now and for ever
    I5   FIFO        the envelopes of one producer run have places in the order in which they were sent, and
                     none is missing in between
    I8   monotone    promised, log_epoch and base of a commit server never go back, also across a crash;
                     log_epoch is never above promised; an epoch once claimed is never claimed again
    I10  epochs      a node comes back with everything ever committed, and starts its epoch with it
    I11  checkpoint  two checkpoints after one number have one digest, in every life of every node; a stable
                     checkpoint was reported with that digest by the nodes that the order names

The ghost log `committed` holds the first entry ever seen committed at a number, over all lives. A commit
server's messages and its disk are watched apart: two answers of one step may leave in any order, the promise
of a higher epoch before that of a lower one. But no later life may find less than was said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from antiphon.bus.entries import StableDetail
from antiphon.bus.messages import (
    BusMessage,
    CheckpointReport,
    Commit,
    CommitAcknowledge,
    Data,
    Entry,
    EntryKind,
    EpochStart,
    Seal,
    SealOk,
    ServerStatus,
)
from antiphon.ids import Mid
from antiphon.sim.checkers.model import Queues
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode


class Order(Checker):
    """Watches committed and applied entries."""

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


class Confirmations(Checker):
    """Compares the confirmations of clients with the ghost log."""

    promise = "I4, I10 durability"

    def __init__(self, world: World, order: Order, queues: Queues) -> None:
        super().__init__(world)
        self._order = order
        self._queues = queues

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        if code == OutcomeCode.DUPLICATE and sequence == 0:
            # Forgotten because the client had confirmed hearing of the outcome: simulated clients never
            # resend such a command.
            self.fail(f"number {number} of session {session:#x} is a duplicate of nobody knows what")
        if code not in (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE):
            return
        for row in range(count):
            place = self._queues.place_of.get((session, number + row))
            if place != sequence + row:
                self.fail(
                    f"number {number + row} of session {session:#x} was confirmed at {sequence + row}, "
                    f"and the order has it at {place}"
                )
            if self._order.covering(sequence + row) is None:
                self.fail(f"{sequence + row} was confirmed and never committed")


class Durability(Confirmations):
    """Compares the ghost log with each new life of a lone node, too."""

    def on_sent(self, node: int, message: BusMessage) -> None:
        if not isinstance(message, EpochStart):
            return
        last = message.entries[-1].last if message.entries else message.from_seq - 1
        if last < self._order.committed_upto:
            self.fail(
                f"epoch {message.epoch:#x} begins with a log through {last}, "
                f"{self._order.committed_upto} was committed"
            )
        self._compare(node, message.entries)

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        last = found.last
        committed = self._order.committed_upto
        if last < committed:
            self.fail(f"node {node} came back with a log through {last}, {committed} was committed")
        self._compare(node, found.log)

    def _compare(self, node: int, entries: Sequence[Entry]) -> None:
        for entry in entries:
            known = self._order.committed.get(entry.first)
            if known is not None and known != entry:
                self.fail(f"node {node} has another entry at {entry.first} than was committed")


class Monotone(Checker):
    """Watches a commit server's messages and records, and the disk that each new life finds."""

    promise = "I8 monotone"
    hears = (CommitAcknowledge, Seal, SealOk)

    def __init__(self, world: World, disks: WriteBeforeSend | None = None) -> None:
        super().__init__(world)
        self._disks = disks
        self._seen: dict[tuple[int, str], int] = {}
        self._on_disk: dict[int, tuple[int, int, int]] = {}
        self._sealed: dict[int, tuple[int, int]] = {}
        self._life: dict[int, int] = {}
        self._damaged: set[int] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._life[node] = self._life.get(node, 0) + 1
        self._on_disk[node] = (found.promised, found.epoch_max, found.base)
        if node in self._damaged:
            # The disk differs from what was written; the server's messages still count.
            self._damaged.discard(node)
        else:
            self._rise(node, promised=found.promised, log_epoch=found.epoch_max, base=found.base)

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_replaced(self, node: int) -> None:
        self._seen = {key: value for key, value in self._seen.items() if key[0] != node}

    def on_durable(self, node: int, index: int) -> None:
        if self._disks is None:
            return
        image = self._disks.images[node]
        before, now = self._on_disk[node], (image.promised, image.epoch_max, image.base)
        if now == before:
            return
        self._on_disk[node] = now
        for name, old, new in zip(("promised", "log_epoch", "base"), before, now, strict=True):
            if new < old:
                self.fail(f"{name} on the disk of node {node} went back from {old:#x} to {new:#x}")
        if image.epoch_max > image.promised:
            self.fail(f"the disk of node {node} has a log of an epoch it never promised")

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, SealOk):
            self._promise(node, message.epoch)
            self._rise(node, base=message.base)
            if message.log_epoch:
                # A log of a former configuration is told as epoch 0; the disk tells which epoch it is.
                self._rise(node, log_epoch=message.log_epoch)
        elif isinstance(message, CommitAcknowledge):
            if message.last and message.status is ServerStatus.OK:
                self._promise(node, message.epoch)
                self._rise(node, log_epoch=message.epoch)
        elif isinstance(message, Seal):
            claim = (node, self._life[node])
            if self._sealed.setdefault(message.epoch, claim) != claim:
                self.fail(f"node {node} claims epoch {message.epoch:#x} again in another life")

    def _promise(self, node: int, epoch: int) -> None:
        self._seen[node, "promised"] = max(self._seen.get((node, "promised"), 0), epoch)

    def _rise(self, node: int, **values: int) -> None:
        for name, value in values.items():
            before = self._seen.get((node, name), 0)
            if value < before:
                self.fail(f"{name} of node {node} went back from {before:#x} to {value:#x}")
            self._seen[node, name] = value
        if self._seen.get((node, "log_epoch"), 0) > self._seen.get((node, "promised"), 0):
            self.fail(f"node {node} has a log of an epoch it never promised")


class Checkpoints(Checker):
    """Compares the digests that checkpoint servers report."""

    promise = "I11 checkpoint"
    hears = (CheckpointReport,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._digests: dict[int, bytes] = {}
        self._holders: dict[int, set[int]] = {}

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, CheckpointReport):
            known = self._digests.setdefault(message.seq, message.digest)
            self._holders.setdefault(message.seq, set()).add(node)
            if known is message.digest:
                self.world.probe("checkpoint.reported")
            elif known != message.digest:
                self.fail(f"node {node} has another state after {message.seq} than was reported before")

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.kind is not EntryKind.CHECKPOINT_STABLE:
            return
        stable = StableDetail.decode(entry.detail)
        if self._digests.get(stable.n) != stable.digest:
            self.fail(f"the checkpoint at {stable.n} is called stable with a digest that nobody reported")
        if not self._holders[stable.n].issuperset(stable.holders):
            self.fail(f"the checkpoint at {stable.n} is called stable at nodes that never reported it")
