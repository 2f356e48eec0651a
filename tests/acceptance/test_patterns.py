"""What holds for a subscription to a topic holds for one by a pattern, an extension of Antiphon's."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, Broker, bodies, in_session, in_two_sessions, taken
from tests.client_scenes import run

SECONDS = 120.0


def test_every_subscription_by_a_pattern_has_its_own_copy_in_the_order_of_each_topic(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as one, in_session(broker, "client") as other:
            consumers = [await session.consumer("topic:copies.*", match="glob") for session in (one, other)]
            plain = await one.consumer("topic:copies.a")
            topics = ["topic:copies.a", "topic:copies.b"]
            for n in range(10):
                for topic in topics:
                    await one.producer(topic).send(f"{n}")
            sent = [f"{n}" for n in range(10)]
            assert await bodies(plain, 10) == sent
            for consumer in consumers:
                found = await taken(consumer, 20)
                for topic in topics:
                    assert [message.body for message in found if message.destination == topic] == sent
            await other.recover()
            again = await taken(consumers[1], 20)
            assert all(message.redelivered and message.delivery_count == 2 for message in again)
            await again[-1].ack()
            assert await consumers[0].receive(timeout=0.2) is None

    run(test(), SECONDS)


def test_a_topic_that_is_made_later_brings_its_first_message(broker: Broker) -> None:
    """Also a topic that keeps nothing beyond what its subscriptions need."""

    async def test() -> None:
        async with in_session(broker) as session, antiphon.connect(broker.url) as connection:
            consumer = await session.consumer("topic:later[.][0-9]+", match="regex")
            for n in range(20):
                name = f"topic:later.{n}"
                await connection.admin().create(name, retention="consumed")
                await asyncio.gather(*(session.producer(name).send([n, at]) for at in range(3)))
            found = [message.body for message in await taken(consumer, 60)]
            assert sorted(found) == [[n, at] for n in range(20) for at in range(3)]

    run(test(), SECONDS)


def test_no_local_of_a_pattern_goes_by_the_connection_or_the_client_id(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as stranger, in_two_sessions(broker, client_id="own") as (one, other):
            passing = await one.consumer("topic:local.*", match="glob", no_local=True)
            durable = await one.consumer("topic:local.*", match="glob", no_local=True, durable="kept")
            await other.producer("topic:local.a").send("mine")
            await stranger.producer("topic:local.a").send("theirs")
            await other.producer("topic:local.b").send("mine")
            await stranger.producer("topic:local.b").send("theirs too")
            for consumer in (passing, durable):
                assert sorted(await bodies(consumer, 2)) == ["theirs", "theirs too"]
                assert await consumer.receive(timeout=0.2) is None
            await durable.close()
            await one.unsubscribe("kept")

    run(test(), SECONDS)


def test_a_message_of_a_pattern_dies_as_its_topic_says(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "individual") as session, antiphon.connect(broker.url) as connection:
            admin = connection.admin()
            await admin.create("topic:dies.here", redelivery_limit=1)
            await admin.create("topic:dies.not", redelivery_limit=0)
            consumer = await session.consumer("topic:dies.*", match="glob")
            for name in ("topic:dies.here", "topic:dies.not"):
                await session.producer(name).send(name)
            for _ in range(2):
                await taken(consumer, 2)
                await session.recover()
            (left,) = await taken(consumer, 1)
            assert left.destination == "topic:dies.not"
            await left.reject()
            async with asyncio.timeout(WAIT_S):
                while not (there := await admin.dead("topic:dies.here")):
                    pass
                while not (other := await admin.dead("topic:dies.not")):
                    pass
            assert [row["reason"] for row in there + other] == ["redelivery_limit", "rejected"]

    run(test(), SECONDS)


def test_a_durable_pattern_has_one_consumer_and_accumulates(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="crowd") as session:
            consumer = await session.consumer("topic:crowd.*", match="glob", durable="audit")
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.consumer("topic:crowd.*", match="glob", durable="audit")
            await consumer.close()
            await session.producer("topic:crowd.a").send("1")
            await session.producer("topic:crowd.b").send("2")
        async with in_session(broker, client_id="crowd") as session:
            consumer = await session.consumer("topic:crowd.*", match="glob", durable="audit")
            assert sorted(await bodies(consumer, 2)) == ["1", "2"]
            await consumer.close()
            await session.unsubscribe("audit")

    run(test(), SECONDS)
