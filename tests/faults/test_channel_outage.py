"""Two channels of real processes, one of them down: who has to do with both goes on with the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import antiphon
from tests.bus_members import NO_MULTICAST, has_multicast
from tests.cluster_processes import ClusterProcess

GO_ON_SECONDS = 20.0
"""Connecting to another client manager, and resuming a session there, on a busy machine."""

HERE, THERE = "queue:here", "queue:there"


@pytest.mark.timeout(300)
def test_a_session_of_two_channels_goes_on_with_one_while_the_other_is_down(tmp_path: Path) -> None:
    """Its client manager dies while a channel is down. What was sent there is confirmed when that is back."""
    if not has_multicast():
        pytest.skip(NO_MULTICAST)

    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        down = await cluster.primary("b")
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            await connection.admin().create(HERE, channel="a")
            await connection.admin().create(THERE, channel="b")
            here, there = await session.producer(HERE), await session.producer(THERE)
            consumer = await session.consumer(HERE)
            await there.send(b"before")
            cluster.kill(down)
            waiting = asyncio.create_task(there.send(b"meanwhile", timeout=90))
            cluster.kill(cluster.client_managers[0])

            async with asyncio.timeout(GO_ON_SECONDS):
                await here.send(b"beside")
                message = await consumer.receive(timeout=GO_ON_SECONDS)
            assert message is not None and bytes(message.body_bytes) == b"beside"
            assert not waiting.done(), "the channel is down"

            await cluster.restart(down)
            await waiting
            stored = [bytes(message.body_bytes) async for message in session.browse(THERE)]
            assert stored == [b"before", b"meanwhile"]

    options = ["--channels", "2"]
    with ClusterProcess(tmp_path, options=options, client_managers=2, message_managers=1) as cluster:
        asyncio.run(story(cluster))
