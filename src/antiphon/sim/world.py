"""World: virtual time, chance from one seed, and one order for all events.

A run is a function of its seed. Events wait in a heap ordered by (time, order of arrival), so that two events
of one instant never depend on how a dictionary was built or a process was started. Each part of the world
draws from its own source of chance, derived from the seed by the part's name: a change to the network's draws
leaves the disk's as they were, and a failing seed stays a failing seed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b

from antiphon.sim.trace import Trace

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

_EVENTS_MAX = 50_000
_EVENTS_NS = 500 * MILLISECOND_NS
"""So many events do not happen within so short a time, however many clients ask. A whole run may have many
more: clients that ask for one message at a time go on asking while disks come to rest."""

_DUE_STEPS_MAX = 1_000
_IDLE_STEP = 5
"""After so many steps in a row no deadline has passed already: a machine does what is due, and waits. A step
may leave some work to the next one, but a step that did nothing counts as so many. A primary that may do
little in a step needs one for each message that it passes over for a consumer."""

CLOCK_RATE_MAX = 1.2
"""No clock goes faster than that, by the time of the world, unless it is set."""

_DAY_MS = 86_400_000
_WALL_START_MS = 1_700_000_000_000


class Violation(AssertionError):
    """A promise was broken in this run; the text says which and how."""


def child_random(seed: int, part: str) -> random.Random:
    """The source of chance of one part of a run: the same in every process, unlike `hash`."""
    digest = blake2b(f"{seed}/{part}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


class Timer:
    """A planned act, until it is cancelled."""

    __slots__ = ("action", "at_ns")

    def __init__(self, at_ns: int, action: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class World:
    """Time, chance, and the planned acts."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.now_ns = 0
        self.trace = trace or Trace()
        self.probes: Counter[str] = Counter()
        self.events = 0
        # When the last `_EVENTS_MAX` events began, and the event at which the next ones begin.
        self._looked_ns = -_EVENTS_NS
        self._look_at = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def random(self, part: str) -> random.Random:
        return child_random(self.seed, part)

    def probe(self, name: str, times: int = 1) -> None:
        """Count that a rare branch was taken: a simulation proves nothing about a branch it never took."""
        self.probes[name] += times

    def after(self, delay_ns: int, action: Callable[[], None]) -> Timer:
        """Plan an act."""
        timer = Timer(self.now_ns + max(delay_ns, 0), action)
        self._order += 1
        heapq.heappush(self._heap, (timer.at_ns, self._order, timer))
        return timer

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace. Callers test `trace.is_on` first where the line is costly to make."""
        if self.trace.is_on:
            self.trace.note(self.now_ns, who, what)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> bool:
        """Execute acts up to a time, or until `done`; returns whether `done` became true."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            if done is not None and done():
                return True
            at_ns, _, timer = heapq.heappop(heap)
            action = timer.action
            if action is None:
                continue
            self.now_ns = at_ns
            self.events += 1
            if self.events > self._look_at:
                self._look_for_circles()
            action()
        if done is not None and done():
            return True
        self.now_ns = max(self.now_ns, until_ns)
        return False

    def _look_for_circles(self) -> None:
        passed_ns = self.now_ns - self._looked_ns
        if passed_ns < _EVENTS_NS:
            raise Violation(
                f"I17 liveness: {_EVENTS_MAX:,} events within {passed_ns / MILLISECOND_NS:.3f} ms: something"
                f" goes in circles"
            )
        self._looked_ns = self.now_ns
        self._look_at += _EVENTS_MAX


class NodeClock:
    """The clock of one node: its own rate, and a wall clock that jumps.

    Only suspicion and pacing may depend on it, so the clock is as bad as clocks get.
    """

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.rate = 1.0
        self._offset_ns = chance.randrange(SECOND_NS, 1_000 * SECOND_NS)
        self._wall_offset_ms = 0
        self._due_steps = 0

    def make_unsteady(self) -> None:
        """Go up to 20 % too fast or too slow."""
        self.rate = self._chance.uniform(0.8, CLOCK_RATE_MAX)

    def jump(self) -> None:
        """Set the wall clock wrong, by up to a minute either way."""
        self._wall_offset_ms += self._chance.randrange(-60_000, 60_001)

    def step(self, days: int) -> None:
        """Set the wall clock to another day."""
        self._wall_offset_ms += days * _DAY_MS

    def stand_still(self, duration_ns: int) -> None:
        """The monotonic clock misses so much of the world's time."""
        self._offset_ns -= int(duration_ns * self.rate)

    def leap(self, duration_ns: int) -> None:
        """The monotonic clock goes on as if this had passed: the machine was suspended."""
        self._offset_ns += duration_ns

    def now_ns(self) -> int:
        return self._offset_ns + int(self._world.now_ns * self.rate)

    def wall_ms(self) -> int:
        return _WALL_START_MS + self._world.now_ns // MILLISECOND_NS + self._wall_offset_ms

    def delay_until(self, deadline_ns: int) -> int:
        """How long the world has to wait until this node's clock shows `deadline_ns`, rounded up."""
        return max(0, int((deadline_ns - self._offset_ns) / self.rate) + 1 - self._world.now_ns)

    def look_at(self, name: str, deadline_ns: int | None, *, is_idle: bool) -> None:
        """After a step of a node: a deadline that has always passed already keeps a processor busy."""
        if deadline_ns is None or deadline_ns > self.now_ns():
            self._due_steps = 0
            return
        self._due_steps += _IDLE_STEP if is_idle else 1
        if self._due_steps > _DUE_STEPS_MAX:
            raise Violation(f"I17 liveness: {name} steps without a pause, its deadline has always passed")


class ClockSteps:
    """Wall clocks that are set wrong by days, both ways; some are set right again after a moment."""

    def __init__(self, world: World, clocks: Sequence[NodeClock], part: str = "clock steps") -> None:
        self._world = world
        self._clocks = clocks
        self._chance = world.random(part)

    def plan(self, within_ns: int, *, always: bool = False) -> None:
        """Plan in half of all runs, or often in any case; some clocks are wrong from the beginning."""
        if self._chance.random() < 0.5 or always:
            for _ in range(self._chance.randint(1, 4) * (1 + always)):
                self._world.after(
                    self._chance.choice((0, 1, 1, 1)) * self._chance.randrange(within_ns), self._step
                )

    def _step(self) -> None:
        clock = self._chance.choice(self._clocks)
        days = self._chance.choice((1, 30, 400)) * self._chance.choice((-1, 1))
        self._world.probe(f"clock.stepped_{'back' if days < 0 else 'ahead'}")
        clock.step(days)
        if self._chance.random() < 0.5:
            self._world.after(self._chance.randrange(200 * MILLISECOND_NS), lambda: clock.step(-days))
