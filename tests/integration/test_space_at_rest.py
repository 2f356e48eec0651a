"""What a message system leaves on its disks when nothing is said any more, in real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import antiphon
from antiphon.journal.format import Settings
from antiphon.journal.journal import REST_SEGMENTS, Journal
from antiphon.runtime.disk import FileDisk
from antiphon.startup import CLUSTER, EMBEDDED_NODE_ID
from tests.bus_members import has_multicast
from tests.clusters import Cluster, make_cluster
from tests.processes import Server

REST_SECONDS = 60.0
SMALL = Settings(segment_bytes=8 << 20)
"""A segment has room for 128 messages that are handled one at a time."""

LONE_MESSAGES = 220
BODY = bytes(200_000)
BURST_MESSAGES = 120
"""Some twenty megabytes, which are three segments."""


@contextmanager
def embedded(data: Path) -> Iterator[Server]:
    disk = FileDisk(data)
    Journal.format(disk, SMALL, b"d" * 16, EMBEDDED_NODE_ID, CLUSTER)
    disk.close()
    with Server(data) as server:
        yield server


@contextmanager
def cluster(data: Path) -> Iterator[Server]:
    if not has_multicast():
        pytest.skip("this machine carries no multicast on its loopback")
    with Cluster(make_cluster(data, message_managers=2)) as server:
        yield server


async def handle_one_at_a_time(url: str) -> None:
    async with antiphon.connect(url) as connection, connection.session(ack="individual") as session:
        producer, consumer = session.producer("queue:lone"), session.consumer("queue:lone")
        for _ in range(LONE_MESSAGES):
            await producer.send(b"x")
            message = await consumer.receive(timeout=30)
            assert message is not None
            await message.ack()


async def store_and_consume_a_burst(url: str) -> None:
    async with antiphon.connect(url) as connection, connection.session(ack="individual") as session:
        await session.producer("queue:burst").send_many([BODY] * BURST_MESSAGES)
        consumer = session.consumer("queue:burst")
        for _ in range(BURST_MESSAGES):
            message = await consumer.receive(timeout=30)
            assert message is not None
            await message.ack()


def journals(data: Path) -> dict[Path, int]:
    """How many segments, used or spare, lie in each data directory."""
    files = [path for kind in ("segment-*", "spare-*") for path in data.rglob(kind)]
    return {parent: sum(path.parent == parent for path in files) for parent in {one.parent for one in files}}


async def rest(server: Server) -> dict[Path, int]:
    """Ask how all are, which writes nothing, until every journal has come to rest by itself, or for long."""
    deadline = time.monotonic() + REST_SECONDS
    async with antiphon.connect(server.url) as connection:
        while max((found := journals(server.data)).values()) > REST_SEGMENTS and time.monotonic() < deadline:
            await connection.admin().status()
    return found


@pytest.mark.parametrize(("start", "disks"), [(embedded, 1), (cluster, 3)])
def test_messages_handled_one_at_a_time_leave_three_segments_on_disk_when_nothing_is_alive(
    tmp_path: Path, start: Callable[[Path], AbstractContextManager[Server]], disks: int
) -> None:
    with start(tmp_path / "data") as server:
        asyncio.run(handle_one_at_a_time(server.url))
        found = asyncio.run(rest(server))
        assert len(found) == disks
        assert max(found.values()) <= REST_SEGMENTS, f"{found} after {LONE_MESSAGES} messages of one byte"

        asyncio.run(store_and_consume_a_burst(server.url))
        assert max(asyncio.run(rest(server)).values()) <= REST_SEGMENTS, "after a burst that was consumed"
