"""Messages with the same key: one consumer has them, in order, however many compete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, Broker, in_session, taken
from tests.client_scenes import numbered, run

KEYS = 12


def keyed(count: int, keys: int = KEYS) -> list[antiphon.Row]:
    """Messages with keys in turn; the body tells the place within the key."""
    return [antiphon.Row(b"%06d" % (at // keys), key=f"customer {at % keys}") for at in range(count)]


class Seen:
    """What consumers were given, by key and consumer."""

    def __init__(self) -> None:
        self.by_key: dict[str, dict[int, list[Any]]] = {}
        self.count = 0

    def note(self, consumer: int, messages: list[antiphon.Message]) -> None:
        for message in messages:
            assert message.key is not None
            self.by_key.setdefault(message.key, {}).setdefault(consumer, []).append(message.body)
            self.count += 1

    async def take(self, consumers: list[antiphon.Consumer], count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.count < count:
                for at, consumer in enumerate(consumers):
                    self.note(at, await consumer.receive_many(50, timeout=0.02))


@pytest.mark.parametrize(
    "source", [("queue:groups", {}), ("topic:groups", {"shared": "workers"})], ids=["queue", "topic"]
)
def test_messages_with_one_key_go_to_one_consumer_in_order(broker: Broker, source: Any) -> None:
    name, options = source

    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as two, in_session(broker) as sender:
            consumers = [await session.consumer(name, **options, prefetch=20) for session in (one, two, two)]
            producer = await sender.producer(name)
            seen = Seen()
            await producer.send_many(keyed(600))
            await seen.take(consumers, 600)
            await producer.send_many(keyed(600))
            await seen.take(consumers, 1_200)
            for key, by_consumer in seen.by_key.items():
                [bodies] = by_consumer.values()
                assert bodies == numbered(50) * 2, f"the messages of {key} come in order"
            owners = [consumer for by_consumer in seen.by_key.values() for consumer in by_consumer]
            assert sorted(map(owners.count, range(3))) == [4, 4, 4], "each consumer has its part of the keys"

    run(test())


def test_messages_without_a_key_go_to_any_consumer(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as one, in_session(broker, "client") as two:
            mine = await one.consumer("queue:groups.free", prefetch=1)
            producer = await one.producer("queue:groups.free")
            await producer.send(b"first", key="k")
            assert [message.body for message in await taken(mine, 1)] == [b"first"]
            yours = await two.consumer("queue:groups.free", prefetch=10)
            rows = [antiphon.Row(body, key="k") for body in numbered(50)]
            await producer.send_many([*rows, antiphon.Row(b"free"), antiphon.Row(b"other", key="m")])
            # The consumer of the key is busy, and keeps up nobody.
            assert [message.body for message in await taken(yours, 2)] == [b"free", b"other"]
            assert await yours.receive(timeout=0) is None

    run(test())


def test_the_groups_of_a_closed_consumer_go_to_others_in_order(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as sender, in_session(broker) as other:
            await sender.producer("queue:groups.closed").send_many(keyed(20, keys=1))
            async with in_session(broker, "individual") as session:
                consumer = await session.consumer("queue:groups.closed", prefetch=5)
                for message in (await taken(consumer, 3))[:2]:
                    await message.ack()
                heir = await other.consumer("queue:groups.closed")
                await sender.producer("queue:groups.closed").send(b"new", key="another")
                assert [message.body for message in await taken(heir, 1)] == [b"new"]
            again = await taken(heir, 18)
            assert [message.body for message in again] == numbered(18, 2)
            assert again[0].redelivered

    run(test())


def test_a_rolled_back_message_comes_before_later_ones_of_its_group(broker: Broker) -> None:
    async def test() -> None:
        async with (
            in_session(broker, transacted=True) as session,
            in_session(broker) as other,
            in_session(broker) as sender,
        ):
            consumer = await session.consumer("queue:groups.back", prefetch=4)
            await sender.producer("queue:groups.back").send_many(keyed(30, keys=1))
            assert [message.body for message in await taken(consumer, 2)] == numbered(2)
            idle = await other.consumer("queue:groups.back")
            await session.rollback()
            assert [message.body for message in await taken(consumer, 30)] == numbered(30)
            await session.commit()
            assert await idle.receive(timeout=0) is None

    run(test())


def test_a_group_may_be_published_in_a_transaction(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as two:
            consumers = [await session.consumer("queue:groups.tx", prefetch=20) for session in (one, two)]
            async with in_session(broker, transacted=True) as sender:
                await sender.producer("queue:groups.tx").send_many(keyed(120))
                await sender.commit()
            seen = Seen()
            await seen.take(consumers, 120)
            assert all(list(by.values()) == [numbered(10)] for by in seen.by_key.values())

    run(test())
