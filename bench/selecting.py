"""The loads of `bench/selection.py`, spoken through the public API of whichever checkout is on the path.

Each is a process of its own, prints what it has to say as JSON, a line at a time, and goes on when a line
comes on its standard input.

    python bench/selecting.py fill URL QUEUE PERCENT MESSAGES SIZE
    python bench/selecting.py select URL QUEUE PERCENT MESSAGES
    python bench/selecting.py plain URL SIZE RATE

*fill* stores messages: a head that no consumer wants, and then messages of which each consumer wants one
part, here and there. *select* receives and acknowledges them with ten consumers, and checks that each got
exactly its own. *plain* sends to another queue and receives from it, at a rate, or as fast as it can with
rate 0: each line on its standard input ends a span, whose rate is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator

import antiphon
from antiphon.batch import Batch, BodyKind
from antiphon.batch.column import Column
from antiphon.values import ValueType

CONSUMERS = 10
ROWS = 1_000
NOBODYS = -1
HEAD_PARTS = 10
QUIET_SECONDS = 60.0
PLAIN_AT_ONCE = 1_000


def parts_of(percent: int, messages: int) -> list[int]:
    """Which part each message belongs to; consumer c wants part c, which is `percent` of all."""
    parts = [part % (100 // percent) for part in range(messages)]
    random.Random(percent).shuffle(parts)
    return [NOBODYS] * (messages // HEAD_PARTS) + parts


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def told() -> str:
    """The next line of the standard input."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def fill(url: str, queue: str, percent: int, messages: int, size: int) -> None:
    parts = parts_of(percent, messages)

    async def batches() -> AsyncIterator[Batch]:
        for start in range(0, len(parts), ROWS):
            rows = parts[start : start + ROWS]
            bodies = [at.to_bytes(8, "little").ljust(size, b"x") for at in range(start, start + len(rows))]
            yield Batch(
                len(rows),
                0,
                0,
                int(time.time() * 1_000),
                BodyKind.BYTES,
                0,
                Column.of_items(ValueType.BYTES, bodies),
                {},
                {"part": Column.of_numbers(ValueType.I64, rows)},
            )

    async with antiphon.connect(url) as connection:
        await (await connection.session().producer(queue)).send_batches(batches(), timeout=QUIET_SECONDS)
    say(stored=len(parts))


async def take_part(
    session: antiphon.Session, queue: str, part: int, wanted: set[int], began: float
) -> tuple[float, float]:
    """Receive a part; the seconds until the first message, and until all are acknowledged."""
    first = 0.0
    async with session.consumer(queue, selector=f"part = {part}") as consumer:
        left = set(wanted)
        while left:
            messages = await consumer.receive_many(min(len(left), 1_000), timeout=QUIET_SECONDS)
            assert messages, f"{len(left)} messages of part {part} never came"
            first = first or time.perf_counter() - began
            for message in messages:
                # A message that is another's, or comes twice, is not here.
                left.remove(int.from_bytes(message.body_bytes[:8], "little"))
    return first, time.perf_counter() - began


async def select(url: str, queue: str, percent: int, messages: int) -> None:
    wanted: list[set[int]] = [set() for _ in range(CONSUMERS)]
    for at, part in enumerate(parts_of(percent, messages)):
        if 0 <= part < CONSUMERS:
            wanted[part].add(at)
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(antiphon.connect(url, timeout=QUIET_SECONDS))
            for _ in range(CONSUMERS)
        ]
        sessions = [await connection.session() for connection in connections]
        say(ready=sum(map(len, wanted)))
        await told()
        began, cpu = time.perf_counter(), time.process_time()
        spans = await asyncio.gather(
            *(take_part(sessions[part], queue, part, wanted[part], began) for part in range(CONSUMERS))
        )
        cpu = time.process_time() - cpu
        count, seconds = sum(map(len, wanted)), max(last for _, last in spans)
        # Nobody's messages are the only ones left.
        async with sessions[0].consumer(queue, selector=f"part >= 0 AND part < {CONSUMERS}") as consumer:
            assert await consumer.receive(timeout=0) is None, "a message is left that somebody wants"
    say(
        messages=count,
        rate=count / seconds,
        first_s=max(first for first, _ in spans),
        client_us=cpu / count * 1e6,
    )


async def plain(url: str, size: int, rate: float) -> None:
    queue, body, count = "queue:plain", bytes(size), 0

    async def produce(session: antiphon.Session) -> None:
        producer = await session.producer(queue)
        due = time.perf_counter()
        while True:
            await producer.send_many([body] * PLAIN_AT_ONCE)
            if rate:
                due = max(due + PLAIN_AT_ONCE / rate, time.perf_counter() - 1.0)
                await asyncio.sleep(due - time.perf_counter())

    async def consume(session: antiphon.Session) -> None:
        nonlocal count
        async with session.consumer(queue, prefetch=10 * PLAIN_AT_ONCE) as consumer:
            while True:
                count += len(await consumer.receive_many(PLAIN_AT_ONCE, timeout=0.1))

    async with antiphon.connect(url) as sending, antiphon.connect(url) as receiving:
        tasks = [
            asyncio.create_task(produce(await sending.session())),
            asyncio.create_task(consume(await receiving.session())),
        ]
        await told()
        while True:
            began, before = time.perf_counter(), count
            if not await told():
                break
            say(rate=(count - before) / (time.perf_counter() - began))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    what, url, *rest = sys.argv[1:]
    if what == "fill":
        asyncio.run(fill(url, rest[0], int(rest[1]), int(rest[2]), int(rest[3])))
    elif what == "select":
        asyncio.run(select(url, rest[0], int(rest[1]), int(rest[2])))
    else:
        asyncio.run(plain(url, int(rest[0]), float(rest[1])))


if __name__ == "__main__":
    main()
