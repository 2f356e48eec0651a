"""SimNode: a node of the simulated cluster, over all its lives (`lives.py`).

A node with a disk comes back with that disk. A node without a disk is a client manager: each of its lives
begins with nothing, under ids of its own. An embedded node has a disk and clients, and is the only node of
its channel. Every message passes through the codec once, also between machines of one node, and the checkers
see it when it is sent. A multicast reaches the nodes that listen to its lane.

A town has one quarter for each channel, with message managers of its own; its client managers serve all
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from antiphon.bus import codec
from antiphon.bus import effects as bus
from antiphon.bus.effects import Event, Received
from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.bus.messages import BusMessage, Data, Presence, ProducerOpen
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.cluster.topology import LANES, Role
from antiphon.errors import Unreadable
from antiphon.event_log import EventRow
from antiphon.journal.format import LOST_AND_FOUND
from antiphon.journal.journal import Journal
from antiphon.journal.ports import Buffer
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.node import InChannel, Node, NodeEffect, NodeEvent, RecordRows
from antiphon.outlet import Outlet
from antiphon.sim.checkers.watch import NodeFacts, Stand, Watch
from antiphon.sim.cluster.misreading import Misreads
from antiphon.sim.disk import SimDisk
from antiphon.sim.habits import NodeHabits
from antiphon.sim.image import Image
from antiphon.sim.links import LinkHabits
from antiphon.sim.lives import Ground, LivingNode
from antiphon.sim.network import ClientPort
from antiphon.sim.observing import ManagerObserver
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.trace import summary
from antiphon.sim.world import MILLISECOND_NS, World
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

CLUSTER = "sim"
_AGREED = Agreed(digest="sim")

# A message without meaning to any machine, in place of one that is lost on its way.
_NOTHING = Presence(name="", role="", applied=0, synchronized=False, config_digest=bytes(16), load=0)


@dataclass(frozen=True, slots=True)
class Quarter:
    """One channel: its nodes with messages, and its checkers."""

    config: GroupConfig
    watch: Watch

    @property
    def channel(self) -> str:
        return self.config.group


class Town(Ground[InChannel, "SimNode"]):
    """Everything common to the nodes of a run; `watch` sees the frames at the client ports."""

    def __init__(
        self,
        world: World,
        quarters: Sequence[Quarter],
        habits: NodeHabits,
        links: LinkHabits,
        watch: Watch,
    ) -> None:
        super().__init__(world, links)
        self.quarters = {one.channel: one for one in quarters}
        self.habits = habits
        self.watch = watch
        self.misreads = Misreads.NOTHING
        # Of each channel the newest configuration of any replica, and the end of its log then.
        self.newest = {one.channel: (one.config, 0) for one in quarters}
        self.tick_ns = habits.tick_ns
        self.restart_ns = 300 * MILLISECOND_NS
        # Nodes with a disk, and nodes with clients.
        self.managers: dict[int, SimNode] = {}
        self.doors: dict[int, SimNode] = {}

    def add_manager(
        self, node_id: int, quarter: Quarter, disk: SimDisk, *, has_clients: bool = False
    ) -> SimNode:
        """Add a node with a disk: a message manager, a witness, or an embedded node with clients."""
        runner = self.managers[node_id] = SimNode(self, node_id, [quarter], disk, has_clients=has_clients)
        return self._add(runner)

    def add_door(self, node_id: int) -> SimNode:
        """Add a client manager."""
        return self._add(SimNode(self, node_id, list(self.quarters.values()), None, has_clients=True))

    def _add(self, runner: SimNode) -> SimNode:
        self.runners[runner.node_id] = runner
        if runner.has_clients:
            self.doors[runner.node_id] = runner
        return runner

    def peers(self, channel: str) -> dict[int, Peer]:
        """The members of a channel, with the lanes that they listen to."""
        config = self.quarters[channel].config
        roles = dict.fromkeys(config.nodes, Role.WITNESS)
        roles |= dict.fromkeys(config.data_servers, Role.MESSAGE_MANAGER)
        roles |= {node: Role.CLIENT_MANAGER for node in self.doors if node not in self.managers}
        return {node: Peer("", 0, LANES[role]) for node, role in roles.items()}

    def managers_of(self, channel: str) -> list[SimNode]:
        """The nodes with a disk that serve a channel."""
        return [one for one in self.managers.values() if one.quarter.channel == channel]

    def leader(self, channel: str) -> SimNode | None:
        """The leader of a channel, or a node that believes to lead; the last elected if there are several."""
        leading = [one for one in self.managers_of(channel) if one.is_leading]
        return max(leading, key=lambda one: one.epoch, default=None)


class SimNode(LivingNode[InChannel]):
    def __init__(
        self, town: Town, node_id: int, quarters: list[Quarter], disk: SimDisk | None, *, has_clients: bool
    ) -> None:
        super().__init__(town, node_id, disk)
        self.town = town
        # The channels of this node; a node with a disk serves one.
        self.quarters = quarters
        self.has_clients = has_clients
        self.machines: Node | None = None
        # Why the next life must not use the files of the disk; empty if it may.
        self.distrusted = ""
        # Is anything on the disk damaged, and is the present disk another than the first one?
        self.is_damaged = False
        self._has_lost_disk = False
        self._is_alone = disk is not None and len(quarters[0].config.nodes) == 1
        self._started: StartedNode | None = None
        self._port: ClientPort | None = None
        self._has_misread = False
        # By channel: the header of every message of this life, and its encoder.
        self._heads: dict[str, codec.Header] = {}
        self._encoders: dict[str, codec.Encoder] = {}
        self._decoder = codec.Decoder()
        # Messages of this step as decoded again, and those sent to another machine; the messages themselves
        # are kept, so that no other gets one's `id()`.
        self._carried: dict[int, tuple[BusMessage, Received]] = {}
        self._said: dict[int, BusMessage] = {}

    @property
    def is_up(self) -> bool:
        return self.machines is not None

    @property
    def disk(self) -> SimDisk:
        """The disk of a node that has one."""
        assert self._disk is not None, f"{self.name} has no disk"
        return self._disk

    @property
    def quarter(self) -> Quarter:
        """The channel of a node that has a disk."""
        assert self._disk is not None, f"{self.name} serves no channel"
        return self.quarters[0]

    @property
    def disk_id(self) -> bytes:
        """The id of the disk with which the present life began."""
        return self._started.found.disk_id if self._started is not None else NO_DISK

    @property
    def replica(self) -> Replica | None:
        return self._started.replica if self._started is not None else None

    @property
    def journal(self) -> Journal | None:
        return self._started.journal if self._started is not None else None

    @property
    def has_messages(self) -> bool:
        """Does this node keep messages, and not only a vote or nothing?"""
        return self._disk is not None and self.node_id in self.quarter.config.data_servers

    @property
    def is_leading(self) -> bool:
        """Does the node lead, as far as it knows?"""
        return self._started is not None and self._started.replica.state is State.LEADING

    @property
    def epoch(self) -> int:
        """The epoch that the node leads or follows."""
        return self._started.replica.epoch if self._started is not None else 0

    @property
    def manager(self) -> MessageManager | None:
        return self._started.manager if self._started is not None and self.has_messages else None

    @property
    def has_no_state(self) -> bool:
        """Is the node up without the state that its log begins with?"""
        manager, started = self.manager, self._started
        return manager is not None and started is not None and manager.applied < started.replica.base

    def facts(self) -> NodeFacts | None:
        """The standing of this node; None while it is down, or if it keeps no messages."""
        if (manager := self.manager) is None:
            return None
        return NodeFacts(
            is_leading=self.is_leading,
            applied=manager.applied,
            digest=manager.state.digest(),
            waits_for=0,
        )

    def port_if_serving(self) -> ClientPort | None:
        """The client port, once the node listens."""
        return self._port if self._port is not None and self._port.is_listening else None

    @property
    def log_time_ms(self) -> int | None:
        """Log time as the node's message manager knows it."""
        return None if self.manager is None else self.manager.log_time_at(self.clock.now_ns())

    def all_machines(self) -> list[Any]:
        """All machines of the present life."""
        if self.machines is None:
            return []
        return [self.machines, *(() if self._started is None else (self._started.journal,))]

    # --- acts on a node ---

    def stop(self) -> None:
        """An orderly end: clients are sent away, everything is synced, and the journal notes the end."""
        if self.is_up:
            if self._port is not None:
                self._port.close_all("node.stopping", "the node is stopping")
            self._guard(self._close)

    def damage_disk(self) -> None:
        """Note that some bytes of the disk cannot be read any more."""
        self.is_damaged = True
        self.quarter.watch.on_damaged(self.node_id)

    def lose_disk(self, distrusted: str = "") -> None:
        """Note that the next life puts all files of the disk aside: they are ruined, or `distrusted`."""
        self.world.probe("node.disk_replaced")
        self._has_lost_disk, self.distrusted = True, distrusted
        self.is_damaged = False
        self.quarter.watch.on_replaced(self.node_id)

    def restart_on_paper(self) -> StartedNode | None:
        """The node as it would start if the power went now and only synced pages stayed."""
        disk = self.disk.durable()
        if not Journal.is_formatted(disk):
            return None
        identity = Identity(disk_id=bytes(15) + b"?", run_id=bytes(16), start_s=0)
        settings = self._settings(ChannelState.restore)
        return start(disk, self.town.habits.journal(), identity, settings, self.node_id)

    def tell(self, event: Event) -> None:
        self.take([InChannel(self.quarter.channel, event)])

    # --- a life begins ---

    def _begin(self) -> None:
        try:
            self._wake()
        except Unreadable as error:
            # Of a damaged disk the newest checkpoint that is left may be the only one.
            misreads = self.town.misreads
            is_excused = misreads is Misreads.ALL or (self.is_damaged and misreads is Misreads.NEWEST)
            assert is_excused, f"what can be read is refused: {error}"
            self.world.probe("node.refused_to_start")
            self._end(error.text)

    def _wake(self) -> None:
        run_id, start_s = self._chance.randbytes(16), self.clock.wall_ms() // 1_000
        if self._disk is not None:
            # The id of a disk that replaces one put aside, or that has no id yet.
            fresh_id = self.world.random(f"fresh disk/{self.node_id}/{self.life}").randbytes(16)
            identity = Identity(disk_id=fresh_id, run_id=run_id, start_s=start_s)
            self._started = self._start_with_disk(identity)
            machines = self._started.node
        else:
            machines = self._start_without_disk(Identity(disk_id=NO_DISK, run_id=run_id, start_s=start_s))
        if self.has_clients:
            manager = machines.client_manager
            assert manager is not None, "clients without a client manager"
            self._port = ClientPort(self.world, self.node_id, self.town.watch, self.take)
            self._port.stands_of = lambda conn: {
                consumer: Stand(*known) for consumer, known in manager.attachments(conn)
            }
        self._heads = {
            one.channel: codec.Header(one.channel, one.config.config_id, self.node_id, run_id, self.disk_id)
            for one in self.quarters
        }
        self._encoders = {channel: codec.Encoder(head) for channel, head in self._heads.items()}
        machines.loopback = self._carry_of_producer if self._is_alone else self._carry
        self.machines = machines
        channels = [one.channel for one in self.quarters]
        self._set_out(
            {channel: self._outlet(channel) for channel in channels},
            {channel: self.town.peers(channel) for channel in channels},
        )

    def _start_without_disk(self, identity: Identity) -> Node:
        return start_client_manager(
            identity,
            ClientManagerStart(
                node_id=self.node_id,
                name=self.name,
                cluster=CLUSTER,
                agreed=_AGREED,
                groups=tuple([one.config for one in self.quarters]),
                servers=(),
                settings=self.town.habits.client_manager(),
                events=self.town.habits.events(),
            ),
        )

    def _start_with_disk(self, identity: Identity) -> StartedNode:
        disk, habits, watch = self.disk, self.town.habits, self.quarter.watch
        listed = self.quarter.config.disk_of(self.node_id)
        if listed and not self._has_lost_disk and not Journal.is_formatted(disk):
            Journal.format(disk, habits.journal(), listed, self.node_id, CLUSTER)
        self._has_misread = False
        settings = self._settings(self._read_state)
        before = None if self.town.misreads is Misreads.NOTHING else disk.contents()
        try:
            started = start(
                disk, habits.journal(), identity, settings, self.node_id, distrusted=self.distrusted
            )
        except Unreadable:
            watch.on_refused(self.node_id, before != disk.contents())
            raise
        # From now on the files are new ones.
        self.distrusted = ""
        self._look_at_start(started)
        started.replica.loopback = self._carry_of_role if self._is_alone else self._carry
        if self.has_messages:
            started.manager.read_state = self._read_opened
            say = partial(self._say, self.quarter.channel)
            started.node.observer = ManagerObserver(
                self.world, self.node_id, self.clock, watch, started.manager, say
            )
        self._storage = ChannelStorage(
            self.world,
            self.node_id,
            disk,
            started.journal,
            started.found,
            started.counter,
            started.referrer,
            watch,
            tell=self.tell,
            later=partial(self._later, self.life),
            stand_still=self.stand_still,
        )
        return started

    def _settings(self, read_state: Callable[..., ChannelState]) -> StartSettings:
        habits = self.town.habits
        return StartSettings(
            name=self.name,
            cluster=CLUSTER,
            group=self.quarter.config,
            client_manager=habits.client_manager() if self.has_clients else None,
            message_manager=habits.message_manager(),
            agreed=_AGREED,
            events=habits.events(),
            read_state=read_state,
        )

    def _look_at_start(self, started: StartedNode) -> None:
        world, watch, found = self.world, self.quarter.watch, started.found
        for note in (*started.notes, *started.alarms):
            world.note(self.name, note)
        aside = [name for name in self.disk.all_files() if name.startswith(LOST_AND_FOUND)]
        watch.on_opened(self.node_id, found.disk_id, len(aside))
        assert self.is_damaged or not found.lost, f"a whole disk is not taken for one: {found.lost}"
        applied = started.manager.applied if self.has_messages else 0
        world.probe("recovery.torn_tail_cut", len(found.truncated))
        world.probe("recovery.repaired", len(found.repairs))
        world.probe("recovery.from_checkpoint", int(applied > 0))
        world.probe("recovery.after_clean_end", int(found.was_clean))
        world.probe("node.began_without_a_state", int(self.has_messages and applied < started.replica.base))
        watch.on_started(self.node_id, Image.of(found), applied)

    def _read_state(self, data: bytes) -> ChannelState:
        """Read a state with the software of this moment."""
        misreads = self.town.misreads
        if misreads is Misreads.ALL or (misreads is Misreads.NEWEST and not self._has_misread):
            self._has_misread = True
            self.world.probe("node.misread")
            raise Unreadable("the software cannot read it")
        return ChannelState.restore(data)

    def _read_opened(self, data: Buffer) -> ChannelState:
        """Read the state of another node with the software of this moment."""
        if self.town.misreads is Misreads.ALL:
            raise Unreadable("the software cannot read it")
        return ChannelState.restore(data)

    # --- a life ends ---

    def _close(self) -> None:
        if self._storage is not None:
            self._storage.close()
        self.world.probe("node.stopped_in_order")
        self._end("stop")

    def _forget_life(self) -> None:
        if self._port is not None:
            self._port.die()
        if self.machines is not None:
            for quarter in self.quarters:
                quarter.watch.on_crashed(self.node_id)
        self._forget_said()
        self.machines = self._started = self._port = None

    # --- sending ---

    def _outlet(self, channel: str) -> Outlet[InChannel]:
        town, started = self.town, self._started
        pack = partial(self._pack, channel)
        if started is None:
            return Outlet(pack, town.whole_bytes)
        return Outlet(
            pack,
            town.whole_bytes,
            node=self.node_id,
            peers=town.peers(channel) if town.has_late else None,
            is_spare=started.replica.is_spare if town.has_spares else None,
        )

    def _pack(self, channel: str, message: BusMessage) -> InChannel:
        return InChannel(channel, self._through_codec(channel, message))

    def _say(self, channel: str, message: BusMessage) -> None:
        if id(message) not in self._said:
            if self.world.trace.is_on:
                self.world.note(self.name, f"says {summary(message)}")
            self.town.quarters[channel].watch.on_sent(self.node_id, message)
            self._said[id(message)] = message

    def _through_codec(self, channel: str, message: BusMessage) -> Received:
        carried = self._carried.get(id(message))
        if carried is not None:
            return carried[1]
        _, heard = self._decoder.decode(b"".join(self._encoders[channel].encode_parts(message)))
        event = Received(self.node_id, heard, self.disk_id)
        self._carried[id(message)] = message, event
        return event

    def _carry(self, message: BusMessage) -> BusMessage:
        """Carry a message to a machine of this node. With several channels the checkers see messages to
        others, too."""
        channel = next(iter(self._heads))
        if len(self._heads) == 1:
            self._say(channel, message)
        return self._through_codec(channel, message).message

    def _carry_of_role(self, message: BusMessage) -> BusMessage:
        """Carry a message among the roles of a lone node, unless it is lost."""
        carried = self._carry(message)
        if self._chance.random() >= self.town.habits.loss_probability:
            return carried
        self.world.probe(f"bus.lost.{type(message).__name__}")
        return _NOTHING

    def _carry_of_producer(self, message: BusMessage) -> BusMessage:
        """Carry a message of a lone node's producer: some are lost, late or repeated.

        On one node nothing does that; between nodes the network does, and no role may tell the difference.
        """
        chance = self._chance
        if (
            not isinstance(message, Data | ProducerOpen)
            or chance.random() >= self.town.habits.trouble_probability
        ):
            return self._carry(message)
        kind = chance.choice(("lost", "late", "late", "twice"))
        self.world.probe(f"bus.data_{kind}")
        if kind != "lost":
            again = Received(self.node_id, message)
            delay_ns = chance.randrange(20 * MILLISECOND_NS)
            self._later(self.life, delay_ns, lambda: self.tell(again))
        return self._carry(message) if kind == "twice" else _NOTHING

    def _forget_said(self) -> None:
        self._carried.clear()
        self._said.clear()

    # --- steps ---

    def _step_machines(self, events: list[NodeEvent]) -> Sequence[NodeEffect]:
        assert self.machines is not None, "a node that is down took a step"
        if self._port is not None:
            self._port.before_step(events)
        return self.machines.step(self.clock.now_ns(), self.clock.wall_ms(), events)

    def _after_step(self) -> None:
        self._forget_said()
        if self._port is not None:
            self._port.after_step()
            assert self.machines is not None, "a node that is down took a step"
            if not self._port.is_listening and self.machines.is_serving:
                self._port.is_listening = True

    def _next_deadline_ns(self) -> int | None:
        assert self.machines is not None, "a node that is down set its timer"
        return self.machines.next_deadline_ns()

    def _carry_out(self, effect: NodeEffect) -> None:
        if isinstance(effect, RecordRows):
            self._note_events(effect.rows)
            return
        if not isinstance(effect, InChannel):
            assert self._port is not None, f"{type(effect).__name__} on a node without clients"
            if self.world.trace.is_on:
                self.world.note(self.name, f"does {summary(effect)}")
            self._port.carry_out(effect)
            return
        channel, what = effect
        kind = type(what)
        if kind is bus.Send:
            self._say(channel, what.message)
            self._outlets[channel].send(what.to, what.message)
        elif kind is bus.Multicast:
            self._say(channel, what.message)
            self._outlets[channel].multicast(what.message)
        elif kind is bus.Reconfigured:
            self._go_over(channel, what.config)
        else:
            self._store(what)

    def _note_events(self, rows: Iterable[EventRow]) -> None:
        for row in rows:
            self.world.note(self.name, f"logs {row.event.kind.code}: {row.sentence}")
            self.world.probe(f"event.{row.event.kind.code}")

    def _go_over(self, channel: str, config: GroupConfig) -> None:
        self.world.probe("node.reconfigured")
        self.world.note(self.name, f"goes over to {summary(config)}")
        self._outlets[channel].settle()
        self._heads[channel] = self._heads[channel]._replace(config_id=config.config_id)
        self._encoders[channel] = codec.Encoder(self._heads[channel])
        replica, (newest, _) = self.replica, self.town.newest[channel]
        if replica is not None and config.config_id > newest.config_id:
            self.town.newest[channel] = config, replica.last
