"""The bus workload: a group of nodes agrees on one order under faults.

Act one, safety: nodes submit envelopes while processes crash and sleep, disks stall and forget, and the
network loses, repeats, delays and parts. The checkers watch every message, every record and every applied
entry.
Act two, liveness: nothing fails any more. Within bounded time exactly one node leads, every envelope of a
living producer is confirmed, and all members have applied the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.state import outcomes
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim import limits
from antiphon.sim.bus.faults import BusFaults
from antiphon.sim.bus.profile import PROFILES, SHAPE_OF_NODES, BusProfile, draw
from antiphon.sim.bus.runner import BusRunner, Hall
from antiphon.sim.checkers.bounds import is_cut
from antiphon.sim.checkers.committed import Committed
from antiphon.sim.checkers.group import Copies, Liveness, cluster_checkers
from antiphon.sim.checkers.watch import NodeFacts
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.disk import SimDisk
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.acts import WorkloadRun
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, LogTime, encode_command


class BusRun(WorkloadRun[BusProfile]):
    profiles = tuple(PROFILES)

    def __init__(
        self,
        seed: int,
        trace: Trace,
        profile: str = "",
        without: Sequence[str] = (),
        nodes: int = 0,
    ) -> None:
        super().__init__(seed, trace, without)
        self.profile = draw(self._chance, profile)
        if nodes:
            self.profile.shape = SHAPE_OF_NODES[nodes]
        self.profile.settings |= limits.copies(seed, profile)
        self.adjust(self.profile)
        disk_ids = self.world.random("disk ids")
        self.config = self.profile.group(lambda: disk_ids.randbytes(16))
        self._disks = 0
        checkers = cluster_checkers(self.world, self.config)
        self._liveness = next(one for one in checkers if isinstance(one, Liveness))
        self._watch = self._watch_by(checkers)
        self.hall = Hall(self.world, self.config, self.profile.links, self._watch)
        self.hall.images = next(one for one in checkers if isinstance(one, WriteBeforeSend)).images
        self.hall.numbered = next(one for one in checkers if isinstance(one, Copies)).numbered
        committed = next(one for one in checkers if isinstance(one, Committed))
        self.hall.committed_in = lambda: committed.config_id
        self.hall.refuses_one_in = self._refusals(seed, profile)
        self.hall.tick_ns, self.hall.restart_ns = self.profile.tick_ns, self.profile.restart_ns
        self.runners = self.hall.runners
        for node in self.config.nodes:
            self.runners[node] = self._runner(node)
        self.faults = BusFaults(self.hall, self.profile, may_freeze=not profile)
        self._submitted = 0
        # The producers: members, and the nodes that do nothing else.
        self._sources = [
            node
            for node in self.config.nodes
            if node in self.config.data_servers or node not in self.profile.servers
        ]
        self._has_spoken: set[int] = set()

    def _refusals(self, seed: int, profile: str) -> int:
        """One number in how many fails. The table must hold the outcomes of all envelopes under way: nothing
        here asks for outcomes in time, as client managers do."""
        if profile:
            return self.profile.refuses_one_in
        return limits.refusals(seed) if outcomes.OUTCOMES_MAX >= 64 else 0

    def adjust(self, profile: BusProfile) -> None:
        """Nothing; the test of an earlier failure says here what made its seed special."""

    def _runner(self, node: int) -> BusRunner:
        has_disk = node in self.profile.servers
        runner = BusRunner(self.hall, node, (lambda: self._new_disk(node)) if has_disk else None)
        if self.profile.are_clocks_unsteady:
            runner.clock.make_unsteady()
        return runner

    def _new_disk(self, node: int) -> tuple[SimDisk, bytes]:
        self._disks += 1
        # The first disks are those that the configuration lists.
        listed = self.config.disk_of(node)
        is_first = node not in self.runners
        disk_id = listed if is_first and listed else self.world.random(f"disk id/{self._disks}").randbytes(16)
        disk = SimDisk(self.world, f"disk/{node}")
        disk.habits = self.profile.disk
        return disk, disk_id

    def figures(self) -> dict[str, int]:
        return {
            "submitted": self._submitted,
            "confirmed": self.world.probes["producer.confirmed"],
            "reigns": self.world.probes["order.PRIMARY_CLAIM"],
            "lives": sum(runner.life for runner in self.runners.values()),
        }

    def _begin(self) -> None:
        self.world.probe(f"shape.{self.profile.shape}")
        for name in self.profile.unusual_settings():
            self.world.probe(f"unusual.{name}")
        for runner in self.runners.values():
            runner.start()
        self._plan_work()
        self.faults.plan()

    def _plan_work(self) -> None:
        for _ in range(self.profile.envelopes):
            runner = self.runners[self._chance.choice(self._sources)]
            at = self._chance.randrange(self.profile.safety_ns)
            self.world.after(at, lambda runner=runner: self._submit(runner))  # type: ignore[misc]

    def _submit(self, runner: BusRunner, last: bool = False) -> None:
        if not runner.is_up or (len(runner.open_tags) >= self.profile.window and not last):
            return
        count = self._chance.randint(1, self.profile.commands_max)
        if self.hall.refuses_one_in and not last and not self.profile.is_greedy:
            # No more is under way than outcomes are kept of, as in client managers.
            tags = 1 + sum(len(one.open_tags) for one in self.runners.values())
            under_way = tags * self.profile.commands_max
            if under_way // self.hall.refuses_one_in > outcomes.OUTCOMES_MAX // 2:
                return
        self._submitted += 1
        runner.submit(b"".join([_command(self._submitted, row) for row in range(count)]), count)

    def _heal(self) -> None:
        self.hall.restart_ns = 20 * MILLISECOND_NS
        self.faults.end()
        super()._heal()
        # Every producer submits once more, also those that came back: the envelopes of a former life are
        # settled when the next one opens.
        self._speak()

    def _speak(self) -> None:
        for node in self._sources:
            runner = self.runners[node]
            if runner.is_up and node not in self._has_spoken:
                self._has_spoken.add(node)
                self._submit(runner, last=True)
        if any(not self.runners[node].is_gone and node not in self._has_spoken for node in self._sources):
            self.world.after(self.look_ns, self._speak)

    def _judge(self) -> None:
        self._watch.at_end(self._facts())

    def _machines(self) -> dict[str, list[Any]]:
        return {f"node {node}": [one.machines] for node, one in self.runners.items() if one.is_up}

    def _disks_at_rest(self) -> Iterator[tuple[str, MemoryDisk, ChannelState | None]]:
        for node, one in self.runners.items():
            replica, disk = one.replica, one.disk
            if replica is None or disk is None or one.is_damaged or replica.is_amnesiac:
                continue
            if node in replica.config.commit_servers and not is_cut(replica, one.journal):
                yield f"node {node}", disk, None

    def _facts(self) -> dict[int, NodeFacts]:
        return {node: facts for node, one in self.runners.items() if (facts := one.facts()) is not None}

    def _what_is_open(self) -> str:
        for runner in self.runners.values():
            if not runner.is_up and not runner.is_gone:
                return f"node {runner.node_id} is down"
            if (
                runner.node_id in self._sources
                and not runner.is_gone
                and runner.node_id not in self._has_spoken
            ):
                return f"node {runner.node_id} has not spoken its last"
            replica = runner.replica
            if replica is None or runner.node_id not in replica.config.data_servers:
                continue
            if replica.unsettled and self.profile.settles:
                return f"node {runner.node_id} holds {replica.unsettled} envelopes without a number"
        return self._liveness.what_is_open(self._facts())


def _command(envelope: int, row: int) -> bytes:
    """A command that takes one number, another for each envelope and row."""
    body = LogTime(time_ms=envelope << 16 | row, term=1).encode()
    return encode_command(CommandKind.LOG_TIME, 0, 0, 0, 0, body)
