"""Steps of a joiner: from "their logs do not reach back to me" to standing behind a checkpoint of another.

Node 3 joins. Nodes 1 (which leads) and 2 have real holders, with the same envelopes at different places.
The state of the message manager is a list of places and a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import Struct

import pytest

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer, CheckpointState, KeptCheckpoint
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Alarm,
    Append,
    CheckpointFailed,
    CheckpointRead,
    CheckpointWritten,
    CopyRecord,
    DataRecord,
    DropState,
    Installed,
    InstallState,
    MoveState,
    OpenState,
    ReadCheckpoint,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    StateCaptured,
    StateOpened,
    Synced,
    WriteCheckpoint,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.holder import Holder
from antiphon.bus.joining import Joiner, Phase
from antiphon.bus.ledger import Ledger, ProducerRow
from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.member import Member
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import JournalCounter, Location
from antiphon.ids import Mid, make_epoch
from tests.stage import KnownLog, data_of
from tests.unit.bus.test_holder import Spotty

EPOCH = make_epoch(1, 1)
N = 100
BASE = 90
TEXT = b"what the queues hold"
_PLACE = Struct("<IIIQ")


def ledger_at(n: int) -> Ledger:
    ledger = Ledger()
    ledger.term, ledger.primary = EPOCH, 1
    ledger.rows[7] = ProducerRow(2, n)
    return ledger


def digest_of_state(state: bytes | memoryview) -> bytes:
    return bytes(state[-len(TEXT) :])[:16]


def places_in(state: bytes | memoryview) -> tuple[Location, ...]:
    return tuple(Location(*place) for place in _PLACE.iter_unpack(bytes(state[: -len(TEXT)])))


class Other:
    """A node with a stable checkpoint at n that refers to some envelopes."""

    def __init__(self, config: GroupConfig, node: int, n: int = N, envelopes: int = 5, base: int = 0) -> None:
        self.node = node
        self.payloads = Spotty()
        # The same envelopes lie elsewhere on every node.
        for filler in range(node):
            self._keep(1_000 + filler)
        places = b"".join(_PLACE.pack(*self._keep(pseq)) for pseq in range(1, envelopes + 1))
        states = [
            CheckpointState(at, ledger_at(at).encode(), TEXT[:16], places + TEXT) for at in (base, n) if at
        ]
        self.files = {state.n: state.encode() for state in states}
        self.digest = states[-1].digest
        found = [KeptCheckpoint(state.n, state.digest, len(self.files[state.n])) for state in states]
        self.server = CheckpointServer(config, node, found, n, base)
        self.holder = Holder(config, node, self.payloads, self.server)

    def _keep(self, pseq: int) -> Location:
        data = data_of(Mid(7, 2, pseq))
        self.payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
        return self.payloads.unplaced[data.mid]

    def take(self, now_ns: int, message: m.BusMessage) -> list[m.BusMessage]:
        out = self.holder.step(now_ns, [Received(3, message)])
        for read in [effect for effect in out if isinstance(effect, ReadCheckpoint)]:
            data = self.files[read.n][read.offset : read.offset + read.length]
            out += self.holder.step(now_ns, [CheckpointRead(read.n, read.offset, data, read.to)])
        return [effect.message for effect in out if isinstance(effect, Send)]


class Table:
    """The joiner of node 3 with what a node and its driver do for it."""

    def __init__(self, *, nodes: tuple[int, ...] = (1, 2, 3), **settings: object) -> None:
        chosen = {"checkpoint_piece_bytes": 64, "stored_bytes_max": 150, **settings}
        self.config = GroupConfig.of("main", nodes, **chosen)
        self.others = {node: Other(self.config, node) for node in nodes if node != 3}
        self.payloads = Spotty()
        self.checkpoints = CheckpointServer(self.config, 3)
        self.counter = JournalCounter()
        known, ledger = Prefix(), Ledger()
        order = KnownLog(CommitLog())
        data_server = DataServer(self.config, 3, self.payloads, self.counter, known, ledger, order)
        self.member = Member(self.config, 3, known, ledger, data_server, self.checkpoints, Chance(1))
        self.joiner = Joiner(
            self.config, 3, self.payloads, self.counter, self.member, self.checkpoints, Chance(2)
        )
        self.now_ms = 1_000
        self.effects: list[RoleEffect] = []
        self.syncs = self.writes = True
        # What becomes of a message on its way to the joiner: None if it is lost.
        self.way: Callable[[int, m.BusMessage], m.BusMessage | None] = lambda sender, message: message
        self.says_stable: bytes | None = self.others[min(self.others)].digest
        self.dead: list[int] = []
        self._todo: list[RoleEvent] = []
        self._opened: tuple[Location, ...] = ()

    # -- what happens ------------------------------------------------------------------------------

    def tell(self, *events: RoleEvent) -> None:
        """Step, and carry out what is wanted until nothing is left to do."""
        self._todo += events or [Received(1, m.Heartbeat(EPOCH, 150, N, 1, 150, True))]
        while self._todo:
            todo, self._todo = self._todo, []
            for effect in self.joiner.step(self.now_ms * MS, todo):
                self.effects.append(effect)
                self._carry_out(effect)

    def wait_ms(self, ms: int) -> None:
        until = self.now_ms + ms
        while (due := self.joiner.next_deadline_ns()) is not None and due <= until * MS:
            self.now_ms = max(self.now_ms, -(-due // MS))
            self.tell(Received(1, m.Heartbeat(EPOCH, 150, N, 1, 150, True)))
        self.now_ms = until

    def begin(self) -> None:
        """The logs of the others begin beyond what is applied here."""
        self.tell()
        for node in self.others:
            self.tell(Received(node, m.FetchIdReply((), 150, BASE)))
        self.wait_ms(self.config.suspicion_ms)

    def _carry_out(self, effect: RoleEffect) -> None:
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Append(index, CopyRecord() as copy):
                self.payloads.write_copy(index, copy)
                if self.syncs:
                    self._todo.append(Synced(index))
            case Installed(n):
                if n > self.member.applied:
                    self.member.step(self.now_ms * MS, [effect])
                self.checkpoints.need(0)
            case OpenState(n, state):
                self._opened = places_in(state)
                self._todo.append(StateOpened(n, digest_of_state(state), self._opened))
            case MoveState(n, moved):
                new = dict(moved)
                self._write(n, b"".join(_PLACE.pack(*new[place]) for place in self._opened) + TEXT)

    def _send(self, to: int, message: m.BusMessage) -> None:
        if to in self.dead:
            return
        if isinstance(message, m.FetchId):
            answers: list[m.BusMessage] = [self._order(message.first)]
        else:
            answers = self.others[to].take(self.now_ms * MS, message)
        for answer in answers:
            arrived = self.way(to, answer)
            if arrived is not None:
                self._todo.append(Received(to, arrived))

    def _order(self, first: int) -> m.FetchIdReply:
        """The order behind the checkpoint; its third entry calls it stable."""
        kinds = [EntryKind.TICK] * 6
        details = [b""] * 6
        if self.says_stable is not None:
            kinds[2] = EntryKind.CHECKPOINT_STABLE
            details[2] = StableDetail(N, self.says_stable, (1, 2)).encode()
        entries = [
            Entry(N + 1 + at, 1, kinds[at], Mid(1, EPOCH, at + 1), 0, NO_DIGEST, details[at])
            for at in range(6)
        ]
        return m.FetchIdReply(tuple(entry for entry in entries if entry.first >= first)[:2], N + 6, BASE)

    def _write(self, n: int, state: bytes) -> None:
        captured = StateCaptured(n, TEXT[:16], state, (1,))
        for effect in self.checkpoints.step(self.now_ms * MS, [captured]):
            assert isinstance(effect, WriteCheckpoint)
            self.effects.append(effect)
            if self.writes:
                self.written(n)

    def written(self, n: int) -> None:
        self.checkpoints.step(self.now_ms * MS, [CheckpointWritten(n)])
        self._todo.append(CheckpointWritten(n))

    # -- what is seen ------------------------------------------------------------------------------

    def seen(self, kind: type) -> list:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def asked(self, kind: type) -> list[tuple[int, m.BusMessage]]:
        return [(one.to, one.message) for one in self.seen(Send) if isinstance(one.message, kind)]

    @property
    def copies(self) -> list[CopyRecord]:
        return [one.record for one in self.seen(Append)]

    def check_installed(self) -> None:
        assert self.seen(InstallState) == [InstallState(N)]
        assert self.seen(Installed) == [Installed(N, ledger_at(N).encode())]
        assert self.checkpoints.stable is not None and self.checkpoints.stable.n == N
        (written,) = self.seen(WriteCheckpoint)
        state = CheckpointState.decode(written.state)
        assert state.digest == self.others[min(self.others)].digest, "the same state, whoever holds it"
        envelopes = [self.payloads.record(place).mid.pseq for place in places_in(state.manager_state)]
        assert envelopes == [1, 2, 3, 4, 5], "its places are ours"


def test_it_rests_while_the_logs_of_others_reach_back_to_us() -> None:
    table = Table()
    table.tell(Received(2, m.FetchIdReply((), 150, 0)))
    assert table.joiner.next_deadline_ns() is None or table.joiner.phase is Phase.IDLE
    table.wait_ms(600)
    assert table.joiner.phase is Phase.IDLE and table.effects == []


def test_it_begins_when_no_log_reaches_back_and_asks_a_backup() -> None:
    table = Table()
    table.dead = [1, 2]
    table.begin()
    assert table.asked(m.CheckpointGet)[0] == (2, m.CheckpointGet(0, 0)), "not the sequencer"


def test_it_waits_while_the_member_still_gets_on() -> None:
    table = Table()
    table.tell()
    table.tell(Received(2, m.FetchIdReply((), 150, BASE)))
    table.wait_ms(400)
    table.member.applied = 5
    table.tell()
    table.wait_ms(400)
    assert table.joiner.phase is Phase.IDLE
    table.wait_ms(200)
    assert table.joiner.is_busy


def test_without_progress_for_long_a_checkpoint_beyond_is_enough_reason() -> None:
    """The order may be known, and a payload be gone everywhere, because checkpoints cover it."""
    table = Table()
    table.tell()
    table.wait_ms(3_900)
    assert table.joiner.phase is Phase.IDLE
    table.wait_ms(200)
    table.check_installed()


def test_the_whole_way() -> None:
    table = Table()
    table.begin()
    table.check_installed()
    kinds = [type(effect) for effect in table.effects]
    order = [OpenState, Append, MoveState, WriteCheckpoint, InstallState, Installed]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert {to for to, _ in table.asked(m.StoredGet)} == {2}


def test_the_checkpoint_is_moved_only_when_every_copy_is_durable() -> None:
    table = Table()
    table.syncs = False
    table.begin()
    assert len(table.copies) == 5 and table.joiner.is_writing
    assert not table.seen(MoveState)
    last = table.seen(Append)[-1].index
    table.tell(Synced(last - 1))
    assert not table.seen(MoveState)
    table.tell(Synced(last))
    table.check_installed()


def test_nothing_changes_here_before_the_file_is_durable() -> None:
    table = Table()
    table.writes = False
    table.begin()
    assert table.seen(WriteCheckpoint) and not table.seen(InstallState) and not table.seen(Installed)
    table.wait_ms(10_000)
    assert not table.seen(InstallState)
    table.written(N)
    table.tell()
    table.check_installed()


def test_a_file_for_which_there_was_no_room_is_written_later() -> None:
    table = Table()
    table.writes = False
    table.begin()
    assert table.checkpoints.step(table.now_ms * MS, [CheckpointFailed(N)]) == []
    (again,) = table.checkpoints.step((table.now_ms + 1_000) * MS, [])
    assert again == table.seen(WriteCheckpoint)[0]
    table.written(N)
    table.tell()
    table.check_installed()


# -- the way is bad ------------------------------------------------------------------------------------


def test_answers_that_are_lost_are_asked_for_again() -> None:
    table = Table()
    lost: list[m.BusMessage] = []

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if message in lost:
            return message
        lost.append(message)
        return None

    table.way = way
    table.begin()
    table.wait_ms(20_000)
    table.check_installed()


def test_a_damaged_piece_is_not_kept() -> None:
    table = Table()
    damaged: list[int] = []

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.CheckpointChunk) and message.data and message.offset not in damaged:
            damaged.append(message.offset)
            data = bytes([message.data[0] ^ 1]) + bytes(message.data[1:])
            return m.CheckpointChunk(
                message.n, message.digest, message.size, message.offset, data, message.checksum
            )
        return message

    table.way = way
    table.begin()
    table.check_installed()
    assert damaged, "every piece came twice"
    assert not table.seen(Alarm)


def test_a_holder_that_dies_costs_time_and_the_sequencer_is_asked_last() -> None:
    table = Table()

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.StoredReply) and sender == 2:
            table.dead = [2]
            return None
        return message

    table.way = way
    table.begin()
    assert not table.copies
    table.wait_ms(10_000)
    table.check_installed()
    assert [to for to, _ in table.asked(m.StoredGet)][-1] == 1


def test_with_one_holder_it_goes_on_where_it_stopped() -> None:
    table = Table()
    table.dead = [1]
    answered: list[int] = []

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.CheckpointChunk) and message.data:
            if len(answered) == 2:
                return None
            answered.append(message.offset)
        return message

    table.way = way
    table.begin()
    table.wait_ms(6_000)
    assert len(answered) == 2
    before = len(table.asked(m.CheckpointGet))
    table.way = lambda sender, message: message
    table.wait_ms(10_000)
    table.check_installed()
    later = [message for _, message in table.asked(m.CheckpointGet)[before:]]
    assert not [get for get in later if isinstance(get, m.CheckpointGet) and get.n and get.offset in answered]


def test_a_holder_that_went_on_to_a_newer_one_is_asked_for_that() -> None:
    table = Table()
    newer = Other(table.config, 2, n=120)

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.CheckpointChunk) and message.data and sender == 2 and message.n == N:
            # It began a new life meanwhile, and took another checkpoint.
            table.others[2] = newer
            return None
        return message

    table.way = way
    table.says_stable = None
    table.others[1] = Other(table.config, 1, n=120)
    table.begin()
    table.wait_ms(3_000)
    assert table.seen(Installed) == [Installed(120, ledger_at(120).encode())]


def test_a_checkpoint_that_went_while_its_envelopes_were_fetched_is_begun_again() -> None:
    table = Table()
    gone: list[bool] = []

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.StoredReply) and not gone:
            gone.append(True)
            return m.StoredReply(message.n, (), (), is_gone=True)
        return message

    table.way = way
    table.begin()
    table.wait_ms(3_000)
    table.check_installed()


def test_a_record_that_a_holder_cannot_read_is_taken_from_another_and_copies_are_kept() -> None:
    table = Table()
    rotten = places_in(CheckpointState.decode(table.others[2].files[N]).manager_state)[3]
    table.others[2].payloads.rotten.append(rotten.offset)
    table.begin()
    table.wait_ms(3_000)
    table.check_installed()
    assert sorted(copy.mid.pseq for copy in table.copies) == [1, 2, 3, 4, 5], "each is written once"


@pytest.mark.parametrize("is_sound", [False, True])
def test_a_wrong_envelope_is_not_written(is_sound: bool) -> None:
    table = Table()

    def wrong_digest(item: m.Data) -> bytes:
        payload = bytes(len(item.payload))
        return m.digest_of(item.mid, item.ts, item.count, payload) if is_sound else item.digest

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.StoredReply) and sender == 2:
            wrong = [
                m.Data(item.mid, item.ts, item.count, wrong_digest(item), bytes(len(item.payload)))
                for item in message.items
            ]
            return m.StoredReply(message.n, message.places, tuple(wrong))
        return message

    table.way = way
    table.begin()
    table.wait_ms(3_000)
    table.check_installed()
    assert "wrong envelope" in table.seen(Alarm)[0].text


# -- is it the right one? ------------------------------------------------------------------------------


def test_it_is_vouched_for_by_the_order_although_another_holder_is_silent() -> None:
    table = Table()
    table.way = lambda sender, message: (
        None if isinstance(message, m.CheckpointChunk) and sender == 1 else message
    )
    table.begin()
    table.check_installed()
    assert len(table.asked(m.FetchId)) > 1, "it turned the pages"


def test_or_by_as_many_holders_as_make_one_stable() -> None:
    table = Table()
    table.says_stable = None
    table.begin()
    table.check_installed()


def test_one_holder_alone_is_not_believed() -> None:
    table = Table()
    table.says_stable = None
    table.way = lambda sender, message: (
        None if isinstance(message, m.CheckpointChunk) and sender == 1 else message
    )
    table.begin()
    table.wait_ms(10_000)
    assert not table.seen(OpenState)


def test_one_holder_alone_is_believed_if_its_own_log_begins_there() -> None:
    """A base is stable, always. So a group in which nobody leads because we lag comes to life again."""
    table = Table()
    table.says_stable = None
    table.way = lambda sender, message: (
        None if isinstance(message, m.CheckpointChunk) and sender == 1 else message
    )
    table.begin()
    table.wait_ms(10_000)
    assert not table.seen(OpenState)
    table.tell(Received(2, m.SealOk(EPOCH, EPOCH, N, 150, N)))
    table.wait_ms(10_000)
    table.check_installed()


def test_without_a_proof_the_checkpoint_with_which_the_log_of_the_holder_begins_is_taken() -> None:
    """The base lags one checkpoint behind. No node leads without us, so nothing can be committed that would
    prove the newest one.
    """
    table = Table()
    table.others[2] = Other(table.config, 2, base=BASE)
    table.says_stable = None
    table.dead.append(1)
    table.begin()
    assert not table.seen(OpenState), "node 2 alone is not believed"
    table.wait_ms(10_000)
    assert table.seen(Installed) == [Installed(BASE, ledger_at(BASE).encode())]
    assert table.member.applied == BASE


def test_a_holder_that_differs_from_the_stable_one_is_told_of_and_not_followed() -> None:
    table = Table()
    other = table.others[2]
    state = CheckpointState.decode(other.files[N])
    wrong = CheckpointState(N, Ledger().encode(), state.manager_digest, bytes(state.manager_state))
    other.files[N] = wrong.encode()
    other.server = CheckpointServer(
        table.config, 2, (KeptCheckpoint(N, wrong.digest, len(other.files[N])),), N
    )
    other.holder = Holder(table.config, 2, other.payloads, other.server)
    table.begin()
    assert "DIVERGENCE" in table.seen(Alarm)[0].text
    table.wait_ms(3_000)
    table.check_installed()
    assert {to for to, _ in table.asked(m.StoredGet)} == {1}, "the other one has it right"


def test_a_state_that_is_not_what_it_says_is_not_installed() -> None:
    table = Table()
    other = table.others[2]
    state = CheckpointState.decode(other.files[N])
    other.files[N] = CheckpointState(
        N, state.ledger, state.manager_digest, bytes(state.manager_state[: -len(TEXT)]) + b"x" * len(TEXT)
    ).encode()
    table.begin()
    table.wait_ms(3_000)
    assert "DIVERGENCE" in table.seen(Alarm)[0].text
    table.check_installed()
    assert {to for to, _ in table.asked(m.StoredGet)} == {1}, "the other one has it right"


def test_bytes_that_are_no_checkpoint_are_refused() -> None:
    table = Table()
    table.others[2].files[N] = bytes(len(table.others[2].files[N]))
    table.begin()
    table.wait_ms(3_000)
    assert "is none" in table.seen(Alarm)[0].text
    table.check_installed()


def test_a_checkpoint_from_which_no_log_goes_on_is_of_no_use() -> None:
    table = Table()
    table.others[2] = Other(table.config, 2, n=80)
    table.begin()
    table.wait_ms(3_000)
    table.check_installed()
    assert (2, m.CheckpointGet(80, 0)) not in table.asked(m.CheckpointGet)


# -- the end -------------------------------------------------------------------------------------------


def test_whoever_catches_up_meanwhile_needs_nothing_any_more() -> None:
    table = Table()
    table.syncs = False
    table.begin()
    table.member.applied = table.member.known.upto = table.member.known.told_upto = 130
    table.tell()
    assert table.joiner.phase is Phase.IDLE
    assert table.effects[-1] == DropState()
    assert table.payloads.copies == {}


def test_copies_that_came_in_the_step_in_which_it_caught_up_keep_no_space() -> None:
    table = Table()

    def way(sender: int, message: m.BusMessage) -> m.BusMessage | None:
        if isinstance(message, m.StoredReply):
            table.member.applied = table.member.known.upto = table.member.known.told_upto = 130
        return message

    table.way = way
    table.begin()
    assert table.joiner.phase is Phase.IDLE and table.copies
    assert table.payloads.copies == {}


def test_a_checkpoint_that_was_passed_while_it_was_written_is_not_stepped_back_to() -> None:
    table = Table()
    table.writes = False
    table.begin()
    table.member.applied = 130
    table.written(N)
    table.tell()
    assert not table.seen(InstallState) and table.joiner.phase is Phase.IDLE


def test_the_holder_is_kept_awake_until_the_node_has_almost_caught_up() -> None:
    table = Table(fetch_entries_max=10)
    table.member.known.told_upto = 150
    table.begin()
    assert table.joiner.phase is Phase.FOLLOWING and table.joiner.is_busy
    before = len(table.asked(m.CheckpointGet))
    table.wait_ms(500)
    size = len(table.others[2].files[N])
    assert table.asked(m.CheckpointGet)[before:][0] == (2, m.CheckpointGet(N, size))
    table.member.applied = table.member.known.upto = 145
    table.wait_ms(1_000)
    assert table.joiner.phase is Phase.IDLE


def test_a_witness_needs_the_ledger_only() -> None:
    table = Table(checkpoint_servers=(1, 2), data_servers=(1, 2), candidates=(1, 2))
    table.begin()
    assert table.seen(Installed) == [Installed(N, ledger_at(N).encode())]
    assert not table.seen(OpenState) and not table.seen(InstallState) and not table.copies


# -- whom our configuration does not know --------------------------------------------------------------


@pytest.mark.parametrize("piece_bytes", [40, 64, 100, 1_000])
def test_who_goes_by_a_later_configuration_is_asked_too(piece_bytes: int) -> None:
    """A disk that was replaced knows the first configuration only, whose nodes may have no state any more."""
    table = Table()
    table.others[4] = Other(table.config, 4)
    later = GroupConfig.of("main", (1, 2, 3, 4), checkpoint_piece_bytes=piece_bytes)
    table.others[4].holder.reconfigure(later)
    table.dead = [1, 2]
    table.begin()
    table.wait_ms(20_000)
    assert 4 not in [to for to, _ in table.asked(m.CheckpointGet)]
    there = m.Presence("", "replica", 150, True, b"", 0)
    table.tell(Received(4, there))
    table.wait_ms(20_000)
    assert 4 not in [to for to, _ in table.asked(m.CheckpointGet)], "it is in no other configuration than we"
    table.tell(Received(4, replace(there, config_id=2)))
    table.wait_ms(20_000)
    table.check_installed()
    table.joiner.reconfigure(table.config)
    table.effects.clear()
    table.begin()
    assert 4 not in [to for to, _ in table.asked(m.CheckpointGet)], "now we know as much as it did"


# -- a log that lacks a beginning ----------------------------------------------------------------------


class Behind(Table):
    """Node 3 has applied everything, and its log does not reach the logs of the others."""

    def __init__(self, applied: int = 150) -> None:
        super().__init__()
        self.member.applied = applied
        self.checkpoints.need(90)
        self.tell()

    def check_log_begins(self) -> None:
        assert self.seen(Installed) == [Installed(N, ledger_at(N).encode())]
        assert not self.seen(InstallState), "the state is further on"
        assert not self.joiner.is_busy


def test_a_log_without_a_beginning_gets_a_checkpoint_and_the_state_stays() -> None:
    table = Behind()
    table.wait_ms(table.config.suspicion_ms - 10)
    assert not table.joiner.is_busy, "if somebody leads we shall have one of our own"
    table.wait_ms(20)
    table.check_log_begins()
    assert table.checkpoints.stable is not None and table.checkpoints.stable.n == N
    kinds = [type(effect) for effect in table.effects]
    order = [OpenState, Append, MoveState, WriteCheckpoint, Installed, DropState]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)


def test_when_our_own_checkpoint_was_quicker_nothing_is_fetched() -> None:
    table = Behind()
    table.dead = [1, 2]
    table.wait_ms(table.config.suspicion_ms)
    assert table.joiner.is_busy
    table.checkpoints.need(0)
    table.dead = []
    table.wait_ms(20_000)
    assert not table.joiner.is_busy and not table.seen(WriteCheckpoint) and not table.seen(Installed)


def test_a_newer_one_of_our_own_is_not_written_over_and_the_log_begins_at_the_stable_one() -> None:
    table = Behind()
    table.checkpoints.newest_n = 120
    table.wait_ms(table.config.suspicion_ms)
    table.check_log_begins()
    assert not table.seen(WriteCheckpoint)


def test_when_everybody_was_asked_in_vain_the_commit_server_is_told() -> None:
    table = Behind()
    table.dead = [2]
    table.others[1].server.stable = None
    table.wait_ms(table.config.suspicion_ms + 3 * table.config.fetch_delay_ms_max)
    assert table.checkpoints.vain_n == 0, "node 2 may only be slow"
    table.wait_ms(3 * table.config.fetch_delay_ms_max)
    assert table.checkpoints.vain_n == 90


def test_who_lacks_the_state_as_well_joins_as_ever() -> None:
    table = Behind(applied=0)
    table.dead = [1, 2]
    table.begin()
    table.wait_ms(20_000)
    assert table.checkpoints.vain_n == 0, "a mark alone would be no help"
    table.dead = []
    table.wait_ms(20_000)
    table.check_installed()
