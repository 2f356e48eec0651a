"""What `antiphon admin` shows of a system whose nodes do not all answer."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from antiphon.cli import admin
from antiphon.cli.main import main


def node(name: str, state: str = "up", **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(("role", "channel", "rank", "synchronized", "epoch", "committed", "applied", "lag"))
    return {"name": name, **row, "state": state, "is_primary": False, "is_sequencer": False} | more


CHANNEL = {
    "name": "a",
    "epoch": 7,
    "committed": 9,
    "primary": "mm-a-1",
    "replicas": 2,
    "checkpoint": 0,
    "copies": 1,
    "serving": True,
    "degraded": True,
}
STATUS = {
    "cluster": "test",
    "nodes": [node("cm-1"), node("mm-a-1", is_primary=True, epoch=7), node("mm-a-2", "down")],
    "channels": [CHANNEL],
    "destinations": 1,
    "connections": 2,
    "config_digest": "d",
    "silent": ["mm-a-2"],
}
DESTINATIONS = [
    {
        "name": "queue:orders",
        **dict.fromkeys(("messages", "in_flight", "consumers", "bytes", "published", "acknowledged"), 3),
        "channel": "a",
        "subscriptions": [],
    }
]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the system says, without a system."""
    said: dict[str, Any] = {"status": STATUS, "destinations": DESTINATIONS}

    def ask(arguments: argparse.Namespace, *questions: str) -> list[Any]:
        return [said[question] for question in questions]

    monkeypatch.setattr(admin, "_ask", ask)
    return said


def rows(**second: Any) -> dict[str, Any]:
    nodes = [node("cm-1"), node("mm-a-1", is_primary=True, synchronized=True)]
    nodes.append(node("mm-a-2", **{"synchronized": True, **second}))
    return {**STATUS, "nodes": nodes, "channels": [CHANNEL | {"degraded": False}], "silent": []}


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        (rows(), []),
        (STATUS, ["mm-a-2 does not answer", "channel a is degraded"]),
        (rows(state="joining"), ["mm-a-2 is joining"]),
        (rows(synchronized=False), ["mm-a-2 is not synchronized"]),
        ({**rows(), "channels": [CHANNEL | {"serving": False}]}, ["channel a is not serving"]),
    ],
)
def test_what_is_missing_before_another_node_may_be_stopped_is_named(
    status: dict[str, Any], missing: list[str]
) -> None:
    assert admin._missing(status) == missing


def test_waiting_for_nodes_that_nobody_runs_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "wait", "--url", "antiphon://127.0.0.1:1", "--timeout", "0.2"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:1" in line or line == "after 0.2 s: nobody answers"


def test_the_table_shows_who_is_down_and_names_who_did_not_answer(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster test: 1 destinations, 2 connections"
    assert lines[-1] == "no answer from mm-a-2"
    (down,) = [line.split() for line in lines if line.startswith("mm-a-2")]
    assert "down" in down
    (primary,) = [line.split() for line in lines if line.startswith("mm-a-1")]
    assert "True" in primary


def test_nothing_is_said_about_silence_if_there_is_none(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for silent in ({}, {"silent": []}):
        answers["status"] = {key: value for key, value in STATUS.items() if key != "silent"} | silent
        assert main(["admin", "status"]) == 0
        assert "no answer" not in capsys.readouterr().out


def test_destinations_tell_whose_are_missing(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "destinations"]) == 0
    out = capsys.readouterr().out
    assert "queue:orders" in out
    assert out.splitlines()[-1] == "no answer from mm-a-2"


def test_temporary_destinations_are_counted_and_shown_if_asked_for(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["destinations"] = [
        {**DESTINATIONS[0], "name": name, "temporary": "_TEMP" in name}
        for name in ("queue:orders", "queue:_TEMP.a.7", "queue:_TEMP.a.9")
    ]
    assert main(["admin", "destinations"]) == 0
    out = capsys.readouterr().out
    assert "queue:orders" in out and "_TEMP" not in out
    assert "2 temporary, which --temporary shows" in out
    assert main(["admin", "destinations", "--temporary"]) == 0
    assert "queue:_TEMP.a.9" in capsys.readouterr().out


def test_json_is_what_the_system_says(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert main(["admin", "destinations", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == DESTINATIONS


def test_a_clock_that_differs_from_log_time_is_named(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = STATUS["channels"]  # type: ignore[misc]
    for difference_ms, words in (
        (None, ""),
        (60_000, ""),
        (-86_400_000, "channel a: the clock of mm-a-1 is 86,400 s ahead of log time"),
        (7_200_500, "channel a: the clock of mm-a-1 is 7,200 s behind log time"),
    ):
        told = dict(row, clock_difference_ms=difference_ms)  # type: ignore[call-overload]
        answers["status"] = STATUS | {"channels": [told]}
        assert main(["admin", "status"]) == 0
        assert ("".join(line for line in capsys.readouterr().out.splitlines() if "clock" in line)) == words


@pytest.mark.parametrize(
    ("serving", "degraded", "state", "code"),
    [(True, False, "serving", 0), (True, True, "degraded", 1), (False, True, "not serving", 1)],
)
def test_a_check_fails_unless_every_channel_serves_with_all_its_copies(
    answers: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    serving: bool,
    degraded: bool,
    state: str,
    code: int,
) -> None:
    (row,) = STATUS["channels"]  # type: ignore[misc]
    whole = {**row, "name": "b", "serving": True, "degraded": False}  # type: ignore[dict-item]
    told = {**row, "serving": serving, "degraded": degraded}  # type: ignore[dict-item]
    answers["status"] = STATUS | {"channels": [whole, told]}
    for options in ([], ["--json"]):
        assert main(["admin", "status", *options]) == 0
        assert main(["admin", "status", "--check", *options]) == code
    assert f"a     {state}" in capsys.readouterr().out
