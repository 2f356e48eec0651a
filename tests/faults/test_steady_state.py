"""What stays behind: memory and disk of a server through which millions of messages have passed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import antiphon
from tests.processes import Server

MIB = 1 << 20
BODY = bytes(256)


def memory_bytes(server: Server) -> int:
    """The server's own memory; what the kernel caches of its files is not counted."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say how much memory the server uses")


def settled_memory_bytes(server: Server) -> int:
    """Memory once the last checkpoint is written: while it is, the server has a copy of the index."""

    async def least() -> int:
        async with antiphon.connect(server.url) as connection:
            samples = []
            for _ in range(300):
                await connection.admin().status()
                samples.append(memory_bytes(server))
            return min(samples)

    return asyncio.run(least())


def disk_bytes(server: Server) -> int:
    return sum(path.stat().st_blocks * 512 for path in server.data.rglob("*") if path.is_file())


async def flow(server: Server, total: int, step: int) -> list[tuple[int, int]]:
    """Publish and consume `total` messages; memory and disk after every `step`."""
    samples: list[tuple[int, int]] = []
    # The producer is the faster of the two; it stays at most this far ahead, or the backlog would grow.
    ahead = asyncio.Semaphore(2)

    async def consume() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            consumer = await session.consumer("queue:flow")
            received = 0
            while received < total:
                messages = await consumer.receive_many(min(5000, total - received), timeout=30)
                assert messages, f"only {received} of {total} messages came"
                if (received + len(messages)) // step > received // step:
                    samples.append((memory_bytes(server), disk_bytes(server)))
                    ahead.release()
                received += len(messages)

    async def publish() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as session:
            producer = await session.producer("queue:flow")
            for _ in range(total // step):
                await ahead.acquire()
                await producer.send_many([BODY] * step)

    await asyncio.gather(publish(), consume())
    return samples


def check_flat(samples: list[tuple[int, int]]) -> None:
    memory, disk = ([sample[place] for sample in samples] for place in (0, 1))
    half = len(samples) // 2
    assert max(memory[half:]) - max(memory[:half]) < 16 * MIB, f"memory grows: {memory}"
    # Between checkpoints a few segments of 64 MiB come and go.
    assert max(disk[half:]) - max(disk[:half]) <= 4 * 64 * MIB, f"the disk fills: {disk}"


def test_memory_and_disk_stay_flat_while_messages_pass(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        check_flat(asyncio.run(flow(server, 1_000_000, 100_000)))


@pytest.mark.long
def test_memory_and_disk_stay_flat_for_ten_million_messages(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        samples = asyncio.run(flow(server, 10_000_000, 250_000))
        print(f"memory {samples[-1][0] / MIB:.0f} MiB, disk {samples[-1][1] / MIB:.0f} MiB")
        check_flat(samples)


async def back_up(server: Server, total: int) -> None:
    async with antiphon.connect(server.url) as connection, connection.session() as session:
        producer = await session.producer("queue:backlog")
        await producer.send_many([BODY] * total)


async def back_up_singly(server: Server, total: int, sessions: int) -> None:
    """Every message a batch of its own: the most that can be kept for each."""

    async def one(connection: antiphon.Connection) -> None:
        async with connection.session() as session:
            producer = await session.producer("queue:single")
            for _ in range(total // sessions):
                await producer.send(BODY)

    async with antiphon.connect(server.url) as connection:
        await asyncio.gather(*(one(connection) for _ in range(sessions)))


@pytest.mark.long
def test_a_backlog_of_a_million_costs_at_most_60_bytes_a_message(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        asyncio.run(back_up(server, 200_000))
        before = settled_memory_bytes(server)
        asyncio.run(back_up(server, 1_000_000))
        each = (settled_memory_bytes(server) - before) / 1_000_000
        print(f"{each:.1f} bytes a message in batches")
        assert each <= 60


@pytest.mark.long
def test_a_backlog_of_single_messages_costs_at_most_60_bytes_each(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        asyncio.run(back_up_singly(server, 200_000, 200))
        before = settled_memory_bytes(server)
        asyncio.run(back_up_singly(server, 1_000_000, 200))
        each = (settled_memory_bytes(server) - before) / 1_000_000
        print(f"{each:.1f} bytes a message sent one by one")
        assert each <= 60
