"""AcknowledgementLog: acknowledgements that holds keep, to be read by ranges, for an audit.

ACK1  While a hold asks for them, the acknowledgements in its destinations are here under the numbers of their
      commands, until the position of the hold has passed them. Below the lowest position of such holds
      (`wanted_from`) nothing is taken in.
ACK2  Most rows say where an ACK lies in the journal. The acknowledged numbers themselves are kept if an ACK
      asked for other numbers, or if a transaction or a consuming hold acknowledged them.
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
"""The id of a destination under which acknowledgements are copied and mended."""


class Acknowledged(NamedTuple):
    """The acknowledgements of command `number`: at a place in the journal, or listed."""

    number: int
    place: StoredBatch | None
    told: tuple[Consumed, ...]


class AcknowledgementLog:
    """The acknowledgements of a channel, by the numbers of their commands."""

    __slots__ = ("_told", "index", "stored", "wanted_from")

    id: Final = ACKNOWLEDGEMENTS

    def __init__(self, use: SegmentUse) -> None:
        self.stored = Ranges()
        self.index = BatchIndex(use)
        self._told: dict[int, tuple[Consumed, ...]] = {}
        # The lowest position of the holds that ask; None: no hold does. Derived from the holds.
        self.wanted_from: int | None = None

    def __len__(self) -> int:
        return self.stored.count + len(self._told)

    @property
    def last(self) -> int:
        """The highest number of a command that is here; 0 if there is none."""
        return max(self.stored.last if self.stored else 0, max(self._told, default=0))

    def keep(self, number: int, location: Location, offset: int, length: int) -> None:
        """Add command `number`, which acknowledged the numbers in its bytes."""
        if not self._is_wanted(number):
            return
        self.stored.add(number, number + 1)
        self.index.append((number,), (1,), location, (offset,), (length,))

    def tell(self, number: int, told: tuple[Consumed, ...]) -> None:
        """Add the numbers that command `number` acknowledged, which its bytes do not tell."""
        if told and self._is_wanted(number):
            self._told[number] = self._told.get(number, ()) + told

    def _is_wanted(self, number: int) -> bool:
        return self.wanted_from is not None and number >= self.wanted_from

    def trim(self) -> None:
        """Drop the commands below the positions of all holds."""
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
        """The part that is equal on all replicas."""
        writer.bytes_(self.stored.encode())
        writer.count(len(self._told))
        for number, told in sorted(self._told.items()):
            writer.u64(number)
            writer.count(len(told))
            for one in told:
                write_consumed(writer, one)

    def write_places(self, writer: Writer) -> None:
        """The places of this replica."""
        self.index.write(writer, self.stored)

    def read_logical(self, reader: Reader) -> None:
        self.stored = Ranges.decode(reader.bytes_())
        for _ in range(reader.count(8 + 4)):
            number = reader.u64()
            self._told[number] = tuple([read_consumed(reader) for _ in range(reader.count(20))])

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)


def read_acknowledged(data: Buffer) -> tuple[Consumed, ...]:
    """The acknowledgements of a kept command; raises ProtocolError if it has none."""
    for header, body, _ in iterate_commands(data):
        if header.kind == CommandKind.ACK:
            one = Acknowledge.decode(body)
            return (Consumed(one.destination, one.subscription, one.ranges),)
    raise ProtocolError("a command that acknowledges nothing")
