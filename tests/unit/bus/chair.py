"""A chair for the sequencer of node 1: its own commit server and member beside it, and nobody else.

What it sends to the others is looked at, and their answers are written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.commit_server import CommitServer, DurableEpochs
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Received,
    RoleEffect,
    Send,
    Synced,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.member import Member
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason
from antiphon.bus.ports import JournalCounter
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.sequencer import Sequencer, State
from antiphon.ids import Mid, make_epoch
from tests.stage import MemoryPayloads, data_of, item_of

OLD = make_epoch(4, 2)
FIRST = make_epoch(1, 1)
RUN = b"r" * 16


def tick(number: int, epoch: int = OLD) -> Entry:
    return Entry(number, 1, EntryKind.TICK, Mid(2, epoch, number), 0, NO_DIGEST)


def ticks(first: int, last: int, epoch: int = OLD) -> tuple[Entry, ...]:
    return tuple(tick(number, epoch) for number in range(first, last + 1))


class Chair:
    """The sequencer of node 1 among `nodes`, its commit server holding `entries` of epoch OLD."""

    def __init__(
        self,
        nodes: tuple[int, ...] = (1,),
        entries: Sequence[Entry] = (),
        committed: int = 0,
        **settings: Any,
    ) -> None:
        self.config = GroupConfig.of("main", nodes, **settings)
        counter = JournalCounter()
        self.epochs = DurableEpochs(counter, OLD if entries else 0)
        log_epoch = OLD if entries else 0
        log = CommitLog(0, entries)
        self.presence = PresenceKeeper(self.config, 1)
        self.commit_server = CommitServer(self.config, 1, counter, self.epochs, log=log, log_epoch=log_epoch)
        self.commit_server.committed_upto = committed
        known, ledger = Prefix(), Ledger()
        self.data_server = DataServer(
            self.config, 1, MemoryPayloads(), counter, known, ledger, self.commit_server
        )
        self.commit_server.stock = self.data_server if self.config.numbers_on_arrival else None
        self.member = Member(self.config, 1, known, ledger, self.data_server, None, Chance(1))
        self.sequencer = Sequencer(
            self.config,
            1,
            self.epochs,
            self.commit_server,
            self.member,
            Chance(2),
            presence=self.presence,
        )
        self.now_ns = 1_000 * MS
        self.epoch = 0

    def step(self, *events: Any) -> list[RoleEffect]:
        return self.sequencer.step(self.now_ns, list(events))

    def hear(self, message: m.BusMessage, sender: int = 1) -> list[RoleEffect]:
        return self.step(Received(sender, message))

    def wait(self) -> list[RoleEffect]:
        """Until the sequencer's next deadline."""
        deadline = self.sequencer.next_deadline_ns()
        assert deadline is not None
        self.now_ns = max(self.now_ns, deadline)
        return self.step()

    def lead(self) -> list[RoleEffect]:
        """The short way for a node that is alone: claim, seal, start."""
        self.step()
        self.epoch = self.epochs.epoch_claimed
        self.step(Synced(1))
        own = self.commit_server
        self.epochs.promised = self.epoch
        seal_ok = m.SealOk(self.epoch, own.log_epoch, own.log.base, own.log.last, own.committed_upto)
        effects = self.hear(seal_ok)
        while not any(isinstance(message, m.EpochStart) for message in sent(effects)):
            (fetch,) = sent(effects)
            assert isinstance(fetch, m.FetchLog)
            page = own.log.from_number(fetch.start, own.log.last, self.config.fetch_entries_max)
            effects = self.hear(m.FetchLogReply(self.epoch, fetch.start, page, own.log.last))
        return self.hear(m.CommitAcknowledge(self.epoch, own.log.last))

    def acknowledge(self, last: int, sender: int = 1) -> list[RoleEffect]:
        return self.hear(m.CommitAcknowledge(self.epoch, last), sender)

    def open(self, pid: int = 1) -> int:
        """Open a producer and commit everything so far; returns its pe."""
        self.hear(m.ProducerOpen(pid, RUN), pid)
        reign = self.sequencer.reign
        assert reign is not None
        self.acknowledge(reign.log.last)
        return reign.log.last

    def report(self, *mids: Mid, server: int = 1, **fields: Any) -> list[RoleEffect]:
        items = tuple(item_of(data_of(mid, **fields)) for mid in mids)
        return self.hear(m.DataReport(self.epoch, items), server)


def sent(effects: list[RoleEffect], to: int | None = None) -> list[m.BusMessage]:
    return [
        effect.message for effect in effects if isinstance(effect, Send) and (to is None or effect.to == to)
    ]


def submitted(effects: list[RoleEffect], to: int = 1) -> list[list[tuple[int, EntryKind]]]:
    """What each submit to a commit server holds."""
    return [
        [(entry.first, entry.kind) for entry in message.entries]
        for message in sent(effects, to)
        if isinstance(message, m.CommitSubmit)
    ]


def numbered(effects: list[RoleEffect]) -> list[tuple[int, int]]:
    """(number, pseq) of each envelope in submits to node 1."""
    return [
        (entry.first, entry.mid.pseq)
        for message in sent(effects, 1)
        if isinstance(message, m.CommitSubmit)
        for entry in message.entries
        if entry.kind is EntryKind.DATA
    ]


def refused(effects: list[RoleEffect]) -> list[tuple[int, NackReason]]:
    return [(n.mid.pseq, n.reason) for n in sent(effects) if isinstance(n, m.ReportNack)]


def stand_among_three(chair: Chair) -> int:
    """Node 1 of three sends its SEAL; returns the epoch."""
    chair.step()
    chair.wait()
    chair.hear(m.PreSealOk(1), 1)
    chair.hear(m.PreSealOk(1), 2)
    chair.epoch = chair.epochs.epoch_claimed
    effects = chair.step(Synced(1))
    committed = chair.commit_server.committed_upto
    assert effects == [Send(server, m.Seal(chair.epoch, committed)) for server in (1, 2, 3)]
    return chair.epoch


def lead_three(heard_ns: int | None = None, **settings: Any) -> Chair:
    """Node 1 of three leads and node 2 has followed; the presence of both others was heard, if not just now,
    then at `heard_ns`.
    """
    chair = Chair(nodes=(1, 2, 3), **settings)
    epoch = stand_among_three(chair)
    here = m.Presence("", "", 0, True, b"", 0)
    said_ns = chair.now_ns if heard_ns is None else heard_ns
    chair.presence.step(said_ns, [Received(2, here), Received(3, here)])
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 1)
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 2)
    chair.epochs.promised = epoch
    chair.acknowledge(0, 1)
    chair.acknowledge(0, 2)
    assert chair.sequencer.state is State.LEADING
    return chair


def keep_leading(chair: Chair, ms: int) -> list[RoleEffect]:
    """For so long nodes 1 and 2 answer whatever goes out."""
    effects: list[RoleEffect] = []
    until = chair.now_ns + ms * MS
    while chair.now_ns < until:
        reign = chair.sequencer.reign
        assert reign is not None
        for server in (1, 2):
            chair.hear(m.HeartbeatAck(chair.epoch, 1 << 40), server)
            chair.acknowledge(reign.log.last, server)
        effects += chair.wait()
    return effects
