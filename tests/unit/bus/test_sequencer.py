"""Steps of a sequencer: how it comes to lead, and when it stops."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer, KeptCheckpoint
from antiphon.bus.effects import (
    Append,
    Multicast,
    Received,
    RoleEffect,
    Send,
    SuperblockRecord,
    Synced,
)
from antiphon.bus.group import MS
from antiphon.bus.messages import EntryKind, ServerStatus
from antiphon.bus.sequencer import State
from antiphon.ids import Mid, make_epoch
from tests.unit.bus.chair import (
    FIRST,
    OLD,
    Chair,
    keep_leading,
    lead_three,
    sent,
    stand_among_three,
    submitted,
    ticks,
)

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
    epoch = chair.epoch = chair.epochs.epoch_claimed
    assert chair.step(Synced(1)) == [Send(1, m.Seal(epoch, 2))]
    assert chair.hear(m.SealOk(epoch, OLD, 0, 5, 2)) == [Send(1, m.FetchLog(epoch, 3))]
    assert chair.hear(m.FetchLogReply(epoch, 3, ticks(3, 4), 5)) == [Send(1, m.FetchLog(epoch, 5))]
    start = chair.hear(m.FetchLogReply(epoch, 5, ticks(5, 5), 5))
    assert start == [Send(1, m.EpochStart(epoch, 6, (), 2, OLD))], "it is the log that the server has"
    assert chair.sequencer.state is State.STARTING
    effects = chair.acknowledge(5)
    assert effects[0] == Multicast(m.Commit(epoch, ticks(3, 5), 5))
    assert submitted(effects) == [[(6, EntryKind.PRIMARY_CLAIM)]]


def test_the_base_may_move_while_a_log_is_adopted() -> None:
    chair = Chair(entries=ticks(1, 5), committed=2, fetch_entries_max=2)
    chair.step()
    epoch = chair.epoch = chair.epochs.epoch_claimed
    chair.step(Synced(1))
    chair.hear(m.SealOk(epoch, OLD, 0, 5, 2))
    chair.commit_server.log.forget(4)
    chair.hear(m.FetchLogReply(epoch, 3, ticks(3, 4), 5))
    chair.hear(m.FetchLogReply(epoch, 5, ticks(5, 5), 5))
    effects = chair.acknowledge(5)
    assert effects[0] == Multicast(m.Commit(epoch, ticks(5, 5), 5)), "the rest is in a checkpoint"
    assert chair.sequencer.state is State.LEADING


def test_a_base_beyond_what_a_reign_has_committed_is_not_of_its_order() -> None:
    chair = lead_three()
    chair.open()
    chair.acknowledge(1, 1)
    chair.acknowledge(1, 2)
    reign = chair.sequencer.reign
    assert reign is not None and (reign.committed_upto, reign.log.last) == (1, 2)
    reign.forget(2)
    assert reign.log.base == 0
    reign.forget(1)
    assert reign.log.base == 1


def test_what_was_adopted_is_not_committed_before_it_is_held_in_the_new_epoch() -> None:
    chair = Chair(entries=ticks(1, 2))
    chair.step()
    chair.epoch = chair.epochs.epoch_claimed
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


def test_starts_that_were_sent_are_not_remembered_for_the_whole_reign() -> None:
    chair = lead_three(heartbeat_ms=50)
    chair.open()
    reign = chair.sequencer.reign
    assert reign is not None
    for have in range(3):
        chair.hear(m.StartNeed(chair.epoch, have, have, OLD), 3)
    assert reign._started
    keep_leading(chair, 150)
    assert not reign._started


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
        chair.hear(m.CheckpointReport(3, b"d" * 16, 0), server)
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


def test_who_leads_and_has_no_checkpoint_to_give_calls_for_one() -> None:
    chair = lead_three()
    checkpoints = CheckpointServer(chair.config, 1)
    chair.commit_server.reconfigure(chair.config, 0, checkpoints)
    assert EntryKind.CHECKPOINT_MARK not in kinds_in(keep_leading(chair, 200)), "its log has everything"
    chair.commit_server.log.reset(1)
    marks = kinds_in(keep_leading(chair, 200)).count(EntryKind.CHECKPOINT_MARK)
    assert marks == 1, "one, until it is stable"
    checkpoints.stable = KeptCheckpoint(9, bytes(16), 1)
    assert EntryKind.CHECKPOINT_MARK not in kinds_in(keep_leading(chair, 200))


def kinds_in(effects: list[RoleEffect]) -> list[EntryKind]:
    return [kind for part in submitted(effects) for _, kind in part]


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
    chair.epochs.promised = make_epoch(9, 2)
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
