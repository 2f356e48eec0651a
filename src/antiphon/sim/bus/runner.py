"""BusRunner: one node of the group of the bus workload, over all its lives; its application is a tally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from antiphon.sim.disk import SimDisk
from antiphon.sim.image import Image
from antiphon.sim.links import LinkHabits
from antiphon.sim.lives import Ground, LivingNode
from antiphon.sim.storage import ChannelStorage
from antiphon.sim.trace import summary
from antiphon.sim.world import MILLISECOND_NS, Violation, World
from antiphon.startup import can_do_without_disk
from antiphon.transport.interface import Peer

_CLUSTER = "sim"
# Small enough that segments fill up, large enough for every envelope.
_JOURNAL = JournalSettings(segment_bytes=160 * 1024, order_blocks=8, spares_max=2)


class Hall(Ground[Received, "BusRunner"]):
    """Everything common to the nodes of a run of the bus."""

    def __init__(self, world: World, config: GroupConfig, habits: LinkHabits, watch: Watch) -> None:
        super().__init__(world, habits)
        self.config = config
        self.watch = watch
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


class BusRunner(LivingNode[Received]):
    """A node without a disk is no server, and only produces."""

    restart_ns_min = MILLISECOND_NS

    def __init__(self, hall: Hall, node: int, new_disk: Callable[[], tuple[SimDisk, bytes]] | None) -> None:
        disk, self.disk_id = (None, NO_DISK) if new_disk is None else new_disk()
        super().__init__(hall, node, disk)
        self.hall = hall
        # A disk, and the id that it is given when it is formatted.
        self._new_disk = new_disk
        # Set before a life that ends with its next envelope: the only receivers of that envelope.
        self.last_words: tuple[int, ...] | None = None
        # Was the log found damaged in this life? And the envelopes that were damaged in some life.
        self.is_damaged = False
        self.unreadable: set[Mid] = set()
        self.open_tags: dict[int, bytes] = {}
        self.machines: Station | None = None
        self.journal: Journal | None = None
        self._tags = 0

    @property
    def disk(self) -> SimDisk | None:
        return self._disk

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

    def _begin(self) -> None:
        hall, node, disk = self.hall, self.node_id, self._disk
        run_id = self._chance.randbytes(16)
        disk_id = self.disk_id
        carrier = Carrier(self.world, hall.watch, hall.config, node, run_id, disk_id)
        producer = BusProducer(hall.config, node, run_id)
        if disk is None:
            machines = Station(hall.config, node, producer, disk_id=disk_id, carry=carrier.carry)
        else:
            if not Journal.is_formatted(disk):
                Journal.format(disk, _JOURNAL, disk_id, node, _CLUSTER)
            has_peers = can_do_without_disk(hall.config, node)
            journal, found = Journal.open(disk, _JOURNAL, has_peers=has_peers)
            self.world.probe("recovery.torn_tail_cut", len(found.truncated))
            self.world.probe("recovery.repaired", len(found.repairs))
            image = Image.of(found)
            counter = JournalCounter()
            payloads = WatchedPayloads(journal.payloads, partial(hall.watch.on_discarded, node))
            recovered = recover(found, payloads, group=hall.config)
            application = RefusingTally(node, hall.refuses_one_in)
            if recovered.manager_state is not None:
                application.restore(recovered.manager_state)
                assert application.digest == recovered.manager_digest, "the checkpoint gives another state"
                self.world.probe("recovery.from_checkpoint")
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
            self.journal = journal
            self._storage = ChannelStorage(
                self.world,
                node,
                disk,
                journal,
                found,
                counter,
                application,
                hall.watch,
                tell=self.tell,
                later=partial(self._later, self.life),
                stand_still=self.stand_still,
            )
            hall.watch.on_started(node, image, application.applied)
            if replica.is_amnesiac:
                hall.watch.on_status(node, ServerStatus.AMNESIA)
        self.machines = machines
        channel, peers = hall.config.group, hall.peers()
        outlet = Outlet(
            self._pack,
            hall.whole_bytes,
            node=node,
            peers=peers if hall.has_late and disk is not None else None,
            is_spare=machines.replica.is_spare if hall.has_spares and machines.replica is not None else None,
        )
        self._set_out({channel: outlet}, {channel: peers})

    def wipe(self) -> None:
        """The node loses its disk, and gets an empty one with another id."""
        assert self._new_disk is not None, "this node has no disk to lose"
        if self.is_up:
            self._end("its disk is replaced")
            self._replace_disk()

    def _replace_disk(self) -> None:
        assert self._new_disk is not None, "this node has no disk to lose"
        self.world.probe("node.disk_replaced")
        self.is_damaged = False
        self.unreadable.clear()
        self._disk, self.disk_id = self._new_disk()
        self.hall.watch.on_replaced(self.node_id)

    def lose_log(self) -> None:
        """The log cannot be read any more; the next life puts it aside."""
        self.is_damaged = True
        self.hall.watch.on_status(self.node_id, ServerStatus.DAMAGED)
        # At once: every message from now on comes from a damaged server.
        self.tell(bus.LogDamaged())
        assert self._step_timer is not None, "what was taken is due"
        self._step_timer.cancel()
        self._guarded_step()

    def leave(self) -> None:
        """The node goes and does not come back by itself."""
        self.is_gone = True
        if self.is_up:
            self._end("gone")

    def _forget_life(self) -> None:
        if self.is_up and self._disk is not None:
            self.hall.watch.on_crashed(self.node_id)
        self.open_tags.clear()
        self.machines = self.journal = None
        self.last_words = None

    def _on_dead(self) -> None:
        if self.is_damaged:
            self._replace_disk()

    def _on_failed_sync(self) -> None:
        """The next life begins with another disk."""
        self.is_damaged = True

    def come_back(self) -> None:
        """A node that was gone lives again."""
        if self.is_gone:
            self.is_gone = False
            self.start()

    def wake(self) -> None:
        if self.is_up:
            self._plan_step()

    def heal(self) -> None:
        self.last_words = None
        super().heal()

    def submit(self, payload: bytes, count: int) -> None:
        """A part of this node wants an envelope ordered."""
        self._tags += 1
        tag = self.node_id << 32 | self._tags
        self.open_tags[tag] = payload
        self.hall.watch.on_submitted(self.node_id, tag, payload)
        self.tell(Submitted(tag, payload, count))

    def tell(self, event: bus.Event) -> None:
        self.take([event])

    # --- steps ---

    def _step_machines(self, events: list[bus.Event]) -> Sequence[bus.Effect]:
        assert self.machines is not None, "a node that is down took a step"
        return self.machines.step(self.clock.now_ns(), events)

    def _draw_delay_ns(self) -> int:
        # Another way to draw would make other runs of the seeds in tests/sim/regressions.
        return 1 + int(self._chance.random() * self.ground.tick_ns)

    def _next_deadline_ns(self) -> int | None:
        assert self.machines is not None, "a node that is down set its timer"
        return self.machines.next_deadline_ns()

    def _carry_out(self, effect: bus.Effect) -> None:
        outlet, kind = self._outlets[self.hall.config.group], type(effect)
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
            self.world.probe("producer.uncertain")
            self.hall.watch.on_envelope_uncertain(self.node_id, effect.tag)  # type: ignore[union-attr]
        elif kind is bus.Reconfigured:
            self.world.probe("node.reconfigured")
            replica = self.replica
            if effect.config.config_id > self.hall.newest.config_id:  # type: ignore[union-attr]
                self.hall.newest = effect.config  # type: ignore[union-attr]
            if replica is not None and not replica.is_amnesiac and not self.is_damaged:
                # A new disk is listed now, and counts from here on.
                self.hall.watch.on_status(self.node_id, ServerStatus.OK)
            self.world.note(self.name, f"goes over to {summary(effect)}")
        elif kind is not bus.EnvelopeCommitted and kind is not bus.RunOver:
            self._store(effect)

    def _pack(self, message: BusMessage) -> Received:
        if type(message) is Envelopes:
            self.world.probe("producer.said_together")
        return Received(self.node_id, message, self.disk_id)

    def _say_last(self, message: BusMessage, receivers: tuple[int, ...]) -> None:
        """Some nodes receive an envelope, and then this node is gone."""
        self.world.probe("producer.last_words")
        for to in receivers:
            if to != self.node_id:
                self.hall.links.send(self.node_id, to, Received(self.node_id, message, self.disk_id))
        self.leave()

    def _on_applied(self, apply: bus.Apply) -> None:
        if self.world.trace.is_on:
            self.world.note(self.name, f"applies {summary(apply.entry)}")
        self.hall.watch.on_applied(self.node_id, apply.entry, apply.payload)
        if apply.entry.last > self.hall.applied_upto:
            self.hall.applied_upto = apply.entry.last
            self.world.probe(f"order.{apply.entry.kind.name}")

    def _on_restored(self, n: int) -> None:
        self.world.probe("node.took_over_a_checkpoint")
        self.world.note(self.name, f"goes on behind {n} with a checkpoint of another")
        self.hall.watch.on_restored(self.node_id, n)

    def _on_confirmed(self, confirmed: bus.EnvelopeConfirmed) -> None:
        if self.world.trace.is_on:
            self.world.note(self.name, f"is told {summary(confirmed)}")
        self.world.probe("producer.confirmed")
        tag, first, count, exceptions = confirmed
        self.hall.watch.on_envelope_confirmed(self.node_id, tag, first, count)
        told = refusals(first, count, self.hall.refuses_one_in)
        if exceptions != told:
            raise Violation(
                f"outcomes: node {self.node_id} is told {exceptions} of {first}..{first + count - 1}"
            )
        self.open_tags.pop(confirmed.tag)
