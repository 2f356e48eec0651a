"""`make bench ARGS=--rest`: what a cluster costs while nothing is going on, and how long it takes to start.

One client manager and three message managers, without a client. For every process the CPU time and the
wake-ups are told: how often a second one of its threads went to sleep, of its own will, and was woken.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import compare

SETTLE_SECONDS = 3.0
SECONDS = 10.0


def measure() -> None:
    """Print a line for each node, and one for all together."""
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as scratch:
        began_s = time.monotonic()
        with compare.system(compare.PROJECT, scratch, compare.SHAPES["cluster"]) as ready:
            print(f"ready after {time.monotonic() - began_s:.2f} s", flush=True)
            pids = {str(node["name"]): int(node["pid"]) for node in ready["nodes"]}
            time.sleep(SETTLE_SECONDS)
            before = {name: _spent(pid) for name, pid in pids.items()}
            time.sleep(SECONDS)
            after = {name: _spent(pid) for name, pid in pids.items()}
    shares = []
    for name, (cpu_s, sleeps) in after.items():
        shares.append((cpu_s - before[name][0]) / SECONDS)
        wakes = (sleeps - before[name][1]) / SECONDS
        print(f"{name:<8} {shares[-1]:6.2%} of a core, {wakes:5.0f} wake-ups a second")
    print(f"together {sum(shares):6.2%} of a core")


def _spent(pid: int) -> tuple[float, int]:
    """CPU seconds of a process so far, and how often its threads went to sleep."""
    nanoseconds = sleeps = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                sleeps += int(line.split()[1])
    return nanoseconds / 1e9, sleeps
