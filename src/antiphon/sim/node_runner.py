"""NodeRunner: the twin of runtime/node_runner.py; lets one node live, die and live again.

Whatever happens within one tick reaches the node in one step; what that step wants written is written
at once and synced together. Messages between the machines of the node pass through the real codec, and
the checkers see them on the way. A life ends when the power goes: between two events, or in the middle
of a call of the disk. The next life gets the same disk and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from antiphon.bus import codec
from antiphon.bus.effects import Event, Received
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage, Data, Presence, ProducerOpen
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.journal.format import Settings as JournalSettings
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state import outcomes
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.node import InChannel, NodeEvent
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import SimDisk
from antiphon.sim.image import Image
from antiphon.sim.lives import Lives
from antiphon.sim.network import ClientPort
from antiphon.sim.observing import ManagerObserver
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.trace import summary
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, NodeClock, World
from antiphon.startup import CHANNEL, Identity, StartedNode, StartSettings, start

AnySettings = TypeVar("AnySettings", ClientManagerSettings, MessageManagerSettings)

_RESTART_NS = 50 * MILLISECOND_NS

# A message that says nothing to anybody, in place of one that is lost on its way.
_NOTHING = Presence(name="", role="", applied=0, synchronized=False, config_digest=bytes(16), load=0)


@dataclass(slots=True)
class NodeHabits:
    """How the node of this run is set up: small, so that much happens in a short time."""

    tick_ns: int = 20 * MICROSECOND_NS
    # Of what a producer sends to the data server: lost, late, or twice.
    trouble_probability: float = 0.0
    # Of what the roles of the bus say to each other.
    loss_probability: float = 0.0
    rereport_ms: int = 200
    checkpoint_entries: int = 40
    window_entries: int = 1_024
    envelope_bytes: int = 32 * 1024
    connection_bytes: int = 256 * 1024
    session_expiry_ms: int = 300_000
    registration_wait_ms: int = 300
    log_time_interval_ms: int = 50
    flush_bytes: int = 8 << 20
    # Of transactions: how long somebody may be in doubt, a participant may be silent, or may take.
    in_doubt_ms: int = 2_000
    prepare_wait_ms: int = 5_000
    finish_wait_ms: int = 1_000
    # Waits, lingers and repetition times that are drawn, as settings of client managers and of primaries.
    door_waits: dict[str, Any] = field(default_factory=dict)
    primary_waits: dict[str, Any] = field(default_factory=dict)
    segment_bytes: int = 160 * 1024
    order_blocks: int = 8
    # Other settings by their names, as `limits.sizes` draws them.
    sizes: dict[str, int] = field(default_factory=dict)

    def journal(self) -> JournalSettings:
        """Segments that are full after a few syncs."""
        return JournalSettings(segment_bytes=self.segment_bytes, order_blocks=self.order_blocks, spares_max=2)

    def client_manager(self) -> ClientManagerSettings:
        """Envelopes that fit those segments, and few of them under way."""
        # As many commands as outcomes are kept of; see ClientManagerSettings.
        table = outcomes.OUTCOMES_MAX
        settings = ClientManagerSettings(
            envelope_bytes=self.envelope_bytes,
            envelope_bytes_max=48 * 1024,
            submitted_bytes_max=2 * self.envelope_bytes,
            turn_bytes=self.envelope_bytes // 4,
            connection_bytes_max=self.connection_bytes,
            prepare_wait_ms=self.prepare_wait_ms,
            finish_wait_ms=self.finish_wait_ms,
            envelope_commands_max=max(1, table // 4),
            unconfirmed_commands_max=max(1, table // 2),
            **self.door_waits,
        )
        return self._sized(settings)

    def _sized(self, settings: AnySettings) -> AnySettings:
        named = {one.name for one in fields(settings)}
        sizes: dict[str, Any] = {name: size for name, size in self.sizes.items() if name in named}
        return replace(settings, **sizes)

    def message_manager(self) -> MessageManagerSettings:
        """Clocks that run out within a run."""
        settings = MessageManagerSettings(
            session_expiry_ms=self.session_expiry_ms,
            registration_wait_ms=self.registration_wait_ms,
            log_time_interval_ms=self.log_time_interval_ms,
            flush_bytes_max=self.flush_bytes,
            in_doubt_ms=self.in_doubt_ms,
            in_doubt_again_ms=max(1, self.in_doubt_ms // 4),
            **self.primary_waits,
        )
        return self._sized(settings)

    def group(self, node: int) -> GroupConfig:
        """The channel of this one node."""
        return GroupConfig.of(
            CHANNEL,
            (node,),
            rereport_ms=self.rereport_ms,
            checkpoint_entries=self.checkpoint_entries,
            window_entries=self.window_entries,
        )


class NodeRunner(Lives):
    """Drives one node through its lives."""

    def __init__(
        self,
        world: World,
        node_id: int,
        disk: SimDisk,
        clock: NodeClock,
        watch: Watch,
        habits: NodeHabits,
    ) -> None:
        super().__init__(world, node_id, clock, habits.tick_ns)
        self.disk = disk
        self._watch = watch
        self._habits = habits
        self._started: StartedNode | None = None
        self._storage: ChannelStorage | None = None
        self._port: ClientPort | None = None

    @property
    def is_up(self) -> bool:
        return self._started is not None

    def port_if_serving(self) -> ClientPort | None:
        """The client port, once the node listens."""
        return self._port if self._port is not None and self._port.is_listening else None

    @property
    def state(self) -> ChannelState:
        """The channel, by the node's own books."""
        assert self._started is not None, "a node that is down knows nothing"
        return self._started.manager.state

    def facts(self) -> dict[int, int]:
        """How many messages each queue holds, by the node's own books."""
        return {queue.id: queue.live.count for queue in self.state.directory}

    def backlogs(self) -> dict[int, int]:
        """How many messages each subscription still needs, by the node's own books."""
        return {
            subscription.id: subscription.backlog
            for topic in self.state.directory.topics
            for subscription in topic.subscriptions.values()
        }

    def machines(self) -> list[Any]:
        """All that lives in the present life."""
        started = self._started
        return [] if started is None else [started.node, started.journal]

    # Living and dying.

    def _begin(self) -> None:
        identity = Identity(
            disk_id=self.world.random(f"disk id/{self.node_id}").randbytes(16),
            run_id=self._chance.randbytes(16),
            start_s=self.clock.wall_ms() // 1_000,
        )
        settings = StartSettings(
            group=self._habits.group(self.node_id),
            client_manager=self._habits.client_manager(),
            message_manager=self._habits.message_manager(),
        )
        started = start(self.disk, self._habits.journal(), identity, settings)
        journal, found = started.journal, started.found
        image = Image.of(found)
        for note in started.notes:
            self.world.note(self.name, note)
        self.world.probe("recovery.torn_tail_cut", len(found.truncated))
        self.world.probe("recovery.repaired", len(found.repairs))
        self.world.probe("recovery.from_checkpoint", int(started.manager.applied > 0))
        self.world.probe("recovery.after_clean_end", int(found.was_clean))
        self._watch.on_started(self.node_id, image, started.manager.applied)
        self._observe(started, identity)
        life = self.life
        self._port = ClientPort(self.world, self.node_id, self._watch, self.take)
        self._storage = ChannelStorage(
            self.world,
            self.node_id,
            self.disk,
            journal,
            found,
            started.counter,
            started.manager,
            self._watch,
            tell=self._tell,
            later=lambda delay_ns, action: self._later(life, delay_ns, action),
            stand_still=self.pause,
        )
        self._started = started
        self._plan_step()

    def _observe(self, started: StartedNode, identity: Identity) -> None:
        """Let the checkers see, and the codec carry, what the machines say to each other."""
        node_id, watch, world = self.node_id, self._watch, self.world
        config_id = self._habits.group(node_id).config_id

        def carry(message: BusMessage) -> BusMessage:
            if world.trace.is_on:
                world.note(self.name, f"says {summary(message)}")
            watch.on_sent(node_id, message)
            data = codec.encode(message, CHANNEL, config_id, node_id, identity.run_id)
            return codec.decode(data)[1]

        def carry_or_not(message: BusMessage) -> BusMessage:
            if isinstance(message, Data | ProducerOpen) and self._is_in_trouble(message):
                return _NOTHING
            return carry(message)

        def carry_or_lose(message: BusMessage) -> BusMessage:
            carried = carry(message)
            if self._chance.random() >= self._habits.loss_probability:
                return carried
            world.probe(f"bus.lost.{type(message).__name__}")
            return _NOTHING

        started.node.loopback = carry_or_not
        started.replica.loopback = carry_or_lose
        started.node.observer = ManagerObserver(self, watch, started.manager)

    def _is_in_trouble(self, message: Data | ProducerOpen) -> bool:
        """Does what a producer sends get lost on the way, or come late, behind what was sent later?

        On one node nothing does that; between nodes the network does, and no role may tell the difference.
        """
        chance = self._chance
        if chance.random() >= self._habits.trouble_probability:
            return False
        kind = chance.choice(("lost", "late", "late", "twice"))
        self.world.probe(f"bus.data_{kind}")
        if kind != "lost":
            again = Received(self.node_id, message)
            delay = chance.randrange(20 * MILLISECOND_NS)
            self._later(self.life, delay, lambda: self._tell(again))
        return kind != "twice"

    def stop(self) -> None:
        """An orderly end: clients are sent away, everything is synced, and the journal notes it."""
        if self._started is None or self._storage is None or self._port is None:
            return
        self._port.close_all("node.stopping", "the node is stopping")
        self._guard(self._close)

    def _close(self) -> None:
        assert self._storage is not None, "a node without a disk was stopped"
        self._storage.close()
        self.world.probe("node.stopped_in_order")
        self._end("stop")

    def _end(self, why: str) -> None:
        self.world.note(self.name, f"ends life {self.life}: {why}")
        if self._started is not None:
            self._watch.on_crashed(self.node_id)
        if self._port is not None:
            self._port.die()
        self._forget_plans()
        self._started = self._storage = self._port = None
        self.disk.lose_power()
        self._restart_within(_RESTART_NS)

    def heal(self) -> None:
        """Nothing fails from now on."""
        self.disk.cut_after = None
        self._paused_until_ns = 0
        self._habits.trouble_probability = 0.0
        self._habits.loss_probability = 0.0

    # Steps.

    def _tell(self, event: Event) -> None:
        self._events.append(InChannel(CHANNEL, event))
        self._plan_step()

    def _act(self, events: list[NodeEvent]) -> None:
        started, storage, port = self._started, self._storage, self._port
        assert started is not None and storage is not None and port is not None, (
            "a node that is down took a step"
        )
        node = started.node
        port.before_step(events)
        for effect in node.step(self.clock.now_ns(), self.clock.wall_ms(), events):
            if self.world.trace.is_on:
                self.world.note(self.name, f"does {summary(effect)}")
            if isinstance(effect, InChannel):
                storage.carry_out(effect.what)
            else:
                port.carry_out(effect)
        self._watch.on_flushed(self.node_id)
        port.after_step()
        storage.flush()
        if not port.is_listening and node.is_serving:
            port.is_listening = True

    def _next_deadline_ns(self) -> int | None:
        assert self._started is not None, "a node that is down set its timer"
        return self._started.node.next_deadline_ns()
