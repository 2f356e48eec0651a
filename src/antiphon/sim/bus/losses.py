"""Losses: what goes wrong with disks, beyond what a crash does to them.

A disk is replaced, a sync fails, the log or a checkpoint or an envelope cannot be read any more, there is no
room for a while. The atlas says whether the group can live with it; if not, nothing happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.bus.effects import DataRecord, SpaceChanged
from antiphon.sim.bus.atlas import Atlas
from antiphon.sim.bus.disks import RecordDisk
from antiphon.sim.bus.runner import BusRunner, Hall
from antiphon.sim.world import MILLISECOND_NS

_RETRY_NS = 100 * MILLISECOND_NS


class Losses:
    """Destroys what the group can spare."""

    def __init__(self, hall: Hall, atlas: Atlas, chance: random.Random) -> None:
        self._hall = hall
        self._atlas = atlas
        self._chance = chance
        self._is_over = False

    def end(self) -> None:
        """Nothing is lost any more; whoever found its log damaged is started again, there is room."""
        self._is_over = True
        for runner in self._hall.runners.values():
            if runner.is_damaged:
                runner.crash()
            if isinstance(runner.disk, RecordDisk):
                runner.disk.fails = None
                self._make_room(runner)

    def wipe(self, victim: BusRunner) -> None:
        """The disk is gone, or its log is: what is left is put aside, and new files are made."""
        if self._atlas.may_lose_all(victim):
            victim.wipe()

    def fail_sync(self, victim: BusRunner) -> None:
        """The next sync fails: the life ends, and its files must not be read again."""
        if isinstance(victim.disk, RecordDisk):
            victim.disk.fails = lambda: not self._is_over and self._atlas.may_lose_all(victim)

    def damage_log(self, victim: BusRunner) -> None:
        """In the middle of a life it is found that the log cannot be read."""
        if victim.is_up and self._atlas.may_lose_all(victim):
            self._hall.world.probe("disk.log_damaged")
            victim.lose_log()

    def damage_checkpoint(self, victim: BusRunner) -> None:
        """The newest checkpoint cannot be read when the next life begins, or none can."""
        disk, keepers = victim.disk, self._atlas.config.data_servers
        others = [node for node in keepers if node != victim.node and self._atlas.is_well(node)]
        if not isinstance(disk, RecordDisk) or not disk.checkpoints or not self._atlas.has_state(others):
            return
        self._hall.world.probe("disk.checkpoint_damaged")
        victim.crash()
        kept = len(disk.checkpoints) - 1 if self._chance.random() < 0.7 else 0
        del disk.checkpoints[kept:]
        self._hall.watch.on_damaged(victim.node)

    def damage_envelopes(self, victim: BusRunner) -> None:
        """Some envelopes that others hold, too, are missing in the next life, or cannot be read."""
        disk, elsewhere = victim.disk, self._atlas.elsewhere(victim)
        if not isinstance(disk, RecordDisk):
            return
        victim.crash()
        held = [one for one in disk.synced if isinstance(one, DataRecord) and one.mid in elsewhere]
        if not held:
            return
        bad = self._chance.sample(held, min(len(held), self._chance.randint(1, 5)))
        mids = {one.mid for one in bad}
        victim.unreadable |= mids
        if self._chance.random() < 0.5:
            self._hall.world.probe("disk.envelopes_missing")
            disk.synced = [
                one for one in disk.synced if not isinstance(one, DataRecord) or one.mid not in mids
            ]
        else:
            self._hall.world.probe("disk.envelopes_unreadable")
            disk.unreadable |= mids
        self._hall.watch.on_damaged(victim.node)

    # Room.

    def fill(self, victim: BusRunner, duration_ns: int) -> None:
        """There is little room for a while, or none."""
        disk = victim.disk
        if not isinstance(disk, RecordDisk) or disk.room is not None:
            return
        kind = self._chance.choice(("low", "tight", "full", "full"))
        self._hall.world.probe(f"disk.{kind}")
        disk.room = SpaceChanged(True, kind != "low", f"room is {kind}", kind == "full")
        self._tell_low(victim, disk)
        self._hall.world.after(duration_ns, lambda: self._make_room(victim))

    def _tell_low(self, victim: BusRunner, disk: RecordDisk) -> None:
        if disk.room is not None and victim.disk is disk:
            victim.take(disk.room)
            self._hall.world.after(_RETRY_NS, lambda: self._tell_low(victim, disk))

    def _make_room(self, victim: BusRunner) -> None:
        disk = victim.disk
        if isinstance(disk, RecordDisk) and disk.room is not None:
            disk.room = None
            victim.take(SpaceChanged(False))

    def plan(
        self,
        times: int,
        names: tuple[str, ...],
        plan: Callable[[Callable[[], None]], None],
        victim: Callable[[], BusRunner],
    ) -> None:
        """Lay out so many losses of these kinds."""
        kinds: dict[str, Callable[[BusRunner], None]] = {
            "log": self.damage_log,
            "checkpoint": self.damage_checkpoint,
            "envelopes": self.damage_envelopes,
            "sync": self.fail_sync,
        }
        for _ in range(times):
            strike = kinds[self._chance.choice(names)]
            plan(lambda strike=strike: strike(victim()))  # type: ignore[misc]
