"""Who gets how many of the messages that several workers could take, with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.client.core.consumer import FIRST_MESSAGES
from tests.client_scenes import numbered, run
from tests.processes import Server

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fair") / "data") as running:
        yield running


@asynccontextmanager
async def in_session(server: Server, ack: Any = "auto") -> AsyncIterator[antiphon.Session]:
    async with antiphon.connect(server.url) as connection, connection.session(ack=ack) as session:
        yield session


async def given_out(server: Server, name: str, condition: Callable[[int], bool]) -> int:
    """How many messages of a queue are with consumers, asked until it is as the condition says."""
    async with antiphon.connect(server.url) as connection, asyncio.timeout(WAIT_S):
        admin = connection.admin()
        while True:
            rows = await admin.destinations()
            count = sum(row["in_flight"] for row in rows if row["name"] == name)
            if condition(count):
                return int(count)


async def store(server: Server, name: str, count: int) -> None:
    async with in_session(server) as session:
        await (await session.producer(name)).send_many(numbered(count))


# -- shares ----------------------------------------------------------------------------------------


def test_four_idle_workers_share_what_came_at_once(server: Server) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            workers = []
            for _ in range(4):
                session = await stack.enter_async_context(in_session(server, ack="individual"))
                workers.append(await session.consumer("queue:shares"))
            await store(server, "queue:shares", 500)
            await given_out(server, "queue:shares", lambda count: count == 4 * FIRST_MESSAGES)
            taken = [0] * 4
            while sum(taken) < 500:
                for at, worker in enumerate(workers):
                    message = await worker.receive(timeout=0)
                    if message is not None:
                        taken[at] += 1
                        await message.ack()
            assert max(taken) <= 0.6 * 500 and min(taken) > 0, taken

    run(work())


def test_the_first_of_four_workers_does_not_take_the_whole_backlog(server: Server) -> None:
    async def work() -> None:
        await store(server, "queue:backlog", 500)
        async with AsyncExitStack() as stack:
            taken = []
            for _ in range(4):
                session = await stack.enter_async_context(in_session(server, ack="individual"))
                worker = await session.consumer("queue:backlog")
                taken.append(await worker.receive(timeout=WAIT_S))
            assert None not in taken, "each of them found something to do"
            assert (
                await given_out(server, "queue:backlog", lambda count: count >= 4) <= 4 * 2 * FIRST_MESSAGES
            )

    run(work())


# -- one at a time ---------------------------------------------------------------------------------


def test_a_slow_worker_without_prefetch_holds_exactly_one(server: Server) -> None:
    async def work() -> None:
        async with in_session(server) as slow, in_session(server) as quick:
            lazy = await slow.consumer("queue:one", prefetch=0)
            busy = await quick.consumer("queue:one", prefetch=0)
            await store(server, "queue:one", 100)
            assert await given_out(server, "queue:one", lambda _: True) == 0, "nobody has asked yet"
            async for message in lazy:
                held = message.sequence
                await given_out(server, "queue:one", lambda count: count == 1)
                rest = [await busy.receive(timeout=WAIT_S) for _ in range(99)]
                assert held not in [one.sequence for one in rest if one is not None]
                assert None not in rest, "the quick one got all the others"
                assert await busy.receive(timeout=0) is None
                break

    run(work())


def test_what_a_call_that_was_given_up_had_asked_for_goes_to_others(server: Server) -> None:
    async def work() -> None:
        async with in_session(server) as first, in_session(server) as second:
            impatient = await first.consumer("queue:given-up", prefetch=0)
            assert await impatient.receive(timeout=0.05) is None
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(impatient.receive(), 0.05)
            other = await second.consumer("queue:given-up", prefetch=0)
            await store(server, "queue:given-up", 2)
            for _ in range(2):
                message = await other.receive(timeout=WAIT_S)
                assert message is not None and message.delivery_count == 1
            # It can ask again, and gets what comes then.
            await store(server, "queue:given-up", 1)
            assert await impatient.receive(timeout=WAIT_S) is not None

    run(work())


def test_many_messages_are_received_without_prefetch(server: Server) -> None:
    async def work() -> None:
        async with in_session(server) as session:
            consumer = await session.consumer("queue:many", prefetch=0)
            await store(server, "queue:many", 50)
            some = await consumer.receive_many(20, timeout=WAIT_S)
            rest = await consumer.receive_many(100, timeout=0)
            assert [message.body for message in [*some, *rest]] == numbered(50)

    run(work())


# -- is there a message now? -----------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [None, 0, 1])
def test_a_message_that_is_stored_is_received_without_waiting(server: Server, prefetch: int | None) -> None:
    async def work() -> None:
        name = f"queue:now-{prefetch}"
        async with in_session(server) as session:
            consumer = await session.consumer(name, prefetch=prefetch)
            producer = await session.producer(name)
            for number in range(20):
                assert await consumer.receive(timeout=0) is None
                await producer.send(b"%d" % number)
                message = await consumer.receive(timeout=0)
                assert message is not None and message.body == b"%d" % number
            await producer.send_many(numbered(2_500))
            left = 2_500
            while some := await consumer.receive_many(3_000, timeout=0):
                left -= len(some)
            assert left == 0, "none only when nothing is left"

    run(work())
