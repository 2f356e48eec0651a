"""Losses: faults of disks, beyond a crash.

A disk is replaced, a sync fails, the log or a checkpoint or an envelope cannot be read any more, there is no
room for a while. A loss that the atlas forbids does not happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.sim.bus.atlas import Atlas
from antiphon.sim.bus.runner import BusRunner, Hall
from antiphon.sim.disk import SimDisk
from antiphon.sim.spoiling import rot_checkpoints, rot_envelopes


class Losses:
    def __init__(self, hall: Hall, atlas: Atlas, chance: random.Random) -> None:
        self._hall = hall
        self._atlas = atlas
        self._chance = chance

    def end(self) -> None:
        """Nothing is lost any more; nodes with a damaged log are started again."""
        for runner in self._hall.runners.values():
            if runner.is_damaged:
                runner.crash()

    def wipe(self, victim: BusRunner) -> None:
        """The disk is gone, or its log is: the rest is put aside, and new files are made."""
        if self._atlas.may_lose_all(victim):
            victim.wipe()

    def fail_sync(self, victim: BusRunner) -> None:
        """The next sync fails: the life ends, and its files must not be read again."""
        if victim.disk is not None:
            victim.disk.fails = lambda: self._atlas.may_lose_all(victim)

    def damage_log(self, victim: BusRunner) -> None:
        """In the middle of a life the log turns out to be unreadable."""
        if victim.is_up and self._atlas.may_lose_all(victim):
            self._hall.world.probe("disk.log_damaged")
            victim.lose_log()

    def damage_checkpoint(self, victim: BusRunner) -> None:
        """The newest checkpoint cannot be read when the next life begins, or none can."""
        disk, keepers = victim.disk, self._atlas.config.data_servers
        others = [node for node in keepers if node != victim.node_id and self._atlas.is_well(node)]
        if disk is None or not self._atlas.has_state(others):
            return
        victim.crash()
        if rot_checkpoints(disk, 1 if self._chance.random() < 0.7 else None):
            self._hall.world.probe("disk.checkpoint_damaged")
            self._hall.watch.on_damaged(victim.node_id)

    def damage_envelopes(self, victim: BusRunner) -> None:
        """Some envelopes that others hold are missing in the next life, or unreadable in this one."""
        disk = victim.disk
        if disk is None:
            return
        durable = self._hall.images[victim.node_id].mids if victim.node_id in self._hall.images else set()
        mids = self._atlas.elsewhere(victim) & durable
        journal = victim.journal
        if journal is None or self._chance.random() >= 0.5:
            victim.crash()
            journal = None
        rotten = rot_envelopes(disk, mids, self._chance, journal)
        if rotten:
            kind = "missing" if journal is None else "unreadable"
            self._hall.world.probe(f"disk.envelopes_{kind}")
            victim.unreadable |= rotten
            self._hall.watch.on_damaged(victim.node_id)

    def fill(self, victim: BusRunner, duration_ns: int) -> None:
        """There is no room for another file for a while."""
        disk = victim.disk
        if disk is not None and victim.is_up and disk.capacity is None:
            disk.capacity = disk.bytes_used
            self._hall.world.after(duration_ns, lambda: self._make_room(disk))

    def _make_room(self, disk: SimDisk) -> None:
        disk.capacity = None

    def plan(
        self,
        times: int,
        names: tuple[str, ...],
        plan: Callable[[Callable[[], None]], None],
        victim: Callable[[], BusRunner],
    ) -> None:
        """Plan so many losses of these kinds."""
        kinds: dict[str, Callable[[BusRunner], None]] = {
            "log": self.damage_log,
            "checkpoint": self.damage_checkpoint,
            "envelopes": self.damage_envelopes,
            "sync": self.fail_sync,
        }
        for _ in range(times):
            strike = kinds[self._chance.choice(names)]
            plan(lambda strike=strike: strike(victim()))  # type: ignore[misc]
