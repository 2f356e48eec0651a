"""A disk that refuses a sync: the node ends, nothing unsure is confirmed, and the directory says why."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path

import antiphon
from tests.processes import STOP_SECONDS, Server
from tests.processes import antiphon as command

# A server whose disk fails the first sync, or refuses the first write of a superblock, after the file
# `fail-now` has appeared.
SERVER = """
    import os, sys
    from antiphon.cli.main import main
    from antiphon.runtime import disk

    sync, write = os.fdatasync, disk.FileDisk.write
    what = sys.argv[3]

    def failing_sync(descriptor):
        if what == "sync" and os.path.exists(sys.argv[1]):
            raise OSError(5, "Input/output error")
        sync(descriptor)

    def failing_write(self, name, offset, buffers):
        if what == "superblock" and name == "superblock" and os.path.exists(sys.argv[1]):
            raise disk._failure(name, OSError(28, "No space left on device"))
        write(self, name, offset, buffers)

    disk.os.fdatasync = failing_sync
    disk.FileDisk.write = failing_write
    sys.exit(main(["up", "--data", sys.argv[2], "--port", "0", "--json"]))
"""


class FailingServer(Server):
    """The real server, over a disk that can be told to fail."""

    def __init__(self, data: Path, switch: Path, what: str = "sync") -> None:
        self.data = data
        self.errors = data.with_name("failing.stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(SERVER), str(switch), str(data), what],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.ready = {}


async def send_until_it_fails(url: str, switch: Path) -> tuple[list[bytes], list[bytes]]:
    """Bodies that were confirmed, and those whose fate is not known."""
    confirmed: list[bytes] = []
    uncertain: list[bytes] = []
    try:
        async with antiphon.connect(url, reconnect=0) as connection, connection.session() as session:
            producer = await session.producer("queue:failing")
            for number in range(20):
                body = b"%d" % number
                if number == 10:
                    await asyncio.to_thread(switch.touch)
                try:
                    await producer.send(body, timeout=60)
                    confirmed.append(body)
                except antiphon.PublishError:
                    uncertain.append(body)
                    break
    except antiphon.NotConnected:
        assert uncertain, "the connection was lost and no send said so"
    return confirmed, uncertain


def test_a_failed_sync_ends_the_node_and_marks_the_directory(tmp_path: Path) -> None:
    data, switch = tmp_path / "data", tmp_path / "fail-now"
    with FailingServer(data, switch) as server:
        confirmed, uncertain = asyncio.run(send_until_it_fails(server.url, switch))
        assert server.process.wait(timeout=STOP_SECONDS) == 1
        words = server.errors.read_text()
    assert "Input/output error" in words
    assert "Traceback" not in words
    assert confirmed == [b"%d" % number for number in range(10)]
    assert uncertain == [b"10"]
    assert (data / "POISONED").exists()

    refused = command("up", "--data", str(data), "--port", "0")
    assert refused.returncode == 1
    assert "--accept-possible-loss" in refused.stderr

    with Server(data, "--accept-possible-loss") as again:
        bodies = received(again.url)
        assert bodies[: len(confirmed)] == confirmed
        assert bodies[len(confirmed) :] in ([], uncertain)
    assert not (data / "POISONED").exists()


def test_a_superblock_that_cannot_be_written_ends_the_node_with_one_line(tmp_path: Path) -> None:
    """It is written beside the traffic: by a timer when the node is idle, or by the callback of a sync."""
    data, switch = tmp_path / "data", tmp_path / "fail-now"
    with FailingServer(data, switch, "superblock") as server:
        asyncio.run(send_until_idle(server.url, switch))
        assert server.process.wait(timeout=STOP_SECONDS) == 1
        words = server.errors.read_text()
    (reason,) = [line for line in words.splitlines() if line.startswith("antiphon: ")]
    assert "No space left on device" in reason
    assert "Traceback" not in words
    with Server(data) as again:
        assert received(again.url) == [b"the last one"]


async def send_until_idle(url: str, switch: Path) -> None:
    """Send, and be silent: the node notes in its superblock how far it is synced."""
    async with antiphon.connect(url, reconnect=0) as connection, connection.session() as session:
        producer = await session.producer("queue:failing")
        await asyncio.to_thread(switch.touch)
        with contextlib.suppress(antiphon.AntiphonError):
            await producer.send(b"the last one", timeout=60)


def received(url: str) -> list[bytes]:
    async def receive() -> list[bytes]:
        async with antiphon.connect(url) as connection, connection.session() as session:
            consumer = await session.consumer("queue:failing")
            (queue,) = await connection.admin().destinations()
            return [message.body for message in await consumer.receive_many(queue["messages"], timeout=60)]

    return asyncio.run(receive())
