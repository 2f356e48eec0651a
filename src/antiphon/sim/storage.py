"""Storage: the twin of runtime/storage.py, with a disk that takes virtual time.

One sync is on its way at a time, as in the sync thread; what is written meanwhile waits for the next.
Chores and checkpoint files are done by a worker that takes its time as well. All decisions are the
journal's. Here nobody but the disk says that something is durable, and the checkers are told first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from antiphon.bus import effects as bus
from antiphon.bus.ports import JournalCounter
from antiphon.errors import Damaged, NoSpace
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.memory_disk import Syncing
from antiphon.journal.ports import RecordKeeper
from antiphon.journal.recovery import Recovered
from antiphon.message_manager.manager import MessageManager
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import SimDisk
from antiphon.sim.world import MILLISECOND_NS, World

_IDLE_NS = 50 * MILLISECOND_NS
_PULSE_NS = 200 * MILLISECOND_NS
_NO_SPACE_RETRY_NS = 1_000 * MILLISECOND_NS
_TIGHT_BELOW = 0.5
_SPARSE_BELOW = 0.25


class ChannelStorage:
    """The journal of one channel in one life of a node."""

    def __init__(
        self,
        world: World,
        node: int,
        disk: SimDisk,
        journal: Journal,
        found: Recovered,
        counter: JournalCounter,
        manager: RecordKeeper,
        watch: Watch,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._world = world
        self._node = node
        self._disk = disk
        self._journal = journal
        self._counter = counter
        self._manager = manager
        self._watch = watch
        self._tell = tell
        # Does something after a while, unless this life of the node is over by then.
        self._later = later
        # Records for which there is no room yet, and why not.
        self._waiting_for_space: deque[bus.Append] = deque()
        self._low: NoSpace | None = None
        self._waiting: SyncTicket | None = None
        self._syncing: tuple[SyncTicket, Syncing] | None = None
        self._durable_index = 0
        self._is_idle_planned = False
        self._holds_space = False
        self._base = 0
        self._base_to_release: int | None = None
        # Damaged records that have come from another node.
        self._mends: list[bus.Mend] = []
        # Checkpoints from this number on are being fetched by another node; 0 if none is.
        self._held_from = 0
        self._checkpoints = CheckpointLine[bus.WriteCheckpoint](found.checkpoint_segments)
        self._show_files()
        self._later(_PULSE_NS, self._pulse)

    def carry_out(self, effect: bus.Effect) -> None:
        """Do what a machine of the channel asked of the disk."""
        match effect:
            case bus.Append(index=index, record=record):
                if not isinstance(record, bus.CopyRecord):
                    # A copy means nothing until a checkpoint refers to it.
                    self._watch.on_appended(self._node, index, record)
                self._append(effect)
            case bus.WriteCheckpoint():
                self._checkpoints.ask(effect, self._counter.last)
                self._begin_checkpoints()
                self._look_again()
            case bus.ReadCheckpoint():
                self._later(self._disk.latency_ns(), lambda: self._read_checkpoint(effect))
            case bus.HoldCheckpoints(n=n):
                self._hold(n)
            case bus.Mend():
                self._mends.append(effect)
            case bus.ReleaseSpace(base=base):
                # Not now: copying live records takes numbers of the journal, and this step may already have
                # given out lower ones that are still to be written.
                self._base_to_release = base
            case bus.Alarm(text=text):
                self._world.note(f"node {self._node}", f"alarm: {text}")
                self._world.probe("node.alarm")
            case _:
                raise AssertionError(f"{type(effect).__name__} is nothing a disk can do")

    def _append(self, effect: bus.Append) -> None:
        if self._waiting_for_space:
            self._waiting_for_space.append(effect)
            return
        try:
            self._write(effect)
        except NoSpace as error:
            self._world.probe("disk.full")
            self._waiting_for_space.append(effect)
            self._note_space(error)

    def _write(self, effect: bus.Append) -> None:
        index, record = effect
        match record:
            case bus.DataRecord(mid, ts, count, digest, payload):
                self._journal.append_data(index, mid, ts, count, digest, payload)
            case bus.OrderRecord(body, highest, pinned):
                self._journal.append_order(index, body, highest, pinned=pinned)
            case bus.SuperblockRecord(promised, epoch_claimed):
                self._journal.append_superblock(index, promised, epoch_claimed)
            case bus.CopyRecord(mid, ts, count, digest, payload):
                self._journal.append_copy(index, mid, ts, count, digest, payload)

    def _note_space(self, missing: NoSpace | None) -> None:
        """Whether there was room for the next segment."""
        if missing is None:
            if self._low is not None and not self._waiting_for_space:
                self._low = None
                self._tell(bus.SpaceChanged(False))
            return
        if self._low is None:
            self._later(_NO_SPACE_RETRY_NS, self._try_again)
        self._low = missing
        self._tell_low(missing)

    def _tell_low(self, missing: NoSpace) -> None:
        is_full = bool(self._waiting_for_space)
        is_tight = is_full or self._journal.room < _TIGHT_BELOW
        self._tell(bus.SpaceChanged(True, is_tight, missing.text, is_full))

    def _try_again(self) -> None:
        if self._low is None:
            return
        try:
            while self._waiting_for_space:
                self._write(self._waiting_for_space[0])
                self._waiting_for_space.popleft()
        except NoSpace as error:
            self._low = error
        self.flush()
        if self._journal.has_spare:
            self._note_space(None)
        if self._low is not None:
            self._tell_low(self._low)
            self._later(_NO_SPACE_RETRY_NS, self._try_again)
            self._do_chore()

    # --- flushing and syncing ---

    def flush(self) -> None:
        """Write what this step has gathered, and have it synced."""
        if self._base_to_release is not None:
            base, self._base_to_release = self._base_to_release, None
            self._release(base)
        self._mend()
        before = self._journal.end_position.segment
        self._request(self._journal.flush())
        if before and self._journal.end_position.segment != before:
            self._world.probe("journal.rolled_over")
        if self._low is None and self._journal.needs_spare():
            self._do_chore()

    def _request(self, ticket: SyncTicket | None) -> None:
        if ticket is None:
            return
        if self._syncing is not None:
            self._world.probe("journal.written_during_sync")
        self._waiting = ticket if self._waiting is None else self._waiting.merge(ticket)
        self._begin_sync()

    def _begin_sync(self) -> None:
        if self._syncing is None and self._waiting is not None:
            ticket, self._waiting = self._waiting, None
            self._syncing = (ticket, self._disk.begin_sync(ticket.files))
            self._later(self._disk.latency_ns(), self._finish_sync)

    def _finish_sync(self) -> None:
        assert self._syncing is not None, "a sync ended that never began"
        ticket, syncing = self._syncing
        self._syncing = None
        self._disk.finish_sync(syncing)
        self._on_synced(ticket)

    def _on_synced(self, ticket: SyncTicket) -> None:
        self._watch.on_durable(self._node, ticket.upto_index)
        self._journal.synced(ticket)
        self._durable_index = ticket.upto_index
        self._tell(bus.Synced(ticket.upto_index))
        self._begin_checkpoints()
        self._request(self._journal.flush())
        self._begin_sync()
        if self._low is None or self._journal.can_recycle:
            self._do_chore()
        self._plan_idle()

    def _plan_idle(self) -> None:
        if self._is_idle_planned:
            return
        self._is_idle_planned = True
        index = self._durable_index

        def look() -> None:
            self._is_idle_planned = False
            if self._durable_index != index:
                self._plan_idle()
            else:
                self._request(self._journal.mark())

        self._later(_IDLE_NS, look)

    def _pulse(self) -> None:
        self._later(_PULSE_NS, self._pulse)
        self._look_for_held_space()
        self._journal.tidy()
        if self._low is None or self._journal.can_recycle:
            self._do_chore()

    def _look_again(self) -> None:
        if self._holds_space:
            self._look_for_held_space()

    def _look_for_held_space(self) -> None:
        live = self._manager.live_bytes_by_segment()
        holds = not self._held_from and self._journal.holds_space(self._base, live)
        if holds != self._holds_space:
            self._world.probe("journal.space_held", holds)
            self._holds_space = holds
            self._tell(bus.SpaceHeld(holds))

    def _do_chore(self) -> None:
        chore = self._journal.chore()
        if chore is None:
            return
        if chore.source is not None:
            self._world.probe("journal.segment_recycled")
        if chore.remove:
            self._world.probe("journal.segment_removed")

        def run() -> None:
            chore.run()
            self._show_files()
            self._journal.chore_done(chore)
            if chore.number is not None:
                self._note_space(chore.no_space)
            if chore.no_space is None:
                self._do_chore()

        self._later(self._disk.latency_ns(), run)

    # --- checkpoints and space ---

    def _begin_checkpoints(self) -> None:
        for effect in self._checkpoints.due(self._durable_index):
            self._write_checkpoint(effect)

    def _write_checkpoint(self, effect: bus.WriteCheckpoint) -> None:
        self._world.probe("checkpoint.written")

        def write() -> None:
            try:
                self._journal.write_checkpoint(effect.n, effect.digest, effect.state, effect.segments)
            except NoSpace:
                # The bus tries again.
                self._tell(bus.CheckpointFailed(effect.n))
                return
            self._show_files()
            self._checkpoints.written(effect.n)
            self._tell(bus.CheckpointWritten(effect.n))

        self._later(self._disk.latency_ns(), write)

    def _read_checkpoint(self, effect: bus.ReadCheckpoint) -> None:
        """A piece of a checkpoint, for another node."""
        self._world.probe("checkpoint.piece_read")
        data: bytes | None = None
        try:
            state = self._journal.read_checkpoint(effect.n).state
            data = state[effect.offset : effect.offset + effect.length]
        except Damaged as error:
            self._world.note(f"node {self._node}", f"cannot read a checkpoint: {error}")
        self._tell(bus.CheckpointRead(effect.n, effect.offset, data, effect.to))

    def _hold(self, n: int) -> None:
        self._held_from = n
        if self._base:
            # What was kept for another node may go now.
            self._base_to_release = self._base

    def _release(self, base: int) -> None:
        journal = self._journal
        self._world.probe("journal.base_moved")
        self._base = base
        journal.payloads.forget_through(base)
        oldest = min(base, self._held_from or base)
        referenced = self._checkpoints.release(oldest)
        self._later(self._disk.latency_ns(), lambda: self._drop_checkpoints(oldest))
        live = self._manager.live_bytes_by_segment()
        freed = journal.release(base, referenced.union(live))
        self._world.probe("journal.segments_freed", freed)
        self._empty_sparse_segments(live)
        self._look_again()

    def _show_files(self) -> None:
        # The state of another application refers to no records.
        if isinstance(self._manager, MessageManager):
            self._watch.on_files(self._node, self._disk, self._journal.disk_id)

    def _drop_checkpoints(self, base: int) -> None:
        self._world.probe("checkpoint.dropped", self._journal.drop_checkpoints_before(base))

    def _empty_sparse_segments(self, live: dict[int, int]) -> None:
        if self._waiting_for_space:
            # What waits has its index already.
            return
        for segment in self._journal.sparse_segments(live, _SPARSE_BELOW):
            for location in self._manager.records_in(segment):
                self._world.probe("journal.record_relocated")
                try:
                    moved = self._journal.relocate(self._counter.last + 1, location)
                except NoSpace:
                    return
                except Damaged as error:
                    self._manager.damaged(location, error)
                    continue
                self._counter.next()
                self._manager.relocated(location, moved)

    def _mend(self) -> None:
        mends, self._mends = self._mends, []
        for mend in mends if not self._waiting_for_space else ():
            self._world.probe("journal.record_mended")
            record = mend.record
            facts = (record.mid, record.ts, record.count, record.digest, record.payload)
            try:
                moved = self._journal.append_mended(self._counter.last + 1, *facts)
            except NoSpace:
                # It is asked for again.
                return
            self._counter.next()
            self._manager.relocated(mend.place, moved)

    # --- the end ---

    def close(self) -> None:
        """Sync everything and note that this was an orderly end."""
        if self._syncing is not None:
            ticket, syncing = self._syncing
            self._disk.finish_sync(syncing)
            self._watch.on_durable(self._node, ticket.upto_index)
            self._journal.synced(ticket)
        if self._waiting is not None:
            self._disk.sync(self._waiting.files)
            self._watch.on_durable(self._node, self._waiting.upto_index)
            self._journal.synced(self._waiting)
        self._journal.close()
