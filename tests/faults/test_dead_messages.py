"""Dead messages when processes die: each is sent back once, and counts outlive the primary."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import antiphon
from tests.cluster_processes import ClusterProcess
from tests.processes import ANTIPHON, ROOT, Server

WAIT_S = 60.0
COUNT = 3_000
KILLS = 3


async def dead_of(admin: antiphon.Admin, name: str, count: int) -> list[dict[str, Any]]:
    """The dead messages of a destination, asked for until there are so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            rows = await admin.dead(name)
            if len(rows) >= count:
                return rows


async def messages_in(admin: antiphon.Admin, name: str) -> int:
    return sum([row["messages"] for row in await admin.destinations() if row["name"] == name])


async def reject_all(url: str, name: str, bodies: list[bytes]) -> None:
    async with antiphon.connect(url) as connection, connection.session(ack="individual") as session:
        await session.producer(name).send_many(bodies)
        messages = await session.consumer(name).receive_many(len(bodies), timeout=WAIT_S)
        await asyncio.gather(*(message.reject() for message in messages))
        await dead_of(connection.admin(), name, len(bodies))


def begin_to_retry(url: str, name: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"ANTIPHON_URL": url}
    return subprocess.Popen([*ANTIPHON, "admin", "retry", name], env=environment, cwd=ROOT)


async def kill_in_the_middle(admin: antiphon.Admin, url: str, name: str) -> None:
    """Begin to send messages back, and kill -9 the command when some are."""
    before = await messages_in(admin, name)
    retrying = begin_to_retry(url, name)
    async with asyncio.timeout(WAIT_S):
        while await messages_in(admin, name) == before and retrying.poll() is None:
            pass
    retrying.kill()
    retrying.wait()


def test_a_retry_that_is_killed_in_the_middle_sends_nothing_twice(tmp_path: Path) -> None:
    bodies = [b"%05d" % number for number in range(COUNT)]

    async def story(url: str) -> None:
        await reject_all(url, "queue:orders", bodies)
        async with antiphon.connect(url) as connection, connection.session() as session:
            admin = connection.admin()
            for _ in range(KILLS):
                await kill_in_the_middle(admin, url, "queue:orders")
            left = len(await admin.dead("queue:orders"))
            back = await messages_in(admin, "queue:orders")
            assert left + back == COUNT, "a message is in its queue, or dead"
            assert await admin.retry("queue:orders") == left
            messages = await session.consumer("queue:orders").receive_many(COUNT + 1, timeout=2)
            assert sorted(message.body for message in messages) == bodies
            assert await admin.dead("queue:orders") == []

    with Server(tmp_path / "data") as server:
        asyncio.run(story(server.url))


def test_counts_and_dead_messages_outlive_the_primary(tmp_path: Path) -> None:
    async def story(cluster: ClusterProcess) -> None:
        async with antiphon.connect(cluster.url) as connection:
            admin = connection.admin()
            await admin.create("queue:orders", redelivery_limit=2)
            async with connection.session(ack="individual") as session:
                await session.producer("queue:orders").send(b"poison")
                for _ in range(2):
                    async with session.consumer("queue:orders", prefetch=1) as consumer:
                        message = await consumer.receive(timeout=WAIT_S)
                        assert message is not None
                await session.producer("queue:orders").send(b"rejected")
                async with session.consumer("queue:orders") as consumer:
                    # The return of the first may still be on its way.
                    messages = await consumer.receive_many(2, timeout=WAIT_S)
                    second, first = sorted(messages, key=lambda message: message.delivery_count)
                    assert (first.body, first.delivery_count) == (b"poison", 3)
                    primary = await cluster.primary()
                    await second.reject()
                    cluster.kill(primary)
                    await cluster.another_primary(primary)
                # Closing the consumer gave the message back for the third time: one too many.
                rows = await dead_of(admin, "queue:orders", 2)
                found = sorted((row["reason"], row["delivery_count"]) for row in rows)
                assert found == [("redelivery_limit", 3), ("rejected", 1)]
                assert await messages_in(admin, "queue:orders") == 0
                assert await admin.retry() == 2
            await cluster.restart(primary)
            await cluster.synchronized(primary)
            await cluster.equal(*cluster.message_managers)

    with ClusterProcess(tmp_path, transport="tcp", client_managers=1) as cluster:
        asyncio.run(story(cluster))


def test_every_channel_has_its_own_dead_messages(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with antiphon.connect(url) as connection, connection.session() as session:
            admin = connection.admin()
            for channel in ("a", "b"):
                await admin.create(f"queue:in_{channel}", channel=channel)
                await reject_all(url, f"queue:in_{channel}", [channel.encode()])
            assert {(row["channel"], row["destination"]) for row in await admin.dead()} == {
                ("a", "queue:in_a"),
                ("b", "queue:in_b"),
            }
            browsed = [one.body async for one in session.browse("queue:_DMQ", channel="b")]
            assert browsed == [b"b"]
            assert await admin.retry() == 2
            message = await session.consumer("queue:in_b").receive(timeout=WAIT_S)
            assert message is not None and message.channel == "b"

    options = ("--channels", "2")
    with ClusterProcess(
        tmp_path, transport="tcp", client_managers=1, message_managers=1, options=options
    ) as cluster:
        asyncio.run(story(cluster.url))
