"""Dead messages with a real server: how they die, where they are found, and how they are sent back."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import DestinationError
from tests.processes import Server
from tests.processes import antiphon as command

WAIT_S = 20.0
DEAD = "queue:_DMQ"


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("dead") / "data") as running:
        yield running


@asynccontextmanager
async def opened(
    server: Server, ack: Any = "individual"
) -> AsyncIterator[tuple[antiphon.Session, antiphon.Admin]]:
    async with antiphon.connect(server.url) as connection, connection.session(ack=ack) as session:
        yield session, connection.admin()


async def dead_of(admin: antiphon.Admin, name: str, count: int) -> list[dict[str, Any]]:
    """The dead messages of a destination, asked for until there are so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            rows = await admin.dead(name)
            if len(rows) >= count:
                return rows


async def row_of(admin: antiphon.Admin, name: str) -> dict[str, Any]:
    return next(row for row in await admin.destinations() if row["name"] == name)


async def die(server: Server, name: str, bodies: list[bytes]) -> None:
    """Have these messages rejected in a queue."""
    async with opened(server) as (session, admin):
        await session.producer(name).send_many(bodies)
        consumer = session.consumer(name)
        for message in await consumer.receive_many(len(bodies), timeout=WAIT_S):
            await message.reject()
        await dead_of(admin, name, len(bodies))


# -- dying -----------------------------------------------------------------------------------------


@in_a_loop
async def test_a_poison_message_dies_after_its_limit_while_others_flow(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:poisoned", redelivery_limit=2)
        producer = session.producer("queue:poisoned")
        sent = await producer.send(
            b"poison", properties={"region": "EU", "size": 7}, priority=7, correlation_id="c", key="k"
        )
        await producer.send_many([b"good"] * 20)
        seen, good = [], 0
        async with asyncio.timeout(WAIT_S):
            while good < 20:
                async with session.consumer("queue:poisoned") as consumer:
                    message = await consumer.receive(timeout=WAIT_S)
                    assert message is not None
                    if message.body == b"poison":
                        seen.append(message.delivery_count)  # closing the consumer gives it back, counted
                    else:
                        good += 1
                        await message.ack()
        assert seen == [1, 2, 3]
        (row,) = await dead_of(admin, "queue:poisoned", 1)
        assert (row["reason"], row["delivery_count"]) == ("redelivery_limit", 3)
        assert (row["original_sequence"], row["original_message_id"]) == (sent.sequence, sent.message_id)
        assert row["dead_time"] == pytest.approx(row["timestamp"], abs=60)
        copy = [message async for message in session.browse(DEAD)][-1]
        assert (copy.body, copy.priority, copy.correlation_id, copy.key) == (b"poison", 7, "c", "k")
        assert (copy.properties["region"], copy.properties["size"]) == ("EU", 7)
        counts = await row_of(admin, "queue:poisoned")
        assert (counts["published"], counts["acknowledged"], counts["dead"]) == (21, 20, 1)
        assert counts["messages"] == 0


@in_a_loop
async def test_a_rejected_message_is_dead_at_once(server: Server) -> None:
    async with opened(server) as (session, admin):
        await session.producer("queue:rejected").send_many([b"1", b"2", b"3"])
        consumer = session.consumer("queue:rejected")
        first, second, third = await consumer.receive_many(3, timeout=WAIT_S)
        await second.reject()
        (row,) = await dead_of(admin, "queue:rejected", 1)
        assert (row["reason"], row["delivery_count"]) == ("rejected", 1)
        await first.ack()
        await third.ack()
        with pytest.raises(antiphon.LocalError, match="cannot be rejected any more"):
            await third.reject()


@in_a_loop
async def test_a_message_in_a_loop_of_an_automatic_session_is_rejected(server: Server) -> None:
    async with opened(server, ack="auto") as (session, admin):
        await session.producer("queue:looped").send_many([b"1", b"2"])
        async for message in session.consumer("queue:looped"):
            if message.body == b"2":
                await message.reject()
                break
        (row,) = await dead_of(admin, "queue:looped", 1)
        assert row["reason"] == "rejected"
        counts = await row_of(admin, "queue:looped")
        while not counts["acknowledged"]:
            # The acknowledgement of the first message leaves in the background.
            counts = await row_of(admin, "queue:looped")
        assert (counts["acknowledged"], counts["dead"]) == (1, 1)


@in_a_loop
async def test_a_rejected_message_of_a_topic_is_dead_for_its_subscription_only(server: Server) -> None:
    async with opened(server) as (session, admin):
        ours, theirs = session.consumer("topic:news"), session.consumer("topic:news")
        await ours
        await theirs
        await session.producer("topic:news").send(b"news")
        mine = await ours.receive(timeout=WAIT_S)
        assert mine is not None
        await mine.reject()
        (row,) = await dead_of(admin, "topic:news", 1)
        other = await theirs.receive(timeout=WAIT_S)
        assert other is not None and other.body == b"news"
        await other.ack()
        assert row["reason"] == "rejected"


@in_a_loop
async def test_recovered_messages_come_again_in_order_and_are_counted(server: Server) -> None:
    async with opened(server, ack="client") as (session, _):
        await session.producer("queue:recovered").send_many([b"1", b"2", b"3"])
        consumer = session.consumer("queue:recovered")
        before = await consumer.receive_many(3, timeout=WAIT_S)
        await session.recover()
        again = await consumer.receive_many(3, timeout=WAIT_S)
        assert [message.sequence for message in again] == [message.sequence for message in before]
        assert {(message.redelivered, message.delivery_count) for message in again} == {(True, 2)}
        await again[-1].ack()


@in_a_loop
async def test_a_message_with_all_the_properties_there_may_be_dies_whole(server: Server) -> None:
    properties = {f"p{number}": "x" * 4_000 for number in range(128)}
    async with opened(server) as (session, admin):
        await session.producer("queue:laden").send(b"laden", properties=properties)
        message = await session.consumer("queue:laden").receive(timeout=WAIT_S)
        assert message is not None
        await message.reject()
        await dead_of(admin, "queue:laden", 1)
        copy = [one async for one in session.browse(DEAD)][-1]
        assert properties.items() <= copy.properties.items()
        assert await admin.retry("queue:laden") == 1
        back = await session.consumer("queue:laden").receive(timeout=WAIT_S)
        assert back is not None and back.properties == properties
        await back.ack()


@in_a_loop
async def test_dead_messages_may_be_dropped(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:dropped", dead_to="nowhere")
        await session.producer("queue:dropped").send(b"1")
        message = await session.consumer("queue:dropped").receive(timeout=WAIT_S)
        assert message is not None
        await message.reject()
        async with asyncio.timeout(WAIT_S):
            while (await row_of(admin, "queue:dropped"))["dead"] != 1:
                pass
        assert await admin.dead("queue:dropped") == []


@in_a_loop
async def test_a_limit_is_changed_while_the_queue_is_used(server: Server) -> None:
    async with opened(server) as (session, admin):
        await session.producer("queue:changed").send(b"1")
        for _ in range(2):
            async with session.consumer("queue:changed") as consumer:
                assert await consumer.receive(timeout=WAIT_S)
        await admin.change("queue:changed", redelivery_limit=1)
        (row,) = await dead_of(admin, "queue:changed", 1)
        assert row["delivery_count"] == 2
        with pytest.raises(DestinationError, match="redelivery_limit is 1, not 5"):
            await admin.create("queue:changed", redelivery_limit=5)
        with pytest.raises(DestinationError, match="dead_to is one of"):
            await admin.change("queue:changed", dead_to="somewhere")  # type: ignore[arg-type]


@in_a_loop
async def test_a_message_that_came_back_waits_for_its_delay(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:delayed", redelivery_delay=0.4)
        await session.producer("queue:delayed").send(b"1")
        times = []
        for _ in range(3):
            async with session.consumer("queue:delayed") as consumer:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                times.append(time.monotonic())
        assert times[1] - times[0] > 0.35
        assert times[2] - times[1] > 0.7  # twice as long
        with pytest.raises(DestinationError, match="redelivery_delay is 0 to 3,600 seconds"):
            await admin.change("queue:delayed", redelivery_delay=7_200)


@in_a_loop
async def test_a_message_that_is_rolled_back_waits_for_its_delay(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:again", redelivery_delay=0.4)
        await session.producer("queue:again").send(b"1")
    async with (
        antiphon.connect(server.url) as connection,
        connection.session(transacted=True) as transacted,
        transacted.consumer("queue:again") as consumer,
    ):
        assert await consumer.receive(timeout=WAIT_S) is not None
        for wait_s in (0.4, 0.8):
            began = time.monotonic()
            await transacted.rollback()
            assert await consumer.receive(timeout=WAIT_S) is not None
            assert time.monotonic() - began > wait_s - 0.05


@in_a_loop
async def test_expired_messages_go_to_the_dead_queue_if_that_is_wanted(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:perishable", dead_to="_DMQ+expired")
        await session.producer("queue:perishable").send(b"1", ttl=0.1)
        (row,) = await dead_of(admin, "queue:perishable", 1)
        assert (row["reason"], row["delivery_count"]) == ("expired", 0)
        counts = await row_of(admin, "queue:perishable")
        assert (counts["messages"], counts["expired"], counts["dead"]) == (0, 0, 1)


# -- the dead queue --------------------------------------------------------------------------------


@in_a_loop
async def test_nobody_publishes_to_the_dead_queue_but_it_is_consumed(server: Server) -> None:
    await die(server, "queue:consumed", [b"consumed"])
    async with opened(server) as (session, admin):
        with pytest.raises(antiphon.AntiphonError, match="system's own"):
            session.producer(DEAD)
        with pytest.raises(DestinationError, match="not deleted"):
            await admin.delete(DEAD)
        async with session.consumer(DEAD) as consumer, asyncio.timeout(WAIT_S):
            while True:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                if message.body == b"consumed":
                    break
            with pytest.raises(antiphon.AcknowledgeRefused, match="dead messages"):
                await message.reject()


@in_a_loop
async def test_dead_messages_are_sent_back_once_and_without_a_trace(server: Server) -> None:
    await die(server, "queue:back", [b"1", b"2", b"3"])
    async with opened(server) as (session, admin):
        rows = await admin.dead("queue:back")
        assert await admin.retry(ids=[rows[1]["message_id"]]) == 1
        assert await admin.retry("queue:back") == 2
        assert await admin.retry("queue:back") == 0
        messages = await session.consumer("queue:back").receive_many(4, timeout=1)
        assert [message.body for message in messages] == [b"2", b"1", b"3"]
        assert all(not message.properties and not message.redelivered for message in messages)
        for message in messages:
            await message.ack()


@in_a_loop
async def test_two_who_send_back_at_once_send_each_message_once(server: Server) -> None:
    bodies = [b"%04d" % number for number in range(600)]
    await die(server, "queue:twice", bodies)
    async with opened(server) as (session, admin):
        counts = await asyncio.gather(admin.retry("queue:twice"), admin.retry("queue:twice"))
        assert sum(counts) == 600
        messages = await session.consumer("queue:twice").receive_many(601, timeout=2)
        assert sorted(message.body for message in messages) == bodies


# -- administration --------------------------------------------------------------------------------


@in_a_loop
async def test_messages_are_moved_and_purged(server: Server) -> None:
    async with opened(server) as (session, admin):
        await session.producer("queue:from").send_many([b"%d" % number for number in range(700)])
        assert await admin.move("queue:from", "queue:to") == 700
        assert (await row_of(admin, "queue:from"))["messages"] == 0
        messages = await session.consumer("queue:to").receive_many(700, timeout=WAIT_S)
        assert [message.body for message in messages] == [b"%d" % number for number in range(700)]
        await admin.purge("queue:to")
        counts = await row_of(admin, "queue:to")
        assert (counts["messages"], counts["purged"], counts["published"]) == (0, 700, 700)
        with pytest.raises(antiphon.AcknowledgeRefused) as refused:
            await messages[0].ack()
        assert refused.value.text == (
            "1 of 1 were no longer there: meanwhile they were given to another consumer, purged or moved; "
            "for any others the call counts, and it need not be repeated"
        )


@in_a_loop
async def test_the_command_line_says_how_many_messages_were_not_moved(server: Server) -> None:
    def move(source: str, *more: str) -> tuple[str, str]:
        moved = command("admin", "move", source, "queue:moved", *more, url=server.url)
        assert moved.returncode == 0, moved.stderr
        return moved.stdout, moved.stderr

    async with opened(server) as (session, admin):
        await session.producer("queue:unripe").send(b"1", delay=3_600)
        stays = (
            "in queue:{}: a consumer has them, the groups of their keys or the exclusive queue, or they wait "
            "for their time\n"
        )
        said = (
            "0 messages are moved to queue:moved\n",
            "antiphon: 1 message stays " + stays.format("unripe"),
        )
        assert move("queue:unripe") == said
        await admin.create("queue:owned", exclusive=True)
        owner = await session.consumer("queue:owned", prefetch=0)
        await session.producer("queue:owned").send_many([b"1", b"2"])
        said = ('{"messages": 0}\n', "antiphon: 2 messages stay " + stays.format("owned"))
        assert move("queue:owned", "--json") == said
        await owner.close()
        assert move("queue:owned") == ("2 messages are moved to queue:moved\n", "")
        assert move("queue:owned") == ("0 messages are moved to queue:moved\n", "")


@in_a_loop
async def test_a_purged_topic_has_nothing_for_anybody(server: Server) -> None:
    async with opened(server) as (session, admin):
        consumer = await session.consumer("topic:purged", prefetch=0)
        await session.producer("topic:purged").send_many([b"1", b"2"])
        await admin.purge("topic:purged")
        assert await consumer.receive(timeout=0) is None
        assert [one async for one in session.browse("topic:purged")] == []
        await session.producer("topic:purged").send(b"3")
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None and message.body == b"3"


@in_a_loop
async def test_one_consumer_of_an_exclusive_queue_receives_until_it_leaves(server: Server) -> None:
    async with opened(server) as (session, admin):
        await admin.create("queue:exclusive", exclusive=True)
        first = await session.consumer("queue:exclusive", prefetch=1)
        second = await session.consumer("queue:exclusive")
        await session.producer("queue:exclusive").send_many([b"1", b"2", b"3"])
        one = await first.receive(timeout=WAIT_S)
        assert one is not None and one.body == b"1"
        assert await second.receive(timeout=0) is None
        await one.ack()
        await first.close()
        rest = await second.receive_many(2, timeout=WAIT_S)
        assert [message.body for message in rest] == [b"2", b"3"]
        third = await session.consumer("queue:exclusive")
        await session.producer("queue:exclusive").send(b"4")
        assert await third.receive(timeout=0) is None
        await admin.change("queue:exclusive", exclusive=False)
        await session.producer("queue:exclusive").send_many([b"5"] * 20)
        assert await third.receive(timeout=WAIT_S) is not None


@in_a_loop
async def test_the_consumers_of_a_deleted_queue_are_told(server: Server) -> None:
    async with opened(server) as (session, admin):
        consumer = await session.consumer("queue:deleted")
        rows = await admin.consumers("queue:deleted")
        assert [(row["destination"], row["in_flight"]) for row in rows] == [("queue:deleted", 0)]
        waiting = asyncio.create_task(consumer.receive(timeout=WAIT_S))
        await admin.delete("queue:deleted")
        with pytest.raises(antiphon.AntiphonError, match="deleted"):
            await waiting
        assert "queue:deleted" not in [row["name"] for row in await admin.destinations()]
        with pytest.raises(DestinationError, match="no destination"):
            await admin.delete("queue:deleted")
        await session.producer("queue:deleted").send(b"a new one")


@in_a_loop
async def test_the_command_line_lists_and_sends_back(server: Server) -> None:
    await die(server, "queue:lined", [b"1", b"2"])
    said = command("admin", "dead", "queue:lined", "--json", url=server.url)
    rows = json.loads(said.stdout)
    assert [(row["destination"], row["reason"]) for row in rows] == [("queue:lined", "rejected")] * 2
    assert "queue:lined" in command("admin", "dead", url=server.url).stdout
    one = command("admin", "retry", "--id", rows[0]["message_id"], "--json", url=server.url)
    assert json.loads(one.stdout) == {"messages": 1}
    missing = command("admin", "retry", "--id", rows[0]["message_id"], url=server.url)
    assert (missing.returncode, missing.stdout) == (1, "0 messages are sent back\n")
    command("admin", "retry", "queue:lined", url=server.url)
    assert "2 messages" in command("admin", "move", "queue:lined", "queue:lined2", url=server.url).stdout
    assert (
        command("admin", "change", "queue:lined", "--redelivery-limit", "3", url=server.url).returncode == 0
    )
    assert command("admin", "purge", "queue:lined2", url=server.url).returncode == 0
    assert command("admin", "consumers", url=server.url).returncode == 0
    assert command("admin", "delete", "queue:lined2", url=server.url).returncode == 0
    gone = command("admin", "delete", "queue:lined2", url=server.url)
    assert (gone.returncode, gone.stdout) == (1, "")


# -- restarts --------------------------------------------------------------------------------------


@in_a_loop
async def test_counts_and_dead_messages_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data) as server:
        await die(server, "queue:dead", [b"dead"])
        async with opened(server) as (session, admin):
            await admin.create("queue:kept", redelivery_limit=2)
            await session.producer("queue:kept").send(b"kept")
            for _ in range(2):
                async with session.consumer("queue:kept") as consumer:
                    assert await consumer.receive(timeout=WAIT_S)
    with Server(data) as server:
        async with opened(server) as (session, admin):
            async with session.consumer("queue:kept") as consumer:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None and message.delivery_count == 3
            (row,) = await dead_of(admin, "queue:kept", 1)
            assert row["delivery_count"] == 3
            assert len(await admin.dead("queue:dead")) == 1
