"""SimClient: one client process that speaks frames, keeps its numbers, and sometimes dies.

It is written as plainly as the protocol allows and is not the client library: it also does what the
library is too polite to do, such as resuming a session under a higher generation while its old
connection still lives, and sending everything unconfirmed again under the same numbers.

A client has sessions. A session either publishes bodies that nobody else publishes, in batches, with
several under way; or it consumes, with little or much credit, and acknowledges what its application
has taken after a while, in ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.batch import Batch
from antiphon.ids import U64_MAX
from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Begun, Holder
from antiphon.sim.workloads.process import BATCH_BYTES_MAX, ClientHabits, Hall
from antiphon.sim.workloads.speaker import Kept, Numbers, Speaker
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import (
    Acknowledge,
    CommandKind,
    ConfirmItem,
    OutcomeCode,
    Publish,
    Return,
)
from antiphon.wire.frames import (
    AckMode,
    Browse,
    Browsed,
    Command,
    Confirm,
    ConsumerClose,
    ConsumerDrain,
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    Credit,
    Deliver,
    DestinationCreate,
    DestinationOpen,
    DestinationOpened,
    Done,
    Failed,
    RangePage,
    ServerFrame,
    SessionClose,
    SessionOpen,
    SessionOpened,
    SubscriptionFound,
    Welcome,
)

_SETTLED = (
    OutcomeCode.APPLIED,
    OutcomeCode.DUPLICATE,
    OutcomeCode.REFUSED,
    OutcomeCode.NO_DESTINATION,
    OutcomeCode.ACK_LOST,
    OutcomeCode.EXISTS,
    OutcomeCode.OUTDATED,
)


@dataclass(slots=True)
class Taken:
    """A message on its way to the application."""

    delivery: int
    sequence: int
    body: bytes
    redelivered: int


class SimSession(Numbers):
    """One session of a client, with one destination."""

    def __init__(self, client: SimClient, queue: str) -> None:
        super().__init__()
        self.client = client
        self.queue = queue
        self.id = 0
        self.generation = 0
        self.channel = ""
        self.destination = 0
        self.settings_version = 0
        self.is_ready = False

    @property
    def channels_to_resume(self) -> tuple[str, ...]:
        """Where it is to be resumed at once; elsewhere with the first command."""
        is_named = self.id and self.channel and self.client.habits.names_channels
        return (self.channel,) if is_named else ()

    @property
    def is_idle(self) -> bool:
        """Does nothing wait for an outcome, and is nothing left to do?"""
        return not self.unconfirmed

    def forget(self) -> None:
        """Begin a new session; what was unconfirmed stays uncertain for ever."""
        if self.unconfirmed:
            self.client.world.probe("client.left_uncertain")
        self.id = self.generation = 0
        self.next_number = 1
        self.unconfirmed.clear()
        self.is_ready = False

    def _order(self, number: int) -> None:
        command = self.command(number, self.id, self.generation)
        self.client.say(Command(channel=self.channel, command=command))

    def order_next(self, kept: Kept) -> int:
        """Send a new command under the next number, and remember it."""
        number = self.keep(kept)
        self._order(number)
        return number

    def resend(self) -> None:
        """Everything without an outcome once more, in order, under the same numbers."""
        for number in self.unconfirmed:
            self.client.world.probe("client.command_resent")
            self._order(number)

    def settle(self, item: ConfirmItem) -> bool:
        """Note an outcome; False when the session is of no more use."""
        if item.code not in _SETTLED:
            return False
        self.note(item)
        return True

    # For the kinds of session.

    def destination_wish(self, request: int) -> DestinationOpen | DestinationCreate:
        """How it asks for its destination."""
        return DestinationOpen(request=request, name=self.queue, create=True)

    def on_failed(self, frame: Failed) -> bool:
        """A request was refused; True when the session goes on all the same."""
        return False

    def start(self) -> None:
        """The session and its destination are open."""

    def stop(self) -> None:
        """The connection is gone."""

    def on_done(self, request: int) -> None:
        """A request was carried out."""

    def on_browsed(self, page: Browsed) -> None:
        """A page of what is stored has come."""

    def on_subscription(self, frame: SubscriptionFound) -> None:
        """A subscription was found by its name."""

    def on_page(self, frame: RangePage) -> None:
        """A page of a range has come."""


class ProducerSession(SimSession):
    """Publishes its share of bodies."""

    def __init__(self, client: SimClient, queue: str, name: str, share: int) -> None:
        super().__init__(client, queue)
        self.name = name
        self.left = share
        self._bodies = 0

    @property
    def is_idle(self) -> bool:
        return not self.unconfirmed and not self.left

    def start(self) -> None:
        likely = self.client.habits.look_probability
        if likely and self.client.chance.random() < likely:
            # Perhaps we come from another client manager, which confirmed what this one never heard of.
            # A client manager that was not told which channels know the session cannot know, before one of
            # its commands is confirmed there, how much it has been told elsewhere.
            self._look(is_heard=self.generation <= 1 or self.client.habits.names_channels)
        self._plan()

    def _plan(self) -> None:
        client = self.client
        life, pause = client.life, client.chance.randrange(client.habits.publish_pause_ns)
        client.world.after(pause, lambda: self._publish(life))

    def _publish(self, life: int) -> None:
        client = self.client
        if client.life != life or not self.left or not self.is_ready:
            return
        if len(self.unconfirmed) < client.habits.window_commands:
            rows = min(self.left, client.chance.randint(1, client.habits.batch_rows_max))
            self.left -= rows
            # An envelope must fit the small segments of the simulated journal.
            room = min(client.habits.body_bytes_max, BATCH_BYTES_MAX // rows)
            bodies = [self._body(room) for _ in range(rows)]
            batch = Batch.of_bodies(bodies, self.id, self.next_number, client.world.now_ns // MILLISECOND_NS)
            payload = Publish(self.destination, self.settings_version, 0, batch.encode()).encode()
            client.watch.on_published(self.id, self.next_number, bodies)
            self.order_next(Kept(CommandKind.PUBLISH, rows, payload))
        self._plan()

    def settle(self, item: ConfirmItem) -> bool:
        is_fine = super().settle(item)
        likely = self.client.habits.look_probability
        if is_fine and self.is_ready and likely and self.client.chance.random() < likely:
            self._look()
        return is_fine

    def _look(self, *, is_heard: bool = True) -> None:
        """Ask for what is stored: everything that we know to be there must be shown."""
        client = self.client
        request = client.next_request(self)
        limit = client.chance.choice((1, 5, 1_000))
        client.watch.on_look(self._key(request), self.id, self.destination, 0 if is_heard else U64_MAX)
        client.say(
            Browse(request=request, channel=self.channel, destination=self.destination, after=0, limit=limit)
        )

    def _key(self, request: int) -> int:
        return self.id << 32 | request

    def on_browsed(self, page: Browsed) -> None:
        numbers: list[int] = []
        for first, _, batch in page.pieces:
            numbers += range(first, first + Batch.decode(batch).count)
        through = page.through if page.more else U64_MAX
        self.client.watch.on_looked(self._key(page.request), through, numbers)

    def _body(self, room: int) -> bytes:
        self._bodies += 1
        padding = self.client.chance.randrange(room)
        return f"{self.name}.{self._bodies}".encode().ljust(padding, b".")


class ConsumerSession(SimSession):
    """Takes messages and acknowledges them."""

    def __init__(self, client: SimClient, queue: str) -> None:
        super().__init__(client, queue)
        self.subscription = 0
        self.consumer = 0
        self._is_attached = False
        self._arrived: deque[Taken] = deque()
        self._seen_through = 0
        self._to_acknowledge = Ranges()
        self._closing = 0
        # Without a prefetch: how far it has asked and been sent, and the request that drains it.
        self._is_asking = False
        self._asked_through = 0
        self._sent_through = 0
        self._draining = 0

    @property
    def holder(self) -> Holder:
        connection = self.client.connection
        return Holder(connection.number if connection else 0, self.id, self.consumer)

    @property
    def is_idle(self) -> bool:
        return not self.unconfirmed and not self._arrived and not self._to_acknowledge

    def start(self) -> None:
        self._attach()
        self._plan_acknowledgement()
        if self.client.habits.asking_share:
            self._plan_asking()

    def stop(self) -> None:
        # What the application held and had not acknowledged comes again, to us or to others.
        self._is_attached = False
        self._arrived.clear()
        self._to_acknowledge = Ranges()
        self._closing = 0

    def _attach(self) -> None:
        client = self.client
        self.consumer += 1
        self._is_attached = True
        self._seen_through = 0
        self._arrived.clear()
        self._is_asking = client.is_without_prefetch()
        self._asked_through = self._sent_through = self._draining = 0
        credit = client.chance.randint(1, client.habits.credit_messages)
        client.say(
            ConsumerOpen(
                request=client.next_request(self),
                session=self.id,
                consumer=self.consumer,
                channel=self.channel,
                destination=self.destination,
                subscription=self.subscription,
                credit_messages=0 if self._is_asking else credit,
                credit_bytes=client.habits.credit_bytes,
            )
        )

    def on_deliver(self, frame: Deliver) -> None:
        """Messages arrived; the application takes them later, some at a time."""
        if frame.consumer != self.consumer or not self._is_attached:
            self.client.world.probe("client.delivery_to_closed_consumer")
            return
        delivery = frame.first_delivery
        was_empty = not self._arrived
        for piece in frame.pieces:
            for row, body in enumerate(Batch.decode(piece.batch).bodies()):
                sequence = piece.first_sequence + row
                self._arrived.append(Taken(delivery, sequence, body, piece.redelivery_count))
                delivery += 1
        self._sent_through = delivery - 1
        has = [*[taken.sequence for taken in self._arrived], *self._to_acknowledge.numbers()]
        self.client.watch.on_has(self.holder, self.channel, has)
        if was_empty:
            self._plan_taking()

    def on_consumer_lost(self, frame: ConsumerLost) -> None:
        """Others have got these: the application neither sees nor acknowledges them."""
        if frame.consumer == self.consumer and self._is_attached:
            self.client.world.probe("client.lost_to_others")
            self._arrived = deque(taken for taken in self._arrived if taken.sequence not in frame.lost)
            self._to_acknowledge.remove_all(frame.lost)

    def on_gone(self, frame: ConsumerGone) -> None:
        """The node closed the consumer."""
        if frame.consumer == self.consumer and self._is_attached:
            self.client.world.probe("client.consumer_gone")
            self.attach_soon()

    def _reattach(self, life: int) -> None:
        if self.client.life == life and self.is_ready and not self._is_attached:
            self._attach()

    def attach_soon(self) -> None:
        """Try again in a moment."""
        self._is_attached = False
        life = self.client.life
        self.client.world.after(MILLISECOND_NS, lambda: self._reattach(life))

    def _plan_taking(self) -> None:
        client = self.client
        life, consumer = client.life, self.consumer
        client.world.after(
            client.chance.randrange(client.habits.take_pause_ns), lambda: self._take(life, consumer)
        )

    def _take(self, life: int, consumer: int) -> None:
        client, chance = self.client, self.client.chance
        if client.life != life or self.consumer != consumer or not self._arrived:
            return
        for _ in range(chance.randint(1, len(self._arrived))):
            taken = self._arrived.popleft()
            client.watch.on_received(self.holder, taken.sequence, taken.body, taken.redelivered)
            stand = client.stand(self.id, self.consumer)
            client.watch.on_begun(
                Begun(self.holder, self.channel, self.subscription, taken.sequence, taken.redelivered, stand)
            )
            self._seen_through = taken.delivery
            self._to_acknowledge.add(taken.sequence, taken.sequence + 1)
        if chance.random() < client.habits.reopen_probability:
            self._close()
            return
        if self._is_asking:
            return
        messages = self._seen_through + len(self._arrived) + chance.randint(1, client.habits.credit_messages)
        client.say(Credit(session=self.id, consumer=self.consumer, messages=messages, bytes=messages << 16))
        if self._arrived:
            self._plan_taking()

    def _close(self) -> None:
        """Leave with unseen messages on the way, and come again."""
        self.client.world.probe("client.consumer_closed")
        self._acknowledge()
        self._is_attached = False
        self._arrived.clear()
        self._closing = self.client.next_request(self)
        self.client.say(
            ConsumerClose(
                request=self._closing,
                session=self.id,
                consumer=self.consumer,
                seen_through=self._seen_through,
            )
        )

    def on_done(self, request: int) -> None:
        if request == self._closing:
            self._closing = 0
            self._attach()
        elif request == self._draining:
            # There was nothing, or it has come.
            self._draining = 0
            self._asked_through = self._sent_through

    def _plan_asking(self) -> None:
        client = self.client
        life, pause = client.life, client.asking.randrange(client.habits.take_pause_ns)
        client.world.after(pause, lambda: self._ask_later(life))

    def _ask_later(self, life: int) -> None:
        if self.client.life == life and self.is_ready:
            self._ask()
            self._plan_asking()

    def _ask(self) -> None:
        """Ask for the next message when the last is acknowledged; sometimes only for what is there now."""
        client = self.client
        is_busy = self._draining or self._arrived or self._to_acknowledge
        if is_busy or not (self._is_asking and self._is_attached):
            return
        is_waiting = self._asked_through > self._sent_through
        if client.asking.random() < 0.5:
            if not is_waiting:
                self._asked_through += 1
                client.say(
                    Credit(
                        session=self.id, consumer=self.consumer, messages=self._asked_through, bytes=1 << 60
                    )
                )
            return
        client.world.probe("client.drained_waiting" if is_waiting else "client.drained_at_once")
        self._asked_through += not is_waiting
        self._draining = client.next_request(self)
        client.say(
            ConsumerDrain(
                request=self._draining,
                session=self.id,
                consumer=self.consumer,
                messages=self._asked_through,
                bytes=1 << 60,
            )
        )

    def _plan_acknowledgement(self) -> None:
        client = self.client
        life, pause = client.life, client.chance.randrange(client.habits.acknowledge_pause_ns)
        client.world.after(pause, lambda: self._acknowledge_later(life))

    def _acknowledge_later(self, life: int) -> None:
        if self.client.life == life and self.is_ready:
            self._acknowledge()
            self._plan_acknowledgement()

    def _acknowledge(self) -> None:
        client = self.client
        if not self._to_acknowledge:
            return
        ranges, self._to_acknowledge = self._to_acknowledge, Ranges()
        if client.chance.random() < client.habits.return_probability:
            client.world.probe("client.returned")
            back = Return(
                destination=self.destination, subscription=self.subscription, counted=True, ranges=ranges
            )
            self.order_next(Kept(CommandKind.RETURN, 1, back.encode()))
            return
        payload = Acknowledge(destination=self.destination, subscription=self.subscription, ranges=ranges)
        client.watch.on_acknowledged(self.id, self.next_number, self.subscription, ranges)
        self.order_next(Kept(CommandKind.ACK, 1, payload.encode()))


class SimClient(Speaker[SimSession]):
    """A client process that speaks frames by itself."""

    def __init__(self, name: str, hall: Hall, habits: ClientHabits) -> None:
        super().__init__(name, hall, habits)
        self.sessions: list[SimSession] = []

    @property
    def is_idle(self) -> bool:
        return all(session.is_idle for session in self.sessions)

    @property
    def waits_for(self) -> str:
        return ", ".join(
            f"{len(session.unconfirmed)} outcomes after {session.confirmed_through}"
            for session in self.sessions
            if not session.is_idle
        )

    # Living and dying.

    def forget(self) -> None:
        for session in self.sessions:
            session.forget()

    def pause(self) -> None:
        for session in self.sessions:
            session.is_ready = False
            session.stop()

    # Talking.

    def on_frame(self, frame: ServerFrame) -> None:
        match frame:
            case Confirm():
                self._on_confirm(frame)
            case Deliver():
                self._session(frame.session, lambda session: session.on_deliver(frame))
            case Welcome():
                self._open_sessions()
            case SessionOpened():
                self._on_session_opened(frame)
            case DestinationOpened():
                self._on_destination_opened(frame)
            case Done():
                session = self._requests.pop(frame.request, None)
                if session is not None:
                    session.on_done(frame.request)
            case Failed():
                self._on_failed(frame)
            case Browsed():
                session = self._requests.pop(frame.request, None)
                if session is not None:
                    session.on_browsed(frame)
            case SubscriptionFound():
                session = self._requests.pop(frame.request, None)
                if session is not None:
                    session.on_subscription(frame)
            case RangePage():
                session = self._requests.pop(frame.request, None)
                if session is not None:
                    session.on_page(frame)
            case ConsumerLost():
                self._session(frame.session, lambda session: session.on_consumer_lost(frame))
            case ConsumerGone():
                self._session(frame.session, lambda session: session.on_gone(frame))
            case _:
                super().on_frame(frame)

    def _session(self, session_id: int, action: Callable[[ConsumerSession], None]) -> None:
        for session in self.sessions:
            if session.id == session_id and isinstance(session, ConsumerSession):
                action(session)

    def _open_sessions(self) -> None:
        for session in self.sessions:
            if session.id and self.chance.random() < self.habits.resume_probability:
                self.world.probe("client.session_resumed")
                session.generation += 1
            else:
                session.forget()
            self._open_session(session)

    def _open_session(self, session: SimSession) -> None:
        self.say(
            SessionOpen(
                request=self.next_request(session),
                session=session.id,
                generation=session.generation,
                ack_mode=AckMode.INDIVIDUAL,
                channels=session.channels_to_resume,
            )
        )

    def _on_session_opened(self, frame: SessionOpened) -> None:
        session = self._requests.pop(frame.request, None)
        if session is None:
            return
        session.id = frame.session
        session.generation = frame.generation
        if session.unconfirmed:
            session.resend()
        self.say(session.destination_wish(self.next_request(session)))

    def _on_destination_opened(self, frame: DestinationOpened) -> None:
        session = self._requests.pop(frame.request, None)
        if session is None:
            return
        session.destination = frame.destination
        session.settings_version = frame.settings_version
        session.channel = frame.channel
        session.is_ready = True
        session.start()

    def _on_failed(self, frame: Failed) -> None:
        self.world.probe(f"client.failed.{frame.code}")
        session = self._requests.pop(frame.request, None)
        if session is not None and not session.on_failed(frame):
            self._replace(session)

    def _on_confirm(self, frame: Confirm) -> None:
        for session in self.sessions:
            if session.id != frame.session:
                continue
            for item in frame.items:
                self.world.probe(f"client.outcome.{OutcomeCode(item.code).name}")
                self.watch.on_confirmed(session.id, item.number, item.count, item.code, item.sequence)
                if not session.settle(item):
                    self._replace(session)
                    break
            return

    def _replace(self, session: SimSession) -> None:
        """The session is of no more use: close it and begin another on the same connection."""
        self.world.probe("client.session_replaced")
        if session.id:
            self.say(SessionClose(request=self.next_request(None), session=session.id))
        session.stop()
        session.forget()
        # Answers to what the old session had asked for concern nobody any more.
        for request, waiting in list(self._requests.items()):
            if waiting is session:
                self._requests[request] = None
        self._open_session(session)
