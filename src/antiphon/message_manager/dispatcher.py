"""Dispatcher: which consumer of one queue gets which messages.

Where it sits
    queue  ->  DISPATCHER  ->  delivery  ->  client manager

What it promises
    D1  live = ready + in flight, without overlap: a message is with one consumer, or with nobody
        because its return is being ordered, or it is ready.
    D2  What is ready goes out in the order of its numbers, also what came back.
    D3  Consumers with credit take turns, and nobody takes more than an equal part of what is ready.

What it leaves to others
    All of this is forgotten when the primary changes: what must survive (acknowledgements and counted
    returns) is ordered, and reaches us through the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.bus.messages import Piece
from antiphon.errors import ProtocolError
from antiphon.message_manager.consumers import Consumer, ConsumerKey
from antiphon.message_manager.destinations.queue import Queue
from antiphon.message_manager.reading import BatchReader
from antiphon.ranges import Ranges


@dataclass(slots=True)
class Parcel:
    """What one consumer gets at once."""

    consumer: Consumer
    first_delivery: int
    pieces: list[Piece] = field(default_factory=list)


class Dispatcher:
    """The consumers of one queue and what is ready for them."""

    __slots__ = ("_able", "consumers", "given_before", "queue", "ready", "returning", "unreadable")

    def __init__(self, queue: Queue, claimed_after: int = 0) -> None:
        self.queue = queue
        self.ready = queue.live.copy()
        # In flight to nobody: seen by a consumer that is gone, to be ready once their return is ordered.
        self.returning = Ranges()
        # Given to a consumer that ended without telling what it saw; or published before this term began,
        # and then an earlier primary may have given it to anybody. Told as redelivered, but not counted: a
        # failover is nobody's fault.
        self.given_before = queue.live.clip(0, claimed_after + 1)
        # Batches that do not decode. They stay where they are, and hold up nobody.
        self.unreadable = Ranges()
        self.consumers: dict[ConsumerKey, Consumer] = {}
        # Those with credit, whose turn is next first.
        self._able: dict[ConsumerKey, Consumer] = {}

    @property
    def in_flight(self) -> int:
        return self.returning.count + sum(consumer.in_flight.count for consumer in self.consumers.values())

    @property
    def is_idle(self) -> bool:
        """Nothing is known here that could not be found out again from the queue."""
        return not (self.consumers or self.returning or self.given_before or self.unreadable)

    @property
    def can_go_on(self) -> bool:
        return bool(self.ready) and bool(self._able)

    # -- consumers come and go -------------------------------------------------

    def attach(self, consumer: Consumer, held: Ranges) -> None:
        """Take in a consumer. What it holds from an earlier term stays with it if it is still to be had."""
        self.consumers[consumer.key] = consumer
        if held:
            still = self.ready.intersection(held)
            self.ready.remove_all(still)
            consumer.hold(still)
        self.look_at_credit(consumer)

    def look_at_credit(self, consumer: Consumer) -> None:
        if consumer.has_credit:
            self._able.setdefault(consumer.key, consumer)

    def detach(self, consumer: Consumer, seen_through: int | None) -> Ranges:
        """Let a consumer go; what it saw and did not acknowledge, for a counted return.

        What it did not see is ready again at once. None for `seen_through`: nobody can tell.
        """
        del self.consumers[consumer.key]
        self._able.pop(consumer.key, None)
        if seen_through is None:
            self.ready.add_all(consumer.in_flight)
            self.given_before.add_all(consumer.in_flight)
            return Ranges()
        unseen = consumer.unseen(seen_through)
        self.ready.add_all(unseen)
        seen = consumer.in_flight.difference(unseen)
        self.returning.add_all(seen)
        return seen

    # -- what the log did to the queue ------------------------------------------

    def published(self, start: int, stop: int) -> None:
        self.ready.add(start, stop)

    def acknowledged(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """These have left the queue; `holders`, the consumers of the session that said so, come first."""
        left = numbers.count
        for consumer in holders:
            left -= consumer.forget(numbers)
        if left:
            # Somebody else's, or nobody's: it was given back meanwhile, or the primary changed.
            left -= self.ready.remove_all(numbers)
            left -= self.returning.remove_all(numbers)
            left -= self.unreadable.remove_all(numbers)
            for consumer in self.consumers.values():
                if not left:
                    break
                left -= consumer.forget(numbers)
            assert left == 0, "an acknowledged message was neither ready nor in flight"
        if self.given_before:
            self.given_before.remove_all(numbers)

    def returned(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """A return of these was ordered; it concerns what its sender holds, or what waited for it."""
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            self.ready.add_all(back)
        back = self.returning.intersection(numbers)
        self.returning.remove_all(back)
        self.ready.add_all(back)

    # -- giving ----------------------------------------------------------------

    def distribute(self, reader: BatchReader, bytes_max: int) -> tuple[list[Parcel], int, list[str]]:
        """Hand out what is ready: parcels, the bytes of bodies in them, and complaints for an operator."""
        parcels: dict[ConsumerKey, Parcel] = {}
        complaints: list[str] = []
        spent = 0
        able = self._able
        while self.ready and able and spent < bytes_max:
            turns = len(able)
            share = -(-self.ready.count // turns)
            for _ in range(turns):
                consumer = able.pop(next(iter(able)))
                parcel = parcels.get(consumer.key)
                if parcel is None:
                    parcel = parcels[consumer.key] = Parcel(consumer, consumer.delivered + 1)
                spent += self._give(parcel, share, reader, bytes_max - spent, complaints)
                if consumer.has_credit:
                    able[consumer.key] = consumer
                if not self.ready or spent >= bytes_max:
                    break
        return [parcel for parcel in parcels.values() if parcel.pieces], spent, complaints

    def _give(
        self, parcel: Parcel, share: int, reader: BatchReader, bytes_max: int, complaints: list[str]
    ) -> int:
        consumer, ready = parcel.consumer, self.ready
        left = min(share, consumer.credit_messages - consumer.delivered)
        bytes_left = min(bytes_max, consumer.credit_bytes - consumer.delivered_bytes)
        spent = 0
        while left > 0 and spent < bytes_left and ready:
            start, stop = next(iter(ready))
            try:
                cut = reader.cut(
                    self.queue, start, min(stop, start + left), bytes_left - spent, self.given_before
                )
            except ProtocolError as error:
                complaints.append(self._set_aside(start, error))
                continue
            ready.remove(start, cut.stop)
            consumer.give(start, cut.stop, cut.body_bytes)
            parcel.pieces.append(cut.piece)
            left -= cut.stop - start
            spent += cut.body_bytes
        return spent

    def _set_aside(self, number: int, error: ProtocolError) -> str:
        """The batch of this message does not decode, though it was looked at when it came in."""
        stored = self.queue.index.find(number)
        aside = self.ready.clip(stored.first, stored.stop)
        self.ready.remove_all(aside)
        self.unreadable.add_all(aside)
        return f"{self.queue.name}: the messages {aside} cannot be read and are not delivered: {error.text}"
