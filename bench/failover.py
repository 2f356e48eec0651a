"""`make bench ARGS=--failover`: how long nobody can publish after kill -9 of the primary.

Three message managers (or as many as `--message-managers` says; two have a witness), two client managers,
`udp`, default settings, under load. In every trial the primary is killed; the time runs from the moment when
the process is gone to the confirmation of a message that was sent after that, by a client of its own. Then
the node is started again, and when all are synchronized the next trial begins.

Consumers live all the time, so what they hold stays theirs: told is also how many messages came twice, as a
share of those that were delivered in the trials (from one restart to the next).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import antiphon
from tests.cluster_load import Load
from tests.cluster_processes import ClusterProcess

TRIALS = 20
MEDIAN_MARK_S = 1.5
WORST_MARK_S = 3.0
TWICE_MARK = 0.01
PROBE = "queue:probe"


def measure(trials: int, transport: str, message_managers: int) -> None:
    """Print every trial, the median and the worst."""
    # Without fault rules: nothing is to look at a file while time counts.
    with (
        tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as folder,
        ClusterProcess(
            Path(folder), transport=transport, message_managers=message_managers, has_faults=False
        ) as cluster,
    ):
        asyncio.run(_trials(cluster, trials))


async def _trials(cluster: ClusterProcess, trials: int) -> None:
    seconds: list[float] = []
    async with (
        Load(cluster.url) as load,
        antiphon.connect(cluster.url) as connection,
        connection.session() as session,
    ):
        probe = await session.producer(PROBE)
        for trial in range(trials):
            await cluster.synchronized()
            await load.progress(500)
            before = sum(load.received.values())
            primary = await cluster.primary()
            cluster.kill(primary)
            killed_at = time.monotonic()
            await probe.send(b"%d" % trial)
            seconds.append(time.monotonic() - killed_at)
            await load.progress(500)
            await cluster.restart(primary)
            received = sum(load.received.values()) - before
            print(
                f"trial {trial + 1}: {primary} killed, {seconds[-1]:.3f} s; {received} delivered", flush=True
            )
        verdict = await load.drain(told=cluster.told)
    await cluster.equal()
    for complaint in verdict.complaints:
        print("WRONG:", complaint)
    print(
        f"from kill -9 of the primary to the first confirmation, {trials} trials: median "
        f"{statistics.median(seconds):.3f} s (mark {MEDIAN_MARK_S} s), worst {max(seconds):.3f} s "
        f"(mark {WORST_MARK_S:g} s)"
    )
    share = verdict.duplicates / max(1, verdict.received)
    print(f"delivered twice: {verdict.duplicates} of {verdict.received}, {share:.3%} (mark {TWICE_MARK:.0%})")
