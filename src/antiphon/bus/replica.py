"""Replica: all roles of one node for one channel, and the queue between them.

Where it sits
    node  ->  REPLICA( member, data_server, sequencer, commit_server, checkpoint_server )  ->  node

What it promises
    P1  A step ends when nothing is left to say among the roles of this node: only the disk, the clock
        or another node can change anything now.
    P2  `Append` effects come out in index order.
    P3  What roles say to each other on one node is what they would say over the network, in the same
        messages; a role never learns that it talks to its own node.

What it leaves to others
    Other nodes, the producer, the message manager and the client manager are the node's:

        Send(to=another)     goes to that node
        Send(to=this node)   is for the producer of this node (`ReportNack`, `Published`,
                             `ProducerOpened`, `FetchIdReply`); the roles have had their copy
        Multicast            goes to all other nodes and to the other machines of this one; the roles
                             here have had their copy, so it is not handed back to this replica

    Whatever the node's other machines say (`Data`, `ProducerOpen`, `FetchId`) comes in as `Received`.

The first step of a life needs no event: `next_deadline_ns` is 0 until it was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.commit_server import CommitServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    CheckpointWritten,
    Effect,
    Event,
    Learned,
    Multicast,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    StateCaptured,
    Synced,
)
from antiphon.bus.group import GroupConfig
from antiphon.bus.member import Member
from antiphon.bus.planted import NONE
from antiphon.bus.ports import JournalCounter, Payloads
from antiphon.bus.prefix import Prefix
from antiphon.bus.recovery import RecoveredReplica
from antiphon.bus.sequencer import Sequencer, State
from antiphon.bus.superblock import Superblock

_FOR_PRODUCER: Final = (m.ReportNack, m.Published, m.ProducerOpened, m.FetchIdReply)


class _Role(Protocol):
    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]: ...

    def next_deadline_ns(self) -> int | None: ...


class _Seat:
    """A role and what waits for it."""

    __slots__ = ("inbox", "role")

    def __init__(self, role: _Role) -> None:
        self.role = role
        self.inbox: list[RoleEvent] = []


class Replica:
    """The roles of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        run_id: bytes,
        payloads: Payloads,
        counter: JournalCounter,
        recovered: RecoveredReplica | None = None,
        *,
        planted: frozenset[str] = NONE,
    ) -> None:
        self.config = config
        self.node = node
        # The simulator sets this to see, and to pass through the codec, what roles say on this node.
        self.loopback: Callable[[m.BusMessage], m.BusMessage] | None = None
        chance = Chance.of(b"replica", config.group.encode(), run_id)
        found = recovered or RecoveredReplica.empty()
        superblock = Superblock(counter, found.promised, found.epoch_claimed)
        known, ledger = Prefix(found.applied), found.ledger.copy()
        self._superblock = superblock
        self._checkpoint_server = CheckpointServer(config, node, found.checkpoint, found.older_checkpoint_n)
        checkpoint_server = self._checkpoint_server if node in config.checkpoint_servers else None
        self._commit_server = CommitServer(
            config,
            node,
            counter,
            superblock,
            log=found.log,
            log_epoch=found.log_epoch,
            base_ledger=found.base_ledger,
            marks={found.applied: found.ledger.encode()},
            checkpoint_server=checkpoint_server,
            planted=planted,
        )
        self._data_server = DataServer(
            config,
            node,
            payloads,
            counter,
            known,
            ledger,
            found.log,
            recovered=found.envelopes,
            planted=planted,
        )
        self._member = Member(config, node, known, ledger, self._data_server, checkpoint_server, chance)
        self._sequencer = Sequencer(
            config, node, superblock, self._commit_server, self._member, chance, planted=planted
        )
        # Until the first step was taken, it is due.
        self._deadline: int | None = 0
        self._take_seats()

    def _take_seats(self) -> None:
        config, node = self.config, self.node
        member = _Seat(self._member)
        data = _Seat(self._data_server)
        sequencer = _Seat(self._sequencer)
        commit = _Seat(self._commit_server)
        checkpoint = _Seat(self._checkpoint_server)
        stores = (data,) if node in config.data_servers else ()
        votes = (commit,) if node in config.commit_servers else ()
        folds = (checkpoint,) if node in config.checkpoint_servers else ()
        # In the order in which a message meets them, so that one round takes it as far as it can go. The
        # member comes first: a data server that has heard of a commit has nothing to report again.
        self._seats = (member, *stores, sequencer, *votes, *folds)
        self._member_seat = member
        self._data_seat = data
        routes: dict[type[Any], tuple[_Seat, ...]] = {
            m.Data: stores,
            m.FetchData: stores,
            m.FetchDataReply: stores,
            m.ReportNack: stores,
            m.DataReport: (sequencer,),
            m.ProducerOpen: (sequencer,),
            m.CommitAcknowledge: (sequencer,),
            m.HeartbeatAck: (sequencer,),
            m.PreSealOk: (sequencer,),
            m.SealOk: (sequencer,),
            m.SealNack: (sequencer,),
            m.FetchLogReply: (sequencer,),
            m.StartNeed: (sequencer,),
            m.CheckpointReport: (sequencer,),
            m.CommitSubmit: votes,
            m.PreSeal: votes,
            m.Seal: votes,
            m.FetchLog: votes,
            m.EpochStart: votes,
            m.FetchId: votes,
            m.FetchIdReply: (member,),
            m.Commit: (member,),
            m.Heartbeat: (member, *stores, sequencer, *votes, *folds),
        }
        self._routes = routes
        # Only the first COMMIT of an epoch is news to the others. The commit server hears how far all is
        # committed from submits and heartbeats, which come soon enough.
        self._news = (*stores, sequencer, *folds)
        self._epoch_told = 0
        self._sequencer_seat = sequencer
        self._commit_seat = commit
        self._events: dict[type[Any], tuple[_Seat, ...]] = {
            Learned: (*stores, *votes, *folds),
            StateCaptured: folds,
            CheckpointWritten: folds,
            SpaceChanged: (sequencer,),
        }

    # -- what others may ask -----------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the sequencer of this node is doing."""
        return self._sequencer.state

    @property
    def epoch(self) -> int:
        """The highest epoch this node has heard of."""
        return self._sequencer.epoch_seen

    @property
    def promised(self) -> int:
        return self._superblock.promised

    @property
    def log_epoch(self) -> int:
        return self._commit_server.log_epoch

    @property
    def base(self) -> int:
        return self._commit_server.log.base

    @property
    def last(self) -> int:
        return self._commit_server.log.last

    @property
    def committed_upto(self) -> int:
        """Through which number this node knows the order to be committed, without a gap."""
        return self._member.known.upto

    @property
    def stable_checkpoint(self) -> int:
        """The newest number whose checkpoint this node knows to be stable."""
        return self._commit_server.stable_checkpoint

    @property
    def applied(self) -> int:
        return self._member.applied

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def primary(self) -> int:
        """The node that serves the channel, as far as the entries applied here tell; 0 for nobody."""
        return self._member.primary

    @property
    def is_serving(self) -> bool:
        """Does this node lead, and has it applied its own claim?"""
        reign = self._sequencer.reign
        return reign is not None and self._member.term == reign.epoch

    @property
    def unsettled(self) -> int:
        """Envelopes held here that have no committed number yet."""
        return self._data_server.unsettled

    def next_deadline_ns(self) -> int | None:
        """When `step` must be called at the latest, with or without events."""
        return self._deadline

    # -- the queue ---------------------------------------------------------------------------------

    def step(self, now_ns: int, events: list[Event]) -> list[Effect]:
        """Take what happened, return what must be done, in order."""
        out: list[Effect] = []
        seats = self._seats
        for event in events:
            self._take(event)
        if self._deadline is not None and now_ns >= self._deadline:
            for seat in seats:
                deadline = seat.role.next_deadline_ns()
                if not seat.inbox and (deadline is None or deadline <= now_ns):
                    self._run(seat, now_ns, out)
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for seat in seats:
                if seat.inbox:
                    is_quiet = False
                    self._run(seat, now_ns, out)
        deadlines = [deadline for seat in seats if (deadline := seat.role.next_deadline_ns()) is not None]
        self._deadline = min(deadlines, default=None)
        return out

    def _take(self, event: RoleEvent) -> None:
        kind = type(event)
        if kind is Received:
            message = event.message  # type: ignore[union-attr]
            seats = self._routes.get(type(message), ())
            if type(message) is m.Commit and message.epoch > self._epoch_told:
                self._epoch_told = message.epoch
                seats += self._news
        elif kind is Synced:
            self._take_synced(event)
            return
        else:
            seats = self._events.get(kind, ())
        for seat in seats:
            seat.inbox.append(event)

    def _take_synced(self, synced: RoleEvent) -> None:
        """Two of three roles as a rule have nothing to wait for: they are not woken."""
        if self._data_server.is_writing or self._data_seat.inbox:
            self._data_seat.inbox.append(synced)
        if self._commit_server.is_writing or self._commit_seat.inbox:
            self._commit_seat.inbox.append(synced)
        if self._sequencer.is_claiming:
            self._sequencer_seat.inbox.append(synced)

    def _run(self, seat: _Seat, now_ns: int, out: list[Effect]) -> None:
        events, seat.inbox = seat.inbox, []
        for effect in seat.role.step(now_ns, events):
            if isinstance(effect, Send):
                self._send(seat, effect, out)
            elif isinstance(effect, Multicast):
                self._hear(effect.message)
                out.append(effect)
            elif isinstance(effect, Learned):
                self._take(effect)
            else:
                out.append(effect)
        if seat is self._data_seat and self._member.is_waiting and not self._member_seat.inbox:
            # A payload may have become durable for which the member waits.
            self._run(self._member_seat, now_ns, out)

    def _send(self, seat: _Seat, effect: Send, out: list[Effect]) -> None:
        if effect.to != self.node:
            out.append(effect)
            return
        message = effect.message
        # A refusal takes two steps: sequencer to data server, data server to producer.
        if type(message) is not m.ReportNack or seat is not self._data_seat:
            self._hear(message)
            if type(message) is m.ReportNack:
                return
        if type(message) in _FOR_PRODUCER:
            out.append(effect)

    def _hear(self, message: m.BusMessage) -> None:
        if self.loopback is not None:
            message = self.loopback(message)
        self._take(Received(self.node, message))
