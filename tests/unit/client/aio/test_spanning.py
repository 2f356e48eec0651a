"""Sending to a destination of several channels, one of which is away, full, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.batch import BatchBuilder
from antiphon.client.aio import parts
from antiphon.client.core.spanning import place_of
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, OutcomeCode, Publish, Return, Unsubscribe
from tests.unit.client.fake_server import FakeServer, asynchronous, serving

NAME = "queue:orders"
HERE, THERE = [next(key for key in map(str, range(99)) if place_of(key, None, 2) == at) for at in (0, 1)]
"""Keys that belong to channels a and b."""


@asynccontextmanager
async def in_session(
    *, sure_ms: int = 0, **options: Any
) -> AsyncIterator[tuple[FakeServer, antiphon.Session]]:
    async with serving(sure_ms=sure_ms) as server:
        server.spans[NAME] = ("a", "b")
        async with (
            antiphon.connect(server.url) as connection,
            connection.session(**options) as session,
        ):
            yield server, session


def block(server: FakeServer, channel: str, *, is_blocked: bool = True) -> None:
    server.say(
        frames.FlowState(channel=channel, blocked=is_blocked, reason="no primary" if is_blocked else "")
    )


async def until_blocked(producer: antiphon.Producer, key: str, is_blocked: bool = True) -> None:
    """Wait until the client has heard it."""
    lane = producer._opening.result
    assert lane is not None
    while lane.would_block(key, None) != is_blocked:
        await lane.link.news()


def sent_to(server: FakeServer) -> list[str]:
    """The channels of all publishes, in the order in which they came."""
    return [frame.channel for frame in server.heard_of(frames.Command)]


@asynchronous
async def test_messages_without_a_key_pass_over_a_channel_that_takes_nothing() -> None:
    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        block(server, "b")
        await until_blocked(producer, THERE)
        assert not producer.is_blocked
        receipts = [await producer.send(b"") for _ in range(4)]
        receipts += await producer.send_many([b""] * 10)
        assert {receipt.channel for receipt in receipts} == {"a"}
        waiting = asyncio.create_task(producer.send(b"", key=THERE))
        assert await producer.try_send(b"", key=THERE) is None
        assert (await producer.send(b"", key=HERE)).channel == "a"
        assert not waiting.done()
        block(server, "b", is_blocked=False)
        assert (await waiting).channel == "b"
        block(server, "a")
        block(server, "b")
        await until_blocked(producer, THERE)
        assert producer.is_blocked
        block(server, "a", is_blocked=False)
        await producer.unblocked(timeout=60)
        block(server, "b", is_blocked=False)


@asynchronous
async def test_a_channel_that_is_away_joins_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAUSE_SECONDS", 0.01)
    async with in_session() as (server, session):
        server.away = {"b"}
        producer = await session.producer(NAME)
        assert [(await producer.send(b"")).channel for _ in range(3)] == ["a"] * 3
        waiting = asyncio.create_task(producer.send(b"", key=THERE))
        many = asyncio.create_task(
            producer.send_many([antiphon.Row(b"", key=key) for key in (HERE, THERE, HERE, THERE)])
        )
        with pytest.raises(antiphon.Timeout, match="channel b of queue:orders was away"):
            await producer.send(b"", key=THERE, timeout=0.05)
        with pytest.raises(antiphon.PublishRefused, match="channel b of queue:orders was away") as refused:
            await producer.send_many([antiphon.Row(b"", key=key) for key in (HERE, THERE)], timeout=0.05)
        assert refused.value.confirmed == 1
        assert not waiting.done() and not many.done()
        server.away = set()
        assert (await waiting).channel == "b"
        assert [receipt.channel for receipt in await many] == ["a", "b", "a", "b"]
        assert {(await producer.send(b"")).channel for _ in range(2)} == {"a", "b"}


@asynchronous
async def test_a_destination_of_which_all_channels_are_away_is_not_opened() -> None:
    async with in_session() as (server, session):
        server.away = {"a", "b"}
        with pytest.raises(antiphon.DestinationUnavailable, match="is away"):
            await session.producer(NAME)


@asynchronous
async def test_sends_of_one_turn_of_the_loop_travel_together() -> None:
    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        for _ in range(2):
            await asyncio.gather(*(producer.send(b"%d" % at) for at in range(20)))
        assert sorted(sent_to(server)) == ["a", "b"]
        await asyncio.gather(*(producer.send(b"", key=key) for key in (HERE, THERE) * 10))
        assert sorted(sent_to(server)[2:]) == ["a", "b"]


@asynchronous
async def test_a_refusal_in_one_channel_says_how_many_are_stored_from_the_start() -> None:
    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        refused = server.destination(f"{NAME} in b")
        server.judge = lambda header, payload: (
            ConfirmItem(header.number, header.count, OutcomeCode.REFUSED, 0, "full")
            if isinstance(payload, Publish) and payload.destination == refused
            else None
        )
        keys = [HERE, HERE, HERE, THERE, HERE, THERE]
        with pytest.raises(antiphon.PublishRefused, match="full") as error:
            await producer.send_many([antiphon.Row(b"", key=key) for key in keys])
        assert error.value.confirmed == 3


@asynchronous
async def test_messages_whose_fate_is_not_known_are_sent_again_in_their_channels() -> None:
    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        server.hold()
        with pytest.raises(antiphon.PublishUncertain) as error:
            await producer.send_many([b"%d" % at for at in range(10)], timeout=0.05)
        assert error.value.confirmed == 0
        assert len(error.value.message_ids) == 10
        assert {id.rpartition("@")[2] for id in error.value.message_ids} == {"a", "b"}
        server.release()
        receipts = await error.value.resend(timeout=60)
        assert sorted(receipt.message_id for receipt in receipts) == sorted(error.value.message_ids)


@asynchronous
async def test_an_iterable_that_fails_leaves_what_came_before_it_stored() -> None:
    def source() -> Iterator[bytes]:
        for at in range(100):
            yield b"%d" % at
        raise ValueError("no more")

    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        with pytest.raises(antiphon.PublishRefused, match="no more") as error:
            await producer.send_many(source())
        stored = sum(header.count for header, _ in server.published())
        assert error.value.confirmed == stored > 0
        with pytest.raises(antiphon.MessageTooLarge):
            await producer.send_many([b"x" * (1 << 21)])


@asynchronous
async def test_a_message_is_sent_again_under_its_id_to_the_channel_that_the_id_names() -> None:
    async with in_session() as (server, session):
        producer = await session.producer(NAME)
        server.answers["session"] = ['{"generation": 1}'] * 2
        for channel in "ab":
            id = f"ID:{9:032x}-5@{channel}"
            receipt = await producer.send(b"", message_id=id)
            assert (receipt.message_id, receipt.channel) == (id, channel)
        with pytest.raises(antiphon.LocalError, match="was sent to channel 'c'; this destination is in a, b"):
            await producer.send(b"", message_id=f"ID:{9:032x}-5@c")


@asynchronous
async def test_a_transaction_knows_no_batches_and_no_former_ids() -> None:
    async with in_session(transacted=True) as (server, session):
        producer = await session.producer(NAME)
        with pytest.raises(antiphon.LocalError, match="nothing is sent under an id"):
            await producer.send(b"", message_id=f"ID:{9:032x}-5@a")

        async def nothing() -> AsyncIterator[Any]:
            return
            yield

        with pytest.raises(antiphon.LocalError, match="outside of transactions"):
            await producer.send_batches(nothing())
        assert server.commands == []


@asynchronous
async def test_a_transaction_is_not_committed_without_messages_for_a_channel_that_was_away() -> None:
    async with in_session(transacted=True) as (server, session):
        server.away = {"b"}
        producer = await session.producer(NAME)
        with pytest.raises(antiphon.PublishRefused, match="channel b of queue:orders was away"):
            await producer.send_many([antiphon.Row(b"", key=key) for key in (HERE, THERE)], timeout=0.05)
        with pytest.raises(antiphon.TransactionRolledBack):
            await session.commit()


@asynchronous
async def test_a_staged_part_is_not_sealed_without_rows_for_a_channel_that_was_away() -> None:
    async with serving() as server:
        server.spans[NAME], server.away = ("a", "b"), {"b"}
        builder = BatchBuilder()
        for key in (HERE, THERE):
            builder.add(b"", key=key, timestamp_ms=1)
        async with (
            antiphon.connect(server.url) as connection,
            connection.staging("nightly") as staging,
            staging.writer(timeout=0.05) as writer,
        ):
            with pytest.raises(antiphon.PublishRefused, match="channel b of queue:orders was away"):
                await writer.write(NAME, builder.build(1, 1))
            with pytest.raises(antiphon.PublishRefused, match="was away"):
                await writer.seal()


# -- consuming -----------------------------------------------------------------------------


def fill(server: FakeServer, channel: str, bodies: list[bytes]) -> None:
    """Put messages into a part."""
    server.fill(f"{NAME} in {channel}", bodies)


@pytest.mark.parametrize("prefetch", [0, 10])
def test_messages_that_wait_for_those_of_another_channel_are_made_sure_of_and_not_given_back(
    prefetch: int,
) -> None:
    """On a busy machine all were given back each time, and in the end fewer came than were asked for."""

    @asynchronous
    async def run() -> None:
        async with in_session(sure_ms=20) as (server, session):
            consumer = await session.consumer(NAME, prefetch=prefetch)
            receiving = asyncio.create_task(consumer.receive_many(3, timeout=60))
            fill(server, "a", [b"1", b"2"])
            checks = len(server.heard_of(frames.ConsumerCheck))
            asyncio.get_running_loop().call_later(0.1, fill, server, "b", [b"3"])
            messages = await receiving
            assert sorted(bytes(message.body_bytes) for message in messages) == [b"1", b"2", b"3"]
            assert len(server.heard_of(frames.ConsumerCheck)) > checks
            assert not [1 for _, payload in server.commands if isinstance(payload, Return)]

    run()


@asynchronous
async def test_a_consumer_that_is_asked_for_again_goes_on_with_the_parts_of_the_one_before() -> None:
    async with in_session() as (server, session):
        first = await session.consumer(NAME, prefetch=10)
        fill(server, "a", [b"1", b"2"])
        message = await first.receive(timeout=60)
        assert message is not None
        del first
        message = await session.consumer(NAME, prefetch=10).receive(timeout=60)
        assert message is not None and message.body == b"2"
        assert len(server.heard_of(frames.ConsumerOpen)) == 2, "one for each part"
        assert [frame.channel for frame in server.heard_of(frames.DestinationOpen)] == ["", "a", "b"]


@asynchronous
async def test_a_consumer_of_a_topic_is_open_only_when_its_subscription_has_begun_everywhere() -> None:
    async with in_session() as (server, session):
        server.spans["topic:prices"] = ("a", "b")
        server.away = {"b"}
        with pytest.raises(antiphon.DestinationUnavailable, match="channel b is away"):
            await session.consumer("topic:prices")
        await server.until(lambda: any(isinstance(one, Unsubscribe) for _, one in server.commands))
        server.away = set()
        await session.consumer("topic:prices")
