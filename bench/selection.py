"""`make bench ARGS=--selectors`: ten consumers with different selectors at one long queue.

A million messages, behind a head of a tenth of that which no consumer wants. Each consumer wants one message
in a hundred, then one in ten, drawn at random, so that matches are hardly ever neighbours. Told are the
messages that all consumers together received and acknowledged a second, when the last consumer had its first
message, and what the other queue of the same server kept of its rate meanwhile: a producer and a consumer
without a selector, once at a given rate and once as fast as they can.

The server, the ten consumers, and the plain queue's producer and consumer are three processes. Every consumer
checks that it got exactly its own messages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare
from load import server_cpu_ns

MESSAGES = 1_000_000
PERCENTS = {1: 10_000, 10: 50_000}
"""How many messages each consumer wants, and the mark for all of them together a second."""
PLAIN_RATE = 50_000
PLAIN_SECONDS = 3.0
WARM_SECONDS = 1.0
SIZE = 256
KEPT = 0.8
FIGURES: dict[str, tuple[str, float]] = {
    "rate": ("messages/s", 0),
    "first_s": ("seconds to the last consumer's first message", 0),
    "server_us": ("µs of the server for a message", 0),
    "client_us": ("µs of the consumers' process for a message", 0),
    "kept": (f"of {PLAIN_RATE:,}/s the plain queue kept", KEPT),
    "kept_at_most": ("of its highest rate the plain queue kept", 0),
}


class Load:
    """A process of `selecting.py`."""

    def __init__(self, checkout: Path, *words: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("selecting.py")), *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a load ended before it had said all"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=120) == 0, "a load failed"


@contextlib.contextmanager
def _loads(checkout: Path, *words: object) -> Iterator[Load]:
    load = Load(checkout, *words)
    yield load
    load.end()


def _select(checkout: Path, url: str, queue: str, percent: int, messages: int) -> Load:
    """Fill a queue, and make the ten consumers ready for it."""
    with _loads(checkout, "fill", url, queue, percent, messages, SIZE) as filling:
        filling.hear()
    selecting = Load(checkout, "select", url, queue, percent, messages)
    selecting.hear()
    return selecting


def _alone(checkout: Path, url: str, pids: list[int], percent: int, messages: int) -> dict[str, float]:
    selecting = _select(checkout, url, "queue:alone", percent, messages)
    before = server_cpu_ns(pids)
    selecting.tell()
    figures = {name: float(value) for name, value in selecting.hear().items()}
    figures["server_us"] = (server_cpu_ns(pids) - before) / figures["messages"] / 1_000
    selecting.end()
    return figures


def _beside(checkout: Path, url: str, percent: int, messages: int, rate: int) -> float:
    """What a plain queue keeps of its rate while the ten consumers drain theirs."""
    selecting = _select(checkout, url, f"queue:beside.{rate}", percent, messages)
    with _loads(checkout, "plain", url, SIZE, rate) as plain:
        time.sleep(WARM_SECONDS)
        plain.tell()
        time.sleep(PLAIN_SECONDS)
        plain.tell()
        before = plain.hear()["rate"]
        selecting.tell()
        selecting.hear()
        plain.tell()
        kept: float = plain.hear()["rate"] / before
    selecting.end()
    return kept


def _run(checkout: Path, percent: int, messages: int) -> dict[str, float]:
    folder = tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent)
    with folder as scratch, compare.system(checkout, scratch, compare.SHAPES["embedded"]) as ready:
        pids = [int(node["pid"]) for node in ready["nodes"]]
        figures = _alone(checkout, ready["url"], pids, percent, messages)
        figures["kept"] = _beside(checkout, ready["url"], percent, messages, PLAIN_RATE)
        figures["kept_at_most"] = _beside(checkout, ready["url"], percent, messages, 0)
    return figures


def measure(arguments: argparse.Namespace) -> None:
    """Print every run, and the medians beside the marks they are to reach."""
    messages = max(arguments.messages, MESSAGES)
    for percent, mark in PERCENTS.items():
        runs = []
        for _ in range(arguments.runs):
            runs.append(_run(compare.PROJECT, percent, messages))
            row = ", ".join(f"{name} {value:,.2f}" for name, value in runs[-1].items())
            print(f"{percent} %: {row}", flush=True)
        print(f"medians of {len(runs)} runs, {messages:,} messages, each consumer wants {percent} %:")
        for name, (what, wanted) in {**FIGURES, "rate": ("messages/s", mark)}.items():
            values = sorted(one[name] for one in runs)
            note = f"   mark: at least {wanted:,}" if wanted else ""
            spread = f"[{values[0]:,.2f} .. {values[-1]:,.2f}]"
            print(f"  {what:<42} {statistics.median(values):>12,.2f}   {spread}{note}", flush=True)
