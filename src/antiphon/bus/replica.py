"""Replica: all roles of one node for one channel, and the queue between them.

Where it sits
    node  ->  REPLICA( member, data_server, sequencer, commit_server, checkpoint_server, … )  ->  node

What it promises
    REP1  A step ends when the roles of this node have no message left for each other: only the disk, the
          clock or another node can change anything now.
    REP2  `Append` effects come out in index order.
    REP3  The roles of one node exchange the messages they would send over the network; a role never learns
          that another role is on its own node.
    REP4  A message of another node counts as a vote only if it comes from the disk that the configuration
          lists for that node. A node whose own disk is not the listed one votes, reports and stands for
          nothing; it follows as a learner until a configuration lists its disk.
    REP5  A new configuration is in force, for all roles at once, when the entry that orders it is known to be
          committed.

What it leaves to others
    Other nodes, the producer, the message manager and the client manager are the node's:

        Send(to=another)     goes to that node
        Send(to=this node)   is for the producer of this node (`ReportNack`, `Published`,
                             `ProducerOpened`, `ProducerState`, `FetchIdReply`); the roles have had
                             their copy
        Multicast            goes to all other nodes and to the other machines of this one; the roles
                             here have had their copy, so it is not handed back to this replica

    The messages of the node's other machines (`Data`, `ProducerOpen`, `ProducerStateGet`, `FetchId`) come in
    as `Received`.

The first step of a run needs no event: `next_deadline_ns` is 0 until it was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.commit_server import CommitServer, DurableEpochs
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    BeatWanted,
    CheckpointFailed,
    CheckpointRead,
    CheckpointWritten,
    ConfigProposed,
    DataWaits,
    Effect,
    EnvelopesArrived,
    Event,
    Installed,
    Learned,
    LogDamaged,
    Multicast,
    Received,
    Reconfigured,
    ReleaseSpace,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    SpaceHeld,
    StateCaptured,
    StateOpened,
    Synced,
)
from antiphon.bus.group import GroupConfig
from antiphon.bus.holder import Holder
from antiphon.bus.joining import Joiner, Phase
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import Prefix
from antiphon.bus.member import Member
from antiphon.bus.membership import in_force
from antiphon.bus.messages import EntryKind, ServerStatus
from antiphon.bus.ports import JournalCounter, Payloads
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.recovery import RecoveredReplica
from antiphon.bus.reign import NO_BEATS
from antiphon.bus.schema import KINDS, Machine, heard_by
from antiphon.bus.sequencer import Sequencer, State
from antiphon.events import REPLICA_WANTED

_FOR_PRODUCER: Final = heard_by(Machine.PRODUCER)
# Past the constructor of a tuple with names: there are some for every envelope.
_new: Final = tuple.__new__
_VOTES: Final = frozenset([message for message, kind in KINDS.items() if kind.is_vote])


class _Role(Protocol):
    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]: ...

    def next_deadline_ns(self) -> int | None: ...


class _Seat:
    """A role, the events that wait for it, and its deadline after its last step."""

    __slots__ = ("deadline", "inbox", "role")

    def __init__(self, role: _Role) -> None:
        self.role = role
        self.inbox: list[RoleEvent] = []
        self.deadline = role.next_deadline_ns()


_Seats: TypeAlias = tuple[_Seat, ...]


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
        name: str = "",
        disk_id: bytes = b"",
    ) -> None:
        found = recovered or RecoveredReplica.empty()
        config, config_at = in_force(
            config, found.base_ledger, found.log, found.ledger, found.applied, found.log_config
        )
        self.config = config
        self.node = node
        self._disk_id = disk_id
        # A node that is alone has no other to tell of its presence.
        self._name = name
        self._presence = PresenceKeeper(config, node, name) if len(config.nodes) > 1 else None
        # The simulator sets this to watch the messages between the roles of this node, and to pass them
        # through the codec.
        self.loopback: Callable[[m.BusMessage], m.BusMessage] | None = None
        # How many messages were dropped because the sender's disk is not the listed one.
        self.votes_dropped = 0
        self._next_config: tuple[GroupConfig, int] | None = None
        # The node has passed over payloads, and is to keep them now. Only a new run can be given a state:
        # this run goes on as a witness, until the order on its disk tells the next run its role.
        self._lacks_state = False
        # How much the channel has to keep here, for client managers that choose among channels.
        self.load = 0
        self._synced = 0
        self._epoch_told = 0
        # The last heartbeat of the reign, and the last one that a quorum has answered.
        self.beats = NO_BEATS
        # Does this node lead, and send heartbeats more rarely than `heartbeat_ms` (`BeatWanted`)?
        self.is_at_rest = False
        # The checkpoint server's `needed_n` at the end of the last step.
        self._needed_n = 0
        self._numbers_on_arrival = config.numbers_on_arrival
        self._data_waits = False
        # The first step is due at once.
        self._deadline: int | None = 0
        chance = Chance.of(b"replica", config.group.encode(), run_id)
        self._make_roles(found, config_at, payloads, counter, chance)
        self._take_seats()
        self._look_at_disks()

    def _make_roles(
        self,
        found: RecoveredReplica,
        config_at: int,
        payloads: Payloads,
        counter: JournalCounter,
        chance: Chance,
    ) -> None:
        config, node = self.config, self.node
        epochs = DurableEpochs(counter, found.promised, found.epoch_claimed)
        known, ledger = Prefix(found.applied), found.ledger.copy()
        self._epochs = epochs
        self._checkpoint_server = CheckpointServer(
            config, node, found.checkpoints, found.stable_n, found.base
        )
        checkpoint_server = self._checkpoint_server if node in config.checkpoint_servers else None
        self._commit_server = CommitServer(
            config,
            node,
            counter,
            epochs,
            log=found.log,
            log_epoch=found.log_epoch,
            log_config=found.log_config,
            base_ledger=found.base_ledger,
            marks=found.marks,
            checkpoint_server=checkpoint_server,
            presence=self._presence,
            config_at=config_at,
        )
        # A log that was only learned is committed as a whole, and without a sequencer only this node may
        # know.
        known.learn((), self._commit_server.committed_upto)
        self._data_server = DataServer(
            config,
            node,
            payloads,
            counter,
            known,
            ledger,
            self._commit_server,
            recovered=found.envelopes,
            embedded=found.embedded,
        )
        self._commit_server.stock = self._data_server if config.numbers_on_arrival else None
        self._member = Member(config, node, known, ledger, self._data_server, checkpoint_server, chance)
        self._sequencer = Sequencer(
            config,
            node,
            epochs,
            self._commit_server,
            self._member,
            chance,
            presence=self._presence,
        )
        self._holder = Holder(config, node, payloads, self._checkpoint_server)
        self._joiner = Joiner(config, node, payloads, counter, self._member, self._checkpoint_server, chance)

    def _take_seats(self) -> None:
        config, node = self.config, self.node
        is_alone = len(config.nodes) == 1
        self._member_seat = _Seat(self._member)
        self._data_seat = _Seat(self._data_server)
        self._sequencer_seat = _Seat(self._sequencer)
        self._commit_seat = _Seat(self._commit_server)
        stores = (self._data_seat,) if node in config.data_servers else ()
        folds = (_Seat(self._checkpoint_server),) if node in config.checkpoint_servers else ()
        # A lone node has no other to give a checkpoint to or to take one from.
        holds = (_Seat(self._holder),) if folds and not is_alone else ()
        self._join_seats: _Seats = (_Seat(self._joiner),) if not is_alone else ()
        self._presence_seat = _Seat(self._presence) if self._presence is not None else None
        others = (self._presence_seat,) if self._presence_seat is not None else ()
        # In the order in which a message meets them, so that one round takes it as far as it can go. The
        # member comes first: a data server that has heard of a commit has nothing to report again.
        self._seats = (
            self._member_seat,
            *stores,
            self._sequencer_seat,
            self._commit_seat,
            *folds,
            *holds,
            *self._join_seats,
            *others,
        )
        self._events: dict[type[Any], _Seats] = {
            Learned: (*stores, self._commit_seat, *folds),
            EnvelopesArrived: (self._sequencer_seat,),
            Installed: (self._member_seat, *stores, self._commit_seat),
            StateCaptured: folds,
            StateOpened: self._join_seats,
            CheckpointWritten: (*folds, *self._join_seats),
            CheckpointFailed: folds,
            CheckpointRead: holds,
            SpaceChanged: (self._sequencer_seat, self._commit_seat, *holds),
            SpaceHeld: (self._commit_seat,),
            ConfigProposed: (self._sequencer_seat,),
            BeatWanted: (self._sequencer_seat,),
        }
        if self._lacks_state:
            self._seats = (self._member_seat, self._commit_seat, *others)
            self._events = {kind: self._taken(seats) for kind, seats in self._events.items()}
        self._lay_routes(folds, holds, others)
        # A role without a seat is never stepped: its events would pile up.
        self._stores, self._join_seats = self._taken((self._data_seat,)), self._taken(self._join_seats)

    def _taken(self, seats: _Seats) -> _Seats:
        return tuple([seat for seat in seats if seat in self._seats])

    def _lay_routes(self, folds: _Seats, holds: _Seats, others: _Seats) -> None:
        """The seats that receive each message: those of the roles that its class names, if taken."""
        commit = (self._commit_seat,)
        seats: dict[Machine, _Seats] = {
            Machine.MEMBER: (self._member_seat,),
            Machine.DATA_SERVER: (self._data_seat,) if self.node in self.config.data_servers else (),
            Machine.SEQUENCER: (self._sequencer_seat,),
            Machine.COMMIT_SERVER: commit,
            Machine.VOTER: commit if self.node in self.config.commit_servers else (),
            # A commit server without a vote learns the order all the same, to be ready to vote.
            Machine.LEARNER: commit if self._is_learner else (),
            Machine.CHECKPOINT_SERVER: folds,
            Machine.HOLDER: holds,
            Machine.JOINER: self._join_seats,
            Machine.PRESENCE: others,
        }

        def taken(listeners: frozenset[Machine]) -> _Seats:
            return self._taken(tuple([seat for one in seats if one in listeners for seat in seats[one]]))

        self._routes = {message: taken(kind.listeners) for message, kind in KINDS.items()}
        self._seldom = {message: taken(kind.sometimes) for message, kind in KINDS.items() if kind.sometimes}

    # -- disks and configurations ------------------------------------------------------------------

    @property
    def is_amnesiac(self) -> bool:
        """Is our disk another than the configuration lists, so that no vote of this node counts?"""
        listed = self.config.disk_of(self.node)
        return bool(listed) and self._disk_id != listed

    @property
    def _is_learner(self) -> bool:
        return self.node not in self.config.commit_servers or self.is_amnesiac

    def _look_at_disks(self) -> None:
        nodes = [node for node in self.config.nodes if self.config.disk_of(node)]
        self._listed = {node: self.config.disk_of(node) for node in nodes}
        self._is_mute = self.is_amnesiac
        if self._is_mute:
            self._commit_server.set_status(ServerStatus.AMNESIA)

    def _note_config(self, learned: Learned) -> None:
        for entry in learned.notable:
            if entry.kind is EntryKind.CONFIG:
                config = GroupConfig.decode(entry.detail)
                if config.config_id > self.config.config_id:
                    self._next_config = (config, entry.last)

    def _note_config_before(self, installed: Installed) -> None:
        """The entry of a configuration may lie before the checkpoint; the ledger has kept it."""
        encoded = Ledger.decode(installed.ledger).config
        config = GroupConfig.decode(encoded) if encoded else self.config
        if config.config_id > self.config.config_id:
            self._next_config = (config, installed.n)

    def _reconfigure(self, out: list[Effect]) -> None:
        """Go over to the configuration that the order has come to (REP5); no role has an event left."""
        assert self._next_config is not None, "there is nothing to go over to"
        (config, at), self._next_config = self._next_config, None
        self.config = config
        checkpoint_server = self._checkpoint_server if self.node in config.checkpoint_servers else None
        self._member.reconfigure(config, checkpoint_server)
        # A node that passed over payloads has no state, and in this run no more use for one than a witness.
        self._numbers_on_arrival = config.numbers_on_arrival
        self._commit_server.stock = self._data_server if config.numbers_on_arrival else None
        self._commit_server.reconfigure(config, at, checkpoint_server if self._member.delivers else None)
        if self._presence is None and len(config.nodes) > 1:
            self._presence = PresenceKeeper(config, self.node, self._name)
            self._commit_server.presence = self._sequencer.presence = self._presence
        for role in (
            self._data_server,
            self._sequencer,
            self._checkpoint_server,
            self._holder,
            self._joiner,
            self._presence,
        ):
            if role is not None:
                role.reconfigure(config)
        was_lacking, self._lacks_state = self._lacks_state, False
        if self.node in config.data_servers and not self._member.delivers:
            self._lacks_state = True
            if not was_lacking:
                out.append(Alarm(REPLICA_WANTED(configuration=config.config_id)))
        self._take_seats()
        self._look_at_disks()
        out.append(Reconfigured(config))

    # -- what others may ask -----------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._sequencer.state

    @property
    def epoch(self) -> int:
        """The highest epoch this node has heard of."""
        return self._sequencer.epoch_seen

    @property
    def promised(self) -> int:
        return self._epochs.promised

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
        """The node that serves the channel, as far as the entries applied here tell; 0 for none."""
        return self._member.primary

    @property
    def is_serving(self) -> bool:
        """Does this node lead, and has it applied its own claim?"""
        reign = self._sequencer.reign
        return reign is not None and self._member.term == reign.epoch

    @property
    def claimed_after(self) -> int:
        """The last number before the claim of this node; 0 if the node does not lead."""
        reign = self._sequencer.reign
        return reign.adopted_last if reign is not None else 0

    @property
    def epoch_led(self) -> int:
        """The epoch that this run of the node leads; 0 if it leads none."""
        reign = self._sequencer.reign
        return reign.epoch if reign is not None else 0

    @property
    def presence(self) -> PresenceKeeper | None:
        """The other nodes as far as they were heard; None on a node that is alone."""
        return self._presence

    @property
    def is_degraded(self) -> bool:
        """Does the channel go on with fewer copies than it should have, since data servers are silent?"""
        return 0 < self._member.ledger.data_quantity < self.config.data_quantity

    @property
    def is_synchronized(self) -> bool:
        """Does this node follow a sequencer, and keep up with it?"""
        return self._presence is not None and self._presence.is_synchronized

    def is_spare(self, now_ns: int) -> bool:
        """Are all nodes there, and enough of them without this node for every acknowledgement?

        Then no node waits for it as a rule. The primary and the lowest numbers count first, so that all nodes
        judge alike.
        """
        presence, config = self._presence, self.config
        if presence is None or not (self.is_synchronized and self._sequencer.is_led) or self.epoch_led:
            return False
        others = {*config.data_servers, *config.commit_servers} - {self.node}
        if not all(presence.keeps_up(one, now_ns) for one in others):
            return False
        first = {one for one in others if one < self.node or one == self.primary}
        kinds = (config.data_servers, config.data_quantity), (config.commit_servers, config.commit_quantity)
        return all(len(first.intersection(kind)) >= enough for kind, enough in kinds if self.node in kind)

    @property
    def must_begin_anew(self) -> bool:
        """Is this node to keep state, and can only another run of it do so?"""
        return self._lacks_state and self._commit_server.is_recorded(self._synced)

    @property
    def is_joining(self) -> bool:
        return self._joiner.is_busy

    @property
    def join_phase(self) -> Phase:
        return self._joiner.phase

    @property
    def unsettled(self) -> int:
        return self._data_server.unsettled

    @property
    def rereported(self) -> int:
        return self._data_server.rereported

    def next_deadline_ns(self) -> int | None:
        """When `step` must be called at the latest, with or without events."""
        return self._deadline

    # -- the queue ---------------------------------------------------------------------------------

    def step(self, now_ns: int, events: list[Event]) -> list[Effect]:
        out: list[Effect] = []
        presence, heard = self._presence, 0
        for event in events:
            if presence is not None and type(event) is Received and event.sender != heard:
                # Whatever a node says, it lives.
                heard = event.sender
                presence.hear(now_ns, heard)
            self._take(event)
        if self._deadline is not None and now_ns >= self._deadline:
            for seat in self._seats:
                if not seat.inbox and (seat.deadline is None or seat.deadline <= now_ns):
                    self._run(seat, now_ns, out)
        self._settle(now_ns, out)
        while self._next_config is not None:
            self._reconfigure(out)
            for seat in self._seats:
                self._run(seat, now_ns, out)
            self._settle(now_ns, out)
        reign = self._sequencer.reign
        waits = self._numbers_on_arrival and reign is None and self._sequencer.is_led
        if waits != self._data_waits:
            self._data_waits = waits
            out.append(DataWaits(waits))
        self.beats = reign.beats if reign is not None else NO_BEATS
        self.is_at_rest = reign is not None and reign.is_at_rest
        if self._presence_seat is not None:
            self._tell_standing(self._presence_seat)
        if self._checkpoint_server.needed_n or self._needed_n:
            # Only then the deadline of the joiner depends on the other roles.
            self._needed_n = self._checkpoint_server.needed_n
            for seat in self._join_seats:
                seat.deadline = seat.role.next_deadline_ns()
        earliest: int | None = None
        for seat in self._seats:
            deadline = seat.deadline
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        self._deadline = earliest
        return out

    def _settle(self, now_ns: int, out: list[Effect]) -> None:
        """Step the roles until none has an event left (REP1)."""
        seats = self._seats
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for seat in seats:
                if seat.inbox:
                    is_quiet = False
                    self._run(seat, now_ns, out)

    def _tell_standing(self, seat: _Seat) -> None:
        presence, member, sequencer = self._presence, self._member, self._sequencer
        assert presence is not None, "a node that is alone told its standing"
        before = presence.role, presence.is_synchronized
        if sequencer.reign is not None and member.term == sequencer.reign.epoch:
            presence.role = "primary"
        else:
            presence.role = "replica" if self.node in self.config.data_servers else "witness"
        presence.applied = member.applied
        presence.load = self.load
        behind = member.known.told_upto - member.applied
        is_joining = self._joiner.phase is not Phase.IDLE
        if self._lacks_state:
            presence.is_synchronized = False
        elif self._checkpoint_server.needed_n:
            # The next run would begin without anything that is applied now.
            presence.is_synchronized = False
        elif not behind and sequencer.is_led and not is_joining:
            presence.is_synchronized = True
        elif behind > self.config.window_entries or is_joining:
            # Not at the first missing number: under load some entry is always on its way.
            presence.is_synchronized = False
        if before != (presence.role, presence.is_synchronized):
            seat.deadline = presence.next_deadline_ns()

    def _take(self, event: RoleEvent) -> None:
        kind = type(event)
        if kind is Received:
            message = event.message  # type: ignore[union-attr]
            if self._listed and type(message) in _VOTES and not self._comes_from_its_disk(event):
                self.votes_dropped += 1
                return
            seats = self._routes[type(message)]
            if type(message) is m.Commit and message.epoch > self._epoch_told:
                # Only the first COMMIT of an epoch is news to the others. The commit server hears how far
                # all is committed from submits and heartbeats, which come soon enough.
                self._epoch_told = message.epoch
                seats += self._seldom[m.Commit]
            elif (
                type(message) is m.CommitSubmit
                and (self._data_server.writing or self._data_seat.inbox)
                and event.sender != self.node  # type: ignore[union-attr]
            ):
                # The data server need not report an envelope that has its number by now.
                seats += self._seldom[m.CommitSubmit]
        elif kind is Synced:
            self._take_synced(event)
            return
        elif kind is LogDamaged:
            self._commit_server.set_status(ServerStatus.DAMAGED)
            # A sequencer that leads has to stop.
            seats = (self._sequencer_seat,)
        else:
            seats = self._events.get(kind, ())
        for seat in seats:
            seat.inbox.append(event)

    def _take_installed(self, installed: Installed) -> None:
        if installed.n > self._member.applied:
            self._take(installed)
        else:
            # Only the log moves: this node has applied more.
            self._commit_seat.inbox.append(installed)
        self._note_config_before(installed)

    def _comes_from_its_disk(self, event: RoleEvent) -> bool:
        assert type(event) is Received, "only what was received comes from somewhere"
        listed = self._listed.get(event.sender)
        return listed is None or event.disk_id == listed

    def _take_synced(self, synced: RoleEvent) -> None:
        """Step only the roles that wait for the disk: as a rule two of three do not."""
        self._synced = synced.index  # type: ignore[assignment, union-attr]
        if self._stores and (self._data_server.writing or self._data_seat.inbox):
            self._data_seat.inbox.append(synced)
        commit_server = self._commit_server
        if commit_server.held or self._commit_seat.inbox:
            self._commit_seat.inbox.append(synced)
        candidacy = self._sequencer.candidacy
        if candidacy is not None and not candidacy.has_claimed and self._sequencer_seat in self._seats:
            self._sequencer_seat.inbox.append(synced)
        if self._joiner.phase is not Phase.IDLE and self._joiner.is_writing:
            for seat in self._join_seats:
                seat.inbox.append(synced)

    def _run(self, seat: _Seat, now_ns: int, out: list[Effect]) -> None:
        events, seat.inbox = seat.inbox, []
        role = seat.role
        for effect in role.step(now_ns, events):
            kind = type(effect)
            if kind is Append or kind is Apply:
                # One for each envelope.
                out.append(effect)  # type: ignore[arg-type]
            elif kind is Send:
                self._send(seat, effect, out)  # type: ignore[arg-type]
            elif kind is Multicast:
                self._hear(effect.message)  # type: ignore[union-attr]
                out.append(effect)  # type: ignore[arg-type]
            elif isinstance(effect, Learned):
                # Before everything else that waits: an envelope that arrives with its number is wanted, and
                # an envelope whose number is old is not.
                for told in self._events[Learned]:
                    told.inbox.insert(0, effect)
                if effect.notable:
                    self._note_config(effect)
            elif isinstance(effect, EnvelopesArrived):
                self._take(effect)
            elif isinstance(effect, Installed):
                self._take_installed(effect)
            else:
                if type(effect) is ReleaseSpace:
                    self._release()
                out.append(effect)
        seat.deadline = role.next_deadline_ns()
        if seat is self._data_seat:
            if self._member.waiting and not self._member_seat.inbox:
                # A payload may have become durable for which the member waits.
                self._run(self._member_seat, now_ns, out)
            if self._commit_server.waits_for_envelopes and not self._commit_seat.inbox:
                self._run(self._commit_seat, now_ns, out)
        elif seat is self._member_seat:
            # An envelope that the member took need not be reported again.
            self._data_seat.deadline = self._data_server.next_deadline_ns()
            if not self._stores:
                self._data_server.rest(self._synced)

    def _release(self) -> None:
        """The base moved: envelopes that the data server keeps in vain must not keep their segments."""
        commit_server = self._commit_server
        if commit_server.log.base <= self._member.applied:
            if not self._stores:
                self._data_server.rest(self._synced)
            self._data_server.release(commit_server.base_ledger)

    def _send(self, seat: _Seat, effect: Send, out: list[Effect]) -> None:
        if self._is_mute and type(effect.message) in _VOTES:
            return
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
        self._take(_new(Received, (self.node, message, self._disk_id)))
