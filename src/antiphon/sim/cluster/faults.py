"""TownFaults: the faults of a cluster.

Some clients leave a sleeping client manager; when it wakes, it finds their earlier frames in its queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.sim.clients.process import ClientProcess
from antiphon.sim.cluster.misreading import Misreading
from antiphon.sim.cluster.profile import ClusterProfile
from antiphon.sim.disk_faults import DiskFaults
from antiphon.sim.faults import FaultTable
from antiphon.sim.runner import SimNode, Town
from antiphon.sim.world import MILLISECOND_NS


class TownFaults(FaultTable):
    def __init__(self, town: Town, profile: ClusterProfile, clients: Sequence[ClientProcess]) -> None:
        chance = town.world.random("faults")
        super().__init__(town.world, chance, profile.safety_ns, may_freeze=not profile.is_made)
        self._town = town
        self._profile = profile
        self._clients = clients
        self._misreading = Misreading(town, profile)
        self._disks = DiskFaults(town, profile.safety_ns, profile.disk_faults)

    def plan(self) -> None:
        self.plan_rows(
            self._profile,
            {
                "crashes": lambda: self._manager().crash(),
                "power_cuts": self._cut_power_soon,
                "blackouts": self._black_out,
                "door_crashes": self._crash_door,
                "sleeps": self._sleep,
                "door_sleeps": self._let_door_sleep,
                "missed_failovers": self._miss_failover,
                "missed_ends": self._miss_end,
                "partitions": self._part,
                "clogs": self._clog,
                "breaks": self._break,
                "client_crashes": lambda: self._chance.choice(self._clients).crash(),
                "moves": lambda: self._chance.choice(self._clients).move(),
            },
        )
        self._misreading.plan()
        self._disks.plan()

    def end(self) -> None:
        """Nothing fails any more, and all nodes come back."""
        super().end()
        self._misreading.end()
        self._disks.end()
        self._town.links.heal()
        for runner in self._town.runners.values():
            runner.heal()

    def _manager(self) -> SimNode:
        """The leader in half of the cases."""
        channel = self._channel()
        leader = self._town.leader(channel)
        if leader is not None and self._chance.random() < 0.5:
            return leader
        return self._chance.choice(self._town.managers_of(channel))

    def _channel(self) -> str:
        channels = list(self._town.quarters)
        return channels[0] if len(channels) == 1 else self._chance.choice(channels)

    def _black_out(self) -> None:
        self._world.probe("faults.blackout")
        for runner in self._town.managers_of(self._channel()):
            runner.crash()

    def _cut_power_soon(self) -> None:
        self._manager().disk.cut_after = self._chance.randrange(30)

    def _crash_door(self) -> None:
        self._world.probe("faults.door_crashed")
        self._chance.choice(list(self._town.doors.values())).crash()

    def _sleep(self) -> None:
        self._world.probe("faults.slept")
        self.sleep(self._manager(), self._duration())

    def _let_door_sleep(self) -> None:
        self._world.probe("faults.door_slept")
        door = self._chance.choice(list(self._town.doors.values()))
        duration = self._duration()
        self.sleep(door, duration)
        for client in self._clients:
            if client.is_at(door.node_id) and self._chance.random() < self._profile.leave_probability:
                self.after(self._chance.randrange(duration), self._leave(client))

    def _miss_failover(self) -> None:
        """A primary goes, and a client manager hears of the next one only after many deliveries of it."""
        self._world.probe("faults.failover_missed")
        leader = self._town.leader(self._channel())
        if leader is not None:
            leader.crash()
        door = self._chance.choice(list(self._town.doors.values()))
        door.sleep(self._chance.randrange(300, 600) * MILLISECOND_NS)

    def _miss_end(self) -> None:
        """A client manager whose clock stands still is taken for dead, and the message that says so is lost.

        The messages before that one, and the heartbeats after it, wait for the client manager to wake.
        """
        self._world.probe("faults.end_missed")
        door = self._chance.choice(list(self._town.doors.values()))
        silence_ns = self._profile.settings["silence_ms"] * MILLISECOND_NS
        door.sleep(self._chance.randrange(2 * silence_ns, 3 * silence_ns), is_frozen=True)
        pairs = [(one.node_id, door.node_id) for one in self._town.managers.values()]
        self.after(silence_ns // 2, lambda: self._town.links.cut(pairs, silence_ns))

    def _leave(self, client: ClientProcess) -> Callable[[], None]:
        life = client.life

        def leave() -> None:
            if client.life == life:
                self._world.probe("faults.left_a_sleeper")
                client.move()

        return leave

    def _duration(self) -> int:
        return self._chance.randrange(50 * MILLISECOND_NS, self._profile.sleep_ns_max)

    def _part(self) -> None:
        kind = self._chance.choice(("one", "one", "deaf", "mute", "halves", "pair"))
        nodes, one = list(self._town.runners), self._anybody().node_id
        self.part(self._town.links, kind, nodes, one, self._profile.partition_ns_max)

    def _anybody(self) -> SimNode:
        if self._chance.random() < 0.5:
            return self._manager()
        return self._chance.choice(list(self._town.runners.values()))

    def _clog(self) -> None:
        self.clog(self._town.links, list(self._town.runners), 400 * MILLISECOND_NS)

    def _break(self) -> None:
        connected = [client.connection for client in self._clients if client.connection is not None]
        if connected:
            self._world.probe("network.connection_broken")
            self._chance.choice(connected).break_off()
