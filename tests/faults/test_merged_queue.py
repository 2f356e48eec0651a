"""The dead messages of several channels, consumed and browsed as one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import antiphon
import antiphon.blocking
from tests.cluster_processes import ClusterProcess

WAIT_S = 30.0
DEAD = "queue:_DMQ"
CHANNELS = ("a", "b")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Two channels with a message manager each."""
    with ClusterProcess(
        tmp_path_factory.mktemp("merged"),
        transport="tcp",
        client_managers=1,
        message_managers=1,
        options=("--channels", "2"),
    ) as running:
        yield running


@asynccontextmanager
async def opened(
    cluster: ClusterProcess, ack: str = "auto", *, transacted: bool = False
) -> AsyncIterator[antiphon.Session]:
    async with antiphon.connect(cluster.url) as connection:
        session = (
            connection.session(transacted=True) if transacted else connection.session(ack=cast(Any, ack))
        )
        async with session:
            yield session


async def die(cluster: ClusterProcess, bodies: dict[str, list[bytes]]) -> None:
    """Have messages die in these channels."""
    async with antiphon.connect(cluster.url) as connection, connection.session(ack="individual") as session:
        for channel, dying in bodies.items():
            name = f"queue:in_{channel}"
            await connection.admin().create(name, channel=channel)
            await session.producer(name).send_many(dying)
            messages = await session.consumer(name).receive_many(len(dying), timeout=WAIT_S)
            await asyncio.gather(*(message.reject() for message in messages))
        total = sum(len(dying) for dying in bodies.values())
        async with asyncio.timeout(WAIT_S):
            while len(await connection.admin().dead()) < total:
                pass


def numbered(letter: str, count: int) -> list[bytes]:
    return [f"{letter}{number:03d}".encode() for number in range(count)]


def bodies_of(messages: list[antiphon.Message], channel: str) -> list[bytes]:
    return [bytes(message.body) for message in messages if message.channel == channel]


@pytest.mark.parametrize("prefetch", [None, 0, 3])
@pytest.mark.parametrize("ack", ["auto", "individual", "client", "transacted"])
def test_dead_messages_of_all_channels_are_consumed_as_one(
    cluster: ClusterProcess, ack: str, prefetch: int | None
) -> None:
    wanted = {"a": numbered("a", 40), "b": numbered("b", 10)}

    async def test() -> None:
        await die(cluster, wanted)
        async with opened(cluster, ack, transacted=ack == "transacted") as session:
            consumer = await session.consumer(DEAD, prefetch=prefetch)
            messages = await consumer.receive_many(50, timeout=WAIT_S)
            assert {channel: bodies_of(messages, channel) for channel in CHANNELS} == wanted
            assert await consumer.receive(timeout=timedelta()) is None
            assert await consumer.receive_many(0) == []
            if ack == "transacted":
                await session.commit()
            elif ack == "client":
                await messages[-1].ack()
            elif ack == "individual":
                await asyncio.gather(*(message.ack() for message in messages))
        async with opened(cluster) as session:
            assert await session.consumer(DEAD).receive_many(1, timeout=0.2) == []

    asyncio.run(test())


def test_channels_with_messages_take_turns(cluster: ClusterProcess) -> None:
    async def test() -> None:
        await die(cluster, {"a": numbered("a", 200), "b": numbered("b", 200)})
        async with opened(cluster) as session:
            consumer = await session.consumer(DEAD)
            seen = [await consumer.receive(timeout=WAIT_S) for _ in range(150)]
            # A channel whose first messages arrive a little later waits while those of the other are taken.
            found = [message.channel for message in seen if message is not None]
            assert min(found.count("a"), found.count("b")) >= 50
            assert len(await consumer.receive_many(250, timeout=WAIT_S)) == 250

    asyncio.run(test())


def test_what_was_not_acknowledged_comes_again_from_each_channel(cluster: ClusterProcess) -> None:
    wanted = {"a": numbered("a", 5), "b": numbered("b", 5)}

    async def test() -> None:
        await die(cluster, wanted)
        async with opened(cluster, transacted=True) as session:
            consumer = await session.consumer(DEAD)
            assert len(await consumer.receive_many(10, timeout=WAIT_S)) == 10
            await session.rollback()
            messages = await consumer.receive_many(10, timeout=WAIT_S)
            assert {channel: bodies_of(messages, channel) for channel in CHANNELS} == wanted
            assert {message.delivery_count for message in messages} == {2}
            # A call that waits for more than there is loses nothing when it is cancelled.
            waiting = asyncio.ensure_future(consumer.receive_many(11, timeout=WAIT_S))
            await session.rollback()
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert len(await consumer.receive_many(10, timeout=WAIT_S)) == 10
            await session.commit()

    asyncio.run(test())


def test_a_loop_acknowledges_in_every_channel_what_it_has_gone_past(cluster: ClusterProcess) -> None:
    wanted = {"a": numbered("a", 3), "b": numbered("b", 3)}

    async def test() -> None:
        await die(cluster, wanted)
        async with opened(cluster) as session:
            seen: list[antiphon.Message] = []
            async with session.consumer(DEAD) as consumer:
                async for message in consumer:
                    seen.append(message)
                    if len(seen) == 6:
                        break
            left = await session.consumer(DEAD).receive_many(2, timeout=1)
            assert [message.message_id for message in left] == [seen[-1].message_id]

    asyncio.run(test())


def test_the_blocking_face_consumes_them_as_one(cluster: ClusterProcess) -> None:
    wanted = {"a": numbered("a", 3), "b": numbered("b", 3)}
    asyncio.run(die(cluster, wanted))
    with antiphon.blocking.connect(cluster.url) as connection, connection.session() as session:
        consumer = session.consumer(DEAD)
        messages = [consumer.receive(timeout=WAIT_S), *consumer.receive_many(5, timeout=WAIT_S)]
        found = sorted(bytes(message.body) for message in messages if message is not None)
        assert found == wanted["a"] + wanted["b"]


def test_they_are_browsed_one_channel_after_the_other(cluster: ClusterProcess) -> None:
    wanted = {"a": numbered("a", 3), "b": numbered("b", 3)}

    async def test() -> None:
        await die(cluster, wanted)
        async with opened(cluster) as session:
            seen = [message async for message in session.browse(DEAD, create=False)]
            assert [bytes(message.body) for message in seen] == wanted["a"] + wanted["b"]
            only = [message.channel async for message in session.browse(DEAD, channel="b")]
            assert only == ["b"] * 3
            assert len(await session.consumer(DEAD, channel="b").receive_many(3, timeout=WAIT_S)) == 3
            assert len(await session.consumer(DEAD).receive_many(4, timeout=1)) == 3

    asyncio.run(test())


def test_a_consumer_waits_for_messages_of_any_channel(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with opened(cluster) as session:
            consumer = await session.consumer(DEAD)
            for channel in ("b", "a", "b"):
                waiting = asyncio.ensure_future(consumer.receive(timeout=WAIT_S))
                await die_unseen(cluster, channel)
                message = await waiting
                assert message is not None and message.channel == channel
            closing = asyncio.ensure_future(consumer.receive())
            assert (await asyncio.wait([closing], timeout=0.05))[1], "there is nothing to receive"
            await consumer.close()
            with pytest.raises(antiphon.ConsumerClosed):
                await closing

    asyncio.run(test())


async def die_unseen(cluster: ClusterProcess, channel: str) -> None:
    """Have one message die, which a consumer takes away at once."""
    async with antiphon.connect(cluster.url) as connection, connection.session(ack="individual") as session:
        name = f"queue:in_{channel}"
        await connection.admin().create(name, channel=channel)
        await session.producer(name).send(b"one")
        message = await session.consumer(name).receive(timeout=WAIT_S)
        assert message is not None
        await message.reject()


def test_a_channel_that_is_away_holds_up_no_other_and_joins_later(tmp_path: Path) -> None:
    async def test(cluster: ClusterProcess) -> None:
        await die(cluster, {"a": numbered("a", 4), "b": numbered("b", 4)})
        (away,) = [name for name in cluster.message_managers if name.startswith("mm-b")]
        cluster.kill(away)
        async with opened(cluster) as session:
            consumer = session.consumer(DEAD)
            messages = await consumer.receive_many(4, timeout=WAIT_S)
            assert bodies_of(messages, "a") == numbered("a", 4)
            joining = asyncio.ensure_future(consumer.receive_many(4, timeout=WAIT_S))
            await cluster.restart(away)
            assert bodies_of(await joining, "b") == numbered("b", 4)

    with ClusterProcess(
        tmp_path, transport="tcp", client_managers=1, message_managers=1, options=("--channels", "2")
    ) as cluster:
        asyncio.run(test(cluster))
