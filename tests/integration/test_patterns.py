"""Consumers of all topics that match a pattern, with a real server of two channels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import in_session
from tests.processes import Server
from tests.processes import antiphon as command

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("patterns") / "data") as running:
        yield running


async def received(consumer: antiphon.Consumer, count: int) -> list[tuple[str, bytes]]:
    messages = await consumer.receive_many(count, timeout=WAIT_S)
    return [(message.destination, bytes(message.body_bytes)) for message in messages]


def test_topics_that_match_are_consumed_as_one(server: Server) -> None:
    """Also those that are made later, from their first message on; others are not."""

    async def story() -> None:
        async with in_session(server) as session:
            before = session.producer("topic:one.before")
            await before.send(b"old")
            consumer = await session.consumer("topic:one.*", match="glob")
            assert consumer.destination == "topic:one.*"
            await before.send(b"1")
            await session.producer("topic:one.after").send(b"2")
            await session.producer("topic:other").send(b"no")
            await before.send(b"3")
            found = await received(consumer, 3)
            assert sorted(found) == [
                ("topic:one.after", b"2"),
                ("topic:one.before", b"1"),
                ("topic:one.before", b"3"),
            ]
            assert await consumer.receive(timeout=0.2) is None

    asyncio.run(story())


def test_the_command_line_receives_by_a_pattern(server: Server) -> None:
    for at in range(2):
        assert command("send", f"topic:line.{at}", f"m{at}", "--url", server.url).returncode == 0
    told = command(
        *("receive", "topic:line.?", "--match", "glob", "--from", "earliest", "--json", "--url", server.url)
    )
    assert told.returncode == 0, told.stderr
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(row["destination"], row["body"]) for row in rows] == [
        ("topic:line.0", "m0"),
        ("topic:line.1", "m1"),
    ]


def test_an_operator_sees_patterns_and_who_consumes_them(server: Server) -> None:
    async def story() -> None:
        async with in_session(server) as session, antiphon.connect(server.url) as other:
            await session.producer("topic:seen.a").send(b"1")
            await session.consumer("topic:seen.*", match="glob", shared="crew")
            admin = other.admin()
            async with asyncio.timeout(WAIT_S):
                while True:
                    rows = [row for row in await admin.destinations() if row.get("topics")]
                    found = [row for row in rows if row["pattern"] == "topic:seen.* (glob)"]
                    if found:
                        break
            (row,) = found
            assert (row["topics"], row["consumers"], row["messages"]) == (1, 1, 0)
            assert [one["name"] for one in row["subscriptions"]] == ["crew"]
            of_crew = [row for row in await admin.consumers() if row["subscription"] == "crew"]
            assert [row["destination"] for row in of_crew] == ["topic:seen.* (glob)"]
            told = command("admin", "destinations", "--url", server.url).stdout
            assert "topic:seen.* (glob)" in told and "_MATCH" not in told

    asyncio.run(story())


def test_what_is_no_pattern_is_refused_with_a_reason(server: Server) -> None:
    async def story() -> None:
        async with in_session(server) as session:
            for name, match, words in (
                ("queue:orders.*", "glob", "a pattern of queues: only topics are subscribed to"),
                ("prices.*", "glob", "does not start with topic:"),
                ("topic:(", "regex", "no regular expression of RE2"),
                ("topic:a", "like", "match is 'glob' or 'regex'; it was 'like'"),
                ("topic:" + 241 * "a", "glob", "a pattern of 241 bytes; 1 to 240 are allowed"),
                ("topic:", "glob", "a pattern of 0 bytes"),
            ):
                with pytest.raises(antiphon.LocalError, match=words.replace("(", r"\(")):
                    session.consumer(name, match=match)  # type: ignore[arg-type]
            with pytest.raises(antiphon.LocalError, match="a sequence number is one of a channel"):
                await session.consumer("topic:a*", match="glob", start=7)
            with pytest.raises(antiphon.InvalidName, match="a wildcard: consumers take the topics"):
                session.consumer("topic:a*")
            reserved = "topic:_MATCH.glob.a*"
            with pytest.raises(antiphon.InvalidName, match="asked for with match='glob'"):
                session.consumer(reserved)
            with pytest.raises(antiphon.InvalidName, match="only consumed"):
                session.browse(reserved)
            with pytest.raises(antiphon.InvalidName):
                session.producer(reserved)
            async with antiphon.connect(server.url) as other:
                for refused in (
                    other.admin().purge(reserved),
                    other.admin().delete(reserved),
                    other.admin().create(reserved),
                    other.admin().change(reserved, retention=1),
                ):
                    with pytest.raises(antiphon.InvalidName):
                        await refused

    asyncio.run(story())


def test_a_durable_pattern_waits_goes_on_and_ends(server: Server) -> None:
    async def story() -> None:
        async with in_session(server, client_id="desk") as session:
            await (await session.consumer("topic:kept.*", match="glob", durable="audit")).close()
            for at in range(3):
                await session.producer(f"topic:kept.{at}").send(b"%d" % at)
        async with in_session(server, client_id="desk") as session:
            consumer = await session.consumer("topic:kept.*", match="glob", durable="audit")
            assert [body for _, body in await received(consumer, 3)] == [b"0", b"1", b"2"]
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.consumer("topic:kept.?", match="glob", durable="audit")
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.unsubscribe("audit")
            await consumer.close()
            # Another pattern begins anew, and so does a topic.
            other = await session.consumer("topic:kept\\.[12]", match="regex", durable="audit")
            for at in range(3):
                await session.producer(f"topic:kept.{at}").send(b"again %d" % at)
            assert [body for _, body in await received(other, 2)] == [b"again 1", b"again 2"]
            await other.close()
            plain = await session.consumer("topic:kept.0", durable="audit")
            await session.producer("topic:kept.1").send(b"no")
            await session.producer("topic:kept.0").send(b"yes")
            assert await received(plain, 1) == [("topic:kept.0", b"yes")]
            await plain.close()
            await session.unsubscribe("audit")
            with pytest.raises(antiphon.SubscriptionError):
                await session.unsubscribe("audit")

    asyncio.run(story())


def test_a_shared_pattern_is_shared_and_a_selector_chooses(server: Server) -> None:
    async def story() -> None:
        async with in_session(server) as one, in_session(server) as two:
            options: dict[str, Any] = {"match": "glob", "shared": "crew", "selector": "n > 2", "prefetch": 1}
            workers = [await session.consumer("topic:shared.*", **options) for session in (one, two)]
            producer = one.producer("topic:shared.a")
            for n in range(7):
                await producer.send(b"%d" % n, properties={"n": n})
            got = [*await received(workers[0], 1), *await received(workers[1], 1)]
            while len(got) < 4:
                for worker in workers:
                    message = await worker.receive(timeout=0.2)
                    got += [] if message is None else [(message.destination, bytes(message.body_bytes))]
            assert sorted(got) == [("topic:shared.a", b"%d" % n) for n in (3, 4, 5, 6)]

    asyncio.run(story())


def test_a_transaction_consumes_by_a_pattern(server: Server) -> None:
    async def story() -> None:
        async with (
            antiphon.connect(server.url) as connection,
            connection.session(transacted=True) as session,
            connection.session() as plain,
        ):
            consumer = await session.consumer("topic:moved.*", match="glob", no_local=False)
            out = await plain.consumer("topic:done")
            await plain.producer("topic:moved.a").send(b"1")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None
            await session.rollback()
            again = await consumer.receive(timeout=WAIT_S)
            assert again is not None and again.delivery_count == 2
            await session.producer("topic:done").send(again.body)
            await session.commit()
            assert await received(out, 1) == [("topic:done", b"1")]
            assert await consumer.receive(timeout=0.2) is None

    asyncio.run(story())


def test_a_pattern_over_two_thousand_topics(server: Server) -> None:
    """Subscribing is one command, and so is a topic that is made later."""
    count = 2_000

    async def story() -> None:
        async with in_session(server) as session:
            consumer = await session.consumer("topic:many.*", match="glob", prefetch=1_000)

            async def send(first: int) -> None:
                for at in range(first, count, 100):
                    await session.producer(f"topic:many.{at}").send(b"%d" % at)

            await asyncio.gather(*map(send, range(100)))
            found = await received(consumer, count)
            assert sorted(found) == sorted((f"topic:many.{at}", b"%d" % at) for at in range(count))
            await consumer.close()
            again = await session.consumer("topic:many.*", match="glob", start="earliest")
            assert len(await received(again, count)) == count
            await session.producer("topic:many.late").send(b"late")
            assert await received(again, 1) == [("topic:many.late", b"late")]

    asyncio.run(story())
