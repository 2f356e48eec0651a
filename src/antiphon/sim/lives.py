"""LivingNode: a node of the simulation over all its lives, whatever its machines are.

All events of one tick reach the node in one step. A life ends when the power goes or the process does; the
next one has the same disk, if there is one, and nothing else. A sleeping node takes no step: its timers and
arrivals are late. Plans of one life are void in the next. Every node has a clock of its own.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from antiphon.bus import effects as bus
from antiphon.bus.replica import Replica
from antiphon.errors import NoSpace
from antiphon.outlet import Outlet
from antiphon.sim.disk import PowerLost, SimDisk, SyncFailed
from antiphon.sim.links import LinkHabits, Links
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.trace import summary
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, NodeClock, Timer, World
from antiphon.transport.interface import Peer
from antiphon.wire.lanes import Lane

Parcel = TypeVar("Parcel")
"""A message under way, as it arrives."""

Runner = TypeVar("Runner", bound="LivingNode[Any]")


class Ground(Generic[Parcel, Runner]):
    """Everything common to the nodes of a run."""

    def __init__(self, world: World, links: LinkHabits) -> None:
        self.world = world
        self.links: Links[Parcel] = Links(world, links, self._arrive)
        self.tick_ns = 20 * MICROSECOND_NS
        self.restart_ns = 500 * MILLISECOND_NS
        self.runners: dict[int, Runner] = {}
        chance = world.random("outlets")
        # Do replicas receive late what they do not wait for, and gather arrivals while no other waits for
        # them?
        self.has_late = chance.random() < 0.7
        self.has_spares = chance.random() < 0.7
        self.whole_bytes: int = chance.choice((1_400, 60_000))

    def _arrive(self, to: int, event: Parcel) -> None:
        self.runners[to].hear(event)


class LivingNode(ABC, Generic[Parcel]):
    """Drives the machines of one node. A subclass makes the machines, and knows their events and effects."""

    restart_ns_min = 1

    def __init__(self, ground: Ground[Any, Any], node_id: int, disk: SimDisk | None) -> None:
        world = ground.world
        self.ground = ground
        self.world = world
        self.node_id = node_id
        self.name = f"node {node_id}"
        self.life = 0
        self.clock = NodeClock(world, world.random(f"clock/{node_id}"))
        # A node that is gone does not come back by itself.
        self.is_gone = False
        self._disk = disk
        self._chance: random.Random = world.random(f"node/{node_id}")
        self._storage: ChannelStorage | None = None
        self._events: list[Any] = []
        # The outlet to other nodes, by channel, and their lanes.
        self._outlets: dict[str, Outlet[Parcel]] = {}
        self._peers: dict[str, dict[int, Peer]] = {}
        # Channels with a timer for late messages; and do arrivals wait for a while?
        self._timed: set[str] = set()
        self._is_gathering = False
        self._step_timer: Timer | None = None
        self._deadline_timer: Timer | None = None
        self._deadline_at_ns = -1
        self._paused_until_ns = 0
        # Since when the clock stands still, if it does.
        self._frozen_ns: int | None = None

    # --- what a subclass knows ---

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Has the node machines at the moment?"""

    @property
    @abstractmethod
    def replica(self) -> Replica | None:
        """The replica of a node that is up and has a disk."""

    @abstractmethod
    def _begin(self) -> None:
        """Make the machines of a new life, and `_set_out`."""

    @abstractmethod
    def _step_machines(self, events: list[Any]) -> Sequence[Any]:
        """Step the machines; returns their effects."""

    @abstractmethod
    def _carry_out(self, effect: Any) -> None:
        """Carry out one effect."""

    @abstractmethod
    def _next_deadline_ns(self) -> int | None:
        """The time at which the machines want their next step."""

    @abstractmethod
    def _forget_life(self) -> None:
        """The life is over: tell the checkers, and drop the machines."""

    @abstractmethod
    def tell(self, event: bus.Event) -> None:
        """Tell the node an event of its channel, which has not come over the network."""

    def _after_step(self) -> None:
        """Everything of a step has left for the network."""

    def _on_failed_sync(self) -> None:
        """A sync failed, which ends the life."""

    def _on_dead(self) -> None:
        """The power is off, and what was not synced is forgotten."""

    # --- acts on a node ---

    def start(self) -> None:
        """Begin a life with the disk as it is."""
        if self.is_up:
            return
        self.life += 1
        self.world.note(self.name, f"starts life {self.life}")
        try:
            self._begin()
        except PowerLost as cut:
            self.world.probe("node.power_lost_while_starting")
            self._end(str(cut))
        except SyncFailed:
            self._give_up()
        except NoSpace as full:
            self.world.probe("node.no_room_to_start")
            self._end(full.text)

    def crash(self) -> None:
        if self.is_up:
            self.world.probe("node.crashed")
            self._end("crash")

    def sleep(self, duration_ns: int, *, is_frozen: bool = False) -> None:
        """The process is not given the processor for a while, beginning now; its clock may stand still."""
        if self.is_up:
            how = ", and its clock stands still" if is_frozen else ""
            self.world.note(self.name, f"sleeps for {duration_ns // MILLISECOND_NS} ms{how}")
            if is_frozen and self._frozen_ns is None:
                self.world.probe("faults.frozen")
                self._frozen_ns = self.world.now_ns
            self.stand_still(duration_ns)
            self._plan_anew()

    def stand_still(self, duration_ns: int) -> None:
        """The process takes no further step for a while."""
        self._paused_until_ns = max(self._paused_until_ns, self.world.now_ns + duration_ns)

    def heal(self) -> None:
        """The disk works, and the process has the processor."""
        if self._disk is not None:
            self._disk.heal()
        if self._paused_until_ns > self.world.now_ns:
            self._paused_until_ns = 0
            self._plan_anew()

    # --- events in ---

    def take(self, events: list[Any]) -> None:
        if self.is_up:
            self._events.extend(events)
            self._plan_step()

    def hear(self, event: Parcel) -> None:
        """Receive a message of another node."""
        if not self.is_up:
            return
        self._events.append(event)
        if self._step_timer is None and not self._is_gathering:
            gather_ns = max([outlet.gather_ns for outlet in self._outlets.values()])
            if gather_ns:
                self.world.probe("node.gathers")
                self._is_gathering = True
                self._later(self.life, gather_ns, self._end_gathering)
            else:
                self._plan_step()

    def _end_gathering(self) -> None:
        self._is_gathering = False
        if self._events:
            self._plan_step()

    # --- a life begins, and ends ---

    def _set_out(self, outlets: dict[str, Outlet[Parcel]], peers: dict[str, dict[int, Peer]]) -> None:
        """The machines of the new life are there."""
        self._outlets, self._peers = outlets, peers
        self._timed.clear()
        self._is_gathering = False
        self._plan_step()

    def _end(self, why: str) -> None:
        self.world.note(self.name, f"ends life {self.life}: {why}")
        for timer in (self._step_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._step_timer = self._deadline_timer = None
        self._events.clear()
        self._forget_life()
        self._storage = None
        self._paused_until_ns = 0
        self._frozen_ns = None
        if self._disk is not None:
            self._disk.lose_power()
        self._on_dead()
        if not self.is_gone:
            self.world.after(self._chance.randrange(self.restart_ns_min, self.ground.restart_ns), self.start)

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
        except SyncFailed:
            self._give_up()

    def _give_up(self) -> None:
        self.world.probe("disk.sync_failed")
        self._on_failed_sync()
        self._end("a sync failed")

    # --- sending ---

    def _flush_outlets(self) -> None:
        for channel, outlet in self._outlets.items():
            self._leave(channel, outlet.flush(self.clock.now_ns()))
            self._time(channel, outlet)

    def _time(self, channel: str, outlet: Outlet[Parcel]) -> None:
        if channel not in self._timed and (deadline_ns := outlet.late_at_ns) is not None:
            self._timed.add(channel)
            delay_ns = max(self.clock.delay_until(deadline_ns), self.ground.tick_ns)
            self._later(self.life, delay_ns, partial(self._on_late, channel, outlet))

    def _on_late(self, channel: str, outlet: Outlet[Parcel]) -> None:
        self._timed.remove(channel)
        frames = outlet.tick(self.clock.now_ns())
        self.world.probe("node.said_late", len(frames))
        self._leave(channel, frames)
        self._time(channel, outlet)

    def _leave(self, channel: str, frames: list[tuple[int | Lane, Parcel]]) -> None:
        links, us = self.ground.links, self.node_id
        for to, event in frames:
            if type(to) is not Lane:
                links.send(us, to, event)
                continue
            for node, peer in self._peers[channel].items():
                if to in peer.lanes and node != us:
                    links.send(us, node, event)

    # --- steps ---

    def _plan_step(self) -> None:
        if self._step_timer is None:
            delay = max(self._draw_delay_ns(), self._paused_until_ns - self.world.now_ns)
            self._step_timer = self.world.after(delay, self._guarded_step)

    def _draw_delay_ns(self) -> int:
        return self._chance.randrange(1, self.ground.tick_ns + 1)

    def _plan_anew(self) -> None:
        if self._step_timer is not None:
            self._step_timer.cancel()
            self._step_timer = None
            self._plan_step()

    def _guarded_step(self) -> None:
        self._guard(self._step)

    def _step(self) -> None:
        life = self.life
        assert self.is_up, "a node that is down took a step"
        self._step_timer = None
        events, self._events = self._events, []
        if self.world.trace.is_on:
            for event in events:
                self.world.note(self.name, f"takes {summary(event)}")
        if self._frozen_ns is not None:
            self.clock.stand_still(self.world.now_ns - self._frozen_ns)
            self._frozen_ns = None
        effects = self._step_machines(events)
        for effect in effects:
            self._carry_out(effect)
            if self.life != life or not self.is_up:
                return
        self._flush_outlets()
        self._after_step()
        if self._storage is not None:
            self._storage.flush()
        if self.replica is not None and self.replica.must_begin_anew:
            self.world.probe("node.began_anew")
            self._end("it has to start again")
            return
        self._arm(is_idle=not events and not effects)

    def _store(self, effect: bus.Effect) -> None:
        """Carry out an effect on the disk."""
        assert self._storage is not None, f"{type(effect).__name__} on a node without a disk"
        if self.world.trace.is_on:
            self.world.note(self.name, f"does {summary(effect)}")
        self._storage.carry_out(effect)

    def _arm(self, *, is_idle: bool) -> None:
        deadline_ns = self._next_deadline_ns()
        self.clock.look_at(self.name, deadline_ns, is_idle=is_idle)
        if self._deadline_timer is not None:
            if deadline_ns == self._deadline_at_ns:
                return
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if deadline_ns is not None:
            self._deadline_at_ns = deadline_ns
            delay = max(self.clock.delay_until(deadline_ns), self.ground.tick_ns)
            self._deadline_timer = self.world.after(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        self._plan_step()
