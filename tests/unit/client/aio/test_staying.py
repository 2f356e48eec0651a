"""What a closed consumer gave belongs to its session, where the session acknowledges."""

from __future__ import annotations

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import Return, Unsubscribe
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving

QUEUE = "queue:a"


def returned(server: FakeServer) -> list[Return]:
    return [payload for _, payload in server.commands if isinstance(payload, Return)]


@asynchronous
async def test_unacknowledged_messages_stay_with_the_session_and_unseen_ones_go_to_others() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"%d" % number for number in range(10)])
        session = await connection.session(ack="client")
        consumer = await session.consumer(QUEUE, prefetch=4)
        first, second = await consumer.receive_many(2)
        await consumer.close()
        await consumer.close()
        with pytest.raises(antiphon.ConsumerClosed):
            await consumer.receive()
        other = await session.consumer(QUEUE)
        rest = await other.receive_many(8)
        assert sorted(message.body for message in rest) == [b"%d" % number for number in range(2, 10)]
        assert all(message.delivery_count == 1 for message in rest), "they were not counted"
        assert server.heard_of(frames.ConsumerClose) == []
        await second.ack()
        assert server.acknowledged == Ranges([(1, 11)])
        (close,) = server.heard_of(frames.ConsumerClose)
        assert close.consumer == 1
        await first.ack()


@asynchronous
async def test_messages_on_their_way_to_a_closed_consumer_go_back_and_it_gets_no_more_credit() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"0"])
        session = await connection.session(ack="client")
        consumer = await session.consumer(QUEUE, prefetch=10)
        message = await consumer.receive()
        await consumer.close()
        await server.until(lambda: len(server.heard_of(frames.ConsumerDrain)) == 1)
        held = server.consumers[SESSION, 1]
        assert held.messages == held.delivered
        server.fill(QUEUE, [b"1"])
        assert await session.consumer(QUEUE).receive() is not None
        assert message is not None
        await message.ack()
        assert server.heard_of(frames.Credit) == []


@asynchronous
async def test_recover_returns_them_counted() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack="client")
        consumer = await session.consumer(QUEUE)
        await consumer.receive()
        await consumer.close()
        await session.recover()
        assert [command.counted for command in returned(server)] == [True]
        again = await session.consumer(QUEUE).receive()
        assert again is not None and again.delivery_count == 2
        assert len(server.heard_of(frames.ConsumerClose)) == 1


@asynchronous
async def test_closing_the_session_returns_them() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack="client")
        consumer = await session.consumer(QUEUE)
        message = await consumer.receive()
        await consumer.close()
        await session.close()
        assert server.acks() == [] and len(server.heard_of(frames.SessionClose)) == 1
        assert message is not None
        for call in (message.ack, message.reject):
            with pytest.raises(antiphon.SessionClosed, match="comes again"):
                await call()


@asynchronous
async def test_a_subscription_ends_when_its_last_message_is_acknowledged() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session(ack="client")
        consumer = await session.consumer("topic:a")
        server.fill("topic:a", [b"x"])
        message = await consumer.receive()
        await consumer.close()
        assert not any(isinstance(payload, Unsubscribe) for _, payload in server.commands)
        assert message is not None
        await message.reject()
        assert any(isinstance(payload, Unsubscribe) for _, payload in server.commands)


@asynchronous
async def test_in_an_individual_session_they_go_to_others_at_once() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack="individual")
        consumer = await session.consumer(QUEUE)
        await consumer.receive()
        await consumer.close()
        assert len(server.heard_of(frames.ConsumerClose)) == 1


@asynchronous
async def test_a_transaction_keeps_what_its_closed_consumer_gave_and_others_get_the_rest() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill(QUEUE, [b"0", b"1"])
        session = await connection.session(transacted=True)
        consumer = await session.consumer(QUEUE)
        assert await consumer.receive() is not None
        await consumer.close()
        other = await connection.session()
        rest = await other.consumer(QUEUE).receive()
        assert rest is not None and (rest.body, rest.delivery_count) == (b"1", 1)
        assert server.heard_of(frames.ConsumerClose) == []
        await session.commit()
        assert len(server.heard_of(frames.ConsumerClose)) == 1
        assert Ranges([(1, 2)]).first in server.acknowledged
