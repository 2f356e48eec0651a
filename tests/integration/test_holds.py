"""Holds with real servers: a queue for oneself, holders who are gone, servers that are killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon.client.aio.ranges import RangeDestination, Ranges
from antiphon.errors import AntiphonError, TransactionRolledBack
from tests.bus_members import has_multicast
from tests.client_scenes import numbered, reading, rows, run
from tests.cluster_processes import ClusterProcess
from tests.processes import Server

# How long is waited for what must not come.
QUIET_SECONDS = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("holds") / "data") as running:
        yield running


async def read(ranges: Ranges, wanted: tuple[RangeDestination, ...]) -> dict[int, bytes]:
    """Everything that is kept: bodies by number."""
    stop = (await ranges.heads(wanted))["a"].next
    return {number: body for number, _, body in await rows(ranges, wanted, 1, stop)}


def test_who_consumes_a_queue_has_it_alone_and_what_he_leaves_comes_to_its_consumers(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            await connection.admin().create("queue:alone")
            wanted = await ranges.destinations(["queue:alone"])
            start = (await ranges.heads(wanted))["a"].next
            await ranges.hold("spark", {"a": start}, wanted, consume=True)
            await session.producer("queue:alone").send_many(numbered(20))
            consumer = await session.consumer("queue:alone")
            assert await consumer.receive(timeout=QUIET_SECONDS) is None
            with pytest.raises(AntiphonError, match="is consumed by spark"):
                await ranges.hold("other", {"a": start}, wanted, consume=True)

            found = await read(ranges, wanted)
            assert list(found.values()) == numbered(20)
            middle = sorted(found)[12]
            await ranges.hold("spark", {"a": middle}, wanted, consume=True)
            assert list((await read(ranges, wanted)).values()) == numbered(20)[12:]
            await session.producer("queue:alone").send(b"later")
            assert await consumer.receive(timeout=QUIET_SECONDS) is None

            await ranges.release("spark")
            left = await consumer.receive_many(9, timeout=10)
            assert [message.body for message in left] == [*numbered(20)[12:], b"later"]

    run(test())


def test_what_a_consumer_had_when_a_queue_was_taken_from_it_comes_again(server: Server) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(server.url) as connection,
            connection.session(transacted=True) as transacted,
            connection.session() as session,
            connection.ranges() as ranges,
        ):
            await session.producer("queue:taken").send_many(numbered(3))
            consumer = await transacted.consumer("queue:taken")
            assert (await consumer.receive(timeout=10)) is not None
            wanted = await ranges.destinations(["queue:taken"])
            await ranges.hold("spark", {"a": 1}, wanted, consume=True)
            with pytest.raises(TransactionRolledBack, match="is consumed by spark"):
                await transacted.commit()
            assert len(await read(ranges, wanted)) == 3
            await ranges.release("spark")
            again = await consumer.receive_many(3, timeout=10)
            assert sorted(message.body for message in again) == numbered(3)
            await transacted.commit()
            assert (await ranges.heads(wanted))["a"].rows == 0

    run(test())


def test_a_hold_survives_a_crash_and_ends_by_itself_when_nobody_renews_it(tmp_path: Path) -> None:
    async def before(url: str) -> dict[int, bytes]:
        async with reading(url) as (connection, session, ranges):
            await connection.admin().create("queue:q")
            await connection.admin().create("topic:t", retention="consumed")
            wanted = await ranges.destinations(["queue:q", "topic:t"])
            await ranges.hold("spark", {"a": 1}, wanted, limit=3)
            await session.producer("queue:q").send_many(numbered(10))
            await session.producer("topic:t").send_many(numbered(10))
            assert len(await session.consumer("queue:q").receive_many(10, timeout=10)) == 10
            return await read(ranges, wanted)

    async def after(url: str, known: dict[int, bytes]) -> None:
        async with antiphon.connect(url) as connection, connection.ranges() as ranges:
            wanted = await ranges.destinations(["queue:q", "topic:t"])
            await ranges.hold("spark", {"a": 1}, wanted, limit=3)
            assert await read(ranges, wanted) == known
            while await ranges.holds():
                # There is no news: it is the wait between two looks.
                await ranges.heads(wanted, {"a": 1 << 40}, wait=0.3)
            assert (await ranges.heads(wanted))["a"].rows == 0

    with Server(tmp_path / "data") as first:
        known = asyncio.run(before(first.url))
        assert len(known) == 20
        first.kill()
    with Server(tmp_path / "data") as second:
        run(after(second.url, known), 30)


@pytest.mark.skipif(not has_multicast(), reason="this machine carries no multicast on its loopback")
def test_a_queue_stays_with_who_consumes_it_when_its_primary_is_killed(tmp_path: Path) -> None:
    async def test(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        async with reading(cluster.url) as (_, session, ranges):
            await session.producer("queue:alone").send_many(numbered(50))
            wanted = await ranges.destinations(["queue:alone"])
            await ranges.hold("spark", {"a": 1}, wanted, consume=True)
            consumer = await session.consumer("queue:alone")
            found = await read(ranges, wanted)
            await ranges.hold("spark", {"a": sorted(found)[10]}, wanted, consume=True)
            old = await cluster.primary()
            cluster.kill(old)
            await cluster.another_primary(old)
            assert await consumer.receive(timeout=QUIET_SECONDS) is None
            (hold,) = await ranges.holds()
            assert (hold.name, hold.rows, hold.consume) == ("spark", 40, True)
            await ranges.hold("spark", {"a": sorted(found)[30]}, wanted, consume=True)
            await ranges.release("spark")
            left = await consumer.receive_many(20, timeout=20)
            assert [message.body for message in left] == numbered(50)[30:]
        await cluster.restart(old)
        await cluster.synchronized()
        await cluster.equal()

    with ClusterProcess(tmp_path, client_managers=1, message_managers=3, has_faults=False) as cluster:
        run(test(cluster), 120)
