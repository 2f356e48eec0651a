"""RudeClient: a client process that speaks frames by itself.

A rude client is written as plainly as the protocol allows, and does what the client library is too polite to
do: it resumes a session under a higher generation while its old connection still lives, does not say which
channels know that session, and opens its consumers anew instead of resuming them.

A client has sessions. A session has numbers of its own in each channel (`ChannelNumbers`) and some consumers
(`ConsumerEnd`). When a connection is lost, the client goes to another client manager; there it resumes each
session and sends again what has no outcome, or it begins a new one and never learns what became of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from antiphon.batch import Batch
from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Begun, PortConsumer
from antiphon.sim.clients.process import ClientHabits, ClientHall, ClientProcess
from antiphon.sim.limits import makes_in_bulk
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, ConfirmItem, OutcomeCode, encode_command
from antiphon.wire.frames import (
    AckMode,
    ClientFrame,
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
    DestinationsCreate,
    DestinationsCreated,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    ServerFrame,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    Welcome,
)

AGAIN_NS = 20 * MILLISECOND_NS

_USELESS = (OutcomeCode.STALE, OutcomeCode.GAP, OutcomeCode.SESSION_UNKNOWN, OutcomeCode.FORGOTTEN)
"""After one of these a session is of no more use."""

Answer = Callable[[ServerFrame], None]
Settled = Callable[[ConfirmItem], None]


class RudeClient(ClientProcess):
    """A client process, with the sessions that were made for it."""

    def __init__(self, name: str, hall: ClientHall, habits: ClientHabits) -> None:
        super().__init__(name, hall, habits)
        self.sessions: list[RudeSession] = []
        # By request: whose it is, and who wants the answer.
        self._requests: dict[int, tuple[RudeSession, Answer | None]] = {}
        self._last_request = 0

    @property
    def is_idle(self) -> bool:
        return all(session.is_idle for session in self.sessions)

    @property
    def is_ready(self) -> bool:
        return all(session.is_ready for session in self.sessions)

    @property
    def waits_for(self) -> str:
        return ", ".join(session.waits_for for session in self.sessions if not session.is_idle)

    def forget(self) -> None:
        for session in self.sessions:
            session.forget()

    def pause(self) -> None:
        for session in self.sessions:
            session.is_ready = False
            session.stop()

    def greet(self) -> None:
        self._requests.clear()
        self.say(Hello(user="sim", password="", client_id=""))

    def say(self, frame: ClientFrame) -> None:
        """Send a frame, if there is a connection."""
        if self.connection is not None:
            self.connection.send(frame)

    def next_request(self, session: RudeSession, then: Answer | None) -> int:
        """A fresh request number, remembered with who wants the answer."""
        self._last_request += 1
        self._requests[self._last_request] = session, then
        return self._last_request

    def drop_requests(self, session: RudeSession) -> None:
        """Drop the requests of a session: their answers are not awaited any more."""
        self._requests = {key: one for key, one in self._requests.items() if one[0] is not session}

    def on_frame(self, frame: ServerFrame) -> None:
        match frame:
            case Welcome():
                for session in self.sessions:
                    session.begin()
            case Confirm() | Deliver() | ConsumerLost() | ConsumerGone() | SessionGone():
                for session in self.sessions:
                    if session.id == frame.session:
                        session.on_word(frame)
                        return
            case Ping():
                self.say(Pong(nonce=frame.nonce))
            case Goodbye():
                self.world.probe(f"client.goodbye.{frame.code}")
            case _:
                self._on_answer(frame)

    def _on_answer(self, frame: ServerFrame) -> None:
        if isinstance(frame, Failed):
            self.world.probe(f"client.failed.{frame.code}")
        _, then = self._requests.pop(getattr(frame, "request", 0), (None, None))
        if then is not None:
            then(frame)


@dataclass(slots=True)
class Unconfirmed:
    """A command without an outcome, with all that sending it again takes, and who waits for it."""

    kind: CommandKind
    count: int
    payload: bytes
    then: Settled | None = None
    open: set[int] = field(default_factory=set)


class ChannelNumbers:
    """The numbers of a session in one channel, and what has no outcome there."""

    def __init__(self) -> None:
        self.next_number = 1
        self.unconfirmed: dict[int, Unconfirmed] = {}
        # Rows that were sent in transactions, or staged.
        self.rows = 0

    @property
    def confirmed_through(self) -> int:
        """Every number up to here has its outcome."""
        return next(iter(self.unconfirmed), self.next_number) - 1

    def keep(self, command: Unconfirmed) -> int:
        """Give a new command the next number, and remember it."""
        number = self.next_number
        self.next_number += command.count
        command.open.update(range(number, number + command.count))
        self.unconfirmed[number] = command
        return number

    def command(self, number: int, session: int, generation: int) -> bytes:
        """The command of this number, as it is sent for the first time or again."""
        kept = self.unconfirmed[number]
        return encode_command(
            kept.kind, session, generation, number, self.confirmed_through, kept.payload, kept.count
        )

    def note(self, item: ConfirmItem) -> None:
        """These commands have their outcome, and the waiting client is told."""
        numbers = range(item.number, item.number + item.count)
        for number, kept in list(self.unconfirmed.items()):
            kept.open.difference_update(numbers)
            if not kept.open:
                del self.unconfirmed[number]
                if kept.then is not None:
                    kept.then(item)


@dataclass(slots=True)
class Account:
    """A destination that a session has to do with, and what is known of it once it was found."""

    name: str
    # The settings of a destination that the session makes; any client may have made one without settings.
    settings: str = ""
    channel: str = ""
    destination: int = 0
    settings_version: int = 0
    # Of a spanning destination: the channel of this part.
    part: str = ""

    @property
    def is_topic(self) -> bool:
        """Is the destination a topic, and no queue?"""
        return self.name.startswith("topic:")

    def wish(self, request: int) -> DestinationOpen | DestinationCreate:
        """How the destination is asked for."""
        if self.settings:
            return DestinationCreate(request=request, name=self.name, settings=self.settings)
        return DestinationOpen(request=request, name=self.name, create=True)

    def wish_for_part(self, request: int) -> DestinationOpen:
        """How the part of a spanning destination that is there is asked for."""
        return DestinationOpen(request=request, name=self.name, create=False, channel=self.part)


class RudeSession:
    """A session of a rude client; subclasses say what the session does."""

    ack_mode = AckMode.INDIVIDUAL
    # Are destinations that were found once not asked for again?
    knows_accounts = False

    def __init__(self, client: RudeClient, accounts: Sequence[Account]) -> None:
        client.sessions.append(self)
        self.client = client
        self.world, self.watch = client.world, client.watch
        self.chance, self.habits = client.chance, client.habits
        self.accounts = accounts
        self.id = 0
        self.generation = 0
        self.is_ready = False
        self.numbers: dict[str, ChannelNumbers] = {}
        self.ends: list[ConsumerEnd] = []
        self.last_consumer = 0

    # For the kinds of session.

    @property
    def is_idle(self) -> bool:
        """Does nothing wait for an outcome, and is nothing left to do?"""
        return not self.has_unconfirmed

    @property
    def waits_for(self) -> str:
        """What the session waits for, in words."""
        return ", ".join(f"{len(one.unconfirmed)} outcomes in {at}" for at, one in self.numbers.items())

    def start(self) -> None:
        """The session is open, and every destination was found."""

    def stop(self) -> None:
        """The connection is gone, or the session is of no more use."""

    def resumed(self) -> None:
        """The session goes on, on another connection; what has no outcome was sent again."""

    def abandoned(self) -> None:
        """The session is over, whatever of it was under way."""

    def on_settled(self, item: ConfirmItem) -> None:
        """Some commands have their outcome."""

    def on_arrived(self, end: ConsumerEnd, messages: Sequence[Delivered], *, was_empty: bool) -> None:
        """Messages came for a consumer."""

    def on_lost(self, end: ConsumerEnd, lost: Ranges) -> None:
        """Others have got some of what a consumer holds."""

    def on_refused(self, end: ConsumerEnd, frame: Failed) -> None:
        """A consumer was not opened."""
        self.replace()

    def held_by(self, end: ConsumerEnd) -> Iterable[int]:
        """The messages that the application has taken from a consumer and not acknowledged."""
        return ()

    # Opening and closing.

    @property
    def has_unconfirmed(self) -> bool:
        """Does any command wait for its outcome?"""
        return any(one.unconfirmed for one in self.numbers.values())

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something after a while, unless connection or session are gone by then."""
        life, session = self.client.life, self.id

        def act() -> None:
            if (self.client.life, self.id) == (life, session) and self.is_ready:
                action()

        self.world.after(delay_ns, act)

    def ask(self, wish: Callable[[int], ClientFrame], then: Answer | None) -> int:
        """Ask something; `wish` makes the frame of a request number."""
        request = self.client.next_request(self, then)
        self.client.say(wish(request))
        return request

    def begin(self) -> None:
        """There is a connection: resume the session, or begin anew."""
        if self.id and self.chance.random() < self.habits.resume_probability:
            self.generation += 1
        else:
            self.forget()
        self._open()

    def _open(self) -> None:
        is_named = self.id and self.habits.names_channels
        self.ask(
            lambda request: SessionOpen(
                request=request,
                session=self.id,
                generation=self.generation,
                ack_mode=self.ack_mode,
                channels=tuple(self.numbers) if is_named else (),
            ),
            self._on_opened,
        )

    def _on_opened(self, frame: ServerFrame) -> None:
        if not isinstance(frame, SessionOpened):
            self.replace()
            return
        is_resumed = bool(self.id)
        self.id, self.generation = frame.session, frame.generation
        if is_resumed:
            self.world.probe("client.session_resumed")
            for channel, numbers in self.numbers.items():
                for number in numbers.unconfirmed:
                    self.world.probe("client.command_resent")
                    self._order(channel, number)
            self.resumed()
        if self.accounts and makes_in_bulk(self.world.seed):
            self._make_all()
        else:
            self._find(0)

    def _make_all(self) -> None:
        """Make all destinations that are set like the first, in one request; then find them."""
        settings, life, session = self.accounts[0].settings, self.client.life, self.id
        names = tuple(account.name for account in self.accounts if account.settings == settings)

        def on_created(frame: ServerFrame) -> None:
            if isinstance(frame, DestinationsCreated):
                refused = [at for at, _, _ in frame.refused]
                places = [*frame.made.numbers(), *refused]
                assert len({*places}) == len(places) and {*places} <= {*range(len(names))}, f"{frame}"
                self.world.probe("client.created_in_bulk")
                if refused:
                    self.world.probe("client.refused_in_bulk")
            if (self.client.life, self.id) == (life, session):
                self._find(0)

        self.ask(
            lambda request: DestinationsCreate(request=request, names=names, settings=settings or "{}"),
            on_created,
        )

    def _find(self, at: int) -> None:
        """Find the destinations, one after the other, from this one on."""
        while at < len(self.accounts) and self.knows_accounts and self.accounts[at].destination:
            at += 1
        if at == len(self.accounts):
            self.is_ready = True
            self.start()
            return
        self.ask(self.accounts[at].wish, lambda frame: self._on_found(at, frame))

    def _on_found(self, at: int, frame: ServerFrame) -> None:
        account, life, session = self.accounts[at], self.client.life, self.id

        def again() -> None:
            if (self.client.life, self.id) == (life, session):
                self._find(at)

        if not isinstance(frame, DestinationOpened):
            self.world.after(AGAIN_NS, again)
            return
        if frame.channels:
            self.world.probe("client.spanning")
            self.ask(account.wish_for_part, lambda frame: self._on_found(at, frame))
            return
        account.destination, account.settings_version = frame.destination, frame.settings_version
        account.channel = frame.channel
        if not self.knows_accounts:
            # A client manager that the client comes to may be told of this channel.
            self.numbers_in(frame.channel)
        self._find(at + 1)

    def forget(self) -> None:
        """Begin a new session; what was unconfirmed stays uncertain for ever."""
        if self.has_unconfirmed:
            self.world.probe("client.left_uncertain")
        self.id = self.generation = 0
        self.numbers.clear()
        self.is_ready = False
        self.abandoned()

    def replace(self) -> None:
        """The session is of no more use: close it and begin another on the same connection."""
        self.world.probe("client.session_replaced")
        if self.id:
            session = self.id
            self.ask(lambda request: SessionClose(request=request, session=session), None)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.stop()
        self.forget()
        self.client.drop_requests(self)
        self._open()

    # Commands and what the node says.

    def numbers_in(self, channel: str) -> ChannelNumbers:
        """The numbers of the session in a channel."""
        return self.numbers.setdefault(channel, ChannelNumbers())

    def order(
        self, channel: str, kind: CommandKind, payload: bytes, count: int = 1, then: Settled | None = None
    ) -> int:
        """Send a new command under the next number of its channel, and remember it."""
        number = self.numbers_in(channel).keep(Unconfirmed(kind, count, payload, then))
        self._order(channel, number)
        return number

    def _order(self, channel: str, number: int) -> None:
        command = self.numbers[channel].command(number, self.id, self.generation)
        self.client.say(Command(channel=channel, command=command))

    def on_word(self, frame: Confirm | Deliver | ConsumerLost | ConsumerGone | SessionGone) -> None:
        """The node said something about this session."""
        match frame:
            case Confirm():
                self._on_confirm(frame)
            case Deliver():
                self.on_deliver(frame)
            case ConsumerLost():
                if (end := self._end(frame.consumer)) is not None:
                    end.on_lost(frame.lost)
            case ConsumerGone():
                if (end := self._end(frame.consumer)) is not None:
                    self.world.probe("client.consumer_gone")
                    end.open_soon()
            case SessionGone():
                # A channel does not know the session any more, though another may.
                self.world.probe("client.session_gone")
                self._begin_anew()

    def _on_confirm(self, frame: Confirm) -> None:
        session = self.id
        for item in frame.items:
            if self.id != session or (numbers := self.numbers.get(frame.channel)) is None:
                return
            self.world.probe(f"client.outcome.{OutcomeCode(item.code).name}")
            if item.code == OutcomeCode.TAKEN:
                continue
            self.watch.on_confirmed(session, item.number, item.count, item.code, item.sequence)
            if item.code in _USELESS:
                self.replace()
                return
            numbers.note(item)
            self.on_settled(item)

    def _end(self, consumer: int) -> ConsumerEnd | None:
        return next((one for one in self.ends if one.number == consumer and one.is_attached), None)

    def on_deliver(self, frame: Deliver) -> None:
        """Messages came, for one of its consumers or for one that is closed."""
        end = self._end(frame.consumer)
        if end is None:
            self.world.probe("client.delivery_to_closed_consumer")
            return
        was_empty = not end.arrived
        self.on_arrived(end, end.deliver(frame), was_empty=was_empty)
        has = [*[one.sequence for one in end.arrived], *self.held_by(end)]
        self.watch.on_has(end.holder, end.account.channel, has)


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that has come to a consumer."""

    delivery: int
    sequence: int
    body: bytes
    redelivered: int


def rows_of(frame: Deliver) -> Iterator[Delivered]:
    """The messages of a frame."""
    delivery = frame.first_delivery
    for piece in frame.pieces:
        batch = Batch.decode(piece.batch)
        for row, body in enumerate(batch.bodies()):
            yield Delivered(delivery, piece.first_sequence + batch.offset(row), body, piece.redelivery_count)
            delivery += 1


class ConsumerEnd:
    """A rude session's end of a consumer at one destination."""

    def __init__(self, session: RudeSession, account: Account) -> None:
        session.ends.append(self)
        self.account = account
        self.subscription = 0
        self.number = 0
        self.is_attached = False
        self.arrived: deque[Delivered] = deque()
        self.delivered = 0
        self.seen_through = 0
        # Without a prefetch: how far it has asked, and is it being drained?
        self.is_asking = False
        self.asked_through = 0
        self.is_draining = False
        self._session = session

    @property
    def holder(self) -> PortConsumer:
        """The consumer, as the checkers know it."""
        connection = self._session.client.connection
        return PortConsumer(connection.number if connection else 0, self._session.id, self.number)

    def clear(self) -> None:
        """Whatever had arrived comes again, to this consumer or to others."""
        self.is_attached = self.is_draining = False
        self.arrived.clear()
        self.delivered = self.seen_through = self.asked_through = 0

    def open(self) -> None:
        """Attach a new consumer."""
        session = self._session
        self.clear()
        session.last_consumer += 1
        self.number = session.last_consumer
        self.is_attached = True
        self.is_asking = session.client.is_without_prefetch()
        credit = session.chance.randint(1, session.habits.credit_messages)
        selector = "" if self.subscription else session.client.selector()
        session.ask(
            lambda request: ConsumerOpen(
                request=request,
                session=session.id,
                consumer=self.number,
                channel=self.account.channel,
                destination=self.account.destination,
                subscription=self.subscription,
                selector=selector,
                credit_messages=0 if self.is_asking else credit,
                credit_bytes=session.habits.credit_bytes,
            ),
            lambda frame: session.on_refused(self, frame) if isinstance(frame, Failed) else None,
        )

    def open_soon(self) -> None:
        """Attach a new consumer in a moment."""
        self.clear()
        self._session.later(MILLISECOND_NS, lambda: None if self.is_attached else self.open())

    def close(self, then: Answer) -> None:
        """Leave, perhaps with unseen messages on the way."""
        session, seen_through, number = self._session, self.seen_through, self.number
        self.clear()
        session.ask(
            lambda request: ConsumerClose(
                request=request, session=session.id, consumer=number, seen_through=seen_through
            ),
            then,
        )

    def deliver(self, frame: Deliver) -> list[Delivered]:
        """Messages came; the application takes them later, some at a time."""
        messages = list(rows_of(frame))
        self.arrived.extend(messages)
        self.delivered = messages[-1].delivery
        return messages

    def on_lost(self, lost: Ranges) -> None:
        """Others have got these: the application neither sees nor acknowledges them."""
        if lost:
            self._session.world.probe("client.lost_to_others")
            self.arrived = deque([one for one in self.arrived if one.sequence not in lost])
            self._session.on_lost(self, lost)

    def take(self, count: int) -> list[Delivered]:
        """The application begins to work on so many messages."""
        session = self._session
        taken = [self.arrived.popleft() for _ in range(count)]
        self.seen_through = taken[-1].delivery
        stand, channel = session.client.stand(session.id, self.number), self.account.channel
        for one in taken:
            begun = Begun(self.holder, channel, self.subscription, one.sequence, one.redelivered, stand)
            session.watch.on_begun(begun)
        return taken

    def allow(self) -> None:
        """Give credit for more than what is here, unless the consumer asks for each message."""
        if not self.is_asking:
            more = self._session.chance.randint(1, self._session.habits.credit_messages)
            messages = self.seen_through + len(self.arrived) + more
            self._credit(messages, messages << 16)

    def _credit(self, messages: int, size: int) -> None:
        session = self._session
        credit = Credit(session=session.id, consumer=self.number, messages=messages, bytes=size)
        session.client.say(credit)

    def ask(self) -> None:
        """Ask for the next message, or for what is there now; or no longer wait for one."""
        if self.is_draining:
            return
        session, at, number = self._session, self._session.id, self.number
        is_waiting = self.asked_through > self.delivered
        self.asked_through = through = self.delivered + 1
        if session.client.asking.random() < 0.5:
            if not is_waiting:
                self._credit(through, 1 << 60)
            return
        session.world.probe("client.drained_waiting" if is_waiting else "client.drained_at_once")
        self.is_draining = True
        session.ask(
            lambda request: ConsumerDrain(
                request=request, session=at, consumer=number, messages=through, bytes=1 << 60
            ),
            lambda frame: self._on_drained(at, number),
        )

    def _on_drained(self, session: int, number: int) -> None:
        """There was nothing, or it has come."""
        if (self._session.id, self.number) == (session, number):
            self.is_draining = False
            self.asked_through = self.delivered
