"""Profiles of a bank: several channels, and more faults for the transactions among them.

A run is like one of the cluster, with two or three channels of which most have one message manager: this
workload looks for mistakes between channels. Transactions are soon in doubt, and checkpoints come every few
entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.bus.group import GroupConfig
from antiphon.sim.clients.bank import TellerHabits
from antiphon.sim.cluster.profile import ClusterProfile, draw_into
from antiphon.sim.disk import DiskProfile
from antiphon.sim.world import MILLISECOND_NS

CHANNELS = ("a", "b", "c")
_NODES_OF_CHANNEL = 3


@dataclass(slots=True)
class TransactionProfile(ClusterProfile):
    """The values that are drawn besides."""

    # One for each channel.
    shapes: tuple[str, ...] = ("one", "one")
    accounts: int = 4
    traders: int = 2
    stagers: int = 1
    deposits: int = 12
    versions: int = 2
    # How many steps of transactions are struck.
    strikes: int = 0
    strike_probability: float = 0.2
    tellers: TellerHabits = field(default_factory=TellerHabits)

    @property
    def channels(self) -> tuple[str, ...]:
        return CHANNELS[: len(self.shapes)]

    def servers_of(self, at: int) -> tuple[int, ...]:
        """The nodes with a disk of one channel."""
        first = 1 + at * _NODES_OF_CHANNEL
        return (first,) if self.shapes[at] == "one" else (first, first + 1, first + 2)

    def groups(self, new_disk_id: Callable[[], bytes]) -> list[GroupConfig]:
        """All channels of this run."""
        return [
            self._group_of(channel, self.shapes[at], self.servers_of(at), new_disk_id)
            for at, channel in enumerate(self.channels)
        ]


def draw(chance: random.Random, name: str = "") -> TransactionProfile:
    """The profile of a run; a named one stresses one thing."""
    profile = TransactionProfile()
    draw_into(chance, profile)
    profile.is_gentle = False
    count = chance.choices((2, 3), (75, 25))[0]
    profile.shapes = tuple(chance.choices(("one", "three", "witness"), (80, 13, 7), k=count))
    profile.safety_ns = chance.randint(250, 700) * MILLISECOND_NS
    profile.accounts = chance.randint(count, 5)
    profile.traders = chance.randint(1, 3)
    profile.stagers = chance.choice((0, 1, 1))
    profile.deposits = chance.randint(6, 20)
    profile.versions = chance.randint(1, 4)
    profile.strikes = chance.randint(1, 5) if chance.random() < 0.6 else 0
    profile.strike_probability = chance.choice((0.05, 0.2, 0.5))
    # Few messages, and many checkpoints among them.
    profile.settings["checkpoint_entries"] = chance.choice((5, 12, 40))
    profile.node.in_doubt_ms = chance.choice((50, 200, 600))
    profile.node.prepare_wait_ms = chance.choice((100, 1_000))
    profile.node.finish_wait_ms = chance.choice((20, 200))
    profile.clients.body_bytes_max = chance.choice((40, 300))
    profile.clients.credit_messages = chance.choice((1, 5, 20))
    _draw_tellers(chance, profile.tellers)
    if name:
        profile.topics = 0
        profile.disk_faults = DiskProfile()
        PROFILES[name](chance, profile)
        profile.is_made = True
    return profile


def _draw_tellers(chance: random.Random, tellers: TellerHabits) -> None:
    tellers.transfers = chance.randint(10, 40)
    tellers.pause_ns = chance.choice((3, 10, 40)) * MILLISECOND_NS
    tellers.send_pause_ns = chance.choice((1, 5, 30)) * MILLISECOND_NS
    tellers.messages_max = chance.randint(1, 4)
    tellers.rollback_probability = chance.choice((0.0, 0.15, 0.4))
    tellers.death_probability = chance.choice((0.0, 0.0, 0.1))
    tellers.go_on_probability = chance.choice((0.0, 0.5, 1.0))
    tellers.keep_probability = chance.choice((0.0, 0.5, 1.0))
    tellers.look_probability = chance.choice((0.0, 0.3))
    tellers.drop_probability = chance.choice((0.0, 0.2))


def _for_lonely_decisions(chance: random.Random, profile: TransactionProfile) -> None:
    """Homes are slow to decide, and participants soon in doubt."""
    profile.safety_ns = 900 * MILLISECOND_NS
    profile.strikes, profile.strike_probability = 2, 0.1
    profile.crashes = profile.power_cuts = profile.blackouts = profile.partitions = profile.sleeps = 0
    profile.node.in_doubt_ms = 8
    profile.disk.sync_ns = 10 * MILLISECOND_NS
    profile.tellers.rollback_probability = profile.tellers.death_probability = 0.0
    profile.tellers.pause_ns = 5 * MILLISECOND_NS


def _for_hasty_commits(chance: random.Random, profile: TransactionProfile) -> None:
    """Commits across channels that the home refuses: their messages are gone by then."""
    profile.strikes, profile.strike_probability = 4, 0.2
    profile.tellers.go_on_probability = 1.0
    profile.tellers.pause_ns = 5 * MILLISECOND_NS


def _for_lost_parts(chance: random.Random, profile: TransactionProfile) -> None:
    """Nodes come back from checkpoints with open, prepared and staged parts in them."""
    profile.settings["checkpoint_entries"] = 5
    profile.crashes, profile.strikes, profile.strike_probability = 4, 6, 0.3
    profile.tellers.send_pause_ns = 30 * MILLISECOND_NS


def _for_open_parts(chance: random.Random, profile: TransactionProfile) -> None:
    """Client managers are taken for dead in the middle of transactions, and the channels stay."""
    profile.safety_ns = 1_500 * MILLISECOND_NS
    profile.door_sleeps, profile.door_crashes, profile.leave_probability = 4, 0, 0.0
    profile.crashes = profile.power_cuts = profile.blackouts = profile.sleeps = 0
    profile.settings["silence_ms"] = 300
    profile.clients.patience_ns = 0
    profile.tellers.send_pause_ns = 30 * MILLISECOND_NS


def _for_ended_sessions(chance: random.Random, profile: TransactionProfile) -> None:
    """Sessions end soon after their clients die in the middle of a commit, and participants are slow."""
    profile.safety_ns = 900 * MILLISECOND_NS
    profile.strikes, profile.strike_probability = 6, 0.3
    profile.node.session_expiry_ms = 20
    profile.node.finish_wait_ms = 200
    profile.clients.resume_probability = 0.5
    profile.tellers.death_probability = 0.3
    profile.tellers.pause_ns = 5 * MILLISECOND_NS


def _for_topics(chance: random.Random, profile: TransactionProfile) -> None:
    """Half of the money goes through topics; clients die during their commits, which take long."""
    profile.safety_ns = 900 * MILLISECOND_NS
    profile.accounts, profile.topics, profile.traders = 2, 2, 2
    profile.strikes, profile.strike_probability = 6, 0.3
    profile.deposits = 20
    profile.disk.sync_ns = 10 * MILLISECOND_NS
    profile.tellers.rollback_probability, profile.tellers.death_probability = 0.0, 0.3
    profile.tellers.pause_ns = 5 * MILLISECOND_NS


def _for_closed_consumers(chance: random.Random, profile: TransactionProfile) -> None:
    """Consumers are closed in the middle of transactions that have messages of them."""
    profile.safety_ns = 900 * MILLISECOND_NS
    profile.accounts, profile.traders, profile.deposits = 2, 3, 20
    profile.crashes = profile.power_cuts = profile.blackouts = profile.partitions = profile.sleeps = 0
    profile.clients.credit_messages = 5
    profile.tellers.rollback_probability = profile.tellers.death_probability = 0.0
    profile.tellers.retire_probability = 0.5
    profile.tellers.messages_max = 1
    profile.tellers.send_pause_ns = 30 * MILLISECOND_NS
    profile.tellers.pause_ns = 5 * MILLISECOND_NS


PROFILES: dict[str, Callable[[random.Random, TransactionProfile], None]] = {
    "hasty-commits": _for_hasty_commits,
    "lonely-decisions": _for_lonely_decisions,
    "lost-parts": _for_lost_parts,
    "open-parts": _for_open_parts,
    "ended-sessions": _for_ended_sessions,
    "topics": _for_topics,
    "closed-consumers": _for_closed_consumers,
}
