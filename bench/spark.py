"""`make bench ARGS=--spark`: how many rows a second pass between Spark and a cluster of two replicas.

Everything is on this machine: two replicas, a witness and a client manager, and Spark as `local[2]`. The same
messages are read several times, by `spark.read` and as a stream with `availableNow`, all columns, into a sink
that throws them away. The first reads warm everything up and are not counted. Beside the rate stands what
each process spent of the processor for a message, `workers` being those that Spark runs our code in: with
more cores than two they would work side by side.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from peers.processes import children
from spark_sink import Writes, compare

import antiphon.blocking
from tests.cluster_processes import ClusterProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

TOPIC = "topic:bench"
MESSAGES = 1_000_000
WARM_UPS = 2
MARKS = {"spark.read": 500_000, "readStream": 250_000, "sink": 200_000}
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


def measure(arguments: argparse.Namespace) -> None:
    """Print every run, and the medians beside the marks they are to reach."""
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    # The project's own disk, not a memory file system: a sync must mean something.
    with (
        tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as folder,
        ClusterProcess(
            Path(folder),
            transport=arguments.transport,
            client_managers=1,
            message_managers=2,
            has_faults=False,
        ) as cluster,
        session() as spark,
    ):
        count = publish(cluster.url, arguments.messages, arguments.size)
        reads = Reads(spark, cluster.url, Path(folder))
        writes = Writes(spark, cluster.url, Path(folder), count, arguments.size)
        for name, action in (
            ("spark.read", reads.batch),
            ("readStream", reads.stream),
            ("sink", writes.sink),
        ):
            runs = [spent(cluster, action, count, name) for _ in range(WARM_UPS + arguments.runs)]
            report(name, runs[WARM_UPS:], count, arguments.size)
        writes.copy(reads.frame())
        compare("spark.read", cluster.url, reads.batch, writes.read_copy, arguments.runs)
        compare("sink", cluster.url, writes.sink, writes.parquet, arguments.runs)


@contextmanager
def session(more: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Spark with two cores, as the marks want it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {**SETTINGS, **(more or {})}
    with tempfile.TemporaryDirectory(prefix="bench-bytecode-") as bytecode:
        # Spark starts a Python for every stream. As where a package is installed, none compiles it anew.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        made = SparkSession.Builder().master("local[2]").appName("bench").config(map=settings).getOrCreate()
        made.sparkContext.setLogLevel("ERROR")
        try:
            yield made
        finally:
            made.stop()


def publish(url: str, messages: int, size: int) -> int:
    """Fill the topic; how many messages that were."""
    with antiphon.blocking.connect(url) as connection:
        connection.admin().create(TOPIC, retention=86_400, retention_bytes=8 << 30)
        with connection.session() as session, session.producer(TOPIC) as producer:
            return len(producer.send_many([os.urandom(size)] * messages))


class Reads:
    """The two ways to read all of it."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark = spark
        self._options = {
            "servers": url.removeprefix("antiphon://"),
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
        }
        self._folder = folder
        self._queries = 0

    def frame(self) -> DataFrame:
        return self._spark.read.format("antiphon").options(**self._options).load()

    def batch(self) -> None:
        self.frame().write.format("noop").mode("overwrite").save()

    def stream(self) -> None:
        """A query of its own each time, from the first message to the last one."""
        self._queries += 1
        frame = self._spark.readStream.format("antiphon").options(**self._options).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / f"query-{self._queries}")).start()
        query.awaitTermination()


def spent(cluster: ClusterProcess, action: Callable[[], None], count: int, name: str) -> dict[str, float]:
    """Seconds, and the processor's seconds of every node."""
    before = everybodys_cpu(cluster)
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    run = {"seconds": seconds} | {who: cpu - before[who] for who, cpu in everybodys_cpu(cluster).items()}
    print(f"{name}: {count / seconds:,.0f} rows/s  {_cpu(run, count)}", flush=True)
    return run


def everybodys_cpu(cluster: ClusterProcess) -> dict[str, float]:
    """By node; `java` is Spark, `workers` are its Python processes, those that have ended included."""
    from pyspark import SparkContext

    java = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    spent = {node: cpu_seconds(life.pid) for node, life in cluster.nodes.items()}
    spent["java"] = cpu_seconds(java)
    spent["workers"] = sum(map(cpu_seconds, children(java))) + cpu_seconds(java, of_children=True)
    return spent


def cpu_seconds(pid: int, of_children: bool = False) -> float:
    """What a process has had of the processor, or those of its children that it has seen end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # It has ended just now; its parent has it.
        return 0.0
    first = 13 if of_children else 11
    return (int(fields[first]) + int(fields[first + 1])) / CLOCK_TICKS


def report(name: str, runs: list[dict[str, float]], count: int, size: int) -> None:
    rates = sorted(count / run["seconds"] for run in runs)
    print(
        f"{name}: {statistics.median(rates):,.0f} rows/s, median of {len(runs)} runs of {count:,} messages of"
        f" {size} bytes   [{rates[0]:,.0f} .. {rates[-1]:,.0f}]   mark: at least {MARKS[name]:,}"
    )
    medians = {node: statistics.median(run[node] for run in runs) for node in runs[0]}
    print(f"  {_cpu(medians, count)}", flush=True)


def _cpu(run: dict[str, Any], count: int) -> str:
    return "µs of CPU a row: " + ", ".join(
        f"{node} {seconds * 1e6 / count:.2f}" for node, seconds in sorted(run.items()) if node != "seconds"
    )
