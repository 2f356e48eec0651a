"""The node workload: clients publish and consume through one node that crashes and comes back.

Act one, safety: clients work while the node loses its power, its process is paused, connections break,
clients die and disks stall.
Act two, liveness: nothing fails any more and the disk is quick. Every command must be confirmed, refused or
given up, and the queues must be drained to the last message; only then is the history judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim import faults, limits
from antiphon.sim.checkers.acknowledgement import FinalAcknowledgements
from antiphon.sim.checkers.attachments import Attachments, Expiries
from antiphon.sim.checkers.dead_letters import DeadLetters
from antiphon.sim.checkers.history import TotalQueue
from antiphon.sim.checkers.ids import IdsKept
from antiphon.sim.checkers.message_groups import GroupsKept
from antiphon.sim.checkers.model import Queues, Topics
from antiphon.sim.checkers.order import Checkpoints, Durability, Monotone, Order
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.restores import Restores
from antiphon.sim.checkers.rules import RulesKept
from antiphon.sim.checkers.selections import Selections
from antiphon.sim.checkers.true_time import Lifetimes, LogTimePace
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.clients.library import LibraryQueueClient
from antiphon.sim.clients.process import (
    IDS,
    KEYS,
    RULES,
    SELECTORS,
    ClientHall,
    ClientProcess,
    draw_ids,
    draw_keys,
    draw_rules,
    draw_selectors,
)
from antiphon.sim.clients.queues import RudeProducer, RudeReader
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.clients.sharers import SHARING
from antiphon.sim.disk import DiskProfile, SimDisk
from antiphon.sim.disk_faults import DiskFaults
from antiphon.sim.faults import FaultTable
from antiphon.sim.links import LinkHabits
from antiphon.sim.network import Network
from antiphon.sim.runner import Quarter, Town
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.acts import WorkloadRun
from antiphon.sim.workloads.profile import PROFILES, Profile, draw
from antiphon.sim.world import MILLISECOND_NS, ClockSteps

_NODE = 1
_RESTART_NS = 50 * MILLISECOND_NS


class NodeRun(WorkloadRun[Profile]):
    look_ns = 5 * MILLISECOND_NS
    total_kind: type[TotalQueue] = TotalQueue
    redelivery_limits = (0, 0, 10, 1, 2)
    profiles = tuple(PROFILES)

    def __init__(self, seed: int, trace: Trace, profile: str = "", without: Sequence[str] = ()) -> None:
        super().__init__(seed, trace, without)
        self.profile = draw(self._chance, profile)
        self._may_freeze = not profile
        self._is_named = bool(profile)
        self._may_share = not profile and SHARING not in without
        self.profile.node.sizes = limits.sizes(seed, profile)
        self.adjust(self.profile)
        if not profile and RULES not in without:
            draw_rules(self.world.random("rules"), self.profile.clients)
        if not profile and IDS not in without:
            draw_ids(self.world.random("ids"), self.profile.clients)
        if not profile and SELECTORS not in without:
            draw_selectors(self.world.random("selectors"), self.profile.clients, self.profile.node)
        if not profile and KEYS not in without:
            draw_keys(self.world.random("keys"), self.profile.clients)
        self._total = self.total_kind(self.world)
        self._attachments = Attachments(self.world)
        expiry_ms = self.profile.node.session_expiry_ms
        self._expiries = Expiries(self.world, self._attachments, expiry_ms)
        self._watch = self._watch_by(self._checkers())
        self._network = Network(self.world)
        self._network.habits = self.profile.network
        disk = SimDisk(self.world)
        disk.habits = self.profile.disk
        quarter = Quarter(self.profile.node.group(_NODE), self._watch)
        town = Town(self.world, [quarter], self.profile.node, LinkHabits(), self._watch)
        town.restart_ns = _RESTART_NS
        self.node = town.add_manager(_NODE, quarter, disk, has_clients=True)
        made = DiskProfile() if profile else None
        self._disk_faults = DiskFaults(town, self.profile.safety_ns, made)
        if self.profile.is_clock_unsteady:
            self.node.clock.make_unsteady()
        self._clock_steps = ClockSteps(self.world, [self.node.clock])
        self._hall = ClientHall(
            self.world,
            self._network,
            self._watch,
            lambda address: self.node.port_if_serving(),
            lambda: self._model.log_time_ms,
        )
        self._clients = [*self._producers(), *self._consumers()]

    def adjust(self, profile: Profile) -> None:
        """Nothing; the test of an earlier failure says here what made its seed special."""

    def _checkers(self) -> list[Checker]:
        # `Durability` reads what `Order` and `Queues` have seen: those two cannot be left out.
        order, queues = Order(self.world), Queues(self.world)
        self._model = queues
        self._total.expired, self._total.worn_out = queues.expired, queues.worn_out
        return [
            order,
            queues,
            Durability(self.world, order, queues),
            Monotone(self.world),
            WriteBeforeSend(self.world),
            Checkpoints(self.world),
            Restores(self.world),
            FinalAcknowledgements(self.world),
            Redeliveries(self.world),
            DeadLetters(self.world),
            RulesKept(self.world, self._log_time_of),
            IdsKept(self.world, queues),
            Selections(self.world),
            GroupsKept(self.world),
            *self._of_time(None),
            self._total,
        ]

    def _log_time_of(self, node: int) -> int | None:
        return self.node.log_time_ms

    def _of_time(self, topics: Topics | None) -> list[Checker]:
        """The checkers that know the time of the world."""
        pace = LogTimePace(self.world, self.profile.node.log_time_interval_ms)
        return [pace, Lifetimes(self.world, topics), self._attachments, self._expiries]

    def _begin_to_reject(self, limit: int) -> None:
        if limit and not self._is_named:
            self.profile.clients.reject_probability = 0.05

    def figures(self) -> dict[str, int]:
        return self._total.figures

    def _begin(self) -> None:
        self.node.start()
        for client in self._clients:
            client.connect_later()
        self._plan_faults()
        self._clock_steps.plan(self.profile.safety_ns, always=self.profile.are_clocks_set)

    def _judge(self) -> None:
        self._watch.at_quiet(self._held())

    def _machines(self) -> dict[str, list[Any]]:
        return {"the node": self.node.all_machines(), **{one.name: one.machines() for one in self._clients}}

    def _disks_at_rest(self) -> Iterator[tuple[str, MemoryDisk, ChannelState | None]]:
        yield "the node", self.node.disk, self._state

    @property
    def _state(self) -> ChannelState:
        """The state of the channel at the node, which is up."""
        assert self.node.manager is not None, "a node that is down knows nothing"
        return self.node.manager.state

    def _held(self) -> dict[int, int]:
        return {queue.id: queue.live.count for queue in self._state.directory}

    def _waiting(self) -> dict[int, int]:
        """The queues with messages that a consumer is still to get; no client consumes dead messages."""
        queues = {one.id for one in self._state.directory if one.is_reserved}
        return {id: live for id, live in self._held().items() if live and id not in queues}

    def _queue(self, number: int) -> str:
        return f"queue:q{number % self.profile.queues}"

    def _producers(self) -> list[ClientProcess]:
        share = self.profile.messages // self.profile.producers + 1
        return [self._producer(number, share) for number in range(self.profile.producers)]

    def _producer(self, number: int, share: int) -> ClientProcess:
        name, queue = f"producer{number}", self._queue(number)
        if self._chance.random() < self.profile.library_share:
            return LibraryQueueClient(name, self._hall, self.profile.clients, queue, share)
        client = RudeClient(name, self._hall, self.profile.clients)
        sessions = self._chance.choice((1, 1, 2))
        for session in range(sessions):
            queue = self._queue(number + session)
            RudeProducer(client, queue, share // sessions + 1, name=f"{name}/{session}")
        return client

    def _consumers(self) -> list[ClientProcess]:
        # Every queue has a consumer, or it could not be drained.
        count = max(self.profile.consumers, self.profile.queues)
        consumers = [self._consumer(number) for number in range(count)]
        for one in consumers[self.profile.queues :]:
            one.may_select = True
        return consumers

    def _consumer(self, number: int) -> ClientProcess:
        name, queue = f"consumer{number}", self._queue(number)
        if self._chance.random() < self.profile.library_share:
            return LibraryQueueClient(name, self._hall, self.profile.clients, queue)
        client = RudeClient(name, self._hall, self.profile.clients)
        RudeReader(client, queue)
        return client

    def _plan_faults(self) -> None:
        may_freeze = self._may_freeze and faults.are_drawn
        table = FaultTable(self.world, self._chance, self.profile.safety_ns, may_freeze=may_freeze)
        table.plan_rows(
            self.profile,
            {
                "crashes": self.node.crash,
                "stops": self.node.stop,
                "power_cuts": self._cut_power_soon,
                "pauses": lambda: self._pause(table),
                "breaks": self._break,
                "client_crashes": lambda: self._chance.choice(self._clients).crash(),
                "moves": lambda: self._chance.choice(self._clients).move(),
                "clock_jumps": self.node.clock.jump,
            },
        )
        self._disk_faults.plan()

    def _cut_power_soon(self) -> None:
        self.node.disk.cut_after = self._chance.randrange(30)

    def _pause(self, table: FaultTable) -> None:
        self.world.probe("node.paused")
        table.sleep(self.node, self._chance.randint(5, 100) * MILLISECOND_NS)

    def _break(self) -> None:
        connected = [client.connection for client in self._clients if client.connection is not None]
        if connected:
            self.world.probe("network.connection_broken")
            self._chance.choice(connected).break_off()

    def _heal(self) -> None:
        self.profile.network.stall_probability = 0.0
        clients = self.profile.clients
        clients.return_probability = clients.reopen_probability = clients.reject_probability = 0.0
        clients.publish_pause_ns = min(clients.publish_pause_ns, 2 * MILLISECOND_NS)
        clients.take_pause_ns = MILLISECOND_NS
        self.profile.node.trouble_probability = self.profile.node.loss_probability = 0.0
        self._disk_faults.end()
        self.node.heal()
        super()._heal()

    def _is_quiet(self) -> bool:
        if self.node.port_if_serving() is None or not all(client.is_idle for client in self._clients):
            return False
        return not self._waiting() and not self._left_behind()

    def _left_behind(self) -> list[str]:
        """Sessions and messages that go by themselves, and are still there."""
        return self._expiries.what_is_open(self._state)

    def _what_is_open(self) -> str:
        words = [f"the node is {'up' if self.node.is_up else 'down'}"]
        words += [
            f"{client.name} waits for {client.waits_for}" for client in self._clients if not client.is_idle
        ]
        if self.node.is_up:
            words += [f"queue {queue} holds {live}" for queue, live in self._waiting().items()]
            words += self._left_behind()
        return "; ".join(words)
