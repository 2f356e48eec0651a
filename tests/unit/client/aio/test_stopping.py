"""A connection that is stopped: its consumers give out nothing, and everything else goes on."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from tests.unit.client.aio.test_reconnect import second_peer
from tests.unit.client.fake_server import SESSION, asynchronous, serving

QUEUE = "queue:a"


@asynchronous
async def test_while_it_is_stopped_a_call_that_waits_gets_nothing_and_then_gets_its_message() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await connection.stop()
        assert not connection.is_started
        await session.producer(QUEUE).send(b"x")
        await server.until(lambda: bool(server.consumers[SESSION, 1].holds))
        assert await consumer.receive(timeout=0.01) is None, "its time runs on"
        assert await consumer.receive(timeout=0) is None
        assert not waiting.done()
        await connection.start()
        assert connection.is_started
        message = await waiting
        assert message is not None and message.body == b"x"


@asynchronous
async def test_what_was_sent_ahead_stays_and_comes_in_its_order() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"%d" % number for number in range(5)])
        consumer = await (await connection.session()).consumer(QUEUE)
        assert [message.body for message in await consumer.receive_many(2)] == [b"0", b"1"]
        await connection.stop()
        assert await consumer.receive_many(5, timeout=0.01) == []
        await connection.start()
        assert [message.body for message in await consumer.receive_many(3)] == [b"2", b"3", b"4"]


@asynchronous
async def test_messages_gathered_by_a_call_whose_time_is_over_are_not_lost() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"0", b"1"])
        consumer = await (await connection.session()).consumer(QUEUE)
        gathering = asyncio.create_task(consumer.receive_many(3, timeout=0.05))
        await asyncio.sleep(0)
        await connection.stop()
        assert await gathering == []
        await connection.start()
        assert [message.body for message in await consumer.receive_many(2)] == [b"0", b"1"]
        await server.until(lambda: server.acknowledged == Ranges([(1, 3)]))


@asynchronous
async def test_without_a_prefetch_nothing_is_asked_for_and_what_comes_late_goes_back() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        consumer = await session.consumer(QUEUE, prefetch=0)
        waiting = asyncio.create_task(consumer.receive(timeout=0.05))
        await server.until(lambda: len(server.heard_of(frames.Credit)) == 1)
        await connection.stop()
        server.fill(QUEUE, [b"x"])
        assert await waiting is None
        await server.until(lambda: not server.consumers[SESSION, 1].holds)
        assert await consumer.receive(timeout=0.01) is None
        assert len(server.heard_of(frames.Credit)) == 1
        await connection.start()
        message = await consumer.receive(timeout=5)
        assert message is not None and (message.body, message.delivery_count) == (b"x", 1)


@asynchronous
async def test_a_loop_works_on_its_message_and_waits_with_the_next() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"0", b"1"])
        consumer = await (await connection.session()).consumer(QUEUE)
        seen = []

        async def work() -> None:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 1:
                    await connection.stop()

        working = asyncio.create_task(work())
        await server.until(lambda: server.acks() != [])
        assert seen == [b"0"], "the first is done with"
        await connection.start()
        while len(seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await consumer.close()
        await working


@asynchronous
async def test_a_connection_may_begin_stopped() -> None:
    async with serving() as server:
        connection = antiphon.connect(server.url, reconnect=0, started=False)
        assert not connection.is_started
        with pytest.raises(antiphon.NotConnected):
            await connection.start()
        async with connection:
            server.fill(QUEUE, [b"x"])
            consumer = await (await connection.session()).consumer(QUEUE)
            assert await consumer.receive(timeout=0.01) is None
            await connection.start()
            assert await consumer.receive() is not None


@asynchronous
async def test_it_stays_stopped_on_another_connection() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"x"])
        consumer = await (await connection.session()).consumer(QUEUE)
        await connection.stop()
        await second_peer(server)
        assert await consumer.receive(timeout=0.01) is None
        await connection.start()
        assert await consumer.receive() is not None


@asynchronous
async def test_closing_ends_the_calls_that_wait() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url, reconnect=0)
        server.fill(QUEUE, [b"x"])
        session = await connection.session()
        one, other = await session.consumer(QUEUE), await session.consumer(QUEUE)
        await connection.stop()
        waiting = [asyncio.create_task(consumer.receive()) for consumer in (one, other)]
        await asyncio.sleep(0)
        await one.close()
        with pytest.raises(antiphon.ConsumerClosed):
            await waiting[0]
        await connection.close()
        with pytest.raises(antiphon.ConsumerClosed):
            await waiting[1]
        for call in (connection.stop, connection.start):
            with pytest.raises(antiphon.NotConnected):
                await call()


@asynchronous
async def test_a_lost_connection_ends_the_calls_that_wait() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        consumer = await (await connection.session()).consumer(QUEUE)
        await connection.stop()
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        server.drop()
        with pytest.raises(antiphon.NotConnected):
            await waiting


@asynchronous
async def test_a_rollback_goes_on_and_its_messages_wait() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(transacted=True)
        consumer = await session.consumer(QUEUE)
        assert await consumer.receive() is not None
        await connection.stop()
        await session.rollback()
        assert await consumer.receive(timeout=0.01) is None
        await connection.start()
        again = await consumer.receive()
        assert again is not None and again.delivery_count == 2
        await session.commit()
