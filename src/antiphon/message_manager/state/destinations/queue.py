"""Queue: the messages of one queue, as the log made them.

Where it sits
    bus -> manager -> QUEUE -> delivery

What it promises
    Q1  published = live + acknowledged, always.
    Q2  A number is acknowledged at most once; whoever comes second is told which were lost to it.
    Q3  The same commands give the same state and the same digest on every replica, wherever each of
        them keeps the bytes.
    Q4  While somebody holds the queue from a number on (holds), what is acknowledged from there on is not
        live any more, but stays stored: it can be read again.

What it leaves to others
    Who is given a message is delivery's business and leaves no trace here. Whether a command may be
    applied at all is decided before, by the session it came in.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

DIGEST_BYTES: Final = 16

_PUBLISHED = struct.Struct("<BQII")
_PAIR = struct.Struct("<QQ")
_ACKNOWLEDGED: Final = b"\x02"
_RETURNED: Final = b"\x03"


class Queue:
    """One queue. `id` is the number of the command that created it."""

    __slots__ = (
        "acknowledged",
        "bytes",
        "counts",
        "digest",
        "held_from",
        "id",
        "index",
        "last_stored",
        "live",
        "name",
        "published",
        "settings",
        "settings_version",
        "stored",
    )

    def __init__(self, *, id: int, name: str, settings: str, use: SegmentUse) -> None:
        self.id = id
        self.name = name
        self.settings = settings
        self.settings_version = 1
        self.live = Ranges()
        # What lies in the journal: the same object, unless the queue is held (Q4).
        self.stored = self.live
        self.held_from: int | None = None
        # The last number that ever was a message of this queue.
        self.last_stored = 0
        self.index = BatchIndex(use)
        self.counts = DeliveryCounts()
        # Of what is stored.
        self.bytes = 0
        self.published = 0
        self.acknowledged = 0
        # Covers everything that ever happened to the queue, so that a checkpoint need not.
        self.digest = bytes(DIGEST_BYTES)

    # What makes it a source of messages; see source.py.
    floor = 0
    is_exclusive = False

    # What a consumer has acknowledged is consumed and not lost.
    lost_through = trimmed = 0

    @property
    def destination(self) -> int:
        return self.id

    @property
    def last(self) -> int:
        return self.live.last if self.live else 0

    def pending(self, after: int, ranges_max: int) -> tuple[Ranges, int | None]:
        """What is live above `after`, in so many ranges at most; and how far that is, unless to the end."""
        part = self.live.take_ranges(after + 1, ranges_max)
        return part, part.last if len(part) == ranges_max else None

    def _remember(self, what: bytes) -> None:
        self.digest = blake2b(self.digest + what, digest_size=DIGEST_BYTES).digest()

    def publish(
        self, first: int, count: int, skip: int, location: Location, offset: int, length: int, origin: bytes
    ) -> None:
        """Store a batch of `count` rows, the first `skip` of which are here already under other numbers.

        The rows keep their numbers first … first+count-1; those of the skipped rows stay empty.
        `origin` is the digest of the envelope, so that ours covers the contents.
        """
        self.index.append((first,), (count,), location, (offset,), (length,))
        self._add(first, count, skip, length // count * (count - skip), origin)

    def publish_run(
        self, first: int, location: Location, offsets: list[int], lengths: list[int], origin: bytes
    ) -> None:
        """Store batches of one row each, one behind the other, all of them in one record."""
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

    def acknowledge(self, numbers: Ranges) -> Ranges:
        """Remove what is live of these, and return it."""
        live = self.live
        start, stop = (numbers.first, numbers.last + 1) if len(numbers) == 1 else (0, 0)
        if stop and live.covers(start, stop):
            # Nearly always so: a consumer acknowledges what it was given, in order.
            removed = numbers
            live.remove(start, stop)
            encoded = _PAIR.pack(start, stop)
        else:
            removed = live.intersection(numbers)
            if not removed:
                return removed
            live.remove_all(removed)
            encoded = removed.encode()
        if self.stored is live:
            self.bytes -= self.index.forget(removed, live)
        else:
            self._let_go(removed)
        self.acknowledged += removed.count
        if self.counts:
            self.counts.forget(removed)
        self._remember(_ACKNOWLEDGED + encoded)
        return removed

    def still(self, numbers: Ranges) -> Ranges:
        """What is live of these."""
        return self.live.intersection(numbers)

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Give these back; what is still live of them is returned, with its count raised if it counts."""
        back = self.live.intersection(numbers)
        if back and is_counted:
            self.counts.raise_(back)
            self._remember(_RETURNED + back.encode())
        return back

    # -- holds -------------------------------------------------------------------

    def hold_from(self, position: int | None) -> None:
        """What is acknowledged from this number on stays stored; None: nobody needs that any more."""
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
        """A checkpoint was read: the queue was held from this number on. Nothing goes."""
        self.held_from = position
        if position is not None and self.stored is self.live:
            self.stored = self.live.copy()

    def _let_go(self, numbers: Ranges) -> None:
        """These are not live any more. Nobody needs those of them that lie below what is held."""
        if self.held_from is not None and numbers:
            numbers = numbers.clip(0, self.held_from)
        if numbers:
            self.stored.remove_all(numbers)
            self.bytes -= self.index.forget(numbers, self.stored)

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """What every replica agrees on."""
        writer.u64(self.id)
        writer.text(self.name)
        writer.text(self.settings)
        writer.u32(self.settings_version)
        writer.u64(self.published)
        writer.u64(self.acknowledged)
        writer.u64(self.bytes)
        writer.u64(self.last_stored)
        writer.raw(self.digest)
        writer.bytes_(self.live.encode())
        writer.bytes_(b"" if self.stored is self.live else self.stored.difference(self.live).encode())
        self.counts.write(writer)

    def write_places(self, writer: Writer) -> None:
        """Where this replica keeps the bytes."""
        self.index.write(writer, self.stored)

    @classmethod
    def read_logical(cls, reader: Reader, use: SegmentUse) -> Queue:
        queue = cls(id=reader.u64(), name=reader.text(), settings=reader.text(), use=use)
        queue.settings_version = reader.u32()
        queue.published = reader.u64()
        queue.acknowledged = reader.u64()
        queue.bytes = reader.u64()
        queue.last_stored = reader.u64()
        queue.digest = bytes(reader.raw(DIGEST_BYTES))
        queue.live = queue.stored = Ranges.decode(reader.bytes_())
        kept = Ranges.decode(reader.bytes_())
        if kept:
            # By whom it is held, its channel's holds say.
            queue.stored = queue.live.union(kept)
        queue.counts = DeliveryCounts.read(reader)
        return queue

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)
