"""Profiles of a group: its shape and settings, its faults, and how many.

By default every kind of fault is switched on with a probability of one half and its rate is drawn: leaving
kinds out finds more than having all of them always, because some hide others. Settings are drawn too, among
them tiny windows, pages and time-outs. A named profile stresses one thing, at the expense of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from antiphon.bus.group import GroupConfig
from antiphon.sim.disk import DiskHabits
from antiphon.sim.groups import group_of
from antiphon.sim.links import LinkHabits
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS

CHANNEL = "a"

# The drawn settings. The first of each is the unusual one: a page of one entry, a window of one, a time-out
# that strikes when nothing is wrong.
SETTINGS: dict[str, tuple[int, ...]] = {
    "heartbeat_ms": (30, 50),
    "suspicion_ms": (100, 250, 500),
    "rank_delay_ms": (20, 150),
    "suspicion_spread_ms": (20, 100),
    "check_ms": (150, 500),
    "rereport_ms": (20, 200),
    "retransmit_ms": (20, 100),
    "tick_ms": (100, 1_000),
    "fetch_delay_ms": (1, 10),
    "fetch_delay_ms_max": (100, 1_000),
    "presence_ms": (50, 200),
    "silence_ms": (300, 2_000),
    "lag_max": (5, 262_144),
    "leaderless_ms": (500, 2_000),
    "lifetime": (40, 200, 1 << 40, 1 << 40),
    "submit_entries_max": (1, 3, 256),
    "report_items_max": (1, 4, 1_024),
    "fetch_entries_max": (1, 5, 1_024),
    "fetch_mids_max": (1, 4, 64),
    "window_entries": (1, 5, 1_024),
    "producer_window_bytes": (1, 6_000, 1 << 20),
    "cached_bytes_max": (0, 1 << 20),
    "one_round": (0, 1, 1),
}
# Checkpoints of every few entries, or none within a run.
CHECKPOINT_ENTRIES = (10, 40, 100_000, 100_000)
# Nodes that wait for a role, and how often roles change then; disks that are lost, damaged, full.
SPARES = (0, 0, 1)
CHANGES = (1, 2, 3)
WIPES = (0, 0, 1, 2)
DAMAGES = (0, 0, 1, 3)
FILLINGS = (0, 0, 0, 2)

SHAPES = ("three", "one", "witness", "five")
SHAPE_OF_NODES = {1: "one", 2: "witness", 3: "three", 5: "five"}


@dataclass(slots=True)
class BusProfile:
    """Everything that is drawn before a run begins."""

    safety_ns: int = 2_000 * MILLISECOND_NS
    shape: str = "three"
    # Nodes that only produce, as client managers do.
    producers: int = 0
    # Nodes with a disk that have no role until the configuration changes.
    spares: int = 0
    envelopes: int = 45
    window: int = 4
    commands_max: int = 3
    tick_ns: int = 20 * MICROSECOND_NS
    restart_ns: int = 500 * MILLISECOND_NS

    crashes: int = 0
    power_cuts: int = 0
    blackouts: int = 0
    pauses: int = 0
    pause_ns_max: int = 1_500 * MILLISECOND_NS
    partitions: int = 0
    partition_ns_max: int = 1_000 * MILLISECOND_NS
    clogs: int = 0
    hold_backs: int = 0
    # The probability that the sequencer becomes mute in any ten milliseconds, and for how long.
    mute_probability: float = 0.0
    mute_ns_max: int = 500 * MILLISECOND_NS
    # How often a node loses its disk, and how often the configuration changes.
    wipes: int = 0
    changes: int = 0
    # How often a disk is found damaged or a sync fails, and how often there is no room.
    damages: int = 0
    damage_kinds: tuple[str, ...] = ("log", "checkpoint", "envelopes", "envelopes", "sync")
    fillings: int = 0
    # The probability that a change is followed by another at once, which must be refused.
    double_change_probability: float = 0.2
    producer_deaths: int = 0
    # How many data servers the last envelope of a producer reaches; 0: not limited.
    reached_max: int = 0
    # The probability that a dead producer comes back, with another run id.
    return_probability: float = 0.5
    # Must every envelope at a data server get a number in the end, or be given up for good?
    settles: bool = True
    are_clocks_unsteady: bool = False
    # How often a clock leaps, so that every time-out of a node strikes at once.
    leaps: int = 0
    checkpoint_entries: int = 100_000
    # Of named profiles: one number in how many fails; 0: none.
    refuses_one_in: int = 0
    # Does a node submit more envelopes than outcomes are kept of?
    is_greedy: bool = False

    disk: DiskHabits = field(default_factory=DiskHabits)
    links: LinkHabits = field(default_factory=LinkHabits)
    settings: dict[str, Any] = field(default_factory=dict)

    def unusual_settings(self) -> list[str]:
        """The settings that no operator would choose."""
        return [name for name, choices in SETTINGS.items() if self.settings[name] == choices[0]]

    @property
    def servers(self) -> tuple[int, ...]:
        """The nodes with a disk; those without a role yet come last."""
        count = {"one": 1, "three": 3, "witness": 3, "five": 5}[self.shape]
        return tuple(range(1, count + 1 + self.spares))

    def group(self, new_disk_id: Callable[[], bytes]) -> GroupConfig:
        producers = tuple(range(101, 101 + self.producers))
        voters = len(self.servers) - self.spares
        return group_of(
            CHANNEL,
            self.shape,
            self.servers[:voters],
            producers,
            new_disk_id,
            spares=self.servers[voters:],
            checkpoint_entries=self.checkpoint_entries,
            **self.settings,
        )


def draw(chance: random.Random, name: str = "") -> BusProfile:
    """The profile of a run; a named one stresses one thing."""
    profile = BusProfile()
    _draw_size(chance, profile)
    _draw_faults(chance, profile)
    _draw_links_and_disks(chance, profile)
    _draw_settings(chance, profile)
    if name:
        PROFILES[name](chance, profile)
    return profile


def _draw_size(chance: random.Random, profile: BusProfile) -> None:
    profile.safety_ns = chance.randint(800, 2_500) * MILLISECOND_NS
    profile.shape = chance.choices(SHAPES, (75, 5, 12, 8))[0]
    profile.producers = chance.choice((0, 0, 1, 2))
    profile.spares = chance.choice(SPARES) if profile.shape == "three" else 0
    profile.envelopes = chance.randint(25, 60)
    profile.window = chance.choice((1, 4, 20))
    profile.commands_max = chance.choice((1, 3, 10))
    profile.tick_ns = chance.choice((1, 20, 500)) * MICROSECOND_NS


def _draw_faults(chance: random.Random, profile: BusProfile) -> None:
    def sometimes(most: int) -> int:
        return chance.randint(1, most) if chance.random() < 0.5 else 0

    profile.crashes = sometimes(5)
    profile.power_cuts = sometimes(2)
    profile.blackouts = chance.choice((0, 0, 0, 1))
    profile.pauses = sometimes(3)
    profile.wipes = chance.choice(WIPES) if profile.shape != "one" else 0
    profile.changes = chance.choice(CHANGES) if profile.spares else 0
    profile.damages = chance.choice(DAMAGES) if profile.shape != "one" else 0
    profile.fillings = chance.choice(FILLINGS) if profile.shape != "one" else 0
    profile.pause_ns_max = chance.choice((200, 1_000, 5_000)) * MILLISECOND_NS
    profile.partitions = sometimes(5)
    profile.partition_ns_max = chance.choice((100, 1_000)) * MILLISECOND_NS
    profile.clogs = sometimes(6)
    profile.hold_backs = sometimes(4)
    profile.mute_probability = chance.choice((0.0, 0.0, 0.0, 0.03, 0.1))
    profile.producer_deaths = sometimes(2) if profile.producers else 0
    profile.are_clocks_unsteady = chance.random() < 0.5
    profile.leaps = sometimes(4)
    profile.restart_ns = chance.choice((20, 200, 1_000)) * MILLISECOND_NS


def _draw_links_and_disks(chance: random.Random, profile: BusProfile) -> None:
    links, disk = profile.links, profile.disk
    links.latency_ns = chance.choice((50, 200, 2_000)) * MICROSECOND_NS
    links.tail_probability = chance.choice((0.0, 0.02, 0.2))
    links.tail_factor = chance.choice((5, 100))
    links.drop_probability = chance.choice((0.0, 0.0, 0.02, 0.1, 0.3))
    links.duplicate_probability = chance.choice((0.0, 0.0, 0.05, 0.5))
    links.replay_share = chance.choice((0.0, 0.1))
    links.keeps_order = chance.random() < 0.3
    disk.sync_ns = chance.choice((50, 200, 1_000, 5_000)) * MICROSECOND_NS
    disk.stall_probability = chance.choice((0.0, 0.0, 0.02, 0.1))


def _draw_settings(chance: random.Random, profile: BusProfile) -> None:
    profile.checkpoint_entries = chance.choice(CHECKPOINT_ENTRIES)
    for name, choices in SETTINGS.items():
        profile.settings[name] = chance.choice(choices)


# --- named profiles -------------------------------------------------------------------


def _for_acknowledging_early(chance: random.Random, profile: BusProfile) -> None:
    """Crashes while syncs are slow, and disks that keep nothing unsynced."""
    profile.crashes = max(profile.crashes, 3)
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.disk.styles = ("nothing",)


def _for_numbering_twice(chance: random.Random, profile: BusProfile) -> None:
    """Reports are repeated long before slow disks let anything be committed."""
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.disk.stall_probability = 0.1
    profile.settings["rereport_ms"] = 20


def _for_numbering_out_of_order(chance: random.Random, profile: BusProfile) -> None:
    """Many envelopes under way, and some of them arrive behind those that were sent later."""
    profile.window = 20
    profile.settings["producer_window_bytes"] = 1 << 20
    profile.links.keeps_order = False
    profile.links.drop_probability = 0.1


def _quiet(profile: BusProfile) -> None:
    """Only the faults that a profile asks for happen."""
    profile.crashes = profile.power_cuts = profile.blackouts = profile.pauses = profile.leaps = 0
    profile.partitions = profile.clogs = profile.hold_backs = profile.producer_deaths = 0
    profile.mute_probability = 0.0
    profile.wipes = profile.changes = profile.spares = profile.damages = profile.fillings = 0
    links = profile.links
    links.drop_probability = links.duplicate_probability = links.tail_probability = 0.0
    profile.disk.stall_probability = 0.0
    profile.shape = "three"


def _for_muted_sequencers(chance: random.Random, profile: BusProfile) -> None:
    """Only messages of the sequencer are lost, to some: logs of several epochs grow side by side."""
    _quiet(profile)
    profile.mute_probability = chance.choice((0.03, 0.1, 0.2))
    profile.mute_ns_max = chance.choice((50, 300)) * MILLISECOND_NS
    profile.safety_ns = 2_500 * MILLISECOND_NS
    profile.envelopes = 60
    profile.settings.update(suspicion_ms=100, rank_delay_ms=20, heartbeat_ms=30, lifetime=1 << 40)


def _for_late_words(chance: random.Random, profile: BusProfile) -> None:
    """Messages of a sequencer reach the others while they promise another."""
    _quiet(profile)
    profile.hold_backs = 12
    profile.links.latency_ns = chance.choice((5, 20)) * MILLISECOND_NS
    profile.disk.sync_ns = 10 * MILLISECOND_NS
    profile.envelopes = 120
    profile.window = 20
    profile.settings.update(suspicion_ms=100, rank_delay_ms=20, suspicion_spread_ms=20, check_ms=500)


def _for_producers_that_die(chance: random.Random, profile: BusProfile) -> None:
    """Producers reach two data servers once and are gone, and then the sequencer changes."""
    _quiet(profile)
    profile.producers = 3
    profile.producer_deaths = 6
    profile.return_probability = 0.0
    profile.reached_max = 2
    profile.window = 1
    # No node crashes: an envelope on its sequencer's server alone waits for the fence.
    profile.pauses = 6
    profile.pause_ns_max = 800 * MILLISECOND_NS
    # No producer is fenced: the envelopes of a dead one must still get their numbers.
    profile.settings.update(silence_ms=600_000, lifetime=1 << 40, suspicion_ms=100)


def _for_lost_envelopes(chance: random.Random, profile: BusProfile) -> None:
    """Envelopes reach some data servers and not others, so that the sequencer often lacks them."""
    _quiet(profile)
    profile.links.drop_probability = 0.3
    profile.producers = 2


def _for_entries_before_envelopes(chance: random.Random, profile: BusProfile) -> None:
    """Envelopes are numbered when they arrive, and often the entry is where the envelope is not."""
    _for_muted_sequencers(chance, profile)
    profile.links.drop_probability = 0.2
    profile.disk.stall_probability = 0.2
    profile.settings["one_round"] = 1


def _for_order_without_data(chance: random.Random, profile: BusProfile) -> None:
    """The power of all nodes goes within slow syncs, after which a page of the order may be there alone."""
    _quiet(profile)
    profile.blackouts = 8
    profile.producers = 0
    profile.envelopes = 150
    profile.restart_ns = 20 * MILLISECOND_NS
    profile.disk.sync_ns = 10 * MILLISECOND_NS
    profile.disk.styles = ("some",)
    profile.settings.update(one_round=1, suspicion_ms=100, rank_delay_ms=20, suspicion_spread_ms=20)


def _for_slow_members(chance: random.Random, profile: BusProfile) -> None:
    """Disks stall: members hear that something is committed before their own copy is durable."""
    _quiet(profile)
    profile.disk.stall_probability = 0.2


def _for_old_envelopes(chance: random.Random, profile: BusProfile) -> None:
    """Envelopes are lost and sent again while the order passes the end of their lifetime."""
    _quiet(profile)
    profile.links.drop_probability = 0.3
    profile.settings.update(lifetime=40, rereport_ms=20)


def _for_damaged_logs(chance: random.Random, profile: BusProfile) -> None:
    """Logs are found damaged, others have to ask for missed entries, and the sequencer changes."""
    _quiet(profile)
    profile.damages = 4
    profile.damage_kinds = ("log",)
    profile.restart_ns = 1_000 * MILLISECOND_NS
    profile.mute_probability = 0.1
    profile.links.drop_probability = 0.2
    profile.settings.update(suspicion_ms=100, rank_delay_ms=20, fetch_delay_ms=1)


def _for_changes(chance: random.Random, profile: BusProfile) -> None:
    """Configurations follow each other, with more servers and fewer, while disks are slow."""
    _quiet(profile)
    profile.spares = 1
    profile.changes = 12
    profile.double_change_probability = 0.8
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.safety_ns = 2_500 * MILLISECOND_NS
    profile.envelopes = 60
    profile.settings.update(silence_ms=2_000, window_entries=1_024)


def _for_checkpoints(chance: random.Random, profile: BusProfile) -> None:
    """Checkpoints follow each other, and are written more slowly than marks are ordered."""
    _quiet(profile)
    profile.checkpoint_entries = 10
    profile.disk.stall_probability = 0.1


def _for_kept_exceptions(chance: random.Random, profile: BusProfile) -> None:
    """Everything fails, and nodes that submit little hear of it."""
    _quiet(profile)
    profile.envelopes = 120
    profile.commands_max = 10
    profile.window = 20
    profile.safety_ns = 2_500 * MILLISECOND_NS
    profile.refuses_one_in = 1


def _for_doubt(chance: random.Random, profile: BusProfile) -> None:
    """Everything fails, the table of outcomes is small, and many messages are lost."""
    _quiet(profile)
    profile.producers = 1
    profile.links.drop_probability = 0.1
    profile.envelopes = 300
    profile.commands_max = 4
    profile.window = 20
    profile.refuses_one_in = 1
    profile.is_greedy = True
    profile.settings.update(producer_window_bytes=1 << 20, window_entries=1_024, lifetime=1 << 40)


def _for_held_space(chance: random.Random, profile: BusProfile) -> None:
    """Lone envelopes fill the real journal, whose order has few pages, and few entries count."""
    _quiet(profile)
    profile.envelopes = 120
    profile.window = 1
    profile.checkpoint_entries = 100_000


PROFILES: dict[str, Callable[[random.Random, BusProfile], None]] = {
    "acknowledging-early": _for_acknowledging_early,
    "numbering-twice": _for_numbering_twice,
    "numbering-out-of-order": _for_numbering_out_of_order,
    "producers-that-die": _for_producers_that_die,
    "slow-members": _for_slow_members,
    "old-envelopes": _for_old_envelopes,
    "muted-sequencers": _for_muted_sequencers,
    "late-words": _for_late_words,
    "lost-envelopes": _for_lost_envelopes,
    "entries-before-envelopes": _for_entries_before_envelopes,
    "order-without-data": _for_order_without_data,
    "changes": _for_changes,
    "damaged-logs": _for_damaged_logs,
    "checkpoints": _for_checkpoints,
    "kept-exceptions": _for_kept_exceptions,
    "doubt": _for_doubt,
    "held-space": _for_held_space,
}
