"""Steps of a commit server: append, fence, seal, start, and never say what is not durable."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.candidacy import start_page
from antiphon.bus.effects import (
    Append,
    Received,
    Send,
    SpaceChanged,
    SpaceHeld,
    SuperblockRecord,
    Synced,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import ServerStatus
from antiphon.bus.records import EntriesAppended, EntriesStaged, EpochStarted
from tests.unit.bus.booth import NEW, OLD, Booth, learned, order_in, tick, ticks

NEW_LOG = CommitLog(0, [*ticks(1, 2), *ticks(3, 5, NEW)])


def test_entries_are_acknowledged_only_once_they_are_durable() -> None:
    booth = Booth(last=2)
    effects = booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 4), 0), 1)
    assert order_in(effects) == [EntriesAppended(OLD, 2, ticks(3, 4))]
    assert effects[0] == Append(1, effects[0].record)  # type: ignore[union-attr]
    assert booth.step(Synced(0)) == []
    assert booth.step(Synced(1)) == [Send(1, m.CommitAcknowledge(OLD, 4))]


def test_a_sync_releases_only_what_it_covers() -> None:
    booth = Booth(last=2)
    booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 1)
    booth.hear(m.CommitSubmit(OLD, 3, ticks(4, 4), 0), 1)
    assert booth.step(Synced(1)) == [Send(1, m.CommitAcknowledge(OLD, 3))]
    assert booth.step(Synced(2)) == [Send(1, m.CommitAcknowledge(OLD, 4))]


def test_one_acknowledgement_answers_everything_of_a_step() -> None:
    booth = Booth(last=2)
    submits = [Received(1, m.CommitSubmit(OLD, n - 1, ticks(n, n), 0)) for n in range(3, 7)]
    assert len(booth.step(*submits)) == 4
    assert booth.step(Synced(4)) == [Send(1, m.CommitAcknowledge(OLD, 6))]


def test_a_submit_behind_a_gap_is_answered_with_what_is_here() -> None:
    booth = Booth(last=2)
    assert booth.hear(m.CommitSubmit(OLD, 5, ticks(6, 6), 0), 1) == [Send(1, m.CommitAcknowledge(OLD, 2))]


def test_a_gap_answer_does_not_name_what_is_not_durable() -> None:
    booth = Booth(last=2)
    booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 1)
    assert booth.hear(m.CommitSubmit(OLD, 5, ticks(6, 6), 0), 1) == [Send(1, m.CommitAcknowledge(OLD, 2))]


def test_a_repeated_submit_appends_only_what_is_new() -> None:
    booth = Booth(last=3)
    effects = booth.hear(m.CommitSubmit(OLD, 1, ticks(2, 5), 0), 1)
    assert order_in(effects) == [EntriesAppended(OLD, 3, ticks(4, 5))]
    assert booth.hear(m.CommitSubmit(OLD, 1, ticks(2, 3), 0), 1) == [Send(1, m.CommitAcknowledge(OLD, 3))]


def test_two_entries_of_one_epoch_at_one_number_stop_the_node() -> None:
    booth = Booth(last=3)
    with pytest.raises(AssertionError, match="two different entries"):
        booth.hear(m.CommitSubmit(OLD, 2, (tick(3, NEW), tick(4)), 0), 1)


def test_a_sequencer_below_the_promise_is_fenced() -> None:
    booth = Booth(last=2)
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 1) == [Send(1, m.SealNack(NEW))]
    assert booth.hear(m.EpochStart(OLD, 1, (), 0), 1) == [Send(1, m.SealNack(NEW))]
    assert booth.server.log.last == 2


def test_nothing_is_appended_to_a_log_of_another_epoch() -> None:
    booth = Booth(last=2, committed=1)
    effects = booth.hear(m.CommitSubmit(NEW, 2, ticks(3, 3, NEW), 0), 3)
    assert effects == [Send(3, m.StartNeed(NEW, 1, 2, OLD))]


def test_a_submit_counts_only_from_the_node_of_its_epoch() -> None:
    assert Booth(last=2).hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 3) == []


def test_a_promise_and_the_place_of_the_log_are_told_when_both_are_durable() -> None:
    booth = Booth(last=4, committed=3)
    assert booth.hear(m.Seal(NEW, 0), 3) == [Append(1, SuperblockRecord(NEW, 0))]
    assert booth.sync() == [Send(3, m.SealOk(NEW, OLD, 0, 4, 3))]
    assert booth.hear(m.Seal(NEW, 0), 3) == [Send(3, m.SealOk(NEW, OLD, 0, 4, 3))], "asked again"


def test_a_promise_asked_for_twice_before_it_is_durable_is_told_once() -> None:
    booth = Booth(last=4)
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.hear(m.Seal(NEW, 0), 3) == []
    assert booth.sync() == [Send(3, m.SealOk(NEW, OLD, 0, 4, 0))]


def test_an_epoch_at_or_below_the_promise_is_refused() -> None:
    booth = Booth(last=1)
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.hear(m.Seal(OLD, 0), 1) == [Send(1, m.SealNack(NEW))]


def test_a_damaged_server_promises_and_acknowledges_nothing() -> None:
    booth = Booth(last=2)
    booth.server.status = ServerStatus.DAMAGED
    assert booth.hear(m.Seal(NEW, 0), 3) == [Send(3, m.SealNack(OLD, ServerStatus.DAMAGED))]
    assert booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 1) == [
        Send(1, m.CommitAcknowledge(OLD, 0, ServerStatus.DAMAGED))
    ]
    assert booth.hear(m.FetchId(1, 10), 1) == []
    assert booth.server.log.last == 2


def test_the_log_is_handed_out_in_pages_to_whoever_holds_the_promise() -> None:
    booth = Booth(last=5, fetch_entries_max=2)
    booth.hear(m.Seal(NEW, 0), 3)
    booth.sync()
    assert booth.hear(m.FetchLog(NEW, 2), 3) == [Send(3, m.FetchLogReply(NEW, 2, ticks(2, 3), 5))]
    assert booth.hear(m.FetchLog(NEW, 5), 3) == [Send(3, m.FetchLogReply(NEW, 5, ticks(5, 5), 5))]
    assert booth.hear(m.FetchLog(OLD, 1), 1) == [Send(1, m.SealNack(NEW))]


def test_an_epoch_that_starts_with_our_log_is_one_small_record() -> None:
    booth = Booth(last=4, committed=2)
    booth.hear(m.Seal(NEW, 0), 3)
    booth.sync()
    effects = booth.hear(m.EpochStart(NEW, 3, ticks(3, 4), 2), 3)
    assert order_in(effects) == [EpochStarted(NEW, 4, ())]
    assert booth.sync() == [Send(3, m.CommitAcknowledge(NEW, 4))]
    assert booth.server.log_epoch == NEW


def test_an_epoch_that_differs_keeps_the_common_part_and_replaces_the_rest_at_once() -> None:
    booth = Booth(last=5, committed=2)
    theirs = (*ticks(3, 3), *ticks(4, 4, NEW))
    effects = booth.hear(m.EpochStart(NEW, 3, theirs, 2), 3)
    assert order_in(effects) == [EpochStarted(NEW, 3, ticks(4, 4, NEW))]
    assert booth.server.log.between(0, 4) == (*ticks(1, 3), *ticks(4, 4, NEW))
    assert booth.server.log.last == 4
    assert booth.server.promised == NEW, "a start is a promise too"


def test_an_epoch_with_a_shorter_log_cuts_ours() -> None:
    booth = Booth(last=5, committed=2)
    effects = booth.hear(m.EpochStart(NEW, 3, (), 2), 3)
    assert order_in(effects) == [EpochStarted(NEW, 2, ())]
    assert booth.server.log.last == 2


def test_only_the_committed_part_is_kept_unseen() -> None:
    booth = Booth(last=5, committed=2)
    assert booth.hear(m.EpochStart(NEW, 5, ticks(5, 5), 2), 3) == [Send(3, m.StartNeed(NEW, 2, 5, OLD))]
    assert booth.server.log_epoch == OLD


def test_an_epoch_that_would_give_up_a_committed_entry_stops_the_node() -> None:
    booth = Booth(last=5, committed=4)
    with pytest.raises(AssertionError, match="give up committed entries"):
        booth.hear(m.EpochStart(NEW, 3, ticks(3, 4, NEW), 2), 3)


def test_a_start_that_comes_twice_is_acknowledged_twice() -> None:
    booth = Booth(last=2, committed=2)
    start = m.EpochStart(NEW, 3, (), 2)
    booth.hear(start, 3)
    booth.sync()
    assert booth.hear(start, 3) == [Send(3, m.CommitAcknowledge(NEW, 2))]


def test_a_start_silences_acknowledgements_of_the_log_it_replaced() -> None:
    booth = Booth(last=2, committed=2)
    booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 2), 1)
    booth.hear(m.EpochStart(NEW, 3, (), 2), 3)
    assert booth.sync() == [Send(3, m.CommitAcknowledge(NEW, 2))]


def test_a_higher_epoch_never_raises_what_is_committed_of_our_log() -> None:
    """R7: our own entries may be others than those that epoch speaks of."""
    booth = Booth(last=5, committed=2)
    booth.hear(m.Heartbeat(NEW, 5, 0, 1, 0, True), 3)
    assert booth.server.committed_upto == 2
    booth.hear(m.Heartbeat(OLD, 9, 0, 1, 0, True), 1)
    assert booth.server.committed_upto == 5, "never beyond the end of our log"


def test_a_heartbeat_is_answered_unless_a_higher_epoch_was_promised() -> None:
    booth = Booth(last=1)
    beat = m.Heartbeat(OLD, 1, 0, 9, 0, True)
    assert booth.hear(beat, 1) == [Send(1, m.HeartbeatAck(OLD, 9))]
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.hear(beat, 1) == [Send(1, m.SealNack(NEW))], "also an idle sequencer hears that it is over"


def test_the_answer_to_a_heartbeat_tells_the_segments_while_checkpoints_would_free_some() -> None:
    booth = Booth(last=1)
    for held in (7, 0):
        booth.step(SpaceHeld(held))
        assert booth.hear(m.Heartbeat(OLD, 1, 0, 9, 0, True), 1) == [Send(1, m.HeartbeatAck(OLD, 9, held))]


def test_a_server_that_does_not_follow_yet_calls_for_no_checkpoint() -> None:
    """It takes none, and the sequencer gives only a few without new data: they were used up in vain."""
    booth = Booth(last=1)
    booth.step(SpaceHeld(7))
    beat = m.Heartbeat(NEW, 1, 0, 9, 0, True)
    assert m.HeartbeatAck(NEW, 9, 0) in [one.message for one in booth.hear(beat, 3) if type(one) is Send]


def test_a_candidate_is_encouraged_only_when_no_heartbeat_was_heard_for_long() -> None:
    booth = Booth(last=1, suspicion_ms=500)
    booth.hear(m.Heartbeat(OLD, 1, 0, 9, 0, True), 1)
    assert booth.hear(m.PreSeal(7), 3) == []
    booth.now_ns += 500 * MS
    assert booth.hear(m.PreSeal(7), 3) == [Send(3, m.PreSealOk(7))]


def test_only_committed_entries_are_handed_to_members() -> None:
    booth = Booth(last=5, committed=3)
    assert booth.hear(m.FetchId(2, 10), 3) == [Send(3, m.FetchIdReply(ticks(2, 3), 3, 0))]
    assert booth.hear(m.FetchId(4, 10), 3) == [Send(3, m.FetchIdReply((), 3, 0))]


# -- keeping more, and in pages ---------------------------------------------------------------------


def test_of_a_log_of_the_adopted_epoch_everything_may_be_kept_unseen() -> None:
    booth = Booth(last=5, committed=2)
    effects = booth.hear(m.EpochStart(NEW, 6, (), 2, OLD), 3)
    assert order_in(effects) == [EpochStarted(NEW, 5, ())]
    assert booth.server.log_epoch == NEW


def test_what_the_adopted_log_of_our_epoch_lacks_is_cut_off() -> None:
    booth = Booth(last=5, committed=2)
    assert order_in(booth.hear(m.EpochStart(NEW, 5, (), 2, OLD), 3)) == [EpochStarted(NEW, 4, ())]


def test_nothing_is_kept_that_we_do_not_have() -> None:
    booth = Booth(last=5, committed=2)
    assert booth.hear(m.EpochStart(NEW, 8, (), 2, OLD), 3) == [Send(3, m.StartNeed(NEW, 2, 5, OLD))]


def test_a_start_in_pages_changes_nothing_before_the_last_of_them() -> None:
    booth = Booth(last=3, committed=1)
    page = m.EpochStart(NEW, 2, ticks(2, 3, NEW), 1, 7, through=6)
    assert booth.hear(page, 3) == [Send(3, m.StartNeed(NEW, 3, 3))], "the next one, please"
    assert booth.hear(page, 3) == [Send(3, m.StartNeed(NEW, 3, 3))], "it came twice"
    assert booth.server.log_epoch == OLD and booth.server.log.between(0, 3) == ticks(1, 3)
    effects = booth.hear(m.EpochStart(NEW, 4, ticks(4, 6, NEW), 1, 7), 3)
    assert order_in(effects) == [EpochStarted(NEW, 1, ticks(2, 6, NEW))]
    assert booth.sync() == [Send(3, m.CommitAcknowledge(NEW, 6))]


def test_a_page_that_follows_nothing_is_answered_with_where_we_are() -> None:
    booth = Booth(last=3, committed=1)
    page = m.EpochStart(NEW, 5, ticks(5, 6, NEW), 1, 7, through=9)
    assert booth.hear(page, 3) == [Send(3, m.StartNeed(NEW, 1, 3, OLD))]


def test_a_server_that_forgot_the_first_page_does_not_keep_its_own_entries_in_its_place() -> None:
    """The adopted log is of our log's epoch and ends at 2: ours goes on to 5, in the old epoch."""
    page = start_page(GroupConfig.of("main", (1, 2, 3)), NEW_LOG, (2, OLD), NEW, 3, 2)
    assert page is not None and page.entries == ticks(4, 5, NEW)
    booth = Booth(last=5, committed=2)
    assert booth.hear(page, 3) == [Send(3, m.StartNeed(NEW, 2, 5, OLD))]
    whole = start_page(GroupConfig.of("main", (1, 2, 3)), NEW_LOG, (2, OLD), NEW, 2, 2)
    assert whole is not None
    assert order_in(booth.hear(whole, 3)) == [EpochStarted(NEW, 2, ticks(3, 5, NEW))]


def test_what_differs_is_written_in_records_of_bounded_size_of_which_the_last_counts() -> None:
    booth = Booth(last=1, committed=1, fetch_entries_max=2)
    effects = booth.hear(m.EpochStart(NEW, 2, ticks(2, 6, NEW), 1), 3)
    assert order_in(effects) == [
        EntriesStaged(NEW, 1, ticks(2, 3, NEW)),
        EntriesStaged(NEW, 3, ticks(4, 5, NEW)),
        EpochStarted(NEW, 1, ticks(6, 6, NEW)),
    ]
    assert booth.step(Synced(2)) == []
    assert booth.sync() == [Send(3, m.CommitAcknowledge(NEW, 6))]


def test_a_heartbeat_of_an_epoch_that_never_reached_us_makes_us_ask_but_not_every_time() -> None:
    booth = Booth(last=5, committed=2, retransmit_ms=100)
    need = Send(3, m.StartNeed(NEW, 2, 5, OLD))
    beat = m.Heartbeat(NEW, 5, 0, 1, 0, True)
    ack = Send(3, m.HeartbeatAck(NEW, 1))
    assert booth.hear(beat, 3) == [ack, need]
    booth.now_ns += 50 * MS
    assert booth.hear(beat, 3) == [ack]
    booth.now_ns += 50 * MS
    assert booth.hear(beat, 3) == [ack, need]


def test_an_entry_that_only_one_log_can_have_proves_what_stands_before_it() -> None:
    """A claim or a mark is made once. If it is committed and we have it, all before it is committed here."""
    booth = Booth(last=5, committed=2)
    booth.step(learned(tick(4)))
    assert booth.server.committed_upto == 4
    booth.step(learned(tick(5, NEW)))
    assert booth.server.committed_upto == 4, "ours is another"


# -- what a disk is good for ------------------------------------------------------------------------


def test_a_server_without_room_promises_but_takes_nothing() -> None:
    booth = Booth(last=2)
    booth.step(SpaceChanged(True, True, "full", is_full=True))
    told = Send(1, m.CommitAcknowledge(OLD, 0, ServerStatus.NO_SPACE))
    assert booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 3), 0), 1) == [told]
    assert booth.hear(m.Heartbeat(OLD, 2, 0, 9, 0, True), 1) == [Send(1, m.HeartbeatAck(OLD, 9))]
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.sync() == [Send(3, m.SealOk(NEW, OLD, 0, 2, 2))]
    told = Send(3, m.CommitAcknowledge(NEW, 0, ServerStatus.NO_SPACE))
    assert booth.hear(m.EpochStart(NEW, 3, (), 2), 3) == [told]
    booth.step(SpaceChanged(False))
    assert order_in(booth.hear(m.EpochStart(NEW, 3, (), 2), 3)) == [EpochStarted(NEW, 2, ())]


def test_a_server_that_is_merely_short_of_room_goes_on() -> None:
    """What frees room is ordered, too."""
    booth = Booth(last=2)
    booth.step(SpaceChanged(True, True, "nearly full"))
    assert booth.server.status is ServerStatus.OK


@pytest.mark.parametrize("status", [ServerStatus.DAMAGED, ServerStatus.AMNESIA])
def test_a_server_without_a_sound_disk_of_its_own_takes_no_part(status: ServerStatus) -> None:
    booth = Booth(last=2)
    booth.server.set_status(status)
    assert booth.hear(m.Seal(NEW, 0), 3) == [Send(3, m.SealNack(OLD, status))]
    beat = booth.hear(m.Heartbeat(OLD, 2, 0, 9, 0, True), 1)
    assert not any(isinstance(one, Send) and isinstance(one.message, m.HeartbeatAck) for one in beat)
    assert booth.hear(m.FetchLog(OLD, 1), 1) == [Send(1, m.SealNack(OLD, status))]
    assert booth.hear(m.EpochStart(NEW, 1, (), 0), 3) == [Send(3, m.CommitAcknowledge(NEW, 0, status))]
    booth.now_ns += 60_000 * MS
    assert booth.hear(m.PreSeal(1), 3) == []
    assert booth.hear(m.FetchId(9, 10), 1) == [], "it never says that it does not have something"
    booth.step(SpaceChanged(False))
    assert booth.server.status is status, "room does not mend it"


# -- candidates that lag ----------------------------------------------------------------------------


def test_a_candidate_far_behind_is_not_encouraged_until_nobody_led_for_long() -> None:
    booth = Booth(last=1, suspicion_ms=500, leaderless_ms=10_000, lag_max=100)
    booth.hear(m.Heartbeat(OLD, 1, 0, 9, 0, True), 1)
    booth.presence.step(0, [Received(1, m.Presence("", "", 1_000, True, b"", 0))])
    booth.now_ns += 9_999 * MS
    assert booth.hear(m.PreSeal(7, 899), 3) == []
    assert booth.hear(m.PreSeal(7, 900), 3) == [Send(3, m.PreSealOk(7))]
    booth.now_ns += 1 * MS
    assert booth.hear(m.PreSeal(8, 0), 3) == [Send(3, m.PreSealOk(8))]
