"""A rolling restart of nodes whose newest states cannot be read: nothing is lost, and no disk is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Final

import pytest

import antiphon
from antiphon.journal.format import checkpoint_name
from antiphon.journal.superblock import SuperblockFile
from antiphon.runtime.cluster_data import data_path, load_cluster
from antiphon.runtime.disk import FileDisk
from antiphon.sim.spoiling import spoil_checkpoint
from tests.clusters import NodeProcess, make_cluster
from tests.processes import antiphon as run_antiphon

QUEUE: Final = "queue:rolled"
MANAGERS: Final = ("mm-a-1", "mm-a-2", "mm-a-3")
CHECKPOINT_ENTRIES: Final = 60


class Rolled:
    """A cluster of three replicas whose nodes are started one by one, as on several machines."""

    def __init__(self, data: Path) -> None:
        bus = {"checkpoint_entries": CHECKPOINT_ENTRIES}
        counts = {"client_managers": 1, "message_managers": 3, "transport": "tcp"}
        self.config = make_cluster(data, bus=bus, **counts) / "cluster.toml"
        self.spec = load_cluster(self.config)
        self.url = f"antiphon://{self.spec.servers[0]}"
        self.sent: list[str] = []
        self._lives = contextlib.ExitStack()
        self.nodes: dict[str, NodeProcess] = {}

    def __enter__(self) -> Rolled:
        for node in self.spec.nodes:
            self.nodes[node.name] = self._lives.enter_context(NodeProcess(self.config, node.name))
        for process in self.nodes.values():
            process.wait_ready()
        return self

    def __exit__(self, *error: object) -> None:
        self._lives.close()

    def start(self, name: str) -> None:
        self.nodes[name] = self._lives.enter_context(NodeProcess(self.config, name))
        self.nodes[name].wait_ready()

    def disk(self, name: str) -> FileDisk:
        return FileDisk(data_path(self.config, self.spec.node(name)), has_peers=True)

    def disk_id(self, name: str) -> bytes:
        with contextlib.closing(self.disk(name)) as disk:
            return SuperblockFile.load(disk).current.disk_id

    def wait(self, seconds: float = 60.0) -> tuple[int, list[str]]:
        """What the operator asks before the next node is restarted."""
        asked = run_antiphon("admin", "wait", "--json", "--timeout", f"{seconds:g}", url=self.url, timeout=90)
        assert asked.stdout, asked.stderr
        return asked.returncode, json.loads(asked.stdout)["missing"]

    async def send(self, count: int) -> None:
        """One by one, so that every message is an entry of its own."""
        async with antiphon.connect(self.url) as connection, connection.session() as session:
            producer = session.producer(QUEUE)
            for _ in range(count):
                body = f"message {len(self.sent)}"
                await producer.send(body)
                self.sent.append(body)

    async def receive_all(self) -> list[str]:
        async with (
            antiphon.connect(self.url) as connection,
            connection.session() as session,
            session.consumer(QUEUE) as consumer,
        ):
            messages = await consumer.receive_many(len(self.sent), timeout=30)
            assert await consumer.receive(timeout=0.2) is None, "nothing is stored twice"
            return [str(message.body) for message in messages]


@pytest.mark.timeout(300)
def test_in_a_rolling_restart_over_unreadable_checkpoints_no_disk_is_put_aside_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with Rolled(tmp_path / "data") as cluster:
        asyncio.run(cluster.send(4 * CHECKPOINT_ENTRIES))
        assert cluster.wait() == (0, [])
        for name in MANAGERS:
            process = cluster.nodes[name]
            assert process.stop() == 0
            if name == MANAGERS[0]:
                code, missing = cluster.wait(8.0)
                assert code == 1 and f"{name} does not answer" in missing, "nobody goes on to the next node"
            with contextlib.closing(cluster.disk(name)) as disk:
                n = spoil_checkpoint(disk)
            assert n, "there was a checkpoint"
            cluster.start(name)
            asyncio.run(cluster.send(CHECKPOINT_ENTRIES // 2))
            assert cluster.wait() == (0, []), process.errors.read_text()
            told = [line for line in process.errors.read_text().splitlines() if checkpoint_name(n) in line]
            assert len(told) == 1 and "cannot be used" in told[0] and "does not read" in told[0], told
            folder = data_path(cluster.config, cluster.spec.node(name))
            assert not list(folder.glob("lost+found/*")), "no disk is put aside"
        assert asyncio.run(cluster.receive_all()) == cluster.sent
        for name in MANAGERS:
            assert cluster.nodes[name].stop() == 0
            assert cluster.disk_id(name) == cluster.spec.node(name).disk_id
