"""`make bench ARGS=--bus`: the bus on its own, three replicas in processes, with fsync and encryption.

One more process produces: envelopes of 220 messages, then of one, 256 bytes each, over `udp` (60 kB
datagrams) and `tcp` on the loopback. Then, at a rate that all can follow, what a message costs its sender in
bytes, datagrams and CPU with 1 to 9 members. All processes share this machine: the figures say what its
cores do together, not what a network of machines would.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

# The processes are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.bus_members import BusCluster, totals

KINDS = ("udp", "tcp")
SIZES = (1, 3, 5, 7, 9)
BATCH = 220
SIZE = 256
MARKS = {BATCH: 500_000, 1: 25_000}
# So many envelopes a second that nine replicas on two cores keep up with them.
SENDER_RATE = 150


def measure(runs: int, seconds: int) -> None:
    """Print all figures."""
    for kind in KINDS:
        for count in (BATCH, 1):
            print_rates(kind, count, [committed(kind, count, seconds) for _ in range(runs)])
    print("what a message costs its sender, envelopes of 220, by the number of members:")
    print(f"{'':>10}{'members':>9}{'bytes':>12}{'datagrams':>12}{'CPU us':>9}{'envelopes/s':>13}")
    for kind in KINDS:
        for servers in SIZES:
            print_sender(kind, servers, sender(kind, servers, seconds))


def committed(kind: str, count: int, seconds: int) -> dict[str, Any]:
    """As much as three replicas commit."""
    with data_folder() as folder, cluster(Path(folder), kind, 3) as members:
        members.start()
        members.leader()
        producer = members.members[4]
        producer.ask(f"load seconds=1 messages={count} size={SIZE}")
        before = [member.status() for member in members.members.values()]
        load: dict[str, Any] = producer.ask(f"load seconds={seconds} messages={count} size={SIZE}")
        after = [member.status() for member in members.members.values()]
        members.settle()
    spent = sum(one["cpu_seconds"] for one in after) - sum(one["cpu_seconds"] for one in before)
    first, last = totals(before), totals(after)
    return {
        **load,
        "cpu_us": spent * 1e6 / load["messages"],
        "repairs": last["repairs_given"] - first["repairs_given"],
        "drops": last["socket_drops"] - first["socket_drops"],
    }


def sender(kind: str, servers: int, seconds: int) -> dict[str, float]:
    """What the process that produces spends, at a fixed rate."""
    with data_folder() as folder, cluster(Path(folder), kind, servers) as members:
        members.start()
        members.leader()
        producer = members.members[servers + 1]
        producer.ask(f"load envelopes=20 messages={BATCH} size={SIZE}")
        before = producer.status()
        load = producer.ask(f"load seconds={seconds} messages={BATCH} size={SIZE} rate={SENDER_RATE}")
        after = producer.status()
    # What is said to all is counted once; streams carry it once for each member.
    copies = servers if kind == "tcp" else 1
    node = str(servers + 1)
    return {
        "cpu_us": (after["cpu_seconds"] - before["cpu_seconds"]) * 1e6 / load["messages"],
        "envelopes": load["envelopes"] / load["seconds"],
        **{
            name: sum(
                (row[name] - before["counters"][of][name]) * (copies if of == node else 1)
                for of, row in after["counters"].items()
            )
            / load["messages"]
            for name in ("bytes_sent", "datagrams_sent")
        },
    }


def print_rates(kind: str, count: int, results: list[dict[str, Any]]) -> None:
    rates = sorted(one["rate"] for one in results)
    middle = sorted(results, key=lambda one: one["rate"])[len(results) // 2]
    median = statistics.median(rates)
    mark = MARKS[count]
    print(
        f"{kind}: {median:,.0f} messages/s [{rates[0]:,.0f} .. {rates[-1]:,.0f}] committed and applied, "
        f"{count} to an envelope ({median / mark:.0%} of the mark of {mark:,}); "
        f"{middle['cpu_us']:.2f} us of CPU a message in all four processes, "
        f"confirmed after {middle['latency_ms']['p50']:.1f} ms (p99 {middle['latency_ms']['p99']:.1f}), "
        f"{middle['repairs']} repairs, {middle['drops']} socket drops",
        flush=True,
    )


def print_sender(kind: str, servers: int, cost: dict[str, float]) -> None:
    print(
        f"{kind:>10}{servers:>9}{cost['bytes_sent']:>12,.1f}{cost['datagrams_sent']:>12.4f}"
        f"{cost['cpu_us']:>9.3f}{cost['envelopes']:>13.1f}",
        flush=True,
    )


def cluster(folder: Path, kind: str, servers: int) -> BusCluster:
    return BusCluster(folder, kind=kind, servers=servers, producers=1, journal={}, is_for_bench=True)


def data_folder() -> tempfile.TemporaryDirectory[str]:
    # The project's own disk, not a memory file system: a sync must mean something.
    return tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent)
