"""Nodes as processes, started, watched and stopped together. The nodes here are a few lines of Python."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.cluster.topology import ClusterSpec
from antiphon.errors import NodeError
from antiphon.runtime import launcher as launching
from antiphon.runtime.launcher import Launcher
from tests.unit.cluster.clusters import a_cluster

SECONDS = 30.0
SPEC = a_cluster(client_managers=2, message_managers=3)
NAMES = [node.name for node in SPEC.nodes]

# Says to the test what happens to it, by a socket; `how` tells what kind of node it is.
NODE = """
import json, os, signal, socket, sys
name, path, how = sys.argv[1:]
line = socket.socket(socket.AF_UNIX)
line.connect(path)
def say(what):
    line.sendall(f"{name} {what}\\n".encode())
def on_term(*_):
    say("asked to stop")
    if how != "deaf":
        sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
say(f"is {os.getpid()}")
say("begins")
if how == "fails":
    sys.exit(7)
if how != "mute":
    print("not a ready line")
    print(json.dumps({"ready": True, "pid": os.getpid(), "listen": {"antiphon": name}}), flush=True)
while True:
    signal.pause()
"""


class Hall:
    """What the nodes of a test have said."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.heard: list[str] = []
        self._news = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.heard.append(line.decode().strip())
            self._news.set()
        writer.close()

    async def wait(self, what: str, times: int = 1) -> None:
        """Until this was heard so often."""
        async with asyncio.timeout(SECONDS):
            while self.heard.count(what) < times:
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def a_hall(folder: Path) -> AsyncIterator[Hall]:
    hall = Hall(folder / "hall")
    server = await asyncio.start_unix_server(hall.take, hall.path)
    try:
        yield hall
    finally:
        server.close()
        await server.wait_closed()


Story = Callable[[Hall, asyncio.Future[None], asyncio.Future[list[dict[str, Any]]]], Awaitable[None]]


def play(
    tmp_path: Path,
    story: Story | None,
    how: dict[str, str] | None = None,
    spec: ClusterSpec = SPEC,
    **settings: Any,
) -> tuple[int, list[str]]:
    """Run a launcher, and the story beside it; returns the exit code and what the nodes said."""

    async def run() -> tuple[int, list[str]]:
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[None] = loop.create_future()
        announced: asyncio.Future[list[dict[str, Any]]] = loop.create_future()
        async with a_hall(tmp_path) as hall, asyncio.timeout(SECONDS):
            commands = {
                node.name: [sys.executable, "-c", NODE, node.name, hall.path, (how or {}).get(node.name, "")]
                for node in spec.nodes
            }
            running = asyncio.ensure_future(
                Launcher(spec, commands, **settings).run(stop, announced.set_result)
            )
            try:
                if story is not None:
                    await story(hall, stop, announced)
                return await running, hall.heard
            finally:
                pids = [int(said.split()[2]) for said in hall.heard if " is " in said]
                assert not any(map(is_running, pids)), "somebody is left behind"

    return asyncio.run(run())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_is_announced_when_all_are_ready_and_leaves_nobody_behind(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []

    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        rows.extend(await announced)
        assert all(is_running(row["pid"]) for row in rows)
        stop.set_result(None)

    code, heard = play(tmp_path, story)
    assert code == 0
    assert [row["name"] for row in rows] == NAMES
    assert [row["listen"]["antiphon"] for row in rows] == NAMES
    assert rows[2] == rows[2] | {"role": "message-manager", "channel": "a", "rank": 1}
    assert "ready" not in rows[0]
    stops = [said.split()[0] for said in heard if said.endswith("asked to stop")]
    assert sorted(stops[:2]) == ["cm-1", "cm-2"], "client managers go first"
    assert sorted(stops[2:]) == ["mm-a-1", "mm-a-2", "mm-a-3"]


def test_a_node_that_dies_is_reported_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        rows = await announced
        with watching(caplog, "mm-a-2 ended") as reported:
            os.kill(rows[3]["pid"], signal.SIGKILL)
            await reported.wait()
        assert all(is_running(row["pid"]) for row in rows if row["name"] != "mm-a-2")
        stop.set_result(None)

    code, heard = play(tmp_path, story)
    assert code == 0
    assert "node mm-a-2 ended: signal SIGKILL" in caplog.messages
    assert heard.count("mm-a-2 begins") == 1


@contextlib.contextmanager
def watching(caplog: pytest.LogCaptureFixture, words: str) -> Any:
    """An event that is set when something is logged."""
    told = asyncio.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                told.set()

    watch = Watch()
    launching.log.addHandler(watch)
    try:
        yield told
    finally:
        launching.log.removeHandler(watch)


def test_where_that_is_asked_for_it_is_started_again_after_ever_longer_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        await announced
        await hall.wait("mm-a-3 begins", 4)
        stop.set_result(None)

    code, heard = play(tmp_path, story, {"mm-a-3": "fails"}, is_restarting=True, pause_s=0.01)
    assert code == 0
    assert caplog.messages.count("node mm-a-3 ended: exit code 7") >= 3
    again = [words for words in caplog.messages if "is started again" in words]
    assert again[:3] == [f"node mm-a-3 is started again in 0.0{n} s" for n in (1, 2, 4)]
    assert heard.count("mm-a-1 begins") == 1


def test_a_client_manager_that_cannot_start_ends_it_all(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="cm-2 could not start"):
        play(tmp_path, None, {"cm-2": "fails"})


def test_a_message_manager_that_cannot_start_does_not(tmp_path: Path) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        rows = await announced
        assert [row["name"] for row in rows if row["pid"] is None] == ["mm-a-1"]
        stop.set_result(None)

    assert play(tmp_path, story, {"mm-a-1": "fails"})[0] == 0


def test_a_channel_without_a_quorum_ends_it_all(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="mm-a-1 and mm-a-3 could not start, so channel a can order nothing"):
        play(tmp_path, None, {"mm-a-1": "fails", "mm-a-3": "fails", "cm-1": "mute"})


def test_nodes_that_are_not_ready_in_time_are_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"after 3 s these nodes are not ready: cm-1, mm-a-2"):
        play(tmp_path, None, {"cm-1": "mute", "mm-a-2": "mute"}, ready_s=3)


def test_a_node_that_does_not_listen_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        await announced
        stop.set_result(None)

    code, _ = play(tmp_path, story, {"mm-a-2": "deaf"}, stop_s=1)
    assert code == 1
    assert "node mm-a-2 did not stop within 1 s and is killed" in caplog.messages


def test_it_can_be_stopped_before_it_is_ready(tmp_path: Path) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        await hall.wait("mm-a-2 begins")
        stop.set_result(None)

    assert play(tmp_path, story, {"mm-a-2": "mute"})[0] == 0


def test_when_nobody_is_left_it_ends(tmp_path: Path) -> None:
    async def story(hall: Hall, stop: asyncio.Future[None], announced: Any) -> None:
        for row in await announced:
            os.kill(row["pid"], signal.SIGKILL)

    with pytest.raises(NodeError, match="all nodes have ended"):
        play(tmp_path, story)


PARENT = """
import os, subprocess, sys
child = "import os, signal, sys; from antiphon.runtime.launcher import die_with_parent;" \\
    "die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); signal.pause()"
subprocess.run([sys.executable, "-c", child, sys.argv[1] if len(sys.argv) > 1 else str(os.getpid())])
print("it ended", flush=True)
"""


def test_a_node_does_not_outlive_whoever_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        # The child holds the other end as well: it is closed when both are gone.
        assert parent.stdout.read() == ""


def test_a_node_whose_parent_is_gone_already_does_not_begin() -> None:
    # Whoever started it is not the process that it was told of.
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, "1"], capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.stdout == "it ended\n"
