"""Holds and checkpoints with real servers: whatever was held, a node starts again from its own checkpoint."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import antiphon
from antiphon.errors import RangeError
from tests.bus_members import has_multicast
from tests.client_scenes import numbered, reading, run
from tests.cluster_processes import ClusterProcess
from tests.processes import Server

# More than a checkpoint waits for.
BULK, BULK_BODY = 72, bytes(1_000_000)


async def checkpoint_of(connection: antiphon.Connection) -> int:
    (channel,) = (await connection.admin().status())["channels"]
    checkpoint: int = channel["checkpoint"]
    return checkpoint


async def hold_and_pass_a_checkpoint(url: str) -> None:
    """Ask for a hold beyond the end, hold as far as one can, acknowledge, and wait for a checkpoint."""
    async with reading(url) as (connection, session, ranges):
        await session.producer("queue:orders").send_many(numbered(4))
        bulk = await session.producer("queue:bulk")
        wanted = await ranges.destinations(["queue:orders"])
        with pytest.raises(RangeError, match="position 1,000,000 lies beyond the end of the channel"):
            await ranges.hold("audit", {"a": 1_000_000}, wanted, acks=True)
        end = (await ranges.heads(wanted))["a"].applied + 1
        await ranges.hold("audit", {"a": end}, wanted, acks=True)
        consumer = await session.consumer("queue:orders")
        taken = await consumer.receive_many(1, timeout=10)
        assert [message.body for message in taken] == numbered(1)
        await consumer.close()
        number = (await ranges.heads(wanted))["a"].applied
        for _ in range(BULK):
            await bulk.send(BULK_BODY)
        async with asyncio.timeout(60):
            while await checkpoint_of(connection) <= number:
                # There is no news: it is the wait between two looks.
                await ranges.heads(wanted, {"a": 1 << 40}, wait=0.2)


async def everything_is_there(url: str) -> None:
    async with reading(url) as (_, session, ranges):
        (hold,) = await ranges.holds()
        assert (hold.name, hold.acks) == ("audit", True)
        left = await session.consumer("queue:orders").receive_many(3, timeout=20)
        assert [message.body for message in left] == numbered(4)[1:]
        await ranges.release("audit")
        assert await ranges.holds() == ()


def test_a_node_starts_again_after_somebody_asked_for_a_hold_beyond_the_end(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        run(hold_and_pass_a_checkpoint(first.url), 120)
        assert list(first.data.rglob("checkpoint-*"))
        assert first.stop() == 0
    with Server(tmp_path / "data") as second:
        run(everything_is_there(second.url), 60)


@pytest.mark.skipif(not has_multicast(), reason="this machine carries no multicast on its loopback")
@pytest.mark.timeout(300)
def test_a_cluster_keeps_its_disks_in_a_rolling_restart_after_such_a_hold(tmp_path: Path) -> None:
    async def test(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        await hold_and_pass_a_checkpoint(cluster.url)
        await cluster.equal()
        for name in cluster.message_managers:
            life = cluster.nodes[name]
            life.send(signal.SIGTERM)
            await asyncio.to_thread(life.wait_end)
            await cluster.restart(name)
            await cluster.synchronized()
        await everything_is_there(cluster.url)
        await cluster.equal()
        assert not list(cluster.data.rglob("*-why.txt")), f"a disk was put aside: {cluster.stderr()}"

    with ClusterProcess(tmp_path, client_managers=1, message_managers=3, has_faults=False) as cluster:
        run(test(cluster), 240)
