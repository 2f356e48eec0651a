"""`antiphon pipeline lag` on a real server: holds, subscriptions, alarms. Spark is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import antiphon.blocking
from antiphon.cli.main import main
from antiphon.pipeline import lag
from tests.processes import Server

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", "lag", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_it_says_how_far_holds_and_subscriptions_are_behind(
    server: Server, connection: Connection, name: Name, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, hold, durable = name("topic"), name("hold"), name("audit")
    connection.admin().create(topic, retention=3_600)
    with antiphon.blocking.connect(server.url, client_id=durable) as own, own.session() as session:
        session.consumer(topic, durable=durable).close()
    with connection.session() as session, session.producer(topic) as producer:
        numbers = [receipt.sequence for receipt in producer.send_many([b"x"] * 10)]
    with connection.ranges() as ranges:
        ranges.hold(hold, {"a": numbers[4]}, ranges.destinations([topic]), limit=60)
    code, out, _ = run(capsys, "--url", server.url, "--json", hold, durable)
    said: dict[str, dict[str, Any]] = {one["kind"]: one for one in json.loads(out)}
    assert code == 0
    assert (said["hold"]["rows"], said["hold"]["position"]) == (6, numbers[4])
    assert 0 <= said["hold"]["seconds"] < 600 and said["hold"]["bytes"] > 0
    assert (said["subscription"]["rows"], said["subscription"]["bytes"]) == (10, None)
    code, out, err = run(capsys, "--url", server.url, "--max-rows", "5", hold)
    assert code == 1 and f"hold {hold} on channel a: 6 messages" in out
    assert err == f"antiphon: hold {hold} on channel a is 6 messages behind, and 5 are allowed\n"
    code, out, _ = run(capsys, "--url", server.url, "--prometheus", hold)
    assert code == 0 and f'antiphon_lag_messages{{kind="hold",name="{hold}",channel="a"}} 6\n' in out
    assert [one.rows for one in lag(server.url, [hold])] == [6]


def test_an_unknown_name_is_one_sentence(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--url", server.url, "nobody") == (
        1,
        "",
        "antiphon: there is neither a hold nor a subscription 'nobody'\n",
    )
