"""`make bench ARGS=--calls`: how many functions are called for a lone message, on every node of a cluster.

One client manager and three replicas, each a process that counts its own calls (`counting/`), serve `LONE`
messages, sent one after the other. What the nodes call while nothing happens, for as long, is counted as
well and taken off: heartbeats are not the message's. Of several rounds the median is told for each node, for
a sync that takes long is done in another thread. Calls are counted, not timed. `python` are functions written
in Python, `all` has those of C as well; `steps` is how often nodes were stepped: on a busy machine datagrams
come apart that otherwise come together, and there are more of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import compare

import antiphon

BODY = b"x" * 256
LONE = 100
ROUNDS = 3
ANSWER_SECONDS = 30.0
STEP = "node: Node.step"


class NodeCount(NamedTuple):
    """Calls of one node: those of functions written in Python, and all of them by name."""

    python: float
    by_function: Counter[str]

    def __lt__(self, other: NodeCount) -> bool:  # type: ignore[override]
        return self.by_function.total() < other.by_function.total()

    def less(self, idle: NodeCount) -> NodeCount:
        left = Counter(self.by_function)
        left.subtract(idle.by_function)
        return NodeCount(self.python - idle.python, left)


class Meter:
    """Begins and ends the counts of all nodes of a system."""

    def __init__(self, folder: Path, nodes: list[dict[str, Any]]) -> None:
        self._folder = folder
        self._nodes = {node["name"]: int(node["pid"]) for node in nodes}

    def toggle(self) -> None:
        for pid in self._nodes.values():
            os.kill(pid, signal.SIGUSR1)

    def take(self) -> dict[str, NodeCount]:
        """End the counts, and read them."""
        self.toggle()
        return {name: self._read(pid) for name, pid in self._nodes.items()}

    def _read(self, pid: int) -> NodeCount:
        path = self._folder / f"{pid}.json"
        deadline = time.monotonic() + ANSWER_SECONDS
        while not path.exists():
            assert time.monotonic() < deadline, f"the process {pid} does not tell what it counted"
            time.sleep(0.01)
        told = json.loads(path.read_text())
        path.unlink()
        return NodeCount(told["python"], Counter(told["calls"]))


async def load(url: str, meter: Meter) -> list[dict[str, NodeCount]]:
    """What every node called for `LONE` messages, less what it calls anyway; several times."""
    counts = []
    async with antiphon.connect(url, timeout=ANSWER_SECONDS) as connection:
        producer = await connection.session().producer("queue:calls")
        for _ in range(LONE):
            await producer.send(BODY)
        for _ in range(ROUNDS):
            meter.toggle()
            began = time.monotonic()
            for _ in range(LONE):
                await producer.send(BODY)
            seconds = time.monotonic() - began
            busy = meter.take()
            meter.toggle()
            await asyncio.sleep(seconds)
            idle = meter.take()
            counts.append({name: busy[name].less(idle[name]) for name in busy})
    return counts


def count(checkout: Path) -> dict[str, NodeCount]:
    """The counts of a cluster of this checkout: of several rounds, for each node the median."""
    with tempfile.TemporaryDirectory(prefix="bench-calls-", dir=Path(__file__).parent) as scratch:
        paths = (str(Path(__file__).with_name("counting")), str(checkout / "src"))
        environment = {"ANTIPHON_CALLS": scratch, "PYTHONPATH": os.pathsep.join(paths)}
        with compare.system(checkout, scratch, compare.SHAPES["cluster"], environment) as ready:
            rounds = asyncio.run(load(ready["url"], Meter(Path(scratch), ready["nodes"])))
    ranked = {name: sorted(one[name] for one in rounds) for name in rounds[0]}
    return {name: counts[ROUNDS // 2] for name, counts in ranked.items()}


def measure(most_called: int) -> None:
    """Print the calls per message of every node and of all together, and the functions most called."""
    counts = count(compare.PROJECT)
    together = NodeCount(
        sum(node.python for node in counts.values()),
        sum((node.by_function for node in counts.values()), Counter()),
    )
    print(f"calls for one message of {LONE:,}, sent one at a time:")
    for name, node in {**counts, "all nodes": together}.items():
        python, every, steps = (
            node.python / LONE,
            node.by_function.total() / LONE,
            node.by_function[STEP] / LONE,
        )
        print(f"  {name:<10} python {python:>8,.1f}   all {every:>8,.1f}   steps {steps:>5,.1f}")
    print("most called:")
    for function, number in together.by_function.most_common(most_called):
        print(f"  {number / LONE:>8,.1f}  {function}")
