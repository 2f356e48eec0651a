"""Clusters as users start them: one command for all nodes, or one for each."""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from antiphon import Tls, blocking
from antiphon.runtime.cluster_data import free_ports
from tests.bus_members import has_multicast
from tests.clusters import SMALL_JOURNAL, Cluster, NodeProcess, Watch, make_cluster
from tests.processes import antiphon

# The nodes and the commands are the same with both; the transports have tests of their own.
TRANSPORTS = ["udp", pytest.param("tcp", marks=pytest.mark.long)]


def send(url: str, *bodies: str, tls: Tls | None = None) -> None:
    with blocking.connect(url, tls=tls) as connection, connection.session() as session:
        session.producer("queue:orders").send_many(bodies)


def receive(url: str, count: int, tls: Tls | None = None) -> list[object]:
    with blocking.connect(url, tls=tls) as connection, connection.session() as session:
        return [message.body for message in session.consumer("queue:orders").receive_many(count, timeout=20)]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "udp" and not has_multicast():
        pytest.skip("this machine carries no multicast on its loopback")
    return kind


@pytest.fixture(autouse=True)
def needs_multicast(request: pytest.FixtureRequest) -> None:
    if "transport" not in request.fixturenames and not has_multicast():
        pytest.skip("this machine carries no multicast on its loopback")


def test_a_cluster_serves_through_every_client_manager_and_is_found_again(
    tmp_path: Path, transport: str
) -> None:
    data = tmp_path / "data"
    size = ("--client-managers", "2", "--message-managers", "3", "--transport", transport)
    with Cluster(data, *size) as cluster:
        nodes = {node["name"]: node for node in cluster.ready["nodes"]}
        assert list(nodes) == ["cm-1", "cm-2", "mm-a-1", "mm-a-2", "mm-a-3"]
        assert nodes["mm-a-2"]["role"] == "message-manager"
        assert (nodes["mm-a-2"]["channel"], nodes["mm-a-2"]["rank"]) == ("a", 2)
        assert cluster.urls == [
            f"antiphon://{nodes[name]['listen']['antiphon']}" for name in ("cm-1", "cm-2")
        ]
        one, other = cluster.urls
        send(one, "first", "second")
        send(other, "third")
        assert receive(other, 2) == ["first", "second"]
        watch = Watch(cluster.pids.values())
        assert cluster.stop() == 0
        assert watch.who_is_left() == []
        assert "Traceback" not in cluster.errors.read_text()
    with Cluster(data) as cluster:
        assert cluster.urls == [one, other]
        assert receive(one, 1) == ["third"]
        refused = antiphon("up", "--data", str(data))
        assert refused.returncode == 1
        assert "works in" in refused.stderr, "one at a time"
        cluster.stop()
    refused = antiphon("up", "--data", str(data), "--message-managers", "5", "--client-managers", "2")
    assert refused.returncode == 1
    assert "--message-managers 5 was given, and it has 3" in refused.stderr


def test_nobody_outlives_the_command_that_started_the_cluster(tmp_path: Path) -> None:
    with Cluster(make_cluster(tmp_path / "data", message_managers=2)) as cluster:
        assert list(cluster.pids) == ["cm-1", "mm-a-1", "mm-a-2", "w-a-1"]
        watch = Watch(cluster.pids.values())
        # Also one that could not stop if it were asked to.
        cluster.signal("mm-a-2", signal.SIGSTOP)
        cluster.kill()
        assert watch.who_is_left() == []


def test_a_node_that_dies_is_reported_and_with_restart_it_comes_back(tmp_path: Path) -> None:
    with Cluster(make_cluster(tmp_path / "data", message_managers=2), "--restart") as cluster:
        with blocking.connect(cluster.url) as connection, connection.session() as session:
            producer = session.producer("queue:orders")
            producer.send("before")
            cluster.kill_node("mm-a-1")
            cluster.kill_node("cm-1")
            # The same address, another process: the library finds it by itself.
            producer.send("after")
        assert receive(cluster.url, 2) == ["before", "after"]
        said = cluster.errors.read_text()
        assert "node cm-1 ended: signal SIGKILL" in said
        assert re.search(r"node mm-a-1 is started again in 0\.\d+ s", said)
        assert re.search(r"node cm-1 is ready again, as process \d+", said)
        assert cluster.stop() == 0


def test_two_channels_have_message_managers_of_their_own(tmp_path: Path) -> None:
    with Cluster(make_cluster(tmp_path / "data", channels=2)) as cluster:
        assert list(cluster.pids) == ["cm-1", "mm-a-1", "mm-b-1"]
        with blocking.connect(cluster.url) as connection, connection.session() as session:
            used: dict[str, str] = {}
            deadline = time.monotonic() + 30
            # The least loaded one gets the next destination, as soon as its load was heard of.
            while len(used) < 2 and time.monotonic() < deadline:
                name = f"queue:{secrets.token_hex(4)}"
                used.setdefault(session.producer(name).send(name).channel, name)
            assert sorted(used) == ["a", "b"]
            for name in used.values():
                message = session.consumer(name).receive(timeout=20)
                assert message is not None and message.body == name
        assert cluster.stop() == 0


# --- disks -----------------------------------------------------------------------------------------


def test_a_wiped_disk_is_a_new_one_that_learns_from_the_others(tmp_path: Path) -> None:
    data = make_cluster(tmp_path / "data", message_managers=3)
    with Cluster(data) as cluster:
        send(cluster.url, "kept")
        cluster.stop()
    shutil.rmtree(data / "nodes" / "mm-a-1")
    with Cluster(data) as cluster:
        assert receive(cluster.url, 1) == ["kept"]
        assert "mm-a-1 is empty: the node begins as the new disk" in cluster.errors.read_text()
        cluster.stop()


def test_a_wiped_disk_that_was_the_only_copy_is_refused(tmp_path: Path) -> None:
    data = make_cluster(tmp_path / "data", message_managers=1)
    with Cluster(data) as cluster:
        send(cluster.url, "lost")
        cluster.stop()
    shutil.rmtree(data / "nodes" / "mm-a-1")
    refused = antiphon("up", "--data", str(data))
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "antiphon: channel a cannot begin, for there is nothing in the data of mm-a-1"
    )
    refused = antiphon("node", "mm-a-1", "--config", str(data / "cluster.toml"))
    assert refused.returncode == 1
    assert "nobody else has the messages of channel a: restore it from a backup" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_taken_port_is_told_and_another_one_can_be_chosen(tmp_path: Path) -> None:
    data = make_cluster(tmp_path / "data")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = antiphon("up", "--data", str(data), "--port", str(port))
        assert refused.returncode == 1
        assert f"cm-1: cannot listen on 127.0.0.1:{port} for clients: " in refused.stderr
        assert "antiphon: cm-1 could not start, so nobody could connect there" in refused.stderr
        with free_ports() as next_port:
            port = next_port()
        with Cluster(data, "--port", str(port)) as cluster:
            assert cluster.url == f"antiphon://127.0.0.1:{port}"
            send(cluster.url, "hello")
            cluster.stop()


# --- one command for each node ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "mutual", "off"])
def test_nodes_are_started_one_by_one_from_the_files_of_init(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    transport = "tcp" if mode == "mutual" else "udp"
    words = ["--message-managers", "2", "--transport", transport]
    made = antiphon("init", str(folder), *words, *([] if mode == "on" else ["--tls", mode]))
    assert made.returncode == 0, made.stderr
    files = folder / "tls"
    tls = None if mode == "off" else Tls(ca=files / "ca.pem")
    if mode == "mutual":
        tls = Tls(ca=files / "ca.pem", certificate=files / "client.pem", key=files / "client.key")
    config = folder / "cluster.toml"
    move_ports(config)
    with config.open("a") as file:
        file.write("\n[journal]\n" + "".join(f"{key} = {value}\n" for key, value in SMALL_JOURNAL.items()))
    names = ["mm-a-1", "mm-a-2", "w-a-1", "cm-1"]
    for options in (["--format"], []):
        nodes = [NodeProcess(config, name, *(options if name != "cm-1" else [])) for name in names]
        try:
            ready = [node.wait_ready() for node in nodes]
            (scheme,) = ready[-1]["listen"]
            assert scheme == ("antiphon" if mode == "off" else "antiphons")
            url = f"{scheme}://{ready[-1]['listen'][scheme]}"
            if mode == "mutual":
                refused = antiphon("admin", "status", "--url", url, "--tls-ca", str(files / "ca.pem"))
                assert refused.returncode == 1 and "asks for a certificate of the client" in refused.stderr
            if options:
                send(url, "one", "two", tls=tls)
            else:
                assert receive(url, 2, tls) == ["one", "two"]
            assert [node.stop() for node in reversed(nodes)] == [0, 0, 0, 0]
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


def move_ports(config: Path) -> None:
    """Several tests may run on this machine: none of them gets the ports that users get."""
    with free_ports() as next_port:
        text = re.sub(r"(?<=[ :])74\d\d\b", lambda found: str(next_port()), config.read_text())
    config.write_text(text)


def test_a_node_with_another_file_does_not_start_and_names_the_keys(tmp_path: Path, transport: str) -> None:
    data = make_cluster(tmp_path / "data", message_managers=3, transport=transport)
    with Cluster(data) as cluster:
        cluster.kill_node("mm-a-3")
        other = tmp_path / "other"
        other.mkdir()
        shutil.copy(data / "cluster.key", other)
        text = cluster.config.read_text().replace("hops = 1", "hops = 2")
        (other / "cluster.toml").write_text(text + "\n[bus]\nheartbeat_ms = 20\n")
        ended = antiphon("node", "mm-a-3", "--config", str(other / "cluster.toml"))
        assert ended.returncode == 1
        assert "antiphon: mm-a-3: the cluster file of mm-a-3 is not that of" in ended.stderr
        assert "different are bus.heartbeat_ms, hops: copy the file" in ended.stderr
        assert "Traceback" not in ended.stderr
        with NodeProcess(cluster.config, "mm-a-3") as node:
            node.wait_ready()
            assert node.stop() == 0
        cluster.stop()


def test_a_node_that_is_not_in_the_file_does_not_start(tmp_path: Path) -> None:
    assert antiphon("init", str(tmp_path)).returncode == 0
    ended = antiphon("node", "mm-a-9", "--config", str(tmp_path / "cluster.toml"))
    assert ended.returncode == 1
    assert ended.stderr == "antiphon: mm-a-9: the cluster has no node 'mm-a-9'; there are cm-1, mm-a-1\n"
