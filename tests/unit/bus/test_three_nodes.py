"""Three nodes under loss, partition and crashes: the machines are written for sets of servers.

A small world of its own, with a heap of things to happen. What needs a checkpoint from another node is
not built yet, so checkpoints are rare here.

Act one: faults drawn from the seed. Whatever is applied anywhere must be one order.
Act two: the faults end, and everything submitted on a living node must be confirmed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from antiphon.bus import messages as m
from antiphon.bus.codec import decode, encode
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    DataRecord,
    Effect,
    EnvelopeConfirmed,
    Event,
    Multicast,
    Received,
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

SECOND = 1_000 * MS
OF_PRODUCER = m.Data | m.ProducerOpen | m.ProducerStateGet | m.FetchId
FOR_PRODUCER = heard_by(Machine.PRODUCER)


class Life:
    """One life of one node."""

    def __init__(self, world: World, node: int, disk: StageDisk, number: int) -> None:
        self.world, self.node, self.disk, self.number = world, node, disk, number
        self.payloads = MemoryPayloads()
        for append in disk.synced:
            if isinstance(append.record, DataRecord):
                self.payloads.write(append.record)
        run_id = b"node%02d, life%04d" % (node, number)
        recovered = recover(disk.found(), self.payloads)
        self.replica = Replica(world.config, node, run_id, self.payloads, JournalCounter(), recovered)
        self.producer = BusProducer(world.config, node, run_id)
        self.is_alive = True
        self.is_syncing = False
        self.applied_upto = 0
        self.unconfirmed: dict[int, bytes] = {}
        self._replica_hears: list[Event] = []
        self._producer_hears: list[Event] = []
        self._wakes: set[int] = set()

    def take(self, *events: Event) -> None:
        """Step until nothing is left to say, then see to disk and clock."""
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
            self._perform(self.replica.step(self.world.now_ns, heard))
            heard, self._producer_hears = self._producer_hears, []
            self._perform(self.producer.step(self.world.now_ns, heard))
        if self.disk.unsynced and not self.is_syncing:
            self.is_syncing = True
            index = self.disk.unsynced[-1].index
            self.world.after(self.world.random.randint(MS // 10, 5 * MS), lambda: self._sync(index))
        deadlines = [self.replica.next_deadline_ns(), self.producer.next_deadline_ns()]
        due = min(deadline for deadline in deadlines if deadline is not None)
        due = max(due, self.world.now_ns + 1)
        if due not in self._wakes:
            self._wakes.add(due)
            self.world.after(due - self.world.now_ns, lambda: self._wake(due))

    def _wake(self, due: int) -> None:
        self._wakes.discard(due)
        if self.is_alive:
            self.take()

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
                    self._send(self.world.config.nodes, message)
                    if isinstance(message, m.Heartbeat) and self.replica.is_serving:
                        self._send(self.world.config.nodes, m.Applied(message.epoch, self.applied_upto))
                case Apply(entry, payload):
                    self.applied_upto = self.world.check_applied(self.applied_upto, entry, payload)
                case EnvelopeConfirmed(tag, first):
                    assert self.world.place_of[self.unconfirmed.pop(tag)] == first
                case Alarm(text):
                    raise AssertionError(text)

    def _send(self, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        for node in nodes:
            if node != self.node:
                self.world.carry(self.node, node, message)
            elif isinstance(message, OF_PRODUCER):
                self._replica_hears.append(Received(node, message))
            elif type(message) in FOR_PRODUCER:
                self._producer_hears.append(Received(node, message))


class World:
    """Time, chance and the network between three nodes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.config = GroupConfig.of(
            "main",
            (1, 2, 3),
            window_entries=self.random.choice([4, 1_024]),
            lifetime=self.random.choice([40, 1 << 40]),
            fetch_entries_max=self.random.choice([3, 100]),
            tick_ms=300,
        )
        self.loss = self.random.choice([0.0, 0.05, 0.2])
        self.duplicates = self.random.choice([0.0, 0.2])
        self.apart: frozenset[int] = frozenset()
        self.order: dict[int, Entry] = {}
        self.place_of: dict[bytes, int] = {}
        self._tags = 0
        self.lives = {node: Life(self, node, StageDisk(), 0) for node in self.config.nodes}
        for life in self.lives.values():
            life.take()

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._order, action))

    def run(self, until_ns: int) -> None:
        while self._heap and self._heap[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()
        self.now_ns = until_ns

    def carry(self, sender: int, to: int, message: m.BusMessage) -> None:
        chance = self.random
        if chance.random() < self.loss or (sender in self.apart) != (to in self.apart):
            return
        data = encode(message, "main", 1, sender, bytes(16))
        for _ in range(2 if chance.random() < self.duplicates else 1):
            delay = chance.randint(MS // 20, 3 * MS if chance.random() < 0.9 else 40 * MS)
            self.after(delay, lambda: self._arrive(sender, to, data))

    def _arrive(self, sender: int, to: int, data: bytes) -> None:
        if self.lives[to].is_alive:
            self.lives[to].take(Received(sender, decode(data)[1]))

    # -- what happens ------------------------------------------------------------------------------

    def submit(self, node: int) -> None:
        life = self.lives[node]
        if life.is_alive:
            self._tags += 1
            count = self.random.randint(1, 3)
            payload = b"".join(command(f"{self._tags}.{row}") for row in range(count))
            life.unconfirmed[self._tags] = payload
            life.take(Submitted(self._tags, payload, count))

    def crash(self, node: int) -> None:
        life = self.lives[node]
        if life.is_alive:
            life.is_alive = False
            kept = self.random.randint(0, len(life.disk.unsynced))
            disk = StageDisk([*life.disk.synced, *life.disk.unsynced[:kept]])
            self.after(self.random.randint(10 * MS, 1_500 * MS), lambda: self._restart(life, disk))

    def _restart(self, former: Life, disk: StageDisk) -> None:
        life = self.lives[former.node] = Life(self, former.node, disk, former.number + 1)
        life.take()

    def split(self) -> None:
        self.apart = frozenset({self.random.randint(1, 3)})

    def heal(self) -> None:
        self.loss, self.duplicates, self.apart = 0.0, 0.0, frozenset()

    # -- what must hold ----------------------------------------------------------------------------

    def check_applied(self, upto: int, entry: Entry, payload: memoryview | None) -> int:
        assert entry.first == upto + 1, "a member applies without a gap"
        assert self.order.setdefault(entry.first, entry) == entry, "one order for all, for ever"
        if entry.kind is EntryKind.DATA:
            assert payload is not None
            place = self.place_of.setdefault(bytes(payload), entry.first)
            assert place == entry.first, "an envelope has one place"
        return entry.last


@pytest.mark.parametrize("seed", range(16))
def test_three_nodes_agree_on_one_order_and_lose_nothing(seed: int) -> None:
    world = World(seed)
    chance = world.random
    for _ in range(40):
        world.after(chance.randint(0, 5 * SECOND), lambda: world.submit(chance.randint(1, 3)))
    for _ in range(chance.choice([0, 2, 4])):
        world.after(chance.randint(0, 5 * SECOND), lambda: world.crash(chance.randint(1, 3)))
    for _ in range(chance.choice([0, 2])):
        world.after(chance.randint(0, 5 * SECOND), world.split)
    world.run(7 * SECOND)
    world.heal()
    world.run(16 * SECOND)
    lives = world.lives.values()
    assert sum(life.replica.state is State.LEADING for life in lives) == 1, f"seed {seed}: who leads?"
    assert len({life.applied_upto for life in lives}) == 1, f"seed {seed}: somebody lags"
    assert not any(life.unconfirmed for life in lives), f"seed {seed}: never confirmed"
