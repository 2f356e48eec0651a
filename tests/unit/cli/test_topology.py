"""The options that say how large a cluster is, and those of `init`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.main import build_parser, main
from antiphon.cli.topology import counts_of, has_topology, refuse_contradictions
from antiphon.cli.up import ready_line
from antiphon.cluster.topology import Counts
from antiphon.errors import NodeError
from antiphon.runtime.cluster_data import load_cluster
from tests.unit.cluster.clusters import a_cluster


def up(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *words])


def test_without_topology_options_everything_is_embedded() -> None:
    assert not has_topology(up())
    assert not has_topology(up("--transport", "memory", "--port", "0"))


@pytest.mark.parametrize(
    "words",
    [
        ("--client-managers", "1"),
        ("--message-managers", "1"),
        ("--channels", "1"),
        ("--witnesses", "0"),
        ("--transport", "udp"),
        ("--transport", "tcp"),
    ],
)
def test_each_topology_option_asks_for_a_cluster(words: tuple[str, ...]) -> None:
    assert has_topology(up(*words))


def test_what_is_not_said_is_the_default() -> None:
    assert counts_of(up("--message-managers", "3")) == Counts(message_managers=3, transport="udp")
    assert counts_of(up("--witnesses", "2", "--transport", "tcp")) == Counts(witnesses=2, transport="tcp")
    with pytest.raises(NodeError, match="memory is for one process; several nodes need udp or tcp"):
        counts_of(up("--message-managers", "3", "--transport", "memory"))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--client-managers", "2", "--witnesses", "1", "--port", "7420"),
        ("--port", "0", "--transport", "udp"),
    ],
)
def test_a_cluster_that_is_there_may_be_asked_for_again(words: tuple[str, ...]) -> None:
    refuse_contradictions(up(*words), a_cluster(client_managers=2, message_managers=2), "here")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--client-managers", "3"), "--client-managers 3 was given, and it has 2"),
        (("--message-managers", "3"), "--message-managers 3 was given, and it has 2"),
        (("--channels", "2"), "--channels 2 was given, and it has 1"),
        (("--witnesses", "0"), "--witnesses 0 was given, and it has 1"),
        (("--transport", "tcp"), "--transport tcp was given, and it has udp"),
        (("--transport", "memory"), "--transport memory was given, and it has udp"),
    ],
)
def test_another_cluster_than_the_one_that_is_there_is_refused(
    words: tuple[str, ...], complaint: str
) -> None:
    spec = a_cluster(client_managers=2, message_managers=2)
    with pytest.raises(NodeError) as caught:
        refuse_contradictions(up(*words, "--json"), spec, "here")
    assert caught.value.text == f"here holds another cluster than was asked for: {complaint}"


def test_all_contradictions_are_named() -> None:
    with pytest.raises(NodeError, match=r"--message-managers 3 .*; --channels 2"):
        refuse_contradictions(up("--message-managers", "3", "--channels", "2"), a_cluster(), "here")


@pytest.mark.parametrize("words", [("--client-managers", "0"), ("--witnesses", "-1"), ("--port", "70000")])
def test_a_number_that_cannot_be_is_a_usage_error(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        up(*words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--restart", "--faults=rules"])
def test_options_of_a_cluster_are_refused_without_one(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--data", str(tmp_path / "data"), option]) == 1
    assert f"{option.partition('=')[0]} is for a cluster of several nodes" in capsys.readouterr().err


def test_the_ready_line_tells_where_clients_connect() -> None:
    line = ready_line("antiphon://h:1,h:2", "data", [{"name": "cm-1"}])
    assert line == {
        "ready": True,
        "url": "antiphon://h:1,h:2",
        "data": "data",
        "console": None,
        "metrics": [],
        "nodes": [{"name": "cm-1"}],
    }


# --- init ------------------------------------------------------------------------------------------


def init(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["init", str(folder), "--json", *words]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_init_writes_all_that_nodes_on_several_machines_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = {
        "cm-1": "10.0.0.1",
        "cm-2": "10.0.0.2",
        "mm-a-1": "10.0.0.1",
        "mm-a-2": "10.0.0.2",
        "w-a-1": "10.0.0.3",
    }
    words = [f"--host={name}={host}" for name, host in hosts.items()]
    told = init(tmp_path / "c", capsys, "--client-managers", "2", "--message-managers", "2", *words)
    spec = load_cluster(tmp_path / "c" / "cluster.toml")
    assert {node.name: node.host for node in spec.nodes} == hosts
    assert told["url"] == "antiphons://10.0.0.1:7420,10.0.0.2:7420"
    assert {one["name"]: one["host"] for one in told["nodes"]} == hosts
    starts = (tmp_path / "c" / "START").read_text()
    for one in told["nodes"]:
        assert one["first_start"] in starts and one["start"] in starts
        assert one["first_start"].endswith("--format") == (not one["name"].startswith("cm"))
        assert "--format" not in one["start"]
    assert "may read and write everything" in starts


@pytest.mark.parametrize("mode", ["on", "mutual", "off"])
def test_init_says_who_needs_which_certificate(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "c"
    hosts = ["--host=cm-1=10.0.0.1", "--host=mm-a-1=10.0.0.2"]
    told = init(folder, capsys, *hosts, "--tls", mode)
    starts = (folder / "START").read_text()
    assert load_cluster(folder / "cluster.toml").tls == mode
    if mode == "off":
        assert (told["url"], told["ca"]) == ("antiphon://10.0.0.1:7420", None)
        assert "tls" not in starts and not (folder / "tls").exists()
        return
    assert (told["url"], told["ca"]) == ("antiphons://10.0.0.1:7420", str(folder / "tls" / "ca.pem"))
    is_mutual = mode == "mutual"
    assert ("cm-1: tls/cm-1.pem and tls/cm-1.key, and a copy of tls/ca.pem" in starts) is is_mutual
    assert ("--tls-cert tls/client.pem --tls-key tls/client.key" in starts) is is_mutual
    assert "antiphon send queue:a hello --url antiphons://10.0.0.1:7420 \\" in starts
    for file in ("ca.pem", "cm-1.pem", "cm-1.key"):
        assert f"tls/{file}" in starts and (folder / "tls" / file).exists()
    assert "may read and write everything" in starts


def test_nodes_of_one_machine_have_ports_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(
        tmp_path / "c",
        capsys,
        "--client-managers",
        "2",
        "--message-managers",
        "3",
        "--channels",
        "2",
        "--transport",
        "tcp",
        "--port",
        "8000",
        "--bus-port",
        "9000",
    )
    spec = load_cluster(tmp_path / "c" / "cluster.toml")
    assert spec.servers == ["127.0.0.1:8000", "127.0.0.1:8001"]
    ports = [port for node in spec.nodes for port in node.bus.values()]
    assert ports == list(range(9000, 9000 + 2 * 2 + 6))
    assert "may read and write everything" not in (tmp_path / "c" / "START").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--host", "mm-b-1=10.0.0.1"), "the cluster has no node 'mm-b-1'; there are cm-1, mm-a-1"),
        (
            ("--host", "mm-a-1=10.0.0.1"),
            "other machines do not reach cm-1 at 127.0.0.1: say --host cm-1=ADDRESS",
        ),
        (("--witnesses", "1"), "an odd number is needed"),
        (("--transport", "tcp", "--bus-port", "7420"), "the port 127.0.0.1:7420 is also that of"),
    ],
)
def test_init_refuses_what_cannot_be(
    words: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "c"), *words]) == 1
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "c" / "cluster.toml").exists()


def test_init_does_not_overwrite_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path, capsys)
    before = (tmp_path / "cluster.toml").read_text()
    assert main(["init", str(tmp_path)]) == 1
    assert "there is a cluster in" in capsys.readouterr().err
    assert (tmp_path / "cluster.toml").read_text() == before


def test_a_host_that_is_none_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path), "--host", "cm-1"])
    assert "'cm-1' is not of the form NAME=ADDRESS" in capsys.readouterr().err
