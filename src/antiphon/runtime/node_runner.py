"""NodeRunner: drives one node in an event loop, with a real disk, real sockets and a real clock.

RUN1  All events of a round of the event loop reach the node in one step, whose records are synced together.
RUN2  A node that fails does nothing more: no byte is written or sent after an unexpected error. The process
      ends, and all that was confirmed is on disk.

The runner decides nothing. `sim/node_runner.py` is its twin with an invented disk, network and clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.clock import timer_at
from antiphon.event_log import EventRow
from antiphon.events import LoggedEvent
from antiphon.node import InChannel, Leaving, Observed, RecordRows
from antiphon.runtime.storage import ChannelStorage


class Machines(Protocol):
    """A `Node`, or a `Station` of a process without clients."""

    @property
    def is_serving(self) -> bool:
        """Whether every channel has begun."""

    def next_deadline_ns(self) -> int | None:
        """The time at which `step` must be called at the latest."""

    def step(self, now_ns: int, wall_ms: int, events: Iterable[Any]) -> list[Any]:
        """Take events, return effects, in order."""


class Port(Protocol):
    """The client port, which takes the effects that are of no channel."""

    def carry_out(self, effect: Any) -> None:
        """Carry out an effect."""


class NodeRunner:
    def __init__(
        self, node: Machines, record: Callable[[Iterable[EventRow]], None] = lambda rows: None
    ) -> None:
        """`record` gets the events that the node logs."""
        self.node = node
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._carry_out_in: dict[str, Callable[[bus.Effect], None]] = {}
        self._flushes: list[Callable[[], None]] = []
        self._looks: list[Callable[[], None]] = []
        self._port: Port | None = None
        self._record = record
        self._events: list[Any] = []
        self._is_scheduled = False
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
        """`begin` for channels that have more than a disk. `flushes` follow each step, and `looks` come
        before a step for the disk or the clock, so that arrived frames are taken with it."""
        self._carry_out_in = dict(carry_out)
        self._flushes = list(flushes)
        self._looks = list(looks)
        self._port = port
        self._is_due = True
        self._schedule()

    def own_loop(self) -> None:
        """Let every uncaught error of the loop end the node (RUN2)."""
        self._loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.fail(error)
        else:
            # A socket's error is the end of a connection; and a warning is no error.
            loop.default_exception_handler(context)

    def take(self, events: Iterable[Any]) -> None:
        self._events.extend(events)
        self._step()

    def tell(self, channel: str, event: bus.Event) -> None:
        self._events.append(tuple.__new__(InChannel, (channel, event)))
        self._schedule()

    def note(self, event: LoggedEvent) -> None:
        """Have the node log an event."""
        self._events.append(Observed(event))
        self._schedule()

    def leave(self) -> None:
        """Tell the node that it is about to end."""
        self.take([Leaving()])

    def fail(self, error: BaseException) -> None:
        """Stop at once (RUN2)."""
        self._is_over = True
        for waiting in (self.failed, self.serving):
            if not waiting.done():
                waiting.set_exception(error)
                # Marked as retrieved: without a waiter asyncio would report the error once more.
                waiting.exception()

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._on_scheduled)

    def _on_scheduled(self) -> None:
        self._is_scheduled = False
        # A step in between may have taken the events, together with arrived frames.
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
            assert self._port is not None, "a node that was not begun took a step"
            for effect in self.node.step(clock.now_ns(), time.time_ns() // 1_000_000, events):
                if type(effect) is InChannel:
                    channel, what = effect
                    self._carry_out_in[channel](what)
                elif type(effect) is RecordRows:
                    self._record(effect.rows)
                else:
                    self._port.carry_out(effect)
            for flush in self._flushes:
                flush()
        except Exception as error:
            self.fail(error)
            return
        if not self.serving.done() and self.node.is_serving:
            self.serving.set_result(None)
        deadline_ns = self.node.next_deadline_ns()
        # A timer that is too early costs one look; moving it with every step would cost more.
        if deadline_ns is not None and (self._timer is None or deadline_ns < self._timer_at_ns):
            self._arm_timer(deadline_ns)

    def _arm_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ns = deadline_ns
        self._timer = self._loop.call_at(timer_at(deadline_ns), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline_ns = self.node.next_deadline_ns()
        if deadline_ns is None:
            return
        if deadline_ns > clock.now_ns():
            # The deadline for which the timer was set has been put off.
            self._arm_timer(deadline_ns)
            return
        # One round later: arrived frames are heard before a time-out strikes, as this node may be late.
        self._loop.call_soon(self._strike)

    def _strike(self) -> None:
        self._is_due = True
        self._schedule()
