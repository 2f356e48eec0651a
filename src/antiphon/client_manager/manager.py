"""ClientManager: connections, sessions and commands of a node's clients, as one machine.

Where it sits
    client  ->  runtime/network  ->  CLIENT MANAGER  ->  producer, bus  ->  message_manager
    and back: confirmations from the bus, deliveries from the primary

What it promises
    CMG1  A command goes into the order exactly as its client sent it, once, after the session's opening, and
          in the order of the session; or the connection is over and the client knows.
    CMG2  Every received command is still ordered when the connection is lost.
    CMG3  A confirmation tells what the channel did, never what it was asked to do.
    CMG4  A peer's breach ends its own connection and nothing else.
    CMG5  The memory for a peer is bounded: windows for its publications, limits for its requests, sessions
          and consumers, and no more reading from a peer that is too far ahead.

What it leaves to others
    The rim (runtime/network) has bytes, deadlines and slow writers; the bus and the message managers have
    numbers, durability and outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, assert_never

from antiphon.bus import effects as bus
from antiphon.bus import messages as m
from antiphon.client_manager.asking import Answer, Asking, ChannelQuestion, ClientQuestion, Said
from antiphon.client_manager.awaited import (
    Awaited,
    Detachment,
    HomeRollback,
    Inquiry,
    KnownAnswer,
    LaneClosed,
    LaneClosing,
    LaneDetached,
    Preparation,
    Registration,
    RepeatedAbsence,
    SessionOpening,
)
from antiphon.client_manager.client_id_service import ClientIdService
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.consumers import Consumers
from antiphon.client_manager.coordination import Coordination, Transaction
from antiphon.client_manager.destination_service import Destination, DestinationService, Search, Waiter
from antiphon.client_manager.effects import (
    AdmitConnection,
    Answered,
    AskNode,
    ChannelEvent,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    Effect,
    Event,
    FramesReceived,
    TimePassed,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.client_manager.flow import Flow
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.range_service import RangeService, Wish
from antiphon.client_manager.requests import Requests
from antiphon.client_manager.session import Consumer, ConsumerState, Creation, LaneState, Ordered, SessionLane
from antiphon.client_manager.session_service import SessionService
from antiphon.client_manager.settings import LIMIT, ClientManagerSettings
from antiphon.client_manager.subscription_finder import Hunt, SubscriptionFinder
from antiphon.errors import InvalidSelector, ProtocolError, RemoteError, SessionClosed
from antiphon.ids import IdSource
from antiphon.selectors import compile_selector
from antiphon.wire import frames
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode
from antiphon.wire.destination_frames import NAMES_MAX

__all__ = ["ClientManager", "ClientManagerSettings"]

UNAVAILABLE = "channel.unavailable"
EXPIRED = "the channel does not know the session; it was away for too long and has expired"
_LOOKS = 2
_OF_CHANNEL = {"session": ("session",), "consumers": ("after",)}
"""The questions of clients to a channel, and their words."""

_OF_ORDERING = frozenset((bus.EnvelopeCommitted, bus.EnvelopeConfirmed))
"""Events that may not concern the timed parts; `Ordering` says whether they do."""

RESUMED_ELSEWHERE = "the session has been resumed elsewhere"


class Timed(Protocol):
    """A part that repeats its messages until they are answered."""

    def next_deadline_ns(self) -> int | None:
        """When `keep_time` must be called at the latest."""

    def keep_time(self, now_ns: int) -> None:
        """At the end of every step: note when to repeat the new messages, and send those that are due."""


class ClientManager:
    """All clients of one node. `step` is the whole interface."""

    def __init__(
        self,
        node_id: int,
        node_name: str,
        cluster: str,
        servers: Sequence[str],
        ids: IdSource,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        cluster_id: str = "",
    ) -> None:
        assert channels, "a client manager without a channel can order nothing"
        self.node_id = node_id
        self.node_name = node_name
        self._cluster = cluster
        self._servers = tuple(servers)
        self._ids = ids
        self._settings = settings
        self._channels = tuple(channels)
        self._outbox = Outbox()
        self._connections: dict[int, Connection] = {}
        self._requests = Requests(settings, self._outbox)
        self._ordering = Ordering(
            channels,
            settings,
            self._outbox,
            self._on_own_settled,
            self._retire,
            self._go_on,
            self._on_said_wrong,
            self._on_lane_refused,
        )
        floors = self._ordering.confirmed_through
        self._asking = Asking(settings, self._outbox, floors, ids.first_number, self._on_told)
        self._consumers = Consumers(
            node_id, list(channels), settings, ids, self._outbox, self._requests, self._ordering, self._retire
        )
        self._flow = Flow(self._outbox)
        self._ranges = RangeService(channels, settings, self._outbox, floors, self._asking, cluster_id)
        self._destinations = DestinationService(
            channels, settings, self._outbox, self._asking, self._ordering, self._tell_destination
        )
        self._subscriptions = SubscriptionFinder(channels, self._asking, self._is_leaving)
        self._sessions = SessionService(
            list(channels),
            settings,
            ids,
            self._outbox,
            self._ordering,
            self._consumers,
            self._flow,
            self._requests,
        )
        self._coordination = Coordination(channels, settings, self._outbox, self._ordering, self._sessions)
        self._client_ids = ClientIdService(
            channels, settings, self._ordering, self._welcome, self._close, self._close_socket
        )
        self._timed = self._timed_parts()
        # In how many steps the timed parts still have to look at the time; and their last deadline, if they
        # have not looked since.
        self._looks = _LOOKS
        self._deadline_ns: int | None = None
        self._is_deadline_known = False
        self._on_event = self._event_handlers()
        self._on_channel = self._channel_handlers()
        self._on_frame = self._frame_handlers()
        self._on_request = self._request_handlers()

    def _is_leaving(self, channel: str, node: int, key: int) -> bool:
        """Is this consumer, by its node and key, one of ours that is being detached?"""
        return node == self.node_id and self._requests.is_leaving(channel, key)

    def _timed_parts(self) -> tuple[Timed, ...]:
        return (
            self._asking,
            self._destinations,
            self._requests,
            self._consumers.streams,
            self._consumers.credits,
            self._coordination,
            self._client_ids,
        )

    def _event_handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            FramesReceived: self._on_frames_received,
            ChannelEvent: self._on_channel_event,
            ConnectionOpened: self._on_connection_opened,
            ConnectionLost: self._on_connection_lost,
            WriteBlocked: self._on_write_blocked,
            WriteUnblocked: self._on_write_unblocked,
            TimePassed: lambda event: None,
            Answered: self._on_answered,
        }

    def _channel_handlers(self) -> dict[type[Any], Callable[[str, Any], None]]:
        return {
            bus.EnvelopeConfirmed: self._ordering.confirmed,
            bus.EnvelopeCommitted: self._ordering.committed,
            bus.EnvelopeUncertain: self._ordering.uncertain,
            m.Deliver: self._consumers.deliver,
            m.DeliverHead: self._consumers.head,
            m.Registered: self._consumers.registered,
            m.Unregistered: self._requests.unregistered,
            m.SessionDetachedHeard: self._requests.detached_heard,
            m.ConsumerEnded: self._consumers.numbered,
            m.Drained: self._consumers.numbered,
            bus.PrimaryChanged: self._on_primary_changed,
            bus.RunOver: lambda channel, event: self._client_ids.run_over(channel),
            bus.TimeMissed: self._consumers.time_missed,
            bus.ServiceChanged: self._on_service_changed,
            bus.SpaceChanged: self._on_space_changed,
            bus.LoadChanged: self._on_load_changed,
            m.RangeReply: self._asking.answered,
            m.Reply: self._asking.answered,
            m.Advertised: self._destinations.advertised,
            m.InDoubt: self._coordination.in_doubt,
            m.Unfinished: self._coordination.unfinished,
        }

    def _frame_handlers(self) -> dict[type[Any], Callable[[Connection, Any], None]]:
        return {
            frames.Command: self._ordering.take,
            frames.Credit: self._on_credit,
            frames.Ping: self._on_ping,
            frames.Pong: lambda connection, frame: None,
            frames.Hello: self._on_hello,
            frames.Goodbye: self._on_goodbye,
        }

    def _request_handlers(self) -> dict[type[Any], Callable[[Connection, Any], None]]:
        return {
            frames.SessionOpen: self._sessions.open,
            frames.SessionClose: self._sessions.close,
            frames.DestinationOpen: self._on_destination_open,
            frames.DestinationCreate: self._on_destination_create,
            frames.DestinationsCreate: self._on_destinations_create,
            frames.SubscriptionFind: self._on_subscription_find,
            frames.ConsumerOpen: self._on_consumer_open,
            frames.ConsumerResume: self._on_consumer_open,
            frames.ConsumerClose: self._on_consumer_close,
            frames.ConsumerCheck: self._on_consumer_check,
            frames.ConsumerDrain: self._on_consumer_drain,
            frames.RangeRead: self._ranges.read,
            frames.RangeAsk: self._ranges.ask,
            frames.Ask: self._on_ask,
            frames.TransactionCommit: self._coordination.commit,
            frames.TransactionAsk: self._coordination.ask,
        }

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    def attachments(self, conn: int) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
        """The attached consumers of a connection, by session and number: their key at the primary, term and
        stream."""
        connection = self._connections.get(conn)
        for session in connection.sessions.values() if connection is not None else ():
            for consumer in session.consumers.values():
                if consumer.state == ConsumerState.ATTACHED:
                    term = self._consumers.streams.term(consumer.lane.channel)
                    yield (session.id, consumer.number), (consumer.key, term, consumer.stream)

    def next_deadline_ns(self) -> int | None:
        """When to step even if nothing happens: messages to a channel are repeated until they are heard, and
        commands do not wait for each other for ever."""
        timed_ns, waiting_ns = self._timed_deadline_ns(), self._ordering.next_deadline_ns()
        if waiting_ns is None or (timed_ns is not None and timed_ns < waiting_ns):
            return timed_ns
        return waiting_ns

    def _timed_deadline_ns(self) -> int | None:
        if not self._is_deadline_known:
            deadlines = [part.next_deadline_ns() for part in self._timed]
            self._deadline_ns = min((due_ns for due_ns in deadlines if due_ns is not None), default=None)
            self._is_deadline_known = True
        return self._deadline_ns

    def step(self, now_ns: int, events: Iterable[Event]) -> list[Effect]:
        self._consumers.streams.look(now_ns)
        for event in events:
            kind = type(event)
            if kind is not FramesReceived and not (
                kind is ChannelEvent and type(event.event) in _OF_ORDERING  # type: ignore[union-attr]
            ):
                self._looks = _LOOKS
            self._on_event[kind](event)
        self._keep_time(now_ns)
        self._ordering.finish_step(now_ns)
        return self._outbox.take()

    def _keep_time(self, now_ns: int) -> None:
        """Commands and their confirmations, by far the most events, do not concern the timed parts.

        Other events may lead from one timed part to another, whose turn was before it: so they look twice.
        """
        if not self._looks:
            due_ns = self._timed_deadline_ns()
            if not self._ordering.has_stirred and (due_ns is None or due_ns > now_ns):
                return
        if self._ordering.has_stirred:
            self._ordering.has_stirred = False
            self._looks = _LOOKS
        self._looks = max(0, self._looks - 1)
        self._is_deadline_known = False
        for part in self._timed:
            part.keep_time(now_ns)

    # -- connections -----------------------------------------------------------

    def _on_connection_opened(self, event: ConnectionOpened) -> None:
        assert event.conn not in self._connections, "a connection was opened twice"
        self._connections[event.conn] = Connection(event.conn, event.peer)

    def _on_frames_received(self, event: FramesReceived) -> None:
        connection = self._connections.get(event.conn)
        if connection is None:
            return
        try:
            order = self._ordering.take
            for frame in event.frames:
                if type(frame) is frames.Command and connection.is_welcome:
                    # By far the most frequent frame. It may be a breach, but it ends nothing.
                    order(connection, frame)
                    continue
                self._looks = _LOOKS
                self._take_frame(connection, frame)
                if connection.is_over:
                    return
        except RemoteError as error:
            self._looks = _LOOKS
            self._close(connection, error.code, error.text)

    def _take_frame(self, connection: Connection, frame: frames.ClientFrame) -> None:
        connection.check_turn(frame)
        take = self._on_frame.get(type(frame))
        if take is not None:
            take(connection, frame)
            return
        take_request = self._on_request.get(type(frame))
        if take_request is None:
            raise ProtocolError(f"{type(frame).__name__} is not for a client to say")
        request: int = frame.request  # type: ignore[union-attr]
        connection.begin_request(request, self._settings.requests_max)
        try:
            take_request(connection, frame)
        except Refusal as refusal:
            self._outbox.refuse(connection, request, refusal.code, refusal.text)

    def _on_hello(self, connection: Connection, hello: frames.Hello) -> None:
        longest = max(len(hello.user.encode()), len(hello.client_id.encode()))
        if longest > self._settings.user_bytes_max:
            raise ProtocolError(
                f"a user or client id of {longest} bytes; at most {self._settings.user_bytes_max} are allowed"
            )
        if bool(hello.connection) != (hello.generation > 1) or (not hello.connection and hello.generation):
            raise ProtocolError(
                f"connection {hello.connection:032x} cannot come in generation {hello.generation}"
            )
        connection.has_greeted = True
        connection.user = hello.user
        connection.client_id = hello.client_id
        connection.id = hello.connection or self._ids.next()
        connection.generation = hello.generation or 1
        if hello.client_id:
            self._client_ids.claim(connection, is_back=hello.generation > 1)
        else:
            self._welcome(connection)

    def _welcome(self, connection: Connection) -> None:
        connection.is_welcome = True
        self._outbox.do(AdmitConnection(connection.conn, self._settings.frame_bytes_max))
        self._outbox.send(
            connection,
            frames.Welcome(
                node=self.node_id,
                cluster=self._cluster,
                servers=self._servers,
                connection=connection.id,
                frame_limit=self._settings.frame_bytes_max,
                heartbeat_ms=self._settings.heartbeat_ms,
                sure_ms=self._settings.client_sure_ms,
            ),
        )

    def _on_goodbye(self, connection: Connection, goodbye: frames.Goodbye) -> None:
        if not self._client_ids.parts(connection):
            self._close(connection, "", "")
            return
        self._outbox.flush(connection)
        self._let_go(connection, is_lost=False)

    def _on_ping(self, connection: Connection, ping: frames.Ping) -> None:
        self._outbox.send(connection, frames.Pong(nonce=ping.nonce))

    def _on_connection_lost(self, event: ConnectionLost) -> None:
        connection = self._connections.get(event.conn)
        if connection is not None:
            self._let_go(connection, is_lost=True)

    def _close(self, connection: Connection, code: str, text: str) -> None:
        self._outbox.flush(connection)
        self._close_socket(connection, code, text)
        self._let_go(connection, is_lost=False)

    def _close_socket(self, connection: Connection, code: str = "", text: str = "") -> None:
        self._outbox.do(CloseConnection(connection.conn, code, text))

    def _let_go(self, connection: Connection, *, is_lost: bool) -> None:
        """The peer is gone; its sessions finish the received commands (CMG2). A client that `is_lost` may
        come back."""
        connection.is_over = True
        connection.outbox.clear()
        del self._connections[connection.conn]
        self._client_ids.over(connection, is_lost=is_lost)
        self._ordering.connection_over(connection)
        self._ranges.connection_over(connection)
        for session in list(connection.sessions.values()):
            self._sessions.detach(session, is_lost=is_lost)
        connection.sessions.clear()

    def _on_write_blocked(self, event: WriteBlocked) -> None:
        connection = self._connections.get(event.conn)
        if connection is not None:
            connection.is_blocked = True

    def _on_write_unblocked(self, event: WriteUnblocked) -> None:
        connection = self._connections.get(event.conn)
        if connection is not None:
            connection.is_blocked = False
            self._consumers.unblocked(connection)
            self._ranges.go_on(connection)

    # -- questions -------------------------------------------------------------

    def _on_ask(self, connection: Connection, ask: frames.Ask) -> None:
        if len(ask.question) > self._settings.question_length_max:
            raise Refusal(LIMIT, f"a question of {len(ask.question)} characters is too long")
        if connection.questions >= self._settings.questions_max:
            raise Refusal(LIMIT, f"{connection.questions} questions wait for their answer; ask one by one")
        connection.questions += 1
        of_channel = self._question_to_channel(ask.question)
        if of_channel is None:
            self._outbox.do(AskNode(connection.conn, ask.request, ask.question))
        else:
            asker = ClientQuestion(connection.conn, ask.request)
            self._asking.look_up(of_channel["channel"], of_channel, asker)

    def _question_to_channel(self, text: str) -> dict[str, str] | None:
        """A question that only the replicas of a channel can answer: for the state of a session, which
        adopters ask, or for consumers."""
        try:
            asked = json.loads(text)
            keys = ("question", "channel", *_OF_CHANNEL[asked["question"]])
            question = {key: str(asked[key]) for key in keys}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return question if question["channel"] in self._channels else None

    def _on_told(self, question: ChannelQuestion, reply: Said | None) -> None:
        """A question to a channel is answered, or is given up: its asker goes on."""
        asker = question.asker
        if isinstance(asker, Wish):
            self._ranges.told(asker, question.message.request, reply)
            return
        assert not isinstance(reply, m.RangeReply), "a page is no answer to a question after a name"
        answer = None if reply is None else json.loads(reply.answer)
        match asker:
            case Search():
                self._destinations.told(asker, answer)
            case Hunt():
                self._tell_subscription(asker, question.channel, answer)
            case ClientQuestion(conn, request) if answer is None:
                text = "the channel does not answer at the moment"
                self._on_answered(Answered(conn, request, text, UNAVAILABLE))
            case ClientQuestion(conn, request):
                self._on_answered(Answered(conn, request, json.dumps(answer)))
            case _:
                assert_never(asker)

    def _on_answered(self, event: Answered) -> None:
        connection = self._connections.get(event.conn)
        if connection is None:
            return
        connection.questions -= 1
        if len(event.text) > self._settings.answer_length_max:
            text = f"the answer of {len(event.text)} characters is too long"
            self._outbox.refuse(connection, event.request, LIMIT, text)
        elif event.code:
            self._outbox.refuse(connection, event.request, event.code, event.text)
        else:
            answer = frames.Answer(request=event.request, answer=event.text)
            self._outbox.answer(connection, event.request, answer)

    # -- destinations ----------------------------------------------------------

    def _on_destination_open(self, connection: Connection, wish: frames.DestinationOpen) -> None:
        waiter = Waiter(connection, wish.request, wish.session)
        self._destinations.open(wish.name, waiter, may_create=wish.create, channel=wish.channel)

    def _on_destination_create(self, connection: Connection, wish: frames.DestinationCreate) -> None:
        self._destinations.create(wish.name, wish.settings, Waiter(connection, wish.request))

    def _on_destinations_create(self, connection: Connection, wish: frames.DestinationsCreate) -> None:
        count = len(wish.names)
        if not 0 < count <= NAMES_MAX:
            raise Refusal(LIMIT, f"a request is for 1 to {NAMES_MAX} destinations, not {count}")
        if connection.names + count > self._settings.names_max:
            raise Refusal(LIMIT, f"{connection.names} destinations are being made for this connection; wait")
        self._destinations.create_many(connection, wish)

    def _tell_destination(self, waiter: Waiter, found: Destination) -> None:
        opened = frames.DestinationOpened(
            request=waiter.request,
            destination=found.id,
            settings_version=found.settings_version,
            channel=found.channel,
            channels=found.channels,
        )
        if found.channels:
            if not waiter.connection.is_over:
                self._outbox.answer(waiter.connection, waiter.request, opened)
        else:
            self._answer_within(waiter, found.channel, opened)

    def _answer_within(
        self, waiter: Waiter, channel: str, answer: frames.DestinationOpened | frames.SubscriptionFound
    ) -> None:
        """Answer a session's request, once its channel knows the session."""
        connection, request, session = waiter.connection, waiter.request, waiter.session
        if connection.is_over:
            return
        self._flow.welcome(connection, channel)
        if not session:
            self._outbox.answer(connection, request, answer)
            return
        try:
            self._sessions.when_known(waiter, channel, answer)
        except Refusal as refusal:
            self._outbox.refuse(connection, request, refusal.code, refusal.text)

    def _on_subscription_find(self, connection: Connection, wish: frames.SubscriptionFind) -> None:
        session = self._sessions.of(connection, wish.session)
        waiter = Waiter(connection, wish.request, wish.session)
        self._subscriptions.find(session.client_id, wish, waiter)

    def _tell_subscription(self, hunt: Hunt, channel: str, answer: Answer | None) -> None:
        found, waiter = self._subscriptions.told(hunt, channel, answer), hunt.waiter
        if isinstance(found, Refusal):
            self._outbox.refuse(waiter.connection, waiter.request, found.code, found.text)
        elif found is not None:
            self._answer_within(waiter, channel, found)

    def _check_channel(self, channel: str) -> None:
        if channel not in self._channels:
            raise ProtocolError(f"there is no channel {channel[:80]!r}")

    # -- consumers -------------------------------------------------------------

    def _on_consumer_open(
        self, connection: Connection, wish: frames.ConsumerOpen | frames.ConsumerResume
    ) -> None:
        session = self._sessions.of(connection, wish.session)
        if wish.consumer in session.consumers:
            raise ProtocolError(f"consumer {wish.consumer} a second time in one session")
        if len(session.consumers) >= self._settings.consumers_max:
            raise Refusal(LIMIT, f"a session has at most {self._settings.consumers_max} consumers")
        if connection.consumer_count >= self._settings.connection_consumers_max:
            raise Refusal(
                LIMIT, f"a connection has at most {self._settings.connection_consumers_max} consumers"
            )
        if len(self._consumers) >= self._settings.consumers_total_max:
            raise Refusal(LIMIT, f"a node has at most {self._settings.consumers_total_max} consumers")
        self._check_channel(wish.channel)
        _check_selector(wish)
        lane = session.lane(wish.channel)
        if lane.state == LaneState.REFUSED:
            raise Refusal(SessionClosed.code, lane.refusal)
        self._consumers.open(session, lane, wish)
        if lane.state == LaneState.NEW:
            self._ordering.open_lane(lane)

    def _on_consumer_close(self, connection: Connection, wish: frames.ConsumerClose) -> None:
        session = self._sessions.of(connection, wish.session)
        consumer = session.consumers.get(wish.consumer)
        if consumer is None:
            # The server ended the consumer, and the message about that crossed this request.
            self._outbox.answer(connection, wish.request)
        else:
            self._consumers.close(consumer, wish.seen_through, wish.request)

    def _on_consumer_check(self, connection: Connection, wish: frames.ConsumerCheck) -> None:
        consumer = self._sessions.of(connection, wish.session).consumers.get(wish.consumer)
        if consumer is None:
            # The client has been told that the consumer is gone, or is about to close it.
            self._outbox.answer(connection, wish.request)
        else:
            self._consumers.check(consumer, wish.request)

    def _on_consumer_drain(self, connection: Connection, wish: frames.ConsumerDrain) -> None:
        consumer = self._sessions.of(connection, wish.session).consumers.get(wish.consumer)
        if consumer is None or consumer.state == ConsumerState.CLOSING:
            self._outbox.answer(connection, wish.request)
        else:
            self._consumers.drain(consumer, wish.request, wish.messages, wish.bytes)

    def _on_credit(self, connection: Connection, credit: frames.Credit) -> None:
        session = connection.sessions.get(credit.session)
        consumer = session.consumers.get(credit.consumer) if session is not None else None
        if consumer is not None:
            self._consumers.credit(consumer, credit.messages, credit.bytes)

    def _on_primary_changed(self, channel: str, event: bus.PrimaryChanged) -> None:
        self._consumers.primary_changed(channel, event)
        self._asking.primary_changed(channel)

    def _on_load_changed(self, channel: str, event: bus.LoadChanged) -> None:
        self._destinations.load_changed(channel, event.load)

    def _on_service_changed(self, channel: str, event: bus.ServiceChanged) -> None:
        self._flow.served(channel, event, self._connections.values())
        self._destinations.served(channel, is_served=event.is_served)

    def _on_space_changed(self, channel: str, event: bus.SpaceChanged) -> None:
        self._flow.space_changed(channel, event, self._connections.values())
        # Publications from before the clients heard of it may still go on, as long as there is room for them.
        self._ordering.set_blocked(channel, event.is_tight)

    def _retire(self, channel: str, destination: int) -> None:
        self._destinations.retire(channel, destination)

    def _on_said_wrong(self, consumer: Consumer) -> None:
        self._consumers.said_wrong(consumer)

    # -- what the channels say -------------------------------------------------

    def _on_channel_event(self, event: ChannelEvent) -> None:
        what = event.event
        if isinstance(what, bus.Received):
            self._on_channel[type(what.message)](event.channel, what.message)
        else:
            self._on_channel[type(what)](event.channel, what)

    def _on_own_settled(self, ordered: Ordered, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """An own command was applied: a creation, the opening or end of a session, a transaction's."""
        if ordered.kind in (CommandKind.CREATE, CommandKind.PLACE):
            assert isinstance(ordered.detail, Creation), "a creation remembers what was wanted"
            self._destinations.settled(ordered.detail, ordered.kind, sequence, outcomes)
        elif ordered.kind in (CommandKind.SESSION_OPEN, CommandKind.SESSION_RESUME):
            # No client has been told anything of the session yet. To go on would be to tell its client that
            # the channel has its messages, because the channel has others under the same numbers. STALE is
            # another case: the command was so late that the client has resumed the session elsewhere.
            lane, session = ordered.lane, ordered.lane.session
            is_made_up_here = session is not None and not session.is_resumed and not lane.is_repeated
            assert not (is_made_up_here and outcomes and outcomes[0].code == OutcomeCode.DUPLICATE), (
                "the channel knows a session that was made up just now: an id was given twice"
            )
            self._on_lane_opened(lane, outcomes)
        elif isinstance(ordered.detail, Transaction):
            self._coordination.settled(ordered.detail, ordered, outcomes)
            channel = ordered.lane.channel
            floor = self._ordering.confirmed_through[channel]
            self._requests.ordered_behind(channel, ordered.detail.key.session, floor)
        elif isinstance(ordered.detail, Connection):
            self._client_ids.settled(ordered.detail, ordered.kind, outcomes)

    def _on_lane_opened(self, lane: SessionLane, outcomes: Sequence[Outcome]) -> None:
        if not outcomes or outcomes[0].code == OutcomeCode.DUPLICATE:
            for awaited in lane.opened(LaneState.OPEN):
                self._go_on(awaited)
            self._consumers.session_known(lane)
        else:
            self._on_lane_refused(lane, outcomes[0])

    def _on_lane_refused(self, lane: SessionLane, outcome: Outcome) -> None:
        text = outcome.text or (RESUMED_ELSEWHERE if outcome.code == OutcomeCode.STALE else EXPIRED)
        for awaited in lane.opened(LaneState.REFUSED, text):
            self._go_on(awaited)
        self._consumers.session_refused(lane, SessionClosed.code, text)
        # The session's commands have outcomes of their own, which say the same, and come before the word that
        # the session is gone.
        self._ordering.after_confirmed(lane, SessionOpening(lane.of_session))

    def _go_on(self, awaited: Awaited) -> None:
        """A channel has come as far as was awaited."""
        match awaited:
            case Registration(consumer):
                self._consumers.register_waiting(consumer)
            case Detachment():
                self._consumers.detach(awaited)
            case LaneClosing(lane, request):
                self._sessions.close_lane(lane, request)
            case LaneClosed(lane, request):
                self._sessions.closed_lane(lane, request)
            case LaneDetached(lane):
                self._sessions.detach_lane(lane)
            case SessionOpening(session):
                self._sessions.tell_opened(session)
            case RepeatedAbsence():
                self._sessions.repeat_absence(awaited)
            case KnownAnswer(lane, waiter, answer):
                self._sessions.tell_known(lane, waiter, answer)
            case Preparation(transaction):
                self._coordination.prepare(transaction)
            case Inquiry():
                self._coordination.inquire(awaited)
            case HomeRollback(transaction):
                self._coordination.roll_back_home(transaction)
            case _:
                assert_never(awaited)


def _check_selector(wish: frames.ConsumerOpen | frames.ConsumerResume) -> None:
    try:
        compile_selector(wish.selector)
    except InvalidSelector as error:
        raise Refusal(error.code, error.text) from None
    if wish.selector and wish.subscription:
        raise ProtocolError("the selector of a topic's consumer is that of its subscription")
