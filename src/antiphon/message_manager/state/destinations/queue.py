"""Queue: the messages of one queue, as the log made them.

QUE1  published = live + acknowledged + expired + dropped + dead + purged, always.
QUE2  A number is acknowledged at most once; a second acknowledgement is told which were lost to it.
QUE3  The same commands give the same state and digest on every replica, wherever each has the bytes.
QUE4  Messages acknowledged at or above the position of a hold stay stored, and can be read again.

Delivery leaves no trace here: which consumer has a message is the primary's business.
"""

from __future__ import annotations

import struct
import sys
from hashlib import blake2b
from typing import Final

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse
from antiphon.message_manager.state.destinations.rules import PLAIN, DeliveryRules
from antiphon.message_manager.state.destinations.settings import ReturnRules, queue_rules_of
from antiphon.names import parse_destination
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

DIGEST_BYTES: Final = 16
NO_DIGEST: Final = bytes(DIGEST_BYTES)

_PUBLISHED = struct.Struct("<BQII")
_PAIR = struct.Struct("<QQ")
_ACKNOWLEDGED: Final = b"\x02"
_RETURNED: Final = b"\x03"
_REJECTED: Final = b"\x04"
_DEAD: Final = b"\x05"
_EXPIRED: Final = b"\x06"
_DROPPED: Final = b"\x07"
_PURGED: Final = b"\x08"
_ALTERED: Final = b"\x09"
_KNOWN: Final = b"\x0a"


class Queue:
    """A queue; `id` is the number of its CREATE."""

    __slots__ = (
        "acknowledged",
        "bytes",
        "counts",
        "dead",
        "digest",
        "dropped",
        "duplicates",
        "expired",
        "held_from",
        "id",
        "index",
        "is_one_by_one",
        "is_reserved",
        "last_stored",
        "live",
        "name",
        "published",
        "purged",
        "returns",
        "rules",
        "settings",
        "settings_version",
        "stored",
    )

    def __init__(self, *, id: int, name: str, settings: str, use: SegmentUse) -> None:
        self.id = id
        self.name = name
        self.settings_version = 1
        self._set(settings)
        # Clients do not publish to a queue of the system.
        self.is_reserved = parse_destination(name).is_reserved
        self.live = Ranges()
        # The numbers in the journal: the same object, unless the queue is held (QUE4).
        self.stored = self.live
        self.held_from: int | None = None
        # The last number that ever was a message of this queue.
        self.last_stored = 0
        self.index = BatchIndex(use)
        self.counts = DeliveryCounts()
        self.rules = PLAIN
        # Of the stored messages.
        self.bytes = 0
        self.published = 0
        self.acknowledged = 0
        self.expired = 0
        self.dropped = 0
        self.dead = 0
        self.purged = 0
        # Messages that were not stored because their id was known.
        self.duplicates = 0
        # Covers all commands to the queue, so that a checkpoint need not.
        self.digest = NO_DIGEST

    # A queue is a `Source`.
    floor = 0
    is_exclusive = False

    # An acknowledged message is consumed and not lost.
    lost_through = trimmed = 0

    @property
    def destination(self) -> int:
        return self.id

    @property
    def last(self) -> int:
        return self.live.last if self.live else 0

    def pending(self, after: int, ranges_max: int) -> tuple[Ranges, int | None]:
        """The live messages above `after` in so many ranges; and the number they reach, None at the end."""
        part = self.live.take_ranges(after + 1, ranges_max)
        return part, part.last if len(part) == ranges_max else None

    def _remember(self, what: bytes) -> None:
        self.digest = blake2b(self.digest + what, digest_size=DIGEST_BYTES).digest()

    def publish(
        self,
        first: int,
        count: int,
        skip: int,
        location: Location,
        offset: int,
        length: int,
        origin: bytes,
        rules: DeliveryRules | None = None,
        known: Ranges | None = None,
    ) -> None:
        """Store a batch of `count` rows, the first `skip` of which are stored already under other numbers.

        The rows have the numbers first … first+count-1; those of the skipped rows stay empty. `origin` is the
        digest of the envelope, so that the queue's covers the contents. `rules` are those of the rows. The
        rows with `known` numbers are not stored: these numbers stay empty, too.
        """
        if known:
            self.duplicates += known.count
            self._remember(_KNOWN + known.encode())
            if known.count == count - skip:
                return
        self.index.append((first,), (count,), location, (offset,), (length,))
        if rules is not None:
            self.rules = self.rules.note(rules, first, skip)
        size = length // count
        self._add(first, count, skip, size * (count - skip), origin)
        if known:
            self.bytes -= size * known.count
            self._leave_out(known)

    def publish_run(
        self, first: int, location: Location, offsets: list[int], lengths: list[int], origin: bytes
    ) -> None:
        """Store batches of one row each, with successive numbers, all in one record."""
        count = len(offsets)
        self.index.append(range(first, first + count), (1,) * count, location, offsets, lengths)
        self._add(first, count, 0, sum(lengths), origin)

    def _add(self, first: int, count: int, skip: int, size: int, origin: bytes) -> None:
        start, stop = first + skip, first + count
        self.live.add(start, stop)
        if self.stored is not self.live:
            self.stored.add(start, stop)
        self.last_stored = stop - 1
        self.published += stop - start
        self.bytes += size
        self._remember(_PUBLISHED.pack(1, first, count, skip) + origin)

    def _leave_out(self, known: Ranges) -> None:
        """Take numbers that were just added out again: their messages are not stored."""
        self.live.remove_all(known)
        self.rules = self.rules.forget(known)
        if self.stored is not self.live:
            self.stored.remove_all(known)
        self.last_stored = self.live.last
        self.published -= known.count

    def acknowledge(self, numbers: Ranges) -> Ranges:
        """Remove the live part of these, and return it."""
        removed = self._remove(numbers, _ACKNOWLEDGED)
        self.acknowledged += removed.count
        return removed

    def bury(self, numbers: Ranges) -> None:
        """Remove these: they are dead."""
        self.dead += self._remove(numbers, _DEAD).count

    def purge(self, numbers: Ranges) -> Ranges:
        """Remove the live part of these, and return it."""
        removed = self._remove(numbers, _PURGED)
        self.purged += removed.count
        return removed

    def doomed(self) -> Ranges:
        """The messages that are dead, and still here."""
        return self.counts.above(self.returns.redelivery_limit).union(self.counts.rejected)

    @property
    def may_delay(self) -> bool:
        return self.returns.delay_ms > 0

    def by_returns(self, numbers: Ranges) -> tuple[tuple[ReturnRules, Ranges], ...]:
        return ((self.returns, numbers),)

    def alter(self, settings: str) -> None:
        self.settings_version += 1
        self._set(settings)
        self._remember(_ALTERED + settings.encode())

    def _set(self, settings: str) -> None:
        # Very many destinations may share one text, and what is made of it.
        self.settings = sys.intern(settings)
        self.returns, self.is_one_by_one = queue_rules_of(settings)

    def _remove(self, numbers: Ranges, mark: bytes) -> Ranges:
        live = self.live
        start, stop = (numbers.first, numbers.last + 1) if len(numbers) == 1 else (0, 0)
        if stop and live.covers(start, stop):
            # Nearly always so: a consumer acknowledges in the order of its deliveries.
            removed = numbers
            live.remove(start, stop)
            encoded = _PAIR.pack(start, stop)
        else:
            removed = live.intersection(numbers)
            if not removed:
                return removed
            live.remove_all(removed)
            encoded = removed.encode()
        self._forget(removed)
        self._remember(mark + encoded)
        return removed

    def expire(self, numbers: Ranges) -> Ranges:
        """Remove the live part of these because their time is over, and return it."""
        removed = self._remove(self.rules.expires.numbers.intersection(numbers), _EXPIRED)
        self.expired += removed.count
        return removed

    def drop(self, numbers: Ranges) -> Ranges:
        """Remove those of these that are live and non-persistent, and return them."""
        removed = self._remove(self.rules.transient.intersection(numbers), _DROPPED)
        self.dropped += removed.count
        return removed

    def _forget(self, removed: Ranges) -> None:
        """Drop what is known of messages that have just left `live`."""
        if self.stored is self.live:
            self.bytes -= self.index.forget(removed, self.live)
        else:
            self._let_go(removed)
        if self.counts:
            self.counts.forget(removed)
        if self.rules:
            self.rules = self.rules.forget(removed)

    def still(self, numbers: Ranges) -> Ranges:
        return self.live.intersection(numbers)

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Return messages; those still live are returned, with their counts raised if `is_counted`."""
        back = self.live.intersection(numbers)
        if back and is_counted:
            self.counts.raise_(back)
            self._remember(_RETURNED + back.encode())
        return back

    def reject(self, numbers: Ranges) -> Ranges:
        """Mark those of these that are still live as rejected for good, and return them."""
        rejected = self.live.intersection(numbers)
        if rejected:
            self.counts.rejected.add_all(rejected)
            self._remember(_REJECTED + rejected.encode())
        return rejected

    # -- holds -------------------------------------------------------------------

    def hold_from(self, position: int | None) -> None:
        """Keep messages acknowledged at or above this number; None: there is no hold."""
        if position == self.held_from:
            return
        self.held_from = position
        if self.stored is self.live:
            self.stored = self.live.copy()
        else:
            self._let_go(self.stored.difference(self.live))
        if position is None:
            self.stored = self.live

    def held_again(self, position: int | None) -> None:
        """Restore the position of a hold from a checkpoint; nothing is dropped."""
        self.held_from = position
        if position is not None and self.stored is self.live:
            self.stored = self.live.copy()

    def _let_go(self, numbers: Ranges) -> None:
        """Drop the part of these dead messages that no hold keeps."""
        if self.held_from is not None and numbers:
            numbers = numbers.clip(0, self.held_from)
        if numbers:
            self.stored.remove_all(numbers)
            self.bytes -= self.index.forget(numbers, self.stored)

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """The part that is equal on all replicas, but for the settings, which many may share."""
        writer.u64(self.id)
        writer.text(self.name)
        writer.u32(self.settings_version)
        writer.u64(self.published)
        writer.u64(self.acknowledged)
        writer.u64(self.expired)
        writer.u64(self.dropped)
        writer.u64(self.dead)
        writer.u64(self.purged)
        writer.u64(self.duplicates)
        writer.u64(self.bytes)
        writer.u64(self.last_stored)
        writer.raw(self.digest)
        writer.bytes_(self.live.encode())
        writer.bytes_(b"" if self.stored is self.live else self.stored.difference(self.live).encode())
        self.counts.write(writer)
        self.rules.write(writer)

    def write_places(self, writer: Writer) -> None:
        """The places of this replica."""
        self.index.write(writer, self.stored)

    @classmethod
    def read_logical(cls, reader: Reader, settings: str, use: SegmentUse) -> Queue:
        queue = cls(id=reader.u64(), name=reader.text(), settings=settings, use=use)
        queue.settings_version = reader.u32()
        queue.published = reader.u64()
        queue.acknowledged = reader.u64()
        queue.expired = reader.u64()
        queue.dropped = reader.u64()
        queue.dead = reader.u64()
        queue.purged = reader.u64()
        queue.duplicates = reader.u64()
        queue.bytes = reader.u64()
        queue.last_stored = reader.u64()
        queue.digest = bytes(reader.raw(DIGEST_BYTES))
        queue.live = queue.stored = Ranges.decode(reader.bytes_())
        kept = Ranges.decode(reader.bytes_())
        if kept:
            # The holds of the channel restore the position.
            queue.stored = queue.live.union(kept)
        queue.counts = DeliveryCounts.read(reader)
        queue.rules = DeliveryRules.read(reader)
        return queue

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)
