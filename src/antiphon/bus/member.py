"""Member: delivers the committed order to the message manager of its node.

Where it sits
    sequencer  ->  COMMIT  ->  MEMBER  ->  message manager

What it promises
    P1  Entries are applied once each, in order, none missing.
    P2  An entry is applied only when it is committed and its payload is durable on this node, whichever
        comes last: the two are tried again on every arrival of either.
    P3  A checkpoint is taken exactly behind its mark: nothing later is applied before.

What it leaves to others
    Whether something is committed is the sequencer's and the commit servers' word; a late word of a
    deposed sequencer is as true as a fresh one, so epochs do not matter here.
"""

from __future__ import annotations

from collections import deque

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Apply,
    Learned,
    PrimaryChanged,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    TakeCheckpoint,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.prefix import Prefix


class Member:
    """The delivering end of one node for one channel."""

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
        # Both stand at the same number: the ledger is the fold of what is known.
        self.known = known
        self.ledger = ledger
        self._data_server = data_server
        self._checkpoint_server = checkpoint_server
        self._chance = chance
        self.applied = known.upto
        self.term = ledger.term
        self.primary = ledger.primary
        self._waiting: deque[Entry] = deque()
        self._marks: dict[int, bytes] = {}
        self._fetch_at: int | None = None
        self._fetch_delay_ms = config.fetch_delay_ms

    @property
    def is_waiting(self) -> bool:
        """Is something committed whose payload is not durable here yet?"""
        return bool(self._waiting)

    def next_deadline_ns(self) -> int | None:
        return self._fetch_at

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        """Take what happened, return what must happen next."""
        out: list[RoleEffect] = []
        learned: list[Entry] = []
        for event in events:
            if type(event) is Received:
                message = event.message
                if type(message) is m.Commit or type(message) is m.FetchIdReply:
                    learned += self.known.learn(message.entries, message.committed_upto)
                elif type(message) is m.Heartbeat:
                    self.known.learn((), message.committed_upto)
        notable: tuple[Entry, ...] = ()
        marks: tuple[tuple[int, bytes], ...] = ()
        if learned:
            notable, marks = self._learn(learned)
        applied_before = self.applied
        if self._waiting:
            self._deliver(out)
        if learned and (notable or self._waiting):
            # As a rule everything was taken at once, and nobody has to be told.
            left = tuple(self._waiting)[-len(learned) :]
            out.append(Learned(left, notable, marks))
        if self._waiting or self.known.has_gap or self._fetch_at is not None:
            self._fetch(now_ns, bool(learned) or self.applied > applied_before, out)
        return out

    def _learn(self, entries: list[Entry]) -> tuple[tuple[Entry, ...], tuple[tuple[int, bytes], ...]]:
        """Fold what is newly known; returns what is not DATA, and the ledger after each mark."""
        self._waiting.extend(entries)
        notable = tuple([entry for entry in entries if entry.kind is not EntryKind.DATA])
        if not notable:
            self.ledger.fold(entries)
            return (), ()
        marks: list[tuple[int, bytes]] = []
        for entry in entries:
            self.ledger.fold((entry,))
            if entry.kind is EntryKind.CHECKPOINT_MARK:
                marks.append((entry.last, self.ledger.encode()))
        self._marks.update(marks)
        return notable, tuple(marks)

    # -- delivery ----------------------------------------------------------------------------------

    def _deliver(self, out: list[RoleEffect]) -> None:
        waiting = self._waiting
        take = self._data_server.take
        while waiting:
            entry = waiting[0]
            if entry.kind is EntryKind.DATA:
                taken = take(entry, out)
                if taken is None:
                    return
                out.append(Apply(entry, taken[0], taken[1]))
            else:
                out.append(Apply(entry, None, None))
                self._on_applied(entry, out)
            waiting.popleft()
            self.applied = entry.first + entry.count - 1

    def _on_applied(self, entry: Entry, out: list[RoleEffect]) -> None:
        if entry.kind is EntryKind.PRIMARY_CLAIM:
            self.term, self.primary = entry.mid.pe, entry.mid.pid
            out.append(PrimaryChanged(self.term, self.primary))
        elif entry.kind is EntryKind.CHECKPOINT_MARK:
            ledger = self._marks.pop(entry.last)
            if self._checkpoint_server is not None and self._checkpoint_server.begin(entry.last, ledger):
                out.append(TakeCheckpoint(entry.last))

    # -- what is missing ---------------------------------------------------------------------------

    def _fetch(self, now_ns: int, has_moved: bool, out: list[RoleEffect]) -> None:
        """Ask for a gap in the order or a missing payload, after a delay that grows while nothing comes."""
        if not self.known.has_gap and not self._waiting:
            self._fetch_at = None
            return
        if has_moved:
            self._fetch_delay_ms = self._config.fetch_delay_ms
        if self._fetch_at is None or has_moved:
            # Most gaps close by themselves; by the time this is over, most members need not ask.
            spread = self._chance.below(self._fetch_delay_ms * MS)
            self._fetch_at = now_ns + self._fetch_delay_ms * MS + spread
        elif now_ns >= self._fetch_at:
            self._ask(out)
            self._fetch_delay_ms = min(self._fetch_delay_ms * 2, self._config.fetch_delay_ms_max)
            self._fetch_at = now_ns + self._fetch_delay_ms * MS

    def _ask(self, out: list[RoleEffect]) -> None:
        config = self._config
        if self.known.has_gap:
            # Our own commit server may well know: the order often reaches it before the COMMIT is heard.
            to = self._chance.one_of(config.commit_servers)
            out.append(Send(to, m.FetchId(self.known.upto + 1, config.fetch_entries_max)))
        others = tuple(server for server in config.data_servers if server != self._node)
        if self._waiting and others:
            missing = [
                entry
                for entry in list(self._waiting)[: config.fetch_mids_max]
                if entry.kind is EntryKind.DATA and not self._data_server.is_durable(entry.mid)
            ]
            if missing:
                mids = tuple([entry.mid for entry in missing])
                firsts = tuple([entry.first for entry in missing])
                out.append(Send(self._chance.one_of(others), m.FetchData(mids, firsts)))
