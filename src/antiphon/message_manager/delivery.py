"""Delivery: the primary's hand. Attached consumers, what they are given, and what comes back.

Where it sits
    queue  ->  dispatcher  ->  DELIVERY  ->  client managers

What it promises
    Y1  Exists only at the primary and only for one term; nothing in it is needed after the term.
    Y2  After a claim it waits for the client managers to attach their consumers with what these hold,
        or a short while, before it gives out anything: a failover does not hand out again what
        living consumers still hold.
    Y3  What a consumer saw and did not acknowledge is given to nobody before its return is ordered.
    Y4  A registration is answered, whatever is wrong with it.

What it leaves to others
    Who may consume is the client manager's business, in what order the fold's.
"""

from __future__ import annotations

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
from antiphon.errors import ConsumerClosed, SessionClosed
from antiphon.message_manager.consumers import Consumer, ConsumerKey
from antiphon.message_manager.destinations.queue import Queue
from antiphon.message_manager.dispatcher import Dispatcher, Parcel
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.sessions import Session
from antiphon.ranges import Ranges

NO_DESTINATION: Final = "destination.unknown"
DELETED: Final = "destination.deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReturn:
    """Messages of a queue that a departed consumer saw: to be given back, counted."""

    destination: int
    numbers: Ranges


class Delivery:
    """What the primary of a channel knows of the consumers in its term."""

    __slots__ = (
        "_answers",
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
        self._dispatchers: dict[int, Dispatcher] = {}
        # Queues where something may be given now, in the order in which that became so.
        self._stirred: dict[int, Dispatcher] = {}
        # The number of the last message to each client manager: a gap in them is a loss on the way.
        self._streams: dict[int, int] = {}
        self._answers: list[Send] = []
        self._returns: list[SeenReturn] = []

    # -- looking ---------------------------------------------------------------

    def consumer_count(self, destination: int) -> int:
        dispatcher = self._dispatchers.get(destination)
        return len(dispatcher.consumers) if dispatcher else 0

    def in_flight_count(self, destination: int) -> int:
        dispatcher = self._dispatchers.get(destination)
        return dispatcher.in_flight if dispatcher else 0

    def dispatcher(self, destination: int) -> Dispatcher | None:
        return self._dispatchers.get(destination)

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When to flush without anything having happened: what one flush left over, or the wait is over."""
        if self._answers or self._returns:
            return now_ns
        if self._stirred:
            return self.serves_at_ns if self.awaited and self.serves_at_ns > now_ns else now_ns
        return None

    # -- client managers say -----------------------------------------------------

    def register(self, sender: int, message: Register, session: Session | None, queue: Queue | None) -> None:
        """Attach a consumer, or say why not (Y4)."""
        key = ConsumerKey(sender, message.consumer)
        if session is None:
            self._refuse(
                key, SessionClosed.code, "the channel does not know the session; it may have expired"
            )
        elif session.generation != message.generation or session.owner.pid != sender:
            self._refuse(key, SessionClosed.code, "the session has been resumed elsewhere")
        elif queue is None:
            self._refuse(key, NO_DESTINATION, "there is no such destination")
        else:
            self._attach(key, message, queue)

    def _attach(self, key: ConsumerKey, message: Register, queue: Queue) -> None:
        consumer = self._consumers.get(key)
        if consumer is not None and (consumer.session, consumer.generation, consumer.destination) != (
            message.session,
            message.generation,
            message.destination,
        ):
            self._drop(consumer, None)
            consumer = None
        dispatcher = self._dispatchers.get(queue.id)
        if dispatcher is None:
            dispatcher = self._dispatchers[queue.id] = Dispatcher(queue, self._claimed_after)
        if consumer is None:
            consumer = Consumer(
                key=key,
                session=message.session,
                generation=message.generation,
                destination=message.destination,
            )
            consumer.grant(message.credit_messages, message.credit_bytes)
            self._consumers[key] = consumer
            self._by_session.setdefault(message.session, {})[key] = consumer
            dispatcher.attach(consumer, message.held)
        else:
            # Said again because our answer was lost.
            consumer.grant(message.credit_messages, message.credit_bytes)
            dispatcher.look_at_credit(consumer)
        self._answers.append(Send(key.node, Registered(consumer=key.consumer, term=self._term)))
        self._stir(dispatcher)

    def _refuse(self, key: ConsumerKey, code: str, text: str) -> None:
        answer = Registered(consumer=key.consumer, term=self._term, code=code, text=text)
        self._answers.append(Send(key.node, answer))

    def credit(self, sender: int, message: CreditUpdate) -> None:
        consumer = self._consumers.get(ConsumerKey(sender, message.consumer))
        if consumer is not None:
            consumer.grant(message.messages, message.bytes)
            dispatcher = self._dispatchers[consumer.destination]
            dispatcher.look_at_credit(consumer)
            self._stir(dispatcher)

    def unregister(self, sender: int, message: Unregister) -> None:
        consumer = self._consumers.get(ConsumerKey(sender, message.consumer))
        if consumer is not None:
            self._drop(consumer, message.seen_through)

    # -- the log says --------------------------------------------------------------

    def published(self, destination: int, start: int, stop: int) -> None:
        dispatcher = self._dispatchers.get(destination)
        if dispatcher is not None:
            dispatcher.published(start, stop)
            self._stir(dispatcher)

    def acknowledged(self, destination: int, numbers: Ranges, session: int) -> None:
        dispatcher = self._dispatchers.get(destination)
        if dispatcher is not None:
            dispatcher.acknowledged(numbers, self._holders(destination, session))

    def returned(self, destination: int, numbers: Ranges, session: int) -> None:
        dispatcher = self._dispatchers.get(destination)
        if dispatcher is not None:
            dispatcher.returned(numbers, self._holders(destination, session))
            self._stir(dispatcher)

    def _holders(self, destination: int, session: int) -> list[Consumer]:
        consumers = self._by_session.get(session)
        if not consumers:
            return []
        return [consumer for consumer in consumers.values() if consumer.destination == destination]

    def session_left(self, session: int) -> None:
        """The session was detached, resumed elsewhere, closed or expired: its consumers are void."""
        self.awaited.pop(session, None)
        for consumer in list(self._by_session.get(session, {}).values()):
            self._drop(consumer, None)
            self._tell_end(consumer, ConsumerClosed.code, "the session has left this client manager")

    def destination_deleted(self, queue: Queue) -> None:
        dispatcher = self._dispatchers.pop(queue.id, None)
        if dispatcher is None:
            return
        self._stirred.pop(queue.id, None)
        for consumer in list(dispatcher.consumers.values()):
            self._forget(consumer)
            self._tell_end(consumer, DELETED, f"{queue.name} was deleted")

    def _tell_end(self, consumer: Consumer, code: str, text: str) -> None:
        ended = ConsumerEnded(consumer=consumer.key.consumer, term=self._term, code=code, text=text)
        self._answers.append(Send(consumer.key.node, ended))

    def _drop(self, consumer: Consumer, seen_through: int | None) -> None:
        self._forget(consumer)
        dispatcher = self._dispatchers[consumer.destination]
        seen = dispatcher.detach(consumer, seen_through)
        if seen:
            self._returns.append(SeenReturn(destination=consumer.destination, numbers=seen))
        if dispatcher.is_idle:
            # A queue without consumers costs nothing per message.
            del self._dispatchers[consumer.destination]
            self._stirred.pop(consumer.destination, None)
        else:
            self._stir(dispatcher)

    def _forget(self, consumer: Consumer) -> None:
        del self._consumers[consumer.key]
        of_session = self._by_session[consumer.session]
        del of_session[consumer.key]
        if not of_session:
            del self._by_session[consumer.session]

    def _stir(self, dispatcher: Dispatcher) -> None:
        if dispatcher.can_go_on:
            self._stirred[dispatcher.queue.id] = dispatcher

    # -- flushing ------------------------------------------------------------------

    def flush(self, now_ns: int, bytes_max: int) -> tuple[list[Send | Alarm], list[SeenReturn]]:
        """Answers first, then deliveries of up to so many bytes; and what has to be given back."""
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
