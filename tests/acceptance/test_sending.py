"""Sending: an application's own ids, and messages that are not persistent (Jakarta Messaging 7)."""

from __future__ import annotations

import asyncio
import time

import pytest

import antiphon
from tests.acceptance.scenes import Broker, bodies, browsed, in_session, row_of
from tests.client_scenes import numbered, run

# -- ids of the application ------------------------------------------------------------------------


@pytest.mark.parametrize("destination", ["queue:ids.{}", "topic:ids.{}"])
def test_a_message_with_an_id_is_stored_once_whichever_session_sends_it(
    broker: Broker, destination: str
) -> None:
    async def test() -> None:
        name = destination.format("once")
        async with in_session(broker) as one, in_session(broker) as other:
            consumer = await one.consumer(name)
            first = await one.producer(name).send(b"first", dedup_id="order 1")
            again = await other.producer(name).send(b"again", dedup_id=b"order 1")
            assert (first.duplicate, again.duplicate) == (False, True)
            assert (again.channel, again.sequence) == (first.channel, first.sequence)
            assert again.message_id != first.message_id
            await other.producer(name).send(b"another", dedup_id="order 2")
            await other.producer(name).send(b"without")
            assert await bodies(consumer, 3) == [b"first", b"another", b"without"]
            row = await row_of(broker, name, lambda row: bool(row["duplicates"]))
            assert (row["published"], row["duplicates"]) == (3, 1)

    run(test())


def test_of_many_messages_exactly_those_with_new_ids_are_stored(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as other:
            rows = [antiphon.Row(b"%d" % at, dedup_id=str(at)) for at in range(5_000)]
            await one.producer("queue:ids.many").send_many(rows[::3])
            receipts = await other.producer("queue:ids.many").send_many(rows)
            assert [receipt.duplicate for receipt in receipts] == [at % 3 == 0 for at in range(5_000)]
            assert receipts.duplicates == len(rows[::3])
            places = [receipt.sequence for receipt in receipts]
            assert len(set(places)) == 5_000
            got = await bodies(other.consumer("queue:ids.many"), 5_000)
            assert sorted(got, key=int) == [b"%d" % at for at in range(5_000)]

    run(test())


def test_an_id_is_remembered_after_its_message_was_consumed_and_for_its_destination_alone(
    broker: Broker,
) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            await session.producer("queue:ids.gone").send(b"x", dedup_id="a")
            assert await bodies(session.consumer("queue:ids.gone"), 1) == [b"x"]
            assert (await session.producer("queue:ids.gone").send(b"y", dedup_id="a")).duplicate
            assert not (await session.producer("queue:ids.elsewhere").send(b"z", dedup_id="a")).duplicate
            assert await browsed(session, "queue:ids.elsewhere") == [b"z"]

    run(test())


def test_an_id_is_forgotten_when_its_window_is_over(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url) as connection, connection.session() as session:
            admin = connection.admin()
            await admin.create("queue:ids.short", dedup_window=2)
            producer = await session.producer("queue:ids.short")
            began = time.monotonic()
            assert not (await producer.send(b"x", dedup_id="a")).duplicate
            while (await producer.send(b"y", dedup_id="a")).duplicate:
                assert time.monotonic() - began < 60
            assert time.monotonic() - began >= 1.9
            await admin.change("queue:ids.short", dedup_window=0)
            assert not (await producer.send(b"z", dedup_id="a")).duplicate

    run(test())


def test_a_rolled_back_message_is_not_remembered_and_a_commit_stores_what_is_new(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, transacted=True) as one, in_session(broker, transacted=True) as other:
            await one.producer("queue:ids.tx").send(b"rolled back", dedup_id="a")
            await one.rollback()
            await one.producer("queue:ids.tx").send(b"late", dedup_id="a")
            await one.producer("queue:ids.tx").send(b"new", dedup_id="b")
            await other.producer("queue:ids.tx").send(b"early", dedup_id="a")
            await other.commit()
            await one.commit()
            async with in_session(broker) as session:
                assert (await session.producer("queue:ids.tx").send(b"x", dedup_id="b")).duplicate
                assert await bodies(session.consumer("queue:ids.tx"), 2) == [b"early", b"new"]

    run(test())


def test_a_dead_message_that_is_sent_back_does_not_meet_its_own_id(broker: Broker) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url) as connection,
            connection.session(ack="individual") as session,
        ):
            await session.producer("queue:ids.dead").send(b"x", dedup_id="a")
            consumer = await session.consumer("queue:ids.dead")
            message = await consumer.receive(timeout=60)
            assert message is not None and message.dedup_id == b"a"
            await message.reject()
            await row_of(broker, "queue:ids.dead", lambda row: bool(row["dead"]))
            assert await connection.admin().retry("queue:ids.dead") == 1
            message = await consumer.receive(timeout=60)
            assert message is not None and message.body == b"x"
            await message.ack()

    run(test())


# -- non-persistent messages -----------------------------------------------------------------------


def test_a_non_persistent_send_has_no_place_yet_and_is_delivered_all_the_same(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            producer = await session.producer("queue:np.one")
            receipt = await producer.send(b"x", persistent=False)
            assert receipt.sequence is None and receipt.message_id.startswith("ID:")
            receipts = await producer.send_many([antiphon.Row(b"y", persistent=False)] * 10)
            assert [one.sequence for one in receipts] == [None] * 10
            assert await bodies(session.consumer("queue:np.one"), 11) == [b"x", *[b"y"] * 10]
            assert session.unstored == 0

    run(test())


def test_messages_of_both_kinds_keep_the_order_of_their_sends(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            producer = await session.producer("queue:np.order")
            for at, body in enumerate(numbered(60)):
                await producer.send(body, persistent=at % 3 == 0)
            await asyncio.gather(
                *(producer.send(body, persistent=at % 2 == 0) for at, body in enumerate(numbered(60, 60)))
            )
            assert await bodies(session.consumer("queue:np.order"), 120) == numbered(120)

    run(test())


def test_closing_a_session_waits_until_its_non_persistent_messages_are_stored(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            producer = await session.producer("queue:np.close")
            for body in numbered(200):
                await producer.send(body, persistent=False)
        row = await row_of(broker, "queue:np.close", lambda row: True)
        assert row["messages"] == 200

    run(test())


def test_many_non_persistent_messages_go_through_the_window(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            rows = [antiphon.Row(bytes(100_000), persistent=False) for _ in range(200)]
            assert len(await session.producer("queue:np.window").send_many(rows)) == 200
        row = await row_of(broker, "queue:np.window", lambda row: True)
        assert row["messages"] == 200

    run(test())


def test_a_refused_non_persistent_message_is_counted(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url) as connection, connection.session() as session:
            producer = await session.producer("queue:np.refused")
            await producer.send(b"x")
            await connection.admin().delete("queue:np.refused")
            try:
                await producer.send(b"y", persistent=False)
            except antiphon.PublishRefused:
                # The refusal overtook the word that the message was taken: both are told in one step.
                return
            await session.close()
            assert session.unstored == 1

    run(test())
