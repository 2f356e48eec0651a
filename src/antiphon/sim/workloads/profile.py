"""Profiles: the faults of a run, and how many.

By default every kind of fault is switched on with a probability of one half and its rate is drawn: leaving
kinds out finds more than having all of them always, because some hide others. A named profile stresses one
thing, at the expense of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.sim.clients.process import ClientHabits, give_few_ids, give_few_keys, want_parts
from antiphon.sim.disk import DiskHabits
from antiphon.sim.habits import EVENTS_SHARE, NodeHabits
from antiphon.sim.network import NetworkHabits
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS


@dataclass(slots=True)
class Profile:
    """Everything that is drawn before a run begins."""

    safety_ns: int = 400 * MILLISECOND_NS
    producers: int = 2
    consumers: int = 2
    queues: int = 1
    messages: int = 60
    # The share of clients that use the client library.
    library_share: float = 0.4
    crashes: int = 0
    power_cuts: int = 0
    stops: int = 0
    pauses: int = 0
    breaks: int = 0
    client_crashes: int = 0
    moves: int = 0
    clock_jumps: int = 0
    is_clock_unsteady: bool = False
    # Are wall clocks set wrong by days in any case, and not only in half of the runs?
    are_clocks_set: bool = False
    disk: DiskHabits = field(default_factory=DiskHabits)
    network: NetworkHabits = field(default_factory=NetworkHabits)
    node: NodeHabits = field(default_factory=NodeHabits)
    clients: ClientHabits = field(default_factory=ClientHabits)


def draw(chance: random.Random, name: str = "") -> Profile:
    """The profile of a run; a named one stresses one thing."""
    profile = Profile()
    _draw_size(chance, profile)
    _draw_faults(chance, profile)
    _draw_habits(chance, profile)
    if name:
        PROFILES[name](chance, profile)
    else:
        profile.node.logs_events = chance.random() < EVENTS_SHARE
    return profile


def _draw_size(chance: random.Random, profile: Profile) -> None:
    profile.safety_ns = chance.randint(100, 500) * MILLISECOND_NS
    profile.producers = chance.randint(1, 3)
    profile.consumers = chance.randint(1, 3)
    profile.queues = chance.choice((1, 1, 2))
    profile.messages = chance.randint(20, 120)
    profile.library_share = chance.choice((0.0, 0.4, 0.4, 1.0))


def _draw_faults(chance: random.Random, profile: Profile) -> None:
    def sometimes(most: int) -> int:
        return chance.randint(1, most) if chance.random() < 0.5 else 0

    profile.crashes = sometimes(4)
    profile.power_cuts = sometimes(2)
    profile.stops = sometimes(1)
    profile.pauses = sometimes(2)
    profile.breaks = sometimes(4)
    profile.client_crashes = sometimes(3)
    profile.moves = sometimes(3)
    profile.clock_jumps = sometimes(3)
    profile.is_clock_unsteady = chance.random() < 0.5


def _draw_habits(chance: random.Random, profile: Profile) -> None:
    disk, network, node, clients = profile.disk, profile.network, profile.node, profile.clients
    disk.sync_ns = chance.choice((20, 100, 500, 2_000)) * MICROSECOND_NS
    disk.stall_probability = chance.choice((0.0, 0.0, 0.02, 0.1))
    disk.tear_probability = chance.choice((0.0, 0.5, 1.0))
    network.latency_ns = chance.choice((20, 100, 1_000)) * MICROSECOND_NS
    network.stall_probability = chance.choice((0.0, 0.0, 0.02))
    network.chunk_probability = chance.choice((0.0, 0.1, 0.5))
    node.trouble_probability = chance.choice((0.0, 0.0, 0.05, 0.3))
    node.loss_probability = chance.choice((0.0, 0.0, 0.0, 0.05))
    node.checkpoint_entries = chance.choice((10, 40, 1_000))
    node.rereport_ms = chance.choice((1, 5, 200))
    node.one_round = chance.choice((0, 1, 1))
    node.envelope_bytes = chance.choice((1_500, 32 * 1024))
    node.connection_bytes = chance.choice((2_000, 256 * 1024))
    node.session_expiry_ms = chance.choice((20, 300_000))
    node.registration_wait_ms = chance.choice((5, 300))
    node.flush_bytes = chance.choice((2_000, 8 << 20))
    node.tick_ns = chance.choice((1, 20, 200)) * MICROSECOND_NS
    clients.batch_rows_max = chance.choice((1, 5, 20))
    clients.body_bytes_max = chance.choice((20, 300, 8_000))
    clients.window_commands = chance.choice((1, 3, 10))
    clients.publish_pause_ns = chance.choice((1, 4, 15)) * MILLISECOND_NS
    clients.credit_messages = chance.choice((1, 10, 100))
    clients.take_pause_ns = chance.choice((1, 3, 10)) * MILLISECOND_NS
    clients.acknowledge_pause_ns = chance.choice((1, 5, 20)) * MILLISECOND_NS
    clients.resume_probability = chance.choice((0.0, 0.5, 1.0))
    clients.return_probability = chance.choice((0.0, 0.0, 0.2))
    clients.reopen_probability = chance.choice((0.0, 0.0, 0.1))


def _for_acknowledging_early(chance: random.Random, profile: Profile) -> None:
    """Crashes while syncs are slow, and a disk that keeps nothing unsynced."""
    profile.crashes = max(profile.crashes, 3)
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.disk.styles = ("nothing",)


def _for_numbering_twice(chance: random.Random, profile: Profile) -> None:
    """Reports are repeated long before the slow disk of the commit server lets anything be committed."""
    profile.disk.sync_ns = 2 * MILLISECOND_NS
    profile.disk.stall_probability = 0.1
    profile.node.rereport_ms = 1


def _for_numbering_out_of_order(chance: random.Random, profile: Profile) -> None:
    """Many small envelopes under way, and some of them arrive behind those that were sent later."""
    profile.node.trouble_probability = 0.2
    profile.node.envelope_bytes = 1_500
    profile.clients.window_commands = 10
    profile.clients.publish_pause_ns = MILLISECOND_NS
    profile.clients.batch_rows_max = 2


def _for_moved_records(chance: random.Random, profile: Profile) -> None:
    """Segments with few live messages, which are moved, checkpoints all the time, and syncs that stall."""
    profile.crashes = profile.power_cuts = profile.stops = 0
    profile.safety_ns = 500 * MILLISECOND_NS
    profile.producers = 3
    profile.messages = 200
    profile.disk.sync_ns = 2_000 * MICROSECOND_NS
    profile.disk.stall_probability = 0.4
    profile.node.checkpoint_entries = chance.choice((2, 3))
    profile.node.envelope_bytes = 1_500
    profile.node.rereport_ms = 5
    profile.clients.window_commands = 10
    profile.clients.batch_rows_max = 5
    profile.clients.body_bytes_max = 300
    profile.clients.publish_pause_ns = MILLISECOND_NS
    profile.clients.take_pause_ns = 10 * MILLISECOND_NS
    profile.clients.acknowledge_pause_ns = 20 * MILLISECOND_NS


def _for_fallbacks(chance: random.Random, profile: Profile) -> None:
    """Checkpoints follow each other closely, and segments are used again soon."""
    profile.messages = 120
    profile.safety_ns = 500 * MILLISECOND_NS
    profile.node.checkpoint_entries = chance.choice((3, 4, 6))
    profile.clients.body_bytes_max = 8_000
    profile.clients.batch_rows_max = 5
    profile.clients.publish_pause_ns = MILLISECOND_NS


def _for_order_without_data(chance: random.Random, profile: Profile) -> None:
    """Crashes within slow syncs of small envelopes, after which a page of the order may be there alone."""
    profile.crashes = max(profile.crashes, 4)
    profile.disk.sync_ns = 5 * MILLISECOND_NS
    profile.disk.styles = ("some",)
    profile.node.one_round = 1
    profile.clients.body_bytes_max = 300


def _for_delivery_rules(chance: random.Random, profile: Profile) -> None:
    """Every message has rules, queues are long, and consumers have little credit."""
    profile.messages = 120
    profile.clients.rules_share = 1.0
    profile.clients.credit_messages = chance.choice((1, 10))
    profile.clients.take_pause_ns = 10 * MILLISECOND_NS
    profile.clients.return_probability = 0.2


def _for_ids(chance: random.Random, profile: Profile) -> None:
    """Every message has one of few ids, and checkpoints come often."""
    profile.messages = 120
    give_few_ids(chance, profile.clients)
    profile.node.checkpoint_entries = 10


def _for_selectors(chance: random.Random, profile: Profile) -> None:
    """Most consumers want one part of the messages, and queues are long."""
    profile.messages = 200
    profile.queues, profile.consumers = 1, 4
    want_parts(profile.clients, profile.node)


def _for_message_groups(chance: random.Random, profile: Profile) -> None:
    """Every message has one of few keys, and consumers that compete come and go with what they hold."""
    profile.messages = 120
    profile.queues, profile.consumers = 1, 3
    profile.moves, profile.client_crashes = 4, 4
    give_few_keys(chance, profile.clients)
    profile.clients.credit_messages = chance.choice((2, 10))


PROFILES: dict[str, Callable[[random.Random, Profile], None]] = {
    "acknowledging-early": _for_acknowledging_early,
    "numbering-twice": _for_numbering_twice,
    "numbering-out-of-order": _for_numbering_out_of_order,
    "moved-records": _for_moved_records,
    "fallbacks": _for_fallbacks,
    "order-without-data": _for_order_without_data,
    "delivery-rules": _for_delivery_rules,
    "ids": _for_ids,
    "selectors": _for_selectors,
    "message-groups": _for_message_groups,
}
