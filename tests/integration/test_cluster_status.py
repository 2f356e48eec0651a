"""What an operator is told about a cluster that loses its message managers one after the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.cluster_processes import ClusterProcess, Status
from tests.processes import antiphon


def channel(told: Status) -> tuple[bool, int, bool]:
    (row,) = told["channels"]
    return row["serving"], row["copies"], row["degraded"]


def test_a_channel_without_copies_or_without_a_majority_says_so(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, client_managers=1, has_faults=False) as cluster:

        async def lose() -> None:
            await cluster.when(lambda told: channel(told) == (True, 3, False), "whole")
            assert checked(cluster) == (0, "serving")
            primary = await cluster.primary()
            backups = [name for name in cluster.message_managers if name != primary]
            cluster.kill(backups[0])
            await cluster.when(lambda told: channel(told) == (True, 2, True), "a copy less")
            assert checked(cluster) == (1, "degraded")
            cluster.kill(backups[1])
            told = await cluster.when(lambda told: channel(told)[0] is False, "no majority")
            assert channel(told)[1:] == (1, True) or channel(told)[1:] == (0, True)
            assert checked(cluster) == (1, "not serving")
            cluster.kill(primary)
            told = await cluster.when(lambda told: len(told["silent"]) == 3, "nobody answers")
            assert channel(told) == (False, 0, True)
            await cluster.restart(*cluster.message_managers)
            await cluster.when(lambda told: channel(told) == (True, 3, False), "whole again")

        asyncio.run(lose())


def checked(cluster: ClusterProcess) -> tuple[int, str]:
    """The exit code of a check, and the state that the table shows."""
    shown = antiphon("admin", "status", "--check", url=cluster.url)
    in_json = antiphon("admin", "status", "--check", "--json", url=cluster.url)
    assert in_json.returncode == shown.returncode and json.loads(in_json.stdout)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("a ")]
    return shown.returncode, line.removeprefix("a").strip().split("  ")[0]
