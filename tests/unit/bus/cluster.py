"""A small cluster for tests of the bus: the simulator's nodes, on a network and disks without faults.

The nodes are `BusRunner`s, with the real codec, journal and keeper. A test submits, crashes, replaces disks
and lets time pass; a crash keeps what was synced. Whatever is applied anywhere must be one order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from antiphon.bus import messages as m
from antiphon.bus.effects import ConfigProposed, Event, Received
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.sequencer import State
from antiphon.sim.bus.runner import BusRunner, Hall
from antiphon.sim.checkers.watch import Checker, Watch
from antiphon.sim.disk import DiskHabits, SimDisk
from antiphon.sim.links import LinkHabits, Links
from antiphon.sim.world import World
from tests.stage import command


def disk_id(node: int, number: int = 0) -> bytes:
    return b"disk%02d of node%02d" % (number, node)


class Node(BusRunner):
    """All lives of one node."""

    @property
    def is_leading(self) -> bool:
        return self.replica is not None and self.replica.state is State.LEADING

    def take_now(self, event: Event) -> None:
        """Something happens, and the node takes its step at once."""
        self.tell(event)
        self._step_timer.cancel()
        self._guarded_step()


class OneOrder(Checker):
    """Notes what every node applied in its present life."""

    promise = "one order for all, for ever"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.order: dict[int, Entry] = {}
        self.applied: dict[int, list[Entry]] = defaultdict(list)

    def on_crashed(self, node: int) -> None:
        self.applied[node] = []

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        self.applied[node].append(entry)
        assert self.order.setdefault(entry.first, entry) == entry, self.promise
        assert (payload is not None) == (entry.kind is EntryKind.DATA)


class NotedLinks(Links[Received]):
    """Notes what left for whom."""

    sent: list[tuple[int, int, m.BusMessage]]

    def send(self, sender: int, to: int, event: Received) -> None:
        self.sent.append((sender, to, event.message))
        super().send(sender, to, event)


class Cluster:
    """Nodes that have the same first configuration."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.world = World(seed=1)
        self.sent: list[tuple[int, int, m.BusMessage]] = []
        self._seen = OneOrder(self.world)
        self.order, self.applied = self._seen.order, self._seen.applied
        self._hall = Hall(self.world, config, LinkHabits(), Watch([self._seen]))
        self._hall.links = NotedLinks(self.world, LinkHabits(latency_ns=MS), self._hall._arrive)
        self._hall.links.sent = self.sent
        self._disks: dict[int, int] = defaultdict(int)
        self._submitted = 0
        self.nodes: dict[int, Node] = self._hall.runners
        for node in config.nodes:
            self.nodes[node] = Node(self._hall, node, lambda node=node: self._new_disk(node))
        for node in self.nodes.values():
            node.start()

    def _new_disk(self, node: int) -> tuple[SimDisk, bytes]:
        disk, number = SimDisk(self.world, f"disk/{node}"), self._disks[node]
        disk.habits = DiskHabits(sync_ns=MS, styles=("nothing",))
        self._disks[node] += 1
        return disk, disk_id(node, number)

    # -- doing -------------------------------------------------------------------------------------

    def crash(self, node: int) -> None:
        self.nodes[node].leave()

    def start(self, node: int) -> Node:
        """The next life of a node that is down, with what its disk has."""
        self.nodes[node].come_back()
        return self.nodes[node]

    def restart(self, node: int, *, is_wiped: bool = False) -> Node:
        """The next life of a node, perhaps with an empty disk."""
        runner = self.nodes[node]
        runner.is_gone = True
        if is_wiped:
            runner.wipe()
        else:
            runner.leave()
        return self.start(node)

    def submit(self, node: int, times: int = 1) -> None:
        for _ in range(times):
            self._submitted += 1
            self.nodes[node].submit(command(f"{self._submitted}"), 1)

    def propose(self, config: GroupConfig) -> None:
        """Propose a configuration, again and again until its servers have shown that they are ready."""
        while self.has_leader and self.leader.replica.config.config_id < config.config_id:
            leader = self.leader
            last = leader.replica.last
            leader.take_now(ConfigProposed(config))
            if leader.replica.last > last:
                return
            self.run(10)

    def run(self, ms: int) -> None:
        self.world.run(self.world.now_ns + ms * MS)

    def run_until(self, is_so: Callable[[], bool], ms_max: int = 20_000) -> None:
        """Until something is so, or the test has failed."""
        end_ns = self.world.now_ns + ms_max * MS
        while not is_so():
            assert self.world.now_ns < end_ns, f"not within {ms_max} ms"
            self.run(10)

    # -- looking -----------------------------------------------------------------------------------

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

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
        applied = {node.replica.applied for node in self.living}
        return self.has_leader and len(applied) == 1 and not any(node.open_tags for node in self.living)

    def said(self, kind: type, by: int | None = None) -> list[m.BusMessage]:
        return [message for sender, _, message in self.sent if type(message) is kind and by in (None, sender)]
