"""ClientCore: the client's half of one connection, as a machine without sockets or a clock.

Where it sits
    application  ->  face (aio)  ->  CLIENT CORE  ->  frames  ->  client manager

What it promises
    K1  Nothing but the greeting is sent before the server has let us in.
    K2  Every request has one answer: what the server said, or that the connection is over.
    K3  A frame that does not fit what was said before raises ProtocolError; after that, or
        after `Ended`, the connection is of no more use.
    K4  A server that is silent for three heartbeats is reported as gone.

What it leaves to others
    The face moves `take_output()` to the socket, hands in whole frames, calls `on_time` no
    later than `wake_ns`, and turns events into what the application waits for. Numbers,
    windows and outcomes are core_outbox's, buffers and credit core_consumer's.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

from antiphon.client.core_consumer import ConsumerCore
from antiphon.client.core_events import (
    Answered,
    Arrived,
    ConsumerEnded,
    Ended,
    Event,
    Expired,
    Refused,
    Reply,
    Welcomed,
)
from antiphon.client.core_gathering import Publication
from antiphon.client.core_session import SessionCore
from antiphon.errors import AntiphonError, NotConnected, ProtocolError, error_from_code
from antiphon.wire.buffer import FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX
from antiphon.wire.frames import (
    AckMode,
    Answer,
    Ask,
    Browse,
    Browsed,
    ClientFrame,
    Confirm,
    ConsumerClose,
    ConsumerGone,
    ConsumerOpen,
    Deliver,
    DestinationCreate,
    DestinationOpen,
    DestinationOpened,
    Done,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    ServerFrame,
    SessionClose,
    SessionOpen,
    SessionOpened,
    SubscriptionFind,
    SubscriptionFound,
    Welcome,
    encode_frame,
)
from antiphon.wire.primitives import Buffer

NEVER_NS = 1 << 63
REQUEST_MAX = 0xFFFF_FFFF
SILENT_BEATS_MAX = 6  # half heartbeats

CLOSED_REMEMBERED = 256
"""Sessions closed last: the server may still have sent something to them."""


@dataclass(slots=True)
class _Request:
    """A question that was sent: what kind of answer it expects, and what it was about."""

    answer: type[Any]
    session: int = 0
    opens: int = 0  # a consumer
    closes: int = 0  # a consumer
    ack_mode: AckMode = AckMode.AUTO
    is_abandoned: bool = False


class ClientCore:
    """One connection, from the greeting to its end."""

    def __init__(self, *, user: str = "", password: str = "", client_id: str = "") -> None:
        self.welcome: Welcome | None = None
        self.client_id = client_id
        self.sessions: dict[int, SessionCore] = {}
        self.wake_ns = NEVER_NS
        self._output: list[Buffer] = []
        self._requests: dict[int, _Request] = {}
        self._last_request = 0
        self._closed: deque[int] = deque(maxlen=CLOSED_REMEMBERED)
        # Publications by the time they were given, in the order of sending: the heads expire first.
        self._watched: dict[int, deque[Publication]] = {}
        self._beat_ns = NEVER_NS
        self._silent_beats = 0
        self._send(Hello(user=user, password=password, client_id=client_id))

    @property
    def frame_limit(self) -> int:
        """How large a frame of the server may be, at this moment."""
        return HANDSHAKE_FRAME_BYTES_MAX if self.welcome is None else FRAME_BYTES_MAX

    def take_output(self) -> list[Buffer]:
        """What is to be sent, in order."""
        output = self._output[:]
        self._output.clear()  # the list itself is shared by all outboxes
        return output

    def _send(self, frame: ClientFrame) -> None:
        self._output.append(encode_frame(frame))

    # -- requests --------------------------------------------------------------

    def open_session(self, ack_mode: AckMode) -> int:
        request = self._request(_Request(SessionOpened, ack_mode=ack_mode))
        self._send(SessionOpen(request=request, session=0, generation=0, ack_mode=ack_mode))
        return request

    def close_session(self, session: int) -> int:
        request = self._request(_Request(Done, session=session))
        self._send(SessionClose(request=request, session=session))
        return request

    def open_destination(self, name: str, *, create: bool) -> int:
        request = self._request(_Request(DestinationOpened))
        self._send(DestinationOpen(request=request, name=name, create=create))
        return request

    def create_destination(self, name: str, settings: str) -> int:
        request = self._request(_Request(DestinationOpened))
        self._send(DestinationCreate(request=request, name=name, settings=settings))
        return request

    def find_subscription(self, session: SessionCore, name: str) -> int:
        request = self._request(_Request(SubscriptionFound))
        self._send(SubscriptionFind(request=request, session=session.session, name=name))
        return request

    def browse(self, destination: int, after: int, limit: int) -> int:
        request = self._request(_Request(Browsed))
        self._send(Browse(request=request, destination=destination, after=after, limit=limit))
        return request

    def open_consumer(self, session: SessionCore, consumer: ConsumerCore) -> int:
        """Ask for deliveries. They may come before the answer does."""
        request = self._request(_Request(Done, session=session.session, opens=consumer.consumer))
        self._send(
            ConsumerOpen(
                request=request,
                session=session.session,
                consumer=consumer.consumer,
                destination=consumer.destination,
                subscription=consumer.subscription,
                credit_messages=consumer.prefetch_messages,
                credit_bytes=consumer.prefetch_bytes,
            )
        )
        return request

    def close_consumer(self, session: SessionCore, consumer: ConsumerCore) -> int:
        """End the deliveries. What was buffered and not taken, the server gives to others."""
        consumer.is_closing = True
        request = self._request(_Request(Done, session=session.session, closes=consumer.consumer))
        self._send(
            ConsumerClose(
                request=request,
                session=session.session,
                consumer=consumer.consumer,
                seen_through=consumer.taken_through,
            )
        )
        return request

    def ask(self, question: dict[str, Any]) -> int:
        request = self._request(_Request(Answer))
        self._send(Ask(request=request, question=json.dumps(question)))
        return request

    def abandon_request(self, request: int) -> None:
        """Nobody waits for the answer any more. When it comes it is undone, as far as that is possible."""
        if request in self._requests:
            self._requests[request].is_abandoned = True

    def _request(self, request: _Request) -> int:
        number = self._last_request % REQUEST_MAX + 1
        assert number not in self._requests, "four thousand million requests wait for their answer"
        self._last_request = number
        self._requests[number] = request
        return number

    # -- frames ----------------------------------------------------------------

    def receive(self, now_ns: int, frame: ServerFrame) -> list[Event]:
        """Take one frame of the server; return what it means, in order."""
        self._silent_beats = 0
        if self.welcome is None and not isinstance(frame, Welcome | Goodbye):
            raise ProtocolError(f"the server's first word was {type(frame).__name__}, not Welcome")
        match frame:
            case Deliver():
                return self._on_deliver(frame)
            case Confirm():
                return self._on_confirm(frame)
            case SessionOpened() | DestinationOpened() | SubscriptionFound() | Browsed() | Done() | Answer():
                return self._on_answer(frame)
            case Failed():
                return self._on_failed(frame)
            case ConsumerGone():
                return self._on_consumer_gone(frame)
            case Ping():
                self._send(Pong(nonce=frame.nonce))
            case Pong():
                pass
            case Welcome():
                return self._on_welcome(now_ns, frame)
            case Goodbye():
                return [Ended(error=_parting_error(frame))]
        return []

    def _on_welcome(self, now_ns: int, frame: Welcome) -> list[Event]:
        if self.welcome is not None:
            raise ProtocolError("the server said Welcome twice")
        self.welcome = frame
        if frame.heartbeat_ms:
            self._beat_ns = now_ns + self._half_beat_ns
            self._wake(self._beat_ns)
        return [Welcomed(welcome=frame)]

    def _on_answer(self, frame: Reply) -> list[Event]:
        request = self._answered(frame.request)
        if not isinstance(frame, request.answer):
            raise ProtocolError(f"request {frame.request} was answered by {type(frame).__name__}")
        if isinstance(frame, SessionOpened):
            self._add_session(frame, request)
        elif request.session in self.sessions:
            self._note_done(self.sessions[request.session], request)
        return [] if request.is_abandoned else [Answered(request=frame.request, reply=frame)]

    def _add_session(self, frame: SessionOpened, request: _Request) -> None:
        if frame.session in self.sessions:
            raise ProtocolError(f"session {frame.session:032x} was opened twice")
        self.sessions[frame.session] = SessionCore(
            frame, request.ack_mode, output=self._output, wake=self._wake
        )
        if request.is_abandoned:
            self.abandon_request(self.close_session(frame.session))

    def _note_done(self, session: SessionCore, request: _Request) -> None:
        if request.closes:
            # What the application still holds of it may yet be acknowledged.
            if not session.consumers[request.closes].held:
                session.forget_consumer(request.closes)
        elif request.opens:
            if request.is_abandoned:
                self.abandon_request(self.close_consumer(session, session.consumers[request.opens]))
        else:
            del self.sessions[session.session]
            self._closed.append(session.session)

    def _on_failed(self, frame: Failed) -> list[Event]:
        request = self._answered(frame.request)
        if request.opens and request.session in self.sessions:
            self.sessions[request.session].forget_consumer(request.opens)
        if request.is_abandoned:
            return []
        return [Refused(request=frame.request, error=error_from_code(frame.code, frame.text))]

    def _answered(self, number: int) -> _Request:
        request = self._requests.pop(number, None)
        if request is None:
            raise ProtocolError(f"request {number} was answered, and never asked or answered before")
        return request

    def _on_confirm(self, frame: Confirm) -> list[Event]:
        session = self._session(frame.session)
        if session is None:
            return []
        outbox = session.outboxes.get(frame.channel)
        if outbox is None:
            raise ProtocolError(f"channel {frame.channel!r} confirmed commands that it was never sent")
        return list(outbox.confirm(frame.items))

    def _on_deliver(self, frame: Deliver) -> list[Event]:
        session = self._session(frame.session)
        if session is None:
            return []
        consumer = self._consumer(session, frame.consumer)
        if consumer is None or consumer.is_closing:
            return []
        consumer.arrive(frame)
        return [Arrived(session=frame.session, consumer=frame.consumer)]

    def _on_consumer_gone(self, frame: ConsumerGone) -> list[Event]:
        session = self._session(frame.session)
        consumer = self._consumer(session, frame.consumer) if session is not None else None
        if consumer is None or consumer.is_closing:
            return []
        consumer.is_closing = True
        error = error_from_code(frame.code, frame.text)
        return [ConsumerEnded(session=frame.session, consumer=frame.consumer, error=error)]

    def _session(self, number: int) -> SessionCore | None:
        session = self.sessions.get(number)
        if session is None and number not in self._closed:
            raise ProtocolError(f"the server spoke of session {number:032x}, which is not ours")
        return session

    def _consumer(self, session: SessionCore, number: int) -> ConsumerCore | None:
        if not 0 < number <= session.consumers_opened:
            raise ProtocolError(f"the server spoke of consumer {number}, which was never opened")
        return session.consumers.get(number)

    # -- time ------------------------------------------------------------------

    def watch(self, publication: Publication, timeout_ns: int) -> None:
        """Report the publication as `Expired` unless it has its outcome by its deadline."""
        watched = self._watched.setdefault(timeout_ns, deque())
        while watched and watched[0].is_settled:
            watched.popleft()
        watched.append(publication)
        self._wake(publication.deadline_ns)

    def on_time(self, now_ns: int) -> list[Event]:
        """Do what is due; `wake_ns` says when there will be more."""
        self.wake_ns = NEVER_NS
        events: list[Event] = []
        for session in self.sessions.values():
            due_ns = session.on_time(now_ns)
            if due_ns is not None:
                self._wake(due_ns)
        self._expire(now_ns, events)
        if self._beat_ns <= now_ns:
            self._beat(now_ns, events)
        self._wake(self._beat_ns)
        return events

    def _wake(self, at_ns: int) -> None:
        if at_ns < self.wake_ns:
            self.wake_ns = at_ns

    def _expire(self, now_ns: int, events: list[Event]) -> None:
        for timeout_ns, watched in list(self._watched.items()):
            while watched and (watched[0].is_settled or watched[0].deadline_ns <= now_ns):
                publication = watched.popleft()
                if not publication.is_settled:
                    events.append(Expired(publication=publication))
            if watched:
                self._wake(watched[0].deadline_ns)
            else:
                del self._watched[timeout_ns]

    @property
    def _half_beat_ns(self) -> int:
        assert self.welcome is not None, "the heart beats once we are welcome"
        return self.welcome.heartbeat_ms * 500_000

    def _beat(self, now_ns: int, events: list[Event]) -> None:
        # Twice a heartbeat, so that the server hears us within every one.
        self._silent_beats += 1
        self._beat_ns = now_ns + self._half_beat_ns
        if self._silent_beats > SILENT_BEATS_MAX:
            silent_ms = SILENT_BEATS_MAX * self._half_beat_ns // 1_000_000
            events.append(Ended(error=NotConnected(f"the server has been silent for {silent_ms} ms")))
        else:
            self._send(Ping(nonce=self._silent_beats))

    # -- the end ---------------------------------------------------------------

    def abandon(self) -> list[object]:
        """The connection is over: the tags of all commands that will get no outcome any more."""
        tags: list[object] = []
        for session in self.sessions.values():
            for outbox in session.outboxes.values():
                tags += outbox.abandon()
        self._requests.clear()
        self._watched.clear()
        self._output.clear()
        return tags


def _parting_error(frame: Goodbye) -> AntiphonError:
    if not frame.code:
        return NotConnected(frame.text or "the server closed the connection")
    return error_from_code(frame.code, frame.text)
