"""Failpoints: a commit of a process is held up, or the process dies, before a step that a test names; or
what the process asks its disk for is noted.

    python -m tests.failpoints "tx.decide=hold:2,tx.finish=kill" node NAME ...

runs the `antiphon` command with these rules; nodes that it starts have them too. `hold:SECONDS` goes on after
so long; `kill` and `stop` send the process the signal of that name, the first time or, with `:3` behind them,
the third time. A step that is reached is a line in the log. Only commits that were begun at this process are
held up. With `disk=note:SECONDS` all calls to the disk are noted in a file (`tests/crash_replay.py`), and a
sync by the thread takes so much longer. The product knows nothing of all this: the methods that take the
steps, and the module `os` of the disk, are replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest import MonkeyPatch

from antiphon.cli.main import main
from antiphon.client_manager.coordination import Coordination
from antiphon.client_manager.manager import ClientManager
from antiphon.runtime import disk, launcher
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.node_runner import NodeRunner
from tests.crash_replay import LastingRecorder
from tests.processes import ANTIPHON, program

log = logging.getLogger("antiphon.failpoints")

STEPS: Final = {
    "tx.prepare": "prepare",
    "tx.decide": "_decide",
    "tx.finish": "_finish",
    "tx.forget": "_forget",
}
HOLD: Final = "hold"
DISK: Final = "disk"
NOTE: Final = "note"
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Proceed:
    """An event for the client manager: the step that was held up is taken now."""

    step: str
    act: Callable[[], None]


class Rule(NamedTuple):
    """What happens at a step: it is held up for so many seconds; or, the nth time, there is a signal."""

    action: str
    figure: float


def parse(text: str) -> dict[str, Rule]:
    """`tx.decide=hold:2,tx.finish=kill`: seconds for `hold`; for signals at which time, if not the 1st."""
    rules: dict[str, Rule] = {}
    for item in text.split(","):
        step, _, action = item.strip().partition("=")
        what, _, figure = action.partition(":")
        if (step, what) == (DISK, NOTE):
            rules[step] = Rule(what, float(figure or 0))
            continue
        if step not in STEPS:
            raise ValueError(f"there is no step {step!r}; there are {', '.join(STEPS)}")
        if what != HOLD and what not in SIGNALS:
            raise ValueError(f"{item!r} is neither hold:SECONDS nor kill nor stop")
        rules[step] = Rule(what, float(figure or (0 if what == HOLD else 1)))
    return rules


def note_calls(patch: MonkeyPatch, sync_seconds: float) -> None:
    """Everything that the disk of this process is asked for from its opening on is noted."""
    begin = FileDisk.__init__

    def begin_with_notes(self: FileDisk, path: str | Path, **options: Any) -> None:
        patch.setattr(disk, "os", LastingRecorder(Path(path), sync_seconds))
        begin(self, path, **options)

    patch.setattr(FileDisk, "__init__", begin_with_notes)


def hold_up(patch: MonkeyPatch, steps: Iterable[str], reached: Callable[[Proceed], None]) -> None:
    """Commits are held up before these steps; whoever is told gives the event back when they may go on."""
    event_handlers = ClientManager._event_handlers

    def with_proceed(self: Any) -> dict[type[Any], Callable[[Any], None]]:
        return {**event_handlers(self), Proceed: lambda event: event.act()}

    def held_up(step: str, take_step: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def take_step_later(self: Any, transaction: Any) -> None:
            if transaction.commit is None:
                take_step(self, transaction)
            else:
                reached(Proceed(step, partial(take_step, self, transaction)))

        return take_step_later

    patch.setattr(ClientManager, "_event_handlers", with_proceed)
    for step in steps:
        method = STEPS[step]
        patch.setattr(Coordination, method, held_up(step, getattr(Coordination, method)))


class Failpoints:
    """The rules of one process, and its runner, which takes the events."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        self._times: Counter[str] = Counter()
        self.take: Callable[[list[Any]], None]

    def reached(self, proceed: Proceed) -> None:
        step = proceed.step
        log.warning("failpoint %s reached", step)
        self._times[step] += 1
        action, figure = self._rules[step]
        if action in SIGNALS and self._times[step] == figure:
            os.kill(os.getpid(), SIGNALS[action])
        seconds = figure if action == HOLD else 0.0
        asyncio.get_running_loop().call_later(seconds, self.take, [proceed])

    def install(self, patch: MonkeyPatch) -> None:
        own_loop = NodeRunner.own_loop

        def own_loop_and_tell(runner: NodeRunner) -> None:
            self.take = runner.take
            own_loop(runner)

        patch.setattr(NodeRunner, "own_loop", own_loop_and_tell)
        hold_up(patch, [step for step in self._rules if step in STEPS], self.reached)
        if DISK in self._rules:
            note_calls(patch, self._rules[DISK].figure)


def pass_on(patch: MonkeyPatch, text: str) -> None:
    """Nodes that this process starts have the same rules."""
    command_of = launcher.node_command

    def command_with_rules(config: Path, name: str, options: Sequence[str]) -> list[str]:
        words = command_of(config, name, options)
        return [*program(text), *words[len(ANTIPHON) :]]

    patch.setattr(launcher, "node_command", command_with_rules)


if __name__ == "__main__":
    with MonkeyPatch.context() as for_this_process:
        Failpoints(parse(sys.argv[1])).install(for_this_process)
        pass_on(for_this_process, sys.argv[1])
        sys.exit(main(sys.argv[2:]))
