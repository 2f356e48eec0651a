"""TownRun: the common part of runs with nodes of both tiers.

Each channel has message managers with disks of their own; all client managers serve all channels. Act two
ends when every node is up, no client waits, nothing is open in any channel, and all replicas are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.sim.checkers.attachments import Attachments, Expiries
from antiphon.sim.checkers.bounds import is_cut
from antiphon.sim.checkers.cluster import Convergence
from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.true_time import Lifetimes, LogTimePace
from antiphon.sim.checkers.watch import Checker, NodeFacts, Watch
from antiphon.sim.clients.process import ClientHall, ClientProcess
from antiphon.sim.cluster.faults import TownFaults
from antiphon.sim.cluster.profile import ClusterProfile
from antiphon.sim.disk import SimDisk
from antiphon.sim.network import ClientPort, Network
from antiphon.sim.runner import Quarter, SimNode, Town
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.acts import WorkloadRun
from antiphon.sim.workloads.topic import too_old
from antiphon.sim.world import MILLISECOND_NS, SECOND_NS, ClockSteps

TownProfile = TypeVar("TownProfile", bound=ClusterProfile)


class TownRun(WorkloadRun[TownProfile]):
    """A run with nodes of both tiers; subclasses add the quarters, the clients and the faults."""

    liveness_ns = 20 * SECOND_NS
    town: Town
    clients: Sequence[ClientProcess]
    faults: TownFaults

    def __init__(self, seed: int, trace: Trace, without: Sequence[str]) -> None:
        super().__init__(seed, trace, without)
        self._disk_ids = self.world.random("disk ids")
        self._convergence: dict[str, Convergence] = {}
        self._expiries: dict[str, Expiries] = {}
        self._attachments = Attachments(self.world)

    def _new_disk_id(self) -> bytes:
        return self._disk_ids.randbytes(16)

    def _converging(self, channel: str) -> Convergence:
        return self._convergence.setdefault(channel, Convergence(self.world))

    def _expiring(self, channel: str) -> Expiries:
        expiry_ms = self.profile.node.session_expiry_ms
        return self._expiries.setdefault(channel, Expiries(self.world, self._attachments, expiry_ms))

    def _build(self, quarters: Sequence[Quarter], watch: Watch) -> None:
        """All nodes, and a hall for the clients; `watch` sees what crosses the client ports."""
        profile = self.profile
        self.town = Town(self.world, quarters, profile.node, profile.links, watch)
        for quarter in quarters:
            for node in quarter.config.commit_servers:
                disk = SimDisk(self.world, f"disk/{node}")
                disk.habits = profile.disk
                self.town.add_manager(node, quarter, disk)
        for node in profile.client_managers:
            self.town.add_door(node)
        if profile.are_clocks_unsteady:
            for runner in self.town.runners.values():
                runner.clock.make_unsteady()
        clocks = [runner.clock for runner in self.town.managers.values()]
        of_doors = [runner.clock for runner in self.town.doors.values()]
        self._clock_steps = ClockSteps(self.world, clocks)
        self._door_clock_steps = ClockSteps(self.world, of_doors, "clock steps of doors")
        network = Network(self.world)
        network.habits = profile.network
        self._hall = ClientHall(self.world, network, watch, self._port)

    def _port(self, address: int) -> ClientPort | None:
        doors = list(self.town.doors.values())
        return doors[address % len(doors)].port_if_serving()

    def figures(self) -> dict[str, int]:
        return {"lives": sum(one.life for one in self.town.runners.values())}

    def _of_time(self, topics: Topics | None = None) -> list[Checker]:
        """The checkers of one channel that know the time of the world."""
        pace = LogTimePace(self.world, self.profile.node.log_time_interval_ms)
        return [pace, Lifetimes(self.world, topics)]

    def _begin(self) -> None:
        self._clock_steps.plan(self.profile.safety_ns, always=self.profile.are_clocks_set)
        self._door_clock_steps.plan(self.profile.safety_ns)
        for runner in self.town.runners.values():
            runner.start()
        for client in self.clients:
            client.address = self._chance.randrange(self.profile.doors)
            client.connect_later()

    def _heal(self) -> None:
        self.profile.network.stall_probability = 0.0
        # Every node answers from now on: no client has a reason to go elsewhere.
        self.profile.clients.patience_ns = 0
        self.town.restart_ns = 20 * MILLISECOND_NS
        self.faults.end()
        super()._heal()

    def _judge(self) -> None:
        for channel, quarter in self.town.quarters.items():
            quarter.watch.at_end(self._facts(channel))

    def _machines(self) -> dict[str, list[Any]]:
        nodes = {one.name: one.all_machines() for one in self.town.runners.values()}
        return {**nodes, **{one.name: one.machines() for one in self.clients}}

    def _disks_at_rest(self) -> Iterator[tuple[str, MemoryDisk, ChannelState | None]]:
        for quarter in self.town.quarters:
            for one in self.town.managers_of(quarter):
                if not is_cut(one.replica, one.journal):
                    yield one.name, one.disk, None if one.manager is None else one.manager.state

    def _replicas(self, channel: str) -> list[SimNode]:
        return [one for one in self.town.managers_of(channel) if one.has_messages]

    def _facts(self, channel: str) -> dict[int, NodeFacts]:
        replicas = self._replicas(channel)
        return {one.node_id: facts for one in replicas if (facts := one.facts()) is not None}

    def _what_is_open(self) -> str:
        for runner in self.town.runners.values():
            if not runner.is_up:
                return f"node {runner.node_id} is down"
        words = [f"{one.name} waits for {one.waits_for}" for one in self.clients if not one.is_idle]
        for channel in self.town.quarters:
            leader = self.town.leader(channel)
            if leader is None or leader.manager is None:
                words.append(f"nobody leads {channel}")
            else:
                state = leader.manager.state
                open_here = [*self._open_at(state), *self._expiring(channel).what_is_open(state)]
                words += [f"in {channel} {what}" for what in open_here]
        if words:
            return "; ".join(words)
        return "; ".join(
            f"in {channel} {text}"
            for channel, convergence in self._convergence.items()
            if (text := convergence.what_is_open(self._facts(channel)))
        )

    def _open_at(self, state: ChannelState) -> list[str]:
        """What is open in a channel, by the state of its leader."""
        directory = state.directory
        topics = {topic.id: topic for topic in directory.topics}
        origins: list[Topic | Family] = [*topics.values(), *directory.families]
        words = [f"queue {one.id} holds {one.live.count}" for one in directory
                 if one.id not in topics and one.live.count and not one.is_reserved]  # fmt: skip
        words += [
            f"subscription {one.id} needs {one.backlog}"
            for origin in origins
            for one in origin.subscriptions.values()
            if one.backlog
        ]
        words += [f"{family.shown} is not decided" for family in directory.undecided.families]
        return [*words, *too_old(state)]
