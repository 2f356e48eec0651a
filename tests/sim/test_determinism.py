"""One seed, one run: the same trace in every process, whatever its hash seed, and whatever ran before."""

from __future__ import annotations

import os
import subprocess
import sys

from antiphon.sim.runs import run
from antiphon.sim.trace import Trace

SEEDS = (3, 7, 11)
SCRIPT = f"""
from antiphon.sim.runs import run
from antiphon.sim.trace import Trace
for seed in {SEEDS}:
    print(run("bus", seed, trace=Trace(is_on=True)).digest)
"""


def digests_of_a_process(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


def test_a_seed_gives_one_trace_under_two_hash_seeds() -> None:
    first, second = digests_of_a_process("1"), digests_of_a_process("2")

    assert len(first) == len(SEEDS)
    assert first == second


def test_a_seed_gives_one_trace_whatever_ran_before_it() -> None:
    first = run("bus", SEEDS[0], trace=Trace(is_on=True))
    run("bus", SEEDS[1])
    again = run("bus", SEEDS[0], trace=Trace(is_on=True))

    assert first.digest == again.digest
    assert first == again


def test_tracing_does_not_change_a_run() -> None:
    traced, plain = run("bus", SEEDS[0], trace=Trace(is_on=True)), run("bus", SEEDS[0])

    assert (traced.events, traced.probes, traced.figures) == (plain.events, plain.probes, plain.figures)


def test_different_seeds_give_different_traces() -> None:
    digests = {run("bus", seed, trace=Trace(is_on=True)).digest for seed in SEEDS}
    assert len(digests) == len(SEEDS)
