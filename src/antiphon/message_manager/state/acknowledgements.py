"""AcknowledgementLog: acknowledgements that somebody wants to read as he reads messages, for an audit.

Where it sits
    fold  ->  ACKNOWLEDGEMENT LOG  ->  range reads

What it promises
    L1  While a hold asks for them, everything that was acknowledged in its destinations is here under the
        number of the command that did it, until the hold has passed that number. Below the lowest position
        of such holds (`wanted_from`) nothing is taken in.
    L2  As a rule it is a row that says where an ACK lies in the journal. Where that asked for something else
        than what was done, or where it was no ACK that did it (but a transaction, or a holder who
        consumes), it is what was done.

What it leaves to others
    Which destinations are asked for, and how far the holders are: that is the holds' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from antiphon.bus.ports import Location
from antiphon.errors import ProtocolError
from antiphon.ids import U64_MAX
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse, StoredBatch
from antiphon.ranges import Ranges
from antiphon.wire.commands import Acknowledge, CommandKind, iterate_commands
from antiphon.wire.primitives import Buffer, Reader, Writer
from antiphon.wire.transactions import Consumed, read_consumed, write_consumed

ACKNOWLEDGEMENTS: Final = U64_MAX
"""Under this id of a destination it is known to whoever copies or mends records."""


class Acknowledged(NamedTuple):
    """What command `number` acknowledged: at a place in the journal, or told here."""

    number: int
    place: StoredBatch | None
    told: tuple[Consumed, ...]


class AcknowledgementLog:
    """The acknowledgements of a channel that are kept, by the numbers of their commands."""

    __slots__ = ("_told", "index", "stored", "wanted_from")

    id: Final = ACKNOWLEDGEMENTS

    def __init__(self, use: SegmentUse) -> None:
        # Those that lie in the journal; and the others.
        self.stored = Ranges()
        self.index = BatchIndex(use)
        self._told: dict[int, tuple[Consumed, ...]] = {}
        # The lowest position of those who ask; None: nobody does. Derived from the holds.
        self.wanted_from: int | None = None

    def __len__(self) -> int:
        return self.stored.count + len(self._told)

    @property
    def last(self) -> int:
        """The highest number of a command that is here; 0 if there is none."""
        return max(self.stored.last if self.stored else 0, max(self._told, default=0))

    def keep(self, number: int, location: Location, offset: int, length: int) -> None:
        """Command `number`, which lies there, did what it says."""
        if not self._is_wanted(number):
            return
        self.stored.add(number, number + 1)
        self.index.append((number,), (1,), location, (offset,), (length,))

    def tell(self, number: int, told: tuple[Consumed, ...]) -> None:
        """Command `number` acknowledged this, which cannot be seen from its bytes."""
        if told and self._is_wanted(number):
            self._told[number] = self._told.get(number, ()) + told

    def _is_wanted(self, number: int) -> bool:
        return self.wanted_from is not None and number >= self.wanted_from

    def trim(self) -> None:
        """Let go of what nobody asks for any more."""
        before = self.wanted_from
        gone = self.stored.clip(0, U64_MAX + 1 if before is None else before)
        if gone:
            self.stored.remove_all(gone)
            self.index.forget(gone, self.stored)
        for number in [number for number in self._told if before is None or number < before]:
            del self._told[number]

    def between(self, start: int, stop: int) -> Iterator[Acknowledged]:
        """By number, ascending, before `stop`."""
        told = sorted(number for number in self._told if start <= number < stop)
        numbers = sorted([*self.stored.clip(start, stop).numbers(), *told])
        for number in numbers:
            is_told = number in self._told
            place = None if is_told else self.index.find(number)
            yield Acknowledged(number, place, self._told.get(number, ()))

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """What every replica agrees on."""
        writer.bytes_(self.stored.encode())
        writer.count(len(self._told))
        for number, told in sorted(self._told.items()):
            writer.u64(number)
            writer.count(len(told))
            for one in told:
                write_consumed(writer, one)

    def write_places(self, writer: Writer) -> None:
        """Where this replica keeps the bytes."""
        self.index.write(writer, self.stored)

    def read_logical(self, reader: Reader) -> None:
        self.stored = Ranges.decode(reader.bytes_())
        for _ in range(reader.count(8 + 4)):
            number = reader.u64()
            self._told[number] = tuple([read_consumed(reader) for _ in range(reader.count(20))])

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)


def read_acknowledged(data: Buffer) -> tuple[Consumed, ...]:
    """What a kept command acknowledged; raises ProtocolError if it is none that acknowledges."""
    for header, body, _ in iterate_commands(data):
        if header.kind == CommandKind.ACK:
            one = Acknowledge.decode(body)
            return (Consumed(one.destination, one.subscription, one.ranges),)
    raise ProtocolError("a command that acknowledges nothing")
