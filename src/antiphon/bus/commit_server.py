"""Commit server: keeps the order durably, for the sequencer that holds its promise.

Where it sits
    sequencer  ->  COMMIT SERVER  ->  journal  ->  COMMIT SERVER  ->  sequencer

What it promises
    COM1  Write before send: a reply about the log or the promise waits for a sync that began after its record
          was written.
    COM2  The server takes nothing from an epoch below its promise.
    COM3  The server appends only to a log of the same epoch, in order and without a gap. A log of another
          epoch is first replaced as a whole, in one atomic record.
    COM4  The server never gives up a committed entry, and never believes an entry committed on the word of an
          epoch that did not write its log: its own entries there may be others.
    COM5  The base moves only behind a committed CHECKPOINT_STABLE, to the stable checkpoint before that one,
          and only if this node has two checkpoints from there on, one of them stable: if the newest file is
          ever damaged, the log still reaches the older one, and other nodes can be given one. A node that
          begins again with a checkpoint, or whose log the sequencer's no longer reaches, puts its base at a
          checkpoint it has. A stable mark alone is enough for a witness, and when no node can give us a
          checkpoint.
    COM6  In a configuration that is known to be over the server promises nothing, and in the next
          configuration only when its log holds the entry that began it as committed.
    COM7  A server whose disk is damaged, or is not the listed one, promises and acknowledges nothing and
          never says that it lacks an entry. A server without room promises, but takes no entry.
    COM8  Where envelopes are numbered when they arrive, the server acknowledges an entry that is not called
          committed only when the envelope is durable on its node. After a crash the entry comes back only
          with its envelope.

What it leaves to others
    The candidate decides which log is the right one; the sequencer decides what is committed.

What may be kept at the start of an epoch
    A sequencer writes one log, and a commit server takes the start of an epoch once and then appends in
    order: so all logs of one epoch are prefixes of one log. If the adopted log and ours are of one epoch,
    they agree up to the end of the shorter one. Keeping our entries through min(our last, adopted last)
    therefore keeps adopted entries only, whether we knew them committed or not.

Learners, and logs of epoch 0 (see docs/design/configuration.md)
    A node that does not vote, whose disk is not yet listed, or whose log does not hold the entry that began
    its configuration, writes down what it hears to be committed and cuts off what differs. From the first
    learned entry on such a log is of epoch 0, and so is every log of a former configuration: committed order
    and nothing else, which ranks below every log that the configuration has written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.effects import (
    Append,
    Installed,
    Learned,
    OrderRecord,
    Received,
    ReleaseSpace,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    SpaceHeld,
    SuperblockRecord,
    Synced,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger, folded
from antiphon.bus.log import CommitLog
from antiphon.bus.membership import tells
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, ServerStatus
from antiphon.bus.ports import CopyState, JournalCounter, Stock
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.records import (
    EMBEDDED_BYTES_MAX,
    LEARNED,
    BaseMoved,
    EntriesStaged,
    EpochStarted,
    encode_appended,
    encode_order,
)
from antiphon.bus.schema import Machine, not_for
from antiphon.ids import epoch_node
from antiphon.wire.primitives import Buffer

_NEVER: Final = -1 << 62
_NO_VOTE: Final = (ServerStatus.DAMAGED, ServerStatus.AMNESIA)


class DurableEpochs:
    """The highest epoch promised and the highest claimed by this node; neither ever goes back.

    Every record holds both, so that the newest record alone is enough.
    """

    __slots__ = ("_counter", "epoch_claimed", "promised")

    def __init__(self, counter: JournalCounter, promised: int = 0, epoch_claimed: int = 0) -> None:
        self._counter = counter
        self.promised = promised
        self.epoch_claimed = epoch_claimed

    def promise(self, epoch: int) -> Append:
        """Promise never again to listen to a sequencer of a lower epoch."""
        assert epoch > self.promised, f"epoch {epoch:#x} is promised after {self.promised:#x}"
        self.promised = epoch
        return self._record()

    def claim(self, epoch: int) -> Append:
        """Claim an epoch to stand in, once."""
        assert epoch > self.epoch_claimed, f"epoch {epoch:#x} is claimed after {self.epoch_claimed:#x}"
        self.epoch_claimed = epoch
        return self._record()

    def _record(self) -> Append:
        record = SuperblockRecord(self.promised, self.epoch_claimed)
        return Append(self._counter.next(), record)


class Pages:
    """The received pages of a start: entries behind number `after`, which is not below the server's base."""

    __slots__ = ("after", "entries", "epoch", "last")

    def __init__(self, epoch: int, after: int) -> None:
        self.epoch = epoch
        self.after = after
        self.last = after
        self.entries: list[Entry] = []

    def add(self, page: tuple[Entry, ...]) -> None:
        """Add a page; repeated entries are the same, for an epoch has one log."""
        for entry in page:
            if entry.first == self.last + 1:
                self.entries.append(entry)
                self.last = entry.last

    def forget(self, base: int) -> None:
        """The server's base has moved: the entries before it are committed, and not compared any more."""
        if base > self.after:
            self.entries = [entry for entry in self.entries if entry.first > base]
            self.after, self.last = base, max(self.last, base)


def gather(
    pages: Pages | None, start: m.EpochStart, log: CommitLog, committed_upto: int, told_epoch: int
) -> Pages | None:
    """Add a page to those before it; None if it does not follow what the server has or may keep.

    Only committed entries are kept unseen, or entries that the adopted log must have, too.
    """
    after = start.from_seq - 1
    if pages is None or pages.epoch != start.epoch or not pages.after <= after <= pages.last:
        is_one_log = 0 < start.log_epoch == told_epoch and after <= log.last
        # Below the base there is nothing to compare.
        if after < log.base or not (after <= committed_upto or is_one_log) or not log.is_end(after):
            return None
        pages = Pages(start.epoch, after)
    pages.add(start.entries)
    return pages


class CommitServer:
    """The commit server of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        counter: JournalCounter,
        epochs: DurableEpochs,
        *,
        log: CommitLog | None = None,
        log_epoch: int = 0,
        log_config: int = 1,
        base_ledger: bytes | None = None,
        marks: Mapping[int, bytes] | None = None,
        checkpoint_server: CheckpointServer | None = None,
        presence: PresenceKeeper | None = None,
        config_at: int = 0,
    ) -> None:
        self._config = config
        # The number of the entry that began this configuration, or a number behind it until our log tells; 0
        # for the first configuration.
        self._config_at = config_at
        self._node = node
        self.presence = presence
        self._counter = counter
        self._epochs = epochs
        self.log = CommitLog() if log is None else log
        self.log_epoch = log_epoch
        self._log_config = log_config
        # Volatile: after a restart only the base is known to be committed, or all of a log that no epoch
        # wrote.
        self.committed_upto = self.log.base if log_epoch else self.log.last
        self._former_servers = config.commit_servers
        began = self.log.covering(config_at)
        if began is not None and began.kind is EntryKind.CONFIG:
            # Our configuration is in force, so the entry that began it is committed.
            is_learned = log_config != config.config_id
            self.committed_upto = self.log.last if is_learned else max(config_at, self.committed_upto)
        self.base_ledger = Ledger().encode() if base_ledger is None else base_ledger
        # Read only; None on a node that keeps no state.
        self._checkpoint_server = checkpoint_server
        self.status = ServerStatus.OK
        self._durable_last = self.log.last
        # Replies and base moves that wait for the disk, by index.
        self.held: deque[tuple[int, Send | BaseMoved]] = deque()
        self._promise_index = self._synced = self._written = 0
        # Would checkpoints free segments of this node's journal?
        self._held_segments = 0
        # Through which number the sequencer of our log's epoch called the order committed, whether we have it
        # or not.
        self._committed_told = 0
        # A base that came with a checkpoint, and that this sequencer does not yet know us to have.
        self._base_unsaid = 0
        self._heard_at = _NEVER
        self._began_at: int | None = None
        # The pages of an incomplete start, and when we last asked for a page.
        self._pages: Pages | None = None
        # The start that waits for its envelopes.
        self._waiting_start: tuple[int, m.EpochStart] | None = None
        # Submitted entries behind our log that wait for their envelopes.
        self._pending: list[Entry] = []
        # Through which number the envelopes of our entries may have been lost since, with a part of the disk.
        self._unsure_through = self.log.last
        # None where a submitted entry may be written without its envelope.
        self.stock: Stock | None = None
        self._needed_at = _NEVER
        self._needed_epoch = self._asked = self._install_index = 0
        # Ledgers at the marks above the base, and the newest checkpoint known to be stable.
        self._marks: dict[int, bytes] = dict(marks or {})
        self._stable = (self.log.base, NO_DIGEST)
        self._base_target: tuple[int, bytes] | None = None

    @property
    def promised(self) -> int:
        return self._epochs.promised

    @property
    def stable_checkpoint(self) -> int:
        """The newest number whose checkpoint is known to be stable."""
        return self._stable[0]

    @property
    def has_nothing_to_give(self) -> bool:
        """Has our log a base, and this node no stable checkpoint from there on for another node?"""
        server = self._checkpoint_server
        return server is not None and self.log.base > (0 if server.stable is None else server.stable.n)

    @property
    def waits_for_envelopes(self) -> bool:
        return bool(self._pending) or self._waiting_start is not None

    def is_recorded(self, synced: int) -> bool:
        """Do our records tell a later run, from this index on, which configuration is in force?"""
        return self._written <= synced and tells(self.log, self._config_at, self._config, self._log_config)

    def next_deadline_ns(self) -> int | None:
        # A sequencer makes us ask for what we lack. Without a sequencer we must ask by ourselves: there may
        # never be one without us.
        lacks = self.committed_upto < self._config_at
        return self._needed_at + self._config.retransmit_ms * MS if lacks else None

    @property
    def _has_no_vote(self) -> bool:
        return self._node not in self._config.commit_servers or self.status is ServerStatus.AMNESIA

    @property
    def _is_learner(self) -> bool:
        return self.committed_upto < self._config_at or self._has_no_vote

    @property
    def _told_epoch(self) -> int:
        """The epoch of the log for comparisons; 0 if no epoch of this configuration wrote it."""
        return self.log_epoch if self._log_config == self._config.config_id else 0

    def reconfigure(self, config: GroupConfig, at: int, checkpoint_server: CheckpointServer | None) -> None:
        """This configuration began with the committed entry at number `at`."""
        self._former_servers = self._config.commit_servers
        self._config = config
        self._config_at = at
        self._checkpoint_server = checkpoint_server
        # No sequencer leads in the new configuration yet, and a candidate need not wait.
        self._heard_at = _NEVER
        self._pages = None
        self._give_up_pending()
        if self.status is ServerStatus.AMNESIA:
            # The caller tells again whether our disk is listed.
            self.status = ServerStatus.OK

    def set_status(self, status: ServerStatus) -> None:
        """Set what the disk is good for; a damaged disk stays damaged for this run."""
        may_change = self.status is not ServerStatus.DAMAGED
        if may_change and (self.status not in _NO_VOTE or status in _NO_VOTE):
            self.status = status
        if status is ServerStatus.DAMAGED:
            # The held replies describe a log that is gone, or would let others delete what may be needed.
            self.held.clear()
            self._give_up_pending()

    def _give_up_pending(self) -> None:
        self._pending.clear()
        self._waiting_start = None
        self._unsure_through = min(self._unsure_through, self.log.last)

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        if self._began_at is None:
            self._began_at = now_ns
            self._begin_at_checkpoint(out)
        for event in events:
            if type(event) is Received:
                self._on_received(now_ns, event.sender, event.message, out)
            elif type(event) is Synced:
                self._on_synced(event.index, out)
            elif type(event) is Learned:
                self._on_learned(event, out)
            elif type(event) is Installed:
                self.install_base(event.n, event.ledger, out)
            elif type(event) is SpaceChanged:
                # A lone commit server has no other to go on with: its records wait for room.
                is_full = event.is_full and len(self._config.commit_servers) > 1
                self.set_status(ServerStatus.NO_SPACE if is_full else ServerStatus.OK)
            elif type(event) is SpaceHeld:
                self._held_segments = event.segments
        if self._waiting_start is not None:
            self._on_epoch_start(*self._waiting_start, out)
        if self._pending:
            self._append_pending(out)
        # The base may have waited for a checkpoint of this node, or for another node's transfer to end.
        target, is_whole = self._base_target, self.status is not ServerStatus.DAMAGED
        if target is not None and is_whole and self.log.base < target[0] <= self._base_max():
            self._base_target = None
            self._write_base(*target, out)
        if self.committed_upto < self._config_at:
            self._fetch_order(now_ns, self._config_at, out)
        server = self._checkpoint_server
        if server is not None and 0 < server.needed_n <= self.committed_upto:
            server.need(0)
        return merge_acknowledgements(out)

    def _on_received(self, now_ns: int, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        match message:
            case m.CommitSubmit():
                self._on_submit(sender, message, out)
            case m.Commit():
                if self._is_learner:
                    self._keep_learned(message.entries, out)
                else:
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
            case m.FetchIdReply():
                if self._is_learner:
                    self._on_order_fetched(now_ns, message, out)
                elif sender in (self._node, epoch_node(max(self._needed_epoch, self.promised))):
                    # Only the log of the sequencer that leads or stands is the one that we need.
                    self._on_base_elsewhere(message.base, out)
            case m.PreSeal():
                if self._may_encourage(now_ns, message):
                    out.append(Send(sender, m.PreSealOk(message.counter)))
            case _:
                not_for(Machine.COMMIT_SERVER, message)

    def _may_encourage(self, now_ns: int, asked: m.PreSeal) -> bool:
        """No sequencer is heard here, and the candidate is not far behind or nobody led for long."""
        unheard_ns = now_ns - self._heard_at
        if self.status in _NO_VOTE or unheard_ns < self._config.suspicion_ms * MS:
            return False
        assert self._began_at is not None, "the first step has begun"
        leaderless_ns = now_ns - max(self._heard_at, self._began_at)
        if self.presence is None or leaderless_ns >= self._config.leaderless_ms * MS:
            return True
        return asked.applied + self._config.lag_max >= self.presence.applied_max

    # -- the normal case ---------------------------------------------------------------------------

    def _may_write(self, sender: int, epoch: int, out: list[RoleEffect]) -> bool:
        """May this sequencer write to our log? If it may not, it is told why."""
        if sender != epoch_node(epoch):
            return False
        if self.status is not ServerStatus.OK:
            out.append(Send(sender, m.CommitAcknowledge(epoch, 0, self.status)))
            return False
        promised = self._epochs.promised
        if epoch < promised:
            out.append(Send(sender, m.SealNack(promised)))
            return False
        return True

    def _on_submit(self, sender: int, submit: m.CommitSubmit, out: list[RoleEffect]) -> None:
        epoch, log = submit.epoch, self.log
        if not self._may_write(sender, epoch, out):
            return
        if submit.config_id != self._config.config_id:
            self._refuse_config(sender, submit.config_id, out)
            return
        if self.log_epoch != epoch:
            out.append(Send(sender, self._start_need(epoch)))
            return
        through = self._pending[-1].last if self._pending else log.last
        if self._unsure_through and self._lost_envelopes(sender, submit.committed_upto, out):
            return
        if submit.prev > through or log.base > max(self._committed_told, submit.committed_upto):
            # An earlier submit was lost, or our base is beyond what this epoch has: say how far the log goes.
            out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))
            return
        entries, prev = submit.entries, submit.prev
        if prev < log.base:
            # The entries before the base are committed, and there is nothing left to compare them with.
            entries, prev = tuple([entry for entry in entries if entry.first > log.base]), log.base
        if prev < log.last and entries:
            known = [entry for entry in entries if entry.first <= log.last]
            assert log.common_through(prev, known) == (known[-1].last if known else prev), (
                f"epoch {epoch:#x} submitted two different entries behind {prev}"
            )
            entries, prev = entries[len(known) :], log.last
        self._learn_committed(epoch, submit.committed_upto)
        if entries and self.stock is not None:
            is_repeated = bool(self._pending) and prev < self._pending[0].first
            # The end of the step appends what need not wait: as much as finds room in one record.
            self._pending += [entry for entry in entries if entry.first > through]
            if is_repeated:
                unsure = [entry for entry in self._pending if entry.last > self._committed_told]
                self._fetch_envelopes(sender, unsure, out)
        elif entries:
            self._append_entries(entries, (), out)
        else:
            out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))

    def _append_entries(
        self,
        entries: tuple[Entry, ...],
        envelopes: Sequence[tuple[int, Buffer]],
        out: list[RoleEffect],
        *,
        is_bound: bool = False,
    ) -> None:
        log, epoch = self.log, self.log_epoch
        body = encode_appended(epoch, log.last, entries, envelopes)
        log.extend(entries)
        index = self._append(OrderRecord(body, log.last, bound=is_bound), out)
        self._reply_after(index, epoch_node(epoch), m.CommitAcknowledge(epoch, log.last), out)
        self.committed_upto = max(self.committed_upto, min(self._committed_told, log.last))

    def _append_pending(self, out: list[RoleEffect]) -> None:
        """Append the entries whose envelopes are here: durable, or written before them (COM8)."""
        assert self.stock is not None, "nothing waits for an envelope"
        taken: list[Entry] = []
        envelopes: list[tuple[int, Buffer]] = []
        room, is_bound = EMBEDDED_BYTES_MAX, False
        for entry in self._pending:
            if entry.kind is EntryKind.DATA and entry.last > self._committed_told:
                stored = self.stock.stored(entry)
                if stored is CopyState.MISSING:
                    break
                if stored is CopyState.WRITTEN and self._config.commit_quantity > 1:
                    is_bound = True
                elif stored is CopyState.WRITTEN:
                    payload = self.stock.in_hand(entry.mid)
                    if payload is None or len(payload) > room:
                        break
                    room -= len(payload)
                    envelopes.append((len(taken), payload))
            taken.append(entry)
        if taken:
            del self._pending[: len(taken)]
            self._append_entries(tuple(taken), envelopes, out, is_bound=is_bound)

    def _lost_envelopes(self, sender: int, committed_upto: int, out: list[RoleEffect]) -> bool:
        """Did this node lose envelopes since it wrote their entries? Then it does not acknowledge yet."""
        lacking = self._lacking(committed_upto, self._unsure_through)
        if lacking:
            self._fetch_envelopes(sender, lacking, out)
        else:
            self._unsure_through = 0
        return bool(lacking)

    def _lacking(self, committed_upto: int, through: int) -> list[Entry]:
        """The entries of our log through this number whose envelopes are not durable on this node.

        Those at or below `committed_upto` do not count: others hold their envelopes.
        """
        if self.stock is None:
            return []
        base = self.log.base
        data = [one for one in self.log.between(base, through) if one.kind is EntryKind.DATA]
        return [
            one
            for one in data
            if one.last > committed_upto and self.stock.stored(one) is not CopyState.DURABLE
        ]

    def _fetch_envelopes(self, server: int, entries: Iterable[Entry], out: list[RoleEffect]) -> None:
        question = self.question_for(entries)
        if question is not None and server != self._node:
            out.append(Send(server, question))

    def question_for(self, entries: Iterable[Entry]) -> m.FetchData | None:
        """A question for the envelopes of these entries that this node lacks and needs."""
        if self.stock is None:
            return None
        data = [entry for entry in entries if entry.kind is EntryKind.DATA]
        missing = [entry for entry in data if self.stock.stored(entry) is CopyState.MISSING]
        missing = missing[: self._config.fetch_mids_max]
        if not missing:
            return None
        return m.FetchData(tuple([one.mid for one in missing]), tuple([one.first for one in missing]))

    def _learn_committed(self, epoch: int, committed_upto: int) -> None:
        # R7: only the epoch that wrote our log knows which of our entries are committed (COM4).
        is_ours = epoch == self.log_epoch
        if is_ours and committed_upto > self._committed_told:
            self._committed_told = committed_upto
        if is_ours and committed_upto > self.committed_upto:
            self.committed_upto = max(self.committed_upto, min(committed_upto, self.log.last))

    def _on_heartbeat(self, now_ns: int, sender: int, beat: m.Heartbeat, out: list[RoleEffect]) -> None:
        if sender != epoch_node(beat.epoch):
            return
        if self._is_learner:
            self._fetch_order(now_ns, beat.committed_upto, out)
        if self._has_no_vote:
            return
        if beat.epoch < self.promised:
            # We cannot follow an idle sequencer of a lower epoch, and it sends no submit that we could
            # refuse.
            out.append(Send(sender, m.SealNack(self.promised)))
            return
        self._heard_at = now_ns
        self._learn_committed(beat.epoch, beat.committed_upto)
        if self.status in _NO_VOTE:
            return
        # A server that does not follow yet takes no checkpoint, and would use up the marks that are for it.
        segments = self._held_segments if self.log_epoch == beat.epoch else 0
        out.append(Send(sender, m.HeartbeatAck(beat.epoch, beat.nonce, segments)))
        self._say_base(out)
        if beat.epoch > self.log_epoch and now_ns - self._needed_at >= self._config.retransmit_ms * MS:
            # This sequencer leads, and nothing of its log has reached us. Without traffic nobody else would
            # say so.
            self._needed_at, self._needed_epoch = now_ns, beat.epoch
            out.append(Send(sender, self._start_need(beat.epoch)))

    def _start_need(self, epoch: int) -> m.StartNeed:
        if self._pages is not None and self._pages.epoch == epoch:
            return m.StartNeed(epoch, self._pages.last, self._pages.last)
        told_epoch = self._told_epoch
        last = self.log.last if told_epoch else self.committed_upto
        return m.StartNeed(epoch, self.committed_upto, last, told_epoch)

    def _on_fetch_id(self, sender: int, fetch: m.FetchId, out: list[RoleEffect]) -> None:
        if (reply := self.committed_from(fetch.first, fetch.most)) is not None:
            out.append(Send(sender, reply))

    def committed_from(self, first: int, most: int) -> m.FetchIdReply | None:
        """The committed entries from number `first` on; None while this server's log cannot answer."""
        if self._install_index > self._synced:
            return None
        if self.status is ServerStatus.DAMAGED:
            return None
        most = min(most, self._config.fetch_entries_max)
        entries = self.log.from_number(first, self.committed_upto, most)
        if not entries and self.status is ServerStatus.AMNESIA:
            return None
        return m.FetchIdReply(entries, self.committed_upto, self.log.base)

    # -- a new sequencer ---------------------------------------------------------------------------

    def _on_seal(self, sender: int, seal: m.Seal, out: list[RoleEffect]) -> None:
        epoch = seal.epoch
        if sender != epoch_node(epoch):
            return
        if self.status in _NO_VOTE:
            out.append(Send(sender, m.SealNack(self.promised, self.status)))
        elif seal.config_id != self._config.config_id:
            self._refuse_config(sender, seal.config_id, out)
        elif sender not in self._config.candidates or self._node not in self._config.commit_servers:
            # The candidate goes by another configuration than this server.
            pass
        elif self.committed_upto < self._config_at:
            # An entry that our log lacks may be in no other log of this configuration.
            pass
        elif epoch > self.promised:
            # The answer tells where our log ends, and nothing of a lower epoch may follow.
            self._give_up_pending()
            append = self._epochs.promise(epoch)
            out.append(append)
            self._promise_index = append.index
            self._reply_after(append.index, sender, self._seal_ok(epoch), out)
        elif epoch == self.promised and self.log_epoch < epoch:
            # The same question again gets the same answer: the log stands still until EPOCH_START.
            if max(self._promise_index, self._install_index) <= self._synced:
                out.append(Send(sender, self._seal_ok(epoch)))
        else:
            out.append(Send(sender, m.SealNack(self.promised)))

    def _refuse_config(self, sender: int, config_id: int, out: list[RoleEffect]) -> None:
        """Answer a sequencer of another configuration.

        Its log ends where its configuration did, and must not go on in ours. If ours is the one that is over,
        we must learn so from the order first.
        """
        if config_id < self._config.config_id:
            config = self._config.encode()
            out.append(Send(sender, m.SealNack(self.promised, ServerStatus.RETIRED, config)))

    def _seal_ok(self, epoch: int) -> m.SealOk:
        return m.SealOk(epoch, self._told_epoch, self.log.base, self.log.last, self.committed_upto)

    def _on_fetch_log(self, sender: int, fetch: m.FetchLog, out: list[RoleEffect]) -> None:
        if fetch.epoch != self.promised or sender != epoch_node(fetch.epoch) or self.status in _NO_VOTE:
            out.append(Send(sender, m.SealNack(self.promised, self.status)))
            return
        log = self.log
        entries = log.from_number(fetch.start, log.last, self._config.fetch_entries_max)
        out.append(Send(sender, m.FetchLogReply(fetch.epoch, fetch.start, entries, log.last)))

    def _on_epoch_start(self, sender: int, start: m.EpochStart, out: list[RoleEffect]) -> None:
        epoch = start.epoch
        if not self._may_write(sender, epoch, out):
            return
        if self.log_epoch == epoch:
            if not self._unsure_through or not self._lost_envelopes(sender, start.committed_upto, out):
                out.append(Send(sender, m.CommitAcknowledge(epoch, self._durable_last)))
            return
        if start.config_id != self._config.config_id or sender not in self._config.candidates:
            self._refuse_config(sender, start.config_id, out)
            return
        pages = gather(self._pages, start, self.log, self.committed_upto, self._told_epoch)
        if pages is None or pages.last < start.through:
            self._pages = pages or self._pages
            out.append(Send(sender, self._start_need(epoch)))
            return
        if self._waits_for_start(sender, start, pages, out):
            return
        self._pages = None
        if pages.last < self.committed_upto:
            # The start was long on its way: we have learned the committed entries that it lacks. Only a start
            # that contains them says that our log is the sequencer's.
            out.append(Send(sender, self._start_need(epoch)))
            return
        self._start(epoch, pages, sender, out)
        self._learn_committed(epoch, start.committed_upto)

    def _waits_for_start(self, sender: int, start: m.EpochStart, pages: Pages, out: list[RoleEffect]) -> bool:
        """Must the start wait until the envelopes that it names and nobody called committed are durable?

        A log that was cut after a crash, since it lacked them, would still count as a log of this epoch.
        """
        if self.stock is None:
            return False
        kept = self.log.common_through(pages.after, pages.entries)
        data = [entry for entry in pages.entries if entry.kind is EntryKind.DATA]
        data = [entry for entry in data if entry.last > max(kept, start.committed_upto)]
        lacking = [entry for entry in data if self.stock.stored(entry) is not CopyState.DURABLE]
        lacking += self._lacking(start.committed_upto, kept)
        if not lacking:
            self._waiting_start = None
            return False
        if self._waiting_start is None or self._waiting_start[1] is not start:
            self._fetch_envelopes(sender, lacking, out)
        self._pages, self._waiting_start = pages, (sender, start)
        return True

    def _start(self, epoch: int, pages: Pages, sender: int, out: list[RoleEffect]) -> None:
        log = self.log
        keep_through = log.common_through(pages.after, pages.entries)
        assert keep_through >= self.committed_upto, (
            f"epoch {epoch:#x} would give up committed entries behind {keep_through}"
        )
        log.truncate(keep_through)
        self._give_up_pending()
        if self.stock is not None:
            # The start has waited for what this node lacked.
            self._unsure_through = 0
        differing = [entry for entry in pages.entries if entry.first > keep_through]
        log.extend(differing)
        # Replies held for an earlier sequencer describe a log that is gone.
        self.held = deque(item for item in self.held if isinstance(item[1], BaseMoved))
        # The last record says epoch, cut and new entries at once. The record is also the promise: recovery
        # takes the epoch of the log as promised.
        self.log_epoch, self._log_config = epoch, self._config.config_id
        self._durable_last = self._committed_told = self._base_unsaid = 0
        if epoch > self.promised:
            self._epochs.promised = epoch
        size = self._config.fetch_entries_max
        while len(differing) > size:
            piece, differing = tuple(differing[:size]), differing[size:]
            staged = EntriesStaged(epoch, piece[0].first - 1, piece)
            self._append(OrderRecord(encode_order(staged), piece[-1].last), out)
        body = encode_order(EpochStarted(epoch, keep_through, tuple(differing), self._log_config))
        index = self._append(OrderRecord(body, log.last), out)
        self._reply_after(index, sender, m.CommitAcknowledge(epoch, log.last), out)

    # -- learning ----------------------------------------------------------------------------------

    def _keep_learned(self, entries: Iterable[Entry], out: list[RoleEffect]) -> None:
        """Write down committed entries that follow what is known to be committed."""
        log, known = self.log, self.committed_upto
        entries = [entry for entry in entries if entry.first > known]
        if not entries or entries[0].first != known + 1:
            return
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self._note_config(entry.detail, entry.last)
        keep_through = log.common_through(known, entries)
        new = tuple([entry for entry in entries if entry.first > keep_through])
        self.committed_upto = entries[-1].last
        if not new:
            return
        if self._log_config == LEARNED and keep_through == log.last:
            body = encode_appended(self._recorded_epoch, keep_through, new)
        else:
            # The entries behind it date from when this node voted, and were never committed.
            log.truncate(keep_through)
            self._give_up_pending()
            self._pages = None
            self.log_epoch, self._log_config = 0, LEARNED
            self._durable_last = self._committed_told = self._base_unsaid = 0
            self.held = deque(item for item in self.held if isinstance(item[1], BaseMoved))
            body = encode_order(EpochStarted(self._recorded_epoch, keep_through, new, LEARNED))
        log.extend(new)
        self._append(OrderRecord(body, log.last), out)

    def _note_config(self, encoded: bytes, at: int) -> None:
        """This configuration began at number `at` or before, by our log or its base.

        A checkpoint that is ahead of our log tells only that ours began before it. If we waited for the log
        to come so far, and no other node knew that to be committed, nobody could seal without us, nor we vote
        without them.
        """
        if encoded and at < self._config_at:
            config, ours = GroupConfig.decode(encoded), self._config
            if (config.generation, config.config_id) == (ours.generation, ours.config_id):
                self._config_at = at

    def _on_order_fetched(self, now_ns: int, reply: m.FetchIdReply, out: list[RoleEffect]) -> None:
        before = self.committed_upto
        self._keep_learned(reply.entries, out)
        self._on_base_elsewhere(reply.base, out)
        if self.committed_upto > before:
            self._needed_at = _NEVER
            self._fetch_order(now_ns, reply.committed_upto, out)

    def _fetch_order(self, now_ns: int, committed_upto: int, out: list[RoleEffect]) -> None:
        """Ask for missed entries, a page at a time, in turn the voters and the former voters."""
        is_due = now_ns - self._needed_at >= self._config.retransmit_ms * MS
        if committed_upto <= self.committed_upto or not is_due:
            return
        servers = (*self._config.commit_servers, *self._former_servers)
        others = [server for server in dict.fromkeys(servers) if server != self._node]
        self._needed_at = now_ns
        if others:
            self._asked += 1
            fetch = m.FetchId(self.committed_upto + 1, self._config.fetch_entries_max)
            out.append(Send(others[self._asked % len(others)], fetch))

    # -- write before send -------------------------------------------------------------------------

    @property
    def _recorded_epoch(self) -> int:
        """The epoch that a record names. The record that made a promise may be freed, so later records repeat
        it.
        """
        return self.promised if self._log_config == LEARNED else self.log_epoch

    def _append(self, record: OrderRecord, out: list[RoleEffect]) -> int:
        index = self._written = self._counter.next()
        out.append(Append(index, record))
        return index

    def _reply_after(self, index: int, to: int, reply: m.BusMessage, out: list[RoleEffect]) -> None:
        """Hold a reply until the record with this index is durable (COM1)."""
        self.held.append((index, Send(to, reply)))

    def _on_synced(self, index: int, out: list[RoleEffect]) -> None:
        self._synced = max(self._synced, index)
        held = self.held
        while held and held[0][0] <= index:
            self._release(out)

    def _release(self, out: list[RoleEffect]) -> None:
        _, what = self.held.popleft()
        if isinstance(what, BaseMoved):
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
            if entry.last > self.committed_upto and self.log.covering(entry.first) == entry:
                # A sequencer makes an entry once, behind one log, so a server that has the entry has that log
                # before it. Our log up to here is the committed order, whichever epoch says so.
                self.committed_upto = entry.last
            if entry.kind is EntryKind.CHECKPOINT_STABLE:
                stable = StableDetail.decode(entry.detail)
                if stable.n > self._stable[0]:
                    former = self._base_target = self._stable
                    self._stable = (stable.n, stable.digest)
                    self._begin_at_checkpoint(out)
                    # The log begins at one of these two, or at a checkpoint of this node. A base that moves
                    # forgets older marks, too; the base of a spare that is not wanted does not move.
                    server = self._checkpoint_server
                    oldest = former[0] if server is None else min(former[0], server.fallback_n)
                    self._marks = {n: ledger for n, ledger in self._marks.items() if n >= oldest}

    def _base_max(self) -> int:
        """How far the base may move here: a node that slept may know of checkpoints that it lacks."""
        if (server := self._checkpoint_server) is None:
            return self.committed_upto
        # Another node can be given a stable checkpoint only. A node that is fetching one will need the log
        # behind it.
        given = 0 if server.stable is None else min(server.stable.n, server.held_n or server.stable.n)
        return min(self.committed_upto, server.fallback_n, given)

    def _write_base(self, base: int, digest: bytes, out: list[RoleEffect]) -> None:
        ledger = self._marks.get(base)
        if ledger is None:
            # The mark was passed in an earlier run, before the checkpoint that this run began with.
            ledger = folded(self.base_ledger, self.log.between(self.log.base, base))
        # In memory the base moves when it has moved on disk: nobody may hear of a base that goes back.
        self._record_base(base, ledger, digest, out)

    def _record_base(self, base: int, ledger: bytes, digest: bytes, out: list[RoleEffect]) -> int:
        moved = BaseMoved(base, self._recorded_epoch, ledger, digest, self._log_config)
        index = self._append(OrderRecord(encode_order(moved), base, pinned=True), out)
        self.held.append((index, moved))
        return index

    def _move_base(self, move: BaseMoved, out: list[RoleEffect]) -> None:
        if move.base > self.log.base:
            self.log.forget(move.base)
            self.base_ledger = move.ledger
            if self._pages is not None:
                self._pages.forget(move.base)
        self._marks = {n: ledger for n, ledger in self._marks.items() if n > move.base}
        if self._checkpoint_server is not None:
            self._checkpoint_server.note_base(move.base)
        out.append(ReleaseSpace(move.base))
        self._say_base(out)

    def _say_base(self, out: list[RoleEffect]) -> None:
        """Tell the sequencer a base that came from another node, once it has that base committed."""
        is_sayable = 0 < self._base_unsaid <= self._committed_told and self._install_index <= self._synced
        is_sayable = is_sayable and (self.stock is None or self._unsure_through <= self.log.base)
        if is_sayable and self.log_epoch == self.promised and self.status is ServerStatus.OK:
            self._durable_last, self._base_unsaid = max(self._durable_last, self._base_unsaid), 0
            said = m.CommitAcknowledge(self.log_epoch, self._durable_last)
            out.append(Send(epoch_node(self.log_epoch), said))

    def _begin_at_checkpoint(self, out: list[RoleEffect]) -> None:
        """A crash between installing another node's checkpoint and writing its base leaves a log that ends
        before it.
        """
        if self._checkpoint_server is not None:
            n = self._checkpoint_server.newest_n
            if n > self.log.last or self._config_at > self.committed_upto:
                self._install_own(n, out)

    def _install_own(self, n: int, out: list[RoleEffect]) -> None:
        """Begin behind a checkpoint of ours, if the order says that this or a later checkpoint is stable."""
        ledger = self._marks.get(n)
        if ledger is not None and n <= self._stable[0]:
            self.install_base(n, ledger, out)

    def _on_base_elsewhere(self, base: int, out: list[RoleEffect]) -> None:
        """The logs of the others begin at `base`. If a checkpoint of ours reaches so far, our log begins
        there, too.
        """
        if self._pages is not None and self._pages.last < base:
            # The pages end before that base. What we know to be committed may reach further.
            self._pages = None
        if base <= self.committed_upto:
            return
        # Only stable checkpoints become a base.
        self._stable = max(self._stable, (base, NO_DIGEST))
        server, stable_n = self._checkpoint_server, self._stable[0]
        for n in (stable_n,) if server is None else server.beginnings(base, stable_n):
            if base > self.committed_upto:
                self._install_own(n, out)
        if server is not None and base > self.committed_upto:
            server.need(base)

    def install_base(self, n: int, ledger: bytes, out: list[RoleEffect], digest: bytes = NO_DIGEST) -> None:
        """The log begins at `n` at the latest: this node has the committed state after `n`, durably.

        The promise and the epoch of the log stay what they are. See docs/design/checkpoints.md.
        """
        log = self.log
        if n <= log.base:
            return
        is_ours = n <= self.committed_upto or self.committed_upto >= self._config_at
        if n <= log.last and log.is_end(n) and is_ours:
            log.forget(n)
        else:
            # The log ended before n, or was another order from somewhere below n on, or was written under
            # another configuration. The object stays: other machines of this node refer to it.
            log.reset(n)
            self.held = deque(item for item in self.held if isinstance(item[1], BaseMoved))
        self.base_ledger = ledger
        self.committed_upto = max(self.committed_upto, n)
        if n < self._config_at:
            self._note_config(Ledger.decode(ledger).config, n)
        self._pages = None
        self._give_up_pending()
        self._base_target = None
        if n > self._stable[0]:
            self._stable = (n, digest)
        self._install_index = self._record_base(n, ledger, digest, out)
        self._base_unsaid = n


def merge_acknowledgements(effects: list[RoleEffect]) -> list[RoleEffect]:
    """Of the acknowledgements to one sequencer in one epoch only the highest is needed."""
    if len(effects) < 2:
        return effects
    highest: dict[tuple[int, int], tuple[int, int]] = {}
    dropped: set[int] = set()
    for at, effect in enumerate(effects):
        if type(effect) is Send and type(effect.message) is m.CommitAcknowledge:
            key = (effect.to, effect.message.epoch)
            last, other = highest.get(key, (-1, -1))
            if effect.message.last >= last:
                highest[key] = (effect.message.last, at)
                dropped.add(other)
            else:
                dropped.add(at)
    if dropped <= {-1}:
        return effects
    return [effect for at, effect in enumerate(effects) if at not in dropped]
