"""NodeRunner: lets one node live in an event loop, with a real disk, real sockets and a real clock.

Where it sits
    client port, bus port, sync thread, timers  ->  NODE RUNNER  ->  node  ->  NODE RUNNER  ->  disk, ports

What it promises
    P1  Whatever happens in one round of the event loop reaches the node in one step; what that step
        wants written is written at once and synced together.
    P2  A node that fails does nothing more: no byte is written or sent after an error it does not
        understand. The process ends, and what was confirmed is on disk.

What it leaves to others
    Every decision. `sim/node_runner.py` is its twin with an invented disk, network and clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.clock import timer_at
from antiphon.node import InChannel
from antiphon.runtime.storage import ChannelStorage


class Machines(Protocol):
    """What can be driven: a `Node`, or a `Station` of a process that has no clients."""

    @property
    def is_serving(self) -> bool:
        """Has every channel begun?"""

    def next_deadline_ns(self) -> int | None:
        """When `step` must be called at the latest."""

    def step(self, now_ns: int, wall_ms: int, events: Iterable[Any]) -> list[Any]:
        """Take what happened, return what must be done, in order."""


class Port(Protocol):
    """Whoever is told what is of no channel: the client port."""

    def carry_out(self, effect: Any) -> None:
        """Do what a machine asked."""


class NodeRunner:
    """Drives one node until it is stopped or fails."""

    def __init__(self, node: Machines) -> None:
        self.node = node
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._carry_out_in: dict[str, Callable[[bus.Effect], None]] = {}
        self._flushes: list[Callable[[], None]] = []
        self._looks: list[Callable[[], None]] = []
        self._port: Port | None = None
        self._events: list[Any] = []
        self._is_scheduled = False
        # A step is to be taken even if nothing has happened.
        self._is_due = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0

    def begin(self, storages: Mapping[str, ChannelStorage], port: Port) -> None:
        """Take the first step: the node starts its epochs, and serves when they have begun."""
        self.begin_in(
            {channel: storage.carry_out for channel, storage in storages.items()},
            [storage.flush for storage in storages.values()],
            port,
        )

    def begin_in(
        self,
        carry_out: Mapping[str, Callable[[bus.Effect], None]],
        flushes: Iterable[Callable[[], None]],
        port: Port,
        looks: Iterable[Callable[[], None]] = (),
    ) -> None:
        """The same, where a channel has more than a disk; `flushes` are called at the end of each step, and
        `looks` before one for the disk's or the clock's sake: what has arrived is taken with it."""
        self._carry_out_in = dict(carry_out)
        self._flushes = list(flushes)
        self._looks = list(looks)
        self._port = port
        self._is_due = True
        self._schedule()

    def own_loop(self) -> None:
        """The loop is this node's alone: an error in it that nobody caught ends the node as well (P2)."""
        self._loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.fail(error)
        else:
            # What happens to a socket is the end of a connection; and a warning is no error.
            loop.default_exception_handler(context)

    def take(self, events: Iterable[Any]) -> None:
        """Something happened at a port, which has gathered a whole round of the loop already."""
        self._events.extend(events)
        self._step()

    def tell(self, channel: str, event: bus.Event) -> None:
        """Something happened to a channel's disk."""
        self._events.append(InChannel(channel, event))
        self._schedule()

    def fail(self, error: BaseException) -> None:
        """Stop here and now (P2)."""
        self._is_over = True
        for waiting in (self.failed, self.serving):
            if not waiting.done():
                waiting.set_exception(error)
                # Whoever waits sees it; if nobody does, it is not to be reported twice.
                waiting.exception()

    def end(self) -> None:
        """Take no further step; what is written is synced by whoever closes the storages."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._on_scheduled)

    def _on_scheduled(self) -> None:
        self._is_scheduled = False
        # What was told may have been taken by a step in between, together with what had arrived.
        if self._events or self._is_due:
            for look in self._looks:
                look()
        if self._events or self._is_due:
            self._step()

    def _step(self) -> None:
        if self._is_over:
            return
        events, self._events = self._events, []
        self._is_due = False
        try:
            self._carry_out(events)
        except Exception as error:
            self.fail(error)
            return
        if not self.serving.done() and self.node.is_serving:
            self.serving.set_result(None)
        self._arm_timer()

    def _carry_out(self, events: list[Any]) -> None:
        assert self._port is not None, "a node that was not begun took a step"
        for effect in self.node.step(clock.now_ns(), time.time_ns() // 1_000_000, events):
            if type(effect) is InChannel:
                channel, what = effect
                self._carry_out_in[channel](what)
            else:
                self._port.carry_out(effect)
        for flush in self._flushes:
            flush()

    def _arm_timer(self) -> None:
        deadline_ns = self.node.next_deadline_ns()
        if deadline_ns is None or (self._timer is not None and self._timer_at_ns <= deadline_ns):
            # A timer that is too early costs one idle step; moving it with every step would cost more.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ns = deadline_ns
        self._timer = self._loop.call_at(timer_at(deadline_ns), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # One round later: what has arrived is heard before a time-out strikes, for it may be us who are late.
        self._loop.call_soon(self._strike)

    def _strike(self) -> None:
        self._is_due = True
        self._schedule()
