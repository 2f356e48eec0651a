"""Steps of a commit server: append, fence, seal, start, and never say what is not durable."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.commit_server import CommitServer
from antiphon.bus.effects import (
    Append,
    Learned,
    OrderRecord,
    Received,
    ReleaseSpace,
    RoleEffect,
    Send,
    SuperblockRecord,
    Synced,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, ServerStatus
from antiphon.bus.ports import JournalCounter
from antiphon.bus.records import BaseMoved, EntriesAppended, EpochStarted, decode_order
from antiphon.bus.superblock import Superblock
from antiphon.ids import Mid, make_epoch

OLD = make_epoch(1, 1)
NEW = make_epoch(2, 3)


def tick(number: int, epoch: int = OLD) -> Entry:
    return Entry(number, 1, EntryKind.TICK, Mid(1, epoch, number), 0, NO_DIGEST)


def ticks(first: int, last: int, epoch: int = OLD) -> tuple[Entry, ...]:
    return tuple(tick(number, epoch) for number in range(first, last + 1))


class Booth:
    """A commit server of node 2 whose log holds 1 … `last` of epoch OLD, durably."""

    def __init__(self, last: int = 0, committed: int = 0, **settings: Any) -> None:
        self.config = GroupConfig.of("main", (1, 2, 3), **settings)
        self.superblock = Superblock(JournalCounter(), OLD if last else 0)
        self.server = CommitServer(
            self.config,
            2,
            JournalCounter(),
            self.superblock,
            log=CommitLog(0, ticks(1, last)),
            log_epoch=OLD if last else 0,
        )
        self.now_ns = 10_000 * MS
        self.written = 0
        if committed:
            self.hear(m.Heartbeat(OLD, committed, 0, 1, 0, True), 1)

    def step(self, *events: Any) -> list[RoleEffect]:
        effects = self.server.step(self.now_ns, list(events))
        for effect in effects:
            if isinstance(effect, Append):
                self.written = effect.index
        return effects

    def hear(self, message: m.BusMessage, sender: int) -> list[RoleEffect]:
        return self.step(Received(sender, message))

    def sync(self) -> list[RoleEffect]:
        return self.step(Synced(self.written))


def order_in(effects: list[RoleEffect]) -> list[object]:
    return [
        decode_order(effect.record.body)
        for effect in effects
        if isinstance(effect, Append) and isinstance(effect.record, OrderRecord)
    ]


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
    assert effects == [Send(3, m.StartNeed(NEW, 1, 2))]


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
    assert booth.hear(m.EpochStart(NEW, 5, ticks(5, 5), 2), 3) == [Send(3, m.StartNeed(NEW, 2, 5))]
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
    assert booth.hear(beat, 1) == []


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


# -- the base ---------------------------------------------------------------------------------------


def stable(number: int, n: int) -> Entry:
    detail = StableDetail(n, b"%016d" % n, (1,)).encode()
    return Entry(number, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, OLD, number), 0, NO_DIGEST, detail)


def learned(*notable: Entry, marks: tuple[tuple[int, bytes], ...] = ()) -> Learned:
    return Learned((), notable, marks)


def test_the_base_moves_to_the_stable_checkpoint_before_the_newest_one() -> None:
    booth = Booth(last=9, committed=9)
    assert booth.step(learned(stable(5, 4), marks=((4, b"ledger at 4"),))) == [], "there is none before it"
    effects = booth.step(learned(stable(9, 8)))
    assert order_in(effects) == [BaseMoved(4, OLD, b"ledger at 4", b"%016d" % 4)]
    (append,) = effects
    assert isinstance(append, Append) and isinstance(append.record, OrderRecord)
    assert append.record.pinned and append.record.highest == 4
    assert booth.server.log.base == 0, "nobody may hear of a base that a crash would take back"
    assert booth.sync() == [ReleaseSpace(4)]
    assert booth.server.log.base == 4


def test_the_ledger_of_a_base_is_folded_when_its_mark_was_passed_in_an_earlier_life() -> None:
    booth = Booth(last=9, committed=9)
    booth.step(learned(stable(5, 4)))
    effects = booth.step(learned(stable(9, 8)))
    assert order_in(effects) == [BaseMoved(4, OLD, Ledger().encode(), b"%016d" % 4)]


def test_the_base_waits_until_our_own_log_is_known_to_be_committed_so_far() -> None:
    booth = Booth(last=9, committed=3)
    booth.step(learned(stable(5, 4), stable(9, 8)))
    assert booth.written == 0
    booth.hear(m.Heartbeat(OLD, 9, 0, 1, 0, True), 1)
    booth.step(learned(tick(10)))
    assert booth.written == 1


def test_the_base_never_moves_beyond_the_checkpoint_this_node_could_fall_back_on() -> None:
    booth = Booth(last=9, committed=9)
    checkpoints = CheckpointServer(booth.config, 2)
    booth.server = CommitServer(
        booth.config,
        2,
        JournalCounter(),
        booth.superblock,
        log=CommitLog(0, ticks(1, 9)),
        log_epoch=OLD,
        checkpoint_server=checkpoints,
    )
    booth.server.committed_upto = 9
    checkpoints.fallback_n = 3
    assert booth.step(learned(stable(5, 4), stable(9, 8))) == [], "it slept and lacks the checkpoint at 4"
    checkpoints.fallback_n = 4
    assert len(booth.step(learned(tick(10)))) == 1


def test_a_stable_checkpoint_that_is_heard_of_again_changes_nothing() -> None:
    booth = Booth(last=9, committed=9)
    booth.step(learned(stable(5, 4), stable(9, 8)))
    booth.sync()
    assert booth.step(learned(stable(5, 4), stable(9, 8))) == []
