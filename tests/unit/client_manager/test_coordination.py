"""A transaction in several channels: every step of it, and whatever goes wrong between two of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.bus.messages import InDoubt, SessionDetached, SessionDetachedHeard, Unfinished
from antiphon.client_manager.effects import SendToPrimary, SubmitEnvelope
from antiphon.errors import SessionClosed
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    CommandKind,
    Outcome,
    OutcomeCode,
    ResolveTransaction,
    iterate_commands,
)
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import (
    Consumed,
    DecideTransaction,
    ForgetTransaction,
    Participant,
    PrepareTransaction,
)
from tests.failpoints import Proceed, hold_up
from tests.planted.catalogue import planted
from tests.unit.client_manager.deal import (
    COMMITTED,
    HOME,
    NO,
    OTHER,
    ROLLED_BACK,
    THIRD,
    Deal,
    finish,
    kinds_in,
)
from tests.unit.client_manager.stage import KNOWN, publish_bytes

# -- all goes well -----------------------------------------------------------------------------------


def test_a_commit_is_prepared_then_decided_then_carried_out_then_told_then_forgotten() -> None:
    deal = Deal()
    consumed = (Consumed(KNOWN, 0, Ranges([(10, 12)])),)
    request = deal.commit()
    prepare = PrepareTransaction(transaction=1, home=HOME, batches=1, messages=2, consumed=consumed)
    assert deal.waiting(OTHER) == [prepare] and deal.waiting(HOME) == []
    header = deal.header(OTHER)
    assert (header.session, header.generation, header.number, header.count) == (deal.session, 1, 0, 1)

    deal.settle(OTHER)
    decide = DecideTransaction(
        transaction=1, batches=3, messages=4, consumed=consumed, participants=(Participant(OTHER, 2),)
    )
    assert deal.waiting(HOME) == [decide] and deal.waiting(OTHER) == []
    header = deal.header(HOME)
    assert (header.session, header.generation, header.number, header.count) == (deal.session, 1, 0, 4)

    deal.settle(HOME)
    assert deal.waiting(OTHER) == [finish(deal.session, commits=True, messages=2)]
    header = deal.header(OTHER)
    assert (header.session, header.number, header.count) == (0, 0, 2)
    assert deal.answers() == [] and deal.waiting(HOME) == []

    deal.settle(OTHER)
    assert deal.answers() == [(request, COMMITTED, "")]
    assert deal.waiting(HOME) == [ForgetTransaction(session=deal.session, transaction=1)]
    deal.settle(HOME)
    assert deal.is_idle()


def test_nothing_is_decided_before_the_last_participant_is_ready() -> None:
    deal = Deal((HOME, OTHER, THIRD))
    deal.commit(parts=(TransactionPart(THIRD, 1, 1), *deal.parts()))
    deal.settle(THIRD)
    assert deal.waiting(HOME) == []
    deal.settle(OTHER)
    (decide,) = deal.waiting(HOME)
    assert isinstance(decide, DecideTransaction)
    assert decide.participants == (Participant(THIRD, 1), Participant(OTHER, 2))
    deal.settle(HOME)
    deal.settle(THIRD)
    assert deal.answers() == []
    deal.settle(OTHER)
    assert deal.answers() != []


def test_a_part_in_one_channel_alone_needs_a_decision_only() -> None:
    deal = Deal()
    request = deal.commit(parts=(TransactionPart(OTHER, 0, 7, (), (1, 2)),))
    assert deal.waiting(HOME) == [] and deal.kinds(OTHER) == [CommandKind.TX_DECIDE]
    deal.settle(OTHER)
    assert deal.answers() == [(request, COMMITTED, "")]
    assert deal.kinds(OTHER) == [CommandKind.TX_FORGET]
    deal.settle(OTHER)
    assert deal.is_idle()


def test_what_was_confirmed_is_told_before_the_answer() -> None:
    deal = Deal()
    deal.say(1, frames.Command(channel=HOME, command=publish_bytes(deal.session, 2)))
    deal.commit(parts=(TransactionPart(HOME, 0, 0, (), (1,)),))
    deal.heard[1].clear()
    deal.confirm_all()
    assert [type(frame) for frame in deal.heard[1]] == [frames.Confirm, frames.TransactionDecided]


def test_an_application_is_decided_in_the_system_channel_even_with_no_part_there() -> None:
    """Its session has never spoken to that channel, nor to that of a part that others have staged."""
    deal = Deal()
    deal.connect(5)
    session = deal.open_session(5)
    deal.commit(
        parts=(TransactionPart(OTHER, 2, 9, (), (77,)),),
        application="spark",
        version=3,
        conn=5,
        session=session,
    )
    assert deal.kinds(OTHER) == deal.kinds(HOME) == [CommandKind.SESSION_OPEN]
    deal.settle(OTHER)
    # Nothing is prepared before the home channel knows the session: it could not remember a refusal.
    assert deal.submitted[0].channel == HOME and deal.waiting(OTHER) == []
    deal.settle(HOME)
    assert deal.kinds(OTHER) == [CommandKind.TX_PREPARE]
    deal.settle(OTHER)
    (decide,) = deal.waiting(HOME)
    assert decide == DecideTransaction(
        transaction=1,
        batches=0,
        messages=0,
        consumed=(),
        participants=(Participant(OTHER, 9),),
        application="spark",
        version=3,
    )
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers(5)] == [COMMITTED]
    assert deal.is_idle()


def test_an_application_that_has_committed_a_version_before_is_told_so_and_its_parts_are_dropped() -> None:
    deal = Deal()
    deal.commit(application="spark", version=3)
    deal.settle(OTHER)
    deal.settle(HOME, Outcome(0, 4, OutcomeCode.DUPLICATE))
    assert deal.waiting(OTHER) == [finish(deal.session, commits=False, messages=2)]
    deal.settle(OTHER)
    assert [fate for _, fate, _ in deal.answers()] == [TransactionFate.COMMITTED_BEFORE]
    assert deal.is_idle()


def test_what_was_consumed_is_held_until_it_is_decided() -> None:
    deal = Deal()
    deal.open_consumer(deal.session)
    consumer = deal.manager._connections[1].sessions[deal.session].consumers[1]
    consumer.held.add(10, 13)
    deal.commit()
    deal.settle(OTHER)
    assert consumer.held == Ranges([(10, 13)])
    deal.settle(HOME)
    assert consumer.held == Ranges([(12, 13)])


def test_what_was_consumed_is_still_held_when_it_is_rolled_back() -> None:
    deal = Deal()
    deal.open_consumer(deal.session)
    consumer = deal.manager._connections[1].sessions[deal.session].consumers[1]
    consumer.held.add(10, 13)
    deal.commit()
    deal.settle(OTHER)
    deal.settle(HOME, NO)
    deal.confirm_all()
    assert deal.answers() != [] and consumer.held == Ranges([(10, 13)])


def test_the_next_transaction_may_begin_once_the_last_one_is_told() -> None:
    deal = Deal()
    deal.commit(1)
    deal.confirm_all()
    deal.commit(2)
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED, COMMITTED]
    assert deal.is_idle()


# -- one cannot --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [OutcomeCode.TX_ROLLED_BACK, OutcomeCode.REFUSED, OutcomeCode.STALE, OutcomeCode.SESSION_UNKNOWN],
)
def test_a_participant_that_cannot_has_everybody_roll_back_and_nothing_is_decided(code: OutcomeCode) -> None:
    deal = Deal((HOME, OTHER, THIRD))
    request = deal.commit(parts=(TransactionPart(THIRD, 1, 1), *deal.parts()))
    deal.settle(OTHER, Outcome(0, 1, code, 0, "not whole"))
    # The third has not answered: what would be said to it now could come before the promise it may give.
    assert deal.kinds(THIRD) == [CommandKind.TX_PREPARE]
    rolls_back = finish(deal.session, commits=False, messages=2)
    assert deal.waiting(OTHER) == [rolls_back]
    assert deal.waiting(HOME) == [finish(deal.session, commits=False, messages=0)]
    deal.settle(OTHER)
    deal.settle(HOME)
    assert deal.answers() == []
    deal.settle(THIRD)
    assert deal.waiting(THIRD) == [finish(deal.session, commits=False, messages=1)]
    deal.settle(THIRD)
    assert deal.answers() == [(request, ROLLED_BACK, "not whole")]
    assert deal.is_idle()


def test_a_home_that_does_not_know_the_session_has_everybody_roll_back_and_nobody_promise() -> None:
    deal = Deal()
    deal.connect(5)
    session = deal.open_session(5)
    staged = (TransactionPart(OTHER, 2, 9, (), (77,)),)
    deal.commit(parts=staged, application="spark", version=3, conn=5, session=session)
    deal.settle(OTHER)
    deal.settle(HOME, Outcome(0, 1, OutcomeCode.REFUSED, 0, "no more sessions"))
    assert deal.waiting(OTHER) == [finish(session, commits=False, messages=9)]
    deal.confirm_all()
    assert [(fate, text) for _, fate, text in deal.answers(5)] == [(ROLLED_BACK, "no more sessions")]
    assert deal.is_idle()


def test_a_home_that_does_not_open_in_time_has_nobody_promise() -> None:
    deal = Deal(prepare_wait_ms=300, finish_wait_ms=50)
    deal.connect(5)
    session = deal.open_session(5)
    staged = (TransactionPart(OTHER, 2, 9, (), (77,)),)
    deal.commit(parts=staged, application="spark", version=3, conn=5, session=session)
    deal.settle(OTHER)
    deal.wait(300)
    deal.settle(OTHER)
    deal.wait(50)
    assert [(fate, text) for _, fate, text in deal.answers(5)] == [
        (ROLLED_BACK, "channel a did not answer in time")
    ]
    deal.confirm_all()
    seen = [kind for effect in deal.of_kind(SubmitEnvelope) for kind in kinds_in(effect)]
    assert CommandKind.TX_PREPARE not in seen and CommandKind.TX_DECIDE not in seen
    assert deal.is_idle()


def test_the_open_part_of_the_home_is_dropped_behind_what_the_session_has_sent_there() -> None:
    deal = Deal()
    deal.say(1, frames.Command(channel=HOME, command=publish_bytes(deal.session, 2)))
    deal.commit()
    deal.settle(OTHER, NO)
    assert deal.kinds(HOME) == [CommandKind.PUBLISH]
    deal.settle(HOME)
    assert deal.kinds(HOME) == [CommandKind.TX_FINISH]
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers()] == [ROLLED_BACK]
    assert deal.is_idle()


def test_a_home_that_cannot_has_the_participants_roll_back() -> None:
    deal = Deal()
    request = deal.commit()
    deal.settle(OTHER)
    deal.settle(HOME, Outcome(0, 4, OutcomeCode.TX_ROLLED_BACK, 0, "gone"))
    assert deal.waiting(OTHER) == [finish(deal.session, commits=False, messages=2)]
    assert deal.header(OTHER).count == 1
    deal.settle(OTHER)
    assert deal.answers() == [(request, ROLLED_BACK, "gone")]
    assert deal.is_idle()


@pytest.mark.parametrize("code", [OutcomeCode.STALE, OutcomeCode.SESSION_UNKNOWN])
@pytest.mark.parametrize("commits", [True, False])
def test_who_may_not_decide_any_more_asks_what_was_decided(code: OutcomeCode, commits: bool) -> None:
    deal = Deal()
    request = deal.commit()
    deal.settle(OTHER)
    deal.settle(HOME, Outcome(0, 4, code))
    assert deal.waiting(OTHER) == [] and deal.answers() == []
    assert deal.waiting(HOME) == [ResolveTransaction(session=deal.session, transaction=1)]
    assert deal.header(HOME).session == 0
    deal.settle(HOME, *(() if commits else (NO,)))
    assert deal.waiting(OTHER) == [finish(deal.session, commits=commits, messages=2)]
    deal.confirm_all()
    fate = COMMITTED if commits else ROLLED_BACK
    assert [(number, what) for number, what, _ in deal.answers()] == [(request, fate)]
    assert deal.is_idle()


def test_a_channel_that_does_not_promise_in_time_has_everybody_roll_back() -> None:
    deal = Deal((HOME, OTHER, THIRD), prepare_wait_ms=300)
    request = deal.commit(parts=(TransactionPart(THIRD, 1, 1), *deal.parts()))
    deal.settle(OTHER)
    deal.wait(299)
    assert deal.waiting(HOME) == [] and deal.waiting(OTHER) == []
    deal.wait(1)
    assert deal.kinds(OTHER) == [CommandKind.TX_FINISH]
    deal.settle(OTHER)
    deal.settle(HOME)
    assert deal.answers() == []
    deal.wait(1000)
    assert deal.answers() == [(request, ROLLED_BACK, "channel c did not answer in time")]
    # Much later its promise is heard of: it is released from it.
    deal.settle(THIRD)
    assert deal.waiting(THIRD) == [finish(deal.session, commits=False, messages=1)]
    deal.settle(THIRD)
    assert deal.is_idle()


def test_a_participant_that_is_slow_to_carry_it_out_does_not_keep_the_client_waiting() -> None:
    deal = Deal(finish_wait_ms=50)
    request = deal.commit(1)
    deal.settle(OTHER)
    deal.settle(HOME)
    deal.wait(49)
    assert deal.answers() == []
    deal.wait(1)
    assert deal.answers() == [(request, COMMITTED, "")]
    # Not forgotten, though: it is not carried out.
    assert deal.waiting(HOME) == []
    deal.commit(2)
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED, COMMITTED]
    assert deal.is_idle()


def test_a_commit_that_was_not_carried_out_is_not_forgotten() -> None:
    deal = Deal()
    deal.commit()
    deal.settle(OTHER)
    deal.settle(HOME)
    deal.settle(OTHER, Outcome(0, 2, OutcomeCode.REFUSED, 0, "other messages"))
    assert deal.answers() != [] and deal.waiting(HOME) == []
    assert deal.is_idle()


def test_what_is_carried_out_everywhere_is_not_carried_out_again_before_it_is_forgotten() -> None:
    """A home that is slow to order says over and over that the transaction is unfinished."""
    deal = Deal()
    deal.commit()
    for channel in (OTHER, HOME, OTHER):
        deal.settle(channel)
    assert deal.kinds(HOME) == [CommandKind.TX_FORGET]
    for _ in range(3):
        deal.tell(Unfinished(deal.session, 1, (OTHER,), (2,)), channel=HOME)
    assert deal.kinds(OTHER) == []
    deal.settle(HOME)
    assert deal.is_idle()
    deal.tell(Unfinished(deal.session, 1, (OTHER,), (2,)), channel=HOME)
    assert deal.kinds(OTHER) == [CommandKind.TX_FINISH], "a later word counts"


# -- the client is gone ------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [(), (OTHER,), (OTHER, HOME), (OTHER, HOME, OTHER)])
def test_a_commit_goes_on_when_its_client_is_lost(settled: tuple[str, ...]) -> None:
    deal = Deal()
    deal.commit()
    for channel in settled:
        deal.settle(channel)
    deal.lose()
    seen: list[CommandKind] = []
    while deal.submitted:
        seen += [CommandKind(header.kind) for header, _, _ in iterate_commands(deal.submitted[0].payload)]
        deal.confirm()
    order = [CommandKind.TX_PREPARE, CommandKind.TX_DECIDE, CommandKind.TX_FINISH, CommandKind.TX_FORGET]
    assert [kind for kind in seen if kind in order] == order[len(settled) :]
    assert deal.is_idle()
    assert deal.manager.session_count == 0


def test_a_primary_hears_again_that_the_client_is_gone_behind_each_step_of_its_transaction() -> None:
    """A client manager that was fenced has its session again with the step, and nobody is there."""
    deal = Deal()

    def told() -> list[SessionDetached]:
        said = [one.message for one in deal.of_kind(SendToPrimary) if one.channel == HOME]
        return [message for message in said if isinstance(message, SessionDetached)]

    deal.commit()
    deal.lose()
    deal.tell(SessionDetachedHeard(deal.session, 1, 1), channel=HOME)
    deal.settle(OTHER)
    assert deal.kinds(HOME) == [CommandKind.TX_DECIDE] and len(told()) == 1
    deal.settle(HOME)
    first, again = told()
    assert (again.session, again.generation) == (deal.session, 1)
    assert again.floor > first.floor, "the primary is to have applied the decision"


def test_a_client_that_comes_back_asks_and_waits_for_what_is_under_way() -> None:
    deal = Deal()
    deal.commit()
    deal.settle(OTHER)
    request = deal.come_back_and_ask()
    assert deal.kinds(HOME) == [CommandKind.TX_DECIDE, CommandKind.SESSION_OPEN]
    deal.confirm_all()
    assert CommandKind.TX_RESOLVE not in [
        kind for effect in deal.of_kind(SubmitEnvelope) for kind in kinds_in(effect)
    ]
    assert deal.answers(2) == [(request, COMMITTED, "")]
    assert deal.is_idle()


def test_the_home_is_asked_when_nobody_can_have_it_decided_any_more_whatever_is_on_its_way() -> None:
    """Else it could say that it is rolled back, and a decision of the former client manager come after."""
    deal = Deal()
    request = deal.come_back_and_ask()
    assert deal.kinds(HOME) == [CommandKind.SESSION_OPEN] and deal.header(HOME).generation == 2
    deal.settle(HOME, Outcome(0, 1, OutcomeCode.DUPLICATE))
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]
    deal.settle(HOME, NO)
    assert deal.answers(2) == [(request, ROLLED_BACK, "not whole")]
    assert deal.is_idle()


def test_who_asks_for_a_session_that_has_gone_elsewhere_is_told_so() -> None:
    deal = Deal()
    deal.come_back_and_ask()
    deal.settle(HOME, Outcome(0, 1, OutcomeCode.STALE))
    (failed,) = deal.heard_of(frames.Failed, 2)
    assert failed.code == SessionClosed.code and deal.answers(2) == []
    assert deal.is_idle()


def test_a_client_that_comes_back_to_another_node_is_told_what_the_home_says() -> None:
    for commits in (True, False):
        deal = Deal()
        request = deal.ask()
        again = deal.ask()
        assert deal.waiting(HOME) == [ResolveTransaction(session=deal.session, transaction=1)]
        deal.settle(HOME, *(() if commits else (NO,)))
        fate, text = (COMMITTED, "") if commits else (ROLLED_BACK, "not whole")
        assert deal.answers() == [(request, fate, text), (again, fate, text)]
        assert deal.is_idle()


def test_the_system_channel_need_not_be_named() -> None:
    deal = Deal()
    deal.ask(home="")
    assert deal.kinds(HOME) == [CommandKind.TX_RESOLVE]


def test_who_asks_about_what_is_decided_already_is_told_at_once() -> None:
    deal = Deal()
    deal.commit()
    deal.settle(OTHER)
    deal.settle(HOME)
    request = deal.come_back_and_ask()
    deal.settle(HOME)
    assert deal.kinds(OTHER) == [CommandKind.TX_FINISH]
    assert deal.answers(2) == [(request, COMMITTED, "")]
    deal.confirm_all()
    assert deal.is_idle()


def test_a_session_that_came_back_commits_its_next_transaction_while_the_former_one_is_carried_out() -> None:
    deal = Deal()
    deal.commit(1)
    deal.settle(OTHER)
    deal.settle(HOME)
    deal.lose()
    deal.resume()
    request = deal.commit(2, (TransactionPart(OTHER, 0, 1, (), (5,)),), conn=2)
    deal.confirm_all()
    assert deal.answers(2) == [(request, COMMITTED, "")]
    assert deal.is_idle()


def test_a_session_that_is_closed_meanwhile_is_rolled_back() -> None:
    deal = Deal()
    request = deal.commit()
    deal.say(1, frames.SessionClose(request=deal.request(), session=deal.session))
    assert deal.kinds(HOME) == [CommandKind.SESSION_CLOSE]
    deal.settle(OTHER)
    deal.settle(HOME)
    deal.settle(HOME, Outcome(0, 4, OutcomeCode.SESSION_UNKNOWN))
    deal.settle(HOME, NO)
    deal.confirm_all()
    assert deal.answers() == [(request, ROLLED_BACK, "not whole")]
    assert deal.is_idle()


# -- commits that are held up, and a planted bug -------------------------------------------------------


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Proceed]]:
    """Holds commits up before a step; those that have reached it are in the list."""

    def hold_up_at(step: str) -> list[Proceed]:
        reached: list[Proceed] = []
        hold_up(monkeypatch, (step,), reached.append)
        return reached

    return hold_up_at


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("tx.prepare", CommandKind.TX_PREPARE),
        ("tx.decide", CommandKind.TX_DECIDE),
        ("tx.finish", CommandKind.TX_FINISH),
        ("tx.forget", CommandKind.TX_FORGET),
    ],
)
def test_a_commit_can_be_held_up_before_each_step_while_others_go_on(
    step: str, kind: CommandKind, hold: Callable[[str], list[Proceed]]
) -> None:
    reached = hold(step)
    deal = Deal(prepare_wait_ms=60_000)
    deal.commit()
    deal.confirm_all()
    (proceed,) = reached
    assert proceed.step == step
    assert kind not in [kind for effect in deal.of_kind(SubmitEnvelope) for kind in kinds_in(effect)]

    other = deal.open_session()
    deal.say(1, frames.Command(channel=HOME, command=publish_bytes(other)))
    deal.confirm_all()
    assert deal.heard_of(frames.Confirm)[-1].session == other

    deal.step(proceed)
    deal.confirm_all()
    seen = [kind for effect in deal.of_kind(SubmitEnvelope) for kind in kinds_in(effect)]
    assert seen.count(kind) == 1
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED]
    assert deal.is_idle()


def test_a_decision_that_is_held_up_for_too_long_is_not_ordered_any_more(
    hold: Callable[[str], list[Proceed]],
) -> None:
    reached = hold("tx.decide")
    deal = Deal()
    deal.commit()
    deal.settle(OTHER)
    (proceed,) = reached
    deal.tell(InDoubt(session=deal.session, transaction=1, home=HOME, messages=2), channel=OTHER)
    deal.settle(HOME, NO)
    deal.confirm_all()
    deal.step(proceed)
    assert [fate for _, fate, _ in deal.answers()] == [ROLLED_BACK]
    assert deal.is_idle()


def test_who_waits_is_told_what_was_decided_though_carrying_it_out_is_held_up(
    hold: Callable[[str], list[Proceed]],
) -> None:
    hold("tx.finish")
    deal = Deal()
    deal.commit()
    deal.confirm_all()
    assert deal.answers() == []
    deal.wait(1000)
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED]


def test_the_planted_bug_carries_out_what_nobody_has_decided() -> None:
    deal = Deal()
    with planted("decision-not-ordered"):
        deal.commit()
        deal.settle(OTHER)
    assert deal.kinds(HOME) == [CommandKind.TX_DECIDE]
    assert deal.waiting(OTHER) == [finish(deal.session, commits=True, messages=2)]
    deal.settle(HOME, NO._replace(count=4))
    deal.confirm_all()
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED]
