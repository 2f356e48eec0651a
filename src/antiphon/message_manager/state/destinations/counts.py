"""DeliveryCounts: redelivery counts, as ranges by count, and rejections. Most messages have neither."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer


class DeliveryCounts:
    """Counts above 0 by number; and the messages that a consumer has rejected for good."""

    __slots__ = ("_by_count", "rejected")

    def __init__(self) -> None:
        self._by_count: dict[int, Ranges] = {}
        self.rejected = Ranges()

    def __bool__(self) -> bool:
        return bool(self._by_count or self.rejected)

    def above(self, limit: int) -> Ranges:
        """The numbers that came back more often than `limit`; 0 is no limit."""
        found = Ranges()
        for count, ranges in self._by_count.items() if limit else ():
            if count > limit:
                found.add_all(ranges)
        return found

    def counted(self) -> Ranges:
        """The numbers that have a count."""
        found = Ranges()
        for ranges in self._by_count.values():
            found.add_all(ranges)
        return found

    def of(self, number: int) -> int:
        for count, ranges in self._by_count.items():
            if number in ranges:
                return count
        return 0

    def among(self, numbers: Ranges) -> Ranges:
        """Those of these numbers that have a count."""
        found = Ranges()
        for ranges in self._by_count.values():
            found.add_all(ranges.intersection(numbers))
        return found

    def items(self) -> Iterator[tuple[int, int]]:
        for count, ranges in self._by_count.items():
            for number in ranges.numbers():
                yield number, count

    def run(self, start: int, stop: int) -> tuple[int, int]:
        """The count at `start`, and the end of the run that has it (`stop` at the latest)."""
        for count, ranges in self._by_count.items():
            part = ranges.clip(start, stop)
            if not part:
                continue
            if part.first == start:
                return count, next(iter(part))[1]
            stop = part.first
        return 0, stop

    def raise_(self, numbers: Ranges) -> None:
        rest = numbers
        for count in sorted(self._by_count):
            hit = self._by_count[count].intersection(rest)
            if not hit:
                continue
            rest = rest.difference(hit)
            self._remove(count, hit)
            self._by_count.setdefault(count + 1, Ranges()).add_all(hit)
        if rest:
            self._by_count.setdefault(1, Ranges()).add_all(rest)

    def forget(self, numbers: Ranges) -> None:
        for count in list(self._by_count):
            self._remove(count, numbers)
        if self.rejected:
            self.rejected.remove_all(numbers)

    def _remove(self, count: int, numbers: Ranges) -> None:
        ranges = self._by_count[count]
        ranges.remove_all(numbers)
        if not ranges:
            del self._by_count[count]

    def write(self, writer: Writer) -> None:
        writer.count(len(self._by_count))
        for count, ranges in sorted(self._by_count.items()):
            writer.u32(count)
            writer.bytes_(ranges.encode())
        writer.bytes_(self.rejected.encode())

    @classmethod
    def read(cls, reader: Reader) -> DeliveryCounts:
        counts = cls()
        for _ in range(reader.count(8)):
            count = reader.u32()
            counts._by_count[count] = Ranges.decode(reader.bytes_())
        if 0 in counts._by_count:
            raise ProtocolError("a delivery count of 0 is not kept")
        counts.rejected = Ranges.decode(reader.bytes_())
        return counts
