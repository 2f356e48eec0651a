"""The checkers of a group see what producers may rely on, what is deleted, and how it all ends.

I4, I11, I12, I16, I17, I18, the copies of an envelope, and the configuration of an epoch: each has a history
that keeps the promise and one, next to it, that breaks it in one place.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.bus.entries import FenceDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import (
    NO_DIGEST,
    CommitAcknowledge,
    Entry,
    EntryKind,
    EpochStart,
    FetchIdReply,
    NackReason,
    ProducerOpened,
    Published,
    ReportNack,
    Seal,
    SealNack,
    SealOk,
    ServerStatus,
    StoredReply,
)
from antiphon.bus.records import BaseMoved, EpochStarted
from antiphon.ids import Mid, make_epoch
from antiphon.sim.checkers.committed import Memberships
from antiphon.sim.checkers.watch import Checker, Watch
from antiphon.sim.image import Image
from antiphon.sim.world import Violation, World
from tests.unit.sim.checkers.history import (
    FIRST,
    LIFETIME,
    SECOND,
    THIRD,
    History,
    claim,
    data,
    envelope,
    open_group,
    opening,
    payload,
    quantity,
    stable,
    tick,
)

TAG = 9


# I4, I5: what was submitted is where it was told.


def submitted_group(*pseqs: int) -> History:
    """Node 1 was given these envelopes in this order, and has sent them; tags are 9, 10 …"""
    history = open_group()
    for tag, pseq in enumerate(pseqs, start=TAG):
        history.watch.on_submitted(1, tag, payload(envelope(pseq)))
    for pseq in sorted(pseqs):
        history.sends(envelope(pseq))
    return history


def test_an_envelope_that_is_confirmed_where_it_is_passes() -> None:
    history = submitted_group(1)
    history.numbers(FIRST, data(3, envelope(1)))
    history.applies(3, claim(1, FIRST), opening(2, 1), data(3, envelope(1)))
    history.watch.on_envelope_confirmed(1, TAG, 3, 1)
    with pytest.raises(Violation, match="told twice of envelope 9"):
        history.watch.on_envelope_confirmed(1, TAG, 3, 1)


def test_a_confirmation_of_what_is_not_in_the_order_is_seen() -> None:
    history = submitted_group(1)
    history.numbers(FIRST, data(3, envelope(1)), servers=(1,))
    with pytest.raises(Violation, match=r"I4.* confirmed at 3, and the order has it at None"):
        history.watch.on_envelope_confirmed(1, TAG, 3, 1)


def test_a_confirmation_of_another_place_is_seen() -> None:
    history = submitted_group(1)
    history.numbers(FIRST, tick(3), data(4, envelope(1)))
    with pytest.raises(Violation, match="confirmed at 3, and the order has it at 4"):
        history.watch.on_envelope_confirmed(1, TAG, 3, 1)


def test_a_confirmation_before_anybody_applied_it_is_seen() -> None:
    history = submitted_group(1)
    history.numbers(FIRST, data(3, envelope(1)))
    with pytest.raises(Violation, match="nobody has applied it"):
        history.watch.on_envelope_confirmed(1, TAG, 3, 1)


def test_envelopes_out_of_the_order_of_submission_are_seen() -> None:
    history = submitted_group(2, 1)
    with pytest.raises(Violation, match="submitted before one of node 1 that stands before it"):
        history.numbers(FIRST, data(3, envelope(1)), data(4, envelope(2)))


def ordered_and_sent_again() -> tuple[History, Entry]:
    """An envelope is committed in one run of its producer, and is sent again in the next one."""
    history = open_group()
    history.watch.on_submitted(1, TAG, b"one")
    history.sends(envelope(1), body=b"one")
    history.numbers(FIRST, data(3, envelope(1)), opening(4, 1, run=2))
    again = envelope(1, pe=4)
    history.sends(again, body=b"one")
    return history, data(5, again)


def test_an_envelope_that_is_ordered_in_two_runs_is_seen() -> None:
    history, again = ordered_and_sent_again()
    with pytest.raises(Violation, match="was submitted once and is in the order at 3, too"):
        history.numbers(FIRST, again)


def test_an_envelope_of_an_uncertain_producer_may_be_ordered_twice() -> None:
    history, again = ordered_and_sent_again()
    history.watch.on_envelope_uncertain(1, TAG)
    history.numbers(FIRST, again)
    history.applies(2, claim(1, FIRST), opening(2, 1), data(3, envelope(1)), opening(4, 1, run=2), again)
    history.watch.on_envelope_confirmed(1, TAG, 5, 1)


# Q1: copies, where envelopes are numbered when they arrive, and where they are numbered from reports.


def test_an_envelope_that_its_acknowledgers_hold_passes() -> None:
    history = open_group()
    history.sends(envelope(1), servers=(1, 3))
    history.numbers(FIRST, data(3, envelope(1)), servers=(1, 3))
    history.tells(FIRST, data(3, envelope(1)))


@pytest.mark.parametrize("servers", [(2, 1), (1, 2)])
def test_an_acknowledgement_without_the_envelope_is_seen(servers: tuple[int, ...]) -> None:
    history = open_group()
    history.sends(envelope(1), servers=(1,))
    with pytest.raises(Violation, match=r"Q1.* node 2 acknowledges number 3, and lacks"):
        history.numbers(FIRST, data(3, envelope(1)), servers=servers)


def test_a_sequencer_that_commits_what_it_does_not_hold_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1), servers=(2, 3))
    history.numbers(FIRST, data(3, envelope(1)), servers=(2, 3))
    with pytest.raises(Violation, match=r"Q1.* node 1 calls .* committed, and does not hold it"):
        history.tells(FIRST, data(3, envelope(1)))


def test_an_envelope_is_numbered_when_enough_hold_it() -> None:
    history = open_group(one_round=0)
    history.sends(envelope(1), servers=(1, 3))
    history.numbers(FIRST, data(3, envelope(1)))


def test_an_envelope_that_too_few_hold_is_seen() -> None:
    history = open_group(one_round=0)
    history.sends(envelope(1), servers=(1,))
    with pytest.raises(Violation, match=r"2 must hold it and \[1\] do"):
        history.numbers(FIRST, data(3, envelope(1)))


def test_one_copy_will_do_once_the_order_asks_for_no_more() -> None:
    history = open_group(one_round=0, min_copies=1)
    history.sends(envelope(1), servers=(1,))
    history.numbers(FIRST, quantity(3, 1), data(4, envelope(1)))


@pytest.mark.parametrize("asked", [(), ((3, 1), (4, 2))])
def test_one_copy_is_seen_while_the_order_asks_for_two(asked: tuple[tuple[int, int], ...]) -> None:
    history = open_group(one_round=0, min_copies=1)
    history.sends(envelope(1), servers=(1,))
    entries = [quantity(number, copies) for number, copies in asked]
    with pytest.raises(Violation, match=r"2 must hold it and \[1\] do"):
        history.numbers(FIRST, *entries, data(3 + len(asked), envelope(1)))


def test_a_later_epoch_may_have_adopted_that_one_copy_will_do() -> None:
    history = open_group(one_round=0, min_copies=1)
    history.numbers(FIRST, quantity(3, 1))
    history.tells(FIRST, quantity(3, 1))
    history.begins(SECOND, 3)
    history.sends(envelope(1), servers=(2,))
    history.numbers(SECOND, claim(4, SECOND), data(5, envelope(1)))


def test_an_envelope_that_the_sequencer_does_not_hold_is_seen() -> None:
    history = open_group(one_round=0)
    history.sends(envelope(1), servers=(2, 3))
    with pytest.raises(Violation, match=r"node 1 numbers envelope .* its own data server has not reported"):
        history.numbers(FIRST, data(3, envelope(1)))


# I11: checkpoints.


def test_a_checkpoint_that_its_holders_reported_is_stable() -> None:
    history = open_group()
    history.reports_checkpoint(2, 1, 2, 3)
    history.numbers(FIRST, stable(3, 2))
    history.applies(3, claim(1, FIRST), opening(2, 1), stable(3, 2))


def test_two_states_after_one_number_are_seen() -> None:
    history = open_group()
    history.reports_checkpoint(2, 1)
    with pytest.raises(Violation, match=r"I11.* node 3 has another state after 2"):
        history.reports_checkpoint(2, 3, state=b"another")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (stable(3, 2, holders=(1, 3)), "at nodes that never reported it"),
        (stable(3, 2, state=bytes([1] * 16)), "with a digest that nobody reported"),
    ],
)
def test_a_checkpoint_that_is_called_stable_and_is_not_is_seen(entry: Entry, text: str) -> None:
    history = open_group()
    history.reports_checkpoint(2, 1, 2)
    history.numbers(FIRST, entry)
    history.applies(2, claim(1, FIRST), opening(2, 1))
    with pytest.raises(Violation, match=text):
        history.applies(2, entry)


# I12: what is deleted.


def test_what_a_stable_checkpoint_covers_may_go() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, data(3, envelope(1)))
    history.reports_checkpoint(3, 1, 2)
    history.numbers(FIRST, stable(4, 3))
    history.tells(FIRST, data(3, envelope(1)), stable(4, 3))
    history.writes(2, BaseMoved(3, FIRST, b"", NO_DIGEST))
    history.watch.on_released(2, 3)
    history.watch.on_discarded(2, envelope(1))
    history.watch.on_restored(3, 3)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_base_that_no_stable_checkpoint_covers_is_seen(is_committed: bool) -> None:
    history = open_group()
    history.reports_checkpoint(1 if is_committed else 2, 1, 2)
    # The checkpoint is too old, or that it is stable is known to one disk only.
    entry = stable(3, 1) if is_committed else stable(3, 2)
    history.numbers(FIRST, entry, servers=(1, 2) if is_committed else (1,))
    with pytest.raises(Violation, match=r"I12.* node 1 gives up all through 2, the last stable"):
        history.writes(1, BaseMoved(2, FIRST, b"", NO_DIGEST))
    with pytest.raises(Violation, match="node 2 gives up all through 2"):
        history.watch.on_released(2, 2)
    with pytest.raises(Violation, match="node 3 took over the checkpoint at 2"):
        history.watch.on_restored(3, 2)


def test_a_payload_that_no_stable_checkpoint_covers_is_needed() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, data(3, envelope(1)))
    with pytest.raises(Violation, match=r"gives up \(1, 2, 1\), and no stable checkpoint covers number 3"):
        history.watch.on_discarded(2, envelope(1))
    # What cannot be read is no copy.
    history.watch.on_damaged(2)
    history.watch.on_discarded(2, envelope(1))


def test_an_envelope_that_may_still_get_a_number_is_needed() -> None:
    history = open_group()
    history.sends(envelope(1))
    with pytest.raises(Violation, match=r"gives up \(1, 2, 1\), which may still get a number"):
        history.watch.on_discarded(2, envelope(1))


def test_an_envelope_of_a_run_that_is_over_may_go() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, opening(3, 1, run=2))
    history.watch.on_discarded(2, envelope(1))


def test_an_envelope_that_the_order_has_passed_may_go() -> None:
    history = open_group()
    history.sends(envelope(1))
    ticks = [tick(first) for first in range(3, LIFETIME + 1)]
    history.numbers(FIRST, *ticks)
    with pytest.raises(Violation, match="may still get a number"):
        history.watch.on_discarded(2, envelope(1))
    history.numbers(FIRST, tick(LIFETIME + 1))
    history.watch.on_discarded(2, envelope(1))


# I16: definite failures.


def fence(first: int, pid: int, pe: int, term: int) -> Entry:
    detail = FenceDetail(pid, pe, term).encode()
    return Entry(first, 1, EntryKind.PRODUCER_FENCE, Mid(1, FIRST, first), 0, NO_DIGEST, detail)


def refusal(reason: NackReason, epoch: int = FIRST) -> ReportNack:
    return ReportNack(epoch, envelope(1), reason)


def test_a_refusal_that_the_order_supports_passes() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, fence(3, 1, 2, FIRST))
    history.says(2, refusal(NackReason.FENCED))


def test_a_refusal_that_the_order_does_not_support_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, fence(3, 1, 2, SECOND), tick(4))
    with pytest.raises(Violation, match=r"I16.* calls \(1, 2, 1\) FENCED, and the order does not say so"):
        history.says(2, refusal(NackReason.FENCED))
    with pytest.raises(Violation, match="EXPIRED, and the order does not say so"):
        history.says(2, refusal(NackReason.EXPIRED))


def test_a_refusal_of_what_is_in_the_order_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, data(3, envelope(1)), opening(4, 1, run=2))
    with pytest.raises(Violation, match="FENCED, and it is in the order"):
        history.says(3, refusal(NackReason.FENCED))


def test_the_word_of_a_sequencer_is_not_final() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.says(1, refusal(NackReason.EXPIRED))
    history.says(2, refusal(NackReason.EXPIRED))
    history.begins(SECOND, 2, servers=(2, 3))
    history.numbers(SECOND, claim(3, SECOND), data(4, envelope(1)), servers=(2, 3))


def test_what_was_told_to_have_failed_and_is_ordered_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, opening(3, 1, run=2))
    history.says(2, refusal(NackReason.FENCED))
    with pytest.raises(Violation, match="enters the order after its producer was told FENCED"):
        history.numbers(FIRST, data(4, envelope(1)))


def test_an_envelope_of_a_run_that_is_over_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    with pytest.raises(Violation, match="enters the order, and its run is not the open one"):
        history.numbers(FIRST, opening(3, 1, run=2), data(4, envelope(1)))


def test_an_envelope_that_is_numbered_after_its_lifetime_is_seen() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.numbers(FIRST, *[tick(first) for first in range(3, LIFETIME + 1)])
    with pytest.raises(Violation, match="enters the order after its lifetime, its ts is 0"):
        history.numbers(FIRST, data(LIFETIME + 1, envelope(1)))


def test_what_a_producer_is_told_to_be_in_the_order_is_there() -> None:
    history = open_group()
    history.sends(envelope(1))
    history.says(1, ProducerOpened(1, bytes([1] * 16), 2))
    with pytest.raises(Violation, match="node 1 says that producer 1 is open as 3"):
        history.says(1, ProducerOpened(1, bytes([1] * 16), 3))
    with pytest.raises(Violation, match=r"calls \(1, 2, 1\) published"):
        history.says(3, Published(envelope(1)))
    history.numbers(FIRST, data(3, envelope(1)))
    history.says(3, Published(envelope(1)))


# I17: how it ends.


def test_a_group_that_has_come_to_rest_passes() -> None:
    history = open_group()
    history.watch.at_end(history.facts(2))


def test_what_has_not_come_to_rest_is_seen() -> None:
    history = open_group()
    facts = history.facts(2)
    for node, change, text in (
        (2, {"is_leading": True}, r"nodes \[1, 2\] lead"),
        (1, {"is_leading": False}, r"nodes \[\] lead"),
        (3, {"waits_for": 4}, "node 3 waits for 4 envelopes"),
        (2, {"applied": 1}, "node 2 has applied 1, 2 is committed"),
        (3, {"digest": b"another"}, r"nodes \[1, 3\] differ after 2"),
    ):
        with pytest.raises(Violation, match=f"I17.* {text}"):
            history.watch.at_end({**facts, node: replace(facts[node], **change)})  # type: ignore[arg-type]
    with pytest.raises(Violation, match="node 3 is down"):
        history.watch.at_end({node: facts[node] for node in (1, 2)})


# I18: damage.


def test_a_server_that_has_lost_something_may_refuse_and_may_help() -> None:
    history = open_group()
    history.watch.on_status(3, ServerStatus.DAMAGED)
    history.says(3, SealNack(SECOND, ServerStatus.DAMAGED))
    history.says(3, CommitAcknowledge(FIRST, 0, ServerStatus.DAMAGED))
    history.says(3, FetchIdReply((opening(2, 1),), 2, 0))
    history.watch.on_status(3, ServerStatus.OK)
    history.says(3, CommitAcknowledge(FIRST, 2))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (SealOk(FIRST, FIRST, 0, 2, 2), "gives its log to a candidate"),
        (CommitAcknowledge(FIRST, 2), "acknowledges"),
        (FetchIdReply((), 2, 0), "says that there are no entries"),
        (StoredReply(1, (), (), is_gone=True), "says that a checkpoint is gone"),
    ],
)
@pytest.mark.parametrize("is_told", [True, False])
def test_a_server_that_has_lost_something_and_votes_is_seen(
    message: SealOk | CommitAcknowledge | FetchIdReply | StoredReply, text: str, is_told: bool
) -> None:
    history = open_group()
    if is_told:
        history.watch.on_status(3, ServerStatus.AMNESIA)
    else:
        history.says(3, SealNack(SECOND, ServerStatus.AMNESIA))
    with pytest.raises(Violation, match=f"I18.* node 3 is AMNESIA and {text}"):
        history.says(3, message)


# Configurations.


def test_an_epoch_keeps_the_configuration_it_was_sealed_in() -> None:
    one = GroupConfig.of("main", (1, 2, 3))
    two = GroupConfig.of("main", (1, 2, 3, 4, 5), config_id=2)
    memberships = Memberships(one)
    assert memberships.bind(FIRST, 1) == one
    memberships.add(two)

    assert memberships.of_epoch(FIRST) == one
    assert memberships.of_epoch(SECOND) == two
    assert memberships.bind(FIRST, 2) is None
    assert memberships.bind(THIRD, 3) is None


def test_a_committed_configuration_counts_in_the_next_epoch() -> None:
    history = open_group()
    larger = GroupConfig.of("main", (1, 2, 3, 4, 5), config_id=2, lifetime=LIFETIME)
    change = Entry(3, 1, EntryKind.CONFIG, Mid(1, FIRST, 3), 0, NO_DIGEST, larger.encode())
    history.numbers(FIRST, change, servers=(1, 2))
    history.says(2, Seal(SECOND, 3, 2), EpochStart(SECOND, 4, (), 3, FIRST, 2))
    history.says(3, Seal(THIRD, 2, 2))
    with pytest.raises(Violation, match="epoch 0x20002 is not of configuration 1"):
        history.says(2, EpochStart(SECOND, 4, (), 3, FIRST, 1))
    with pytest.raises(Violation, match="is not of configuration 7"):
        history.says(1, Seal(make_epoch(9, 1), 2, 7))


def test_a_larger_group_needs_more_copies_of_an_entry() -> None:
    history = open_group()
    larger = GroupConfig.of("main", (1, 2, 3, 4, 5), config_id=2, lifetime=LIFETIME)
    change = Entry(3, 1, EntryKind.CONFIG, Mid(1, FIRST, 3), 0, NO_DIGEST, larger.encode())
    history.numbers(FIRST, change)
    history.says(2, Seal(SECOND, 3, 2), EpochStart(SECOND, 4, (), 3, FIRST, 2))
    for server in (1, 2, 3):
        history.writes(server, EpochStarted(SECOND, 3, ()))
    history.numbers(SECOND, claim(4, SECOND), servers=(2, 3))
    with pytest.raises(Violation, match="4 is committed, 3 is"):
        history.tells(SECOND, change, claim(4, SECOND))
    history.numbers(SECOND, claim(4, SECOND), servers=(1,))
    history.tells(SECOND, change, claim(4, SECOND))


# The fan-out.


class Listener(Checker):
    """Hears one kind of message and counts."""

    hears = (Seal,)
    heard = 0

    def on_sent(self, node: int, message: object) -> None:
        self.heard += 1


def test_a_checker_is_asked_only_about_what_it_hears() -> None:
    listener = Listener(World(1))
    watch = Watch([listener, Listener(World(1))])
    watch.on_sent(1, Seal(FIRST, 0))
    watch.on_sent(1, Published(envelope(1)))
    watch.on_started(1, Image(), 0)

    assert listener.heard == 1
