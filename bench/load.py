"""The four loads of `bench/compare.py`, spoken through the public API of whichever checkout is on the path.

*batches*: `send_many`, received and acknowledged at the same time. *lone*: one `send` after the other, with
nothing else going on. *crowd* and *ten*: 100 and 10 sessions on 4 connections that each send one message at a
time. Prints one JSON object: for each load the messages, the CPU time of the servers and of this process, and
what a user feels (messages a second, or how long a `send` takes).

    python bench/load.py URL SERVER_PID,SERVER_PID,… MESSAGES
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import antiphon

BODY = b"x" * 256
AT_ONCE = 10_000
LONE = 500
CONNECTIONS = 4
CROWDS = {"crowd": (100, 150), "ten": (10, 300)}
"""How many sessions there are, and how many messages each of them sends."""
QUIET_SECONDS = 60.0


def server_cpu_ns(pids: list[int]) -> int:
    """What the kernel has counted for all threads of these processes."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    spent = 0
    for task in tasks:
        # A thread of a pool may have ended since the list was made.
        with contextlib.suppress(OSError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent


class Meter:
    """Takes the CPU time before and after a load."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.figures: dict[str, dict[str, float]] = {}

    async def measure(self, name: str, messages: int, load: Awaitable[dict[str, float]]) -> None:
        """Run a load and keep its figures under its name."""
        server, own = server_cpu_ns(self._pids), time.process_time_ns()
        felt = await load
        self.figures[name] = {
            "server_us": (server_cpu_ns(self._pids) - server) / messages / 1_000,
            "client_us": (time.process_time_ns() - own) / messages / 1_000,
            **felt,
        }


async def take(session: antiphon.Session, queue: str, messages: int) -> None:
    """Receive and acknowledge so many."""
    async with session.consumer(queue, prefetch=AT_ONCE) as consumer:
        while messages:
            taken = len(await consumer.receive_many(min(messages, 5_000), timeout=QUIET_SECONDS))
            assert taken, f"{messages} messages never came"
            messages -= taken


async def batches(session: antiphon.Session, consuming: antiphon.Session, messages: int) -> dict[str, float]:
    """Publish, receive and acknowledge at once."""
    producer = await session.producer("queue:batches")
    began = time.perf_counter()
    taking = asyncio.create_task(take(consuming, "queue:batches", messages))
    for _ in range(messages // AT_ONCE):
        await producer.send_many([BODY] * AT_ONCE)
    await taking
    return {"messages_per_s": messages / (time.perf_counter() - began)}


async def lone(producer: antiphon.Producer) -> dict[str, float]:
    """Send one after the other."""
    samples = []
    for _ in range(LONE):
        before = time.perf_counter()
        await producer.send(BODY)
        samples.append((time.perf_counter() - before) * 1_000)
    samples.sort()
    return {"send_ms_p50": statistics.median(samples), "send_ms_p99": samples[len(samples) * 99 // 100]}


async def crowd(producers: list[antiphon.Producer], each: int) -> dict[str, float]:
    """All at once, each one message at a time."""

    async def send(producer: antiphon.Producer) -> None:
        for _ in range(each):
            await producer.send(BODY)

    began = time.perf_counter()
    await asyncio.gather(*(send(producer) for producer in producers))
    return {"messages_per_s": len(producers) * each / (time.perf_counter() - began)}


async def main(url: str, pids: list[int], messages: int) -> dict[str, Any]:
    """All of them, one after the other; every queue is empty before and after."""
    meter = Meter(pids)
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(antiphon.connect(url, timeout=QUIET_SECONDS))
            for _ in range(CONNECTIONS)
        ]
        session = await connections[0].session()
        consuming = await connections[1].session()
        await meter.measure("batches", messages, batches(session, consuming, messages))
        await meter.measure("lone", LONE, lone(await session.producer("queue:lone")))
        await take(consuming, "queue:lone", LONE)
        for name, (sessions, each) in CROWDS.items():
            producers = [
                await connections[place % CONNECTIONS].session().producer(f"queue:{name}")
                for place in range(sessions)
            ]
            await meter.measure(name, sessions * each, crowd(producers, each))
            await take(consuming, f"queue:{name}", sessions * each)
    return meter.figures


if __name__ == "__main__":
    print(
        json.dumps(
            asyncio.run(main(sys.argv[1], [int(pid) for pid in sys.argv[2].split(",")], int(sys.argv[3])))
        )
    )
