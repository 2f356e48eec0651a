"""`make bench ARGS=--cluster`: a cluster of three replicas, with fsync and encryption, over `udp`.

One client manager, one producer process, one consumer process; then 100 sessions on 4 connections that each
send one message at a time. Five runs of `antiphon bench` after one that is not counted, and the medians
beside the marks they are to reach.
All processes share this machine: the figures say what its cores do together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import figure
from figures import measure as measure_once

from tests.cluster_processes import ClusterProcess

CROWD = ("--sessions", "100", "--connections", "4")

MARKS = {
    "publish_rate": ("at least", 400_000),
    "drain_rate": (None, 0),
    "end_to_end_rate": ("at least", 300_000),
    "latency_ms.p50": (None, 0),
    "latency_ms.p99": (None, 0),
    "send_ms.p50": ("under", 2.5),
    "send_ms.p99": (None, 0),
    "crowd.rate": ("at least", 40_000),
    "crowd.send_ms.p50": (None, 0),
}


def measure(arguments: argparse.Namespace) -> None:
    """Print every run, and the medians."""
    # The project's own disk, not a memory file system: a sync must mean something.
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as folder:
        cluster = ClusterProcess(
            Path(folder), transport=arguments.transport, client_managers=1, has_faults=False
        )
        with cluster:
            # From then on journals write over segments that they need no more, as they do for the rest of
            # their lives; filling new ones is dearer.
            measure_once(cluster.url, arguments, CROWD)
            runs = [measure_once(cluster.url, arguments, CROWD) for _ in range(arguments.runs)]
    print(
        f"medians of {len(runs)} runs, three replicas, {arguments.transport}, "
        f"{arguments.messages:,} messages of {arguments.size} bytes:"
    )
    for name, (how, mark) in MARKS.items():
        values = sorted(figure(one, name) for one in runs)
        wanted = f"   mark: {how} {mark:,}" if how else ""
        spread = f"[{values[0]:,.3f} .. {values[-1]:,.3f}]"
        print(f"  {name:<18} {statistics.median(values):>14,.3f}   {spread}{wanted}")
