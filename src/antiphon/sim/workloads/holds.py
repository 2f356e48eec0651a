"""The holds workload: the cluster workload, and readers that hold the messages they still have to read."""

from __future__ import annotations

from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.held import HeldDestinations
from antiphon.sim.checkers.holds import Holdings
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.clients.holder import RudeHolder
from antiphon.sim.clients.process import ClientProcess
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.workloads.cluster import ClusterRun

_HOLDERS_MAX = 3


class HoldsRun(ClusterRun):
    model = HeldDestinations

    def _checkers(self) -> list[Checker]:
        return [*super()._checkers(), Holdings(self.world)]

    def _of_topics(self) -> list[ClientProcess]:
        """Readers come last: the other clients do the same with and without them."""
        return [*super()._of_topics(), *self._holders()]

    def _holders(self) -> list[ClientProcess]:
        chance = self.world.random("holders")
        clients: list[ClientProcess] = []
        for number in range(chance.randint(1, _HOLDERS_MAX)):
            client = RudeClient(f"holder{number}", self._hall, self.profile.clients)
            topics = self.profile.topics
            if topics and chance.random() < 0.5:
                at = chance.randrange(topics)
                RudeHolder(client, f"topic:t{at}", self._settings(at))
            else:
                queue = chance.randrange(self.profile.queues)
                RudeHolder(client, f"queue:q{queue}")
            clients.append(client)
        return clients

    def _heal(self) -> None:
        for client in self.clients:
            for session in client.sessions if isinstance(client, RudeClient) else ():
                if isinstance(session, RudeHolder):
                    session.end_for_good()
        super()._heal()

    def _open_at(self, state: ChannelState) -> list[str]:
        held = [f"{name} holds something" for name in state.holds.rows]
        return [*super()._open_at(state), *held]
