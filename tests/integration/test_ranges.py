"""Ranges of stored messages with real servers: alone, and from the backups of a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
import antiphon.blocking
from antiphon.errors import DestinationError, RangeLost, RangeUnavailable
from tests.bus_members import has_multicast
from tests.client_scenes import Rows, numbered, reading, rows, rows_of, run
from tests.cluster_processes import ClusterProcess
from tests.processes import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ranges") / "data") as running:
        yield running


def test_what_is_stored_is_read_by_numbers_and_stays(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (_, session, ranges):
            orders, prices = session.producer("queue:orders"), session.producer("topic:prices")
            for first in range(0, 1_000, 100):
                await orders.send_many(numbered(100, first))
                await prices.send_many(numbered(100, first))
            both = await ranges.destinations(["queue:orders", "topic:prices"])
            assert [one.name for one in both] == ["queue:orders", "topic:prices"]
            head = (await ranges.heads(both))["a"]
            assert head.rows == 2_000 and head.first < head.next <= head.applied + 1
            found = await rows(ranges, both, head.first, head.next)
            for one in both:
                assert [body for _, id, body in found if id == one.id] == numbered(1_000)
            assert sorted(number for number, _, _ in found) == [number for number, _, _ in found]
            assert await rows(ranges, both, head.first, head.next, page_bytes=1_000) == found
            middle = (head.first + head.next) // 2
            assert (
                await rows(ranges, both, head.first, middle) + await rows(ranges, both, middle, head.next)
                == found
            )
            assert len(await session.consumer("queue:orders").receive_many(1_000, timeout=10)) == 1_000

    run(test())


def test_an_embedded_system_has_an_id_that_stays_and_no_other_has(server: Server, tmp_path: Path) -> None:
    def cluster_of(url: str) -> str:
        with antiphon.blocking.connect(url) as connection, connection.ranges() as ranges:
            return ranges.cluster()

    seen = []
    for _ in range(2):
        with Server(tmp_path / "data") as other:
            seen.append(cluster_of(other.url))
    assert len(seen[0]) == 32 and seen[0] == seen[1] != cluster_of(server.url)


def test_the_blocking_face_reads_the_same(server: Server) -> None:
    with antiphon.blocking.connect(server.url) as connection:
        with connection.session() as session:
            session.producer("topic:blocking").send_many(numbered(500))
        with connection.ranges() as ranges:
            wanted = ranges.destinations(["topic:blocking"])
            head = ranges.heads(wanted)["a"]
            pages = list(ranges.read("a", head.first, head.next, wanted, page_bytes=500))
            assert [body for page in pages for _, _, body in rows_of(page)] == numbered(500)
            assert ranges.bound("a", wanted, head.first, head.next, rows=77).rows == 77
            assert ranges.heads(wanted, {"a": head.next}, wait=0.01)["a"].rows == 0


_LEFT_OPEN = """
import sys
import antiphon.blocking
connection = antiphon.blocking.connect(sys.argv[1])
with connection.session() as session:
    session.producer("topic:left").send_many([bytes(1_000)] * 500)
ranges = connection.ranges()
wanted = ranges.destinations(["topic:left"])
head = ranges.heads(wanted)["a"]
pages = ranges.read("a", head.first, head.next, wanted, page_bytes=1)
assert next(pages).rows
"""


def test_a_program_ends_although_it_has_left_a_read_open(server: Server) -> None:
    """When the interpreter ends nobody is there any more who could close it."""
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_who_waits_hears_of_news_and_of_nothing_else(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (_, session, ranges):
            news, other = session.producer("topic:news"), session.producer("topic:other")
            await news.send(b"1")
            wanted = await ranges.destinations(["topic:news"])
            before = (await ranges.heads(wanted))["a"]
            waiting = asyncio.create_task(ranges.heads(wanted, {"a": before.next}, wait=30))
            await other.send(b"not for you")
            assert (await ranges.heads(wanted))["a"].next == before.next
            assert not waiting.done()
            await news.send(b"2")
            after = (await waiting)["a"]
            assert after.next > before.next and after.rows == 1
            assert await rows(ranges, wanted, before.next, after.next) == [
                (after.next - 1, wanted[0].id, b"2")
            ]

    run(test())


def test_a_pattern_finds_what_exists_and_a_head_says_that_there_is_more(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.ranges() as ranges:
            admin = connection.admin()
            assert await ranges.destinations(pattern="topic:eu.*") == ()
            for name in ("topic:eu.one", "topic:eu.two", "topic:us.one", "queue:eu.one"):
                await admin.create(name)
            waiting = await ranges.heads((), wait=30, channels=["a"])
            assert waiting["a"].version != ranges.versions["a"]
            found = await ranges.destinations(pattern="topic:eu.*")
            assert [one.name for one in found] == ["topic:eu.one", "topic:eu.two"]
            found = await ranges.destinations(pattern="*:eu.one")
            assert [one.name for one in found] == ["topic:eu.one", "queue:eu.one"]
            assert waiting["a"].version == ranges.versions["a"]
            pytest.importorskip("re2")
            found = await ranges.destinations(pattern="topic:[eu]+[.](one|three)", match="regex")
            assert [one.name for one in found] == ["topic:eu.one"]

    run(test())


def test_loss_is_told_exactly_and_another_destination_s_loss_is_none(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            await connection.admin().create("topic:short", retention="consumed")
            await connection.admin().create("topic:long")
            short, long = session.producer("topic:short"), session.producer("topic:long")
            await long.send_many(numbered(10))
            await short.send_many(numbered(10))
            await long.send_many(numbered(10, 10))
            both = await ranges.destinations(["topic:short", "topic:long"])
            head = (await ranges.heads(both))["a"]
            short_head, long_head = sorted(head.destinations, key=lambda one: one.id)
            lost = short_head.lost_through
            assert (short_head.lost, long_head.lost, long_head.lost_time_ms) == (10, 0, 0)
            with pytest.raises(RangeLost) as raised:
                await rows(ranges, both, head.first, head.next)
            error = raised.value
            assert (error.destination, error.channel) == ("topic:short", "a")
            assert (error.first, error.last) == (head.first, lost)
            assert len(await rows(ranges, both[1:], head.first, head.next)) == 20
            assert len(await rows(ranges, both, lost + 1, head.next)) == 10
            allowed = [page async for page in ranges.read("a", head.first, head.next, both, allow_lost=True)]
            assert [tuple(loss) for page in allowed for loss in page.lost] == [(both[0].id, head.first, lost)]
            assert sum(page.rows for page in allowed) == 20
            since = (both[0]._replace(since=lost + 1), both[1])
            assert len(await rows(ranges, since, head.first, head.next)) == 20

    run(test())


def test_what_does_not_exist_is_refused_in_words(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.ranges() as ranges:
            with pytest.raises(DestinationError, match="there is no destination topic:nowhere"):
                await ranges.destinations(["topic:nowhere"])
            await connection.admin().create("topic:here")
            (here,) = await ranges.destinations(["topic:here"])
            with pytest.raises(RangeUnavailable, match="goes up to number 999999999"):
                await rows(ranges, (here,), 1, 1_000_000_000)
            gone = here._replace(name="topic:gone", id=999_999)
            with pytest.raises(DestinationError, match="topic:gone"):
                await ranges.heads((here, gone))
            with pytest.raises(DestinationError, match="topic:gone"):
                await rows(ranges, (here, gone), 1, 3)

    run(test())


def test_a_hold_keeps_what_retention_would_let_go_until_it_is_released(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            await connection.admin().create("topic:held", retention="consumed")
            wanted = await ranges.destinations(["topic:held"])
            start = (await ranges.heads(wanted))["a"].next
            await ranges.hold("nightly", {"a": start}, wanted, limit=600)
            await session.producer("topic:held").send_many(numbered(100))
            head = (await ranges.heads(wanted))["a"]
            held = await rows(ranges, wanted, start, head.next)
            assert [body for _, _, body in held] == numbered(100)
            (hold,) = await ranges.holds()
            assert (hold.name, hold.channel, hold.position, hold.rows) == ("nightly", "a", start, 100)
            assert (hold.limit_s, hold.destinations) == (600, ("topic:held",))
            middle = held[50][0]
            await ranges.hold("nightly", {"a": middle}, wanted, limit=600)
            with pytest.raises(RangeLost):
                await rows(ranges, wanted, start, head.next)
            assert await rows(ranges, wanted, middle, head.next) == held[50:]
            (told,) = await connection.admin().holds()
            assert (told["name"], told["rows"], told["position"]) == ("nightly", 50, middle)
            await ranges.release("nightly")
            assert await ranges.holds() == ()
            assert (await ranges.heads(wanted))["a"].rows == 0

    run(test())


def test_what_is_acknowledged_can_be_read_again_under_a_hold(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            await connection.admin().create("queue:held")
            wanted = await ranges.destinations(["queue:held"])
            await ranges.hold("audit", {"a": 1}, wanted)
            await session.producer("queue:held").send_many(numbered(20))
            consumer = session.consumer("queue:held")
            assert len(await consumer.receive_many(20, timeout=10)) == 20
            await consumer.close()
            head = (await ranges.heads(wanted))["a"]
            found = await rows(ranges, wanted, 1, head.next)
            assert [body for _, _, body in found] == numbered(20)
            await ranges.release("audit")
            assert await rows(ranges, wanted, 1, head.next) == []

    run(test())


def test_acknowledgements_are_read_by_who_had_them_kept(server: Server) -> None:
    async def test() -> None:
        async with reading(server.url) as (connection, session, ranges):
            await connection.admin().create("queue:audited")
            wanted = await ranges.destinations(["queue:audited"])
            start = (await ranges.heads(wanted))["a"].next
            await ranges.hold("audit", {"a": start}, wanted, acks=True)
            await session.producer("queue:audited").send_many(numbered(3))
            head = (await ranges.heads(wanted, acks=True))["a"]
            async with connection.session(ack="individual") as consuming:
                messages = await consuming.consumer("queue:audited").receive_many(3, timeout=10)
                for message in messages[:2]:
                    await message.ack()
            acked = (await ranges.heads(wanted, {"a": head.next}, wait=10, acks=True))["a"]
            assert acked.next > head.next and (await ranges.heads(wanted))["a"].next == head.next
            pages = [page async for page in ranges.read("a", start, acked.next, wanted, acks=True)]
            numbers = [body for page in pages for _, _, body in rows_of(page)]
            assert numbers == numbered(3)
            gone = [number for page in pages for ack in page.acks for number in ack.numbers.numbers()]
            assert sorted(gone) == [message.sequence for message in messages[:2]]
            assert {ack.destination for page in pages for ack in page.acks} == {wanted[0].id}
            await ranges.release("audit")

    run(test())


# -- a cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    if not has_multicast():
        pytest.skip("this machine carries no multicast on its loopback")
    folder = tmp_path_factory.mktemp("ranges")
    with ClusterProcess(folder, client_managers=1, message_managers=3, has_faults=False) as running:
        yield running


def test_a_range_that_was_read_never_gains_rows(cluster: ClusterProcess) -> None:
    """What is committed later has later numbers, whenever it was sent."""

    async def test() -> None:
        async with (
            antiphon.connect(cluster.url) as connection,
            connection.session(transacted=True) as transaction,
            connection.session() as session,
            connection.ranges() as ranges,
        ):
            await transaction.producer("topic:t").send_many(numbered(50))
            await session.producer("topic:t").send_many(numbered(50, 100))
            wanted = await ranges.destinations(["topic:t"])
            head = (await ranges.heads(wanted))["a"]
            before = await rows(ranges, wanted, 1, head.next)
            assert [body for _, _, body in before] == numbered(50, 100)
            await transaction.commit()
            later = (await ranges.heads(wanted))["a"]
            assert later.next > head.next
            assert await rows(ranges, wanted, 1, head.next) == before
            rest = await rows(ranges, wanted, head.next, later.next)
            assert [body for _, _, body in rest] == numbered(50)
            assert await rows(ranges, wanted, 1, later.next) == before + rest

    run(test())


def test_the_id_of_a_cluster_is_that_of_its_configuration(cluster: ClusterProcess) -> None:
    with antiphon.blocking.connect(cluster.url) as connection, connection.ranges() as ranges:
        laid_out = tomllib.loads((cluster.data / "cluster.toml").read_text())
        assert ranges.cluster() == laid_out["cluster_id"]


def test_when_the_backup_that_serves_is_killed_the_read_goes_on_elsewhere(cluster: ClusterProcess) -> None:
    async def test() -> None:
        await cluster.synchronized()
        async with reading(cluster.url) as (_, session, ranges):
            producer = session.producer("topic:read")
            for first in range(0, 10_000, 500):
                await producer.send_many(numbered(500, first))
            wanted = await ranges.destinations(["topic:read"])
            head = (await ranges.heads(wanted))["a"]
            await cluster.equal()
            # The first of them in the cluster's order is the one that is asked.
            victim = (await cluster.backups())[0]
            found: Rows = []
            async for page in ranges.read("a", 1, head.next, wanted, page_bytes=4_000):
                if not found:
                    cluster.kill(victim)
                found += rows_of(page)
            assert [body for _, _, body in found] == numbered(10_000)
            await producer.send(b"later")
            news = (await ranges.heads(wanted, {"a": head.next}, wait=30))["a"]
            assert news.rows == 1
        await cluster.restart(victim)
        await cluster.synchronized()

    run(test(), 120)


def test_every_replica_gives_the_same_range_whoever_is_primary(cluster: ClusterProcess) -> None:
    async def test() -> None:
        await cluster.synchronized()
        async with reading(cluster.url) as (_, session, ranges):
            await session.producer("topic:same").send_many(numbered(3_000))
            wanted = await ranges.destinations(["topic:same"])
            head = (await ranges.heads(wanted))["a"]
            before = await rows(ranges, wanted, 1, head.next, page_bytes=2_000)
            old = await cluster.primary()
            cluster.kill(old)
            assert await rows(ranges, wanted, 1, head.next, page_bytes=2_000) == before
            await cluster.another_primary(old)
            assert await rows(ranges, wanted, 1, head.next, page_bytes=2_000) == before
        await cluster.restart(old)
        await cluster.synchronized()

    run(test(), 120)


def test_a_reader_of_two_channels_hears_of_news_in_either(tmp_path: Path) -> None:
    async def test(url: str) -> None:
        async with reading(url) as (connection, session, ranges):
            for channel in "ab":
                await connection.admin().create(f"topic:in.{channel}", channel=channel, retention="consumed")
            both = await ranges.destinations(pattern="topic:in.*")
            assert sorted((one.name, one.channel) for one in both) == [
                ("topic:in.a", "a"),
                ("topic:in.b", "b"),
            ]
            heads = await ranges.heads(both)
            at = {channel: head.next for channel, head in heads.items()}
            await ranges.hold("reader", at, both)
            for channel in "abba":
                waiting = asyncio.create_task(ranges.heads(both, at, wait=30))
                await session.producer(f"topic:in.{channel}").send_many(numbered(10))
                news = await waiting
                assert [name for name, head in news.items() if head.next > at[name]] == [channel]
                before, at = (
                    at[channel],
                    {name: head.next for name, head in (await ranges.heads(both)).items()},
                )
                wanted = tuple(one for one in both if one.channel == channel)
                assert [body for _, _, body in await rows(ranges, wanted, before, at[channel])] == numbered(
                    10
                )
            assert sorted((hold.channel, hold.rows) for hold in await ranges.holds()) == [
                ("a", 20),
                ("b", 20),
            ]
            await ranges.release("reader")
            assert await ranges.holds() == ()

    with ClusterProcess(
        tmp_path, client_managers=1, message_managers=1, options=["--channels", "2"], has_faults=False
    ) as cluster:
        run(test(cluster.url), 90)
