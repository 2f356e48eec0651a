"""Five gigabytes that wait, and one message that is stuck: the price of checkpoints, and of a restart."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import antiphon
from tests.faults.test_steady_state import disk_bytes
from tests.processes import Server

MIB = 1 << 20
GIB = 1 << 30
SEGMENT = 64 * MIB
BODY = bytes(4096)
BATCH = 1_000


@dataclass(frozen=True)
class Cost:
    """What a fixed flow of messages took beside a backlog of this size, with its checkpoints."""

    backlog: int
    cpu_seconds: float
    checkpoint_bytes: int
    worst_send_ms: float

    def __str__(self) -> str:
        return (
            f"backlog {self.backlog / GIB:.1f} GiB: {self.cpu_seconds:.2f} s of CPU for the flow, newest "
            f"checkpoint {self.checkpoint_bytes / 1024:.0f} KiB, slowest send {self.worst_send_ms:.0f} ms"
        )


def cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def newest_checkpoint_bytes(server: Server) -> int:
    newest = max(server.data.rglob("checkpoint-*"), key=lambda path: path.name)
    return newest.stat().st_size


async def stable_checkpoint(connection: antiphon.Connection) -> int:
    status = await connection.admin().status()
    checkpoint: int = status["channels"][0]["checkpoint"]
    return checkpoint


async def fill(server: Server, count: int) -> None:
    async with antiphon.connect(server.url) as connection, connection.session() as session:
        producer = await session.producer("queue:backlog")
        for _ in range(count // BATCH):
            await producer.send_many([BODY] * BATCH)


async def flow_past_checkpoints(server: Server, backlog: int) -> Cost:
    """Publish and consume the same amount each time, enough for two checkpoints to become stable."""
    async with antiphon.connect(server.url) as connection, connection.session() as session:
        producer, consumer = await session.producer("queue:flow"), await session.consumer("queue:flow")
        before, cpu, worst = await stable_checkpoint(connection), cpu_seconds(server), 0.0
        for _ in range(40):
            began = time.monotonic()
            await producer.send(BODY)
            worst = max(worst, time.monotonic() - began)
            await producer.send_many([BODY] * BATCH)
            taken = 0
            while taken <= BATCH:
                taken += len(await consumer.receive_many(BATCH + 1 - taken, timeout=30))
        assert await stable_checkpoint(connection) > before, "no checkpoint was taken meanwhile"
        return Cost(backlog, cpu_seconds(server) - cpu, newest_checkpoint_bytes(server), worst * 1_000)


async def drain(server: Server, count: int) -> None:
    async with antiphon.connect(server.url) as connection, connection.session(ack="dups_ok") as session:
        consumer = await session.consumer("queue:backlog")
        taken = 0
        while taken < count:
            messages = await consumer.receive_many(min(5_000, count - taken), timeout=30)
            assert messages, f"only {taken} of {count} messages came"
            taken += len(messages)


async def send_stuck(server: Server) -> None:
    async with antiphon.connect(server.url) as connection, connection.session() as session:
        await (await session.producer("queue:stuck")).send(b"nobody wants me")


async def receive_stuck(server: Server) -> bytes:
    async with antiphon.connect(server.url) as connection, connection.session() as session:
        message = await (await session.consumer("queue:stuck")).receive(timeout=30)
        assert message is not None
        return bytes(message.body)


@pytest.mark.long
def test_five_gibibytes_wait_and_one_message_is_stuck(tmp_path: Path) -> None:
    costs: list[Cost] = []
    filled = 0
    with Server(tmp_path / "data") as server:
        asyncio.run(send_stuck(server))
        for backlog in (GIB // 10, GIB, 5 * GIB):
            asyncio.run(fill(server, (backlog - filled) // len(BODY)))
            filled += (backlog - filled) // len(BODY) // BATCH * BATCH * len(BODY)
            costs.append(asyncio.run(flow_past_checkpoints(server, backlog)))
            print(costs[-1])
        server.kill()
    # Fifty times the backlog, and the same work beside it: the cost follows what changed.
    assert costs[-1].cpu_seconds < 1.5 * costs[0].cpu_seconds
    assert costs[-1].checkpoint_bytes < 2 * MIB

    began = time.monotonic()
    with Server(tmp_path / "data") as server:
        took = time.monotonic() - began
        print(f"ready {took:.1f} s after a kill with 5 GiB waiting")
        assert took < 5
        full = disk_bytes(server)
        asyncio.run(drain(server, filled // len(BODY)))
        # A checkpoint keeps what it refers to, and the last two are kept: a few later, the rest may go.
        for _ in range(2):
            asyncio.run(flow_past_checkpoints(server, 0))
        left = disk_bytes(server)
        print(f"disk: {full / GIB:.1f} GiB with the backlog, {left / MIB:.0f} MiB when it was consumed")
        assert left < 16 * SEGMENT
        assert asyncio.run(receive_stuck(server)) == b"nobody wants me"
