"""Bugs of the bus: in how numbers are given, committed and delivered."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from antiphon.bus import candidacy, recovery
from antiphon.bus.candidacy import Candidacy
from antiphon.bus.commit_server import CommitServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.marking import Marking
from antiphon.bus.messages import NO_DIGEST, EntryKind, SealNack, ServerStatus
from antiphon.bus.ports import CopyState
from antiphon.bus.producer import BusProducer
from antiphon.bus.reign import Reign

_EVERYTHING = 1 << 62


def acknowledge_before_fsync(patch: MonkeyPatch) -> None:
    """Commit server and data server answer without waiting for the disk."""
    on_data, take, reply_after = DataServer._on_data, DataServer.take, CommitServer._reply_after

    def reported_at_once(self: Any, *arguments: Any, **options: Any) -> None:
        on_data(self, *arguments, **options)
        self._on_synced(_EVERYTHING)

    def take_what_is_written(self: Any, entry: Any, out: Any) -> Any:
        return take(self, entry, out) if self._payloads.has(entry.mid) else None

    def answered_at_once(self: Any, index: int, to: int, reply: Any, out: Any) -> None:
        reply_after(self, index, to, reply, out)
        while self.held:
            self._release(out)

    patch.setattr(DataServer, "_on_data", reported_at_once)
    patch.setattr(DataServer, "take", take_what_is_written)
    patch.setattr(CommitServer, "_reply_after", answered_at_once)


def release_by_earlier_sync(patch: MonkeyPatch) -> None:
    """Any finished sync releases every held reply, also those written after it began."""
    data_synced, order_synced = DataServer._on_synced, CommitServer._on_synced

    def any_sync_releases(self: Any, index: int, out: Any) -> None:
        order_synced(self, index, out)
        while self.held:
            self._release(out)

    patch.setattr(DataServer, "_on_synced", lambda self, index: data_synced(self, _EVERYTHING))
    patch.setattr(CommitServer, "_on_synced", any_sync_releases)


def dedup_off(patch: MonkeyPatch) -> None:
    """The sequencer numbers an envelope again when it is reported again."""
    turn_down = Reign._turn_down

    def number_again(self: Any, server: int, item: Any, row: Any, duplicates: Any, out: Any) -> None:
        if row is not None and item.mid.pe == row.pe and item.mid.pseq <= row.last_pseq:
            self._number_data(item, row)
        else:
            turn_down(self, server, item, row, duplicates, out)

    patch.setattr(Reign, "_turn_down", number_again)


def fifo_off(patch: MonkeyPatch) -> None:
    """The sequencer numbers the envelopes of a producer in the order in which they are reported."""
    assign = Reign._assign

    def first_come(self: Any, row: Any, waiting: Any, out: Any) -> None:
        while waiting:
            pseq, last = next(iter(waiting)), row.last_pseq
            alone = {pseq: waiting[pseq]}
            row.last_pseq = pseq - 1
            assign(self, row, alone, out)
            if row.last_pseq < pseq:
                row.last_pseq = last
            if alone:
                return
            del waiting[pseq]

    patch.setattr(Reign, "_assign", first_come)


def never_rereport(patch: MonkeyPatch) -> None:
    """A data server reports what became durable once, to the sequencer of that moment, and never again."""
    rereport = DataServer._rereport

    def report_nothing(self: Any, now_ns: int, out: Any) -> None:
        due = list(self._due)
        rereport(self, now_ns, out)
        self._due[:] = due

    patch.setattr(DataServer, "_rereport", report_nothing)


def deliver_before_durable(patch: MonkeyPatch) -> None:
    """The member applies what is committed and has arrived, though it is not synced here."""
    take = DataServer.take

    def take_early(self: Any, entry: Any, out: Any) -> Any:
        held = self._held.get(entry.mid)
        if held is not None and self._payloads.has(entry.mid):
            held.is_durable = True
        return take(self, entry, out)

    patch.setattr(DataServer, "take", take_early)


def refresh_ts(patch: MonkeyPatch) -> None:
    """A producer that sends an envelope again gives it a new ts, so that it outlives its lifetime."""
    retry = BusProducer._retry

    def retry_as_new(self: Any, now_ns: int, out: Any) -> None:
        for pseq, one in self._sent.items():
            one.data = self._data(one.submitted, pseq, self._known_upto())
        retry(self, now_ns, out)

    patch.setattr(BusProducer, "_retry", retry_as_new)


def exceptions_of_others_kept(patch: MonkeyPatch) -> None:
    """A producer keeps what became of everybody's commands, also while it waits for nothing."""
    patch.setattr(BusProducer, "_that_may_be_ours", lambda self, exceptions: exceptions)


def heard_is_doubted(patch: MonkeyPatch) -> None:
    """A producer orders again whatever the table of outcomes has forgotten, also what it has heard of."""
    forgotten = BusProducer._forgotten
    patch.setattr(BusProducer, "_forgotten", lambda self, heard, floor: forgotten(self, 0, floor))


def held_space_ignored(patch: MonkeyPatch) -> None:
    """The sequencer marks a checkpoint after so many entries or bytes, however long a journal gets."""
    patch.setattr(Marking, "helps_held_space", lambda self, *_: False)


def seal_quantity_one(patch: MonkeyPatch) -> None:
    """A candidate is content with one promise, its own."""
    begin = Candidacy.__init__

    def content_with_one(self: Any, config: Any, *arguments: Any) -> None:
        # Not `replace`, which would refuse a configuration that cannot be safe.
        careless = copy(config)
        object.__setattr__(careless, "seal_quantity", 1)
        begin(self, careless, *arguments)

    patch.setattr(Candidacy, "__init__", content_with_one)


def no_fence(patch: MonkeyPatch) -> None:
    """The commit server takes submits and starts of an epoch below its promise."""
    may_write = CommitServer._may_write

    def may_write_anyway(self: Any, sender: int, epoch: int, out: Any) -> bool:
        said: list[Any] = []
        if may_write(self, sender, epoch, said) or (said and type(said[0].message) is SealNack):
            return True
        out += said
        return False

    patch.setattr(CommitServer, "_may_write", may_write_anyway)


def adopt_longest(patch: MonkeyPatch) -> None:
    """A candidate adopts the longest log, whichever epoch wrote it."""
    patch.setattr(candidacy, "_rank", lambda promise: (0, promise.last))


def no_resubmit(patch: MonkeyPatch) -> None:
    """A candidate counts what servers held in an older epoch as held in its own."""
    start = Candidacy._start

    def count_as_held(self: Any, server: int, out: Any) -> None:
        reply = self._replies.get(server)
        if reply is not None and reply.log_epoch == self.log_epoch:
            self.match[server] = reply.last
        start(self, server, out)

    patch.setattr(Candidacy, "_start", count_as_held)


def raise_committed_from_any_epoch(patch: MonkeyPatch) -> None:
    """The commit server believes any epoch about which of its own entries are committed."""
    learn = CommitServer._learn_committed
    patch.setattr(
        CommitServer, "_learn_committed", lambda self, epoch, upto: learn(self, self.log_epoch, upto)
    )


def keep_own_suffix(patch: MonkeyPatch) -> None:
    """A candidate keeps its own entries up to what others know to be committed, unseen."""
    fetch = Candidacy._fetch

    def fetch_behind_our_own(self: Any, out: Any) -> None:
        self._committed = max(self._committed, min(self._low, self._own.log.last))
        fetch(self, out)

    patch.setattr(Candidacy, "_fetch", fetch_behind_our_own)


def own_report_not_required(patch: MonkeyPatch) -> None:
    """The sequencer numbers what its own data server does not hold."""
    assign = Reign._assign

    def assign_anyway(self: Any, row: Any, waiting: Any, out: Any) -> None:
        missing = [report for report in waiting.values() if not report.is_ours]
        for report in missing:
            report.is_ours = True
        assign(self, row, waiting, out)
        for report in missing:
            report.is_ours = False

    patch.setattr(Reign, "_assign", assign_anyway)


def config_before_commit(patch: MonkeyPatch) -> None:
    """A new configuration rules as soon as it is numbered: its own servers decide whether it is committed."""
    propose = Reign.propose_config

    def rule_at_once(self: Any, now_ns: int, config: Any) -> bool:
        is_numbered = propose(self, now_ns, config)
        if is_numbered:
            self._config = config
        return is_numbered

    patch.setattr(Reign, "propose_config", rule_at_once)


def two_changes_at_once(patch: MonkeyPatch) -> None:
    """The sequencer numbers a second configuration before the first one is committed."""
    propose = Reign.propose_config

    def propose_beside(self: Any, now_ns: int, config: Any) -> bool:
        if not self.is_closed or config.config_id <= self._config.config_id:
            return propose(self, now_ns, config)
        ours = self._config
        self.is_closed, self._config = False, replace(ours, config_id=config.config_id - 1)
        try:
            return propose(self, now_ns, config)
        finally:
            self.is_closed, self._config = True, ours

    patch.setattr(Reign, "propose_config", propose_beside)


def vote_after_damage(patch: MonkeyPatch) -> None:
    """A commit server promises although its disk is damaged, or not the one that is listed."""
    ill = (ServerStatus.DAMAGED, ServerStatus.AMNESIA)
    patch.setattr(CommitServer, "_on_seal", _as_if_well(CommitServer._on_seal, ill))


def negative_after_damage(patch: MonkeyPatch) -> None:
    """A damaged commit server answers that it does not have an entry."""
    answer = _as_if_well(CommitServer.committed_from, (ServerStatus.DAMAGED,))
    patch.setattr(CommitServer, "committed_from", answer)


def _as_if_well(method: Any, ill: tuple[ServerStatus, ...]) -> Any:
    def method_as_if_well(self: Any, *arguments: Any) -> Any:
        status = self.status
        if status not in ill:
            return method(self, *arguments)
        self.status = ServerStatus.OK
        try:
            return method(self, *arguments)
        finally:
            self.status = status

    return method_as_if_well


def garbage_before_stable(patch: MonkeyPatch) -> None:
    """The base moves, and space is released, before a checkpoint is known to be stable."""
    on_learned = CommitServer._on_learned

    def content_with_a_mark(self: Any, learned: Any, out: Any) -> None:
        on_learned(self, learned, out)
        for entry in learned.notable:
            is_mark = entry.kind is EntryKind.CHECKPOINT_MARK
            if is_mark and self.log.base < entry.last <= self.committed_upto:
                self._write_base(entry.last, NO_DIGEST, out)

    patch.setattr(CommitServer, "_on_learned", content_with_a_mark)


def acknowledge_without_envelope(patch: MonkeyPatch) -> None:
    """A commit server appends entries whose envelopes its node has not, or not yet."""
    patch.setattr(DataServer, "stored", lambda self, entry: CopyState.DURABLE)


def commit_without_own(patch: MonkeyPatch) -> None:
    """A sequencer calls an entry committed that its own node does not hold."""
    patch.setattr(Reign, "_held_here", lambda self, upto: upto)


def start_without_envelopes(patch: MonkeyPatch) -> None:
    """A commit server takes the start of an epoch whose envelopes its node lacks."""
    patch.setattr(CommitServer, "_waits_for_start", lambda self, sender, start, pages, out: False)
    patch.setattr(Candidacy, "_lacks_envelopes", lambda self, out: False)


def embedded_envelopes_forgotten(patch: MonkeyPatch) -> None:
    """A node that starts does not look for envelopes in the records of the order."""
    patch.setattr(recovery, "_embedded", lambda replay, log, applied, payloads: ())


BUGS = (
    acknowledge_before_fsync,
    release_by_earlier_sync,
    dedup_off,
    fifo_off,
    never_rereport,
    deliver_before_durable,
    refresh_ts,
    exceptions_of_others_kept,
    heard_is_doubted,
    held_space_ignored,
    seal_quantity_one,
    no_fence,
    adopt_longest,
    no_resubmit,
    raise_committed_from_any_epoch,
    keep_own_suffix,
    own_report_not_required,
    config_before_commit,
    two_changes_at_once,
    vote_after_damage,
    negative_after_damage,
    garbage_before_stable,
    acknowledge_without_envelope,
    commit_without_own,
    start_without_envelopes,
    embedded_envelopes_forgotten,
)
