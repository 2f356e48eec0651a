"""Profiles of a cluster: its shape and settings, its clients, its faults, and how many.

As in the other workloads every kind of fault is switched on with a probability of one half. A *gentle* run
has faults of message managers and clients alone: there no message goes to a second consumer while a living
one has it, which cannot be promised while client managers are cut off, asleep or gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.bus.group import GroupConfig
from antiphon.sim.clients.process import ClientHabits, give_few_ids, give_few_keys, want_parts
from antiphon.sim.clients.sharers import Kinds
from antiphon.sim.disk import DiskHabits, DiskProfile
from antiphon.sim.groups import group_of
from antiphon.sim.habits import EVENTS_SHARE, NodeHabits
from antiphon.sim.links import LinkHabits
from antiphon.sim.network import NetworkHabits
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS
from antiphon.startup import CHANNEL

SETTINGS: dict[str, tuple[int, ...]] = {
    "suspicion_ms": (150, 300),
    "rank_delay_ms": (30, 100),
    "suspicion_spread_ms": (20, 50),
    "check_ms": (200, 500),
    "rereport_ms": (20, 200),
    "retransmit_ms": (20, 100),
    "tick_ms": (200, 1_000),
    "fetch_delay_ms_max": (100, 1_000),
    "presence_ms": (100, 200),
    "silence_ms": (300, 1_000, 2_000),
    "leaderless_ms": (500, 2_000),
    "checkpoint_entries": (15, 60, 100_000),
    "producer_window_bytes": (6_000, 1 << 20),
    "one_round": (0, 1, 1),
}
SHAPES = ("three", "one", "witness")
_FIRST_DOOR = 11


@dataclass(slots=True)
class ClusterProfile:
    """Everything that is drawn before a run begins."""

    safety_ns: int = 1_500 * MILLISECOND_NS
    shape: str = "three"
    doors: int = 2
    producers: int = 2
    consumers: int = 2
    queues: int = 1
    topics: int = 1
    subscribers: int = 2
    sharing: Kinds = ()
    messages: int = 40
    # The share of queues' clients that use the client library.
    library_share: float = 0.5
    is_gentle: bool = False

    crashes: int = 0
    power_cuts: int = 0
    blackouts: int = 0
    door_crashes: int = 0
    sleeps: int = 0
    # A client manager sleeps, and some of its clients go to another meanwhile.
    door_sleeps: int = 0
    leave_probability: float = 0.7
    # The primary goes while a client manager sleeps.
    missed_failovers: int = 0
    # A client manager sleeps, and the message that it was taken for dead is lost.
    missed_ends: int = 0
    # Does each client begin at another client manager than the one before it?
    is_spread: bool = False
    partitions: int = 0
    partition_ns_max: int = 800 * MILLISECOND_NS
    clogs: int = 0
    breaks: int = 0
    client_crashes: int = 0
    moves: int = 0
    # How often the software cannot read states for a while; None: drawn apart from all else.
    misreads: int | None = None
    # None: drawn apart from all else.
    disk_faults: DiskProfile | None = None
    are_clocks_unsteady: bool = False
    # Are wall clocks set wrong by days in any case, and not only in half of the runs?
    are_clocks_set: bool = False
    # The settings of all topics; drawn if empty.
    topic_settings: str = ""
    sleep_ns_max: int = 1_200 * MILLISECOND_NS
    # Is this a named profile? Then clocks of sleepers stand still only where the profile says so.
    is_made: bool = False

    disk: DiskHabits = field(default_factory=DiskHabits)
    links: LinkHabits = field(default_factory=LinkHabits)
    network: NetworkHabits = field(default_factory=NetworkHabits)
    node: NodeHabits = field(default_factory=NodeHabits)
    clients: ClientHabits = field(default_factory=ClientHabits)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[int, ...]:
        """The nodes with a disk."""
        return (1,) if self.shape == "one" else (1, 2, 3)

    @property
    def client_managers(self) -> tuple[int, ...]:
        """The nodes without a disk."""
        return tuple(range(_FIRST_DOOR, _FIRST_DOOR + self.doors))

    def group(self, new_disk_id: Callable[[], bytes]) -> GroupConfig:
        """The channel of this run."""
        return self._group_of(CHANNEL, self.shape, self.servers, new_disk_id)

    def _group_of(
        self, channel: str, shape: str, voters: Sequence[int], new_disk_id: Callable[[], bytes]
    ) -> GroupConfig:
        """A channel of this run; all client managers serve it."""
        settings = {"min_copies": 1, **self.settings}
        return group_of(channel, shape, voters, self.client_managers, new_disk_id, **settings)


def draw(chance: random.Random, name: str = "") -> ClusterProfile:
    """The profile of a run; a named one stresses one thing."""
    profile = ClusterProfile()
    draw_into(chance, profile)
    if name:
        profile.disk_faults = DiskProfile()
        PROFILES[name](chance, profile)
        profile.is_made = True
    else:
        profile.node.logs_events = chance.random() < EVENTS_SHARE
    if profile.is_gentle:
        _be_gentle(profile)
    return profile


def draw_into(chance: random.Random, profile: ClusterProfile) -> None:
    """Draw the values that all kinds of runs have."""
    _draw_size(chance, profile)
    _draw_faults(chance, profile)
    _draw_network(chance, profile)
    _draw_habits(chance, profile)
    profile.settings = {name: chance.choice(choices) for name, choices in SETTINGS.items()}


def _draw_size(chance: random.Random, profile: ClusterProfile) -> None:
    profile.safety_ns = chance.randint(600, 1_800) * MILLISECOND_NS
    profile.shape = chance.choices(SHAPES, (75, 10, 15))[0]
    profile.producers = chance.randint(1, 3)
    profile.consumers = chance.randint(1, 3)
    profile.queues = chance.choice((1, 1, 2))
    profile.topics = chance.choice((0, 1))
    profile.subscribers = chance.randint(1, 3)
    profile.messages = chance.randint(20, 60)
    profile.library_share = chance.choice((0.0, 0.5, 1.0))
    profile.is_gentle = chance.random() < 0.2


def _draw_faults(chance: random.Random, profile: ClusterProfile) -> None:
    def sometimes(most: int) -> int:
        return chance.randint(1, most) if chance.random() < 0.5 else 0

    profile.crashes = sometimes(3)
    profile.power_cuts = sometimes(2)
    profile.blackouts = 1 if chance.random() < 0.15 else 0
    profile.door_crashes = sometimes(2)
    profile.sleeps = sometimes(2)
    profile.door_sleeps = sometimes(2)
    profile.partitions = sometimes(3)
    profile.clogs = sometimes(2)
    profile.breaks = sometimes(3)
    profile.client_crashes = sometimes(2)
    profile.moves = sometimes(3)
    profile.are_clocks_unsteady = chance.random() < 0.3


def _draw_network(chance: random.Random, profile: ClusterProfile) -> None:
    links, network = profile.links, profile.network
    links.latency_ns = chance.choice((50, 200, 1_000)) * MICROSECOND_NS
    links.drop_probability = chance.choice((0.0, 0.0, 0.02, 0.15))
    links.duplicate_probability = chance.choice((0.0, 0.0, 0.1))
    links.replay_share = chance.choice((0.0, 0.1))
    links.tail_probability = chance.choice((0.0, 0.05))
    links.keeps_order = chance.random() < 0.3
    network.latency_ns = chance.choice((20, 100, 1_000)) * MICROSECOND_NS
    network.stall_probability = chance.choice((0.0, 0.0, 0.02))
    network.chunk_probability = chance.choice((0.0, 0.1))


def _draw_habits(chance: random.Random, profile: ClusterProfile) -> None:
    disk, node, clients = profile.disk, profile.node, profile.clients
    disk.sync_ns = chance.choice((100, 500, 2_000)) * MICROSECOND_NS
    disk.stall_probability = chance.choice((0.0, 0.0, 0.05))
    disk.tear_probability = chance.choice((0.0, 0.5))
    node.tick_ns = chance.choice((20, 200, 1_000)) * MICROSECOND_NS
    node.envelope_bytes = chance.choice((1_500, 32 * 1024))
    node.session_expiry_ms = chance.choice((150, 300_000))
    node.registration_wait_ms = chance.choice((20, 300))
    node.flush_bytes = chance.choice((2_000, 8 << 20))
    clients.batch_rows_max = chance.choice((1, 5, 10))
    clients.body_bytes_max = chance.choice((20, 300, 3_000))
    clients.window_commands = chance.choice((1, 3, 10))
    clients.publish_pause_ns = chance.choice((5, 20, 60)) * MILLISECOND_NS
    clients.credit_messages = chance.choice((1, 10, 100))
    clients.take_pause_ns = chance.choice((2, 10, 50)) * MILLISECOND_NS
    clients.acknowledge_pause_ns = chance.choice((5, 20, 100)) * MILLISECOND_NS
    clients.resume_probability = chance.choice((0.5, 1.0, 1.0))
    clients.return_probability = chance.choice((0.0, 0.0, 0.2))
    clients.reopen_probability = chance.choice((0.0, 0.0, 0.1))
    clients.patience_ns = chance.choice((0, 200, 600)) * MILLISECOND_NS
    clients.names_channels = chance.random() < 0.5
    clients.look_probability = chance.choice((0.0, 0.3))


def _be_gentle(profile: ClusterProfile) -> None:
    """Only message managers fail, and a new primary waits for all client managers."""
    profile.door_crashes = profile.door_sleeps = profile.partitions = profile.clogs = 0
    profile.sleeps = profile.blackouts = profile.misreads = 0
    profile.missed_failovers = profile.missed_ends = 0
    profile.are_clocks_unsteady = False
    profile.links.drop_probability = profile.links.duplicate_probability = 0.0
    profile.links.tail_probability = 0.0
    profile.node.registration_wait_ms = 300
    profile.settings["silence_ms"] = 2_000


def _for_held_ranges(chance: random.Random, profile: ClusterProfile) -> None:
    """The primary goes again and again while slow consumers hold messages and have credit for more."""
    profile.is_gentle = True
    profile.shape = "three"
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.crashes = 4
    profile.consumers = 3
    profile.queues, profile.topics = 1, 0
    profile.breaks = profile.client_crashes = profile.moves = profile.power_cuts = 0
    profile.clients.take_pause_ns = 100 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 600 * MILLISECOND_NS
    profile.clients.credit_messages = 100
    # Messages returned while the primary went may come twice, which this profile does not look for.
    profile.clients.return_probability = 0.0


def _for_held_groups(chance: random.Random, profile: ClusterProfile) -> None:
    """The primary goes again and again while consumers hold messages with keys, and more come."""
    _for_held_ranges(chance, profile)
    profile.messages = 120
    profile.clients.keys_share, profile.clients.keys = 1.0, chance.choice((2, 4))
    profile.library_share = 0.0
    profile.clients.take_pause_ns = 20 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 3_000 * MILLISECOND_NS
    profile.clients.publish_pause_ns = 100 * MILLISECOND_NS
    profile.clients.batch_rows_max = 4


def _for_lower_generations(chance: random.Random, profile: ClusterProfile) -> None:
    """Clients leave sleeping client managers, which then wake with the clients' earlier frames."""
    profile.is_gentle = False
    profile.door_sleeps = 3
    profile.clients.resume_probability = 1.0
    profile.clients.publish_pause_ns = 5 * MILLISECOND_NS
    profile.clients.window_commands = 10
    profile.clients.patience_ns = 100 * MILLISECOND_NS


def _for_second_acknowledgements(chance: random.Random, profile: ClusterProfile) -> None:
    """A client manager sleeps until it is taken for dead; other consumers get its messages, and both sides
    acknowledge."""
    profile.is_gentle = False
    profile.topics, profile.queues = 0, 1
    profile.consumers = 4
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.door_sleeps, profile.leave_probability = 3, 0.0
    profile.door_crashes = profile.sleeps = profile.crashes = profile.blackouts = profile.partitions = 0
    profile.settings["silence_ms"] = 300
    profile.node.registration_wait_ms = 20
    profile.node.session_expiry_ms = 300_000
    profile.clients.patience_ns = 0
    profile.clients.take_pause_ns = 2 * MILLISECOND_NS
    profile.clients.publish_pause_ns = 20 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 300 * MILLISECOND_NS


def _for_sleepers(chance: random.Random, profile: ClusterProfile) -> None:
    """Client managers with idle consumers sleep until they are taken for dead, their clocks stand still, and
    the message that says so is lost: otherwise it lies behind the deliveries, and ends in the same step what
    they began. Consumers at other client managers get and acknowledge the messages meanwhile."""
    _for_second_acknowledgements(chance, profile)
    profile.shape = "three"
    profile.doors, profile.door_sleeps, profile.missed_ends = 3, 0, 6
    profile.safety_ns = 4_000 * MILLISECOND_NS
    profile.is_spread, profile.moves, profile.breaks, profile.client_crashes = True, 4, 0, 0
    profile.power_cuts = profile.clogs = 0
    profile.links.drop_probability = 0.0
    profile.settings["suspicion_ms"] = 300
    # Messages come as long as a client manager may fall asleep, and consumers wait for them: a message
    # buffered before is asked about, and the answer comes too late.
    profile.producers, profile.consumers = 4, 6
    profile.messages, profile.library_share = 300, 1.0
    profile.clients.batch_rows_max, profile.clients.credit_messages = 1, 20
    profile.clients.reopen_probability = 0.0
    profile.clients.take_pause_ns = 3 * MILLISECOND_NS
    profile.clients.publish_pause_ns = 60 * MILLISECOND_NS


def _for_old_terms(chance: random.Random, profile: ClusterProfile) -> None:
    """Sessions are soon over, and the primary that proposes their end goes before that is ordered."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.crashes, profile.sleeps, profile.client_crashes, profile.breaks = 3, 2, 6, 6
    profile.clients.resume_probability = 0.0
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.disk.stall_probability = 0.05
    profile.node.session_expiry_ms = 20
    profile.settings["suspicion_ms"] = 150


def _for_early_pages(chance: random.Random, profile: ClusterProfile) -> None:
    """Backups lag, and producers browse the messages that they have just sent."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.library_share = 0.0
    profile.clients.look_probability = 1.0
    profile.links.drop_probability = 0.15
    profile.links.tail_probability = 0.05
    profile.clients.take_pause_ns = 50 * MILLISECOND_NS


def _for_returns(chance: random.Random, profile: ClusterProfile) -> None:
    """Competing consumers return half of their messages, again and again, and nodes hardly fail."""
    profile.library_share = 0.0
    profile.consumers, profile.queues = 3, 1
    profile.crashes = profile.power_cuts = profile.blackouts = profile.sleeps = 0
    profile.door_crashes = profile.door_sleeps = profile.partitions = profile.clogs = 0
    profile.clients.return_probability = 0.5
    profile.clients.credit_messages = 10
    profile.clients.acknowledge_pause_ns = 5 * MILLISECOND_NS
    profile.clients.publish_pause_ns = 5 * MILLISECOND_NS


def _for_references(chance: random.Random, profile: ClusterProfile) -> None:
    """Messages outlive the segments they were written to, and checkpoints follow each other closely."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.crashes, profile.blackouts = 6, 2
    profile.producers, profile.messages = 3, 120
    profile.disk.sync_ns = 2_000 * MICROSECOND_NS
    profile.disk.stall_probability = 0.3
    profile.disk.styles = ("nothing",)
    profile.settings["checkpoint_entries"] = 4
    profile.settings["suspicion_ms"] = 300
    profile.node.envelope_bytes = 1_500
    profile.clients.window_commands = 10
    profile.clients.batch_rows_max = 5
    profile.clients.body_bytes_max = 300
    profile.clients.publish_pause_ns = MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 100 * MILLISECOND_NS


def _for_dead_segments(chance: random.Random, profile: ClusterProfile) -> None:
    """Messages fill segments and are consumed, and checkpoints come while some of them are waiting."""
    profile.shape = chance.choice(("three", "one"))
    profile.topics = profile.crashes = profile.power_cuts = profile.blackouts = profile.sleeps = 0
    profile.door_crashes = profile.door_sleeps = profile.partitions = profile.clogs = 0
    profile.messages = 120
    profile.settings["checkpoint_entries"] = 15
    profile.clients.body_bytes_max = 300
    profile.clients.acknowledge_pause_ns = 20 * MILLISECOND_NS


def _for_misreading(chance: random.Random, profile: ClusterProfile) -> None:
    """Checkpoints come often, and nodes are restarted while they cannot be read."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.misreads = 4
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.settings["checkpoint_entries"] = 15
    profile.clients.publish_pause_ns = 5 * MILLISECOND_NS
    profile.messages = 60


def _for_losses(chance: random.Random, profile: ClusterProfile) -> None:
    """Primaries go while client managers sleep, and slow consumers have many messages in their buffers."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.safety_ns = 2_500 * MILLISECOND_NS
    profile.topics, profile.queues, profile.consumers, profile.doors = 0, 1, 6, 3
    profile.missed_failovers, profile.crashes = 2, 0
    profile.door_sleeps = profile.door_crashes = profile.sleeps = profile.blackouts = profile.partitions = (
        profile.power_cuts
    ) = 0
    profile.breaks = profile.client_crashes = profile.moves = 0
    profile.messages = 120
    profile.node.registration_wait_ms = 20
    profile.settings |= {"silence_ms": 2_000, "suspicion_ms": 150, "rank_delay_ms": 30}
    profile.clients.patience_ns = 0
    profile.clients.publish_pause_ns = 20 * MILLISECOND_NS
    profile.clients.take_pause_ns = 1_000 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 50 * MILLISECOND_NS
    profile.clients.return_probability = 0.3
    profile.clients.credit_messages = 100


def _for_wrong_clocks(chance: random.Random, profile: ClusterProfile) -> None:
    """Topics keep everything for an hour, or for a moment, and wall clocks show another day now and then."""
    profile.are_clocks_set = True
    profile.topics, profile.topic_settings = 1, chance.choice(("{}", '{"retention":0.2}'))


def _for_retention_by_age(chance: random.Random, profile: ClusterProfile) -> None:
    """A topic keeps messages for a moment, and gets more all the time."""
    profile.topics, profile.topic_settings = 1, '{"retention":0.1}'
    profile.subscribers, profile.messages = 1, 120
    profile.clients.publish_pause_ns = 20 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 5 * MILLISECOND_NS


def _for_retention_by_bytes(chance: random.Random, profile: ClusterProfile) -> None:
    """A topic keeps a few messages, for an hour."""
    profile.topics, profile.topic_settings = 1, '{"retention_bytes":2000}'
    profile.subscribers, profile.messages = 1, 120
    profile.clients.body_bytes_max = 300
    profile.clients.publish_pause_ns = 5 * MILLISECOND_NS


def _for_late_words(chance: random.Random, profile: ClusterProfile) -> None:
    """Clients lose their connections and come back to the same client manager, whose frames come late."""
    profile.is_gentle = False
    profile.doors = 1
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.breaks, profile.moves = 12, 8
    profile.door_crashes = profile.door_sleeps = profile.partitions = profile.blackouts = 0
    profile.crashes = profile.power_cuts = profile.sleeps = profile.client_crashes = 0
    profile.links.tail_probability = 0.4
    profile.links.duplicate_probability = 0.3
    profile.clients.resume_probability, profile.clients.names_channels = 1.0, True
    profile.node.session_expiry_ms = 150


def _for_return_after_a_fence(chance: random.Random, profile: ClusterProfile) -> None:
    """Client managers sleep until they are taken for dead, and wake before their sessions are over."""
    profile.is_gentle = False
    profile.safety_ns = 1_800 * MILLISECOND_NS
    profile.door_sleeps, profile.leave_probability = 4, 0.0
    profile.sleep_ns_max = 700 * MILLISECOND_NS
    profile.door_crashes = profile.sleeps = profile.crashes = profile.blackouts = profile.partitions = 0
    profile.power_cuts = profile.client_crashes = profile.breaks = profile.moves = 0
    profile.settings["silence_ms"] = 300
    profile.node.session_expiry_ms = 500
    profile.clients.patience_ns = 0


def _for_kept_credit(chance: random.Random, profile: ClusterProfile) -> None:
    """Consumers without a prefetch ask for the messages of now, and mostly there is none."""
    profile.queues, profile.consumers = 1, 3
    profile.clients.asking_share = 1.0
    profile.clients.publish_pause_ns = 60 * MILLISECOND_NS
    profile.clients.take_pause_ns = 10 * MILLISECOND_NS


def _for_ruined_disks(chance: random.Random, profile: ClusterProfile) -> None:
    """Disks are damaged and syncs fail again and again, while slow consumers leave messages behind."""
    profile.is_gentle = False
    profile.shape = "three"
    profile.safety_ns = 3_000 * MILLISECOND_NS
    profile.misreads = profile.partitions = profile.blackouts = profile.sleeps = profile.crashes = 0
    profile.disk_faults = DiskProfile(failed_syncs=2, damages=8)
    profile.links.drop_probability = 0.0
    profile.messages = 120
    profile.settings["checkpoint_entries"] = 15
    profile.clients.publish_pause_ns = 20 * MILLISECOND_NS
    profile.clients.take_pause_ns = profile.clients.acknowledge_pause_ns = 200 * MILLISECOND_NS


def _for_delivery_rules(chance: random.Random, profile: ClusterProfile) -> None:
    """Every message has rules, and consumers have little credit."""
    profile.topics = 1
    profile.clients.rules_share = 1.0
    profile.clients.credit_messages = chance.choice((1, 10))
    profile.clients.return_probability = 0.2


def _for_sharing(chance: random.Random, profile: ClusterProfile) -> None:
    """Clients die that share a subscription which ends with the last of them, and their sessions expire."""
    profile.is_gentle = False
    profile.topics, profile.sharing = 1, (False,)
    profile.client_crashes, profile.moves = 8, 4
    profile.door_crashes = profile.crashes = 2
    profile.node.session_expiry_ms = 150
    profile.clients.resume_probability = 0.3


def _for_ids(chance: random.Random, profile: ClusterProfile) -> None:
    """Every message has one of few ids, and checkpoints come often."""
    profile.messages = 120
    give_few_ids(chance, profile.clients)
    profile.settings["checkpoint_entries"] = 15


def _for_selectors(chance: random.Random, profile: ClusterProfile) -> None:
    """Most consumers want one part of the messages, and queues are long."""
    profile.messages = 200
    profile.queues, profile.consumers = 1, 4
    want_parts(profile.clients, profile.node)


def _for_message_groups(chance: random.Random, profile: ClusterProfile) -> None:
    """Every message has one of few keys, and consumers that compete come and go with what they hold."""
    profile.messages = 120
    profile.is_gentle = False
    profile.queues, profile.consumers = 1, 3
    profile.topics, profile.sharing = 1, (True,)
    profile.moves, profile.client_crashes, profile.crashes, profile.door_crashes = 4, 4, 2, 1
    give_few_keys(chance, profile.clients)
    profile.clients.credit_messages = chance.choice((2, 10))


PROFILES: dict[str, Callable[[random.Random, ClusterProfile], None]] = {
    "delivery-rules": _for_delivery_rules,
    "ids": _for_ids,
    "selectors": _for_selectors,
    "message-groups": _for_message_groups,
    "held-groups": _for_held_groups,
    "held-ranges": _for_held_ranges,
    "lower-generations": _for_lower_generations,
    "second-acknowledgements": _for_second_acknowledgements,
    "old-terms": _for_old_terms,
    "sleepers": _for_sleepers,
    "early-pages": _for_early_pages,
    "misreading": _for_misreading,
    "returns": _for_returns,
    "references": _for_references,
    "dead-segments": _for_dead_segments,
    "losses": _for_losses,
    "wrong-clocks": _for_wrong_clocks,
    "retention-by-age": _for_retention_by_age,
    "retention-by-bytes": _for_retention_by_bytes,
    "late-words": _for_late_words,
    "return-after-a-fence": _for_return_after_a_fence,
    "kept-credit": _for_kept_credit,
    "ruined-disks": _for_ruined_disks,
    "sharing": _for_sharing,
}
