"""Runs: one seed of one workload, from the first event to the verdict.

A failed assertion inside a machine counts as a broken promise: the node would have stopped, and no act of a
client or a disk may bring it to that.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.sim import limits
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.bus import BusRun
from antiphon.sim.workloads.cluster import ClusterRun
from antiphon.sim.workloads.holds import HoldsRun
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.patterns import PatternRun
from antiphon.sim.workloads.topic import TopicRun
from antiphon.sim.workloads.transactions import TransactionRun
from antiphon.sim.world import Violation

WORKLOADS: dict[str, type[BusRun] | type[ClusterRun] | type[NodeRun] | type[TransactionRun]] = {
    "bus": BusRun,
    "cluster": ClusterRun,
    "holds": HoldsRun,
    "node": NodeRun,
    "patterns": PatternRun,
    "topic": TopicRun,
    "transactions": TransactionRun,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict and the figures of a run."""

    workload: str
    seed: int
    profile: str
    nodes: int = 0
    violation: str
    events: int
    virtual_ms: float
    figures: dict[str, int] = field(default_factory=dict)
    probes: dict[str, int] = field(default_factory=dict)
    digest: str = ""

    @property
    def is_clean(self) -> bool:
        return not self.violation

    @property
    def replay(self) -> str:
        """The command line that repeats this run with a trace."""
        words = f" --profile {self.profile}" if self.profile else ""
        if self.nodes:
            words += f" --nodes {self.nodes}"
        return f"antiphon sim {self.workload} --seed {self.seed}{words} --trace"


def run(
    workload: str,
    seed: int,
    *,
    profile: str = "",
    without: Sequence[str] = (),
    nodes: int = 0,
    trace: Trace | None = None,
) -> Report:
    """Run one seed. The same seed gives the same report in every process.

    `profile` names one of the workload's profiles. `without` names checkers that are left out, to see what
    the others see. `nodes` is the size of the group in the bus workload; by default the seed decides.
    """
    trace = trace or Trace()
    # Views of a file are found by Python's reference counts; a collection in the middle would change the
    # answer depending on earlier runs.
    collects = gc.isenabled()
    gc.disable()
    try:
        violation = ""
        with limits.drawn(seed, profile) as drawn:
            acting = _acting(workload, seed, trace, profile, without, nodes)
            try:
                if trace.is_on:
                    acting.world.note("limits", str(drawn))
                acting.run()
            except Violation as broken:
                violation = str(broken)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{where.filename.rpartition('antiphon/')[2]}:{where.lineno}"
                violation = f"the node stopped: {type(error).__name__} at {place}: {error}"
                if trace.is_on:
                    for line in traceback.format_exc().splitlines():
                        acting.world.note("stopped", line)
        return Report(
            workload=workload,
            seed=seed,
            profile=profile,
            nodes=nodes,
            violation=violation,
            events=acting.world.events,
            virtual_ms=acting.world.now_ns / 1e6,
            figures=acting.figures(),
            probes=dict(sorted(acting.world.probes.items())),
            digest=trace.digest() if trace.is_on else "",
        )
    finally:
        if collects:
            gc.enable()


def _acting(
    workload: str, seed: int, trace: Trace, profile: str, without: Sequence[str], nodes: int
) -> BusRun | ClusterRun | NodeRun | TransactionRun:
    kind = WORKLOADS[workload]
    if issubclass(kind, BusRun):
        return kind(seed, trace, profile, without, nodes)
    assert not nodes, "only the size of the group of the bus workload can be chosen"
    return kind(seed, trace, profile, without)
