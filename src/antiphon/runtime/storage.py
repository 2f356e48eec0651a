"""Storage: carries out what a channel wants written, and tells it what is durable.

Where it sits
    node  ->  Append, WriteCheckpoint, ReleaseSpace …  ->  STORAGE  ->  journal, sync thread  ->  Synced, …

What it promises
    P1  Records reach the journal in index order, also when the disk is full for a while: then they wait
        here, nothing behind them is written, and nobody is told that they are durable.
    P2  The file of a checkpoint is begun when everything written before it is durable, and the checkpoint is
        reported when its file is. What another node is fetching of one stays as long as the bus says.
    P3  An fsync error is final: the directory is marked, and the node is told to end. So is every other
        error in what the loop or a thread calls here: none is left to the loop, which would log it and go
        on. After it nothing is written and nothing is told.
    P4  What is freed is used again or removed, also when nothing is written any more; and as long as
        checkpoints would free segments, the bus knows (`SpaceHeld`).
    P5  Room is low as soon as there is no segment for what comes after the present one, and tight when
        half of that is used. Both are told, so that publishing stops while acknowledgements and
        checkpoints still have room.

What it leaves to others
    What bytes mean and where they go is the journal's; what may be forgotten is the bus's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from antiphon.bus import effects as bus
from antiphon.bus.ports import JournalCounter
from antiphon.errors import Damaged, NoSpace, StorageFailed
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.ports import RecordKeeper
from antiphon.journal.recovery import Recovered
from antiphon.runtime.disk import FileDisk, SyncThread
from antiphon.runtime.memory import give_back

log = logging.getLogger("antiphon.storage")

T = TypeVar("T")

IDLE_SECONDS: Final = 0.05
"""After so long without writes the journal notes how far it was synced, so that damage to the last
records can be told from a torn write."""

PULSE_SECONDS: Final = 1.0
"""So often the storage looks for what is not needed any more, also if nothing is written."""

SYNCED_AT_ONCE_BYTES: Final = 64 << 10
"""More than this is synced beside the loop, however quick the disk is: there is work to do meanwhile."""

NO_SPACE_RETRY_SECONDS: Final = 1.0
LOW_FLUSH_SECONDS: Final = 0.01
TIGHT_BELOW: Final = 0.5

SPARSE_BELOW: Final = 0.25
RELOCATED_BYTES_MAX: Final = 16 << 20
"""A segment of which less than a quarter is live is emptied by copying, so that one stuck message does
not pin gigabytes; at most so many bytes per checkpoint, so that it is never felt."""


class ChannelStorage:
    """The journal of one channel, driven from the event loop."""

    def __init__(
        self,
        disk: FileDisk,
        journal: Journal,
        found: Recovered,
        counter: JournalCounter,
        manager: RecordKeeper,
        tell: Callable[[bus.Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._counter = counter
        self._manager = manager
        self._tell = tell
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._sync = SyncThread(disk, self._sync_done)
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-files")
        # Did anybody ask for anything since the last flush?
        self._is_asked = True
        # What is to be appended when the step is over, for a run of envelopes takes one call.
        self._gathered: list[bus.Append] = []
        self._waiting_for_space: deque[bus.Append] = deque()
        self._low: NoSpace | None = None
        self._is_tight = False
        self._durable_index = 0
        self._requested: deque[SyncTicket] = deque()
        self._checkpoints: CheckpointLine[bus.WriteCheckpoint] = CheckpointLine(found.checkpoint_segments)
        self._base = 0
        self._base_to_release: int | None = None
        # Damaged records that have come from another node.
        self._mends: list[bus.Mend] = []
        # Checkpoints from this number on are being fetched by another node; 0 if none is.
        self._held_from = 0
        # The one that is being fetched, read and verified once for all its pieces.
        self._being_read: Checkpoint | None = None
        # The storage is closed or given up; what threads still report is nobody's business any more.
        self._is_over = False
        self._sync_failure: StorageFailed | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None
        self._pulse_timer = self._later(PULSE_SECONDS, self._pulse)
        # Does the journal hold segments that checkpoints would free?
        self._holds_space = False

    @property
    def is_full(self) -> bool:
        """Is the disk full, so that records wait here?"""
        return bool(self._waiting_for_space)

    # --- effects of the bus ------------------------------------------------------------------------

    def carry_out(self, effect: bus.Effect) -> None:
        """Do what a machine of the channel asked of the disk."""
        self._is_asked = True
        if type(effect) is bus.Append:
            self._gathered.append(effect)
            return
        match effect:
            case bus.WriteCheckpoint():
                self._checkpoints.ask(effect, self._counter.last)
                self._begin_checkpoints()
                self._look_again()
            case bus.ReadCheckpoint():
                self._read_checkpoint(effect)
            case bus.HoldCheckpoints(n=n):
                self._hold(n)
            case bus.Mend():
                self._mends.append(effect)
            case bus.ReleaseSpace(base=base):
                # Later in this step records may follow that have their index already; what is copied when
                # space is released gets its index when all of them are written.
                self._base_to_release = base
            case bus.Alarm(text=text):
                log.error("%s", text)
            case _:
                raise AssertionError(f"{type(effect).__name__} is nothing a disk can do")

    def append_all(self, appends: list[bus.Append]) -> None:
        """What `carry_out` does with each of these, which follow each other."""
        self._is_asked = True
        at, total = 0, len(appends)
        while at < total and not self._waiting_for_space:
            end = at
            while end < total and type(appends[end].record) is bus.DataRecord:
                end += 1
            if end - at > 1:
                run = appends[at:end]
                indexes, rows = [one[0] for one in run], [one[1] for one in run]
                at += self._journal.append_envelopes(indexes, rows)  # type: ignore[arg-type]
            if at < end or end < total:
                # Another kind of record, or the first for which there was no room.
                self._append(appends[at])
                at += 1
        for effect in appends[at:]:
            self._append(effect)

    def _append_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        if len(gathered) == 1:
            self._append(gathered[0])
        else:
            self.append_all(gathered)

    def _append(self, effect: bus.Append) -> None:
        index, record = effect
        if self._waiting_for_space:
            self._waiting_for_space.append(effect)
            return
        try:
            if type(record) is bus.DataRecord:
                # The usual case, and the one that there is for every envelope.
                self._journal.append_data(index, *record)
            else:
                self._write(effect)
        except NoSpace as error:
            self._waiting_for_space.append(effect)
            self._note_space(error)

    def _write(self, effect: bus.Append) -> None:
        index, journal = effect.index, self._journal
        record = effect.record
        if type(record) is bus.DataRecord:
            journal.append_data(index, *record)
            return
        match record:
            case bus.OrderRecord(body, highest, pinned):
                journal.append_order(index, body, highest, pinned=pinned)
            case bus.SuperblockRecord(promised, epoch_claimed):
                journal.append_superblock(index, promised, epoch_claimed)
            case bus.CopyRecord(mid, ts, count, digest, payload):
                journal.append_copy(index, mid, ts, count, digest, payload)

    def _note_space(self, missing: NoSpace | None) -> None:
        """Whether there was room for the next segment (P5)."""
        if missing is None:
            if self._low is not None and not self._waiting_for_space:
                self._low, self._is_tight = None, False
                log.info("there is room on the disk again")
                self._tell(bus.SpaceChanged(False))
            return
        if self._low is None:
            log.error("%s; nothing more is published until there is room", missing)
            self._later(NO_SPACE_RETRY_SECONDS, self._try_again)
        self._low = missing
        self._tell_low()

    def _tell_low(self) -> None:
        assert self._low is not None, "room was told to be low that is not"
        self._is_tight = self.is_full or self._journal.room < TIGHT_BELOW
        self._tell(bus.SpaceChanged(True, self._is_tight, self._low.text, self.is_full))

    def _try_again(self) -> None:
        """Look for room once in a while; what is told makes the bus look for what it does not need."""
        if self._low is None:
            return
        try:
            while self._waiting_for_space:
                self._write(self._waiting_for_space[0])
                self._waiting_for_space.popleft()
        except NoSpace as error:
            self._low = error
        self._is_asked = True
        self.flush()
        if self._journal.has_spare:
            self._note_space(None)
        if self._low is not None:
            self._tell_low()
            self._later(NO_SPACE_RETRY_SECONDS, self._try_again)
            self._do_chore()

    # --- flushing and syncing ----------------------------------------------------------------------

    def flush(self) -> None:
        """Write what this round of the loop has gathered, and have it synced."""
        if not self._is_asked:
            return
        self._is_asked = False
        if self._gathered:
            self._append_gathered()
        if self._base_to_release is not None:
            base, self._base_to_release = self._base_to_release, None
            self._release(base)
        if self._mends:
            self._mend()
        self._flush_journal()
        if self._low is None:
            if self._journal.needs_spare():
                self._do_chore()
        elif not self._is_tight and self._journal.room < TIGHT_BELOW:
            self._tell_low()

    def _flush_journal(self) -> None:
        """At once; or when room is low, seldom, for every flush takes a page of the order."""
        if self._low is None:
            self._request(self._journal.flush())
        elif self._slow_timer is None:
            self._slow_timer = self._later(LOW_FLUSH_SECONDS, self._flush_slowly)

    def _flush_slowly(self) -> None:
        self._slow_timer = None
        self._request(self._journal.flush())

    def _request(self, ticket: SyncTicket | None) -> None:
        if ticket is None:
            return
        is_little = self._journal.unsynced_bytes <= SYNCED_AT_ONCE_BYTES
        if is_little and self._sync.is_quick and not self._requested:
            # Two hand-overs between threads cost more than such a sync, and what arrives meanwhile is
            # taken together.
            try:
                self._sync.sync_now(ticket)
            except StorageFailed as error:
                self._on_sync(error)
            else:
                self._on_sync(ticket)
            return
        self._requested.append(ticket)
        self._sync.request(ticket)

    def _sync_done(self, result: SyncTicket | StorageFailed) -> None:
        # In the sync thread. A failure is noted here too: the loop may take no more steps.
        if isinstance(result, StorageFailed):
            self._sync_failure = result
        self._loop.call_soon_threadsafe(self._guard, self._on_sync, result)

    def _on_sync(self, result: SyncTicket | StorageFailed) -> None:
        if isinstance(result, StorageFailed):
            self._disk.mark_poisoned(result.text)
            self._give_up(result)
            return
        self._journal.synced(result)
        while self._requested and _covers(result, self._requested[0]):
            self._requested.popleft()
        self._durable_index = result.upto_index
        self._tell(bus.Synced(result.upto_index))
        self._begin_checkpoints()
        # A superblock or a new segment may have waited for this sync.
        self._flush_journal()
        if self._low is None or self._journal.can_recycle:
            self._do_chore()
        if self._idle_timer is None:
            self._idle_timer = self._later(IDLE_SECONDS, self._when_idle, result.upto_index)

    def _when_idle(self, index: int) -> None:
        self._idle_timer = None
        if self._durable_index != index:
            self._idle_timer = self._later(IDLE_SECONDS, self._when_idle, self._durable_index)
        else:
            self._request(self._journal.mark())

    def _do_chore(self) -> None:
        chore = self._journal.chore()
        if chore is None:
            return

        def chore_done(_: None) -> None:
            self._journal.chore_done(chore)
            if chore.number is not None:
                self._note_space(chore.no_space)
            if chore.no_space is None:
                # What was freed meanwhile.
                self._do_chore()

        self._in_thread(chore.run, chore_done)

    def _pulse(self) -> None:
        """Once a second: what the last one needed may be needed no more (P4)."""
        self._pulse_timer = self._later(PULSE_SECONDS, self._pulse)
        self._look_for_held_space()
        self._journal.tidy()
        if self._low is None or self._journal.can_recycle:
            self._do_chore()

    def _look_again(self) -> None:
        """Checkpoints were taken, or have freed something: nobody shall call for more than are needed."""
        if self._holds_space:
            self._look_for_held_space()

    def _look_for_held_space(self) -> None:
        # What another node is fetching stays, whatever is checkpointed.
        holds = not self._held_from and self._journal.holds_space(
            self._base, self._manager.live_bytes_by_segment()
        )
        if holds != self._holds_space:
            self._holds_space = holds
            self._tell(bus.SpaceHeld(holds))

    # --- what the loop calls (P3) ------------------------------------------------------------------

    def _guard(self, callback: Callable[..., None], *args: Any) -> None:
        """Every callback that the loop is given runs in here."""
        if self._is_over:
            return
        try:
            callback(*args)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._end()
        self._journal.failed(str(error))
        self._fail(error)

    def _later(self, seconds: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._guard, callback, *args)

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have the worker thread do it; the loop is told what came of it."""
        done = self._loop.run_in_executor(self._workers, work)
        done.add_done_callback(lambda future: self._guard(self._after, future, then))

    def _after(self, future: asyncio.Future[T], then: Callable[[T], None]) -> None:
        # A failed write is as final as a failed sync: what the thread raised is raised here.
        if not future.cancelled():
            then(future.result())

    # --- checkpoints and space ---------------------------------------------------------------------

    def _begin_checkpoints(self) -> None:
        for effect in self._checkpoints.due(self._durable_index):
            self._write_checkpoint(effect)

    def _write_checkpoint(self, effect: bus.WriteCheckpoint) -> None:
        def write() -> bool:
            # In the worker thread.
            try:
                self._journal.write_checkpoint(effect.n, effect.digest, effect.state, effect.segments)
            except NoSpace:
                return False
            return True

        def written(is_there: bool) -> None:
            if is_there:
                self._note_checkpoint(effect.n)
            else:
                # Nothing is lost without it. The bus tries again, for the space it would free is needed.
                self._tell(bus.CheckpointFailed(effect.n))

        self._in_thread(write, written)

    def _note_checkpoint(self, n: int) -> None:
        self._checkpoints.written(n)
        self._tell(bus.CheckpointWritten(n))
        # Behind everything that still refers to the checkpoint's bytes.
        self._loop.call_soon(self._guard, self._in_thread, give_back, _nothing)

    def _read_checkpoint(self, effect: bus.ReadCheckpoint) -> None:
        """A piece of a checkpoint, for another node; read by the thread that also drops them."""
        self._in_thread(lambda: self._read_piece(effect), self._tell)

    def _read_piece(self, effect: bus.ReadCheckpoint) -> bus.CheckpointRead:
        # In the worker thread.
        if self._being_read is None or self._being_read.n != effect.n:
            try:
                self._being_read = self._journal.read_checkpoint(effect.n)
            except Damaged as error:
                log.error("%s", error)
                return bus.CheckpointRead(effect.n, effect.offset, None, effect.to)
        piece = memoryview(self._being_read.state)[effect.offset : effect.offset + effect.length]
        return bus.CheckpointRead(effect.n, effect.offset, piece, effect.to)

    def _hold(self, n: int) -> None:
        self._held_from = n
        if not n:
            self._in_thread(self._forget_read, _nothing)
        if self._base:
            # What was kept for another node may go now.
            self._base_to_release = self._base

    def _forget_read(self) -> None:
        # In the worker thread, behind the last reading.
        self._being_read = None

    def _release(self, base: int) -> None:
        journal = self._journal
        self._base = base
        journal.payloads.forget_through(base)
        oldest = min(base, self._held_from or base)
        referenced = self._checkpoints.release(oldest)
        self._in_thread(lambda: journal.drop_checkpoints_before(oldest), _nothing)
        live = self._manager.live_bytes_by_segment()
        journal.release(base, referenced.union(live))
        self._empty_sparse_segments(live)
        self._look_again()

    def _empty_sparse_segments(self, live: dict[int, int]) -> None:
        budget = RELOCATED_BYTES_MAX
        for segment in self._journal.sparse_segments(live, SPARSE_BELOW):
            budget -= live.get(segment, 0)
            if budget < 0 or self.is_full:
                return
            for location in self._manager.records_in(segment):
                try:
                    moved = self._journal.relocate(self._counter.last + 1, location)
                except NoSpace:
                    # It was only about saving space; the record stays where it is.
                    return
                except Damaged as error:
                    self._manager.damaged(location, error)
                    continue
                # Not before: an index without a record would not be durable until another follows.
                self._counter.next()
                self._manager.relocated(location, moved)

    def _mend(self) -> None:
        """Like what is copied to save space, and at the same moment: behind all that has its index."""
        mends, self._mends = self._mends, []
        for mend in mends:
            if self.is_full:
                return
            record = mend.record
            facts = (record.mid, record.ts, record.count, record.digest, record.payload)
            try:
                moved = self._journal.append_mended(self._counter.last + 1, *facts)
            except NoSpace:
                # It is asked for again.
                return
            self._counter.next()
            self._manager.relocated(mend.place, moved)

    # --- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync everything and note that this was an orderly end. Blocking."""
        self._end()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._sync.close()
        if self._sync_failure is not None:
            self._disk.mark_poisoned(self._sync_failure.text)
            raise self._sync_failure
        # What the sync thread finished last was told to a loop that takes no more steps.
        while self._requested:
            self._journal.synced(self._requested.popleft())
        try:
            self._journal.close()
        except StorageFailed as error:
            self._disk.mark_poisoned(error.text)
            raise

    def abandon(self) -> None:
        """The node failed: leave the disk as it is."""
        self._end()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _end(self) -> None:
        self._is_over = True
        for timer in (self._idle_timer, self._slow_timer, self._pulse_timer):
            if timer is not None:
                timer.cancel()


def _nothing(_: object) -> None:
    """What follows work of the thread that nobody waits for."""


def _covers(done: SyncTicket, requested: SyncTicket) -> bool:
    return requested.position <= done.position and requested.superblock <= done.superblock
