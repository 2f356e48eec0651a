"""An embedded system to measure, one run of `antiphon bench` against it, and its figures by their names."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def embedded(program: Sequence[str] = ("-m", "antiphon.cli.main")) -> Iterator[str]:
    """The address of an embedded message system, which is stopped and removed afterwards."""
    # The project's own disk, not a memory file system: a sync must mean something.
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path(__file__).parent) as data:
        server = subprocess.Popen(
            [sys.executable, *program, "up", "--data", data, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()
            server.wait(timeout=30)


def measure(url: str, arguments: argparse.Namespace, options: Sequence[str] = ()) -> dict[str, Any]:
    """What it printed, as an object."""
    command = [sys.executable, "-m", "antiphon.cli.main", "bench", "--url", url, "--json"]
    command += ["--messages", str(arguments.messages), "--size", str(arguments.size), *options]
    line = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    print(line.strip(), flush=True)
    result: dict[str, Any] = json.loads(line)
    return result


def figure(run: dict[str, Any], name: str) -> float:
    """`latency_ms.p50` of a run."""
    value: Any = run
    for part in name.split("."):
        value = value[part]
    return float(value)
