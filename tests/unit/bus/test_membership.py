"""Configurations that change while the channel runs, disks that are replaced, and nodes with few roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import Append, ConfigProposed, Installed, LogDamaged, OrderRecord, Received
from antiphon.bus.entries import QuantityDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.membership import in_force, may_begin, tells
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, ServerStatus
from antiphon.bus.records import LEARNED, EntriesAppended, EpochStarted, encode_order
from antiphon.bus.recovery import recover
from antiphon.ids import Mid, make_epoch
from tests.stage import MemoryPayloads, StageDisk
from tests.unit.bus.booth import NEW, OLD, Booth, learned, order_in, ticks
from tests.unit.bus.chair import keep_leading, lead_three, sent, stand_among_three, submitted
from tests.unit.bus.cluster import Cluster, disk_id


def grown(config: GroupConfig, **changes: Any) -> GroupConfig:
    return replace(config, config_id=config.config_id + 1, **changes)


def config_entry(number: int, config: GroupConfig, epoch: int = OLD) -> Entry:
    return Entry(number, 1, EntryKind.CONFIG, Mid(1, epoch, 99), 0, NO_DIGEST, config.encode())


# -- which configuration is in force ----------------------------------------------------------------

FIRST = GroupConfig.of("main", (1, 2, 3))
SECOND = grown(FIRST, commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
THIRD = grown(SECOND)


def ledger_of(config: GroupConfig | None) -> Ledger:
    ledger = Ledger()
    ledger.config = b"" if config is None else config.encode()
    return ledger


def test_without_any_entry_the_first_configuration_holds() -> None:
    assert in_force(FIRST, Ledger().encode(), CommitLog(), Ledger(), 0) == (FIRST, 0)


@pytest.mark.parametrize("log_config", [LEARNED, FIRST.config_id, SECOND.config_id, THIRD.config_id])
@pytest.mark.parametrize("numbers_behind", [0, 1])
def test_a_log_tells_which_configuration_is_in_force_exactly_if_a_later_life_would_go_by_it(
    log_config: int, numbers_behind: int
) -> None:
    behind = ticks(4, 4)[:numbers_behind]
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND), *behind])
    found = in_force(FIRST, Ledger().encode(), log, Ledger(), 0, log_config)
    assert tells(log, 3, SECOND, log_config) == (found.config == SECOND)
    assert not tells(CommitLog(0, ticks(1, 2)), 3, SECOND, log_config), "the entry is not here"
    assert tells(CommitLog(3), 3, SECOND, log_config), "it is in the ledger of the base"


def test_a_configuration_below_the_base_is_in_the_ledger_of_the_base() -> None:
    assert in_force(FIRST, ledger_of(SECOND).encode(), CommitLog(9), ledger_of(SECOND), 9) == (SECOND, 0)


def test_a_configuration_at_the_end_of_the_log_may_not_be_committed() -> None:
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND)])
    assert in_force(FIRST, Ledger().encode(), log, Ledger(), 0) == (FIRST, 0)


def test_a_configuration_whose_own_epoch_wrote_the_log_is_committed() -> None:
    """Else its servers would come back as voters of the former one, with logs told as of no epoch."""
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND)])
    assert in_force(FIRST, Ledger().encode(), log, Ledger(), 0, SECOND.config_id) == (SECOND, 3)


def test_a_configuration_at_the_end_of_what_was_learned_is_committed() -> None:
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND)])
    assert in_force(FIRST, Ledger().encode(), log, Ledger(), 0, LEARNED) == (SECOND, 3)


def test_a_configuration_that_is_followed_by_something_is_committed() -> None:
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND), *ticks(4, 4)])
    assert in_force(FIRST, Ledger().encode(), log, Ledger(), 0) == (SECOND, 3)


def test_a_configuration_that_the_checkpoint_knows_is_committed() -> None:
    log = CommitLog(0, [*ticks(1, 2), config_entry(3, SECOND)])
    assert in_force(FIRST, Ledger().encode(), log, ledger_of(SECOND), 3) == (SECOND, 3)
    assert in_force(FIRST, Ledger().encode(), log, ledger_of(THIRD), 7) == (THIRD, 7), "the log lacks it"


# -- the reign --------------------------------------------------------------------------------------


def test_behind_a_configuration_nothing_is_numbered() -> None:
    chair = lead_three(checkpoint_entries=1)
    effects = chair.step(ConfigProposed(grown(chair.config)))
    assert [kind for part in submitted(effects) for _, kind in part] == [EntryKind.CONFIG]
    assert chair.hear(m.ProducerOpen(2, b"r" * 16), 2) == []
    assert chair.step(ConfigProposed(grown(grown(chair.config)))) == [], "one change at a time"


def test_when_the_configuration_is_committed_the_reign_is_over() -> None:
    chair = lead_three()
    chair.step(ConfigProposed(grown(chair.config)))
    chair.acknowledge(2, 1)
    assert chair.sequencer.reign is not None
    effects = chair.acknowledge(2, 2)
    assert chair.sequencer.reign is None
    told = [effect.message for effect in effects if hasattr(effect, "message")]
    assert any(isinstance(one, m.Commit) and one.committed_upto == 2 for one in told)
    assert any(isinstance(one, m.Heartbeat) and one.committed_upto == 2 for one in told)


def test_a_configuration_whose_servers_are_not_there_is_not_begun() -> None:
    chair = lead_three(silence_ms=2_000)
    keep_leading(chair, 2_500)
    wanted = grown(chair.config)
    assert submitted(chair.step(ConfigProposed(wanted))) == []
    lagging = m.Presence("", "", 0, False, b"", 0)
    chair.presence.step(chair.now_ns, [Received(2, lagging)])
    assert submitted(chair.step(ConfigProposed(wanted))) == []
    chair.presence.step(chair.now_ns, [Received(2, replace(lagging, synchronized=True))])
    assert len(submitted(chair.step(ConfigProposed(wanted)))) == 1, "two of three will do"


@pytest.mark.parametrize("lag", [1, 2])
def test_a_node_that_is_a_window_behind_is_ready(lag: int) -> None:
    """A presence leaves with a heartbeat. If each such heartbeat numbers an entry (a TICK, while envelopes
    wait for a copy), no presence ever tells of the last one, and a new disk would never be listed.
    """
    chair = lead_three(window_entries=1)
    reign = chair.sequencer.reign
    assert reign is not None
    for server in (1, 2):
        chair.hear(m.ProducerOpen(server, bytes(16)), server)
        for acknowledging in (1, 2):
            chair.acknowledge(reign.log.last, acknowledging)
    told = m.Presence("", "", reign.committed_upto - lag, True, b"", 0)
    chair.presence.step(chair.now_ns, [Received(2, told), Received(3, told)])
    is_proposed = bool(submitted(chair.step(ConfigProposed(grown(chair.config)))))
    assert is_proposed is (lag == 1)


@pytest.mark.parametrize(
    ("keepers", "wanted", "ready", "may"),
    [
        # Node 3 leaves and 4 is new: both who stay are needed, for 4 has no state, and one may be lost.
        ((1, 2, 3), (1, 2, 4), (1, 2, 4), True),
        ((1, 2, 3), (1, 2, 4), (1, 4), False),
        ((1, 2, 3), (1, 2, 4), (1, 2), True),
        # Nobody leaves: nothing is lost by one more.
        ((1, 2, 3), (1, 2, 3, 4), (1, 3, 4), True),
        # One of two stays: it must be ready.
        ((1, 2), (1, 3, 4), (1, 3, 4), True),
        ((1, 2), (1, 3, 4), (3, 4), False),
        # One becomes three, and three become one.
        ((1,), (1, 2, 3), (1, 2), True),
        ((1, 2, 3), (1,), (1,), True),
        # Too few voters.
        ((1, 2, 3), (1, 2, 3), (1,), False),
    ],
)
def test_a_configuration_begins_with_enough_who_vote_and_who_hand_on_the_state(
    keepers: tuple[int, ...], wanted: tuple[int, ...], ready: tuple[int, ...], may: bool
) -> None:
    assert may_begin(GroupConfig.of("main", keepers), GroupConfig.of("main", wanted), ready) is may


def test_a_sequencer_waits_for_the_state_to_be_with_two_who_stay() -> None:
    chair = lead_three(silence_ms=2_000)
    roles = ("commit_servers", "data_servers", "checkpoint_servers", "candidates")
    wanted = grown(chair.config, nodes=(1, 2, 3, 4), **dict.fromkeys(roles, (1, 2, 4)))
    here = m.Presence("", "", 0, True, b"", 0)
    lacking = replace(here, synchronized=False)
    chair.presence.reconfigure(wanted)
    chair.presence.step(chair.now_ns, [Received(2, lacking), Received(4, here)])
    assert submitted(chair.step(ConfigProposed(wanted))) == [], "two of three vote, and one has a state"
    chair.presence.step(chair.now_ns, [Received(2, here)])
    assert len(submitted(chair.step(ConfigProposed(wanted)))) == 1


@pytest.mark.parametrize("config_id", [1, 3])
def test_a_configuration_must_follow_the_present_one(config_id: int) -> None:
    chair = lead_three()
    assert submitted(chair.step(ConfigProposed(replace(chair.config, config_id=config_id)))) == []


def test_a_candidate_that_finds_a_configuration_commits_it_and_does_not_lead() -> None:
    from tests.unit.bus.chair import OLD as THEIRS
    from tests.unit.bus.chair import Chair
    from tests.unit.bus.chair import ticks as theirs

    entry = config_entry(3, grown(GroupConfig.of("main", (1, 2, 3))), THEIRS)
    chair = Chair(nodes=(1, 2, 3), entries=[*theirs(1, 2), entry])
    epoch = stand_among_three(chair)
    chair.hear(m.SealOk(epoch, THEIRS, 0, 3, 0), 2)
    chair.hear(m.SealOk(epoch, THEIRS, 0, 3, 0), 1)
    chair.hear(m.FetchLogReply(epoch, 1, (*theirs(1, 2), entry), 3))
    chair.acknowledge(3, 1)
    effects = chair.acknowledge(3, 2)
    assert chair.sequencer.reign is None
    assert submitted(effects) == [], "no claim"
    commits = [effect.message for effect in effects if hasattr(effect, "message")]
    assert any(isinstance(one, m.Commit) and one.entries[-1] == entry for one in commits)


# -- commit servers ---------------------------------------------------------------------------------


def test_a_server_that_knows_the_next_configuration_names_it_to_a_candidate_of_the_last() -> None:
    booth = Booth(last=3, committed=3)
    second = grown(booth.config)
    booth.server.reconfigure(second, 3, None)
    nack = m.SealNack(OLD, ServerStatus.RETIRED, second.encode())
    assert sent(booth.hear(m.Seal(make_epoch(7, 3), 0, 1), 3)) == [nack]
    assert sent(booth.hear(m.EpochStart(make_epoch(7, 3), 4, (), 3, config_id=1), 3)) == [nack]
    assert booth.server.promised == OLD


def test_a_server_votes_in_a_configuration_only_with_its_beginning_committed() -> None:
    booth = Booth(last=3, committed=2)
    second = grown(booth.config)
    booth.server.reconfigure(second, 3, None)
    seal = m.Seal(make_epoch(7, 3), 0, 2)
    assert sent(booth.hear(seal, 3)) == [m.FetchId(3, 1_024)], "it asks for what it lacks"
    booth.step(learned(ticks(3, 3)[0]))
    booth.hear(seal, 3)
    assert sent(booth.sync()) == [m.SealOk(make_epoch(7, 3), 0, 0, 3, 3)], "no epoch of this one wrote it"


def test_a_server_whose_checkpoint_knows_a_configuration_votes_once_its_log_holds_the_beginning() -> None:
    """The checkpoint, taken behind 6, does not tell where the configuration began. Node 2 must not wait for
    6: nobody can call 5 and 6 committed before a quorum votes, and this vote may be wanted for it."""
    booth = Booth(last=1, committed=1)
    second = grown(booth.config)
    booth.server.reconfigure(second, 6, None)
    seal = m.Seal(make_epoch(7, 3), 4, 2)
    booth.hear(m.FetchIdReply(ticks(2, 3), 4, 0), 1)
    booth.hear(seal, 3)
    assert sent(booth.sync()) == [], "the beginning is missing"
    booth.hear(m.FetchIdReply((config_entry(4, second),), 4, 0), 1)
    assert booth.server.next_deadline_ns() is None, "nothing more is needed"
    later = in_force(FIRST, ledger_of(None).encode(), booth.server.log, ledger_of(second), 6, LEARNED)
    assert later == (second, 4), "a later life would say the same"
    booth.hear(seal, 3)
    assert sent(booth.sync()) == [m.SealOk(make_epoch(7, 3), 0, 0, 4, 4)]


def test_an_earlier_configuration_in_the_log_is_no_beginning_of_this_one() -> None:
    booth = Booth(last=1, committed=1)
    second = grown(booth.config)
    booth.server.reconfigure(grown(second), 6, None)
    booth.hear(m.FetchIdReply((*ticks(2, 3), config_entry(4, second)), 4, 0), 1)
    booth.hear(m.Seal(make_epoch(7, 3), 4, 3), 3)
    assert sent(booth.sync()) == []


def test_a_base_whose_ledger_knows_the_configuration_is_behind_its_beginning() -> None:
    booth = Booth(last=1, committed=1)
    second = grown(booth.config)
    booth.server.reconfigure(second, 6, None)
    seal = m.Seal(make_epoch(7, 3), 4, 2)
    booth.step(Installed(3, ledger_of(None).encode()))
    booth.hear(seal, 3)
    assert sent(booth.sync()) == [], "the beginning may lie behind this base"
    booth.step(Installed(4, ledger_of(second).encode()))
    booth.hear(seal, 3)
    assert sent(booth.sync()) == [m.SealOk(make_epoch(7, 3), 0, 4, 4, 4)]


def test_a_log_of_the_last_configuration_ranks_below_all_of_this_one_whatever_its_epoch() -> None:
    """1. A candidate of the old configuration starts node 2 in epoch 100. 2. In the new one epoch 50 has
    committed more. If node 2 told its log as one of epoch 100, it would be adopted, and that would be lost.
    """
    booth = Booth(last=3, committed=3)
    booth.hear(m.EpochStart(make_epoch(100, 3), 4, (), 3), 3)
    booth.sync()
    booth.server.reconfigure(grown(booth.config), 3, None)
    booth.hear(m.Seal(make_epoch(101, 1), 0, 2), 1)
    assert sent(booth.sync()) == [m.SealOk(make_epoch(101, 1), 0, 0, 3, 3)]
    booth.hear(m.EpochStart(make_epoch(101, 1), 4, (), 3, config_id=2), 1)
    booth.sync()
    booth.hear(m.Seal(make_epoch(102, 3), 0, 2), 3)
    assert sent(booth.sync()) == [m.SealOk(make_epoch(102, 3), make_epoch(101, 1), 0, 3, 3)]


def test_a_sequencer_of_the_last_configuration_appends_nothing_any_more() -> None:
    booth = Booth(last=3, committed=3)
    booth.server.reconfigure(grown(booth.config), 3, None)
    (nack,) = sent(booth.hear(m.CommitSubmit(OLD, 3, ticks(4, 4), 3), 1))
    assert isinstance(nack, m.SealNack) and nack.status is ServerStatus.RETIRED
    assert booth.server.log.last == 3


def test_what_a_former_voter_has_that_came_to_nothing_is_cut_off_when_it_learns() -> None:
    booth = Booth(last=5, committed=2)
    booth.server.reconfigure(
        grown(booth.config, commit_servers=(1, 3), candidates=(1, 3), commit_quantity=2), 4, None
    )
    theirs = (*ticks(3, 3), *ticks(4, 6, make_epoch(9, 1)))
    effects = booth.hear(m.FetchIdReply(theirs, 6, 0), 1)
    assert order_in(effects) == [EpochStarted(OLD, 3, theirs[1:], LEARNED)]
    assert booth.server.log.between(0, 6) == (*ticks(1, 3), *theirs[1:])
    assert booth.server.committed_upto == 6


def test_what_a_former_voter_learned_is_no_log_of_its_old_epoch_also_in_a_later_life() -> None:
    """The later life may know of no other configuration, and must not be counted in an epoch that never sent
    it what it holds. The promise stays: the record that made it may be gone."""
    booth = Booth(last=3, committed=3)
    booth.hear(m.Seal(NEW, 0), 3)
    booth.sync()
    booth.server.reconfigure(grown(booth.config, commit_servers=(1, 3), candidates=(1, 3)), 4, None)
    effects = booth.hear(m.Commit(NEW, ticks(4, 5), 5), 1) + booth.hear(m.Commit(NEW, ticks(6, 6), 6), 1)
    assert order_in(effects) == [
        EpochStarted(NEW, 3, ticks(4, 5), LEARNED),
        EntriesAppended(NEW, 5, ticks(6, 6)),
    ]
    before = Append(0, OrderRecord(encode_order(EpochStarted(OLD, 0, ticks(1, 3))), 3))
    written = [effect for effect in effects if isinstance(effect, Append)]
    found = recover(StageDisk([before, *written]).found(), MemoryPayloads())
    assert (found.log_epoch, found.log.last, found.promised) == (0, 6, NEW)


def test_a_server_that_does_not_know_a_configuration_does_not_vote_in_it() -> None:
    booth = Booth(last=3, committed=3)
    assert booth.hear(m.Seal(make_epoch(7, 3), 0, 2), 3) == []
    assert booth.hear(m.EpochStart(make_epoch(7, 3), 4, (), 3, config_id=2), 3) == []


def learner() -> Booth:
    return Booth(commit_servers=(1, 3), candidates=(1,), commit_quantity=2, seal_quantity=2)


def test_a_learner_writes_down_what_is_committed_and_nothing_is_missing() -> None:
    booth = learner()
    booth.hear(m.Commit(OLD, ticks(1, 2), 2), 1)
    assert (booth.server.log.last, booth.server.committed_upto, booth.server.log_epoch) == (2, 2, 0)
    assert booth.hear(m.Commit(OLD, ticks(5, 6), 6), 1) == [], "a gap"
    (fetch,) = booth.hear(m.Heartbeat(OLD, 6, 0, 1, 0, True), 1)
    assert sent([fetch]) == [m.FetchId(3, booth.config.fetch_entries_max)]
    booth.hear(m.FetchIdReply(ticks(3, 6), 6, 0), 3)
    assert booth.server.log.between(0, 6) == ticks(1, 6)


def test_a_learner_asks_on_as_long_as_pages_come() -> None:
    booth = learner()
    booth.hear(m.Heartbeat(OLD, 9, 0, 1, 0, True), 1)
    effects = booth.hear(m.FetchIdReply(ticks(1, 4), 9, 0), 3)
    assert sent(effects) == [m.FetchId(5, booth.config.fetch_entries_max)]


def test_a_learner_that_becomes_a_voter_votes_with_all_it_has_as_committed() -> None:
    booth = learner()
    booth.hear(m.Commit(OLD, ticks(1, 3), 3), 1)
    epoch = make_epoch(7, 3)
    assert booth.hear(m.Seal(epoch, 0), 3) == []
    booth.server.reconfigure(GroupConfig.of("main", (1, 2, 3), config_id=2), 3, None)
    booth.hear(m.Seal(epoch, 0, 2), 3)
    assert sent(booth.sync()) == [m.SealOk(epoch, 0, 0, 3, 3)]


# -- the whole --------------------------------------------------------------------------------------


def disks(*nodes: int) -> tuple[bytes, ...]:
    return tuple(disk_id(node) for node in nodes)


def alone(nodes: tuple[int, ...], **settings: Any) -> GroupConfig:
    """Node 1 does everything; the others store and follow."""
    return GroupConfig.of(
        "main",
        nodes,
        commit_servers=(1,),
        candidates=(1,),
        commit_quantity=1,
        seal_quantity=1,
        data_quantity=1,
        checkpoint_quantity=1,
        **settings,
    )


def all_of(config: GroupConfig, nodes: tuple[int, ...]) -> GroupConfig:
    whole = GroupConfig.of("main", nodes)
    return grown(
        config,
        nodes=nodes,
        commit_servers=nodes,
        candidates=nodes,
        data_servers=nodes,
        checkpoint_servers=nodes,
        commit_quantity=whole.commit_quantity,
        seal_quantity=whole.seal_quantity,
        data_quantity=whole.data_quantity,
        checkpoint_quantity=whole.checkpoint_quantity,
        disk_ids=(),
    )


def test_one_node_becomes_three_and_then_survives_the_first() -> None:
    cluster = Cluster(alone((1, 2, 3)))
    cluster.submit(1, 5)
    cluster.run_until(lambda: cluster.is_calm)
    cluster.propose(all_of(cluster.config, (1, 2, 3)))
    cluster.submit(2, 5)
    cluster.run_until(lambda: cluster.is_calm)
    assert [node.replica.config.config_id for node in cluster.nodes.values()] == [2, 2, 2]
    cluster.crash(1)
    cluster.submit(3, 5)
    cluster.run_until(lambda: cluster.is_calm)
    assert cluster.leader.node_id in (2, 3)


def test_a_change_of_configuration_is_over_within_a_blink() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3)))
    cluster.run_until(lambda: cluster.is_calm)
    before, start = cluster.leader.replica.epoch, cluster.world.now_ns
    cluster.propose(grown(cluster.config))
    cluster.run_until(lambda: cluster.has_leader and cluster.leader.replica.epoch > before)
    assert cluster.world.now_ns - start < 100_000_000, "who led stands at once, and nobody waits for it"


def test_who_is_removed_hears_it_at_once() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3)))
    cluster.run_until(lambda: cluster.has_leader)
    leader = cluster.leader.node_id
    removed = min(node for node in (1, 2, 3) if node != leader)
    left = tuple(node for node in (1, 2, 3) if node != removed)
    roles = dict.fromkeys(("commit_servers", "data_servers", "checkpoint_servers", "candidates"), left)
    cluster.propose(grown(cluster.config, nodes=left, commit_quantity=2, seal_quantity=1, **roles))
    cluster.run(100)
    assert cluster.nodes[removed].replica.config.config_id == 2


def test_a_node_that_finds_its_log_damaged_stops_leading_and_votes_no_more() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3)))
    cluster.submit(2, 3)
    cluster.run_until(lambda: cluster.is_calm)
    damaged = cluster.leader
    damaged.take_now(LogDamaged())
    assert not damaged.is_leading
    sent_before = len(cluster.sent)
    cluster.submit(damaged.node_id, 3)
    cluster.run_until(lambda: cluster.is_calm)
    assert cluster.leader is not damaged, "the two others are enough"
    said = [message for sender, _, message in cluster.sent[sent_before:] if sender == damaged.node_id]
    votes = (m.SealOk, m.CommitAcknowledge)
    assert not any(
        getattr(vote, "status", None) is not ServerStatus.DAMAGED for vote in said if type(vote) in votes
    )


def test_all_servers_are_replaced() -> None:
    nodes = (1, 2, 3, 4, 5, 6)
    first = GroupConfig.of("main", nodes)
    old, new = (1, 2, 3), (4, 5, 6)
    first = replace(
        first,
        commit_servers=old,
        candidates=old,
        commit_quantity=2,
        seal_quantity=2,
        checkpoint_servers=nodes,
    )
    cluster = Cluster(first)
    cluster.submit(5, 5)
    cluster.run_until(lambda: cluster.is_calm)
    cluster.propose(grown(first, commit_servers=new, candidates=new))
    cluster.run_until(lambda: cluster.is_calm and cluster.leader.node_id in new)
    for node in old:
        cluster.crash(node)
    cluster.submit(4, 5)
    cluster.run_until(lambda: cluster.is_calm)


def test_after_a_power_cut_the_second_configuration_holds() -> None:
    cluster = Cluster(alone((1, 2, 3)))
    cluster.run_until(lambda: cluster.is_calm)
    cluster.propose(all_of(cluster.config, (1, 2, 3)))
    cluster.submit(2, 3)
    cluster.run_until(lambda: cluster.is_calm)
    for node in (1, 2, 3):
        cluster.crash(node)
    for node in (2, 3):
        cluster.start(node)
    cluster.submit(3, 3)
    cluster.run_until(lambda: cluster.is_calm)
    assert cluster.leader.replica.config.config_id == 2


@pytest.mark.parametrize("after_ms", [0, 1, 2, 3, 4, 5, 7, 9])
def test_a_sequencer_that_dies_in_the_middle_of_a_change_leaves_one_configuration(after_ms: int) -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3, 4, 5), data_quantity=2))
    cluster.submit(2, 5)
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader.node_id
    rest = tuple(node for node in (1, 2, 3, 4, 5) if node != leader)
    cluster.propose(
        grown(cluster.config, commit_servers=rest, candidates=rest, commit_quantity=3, seal_quantity=2)
    )
    cluster.run(after_ms)
    cluster.crash(leader)
    cluster.submit(rest[0], 5)
    cluster.run_until(lambda: cluster.is_calm)
    configs = {node.replica.config.config_id for node in cluster.living}
    assert len(configs) == 1
    cluster.start(leader)
    cluster.run_until(lambda: cluster.is_calm)


# -- disks ------------------------------------------------------------------------------------------


def test_a_wiped_disk_is_a_new_server_and_joins_by_itself() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3), disk_ids=disks(1, 2, 3)))
    cluster.submit(1, 5)
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader.node_id
    lost = next(node for node in (1, 2, 3) if node != leader)
    wiped = cluster.restart(lost, is_wiped=True)
    assert wiped.replica.is_amnesiac
    cluster.submit(leader, 5)
    cluster.run_until(lambda: cluster.is_calm and not wiped.replica.is_amnesiac)
    config = cluster.leader.replica.config
    assert config.config_id == 2 and config.disk_of(lost) == disk_id(lost, 1)
    other = next(node for node in (1, 2, 3) if node not in (leader, lost))
    cluster.crash(other)
    cluster.submit(lost, 5)
    cluster.run_until(lambda: cluster.is_calm)


def test_a_wiped_disk_has_no_vote_before_it_is_listed() -> None:
    """Of three one is gone, and one is wiped: the survivor must not make a quorum with it."""
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3), disk_ids=disks(1, 2, 3)))
    cluster.submit(1, 3)
    cluster.run_until(lambda: cluster.is_calm)
    cluster.crash(1)
    wiped = cluster.restart(2, is_wiped=True)
    cluster.sent.clear()
    cluster.run(5_000)
    assert not cluster.nodes[3].is_leading and not wiped.is_leading
    for vote in (m.SealOk, m.PreSealOk, m.CommitAcknowledge, m.HeartbeatAck, m.DataReport):
        assert cluster.said(vote, by=2) == []
    cluster.start(1)
    cluster.run_until(lambda: cluster.is_calm and not wiped.replica.is_amnesiac)


def test_what_comes_from_another_disk_than_the_listed_one_does_not_count() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3), disk_ids=disks(1, 2, 3)))
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader
    lost = next(node for node in (1, 2, 3) if node != leader.node_id)
    vote = cluster.said(m.HeartbeatAck, by=lost)[-1]
    leader.take_now(Received(lost, vote, disk_id(lost)))
    assert leader.replica.votes_dropped == 0
    leader.take_now(Received(lost, vote, disk_id(lost, 7)))
    assert leader.replica.votes_dropped == 1


# -- nodes with few roles ---------------------------------------------------------------------------


def with_witness(**settings: Any) -> GroupConfig:
    """Two nodes with everything, and a third that only votes."""
    return GroupConfig.of(
        "main",
        (1, 2, 3),
        data_servers=(1, 2),
        checkpoint_servers=(1, 2),
        candidates=(1, 2),
        **settings,
    )


def quantities(cluster: Cluster) -> list[int]:
    entries = [entry for entry in cluster.order.values() if entry.kind is EntryKind.QUANTITY]
    return [QuantityDetail.decode(entry.detail).data_quantity for entry in entries]


def test_a_witness_holds_the_order_and_no_state_and_never_leads() -> None:
    cluster = Cluster(with_witness())
    cluster.submit(3, 5)
    cluster.run_until(lambda: cluster.is_calm)
    witness = cluster.nodes[3]
    assert cluster.applied[3] == [] and witness.replica.last == cluster.leader.replica.last
    assert witness.replica.applied == cluster.leader.replica.applied
    cluster.restart(3)
    cluster.crash(cluster.leader.node_id)
    cluster.run_until(lambda: cluster.has_leader)
    assert cluster.leader.node_id in (1, 2)


def test_with_a_witness_one_copy_will_do_while_the_other_is_away_and_no_longer() -> None:
    cluster = Cluster(with_witness(min_copies=1))
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader.node_id
    other = 3 - leader
    assert not cluster.leader.replica.is_degraded
    cluster.crash(other)
    cluster.submit(leader, 3)
    cluster.run_until(lambda: cluster.is_calm)
    assert quantities(cluster) == [1]
    assert cluster.leader.replica.is_degraded
    cluster.start(other)
    cluster.run_until(lambda: len(quantities(cluster)) == 2)
    assert quantities(cluster) == [1, 2]
    cluster.submit(other, 3)
    cluster.run_until(lambda: cluster.is_calm)
    assert not any(node.replica.is_degraded for node in cluster.nodes.values())


def test_with_a_witness_a_failover_takes_no_silence_of_client_managers() -> None:
    cluster = Cluster(with_witness(min_copies=1))
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader.node_id
    cluster.crash(leader)
    cluster.submit(3 - leader)
    cluster.run_until(lambda: cluster.is_calm, ms_max=1_500)
    assert quantities(cluster) == [1]


def test_without_leave_to_go_on_with_one_copy_numbering_waits() -> None:
    cluster = Cluster(with_witness())
    cluster.run_until(lambda: cluster.is_calm)
    leader = cluster.leader.node_id
    cluster.crash(3 - leader)
    cluster.submit(leader, 3)
    cluster.run(5_000)
    assert cluster.has_leader and cluster.leader.open_tags
    cluster.start(3 - leader)
    cluster.run_until(lambda: cluster.is_calm)


def test_a_node_that_only_stores_follows_and_never_votes() -> None:
    config = GroupConfig.of(
        "main",
        (1, 2, 3, 4),
        commit_servers=(1, 2, 3),
        candidates=(1, 2, 3),
        commit_quantity=2,
        seal_quantity=2,
    )
    cluster = Cluster(config)
    cluster.submit(4, 5)
    cluster.run_until(lambda: cluster.is_calm)
    backup = cluster.nodes[4]
    assert cluster.applied[4] == cluster.applied[cluster.leader.node_id]
    # It keeps the order, too.
    cluster.run_until(lambda: backup.replica.last == cluster.leader.replica.last)
    assert cluster.said(m.DataReport, by=4)
    for vote in (m.SealOk, m.PreSealOk, m.CommitAcknowledge, m.HeartbeatAck, m.Seal):
        assert cluster.said(vote, by=4) == []
