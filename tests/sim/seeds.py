"""What many seeds of one workload came to, and how long they took on a processor of their own."""

from __future__ import annotations

import gc
from time import process_time

from antiphon.sim.runs import Report, run


class Seeds:
    """The reports of a range of seeds."""

    def __init__(self, workload: str, seeds: range) -> None:
        self.reports: list[Report] = []
        started = process_time()
        for seed in seeds:
            self.reports.append(run(workload, seed))
            gc.collect(0)
        self.seconds = process_time() - started

    @property
    def per_minute(self) -> int:
        return round(len(self.reports) * 60 / self.seconds)

    @property
    def broken(self) -> list[str]:
        return [f"{report.violation}\n    {report.replay}" for report in self.reports if not report.is_clean]

    def total(self, name: str) -> int:
        return sum(report.figures[name] for report in self.reports)
