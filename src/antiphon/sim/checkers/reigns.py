"""One log per epoch (I7, I9).

    I7  all COMMIT_SUBMIT and EPOCH_START of an epoch come from the node whose epoch it is, in one life, and
        are pieces of one log
    I7  and nothing stands behind the entry that ends the configuration of the epoch: one change at a time
    I9  the logs of two commit servers with the same log_epoch are one a prefix of the other

The checker builds one log for each epoch, from the sequencer's messages and from the servers' disks. Every
message and every disk must agree with it. An entry is compared when it is first sent or first durable
somewhere, a whole log only when its epoch began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage, CommitSubmit, Entry, EntryKind, EpochStart
from antiphon.ids import epoch_node
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World


class EpochLog:
    """The log of one epoch, through `last`. Entries behind `start` may be unknown: the start of an epoch is
    sent in pages, and every server gets only those that it lacks."""

    __slots__ = ("at", "author", "config_id", "end", "last", "start")

    def __init__(self, start: int, last: int, author: tuple[int, int], config_id: int) -> None:
        self.start = start
        self.last = last
        self.at: dict[int, Entry] = {}
        # The node that leads in this epoch, and its life.
        self.author = author
        # The configuration of the epoch, and the number at which it ends, if it does.
        self.config_id = config_id
        self.end: int | None = None


class Reigns(Checker):
    """Builds the log of every epoch."""

    promise = "I7, I9 one log per epoch"
    hears = (CommitSubmit, EpochStart)

    def __init__(self, world: World, disks: WriteBeforeSend) -> None:
        super().__init__(world)
        self.logs: dict[int, EpochLog] = {}
        self.highest = 0
        # Called with every entry when it first becomes part of the log of an epoch.
        self.on_new: Callable[[int, Entry], None] = _ignore
        self._disks = disks
        self._compared: dict[int, tuple[int, int]] = {}
        self._seen: BusMessage | None = None

    def on_sent(self, node: int, message: BusMessage) -> None:
        assert isinstance(message, CommitSubmit | EpochStart), "nothing else is heard"
        epoch = message.epoch
        log = self.logs.get(epoch)
        if epoch_node(epoch) != node:
            self.fail(f"node {node} speaks for epoch {epoch:#x}, which is another's")
        author = (node, self._disks.lives[node])
        if log is not None and log.author != author:
            self.fail(f"node {node} speaks for epoch {epoch:#x} again in another life")
        if message is self._seen:
            return
        self._seen = message
        prev = message.from_seq - 1 if isinstance(message, EpochStart) else message.prev
        last = message.entries[-1].last if message.entries else prev
        if message.entries and message.entries[0].first != prev + 1:
            self.fail(f"epoch {epoch:#x} puts number {message.entries[0].first} behind {prev}")
        if isinstance(message, EpochStart):
            last = message.through or last
            if log is None:
                log = self.logs[epoch] = EpochLog(prev, last, author, message.config_id)
                self.highest = max(self.highest, epoch)
        elif log is None:
            self.fail(f"epoch {epoch:#x} submits entries and never began")
        if prev > log.last:
            self.fail(f"epoch {epoch:#x} speaks of what follows {prev}, and its log ends at {log.last}")
        log.last = max(log.last, last)
        self._merge(epoch, log, message.entries, f"epoch {epoch:#x} says")
        if log.end is not None and log.last > log.end:
            self.fail(f"epoch {epoch:#x} goes on behind {log.end}, where its configuration ends")

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._compared.pop(node, None)
        self._compare_disk(node)

    def on_durable(self, node: int, index: int) -> None:
        self._compare_disk(node)

    def _compare_disk(self, node: int) -> None:
        image = self._disks.images[node]
        epoch, last = image.log_epoch, image.last
        before = self._compared.get(node, (0, 0))
        # The log of a node without a vote was written by no epoch.
        if (epoch, last) == before or not epoch:
            return
        self._compared[node] = (epoch, last)
        entries: Sequence[Entry] = image.log
        if epoch == before[0]:
            entries = tail(image.log, before[1])
        if not entries:
            return
        log = self.logs.get(epoch)
        if log is None or entries[-1].last > log.last:
            self.fail(f"node {node} holds {entries[-1].last} in epoch {epoch:#x}, where it was never sent")
        self._merge(epoch, log, entries, f"node {node} holds")

    def _merge(self, epoch: int, log: EpochLog, entries: Sequence[Entry], who: str) -> None:
        """Compare a piece of the log with the known entries."""
        known = log.at
        for entry in entries:
            same = known.get(entry.first)
            if same is None:
                known[entry.first] = entry
                if entry.first <= log.start:
                    log.start = entry.first - 1
                if entry.kind is EntryKind.CONFIG and log.end is None:
                    config_id = GroupConfig.decode(entry.detail).config_id
                    log.end = entry.last if config_id > log.config_id else None
                self.on_new(epoch, entry)
            elif same is not entry and same != entry:
                self.fail(f"{who} {words(entry)} in epoch {epoch:#x}, where {words(same)} was before")


def tail(log: Sequence[Entry], after: int) -> Sequence[Entry]:
    """The entries behind a number, found from the end."""
    at = len(log)
    while at and log[at - 1].first > after:
        at -= 1
    return log[at:]


def words(entry: Entry) -> str:
    """An entry as reports name it."""
    return f"{entry.kind.name} {entry.first}..{entry.last} {tuple(entry.mid)}"


def _ignore(epoch: int, entry: Entry) -> None:
    pass
