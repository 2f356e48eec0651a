"""One seed, one run: the same trace in every process, whatever its hash seed, and whatever ran before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antiphon.sim.runs import run
from antiphon.sim.trace import Trace

SEED, OTHER = 3, 7
WORKLOADS = ("bus", "cluster", "holds", "node", "transactions")
SCRIPT = """
import sys
from antiphon.sim.runs import run
from antiphon.sim.trace import Trace
for seed in sys.argv[2:]:
    print(run(sys.argv[1], int(seed), trace=Trace(is_on=True)).digest)
"""


def digests_of_a_process(workload: str, *seeds: int) -> list[str]:
    """What the traces of these seeds come to in a process whose hash seed is not ours."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, workload, *map(str, seeds)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_gives_one_run(workload: str) -> None:
    traced = run(workload, SEED, trace=Trace(is_on=True))
    other, again = digests_of_a_process(workload, OTHER, SEED)
    assert traced.digest == again, "under another hash seed, and behind another run"
    assert traced.digest != other, "another seed, another run"

    plain = run(workload, SEED)
    told = (traced.events, traced.probes, traced.figures)
    assert told == (plain.events, plain.probes, plain.figures), "tracing changes nothing"
