"""What many seeds of one workload came to, run on all processors, and how much of a processor they took.

A run is a function of its seed, so it does not matter which process runs it, nor when. The processes are
started anew and not forked: a fork of a test run would take along whatever threads and locks it has then.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from time import process_time
from typing import NamedTuple

from antiphon.sim.runs import Report, run

# Faults of disks that every workload with real nodes must have met, and those of groups of several disks.
OF_DISKS = (
    "checkpoint.no_room",
    "disk.filled",
    "disk.full",
    "disk.low",
    "disk.power_lost_in_checkpoint",
    "disk.power_lost_in_recycling",
    "disk.sync_failed",
    "disk.tight",
)
OF_DAMAGE = (
    "disk.envelopes_missing",
    "node.disk_replaced",
    "node.reconfigured",
)

# So many seeds go to a process at once. A range that found something ends with those that are under way.
_CHUNK = 10


class Timed(NamedTuple):
    """A report, and how many seconds of a processor it took."""

    report: Report
    seconds: float


def processes() -> ProcessPoolExecutor:
    """One process for each processor that we may use, nice to tests that wait for processes of their own."""
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ProcessPoolExecutor(ours, get_context("spawn"), initializer=os.nice, initargs=(4,))


def run_seed(workload: str, seed: int) -> Timed:
    """Run one seed in this process."""
    started = process_time()
    report = run(workload, seed)
    gc.collect(0)
    return Timed(report, process_time() - started)


def run_seeds(workload: str, seeds: range) -> Iterator[Timed]:
    """Run all seeds, and tell about each in order; whoever has seen enough may leave early."""
    with processes() as pool:
        try:
            yield from pool.map(partial(run_seed, workload), seeds, chunksize=_CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)


def verdict(report: Report) -> str:
    """What a run says that broke a promise, and how to repeat it."""
    return f"{report.violation}\n    {report.replay}"


class Seeds:
    """The reports of a range of seeds."""

    def __init__(self, workload: str, seeds: range) -> None:
        timed = list(run_seeds(workload, seeds))
        self.reports = [one.report for one in timed]
        self.seconds = sum(one.seconds for one in timed)
        print(f"\n{self.per_minute} seeds a minute on one core")

    @property
    def per_minute(self) -> int:
        """Seeds in a minute of one processor."""
        return round(len(self.reports) * 60 / self.seconds)

    @property
    def broken(self) -> str:
        """What those say that broke a promise, and how to repeat them; nothing if none did."""
        return "".join(f"\n{verdict(report)}" for report in self.reports if not report.is_clean)

    def missed(self, probes: tuple[str, ...]) -> list[str]:
        """What did not happen in any of them."""
        hit = {name for report in self.reports for name in report.probes}
        return [name for name in probes if name not in hit]

    def total(self, name: str) -> int:
        return sum(report.figures[name] for report in self.reports)
