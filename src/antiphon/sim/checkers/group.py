"""Promises of a group beside its order (Q1, I12, I17, I18).

Q1   copies     a numbered envelope is held by enough data servers, the sequencer's own among them: it
                survives the failures that the group is made for, and the leader has it
I12  deletion   payloads and entries up to a number go only when a checkpoint at or behind it is stable,
                and the entry that says so is committed; an envelope without a number goes only when it
                can never get one: it is not in the order, and its run is over or the order passed ts + L
I17  liveness   once nothing fails any more, one node leads, no node waits for an envelope, and all
                members have applied the committed entries, and are equal
I18  damage     a commit server whose disk is damaged, or is not the listed one, promises and acknowledges
                nothing, and never says that something is not there
"""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.entries import QuantityDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage, CommitSubmit, DataReport, Entry, EntryKind, ServerStatus
from antiphon.ids import Mid
from antiphon.sim.checkers.committed import Committed, Memberships
from antiphon.sim.checkers.order import Checkpoints, Monotone, Order
from antiphon.sim.checkers.producers import Failures, SubmittedEnvelopes
from antiphon.sim.checkers.reigns import Reigns
from antiphon.sim.checkers.watch import Checker, NodeFacts
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World


class Copies(Checker):
    """Counts the reports of an envelope when it is first submitted with a number; their truth is I15.

    Where envelopes are numbered when they arrive, a server that acknowledges an entry which is not committed
    yet must hold its envelope, and the sequencer an envelope that it calls committed.
    """

    promise = "Q1 copies"
    hears = (CommitSubmit, DataReport, m.CommitAcknowledge, m.Commit, m.EpochStart, m.Heartbeat)

    def __init__(self, world: World, disks: WriteBeforeSend, committed: Committed) -> None:
        super().__init__(world)
        self._disks = disks
        self._memberships = committed.memberships
        self._acknowledged: dict[tuple[int, int], int] = {}
        self._told: set[Mid] = set()
        # Through which number a sequencer has called the order committed.
        self._called_upto = 0
        self._holders: dict[Mid, set[int]] = {}
        # For each epoch the last QUANTITY of its own making: its number, and how many copies it asks for.
        self._quantities: dict[int, tuple[int, int]] = {}
        self.numbered: set[Mid] = set()
        self._seen: BusMessage | None = None

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, CommitSubmit | m.Commit | m.EpochStart | m.Heartbeat):
            self._called_upto = max(self._called_upto, message.committed_upto)
        if isinstance(message, DataReport):
            for item in message.items:
                self._holders.setdefault(item.mid, set()).add(node)
        elif isinstance(message, CommitSubmit) and message is not self._seen:
            self._seen = message
            for entry in message.entries:
                if entry.kind is EntryKind.QUANTITY and entry.mid.pe == message.epoch:
                    asked = entry.first, QuantityDetail.decode(entry.detail).data_quantity
                    self._quantities[message.epoch] = max(asked, self._quantities.get(message.epoch, asked))
                elif entry.kind is EntryKind.DATA and entry.mid not in self.numbered:
                    self.numbered.add(entry.mid)
                    if not self._memberships.of_epoch(message.epoch).numbers_on_arrival:
                        self._count(node, message.epoch, entry.mid)
        elif isinstance(message, m.CommitAcknowledge) and message.status is ServerStatus.OK:
            if self._memberships.of_epoch(message.epoch).numbers_on_arrival:
                self._look_at_acknowledged(node, message)
        elif isinstance(message, m.Commit) and self._memberships.of_epoch(message.epoch).numbers_on_arrival:
            self._look_at_committed(node, message)

    def _look_at_committed(self, node: int, commit: m.Commit) -> None:
        mids = self._disks.images[node].mids
        for entry in commit.entries:
            if entry.kind is EntryKind.DATA and entry.mid not in self._told:
                self._told.add(entry.mid)
                if entry.mid not in mids:
                    self.fail(f"node {node} calls {tuple(entry.mid)} committed, and does not hold it")

    def _look_at_acknowledged(self, node: int, message: m.CommitAcknowledge) -> None:
        image = self._disks.images[node]
        key = node, message.epoch
        before = self._acknowledged.get(key, 0)
        self._acknowledged[key] = max(before, message.last)
        for entry in image.log:
            if entry.kind is not EntryKind.DATA or not before < entry.last <= message.last:
                continue
            if entry.last > self._called_upto and entry.mid not in image.mids:
                self.fail(f"node {node} acknowledges number {entry.first}, and lacks {tuple(entry.mid)}")

    def _count(self, node: int, epoch: int, mid: Mid) -> None:
        config = self._memberships.of_epoch(epoch)
        holders = [one for one in config.data_servers if one in self._holders.get(mid, ())]
        if node not in holders:
            self.fail(
                f"node {node} numbers envelope {tuple(mid)}, which its own data server has not reported"
            )
        needed = self._needed(epoch, config)
        if len(holders) < needed:
            self.fail(f"envelope {tuple(mid)} is numbered, {needed} must hold it and {holders} do")

    def _needed(self, epoch: int, config: GroupConfig) -> int:
        """How many copies the order asks for, and never fewer than the configuration allows."""
        least = config.min_copies or config.data_quantity
        if epoch in self._quantities:
            return max(least, self._quantities[epoch][1])
        # The log that the epoch adopted may hold what an epoch before it asked for.
        return least if self._quantities else config.data_quantity


class Deletions(Checker):
    """Watches the base of every log, and the envelopes that data servers give up."""

    promise = "I12 deletion"

    def __init__(
        self, world: World, disks: WriteBeforeSend, committed: Committed, failures: Failures
    ) -> None:
        super().__init__(world)
        self._disks = disks
        self._committed = committed
        self._failures = failures
        committed.followers.append(self._on_committed)
        self._stable = 0
        self._bases: dict[int, int] = {}
        self._damaged: set[int] = set()

    def _on_committed(self, entry: Entry) -> None:
        if entry.kind is EntryKind.CHECKPOINT_STABLE:
            self._stable = max(self._stable, StableDetail.decode(entry.detail).n)

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._bases[node] = found.base
        self.on_released(node, found.base)

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_durable(self, node: int, index: int) -> None:
        base = self._disks.images[node].base
        if base != self._bases[node]:
            self._bases[node] = base
            self.on_released(node, base)

    def on_released(self, node: int, base: int) -> None:
        if base > self._stable:
            self.fail(
                f"node {node} gives up all through {base}, the last stable checkpoint is {self._stable}"
            )

    def on_restored(self, node: int, n: int) -> None:
        if n > self._stable:
            self.fail(f"node {node} took over the checkpoint at {n}, the last stable one is {self._stable}")

    def on_discarded(self, node: int, mid: Mid) -> None:
        first = self._committed.place_of.get(mid)
        if first is None:
            if not self._failures.is_hopeless(mid):
                self.fail(f"node {node} gives up {tuple(mid)}, which may still get a number")
        elif self._committed.log[first].last > self._stable and node not in self._damaged:
            # On a damaged disk the copy cannot be read, and another data server has one.
            self.fail(f"node {node} gives up {tuple(mid)}, and no stable checkpoint covers number {first}")


_FORGETFUL = (ServerStatus.DAMAGED, ServerStatus.AMNESIA)


class Damage(Checker):
    """The status of each server, from the runner and from the server's own messages."""

    promise = "I18 damage"
    hears = (
        m.SealOk,
        m.SealNack,
        m.CommitAcknowledge,
        m.FetchLogReply,
        m.FetchIdReply,
        m.FetchRangeReply,
        m.StoredReply,
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._status: dict[int, ServerStatus] = {}

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._status.pop(node, None)

    def on_status(self, node: int, status: ServerStatus) -> None:
        self._status[node] = status

    def on_sent(self, node: int, message: m.BusMessage) -> None:
        if isinstance(message, m.SealNack | m.CommitAcknowledge) and message.status in _FORGETFUL:
            self._status[node] = message.status
        if self._status.get(node) not in _FORGETFUL:
            return
        status = self._status[node].name
        match message:
            case m.SealOk() | m.FetchLogReply():
                self.fail(f"node {node} is {status} and gives its log to a candidate")
            case m.CommitAcknowledge(status=ServerStatus.OK):
                self.fail(f"node {node} is {status} and acknowledges")
            case m.FetchIdReply(entries=()) | m.FetchRangeReply(entries=()):
                self.fail(f"node {node} is {status} and says that there are no entries")
            case m.StoredReply(is_gone=True):
                self.fail(f"node {node} is {status} and says that a checkpoint is gone")
            case _:
                pass


class Liveness(Checker):
    """Compares the nodes at the end."""

    promise = "I17 liveness"

    def __init__(self, world: World, committed: Committed) -> None:
        super().__init__(world)
        self._committed = committed

    def what_is_open(self, facts: dict[int, NodeFacts]) -> str:
        """What still has to happen, in words; empty when all is quiet."""
        committed = self._committed
        leading = [node for node, fact in facts.items() if fact.is_leading]
        if len(leading) != 1:
            return f"nodes {leading} lead"
        for node, fact in facts.items():
            if fact.waits_for:
                return f"node {node} waits for {fact.waits_for} envelopes"
        digests: dict[bytes, int] = {}
        for node in committed.memberships.newest.data_servers:
            member = facts.get(node)
            if member is None:
                return f"node {node} is down"
            if member.applied != committed.upto:
                return f"node {node} has applied {member.applied}, {committed.upto} is committed"
            digests.setdefault(member.digest, node)
        if len(digests) > 1:
            return f"nodes {sorted(digests.values())} differ after {committed.upto}"
        return ""

    def at_end(self, facts: dict[int, NodeFacts]) -> None:
        if text := self.what_is_open(facts):
            self.fail(text)


def cluster_checkers(world: World, config: GroupConfig) -> tuple[Checker, ...]:
    """Checkers that others read come first: the disks, the logs of epochs, the committed log."""
    disks = WriteBeforeSend(world)
    reigns = Reigns(world, disks)
    memberships = Memberships(config)
    committed = Committed(world, memberships, disks, reigns)
    failures = Failures(world, committed)
    return (
        disks,
        Monotone(world, disks),
        reigns,
        committed,
        Order(world),
        Copies(world, disks, committed),
        failures,
        SubmittedEnvelopes(world, committed),
        Deletions(world, disks, committed, failures),
        Checkpoints(world),
        Damage(world),
        Liveness(world, committed),
    )
