"""Dispatcher: which consumer of one queue or subscription gets which messages.

DSP1  pending = ready + in flight + returning + withheld + not looked at yet, without overlap. Returning: the
      return is being ordered. Withheld: a transaction or a hold has locked the message.
DSP2  Ready messages go out in the order of their numbers, also those that came back.
DSP3  Consumers with credit take turns, and none takes more than an equal part of the ready messages.
DSP4  Only a part of the backlog is looked at, and kept here, at a time.
DSP5  A consumer whose client manager does not keep up is passed over, and those of others go on. While one
      consumer waits for room, no source gives more to its client manager; then the first to wait goes first.
DSP6  A drain ends only when nothing could be given to the consumer now; then its credit is used up.

The primary's term ends all of this: acknowledgements and counted returns are ordered, the rest is forgotten.
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
"""Ranges of ready messages looked at ahead of their delivery (DSP4). A range is a batch or more."""

_NO_LOCKS: Final[dict[int, Ranges]] = {}


@dataclass(slots=True)
class Parcel:
    """The messages given to one consumer at once."""

    consumer: Consumer
    first_delivery: int
    bytes_before: int
    pieces: list[Piece] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        return tuple([piece[:3] for piece in self.pieces])


class Dispatcher:
    """The consumers of one source, and the messages that are ready for them."""

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
        # The locked numbers of all sources; and those of this source that no consumer holds.
        self._locks = locks
        self.withheld = Ranges()
        # Pending messages through `_looked` have been ready; the source has messages through `_heard`.
        self._looked = 0
        self._heard = source.last
        # Seen by a consumer that is gone; ready once the return is ordered.
        self.returning = Ranges()
        # Given to a consumer that ended without telling which it saw: redelivered, but not counted.
        self.given_before = Ranges()
        # The same for messages published before this term, which an earlier primary may have given out.
        self._given_through = claimed_after if source.id <= claimed_after else 0
        # Batches that do not decode stay in the source, and hold up no consumer.
        self.unreadable = Ranges()
        # The next message lies in a record that is being mended.
        self.is_held_up = False
        self.consumers: dict[ConsumerKey, Consumer] = {}
        # Consumers with credit, in the order of their turns.
        self._able: dict[ConsumerKey, Consumer] = {}
        self._look()

    @property
    def in_flight(self) -> int:
        return self.returning.count + sum(consumer.in_flight.count for consumer in self.consumers.values())

    @property
    def is_idle(self) -> bool:
        """Whether everything here could be found out again from the source."""
        return not (self.consumers or self.returning or self.given_before or self.unreadable)

    @property
    def can_go_on(self) -> bool:
        return bool(self._able) and (bool(self.ready) or self._looked < self._heard) and not self.is_held_up

    def _look(self) -> bool:
        """Make the next part of the pending messages ready; False when there is no more."""
        while self._looked < self._heard:
            part, through = self.source.pending(self._looked, RANGES_READY)
            self._looked = self._heard if through is None else through
            if part and self._free(part):
                return True
        return False

    def _free(self, numbers: Ranges) -> bool:
        """Make these ready, but for the locked ones; False when all are locked."""
        locked = self._locks.get(self.source.id) if self._locks else None
        if locked is not None:
            withheld = numbers.intersection(locked)
            self.withheld.add_all(withheld)
            numbers = numbers.difference(withheld)
        self.ready.add_all(numbers)
        return bool(numbers)

    # -- consumers come and go -------------------------------------------------

    def attach(self, consumer: Consumer, held: Ranges, doubtful: Ranges) -> None:
        """Take in a consumer, with those of the messages it holds that are still free and not doubtful.

        A locked message stays with its holder: the holder's transaction may have acknowledged it.
        """
        self.consumers[consumer.key] = consumer
        if held:
            while self._looked < held.last and self._look():
                pass
            for kept, theirs in ((self.ready, held.difference(doubtful)), (self.withheld, held)):
                still = kept.intersection(theirs)
                kept.remove_all(still)
                consumer.hold(still)
        self.look_at_credit(consumer)

    def given_to_others(self, numbers: Ranges) -> Ranges:
        """Those that have been returned, or taken from a consumer: others may have been given them since."""
        found = self.given_before.intersection(numbers)
        found.add_all(self.source.counts.among(numbers))
        return found

    def look_at_credit(self, consumer: Consumer) -> None:
        if consumer.has_credit:
            self._able.setdefault(consumer.key, consumer)

    def has_more_for(self, consumer: Consumer) -> bool:
        """Whether the consumer will be given messages, now or when its client manager has room (DSP6)."""
        is_ready = bool(self.ready) or self._looked < self._heard
        return consumer.has_credit and is_ready and not self.is_held_up

    def use_up(self, consumer: Consumer) -> int:
        through = consumer.use_up()
        if not consumer.has_credit:
            self._able.pop(consumer.key, None)
        return through

    def suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        """Stop giving to a consumer whose client was lost, and free the messages which that has not seen."""
        self._able.pop(consumer.key, None)
        if seen_through is not None:
            unseen = consumer.unseen(seen_through)
            consumer.forget(unseen)
            self._free(unseen)

    def come_back(self, former: Consumer, consumer: Consumer, held: Ranges, doubtful: Ranges) -> None:
        """Replace a consumer whose client came back; messages that never reached the client are free."""
        del self.consumers[former.key]
        self._able.pop(former.key, None)
        self._free(former.in_flight)
        self.attach(consumer, held, doubtful.difference(former.in_flight))

    def detach(self, consumer: Consumer, seen_through: int | None) -> Ranges:
        """Remove a consumer; returns the messages that it saw, for a counted return.

        The others are ready again at once. None for `seen_through`: unknown.
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
                # A hold locks the whole queue, with all that is still to come.
                self._free(Ranges([(start, stop)]))
            else:
                self.ready.add(start, stop)

    def acknowledged(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """Drop messages that left the source; `holders` are the consumers of the acknowledging session."""
        left = numbers.count
        for consumer in holders:
            left -= consumer.forget(numbers)
        if left:
            # Returned meanwhile, or the primary changed.
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
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            self._free(back)
        back = self.returning.intersection(numbers)
        self.returning.remove_all(back)
        self._free(back)

    def take_back(self, consumer: Consumer, numbers: Ranges) -> None:
        """Free messages that did not reach the consumer, and will not."""
        consumer.forget(numbers)
        self._free(numbers)

    def let_go(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """Take locked messages from their holders; they wait to be acknowledged or unlocked."""
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            self.given_before.add_all(back)
            self._free(back)

    def locked(self, numbers: Ranges) -> None:
        withheld = self.ready.intersection(numbers)
        self.ready.remove_all(withheld)
        self.withheld.add_all(withheld)

    def unlocked(self, numbers: Ranges) -> None:
        free = self.withheld.intersection(numbers)
        self.withheld.remove_all(free)
        self._free(free)

    # -- giving ----------------------------------------------------------------

    def distribute(self, reader: BatchReader, bytes_max: int) -> tuple[list[Parcel], int, list[str]]:
        """Give out ready messages: parcels, their bytes of bodies, and alarms for an operator."""
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
                if stream is not None and (stream.room <= 0 or stream.stopped):
                    # The consumer's turn comes again when its client manager has room (DSP5).
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
                # Messages behind the damaged record would be out of order (DSP2).
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
        """Set aside a batch that does not decode, although the client manager checked it."""
        stored = self.source.index.find(number)
        aside = self.ready.clip(stored.first, stored.stop)
        self.ready.remove_all(aside)
        self.unreadable.add_all(aside)
        return f"{self.source.name}: the messages {aside} cannot be read and are not delivered: {error.text}"
