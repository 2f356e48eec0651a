"""What an environment says of failpoints, and what happens when one is reached."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.client_manager.effects import CloseConnection, Proceed, Reached
from antiphon.errors import NodeError
from antiphon.runtime import failpoints
from antiphon.runtime.failpoints import FailpointPort, Rule, before, failpoints_of, parse


class SpyPort:
    def __init__(self) -> None:
        self.done: list[Any] = []

    def carry_out(self, effect: Any) -> None:
        self.done.append(effect)


def test_an_environment_without_the_variable_has_none_and_the_port_is_left_alone() -> None:
    port = SpyPort()
    assert failpoints_of({}) == {}
    assert before(port, {}, lambda events: None) is port


def test_each_step_has_its_rule() -> None:
    text = "tx.prepare=hold:0.5, tx.decide=kill,tx.finish=stop:3,tx.forget=hold"
    assert failpoints_of({"ANTIPHON_FAILPOINTS": text}) == {
        "tx.prepare": Rule("hold", 0.5),
        "tx.decide": Rule("kill", 1),
        "tx.finish": Rule("stop", 3),
        "tx.forget": Rule("hold", 0),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tx.commit=hold:1", "no step 'tx.commit'; there are tx.prepare, tx.decide"),
        ("tx.decide=hold:soon", "no number behind hold"),
        ("tx.decide=explode", "neither hold:SECONDS nor kill nor stop"),
        ("tx.decide", "neither hold"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NodeError, match=reason):
        parse(text)


def test_a_step_that_is_held_goes_on_later_and_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    port, said = SpyPort(), CloseConnection(1, "", "")

    async def hold() -> list[Any]:
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def take(events: Iterable[Any]) -> None:
            told.set_result(list(events))

        held = FailpointPort(port, parse("tx.decide=hold:0.05"), take)
        held.carry_out(said)
        held.carry_out(Reached("tx.decide", 7))
        await asyncio.sleep(0)
        assert not told.done()
        return await asyncio.wait_for(told, 5)

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(hold()) == [Proceed(7)]
    assert port.done == [said]
    assert caplog.messages == ["failpoint tx.decide reached"]


def test_a_signal_comes_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr(failpoints.os, "kill", lambda pid, number: signals.append(number))

    async def reach(times: int) -> list[int]:
        port = FailpointPort(SpyPort(), parse("tx.finish=kill:3"), lambda events: None)
        for key in range(times):
            port.carry_out(Reached("tx.finish", key))
        return signals

    assert asyncio.run(reach(2)) == []
    assert asyncio.run(reach(4)) == [signal.SIGKILL]
