"""A commit server in its booth: what its step tests share."""

from __future__ import annotations

from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer, KeptCheckpoint
from antiphon.bus.commit_server import CommitServer, DurableEpochs
from antiphon.bus.effects import (
    Append,
    Learned,
    OrderRecord,
    Received,
    RoleEffect,
    Synced,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.records import decode_order
from antiphon.ids import Mid, make_epoch

OLD = make_epoch(1, 1)
NEW = make_epoch(2, 3)


def tick(number: int, epoch: int = OLD) -> Entry:
    return Entry(number, 1, EntryKind.TICK, Mid(1, epoch, number), 0, NO_DIGEST)


def ticks(first: int, last: int, epoch: int = OLD) -> tuple[Entry, ...]:
    return tuple(tick(number, epoch) for number in range(first, last + 1))


class Booth:
    """A commit server of node 2 whose log holds 1 … `last` of epoch OLD, and `entries` behind, durably."""

    def __init__(
        self, last: int = 0, committed: int = 0, entries: tuple[Entry, ...] = (), **settings: Any
    ) -> None:
        self.config = GroupConfig.of("main", (1, 2, 3), **settings)
        self.counter = counter = JournalCounter()
        self.epochs = DurableEpochs(counter, OLD if last else 0)
        self.presence = PresenceKeeper(self.config, 2)
        self.checkpoints = CheckpointServer(self.config, 2)
        self.checkpoints.fallback_n = 1 << 60
        self.checkpoints.stable = KeptCheckpoint(1 << 60, bytes(16), 1)
        self.server = CommitServer(
            self.config,
            2,
            counter,
            self.epochs,
            log=CommitLog(0, (*ticks(1, last), *entries)),
            log_epoch=OLD if last else 0,
            checkpoint_server=self.checkpoints,
            presence=self.presence,
        )
        self.now_ns = 10_000 * MS
        self.written = 0
        if committed:
            self.hear(m.Heartbeat(OLD, committed, 0, 1, 0, True), 1)

    def step(self, *events: Any) -> list[RoleEffect]:
        effects = self.server.step(self.now_ns, list(events))
        for effect in effects:
            if isinstance(effect, Append):
                self.written = effect.index
        return effects

    def hear(self, message: m.BusMessage, sender: int) -> list[RoleEffect]:
        return self.step(Received(sender, message))

    def sync(self) -> list[RoleEffect]:
        return self.step(Synced(self.written))


def order_in(effects: list[RoleEffect]) -> list[object]:
    return [
        decode_order(effect.record.body)
        for effect in effects
        if isinstance(effect, Append) and isinstance(effect.record, OrderRecord)
    ]


def stable(number: int, n: int) -> Entry:
    detail = StableDetail(n, b"%016d" % n, (1,)).encode()
    return Entry(number, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, OLD, number), 0, NO_DIGEST, detail)


def learned(*notable: Entry, marks: tuple[tuple[int, bytes], ...] = ()) -> Learned:
    return Learned((), notable, marks)
