"""`make bench ARGS="--against REF"`: what the server's CPU time for a message was before, and is now.

Two checkouts, this one and one of `REF`, serve the same load in turn, pair after pair, so that a machine
that is slow for a minute is slow for both. The load is a process of its own that speaks the public API of
its checkout: batches through a queue, then single sends. Reported is the median of the ratios, pair by
pair; CPU seconds are those of the server process as the kernel counted them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PAIRS = 9

LOAD = """
import sys
import antiphon
from antiphon import blocking

url, messages, singles = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
body = b"x" * 256
with blocking.connect(url) as connection, connection.session() as session:
    producer, consumer = session.producer("queue:load"), session.consumer("queue:load")
    for _ in range(messages // 10_000):
        producer.send_many([body] * 10_000)
    taken = 0
    while taken < messages:
        taken += len(consumer.receive_many(1_000, timeout=30))
    for _ in range(singles):
        producer.send(body)
        assert consumer.receive(timeout=30) is not None
"""


def compare(ref: str, pairs: int, messages: int, singles: int) -> None:
    """Measure pairs and print every ratio and the median."""
    with tempfile.TemporaryDirectory(prefix="bench-before-", dir=PROJECT / "bench") as scratch:
        before = Path(scratch) / "checkout"
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), ref], check=True)
        try:
            ratios = []
            for pair in range(pairs):
                # Whoever comes second finds warm caches: take turns.
                turns = (before, PROJECT) if pair % 2 else (PROJECT, before)
                spent = {checkout: cpu_seconds(checkout, scratch, messages, singles) for checkout in turns}
                ratios.append(spent[PROJECT] / spent[before])
                per_message = [spent[checkout] / (messages + singles) * 1e6 for checkout in (before, PROJECT)]
                print(
                    f"pair {pair + 1}: before {per_message[0]:.3f}, now {per_message[1]:.3f} µs of CPU "
                    f"a message, ratio {ratios[-1]:.3f}",
                    flush=True,
                )
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    print(
        f"CPU a message, now against {ref}: median ratio of {pairs} pairs {statistics.median(ratios):.3f} "
        f"[{min(ratios):.3f} .. {max(ratios):.3f}]"
    )


def cpu_seconds(checkout: Path, scratch: str, messages: int, singles: int) -> float:
    """What a server of this checkout spends on the load, from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryDirectory(dir=scratch) as data:
        up = [sys.executable, "-m", "antiphon.cli.main", "up", "--data", data, "--port", "0", "--json"]
        server = subprocess.Popen(up, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            load = [sys.executable, "-c", LOAD, url, str(messages), str(singles)]
            subprocess.run(load, check=True, env=environment)
        finally:
            server.terminate()
            _, _, usage = os.wait4(server.pid, 0)
            server.returncode = 0
    return usage.ru_utime + usage.ru_stime
