"""Uncommitted: batches that are stored and that nobody may see yet.

Where it sits
    fold  ->  UNCOMMITTED  ->  a destination, when their transaction commits

What it promises
    N1  A batch is known by the number of the command that brought it, and takes that one number whatever
        it holds. So it can be named on every replica, copied, mended and joined like those of destinations.
    N2  Its bytes count for their segment until it is dropped, or handed on to a destination.

What it leaves to others
    To whom a batch belongs, and what becomes of it, is the transactions' business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse, StoredBatch
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

ORIGIN_BYTES: Final = 16


class Held(NamedTuple):
    """A batch on its way to a destination; `origin` is the digest of the envelope that brought it."""

    destination: int
    rows: int
    origin: bytes


class Uncommitted:
    """The uncommitted batches of a channel. To whoever copies or mends records it is destination 0."""

    __slots__ = ("_held", "generation", "index", "live")

    id: Final = 0

    def __init__(self, use: SegmentUse) -> None:
        self._held: dict[int, Held] = {}
        self.live = Ranges()
        self.index = BatchIndex(use)
        # Rises whenever batches leave: who kept in mind which records are referred to from here looks again.
        self.generation = 0

    @property
    def stored(self) -> Ranges:
        """What lies in the journal."""
        return self.live

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, number: int, held: Held, location: Location, offset: int, length: int) -> None:
        """Take in the batch that command `number` brought."""
        self._held[number] = held
        self.live.add(number, number + 1)
        self.index.append((number,), (1,), location, (offset,), (length,))

    def held(self, number: int) -> Held:
        return self._held[number]

    def look_up(self, number: int) -> tuple[Held, StoredBatch]:
        """The batch that command `number` brought, and where it lies."""
        return self._held[number], self.index.find(number)

    def drop(self, numbers: Iterable[int]) -> None:
        """These are gone, or have become a destination's."""
        gone = Ranges([(number, number + 1) for number in sorted(numbers)])
        if not gone:
            return
        for number in gone.numbers():
            del self._held[number]
        self.live.remove_all(gone)
        self.index.forget(gone, self.live)
        self.generation += 1

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """What every replica agrees on."""
        writer.count(len(self._held))
        for number, held in sorted(self._held.items()):
            writer.u64(number)
            writer.u64(held.destination)
            writer.u32(held.rows)
            writer.raw(held.origin)

    def write_places(self, writer: Writer) -> None:
        """Where this replica keeps the bytes."""
        self.index.write(writer, self.live)

    def read_logical(self, reader: Reader) -> None:
        for _ in range(reader.count(8 + 8 + 4 + ORIGIN_BYTES)):
            number = reader.u64()
            self._held[number] = Held(reader.u64(), reader.u32(), bytes(reader.raw(ORIGIN_BYTES)))
            self.live.add(number, number + 1)

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)
