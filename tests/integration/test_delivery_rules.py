"""Priority, time to live and delay with a real server and the real client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import antiphon
from tests.processes import Server
from tests.processes import antiphon as command

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("rules") / "data") as running:
        yield running


async def told(connection: antiphon.Connection, name: str, **wanted: Any) -> dict[str, Any]:
    """The row of a destination, asked until it is as wanted."""
    admin = connection.admin()
    async with asyncio.timeout(WAIT_S):
        while True:
            for row in await admin.destinations():
                if row["name"] == name and row | wanted == row:
                    return row


def test_the_most_urgent_message_comes_first(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            producer = session.producer("queue:urgent")
            await producer.send_many([antiphon.Row(b"%d" % at, priority=at % 10) for at in range(20)])
            consumer = session.consumer("queue:urgent")
            messages = await consumer.receive_many(20, timeout=WAIT_S)
            assert [int(message.body) for message in messages] == [
                at for priority in range(9, -1, -1) for at in (priority, priority + 10)
            ]
            assert messages[0].priority == 9

    asyncio.run(run())


def test_an_expired_message_is_neither_delivered_nor_browsed(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            producer = session.producer("queue:short")
            await producer.send(b"short", ttl=0.05)
            await producer.send(b"long", ttl=3_600)
            row = await told(connection, "queue:short", expired=1)
            assert (row["published"], row["messages"], row["acknowledged"]) == (2, 1, 0)
            assert [message.body async for message in session.browse("queue:short")] == [b"long"]
            consumer = session.consumer("queue:short")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None and message.body == b"long"
            assert message.expires == pytest.approx(message.timestamp + 3_600)
            assert await consumer.receive(timeout=0) is None

    asyncio.run(run())


def test_a_delayed_message_is_neither_delivered_nor_browsed_before_its_time(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            producer = session.producer("queue:later")
            consumer = await session.consumer("queue:later")
            await producer.send(b"next year", delay=365 * 86_400)
            await producer.send(b"soon", delay=0.3)
            await producer.send(b"now")
            assert [message.body async for message in session.browse("queue:later")] in (
                [b"now"],
                [b"soon", b"now"],
            )
            messages = await consumer.receive_many(2, timeout=WAIT_S)
            assert [message.body for message in messages] == [b"now", b"soon"]
            assert messages[1].deliver_at == pytest.approx(messages[1].timestamp + 0.3)
            assert (await told(connection, "queue:later", acknowledged=2))["messages"] == 1

    asyncio.run(run())


def test_messages_of_a_topic_expire_for_all_subscriptions(server: Server) -> None:
    async def run() -> None:
        async with (
            antiphon.connect(server.url, client_id="desk") as connection,
            connection.session() as session,
        ):
            for name in ("one", "two"):
                async with session.consumer("topic:short", durable=name):
                    pass
            await session.producer("topic:short").send(b"gone", ttl=0.05)
            await session.producer("topic:short").send(b"here", ttl=600)
            await told(connection, "topic:short", expired=2)
            consumer = session.consumer("topic:short", durable="one")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None and message.body == b"here"

    asyncio.run(run())


def test_a_transaction_s_messages_keep_their_rules(server: Server) -> None:
    async def run() -> None:
        async with (
            antiphon.connect(server.url) as connection,
            connection.session(transacted=True) as session,
            connection.session() as reading,
        ):
            producer = session.producer("queue:together")
            await producer.send(b"plain")
            await producer.send(b"urgent", priority=9)
            await producer.send(b"short", ttl=0.05)
            await session.commit()
            await told(connection, "queue:together", expired=1)
            messages = await reading.consumer("queue:together").receive_many(2, timeout=WAIT_S)
            assert [message.body for message in messages] == [b"urgent", b"plain"]

    asyncio.run(run())


def test_the_command_line_sends_with_rules(server: Server) -> None:
    sent = command(
        "send", "queue:line", "a", "--ttl", "600", "--delay", "0.05", "--priority", "8", url=server.url
    )
    assert sent.returncode == 0, sent.stderr
    shown = command("receive", "queue:line", "--count", "1", "--timeout", "20", "--json", url=server.url)
    assert json.loads(shown.stdout)["priority"] == 8
    refused = command("send", "queue:line", "a", "--ttl", "0", url=server.url)
    assert refused.returncode == 2 and "a message lives for more than 0 seconds" in refused.stderr
