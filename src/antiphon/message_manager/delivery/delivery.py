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

What it leaves to others
    The client manager decides who may consume, the fold decides the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
from antiphon.errors import ConsumerClosed, SessionClosed, SubscriptionInUse
from antiphon.message_manager.delivery.absences import Absences
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.repeats import Repeats
from antiphon.message_manager.delivery.rounds import Round
from antiphon.message_manager.delivery.streams import DeliveryStreams
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.source import Source
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import NOBODY, Owner, Session, Sessions
from antiphon.ranges import Ranges

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


class Delivery:
    """The consumers of a channel in one term of its primary."""

    __slots__ = (
        "_absences",
        "_answers",
        "_by_destination",
        "_by_number",
        "_by_session",
        "_claimed_after",
        "_consumers",
        "_directory",
        "_dispatchers",
        "_draining",
        "_gone",
        "_locks",
        "_owners",
        "_reader",
        "_registration_ns",
        "_repeats",
        "_returns",
        "_round",
        "_stirred",
        "_streams",
        "_term",
        "awaited",
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
        owners: dict[int, tuple[int, Owner]],
        absence_ns: int = 0,
        locks: Mapping[int, Ranges] = _NO_LOCKS,
    ) -> None:
        self._term = term
        self._claimed_after = claimed_after
        self._reader = reader
        self._directory = directory
        self._locks = locks
        self._round = Round(term, settings.deliver_bytes_max)
        # How long consumers of an earlier term are waited for, and until when; the wait begins when client
        # managers can know of this term (DLV2).
        self._registration_ns = registration_ns
        self.serves_at_ns: int | None = None
        # The sessions that had a client manager when the term began: their generations and owners (DLV10).
        self._owners = owners
        # Sessions that may hold messages of an earlier term, with the nodes of their client managers (DLV2).
        self.awaited = {session: owner.pid for session, (_, owner) in owners.items()}
        self._consumers: dict[ConsumerKey, Consumer] = {}
        self._by_session: dict[int, dict[ConsumerKey, Consumer]] = {}
        # By session and client's number: the consumer that was attached last.
        self._by_number: dict[tuple[int, int], Consumer] = {}
        # By source, and by destination and source.
        self._dispatchers: dict[int, Dispatcher] = {}
        self._by_destination: dict[int, dict[int, Dispatcher]] = {}
        # Sources that may have something to give, in the order in which that became so.
        self._stirred: dict[int, Dispatcher] = {}
        # Consumers whose drain is not answered (DLV8).
        self._draining: dict[ConsumerKey, Consumer] = {}
        self._streams = DeliveryStreams(term, settings)
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

    def sessions_at(self, source: int) -> list[int]:
        dispatcher = self._dispatchers.get(source)
        consumers = dispatcher.consumers.values() if dispatcher else ()
        return [consumer.session for consumer in consumers if not consumer.is_away]

    def _dispatchers_of(self, destination: int) -> Iterable[Dispatcher]:
        return self._by_destination.get(destination, _NO_DISPATCHERS).values()

    def next_deadline_ns(self, now_ns: int) -> int | None:
        if self._answers or self._returns:
            return now_ns
        stirred_ns = None
        if self._stirred and not self.awaited:
            stirred_ns = now_ns
        elif (self._stirred or self._draining) and self.serves_at_ns is not None and self.awaited:
            stirred_ns = max(now_ns, self.serves_at_ns)
        earliest = stirred_ns
        for deadline_ns in (
            self._absences.next_deadline_ns(now_ns),
            self._streams.next_deadline_ns(now_ns),
        ):
            if deadline_ns is not None and (earliest is None or deadline_ns < earliest):
                earliest = deadline_ns
        return earliest

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
        destination = self._directory.get(message.destination)
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
        elif isinstance(destination, Topic) and not message.subscription:
            self._refuse(key, NOT_SO, f"{destination.name} is a topic: a consumer needs a subscription")
        elif source is None or (isinstance(source, Subscription) and not _may_attach(session, source)):
            self._refuse(key, NO_SUBSCRIPTION, f"{destination.name} has no such subscription")
        elif source.is_exclusive and self._has_other_consumer(source.id, key, message):
            self._refuse(key, SubscriptionInUse.code, f"{source.name}, has a consumer already")
        else:
            self._attach(key, message, source, session)

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

    def _attach(self, key: ConsumerKey, message: Register, source: Source, session: Session) -> None:
        stream = self._streams.begin(key.node, session.owner.pe)
        consumer = self._consumers.get(key)
        if consumer is not None and (consumer.session, consumer.generation, consumer.source) != (
            message.session,
            message.generation,
            source.id,
        ):
            self._drop(consumer, None)
            consumer = None
        dispatcher = self._dispatchers.get(source.id)
        if dispatcher is None:
            dispatcher = self._dispatchers[source.id] = Dispatcher(source, self._claimed_after, self._locks)
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
        before, now = self._owners.get(session.id), (session.generation, session.owner)
        if before == now and not message.resumes:
            # Attached without a break since an earlier term.
            return Ranges()
        doubtful = dispatcher.given_to_others(message.held)
        if before is None or before == now:
            # The session had left its client manager when the term began, and a former primary gave what its
            # consumers had to others.
            doubtful.add_all(message.held.clip(0, self._claimed_after + 1))
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
            self._drop(consumer, message.seen_through)

    def _suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        if not consumer.is_away:
            dispatcher = self._dispatchers[consumer.source]
            self._absences.add(consumer, seen_through)
            self._draining.pop(consumer.key, None)
            dispatcher.suspend(consumer, seen_through)
            self._stir(dispatcher)

    # -- the log says --------------------------------------------------------------

    def published(self, destination: int, start: int, stop: int) -> None:
        for dispatcher in self._by_destination.get(destination, _NO_DISPATCHERS).values():
            dispatcher.published(start, stop)
            self._stir(dispatcher)

    def acknowledged(self, source: int, numbers: Ranges, session: int) -> None:
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.acknowledged(numbers, self._holders(source, session))

    def returned(self, source: int, numbers: Ranges, session: int) -> None:
        dispatcher = self._dispatchers.get(source)
        if dispatcher is not None:
            dispatcher.returned(numbers, self._holders(source, session))
            self._stir(dispatcher)

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
        for consumer in list(self._by_session.get(session, {}).values()):
            self._drop(consumer, None)
            if not consumer.is_away:
                self._tell_end(consumer, ConsumerClosed.code, "the session has ended")

    def destination_deleted(self, destination: int, name: str) -> None:
        for dispatcher in list(self._dispatchers_of(destination)):
            self._close(dispatcher, DELETED, f"{name} was deleted")

    def subscription_ended(self, subscription: Subscription) -> None:
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
        self._stirred.pop(source.id, None)
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

    def _drop(self, consumer: Consumer, seen_through: int | None) -> None:
        self._forget(consumer)
        dispatcher = self._dispatchers[consumer.source]
        seen = dispatcher.detach(consumer, seen_through)
        if seen:
            self._returns.append(
                SeenReturn(destination=consumer.destination, subscription=consumer.subscription, numbers=seen)
            )
        if dispatcher.is_idle:
            # A source without consumers costs nothing per message.
            self._let_go(dispatcher)
        else:
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

    def _stir(self, dispatcher: Dispatcher) -> None:
        if dispatcher.can_go_on:
            self._stirred[dispatcher.source.id] = dispatcher

    def mended(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.is_held_up = False
            self._stir(dispatcher)

    # -- flushing ------------------------------------------------------------------

    def flush(self, now_ns: int, bytes_max: int) -> tuple[list[Said], list[SeenReturn]]:
        """Answers, then deliveries of up to so many bytes; and the messages to return."""
        for absence in self._absences.take_due(now_ns):
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
            self._give_out(effects, bytes_max)
        if self._draining and not self.awaited:
            effects += self._drain()
        effects += self._streams.heads(now_ns)
        return effects, returns

    def _give_out(self, effects: list[Said], bytes_max: int) -> None:
        """Give out in rounds: in each a source has one turn, and equal parcels are put together."""
        round_ = self._round
        while self._stirred and bytes_max > 0:
            dispatcher = self._stirred.pop(next(iter(self._stirred)))
            source = dispatcher.source
            if round_.had_turn(source.id):
                effects += round_.end()
            parcels, spent, complaints = dispatcher.distribute(self._reader, bytes_max)
            bytes_max -= spent
            effects += map(Alarm, complaints)
            # A queue is the only source of its messages; subscriptions of a topic share theirs.
            round_.add(source.id, parcels, is_shared=len(self._by_destination[source.destination]) > 1)
            self._stir(dispatcher)
        effects += round_.end()

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


def _may_attach(session: Session, subscription: Subscription) -> bool:
    """A durable subscription belongs to its client id, any other to its session."""
    if subscription.is_durable:
        return subscription.client_id == session.client_id
    return subscription.session == session.id
