"""Joiner: brings a node that is new, wiped or far behind to a checkpoint of another, while the channel runs.

Where it sits
    holder of another node  ->  JOINER  ->  journal, message manager, checkpoint file  ->  member

What it promises
    JOI1  A joiner begins only when the node cannot go on by itself: the others' logs do not reach back to its
          applied number, or missing entries do not come; or they do not reach back to its own log, and it has
          no checkpoint to begin a log with, although it has applied everything. Then its state stays.
    JOI2  Nothing of another node is believed before all of it is here and verified: every piece by its
          checksum, the checkpoint by its digest, the digest by the committed CHECKPOINT_STABLE that names it,
          by as many holders as make one stable or by a holder whose own log begins there, the state by the
          message manager, every envelope by its own.
    JOI3  A crash leaves the old state or the new one. Copies of envelopes mean nothing until a checkpoint
          file refers to them; that file appears whole, when everything it refers to is durable, and the node
          stands behind it only then.
    JOI4  The joiner asks backups before the sequencer, one holder at a time, and goes on where it stopped. A
          holder that dies, lacks a record or has moved on to a newer checkpoint costs time only. The joiner
          also asks nodes that go by a later configuration: no node of ours may have a state any more. A
          checkpoint for which no proof comes is given up for the one with which its holder's log begins.
    JOI5  The joiner keeps in touch with its holder until the node has almost caught up, so that the holder
          keeps its log from the checkpoint on: otherwise a busy channel could outrun every joiner.

What it leaves to others
    The member fetches the entries behind the checkpoint, and the commit server begins its log there
    (`Installed`). The holder keeps the checkpoint meanwhile.

The effects and their answers

    Append(index, CopyRecord)           write it like data; `Payloads.copied(index)` tells where it lies
    ReadCheckpoint(n, offset, length, to)   ->  CheckpointRead(n, offset, data or None, to)
    HoldCheckpoints(n)                  keep files and segments of checkpoints >= n until told again; 0: none
    WriteCheckpoint(...)                ->  CheckpointWritten(n) or, for want of room, CheckpointFailed(n)
    OpenState(n, state)                 ->  StateOpened(n, digest, places)             from the application
    MoveState(n, ((old, new), ...))     ->  StateCaptured(n, digest, state, segments)  from the application
    InstallState(n)                     the opened state is the state: applied = n, no consumers
    DropState()                         forget the opened state
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from xxhash import xxh3_128_digest

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer, CheckpointState
from antiphon.bus.effects import (
    Alarm,
    Append,
    CheckpointWritten,
    CopyRecord,
    DropState,
    Installed,
    InstallState,
    MoveState,
    OpenState,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    StateOpened,
    Synced,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.member import Member
from antiphon.bus.messages import Entry, EntryKind, Place, digest_of
from antiphon.bus.ports import JournalCounter, Location, Payloads, identity_of
from antiphon.bus.schema import Machine, not_for
from antiphon.errors import ProtocolError
from antiphon.events import CHECKPOINT_REFUSED, STATES_DIFFER, LoggedEvent
from antiphon.ids import U64_MAX, Mid, epoch_node

_PIECES_AT_ONCE: Final = 4
_ANSWERS_AT_ONCE: Final = 2
# In units of the longest delay between two questions of a member: without an applied entry for so long,
# though others have a checkpoint beyond, the joiner begins; without an answer it gives a holder up.
_STALL: Final = 4
_PATIENCE: Final = 4


class Phase(Enum):
    """The phases of a joiner."""

    IDLE = "idle"
    ASKING = "asking"
    FETCHING = "fetching"
    COPYING = "copying"
    WRITING = "writing"
    FOLLOWING = "following"


class _CheckpointTransfer:
    def __init__(self, holder: int, n: int, digest: bytes, size: int, piece_bytes: int) -> None:
        self.holder = holder
        self.n = n
        self.digest = digest
        self.size = size
        # A holder of another configuration may send smaller pieces than our configuration says.
        self.piece_bytes = piece_bytes
        self.pieces: dict[int, bytes] = {}
        # Known once all pieces are here, and opened by the message manager once it is verified.
        self.state: CheckpointState | None = None
        self.is_opened = False
        # Places of the holder's journal that are still to be asked for, and the records that were copied.
        self.wanted: deque[Place] = deque()
        self.copies: dict[Place, int] = {}

    def is_same(self, holder: int, chunk: m.CheckpointChunk) -> bool:
        mine = (self.holder, self.n, self.digest, self.size)
        return mine == (holder, chunk.n, chunk.digest, chunk.size)


class Joiner:
    """The joiner of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        payloads: Payloads,
        counter: JournalCounter,
        member: Member,
        checkpoint_server: CheckpointServer,
        chance: Chance,
    ) -> None:
        self._config = config
        self._node = node
        self._payloads = payloads
        self._counter = counter
        # The member is read only; the checkpoint server writes the new checkpoint.
        self._member = member
        self._checkpoint_server = checkpoint_server
        self._chance = chance
        # A witness keeps the order and no state: it needs the ledger only.
        self._keeps_state = node in config.checkpoint_servers
        self.phase = Phase.IDLE
        self._epoch = 0
        # Nodes that know of a later configuration than we do, and may know holders that ours does not list.
        self._informed: dict[int, bool] = {}
        # Where the logs of others begin, as they last said, and the newest checkpoint told to be stable.
        self._bases: dict[int, int] = {}
        self._stable_told = 0
        # Since when nothing was applied, and since when the log lacks a checkpoint to begin with.
        self._applied = member.applied
        self._moved_at: int | None = None
        self._needs_since: int | None = None
        # The node that is asked, and those that could not help in this round.
        self._holder = 0
        self._tried: list[int] = []
        self._transfer: _CheckpointTransfer | None = None
        # Questions without an answer, and when they were last sent: offsets, and lists of places.
        self._pieces_asked: dict[int, int] = {}
        self._places_asked: dict[tuple[Place, ...], int] = {}
        # When to ask again, since when the holder has sent nothing, and how long an answer usually takes.
        self._look_at = 0
        self._brought_at = 0
        self._answer_ns = self._delay_ns
        self._is_opened = False
        # Checkpoints that the committed order calls stable, and the digests that nodes claim to have.
        self._stables: dict[int, bytes] = {}
        self._offers: dict[int, tuple[int, bytes]] = {}
        self._search_from = 0
        # Index of the written copy of each envelope: another holder's places may name the same envelopes.
        self._copied: dict[Mid, int] = {}
        self._copy_index = 0
        self._synced = 0

    @property
    def is_busy(self) -> bool:
        return self.phase is not Phase.IDLE

    @property
    def is_writing(self) -> bool:
        return self._copy_index > self._synced

    def reconfigure(self, config: GroupConfig) -> None:
        self._config = config
        self._keeps_state = self._node in config.checkpoint_servers
        self._informed.clear()
        self._bases = {node: base for node, base in self._bases.items() if node in config.commit_servers}

    def next_deadline_ns(self) -> int | None:
        return self._begins_at() if self.phase is Phase.IDLE else self._look_at

    @property
    def _delay_ns(self) -> int:
        return self._config.fetch_delay_ms_max * MS

    @property
    def _again_ns(self) -> int:
        return max(min(4 * self._answer_ns, self._delay_ns // 2), self._config.heartbeat_ms * MS)

    def _note_answer(self, now_ns: int, asked_at: int) -> None:
        self._answer_ns = (3 * self._answer_ns + now_ns - asked_at) // 4
        self._brought_at = now_ns

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        for event in events:
            match event:
                case Received():
                    self._on_received(now_ns, event.sender, event.message, out)
                case Synced(index):
                    self._synced = max(self._synced, index)
                case StateOpened():
                    self._on_opened(now_ns, event, out)
                case CheckpointWritten(n):
                    self._on_written(n, out)
                case _:
                    pass
        self._watch(now_ns)
        if self.phase is Phase.IDLE:
            begins_at = self._begins_at()
            if begins_at is not None and now_ns >= begins_at:
                self._ask_next(now_ns, out)
        else:
            self._go_on(now_ns, out)
        return out

    # -- is a checkpoint needed? -------------------------------------------------------------------

    def _watch(self, now_ns: int) -> None:
        applied = self._member.applied
        if applied > self._applied or self._moved_at is None:
            self._applied, self._moved_at = applied, now_ns
        if not self._needed_for_log:
            self._needs_since = None
        elif self._needs_since is None:
            self._needs_since = now_ns

    def _begins_at(self) -> int | None:
        """The time to begin, if nothing is applied until then (JOI1)."""
        if self._moved_at is None:
            return None
        if self._needed_for_log:
            # If a sequencer leads, a mark will come soon, and with it a checkpoint of our own.
            since = self._needs_since
            return 0 if since is None else since + self._config.suspicion_ms * MS
        beyond = [base > self._applied for base in self._bases.values()]
        if beyond and all(beyond):
            # Another node's log may reach further back; by then the member has asked several.
            return self._moved_at + self._config.suspicion_ms * MS
        if any(beyond) or self._stable_told > self._applied:
            return self._moved_at + _STALL * self._delay_ns
        return None

    @property
    def _needed_for_log(self) -> int:
        """The number from which on our log, but not our state, needs a checkpoint; 0 if it needs none."""
        needed = self._checkpoint_server.needed_n
        return needed if needed <= self._member.applied else 0

    @property
    def _needed(self) -> int:
        """The number before which a checkpoint would not help: no log goes on from there."""
        if self._needed_for_log:
            return self._needed_for_log
        bases = [base for base in self._bases.values() if base > self._applied]
        return max(min(bases, default=0), self._applied + 1)

    # -- what is heard -----------------------------------------------------------------------------

    def _on_received(self, now_ns: int, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        match message:
            case m.Heartbeat():
                self._epoch = max(self._epoch, message.epoch)
                self._stable_told = max(self._stable_told, message.stable_checkpoint)
            case m.FetchIdReply(entries, committed_upto, base):
                self._on_order(sender, base, entries)
                if self.is_busy and entries and entries[-1].last < committed_upto:
                    self._search(sender, entries, out)
            case m.FetchRangeReply(entries=entries, base=base):
                self._on_order(sender, base, entries)
            case m.SealOk(base=base):
                self._on_order(sender, base, ())
            case m.Presence(config_id=config_id):
                if config_id > self._config.config_id:
                    self._informed[sender] = True
            case m.CheckpointChunk():
                if sender in self._holders:
                    self._on_chunk(now_ns, sender, message, out)
            case m.StoredReply():
                if self._transfer is not None and sender == self._transfer.holder:
                    self._on_stored(now_ns, self._transfer, message, out)
            case _:
                not_for(Machine.JOINER, message)

    def _on_order(self, sender: int, base: int, entries: tuple[Entry, ...]) -> None:
        if sender in self._log_keepers:
            self._bases[sender] = base
        if self.is_busy:
            for entry in entries:
                if entry.kind is EntryKind.CHECKPOINT_STABLE:
                    stable = StableDetail.decode(entry.detail)
                    self._stables[stable.n] = stable.digest

    # -- whom to ask -------------------------------------------------------------------------------

    @property
    def _holders(self) -> tuple[int, ...]:
        """The nodes that may have a checkpoint: a replaced disk knows only the first configuration (JOI4)."""
        return self._others((*self._config.checkpoint_servers, *self._informed))

    @property
    def _log_keepers(self) -> tuple[int, ...]:
        return self._others((*self._config.commit_servers, *self._informed))

    def _others(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([node for node in dict.fromkeys(nodes) if node != self._node])

    def _ask_next(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Ask another holder for its checkpoint; the sequencer last (JOI4)."""
        self.phase = Phase.ASKING
        self._pieces_asked.clear()
        if self._transfer is not None:
            for places in reversed(self._places_asked):
                self._transfer.wanted.extendleft(reversed(places))
        self._places_asked.clear()
        self._brought_at = now_ns
        self._look_at = now_ns + self._again_ns
        leader = epoch_node(self._epoch)
        left = [server for server in self._holders if server not in self._tried]
        backups = tuple([server for server in left if server != leader])
        if not left:
            # No node could help. Before the next round there is a pause.
            self._tried.clear()
            self._holder = 0
            self._checkpoint_server.vain_n = self._needed_for_log
            return
        self._holder = self._chance.one_of(backups or tuple(left))
        out.append(Send(self._holder, m.CheckpointGet(0, 0)))

    def _give_up_on(self, holder: int, now_ns: int, out: list[RoleEffect]) -> None:
        self._tried.append(holder)
        self._ask_next(now_ns, out)

    def _rest(self, out: list[RoleEffect]) -> None:
        if self._is_opened:
            self._is_opened = False
            out.append(DropState())
        self.phase = Phase.IDLE
        self._transfer = None
        self._tried.clear()
        self._pieces_asked.clear()
        self._places_asked.clear()
        self._stables.clear()
        self._offers.clear()
        self._copied.clear()
        self._copy_index = 0
        # The last copies may have been taken in this very step, or wait for room on the disk.
        self._payloads.forget_copies(self._counter.last)

    # -- the checkpoint ----------------------------------------------------------------------------

    def _on_chunk(self, now_ns: int, sender: int, chunk: m.CheckpointChunk, out: list[RoleEffect]) -> None:
        if not self.is_busy:
            return
        if chunk.n:
            self._offers[sender] = (chunk.n, chunk.digest)
        if sender != self._holder or self.phase not in (Phase.ASKING, Phase.FETCHING):
            return
        transfer = self._transfer
        if chunk.data and transfer is not None and transfer.is_same(sender, chunk):
            self._take_piece(now_ns, transfer, chunk)
        elif not chunk.data and (
            self.phase is Phase.ASKING or (transfer is not None and transfer.n != chunk.n)
        ):
            self._on_offer(now_ns, sender, chunk, out)

    def _on_offer(self, now_ns: int, sender: int, chunk: m.CheckpointChunk, out: list[RoleEffect]) -> None:
        if chunk.n < self._needed or not chunk.size:
            self._give_up_on(sender, now_ns, out)
            return
        if self._transfer is None or not self._transfer.is_same(sender, chunk):
            piece_bytes = self._config.checkpoint_piece_bytes
            self._transfer = _CheckpointTransfer(sender, chunk.n, chunk.digest, chunk.size, piece_bytes)
        self._search_from = chunk.n + 1
        self._pieces_asked.clear()
        self._brought_at = now_ns
        self.phase = Phase.FETCHING

    def _take_piece(self, now_ns: int, transfer: _CheckpointTransfer, chunk: m.CheckpointChunk) -> None:
        length = min(transfer.piece_bytes, transfer.size - chunk.offset)
        if chunk.offset not in self._pieces_asked:
            return
        # The piece may be asked for again at once: a piece whose checksum is wrong is not kept.
        asked_at = self._pieces_asked.pop(chunk.offset)
        if xxh3_128_digest(chunk.data) != chunk.checksum:
            return
        self._note_answer(now_ns, asked_at)
        if len(chunk.data) < length:
            transfer.piece_bytes = len(chunk.data)
            transfer.pieces.clear()
            self._pieces_asked.clear()
        else:
            transfer.pieces[chunk.offset] = bytes(chunk.data[:length])

    def _fetch(self, now_ns: int, transfer: _CheckpointTransfer, out: list[RoleEffect]) -> None:
        """Keep a few questions on their way; when all pieces are here, verify them."""
        for offset in range(0, transfer.size, transfer.piece_bytes):
            if len(self._pieces_asked) == _PIECES_AT_ONCE:
                return
            if offset not in transfer.pieces and offset not in self._pieces_asked:
                self._pieces_asked[offset] = now_ns
                out.append(Send(transfer.holder, m.CheckpointGet(transfer.n, offset)))
        if self._pieces_asked:
            return
        if transfer.state is None:
            transfer.state = _read(transfer)
            if transfer.state is None:
                problem = f"a checkpoint at {transfer.n} that is none"
                event = CHECKPOINT_REFUSED(member=transfer.holder, problem=problem)
                self._refuse(now_ns, transfer, event, out)
                return
            self._look_for_proof(out)
        known = self._stables.get(transfer.n)
        if known is not None and known != transfer.digest:
            problem = f"node {transfer.holder} holds another state after {transfer.n} than is stable"
            self._refuse(now_ns, transfer, STATES_DIFFER(problem=f"{problem}; it is not taken"), out)
        elif known is None and not self._is_vouched_for(transfer):
            return
        elif not self._keeps_state:
            self._stand_behind(transfer, out)
        else:
            self.phase = Phase.COPYING
            if not transfer.is_opened:
                self._is_opened = True
                out.append(OpenState(transfer.n, transfer.state.manager_state))

    def _refuse(
        self, now_ns: int, transfer: _CheckpointTransfer, event: LoggedEvent, out: list[RoleEffect]
    ) -> None:
        out.append(Alarm(event))
        self._transfer = None
        self._give_up_on(transfer.holder, now_ns, out)

    # -- is it the stable one? ---------------------------------------------------------------------

    def _look_for_proof(self, out: list[RoleEffect]) -> None:
        """Ask commit servers for the entry that calls it stable, and other nodes for their digests (JOI2)."""
        assert self._transfer is not None, "nothing is to be proved"
        config, n = self._config, self._transfer.n
        if n not in self._stables and self._log_keepers:
            question = m.FetchId(self._search_from, config.fetch_entries_max)
            out.append(Send(self._chance.one_of(self._log_keepers), question))
        for server in self._holders:
            if server != self._transfer.holder:
                out.append(Send(server, m.CheckpointGet(n, self._transfer.size)))

    def _search(self, sender: int, entries: tuple[Entry, ...], out: list[RoleEffect]) -> None:
        """Ask for the next page: the entry may stand further on."""
        transfer = self._transfer
        if transfer is None or transfer.state is None or transfer.n in self._stables:
            return
        if entries[0].first <= self._search_from <= entries[-1].last:
            self._search_from = entries[-1].last + 1
            out.append(Send(sender, m.FetchId(self._search_from, self._config.fetch_entries_max)))

    def _is_vouched_for(self, transfer: _CheckpointTransfer) -> bool:
        """Do enough nodes hold the same, or does the holder's own log begin there? A base is always stable.

        The second case helps a group in which no node leads because we lag, so that no entry is committed.
        """
        if self._bases.get(transfer.holder, 0) >= transfer.n:
            return True
        same = [offer for offer in self._offers.values() if offer == (transfer.n, transfer.digest)]
        return len(same) >= self._config.checkpoint_quantity

    # -- the envelopes it refers to ----------------------------------------------------------------

    def _on_opened(self, now_ns: int, opened: StateOpened, out: list[RoleEffect]) -> None:
        transfer = self._transfer
        if transfer is None or transfer.n != opened.n or transfer.state is None:
            return
        if opened.digest != transfer.state.manager_digest:
            problem = f"the state after {opened.n} from node {transfer.holder} is not what it says"
            self._refuse(now_ns, transfer, STATES_DIFFER(problem=f"{problem}; it is not taken"), out)
            return
        transfer.is_opened = True
        transfer.wanted = deque(Place(*place) for place in sorted(opened.places))

    def _copy(self, now_ns: int, transfer: _CheckpointTransfer, out: list[RoleEffect]) -> None:
        """Fetch the envelopes, a few answers at a time; when all are durable here, write the checkpoint."""
        if not transfer.is_opened:
            return
        while transfer.wanted and len(self._places_asked) < _ANSWERS_AT_ONCE:
            places: list[Place] = []
            size = 0
            while transfer.wanted and (not places or size < self._config.stored_bytes_max):
                place = transfer.wanted.popleft()
                places.append(place)
                size += place.length
            self._places_asked[tuple(places)] = now_ns
            out.append(Send(transfer.holder, m.StoredGet(transfer.n, tuple(places))))
        if not self._places_asked and not self.is_writing:
            self._write(transfer, out)

    def _on_stored(
        self, now_ns: int, transfer: _CheckpointTransfer, reply: m.StoredReply, out: list[RoleEffect]
    ) -> None:
        if self.phase is not Phase.COPYING or reply.n != transfer.n:
            return
        if reply.is_gone:
            # The holder went on to a newer checkpoint, or restarted: start again with the one it has now.
            self._transfer = None
            self._ask_next(now_ns, out)
            return
        asked = self._asked_for(reply.places)
        if asked is None:
            return
        asked_at = self._places_asked.pop(asked)
        for place, item in zip(reply.places, reply.items, strict=False):
            if not self._take_copy(transfer, place, item, out):
                wrong = CHECKPOINT_REFUSED(member=transfer.holder, problem="a wrong envelope")
                self._refuse(now_ns, transfer, wrong, out)
                return
        answered = asked.index(reply.places[-1]) + 1 if reply.places else 1
        if len(reply.places) < answered:
            # The holder left out a record that it cannot read. Another holder may read its own.
            self._transfer = None
            self._give_up_on(transfer.holder, now_ns, out)
            return
        transfer.wanted.extendleft(reversed(asked[answered:]))
        self._note_answer(now_ns, asked_at)

    def _asked_for(self, places: tuple[Place, ...]) -> tuple[Place, ...] | None:
        """The question to an answer. An empty answer is for the only question, or for the first."""
        if not places:
            return next(iter(self._places_asked), None)
        return next((asked for asked in self._places_asked if places[-1] in asked), None)

    def _take_copy(
        self, transfer: _CheckpointTransfer, place: Place, item: m.Data, out: list[RoleEffect]
    ) -> bool:
        if len(item.payload) != place.length or identity_of(item.digest) != place.identity:
            return False
        index = self._copied.get(item.mid)
        if index is None:
            if digest_of(item.mid, item.ts, item.count, item.payload) != item.digest:
                return False
            index = self._copy_index = self._copied[item.mid] = self._counter.next()
            record = CopyRecord(item.mid, item.ts, item.count, item.digest, item.payload)
            out.append(Append(index, record))
        transfer.copies[place] = index
        return True

    # -- our own checkpoint, and the jump ----------------------------------------------------------

    def _write(self, transfer: _CheckpointTransfer, out: list[RoleEffect]) -> None:
        assert transfer.state is not None, "a checkpoint is to be written that is not here"
        if not self._checkpoint_server.begin(transfer.n, transfer.state.ledger):
            # Our own checkpoint may be under way. If it reaches this number or beyond, our log begins there.
            if self._is_for_log(transfer) and self._checkpoint_server.newest_n >= transfer.n:
                self._begin_log(transfer.state, out)
            return
        moved = tuple([(Location(*place), self._lies_at(index)) for place, index in transfer.copies.items()])
        self.phase = Phase.WRITING
        out.append(MoveState(transfer.n, moved))

    def _lies_at(self, index: int) -> Location:
        location = self._payloads.copied(index)
        assert location is not None, f"copy {index} is durable and cannot be found"
        return location

    def _on_written(self, n: int, out: list[RoleEffect]) -> None:
        """Begin with the checkpoint: the file and everything it refers to are durable (JOI3)."""
        transfer = self._transfer
        if self.phase is not Phase.WRITING or transfer is None or transfer.n != n:
            return
        assert transfer.state is not None, "a checkpoint was written that is not here"
        is_ours = self._checkpoint_server.note_stable(n, transfer.digest)
        assert is_ours, f"the state after {n} was moved here and is another now"
        if self._member.applied >= n:
            # The node came this far by itself.
            if self._is_for_log(transfer):
                self._begin_log(transfer.state, out)
            else:
                self._rest(out)
            return
        self._is_opened = False
        out.append(InstallState(n))
        self._stand_behind(transfer, out)

    def _begin_log(self, state: CheckpointState, out: list[RoleEffect]) -> None:
        """Begin the log behind the durable checkpoint; the state is further on, and stays."""
        out.append(Installed(state.n, state.ledger))
        self._needs_since = None
        self._rest(out)

    def _stand_behind(self, transfer: _CheckpointTransfer, out: list[RoleEffect]) -> None:
        assert transfer.state is not None, "nothing is here to stand behind"
        out.append(Installed(transfer.n, transfer.state.ledger))
        self._rest(out)
        transfer.pieces.clear()
        transfer.state = None
        self._transfer = transfer
        self.phase = Phase.FOLLOWING

    def _follow(self, now_ns: int, transfer: _CheckpointTransfer, out: list[RoleEffect]) -> None:
        """Keep the holder from forgetting its log while the member fetches what follows (JOI5)."""
        behind = self._member.known.told_upto - self._member.applied
        begins_at = self._begins_at()
        if behind <= self._config.fetch_entries_max:
            self._rest(out)
        elif begins_at is not None and now_ns >= begins_at:
            self._transfer = None
            self._ask_next(now_ns, out)
        else:
            out.append(Send(transfer.holder, m.CheckpointGet(transfer.n, transfer.size)))

    # -- time --------------------------------------------------------------------------------------

    def _go_on(self, now_ns: int, out: list[RoleEffect]) -> None:
        transfer = self._transfer
        is_due = now_ns >= self._look_at
        if is_due:
            self._look_at = now_ns + self._again_ns
        if self.phase is Phase.WRITING:
            # A file for which there is no room is tried again until there is.
            return
        if self.phase is Phase.FOLLOWING:
            if is_due and transfer is not None:
                self._follow(now_ns, transfer, out)
            return
        if transfer is not None and self._member.applied >= transfer.n and not self._is_for_log(transfer):
            # Some node's log did reach back to ours.
            self._rest(out)
            return
        if is_due:
            self._ask_again(now_ns, out)
        if self.phase is Phase.FETCHING and self._transfer is not None:
            self._fetch(now_ns, self._transfer, out)
        if self.phase is Phase.COPYING and self._transfer is not None:
            self._copy(now_ns, self._transfer, out)

    def _is_for_log(self, transfer: _CheckpointTransfer) -> bool:
        """Whether the checkpoint is needed for the log only, and not for the state."""
        return 0 < self._needed_for_log <= transfer.n

    def _ask_again(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Repeat unanswered questions after some time, and in the end ask another holder."""
        if not self._holder:
            if self._begins_at() is None:
                self._rest(out)
            else:
                self._ask_next(now_ns, out)
            return
        if self.phase is Phase.COPYING and self.is_writing and not self._places_asked:
            # Our own disk is slow, or full; the holder has done its part.
            self._brought_at = now_ns
        if now_ns - self._brought_at >= _PATIENCE * self._delay_ns:
            self._give_up_on(self._holder, now_ns, out)
            return
        transfer = self._transfer
        if self.phase is Phase.ASKING or transfer is None:
            out.append(Send(self._holder, m.CheckpointGet(0, 0)))
            return
        asked_before = now_ns - self._again_ns
        for offset, asked_at in self._pieces_asked.items():
            if asked_at <= asked_before:
                self._pieces_asked[offset] = now_ns
                out.append(Send(transfer.holder, m.CheckpointGet(transfer.n, offset)))
        for places, asked_at in self._places_asked.items():
            if asked_at <= asked_before:
                self._places_asked[places] = now_ns
                out.append(Send(transfer.holder, m.StoredGet(transfer.n, places)))
        if self.phase is Phase.FETCHING and transfer.state is not None:
            self._look_for_proof(out)
            base = self._bases.get(transfer.holder, 0)
            if self._needed <= base < transfer.n:
                # No node may lead before we have a state; then no entry that would prove it is committed.
                out.append(Send(transfer.holder, m.CheckpointGet(base, U64_MAX)))


def _read(transfer: _CheckpointTransfer) -> CheckpointState | None:
    joined = b"".join([transfer.pieces[offset] for offset in sorted(transfer.pieces)])
    try:
        state = CheckpointState.decode(joined)
        Ledger.decode(state.ledger)
    except ProtocolError:
        return None
    return state if (state.n, state.digest) == (transfer.n, transfer.digest) else None
