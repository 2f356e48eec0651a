"""The transactions workload: a bank over several channels, whose clients and nodes die at every step.

Accounts are queues, each in one of two or three channels; money is messages. Depositors pay in, stagers bring
money in versions, traders move it between accounts in transactions.
Before the first act everybody arrives.
Act one, safety: nodes of both tiers crash and sleep, at random and at the steps of transactions; the network
between them loses, repeats, delays and parts; clients die, lose connections, and move.
Act two, liveness: nothing fails any more. Traders take the money out until all accounts are empty. Nobody may
be in doubt: no part is prepared and nothing is locked; all replicas are equal; and the money must be right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon.bus.planted import NONE
from antiphon.sim.checkers.bank import Bank
from antiphon.sim.checkers.checkpoint import Checkpoints
from antiphon.sim.checkers.ledger import Ledger
from antiphon.sim.checkers.order import Order
from antiphon.sim.checkers.tiers import Convergence, Primaries
from antiphon.sim.checkers.watch import Checker, NodeFacts, Watch
from antiphon.sim.disk import SimDisk
from antiphon.sim.network import ClientPort, Network
from antiphon.sim.tiers.faults import Faults
from antiphon.sim.tiers.runner import DoorRunner, ManagerRunner, Quarter, Town
from antiphon.sim.tiers.strikes import StepWatch, Strikes
from antiphon.sim.tiers.transaction_profile import MADE_FOR, TransactionProfile, draw
from antiphon.sim.trace import Trace, summary
from antiphon.sim.workloads.depositor import Depositor, Stager
from antiphon.sim.workloads.library_trader import LibraryTrader
from antiphon.sim.workloads.process import Hall
from antiphon.sim.workloads.teller import Account, Teller
from antiphon.sim.workloads.trader import Trader
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Violation, World

_OPENING_NS = 2 * SECOND_NS
_LIVENESS_NS = 20 * SECOND_NS
_LOOK_NS = 20 * MILLISECOND_NS


class TransactionRun:
    """One run of the workload."""

    profiles = tuple(MADE_FOR)

    def __init__(
        self, seed: int, trace: Trace, planted: str = "", profile: str = "", without: Sequence[str] = ()
    ) -> None:
        self.world = World(seed, trace)
        self._chance: random.Random = self.world.random("workload")
        self.profile: TransactionProfile = draw(self._chance, profile)
        self._without = without
        self._bank = Bank(self.world)
        self._watch = Watch([self._bank])
        self._strikes = Strikes(self.world, self.profile.strikes, self.profile.strike_probability)
        self._convergence: dict[str, Convergence] = {}
        self.town = Town(self.world, self._quarters(), self.profile.node, self.profile.links, self._watch)
        self.town.planted = frozenset([planted]) if planted else NONE
        self._add_nodes()
        self._network = Network(self.world)
        self._network.habits = self.profile.network
        self._hall = Hall(self.world, self._network, self._watch, self._port)
        self.clients = self._tellers()
        self.faults = Faults(self.town, self.profile, self.clients)
        self._strikes.town, self._strikes.clients = self.town, self.clients

    def _quarters(self) -> list[Quarter]:
        disk_ids = self.world.random("disk ids")
        quarters = []
        for config in self.profile.groups(lambda: disk_ids.randbytes(16)):
            channel = config.group
            self._convergence[channel] = Convergence(self.world)
            checkers: list[Checker] = [
                Order(self.world),
                Ledger(self.world, channel, self._bank),
                Checkpoints(self.world),
                Primaries(self.world),
                self._convergence[channel],
                StepWatch(self.world, channel, self._strikes),
            ]
            seeing = [one for one in checkers if type(one).__name__ not in self._without]
            quarters.append(Quarter(config, Watch(seeing)))
        return quarters

    def _add_nodes(self) -> None:
        for at, quarter in enumerate(self.town.quarters.values()):
            for node in self.profile.servers_of(at):
                disk = SimDisk(self.world, f"disk/{node}")
                disk.habits = self.profile.disk
                self.town.add(ManagerRunner(self.town, node, disk, quarter))
        for node in self.profile.client_managers:
            self.town.add(DoorRunner(self.town, node))
        if self.profile.are_clocks_unsteady:
            for runner in self.town.runners.values():
                runner.clock.make_unsteady()

    def _port(self, address: int) -> ClientPort | None:
        doors = list(self.town.doors.values())
        return doors[address % len(doors)].port_if_serving()

    def _tellers(self) -> list[Teller | LibraryTrader]:
        profile, channels = self.profile, self.profile.channels
        accounts = [
            Account(f"account{number}", channels[number % len(channels)])
            for number in range(profile.accounts)
        ]
        common = (self._hall, profile.clients, profile.tellers, self._bank, accounts)
        clients: list[Teller | LibraryTrader] = [Depositor("depositor", *common, profile.deposits)]
        for number in range(profile.stagers):
            clients.append(Stager(f"stager{number}", *common, profile.versions))
        for number in range(profile.traders):
            # Every account has a trader, or it could not be emptied.
            counters = [at for at in range(len(accounts)) if at % profile.traders == number]
            others = [at for at in range(len(accounts)) if at not in counters]
            counters += self._chance.sample(others, min(len(others), self._chance.randint(0, 2)))
            is_library = self._chance.random() < profile.library_share
            kind = LibraryTrader if is_library else Trader
            clients.append(kind(f"trader{number}", *common, counters))
        return clients

    def figures(self) -> dict[str, int]:
        """How much happened."""
        return self._bank.figures | {"lives": sum(one.life for one in self.town.runners.values())}

    def run(self) -> None:
        """Both acts; raises `Violation` when a promise is broken."""
        if self.world.trace.is_on:
            self.world.note("profile", summary(self.profile))
        for shape in self.profile.shapes:
            self.world.probe(f"shape.{shape}")
        for runner in self.town.runners.values():
            runner.start()
        for client in self.clients:
            client.address = self._chance.randrange(self.profile.doors)
            client.connect_later()
        self.world.run(_OPENING_NS, lambda: all(client.is_ready for client in self.clients))
        self.faults.plan()
        self.world.run(self.world.now_ns + self.profile.safety_ns)
        self._heal()
        self._run_until_quiet()
        for channel, quarter in self.town.quarters.items():
            quarter.watch.at_end(self._facts(channel))
        self._watch.at_quiet({})

    # Act two.

    def _heal(self) -> None:
        profile = self.profile
        profile.disk.sync_ns = 100 * MICROSECOND_NS
        profile.disk.stall_probability = 0.0
        profile.network.stall_probability = 0.0
        # Whoever is asked answers from now on: nobody has a reason to go elsewhere.
        profile.clients.patience_ns = 0
        tellers = profile.tellers
        tellers.pause_ns = tellers.send_pause_ns = 5 * MILLISECOND_NS
        tellers.rollback_probability = tellers.death_probability = 0.0
        tellers.look_probability = tellers.drop_probability = 0.0
        tellers.is_closing = True
        self.town.restart_ns = 20 * MILLISECOND_NS
        self._strikes.end()
        self.faults.end()
        self.world.note("world", "heals")

    def _run_until_quiet(self) -> None:
        deadline = self.world.now_ns + _LIVENESS_NS
        while self.world.now_ns < deadline:
            self.world.run(self.world.now_ns + _LOOK_NS)
            if not self._what_is_open():
                return
        raise Violation(f"I17 liveness: {self._what_is_open()}")

    def _facts(self, channel: str) -> dict[int, NodeFacts]:
        replicas = [one for one in self.town.managers_of(channel) if one.has_messages]
        return {one.node_id: facts for one in replicas if (facts := one.facts()) is not None}

    def _what_is_open(self) -> str:
        """What still has to happen until all is quiet; nothing when it is."""
        for runner in self.town.runners.values():
            if not runner.is_up:
                return f"node {runner.node_id} is down"
        words = [f"{one.name} waits for {one.waits_for}" for one in self.clients if not one.is_idle]
        words += [text for channel in self.town.quarters if (text := self._open_in(channel))]
        if words:
            return "; ".join(words)
        return "; ".join(
            f"in {channel} {text}"
            for channel, convergence in self._convergence.items()
            if (text := convergence.what_is_open(self._facts(channel)))
        )

    def _open_in(self, channel: str) -> str:
        leader = self.town.leader(channel)
        if leader is None or leader.manager is None:
            return f"nobody leads {channel}"
        state = leader.manager.state
        transactions = state.transactions
        words = [f"queue {one.id} holds {one.live.count}" for one in state.directory if one.live.count]
        words += [f"transaction {key} is in doubt" for key in transactions.prepared]
        words += [f"queue {id} has locks" for id in transactions.locks]
        words += [f"transaction {one[:2]} is not finished" for one in transactions.unfinished()]
        return f"in {channel} {', '.join(words)}" if words else ""
