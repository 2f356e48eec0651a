"""The worker processes of a load test: each connects, waits for the start, works, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

import antiphon
from antiphon.errors import AntiphonError
from antiphon.runtime.loops import loop_factory
from antiphon.tls import Tls

RECEIVE_AT_ONCE = 5000
PREFETCH = 2 * RECEIVE_AT_ONCE
"""Twice as many as are taken at once, so that the next are on the way. There is a limit in bytes, too."""
PACE_SECONDS = 0.002
QUIET_SECONDS = 30.0
TIME = struct.Struct("<d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work of one worker."""

    url: str
    tls: Tls | None = None
    destination: str
    size: int
    messages: int
    rate: float = 0.0
    # For many sessions: so many on so many connections, for so long.
    sessions: int = 1
    connections: int = 1
    seconds: float = 0.0

    def of(self, messages: int) -> Plan:
        """The same with another number of messages."""
        return replace(self, messages=messages)

    def paced(self, rate: float, seconds: float) -> Plan:
        """The same at a given rate, for a given time."""
        return replace(self, rate=rate, messages=max(1, int(rate * seconds)), size=max(self.size, TIME.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The work of one worker, and its times (monotonic seconds, one clock for all processes of a machine)."""

    messages: int
    started: float
    finished: float
    samples: list[float] = field(default_factory=list)


Start = Callable[[], Awaitable[float]]
Job = Callable[[Plan, antiphon.Session, Start], Awaitable[Result]]


def run(job: Job, plan: Plan, pipe: Connection) -> None:
    try:
        pipe.send(_run_loop(job, plan, pipe))
    except (AntiphonError, OSError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _run_loop(job: Job, plan: Plan, pipe: Connection) -> Result:
    async def work() -> Result:
        async def start() -> float:
            pipe.send(True)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            return time.monotonic()

        async with antiphon.connect(plan.url, tls=plan.tls) as connection:
            session = await connection.session()
            result = await job(plan, session, start)
            # Closing waits until the acknowledgements are confirmed: they are part of the work.
            await session.close()
            return replace(result, finished=result.finished or time.monotonic())

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work())


async def publish(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    producer = await session.producer(plan.destination)
    bodies = [bytes(plan.size)] * plan.messages
    started = await start()
    await producer.send_many(bodies)
    return Result(messages=plan.messages, started=started, finished=0.0)


async def consume(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    consumer = await session.consumer(plan.destination, prefetch=PREFETCH)
    started = await start()
    left = plan.messages
    while left:
        messages = await consumer.receive_many(min(left, RECEIVE_AT_ONCE), timeout=QUIET_SECONDS)
        if not messages:
            raise antiphon.Timeout(f"{left} of {plan.messages} messages never came")
        left -= len(messages)
    return Result(messages=plan.messages, started=started, finished=0.0)


async def publish_paced(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    """Publish at a steady rate; each body begins with the time it was handed to `send_many`."""
    producer = await session.producer(plan.destination)
    started = await start()

    async def bodies() -> AsyncIterator[bytes]:
        sent = 0
        while sent < plan.messages:
            due = min(plan.messages, int((time.monotonic() - started) * plan.rate))
            body = TIME.pack(time.monotonic()).ljust(plan.size, b".")
            for _ in range(due - sent):
                yield body
            sent = max(sent, due)
            await asyncio.sleep(PACE_SECONDS)

    await producer.send_many(bodies())
    return Result(messages=plan.messages, started=started, finished=0.0)


async def consume_timing(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    """Receive everything and note how long each message was on its way."""
    consumer = await session.consumer(plan.destination)
    started = await start()
    samples: list[float] = []
    while len(samples) < plan.messages:
        first = await consumer.receive(timeout=QUIET_SECONDS)
        if first is None:
            raise antiphon.Timeout(f"{plan.messages - len(samples)} of {plan.messages} messages never came")
        # Whatever else has arrived: a longer timeout would wait for a full batch, and 0 would ask the server
        # for more.
        messages = [first, *await consumer.receive_many(RECEIVE_AT_ONCE, timeout=1e-9)]
        now = time.monotonic()
        samples += [(now - TIME.unpack_from(message.body_bytes)[0]) * 1000 for message in messages]
    return Result(messages=plan.messages, started=started, finished=0.0, samples=samples)


async def send_singly(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    """Send one message after the other, each after the confirmation of the one before."""
    producer = await session.producer(plan.destination)
    body = bytes(plan.size)
    started = await start()
    samples = []
    for _ in range(plan.messages):
        before = time.perf_counter()
        await producer.send(body)
        samples.append((time.perf_counter() - before) * 1000)
    return Result(messages=plan.messages, started=started, finished=0.0, samples=samples)


async def send_in_crowd(plan: Plan, session: antiphon.Session, start: Start) -> Result:
    """Many sessions on a few connections, each of which sends one message after the other, for a while."""
    body = bytes(plan.size)
    samples: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(antiphon.connect(url, tls=plan.tls, spread=False))
            for url in _rotated(plan.url, plan.connections)
        ]
        producers = [
            await connections[place % len(connections)].session().producer(plan.destination)
            for place in range(plan.sessions)
        ]
        started = await start()
        deadline = started + plan.seconds

        async def send(producer: antiphon.Producer) -> None:
            while (before := time.monotonic()) < deadline:
                await producer.send(body)
                samples.append((time.monotonic() - before) * 1000)

        await asyncio.gather(*(send(producer) for producer in producers))
        finished = time.monotonic()
    return Result(messages=len(samples), started=started, finished=finished, samples=samples)


def _rotated(url: str, count: int) -> list[str]:
    """The url for so many connections: each begins with another of its servers."""
    scheme, _, servers = url.partition("://")
    names = servers.split(",")
    places = [place % len(names) for place in range(count)]
    return [f"{scheme}://{','.join(names[at:] + names[:at])}" for at in places]
