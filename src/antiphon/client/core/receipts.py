"""Receipts: the places of confirmed messages.

A producer's numbers and the channel's both count on, so a million receipts are a few spans; a `Receipt` is
made when it is looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from antiphon.ids import format_message_id


class Receipt:
    """A stored message: what `send` returns once it is safe.

    >>> receipt = await producer.send(b"...")
    >>> receipt.message_id, receipt.channel, receipt.sequence
    ('ID:00000000000000000000000000000007-1@a', 'a', 12)
    """

    __slots__ = ("_number", "_session", "channel", "sequence")

    def __init__(self, session: int, channel: str, number: int, sequence: int | None) -> None:
        self._session = session
        self._number = number
        self.channel = channel
        self.sequence = sequence
        """The message's place in the channel's order; None in a transaction, until its commit."""

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
            return f"<Receipt, in a transaction, on {self.channel}, {self.message_id}>"
        return f"<Receipt {self.sequence} on {self.channel}, {self.message_id}>"


class StoredRun(NamedTuple):
    """Messages with consecutive numbers and places; the first one is at `place` among all."""

    place: int
    number: int
    sequence: int | None
    length: int

    def receipt(self, past: int, session: int, channel: str) -> Receipt:
        sequence = None if self.sequence is None else self.sequence + past
        return Receipt(session, channel, self.number + past, sequence)


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

    def _add(self, number: int, sequence: int | None, count: int) -> None:
        """The next `count` messages are stored from `sequence` on, which is None in a transaction."""
        last = self._spans[-1] if self._spans else None
        if (
            last is not None
            and last.number + last.length == number
            and (None if last.sequence is None else last.sequence + last.length) == sequence
        ):
            self._spans[-1] = last._replace(length=last.length + count)
        else:
            self._spans.append(StoredRun(self._length, number, sequence, count))
        self._length += count

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
        index %= self._length
        at = bisect_right(self._spans, index, key=lambda span: span.place) - 1
        span = self._spans[at]
        return span.receipt(index - span.place, self._session, self.channel)

    def __iter__(self) -> Iterator[Receipt]:
        for span in self._spans:
            for past in range(span.length):
                yield span.receipt(past, self._session, self.channel)

    def __repr__(self) -> str:
        return f"<{self._length} receipts on {self.channel}>"
