"""`make bench`: the figures of docs/performance.md, each the median of several runs.

Starts an embedded message system on a temporary directory beside this file's project, measures it with
`antiphon bench --json`, prints one line per run and the medians, and stops it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import blocking
import bus
import calls
import cluster
import compare
import counts
import failover
import lines
import log_storm
import rest
import selection
import spark
import spark_kafka
import transactions
import walk
from figures import embedded, figure, measure
from peers import report as peers

FIGURES = (
    "publish_rate",
    "drain_rate",
    "end_to_end_rate",
    "latency_ms.p50",
    "latency_ms.p99",
    "send_ms.p50",
    "send_ms.p99",
)


def parser() -> argparse.ArgumentParser:
    """The options of `make bench`; without a subject, an embedded system is measured."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--runs", type=int, default=5)
    made.add_argument("--messages", type=int, default=300_000)
    made.add_argument("--size", type=int, default=256)
    made.add_argument("--against", metavar="REF", help="compare what messages cost with a commit")
    made.add_argument("--pairs", type=int, default=compare.PAIRS, help="pairs measured with --against")
    made.add_argument("--blocking", action="store_true", help="measure programs without an event loop")
    made.add_argument("--calls", action="store_true", help="count function calls for a lone message")
    made.add_argument("--counts", action="store_true", help="count lines, names, messages, the walk")
    made.add_argument("--walk", action="store_true", help="list the functions that a `send` runs through")
    made.add_argument("--most-called", type=int, default=10, help="functions listed with --calls")
    made.add_argument("--lines", action="store_true", help="a million lines by `antiphon send`")
    made.add_argument("--bus", action="store_true", help="measure the bus alone, three replicas and more")
    made.add_argument("--plot", type=Path, metavar="FILE", help="with --bus: draw the sender's cost as SVG")
    made.add_argument("--cluster", action="store_true", help="measure a cluster of three replicas")
    made.add_argument("--log-storm", action="store_true", help="publish while a node logs a storm of events")
    made.add_argument("--selectors", action="store_true", help="measure consumers with selectors")
    made.add_argument("--transactions", action="store_true", help="measure what transactions cost")
    made.add_argument("--spark", action="store_true", help="measure Spark with a cluster")
    made.add_argument("--spark-kafka", action="store_true", help="Spark jobs on Antiphon and on Kafka")
    made.add_argument("--peers", action="store_true", help="Antiphon beside NATS, Kafka and RabbitMQ")
    made.add_argument("--seconds", type=float, default=3.0, help="with --peers: how long each load lasts")
    made.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="with --spark-kafka, --peers: jobs, brokers of such a name",
    )
    made.add_argument("--failover", action="store_true", help="measure how long a failover takes")
    made.add_argument("--rest", action="store_true", help="measure a cluster without any load")
    made.add_argument("--trials", type=int, default=failover.TRIALS, help="failovers with --failover")
    made.add_argument("--message-managers", type=int, default=3, help="with --failover; two have a witness")
    made.add_argument("--transport", choices=("udp", "tcp"), default="udp", help="of the cluster")
    return made


def blocking_programs(arguments: argparse.Namespace) -> None:
    with embedded() as url:
        blocking.report(url, arguments.size)


def million_lines(_: argparse.Namespace) -> None:
    with embedded() as url:
        lines.report(url)


def spark_with_a_cluster(arguments: argparse.Namespace) -> None:
    arguments.messages = max(arguments.messages, spark.MESSAGES)
    spark.measure(arguments)


def spark_beside_kafka(arguments: argparse.Namespace) -> None:
    arguments.messages = max(arguments.messages, spark_kafka.MESSAGES)
    spark_kafka.measure(arguments)


SUBJECTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "blocking": blocking_programs,
    "counts": lambda _: counts.report(),
    "walk": lambda _: walk.report(),
    "calls": lambda arguments: calls.measure(arguments.most_called),
    "lines": million_lines,
    "cluster": cluster.measure,
    "failover": lambda arguments: failover.measure(
        arguments.trials, arguments.transport, arguments.message_managers
    ),
    "rest": lambda _: rest.measure(),
    "spark": spark_with_a_cluster,
    "spark_kafka": spark_beside_kafka,
    "peers": peers.measure,
    "log_storm": log_storm.measure_pairs,
    "selectors": selection.measure,
    "transactions": transactions.measure,
    "bus": lambda arguments: bus.measure(arguments.runs, arguments.plot),
    "against": lambda arguments: compare.compare(arguments.against, arguments.pairs, arguments.messages),
}


def embedded_system(arguments: argparse.Namespace) -> None:
    with embedded() as url:
        runs = [measure(url, arguments) for _ in range(arguments.runs)]
        blocking.report(url, arguments.size)
        lines.report(url)
    print(f"medians of {len(runs)} runs, {arguments.messages:,} messages of {arguments.size} bytes:")
    for name in FIGURES:
        values = sorted(figure(run, name) for run in runs)
        print(f"  {name:<18} {statistics.median(values):>14,.3f}   [{values[0]:,.3f} .. {values[-1]:,.3f}]")


def main() -> int:
    arguments = parser().parse_args()
    for subject, show in SUBJECTS.items():
        if getattr(arguments, subject):
            show(arguments)
            return 0
    embedded_system(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
