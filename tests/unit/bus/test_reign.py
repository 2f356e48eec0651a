"""Steps of a sequencer that leads: how it numbers, commits, fences and marks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Alarm,
    BeatWanted,
    Multicast,
    Received,
    RoleEffect,
    Send,
)
from antiphon.bus.entries import FenceDetail, OpenDetail, QuantityDetail, StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.marking import MARK_LOST_MS, MARKS_APART_MS, MARKS_IN_VAIN_MAX
from antiphon.bus.messages import EntryKind, NackReason, ServerStatus
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.reign import Laggards
from antiphon.bus.sequencer import EPOCHS_PER_CONFIG, State
from antiphon.ids import Mid, make_epoch
from tests.stage import data_of, item_of
from tests.unit.bus.chair import (
    OLD,
    RUN,
    Chair,
    keep_leading,
    lead_three,
    numbered,
    refused,
    sent,
    stand_among_three,
    submitted,
)

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
    chair = lead_three(heard_ns=0, silence_ms=2_000)
    chair.open(3)
    assert fences(keep_leading(chair, 1_900)) == []


def test_our_own_producer_and_those_that_are_heard_are_not_fenced() -> None:
    chair = lead_three(silence_ms=2_000)
    chair.open(1)
    chair.open(2)
    for _ in range(10):
        chair.presence.hear(chair.now_ns, 2)
        assert fences(keep_leading(chair, 1_000)) == []


# -- copies -----------------------------------------------------------------------------------------

# Nodes 1 and 3 keep messages, and 2 is a witness.
WITNESS = {"data_servers": (1, 3), "checkpoint_servers": (1, 3), "candidates": (1, 3), "min_copies": 1}


def quantities(effects: list[RoleEffect]) -> list[int]:
    return [
        QuantityDetail.decode(entry.detail).data_quantity
        for message in sent(effects, 1)
        if isinstance(message, m.CommitSubmit)
        for entry in message.entries
        if entry.kind is EntryKind.QUANTITY
    ]


def test_one_copy_will_do_after_a_silence_that_fences_nobody() -> None:
    chair = lead_three(**WITNESS, copies_silence_ms=500, silence_ms=2_000)
    chair.open(3)
    pe = chair.open()
    assert numbered(chair.report(Mid(1, pe, 1))) == []
    assert quantities(keep_leading(chair, 450)) == []
    effects = keep_leading(chair, 100)
    assert quantities(effects) == [1] and numbered(effects) == [(5, 1)]
    assert fences(effects) == []
    effects = keep_leading(chair, 1_400)
    assert quantities(effects) == [] and fences(effects) == [], "silent for less than two seconds"
    assert [fence.pid for fence in fences(keep_leading(chair, 100))] == [3]


def test_a_fence_may_come_before_one_copy_will_do() -> None:
    chair = lead_three(**WITNESS, copies_silence_ms=2_000, silence_ms=500)
    chair.open(3)
    effects = keep_leading(chair, 1_950)
    assert [fence.pid for fence in fences(effects)] == [3] and quantities(effects) == []
    assert quantities(keep_leading(chair, 100)) == [1]


def test_two_copies_are_wanted_while_the_other_data_server_is_heard_and_when_it_is_back() -> None:
    chair = lead_three(**WITNESS, copies_silence_ms=500)
    for _ in range(5):
        chair.presence.hear(chair.now_ns, 3)
        assert quantities(keep_leading(chair, 450)) == []
    assert quantities(keep_leading(chair, 100)) == [1]
    for has_caught_up in (False, True):
        presence = m.Presence("", "", 0, has_caught_up, b"", 0)
        chair.presence.step(chair.now_ns, [Received(3, presence)])
        assert quantities(keep_leading(chair, 100)) == ([2] if has_caught_up else [])


def test_a_silence_before_the_reign_takes_no_copy_away() -> None:
    chair = lead_three(heard_ns=0, **WITNESS, copies_silence_ms=500)
    assert quantities(keep_leading(chair, 450)) == []


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


def test_a_report_longer_than_the_window_is_taken_as_far_as_its_beginning_makes_room() -> None:
    chair = Chair(window_entries=2)
    chair.lead()
    pe = chair.open()
    effects = chair.report(*(Mid(1, pe, pseq) for pseq in (1, 2, 3, 4, 5)))
    assert numbered(effects) == [(3, 1), (4, 2)]
    # 3 and 4 wait for the window; 5 is two ahead of what could be numbered, and is reported again later.
    assert refused(effects) == [(5, NackReason.GAP)]
    assert numbered(chair.acknowledge(4)) == [(5, 3), (6, 4)]


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


def test_a_journal_that_holds_space_calls_for_a_checkpoint_though_nothing_is_said() -> None:
    chair = Chair()
    chair.lead()
    chair.open()
    held = m.HeartbeatAck(chair.epoch, 10_000, 7)
    assert submitted(chair.hear(held)) == [[(3, EntryKind.CHECKPOINT_MARK)]]
    assert submitted(chair.hear(held)) == [], "one is on its way"
    chair.acknowledge(3)
    chair.hear(a_checkpoint(3))
    chair.acknowledge(4)
    assert submitted(chair.hear(held)) == [], "not before a while has passed"
    chair.now_ns += MARKS_APART_MS * MS
    assert submitted(chair.hear(held)) == [[(5, EntryKind.CHECKPOINT_MARK)]]


def marks_for(chair: Chair, held: m.HeartbeatAck) -> int:
    """Let every checkpoint become stable that held space calls for; how many there were."""
    for count in range(MARKS_IN_VAIN_MAX + 2):
        chair.now_ns += MARKS_APART_MS * MS
        marks = submitted(chair.hear(held))
        if not marks:
            return count
        ((number, kind),) = marks[0]
        assert kind is EntryKind.CHECKPOINT_MARK
        chair.acknowledge(number)
        chair.hear(a_checkpoint(number))
        chair.acknowledge(number + 1)
    raise AssertionError("one mark follows the other for ever")


def test_entries_without_data_fill_a_journal_too_and_call_for_checkpoints_again() -> None:
    chair = Chair()
    chair.lead()
    chair.open()
    held = m.HeartbeatAck(chair.epoch, 10_000, 7)
    assert marks_for(chair, held) == MARKS_IN_VAIN_MAX
    assert marks_for(chair, held) == 0, "these do not help"
    (((number, kind),),) = submitted(chair.hear(m.ProducerOpen(1, bytes(16))))
    assert kind is EntryKind.PRODUCER_OPEN
    chair.acknowledge(number)
    assert marks_for(chair, held) == MARKS_IN_VAIN_MAX


def test_a_checkpoint_server_that_took_no_checkpoint_is_given_time_before_the_next_mark() -> None:
    chair = Chair(nodes=(1, 2, 3), commit_servers=(1,), commit_quantity=1, seal_quantity=1, candidates=(1,))
    chair.lead()
    chair.open()
    held = m.HeartbeatAck(chair.epoch, 10_000, 7)
    assert submitted(chair.hear(held)) == [[(3, EntryKind.CHECKPOINT_MARK)]]
    chair.acknowledge(3)
    chair.hear(a_checkpoint(3), 2)
    chair.hear(a_checkpoint(3), 3)
    chair.acknowledge(4)
    chair.now_ns += MARKS_APART_MS * MS
    assert submitted(chair.hear(held)) == [], "the disk of server 1 may be full"
    chair.now_ns += MARK_LOST_MS * MS
    assert submitted(chair.hear(held)) == [[(5, EntryKind.CHECKPOINT_MARK)]]


def a_checkpoint(n: int = 2, digest: bytes = b"d" * 16) -> m.CheckpointReport:
    return m.CheckpointReport(n, digest, 0)


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
    assert chair.epochs.epoch_claimed == make_epoch(2 * EPOCHS_PER_CONFIG + 1, 1)


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


# -- laggards ----------------------------------------------------------------------------------------

LAGGING = GroupConfig.of("main", (1, 2, 3), lag_max=100, laggard_wait_ms=1_000, silence_ms=5_000)


class Laggard:
    """Node 1 leads, 2 keeps up, and 3 says how far it is."""

    def __init__(self) -> None:
        self.presence = PresenceKeeper(LAGGING, 1)
        self.laggards = Laggards(1, self.presence, 0)
        self.alarms: list[RoleEffect] = []

    def at(self, now_ms: int, last: int, applied: int, acknowledged: int = 0) -> bool:
        """Does anybody hold the numbering back?"""
        for node, number in ((2, last), (3, applied)):
            said = m.Presence("", "", number, True, b"", 0)
            self.presence.step(now_ms * MS, [Received(node, said)])
        match = {1: last, 2: last, 3: acknowledged}
        self.laggards.look(now_ms * MS, LAGGING, last, match, self.alarms)
        return self.laggards.holds_back


def test_whoever_is_within_the_limit_holds_back_nobody() -> None:
    group = Laggard()
    assert not group.at(0, last=100, applied=0)
    assert not group.at(10_000, last=200, applied=100)


def test_a_laggard_holds_the_numbering_back_until_it_has_caught_up() -> None:
    group = Laggard()
    assert group.at(0, last=101, applied=0)
    assert group.at(500, last=101, applied=0)
    assert not group.at(600, last=101, applied=60)
    assert group.alarms == []


def test_what_it_acknowledged_is_newer_than_what_it_said() -> None:
    assert not Laggard().at(0, last=500, applied=0, acknowledged=490)


def test_after_a_while_it_is_left_and_the_others_go_on() -> None:
    group = Laggard()
    assert group.at(0, last=101, applied=0)
    assert not group.at(1_000, last=101, applied=0)
    assert [type(alarm) for alarm in group.alarms] == [Alarm]
    assert not group.at(9_000, last=5_000, applied=10)
    assert len(group.alarms) == 1


def test_it_counts_again_when_it_is_back_within_half_the_limit() -> None:
    group = Laggard()
    group.at(0, last=101, applied=0)
    group.at(1_000, last=101, applied=0)
    assert not group.at(2_000, last=300, applied=210), "not there yet"
    assert not group.at(3_000, last=300, applied=260)
    assert group.at(4_000, last=400, applied=270)


def test_who_is_silent_holds_back_nobody() -> None:
    group = Laggard()
    assert group.at(0, last=101, applied=0)
    group.presence.step(5_000 * MS, [Received(2, m.Presence("", "", 101, True, b"", 0))])
    group.laggards.look(5_000 * MS, LAGGING, 101, {}, group.alarms)
    assert not group.laggards.holds_back


def test_a_group_of_one_waits_for_nobody() -> None:
    alone = Laggards(1, None, 0)
    alone.look(0, GroupConfig.of("main", (1,)), 1 << 40, {}, [])
    assert not alone.holds_back


def test_a_sequencer_numbers_nothing_while_it_waits_and_goes_on_when_the_wait_is_over() -> None:
    chair = lead_three(lag_max=3, laggard_wait_ms=500, data_quantity=1, tick_ms=60_000, silence_ms=60_000)
    pe = chair.open()
    chair.acknowledge(2, 2)
    assert numbered(chair.report(*(Mid(1, pe, pseq) for pseq in (1, 2)))) == [(3, 1), (4, 2)]
    keep_leading(chair, 100)  # node 3 said that it has applied nothing: it lags by four
    assert numbered(chair.report(Mid(1, pe, 3))) == []
    assert numbered(keep_leading(chair, 300)) == []
    assert numbered(keep_leading(chair, 300)) == [(5, 3)]


# -- rest ------------------------------------------------------------------------------------------

BEAT_NS = 50 * MS
REST = 3


def resting() -> Chair:
    """A sequencer that has told everything; two of three answer."""
    chair = lead_three(heartbeat_ms=50)
    assert chair.config.rest_beats == REST
    chair.open(2)
    reign = chair.sequencer.reign
    assert reign is not None
    for server in (1, 2):
        chair.acknowledge(reign.log.last, server)
    chair.member.applied, chair.member.term = reign.log.last, chair.epoch
    for _ in range(10):
        answered(chair, chair.wait())
    assert reign.is_at_rest
    return chair


def answered(chair: Chair, effects: list[RoleEffect]) -> m.Heartbeat:
    """The heartbeat in a step, answered by a quorum."""
    (beat,) = [one.message for one in effects if isinstance(one, Multicast)]
    assert isinstance(beat, m.Heartbeat)
    for server in (1, 2):
        chair.hear(m.HeartbeatAck(chair.epoch, beat.nonce), server)
    for node in (2, 3):
        chair.presence.hear(chair.now_ns, node)
    return beat


def test_a_sequencer_that_has_told_everything_sends_one_of_three_heartbeats_under_its_number() -> None:
    chair = resting()
    before = answered(chair, chair.wait())
    for at in range(1, 10):
        last_ns = chair.now_ns
        beat = answered(chair, chair.wait())
        assert chair.now_ns == last_ns + REST * BEAT_NS
        assert beat == replace(before, nonce=before.nonce + REST * at)


def test_new_heartbeats_are_told_a_few_times_before_the_sequencer_rests() -> None:
    chair = resting()
    reign = chair.sequencer.reign
    assert reign is not None
    reign.space = m.SpaceState.LOW
    chair.step()
    gaps = []
    for _ in range(6):
        last_ns = chair.now_ns
        assert answered(chair, chair.wait()).space is m.SpaceState.LOW
        gaps.append((chair.now_ns - last_ns) // BEAT_NS)
    assert gaps == [1, 1, 1, 1, REST, REST]


@pytest.mark.parametrize("passed_ms", [0, 20, 50, 70, 120])
@pytest.mark.parametrize("what", ["an envelope", "a producer", "a server behind", "a machine that waits"])
def test_a_rest_ends_where_the_next_heartbeat_would_have_come(what: str, passed_ms: int) -> None:
    chair = resting()
    last = answered(chair, chair.wait())
    last_ns = chair.now_ns
    chair.now_ns += passed_ms * MS
    match what:
        case "an envelope":
            reign = chair.sequencer.reign
            assert reign is not None
            chair.report(Mid(2, reign._ledger.rows[2].pe, 1), server=2)
        case "a producer":
            chair.hear(m.ProducerOpen(3, b"r" * 16), 3)
        case "a server behind":
            chair.acknowledge(0, 3)
        case _:
            chair.step(BeatWanted())
    beat = answered(chair, chair.wait())
    slots = passed_ms // 50 + 1
    assert (chair.now_ns, beat.nonce) == (last_ns + slots * BEAT_NS, last.nonce + slots)
    answered(chair, chair.wait())
    assert chair.now_ns == last_ns + (slots + 1) * BEAT_NS, "and it goes on like this"


def test_a_sequencer_without_answers_does_not_rest_and_gives_up_in_time() -> None:
    chair = resting()
    last_ns = chair.now_ns
    while chair.sequencer.state is State.LEADING:
        chair.wait()
    assert chair.now_ns - last_ns <= (chair.config.check_ms + REST * 50) * MS


def test_a_server_that_answers_is_healthy_at_rest_too() -> None:
    chair = resting()
    reign = chair.sequencer.reign
    assert reign is not None
    for _ in range(3):
        chair.wait()
        assert reign._has_healthy_quorum_without(3)
        chair.hear(m.HeartbeatAck(chair.epoch, reign.beats[0]), 1)
    chair.wait()
    assert not reign._has_healthy_quorum_without(3), "node 2 answered none of the last three"
