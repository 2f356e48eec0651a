"""DiskFaults: faults of the nodes' disks, beyond a crash.

A sync fails, there is no room for a while, the power goes while a segment is recycled or a checkpoint is
written, or bits change: in the superblock, in checkpoints, in envelopes. Everything destroyed that counts
must exist on the disks of others: otherwise the fault waits, and at last does not happen. A lone node loses
nothing but its newest checkpoint, and that only if it has an older one.

The faults have a generator of their own, so that they do not change the rest of a run.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.bus.messages import EntryKind
from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal import checkpoints
from antiphon.journal.format import checkpoint_numbers
from antiphon.journal.superblock import SuperblockFile
from antiphon.sim.cluster.misreading import Misreads
from antiphon.sim.disk import DiskProfile, SimDisk
from antiphon.sim.faults import FaultTable
from antiphon.sim.image import Image
from antiphon.sim.runner import SimNode, Town
from antiphon.sim.spoiling import rot_checkpoints, rot_envelopes, rot_superblock
from antiphon.sim.world import MILLISECOND_NS
from antiphon.startup import StartedNode

# The tests of seeds that are older than these faults switch them off.
are_drawn = True

_SHARE = 0.4
_TRIES = 8
# Work during which the power can go, with its number of operations.
MOMENTS = {"recycling": 8, "checkpoint": 2}


class DiskFaults(FaultTable):
    def __init__(self, town: Town, safety_ns: int, profile: DiskProfile | None = None) -> None:
        super().__init__(town.world, town.world.random("disk faults"), safety_ns)
        self._town = town
        self._profile = profile or (self._draw() if are_drawn else DiskProfile())

    def _draw(self) -> DiskProfile:
        def sometimes(most: int) -> int:
            return self._chance.randint(1, most) if self._chance.random() < _SHARE else 0

        return DiskProfile(
            failed_syncs=sometimes(2),
            full_disks=sometimes(2),
            damages=sometimes(3),
            cut_recyclings=sometimes(1),
            cut_checkpoints=sometimes(1),
        )

    def plan(self) -> None:
        self.plan_rows(
            self._profile,
            {
                "failed_syncs": self._fail_sync,
                "full_disks": self._fill,
                "damages": self._damage,
                "cut_recyclings": lambda: self._cut_in("recycling"),
                "cut_checkpoints": lambda: self._cut_in("checkpoint"),
            },
        )

    def _victim(self) -> SimNode:
        """The leader in half of the cases."""
        channel = self._chance.choice(list(self._town.quarters))
        leader = self._town.leader(channel)
        if leader is not None and self._chance.random() < 0.5:
            return leader
        return self._chance.choice(self._town.managers_of(channel))

    def _fail_sync(self) -> None:
        """The next sync fails, and the process ends.

        If the machine goes on, its memory may show bytes that the disk does not have: the files are not read
        again. If the machine is started again, they are.
        """
        victim = self._victim()
        is_rebooted = self._chance.random() < 0.3

        def fails() -> bool:
            victim.disk.fails = None
            if not is_rebooted and self._can_spare(victim) is not None:
                victim.lose_disk("a sync failed")
            return True

        victim.disk.fails = fails

    def _fill(self) -> None:
        disk = self._victim().disk
        if disk.capacity is None:
            self._world.probe("disk.filled")
            disk.capacity = disk.bytes_used
            duration_ns = self._chance.randrange(20 * MILLISECOND_NS, 600 * MILLISECOND_NS)
            self._world.after(duration_ns, lambda: _make_room(disk))

    def _cut_in(self, work: str) -> None:
        self._victim().disk.cut_in = work, self._chance.randrange(MOMENTS[work])

    def _damage(self, tries: int = _TRIES) -> None:
        """Bits change on the disk of a node for which the others can make up."""
        victim = self._victim()
        if not victim.is_up or self._town.misreads is not Misreads.NOTHING:
            held = None
        elif _is_alone(victim):
            self._damage_newest_checkpoint(victim)
            return
        else:
            held = self._can_spare(victim)
        if held is None:
            if tries:
                self.after(self._chance.randrange(60 * MILLISECOND_NS), lambda: self._damage(tries - 1))
            return
        kinds: list[Callable[[SimNode, set[Mid]], None]] = [self._damage_superblock]
        if victim.has_messages:
            kinds += [self._damage_checkpoints, *[self._damage_envelopes] * 3]
        self._chance.choice(kinds)(victim, held)

    def _damage_superblock(self, victim: SimNode, held: set[Mid]) -> None:
        victim.crash()
        self._world.probe("disk.superblock_damaged")
        rot_superblock(victim.disk)
        victim.lose_disk()

    def _damage_checkpoints(self, victim: SimNode, held: set[Mid]) -> None:
        """The newest checkpoint cannot be read when the next life begins, or none can."""
        victim.crash()
        if rot_checkpoints(victim.disk, self._chance.choice((1, None))):
            self._world.probe("disk.checkpoint_damaged")
            victim.damage_disk()

    def _damage_newest_checkpoint(self, victim: SimNode) -> None:
        victim.crash()
        if _has_older_checkpoint(victim.disk):
            rot_checkpoints(victim.disk, 1)
            self._world.probe("disk.newest_checkpoint_damaged")
            victim.damage_disk()

    def _damage_envelopes(self, victim: SimNode, held: set[Mid]) -> None:
        """Some envelopes that others hold are missing in the next life, or unreadable in this one."""
        needed = _needed(victim) & held
        if needed and self._chance.random() < 0.7:
            held = needed
        journal = victim.journal
        kind = "unreadable"
        if journal is None or self._chance.random() < 0.5:
            is_rotten = False
        else:
            is_rotten = bool(rot_envelopes(victim.disk, held, self._chance, journal))
        if not is_rotten:
            kind = "missing"
            victim.crash()
            is_rotten = bool(rot_envelopes(victim.disk, held, self._chance))
        if is_rotten:
            self._world.probe(f"disk.envelopes_{kind}")
            victim.damage_disk()

    def _can_spare(self, victim: SimNode) -> set[Mid] | None:
        """The envelopes that others hold, if the group can do without this node's disk.

        Then all voters are up with the listed disks and agree on the configuration; the others would come
        back whole, with a state that reaches every log; and one of them holds each envelope of the victim.
        """
        config, since = self._town.newest[victim.quarter.channel]
        voters = [self._town.managers[node] for node in config.commit_servers]
        if len(voters) < 2 or not all(_is_settled(one, since) for one in voters):
            return None
        found = {one: one.restart_on_paper() for one in voters}
        base = max([one.replica.base for one in found.values() if one is not None], default=0)
        wanted = {mid for one in found.values() if one is not None for mid in _numbered(one)}
        assert victim.journal is not None, "a node that is up has a journal"
        wanted |= {mid for mid, _ in victim.journal.payloads.unplaced()}
        held: set[Mid] = set()
        for one, started in found.items():
            if one is victim:
                continue
            if started is None or started.alarms:
                return None
            if one.has_messages:
                if started.manager.applied < base:
                    return None
                held |= {stored.mid for stored in started.found.data}
        return held if held.issuperset(wanted) else None


def _is_alone(node: SimNode) -> bool:
    return len(node.quarter.config.data_servers) == 1


def _is_settled(node: SimNode, since: int) -> bool:
    """Has this node the listed disk, and entries behind the newest configuration?"""
    replica = node.replica
    if replica is None or node.distrusted or replica.committed_upto <= since:
        return False
    config, _ = node.town.newest[node.quarter.channel]
    return replica.config.config_id == config.config_id and node.disk_id == config.disk_of(node.node_id)


def _numbered(started: StartedNode) -> set[Mid]:
    """The envelopes that have a number by the log of this disk."""
    return {entry.mid for entry in Image.of(started.found).log if entry.kind is EntryKind.DATA}


def _needed(node: SimNode) -> set[Mid]:
    """The envelopes that this node's newest checkpoint refers to."""
    started = node.restart_on_paper()
    if started is None:
        return set()
    places = set(started.manager.state.records())
    return {stored.mid for stored in started.found.data if stored.location in places}


def _has_older_checkpoint(disk: SimDisk) -> bool:
    """Are the two newest checkpoints whole?"""
    numbers = checkpoint_numbers(disk.list_files())[-checkpoints.KEPT_ALWAYS :]
    if len(numbers) < checkpoints.KEPT_ALWAYS:
        return False
    disk_id = SuperblockFile.load(disk).current.disk_id
    try:
        for n in numbers:
            checkpoints.load(disk, disk_id, n)
    except Damaged:
        return False
    return True


def _make_room(disk: SimDisk) -> None:
    disk.capacity = None
