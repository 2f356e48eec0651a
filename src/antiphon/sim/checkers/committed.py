"""The committed log by the disks alone: no node believes more or forgets any of it (I6, I10).

    I6   a node that calls a number committed, or applies it, is right: commit_quantity commit servers have,
         or had, its entry durably in a log of one epoch
    I10  an entry that was committed in an epoch is in the log of every later epoch, as its sequencer sends it
         and as servers write it

A number is committed from the moment at which enough disks hold it, which is before any node can know; so
every statement of a node can be compared. This log is the ghost that other checkers read: the first entry
ever committed at a number, over all lives of all nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

from antiphon.bus import messages as m
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import Entry, ServerStatus
from antiphon.ids import Mid
from antiphon.sim.checkers.reigns import EpochLog, Reigns, tail, words
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World

# The field of a message which says that everything up to a number is committed.
_CLAIMS: Final[dict[type[Any], str]] = {
    m.Commit: "committed_upto",
    m.CommitSubmit: "committed_upto",
    m.Heartbeat: "committed_upto",
    m.EpochStart: "committed_upto",
    m.Seal: "candidate_committed",
    m.SealOk: "committed_upto",
    m.FetchIdReply: "committed_upto",
    m.FetchRangeReply: "committed_upto",
    m.CheckpointReport: "seq",
    m.Presence: "applied",
    m.Applied: "upto",
}
_WITH_ENTRIES: Final = (m.Commit, m.FetchIdReply, m.FetchRangeReply)


class Memberships:
    """All configurations that a group has had in a run, and the configuration of each epoch.

    An epoch is sealed in one configuration and stays in it, so quantities are asked by epoch.
    """

    def __init__(self, config: GroupConfig) -> None:
        self._configs: dict[int, GroupConfig] = {}
        self._config_of: dict[int, int] = {}
        self.add(config)

    def add(self, config: GroupConfig) -> None:
        self._configs[config.config_id] = config
        self.newest = config

    def bind(self, epoch: int, config_id: int) -> GroupConfig | None:
        """An epoch is sealed in this configuration; None if that cannot be: unknown, or sealed in another."""
        if self._config_of.setdefault(epoch, config_id) != config_id:
            return None
        return self._configs.get(config_id)

    def of_epoch(self, epoch: int) -> GroupConfig:
        config_id = self._config_of.get(epoch)
        return self.newest if config_id is None else self._configs[config_id]


class Committed(Checker):
    """The ghost log, and everything that must agree with it."""

    promise = "I6, I10 committed"
    hears = (*_CLAIMS, m.CommitAcknowledge)

    def __init__(
        self, world: World, memberships: Memberships, disks: WriteBeforeSend, reigns: Reigns
    ) -> None:
        super().__init__(world)
        self.memberships = memberships
        self.log: dict[int, Entry] = {}
        self.upto = 0
        self.place_of: dict[Mid, int] = {}
        # Called with every entry when it is first committed, in order.
        self.followers: list[Callable[[Entry], None]] = []
        self._disks = disks
        self._reigns = reigns
        reigns.on_new = self._on_new
        # Parallel to the entries: their first numbers, and the epochs in which they were first committed.
        self._firsts: list[int] = []
        self._epochs: list[int] = []
        # By epoch: how far each server has held its log durably, and how far that is committed.
        self._held: dict[int, dict[int, int]] = {}
        self._upto_in: dict[int, int] = {}
        self._noticed: dict[int, tuple[int, int]] = {}
        self._seen: m.BusMessage | None = None

    def covering(self, number: int) -> Entry | None:
        at = bisect_right(self._firsts, number) - 1
        if at < 0 or number > self.upto:
            return None
        return self.log[self._firsts[at]]

    @property
    def config_id(self) -> int:
        """The configuration of the epoch that committed the last entry."""
        epoch = self._epochs[-1] if self._epochs else 0
        return self.memberships.of_epoch(epoch).config_id

    def epoch_of(self, number: int) -> int:
        return self._epochs[bisect_right(self._firsts, number) - 1]

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._noticed[node] = (found.log_epoch, found.last)
        self._count(node, found)

    def on_durable(self, node: int, index: int) -> None:
        image = self._disks.images[node]
        epoch, last = image.log_epoch, image.last
        before_epoch, before_last = self._noticed[node]
        if (epoch, last) == (before_epoch, before_last):
            return
        self._noticed[node] = (epoch, last)
        if epoch != before_epoch and last < (needed := self._upto_before(epoch)):
            self.fail(
                f"node {node} begins epoch {epoch:#x} with a log through {last}, {needed} was committed"
            )
        if epoch:
            self._count(node, image)
        else:
            # A node without a vote keeps the entries it heard to be committed.
            for entry in tail(image.log, before_last):
                self._compare(entry, f"node {node} keeps")

    def _count(self, node: int, image: Image) -> None:
        epoch, last = image.log_epoch, image.last
        log = self._reigns.logs.get(epoch)
        config = self.memberships.of_epoch(epoch)
        if log is None or node not in config.commit_servers:
            return
        if not image.log and not self._is_of(epoch, log, last):
            return
        held = self._held.setdefault(epoch, {})
        if last <= held.get(node, 0):
            return
        held[node] = last
        if len(held) >= config.commit_quantity:
            reached = sorted(held.values(), reverse=True)[config.commit_quantity - 1]
            if reached > self._upto_in.get(epoch, 0):
                self._commit(epoch, log, reached)

    def _is_of(self, epoch: int, log: EpochLog, last: int) -> bool:
        """Is this base in the log of the epoch, as it was committed?

        A server with a checkpoint of others may stand at a number which the epoch that last wrote its log
        never reached, or gave to another entry. Then the server holds nothing in that epoch.
        """
        known = self.covering(last)
        if last > log.last or known is None:
            return last <= log.last
        entry = log.at.get(known.first)
        return entry == known if entry is not None else self.epoch_of(last) <= epoch

    def _commit(self, epoch: int, log: EpochLog, reached: int) -> None:
        number = self._upto_in.get(epoch, log.start) + 1
        self._upto_in[epoch] = reached
        while number <= reached:
            entry, known = log.at.get(number), self.covering(number)
            if known is None:
                if entry is None:
                    self.fail(f"epoch {epoch:#x} commits {number}, and nobody has seen what that is")
                self._take(epoch, entry)
            elif entry is not None and known != entry:
                self.fail(f"{words(known)} was committed, and epoch {epoch:#x} commits {words(entry)}")
            number = (entry or known).last + 1  # type: ignore[union-attr]

    def _take(self, epoch: int, entry: Entry) -> None:
        if entry.first != self.upto + 1:
            self.fail(f"{words(entry)} was committed behind {self.upto}")
        self.log[entry.first] = entry
        self._firsts.append(entry.first)
        self._epochs.append(epoch)
        self.upto = entry.last
        if epoch < self._reigns.highest:
            self._compare_later(epoch, entry)
        if entry.kind is m.EntryKind.DATA:
            self.place_of.setdefault(entry.mid, entry.first)
        elif entry.kind is m.EntryKind.CONFIG:
            self.memberships.add(GroupConfig.decode(entry.detail))
        for follow in self.followers:
            follow(entry)

    def _compare_later(self, epoch: int, entry: Entry) -> None:
        """The entry was committed late: later epochs have begun, and must have the entry."""
        self.world.probe("committed.late")
        for later, log in self._reigns.logs.items():
            if later > epoch and (entry.last > log.last or log.at.get(entry.first, entry) != entry):
                self.fail(f"epoch {later:#x} began without {words(entry)}, committed in epoch {epoch:#x}")

    def _on_new(self, epoch: int, entry: Entry) -> None:
        if entry.first > self.upto:
            return
        known = self.covering(entry.first)
        is_bound = entry.last <= self._upto_in.get(epoch, 0) or self.epoch_of(entry.first) < epoch
        if is_bound and known != entry:
            assert known is not None, "it is below the last committed number"
            self.fail(f"epoch {epoch:#x} has {words(entry)}, where {words(known)} was committed")

    def _upto_before(self, epoch: int) -> int:
        """The number through which earlier epochs committed the order."""
        return max([upto for earlier, upto in self._upto_in.items() if earlier < epoch], default=0)

    def on_sent(self, node: int, message: m.BusMessage) -> None:
        if isinstance(message, m.CommitAcknowledge):
            self._compare_acknowledgement(node, message)
            return
        kind = type(message)
        claimed = getattr(message, _CLAIMS[kind])
        if claimed > self.upto:
            self.fail(f"node {node} says in {kind.__name__} that {claimed} is committed, {self.upto} is")
        if isinstance(message, _WITH_ENTRIES):
            if message is not self._seen:
                self._seen = message
                for entry in message.entries:
                    self._compare(entry, f"node {node} says in {kind.__name__}")
        elif isinstance(message, m.EpochStart):
            self._compare_start(message)
        elif isinstance(message, m.Seal):
            self._bind(message.epoch, message.config_id)
        elif isinstance(message, m.SealOk):
            self._compare_seal(node, message)

    def _bind(self, epoch: int, config_id: int) -> None:
        if self.memberships.bind(epoch, config_id) is None:
            self.fail(f"epoch {epoch:#x} is not of configuration {config_id}")

    def _compare_start(self, start: m.EpochStart) -> None:
        self._bind(start.epoch, start.config_id)
        last = start.entries[-1].last if start.entries else start.from_seq - 1
        last, needed = start.through or last, self._upto_before(start.epoch)
        if last < needed:
            self.fail(f"epoch {start.epoch:#x} begins with a log through {last}, {needed} was committed")

    def _compare_acknowledgement(self, node: int, said: m.CommitAcknowledge) -> None:
        """A server that acknowledges in an epoch holds that epoch's log, not only its number."""
        held = self._held.get(said.epoch, {}).get(node, 0)
        if said.status is ServerStatus.OK and said.last > held:
            self.fail(
                f"node {node} acknowledges {said.last} in epoch {said.epoch:#x}, of which it holds {held}"
            )

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        self._compare(entry, f"node {node} applies")

    def _compare(self, entry: Entry, who: str) -> None:
        known = self.log.get(entry.first)
        if known is None:
            self.fail(f"{who} {words(entry)}, which is not committed")
        if known is not entry and known != entry:
            self.fail(f"{who} {words(entry)}, where {words(known)} was committed")

    def _compare_seal(self, node: int, seal: m.SealOk) -> None:
        """Only the epoch that wrote a server's entries tells which of them the server may call committed."""
        for entry in self._disks.images[node].log:
            if entry.first > seal.committed_upto:
                break
            self._compare(entry, f"node {node} calls committed what it holds,")
