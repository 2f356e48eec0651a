"""The disk fills up under a producer: it is told, it waits, and goes on when there is room again.

On a small file system in memory, because nobody wants a test to fill a real disk. Making one takes root;
without, these tests are skipped and say so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon.errors import NoSpace
from antiphon.runtime.disk import RESERVE, RESERVE_BYTES, FileDisk
from tests.processes import Server, mount_small, unmount

QUEUE = "queue:flood"
SIZE_MIB = 170
"""Room for two segments of 64 MiB and the reserve, but not for a third."""

BODY_BYTES = 64 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount_small(place, SIZE_MIB)
    try:
        yield place
    finally:
        unmount(place)


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_BYTES - 8)


async def fill(producer: antiphon.Producer) -> list[int]:
    """Send until flow control says no; the numbers that are confirmed."""
    confirmed: list[int] = []
    number = 0
    while await producer.try_send(body(number)) is not None:
        confirmed.append(number)
        number += 1
    return confirmed


async def flood(url: str) -> None:
    async with (
        antiphon.connect(url) as connection,
        antiphon.connect(url) as other,
        connection.session() as session,
    ):
        producer = await session.producer(QUEUE)
        assert not producer.is_blocked
        confirmed = await fill(producer)
        assert len(confirmed) * BODY_BYTES > 40 << 20, "it was blocked with most of its disk free"
        assert producer.is_blocked
        (row,) = await connection.admin().destinations()
        assert row["blocked"]

        # Whoever comes now is told so too, and a send waits for as long as it may.
        async with other.session() as newcomer:
            blocked = await newcomer.producer(QUEUE)
            assert blocked.is_blocked
            with pytest.raises(antiphon.PublishRefused, match="never sent"):
                await blocked.send(b"no room", timeout=0.2)
        late = asyncio.create_task(producer.send(body(len(confirmed)), timeout=90))

        # Reading and acknowledging go on, and give back what they free.
        async with other.session(ack="client") as reading:
            consumer = await reading.consumer(QUEUE)
            received: list[int] = []
            while len(received) < len(confirmed):
                messages = await consumer.receive_many(min(50, len(confirmed) - len(received)), timeout=60)
                received += [int(message.body[:8]) for message in messages]
                await messages[-1].ack()
            assert received == confirmed
            await producer.unblocked(timeout=60)
            await late
            last = await consumer.receive(timeout=30)
            assert last is not None and last.body[:8] == b"%08d" % len(confirmed)
            await last.ack()
        assert not producer.is_blocked
        again = await fill(producer)
        assert len(again) * BODY_BYTES > 20 << 20, "the space did not come back"


async def count_stored(url: str) -> int:
    async with antiphon.connect(url) as connection:
        (row,) = await connection.admin().destinations()
        return int(row["messages"])


def test_a_producer_waits_while_the_disk_is_full_and_goes_on_when_it_was_emptied(small_disk: Path) -> None:
    with Server(small_disk / "data") as server:
        asyncio.run(flood(server.url))
        stored = asyncio.run(count_stored(server.url))
        server.kill()
    with Server(small_disk / "data") as server:
        assert asyncio.run(count_stored(server.url)) == stored
        assert server.stop() == 0


def test_the_reserve_is_there_for_a_checkpoint_and_comes_back_with_room(small_disk: Path) -> None:
    disk = FileDisk(small_disk / "data")
    disk.create("segment-00000001", 1 << 20)
    assert disk.size(RESERVE) == RESERVE_BYTES
    other = small_disk / "somebody else's"
    with other.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.free_bytes() - (1 << 20))
    with pytest.raises(NoSpace):
        disk.create("segment-00000002", 4 << 20)
    assert RESERVE in disk.list_files(), "it is not for segments"
    checkpoint = bytes(RESERVE_BYTES // 2)
    disk.write_whole("checkpoint", [checkpoint])
    assert disk.read("checkpoint", 0, len(checkpoint)) == checkpoint
    assert RESERVE not in disk.list_files()
    with pytest.raises(NoSpace):
        disk.write_whole("another", [checkpoint, checkpoint])
    other.unlink()
    disk.create("segment-00000002", 4 << 20)
    assert disk.size(RESERVE) == RESERVE_BYTES
    disk.close()
