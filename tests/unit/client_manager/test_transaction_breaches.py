"""Commits that make no sense, or too much of it."""

from __future__ import annotations

import pytest

from antiphon.client_manager.admission import STAGED_PARTS_MAX
from antiphon.client_manager.effects import PauseReading, ResumeReading
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import SessionClosed
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    RANGES_MAX,
    CommandKind,
    Outcome,
    OutcomeCode,
)
from antiphon.wire.transaction_frames import TransactionPart
from antiphon.wire.transactions import (
    TRANSACTION_MESSAGES_MAX,
    Consumed,
    PrepareTransaction,
)
from tests.unit.client_manager.deal import (
    COMMITTED,
    HOME,
    OTHER,
    Deal,
    kinds_in,
    reason_of,
)
from tests.unit.client_manager.stage import KNOWN, publish_bytes

# -- who may say what --------------------------------------------------------------------------------


def test_a_session_of_another_connection_is_not_committed() -> None:
    deal = Deal()
    deal.connect(2)
    deal.commit(conn=2)
    deal.ask(conn=2)
    codes = [failed.code for failed in deal.heard_of(frames.Failed, 2)]
    assert codes == [SessionClosed.code, SessionClosed.code]
    assert deal.submitted == []


def bad_parts() -> list[tuple[tuple[TransactionPart, ...], str]]:
    many = Consumed(KNOWN, 0, Ranges((2 * at, 2 * at + 1) for at in range(10_000)))
    # Nothing in particular, of very many.
    hollow = (Consumed(KNOWN, 0, Ranges()),) * 16_385
    return [
        ((), "a commit of nothing"),
        ((TransactionPart(OTHER, 0, 0, hollow),), "16385 ranges"),
        ((TransactionPart("z", 1, 1),), "no channel 'z'"),
        ((TransactionPart(HOME, 1, 1), TransactionPart(HOME, 1, 1)), "names a channel twice"),
        ((TransactionPart(HOME, 0, 0, (many, many)),), "20000 ranges"),
        ((TransactionPart(HOME, 0, 0, (), tuple(range(16_385))),), "16385 staged parts"),
    ]


@pytest.mark.parametrize(("parts", "reason"), bad_parts())
def test_a_commit_that_makes_no_sense_ends_the_connection(
    parts: tuple[TransactionPart, ...], reason: str
) -> None:
    deal = Deal()
    deal.commit(parts=parts)
    assert reason in reason_of(deal)
    assert deal.submitted == []


def test_other_breaches_end_the_connection_too() -> None:
    deal = Deal()
    deal.commit(0)
    assert "counted from 1" in reason_of(deal)
    deal = Deal()
    deal.commit(application="x" * 256)
    assert "256 bytes" in reason_of(deal)
    deal = Deal()
    deal.ask(home="z")
    assert "no channel 'z'" in reason_of(deal)
    deal = Deal()
    deal.commit()
    deal.ask(home=OTHER)
    (failed,) = deal.heard_of(frames.Failed)
    assert "home channel of the transaction is a" in failed.text


def test_a_second_commit_while_one_runs_ends_the_connection_and_the_first_goes_on() -> None:
    deal = Deal()
    deal.commit(1)
    deal.commit(2)
    assert "one transaction at a time" in reason_of(deal)
    assert [payload for payload in deal.waiting(OTHER) if isinstance(payload, PrepareTransaction)]
    deal.confirm_all()
    assert deal.is_idle()


def test_a_part_in_a_channel_that_the_session_has_never_spoken_to_is_a_breach() -> None:
    for part in (
        TransactionPart(OTHER, 1, 1),
        TransactionPart(OTHER, 0, 0, (Consumed(KNOWN, 0, Ranges([(1, 2)])),)),
    ):
        deal = Deal()
        session = deal.open_session()
        deal.commit(parts=(part,), session=session)
        assert "nothing in channel b" in reason_of(deal)


def test_too_many_messages_are_refused_and_the_connection_goes_on() -> None:
    deal = Deal()
    deal.commit(parts=(TransactionPart(HOME, 1, 1), TransactionPart(OTHER, 1, TRANSACTION_MESSAGES_MAX + 1)))
    (failed,) = deal.heard_of(frames.Failed)
    assert failed.code == "limit" and str(TRANSACTION_MESSAGES_MAX) in failed.text
    assert deal.is_idle()


def test_a_commit_of_as_many_messages_as_are_allowed_goes_into_the_order() -> None:
    deal = Deal()
    part = TransactionPart(HOME, 3, TRANSACTION_MESSAGES_MAX)
    deal.commit(parts=(part,))
    assert [each.count for each in deal.submitted] == [TRANSACTION_MESSAGES_MAX]


def test_what_a_session_leaves_unfinished_is_bounded() -> None:
    deal = Deal(transactions_max=2, finish_wait_ms=50)
    for number in (1, 2):
        deal.commit(number)
        # Its promise is confirmed; what else is in that channel's order is not.
        (prepared,) = [each for each in deal.submitted if CommandKind.TX_PREPARE in kinds_in(each)]
        deal.submitted.remove(prepared)
        deal.submitted.insert(0, prepared)
        deal.confirm()
        deal.settle(HOME)
        deal.wait(50)
    assert [fate for _, fate, _ in deal.answers()] == [COMMITTED, COMMITTED]
    deal.commit(3)
    (failed,) = deal.heard_of(frames.Failed)
    assert failed.code == "limit"
    deal.confirm_all()
    deal.commit(3)
    deal.confirm_all()
    assert len(deal.answers()) == 3 and deal.is_idle()


def test_a_session_that_a_channel_refused_is_told_so() -> None:
    deal = Deal()
    deal.connect(2)
    deal.say(
        2,
        frames.SessionOpen(request=90, session=77, generation=2, ack_mode=frames.AckMode.CLIENT),
    )
    deal.say(2, frames.Command(channel=HOME, command=publish_bytes(77, 1, generation=2)))
    deal.settle(HOME, Outcome(0, 2, OutcomeCode.SESSION_UNKNOWN))
    deal.commit(conn=2, session=77, parts=(TransactionPart(HOME, 1, 1),))
    (failed,) = deal.heard_of(frames.Failed, 2)
    assert failed.code == SessionClosed.code


def test_what_asks_leave_behind_counts_like_commands() -> None:
    """A client that asks and goes, and comes again, is not read from when there is too much of it."""
    deal = Deal(total_bytes_max=4_096)
    for transaction in range(1, 10):
        deal.ask(transaction=transaction)
    assert [each.conn for each in deal.effects if isinstance(each, PauseReading)] == [1]
    deal.lose(1)
    deal.resume()
    deal.effects.clear()
    deal.ask(transaction=10, conn=2)
    assert [each.conn for each in deal.effects if isinstance(each, PauseReading)] == [2]
    deal.confirm_all()
    assert [each.conn for each in deal.effects if isinstance(each, ResumeReading)] == [2]
    assert len(deal.answers(2)) == 1 and deal.is_idle()


def test_a_part_with_as_much_as_is_allowed_fits_an_envelope() -> None:
    """What does not is stored by nobody, and whatever follows it waits for it."""
    deal = Deal()
    consumed = tuple(Consumed(KNOWN, 0, Ranges([(at, at + 1)])) for at in range(RANGES_MAX))
    staged = tuple(range(STAGED_PARTS_MAX))
    parts = tuple(TransactionPart(channel, 0, 0, consumed, staged) for channel in (HOME, OTHER))
    deal.commit(parts=parts)
    prepared = deal.submitted[0].payload
    deal.settle(OTHER)
    decided = deal.submitted[0].payload
    assert RANGES_MAX * 36 < max(len(prepared), len(decided)) <= ClientManagerSettings().envelope_bytes_max


def test_commits_of_all_connections_together_are_bounded() -> None:
    deal = Deal(total_bytes_max=1_024)
    deal.commit()
    assert [each.conn for each in deal.effects if isinstance(each, PauseReading)] == [1]
