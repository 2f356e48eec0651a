"""Uncommitted: stored batches that are not visible before their transaction commits.

UNC1  A batch is known by the number of its command, and takes that one number. So it can be named on every
      replica, copied, mended and joined like the batches of destinations.
UNC2  Its bytes count for their segment until the batch is dropped, or handed to a destination.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.index import BatchIndex, SegmentUse, StoredBatch
from antiphon.message_manager.state.destinations.rules import DeliveryRules
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

ORIGIN_BYTES: Final = 16
_PLAIN: Final = DeliveryRules()


class Held(NamedTuple):
    """A batch on its way to a destination; `origin` is the digest of its envelope.

    The rules of its rows, counted from 0, are noted when it becomes visible; None: it has none. Likewise the
    `ids` of its rows, see `row_ids`.
    """

    destination: int
    rows: int
    origin: bytes
    rules: DeliveryRules | None = None
    ids: bytes = b""


class Uncommitted:
    """The uncommitted batches of a channel, with the id 0 of a destination for copying and mending."""

    __slots__ = ("_held", "generation", "index", "live")

    id: Final = 0

    def __init__(self, use: SegmentUse) -> None:
        self._held: dict[int, Held] = {}
        self.live = Ranges()
        self.index = BatchIndex(use)
        # Rises whenever batches leave: a list of the records referred to from here is then out of date.
        self.generation = 0

    @property
    def stored(self) -> Ranges:
        return self.live

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, number: int, held: Held, location: Location, offset: int, length: int) -> None:
        self._held[number] = held
        self.live.add(number, number + 1)
        self.index.append((number,), (1,), location, (offset,), (length,))

    def held(self, number: int) -> Held:
        return self._held[number]

    def look_up(self, number: int) -> tuple[Held, StoredBatch]:
        return self._held[number], self.index.find(number)

    def drop(self, numbers: Iterable[int]) -> None:
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
        """The part that is equal on all replicas."""
        writer.count(len(self._held))
        for number, held in sorted(self._held.items()):
            writer.u64(number)
            writer.u64(held.destination)
            writer.u32(held.rows)
            writer.raw(held.origin)
            (held.rules or _PLAIN).write(writer)
            writer.bytes_(held.ids)

    def write_places(self, writer: Writer) -> None:
        """The places of this replica."""
        self.index.write(writer, self.live)

    def read_logical(self, reader: Reader) -> None:
        for _ in range(reader.count(8 + 8 + 4 + ORIGIN_BYTES + 1 + 4)):
            number, destination, rows = reader.u64(), reader.u64(), reader.u32()
            origin, rules = bytes(reader.raw(ORIGIN_BYTES)), DeliveryRules.read(reader)
            ids = bytes(reader.bytes_())
            self._held[number] = Held(destination, rows, origin, rules or None, ids)
            self.live.add(number, number + 1)

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.index = BatchIndex.read(reader, use)
