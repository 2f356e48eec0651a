"""Each planted bug is seen by a step test, and the same steps pass without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import ConfigProposed, Learned, Received, ReleaseSpace, Synced
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import EntryKind, ServerStatus
from antiphon.bus.sequencer import State
from antiphon.ids import Mid, make_epoch
from tests.planted.catalogue import planted, with_and_without
from tests.stage import OneNode, data_of, envelope, item_of
from tests.unit.bus import chair as sequence
from tests.unit.bus import test_commit_server as commit


def opened(**settings: int) -> tuple[OneNode, int]:
    """A node that leads, with an open producer; returns it and the producer's pe."""
    node = OneNode(GroupConfig.of("main", (1,), **settings))
    node.settle()
    node.step(envelope(0))
    node.settle()
    del node.said[:]
    return node, node.producer.pe


@with_and_without("acknowledge-before-fsync")
def test_acknowledging_before_the_sync_is_seen(is_planted: bool) -> None:
    node, _ = opened()
    node.step(envelope(1))
    assert bool(node.heard(m.CommitAcknowledge)) == is_planted, "acknowledged and not durable"
    assert not node.disk.synced[-1].index >= node.counter.last


@with_and_without("acknowledge-before-fsync")
def test_reporting_before_the_sync_is_seen(is_planted: bool) -> None:
    node, _ = opened(one_round=0)
    node.step(envelope(1))
    assert bool(node.heard(m.DataReport)) == is_planted, "reported and not durable"
    assert bool(node.heard(m.CommitAcknowledge)) == is_planted
    assert not node.disk.synced[-1].index >= node.counter.last


@pytest.mark.parametrize(("one_round", "reply"), [(1, m.CommitAcknowledge), (0, m.DataReport)])
@with_and_without("release-by-earlier-sync")
def test_a_reply_released_by_an_earlier_sync_is_seen(is_planted: bool, one_round: int, reply: type) -> None:
    node, _ = opened(one_round=one_round)
    before = node.counter.last
    node.step(envelope(1))
    node.step(Synced(before))
    assert bool(node.heard(reply)) == is_planted, "a sync that began before it was written"


@with_and_without("dedup-off")
def test_numbering_an_envelope_twice_is_seen(is_planted: bool) -> None:
    node, pe = opened()
    item = item_of(data_of(Mid(1, pe, 1)))
    node.step(Received(1, m.DataReport(node.replica.epoch, (item,))))
    assert bool(node.heard(m.CommitSubmit)) == is_planted, "an envelope has one place"


@with_and_without("fifo-off")
def test_numbering_out_of_order_is_seen(is_planted: bool) -> None:
    node, pe = opened()
    node.step(Received(1, m.DataReport(node.replica.epoch, (item_of(data_of(Mid(1, pe, 3))),))))
    assert bool(node.heard(m.CommitSubmit)) == is_planted, "number 3 of a run that has only one"


@pytest.mark.parametrize(("bug", "pseq"), [("dedup-off", 1), ("fifo-off", 3)])
def test_the_ledger_is_the_second_line_of_defence(bug: str, pseq: int) -> None:
    with planted(bug), pytest.raises(AssertionError, match="follows 1"):
        # In one round the entry would wait for its envelope, and never be folded.
        node, pe = opened(one_round=0)
        node.step(Received(1, m.DataReport(node.replica.epoch, (item_of(data_of(Mid(1, pe, pseq))),))))
        node.sync()


# -- among several ----------------------------------------------------------------------------------


@with_and_without("seal-quantity-one")
def test_a_candidate_content_with_one_promise_is_seen(is_planted: bool) -> None:
    chair = sequence.Chair(nodes=(1, 2, 3))
    epoch = sequence.stand_among_three(chair)
    effects = chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 1)
    assert bool(effects) == is_planted, "a start without a seal quorum"


@with_and_without("no-fence")
def test_a_commit_server_without_a_fence_is_seen(is_planted: bool) -> None:
    booth = commit.Booth(last=2)
    booth.hear(m.Seal(commit.NEW, 0), 3)
    booth.hear(m.CommitSubmit(commit.OLD, 2, commit.ticks(3, 3), 0), 1)
    assert (booth.server.log.last == 3) == is_planted, "it promised a higher epoch"


@with_and_without("adopt-longest")
def test_adopting_the_longest_log_is_seen(is_planted: bool) -> None:
    chair = sequence.Chair(
        nodes=(1, 2, 3),
        entries=sequence.ticks(1, 9),
        committed=2,
    )
    epoch = sequence.stand_among_three(chair)
    chair.hear(m.SealOk(epoch, make_epoch(6, 3), 0, 4, 3), 3)
    (fetch,) = chair.hear(m.SealOk(epoch, sequence.OLD, 0, 9, 2), 1)
    assert (getattr(fetch, "to", None) == 1) == is_planted, "the newest log is that of node 3"


@with_and_without("no-resubmit")
def test_counting_what_was_held_in_an_older_epoch_is_seen(is_planted: bool) -> None:
    chair = sequence.Chair(nodes=(1, 2, 3), entries=sequence.ticks(1, 2))
    epoch = sequence.stand_among_three(chair)
    chair.hear(m.SealOk(epoch, sequence.OLD, 0, 2, 0), 2)
    chair.hear(m.SealOk(epoch, sequence.OLD, 0, 2, 0), 1)
    chair.hear(m.FetchLogReply(epoch, 1, sequence.ticks(1, 2), 2), 1)
    assert (chair.sequencer.state is State.LEADING) == is_planted, "nobody holds it in the new epoch"


@with_and_without("raise-committed-from-any-epoch")
def test_believing_any_epoch_about_what_is_committed_is_seen(is_planted: bool) -> None:
    booth = commit.Booth(last=5, committed=2)
    booth.hear(m.Heartbeat(commit.NEW, 5, 0, 1, 0, True), 3)
    assert (booth.server.committed_upto == 5) == is_planted, "our entries may be others"


@with_and_without("keep-own-suffix")
def test_keeping_ones_own_suffix_unseen_is_seen(is_planted: bool) -> None:
    chair = sequence.Chair(
        nodes=(1, 2, 3),
        entries=sequence.ticks(1, 9),
        committed=2,
    )
    epoch = sequence.stand_among_three(chair)
    chair.hear(m.SealOk(epoch, sequence.OLD, 0, 9, 2), 1)
    (fetch,) = sequence.sent(chair.hear(m.SealOk(epoch, make_epoch(6, 3), 0, 9, 7), 3))
    assert isinstance(fetch, m.FetchLog)
    assert (fetch.start == 8) == is_planted, "3 to 7 of ours may be leftovers"


@with_and_without("own-report-not-required")
def test_numbering_what_ones_own_data_server_lacks_is_seen(is_planted: bool) -> None:
    chair = sequence.Chair(
        nodes=(1, 2, 3),
        commit_servers=(1,),
        commit_quantity=1,
        seal_quantity=1,
        candidates=(1,),
    )
    chair.lead()
    mid = Mid(1, chair.open(), 1)
    chair.report(mid, server=2)
    assert bool(sequence.numbered(chair.report(mid, server=3))) == is_planted


@with_and_without("config-before-commit")
def test_a_configuration_that_decides_about_itself_is_seen(is_planted: bool) -> None:
    chair = sequence.lead_three()
    sequence.keep_leading(chair, 10)
    smaller = replace(
        chair.config,
        config_id=2,
        commit_servers=(1,),
        candidates=(1,),
        commit_quantity=1,
        seal_quantity=1,
    )
    chair.step(ConfigProposed(smaller))
    chair.acknowledge(2, 1)
    assert (chair.sequencer.reign is None) == is_planted, "one of three holds it"


@with_and_without("two-changes-at-once")
def test_two_changes_of_the_configuration_at_once_are_seen(is_planted: bool) -> None:
    chair = sequence.lead_three()
    chair.step(ConfigProposed(replace(chair.config, config_id=2)))
    effects = chair.step(ConfigProposed(replace(chair.config, config_id=3)))
    kinds = [kind for part in sequence.submitted(effects) for _, kind in part]
    assert (kinds == [EntryKind.CONFIG]) == is_planted, "the first is not committed"


@pytest.mark.parametrize("status", [ServerStatus.DAMAGED, ServerStatus.AMNESIA])
@with_and_without("vote-after-damage")
def test_a_vote_after_damage_is_seen(is_planted: bool, status: ServerStatus) -> None:
    booth = commit.Booth(last=2)
    booth.server.set_status(status)
    booth.hear(m.Seal(commit.NEW, 0), 3)
    assert bool(booth.sync()) == is_planted


@with_and_without("negative-after-damage")
def test_a_negative_answer_after_damage_is_seen(is_planted: bool) -> None:
    booth = commit.Booth(last=2)
    booth.server.set_status(ServerStatus.DAMAGED)
    assert bool(booth.hear(m.FetchId(9, 10), 1)) == is_planted


@with_and_without("garbage-before-stable")
def test_a_base_that_moves_before_a_checkpoint_is_stable_is_seen(is_planted: bool) -> None:
    booth = commit.Booth(last=4, committed=4)
    mark = commit.ticks(4, 4)[0]._replace(kind=EntryKind.CHECKPOINT_MARK)
    effects = booth.step(Learned((), (mark,), ((4, Ledger().encode()),))) + booth.sync()
    assert (ReleaseSpace(4) in effects) == is_planted, "nobody has said that it has a checkpoint"
