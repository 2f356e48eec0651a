"""Station: the machines of one node of a channel in one life, and the queues between them.

Where it sits
    driver  ->  STATION( producer, replica, tally )  ->  driver

What it promises
    STA1  A step ends when every queue is empty, and the effects come out in the order in which they arose.
    STA2  A station without a replica is no server of the channel; it produces, and sends its presence.

What it leaves to others
    Files, sockets and clocks. The simulator and the processes of the bench run this class; `antiphon.node` is
    its twin with clients.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.bus import effects as bus
from antiphon.bus import messages as said
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.producer import OF_PRODUCER, BusProducer
from antiphon.bus.replica import Replica
from antiphon.bus.schema import Machine, heard_by
from antiphon.sim.bus.tally import Tally

_FOR_PRODUCER = heard_by(Machine.PRODUCER)
_OF_PRODUCER = frozenset(OF_PRODUCER)


# Effects of every envelope that no machine here takes.
_AS_THEY_ARE = frozenset((bus.Append, bus.EnvelopeCommitted, bus.EnvelopeConfirmed))


def _as_said(message: BusMessage) -> BusMessage:
    return message


class Station:
    def __init__(
        self,
        config: GroupConfig,
        node: int,
        producer: BusProducer,
        replica: Replica | None = None,
        application: Tally | None = None,
        *,
        disk_id: bytes = b"",
        carry: Callable[[BusMessage], BusMessage] | None = None,
    ) -> None:
        """`carry` gives a message as its receivers decode it; the simulator's uses the codec."""
        self.node = node
        self.producer = producer
        self.replica = replica
        self.application = application
        self._disk_id = disk_id
        self._carry = carry or _as_said
        self._for_producer: list[bus.Event] = []
        self._for_replica: list[bus.Event] = []
        # May the application have something to emit?
        self._has_heard = False
        self._now_ns = 0
        self._effects: list[bus.Effect] = []
        # Called with every entry before it is applied.
        self.on_applied: Callable[[bus.Apply], None] | None = None
        self.on_restored: Callable[[int], None] = lambda n: None
        # A replica sends its node's presence itself.
        self._presence = PresenceKeeper(config, node, role="client") if replica is None else None
        if replica is not None:
            replica.loopback = carry

    def next_deadline_ns(self) -> int | None:
        due = self.producer.next_deadline_ns()
        if self.replica is not None:
            other = self.replica.next_deadline_ns()
            if due is None or (other is not None and other < due):
                due = other
        elif self._presence is not None:
            other = self._presence.next_deadline_ns()
            if due is None or (other is not None and other < due):
                due = other
        return due

    def step(self, now_ns: int, events: list[bus.Event]) -> list[bus.Effect]:
        """Take events; returns the effects for the disk, the network and the submitter."""
        self._now_ns, self._effects = now_ns, []
        for event in events:
            if type(event) is bus.Received:
                self._route(event)
            elif type(event) is bus.Submitted:
                self._for_producer.append(event)
            elif type(event) is not bus.Alarm:
                self._for_replica.append(event)
        due = self.producer.next_deadline_ns()
        if due is not None and due <= now_ns:
            self._for_producer.append(bus.Ticked())
        if self.replica is not None:
            due = self.replica.next_deadline_ns()
            if due is not None and due <= now_ns:
                self._for_replica.append(bus.Ticked())
        elif self._presence is not None:
            for effect in self._presence.step(now_ns, events):
                self._perform(effect)  # type: ignore[arg-type]
        config = self.producer.config
        self._settle()
        if self._presence is not None and self.producer.config is not config:
            # Without a replica, only the producer reads that the channel has another configuration.
            self._presence.reconfigure(self.producer.config)
            self._effects.append(bus.Reconfigured(self.producer.config))
        return self._effects

    def _settle(self) -> None:
        replica, application = self.replica, self.application
        while True:
            if self._for_producer:
                heard, self._for_producer = self._for_producer, []
                for effect in self.producer.step(self._now_ns, heard):
                    self._perform(effect)
            if self._for_replica:
                heard, self._for_replica = self._for_replica, []
                if replica is not None:
                    for effect in replica.step(self._now_ns, heard):
                        kind = type(effect)
                        if kind is bus.Append:
                            self._effects.append(effect)
                        elif kind is bus.Apply and application is not None and self.on_applied is None:
                            application.apply(effect.entry, effect.payload)  # type: ignore[union-attr]
                            self._has_heard = True
                        else:
                            self._perform(effect)
            if application is not None and self._has_heard:
                self._has_heard = False
                for effect in application.flush():
                    self._perform(effect)
            if not self._for_producer and not self._for_replica:
                return

    def _route(self, event: bus.Received) -> None:
        kind = type(event.message)
        if kind in _FOR_PRODUCER:
            self._for_producer.append(event)
        if self.replica is None:
            return
        if kind is said.AppliedGet:
            assert self.application is not None, "a replica without an application"
            self.application.ask(event.sender, event.message)  # type: ignore[arg-type]
            self._has_heard = True
        # The roles of this node have heard each other already; see `Replica`.
        elif event.sender != self.node or kind in _OF_PRODUCER:
            self._for_replica.append(event)

    def _perform(self, effect: bus.Effect) -> None:
        kind = type(effect)
        if kind in _AS_THEY_ARE:
            self._effects.append(effect)
            return
        if kind is bus.Apply:
            self._apply(effect)  # type: ignore[arg-type]
            return
        if kind is bus.Multicast and self.replica is None and type(effect.message) is said.Data:  # type: ignore[union-attr]
            # No machine here listens to our producer.
            if self._carry is not _as_said:
                effect = bus.Multicast(self._carry(effect.message))  # type: ignore[union-attr]
            self._effects.append(effect)
            return
        match effect:
            case bus.Send(to=to, message=message):
                heard = self._carry(message)
                if to == self.node:
                    self._hear(heard)
                else:
                    self._effects.append(bus.Send(to, heard))
            case bus.Multicast(message=message):
                heard = self._carry(message)
                self._effects.append(bus.Multicast(heard))
                self._hear(heard)
            case bus.TakeCheckpoint(n=n):
                assert self.application is not None, "a replica without an application"
                digest, state = self.application.capture(n)
                self._for_replica.append(bus.StateCaptured(n, digest, state, ()))
            case bus.OpenState() | bus.MoveState() | bus.InstallState() | bus.DropState():
                self._change_state(effect)
            case bus.PrimaryChanged() | bus.Spoilt():
                # The application refers to no record.
                pass
            case bus.Reconfigured(config=config):
                self.producer.reconfigure(config)
                self._effects.append(effect)
            case _:
                self._effects.append(effect)

    def _apply(self, apply: bus.Apply) -> None:
        assert self.application is not None, "a replica without an application"
        if self.on_applied is not None:
            self.on_applied(apply)
        self.application.apply(apply.entry, apply.payload)
        self._has_heard = True

    def _change_state(self, effect: bus.OpenState | bus.MoveState | bus.InstallState | bus.DropState) -> None:
        """A state of another node is on its way to becoming that of the application."""
        replica, application = self.replica, self.application
        assert replica is not None and application is not None, "a replica without an application"
        match effect:
            case bus.OpenState(n=n, state=state):
                self._for_replica.append(bus.StateOpened(n, *application.open_state(state)))
            case bus.MoveState(n=n):
                self._for_replica.append(bus.StateCaptured(n, *application.move_state(), ()))
            case bus.InstallState(n=n):
                application.install_state(n, replica.term if replica.is_serving else 0)
                self.on_restored(n)
                self._has_heard = True
            case bus.DropState():
                pass

    def _hear(self, message: BusMessage) -> None:
        self._route(bus.Received(self.node, message, self._disk_id))
