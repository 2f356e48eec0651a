"""The sink's part of `make bench ARGS=--spark`, and what other clients feel of a Spark job.

A publisher in a process of its own sends one small message after the other, at most 200 a second, and notes
how long each takes: while Spark reads or writes our cluster, and while the same Spark job reads or writes
Parquet files instead. So what Spark costs the machine is not held against us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import antiphon.blocking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "topic:bench-sink"
OTHER = "queue:bench-other"

PUBLISHER = """
import json, select, sys, time
import antiphon.blocking
latencies = []
with antiphon.blocking.connect(sys.argv[1]) as connection, connection.session() as session:
    producer = session.producer(sys.argv[2])
    producer.send(bytes(256))
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        began = time.perf_counter()
        producer.send(bytes(256))
        latencies.append(time.perf_counter() - began)
latencies.sort()
at = lambda share: latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1e3 if latencies else 0
print(json.dumps({"count": len(latencies), "p50": at(0.5), "p99": at(0.99)}), flush=True)
"""


class Publisher:
    """Another client, while the block lasts; then `told` says what it has seen, in ms."""

    def __init__(self, url: str) -> None:
        self.told: dict[str, float] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, url, OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Publisher:
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the publisher ended"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        printed, _ = self._process.communicate(b"\n", timeout=60)
        if kind is None:
            self.told = json.loads(printed)


class Writes:
    """One job in four forms: rows are made, or read, and written to us or to Parquet."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, count: int, size: int) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._count = count
        self._size = size
        with antiphon.blocking.connect(url) as connection:
            connection.admin().create(SINK, retention=600, retention_bytes=1 << 30)

    def _rows(self) -> DataFrame:
        return self._spark.range(0, self._count, 1, 2).selectExpr(
            f"cast(rpad(cast(id as string), {self._size}, 'x') as binary) as body"
        )

    def sink(self) -> None:
        """Write all rows, exactly once."""
        writer = (
            self._rows().write.format("antiphon").option("servers", self._url.removeprefix("antiphon://"))
        )
        writer.option("destination", SINK).mode("append").save()

    def parquet(self) -> None:
        self._rows().write.mode("overwrite").parquet(str(self._folder / "written"))

    def copy(self, rows: DataFrame) -> None:
        """What the source has, for the comparison."""
        rows.write.mode("overwrite").parquet(str(self._folder / "copy"))

    def read_copy(self) -> None:
        copy = self._spark.read.parquet(str(self._folder / "copy"))
        copy.write.format("noop").mode("overwrite").save()


def compare(name: str, url: str, ours: Callable[[], None], parquet: Callable[[], None], runs: int) -> None:
    """Print what another client feels while Spark works with us, and while it works with Parquet."""
    for round in range(runs):
        with Publisher(url) as beside_ours:
            ours()
        with Publisher(url) as beside_parquet:
            parquet()
        a, b = beside_ours.told, beside_parquet.told
        print(
            f"{name}: publish p99 {a['p99']:.1f} ms beside it, {b['p99']:.1f} ms beside the same job"
            f" on Parquet ({a['p99'] / max(b['p99'], 1e-9):.2f} times); p50 {a['p50']:.1f} and"
            f" {b['p50']:.1f} ms (run {round + 1}, load {os.getloadavg()[0]:.1f})",
            flush=True,
        )
