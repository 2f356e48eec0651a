"""ClientProcess: what all simulated clients have in common: they connect, lose connections, and die.

Where there are several client managers, a client that lost its connection goes to the next one; and so does,
after a while, one that waits for something and hears nothing at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon.batch import BatchBuilder
from antiphon.client.core.pace import USUAL, Pace
from antiphon.message_manager.state import outcomes
from antiphon.sim.checkers.watch import Stand, Watch
from antiphon.sim.habits import NodeHabits
from antiphon.sim.network import ClientPort, Connection, Network
from antiphon.sim.world import MILLISECOND_NS, World
from antiphon.wire.frames import ServerFrame

BATCH_BYTES_MAX = 32 * 1024
"""An envelope must fit the small segments of the simulated journal."""


@dataclass(slots=True)
class ClientHabits:
    """How the clients of this run behave; drawn once per run."""

    batch_rows_max: int = 12
    body_bytes_max: int = 200
    window_commands: int = 4
    publish_pause_ns: int = 4 * MILLISECOND_NS
    credit_messages: int = 20
    credit_bytes: int = 1 << 20
    take_pause_ns: int = 2 * MILLISECOND_NS
    acknowledge_pause_ns: int = 5 * MILLISECOND_NS
    reconnect_ns: int = 20 * MILLISECOND_NS
    resume_probability: float = 0.7
    return_probability: float = 0.0
    reject_probability: float = 0.0
    reopen_probability: float = 0.0
    # How long a client that waits for something hears nothing before it goes elsewhere; 0: for ever.
    patience_ns: int = 0
    # Does a client that comes back say which channels are to resume its session at once?
    names_channels: bool = False
    # Of a producer's confirmations: how many are followed at once by a look at what is stored.
    look_probability: float = 0.0
    # How many consumers have no prefetch, and ask for one message at a time.
    asking_share: float = 0.0
    # How many batches have priorities, delays and times to live.
    rules_share: float = 0.0
    # How many batches have messages with ids of the application, and how many ids there are for all clients.
    ids_share: float = 0.0
    ids: int = 10
    # How many batches have messages of several parts, and how many consumers beside the first of a queue want
    # one part only.
    parts_share: float = 0.0
    # How many batches have messages with keys, and how many keys there are for all clients.
    keys_share: float = 0.0
    keys: int = 3
    # Of those that are made of the client library.
    pace: Pace = USUAL


RULES = "Rules"
"""The name under which a run can leave out the rules of messages."""


def draw_rules(chance: random.Random, habits: ClientHabits) -> None:
    """In a third of the runs messages have priorities, delays and times to live."""
    habits.rules_share = chance.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0))


IDS = "Ids"
"""The name under which a run can leave out the ids of messages."""


def draw_ids(chance: random.Random, habits: ClientHabits) -> None:
    """In a third of the runs messages have ids; all clients draw from the same."""
    habits.ids_share = chance.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0))
    habits.ids = chance.choice((2, 10, 50))


SELECTORS = "Selectors"
"""The name under which a run can leave out the selectors of consumers."""

PARTS = 3


EVALUATING_BYTES = 2 << 20
"""A flush of a node with selectors, at least: steps that do nothing but evaluate are few."""


def draw_selectors(chance: random.Random, habits: ClientHabits, node: NodeHabits) -> None:
    """In a third of the runs messages have parts, and consumers want one of them."""
    habits.parts_share = chance.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0))
    if habits.parts_share:
        node.flush_bytes = max(node.flush_bytes, EVALUATING_BYTES)


def want_parts(habits: ClientHabits, node: NodeHabits) -> None:
    """Every message belongs to a part, most consumers want one part, and batches have many messages."""
    habits.parts_share = 1.0
    node.flush_bytes = max(node.flush_bytes, EVALUATING_BYTES)
    habits.batch_rows_max = 20
    habits.body_bytes_max = 300
    habits.return_probability = 0.2
    habits.reopen_probability = 0.1


def give_few_ids(chance: random.Random, habits: ClientHabits) -> None:
    """Every message has one of few ids."""
    habits.ids_share, habits.ids = 1.0, chance.choice((10, 50))


def give_few_keys(chance: random.Random, habits: ClientHabits) -> None:
    """Every message has one of few keys, and consumers come and go with what they hold."""
    habits.keys_share, habits.keys = 1.0, chance.choice((2, 5))
    habits.rules_share = chance.choice((0.0, 0.5))
    habits.return_probability = habits.reopen_probability = 0.2
    habits.acknowledge_pause_ns = 20 * MILLISECOND_NS


def part_of(body: bytes) -> int:
    """The part to which a message with this body belongs, if it says one."""
    return sum(body) % PARTS


KEYS = "Keys"
"""The name under which a run can leave out the keys of messages."""


def draw_keys(chance: random.Random, habits: ClientHabits) -> None:
    """In a third of the runs messages have keys; all clients draw from the same."""
    habits.keys_share = chance.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0))
    habits.keys = chance.choice((1, 3, 10))


IDLE_PAUSE_NS_MAX = 100 * MILLISECOND_NS


@dataclass(slots=True)
class ClientHall:
    """Where clients live."""

    world: World
    network: Network
    watch: Watch
    # The client port at one of the addresses that clients know, if a node listens there.
    find_port: Callable[[int], ClientPort | None]
    # The log time by which messages get their times; the clocks of nodes may be days apart.
    log_time_ms: Callable[[], int] = lambda: 0


class ClientProcess:
    """A client process with one connection at a time."""

    def __init__(self, name: str, hall: ClientHall, habits: ClientHabits) -> None:
        self.name = name
        self.world = hall.world
        self.watch = hall.watch
        self.habits = habits
        self.chance: random.Random = hall.world.random(f"workload/{name}")
        # For what not all runs have, so that the others are what they were without it.
        self.asking: random.Random = hall.world.random(f"asking/{name}")
        # How often the client has looked for messages since one came.
        self.looked_in_vain = 0
        self.ruling: random.Random = hall.world.random(f"ruling/{name}")
        self.taking: random.Random = hall.world.random(f"taking/{name}")
        self.identifying: random.Random = hall.world.random(f"identifying/{name}")
        self.selecting: random.Random = hall.world.random(f"selecting/{name}")
        # May a consumer of this client want one part only? The first consumer of a queue wants all.
        self.may_select = False
        self.keying: random.Random = hall.world.random(f"keying/{name}")
        self.connection: Connection | None = None
        # Counts the connections; what was planned for an earlier one does not happen.
        self.life = 0
        # Which of the addresses it uses or tries next; there may be fewer, then they come again.
        self.address = 0
        self._hall = hall
        self._heard_ns = 0

    def idle_pause_ns(self, chance: random.Random, pause_ns: int) -> int:
        """How long a client waits before it looks for messages again: longer and longer while none come.

        Without that, a few runs with empty queues would take half of all processor time.
        """
        longer_ns = min(pause_ns << min(self.looked_in_vain // 16, 6), IDLE_PAUSE_NS_MAX)
        self.looked_in_vain += 1
        return chance.randrange(max(pause_ns, longer_ns))

    def ruled(self, bodies: list[bytes], timestamp_ms: int) -> BatchBuilder | None:
        """The same messages with drawn rules, ids, parts and keys; None if they have none."""
        chance, now_ms = self.ruling, self._hall.log_time_ms()
        has_rules = self.habits.rules_share and chance.random() < self.habits.rules_share and now_ms
        has_ids = self.habits.ids_share and self.identifying.random() < self.habits.ids_share
        # Each row may have an outcome of its own: a batch with ids has as few as an envelope has commands.
        has_ids = has_ids and len(bodies) <= outcomes.OUTCOMES_MAX // 4
        has_parts = self.habits.parts_share and self.selecting.random() < self.habits.parts_share
        has_keys = self.habits.keys_share and self.keying.random() < self.habits.keys_share
        if not (has_rules or has_ids or has_parts or has_keys):
            return None
        # A client manager takes a batch only if all its messages are non-persistent.
        is_transient = has_rules and self.taking.random() < 0.25
        builder = BatchBuilder()
        for body in bodies:
            rules: dict[str, Any] = {}
            if has_rules:
                rules = {
                    "priority": chance.choice((4, 4, 0, 7, 9)),
                    "expires_ms": chance.choice((0, 0, now_ms + chance.randint(1, 200))),
                    "deliver_at_ms": chance.choice((0, 0, now_ms + chance.randint(1, 100))),
                    "persistent": chance.random() < 0.8 and not is_transient,
                }
            if has_ids and self.identifying.random() < 0.8:
                rules["dedup_id"] = f"id {self.identifying.randrange(self.habits.ids)}"
            if has_parts:
                rules["properties"] = {"part": part_of(body)}
            if has_keys and self.keying.random() < 0.8:
                rules["key"] = f"key {self.keying.randrange(self.habits.keys)}"
            builder.add(body, timestamp_ms=timestamp_ms, **rules)
        return builder

    def is_without_prefetch(self) -> bool:
        """Does a consumer that is about to be opened ask for one message at a time?"""
        return self.asking.random() < self.habits.asking_share

    def selector(self) -> str:
        """What a consumer of a queue that is about to be opened wants; blank: everything."""
        if not self.may_select or self.selecting.random() >= self.habits.parts_share:
            return ""
        part = self.selecting.randrange(PARTS)
        return self.selecting.choice((f"part = {part}", f"part <> {part}"))

    # For the kinds of client.

    @property
    def is_idle(self) -> bool:
        """Has it nothing left to do, and nothing to wait for?"""
        raise NotImplementedError

    @property
    def waits_for(self) -> str:
        """What the client waits for, in words."""
        raise NotImplementedError

    def machines(self) -> list[Any]:
        """The machines of the client that are also part of an application."""
        return []

    def greet(self) -> None:
        """There is a connection: say the first word."""
        raise NotImplementedError

    def on_frame(self, frame: ServerFrame) -> None:
        """The node said this."""
        raise NotImplementedError

    def pause(self) -> None:
        """There is no connection any more."""
        raise NotImplementedError

    def forget(self) -> None:
        """The process is a new one and knows nothing of the old one's sessions."""
        raise NotImplementedError

    # Living and dying.

    def connect_later(self) -> None:
        """Connect after a while; while the node is down, try again."""
        life = self.life
        self.world.after(self.chance.randrange(1, self.habits.reconnect_ns), lambda: self._connect(life))

    def _connect(self, life: int) -> None:
        if self.life != life or self.connection is not None:
            return
        port = self._hall.find_port(self.address)
        if port is None:
            self.address += 1
            self.connect_later()
            return
        end = _End(self)
        self.connection = end.connection = self._hall.network.connect(end, port)
        self._heard_ns = self.world.now_ns
        if self.habits.patience_ns:
            self._be_patient(self.life)
        self.greet()

    def _be_patient(self, life: int) -> None:
        """Look again when it is time to think about going elsewhere."""

        def look() -> None:
            patience_ns = self.habits.patience_ns
            if self.life != life or not patience_ns:
                return
            if self.is_idle or self.world.now_ns - self._heard_ns < patience_ns:
                self.world.after(patience_ns, look)
                return
            self.world.probe("client.impatient")
            self.move()

        self.world.after(self.habits.patience_ns, look)

    def crash(self) -> None:
        """The process dies with everything it knew, and another is started in its place."""
        self.world.probe("client.crashed")
        if self.connection is not None:
            self.connection.abandon()
        self._lose()
        self.forget()
        self.connect_later()

    def move(self) -> None:
        """Come again on a new connection while the old one still lives as far as the node knows."""
        if self.connection is None:
            return
        self.world.probe("client.moved")
        left = self.connection
        self._lose()
        self.address += 1
        self._connect(self.life)
        self.world.after(self.chance.randrange(self.habits.reconnect_ns), left.abandon)

    def stand(self, session: int, consumer: int) -> Stand | None:
        """How its client manager stood with a consumer, by the last thing it said."""
        return None if self.connection is None else self.connection.heard.get((session, consumer))

    def is_at(self, node: int) -> bool:
        """Is it connected to this node?"""
        return self.connection is not None and self.connection.node_id == node

    def on_lost(self) -> None:
        """The connection is gone."""
        self._lose()
        self.address += 1
        self.connect_later()

    def hear(self, frame: ServerFrame) -> None:
        """Something came from the node; what only says that it is there counts, too."""
        self._heard_ns = self.world.now_ns
        self.on_frame(frame)

    def _lose(self) -> None:
        self.connection = None
        self.life += 1
        self.pause()


class _End:
    """The client's end of one connection; what a connection says that was left is not heard."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self.connection: Connection | None = None

    def on_frame(self, frame: ServerFrame) -> None:
        """The node said this."""
        client = self._client
        if client.connection is self.connection:
            if client.world.trace.is_on:
                client.world.note(client.name, f"hears {type(frame).__name__}")
            client.hear(frame)

    def on_lost(self) -> None:
        """The connection is gone."""
        if self._client.connection is self.connection:
            self._client.on_lost()
