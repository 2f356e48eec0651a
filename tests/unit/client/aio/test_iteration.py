"""`async for` over a consumer, and all the ways to leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from tests.unit.client.fake_server import FakeServer, asynchronous, serving


@asynccontextmanager
async def consuming(
    count: int, ack: Any = "auto"
) -> AsyncIterator[tuple[FakeServer, antiphon.Session, antiphon.Consumer]]:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill("queue:a", [b"%d" % number for number in range(1, count + 1)])
        async with connection.session(ack=ack) as session:
            yield server, session, session.consumer("queue:a")


class Mine(Exception):
    """An exception of the application."""


async def leave_by_break(consumer: antiphon.Consumer) -> None:
    async for message in consumer:
        if message.sequence == 3:
            break


async def leave_by_return(consumer: antiphon.Consumer) -> bytes:
    async for message in consumer:
        if message.sequence == 3:
            return bytes(message.body_bytes)
    raise AssertionError("the loop ended by itself")


async def leave_by_break_in_finally(consumer: antiphon.Consumer) -> None:
    for _ in range(1):
        async for message in consumer:
            try:
                async with asyncio.timeout(5):
                    await asyncio.sleep(0)
                    if message.sequence == 3:
                        break
            finally:
                await asyncio.sleep(0)


async def leave_after_a_handled_exception(consumer: antiphon.Consumer) -> None:
    async for message in consumer:
        try:
            raise Mine
        except Mine:
            if message.sequence == 3:
                break


async def leave_a_generator_by_break(consumer: antiphon.Consumer) -> None:
    async def bodies() -> AsyncIterator[int]:
        async for message in consumer:
            yield message.sequence
            if message.sequence == 3:
                return

    assert [sequence async for sequence in bodies()] == [1, 2, 3]


async def raise_in_the_body(consumer: antiphon.Consumer) -> None:
    async for message in consumer:
        if message.sequence == 3:
            raise Mine


async def raise_in_the_same_function(consumer: antiphon.Consumer) -> None:
    try:
        async for message in consumer:
            if message.sequence == 3:
                raise Mine
    except Mine:
        return


async def raise_deep_inside(consumer: antiphon.Consumer) -> None:
    async def work(sequence: int) -> float:
        await asyncio.sleep(0)
        return 1 / (3 - sequence)

    with suppress(ZeroDivisionError):
        async for message in consumer:
            await work(message.sequence)


async def be_cancelled(consumer: antiphon.Consumer) -> None:
    reached = asyncio.Event()

    async def work() -> None:
        async for message in consumer:
            if message.sequence == 3:
                reached.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_return,
        leave_by_break_in_finally,
        leave_after_a_handled_exception,
        leave_a_generator_by_break,
        raise_in_the_body,
        raise_in_the_same_function,
        raise_deep_inside,
        be_cancelled,
    ],
)
@asynchronous
async def test_the_message_at_which_a_loop_was_left_comes_again(
    leave: Callable[[antiphon.Consumer], Coroutine[Any, Any, Any]],
) -> None:
    async with consuming(5) as (server, session, consumer):
        with suppress(Mine):
            await leave(consumer)
        await consumer.close()
        assert server.acknowledged == Ranges([(1, 3)])
        assert server.heard_of(frames.ConsumerClose)[0].seen_through == 3
        again = await session.consumer("queue:a").receive(timeout=60)
        assert again is not None and (again.sequence, again.redelivered) == (3, True)


@asynchronous
async def test_a_loop_is_done_with_its_own_last_message_and_no_other() -> None:
    async with consuming(5) as (server, session, consumer):
        await leave_by_break(consumer)
        async for message in consumer:
            if message.sequence == 5:
                break
        await session.close()
        assert server.acknowledged == Ranges([(1, 3), (4, 5)])


@asynchronous
async def test_loops_side_by_side_are_each_done_with_their_own() -> None:
    async with consuming(4) as (server, session, consumer):
        slow, quick = aiter(consumer), aiter(consumer)
        for iterator in (slow, quick, quick, quick):
            await anext(iterator)
        await session.close()
        assert server.acknowledged == Ranges([(2, 4)])


@pytest.mark.parametrize("count", [1, 2])
@asynchronous
async def test_a_message_is_acknowledged_when_receive_asks_for_the_next_one(count: int) -> None:
    async with consuming(5) as (server, session, consumer):
        async for message in consumer:
            if message.sequence == 3:
                await (consumer.receive() if count == 1 else consumer.receive_many(count))
                break
        await session.close()
        assert server.acknowledged == Ranges([(1, 4 + count)])


@asynchronous
async def test_a_message_acknowledged_by_hand_does_not_come_again() -> None:
    async with consuming(5) as (server, session, consumer):
        async for message in consumer:
            if message.sequence == 3:
                await message.ack()
                break
        await session.close()
        assert server.acknowledged == Ranges([(1, 4)])


@asynchronous
async def test_an_exception_that_leaves_the_session_leaves_the_message_to_the_next_one() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill("queue:a", [b"1", b"2"])
        with pytest.raises(Mine):
            async with connection.session() as session:
                async for _ in session.consumer("queue:a"):
                    raise Mine
        async with connection.session() as session:
            messages = await session.consumer("queue:a").receive_many(2, timeout=60)
        assert [(message.sequence, message.redelivered) for message in messages] == [(1, True), (2, False)]
        assert server.acknowledged == Ranges([(1, 3)])


@asynchronous
async def test_a_message_is_acknowledged_when_the_next_one_is_asked_for() -> None:
    async with consuming(3) as (server, _, consumer):
        iterator = aiter(consumer)
        await anext(iterator)
        await anext(iterator)
        await server.until(lambda: server.acks() == [Ranges([(1, 2)])])
        await anext(iterator)
        await server.until(lambda: server.acknowledged == Ranges([(1, 3)]))


@asynchronous
async def test_a_message_acknowledged_by_hand_is_not_acknowledged_again() -> None:
    async with consuming(2) as (server, session, consumer):
        async for message in consumer:
            await message.ack()
            assert server.acknowledged.count == message.sequence
            if message.sequence == 2:
                break
        await session.close()
        assert server.acks() == [Ranges([(1, 2)]), Ranges([(2, 3)])]


@asynchronous
async def test_in_a_client_session_the_loop_acknowledges_nothing() -> None:
    async with consuming(3, ack="client") as (server, _, consumer):
        async for message in consumer:
            if message.sequence == 3:
                break
        assert server.acks() == []
        await message.ack()
        assert server.acks() == [Ranges([(1, 4)])]


@asynchronous
async def test_the_loop_ends_when_the_consumer_is_closed() -> None:
    async with consuming(2) as (server, _, consumer):
        seen = []
        async for message in consumer:
            seen.append(message.sequence)
            if message.sequence == 2:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, consumer.close())
        assert seen == [1, 2]
        await server.until(lambda: server.acknowledged == Ranges([(1, 3)]))


@asynchronous
async def test_the_loop_raises_when_the_connection_is_lost() -> None:
    async with consuming(1) as (server, _, consumer):
        with pytest.raises(antiphon.NotConnected):
            async for _ in consumer:
                server.drop()
        with pytest.raises(antiphon.NotConnected):
            await consumer.close()  # an acknowledgement was not confirmed
