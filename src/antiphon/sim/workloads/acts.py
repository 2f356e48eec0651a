"""WorkloadRun: the two acts of a run, which all workloads have.

Act one, safety: the faults of the run's profile happen, for as long as the profile says. Act two, liveness:
nothing fails any more. Within bounded time nothing may be left open; then the history is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.bounds import Repetitions, Rest, Space
from antiphon.sim.checkers.places import Mending, Places
from antiphon.sim.checkers.watch import Checker, Watch
from antiphon.sim.disk import DiskHabits
from antiphon.sim.limits import dedup_window, redelivery_limit
from antiphon.sim.trace import Trace, summary
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Violation, World

_REST_NS = 200 * MILLISECOND_NS
_RESTS = 120


class AnyProfile(Protocol):
    """The fields that every profile has."""

    safety_ns: int
    disk: DiskHabits


DrawnProfile = TypeVar("DrawnProfile", bound=AnyProfile)


class WorkloadRun(Generic[DrawnProfile]):
    """One run of a workload; subclasses draw their profile first of all."""

    profile: DrawnProfile
    liveness_ns = 60 * SECOND_NS
    look_ns = 20 * MILLISECOND_NS
    redelivery_limits: tuple[int, ...] = (0,)
    """Of which one is drawn for a run's queues."""

    def __init__(self, seed: int, trace: Trace, without: Sequence[str]) -> None:
        self._seed = seed
        self.world = World(seed, trace)
        self._chance: random.Random = self.world.random("workload")
        self._without = without

    def run(self) -> None:
        """Play both acts; raises `Violation` when a promise is broken."""
        with redelivery_limit(self._seed, self.redelivery_limits) as limit, dedup_window(self._seed):
            self._begin_to_reject(limit)
            self._play()

    def _begin_to_reject(self, limit: int) -> None:
        """Nothing: consumers of this workload reject no messages."""

    def _play(self) -> None:
        if self.world.trace.is_on:
            self.world.note("profile", summary(self.profile))
        self._begin()
        self.world.run(self.world.now_ns + self.profile.safety_ns)
        self._heal()
        self._run_until_quiet()
        self._judge()
        self._rest()

    def figures(self) -> dict[str, int]:
        """Counts of this run, for the report."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Start nodes and clients, and plan the faults."""
        raise NotImplementedError

    def _heal(self) -> None:
        """Nothing fails any more."""
        disk = self.profile.disk
        disk.sync_ns, disk.stall_probability = 100 * MICROSECOND_NS, 0.0
        self.world.note("world", "heals")

    def _is_quiet(self) -> bool:
        """Is nothing left to happen?"""
        return not self._what_is_open()

    def _what_is_open(self) -> str:
        """What still has to happen, in words."""
        raise NotImplementedError

    def _judge(self) -> None:
        """Judge the history, when all is quiet."""
        raise NotImplementedError

    def _machines(self) -> dict[str, list[Any]]:
        """All machines of this moment, by their owner."""
        raise NotImplementedError

    def _disks_at_rest(self) -> Iterator[tuple[str, MemoryDisk, ChannelState | None]]:
        """The name and disk of each voting node that is up, and the state with its live messages, if any.

        A log that was cut keeps the segments of the entries until its base has passed their numbers, and a
        run at rest has no data for that: such a node is left out (`is_cut`).
        """
        raise NotImplementedError

    def _rest(self) -> None:
        """Let messages under way arrive; then look at all containers and disks.

        A link may be slow for a second after the faults end, and requests wait for their answers; a journal
        comes to rest by checkpoints, in seconds: an excess counts only if it is there after many looks.
        """
        told: tuple[Checker, str] | None = None
        for _ in range(_RESTS):
            self.world.run(self.world.now_ns + _REST_NS)
            told = next(self._complaints(), None)
            if told is None:
                return
        if told is not None:
            told[0].fail(told[1])

    def _complaints(self) -> Iterator[tuple[Checker, str]]:
        # Disks come to rest last; until then the walk through all containers is not needed.
        rest, space = Rest(self.world), Space(self.world)
        if Space.__name__ not in self._without:
            for name, disk, live in self._disks_at_rest():
                if (complaint := space.complaint(name, disk, live)) is not None:
                    yield space, complaint
        if Rest.__name__ not in self._without:
            for name, machines in self._machines().items():
                if (complaint := rest.complaint(name, machines)) is not None:
                    yield rest, complaint

    def _watch_by(self, checkers: Sequence[Checker]) -> Watch:
        """The wanted checkers of this run, and those that every run has."""
        every = [*checkers, Places(self.world), Mending(self.world), Repetitions(self.world)]
        return Watch([one for one in every if type(one).__name__ not in self._without])

    def _run_until_quiet(self) -> None:
        deadline = self.world.now_ns + self.liveness_ns
        while self.world.now_ns < deadline:
            self.world.run(self.world.now_ns + self.look_ns)
            if self._is_quiet():
                return
        raise Violation(f"I17 liveness: {self._what_is_open()}")
