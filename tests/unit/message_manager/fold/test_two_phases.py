"""Transactions in several channels, seen from one of them: as a participant, and as the home that decides."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import InDoubt, Register, Unfinished
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state import transactions
from antiphon.message_manager.state.transactions import MARK_MS_MAX, OPEN_MS_MAX
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode, encode_command
from antiphon.wire.transactions import Participant
from tests.unit.message_manager.channel import (
    AT_ONCE,
    CM,
    SECOND_NS,
    SESSION,
    Client,
    bodies,
    delivered,
    finish,
    forget,
    numbers_to,
    resolve,
)
from tests.unit.message_manager.fold.test_transactions import Stage, consumed


class Two(Stage):
    """Three messages in `orders`, which the session has received; `bills` is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Client(0xB2)
        self.got = self.channel.order(self.other.open(), self.other.publish(self.orders, bodies(3))) + 1
        self.channel.register(7, self.orders, credit=2)
        assert numbers_to(self.channel.flush(), 7) == [self.got, self.got + 1]

    @property
    def received(self) -> tuple[int, int]:
        return (self.got, self.got + 2)

    def prepare(self, transaction: int = 1) -> Outcome | None:
        """Two messages to `bills`, for the two that were received."""
        self.send(2, queue=self.bills, transaction=transaction)
        command = self.client.prepare(1, 2, consumed(self.orders, self.received), transaction=transaction)
        return self.channel.outcome(command)


def code_of(outcome: Outcome | None) -> OutcomeCode:
    return OutcomeCode.APPLIED if outcome is None else OutcomeCode(outcome.code)


def said(effects: list[Effect]) -> list[InDoubt | Unfinished]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Multicast) and isinstance(effect.message, InDoubt | Unfinished)
    ]


# -- a participant -------------------------------------------------------------------------


def test_what_is_prepared_is_still_not_seen_and_is_not_acknowledged() -> None:
    two = Two()
    assert two.prepare() is None
    assert two.messages(two.bills) == []
    assert two.messages(two.orders) == [two.got, two.got + 1, two.got + 2]
    assert two.channel.manager.status()["transactions"] == {
        "open": 0,
        "prepared": 1,
        "staged": 0,
        "unfinished": 0,
    }


def test_a_finish_that_commits_makes_it_visible_and_acknowledges() -> None:
    two = Two()
    two.channel.register(8, two.bills)
    two.prepare()
    first = two.channel.order(finish(SESSION, 1, commits=True, messages=2))
    assert two.messages(two.bills) == [first, first + 1]
    assert two.messages(two.orders) == [two.got + 2]
    assert delivered(two.channel.flush()) == [(8, first, b"0-0", 0), (8, first + 1, b"0-1", 0)]
    assert two.is_clean()


def test_a_finish_that_rolls_back_leaves_nothing_and_unlocks() -> None:
    two = Two()
    two.prepare()
    assert two.channel.outcome(finish(SESSION, 1, commits=False)) is None
    assert two.messages(two.bills) == [] and two.is_clean()
    assert two.channel.outcome(two.client.ack(two.orders, two.received)) is None


def test_a_finish_is_done_once() -> None:
    two = Two()
    two.prepare()
    two.channel.order(finish(SESSION, 1, commits=True, messages=2))
    before = two.messages(two.bills)
    for again in (finish(SESSION, 1, commits=True, messages=2), finish(SESSION, 1, commits=False)):
        assert two.channel.outcome(again) is None
    assert two.messages(two.bills) == before


def test_a_finish_with_another_count_of_messages_is_refused_and_the_part_stays() -> None:
    two = Two()
    two.prepare()
    outcome = two.channel.outcome(finish(SESSION, 1, commits=True, messages=3))
    assert code_of(outcome) == OutcomeCode.REFUSED
    assert len(two.transactions.prepared) == 1 and two.transactions.locks
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert len(two.messages(two.bills)) == 2


def test_what_is_not_whole_or_not_there_cannot_be_prepared_and_is_dropped() -> None:
    two = Two()
    two.send(2, queue=two.bills)
    outcome = two.channel.outcome(two.client.prepare(2, 2))
    assert code_of(outcome) == OutcomeCode.TX_ROLLED_BACK and two.is_clean()
    two.channel.order(two.other.ack(two.orders, (two.got, two.got + 1)))
    assert code_of(two.prepare(transaction=2)) == OutcomeCode.TX_ROLLED_BACK and two.is_clean()


def test_who_acknowledges_what_is_locked_has_let_go_of_it() -> None:
    """It was given to another consumer meanwhile, whose acknowledgement comes too late, or too early."""
    two = Two()
    taken = consumed(two.orders, two.received)
    assert two.channel.outcome(two.other.prepare(0, 0, taken)) is None
    lost = two.channel.outcome(two.client.ack(two.orders, two.received))
    assert code_of(lost) == OutcomeCode.ACK_LOST
    two.channel.register(8, two.orders, session=two.other.session)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2], "what is locked is given to nobody"
    two.channel.order(finish(two.other.session, 1, commits=False))
    assert numbers_to(two.channel.flush(), 8) == [two.got, two.got + 1]


def test_to_prepare_twice_is_to_prepare_once() -> None:
    two = Two()
    two.prepare()
    again = two.client.prepare(1, 2, consumed(two.orders, two.received))
    assert two.channel.outcome(again) is None
    assert len(two.transactions.prepared) == 1


def test_the_word_of_a_former_client_manager_is_void() -> None:
    two = Two()
    two.send(2, queue=two.bills)
    late = two.client.prepare(1, 2)
    two.channel.order(two.client.resume(2), pid=2)
    assert code_of(two.channel.outcome(late)) == OutcomeCode.STALE
    assert two.channel.outcome(two.client.prepare(1, 2), pid=2) is None


def test_nothing_is_prepared_for_a_session_that_is_not_known() -> None:
    two = Two()
    assert code_of(two.channel.outcome(Client(0xC3).prepare(0, 0))) == OutcomeCode.SESSION_UNKNOWN


def test_what_is_prepared_takes_no_more_batches() -> None:
    two = Two()
    two.prepare()
    outcome = two.channel.outcome(two.client.tx_publish(two.bills, bodies(1)))
    assert code_of(outcome) == OutcomeCode.REFUSED
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert two.is_clean()


def test_what_is_prepared_stays_whoever_goes_and_however_long_it_takes() -> None:
    two = Two()
    two.prepare()
    two.channel.fence(CM, two.channel.manager.term)
    two.channel.claim(1)
    two.channel.order(two.client.tx_rollback())
    two.channel.order(two.client.close())
    two.channel.pass_time(2 * OPEN_MS_MAX)
    two.channel.pass_time(2 * OPEN_MS_MAX)
    assert len(two.transactions.prepared) == 1
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert len(two.messages(two.bills)) == 2 and two.messages(two.orders) == [two.got + 2]


def test_a_later_transaction_leaves_what_is_prepared_alone() -> None:
    two = Two()
    two.prepare()
    two.send(1, queue=two.bills, transaction=2)
    assert two.channel.outcome(two.client.tx_commit(1, 1, transaction=2)) is None
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert len(two.messages(two.bills)) == 3


def test_a_queue_that_is_deleted_meanwhile_takes_what_was_locked_with_it() -> None:
    two = Two()
    two.prepare()
    two.channel.order(two.other.delete(two.orders))
    two.channel.order(two.other.delete(two.bills))
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert two.is_clean() and two.channel.manager.live_bytes_by_segment() == {}


# -- locks ---------------------------------------------------------------------------------


def test_what_is_locked_is_acknowledged_by_nobody_else() -> None:
    two = Two()
    two.prepare()
    outcome = two.channel.outcome(two.other.ack(two.orders, (two.got, two.got + 3)))
    assert outcome is not None
    assert (outcome.code, outcome.original) == (OutcomeCode.ACK_LOST, two.got)
    assert outcome.text == "2 of 3 were no longer there"
    assert two.messages(two.orders) == [two.got, two.got + 1]
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None


def test_what_is_locked_is_consumed_by_no_other_transaction() -> None:
    two = Two()
    two.prepare()
    wish = consumed(two.orders, (two.got + 1, two.got + 3))
    for command in (
        two.other.tx_commit(0, 0, wish),
        two.other.prepare(0, 0, wish),
        two.other.decide(0, 0, wish),
    ):
        outcome = two.channel.outcome(command)
        assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
        assert "another transaction is about to acknowledge" in outcome.text
    two.channel.order(finish(SESSION, 1, commits=False))
    assert two.channel.outcome(two.other.tx_commit(0, 0, wish, transaction=2)) is None


def test_whoever_holds_what_is_locked_goes_on_holding_it() -> None:
    two = Two()
    two.prepare()
    two.channel.register(8, two.orders, session=0xB2)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2]
    two.channel.order(finish(SESSION, 1, commits=False))
    assert delivered(two.channel.flush()) == []
    primary = two.channel.manager.primary
    assert primary is not None and primary.delivery.in_flight_count(two.orders) == 3


def test_what_is_locked_is_given_to_nobody_when_its_holder_has_gone() -> None:
    two = Two()
    two.prepare()
    two.channel.register(8, two.orders, session=0xB2)
    two.channel.flush()
    two.channel.unregister(7, seen_through=1)
    two.channel.order_proposals(two.channel.flush())
    assert delivered(two.channel.flush()) == []
    two.channel.order(finish(SESSION, 1, commits=False))
    assert [(number, count) for _, number, _, count in delivered(two.channel.flush())] == [
        (two.got, 1),
        (two.got + 1, 0),
    ]


def test_what_came_back_before_it_was_locked_is_given_to_nobody_either() -> None:
    """Its consumer ended without having seen it, and nobody else had credit; then the session prepares."""
    two = Two()
    two.channel.register(8, two.orders, session=0xB2, credit=1)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2]
    two.channel.unregister(7, seen_through=0)
    two.channel.flush()
    two.prepare()
    two.channel.credit(8, 9)
    assert delivered(two.channel.flush()) == []
    two.channel.order(finish(SESSION, 1, commits=False))
    assert numbers_to(two.channel.flush(), 8) == [two.got, two.got + 1]


def test_a_return_of_what_is_locked_counts_and_gives_it_to_nobody() -> None:
    two = Two()
    two.prepare()
    two.channel.order(two.client.give_back(two.orders, two.received))
    two.channel.register(8, two.orders, session=0xB2)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2]
    two.channel.order(finish(SESSION, 1, commits=False))
    assert [(number, count) for _, number, _, count in delivered(two.channel.flush())] == [
        (two.got, 1),
        (two.got + 1, 1),
    ]


def test_what_is_locked_and_was_given_back_is_gone_when_the_transaction_commits() -> None:
    two = Two()
    two.prepare()
    two.channel.order(two.client.give_back(two.orders, two.received))
    two.channel.order(finish(SESSION, 1, commits=True, messages=2))
    two.channel.register(8, two.orders, session=0xB2)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2]


def test_a_new_term_does_not_give_out_what_is_locked() -> None:
    two = Two()
    two.prepare()
    two.channel.claim(1)
    two.channel.register(8, two.orders, session=0xB2)
    assert numbers_to(two.channel.flush(), 8) == [two.got + 2]
    two.channel.order(finish(SESSION, 1, commits=False))
    assert numbers_to(two.channel.flush(), 8) == [two.got, two.got + 1]


def test_in_a_new_term_whoever_held_what_is_locked_holds_it_again() -> None:
    two = Two()
    two.prepare()
    two.channel.claim(1)
    two.channel.register(7, two.orders, held=Ranges([two.received]))
    two.channel.register(8, two.orders, session=0xB2)
    two.channel.flush()
    two.channel.order(finish(SESSION, 1, commits=False))
    assert delivered(two.channel.flush()) == []
    two.channel.order(two.client.give_back(two.orders, two.received))
    assert sorted(number for _, number, _, _ in delivered(two.channel.flush())) == [two.got, two.got + 1]


def test_what_a_session_let_go_of_before_its_consumer_was_attached_is_free_when_it_is_attached_anew() -> None:
    """Its client manager has not heard of the refusal when it says what the consumer holds, and then has.

    Found by: antiphon sim holds --seed 700150, without the waits that are drawn.
    """
    two = Two()
    two.channel.outcome(two.other.prepare(0, 0, consumed(two.orders, two.received)))
    two.channel.claim(1)
    refused = two.channel.outcome(two.client.ack(two.orders, two.received))
    assert code_of(refused) == OutcomeCode.ACK_LOST
    two.channel.register(7, two.orders, held=Ranges([two.received]), credit=0)
    two.channel.register(8, two.orders, session=two.other.session)
    two.channel.flush()
    term = two.channel.manager.term
    anew = Register(9, SESSION, 1, two.orders, 0, "", 0, 0, number=7, resumes=True, term=term)
    two.channel.say(anew)
    two.channel.order(finish(two.other.session, 1, commits=False))
    assert numbers_to(two.channel.flush(), 8) == [two.got, two.got + 1]


def test_the_locks_of_a_subscription_are_its_own() -> None:
    two = Two()
    topic = two.channel.create_topic("news")
    mine = two.channel.order(two.client.subscribe(topic))
    theirs = two.channel.order(two.other.subscribe(topic))
    got = two.channel.order(two.other.publish(topic, bodies(2)))
    prepare = two.client.prepare(0, 0, consumed(topic, (got, got + 2), subscription=mine))
    assert two.channel.outcome(prepare) is None
    two.channel.register(8, topic, subscription=mine)
    two.channel.register(9, topic, subscription=theirs, session=0xB2)
    effects = two.channel.flush()
    assert numbers_to(effects, 8) == [] and numbers_to(effects, 9) == [got, got + 1]
    assert two.channel.outcome(two.other.ack(topic, (got, got + 2), subscription=theirs)) is None
    two.channel.order(finish(SESSION, 1, commits=False))
    assert numbers_to(two.channel.flush(), 8) == [got, got + 1]


# -- the home -------------------------------------------------------------------------------


def test_a_decision_to_commit_takes_effect_at_once() -> None:
    two = Two()
    two.send(2, queue=two.bills)
    decide = two.client.decide(1, 2, consumed(two.orders, two.received))
    first = two.channel.order(decide)
    assert two.messages(two.bills) == [first, first + 1] and two.messages(two.orders) == [two.got + 2]
    assert two.is_clean()
    assert two.channel.manager.status()["transactions"]["unfinished"] == 1


def test_the_home_decides_once_and_tells_it_again_in_any_generation() -> None:
    two = Two()
    two.send(2, queue=two.bills)
    decide = two.client.decide(1, 2)
    assert two.channel.outcome(decide) is None
    two.channel.order(two.client.resume(2), pid=2)
    for again in (decide, resolve(SESSION, 1), two.client.decide(1, 2)):
        assert two.channel.outcome(again, pid=2) is None
    assert len(two.messages(two.bills)) == 2


def test_a_home_that_cannot_commit_its_part_decides_to_roll_back() -> None:
    two = Two()
    outcome = two.channel.outcome(two.client.decide(1, 2))
    assert code_of(outcome) == OutcomeCode.TX_ROLLED_BACK
    assert outcome is not None and outcome.count == 2
    two.send(2, queue=two.bills)
    again = two.channel.outcome(two.client.decide(1, 2))
    assert again is not None and (again.code, again.text) == (outcome.code, outcome.text)
    assert code_of(two.channel.outcome(resolve(SESSION, 1))) == OutcomeCode.TX_ROLLED_BACK
    assert two.messages(two.bills) == []


def test_who_asks_before_it_is_decided_decides_to_roll_back() -> None:
    two = Two()
    two.send(2, queue=two.bills)
    assert code_of(two.channel.outcome(resolve(SESSION, 1))) == OutcomeCode.TX_ROLLED_BACK
    assert two.is_clean()
    assert code_of(two.channel.outcome(two.client.decide(1, 2))) == OutcomeCode.TX_ROLLED_BACK
    assert code_of(two.channel.outcome(two.client.decide(0, 0))) == OutcomeCode.TX_ROLLED_BACK
    assert code_of(two.channel.outcome(two.client.tx_commit(0, 0))) == OutcomeCode.TX_ROLLED_BACK


def test_a_session_that_is_not_known_cannot_decide_to_commit() -> None:
    two = Two()
    assert code_of(two.channel.outcome(Client(0xC3).decide(0, 0))) == OutcomeCode.SESSION_UNKNOWN
    assert two.transactions.decision(0xC3, 1) is None


@pytest.mark.parametrize("was_known", [False, True])
def test_what_was_rolled_back_stays_so_when_the_session_is_opened_by_a_word_that_comes_late(
    was_known: bool,
) -> None:
    """A client manager that is slow has SESSION_OPEN and DECIDE in its queues; another one has asked."""
    two = Two()
    late = Client(0xC3)
    if was_known:
        two.channel.order(late.open(), late.close())
    assert code_of(two.channel.outcome(resolve(0xC3, 1))) == OutcomeCode.TX_ROLLED_BACK
    outcome = two.channel.outcome(late.open(), late.decide(0, 0))
    assert code_of(outcome) == OutcomeCode.TX_ROLLED_BACK


def test_the_end_of_a_session_leaves_a_mark_of_what_was_rolled_back() -> None:
    two = Two()
    two.channel.order(resolve(SESSION, 1))
    decide = two.client.decide(0, 0)
    two.channel.order(two.client.close())
    assert code_of(two.channel.outcome(two.client.open(), decide)) == OutcomeCode.TX_ROLLED_BACK


def test_such_a_mark_is_kept_for_an_hour_of_the_channel() -> None:
    two = Two()
    two.channel.order(resolve(0xC3, 1), resolve(0xC4, 1))
    two.channel.pass_time(10 * MARK_MS_MAX)
    two.channel.pass_time(MARK_MS_MAX)
    two.channel.order(Client(0xC4).open())
    assert two.transactions.decision(0xC3, 1) is not None
    two.channel.pass_time(1)
    assert two.transactions.decision(0xC3, 1) is None
    assert two.transactions.decision(0xC4, 1) is not None, "it has come after all"
    assert two.transactions.due_ms() is None


def test_a_decision_to_roll_back_is_kept_until_the_session_decides_a_later_one() -> None:
    two = Two()
    two.channel.order(resolve(SESSION, 1))
    assert two.transactions.decision(SESSION, 1) is not None
    assert two.channel.outcome(two.client.decide(0, 0, transaction=2)) is None
    assert two.transactions.decision(SESSION, 1) is None
    late = two.channel.outcome(two.client.decide(0, 0, transaction=1))
    assert code_of(late) == OutcomeCode.TX_ROLLED_BACK
    assert two.transactions.decision(SESSION, 1) is None, "nor is it decided anew"


def test_a_decision_to_commit_is_kept_until_it_is_forgotten_and_a_later_one_is_made() -> None:
    two = Two()
    two.channel.order(two.client.decide(0, 0, transaction=1))
    two.channel.order(two.client.decide(0, 0, transaction=2))
    assert two.channel.outcome(resolve(SESSION, 1)) is None, "a participant may not have heard of it"
    two.channel.order(forget(SESSION, 1))
    assert two.transactions.decision(SESSION, 1) is None
    two.channel.order(forget(SESSION, 2))
    assert two.channel.outcome(resolve(SESSION, 2)) is None, "the client may still ask"
    two.channel.order(two.client.decide(0, 0, transaction=3))
    assert two.transactions.decision(SESSION, 2) is None


def test_a_later_decision_for_a_session_that_is_not_known_is_kept_for_an_hour_of_its_own() -> None:
    two = Two()
    unknown = Client(0xC3)
    two.channel.order(resolve(unknown.session, 1))
    two.channel.pass_time(1)
    two.channel.pass_time(MARK_MS_MAX)
    two.channel.order(resolve(unknown.session, 2))
    two.channel.pass_time(1)
    two.channel.pass_time(MARK_MS_MAX)
    # Whatever its client manager still had in its queues comes too late.
    two.channel.order(unknown.open())
    assert code_of(two.channel.outcome(unknown.decide(0, 0, transaction=2))) == OutcomeCode.TX_ROLLED_BACK


@pytest.mark.parametrize("is_forgotten_first", [False, True])
def test_a_session_that_has_ended_can_ask_what_was_decided_last_for_an_hour(is_forgotten_first: bool) -> None:
    two = Two()
    two.channel.order(two.client.decide(0, 0))
    steps = [two.client.close(), forget(SESSION, 1)]
    two.channel.order(*(reversed(steps) if is_forgotten_first else steps))
    two.channel.pass_time(1)
    two.channel.pass_time(MARK_MS_MAX)
    assert two.channel.outcome(resolve(SESSION, 1)) is None
    two.channel.pass_time(1)
    assert two.transactions.decision(SESSION, 1) is None
    assert two.transactions.due_ms() is None


def test_a_commit_that_is_not_complete_outlives_its_session_for_as_long_as_it_takes() -> None:
    two = Two()
    two.channel.order(two.client.decide(0, 0), two.client.close())
    for _ in range(3):
        two.channel.pass_time(2 * MARK_MS_MAX)
    assert two.channel.outcome(resolve(SESSION, 1)) is None
    two.channel.order(forget(SESSION, 1))
    two.channel.pass_time(1)
    two.channel.pass_time(MARK_MS_MAX + 1)
    assert two.transactions.decision(SESSION, 1) is None


def test_of_too_many_decisions_for_sessions_that_are_gone_the_older_half_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "MARKS_MAX", 4)
    two = Two()
    two.channel.order(resolve(0xC9, 1), resolve(0xC8, 1))
    two.channel.pass_time(1)
    two.channel.order(resolve(0xC1, 1), resolve(0xC2, 1), resolve(0xC3, 1))
    kept = [session for session in range(0xC1, 0xCA) if two.transactions.decision(session, 1)]
    assert kept == [0xC1, 0xC2, 0xC3]


def test_a_finish_that_rolls_back_drops_the_open_part_of_the_home() -> None:
    two = Two()
    two.send(2, queue=two.bills, transaction=2)
    assert two.channel.outcome(finish(SESSION, 1, commits=False)) is None
    assert not two.is_clean(), "another transaction's"
    assert two.channel.outcome(finish(SESSION, 2, commits=True, messages=2)) is None
    assert not two.is_clean(), "nobody has promised anything"
    assert two.channel.outcome(finish(SESSION, 2, commits=False)) is None
    assert two.is_clean()


@pytest.mark.parametrize("kind", [CommandKind.TX_PREPARE, CommandKind.TX_DECIDE])
def test_what_does_not_decode_is_refused(kind: CommandKind) -> None:
    two = Two()
    outcome = two.channel.outcome(encode_command(kind, SESSION, 1, 0, 0, b"\1"))
    assert code_of(outcome) == OutcomeCode.REFUSED


@pytest.mark.parametrize("kind", [CommandKind.TX_FINISH, CommandKind.TX_RESOLVE, CommandKind.TX_FORGET])
def test_what_the_node_says_and_does_not_decode_is_refused(kind: CommandKind) -> None:
    two = Two()
    assert code_of(two.channel.outcome(encode_command(kind, 0, 0, 0, 0, b"\1"))) == OutcomeCode.REFUSED


# -- the primary asks ----------------------------------------------------------------------


def test_what_is_prepared_for_two_seconds_is_asked_about_until_it_is_finished() -> None:
    two = Two()
    two.prepare()
    channel = two.channel
    assert said(channel.flush()) == []
    deadline = channel.manager.next_deadline_ns()
    assert deadline is not None and deadline <= 2 * SECOND_NS
    channel.now_ns = 2 * SECOND_NS - 1
    assert said(channel.flush()) == []
    doubt = InDoubt(SESSION, 1, "home", 2)
    for channel.now_ns in (2 * SECOND_NS, 5 * SECOND_NS // 2, 3 * SECOND_NS):
        assert channel.manager.primary is not None
        assert channel.manager.primary.doubts.next_deadline_ns(0) == channel.now_ns
        assert said(channel.flush()) == [doubt]
        assert said(channel.flush()) == []
    channel.order(finish(SESSION, 1, commits=True, messages=2))
    channel.now_ns = 10 * SECOND_NS
    assert said(channel.flush()) == []


def test_a_commit_that_is_not_complete_after_two_seconds_is_told_until_it_is() -> None:
    two = Two()
    channel = two.channel
    participants = (Participant("b", 4), Participant("c", 0))
    channel.order(two.client.decide(0, 0, participants=participants))
    channel.flush()
    channel.now_ns = 2 * SECOND_NS
    assert said(channel.flush()) == [Unfinished(SESSION, 1, ("b", "c"), (4, 0))]
    channel.order(forget(SESSION, 1))
    channel.now_ns = 10 * SECOND_NS
    assert said(channel.flush()) == []


def test_a_commit_without_participants_is_complete_at_once() -> None:
    two = Two()
    channel = two.channel
    channel.order(two.client.decide(0, 0, participants=()))
    channel.flush()
    channel.now_ns = 10 * SECOND_NS
    assert said(channel.flush()) == []


def test_a_new_term_waits_anew_for_what_an_earlier_one_left() -> None:
    two = Two()
    channel = two.channel
    two.prepare()
    channel.order(two.other.decide(0, 0))
    channel.now_ns = 3 * SECOND_NS
    channel.claim(2)
    assert said(channel.flush()) == [], "another node is the primary"
    channel.claim(1)
    assert said(channel.flush()) == []
    channel.now_ns = 5 * SECOND_NS
    assert [type(one) for one in said(channel.flush())] == [InDoubt, Unfinished]


# -- in the state ---------------------------------------------------------------------------


def test_all_of_it_is_in_the_checkpoint() -> None:
    two = Two()
    two.prepare()
    two.channel.order(two.other.decide(0, 0))
    two.send(1, transaction=2)
    two.channel.order(resolve(0xC3, 1))
    n = two.channel.mark()
    digest, data, segments = two.channel.manager.capture(n)
    again = MessageManager("main", 1, two.channel.payloads, AT_ONCE)
    again.restore(data)
    assert again.capture(n) == (digest, data, segments)
    two.channel.manager = again
    assert code_of(two.channel.outcome(two.other.ack(two.orders, two.received))) == OutcomeCode.ACK_LOST
    assert two.channel.outcome(resolve(0xB2, 1)) is None
    late = Client(0xC3)
    assert code_of(two.channel.outcome(late.open(), late.decide(0, 0))) == OutcomeCode.TX_ROLLED_BACK
    assert two.channel.outcome(two.client.tx_commit(1, 1, transaction=2)) is None
    assert two.channel.outcome(finish(SESSION, 1, commits=True, messages=2)) is None
    assert len(two.messages(two.bills)) == 2 and len(two.messages(two.orders)) == 2
