"""`make bench ARGS=--log-storm`: what applications publish while a node logs a storm of events.

Pairs of embedded systems are measured with `antiphon bench`, one without and one with a storm: every 10 ms
the node is told of 100 events, of which the log keeps few and counts the rest. The rate with the storm is to
be within 10 % of that without.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from typing import Any, Final

from figures import embedded, figure, measure

from antiphon.cli.main import main
from antiphon.events import CLIENT_REFUSED, NODE_UP, RECORD_DAMAGED, LoggedEvent
from antiphon.runtime.node_runner import NodeRunner

EVENTS: Final = 100
EVERY_SECONDS: Final = 0.01
RATES: Final = ("publish_rate", "end_to_end_rate")


def measure_pairs(arguments: argparse.Namespace) -> None:
    """Print the rates of each pair, and their ratios."""
    ratios: dict[str, list[float]] = {name: [] for name in RATES}
    for _ in range(arguments.runs):
        runs: list[dict[str, Any]] = []
        for program in (["-m", "antiphon.cli.main"], [__file__]):
            with embedded(program) as url:
                runs.append(measure(url, arguments))
        quiet, storm = runs
        for name in RATES:
            ratios[name].append(figure(storm, name) / figure(quiet, name))
    print(f"with {EVENTS / EVERY_SECONDS:,.0f} events a second, as a share of the rate without:")
    for name, values in ratios.items():
        spread = f"[{min(values):.3f} .. {max(values):.3f}]"
        print(f"  {name:<18} {statistics.median(values):>8.3f}   {spread}")


class StormyRunner(NodeRunner):
    """The runner of a node that is told of events all the time."""

    def begin(self, *arguments: Any) -> None:
        super().begin(*arguments)
        self._storm(0)

    def _storm(self, count: int) -> None:
        for number in range(count, count + EVENTS):
            self.note(_event(number))
        asyncio.get_running_loop().call_later(EVERY_SECONDS, self._storm, count + EVENTS)


def _event(number: int) -> LoggedEvent:
    match number % 3:
        case 0:
            return CLIENT_REFUSED(peer=f"10.0.0.1:{number}", reason="bench", problem="a storm")
        case 1:
            return NODE_UP(member=f"node {number}", seconds=float(number))
    return RECORD_DAMAGED(problem=f"record {number} is only said to be damaged")


if __name__ == "__main__":
    from antiphon.runtime import embedded as of_process

    of_process.NodeRunner = StormyRunner  # type: ignore[misc]
    sys.exit(main())
