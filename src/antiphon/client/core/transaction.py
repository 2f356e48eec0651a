"""TransactionCore: the open transaction of a session, channel by channel.

Where it sits
    producers  ->  batches of a PART  ->  outbox;   commit  ->  one command, or one request for all parts

What it promises
    CTX1  Every batch that leaves is counted, so that a commit names them all. A batch that has not left when
          its transaction is over does not leave.
    CTX2  A message's number is its own within its session and channel, whatever its outcome.
    CTX3  A message beyond the largest transaction is refused before it leaves.
    CTX4  After its first fault nothing of a transaction can be committed.
    CTX5  A taken message that others got since cannot be committed, even if it came back.

What it leaves to others
    The channel knows whether a part is whole, and commits. The face decides when, and tells the application.
    Staged messages outside of sessions have parts of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from antiphon.batch import Batch
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.publication import Departure, Publication
from antiphon.errors import AntiphonError, TransactionRolledBack, TransactionTooLarge
from antiphon.ranges import Ranges
from antiphon.wire.commands import COMMAND_HEADER_SIZE, RANGES_MAX, CommandKind, encode_header
from antiphon.wire.transaction_frames import TransactionPart
from antiphon.wire.transactions import (
    STAGED_BYTES_MAX,
    STAGED_MESSAGES_MAX,
    TRANSACTED_NUMBER,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
    Consumed,
    StagedPublish,
    TransactedPublish,
)


class RowNumbers:
    """The numbers of messages outside of plain publishes; counted in each channel (CTX2)."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def take(self, channel: str, count: int) -> int:
        """The first of so many unused numbers."""
        first = self._next.get(channel, TRANSACTED_NUMBER | 1)
        self._next[channel] = first + count
        return first

    def give_back(self, channel: str, first: int, taken: int, used: int) -> None:
        """Give back unused numbers. If others were taken since, the gap stays: nothing depends on it."""
        if self._next[channel] == first + taken:
            self._next[channel] = first + used


class PartCore:
    """The uncommitted messages for one channel."""

    kind = CommandKind.TX_PUBLISH
    bytes_max = TRANSACTION_BYTES_MAX
    messages_max = TRANSACTION_MESSAGES_MAX
    takes_ids = True

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.batches = 0  # these three count what has left
        self.messages = 0
        self.bytes = 0
        self.rows = 0  # whether or not they have left
        self.is_over = False

    def has_room(self, rows: int, size: int) -> bool:
        """Is there room for so many more messages, of `size` bytes that have not left?"""
        return self.rows + rows <= self.messages_max and self.bytes + size <= self.bytes_max

    def add(self, rows: int, size: int) -> None:
        """Count so many more messages; raises if there is no room (CTX3)."""
        if not self.has_room(rows, size):
            is_many = self.rows + rows > self.messages_max
            limit = f"{self.messages_max:,} messages" if is_many else f"{self.bytes_max:,} bytes"
            raise TransactionTooLarge(f"a transaction may send at most {limit} to channel {self.channel!r}")
        self.rows += rows

    def head(self, publication: Publication, rows: int) -> bytes:
        """The bytes before the batch, in the payload of its command."""
        raise NotImplementedError

    def enclose(
        self,
        publication: Publication,
        batch: Batch,
        session: int,
        generation: int,
        number: int,
        confirmed_through: int,
    ) -> Departure:
        """The command of a batch that leaves now, with one number (CTX1)."""
        head = self.head(publication, batch.count)
        length = len(head) + batch.byte_size
        header = encode_header(self.kind, session, generation, number, confirmed_through, length)
        self.batches += 1
        self.messages += batch.count
        self.bytes += batch.byte_size
        return Departure([header + head, *batch.buffers()], 1, COMMAND_HEADER_SIZE + length)


class TransactedPart(PartCore):
    def __init__(self, channel: str, transaction: int) -> None:
        super().__init__(channel)
        self._transaction = transaction

    def head(self, publication: Publication, rows: int) -> bytes:
        return TransactedPublish(
            self._transaction,
            self.batches,
            rows,
            publication.destination,
            publication.settings_version,
            0,
            b"",
        ).encode()


class StagedPartCore(PartCore):
    """A part that is staged under an id of its own."""

    kind = CommandKind.STAGE
    bytes_max = STAGED_BYTES_MAX
    messages_max = STAGED_MESSAGES_MAX
    # A staged part is committed once, by its version.
    takes_ids = False

    def __init__(self, channel: str, application: str, part: int, seconds: int, batches: int = 0) -> None:
        super().__init__(channel)
        self.batches = self._batches_before = batches
        self._application = application
        self._part = part
        self._seconds = seconds

    @property
    def batches_new(self) -> int:
        """The batches that have left since."""
        return self.batches - self._batches_before

    def head(self, publication: Publication, rows: int) -> bytes:
        return StagedPublish(
            self._part,
            self.batches,
            rows,
            self._seconds,
            publication.destination,
            publication.settings_version,
            0,
            self._application,
            b"",
        ).encode()


class TakenMessages(NamedTuple):
    """Messages that the application took from a consumer, for the transaction to acknowledge."""

    consumer: ConsumerCore
    numbers: Ranges


class TransactionCore:
    def __init__(self, number: int) -> None:
        self.number = number
        self.parts: dict[str, TransactedPart] = {}
        self.fault: AntiphonError | None = None

    def part(self, channel: str) -> TransactedPart:
        part = self.parts.get(channel)
        if part is None:
            part = self.parts[channel] = TransactedPart(channel, self.number)
            part.is_over = self.fault is not None
        return part

    @property
    def has_sends(self) -> bool:
        return any(part.rows for part in self.parts.values())

    def doom(self, error: AntiphonError) -> None:
        """The transaction cannot be committed any more; the first reason counts (CTX4)."""
        if self.fault is None:
            self.fault = error
            self.end()

    def end(self) -> None:
        """Batches that have not left do not leave (CTX1)."""
        for part in self.parts.values():
            part.is_over = True

    def commitment(self, taken: Iterable[TakenMessages]) -> tuple[TransactionPart, ...]:
        """All parts, in the order of their channels: the first channel is the home.

        Raises if others got a taken message: they may commit it too (CTX5).
        """
        taken = list(taken)
        for consumer, _ in taken:
            if consumer.forfeited:
                number = consumer.forfeited.first
                raise TransactionRolledBack(f"message {number} was given to another consumer meanwhile")
        consumed = _consumed(taken)
        channels = {name for name, part in self.parts.items() if part.batches} | set(consumed)
        found = []
        for channel in sorted(channels):
            part = self.part(channel)
            found.append(
                TransactionPart(channel, part.batches, part.messages, tuple(consumed.get(channel, ())))
            )
        return tuple(found)


def _consumed(taken: Iterable[TakenMessages]) -> dict[str, list[Consumed]]:
    """By channel; two consumers of one queue acknowledge together."""
    ranges: dict[tuple[str, int, int], Ranges] = {}
    for consumer, numbers in taken:
        place = (consumer.channel, consumer.destination, consumer.subscription)
        ranges.setdefault(place, Ranges()).add_all(numbers)
    consumed: dict[str, list[Consumed]] = {}
    count = dict.fromkeys((channel for channel, _, _ in ranges), 0)
    for (channel, destination, subscription), numbers in sorted(ranges.items(), key=lambda row: row[0]):
        consumed.setdefault(channel, []).append(Consumed(destination, subscription, numbers))
        count[channel] += len(numbers)
        if count[channel] > RANGES_MAX:
            raise TransactionTooLarge(
                f"a transaction may acknowledge at most {RANGES_MAX:,} runs of messages "
                f"of channel {channel!r}"
            )
    return consumed
