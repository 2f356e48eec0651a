"""One seed, one run: the same trace in every process, whatever its hash seed, and whatever ran before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antiphon.sim.runs import run
from antiphon.sim.trace import Trace

SEEDS = (3, 7)
WORKLOADS = ("bus", "cluster", "holds", "node", "transactions")
SCRIPT = """
import sys
from antiphon.sim.runs import run
from antiphon.sim.trace import Trace
for seed in sys.argv[2:]:
    print(run(sys.argv[1], int(seed), trace=Trace(is_on=True)).digest)
"""

for_each = pytest.mark.parametrize("workload", WORKLOADS)


def digests_of_a_process(workload: str, hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, workload, *map(str, SEEDS)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


@for_each
def test_a_seed_gives_one_trace_under_two_hash_seeds(workload: str) -> None:
    first, second = digests_of_a_process(workload, "1"), digests_of_a_process(workload, "2")

    assert len(first) == len(SEEDS)
    assert first == second


@for_each
def test_a_seed_gives_one_trace_whatever_ran_before_it(workload: str) -> None:
    first, other = (run(workload, seed, trace=Trace(is_on=True)) for seed in SEEDS)
    again = run(workload, SEEDS[0], trace=Trace(is_on=True))

    assert first == again
    assert first.digest != other.digest, "another seed, another run"


@for_each
def test_tracing_does_not_change_a_run(workload: str) -> None:
    traced, plain = run(workload, SEEDS[0], trace=Trace(is_on=True)), run(workload, SEEDS[0])

    assert (traced.events, traced.probes, traced.figures) == (plain.events, plain.probes, plain.figures)
