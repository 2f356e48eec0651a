"""Journal: records go in, a sync makes them durable, and a crash takes nothing that was synced.

JNL1  `append_*` gathers, `flush` writes; the records of a ticket are durable once its files are synced.
JNL2  No page that was synced is written again while its segment is in use.
JNL3  A record lies in one segment. Without a segment `NoSpace` is raised before anything changed. A segment
      is not written to before all of the one before it is durable.
JNL4  `read` returns the bytes that were appended or raises `Damaged`.
JNL5  A segment is recycled only when its order is covered by the base, no payload in it is looked up or
      referred to, and the superblock that no longer needs it is durable.
JNL6  After a failed write nothing is accepted any more; a sync is never tried twice.
JNL7  At rest there are two segments for the log, a spare, and those with live records: by `tidy`, by
      `release` if `can_release` says so, and by two checkpoints if `holds_space` says so.

The keeper decides when to sync (`bus/keeper.py`). `recovery.py` reads back after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from antiphon.errors import Damaged, NoSpace, StorageFailed
from antiphon.ids import Mid
from antiphon.journal import checkpoints, recovery
from antiphon.journal import superblock as superblocks
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.chores import Chore
from antiphon.journal.format import (
    BOUND,
    ORDER_LENGTH,
    PINNED,
    RELOCATED,
    SEAL_BYTES,
    SUPERBLOCK,
    ZERO_PAGE,
    Geometry,
    Settings,
    blocks_for,
    checkpoint_name,
    checkpoint_numbers,
    encode_group,
    encode_records,
    page_after,
    record_size,
    seed_of,
    segment_name,
    segment_numbers,
)
from antiphon.journal.parts import Part
from antiphon.journal.payload_index import PayloadIndex
from antiphon.journal.ports import Buffer, Disk, Location, Position, Record, Row
from antiphon.journal.records import RecordReader
from antiphon.journal.recovery import Recovered, Scan
from antiphon.journal.superblock import Superblock

REST_SEGMENTS: Final = 3
"""The segments of a journal at rest, if nothing is live (JNL7)."""

REST_ROUNDS: Final = 3
"""A journal is at rest after so many calls of `tidy` without a new segment."""


@dataclass(frozen=True, slots=True)
class SyncTicket:
    """Files to sync; then everything up to `upto_index` is durable (`Journal.synced`)."""

    files: tuple[str, ...]
    upto_index: int
    position: Position
    # The version of the superblock that was written, 0 if none.
    superblock: int = 0

    def merge(self, later: SyncTicket) -> SyncTicket:
        """One ticket for both, if both were written before the sync begins."""
        files = tuple(dict.fromkeys(self.files + later.files))
        superblock = max(self.superblock, later.superblock)
        return SyncTicket(files, later.upto_index, later.position, superblock)


class Journal:
    """One journal on one disk. Opened by `Journal.open`, made by `Journal.format`."""

    def __init__(self, disk: Disk, settings: Settings, scan: Scan) -> None:
        facts = scan.superblocks.current
        self._disk = disk
        self._spares_max = settings.spares_max
        self._superblocks = scan.superblocks
        self._wanted: Superblock = facts
        self._superblock_is_due = False
        # The first record that waits for a superblock which could not be written yet.
        self._superblock_index: int | None = None
        self.geometry: Geometry = facts.geometry
        self._record_bytes_max = facts.geometry.record_bytes_max
        self.disk_id = facts.disk_id
        self._seed = seed_of(facts.disk_id)
        self._run = facts.run

        self._end = scan.end
        self._before = scan.before
        self._chain = scan.chain
        self._synced = scan.end
        # The sync position on the disk, and the end of the last record that it should cover.
        self._claimed = scan.end
        self._records_end = scan.end
        self._parts: list[Part] = []
        self._last_index = 0

        self._tail: dict[int, int] = dict(scan.tail)
        self._kept: dict[int, None] = dict.fromkeys(scan.kept)
        self._pinned: list[tuple[int, int]] = (
            [(0, scan.pinned_segment)] if scan.pinned_segment is not None else []
        )
        # Segments on their way out: the superblock that no longer needs them is to be written, is being
        # synced, is durable. Then files that may be written over, and the segment that comes next.
        self._doomed: list[int] = []
        self._dying: list[int] = []
        self._reclaimable: list[int] = []
        self._pool: list[str] = list(scan.spares)
        self._ready: int | None = None
        self._chore_is_out = False
        self._rounds = 0
        self._highest_number = scan.highest_number
        self._failure: str | None = None

        self._reader = RecordReader(disk, self._seed)
        self.payloads = PayloadIndex(self.read, self.record)
        for stored in scan.data:
            self.payloads.add(stored.mid, stored.location)

    # --- making and opening ---

    @staticmethod
    def is_formatted(disk: Disk) -> bool:
        """Whether there is a journal here. Half of one is `Damaged` and never taken for an empty place."""
        names = disk.list_files()
        if SUPERBLOCK not in names and (segment_numbers(names) or checkpoint_numbers(names)):
            raise Damaged(SUPERBLOCK, 0, "the file is missing, though there are segments or checkpoints")
        return SUPERBLOCK in names

    @staticmethod
    def format(disk: Disk, settings: Settings, disk_id: bytes, node_id: int, cluster: str) -> None:
        assert not Journal.is_formatted(disk), "there is a journal here already"
        assert len(disk_id) == 16, "a disk id has 16 bytes"
        facts = Superblock(disk_id=disk_id, node_id=node_id, cluster=cluster, geometry=settings.geometry())
        superblocks.create(disk, facts)

    @classmethod
    def open(cls, disk: Disk, settings: Settings, *, has_peers: bool = False) -> tuple[Journal, Recovered]:
        """Recover and begin the next run. Raises `Damaged` before changing anything.

        With `has_peers`, other nodes have the same data: damaged data are passed over and told.
        """
        scan = recovery.scan(disk, has_peers=has_peers)
        found = Recovered.of(scan)
        scan.settle(disk)
        return cls(disk, settings, scan), found

    def close(self) -> None:
        """Write and sync the gathered records and note that this was the end. Blocking."""
        # A part that had to wait for a sync needs another round.
        while (ticket := self.flush()) is not None:
            self._disk.sync(ticket.files)
            self.synced(ticket)
        assert not self.has_gathered and self._synced == self._end, "a sync was still on its way"
        self._superblocks.settle(replace(self._wanted, clean=True, synced=self._end))
        self._failure = "the journal is closed"

    # --- appending ---

    def append_data(
        self, index: int, mid: Mid, ts: int, count: int, digest: bytes, payload: Buffer
    ) -> Location:
        """Gather an envelope. `payload` must not change until the flush."""
        location = self._put_record(index, 0, mid, ts, count, digest, payload)
        self.payloads.add(mid, location)
        return location

    def append_envelopes(self, indexes: Sequence[int], rows: Sequence[Row]) -> int:
        """Gather envelopes, each under its index; returns for how many there was a segment."""
        locations: list[Location] = []
        try:
            self._put_records(indexes, 0, rows, locations)
        except NoSpace:
            pass
        self.payloads.add_all([row[0] for row in rows[: len(locations)]], locations)
        return len(locations)

    def append_copy(
        self, index: int, mid: Mid, ts: int, count: int, digest: bytes, payload: Buffer
    ) -> Location:
        """Gather a copy of a record of another node's journal.

        The copy is not found by its id, now or after a crash: only a checkpoint that refers to it gives it a
        meaning. Until then `payloads` knows it by its index.
        """
        location = self.append_mended(index, mid, ts, count, digest, payload)
        self.payloads.add_copy(index, location)
        return location

    def append_mended(
        self, index: int, mid: Mid, ts: int, count: int, digest: bytes, payload: Buffer
    ) -> Location:
        """Gather a damaged record anew; the copy is not found by its id, only by the new reference."""
        return self._put_record(index, RELOCATED, mid, ts, count, digest, payload)

    def append_order(
        self, index: int, record: bytes, highest: int = 0, *, pinned: bool = False, bound: bool = False
    ) -> None:
        """Gather an order record, kept while `highest` is above the base or it is the last pinned one.

        A `bound` one that was not synced comes back only with all data that were appended before it.
        """
        if self._failure is not None:
            raise StorageFailed(self._failure)
        assert len(record) <= self.geometry.order_bytes_max, "an order record is larger than a segment"
        size = ORDER_LENGTH.size + len(record)
        part = self._part()
        if part is None or not self._has_blocks(part, part.order_bytes + size):
            part = self._roll()
        part.order.append(ORDER_LENGTH.pack(len(record)))
        part.order.append(record)
        part.order_bytes += size
        part.highest = max(part.highest, highest)
        self._tail[part.segment] = max(self._tail[part.segment], highest)
        if pinned:
            part.flags |= PINNED
            self._pinned.append((index, part.segment))
        if bound:
            part.flags |= BOUND
        if part.first_index is None:
            part.first_index = index
        self._count(index)

    def append_superblock(self, index: int, promised: int, epoch_claimed: int) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)
        self._wanted = replace(self._wanted, promised=promised, epoch_claimed=epoch_claimed)
        self._superblock_is_due = True
        if self._superblock_index is None:
            self._superblock_index = index
        self._count(index)

    def relocate(self, index: int, location: Location) -> Location:
        """Copy a record, verified, to the end of the journal, so that its old segment can go.

        The copy is not found by its id after a crash: the checkpoint in force then still knows the old place,
        and `release` keeps that until the caller's references say otherwise.
        """
        header, payload = self._reader.verify(self._known(location))
        facts = (header.mid, header.ts, header.count, header.digest)
        return self._put_record(index, RELOCATED, *facts, payload)

    def _put_record(
        self, index: int, flags: int, mid: Mid, ts: int, count: int, digest: bytes, payload: Buffer
    ) -> Location:
        locations: list[Location] = []
        self._put_records((index,), flags, ((mid, ts, count, digest, payload),), locations)
        return locations[0]

    def _put_records(
        self, indexes: Sequence[int], flags: int, rows: Sequence[Row], locations: list[Location]
    ) -> None:
        """`locations` grows record by record: `NoSpace` may strike between two of them."""
        if self._failure is not None:
            raise StorageFailed(self._failure)
        assert max([len(row[4]) for row in rows]) <= self._record_bytes_max, "a payload larger than a segment"
        assert indexes[0] > self._last_index, f"{indexes[0]} was appended after record {self._last_index}"
        part = self._part()
        done = 0
        while done < len(rows):
            if part is None or not self._fits(part, rows[done]):
                part = self._roll()
            if part.first_index is None:
                part.first_index = indexes[done]
            rest = rows[done:] if done else rows
            part.data_at = part.last_end = encode_records(
                rest,
                locations,
                part.buffers,
                segment=part.segment,
                offset=part.data_at,
                end=self.geometry.segment_bytes,
                previous=part.last_end,
                run=self._run,
                flags=flags,
                synced=part.synced,
                seed=self._seed,
            )
            new = locations[done:]
            part.pending.update(zip(new, [row[4] for row in rest], strict=False))
            done += len(new)
            self._count(indexes[done - 1])

    def _fits(self, part: Part, row: Row) -> bool:
        return part.data_at + record_size(len(row[4])) <= self.geometry.segment_bytes

    def _count(self, index: int) -> None:
        assert index > self._last_index, f"record {index} was appended after record {self._last_index}"
        self._last_index = index

    # --- parts and segments ---

    def _part(self) -> Part | None:
        if self._parts:
            return self._parts[-1]
        if not self._end.segment:
            return None
        segment, blocks, data = self._end
        at = page_after(data)
        part = Part(segment, self._before, blocks, at, at, data, self._synced)
        self._parts.append(part)
        return part

    def _has_blocks(self, part: Part, order_bytes: int) -> bool:
        return part.first_block + blocks_for(order_bytes) <= self.geometry.order_blocks

    def _roll(self) -> Part:
        number = self._next_segment()
        before = self._parts[-1].end if self._parts else self._end
        start = self.geometry.data_start
        part = Part(number, before, 0, start, start, start, self._synced)
        self._parts.append(part)
        self._rounds = 0
        self._tail[number] = 0
        self._wanted = replace(
            self._wanted, last_segment=number, tail_start=self._wanted.tail_start or number
        )
        self._superblock_is_due = True
        return part

    def _next_segment(self) -> int:
        if self._ready is None:
            # No segment was prepared in time.
            chore = self._make_chore(())
            chore.run()
            if chore.no_space is not None:
                raise NoSpace(chore.no_space.text)
            assert chore.number is not None, "a chore was made for a segment and has none"
            return chore.number
        number, self._ready = self._ready, None
        return number

    def _make_chore(self, remove: tuple[str, ...], *, with_segment: bool = True) -> Chore:
        chore = Chore(self._disk, self.disk_id, self.geometry, remove)
        if with_segment:
            self._highest_number += 1
            chore.number = self._highest_number
            chore.source = self._pool.pop(0) if self._pool else None
        return chore

    def needs_spare(self) -> bool:
        return self._ready is None and not self._chore_is_out and self._failure is None

    @property
    def room(self) -> float:
        """The free share of the present segment, of its data or of its order, whichever is less."""
        geometry = self.geometry
        data = (geometry.segment_bytes - self._end.data) / (geometry.segment_bytes - geometry.data_start)
        return min(data, (geometry.order_blocks - self._end.blocks) / geometry.order_blocks)

    @property
    def has_spare(self) -> bool:
        return self._ready is not None

    @property
    def can_recycle(self) -> bool:
        return bool(self._reclaimable or self._pool)

    def chore(self) -> Chore | None:
        """Slow work for a worker thread, which calls `run` and gives the chore back (`chore_done`)."""
        if self._chore_is_out or self._failure is not None:
            return None
        if self._ready is not None and not self._reclaimable and not self._pool:
            return None
        remove = []
        pool_max = self._pool_max
        for number in self._reclaimable:
            name = segment_name(number)
            self._reader.forget(number)
            # A reader that holds a view must not see the file change: the name goes, the file with the view.
            if self._disk.forget_view(name) and len(self._pool) < pool_max:
                self._pool.append(name)
            else:
                remove.append(name)
        self._reclaimable.clear()
        while len(self._pool) > pool_max:
            remove.append(self._pool.pop())
        if not remove and self._ready is not None:
            return None
        self._chore_is_out = True
        return self._make_chore(tuple(remove), with_segment=self._ready is None)

    @property
    def _pool_max(self) -> int:
        # At rest the segment that is ready is enough.
        return self._spares_max if self._rounds < REST_ROUNDS else 0

    def tidy(self) -> None:
        """Call this about once a second: unneeded files of a journal at rest go with the next chore."""
        self._rounds += 1

    def chore_done(self, chore: Chore) -> None:
        """Take back a chore; without space the next roll-over will try again."""
        self._chore_is_out = False
        if chore.number is None or chore.no_space is not None:
            return
        if self._ready is None and chore.number > max(self._tail, default=0):
            self._ready = chore.number
        else:
            # A roll-over could not wait and went on with a later number.
            self._pool.append(segment_name(chore.number))

    def prepare_spare(self) -> None:
        """Do the chores at once, without a worker thread. Raises `NoSpace`."""
        chore = self.chore()
        if chore is not None:
            chore.run()
            self.chore_done(chore)
            if chore.no_space is not None:
                raise NoSpace(chore.no_space.text)

    # --- flushing ---

    @property
    def has_gathered(self) -> bool:
        return self._superblock_is_due or any(not part.is_empty for part in self._parts)

    def flush(self) -> SyncTicket | None:
        """Write the gathered records. None if there was nothing that could be written now.

        Two things wait for a sync that is on its way: a superblock for the one before it, and a new segment
        for the end of the old one (JNL3). So call `flush` again after every `synced`.
        """
        if self._failure is not None:
            raise StorageFailed(self._failure)
        part = self._writable_part() if self._parts else None
        with_superblock = self._superblock_is_due and not self._superblocks.is_in_flight
        if part is None and not with_superblock:
            return None
        files, sequence = [], 0
        try:
            if part is not None:
                files.append(self._write_part(part))
            if with_superblock:
                sequence = self._superblocks.write(replace(self._wanted, synced=self._synced))
                files.append(SUPERBLOCK)
        except (NoSpace, StorageFailed) as error:
            # An unknown part of it may be on the disk.
            self._failure = f"a write failed: {error.text}"
            raise StorageFailed(self._failure) from error
        if with_superblock:
            self._superblock_is_due = False
            self._superblock_index = None
            self._claimed = self._synced
            self._dying, self._doomed = self._doomed, []
        return SyncTicket(tuple(files), self._written_through(), self._end, sequence)

    def _writable_part(self) -> Part | None:
        while self._parts and self._parts[0].is_empty and (len(self._parts) > 1):
            del self._parts[0]
        if not self._parts or self._parts[0].is_empty:
            return None
        if self._parts[0].segment != self._end.segment and self._synced != self._end:
            return None
        return self._parts.pop(0)

    def _written_through(self) -> int:
        """The last index before the first record that is still to be written."""
        first = self._superblock_index
        for part in self._parts:
            if part.first_index is not None and (first is None or part.first_index < first):
                first = part.first_index
        return self._last_index if first is None else first - 1

    def mark(self) -> SyncTicket | None:
        """Record how far the journal is synced, if the disk does not say so yet, and flush.

        Every write says how far the syncs before it went. After the last write nothing does, and damage to
        its data would look like an unfinished write. Call this when the node is idle.
        """
        if self._failure is not None:
            raise StorageFailed(self._failure)
        if self._claimed < self._records_end <= self._synced:
            self._superblock_is_due = True
        return self.flush()

    def _write_part(self, part: Part) -> str:
        name = segment_name(part.segment)
        if part.buffers:
            # Whole pages: the kernel need not read the bytes that it is about to overwrite.
            padding = page_after(part.data_at) - part.data_at
            if padding:
                part.buffers.append(ZERO_PAGE[:padding])
            self._disk.write(name, part.data_from, part.buffers)
            self._claimed = part.synced
        if part.block_count:
            pages = encode_group(
                b"".join(part.order),
                seed=self._seed,
                segment=part.segment,
                first=part.first_block,
                run=self._run,
                previous=self._chain,
                synced=self._synced,
                before=part.before,
                data_end=part.last_end,
                flags=part.flags,
                highest=part.highest,
            )
            for offset in self.geometry.copies(part.first_block):
                self._disk.write(name, offset, pages)
            self._chain = pages[-1][:SEAL_BYTES]
            self._claimed = self._synced
        self._end, self._before = part.end, part.before
        if part.buffers or part.order:
            self._records_end = self._end
        return name

    def synced(self, ticket: SyncTicket) -> None:
        """Note that the files of this ticket, and of all before it, were synced after the ticket was made."""
        assert ticket.position >= self._synced, "syncs completed out of order"
        self._synced = ticket.position
        if ticket.superblock:
            self._superblocks.synced(ticket.superblock)
            self._reclaimable += self._dying
            self._dying = []
        while len(self._pinned) > 1 and self._pinned[1][0] <= ticket.upto_index:
            del self._pinned[0]

    def failed(self, text: str) -> None:
        self._failure = text

    # --- reading ---

    def read(self, location: Location) -> memoryview:
        """The payload that lies there, verified; raises `Damaged`."""
        for part in self._parts:
            if location in part.pending:
                return memoryview(part.pending[location])
        return self._reader.read(self._known(location))

    def record(self, location: Location) -> Record:
        header, payload = self._reader.verify(self._known(location))
        return Record(header.mid, header.ts, header.count, header.digest, payload)

    def verify(self, location: Location) -> None:
        self._reader.verify(self._known(location))

    def read_anew(self) -> None:
        """Every record is read from the disk and verified again when it is next asked for."""
        self._reader.forget_all()

    def _known(self, location: Location) -> Location:
        if location.segment not in self._tail and location.segment not in self._kept:
            raise Damaged(segment_name(location.segment), location.offset, "there is no such segment")
        return location

    # --- space ---

    @property
    def end_position(self) -> Position:
        return self._end

    @property
    def unsynced_bytes(self) -> int:
        if self._end.segment != self._synced.segment:
            return self.geometry.segment_bytes
        return self._end.data - self._synced.data

    @property
    def tail_start(self) -> int:
        """The oldest segment that recovery will read; older ones are kept only for references."""
        return next(iter(self._tail), 0)

    @property
    def segments_in_use(self) -> int:
        return len(self._tail) + len(self._kept)

    @property
    def bytes_in_use(self) -> int:
        return self.segments_in_use * self.geometry.segment_bytes

    @property
    def bytes_spare(self) -> int:
        """The bytes of files without records: ready, or waiting to be used again or removed."""
        freed = len(self._doomed) + len(self._dying) + len(self._reclaimable)
        return (freed + len(self._pool) + (self._ready is not None)) * self.geometry.segment_bytes

    def release(self, base: int, referenced: Collection[int]) -> int:
        """Free segments: a checkpoint covers everything through `base`.

        `referenced` are the segments that the checkpoints on disk or the state in memory refer to. Call
        `payloads.forget_through(base)` before. Returns how many segments were freed; their files are used
        again after the next flush and sync.
        """
        if self._failure is not None:
            raise StorageFailed(self._failure)
        for number in self._covered(base):
            del self._tail[number]
            self._kept[number] = None
        freed = [number for number in self._kept if number not in referenced]
        for number in freed:
            del self._kept[number]
        if freed or self.tail_start != self._wanted.tail_start:
            # The superblock on disk still asks for them.
            self._wanted = replace(self._wanted, tail_start=self.tail_start)
            self._superblock_is_due = True
            self._doomed += freed
        return len(freed)

    @property
    def highest_entry(self) -> int:
        """The highest number of the kept order records, also of entries that were cut off later; 0: none."""
        return max(self._tail.values(), default=0)

    def can_release(self, base: int) -> bool:
        """Whether the log could begin in a later segment: an envelope that was in the way may be gone."""
        return bool(self._covered(base))

    def _covered(self, base: int) -> list[int]:
        """The first segments of the log that recovery need not read if a checkpoint covers `base`."""
        covered = list(takewhile(lambda number: self._tail[number] <= base, self._tail))
        if not covered:
            return []
        needed = self._pinned_segment
        if (oldest := self.payloads.oldest_segment) is not None:
            needed.append(oldest)
        limit = min([self._synced.segment, *needed])
        return [number for number in covered if number < limit]

    @property
    def _pinned_segment(self) -> list[int]:
        """The segment of the last durable pinned record, if there is one."""
        return [number for _, number in self._pinned[:1]]

    def holds_space(self, base: int, live: Collection[int], *, at_rest: int = REST_SEGMENTS - 1) -> bool:
        """Whether two checkpoints would free segments beyond those of a journal `at_rest`.

        `base` is where the log begins, perhaps below an unstable checkpoint; `live` are the segments in use.
        """
        # The record of the base, or an envelope, may lie in an older segment than entries behind the base.
        first = next((number for number in self._tail if self._tail[number] > base), self._end.segment)
        first = min(first, self.payloads.oldest_segment_after(base) or first, *self._pinned_segment)
        log = [number for number in self._tail if number >= first]
        dead = [number for number in self._kept if number not in live]
        return len(log) + len(dead) > at_rest

    def sparse_segments(self, live_bytes: Mapping[int, int], threshold: float) -> list[int]:
        """Segments with less than `threshold` of their data live, the emptiest first.

        `live_bytes` has the payload bytes that the caller refers to, by segment.
        """
        full = self.geometry.segment_bytes - self.geometry.data_start
        sparse = [number for number in self._kept if live_bytes.get(number, 0) < threshold * full]
        return sorted(sparse, key=lambda number: (live_bytes.get(number, 0), number))

    # --- checkpoints ---

    def write_checkpoint(self, n: int, digest: bytes, state: Buffer, segments: Collection[int]) -> None:
        """Write the state after number n, durably. Blocking, and safe in a worker thread."""
        name = checkpoint_name(n)
        self._disk.write_whole(name, checkpoints.encode(self.disk_id, n, digest, state, sorted(segments)))

    def read_checkpoint(self, n: int) -> Checkpoint:
        """The checkpoint at n, verified; raises `Damaged`. Safe in a worker thread."""
        return checkpoints.load(self._disk, self.disk_id, n)

    def drop_checkpoints_before(self, n: int) -> int:
        """Remove checkpoints below n, but never the two newest. Blocking, and safe in a worker thread."""
        return checkpoints.drop_before(self._disk, n)
