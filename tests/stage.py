"""A stage for the machines of the bus: payloads in memory, a disk that syncs when told, one node.

`OneNode` does what a node and its driver do: it routes what replica and producer say, writes records
where they can be lost, and syncs when the test says so. A crash keeps what was synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    CheckpointWritten,
    CopyRecord,
    DataRecord,
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    Event,
    Multicast,
    OrderRecord,
    PrimaryChanged,
    Received,
    ReleaseSpace,
    Send,
    StateCaptured,
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

RUN = b"run-of-the-node1"
FOR_PRODUCER = heard_by(Machine.PRODUCER)
MANAGER_DIGEST = b"digest of manager"[:16]


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
        self.copies[index] = Location(1, len(self.records), len(copy.payload), identity_of(copy.digest))
        self.records.append(DataRecord(copy.mid, copy.ts, copy.count, copy.digest, copy.payload))

    def copied(self, index: int) -> Location | None:
        return self.copies.get(index)

    def forget_copies(self) -> None:
        self.copies.clear()


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
            else:
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


class OneNode:
    """Replica and producer of a node that is alone."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        disk: StageDisk | None = None,
        run_id: bytes = RUN,
    ) -> None:
        self.config = config or GroupConfig.of("main", (1,))
        self.disk = disk or StageDisk()
        self.payloads = MemoryPayloads()
        self.now_ns = 1_000 * MS
        self.counter = JournalCounter()
        self.recovered: RecoveredReplica | None = None
        if self.disk.synced:
            for append in self.disk.synced:
                if isinstance(append.record, DataRecord):
                    self.payloads.write(append.record)
            self.recovered = recover(self.disk.found(), self.payloads)
        self.replica = Replica(self.config, 1, run_id, self.payloads, self.counter, self.recovered)
        self.producer = BusProducer(self.config, 1, run_id)
        self.said: list[m.BusMessage] = []
        self.replica.loopback = self._overhear
        self.effects: list[Effect] = []
        self.applied: list[Entry] = []
        self.alarms: list[str] = []
        self._written = 0
        self._for_replica: list[Event] = []
        self._for_producer: list[Event] = []

    # -- doing -------------------------------------------------------------------------------------

    def step(self, *events: Event) -> list[Effect]:
        """One event or several at once; what replica and producer say is routed until all is quiet."""
        before = len(self.effects)
        for event in events:
            (self._for_producer if isinstance(event, Submitted) else self._for_replica).append(event)
        is_first = True
        while is_first or self._for_replica or self._for_producer:
            taken, self._for_replica = self._for_replica, []
            if taken or is_first:
                self._perform(self.replica.step(self.now_ns, taken))
            heard, self._for_producer = self._for_producer, []
            if heard or is_first:
                self._perform(self.producer.step(self.now_ns, heard))
            is_first = False
        return self.effects[before:]

    def sync(self) -> list[Effect]:
        """Everything written so far becomes durable, and the machines are told."""
        if not self.disk.unsynced:
            return []
        index = self.disk.unsynced[-1].index
        self.disk.synced += self.disk.unsynced
        self.disk.unsynced = []
        return self.step(Synced(index))

    def settle(self) -> None:
        """Sync until nothing more is written."""
        self.step()
        while self.disk.unsynced:
            self.sync()

    def wait_ms(self, ms: int, *, syncs: bool = True) -> None:
        """Let time pass, from deadline to deadline."""
        until = self.now_ns + ms * MS
        while True:
            deadlines = [self.replica.next_deadline_ns(), self.producer.next_deadline_ns()]
            due = min(deadline for deadline in deadlines if deadline is not None)
            if due > until:
                break
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

    # -- routing -----------------------------------------------------------------------------------

    def _overhear(self, message: m.BusMessage) -> m.BusMessage:
        self.said.append(message)
        return message

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case Append(index, record):
                    assert index == self._written + 1, f"record {index} follows record {self._written}"
                    self._written = index
                    self.disk.unsynced.append(effect)
                    if isinstance(record, DataRecord):
                        self.payloads.write(record)
                case Send(to, message):
                    assert to == 1, f"{message} to node {to}, which does not exist"
                    self._route(message)
                case Multicast(message):
                    self._route(message)
                case Apply(entry):
                    self.applied.append(entry)
                case TakeCheckpoint(n):
                    assert self.applied[-1].last == n, "something was applied behind the mark"
                    self._for_replica.append(StateCaptured(n, MANAGER_DIGEST, b"state of %d" % n, ()))
                case WriteCheckpoint(n, digest, state, segments):
                    self.disk.checkpoints.append(Checkpoint(n, digest, state, segments))
                    self._for_replica.append(CheckpointWritten(n))
                case ReleaseSpace(base):
                    self.disk.released = base
                case Alarm(text):
                    self.alarms.append(text)
                case EnvelopeCommitted() | EnvelopeConfirmed() | PrimaryChanged():
                    pass
        if any(isinstance(effect, Apply) for effect in effects):
            upto = self.applied[-1].last
            self._route(m.Applied(self.replica.epoch, upto))

    def _route(self, message: m.BusMessage) -> None:
        event = Received(1, message)
        if isinstance(message, m.Data | m.ProducerOpen | m.ProducerStateGet | m.FetchId):
            self._for_replica.append(event)
        elif type(message) in FOR_PRODUCER:
            self._for_producer.append(event)

    # -- looking -----------------------------------------------------------------------------------

    def seen(self, kind: type) -> list:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def heard(self, kind: type) -> list:
        """Messages of one kind that the roles of this node said to each other."""
        return [message for message in self.said if isinstance(message, kind)]

    @property
    def confirmed(self) -> list[int]:
        return [effect.tag for effect in self.effects if isinstance(effect, EnvelopeConfirmed)]
