"""What Jakarta Messaging 3.1 promises of temporary destinations (6.2.2) and of requests and replies."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, Broker, bodies, in_session, in_two_sessions, row_of
from tests.client_scenes import run

SECONDS = 120.0


def test_anybody_sends_to_a_temporary_queue_and_its_own_connection_consumes(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as stranger, in_two_sessions(broker) as (one, other):
            queue = await one.temporary_queue()
            await stranger.producer(queue).send("by its name")
            assert await bodies(await other.consumer(queue), 1) == ["by its name"], "the same connection"
            with pytest.raises(antiphon.DestinationError, match="only the connection that made it"):
                await stranger.consumer(queue)

    run(test(), SECONDS)


def test_a_temporary_topic_is_subscribed_to_by_its_own_connection_and_not_durably(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as stranger, in_two_sessions(broker, client_id="t") as (one, other):
            topic = await one.temporary_topic()
            consumers = [await one.consumer(topic), await other.consumer(topic)]
            await stranger.producer(topic).send("news")
            for consumer in consumers:
                assert await bodies(consumer, 1) == ["news"]
            with pytest.raises(antiphon.SubscriptionError, match="only the connection that made it"):
                await stranger.consumer(topic)
            with pytest.raises(antiphon.SubscriptionError, match="no subscription to it is durable"):
                await one.consumer(topic, durable="never")

    run(test(), SECONDS)


def test_names_of_temporary_destinations_are_unique_and_nobody_chooses_one(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as other:
            made = await asyncio.gather(*(s.temporary_queue() for s in (one, other) for _ in range(5)))
            assert len(set(made)) == 10 and all(name.startswith("queue:_TEMP.") for name in made)
            async with antiphon.connect(broker.url) as connection:
                with pytest.raises(antiphon.InvalidName):
                    await connection.admin().create("queue:_TEMP.mine.1")
            with pytest.raises(antiphon.DestinationError, match="there is no destination"):
                await one.producer("queue:_TEMP.mine.1").send("nobody is there")

    run(test(), SECONDS)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_temporary_destination_dies_with_its_session_and_its_users_are_told(
    broker: Broker, kind: str
) -> None:
    async def test() -> None:
        async with in_session(broker) as stranger, in_two_sessions(broker) as (one, other):
            made = await (one.temporary_queue() if kind == "queue" else one.temporary_topic())
            producer = await stranger.producer(made)
            await producer.send("in time")
            consumer = await other.consumer(made)
            waiting = asyncio.create_task(consumer.receive(timeout=WAIT_S))
            if kind == "queue":
                first = await waiting
                assert first is not None and first.body == "in time"
                waiting = asyncio.create_task(consumer.receive(timeout=WAIT_S))
            await one.close()
            with pytest.raises(antiphon.DestinationError, match="went with the session that made it"):
                await waiting
            with pytest.raises(antiphon.PublishRefused, match="does not exist any more"):
                await producer.send("too late")
            with pytest.raises(antiphon.DestinationError, match="lived with the session that made it"):
                await stranger.producer(made)

    run(test(), SECONDS)


def test_a_temporary_queue_is_deleted_by_its_own_connection_when_no_consumer_has_it(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as stranger, in_two_sessions(broker) as (one, other):
            queue = await one.temporary_queue()
            consumer = await other.consumer(queue)
            with pytest.raises(antiphon.DestinationInUse):
                await one.delete_temporary(queue)
            await consumer.close()
            with pytest.raises(antiphon.DestinationError, match="only the connection that made it"):
                await stranger.delete_temporary(queue)
            await stranger.producer(queue).send("is still there")
            await one.delete_temporary(queue)
            with pytest.raises(antiphon.DestinationError):
                await stranger.producer(queue)
            with pytest.raises(antiphon.LocalError, match="is not temporary"):
                await one.delete_temporary("queue:orders")

    run(test(), SECONDS)


def test_an_administrator_sees_which_destinations_are_temporary(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            queue = await session.temporary_queue()
            assert (await row_of(broker, queue, lambda row: True))["temporary"]

    run(test(), SECONDS)


def test_many_requests_at_once_get_their_own_replies(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as client, in_session(broker) as server:

            async def serve() -> None:
                async for message in await server.consumer("queue:squares"):
                    await server.reply(message, {"square": message.body["number"] ** 2})

            serving = asyncio.create_task(serve())
            replies = await asyncio.gather(
                *(client.request("queue:squares", {"number": n}, timeout=WAIT_S) for n in range(200))
            )
            assert [reply.body["square"] for reply in replies] == [n * n for n in range(200)]
            async with antiphon.connect(broker.url) as connection:
                rows = await connection.admin().destinations()
            assert len({reply.destination for reply in replies}) == 1, "one temporary queue"
            assert sum(row["name"] == replies[0].destination for row in rows) == 1
            serving.cancel()

    run(test(), SECONDS)


def test_a_request_without_a_reply_ends_in_time_and_a_late_reply_is_dropped(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as client, in_session(broker) as server:
            with pytest.raises(antiphon.Timeout, match="no reply to the request to queue:late"):
                await client.request("queue:late", b"1", timeout=0.3)
            consumer = await server.consumer("queue:late")
            late = await consumer.receive(timeout=WAIT_S)
            assert late is not None and late.reply_to is not None
            await server.reply(late, b"too late")
            asking = asyncio.create_task(client.request("queue:late", b"2", timeout=WAIT_S))
            second = await consumer.receive(timeout=WAIT_S)
            assert second is not None and second.reply_to == late.reply_to
            await server.reply(second, b"in time")
            assert (await asking).body == b"in time"
            await row_of(broker, late.reply_to, lambda row: not row["messages"] and row["acknowledged"] == 2)

    run(test(), SECONDS)


def test_a_reply_to_whoever_is_gone_is_refused_clearly(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as server:
            async with in_session(broker) as client:
                with pytest.raises(antiphon.Timeout):
                    await client.request("queue:gone", b"?", timeout=0.2)
            message = await server.consumer("queue:gone").receive(timeout=WAIT_S)
            assert message is not None
            with pytest.raises(antiphon.DestinationError, match="lived with the session that made it"):
                await server.reply(message, b"!")

    run(test(), SECONDS)


def test_a_transacted_session_asks_nothing_and_replies_with_its_commit(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as client, in_session(broker, transacted=True) as server:
            with pytest.raises(antiphon.LocalError, match="would leave with its commit"):
                await server.request("queue:ledger", b"?")
            asking = asyncio.create_task(client.request("queue:ledger", b"?", timeout=WAIT_S))
            message = await server.consumer("queue:ledger").receive(timeout=WAIT_S)
            assert message is not None
            await server.reply(message, b"booked")
            assert not asking.done()
            await server.commit()
            assert (await asking).body == b"booked"

    run(test(), SECONDS)


def test_a_transacted_worker_goes_on_when_a_requester_to_whom_it_replied_before_is_gone(
    broker: Broker,
) -> None:
    """Of a kept producer the refusal comes at the commit: the reply of the repeat must find it out."""

    async def test() -> None:
        async with in_session(broker, transacted=True) as server:
            consumer = await server.consumer("queue:kept")
            gone: list[str] = []

            async def work(session: antiphon.Session) -> None:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                try:
                    await session.reply(message, "reply")
                except (antiphon.DestinationError, antiphon.PublishRefused):
                    gone.append(message.body)

            async with in_session(broker) as client:
                replies = await client.temporary_queue()
                producer = client.producer("queue:kept")
                await producer.send("first", reply_to=replies)
                await producer.send("second", reply_to=replies)
                await server.run_transaction(work)
                assert await bodies(await client.consumer(replies), 1) == ["reply"] and gone == []
            await server.run_transaction(work)
            assert gone == ["second"]
            await row_of(broker, "queue:kept", lambda row: row["acknowledged"] == 2 and not row["dead"])

    run(test(), SECONDS)
