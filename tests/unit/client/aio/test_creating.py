"""Many destinations by one call: a few requests at once, and results in the order of the names."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from antiphon.client.aio.creating import REQUESTS_AT_ONCE, CreationResult
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.destination_frames import NAMES_MAX, RefusedName
from tests.unit.client.fake_server import FakeServer, asynchronous, serving


def topics(count: int) -> list[str]:
    return [f"topic:{at}" for at in range(count)]


def all_made(wish: frames.DestinationsCreate) -> frames.DestinationsCreated:
    return frames.DestinationsCreated(request=wish.request, made=Ranges([(0, len(wish.names))]), refused=())


async def asked(server: FakeServer, count: int) -> list[frames.DestinationsCreate]:
    await server.until(lambda: len(server.creations or ()) == count)
    return list(server.creations or ())


@asynchronous
async def test_the_results_say_name_by_name_what_became_of_it() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.creations = []
        names = ["topic:new", "queue:_own", "topic:old", "price", "queue:other", "x" * 100_000]
        making = asyncio.create_task(connection.admin().create_many(names, channel="b", retention=60))
        (wish,) = await asked(server, 1)
        assert wish.names == ("topic:new", "topic:old", "queue:other"), "names that cannot be are not sent"
        assert wish.settings == '{"channel": "b", "retention": 60.0}'
        refused = (RefusedName(2, "destination.refused", "it is full"),)
        server.say(frames.DestinationsCreated(request=wish.request, made=Ranges([(0, 1)]), refused=refused))
        results = await making
    assert [result.destination for result in results] == names
    assert [result.outcome for result in results] == ["made", "refused", "exists"] + ["refused"] * 3
    assert results[4] == CreationResult("queue:other", "refused", "destination.refused", "it is full")
    assert {results[at].code for at in (1, 3, 5)} == {"local.invalid_name"}


@asynchronous
async def test_a_few_requests_are_under_way_at_once_and_results_keep_the_order_of_names() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.creations = []
        names = topics(5 * NAMES_MAX + 1)
        making = asyncio.create_task(connection.admin().create_many(iter(names)))
        first = await asked(server, REQUESTS_AT_ONCE)
        assert [len(wish.names) for wish in first] == [NAMES_MAX] * REQUESTS_AT_ONCE
        for wish in reversed(first[1:]):
            server.say(all_made(wish))
        # The results of the first are the first, so the next request waits for it.
        assert len(server.creations) == REQUESTS_AT_ONCE
        server.say(all_made(first[0]))
        for wish in (await asked(server, 6))[REQUESTS_AT_ONCE:]:
            server.say(all_made(wish))
        results = await making
        assert results == [CreationResult(name, "made") for name in names]
        assert await connection.admin().create_many([]) == []


@asynchronous
async def test_a_request_without_an_answer_is_asked_again_on_the_next_connection() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.creations = []
        making = asyncio.create_task(connection.admin().create_many(topics(NAMES_MAX + 1)))
        before = await asked(server, 2)
        server.drop()
        again = (await asked(server, 4))[2:]
        assert again == before
        for wish in again:
            server.say(all_made(wish))
        assert {result.outcome for result in await making} == {"made"}


@asynchronous
async def test_a_request_that_fails_ends_the_call_and_the_others_are_left_alone() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.creations = []
        making = asyncio.create_task(connection.admin().create_many(topics(2 * NAMES_MAX)))
        first, second = await asked(server, 2)
        server.say(frames.Failed(request=first.request, code="destination.refused", text="no such channel"))
        with pytest.raises(antiphon.DestinationError, match="no such channel"):
            await making
        # Its answer comes all the same, and harms nobody.
        server.say(all_made(second))
        server.creations = None
        assert await connection.admin().create_many(["topic:1"]) == [CreationResult("topic:1", "made")]
        assert await connection.admin().create_many(["topic:1"]) == [CreationResult("topic:1", "exists")]


@asynchronous
async def test_a_server_that_does_not_answer_is_late() -> None:
    async with serving() as server, antiphon.connect(server.url, timeout=0.2) as connection:
        server.creations = []
        with pytest.raises(antiphon.Timeout):
            await connection.admin().create_many(topics(3 * NAMES_MAX))


@pytest.mark.parametrize("names", ["topic:one", [5], [b"topic:one"]])
def test_what_are_no_names_is_refused_at_once(names: object) -> None:
    @asynchronous
    async def call() -> None:
        async with serving() as server, antiphon.connect(server.url) as connection:
            with pytest.raises(antiphon.LocalError):
                await connection.admin().create_many(names)  # type: ignore[arg-type]
            assert server.heard_of(frames.DestinationsCreate) == []

    call()
