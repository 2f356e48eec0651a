"""A server is killed and started again under clients that know nothing of it: they see a pause, no more."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

import antiphon
import antiphon.blocking
from tests.processes import Server

TOTAL = 3000
KILLS = 4
# Sends come as one batch of ten and two single ones, in turn. All kills happen before the last of them.
SENDS = TOTAL // 12 * 3
KILL_AFTER_MAX = SENDS // KILLS
QUEUE = "queue:restarted"


class Nemesis:
    """Kills the server at random moments and starts it again on the same port and data."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._chance = random.Random(seed)
        self.server = Server(data).wait_ready()
        self.url = self.server.url
        self._port = self.url.rpartition(":")[2]
        self.confirmed = 0

    async def rage(self, progress: asyncio.Queue[int]) -> None:
        """One kill after every so many confirmed messages, so that there is work in every life."""
        for _ in range(KILLS):
            for _ in range(self._chance.randrange(50, KILL_AFTER_MAX)):
                await progress.get()
            await asyncio.to_thread(self._restart)

    def _restart(self) -> None:
        self.kill()
        self.start()

    def kill(self) -> None:
        self.server.kill()
        self.stop()

    def start(self) -> None:
        self.server = Server(self._data, "--port", self._port).wait_ready()

    def stop(self) -> None:
        self.server.__exit__(None, None, None)


async def produce(url: str, total: int, progress: asyncio.Queue[int]) -> list[int]:
    """Send one by one and in batches; returns the sequence numbers in the order of the sends."""
    numbers: list[int] = []
    async with antiphon.connect(url) as connection, connection.session() as session:
        producer = await session.producer(QUEUE)
        while len(numbers) < total:
            first = len(numbers)
            if first % 3:
                receipt = await producer.send(b"%d" % first)
                numbers.append(receipt.sequence)
            else:
                receipts = await producer.send_many([b"%d" % (first + place) for place in range(10)])
                numbers += [receipt.sequence for receipt in receipts]
            progress.put_nowait(len(numbers))
    return numbers


async def consume(url: str, total: int, ack: str) -> list[antiphon.Message]:
    """Receive until every body was seen; whatever comes a second time is in the list twice."""
    messages: list[antiphon.Message] = []
    seen: set[bytes] = set()
    async with (
        antiphon.connect(url) as connection,
        connection.session(ack=ack) as session,  # type: ignore[arg-type]
        session.consumer(QUEUE) as consumer,
    ):
        while len(seen) < total:
            message = await consumer.receive(timeout=60)
            assert message is not None, f"only {len(seen)} of {total} messages came"
            messages.append(message)
            seen.add(message.body)
            if ack == "individual":
                await message.ack()
    return messages


@pytest.mark.parametrize("ack", ["auto", "individual"])
def test_clients_go_on_by_themselves(tmp_path: Path, ack: str) -> None:
    seed = int(os.environ.get("ANTIPHON_SEED", random.randrange(1 << 32)))
    print(f"seed {seed} (ANTIPHON_SEED={seed} repeats the moments)")

    async def story(nemesis: Nemesis) -> tuple[list[int], list[antiphon.Message], int]:
        progress: asyncio.Queue[int] = asyncio.Queue()
        numbers, messages, _ = await asyncio.gather(
            produce(nemesis.url, TOTAL, progress), consume(nemesis.url, TOTAL, ack), nemesis.rage(progress)
        )
        async with antiphon.connect(nemesis.url) as connection:
            (queue,) = await connection.admin().destinations()
            return numbers, messages, queue["messages"]

    nemesis = Nemesis(tmp_path / "data", seed)
    try:
        numbers, messages, left = asyncio.run(story(nemesis))
    finally:
        nemesis.stop()

    assert numbers == sorted(set(numbers)), f"seed {seed}: the order of the sends is not the order stored"
    by_sequence = {message.sequence: int(message.body) for message in messages}
    assert len(by_sequence) == len(numbers), f"seed {seed}: a message is stored twice, or one is missing"
    bodies = [by_sequence[number] for number in numbers]
    assert bodies == list(range(len(numbers))), f"seed {seed}: another message came than was confirmed"
    first_time = [message.sequence for message in messages if not message.redelivered]
    assert first_time == sorted(set(first_time)), f"seed {seed}: out of order, or doubled without saying so"
    assert left == 0, f"seed {seed}: {left} messages are left"


def test_a_server_that_is_gone_is_not_an_empty_queue(tmp_path: Path) -> None:
    nemesis = Nemesis(tmp_path / "data", 0)
    told: list[str] = []
    try:
        with antiphon.blocking.connect(nemesis.url, timeout=1) as connection:
            connection.on_lost = lambda: told.append("lost")
            connection.on_resumed = lambda: told.append("resumed")
            session = connection.session()
            consumer = session.consumer(QUEUE)
            assert consumer.receive(timeout=0.1) is None
            nemesis.kill()
            with pytest.raises(antiphon.NotConnected, match="there has been no connection for"):
                while True:
                    assert consumer.receive(timeout=0.1) is None
            assert (connection.state, told) == ("lost", ["lost"])
            nemesis.start()
            session.producer(QUEUE).send("back")
            message = consumer.receive(timeout=30)
            assert message is not None and message.body == "back"
            assert (connection.state, told) == ("connected", ["lost", "resumed"])
    finally:
        nemesis.stop()
