"""`make bench ARGS=--peers` without any peer: Antiphon's part, what is told of the others, and the table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import ROOT

BENCH = ROOT / "bench"
PEERS = ("NATS R3", "NATS R3, sync always", "Kafka", "RabbitMQ quorum")
SECONDS = 120.0
LOOK_SECONDS = 0.05
MARK = "PEERS_BENCH_TEST"


@contextmanager
def bench(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The bench, where nothing is on the path; and the mark that all processes below it have."""
    mark = f"{MARK}={uuid.uuid4()}"
    environment = {
        **os.environ,
        MARK: mark.partition("=")[2],
        "PATH": "/nowhere",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, BENCH / "run.py", "--peers", "--runs", "1", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()


def marked(mark: str) -> list[int]:
    """The processes that live and have this in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found


def test_every_row_is_measured_for_antiphon_and_peers_that_are_not_there_are_told() -> None:
    before = set(BENCH.glob("bench-data-*"))
    with bench("--seconds", "0.3") as (process, mark):
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert marked(mark) == []
    assert set(BENCH.glob("bench-data-*")) <= before
    for peer in PEERS:
        assert f"NOT MEASURED, {peer}: " in said
    table = [line for line in said.splitlines() if line.startswith("|")]
    assert table[0] == "| | Antiphon |"
    figures = {line.split("|")[1].strip(): line.split("|")[2].strip(" *") for line in table[4:]}
    assert len(figures) == 14
    assert all(float(figure.replace(",", "")) > 0 for figure in figures.values()), said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_bench_leaves_no_process_and_no_data(number: signal.Signals) -> None:
    before = set(BENCH.glob("bench-data-*"))
    with bench("--only", "antiphon", "--seconds", "60") as (process, mark):
        deadline = time.monotonic() + SECONDS
        # The bench, its two load processes, multiprocessing's tracker, the launcher and four nodes.
        while len(marked(mark)) < 9:
            assert time.monotonic() < deadline and process.poll() is None
            try:
                process.wait(timeout=LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(number)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode not in (0, -signal.SIGKILL), said
    # The tracker of multiprocessing ends by itself when its pipe closes.
    while marked(mark):
        assert time.monotonic() < deadline, f"still there: {marked(mark)}"
    assert set(BENCH.glob("bench-data-*")) <= before


def test_the_table_has_a_column_for_each_broker_with_medians_and_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from peers import report
    from peers.kafka import Kafka
    from peers.rabbitmq import RabbitMQ

    rabbitmq, kafka = RabbitMQ(), Kafka()
    rabbitmq.version = "1.2"
    measured = {
        "RabbitMQ quorum": [{row.figure: base for row in report.ROWS} for base in (3.0, 1000.0, 1.0)],
        "Kafka": [{row.figure: 7.0 for row in report.ROWS}],
    }
    lines = list(report.table([rabbitmq, kafka], measured))
    assert lines[:4] == [
        "| | RabbitMQ quorum | Kafka |",
        "|---|---|---|",
        "| version | 1.2 | 3.9.1 |",
        "| a message is confirmed when | synced by two of three | in the page cache of all in sync |",
    ]
    assert lines[4] == "| published in batches and confirmed, messages/s | **3** (1 – 1,000) | **7** |"
    assert "| lone `send`, p50, ms | **3.00** (1.00 – 1000.00) | **7.00** |" in lines
    assert len(lines) == 4 + len(report.ROWS)
