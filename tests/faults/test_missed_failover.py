"""Two consumers compete for one queue. The primary is killed, and the client manager of one of them sleeps
until the next primary has given all that its consumer holds to the other.

The one who lost it hears so as soon as its client manager is awake: it works on nothing of it, and cannot
acknowledge or commit what it had taken before. Whoever got it was told `redelivered`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

import antiphon
from tests.cluster_processes import ClusterProcess

MESSAGES: Final = 300
DEADLINE_SECONDS: Final = 120.0
LAST: Final = b"last"


async def worked_off(consumer: antiphon.Consumer, count: int) -> dict[int, bool]:
    """Receive so many messages and have each acknowledged: which they were, and whether it was told of them
    that somebody may have seen them."""
    seen: dict[int, bool] = {}
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(seen) < count:
            message = await consumer.receive()
            assert message is not None
            await message.ack()
            seen[message.sequence] = message.redelivered
    return seen


async def arrival(consumer: antiphon.Consumer, body: bytes) -> None:
    """Wait until a message lies in the buffer of a consumer, without taking any."""
    attached = consumer._intake._opening.result
    assert attached is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            waiting = [message for span in attached.core.spans for message in span.messages()]
            if any(bytes(message.body_bytes) == body for message in waiting):
                return
            await attached.link.news()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "is_transacted",
    [pytest.param(False, id="individual"), pytest.param(True, id="transacted", marks=pytest.mark.long)],
)
def test_what_others_got_while_a_client_manager_slept_is_worked_on_by_them_alone(
    tmp_path: Path, is_transacted: bool
) -> None:
    with ClusterProcess(tmp_path) as cluster:
        asyncio.run(miss_failover(cluster, is_transacted=is_transacted))


async def miss_failover(cluster: ClusterProcess, *, is_transacted: bool) -> None:
    addresses = {row["name"]: row["listen"].get("antiphon") for row in cluster.ready["nodes"]}
    asleep, awake = cluster.client_managers[:2]
    async with (
        antiphon.connect(f"antiphon://{addresses[asleep]}") as first_client,
        antiphon.connect(f"antiphon://{addresses[awake]}") as other_client,
        first_client.session(transacted=True)
        if is_transacted
        else first_client.session(ack="individual") as first,
        other_client.session(ack="individual") as other,
    ):
        producer = await other.producer("queue:work")
        await producer.send_many([b"%d" % number for number in range(MESSAGES - 1)])
        sleeper = await first.consumer("queue:work", prefetch=1_000)
        taken = await sleeper.receive(timeout=DEADLINE_SECONDS)
        assert taken is not None and not taken.redelivered
        await producer.send(b"before")
        await arrival(sleeper, b"before")  # all of them lie with it now
        rival = await other.consumer("queue:work")

        primary = await cluster.primary()
        cluster.pause(asleep)
        cluster.kill(primary)
        try:
            got = await worked_off(rival, MESSAGES)
        finally:
            cluster.resume(asleep)
        assert taken.sequence in got and all(got.values()), "whoever gets it later is told"

        await rival.close()
        await producer.send(LAST)
        await arrival(sleeper, LAST)
        message = await sleeper.receive(timeout=0)
        assert message is not None and message.sequence not in got, "it was acknowledged by the other"
        assert message.body == LAST
        if is_transacted:
            with pytest.raises(antiphon.TransactionRolledBack, match="given to another consumer"):
                await first.commit()
            again = await sleeper.receive(timeout=DEADLINE_SECONDS)
            assert again is not None and again.body == LAST, "what it still holds comes again"
            await first.commit()
        else:
            with pytest.raises(antiphon.AcknowledgeRefused, match="given to another consumer"):
                await taken.ack()
            await message.ack()
