"""The checkers of a group see every way in which its order can go wrong: I1-I3, I5-I10, I15.

Each invariant has a history that keeps it and one, next to it, that breaks it in one place.
"""

from __future__ import annotations

import pytest

from antiphon.bus.effects import SuperblockRecord
from antiphon.bus.messages import (
    Applied,
    CommitAcknowledge,
    CommitSubmit,
    Data,
    DataReport,
    EpochStart,
    FetchIdReply,
    Heartbeat,
    ReportItem,
    Seal,
    SealOk,
)
from antiphon.bus.records import BaseMoved, EntriesAppended, EntriesStaged, EpochStarted
from antiphon.sim.image import Image
from antiphon.sim.world import Violation
from tests.unit.sim.checkers.history import (
    FIRST,
    SECOND,
    THIRD,
    History,
    claim,
    data,
    digest,
    envelope,
    open_group,
    opening,
    payload,
    stable,
    tick,
)


def group_with_an_envelope(count: int = 1) -> History:
    """As `open_group`, and envelope 1 of node 1 has number 3 on all disks."""
    history = open_group()
    history.sends(envelope(1), count=count)
    history.numbers(FIRST, data(3, envelope(1), count))
    return history


# I1, I2, I3, I5: one order.


def test_three_nodes_that_apply_one_order_in_several_lives_pass() -> None:
    history = group_with_an_envelope(count=3)
    order = (claim(1, FIRST), opening(2, 1), data(3, envelope(1), 3))
    history.tells(FIRST, order[2])
    history.applies(1, *order)
    history.applies(2, *order[:1])
    history.restarts(2)
    history.applies(2, *order)
    history.restarts(2, checkpoint=5)
    history.numbers(FIRST, tick(6))
    history.applies(2, tick(6))


def test_another_entry_applied_at_a_committed_number_is_seen() -> None:
    history = group_with_an_envelope()
    history.applies(2, claim(1, FIRST))
    with pytest.raises(Violation, match=r"node 2 applies TICK 2.* where PRODUCER_OPEN 2.* was committed"):
        history.applies(2, tick(2))


def test_a_gap_in_what_one_node_applies_is_seen() -> None:
    history = group_with_an_envelope()
    history.applies(2, claim(1, FIRST))
    with pytest.raises(Violation, match="node 2 applied 3 after 1"):
        history.applies(2, data(3, envelope(1)))


def test_a_life_that_begins_within_an_entry_is_seen() -> None:
    history = group_with_an_envelope(count=3)
    history.tells(FIRST, data(3, envelope(1), 3))
    with pytest.raises(Violation, match=r"checkpoint of node 3 at 4 cuts DATA 3\.\.5"):
        history.restarts(3, checkpoint=4)


def test_an_envelope_that_nobody_sent_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, data(3, envelope(1))._replace(digest=bytes(16)))
    with pytest.raises(Violation, match="was never sent with that content"):
        history.tells(FIRST, data(3, envelope(1))._replace(digest=bytes(16)))


def test_an_envelope_that_was_changed_on_its_way_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    with pytest.raises(Violation, match="sent with two different contents"):
        history.says(1, Data(envelope(1), 7, 1, bytes(16), payload(envelope(1))))


def test_an_envelope_at_two_places_is_seen() -> None:
    history = group_with_an_envelope()
    history.numbers(FIRST, data(4, envelope(1)))
    with pytest.raises(Violation, match="has two places, 3 and 4"):
        history.tells(FIRST, data(3, envelope(1)), data(4, envelope(1)))


def test_envelopes_of_a_run_out_of_order_are_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.sends(envelope(2))
    history.numbers(FIRST, data(3, envelope(2)))
    with pytest.raises(Violation, match="behind number 0 of its run"):
        history.tells(FIRST, data(3, envelope(2)))


# I6: nothing uncommitted.


def test_a_late_commit_of_a_deposed_sequencer_is_true() -> None:
    history = open_group()
    # Node 3 holds number 3 in the first epoch and goes over to the second, which has it; then node 1
    # writes it, too, and the first sequencer hears of both.
    history.numbers(FIRST, tick(3), servers=(3,))
    history.begins(SECOND, 2, tick(3), servers=(3,))
    history.writes(1, EntriesAppended(FIRST, 2, (tick(3),)))
    history.tells(FIRST, tick(3))
    history.applies(2, claim(1, FIRST), opening(2, 1), tick(3))

    assert history.world.probes["committed.late"] == 1


def test_a_commit_that_too_few_disks_hold_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    with pytest.raises(Violation, match="node 1 says in Commit that 3 is committed, 2 is"):
        history.tells(FIRST, tick(3))


def test_copies_of_two_epochs_do_not_add_up() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.begins(THIRD, 2, tick(3), servers=(3,))
    with pytest.raises(Violation, match=r"I6.* 3 is committed, 2 is"):
        history.tells(THIRD, tick(3))


def test_a_written_entry_that_is_not_synced_does_not_count() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.appends(2, EntriesAppended(FIRST, 2, (tick(3),)))
    with pytest.raises(Violation, match="I6"):
        history.says(1, Heartbeat(FIRST, 3, 0, 1, 0, False))
    history.syncs(2)
    history.says(1, Heartbeat(FIRST, 3, 0, 1, 0, False))


def test_applying_what_is_not_committed_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.applies(1, claim(1, FIRST), opening(2, 1))
    with pytest.raises(Violation, match=r"node 1 applies TICK 3.* which is not committed"):
        history.applies(1, tick(3))


@pytest.mark.parametrize(
    "message",
    [
        FetchIdReply((), 3, 0),
        Applied(FIRST, 3),
        Seal(SECOND, 3),
        SealOk(SECOND, FIRST, 0, 2, 3),
        CommitSubmit(FIRST, 2, (tick(3),), 3),
    ],
)
def test_whoever_calls_too_much_committed_is_seen(message: object) -> None:
    history = open_group()
    history.writes(2, SuperblockRecord(SECOND, 0))
    sender = 1 if isinstance(message, CommitSubmit) else 2
    with pytest.raises(Violation, match="that 3 is committed, 2 is"):
        history.says(sender, message)  # type: ignore[arg-type]


def test_an_answer_with_another_entry_than_was_committed_is_seen() -> None:
    history = open_group()
    history.says(3, FetchIdReply((opening(2, 1),), 2, 0))
    with pytest.raises(Violation, match=r"says in FetchIdReply TICK 2.* where PRODUCER_OPEN"):
        history.says(3, FetchIdReply((tick(2),), 2, 0))


def test_a_server_that_takes_its_own_entries_for_the_committed_ones_is_seen() -> None:
    history = open_group()
    # Node 1 has a leftover of the first epoch at 3, where the second committed something else.
    history.numbers(FIRST, tick(3), servers=(1,))
    history.begins(SECOND, 2, claim(3, SECOND), servers=(2, 3))
    history.writes(1, SuperblockRecord(THIRD, 0))
    history.says(1, SealOk(THIRD, FIRST, 0, 3, 2))
    with pytest.raises(Violation, match="node 1 calls committed what it holds, TICK 3"):
        history.says(1, SealOk(THIRD, FIRST, 0, 3, 3))


# I7: one log, from one node, in one life.


def test_submits_and_starts_that_overlap_pass() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1, 2))
    history.says(1, EpochStart(FIRST, 1, (claim(1, FIRST), opening(2, 1), tick(3)), 2))
    history.says(1, CommitSubmit(FIRST, 1, (opening(2, 1), tick(3)), 2))
    history.says(1, EpochStart(FIRST, 4, (), 2))


def test_an_epoch_that_begins_in_pages_passes() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), tick(4))
    start = EpochStart(SECOND, 3, (tick(3),), 2, FIRST, through=4)
    history.says(2, Seal(SECOND, 2), start, EpochStart(SECOND, 4, (tick(4),), 2, FIRST))
    # A long start is written in pieces, too; all but the last mean nothing by themselves.
    history.writes(3, EntriesStaged(SECOND, 2, (tick(3),)))
    assert history.disks[3].log_epoch == FIRST
    history.writes(3, EpochStarted(SECOND, 2, (tick(4),)))

    assert history.disks[3].log[2:] == [tick(3), tick(4)]


def test_two_entries_for_one_number_in_one_epoch_are_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    with pytest.raises(Violation, match=r"I7.* epoch 0x10001 says PRIMARY_CLAIM 3.* where TICK 3"):
        history.says(1, CommitSubmit(FIRST, 2, (claim(3, FIRST),), 2))


def test_a_hole_in_what_is_submitted_is_seen() -> None:
    history = open_group()
    with pytest.raises(Violation, match="what follows 3, and its log ends at 2"):
        history.says(1, CommitSubmit(FIRST, 3, (tick(4),), 2))
    with pytest.raises(Violation, match="puts number 4 behind 2"):
        history.says(1, CommitSubmit(FIRST, 2, (tick(4),), 2))


def test_another_node_that_speaks_for_an_epoch_is_seen() -> None:
    history = open_group()
    with pytest.raises(Violation, match="node 2 speaks for epoch 0x10001, which is another's"):
        history.says(2, CommitSubmit(FIRST, 2, (tick(3),), 2))


def test_an_epoch_that_goes_on_in_another_life_is_seen() -> None:
    history = open_group()
    history.restarts(1)
    with pytest.raises(Violation, match="node 1 speaks for epoch 0x10001 again in another life"):
        history.says(1, CommitSubmit(FIRST, 2, (tick(3),), 2))


def test_an_epoch_that_submits_before_it_began_is_seen() -> None:
    history = History()
    with pytest.raises(Violation, match="submits entries and never began"):
        history.says(1, CommitSubmit(FIRST, 0, (claim(1, FIRST),), 0))


# I8: what only grows.


def test_promises_and_epochs_that_grow_pass() -> None:
    history = open_group()
    history.writes(3, SuperblockRecord(SECOND, 0), SuperblockRecord(THIRD, THIRD))
    # Two answers of one step may leave in any order.
    history.says(3, SealOk(THIRD, FIRST, 0, 2, 2), SealOk(SECOND, FIRST, 0, 2, 2))
    history.restarts(3)


def test_an_epoch_on_disk_that_goes_back_is_seen() -> None:
    history = open_group()
    history.begins(THIRD, 2, servers=(3,))
    with pytest.raises(Violation, match="log_epoch on the disk of node 3 went back"):
        history.writes(3, EpochStarted(FIRST, 2, ()))


def test_a_promise_that_a_later_life_forgot_is_seen() -> None:
    history = open_group()
    history.writes(3, SuperblockRecord(SECOND, 0))
    history.says(3, SealOk(SECOND, FIRST, 0, 2, 2))
    forgetful = Image(FIRST, 0, FIRST, 0, [claim(1, FIRST), opening(2, 1)], log_config=1)
    with pytest.raises(Violation, match="node 3 forgot a promise"):
        history.restarts(3, forgetful)
    # With a damaged disk it is no surprise; a replaced one has promised nothing at all.
    history.watch.on_damaged(3)
    history.restarts(3, forgetful)
    history.watch.on_replaced(3)
    history.restarts(3, Image())


def test_an_epoch_claimed_by_two_lives_is_seen() -> None:
    history = open_group()
    history.says(2, Seal(SECOND, 2))
    history.restarts(2)
    with pytest.raises(Violation, match="node 2 claims epoch 0x20002 again in another life"):
        history.says(2, Seal(SECOND, 2))


# I9: logs of one epoch are prefixes of one log.


def test_logs_of_one_epoch_of_different_length_pass() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.numbers(FIRST, tick(4), servers=(1,))
    history.writes(2, EntriesAppended(FIRST, 2, (tick(3),)))
    history.restarts(2)


def test_a_server_that_keeps_an_entry_of_an_older_log_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.says(2, Seal(SECOND, 2), EpochStart(SECOND, 3, (claim(3, SECOND),), 2))
    with pytest.raises(Violation, match=r"I9.* node 1 holds TICK 3.* where PRIMARY_CLAIM 3"):
        history.writes(1, EpochStarted(SECOND, 3, ()))


def test_an_entry_on_disk_that_was_never_sent_is_seen() -> None:
    history = open_group()
    with pytest.raises(Violation, match="node 2 holds 3 in epoch 0x10001, where it was never sent"):
        history.writes(2, EntriesAppended(FIRST, 2, (tick(3),)))


def test_kept_prefixes_that_differ_are_seen() -> None:
    history = open_group()
    # Nothing of number 3 is committed; the second epoch adopts it, node 1 has it and node 3 another.
    history.numbers(FIRST, tick(3), servers=(1,))
    history.says(2, Seal(SECOND, 2), EpochStart(SECOND, 4, (), 2, FIRST))
    history.writes(1, EpochStarted(SECOND, 3, ()))
    with pytest.raises(Violation, match=r"node 3 holds PRIMARY_CLAIM 3.* where TICK 3.* was before"):
        history.writes(3, EpochStarted(SECOND, 2, (claim(3, SECOND),)))


# I10: later epochs have what was committed.


def test_an_epoch_that_keeps_what_was_committed_passes() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1, 3))
    # Node 2 lacks number 3; node 3 keeps its own, because its log is of the adopted epoch.
    history.says(2, Seal(SECOND, 2), EpochStart(SECOND, 3, (tick(3),), 2, FIRST))
    history.says(2, EpochStart(SECOND, 4, (), 2, FIRST))
    history.writes(2, EpochStarted(SECOND, 2, (tick(3),)))
    history.writes(3, EpochStarted(SECOND, 3, ()))
    history.numbers(SECOND, claim(4, SECOND), servers=(2, 3))
    history.tells(SECOND, tick(3), claim(4, SECOND))


def test_an_uncommitted_entry_may_be_given_up() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.begins(SECOND, 2, servers=(2, 3))
    history.numbers(SECOND, claim(3, SECOND), servers=(2, 3))
    history.writes(1, EpochStarted(SECOND, 2, (claim(3, SECOND),)))


def test_an_epoch_that_begins_with_less_than_was_committed_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1, 3))
    history.says(2, Seal(SECOND, 2))
    with pytest.raises(Violation, match=r"I10.* epoch 0x20002 begins with a log through 2, 3 was committed"):
        history.says(2, EpochStart(SECOND, 3, (), 2))


def test_an_epoch_that_begins_with_another_entry_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1, 3))
    history.says(2, Seal(SECOND, 2))
    with pytest.raises(Violation, match=r"epoch 0x20002 has PRIMARY_CLAIM 3.* where TICK 3.* was committed"):
        history.says(2, EpochStart(SECOND, 3, (claim(3, SECOND),), 2))


def test_a_server_that_writes_less_than_was_committed_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1, 3))
    history.says(2, Seal(SECOND, 2), EpochStart(SECOND, 4, (), 2, FIRST))
    with pytest.raises(Violation, match="node 2 begins epoch 0x20002 with a log through 2, 3 was committed"):
        history.writes(2, EpochStarted(SECOND, 2, ()))


def test_a_commit_behind_the_back_of_a_later_epoch_is_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.begins(SECOND, 2, servers=(2,))
    with pytest.raises(Violation, match=r"epoch 0x20002 began without TICK 3.* committed in epoch 0x10001"):
        history.writes(3, EntriesAppended(FIRST, 2, (tick(3),)))


def test_two_epochs_that_commit_different_entries_are_seen() -> None:
    history = open_group()
    history.numbers(FIRST, tick(3), servers=(1,))
    history.begins(SECOND, 2, servers=(2, 3))
    history.numbers(SECOND, claim(3, SECOND), servers=(2, 3))
    # Node 3 forgets its promise, and goes back to the first epoch.
    history.watch.on_replaced(3)
    history.restarts(3, Image(FIRST, 0, FIRST, 0, [claim(1, FIRST), opening(2, 1)], log_config=1))
    with pytest.raises(Violation, match=r"PRIMARY_CLAIM 3.* was committed, and epoch 0x10001 commits TICK 3"):
        history.writes(3, EntriesAppended(FIRST, 2, (tick(3),)))


# I15: write before send.


def test_what_is_said_of_the_disk_must_be_durable() -> None:
    history = open_group()
    history.says(1, CommitSubmit(FIRST, 2, (tick(3),), 2))
    history.appends(2, EntriesAppended(FIRST, 2, (tick(3),)))
    with pytest.raises(Violation, match="node 2 acknowledges epoch 0x10001 through 3"):
        history.says(2, CommitAcknowledge(FIRST, 3))
    with pytest.raises(Violation, match="node 3 promises epoch 0x20002"):
        history.says(3, SealOk(SECOND, FIRST, 0, 2, 2))
    with pytest.raises(Violation, match="node 3 reports envelope"):
        history.says(3, DataReport(0, (ReportItem(envelope(1), 0, 1, digest(envelope(1))),)))
    history.syncs(2)
    history.says(2, CommitAcknowledge(FIRST, 3))


def test_an_envelope_that_is_applied_before_it_is_durable_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1), servers=(1, 2))
    history.numbers(FIRST, data(3, envelope(1)), servers=(1, 2))
    history.applies(3, claim(1, FIRST), opening(2, 1))
    with pytest.raises(Violation, match=r"node 3 applies envelope \(1, 2, 1\), which its disk does not hold"):
        history.applies(3, data(3, envelope(1)))


def test_a_server_that_took_over_a_checkpoint_holds_nothing_of_its_old_epoch() -> None:
    history = open_group()
    history.begins(SECOND, 2, servers=(2, 3))
    history.numbers(SECOND, claim(3, SECOND), tick(4, SECOND), servers=(2, 3))
    history.reports_checkpoint(4, 2, 3)
    checkpoint = stable(5, 4, holders=(2, 3))
    history.numbers(SECOND, checkpoint, servers=(2, 3))
    # Node 1 has slept; its log is of the first epoch, and its base is now at a number of the second.
    history.writes(1, BaseMoved(4, FIRST, b"", bytes(16)))
    with pytest.raises(Violation, match="node 1 acknowledges 4 in epoch 0x10001, of which it holds 2"):
        history.says(1, CommitAcknowledge(FIRST, 4))
    history.says(2, EpochStart(SECOND, 5, (checkpoint,), 2, FIRST))
    history.writes(1, EpochStarted(SECOND, 4, (checkpoint,)))
    history.says(1, CommitAcknowledge(SECOND, 5))
