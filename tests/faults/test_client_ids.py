"""A client id on a cluster of real processes: one connection has it, at whichever client manager."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import antiphon
from tests.bus_members import NO_MULTICAST, has_multicast
from tests.cluster_processes import ClusterProcess

DETACH_SECONDS = 40.0
"""Until a killed client manager is taken for dead and the client ids of its clients are free: two seconds
each, and room for a busy machine."""

GO_ON_SECONDS = 20.0


@pytest.mark.timeout(300)
def test_a_client_id_is_one_connection_s_and_is_free_after_its_client_manager_was_killed(
    tmp_path: Path,
) -> None:
    if not has_multicast():
        pytest.skip(NO_MULTICAST)

    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        scheme, _, addresses = cluster.url.partition("://")
        first, second = (f"{scheme}://{address}" for address in addresses.split(","))
        attempts = [antiphon.connect(url, client_id="desk", reconnect=0) for url in (first, second)]
        came = await asyncio.gather(*(one._opened() for one in attempts), return_exceptions=True)
        winners = [at for at, one in enumerate(came) if isinstance(one, antiphon.Connection)]
        assert len(winners) == 1 and isinstance(came[1 - winners[0]], antiphon.ClientIdInUse), came
        there, elsewhere = (first, second) if winners == [0] else (second, first)

        # A connection that comes back elsewhere keeps its client id, as long as it takes.
        async with antiphon.connect(there, client_id="faithful") as faithful:
            session = await faithful.session()
            consumer = await session.consumer("topic:kept", durable="audit")
            killed = cluster.client_managers[winners[0]]
            cluster.kill(killed)
            async with asyncio.timeout(GO_ON_SECONDS):
                await session.producer("topic:kept").send(b"m")
                message = await consumer.receive(timeout=GO_ON_SECONDS)
            assert message is not None and message.body == b"m"
            with pytest.raises(antiphon.ClientIdInUse):
                await antiphon.connect(elsewhere, client_id="faithful")

            # A connection that does not come back loses it.
            began = time.monotonic()
            async with asyncio.timeout(DETACH_SECONDS):
                while True:
                    try:
                        successor = await antiphon.connect(elsewhere, client_id="desk")
                        break
                    except antiphon.ClientIdInUse:
                        # The answer takes a round trip, so that this is no busy loop.
                        continue
            print(f"another connection had the client id {time.monotonic() - began:.1f} s after the kill")
            await successor.close()
            with pytest.raises(antiphon.ClientIdInUse):
                await antiphon.connect(elsewhere, client_id="faithful")

    with ClusterProcess(tmp_path, client_managers=2, message_managers=2) as cluster:
        asyncio.run(story(cluster))
