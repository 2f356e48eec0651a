"""LibraryClient: a client process around the pure core of the client library.

The library's faces drive the same core with sockets; here the simulated network drives it. A client whose
connection is lost goes on with the next one as the faces do; or, sometimes, reports the uncertain commands
and begins anew.

Publishes and acknowledgements are read off the frames that the client sends, so that the checkers learn the
numbers from the wire and not from the core that counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from antiphon.batch import Batch
from antiphon.client.core.client import NEVER_NS, ClientCore
from antiphon.client.core.consumer import ConsumerCore, Span
from antiphon.client.core.events import (
    Arrived,
    CreditReturned,
    Ended,
    Refused,
    RequestAnswered,
    SessionEnded,
    Settled,
    Welcomed,
)
from antiphon.client.core.events import ConsumerStopped as ConsumerClosed
from antiphon.client.core.publication import Publication
from antiphon.client.core.session import QUEUE, SessionCore
from antiphon.message import Message
from antiphon.sim.checkers.watch import Begun, PortConsumer
from antiphon.sim.clients.process import ClientHabits, ClientHall, ClientProcess
from antiphon.sim.clients.queues import Publishing
from antiphon.sim.world import MILLISECOND_NS, Timer
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import Acknowledge, CommandKind, ConfirmItem, OutcomeCode, Publish, read_command
from antiphon.wire.frames import (
    AckMode,
    Command,
    Confirm,
    ConsumerLost,
    DestinationOpened,
    ServerFrame,
    SessionOpened,
    decode_client_frame,
)

Reply = Callable[[object], None]


class AlwaysAwaited:
    """An awaiter that is never done."""

    def done(self) -> bool:
        return False


class LibraryClient(ClientProcess):
    """A session of the client library; subclasses say what the session does."""

    ack_mode = AckMode.AUTO

    def __init__(self, name: str, hall: ClientHall, habits: ClientHabits) -> None:
        super().__init__(name, hall, habits)
        self.core: ClientCore | None = None
        self.session: SessionCore | None = None
        self.is_ready = False
        # By request: the function that wants the answer, or the error.
        self._replies: dict[int, Reply] = {}
        self._timer: Timer | None = None
        # The last number that was seen on the wire, by session: a lower number is a repetition.
        self._looked: dict[int, int] = {}

    # For the kinds of client.

    def on_session(self) -> None:
        """There is a session."""
        raise NotImplementedError

    def on_resumed(self) -> None:
        """The session goes on, on another connection."""

    def on_settled(self, tag: object, outcomes: list[ConfirmItem]) -> None:
        """A command has its outcome."""
        if callable(tag):
            tag(outcomes)

    def on_arrived(self) -> None:
        """Messages came for a consumer."""

    def forget_session(self) -> None:
        """The session is over."""
        self.session = None
        self.is_ready = False
        self._replies.clear()

    # Living and dying.

    @property
    def live(self) -> tuple[ClientCore, SessionCore]:
        """The core and its session, which there are."""
        assert self.core is not None and self.session is not None, "nothing is done without a session"
        return self.core, self.session

    def machines(self) -> list[Any]:
        return [] if self.core is None else [self.core]

    def greet(self) -> None:
        if self.core is None:
            self.core = ClientCore(user="sim", pace=self.habits.pace)
        else:
            self.world.probe("library.came_back")
            self.core.greet()
        self.flush()

    def pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.core is None:
            return
        if self.session is not None and self.chance.random() < self.habits.resume_probability:
            self.core.lose()
        else:
            self.forget()

    def forget(self) -> None:
        if self.core is not None and self.core.abandon():
            self.world.probe("library.left_uncertain")
        self.core = None
        self.forget_session()

    def reopen(self) -> None:
        """A consumer was closed by the node, or not let in: come again on another connection."""
        if self.connection is not None:
            self.connection.abandon()
        self.forget()
        self.on_lost()

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something after a while, in the same session, whichever connection there is then."""
        session = self.session

        def act() -> None:
            if self.session is session and session is not None:
                action()
                self.flush()

        self.world.after(delay_ns, act)

    # Talking.

    def when_answered(self, request: int, reply: Reply) -> None:
        """Call this with the answer to a request, or with the error."""
        self._replies[request] = reply

    def on_frame(self, frame: ServerFrame) -> None:
        assert self.core is not None, "a frame without a connection"
        if isinstance(frame, Confirm):
            for item in frame.items:
                self.world.probe(f"library.outcome.{OutcomeCode(item.code).name}")
                if item.code == OutcomeCode.TAKEN:
                    continue
                self.watch.on_confirmed(frame.session, item.number, item.count, item.code, item.sequence)
        elif isinstance(frame, ConsumerLost) and frame.lost:
            self.world.probe("library.lost_to_others")
        was_open = self.session is None or self.session.is_open
        for event in self.core.receive(self.world.now_ns, frame):
            self._on_event(event)
        if not was_open and self.session is not None and self.session.is_open:
            self.on_resumed()
        self.flush()

    def _on_event(self, event: object) -> None:
        core = self.core
        if core is None:
            # An earlier event of the same frame made the client begin anew.
            return
        match event:
            case Welcomed():
                if self.session is None:
                    self._replies.clear()
                    core.open_session(self.ack_mode)
            case SessionEnded():
                self.world.probe("library.session_ended")
                self.forget_session()
                core.open_session(self.ack_mode)
            case RequestAnswered(reply=SessionOpened() as opened):
                if self.session is None:
                    self.session = core.sessions[opened.session]
                    self.on_session()
            case RequestAnswered(request=request, reply=reply):
                self._on_reply(request, reply)
            case Refused(request=request):
                self.world.probe(f"library.refused.{event.error.code}")
                self._on_reply(request, event.error)
            case Settled():
                self.on_settled(event.tag, event.outcomes)
            case Arrived():
                self._look_at_hands(event.consumer)
                self.on_arrived()
            case CreditReturned():
                self._on_credit_returned(event.consumer)
            case ConsumerClosed():
                self.world.probe(f"library.refused.{event.error.code}")
                if self.session is not None and self.session.error is None:
                    self.reopen()
            case Ended():
                self.world.probe("library.ended")
            case _:
                pass

    def _on_reply(self, request: int, reply: object) -> None:
        wanted = self._replies.pop(request, None)
        if wanted is not None:
            wanted(reply)

    def flush(self) -> None:
        """Send what the core wants sent, and wake it when it wants to be woken."""
        core = self.core
        if core is None or self.connection is None:
            return
        data = b"".join(core.take_output())
        if data:
            self._look_at(data)
            self.connection.send_bytes(data)
        if core.wake_ns < NEVER_NS and (self._timer is None or self._timer.at_ns > core.wake_ns):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.world.after(core.wake_ns - self.world.now_ns, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self.core is not None:
            for event in self.core.on_time(self.world.now_ns):
                self._on_event(event)
            self.flush()

    def _look_at(self, data: bytes) -> None:
        for kind, payload in FrameBuffer(FRAME_BYTES_MAX).feed(data):
            frame = decode_client_frame(kind, payload)
            if not isinstance(frame, Command):
                continue
            header, body = read_command(frame.command)
            if header.number <= self._looked.get(header.session, 0):
                self.world.probe("library.command_resent")
                continue
            self._looked[header.session] = header.number + header.count - 1
            if header.kind == CommandKind.PUBLISH:
                bodies = Batch.decode(Publish.decode(body).batch).bodies()
                self.watch.on_published(header.session, header.number, bodies)
            elif header.kind == CommandKind.ACK:
                wish = Acknowledge.decode(body)
                self.watch.on_acknowledged(header.session, header.number, wish.subscription, wish.ranges)

    # Consumers.

    def open_consumer(
        self,
        name: str,
        opened: DestinationOpened,
        then: Callable[[], None] = lambda: None,
        subscription: int = QUEUE,
    ) -> ConsumerCore:
        """Open a consumer, with a prefetch or without; a refusal makes the client come again."""
        core, session = self.live
        prefetch = self.chance.randint(1, self.habits.credit_messages)
        if self.is_without_prefetch():
            prefetch = 0
        selector = self.selector() if subscription == QUEUE else ""
        consumer = session.new_consumer(
            name, opened, subscription=subscription, selector=selector, prefetch_messages=prefetch
        )
        request = core.open_consumer(session, consumer)
        self.when_answered(request, lambda reply: self.reopen() if isinstance(reply, Exception) else then())
        return consumer

    def _look_at_hands(self, number: int) -> None:
        """Messages came for a consumer: tell the checkers all that the consumer has."""
        consumer = self.live[1].consumers[number]
        waiting = [one for span in consumer.spans for one in range(*span.numbers)]
        has = [*waiting, *consumer.held.numbers()]
        self.watch.on_has(self.holder(consumer), consumer.channel, has)

    def holder(self, consumer: ConsumerCore) -> PortConsumer:
        """A consumer, as the checkers know it."""
        connection = 0 if self.connection is None else self.connection.number
        return PortConsumer(connection, self.live[1].session, consumer.consumer)

    def taken(self, consumer: ConsumerCore, spans: Sequence[Span]) -> Iterator[Message]:
        """The messages that the application begins to work on."""
        holder = self.holder(consumer)
        stand = self.stand(holder.session, holder.consumer)
        for message in [message for span in spans for message in span.messages()]:
            told = message.delivery_count - 1
            self.watch.on_begun(
                Begun(holder, consumer.channel, consumer.subscription, message.sequence, told, stand)
            )
            self.watch.on_given(consumer.channel, consumer.subscription, message.sequence, told)
            yield message

    def is_sure(self, consumer: ConsumerCore) -> bool:
        """Does the core know that what a consumer has buffered is still its own?"""
        core, session = self.live
        return core.sureness.is_sure(self.world.now_ns, session, consumer)

    def ask(self, consumer: ConsumerCore) -> None:
        """Ask for a message; or, of one that was asked for, wait for it, stop waiting, or be interrupted."""
        core, session = self.live
        if self not in consumer.wants:
            if not consumer.is_closing:
                core.asking.ask(session, consumer, self, 1)
            if self.asking.random() < 0.7:
                return
        how = self.asking.random()
        if how < 0.3:
            core.asking.stop(consumer, self)
            core.asking.drain(session, consumer)
        elif how < 0.5:
            core.asking.leave(session, consumer, self)

    def _on_credit_returned(self, number: int) -> None:
        """Credit came back: the message that was asked for has come, or there is none."""
        core, session = self.live
        consumer = session.consumers[number]
        self.world.probe("library.drained_something" if consumer.buffered else "library.drained_nothing")
        if self in consumer.late and not consumer.buffered:
            core.asking.leave(session, consumer, self)


class LibraryQueueClient(LibraryClient):
    """Publishes `share` bodies to a queue, or consumes from it when the share is 0."""

    def __init__(self, name: str, hall: ClientHall, habits: ClientHabits, queue: str, share: int = 0) -> None:
        super().__init__(name, hall, habits)
        self.queue = queue
        self._publishing = Publishing(self, name, share)
        self._is_producer = share > 0
        self._unsettled = 0
        self._opened: DestinationOpened | None = None
        self._consumer: ConsumerCore | None = None

    @property
    def is_idle(self) -> bool:
        left = self._publishing.left
        if self.session is None or self._opened is None:
            return self._is_producer and not left
        buffered = self._consumer.buffered if self._consumer is not None else 0
        return not left and not buffered and self.session.is_idle

    @property
    def waits_for(self) -> str:
        return f"{self._unsettled} outcomes, {self._publishing.left} messages left to send"

    def forget_session(self) -> None:
        super().forget_session()
        self._unsettled = 0
        self._opened = self._consumer = None

    def on_session(self) -> None:
        core, session = self.live
        request = core.open_destination(self.queue, create=True, session=session.session)
        self.when_answered(request, self._on_opened)

    def _on_opened(self, reply: object) -> None:
        if not isinstance(reply, DestinationOpened):
            self.reopen()
            return
        self._opened = reply
        self.is_ready = True
        if self._is_producer:
            self._plan_publishing()
            return
        self._consumer = self.open_consumer(self.queue, reply)
        if not self._consumer.prefetch_messages:
            self._plan_asking()

    # Publishing.

    def on_settled(self, tag: object, outcomes: list[ConfirmItem]) -> None:
        # The sender of taken messages goes on, and is told nothing more.
        is_told = isinstance(tag, Publication) and (not tag.is_taken or not tag.is_settled)
        self._unsettled -= is_told

    def _plan_publishing(self) -> None:
        self.later(self._publishing.pause_ns(), self._go_on)

    def _go_on(self) -> None:
        if self._publishing.left:
            self._publishing.go_on(self._unsettled, self._publish)
            self._plan_publishing()

    def _publish(self, bodies: list[bytes]) -> None:
        _, session = self.live
        opened = self._opened
        assert opened is not None, "messages without a destination"
        self._unsettled += 1
        timestamp_ms = self.world.now_ns // MILLISECOND_NS
        chunk = Publication(
            self.ruled(bodies, timestamp_ms) or bodies,
            sum(map(len, bodies)),
            AlwaysAwaited(),
            destination=opened.destination,
            settings_version=opened.settings_version,
            timestamp_ms=timestamp_ms,
            deadline_ns=NEVER_NS,
        )
        session.submit(opened.channel, chunk)

    # Consuming.

    def on_arrived(self) -> None:
        self.looked_in_vain = 0
        self._plan_taking()

    def _plan_taking(self) -> None:
        self.later(self.chance.randrange(self.habits.take_pause_ns), self._take)

    def _take(self) -> None:
        consumer = self._consumer
        # If the core is not sure it asks, and tells when the answer is there, as if something had arrived.
        if consumer is None or not consumer.buffered or not self.is_sure(consumer):
            return
        core, session = self.live
        holder = self.holder(consumer)
        spans = session.take(consumer, self.chance.randint(1, consumer.buffered))
        for message in self.taken(consumer, spans):
            body = bytes(message.body_bytes)
            self.watch.on_received(holder, message.sequence, body, message.delivery_count - 1)
        session.gather(self.world.now_ns, consumer, spans)
        core.asking.leave(session, consumer, self)
        if consumer.buffered:
            self._plan_taking()

    def _plan_asking(self) -> None:
        self.later(self.idle_pause_ns(self.asking, self.habits.take_pause_ns), self._ask_later)

    def _ask_later(self) -> None:
        if self._consumer is not None:
            self.ask(self._consumer)
        self._plan_asking()
