"""The cluster workload: clients publish and consume through client managers, and message managers fail over.

Act one, safety: clients work while nodes of both tiers crash and sleep, the network between them loses,
repeats, delays and parts, connections break and clients move from one client manager to another, also away
from one that only sleeps. Whatever arrives must keep the promises.
Act two, liveness: nothing fails any more. Everything that is not given up must be confirmed or refused,
queues and subscriptions must be drained to the last message, and all replicas must be equal; only then can
the history be judged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon.bus.planted import NONE
from antiphon.sim.checkers.acknowledgement import Acknowledgements
from antiphon.sim.checkers.checkpoint import Checkpoints
from antiphon.sim.checkers.durability import Confirmations
from antiphon.sim.checkers.order import Order
from antiphon.sim.checkers.tiers import Convergence, Destinations, Primaries, Reads, TotalDestinations
from antiphon.sim.checkers.watch import Checker, NodeFacts, Watch
from antiphon.sim.disk import SimDisk
from antiphon.sim.network import ClientPort, Network
from antiphon.sim.tiers.faults import Faults
from antiphon.sim.tiers.profile import MADE_FOR, ClusterProfile, draw
from antiphon.sim.tiers.runner import DoorRunner, ManagerRunner, Quarter, Town
from antiphon.sim.trace import Trace, summary
from antiphon.sim.workloads.client import ConsumerSession, ProducerSession, SimClient
from antiphon.sim.workloads.library import LibraryClient
from antiphon.sim.workloads.process import ClientProcess, Hall
from antiphon.sim.workloads.topic import SETTINGS, PublisherSession, SubscriberSession
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Violation, World

_LIVENESS_NS = 20 * SECOND_NS
_LOOK_NS = 20 * MILLISECOND_NS
_SESSION_EXPIRY_SHORT_MS = 1_000


class ClusterRun:
    """One run of the workload."""

    profiles = tuple(MADE_FOR)

    def __init__(
        self, seed: int, trace: Trace, planted: str = "", profile: str = "", without: Sequence[str] = ()
    ) -> None:
        self.world = World(seed, trace)
        self._chance: random.Random = self.world.random("workload")
        self.profile: ClusterProfile = draw(self._chance, profile)
        self.adjust(self.profile)
        self._convergence = Convergence(self.world)
        self._total = TotalDestinations(self.world)
        self._watch = Watch([one for one in self._checkers() if type(one).__name__ not in without])
        disk_ids = self.world.random("disk ids")
        self._quarter = Quarter(self.profile.group(lambda: disk_ids.randbytes(16)), self._watch)
        self.town = Town(self.world, [self._quarter], self.profile.node, self.profile.links, self._watch)
        self.town.planted = frozenset([planted]) if planted else NONE
        self._add_nodes()
        self._network = Network(self.world)
        self._network.habits = self.profile.network
        self._hall = Hall(self.world, self._network, self._watch, self._port)
        self.clients = [*self._producers(), *self._consumers(), *self._of_topics()]
        self.faults = Faults(self.town, self.profile, self.clients)

    def adjust(self, profile: ClusterProfile) -> None:
        """Nothing; the test of a mistake that was found says here what made its seed special."""

    def _checkers(self) -> list[Checker]:
        # `Confirmations`, `Reads` and the history read what `Order` and `Destinations` have seen.
        order, destinations = Order(self.world), Destinations(self.world)
        destinations.is_exclusive = self.profile.is_gentle
        self._total.topics = destinations
        return [
            order,
            destinations,
            Confirmations(self.world, order, destinations),
            Checkpoints(self.world),
            Acknowledgements(self.world),
            Primaries(self.world),
            Reads(self.world, destinations),
            self._convergence,
            self._total,
        ]

    def _add_nodes(self) -> None:
        for node in self.profile.servers:
            disk = SimDisk(self.world, f"disk/{node}")
            disk.habits = self.profile.disk
            self.town.add(ManagerRunner(self.town, node, disk, self._quarter))
        for node in self.profile.client_managers:
            self.town.add(DoorRunner(self.town, node))
        if self.profile.are_clocks_unsteady:
            for runner in self.town.runners.values():
                runner.clock.make_unsteady()

    def _port(self, address: int) -> ClientPort | None:
        doors = list(self.town.doors.values())
        return doors[address % len(doors)].port_if_serving()

    def figures(self) -> dict[str, int]:
        """How much happened."""
        return self._total.figures | {"lives": sum(one.life for one in self.town.runners.values())}

    def run(self) -> None:
        """Both acts; raises `Violation` when a promise is broken."""
        if self.world.trace.is_on:
            self.world.note("profile", summary(self.profile))
        self.world.probe(f"shape.{self.profile.shape}")
        for runner in self.town.runners.values():
            runner.start()
        for client in self.clients:
            client.address = self._chance.randrange(self.profile.doors)
            client.connect_later()
        self.faults.plan()
        self.world.run(self.profile.safety_ns)
        self._heal()
        self._run_until_quiet()
        self._watch.at_end(self._facts())
        for runner in self._replicas():
            assert runner.manager is not None, "a replica that is up keeps messages"
            self._watch.at_quiet({one.id: one.live.count for one in runner.manager.state.directory})

    # Who acts.

    def _producers(self) -> list[ClientProcess]:
        profile = self.profile
        share = profile.messages // profile.producers + 1
        return [self._producer(number, share) for number in range(profile.producers)]

    def _producer(self, number: int, share: int) -> ClientProcess:
        name, queue = f"producer{number}", f"queue:q{number % self.profile.queues}"
        if self._chance.random() < self.profile.library_share:
            return LibraryClient(name, self._hall, self.profile.clients, queue, share)
        client = SimClient(name, self._hall, self.profile.clients)
        client.sessions.append(ProducerSession(client, queue, name, share))
        return client

    def _consumers(self) -> list[ClientProcess]:
        # Every queue has a consumer, or it could not be drained.
        count = max(self.profile.consumers, self.profile.queues)
        return [self._consumer(number) for number in range(count)]

    def _consumer(self, number: int) -> ClientProcess:
        name, queue = f"consumer{number}", f"queue:q{number % self.profile.queues}"
        if self._chance.random() < self.profile.library_share:
            return LibraryClient(name, self._hall, self.profile.clients, queue)
        client = SimClient(name, self._hall, self.profile.clients)
        client.sessions.append(ConsumerSession(client, queue))
        return client

    def _of_topics(self) -> list[ClientProcess]:
        """Publishers and subscribers; some subscriptions end with their session, if that ends soon."""
        clients: list[ClientProcess] = []
        profile = self.profile
        for number in range(profile.topics):
            topic, settings = f"topic:t{number}", SETTINGS[(self.world.seed + number) % len(SETTINGS)]
            client = SimClient(f"publisher{number}", self._hall, profile.clients)
            client.sessions.append(
                PublisherSession(client, topic, client.name, profile.messages // 3 + 1, settings)
            )
            clients.append(client)
            for at in range(profile.subscribers):
                client = SimClient(f"subscriber{number}.{at}", self._hall, profile.clients)
                is_passing = profile.node.session_expiry_ms < _SESSION_EXPIRY_SHORT_MS and at % 2 == 1
                name = "" if is_passing else f"audit{number}.{at}"
                client.sessions.append(SubscriberSession(client, topic, name, settings))
                clients.append(client)
        return clients

    # Act two.

    def _heal(self) -> None:
        profile = self.profile
        profile.disk.sync_ns = 100 * MICROSECOND_NS
        profile.disk.stall_probability = 0.0
        profile.network.stall_probability = 0.0
        clients = profile.clients
        clients.return_probability = clients.reopen_probability = clients.look_probability = 0.0
        clients.publish_pause_ns = min(clients.publish_pause_ns, 5 * MILLISECOND_NS)
        clients.take_pause_ns = clients.acknowledge_pause_ns = 5 * MILLISECOND_NS
        # Whoever is asked answers from now on: nobody has a reason to go elsewhere.
        clients.patience_ns = 0
        self.town.restart_ns = 20 * MILLISECOND_NS
        self.faults.end()
        self.world.note("world", "heals")

    def _run_until_quiet(self) -> None:
        deadline = self.world.now_ns + _LIVENESS_NS
        while self.world.now_ns < deadline:
            self.world.run(self.world.now_ns + _LOOK_NS)
            if not self._what_is_open():
                return
        raise Violation(f"I17 liveness: {self._what_is_open()}")

    def _replicas(self) -> list[ManagerRunner]:
        return [one for one in self.town.managers.values() if one.has_messages]

    def _facts(self) -> dict[int, NodeFacts]:
        return {one.node_id: facts for one in self._replicas() if (facts := one.facts()) is not None}

    def _what_is_open(self) -> str:
        """What still has to happen until all is quiet; nothing when it is."""
        for runner in self.town.runners.values():
            if not runner.is_up:
                return f"node {runner.node_id} is down"
        words = [f"{one.name} waits for {one.waits_for}" for one in self.clients if not one.is_idle]
        leader = self.town.leader(self._quarter.channel)
        if leader is None or leader.manager is None:
            return "; ".join([*words, "nobody leads"])
        directory = leader.manager.state.directory
        topics = {topic.id: topic for topic in directory.topics}
        words += [f"queue {one.id} holds {one.live.count}" for one in directory
                  if one.id not in topics and one.live.count]  # fmt: skip
        words += [
            f"subscription {one.id} needs {one.backlog}"
            for topic in topics.values()
            for one in topic.subscriptions.values()
            if one.backlog
        ]
        if words:
            return "; ".join(words)
        return self._convergence.what_is_open(self._facts())
