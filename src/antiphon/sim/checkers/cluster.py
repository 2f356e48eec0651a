"""All checkers of a group of nodes that share one order.

`WriteBeforeSend`, `Reigns`, `Committed` and `Failures` are read by others and cannot be left out of a run.
"""

from __future__ import annotations

from antiphon.bus.group import GroupConfig
from antiphon.sim.checkers.checkpoint import Checkpoints
from antiphon.sim.checkers.committed import Committed
from antiphon.sim.checkers.copies import Copies
from antiphon.sim.checkers.damage import Damage
from antiphon.sim.checkers.deletion import Deletions
from antiphon.sim.checkers.liveness import Liveness
from antiphon.sim.checkers.memberships import Memberships
from antiphon.sim.checkers.monotone import Monotone
from antiphon.sim.checkers.order import Order
from antiphon.sim.checkers.producers import Envelopes, Failures
from antiphon.sim.checkers.reigns import Reigns
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.world import World


def cluster_checkers(world: World, config: GroupConfig) -> tuple[Checker, ...]:
    """Those that others read come first: what is on the disks, the logs of epochs, what is committed."""
    disks = WriteBeforeSend(world)
    reigns = Reigns(world, disks)
    memberships = Memberships(config)
    committed = Committed(world, memberships, disks, reigns)
    failures = Failures(world, committed)
    return (
        disks,
        Monotone(world, disks),
        reigns,
        committed,
        Order(world),
        Copies(world, memberships),
        failures,
        Envelopes(world, committed),
        Deletions(world, disks, committed, failures),
        Checkpoints(world),
        Damage(world),
        Liveness(world, committed),
    )
