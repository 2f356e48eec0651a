"""What is said of a session when the channel may have heard it before."""

from __future__ import annotations

from antiphon.client_manager.repetition import said_again
from antiphon.wire.commands import (
    CloseSession,
    CommandKind,
    OpenSession,
    ResumeSession,
    encode_command,
    iterate_commands,
    kind_of,
)


def about(session: int, generation: int, payload: OpenSession | ResumeSession | CloseSession) -> bytes:
    return encode_command(kind_of(payload), session, generation, 0, 0, payload.encode())


def some_publish(session: int, generation: int, number: int, count: int) -> bytes:
    return encode_command(CommandKind.PUBLISH, session, generation, number, number - 1, b"a batch", count)


OPEN = OpenSession(user="ann", client_id="c")


def test_an_opening_becomes_a_resumption_in_the_generation_in_which_it_is_known() -> None:
    before, after = some_publish(1, 2, 3, 4), some_publish(9, 5, 1, 2)
    other = about(7, 1, OPEN)
    payload = before + about(9, 5, OPEN) + after + other + about(1, 2, CloseSession())
    expected = (
        before
        + about(9, 5, ResumeSession(known=5))
        + after
        + about(7, 1, ResumeSession(known=1))
        + about(1, 2, CloseSession())
    )
    assert said_again(payload) == expected


def test_it_takes_as_many_numbers_as_before() -> None:
    payload = about(9, 5, OPEN) + some_publish(9, 5, 1, 200)
    counts = [header.count for header, _, _ in iterate_commands(said_again(payload))]
    assert counts == [1, 200]


def test_what_opens_nothing_is_said_as_it_was() -> None:
    payload = about(9, 5, ResumeSession(known=3)) + some_publish(9, 5, 7, 1)
    assert said_again(payload) is payload


def test_said_a_third_time_it_is_said_as_the_second() -> None:
    again = said_again(about(9, 5, OPEN) + some_publish(9, 5, 1, 1))
    assert said_again(again) is again
