"""Reign: numbers, submits and commits envelopes while a sequencer leads.

Where it sits
    data servers  ->  REIGN  ->  commit servers  ->  REIGN  ->  all members

What it promises
    REI1  An envelope gets at most one number, however often it is reported.
    REI2  The envelopes of a producer's run are numbered 1, 2, 3 … An envelope that is reported early waits.
    REI3  Only an envelope that this node's own data server has is numbered, and only while its number is at
          most ts + L (rule X). If acknowledgements do not speak for envelopes (`numbers_on_arrival`), enough
          data servers must hold it durably, this node's own among them.
    REI4  An entry is called committed when commit_quantity commit servers hold it durably in this epoch; if
          their acknowledgements speak for envelopes, this node's own must be among them.
    REI5  At most WINDOW entries are numbered and not committed, and none while the reign waits for a replica
          that fell behind (`Laggards`).
    REI6  A producer's run is fenced once its node was silent for long, counted from the beginning of the
          reign at the earliest. The fence is an entry of the order, valid because the claim of this reign
          precedes it.
    REI7  Behind a CONFIG nothing is numbered, and when the CONFIG is committed the reign is over.
    REI8  A replica that lives and is more than `lag_max` numbers behind holds the numbering back, for at most
          `laggard_wait_ms` at a stretch; then the others go on without it. It counts again within half the
          limit. A silent replica holds nothing back.
    REI9  Fewer copies than usual are asked for once data servers were silent for `copies_silence_ms`, counted
          as in REI6, and never fewer than `min_copies`; more again when they are heard and have caught up. An
          entry of the order says so.
    REI10  Heartbeats come every `heartbeat_ms`. When they have told all others the same for a while, and
          nothing is left to do, the sequencer rests: one of `rest_beats` is sent, and takes the numbers of
          those left out. When there is something to do, or another machine waits for a heartbeat, the next
          one comes when it would have come without the rest.

What it leaves to others
    `candidacy` begins a reign, `sequencer` ends it, `marking` says when a checkpoint is due. A replica that
    fell behind catches up from the log, or from a checkpoint if it fell behind the base.

The reign answers everything that arrives in one step at its end: one submit, one commit (`flush`). Under load
a round of control messages so serves many envelopes, and a lone envelope waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.candidacy import kept_through, start_page
from antiphon.bus.chance import Chance
from antiphon.bus.effects import Alarm, Multicast, RoleEffect, Send
from antiphon.bus.entries import FenceDetail, OpenDetail, QuantityDetail, StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger, ProducerRow
from antiphon.bus.log import CommitLog
from antiphon.bus.marking import RECORD_BYTES, Marking
from antiphon.bus.membership import may_begin, may_follow
from antiphon.bus.messages import NO_DIGEST, Entries, Entry, EntryKind, NackReason, ReportItem, ServerStatus
from antiphon.bus.presence import PresenceKeeper
from antiphon.events import ENVELOPE_DIFFERS, REPLICA_LEFT, STATES_DIFFER
from antiphon.ids import Mid

NO_BEATS: Final = (0, 0)
_NO_RUN: Final = bytes(16)
# A commit server that answered none of so many heartbeats is not healthy.
_BEATS_HEALTHY: Final = 3
_PORTION_MIN: Final = 16


class _ReportedEnvelope:
    """An envelope that data servers hold and that has no number yet."""

    __slots__ = ("fetch_at", "holders", "is_ours", "item")

    def __init__(self, item: ReportItem, holder: int, is_ours: bool, fetch_at: int) -> None:
        self.item = item
        self.holders = [holder]
        self.is_ours = is_ours
        # When to fetch the envelope from a holder, if our own data server still lacks it then.
        self.fetch_at = fetch_at


class Laggards:
    """The data servers of a group that fell behind, as its sequencer sees them (REI8)."""

    __slots__ = ("_began_at", "_left", "_node", "_presence", "_waits_since", "holds_back")

    def __init__(self, node: int, presence: PresenceKeeper | None, now_ns: int) -> None:
        self._node = node
        self._presence = presence
        self._began_at = now_ns
        self._waits_since: dict[int, int] = {}
        self._left: dict[int, None] = {}
        # Is numbering held back for now?
        self.holds_back = False

    def look(
        self, now_ns: int, config: GroupConfig, last: int, match: Mapping[int, int], out: list[RoleEffect]
    ) -> None:
        """Find laggards; `match`, the acknowledged numbers of commit servers, is newer than a presence."""
        self.holds_back = False
        if self._presence is None:
            return
        for server in config.data_servers:
            if server == self._node or self._presence.is_silent(server, self._began_at, now_ns):
                self._waits_since.pop(server, None)
                continue
            seen = self._presence.seen(server)
            have = max(match.get(server, 0), 0 if seen is None else seen.applied)
            if last - have <= config.lag_max // 2:
                self._waits_since.pop(server, None)
                self._left.pop(server, None)
            elif last - have > config.lag_max and server not in self._left:
                self._hold(now_ns, config, server, last - have, out)

    def _hold(self, now_ns: int, config: GroupConfig, server: int, lag: int, out: list[RoleEffect]) -> None:
        if now_ns - self._waits_since.setdefault(server, now_ns) < config.laggard_wait_ms * MS:
            self.holds_back = True
            return
        del self._waits_since[server]
        self._left[server] = None
        out.append(Alarm(REPLICA_LEFT(member=server, lag=lag)))


class Portions:
    """The entries that a sequencer submitted and has not called committed yet, cut as they were submitted.

    Committed entries leave whole, once and in order, as a rule in the portions in which they were submitted:
    their bytes exist, and the receivers have read them already. Many small portions are joined.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._portions: deque[Entries] = deque()

    def cut(self, entries: Sequence[Entry]) -> list[Entries]:
        """Portions of entries that are to be submitted."""
        most = self._most
        cut = [Entries.of(entries[start : start + most]) for start in range(0, len(entries), most)]
        self._portions += cut
        return cut

    def take(self, entries: tuple[Entry, ...]) -> Sequence[tuple[Entry, ...]]:
        """Portions of the next committed entries, whether they were submitted here or not."""
        taken: list[Entries] = []
        while entries and self._portions and self._portions[0][-1].first <= entries[-1].first:
            taken.append(self._portions.popleft())
        are_these = bool(taken) and taken[0][0].first == entries[0].first
        are_these = are_these and sum(map(len, taken)) == len(entries)
        if are_these and (len(taken) == 1 or len(entries) >= len(taken) * _PORTION_MIN):
            return taken
        return [entries[start : start + self._most] for start in range(0, len(entries), self._most)]


class BeatPlan:
    """When the heartbeats of a reign are sent, and under which numbers (REI10)."""

    __slots__ = (
        "_beaten_at",
        "_interval_ns",
        "_rest",
        "_said",
        "_same",
        "at",
        "is_at_rest",
        "last",
        "recent",
    )

    def __init__(self, config: GroupConfig, now_ns: int) -> None:
        self._interval_ns = max(1, config.heartbeat_ms * MS)
        self._rest = config.rest_beats
        self.at = self._beaten_at = now_ns
        # What the last heartbeat said, and how many before it said the same.
        self._said: tuple[object, ...] = ()
        self._same = 0
        self.is_at_rest = False
        self.last = 0
        self.recent = deque([0], maxlen=_BEATS_HEALTHY + 1)

    def beat(self, now_ns: int, said: tuple[object, ...], *, is_calm: bool) -> None:
        """A heartbeat is sent now. The numbers are a clock for client managers: those of heartbeats that were
        left out are left out, too."""
        passed = (now_ns - self._beaten_at) // self._interval_ns
        self.last += max(1, min(passed, self._rest))
        self.recent.append(self.last)
        self._same = self._same + 1 if said == self._said else 0
        self._said = said
        self.is_at_rest = is_calm and self._rest > 1 and self._same >= self._rest
        self._beaten_at = now_ns
        self.at = now_ns + (self._rest if self.is_at_rest else 1) * self._interval_ns

    def has_told(self, news: tuple[object, ...]) -> bool:
        return self._said[: len(news)] == news

    def hurry(self, now_ns: int) -> None:
        """End the rest."""
        if self.is_at_rest:
            self.is_at_rest = False
            self._same = 0
            passed = max(0, now_ns - self._beaten_at) // self._interval_ns
            self.at = min(self.at, self._beaten_at + (passed + 1) * self._interval_ns)


class Reign:
    """One epoch of one sequencer, from the first entry that it may number to its end."""

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
        presence: PresenceKeeper | None = None,
        *,
        adopted_epoch: int = 0,
    ) -> None:
        self._config = config
        self._node = node
        self._config_id = config.config_id
        self.epoch = epoch
        self._adopted_epoch = adopted_epoch
        # The claim of this node follows the adopted log.
        self.adopted_last = log.last
        self._began_at = now_ns
        self._presence = presence
        self._laggards = Laggards(node, presence, now_ns)
        self._chance = chance
        self.log = log
        # The fold of the whole log, committed or not: the basis for the next number.
        self._ledger = ledger
        self._match = match
        # All of the adopted log is committed: enough commit servers hold it in this epoch.
        self.committed_upto = log.last
        self._uncommitted = 0
        self._unsent: list[Entry] = []
        self._portions = Portions(config.submit_entries_max)
        self._waiting: dict[int, dict[int, _ReportedEnvelope]] = {}
        self._is_blocked = False
        # How much room this node's disk has; producers on other nodes learn it from the heartbeat.
        self.space = m.SpaceState.AMPLE
        self._made = 0
        self._progress_at = now_ns
        self._has_refused = False
        # Since when a commit server has acknowledged nothing of what it was sent.
        self._waits_since: dict[int, int] = {}
        # The last piece sent to a lagging server; its acknowledgement brings the next piece at once.
        self._catching_up: dict[int, int] = {}
        # The starts sent since the heartbeat before the last: (server, kept through) -> when.
        self._started: dict[tuple[int, int], int] = {}
        self._plan = BeatPlan(config, now_ns)
        # Heartbeats that no quorum has answered yet: nonce -> when it was sent.
        self._unanswered: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        # The last heartbeat, and the last that a quorum has answered: that quorum follows no later sequencer.
        self.beats = NO_BEATS
        self._checkpoints: dict[int, dict[int, bytes]] = {}
        self._own_entries: deque[Entry] = deque()
        self._own_stables_unsent = 0
        self._stable_numbered = 0
        self._stable_digest = b""
        self.stable_checkpoint = 0
        self._has_diverged = False
        self._marking = Marking(config.checkpoint_servers)
        # The last entry with data, and the last one that is not of checkpoints.
        self._data_last = self._work_last = log.last
        # A CONFIG is the last entry that is numbered under a configuration.
        self.is_closed = False
        self.is_over = False
        for entry in log.between(log.base, log.last):
            self._count_adopted(entry)

    def _count_adopted(self, entry: Entry) -> None:
        if entry.kind is EntryKind.CHECKPOINT_MARK:
            self._marking.adopted(is_mark=True)
        elif entry.kind is EntryKind.CHECKPOINT_STABLE:
            stable = StableDetail.decode(entry.detail)
            self._stable_numbered, self._stable_digest = stable.n, stable.digest
            self.stable_checkpoint = stable.n
        elif entry.kind is EntryKind.CONFIG:
            # The adopted log is committed: a CONFIG in it that follows ours ends the reign at once.
            config_id = GroupConfig.decode(entry.detail).config_id
            self.is_closed = self.is_over = config_id > self._config.config_id
        else:
            self._marking.adopted(is_mark=False)

    # -- numbering ---------------------------------------------------------------------------------

    def claim(self) -> None:
        """Number the first entry of a reign: the claim of this node to be primary."""
        self._number(EntryKind.PRIMARY_CLAIM)

    def on_producer_open(self, opening: m.ProducerOpen, out: list[RoleEffect]) -> None:
        """A node wants to produce, and repeats that until it hears that it may."""
        if self.is_closed:
            return
        row = self._ledger.rows.get(opening.pid)
        if row is None or row.run_id != opening.run_id:
            self._number(EntryKind.PRODUCER_OPEN, OpenDetail(opening.pid, opening.run_id).encode())
            # The waiting envelopes of the run before will never be numbered.
            self._waiting.pop(opening.pid, None)
        elif row.pe <= self.committed_upto:
            out.append(Send(opening.pid, m.ProducerOpened(opening.pid, row.run_id, row.pe)))

    def on_report(self, now_ns: int, server: int, items: Sequence[ReportItem], out: list[RoleEffect]) -> None:
        """A data server holds these envelopes durably, or our own has written them (`EnvelopesArrived`)."""
        if self.is_closed:
            # The data server will report them to the next sequencer.
            return
        rows, window = self._ledger.rows, self._config.window_entries
        lifetime = self._config.lifetime
        is_ours = server == self._node
        fetch_at = 0 if is_ours else now_ns + self._fetch_delay()
        reported: dict[int, ProducerRow] = {}
        duplicates: dict[int, Mid] = {}
        for item in items:
            mid, ts, _, digest, _ = item
            pid, pe, pseq = mid
            row = rows.get(pid)
            if row is None or pe != row.pe or pseq <= row.last_pseq or ts + lifetime <= self.log.last:
                self._turn_down(server, item, row, duplicates, out)
                continue
            waiting = self._waiting.get(pid)
            if waiting is None:
                waiting = self._waiting[pid] = {}
            if pseq > row.last_pseq + window:
                # Envelopes before it in this report may make room.
                self._assign(row, waiting, out)
                if pseq > row.last_pseq + window:
                    self._refuse(server, mid, NackReason.GAP, row.last_pseq + 1, out)
                    continue
            known = waiting.get(pseq)
            if known is None:
                waiting[pseq] = _ReportedEnvelope(item, server, is_ours, fetch_at)
            elif known.item.digest != digest:
                self._refuse(server, mid, NackReason.DIGEST, 0, out)
                out.append(Alarm(ENVELOPE_DIFFERS(envelope=str(mid), problem="is held with two contents")))
                continue
            else:
                known.is_ours = known.is_ours or is_ours
                if server not in known.holders:
                    known.holders.append(server)
            reported[pid] = row
        for pid, row in reported.items():
            self._assign(row, self._waiting[pid], out)
        # Acknowledging the last duplicate of a producer covers all before it.
        for pid, mid in duplicates.items():
            if rows[pid].last_seq <= self.committed_upto:
                self._refuse(server, mid, NackReason.DUPLICATE, rows[pid].last_seq, out)

    def _turn_down(
        self,
        server: int,
        item: ReportItem,
        row: ProducerRow | None,
        duplicates: dict[int, Mid],
        out: list[RoleEffect],
    ) -> None:
        """Answer an envelope that cannot be numbered, now or ever."""
        pid, pe, pseq = item.mid
        if row is None or pe > row.pe:
            # The OPEN may have been lost with another sequencer. The data server will report again.
            self._refuse(server, item.mid, NackReason.NOT_OPEN, 0, out)
            self._has_refused = True
        elif pe < row.pe:
            if self._ledger.is_committed(item.mid):
                duplicates[pid] = max(item.mid, duplicates.get(pid, item.mid))
            else:
                self._refuse(server, item.mid, NackReason.FENCED, row.pe, out)
        elif pseq <= row.last_pseq:
            duplicates[pid] = max(item.mid, duplicates.get(pid, item.mid))
        else:
            self._refuse(server, item.mid, NackReason.EXPIRED, 0, out)
            # The data server gives the envelope up when the order has passed ts + L, so the order has to get
            # there.
            lives_through = item.ts + self._config.lifetime
            self._has_refused = self._has_refused or lives_through >= self.committed_upto

    def _fetch_delay(self) -> int:
        delay = self._config.fetch_delay_ms * MS
        return delay + self._chance.below(delay)

    def _assign(self, row: ProducerRow, waiting: dict[int, _ReportedEnvelope], out: list[RoleEffect]) -> None:
        """Number the ready envelopes of this producer's run, in its order (REI2)."""
        # Else the acknowledgements of commit servers tell of the copies.
        quantity = 1 if self._config.numbers_on_arrival else self._data_quantity
        while waiting and not self.is_closed:
            pseq = row.last_pseq + 1
            report = waiting.get(pseq)
            if report is None or len(report.holders) < quantity or not report.is_ours:
                return
            if self._uncommitted >= self._config.window_entries or self._laggards.holds_back:
                self._is_blocked = True
                return
            del waiting[pseq]
            if report.item.ts + self._config.lifetime < self.log.last + 1:
                for server in report.holders:
                    self._refuse(server, report.item.mid, NackReason.EXPIRED, 0, out)
                return
            self._number_data(report.item, row)

    def _number_data(self, item: ReportItem, row: ProducerRow) -> None:
        log = self.log
        mid, ts, count, digest, size = item
        first = log.last + 1
        entry = tuple.__new__(Entry, (first, count, EntryKind.DATA, mid, ts, digest, b""))
        log.append(entry)
        row.last_pseq = mid.pseq
        row.last_seq = self._data_last = self._work_last = first + count - 1
        self._unsent.append(entry)
        self._uncommitted += 1
        self._marking.bytes += size + RECORD_BYTES

    def _number(self, kind: EntryKind, detail: bytes = b"") -> Entry:
        """Number an entry of the sequencer's own making."""
        self._made += 1
        mid = Mid(self._node, self.epoch, self._made)
        entry = Entry(self.log.last + 1, 1, kind, mid, 0, NO_DIGEST, detail)
        self.log.append(entry)
        self._ledger.fold((entry,))
        self._unsent.append(entry)
        self._own_entries.append(entry)
        if kind is not EntryKind.CHECKPOINT_MARK and kind is not EntryKind.CHECKPOINT_STABLE:
            self._work_last = entry.first
        self._uncommitted += 1
        return entry

    def _refuse(
        self, server: int, mid: Mid, reason: NackReason, argument: int, out: list[RoleEffect]
    ) -> None:
        out.append(Send(server, m.ReportNack(self.epoch, mid, reason, argument)))

    # -- submitting and committing -----------------------------------------------------------------

    def flush(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Submit the entries that this step numbered."""
        if not self._unsent:
            return
        self._mark_if_due()
        entries = self._unsent
        self._unsent = []
        for part in self._portions.cut(entries):
            submit = self._submit(part[0].first - 1, part)
            for server in self._config.commit_servers:
                out.append(Send(server, submit))
        for server in self._config.commit_servers:
            if self._match.get(server, 0) >= entries[0].first - 1:
                # The server had nothing to acknowledge until now. Otherwise its wait goes on: the server may
                # lack a submit before this one, and steady traffic must not keep that submit from being
                # repeated.
                self._waits_since[server] = now_ns

    def _submit(self, prev: int, entries: tuple[Entry, ...]) -> m.CommitSubmit:
        return m.CommitSubmit(self.epoch, prev, entries, self.committed_upto, self._config_id)

    def _mark_if_due(self) -> None:
        # The entries of checkpoints must not call for checkpoints.
        entries = len(self._unsent) - self._own_stables_unsent
        self._own_stables_unsent = 0
        if not entries or self.is_closed:
            return
        if self._marking.is_due(self._config, entries):
            self._mark()

    def _mark(self) -> None:
        self._marking.marked(self._number(EntryKind.CHECKPOINT_MARK).first)

    def mark_for_space(self, now_ns: int) -> None:
        """Room on the disk is low: mark a checkpoint now, so that space can be freed."""
        marking, stable_n = self._marking, self.stable_checkpoint
        if not self.is_closed and marking.helps_low_space(now_ns, stable_n, self._data_last):
            self._mark()

    def mark_for_held_space(self, now_ns: int, server: int, segments: int) -> None:
        """The journal of a commit server has so many segments, some of which checkpoints would free."""
        marking, stable_n = self._marking, self.stable_checkpoint
        if self.is_closed:
            return
        if marking.helps_held_space(now_ns, stable_n, self._work_last, server, segments):
            self._mark()

    def on_acknowledge(self, now_ns: int, server: int, last: int, out: list[RoleEffect]) -> None:
        """A commit server holds everything through `last` durably, in this epoch."""
        match = self._match
        if last <= match.get(server, -1):
            return
        if last > self.log.last:
            # The server's base lies beyond this log: it knows a later epoch, of which we shall hear.
            return
        match[server] = last
        self._waits_since[server] = now_ns
        if server in self._catching_up and last >= self._catching_up[server]:
            del self._catching_up[server]
            if last < self._sent_upto:
                self._submit_page(now_ns, server, last, out)
        quantity = self._config.commit_quantity
        if len(match) < quantity:
            return
        committed = self._held_here(sorted(match.values(), reverse=True)[quantity - 1])
        if committed > self.committed_upto:
            self._commit(now_ns, committed, out)

    def _held_here(self, upto: int) -> int:
        """How far of that our own commit server has acknowledged, where this tells of our own copies."""
        return min(upto, self._match.get(self._node, 0)) if self._config.numbers_on_arrival else upto

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
            if entry.kind is EntryKind.CHECKPOINT_MARK:
                self._marking.mark_committed(now_ns)
            elif entry.kind is EntryKind.CHECKPOINT_STABLE:
                self.stable_checkpoint = StableDetail.decode(entry.detail).n
                self._marking.became_stable(now_ns)
            elif entry.kind is EntryKind.CONFIG:
                self.is_over = True
        self._assign_blocked(out)

    def _assign_blocked(self, out: list[RoleEffect]) -> None:
        """Number what waited for room in the window or for a laggard."""
        if self._is_blocked:
            self._is_blocked = False
            for pid, waiting in self._waiting.items():
                self._assign(self._ledger.rows[pid], waiting, out)

    def tell_committed(self, entries: tuple[Entry, ...], out: list[RoleEffect]) -> None:
        """Send these entries to all as committed, in messages of bounded length."""
        for part in self._portions.take(entries):
            out.append(Multicast(m.Commit(self.epoch, part, part[-1].last)))

    def forget(self, base: int) -> None:
        """Our own commit server moved its base; in a later epoch the base may pass what we committed."""
        if self.log.base < base <= self.committed_upto and self.log.is_end(base):
            self.log.forget(base)

    # -- timers ------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int:
        return self._plan.at

    @property
    def is_at_rest(self) -> bool:
        return self._plan.is_at_rest

    def beat(self, now_ns: int, applied: int, is_serving: bool, out: list[RoleEffect]) -> bool:
        """Send a heartbeat and do what is due with each; False when no quorum answers any more."""
        config = self._config
        oldest = min(self._unanswered.values(), default=now_ns)
        if now_ns - oldest >= config.check_ms * MS:
            return False
        is_applied = is_serving and applied >= self.committed_upto
        is_calm = is_applied and not self._unanswered and not self._is_busy
        self._plan.beat(now_ns, (*self._news, applied, is_serving), is_calm=is_calm)
        nonce = self._plan.last
        self.beats = (nonce, self.beats[1])
        self._unanswered[nonce] = now_ns
        beat = m.Heartbeat(
            self.epoch,
            self.committed_upto,
            self.stable_checkpoint,
            nonce,
            applied,
            is_serving,
            self.space,
        )
        out.append(Multicast(beat))
        recent_ns = now_ns - config.heartbeat_ms * MS
        self._started = {start: at for start, at in self._started.items() if at > recent_ns}
        self._retransmit(now_ns, out)
        self._fetch_lacking(now_ns, out)
        self._laggards.look(now_ns, config, self.log.last, self._match, out)
        if not self.is_closed:
            self._assign_blocked(out)
            self._fence_silent(now_ns)
            self._tick_if_stuck(now_ns, out)
            self._adjust_quantity(now_ns, out)
            self._replace_disk(now_ns)
        return True

    @property
    def _news(self) -> tuple[object, ...]:
        return self.committed_upto, self.stable_checkpoint, self.space

    @property
    def _is_busy(self) -> bool:
        """Is anything left to do that a heartbeat would tell or do?"""
        return (
            self._uncommitted > 0
            or self._has_refused
            or any(self._waiting.values())
            or any(have < self.log.last for have in self._match.values())
        )

    def wake(self, now_ns: int) -> None:
        """End the rest if there is something to tell or to do (REI10)."""
        if self.is_at_rest and (self._is_busy or not self._plan.has_told(self._news)):
            self.hurry(now_ns)

    def hurry(self, now_ns: int) -> None:
        """End the rest: a machine waits for a heartbeat."""
        self._plan.hurry(now_ns)

    def on_heartbeat_ack(self, server: int, nonce: int) -> None:
        """A commit server has promised no later epoch."""
        self._answered[server] = max(self._answered.get(server, 0), nonce)
        answered = sorted(self._answered.values(), reverse=True)
        quantity = self._config.commit_quantity
        reached = answered[quantity - 1] if len(answered) >= quantity else 0
        self.beats = (self._plan.last, reached)
        for old in [sent for sent in self._unanswered if sent <= reached]:
            del self._unanswered[old]

    def on_no_acknowledgement(self, server: int, status: ServerStatus) -> None:
        """A commit server takes nothing; the entries of a damaged server do not count any more."""
        if status is not ServerStatus.NO_SPACE:
            self._match.pop(server, None)

    def _retransmit(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Submit again, a piece at a time, what a commit server has not acknowledged for a while."""
        config = self._config
        sent_upto = self._sent_upto
        for server in config.commit_servers:
            have = self._match.get(server)
            if have is not None and have >= sent_upto:
                continue
            if now_ns - self._waits_since.get(server, self._began_at) < config.retransmit_ms * MS:
                continue
            self._waits_since[server] = now_ns
            if have is None:
                # The server was never heard, or only its disk: it may hold our log, or need a start. An empty
                # submit makes it say which.
                out.append(Send(server, self._submit(sent_upto, ())))
            else:
                self._submit_page(now_ns, server, have, out)

    @property
    def _sent_upto(self) -> int:
        return self._unsent[0].first - 1 if self._unsent else self.log.last

    def _submit_page(self, now_ns: int, server: int, have: int, out: list[RoleEffect]) -> None:
        if have < self.log.base:
            self._tell_base(now_ns, server, out)
            return
        entries = self.log.between(have, self._sent_upto, self._config.submit_entries_max)
        self._catching_up[server] = entries[-1].last
        out.append(Send(server, self._submit(have, entries)))

    def _tell_base(self, now_ns: int, server: int, out: list[RoleEffect]) -> None:
        """Our log does not reach back to the end of this server's: the server needs a checkpoint.

        If its node lacks nothing but the log, its own next checkpoint will do, so mark one. A node that lags
        behind gets a checkpoint of another node: a mark would only let the base run away from it.
        """
        out.append(Send(server, m.FetchIdReply((), self.committed_upto, self.log.base)))
        seen = self._presence.seen(server) if self._presence is not None else None
        has_applied = seen is None or seen.applied >= self.log.base
        if has_applied and self._marking.newest <= self._data_last:
            self.mark_for_space(now_ns)

    def _fetch_lacking(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Fetch envelopes that our own data server lacks: their producers may be dead."""
        wanted: dict[int, list[Mid]] = {}
        for waiting in self._waiting.values():
            for report in waiting.values():
                if not report.is_ours and report.fetch_at <= now_ns:
                    report.fetch_at = now_ns + self._config.retransmit_ms * MS
                    # In turn: the first data server that reported may be dead by now.
                    holder = report.holders.pop(0)
                    report.holders.append(holder)
                    wanted.setdefault(holder, []).append(report.item.mid)
        for server, mids in wanted.items():
            mids = mids[: self._config.fetch_mids_max]
            out.append(Send(server, m.FetchData(tuple(mids), (0,) * len(mids))))

    def _fence_silent(self, now_ns: int) -> None:
        """Fence the producers of nodes that were silent for long, so that what they left open can be closed
        (REI6).
        """
        presence = self._presence
        if presence is None:
            return
        silent = [
            (pid, row.pe)
            for pid, row in self._ledger.rows.items()
            if row.run_id != _NO_RUN and pid != self._node and presence.is_silent(pid, self._began_at, now_ns)
        ]
        for pid, pe in silent:
            self._number(EntryKind.PRODUCER_FENCE, FenceDetail(pid, pe, self.epoch).encode())
            self._waiting.pop(pid, None)

    def _tick_if_stuck(self, now_ns: int, out: list[RoleEffect]) -> None:
        """While envelopes wait and nothing is committed, let numbers pass, so that lifetimes end."""
        if self._uncommitted or now_ns - self._progress_at < self._config.tick_ms * MS:
            return
        if self._has_refused or any(self._waiting.values()):
            self._number(EntryKind.TICK)
            self._drop_expired(out)
            self._tell_gaps(out)

    def _tell_gaps(self, out: list[RoleEffect]) -> None:
        """Tell each producer which envelope it must send next. A run of a former life has to be ended by its
        producer.
        """
        for pid, waiting in self._waiting.items():
            expected = self._ledger.rows[pid].last_pseq + 1
            if waiting and expected not in waiting:
                first = waiting[min(waiting)]
                for server in first.holders:
                    self._refuse(server, first.item.mid, NackReason.GAP, expected, out)

    def _drop_expired(self, out: list[RoleEffect]) -> None:
        oldest_ts = self.log.last + 1 - self._config.lifetime
        for waiting in self._waiting.values():
            for pseq in [pseq for pseq, report in waiting.items() if report.item.ts < oldest_ts]:
                report = waiting.pop(pseq)
                for server in report.holders:
                    self._refuse(server, report.item.mid, NackReason.EXPIRED, 0, out)

    # -- commit servers that lag -------------------------------------------------------------------

    def on_start_need(self, now_ns: int, server: int, need: m.StartNeed, out: list[RoleEffect]) -> None:
        """Send our log to a commit server whose log is of another epoch, from where its own may be kept."""
        # Of an epoch before ours only the adopted entries are the same.
        kept = kept_through(self.adopted_last, self._adopted_epoch, need)
        if now_ns - self._started.get((server, kept), -1 << 62) < self._config.heartbeat_ms * MS:
            # A network that doubles messages would otherwise double every question and every answer.
            return
        self._started[server, kept] = now_ns
        adopted = self.adopted_last, self._adopted_epoch
        start = start_page(self._config, self.log, adopted, self.epoch, kept, self.committed_upto)
        if start is not None:
            out.append(Send(server, start))
        else:
            self._tell_base(now_ns, server, out)

    # -- checkpoints -------------------------------------------------------------------------------

    def on_checkpoint_report(self, server: int, report: m.CheckpointReport, out: list[RoleEffect]) -> None:
        """A checkpoint server holds the state after `seq` durably."""
        n = report.seq
        self._marking.on_report(server, n, report.took_ms)
        if n < self._stable_numbered or n > self.committed_upto or self._has_diverged or self.is_closed:
            return
        digests = self._checkpoints.setdefault(n, {})
        digests[server] = report.digest
        different = any(digest != report.digest for digest in digests.values())
        if different or (n == self._stable_numbered and report.digest != self._stable_digest):
            # One of the states is wrong and nobody can tell which. Everything is kept.
            self._has_diverged = True
            out.append(Alarm(STATES_DIFFER(problem=f"two states after {n}; nothing is deleted any more")))
            return
        if n > self._stable_numbered and len(digests) >= self._config.checkpoint_quantity:
            self._stable_numbered, self._stable_digest = n, report.digest
            detail = StableDetail(n, report.digest, tuple(sorted(digests)))
            self._number(EntryKind.CHECKPOINT_STABLE, detail.encode())
            self._own_stables_unsent += 1
            self._checkpoints = {at: held for at, held in self._checkpoints.items() if at >= n}

    # -- configuration -----------------------------------------------------------------------------

    def propose_config(self, now_ns: int, config: GroupConfig) -> bool:
        """Order the next configuration (REI7).

        False if another change is on its way, if `config` does not follow ours, or if too few of its commit
        servers are there and have caught up: too few could lead, or hand on the state.
        """
        if self.is_closed or config.config_id != self._config.config_id + 1:
            return False
        if not may_follow(self._config, config):
            return False
        ready = [server for server in config.nodes if self._is_ready(now_ns, server, config)]
        if not may_begin(self._config, config, ready):
            return False
        self._number(EntryKind.CONFIG, config.encode())
        self.is_closed = True
        return True

    def _is_ready(self, now_ns: int, server: int, config: GroupConfig) -> bool:
        """Is a server there, with the disk that is listed for it, and nearly as far as this node?"""
        presence = self._presence
        if server == self._node or presence is None:
            return True
        seen, listed = presence.seen(server), config.disk_of(server)
        if seen is None or presence.is_silent(server, 0, now_ns) or (listed and seen.disk_id != listed):
            return False
        # A presence leaves with a heartbeat: it may never tell of the entry that this heartbeat numbers.
        return seen.is_synchronized and self.committed_upto - seen.applied <= config.window_entries

    @property
    def _data_quantity(self) -> int:
        return self._ledger.data_quantity or self._config.data_quantity

    def _adjust_quantity(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Go on with fewer copies while data servers are silent, if that is allowed; not a moment longer."""
        config, presence = self._config, self._presence
        if not config.min_copies or presence is None:
            return
        began_at, silence_ms = self._began_at, config.copies_silence_ms
        others = [server for server in config.data_servers if server != self._node]
        present = [one for one in others if not presence.is_silent(one, began_at, now_ns, silence_ms)]
        ready = [one for one in present if (seen := presence.seen(one)) and seen.is_synchronized]
        quantity = self._data_quantity
        if 1 + len(present) < quantity:
            quantity = max(1 + len(present), config.min_copies)
        else:
            quantity = max(quantity, min(1 + len(ready), config.data_quantity))
        if quantity != self._data_quantity:
            self._number(EntryKind.QUANTITY, QuantityDetail(quantity).encode())
            for pid, waiting in self._waiting.items():
                self._assign(self._ledger.rows[pid], waiting, out)

    def _replace_disk(self, now_ns: int) -> None:
        """List the new disk of a node that came back and has caught up, if enough others are healthy.

        The node is a new server under an old name: the promises and entries of the lost disk count no more,
        and until the configuration changes those of the new disk do not count either.
        """
        config, presence = self._config, self._presence
        if not config.disk_ids or presence is None:
            return
        for at, node in enumerate(config.nodes):
            seen, listed = presence.seen(node), config.disk_of(node)
            if not listed or seen is None or not any(seen.disk_id) or seen.disk_id == listed:
                continue
            disk_ids = (*config.disk_ids[:at], seen.disk_id, *config.disk_ids[at + 1 :])
            wanted = replace(config, config_id=config.config_id + 1, disk_ids=disk_ids)
            if self._is_ready(now_ns, node, wanted) and self._has_healthy_quorum_without(node):
                self.propose_config(now_ns, wanted)
                return

    def _has_healthy_quorum_without(self, node: int) -> bool:
        """Do enough other commit servers answer and hold everything that is committed?"""
        healthy = [
            server
            for server in self._config.commit_servers
            if server != node
            and self._answered.get(server, 0) >= self._plan.recent[0]
            and self._match.get(server, -1) >= self.committed_upto
        ]
        return len(healthy) >= self._config.commit_quantity
