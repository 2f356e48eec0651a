"""`antiphon sim`: runs the machines of one node or of several in a simulated world, one run per seed.

Exits 1 at the first seed that breaks a promise, and prints the command that repeats it. `--profile` draws one
kind of fault or load more often: docs/design/simulation.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from time import perf_counter
from typing import Any

from antiphon.cli.options import positive
from antiphon.sim.bus.profile import SHAPE_OF_NODES
from antiphon.sim.runs import WORKLOADS, Report
from antiphon.sim.runs import run as run_seed
from antiphon.sim.trace import Trace

SEEDS = 100


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "sim", help="simulate nodes under faults", description=__doc__
    )
    parser.add_argument("workload", help=f"one of: {', '.join(sorted(WORKLOADS))}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=positive, default=SEEDS, help="how many seeds (default %(default)s)")
    which.add_argument("--seed", type=int, help="run this one seed and tell what happened")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    profiles = sorted({profile for workload in WORKLOADS.values() for profile in workload.profiles})
    parser.add_argument(
        "--profile", choices=profiles, default="", metavar="NAME", help="faults that lay stress on one thing"
    )
    parser.add_argument(
        "--nodes", type=int, choices=sorted(SHAPE_OF_NODES), help="bus only: how many nodes; 2 get a witness"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the seeds; 1 when a promise was broken, 2 when there is no such workload."""
    if arguments.workload not in WORKLOADS:
        known = ", ".join(sorted(WORKLOADS))
        print(f"antiphon: there is no workload {arguments.workload!r}; known: {known}", file=sys.stderr)
        return 2
    profiles = WORKLOADS[arguments.workload].profiles
    if arguments.profile and arguments.profile not in profiles:
        known = ", ".join(profiles)
        print(
            f"antiphon: {arguments.workload} has no profile {arguments.profile}; it has: {known}",
            file=sys.stderr,
        )
        return 2
    if arguments.nodes and arguments.workload != "bus":
        print("antiphon: --nodes is for the workload bus", file=sys.stderr)
        return 2
    if arguments.seed is not None:
        return _run_one(arguments)
    return _run_many(arguments)


def _run_one(arguments: argparse.Namespace) -> int:
    trace = Trace(is_on=True, show=print if arguments.trace else None)
    report = _run(arguments, arguments.seed, trace)
    if arguments.json:
        print(json.dumps(_as_json(report)))
    else:
        for name, times in report.probes.items():
            print(f"  {name:<40} {times:>6}")
        print(f"{report.events} events in {report.virtual_ms:.0f} ms of virtual time")
        print(f"trace digest {report.digest}")
        print(_words(report.figures))
        _print_verdict(report)
    return 0 if report.is_clean else 1


def _run_many(arguments: argparse.Namespace) -> int:
    probes: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    broken: Report | None = None
    started = perf_counter()
    done = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        report = _run(arguments, seed)
        gc.collect(0)
        done += 1
        probes.update(report.probes)
        figures.update(report.figures)
        if not report.is_clean:
            broken = report
            break
    took = perf_counter() - started
    per_minute = round(done * 60 / took)
    if arguments.json:
        verdict = _as_json(broken) if broken else None
        print(json.dumps({"seeds": done, "seeds_per_minute": per_minute, "figures": figures, "probes": probes,
                          "violation": verdict}))  # fmt: skip
    else:
        for name, times in sorted(probes.items()):
            print(f"  {name:<40} {times:>8}")
        print(_words(figures))
        print(f"{done} seeds in {took:.1f} s, {per_minute} seeds a minute")
        if broken is not None:
            _print_verdict(broken)
        else:
            print("no promise was broken")
    return 0 if broken is None else 1


def _run(arguments: argparse.Namespace, seed: int, trace: Trace | None = None) -> Report:
    return run_seed(
        arguments.workload, seed, profile=arguments.profile, nodes=arguments.nodes or 0, trace=trace
    )


def _print_verdict(report: Report) -> None:
    if report.is_clean:
        print(f"seed {report.seed}: no promise was broken")
    else:
        print(f"seed {report.seed}: {report.violation}")
        print(f"replay: {report.replay}")


def _words(figures: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in figures.items())


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "workload": report.workload,
        "seed": report.seed,
        "profile": report.profile or None,
        "violation": report.violation or None,
        "replay": report.replay,
        "events": report.events,
        "digest": report.digest or None,
    }
