"""A pattern over two channels while the primary of one is killed: everything that matches comes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import antiphon
from tests.bus_members import has_multicast
from tests.clusters import Cluster
from tests.processes import antiphon as run

pytestmark = pytest.mark.skipif(
    not has_multicast(), reason="this machine carries no multicast on its loopback"
)

WAIT_S = 40.0
TOPICS = 12


def test_a_pattern_brings_everything_through_a_failover(tmp_path: Path) -> None:
    """Topics are made before, while the primary is gone, and behind it; a durable name ends everywhere."""
    size = ("--client-managers", "1", "--message-managers", "2", "--channels", "2", "--witnesses", "1")
    with Cluster(tmp_path / "data", *size) as cluster:

        async def send(session: antiphon.Session, turn: int) -> set[tuple[str, bytes]]:
            sent = set()
            for at in range(TOPICS):
                name, body = f"topic:town.{turn}.{at}", b"%d of %d" % (at, turn)
                await session.producer(name).send(body)
                # What has been there goes on.
                first = f"topic:town.0.{at}"
                await session.producer(first).send(body + b" more")
                sent |= {(name, body), (first, body + b" more")}
            return sent

        async def change(session: antiphon.Session) -> None:
            """A durable name goes from pattern to pattern to topic, in all channels."""
            names = [f"topic:change.{at}" for at in range(4)]

            async def send(body: str) -> None:
                for name in names:
                    await session.producer(name).send(body)

            for pattern, count in (("topic:change.*", 4), ("topic:change.[12]", 0), ("topic:change.?", 4)):
                consumer = await session.consumer(pattern, match="glob", durable="name")
                await send(pattern)
                found = await consumer.receive_many(count, timeout=WAIT_S)
                assert [message.body for message in found] == [pattern] * count
                assert await consumer.receive(timeout=0.2) is None
                await consumer.close()
            plain = await session.consumer(names[0], durable="name")
            await send("plain")
            assert [message.body for message in await plain.receive_many(1, timeout=WAIT_S)] == ["plain"]
            assert await plain.receive(timeout=0.2) is None
            await plain.close()
            await session.unsubscribe("name")

        async def story() -> None:
            async with (
                antiphon.connect(cluster.url, client_id="desk", timeout=WAIT_S) as connection,
                connection.session() as session,
                connection.session(ack="individual") as reading,
            ):
                await change(session)
                options = {"match": "glob", "durable": "audit"}
                consumer = await reading.consumer("topic:town.*", **options)  # type: ignore[arg-type]
                expected = await send(session, 0)
                status = json.loads(run("admin", "status", "--json", url=cluster.url).stdout)
                primary = status["channels"][0]["primary"]
                sending = asyncio.ensure_future(send(session, 1))
                cluster.kill_node(primary)
                expected |= await sending
                expected |= await send(session, 2)
                found: dict[tuple[str, bytes], int] = {}
                channels = set()
                async with asyncio.timeout(WAIT_S):
                    while found.keys() != expected:
                        message = await consumer.receive(timeout=WAIT_S)
                        assert message is not None
                        key = (message.destination, bytes(message.body_bytes))
                        assert key not in found or message.redelivered, f"{key} came twice without saying so"
                        found[key] = found.get(key, 0) + 1
                        channels.add(message.channel)
                        await message.ack()
                assert channels == {"a", "b"}
                assert await consumer.receive(timeout=0.5) is None
                await consumer.close()
                await session.unsubscribe("audit")
                rows = await connection.admin().destinations()
                patterns = [row for row in rows if "pattern" in row]
                assert {row["channel"] for row in patterns} == {"a", "b"}
                assert [row["subscriptions"] for row in patterns] == [[]] * len(patterns)

        asyncio.run(story())
        cluster.stop()
