"""A client id belongs to one connection, however that comes, goes and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from tests.processes import Server

WAIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ids") / "data") as running:
        yield running


def test_a_second_connection_is_refused_until_the_first_is_closed(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url, client_id="desk"):
            with pytest.raises(antiphon.ClientIdInUse, match="'desk'"):
                await antiphon.connect(server.url, client_id="desk")
            async with antiphon.connect(server.url, client_id="lab"), antiphon.connect(server.url):
                pass
        async with antiphon.connect(server.url, client_id="desk") as connection:
            assert connection.state == "connected"

    asyncio.run(run())


def test_of_many_at_once_one_is_let_in(server: Server) -> None:
    async def run() -> None:
        attempts = [antiphon.connect(server.url, client_id="crowd") for _ in range(20)]
        came = await asyncio.gather(*(attempt._opened() for attempt in attempts), return_exceptions=True)
        winners = [one for one in came if isinstance(one, antiphon.Connection)]
        losers = [one for one in came if isinstance(one, antiphon.ClientIdInUse)]
        assert (len(winners), len(losers)) == (1, 19)
        await winners[0].close()

    asyncio.run(run())


HOLDER = """
import asyncio, sys
import antiphon

async def main(url):
    async with antiphon.connect(url, client_id="desk") as connection, connection.session() as session:
        await session.consumer("topic:held", durable="audit")
        print("there", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


def test_who_comes_after_a_client_that_was_killed_waits_for_its_client_id_and_gets_it(server: Server) -> None:
    async def run() -> None:
        async with antiphon.connect(server.url, client_id="desk", timeout=WAIT_S) as connection:
            session = await connection.session()
            await session.producer("topic:held").send(b"m")
            consumer = await session.consumer("topic:held", durable="audit")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None and message.body == b"m"

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, server.url], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "there\n"
        holder.kill()
        holder.wait()
    asyncio.run(run())


def test_a_connection_keeps_its_client_id_over_a_restart_of_the_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    servers = [Server(data).wait_ready()]
    url = servers[0].url

    def restart() -> None:
        servers[-1].__exit__(None, None, None)
        servers.append(Server(data, "--port", url.rpartition(":")[2]).wait_ready())

    async def run() -> None:
        async with antiphon.connect(url, client_id="desk") as connection, connection.session() as session:
            consumer = await session.consumer("topic:kept", durable="audit")
            await asyncio.to_thread(restart)
            await session.producer("topic:kept").send(b"m")
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None and message.body == b"m"
            with pytest.raises(antiphon.ClientIdInUse):
                await antiphon.connect(url, client_id="desk")
        async with antiphon.connect(url, client_id="desk"):
            pass

    try:
        asyncio.run(run())
    finally:
        servers[-1].__exit__(None, None, None)
