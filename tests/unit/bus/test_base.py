"""Where the log of a commit server begins: its base moves behind checkpoints, its own or those of others."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import KeptCheckpoint
from antiphon.bus.effects import (
    Append,
    Installed,
    OrderRecord,
    ReleaseSpace,
    Send,
)
from antiphon.bus.group import MS
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, ServerStatus
from antiphon.bus.records import BaseMoved, EntriesAppended, EpochStarted
from antiphon.bus.recovery import recover
from antiphon.ids import Mid
from tests.stage import MemoryPayloads, StageDisk
from tests.unit.bus.booth import NEW, OLD, Booth, learned, order_in, stable, tick, ticks


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
    booth.checkpoints.fallback_n = 3
    assert booth.step(learned(stable(5, 4), stable(9, 8))) == [], "it slept and lacks the checkpoint at 4"
    booth.checkpoints.fallback_n = 4
    assert len(booth.step(learned(tick(10)))) == 1


def test_the_base_moves_when_the_last_server_has_its_checkpoint_though_nothing_is_ordered_any_more() -> None:
    booth = Booth(last=9, committed=9)
    booth.checkpoints.fallback_n = 3
    booth.step(learned(stable(5, 4), stable(9, 8)))
    booth.checkpoints.fallback_n = 4
    assert len(order_in(booth.hear(m.Heartbeat(OLD, 9, 0, 1, 0, True), 1))) == 1


def test_the_base_never_moves_beyond_the_newest_stable_checkpoint_that_this_node_has() -> None:
    booth = Booth(last=9, committed=9)
    booth.checkpoints.stable = KeptCheckpoint(3, bytes(16), 1)
    assert booth.step(learned(stable(5, 4), stable(9, 8))) == [], "nobody could be given a later one"
    booth.checkpoints.stable = KeptCheckpoint(4, bytes(16), 1)
    assert len(booth.step(learned(tick(10)))) == 1


def test_a_stable_checkpoint_that_is_heard_of_again_changes_nothing() -> None:
    booth = Booth(last=9, committed=9)
    booth.step(learned(stable(5, 4), stable(9, 8)))
    booth.sync()
    assert booth.step(learned(stable(5, 4), stable(9, 8))) == []


# -- a checkpoint takes the place of the log --------------------------------------------------------


def test_a_base_beyond_the_log_leaves_it_empty_and_keeps_promise_and_epoch() -> None:
    booth = Booth(last=3, committed=1)
    effects = booth.step(Installed(9, b"ledger at 9"))
    assert order_in(effects) == [BaseMoved(9, OLD, b"ledger at 9", bytes(16))]
    server = booth.server
    assert (server.log.base, server.log.last, server.committed_upto) == (9, 9, 9)
    assert (server.log_epoch, server.promised, server.base_ledger) == (OLD, OLD, b"ledger at 9")
    assert booth.hear(m.FetchId(1, 10), 3) == [], "a crash could still take it back"
    assert booth.sync() == [ReleaseSpace(9)]
    assert booth.hear(m.FetchId(1, 10), 3) == [Send(3, m.FetchIdReply((), 9, 9))]


def test_a_base_within_the_log_keeps_what_follows_it() -> None:
    booth = Booth(last=5, committed=1)
    booth.step(Installed(3, b"ledger at 3"))
    assert booth.server.log.between(3, 5) == ticks(4, 5)
    assert booth.server.committed_upto == 3


def test_a_base_that_cuts_an_entry_shows_that_our_log_was_another_order() -> None:
    booth = Booth(last=2, committed=2)
    wide = Entry(3, 4, EntryKind.TICK, Mid(1, OLD, 3), 0, NO_DIGEST)
    booth.hear(m.CommitSubmit(OLD, 2, (wide,), 2), 1)
    effects = booth.step(Installed(5, b"ledger at 5"))
    assert order_in(effects) == [BaseMoved(5, OLD, b"ledger at 5", bytes(16))]
    assert (booth.server.log.base, booth.server.log.last) == (5, 5)
    assert booth.sync() == [ReleaseSpace(5)]


@pytest.mark.parametrize("through", [3, 6], ids=["beyond what has come", "within it"])
def test_the_base_may_move_while_the_pages_of_a_start_come_in(through: int) -> None:
    booth = Booth(last=9, committed=9)
    page = m.EpochStart(NEW, 1, ticks(1, through), 0, 7, through=10)
    assert booth.hear(page, 3) == [Send(3, m.StartNeed(NEW, through, through))]
    booth.step(learned(stable(5, 4), stable(9, 8)))
    assert booth.sync() == [ReleaseSpace(4)]
    have = max(through, 4)
    late = m.EpochStart(NEW, 3, ticks(3, 3), 0, 7, through=10)
    assert booth.hear(late, 3) == [Send(3, m.StartNeed(NEW, have, have))], "the next one, please"
    rest = (*ticks(have + 1, 9), *ticks(10, 10, NEW))
    effects = booth.hear(m.EpochStart(NEW, have + 1, rest, 0, 7), 3)
    assert order_in(effects) == [EpochStarted(NEW, 9, ticks(10, 10, NEW))]
    assert (booth.server.log.base, booth.server.log.last) == (4, 10)


def test_pages_whose_continuation_is_gone_are_given_up_for_what_is_known_to_be_committed() -> None:
    booth = Booth(last=9, committed=9)
    booth.hear(m.Seal(NEW, 0), 3)
    booth.sync()
    booth.hear(m.EpochStart(NEW, 1, ticks(1, 3), 0, 7, through=10), 3)
    booth.hear(m.FetchIdReply((), 10, 3), 3)
    beat = m.Heartbeat(NEW, 10, 0, 1, 0, True)
    assert booth.hear(beat, 3)[-1] == Send(3, m.StartNeed(NEW, 3, 3)), "from there it can go on"
    booth.hear(m.FetchIdReply((), 10, 5), 3)
    booth.now_ns += 1_000 * MS
    assert booth.hear(beat, 3)[-1] == Send(3, m.StartNeed(NEW, 9, 9, OLD))


def test_a_start_that_holds_less_than_is_known_to_be_committed_is_asked_for_again() -> None:
    booth = Booth(last=9, committed=9)
    assert booth.hear(m.EpochStart(NEW, 5, ticks(5, 7), 4, OLD), 3) == [Send(3, m.StartNeed(NEW, 9, 9, OLD))]
    assert (booth.server.log.last, booth.server.log_epoch) == (9, OLD)
    effects = booth.hear(m.EpochStart(NEW, 10, ticks(10, 10, NEW), 9, OLD), 3)
    assert order_in(effects) == [EpochStarted(NEW, 9, ticks(10, 10, NEW))]


def test_a_base_below_ours_changes_nothing() -> None:
    booth = Booth()
    booth.step(Installed(9, b"ledger at 9"))
    assert booth.step(Installed(4, b"ledger at 4")) == []


def test_a_start_goes_on_from_an_installed_base() -> None:
    booth = Booth(last=3, committed=1)
    booth.step(Installed(9, b"ledger at 9"))
    booth.sync()
    effects = booth.hear(m.Heartbeat(NEW, 9, 0, 1, 0, True), 3)
    assert effects[-1] == Send(3, m.StartNeed(NEW, 9, 9, OLD))
    effects = booth.hear(m.EpochStart(NEW, 10, ticks(10, 11, NEW), 9), 3)
    assert order_in(effects) == [EpochStarted(NEW, 9, ticks(10, 11, NEW))]


def test_a_base_is_acknowledged_to_a_sequencer_that_has_all_of_it_committed() -> None:
    """1. We hold 1 … 3 of OLD. 2. NEW adopts and commits another order behind 3. 3. A checkpoint of that at 9
    is installed here. 4. The sequencer of OLD, which knows of nothing, must not count us among those who
    hold its own 4 … 9, nor append to what it does not have."""
    booth = Booth(last=3, committed=1)
    booth.step(Installed(9, b"ledger at 9"))
    beat = m.Heartbeat(OLD, 9, 0, 1, 9, True)
    acknowledged = Send(1, m.CommitAcknowledge(OLD, 9))
    assert acknowledged not in booth.hear(beat, 1), "it is not durable"
    assert acknowledged in booth.sync()
    assert acknowledged not in booth.hear(beat, 1), "once is enough"


def test_who_promised_a_later_epoch_acknowledges_no_base_to_an_earlier_one() -> None:
    booth = Booth(last=3, committed=1)
    booth.hear(m.Heartbeat(OLD, 9, 0, 1, 9, True), 1)
    booth.hear(m.Seal(NEW, 1), 3)
    booth.sync()
    booth.step(Installed(9, b"ledger at 9"))
    assert booth.sync() == [ReleaseSpace(9)]


def test_a_sequencer_that_does_not_have_our_base_is_not_followed() -> None:
    booth = Booth(last=3, committed=1)
    booth.step(Installed(9, b"ledger at 9"))
    booth.sync()
    assert booth.hear(m.Heartbeat(OLD, 8, 0, 1, 8, True), 1) == [Send(1, m.HeartbeatAck(OLD, 1))]
    refused = booth.hear(m.CommitSubmit(OLD, 9, ticks(10, 11), 8), 1)
    assert refused == [Send(1, m.CommitAcknowledge(OLD, 3))]
    assert order_in(booth.hear(m.CommitSubmit(OLD, 9, ticks(10, 11), 9), 1))


def test_a_base_that_cuts_a_submit_takes_what_lies_behind_it() -> None:
    booth = Booth(last=3, committed=3)
    booth.step(Installed(9, b"ledger at 9"))
    booth.sync()
    effects = booth.hear(m.CommitSubmit(OLD, 5, ticks(6, 11), 9), 1)
    assert order_in(effects) == [EntriesAppended(OLD, 9, ticks(10, 11))]
    assert booth.sync() == [Send(1, m.CommitAcknowledge(OLD, 11))]


def test_the_base_stays_behind_a_checkpoint_that_another_node_is_fetching() -> None:
    booth = Booth(last=9, committed=9)
    booth.checkpoints.held_n = 3
    booth.step(learned(stable(5, 4), marks=((4, b"ledger at 4"),)))
    assert booth.step(learned(stable(9, 8))) == []
    booth.checkpoints.held_n = 0
    assert order_in(booth.step(learned())) == [BaseMoved(4, OLD, b"ledger at 4", b"%016d" % 4)]


def test_a_log_that_the_sequencers_does_not_reach_begins_at_our_own_checkpoint() -> None:
    booth = Booth(last=9, committed=2)
    booth.step(learned(marks=((8, b"ledger at 8"),)))
    booth.checkpoints.newest_n = 8
    booth.hear(m.Heartbeat(NEW, 12, 0, 1, 0, True), 3)
    hint = m.FetchIdReply((), 12, 7)
    assert booth.hear(hint, 3) == [], "nobody has said that a checkpoint so far is stable"
    booth.step(learned(stable(12, 8)))
    assert booth.hear(hint, 1) == [], "the word of another server: its log is not the one we need"
    assert order_in(booth.hear(hint, 3)) == [BaseMoved(8, OLD, b"ledger at 8", bytes(16))]
    assert booth.server.log.between(8, 9) == ticks(9, 9)


def test_without_a_checkpoint_that_reaches_so_far_nothing_happens() -> None:
    booth = Booth(last=9, committed=2)
    booth.step(learned(marks=((8, b"ledger at 8"),)))
    booth.checkpoints.newest_n = 8
    booth.hear(m.Heartbeat(NEW, 12, 0, 1, 0, True), 3)
    assert booth.hear(m.FetchIdReply((), 12, 9), 3) == []


@pytest.mark.parametrize("records", [0, 1, 2, 3])
def test_a_start_of_several_records_is_found_again_whole_or_not_at_all(records: int) -> None:
    booth = Booth(fetch_entries_max=2)
    first = booth.hear(m.EpochStart(OLD, 1, ticks(1, 2), 0), 1)
    second = booth.hear(m.EpochStart(NEW, 1, ticks(1, 6, NEW), 0), 3)
    appends = [effect for effect in (*first, *second) if isinstance(effect, Append)]
    assert len(appends) == 4
    found = recover(StageDisk(appends[: 1 + records]).found(), MemoryPayloads())
    if records < 3:
        assert (found.log_epoch, found.log.between(0, found.log.last)) == (OLD, ticks(1, 2))
    else:
        assert (found.log_epoch, found.log.between(0, found.log.last)) == (NEW, ticks(1, 6, NEW))


def test_what_waits_for_the_disk_is_never_said_once_the_log_is_damaged() -> None:
    booth = Booth(last=2)
    booth.hear(m.CommitSubmit(OLD, 2, ticks(3, 4), 0), 1)
    booth.hear(m.Seal(NEW, 0), 3)
    booth.server.set_status(ServerStatus.DAMAGED)
    assert booth.sync() == []


def test_a_damaged_log_stays_so_when_the_disk_is_listed_anew() -> None:
    booth = Booth(last=2, committed=2)
    booth.server.set_status(ServerStatus.DAMAGED)
    booth.server.set_status(ServerStatus.AMNESIA)
    booth.server.reconfigure(booth.config, 2, None)
    booth.server.set_status(ServerStatus.OK)
    booth.hear(m.Seal(NEW, 0), 3)
    assert booth.sync() == []


def test_a_witness_begins_behind_a_stable_mark_when_the_others_logs_no_longer_reach_it() -> None:
    """It knows the whole order, although its log is of an epoch that can tell it nothing any more."""
    booth = Booth(last=9, committed=3)
    booth.server.reconfigure(booth.config, 0, None)
    booth.step(learned(stable(42, 40), marks=((40, b"ledger at 40"),)))
    assert booth.server.log.base == 0
    effects = booth.hear(m.FetchIdReply((), 50, 30), 2)
    assert order_in(effects) == [BaseMoved(40, OLD, b"ledger at 40", bytes(16))]
    assert (booth.server.log.base, booth.server.committed_upto) == (40, 40)


def test_a_witness_begins_behind_a_stable_mark_when_the_log_of_its_sequencer_no_longer_reaches_it() -> None:
    """Submits were lost, and the sequencer's base has passed them before they were sent again."""
    booth = Booth(last=9, committed=9)
    booth.server.reconfigure(booth.config, 0, None)
    booth.step(learned(stable(42, 40), marks=((40, b"ledger at 40"),)))
    assert booth.hear(m.FetchIdReply((), 50, 30), 3) == [], "the word of another server"
    effects = booth.hear(m.FetchIdReply((), 50, 30), 1)
    assert order_in(effects) == [BaseMoved(40, OLD, b"ledger at 40", bytes(16))]
    assert (booth.server.log.base, booth.server.committed_upto) == (40, 40)


def test_a_witness_that_is_not_wanted_keeps_the_ledgers_of_the_last_two_stable_marks_only() -> None:
    booth = Booth(last=9, committed=3)
    booth.server.reconfigure(booth.config, 0, None)
    for n in range(40, 400, 10):
        booth.step(learned(stable(n + 2, n), marks=((n, b"ledger at %d" % n),)))
    assert booth.server.log.base == 0, "what it has to keep is no longer told to it"
    assert sorted(booth.server._marks) == [380, 390]
    effects = booth.hear(m.FetchIdReply((), 500, 380), 2)
    assert order_in(effects) == [BaseMoved(390, OLD, b"ledger at 390", bytes(16))]


def without_a_checkpoint_there() -> Booth:
    """It has applied everything through the stable mark at 40, and its own checkpoint is the one at 20."""
    booth = Booth(last=9, committed=3)
    booth.checkpoints.fallback_n, booth.checkpoints.stable = 0, None
    booth.step(learned(stable(42, 40), marks=((20, b"ledger at 20"), (40, b"ledger at 40"))))
    booth.checkpoints.newest_n = 20
    return booth


def test_whose_own_checkpoint_is_too_old_needs_one_and_does_not_begin_behind_a_bare_mark() -> None:
    """After a crash it would have no state, and until then none that it could give to others."""
    booth = without_a_checkpoint_there()
    assert booth.hear(m.FetchIdReply((), 50, 30), 2) == []
    assert (booth.server.log.base, booth.checkpoints.needed_n) == (0, 30)


def test_if_nobody_gives_it_one_a_stable_mark_must_do() -> None:
    """Otherwise nobody could lead until it has a newer one, and without a sequencer there is no mark."""
    booth = without_a_checkpoint_there()
    booth.hear(m.FetchIdReply((), 50, 30), 2)
    booth.checkpoints.vain_n = 31
    assert booth.hear(m.FetchIdReply((), 50, 30), 2) == [], "one at 30 was not asked for"
    booth.checkpoints.vain_n = 30
    effects = booth.hear(m.FetchIdReply((), 50, 30), 2)
    assert order_in(effects) == [BaseMoved(40, OLD, b"ledger at 40", bytes(16))]
    assert (booth.checkpoints.needed_n, booth.checkpoints.vain_n) == (0, 0), "it has got over it"
    booth.sync()
    assert booth.server.has_nothing_to_give


def test_one_that_was_given_is_where_the_log_begins() -> None:
    booth = without_a_checkpoint_there()
    booth.hear(m.FetchIdReply((), 50, 30), 2)
    effects = booth.step(Installed(33, b"ledger at 33"))
    assert order_in(effects) == [BaseMoved(33, OLD, b"ledger at 33", bytes(16))]
    assert booth.checkpoints.needed_n == 0


def test_a_checkpoint_of_our_own_that_reaches_so_far_is_not_passed_for_a_later_mark() -> None:
    booth = without_a_checkpoint_there()
    effects = booth.hear(m.FetchIdReply((), 50, 15), 2)
    assert order_in(effects) == [BaseMoved(20, OLD, b"ledger at 20", bytes(16))]


def test_a_mark_below_a_checkpoint_of_our_own_will_do_although_that_one_is_not_stable_yet() -> None:
    booth = without_a_checkpoint_there()
    booth.checkpoints.newest_n = 60
    effects = booth.hear(m.FetchIdReply((), 50, 30), 2)
    assert order_in(effects) == [BaseMoved(40, OLD, b"ledger at 40", bytes(16))]
    assert booth.checkpoints.needed_n == 0


def test_what_is_learned_meanwhile_is_needed_no_more() -> None:
    booth = without_a_checkpoint_there()
    booth.hear(m.FetchIdReply((), 50, 30), 2)
    booth.server.committed_upto = 30
    booth.step()
    assert booth.checkpoints.needed_n == 0
