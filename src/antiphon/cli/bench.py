"""`antiphon bench`: a load test against a running system.

Producers and consumers are processes of their own. The phases, one after the other: publishing without a
consumer; publishing, receiving and acknowledging at once; the time of a message from `send` to the consumer
at half that load; and `send` one at a time. With `--sessions`, also many sessions together, each of which
waits for every confirmation.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from antiphon.cli import bench_workers as workers
from antiphon.cli.options import add_connection_options, positive, tls_option
from antiphon.errors import AntiphonError

ONE_AT_A_TIME = 2000
HALF_LOAD_SECONDS = 2.0
CROWD_SECONDS = 5.0


class BenchFailed(AntiphonError):
    """A worker process of the load test ended without a result."""

    code = "bench.failed"


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure a running system", description=__doc__
    )
    parser.add_argument(
        "--messages", type=positive, default=200_000, help="messages per phase (default 200,000)"
    )
    parser.add_argument("--size", type=positive, default=256, help="bytes of a body (default 256)")
    parser.add_argument("--producers", type=positive, default=1, help="producer processes (default 1)")
    parser.add_argument("--consumers", type=positive, default=1, help="consumer processes (default 1)")
    parser.add_argument(
        "--sessions", type=positive, help="measure also so many sessions that each send one at a time"
    )
    parser.add_argument(
        "--connections", type=positive, default=4, help="connections that those sessions share (default 4)"
    )
    parser.add_argument(
        "--destination", default="queue:bench", help="a queue that is empty (default queue:bench)"
    )
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    figures = Bench(arguments).measure()
    if arguments.json:
        print(json.dumps(figures))
        return 0
    print(f"published and confirmed   {figures['publish_rate']:>12,.0f} messages/s")
    print(f"drained                   {figures['drain_rate']:>12,.0f} messages/s")
    print(f"end to end                {figures['end_to_end_rate']:>12,.0f} messages/s")
    for name, label in (("latency_ms", "latency at half load"), ("send_ms", "one send at a time")):
        print(f"{label:<25} p50 {figures[name]['p50']:.2f} ms, p99 {figures[name]['p99']:.2f} ms")
    if arguments.sessions:
        crowd = figures["crowd"]
        label = f"{crowd['sessions']} sessions, one at a time"
        print(
            f"{label:<25} {crowd['rate']:>12,.0f} messages/s together, on {crowd['connections']} connections"
        )
    return 0


class Bench:
    """The phases of one load test."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._plan = workers.Plan(
            url=arguments.url,
            tls=tls_option(arguments),
            destination=arguments.destination,
            size=arguments.size,
            messages=arguments.messages,
        )
        self._producers: int = arguments.producers
        self._consumers: int = arguments.consumers
        self._sessions: int = arguments.sessions or 0
        self._connections: int = min(arguments.connections, arguments.sessions or 1)

    def measure(self) -> dict[str, Any]:
        """All phases in order; the queue is empty before and after each but the first."""
        publish_rate = self._rate(
            self._phase([(workers.publish, share) for share in self._shares(self._producers)])
        )
        drain_rate = self._rate(
            self._phase([(workers.consume, share) for share in self._shares(self._consumers)])
        )
        both = [(workers.consume, share) for share in self._shares(self._consumers)]
        both += [(workers.publish, share) for share in self._shares(self._producers)]
        end_to_end_rate = self._rate(self._phase(both), counted=self._plan.messages)
        half = self._plan.paced(end_to_end_rate / 2, HALF_LOAD_SECONDS)
        latencies = self._phase([(workers.consume_timing, half), (workers.publish_paced, half)])[0].samples
        single = self._phase(
            [
                (workers.consume, self._plan.of(ONE_AT_A_TIME)),
                (workers.send_singly, self._plan.of(ONE_AT_A_TIME)),
            ]
        )[1].samples
        crowd = {"crowd": self._crowd()} if self._sessions else {}
        return {
            "publish_rate": round(publish_rate),
            "drain_rate": round(drain_rate),
            "end_to_end_rate": round(end_to_end_rate),
            "latency_ms": _quantiles(latencies),
            "send_ms": _quantiles(single),
            "messages": self._plan.messages,
            "size": self._plan.size,
            "producers": self._producers,
            "consumers": self._consumers,
            **crowd,
        }

    def _crowd(self) -> dict[str, Any]:
        """The rate of many sessions that publish together; afterwards the queue is empty again."""
        plan = replace(
            self._plan, sessions=self._sessions, connections=self._connections, seconds=CROWD_SECONDS
        )
        (sent,) = results = self._phase([(workers.send_in_crowd, plan)])
        self._phase([(workers.consume, self._plan.of(sent.messages))])
        return {
            "rate": round(self._rate(results)),
            "send_ms": _quantiles(sent.samples),
            "sessions": self._sessions,
            "connections": self._connections,
        }

    def _shares(self, workers_count: int) -> list[workers.Plan]:
        share, rest = divmod(self._plan.messages, workers_count)
        return [self._plan.of(share + (1 if place < rest else 0)) for place in range(workers_count)]

    def _rate(self, results: list[workers.Result], counted: int | None = None) -> float:
        started = min(result.started for result in results)
        finished = max(result.finished for result in results)
        messages = counted if counted is not None else sum(result.messages for result in results)
        return messages / (finished - started)

    def _phase(self, jobs: Sequence[tuple[workers.Job, workers.Plan]]) -> list[workers.Result]:
        """Run the jobs at once, each in its own process; all start together when all are connected."""
        context = multiprocessing.get_context("spawn")
        ends: list[Connection] = []
        processes = []
        for job, plan in jobs:
            ours, theirs = context.Pipe()
            process = context.Process(target=workers.run, args=(job, plan, theirs), daemon=True)
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        try:
            for end in ends:
                _expect(end)
            for end in ends:
                end.send(time.monotonic())
            return [_expect(end) for end in ends]
        finally:
            for process in processes:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()


def _expect(end: Connection) -> Any:
    try:
        answer = end.recv()
    except EOFError:
        raise BenchFailed("a worker process ended without a result; its own words are above") from None
    if isinstance(answer, str):
        raise BenchFailed(answer)
    return answer


def _quantiles(samples_ms: list[float]) -> dict[str, float]:
    ordered = sorted(samples_ms)
    return {
        name: round(ordered[min(len(ordered) - 1, math.ceil(len(ordered) * share) - 1)], 3)
        for name, share in (("p50", 0.50), ("p99", 0.99))
    }
