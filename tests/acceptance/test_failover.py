"""What Jakarta Messaging 3.1 promises (9.1) holds when the primary is killed in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, bodies, in_session, row_of, taken
from tests.client_scenes import numbered, run
from tests.cluster_processes import ClusterProcess

pytestmark = pytest.mark.long

SECONDS = 200.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("failover"), has_faults=False) as running:
        yield running


async def fail_over(cluster: ClusterProcess) -> None:
    """Kill the primary, wait for another one, and start the killed node again."""
    await cluster.synchronized()
    primary = await cluster.primary()
    cluster.kill(primary)
    await cluster.another_primary(primary)
    await cluster.restart(primary)


def test_nothing_that_was_confirmed_is_lost_or_doubled(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as session:
            producer = await session.producer("queue:confirmed")
            confirmed: list[bytes] = []
            is_over = asyncio.Event()

            async def send() -> None:
                while not is_over.is_set() or len(confirmed) < 500:
                    fresh = numbered(10, len(confirmed))
                    await producer.send_many(fresh)
                    confirmed.extend(fresh)

            sending = asyncio.create_task(send())
            await fail_over(cluster)
            is_over.set()
            await sending
            consumer = await session.consumer("queue:confirmed")
            assert await bodies(consumer, len(confirmed)) == confirmed
            assert await consumer.receive(timeout=0) is None

    run(test(), SECONDS)


def test_what_a_consumer_held_comes_again_marked_and_counted(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as other:
            await other.producer("queue:held").send_many(numbered(10))
            async with in_session(cluster, "client") as session:
                consumer = await session.consumer("queue:held", prefetch=0)
                messages = await taken(consumer, 2)
                await messages[-1].ack()
                assert await bodies(consumer, 3) == numbered(3, 2)
                await fail_over(cluster)
            again = await taken(other.consumer("queue:held"), 8)
            assert [message.body for message in again] == numbered(8, 2), "in order, none acknowledged"
            assert all(message.redelivered and message.delivery_count >= 2 for message in again[:3])

    run(test(), SECONDS)


def test_a_message_that_is_not_persistent_is_never_given_twice(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as other:
            rows = [antiphon.Row(body, persistent=at % 2 == 0) for at, body in enumerate(numbered(10))]
            await other.producer("queue:at-most-once").send_many(rows)
            async with in_session(cluster, "client") as session:
                seen = await bodies(session.consumer("queue:at-most-once"), 10)
                assert seen == numbered(10)
                await fail_over(cluster)
            again = await taken(other.consumer("queue:at-most-once"), 5)
            assert [message.body for message in again] == numbered(10)[::2]
            assert await other.consumer("queue:at-most-once").receive(timeout=0) is None

    run(test(), SECONDS)


def test_ids_of_the_application_are_remembered(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as one:
            first = await one.producer("queue:ids").send(b"first", dedup_id="a")
            await fail_over(cluster)
            async with in_session(cluster) as other:
                rows = [antiphon.Row(b"again", dedup_id="a"), antiphon.Row(b"second", dedup_id="b")]
                again, second = await other.producer("queue:ids").send_many(rows)
                assert (again.duplicate, again.sequence) == (True, first.sequence)
                assert not second.duplicate
                assert await bodies(other.consumer("queue:ids"), 2) == [b"first", b"second"]

    run(test(), SECONDS)


def test_non_persistent_messages_are_stored_at_most_once_and_in_order(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as session:
            producer = await session.producer("queue:np")

            async def send_all() -> None:
                for body in numbered(500):
                    await producer.send(body, persistent=False)

            sending = asyncio.ensure_future(send_all())
            await row_of(cluster, "queue:np", lambda row: bool(row["messages"] > 50))
            await fail_over(cluster)
            await sending
        # The session is closed, so that all of them are stored or given up.
        async with in_session(cluster) as session:
            stored = [message.body async for message in session.browse("queue:np")]
            assert stored == sorted(set(stored))
            assert len(stored) == 500, "the client was there to send them again"

    run(test(), SECONDS)


def test_delay_expiry_and_priority_hold(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as session:
            producer = await session.producer("queue:rules")
            await producer.send(b"in an hour", delay=3_600)
            await producer.send(b"soon", delay=1.0)
            await producer.send(b"short", ttl=1.0)
            await producer.send(b"long", ttl=3_600)
            await producer.send(b"urgent", priority=9)
            await fail_over(cluster)
            await row_of(cluster, "queue:rules", lambda row: bool(row["expired"] == 1))
            consumer = await session.consumer("queue:rules")
            got = await bodies(consumer, 3)
            assert sorted(got) == [b"long", b"soon", b"urgent"] and got[0] == b"urgent"
            assert await consumer.receive(timeout=0) is None
            await row_of(cluster, "queue:rules", lambda row: bool(row["acknowledged"] == 3))
            assert [message.body async for message in session.browse("queue:rules")] == []

    run(test(), SECONDS)


def test_a_durable_subscription_keeps_its_messages_and_its_selector(cluster: ClusterProcess) -> None:
    async def test() -> None:
        rows = [antiphon.Row(str(at), {"odd": at % 2 == 1}) for at in range(20)]
        async with in_session(cluster, client_id="desk") as session:
            async with session.consumer("topic:kept", durable="odd", selector="odd"):
                pass
            producer = await session.producer("topic:kept")
            await producer.send_many(rows)
            await fail_over(cluster)
            await producer.send_many(rows)
            async with session.consumer("topic:kept", durable="odd", selector="odd") as consumer:
                wanted = [str(at) for at in range(1, 20, 2)] * 2
                assert await bodies(consumer, 20) == wanted
                assert await consumer.receive(timeout=0) is None

    run(test(), SECONDS)


@pytest.mark.parametrize(
    "options", [{"shared": "workers"}, {"durable": "kept", "shared": True}], ids=["passing", "durable"]
)
def test_a_shared_subscription_gives_each_message_to_one_of_its_consumers(
    cluster: ClusterProcess, options: dict[str, Any]
) -> None:
    topic = f"topic:shared.{len(options)}"

    async def test() -> None:
        async with in_session(cluster) as one, in_session(cluster) as two:
            workers = [await session.consumer(topic, **options, prefetch=10) for session in (one, two)]
            producer = await one.producer(topic)
            await producer.send_many(numbered(100))
            await fail_over(cluster)
            await producer.send_many(numbered(100, first=100))
            got: list[Any] = []
            async with asyncio.timeout(WAIT_S):
                while len(got) < 200:
                    for worker in workers:
                        got += [message.body for message in await worker.receive_many(20, timeout=0.05)]
            assert sorted(got) == numbered(200)

    run(test(), SECONDS)


def test_a_message_group_stays_with_the_consumer_that_works_on_it(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster, "client") as one, in_session(cluster) as two:
            producer = await two.producer("queue:groups")
            busy = await one.consumer("queue:groups", prefetch=1)
            await producer.send(b"first", key="a")
            (message,) = await taken(busy, 1)
            idle = await two.consumer("queue:groups", prefetch=20)
            rows = [antiphon.Row(body, key="a") for body in numbered(10)]
            await producer.send_many([*rows, antiphon.Row(b"before", key="b")])
            assert await bodies(idle, 1) == [b"before"]
            await fail_over(cluster)
            await producer.send(b"after", key="c")
            assert await bodies(idle, 1) == [b"after"], "the group of the other is left alone"
            assert await idle.receive(timeout=0) is None
            await message.ack()
            assert await bodies(busy, 1) == numbered(1)
            await one.close()
            assert await bodies(idle, 10) == numbered(10), "what was not acknowledged comes first"

    run(test(), SECONDS)


def test_a_transaction_that_spans_the_failover_is_whole(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as other:
            await other.producer("queue:span.in").send_many(numbered(5))

            async def move(session: antiphon.Session) -> None:
                messages = await session.consumer("queue:span.in").receive_many(5, timeout=WAIT_S)
                await session.producer("queue:span.out").send_many([message.body for message in messages])
                if not failed_over:
                    failed_over.append(True)
                    await fail_over(cluster)

            failed_over: list[bool] = []
            async with in_session(cluster, transacted=True) as session:
                await session.run_transaction(move)
            consumer = await other.consumer("queue:span.out")
            assert await bodies(consumer, 5) == numbered(5)
            assert await consumer.receive(timeout=0) is None
            assert await other.consumer("queue:span.in").receive(timeout=0) is None

    run(test(), SECONDS)


def test_messages_of_a_closed_consumer_stay_with_their_session(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with in_session(cluster) as other, in_session(cluster, "client") as session:
            await other.producer("queue:stay").send_many(numbered(10))
            consumer = await session.consumer("queue:stay")
            messages = await taken(consumer, 4)
            await consumer.close()
            await fail_over(cluster)
            assert await bodies(other.consumer("queue:stay"), 6) == numbered(6, 4)
            await messages[-1].ack()
            await row_of(cluster, "queue:stay", lambda row: bool(row["acknowledged"] == 10))
            assert await other.consumer("queue:stay").receive(timeout=0) is None

    run(test(), SECONDS)


def test_a_stopped_connection_stays_stopped(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url, timeout=WAIT_S) as connection:
            session = await connection.session()
            consumer = await session.consumer("queue:stopped")
            waiting = asyncio.create_task(consumer.receive())
            await connection.stop()
            await session.producer("queue:stopped").send_many(numbered(5))
            await fail_over(cluster)
            await session.producer("queue:stopped").send_many(numbered(5, 5))
            assert not waiting.done() and await consumer.receive(timeout=0.05) is None
            await connection.start()
            first = await waiting
            assert first is not None and first.body == numbered(1)[0]
            assert await bodies(consumer, 9) == numbered(9, 1)

    run(test(), SECONDS)


def test_an_exclusive_queue_keeps_its_consumer(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url, timeout=WAIT_S) as connection:
            await connection.admin().create("queue:alone", exclusive=True)
            first, second = await connection.session(), await connection.session()
            one, other = await first.consumer("queue:alone"), await second.consumer("queue:alone")
            producer = await second.producer("queue:alone")
            await producer.send_many(numbered(5))
            assert await bodies(one, 5) == numbered(5)
            await fail_over(cluster)
            await producer.send_many(numbered(5, 5))
            assert await bodies(one, 5) == numbered(5, 5)
            assert await other.receive(timeout=0) is None
            await one.close()
            await producer.send_many(numbered(5, 10))
            assert await bodies(other, 5) == numbered(5, 10)

    run(test(), SECONDS)
