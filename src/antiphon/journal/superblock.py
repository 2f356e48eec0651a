"""The superblock: the few facts a node may never forget, in four copies of one page.

The copies form two pairs. A new version goes into one pair, and into the other when it is durable there. So a
torn write costs at most one pair. Of the valid copies the newest counts, even a single one: using an
unconfirmed promise is harmless, forgetting one is not. A crash leaves at least two valid copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from antiphon.errors import Damaged, FormatMismatch
from antiphon.journal.format import (
    FORMAT_VERSION,
    PAGE,
    SEAL_BYTES,
    SUPERBLOCK,
    Geometry,
    open_page,
    seal_page,
)
from antiphon.journal.ports import NOWHERE, Disk, Position

COPIES: Final = 4
_MAGIC: Final = b"ANTIPHON"
_MAGIC_AND_VERSION = Struct("<8sI")
_FACTS = Struct("<8sI16sHQQQI?IIIQI3I3IB")
# The disk id is learned from the superblock itself, so its seed cannot be made of that.
_SEED: Final = 0x414E5449
CLUSTER_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    disk_id: bytes
    node_id: int
    cluster: str
    geometry: Geometry
    sequence: int = 1
    promised: int = 0
    epoch_claimed: int = 0
    # How often the journal was opened; everything written carries the number.
    run: int = 0
    clean: bool = False
    # The oldest segment whose order is still needed; all its successors must be there.
    tail_start: int = 0
    # The newest segment known to be in use.
    last_segment: int = 0
    # New segments get higher numbers, so that no number ever means two contents.
    highest_number: int = 0
    # Where this run began: all before it is durable, all behind it is this run's.
    start: Position = NOWHERE
    # Known durable when this version was written; after a clean end, everything.
    synced: Position = NOWHERE

    def encode(self) -> bytes:
        name = self.cluster.encode()
        assert len(name) <= CLUSTER_BYTES_MAX, "the name of the cluster is too long"
        facts = _FACTS.pack(
            _MAGIC,
            FORMAT_VERSION,
            self.disk_id,
            self.node_id,
            self.sequence,
            self.promised,
            self.epoch_claimed,
            self.run,
            self.clean,
            self.tail_start,
            self.last_segment,
            self.highest_number,
            self.geometry.segment_bytes,
            self.geometry.order_blocks,
            *self.start,
            *self.synced,
            len(name),
        )
        return seal_page(facts + name, _SEED)


def decode(page: bytes) -> Superblock | None:
    """None: the page is not whole, or of another format."""
    body = open_page(page, _SEED) if len(page) == PAGE else None
    if body is None or _MAGIC_AND_VERSION.unpack_from(body) != (_MAGIC, FORMAT_VERSION):
        return None
    (_, _, disk_id, node_id, sequence, promised, claimed, run, clean, tail, last, highest, size, blocks) = (
        fields := _FACTS.unpack_from(body)
    )[:14]
    return Superblock(
        disk_id=disk_id,
        node_id=node_id,
        cluster=body[_FACTS.size : _FACTS.size + fields[20]].decode(),
        geometry=Geometry(size, blocks),
        sequence=sequence,
        promised=promised,
        epoch_claimed=claimed,
        run=run,
        clean=clean,
        tail_start=tail,
        last_segment=last,
        highest_number=highest,
        start=Position(*fields[14:17]),
        synced=Position(*fields[17:20]),
    )


def create(disk: Disk, superblock: Superblock) -> None:
    disk.write_whole(SUPERBLOCK, [superblock.encode()] * COPIES)


@dataclass(slots=True)
class SuperblockFile:
    current: Superblock
    repairs: list[str]
    _disk: Disk
    _copies: list[Superblock | None]
    # The pair (0 or 1) that holds the newest durable version.
    _stable_pair: int = 0
    _in_flight: int = 0

    @classmethod
    def load(cls, disk: Disk) -> SuperblockFile:
        """Choose among the copies. Changes nothing."""
        pages = [disk.read(SUPERBLOCK, copy * PAGE, PAGE) for copy in range(COPIES)]
        copies = [decode(page) for page in pages]
        valid = [copy for copy in copies if copy is not None]
        if len(valid) < 2:
            _refuse_other_format(pages)
            first_bad = next(number for number, copy in enumerate(copies) if copy is None)
            what = f"only {len(valid)} of {COPIES} copies of the superblock can be read, two are needed"
            raise Damaged(SUPERBLOCK, first_bad * PAGE, what)
        newest = max(valid, key=lambda copy: copy.sequence)
        repairs = [
            f"{SUPERBLOCK}: copy {number + 1} at byte {number * PAGE} could not be read and was written anew"
            for number, copy in enumerate(copies)
            if copy is None
        ]
        return cls(newest, repairs, disk, copies, copies.index(newest) // 2)

    @property
    def is_in_flight(self) -> bool:
        """While true nothing may be written: only the other pair is sure."""
        return self._in_flight != 0

    def write(self, changed: Superblock) -> int:
        """Write the next version into the other pair; returns its sequence number."""
        assert not self.is_in_flight, "a superblock is on its way to the disk already"
        self.current = replace(changed, sequence=self.current.sequence + 1)
        self._put(1 - self._stable_pair)
        self._in_flight = self.current.sequence
        return self.current.sequence

    def synced(self, sequence: int) -> None:
        if sequence and sequence == self._in_flight:
            self._in_flight = 0
            self._stable_pair = 1 - self._stable_pair
            self._put(1 - self._stable_pair)

    def settle(self, changed: Superblock) -> None:
        """Write a version into all copies, blocking, with at least two good ones at any time."""
        assert not self.is_in_flight, "a superblock is on its way to the disk already"
        for copy in (2 * self._stable_pair, 2 * self._stable_pair + 1):
            if self._copies[copy] != self.current:
                # The good copy beside it is left alone.
                self._disk.write(SUPERBLOCK, copy * PAGE, [self.current.encode()])
                self._disk.sync([SUPERBLOCK])
        sequence = self.write(changed)
        self._disk.sync([SUPERBLOCK])
        self.synced(sequence)
        self._disk.sync([SUPERBLOCK])

    def _put(self, pair: int) -> None:
        page = self.current.encode()
        self._disk.write(SUPERBLOCK, 2 * pair * PAGE, [page, page])
        self._copies[2 * pair : 2 * pair + 2] = [self.current] * 2


def _refuse_other_format(pages: list[bytes]) -> None:
    """Refuse two pages with the right magic and another version: that is no accident."""
    heads = [_MAGIC_AND_VERSION.unpack_from(page, SEAL_BYTES) for page in pages if len(page) == PAGE]
    versions = [version for magic, version in heads if magic == _MAGIC and version != FORMAT_VERSION]
    for version in versions:
        if versions.count(version) >= 2:
            raise FormatMismatch(
                f"the data directory has format {version}, this version of Antiphon reads format "
                f"{FORMAT_VERSION}: nothing was changed; start it with the version that wrote it"
            )
