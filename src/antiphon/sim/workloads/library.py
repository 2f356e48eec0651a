"""LibraryClient: a client process around the pure core of the client library.

The same core that the library's faces drive with sockets, driven here with the simulated network. When a
connection is lost it goes on with the next one as they do; or, sometimes, it reports what is uncertain
and begins anew.

What it publishes and acknowledges is read off the frames it sends, so that the checkers learn its
numbers from the wire and not from the core that counts them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from antiphon.batch import Batch
from antiphon.client.core.client import NEVER_NS, ClientCore
from antiphon.client.core.consumer import ConsumerCore, Span
from antiphon.client.core.events import (
    Answered,
    Arrived,
    CreditReturned,
    Ended,
    Refused,
    SessionEnded,
    Settled,
    Welcomed,
)
from antiphon.client.core.events import ConsumerEnded as ConsumerClosed
from antiphon.client.core.publication import Chunk
from antiphon.client.core.session import SessionCore
from antiphon.message import Message
from antiphon.sim.checkers.watch import Begun, Holder
from antiphon.sim.workloads.process import BATCH_BYTES_MAX, ClientHabits, ClientProcess, Hall
from antiphon.sim.world import MILLISECOND_NS, Timer
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import Acknowledge, CommandKind, Publish, read_command
from antiphon.wire.frames import (
    AckMode,
    Command,
    Confirm,
    DestinationOpened,
    ServerFrame,
    SessionOpened,
    decode_client_frame,
)


class Ticket:
    """Somebody waits, whatever happens."""

    def done(self) -> bool:
        return False


class LibraryClient(ClientProcess):
    """Publishes `share` bodies, or consumes when the share is 0, through one session."""

    def __init__(self, name: str, hall: Hall, habits: ClientHabits, queue: str, share: int = 0) -> None:
        super().__init__(name, hall, habits)
        self.queue = queue
        self.left = share
        self._is_producer = share > 0
        self._bodies = 0
        self._unsettled = 0
        self._core: ClientCore | None = None
        self._session: SessionCore | None = None
        self._opened: DestinationOpened | None = None
        self._consumer: ConsumerCore | None = None
        self._timer: Timer | None = None
        # The last number that was seen on the wire, by session: what comes again is no news.
        self._looked: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        if self._session is None or self._opened is None:
            return self._is_producer and not self.left
        buffered = self._consumer.buffered if self._consumer is not None else 0
        return not self.left and not buffered and self._session.is_idle

    @property
    def waits_for(self) -> str:
        return f"{self._unsettled} outcomes, {self.left} messages left to send"

    # Living and dying.

    def machines(self) -> list[Any]:
        return [] if self._core is None else [self._core]

    def greet(self) -> None:
        if self._core is None:
            self._core = ClientCore(user="sim", pace=self.habits.pace)
        else:
            self.world.probe("library.came_back")
            self._core.greet()
            self._start_again()
        self._flush()

    def pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._core is None:
            return
        if self._session is not None and self.chance.random() < self.habits.resume_probability:
            self._core.lose()
        else:
            self.forget()

    def forget(self) -> None:
        if self._core is not None and self._core.abandon():
            self.world.probe("library.left_uncertain")
        self._core = None
        self._forget_session()

    def _forget_session(self) -> None:
        self._unsettled = 0
        self._session = self._opened = self._consumer = None

    def _start_again(self) -> None:
        """What was planned on the connection before does not happen any more."""
        if self._opened is not None and self._is_producer:
            self._plan_publishing()
        elif self._consumer is not None:
            if self._consumer.buffered:
                self._plan_taking()
            if not self._consumer.prefetch_messages:
                self._plan_asking()

    # Talking.

    def on_frame(self, frame: ServerFrame) -> None:
        assert self._core is not None, "a frame without a connection"
        if isinstance(frame, Confirm):
            for item in frame.items:
                self.watch.on_confirmed(frame.session, item.number, item.count, item.code, item.sequence)
        for event in self._core.receive(self.world.now_ns, frame):
            self._on_event(event)
        self._flush()

    def _on_event(self, event: object) -> None:
        assert self._core is not None, "an event without a connection"
        match event:
            case Welcomed():
                if self._session is None:
                    self._core.open_session(AckMode.AUTO)
            case SessionEnded():
                self.world.probe("library.session_ended")
                self._forget_session()
                self._core.open_session(AckMode.AUTO)
            case Answered(reply=SessionOpened() as opened):
                self._session = self._core.sessions[opened.session]
                self._core.open_destination(self.queue, create=True, session=opened.session)
            case Answered(reply=DestinationOpened() as opened):
                self._opened = opened
                self._start()
            case Settled():
                self._unsettled -= isinstance(event.tag, Chunk)
            case Arrived():
                self._look_at_hands(event.consumer)
                self._plan_taking()
            case CreditReturned():
                self._on_credit_returned(event.consumer)
            case Refused() | ConsumerClosed():
                self.world.probe(f"library.refused.{event.error.code}")
                if self._session is not None and self._session.error is None:
                    self._reopen()
            case Ended():
                self.world.probe("library.ended")
            case _:
                pass

    def _look_at_hands(self, number: int) -> None:
        """Something came for a consumer: tell all that it has."""
        session = self._session
        assert session is not None, "messages without a session"
        consumer = session.consumers[number]
        waiting = [one for span in consumer.spans for one in range(*span.numbers)]
        has = [*waiting, *consumer.held.numbers()]
        self.watch.on_has(self._holder(consumer), consumer.channel, has)

    def _holder(self, consumer: ConsumerCore) -> Holder:
        assert self._session is not None, "a consumer without a session"
        connection = 0 if self.connection is None else self.connection.number
        return Holder(connection, self._session.session, consumer.consumer)

    def _tell_taken(self, consumer: ConsumerCore, spans: Sequence[Span]) -> list[Message]:
        """The application begins to work on these."""
        holder = self._holder(consumer)
        stand = self.stand(holder.session, holder.consumer)
        messages = [message for span in spans for message in span.messages()]
        for message in messages:
            told = message.delivery_count - 1
            self.watch.on_begun(
                Begun(holder, consumer.channel, consumer.subscription, message.sequence, told, stand)
            )
            self.watch.on_given(consumer.channel, consumer.subscription, message.sequence, told)
        return messages

    def _start(self) -> None:
        if self._is_producer:
            self._plan_publishing()
        else:
            self._attach()

    def _reopen(self) -> None:
        """A consumer was closed by the node, or not let in: come again on another connection."""
        if self.connection is not None:
            self.connection.abandon()
        self.forget()
        self.on_lost()

    def _attach(self) -> None:
        assert self._core is not None, "a consumer without a connection"
        assert self._session is not None and self._opened is not None, "a consumer before its destination"
        prefetch = self.chance.randint(1, self.habits.credit_messages)
        if self.is_without_prefetch():
            prefetch = 0
            self._plan_asking()
        self._consumer = self._session.new_consumer(self.queue, self._opened, prefetch_messages=prefetch)
        self._core.open_consumer(self._session, self._consumer)

    def _flush(self) -> None:
        """Send what the core wants sent, and wake it when it wants to be woken."""
        core = self._core
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
        if self._core is not None:
            for event in self._core.on_time(self.world.now_ns):
                self._on_event(event)
            self._flush()

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

    # Publishing.

    def _plan_publishing(self) -> None:
        life = self.life
        pause = self.chance.randrange(self.habits.publish_pause_ns)
        self.world.after(pause, lambda: self._publish(life))

    def _publish(self, life: int) -> None:
        if self.life != life or not self.left or self._session is None or self._opened is None:
            return
        if self._unsettled < self.habits.window_commands:
            rows = min(self.left, self.chance.randint(1, self.habits.batch_rows_max))
            self.left -= rows
            room = min(self.habits.body_bytes_max, BATCH_BYTES_MAX // rows)
            bodies = [self._body(room) for _ in range(rows)]
            chunk = Chunk(
                bodies,
                sum(map(len, bodies)),
                Ticket(),
                destination=self._opened.destination,
                settings_version=self._opened.settings_version,
                timestamp_ms=self.world.now_ns // MILLISECOND_NS,
                deadline_ns=NEVER_NS,
            )
            self._unsettled += 1
            self._session.submit(self._opened.channel, chunk)
            self._flush()
        self._plan_publishing()

    def _body(self, room: int) -> bytes:
        self._bodies += 1
        return f"{self.name}.{self._bodies}".encode().ljust(self.chance.randrange(room), b".")

    # Consuming.

    def _plan_taking(self) -> None:
        life = self.life
        self.world.after(self.chance.randrange(self.habits.take_pause_ns), lambda: self._take(life))

    def _take(self, life: int) -> None:
        session, consumer = self._session, self._consumer
        if self.life != life or session is None or consumer is None or not consumer.buffered:
            return
        assert self._core is not None, "a session without a core"
        if not self._core.sureness.is_sure(self.world.now_ns, session, consumer):
            self._flush()
            return
        holder = self._holder(consumer)
        spans = session.take(consumer, self.chance.randint(1, consumer.buffered))
        for message in self._tell_taken(consumer, spans):
            body = bytes(message.body_bytes)
            self.watch.on_received(holder, message.sequence, body, message.delivery_count - 1)
        session.gather(self.world.now_ns, consumer, spans)
        self._core.asking.leave(session, consumer, self)
        self._flush()
        if consumer.buffered:
            self._plan_taking()

    # Asking for one message at a time.

    def _plan_asking(self) -> None:
        life = self.life
        self.world.after(self.asking.randrange(self.habits.take_pause_ns), lambda: self._ask_later(life))

    def _ask_later(self, life: int) -> None:
        session, consumer, core = self._session, self._consumer, self._core
        if self.life != life or session is None or consumer is None or core is None:
            return
        ask(self.asking, core, session, consumer, self)
        self._flush()
        self._plan_asking()

    def _on_credit_returned(self, number: int) -> None:
        """There was nothing for who asked, or it has come."""
        assert self._core is not None and self._session is not None, "an answer without a session"
        consumer = self._session.consumers[number]
        self.world.probe("library.drained_something" if consumer.buffered else "library.drained_nothing")
        if self in consumer.late and not consumer.buffered:
            self._core.asking.leave(self._session, consumer, self)


def ask(
    chance: random.Random, core: ClientCore, session: SessionCore, consumer: ConsumerCore, asker: object
) -> None:
    """Ask for a message; or, of one that was asked for, wait for it, stop waiting, or be interrupted."""
    asking = core.asking
    if asker not in consumer.wants:
        if not consumer.is_closing:
            asking.ask(session, consumer, asker, 1)
        if chance.random() < 0.7:
            return
    how = chance.random()
    if how < 0.3:
        asking.stop(consumer, asker)
        asking.drain(session, consumer)
    elif how < 0.5:
        asking.leave(session, consumer, asker)
