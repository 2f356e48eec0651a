"""Histories of a group of three, made by hand: what nodes say and what their disks hold, and nothing else.

A test tells the checkers a story step by step. What a step does by itself is what a sound group would do;
the one thing that is wrong is written out in the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from antiphon.bus.effects import DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.entries import OpenDetail, QuantityDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import (
    NO_DIGEST,
    BusMessage,
    CheckpointReport,
    Commit,
    CommitAcknowledge,
    CommitSubmit,
    Data,
    DataReport,
    Entry,
    EntryKind,
    EpochStart,
    ReportItem,
    Seal,
)
from antiphon.bus.records import EntriesAppended, EpochStarted, OrderBody, encode_order
from antiphon.ids import Mid, epoch_node, make_epoch
from antiphon.sim.checkers.group import cluster_checkers
from antiphon.sim.checkers.watch import NodeFacts, Watch
from antiphon.sim.image import Image
from antiphon.sim.world import World

NODES = (1, 2, 3)
FIRST, SECOND, THIRD = make_epoch(1, 1), make_epoch(2, 2), make_epoch(3, 3)
LIFETIME = 100


def digest(mid: Mid) -> bytes:
    return bytes([mid.pid, mid.pe % 256, mid.pseq, 7] * 4)


def payload(mid: Mid) -> bytes:
    return f"{mid.pid}/{mid.pe}/{mid.pseq}".encode()


def claim(first: int, epoch: int) -> Entry:
    return Entry(first, 1, EntryKind.PRIMARY_CLAIM, Mid(epoch_node(epoch), epoch, first), 0, NO_DIGEST)


def opening(first: int, pid: int, epoch: int = FIRST, run: int = 1) -> Entry:
    mid = Mid(epoch_node(epoch), epoch, first)
    detail = OpenDetail(pid, bytes([run] * 16)).encode()
    return Entry(first, 1, EntryKind.PRODUCER_OPEN, mid, 0, NO_DIGEST, detail)


def data(first: int, mid: Mid, count: int = 1, ts: int = 0) -> Entry:
    return Entry(first, count, EntryKind.DATA, mid, ts, digest(mid))


def tick(first: int, epoch: int = FIRST) -> Entry:
    return Entry(first, 1, EntryKind.TICK, Mid(epoch_node(epoch), epoch, first), 0, NO_DIGEST)


def stable(first: int, n: int, holders: Sequence[int] = (1, 2), state: bytes = NO_DIGEST) -> Entry:
    detail = StableDetail(n, state, tuple(holders)).encode()
    return Entry(first, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, FIRST, first), 0, NO_DIGEST, detail)


def quantity(first: int, copies: int, epoch: int = FIRST) -> Entry:
    detail = QuantityDetail(copies).encode()
    return Entry(first, 1, EntryKind.QUANTITY, Mid(epoch_node(epoch), epoch, first), 0, NO_DIGEST, detail)


class History:
    """A group whose nodes have all begun their first life, with all checkers watching."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(1)
        self.config = GroupConfig.of("main", NODES, lifetime=LIFETIME, **settings)
        self.watch = Watch(cluster_checkers(self.world, self.config))
        self._index = dict.fromkeys(NODES, 0)
        self.disks = {node: Image() for node in NODES}
        for node in NODES:
            self.watch.on_started(node, Image(), 0)

    # Single steps.

    def says(self, node: int, *messages: BusMessage) -> None:
        for message in messages:
            self.watch.on_sent(node, message)

    def appends(self, node: int, *records: OrderBody | DataRecord | SuperblockRecord) -> None:
        """Written, not synced."""
        for record in records:
            if not isinstance(record, DataRecord | SuperblockRecord):
                record = OrderRecord(encode_order(record), highest=0)
            self._index[node] += 1
            self.watch.on_appended(node, self._index[node], record)
            self.disks[node].add(record)

    def syncs(self, node: int) -> None:
        self.watch.on_durable(node, self._index[node])

    def writes(self, node: int, *records: OrderBody | DataRecord | SuperblockRecord) -> None:
        self.appends(node, *records)
        self.syncs(node)

    def restarts(self, node: int, found: Image | None = None, checkpoint: int = 0) -> None:
        """The next life, by default with everything that was ever written."""
        self.watch.on_crashed(node)
        self._index[node] = 0
        self.disks[node] = found or self.disks[node]
        kept = self.disks[node]
        copy = replace(kept, log=[*kept.log], mids={*kept.mids})
        self.watch.on_started(node, copy, checkpoint)

    def applies(self, node: int, *entries: Entry) -> None:
        for entry in entries:
            body = payload(entry.mid) if entry.kind is EntryKind.DATA else None
            self.watch.on_applied(node, entry, None if body is None else memoryview(body))

    # What a sound group does.

    def begins(self, epoch: int, kept: int, *entries: Entry, servers: Sequence[int] = NODES) -> None:
        """An epoch begins at some servers: with what they have through `kept`, then these."""
        self.says(epoch_node(epoch), Seal(epoch, 0))
        self.says(epoch_node(epoch), EpochStart(epoch, kept + 1, entries, 0))
        last = entries[-1].last if entries else kept
        for server in servers:
            self.writes(server, EpochStarted(epoch, kept, entries))
            self.says(server, CommitAcknowledge(epoch, last))

    def numbers(self, epoch: int, *entries: Entry, servers: Sequence[int] = NODES) -> None:
        """The sequencer submits, and some servers write it and acknowledge."""
        prev = entries[0].first - 1
        self.says(epoch_node(epoch), CommitSubmit(epoch, prev, entries, 0))
        for server in servers:
            self.writes(server, EntriesAppended(epoch, prev, entries))
            self.says(server, CommitAcknowledge(epoch, entries[-1].last))

    def tells(self, epoch: int, *entries: Entry) -> None:
        self.says(epoch_node(epoch), Commit(epoch, entries, entries[-1].last))

    def sends(
        self, mid: Mid, ts: int = 0, count: int = 1, servers: Sequence[int] = NODES, body: bytes = b""
    ) -> None:
        """A producer sends an envelope; some servers store and report it."""
        body = body or payload(mid)
        self.says(mid.pid, Data(mid, ts, count, digest(mid), body))
        for server in servers:
            self.writes(server, DataRecord(mid, ts, count, digest(mid), body))
            self.says(server, DataReport(0, (ReportItem(mid, ts, count, digest(mid)),)))

    def reports_checkpoint(self, n: int, *nodes: int, state: bytes = NO_DIGEST) -> None:
        for node in nodes:
            self.says(node, CheckpointReport(n, state, 1))

    def facts(self, applied: int) -> dict[int, NodeFacts]:
        """All nodes at the same number, the first one leading."""
        return {
            node: NodeFacts(is_leading=node == 1, applied=applied, digest=NO_DIGEST, waits_for=0)
            for node in NODES
        }


def open_group(**settings: Any) -> History:
    """The first epoch: its claim is number 1, and node 1 is open as a producer, as number 2."""
    history = History(**settings)
    history.begins(FIRST, 0)
    history.numbers(FIRST, claim(1, FIRST), opening(2, 1))
    history.tells(FIRST, claim(1, FIRST), opening(2, 1))
    return history


def envelope(pseq: int, pe: int = 2, pid: int = 1) -> Mid:
    return Mid(pid, pe, pseq)
