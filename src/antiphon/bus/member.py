"""Member: delivers the committed order to the message manager of its node.

Where it sits
    sequencer  ->  COMMIT  ->  MEMBER  ->  message manager

What it promises
    MEM1  Entries are applied once each, in order, none missing.
    MEM2  An entry is applied only when it is committed and its payload is durable on this node; the arrival
          of either tries again.
    MEM3  A checkpoint is taken exactly behind its mark: nothing later is applied before.
    MEM4  The member asks for missing order and for missing payloads separately, so that neither waits for the
          other. It asks nodes by lot, and the sequencer, which is busy, not first.
    MEM5  A payload that is lost for good is skipped only when the order itself says so (VOID).

What it leaves to others
    The sequencer and the commit servers decide what is committed. A late message of a deposed sequencer is
    as true as a new one, so epochs do not matter here.

On a node without a data server, a witness, the member only learns and applies nothing. Its commit server
needs that knowledge to move its base, and its ledger answers the questions of producers.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Apply,
    Installed,
    Learned,
    PrimaryChanged,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    TakeCheckpoint,
)
from antiphon.bus.entries import VoidDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger, ProducerRow
from antiphon.bus.log import Prefix
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.repair import Repair
from antiphon.bus.schema import Machine, not_for
from antiphon.ids import Mid, epoch_node

_ANSWERS = (m.FetchIdReply, m.FetchRangeReply)


class Member:
    """The member of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        known: Prefix,
        ledger: Ledger,
        data_server: DataServer,
        checkpoint_server: CheckpointServer | None,
        chance: Chance,
    ) -> None:
        self._config = config
        self._node = node
        # Both stand at the same number: the ledger is the fold of the known order.
        self.known = known
        self.ledger = ledger
        self._data_server = data_server
        self._checkpoint_server = checkpoint_server
        self._chance = chance
        # Does this node apply what it learns? A witness does not: it has no payloads.
        self.delivers = node in config.data_servers
        self.applied = known.upto
        self.term = ledger.term
        self.primary = ledger.primary
        # Committed entries that are not applied: the payload of the first is not durable here yet.
        self.waiting: deque[Entry] = deque()
        # First numbers of waiting entries whose payload is lost for good.
        self._void: dict[int, bool] = {}
        self._marks: dict[int, bytes] = {}
        self._epoch = 0
        self._for_order = Repair(config, chance)
        self._for_payloads = Repair(config, chance)
        self._asked: tuple[Mid, ...] = ()
        # A node that knows of a later configuration than we do; 0 for none.
        self._informed = 0

    def reconfigure(self, config: GroupConfig, checkpoint_server: CheckpointServer | None) -> None:
        """The channel has another configuration. A witness that is to keep state has to begin anew."""
        self._config = config
        if self._node not in config.data_servers:
            self.delivers = False
        self._checkpoint_server = checkpoint_server
        self._informed = 0

    def next_deadline_ns(self) -> int | None:
        order_at, payloads_at = self._for_order.at, self._for_payloads.at
        if order_at is None or payloads_at is None:
            return payloads_at if order_at is None else order_at
        return min(order_at, payloads_at)

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        learned: list[Entry] = []
        asked: list[tuple[int, int]] = []
        is_answer = False
        for event in events:
            if type(event) is Received:
                message = event.message
                if type(message) is m.Commit:
                    learned += self.known.learn(message.entries, message.committed_upto)
                    self._epoch = max(self._epoch, message.epoch)
                elif type(message) is m.Heartbeat:
                    self.known.learn((), message.committed_upto)
                    self._epoch = max(self._epoch, message.epoch)
                elif isinstance(message, _ANSWERS):
                    learned += self.known.learn(message.entries, message.committed_upto)
                    is_answer = True
                elif type(message) is m.Presence:
                    # An entry that any node has applied is committed: without a sequencer only presences tell
                    # so.
                    self.known.learn((), message.applied)
                    if message.config_id > self._config.config_id:
                        self._informed = event.sender
                elif type(message) is m.ProducerStateGet:
                    asked.append((event.sender, message.pid))
                else:
                    not_for(Machine.MEMBER, message)
            elif type(event) is Installed:
                learned = self._install(event, learned, out)
        notable: tuple[Entry, ...] = ()
        marks: tuple[tuple[int, bytes], ...] = ()
        if learned:
            notable, marks = self._learn(learned)
        # After the entries of this step are folded: the answer says how far the order is known here.
        out += [Send(sender, self._producer_state(pid)) for sender, pid in asked]
        applied_before = self.applied
        if self.waiting:
            self._deliver(out)
        if learned and (notable or self.waiting):
            # As a rule every entry was applied at once, and no role has to be told.
            left = tuple(self.waiting)[-len(learned) :]
            out.append(Learned(left, notable, marks))
        if self.known.has_gap or self._for_order.at is not None:
            self._fetch_order(now_ns, bool(learned), is_answer, out)
        if self.waiting or self._for_payloads.at is not None:
            self._fetch_payloads(now_ns, self.applied > applied_before, out)
        return out

    def _producer_state(self, pid: int) -> m.ProducerState:
        """The state of a producer in the order, as far as it is known here."""
        row = self.ledger.rows.get(pid) or ProducerRow(0)
        return m.ProducerState(
            pid,
            self.known.upto,
            row.pe,
            row.last_pseq,
            row.last_seq,
            row.previous_pe,
            row.previous_last_pseq,
            row.run_id,
        )

    def _learn(self, entries: list[Entry]) -> tuple[tuple[Entry, ...], tuple[tuple[int, bytes], ...]]:
        """Fold newly known entries; returns those that are not DATA, and the ledger after each mark."""
        self.waiting.extend(entries)
        notable = tuple([entry for entry in entries if entry.kind is not EntryKind.DATA])
        if not notable:
            self.ledger.fold(entries)
            return (), ()
        marks: list[tuple[int, bytes]] = []
        for entry in entries:
            self.ledger.fold((entry,))
            if entry.kind is EntryKind.CHECKPOINT_MARK:
                marks.append((entry.last, self.ledger.encode()))
            elif entry.kind is EntryKind.VOID:
                self._void[VoidDetail.decode(entry.detail).first] = True
        self._marks.update(marks)
        return notable, tuple(marks)

    def _install(self, installed: Installed, learned: list[Entry], out: list[RoleEffect]) -> list[Entry]:
        """Begin behind number n with the state of another node; returns the entries newly known there."""
        n = installed.n
        assert n > self.applied, f"a state after {n} is installed, and {self.applied} is applied"
        ledger = Ledger.decode(installed.ledger)
        folded_upto = learned[0].first - 1 if learned else self.known.upto
        if folded_upto < n:
            self.ledger.become(ledger)
            learned = [entry for entry in learned if entry.first > n]
            if self.known.upto < n:
                learned = self.known.skip(n)
        while self.waiting and self.waiting[0].first <= n:
            self.waiting.popleft()
        self._marks = {at: mark for at, mark in self._marks.items() if at > n}
        self._void = {first: True for first in self._void if first > n}
        self.applied = n
        if ledger.term > self.term:
            self.term, self.primary = ledger.term, ledger.primary
            out.append(PrimaryChanged(self.term, self.primary))
        return learned

    # -- delivery ----------------------------------------------------------------------------------

    def _deliver(self, out: list[RoleEffect]) -> None:
        waiting = self.waiting
        take, data = self._data_server.take, EntryKind.DATA
        while waiting:
            entry = waiting[0]
            if entry.kind is not data:
                if self.delivers:
                    out.append(Apply(entry, None, None))
                self._on_applied(entry, out)
            elif self._void and self.delivers and entry.first in self._void:
                self._data_server.void(entry)
                out.append(Apply(entry, None, None))
            elif self.delivers:
                taken = take(entry, out)
                if taken is None:
                    return
                out.append(taken)
            else:
                self._data_server.pass_over(entry)
            waiting.popleft()
            self.applied = entry.first + entry.count - 1

    def _on_applied(self, entry: Entry, out: list[RoleEffect]) -> None:
        if entry.kind is EntryKind.PRIMARY_CLAIM:
            self.term, self.primary = entry.mid.pe, entry.mid.pid
            out.append(PrimaryChanged(self.term, self.primary))
        elif entry.kind is EntryKind.CHECKPOINT_MARK:
            ledger = self._marks.pop(entry.last)
            server = self._checkpoint_server if self.delivers else None
            if server is not None and server.begin(entry.last, ledger):
                out.append(TakeCheckpoint(entry.last))
        elif entry.kind is EntryKind.VOID:
            self._void.pop(VoidDetail.decode(entry.detail).first, None)

    # -- what is missing ---------------------------------------------------------------------------

    def _fetch_order(self, now_ns: int, has_moved: bool, is_answer: bool, out: list[RoleEffect]) -> None:
        known, config = self.known, self._config
        if not known.has_gap:
            self._for_order.rest()
            return
        if not self._for_order.is_due(now_ns, has_moved=has_moved, is_answered=is_answer and has_moved):
            return
        first, attempts = known.upto + 1, self._for_order.attempts
        is_far_behind = known.told_upto - known.upto > config.fetch_entries_max
        if self.delivers and is_far_behind and (attempts % 2 or not attempts):
            # Order and payloads in one answer, from a node that has both. If that does not help, the next
            # question is for the order alone: the node may have another role by now.
            servers = tuple([node for node in config.data_servers if node in config.commit_servers])
            to = self._somebody(servers, attempts)
            if to:
                out.append(Send(to, m.FetchRange(first, config.fetch_bytes_max)))
                return
        # Our own commit server may know: the order often reaches it before the COMMIT reaches us.
        servers = (*config.commit_servers, self._informed) if self._informed else config.commit_servers
        to = self._chance.one_of(servers)
        out.append(Send(to, m.FetchId(first, config.fetch_entries_max)))

    def _fetch_payloads(self, now_ns: int, has_moved: bool, out: list[RoleEffect]) -> None:
        """Ask for committed payloads that did not arrive; those that are being written did."""
        wanted, config = self._data_server.wanted, self._config
        if not wanted or not self.delivers:
            self._for_payloads.rest()
            self._asked = ()
            return
        # The whole of the last question is answered, and there is more to ask for.
        is_answered = bool(self._asked) and not any(mid in wanted for mid in self._asked)
        if not self._for_payloads.is_due(now_ns, has_moved=has_moved, is_answered=is_answered):
            return
        to = self._somebody(config.data_servers, self._for_payloads.attempts)
        if to:
            entries = list(islice(wanted.values(), config.fetch_mids_max))
            self._asked = tuple([entry.mid for entry in entries])
            out.append(Send(to, m.FetchData(self._asked, tuple([entry.first for entry in entries]))))

    def _somebody(self, servers: tuple[int, ...], attempts: int) -> int:
        """A random other node; the sequencer only if no other is left or two attempts failed; 0 for none."""
        others = tuple([node for node in servers if node != self._node])
        idle = tuple([node for node in others if node != epoch_node(self._epoch)])
        choices = idle if idle and attempts <= 1 else others
        return self._chance.one_of(choices) if choices else 0
