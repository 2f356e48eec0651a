"""The stage for machines of the bus: one life of one node, moved step by step, and its disk.

A `Life` does what a node and its driver do: it routes what replica and producer say to each other, writes
records where they can be lost, and has a small application (`Shelf`) answer for checkpoints. A crash keeps
what was synced. `OneNode` is a node that is alone; `tests.transcripts.stage` has three nodes and tells what
they do. Clusters in which time passes by itself are the simulator's: `tests.unit.bus.cluster`.

The disk is a list of records and not the keeper's journal, because a story shows one record after the other
and a checkpoint in its place: the keeper would begin the checkpoint with the next sync only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Append,
    Apply,
    CheckpointRead,
    CheckpointWritten,
    CopyRecord,
    DataRecord,
    DropState,
    Effect,
    EnvelopeConfirmed,
    Event,
    InstallState,
    MoveState,
    Multicast,
    OpenState,
    OrderRecord,
    ReadCheckpoint,
    Received,
    Reconfigured,
    ReleaseSpace,
    Send,
    Submitted,
    SuperblockRecord,
    Synced,
    TakeCheckpoint,
    WriteCheckpoint,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import Entry, EntryKind, digest_of
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import RecoveredReplica, recover
from antiphon.bus.replica import Replica
from antiphon.bus.schema import Machine, heard_by
from antiphon.ids import Mid
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.ports import Location, Record, identity_of
from antiphon.journal.recovery import DataAt, Recovered
from antiphon.wire.commands import CommandKind, LogTime, encode_command
from tests.shelf import Shelf

RUN = b"run-of-the-node1"
FOR_PRODUCER = heard_by(Machine.PRODUCER)


def command(text: str = "") -> bytes:
    """A command that takes one number, different for each text."""
    time_ms = int.from_bytes(text.encode().ljust(7, b"\0")[:7], "little")
    return encode_command(CommandKind.LOG_TIME, 0, 0, 0, 0, LogTime(time_ms=time_ms, term=1).encode())


def envelope(tag: int, commands: int = 1) -> Submitted:
    return Submitted(tag, b"".join(command(f"{tag}.{n}") for n in range(commands)), commands)


def data_of(mid: Mid, ts: int = 0, commands: int = 1) -> m.Data:
    payload = b"".join(command(f"{mid.pseq}.{n}") for n in range(commands))
    return m.Data(mid, ts, commands, digest_of(mid, ts, commands, payload), payload)


def item_of(data: m.Data) -> m.ReportItem:
    return m.ReportItem(data.mid, data.ts, data.count, data.digest, len(data.payload))


def entry_of(data: m.Data, first: int) -> Entry:
    return Entry(first, data.count, EntryKind.DATA, data.mid, data.ts, data.digest)


@dataclass
class KnownLog:
    """What a data server sees of the commit server beside it."""

    log: CommitLog
    committed_upto: int = 0
    is_damaged: bool = False

    def committed_from(self, first: int, most: int) -> m.FetchIdReply | None:
        if self.is_damaged:
            return None
        entries = self.log.from_number(first, self.committed_upto, most)
        return m.FetchIdReply(entries, self.committed_upto, self.log.base)


class MemoryPayloads:
    """Payloads as the journal's index shows them: written, not necessarily durable."""

    def __init__(self) -> None:
        self.records: list[DataRecord] = []
        self.unplaced: dict[Mid, Location] = {}
        self.placed: dict[int, Location] = {}
        self.copies: dict[int, Location] = {}
        self.copies_forgotten = 0
        self.reads = 0

    def write(self, record: DataRecord) -> None:
        self.unplaced[record.mid] = Location(
            1, len(self.records), len(record.payload), identity_of(record.digest)
        )
        self.records.append(record)

    def has(self, mid: Mid) -> bool:
        return mid in self.unplaced

    def locate(self, mid: Mid) -> Location | None:
        return self.unplaced.get(mid)

    def read(self, location: Location) -> memoryview:
        self.reads += 1
        return memoryview(self.records[location.offset].payload)

    def place(self, mid: Mid, first: int, count: int) -> Location:
        assert not self.placed or first > max(self.placed), "placed out of order"
        location = self.placed[first] = self.unplaced.pop(mid)
        return location

    def location_of(self, first: int) -> Location | None:
        return self.placed.get(first)

    def discard(self, mid: Mid) -> None:
        self.unplaced.pop(mid, None)

    def record(self, location: Location) -> Record:
        found = self.records[location.offset]
        return Record(found.mid, found.ts, found.count, found.digest, memoryview(found.payload))

    def write_copy(self, index: int, copy: CopyRecord) -> None:
        if index > self.copies_forgotten:
            self.copies[index] = Location(1, len(self.records), len(copy.payload), identity_of(copy.digest))
        self.records.append(DataRecord(copy.mid, copy.ts, copy.count, copy.digest, copy.payload))

    def copied(self, index: int) -> Location | None:
        return self.copies.get(index)

    def forget_copies(self, upto: int) -> None:
        self.copies_forgotten = upto
        self.copies = {index: location for index, location in self.copies.items() if index > upto}

    def where(self, mid: Mid) -> Location:
        """Where an envelope lies, numbered or copied."""
        at, record = next((at, record) for at, record in enumerate(self.records) if record.mid == mid)
        return Location(1, at, len(record.payload), identity_of(record.digest))


@dataclass
class StageDisk:
    """What is durable, and what has been written since."""

    synced: list[Append] = field(default_factory=list)
    unsynced: list[Append] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    released: int = 0

    def found(self) -> Recovered:
        """What the journal finds after a crash."""
        promised = epoch_claimed = 0
        order: list[bytes] = []
        data: list[DataAt] = []
        for at, append in enumerate(self.synced):
            record = append.record
            if isinstance(record, SuperblockRecord):
                promised, epoch_claimed = record.promised, record.epoch_claimed
            elif isinstance(record, OrderRecord):
                order.append(record.body)
            elif isinstance(record, DataRecord):
                # A copy belongs to a checkpoint and is not among the envelopes.
                location = Location(1, at, len(record.payload), identity_of(record.digest))
                data.append(DataAt(record.mid, record.ts, record.count, record.digest, location))
        checkpoints = self.checkpoints[-2:]
        return Recovered(
            disk_id=bytes(16),
            node_id=1,
            cluster="test",
            run=1,
            was_clean=False,
            promised=promised,
            epoch_claimed=epoch_claimed,
            order=order,
            data=data,
            checkpoint=checkpoints[-1] if checkpoints else None,
            older_checkpoint=checkpoints[0] if len(checkpoints) > 1 else None,
            checkpoint_problems=[],
            repairs=[],
            truncated=[],
        )

    def recovered(self, payloads: MemoryPayloads, *, keeps_state: bool = True) -> RecoveredReplica:
        """What the roles of the next life begin with."""
        return recover(self.found(), payloads, keeps_state=keeps_state)


@dataclass(frozen=True)
class SaidHere:
    """A role of a node said this to another role of it."""

    message: m.BusMessage


class OverheardReplica(Replica):
    """Tells in its place what its roles say to each other; otherwise the same."""

    def _send(self, seat: Any, effect: Send, out: list[Any]) -> None:
        if effect.to == self.node:
            out.append(SaidHere(effect.message))
        super()._send(seat, effect, out)


class Life:
    """One life of one node: its machines, its disk, and what they have not been told yet.

    The methods whose names begin with `on_` are for whoever watches.
    """

    now_ns = 1_000 * MS

    def __init__(
        self, config: GroupConfig, node: int, disk: StageDisk, run_id: bytes, disk_id: bytes = b""
    ) -> None:
        self.config, self.node, self.disk, self.disk_id = config, node, disk, disk_id
        self.payloads = MemoryPayloads()
        self._write_payloads(disk.synced)
        self.recovered = disk.recovered(self.payloads, keeps_state=node in config.data_servers)
        self.shelf = Shelf(self.payloads.where, self.recovered.manager_state)
        self.counter = JournalCounter()
        self.replica = OverheardReplica(
            config, node, run_id, self.payloads, self.counter, self.recovered, disk_id=disk_id
        )
        self.producer = BusProducer(config, node, run_id)
        # Whom a multicast reaches. It changes with `Reconfigured`, in its place among the effects: what was
        # said before still reaches those who leave.
        self.members = self.replica.config.nodes
        # In which term we have said how far we applied, and how far.
        self._told = (0, 0)
        self._written = 0
        self._replica_hears: list[Event] = []
        self._producer_hears: list[Event] = []

    # -- doing -------------------------------------------------------------------------------------

    def take(self, *events: Event) -> None:
        """Step both machines until neither has anything left to say on this node."""
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, m.AppliedGet):
                self.on_sent((event.sender,), self._applied_after(event.message.after))
                continue
            if not isinstance(event, Submitted):
                self._replica_hears.append(event)
            if isinstance(event, Submitted | Received):
                self._producer_hears.append(event)
        is_first = True
        while is_first or self._replica_hears or self._producer_hears:
            is_first = False
            heard, self._replica_hears = self._replica_hears, []
            self._perform(self.replica.step(self.now_ns, heard), self._producer_hears)
            heard, self._producer_hears = self._producer_hears, []
            heard = [e for e in heard if not isinstance(e, Received) or type(e.message) in FOR_PRODUCER]
            self._perform(self.producer.step(self.now_ns, heard), self._replica_hears)

    def next_deadline_ns(self) -> int:
        deadlines = (self.replica.next_deadline_ns(), self.producer.next_deadline_ns())
        return min((deadline for deadline in deadlines if deadline is not None), default=1 << 62)

    def sync(self) -> None:
        """Everything written so far becomes durable, and the machines are told."""
        index = self.disk.unsynced[-1].index
        self.disk.synced += self.disk.unsynced
        self.disk.unsynced = []
        self.take(Synced(index))

    # -- watching ----------------------------------------------------------------------------------

    def on_effect(self, effect: Effect) -> None:
        """A machine wants this done."""

    def on_said_here(self, message: m.BusMessage) -> None:
        """A role of this node said something to another role of it."""

    def on_sent(self, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        """A message leaves for these nodes; this one, if it is among them, has heard it."""

    def on_applied(self, entries: list[Entry]) -> None:
        """These were applied in one step."""

    # -- what the machines want --------------------------------------------------------------------

    def _perform(self, effects: list[Any], others_hear: list[Event]) -> None:
        """Do what one machine asked for; `others_hear` is the inbox of the other one on this node."""
        applied: list[Entry] = []
        for effect in effects:
            if isinstance(effect, SaidHere):
                self.on_said_here(effect.message)
                continue
            self.on_effect(effect)
            match effect:
                case Append(index):
                    assert index == self._written + 1, f"record {index} follows record {self._written}"
                    self._written = index
                    self.disk.unsynced.append(effect)
                    self._write_payloads([effect])
                case Send(to, message) if to == self.node:
                    others_hear.append(Received(self.node, message, self.disk_id))
                    if others_hear is self._replica_hears:
                        self.on_sent((to,), message)
                case Send(to, message):
                    self.on_sent((to,), message)
                case Multicast(message):
                    self._multicast(message, others_hear)
                case Apply(entry, _, location):
                    self.shelf.apply(entry, location)
                    applied.append(entry)
                case Reconfigured(config):
                    self.producer.reconfigure(config)
                    self.members = config.nodes
                case ReleaseSpace(base):
                    self.disk.released = base
                case _:
                    self._keep_state(effect)
        if applied:
            self.on_applied(applied)
            if self.replica.is_serving:
                # A new primary tells from the beginning: nobody knows what the one before it had said.
                after = self._told[1] if self._told[0] == self.replica.term else 0
                self._told = (self.replica.term, self.replica.applied)
                self._multicast(self._applied_after(after), self._producer_hears)

    def _keep_state(self, effect: Any) -> None:
        """What concerns checkpoints; what is asked of the application it answers at once."""
        hears, shelf = self._replica_hears, self.shelf
        match effect:
            case TakeCheckpoint(n):
                hears.append(shelf.capture(n))
            case WriteCheckpoint(n, digest, state, segments):
                self.disk.checkpoints.append(Checkpoint(n, digest, state, segments))
                hears.append(CheckpointWritten(n))
            case ReadCheckpoint(n, offset, length, to):
                file = next(one for one in self.disk.checkpoints if one.n == n)
                hears.append(CheckpointRead(n, offset, file.state[offset : offset + length], to))
            case OpenState(n, state):
                hears.append(shelf.open(n, state))
            case MoveState(n, moved):
                hears.append(shelf.move(n, dict(moved)))
            case InstallState():
                shelf.install()
            case DropState():
                shelf.drop()

    def _write_payloads(self, appends: list[Append]) -> None:
        for append in appends:
            if isinstance(append.record, DataRecord):
                self.payloads.write(append.record)
            elif isinstance(append.record, CopyRecord):
                self.payloads.write_copy(append.index, append.record)

    def _multicast(self, message: m.BusMessage, others_hear: list[Event]) -> None:
        others_hear.append(Received(self.node, message, self.disk_id))
        self.on_sent(self.members, message)
        if isinstance(message, m.Heartbeat) and self.replica.is_serving:
            # The primary repeats with its heartbeat how far it has applied.
            self._multicast(self._applied_after(self.replica.applied), self._producer_hears)

    def _applied_after(self, after: int) -> m.Applied:
        return m.Applied(self.replica.epoch, self.replica.applied, (), after)


class OneNode(Life):
    """A node that is alone, with everything that it did."""

    def __init__(
        self, config: GroupConfig | None = None, disk: StageDisk | None = None, run_id: bytes = RUN
    ) -> None:
        self.said: list[m.BusMessage] = []
        self.effects: list[Effect] = []
        self.applied: list[Entry] = []
        super().__init__(config or GroupConfig.of("main", (1,)), 1, disk or StageDisk(), run_id)
        self.replica.loopback = self._overhear

    # -- doing -------------------------------------------------------------------------------------

    def step(self, *events: Event) -> list[Effect]:
        """One event or several at once; what replica and producer say is routed until all is quiet."""
        before = len(self.effects)
        self.take(*events)
        return self.effects[before:]

    def sync(self) -> list[Effect]:
        before = len(self.effects)
        if self.disk.unsynced:
            super().sync()
        return self.effects[before:]

    def settle(self) -> None:
        """Sync until nothing more is written."""
        self.step()
        while self.disk.unsynced:
            self.sync()

    def wait_ms(self, ms: int, *, syncs: bool = True) -> None:
        """Let time pass, from deadline to deadline."""
        until = self.now_ns + ms * MS
        while (due := self.next_deadline_ns()) <= until:
            self.now_ns = max(self.now_ns, due)
            self.step()
            if syncs:
                self.settle()
        self.now_ns = until

    def crash(self, run_id: bytes = b"run-after-crash!") -> OneNode:
        """The next life of this node, with what was durable."""
        disk = StageDisk([*self.disk.synced], [], [*self.disk.checkpoints], self.disk.released)
        node = OneNode(self.config, disk, run_id)
        node.now_ns = self.now_ns
        return node

    # -- looking -----------------------------------------------------------------------------------

    def on_effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def on_sent(self, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        assert nodes == (1,), f"{message} to nodes {nodes}, of which only 1 exists"

    def on_applied(self, entries: list[Entry]) -> None:
        self.applied += entries

    def _overhear(self, message: m.BusMessage) -> m.BusMessage:
        self.said.append(message)
        return message

    def seen(self, kind: type) -> list:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def heard(self, kind: type) -> list:
        """Messages of one kind that the roles of this node said to each other."""
        return [message for message in self.said if isinstance(message, kind)]

    @property
    def confirmed(self) -> list[int]:
        return [effect.tag for effect in self.seen(EnvelopeConfirmed)]
