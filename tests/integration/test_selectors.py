"""Selectors with a real server: who gets which messages, and what stays for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.errors import InvalidSelector, SubscriptionInUse
from tests.processes import Server
from tests.processes import antiphon as command

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("selectors") / "data") as running:
        yield running


@asynccontextmanager
async def in_session(
    server: Server, ack: Any = "auto", client_id: str | None = None
) -> AsyncIterator[antiphon.Session]:
    async with (
        antiphon.connect(server.url, client_id=client_id) as connection,
        connection.session(ack=ack) as session,
    ):
        yield session


async def send(session: antiphon.Session, destination: str, count: int, first: int = 0) -> None:
    """Messages whose body is their number; every third is of region EU, every hundredth is rare."""
    producer = await session.producer(destination)
    sends = []
    for number in range(first, first + count):
        region = "EU" if number % 3 == 0 else "US"
        properties = {"region": region, "n": number, "rare": number % 100 == 7}
        sends.append(producer.send(b"%d" % number, properties=properties))
    await asyncio.gather(*sends)


async def numbers(consumer: antiphon.Consumer, count: int) -> list[int]:
    messages = await consumer.receive_many(count, timeout=WAIT_S)
    return [int(message.body) for message in messages]  # type: ignore[arg-type]


def test_a_consumer_of_a_queue_gets_what_matches_and_the_rest_stays(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            await send(session, "queue:regions", 900)
            european = await session.consumer("queue:regions", selector="region = 'EU'")
            assert await numbers(european, 300) == list(range(0, 900, 3))
            assert await european.receive(timeout=0) is None
            left = await session.consumer("queue:regions")
            assert await numbers(left, 600) == [n for n in range(900) if n % 3]
            await left.close()
            await send(session, "queue:regions", 3, first=900)
            assert await numbers(european, 1) == [900]

    asyncio.run(run())


def test_one_match_in_a_hundred_is_found_behind_a_long_backlog(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            await send(session, "queue:rare", 5_000)
            rare = await session.consumer("queue:rare", selector="rare AND n > 4000")
            assert await numbers(rare, 10) == list(range(4007, 5000, 100))

    asyncio.run(run())


def test_consumers_with_and_without_selectors_share_a_queue(server: Server) -> None:
    async def run() -> None:
        async with in_session(server, ack="individual") as session:
            await send(session, "queue:shared", 300)
            consumers = [
                await session.consumer("queue:shared", 20, selector=text)
                for text in ("region = 'EU'", "region = 'EU'", "n >= 200", None)
            ]
            seen: list[list[int]] = [[] for _ in consumers]
            async with asyncio.timeout(WAIT_S):
                while sum(map(len, seen)) < 300:
                    for consumer, mine in zip(consumers, seen, strict=True):
                        for message in await consumer.receive_many(10, timeout=0):
                            mine.append(int(message.body))  # type: ignore[arg-type]
                            await message.ack()
            assert sorted(number for mine in seen for number in mine) == list(range(300))
            assert all(number % 3 == 0 for number in seen[0] + seen[1])
            assert all(number >= 200 for number in seen[2])
            assert all(mine == sorted(mine) for mine in seen), "each gets its messages in order"

    asyncio.run(run())


def test_what_was_given_back_matches_again(server: Server) -> None:
    async def run() -> None:
        async with in_session(server, ack="client") as session:
            await send(session, "queue:back", 30)
            consumer = await session.consumer("queue:back", selector="region = 'EU'")
            assert await numbers(consumer, 10) == list(range(0, 30, 3))
            await session.recover()
            messages = await consumer.receive_many(10, timeout=WAIT_S)
            assert [message.delivery_count for message in messages] == [2] * 10

    asyncio.run(run())


@pytest.mark.parametrize("durable", [None, "audit"])
def test_a_subscription_with_a_selector_has_no_backlog_of_what_it_does_not_want(
    server: Server, durable: str | None
) -> None:
    async def run() -> None:
        topic = f"topic:prices{durable}"
        async with (
            in_session(server, client_id=f"desk{durable}") as session,
            antiphon.connect(server.url) as watching,
        ):
            consumer = await session.consumer(topic, selector="region = 'EU'", durable=durable)
            await send(session, topic, 300)
            assert await numbers(consumer, 100) == list(range(0, 300, 3))
            async with asyncio.timeout(WAIT_S):
                while True:
                    rows = await watching.admin().destinations()
                    row = next(row for row in rows if row["name"] == topic)
                    if row["subscriptions"][0]["backlog"] == 0:
                        break
            assert row["acknowledged"] == 100, "what was skipped is not acknowledged"

    asyncio.run(run())


def test_a_durable_subscription_keeps_its_selector_while_nobody_consumes_it(server: Server) -> None:
    async def run() -> None:
        async with in_session(server, client_id="night") as session:
            async with session.consumer("topic:night", selector="rare", durable="shift"):
                pass
            await send(session, "topic:night", 300)
            async with session.consumer("topic:night", selector="rare", durable="shift") as consumer:
                assert await numbers(consumer, 3) == [7, 107, 207]

    asyncio.run(run())


def test_another_selector_begins_a_durable_subscription_anew_unless_it_is_in_use(server: Server) -> None:
    async def run() -> None:
        async with (
            antiphon.connect(server.url, client_id="anew") as connection,
            connection.session() as session,
            connection.session() as other,
        ):
            consumer = await session.consumer("topic:anew", selector="region = 'EU'", durable="shift")
            for one in (session, other):
                with pytest.raises(SubscriptionInUse):
                    await one.consumer("topic:anew", selector="region = 'US'", durable="shift")
            await send(session, "topic:anew", 3)
            assert await numbers(consumer, 1) == [0]
            await consumer.close()
            await send(session, "topic:anew", 3, first=10)
            american = await other.consumer("topic:anew", selector="region = 'US'", durable="shift")
            await send(session, "topic:anew", 3, first=20)
            assert await numbers(american, 2) == [20, 22]

    asyncio.run(run())


def test_browsing_with_a_selector_shows_what_matches(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            await send(session, "queue:browsed", 30)
            seen = [int(m.body) async for m in session.browse("queue:browsed", selector="n >= 27 OR rare")]
            assert seen == [7, 27, 28, 29]
            assert len([m async for m in session.browse("queue:browsed", selector=" ")]) == 30

    asyncio.run(run())


def test_what_is_no_selector_is_refused_with_its_place(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            for destination in ("queue:refused", "topic:refused"):
                with pytest.raises(InvalidSelector, match="column 6") as caught:
                    session.consumer(destination, selector="n >= ")
                assert caught.value.position == 5
            with pytest.raises(InvalidSelector):
                session.browse("queue:refused", selector="n LIKE 5")

    asyncio.run(run())


def test_the_command_line_selects(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            await send(session, "queue:told", 9)

    asyncio.run(run())
    url = ("--url", server.url)
    browsed = command("browse", "queue:told", "--selector", "region = 'EU'", "--json", *url)
    assert [json.loads(line)["properties"]["n"] for line in browsed.stdout.splitlines()] == [0, 3, 6]
    received = command("receive", "queue:told", "--selector", "region = 'EU'", "--count", "3", *url)
    assert received.stdout.split() == ["0", "3", "6"]
    refused = command("receive", "queue:told", "--selector", "region =", *url)
    assert refused.returncode != 0
    assert "column 9" in refused.stderr
