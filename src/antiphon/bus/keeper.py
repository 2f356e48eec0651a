"""Keeper: has the journal written as the roles of a channel ask, and says which records are durable.

Where it sits
    node  ->  Append, WriteCheckpoint, ReleaseSpace …  ->  KEEPER  ->  journal
    KEEPER  ->  Sync, Do, Tell  ->  runtime or simulator  ->  synced, done, tick  ->  KEEPER

What it promises
    KEE1  Records reach the journal in index order, also when the disk is full for a while: then records wait
          here, nothing behind them is written, and no role is told that they are durable.
    KEE2  The file of a checkpoint is begun when every record before it is durable, and the checkpoint is
          reported when its file is. A checkpoint that another node fetches stays as long as the bus says.
    KEE3  After a failure nothing is written and nothing is told.
    KEE4  A freed segment is used again or removed, also when nothing is written any more; and as long as
          checkpoints would free segments, the bus knows (`SpaceHeld`).
    KEE5  Room is low when there is no segment behind the present one, and tight when half of the present one
          is used. Both are told, so that publishing stops while acknowledgements and checkpoints have room.
    KEE6  A sync is awaited in place only if it covers few bytes, the last syncs were quick, and no other sync
          is under way.

What it leaves to others
    The driver executes one sync at a time, with all waiting tickets merged into the next; and one worker runs
    the work of `Do` in order. The journal has the bytes; the bus decides which may be forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from antiphon.bus import effects as bus
from antiphon.bus.ports import JournalCounter
from antiphon.errors import Damaged, NoSpace
from antiphon.events import CHECKPOINT_UNREADABLE, DISK_AMPLE, DISK_LOW, SYNC_SLOW
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.chores import Chore
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.ports import Referrer
from antiphon.journal.recovery import Recovered

_MS_NS: Final = 1_000_000

TIGHT_BELOW: Final = 0.5
SPARSE_BELOW: Final = 0.25
"""A segment with a smaller live part is emptied by copying, so that one message does not pin gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    # After so long without writes the journal notes how far it was synced, so that damage to the last records
    # can be told from a torn write.
    idle_ns: int = 50 * _MS_NS
    # How often the keeper looks for unneeded segments, also if nothing is written.
    pulse_ns: int = 1_000 * _MS_NS
    no_space_retry_ns: int = 1_000 * _MS_NS
    low_flush_ns: int = 10 * _MS_NS
    # More bytes than this are synced beside the loop, which has other work.
    in_place_bytes_max: int = 64 << 10
    # A disk that syncs within this time is quicker than the way to another thread and back.
    quick_ns: int = 2 * _MS_NS
    # So many slower syncs in a row make a disk slow; a single one may have waited for a core.
    slow_syncs_max: int = 16
    # A single sync of this length makes a disk slow: heartbeats would be missed.
    stall_ns: int = 100 * _MS_NS
    # How often such syncs are told at most.
    stall_told_ns: int = 60_000 * _MS_NS
    # Copied per checkpoint at most, so that copying is never felt.
    relocated_bytes_max: int = 16 << 20


# --- work for the worker thread --------------------------------------------------------------------


class CheckpointFile:
    def __init__(self, journal: Journal, wanted: bus.WriteCheckpoint, begun_ns: int) -> None:
        self._journal = journal
        self.wanted = wanted
        self.begun_ns = begun_ns
        self.is_written = False

    def run(self) -> None:
        """Blocking."""
        wanted = self.wanted
        try:
            self._journal.write_checkpoint(wanted.n, wanted.digest, wanted.state, wanted.segments)
        except NoSpace:
            return
        self.is_written = True


class _OpenCheckpoint:
    """The checkpoint that is being fetched, read and verified once for all its pieces; of the worker."""

    read: Checkpoint | None = None


class CheckpointPiece:
    def __init__(self, journal: Journal, asked: bus.ReadCheckpoint, opened: _OpenCheckpoint) -> None:
        self._journal = journal
        self._asked = asked
        self._opened = opened
        self.problem = ""
        self.answer = bus.CheckpointRead(asked.n, asked.offset, None, asked.to)

    def run(self) -> None:
        """Blocking."""
        asked, opened = self._asked, self._opened
        if opened.read is None or opened.read.n != asked.n:
            try:
                opened.read = self._journal.read_checkpoint(asked.n)
            except Damaged as error:
                self.problem = str(error)
                return
        piece = memoryview(opened.read.state)[asked.offset : asked.offset + asked.length]
        self.answer = bus.CheckpointRead(asked.n, asked.offset, piece, asked.to)


class CheckpointClosed:
    """Drops a checkpoint that is no longer fetched."""

    def __init__(self, opened: _OpenCheckpoint) -> None:
        self._opened = opened

    def run(self) -> None:
        """Quick, but behind the last piece."""
        self._opened.read = None


class CheckpointsDropped:
    def __init__(self, journal: Journal, before: int) -> None:
        self._journal = journal
        self._before = before
        self.dropped = 0

    def run(self) -> None:
        """Blocking."""
        self.dropped = self._journal.drop_checkpoints_before(self._before)


Work = Chore | CheckpointFile | CheckpointPiece | CheckpointClosed | CheckpointsDropped


# --- effects ---------------------------------------------------------------------------------------


class Sync(NamedTuple):
    """Sync the files of the ticket, then call `synced`; in place, or beside the loop behind other syncs."""

    ticket: SyncTicket
    is_in_place: bool


class Do(NamedTuple):
    """Have the worker `run` this behind all other work, then call `done`."""

    work: Work


class Tell(NamedTuple):
    event: bus.Event


KeeperEffect = Sync | Do | Tell


class Keeper:
    def __init__(
        self,
        journal: Journal,
        found: Recovered,
        counter: JournalCounter,
        referrer: Referrer,
        now_ns: int,
        settings: KeeperSettings | None = None,
    ) -> None:
        self._journal = journal
        self._counter = counter
        self._referrer = referrer
        self._settings = settings or KeeperSettings()
        self._now_ns = now_ns
        self._out: list[KeeperEffect] = []
        # Whether an effect came since the last flush.
        self.is_asked = True
        self.is_over = False
        # Records that are appended when the step is over: a run of envelopes takes one call.
        self._gathered: list[bus.Append] = []
        self._waiting_for_space: deque[bus.Append] = deque()
        self._low: NoSpace | None = None
        self._is_tight = False
        self._durable_index = 0
        self._syncs_under_way: deque[SyncTicket] = deque()
        self._is_quick = False
        self._slow_syncs = 0
        # Whether envelopes wait for their entries, and how long a sync takes on the average.
        self._data_waits = False
        self._sync_ns = 0
        # Very slow syncs that were not told yet, the slowest of them, and when one was told last.
        self._stalls = self._stall_ns = 0
        self._stall_told_ns = now_ns - self._settings.stall_told_ns
        self._checkpoints: CheckpointLine[bus.WriteCheckpoint] = CheckpointLine(found.checkpoint_segments)
        self._base = 0
        self._base_to_release: int | None = None
        self._mends: list[bus.Mend] = []
        # Another node fetches checkpoints from this number on; 0 for none.
        self._held_from = 0
        self._opened = _OpenCheckpoint()
        self._held_segments = 0
        self._idle_index = 0
        self._idle_at_ns: int | None = None
        self._slow_flush_at_ns: int | None = None
        self._retry_at_ns: int | None = None
        self._pulse_at_ns = now_ns + self._settings.pulse_ns

    @property
    def is_full(self) -> bool:
        """Whether the disk is full, so that records wait here."""
        return bool(self._waiting_for_space)

    @property
    def is_waiting(self) -> bool:
        """Whether written records wait for others before they are flushed."""
        return self._slow_flush_at_ns is not None

    def next_deadline_ns(self) -> int:
        earliest = self._pulse_at_ns
        for at in (self._idle_at_ns, self._slow_flush_at_ns, self._retry_at_ns):
            if at is not None and at < earliest:
                earliest = at
        return earliest

    # --- events ------------------------------------------------------------------------------------

    def take(self, effect: bus.Effect) -> None:
        """Take an effect for the disk; it begins with the next `flush`."""
        self.is_asked = True
        if type(effect) is bus.Append:
            self._gathered.append(effect)
            return
        match effect:
            case bus.WriteCheckpoint():
                self._checkpoints.ask(effect, self._counter.last)
                self._look_again()
            case bus.ReadCheckpoint():
                self._out.append(Do(CheckpointPiece(self._journal, effect, self._opened)))
            case bus.DataWaits(is_so):
                self._data_waits = is_so
            case bus.HoldCheckpoints(n=n):
                self._hold(n)
            case bus.Mend():
                self._mends.append(effect)
            case bus.ReleaseSpace(base=base):
                # Later in this step records may follow that have their index already; a record that is copied
                # when space is released gets its index when all of them are written.
                self._base_to_release = base
            case bus.Alarm():
                # Of a process without a log of events.
                pass
            case _:
                raise AssertionError(f"{type(effect).__name__} is nothing a disk can do")

    def flush(self, now_ns: int) -> list[KeeperEffect]:
        """Write and sync the records of the node's step."""
        self._now_ns = now_ns
        if self.is_asked:
            self._flush()
        return self._effects()

    def synced(self, now_ns: int, ticket: SyncTicket, took_ns: int) -> list[KeeperEffect]:
        """Note that the files of this ticket, and of all before it, are synced."""
        self._now_ns = now_ns
        if self.is_over:
            return []
        self._judge_disk(took_ns)
        journal = self._journal
        journal.synced(ticket)
        under_way = self._syncs_under_way
        while under_way and _covers(ticket, under_way[0]):
            under_way.popleft()
        self._durable_index = ticket.upto_index
        self._out.append(Tell(bus.Synced(ticket.upto_index)))
        if self._checkpoints.waiting:
            self._begin_checkpoints()
        # A superblock or a new segment may have waited for this sync.
        self._flush_journal()
        self._do_chore_if_room()
        if self._idle_at_ns is None:
            self._plan_idle()
        return self._effects()

    def done(self, now_ns: int, work: Work) -> list[KeeperEffect]:
        """Take back the work that the worker has done."""
        self._now_ns = now_ns
        if self.is_over:
            return []
        match work:
            case Chore():
                self._journal.chore_done(work)
                if work.number is not None:
                    self._note_space(work.no_space)
                if work.no_space is None:
                    # Segments freed meanwhile.
                    self._do_chore()
            case CheckpointFile(wanted=wanted, begun_ns=begun_ns, is_written=True):
                self._checkpoints.written(wanted.n)
                if self._checkpoints.has_outdated(self._base):
                    # The base may stay: a node that joined began behind the files of its former life.
                    self._release_again()
                # Neither the wait for the records before it nor one for room: only work counts.
                took_ms = (now_ns - begun_ns) // _MS_NS
                self._out.append(Tell(bus.CheckpointWritten(wanted.n, took_ms)))
            case CheckpointFile(wanted=wanted):
                # Nothing is lost without it. The bus tries again, for the space it would free is needed.
                self._out.append(Tell(bus.CheckpointFailed(wanted.n)))
            case CheckpointPiece(answer=answer, problem=problem):
                if problem:
                    self._out.append(Tell(bus.Alarm(CHECKPOINT_UNREADABLE(problem=problem))))
                self._out.append(Tell(answer))
            case CheckpointClosed() | CheckpointsDropped():
                pass
        return self._effects()

    def tick(self, now_ns: int) -> list[KeeperEffect]:
        self._now_ns = now_ns
        if self.is_over:
            return []
        if self._slow_flush_at_ns is not None and self._slow_flush_at_ns <= now_ns:
            self._slow_flush_at_ns = None
            self._request(self._journal.flush())
        if self._idle_at_ns is not None and self._idle_at_ns <= now_ns:
            self._when_idle()
        if self._retry_at_ns is not None and self._retry_at_ns <= now_ns:
            self._retry_at_ns = None
            self._try_again()
        if self._pulse_at_ns <= now_ns:
            self._pulse()
        return self._effects()

    def fail(self, text: str) -> None:
        """Accept nothing more after a failed write or sync, or a bug (KEE3)."""
        self.is_over = True
        self._journal.failed(text)

    def close(self) -> None:
        """Sync the rest after the last sync under way, and note an orderly end. Blocking."""
        self.is_over = True
        while self._syncs_under_way:
            self._journal.synced(self._syncs_under_way.popleft())
        self._journal.close()

    def _effects(self) -> list[KeeperEffect]:
        effects, self._out = self._out, []
        return effects

    # --- records -----------------------------------------------------------------------------------

    def _append_gathered(self) -> None:
        appends, self._gathered = self._gathered, []
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
        self._waiting_for_space += appends[at:]

    def _append(self, effect: bus.Append) -> None:
        try:
            self._write(effect)
        except NoSpace as error:
            self._waiting_for_space.append(effect)
            self._note_space(error)

    def _write(self, effect: bus.Append) -> None:
        index, record = effect
        journal = self._journal
        if type(record) is bus.DataRecord:
            journal.append_data(index, *record)
            return
        match record:
            case bus.OrderRecord(body, highest, pinned, bound):
                journal.append_order(index, body, highest, pinned=pinned, bound=bound)
            case bus.SuperblockRecord(promised, epoch_claimed):
                journal.append_superblock(index, promised, epoch_claimed)
            case bus.CopyRecord(mid, ts, count, digest, payload):
                journal.append_copy(index, mid, ts, count, digest, payload)

    # --- room (KEE5) --------------------------------------------------------------------------------

    def _note_space(self, missing: NoSpace | None) -> None:
        if missing is None:
            if self._low is not None and not self._waiting_for_space:
                self._low, self._is_tight = None, False
                self._out.append(Tell(bus.Alarm(DISK_AMPLE())))
                self._out.append(Tell(bus.SpaceChanged(False)))
            return
        if self._low is None:
            self._out.append(Tell(bus.Alarm(DISK_LOW(problem=str(missing)))))
            self._plan_retry()
        self._low = missing
        self._tell_low()

    def _tell_low(self) -> None:
        assert self._low is not None, "room was told to be low that is not"
        self._is_tight = self.is_full or self._journal.room < TIGHT_BELOW
        self._out.append(Tell(bus.SpaceChanged(True, self._is_tight, self._low.text, self.is_full)))

    def _plan_retry(self) -> None:
        self._retry_at_ns = self._now_ns + self._settings.no_space_retry_ns

    def _try_again(self) -> None:
        """Look for room once in a while; each time the bus looks for what it does not need."""
        if self._low is None:
            return
        try:
            while self._waiting_for_space:
                self._write(self._waiting_for_space[0])
                self._waiting_for_space.popleft()
        except NoSpace as error:
            self._low = error
        self._flush()
        if self._journal.has_spare:
            self._note_space(None)
        if self._low is not None:
            self._tell_low()
            self._plan_retry()
            self._do_chore()

    # --- flushing and syncing ----------------------------------------------------------------------

    def _flush(self) -> None:
        self.is_asked = False
        if self._checkpoints.waiting:
            self._begin_checkpoints()
        waits = False
        if self._gathered:
            waits = self._data_waits and _is_little_data(self._gathered, self._settings.in_place_bytes_max)
            self._append_gathered()
        if self._base_to_release is not None:
            base, self._base_to_release = self._base_to_release, None
            self._release(base)
        if self._mends:
            self._mend()
        if waits and self._low is None:
            if self._slow_flush_at_ns is None:
                self._slow_flush_at_ns = self._now_ns + self._sync_ns
        else:
            self._flush_journal()
        if self._low is None:
            if self._journal.needs_spare():
                self._do_chore()
        elif not self._is_tight and self._journal.room < TIGHT_BELOW:
            self._tell_low()

    def _flush_journal(self) -> None:
        """Flush at once; or seldom when room is low, for every flush takes a page of the order."""
        if self._low is None:
            self._slow_flush_at_ns = None
            ticket = self._journal.flush()
            if ticket is not None:
                self._request(ticket)
        elif self._slow_flush_at_ns is None:
            self._slow_flush_at_ns = self._now_ns + self._settings.low_flush_ns

    def _request(self, ticket: SyncTicket | None) -> None:
        if ticket is None:
            return
        # Two hand-overs between threads cost more than a quick sync; arriving events gather meanwhile (KEE6).
        is_little = self._journal.unsynced_bytes <= self._settings.in_place_bytes_max
        is_in_place = self._is_quick and is_little and not self._syncs_under_way
        self._syncs_under_way.append(ticket)
        self._out.append(Sync(ticket, is_in_place))

    def _judge_disk(self, took_ns: int) -> None:
        settings = self._settings
        self._sync_ns += (took_ns - self._sync_ns) // 8
        if took_ns < settings.quick_ns:
            self._slow_syncs, self._is_quick = 0, True
        else:
            self._slow_syncs += 1
            is_bearable = took_ns < settings.stall_ns and self._slow_syncs < settings.slow_syncs_max
            self._is_quick = self._is_quick and is_bearable
            if took_ns >= settings.stall_ns:
                self._note_stall(took_ns)

    def _note_stall(self, took_ns: int) -> None:
        """Tell of a very slow sync, and then for a while of no other: to publish this takes a sync, too."""
        self._stalls += 1
        self._stall_ns = max(self._stall_ns, took_ns)
        if self._now_ns >= self._stall_told_ns + self._settings.stall_told_ns:
            self._out.append(Tell(bus.Alarm(SYNC_SLOW(count=self._stalls, ms=self._stall_ns // _MS_NS))))
            self._stalls = self._stall_ns = 0
            self._stall_told_ns = self._now_ns

    def _plan_idle(self) -> None:
        self._idle_index = self._durable_index
        self._idle_at_ns = self._now_ns + self._settings.idle_ns

    def _when_idle(self) -> None:
        self._idle_at_ns = None
        if self._durable_index != self._idle_index:
            self._plan_idle()
        else:
            self._request(self._journal.mark())

    # --- segments (KEE4) ----------------------------------------------------------------------------

    def _do_chore_if_room(self) -> None:
        if self._low is None or self._journal.can_recycle:
            self._do_chore()

    def _do_chore(self) -> None:
        chore = self._journal.chore()
        if chore is not None:
            self._out.append(Do(chore))

    def _pulse(self) -> None:
        self._pulse_at_ns = self._now_ns + self._settings.pulse_ns
        if self._journal.can_release(self._base):
            self._release_again()
            self._flush()
        self._look_for_held_space()
        self._journal.tidy()
        self._do_chore_if_room()

    def _look_again(self) -> None:
        """Look again after checkpoints: the bus takes no more of them than are needed."""
        if self._held_segments:
            self._look_for_held_space()

    def _look_for_held_space(self) -> None:
        # A checkpoint that another node fetches stays, whatever is checkpointed.
        holds = not self._held_from and self._checkpoints_would_free()
        # The number shows the bus whether checkpoints help: copying to empty segments may take many of them.
        segments = self._journal.segments_in_use if holds else 0
        if segments != self._held_segments:
            self._held_segments = segments
            self._out.append(Tell(bus.SpaceHeld(segments)))

    def _checkpoints_would_free(self) -> bool:
        journal, live = self._journal, self._referrer.live_bytes_by_segment()
        if self._low is None:
            return journal.holds_space(self._base, live)
        # Every segment counts, also one that is kept for a few records: checkpoints are what copies those.
        sparse = journal.sparse_segments(live, SPARSE_BELOW)
        return journal.holds_space(self._base, live.keys() - set(sparse), at_rest=1)

    # --- checkpoints and what they free (KEE2) ------------------------------------------------------

    def _begin_checkpoints(self) -> None:
        for wanted in self._checkpoints.due(self._durable_index):
            self._out.append(Do(CheckpointFile(self._journal, wanted, self._now_ns)))

    def _hold(self, n: int) -> None:
        self._held_from = n
        if not n:
            self._out.append(Do(CheckpointClosed(self._opened)))
        # Records kept for another node may go now.
        self._release_again()

    def _release_again(self) -> None:
        if self._base and self._base_to_release is None:
            self._base_to_release = self._base
            self.is_asked = True

    def _release(self, base: int) -> None:
        journal = self._journal
        self._base = base
        journal.payloads.forget_through(base)
        oldest = min(base, self._held_from or base)
        referenced = self._checkpoints.release(oldest)
        self._out.append(Do(CheckpointsDropped(journal, oldest)))
        live = self._referrer.live_bytes_by_segment()
        journal.release(base, referenced.union(live))
        self._empty_sparse_segments(live)
        self._look_again()

    def _empty_sparse_segments(self, live: dict[int, int]) -> None:
        budget = self._settings.relocated_bytes_max
        for segment in self._journal.sparse_segments(live, SPARSE_BELOW):
            budget -= live.get(segment, 0)
            if budget < 0 or self.is_full:
                return
            for location in self._referrer.records_in(segment):
                try:
                    moved = self._journal.relocate(self._counter.last + 1, location)
                except NoSpace:
                    # It was only about saving space; the record stays where it is.
                    return
                except Damaged as error:
                    self._referrer.damaged(location, error)
                    continue
                # Not before: an index without a record would not be durable until another follows.
                self._counter.next()
                self._referrer.relocated(location, moved)

    def _mend(self) -> None:
        """Write mended records, behind all records that have an index."""
        mends, self._mends = self._mends, []
        for mend in mends:
            if self.is_full:
                return
            record = mend.record
            facts = (record.mid, record.ts, record.count, record.digest, record.payload)
            try:
                moved = self._journal.append_mended(self._counter.last + 1, *facts)
            except NoSpace:
                # The record is asked for again.
                return
            self._counter.next()
            self._referrer.relocated(mend.place, moved)


def _is_little_data(appends: list[bus.Append], most: int) -> bool:
    """Whether these are envelopes alone, of so many bytes at most."""
    for _, record in appends:
        if type(record) is not bus.DataRecord:
            return False
        most -= len(record.payload)
    return most >= 0


def _covers(done: SyncTicket, requested: SyncTicket) -> bool:
    return requested.position <= done.position and requested.superblock <= done.superblock
