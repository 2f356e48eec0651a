"""The transactions workload: a bank over several channels, whose clients and nodes die at every step.

Accounts are queues and, in half of the runs, topics, each in one of two or three channels; money is messages.
Depositors pay in, stagers bring money in versions, traders move it between accounts in transactions, and in
half of the runs a collector consumes a queue alone now and then. Durable subscriptions take the money of a
topic, each all of it. All clients arrive before the first act.
Act one, safety: nodes of both tiers crash and sleep, at random and at the steps of transactions; the network
between them loses, repeats, delays and parts; clients die, lose connections, and move.
Act two, liveness: nothing fails any more. Traders take the money out until all accounts are empty. Then no
part is prepared, nothing is locked, all replicas are equal, and the money is right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim import limits
from antiphon.sim.checkers.bank import Bank
from antiphon.sim.checkers.cluster import Primaries, SameDisks
from antiphon.sim.checkers.hands import Asked, GivenOut, Hands, OneCopy
from antiphon.sim.checkers.ledger import ChannelLedger
from antiphon.sim.checkers.order import Checkpoints, Order
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.restores import Restores
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.clients.bank import Branch, Collector, Depositor, Stager
from antiphon.sim.clients.rude import Account, RudeClient
from antiphon.sim.clients.trader import Trader
from antiphon.sim.cluster.faults import TownFaults
from antiphon.sim.cluster.strikes import StepWatch, Strikes
from antiphon.sim.cluster.transaction_profile import PROFILES, TransactionProfile, draw
from antiphon.sim.cluster.waits import NAME, draw_waits
from antiphon.sim.runner import Quarter
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.topic import SETTINGS
from antiphon.sim.workloads.towns import TownRun
from antiphon.sim.world import MILLISECOND_NS, SECOND_NS

TOPICS = "Topics"
"""The name under which a run is asked for without topics."""
SPANNING = "Spanning"
"""The name under which a run is asked for without a destination of several channels."""
RETIRING = "Retiring"
"""The name under which a run is asked for without consumers that are closed within transactions."""
_OPENING_NS = 2 * SECOND_NS


class TransactionRun(TownRun[TransactionProfile]):
    clients: list[RudeClient | Trader]
    profiles = tuple(PROFILES)

    def __init__(self, seed: int, trace: Trace, profile: str = "", without: Sequence[str] = ()) -> None:
        super().__init__(seed, trace, without)
        self.profile = draw(self._chance, profile)
        if not profile and NAME not in without:
            draw_waits(self.world.random("waits"), self.profile)
        if not profile and RETIRING not in without:
            self.profile.tellers.retire_probability = self.world.random("retiring").choice((0.0, 0.1, 0.5))
        self.profile.node.sizes = limits.sizes(seed, profile)
        self.profile.settings |= limits.copies(seed, profile)
        self._bank = Bank(self.world)
        self._hands = Hands(self.world)
        one_copy, finality = OneCopy(self.world), self._bank.finality
        asked = Asked(self.world, is_one_by_one=False)
        self._watch = self._watch_by([self._bank, finality, self._hands, one_copy, asked, self._attachments])
        self._strikes = Strikes(self.world, self.profile.strikes, self.profile.strike_probability)
        self._build(self._quarters(), self._watch)
        self.clients = self._tellers()
        self.faults = TownFaults(self.town, self.profile, self.clients)
        self._strikes.town, self._strikes.clients = self.town, self.clients

    def _quarters(self) -> list[Quarter]:
        quarters = []
        for config in self.profile.groups(self._new_disk_id):
            channel = config.group
            redeliveries = self._bank.redeliveries[channel] = Redeliveries(self.world)
            checkers: list[Checker] = [
                Order(self.world),
                ChannelLedger(self.world, channel, self._bank),
                Checkpoints(self.world),
                Restores(self.world),
                Primaries(self.world),
                redeliveries,
                GivenOut(self.world, channel, self._hands),
                *self._of_time(),
                self._expiring(channel),
                self._converging(channel),
                SameDisks(self.world),
                StepWatch(self.world, channel, self._strikes),
            ]
            quarters.append(Quarter(config, self._watch_by(checkers)))
        return quarters

    def _tellers(self) -> list[RudeClient | Trader]:
        profile, channels = self.profile, self.profile.channels
        accounts = [
            _account(f"queue:account{number}", channels[number % len(channels)])
            for number in range(profile.accounts)
        ]
        queues = len(accounts)
        chance = self.world.random(TOPICS)
        for number in range(profile.topics if TOPICS not in self._without else 0):
            settings = chance.choice(SETTINGS)
            accounts.append(_account(f"topic:account{number}", chance.choice(channels), settings))
        if not profile.is_made and SPANNING not in self._without:
            accounts += self._spanning_accounts()
        branch = Branch(self._hall, profile.clients, profile.tellers, self._bank, accounts)

        def rude(name: str) -> RudeClient:
            client = RudeClient(name, self._hall, profile.clients)
            clients.append(client)
            return client

        clients: list[RudeClient | Trader] = []
        Depositor(rude("depositor"), branch, profile.deposits)
        for number in range(profile.stagers):
            Stager(rude(f"stager{number}"), branch, profile.versions)
        for number in range(profile.traders):
            # Every account has a trader, or it could not be emptied.
            counters = [at for at in range(len(accounts)) if at % profile.traders == number]
            others = [at for at in range(len(accounts)) if at not in counters]
            counters += self._chance.sample(others, min(len(others), self._chance.randint(0, 2)))
            is_rude = self._chance.random() >= profile.library_share
            clients.append(Trader(f"trader{number}", branch, counters, is_rude=is_rude))
        chance = self.world.random("collectors")
        if not self.profile.is_made and chance.random() < 0.5:
            Collector(rude("collector"), branch, chance.randrange(queues))
        return clients

    def _spanning_accounts(self) -> list[Account]:
        """In half of the runs a queue or a topic that spans channels: each part is an account of its own."""
        chance = self.world.random(SPANNING)
        if chance.random() < 0.5:
            return []
        several = chance.sample(self.profile.channels, chance.randint(2, len(self.profile.channels)))
        name = chance.choice(("queue:spanning", "topic:spanning"))
        settings = json.loads(chance.choice(SETTINGS)) if name.startswith("topic") else {}
        text = json.dumps({**settings, "channels": several})
        return [Account(name, text, channel, part=channel) for channel in several]

    def figures(self) -> dict[str, int]:
        return self._bank.figures | super().figures()

    def _begin(self) -> None:
        for shape in self.profile.shapes:
            self.world.probe(f"shape.{shape}")
        super()._begin()
        self.world.run(_OPENING_NS, lambda: all(client.is_ready for client in self.clients))
        self.faults.plan()

    def _heal(self) -> None:
        tellers = self.profile.tellers
        tellers.pause_ns = tellers.send_pause_ns = 5 * MILLISECOND_NS
        tellers.rollback_probability = tellers.death_probability = tellers.retire_probability = 0.0
        tellers.look_probability = tellers.drop_probability = 0.0
        tellers.is_closing = True
        self._strikes.end()
        for client in self.clients:
            for session in client.sessions if isinstance(client, RudeClient) else ():
                if isinstance(session, Collector):
                    session.end_for_good()
        super()._heal()

    def _judge(self) -> None:
        super()._judge()
        self._watch.at_quiet({})

    def _open_at(self, state: ChannelState) -> list[str]:
        transactions = state.transactions
        words = super()._open_at(state)
        words += [f"transaction {key} is in doubt" for key in transactions.prepared]
        words += [f"queue {id} has locks" for id in transactions.locks]
        words += [f"transaction {one[:2]} is not finished" for one in transactions.unfinished()]
        words += [f"{name} holds something" for name in state.holds.rows]
        return words


def _account(name: str, channel: str, settings: str = "{}") -> Account:
    return Account(name, json.dumps({"channel": channel, **json.loads(settings)}), channel)
