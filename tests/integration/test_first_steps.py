"""What a newcomer does first, with the real command line and a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Server, antiphon


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("first-steps") / "data") as running:
        yield running


def test_a_message_that_is_sent_is_received(server: Server) -> None:
    sent = antiphon("send", "queue:a", "hello", url=server.url)
    assert (sent.returncode, sent.stderr) == (0, "")
    received = antiphon("receive", "queue:a", "--count", "1", url=server.url)
    assert (received.returncode, received.stdout) == (0, "hello\n")


def test_the_ready_line_is_the_documented_one(server: Server) -> None:
    ready = server.ready
    assert ready["ready"] is True
    assert ready["url"].startswith("antiphon://127.0.0.1:")
    assert ready["data"] == str(server.data)
    assert ready["console"] is None
    assert ready["metrics"] == []
    (node,) = ready["nodes"]
    assert node["role"] == "embedded"
    assert node["pid"] == server.process.pid
    assert ready["url"] == f"antiphon://{node['listen']['antiphon']}"


def test_json_lines_carry_every_field(server: Server) -> None:
    options = [
        "--property",
        "region=EU",
        "--property",
        "n:int=5",
        "--property",
        "f:float=1.5",
        "--property",
        "b:bool=true",
    ]
    assert (
        antiphon(
            "send", "queue:json", "grüß dich", *options, "--priority", "7", "--key", "k", url=server.url
        ).returncode
        == 0
    )
    received = antiphon("receive", "queue:json", "--json", url=server.url)
    (line,) = received.stdout.splitlines()
    message = json.loads(line)
    assert message.pop("message_id").startswith("ID:")
    assert message.pop("sequence") > 0
    assert message.pop("timestamp") > 1_700_000_000
    assert message == {
        "destination": "queue:json",
        "channel": "a",
        "priority": 7,
        "properties": {"region": "EU", "n": 5, "f": 1.5, "b": True},
        "correlation_id": None,
        "reply_to": None,
        "type": None,
        "key": "k",
        "redelivered": False,
        "delivery_count": 1,
        "body": "grüß dich",
        "encoding": "text",
    }


def test_lines_of_standard_input_are_messages(server: Server) -> None:
    sent = antiphon("send", "queue:lines", "--json", url=server.url, stdin="one\ntwo\nthree\n")
    assert json.loads(sent.stdout)["confirmed"] == 3
    received = antiphon("receive", "queue:lines", url=server.url)
    assert received.stdout.splitlines() == ["one", "two", "three"]


def test_a_file_is_one_message_and_can_be_saved(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100)
    assert antiphon("send", "queue:files", "--file", str(source), url=server.url).returncode == 0
    received = antiphon("receive", "queue:files", "--json", "--save", str(tmp_path / "saved"), url=server.url)
    assert json.loads(received.stdout)["encoding"] == "base64"
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.read_bytes() == source.read_bytes()


def test_too_few_messages_exit_with_three(server: Server) -> None:
    received = antiphon(
        "receive", "queue:empty", "--create", "--count", "2", "--timeout", "0.2", url=server.url
    )
    assert (received.returncode, received.stdout) == (3, "")


def test_status_and_destinations_answer_as_documented(server: Server) -> None:
    assert (
        antiphon("send", "queue:counted", "--size", "100", "--count", "2500", url=server.url).returncode == 0
    )
    status = json.loads(antiphon("admin", "status", "--json", url=server.url).stdout)
    assert set(status) == {"cluster", "nodes", "channels", "destinations", "connections", "config_digest"}
    (node,) = status["nodes"]
    assert node["role"] == "embedded"
    assert node["state"] == "up"
    assert node["is_primary"] and node["is_sequencer"] and node["synchronized"]
    assert node["committed"] == node["applied"] > 2500
    (channel,) = status["channels"]
    assert channel["name"] == "a"
    assert channel["primary"] == node["name"]
    destinations = json.loads(antiphon("admin", "destinations", "--json", url=server.url).stdout)
    counted = next(destination for destination in destinations if destination["name"] == "queue:counted")
    assert counted["messages"] == counted["published"] == 2500
    assert counted["bytes"] >= 250_000
    assert (counted["in_flight"], counted["consumers"], counted["acknowledged"]) == (0, 0, 0)
    assert counted["blocked"] is False
    assert counted["subscriptions"] == []
    assert "queue:counted" in antiphon("admin", "destinations", url=server.url).stdout
    assert "embedded" in antiphon("admin", "status", url=server.url).stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("send", "orders", "x"), "queue:"),
        (("send", "queue:", "x"), "name"),
        (("send", "queue:_secret", "x"), "_"),
        (("send", "queue:a\x07b", "x"), "control"),
        (("send", "queue:" + "x" * 256, "x"), "255"),
        (("send", "queue:a", "x", "--property", "not an identifier=1"), "not an identifier"),
        (("send", "queue:a", "x", "--property", "AND=1"), "AND"),
        (("send", "queue:a", "--size", str(1 << 21)), "1"),
    ],
)
def test_what_is_not_allowed_is_refused_with_a_reason(
    server: Server, words: tuple[str, ...], reason: str
) -> None:
    before = antiphon("admin", "destinations", "--json", url=server.url).stdout
    refused = antiphon(*words, url=server.url)
    assert refused.returncode == 1
    assert refused.stderr.startswith("antiphon: ")
    assert reason in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert counts(antiphon("admin", "destinations", "--json", url=server.url).stdout) == counts(before)


def counts(destinations: str) -> dict[str, int]:
    return {
        destination["name"]: destination["published"]
        for destination in json.loads(destinations)
        if destination["published"]
    }


def test_nobody_there_is_said_in_one_sentence() -> None:
    refused = antiphon("send", "queue:a", "x", url="antiphon://127.0.0.1:1")
    assert refused.returncode == 1
    assert "127.0.0.1:1" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_second_server_on_the_same_data_is_refused(server: Server) -> None:
    second = antiphon("up", "--data", str(server.data), "--port", "0")
    assert second.returncode == 1
    assert str(server.process.pid) in second.stderr


def test_an_orderly_stop_keeps_everything(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        assert antiphon("send", "queue:kept", "still here", url=first.url).returncode == 0
        assert first.stop() == 0
    with Server(tmp_path / "data") as second:
        received = antiphon("receive", "queue:kept", "--json", url=second.url)
        message = json.loads(received.stdout)
        # Nobody knows any more whether a consumer had it before the restart, so it is said that one may have.
        assert (message["body"], message["redelivered"]) == ("still here", True)
