"""Failpoints: a commit of this process is held up, or the process dies, at a step that a test has named.

Where it sits
    client manager  --Reached-->  FAILPOINTS  --Proceed, after a while-->  client manager

    ANTIPHON_FAILPOINTS="tx.decide=hold:2,tx.finish=kill"  in the environment of the process

What it promises
    F1  Without the variable nothing is different, and nothing costs anything.
    F2  A step that is reached is said in the log, in one line, before anything happens.

What it leaves to others
    Where the steps are: `client_manager/coordination.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from antiphon.client_manager.coordination import FAILPOINTS
from antiphon.client_manager.effects import Proceed, Reached
from antiphon.errors import NodeError
from antiphon.runtime.node_runner import Port

log = logging.getLogger("antiphon.failpoints")

VARIABLE: Final = "ANTIPHON_FAILPOINTS"

HOLD: Final = "hold"
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

Take = Callable[[Iterable[Any]], None]


class Rule(NamedTuple):
    """What happens at a step: it is held up for so many seconds; or, the nth time, there is a signal."""

    action: str
    figure: float


def parse(text: str) -> dict[str, Rule]:
    """`tx.decide=hold:2,tx.finish=kill`: seconds for `hold`; for signals at which time, if not the 1st."""
    rules: dict[str, Rule] = {}
    for item in filter(None, text.split(",")):
        step, _, action = item.strip().partition("=")
        what, _, figure = action.partition(":")
        try:
            rule = Rule(what, float(figure or (0 if what == HOLD else 1)))
        except ValueError:
            raise NodeError(f"{VARIABLE}: {item!r} has no number behind {what}") from None
        if step not in FAILPOINTS:
            raise NodeError(f"{VARIABLE}: there is no step {step!r}; there are {', '.join(FAILPOINTS)}")
        if what != HOLD and what not in SIGNALS:
            raise NodeError(f"{VARIABLE}: {item!r} is neither hold:SECONDS nor kill nor stop")
        rules[step] = rule
    return rules


def failpoints_of(environment: Mapping[str, str]) -> dict[str, Rule]:
    """What is asked for in an environment; nothing, as a rule."""
    return parse(environment.get(VARIABLE, ""))


class FailpointPort:
    """Stands before the client port, where there are failpoints."""

    def __init__(self, port: Port, rules: Mapping[str, Rule], take: Take) -> None:
        self._port = port
        self._rules = rules
        self._take = take
        self._times: Counter[str] = Counter()

    def carry_out(self, effect: Any) -> None:
        if not isinstance(effect, Reached):
            self._port.carry_out(effect)
            return
        log.warning("failpoint %s reached", effect.step)
        self._times[effect.step] += 1
        action, figure = self._rules[effect.step]
        seconds = figure if action == HOLD else 0.0
        if action in SIGNALS and self._times[effect.step] == figure:
            os.kill(os.getpid(), SIGNALS[action])
        asyncio.get_running_loop().call_later(seconds, self._take, [Proceed(effect.key)])


def before(port: Port, rules: Mapping[str, Rule], take: Take) -> Port:
    """The port itself where there are no failpoints (F1)."""
    return FailpointPort(port, rules, take) if rules else port
