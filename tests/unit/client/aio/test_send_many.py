"""Sending an iterable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

import antiphon
from antiphon.client.core.publication import GATHERED_BYTES_MAX
from antiphon.wire.commands import CommandHeader, ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import CHANNEL, SESSION, FakeServer, asynchronous, serving


async def open_producer(server: FakeServer) -> antiphon.Producer:
    connection = await antiphon.connect(server.url, reconnect=0)
    return await (await connection.session()).producer("queue:a")


def bodies_of(server: FakeServer) -> list[bytes]:
    return [body for _, batch in server.published() for body in batch.bodies()]


async def slowly(bodies: Iterable[Any]) -> AsyncIterator[Any]:
    for body in bodies:
        yield body


BODIES = [b"%d" % number for number in range(2_000)]
SOURCES: dict[str, Callable[[], Any]] = {
    "a list": lambda: BODIES,
    "a tuple": lambda: tuple(BODIES),
    "an iterator": lambda: iter(BODIES),
    "a generator": lambda: (body for body in BODIES),
    "an async generator": lambda: slowly(BODIES),
    "keys of a dict": lambda: dict.fromkeys(BODIES).keys(),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@asynchronous
async def test_bodies_come_from_anywhere(source: Callable[[], Any]) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        receipts = await producer.send_many(source())
        assert bodies_of(server) == BODIES
        assert len(receipts) == len(BODIES)
        assert [receipt.sequence for receipt in receipts] == list(range(1, 2_001))
        assert receipts[-1].message_id == f"ID:{SESSION:032x}-2000@{CHANNEL}"
        assert len(server.commands) < 10


@asynchronous
async def test_bodies_may_be_of_every_type() -> None:
    mixed: list[Any] = [b"a", "b", {"c": 1}, ["d"], None, bytearray(b"e"), memoryview(b"f")]
    async with serving() as server:
        producer = await open_producer(server)
        await producer.send_many(mixed)
        ((_, batch),) = server.published()
        assert [batch.body(row) for row in range(7)] == [*mixed[:5], b"e", b"f"]


@pytest.mark.parametrize("source", [[], (), iter(()), slowly([])])
@asynchronous
async def test_nothing_is_sent_for_nothing(source: Any) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        assert len(await producer.send_many(source)) == 0
        assert server.commands == []


@asynchronous
async def test_large_bodies_travel_in_batches_that_are_not_too_large() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        await producer.send_many(bytes(200_000) for _ in range(40))
        sizes = [sum(map(len, batch.bodies())) for _, batch in server.published()]
        assert sum(sizes) == 40 * 200_000
        assert max(sizes) <= 2 * GATHERED_BYTES_MAX


@asynchronous
async def test_bodies_of_all_sizes_arrive_whole_and_in_order() -> None:
    sizes = [0, 1 << 20, 5, 700_000, 700_000, 0, 300_000, 17] * 3
    async with serving() as server:
        producer = await open_producer(server)
        await producer.send_many([bytes(size) for size in sizes])
        assert [len(body) for body in bodies_of(server)] == sizes


@asynchronous
async def test_batches_are_pipelined_up_to_the_window() -> None:
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        while taken < 1_000:
            taken += 1
            yield bytes(10_000)

    async with serving(window_bytes=1_000_000) as server:
        producer = await open_producer(server)
        server.hold()
        sending = asyncio.create_task(producer.send_many(source()))
        await server.until(lambda: sum(batch.count for _, batch in server.published()) >= 64)
        for _ in range(50):  # whatever it wants to do, let it
            await asyncio.sleep(0)
        assert taken < 300, "the iterable is read no further than the window reaches"
        server.release()
        assert len(await sending) == 1_000


@asynchronous
async def test_what_a_source_gives_leaves_when_it_pauses() -> None:
    go_on = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"
        await go_on.wait()
        yield b"c"

    async with serving() as server:
        producer = await open_producer(server)
        sending = asyncio.create_task(producer.send_many(source()))
        await server.until(lambda: len(server.commands) == 1)
        assert bodies_of(server) == [b"a", b"b"]
        go_on.set()
        assert len(await sending) == 3


@asynchronous
async def test_a_source_that_pauses_often_is_read_no_further_than_the_window_either() -> None:
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < 300:
            taken += 1
            yield bytes(100)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async with serving(window_bytes=2_000) as server:
        producer = await open_producer(server)
        server.hold()
        sending = asyncio.create_task(producer.send_many(source()))
        await server.until(lambda: len(server.commands) >= 3)
        for _ in range(200):
            await asyncio.sleep(0)
        assert taken < 30
        server.release()
        assert len(await sending) == 300


@pytest.mark.parametrize("bodies", [b"one", "one", bytearray(b"one"), {"a": 1}])
@asynchronous
async def test_a_single_body_is_not_many(bodies: Any) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        with pytest.raises(antiphon.InvalidMessage, match="send_many takes an iterable"):
            await producer.send_many(bodies)


@pytest.mark.parametrize(
    ("bodies", "error"),
    [
        ([b"good", bytes((1 << 20) + 1)], antiphon.MessageTooLarge),
        ([b"x"] * 20_000 + [bytes((1 << 20) + 1)], antiphon.MessageTooLarge),
        (["good", object()], antiphon.InvalidMessage),
        (iter([b"good", 5]), antiphon.InvalidMessage),
    ],
)
@asynchronous
async def test_a_bad_body_among_the_first_stops_everything(bodies: Any, error: type[Exception]) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        with pytest.raises(error):
            await producer.send_many(bodies)
        assert server.commands == []


@pytest.mark.parametrize("wrap", [iter, slowly])
@asynchronous
async def test_a_bad_body_behind_many_good_ones_tells_how_many_are_stored(wrap: Callable[[Any], Any]) -> None:
    bodies: list[Any] = [bytes(1_000)] * 5_000
    bodies[4_000] = object()
    async with serving() as server:
        producer = await open_producer(server)
        with pytest.raises(antiphon.PublishRefused, match="body is of type object") as refused:
            await producer.send_many(wrap(bodies))
        stored = len(bodies_of(server))
        assert 0 < stored <= 4_000
        assert refused.value.confirmed == stored
        assert isinstance(refused.value.__cause__, antiphon.InvalidMessage)


def refuse_from(first: int, code: OutcomeCode) -> Callable[[CommandHeader, Any], ConfirmItem | None]:
    def judge(header: CommandHeader, payload: Any) -> ConfirmItem | None:
        if header.number + header.count <= first:
            return None
        return ConfirmItem(header.number, header.count, code, 0, "no more")

    return judge


@pytest.mark.parametrize("wrap", [list, iter, slowly])
@asynchronous
async def test_a_refusal_tells_how_many_from_the_start_are_stored(wrap: Callable[[Any], Any]) -> None:
    async with serving(window_bytes=40_000) as server:
        producer = await open_producer(server)
        server.judge = refuse_from(100, OutcomeCode.REFUSED)
        with pytest.raises(antiphon.PublishRefused, match="no more") as refused:
            await producer.send_many(wrap([bytes(1_000)] * 1_000))
        assert refused.value.confirmed == server.sequence < 100
        assert len(server.commands) < 40, "nothing more was sent after the refusal"


@asynchronous
async def test_a_lost_connection_tells_what_is_stored_and_what_is_uncertain() -> None:
    async with serving(window_bytes=40_000) as server:
        producer = await open_producer(server)
        await producer.send_many([bytes(1_000)] * 10)
        server.hold()
        sending = asyncio.create_task(producer.send_many([bytes(1_000)] * 1_000))
        await server.until(lambda: len(server.commands) >= 3)
        server.drop()
        with pytest.raises(antiphon.PublishUncertain) as uncertain:
            await sending
        assert uncertain.value.confirmed == 0
        assert uncertain.value.message_id == f"ID:{SESSION:032x}-11@{CHANNEL}"
        numbers = len(uncertain.value.message_ids)
        assert uncertain.value.message_ids[-1] == f"ID:{SESSION:032x}-{10 + numbers}@{CHANNEL}"
        assert numbers < 100


@asynchronous
async def test_a_part_without_an_outcome_is_uncertain_in_the_end() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        with pytest.raises(antiphon.PublishUncertain, match=r"0\.05 s") as uncertain:
            await producer.send_many([b"a", b"b"], timeout=0.05)
        assert len(uncertain.value.message_ids) == 2
        assert uncertain.value.confirmed == 0


@pytest.mark.parametrize("wrap", [iter, slowly], ids=["iterator", "async"])
@pytest.mark.parametrize("good", [0, 10, 5_000])
@asynchronous
async def test_an_iterable_that_fails_is_told_with_how_many_are_stored(
    wrap: Callable[[Any], Any], good: int
) -> None:
    def bodies() -> Iterator[bytes]:
        yield from [b"x"] * good
        raise KeyError("mine")

    async with serving() as server:
        producer = await open_producer(server)
        with pytest.raises(antiphon.PublishRefused, match="mine") as refused:
            await producer.send_many(wrap(bodies()))
        assert isinstance(refused.value.__cause__, KeyError)
        assert refused.value.confirmed == len(bodies_of(server)) <= good
        if wrap is slowly:
            assert refused.value.confirmed == good
        assert (await producer.send(b"y")).sequence == refused.value.confirmed + 1


@asynchronous
async def test_a_cancelled_send_many_sends_nothing_more() -> None:
    async with serving(window_bytes=2_000) as server:
        producer = await open_producer(server)
        server.hold()
        sending = asyncio.create_task(producer.send_many([bytes(1_000)] * 50))
        await server.until(lambda: len(server.commands) >= 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        sent = len(bodies_of(server))
        server.release()
        await producer.send(b"after")
        assert bodies_of(server)[sent:] == [b"after"]
