"""`make bench ARGS=--bus`: the bus on its own, three replicas in processes, with fsync and encryption.

One more process produces: envelopes of 220 messages, then of one, 256 bytes each, over `udp` (60 kB
datagrams) and `tcp` on the loopback. Then, at a rate that all can follow, what a message costs its sender in
bytes, datagrams and CPU with 1 to 9 replicas; `--plot FILE` draws that. All processes share this machine: the
figures say what its cores do together, not what a network of machines would.

Each figure is the median of several runs, with the range in brackets. Rates of all kinds are measured in
turns, so that whatever else this machine does meets all of them alike.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plot

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import bus_members
from tests.bus_members import BusCluster, totals

# Ten processes that start at once on a busy machine take their time.
bus_members.READY_SECONDS = 120.0

Figures = dict[str, float]

KINDS = ("udp", "tcp")
SIZES = (1, 3, 5, 7, 9)
BATCH = 220
SIZE = 256
MARKS = {BATCH: 500_000, 1: 25_000}
# So many envelopes a second that nine replicas on two cores keep up with them.
SENDER_RATE = 150
RATE_SECONDS = 4
# Six segments: from then on a journal writes over segments that it needs no more, as it does for the rest of
# its life. Before, it makes new ones, each of which is first filled with zeros.
WARMING_ENVELOPES = 7_000
WARMING_SECONDS = 120.0
SENDER_SECONDS = 3
SETTLING_SECONDS = 2
FLAT_WITHIN = 0.05


def measure(runs: int, drawing: Path | None = None) -> None:
    """Print all figures; about seven minutes with five runs."""
    began = time.monotonic()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    rates: dict[tuple[str, int], list[Figures]] = {(kind, n): [] for n in (BATCH, 1) for kind in KINDS}
    for _ in range(runs):
        for (kind, count), results in rates.items():
            results.append(committed(kind, count))
    print_rates(rates)
    costs = {(kind, servers): sender(kind, servers, runs) for servers in SIZES for kind in KINDS}
    print_costs(costs)
    if drawing is not None:
        drawing.write_text(draw(costs), encoding="utf-8")
        print(f"drawn: {drawing}")
    print(f"{time.monotonic() - began:.0f} s in all, load average after: {os.getloadavg()[0]:.1f}")


def committed(kind: str, count: int) -> Figures:
    """As much as three replicas commit."""
    with data_folder() as folder, cluster(Path(folder), kind, 3) as members:
        members.start()
        members.leader()
        producer = members.members[4]
        warming = f"load envelopes={WARMING_ENVELOPES} messages={BATCH} size={SIZE}"
        producer.ask(warming, WARMING_SECONDS)
        producer.ask(f"load seconds=1 messages={count} size={SIZE}")
        before = [member.status() for member in members.members.values()]
        load: dict[str, Any] = producer.ask(f"load seconds={RATE_SECONDS} messages={count} size={SIZE}")
        after = [member.status() for member in members.members.values()]
        members.settle()
    spent = sum(one["cpu_seconds"] for one in after) - sum(one["cpu_seconds"] for one in before)
    first, last = totals(before), totals(after)
    return {
        "rate": load["rate"],
        "p50_ms": load["latency_ms"]["p50"],
        "p99_ms": load["latency_ms"]["p99"],
        "cpu_us": spent * 1e6 / load["messages"],
        "repairs": last["repairs_given"] - first["repairs_given"],
        "drops": last["socket_drops"] - first["socket_drops"],
    }


def sender(kind: str, servers: int, runs: int) -> list[Figures]:
    """What the process that produces spends, at a fixed rate, each time."""
    load = f"messages={BATCH} size={SIZE} rate={SENDER_RATE}"
    with data_folder() as folder, cluster(Path(folder), kind, servers) as members:
        members.start()
        members.leader()
        producer = members.members[servers + 1]
        # Members that have just met have more to say to each other.
        producer.ask(f"load seconds={SETTLING_SECONDS} {load}")
        results = []
        for _ in range(runs):
            before = producer.status()
            done = producer.ask(f"load seconds={SENDER_SECONDS} {load}")
            results.append(_spent(before, producer.status(), done, copies=servers if kind == "tcp" else 1))
    return results


def _spent(before: dict[str, Any], after: dict[str, Any], load: dict[str, Any], copies: int) -> Figures:
    # What is said to all is counted once, for who says it; streams carry it once for each member.
    node = str(after["node"])
    return {
        "cpu_us": (after["cpu_seconds"] - before["cpu_seconds"]) * 1e6 / load["messages"],
        "envelopes": load["envelopes"] / load["seconds"],
        "resent": after["resent"] - before["resent"],
        **{
            name: sum(
                (row[name] - before["counters"][of][name]) * (copies if of == node else 1)
                for of, row in after["counters"].items()
            )
            / load["messages"]
            for name in ("bytes_sent", "datagrams_sent")
        },
    }


def median(results: Sequence[Figures], name: str) -> float:
    return statistics.median([one[name] for one in results])


def print_rates(rates: dict[tuple[str, int], list[Figures]]) -> None:
    """A table as docs/performance.md has it."""
    print("\n| | messages/s, median | range | of the mark | CPU µs | p50 / p99, ms | repairs, drops |")
    print("|---|---|---|---|---|---|---|")
    for (kind, count), results in rates.items():
        each = sorted(one["rate"] for one in results)
        rate = median(results, "rate")
        lost = (sum(one[name] for one in results) for name in ("repairs", "drops"))
        print(
            f"| `{kind}`, envelopes of {count} | **{rate:,.0f}** | {each[0]:,.0f} – {each[-1]:,.0f} "
            f"| {rate / MARKS[count]:.0%} of {MARKS[count]:,} | {median(results, 'cpu_us'):.2f} "
            f"| {median(results, 'p50_ms'):.1f} / {median(results, 'p99_ms'):.1f} "
            f"| {', '.join(f'{one:.0f}' for one in lost)} |",
            flush=True,
        )


def print_costs(costs: dict[tuple[str, int], list[Figures]]) -> None:
    """Another one, and whether the curve of `udp` is flat."""
    print("\n| replicas | " + " | ".join(f"`{kind}`: bytes, datagrams, CPU µs" for kind in KINDS) + " |")
    print("|---|" + "---|" * len(KINDS))
    for servers in SIZES:
        cells = [
            f"{median(costs[kind, servers], 'bytes_sent'):,.1f}, "
            f"{median(costs[kind, servers], 'datagrams_sent'):.5f}, "
            f"{median(costs[kind, servers], 'cpu_us'):.2f}"
            for kind in KINDS
        ]
        print(f"| {servers} | " + " | ".join(cells) + " |")
    for name in ("bytes_sent", "datagrams_sent"):
        values = [median(costs["udp", servers], name) for servers in SIZES]
        spread = max(values) / min(values) - 1
        verdict = "flat" if spread <= FLAT_WITHIN else "NOT flat"
        print(f"udp, {name} from {SIZES[0]} to {SIZES[-1]} replicas: {verdict}, {spread:.1%} apart")
    late = [one for one, results in costs.items() if median(results, "envelopes") < 0.95 * SENDER_RATE]
    if late:
        print(
            f"the machine was too busy for {SENDER_RATE} envelopes a second: {late}; so much was sent twice"
        )


def draw(costs: dict[tuple[str, int], list[Figures]]) -> str:
    """Bytes and CPU of the sender as curves."""

    def curves(name: str) -> dict[str, list[float]]:
        return {kind: [median(costs[kind, servers], name) for servers in SIZES] for kind in KINDS}

    return plot.picture(
        [
            plot.Panel("bytes sent for a message of 256 bytes", "replicas", SIZES, curves("bytes_sent")),
            plot.Panel("sender's CPU for a message, µs", "replicas", SIZES, curves("cpu_us")),
        ]
    )


def cluster(folder: Path, kind: str, servers: int) -> BusCluster:
    return BusCluster(folder, kind=kind, servers=servers, producers=1, journal={}, is_for_bench=True)


def data_folder() -> tempfile.TemporaryDirectory[str]:
    # The project's own disk, not a memory file system: a sync must mean something.
    return tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent)
