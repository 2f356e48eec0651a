"""What an application sees of flow control, and of lazy acknowledgements."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from tests.unit.client.fake_server import CHANNEL, FakeServer, asynchronous, serving

QUEUE = "queue:a"


def say_blocked(server: FakeServer, blocked: bool) -> None:
    server.say(frames.FlowState(channel=CHANNEL, blocked=blocked, reason="the disk is full" * blocked))


async def block(server: FakeServer, connection: antiphon.Connection) -> None:
    """Return when the client has heard that the channel is blocked."""
    say_blocked(server, True)
    server.answers = {"status": "{}"}
    await connection.admin().status()


@asynchronous
async def test_a_producer_is_blocked_when_its_window_is_full() -> None:
    async with serving(window_bytes=10_000) as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = session.producer(QUEUE)
        assert not producer.is_blocked, "nothing is known of one that is not open"
        await producer
        assert not producer.is_blocked
        server.hold()
        sends = [asyncio.create_task(producer.send(bytes(2_000))) for _ in range(4)]
        await server.until(lambda: len(server.commands) == 1)
        assert not producer.is_blocked
        sends.append(asyncio.create_task(producer.send(bytes(2_000))))
        await asyncio.sleep(0)
        assert producer.is_blocked, "what was gathered and did not leave yet counts too"
        assert await producer.try_send(b"x") is None
        unblocked = asyncio.create_task(producer.unblocked())
        server.release()
        await unblocked
        assert not producer.is_blocked
        receipt = await producer.try_send(b"x", properties={"n": 1}, priority=7)
        assert receipt is not None and receipt.sequence == 6
        await asyncio.gather(*sends)


@asynchronous
async def test_a_producer_is_blocked_when_the_server_says_so() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await block(server, connection)
        with pytest.raises(antiphon.PublishRefused, match=r"never sent: .* within 0\.05 s: the disk is full"):
            await producer.send(b"x", timeout=0.05)
        assert producer.is_blocked
        assert await producer.try_send(b"x") is None
        with pytest.raises(antiphon.Timeout, match=r"blocked for 0\.01 s: the disk is full"):
            await producer.unblocked(timeout=0.01)
        sending = asyncio.create_task(producer.send(b"y"))
        await asyncio.sleep(0)
        say_blocked(server, False)
        await producer.unblocked(timeout=5)
        assert (await sending).sequence == 1


@asynchronous
async def test_what_had_left_before_the_channel_was_blocked_is_uncertain_and_says_why() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.hold()
        sending = asyncio.create_task(producer.send(b"x", timeout=0.3))
        await server.until(lambda: len(server.commands) == 1)
        say_blocked(server, True)
        with pytest.raises(antiphon.PublishUncertain, match=r"within 0\.3 s: the disk is full"):
            await sending


@asynchronous
async def test_opening_is_a_part_of_the_time_that_a_send_has() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        server.is_mute = True
        sending = asyncio.create_task(session.producer(QUEUE).send(b"x", timeout=0.3))
        say_blocked(server, True)
        with pytest.raises(antiphon.Timeout, match=r"queue:a could not be opened within 0\.3 s: the disk"):
            await sending


@asynchronous
async def test_closing_does_not_wait_for_a_channel_that_takes_nothing() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        await session.producer(QUEUE)
        await block(server, connection)
        server.is_mute = True
        async with asyncio.timeout(8):
            await session.close()


@asynchronous
async def test_acknowledgements_go_on_while_publishing_is_blocked() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"a", b"b"])
        session = await connection.session()
        producer = await session.producer(QUEUE)
        consumer = await session.consumer(QUEUE)
        await block(server, connection)
        waiting = asyncio.create_task(producer.send(b"c"))
        await consumer.receive_many(2)
        await server.until(lambda: server.acknowledged == Ranges([(1, 3)]))
        assert not waiting.done()
        say_blocked(server, False)
        await waiting


@asynchronous
async def test_whoever_waits_to_be_unblocked_learns_that_the_connection_is_over() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await block(server, connection)
        with pytest.raises(antiphon.PublishRefused):
            await producer.send(b"x", timeout=0.05)
        unblocked = asyncio.create_task(producer.unblocked())
        await asyncio.sleep(0)
        server.drop()
        with pytest.raises(antiphon.NotConnected):
            await unblocked


@asynchronous
async def test_a_send_nobody_waits_for_any_more_does_not_keep_the_session_open() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await block(server, connection)
        with pytest.raises(antiphon.PublishRefused):
            await producer.send(b"x", timeout=0.05)
        await asyncio.wait_for(session.close(), 1)
        assert server.commands == []


# -- acknowledging lazily ----------------------------------------------------------------


@asynchronous
async def test_lazy_acknowledgements_wait_for_others() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"a", b"b", b"c"])
        session = await connection.session(ack="dups_ok")
        assert session.ack == "dups_ok"
        (wish,) = server.heard_of(frames.SessionOpen)
        assert wish.ack_mode is frames.AckMode.DUPS_OK
        consumer = await session.consumer(QUEUE)
        for _ in range(3):
            await consumer.receive()
        # In an auto session this would have hurried them.
        assert await consumer.receive(timeout=0.02) is None
        assert server.acks() == []
        await server.until(lambda: server.acks() == [Ranges([(1, 4)])])


@asynchronous
async def test_closing_a_lazy_session_acknowledges_what_it_was_given() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"a", b"b"])
        async with connection.session(ack="dups_ok") as session:
            async for message in session.consumer(QUEUE):
                if message.sequence == 2:
                    break
        assert server.acks() == [Ranges([(1, 2)])]
