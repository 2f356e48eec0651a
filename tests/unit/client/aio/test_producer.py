"""Sending one message, or many at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import antiphon
from antiphon.batch import Batch
from antiphon.wire import frames
from antiphon.wire.commands import CommandHeader, ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import CHANNEL, SESSION, FakeServer, asynchronous, serving


def outcome(code: OutcomeCode, text: str = "") -> Any:
    return lambda header, payload: ConfirmItem(header.number, header.count, code, 0, text)


async def open_producer(server: FakeServer, name: str = "queue:a") -> antiphon.Producer:
    connection = await antiphon.connect(server.url, reconnect=0)
    return await (await connection.session()).producer(name)


@asynchronous
async def test_a_send_returns_where_the_message_stands() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        async with connection.session() as session:
            producer = session.producer("queue:a")
            assert (await producer.send(b"one")).sequence == 1
            receipt = await producer.send(b"two")
        assert (receipt.channel, receipt.sequence) == (CHANNEL, 2)
        assert receipt.message_id == f"ID:{SESSION:032x}-2@{CHANNEL}"


@asynchronous
async def test_everything_said_about_a_message_is_carried() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        await producer.send(
            {"total": 12.5, "items": [1, None]},
            properties={"region": "EU", "n": antiphon.Int8(5)},
            priority=7,
            key="k",
            correlation_id="c",
            reply_to="queue:replies",
            type="order",
            persistent=False,
        )
        ((_, batch),) = server.published()
        assert batch.body(0) == {"total": 12.5, "items": [1, None]}
        assert batch.properties(0) == {"region": "EU", "n": 5}
        assert type(batch.properties(0)["n"]) is antiphon.Int8
        assert (batch.priority(0), batch.key(0), batch.correlation_id(0)) == (7, "k", "c")
        assert (batch.reply_to(0), batch.type(0), batch.is_persistent(0)) == ("queue:replies", "order", False)
        assert batch.timestamp_ms(0) > 1_700_000_000_000


@pytest.mark.parametrize("body", [b"", b"x", "text", {"a": [1]}, [1, "b"], None])
@asynchronous
async def test_a_body_arrives_as_the_type_it_was_sent_as(body: Any) -> None:
    async with (
        serving() as server,
        antiphon.connect(server.url, reconnect=0) as connection,
        connection.session() as session,
    ):
        await session.producer("queue:a").send(body)
        message = await session.consumer("queue:a").receive(timeout=60)
        assert message is not None
        assert message.body == body
        assert type(message.body) is type(body)


@asynchronous
async def test_a_thousand_sends_at_once_are_few_frames_in_their_order() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        receipts = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(1_000)))
        assert len(server.commands) == 1
        assert [receipt.sequence for receipt in receipts] == list(range(1, 1_001))
        bodies = [body for _, batch in server.published() for body in batch.bodies()]
        assert bodies == [b"%d" % number for number in range(1_000)]


@asynchronous
async def test_sends_that_differ_in_kind_keep_their_order() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        await asyncio.gather(
            producer.send(b"0"), producer.send(b"1", priority=9), producer.send("2"), producer.send(b"3")
        )
        ((_, batch),) = server.published()
        assert [bytes(batch.body_bytes(row)) for row in range(4)] == [b"0", b"1", b"2", b"3"]


@asynchronous
async def test_two_producers_for_one_destination_keep_their_order() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        one, other = await session.producer("queue:a"), await session.producer("queue:a")
        await asyncio.gather(one.send(b"0"), other.send(b"1"), one.send(b"2"), other.send_many([b"3", b"4"]))
        assert [body for _, batch in server.published() for body in batch.bodies()] == [
            b"0", b"1", b"2", b"3", b"4",
        ]  # fmt: skip


@asynchronous
async def test_large_sends_at_once_become_several_batches() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        await asyncio.gather(*(producer.send(bytes(100_000)) for _ in range(10)))
        counts = [batch.count for _, batch in server.published()]
        assert sum(counts) == 10
        assert counts == [3, 3, 3, 1]


@asynchronous
async def test_sends_gather_while_there_is_no_room() -> None:
    async with serving(window_bytes=1_000) as server:
        producer = await open_producer(server)
        server.hold()
        sends = [asyncio.create_task(producer.send(bytes(900)))]
        await server.until(lambda: len(server.commands) == 1)
        for body in (b"1", b"2", b"3"):
            sends.append(asyncio.create_task(producer.send(body)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(server.commands) == 1
        server.release()
        await asyncio.gather(*sends)
        assert [batch.count for _, batch in server.published()] == [1, 3]


@asynchronous
async def test_what_waits_does_not_overtake_what_waits_before_it() -> None:
    async with serving(window_bytes=1_000) as server:
        producer = await open_producer(server)
        server.hold()
        work = [asyncio.create_task(producer.send(bytes(900)))]
        await server.until(lambda: len(server.commands) == 1)
        for start in (producer.send(b"1"), producer.send_many([b"2", b"3"]), producer.send(b"4")):
            work.append(asyncio.ensure_future(start))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        server.release()
        await asyncio.gather(*work)
        bodies = [body for _, batch in server.published() for body in batch.bodies()]
        assert bodies[1:] == [b"1", b"2", b"3", b"4"]


# -- what may not be sent --------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "options", "error"),
    [
        (object(), {}, antiphon.InvalidMessage),
        ({1: 2}, {}, antiphon.InvalidMessage),
        (b"x", {"properties": {"a b": 1}}, antiphon.InvalidName),
        (b"x", {"properties": {"NULL": 1}}, antiphon.InvalidName),
        (b"x", {"properties": {"a": 1 << 63}}, antiphon.InvalidMessage),
        (b"x", {"properties": {"a": [1]}}, antiphon.InvalidMessage),
        (b"x", {"priority": 10}, antiphon.InvalidMessage),
        (b"x", {"key": 5}, antiphon.InvalidMessage),
        (b"x", {"timeout": -1}, antiphon.LocalError),
        (bytes((1 << 20) + 1), {}, antiphon.MessageTooLarge),
        ("x" * ((1 << 20) + 1), {}, antiphon.MessageTooLarge),
        (b"x", {"properties": {"a": "x" * 65_537}}, antiphon.MessageTooLarge),
    ],
)
@asynchronous
async def test_what_may_not_be_sent_is_refused_before_anything_is(
    body: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = connection.session().producer("queue:a")
        if "timeout" not in options:
            with pytest.raises(error):
                await producer.send(body, **options)
            assert server.heard_of(frames.DestinationOpen) == [], "not even the destination was made"
        await producer
        good = asyncio.create_task(producer.send(b"good"))
        with pytest.raises(error):
            await producer.send(body, **options)
        await good
        assert [batch.bodies() for _, batch in server.published()] == [[b"good"]]


@pytest.mark.parametrize(
    "name", ["orders", "queue:", "queue: a", "queue:a\n", "queue:" + "x" * 256, "queue:_DMQ"]
)
@asynchronous
async def test_a_bad_name_is_refused_at_once(name: str) -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        with pytest.raises(antiphon.InvalidName):
            connection.session().producer(name)
        assert len(server.heard) == 1


@asynchronous
async def test_a_destination_that_is_refused_says_so_when_the_producer_opens_and_may_be_tried_again() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        server.refusals[frames.DestinationOpen] = ("local.access_denied", "not yours")
        producer = session.producer("queue:a")
        with pytest.raises(antiphon.AccessDenied, match="not yours"):
            await producer
        with pytest.raises(antiphon.AccessDenied, match="not yours"):
            await producer.send(b"x")
        server.refusals.clear()
        assert (await producer.send(b"x")).sequence == 1


# -- what goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "error", "match"),
    [
        (OutcomeCode.REFUSED, "the queue is full", antiphon.PublishRefused, "the queue is full"),
        (OutcomeCode.NO_DESTINATION, "", antiphon.PublishRefused, "does not exist"),
        (OutcomeCode.GAP, "", antiphon.PublishRefused, "missing"),
        (OutcomeCode.STALE, "", antiphon.PublishUncertain, "elsewhere"),
        (OutcomeCode.SESSION_UNKNOWN, "", antiphon.PublishUncertain, "expired"),
        (OutcomeCode.TX_ROLLED_BACK, "later", antiphon.TransactionRolledBack, "later"),
    ],
)
@asynchronous
async def test_an_outcome_becomes_its_error(
    code: OutcomeCode, text: str, error: type[Exception], match: str
) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.judge = outcome(code, text)
        results = await asyncio.gather(*(producer.send(b"x") for _ in range(3)), return_exceptions=True)
        for result in results:
            with pytest.raises(error, match=match):
                raise result  # type: ignore[misc]
        assert results[0] is not results[1], "each sender gets an error of its own"


@asynchronous
async def test_a_duplicate_is_as_good_as_the_original() -> None:
    async with serving() as server:
        producer = await open_producer(server)

        def judge(header: CommandHeader, payload: Any) -> ConfirmItem:
            return ConfirmItem(header.number, header.count, OutcomeCode.DUPLICATE, 77)

        server.judge = judge
        assert (await producer.send(b"x")).sequence == 77


@asynchronous
async def test_a_lost_connection_leaves_sends_uncertain_with_their_ids() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        sends = [asyncio.create_task(producer.send(b"x")) for _ in range(2)]
        await server.until(lambda: len(server.commands) == 1)
        server.drop()
        first, second = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(first, antiphon.PublishUncertain)
        assert isinstance(second, antiphon.PublishUncertain)
        assert first.message_id == f"ID:{SESSION:032x}-1@{CHANNEL}"
        assert second.message_ids == (f"ID:{SESSION:032x}-2@{CHANNEL}",)
        with pytest.raises(antiphon.NotConnected):
            await producer.send(b"y")


@asynchronous
async def test_what_never_left_was_certainly_not_stored() -> None:
    async with serving(window_bytes=1_000) as server:
        producer = await open_producer(server)
        server.hold()
        left = asyncio.create_task(producer.send(bytes(900)))
        await server.until(lambda: len(server.commands) == 1)
        waiting = asyncio.create_task(producer.send(bytes(900)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.drop()
        with pytest.raises(antiphon.PublishUncertain):
            await left
        with pytest.raises(antiphon.PublishRefused, match="never sent"):
            await waiting


@pytest.mark.parametrize("timeout", [0.05, timedelta(milliseconds=50)])
@asynchronous
async def test_a_send_without_an_outcome_is_uncertain_in_the_end(timeout: Any) -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        with pytest.raises(antiphon.PublishUncertain, match=r"not known within 0\.05 s") as uncertain:
            await producer.send(b"x", timeout=timeout)
        assert uncertain.value.message_id == f"ID:{SESSION:032x}-1@{CHANNEL}"
        server.release()
        assert (await producer.send(b"y")).sequence == 2, "the late outcome does no harm"


@asynchronous
async def test_a_send_that_found_no_room_in_time_is_not_sent_later() -> None:
    async with serving(window_bytes=1_000) as server:
        producer = await open_producer(server)
        server.hold()
        first = asyncio.create_task(producer.send(bytes(900)))
        await server.until(lambda: len(server.commands) == 1)
        with pytest.raises(antiphon.PublishRefused, match="never sent"):
            await producer.send(bytes(900), timeout=0.05)
        server.release()
        await first
        await producer.send(b"after")
        assert [batch.bodies() for _, batch in server.published()][1:] == [[b"after"]]


@asynchronous
async def test_different_timeouts_do_not_share_a_fate() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        patient = asyncio.create_task(producer.send(b"patient"))
        await asyncio.sleep(0)
        with pytest.raises(antiphon.PublishUncertain):
            await producer.send(b"hasty", timeout=0.05)
        assert not patient.done()
        server.release()
        assert (await patient).sequence == 1


@asynchronous
async def test_a_cancelled_send_disturbs_nobody() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(3)]
        await server.until(lambda: len(server.commands) == 1)
        sends[1].cancel()
        await asyncio.sleep(0)
        server.release()
        assert (await sends[0]).sequence == 1
        assert (await sends[2]).sequence == 3


@asynchronous
async def test_a_closed_producer_sends_nothing() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        async with producer:
            await producer.send(b"x")
        with pytest.raises(antiphon.LocalError, match="closed"):
            await producer.send(b"y")


@asynchronous
async def test_two_outcomes_for_one_batch_reach_the_right_senders() -> None:
    async with serving() as server:
        producer = await open_producer(server)
        server.hold()
        sends = [asyncio.create_task(producer.send(b"x")) for _ in range(3)]
        await server.until(lambda: len(server.commands) == 1)
        items = (
            ConfirmItem(1, 1, OutcomeCode.DUPLICATE, 5),
            ConfirmItem(2, 1, OutcomeCode.REFUSED, 0, "full"),
            ConfirmItem(3, 1, OutcomeCode.APPLIED, 9),
        )
        server.say(frames.Confirm(session=SESSION, channel=CHANNEL, items=items))
        first, second, third = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(first, antiphon.Receipt) and first.sequence == 5
        assert isinstance(second, antiphon.PublishRefused)
        assert isinstance(third, antiphon.Receipt) and third.sequence == 9


def test_batches_of_sends_are_what_the_builder_would_make() -> None:
    """The fast path for bytes against the general one."""
    from antiphon.batch import BatchBuilder

    builder = BatchBuilder()
    for body in (b"a", b"bc"):
        builder.add(body, timestamp_ms=5)
    assert builder.build(9, 1) == Batch.of_bodies([b"a", b"bc"], 9, 1, 5)


@asynchronous
async def test_two_channels_may_use_the_same_id_for_different_destinations() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.places = {"queue:x": "b"}
        session = await connection.session()
        here, there = await session.producer("queue:a"), await session.producer("queue:x")
        assert server.destination("queue:a") == server.destination("queue:x")
        receipts = await asyncio.gather(here.send(b"1"), there.send(b"2"))
        assert [receipt.channel for receipt in receipts] == ["a", "b"]
        assert sorted(frame.channel for frame in server.heard_of(frames.Command)) == ["a", "b"]
