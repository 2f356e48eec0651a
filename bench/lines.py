"""`make bench ARGS=--lines`: a million lines through `antiphon send`, and through `send_many`.

Both are processes of their own that read the same file and end when everything is confirmed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINES = 1_000_000
RUNS = 5

# What an application would write, were there no command for it.
PROGRAM = """
import asyncio, sys
import antiphon

async def main():
    lines = [line.rstrip("\\n") for line in sys.stdin]
    async with antiphon.connect(sys.argv[1]) as connection, connection.session() as session:
        await session.producer("queue:bench-lines").send_many(lines)

asyncio.run(main())
"""


def report(url: str) -> None:
    """Print how long each way takes, in turn, and the medians."""
    ways = {
        "antiphon send": [sys.executable, "-m", "antiphon.cli.main", "send", "queue:bench-lines"],
        "send_many": [sys.executable, "-c", PROGRAM, url],
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    environment = {**os.environ, "ANTIPHON_URL": url}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "lines"
        file.write_text("".join(f"{number}\n" for number in range(LINES)))
        for _ in range(RUNS):
            for name, command in ways.items():
                with file.open() as lines:
                    began = time.perf_counter()
                    subprocess.run(
                        command, stdin=lines, stdout=subprocess.DEVNULL, env=environment, check=True
                    )
                    took[name].append(time.perf_counter() - began)
    print(f"{LINES:,} lines, medians of {RUNS} runs:")
    for name, seconds in took.items():
        span = f"[{min(seconds):.2f} .. {max(seconds):.2f}]"
        print(f"  {name:<18} {statistics.median(seconds):>6.2f} s   {span}")
    ratios = [ours / theirs for ours, theirs in zip(*took.values(), strict=True)]
    print(f"  {'ratio':<18} {statistics.median(ratios):>6.2f}", flush=True)
