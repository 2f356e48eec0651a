"""A message is sent again by another process, after the primary or the whole server was killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import antiphon
from tests.cluster_processes import ClusterProcess
from tests.processes import ANTIPHON, ROOT, Server

WAIT_S = 60.0


async def sent_by_a_process(url: str, body: str, id: str) -> dict[str, Any]:
    """Send a message with `antiphon send`; what the command says of it."""
    sending = await asyncio.create_subprocess_exec(
        *ANTIPHON, "send", "queue:orders", body, "--dedup-id", id, "--json",
        env=os.environ | {"ANTIPHON_URL": url}, cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(sending.communicate(), WAIT_S)
    assert sending.returncode == 0
    told: dict[str, Any] = json.loads(said)["last"]
    return told


async def bodies(url: str) -> list[str]:
    """What the queue has."""
    async with antiphon.connect(url, timeout=WAIT_S) as connection, connection.session() as session:
        return [str(message.body) async for message in session.browse("queue:orders")]


def test_another_process_sends_again_after_the_primary_was_killed(tmp_path: Path) -> None:
    async def story(cluster: ClusterProcess) -> None:
        first = [await sent_by_a_process(cluster.url, f"first {id}", id) for id in ("a", "b")]
        primary = await cluster.primary()
        cluster.kill(primary)
        await cluster.another_primary(primary)
        again = await sent_by_a_process(cluster.url, "again a", "a")
        assert (again["duplicate"], again["sequence"]) == (True, first[0]["sequence"])
        # A third process sends many at once, among them one that is known.
        async with (
            antiphon.connect(cluster.url, timeout=WAIT_S) as connection,
            connection.session() as session,
        ):
            rows = [antiphon.Row(f"many {id}", dedup_id=id) for id in ("c", "b", "d")]
            receipts = await session.producer("queue:orders").send_many(rows)
            assert [one.duplicate for one in receipts] == [False, True, False]
        await cluster.restart(primary)
        await cluster.synchronized(primary)
        await cluster.equal(*cluster.message_managers)
        assert await bodies(cluster.url) == ["first a", "first b", "many c", "many d"]

    with ClusterProcess(tmp_path, transport="tcp", client_managers=1) as cluster:
        asyncio.run(story(cluster))


def test_a_sender_that_was_never_answered_sends_again_from_another_process(tmp_path: Path) -> None:
    """The server is killed while messages are on their way; nobody knows which were stored."""

    async def send_until_it_dies(url: str) -> int:
        sent = 0
        async with antiphon.connect(url, reconnect=0) as connection:
            session = await connection.session()
            producer = await session.producer("queue:orders")
            try:
                while True:
                    sent += 1
                    await producer.send(f"body {sent}", dedup_id=str(sent))
                    if sent == 50:
                        server.kill()
            except antiphon.AntiphonError:
                return sent

    async def send_all_again(url: str, count: int) -> None:
        async with antiphon.connect(url, timeout=WAIT_S) as connection, connection.session() as session:
            rows = [antiphon.Row(f"body {at}", dedup_id=str(at)) for at in range(1, count + 1)]
            receipts = await session.producer("queue:orders").send_many(rows)
            # All that was confirmed is known; the last may have been stored or not.
            assert receipts.duplicates >= count - 1

    with Server(tmp_path / "data") as server:
        count = asyncio.run(send_until_it_dies(server.url))
    with Server(tmp_path / "data") as server:
        asyncio.run(send_all_again(server.url, count))
        assert asyncio.run(bodies(server.url)) == [f"body {at}" for at in range(1, count + 1)]
