"""Kill -9 under load, several times in a row: nothing confirmed is lost, nothing acknowledged comes again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import antiphon
from tests.processes import Server

QUEUE = "queue:survivors"


@dataclass
class History:
    """What the clients were told, over all lives of the server. Bodies are unique."""

    attempted: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)
    received: dict[bytes, set[int]] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    given_after_acknowledged: list[bytes] = field(default_factory=list)

    def note_received(self, message: antiphon.Message) -> None:
        self.received.setdefault(message.body, set()).add(message.sequence)
        if message.body in self.acknowledged:
            self.given_after_acknowledged.append(message.body)


async def publish(url: str, name: str, history: History) -> None:
    """Publish unique messages, alone and in batches, until the server is gone."""
    with contextlib.suppress(antiphon.AntiphonError):
        async with antiphon.connect(url, reconnect=0) as connection, connection.session() as session:
            producer = await session.producer(QUEUE)
            number = 0
            while True:
                batch = [f"{name}.{number + place}".encode() for place in range(1 + number % 37)]
                number += len(batch)
                history.attempted.update(batch)
                if len(batch) == 1:
                    await producer.send(batch[0])
                    confirmed = 1
                else:
                    try:
                        await producer.send_many(batch)
                        confirmed = len(batch)
                    except antiphon.PublishError as error:
                        history.confirmed.update(batch[: error.confirmed])
                        raise
                history.confirmed.update(batch[:confirmed])


async def consume(url: str, history: History) -> None:
    """Receive and acknowledge one by one; note an acknowledgement only once it is confirmed."""
    with contextlib.suppress(antiphon.AntiphonError):
        async with (
            antiphon.connect(url, reconnect=0) as connection,
            connection.session(ack="individual") as session,
        ):
            consumer = await session.consumer(QUEUE, prefetch=50)
            while True:
                messages = await consumer.receive_many(20, timeout=10)
                for message in messages:
                    history.note_received(message)
                # Every second one is left to a later consumer.
                for message in messages[::2]:
                    await message.ack()
                    history.acknowledged.add(message.body)


async def one_life(url: str, server: Server, round_number: int, history: History, seconds: float) -> None:
    workers = [
        *(asyncio.create_task(publish(url, f"r{round_number}p{place}", history)) for place in range(2)),
        asyncio.create_task(consume(url, history)),
    ]
    loop = asyncio.get_running_loop()
    loop.call_later(seconds, server.kill)
    await asyncio.wait_for(asyncio.gather(*workers), timeout=60)


async def drain(url: str, history: History) -> int:
    """Take everything that is left; returns what the server still has after that."""
    async with antiphon.connect(url) as connection, connection.session(ack="client") as session:
        consumer = await session.consumer(QUEUE)
        (queue,) = await connection.admin().destinations()
        stored = queue["messages"]
        while stored:
            messages = await consumer.receive_many(min(1000, stored), timeout=60)
            assert messages, f"{stored} messages are stored and do not come"
            stored -= len(messages)
            for message in messages:
                history.note_received(message)
            await messages[-1].ack()
            history.acknowledged.update(message.body for message in messages)
        (queue,) = await connection.admin().destinations()
        return int(queue["messages"])


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.long)])
def test_what_was_confirmed_survives_every_kill(tmp_path: Path, rounds: int) -> None:
    seed = int(os.environ.get("ANTIPHON_SEED", random.randrange(1 << 32)))
    print(f"seed {seed} (ANTIPHON_SEED={seed} repeats the timing)")
    chance = random.Random(seed)
    history = History()
    for round_number in range(rounds):
        with Server(tmp_path / "data") as server:
            asyncio.run(one_life(server.url, server, round_number, history, chance.uniform(0.1, 1.2)))
    with Server(tmp_path / "data") as server:
        left = asyncio.run(drain(server.url, history))
        assert server.stop() == 0

    received = set(history.received)
    assert len(history.confirmed) > rounds, (
        f"seed {seed}: hardly anything was confirmed, the test shows nothing"
    )
    assert not history.confirmed - received, f"seed {seed}: confirmed and lost"
    assert not received - history.attempted, f"seed {seed}: received and never sent"
    assert not history.given_after_acknowledged, f"seed {seed}: given again after a confirmed acknowledgement"
    twice = {body: numbers for body, numbers in history.received.items() if len(numbers) > 1}
    assert not twice, f"seed {seed}: stored twice, under two sequence numbers"
    assert left == 0, f"seed {seed}: {left} messages are stored and not given out"
