"""Exactly once, counted: a cluster, a stream from a topic through Spark to queues, and somebody is killed.

In every round rows are sent, and while they flow somebody is ended by `kill -9` at a time that chance says:
the driver, a Python worker of an executor, the primary of the channel, or the client manager that Spark talks
to. Or the driver is stopped, another one takes over its checkpoint, and the first one wakes up. Whoever died
is started again, the driver with another number of partitions. In the end the queues have every row once: not
as a consumer sees it, who may be given a message twice, but as the cluster has stored it.

Repeat a run: ANTIPHON_SEED=… pytest tests/spark/test_exactly_once.py
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import antiphon
from tests.bus_members import has_multicast
from tests.cluster_processes import ClusterProcess
from tests.spark.conftest import SOURCES, spark_environment, spark_settings
from tests.spark.process_tree import descendants, kill_tree, ports_talked_to, python_workers
from tests.spark.standalone import Standalone

SEED: Final = int(os.environ.get("ANTIPHON_SEED", random.SystemRandom().randrange(1 << 32)))
SOURCE: Final = "topic:orders"
SINKS: Final = ("queue:alerts", "queue:others")
"""Rows go to the one or the other; with two channels, each is on its own."""

ROWS: Final = 6_000
ROWS_MAX: Final = 1_000
"""Rows of a round, and of a micro-batch: a kill comes between the first and the last of several."""

THROUGH_SECONDS: Final = 240.0
START_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.1
DELAY_SECONDS_MAX: Final = 1.5

VICTIMS: Final = ("driver", "worker", "primary", "client manager", "zombie")


class Driver:
    """One life of the driver. It is started again when it has ended, for whatever reason."""

    def __init__(self, folder: Path, cluster: ClusterProcess, master: str, partitions: int) -> None:
        told = {
            "parent": os.getpid(),
            "master": master,
            "settings": spark_settings(folder),
            "servers": cluster.url.removeprefix("antiphon://"),
            "source": SOURCE,
            "sinks": SINKS,
            "rows_max": ROWS_MAX,
            "partitions": partitions,
            "checkpoint": str(folder / "checkpoint"),
        }
        self._errors = folder / "driver.stderr"
        with self._errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.stream_driver", json.dumps(told)],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=SOURCES.parent,
                env={**os.environ, **spark_environment(), "PYTHONPATH": f"{SOURCES}:{SOURCES.parent}"},
                start_new_session=True,
            )

    async def running(self) -> None:
        """Wait until its query runs."""
        await asyncio.to_thread(self._running)

    def _running(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], START_SECONDS)[0], f"no query: {self.stderr()}"
        assert stdout.readline(), f"the driver ended ({self.process.wait(30)}): {self.stderr()}"

    def stderr(self) -> str:
        return self._errors.read_text()[-6_000:]

    def kill(self) -> None:
        """End it, its Java machine and all Python workers, as the loss of its computer would."""
        if self.process.poll() is not None:
            self.close()
            return
        kill_tree(self.process)
        self.close()

    def close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def pause(self) -> list[int]:
        """Stop it with all its processes, and say which they are."""
        everybody = [self.process.pid, *descendants(self.process.pid)]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        return everybody


class Pipeline:
    """A cluster, and the stream that runs beside it."""

    def __init__(
        self,
        folder: Path,
        cluster: ClusterProcess,
        channels: str,
        chance: random.Random,
        standalone: Standalone | None,
    ) -> None:
        self.folder = folder
        self.channels = channels
        self.standalone = standalone
        self.cluster = cluster
        self.chance = chance
        self.sent = 0
        self.starts = 0
        self.driver: Driver | None = None
        self.zombies: list[Driver] = []

    async def start_driver(self) -> Driver:
        self.starts += 1
        partitions = self.chance.choice((1, 2, 5))
        master = "local[2,3]" if self.standalone is None else self.standalone.url
        self.driver = Driver(self.folder, self.cluster, master, partitions)
        await self.driver.running()
        return self.driver

    async def send(self, rows: int) -> None:
        async with antiphon.connect(self.cluster.url) as connection, connection.session() as session:
            producer = session.producer(SOURCE)
            await producer.send_many([str(number) for number in range(self.sent, self.sent + rows)])
        self.sent += rows

    async def stored(self) -> int:
        """How many messages the queues have."""
        async with antiphon.connect(self.cluster.url) as connection:
            rows = await connection.admin().destinations()
        return sum(row["messages"] for row in rows if row["name"] in SINKS)

    async def until(self, rows: int) -> None:
        """Wait until the queues have so many; a driver that gave up is started again, as by a supervisor."""
        deadline = time.monotonic() + THROUGH_SECONDS
        while True:
            try:
                found = await self.stored()
            except antiphon.AntiphonError:
                found = -1
            if found >= rows:
                return
            assert self.driver is not None
            if self.driver.process.poll() is not None:
                assert self.starts < 60, f"the driver ends again and again: {self.driver.stderr()}"
                self.driver.close()
                await self.start_driver()
            assert time.monotonic() < deadline, (
                f"{found} of {rows} rows: {self.driver.stderr()}; {await self.cluster.told()}"
            )
            await self.cluster.nobody_ends(LOOK_SECONDS)

    async def strike(self, victim: str) -> None:
        """Kill somebody, and start what must be started again."""
        assert self.driver is not None
        cluster = self.cluster
        match victim:
            case "driver":
                self.driver.kill()
                await self.start_driver()
            case "worker":
                for pid in python_workers(self.driver.process.pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            case "executor":
                assert self.standalone is not None
                os.kill(self.chance.choice(self.standalone.executors()), signal.SIGKILL)
            case "primary":
                name = await cluster.primary(self.chance.choice(self.channels))
                cluster.kill(name)
                await cluster.restart(name)
            case "client manager":
                name = self.client_manager()
                cluster.kill(name)
                await cluster.restart(name)
            case "zombie":
                before = self.driver
                everybody = before.pause()
                self.zombies.append(before)
                await self.start_driver()
                for pid in everybody:
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except ProcessLookupError:
                        pass

    def client_manager(self) -> str:
        """The one that the driver talks to."""
        assert self.driver is not None
        ports = ports_talked_to(self.driver.process.pid)
        rows = [row for row in self.cluster.ready["nodes"] if row["role"] == "client-manager"]
        talked_to = [row["name"] for row in rows if int(row["listen"]["antiphon"].split(":")[1]) in ports]
        return str(self.chance.choice(talked_to or [row["name"] for row in rows]))

    async def round(self, *victims: str) -> None:
        begun = self.sent
        await self.send(ROWS)
        await self.until(begun + 1)
        for victim in victims:
            # At any time: between two batches, in the middle of one, or while it is committed.
            await self.cluster.nobody_ends(self.chance.uniform(0, DELAY_SECONDS_MAX))
            await self.strike(victim)
        await self.until(self.sent)
        await self.check()

    async def check(self) -> None:
        """The queues have every row once, changed as it was to be."""
        async with antiphon.connect(self.cluster.url) as connection, connection.session() as session:
            found = Counter([message.body for sink in SINKS async for message in session.browse(sink)])
        expected = {f"done {number}" for number in range(self.sent)}
        twice = [body for body, count in found.items() if count > 1]
        assert not twice, f"{len(twice)} rows came twice, such as {twice[:5]}"
        missing, strange = expected - set(found), set(found) - expected
        assert not missing, f"{len(missing)} rows are missing, such as {sorted(missing)[:5]}"
        assert not strange, f"rows that nobody sent: {sorted(map(str, strange))[:5]}"

    def close(self) -> None:
        for driver in (*self.zombies, *([self.driver] if self.driver is not None else [])):
            driver.kill()


async def run_rounds(
    folder: Path,
    rounds: list[tuple[str, ...]],
    chance: random.Random,
    channels: str,
    standalone: Standalone | None = None,
) -> None:
    """`channels` are named by a letter each."""
    transport = "udp" if has_multicast() else "tcp"
    cluster = ClusterProcess(
        folder,
        transport=transport,
        client_managers=2,
        message_managers=2,
        options=["--channels", str(len(channels))],
        has_faults=False,
    )
    with cluster:
        await cluster.synchronized()
        async with antiphon.connect(cluster.url) as connection:
            # What is read must still be there when it is read again.
            await connection.admin().create(SOURCE, retention=86_400)
            for sink, channel in zip(SINKS, (channels[0], channels[-1]), strict=True):
                await connection.admin().create(sink, channel=channel)
        pipeline = Pipeline(folder, cluster, channels, chance, standalone)
        try:
            await pipeline.start_driver()
            for victims in rounds:
                print(f"round: {', '.join(victims)}, {pipeline.sent} rows so far", flush=True)
                await pipeline.round(*victims)
        finally:
            pipeline.close()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    print(f"ANTIPHON_SEED={SEED}")
    yield random.Random(f"{SEED} {request.node.name}")


@pytest.mark.timeout(900)
def test_whoever_is_killed_every_row_arrives_once(java: None, tmp_path: Path, chance: random.Random) -> None:
    victim = chance.choice(["worker", "primary", "client manager"])
    asyncio.run(run_rounds(tmp_path, [(victim, "driver")], chance, channels="a"))


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_twenty_rounds_of_killing_leave_every_row_once(
    java: None, tmp_path: Path, chance: random.Random
) -> None:
    rounds = [(victim,) for _ in range(4) for victim in chance.sample(VICTIMS, len(VICTIMS))]
    asyncio.run(run_rounds(tmp_path, rounds, chance, channels="ab"))


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_an_executor_of_a_cluster_of_sparks_own_may_be_killed(
    java: None, tmp_path: Path, chance: random.Random
) -> None:
    folder = tmp_path / "spark"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Standalone(folder, port) as standalone:
        asyncio.run(
            run_rounds(tmp_path, [("executor",), ("driver",), ("executor",)], chance, "a", standalone)
        )
