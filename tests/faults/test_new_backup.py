"""A new backup joins a channel that holds a gigabyte, while messages flow: publishing hardly feels it.

What it may feel is the work: the processes share the cores of one machine. So the time of a publish beside a
joining backup is compared with that beside a process which takes as much of the cores and has nothing to do
with the message system, both with two replicas at work.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import antiphon
from tests.bus_members import NO_MULTICAST, has_multicast
from tests.cluster_processes import ClusterProcess

BACKLOG: Final = "queue:backlog"
FLOW: Final = "queue:flow"
BACKLOG_BYTES: Final = 1 << 30
BACKLOG_BODY: Final = bytes(4096)
FILL_BATCH: Final = 1_000

FLOW_RATE: Final = 5_000
FLOW_BATCH: Final = 50
FLOW_BODY: Final = bytes(256)

ROUNDS: Final = 3
JOIN_SECONDS: Final = 240.0
IDLE_SECONDS: Final = 5.0

# Takes a share of one core, in slices that a scheduler would give to a process that works.
BURNER: Final = """
import sys, time
share, began = float(sys.argv[1]), time.monotonic()
while True:
    if time.process_time() < share * (time.monotonic() - began):
        sum(range(2_000))
    else:
        time.sleep(0.002)
"""


@dataclass
class Flow:
    """Batches that are published at a steady rate, whether the ones before are confirmed or not."""

    url: str
    latencies_ms: list[float] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def during(self, happening: Awaitable[None]) -> float:
        """The 99th percentile of the time of a publish while something happens, in milliseconds."""
        self.latencies_ms.clear()
        await happening
        ordered = sorted(self.latencies_ms)
        assert len(ordered) >= 100, f"only {len(ordered)} publishes: that is no percentile"
        return ordered[math.ceil(len(ordered) * 0.99) - 1]

    async def __aenter__(self) -> Flow:
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), 120)

    async def _produce(self) -> None:
        async with antiphon.connect(self.url) as connection, connection.session() as session:
            producer = await session.producer(FLOW)
            began, sent = time.monotonic(), 0
            async with asyncio.TaskGroup() as publishes:
                while not await self._stops_until(began + sent * FLOW_BATCH / FLOW_RATE):
                    publishes.create_task(self._publish(producer, began + sent * FLOW_BATCH / FLOW_RATE))
                    sent += 1

    async def _stops_until(self, moment: float) -> bool:
        """Is it to end before this moment?"""
        try:
            async with asyncio.timeout(max(0.0, moment - time.monotonic())):
                return await self._stop.wait()
        except TimeoutError:
            return False

    async def _publish(self, producer: antiphon.Producer, due: float) -> None:
        await producer.send_many([FLOW_BODY] * FLOW_BATCH)
        self.latencies_ms.append((time.monotonic() - due) * 1_000)

    async def _consume(self) -> None:
        async with antiphon.connect(self.url) as connection, connection.session(ack="dups_ok") as session:
            consumer = await session.consumer(FLOW)
            while not self._stop.is_set() or await consumer.receive_many(1_000, timeout=0):
                await consumer.receive_many(1_000, timeout=0.2)


async def fill(url: str) -> None:
    async with antiphon.connect(url) as connection, connection.session() as session:
        producer = await session.producer(BACKLOG)
        for _ in range(BACKLOG_BYTES // len(BACKLOG_BODY) // FILL_BATCH):
            await producer.send_many([BACKLOG_BODY] * FILL_BATCH)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Round:
    """One comparison."""

    cluster: ClusterProcess
    flow: Flow
    name: str
    seconds: float = 0.0
    # Of a core; what the cluster takes for the flow alone, and what it takes beyond that for the join.
    usual_share: float = 0.0
    join_share: float = 0.0

    async def idle(self) -> None:
        """The flow alone, with two replicas: what the nodes take for it."""
        began, before = time.monotonic(), self._cpu_seconds()
        await self.cluster.nobody_ends(IDLE_SECONDS)
        self.usual_share = (self._cpu_seconds() - before) / (time.monotonic() - began)

    async def join(self) -> None:
        """An empty disk in the place of a backup's: how long until it is synchronized, at what cost."""
        began, before = time.monotonic(), self._cpu_seconds()
        await self.cluster.restart(self.name)
        await self.cluster.synchronized(within=JOIN_SECONDS)
        self.seconds = time.monotonic() - began
        # What the new one took is all for the join, what those took that give counts too.
        share = (self._cpu_seconds() - before) / self.seconds
        self.join_share = max(0.0, share - self.usual_share)

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(life.pid) for life in self.cluster.nodes.values() if life.is_alive)

    async def burn(self) -> None:
        """As much of the cores, for as long, by somebody else."""
        count = math.ceil(self.join_share)
        burners = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", BURNER, str(self.join_share / count))
            for _ in range(count)
        ]
        try:
            await self.cluster.nobody_ends(max(IDLE_SECONDS, self.seconds))
        finally:
            for burner in burners:
                burner.kill()
                await burner.wait()

    async def compare(self) -> float:
        """How many times longer a publish takes beside a join."""
        self.cluster.kill(self.name)
        self.cluster.wipe(self.name)
        usual = await self.flow.during(self.idle())
        joining = await self.flow.during(self.join())
        self.cluster.kill(self.name)
        burning = await self.flow.during(self.burn())
        await self.cluster.restart(self.name)
        await self.cluster.synchronized(within=JOIN_SECONDS)
        print(
            f"joined in {self.seconds:.1f} s, {self.join_share:.0%} of a core beyond {self.usual_share:.0%} "
            f"for the flow: publish p99 {joining:.1f} ms, beside an equal load {burning:.1f} ms: ratio "
            f"{joining / burning:.2f}; beside nothing {usual:.1f} ms"
        )
        return joining / burning


async def story(cluster: ClusterProcess) -> list[float]:
    await cluster.synchronized()
    await fill(cluster.url)
    name = (await cluster.backups())[-1]
    async with Flow(cluster.url) as flow:
        ratios = [await Round(cluster, flow, name).compare() for _ in range(ROUNDS)]
    await cluster.equal()
    return ratios


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_new_backup_joins_a_gibibyte_and_publishing_hardly_feels_it(tmp_path: Path) -> None:
    if not has_multicast():
        pytest.skip(NO_MULTICAST)
    with ClusterProcess(tmp_path) as cluster:
        ratios = asyncio.run(story(cluster))
    assert statistics.median(ratios) <= 2.0, ratios
