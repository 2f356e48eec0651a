"""The session of a job: errors come out of Spark as what they were, and Spark starts when it is needed."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import ArchiveDamaged, DestinationError, LocalError, RangeLost
from antiphon.pipeline import session as sessions
from antiphon.pipeline.session import JobSession, deliberate_errors

TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure:
Traceback (most recent call last):
  File "worker.py", line 1, in main
{sentence}

	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize("cls", [RangeLost, DestinationError, ArchiveDamaged])
def test_an_error_of_a_task_is_raised_as_it_was(cls: type[Exception]) -> None:
    sentence = f"antiphon.errors.{cls.__name__}: this: and that"
    with pytest.raises(cls) as raised, deliberate_errors():
        raise RuntimeError(TRACE.format(sentence=sentence))
    assert type(raised.value) is cls and str(raised.value) == "this: and that"


def test_any_other_error_is_one_sentence() -> None:
    said = "^Spark could not do it: ZeroDivisionError: division by zero$"
    with pytest.raises(LocalError, match=said), deliberate_errors():
        raise RuntimeError(TRACE.format(sentence="ZeroDivisionError: division by zero"))
    with pytest.raises(LocalError, match=r"^Spark could not do it: Job aborted"), deliberate_errors():
        raise RuntimeError(TRACE.format(sentence="java.lang.OutOfMemoryError: Java heap space"))
    with pytest.raises(KeyboardInterrupt), deliberate_errors():
        raise KeyboardInterrupt


def test_a_session_that_is_not_used_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(sessions, "require_packages", never)
    with JobSession("local[1]", "test") as session:
        assert session.run([], str) == []


def test_a_given_session_is_used_and_not_ended() -> None:
    class Given:
        def stop(self) -> None:
            raise AssertionError("it is not ours")

    given: Any = Given()
    with JobSession("local[1]", "test", given) as session:
        assert session.spark is given
