"""`make bench ARGS="--against REF"`: what a message cost before, and costs now.

Two checkouts, this one and one of `REF`, serve the same loads in turn, pair after pair, so that a machine
that is slow for a minute is slow for both. Each has its own servers and its own client (`load.py` with the
checkout on its path), because formats may differ. Batches, lone sends and crowds are told apart, embedded
and on a cluster of three replicas. Reported are the medians of the ratios, pair by pair, now to before: below
1 is better, but for messages a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PROJECT = Path(__file__).parent.parent
PAIRS = 9
SHAPES: dict[str, list[str]] = {
    "embedded": [],
    "cluster": ["--client-managers", "1", "--message-managers", "3"],
}
Figures = dict[str, dict[str, float]]


def compare(ref: str, pairs: int, messages: int) -> None:
    """Measure pairs for every shape, and print every ratio and the medians."""
    with checkout_of(ref) as before:
        for shape, options in SHAPES.items():
            _report(shape, ref, list(_pairs(before, str(before.parent), options, pairs, messages)))


@contextlib.contextmanager
def checkout_of(ref: str) -> Iterator[Path]:
    """A checkout of a commit, alone in a folder where there is room for data beside it."""
    with tempfile.TemporaryDirectory(prefix="bench-before-", dir=PROJECT / "bench") as scratch:
        before = Path(scratch) / "checkout"
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), ref], check=True)
        try:
            yield before
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)


def _pairs(
    before: Path, scratch: str, options: list[str], pairs: int, messages: int
) -> Iterator[dict[str, Figures]]:
    with contextlib.ExitStack() as stack:
        systems = {
            checkout: stack.enter_context(system(checkout, scratch, options))
            for checkout in (before, PROJECT)
        }
        for checkout, ready in systems.items():
            # Not counted: the first run fills new journal segments, later ones write over them.
            _load(checkout, ready, messages)
        for pair in range(pairs):
            # The second of a pair finds warm caches: the checkouts take turns.
            turns = (before, PROJECT) if pair % 2 else (PROJECT, before)
            figures = {checkout: _load(checkout, systems[checkout], messages) for checkout in turns}
            for load in figures[PROJECT]:
                then, now = figures[before][load], figures[PROJECT][load]
                row = ", ".join(f"{name} {then[name]:,.3f} -> {now[name]:,.3f}" for name in now)
                print(f"pair {pair + 1}, {load}: {row}", flush=True)
            yield {"before": figures[before], "now": figures[PROJECT]}


def _report(shape: str, ref: str, measured: list[dict[str, Figures]]) -> None:
    print(f"{shape}, now against {ref}, medians of {len(measured)} pairs:")
    for load, names in measured[0]["now"].items():
        for name in names:
            ratios = [pair["now"][load][name] / pair["before"][load][name] for pair in measured]
            now = statistics.median(pair["now"][load][name] for pair in measured)
            spread = f"[{min(ratios):.3f} .. {max(ratios):.3f}]"
            median = statistics.median(ratios)
            print(f"  {load:<8} {name:<15} now {now:>12,.3f}   ratio {median:.3f} {spread}")


@contextlib.contextmanager
def system(
    checkout: Path, scratch: str, options: list[str], environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """A system of this checkout, as its ready line describes it."""
    # The project's own disk, not a memory file system: a sync must mean something.
    with tempfile.TemporaryDirectory(dir=scratch) as data:
        up = [
            sys.executable,
            "-m",
            "antiphon.cli.main",
            "up",
            "--data",
            data,
            "--port",
            "0",
            "--json",
            *options,
        ]
        log = Path(data).with_suffix(".log")
        with log.open("w") as errors:
            inherited = {**_environment(checkout), **environment}
            server = subprocess.Popen(up, stdout=subprocess.PIPE, stderr=errors, text=True, env=inherited)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(f"{checkout} does not start: {log.read_text()[-2_000:]}")
            yield json.loads(line)
        finally:
            server.terminate()
            server.wait(timeout=60)


def _load(checkout: Path, ready: dict[str, Any], messages: int) -> Figures:
    pids = ",".join(str(node["pid"]) for node in ready["nodes"])
    load = [sys.executable, str(Path(__file__).with_name("load.py")), ready["url"], pids, str(messages)]
    done = subprocess.run(load, check=True, env=_environment(checkout), stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}
