"""Destinations of several channels: one queue or topic to its users, and a part of it in each channel."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

import antiphon
import antiphon.blocking
from antiphon.batch import Batch, BatchBuilder
from antiphon.client.core.spanning import place_of
from tests.cluster_processes import ClusterProcess
from tests.processes import antiphon as run

WAIT_S = 30.0
CHANNELS = ("a", "b")
KEYS = [f"key{number}" for number in range(8)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Two channels with a message manager each, and two client managers."""
    with ClusterProcess(
        tmp_path_factory.mktemp("spanning"),
        transport="tcp",
        client_managers=2,
        message_managers=1,
        options=("--channels", "2"),
    ) as running:
        yield running


@asynccontextmanager
async def opened(
    cluster: ClusterProcess, ack: str = "auto", **options: Any
) -> AsyncIterator[tuple[antiphon.Connection, antiphon.Session]]:
    """A connection, with a session in it."""
    async with antiphon.connect(cluster.url, **options) as connection:
        wish: dict[str, Any] = {"transacted": True} if ack == "transacted" else {"ack": ack}
        async with connection.session(**wish) as session:
            yield connection, session


def keyed(count: int) -> list[antiphon.Row]:
    """Messages of several keys in turn; each body names the key, and counts."""
    return [
        antiphon.Row(f"{KEYS[at % len(KEYS)]}:{at:04d}".encode(), key=KEYS[at % len(KEYS)])
        for at in range(count)
    ]


def of_keys(messages: Iterable[antiphon.Message]) -> dict[str | None, list[bytes]]:
    found: dict[str | None, list[bytes]] = defaultdict(list)
    for message in messages:
        found[message.key].append(bytes(message.body))
    return dict(found)


def wanted_of_keys(rows: Iterable[antiphon.Row]) -> dict[str | None, list[bytes]]:
    found: dict[str | None, list[bytes]] = defaultdict(list)
    for row in rows:
        found[row.key].append(bytes(row.body))  # type: ignore[arg-type]
    return dict(found)


def test_a_name_has_a_part_in_each_of_its_channels_and_keeps_them(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:made"
        async with opened(cluster) as (connection, session):
            admin = connection.admin()
            await admin.create(name, channels=2, redelivery_limit=3)
            await admin.create(name, channels=["a", "b"], redelivery_limit=3)
            await admin.create(name)
            for wish in ({"channels": 1}, {"channels": ["b", "a"]}, {"channel": "a"}):
                with pytest.raises(antiphon.DestinationError, match="has its place in channels a, b"):
                    await admin.create(name, **wish)
            with pytest.raises(antiphon.DestinationError, match="its redelivery_limit is 3, not 4"):
                await admin.create(name, redelivery_limit=4)
            with pytest.raises(antiphon.DestinationError, match="an exclusive queue lives in one channel"):
                await admin.create("queue:sole", channels=2, exclusive=True)
            with pytest.raises(antiphon.DestinationError, match="an exclusive queue lives in one channel"):
                await admin.change(name, exclusive=True)
            with pytest.raises(antiphon.DestinationError, match="cannot be made in 3 channels"):
                await admin.create("queue:wide", channels=3)
            await admin.create("queue:narrow", channels=1)
            assert (await session.producer("queue:narrow").send(b"")).channel in CHANNELS
            await admin.change(name, redelivery_limit=5)
            await session.producer(name).send_many([b"x"] * 10)
            (row,) = [row for row in await admin.destinations() if row["name"] == name]
            assert (row["channel"], row["messages"], row["published"]) == ("a,b", 10, 10)
            assert [(part["channel"], part["messages"]) for part in row["parts"]] == [("a", 5), ("b", 5)]
            before = (await admin.status())["destinations"]
            await admin.purge(name)
            (row,) = [row for row in await admin.destinations() if row["name"] == name]
            assert (row["messages"], row["purged"]) == (0, 10)
            await admin.delete(name)
            assert name not in [row["name"] for row in await admin.destinations()]
            assert (await admin.status())["destinations"] == before - 1, "one destination, not its parts"
            with pytest.raises(antiphon.DestinationError, match="there is no destination"):
                await admin.delete(name)
            with pytest.raises(antiphon.DestinationError, match="there is no destination"):
                await session.consumer(name, create=False)

    asyncio.run(test())


def test_many_spanning_destinations_are_made_by_one_call(cluster: ClusterProcess) -> None:
    async def test() -> None:
        names = [f"topic:bulk.{number}" for number in range(20)]
        async with opened(cluster) as (connection, session):
            admin = connection.admin()
            results = await admin.create_many([*names, "queue:_x"], channels=2)
            assert [result.outcome for result in results] == [*["made"] * 20, "refused"]
            assert {one.outcome for one in await admin.create_many(names, channels=2)} == {"exists"}
            rows = {row["name"]: row["channel"] for row in await admin.destinations()}
            assert {rows[name] for name in names} == {"a,b"}
            receipts = await session.producer(names[0]).send_many([b""] * 10)
            assert {receipt.channel for receipt in receipts} == set(CHANNELS)

    asyncio.run(test())


def test_a_key_stays_in_its_channel_and_messages_without_one_are_spread(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:keys"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            producer = session.producer(name)
            for key in KEYS:
                receipts = [await producer.send(b"", key=key) for _ in range(2)]
                receipts += await producer.send_many([antiphon.Row("", key=key)] * 3)
                place = place_of(key, None, 2)
                assert place is not None
                assert {receipt.channel for receipt in receipts} == {CHANNELS[place]}
            receipts = [await producer.send(b"") for _ in range(10)]
            assert [receipt.channel for receipt in receipts].count("a") == 5
            together = await asyncio.gather(*(producer.send(b"") for _ in range(10)))
            assert len({receipt.channel for receipt in together}) == 1, "they travel together"
            ids = [f"id{number}" for number in range(10)]
            for id in ids:
                first, second = await producer.send(b"", dedup_id=id), await producer.send(b"", dedup_id=id)
                assert second.duplicate and (second.channel, second.sequence) == (
                    first.channel,
                    first.sequence,
                )
            many = await producer.send_many([antiphon.Row(b"", dedup_id=id) for id in ids])
            assert (len(many), many.duplicates) == (10, 10)

    asyncio.run(test())


def test_the_receipts_of_many_tell_where_each_message_is(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:receipts"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            producer = session.producer(name)

            async def source() -> AsyncIterator[bytes]:
                for number in range(300):
                    yield b"s%d" % number

            plain = [b"p%d" % number for number in range(20_000)]
            mixed = [row for pair in zip(keyed(400), keyed(400), strict=True) for row in pair]
            for bodies in (plain, (body for body in plain[:1_000]), source(), mixed, [b"one"], []):
                receipts = await producer.send_many(bodies)  # type: ignore[arg-type]
                await _check_receipts(session, name, receipts)
                await connection.admin().purge(name)
            receipts = await producer.send_many(plain)
            channels = [receipt.channel for receipt in receipts]
            assert 5_000 < channels.count("a") < 15_000
            assert sum(one != other for one, other in pairwise(channels)) < 20

    asyncio.run(test())


async def _check_receipts(session: antiphon.Session, name: str, receipts: antiphon.Receipts) -> None:
    stored = {(one.channel, one.sequence): one.message_id async for one in session.browse(name)}
    told = {(receipt.channel, receipt.sequence): receipt.message_id for receipt in receipts}
    assert told == stored
    assert len(told) == len(receipts)
    for index in {0, len(receipts) // 2, len(receipts) - 1} if receipts else ():
        assert receipts[index] == list(receipts)[index]
        assert receipts[-1 - index] == list(receipts)[-1 - index]


@pytest.mark.parametrize("prefetch", [None, 0, 3])
@pytest.mark.parametrize("ack", ["auto", "individual", "client", "dups_ok", "transacted"])
def test_messages_of_all_parts_are_consumed_once_and_in_the_order_of_their_keys(
    cluster: ClusterProcess, ack: str, prefetch: int | None
) -> None:
    name = f"queue:consumed-{ack}-{prefetch}"
    rows = keyed(80)

    async def test() -> None:
        async with opened(cluster, ack) as (connection, session):
            await connection.admin().create(name, channels=2)
            await session.producer(name).send_many(rows)
            if ack == "transacted":
                await session.commit()
            consumer = await session.consumer(name, prefetch=prefetch)
            messages = await consumer.receive_many(80, timeout=WAIT_S)
            assert of_keys(messages) == wanted_of_keys(rows)
            assert {message.channel for message in messages} == set(CHANNELS)
            assert await consumer.receive(timeout=0) is None
            if ack == "transacted":
                await session.commit()
            elif ack == "client":
                await messages[-1].ack()
            elif ack == "individual":
                await asyncio.gather(*(message.ack() for message in messages))
        async with opened(cluster) as (_, session):
            assert await session.consumer(name).receive_many(1, timeout=0.2) == []

    asyncio.run(test())


def test_a_transaction_publishes_to_all_parts_or_to_none(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name, other = "queue:from", "queue:to"
        async with opened(cluster, "transacted") as (connection, session):
            for queue in (name, other):
                await connection.admin().create(queue, channels=2)
            producer = session.producer(name)
            for row in keyed(10):
                await producer.send(row.body, key=row.key)
            await producer.send_many(keyed(10))
            await producer.send_many(b"%d" % number for number in range(100))
            await session.rollback()
            assert [one async for one in session.browse(name)] == []
            await producer.send_many(keyed(100))
            await session.commit()
            consumer = session.consumer(name)
            messages = await consumer.receive_many(100, timeout=WAIT_S)
            for message in messages:
                await session.producer(other).send(message.body, key=message.key)
            await session.rollback()
            messages = await consumer.receive_many(100, timeout=WAIT_S)
            assert {message.delivery_count for message in messages} == {2}
            for message in messages:
                await session.producer(other).send(message.body, key=message.key)
            await session.commit()
            assert [one async for one in session.browse(name)] == []
            assert of_keys([one async for one in session.browse(other)]) == wanted_of_keys(keyed(100))

    asyncio.run(test())


def test_competing_consumers_with_and_without_selectors_get_each_message_once(
    cluster: ClusterProcess,
) -> None:
    async def test() -> None:
        name = "queue:shared"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            rows = [antiphon.Row(b"%d" % at, {"n": at % 4}, key=KEYS[at % 8]) for at in range(400)]
            await session.producer(name).send_many(rows)
            async with opened(cluster) as (_, one), opened(cluster) as (_, other):
                picky = await one.consumer(name, selector="n = 1")
                found = await picky.receive_many(100, timeout=WAIT_S)
                assert sorted(int(message.body) for message in found) == list(range(1, 400, 4))
                await picky.close()
                seen: list[int] = []

                async def drain(session: antiphon.Session) -> None:
                    async for message in session.consumer(name, prefetch=5):
                        seen.append(int(message.body))
                        if len(seen) >= 300:
                            return

                async with asyncio.timeout(WAIT_S):
                    tasks = [asyncio.create_task(drain(session)) for session in (one, other)]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in tasks:
                        task.cancel()
            assert sorted(seen) == [at for at in range(400) if at % 4 != 1]

    asyncio.run(test())


def test_calls_of_consumers_that_are_dropped_follow_each_other(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:dropped"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            await session.producer(name).send_many(keyed(40))
            bodies = []
            for _ in range(40):
                message = await session.consumer(name).receive(timeout=WAIT_S)
                assert message is not None
                bodies.append(message)
            assert of_keys(bodies) == wanted_of_keys(keyed(40))

    asyncio.run(test())


def test_requests_and_replies_go_over_a_spanning_queue(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:asked"
        async with opened(cluster) as (connection, session), opened(cluster) as (_, server):
            await connection.admin().create(name, channels=2)

            async def serve() -> None:
                async with server.consumer(name) as consumer:
                    async for message in consumer:
                        await server.reply(message, message.body)

            serving = asyncio.create_task(serve())
            replies = await asyncio.gather(
                *(session.request(name, b"%d" % number, timeout=WAIT_S) for number in range(20))
            )
            serving.cancel()
            await asyncio.wait([serving])
            assert [reply.body for reply in replies] == [b"%d" % number for number in range(20)]
            await connection.admin().create("queue:answers", channels=2)
            await session.producer(name).send(b"?", reply_to="queue:answers")
            consumer = await server.consumer(name)
            message = await consumer.receive(timeout=WAIT_S)
            while message is not None and message.body != b"?":
                # The loop may have been left at its last request, which comes again then.
                message = await consumer.receive(timeout=WAIT_S)
            assert message is not None
            await server.reply(message, b"!")
            answer = await session.consumer("queue:answers").receive(timeout=WAIT_S)
            assert answer is not None and answer.body == b"!"

    asyncio.run(test())


@pytest.mark.parametrize("shared", [False, True])
def test_a_durable_subscription_has_a_part_in_every_channel_and_ends_in_all(
    cluster: ClusterProcess, shared: bool
) -> None:
    async def test() -> None:
        name = f"topic:prices-{shared}"
        async with opened(cluster, client_id=f"desk-{shared}") as (connection, session):
            await connection.admin().create(name, channels=2)
            producer = session.producer(name)
            await producer.send_many(keyed(16))
            consumer = await session.consumer(name, durable="audit", shared=shared)
            await producer.send_many(keyed(40))
            assert of_keys(await consumer.receive_many(20, timeout=WAIT_S)) != {}
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.unsubscribe("audit")
            await consumer.close()
            (row,) = [row for row in await connection.admin().destinations() if row["name"] == name]
            assert [(one["name"], one["backlog"]) for one in row["subscriptions"]] == [("audit", 20)]
            consumer = await session.consumer(name, durable="audit", shared=shared)
            assert len(await consumer.receive_many(20, timeout=WAIT_S)) == 20
            assert await consumer.receive(timeout=0) is None
            await consumer.close()
            # Another selector begins the subscription anew, in every channel.
            consumer = await session.consumer(
                name, durable="audit", shared=shared, selector="JMSPriority > 5"
            )
            await producer.send_many([antiphon.Row(b"", key=key, priority=9) for key in KEYS])
            await producer.send_many(keyed(8))
            assert len(await consumer.receive_many(8, timeout=WAIT_S)) == 8
            assert await consumer.receive(timeout=0) is None
            await consumer.close()
            # So does another topic, of one channel or of several.
            for other in ("topic:narrow", name, "topic:narrow"):
                await (await session.consumer(other, durable="audit", shared=shared)).close()
            (row,) = [row for row in await connection.admin().destinations() if row["name"] == name]
            assert row["subscriptions"] == []
            await (await session.consumer(name, durable="audit", shared=shared)).close()
            await session.unsubscribe("audit")
            (row,) = [row for row in await connection.admin().destinations() if row["name"] == name]
            assert row["subscriptions"] == []
            with pytest.raises(antiphon.SubscriptionError):
                await session.unsubscribe("audit")

    asyncio.run(test())


def test_every_subscriber_of_a_spanning_topic_gets_every_message(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "topic:news"
        async with opened(cluster) as (connection, session), opened(cluster) as (_, remote):
            await connection.admin().create(name, channels=2)
            plain = await remote.consumer(name)
            mine = await session.consumer(name, no_local=True)
            workers = [await remote.consumer(name, shared="workers") for _ in range(2)]
            await session.producer(name).send_many(keyed(40))
            await remote.producer(name).send_many([b"remote"] * 4)
            messages = await plain.receive_many(44, timeout=WAIT_S)
            assert len(messages) == 44
            assert of_keys([one for one in messages if one.key]) == wanted_of_keys(keyed(40))
            assert [one.body for one in await mine.receive_many(4, timeout=WAIT_S)] == [b"remote"] * 4
            assert await mine.receive(timeout=0) is None
            shares = await asyncio.gather(*(worker.receive_many(44, timeout=1) for worker in workers))
            assert sum(map(len, shares)) == 44
            for consumer in (plain, mine, *workers):
                await consumer.close()
            (row,) = [row for row in await connection.admin().destinations() if row["name"] == name]
            assert row["subscriptions"] == []

    asyncio.run(test())


def test_a_subscription_begins_where_each_channel_is_told_to(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "topic:kept"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            receipts = await session.producer(name).send_many(keyed(40))
            everything = await session.consumer(name, start="earliest")
            assert len(await everything.receive_many(40, timeout=WAIT_S)) == 40
            start = {
                channel: [one.sequence for one in receipts if one.channel == channel][5]
                for channel in CHANNELS
            }
            consumer = await session.consumer(name, start=start)
            messages = await consumer.receive_many(30, timeout=WAIT_S)
            assert len(messages) == 30
            assert all(message.sequence >= start[message.channel] for message in messages)
            for wish, text in (
                (5, "has several channels, and a sequence number is one of a channel"),
                ({"a": 5}, "no sequence number for channel b"),
            ):
                with pytest.raises(antiphon.errors.LocalError, match=text):
                    await session.consumer(name, start=wish)
            with pytest.raises(antiphon.errors.LocalError, match="one for each channel"):
                session.consumer(name, start={})

    asyncio.run(test())


def test_dead_messages_return_to_the_queue_and_messages_are_moved(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name, other = "queue:dying", "queue:moved"
        async with opened(cluster, "individual") as (connection, session):
            admin = connection.admin()
            for queue in (name, other):
                await admin.create(queue, channels=2)
            await session.producer(name).send_many(keyed(16))
            messages = await session.consumer(name).receive_many(16, timeout=WAIT_S)
            await asyncio.gather(*(message.reject() for message in messages))
            async with asyncio.timeout(WAIT_S):
                while len(await admin.dead(name)) < 16:
                    pass
            assert await admin.retry(name) == 16
            assert of_keys([one async for one in session.browse(name)]) == wanted_of_keys(keyed(16))
        async with opened(cluster) as (connection, session):
            assert await connection.admin().move(name, other) == 16
            assert [one async for one in session.browse(name)] == []
            assert of_keys([one async for one in session.browse(other)]) == wanted_of_keys(keyed(16))

    asyncio.run(test())


def test_the_blocking_face_and_the_command_line_use_a_spanning_queue_as_any_other(
    cluster: ClusterProcess,
) -> None:
    name = "queue:plain"
    run("admin", "create", name, "--channels", "2", url=cluster.url)
    assert run("admin", "create", name, "--channels", "a,b", url=cluster.url).returncode == 0
    refused = run("admin", "create", name, "--channels", "3", url=cluster.url)
    assert (refused.returncode, "cannot be made in 3 channels" in refused.stderr) == (1, True)
    with antiphon.blocking.connect(cluster.url) as connection, connection.session() as session:
        session.producer(name).send_many(keyed(40))
        consumer = session.consumer(name)
        messages = [consumer.receive(timeout=WAIT_S) for _ in range(20)]
        for message in consumer:
            messages.append(message)  # type: ignore[arg-type]
            if len(messages) == 40:
                message.ack()
                break
        assert of_keys([one for one in messages if one is not None]) == wanted_of_keys(keyed(40))
    with (
        antiphon.blocking.connect(cluster.url) as connection,
        connection.session(transacted=True) as session,
    ):
        producer = session.producer(name)
        for row in keyed(40):
            producer.send(row.body, key=row.key)
        for number in range(100):
            producer.send(b"%d" % number)
        session.commit()
        assert len([*session.browse(name)]) == 140
    rows = json.loads(run("admin", "destinations", "--json", url=cluster.url).stdout)
    (row,) = [row for row in rows if row["name"] == name]
    assert (row["messages"], [part["channel"] for part in row["parts"]]) == (140, ["a", "b"])
    assert "a,b" in run("admin", "destinations", url=cluster.url).stdout
    received = run("receive", name, "--count", "140", "--json", url=cluster.url).stdout.splitlines()
    assert {json.loads(line)["channel"] for line in received} == set(CHANNELS)
    run("admin", "delete", name, url=cluster.url)


def columns(rows: Iterable[antiphon.Row]) -> Batch:
    """The messages as one batch."""
    builder = BatchBuilder()
    for row in rows:
        builder.add(row.body, key=row.key, timestamp_ms=1)
    return builder.build(1, 1)


def test_columns_are_divided_by_their_keys(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:columns"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)

            async def source() -> AsyncIterator[Batch]:
                for _ in range(3):
                    yield columns(keyed(80))
                    yield columns([antiphon.Row(b"free")] * 10)

            receipts = await session.producer(name).send_batches(source())
            await _check_receipts(session, name, receipts)
            stored = of_keys([one async for one in session.browse(name)])
            assert stored.pop(None) == [b"free"] * 30
            assert stored == {key: [*bodies * 3] for key, bodies in wanted_of_keys(keyed(80)).items()}
            await connection.admin().purge(name)
            async with connection.staging("columns") as staging:
                async with staging.writer() as writer:
                    await writer.write(name, columns(keyed(80)))
                    await writer.write(name, columns([antiphon.Row(b"free")] * 10))
                    part = await writer.seal()
                assert part.messages == 90
                assert await staging.commit(1, [part]) == "committed"
            stored = of_keys([one async for one in session.browse(name)])
            assert stored.pop(None) == [b"free"] * 10
            assert stored == wanted_of_keys(keyed(80))

    asyncio.run(test())


def test_staged_messages_become_visible_in_all_channels_at_once(cluster: ClusterProcess) -> None:
    async def test() -> None:
        name = "queue:staged"
        async with opened(cluster) as (connection, session):
            await connection.admin().create(name, channels=2)
            async with connection.staging("nightly") as staging:
                part = await staging.stage(name, keyed(40))
                dropped = await staging.stage(name, [b"never"] * 10)
                assert part.channels == CHANNELS
                assert [one async for one in session.browse(name)] == []
                assert await staging.commit(1, [part]) == "committed"
                await staging.abort([dropped])
            assert of_keys([one async for one in session.browse(name)]) == wanted_of_keys(keyed(40))

    asyncio.run(test())
