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


async def compete(cluster: ClusterProcess, kind: str, stopped_seconds: float) -> None:
    addresses = {row["name"]: row["listen"].get("antiphon") for row in cluster.ready["nodes"]}
    first, second = cluster.client_managers[:2]
    primary = await cluster.primary()
    backups = [name for name in cluster.message_managers if name != primary]
    victim = {"client manager": first, "primary": primary, "backup": backups[0]}[kind]
    one, other = Worker(), Worker()
    async with (
        antiphon.connect(f"antiphon://{addresses[first]}") as first_client,
        antiphon.connect(f"antiphon://{addresses[second]}") as second_client,
        first_client.session(ack="individual") as first_session,
        second_client.session(ack="individual") as second_session,
        second_client.session() as sending,
    ):
        producer = await sending.producer("queue:work")
        # Both are attached before anything fails.
        consumers = [
            await session.consumer("queue:work", prefetch=50) for session in (first_session, second_session)
        ]
        working = [
            asyncio.create_task(worker.work(consumer))
            for worker, consumer in zip((one, other), consumers, strict=True)
        ]
        numbers: list[int] = []

        async def send() -> None:
            for number in range(MESSAGES):
                numbers.append((await producer.send(b"%d" % number)).sequence)

        async def further(before: tuple[int, int]) -> tuple[int, int]:
            """How many are sent and acknowledged, once that is more than before."""
            while True:
                count = len(numbers), len(one.accepted.keys() | other.accepted.keys())
                if count != before:
                    return count
                if sent.done():
                    sent.result()
                assert not any(task.done() for task in working), [one for one in working if one.done()]
                await asyncio.wait(working, timeout=0.1)

        sent = asyncio.create_task(send())
        paused_at = time.monotonic()
        cluster.pause(victim)
        if kind != "primary":
            # A primary that is stopped is followed by another, too.
            cluster.kill(primary)
        awake = asyncio.Event()
        asyncio.get_running_loop().call_later(stopped_seconds, awake.set)
        await awake.wait()
        cluster.resume(victim)
        resumed_at = time.monotonic()
        try:
            done = (0, 0)
            while done != (MESSAGES, MESSAGES):
                async with asyncio.timeout(STANDSTILL_SECONDS):
                    done = await further(done)
            await sent
        except (TimeoutError, AssertionError, antiphon.AntiphonError) as error:
            raise AssertionError(
                f"{error!r}; {len(numbers)} were sent; accepted: {first}: {sorted(one.accepted)}, {second}: "
                f"{sorted(other.accepted)}; {victim} was stopped, {primary} was primary\n{cluster.log()}"
            ) from error
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    twice = one.accepted.keys() & other.accepted.keys()
    wrong = {*broken(one, other), *broken(other, one), *twice}
    history = "\n".join(
        f"{sequence}: {first}: {one.told(sequence, paused_at)}; {second}: {other.told(sequence, paused_at)}"
        for sequence in sorted(wrong)
    )
    assert not wrong, (
        f"{victim} was stopped at 0 and woken at {resumed_at - paused_at:.3f} s, {primary} was primary; "
        f"worked on twice against the rules, or with two acknowledgements:\n{history}\n{cluster.log()}"
    )
    assert one.accepted.keys() | other.accepted.keys() == set(numbers)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [3, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["client manager", "primary", "backup"])
def test_what_one_consumer_has_or_has_acknowledged_the_other_does_not_work_on(
    tmp_path: Path, kind: str, seconds: int
) -> None:
    with ClusterProcess(tmp_path) as cluster:
        asyncio.run(compete(cluster, kind, seconds))
