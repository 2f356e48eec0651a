"""Topic: messages stored once for all subscriptions.

TPC1  published = kept + trimmed, always.
TPC2  A message is kept while a subscription or a hold needs it. Beyond that it is kept until it is older than
      the topic's retention, in log time, or until more than `retention_bytes` are newer.
TPC3  The same commands give the same state and digest on every replica, wherever each has the bytes.
TPC4  What is done with a message of the topic through a family is done with the topic's message.
TPC5  Messages are looked at by runs of numbers and by batches, never one by one.

The *horizon* is a number: messages up to it are too old, or too many, to be kept for retention, and are kept
only for subscriptions and holds.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from hashlib import blake2b
from operator import attrgetter
from typing import Final, NamedTuple

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.ages import Ages
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.family import Family, Undecided
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse
from antiphon.message_manager.state.destinations.queue import DIGEST_BYTES, NO_DIGEST
from antiphon.message_manager.state.destinations.rules import PLAIN, DeliveryRules
from antiphon.message_manager.state.destinations.settings import ReturnRules, topic_rules_of
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.names import LOG_TOPIC_NAME
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer, encode_text

MARKS_MAX: Final = 1_024
"""Marks of time within the age of retention, about: an hour is seen in steps of four seconds."""

RANGES_FEW: Final = 4_096
TRIM_SHARE: Final = 64
"""With few ranges every byte too much goes at once. With many it goes when it is this share of the kept
bytes: each trimming moves all ranges behind it."""

NOT_MATCHED: Final = Undecided()
"""Of a topic that is in no channel."""

_ID = struct.Struct("<Q")
_MARK = struct.Struct("<Qq")
_NUMBERS = struct.Struct("<I14Q")
_UNTOUCHED, _TOUCHED = b"\x00", b"\x01"
_PUBLISHED = struct.Struct("<BQII")
_OF_SUBSCRIPTION = struct.Struct("<BQ")
_ACKNOWLEDGED, _RETURNED, _SUBSCRIBED, _UNSUBSCRIBED = 2, 3, 4, 5
_EXPIRED: Final = b"\x06"
_SKIPPED: Final = 7
_DROPPED: Final = 8
_REJECTED, _DEAD, _PURGED = 9, 10, 11
_ALTERED: Final = b"\x0c"
_EMPTIED: Final = b"\x0d"
_KNOWN: Final = b"\x0e"


class Mark(NamedTuple):
    """All messages through this number were there at this log time."""

    through: int
    time_ms: int


_through_of = attrgetter("through")


class Topic:
    """A topic; `id` is the number of its CREATE."""

    __slots__ = (
        "acknowledged",
        "ages",
        "bytes",
        "dead",
        "digest",
        "dropped",
        "duplicates",
        "expired",
        "families",
        "fresh_bytes",
        "held_from",
        "horizon",
        "id",
        "index",
        "is_reserved",
        "last",
        "live",
        "lost_through",
        "marked",
        "marks",
        "name",
        "no_local",
        "published",
        "purged",
        "retention",
        "returns",
        "rules",
        "settings",
        "settings_version",
        "subscriptions",
        "trimmed",
        "undecided",
    )

    # Each subscription has its own counts.
    counts = DeliveryCounts()

    def __init__(
        self,
        *,
        id: int,
        name: str,
        settings: str,
        use: SegmentUse,
        ages: Ages | None = None,
        undecided: Undecided | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.settings_version = 1
        # Clients do not publish to a topic of the system.
        self.is_reserved = name == LOG_TOPIC_NAME
        self._set(settings)
        self.ages = Ages() if ages is None else ages
        self.live = Ranges()
        self.index = BatchIndex(use)
        self.rules = PLAIN
        self.bytes = 0
        self.published = 0
        self.trimmed = 0
        # By all subscriptions together, also those that have ended.
        self.acknowledged = 0
        self.expired = 0
        self.dropped = 0
        self.dead = 0
        self.purged = 0
        # Messages that were not stored because their id was known.
        self.duplicates = 0
        # The last number that ever was a message of this topic.
        self.last = 0
        # The highest trimmed number: a range read from there or from before has losses.
        self.lost_through = 0
        self.held_from: int | None = None
        self.horizon = 0
        # Bytes above the horizon.
        self.fresh_bytes = 0
        # Marks ascend; those behind the horizon are gone. All numbers through `marked` once had a mark.
        self.marks: list[Mark] = []
        self.marked = 0
        # By id, which is the order in which they came.
        self.subscriptions: dict[int, Subscription] = {}
        # Those of them that leave out what their own connection or client id publishes.
        self.no_local: dict[int, Subscription] = {}
        # The families to which the topic belongs, by id; and those that may not have decided about it yet.
        self.families: tuple[Family, ...] = ()
        self.undecided = NOT_MATCHED if undecided is None else undecided
        # Covers all commands to the topic, so that a checkpoint need not.
        self.digest = NO_DIGEST

    @property
    def stored(self) -> Ranges:
        return self.live

    @property
    def last_stored(self) -> int:
        return self.last

    @property
    def can_be_matched(self) -> bool:
        """May a pattern match the name? Temporary topics come and go, and are strangers'."""
        return not self.name.startswith("topic:_")

    @property
    def may_delay(self) -> bool:
        return self.returns.delay_ms > 0

    def by_returns(self, numbers: Ranges) -> tuple[tuple[ReturnRules, Ranges], ...]:
        return ((self.returns, numbers),)

    def doomed(self, counts: DeliveryCounts) -> Ranges:
        """Those that came back too often."""
        return counts.above(self.returns.redelivery_limit)

    def _remember(self, what: bytes) -> None:
        self.digest = blake2b(self.digest + what, digest_size=DIGEST_BYTES).digest()

    def _remember_of(self, what: int, subscription: Subscription, more: bytes = b"") -> None:
        self._remember(_OF_SUBSCRIPTION.pack(what, subscription.id) + more)

    # -- messages --------------------------------------------------------------

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
        digest of the envelope, so that the topic's covers the contents. `rules` are those of the rows. The
        rows with `known` numbers are not stored: these numbers stay empty, too.
        """
        if known:
            self.duplicates += known.count
            self._remember(_KNOWN + known.encode())
            if known.count == count - skip:
                return
        if rules is not None:
            self.rules = self.rules.note(rules, first, skip)
        if self.last <= self.marked:
            self.ages.unmarked[self.id] = self
        stored = count - skip - (known.count if known else 0)
        size = length // count * stored
        self.index.append((first,), (count,), location, (offset,), (length,))
        self.live.add(first + skip, first + count)
        self.last = first + count - 1
        if known:
            self.live.remove_all(known)
            self.rules = self.rules.forget(known)
            self.last = self.live.last
        self.published += stored
        self.bytes += size
        self.fresh_bytes += size
        self._remember(_PUBLISHED.pack(1, first, count, skip) + origin)
        if self.families:
            here = self.live.clip(first + skip, first + count)
            for family in self.families:
                family.published_by(self, here, rules, first, skip, known)
        if not self.retention.age_ms:
            self._move_horizon(self.last)
        elif self.fresh_bytes > self.retention.bytes:
            self._shed(self.fresh_bytes - self.retention.bytes)

    def acknowledged_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self.acknowledged += numbers.count
        self._done_by(_ACKNOWLEDGED, subscription, numbers)

    def skipped_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self._done_by(_SKIPPED, subscription, numbers)

    def buried_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self.dead += numbers.count
        self._done_by(_DEAD, subscription, numbers)

    def purged_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self.purged += numbers.count
        self._done_by(_PURGED, subscription, numbers)

    def drop_all(self) -> None:
        """Let everything be kept for subscriptions and holds only, as if it had become too old."""
        self._remember(_EMPTIED)
        self._move_horizon(max(self.horizon, self.last))

    def alter(self, settings: str) -> None:
        """Change the settings; a shorter retention has its effect with the next message or mark of time."""
        self.settings_version += 1
        self._set(settings)
        self._remember(_ALTERED + settings.encode())
        if not self.retention.age_ms:
            self._move_horizon(max(self.horizon, self.last))
        elif self.fresh_bytes > self.retention.bytes:
            self._shed(self.fresh_bytes - self.retention.bytes)
        self.ages.look(self)

    def _set(self, settings: str) -> None:
        # Very many topics may share one text, and what is made of it.
        self.settings = sys.intern(settings)
        self.retention, self.returns = topic_rules_of(settings)

    def rejected_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self._remember_of(_REJECTED, subscription, numbers.encode())

    def _done_by(self, what: int, subscription: Subscription, numbers: Ranges) -> None:
        self._remember_of(what, subscription, numbers.encode())
        if numbers.first <= self.horizon:
            self._trim(numbers.clip(0, self.horizon + 1))

    def expire(self, numbers: Ranges) -> dict[int, Ranges]:
        """Take messages from all subscriptions because their time is over; returns whose each were.

        Retention keeps the messages as any others; a later subscription does not get them.
        """
        numbers = self.rules.expires.numbers.intersection(numbers)
        if not numbers:
            return {}
        gone = {id: subscription.lose(numbers) for id, subscription in self.subscriptions.items()}
        for family in self.families:
            gone |= family.expire(numbers)
        self.expired += sum([one.count for one in gone.values()])
        self.rules.lapse(numbers)
        self._remember(_EXPIRED + numbers.encode())
        if numbers.first <= self.horizon:
            self._trim(numbers.clip(0, self.horizon + 1))
        return {id: one for id, one in gone.items() if one}

    def dropped_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self.dropped += numbers.count
        self._remember_of(_DROPPED, subscription, numbers.encode())
        if numbers.first <= self.horizon:
            self._trim(numbers.clip(0, self.horizon + 1))

    def returned_by(self, subscription: Subscription, numbers: Ranges) -> None:
        self._remember_of(_RETURNED, subscription, numbers.encode())

    # -- subscriptions -----------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self._enter(subscription)
        subscription.begin()
        kind = bytes((subscription.is_durable, subscription.is_shared, subscription.no_local))
        self._remember_of(_SUBSCRIBED, subscription, kind + subscription.selector.encode())

    def _enter(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.id] = subscription
        if subscription.no_local:
            self.no_local[subscription.id] = subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.id]
        self.no_local.pop(subscription.id, None)
        self._remember_of(_UNSUBSCRIBED, subscription)
        self._trim(self.live.clip(subscription.floor + 1, self.horizon + 1))

    @property
    def sources(self) -> list[Subscription]:
        """All subscriptions that may need messages of the topic: its own, and those of its families."""
        found = list(self.subscriptions.values())
        for family in self.families:
            found += family.subscriptions.values()
        return found

    def tidy(self) -> None:
        """Trim what nobody needs any more: a subscription of a family has ended, or a family has decided."""
        self._trim(self.live.clip(0, self.horizon + 1))

    # -- holds -------------------------------------------------------------------

    def hold_from(self, position: int | None) -> None:
        """Trim nothing from this number on; None: there is no hold."""
        before, self.held_from = self.held_from, position
        if before is not None and before != position:
            self._trim(self.live.clip(before, self.horizon + 1))

    def held_again(self, position: int | None) -> None:
        """Restore the position of a hold from a checkpoint; nothing is trimmed."""
        self.held_from = position

    # -- retention ---------------------------------------------------------------

    def time_passed(self, now_ms: int) -> None:
        """Mark the log time, and trim messages that have become too old (TPC2)."""
        marks, age_ms = self.marks, self.retention.age_ms
        if self.last > self.marked:
            self.marked = self.last
            # The last mark moves until it is far enough from the mark before: some messages are kept longer.
            if len(marks) > 1 and (now_ms - marks[-2].time_ms) * MARKS_MAX < age_ms:
                marks.pop()
            marks.append(Mark(self.last, now_ms))
        old = 0
        while old < len(marks) and now_ms - marks[old].time_ms >= age_ms:
            old += 1
        through = marks[old - 1].through if old else 0
        del marks[:old]
        if through > self.horizon:
            self._move_horizon(through)

    def due_ms(self) -> int | None:
        """The log time at which a message becomes too old; 0 if log time must be marked first."""
        if self.horizon >= self.last:
            return None
        if self.marked < self.last:
            return 0
        return self.marks[0].time_ms + self.retention.age_ms

    def _shed(self, excess: int) -> None:
        if len(self.live) > RANGES_FEW and excess * TRIM_SHARE < self.fresh_bytes:
            return
        self._move_horizon(self.index.reach(self.horizon + 1, excess, self.live) - 1)

    def _move_horizon(self, through: int) -> None:
        passed = self.live.clip(self.horizon + 1, through + 1)
        self.horizon = through
        passed_marks = bisect_right(self.marks, through, key=_through_of)
        del self.marks[:passed_marks]
        if passed:
            self.fresh_bytes -= self.index.weigh(passed)
            self._trim(passed)

    def _trim(self, numbers: Ranges) -> None:
        """Trim those of these kept messages that no subscription and no hold needs."""
        if self.held_from is not None and numbers and numbers.last >= self.held_from:
            numbers = numbers.clip(0, self.held_from)
        if numbers and self.undecided.families:
            kept_from = self.undecided.kept_from(self)
            numbers = numbers if kept_from is None else numbers.clip(0, kept_from)
        for subscription in self.sources if self.families else self.subscriptions.values():
            if not numbers:
                return
            if subscription.floor < numbers.last:
                numbers = numbers.difference(subscription.needs(numbers))
        if not numbers:
            return
        for family in self.families:
            family.trimmed(numbers)
        if len(numbers) > 1 and self.live.clip(numbers.first, numbers.last + 1) == numbers:
            # Without exceptions they go in one piece, however many batches they are.
            self.live.remove(numbers.first, numbers.last + 1)
        else:
            self.live.remove_all(numbers)
        self.bytes -= self.index.forget(numbers, self.live)
        self.trimmed += numbers.count
        if self.rules:
            self.rules = self.rules.forget(numbers)
        self.lost_through = max(self.lost_through, numbers.last)

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """The part that is equal on all replicas, but for the settings, which many may share."""
        if self.digest == NO_DIGEST:
            # No command yet but its CREATE, which is so of most topics where there are very many.
            writer.parts += (_ID.pack(self.id), encode_text(self.name), _UNTOUCHED)
            return
        numbers = _NUMBERS.pack(
            self.settings_version,
            self.published,
            self.trimmed,
            self.acknowledged,
            self.expired,
            self.dropped,
            self.dead,
            self.purged,
            self.duplicates,
            self.bytes,
            self.last,
            self.horizon,
            self.fresh_bytes,
            self.marked,
            self.lost_through,
        )
        head = (_ID.pack(self.id), encode_text(self.name), _TOUCHED, numbers, self.digest)
        writer.parts.append(b"".join(head))
        writer.bytes_(self.live.encode())
        self.rules.write(writer)
        writer.count(len(self.marks))
        writer.raw(b"".join([_MARK.pack(*mark) for mark in self.marks]))
        writer.count(len(self.subscriptions))
        for subscription in self.subscriptions.values():
            subscription.write(writer)

    def write_places(self, writer: Writer) -> None:
        """The places of this replica."""
        self.index.write(writer, self.live)

    @classmethod
    def read_logical(
        cls,
        reader: Reader,
        settings: str,
        use: SegmentUse,
        ages: Ages | None = None,
        undecided: Undecided | None = None,
    ) -> Topic:
        topic = cls(
            id=reader.u64(), name=reader.text(), settings=settings, use=use, ages=ages, undecided=undecided
        )
        if not reader.bool_():
            return topic
        (
            topic.settings_version,
            topic.published,
            topic.trimmed,
            topic.acknowledged,
            topic.expired,
            topic.dropped,
            topic.dead,
            topic.purged,
            topic.duplicates,
            topic.bytes,
            topic.last,
            topic.horizon,
            topic.fresh_bytes,
            topic.marked,
            topic.lost_through,
        ) = reader.numbers(_NUMBERS)
        topic.digest = bytes(reader.raw(DIGEST_BYTES))
        topic.live = Ranges.decode(reader.bytes_())
        topic.rules = DeliveryRules.read(reader)
        for _ in range(reader.count(8 + 8)):
            topic.marks.append(Mark(reader.u64(), reader.i64()))
        for _ in range(reader.count(8 + 1 + 1 + 4 + 2 + 2 + 8 + 8 + 2 + 1 + 16 + 8 + 8 + 4 + 4 + 4)):
            topic._enter(Subscription.read(reader, topic))
        return topic

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)
