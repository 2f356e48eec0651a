"""Receipts: the places of confirmed messages.

A producer's numbers and the channel's both count on, so a million receipts are a few spans; a `Receipt` is
made when it is looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, overload

from antiphon.ids import format_message_id
from antiphon.wire.commands import ConfirmItem, OutcomeCode

_KNOWN: Final = int(OutcomeCode.KNOWN)
_TAKEN: Final = int(OutcomeCode.TAKEN)


class Receipt:
    """A sent message: what `send` returns once it is safe.

    >>> receipt = await producer.send(b"...")
    >>> receipt.message_id, receipt.channel, receipt.sequence
    ('ID:00000000000000000000000000000007-1@a', 'a', 12)
    """

    __slots__ = ("_number", "_session", "channel", "duplicate", "sequence")

    def __init__(
        self, session: int, channel: str, number: int, sequence: int | None, duplicate: bool = False
    ) -> None:
        self._session = session
        self._number = number
        self.channel = channel
        self.sequence = sequence
        """The message's place in the channel's order; None while that is not known: in a transaction before
        its commit, and of non-persistent messages."""
        self.duplicate = duplicate
        """Was a message with the same `dedup_id` there before? Then `sequence` is the place of that one."""

    @property
    def message_id(self) -> str:
        return format_message_id(self._session, self.channel, self._number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return (self.message_id, self.sequence) == (other.message_id, other.sequence)

    def __hash__(self) -> int:
        return hash((self._session, self._number, self.sequence))

    def __repr__(self) -> str:
        if self.sequence is None:
            return f"<Receipt, not stored yet, on {self.channel}, {self.message_id}>"
        same = ", a duplicate" if self.duplicate else ""
        return f"<Receipt {self.sequence} on {self.channel}, {self.message_id}{same}>"


def receipt_of(item: ConfirmItem, session: int, channel: str, number: int) -> Receipt:
    """The receipt of one of the messages with this outcome, which is one of the ACCEPTED."""
    sequence = None if item.code == _TAKEN else item.sequence + number - item.number
    return Receipt(session, channel, number, sequence, item.code == _KNOWN)


class StoredRun(NamedTuple):
    """Messages with consecutive numbers and places; the first one is at `place` among all."""

    place: int
    number: int
    sequence: int | None
    length: int
    duplicate: bool = False

    def receipt(self, past: int, session: int, channel: str) -> Receipt:
        sequence = None if self.sequence is None else self.sequence + past
        return Receipt(session, channel, self.number + past, sequence, self.duplicate)


class Receipts(Sequence[Receipt]):
    """The receipts of a `send_many`, in the order of the bodies.

    >>> receipts = await producer.send_many([b"a", b"b"])
    >>> len(receipts), receipts[-1].sequence, [receipt.message_id for receipt in receipts]
    """

    __slots__ = ("_length", "_session", "_spans", "channel")

    def __init__(self, session: int, channel: str) -> None:
        self.channel = channel
        self._session = session
        self._spans: list[StoredRun] = []
        self._length = 0

    def _add_item(self, item: ConfirmItem) -> None:
        """The next messages have this outcome, which is one of the ACCEPTED."""
        sequence = None if item.code == _TAKEN else item.sequence
        self._add(item.number, sequence, item.count, item.code == _KNOWN)

    def _add(self, number: int, sequence: int | None, count: int, duplicate: bool = False) -> None:
        """The next `count` messages are stored from `sequence` on, which is None in a transaction."""
        last = self._spans[-1] if self._spans else None
        if (
            last is not None
            and last.duplicate == duplicate
            and last.number + last.length == number
            and (None if last.sequence is None else last.sequence + last.length) == sequence
        ):
            self._spans[-1] = last._replace(length=last.length + count)
        else:
            self._spans.append(StoredRun(self._length, number, sequence, count, duplicate))
        self._length += count

    @property
    def duplicates(self) -> int:
        """How many of the messages were there before, under the same `dedup_id`."""
        return sum(run.length for run in self._spans if run.duplicate)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"receipt {index} of {self._length}")
        return self._at(index % self._length)

    def _at(self, index: int) -> Receipt:
        span = self._spans[bisect_right(self._spans, index, key=lambda span: span.place) - 1]
        return span.receipt(index - span.place, self._session, self.channel)

    def __iter__(self) -> Iterator[Receipt]:
        for span in self._spans:
            for past in range(span.length):
                yield span.receipt(past, self._session, self.channel)

    def __repr__(self) -> str:
        return f"<{self._length} receipts on {self.channel}>"


class Share(NamedTuple):
    """Messages that were sent one after the other to one channel; the first one is at `place` among all, and
    `first` among those of its channel."""

    place: int
    channel: int
    first: int
    length: int


class SpanningReceipts(Receipts):
    """The receipts of a `send_many` to a destination of several channels, in the order of the bodies.

    As long as not all are stored these are the receipts up to the first one that is missing.
    """

    __slots__ = ("_parts", "_shares", "_submitted")

    def __init__(self, session: int, parts: Sequence[Receipts]) -> None:
        super().__init__(session, "")
        self._parts = parts
        self._shares: list[Share] = []
        self._submitted = [0] * len(parts)

    def _share(self, channel: int, count: int) -> None:
        """The next `count` messages go to this channel, which is named by its place."""
        last = self._shares[-1] if self._shares else None
        if last is not None and last.channel == channel:
            self._shares[-1] = last._replace(length=last.length + count)
        else:
            place = 0 if last is None else last.place + last.length
            self._shares.append(Share(place, channel, self._submitted[channel], count))
        self._submitted[channel] += count

    def _count(self) -> None:
        """Look how many are stored, from the first on."""
        for place, channel, first, length in self._shares:
            stored = min(length, len(self._parts[channel]) - first)
            if stored < length:
                self._length = place + max(0, stored)
                return
        self._length = sum(self._submitted)

    @property
    def duplicates(self) -> int:
        """How many of the messages were there before, under the same `dedup_id`."""
        return sum(receipt.duplicate for receipt in self)

    def _at(self, index: int) -> Receipt:
        share = self._shares[bisect_right(self._shares, index, key=lambda share: share.place) - 1]
        return self._parts[share.channel][share.first + index - share.place]

    def __iter__(self) -> Iterator[Receipt]:
        streams = [iter(part) for part in self._parts]
        left = self._length
        for _, channel, _, length in self._shares:
            for _ in range(min(length, left)):
                yield next(streams[channel])
            left -= min(length, left)

    def __repr__(self) -> str:
        channels = ", ".join(part.channel for part in self._parts)
        return f"<{self._length} receipts on {channels}>"
