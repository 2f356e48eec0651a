"""Topics, subscriptions and browsing with a real server: who gets what, in which order, and for how long."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import antiphon
from tests.processes import Server
from tests.processes import antiphon as command

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("topics") / "data") as running:
        yield running


@asynccontextmanager
async def in_session(
    server: Server, ack: Any = "auto", client_id: str | None = None
) -> AsyncIterator[antiphon.Session]:
    async with (
        antiphon.connect(server.url, client_id=client_id) as connection,
        connection.session(ack=ack) as session,
    ):
        yield session


async def told(server: Server, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the server tells of a destination, asked until it is as the condition says."""
    async with antiphon.connect(server.url) as connection, asyncio.timeout(WAIT_S):
        admin = connection.admin()
        while True:
            for row in await admin.destinations():
                if row["name"] == name and condition(row):
                    return row


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


async def received(consumer: antiphon.Consumer, count: int) -> list[bytes]:
    messages = await consumer.receive_many(count, timeout=WAIT_S)
    return [bytes(message.body_bytes) for message in messages]


# -- pace ------------------------------------------------------------------------------------------


def test_a_slow_subscriber_holds_up_no_fast_one(server: Server) -> None:
    async def run() -> None:
        async with (
            in_session(server) as publishing,
            in_session(server) as quick,
            in_session(server, ack="individual") as lazy,
        ):
            fast = await quick.consumer("topic:pace", prefetch=100)
            slow = await lazy.consumer("topic:pace", prefetch=100)
            producer = await publishing.producer("topic:pace")
            bodies = numbered(5_000)
            await producer.send_many(bodies)
            held = await slow.receive_many(50, timeout=WAIT_S)
            assert await received(fast, 5_000) == bodies, "while the slow one holds half of its prefetch"
            # It comes back to life, and has missed nothing.
            for message in held:
                await message.ack()
            rest: list[bytes] = []
            while len(rest) < 4_950:
                messages = await slow.receive_many(min(100, 4_950 - len(rest)), timeout=WAIT_S)
                rest += [bytes(message.body_bytes) for message in messages]
                await asyncio.gather(*(message.ack() for message in messages))
            assert [bytes(message.body_bytes) for message in held] + rest == bodies

    asyncio.run(run())


def test_one_copy_serves_all_subscribers(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            consumers = [await session.consumer("topic:copies") for _ in range(10)]
            await (await session.producer("topic:copies")).send_many([bytes(1_000)] * 100)
            for consumer in consumers:
                assert len(await received(consumer, 100)) == 100
            row = await told(server, "topic:copies", lambda row: bool(row["acknowledged"] == 1_000))
            assert row["messages"] == row["published"] == 100
            assert row["bytes"] < 120_000
            assert len(row["subscriptions"]) == row["consumers"] == 10
        row = await told(server, "topic:copies", lambda row: not row["subscriptions"])
        assert row["messages"] == 100, "an hour of it is kept"

    asyncio.run(run())


# -- coming and going --------------------------------------------------------------------------------


def test_a_durable_subscription_survives_the_server(tmp_path: Path) -> None:
    async def before(server: Server) -> None:
        async with in_session(server, client_id="desk") as session:
            consumer = await session.consumer("topic:durable", durable="audit")
            await (await session.producer("topic:durable")).send_many(numbered(10))
            assert await received(consumer, 4) == numbered(4)
            await consumer.close()
            await (await session.producer("topic:durable")).send_many(numbered(10, first=10))

    async def after(server: Server) -> None:
        async with in_session(server, client_id="desk") as session:
            consumer = await session.consumer("topic:durable", durable="audit", start="earliest")
            assert await received(consumer, 16) == numbered(16, first=4)
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.consumer("topic:durable", durable="audit")
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.unsubscribe("audit")
            await consumer.close()
            await session.unsubscribe("audit")
            with pytest.raises(antiphon.SubscriptionError):
                await session.unsubscribe("audit")
            again = await session.consumer("topic:durable", durable="audit")
            assert await again.receive(timeout=0) is None, "a new one, from now on"

    data = tmp_path / "data"
    with Server(data) as server:
        asyncio.run(before(server))
        server.kill()
    with Server(data) as server:
        asyncio.run(after(server))
        assert server.stop() == 0


@pytest.mark.parametrize("durable", [None, "audit"])
def test_subscribers_do_not_notice_that_the_server_was_killed(tmp_path: Path, durable: str | None) -> None:
    data = tmp_path / "data"
    servers = [Server(data).wait_ready()]
    url = servers[0].url

    def restart() -> None:
        servers[-1].__exit__(None, None, None)
        servers.append(Server(data, "--port", url.rpartition(":")[2]).wait_ready())

    async def run() -> None:
        async with (
            antiphon.connect(url, client_id="desk") as connection,
            connection.session(ack="individual") as session,
            antiphon.connect(url) as other,
            other.session() as publishing,
        ):
            consumer = await session.consumer("topic:restart", durable=durable, prefetch=20)
            producer = await publishing.producer("topic:restart")
            await producer.send_many(numbered(100))
            held = await consumer.receive_many(10, timeout=WAIT_S)
            await asyncio.to_thread(restart)
            await producer.send_many(numbered(100, first=100))
            messages = await consumer.receive_many(190, timeout=WAIT_S)
            assert [bytes(m.body_bytes) for m in [*held, *messages]] == numbered(200)
            for message in [*held, *messages]:
                await message.ack()
            rows = await other.admin().destinations()
            assert [row["subscriptions"][0]["backlog"] for row in rows] == [0]

    try:
        asyncio.run(run())
    finally:
        servers[-1].__exit__(None, None, None)


CONSUMER = """
import asyncio, sys
import antiphon

async def main(url, destination, prefetch, taken, acknowledged):
    async with antiphon.connect(url, client_id="desk") as connection:
        session = await connection.session(ack="individual")
        durable = "audit" if destination.startswith("topic:") else None
        consumer = await session.consumer(destination, prefetch=prefetch, durable=durable)
        print("attached", flush=True)
        messages = await consumer.receive_many(taken, timeout=20)
        for message in messages[:acknowledged]:
            await message.ack()
        print(" ".join(bytes(message.body_bytes).decode() for message in messages), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
"""


class OtherProcess:
    """A consumer that can be killed: it takes and acknowledges so many messages, and then does nothing."""

    def __init__(
        self, server: Server, destination: str, prefetch: int, taken: int, acknowledged: int
    ) -> None:
        words = [server.url, destination, str(prefetch), str(taken), str(acknowledged)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout

    def __enter__(self) -> OtherProcess:
        assert self.said.readline() == "attached\n"
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.said.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.mark.parametrize("destination", ["queue:half", "topic:half"])
def test_what_a_lost_consumer_held_comes_again_in_its_place(server: Server, destination: str) -> None:
    """Twenty were sent ahead and taken, ten of them acknowledged; then the process is killed."""

    async def publish() -> None:
        async with in_session(server) as session:
            await (await session.producer(destination)).send_many(numbered(100))

    async def go_on() -> None:
        # The dead one is waited for a moment: it might have lost only its connection.
        await told(server, destination, lambda row: row["in_flight"] == row["consumers"] == 0)
        async with in_session(server, client_id="desk") as session:
            durable = "audit" if destination.startswith("topic:") else None
            consumer = await session.consumer(destination, durable=durable)
            messages = await consumer.receive_many(90, timeout=WAIT_S)
            assert [bytes(message.body_bytes) for message in messages] == numbered(90, first=10)
            # Ten were in its hands, and up to twenty more were on their way to it.
            assert all(message.redelivered and message.delivery_count == 2 for message in messages[:10])
            assert not any(message.redelivered or message.delivery_count > 1 for message in messages[30:])

    with OtherProcess(server, destination, prefetch=20, taken=20, acknowledged=10) as other:
        asyncio.run(publish())
        assert other.said.readline().split() == [body.decode() for body in numbered(20)]
    asyncio.run(go_on())


def test_of_two_consumers_of_a_queue_one_may_stop(server: Server) -> None:
    """The other gets everything but what the stopped one holds; and that, too, when it is gone."""

    async def run() -> None:
        async with in_session(server) as session:
            busy = await session.consumer("queue:stopped", prefetch=10)
            await (await session.producer("queue:stopped")).send_many(numbered(1_000))
            first = other.said.readline().encode().split()
            assert len(first) == 10
            rest = await received(busy, 980)
            assert rest == sorted(rest) and not set(first) & set(rest)
            row = await told(server, "queue:stopped", lambda row: bool(row["acknowledged"] == 980))
            assert (row["messages"], row["consumers"]) == (20, 2)
            other.kill()
            messages = await busy.receive_many(20, timeout=WAIT_S)
            bodies = [bytes(message.body_bytes) for message in messages]
            assert bodies == sorted(set(numbered(1_000)) - set(rest))
            assert all(message.redelivered for message in messages)

    with OtherProcess(server, "queue:stopped", prefetch=10, taken=10, acknowledged=0) as other:
        asyncio.run(run())


# -- start positions -----------------------------------------------------------------------------------


def test_a_subscription_begins_where_it_is_told(server: Server) -> None:
    async def run() -> None:
        async with in_session(server) as session:
            producer = await session.producer("topic:starts")
            receipts = await producer.send_many(numbered(10))
            latest = await session.consumer("topic:starts")
            earliest = await session.consumer("topic:starts", start="earliest")
            seventh = await session.consumer("topic:starts", start=receipts[7].sequence)
            ancient = await session.consumer("topic:starts", start=1)
            await producer.send_many(numbered(2, first=10))
            assert await received(latest, 2) == numbered(2, first=10)
            assert await received(earliest, 12) == numbered(12)
            assert await received(seventh, 5) == numbered(5, first=7)
            assert await received(ancient, 12) == numbered(12)

    asyncio.run(run())


# -- retention -------------------------------------------------------------------------------------------


def test_more_bytes_than_are_to_be_kept_go(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            admin = connection.admin()
            await admin.create("topic:bytes", retention_bytes=100_000)
            await admin.create("topic:bytes", retention_bytes=100_000)
            with pytest.raises(antiphon.DestinationError, match="its retention_bytes is 100000, not 5"):
                await admin.create("topic:bytes", retention_bytes=5)
            slow = await session.consumer("topic:bytes", prefetch=10)
            bodies = [b"%05d" % number + bytes(1_000) for number in range(1_000)]
            await (await session.producer("topic:bytes")).send_many(bodies)
            row = await told(server, "topic:bytes", lambda row: row["published"] == 1_000)
            assert row["messages"] == 1_000, "a subscriber needs them"
            assert await received(slow, 1_000) == bodies
            row = await told(server, "topic:bytes", lambda row: row["bytes"] <= 100_000)
            assert 50 < row["messages"] < 100
            late = await session.consumer("topic:bytes", start="earliest")
            assert await received(late, row["messages"]) == bodies[-row["messages"] :]

    asyncio.run(run())


def test_what_is_older_than_is_to_be_kept_goes_by_itself(server: Server) -> None:
    async def run() -> None:
        async with (
            antiphon.connect(server.url, client_id="desk") as connection,
            connection.session() as session,
        ):
            await connection.admin().create("topic:needed", retention=0.5)
            await connection.admin().create("topic:age", retention=0.5)
            await session.consumer("topic:needed", durable="keeps")
            await (await session.producer("topic:needed")).send_many(numbered(100))
            await (await session.producer("topic:age")).send_many(numbered(100))
            await told(server, "topic:age", lambda row: row["published"] == 100 and not row["messages"])
            row = await told(server, "topic:needed", lambda row: True)
            assert row["messages"] == 100, "it is as old, but a subscription needs it"

    asyncio.run(run())


# -- browsing ---------------------------------------------------------------------------------------------


def test_browsing_shows_everything_and_takes_nothing(server: Server) -> None:
    async def run() -> None:
        async with in_session(server, ack="individual") as session:
            bodies = [b"%05d" % number + bytes(2_000) for number in range(3_000)]
            await (await session.producer("queue:browse")).send_many(bodies)
            consumer = await session.consumer("queue:browse")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None
            await message.ack()
            seen = [message async for message in session.browse("queue:browse")]
            assert [bytes(message.body_bytes) for message in seen] == bodies[1:]
            assert [message.sequence for message in seen] == sorted(message.sequence for message in seen)
            row = await told(server, "queue:browse", lambda row: True)
            assert row["messages"] == 2_999
            await (await session.producer("topic:browse")).send_many(numbered(5))
            assert [message.body async for message in session.browse("topic:browse")] == numbered(5)

    asyncio.run(run())


# -- the command line -------------------------------------------------------------------------------------


def test_the_command_line_knows_topics(server: Server) -> None:
    url = server.url
    made = command("admin", "create", "topic:cli", "--retention", "1h", "--retention-bytes", "1000", url=url)
    assert (made.returncode, made.stdout) == (0, "topic:cli is there\n")
    other = command("admin", "create", "topic:cli", "--retention", "2h", url=url)
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "its retention is 3600, not 7200" in other.stderr
    assert command("send", "topic:cli", url=url, stdin="one\ntwo\nthree\n").returncode == 0
    first = command("receive", "topic:cli", "--durable", "d", "--from", "earliest", "--count", "2", url=url)
    assert first.stdout == "one\ntwo\n"
    (row,) = [
        row
        for row in json.loads(command("admin", "destinations", "--json", url=url).stdout)
        if row["name"] == "topic:cli"
    ]
    assert row["subscriptions"] == [
        {"name": "d", "client_id": "d", "durable": True, "shared": False, "backlog": 1}
    ]
    assert (row["messages"], row["published"]) == (3, 3)
    table = command("admin", "destinations", url=url).stdout.splitlines()
    assert ["topic:cli", "d", "d", "True", "False", "1"] in [line.split() for line in table]
    assert command("receive", "topic:cli", "--durable", "d", "--timeout", "0.2", url=url).stdout == "three\n"
    shared = ("receive", "topic:cli", "--durable", "s", "--shared")
    assert command(*shared, "--from", "earliest", "--count", "2", url=url).stdout == "one\ntwo\n"
    assert command(*shared, "--client-id", "d", "--timeout", "0.2", url=url).stdout == "", "another one"
    assert command(*shared, "--timeout", "0.2", url=url).stdout == "three\n"
    passing = command("receive", "topic:cli", "--shared", "p", "--from", "earliest", "--count", "3", url=url)
    assert passing.stdout == "one\ntwo\nthree\n"
    assert command("receive", "topic:cli", "--shared", "p", "--timeout", "0.2", url=url).stdout == ""
    for words in (("--shared",), ("--durable", "d", "--shared", "p"), ("--durable", "d", "--shared")):
        refused = command("receive", "topic:cli", *words, "--client-id", "d", url=url)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert command("receive", "topic:cli", "--timeout", "0.1", url=url).stdout == ""
    assert command("browse", "topic:cli", "--limit", "2", url=url).stdout == "one\ntwo\n"
    shown = command("browse", "topic:cli", "--json", url=url).stdout.splitlines()
    assert [json.loads(line)["body"] for line in shown] == ["one", "two", "three"]
    refused = command("receive", "queue:cli", "--from", "earliest", url=url)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert command("receive", "topic:cli", "--from", "soon", url=url).returncode == 2
