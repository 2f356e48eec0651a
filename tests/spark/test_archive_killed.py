"""An archive that is killed, again and again, while producers run: in the end it has every message once.

Repeat a run: ANTIPHON_SEED=… pytest tests/spark/test_archive_killed.py
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark")

import antiphon.blocking
from antiphon.pipeline import archive, audit
from antiphon.pipeline.jobs.files import file_pages
from antiphon.pipeline.jobs.folder import ArchiveFolder
from tests.processes import Server
from tests.spark.conftest import SOURCES, spark_environment, spark_settings
from tests.spark.process_tree import kill_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED: Final = int(os.environ.get("ANTIPHON_SEED", random.SystemRandom().randrange(1 << 32)))
START_SECONDS: Final = 240.0
LINES_MAX: Final = 4
DELAY_SECONDS_MAX: Final = 0.6
TOPICS: Final = ("topic:killed.x", "topic:killed.y")
PATTERN: Final = "topic:killed.*"
HOLD: Final = "killed"
BATCH: Final = 50


class Producers:
    """Two threads that send to a topic each, until they are told to end."""

    def __init__(self, url: str) -> None:
        self.sent: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self._url = url
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(topic,)) for topic in TOPICS]

    def _send(self, topic: str) -> None:
        with (
            antiphon.blocking.connect(self._url) as connection,
            connection.session() as session,
            session.producer(topic) as producer,
        ):
            count = 0
            # About a thousand messages a second, so that every round has something new.
            while not self._end.wait(BATCH / 1_000):
                bodies = [f"{topic} {number}" for number in range(count, count + BATCH)]
                for body, receipt in zip(bodies, producer.send_many(bodies), strict=True):
                    self.sent[topic][receipt.sequence] = body
                count += BATCH

    def __enter__(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def driver(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that archives, and is killed at the end of the block."""
    told = {
        "parent": os.getpid(),
        "settings": spark_settings(folder),
        "url": url,
        "words": [PATTERN],
        "hold": HOLD,
        "folder": str(folder / "archive"),
        "file_rows": 400,
        "round_rows": 1_500,
    }
    with (folder / "driver.stderr").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.archive_driver", json.dumps(told)],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=SOURCES.parent,
            env={**os.environ, **spark_environment(), "PYTHONPATH": f"{SOURCES}:{SOURCES.parent}"},
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        yield process
    finally:
        kill_tree(process)
        process.stdout.close()


def kill_at_random(folder: Path, url: str, chance: random.Random) -> None:
    """Have archived a few rounds, and kill in the middle of one."""
    with driver(folder, url) as process:
        stdout = process.stdout
        assert stdout is not None
        for _ in range(chance.randint(1, LINES_MAX)):
            assert select.select([stdout], [], [], START_SECONDS)[0], (folder / "driver.stderr").read_text()
            assert stdout.readline(), (folder / "driver.stderr").read_text()
        try:
            process.wait(timeout=chance.uniform(0, DELAY_SECONDS_MAX))
        except subprocess.TimeoutExpired:
            return
        raise AssertionError((folder / "driver.stderr").read_text())


def run(spark: SparkSession, server: Server, folder: Path, kills: int) -> None:
    print(f"ANTIPHON_SEED={SEED}")
    chance = random.Random(SEED)
    with Producers(server.url) as producers:
        for _ in range(kills):
            kill_at_random(folder, server.url, chance)
    place = folder / "archive"
    archive(server.url, [PATTERN], place, hold=HOLD, spark=spark)
    read = ArchiveFolder(place)
    found: dict[str, list[tuple[int, str]]] = {topic: [] for topic in TOPICS}
    for source, files in read.state().files.items():
        for file in files:
            for _, batches in file_pages(read, file):
                for batch in batches:
                    numbers, bodies = batch.column("sequence").to_pylist(), batch.column("body").to_pylist()
                    found[source.name] += zip(numbers, map(bytes.decode, bodies), strict=True)
    for topic in TOPICS:
        assert found[topic] == sorted(producers.sent[topic].items()), f"seed {SEED}"
    checked = audit([PATTERN], place, server.url, spark=spark)
    assert (checked.problems, checked.waiting) == ([], 0)
    assert checked.rows == sum(map(len, producers.sent.values()))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data") as server:
        with antiphon.blocking.connect(server.url) as connection:
            for topic in TOPICS:
                # So short that only the hold keeps what is not archived yet.
                connection.admin().create(topic, retention=1)
            with connection.ranges() as ranges:
                destinations = ranges.destinations(TOPICS)
                ranges.hold(HOLD, {one.channel: 1 for one in destinations}, destinations, limit=3_600)
        yield server


@pytest.mark.timeout(600)
def test_an_archive_that_is_killed_twice_has_every_message_once(
    spark: SparkSession, own_server: Server, tmp_path: Path
) -> None:
    run(spark, own_server, tmp_path, 2)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_an_archive_that_is_killed_twenty_times_has_every_message_once(
    spark: SparkSession, own_server: Server, tmp_path: Path
) -> None:
    run(spark, own_server, tmp_path, 20)
