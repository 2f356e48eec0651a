"""One run of `antiphon bench` against something that is up, and the figures of it by their names."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


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
