"""What users met on the command line: bytes, bad lines, Ctrl-C, ports in use, names that do not exist."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.runtime.cluster_data import PORTS_VARIABLE, free_ports
from tests.processes import ANTIPHON, Server, antiphon

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("command-line") / "data") as running:
        yield running


def in_bytes(*words: str, url: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run one command whose input and output are no text."""
    environment = os.environ | {"ANTIPHON_URL": url}
    return subprocess.run([*ANTIPHON, *words], capture_output=True, input=stdin, env=environment, timeout=60)


def names(server: Server) -> list[str]:
    rows = json.loads(antiphon("admin", "destinations", "--json", url=server.url).stdout)
    return [row["name"] for row in rows]


# --- receive ---------------------------------------------------------------------------------------


def test_bytes_that_are_no_text_are_printed_as_they_are(server: Server, tmp_path: Path) -> None:
    body = bytes(range(256))
    (tmp_path / "body").write_bytes(body)
    assert antiphon("send", "queue:bytes", "--file", str(tmp_path / "body"), url=server.url).returncode == 0
    received = in_bytes("receive", "queue:bytes", "--count", "1", url=server.url)
    assert (received.returncode, received.stdout) == (0, body + b"\n")


def test_bodies_that_are_saved_are_not_printed(server: Server, tmp_path: Path) -> None:
    assert antiphon("send", "queue:saved", "secret", "--count", "2", url=server.url).returncode == 0
    one = antiphon("receive", "queue:saved", "--count", "1", "--save", str(tmp_path / "s"), url=server.url)
    assert (one.returncode, one.stdout) == (0, "")
    other = antiphon(
        "receive", "queue:saved", "--count", "1", "--save", str(tmp_path / "s"), "--json", url=server.url
    )
    told = json.loads(other.stdout)
    assert told["body"] is None and Path(told["saved"]).read_bytes() == b"secret"
    assert [saved.read_bytes() for saved in (tmp_path / "s").iterdir()] == [b"secret"] * 2


def test_ctrl_c_ends_following_with_the_exit_code_of_an_interrupt(server: Server) -> None:
    assert antiphon("send", "queue:followed", "first", url=server.url).returncode == 0
    environment = os.environ | {"ANTIPHON_URL": server.url}
    command = [*ANTIPHON, "receive", "queue:followed", "--follow"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # Tests that were started in the background ignore Ctrl-C, and their children would, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as following:
        assert following.stdout is not None and following.stderr is not None
        assert following.stdout.readline() == b"first\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=30) == 130
        assert following.stderr.read() == b""


@pytest.mark.parametrize("command", ["receive", "browse"])
def test_a_name_that_does_not_exist_is_told_and_not_made(server: Server, command: str) -> None:
    looked = antiphon(command, "queue:mistyped", url=server.url)
    assert looked.returncode == 1
    assert looked.stderr.startswith("antiphon: ") and "queue:mistyped" in looked.stderr
    assert looked.stderr.count("\n") == 1
    assert "queue:mistyped" not in names(server)
    made = antiphon(command, "queue:made", "--create", url=server.url)
    assert made.returncode == 0 and "queue:made" in names(server)


def test_who_subscribes_durably_makes_the_topic_under_its_client_id(server: Server) -> None:
    words = ("receive", "topic:new", "--durable", "d", "--client-id", "accounts", "--timeout", "0.1")
    assert antiphon(*words, url=server.url).returncode == 0
    assert antiphon("send", "topic:new", "kept", "--client-id", "other", url=server.url).returncode == 0
    assert antiphon(*words, url=server.url).stdout == "kept\n"


# --- send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "complaint"), [(b"\xff\xfe", "is not UTF-8 text"), (b"x" * (MIB + 1), "is larger than the")]
)
def test_send_stops_at_a_bad_line_and_says_how_many_are_confirmed(
    server: Server, bad: bytes, complaint: str
) -> None:
    queue = f"queue:bad-{len(bad)}"
    lines = [b"%d" % number for number in range(700)]
    stdin = b"\n".join([*lines, bad, b"never"]) + b"\n"
    sent = in_bytes("send", queue, "--json", url=server.url, stdin=stdin)
    assert sent.returncode == 1
    assert json.loads(sent.stdout)["confirmed"] == 700
    assert f"line 701 {complaint}".encode() in sent.stderr
    assert in_bytes("receive", queue, url=server.url).stdout.splitlines() == lines


def test_lines_leave_while_the_input_is_still_open(server: Server) -> None:
    environment = os.environ | {"ANTIPHON_URL": server.url}
    with subprocess.Popen(
        [*ANTIPHON, "send", "queue:open"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as sending:
        assert sending.stdin is not None and sending.stdout is not None
        sending.stdin.write("grüße\r\nzwei\nhal".encode())
        sending.stdin.flush()
        words = ("receive", "queue:open", "--create", "--count", "2", "--timeout", "30")
        assert antiphon(*words, url=server.url).stdout == "grüße\nzwei\n"
        sending.stdin.write(b"b")
        sending.stdin.close()
        assert sending.stdout.read() == b"confirmed 3 messages in queue:open\n"
        assert sending.wait(timeout=30) == 0
    assert antiphon("receive", "queue:open", url=server.url).stdout == "halb\n"


def test_many_lines_keep_their_order_and_their_options(server: Server) -> None:
    count = 30_000
    stdin = b"".join(b"line %d\n" % number for number in range(count))
    sent = in_bytes("send", "queue:many", "--property", "n:int=5", "--key", "k", url=server.url, stdin=stdin)
    assert sent.stdout == b"confirmed %d messages in queue:many\n" % count
    received = antiphon("receive", "queue:many", "--count", str(count), "--json", url=server.url)
    rows = [json.loads(line) for line in received.stdout.splitlines()]
    assert [row["body"] for row in rows] == [f"line {number}" for number in range(count)]
    assert {row["key"] for row in rows} == {"k"} and rows[-1]["properties"] == {"n": 5}


def test_a_server_that_does_not_confirm_in_time_is_told_with_exit_code_three(server: Server) -> None:
    environment = os.environ | {"ANTIPHON_URL": server.url}
    with subprocess.Popen(
        [*ANTIPHON, "send", "queue:late", "--timeout", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as sending:
        assert sending.stdin is not None and sending.stdout is not None and sending.stderr is not None
        print("stored", file=sending.stdin, flush=True)
        words = ("receive", "queue:late", "--create", "--count", "1", "--timeout", "30")
        assert antiphon(*words, url=server.url).stdout == "stored\n"
        server.process.send_signal(signal.SIGSTOP)
        try:
            print("late", file=sending.stdin)
            sending.stdin.close()
            assert sending.wait(timeout=30) == 3
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert sending.stdout.read() == "confirmed 1 message in queue:late\n"
        told = sending.stderr.read()
    assert told.startswith("antiphon: ") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("send", "queue:a", "--size", "-5"), "-5"),
        (("send", "queue:a", "x", "--timeout", "-1"), "-1"),
        (("receive", "queue:a", "--timeout", "nan"), "nan"),
    ],
)
def test_impossible_numbers_are_a_mistake_of_usage(
    server: Server, words: tuple[str, ...], complaint: str
) -> None:
    refused = antiphon(*words, url=server.url)
    assert refused.returncode == 2 and complaint in refused.stderr


@pytest.mark.parametrize("seconds", ["0", "0.0005"])
def test_a_send_that_has_no_time_ends_with_exit_code_three(server: Server, seconds: str) -> None:
    late = antiphon("send", "queue:hasty", "x", "--timeout", seconds, url=server.url)
    assert late.returncode == 3, late.stderr
    assert late.stderr.startswith("antiphon: ") and late.stderr.count("\n") == 1
    assert "within -" not in late.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("queue:a", "--size", "2000000"), "larger than the 1,048,576 allowed"),
        (("queue:a", "x", "--property", "NULL=1"), "reserved word"),
        (("foo", "x"), "starts with neither queue: nor topic:"),
        (("queue:a", "x", "--url", "antiphon://127.0.0.1:1"), "no server could be reached"),
    ],
)
def test_a_send_that_fails_says_so_in_json(server: Server, words: tuple[str, ...], error: str) -> None:
    failed = antiphon("send", *words, "--json", url=server.url)
    assert failed.returncode == 1
    told = json.loads(failed.stdout)
    assert error in told["error"] and error in failed.stderr
    assert (told["confirmed"], told["destination"], told["last"]) == (0, words[0], None)


def test_retry_names_the_ids_that_are_not_there(server: Server) -> None:
    refused = antiphon("admin", "retry", "--id", "ID:foo", "--id", "ID:bar", url=server.url)
    assert (refused.returncode, refused.stdout) == (1, "0 messages are sent back\n")
    assert refused.stderr == "antiphon: there is no dead message with the id ID:foo, ID:bar\n"
    in_json = antiphon("admin", "retry", "queue:a", "--id", "ID:foo", "--json", url=server.url)
    assert (in_json.returncode, json.loads(in_json.stdout)) == (1, {"messages": 0, "missing": ["ID:foo"]})
    assert in_json.stderr == "antiphon: there is no dead message of queue:a with the id ID:foo\n"


def test_a_wildcard_is_no_name(server: Server) -> None:
    refused = antiphon("receive", "topic:prices.*", "--follow", url=server.url)
    assert refused.returncode == 1 and "wildcard" in refused.stderr


# --- up --------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = antiphon("up", "--data", str(tmp_path / "data"), "--port", str(port))
    assert refused.returncode == 1
    told = refused.stderr.splitlines()[-1]
    assert told.startswith(f"antiphon: cannot listen on 127.0.0.1:{port} for clients: ")
    assert "Traceback" not in refused.stderr and "--port" in told


def test_an_embedded_system_chooses_from_the_ports_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with free_ports() as next_port:
        number = next_port()
    monkeypatch.setenv(PORTS_VARIABLE, f"{number}-{number}")
    with Server(tmp_path / "one") as one:
        assert one.url == f"antiphon://127.0.0.1:{number}"
        refused = antiphon("up", "--data", str(tmp_path / "other"), "--port", "0")
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1] == f"antiphon: no port between {number} and {number} is free"
    monkeypatch.setenv(PORTS_VARIABLE, "many")
    refused = antiphon("up", "--data", str(tmp_path / "other"), "--port", "0")
    assert refused.returncode == 1 and "ANTIPHON_PORTS is 'many', and not FIRST-LAST" in refused.stderr


def test_clients_may_come_to_another_address(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--listen", "127.0.0.2") as elsewhere:
        assert elsewhere.url.startswith("antiphon://127.0.0.2:")
        assert antiphon("send", "queue:a", "hello", url=elsewhere.url).returncode == 0
        port = int(elsewhere.url.rpartition(":")[2])
        refused = antiphon("send", "queue:a", "hello", url=f"antiphon://127.0.0.1:{port}")
        assert refused.returncode != 0


def test_a_message_with_an_id_is_sent_once_and_the_second_command_says_so(server: Server) -> None:
    first = antiphon("send", "queue:ids", "x", "--dedup-id", "order 1", "--json", url=server.url)
    again = antiphon("send", "queue:ids", "y", "--dedup-id", "order 1", "--json", url=server.url)
    assert (first.returncode, again.returncode) == (0, 0)
    one, two = json.loads(first.stdout)["last"], json.loads(again.stdout)["last"]
    assert (one["duplicate"], two["duplicate"]) == (False, True)
    assert one["sequence"] == two["sequence"]
    said = antiphon("send", "queue:ids", "z", "--dedup-id", "order 1", url=server.url)
    assert said.stdout == "confirmed 1 message in queue:ids, stored before\n"
    created = antiphon("admin", "create", "queue:forgetful", "--dedup-window", "0s", url=server.url)
    assert created.returncode == 0
    for _ in range(2):
        sent = antiphon("send", "queue:forgetful", "x", "--dedup-id", "a", "--json", url=server.url)
        assert not json.loads(sent.stdout)["last"]["duplicate"]


@pytest.mark.parametrize("words", [("--size", "5"), ("body", "--count", "2"), ()])
def test_an_id_is_for_one_message(server: Server, words: tuple[str, ...]) -> None:
    refused = antiphon("send", "queue:ids", *words, "--dedup-id", "a", url=server.url)
    assert refused.returncode == 2
    assert "--dedup-id is the id of one message: give a body, or --file" in refused.stderr
