"""A small cluster: whole nodes joined by a network that delivers, until a test cuts it.

Time is a heap of things to happen. Every node has a replica, a producer and a disk with an id of its own; a
crash keeps what was synced, a wiped node comes back with an empty disk and another id. Whatever is applied
anywhere must be one order.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from antiphon.bus import messages as m
from antiphon.bus.codec import decode, encode
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    ConfigProposed,
    DataRecord,
    Effect,
    EnvelopeConfirmed,
    Event,
    Multicast,
    Received,
    Reconfigured,
    Send,
    Submitted,
    Synced,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import recover
from antiphon.bus.replica import Replica
from antiphon.bus.schema import Machine, heard_by
from antiphon.bus.sequencer import State
from tests.unit.bus.stage import MemoryPayloads, StageDisk, command

OF_PRODUCER = m.Data | m.ProducerOpen | m.ProducerStateGet | m.FetchId
FOR_PRODUCER = heard_by(Machine.PRODUCER)


def disk_id(node: int, number: int = 0) -> bytes:
    return b"disk%02d of node%02d" % (number, node)


class Node:
    """One life of one node."""

    def __init__(self, cluster: Cluster, node: int, disk: StageDisk, disk_number: int, life: int) -> None:
        self.cluster, self.node, self.disk = cluster, node, disk
        self.disk_number, self.life = disk_number, life
        self.payloads = MemoryPayloads()
        for append in disk.synced:
            if isinstance(append.record, DataRecord):
                self.payloads.write(append.record)
        config = cluster.config
        run_id = b"node%02d, life%04d" % (node, life)
        keeps_state = node in config.data_servers
        self.replica = Replica(
            config,
            node,
            run_id,
            self.payloads,
            JournalCounter(),
            recover(disk.found(), self.payloads, keeps_state=keeps_state),
            disk_id=self.disk_id if config.disk_ids else b"",
        )
        self.producer = BusProducer(config, node, run_id)
        # Whom a multicast reaches: what comes before `Reconfigured` is for those of the configuration before.
        self.members = self.replica.config.nodes
        self.is_alive = True
        self.is_syncing = False
        self.applied: list[Entry] = []
        self.configs: list[GroupConfig] = []
        self.unconfirmed: dict[int, bytes] = {}
        self._replica_hears: list[Event] = []
        self._producer_hears: list[Event] = []

    @property
    def disk_id(self) -> bytes:
        return disk_id(self.node, self.disk_number)

    @property
    def is_leading(self) -> bool:
        return self.is_alive and self.replica.state is State.LEADING

    def take(self, *events: Event) -> None:
        for event in events:
            if not isinstance(event, Submitted):
                self._replica_hears.append(event)
            if isinstance(event, Submitted) or (
                isinstance(event, Received) and type(event.message) in FOR_PRODUCER
            ):
                self._producer_hears.append(event)
        is_first = True
        while is_first or self._replica_hears or self._producer_hears:
            is_first = False
            heard, self._replica_hears = self._replica_hears, []
            self._perform(self.replica.step(self.cluster.now_ns, heard))
            heard, self._producer_hears = self._producer_hears, []
            self._perform(self.producer.step(self.cluster.now_ns, heard))
        if self.disk.unsynced and not self.is_syncing:
            self.is_syncing = True
            index = self.disk.unsynced[-1].index
            self.cluster.after(MS, lambda: self._sync(index))
        times = [self.replica.next_deadline_ns(), self.producer.next_deadline_ns()]
        due = min([time for time in times if time is not None], default=None)
        if due is not None:
            self.cluster.wake(self, max(due, self.cluster.now_ns + 1))

    def _sync(self, index: int) -> None:
        if self.is_alive:
            self.is_syncing = False
            self.disk.synced += [append for append in self.disk.unsynced if append.index <= index]
            self.disk.unsynced = [append for append in self.disk.unsynced if append.index > index]
            self.take(Synced(index))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append(_, record):
                    self.disk.unsynced.append(effect)
                    if isinstance(record, DataRecord):
                        self.payloads.write(record)
                case Send(to, message):
                    self._send((to,), message)
                case Multicast(message):
                    self._send(self.members, message)
                    if isinstance(message, m.Heartbeat) and self.replica.is_serving:
                        self._send(self.members, m.Applied(message.epoch, self.replica.applied))
                case Apply(entry, payload):
                    self.applied.append(entry)
                    self.cluster.check_applied(entry, payload)
                case EnvelopeConfirmed(tag):
                    self.unconfirmed.pop(tag)
                case Reconfigured(config):
                    self.configs.append(config)
                    self.members = config.nodes
                    self.producer.reconfigure(config)
                case Alarm(text):
                    raise AssertionError(text)

    def _send(self, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        for node in nodes:
            if node != self.node:
                self.cluster.carry(self, node, message)
            elif isinstance(message, OF_PRODUCER):
                self._replica_hears.append(Received(node, message, self.disk_id))
            elif type(message) in FOR_PRODUCER:
                self._producer_hears.append(Received(node, message, self.disk_id))


class Cluster:
    """Time and the network between some nodes, all with the same first configuration."""

    def __init__(
        self,
        config: GroupConfig,
        nodes: tuple[int, ...] = (),
        seed: int = 1,
    ) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._tags = 0
        self._wakes: dict[tuple[int, int, int], bool] = {}
        self.cut_off: tuple[int, ...] = ()
        self.loss = 0.0
        self.sent: list[tuple[int, int, m.BusMessage]] = []
        self.order: dict[int, Entry] = {}
        self.nodes: dict[int, Node] = {}
        for node in nodes or config.nodes:
            self.start(node)

    # -- doing -------------------------------------------------------------------------------------

    def start(self, node: int, *, is_wiped: bool = False) -> Node:
        """The first life of a node, or the next one, with what its disk has, or with a new disk."""
        before = self.nodes.get(node)
        disk, number, life = StageDisk(), 0, 0
        if before is not None:
            number, life = before.disk_number + is_wiped, before.life + 1
            if not is_wiped:
                disk = StageDisk([*before.disk.synced])
        started = self.nodes[node] = Node(self, node, disk, number, life)
        started.take()
        return started

    def crash(self, node: int) -> None:
        self.nodes[node].is_alive = False

    def restart(self, node: int, *, is_wiped: bool = False) -> Node:
        self.crash(node)
        return self.start(node, is_wiped=is_wiped)

    def submit(self, node: int, times: int = 1) -> None:
        for _ in range(times):
            self._tags += 1
            payload = command(f"{self._tags}")
            self.nodes[node].unconfirmed[self._tags] = payload
            self.nodes[node].take(Submitted(self._tags, payload, 1))

    def propose(self, config: GroupConfig) -> None:
        """Propose a configuration, again and again until its servers have shown that they are ready."""
        while self.has_leader and self.leader.replica.config.config_id < config.config_id:
            leader = self.leader
            last = leader.replica.last
            leader.take(ConfigProposed(config))
            if leader.replica.last > last:
                return
            self.run(10)

    def run(self, ms: int) -> None:
        until = self.now_ns + ms * MS
        while self._heap and self._heap[0][0] <= until:
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()
        self.now_ns = until

    def run_until(self, is_so: Callable[[], bool], ms_max: int = 20_000) -> None:
        """Until something is so, or the test has failed."""
        end = self.now_ns + ms_max * MS
        while not is_so():
            assert self.now_ns < end, f"not within {ms_max} ms"
            self.run(10)

    # -- looking -----------------------------------------------------------------------------------

    @property
    def leader(self) -> Node:
        (leader,) = [node for node in self.nodes.values() if node.is_leading]
        return leader

    @property
    def has_leader(self) -> bool:
        return sum(node.is_leading for node in self.nodes.values()) == 1

    @property
    def is_calm(self) -> bool:
        """One leads, everything is confirmed, and all who live have applied the same."""
        living = [node for node in self.nodes.values() if node.is_alive]
        applied = {node.replica.applied for node in living}
        return self.has_leader and len(applied) == 1 and not any(node.unconfirmed for node in living)

    def said(self, kind: type, by: int | None = None) -> list[m.BusMessage]:
        return [message for sender, _, message in self.sent if type(message) is kind and by in (None, sender)]

    def check_applied(self, entry: Entry, payload: memoryview | None) -> None:
        assert self.order.setdefault(entry.first, entry) == entry, "one order for all, for ever"
        assert (payload is not None) == (entry.kind is EntryKind.DATA)

    # -- inside ------------------------------------------------------------------------------------

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._order, action))

    def wake(self, node: Node, due: int) -> None:
        key = (node.node, node.life, due)
        if key not in self._wakes:
            self._wakes[key] = True
            self.after(due - self.now_ns, lambda: self._on_wake(node, key))

    def _on_wake(self, node: Node, key: tuple[int, int, int]) -> None:
        del self._wakes[key]
        if node.is_alive:
            node.take()

    def carry(self, sender: Node, to: int, message: m.BusMessage) -> None:
        if sender.is_alive:
            self.sent.append((sender.node, to, message))
        if (sender.node in self.cut_off) != (to in self.cut_off) or self.random.random() < self.loss:
            return
        config_id = sender.replica.config.config_id
        data = encode(message, "main", config_id, sender.node, bytes(16), sender.disk_id)
        self.after(self.random.randint(MS // 20, 2 * MS), lambda: self._arrive(to, data))

    def _arrive(self, to: int, data: bytes) -> None:
        node = self.nodes.get(to)
        if node is not None and node.is_alive:
            header, message = decode(data)
            node.take(Received(header.sender, message, header.disk_id))
