"""Several whole nodes in one process: real machines and journals, an invented network, disks and clock.

Nodes can be stopped, lose their power or their disk, and begin again; messages pass through the codec and
may be lost on the way. A test says what is submitted, and looks at the replicas. The simulator's `SimNode`
would hide what these tests are about: what `start` notes, raises and puts aside on a damaged disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from antiphon.bus import codec
from antiphon.bus import effects as bus
from antiphon.bus import messages as m
from antiphon.bus.group import GroupConfig
from antiphon.event_log import EventLogSettings, EventRow
from antiphon.events import DISK_ALARM, DISK_LOW, RECORD_MENDED, Severity
from antiphon.journal.format import Settings
from antiphon.journal.journal import Journal
from antiphon.message_manager.manager import MessageManager
from antiphon.node import InChannel, NodeEvent, RecordRows
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import SimDisk
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.world import MILLISECOND_NS, World
from antiphon.startup import CHANNEL, CLUSTER, Identity, StartSettings, start
from tests.browsing import browse, numbered, shown

SEGMENTS = Settings(segment_bytes=160 * 1024, order_blocks=8, spares_max=2)


class Life:
    """One life of one node."""

    def __init__(
        self, cluster: Cluster, node_id: int, disk: SimDisk, run_id: bytes, distrusted: str = ""
    ) -> None:
        self.cluster, self.node_id, self.disk = cluster, node_id, disk
        identity = Identity(disk_id=cluster.chance.randbytes(16), run_id=run_id, start_s=1)
        settings = StartSettings(group=cluster.config, events=cluster.events)
        started = start(disk, SEGMENTS, identity, settings, node_id, distrusted=distrusted)
        journal, found = started.journal, started.found
        self.journal, self.node, self.manager = journal, started.node, started.manager
        self.disk_id = found.disk_id
        self.notes = started.notes
        self.parts = self.node.channels[CHANNEL]
        self.replica = started.replica
        self.is_alive = True
        self.alarms: list[str] = list(started.alarms)
        # The events that it has logged.
        self.rows: list[EventRow] = []
        self._tags = count(1)
        self._events: list[NodeEvent] = []
        self._is_planned = False
        self._storage = ChannelStorage(
            cluster.world,
            node_id,
            disk,
            journal,
            found,
            started.counter,
            started.manager,
            Watch(()),
            tell=lambda event: self.take(event),
            later=lambda delay_ns, action: self.later(delay_ns, action),
        )
        self._plan()

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.cluster.world.after(delay_ns, lambda: action() if self.is_alive else None)

    def take(self, event: bus.Event) -> None:
        self._events.append(InChannel(CHANNEL, event))
        self._plan()

    def submit(self, payload: bytes, commands: int) -> None:
        """Have an envelope ordered by this node's producer; nobody waits for it."""
        self.parts.for_producer.append(bus.Submitted(-1_000_000 - next(self._tags), payload, commands))
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self.later(MILLISECOND_NS // 100, self._step)

    def _step(self) -> None:
        self._is_planned = False
        events, self._events = self._events, []
        now_ns = self.cluster.world.now_ns
        for effect in self.node.step(now_ns, now_ns // MILLISECOND_NS, events):
            if isinstance(effect, RecordRows):
                self.rows += effect.rows
                # What was found at the start is in `notes` and `alarms`.
                self.alarms += [
                    row.sentence
                    for row in effect.rows
                    if (row.severity is Severity.ERROR or row.event.kind is RECORD_MENDED)
                    and row.event.kind not in (DISK_ALARM, DISK_LOW)
                ]
                continue
            if not isinstance(effect, InChannel):
                continue
            match effect.what:
                case bus.Send(to=to, message=message):
                    self.cluster.carry(self, to, message)
                case bus.Multicast(message=message):
                    for to in self.cluster.config.nodes:
                        if to != self.node_id:
                            self.cluster.carry(self, to, message)
                case bus.Reconfigured():
                    # The nodes stay the same.
                    pass
                case what:
                    self._storage.carry_out(what)
        self._storage.flush()
        due = self.node.next_deadline_ns()
        if due is not None:
            self.later(max(due - now_ns, MILLISECOND_NS // 10), self._plan)


class Cluster:
    """Nodes 1, 2, 3 … of one channel, and what happens between them."""

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        *,
        lists_disks: bool = False,
        events: EventLogSettings | None = None,
        **settings: int,
    ) -> None:
        self.events = events or EventLogSettings()
        self.world = World(seed)
        self.chance: random.Random = self.world.random("cluster")
        ids = tuple([self.chance.randbytes(16) for _ in range(nodes)]) if lists_disks else ()
        self.config = GroupConfig.of(CHANNEL, tuple(range(1, nodes + 1)), disk_ids=ids, **settings)
        self.loss = 0.0
        self.heard: list[tuple[int, int, m.BusMessage]] = []
        self.on_said: Callable[[int, int, m.BusMessage], None] = lambda sender, to, message: None
        self.is_lost: Callable[[m.BusMessage], bool] = lambda message: False
        self._disks: dict[int, SimDisk] = {}
        self._runs = 0
        self.lives: dict[int, Life] = {}
        for node_id in self.config.nodes:
            disk = self._disks[node_id] = SimDisk(self.world, f"disk/{node_id}")
            if lists_disks:
                # Only the very first time: whoever comes with another disk is another.
                Journal.format(disk, SEGMENTS, self.config.disk_of(node_id), node_id, CLUSTER)
            self.start(node_id)

    def start(self, node_id: int, distrusted: str = "") -> Life:
        self._runs += 1
        run_id = b"node%02d, life%04d" % (node_id, self._runs)
        life = self.lives[node_id] = Life(self, node_id, self._disks[node_id], run_id, distrusted)
        return life

    def stop(self, node_id: int, *, wipes: bool = False) -> None:
        """The power goes; with `wipes`, the disk too."""
        life = self.lives.pop(node_id)
        life.is_alive = False
        life.disk.lose_power()
        if wipes:
            self._disks[node_id] = SimDisk(self.world, f"disk/{node_id}/{self._runs}")

    def disk_of(self, node_id: int) -> SimDisk:
        return self._disks[node_id]

    def carry(self, sender: Life, to: int, message: m.BusMessage) -> None:
        self.on_said(sender.node_id, to, message)
        if self.chance.random() < self.loss or self.is_lost(message):
            return
        header = (CHANNEL, self.config.config_id, sender.node_id, bytes(16), sender.disk_id)
        data = codec.encode(message, *header)

        def arrive() -> None:
            life = self.lives.get(to)
            if life is not None:
                found, message = codec.decode(data)
                life.take(bus.Received(sender.node_id, message, found.disk_id))

        self.world.after(self.chance.randint(MILLISECOND_NS // 20, 2 * MILLISECOND_NS), arrive)

    def run_ms(self, ms: int, done: Callable[[], bool] | None = None) -> bool:
        return self.world.run(self.world.now_ns + ms * MILLISECOND_NS, done)

    def leader(self) -> int:
        """Who serves, 0 if nobody does."""
        return next((node_id for node_id, life in self.lives.items() if life.replica.is_serving), 0)

    def is_level(self) -> bool:
        """Have all nodes that live applied the same?"""
        return len({life.replica.applied for life in self.lives.values()}) == 1


def stored(manager: MessageManager) -> dict[int, list[tuple[int, bytes]]]:
    """Every stored message of a replica: number and body, by destination, read from its journal."""
    rows: dict[int, list[tuple[int, bytes]]] = {}
    for destination in manager.state.directory:
        rows[destination.id] = []
        start, more = 1, True
        while more:
            manager.receive(0, 1, browse(destination.id, start))
            (page,) = [
                shown(effect.message)
                for effect in manager.flush(0, 0)
                if isinstance(effect, bus.Send) and isinstance(effect.message, m.RangeReply)
            ]
            rows[destination.id] += numbered(page)
            start, more = page.through + 1, bool(page.ends)
    return rows
