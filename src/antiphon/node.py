"""Node: the machines of one process, and the queues between them.

Where it sits
    client port -> NODE( client_manager -> producer -> replica -> message_manager ) -> client port

What it promises
    P1  Machines of one node meet only through queues of events; none calls another.
    P2  A step ends when every queue is empty: what can be done without the disk, the network or the
        clock is done, and the effects come out in the order in which they arose.
    P3  Everything durable leaves as `Append`, in index order per channel.

What it leaves to others
    Files, sockets, clocks and threads are the driver's: `runtime` has real ones, `sim` invented ones.
    Both run this class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antiphon.bus import effects as bus
from antiphon.bus import messages as said
from antiphon.bus.producer import FOR_PRODUCER, OF_PRODUCER, Producer
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.client_manager import effects as door
from antiphon.client_manager.manager import ClientManager
from antiphon.message_manager.effects import Effect as ManagerEffect
from antiphon.message_manager.effects import Propose
from antiphon.message_manager.manager import MessageManager

FOR_MESSAGE_MANAGER = (
    said.Register,
    said.Unregister,
    said.CreditUpdate,
    said.SessionDetached,
    said.BrowseRequest,
    said.AppliedGet,
    said.BatchGet,
    said.BatchReply,
)
FOR_CLIENT_MANAGER = (said.Registered, said.Deliver, said.ConsumerEnded, said.BrowseReply)

EMBEDDED_ROLE = "embedded"

UNKNOWN_QUESTION = "admin.unknown_question"


class InChannel(NamedTuple):
    """An event for one channel of the node, or an effect of it."""

    channel: str
    what: Any


NodeEvent = InChannel | door.Event
NodeEffect = (
    InChannel
    | door.SendFrames
    | door.AdmitConnection
    | door.CloseConnection
    | door.PauseReading
    | door.ResumeReading
)


@dataclass(slots=True)
class ChannelParts:
    """The machines of one channel on this node, with what waits for them."""

    name: str
    replica: Replica
    producer: Producer
    manager: MessageManager
    for_replica: list[bus.Event] = field(default_factory=list)
    for_producer: list[bus.Event] = field(default_factory=list)
    manager_heard: bool = False
    proposals: int = 0
    # Is there anybody else? What was said before a configuration began goes to those of the one before.
    is_alone: bool = field(init=False)
    # Room on the disk is low: nothing more is published for now.
    is_blocked: bool = False

    def __post_init__(self) -> None:
        self.is_alone = len(self.replica.config.nodes) == 1

    @property
    def is_busy(self) -> bool:
        """Is anything waiting for one of the machines?"""
        return bool(self.for_replica or self.for_producer or self.manager_heard)


class Node:
    """One node: a client manager, and the roles of every channel it takes part in."""

    def __init__(
        self,
        *,
        node_id: int,
        name: str,
        cluster: str,
        config_digest: str,
        client_manager: ClientManager,
        channels: Iterable[ChannelParts],
    ) -> None:
        self.node_id = node_id
        self.name = name
        self.cluster = cluster
        self.config_digest = config_digest
        self.channels = {parts.name: parts for parts in channels}
        # The simulator sets this, so that every message passes through the codec on its way.
        self.loopback: Callable[[said.BusMessage], said.BusMessage] | None = None
        self._client_manager = client_manager
        self._for_client_manager: list[door.Event] = []
        self._effects: list[NodeEffect] = []
        # Of this step: however many ask the same at once, the answer is made once.
        self._answers: dict[str, str] = {}
        self._now_ns = 0
        self._wall_ms = 0

    @property
    def is_serving(self) -> bool:
        """Does every channel have a primary here that has applied its own claim?"""
        return all(parts.replica.is_serving for parts in self.channels.values())

    def next_deadline_ns(self) -> int | None:
        """When `step` must be called at the latest, with or without events."""
        deadlines = [
            deadline
            for parts in self.channels.values()
            for machine in (parts.replica, parts.producer, parts.manager)
            if (deadline := machine.next_deadline_ns()) is not None
        ]
        return min(deadlines, default=None)

    def step(self, now_ns: int, wall_ms: int, events: Iterable[NodeEvent]) -> list[NodeEffect]:
        """Take what happened, return what must be done, in order."""
        self._now_ns, self._wall_ms, self._effects, self._answers = now_ns, wall_ms, [], {}
        for event in events:
            if isinstance(event, InChannel):
                self._take(self.channels[event.channel], event.what)
            else:
                self._for_client_manager.append(event)
        self._wake_sleepers(now_ns)
        self._settle()
        return self._effects

    # --- events in ---------------------------------------------------------------------------------

    def _take(self, parts: ChannelParts, event: bus.Event) -> None:
        if isinstance(event, bus.Received):
            self._route(parts, event.sender, event.message, event.disk_id)
            return
        parts.for_replica.append(event)
        if isinstance(event, bus.SpaceChanged):
            parts.is_blocked = event.is_low
            self._for_client_manager.append(door.ChannelEvent(parts.name, event))

    def _route(
        self, parts: ChannelParts, sender: int, message: said.BusMessage, disk_id: bytes = b""
    ) -> None:
        """Hand a message of the channel to whichever machines of this node listen to its kind."""
        if self.loopback is not None and sender == self.node_id:
            message = self.loopback(message)
        if isinstance(message, FOR_MESSAGE_MANAGER):
            parts.manager.receive(self._now_ns, sender, message)
            parts.manager_heard = True
        elif isinstance(message, FOR_CLIENT_MANAGER):
            self._for_client_manager.append(door.ChannelEvent(parts.name, message))
        else:
            event = bus.Received(sender, message, disk_id)
            if isinstance(message, FOR_PRODUCER):
                parts.for_producer.append(event)
            # The roles of this node have heard each other already; see `Replica`.
            if sender != self.node_id or isinstance(message, OF_PRODUCER):
                parts.for_replica.append(event)

    def _wake_sleepers(self, now_ns: int) -> None:
        for parts in self.channels.values():
            if _is_due(parts.replica.next_deadline_ns(), now_ns):
                parts.for_replica.append(bus.Ticked())
            if _is_due(parts.producer.next_deadline_ns(), now_ns):
                parts.for_producer.append(bus.Ticked())
            if _is_due(parts.manager.next_deadline_ns(), now_ns):
                parts.manager_heard = True

    # --- the queues --------------------------------------------------------------------------------

    def _settle(self) -> None:
        while True:
            if self._for_client_manager:
                events, self._for_client_manager = self._for_client_manager, []
                for effect in self._client_manager.step(self._now_ns, events):
                    self._perform_of_client_manager(effect)
            busy = [parts for parts in self.channels.values() if parts.is_busy]
            if not busy and not self._for_client_manager:
                return
            for parts in busy:
                self._run_channel(parts)

    def _run_channel(self, parts: ChannelParts) -> None:
        if parts.for_producer:
            events, parts.for_producer = parts.for_producer, []
            for effect in parts.producer.step(self._now_ns, events):
                self._perform_of_bus(parts, effect)
        if parts.for_replica:
            events, parts.for_replica = parts.for_replica, []
            for effect in parts.replica.step(self._now_ns, events):
                self._perform_of_bus(parts, effect)
        if parts.manager_heard:
            parts.manager_heard = False
            for change in parts.manager.flush(self._now_ns, self._wall_ms):
                self._perform_of_manager(parts, change)

    # --- effects out -------------------------------------------------------------------------------

    def _perform_of_client_manager(self, effect: door.Effect) -> None:
        match effect:
            case door.SubmitEnvelope(channel=channel, tag=tag, payload=payload, count=count):
                self.channels[channel].for_producer.append(bus.Submitted(tag, payload, count))
            case door.SendToPrimary(channel=channel, message=message):
                parts = self.channels[channel]
                self._send(parts, parts.replica.primary, message)
            case door.AskNode(conn=conn, request=request, text=text):
                self._for_client_manager.append(self._answer(conn, request, text))
            case _:
                self._effects.append(effect)

    def _perform_of_bus(self, parts: ChannelParts, effect: bus.Effect) -> None:
        match effect:
            case bus.Send(to=to, message=message):
                self._send(parts, to, message)
            case bus.Multicast(message=message):
                self._multicast(parts, message)
            case bus.Apply(entry=entry, payload=payload, location=location):
                parts.manager.apply(self._now_ns, self._wall_ms, entry, payload, location)
                parts.manager_heard = True
            case bus.TakeCheckpoint(n=n):
                digest, state, segments = parts.manager.capture(n)
                parts.for_replica.append(bus.StateCaptured(n, digest, state, segments))
            case bus.OpenState() | bus.MoveState() | bus.InstallState() | bus.DropState():
                self._change_state(parts, effect)
            case bus.EnvelopeCommitted() | bus.EnvelopeConfirmed() | bus.EnvelopeUncertain():
                # Negative tags are our own proposals: the fold acts on them, nobody waits for them.
                if effect.tag >= 0:
                    self._for_client_manager.append(door.ChannelEvent(parts.name, effect))
            case bus.PrimaryChanged():
                self._for_client_manager.append(door.ChannelEvent(parts.name, effect))
            case bus.Reconfigured(config=config):
                parts.producer.reconfigure(config)
                parts.manager.reconfigure(config.data_servers)
                parts.is_alone = len(config.nodes) == 1
                self._effects.append(InChannel(parts.name, effect))
            case bus.Spoilt(place=place, error=error):
                parts.manager.damaged(place, error)
                parts.manager_heard = True
            case _:
                self._effects.append(InChannel(parts.name, effect))

    def _change_state(
        self,
        parts: ChannelParts,
        effect: bus.OpenState | bus.MoveState | bus.InstallState | bus.DropState,
    ) -> None:
        """A state of another node is on its way to becoming that of our message manager."""
        manager = parts.manager
        match effect:
            case bus.OpenState(n=n, state=state):
                parts.for_replica.append(bus.StateOpened(n, *manager.open_state(state)))
            case bus.MoveState(n=n, moved=moved):
                parts.for_replica.append(bus.StateCaptured(n, *manager.move_state(dict(moved))))
            case bus.InstallState(n=n):
                term_served = parts.replica.term if parts.replica.is_serving else 0
                manager.install_state(self._now_ns, n, term_served)
                parts.manager_heard = True
            case bus.DropState():
                manager.drop_state()

    def _perform_of_manager(self, parts: ChannelParts, effect: ManagerEffect) -> None:
        if isinstance(effect, Propose):
            parts.proposals += 1
            parts.for_producer.append(bus.Submitted(-parts.proposals, effect.command, effect.count))
        else:
            self._perform_of_bus(parts, effect)

    def _send(self, parts: ChannelParts, to: int, message: said.BusMessage) -> None:
        if to == self.node_id:
            self._route(parts, to, message)
        else:
            self._effects.append(InChannel(parts.name, bus.Send(to, message)))

    def _multicast(self, parts: ChannelParts, message: said.BusMessage) -> None:
        self._route(parts, self.node_id, message)
        if not parts.is_alone:
            self._effects.append(InChannel(parts.name, bus.Multicast(message)))

    # --- questions ---------------------------------------------------------------------------------

    def _answer(self, conn: int, request: int, text: str) -> door.Answered:
        """Questions to the node are JSON objects with a key `question`."""
        try:
            question = json.loads(text)["question"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return door.Answered(
                conn, request, "an admin question is a JSON object with a key 'question'", UNKNOWN_QUESTION
            )
        if question == "session":
            return door.Answered(conn, request, json.dumps(self._session(json.loads(text))))
        if question == "status":
            return door.Answered(conn, request, self._told(question, self.status))
        if question == "destinations":
            return door.Answered(conn, request, self._told(question, self.destinations))
        return door.Answered(
            conn, request, f"this node knows no question {str(question)[:80]!r}", UNKNOWN_QUESTION
        )

    def _told(self, question: str, tell: Callable[[], Any]) -> str:
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = json.dumps(tell())
        return answer

    def _session(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a channel knows of a session: nothing, or its generation. Who adopts one needs to know."""
        parts = self.channels.get(str(asked.get("channel")))
        try:
            id = int(str(asked.get("session")), 16)
        except ValueError:
            return {}
        row = parts.manager.state.sessions.get(id) if parts is not None else None
        return {} if row is None else {"generation": row.generation, "last": row.last}

    def status(self) -> dict[str, Any]:
        """The node and its channels, as `antiphon admin status` shows them."""
        rows = [_channel_status(self.name, self.node_id, parts) for parts in self.channels.values()]
        return {
            "cluster": self.cluster,
            "nodes": [node for node, _ in rows],
            "channels": [channel for _, channel in rows],
            "destinations": len(self.destinations()),
            "connections": self._client_manager.connection_count,
            "config_digest": self.config_digest,
        }

    def destinations(self) -> list[dict[str, Any]]:
        """Every destination of every channel served here."""
        return [
            {**row, "blocked": parts.is_blocked}
            for parts in self.channels.values()
            for row in parts.manager.destinations()
        ]


def _channel_status(name: str, node_id: int, parts: ChannelParts) -> tuple[dict[str, Any], dict[str, Any]]:
    replica = parts.replica
    node = {
        "name": name,
        "role": EMBEDDED_ROLE,
        "channel": parts.name,
        "rank": replica.config.candidates.index(node_id) + 1,
        "state": "joining" if replica.is_joining else "up",
        "is_primary": parts.manager.is_primary,
        "is_sequencer": replica.state is State.LEADING,
        "synchronized": replica.is_serving or replica.is_synchronized,
        "epoch": replica.epoch,
        "committed": replica.committed_upto,
        "applied": replica.applied,
        "lag": replica.committed_upto - replica.applied,
    }
    channel = {
        "name": parts.name,
        "epoch": replica.epoch,
        "committed": replica.committed_upto,
        "primary": name if parts.manager.is_primary else None,
        "replicas": len(replica.config.data_servers),
        "checkpoint": replica.stable_checkpoint,
    }
    return node, channel


def _is_due(deadline_ns: int | None, now_ns: int) -> bool:
    return deadline_ns is not None and deadline_ns <= now_ns
