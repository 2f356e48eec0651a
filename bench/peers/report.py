"""Runs the brokers in turn, and prints the table of docs/performance.md.

In every run each broker is started anew, on empty folders, and ended; the run after it begins with another
broker. So the rows have as many samples as there are runs, and a machine that is slow for some minutes is
slow for all.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from peers.kafka import Kafka
from peers.load import Spent, Task, serve
from peers.nats import Nats
from peers.ours import Antiphon
from peers.processes import Processes, cpu_ns, memory_mib
from peers.rabbitmq import RabbitMQ
from peers.system import System, Unavailable

REST_SHARE = 3
"""How many times as long as a load brokers come to rest after their start, and are then watched at rest."""
END_SECONDS = 10.0
ANSWER_SECONDS = 180.0

Figures = dict[str, float]


class Row(NamedTuple):
    label: str
    figure: str
    form: str = "{:,.0f}"


ROWS = (
    Row("published in batches and confirmed, messages/s", "publish_rate"),
    Row("end to end, messages/s", "end_to_end_rate"),
    Row("CPU of the servers for a message of the batches, µs", "publish_servers_us", "{:.1f}"),
    Row("CPU of the client for a message of the batches, µs", "publish_client_us", "{:.1f}"),
    Row("lone `send`, p50, ms", "send_ms_p50", "{:.2f}"),
    Row("CPU of the servers for a lone message, µs", "send_servers_us"),
    Row("publish → consume, p50, ms", "latency_ms_p50", "{:.1f}"),
    Row("publish → consume, p99, ms", "latency_ms_p99", "{:.1f}"),
    Row("10 senders one at a time, messages/s", "ten_rate"),
    Row("100 senders one at a time, messages/s", "hundred_rate"),
    Row("CPU of the servers for a message of the 100, µs", "hundred_servers_us"),
    Row("CPU at rest, % of a core", "rest_percent", "{:.1f}"),
    Row("memory at rest, MiB", "rest_mib"),
    Row("ready after, s", "ready_s", "{:.1f}"),
)


def systems() -> list[System]:
    """The columns of the table."""
    return [Antiphon(), Nats(is_synced=False), Nats(is_synced=True), Kafka(), RabbitMQ()]


def measure(arguments: argparse.Namespace) -> None:
    """Print every run, then the table."""
    # An end that is asked for runs the same way out as one by Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"load average before: {_load()}", flush=True)
    # The project's own disk, not a memory file system: a sync must mean something.
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parents[1]) as name:
        present = list(_installed(systems(), arguments.only, Path(name)))
        measured: dict[str, list[Figures]] = {system.title: [] for system in present}
        for run in range(arguments.runs):
            turn = run % max(1, len(present))
            for system in present[turn:] + present[:turn]:
                with tempfile.TemporaryDirectory(dir=name) as folder, _skipping(system):
                    figures = one_run(system, Path(folder), arguments)
                    measured[system.title].append(figures)
                    told = ", ".join(f"{name} {value:,.3f}" for name, value in figures.items())
                    print(f"run {run + 1}, {system.title}, load {_load()}: {told}", flush=True)
    print(f"load average after: {_load()}\n")
    columns = [system for system in present if measured[system.title]]
    if not columns:
        raise SystemExit("nothing was measured")
    print(
        f"Medians of {arguments.runs} runs and their range, {arguments.size} bytes, three replicas, "
        f"loads of {arguments.seconds:g} s:\n"
    )
    print("\n".join(table(columns, measured)))


def table(columns: Sequence[System], measured: dict[str, list[Figures]]) -> Iterator[str]:
    """The lines of the table, in Markdown; a column for each system that was measured."""
    yield f"| | {' | '.join(system.title for system in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    yield f"| version | {' | '.join(system.version for system in columns)} |"
    yield f"| a message is confirmed when | {' | '.join(system.durability for system in columns)} |"
    for row in ROWS:
        cells = []
        for system in columns:
            values = sorted(figures[row.figure] for figures in measured[system.title])
            low, middle, high = (
                row.form.format(value) for value in (values[0], statistics.median(values), values[-1])
            )
            cells.append(f"**{middle}** ({low} – {high})" if len(values) > 1 else f"**{middle}**")
        yield f"| {row.label} | {' | '.join(cells)} |"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


@contextlib.contextmanager
def _skipping(system: System) -> Iterator[None]:
    """A broker that is not there is told, and does not end the others."""
    try:
        yield
    except Unavailable as reason:
        print(f"NOT MEASURED, {system.title}: {reason}", flush=True)


def _installed(all_of_them: list[System], only: str, folder: Path) -> Iterator[System]:
    for system in all_of_them:
        if only.lower() in system.title.lower():
            with _skipping(system):
                system.install(folder)
                yield system


def one_run(system: System, folder: Path, arguments: argparse.Namespace) -> Figures:
    """Start a broker, measure it at rest and under every load, and end it."""
    with (
        Processes(folder) as processes,
        _Worker(system) as producer,
        _Worker(system) as consumer,
    ):
        address = system.start(folder, processes)
        loads = _Loads(producer, consumer, address, arguments)
        try:
            ready = loads.sent("first").finished
        except Unavailable as error:
            raise Unavailable(f"{error} {processes.last_words()}") from error
        assert processes.began_at is not None
        loads.pids = system.servers(processes)
        return {
            "ready_s": ready - processes.began_at,
            **_at_rest(loads.pids, arguments.seconds),
            **loads.all(),
        }


def _at_rest(pids: list[int], seconds: float) -> Figures:
    time.sleep(REST_SHARE * seconds)
    before, began = cpu_ns(pids), time.monotonic()
    time.sleep(REST_SHARE * seconds)
    share = (cpu_ns(pids) - before) / 1e9 / (time.monotonic() - began)
    return {"rest_percent": 100 * share, "rest_mib": memory_mib(pids)}


class _Loads:
    """The loads of one run; the queue is empty before and after each."""

    def __init__(
        self, producer: _Worker, consumer: _Worker, address: str, arguments: argparse.Namespace
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._address = address
        self._arguments = arguments
        self.pids: list[int] = []

    def _task(self, name: str, senders: int = 1, is_timed: bool = False) -> Task:
        return Task(
            name=name,
            address=self._address,
            seconds=self._arguments.seconds,
            size=self._arguments.size,
            pids=self.pids,
            senders=senders,
            is_timed=is_timed,
        )

    def sent(self, name: str, senders: int = 1) -> Spent:
        """Send without a consumer, then take everything."""
        self._producer.tell(self._task(name, senders))
        sent = self._producer.answer()
        self._consumer.tell(self._task("take"))
        self._consumer.answer()
        self._complete(sent, self._consumer.answer())
        return sent

    def passed(self, name: str, is_timed: bool = False) -> tuple[Spent, Spent]:
        """Send while a consumer takes."""
        self._consumer.tell(self._task("take", is_timed=is_timed))
        self._consumer.answer()
        self._producer.tell(self._task(name))
        sent, taken = self._producer.answer(), self._consumer.answer()
        self._complete(sent, taken)
        return sent, taken

    @staticmethod
    def _complete(sent: Spent, taken: Spent) -> None:
        assert taken.messages >= sent.messages, f"{taken.messages} of {sent.messages} messages came"

    def all(self) -> Figures:
        # Not counted: caches, just-in-time compilers and first files of journals.
        self.sent("publish")
        self.sent("one_at_a_time", senders=10)
        published = self.sent("publish")
        sent, taken = self.passed("publish")
        lone = self.sent("one_at_a_time")
        _, timed = self.passed("paced", is_timed=True)
        ten = self.sent("one_at_a_time", senders=10)
        hundred = self.sent("one_at_a_time", senders=100)
        latencies = statistics.quantiles(timed.samples_ms, n=100)
        return {
            "publish_rate": published.rate,
            "publish_servers_us": published.servers_us / published.messages,
            "publish_client_us": published.client_us / published.messages,
            "end_to_end_rate": sent.messages / (taken.finished - sent.started),
            "send_ms_p50": statistics.median(lone.samples_ms),
            "send_servers_us": lone.servers_us / lone.messages,
            "latency_ms_p50": latencies[49],
            "latency_ms_p99": latencies[98],
            "ten_rate": ten.rate,
            "hundred_rate": hundred.rate,
            "hundred_servers_us": hundred.servers_us / hundred.messages,
        }


class _Worker:
    """A load process; ready when it has loaded its modules."""

    def __init__(self, system: System) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(system, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.answer()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(timeout=END_SECONDS)

    def tell(self, task: Task) -> None:
        self._pipe.send(task)

    def answer(self) -> Spent:
        if not self._pipe.poll(ANSWER_SECONDS):
            raise Unavailable(f"a load did not end within {ANSWER_SECONDS:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise Unavailable(answer)
        assert isinstance(answer, Spent)
        return answer
