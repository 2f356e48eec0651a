"""ClientCore: the client's half of a connection, as a machine without sockets or a clock.

Where it sits
    application  ->  face (aio)  ->  CLIENT CORE  ->  frames  ->  client manager

What it promises
    CLI1  Nothing but the greeting is sent before the server has admitted the client.
    CLI2  Every request has one answer: the server's, or that it will never come.
    CLI3  A frame that contradicts earlier ones raises ProtocolError; after that, or after `Ended`, the socket
          is of no more use.
    CLI4  A server that is silent for three heartbeats is reported as gone.
    CLI5  A lost socket loses nothing else: after `lose`, `greet` begins anew on another, where each session
          is resumed, then sends commands without an outcome again, then attaches its consumers with the
          messages they have, then repeats its requests; instead of a commit it asks for its outcome.

What it leaves to others
    The face moves `take_output()` to the socket, hands in whole frames, calls `on_time` no later than
    `wake_ns`, and turns events into the application's results. The outbox has numbers, windows and outcomes,
    the consumer has buffers and credit, the route chooses servers, and consumer_requests has sureness and
    credit on demand.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.consumer_requests import CreditOnDemand, Sureness
from antiphon.client.core.events import (
    Arrived,
    ConsumerStopped,
    Ended,
    Event,
    Expired,
    Refused,
    Reply,
    RequestAnswered,
    SessionEnded,
    Settled,
    Unheard,
    Welcomed,
    parting,
)
from antiphon.client.core.outcomes import acknowledge_error
from antiphon.client.core.pace import USUAL, Pace
from antiphon.client.core.publication import Deadlines, Publication
from antiphon.client.core.requests import ANSWERS, Request, RequestFrame, RequestTable, question_about
from antiphon.client.core.session import Acknowledgement, ReturnedUnseen, SessionCore
from antiphon.errors import AntiphonError, NotConnected, ProtocolError, SessionClosed, error_from_code
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX
from antiphon.wire.frames import AckMode, encode_frame
from antiphon.wire.lone import read_lone_confirm
from antiphon.wire.primitives import Buffer
from antiphon.wire.range_frames import RangeWanted
from antiphon.wire.transaction_frames import TransactionPart

NEVER_NS = 1 << 63
SILENT_BEATS_MAX = 6  # half heartbeats

CLOSED_REMEMBERED = 256
"""The last closed sessions: the server may still have sent frames for them."""


class ClientCore:
    """One client, from its first greeting to its end, on one socket after the other."""

    def __init__(
        self, *, user: str = "", password: str = "", client_id: str = "", pace: Pace = USUAL
    ) -> None:
        self._pace = pace
        self.welcome: frames.Welcome | None = None
        self.client_id = client_id
        self.sessions: dict[int, SessionCore] = {}
        self.wake_ns = NEVER_NS
        self._hello = frames.Hello(user=user, password=password, client_id=client_id)
        # The connection, once a server has named it, and how often it has greeted one.
        self._connection = 0
        self._generation = 1
        self._output: list[Buffer] = []
        self._requests = RequestTable()
        self._next_number = self._requests.next_number
        self._closed: deque[int] = deque(maxlen=CLOSED_REMEMBERED)
        self._deadlines = Deadlines()
        self._beat_ns = NEVER_NS
        self._silent_beats = 0
        self.sureness = Sureness(self._ask, self._next_number)
        self.asking = CreditOnDemand(self._ask, self._next_number)
        self.greet()

    @property
    def frame_limit(self) -> int:
        """The largest frame that the server may send at this moment."""
        return HANDSHAKE_FRAME_BYTES_MAX if self.welcome is None else FRAME_BYTES_MAX

    def take_output(self) -> list[Buffer]:
        output = self._output[:]
        self._output.clear()  # the list itself is shared by all outboxes
        return output

    def _send(self, frame: frames.ClientFrame) -> None:
        self._output.append(encode_frame(frame))

    # -- one socket after the other --------------------------------------------

    def greet(self) -> None:
        """Begin on a new socket with Hello."""
        self._output.clear()
        hello = self._hello
        if self._connection:
            # Counted up with each attempt, whether or not it was heard of.
            self._generation += 1
            hello = replace(hello, connection=self._connection, generation=self._generation)
        self._send(hello)

    def lose(self) -> None:
        """The socket is gone. Waiting requests and commands go on waiting (CLI5)."""
        self.welcome = None
        self._output.clear()
        self._beat_ns = NEVER_NS
        self._silent_beats = 0
        for request in self._requests.take_unneeded():
            session = self.sessions.get(request.session)
            if session is not None and request.is_abandoned:
                self._undo(session, request)
        for session in self.sessions.values():
            session.suspend()

    def _undo(self, session: SessionCore, request: Request) -> None:
        """The request is abandoned, and with the socket it is undone already."""
        if isinstance(request.frame, frames.SessionClose):
            self._forget_session(session)
        elif isinstance(request.frame, frames.ConsumerOpen | frames.ConsumerResume):
            session.forget_consumer(request.consumer)

    def _resume_session(self, session: SessionCore) -> None:
        # Counted up with each attempt, whether or not it was heard of.
        session.generation += 1
        self._ask(
            frames.SessionOpen(
                request=self._next_number(),
                session=session.session,
                generation=session.generation,
                ack_mode=session.ack_mode,
                channels=tuple(session.channels),
                known=tuple(session.channels.values()),
            ),
            is_own=True,
        )

    def _on_resumed(self, session: SessionCore, opened: frames.SessionOpened) -> None:
        waiting = self._requests.of_session(session.session)
        session.resume(opened)
        for consumer in session.consumers.values():
            if not consumer.is_closing:
                self._attach_again(session, consumer, waiting)
        for request in waiting:
            if isinstance(request.frame, frames.TransactionCommit):
                request.frame = question_about(request.frame)
            if not isinstance(request.frame, frames.ConsumerResume):
                self._send(request.frame)

    def _attach_again(self, session: SessionCore, consumer: ConsumerCore, waiting: list[Request]) -> None:
        """Attach a consumer with the messages it has; its opening may still be awaited."""
        for request in waiting:
            if request.consumer == consumer.consumer:
                request.frame = consumer.resumption(request.frame.request, session.session)
                self._send(request.frame)
                return
        self._ask(consumer.resumption(self._next_number(), session.session), is_own=True)

    # -- requests --------------------------------------------------------------

    def open_session(self, ack_mode: AckMode) -> int:
        return self._ask(
            frames.SessionOpen(request=self._next_number(), session=0, generation=0, ack_mode=ack_mode)
        )

    def adopt_session(self, session: int, generation: int, channel: str = "", known: int = 0) -> int:
        """Go on with a session of another process, or of a connection that is over.

        Without a channel, only to ask for its state. The channel has `known` the session under that
        generation.
        """
        return self._ask(
            frames.SessionOpen(
                request=self._next_number(),
                session=session,
                generation=generation,
                ack_mode=AckMode.AUTO,
                channels=(channel,) if channel else (),
                known=(known,) if channel else (),
            )
        )

    def forget_adopted(self, session: int) -> None:
        """The session will be adopted anew, for other numbers."""
        known = self.sessions.get(session)
        if known is not None and known.is_adopted:
            self._forget_session(known)

    def close_session(self, session: int) -> int:
        return self._ask(frames.SessionClose(request=self._next_number(), session=session))

    def open_destination(self, name: str, *, create: bool, session: int = 0, channel: str = "") -> int:
        """Find a destination; with `session`, for a session that will send commands there."""
        return self._ask(
            frames.DestinationOpen(
                request=self._next_number(), name=name, create=create, session=session, channel=channel
            )
        )

    def create_destination(self, name: str, settings: str) -> int:
        return self._ask(frames.DestinationCreate(request=self._next_number(), name=name, settings=settings))

    def create_destinations(self, names: Sequence[str], settings: str) -> int:
        return self._ask(
            frames.DestinationsCreate(request=self._next_number(), names=tuple(names), settings=settings)
        )

    def find_subscription(
        self,
        session: SessionCore,
        name: str,
        *,
        durable: bool = True,
        ends: bool = False,
        channel: str = "",
    ) -> int:
        return self._ask(
            frames.SubscriptionFind(
                request=self._next_number(),
                session=session.session,
                name=name,
                durable=durable,
                ends=ends,
                channel=channel,
            )
        )

    def ask_range(self, channel: str, question: dict[str, Any], floor: int, wait_ms: int) -> int:
        """A question about the stored messages of a channel; without a channel, of all channels."""
        text = json.dumps(question, separators=(",", ":"))
        return self._ask(
            frames.RangeAsk(
                request=self._next_number(), channel=channel, floor=floor, wait_ms=wait_ms, question=text
            )
        )

    def read_range(
        self,
        channel: str,
        span: tuple[int, int, int],
        destinations: tuple[RangeWanted, ...],
        *,
        floor: int,
        page_bytes: int,
        ahead: int,
        ahead_from: int,
        allow_lost: bool,
        acks: bool,
        live: bool,
    ) -> int:
        """A page of a range; `span` has its beginning, its end, and the end of all pages."""
        start, stop, goal = span
        return self._ask(
            frames.RangeRead(
                request=self._next_number(),
                channel=channel,
                start=start,
                stop=stop,
                goal=goal,
                floor=floor,
                page_bytes=page_bytes,
                ahead=ahead,
                ahead_from=ahead_from,
                allow_lost=allow_lost,
                acks=acks,
                live=live,
                destinations=destinations,
            )
        )

    def browse(self, opened: frames.DestinationOpened, start: int, page_bytes: int) -> int:
        """A page of a queue's messages, or of a topic's, from number `start` on.

        The next page begins behind the last number of this one, as long as this one names an end of it.
        """
        return self.read_range(
            opened.channel,
            (start, 0, 0),
            (RangeWanted(opened.destination),),
            floor=start - 1,
            page_bytes=page_bytes,
            ahead=1,
            ahead_from=0,
            allow_lost=True,
            acks=False,
            live=True,
        )

    def open_consumer(self, session: SessionCore, consumer: ConsumerCore) -> int:
        """Ask for deliveries. They may come before the answer does."""
        return self._ask(
            frames.ConsumerOpen(
                request=self._next_number(),
                session=session.session,
                consumer=consumer.consumer,
                channel=consumer.channel,
                destination=consumer.destination,
                subscription=consumer.subscription,
                selector=consumer.selector,
                credit_messages=consumer.granted[0],
                credit_bytes=consumer.granted[1],
            )
        )

    def close_consumer(self, session: SessionCore, consumer: ConsumerCore) -> int:
        """End the deliveries. Buffered messages that were not taken go to other consumers."""
        consumer.is_closing = True
        return self._ask(
            frames.ConsumerClose(
                request=self._next_number(),
                session=session.session,
                consumer=consumer.consumer,
                seen_through=consumer.taken_through,
            )
        )

    def commit_transaction(
        self,
        session: SessionCore,
        transaction: int,
        parts: tuple[TransactionPart, ...],
        application: str = "",
        version: int = 0,
    ) -> int:
        """Commit parts in several channels. Allowed only while the session is on a connection, and everything
        of these parts has left on it: on another connection the core only asks for the outcome."""
        assert session.is_open, "a commit was to be asked for without a connection"
        return self._ask(
            frames.TransactionCommit(
                request=self._next_number(),
                session=session.session,
                transaction=transaction,
                parts=parts,
                application=application,
                version=version,
            )
        )

    def ask_transaction(self, session: int, transaction: int, home: str) -> int:
        """Ask for the outcome of a commit. An undecided commit is rolled back by this."""
        return self._ask(
            frames.TransactionAsk(
                request=self._next_number(), session=session, transaction=transaction, home=home
            )
        )

    def ask(self, question: dict[str, Any]) -> int:
        return self._ask(frames.Ask(request=self._next_number(), question=json.dumps(question)))

    def abandon_request(self, request: int) -> None:
        """The answer is not awaited any more. When it comes it is undone, as far as that is possible."""
        self._requests.abandon(request)

    def _ask(self, frame: RequestFrame, *, is_own: bool = False) -> int:
        """Ask now, or as soon as there is a socket and the session is on it."""
        request = self._requests.add(frame, is_own=is_own)
        asker = self.sessions.get(request.session)
        if self.welcome is not None and (asker is None or asker.is_open):
            self._send(frame)
        return frame.request

    # -- frames ----------------------------------------------------------------

    def receive(self, now_ns: int, frame: frames.ServerFrame) -> list[Event]:
        """Take one frame of the server; returns its events, in order."""
        self._silent_beats = 0
        if self.welcome is None and not isinstance(frame, frames.Welcome | frames.Goodbye):
            raise ProtocolError(f"the server's first word was {type(frame).__name__}, not Welcome")
        match frame:
            case frames.Deliver():
                return self._on_deliver(now_ns, frame)
            case frames.Confirm():
                session = self._session(frame.session)
                if session is None:
                    return []
                settled = session.confirm(frame.channel, frame.items)
                for tag in [one.tag for one in settled if isinstance(one.tag, ReturnedUnseen)]:
                    self.asking.returned(session, tag)
                return [*settled, *_refused_unheard(settled)]
            case frames.Failed():
                return self._on_failed(frame)
            case frames.ConsumerLost():
                self._on_consumer_lost(frame)
            case frames.ConsumerGone():
                return self._on_consumer_gone(frame)
            case frames.SessionGone():
                return self._on_session_gone(frame)
            case frames.FlowState():
                for session in self.sessions.values():
                    session.set_blocked(frame.channel, frame.blocked, frame.reason)
            case frames.Ping():
                self._send(frames.Pong(nonce=frame.nonce))
            case frames.Pong():
                pass
            case frames.Welcome():
                return self._on_welcome(now_ns, frame)
            case frames.Goodbye():
                return [parting(frame)]
            case _:
                return self._on_answer(now_ns, frame)
        return []

    def settle_lone(self, payload: Buffer) -> Any:
        """Settle the oldest publication, if this Confirm is about it alone; otherwise take nothing: the frame
        is for `receive`."""
        lone = read_lone_confirm(payload)
        if lone is None or self.welcome is None:
            return None
        number, channel, item = lone
        session = self.sessions.get(number)
        outbox = None if session is None else session.outboxes.get(channel)
        publication = None if outbox is None else outbox.confirm_oldest(item)
        if publication is not None:
            self._silent_beats = 0
        return publication

    def _on_welcome(self, now_ns: int, frame: frames.Welcome) -> list[Event]:
        if self.welcome is not None:
            raise ProtocolError("the server said Welcome twice")
        if self._connection not in (0, frame.connection):
            raise ProtocolError("the server welcomed another connection")
        self.welcome, self._connection = frame, frame.connection
        self.sureness.sure_ns = frame.sure_ms * 1_000_000
        if frame.heartbeat_ms:
            self._beat_ns = now_ns + self._half_beat_ns
            self._wake(self._beat_ns)
        waiting = self._requests.of_session(0)
        for session in self.sessions.values():
            self._resume_session(session)
        for request in waiting:
            self._send(request.frame)
        return [Welcomed(welcome=frame)]

    def _on_answer(self, now_ns: int, frame: Reply) -> list[Event]:
        request = self._requests.take(frame.request)
        if request is None:
            return []
        if not isinstance(frame, ANSWERS[type(request.frame)]):
            raise ProtocolError(f"request {frame.request} was answered by {type(frame).__name__}")
        session = self.sessions.get(request.session)
        if isinstance(request.frame, frames.ConsumerCheck):
            return self.sureness.checked(now_ns, session, request.frame.consumer)
        if isinstance(request.frame, frames.ConsumerDrain):
            return self.asking.answered(session, request.frame.consumer)
        reply = frame
        match frame:
            case frames.SessionOpened():
                self._on_session_opened(frame, request)
            case frames.ConsumerResumed() if session is not None:
                consumer = session.consumers[request.consumer]
                session.drop(consumer, frame.lost)
                reply = frames.Done(request=frame.request)
                self._note_done(session, request)
                if request.is_own:
                    return self.sureness.told(session, consumer)
            case frames.Done() if session is not None:
                self._note_done(session, request)
            case frames.DestinationOpened(channel="") if session is not None:
                pass  # a spanning destination: the session is made known where its parts are
            case frames.DestinationOpened() | frames.SubscriptionFound() if session is not None:
                session.note_known(frame.channel)
        if request.is_abandoned or request.is_own:
            return []
        return [RequestAnswered(request=frame.request, reply=reply)]

    def _on_session_opened(self, frame: frames.SessionOpened, request: Request) -> None:
        known = self.sessions.get(frame.session)
        asked = request.frame
        assert isinstance(asked, frames.SessionOpen), "only SessionOpen expects SessionOpened"
        if asked.session and (frame.session, frame.generation) != (asked.session, asked.generation):
            raise ProtocolError(f"session {asked.session:032x} was to be resumed, another one was")
        if request.is_own:
            if known is not None:
                self._on_resumed(known, frame)
            return
        if known is not None:
            raise ProtocolError(f"session {frame.session:032x} was opened twice")
        session = SessionCore(frame, asked.ack_mode, output=self._output, wake=self._wake, pace=self._pace)
        for channel in asked.channels:
            # The only channel has just said so.
            session.note_known(channel)
        session.is_adopted = bool(asked.session)
        self.sessions[frame.session] = session
        if request.is_abandoned and not asked.session:
            self.abandon_request(self.close_session(frame.session))

    def _note_done(self, session: SessionCore, request: Request) -> None:
        match request.frame:
            case frames.ConsumerClose(consumer=number):
                # The application may still acknowledge messages that it has of it.
                if not session.consumers[number].held:
                    session.forget_consumer(number)
            case frames.ConsumerOpen(consumer=number) | frames.ConsumerResume(consumer=number):
                if request.is_abandoned:
                    self.abandon_request(self.close_consumer(session, session.consumers[number]))
            case frames.SessionClose():
                self._forget_session(session)

    def _forget_session(self, session: SessionCore) -> None:
        del self.sessions[session.session]
        self._closed.append(session.session)

    def _on_failed(self, frame: frames.Failed) -> list[Event]:
        request = self._requests.take(frame.request)
        if request is None:
            return []
        error = error_from_code(frame.code, frame.text)
        asked = request.frame
        if isinstance(asked, frames.ConsumerCheck):
            return []
        if isinstance(asked, frames.ConsumerDrain):
            return self.asking.answered(self.sessions.get(request.session), asked.consumer)
        if isinstance(asked, frames.SessionOpen) and request.is_own:
            session = self.sessions.get(asked.session)
            return [] if session is None else self._end_session(session, SessionClosed(error.text))
        session = self.sessions.get(request.session)
        if session is not None and isinstance(asked, frames.ConsumerOpen | frames.ConsumerResume):
            if request.is_own:
                return self._end_consumer(session, asked.consumer, error)
            session.forget_consumer(asked.consumer)
        return [] if request.is_abandoned else [Refused(request=frame.request, error=error)]

    def _on_deliver(self, now_ns: int, frame: frames.Deliver) -> list[Event]:
        session = self._session(frame.session)
        if session is None:
            return []
        consumer = self._consumer(session, frame.consumer)
        if consumer is None or consumer.is_closing:
            return []
        session.arrive(consumer, frame)
        consumer.heard(now_ns, self.sureness.sure_ns)
        self.asking.look(session, consumer)
        return [Arrived(session=frame.session, consumer=frame.consumer)]

    def _on_consumer_lost(self, frame: frames.ConsumerLost) -> None:
        session = self._session(frame.session)
        consumer = None if session is None else self._consumer(session, frame.consumer)
        if session is not None and consumer is not None:
            session.drop(consumer, frame.lost)

    def _on_consumer_gone(self, frame: frames.ConsumerGone) -> list[Event]:
        session = self._session(frame.session)
        if session is None or self._consumer(session, frame.consumer) is None:
            return []
        return self._end_consumer(session, frame.consumer, error_from_code(frame.code, frame.text))

    def _end_consumer(self, session: SessionCore, number: int, error: AntiphonError) -> list[Event]:
        consumer = session.consumers[number]
        if consumer.is_closing:
            return []
        consumer.is_closing = True
        return [ConsumerStopped(session=session.session, consumer=number, error=error)]

    def _on_session_gone(self, frame: frames.SessionGone) -> list[Event]:
        session = self._session(frame.session)
        return [] if session is None else self._end_session(session, SessionClosed(frame.text))

    def _end_session(self, session: SessionCore, error: AntiphonError) -> list[Event]:
        """The session expired, or goes on elsewhere: its requests have no other answer (CLI2)."""
        events: list[Event] = []
        for number in list(session.consumers):
            events += self._end_consumer(session, number, error)
        tags = session.end(error)
        self._forget_session(session)
        # A call that closes the session, or resends in its name, raises the error itself.
        is_heard = session.is_adopted
        for request in self._requests.of_session(session.session):
            self._requests.end(request)
            number, is_close = request.frame.request, isinstance(request.frame, frames.SessionClose)
            is_heard = is_heard or is_close
            if request.is_own or request.is_abandoned:
                continue
            if is_close and not tags:
                events.append(RequestAnswered(request=number, reply=frames.Done(request=number)))
            else:
                events.append(Refused(request=number, error=error))
        events.append(SessionEnded(session=session.session, error=error, tags=tags))
        if not is_heard:
            events.append(Unheard(error=SessionClosed(f"a session cannot go on: {error}")))
        return events

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
        self._deadlines.watch(publication, timeout_ns)
        if publication.deadline_ns < self.wake_ns:
            self.wake_ns = publication.deadline_ns

    @property
    def is_awaited(self) -> bool:
        return self._deadlines.is_awaited

    def on_time(self, now_ns: int) -> list[Event]:
        """Do the due work; `wake_ns` says when there will be more."""
        self.wake_ns = NEVER_NS
        events: list[Event] = []
        for session in self.sessions.values():
            due_ns = session.on_time(now_ns)
            if due_ns is not None:
                self._wake(due_ns)
        expired, next_ns = self._deadlines.expire(now_ns)
        events += [Expired(publication=publication) for publication in expired]
        if next_ns is not None:
            self._wake(next_ns)
        if self._beat_ns <= now_ns:
            self._beat(now_ns, events)
        self._wake(self._beat_ns)
        return events

    def _wake(self, at_ns: int) -> None:
        if at_ns < self.wake_ns:
            self.wake_ns = at_ns

    @property
    def _half_beat_ns(self) -> int:
        assert self.welcome is not None, "the heart beats once we are welcome"
        return self.welcome.heartbeat_ms * 500_000

    def _beat(self, now_ns: int, events: list[Event]) -> None:
        # Twice a heartbeat, so that the server hears the client within every one.
        self._silent_beats += 1
        self._beat_ns = now_ns + self._half_beat_ns
        if self._silent_beats > SILENT_BEATS_MAX:
            silent_ms = SILENT_BEATS_MAX * self._half_beat_ns // 1_000_000
            error = NotConnected(f"the server has been silent for {silent_ms} ms")
            events.append(Ended(error=error, is_silent=True))
        else:
            self._send(frames.Ping(nonce=self._silent_beats))

    # -- the end ---------------------------------------------------------------

    def abandon(self) -> list[object]:
        """The connection is over: the tags of all commands that will get no outcome any more."""
        tags: list[object] = []
        for session in self.sessions.values():
            for outbox in session.outboxes.values():
                tags += outbox.abandon()
        self._requests.clear()
        self._deadlines.clear()
        self._output.clear()
        return tags


def _refused_unheard(settled: Sequence[Settled]) -> Iterator[Unheard]:
    """The refusals of acknowledgements that the session sent by itself."""
    for tag, outcomes in settled:
        if isinstance(tag, Acknowledgement) and tag.is_gathered:
            for item in outcomes:
                error = acknowledge_error(item)
                if error is not None:
                    yield Unheard(error=error)
