"""Somebody is stopped for seconds while the channel changes its primary; two consumers compete for a queue.

Nobody works on a message that the other has, unless it is told `redelivered`; and nobody works on one when
the other has been told that it is acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import antiphon
from tests.cluster_processes import ClusterProcess

STANDSTILL_SECONDS: Final = 40.0
"""So long nothing may happen. A busy machine takes a quarter of a second for each message."""
MESSAGES: Final = 200


@dataclass
class Worker:
    """What one consumer worked on: when, whether it was told of others, and when its word was accepted."""

    begun: dict[int, list[tuple[float, bool]]] = field(default_factory=dict)
    accepted: dict[int, float] = field(default_factory=dict)

    async def work(self, consumer: antiphon.Consumer) -> None:
        async for message in consumer:
            self.begun.setdefault(message.sequence, []).append((time.monotonic(), message.redelivered))
            try:
                await message.ack()
            except antiphon.AcknowledgeRefused:
                continue
            self.accepted[message.sequence] = time.monotonic()

    def told(self, sequence: int, since: float) -> str:
        """What became of a message here, in seconds since something."""
        times = self.begun.get(sequence, ())
        begun = [f"{at - since:.3f}{' redelivered' * was_told}" for at, was_told in times]
        accepted = f"{self.accepted[sequence] - since:.3f}" if sequence in self.accepted else "never"
        return f"begun at {', '.join(begun) or 'no time'}, accepted at {accepted}"


def broken(one: Worker, other: Worker) -> list[int]:
    """What one of them should not have worked on."""
    numbers = []
    for sequence, begun in one.begun.items():
        for at, was_told in begun:
            is_settled = sequence in other.accepted and other.accepted[sequence] < at
            is_taken = not was_told and any(earlier < at for earlier, _ in other.begun.get(sequence, ()))
            if is_settled or is_taken:
                numbers.append(sequence)
    return numbers


class Contest:
    """Two consumers at two client managers, and a producer that sends to their queue."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self.one, self.other = Worker(), Worker()
        self.numbers: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def accepted(self) -> set[int]:
        return self.one.accepted.keys() | self.other.accepted.keys()

    async def begin(self, consumers: list[antiphon.Consumer], producer: antiphon.Producer) -> None:
        workers = zip((self.one, self.other), consumers, strict=True)
        self._tasks = [asyncio.create_task(worker.work(consumer)) for worker, consumer in workers]
        self._sending = asyncio.create_task(self._send(producer))

    async def _send(self, producer: antiphon.Producer) -> None:
        for number in range(MESSAGES):
            self.numbers.append((await producer.send(b"%d" % number)).sequence)

    async def until_all_is_done(self) -> None:
        """Until everything is sent and acknowledged, as long as something happens."""
        done = (0, 0)
        while done != (MESSAGES, MESSAGES):
            async with asyncio.timeout(STANDSTILL_SECONDS):
                done = await self._further(done)
        await self._sending

    async def _further(self, before: tuple[int, int]) -> tuple[int, int]:
        """How many are sent and acknowledged, once that is more than before."""
        while True:
            count = len(self.numbers), len(self.accepted)
            if count != before:
                return count
            if self._sending.done():
                self._sending.result()
            assert not any(task.done() for task in self._tasks), [one for one in self._tasks if one.done()]
            await asyncio.wait(self._tasks, timeout=0.1)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def judge(self, since: float, what_happened: str) -> None:
        one, other = self.one, self.other
        twice = one.accepted.keys() & other.accepted.keys()
        wrong = {*broken(one, other), *broken(other, one), *twice}
        history = "\n".join(
            f"{sequence}: one: {one.told(sequence, since)}; the other: {other.told(sequence, since)}"
            for sequence in sorted(wrong)
        )
        assert not wrong, (
            f"{what_happened}; worked on twice against the rules, or with two acknowledgements:\n{history}\n"
            f"{self.cluster.log()}"
        )
        assert self.accepted == set(self.numbers)


async def stop_for_a_while(cluster: ClusterProcess, victim: str, primary: str, seconds: float) -> None:
    cluster.pause(victim)
    if victim != primary:
        # A primary that is stopped is followed by another, too.
        cluster.kill(primary)
    awake = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, awake.set)
    await awake.wait()
    cluster.resume(victim)


async def compete(cluster: ClusterProcess, kind: str, stopped_seconds: float) -> None:
    addresses = {row["name"]: row["listen"].get("antiphon") for row in cluster.ready["nodes"]}
    first, second = cluster.client_managers[:2]
    primary = await cluster.primary()
    backups = [name for name in cluster.message_managers if name != primary]
    victim = {"client manager": first, "primary": primary, "backup": backups[0]}[kind]
    contest = Contest(cluster)
    async with (
        antiphon.connect(f"antiphon://{addresses[first]}") as first_client,
        antiphon.connect(f"antiphon://{addresses[second]}") as second_client,
        first_client.session(ack="individual") as first_session,
        second_client.session(ack="individual") as second_session,
        second_client.session() as sending,
    ):
        producer = await sending.producer("queue:work")
        # Both are attached before anything fails.
        sessions = (first_session, second_session)
        consumers = [await session.consumer("queue:work", prefetch=50) for session in sessions]
        await contest.begin(consumers, producer)
        paused_at = time.monotonic()
        await stop_for_a_while(cluster, victim, primary, stopped_seconds)
        words = f"{victim} was stopped for {time.monotonic() - paused_at:.3f} s, {primary} was primary"
        try:
            await contest.until_all_is_done()
        except (TimeoutError, AssertionError, antiphon.AntiphonError) as error:
            raise AssertionError(
                f"{error!r}; {words}; {len(contest.numbers)} were sent; accepted: {first}: "
                f"{sorted(contest.one.accepted)}, {second}: {sorted(contest.other.accepted)}\n{cluster.log()}"
            ) from error
        await contest.end()
    contest.judge(paused_at, words)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [3, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", ["client manager", "primary", pytest.param("backup", marks=pytest.mark.long)]
)
def test_what_one_consumer_has_or_has_acknowledged_the_other_does_not_work_on(
    tmp_path: Path, kind: str, seconds: int
) -> None:
    with ClusterProcess(tmp_path) as cluster:
        asyncio.run(compete(cluster, kind, seconds))
