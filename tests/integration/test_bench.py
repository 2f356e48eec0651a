"""What the processes of a load test do, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import antiphon
from antiphon.cli.bench_workers import Plan, Result, send_in_crowd
from tests.processes import Server

QUEUE = "queue:bench"


async def crowd(url: str) -> tuple[Result, int, int]:
    """What many sessions sent; how many connections there were while they did, and what is stored."""
    async with antiphon.connect(url) as connection, connection.session() as session:
        admin = connection.admin()
        connections = 0

        async def start() -> float:
            nonlocal connections
            connections = (await admin.status())["connections"]
            return time.monotonic()

        plan = Plan(url=url, destination=QUEUE, size=16, messages=0, sessions=20, connections=3, seconds=0.5)
        result = await send_in_crowd(plan, session, start)
        (row,) = await admin.destinations()
        return result, connections - 1, row["messages"]


def test_a_crowd_sends_one_at_a_time_each_and_all_of_it_is_stored(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        result, connections, stored = asyncio.run(crowd(server.url))
    assert connections == 3
    assert result.messages == len(result.samples) == stored
    assert result.messages >= 20, "every session has sent something"
    assert 0.5 <= result.finished - result.started < 60


def test_the_loads_of_a_comparison_run_against_a_server_and_leave_its_queues_empty(tmp_path: Path) -> None:
    """Batches, lone sends and two crowds, each with CPU times and with what a user feels."""
    load = Path(__file__).parents[2] / "bench" / "load.py"
    with Server(tmp_path / "data") as server:
        done = subprocess.run(
            [sys.executable, str(load), server.url, str(server.process.pid), "20000"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        rows = asyncio.run(destinations(server.url))
    figures = json.loads(done.stdout)
    assert sorted(figures) == ["batches", "crowd", "lone", "ten"]
    assert all(figure > 0 for figures_of_load in figures.values() for figure in figures_of_load.values())
    assert {row["name"]: row["messages"] for row in rows} == {
        "queue:batches": 0,
        "queue:crowd": 0,
        "queue:lone": 0,
        "queue:ten": 0,
    }


async def destinations(url: str) -> list[dict[str, Any]]:
    async with antiphon.connect(url) as connection:
        return await connection.admin().destinations()
