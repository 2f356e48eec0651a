"""`make bench`: the figures of docs/performance.md, each the median of several runs.

Starts an embedded message system on a temporary directory beside this file's project, measures it with
`antiphon bench --json`, prints one line per run and the medians, and stops it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import blocking
import bus
import calls
import cluster
import compare
import counts
import failover
import lines
import spark
import spark_kafka
import transactions
import walk
from figures import embedded, figure, measure

FIGURES = (
    "publish_rate",
    "drain_rate",
    "end_to_end_rate",
    "latency_ms.p50",
    "latency_ms.p99",
    "send_ms.p50",
    "send_ms.p99",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--against", metavar="REF", help="compare what messages cost with a commit")
    parser.add_argument("--pairs", type=int, default=compare.PAIRS, help="pairs measured with --against")
    parser.add_argument("--blocking", action="store_true", help="measure programs without an event loop")
    parser.add_argument("--calls", action="store_true", help="count function calls for a lone message")
    parser.add_argument("--counts", action="store_true", help="count lines, names, messages, the walk")
    parser.add_argument("--walk", action="store_true", help="list the functions that a `send` runs through")
    parser.add_argument("--most-called", type=int, default=10, help="functions listed with --calls")
    parser.add_argument("--lines", action="store_true", help="a million lines by `antiphon send`")
    parser.add_argument("--bus", action="store_true", help="measure the bus alone, three replicas and more")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --bus: draw the sender's cost as SVG")
    parser.add_argument("--cluster", action="store_true", help="measure a cluster of three replicas")
    parser.add_argument("--transactions", action="store_true", help="measure what transactions cost")
    parser.add_argument("--spark", action="store_true", help="measure Spark with a cluster")
    parser.add_argument("--spark-kafka", action="store_true", help="Spark jobs on Antiphon and on Kafka")
    parser.add_argument("--only", default="", metavar="WORDS", help="with --spark-kafka: jobs of such a name")
    parser.add_argument("--failover", action="store_true", help="measure how long a failover takes")
    parser.add_argument("--trials", type=int, default=failover.TRIALS, help="failovers with --failover")
    parser.add_argument("--transport", choices=("udp", "tcp"), default="udp", help="of the cluster")
    arguments = parser.parse_args()
    if arguments.blocking:
        with embedded() as url:
            blocking.report(url, arguments.size)
        return 0
    if arguments.counts:
        counts.report()
        return 0
    if arguments.walk:
        walk.report()
        return 0
    if arguments.calls:
        calls.measure(arguments.most_called)
        return 0
    if arguments.lines:
        with embedded() as url:
            lines.report(url)
        return 0
    if arguments.cluster:
        cluster.measure(arguments)
        return 0
    if arguments.failover:
        failover.measure(arguments.trials, arguments.transport)
        return 0
    if arguments.spark:
        arguments.messages = max(arguments.messages, spark.MESSAGES)
        spark.measure(arguments)
        return 0
    if arguments.spark_kafka:
        arguments.messages = max(arguments.messages, spark_kafka.MESSAGES)
        spark_kafka.measure(arguments)
        return 0
    if arguments.transactions:
        transactions.measure(arguments)
        return 0
    if arguments.bus:
        bus.measure(arguments.runs, arguments.plot)
        return 0
    if arguments.against:
        compare.compare(arguments.against, arguments.pairs, arguments.messages)
        return 0
    with embedded() as url:
        runs = [measure(url, arguments) for _ in range(arguments.runs)]
        blocking.report(url, arguments.size)
        lines.report(url)
    print(f"medians of {len(runs)} runs, {arguments.messages:,} messages of {arguments.size} bytes:")
    for name in FIGURES:
        values = sorted(figure(run, name) for run in runs)
        print(f"  {name:<18} {statistics.median(values):>14,.3f}   [{values[0]:,.3f} .. {values[-1]:,.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
