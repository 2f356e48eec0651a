"""`make bench ARGS=--spark-kafka`: the same Spark jobs on Antiphon and, by Spark's connector, on Kafka.

One server of each on this machine, with the same messages: a text of the number of the row as the key, and a
body. Kafka has two partitions, for two cores. Every job runs on one system and then on the other, in turn;
what counts is the ratio of the two within a pair, so that other work on the machine touches both. The first
pair of each job warms up and is not counted. Kafka's sink may write rows twice when Spark tries again; ours
writes them once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from peers.kafka import CONNECTOR, Kafka, fetch
from peers.processes import Processes, children
from spark import cpu_seconds, session

import antiphon.blocking
from tests.processes import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 1_000_000
PARTITIONS = 2
READ, WRITTEN = "bench-read", "bench-written"
KEEP = {"retention": 86_400, "retention_bytes": 8 << 30}

# What both systems have: where a message is, when it was sent, its key and its body.
SAME = (
    "destination,channel,sequence,timestamp,key,body",
    "topic,partition,offset,timestamp,key,value",
)
BODY = ("body", "value")
EVERYTHING = ("", "")


class Side:
    """The jobs on one of the two systems."""

    def __init__(self, spark: SparkSession, folder: Path, count: int, size: int) -> None:
        self.spark = spark
        self.folder = folder
        self.count = count
        self.size = size
        self.queries = 0

    def rows(self) -> DataFrame:
        """Rows to be written, made as they are asked for; both systems call a key so."""
        return self.spark.range(0, self.count, 1, PARTITIONS).selectExpr(
            "cast(id as string) as key",
            f"cast(rpad(cast(id as string), {self.size}, 'x') as binary) as body",
        )

    def frame(self, columns: str, is_stream: bool) -> DataFrame:
        raise NotImplementedError

    def read(self, columns: str) -> None:
        self.frame(columns, is_stream=False).write.format("noop").mode("overwrite").save()

    def stream(self, columns: str, form: str) -> None:
        """A query of its own each time, from the first message to the last one."""
        self.queries += 1
        home = self.folder / f"{type(self).__name__}-{self.queries}"
        writer = self.frame(columns, is_stream=True).writeStream.format(form).trigger(availableNow=True)
        if form == "parquet":
            writer = writer.option("path", str(home / "files"))
        query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        assert rows == self.count, f"{rows} rows of {self.count} were read"
        shutil.rmtree(home)


class Ours(Side):
    def __init__(self, spark: SparkSession, folder: Path, count: int, size: int, url: str) -> None:
        super().__init__(spark, folder, count, size)
        self._url = url
        with antiphon.blocking.connect(url) as connection:
            for name in (READ, WRITTEN):
                connection.admin().create(f"topic:{name}", **KEEP)
        self.write(READ)

    def frame(self, columns: str, is_stream: bool) -> DataFrame:
        reader = self.spark.readStream if is_stream else self.spark.read
        options = {"servers": self._url.removeprefix("antiphon://"), "subscribe": f"topic:{READ}"}
        if columns:
            options["columns"] = columns
        return reader.format("antiphon").options(**options, startingOffsets="earliest").load()

    def write(self, topic: str = WRITTEN, guarantee: str = "exactly-once") -> None:
        options = {"servers": self._url.removeprefix("antiphon://"), "destination": f"topic:{topic}"}
        writer = self.rows().write.format("antiphon").options(**options, deliveryGuarantee=guarantee)
        writer.mode("append").save()


class Theirs(Side):
    def __init__(self, spark: SparkSession, folder: Path, count: int, size: int, servers: str) -> None:
        super().__init__(spark, folder, count, size)
        self._servers = servers
        self.write(READ)

    def frame(self, columns: str, is_stream: bool) -> DataFrame:
        reader = self.spark.readStream if is_stream else self.spark.read
        options = {"kafka.bootstrap.servers": self._servers, "subscribe": READ}
        if not columns:
            options["includeHeaders"] = "true"
        frame = reader.format("kafka").options(**options, startingOffsets="earliest").load()
        return frame.select(*columns.split(",")) if columns else frame

    def write(self, topic: str = WRITTEN) -> None:
        options = {"kafka.bootstrap.servers": self._servers, "topic": topic}
        self.rows().withColumnRenamed("body", "value").write.format("kafka").options(**options).save()


class Job(NamedTuple):
    name: str
    ours: Callable[[], None]
    theirs: Callable[[], None]


def jobs(ours: Ours, theirs: Theirs) -> list[Job]:
    """The rows of the table."""

    def reading(what: str, columns: tuple[str, str]) -> list[Job]:
        return [
            Job(f"read, {what}", lambda: ours.read(columns[0]), lambda: theirs.read(columns[1])),
            Job(
                f"AvailableNow to noop, {what}",
                lambda: ours.stream(columns[0], "noop"),
                lambda: theirs.stream(columns[1], "noop"),
            ),
            Job(
                f"AvailableNow to Parquet, {what}",
                lambda: ours.stream(columns[0], "parquet"),
                lambda: theirs.stream(columns[1], "parquet"),
            ),
        ]

    return [
        *reading("the same six columns", SAME),
        *reading("body only", BODY),
        *reading("all columns (16, and 8)", EVERYTHING),
        Job("write, exactly once and at least once", ours.write, theirs.write),
        Job(
            "write, both at least once",
            lambda: ours.write(guarantee="at-least-once"),
            theirs.write,
        ),
    ]


class Spent(NamedTuple):
    """What one run took: time, and of the processor in Spark, its Python processes and the server."""

    seconds: float
    cpu: float


Pair = tuple[Spent, Spent]


def measure(arguments: argparse.Namespace) -> None:
    """Print every pair, then the table."""
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    # The project's own disk, not a memory file system: a sync must mean something.
    with (
        tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as name,
        Processes(Path(name)) as processes,
        Server(Path(name) / "data") as server,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        broker = Kafka(brokers=1, partitions=PARTITIONS)
        broker.fetch(folder)
        jars = fetch(folder / "connector", CONNECTOR, with_dependencies=False)
        servers = broker.start(folder, processes)
        (kafka,) = processes.tree()
        spark = stack.enter_context(session({"spark.jars": ",".join(map(str, jars))}))
        ours = Ours(spark, folder, arguments.messages, arguments.size, server.url)
        theirs = Theirs(spark, folder, arguments.messages, arguments.size, servers)
        table = []
        for job in jobs(ours, theirs):
            if arguments.only not in job.name:
                continue
            pairs = [
                (spent(job.ours, server.process.pid), spent(job.theirs, kafka))
                for _ in range(1 + arguments.runs)
            ][1:]
            table.append((job.name, pairs))
            told = ", ".join(f"{a.seconds:.2f} s / {b.seconds:.2f} s" for a, b in pairs)
            print(f"{job.name}: {told}", flush=True)
    print_table(table, arguments)


def spent(action: Callable[[], None], server: int) -> Spent:
    from pyspark import SparkContext

    java = SparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def cpu() -> float:
        workers = sum(map(cpu_seconds, children(java))) + cpu_seconds(java, of_children=True)
        return cpu_seconds(java) + workers + cpu_seconds(server)

    # What the run before has left to be written is not for this one to write.
    os.sync()
    before, began = cpu(), time.perf_counter()
    action()
    return Spent(time.perf_counter() - began, cpu() - before)


def print_table(table: list[tuple[str, list[Pair]]], arguments: argparse.Namespace) -> None:
    count = arguments.messages
    print(f"\n{count:,} messages of {arguments.size} bytes, local[2], medians of {arguments.runs} pairs:\n")
    print("| job | Antiphon, rows/s | Kafka, rows/s | Antiphon : Kafka | CPU a row, µs |")
    print("|---|---|---|---|---|")
    for name, pairs in table:
        ratios = sorted(theirs.seconds / ours.seconds for ours, theirs in pairs)
        rates = [statistics.median(count / pair[side].seconds for pair in pairs) for side in (0, 1)]
        costs = [statistics.median(pair[side].cpu / count * 1e6 for pair in pairs) for side in (0, 1)]
        print(
            f"| {name} | {rates[0]:,.0f} | {rates[1]:,.0f} | **{statistics.median(ratios):.2f}**"
            f" ({ratios[0]:.2f} – {ratios[-1]:.2f}) | {costs[0]:.2f} and {costs[1]:.2f} |"
        )
