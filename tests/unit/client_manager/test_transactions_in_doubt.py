"""Transactions whose coordinator is gone, or slow: what primaries say of them."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import InDoubt, Unfinished
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode, ResolveTransaction
from antiphon.wire.transaction_frames import TransactionPart
from antiphon.wire.transactions import ForgetTransaction
from tests.unit.client_manager.deal import COMMITTED, HOME, NO, OTHER, ROLLED_BACK, THIRD, Deal, finish

# -- in doubt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_who_is_in_doubt_is_told_what_the_home_has_decided(commits: bool) -> None:
    deal = Deal()
    doubt = InDoubt(session=99, transaction=7, home=HOME, messages=5)
    deal.tell(doubt, channel=OTHER)
    deal.tell(doubt, channel=OTHER)
    assert deal.waiting(HOME) == [ResolveTransaction(session=99, transaction=7)]
    deal.settle(HOME, *(() if commits else (NO,)))
    deal.tell(doubt, channel=OTHER)
    assert deal.waiting(OTHER) == [finish(99, commits=commits, messages=5, transaction=7)]
    assert deal.header(OTHER).count == (5 if commits else 1)
    deal.settle(OTHER)
    # It knows of one participant only: whether it is complete, others say.
    assert deal.is_idle()


def test_several_in_doubt_about_one_transaction_are_told_by_one_question() -> None:
    deal = Deal((HOME, OTHER, THIRD))
    deal.tell(InDoubt(session=99, transaction=7, home=HOME, messages=5), channel=OTHER)
    deal.tell(InDoubt(session=99, transaction=7, home=HOME, messages=0), channel=THIRD)
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]
    deal.settle(HOME)
    assert deal.waiting(OTHER) == [finish(99, commits=True, messages=5, transaction=7)]
    assert deal.waiting(THIRD) == [finish(99, commits=True, messages=0, transaction=7)]


def test_doubt_about_our_own_is_left_to_it_while_it_is_prepared_and_carried_out() -> None:
    deal = Deal((HOME, OTHER, THIRD))
    deal.commit(parts=(TransactionPart(THIRD, 1, 1), *deal.parts()))
    doubt = InDoubt(session=deal.session, transaction=1, home=HOME, messages=2)
    deal.settle(OTHER)
    deal.tell(doubt, channel=OTHER)
    assert deal.waiting(HOME) == []
    deal.settle(THIRD)
    deal.settle(HOME)
    deal.tell(doubt, channel=OTHER)
    deal.tell(Unfinished(deal.session, 1, (OTHER, THIRD), (2, 1)), channel=HOME)
    assert deal.waiting(HOME) == []
    assert deal.kinds(OTHER) == deal.kinds(THIRD) == [CommandKind.TX_FINISH]
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED]
    assert deal.is_idle()


@pytest.mark.parametrize("commits", [True, False])
def test_a_decision_that_is_stuck_is_asked_for_when_somebody_is_in_doubt(commits: bool) -> None:
    """Whichever comes first at the home channel holds; ours is told the same."""
    deal = Deal(submitted_bytes_max=1 << 20)
    request = deal.commit()
    deal.settle(OTHER)
    deal.tell(InDoubt(session=deal.session, transaction=1, home=HOME, messages=2), channel=OTHER)
    stuck, asked = deal.submitted
    assert deal.kinds(HOME) == [CommandKind.TX_DECIDE, CommandKind.TX_RESOLVE]
    deal.submitted[:] = [asked, stuck]
    deal.settle(HOME, *(() if commits else (NO,)))
    assert deal.waiting(OTHER) == [finish(deal.session, commits=commits, messages=2)]
    deal.settle(OTHER)
    deal.settle(HOME, *(() if commits else (NO._replace(count=4),)))
    deal.confirm_all()
    fate = COMMITTED if commits else ROLLED_BACK
    assert [(number, what) for number, what, _ in deal.answers()] == [(request, fate)]
    assert deal.is_idle()


def test_what_is_unfinished_is_carried_out_and_then_forgotten() -> None:
    deal = Deal((HOME, OTHER, THIRD))
    deal.tell(Unfinished(99, 7, (OTHER, THIRD), (5, 0)), channel=HOME)
    deal.tell(Unfinished(99, 7, (OTHER, THIRD), (5, 0)), channel=HOME)
    assert deal.waiting(OTHER) == [finish(99, commits=True, messages=5, transaction=7)]
    assert deal.waiting(THIRD) == [finish(99, commits=True, messages=0, transaction=7)]
    deal.settle(OTHER)
    assert deal.waiting(HOME) == []
    deal.settle(THIRD)
    assert deal.waiting(HOME) == [ForgetTransaction(session=99, transaction=7)]
    deal.settle(HOME)
    assert deal.is_idle()


def test_what_has_no_participants_is_forgotten_at_once() -> None:
    deal = Deal()
    deal.tell(Unfinished(99, 7, (), ()), channel=OTHER)
    assert deal.waiting(OTHER) == [ForgetTransaction(session=99, transaction=7)]


def test_channels_that_are_not_known_here_are_left_to_others() -> None:
    deal = Deal()
    deal.tell(Unfinished(99, 7, ("z",), (5,)), channel=HOME)
    deal.tell(InDoubt(session=99, transaction=7, home="z", messages=5), channel=OTHER)
    assert deal.submitted == [] and deal.is_idle()


def test_doubt_is_settled_by_the_home_it_names_whatever_a_client_took_for_it() -> None:
    """A client that asks in the wrong channel is told something wrong; nobody else is."""
    deal = Deal((HOME, OTHER, THIRD))
    deal.ask(home=OTHER)
    deal.tell(InDoubt(session=deal.session, transaction=1, home=HOME, messages=5), channel=THIRD)
    deal.settle(OTHER, NO)
    assert deal.waiting(THIRD) == []
    deal.tell(InDoubt(session=deal.session, transaction=1, home=HOME, messages=5), channel=THIRD)
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]
    deal.settle(HOME)
    assert deal.waiting(THIRD) == [finish(deal.session, commits=True, messages=5)]
    deal.settle(THIRD)
    assert deal.is_idle()


# What the data servers lost is refused, whatever it was.
LOST = Outcome(0, 1, OutcomeCode.REFUSED, 0, "lost")


def test_a_question_that_was_lost_is_asked_again_while_somebody_waits_for_the_answer() -> None:
    deal = Deal()
    request = deal.ask()
    deal.settle(HOME, LOST)
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]
    deal.settle(HOME)
    assert deal.answers() == [(request, COMMITTED, "")]
    assert deal.is_idle()


def test_who_does_not_know_whether_it_has_decided_asks_until_it_does() -> None:
    deal = Deal()
    request = deal.commit(parts=(TransactionPart(HOME, 1, 1),))
    deal.settle(HOME, Outcome(0, 1, OutcomeCode.STALE))
    deal.settle(HOME, LOST)
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]
    deal.settle(HOME)
    assert deal.answers() == [(request, COMMITTED, "")]


def test_a_lost_question_that_nobody_waits_for_is_left_to_who_is_in_doubt() -> None:
    deal = Deal()
    deal.tell(InDoubt(session=99, transaction=7, home=HOME, messages=5), channel=OTHER)
    deal.settle(HOME, LOST)
    assert deal.is_idle()
