"""A commit of far more messages than a session's transaction may have, as a batch of Spark brings it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import antiphon
from antiphon.batch import ROWS_MAX, Batch
from antiphon.wire.transactions import TRANSACTION_MESSAGES_MAX
from tests.bus_members import has_multicast
from tests.cluster_processes import ClusterProcess

TOPIC = "topic:large"
BATCHES = 5
MESSAGES = BATCHES * ROWS_MAX
assert MESSAGES > 2 * TRANSACTION_MESSAGES_MAX


@pytest.mark.timeout(300)
def test_all_of_it_is_seen_at_once_by_all_replicas_and_after_a_restart(tmp_path: Path) -> None:
    asyncio.run(run(tmp_path))


async def run(folder: Path) -> None:
    transport = "udp" if has_multicast() else "tcp"
    with ClusterProcess(
        folder, transport=transport, client_managers=1, message_managers=2, has_faults=False
    ) as cluster:
        await cluster.synchronized()
        await stage_and_commit(cluster.url)
        assert await stored(cluster) == MESSAGES
        await cluster.equal()
        # Whoever comes back reads the commit from its log; whoever takes over has applied it.
        before = await cluster.primary()
        cluster.kill(before)
        await cluster.another_primary(before)
        assert await stored(cluster) == MESSAGES
        await cluster.restart(before)
        await cluster.synchronized()
        await cluster.equal()
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            receipt = await session.producer(TOPIC).send(b"after it")
            assert receipt.sequence is not None and receipt.sequence > MESSAGES
            consumer = session.consumer(TOPIC, start=receipt.sequence - 1)
            found = [message.body for message in await consumer.receive_many(2, timeout=10)]
            assert found[-1] == b"after it"


async def stage_and_commit(url: str) -> None:
    async with (
        antiphon.connect(url) as connection,
        connection.staging("large") as staging,
        staging.writer() as writer,
    ):
        for number in range(BATCHES):
            bodies = [b"%d" % row for row in range(number * ROWS_MAX, (number + 1) * ROWS_MAX)]
            await writer.write(TOPIC, Batch.of_bodies(bodies, 0, 0, 1_000))
        part = await writer.seal()
        assert part.messages == MESSAGES
        assert await staging.commit(1, [part]) == "committed"
        assert await staging.commit(1, [part]) == "committed before"


async def stored(cluster: ClusterProcess) -> int:
    async with antiphon.connect(cluster.url) as connection:
        (row,) = [row for row in await connection.admin().destinations() if row["name"] == TOPIC]
        count: int = row["messages"]
        return count
