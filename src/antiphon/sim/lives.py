"""Lives: how a simulated node takes its steps, sleeps and dies; what it does is for its kinds to say.

Whatever happens within one tick reaches the node in one step. A node that sleeps takes no step: its timers
and everything that arrived for it are late. What was planned in one life does not happen in the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.node import NodeEvent
from antiphon.sim.disk import PowerLost
from antiphon.sim.trace import summary
from antiphon.sim.world import NodeClock, Timer, World


class Lives:
    """The lives of one node, one after the other."""

    def __init__(self, world: World, node_id: int, clock: NodeClock, tick_ns: int) -> None:
        self.world = world
        self.life = 0
        self.clock = clock
        self.tick_ns = tick_ns
        self.node_id = node_id
        self.name = f"node {node_id}"
        self._chance: random.Random = world.random(f"node/{node_id}")
        self._events: list[NodeEvent] = []
        self._step_timer: Timer | None = None
        self._deadline_timer: Timer | None = None
        self._deadline_at_ns = -1
        self._paused_until_ns = 0

    # For the kinds of node.

    @property
    def is_up(self) -> bool:
        """Is there a process?"""
        raise NotImplementedError

    def _begin(self) -> None:
        """A life begins."""
        raise NotImplementedError

    def _act(self, events: list[NodeEvent]) -> None:
        """Take a step with these events, and do what it asks for."""
        raise NotImplementedError

    def _next_deadline_ns(self) -> int | None:
        """When the node wants to take a step, by its own clock, even if nothing happens."""
        raise NotImplementedError

    def _end(self, why: str) -> None:
        """The life is over."""
        raise NotImplementedError

    # Living and dying.

    def start(self) -> None:
        """Begin a life with what is on the disk."""
        if self.is_up:
            return
        self.life += 1
        self.world.note(self.name, f"starts life {self.life}")
        try:
            self._begin()
        except PowerLost as cut:
            self.world.probe("node.power_lost_while_starting")
            self._end(str(cut))

    def crash(self) -> None:
        """The power goes."""
        if self.is_up:
            self.world.probe("node.crashed")
            self._end("crash")

    def _forget_plans(self) -> None:
        """What this life was about to do does not happen."""
        for timer in (self._step_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._step_timer = self._deadline_timer = None
        self._events.clear()

    def _restart_within(self, longest_ns: int) -> None:
        self.world.after(self._chance.randrange(1, longest_ns), self.start)

    def pause(self, duration_ns: int) -> None:
        """The process is not given the processor for a while, from its next step on."""
        self._paused_until_ns = max(self._paused_until_ns, self.world.now_ns + duration_ns)

    # Events in.

    def take(self, events: list[NodeEvent]) -> None:
        """Something happened."""
        if self.is_up:
            self._events.extend(events)
            self._plan_step()

    def _later(self, life: int, delay_ns: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.is_up and self.life == life:
                self._guard(action)

        self.world.after(delay_ns, act)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerLost as cut:
            self.world.probe("node.power_lost_in_a_call")
            self._end(str(cut))

    # Steps.

    def _plan_step(self) -> None:
        if self._step_timer is None:
            delay = self._chance.randrange(1, self.tick_ns + 1)
            delay = max(delay, self._paused_until_ns - self.world.now_ns)
            self._step_timer = self.world.after(delay, self._guarded_step)

    def _guarded_step(self) -> None:
        self._guard(self._step)

    def _step(self) -> None:
        self._step_timer = None
        events, self._events = self._events, []
        if self.world.trace.is_on:
            for event in events:
                self.world.note(self.name, f"takes {summary(event)}")
        life = self.life
        self._act(events)
        if self.is_up and self.life == life:
            self._arm()

    def _arm(self) -> None:
        deadline_ns = self._next_deadline_ns()
        if self._deadline_timer is not None:
            if deadline_ns == self._deadline_at_ns:
                return
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if deadline_ns is not None:
            self._deadline_at_ns = deadline_ns
            delay = max(self.clock.delay_until(deadline_ns), self.tick_ns)
            self._deadline_timer = self.world.after(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        self._plan_step()
