"""The work, the same for every broker, in processes that are there before the broker is.

A load process obeys commands: each opens connections, works, closes them, and answers with a `Spent`. The
last message of a load says so in its body, and a consumer stops behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from antiphon.runtime.loops import loop_factory
from peers.processes import cpu_ns
from peers.system import Client, System, Unavailable

HEAD = struct.Struct("<d?")
"""When a message was sent, and whether it is the last."""
CONNECTIONS = 4
PACE_PER_SECOND = 200
SETTLE_SECONDS = 0.5
"""A consumer that has just attached is still finding its way; the messages of so long are not counted."""
READY_SECONDS = 120.0
TRY_SECONDS, TRY_SHARE = 0.25, 0.1
"""How long a try may take: so long, and a share of the time since the start."""
TRY_AGAIN_SECONDS = 0.02
CLOCK_EVERY = 64
"""Messages that are published between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command for a load process."""

    name: str
    address: str
    seconds: float
    size: int
    pids: list[int]
    """The servers whose CPU is to be counted."""
    senders: int = 1
    is_timed: bool = False
    """Shall a consumer note how long each message was on its way?"""

    def body(self, is_last: bool = False) -> bytes:
        return HEAD.pack(time.monotonic(), is_last).ljust(self.size, b".")


@dataclass(slots=True, kw_only=True)
class Spent:
    """The work that was done, its times (one clock for all processes of a machine) and its CPU."""

    messages: int = 0
    started: float = 0.0
    finished: float = 0.0
    servers_us: float = 0.0
    client_us: float = 0.0
    samples_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.messages / (self.finished - self.started)


class _Meter:
    """Measures time and CPU while the block lasts."""

    def __init__(self, task: Task) -> None:
        self._pids = task.pids
        self.spent = Spent()

    def __enter__(self) -> Spent:
        self._servers, self._own = cpu_ns(self._pids), time.process_time_ns()
        self.spent.started = time.monotonic()
        return self.spent

    def __exit__(self, *_: object) -> None:
        self.spent.finished = time.monotonic()
        self.spent.servers_us = (cpu_ns(self._pids) - self._servers) / 1_000
        self.spent.client_us = (time.process_time_ns() - self._own) / 1_000


def serve(system: System, pipe: Connection) -> None:
    """Obey until the other end of the pipe is closed."""
    pipe.send(Spent())
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            task: Task = pipe.recv()
            try:
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    pipe.send(runner.run(LOADS[task.name](system, task, pipe)))
            except Unavailable as error:
                pipe.send(str(error))
            except Exception:
                pipe.send(traceback.format_exc())


async def first(system: System, task: Task, pipe: Connection) -> Spent:
    """Try until a message is confirmed."""
    began = time.monotonic()
    while True:
        try:
            patience = TRY_SECONDS + TRY_SHARE * (time.monotonic() - began)
            async with asyncio.timeout(patience), system.client(task.address) as client:
                await client.create()
                (send,) = await client.senders(1)
                await send(task.body(is_last=True))
                return Spent(messages=1, started=began, finished=time.monotonic())
        except Exception as error:
            if time.monotonic() - began > READY_SECONDS:
                raise Unavailable(f"no message confirmed after {READY_SECONDS:g} s: {error!r}") from error
            await asyncio.sleep(TRY_AGAIN_SECONDS)


async def publish(system: System, task: Task, pipe: Connection) -> Spent:
    """As much as can be confirmed, for a while."""

    def bodies(spent: Spent) -> Iterator[bytes]:
        body = task.body()
        while time.monotonic() < spent.started + task.seconds:
            yield from [body] * CLOCK_EVERY
            spent.messages += CLOCK_EVERY
        spent.messages += 1
        yield task.body(is_last=True)

    async with system.client(task.address) as client:
        with _Meter(task) as spent:
            await client.publish(bodies(spent))
    return spent


async def one_at_a_time(system: System, task: Task, pipe: Connection) -> Spent:
    """Senders on a few connections, each of which waits for every confirmation before its next message."""
    async with contextlib.AsyncExitStack() as stack:
        count = min(CONNECTIONS, task.senders)
        clients = [await stack.enter_async_context(system.client(task.address, at)) for at in range(count)]
        shares = [len(range(at, task.senders, count)) for at in range(count)]
        senders = [
            send
            for client, share in zip(clients, shares, strict=True)
            for send in await client.senders(share)
        ]
        body = task.body()
        with _Meter(task) as spent:
            until = spent.started + task.seconds

            async def work(send: Any) -> None:
                while (before := time.monotonic()) < until:
                    await send(body)
                    spent.samples_ms.append((time.monotonic() - before) * 1_000)

            await asyncio.gather(*map(work, senders))
            spent.messages = len(spent.samples_ms)
        await senders[0](task.body(is_last=True))
        spent.messages += 1
    return spent


async def paced(system: System, task: Task, pipe: Connection) -> Spent:
    """Lone messages at a steady rate that no broker minds."""
    async with system.client(task.address) as client:
        (send,) = await client.senders(1)
        with _Meter(task) as spent:
            messages = math.ceil((SETTLE_SECONDS + task.seconds) * PACE_PER_SECOND)
            for place in range(messages):
                due = spent.started + place / PACE_PER_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await send(task.body(is_last=place == messages - 1))
            spent.messages = messages
    return spent


async def take(system: System, task: Task, pipe: Connection) -> Spent:
    """Receive and acknowledge everything up to the last message."""
    async with system.client(task.address) as client:
        await client.attach()
        # The publisher waits for this.
        pipe.send(Spent())
        with _Meter(task) as spent:
            while not await _receive(client, task, spent):
                pass
    spent.finished = time.monotonic()
    return spent


async def _receive(client: Client, task: Task, spent: Spent) -> bool:
    bodies = await client.receive()
    now = time.monotonic()
    spent.messages += len(bodies)
    if task.is_timed:
        sent = (HEAD.unpack_from(body)[0] for body in bodies)
        spent.samples_ms += [(now - at) * 1_000 for at in sent if at > spent.started + SETTLE_SECONDS]
    is_last: bool = HEAD.unpack_from(bodies[-1])[1]
    return is_last


LOADS = {load.__name__: load for load in (first, publish, one_at_a_time, paced, take)}
