"""Commit server: keeps the order, durably, for whichever sequencer holds its promise.

Where it sits
    sequencer  ->  COMMIT SERVER  ->  journal  ->  COMMIT SERVER  ->  sequencer

What it promises
    P1  Whatever it says about its log or its promise is durable: a reply waits for a sync that began
        after its record was written (the write-before-send rule).
    P2  It takes nothing from an epoch below its promise.
    P3  It appends only to a log of the same epoch, in order and without a gap. A log of another epoch
        is first replaced as a whole, in one atomic record.
    P4  It never gives up a committed entry, and never believes an entry committed on the word of an
        epoch that did not write its log: its own entries there may be others.
    P5  The base moves only behind a committed CHECKPOINT_STABLE, and then to the stable checkpoint
        before it, and only if this node has two checkpoints from there on: if the newest file is ever
        damaged, the log still reaches the older one.

What it leaves to others
    Which log is the right one is the candidate's business, what is committed the sequencer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.effects import (
    Append,
    Learned,
    OrderRecord,
    Received,
    ReleaseSpace,
    RoleEffect,
    RoleEvent,
    Send,
    Synced,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import EntryKind, ServerStatus
from antiphon.bus.planted import ACKNOWLEDGE_BEFORE_FSYNC, NONE, RELEASE_BY_EARLIER_SYNC
from antiphon.bus.ports import JournalCounter
from antiphon.bus.records import BaseMoved, EpochStarted, encode_appended, encode_order
from antiphon.bus.superblock import Superblock
from antiphon.ids import epoch_node

_NEVER: Final = -1 << 62


class CommitServer:
    """The commit server of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        counter: JournalCounter,
        superblock: Superblock,
        *,
        log: CommitLog | None = None,
        log_epoch: int = 0,
        base_ledger: bytes | None = None,
        marks: Mapping[int, bytes] | None = None,
        checkpoint_server: CheckpointServer | None = None,
        planted: frozenset[str] = NONE,
    ) -> None:
        self._config = config
        self._node = node
        self._counter = counter
        self._superblock = superblock
        self._planted = planted
        self.log = CommitLog() if log is None else log
        self.log_epoch = log_epoch
        # Volatile: after a restart the base is all that is known to be committed.
        self.committed_upto = self.log.base
        self.base_ledger = Ledger().encode() if base_ledger is None else base_ledger
        # Of this node, and read only; None on a node that keeps no state.
        self._checkpoint_server = checkpoint_server
        self.status = ServerStatus.OK
        self._durable_last = self.log.last
        self._held: deque[tuple[int, Send | _BaseMove]] = deque()
        self._promise_index = 0
        self._synced = 0
        self._heard_at = _NEVER
        # Ledgers at marks above the base, and the newest checkpoint known to be stable.
        self._marks: dict[int, bytes] = dict(marks or {})
        self._stable = (self.log.base, bytes(16))
        self._base_target: tuple[int, bytes] | None = None

    @property
    def promised(self) -> int:
        return self._superblock.promised

    @property
    def stable_checkpoint(self) -> int:
        """The newest number whose checkpoint is known to be stable."""
        return self._stable[0]

    @property
    def is_writing(self) -> bool:
        """Does anything here wait for the disk?"""
        return bool(self._held)

    def next_deadline_ns(self) -> int | None:
        return None

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        """Take what happened, return what must happen next."""
        out: list[RoleEffect] = []
        for event in events:
            if type(event) is Received:
                self._on_received(now_ns, event.sender, event.message, out)
            elif type(event) is Synced:
                self._on_synced(event.index, out)
            elif type(event) is Learned:
                self._on_learned(event, out)
        return _merge_acknowledgements(out)

    def _on_received(self, now_ns: int, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        match message:
            case m.CommitSubmit():
                self._on_submit(sender, message, out)
            case m.Commit():
                self._learn_committed(message.epoch, message.committed_upto)
            case m.Heartbeat():
                self._on_heartbeat(now_ns, sender, message, out)
            case m.Seal():
                self._on_seal(sender, message, out)
            case m.EpochStart():
                self._on_epoch_start(sender, message, out)
            case m.FetchLog():
                self._on_fetch_log(sender, message, out)
            case m.FetchId():
                self._on_fetch_id(sender, message, out)
            case m.PreSeal(counter):
                if now_ns - self._heard_at >= self._config.suspicion_ms * MS:
                    out.append(Send(sender, m.PreSealOk(counter)))
            case _:
                pass

    # -- the normal case ---------------------------------------------------------------------------

    def _on_submit(self, sender: int, submit: m.CommitSubmit, out: list[RoleEffect]) -> None:
        epoch, log = submit.epoch, self.log
        if sender != epoch_node(epoch):
            return
        if self.status is not ServerStatus.OK:
            out.append(Send(sender, m.CommitAcknowledge(epoch, 0, self.status)))
            return
        if epoch < self.promised:
            out.append(Send(sender, m.SealNack(self.promised)))
            return
        if self.log_epoch != epoch:
            out.append(Send(sender, m.StartNeed(epoch, self.committed_upto, log.last)))
            return
        if submit.prev > log.last:
            # A submit before this one was lost. What we have is said, and the rest comes again.
            out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))
            return
        entries, prev = submit.entries, submit.prev
        if prev < log.last and entries:
            known = [entry for entry in entries if entry.first <= log.last]
            assert log.common_through(prev, known) == (known[-1].last if known else prev), (
                f"epoch {epoch:#x} submitted two different entries behind {prev}"
            )
            entries, prev = entries[len(known) :], log.last
        if entries:
            log.extend(entries)
            body = encode_appended(epoch, prev, entries)
            index = self._append(OrderRecord(body, log.last), out)
            self._reply_after(index, sender, m.CommitAcknowledge(epoch, log.last), out)
        else:
            out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))
        self._learn_committed(epoch, submit.committed_upto)

    def _learn_committed(self, epoch: int, committed_upto: int) -> None:
        # R7: only the epoch that wrote our log knows which of our entries are committed (P4).
        if epoch == self.log_epoch and committed_upto > self.committed_upto:
            self.committed_upto = max(self.committed_upto, min(committed_upto, self.log.last))

    def _on_heartbeat(self, now_ns: int, sender: int, beat: m.Heartbeat, out: list[RoleEffect]) -> None:
        if sender != epoch_node(beat.epoch) or beat.epoch < self.promised:
            return
        self._heard_at = now_ns
        self._learn_committed(beat.epoch, beat.committed_upto)
        if self.status is ServerStatus.OK:
            out.append(Send(sender, m.HeartbeatAck(beat.epoch, beat.nonce)))

    def _on_fetch_id(self, sender: int, fetch: m.FetchId, out: list[RoleEffect]) -> None:
        if self.status is ServerStatus.DAMAGED:
            return
        most = min(fetch.most, self._config.fetch_entries_max)
        entries = self.log.from_number(fetch.first, self.committed_upto, most)
        out.append(Send(sender, m.FetchIdReply(entries, self.committed_upto, self.log.base)))

    # -- a new sequencer ---------------------------------------------------------------------------

    def _on_seal(self, sender: int, seal: m.Seal, out: list[RoleEffect]) -> None:
        epoch = seal.epoch
        if sender != epoch_node(epoch):
            return
        if self.status is ServerStatus.DAMAGED:
            out.append(Send(sender, m.SealNack(self.promised, self.status)))
        elif epoch > self.promised:
            append = self._superblock.promise(epoch)
            out.append(append)
            self._promise_index = append.index
            self._reply_after(append.index, sender, self._seal_ok(epoch), out)
        elif epoch == self.promised and self.log_epoch < epoch:
            # Asked again: the answer is the same, since the log stands still until EPOCH_START.
            if self._promise_index <= self._synced:
                out.append(Send(sender, self._seal_ok(epoch)))
        else:
            out.append(Send(sender, m.SealNack(self.promised)))

    def _seal_ok(self, epoch: int) -> m.SealOk:
        return m.SealOk(epoch, self.log_epoch, self.log.base, self.log.last, self.committed_upto)

    def _on_fetch_log(self, sender: int, fetch: m.FetchLog, out: list[RoleEffect]) -> None:
        if fetch.epoch != self.promised or sender != epoch_node(fetch.epoch):
            out.append(Send(sender, m.SealNack(self.promised)))
            return
        log = self.log
        entries = log.from_number(fetch.start, log.last, self._config.fetch_entries_max)
        out.append(Send(sender, m.FetchLogReply(fetch.epoch, fetch.start, entries, log.last)))

    def _on_epoch_start(self, sender: int, start: m.EpochStart, out: list[RoleEffect]) -> None:
        epoch, log = start.epoch, self.log
        if sender != epoch_node(epoch) or self.status is not ServerStatus.OK:
            return
        if epoch < self.promised:
            out.append(Send(sender, m.SealNack(self.promised)))
            return
        if self.log_epoch == epoch:
            out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))
            return
        after = start.from_seq - 1
        if not log.base <= after <= self.committed_upto:
            # Only what is committed may be kept unseen, and below the base there is nothing to compare.
            out.append(Send(sender, m.StartNeed(epoch, self.committed_upto, log.last)))
            return
        keep_through = log.common_through(after, start.entries)
        assert keep_through >= self.committed_upto, (
            f"epoch {epoch:#x} would give up committed entries behind {keep_through}"
        )
        log.truncate(keep_through)
        differing = tuple([entry for entry in start.entries if entry.first > keep_through])
        log.extend(differing)
        # What was held for an earlier sequencer speaks of a log that is gone.
        self._held = deque(item for item in self._held if isinstance(item[1], _BaseMove))
        # The record says epoch, cut and new entries at once. It is also the promise: recovery takes the
        # epoch of the log for promised.
        self.log_epoch = epoch
        self._durable_last = 0
        if epoch > self.promised:
            self._superblock.promised = epoch
        body = encode_order(EpochStarted(epoch, keep_through, differing))
        index = self._append(OrderRecord(body, log.last), out)
        self._reply_after(index, sender, m.CommitAcknowledge(epoch, log.last), out)
        self._learn_committed(epoch, start.committed_upto)

    # -- write before send -------------------------------------------------------------------------

    def _append(self, record: OrderRecord, out: list[RoleEffect]) -> int:
        index = self._counter.next()
        out.append(Append(index, record))
        return index

    def _reply_after(self, index: int, to: int, reply: m.BusMessage, out: list[RoleEffect]) -> None:
        """Hold a reply until the record with this index is durable (P1)."""
        self._held.append((index, Send(to, reply)))
        while self._held and ACKNOWLEDGE_BEFORE_FSYNC in self._planted:  # planted: nothing waits for the disk
            self._release(out)

    def _on_synced(self, index: int, out: list[RoleEffect]) -> None:
        self._synced = max(self._synced, index)
        held = self._held
        while held:
            is_covered = held[0][0] <= index or RELEASE_BY_EARLIER_SYNC in self._planted  # planted: any sync
            if not is_covered:
                break
            self._release(out)

    def _release(self, out: list[RoleEffect]) -> None:
        _, what = self._held.popleft()
        if isinstance(what, _BaseMove):
            self._move_base(what, out)
            return
        reply = what.message
        if isinstance(reply, m.CommitAcknowledge) and reply.epoch == self.log_epoch:
            self._durable_last = max(self._durable_last, reply.last)
        out.append(what)

    # -- the base ----------------------------------------------------------------------------------

    def _on_learned(self, learned: Learned, out: list[RoleEffect]) -> None:
        self._marks.update(learned.marks)
        for entry in learned.notable:
            if entry.kind is EntryKind.CHECKPOINT_STABLE:
                stable = StableDetail.decode(entry.detail)
                if stable.n > self._stable[0]:
                    self._base_target = self._stable
                    self._stable = (stable.n, stable.digest)
        target = self._base_target
        if target is not None and self.log.base < target[0] <= self._base_max():
            self._base_target = None
            self._write_base(*target, out)

    def _base_max(self) -> int:
        """How far the base may move here: a node that slept may know of checkpoints that it lacks."""
        if self._checkpoint_server is None:
            return self.committed_upto
        return min(self.committed_upto, self._checkpoint_server.fallback_n)

    def _write_base(self, base: int, digest: bytes, out: list[RoleEffect]) -> None:
        ledger = self._marks.get(base)
        if ledger is None:
            # The mark was passed in an earlier life, before the checkpoint that this one began with.
            folded = Ledger.decode(self.base_ledger)
            folded.fold(self.log.between(self.log.base, base))
            ledger = folded.encode()
        body = encode_order(BaseMoved(base, self.log_epoch, ledger, digest))
        index = self._append(OrderRecord(body, base, pinned=True), out)
        # In memory the base moves when it has moved on disk: nobody may hear of a base that goes back.
        self._held.append((index, _BaseMove(base, ledger)))

    def _move_base(self, move: _BaseMove, out: list[RoleEffect]) -> None:
        self.log.forget(move.base)
        self.base_ledger = move.ledger
        self._marks = {n: ledger for n, ledger in self._marks.items() if n > move.base}
        out.append(ReleaseSpace(move.base))


class _BaseMove:
    """A base that becomes ours when its record is durable."""

    __slots__ = ("base", "ledger")

    def __init__(self, base: int, ledger: bytes) -> None:
        self.base = base
        self.ledger = ledger


def _merge_acknowledgements(effects: list[RoleEffect]) -> list[RoleEffect]:
    """Acknowledgements are cumulative: of those to one sequencer in one epoch the highest says it all."""
    if len(effects) < 2:
        return effects
    highest: dict[tuple[int, int], tuple[int, int]] = {}
    dropped: list[int] = []
    for at, effect in enumerate(effects):
        if type(effect) is Send and type(effect.message) is m.CommitAcknowledge:
            key = (effect.to, effect.message.epoch)
            last, other = highest.get(key, (-1, -1))
            if effect.message.last >= last:
                highest[key] = (effect.message.last, at)
                dropped.append(other)
            else:
                dropped.append(at)
    if len(dropped) == len(highest):
        return effects
    return [effect for at, effect in enumerate(effects) if at not in dropped]
