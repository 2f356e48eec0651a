"""`make sweep`: fresh seeds of every workload of the simulator, on all processors.

A round has forty seeds of `bus` and ten of each other workload: the others take four times as long. A seed
that breaks a promise is printed at once, with the command that repeats it, and the sweep goes on: one defect
does not hide the next. The last line says how many seeds of each workload ran and how many broke a promise;
the exit code is 1 if any did. Ctrl-C ends the sweep with the figures so far.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from time import strftime

from antiphon.sim.runs import WORKLOADS
from tests.sim.seeds import processes, run_seed, verdict

SHARES = dict.fromkeys(sorted(WORKLOADS), 10) | {"bus": 40}
"""Seeds of each workload in a round."""

APART = 1_000_000
"""Each workload has seeds of its own: a figure of one is never taken for a figure of another."""


_AT_ONCE = 180


def seeds_of(first: int, rounds: int, workloads: list[str]) -> Iterator[tuple[str, int]]:
    """The runs of all rounds, in turn over the workloads, so that a sweep that is ended has had them all."""
    for this_round in range(rounds):
        for place, workload in enumerate(SHARES):
            if workload in workloads:
                begin = first + place * APART + this_round * SHARES[workload]
                yield from ((workload, seed) for seed in range(begin, begin + SHARES[workload]))


def sweep(first: int, rounds: int, workloads: list[str]) -> int:
    """Run the seeds; how many broke a promise."""
    done: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    jobs = seeds_of(first, rounds, workloads)
    with processes() as pool:
        try:
            # A part at a time: the pool would take all the jobs of a sweep at once.
            while part := list(islice(jobs, _AT_ONCE)):
                for report, _ in pool.map(run_seed, *zip(*part, strict=True), chunksize=5):
                    done[report.workload] += 1
                    if not report.is_clean:
                        broken[report.workload] += 1
                        print(f"{report.workload} {report.seed}: {verdict(report)}", flush=True)
                print(f"{strftime('%H:%M:%S')} {_words(done)}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    print(f"{_words(done)}: {broken.total()} broke a promise")
    return broken.total()


def _words(done: Counter[str]) -> str:
    return ", ".join(f"{workload} {count:,}" for workload, count in sorted(done.items())) or "no seeds"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sweep", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="500 are 20,000 of bus, 5,000 of each other")
    parser.add_argument("--from", dest="first", type=int, default=1_000_000_000, help="the first seed")
    parser.add_argument("--workloads", default=",".join(SHARES), help="some of them, with commas between")
    asked = parser.parse_args()
    workloads = asked.workloads.split(",")
    if unknown := [name for name in workloads if name not in SHARES]:
        parser.error(f"there is no workload {unknown[0]!r}; known: {', '.join(SHARES)}")
    return 1 if sweep(asked.first, asked.rounds, workloads) else 0


if __name__ == "__main__":
    sys.exit(main())
