"""BusRunner: one node of the group, over all its lives.

All events of one tick reach the node in one step. A life ends when the power goes; the next one has the same
disk, another run id, and nothing else. A sleeping node takes no step: its timers and arrivals are late. Every
node has a clock of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from antiphon.bus import effects as bus
from antiphon.bus.effects import Received, Submitted
from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.bus.messages import BusMessage, Data, Envelopes, ServerStatus
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import recover
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.cluster.topology import LANES, Role
from antiphon.errors import NoSpace
from antiphon.ids import Mid
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.journal import Journal
from antiphon.outlet import Outlet
from antiphon.sim.bus.carrier import Carrier
from antiphon.sim.bus.payloads import WatchedPayloads
from antiphon.sim.bus.refusals import RefusingTally, refusals
from antiphon.sim.bus.station import Station
from antiphon.sim.bus.tally import Tally
from antiphon.sim.checkers.watch import NodeFacts, Watch
from antiphon.sim.disk import PowerLost, SimDisk, SyncFailed
from antiphon.sim.image import Image
from antiphon.sim.links import LinkHabits, Links
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.trace import summary
from antiphon.sim.world import MICROSECOND_NS, MILLISECOND_NS, NodeClock, Timer, Violation, World
from antiphon.startup import can_do_without_disk
from antiphon.transport.interface import Peer
from antiphon.wire.lanes import Lane

_CLUSTER = "sim"
# Small enough that segments fill up, large enough for every envelope.
_JOURNAL = JournalSettings(segment_bytes=160 * 1024, order_blocks=8, spares_max=2)


class Hall:
    """Everything common to the nodes of a run."""

    def __init__(self, world: World, config: GroupConfig, habits: LinkHabits, watch: Watch) -> None:
        self.world = world
        self.config = config
        self.watch = watch
        self.links = Links(world, habits, self._arrive)
        self.tick_ns = 20 * MICROSECOND_NS
        self.restart_ns = 500 * MILLISECOND_NS
        self.runners: dict[int, BusRunner] = {}
        # The newest configuration of any replica, and the image of each disk.
        self.newest = config
        self.images: dict[int, Image] = {}
        # The envelopes that any node has numbered.
        self.numbered: set[Mid] = set()
        # The configuration in which the last entry was committed.
        self.committed_in: Callable[[], int] = lambda: config.config_id
        # The highest number that any node has applied.
        self.applied_upto = 0
        # One number in how many fails; 0: none.
        self.refuses_one_in = 0
        chance = world.random("outlets")
        # Do replicas receive late what they do not wait for, and gather arrivals while no other waits for
        # them?
        self.has_late = chance.random() < 0.7
        self.has_spares = chance.random() < 0.7
        self.whole_bytes: int = chance.choice((1_400, 60_000))

    def peers(self) -> dict[int, Peer]:
        """The members, with the lanes that they listen to."""
        roles = {
            node: Role.CLIENT_MANAGER
            if runner.disk is None
            else Role.MESSAGE_MANAGER
            if node in self.config.data_servers
            else Role.WITNESS
            for node, runner in self.runners.items()
        }
        return {node: Peer("", 0, LANES[role]) for node, role in roles.items()}

    def _arrive(self, to: int, event: Received) -> None:
        self.runners[to].hear(event)


class BusRunner:
    """Drives one node through its lives. A node without a disk is no server, and only produces."""

    def __init__(self, hall: Hall, node: int, new_disk: Callable[[], tuple[SimDisk, bytes]] | None) -> None:
        world = hall.world
        self.hall = hall
        self.node = node
        # A disk, and the id that it is given when it is formatted.
        self.disk: SimDisk | None = None
        self.disk_id = NO_DISK
        if new_disk is not None:
            self.disk, self.disk_id = new_disk()
        self._new_disk = new_disk
        self.life = 0
        self.clock = NodeClock(world, world.random(f"clock/{node}"))
        # Set before a life that ends with its next envelope: the only receivers of that envelope.
        self.last_words: tuple[int, ...] | None = None
        # A node that is gone does not come back by itself.
        self.is_gone = False
        # Was the log found damaged in this life? And the envelopes that were damaged in some life.
        self.is_damaged = False
        self.unreadable: set[Mid] = set()
        self.open_tags: dict[int, bytes] = {}
        self.machines: Station | None = None
        self._name = f"node {node}"
        self._chance: random.Random = world.random(f"node/{node}")
        self.journal: Journal | None = None
        self._storage: ChannelStorage | None = None
        self._events: list[bus.Event] = []
        self._outlet: Outlet[Received] | None = None
        self._peers: dict[int, Peer] = {}
        # Is there a timer for late messages; and do arrivals wait for a while?
        self._is_timed = False
        self._is_gathering = False
        self._step_timer: Timer | None = None
        self._deadline_timer: Timer | None = None
        self._deadline_at_ns = -1
        self._paused_until_ns = 0
        # Since when the clock stands still, if it does.
        self._frozen_ns: int | None = None
        self._tags = 0

    @property
    def is_up(self) -> bool:
        return self.machines is not None

    @property
    def replica(self) -> Replica | None:
        return self.machines.replica if self.machines is not None else None

    @property
    def application(self) -> Tally | None:
        return self.machines.application if self.machines is not None else None

    def facts(self) -> NodeFacts | None:
        """The standing of this node; None while it is down."""
        if self.machines is None:
            return None
        replica, application = self.replica, self.application
        return NodeFacts(
            is_leading=replica is not None and replica.state is State.LEADING,
            applied=application.applied if application is not None else 0,
            digest=application.digest if application is not None else b"",
            waits_for=len(self.open_tags),
        )

    def start(self) -> None:
        """Begin a life with the disk as it is."""
        if self.is_up:
            return
        self.life += 1
        self.hall.world.note(self._name, f"starts life {self.life}")
        try:
            self._begin()
        except PowerLost as cut:
            self.hall.world.probe("node.power_lost_while_starting")
            self._end(str(cut))
        except SyncFailed:
            self._distrust()
        except NoSpace as full:
            self.hall.world.probe("node.no_room_to_start")
            self._end(full.text)

    def _begin(self) -> None:
        hall, node, disk = self.hall, self.node, self.disk
        run_id = self._chance.randbytes(16)
        disk_id = self.disk_id
        carrier = Carrier(hall.world, hall.watch, hall.config, node, run_id, disk_id)
        producer = BusProducer(hall.config, node, run_id)
        if disk is None:
            machines = Station(hall.config, node, producer, disk_id=disk_id, carry=carrier.carry)
        else:
            if not Journal.is_formatted(disk):
                Journal.format(disk, _JOURNAL, disk_id, node, _CLUSTER)
            has_peers = can_do_without_disk(hall.config, node)
            journal, found = Journal.open(disk, _JOURNAL, has_peers=has_peers)
            hall.world.probe("recovery.torn_tail_cut", len(found.truncated))
            hall.world.probe("recovery.repaired", len(found.repairs))
            image = Image.of(found)
            counter = JournalCounter()
            payloads = WatchedPayloads(journal.payloads, partial(hall.watch.on_discarded, node))
            recovered = recover(found, payloads, group=hall.config)
            application = RefusingTally(node, hall.refuses_one_in)
            if recovered.manager_state is not None:
                application.restore(recovered.manager_state)
                assert application.digest == recovered.manager_digest, "the checkpoint gives another state"
                hall.world.probe("recovery.from_checkpoint")
            replica = Replica(
                hall.config,
                node,
                run_id,
                payloads,
                counter,
                recovered,
                disk_id=disk_id,
            )
            # The order may know of a later configuration.
            producer.reconfigure(replica.config)
            machines = Station(
                hall.config, node, producer, replica, application, disk_id=disk_id, carry=carrier.carry
            )
            machines.on_applied = self._on_applied
            machines.on_restored = self._on_restored
            life = self.life
            self.journal = journal
            self._storage = ChannelStorage(
                hall.world,
                node,
                disk,
                journal,
                found,
                counter,
                application,
                hall.watch,
                tell=self._tell,
                later=lambda delay, action: self._later(life, delay, action),
                stand_still=self._stand_still,
            )
            hall.watch.on_started(node, image, application.applied)
            if replica.is_amnesiac:
                hall.watch.on_status(node, ServerStatus.AMNESIA)
        self.machines = machines
        self._peers = hall.peers()
        self._outlet = Outlet(
            lambda message: Received(node, message, disk_id),
            hall.whole_bytes,
            node=node,
            peers=self._peers if hall.has_late and disk is not None else None,
            is_spare=machines.replica.is_spare if hall.has_spares and machines.replica is not None else None,
        )
        self._is_timed = self._is_gathering = False
        self._plan_step()

    def crash(self) -> None:
        if self.is_up:
            self.hall.world.probe("node.crashed")
            self._end("crash")

    def wipe(self) -> None:
        """The node loses its disk, and gets an empty one with another id."""
        assert self._new_disk is not None, "this node has no disk to lose"
        if self.is_up:
            self._end("its disk is replaced")
            self._replace_disk()

    def _replace_disk(self) -> None:
        assert self._new_disk is not None, "this node has no disk to lose"
        self.hall.world.probe("node.disk_replaced")
        self.is_damaged = False
        self.unreadable.clear()
        self.disk, self.disk_id = self._new_disk()
        self.hall.watch.on_replaced(self.node)

    def lose_log(self) -> None:
        """The log cannot be read any more; the next life puts it aside."""
        self.is_damaged = True
        self.hall.watch.on_status(self.node, ServerStatus.DAMAGED)
        # At once: every message from now on comes from a damaged server.
        self.take(bus.LogDamaged())
        assert self._step_timer is not None, "what was taken is due"
        self._step_timer.cancel()
        self._guarded_step()

    def leave(self) -> None:
        """The node goes and does not come back by itself."""
        self.is_gone = True
        if self.is_up:
            self._end("gone")

    def _end(self, why: str) -> None:
        hall = self.hall
        hall.world.note(self._name, f"ends life {self.life}: {why}")
        if self.disk is not None:
            if self.is_up:
                hall.watch.on_crashed(self.node)
            self.disk.lose_power()
        for timer in (self._step_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._step_timer = self._deadline_timer = None
        self._events.clear()
        self.open_tags.clear()
        self.machines = self.journal = self._storage = self._outlet = None
        self._paused_until_ns = 0
        self._frozen_ns = None
        self.last_words = None
        if self.is_damaged:
            self._replace_disk()
        if not self.is_gone:
            hall.world.after(self._chance.randrange(MILLISECOND_NS, hall.restart_ns), self.start)

    def come_back(self) -> None:
        """A node that was gone lives again."""
        if self.is_gone:
            self.is_gone = False
            self.start()

    def sleep(self, duration_ns: int, *, is_frozen: bool = False) -> None:
        """The process is not given the processor for a while, beginning now; its clock may stand still."""
        if self.is_up:
            self.hall.world.note(self._name, f"sleeps for {duration_ns // MILLISECOND_NS} ms")
            if is_frozen and self._frozen_ns is None:
                self.hall.world.probe("faults.frozen")
                self._frozen_ns = self.hall.world.now_ns
            self._paused_until_ns = max(self._paused_until_ns, self.hall.world.now_ns + duration_ns)
            if self._step_timer is not None:
                self._step_timer.cancel()
                self._step_timer = None
                self._plan_step()

    def _stand_still(self, duration_ns: int) -> None:
        """The process waits for its disk, from its next step on."""
        self._paused_until_ns = max(self._paused_until_ns, self.hall.world.now_ns + duration_ns)

    def wake(self) -> None:
        if self.is_up:
            self._plan_step()

    def heal(self) -> None:
        self.last_words = None
        if self.disk is not None:
            self.disk.cut_after = self.disk.fails = self.disk.capacity = None
        if self._paused_until_ns > self.hall.world.now_ns:
            self._paused_until_ns = 0
            if self._step_timer is not None:
                self._step_timer.cancel()
                self._step_timer = None
                self._plan_step()

    def submit(self, payload: bytes, count: int) -> None:
        """A part of this node wants an envelope ordered."""
        self._tags += 1
        tag = self.node << 32 | self._tags
        self.open_tags[tag] = payload
        self.hall.watch.on_submitted(self.node, tag, payload)
        self._tell(Submitted(tag, payload, count))

    def hear(self, event: Received) -> None:
        """Receive a message of another node."""
        if self._outlet is None:
            return
        self._events.append(event)
        if self._step_timer is None and not self._is_gathering:
            if self._outlet.gather_ns:
                self.hall.world.probe("node.gathers")
                self._is_gathering = True
                self._later(self.life, self._outlet.gather_ns, self._end_gathering)
            else:
                self._plan_step()

    def _end_gathering(self) -> None:
        self._is_gathering = False
        if self._events:
            self._plan_step()

    def take(self, event: bus.Event) -> None:
        if self.machines is not None:
            self._events.append(event)
            if self._step_timer is None:
                self._plan_step()

    _tell = take

    def _later(self, life: int, delay_ns: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.is_up and self.life == life:
                self._guard(action)

        self.hall.world.after(delay_ns, act)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerLost as cut:
            self.hall.world.probe("node.power_lost_in_a_call")
            self._end(str(cut))
        except SyncFailed:
            self._distrust()

    def _distrust(self) -> None:
        """A sync failed: the next life begins with another disk."""
        self.hall.world.probe("disk.sync_failed")
        self.is_damaged = True
        self._end("a sync failed")

    def _plan_step(self) -> None:
        if self._step_timer is None:
            world = self.hall.world
            delay = 1 + int(self._chance.random() * self.hall.tick_ns)
            delay = max(delay, self._paused_until_ns - world.now_ns)
            self._step_timer = world.after(delay, self._guarded_step)

    def _guarded_step(self) -> None:
        self._guard(self._step)

    def _step(self) -> None:
        machines, world = self.machines, self.hall.world
        assert machines is not None, "a node that is down took a step"
        self._step_timer = None
        events, self._events = self._events, []
        if world.trace.is_on:
            for event in events:
                world.note(self._name, f"takes {summary(event)}")
        if self._frozen_ns is not None:
            self.clock.stand_still(self.hall.world.now_ns - self._frozen_ns)
            self._frozen_ns = None
        effects = machines.step(self.clock.now_ns(), events)
        for effect in effects:
            self._carry_out(effect)
            if self.machines is not machines:
                return
        self._flush_outlet()
        if self._storage is not None:
            self._storage.flush()
        if self.replica is not None and self.replica.must_begin_anew:
            world.probe("node.began_anew")
            self._end("it has to start again")
            return
        self._arm(is_idle=not events and not effects)

    def _carry_out(self, effect: bus.Effect) -> None:
        outlet, kind = self._outlet, type(effect)
        assert outlet is not None, "a node that is down did something"
        if kind is bus.Send:
            outlet.send(effect.to, effect.message)  # type: ignore[union-attr]
        elif kind is bus.Multicast:
            message = effect.message  # type: ignore[union-attr]
            if type(message) is Data and self.last_words is not None:
                self._say_last(message, self.last_words)
            else:
                outlet.multicast(message)
        elif kind is bus.EnvelopeConfirmed:
            self._on_confirmed(effect)  # type: ignore[arg-type]
        elif kind is bus.EnvelopeUncertain:
            self.hall.world.probe("producer.uncertain")
            self.hall.watch.on_envelope_uncertain(self.node, effect.tag)  # type: ignore[union-attr]
        elif kind is bus.Reconfigured:
            self.hall.world.probe("node.reconfigured")
            replica = self.replica
            if effect.config.config_id > self.hall.newest.config_id:  # type: ignore[union-attr]
                self.hall.newest = effect.config  # type: ignore[union-attr]
            if replica is not None and not replica.is_amnesiac and not self.is_damaged:
                # A new disk is listed now, and counts from here on.
                self.hall.watch.on_status(self.node, ServerStatus.OK)
            self.hall.world.note(self._name, f"goes over to {summary(effect)}")
        elif kind is not bus.EnvelopeCommitted and kind is not bus.RunOver:
            assert self._storage is not None, f"{kind.__name__} on a node without a disk"
            if self.hall.world.trace.is_on:
                self.hall.world.note(self._name, f"does {summary(effect)}")
            self._storage.carry_out(effect)

    def _flush_outlet(self) -> None:
        outlet = self._outlet
        assert outlet is not None, "a node that is down said something"
        self._leave(outlet.flush(self.clock.now_ns()))
        self._time(outlet)

    def _time(self, outlet: Outlet[Received]) -> None:
        if not self._is_timed and (deadline_ns := outlet.late_at_ns) is not None:
            self._is_timed = True
            delay_ns = max(self.clock.delay_until(deadline_ns), self.hall.tick_ns)
            self._later(self.life, delay_ns, lambda: self._on_late(outlet))

    def _on_late(self, outlet: Outlet[Received]) -> None:
        self._is_timed = False
        frames = outlet.tick(self.clock.now_ns())
        self.hall.world.probe("node.said_late", len(frames))
        self._leave(frames)
        self._time(outlet)

    def _leave(self, frames: list[tuple[int | Lane, Received]]) -> None:
        links = self.hall.links
        for to, event in frames:
            if type(event.message) is Envelopes:
                self.hall.world.probe("producer.said_together")
            if type(to) is not Lane:
                links.send(self.node, to, event)
                continue
            for node, peer in self._peers.items():
                if to in peer.lanes and node != self.node:
                    links.send(self.node, node, event)

    def _say_last(self, message: BusMessage, receivers: tuple[int, ...]) -> None:
        """Some nodes receive an envelope, and then this node is gone."""
        self.hall.world.probe("producer.last_words")
        for to in receivers:
            if to != self.node:
                self.hall.links.send(self.node, to, Received(self.node, message, self.disk_id))
        self.leave()

    def _on_applied(self, apply: bus.Apply) -> None:
        if self.hall.world.trace.is_on:
            self.hall.world.note(self._name, f"applies {summary(apply.entry)}")
        self.hall.watch.on_applied(self.node, apply.entry, apply.payload)
        if apply.entry.last > self.hall.applied_upto:
            self.hall.applied_upto = apply.entry.last
            self.hall.world.probe(f"order.{apply.entry.kind.name}")

    def _on_restored(self, n: int) -> None:
        self.hall.world.probe("node.took_over_a_checkpoint")
        self.hall.world.note(self._name, f"goes on behind {n} with a checkpoint of another")
        self.hall.watch.on_restored(self.node, n)

    def _on_confirmed(self, confirmed: bus.EnvelopeConfirmed) -> None:
        if self.hall.world.trace.is_on:
            self.hall.world.note(self._name, f"is told {summary(confirmed)}")
        self.hall.world.probe("producer.confirmed")
        tag, first, count, exceptions = confirmed
        self.hall.watch.on_envelope_confirmed(self.node, tag, first, count)
        told = refusals(first, count, self.hall.refuses_one_in)
        if exceptions != told:
            raise Violation(
                f"outcomes: node {self.node} is told {exceptions} of {first}..{first + count - 1}"
            )
        self.open_tags.pop(confirmed.tag)

    def _arm(self, *, is_idle: bool) -> None:
        machines = self.machines
        assert machines is not None, "a node that is down set its timer"
        deadline_ns = machines.next_deadline_ns()
        self.clock.look_at(self._name, deadline_ns, is_idle=is_idle)
        if deadline_ns is None:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
                self._deadline_timer = None
            return
        if self._deadline_timer is not None:
            if deadline_ns == self._deadline_at_ns:
                return
            self._deadline_timer.cancel()
        self._deadline_at_ns = deadline_ns
        delay = max(self.clock.delay_until(deadline_ns), self.hall.tick_ns)
        self._deadline_timer = self.hall.world.after(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        self._plan_step()
