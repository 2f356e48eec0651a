"""Delivery: attaches consumers, gives them messages, and takes messages back.

Where it sits
    queue, subscription  ->  dispatcher  ->  DELIVERY  ->  client managers

What it promises
    DLV1  Delivery exists at the primary, for one term, and nothing in it is needed after the term.
    DLV2  A new primary gives out nothing before the client managers have attached their consumers with the
          messages these hold, or a short while has passed: living consumers keep what they hold.
    DLV3  A message that a consumer saw and did not acknowledge is not given out before its return is ordered.
    DLV4  Every registration is answered.
    DLV5  Every subscription of a topic has a dispatcher of its own: a slow subscriber holds up no other.
    DLV6  A consumer whose client was lost keeps its messages for a short while (`absences`).
    DLV7  Messages to and from client managers may be repeated, late or lost: answers are given again, and
          numbered messages are repeated until they are acknowledged (`streams`).
    DLV8  A drain is answered in the stream, behind all deliveries, once the primary serves; no credit is left
          then.
    DLV9  The same rows for several consumers leave in one message, for all client managers together.
    DLV10  A consumer that comes back keeps a message that it holds only if no other can have been given it,
           by this primary or by a former one. Otherwise it gets the message anew, as redelivered.
    DLV11  Delays and expiry go by log time as this primary knows it, with one next time for all messages.
    DLV12  Messages of a topic that a subscription's selector does not want leave the subscription by the log,
           so that they are not kept for it; also while the subscription has no consumer.

What it leaves to others
    The client manager decides who may consume, the fold decides the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from antiphon.bus.effects import Alarm, Multicast, Send
from antiphon.bus.messages import (
    SESSION_DETACHED,
    ConsumerEnded,
    Credits,
    DeliverAck,
    Drained,
    Register,
    Registered,
    SessionDetachedHeard,
    Unregister,
    Unregistered,
)
from antiphon.errors import ConsumerClosed, InvalidSelector, SessionClosed, SubscriptionInUse
from antiphon.events import BATCH_UNREADABLE
from antiphon.message_manager.delivery.absences import Absences
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.expiries import RANGES_AT_ONCE, MessageExpiries
from antiphon.message_manager.delivery.ready import LogMoment
from antiphon.message_manager.delivery.repeats import Repeats
from antiphon.message_manager.delivery.rounds import Round
from antiphon.message_manager.delivery.streams import DeliveryStreams
from antiphon.message_manager.delivery.views import WORK_BYTES, Skimmer, Skips
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.settings import DEAD_AND_EXPIRED
from antiphon.message_manager.state.destinations.source import Source
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import NOBODY, Ownership, Session, Sessions
from antiphon.ranges import Ranges
from antiphon.selectors import Selector, compile_selector
from antiphon.wire.commands import NODE_SESSION

NO_DESTINATION: Final = "destination.unknown"
NOT_SO: Final = "destination.refused"
DELETED: Final = "destination.deleted"
NO_SUBSCRIPTION: Final = "subscription.unknown"
UNSUBSCRIBED: Final = "subscription.deleted"

_NO_DISPATCHERS: Final[dict[int, Dispatcher]] = {}
_NO_LOCKS: Final[dict[int, Ranges]] = {}

_GONE_REMEMBERED: Final = 4_096
"""Detached consumers that a late registration must not attach again."""

Said = Send | Multicast | Alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReturn:
    """Messages that a departed consumer saw, for a counted return."""

    destination: int
    subscription: int
    numbers: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulNumbers:
    """Non-persistent messages of a source that a consumer may have seen."""

    destination: int
    subscription: int
    numbers: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredNumbers:
    """Messages of a destination whose time is over, and which no consumer holds."""

    destination: int
    numbers: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwantedNumbers:
    """Messages of a topic that the selector of a subscription does not want."""

    subscription: int
    numbers: Ranges


class Delivery:
    """The consumers of a channel in one term of its primary."""

    __slots__ = (
        "_absences",
        "_answers",
        "_by_destination",
        "_by_number",
        "_by_session",
        "_channel",
        "_claimed_after",
        "_consumers",
        "_directory",
        "_dispatchers",
        "_draining",
        "_expiries",
        "_gone",
        "_in_doubt",
        "_locks",
        "_now",
        "_owners",
        "_reader",
        "_registration_ns",
        "_repeats",
        "_returns",
        "_round",
        "_selecting",
        "_skimmers",
        "_skimming",
        "_stirred",
        "_streams",
        "_term",
        "_waiting",
        "awaited",
        "dead_by_time",
        "dying",
        "serves_at_ns",
    )

    def __init__(
        self,
        *,
        term: int,
        claimed_after: int,
        reader: BatchReader,
        directory: Directory,
        settings: MessageManagerSettings,
        registration_ns: int,
        owners: dict[int, Ownership],
        absence_ns: int = 0,
        locks: Mapping[int, Ranges] = _NO_LOCKS,
        channel: str = "",
        installed_at: int = 0,
    ) -> None:
        self._term = term
        self._channel = channel
        self._claimed_after = claimed_after
        self._reader = reader
        self._directory = directory
        self._locks = locks
        self._round = Round(term, settings.deliver_bytes_max, directory)
        # How long consumers of an earlier term are waited for, and until when; the wait begins when client
        # managers can know of this term (DLV2).
        self._registration_ns = registration_ns
        self.serves_at_ns: int | None = None
        # The sessions that had a client manager when the term began (DLV10).
        self._owners = owners
        # Sessions that may hold messages of an earlier term, with the nodes of their client managers (DLV2).
        self.awaited = {session: one.owner.pid for session, one in owners.items()}
        self._consumers: dict[ConsumerKey, Consumer] = {}
        self._by_session: dict[int, dict[ConsumerKey, Consumer]] = {}
        # By session and client's number: the consumer that was attached last.
        self._by_number: dict[tuple[int, int], Consumer] = {}
        # By source, and by destination and source.
        self._dispatchers: dict[int, Dispatcher] = {}
        self._by_destination: dict[int, dict[int, Dispatcher]] = {}
        # Sources that may have something to give, in the order in which that became so.
        self._stirred: dict[int, Dispatcher] = {}
        # Sources that may have dead messages which no consumer has.
        self.dying: dict[int, Source] = {}
        # Expired messages of queues that want those in the dead queue.
        self.dead_by_time: list[tuple[Queue, Ranges]] = []
        # Subscriptions with a selector: those that may have messages to skip; by destination, those without a
        # consumer; and of these, those that may have messages to evaluate (DLV12).
        self._selecting: dict[int, tuple[Source, Skips]] = {}
        self._skimmers: dict[int, dict[int, Skimmer]] = {}
        self._skimming: dict[int, Skimmer] = {}
        self._skim_all(directory)
        # Consumers whose drain is not answered (DLV8).
        self._draining: dict[ConsumerKey, Consumer] = {}
        # Log time, as it was told last; the sources of which messages wait for a time, or are in doubt.
        self._now = LogMoment()
        self._waiting: dict[int, Dispatcher] = {}
        self._in_doubt: dict[int, Dispatcher] = {}
        self._expiries = MessageExpiries(directory)
        self._streams = DeliveryStreams(term, settings, installed_at)
        self._gone: dict[ConsumerKey, None] = {}
        self._answers: list[Send] = []
        self._returns: list[SeenReturn] = []
        self._absences = Absences(absence_ns)
        self._repeats = Repeats(
            term=term,
            directory=directory,
            reader=reader,
            streams=self._streams,
            consumers=self._consumers,
            dispatchers=self._dispatchers,
            stir=self._stir,
        )

    # -- looking ---------------------------------------------------------------

    def consumer_count(self, destination: int) -> int:
        return sum(
            not consumer.is_away
            for dispatcher in self._dispatchers_of(destination)
            for consumer in dispatcher.consumers.values()
        )

    def in_flight_count(self, destination: int) -> int:
        return sum(dispatcher.in_flight for dispatcher in self._dispatchers_of(destination))

    def dispatcher(self, source: int) -> Dispatcher | None:
        return self._dispatchers.get(source)

    def consumers_of(self, source: int) -> list[ConsumerKey]:
        """The consumers of a source whose clients are there."""
        dispatcher = self._dispatchers.get(source)
        consumers = dispatcher.consumers.values() if dispatcher else ()
        return [consumer.key for consumer in consumers if not consumer.is_away]

    def consumers_after(self, after: str) -> list[tuple[str, Consumer]]:
        """The consumers whose clients are there, by their places, from behind `after`."""
        placed = [
            (f"{consumer.source:020}:{consumer.key.node:05}:{consumer.key.consumer:020}", consumer)
            for consumer in self._consumers.values()
            if not consumer.is_away
        ]
        return sorted([one for one in placed if one[0] > after], key=lambda one: one[0])

    def _dispatchers_of(self, destination: int) -> Iterable[Dispatcher]:
        return self._by_destination.get(destination, _NO_DISPATCHERS).values()

    def _dispatchers_with(self, destination: int) -> Iterable[Dispatcher]:
        """The dispatchers that have messages of a destination: its own, and those of its families."""
        own = self._dispatchers_of(destination)
        store = self._directory.get(destination)
        families = store.families if isinstance(store, Topic) else ()
        return chain(own, *[self._dispatchers_of(family.id) for family in families]) if families else own

    def next_deadline_ns(self, now_ns: int) -> int | None:
        has_ends = self._expiries.has_moved or bool(self._in_doubt)
        if self._answers or self._returns or (has_ends and not self.awaited):
            return now_ns
        stirred_ns = None
        if (self._stirred or self._skimming) and not self.awaited:
            stirred_ns = now_ns
        elif self.awaited and self.serves_at_ns is not None and self._has_work:
            stirred_ns = max(now_ns, self.serves_at_ns)
        earliest = stirred_ns
        for deadline_ns in (
            self._absences.next_deadline_ns(now_ns),
            self._streams.next_deadline_ns(now_ns),
        ):
            if deadline_ns is not None and (earliest is None or deadline_ns < earliest):
                earliest = deadline_ns
        return earliest

    @property
    def _has_work(self) -> bool:
        """Is there something to do as soon as this primary serves?"""
        is_stirred = bool(self._stirred or self._draining or self._in_doubt or self._skimming)
        return is_stirred or self._expiries.has_moved

    @property
    def due_ms(self) -> int | None:
        """The log time at which a message expires or may be given out, or before (DLV11)."""
        due = [dispatcher.ready.wakes_at_ms for dispatcher in self._waiting.values()]
        due.append(self._expiries.earliest_ms)
        return min([time_ms for time_ms in due if time_ms is not None], default=None)

    def announced(self, now_ns: int) -> None:
        """Begin the wait of DLV2: client managers can know of this term from now on."""
        if self.serves_at_ns is None:
            self.serves_at_ns = now_ns + self._registration_ns

    # -- client managers say -----------------------------------------------------

    def register(self, sender: int, message: Register, sessions: Sessions) -> None:
        """Attach a consumer, or refuse it with a reason (DLV4)."""
        if message.term != self._term:
            return
        key = ConsumerKey(sender, message.consumer)
        session = sessions.get(message.session)
        destination = self._directory.consumable(message.destination)
        source = self._directory.source(message.destination, message.subscription)
        if key in self._gone or self._is_superseded(key, message):
            self._refuse(key, ConsumerClosed.code, "the consumer was detached")
        elif session is None:
            self._refuse(
                key, SessionClosed.code, "the channel does not know the session; it may have expired"
            )
        elif session.generation == message.generation and session.owner == NOBODY:
            self._refuse(key, SESSION_DETACHED, "no client manager has the session")
        elif session.generation != message.generation or session.owner.pid != sender:
            self._refuse(key, SessionClosed.code, "the session has been resumed elsewhere")
        elif destination is None:
            self._refuse(key, NO_DESTINATION, "there is no such destination")
        elif not self._directory.temporaries.may_use(destination.id, session):
            text = "is temporary: only the connection that made it consumes it"
            self._refuse(key, NOT_SO, f"{destination.name} {text}")
        elif not isinstance(destination, Queue) and not message.subscription:
            self._refuse(key, NOT_SO, f"{destination.name} is a topic: a consumer needs a subscription")
        elif source is None or (
            isinstance(source, Subscription) and not source.belongs_to(session.id, session.client_id)
        ):
            self._refuse(key, NO_SUBSCRIPTION, f"{destination.name} has no such subscription")
        elif source.is_exclusive and self._has_other_consumer(source.id, key, message):
            self._refuse(key, SubscriptionInUse.code, f"{source.name}, has a consumer already")
        else:
            text = source.selector if isinstance(source, Subscription) else message.selector
            try:
                selector = compile_selector(text)
            except InvalidSelector as error:
                self._refuse(key, error.code, error.text)
            else:
                self._attach(key, message, source, session, selector if selector.text else None)

    def _has_other_consumer(self, source: int, key: ConsumerKey, message: Register) -> bool:
        """An absent consumer keeps no stranger out; a consumer that resumes is no stranger."""
        dispatcher = self._dispatchers.get(source)
        others = [other for other in dispatcher.consumers.values() if other.key != key] if dispatcher else []
        strangers = [other for other in others if not _is_former(other, message)]
        for other in strangers:
            if other.is_away:
                self._drop(other, None)
        return not all(other.is_away for other in strangers)

    def _is_superseded(self, key: ConsumerKey, message: Register) -> bool:
        other = self._by_number.get((message.session, message.number))
        return (
            other is not None
            and (other.generation, other.key.node) == (message.generation, key.node)
            and other.key.consumer > key.consumer
        )

    def _former(self, key: ConsumerKey, message: Register) -> Consumer | None:
        """The earlier attachment of a consumer that comes back, under any key."""
        known = self._consumers.get(key)
        if known is not None:
            return known if known.is_away else None
        return self._by_number.get((message.session, message.number)) if message.resumes else None

    def _attach(
        self,
        key: ConsumerKey,
        message: Register,
        source: Source,
        session: Session,
        selector: Selector | None,
    ) -> None:
        stream = self._streams.begin(key.node, session.owner.pe)
        consumer = self._consumers.get(key)
        if consumer is not None and (consumer.session, consumer.generation, consumer.source) != (
            message.session,
            message.generation,
            source.id,
        ):
            self._drop(consumer, None)
            consumer = None
        self._skim_no_more(source)
        dispatcher = self._dispatchers.get(source.id)
        if dispatcher is None:
            dispatcher = self._dispatchers[source.id] = Dispatcher(
                source,
                self._reader,
                self._claimed_after,
                self._locks,
                now=self._now,
                leaving=self._expiries.leaving(source.destination),
                channel=self._channel,
            )
            self._by_destination.setdefault(source.destination, {})[source.id] = dispatcher
        former = self._former(key, message)
        answer = Registered(consumer=key.consumer, term=self._term, stream=stream.run)
        if consumer is None or former is consumer:
            consumer = Consumer(
                key=key,
                session=message.session,
                generation=message.generation,
                destination=message.destination,
                subscription=message.subscription,
                number=message.number,
                stream=stream,
                selector=selector,
            )
            consumer.grant(message.credit_messages, message.credit_bytes)
            doubtful = self._doubtful(message, session, dispatcher) if message.held else Ranges()
            if former is not None and former.source == source.id:
                self._forget(former)
                dispatcher.come_back(former, consumer, message.held, doubtful)
            else:
                dispatcher.attach(consumer, message.held, doubtful)
            self._consumers[key] = consumer
            self._by_session.setdefault(message.session, {})[key] = consumer
            self._by_number[message.session, message.number] = consumer
            answer = replace(answer, lost=self._lost(message, consumer))
            self._answers.append(self._streams.number(stream, answer))
        else:
            # Repeated, because the answer was lost.
            consumer.grant(message.credit_messages, message.credit_bytes)
            dispatcher.look_at_credit(consumer)
            answer = replace(answer, lost=self._lost(message, consumer))
            self.answer(key.node, answer)
        self._stir(dispatcher)

    def _doubtful(self, message: Register, session: Session, dispatcher: Dispatcher) -> Ranges:
        """The held messages that others may have been given without the consumer's knowledge (DLV10)."""
        before, now = self._owners.get(session.id), session.ownership
        if before == now and not message.resumes:
            # Attached without a break since an earlier term.
            return Ranges()
        doubtful = dispatcher.given_to_others(message.held)
        if before is None or before == now:
            # The session had left its client manager when the term began, and a former primary gave what its
            # consumers had to others.
            through = self._claimed_after
        else:
            # A former primary kept what it gave to the consumer there. But messages from before the session
            # came there may be with others: perhaps the consumer was never attached there.
            through = before.moved_at
        doubtful.add_all(message.held.clip(0, through + 1))
        return doubtful

    def _lost(self, message: Register, consumer: Consumer) -> Ranges:
        return message.held.difference(consumer.in_flight)

    def _refuse(self, key: ConsumerKey, code: str, text: str) -> None:
        self.answer(key.node, Registered(consumer=key.consumer, term=self._term, code=code, text=text))

    def answer(self, node: int, message: Registered | Unregistered | SessionDetachedHeard) -> None:
        """Answer beside the stream: a client manager that misses the answer asks again."""
        self._answers.append(Send(node, message))

    def credit(self, sender: int, message: Credits) -> None:
        if message.term != self._term:
            return
        if message.is_settled and self.awaited:
            self.awaited = {session: node for session, node in self.awaited.items() if node != sender}
        if self._streams.heard(sender, message) is None:
            return
        for item in message.items:
            consumer = self._consumers.get(ConsumerKey(sender, item.consumer))
            if consumer is not None:
                consumer.grant(item.messages, item.bytes)
                if item.drains and consumer.drain(item.messages):
                    self._draining[consumer.key] = consumer
                dispatcher = self._dispatchers[consumer.source]
                dispatcher.look_at_credit(consumer)
                self._stir(dispatcher)

    def beaten(self, beat: int, answered: int) -> bool:
        return self._streams.beaten(beat, answered)

    @property
    def awaits_beat(self) -> bool:
        return any(stream.awaits_beat for stream in self._streams)

    def acknowledge(self, sender: int, message: DeliverAck) -> None:
        """Take a client manager's acknowledgement; its consumers that waited for room go on."""
        stream = self._streams.acknowledge(sender, message)
        if stream is None:
            return
        stopped, stream.stopped = stream.stopped, {}
        others, self._stirred = self._stirred, {}
        for consumer in stopped.values():
            dispatcher = self._dispatchers[consumer.source]
            dispatcher.look_at_credit(consumer)
            self._stir(dispatcher)
        # The room is for those that waited for it, before all others (DSP5).
        self._stirred |= others

    def unregister(self, sender: int, message: Unregister) -> None:
        if message.term != self._term:
            return
        key = ConsumerKey(sender, message.consumer)
        self.answer(sender, Unregistered(message.consumer, self._term))
        self._gone[key] = None
        if len(self._gone) > _GONE_REMEMBERED:
            del self._gone[next(iter(self._gone))]
        consumer = self._consumers.get(key)
        if consumer is None or consumer.is_away:
            # An absent consumer is waited for; its client manager forgot it, and asks after a late delivery.
            return
        if message.is_lost:
            self._suspend(consumer, message.seen_through)
        else:
            self._drop(consumer, message.seen_through, is_kept=True)
            if consumer.view is not None and consumer.view.share is not None:
                self._absences.add(consumer, None, is_closed=True)

    def _suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        if not consumer.is_away:
            dispatcher = self._dispatchers[consumer.source]
            self._absences.add(consumer, seen_through)
            self._draining.pop(consumer.key, None)
            dispatcher.suspend(consumer, seen_through)
            self._stir(dispatcher)

    # -- the log says --------------------------------------------------------------

    def note_rules(self, destination: int, start: int, stop: int) -> None:
        """Note that messages with delivery rules are about to be told by `published`."""
        self._expiries.published(destination, start, stop)

    def published(self, destination: int, start: int, stop: int) -> None:
        for dispatcher in self._by_destination.get(destination, _NO_DISPATCHERS).values():
            dispatcher.published(start, stop)
            self._stir(dispatcher)
        if destination in self._skimmers:
            self._skimming |= self._skimmers[destination]

    def acknowledged(self, source: int, numbers: Ranges, session: int) -> None:
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            if dispatcher.acknowledged(numbers, self._holders(source, session)):
                self._stir(dispatcher)
            if self._expiries.has_overdue:
                # Other subscriptions may have waited for the consumer of this one.
                self._expiries.moved(dispatcher.source.destination)

    def buried(self, source: Source, numbers: Ranges) -> None:
        """Take note of dead messages that left a source."""
        self._expiries.applied(source.destination, numbers)
        self.acknowledged(source.id, numbers, NODE_SESSION)

    def expired(self, destination: int, numbers: Ranges, gone: Mapping[int, Ranges]) -> None:
        """Take note of an EXPIRE of these numbers, and of those that left each source."""
        self._expiries.applied(destination, numbers)
        for source, left in gone.items():
            dispatcher = self._dispatchers.get(source)
            if dispatcher is not None and left and dispatcher.acknowledged(left, []):
                self._stir(dispatcher)

    def regained(self, subscription: int, numbers: Ranges) -> None:
        """Take note of messages, new or old, of topics that have joined the family of a subscription."""
        dispatcher = self._dispatchers.get(subscription)
        if dispatcher is not None:
            dispatcher.regained(numbers)
            self._stir(dispatcher)
        skimmer = self._skimmer(subscription)
        if skimmer is not None:
            skimmer.look_from(numbers.first)
            self._skimming[subscription] = skimmer

    def passed_over(self, subscription: int, numbers: Ranges) -> None:
        """Take note of messages that a subscription does not get, and of which it was told as published."""
        dispatcher = self._dispatchers.get(subscription)
        if dispatcher is not None and numbers:
            dispatcher.acknowledged(numbers, [])

    def skipped(self, subscription: int, numbers: Ranges, proposed: Ranges) -> None:
        """Take note of a SKIP of the proposed messages, of which these were still needed."""
        dispatcher = self._dispatchers.get(subscription)
        if dispatcher is not None:
            dispatcher.skipped(numbers, proposed)
            self._note_skips(dispatcher)
        skimmer = self._skimmer(subscription)
        if skimmer is not None:
            skimmer.skips.applied(proposed)
            self._selecting[subscription] = (skimmer.source, skimmer.skips)

    def _note_skips(self, dispatcher: Dispatcher) -> None:
        if dispatcher.skips is not None:
            self._selecting[dispatcher.source.id] = (dispatcher.source, dispatcher.skips)

    def _skim_all(self, directory: Directory) -> None:
        origins: Iterable[Topic | Family] = chain(directory.topics, directory.families)
        for origin in origins:
            for subscription in origin.subscriptions.values():
                self.skim(subscription)

    def skim(self, subscription: Subscription) -> None:
        """Evaluate the selector of a subscription that has no consumer, if it has one (DLV12)."""
        if not subscription.selector:
            return
        try:
            selector = compile_selector(subscription.selector)
        except InvalidSelector:
            # The client manager let pass what this version cannot read: a consumer is told.
            return
        skimmer = Skimmer(subscription, selector, self._channel)
        self._skimmers.setdefault(subscription.destination, {})[subscription.id] = skimmer
        self._skimming[subscription.id] = skimmer

    def _skimmer(self, subscription: int) -> Skimmer | None:
        found = self._directory.subscription(subscription) if self._skimmers else None
        return self._skimmers.get(found.destination, {}).get(subscription) if found else None

    def _skim_no_more(self, source: Source) -> None:
        skimmers = self._skimmers.get(source.destination)
        if skimmers is not None and skimmers.pop(source.id, None) is not None:
            self._skimming.pop(source.id, None)
            self._selecting.pop(source.id, None)
            if not skimmers:
                del self._skimmers[source.destination]

    def dropped(self, source: int, numbers: Ranges, gone: Ranges) -> None:
        """Take note of a DROP of these numbers, and of those that left the source."""
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.dropped(numbers, gone)
            self._keep_or_let_go(dispatcher)

    def returned(self, source: int, numbers: Ranges, session: int, *, is_counted: bool = False) -> None:
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.returned(numbers, self._holders(source, session), is_counted=is_counted)
            self._keep_or_let_go(dispatcher)

    def let_go(self, source: int, numbers: Ranges, session: int) -> None:
        """Take messages from a session's consumers that it acknowledged, and that are locked.

        A client manager that attaches consumers with these messages afterwards has not heard yet. When it
        has, it attaches them anew.
        """
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.let_go(numbers, self._holders(source, session))

    def locked(self, source: int, numbers: Ranges) -> None:
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.locked(numbers)

    def unlocked(self, source: int, numbers: Ranges) -> None:
        free = self._directory.subscription(source) or self._directory.source(source, 0)
        if free is not None and free.counts:
            self.dying[source] = free
        self._expiries.unlocked()
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.unlocked(numbers)
            self._stir(dispatcher)

    def _holders(self, source: int, session: int) -> list[Consumer]:
        consumers = self._by_session.get(session)
        if not consumers:
            return []
        return [consumer for consumer in consumers.values() if consumer.source == source]

    def client_manager_gone(self, node: int, before: int) -> None:
        self._streams.end(node, before)

    def session_lost(self, session: int) -> None:
        for consumer in list(self._by_session.get(session, {}).values()):
            if not consumer.is_away:
                self._suspend(consumer, None)
                self._tell_end(consumer, ConsumerClosed.code, "the session has left this client manager")

    def session_ended(self, session: int) -> None:
        self.awaited.pop(session, None)
        for consumer in self._absences.closed_by(session):
            self._part(consumer)
        for consumer in list(self._by_session.get(session, {}).values()):
            self._drop(consumer, None)
            if not consumer.is_away:
                self._tell_end(consumer, ConsumerClosed.code, "the session has ended")

    def destination_deleted(self, destination: int, why: str) -> None:
        for dispatcher in list(self._dispatchers_of(destination)):
            self._close(dispatcher, DELETED, why)
        for skimmer in list(self._skimmers.get(destination, {}).values()):
            self._skim_no_more(skimmer.source)
        self._expiries.deleted(destination)

    def left(self, subscription: Subscription, session: int) -> None:
        """A session has left a shared subscription that goes on without it."""
        for consumer in self._holders(subscription.id, session):
            self._drop(consumer, None)
            if not consumer.is_away:
                self._tell_end(consumer, UNSUBSCRIBED, f"{subscription.name}, was left")

    def subscription_ended(self, subscription: Subscription) -> None:
        self._skim_no_more(subscription)
        dispatcher = self._dispatchers.get(subscription.id)
        if dispatcher is not None:
            self._close(dispatcher, UNSUBSCRIBED, f"{subscription.name}, was ended")

    def _close(self, dispatcher: Dispatcher, code: str, text: str) -> None:
        """Forget the consumers of a source that is gone, and tell them; none of their messages comes back."""
        self._let_go(dispatcher)
        for consumer in list(dispatcher.consumers.values()):
            self._forget(consumer)
            if not consumer.is_away:
                self._tell_end(consumer, code, text)

    def _let_go(self, dispatcher: Dispatcher) -> None:
        source = dispatcher.source
        del self._dispatchers[source.id]
        self._expiries.moved(source.destination)
        self._stirred.pop(source.id, None)
        self._waiting.pop(source.id, None)
        self._selecting.pop(source.id, None)
        self._in_doubt.pop(source.id, None)
        of_destination = self._by_destination[source.destination]
        del of_destination[source.id]
        if not of_destination:
            del self._by_destination[source.destination]

    def _tell_end(self, consumer: Consumer, code: str, text: str) -> None:
        """End a consumer in its stream, behind its deliveries; the end of a stream ends its consumers."""
        stream = consumer.stream
        if stream is not None and self._streams.is_current(stream):
            ended = ConsumerEnded(consumer=consumer.key.consumer, term=self._term, code=code, text=text)
            self._answers.append(self._streams.number(stream, ended))

    def _drop(self, consumer: Consumer, seen_through: int | None, *, is_kept: bool = False) -> None:
        self._forget(consumer)
        dispatcher = self._dispatchers[consumer.source]
        seen = dispatcher.detach(consumer, seen_through, is_kept=is_kept)
        self._returns += [
            SeenReturn(destination=consumer.destination, subscription=consumer.subscription, numbers=part)
            for part in seen.parts(RANGES_AT_ONCE)
        ]
        self._expiries.moved(dispatcher.source.destination)
        self._note_dying(dispatcher)
        self._keep_or_let_go(dispatcher)

    def _keep_or_let_go(self, dispatcher: Dispatcher) -> None:
        """A source without consumers costs nothing per message, unless it has a selector (DLV12)."""
        if dispatcher.is_idle:
            self._let_go(dispatcher)
        else:
            self._stir(dispatcher)
        source = dispatcher.source
        if dispatcher.consumers or not isinstance(source, Subscription) or not source.selector:
            return
        if self._directory.subscription(source.id) is source and self._skimmer(source.id) is None:
            self.skim(source)

    def _part(self, consumer: Consumer) -> None:
        """The message groups of a consumer that was closed go to other sessions."""
        self._absences.remove(consumer)
        dispatcher = self._dispatchers.get(consumer.source)
        if dispatcher is not None:
            dispatcher.part(consumer)
            self._stir(dispatcher)

    def _forget(self, consumer: Consumer) -> None:
        self._absences.remove(consumer)
        if consumer.stream is not None:
            consumer.stream.stopped.pop(consumer.key, None)
        self._draining.pop(consumer.key, None)
        del self._consumers[consumer.key]
        if self._by_number.get((consumer.session, consumer.number)) is consumer:
            del self._by_number[consumer.session, consumer.number]
        of_session = self._by_session[consumer.session]
        del of_session[consumer.key]
        if not of_session:
            del self._by_session[consumer.session]

    def altered(self, destination: int) -> None:
        for dispatcher in self._dispatchers_with(destination):
            dispatcher.altered()
            self._stir(dispatcher)

    def _note_dying(self, dispatcher: Dispatcher) -> None:
        if dispatcher.dying:
            self.dying[dispatcher.source.id] = dispatcher.source

    def _stir(self, dispatcher: Dispatcher) -> None:
        self._note_dying(dispatcher)
        if dispatcher.can_go_on:
            self._stirred[dispatcher.source.id] = dispatcher
        if dispatcher.ready.waiting:
            self._waiting[dispatcher.source.id] = dispatcher
        if dispatcher.in_doubt:
            self._in_doubt[dispatcher.source.id] = dispatcher
        if dispatcher.has_expired:
            dispatcher.has_expired = False
            self._expiries.moved(dispatcher.source.destination)

    def mended(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.is_held_up = False
            self._stir(dispatcher)
        for skimmers in self._skimmers.values():
            for skimmer in skimmers.values():
                skimmer.is_held_up = False
            self._skimming |= skimmers

    # -- flushing ------------------------------------------------------------------

    def pass_time(self, now_ms: int) -> None:
        """Log time is this: messages wait no more, or are over (DLV11)."""
        now_ms = self._now.ms = max(now_ms, self._now.ms)
        for source, dispatcher in list(self._waiting.items()):
            wakes_at_ms = dispatcher.ready.wakes_at_ms
            if wakes_at_ms is None:
                del self._waiting[source]
                self._keep_or_let_go(dispatcher)
            elif wakes_at_ms <= now_ms:
                dispatcher.wake()
                self._keep_or_let_go(dispatcher)
        for destination, numbers in self._expiries.pass_time(now_ms).items():
            for dispatcher in self._dispatchers_with(destination):
                dispatcher.expire(numbers)

    def take_expired(self) -> list[ExpiredNumbers]:
        """The expired messages whose end is to be ordered now."""
        if self.awaited or not self._expiries.has_moved:
            # Consumers of an earlier term may hold some of them (DLV2).
            return []
        found = []
        for destination, numbers in self._expiries.take_moved():
            for dispatcher in self._dispatchers_with(destination):
                numbers = numbers.difference(dispatcher.held(numbers))
            locked = [self._locks[id] for id in self._sources_of(destination) if id in self._locks]
            for some in locked:
                numbers = numbers.difference(some)
            parts = self._expiries.propose(destination, numbers)
            store = self._directory.get(destination)
            if isinstance(store, Queue) and store.returns.dead_to == DEAD_AND_EXPIRED:
                self.dead_by_time += [(store, part) for part in parts]
                continue
            found += [ExpiredNumbers(destination=destination, numbers=part) for part in parts]
        return found

    def take_unwanted(self) -> list[UnwantedNumbers]:
        """The messages that subscriptions are to skip now (DLV12)."""
        selecting, self._selecting = self._selecting, {}
        found = []
        for id, (source, skips) in selecting.items():
            numbers = skips.take(source)
            if numbers:
                found.append(UnwantedNumbers(subscription=id, numbers=numbers))
        return found

    def take_doubtful(self) -> list[DoubtfulNumbers]:
        """The messages in doubt whose end is to be ordered now."""
        if self.awaited or not self._in_doubt:
            # Consumers of an earlier term may hold some of them (DLV2).
            return []
        dispatchers, self._in_doubt = self._in_doubt, {}
        found = []
        for dispatcher in dispatchers.values():
            source, numbers = dispatcher.source, dispatcher.drop()
            subscription = 0 if source.id == source.destination else source.id
            found += [
                DoubtfulNumbers(destination=source.destination, subscription=subscription, numbers=part)
                for part in numbers.parts(RANGES_AT_ONCE)
            ]
        return found

    def _sources_of(self, destination: int) -> Iterable[int]:
        store = self._directory.get(destination)
        return [one.id for one in store.sources] if isinstance(store, Topic) else (destination,)

    def flush(self, now_ns: int, bytes_max: int) -> tuple[list[Said], list[SeenReturn]]:
        """Answers, then deliveries of up to so many bytes; and the messages to return."""
        for absence in self._absences.take_due(now_ns):
            if absence.is_closed:
                self._part(absence.consumer)
            else:
                self._drop(absence.consumer, absence.seen_through)
        effects: list[Said] = list(self._answers)
        self._answers.clear()
        returns, self._returns = self._returns, []
        if self.awaited and self.serves_at_ns is not None and now_ns >= self.serves_at_ns:
            self.awaited = {}
        repeated, spent = self._repeats.flush(bytes_max)
        effects += repeated
        bytes_max -= spent
        if not self.awaited and self._stirred:
            bytes_max = self._give_out(effects, bytes_max)
        if not self.awaited and self._skimming:
            self._skim(bytes_max)
        if self._draining and not self.awaited:
            effects += self._drain()
        effects += self._streams.heads(now_ns)
        return effects, returns

    def _skim(self, bytes_max: int) -> None:
        while self._skimming and bytes_max > 0:
            skimmer = self._skimming.pop(next(iter(self._skimming)))
            bytes_max -= skimmer.skim(self._reader, bytes_max // WORK_BYTES + 1) * WORK_BYTES
            self._selecting[skimmer.source.id] = (skimmer.source, skimmer.skips)
            if skimmer.has_more:
                self._skimming[skimmer.source.id] = skimmer

    def _give_out(self, effects: list[Said], bytes_max: int) -> int:
        """Give out in rounds: in each a source has one turn, and equal parcels are put together.

        Returns the bytes that are left.
        """
        round_ = self._round
        while self._stirred and bytes_max > 0:
            dispatcher = self._stirred.pop(next(iter(self._stirred)))
            source = dispatcher.source
            if round_.had_turn(source.id):
                effects += round_.end()
            parcels, spent, complaints = dispatcher.distribute(bytes_max)
            if dispatcher.skips is not None:
                self._note_skips(dispatcher)
            bytes_max -= spent
            effects += [Alarm(BATCH_UNREADABLE(problem=problem)) for problem in complaints]
            # A queue is the only source of its messages; subscriptions of a topic share theirs.
            round_.add(source.id, parcels, is_shared=len(self._by_destination[source.destination]) > 1)
            self._stir(dispatcher)
        effects += round_.end()
        return bytes_max

    def _drain(self) -> list[Send]:
        """Answer the drains of consumers for which nothing is left (DLV8)."""
        told = []
        for consumer in list(self._draining.values()):
            dispatcher, stream = self._dispatchers[consumer.source], consumer.stream
            if dispatcher.has_more_for(consumer):
                continue
            del self._draining[consumer.key]
            through = dispatcher.use_up(consumer)
            if stream is not None and self._streams.is_current(stream):
                told.append(self._streams.number(stream, Drained(consumer.key.consumer, self._term, through)))
        return told


def _is_former(other: Consumer, message: Register) -> bool:
    return message.resumes and (other.session, other.number) == (message.session, message.number)
