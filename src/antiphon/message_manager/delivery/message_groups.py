"""MessageGroups: which of the consumers that compete gets the messages of which keys.

MGR1  Messages with the same key are a message group. While a consumer is attached, or may come back, the
      groups it was given are its own: no other consumer gets a message of them.
MGR2  The groups of a consumer that is gone wait until everything that it held is free again or has left the
      source, so that the next consumer gets a group in order. Another consumer of its session has them then;
      one is waited for a short while, because a client that rolls back begins its consumers anew.
MGR3  A group without a consumer goes to the one that has the fewest, of those that can take a message now.
MGR4  Memory is bounded, however many keys there are: keys fall into buckets, and a bucket has one consumer.
MGR5  Consumers with the same selector share their groups. Nothing is known here of other selectors: a message
      that this consumer does not want would otherwise wait for ever.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from antiphon.batch import Batch, ColumnId
from antiphon.batch.column import Column
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.consumers import Consumer
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.source import Source
from antiphon.ranges import Ranges

BUCKETS: Final = 4_096

ROW_WORK: Final = 2
"""Units of work for a row with a key (`views.WORK_BYTES`)."""

NO_BUCKET: Final = -1
"""Of a message without a key."""


class OwnMessages(NamedTuple):
    """Of the messages before `stop` those that a consumer may have, and the work that it took."""

    found: Ranges
    stop: int
    work: int


class GroupShare:
    """The groups of one consumer, by buckets."""

    __slots__ = ("awaited", "buckets", "consumer", "groups", "is_kept")

    def __init__(self, groups: MessageGroups, consumer: Consumer) -> None:
        self.groups = groups
        self.consumer = consumer
        # Of a consumer that is gone: what it held, and may its session begin it anew (MGR2)?
        self.awaited = Ranges()
        self.is_kept = False
        self.buckets: set[int] = set()

    def choose(self, batch: Batch, first: int, wanted: Ranges, stop: int, most: int) -> OwnMessages:
        """Of the wanted messages of one batch, whose row 0 is number `first`, the consumer's own.

        At most so many are chosen. Groups that have no consumer get one (MGR3).
        """
        keys = batch.column(ColumnId.KEY)
        groups, found, work = self.groups, Ranges(), 0
        shares = groups.shares
        for begin, end in wanted:
            work += ROW_WORK * (end - begin)
            buckets = buckets_of(keys, begin - first, end - first)
            for number, bucket in enumerate(buckets, begin):
                if bucket != NO_BUCKET:
                    share = shares.get(bucket)
                    if share is None:
                        share = groups.assign(bucket, self)
                        work += groups.count
                    if share is not self:
                        continue
                found.add(number, number + 1)
                if found.count == most:
                    return OwnMessages(found, number + 1, work)
        return OwnMessages(found, stop, work)


class MessageGroups:
    """The message groups of one source, for its consumers with the same selector."""

    __slots__ = ("_departed", "_members", "shares")

    def __init__(self) -> None:
        # By bucket; and the shares of consumers that are here, or are gone and awaited (MGR2).
        self.shares: dict[int, GroupShare] = {}
        self._members: list[GroupShare] = []
        self._departed: list[GroupShare] = []

    @property
    def count(self) -> int:
        """How many consumers there are."""
        return len(self._members)

    @property
    def is_idle(self) -> bool:
        return not self._members and not self._departed

    def join(self, consumer: Consumer) -> GroupShare:
        share = GroupShare(self, consumer)
        self._members.append(share)
        return share

    def assign(self, bucket: int, by: GroupShare) -> GroupShare:
        """Give a bucket to the consumer with the fewest, of those that can take a message (MGR3)."""
        best = by
        for share in self._members:
            if len(share.buckets) < len(best.buckets) and share.consumer.can_take:
                best = share
        best.buckets.add(bucket)
        self.shares[bucket] = best
        return best

    def claim(self, share: GroupShare, buckets: dict[int, int]) -> Ranges:
        """Give the buckets of these messages to the consumer that has the messages.

        Returns the messages of groups that another has.
        """
        others = Ranges()
        for number, bucket in buckets.items():
            owner = self.shares.setdefault(bucket, share)
            if owner is share:
                share.buckets.add(bucket)
            else:
                others.add(number, number + 1)
        return others

    def leave(self, share: GroupShare, held: Ranges, *, is_kept: bool) -> None:
        """A consumer is gone; its groups wait for what it held (MGR2)."""
        self._members.remove(share)
        share.awaited, share.is_kept = held, is_kept
        self._departed.append(share)

    def release(self, *withheld: Ranges) -> bool:
        """Pass on the groups of departed consumers of which nothing is among these messages; any there?"""
        released = False
        for share in list(self._departed):
            heir = self._heir(share)
            if any(some.intersection(share.awaited) for some in withheld) or (share.is_kept and not heir):
                continue
            self._departed.remove(share)
            released = released or bool(share.buckets)
            for bucket in share.buckets:
                if heir is None:
                    del self.shares[bucket]
                else:
                    self.shares[bucket] = heir
            if heir is not None:
                heir.buckets |= share.buckets
        return released

    def _heir(self, share: GroupShare) -> GroupShare | None:
        for member in self._members:
            if member.consumer.session == share.consumer.session and not member.consumer.is_away:
                return member
        return None

    def part(self, consumer: Consumer) -> None:
        """Wait no more for the session of a consumer that is gone."""
        for share in self._departed:
            if share.consumer is consumer:
                share.is_kept = False


def buckets_of(keys: Column | None, start: int, stop: int) -> list[int]:
    """The buckets of these rows' keys."""
    if keys is None:
        return [NO_BUCKET] * (stop - start)
    rows = keys.slice(start, stop)
    assert rows.offsets is not None, "keys are texts, which have offsets"
    offsets, data = rows.offsets.tolist(), rows.values.tobytes()
    begin = offsets[0]
    found = [
        xxh3_64_intdigest(data[left - begin : right - begin]) % BUCKETS for left, right in pairwise(offsets)
    ]
    if rows.presence is not None:
        found = [bucket if rows.is_present(row) else NO_BUCKET for row, bucket in enumerate(found)]
    return found


def read_buckets(source: Source, reader: BatchReader, numbers: Ranges) -> tuple[dict[int, int], Ranges]:
    """The buckets of those of these messages that have a key, by number; and those that cannot be read."""
    buckets: dict[int, int] = {}
    unknown = Ranges()
    for start, stop in source.rules.keyed.intersection(numbers):
        while start < stop:
            stored = source.index.find(start)
            end = min(stop, stored.stop)
            try:
                batch = reader.batch(stored)
            except ProtocolError:
                batch = None
            if batch is None:
                unknown.add(start, end)
            else:
                found = buckets_of(batch.column(ColumnId.KEY), start - stored.first, end - stored.first)
                buckets |= zip(range(start, end), found, strict=True)
            start = end
    return buckets, unknown
