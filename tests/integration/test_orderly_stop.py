"""A stop in the middle of the load is as quiet as one at rest."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import antiphon
from tests.processes import Server
from tests.processes import antiphon as command


async def publish_until_it_stops(server: Server) -> int:
    """Publish all the time; after some batches the server is told to stop. How many were confirmed?"""
    confirmed = 0
    with contextlib.suppress(antiphon.AntiphonError):
        async with antiphon.connect(server.url, reconnect=0) as connection, connection.session() as session:
            producer = await session.producer("queue:stopping")
            while True:
                await producer.send_many([b"body"] * 500, timeout=2)
                confirmed += 500
                if confirmed == 5000:
                    server.process.terminate()
    return confirmed


def test_a_stop_under_load_is_orderly_and_loses_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        confirmed = asyncio.run(publish_until_it_stops(server))
        assert server.process.wait(timeout=30) == 0
        words = server.errors.read_text()
        assert "Traceback" not in words, words
        assert "ERROR" not in words, words
    with Server(tmp_path / "data") as server:
        received = command("receive", "queue:stopping", url=server.url).stdout.splitlines()
        assert len(received) >= confirmed
        assert "cut" not in server.errors.read_text(), "a clean end leaves no torn tail"
