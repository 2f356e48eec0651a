"""Storage: executes a keeper's effects in virtual time on a simulated disk, without decisions of its own.

One sync is on its way at a time, as in the sync thread; all tickets that come meanwhile are merged into the
next. A sync in place ends at once, and the node takes no step for its duration. One worker does the slow
work, in order. Only the disk says that a record is durable, and the checkers are told first.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from antiphon.bus import effects as bus
from antiphon.bus.keeper import (
    CheckpointFile,
    CheckpointPiece,
    CheckpointsDropped,
    Do,
    Keeper,
    KeeperEffect,
    KeeperSettings,
    Sync,
    Tell,
    Work,
)
from antiphon.bus.ports import JournalCounter
from antiphon.journal.chores import Chore
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.memory_disk import Syncing
from antiphon.journal.ports import Referrer
from antiphon.journal.recovery import Recovered
from antiphon.message_manager.manager import MessageManager
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import PowerLost, SimDisk, SyncFailed
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, World


def _settings(chance: random.Random) -> KeeperSettings:
    """Drawn bounds for syncs in place, and frequent pulses, because runs are short."""
    return KeeperSettings(
        pulse_ns=200 * MILLISECOND_NS,
        quick_ns=chance.choice((0, 0, 200 * MICROSECOND_NS, 2 * MILLISECOND_NS)),
        in_place_bytes_max=chance.choice((512, 8 << 10, 64 << 10)),
        relocated_bytes_max=chance.choice((8 << 10, 16 << 20)),
    )


class ChannelStorage:
    def __init__(
        self,
        world: World,
        node: int,
        disk: SimDisk,
        journal: Journal,
        found: Recovered,
        counter: JournalCounter,
        referrer: Referrer,
        watch: Watch,
        tell: Callable[[bus.Event], None],
        later: Callable[[int, Callable[[], None]], None],
        stand_still: Callable[[int], None] = lambda duration_ns: None,
    ) -> None:
        self._world = world
        self._node = node
        self._disk = disk
        self._journal = journal
        self._counter = counter
        self._watch = watch
        self._tell = tell
        # Act after a while, unless this life of the node is over by then.
        self._later = later
        # The node takes no step for so long.
        self._stand_still = stand_still
        # The state of another application refers to no records.
        self._shows_files = isinstance(referrer, MessageManager)
        self._waiting: SyncTicket | None = None
        self._syncing: tuple[SyncTicket, Syncing] | None = None
        self._works: deque[Work] = deque()
        self._timer_at_ns = -1
        settings = _settings(world.random(f"keeper/{node}"))
        self.keeper = Keeper(journal, found, counter, referrer, world.now_ns, settings)
        self._show_files()
        self._arm()

    def carry_out(self, effect: bus.Effect) -> None:
        """Execute an effect of the channel's machines on the disk."""
        match effect:
            case bus.Append(index=index, record=record):
                if not isinstance(record, bus.CopyRecord):
                    # A copy counts only when a checkpoint refers to it.
                    self._watch.on_appended(self._node, index, record)
            case bus.ReleaseSpace(base=base):
                self._world.probe("journal.base_moved")
                self._watch.on_released(self._node, base)
            case bus.Mend():
                self._world.probe("journal.record_mended")
            case bus.Alarm(event=event):
                # Of a station, which has no log.
                self._world.probe(f"event.{event.kind.code}")
        self.keeper.take(effect)

    def flush(self) -> None:
        if not self.keeper.is_asked:
            return
        journal, counter = self._journal, self._counter
        segment, index, in_use = journal.end_position.segment, counter.last, journal.segments_in_use
        effects = self.keeper.flush(self._world.now_ns)
        self._world.probe("journal.rolled_over", int(0 < segment != journal.end_position.segment))
        self._world.probe("journal.record_relocated", counter.last - index)
        self._world.probe("journal.segments_freed", max(0, in_use - journal.segments_in_use))
        self._do(effects)

    def _do(self, effects: list[KeeperEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell(event):
                    self._note_told(event)
                    self._tell(event)
                case Sync(ticket, True):
                    self._sync_in_place(ticket)
                case Sync(ticket, False):
                    if self._syncing is not None:
                        self._world.probe("journal.written_during_sync")
                    self._waiting = ticket if self._waiting is None else self._waiting.merge(ticket)
                    self._begin_sync()
                case Do(work):
                    self._works.append(work)
                    if len(self._works) == 1:
                        self._begin_work()
        self._arm()

    def _note_told(self, event: bus.Event) -> None:
        match event:
            case bus.SpaceChanged(is_low=True):
                kind = "full" if event.is_full else "tight" if event.is_tight else "low"
                self._world.probe(f"disk.{kind}")
            case bus.CheckpointFailed():
                self._world.probe("checkpoint.no_room")
            case bus.SpaceHeld(segments) if segments:
                self._world.probe("journal.space_held")

    def _arm(self) -> None:
        deadline_ns = self.keeper.next_deadline_ns()
        if not self._world.now_ns < self._timer_at_ns <= deadline_ns:
            self._timer_at_ns = deadline_ns
            self._later(max(0, deadline_ns - self._world.now_ns), lambda: self._on_timer(deadline_ns))

    def _on_timer(self, at_ns: int) -> None:
        if at_ns == self._timer_at_ns:
            self._do(self.keeper.tick(self._world.now_ns))

    # --- syncs ---

    def _sync_in_place(self, ticket: SyncTicket) -> None:
        took_ns = self._disk.latency_ns()
        self._world.probe("journal.synced_in_place")
        self._disk.sync(ticket.files)
        self._stand_still(took_ns)
        self._on_synced(ticket, took_ns)

    def _begin_sync(self) -> None:
        if self._syncing is None and self._waiting is not None:
            ticket, self._waiting = self._waiting, None
            self._syncing = (ticket, self._disk.begin_sync(ticket.files))
            took_ns = self._disk.latency_ns()
            self._later(took_ns, lambda: self._finish_sync(took_ns))

    def _finish_sync(self, took_ns: int) -> None:
        assert self._syncing is not None, "a sync ended that never began"
        ticket, syncing = self._syncing
        self._syncing = None
        self._disk.finish_sync(syncing)
        self._begin_sync()
        self._on_synced(ticket, took_ns)

    def _on_synced(self, ticket: SyncTicket, took_ns: int) -> None:
        self._watch.on_durable(self._node, ticket.upto_index)
        self._do(self.keeper.synced(self._world.now_ns, ticket, took_ns))

    # --- the worker ---

    def _begin_work(self) -> None:
        self._later(self._disk.latency_ns(), self._finish_work)

    def _finish_work(self) -> None:
        work = self._works.popleft()
        self._run_work(work)
        self._note_work(work)
        self._show_files()
        if self._works:
            self._begin_work()
        self._do(self.keeper.done(self._world.now_ns, work))

    def _run_work(self, work: Work) -> None:
        is_recycling = isinstance(work, Chore) and work.source is not None
        is_checkpoint = isinstance(work, CheckpointFile)
        self._disk.begin_work("recycling" if is_recycling else "checkpoint" if is_checkpoint else "")
        try:
            work.run()
        except SyncFailed:
            # No file counts before the worker has synced it: the process ends, and the disk is trusted.
            self._world.probe("disk.sync_of_worker_failed")
            raise PowerLost("when a sync of the worker failed") from None
        self._disk.end_work()

    def _note_work(self, work: Work) -> None:
        probe = self._world.probe
        match work:
            case Chore():
                probe("journal.segment_recycled", int(work.source is not None))
                probe("journal.segment_removed", len(work.remove))
            case CheckpointFile():
                probe("checkpoint.written")
            case CheckpointPiece():
                probe("checkpoint.piece_read")
            case CheckpointsDropped():
                probe("checkpoint.dropped", work.dropped)

    def _show_files(self) -> None:
        if self._shows_files:
            self._watch.on_files(self._node, self._disk, self._journal.disk_id)

    # --- the end ---

    def close(self) -> None:
        """Sync everything and note the orderly end."""
        if self._syncing is not None:
            ticket, syncing = self._syncing
            self._disk.finish_sync(syncing)
            self._watch.on_durable(self._node, ticket.upto_index)
        if self._waiting is not None:
            self._disk.sync(self._waiting.files)
            self._watch.on_durable(self._node, self._waiting.upto_index)
        self.keeper.close()
