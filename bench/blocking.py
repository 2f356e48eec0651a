"""`make bench ARGS=--blocking`: what a message costs a program without an event loop, and with one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

import antiphon
import antiphon.blocking

MESSAGES = 20_000
RUNS = 3


def report(url: str, size: int) -> None:
    """Print what each way to send and receive costs a message of a system that is up."""
    print(f"one at a time, best of {RUNS} runs of {MESSAGES:,} messages of {size} bytes, in µs a message:")
    print(f"  {'':<26} {'elapsed':>8} {'CPU':>8}")
    for name, way in WAYS.items():
        runs = [way(url, bytes(size)) for _ in range(RUNS)]
        elapsed, used = (min(values) * 1e6 / MESSAGES for values in zip(*runs, strict=True))
        print(f"  {name:<26} {elapsed:>8.1f} {used:>8.1f}", flush=True)


Times: TypeAlias = tuple[float, float]
"""Seconds that passed, and seconds of CPU of this process."""


def _now() -> Times:
    return time.perf_counter(), time.process_time()


def _since(began: Times) -> Times:
    elapsed, used = _now()
    return elapsed - began[0], used - began[1]


def _filled(session: antiphon.blocking.Session, body: bytes) -> antiphon.blocking.Consumer:
    session.producer("queue:bench").send_many([body] * MESSAGES)
    return session.consumer("queue:bench")


def _blocking(
    work: Callable[[antiphon.blocking.Session, bytes], Times], **options: bool
) -> Callable[[str, bytes], Times]:
    def way(url: str, body: bytes) -> Times:
        with antiphon.blocking.connect(url) as connection, connection.session(**options) as session:
            return work(session, body)

    return way


def _receive(session: antiphon.blocking.Session, body: bytes) -> Times:
    consumer = _filled(session, body)
    began = _now()
    for _ in range(MESSAGES):
        consumer.receive(timeout=10)
    return _since(began)


def _iterate(session: antiphon.blocking.Session, body: bytes) -> Times:
    consumer = _filled(session, body)
    began, left = _now(), MESSAGES
    for message in consumer:
        left -= 1
        if not left:
            message.ack()
            break
    return _since(began)


def _send_transacted(session: antiphon.blocking.Session, body: bytes) -> Times:
    producer = session.producer("queue:bench-sent")
    began = _now()
    for _ in range(MESSAGES):
        producer.send(body)
    session.commit()
    return _since(began)


def _send_many(session: antiphon.blocking.Session, body: bytes) -> Times:
    producer = session.producer("queue:bench-sent")
    began = _now()
    producer.send_many(body for _ in range(MESSAGES))
    return _since(began)


def _receive_with_await(url: str, body: bytes) -> Times:
    async def work() -> Times:
        async with antiphon.connect(url) as connection, connection.session() as session:
            await session.producer("queue:bench").send_many([body] * MESSAGES)
            consumer = await session.consumer("queue:bench")
            began = _now()
            for _ in range(MESSAGES):
                await consumer.receive(timeout=10)
            return _since(began)

    return asyncio.run(work())


WAYS: dict[str, Callable[[str, bytes], Times]] = {
    "await consumer.receive()": _receive_with_await,
    "consumer.receive()": _blocking(_receive),
    "for message in consumer": _blocking(_iterate),
    "send() in a transaction": _blocking(_send_transacted, transacted=True),
    "send_many(generator)": _blocking(_send_many),
}
