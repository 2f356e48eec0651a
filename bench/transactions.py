"""`make bench ARGS=--transactions`: what a transaction costs beside a confirmed `send_many`.

Some sessions of one connection, each of which sends 100 messages at a time: with `await send_many`; in a
transaction of one channel; in a transaction of two. The three take turns in one run against one cluster, so
that what the machine does meanwhile concerns all of them alike; the figures are ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

import antiphon
from tests.cluster_processes import ClusterProcess

SESSIONS = 8
MESSAGES = 100
SECONDS = 3.0
QUEUES = {"queue:one": "a", "queue:two": "b"}
MARKS = {"one channel": 0.60, "two channels": 0.30}


async def _plain(session: antiphon.Session, producers: list[antiphon.Producer], bodies: list[bytes]) -> None:
    await producers[0].send_many(bodies)


async def _in_one_channel(
    session: antiphon.Session, producers: list[antiphon.Producer], bodies: list[bytes]
) -> None:
    await producers[0].send_many(bodies)
    await session.commit()


async def _in_two_channels(
    session: antiphon.Session, producers: list[antiphon.Producer], bodies: list[bytes]
) -> None:
    half = len(bodies) // 2
    await producers[0].send_many(bodies[:half])
    await producers[1].send_many(bodies[half:])
    await session.commit()


WAYS = {"send_many": _plain, "one channel": _in_one_channel, "two channels": _in_two_channels}


async def _rate(connection: antiphon.Connection, way: str, size: int) -> float:
    """Messages a second that all sessions together have confirmed."""
    send = WAYS[way]
    bodies = [bytes(size)] * MESSAGES

    async def work(until: float) -> int:
        done = 0
        async with connection.session(transacted=way != "send_many") as session:
            producers = [await session.producer(name) for name in QUEUES]
            while time.monotonic() < until:
                await send(session, producers, bodies)
                done += MESSAGES
        return done

    started = time.monotonic()
    done = sum(await asyncio.gather(*(work(started + SECONDS) for _ in range(SESSIONS))))
    return done / (time.monotonic() - started)


async def _measure(url: str, runs: int, size: int) -> None:
    ratios: dict[str, list[float]] = {way: [] for way in MARKS}
    async with antiphon.connect(url) as connection:
        for name, channel in QUEUES.items():
            await connection.admin().create(name, channel=channel)
        for way in WAYS:
            await _rate(connection, way, size)  # warm
        for _ in range(runs):
            rates = {way: await _rate(connection, way, size) for way in WAYS}
            print({way: round(rate) for way, rate in rates.items()}, flush=True)
            for way, found in ratios.items():
                found.append(rates[way] / rates["send_many"])
    print(f"medians of {runs} runs, {SESSIONS} sessions, {MESSAGES} messages of {size} bytes at a time:")
    for way, found in ratios.items():
        spread = f"[{min(found):.2f} .. {max(found):.2f}]"
        median = statistics.median(found)
        print(
            f"  transactions in {way:<13} {median:6.2f} of send_many   {spread}   mark: at least {MARKS[way]}"
        )


def measure(arguments: argparse.Namespace) -> None:
    """Print every run, and the medians of the ratios."""
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as folder:
        cluster = ClusterProcess(
            Path(folder),
            transport=arguments.transport,
            client_managers=1,
            options=["--channels", "2"],
            has_faults=False,
        )
        with cluster:
            asyncio.run(_measure(cluster.url, arguments.runs, arguments.size))
