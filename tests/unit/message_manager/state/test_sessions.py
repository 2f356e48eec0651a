"""What a session's row remembers, and what it tells a client that asks twice."""

from __future__ import annotations

import pytest

from antiphon.message_manager.state import sessions
from antiphon.message_manager.state.sessions import NOBODY, RECORDS_MAX, Owner, Session, Sessions
from antiphon.wire.commands import Outcome, OutcomeCode
from antiphon.wire.primitives import Reader, Writer

APPLIED, DUPLICATE, ACK_LOST = OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.ACK_LOST


SOMEBODY = Owner(1, 2)


def make(id: int = 1, owner: Owner = SOMEBODY) -> Session:
    return Session(id=id, generation=1, owner=owner, user="ann", client_id="desk")


def test_publishes_that_follow_each_other_are_one_record() -> None:
    row = make()
    row.note(10, APPLIED, 100)
    row.note(5, APPLIED, 110)
    row.note(5, APPLIED, 120)
    assert [(r.number, r.count, r.sequence) for r in row.records] == [(1, 15, 100), (16, 5, 120)]


def test_a_repeated_number_is_told_its_first_place() -> None:
    row = make()
    row.note(10, APPLIED, 100)
    assert list(row.recall(3, 4, 900)) == [Outcome(900, 4, DUPLICATE, 102)]


def test_a_repeated_batch_is_told_of_each_of_its_parts() -> None:
    row = make()
    row.note(2, APPLIED, 100)
    row.note(1, ACK_LOST, 55, "1 of 2 were no longer there")
    row.note(2, APPLIED, 110)
    assert list(row.recall(1, 5, 900)) == [
        Outcome(900, 2, DUPLICATE, 100),
        Outcome(902, 1, ACK_LOST, 55, "1 of 2 were no longer there"),
        Outcome(903, 2, DUPLICATE, 110),
    ]


def test_what_was_refused_and_forgotten_is_not_told_to_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RECORDS_MAX", 4)
    row = make()
    row.note(2, APPLIED, 100)
    row.confirm(1)
    row.note(1, OutcomeCode.REFUSED, 0, "no")
    for at in range(3):
        row.note(1, APPLIED, 200 + 2 * at)
    told = [(one.first, one.count, one.code) for one in row.recall(1, 6, 900)]
    assert told == [
        (900, 1, DUPLICATE),
        (901, 2, OutcomeCode.FORGOTTEN),
        (903, 1, DUPLICATE),
        (904, 1, DUPLICATE),
        (905, 1, DUPLICATE),
    ]


def test_what_the_client_confirmed_is_forgotten() -> None:
    row = make()
    for at in range(5):
        row.note(10, APPLIED, 100 + 20 * at)
    row.confirm(25)
    assert [r.number for r in row.records] == [21, 31, 41]
    assert list(row.recall(5, 20, 900)) == [Outcome(900, 16, DUPLICATE), Outcome(916, 4, DUPLICATE, 140)]


def test_a_client_cannot_confirm_what_has_not_happened() -> None:
    row = make()
    row.note(3, APPLIED, 100)
    row.confirm(1_000)
    assert row.confirmed_through == 3
    row.note(1, APPLIED, 200)
    assert list(row.recall(4, 1, 900)) == [Outcome(900, 1, DUPLICATE, 200)]


def test_a_confirmation_that_comes_late_changes_nothing() -> None:
    row = make()
    row.note(10, APPLIED, 100)
    row.confirm(5)
    row.confirm(3)
    assert row.confirmed_through == 5


def test_a_client_that_confirms_nothing_is_remembered_only_so_far() -> None:
    row = make()
    for at in range(RECORDS_MAX + 10):
        row.note(1, APPLIED, 100 + 2 * at)
    assert len(row.records) <= RECORDS_MAX
    (forgotten,) = row.recall(1, 1, 900)
    assert (forgotten.first, forgotten.count, forgotten.code) == (900, 1, OutcomeCode.FORGOTTEN)
    assert list(row.recall(row.last, 1, 900)) == [Outcome(900, 1, DUPLICATE, 100 + 2 * (RECORDS_MAX + 9))]


def test_a_row_reads_back_as_it_was_written() -> None:
    row = make()
    row.note(3, APPLIED, 100)
    row.note(1, OutcomeCode.REFUSED, 0, "no batch")
    row.confirm(1)
    row.moved_at = 77
    writer = Writer()
    row.write(writer)
    again = Session.read(Reader(writer.join()))
    for name in ("id", "ownership", "last", "confirmed_through", "user", "client_id", "records"):
        assert getattr(again, name) == getattr(row, name)


def test_only_sessions_of_former_lives_are_detached() -> None:
    sessions = Sessions()
    for id, owner in ((3, Owner(7, 10)), (1, Owner(7, 20)), (2, Owner(8, 10)), (4, NOBODY)):
        sessions.add(make(id, owner))
    assert [row.id for row in sessions.detach(7, 15)] == [3]
    assert [row.owner for row in sessions] == [Owner(7, 20), Owner(8, 10), NOBODY, NOBODY]
