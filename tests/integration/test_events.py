"""The events of real nodes: in their files, in `topic:_LOG`, and as `antiphon admin log` shows them."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import antiphon
from antiphon.errors import DestinationError, InvalidName, LocalError
from antiphon.runtime.event_file import FILE_NAME
from tests.cluster_processes import ClusterProcess
from tests.processes import ANTIPHON, Server
from tests.processes import antiphon as command

LOG: Final = "topic:_LOG"
WAIT_S: Final = 60.0
STORM: Final = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("events") / "data") as running:
        yield running


def in_file(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


def log_of(url: str, *options: str) -> list[dict[str, Any]]:
    done = command("admin", "log", "--json", *options, url=url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def when_logged(url: str, code: str, **fields: Any) -> list[dict[str, Any]]:
    """All events, as soon as this one is among them."""
    deadline = time.monotonic() + WAIT_S
    while True:
        rows = log_of(url)
        for row in rows:
            if row["code"] == code and fields.items() <= {**row, **row["fields"]}.items():
                return rows
        assert time.monotonic() < deadline, f"no {code} {fields} within {WAIT_S:g} s: {rows}"


def nonsense(server: Server, times: int) -> None:
    """Connect, and say what no client says."""
    host, _, port = server.url.removeprefix("antiphon://").rpartition(":")
    for _ in range(times):
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as peer:
            peer.sendall(b"\xff" * 9)
            while peer.recv(4_096):
                pass


def test_a_node_that_starts_says_so_in_its_file_and_in_the_topic(server: Server) -> None:
    rows = when_logged(server.url, "node.started", node="node-1")
    assert rows[0] in in_file(server.data)
    assert rows[0]["text"] == "node-1 has started as embedded" and rows[0]["severity"] == "info"
    shown = command("admin", "log", url=server.url).stdout.splitlines()[0]
    assert shown.split()[1:4] == ["info", "node-1", "node.started"]


def test_a_storm_is_cut_and_what_was_left_out_is_counted_and_said(server: Server) -> None:
    nonsense(server, STORM)
    rows = when_logged(server.url, "log.left_out", of="client.refused")
    (left_out,) = [row for row in rows if row["code"] == "log.left_out"]
    refused = [row for row in rows if row["code"] == "client.refused"]
    assert len(refused) + left_out["fields"]["count"] == STORM
    assert refused[0]["fields"]["reason"] == "remote.protocol"
    codes = [row["code"] for row in in_file(server.data)]
    assert codes.count("client.refused") == len(refused) and codes.count("log.left_out") == 1
    assert log_of(server.url, "--code", "client", "--limit", "3") == refused[-3:]
    assert log_of(server.url, "--severity", "warning") == [left_out]
    assert log_of(server.url, "--node", "node-2") == log_of(server.url, "--since", "2100-01-01") == []


def test_events_are_consumed_and_browsed_with_selectors_and_only_read(server: Server) -> None:
    async def play() -> None:
        async with antiphon.connect(server.url, client_id="auditor") as connection:
            session, admin = connection.session(), connection.admin()
            wanted = "code = 'node.started' AND severity = 'info' AND role = 'embedded'"
            browsed = [one async for one in session.browse(LOG, selector=wanted)]
            assert [one.properties["node"] for one in browsed] == ["node-1"]
            async with session.consumer(LOG, selector=wanted, start="earliest") as consumer:
                received = await consumer.receive(timeout=WAIT_S)
            assert received is not None and received.body == browsed[0].body
            assert received.message_id == browsed[0].message_id
            async with session.consumer(LOG, durable="audit", start="earliest", channel="a") as consumer:
                assert await consumer.receive(timeout=WAIT_S) is not None
            await session.unsubscribe("audit")
            with pytest.raises(InvalidName):
                await session.producer(LOG).send(b"x")
            with pytest.raises(DestinationError, match="belongs to the system"):
                await admin.delete(LOG)
            with pytest.raises(InvalidName):
                await admin.create("topic:_OTHER")
            await admin.change(LOG, retention=3_600, retention_bytes=1_000_000)

    asyncio.run(play())
    refused = command("send", LOG, "x", url=server.url)
    assert refused.returncode == 1 and "the system's own" in refused.stderr


def test_a_wrong_option_is_refused_in_a_sentence(server: Server) -> None:
    for options, words in (
        (("--code", "node.exploded"), "there are no events with the code 'node.exploded'"),
        (("--code", "node'; --"), "is no code of events"),
        (("--since", "yesterday"), "is neither a time ago"),
        (("--severity", "loud"), "invalid choice"),
    ):
        done = command("admin", "log", *options, url=server.url)
        assert done.returncode == 2 and words in done.stderr


def test_a_later_life_has_the_events_of_an_earlier_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data) as first:
        when_logged(first.url, "node.started")
        assert first.stop() == 0
    with Server(data) as second:
        rows = when_logged(second.url, "node.recovered")
        codes = [row["code"] for row in rows]
        assert codes.count("node.started") == 2 and codes.count("node.stopping") == 1
        assert codes.index("node.stopping") < len(codes) - 1 - codes[::-1].index("node.started")
        assert [row["code"] for row in in_file(data)] == codes, "file and topic have the same"


def reject(queue: str, count: int, server: Server) -> None:
    """Have so many messages of a queue die."""

    async def play() -> None:
        async with antiphon.connect(server.url) as connection:
            session = connection.session(ack="individual")
            await session.producer(queue).send_many([b"x"] * count)
            for message in await session.consumer(queue).receive_many(count, timeout=WAIT_S):
                await message.reject()
            await session.close()

    asyncio.run(play())


def test_dead_messages_are_counted_by_their_queue(server: Server) -> None:
    reject("queue:poisoned", 7, server)
    deadline = time.monotonic() + WAIT_S
    while True:
        rows = log_of(server.url, "--code", "messages.dead")
        if sum(row["fields"]["count"] for row in rows) == 7:
            break
        assert time.monotonic() < deadline, rows
    assert {(row["fields"]["destination"], row["fields"]["reason"]) for row in rows} == {
        ("queue:poisoned", "rejected")
    }


@contextmanager
def followed(url: str, code: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Follow the events of a family; gives the next one."""
    options = ("--follow", "--json", "--code", code, "--url", url)
    # Without a buffer: `select` sees every line.
    following = subprocess.Popen([*ANTIPHON, "admin", "log", *options], stdout=subprocess.PIPE, bufsize=0)
    stream = following.stdout
    assert stream is not None

    def next_row() -> dict[str, Any]:
        assert select.select([stream], [], [], WAIT_S)[0], f"no line within {WAIT_S:g} s"
        row: dict[str, Any] = json.loads(stream.readline())
        return row

    try:
        yield next_row
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(WAIT_S) == 130
        stream.close()


def test_following_goes_on_with_new_events(server: Server) -> None:
    with followed(server.url, "messages") as next_row:
        reject("queue:followed", 2, server)
        while (row := next_row())["fields"]["destination"] != "queue:followed":
            pass
        assert row["text"].startswith("messages of queue:followed have died: ")


@pytest.mark.timeout(300)
def test_a_killed_primary_is_told_by_the_others_in_all_places(tmp_path: Path) -> None:
    options = ("--channels", "2")
    with ClusterProcess(tmp_path, transport="tcp", client_managers=1, options=options) as cluster:
        before = asyncio.run(cluster.primary("a"))
        with followed(cluster.url, "primary") as next_row:
            assert {next_row()["channel"] for _ in range(2)} == {"a", "b"}
            cluster.kill(before)
            moved = next_row()
        after = asyncio.run(cluster.another_primary(before, "a"))
        assert (moved["code"], moved["channel"], moved["node"]) == ("primary.moved", "a", after)
        assert (moved["fields"]["member"], moved["fields"]["former"]) == (after, before)
        rows = when_logged(cluster.url, "node.down", member=before, node=after)
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
        assert {row["channel"] for row in rows} == {"", "a", "b"}, "the events of both channels, and of nodes"
        codes = [row["code"] for row in rows]
        assert codes.index("node.started") < codes.index("epoch.began")
        assert len([row for row in rows if row["code"] == "primary.moved" and row["node"] == after]) == 1
        assert moved in in_file(cluster.folder_of(after))
        seen = [row for row in in_file(cluster.data / "nodes" / "cm-1") if row["code"] == "primary.moved"]
        assert seen[-1]["fields"]["member"] == after, "every node's own file has what it has seen"
        asyncio.run(read_merged(cluster.url, len(rows)))
        others = [name for name in cluster.message_managers if name.startswith("mm-a") and name != before]
        cluster.kill(*others)
        done = command("admin", "log", "--json", url=cluster.url)
        assert done.returncode == 0 and "channel a does not answer" in done.stderr
        left = [json.loads(line) for line in done.stdout.splitlines()]
        assert "b" in {row["channel"] for row in left} and moved not in left


async def read_merged(url: str, count: int) -> None:
    async with antiphon.connect(url) as connection, connection.session() as session:
        with pytest.raises(LocalError, match="name its channel"):
            await session.consumer(LOG, shared="auditors").receive(timeout=1)
        async with session.consumer(LOG, start="earliest") as consumer:
            merged = await consumer.receive_many(count, timeout=WAIT_S)
        assert {message.channel for message in merged} == {"a", "b"}
        assert len({message.message_id for message in merged}) == len(merged) == count
