"""A queue of two channels on real processes, one of which fails over, or is away for a while."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import antiphon
from antiphon.client.core.spanning import place_of
from tests.cluster_processes import ClusterProcess

WAIT_S = 60.0
NAME = "queue:orders"
KEYS = [f"key{number}" for number in range(6)]
PER_KEY = 150
FREE = 150
"""Messages without a key."""


@pytest.mark.timeout(300)
def test_each_message_is_consumed_once_and_in_the_order_of_its_key_while_a_channel_fails_over(
    tmp_path: Path,
) -> None:
    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            await connection.admin().create(NAME, channels=2)
            taken = Taken()
            consumers = [asyncio.create_task(consume(cluster, taken)) for _ in range(2)]
            producer = await session.producer(NAME)
            sending = [asyncio.create_task(send(producer, key)) for key in (*KEYS, None)]
            await taken.reach(100)
            primary = await cluster.primary("b")
            cluster.kill(primary)
            await asyncio.gather(*sending)
            await cluster.another_primary(primary, "b")
            await taken.reach(len(KEYS) * PER_KEY + FREE)
            for task in consumers:
                task.cancel()
            await asyncio.wait(consumers)
            check(taken.messages)
            assert [one async for one in session.browse(NAME)] == []

    with ClusterProcess(
        tmp_path, transport="tcp", client_managers=1, message_managers=3, options=("--channels", "2")
    ) as cluster:
        asyncio.run(story(cluster))


class Taken:
    """The messages that all consumers were given."""

    def __init__(self) -> None:
        self.messages: list[antiphon.Message] = []
        self._changed = asyncio.Condition()

    async def add(self, message: antiphon.Message) -> None:
        self.messages.append(message)
        async with self._changed:
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        """Wait until there are so many."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)


async def send(producer: antiphon.Producer, key: str | None) -> None:
    """One message after the other, of one key or of none."""
    for number in range(PER_KEY if key is not None else FREE):
        await producer.send(f"{key}:{number:04d}".encode(), key=key, timeout=WAIT_S)


async def consume(cluster: ClusterProcess, taken: Taken) -> None:
    """Consume in a connection of its own until this is cancelled."""
    async with (
        antiphon.connect(cluster.url) as connection,
        connection.session(ack="individual") as session,
        session.consumer(NAME, prefetch=20) as consumer,
    ):
        async for message in consumer:
            await taken.add(message)
            await message.ack()


def check(taken: list[antiphon.Message]) -> None:
    """Each once; of each key in order and in one channel."""
    bodies = Counter(bytes(message.body_bytes) for message in taken)
    assert [body for body, times in bodies.items() if times > 1] == []
    assert {message.channel for message in taken} == {"a", "b"}
    of_key: dict[str | None, list[antiphon.Message]] = defaultdict(list)
    for message in taken:
        of_key[message.key].append(message)
    for key in KEYS:
        wanted = [f"{key}:{number:04d}".encode() for number in range(PER_KEY)]
        assert [bytes(message.body_bytes) for message in of_key[key]] == wanted
        assert len({message.channel for message in of_key[key]}) == 1
    assert len(of_key[None]) == FREE


@pytest.mark.timeout(300)
def test_a_channel_that_is_away_holds_up_what_belongs_there_and_nothing_else(tmp_path: Path) -> None:
    there = next(key for key in KEYS if place_of(key, None, 2) == 1)

    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        down = await cluster.primary("b")
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            await connection.admin().create(NAME, channels=["a", "b"])
            producer, consumer = await session.producer(NAME), await session.consumer(NAME)
            await producer.send_many([b"before"] * 10)
            assert len(await consumer.receive_many(10, timeout=WAIT_S)) == 10
            cluster.kill(down)
            waiting = [asyncio.create_task(producer.send(b"keyed", key=there, timeout=120))]
            here = 0
            async with asyncio.timeout(WAIT_S):
                while here < 50:
                    # A message that was given to the channel before it was known to be away stays there.
                    sending = asyncio.create_task(producer.send(b"free", timeout=120))
                    done, late = await asyncio.wait([sending], timeout=2)
                    here += sum(task.result().channel == "a" for task in done)
                    waiting += late
                receipts = await producer.send_many([b"many"] * 100)
            assert {receipt.channel for receipt in receipts} == {"a"}
            assert len(waiting) <= 5
            assert len(await consumer.receive_many(150, timeout=WAIT_S)) == 150

            # A session that begins now finds the destination, and the channel later.
            async with antiphon.connect(cluster.url) as other, other.session() as late_session:
                late_producer = await late_session.producer(NAME)
                assert (await late_producer.send(b"late")).channel == "a"
                waiting.append(asyncio.create_task(late_producer.send(b"keyed", key=there, timeout=120)))
                assert not waiting[0].done(), "its channel is away"
                await cluster.restart(down)
                stored = await asyncio.gather(*waiting)
                assert {receipt.channel for receipt in stored} == {"b"}
            left = await consumer.receive_many(len(waiting) + 1, timeout=WAIT_S)
            assert len(left) == len(waiting) + 1
            assert await consumer.receive(timeout=0) is None

    with ClusterProcess(
        tmp_path, transport="tcp", client_managers=1, message_managers=1, options=("--channels", "2")
    ) as cluster:
        asyncio.run(story(cluster))
