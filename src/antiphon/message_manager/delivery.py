"""Delivery: the primary's hand. Attached consumers, what they are given, and what comes back.

Where it sits
    queue, subscription  ->  dispatcher  ->  DELIVERY  ->  client managers

What it promises
    Y1  Exists only at the primary and only for one term; nothing in it is needed after the term.
    Y2  After a claim it waits for the client managers to attach their consumers with what these hold,
        or a short while, before it gives out anything: a failover does not hand out again what
        living consumers still hold.
    Y3  What a consumer saw and did not acknowledge is given to nobody before its return is ordered.
    Y4  A registration is answered, whatever is wrong with it.
    Y5  Every subscription of a topic has a dispatcher of its own: what one subscriber does not take
        holds up no other.
    Y6  What a consumer holds whose client was lost is given to nobody else for a short while (absences),
        and stays with it if it comes back by then.

What it leaves to others
    Who may consume is the client manager's business, in what order the fold's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from antiphon.bus.effects import Alarm, Send
from antiphon.bus.messages import (
    ConsumerEnded,
    CreditUpdate,
    Deliver,
    Piece,
    Register,
    Registered,
    Unregister,
)
from antiphon.errors import ConsumerClosed, SessionClosed, SubscriptionInUse
from antiphon.message_manager.absences import Absences
from antiphon.message_manager.consumers import Consumer, ConsumerKey
from antiphon.message_manager.destinations.directory import Directory
from antiphon.message_manager.destinations.source import Source
from antiphon.message_manager.destinations.subscription import Subscription
from antiphon.message_manager.destinations.topic import Topic
from antiphon.message_manager.dispatcher import Dispatcher, Parcel
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.sessions import Session, Sessions
from antiphon.ranges import Ranges

NO_DESTINATION: Final = "destination.unknown"
NOT_SO: Final = "destination.refused"
DELETED: Final = "destination.deleted"
NO_SUBSCRIPTION: Final = "subscription.unknown"
UNSUBSCRIBED: Final = "subscription.deleted"

_NO_DISPATCHERS: Final[dict[int, Dispatcher]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReturn:
    """Messages that a departed consumer saw: to be given back, counted."""

    destination: int
    subscription: int
    numbers: Ranges


class Delivery:
    """What the primary of a channel knows of the consumers in its term."""

    __slots__ = (
        "_absences",
        "_answers",
        "_by_destination",
        "_by_session",
        "_claimed_after",
        "_consumers",
        "_deliver_bytes_max",
        "_dispatchers",
        "_reader",
        "_returns",
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
        deliver_bytes_max: int,
        serves_at_ns: int,
        awaited: list[int],
        absence_ns: int = 0,
    ) -> None:
        self._term = term
        self._claimed_after = claimed_after
        self._reader = reader
        self._deliver_bytes_max = deliver_bytes_max
        self.serves_at_ns = serves_at_ns
        # Sessions whose client managers may hold messages of an earlier term (Y2). A dict for its order.
        self.awaited = dict.fromkeys(awaited)
        self._consumers: dict[ConsumerKey, Consumer] = {}
        self._by_session: dict[int, dict[ConsumerKey, Consumer]] = {}
        # By the id of the source; and those of one destination together.
        self._dispatchers: dict[int, Dispatcher] = {}
        self._by_destination: dict[int, dict[int, Dispatcher]] = {}
        # Sources where something may be given now, in the order in which that became so.
        self._stirred: dict[int, Dispatcher] = {}
        # The number of the last message to each client manager: a gap in them is a loss on the way.
        self._streams: dict[int, int] = {}
        self._answers: list[Send] = []
        self._returns: list[SeenReturn] = []
        self._absences = Absences(absence_ns)

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
        """The sessions whose consumers are attached to a queue or a subscription."""
        dispatcher = self._dispatchers.get(source)
        consumers = dispatcher.consumers.values() if dispatcher else ()
        return [consumer.session for consumer in consumers if not consumer.is_away]

    def _dispatchers_of(self, destination: int) -> Iterable[Dispatcher]:
        return self._by_destination.get(destination, _NO_DISPATCHERS).values()

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When to flush without anything having happened: what one flush left over, or the wait is over."""
        if self._answers or self._returns:
            return now_ns
        deadline_ns = self._absences.next_deadline_ns(now_ns)
        if self._stirred:
            stirred_ns = self.serves_at_ns if self.awaited and self.serves_at_ns > now_ns else now_ns
            return stirred_ns if deadline_ns is None else min(deadline_ns, stirred_ns)
        return deadline_ns

    # -- client managers say -----------------------------------------------------

    def register(self, sender: int, message: Register, directory: Directory, sessions: Sessions) -> None:
        """Attach a consumer, or say why not (Y4)."""
        key = ConsumerKey(sender, message.consumer)
        session = sessions.get(message.session)
        destination = directory.get(message.destination)
        source = directory.source(message.destination, message.subscription)
        if session is None:
            self._refuse(
                key, SessionClosed.code, "the channel does not know the session; it may have expired"
            )
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
            self._attach(key, message, source)

    def _has_other_consumer(self, source: int, key: ConsumerKey, message: Register) -> bool:
        """Who is away keeps nobody out: its place is taken."""
        dispatcher = self._dispatchers.get(source)
        others = [other for other in dispatcher.consumers.values() if other.key != key] if dispatcher else []
        for other in others:
            if other.is_away and (other.session, other.number) != (message.session, message.number):
                self._drop(other, None)
        return not all(other.is_away for other in others)

    def _attach(self, key: ConsumerKey, message: Register, source: Source) -> None:
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
            dispatcher = self._dispatchers[source.id] = Dispatcher(source, self._claimed_after)
            self._by_destination.setdefault(source.destination, {})[source.id] = dispatcher
        if consumer is None:
            consumer = Consumer(
                key=key,
                session=message.session,
                generation=message.generation,
                destination=message.destination,
                subscription=message.subscription,
                number=message.number,
            )
            consumer.grant(message.credit_messages, message.credit_bytes)
            former = self._absences.find(message.session, message.number) if message.resumes else None
            if former is not None and former.source == source.id:
                self._forget(former)
                dispatcher.come_back(former, consumer, message.held)
            else:
                dispatcher.attach(consumer, message.held)
            self._consumers[key] = consumer
            self._by_session.setdefault(message.session, {})[key] = consumer
        else:
            # Said again because our answer was lost.
            consumer.grant(message.credit_messages, message.credit_bytes)
            dispatcher.look_at_credit(consumer)
        lost = message.held.difference(consumer.in_flight)
        self._answers.append(Send(key.node, Registered(consumer=key.consumer, term=self._term, lost=lost)))
        self._stir(dispatcher)

    def _refuse(self, key: ConsumerKey, code: str, text: str) -> None:
        answer = Registered(consumer=key.consumer, term=self._term, code=code, text=text)
        self._answers.append(Send(key.node, answer))

    def credit(self, sender: int, message: CreditUpdate) -> None:
        consumer = self._consumers.get(ConsumerKey(sender, message.consumer))
        if consumer is not None:
            consumer.grant(message.messages, message.bytes)
            dispatcher = self._dispatchers[consumer.source]
            dispatcher.look_at_credit(consumer)
            self._stir(dispatcher)

    def unregister(self, sender: int, message: Unregister) -> None:
        consumer = self._consumers.get(ConsumerKey(sender, message.consumer))
        if consumer is None:
            return
        if message.is_lost:
            self._suspend(consumer, message.seen_through)
        else:
            self._drop(consumer, message.seen_through)

    def _suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        """Its client was lost, and may come back (Y6)."""
        if not consumer.is_away:
            dispatcher = self._dispatchers[consumer.source]
            self._absences.add(consumer, seen_through)
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

    def _holders(self, source: int, session: int) -> list[Consumer]:
        consumers = self._by_session.get(session)
        if not consumers:
            return []
        return [consumer for consumer in consumers.values() if consumer.source == source]

    def session_lost(self, session: int) -> None:
        """The session was resumed elsewhere, or its client manager is gone: its consumers may come back."""
        for consumer in list(self._by_session.get(session, {}).values()):
            if not consumer.is_away:
                self._suspend(consumer, None)
                self._tell_end(consumer, ConsumerClosed.code, "the session has left this client manager")

    def session_ended(self, session: int) -> None:
        """The session was closed or has expired: its consumers are void."""
        self.awaited.pop(session, None)
        for consumer in list(self._by_session.get(session, {}).values()):
            self._drop(consumer, None)
            if not consumer.is_away:
                self._tell_end(consumer, ConsumerClosed.code, "the session has ended")

    def destination_deleted(self, destination: int, name: str) -> None:
        for dispatcher in list(self._dispatchers_of(destination)):
            self._close(dispatcher, DELETED, f"{name} was deleted")

    def subscription_ended(self, subscription: Subscription) -> None:
        """It was ended, or its session was."""
        dispatcher = self._dispatchers.get(subscription.id)
        if dispatcher is not None:
            self._close(dispatcher, UNSUBSCRIBED, f"{subscription.name}, was ended")

    def _close(self, dispatcher: Dispatcher, code: str, text: str) -> None:
        """What it gives out of is no more: its consumers are told, and nothing of theirs comes back."""
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
        ended = ConsumerEnded(consumer=consumer.key.consumer, term=self._term, code=code, text=text)
        self._answers.append(Send(consumer.key.node, ended))

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
        del self._consumers[consumer.key]
        of_session = self._by_session[consumer.session]
        del of_session[consumer.key]
        if not of_session:
            del self._by_session[consumer.session]

    def _stir(self, dispatcher: Dispatcher) -> None:
        if dispatcher.can_go_on:
            self._stirred[dispatcher.source.id] = dispatcher

    def mended(self) -> None:
        """A damaged record can be read again: whoever waited for it goes on."""
        for dispatcher in self._dispatchers.values():
            dispatcher.is_held_up = False
            self._stir(dispatcher)

    # -- flushing ------------------------------------------------------------------

    def flush(self, now_ns: int, bytes_max: int) -> tuple[list[Send | Alarm], list[SeenReturn]]:
        """Answers first, then deliveries of up to so many bytes; and what has to be given back."""
        for absence in self._absences.take_due(now_ns):
            self._drop(absence.consumer, absence.seen_through)
        effects: list[Send | Alarm] = list(self._answers)
        self._answers.clear()
        returns, self._returns = self._returns, []
        if self.awaited and now_ns >= self.serves_at_ns:
            self.awaited.clear()
        if not self.awaited:
            while self._stirred and bytes_max > 0:
                dispatcher = self._stirred.pop(next(iter(self._stirred)))
                parcels, spent, complaints = dispatcher.distribute(self._reader, bytes_max)
                bytes_max -= spent
                effects += map(Alarm, complaints)
                for parcel in parcels:
                    self._wrap(parcel, effects)
                self._stir(dispatcher)
        return effects, returns

    def _wrap(self, parcel: Parcel, effects: list[Send | Alarm]) -> None:
        """One or more Deliver messages, none larger than a frame may be."""
        first_delivery = parcel.first_delivery
        pieces: list[Piece] = []
        size = 0
        for piece in parcel.pieces:
            piece_size = sum(map(len, piece.buffers))
            if pieces and size + piece_size > self._deliver_bytes_max:
                first_delivery = self._send(parcel.consumer, first_delivery, pieces, effects)
                pieces, size = [], 0
            pieces.append(piece)
            size += piece_size
        self._send(parcel.consumer, first_delivery, pieces, effects)

    def _send(
        self, consumer: Consumer, first_delivery: int, pieces: list[Piece], effects: list[Send | Alarm]
    ) -> int:
        node = consumer.key.node
        number = self._streams[node] = self._streams.get(node, 0) + 1
        deliver = Deliver(
            self._term, number, consumer.key.consumer, consumer.destination, first_delivery, tuple(pieces)
        )
        effects.append(Send(node, deliver))
        return first_delivery + sum(piece.count for piece in pieces)


def _may_attach(session: Session, subscription: Subscription) -> bool:
    """A durable subscription is its client id's, any other its session's."""
    if subscription.is_durable:
        return subscription.client_id == session.client_id
    return subscription.session == session.id
