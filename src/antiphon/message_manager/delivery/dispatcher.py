"""Dispatcher: which consumer of one queue or subscription gets which messages.

Where it sits
    queue, subscription  ->  DISPATCHER  ->  delivery  ->  client manager

What it promises
    D1  What is pending = ready + in flight + returning + withheld + not looked at yet, without overlap: a
        message is with one consumer, or with nobody because its return is being ordered, or because a
        transaction that is about to acknowledge it is not finished yet, or it waits.
    D2  What is ready goes out in the order of its numbers, also what came back.
    D3  Consumers with credit take turns, and nobody takes more than an equal part of what is ready.
    D4  Whatever the backlog, only a part of it is looked at, and kept here, at a time.
    D5  A consumer whose client manager does not keep up is passed over, and the others go on.
    D6  A consumer that drains hears that there is nothing for it only when there is nothing that could be
        given to it now; then its credit is used up.

What it leaves to others
    All of this is forgotten when the primary changes: what must survive (acknowledgements and counted
    returns) is ordered, and reaches us through the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon.bus.messages import Piece
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.source import Source
from antiphon.ranges import Ranges

RANGES_READY: Final = 1_024
"""Ranges of ready messages looked at ahead of their delivery (D4). A range is a batch or more."""

_NO_LOCKS: Final[dict[int, Ranges]] = {}


@dataclass(slots=True)
class Parcel:
    """What one consumer gets at once."""

    consumer: Consumer
    first_delivery: int
    # Of bodies that it had been given before.
    bytes_before: int
    pieces: list[Piece] = field(default_factory=list)
    # Of the bodies of each piece.
    body_bytes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """Which messages these are, and how often each was given back."""
        return tuple([piece[:3] for piece in self.pieces])


class Dispatcher:
    """The consumers of one source of messages and what is ready for them."""

    __slots__ = (
        "_able",
        "_given_through",
        "_heard",
        "_locks",
        "_looked",
        "consumers",
        "given_before",
        "is_held_up",
        "ready",
        "returning",
        "source",
        "unreadable",
        "withheld",
    )

    def __init__(
        self,
        source: Source,
        claimed_after: int = 0,
        locks: Mapping[int, Ranges] = _NO_LOCKS,
    ) -> None:
        self.source = source
        self.ready = Ranges()
        # What is locked, by the id of the source; and what of ours is, and is with nobody.
        self._locks = locks
        self.withheld = Ranges()
        # What is pending through `_looked` has been ready; the source has messages through `_heard`.
        self._looked = 0
        self._heard = source.last
        # In flight to nobody: seen by a consumer that is gone, to be ready once their return is ordered.
        self.returning = Ranges()
        # Given to a consumer that ended without telling what it saw. Told as redelivered, but not counted: a
        # failover is nobody's fault.
        self.given_before = Ranges()
        # The same holds for what was published before this term began, unless the source is younger: an
        # earlier primary may have given it to anybody.
        self._given_through = claimed_after if source.id <= claimed_after else 0
        # Batches that do not decode. They stay where they are, and hold up nobody.
        self.unreadable = Ranges()
        # The next message lies in a record that is being mended: nothing goes out before it.
        self.is_held_up = False
        self.consumers: dict[ConsumerKey, Consumer] = {}
        # Those with credit, whose turn is next first.
        self._able: dict[ConsumerKey, Consumer] = {}
        self._look()

    @property
    def in_flight(self) -> int:
        return self.returning.count + sum(consumer.in_flight.count for consumer in self.consumers.values())

    @property
    def is_idle(self) -> bool:
        """Nothing is known here that could not be found out again from the source."""
        return not (self.consumers or self.returning or self.given_before or self.unreadable)

    @property
    def can_go_on(self) -> bool:
        return bool(self._able) and (bool(self.ready) or self._looked < self._heard) and not self.is_held_up

    def _look(self) -> bool:
        """Make the next part of what is pending ready; False when there is no more."""
        while self._looked < self._heard:
            part, through = self.source.pending(self._looked, RANGES_READY)
            self._looked = self._heard if through is None else through
            if part and self._free(part):
                return True
        return False

    def _free(self, numbers: Ranges) -> bool:
        """These are with nobody: they are ready, but for what is locked. False when all of it is."""
        locked = self._locks.get(self.source.id) if self._locks else None
        if locked is not None:
            withheld = numbers.intersection(locked)
            self.withheld.add_all(withheld)
            numbers = numbers.difference(withheld)
        self.ready.add_all(numbers)
        return bool(numbers)

    # -- consumers come and go -------------------------------------------------

    def attach(self, consumer: Consumer, held: Ranges) -> None:
        """Take in a consumer. What it holds from an earlier term stays with it if it is still to be had."""
        self.consumers[consumer.key] = consumer
        if held:
            while self._looked < held.last and self._look():
                pass
            for kept in (self.ready, self.withheld):
                still = kept.intersection(held)
                kept.remove_all(still)
                consumer.hold(still)
        self.look_at_credit(consumer)

    def look_at_credit(self, consumer: Consumer) -> None:
        if consumer.has_credit:
            self._able.setdefault(consumer.key, consumer)

    def has_more_for(self, consumer: Consumer) -> bool:
        """Will it be given something, now or when its client manager has room (D6)?"""
        is_ready = bool(self.ready) or self._looked < self._heard
        return consumer.has_credit and is_ready and not self.is_held_up

    def use_up(self, consumer: Consumer) -> int:
        """There is nothing for it: of what it drains, no delivery number is left (D6)."""
        through = consumer.use_up()
        if not consumer.has_credit:
            self._able.pop(consumer.key, None)
        return through

    def suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        """Its client was lost: it gets nothing more, and what reached it is kept for it."""
        self._able.pop(consumer.key, None)
        if seen_through is not None:
            unseen = consumer.unseen(seen_through)
            consumer.forget(unseen)
            self._free(unseen)

    def come_back(self, former: Consumer, consumer: Consumer, held: Ranges) -> None:
        """Its client is here again: what it holds stays its own, the rest never reached it."""
        del self.consumers[former.key]
        self._able.pop(former.key, None)
        self._free(former.in_flight)
        self.attach(consumer, held)

    def detach(self, consumer: Consumer, seen_through: int | None) -> Ranges:
        """Let a consumer go; what it saw and did not acknowledge, for a counted return.

        What it did not see is ready again at once. None for `seen_through`: nobody can tell.
        """
        del self.consumers[consumer.key]
        self._able.pop(consumer.key, None)
        if seen_through is None:
            self._free(consumer.in_flight)
            self.given_before.add_all(consumer.in_flight)
            return Ranges()
        unseen = consumer.unseen(seen_through)
        self._free(unseen)
        seen = consumer.in_flight.difference(unseen)
        self.returning.add_all(seen)
        return seen

    # -- what the log did to the source -----------------------------------------

    def published(self, start: int, stop: int) -> None:
        is_level = self._looked >= self._heard
        self._heard = stop - 1
        if is_level and len(self.ready) < RANGES_READY:
            self._looked = self._heard
            start = max(start, self.source.floor + 1)
            locked = self._locks.get(self.source.id) if self._locks else None
            if locked and locked.last >= start:
                # Somebody has the whole queue for himself, with all that is still to come.
                self._free(Ranges([(start, stop)]))
            else:
                self.ready.add(start, stop)

    def acknowledged(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """These have left the source; `holders`, the consumers of the session that said so, come first."""
        left = numbers.count
        for consumer in holders:
            left -= consumer.forget(numbers)
        if left:
            # Somebody else's, or nobody's: it was given back meanwhile, or the primary changed.
            left -= self.ready.remove_all(numbers)
            left -= self.returning.remove_all(numbers)
            left -= self.withheld.remove_all(numbers)
            left -= self.unreadable.remove_all(numbers)
            left -= numbers.clip(self._looked + 1, numbers.last + 1).count
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
            self._free(back)
        back = self.returning.intersection(numbers)
        self.returning.remove_all(back)
        self._free(back)

    def take_back(self, consumer: Consumer, numbers: Ranges) -> None:
        """These did not reach the consumer, and will not: they are given out anew."""
        consumer.forget(numbers)
        self._free(numbers)

    def let_go(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """Who holds these is done with them; they are locked, and wait to be acknowledged or unlocked."""
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            self.given_before.add_all(back)
            self._free(back)

    def locked(self, numbers: Ranges) -> None:
        """Nobody gets these for now. Who holds some of them goes on holding them."""
        withheld = self.ready.intersection(numbers)
        self.ready.remove_all(withheld)
        self.withheld.add_all(withheld)

    def unlocked(self, numbers: Ranges) -> None:
        """These can be given out again, if they are with nobody."""
        free = self.withheld.intersection(numbers)
        self.withheld.remove_all(free)
        self._free(free)

    # -- giving ----------------------------------------------------------------

    def distribute(self, reader: BatchReader, bytes_max: int) -> tuple[list[Parcel], int, list[str]]:
        """Hand out what is ready: parcels, the bytes of bodies in them, and complaints for an operator."""
        parcels: dict[ConsumerKey, Parcel] = {}
        complaints: list[str] = []
        spent = 0
        able = self._able
        while able and spent < bytes_max and not self.is_held_up and (self.ready or self._look()):
            turns = len(able)
            share = -(-self.ready.count // turns)
            for _ in range(turns):
                consumer = able.pop(next(iter(able)))
                stream = consumer.stream
                if stream is not None and stream.room <= 0:
                    # Its turn comes again when its client manager has room (D5).
                    stream.stopped[consumer.key] = consumer
                    continue
                parcel = parcels.get(consumer.key)
                if parcel is None:
                    parcel = parcels[consumer.key] = Parcel(
                        consumer, consumer.delivered + 1, consumer.delivered_bytes
                    )
                spent += self._give(parcel, share, reader, bytes_max - spent, complaints)
                if consumer.has_credit:
                    able[consumer.key] = consumer
                if not self.ready or self.is_held_up or spent >= bytes_max:
                    break
        return [parcel for parcel in parcels.values() if parcel.pieces], spent, complaints

    def _give(
        self, parcel: Parcel, share: int, reader: BatchReader, bytes_max: int, complaints: list[str]
    ) -> int:
        consumer, ready = parcel.consumer, self.ready
        left = min(share, consumer.credit_messages - consumer.delivered)
        bytes_left = min(bytes_max, consumer.credit_bytes - consumer.delivered_bytes)
        if consumer.stream is not None:
            bytes_left = min(bytes_left, consumer.stream.room)
        spent = 0
        while left > 0 and spent < bytes_left and ready:
            start, stop = next(iter(ready))
            try:
                cut = reader.cut(
                    self.source,
                    start,
                    min(stop, start + left),
                    bytes_left - spent,
                    self.given_before,
                    self._given_through,
                )
            except ProtocolError as error:
                complaints.append(self._set_aside(start, error))
                continue
            if cut is None:
                # It is being mended. To pass over it would be to give out of order (D2).
                self.is_held_up = True
                break
            ready.remove(start, cut.stop)
            consumer.give(start, cut.stop, cut.body_bytes)
            parcel.pieces.append(cut.piece)
            parcel.body_bytes.append(cut.body_bytes)
            left -= cut.stop - start
            spent += cut.body_bytes
        if consumer.stream is not None:
            consumer.stream.given_bytes += spent
        return spent

    def _set_aside(self, number: int, error: ProtocolError) -> str:
        """The batch of this message does not decode, though it was looked at when it came in."""
        stored = self.source.index.find(number)
        aside = self.ready.clip(stored.first, stored.stop)
        self.ready.remove_all(aside)
        self.unreadable.add_all(aside)
        return f"{self.source.name}: the messages {aside} cannot be read and are not delivered: {error.text}"
