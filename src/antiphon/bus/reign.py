"""Reign: what a sequencer does while it leads: number, submit, commit.

Where it sits
    data servers  ->  REIGN  ->  commit servers  ->  REIGN  ->  all members

What it promises
    P1  An envelope gets at most one number, however often it is reported.
    P2  The envelopes of a producer's run are numbered 1, 2, 3 … What is reported early waits.
    P3  Only what enough data servers hold durably is numbered, this node's own among them, and only
        while its number is at most ts + L (rule X).
    P4  An entry is called committed when commit_quantity commit servers hold it durably in this epoch.
    P5  At most WINDOW entries are numbered and not committed.

What it leaves to others
    How the reign came about is `candidacy`; when it ends is `sequencer`.

Everything that arrives in one step is answered at its end: one submit, one commit (`flush`). Under load
a round of control messages so serves whatever came meanwhile, and alone an envelope waits for nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.effects import Alarm, Multicast, RoleEffect, Send
from antiphon.bus.entries import ENTRY_BYTES_MIN, OpenDetail, StableDetail
from antiphon.bus.group import KIB, MS, GroupConfig
from antiphon.bus.ledger import Ledger, Row
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason, ReportItem
from antiphon.bus.planted import DEDUP_OFF, FIFO_OFF, NONE
from antiphon.ids import Mid

# What one submit costs on disk beside its payloads: each 4 KiB of order is written twice, and what is
# synced with it begins on a new page.
_ORDER_BLOCK_BYTES: Final = 4 * KIB - 128
_FLUSH_BYTES: Final = 4 * KIB
_RECORD_BYTES: Final = 96


class _Report:
    """An envelope that data servers hold and that has no number yet."""

    __slots__ = ("fetch_at", "holders", "is_ours", "item")

    def __init__(self, item: ReportItem) -> None:
        self.item = item
        self.holders: list[int] = []
        self.is_ours = False
        # When to fetch it from a holder, if our own data server still lacks it then.
        self.fetch_at = 0


class Reign:
    """One epoch of one sequencer, from the first entry it may number to its end."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        epoch: int,
        log: CommitLog,
        ledger: Ledger,
        match: dict[int, int],
        now_ns: int,
        chance: Chance,
        planted: frozenset[str] = NONE,
    ) -> None:
        self._config = config
        self._node = node
        self.epoch = epoch
        self._chance = chance
        self._planted = planted
        self.log = log
        # The fold of the whole log, committed or not: what the next number may be given to.
        self._ledger = ledger
        self._match = match
        # All of the adopted log is committed: enough commit servers hold it in this epoch.
        self.committed_upto = log.last
        self._uncommitted = 0
        self._unsent: list[Entry] = []
        self._waiting: dict[int, dict[int, _Report]] = {}
        self._is_blocked = False
        self._made = 0
        self._progress_at = now_ns
        self._has_refused = False
        # Since when a commit server has acknowledged nothing of what it was sent.
        self._waits_since: dict[int, int] = {}
        self._started_at: dict[int, int] = {}
        # Heartbeats that no quorum has answered yet: nonce -> when it was sent.
        self._beat_at = now_ns
        self._nonce = 0
        self._unanswered: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        # Checkpoints.
        self._checkpoints: dict[int, dict[int, bytes]] = {}
        self._own_entries: deque[Entry] = deque()
        self._own_stables_unsent = 0
        self._stable_numbered = 0
        self._stable_digest = b""
        self.stable_checkpoint = 0
        self._has_diverged = False
        self._entries_since_mark = 0
        self._bytes_since_mark = 0
        self._marks = (0, 0)
        self._data_last = log.last
        for entry in log.between(log.base, log.last):
            self._count_adopted(entry)

    def _count_adopted(self, entry: Entry) -> None:
        if entry.kind is EntryKind.CHECKPOINT_MARK:
            self._entries_since_mark = self._bytes_since_mark = 0
        elif entry.kind is EntryKind.CHECKPOINT_STABLE:
            stable = StableDetail.decode(entry.detail)
            self._stable_numbered, self._stable_digest = stable.n, stable.digest
            self.stable_checkpoint = stable.n
        else:
            self._entries_since_mark += 1
            self._bytes_since_mark += _FLUSH_BYTES

    # -- numbering ---------------------------------------------------------------------------------

    def claim(self) -> None:
        """The first entry of a reign: who leads is primary."""
        self._number(EntryKind.PRIMARY_CLAIM)

    def on_producer_open(self, opening: m.ProducerOpen, out: list[RoleEffect]) -> None:
        """A node wants to produce; told again until it hears that it may."""
        row = self._ledger.rows.get(opening.pid)
        if row is None or row.run_id != opening.run_id:
            self._number(EntryKind.PRODUCER_OPEN, OpenDetail(opening.pid, opening.run_id).encode())
            # What waits of the run before will never be numbered.
            self._waiting.pop(opening.pid, None)
        elif row.pe <= self.committed_upto:
            out.append(Send(opening.pid, m.ProducerOpened(opening.pid, row.run_id, row.pe)))

    def on_report(self, now_ns: int, server: int, report: m.DataReport, out: list[RoleEffect]) -> None:
        """A data server holds these durably."""
        rows = self._ledger.rows
        lifetime = self._config.lifetime
        for item in report.items:
            pid, pe, pseq = item.mid
            row = rows.get(pid)
            if row is None or pe > row.pe:
                # Its OPEN may have been lost with another sequencer. The data server will ask again.
                self._refuse(server, item.mid, NackReason.NOT_OPEN, 0, out)
                self._has_refused = True
            elif pe < row.pe:
                self._refuse(server, item.mid, NackReason.FENCED, row.pe, out)
            elif pseq <= row.last_pseq:
                if DEDUP_OFF in self._planted:  # planted: numbered again
                    self._number_data(item, row)
                elif row.last_seq <= self.committed_upto:
                    self._refuse(server, item.mid, NackReason.DUPLICATE, row.last_seq, out)
            elif item.ts + lifetime < self.log.last + 1:
                self._refuse(server, item.mid, NackReason.EXPIRED, 0, out)
            else:
                self._note(now_ns, server, item, row, out)

    def _note(self, now_ns: int, server: int, item: ReportItem, row: Row, out: list[RoleEffect]) -> None:
        pid, _, pseq = item.mid
        if pseq > row.last_pseq + self._config.window_entries:
            self._refuse(server, item.mid, NackReason.GAP, row.last_pseq + 1, out)
            return
        waiting = self._waiting.setdefault(pid, {})
        report = waiting.get(pseq)
        if report is None:
            report = waiting[pseq] = _Report(item)
            if server != self._node:
                delay = self._config.fetch_delay_ms * MS
                report.fetch_at = now_ns + delay + self._chance.below(delay)
        elif report.item.digest != item.digest:
            self._refuse(server, item.mid, NackReason.DIGEST, 0, out)
            out.append(Alarm(f"{item.mid} is held with two contents"))
            return
        if server == self._node:
            report.is_ours = True
        if server not in report.holders:
            report.holders.append(server)
        self._assign(row, waiting, out)

    def _assign(self, row: Row, waiting: dict[int, _Report], out: list[RoleEffect]) -> None:
        """Number what this producer's run has ready, in its order (P2)."""
        quantity = self._config.data_quantity
        while waiting:
            pseq = row.last_pseq + 1
            if FIFO_OFF in self._planted:  # planted: first come, first numbered
                pseq = next(iter(waiting))
            report = waiting.get(pseq)
            if report is None or not report.is_ours or len(report.holders) < quantity:
                return
            if self._uncommitted >= self._config.window_entries:
                self._is_blocked = True
                return
            del waiting[pseq]
            if report.item.ts + self._config.lifetime < self.log.last + 1:
                for server in report.holders:
                    self._refuse(server, report.item.mid, NackReason.EXPIRED, 0, out)
                return
            self._number_data(report.item, row)

    def _number_data(self, item: ReportItem, row: Row) -> None:
        log = self.log
        first, count = log.last + 1, item.count
        entry = Entry(first, count, EntryKind.DATA, item.mid, item.ts, item.digest)
        log.append(entry)
        row.last_pseq = item.mid.pseq
        row.last_seq = self._data_last = first + count - 1
        self._unsent.append(entry)
        self._uncommitted += 1
        self._bytes_since_mark += item.size + _RECORD_BYTES

    def _number(self, kind: EntryKind, detail: bytes = b"") -> Entry:
        """An entry of the sequencer's own making."""
        self._made += 1
        mid = Mid(self._node, self.epoch, self._made)
        entry = Entry(self.log.last + 1, 1, kind, mid, 0, NO_DIGEST, detail)
        self.log.append(entry)
        self._ledger.fold((entry,))
        self._unsent.append(entry)
        self._own_entries.append(entry)
        self._uncommitted += 1
        return entry

    def _refuse(
        self, server: int, mid: Mid, reason: NackReason, argument: int, out: list[RoleEffect]
    ) -> None:
        out.append(Send(server, m.ReportNack(self.epoch, mid, reason, argument)))

    # -- submitting and committing -----------------------------------------------------------------

    def flush(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Submit what was numbered in this step."""
        if not self._unsent:
            return
        self._mark_if_due()
        entries = self._unsent
        self._unsent = []
        size = self._config.submit_entries_max
        for start in range(0, len(entries), size):
            part = tuple(entries[start : start + size])
            submit = m.CommitSubmit(self.epoch, part[0].first - 1, part, self.committed_upto)
            for server in self._config.commit_servers:
                out.append(Send(server, submit))
        for server in self._config.commit_servers:
            if self._match.get(server, 0) >= entries[0].first - 1:
                # It had nothing to acknowledge until now. Otherwise its wait goes on: what it lacks may be
                # a submit before this one, and steady traffic must not keep that from being sent again.
                self._waits_since[server] = now_ns

    def _mark_if_due(self) -> None:
        # Checkpoints must not call for checkpoints: their own entries do not count.
        entries = len(self._unsent) - self._own_stables_unsent
        self._own_stables_unsent = 0
        if not entries:
            return
        blocks = -(-entries * ENTRY_BYTES_MIN // _ORDER_BLOCK_BYTES)
        self._entries_since_mark += entries
        self._bytes_since_mark += _FLUSH_BYTES + 2 * 4 * KIB * blocks
        config = self._config
        if (
            self._entries_since_mark >= config.checkpoint_entries
            or self._bytes_since_mark >= config.checkpoint_bytes
        ):
            self._mark()

    def _mark(self) -> None:
        entry = self._number(EntryKind.CHECKPOINT_MARK)
        self._marks = (self._marks[1], entry.first)
        self._entries_since_mark = self._bytes_since_mark = 0

    def mark_for_space(self) -> None:
        """Room on the disk is low: have a checkpoint now, so that what nobody needs can go.

        The log begins at the checkpoint before the last one, so it takes two to free what was consumed
        before the first. A third would free nothing more.
        """
        older, newer = self._marks
        is_on_its_way = self.stable_checkpoint < newer
        if not is_on_its_way and older <= self._data_last:
            self._mark()

    def on_acknowledge(self, now_ns: int, server: int, last: int, out: list[RoleEffect]) -> None:
        """A commit server holds everything through `last` durably, in this epoch."""
        match = self._match
        if last <= match.get(server, -1):
            return
        assert last <= self.log.last, f"commit server {server} acknowledges {last}, which was never submitted"
        match[server] = last
        self._waits_since[server] = now_ns
        quantity = self._config.commit_quantity
        if len(match) < quantity:
            return
        committed = sorted(match.values(), reverse=True)[quantity - 1]
        if committed > self.committed_upto:
            self._commit(now_ns, committed, out)

    def _commit(self, now_ns: int, upto: int, out: list[RoleEffect]) -> None:
        entries = self.log.between(self.committed_upto, upto)
        self.committed_upto = upto
        self._uncommitted -= len(entries)
        self._progress_at = now_ns
        self._has_refused = False
        self.tell_committed(entries, out)
        own = self._own_entries
        while own and own[0].last <= upto:
            entry = own.popleft()
            if entry.kind is EntryKind.CHECKPOINT_STABLE:
                self.stable_checkpoint = StableDetail.decode(entry.detail).n
        if self._is_blocked:
            self._is_blocked = False
            for pid, waiting in self._waiting.items():
                self._assign(self._ledger.rows[pid], waiting, out)

    def tell_committed(self, entries: tuple[Entry, ...], out: list[RoleEffect]) -> None:
        """Tell all that these entries are committed, in messages of bounded length."""
        size = self._config.submit_entries_max
        for start in range(0, len(entries), size):
            part = entries[start : start + size]
            out.append(Multicast(m.Commit(self.epoch, part, part[-1].last)))

    def forget(self, base: int) -> None:
        """Our own commit server moved its base."""
        if base > self.log.base:
            self.log.forget(base)

    # -- timers ------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int:
        return self._beat_at

    def beat(self, now_ns: int, applied: int, is_serving: bool, out: list[RoleEffect]) -> bool:
        """A heartbeat, and what is done with each; false when no quorum answers any more."""
        config = self._config
        oldest = min(self._unanswered.values(), default=now_ns)
        if now_ns - oldest >= config.check_ms * MS:
            return False
        self._nonce += 1
        self._unanswered[self._nonce] = now_ns
        self._beat_at = now_ns + config.heartbeat_ms * MS
        beat = m.Heartbeat(
            self.epoch, self.committed_upto, self.stable_checkpoint, self._nonce, applied, is_serving
        )
        out.append(Multicast(beat))
        self._retransmit(now_ns, out)
        self._fetch_lacking(now_ns, out)
        self._tick_if_stuck(now_ns, out)
        return True

    def on_heartbeat_ack(self, server: int, nonce: int) -> None:
        """A commit server has promised nobody else."""
        answered = self._answered
        answered[server] = max(answered.get(server, 0), nonce)
        quantity = self._config.commit_quantity
        if len(answered) >= quantity:
            reached = sorted(answered.values(), reverse=True)[quantity - 1]
            for old in [sent for sent in self._unanswered if sent <= reached]:
                del self._unanswered[old]

    def _retransmit(self, now_ns: int, out: list[RoleEffect]) -> None:
        """What a commit server has not acknowledged for a while is sent to it again, a piece at a time."""
        config = self._config
        sent_upto = self._unsent[0].first - 1 if self._unsent else self.log.last
        for server in config.commit_servers:
            have = self._match.get(server)
            if have is None or have >= sent_upto or have < self.log.base:
                continue
            if now_ns - self._waits_since.get(server, 0) < config.retransmit_ms * MS:
                continue
            self._waits_since[server] = now_ns
            entries = self.log.between(have, sent_upto, config.submit_entries_max)
            out.append(Send(server, m.CommitSubmit(self.epoch, have, entries, self.committed_upto)))

    def _fetch_lacking(self, now_ns: int, out: list[RoleEffect]) -> None:
        """What others hold and our own data server lacks, we fetch: its producer may be dead."""
        wanted: dict[int, list[Mid]] = {}
        for waiting in self._waiting.values():
            for report in waiting.values():
                if not report.is_ours and report.fetch_at <= now_ns:
                    report.fetch_at = now_ns + self._config.retransmit_ms * MS
                    wanted.setdefault(report.holders[0], []).append(report.item.mid)
        for server, mids in wanted.items():
            mids = mids[: self._config.fetch_mids_max]
            out.append(Send(server, m.FetchData(tuple(mids), (0,) * len(mids))))

    def _tick_if_stuck(self, now_ns: int, out: list[RoleEffect]) -> None:
        """While data waits and nothing is committed, lifetimes must still come to their end."""
        if self._uncommitted or now_ns - self._progress_at < self._config.tick_ms * MS:
            return
        if self._has_refused or any(self._waiting.values()):
            self._number(EntryKind.TICK)
            self._drop_expired(out)

    def _drop_expired(self, out: list[RoleEffect]) -> None:
        oldest_ts = self.log.last + 1 - self._config.lifetime
        for waiting in self._waiting.values():
            for pseq in [pseq for pseq, report in waiting.items() if report.item.ts < oldest_ts]:
                report = waiting.pop(pseq)
                for server in report.holders:
                    self._refuse(server, report.item.mid, NackReason.EXPIRED, 0, out)

    # -- commit servers that lag -------------------------------------------------------------------

    def on_start_need(self, now_ns: int, server: int, need: m.StartNeed, out: list[RoleEffect]) -> None:
        """A commit server has a log of another epoch: it gets ours, from where it may be trusted."""
        if now_ns - self._started_at.get(server, -1 << 62) < self._config.heartbeat_ms * MS:
            return
        if not self.log.base <= need.committed_upto <= self.log.last:
            # Below our base it needs a checkpoint first.
            return
        self._started_at[server] = now_ns
        entries = self.log.between(need.committed_upto, self.log.last)
        start = m.EpochStart(self.epoch, need.committed_upto + 1, entries, self.committed_upto)
        out.append(Send(server, start))

    # -- checkpoints -------------------------------------------------------------------------------

    def on_checkpoint_report(self, server: int, report: m.CheckpointReport, out: list[RoleEffect]) -> None:
        """A checkpoint server holds the state after `seq` durably."""
        n = report.seq
        if n < self._stable_numbered or n > self.committed_upto or self._has_diverged:
            return
        digests = self._checkpoints.setdefault(n, {})
        digests[server] = report.digest
        different = any(digest != report.digest for digest in digests.values())
        if different or (n == self._stable_numbered and report.digest != self._stable_digest):
            # Somebody's state is wrong and nobody can tell whose. Everything is kept.
            self._has_diverged = True
            out.append(Alarm(f"DIVERGENCE: two states after {n}; nothing is deleted any more"))
            return
        if n > self._stable_numbered and len(digests) >= self._config.checkpoint_quantity:
            self._stable_numbered, self._stable_digest = n, report.digest
            detail = StableDetail(n, report.digest, tuple(sorted(digests)))
            self._number(EntryKind.CHECKPOINT_STABLE, detail.encode())
            self._own_stables_unsent += 1
            self._checkpoints = {at: held for at, held in self._checkpoints.items() if at >= n}
