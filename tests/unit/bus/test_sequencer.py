"""Steps of a sequencer: how it comes to lead, how it numbers, when it stops.

The sequencer of node 1 stands with its own commit server and member beside it; what it sends to the
others is looked at, and their answers are written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.commit_server import CommitServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Alarm,
    Append,
    Multicast,
    Received,
    RoleEffect,
    Send,
    SuperblockRecord,
    Synced,
)
from antiphon.bus.entries import FenceDetail, OpenDetail, StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.member import Member
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason, ServerStatus
from antiphon.bus.planted import NONE
from antiphon.bus.ports import JournalCounter
from antiphon.bus.prefix import Prefix
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.sequencer import EPOCHS_PER_CONFIG, Sequencer, State
from antiphon.bus.superblock import Superblock
from antiphon.ids import Mid, make_epoch
from tests.unit.bus.stage import MemoryPayloads, data_of, item_of

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
        planted: frozenset[str] = NONE,
        **settings: Any,
    ) -> None:
        self.config = GroupConfig.of("main", nodes, **settings)
        counter = JournalCounter()
        self.superblock = Superblock(counter, OLD if entries else 0)
        log_epoch = OLD if entries else 0
        log = CommitLog(0, entries)
        self.presence = PresenceKeeper(self.config, 1)
        self.commit_server = CommitServer(
            self.config, 1, counter, self.superblock, log=log, log_epoch=log_epoch
        )
        self.commit_server.committed_upto = committed
        known, ledger = Prefix(), Ledger()
        data_server = DataServer(self.config, 1, MemoryPayloads(), counter, known, ledger, self.commit_server)
        self.member = Member(self.config, 1, known, ledger, data_server, None, Chance(1))
        self.sequencer = Sequencer(
            self.config,
            1,
            self.superblock,
            self.commit_server,
            self.member,
            Chance(2),
            presence=self.presence,
            planted=planted,
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
        self.epoch = self.superblock.epoch_claimed
        self.step(Synced(1))
        own = self.commit_server
        self.superblock.promised = self.epoch
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


# -- coming to lead ---------------------------------------------------------------------------------


def test_a_node_that_is_alone_stands_at_once_and_claims_before_it_says_so() -> None:
    chair = Chair()
    assert chair.step() == [Append(1, SuperblockRecord(0, FIRST))]
    assert chair.sequencer.state is State.SEALING
    assert chair.step(Synced(0)) == []
    assert chair.step(Synced(1)) == [Send(1, m.Seal(FIRST, 0))]


def test_an_epoch_is_above_everything_promised_claimed_or_seen() -> None:
    chair = Chair(entries=ticks(1, 2))
    (append,) = chair.step()
    assert append == Append(1, SuperblockRecord(OLD, make_epoch(5, 1)))


def test_the_first_reign_of_an_empty_channel_begins_with_its_claim() -> None:
    chair = Chair()
    effects = chair.lead()
    assert chair.sequencer.state is State.LEADING
    assert isinstance(effects[0], Multicast) and isinstance(effects[0].message, m.Heartbeat)
    assert submitted(effects) == [[(1, EntryKind.PRIMARY_CLAIM)]]


def test_an_adopted_log_is_fetched_in_pages_started_and_then_committed() -> None:
    chair = Chair(entries=ticks(1, 5), committed=2, fetch_entries_max=2)
    chair.step()
    epoch = chair.epoch = chair.superblock.epoch_claimed
    assert chair.step(Synced(1)) == [Send(1, m.Seal(epoch, 2))]
    assert chair.hear(m.SealOk(epoch, OLD, 0, 5, 2)) == [Send(1, m.FetchLog(epoch, 3))]
    assert chair.hear(m.FetchLogReply(epoch, 3, ticks(3, 4), 5)) == [Send(1, m.FetchLog(epoch, 5))]
    start = chair.hear(m.FetchLogReply(epoch, 5, ticks(5, 5), 5))
    assert start == [Send(1, m.EpochStart(epoch, 6, (), 2, OLD))], "it is the log that the server has"
    assert chair.sequencer.state is State.STARTING
    effects = chair.acknowledge(5)
    assert effects[0] == Multicast(m.Commit(epoch, ticks(3, 5), 5))
    assert submitted(effects) == [[(6, EntryKind.PRIMARY_CLAIM)]]


def test_what_was_adopted_is_not_committed_before_it_is_held_in_the_new_epoch() -> None:
    chair = Chair(entries=ticks(1, 2))
    chair.step()
    chair.epoch = chair.superblock.epoch_claimed
    chair.step(Synced(1))
    chair.hear(m.SealOk(chair.epoch, OLD, 0, 2, 0))
    chair.hear(m.FetchLogReply(chair.epoch, 1, ticks(1, 2), 2))
    assert chair.acknowledge(1) == []
    assert chair.hear(m.CommitAcknowledge(OLD, 2)) == []
    assert chair.sequencer.state is State.STARTING


def test_of_several_nodes_each_asks_around_before_it_stands() -> None:
    chair = Chair(nodes=(1, 2, 3), suspicion_ms=500)
    assert chair.step() == []
    effects = chair.wait()
    assert chair.now_ns >= 1_500 * MS
    assert effects == [Send(server, m.PreSeal(1)) for server in (1, 2, 3)]
    assert chair.sequencer.state is State.PRE
    assert chair.hear(m.PreSealOk(1), 1) == []
    assert chair.hear(m.PreSealOk(1), 1) == [], "one server, one answer"
    (append,) = chair.hear(m.PreSealOk(1), 3)
    assert isinstance(append, Append)


def test_a_heartbeat_puts_off_suspicion() -> None:
    chair = Chair(nodes=(1, 2, 3))
    chair.step()
    chair.wait()
    chair.hear(m.Heartbeat(OLD, 0, 0, 1, 0, True), 2)
    assert chair.sequencer.state is State.FOLLOWER
    deadline = chair.sequencer.next_deadline_ns()
    assert deadline is not None and deadline >= chair.now_ns + 500 * MS


def stand_among_three(chair: Chair) -> int:
    """Node 1 of three sends its SEAL; returns the epoch."""
    chair.step()
    chair.wait()
    chair.hear(m.PreSealOk(1), 1)
    chair.hear(m.PreSealOk(1), 2)
    chair.epoch = chair.superblock.epoch_claimed
    effects = chair.step(Synced(1))
    committed = chair.commit_server.committed_upto
    assert effects == [Send(server, m.Seal(chair.epoch, committed)) for server in (1, 2, 3)]
    return chair.epoch


def test_the_newest_log_is_adopted_not_the_longest() -> None:
    """The longer one may be a leftover of an older epoch that was never committed."""
    chair = Chair(nodes=(1, 2, 3), entries=ticks(1, 9), committed=2)
    epoch = stand_among_three(chair)
    newer = make_epoch(6, 3)
    assert chair.hear(m.SealOk(epoch, newer, 0, 4, 3), 3) == [], "our own answer is still missing"
    assert chair.hear(m.SealOk(epoch, OLD, 0, 9, 2), 1) == [Send(3, m.FetchLog(epoch, 3))]
    theirs = ticks(3, 4, newer)
    effects = chair.hear(m.FetchLogReply(epoch, 3, theirs, 4), 3)
    assert effects == [
        Send(3, m.EpochStart(epoch, 5, (), 3, newer)),
        Send(1, m.EpochStart(epoch, 3, theirs, 3, newer)),
    ]
    assert chair.acknowledge(4, 1) == [], "one of three"
    effects = chair.acknowledge(4, 3)
    assert effects[0] == Multicast(m.Commit(epoch, theirs[1:], 4))
    assert chair.sequencer.state is State.LEADING


def test_of_our_own_log_only_what_we_knew_committed_is_kept() -> None:
    """R8: not even up to the highest number others know to be committed."""
    chair = Chair(nodes=(1, 2, 3), entries=ticks(1, 9), committed=2)
    epoch = stand_among_three(chair)
    newer = make_epoch(6, 3)
    chair.hear(m.SealOk(epoch, OLD, 0, 9, 2), 1)
    effects = chair.hear(m.SealOk(epoch, newer, 0, 9, 9), 3)
    assert effects == [Send(3, m.FetchLog(epoch, 3))]


def test_a_node_behind_the_base_of_the_best_log_does_not_lead() -> None:
    chair = Chair(nodes=(1, 2, 3), entries=ticks(1, 3), committed=2)
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, OLD, 0, 3, 2), 1)
    effects = chair.hear(m.SealOk(epoch, make_epoch(6, 3), 5, 9, 9), 3)
    assert effects == [Send(1, m.FetchIdReply((), 5, 5))], "its own node hears where the order begins"
    assert chair.sequencer.state is State.FOLLOWER
    assert chair.sequencer.needs_checkpoint == 5
    chair.member.known.skip(5)
    assert chair.sequencer.needs_checkpoint == 0


def test_a_candidate_gives_way_to_a_higher_epoch() -> None:
    chair = Chair(nodes=(1, 2, 3))
    stand_among_three(chair)
    chair.hear(m.SealNack(make_epoch(9, 2)), 2)
    assert chair.sequencer.state is State.FOLLOWER
    assert chair.sequencer.epoch_seen == make_epoch(9, 2)


def test_a_candidate_says_again_what_was_not_answered() -> None:
    chair = Chair(nodes=(1, 2, 3))
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 2)
    assert chair.wait() == [Send(1, m.Seal(epoch, 0)), Send(3, m.Seal(epoch, 0))]


def test_a_server_that_was_not_asked_is_started_when_it_needs_it() -> None:
    chair = Chair()
    chair.lead()
    need = m.StartNeed(chair.epoch, 0, 0)
    reign = chair.sequencer.reign
    assert reign is not None
    assert sent(chair.hear(need)) == [m.EpochStart(chair.epoch, 1, reign.log.between(0, 1), 0)]
    assert sent(chair.hear(need)) == [], "not again at once"


def test_a_server_with_a_log_of_the_adopted_epoch_is_sent_only_what_it_lacks() -> None:
    chair = Chair(nodes=(1, 2, 3), entries=ticks(1, 9), committed=2)
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, OLD, 0, 6, 1), 3)
    chair.hear(m.SealOk(epoch, OLD, 0, 9, 2), 1)
    effects = chair.hear(m.FetchLogReply(epoch, 3, ticks(3, 9), 9), 1)
    assert sent(effects, 3) == [m.EpochStart(epoch, 7, ticks(7, 9), 2, OLD)]
    assert sent(effects, 1) == [m.EpochStart(epoch, 10, (), 2, OLD)]
    late = chair.hear(m.SealOk(epoch, OLD, 0, 12, 2), 2)
    assert sent(late, 2) == [m.EpochStart(epoch, 10, (), 2, OLD)], "it has more than was adopted"


def test_a_long_start_goes_out_in_pages() -> None:
    chair = Chair(nodes=(1, 2, 3), entries=ticks(1, 5), fetch_entries_max=2)
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, 7, 0, 1, 0), 3)
    effects = chair.hear(m.SealOk(epoch, OLD, 0, 5, 0), 1)
    while (fetch := sent(effects)[0]) and isinstance(fetch, m.FetchLog):
        page = chair.commit_server.log.from_number(fetch.start, 5, 2)
        effects = chair.hear(m.FetchLogReply(epoch, fetch.start, page, 5))
    assert sent(effects, 3) == [m.EpochStart(epoch, 1, ticks(1, 2), 0, OLD, through=5)]
    effects = chair.hear(m.StartNeed(epoch, 2, 2), 3)
    assert sent(effects, 3) == [m.EpochStart(epoch, 3, ticks(3, 4), 0, OLD, through=5)]
    again = [message for message in sent(chair.wait(), 3) if isinstance(message, m.EpochStart)]
    assert again == [m.EpochStart(epoch, 3, ticks(3, 4), 0, OLD, through=5)], "from where it stands"
    effects = chair.hear(m.StartNeed(epoch, 4, 4), 3)
    assert sent(effects, 3) == [m.EpochStart(epoch, 5, ticks(5, 5), 0, OLD)]


def lead_three(**settings: Any) -> Chair:
    """Node 1 of three leads; node 2 has followed, of node 3 nothing was heard."""
    chair = Chair(nodes=(1, 2, 3), **settings)
    epoch = stand_among_three(chair)
    here = m.Presence("", "", 0, True, b"", 0)
    chair.presence.step(chair.now_ns, [Received(2, here), Received(3, here)])
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 1)
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 2)
    chair.superblock.promised = epoch
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


def test_a_server_of_which_nothing_was_heard_is_asked_where_it_stands() -> None:
    chair = lead_three(heartbeat_ms=50, retransmit_ms=100)
    effects = keep_leading(chair, 200)
    assert m.CommitSubmit(chair.epoch, 1, (), 1) in sent(effects, 3)


def test_a_server_that_lags_gets_the_next_piece_when_it_has_the_one_before() -> None:
    chair = lead_three(heartbeat_ms=50, retransmit_ms=100, submit_entries_max=2, data_quantity=1)
    pe = chair.open()
    for pseq in range(1, 6):
        chair.report(Mid(1, pe, pseq))
    chair.acknowledge(7, 1)
    chair.acknowledge(7, 2)
    chair.acknowledge(0, 3)
    assert submitted(keep_leading(chair, 150), 3) == [
        [(1, EntryKind.PRIMARY_CLAIM), (2, EntryKind.PRODUCER_OPEN)]
    ]
    assert submitted(chair.acknowledge(2, 3), 3) == [[(3, EntryKind.DATA), (4, EntryKind.DATA)]]
    assert submitted(chair.acknowledge(4, 3), 3) == [[(5, EntryKind.DATA), (6, EntryKind.DATA)]]
    assert submitted(chair.acknowledge(6, 3), 3) == [[(7, EntryKind.DATA)]]


def show(chair: Chair, node: int, applied: int) -> None:
    """A node says how far it has applied."""
    told = m.Presence("", "replica", applied, True, b"", 0)
    chair.presence.step(chair.now_ns, [Received(node, told)])


def test_a_server_below_our_base_is_told_where_it_is_and_a_checkpoint_is_called_for() -> None:
    chair = lead_three()
    chair.open()
    keep_leading(chair, 10)
    reign = chair.sequencer.reign
    assert reign is not None
    reign.log.forget(2)
    show(chair, 3, applied=2)
    effects = chair.hear(m.StartNeed(chair.epoch, 1, 1, 7), 3)
    assert sent(effects, 3)[0] == m.FetchIdReply((), 2, 2)
    assert submitted(effects) == [[(3, EntryKind.CHECKPOINT_MARK)]]


def test_who_is_below_the_base_gets_one_checkpoint_not_one_after_the_other() -> None:
    chair = lead_three()
    pe = chair.open()
    chair.acknowledge(2, 2)
    reign = chair.sequencer.reign
    assert reign is not None
    reign.log.forget(2)
    need = m.StartNeed(chair.epoch, 1, 1, 7)
    show(chair, 3, applied=2)
    assert submitted(chair.hear(need, 3)) == [[(3, EntryKind.CHECKPOINT_MARK)]]
    for server in (1, 2):
        chair.acknowledge(3, server)
    for server in (1, 2):
        chair.hear(m.CheckpointReport(3, b"d" * 16, 9), server)
    for server in (1, 2):
        chair.acknowledge(4, server)
    assert reign.stable_checkpoint == 3
    keep_leading(chair, 3)
    assert submitted(chair.hear(need, 3)) == [], "nothing was ordered since"
    for server in (1, 2):
        chair.report(Mid(1, pe, 1), server=server)
    keep_leading(chair, 3)
    show(chair, 3, applied=1)
    assert submitted(chair.hear(need, 3)) == [], "its node lags: a mark would not help it"
    show(chair, 3, applied=4)
    keep_leading(chair, 3)
    assert submitted(chair.hear(need, 3)) == [[(6, EntryKind.CHECKPOINT_MARK)]]


def test_what_a_damaged_server_held_does_not_count_any_more() -> None:
    chair = lead_three()
    chair.acknowledge(1, 2)
    chair.hear(m.CommitAcknowledge(chair.epoch, 0, ServerStatus.DAMAGED), 2)
    assert chair.acknowledge(1, 1) == [], "one of three"
    assert len(chair.acknowledge(1, 3)) == 1


@pytest.mark.parametrize("status", [ServerStatus.NO_SPACE, ServerStatus.DAMAGED])
def test_a_sequencer_whose_own_disk_is_not_fit_steps_down_and_does_not_stand(status: ServerStatus) -> None:
    chair = lead_three()
    chair.commit_server.set_status(status)
    chair.step()
    assert chair.sequencer.state is State.FOLLOWER
    for _ in range(20):
        assert chair.wait() == []


# -- candidates that lag ----------------------------------------------------------------------------


def test_a_node_far_behind_does_not_stand_until_nobody_led_for_long() -> None:
    chair = Chair(nodes=(1, 2, 3), suspicion_ms=500, leaderless_ms=10_000, lag_max=100)
    chair.presence.step(0, [Received(2, m.Presence("", "", 1_000, True, b"", 0))])
    start = chair.now_ns
    effects = chair.step()
    while not effects:
        effects = chair.wait()
    assert chair.now_ns - start >= 10_000 * MS
    assert sent(effects) == [m.PreSeal(1, 0)] * 3


def test_a_node_that_is_close_enough_stands_and_says_how_far_it_is() -> None:
    chair = Chair(nodes=(1, 2, 3), suspicion_ms=500, lag_max=100)
    chair.presence.step(0, [Received(2, m.Presence("", "", 1_000, True, b"", 0))])
    chair.member.applied = 900
    chair.step()
    assert sent(chair.wait()) == [m.PreSeal(1, 900)] * 3


# -- fences -----------------------------------------------------------------------------------------


def fences(effects: list[RoleEffect]) -> list[FenceDetail]:
    return [
        FenceDetail.decode(entry.detail)
        for message in sent(effects, 1)
        if isinstance(message, m.CommitSubmit)
        for entry in message.entries
        if entry.kind is EntryKind.PRODUCER_FENCE
    ]


def test_a_producer_whose_node_is_silent_is_fenced_once() -> None:
    chair = lead_three(silence_ms=2_000)
    pe = chair.open(3)
    began = chair.now_ns
    chair.presence.hear(began + 500 * MS, 3)
    assert fences(keep_leading(chair, 2_450)) == []
    (fence,) = fences(keep_leading(chair, 100))
    assert fence == (3, pe, chair.epoch)
    assert fences(keep_leading(chair, 5_000)) == [], "it is closed already"
    assert refused(chair.report(Mid(3, pe, 1))) == [(1, NackReason.FENCED)]


def test_a_silence_before_the_reign_does_not_count() -> None:
    chair = Chair(nodes=(1, 2, 3), silence_ms=2_000)
    chair.presence.hear(0, 3)
    chair = lead_three(silence_ms=2_000)
    chair.open(3)
    assert fences(keep_leading(chair, 1_900)) == []


def test_our_own_producer_and_those_that_are_heard_are_not_fenced() -> None:
    chair = lead_three(silence_ms=2_000)
    chair.open(1)
    chair.open(2)
    for _ in range(10):
        chair.presence.hear(chair.now_ns, 2)
        assert fences(keep_leading(chair, 1_000)) == []


# -- losing the lead --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [m.Heartbeat(make_epoch(9, 2), 0, 0, 1, 0, True), m.Commit(make_epoch(9, 2), (), 0)],
)
def test_a_sequencer_follows_as_soon_as_it_hears_a_higher_epoch(message: m.BusMessage) -> None:
    chair = Chair(nodes=(1, 2), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    chair.hear(message, 2)
    assert chair.sequencer.state is State.FOLLOWER


def test_a_sequencer_follows_when_its_own_commit_server_promised_another() -> None:
    chair = Chair()
    chair.lead()
    chair.superblock.promised = make_epoch(9, 2)
    chair.step()
    assert chair.sequencer.state is State.FOLLOWER


def test_a_sequencer_that_no_quorum_answers_stops() -> None:
    chair = Chair(check_ms=500)
    chair.lead()
    start = chair.now_ns
    while chair.sequencer.state is State.LEADING:
        chair.wait()
    assert chair.now_ns - start == 500 * MS


def test_a_sequencer_that_slept_is_not_deposed_by_its_own_sleep() -> None:
    chair = Chair(check_ms=500)
    chair.lead()
    chair.hear(m.HeartbeatAck(chair.epoch, 1))
    chair.now_ns += 60_000 * MS
    chair.step()
    assert chair.sequencer.state is State.LEADING


# -- numbering --------------------------------------------------------------------------------------


def test_an_open_is_ordered_and_its_number_is_told_on_request() -> None:
    chair = Chair()
    chair.lead()
    effects = chair.hear(m.ProducerOpen(1, RUN))
    assert submitted(effects) == [[(2, EntryKind.PRODUCER_OPEN)]]
    (submit,) = (one for one in sent(effects) if isinstance(one, m.CommitSubmit))
    assert OpenDetail.decode(submit.entries[0].detail) == (1, RUN)
    assert chair.hear(m.ProducerOpen(1, RUN)) == [], "asked again while it is on its way"
    chair.acknowledge(2)
    assert chair.hear(m.ProducerOpen(1, RUN)) == [Send(1, m.ProducerOpened(1, RUN, 2))]


def test_nobody_opens_in_the_name_of_another() -> None:
    chair = Chair(nodes=(1, 2), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    assert chair.hear(m.ProducerOpen(1, RUN), 2) == []


def test_everything_reported_in_one_step_leaves_in_one_submit() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    events = [
        Received(1, m.DataReport(chair.epoch, (item_of(data_of(Mid(1, pe, pseq))),))) for pseq in (1, 2, 3)
    ]
    effects = chair.step(*events)
    assert submitted(effects) == [[(n, EntryKind.DATA) for n in (3, 4, 5)]]


def test_a_submit_holds_at_most_b_entries() -> None:
    chair = Chair(submit_entries_max=2)
    chair.lead()
    pe = chair.open()
    effects = chair.report(*(Mid(1, pe, pseq) for pseq in range(1, 6)))
    assert [len(part) for part in submitted(effects)] == [2, 2, 1]


def test_an_envelope_takes_as_many_numbers_as_it_has_commands() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    effects = chair.report(Mid(1, pe, 1), Mid(1, pe, 2), commands=5)
    assert numbered(effects) == [(3, 1), (8, 2)]


def test_the_envelopes_of_a_run_are_numbered_in_their_order() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    assert numbered(chair.report(Mid(1, pe, 3))) == []
    assert numbered(chair.report(Mid(1, pe, 2))) == []
    assert numbered(chair.report(Mid(1, pe, 1))) == [(3, 1), (4, 2), (5, 3)]


def test_an_envelope_reported_again_is_not_numbered_again() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 1))
    assert chair.report(Mid(1, pe, 1)) == [], "it has its number, and it is not committed yet"
    chair.acknowledge(3)
    effects = chair.report(Mid(1, pe, 1))
    assert numbered(effects) == [] and refused(effects) == [(1, NackReason.DUPLICATE)]


def test_what_may_not_be_numbered_is_refused_with_its_reason() -> None:
    chair = Chair(lifetime=10, window_entries=4)
    chair.lead()
    pe = chair.open()
    assert refused(chair.report(Mid(1, pe + 1, 1))) == [(1, NackReason.NOT_OPEN)]
    assert refused(chair.report(Mid(2, 1, 1))) == [(1, NackReason.NOT_OPEN)]
    assert refused(chair.report(Mid(1, pe - 1, 1))) == [(1, NackReason.FENCED)]
    assert refused(chair.report(Mid(1, pe, 6))) == [(6, NackReason.GAP)]
    chair.report(Mid(1, pe, 1), ts=2, commands=9)
    assert refused(chair.report(Mid(1, pe, 2), ts=1)) == [(2, NackReason.EXPIRED)]


def test_duplicates_of_a_run_are_refused_with_one_word_also_those_of_the_run_before() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 1), Mid(1, pe, 2), Mid(1, pe, 3))
    chair.acknowledge(5)
    assert refused(chair.report(Mid(1, pe, 3), Mid(1, pe, 1), Mid(1, pe, 2))) == [(3, NackReason.DUPLICATE)]
    chair.hear(m.ProducerOpen(1, b"s" * 16))
    chair.acknowledge(6)
    effects = chair.report(Mid(1, pe, 2), Mid(1, pe, 3), Mid(1, pe, 4))
    assert refused(effects) == [(4, NackReason.FENCED), (3, NackReason.DUPLICATE)]
    assert sent(effects)[-1] == m.ReportNack(chair.epoch, Mid(1, pe, 3), NackReason.DUPLICATE, 5)


def test_an_envelope_that_expires_at_the_end_of_the_order_is_passed_by_a_tick() -> None:
    chair = Chair(lifetime=10, tick_ms=1_000)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 1), ts=2, commands=9)
    chair.acknowledge(11)
    kinds: list[list[tuple[int, EntryKind]]] = []
    for _ in range(21):
        assert refused(chair.report(Mid(1, pe, 2), ts=1)) == [(2, NackReason.EXPIRED)]
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        kinds += submitted(chair.wait())
    assert kinds == [[(12, EntryKind.TICK)]], "ts + L was the last number"
    chair.acknowledge(12)
    for _ in range(30):
        chair.report(Mid(1, pe, 2), ts=1)
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        assert submitted(chair.wait()) == [], "whoever holds it will learn that the order has passed it"


def test_rule_x_lets_the_last_allowed_number_pass() -> None:
    chair = Chair(lifetime=10)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 1), ts=2, commands=8)
    assert numbered(chair.report(Mid(1, pe, 2), ts=1)) == [(11, 2)], "11 <= ts + L"


def test_an_envelope_that_expires_while_it_waits_is_refused() -> None:
    chair = Chair(lifetime=10)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 2), ts=1)
    effects = chair.report(Mid(1, pe, 1), ts=2, commands=9)
    assert numbered(effects) == [(3, 1)]
    assert refused(effects) == [(2, NackReason.EXPIRED)]


def test_two_contents_under_one_id_are_refused_with_an_alarm() -> None:
    chair = Chair()
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 2))
    effects = chair.report(Mid(1, pe, 2), ts=1)
    assert refused(effects) == [(2, NackReason.DIGEST)]
    assert any(isinstance(effect, Alarm) for effect in effects)


def test_numbering_waits_for_enough_copies_and_for_our_own() -> None:
    chair = Chair(nodes=(1, 2, 3), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    pe = chair.open()
    assert numbered(chair.report(Mid(1, pe, 1), server=2)) == []
    assert numbered(chair.report(Mid(1, pe, 1), server=2)) == [], "the same copy, told twice"
    assert numbered(chair.report(Mid(1, pe, 1), server=3)) == [], "two copies, none of them ours"
    assert numbered(chair.report(Mid(1, pe, 1), server=1)) == [(3, 1)]


def test_what_our_own_data_server_lacks_is_fetched_from_a_holder() -> None:
    chair = Chair(nodes=(1, 2, 3), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    pe = chair.open()
    assert sent(chair.report(Mid(1, pe, 1), server=3), 3) == []
    assert sent(chair.wait(), 3) == [m.FetchData((Mid(1, pe, 1),), (0,))]


def test_holders_are_asked_one_after_the_other() -> None:
    servers = {"commit_servers": (1,), "commit_quantity": 1, "seal_quantity": 1, "candidates": (1,)}
    chair = Chair(nodes=(1, 2, 3), retransmit_ms=50, heartbeat_ms=50, **servers)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 1), server=3)
    chair.report(Mid(1, pe, 1), server=2)
    asked: list[int] = []
    for _ in range(5):
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        effects = chair.wait()
        asked += [effect.to for effect in effects if isinstance(effect, Send)]
    assert asked[:4] == [3, 2, 3, 2]


def test_at_most_window_entries_are_on_the_way() -> None:
    chair = Chair(window_entries=2)
    chair.lead()
    pe = chair.open()
    assert numbered(chair.report(*(Mid(1, pe, pseq) for pseq in (1, 2)))) == [(3, 1), (4, 2)]
    assert numbered(chair.report(Mid(1, pe, 3))) == []
    assert numbered(chair.acknowledge(3)) == [(5, 3)]


# -- committing -------------------------------------------------------------------------------------


def test_a_number_is_committed_when_enough_servers_hold_it() -> None:
    chair = Chair(nodes=(1, 2, 3), data_quantity=1)
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 1)
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 2)
    chair.acknowledge(0, 1)
    effects = chair.acknowledge(0, 2)
    assert [submitted(effects, to) for to in (1, 2, 3)] == [[[(1, EntryKind.PRIMARY_CLAIM)]]] * 3
    assert chair.acknowledge(1, 1) == []
    (commit,) = chair.acknowledge(1, 3)
    assert isinstance(commit, Multicast) and isinstance(commit.message, m.Commit)
    assert commit.message.committed_upto == 1
    assert chair.acknowledge(1, 2) == [], "it is committed already"


def test_acknowledgements_of_another_epoch_or_of_a_broken_server_do_not_count() -> None:
    chair = Chair()
    chair.lead()
    assert chair.hear(m.CommitAcknowledge(OLD, 1)) == []
    assert chair.hear(m.CommitAcknowledge(chair.epoch, 1, ServerStatus.NO_SPACE)) == []
    assert chair.hear(m.CommitAcknowledge(chair.epoch, 1), sender=5) == []


def test_a_submit_that_is_not_acknowledged_is_sent_again_but_not_at_once() -> None:
    chair = Chair(heartbeat_ms=50, retransmit_ms=100)
    chair.lead()
    chair.hear(m.HeartbeatAck(chair.epoch, 1))
    assert submitted(chair.wait()) == []
    assert submitted(chair.wait()) == [[(1, EntryKind.PRIMARY_CLAIM)]]


def test_a_lost_submit_is_sent_again_although_others_follow_it() -> None:
    """1. The submit of number 3 is lost. 2. Numbers 4, 5, … follow more often than `retransmit_ms`, and the
    commit server answers each with "I have 2". Steady traffic must not keep 3 from being sent again.
    """
    chair = Chair(heartbeat_ms=50, retransmit_ms=100)
    chair.lead()
    pe = chair.open()
    start = chair.now_ns
    for pseq in range(1, 10):
        submits = submitted(chair.report(Mid(1, pe, pseq)))
        assert submits == [[(pe + pseq, EntryKind.DATA)]]
        chair.acknowledge(pe)
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        if again := submitted(chair.wait()):
            assert again[0][0] == (pe + 1, EntryKind.DATA)
            assert chair.now_ns - start <= 150 * MS
            return
    pytest.fail("the lost submit was never sent again")


def test_heartbeats_tell_how_far_things_are() -> None:
    chair = Chair(heartbeat_ms=50)
    chair.lead()
    chair.acknowledge(1)
    chair.member.applied, chair.member.term = 1, chair.epoch
    effects = chair.wait()
    assert effects == [Multicast(m.Heartbeat(chair.epoch, 1, 0, 2, 1, True))]


def test_a_tick_moves_time_on_while_data_waits_and_nothing_is_committed() -> None:
    chair = Chair(tick_ms=1_000, heartbeat_ms=50)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 2))
    start = chair.now_ns
    kinds: list[list[tuple[int, EntryKind]]] = []
    while not kinds:
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        kinds = submitted(chair.wait())
    assert kinds == [[(3, EntryKind.TICK)]]
    assert chair.now_ns - start == 1_000 * MS


def test_who_keeps_a_run_waiting_is_told_what_is_missing() -> None:
    chair = Chair(tick_ms=1_000, heartbeat_ms=50)
    chair.lead()
    pe = chair.open()
    chair.report(Mid(1, pe, 3), Mid(1, pe, 2))
    nacks: list[m.BusMessage] = []
    for _ in range(21):
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        nacks += [message for message in sent(chair.wait()) if isinstance(message, m.ReportNack)]
    assert nacks == [m.ReportNack(chair.epoch, Mid(1, pe, 2), NackReason.GAP, 1)]


def test_an_idle_channel_has_no_ticks() -> None:
    chair = Chair(tick_ms=1_000, heartbeat_ms=50)
    chair.lead()
    chair.open()
    for _ in range(100):
        chair.hear(m.HeartbeatAck(chair.epoch, 10_000))
        assert submitted(chair.wait()) == []


# -- checkpoints ------------------------------------------------------------------------------------


def test_a_mark_is_set_every_k_entries() -> None:
    chair = Chair(checkpoint_entries=4)
    chair.lead()
    pe = chair.open()
    assert submitted(chair.report(Mid(1, pe, 1))) == [[(3, EntryKind.DATA)]]
    effects = chair.report(Mid(1, pe, 2))
    assert submitted(effects) == [[(4, EntryKind.DATA), (5, EntryKind.CHECKPOINT_MARK)]]


def test_a_mark_is_set_every_so_many_bytes_and_small_entries_count_what_they_cost() -> None:
    chair = Chair(checkpoint_bytes=64 << 10)
    chair.lead()
    pe = chair.open()
    marks = 0
    for pseq in range(1, 21):
        effects = chair.report(Mid(1, pe, pseq))
        marks += sum(kind is EntryKind.CHECKPOINT_MARK for part in submitted(effects) for _, kind in part)
    assert marks in (3, 4), "each flush of a tiny envelope costs 12 KiB"


def a_checkpoint(n: int = 2, digest: bytes = b"d" * 16) -> m.CheckpointReport:
    return m.CheckpointReport(n, digest, 100)


def test_equal_digests_make_a_checkpoint_stable_and_the_entry_says_who_has_it() -> None:
    chair = Chair(nodes=(1, 2, 3), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    chair.open()
    assert submitted(chair.hear(a_checkpoint(), 3)) == []
    assert submitted(chair.hear(a_checkpoint(), 3)) == [], "one server, one report"
    effects = chair.hear(a_checkpoint(), 2)
    (submit,) = (one for one in sent(effects) if isinstance(one, m.CommitSubmit))
    assert StableDetail.decode(submit.entries[0].detail) == (2, b"d" * 16, (2, 3))
    assert submitted(chair.hear(a_checkpoint(), 1)) == [], "it is stable once"


def test_the_stable_checkpoint_is_told_when_it_is_committed() -> None:
    chair = Chair(heartbeat_ms=50)
    chair.lead()
    chair.open()
    chair.hear(a_checkpoint())
    chair.acknowledge(3)
    (beat,) = chair.wait()
    assert isinstance(beat, Multicast) and isinstance(beat.message, m.Heartbeat)
    assert beat.message.stable_checkpoint == 2


def test_two_different_digests_stop_all_deletion_with_an_alarm() -> None:
    chair = Chair(nodes=(1, 2, 3), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    chair.open()
    chair.hear(a_checkpoint(), 2)
    (alarm,) = chair.hear(a_checkpoint(digest=b"e" * 16), 3)
    assert isinstance(alarm, Alarm) and "DIVERGENCE" in alarm.text
    assert chair.hear(a_checkpoint(), 1) == [], "not even with enough equal ones"


def test_a_digest_that_differs_from_the_stable_one_is_a_divergence_too() -> None:
    chair = Chair()
    chair.lead()
    chair.open()
    chair.hear(a_checkpoint())
    (alarm,) = chair.hear(a_checkpoint(digest=b"e" * 16))
    assert isinstance(alarm, Alarm)
    assert chair.hear(a_checkpoint(n=3)) == []


def test_checkpoints_do_not_call_for_checkpoints() -> None:
    chair = Chair(checkpoint_entries=1)
    chair.lead()
    chair.open()
    reign = chair.sequencer.reign
    assert reign is not None
    before = reign.log.last
    effects = chair.hear(a_checkpoint(n=before))
    assert submitted(effects) == [[(before + 1, EntryKind.CHECKPOINT_STABLE)]]


def test_a_configuration_has_numbers_of_epochs_of_its_own() -> None:
    """A node with a new disk does not know which it claimed before: they were of earlier configurations."""
    chair = Chair(nodes=(1, 2, 3), config_id=3)
    chair.step()
    chair.wait()
    chair.hear(m.PreSealOk(1), 1)
    chair.hear(m.PreSealOk(1), 2)
    assert chair.superblock.epoch_claimed == make_epoch(2 * EPOCHS_PER_CONFIG + 1, 1)


def test_who_was_told_that_its_configuration_is_over_stands_when_nobody_leads_for_long() -> None:
    """Who told it may be unable to lead in the next one, or to show it the entry that began it."""
    chair = Chair(nodes=(1, 2, 3))
    stand_among_three(chair)
    chair.hear(m.SealNack(chair.epoch, ServerStatus.RETIRED), 2)
    assert chair.sequencer.state is State.FOLLOWER
    asked = []
    until = chair.now_ns + (chair.config.leaderless_ms + 10_000) * MS
    while not asked and chair.now_ns < until:
        asked = [one for one in sent(chair.wait()) if isinstance(one, m.PreSeal)]
        assert not asked or chair.now_ns >= chair.config.leaderless_ms * MS, "not at once"
    assert asked
