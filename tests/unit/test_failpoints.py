"""What the rules of failpoints say, and what happens when one is reached."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from antiphon.runtime import launcher
from tests import failpoints
from tests.failpoints import Failpoints, Proceed, Rule, parse


def nothing() -> None:
    pass


def test_each_step_has_its_rule() -> None:
    assert parse("tx.prepare=hold:0.5, tx.decide=kill,tx.finish=stop:3,tx.forget=hold,disk=note:0.02") == {
        "tx.prepare": Rule("hold", 0.5),
        "tx.decide": Rule("kill", 1),
        "tx.finish": Rule("stop", 3),
        "tx.forget": Rule("hold", 0),
        "disk": Rule("note", 0.02),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tx.commit=hold:1", "no step 'tx.commit'; there are tx.prepare, tx.decide"),
        ("tx.decide=hold:soon", "could not convert"),
        ("tx.decide=explode", "neither hold:SECONDS nor kill nor stop"),
        ("tx.decide", "neither hold"),
        ("disk=hold:1", "no step 'disk'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_a_step_that_is_held_goes_on_later_and_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    step = Proceed("tx.decide", nothing)

    async def hold() -> list[Any]:
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        points = Failpoints(parse("tx.decide=hold:0.05"))
        points.take = told.set_result
        points.reached(step)
        await asyncio.sleep(0)
        assert not told.done()
        return await asyncio.wait_for(told, 5)

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(hold()) == [step]
    assert caplog.messages == ["failpoint tx.decide reached"]


def test_a_signal_comes_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr(failpoints.os, "kill", lambda pid, number: signals.append(number))

    async def reach(times: int) -> list[int]:
        points = Failpoints(parse("tx.finish=kill:3"))
        points.take = lambda events: None
        for _ in range(times):
            points.reached(Proceed("tx.finish", nothing))
        return signals

    assert asyncio.run(reach(2)) == []
    assert asyncio.run(reach(4)) == [signal.SIGKILL]


def test_nodes_that_are_started_have_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = launcher.node_command(Path("cluster.toml"), "mm-a-1", ["--faults", "rules"])
    failpoints.pass_on(monkeypatch, "disk=note")
    words = launcher.node_command(Path("cluster.toml"), "mm-a-1", ["--faults", "rules"])
    assert words[1:5] == ["-m", "tests.failpoints", "disk=note", "node"]
    assert words[4:] == plain[plain.index("node") :]
