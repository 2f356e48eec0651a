"""The cluster workload: clients publish and consume through client managers, and message managers fail over.

Act one, safety: clients work while nodes of both tiers crash and sleep, the network between them loses,
repeats, delays and parts, connections break and clients move from one client manager to another, also away
from a sleeping one.
Act two, liveness: nothing fails any more. Every command must be confirmed, refused or given up, queues and
subscriptions must be drained to the last message, and all replicas must be equal; only then is the history
judged.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.sim import limits
from antiphon.sim.checkers.acknowledgement import Acknowledgements, Finality
from antiphon.sim.checkers.cluster import Primaries, Reads, SameDisks
from antiphon.sim.checkers.dead_letters import DeadLetters
from antiphon.sim.checkers.hands import Asked, GivenOut, Hands, OneCopy
from antiphon.sim.checkers.history import TotalDestinations
from antiphon.sim.checkers.ids import IdsKept
from antiphon.sim.checkers.message_groups import GroupsKept
from antiphon.sim.checkers.model import Destinations
from antiphon.sim.checkers.order import Checkpoints, Confirmations, Order
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.restores import Restores
from antiphon.sim.checkers.rules import RulesKept
from antiphon.sim.checkers.selections import Selections
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.clients.library import LibraryQueueClient
from antiphon.sim.clients.process import (
    IDS,
    KEYS,
    RULES,
    SELECTORS,
    ClientProcess,
    draw_ids,
    draw_keys,
    draw_rules,
    draw_selectors,
)
from antiphon.sim.clients.queues import RudeProducer, RudeReader, RudeSubscriber
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.clients.sharers import SHARING, draw_sharing, sharers
from antiphon.sim.cluster.faults import TownFaults
from antiphon.sim.cluster.profile import PROFILES, ClusterProfile, draw
from antiphon.sim.cluster.waits import NAME, draw_waits
from antiphon.sim.runner import Quarter
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.topic import SETTINGS
from antiphon.sim.workloads.towns import TownRun
from antiphon.sim.world import MILLISECOND_NS

_SESSION_EXPIRY_SHORT_MS = 1_000


class ClusterRun(TownRun[ClusterProfile]):
    profiles = tuple(PROFILES)
    model = Destinations
    redelivery_limits = (0, 0, 10, 1, 2)

    def __init__(self, seed: int, trace: Trace, profile: str = "", without: Sequence[str] = ()) -> None:
        super().__init__(seed, trace, without)
        self.profile = draw(self._chance, profile)
        self._is_named = bool(profile)
        if not profile and NAME not in without:
            draw_waits(self.world.random("waits"), self.profile)
        self.profile.node.sizes = limits.sizes(seed, profile)
        self.profile.settings |= limits.copies(seed, profile)
        if not profile and RULES not in without:
            draw_rules(self.world.random("rules"), self.profile.clients)
        if not profile and SHARING not in without:
            self.profile.sharing = draw_sharing(self.world.random("sharing"))
        if not profile and IDS not in without:
            draw_ids(self.world.random("ids"), self.profile.clients)
        if not profile and SELECTORS not in without:
            draw_selectors(self.world.random("selectors"), self.profile.clients, self.profile.node)
        if not profile and KEYS not in without:
            draw_keys(self.world.random("keys"), self.profile.clients)
        self.adjust(self.profile)
        self._total = TotalDestinations(self.world)
        config = self.profile.group(self._new_disk_id)
        self._channel = config.group
        self._watch = self._watch_by(self._checkers())
        self._build([Quarter(config, self._watch)], self._watch)
        self._hall.log_time_ms = lambda: self._model.log_time_ms
        self.clients = [*self._producers(), *self._consumers(), *self._of_topics()]
        if self.profile.is_spread:
            for number, client in enumerate(self.clients):
                client.address = number
        self.faults = TownFaults(self.town, self.profile, self.clients)

    def adjust(self, profile: ClusterProfile) -> None:
        """Nothing; the test of an earlier failure says here what made its seed special."""

    def _checkers(self) -> list[Checker]:
        # `Confirmations`, `Reads` and the history read what `Order` and `Destinations` have seen.
        order, destinations = Order(self.world), self.model(self.world)
        destinations.is_exclusive = self.profile.is_gentle
        self._total.topics = self._model = destinations
        self._total.expired = destinations.expired
        hands = Hands(self.world)
        return [
            order,
            destinations,
            Confirmations(self.world, order, destinations),
            Checkpoints(self.world),
            Restores(self.world),
            Acknowledgements(self.world),
            Finality(self.world, self._channel),
            Redeliveries(self.world),
            DeadLetters(self.world),
            RulesKept(self.world, lambda node: self.town.managers[node].log_time_ms),
            IdsKept(self.world, destinations),
            Selections(self.world),
            GroupsKept(self.world),
            Primaries(self.world),
            Reads(self.world, destinations),
            hands,
            GivenOut(self.world, self._channel, hands),
            OneCopy(self.world),
            Asked(self.world, is_one_by_one=True),
            self._converging(self._channel),
            SameDisks(self.world),
            *self._of_time(destinations),
            self._attachments,
            self._expiring(self._channel),
            self._total,
        ]

    def _begin_to_reject(self, limit: int) -> None:
        if limit and not self._is_named:
            self.profile.clients.reject_probability = 0.05

    def figures(self) -> dict[str, int]:
        return self._total.figures | super().figures()

    def _begin(self) -> None:
        self.world.probe(f"shape.{self.profile.shape}")
        super()._begin()
        self.faults.plan()

    def _judge(self) -> None:
        super()._judge()
        for runner in self._replicas(self._channel):
            assert runner.manager is not None, "a replica that is up keeps messages"
            self._watch.at_quiet({one.id: one.live.count for one in runner.manager.state.directory})

    def _producers(self) -> list[ClientProcess]:
        profile = self.profile
        share = profile.messages // profile.producers + 1
        return [self._producer(number, share) for number in range(profile.producers)]

    def _producer(self, number: int, share: int) -> ClientProcess:
        name, queue = f"producer{number}", f"queue:q{number % self.profile.queues}"
        if self._chance.random() < self.profile.library_share:
            return LibraryQueueClient(name, self._hall, self.profile.clients, queue, share)
        client = RudeClient(name, self._hall, self.profile.clients)
        RudeProducer(client, queue, share)
        return client

    def _consumers(self) -> list[ClientProcess]:
        # Every queue has a consumer, or it could not be drained.
        count = max(self.profile.consumers, self.profile.queues)
        consumers = [self._consumer(number) for number in range(count)]
        for one in consumers[self.profile.queues :]:
            one.may_select = True
        return consumers

    def _consumer(self, number: int) -> ClientProcess:
        name, queue = f"consumer{number}", f"queue:q{number % self.profile.queues}"
        if self._chance.random() < self.profile.library_share:
            return LibraryQueueClient(name, self._hall, self.profile.clients, queue)
        client = RudeClient(name, self._hall, self.profile.clients)
        RudeReader(client, queue)
        return client

    def _settings(self, number: int) -> str:
        return self.profile.topic_settings or SETTINGS[(self.world.seed + number) % len(SETTINGS)]

    def _of_topics(self) -> list[ClientProcess]:
        """Publishers and subscribers; some subscriptions end with their session, if that ends soon."""
        clients: list[ClientProcess] = []
        profile = self.profile
        for number in range(profile.topics):
            topic, settings = f"topic:t{number}", self._settings(number)
            client = RudeClient(f"publisher{number}", self._hall, profile.clients)
            RudeProducer(client, topic, profile.messages // 3 + 1, settings)
            clients.append(client)
            for at in range(profile.subscribers):
                client = RudeClient(f"subscriber{number}.{at}", self._hall, profile.clients)
                is_passing = profile.node.session_expiry_ms < _SESSION_EXPIRY_SHORT_MS and at % 2 == 1
                name = "" if is_passing else f"audit{number}.{at}"
                RudeSubscriber(client, topic, settings, name)
                clients.append(client)
        topics = [(f"topic:t{number}", self._settings(number)) for number in range(profile.topics)]
        return [*clients, *sharers(self._hall, profile.clients, topics, profile.sharing)]

    def _heal(self) -> None:
        clients = self.profile.clients
        clients.return_probability = clients.reopen_probability = clients.look_probability = 0.0
        clients.reject_probability = 0.0
        clients.publish_pause_ns = min(clients.publish_pause_ns, 5 * MILLISECOND_NS)
        clients.take_pause_ns = clients.acknowledge_pause_ns = 5 * MILLISECOND_NS
        super()._heal()
