"""A journal at work in tests: small segments, records that can be told apart, and a disk that crashes."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.ids import Mid
from antiphon.journal.format import PAGE, Settings, payload_digest
from antiphon.journal.journal import Journal, SyncTicket
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Disk, Location, Row
from antiphon.journal.recovery import Recovered

# Eight blocks of order and twenty pages of data: a segment is full after a handful of flushes.
SMALL = Settings(segment_bytes=38 * PAGE, order_blocks=8)
DISK_ID = bytes(range(16))


def payload_of(number: int, size: int) -> bytes:
    """Bytes that differ from record to record and from place to place."""
    pattern = b"".join((number * 1_000_003 + word).to_bytes(8, "little") for word in range(64))
    return (pattern * (size // len(pattern) + 1))[:size]


def mid_of(number: int) -> Mid:
    return Mid(7, 3, number)


def lose_everything(_choices: int) -> int:
    """The unluckiest power cut: of every page the last synced version is left."""
    return 0


def lose_nothing(choices: int) -> int:
    """Only the process died: the newest version of every page is there."""
    return choices - 1


@dataclass(slots=True)
class Desk:
    """A journal with somebody who writes into it and remembers what he wrote."""

    disk: Disk
    journal: Journal
    recovered: Recovered
    order: list[bytes] = field(default_factory=list)
    data: list[tuple[Mid, bytes]] = field(default_factory=list)
    index: int = 0

    @classmethod
    def new(cls, disk: Disk | None = None, settings: Settings = SMALL) -> Desk:
        disk = disk if disk is not None else MemoryDisk()
        Journal.format(disk, settings, DISK_ID, 1, "test")
        return cls.open(disk, settings)

    @classmethod
    def open(cls, disk: Disk, settings: Settings = SMALL) -> Desk:
        journal, recovered = Journal.open(disk, settings)
        return cls(disk, journal, recovered)

    def write_data(self, size: int = 1000) -> Location:
        number = len(self.data) + 1
        mid, payload = mid_of(number), payload_of(number, size)
        self.index += 1
        digest = payload_digest(mid, number, 1, payload)
        location = self.journal.append_data(self.index, mid, number, 1, digest, payload)
        self.data.append((mid, payload))
        return location

    def write_envelopes(self, *sizes: int) -> int:
        """Several in one call; how many were taken."""
        rows: list[Row] = []
        for at, size in enumerate(sizes):
            number = len(self.data) + 1 + at
            mid, payload = mid_of(number), payload_of(number, size)
            rows.append((mid, number, 1, payload_digest(mid, number, 1, payload), payload))
        indexes = range(self.index + 1, self.index + 1 + len(rows))
        taken = self.journal.append_envelopes(indexes, rows)
        self.data += [(mid, bytes(payload)) for mid, _, _, _, payload in rows[:taken]]
        self.index += taken
        return taken

    def write_order(
        self, size: int = 100, highest: int = 0, *, pinned: bool = False, bound: bool = False
    ) -> bytes:
        record = payload_of(1_000_000 + len(self.order), size)
        self.index += 1
        self.journal.append_order(self.index, record, highest, pinned=pinned, bound=bound)
        self.order.append(record)
        return record

    def flush(self) -> SyncTicket:
        ticket = self.journal.flush()
        assert ticket is not None, "there was nothing to flush"
        return ticket

    def sync(self, ticket: SyncTicket | None = None) -> None:
        """Flush, unless that was done, and sync."""
        ticket = ticket if ticket is not None else self.flush()
        self.disk.sync(ticket.files)
        self.journal.synced(ticket)

    def found(self) -> tuple[list[bytes], list[tuple[Mid, bytes]]]:
        """What recovery found, in the form in which we remember what we wrote."""
        data = [(item.mid, bytes(self.journal.read(item.location))) for item in self.recovered.data]
        return self.recovered.order, data

    def written(self) -> tuple[list[bytes], list[tuple[Mid, bytes]]]:
        return self.order, self.data
