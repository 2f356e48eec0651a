"""A disk that refuses a sync: the node ends, nothing unsure is confirmed, and the directory says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import antiphon
from tests.processes import STOP_SECONDS, Server
from tests.processes import antiphon as command

# A server whose disk fails the first sync after the file `fail-now` has appeared.
SERVER = """
    import os, sys
    from antiphon.cli.main import main
    from antiphon.runtime import disk

    real = os.fdatasync

    def failing(descriptor):
        if os.path.exists(sys.argv[1]):
            raise OSError(5, "Input/output error")
        real(descriptor)

    disk.os.fdatasync = failing
    sys.exit(main(["up", "--data", sys.argv[2], "--port", "0", "--json"]))
"""


class FailingServer(Server):
    """The real server, over a disk that can be told to fail."""

    def __init__(self, data: Path, switch: Path) -> None:
        self.data = data
        self.errors = data.with_name("failing.stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(SERVER), str(switch), str(data)],
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
                    await producer.send(body, timeout=5)
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


def received(url: str) -> list[bytes]:
    async def receive() -> list[bytes]:
        async with antiphon.connect(url) as connection, connection.session() as session:
            consumer = await session.consumer("queue:failing")
            return [message.body for message in await consumer.receive_many(100, timeout=1)]

    return asyncio.run(receive())
