"""Runners: let the nodes of a cluster live, die, sleep and live again, and carry what they say to each other.

A message manager and a witness come back with their disk. A client manager has none: each of its lives begins
with nothing, under ids of its own. Every message passes through the codec once, also between machines of one
node, and the checkers see it at the moment it is said. What is said to all reaches those whose lane it is on.

A town has one quarter for each channel, with message managers of its own; its client managers serve them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from antiphon.bus import codec
from antiphon.bus import effects as bus
from antiphon.bus.codec import NO_DISK
from antiphon.bus.effects import Event, Received
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage
from antiphon.bus.sequencer import State
from antiphon.cluster.topology import LANES, Role
from antiphon.errors import Unreadable
from antiphon.journal.format import LOST_AND_FOUND
from antiphon.journal.journal import Journal
from antiphon.journal.ports import Buffer
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.node import InChannel, Node, NodeEffect, NodeEvent
from antiphon.outlet import Outlet
from antiphon.sim.checkers.watch import NodeFacts, Stand, Watch
from antiphon.sim.cluster.links import LinkHabits, Links
from antiphon.sim.disk import SimDisk
from antiphon.sim.image import Image
from antiphon.sim.lives import Lives
from antiphon.sim.network import ClientPort
from antiphon.sim.node_runner import NodeHabits
from antiphon.sim.observing import ManagerObserver
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.tiers.misreading import Misreads
from antiphon.sim.trace import summary
from antiphon.sim.world import MILLISECOND_NS, NodeClock, World
from antiphon.standing import Agreed
from antiphon.startup import (
    ClientManagerStart,
    Identity,
    StartedNode,
    StartSettings,
    start,
    start_client_manager,
)
from antiphon.transport.interface import Peer
from antiphon.wire.lanes import Lane

CLUSTER = "sim"
_AGREED = Agreed(digest="sim")


@dataclass(frozen=True, slots=True)
class Quarter:
    """One channel: who keeps its messages, and who watches what is done there."""

    config: GroupConfig
    watch: Watch

    @property
    def channel(self) -> str:
        """Its name."""
        return self.config.group


class Town:
    """What all nodes of a run have in common; `watch` sees what crosses the client ports."""

    def __init__(
        self,
        world: World,
        quarters: Sequence[Quarter],
        habits: NodeHabits,
        links: LinkHabits,
        watch: Watch,
    ) -> None:
        self.world = world
        self.quarters = {one.channel: one for one in quarters}
        self.habits = habits
        self.watch = watch
        self.misreads = Misreads.NOTHING
        self.restart_ns = 300 * MILLISECOND_NS
        self.links = Links(world, links, self._arrive)
        chance = world.random("outlets")
        # Do replicas hear late what they do not wait for, and gather what arrives if nobody waits for them?
        self.has_late = chance.random() < 0.7
        self.has_spares = chance.random() < 0.7
        self.whole_bytes: int = chance.choice((1_400, 60_000))
        self.managers: dict[int, ManagerRunner] = {}
        self.doors: dict[int, DoorRunner] = {}
        self.runners: dict[int, TierRunner] = {}

    def add(self, runner: TierRunner) -> None:
        """One more node."""
        self.runners[runner.node_id] = runner
        if isinstance(runner, DoorRunner):
            self.doors[runner.node_id] = runner
        elif isinstance(runner, ManagerRunner):
            self.managers[runner.node_id] = runner

    def peers(self, channel: str) -> dict[int, Peer]:
        """The members of a channel, with the lanes that they listen to."""
        config = self.quarters[channel].config
        roles = dict.fromkeys(config.nodes, Role.WITNESS)
        roles |= dict.fromkeys(config.data_servers, Role.MESSAGE_MANAGER)
        roles |= dict.fromkeys(self.doors, Role.CLIENT_MANAGER)
        return {node: Peer("", 0, LANES[role]) for node, role in roles.items()}

    def _arrive(self, to: int, event: InChannel) -> None:
        self.runners[to].hear(event)

    def managers_of(self, channel: str) -> list[ManagerRunner]:
        """The nodes with a disk that serve a channel."""
        return [one for one in self.managers.values() if one.quarter.channel == channel]

    def leader(self, channel: str) -> ManagerRunner | None:
        """Who leads a channel, or believes it; the last to be elected if there are several."""
        leading = [one for one in self.managers_of(channel) if one.is_leading]
        return max(leading, key=lambda one: one.epoch, default=None)


class TierRunner(Lives):
    """One node of the cluster."""

    def __init__(self, town: Town, node_id: int) -> None:
        world = town.world
        clock = NodeClock(world, world.random(f"clock/{node_id}"))
        super().__init__(world, node_id, clock, town.habits.tick_ns)
        self.town = town
        self.machines: Node | None = None
        # What stands in front of every message of this life, by channel.
        self._heads: dict[str, tuple[Any, ...]] = {}
        # What was carried in this step, with how others hear it; and what of it was said to anybody.
        self._carried: dict[int, tuple[BusMessage, Received]] = {}
        # Since when its clock stands still, if it does.
        self._frozen_ns: int | None = None
        self._said: dict[int, BusMessage] = {}
        # What leaves for other nodes, by channel, and who listens to what.
        self._outlets: dict[str, Outlet[InChannel]] = {}
        self._peers: dict[str, dict[int, Peer]] = {}
        # Channels with a timer for what leaves late; and does what has arrived lie for a while?
        self._timed: set[str] = set()
        self._is_gathering = False

    @property
    def is_up(self) -> bool:
        return self.machines is not None

    @property
    def disk_id(self) -> bytes:
        """The disk that votes for this node."""
        return NO_DISK

    @property
    def quarters(self) -> list[Quarter]:
        """The channels that this node has to do with."""
        raise NotImplementedError

    def all_machines(self) -> list[Any]:
        """All that lives in the present life."""
        return [] if self.machines is None else [self.machines]

    def hear(self, event: InChannel) -> None:
        """Another node said something."""
        if self.machines is not None:
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

    def sleep(self, duration_ns: int, *, is_frozen: bool = False) -> None:
        """The process is not given the processor for a while, beginning now; its clock may stand still."""
        if self.is_up:
            how = ", and its clock stands still" if is_frozen else ""
            self.world.note(self.name, f"sleeps for {duration_ns // MILLISECOND_NS} ms{how}")
            if is_frozen and self._frozen_ns is None:
                self.world.probe("faults.frozen")
                self._frozen_ns = self.world.now_ns
            self.pause(duration_ns)
            self._plan_anew()

    def heal(self) -> None:
        """Nothing fails from now on."""
        self._paused_until_ns = 0
        self._plan_anew()

    def _plan_anew(self) -> None:
        if self._step_timer is not None:
            self._step_timer.cancel()
            self._step_timer = None
            self._plan_step()

    def _identity(self) -> Identity:
        return Identity(
            disk_id=self.disk_id,
            run_id=self._chance.randbytes(16),
            start_s=self.clock.wall_ms() // 1_000,
        )

    def _live(self, machines: Node, identity: Identity) -> None:
        self._heads = {
            one.channel: (one.channel, one.config.config_id, self.node_id, identity.run_id, self.disk_id)
            for one in self.quarters
        }
        self._peers = {one.channel: self.town.peers(one.channel) for one in self.quarters}
        self._outlets = {one.channel: self._outlet(one.channel) for one in self.quarters}
        self._timed.clear()
        self._is_gathering = False
        machines.loopback = self._carry
        self.machines = machines
        self._plan_step()

    def _end(self, why: str) -> None:
        self.world.note(self.name, f"ends life {self.life}: {why}")
        if self.machines is not None:
            for quarter in self.quarters:
                quarter.watch.on_crashed(self.node_id)
        self._forget_plans()
        self._forget_said()
        self.machines = None
        self._paused_until_ns = 0
        self._frozen_ns = None
        self._restart_within(self.town.restart_ns)

    # What is said.

    def _outlet(self, channel: str) -> Outlet[InChannel]:
        return Outlet(partial(self._pack, channel), self.town.whole_bytes)

    def _pack(self, channel: str, message: BusMessage) -> InChannel:
        return InChannel(channel, self._through_codec(channel, message))

    def _flush_outlets(self) -> None:
        for channel, outlet in self._outlets.items():
            self._leave(channel, outlet.flush(self.clock.now_ns()))
            self._time(channel, outlet)

    def _time(self, channel: str, outlet: Outlet[InChannel]) -> None:
        if channel not in self._timed and (deadline_ns := outlet.next_deadline_ns()) is not None:
            self._timed.add(channel)
            delay_ns = self.clock.delay_until(deadline_ns)
            self._later(self.life, max(delay_ns, self.tick_ns), partial(self._on_late, channel, outlet))

    def _on_late(self, channel: str, outlet: Outlet[InChannel]) -> None:
        self._timed.remove(channel)
        frames = outlet.tick(self.clock.now_ns())
        self.world.probe("node.said_late", len(frames))
        self._leave(channel, frames)
        self._time(channel, outlet)

    def _leave(self, channel: str, frames: list[tuple[int | Lane, InChannel]]) -> None:
        links, us = self.town.links, self.node_id
        for to, event in frames:
            if type(to) is not Lane:
                links.send(us, to, event)
                continue
            for node, peer in self._peers[channel].items():
                if to in peer.lanes and node != us:
                    links.send(us, node, event)

    def _say(self, channel: str, message: BusMessage) -> None:
        if id(message) not in self._said:
            if self.world.trace.is_on:
                self.world.note(self.name, f"says {summary(message)}")
            self.town.quarters[channel].watch.on_sent(self.node_id, message)
            # The message is kept until the step is over, so that no other one gets its id.
            self._said[id(message)] = message

    def _through_codec(self, channel: str, message: BusMessage) -> Received:
        carried = self._carried.get(id(message))
        if carried is not None:
            return carried[1]
        _, heard = codec.decode(codec.encode(message, *self._heads[channel]))
        event = Received(self.node_id, heard, self.disk_id)
        # The message is kept as well, so that no other one gets its id.
        self._carried[id(message)] = message, event
        return event

    def _carry(self, message: BusMessage) -> BusMessage:
        """To a machine of this node, which does not say for which channel. If there are several, the checkers
        see what goes to others, too.
        """
        channel = next(iter(self._heads))
        if len(self._heads) == 1:
            self._say(channel, message)
        return self._through_codec(channel, message).message

    def _forget_said(self) -> None:
        self._carried.clear()
        self._said.clear()

    def _next_deadline_ns(self) -> int | None:
        assert self.machines is not None, "a node that is down set its timer"
        return self.machines.next_deadline_ns()

    def _act(self, events: list[NodeEvent]) -> None:
        machines, life = self.machines, self.life
        assert machines is not None, "a node that is down took a step"
        if self._frozen_ns is not None:
            self.clock.stand_still(self.world.now_ns - self._frozen_ns)
            self._frozen_ns = None
        self._before_step(events)
        for effect in machines.step(self.clock.now_ns(), self.clock.wall_ms(), events):
            self._carry_out(effect)
            if self.life != life or not self.is_up:
                return
        self._flush_outlets()
        self._forget_said()
        self._after_step(machines)

    def _before_step(self, events: list[NodeEvent]) -> None:
        """A step begins."""

    def _after_step(self, machines: Node) -> None:
        """Everything that the step asked for is done."""

    def _carry_out(self, effect: NodeEffect) -> None:
        if not isinstance(effect, InChannel):
            self._do_at_port(effect)
            return
        channel, what = effect
        kind = type(what)
        if kind is bus.Send:
            self._say(channel, what.message)
            self._outlets[channel].send(what.to, what.message)
        elif kind is bus.Multicast:
            self._say(channel, what.message)
            self._outlets[channel].multicast(what.message)
        elif kind is bus.Alarm:
            self.world.note(self.name, f"alarm: {what.text}")
            self.world.probe("node.alarm")
        elif kind is not bus.Reconfigured:
            if self.world.trace.is_on:
                self.world.note(self.name, f"does {summary(what)}")
            self._do_at_disk(what)

    def _do_at_disk(self, effect: bus.Effect) -> None:
        raise AssertionError(f"{type(effect).__name__} on a node without a disk")

    def _do_at_port(self, effect: NodeEffect) -> None:
        raise AssertionError(f"{type(effect).__name__} on a node without clients")


class ManagerRunner(TierRunner):
    """A message manager, or a witness: it has a disk, and no clients."""

    def __init__(self, town: Town, node_id: int, disk: SimDisk, quarter: Quarter) -> None:
        super().__init__(town, node_id)
        self.disk = disk
        self.quarter = quarter
        self._started: StartedNode | None = None
        self._storage: ChannelStorage | None = None
        self._has_misread = False

    @property
    def quarters(self) -> list[Quarter]:
        return [self.quarter]

    @property
    def disk_id(self) -> bytes:
        return self.quarter.config.disk_of(self.node_id)

    @property
    def has_messages(self) -> bool:
        """Is it no witness?"""
        return self.node_id in self.quarter.config.data_servers

    @property
    def is_leading(self) -> bool:
        """Does it lead, as far as it knows?"""
        return self._started is not None and self._started.replica.state is State.LEADING

    @property
    def epoch(self) -> int:
        """The epoch it leads or follows."""
        return self._started.replica.epoch if self._started is not None else 0

    @property
    def manager(self) -> MessageManager | None:
        """The message manager of the present life."""
        return self._started.manager if self._started is not None and self.has_messages else None

    def _outlet(self, channel: str) -> Outlet[InChannel]:
        assert self._started is not None, "a node that is down said something"
        town = self.town
        return Outlet(
            partial(self._pack, channel),
            town.whole_bytes,
            node=self.node_id,
            peers=town.peers(channel) if town.has_late else None,
            is_spare=self._started.replica.is_spare if town.has_spares else None,
        )

    def all_machines(self) -> list[Any]:
        started = self._started
        return [*super().all_machines(), *(() if started is None else (started.journal,))]

    def facts(self) -> NodeFacts | None:
        """How this node stands; None while it is down, or if it keeps no messages."""
        if (manager := self.manager) is None:
            return None
        return NodeFacts(
            is_leading=self.is_leading,
            applied=manager.applied,
            digest=manager.state.digest(),
            waits_for=0,
        )

    @property
    def has_no_state(self) -> bool:
        """Is it up without the state that its log begins with?"""
        manager = self.manager
        return manager is not None and manager.applied < self._base

    @property
    def _base(self) -> int:
        return self._started.replica.base if self._started is not None else 0

    def _identity(self) -> Identity:
        # Of a disk that takes the place of one that is put aside.
        fresh_id = self.world.random(f"fresh disk/{self.node_id}/{self.life}").randbytes(16)
        return replace(super()._identity(), disk_id=fresh_id)

    def _read_state(self, data: bytes) -> ChannelState:
        """As the software of this moment can."""
        misreads = self.town.misreads
        if misreads is Misreads.ALL or (misreads is Misreads.NEWEST and not self._has_misread):
            self._has_misread = True
            self.world.probe("node.misread")
            raise Unreadable("the software cannot read it")
        return ChannelState.restore(data)

    def _begin(self) -> None:
        try:
            self._begin_with_disk()
        except Unreadable as error:
            assert self.town.misreads is Misreads.ALL, f"what can be read is refused: {error}"
            self.world.probe("node.refused_to_start")
            self._end(error.text)

    def _begin_with_disk(self) -> None:
        town, world = self.town, self.world
        identity = self._identity()
        if not Journal.is_formatted(self.disk):
            listed = self.quarter.config.disk_of(self.node_id)
            Journal.format(self.disk, town.habits.journal(), listed, self.node_id, CLUSTER)
        self._has_misread = False
        settings = StartSettings(
            name=self.name,
            cluster=CLUSTER,
            group=self.quarter.config,
            client_manager=None,
            message_manager=town.habits.message_manager(),
            agreed=_AGREED,
            read_state=self._read_state,
        )
        before = None if town.misreads is Misreads.NOTHING else self.disk.contents()
        try:
            started = start(self.disk, town.habits.journal(), identity, settings, self.node_id)
        except Unreadable:
            self.quarter.watch.on_refused(self.node_id, before != self.disk.contents())
            raise
        for note in (*started.notes, *started.alarms):
            world.note(self.name, note)
        aside = [name for name in self.disk.all_files() if name.startswith(LOST_AND_FOUND)]
        self.quarter.watch.on_opened(self.node_id, started.found.disk_id, len(aside))
        assert not started.found.lost, f"a whole disk is not taken for one: {started.found.lost}"
        world.probe("recovery.torn_tail_cut", len(started.found.truncated))
        applied = started.manager.applied if self.has_messages else 0
        world.probe("node.began_without_a_state", int(self.has_messages and applied < started.replica.base))
        world.probe("recovery.from_checkpoint", int(applied > 0))
        self.quarter.watch.on_started(self.node_id, Image(), applied)
        started.replica.loopback = self._carry
        if self.has_messages:
            manager, watch = started.manager, self.quarter.watch
            manager.read_state = self._read_opened
            say = partial(self._say, self.quarter.channel)
            started.node.observer = ManagerObserver(self, watch, manager, say)
        life = self.life
        self._storage = ChannelStorage(
            world,
            self.node_id,
            self.disk,
            started.journal,
            started.found,
            started.counter,
            started.referrer,
            self.quarter.watch,
            tell=self._tell,
            later=lambda delay_ns, action: self._later(life, delay_ns, action),
            stand_still=self.pause,
        )
        self._started = started
        self._live(started.node, identity)

    def _read_opened(self, data: Buffer) -> ChannelState:
        """The state of another node, as the software of this moment can."""
        if self.town.misreads is Misreads.ALL:
            raise Unreadable("the software cannot read it")
        return ChannelState.restore(data)

    def _end(self, why: str) -> None:
        super()._end(why)
        self._started = self._storage = None
        self.disk.lose_power()

    def heal(self) -> None:
        self.disk.cut_after = None
        super().heal()

    def _tell(self, event: Event) -> None:
        self._events.append(InChannel(self.quarter.channel, event))
        self._plan_step()

    def _do_at_disk(self, effect: bus.Effect) -> None:
        assert self._storage is not None, "a node that is down wrote"
        self._storage.carry_out(effect)

    def _after_step(self, machines: Node) -> None:
        assert self._storage is not None and self._started is not None, "a node that is down took a step"
        self._storage.flush()
        if self._started.replica.must_begin_anew:
            self.world.probe("node.began_anew")
            self._end("it has to start again")


class DoorRunner(TierRunner):
    """A client manager: it has clients, and no disk."""

    def __init__(self, town: Town, node_id: int) -> None:
        super().__init__(town, node_id)
        self._port: ClientPort | None = None

    @property
    def quarters(self) -> list[Quarter]:
        return list(self.town.quarters.values())

    def port_if_serving(self) -> ClientPort | None:
        """The client port, once the node listens."""
        return self._port if self._port is not None and self._port.is_listening else None

    def _begin(self) -> None:
        town = self.town
        identity = self._identity()
        machines = start_client_manager(
            identity,
            ClientManagerStart(
                node_id=self.node_id,
                name=self.name,
                cluster=CLUSTER,
                agreed=_AGREED,
                groups=tuple([one.config for one in self.quarters]),
                servers=(),
                settings=town.habits.client_manager(),
            ),
        )
        manager = machines.client_manager
        assert manager is not None, "a door without a client manager"
        self._port = ClientPort(self.world, self.node_id, town.watch, self.take)
        self._port.stands_of = lambda conn: {
            consumer: Stand(*known) for consumer, known in manager.attachments(conn)
        }
        self._live(machines, identity)

    def _end(self, why: str) -> None:
        if self._port is not None:
            self._port.die()
            self._port = None
        super()._end(why)

    def _before_step(self, events: list[NodeEvent]) -> None:
        assert self._port is not None, "a node that is down took a step"
        self._port.before_step(events)

    def _do_at_port(self, effect: NodeEffect) -> None:
        assert self._port is not None, "a node that is down spoke to clients"
        if self.world.trace.is_on:
            self.world.note(self.name, f"does {summary(effect)}")
        self._port.carry_out(effect)

    def _after_step(self, machines: Node) -> None:
        assert self._port is not None, "a node that is down took a step"
        self._port.after_step()
        if not self._port.is_listening and machines.is_serving:
            self._port.is_listening = True
