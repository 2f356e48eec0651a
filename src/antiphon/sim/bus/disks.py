"""Two kinds of disk behind one interface: records in memory, or the real journal on a simulated disk.

A `RecordDisk` keeps what the journal promises and nothing more, and is quick: records are durable when a
sync has ended that began after they were written; a crash keeps what was synced, of the order records
behind that a prefix, of the envelopes any, and of the superblocks one that was written since. Whatever
the roles build on more than that shows sooner here than with real blocks, and most runs use it. The
others run the journal itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from antiphon.bus import effects as bus
from antiphon.bus.effects import CopyRecord, DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.ports import JournalCounter, Payloads
from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.checkpoints import Checkpoint, CheckpointHead
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.journal import Journal
from antiphon.journal.payload_index import PayloadIndex
from antiphon.journal.ports import Location, identity_of
from antiphon.journal.recovery import DataAt, Recovered
from antiphon.sim.bus.tally import Tally
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import DiskHabits, SimDisk
from antiphon.sim.image import Record
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.world import World

_STALL = 60
_KEPT = {"nothing": 0.0, "everything": 1.0, "some": 0.5, "most": 0.9, "few": 0.1}
_CLUSTER = "sim"
# Small enough that segments fill up, large enough for every envelope.
_JOURNAL = JournalSettings(segment_bytes=160 * 1024, order_blocks=8, spares_max=2)


class SyncFailed(Exception):
    """A sync failed. The life is over, and the next one must not read what it left behind."""


class Storage(Protocol):
    """The disk as one life of a node uses it."""

    def carry_out(self, effect: bus.Effect) -> None:
        """Do what a machine asked of the disk."""

    def flush(self) -> None:
        """The step is over: have what it wrote synced."""


class Opened(Protocol):
    """What a life finds on its disk."""

    @property
    def found(self) -> Recovered:
        """The records."""

    @property
    def payloads(self) -> Payloads:
        """Where envelopes are looked up."""

    def serve(
        self,
        counter: JournalCounter,
        application: Tally,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
        stand_still: Callable[[int], None],
    ) -> Storage:
        """Write for this life from now on."""


class NodeDisk(Protocol):
    """The disk of one node over all its lives."""

    habits: DiskHabits
    disk_id: bytes

    def open(self) -> Opened:
        """A life begins."""

    def lose_power(self) -> None:
        """A life ends; what was not synced is lost, or some of it."""


# --- records in memory ---------------------------------------------------------------------------


class RecordDisk:
    """Records and checkpoints, durable or not yet."""

    def __init__(self, world: World, node: int, watch: Watch, habits: DiskHabits, disk_id: bytes) -> None:
        self.world = world
        self.node = node
        self.watch = watch
        self.habits = habits
        self.disk_id = disk_id
        self.synced: list[Record] = []
        self.unsynced: list[tuple[int, Record]] = []
        self.checkpoints: list[Checkpoint] = []
        # Envelopes whose bytes are not what was written; and whether the next sync fails, asked when it ends.
        self.unreadable: set[Mid] = set()
        self.fails: Callable[[], bool] | None = None
        # What is told of the room while there is little.
        self.room: bus.SpaceChanged | None = None
        self._chance: random.Random = world.random(f"disk/{node}")

    def latency_ns(self) -> int:
        """How long the next sync takes."""
        latency = int(self.habits.sync_ns * self._chance.uniform(0.5, 2.0))
        if self.habits.stall_probability and self._chance.random() < self.habits.stall_probability:
            self.world.probe("disk.sync_stalled")
            latency *= _STALL
        return latency

    def open(self) -> RecordsFound:
        return RecordsFound(self)

    def lose_power(self) -> None:
        chance = self._chance
        style = chance.choice(self.habits.styles)
        share = _KEPT[style]
        if self.unsynced:
            self.world.probe(f"disk.crash_kept_{style}")
        keeps_order = True
        for _, record in self.unsynced:
            is_kept = chance.random() < share
            if isinstance(record, OrderRecord):
                # Order records verify as a chain: behind a missing one there is none.
                keeps_order = keeps_order and is_kept
                is_kept = keeps_order
            if is_kept:
                self.synced.append(record)
        self.unsynced.clear()

    def release(self, base: int, payloads: PayloadIndex, checkpoints_from: int) -> None:
        """What only numbers up to the base needed goes, and checkpoints that nobody fetches."""
        payloads.forget_through(base)
        self.drop_checkpoints(checkpoints_from)
        # From the front, as segments go: behind a record that must stay, all stay.
        kept: list[Record] = []
        for at, record in enumerate(self.synced):
            if isinstance(record, OrderRecord):
                if record.highest > base or record.pinned:
                    kept += self.synced[at:]
                    break
            else:
                kept.append(record)
        self.synced = kept

    def drop_checkpoints(self, before: int) -> None:
        """Checkpoints below a number go, but never the two newest."""
        newest = self.checkpoints[-2:]
        self.checkpoints = [one for one in self.checkpoints[:-2] if one.n >= before] + newest


class WatchedIndex(PayloadIndex):
    """A payload index whose losses are seen."""

    __slots__ = ("on_discarded",)

    def __init__(self, read: Callable[[Location], memoryview], on_discarded: Callable[[Mid], None]) -> None:
        super().__init__(read)
        self.on_discarded = on_discarded

    def discard(self, mid: Mid) -> None:
        self.on_discarded(mid)
        super().discard(mid)


class RecordsFound:
    """What a life finds on a `RecordDisk`."""

    def __init__(self, disk: RecordDisk) -> None:
        self._disk = disk
        self._records: list[bytes | memoryview] = []
        self._unreadable: set[int] = set()
        self.payloads = WatchedIndex(self._read, lambda mid: disk.watch.on_discarded(disk.node, mid))
        promised = epoch_claimed = 0
        order: list[bytes] = []
        data: list[DataAt] = []
        for record in disk.synced:
            if isinstance(record, SuperblockRecord):
                # Of several copies the newest that verifies counts, and neither number ever goes back.
                promised, epoch_claimed = record.promised, record.epoch_claimed
            elif isinstance(record, OrderRecord):
                order.append(record.body)
            elif isinstance(record, DataRecord):
                location = self.write(record)
                if record.mid in disk.unreadable:
                    self._unreadable.add(location.offset)
                data.append(DataAt(record.mid, record.ts, record.count, record.digest, location))
        checkpoints = disk.checkpoints[-2:]
        earlier = [
            CheckpointHead(one.n, one.digest, len(one.state), one.segments) for one in disk.checkpoints[:-2]
        ]
        self.found = Recovered(
            disk_id=disk.disk_id,
            node_id=disk.node,
            cluster=_CLUSTER,
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
            earlier_checkpoints=tuple(earlier),
        )

    def _read(self, location: Location) -> memoryview:
        if location.offset in self._unreadable:
            raise Damaged("data", location.offset, "the record does not verify")
        return memoryview(self._records[location.offset])

    def write(self, record: DataRecord) -> Location:
        """The payload can be looked up from now on."""
        location = Location(1, len(self._records), len(record.payload), identity_of(record.digest))
        self._records.append(record.payload)
        self.payloads.add(record.mid, location)
        return location

    def serve(
        self,
        counter: JournalCounter,
        application: Tally,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
        stand_still: Callable[[int], None],
    ) -> RecordStorage:
        return RecordStorage(self._disk, self, counter, tell, later)


class RecordStorage:
    """Writes for one life, and syncs: one sync at a time, as the sync thread does it."""

    def __init__(
        self,
        disk: RecordDisk,
        opened: RecordsFound,
        counter: JournalCounter,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._disk = disk
        self._opened = opened
        self._counter = counter
        self._tell = tell
        self._later = later
        self._is_syncing = False
        self._written = 0
        self._durable = 0
        self._checkpoints: CheckpointLine[bus.WriteCheckpoint] = CheckpointLine({})
        # Checkpoints from this number on are being fetched by another node; 0 if none is.
        self._held_from = 0

    def carry_out(self, effect: bus.Effect) -> None:
        disk = self._disk
        match effect:
            case bus.Append(index=index, record=record):
                assert index == self._written + 1, f"record {index} was appended after record {self._written}"
                self._written = index
                assert not isinstance(record, CopyRecord), "this application refers to no records"
                disk.watch.on_appended(disk.node, index, record)
                disk.unsynced.append((index, record))
                if isinstance(record, DataRecord):
                    self._opened.write(record)
            case bus.WriteCheckpoint():
                self._checkpoints.ask(effect, self._counter.last)
                self._begin_checkpoints()
            case bus.ReadCheckpoint():
                self._later(disk.latency_ns(), lambda: self._read_checkpoint(effect))
            case bus.HoldCheckpoints(n=n):
                self._held_from = n
            case bus.ReleaseSpace(base=base):
                disk.world.probe("disk.base_moved")
                disk.watch.on_released(disk.node, base)
                disk.release(base, self._opened.payloads, min(base, self._held_from or base))
            case bus.Alarm(text=text):
                disk.world.note(f"node {disk.node}", f"alarm: {text}")
                disk.world.probe("node.alarm")
            case _:
                raise AssertionError(f"{type(effect).__name__} is nothing a disk can do")

    def flush(self) -> None:
        disk = self._disk
        is_full = disk.room is not None and disk.room.is_full
        if disk.unsynced and not self._is_syncing and not is_full:
            self._is_syncing = True
            index = disk.unsynced[-1][0]
            self._later(disk.latency_ns(), lambda: self._synced(index))

    def _synced(self, index: int) -> None:
        disk = self._disk
        if disk.fails is not None and disk.fails():
            raise SyncFailed
        self._is_syncing = False
        # Indexes are without a gap.
        covered = index - disk.unsynced[0][0] + 1
        disk.synced += [record for _, record in disk.unsynced[:covered]]
        del disk.unsynced[:covered]
        self._durable = index
        disk.watch.on_durable(disk.node, index)
        self._tell(bus.Synced(index))
        self._begin_checkpoints()
        if disk.unsynced:
            disk.world.probe("disk.written_during_sync")
            self.flush()

    def _begin_checkpoints(self) -> None:
        for effect in self._checkpoints.due(self._durable):
            self._write_checkpoint(effect)

    def _write_checkpoint(self, effect: bus.WriteCheckpoint) -> None:
        self._disk.world.probe("checkpoint.written")

        def write() -> None:
            room = self._disk.room
            if room is not None and room.is_full:
                self._disk.world.probe("checkpoint.no_room")
                self._tell(bus.CheckpointFailed(effect.n))
                return
            written = Checkpoint(effect.n, effect.digest, effect.state, effect.segments)
            self._disk.checkpoints = sorted([*self._disk.checkpoints, written], key=lambda one: one.n)
            self._tell(bus.CheckpointWritten(effect.n))

        self._later(self._disk.latency_ns(), write)

    def _read_checkpoint(self, effect: bus.ReadCheckpoint) -> None:
        """A piece of a checkpoint, for another node."""
        self._disk.world.probe("checkpoint.piece_read")
        state = next((one.state for one in self._disk.checkpoints if one.n == effect.n), None)
        piece = None if state is None else state[effect.offset : effect.offset + effect.length]
        self._tell(bus.CheckpointRead(effect.n, effect.offset, piece, effect.to))


# --- the journal ---------------------------------------------------------------------------------


class JournalDisk:
    """The real journal on a disk of pages."""

    def __init__(self, world: World, node: int, watch: Watch, habits: DiskHabits, disk_id: bytes) -> None:
        self.world = world
        self.node = node
        self.watch = watch
        self.habits = habits
        self.disk_id = disk_id
        self.disk = SimDisk(world, f"disk/{node}")
        self.disk.habits = habits

    def open(self) -> JournalFound:
        return JournalFound(self)

    def lose_power(self) -> None:
        self.disk.lose_power()


class JournalFound:
    """What a life finds in its journal."""

    def __init__(self, disk: JournalDisk) -> None:
        self._disk = disk
        if not Journal.is_formatted(disk.disk):
            Journal.format(disk.disk, _JOURNAL, disk.disk_id, disk.node, _CLUSTER)
        self._journal, self.found = Journal.open(disk.disk, _JOURNAL)
        self.payloads = self._journal.payloads
        disk.world.probe("recovery.torn_tail_cut", len(self.found.truncated))
        disk.world.probe("recovery.repaired", len(self.found.repairs))

    def serve(
        self,
        counter: JournalCounter,
        application: Tally,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
        stand_still: Callable[[int], None],
    ) -> ChannelStorage:
        disk = self._disk
        return ChannelStorage(
            disk.world,
            disk.node,
            disk.disk,
            self._journal,
            self.found,
            counter,
            application,
            disk.watch,
            tell,
            later,
            stand_still,
        )
