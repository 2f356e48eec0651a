"""Node: the machines of one process, and the queues between them.

Where it sits
    client port -> NODE( client_manager -> producer -> replica -> message_manager ) -> client port

    An embedded node has all of them. In a cluster a client manager's node has a producer and a listener for
    each channel; a message manager's has replica, producer and message manager of one; a witness's has a
    replica alone. Messages to machines of other nodes go over the bus.

What it promises
    NOD1  Machines of one node meet only through queues of events; none calls another.
    NOD2  A step ends when every queue is empty; its effects are in the order in which they arose.
    NOD3  Everything durable leaves as `Append`, in index order per channel.
    NOD4  A message to a machine that this node does not have is dropped.
    NOD5  A client manager hears the heartbeats of a step before its deliveries.
    NOD6  Everything that an operator may want to know is an event of the node's log: a row in `RecordRows`,
          and in `topic:_LOG` (`event_log.py`). Nothing is done for that while there is no event.

What it leaves to others
    Files, sockets, clocks and threads: `runtime` has real ones, `sim` invented ones. Both run this class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from antiphon.bus import effects as bus
from antiphon.bus import messages as said
from antiphon.bus.entries import FenceDetail
from antiphon.bus.producer import OF_PRODUCER
from antiphon.bus.schema import Machine, heard_by
from antiphon.channel_parts import ChannelParts
from antiphon.client_manager import effects as door
from antiphon.client_manager.manager import ClientManager
from antiphon.event_log import EventLog, EventRow
from antiphon.events import (
    FLOW_BEGUN,
    FLOW_ENDED,
    NODE_STARTED,
    NODE_STOPPING,
    PRODUCER_FENCED,
    LoggedEvent,
)
from antiphon.inquiries import Asker, Inquiries, NodeRef, Put, Told
from antiphon.message_manager.effects import Effect as ManagerEffect
from antiphon.message_manager.effects import Propose
from antiphon.notices import ChannelNotices
from antiphon.standing import Agreed, Standing

# Sets of exact types: every message of the bus is looked up in them.
_FOR_MESSAGE_MANAGER = heard_by(Machine.MESSAGE_MANAGER)
_FOR_CLIENT_MANAGER = heard_by(Machine.CLIENT_MANAGER)
_FOR_PRODUCER = heard_by(Machine.PRODUCER)
_FOR_LISTENER = heard_by(Machine.LISTENER)
_OF_PRODUCER = frozenset(OF_PRODUCER)

# Past the constructor of a tuple with names: there are some for every message.
_new: Final = tuple.__new__

_DATA = int(said.EntryKind.DATA)
_CLAIM = int(said.EntryKind.PRIMARY_CLAIM)
_FENCE = int(said.EntryKind.PRODUCER_FENCE)

EMBEDDED_ROLE = "embedded"

UNKNOWN_QUESTION = "admin.unknown_question"


LOOK_NS: Final = 100_000_000
"""How often a node looks what is new in its channels. The node takes a step with each of its presences, so it
needs no deadline for that."""


class Observed(NamedTuple):
    """An event for the log, from outside of the machines."""

    event: LoggedEvent


class Leaving(NamedTuple):
    """The node is about to end, in order. Others leave, too, and that is no news any more."""


class RecordRows(NamedTuple):
    """Print these events, and append them to the file of events."""

    rows: tuple[EventRow, ...]


class InChannel(NamedTuple):
    """An event for one channel of the node, or an effect of it."""

    channel: str
    what: Any


NodeEvent = InChannel | Observed | Leaving | door.Event
NodeEffect = (
    InChannel
    | RecordRows
    | door.SendFrames
    | door.AdmitConnection
    | door.CloseConnection
    | door.PauseReading
    | door.ResumeReading
)


class Observer:
    """Watches the message managers of a node at work. The simulator has observers, production has none."""

    def before_apply(self, channel: str, entry: said.Entry, payload: memoryview | None) -> None:
        """A message manager is about to apply an entry."""

    def applied(self, channel: str, entry: said.Entry) -> None:
        """The entry is in the state."""

    def emitted(self, channel: str, effects: Sequence[ManagerEffect]) -> None:
        """A message manager has emitted its effects of a flush."""

    def installed(self, channel: str, n: int) -> None:
        """A message manager took over the state after number n from another node."""


class Node:
    def __init__(
        self,
        *,
        node_id: int,
        name: str,
        cluster: str,
        agreed: Agreed,
        client_manager: ClientManager | None,
        channels: Iterable[ChannelParts],
        role: str = EMBEDDED_ROLE,
        members: Iterable[NodeRef] = (),
        names: Mapping[int, str] | None = None,
        events: EventLog | None = None,
    ) -> None:
        """`names` are those of the nodes in the configuration, by number."""
        self.node_id = node_id
        self.name = name
        self._parts = tuple(channels)
        self.channels = {parts.name: parts for parts in self._parts}
        self.standing = Standing(node_id, name, role, cluster, agreed, client_manager, self.channels)
        self._inquiries = Inquiries(node_id, members, self.channels, self._is_silent)
        # The simulator sets this, so that every message passes through the codec on its way.
        self.loopback: Callable[[said.BusMessage], said.BusMessage] | None = None
        self.observer: Observer | None = None
        self.client_manager = client_manager
        self._for_client_manager: list[door.Event] = []
        self._effects: list[NodeEffect] = []
        self._now_ns = 0
        self._wall_ms = 0
        # A machine is asked for its deadline when it has done something, and not before.
        self._client_manager_at = client_manager.next_deadline_ns() if client_manager is not None else None
        self._inquiries_at: int | None = None
        self._role = role
        self._names = dict(names or {}) | {node_id: name}
        self._events = events or EventLog(name, tuple(self.channels), node_id)
        self._notices = {channel: ChannelNotices(node_id, self._names) for channel in self.channels}
        self._to_say: list[LoggedEvent] = []
        self._look_ns = 0
        self._has_started = self._is_leaving = False
        # Whether an event was logged in this step; and when the log has something to do.
        self._has_logged = False
        self._log_at: int | None = None
        # The envelope of events that is on its way, by the tag that the producer knows.
        self._log_tags: dict[tuple[str, int], None] = {}
        self._listened = tuple([parts for parts in self._parts if parts.listener is not None])
        self._due_ns = self._earliest()

    @property
    def is_serving(self) -> bool:
        """Whether every channel is served here, followed by this node, or known to be served elsewhere."""
        return all(parts.is_ready for parts in self.channels.values())

    def next_deadline_ns(self) -> int | None:
        return self._due_ns

    def step(self, now_ns: int, wall_ms: int, events: Iterable[NodeEvent]) -> list[NodeEffect]:
        self._now_ns, self._wall_ms, self._effects = now_ns, wall_ms, []
        if self.standing.answers:
            # They may not be true any more.
            self.standing.answers.clear()
        for event in events:
            if type(event) is InChannel:
                channel, what = event
                if type(what) is bus.Received:
                    self._route(self.channels[channel], what)
                else:
                    self._take(self.channels[channel], what)
            elif type(event) is Observed:
                self._log(event.event)
            elif type(event) is Leaving:
                self._leave()
            else:
                self._tell_client_manager(event)  # type: ignore[arg-type]
        if self._due_ns is not None and now_ns >= self._due_ns:
            self._wake_sleepers(now_ns)
        if now_ns >= self._look_ns:
            self._look_around(now_ns)
        if self._log_at is not None and now_ns >= self._log_at:
            self._publish_events()
        if self._listened:
            self._listen_first()
        self._settle()
        if self._has_logged:
            self._record_events()
        self._due_ns = self._earliest()
        return self._effects

    def _earliest(self) -> int | None:
        earliest = self._client_manager_at
        if self._inquiries_at is not None and (earliest is None or self._inquiries_at < earliest):
            earliest = self._inquiries_at
        if self._log_at is not None and (earliest is None or self._log_at < earliest):
            earliest = self._log_at
        for parts in self._parts:
            for at in (parts.replica_at, parts.producer_at, parts.manager_at, parts.listener_at):
                if at is not None and (earliest is None or at < earliest):
                    earliest = at
        return earliest

    # --- events in ---------------------------------------------------------------------------------

    def _take(self, parts: ChannelParts, event: bus.Event) -> None:
        if type(event) is bus.Alarm:
            self._log(event.event, parts.name)
            return
        parts.for_replica.append(event)
        if type(event) is bus.SpaceChanged:
            self._note_space(parts, event)
            self._tell_client_manager(door.ChannelEvent(parts.name, event))

    def _note_space(self, parts: ChannelParts, event: bus.SpaceChanged) -> None:
        """A channel takes no messages while a disk has no room, and takes them again."""
        if parts.is_blocked is event.is_low:
            return
        parts.is_blocked = event.is_low
        if self.client_manager is not None:
            self._log(FLOW_BEGUN(reason=event.text) if event.is_low else FLOW_ENDED(), parts.name)

    def _tell_client_manager(self, event: door.Event) -> None:
        if self.client_manager is not None:
            self._for_client_manager.append(event)

    def _route(self, parts: ChannelParts, received: bus.Received) -> None:
        sender, message, disk_id = received
        if self.loopback is not None and sender == self.node_id:
            message = self.loopback(message)
            received = bus.Received(sender, message, disk_id)
        kind = type(message)
        if kind in _FOR_MESSAGE_MANAGER:
            if type(message) is said.Query and message.about is said.About.NODE:
                self._perform_of_bus(parts, bus.Send(sender, self.standing.answer(message)))
            elif parts.manager is not None:
                parts.manager.receive(self._now_ns, sender, message)
                parts.manager_heard = True
        elif kind in _FOR_CLIENT_MANAGER:
            if type(message) is said.Reply and message.about is said.About.NODE:
                self._tell_askers(self._inquiries.answered(sender, message))
                self._inquiries_at = self._inquiries.next_deadline_ns()
            else:
                self._tell_client_manager(door.ChannelEvent(parts.name, message))
        else:
            if kind in _FOR_PRODUCER:
                parts.for_producer.append(received)
            if parts.listener is not None:
                if kind in _FOR_LISTENER:
                    parts.for_listener.append(received)
            # The roles of this node have heard each other already; see `Replica`.
            elif sender != self.node_id or kind in _OF_PRODUCER:
                parts.for_replica.append(received)

    def _wake_sleepers(self, now_ns: int) -> None:
        for parts in self._parts:
            if parts.replica_at is not None and parts.replica_at <= now_ns:
                if parts.manager is not None and parts.replica is not None:
                    parts.replica.load = parts.manager.load
                parts.for_replica.append(bus.Ticked())
            if parts.producer_at is not None and parts.producer_at <= now_ns:
                parts.for_producer.append(bus.Ticked())
            if parts.listener_at is not None and parts.listener_at <= now_ns:
                parts.for_listener.append(bus.Ticked())
            if parts.manager_at is not None and parts.manager_at <= now_ns:
                parts.manager_heard = True
        if self._client_manager_at is not None and self._client_manager_at <= now_ns:
            self._for_client_manager.append(door.TimePassed())
        if self._inquiries_at is not None and self._inquiries_at <= now_ns:
            self._inquire(*self._inquiries.keep_time(now_ns))

    def _listen_first(self) -> None:
        """Hear the heartbeats of primaries before deliveries, which may have lain in a socket for long."""
        delivered = self._for_client_manager
        for parts in self._listened:
            if parts.for_listener:
                self._for_client_manager = []
                self._run_listener(parts)
                delivered = self._for_client_manager + delivered
        self._for_client_manager = delivered

    # --- the queues --------------------------------------------------------------------------------

    def _settle(self) -> None:
        while True:
            if self.client_manager is not None and self._for_client_manager:
                events, self._for_client_manager = self._for_client_manager, []
                effects = self.client_manager.step(self._now_ns, events)
                self._client_manager_at = self.client_manager.next_deadline_ns()
                for effect in effects:
                    self._perform_of_client_manager(effect)
            is_quiet = not self._for_client_manager
            for parts in self._parts:
                if parts.for_replica or parts.for_producer or parts.for_listener or parts.manager_heard:
                    is_quiet = False
                    self._run_channel(parts)
            if is_quiet:
                return

    def _run_channel(self, parts: ChannelParts) -> None:
        if parts.for_producer:
            events, parts.for_producer = parts.for_producer, []
            effects = parts.producer.step(self._now_ns, events)
            parts.producer_at = parts.producer.next_deadline_ns()
            for effect in effects:
                self._perform_of_bus(parts, effect)
        if parts.replica is None:
            self._run_listener(parts)
        elif parts.for_replica:
            events, parts.for_replica = parts.for_replica, []
            effects = parts.replica.step(self._now_ns, events)
            parts.replica_at = parts.replica.next_deadline_ns()
            for effect in effects:
                self._perform_of_bus(parts, effect)
            beats = parts.replica.beats
            if beats[0] and parts.manager is not None and parts.manager.beaten(*beats):
                parts.manager_heard = True
        if parts.manager_heard:
            parts.manager_heard = False
            assert parts.manager is not None, "nobody heard anything"
            changes = parts.manager.flush(self._now_ns, self._wall_ms)
            parts.manager_at = parts.manager.next_deadline_ns()
            if self.observer is not None:
                self.observer.emitted(parts.name, changes)
            for change in changes:
                self._perform_of_manager(parts, change)
            if parts.replica is not None and parts.replica.is_at_rest and parts.manager.awaits_beat:
                parts.for_replica.append(bus.BeatWanted())

    def _run_listener(self, parts: ChannelParts) -> None:
        listener, config = parts.listener, parts.producer.config
        assert listener is not None, "a channel without a replica is listened to"
        # Events for a replica, which is not here (NOD4).
        parts.for_replica.clear()
        if config is not listener.config:
            # Only the producer reads in the order that there is another configuration.
            listener.reconfigure(config)
            parts.listener_at = listener.next_deadline_ns()
            self._effects.append(InChannel(parts.name, bus.Reconfigured(config)))
        if not parts.for_listener:
            return
        events, parts.for_listener = parts.for_listener, []
        told = listener.step(self._now_ns, events)
        parts.listener_at = listener.next_deadline_ns()
        for news in told:
            if isinstance(news, bus.Multicast):
                self._effects.append(InChannel(parts.name, news))
            else:
                if type(news) is bus.SpaceChanged:
                    self._note_space(parts, news)
                self._tell_client_manager(door.ChannelEvent(parts.name, news))

    # --- effects out -------------------------------------------------------------------------------

    def _perform_of_client_manager(self, effect: door.Effect) -> None:
        match effect:
            case door.SubmitEnvelope(channel=channel, tag=tag, payload=payload, count=count):
                self.channels[channel].for_producer.append(bus.Submitted(tag, payload, count))
            case door.SendToPrimary(channel=channel, message=message):
                parts = self.channels[channel]
                if parts.primary:
                    self._perform_of_bus(parts, bus.Send(parts.primary, message))
            case door.SendToReplica(channel=channel, message=message, attempt=attempt):
                parts = self.channels[channel]
                if reader := parts.reader(self.node_id, attempt):
                    self._perform_of_bus(parts, bus.Send(reader, message))
            case door.AskNode(conn=conn, request=request, text=text):
                self._answer(conn, request, text)
            case _:
                self._effects.append(effect)

    def _perform_of_bus(self, parts: ChannelParts, effect: bus.Effect) -> None:
        # First the effects that every envelope has.
        if type(effect) is bus.Append:
            self._effects.append(_new(InChannel, (parts.name, effect)))
            return
        if type(effect) is bus.Apply:
            entry, payload, location = effect
            observer = self.observer
            if observer is not None:
                observer.before_apply(parts.name, entry, payload)
            parts.kept.apply(self._now_ns, self._wall_ms, entry, payload, location)
            if observer is not None:
                observer.applied(parts.name, entry)
            parts.manager_heard = True
            if entry.kind != _DATA:
                self._look_at_entry(parts, entry)
            return
        if type(effect) is bus.Send:
            if effect.to == self.node_id:
                self._route(parts, _new(bus.Received, (self.node_id, effect.message, b"")))
            else:
                self._effects.append(_new(InChannel, (parts.name, effect)))
            return
        match effect:
            case bus.Multicast(message=message):
                if type(message) is said.Heartbeat and message.serving and parts.manager is not None:
                    parts.manager.announced(self._now_ns, message.epoch)
                    parts.manager_at = parts.manager.next_deadline_ns()
                self._route(parts, _new(bus.Received, (self.node_id, message, b"")))
                if not parts.is_alone:
                    self._effects.append(_new(InChannel, (parts.name, effect)))
            case bus.TakeCheckpoint(n=n):
                digest, state, segments = parts.kept.capture(n)
                parts.for_replica.append(bus.StateCaptured(n, digest, state, segments))
            case bus.OpenState() | bus.MoveState() | bus.InstallState() | bus.DropState():
                self._change_state(parts, effect)
            case bus.EnvelopeCommitted() | bus.EnvelopeConfirmed() | bus.EnvelopeUncertain():
                # Negative tags are this node's own commands, which no client waits for.
                if effect.tag >= 0:
                    self._tell_client_manager(door.ChannelEvent(parts.name, effect))
                elif type(effect) is bus.EnvelopeConfirmed and (parts.name, effect.tag) in self._log_tags:
                    del self._log_tags[parts.name, effect.tag]
                    self._events.confirmed(self._now_ns, parts.name, effect.exceptions)
                    self._has_logged = True
            case bus.PrimaryChanged() | bus.RunOver():
                self._tell_client_manager(door.ChannelEvent(parts.name, effect))
            case bus.Reconfigured(config=config):
                parts.producer.reconfigure(config)
                if parts.manager is not None:
                    parts.manager.reconfigure(config.data_servers)
                parts.is_alone = len(config.nodes) == 1
                self._effects.append(InChannel(parts.name, effect))
            case bus.Alarm(event=event):
                self._log(event, parts.name)
            case bus.Spoilt(place=place, error=error):
                if parts.manager is not None:
                    parts.manager.damaged(place, error)
                    parts.manager_heard = True
            case _:
                self._effects.append(InChannel(parts.name, effect))

    def _look_at_entry(self, parts: ChannelParts, entry: said.Entry) -> None:
        if entry.kind == _CLAIM:
            # Step down from a claim of a former life of this node, of whose term nothing is left.
            if parts.replica is not None and parts.replica.epoch_led != entry.mid.pe:
                parts.kept.step_down()
        elif entry.kind == _FENCE and parts.kept.is_primary:
            fence = FenceDetail.decode(entry.detail)
            if fence.term == parts.kept.term:
                self._log(PRODUCER_FENCED(member=fence.pid), parts.name)

    def _change_state(
        self,
        parts: ChannelParts,
        effect: bus.OpenState | bus.MoveState | bus.InstallState | bus.DropState,
    ) -> None:
        """Take the next step from another node's state to this message manager's own."""
        manager, replica = parts.kept, parts.replica
        assert replica is not None, "a state came without a replica"
        match effect:
            case bus.OpenState(n=n, state=state):
                parts.for_replica.append(bus.StateOpened(n, *manager.open_state(state)))
            case bus.MoveState(n=n, moved=moved):
                parts.for_replica.append(bus.StateCaptured(n, *manager.move_state(dict(moved))))
            case bus.InstallState(n=n):
                term_served = replica.term if replica.is_serving else 0
                manager.install_state(self._now_ns, n, term_served, replica.claimed_after)
                if self.observer is not None:
                    self.observer.installed(parts.name, n)
                parts.manager_heard = True
            case bus.DropState():
                manager.drop_state()

    def _perform_of_manager(self, parts: ChannelParts, effect: ManagerEffect) -> None:
        if isinstance(effect, Propose):
            self._submit(parts, effect.command, effect.count)
        else:
            self._perform_of_bus(parts, effect)

    def _submit(self, parts: ChannelParts, payload: bytes, count: int) -> int:
        """Have commands of this node itself ordered; returns their tag."""
        parts.proposals += 1
        parts.for_producer.append(bus.Submitted(-parts.proposals, payload, count))
        return -parts.proposals

    # --- events ------------------------------------------------------------------------------------

    def say(self, event: LoggedEvent) -> None:
        """Log an event of before the first step."""
        self._to_say.append(event)

    def last_words(self, wall_ms: int, event: LoggedEvent) -> EventRow:
        """The row of an event of a node that takes no step any more."""
        return EventRow(wall_ms, self.name, "", event.shown(self._names))

    def _log(self, event: LoggedEvent, channel: str = "", *, is_public: bool = True) -> None:
        self._events.note(self._now_ns, self._wall_ms, event, channel, is_public=is_public)
        self._has_logged = True

    def _look_around(self, now_ns: int) -> None:
        """Log what is new in the channels (`notices`)."""
        if self._is_leaving:
            return
        self._look_ns = now_ns + LOOK_NS
        if not self._has_started:
            self._has_started = True
            self._log(NODE_STARTED(role=self._role))
            for event in self._to_say:
                self._log(event)
            self._to_say.clear()
        for parts in self._parts:
            for event, is_public in self._notices[parts.name].look(now_ns, parts):
                self._log(event, parts.name, is_public=is_public)

    def _leave(self) -> None:
        self._is_leaving = True
        self._log(NODE_STOPPING())
        self._events.leave(self._now_ns, self._wall_ms)
        self._publish_events()

    def _publish_events(self) -> None:
        for channel, payload, count in self._events.flush(self._now_ns, self._wall_ms, self._takes_events):
            tag = self._submit(self.channels[channel], payload, count)
            self._log_tags[channel, tag] = None
        self._has_logged = True

    def _takes_events(self, channel: str) -> bool:
        parts = self.channels[channel]
        is_served = parts.listener is None or parts.listener.is_served
        return parts.is_ready and is_served and not parts.is_blocked

    def _record_events(self) -> None:
        self._has_logged = False
        self._log_at = self._events.next_deadline_ns()
        if rows := self._events.take_rows():
            self._effects.append(RecordRows(tuple(rows)))

    # --- questions ---------------------------------------------------------------------------------

    def _answer(self, conn: int, request: int, text: str) -> None:
        question = self._inquiries.concerns_all(text)
        if question is not None:
            asker = Asker(conn, request)
            self._inquire(*self._inquiries.ask(self._now_ns, asker, question, self.standing.tell))
            return
        answer = self.standing.tell(text)
        if answer is None:
            refusal = door.Answered(conn, request, "this node knows no such question", UNKNOWN_QUESTION)
            self._tell_client_manager(refusal)
        else:
            self._tell_client_manager(door.Answered(conn, request, answer))

    def _inquire(self, puts: list[Put], told: list[Told]) -> None:
        for channel, to, question in puts:
            self._perform_of_bus(self.channels[channel], bus.Send(to, question))
        self._inquiries_at = self._inquiries.next_deadline_ns()
        self._tell_askers(told)

    def _tell_askers(self, told: list[Told]) -> None:
        for asker, answer in told:
            self._tell_client_manager(door.Answered(asker.conn, asker.request, answer))

    def _is_silent(self, node: int) -> bool:
        listeners = [parts.listener for parts in self.channels.values()]
        return all(
            one.is_silent(node, self._now_ns)
            for one in listeners
            if one is not None and node in one.config.nodes
        )
