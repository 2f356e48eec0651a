"""The numbers of requests and consumers, when the last ones have been given."""

from __future__ import annotations

import pytest

from antiphon.client.core import requests, session
from antiphon.client.core.requests import REQUEST_MAX, RequestTable
from antiphon.wire import frames
from tests.unit.client.core.test_client import OPENED, open_session, welcome_core


def ask(table: RequestTable) -> int:
    return table.add(frames.Ask(request=table.next_number(), question="{}")).frame.request


def test_the_first_numbers_come_again_after_the_last() -> None:
    table = RequestTable()
    first = ask(table)
    table._last = REQUEST_MAX - 1
    assert ask(table) == REQUEST_MAX
    # The first one still waits for its answer.
    assert (first, ask(table)) == (1, 2)
    assert frames.encode_frame(frames.Ask(request=REQUEST_MAX, question=""))


def test_a_number_whose_answer_may_still_come_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_MAX", 4)
    table = RequestTable()
    numbers = [ask(table) for _ in range(4)]
    assert numbers == [1, 2, 3, 4]
    for answered in (1, 3):
        assert table.take(answered) is not None
    # The session of the fourth has ended: the server may answer it all the same.
    fourth = table.of_session(0)[-1]
    table.end(fourth)
    assert [ask(table), ask(table)] == [1, 3]
    assert table.take(4) is None
    assert ask(table) == 4
    with pytest.raises(AssertionError, match="wait for their answer"):
        table.next_number()


def test_consumers_go_on_with_numbers_that_no_consumer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONSUMER_MAX", 3)
    opened = open_session(welcome_core())
    numbers = [opened.new_consumer("queue:a", OPENED).consumer for _ in range(2)]
    opened.forget_consumer(1)
    numbers += [opened.new_consumer("queue:a", OPENED).consumer for _ in range(2)]
    assert numbers == [1, 2, 3, 1]
    assert opened.consumers_opened == 3
