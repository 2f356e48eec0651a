"""BusFaults: the faults of a group of the bus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.bus.effects import ConfigProposed
from antiphon.bus.group import GroupConfig
from antiphon.bus.sequencer import State
from antiphon.sim import faults
from antiphon.sim.bus.atlas import Atlas
from antiphon.sim.bus.losses import Losses
from antiphon.sim.bus.profile import BusProfile
from antiphon.sim.bus.runner import BusRunner, Hall
from antiphon.sim.faults import FaultTable
from antiphon.sim.world import MILLISECOND_NS

_MUTE_LOOK_NS = 10 * MILLISECOND_NS


class BusFaults(FaultTable):
    def __init__(self, hall: Hall, profile: BusProfile, *, may_freeze: bool = False) -> None:
        super().__init__(
            hall.world,
            hall.world.random("faults"),
            profile.safety_ns,
            may_freeze=may_freeze and faults.are_drawn,
        )
        self._hall = hall
        self._profile = profile
        self._atlas = Atlas(hall)
        self._losses = Losses(hall, self._atlas, self._chance)

    def plan(self) -> None:
        profile = self._profile
        self.plan_rows(
            profile,
            {
                "crashes": self._crash,
                "power_cuts": self._cut_power_soon,
                "blackouts": self._black_out,
                "wipes": self._wipe,
                "changes": self._change,
                "fillings": self._fill,
                "pauses": self._pause,
                "partitions": self._part,
                "clogs": self._clog,
                "hold_backs": self._hold_back,
                "leaps": self._leap,
                "producer_deaths": self._kill_producer,
            },
        )
        self._losses.plan(
            profile.damages, profile.damage_kinds, self.plan_one, lambda: self._victim(self._servers())
        )
        if profile.mute_probability:
            self._world.after(_MUTE_LOOK_NS, self._mute_or_not)

    def end(self) -> None:
        """Nothing fails any more, and all nodes come back, except producers that are gone."""
        super().end()
        self._hall.links.heal()
        self._losses.end()
        for runner in self._hall.runners.values():
            runner.heal()

    def leader(self) -> BusRunner | None:
        """The leader, or a node that believes to lead; the last elected if there are several."""
        leading = [
            runner
            for runner in self._hall.runners.values()
            if runner.replica is not None and runner.replica.state is State.LEADING
        ]
        return max(leading, key=lambda runner: runner.replica.epoch, default=None)  # type: ignore[union-attr]

    def _victim(self, among: Sequence[BusRunner] | None = None) -> BusRunner:
        leader = self.leader()
        if leader is not None and self._chance.random() < 0.5:
            return leader
        return self._chance.choice(among or list(self._hall.runners.values()))

    def _servers(self) -> list[BusRunner]:
        return [runner for runner in self._hall.runners.values() if runner.disk is not None]

    def _crash(self) -> None:
        self._victim(self._servers()).crash()

    def _black_out(self) -> None:
        self._world.probe("faults.blackout")
        for runner in self._servers():
            runner.crash()

    def _wipe(self) -> None:
        self._losses.wipe(self._victim(self._servers()))

    def _fill(self) -> None:
        duration = self._chance.randrange(20 * MILLISECOND_NS, 800 * MILLISECOND_NS)
        self._losses.fill(self._victim(self._servers()), duration)

    def _change(self) -> None:
        """Propose another configuration: one server more, one less, or one instead of another."""
        leader = self.leader()
        if leader is None or leader.replica is None:
            return
        wanted = self._wanted(leader.replica.config)
        is_sound = not self._atlas.is_changing and self._atlas.are_all_well()
        if is_sound and self._atlas.may_change_to(wanted.data_servers):
            self._world.probe("faults.change_proposed")
            self._atlas.proposed = wanted.config_id
            leader.tell(ConfigProposed(wanted))
            if self._chance.random() < self._profile.double_change_probability:
                self._world.probe("faults.change_doubled")
                other = self._wanted(leader.replica.config)
                leader.tell(ConfigProposed(replace(other, config_id=wanted.config_id + 1)))

    def _wanted(self, now: GroupConfig) -> GroupConfig:
        servers = self._profile.servers
        voters = tuple(sorted(self._chance.sample(servers, self._chance.randint(2, len(servers)))))
        keepers = voters
        if len(voters) > 2 and self._chance.random() < 0.3:
            witness = self._chance.choice(voters)
            keepers = tuple([node for node in voters if node != witness])
        quantity = len(voters) // 2 + 1
        return replace(
            now,
            config_id=now.config_id + 1,
            commit_servers=voters,
            data_servers=keepers,
            checkpoint_servers=keepers,
            candidates=keepers,
            commit_quantity=quantity,
            seal_quantity=quantity,
            data_quantity=min(len(keepers), 2),
            checkpoint_quantity=min(len(keepers), 2),
        )

    def _cut_power_soon(self) -> None:
        victim = self._victim(self._servers())
        if victim.disk is not None:
            victim.disk.cut_after = self._chance.randrange(30)

    def _pause(self) -> None:
        self._world.probe("faults.paused")
        self.sleep(self._victim(), self._chance.randrange(50 * MILLISECOND_NS, self._profile.pause_ns_max))

    def _leap(self) -> None:
        self._world.probe("faults.clock_leapt")
        victim = self._victim()
        victim.clock.leap(self._chance.randrange(800) * MILLISECOND_NS)
        victim.wake()

    def _kill_producer(self) -> None:
        """A producer reaches some data servers with its next envelope, and is gone."""
        producers = [runner for runner in self._hall.runners.values() if runner.disk is None]
        keepers = self._hall.config.data_servers
        if not producers:
            return
        victim = self._chance.choice(producers)
        reached = self._profile.reached_max or self._chance.randint(1, len(keepers))
        victim.last_words = tuple(sorted(self._chance.sample(keepers, reached)))
        if self._chance.random() < self._profile.return_probability:
            self.after(self._chance.randrange(1_000 * MILLISECOND_NS), victim.come_back)

    def _part(self) -> None:
        nodes = list(self._hall.config.nodes)
        if len(nodes) > 1:
            kind = self._chance.choice(("one", "one", "deaf", "mute", "halves", "ring", "bridge"))
            self.part(self._hall.links, kind, nodes, self._victim().node_id, self._profile.partition_ns_max)

    def _clog(self) -> None:
        nodes = self._hall.config.nodes
        if len(nodes) > 1:
            self.clog(self._hall.links, nodes, 500 * MILLISECOND_NS)

    def _hold_back(self) -> None:
        """All messages of the sequencer are late, and come at once."""
        victim = self._victim()
        self._world.probe("faults.held_back")
        duration = self._chance.randrange(20 * MILLISECOND_NS, 600 * MILLISECOND_NS)
        for node in self._hall.config.nodes:
            if node != victim.node_id:
                self._hall.links.clog((victim.node_id, node), duration)

    def _mute_or_not(self) -> None:
        """Cut some of the sequencer's messages, and nothing that it receives."""
        if self._is_over:
            return
        self._world.after(_MUTE_LOOK_NS, self._mute_or_not)
        leader = self.leader()
        if leader is None:
            return
        for node in self._hall.config.nodes:
            if node != leader.node_id and self._chance.random() < self._profile.mute_probability:
                self._world.probe("faults.sequencer_muted")
                duration = self._chance.randrange(10 * MILLISECOND_NS, self._profile.mute_ns_max)
                self._hall.links.cut([(leader.node_id, node)], duration)
