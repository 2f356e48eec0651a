"""Recovery: reads the journal back, and tells durable records from unfinished writes and from damage.

JRC1  Synced records come back as they were, or `Damaged` names the file and the offset.
JRC2  Of unsynced records a beginning comes back, of the order and of the data each; every one is whole. The
      order ends before an unsynced record that is bound to data which did not come back.
JRC3  The scan changes nothing: damage leaves the disk as it was.
JRC4  A record that one run cut off is never seen by a later run.
JRC5  Where other nodes have the same data (`has_peers`), a damaged data record is passed over and told
      (`lost`). Damage to the order or to the superblock is an error all the same.

Every block and record, and the superblock, says how far the journal was durable when it was written. The
farthest of these claims is the border. Before it, a record that does not verify is damage; behind it, the
first that does not verify is where the last write tore. Damage in segments that only a checkpoint refers to
is found when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal import checkpoints
from antiphon.journal.checkpoints import Checkpoint, CheckpointHead, FoundCheckpoints
from antiphon.journal.format import (
    BOUND,
    CHAIN_START,
    HEADER_COPIES,
    LOST_AND_FOUND,
    PAGE,
    PINNED,
    RECORD_ALIGNMENT,
    RECORD_HEADER_BYTES,
    RELOCATED,
    SUPERBLOCK,
    UNFINISHED,
    JournalBlock,
    RecordHeader,
    decode_block,
    decode_record_header,
    encode_segment_header,
    looks_like_block,
    looks_like_record,
    page_after,
    payload_digest,
    seed_of,
    segment_name,
    segment_numbers,
    spare_name,
    spare_numbers,
    split_order_payload,
)
from antiphon.journal.ports import NOWHERE, Disk, Location, Position
from antiphon.journal.superblock import Superblock, SuperblockFile


class DataAt(NamedTuple):
    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The contents of the journal, for the start of a node.

    `order` and `data` reach back at least to the base that was last released, in the order of writing.
    """

    disk_id: bytes
    node_id: int
    cluster: str
    run: int
    was_clean: bool
    promised: int
    epoch_claimed: int
    order: list[bytes]
    data: list[DataAt]
    checkpoint: Checkpoint | None
    older_checkpoint: Checkpoint | None
    checkpoint_problems: list[str]
    # For the operator: repairs, and unfinished writes that were dropped.
    repairs: list[str]
    truncated: list[str]
    # Damage that other nodes must repair.
    lost: list[str] = field(default_factory=list)
    earlier_checkpoints: tuple[CheckpointHead, ...] = ()
    unused_checkpoints: tuple[CheckpointHead, ...] = ()

    @classmethod
    def of(cls, scan: Scan) -> Recovered:
        was = scan.superblocks.current
        return cls(
            disk_id=was.disk_id,
            node_id=was.node_id,
            cluster=was.cluster,
            run=was.run + 1,
            was_clean=was.clean,
            promised=was.promised,
            epoch_claimed=was.epoch_claimed,
            order=scan.order,
            data=scan.data,
            checkpoint=scan.checkpoints.newest,
            older_checkpoint=scan.checkpoints.older,
            checkpoint_problems=scan.checkpoints.problems,
            repairs=scan.repairs,
            truncated=scan.truncated,
            lost=scan.lost,
            earlier_checkpoints=scan.checkpoints.earlier,
            unused_checkpoints=scan.checkpoints.unused,
        )

    @property
    def checkpoint_segments(self) -> dict[int, frozenset[int]]:
        """The segments that each checkpoint on disk refers to."""
        rest = (*self.unused_checkpoints, *self.earlier_checkpoints)
        segments = {one.n: frozenset(one.segments) for one in rest}
        two = [one for one in (self.older_checkpoint, self.checkpoint) if one is not None]
        return segments | {one.n: frozenset(one.segments) for one in two}


@dataclass(slots=True)
class Scan:
    """The findings of a scan, and the writes that must come before a node relies on them."""

    superblocks: SuperblockFile
    checkpoints: FoundCheckpoints
    order: list[bytes] = field(default_factory=list)
    data: list[DataAt] = field(default_factory=list)
    # Segments of the tail in their order, with the highest number in their order records.
    tail: dict[int, int] = field(default_factory=dict)
    # Older segments; only checkpoints may refer to them.
    kept: list[int] = field(default_factory=list)
    # Prepared for later, or begun and not finished.
    given_up: list[int] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    end: Position = NOWHERE
    chain: bytes = CHAIN_START
    before: Position = NOWHERE
    pinned_segment: int | None = None
    proven: Position = NOWHERE
    highest_number: int = 0
    rewrites: list[tuple[str, int, bytes]] = field(default_factory=list)
    strays: list[tuple[str, str]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsound: dict[int, Damaged] = field(default_factory=dict)

    def check_segment(self, number: int) -> None:
        if number in self.unsound:
            raise self.unsound[number]
        if number not in self.tail and number not in self.kept:
            raise Damaged(segment_name(number), 0, "the file is missing")

    def settle(self, disk: Disk) -> None:
        """Repair, make the findings durable, and begin the next run."""
        for name, offset, page in self.rewrites:
            disk.write(name, offset, [page])
        # After a crash of the process alone the scan may have read from the page cache only.
        unsure = [segment_name(number) for number in self.tail if number >= self.proven.segment]
        mended = [name for name, _, _ in self.rewrites]
        disk.sync(list(dict.fromkeys([*unsure, *mended])))
        facts = self.superblocks.current
        self.superblocks.settle(
            replace(
                facts,
                run=facts.run + 1,
                clean=False,
                tail_start=next(iter(self.tail), 0),
                last_segment=self.end.segment,
                highest_number=self.highest_number,
                start=self.end,
                synced=self.end,
            )
        )
        self._tidy(disk)

    def _tidy(self, disk: Disk) -> None:
        """Rename and remove files that the superblock no longer asks for.

        A segment that was begun and given up must not keep its name when the next one is begun: both would
        say that they go on from the same place, and a later recovery could not tell which.
        """
        for number in self.given_up:
            disk.rename(segment_name(number), spare_name(number))
            self.spares.append(spare_name(number))
        for name, new_name in self.strays:
            disk.rename(name, new_name)
        for name in self.leftovers:
            disk.remove(name)
        if self.given_up or self.strays or self.leftovers:
            disk.sync_directory()


def scan(disk: Disk, *, has_peers: bool = False) -> Scan:
    names = disk.list_files()
    if SUPERBLOCK not in names:
        raise Damaged(SUPERBLOCK, 0, "the file is missing")
    superblocks = SuperblockFile.load(disk)
    found = checkpoints.find(disk, superblocks.current.disk_id, names)
    scan = Scan(superblocks, found, repairs=list(superblocks.repairs))
    scan.leftovers = [name for name in names if name.endswith(UNFINISHED)]
    _Scanner(disk, superblocks.current, names, scan, has_peers).run()
    return scan


class _Scanner:
    def __init__(self, disk: Disk, facts: Superblock, names: list[str], scan: Scan, has_peers: bool) -> None:
        self._disk = disk
        self._has_peers = has_peers
        self._facts = facts
        self._seed = seed_of(facts.disk_id)
        self._geometry = facts.geometry
        self._names = names
        self._numbers = segment_numbers(names)
        self._scan = scan
        self._chain: bytes | None = None
        # The fault of each file, None if it is sound.
        self._faults: dict[int, Damaged | None] = {}
        self._links: dict[int, Position | None] = {}

    def run(self) -> None:
        scan, facts = self._scan, self._facts
        scan.highest_number = max([facts.highest_number, *self._numbers, *spare_numbers(self._names)])
        if facts.last_segment and facts.last_segment not in self._numbers:
            raise Damaged(segment_name(facts.last_segment), 0, "the file is missing")
        scan.proven = self._farthest_claim()
        number: int | None = facts.tail_start
        if not number:
            self._chain = CHAIN_START
            number = self._successor(0)
            if number is None and scan.proven.segment:
                raise self._missing(0)
        while number is not None:
            number = self._walk_segment(number)
        self._sort_the_rest()

    # --- what is proven ---

    def _farthest_claim(self) -> Position:
        """The farthest position that anything on this disk says was synced."""
        proven = _farther(self._facts.start, self._facts.synced)
        for number in reversed(self._numbers):
            if number < proven.segment or number < self._facts.tail_start:
                # No older segment can claim more.
                break
            if self._is_sound(number):
                for claim in self._claims_in(number):
                    proven = _farther(proven, claim)
        return proven

    def _claims_in(self, number: int) -> list[Position]:
        claims = [block.synced for block in self._valid_blocks(number)]
        start = self._geometry.data_start
        region = self._disk.read(segment_name(number), start, self._geometry.segment_bytes - start)
        # The first record of each flush lies at the beginning of a page.
        for at in range(0, len(region), PAGE):
            header = decode_record_header(region, at, self._seed, number, start + at)
            if header is not None:
                claims.append(header.synced)
        return claims

    def _valid_blocks(self, number: int) -> list[JournalBlock]:
        region = memoryview(self._disk.read(segment_name(number), 0, self._geometry.data_start))
        found = []
        for block in range(self._geometry.order_blocks):
            for offset in self._geometry.copies(block):
                decoded = decode_block(region[offset : offset + PAGE], self._seed, number, block)
                if decoded is not None:
                    found.append(decoded)
        return found

    # --- segments ---

    def _is_sound(self, number: int) -> bool:
        return self._fault(number) is None

    def _fault(self, number: int) -> Damaged | None:
        if number not in self._faults:
            try:
                self._check_file(number)
                self._faults[number] = None
            except Damaged as damage:
                self._faults[number] = damage
        return self._faults[number]

    def _check_file(self, number: int) -> list[int]:
        """Raise `Damaged` if a file is not the segment of its name; returns the header copies to mend."""
        name, wanted = segment_name(number), self._geometry.segment_bytes
        if name not in self._names:
            raise Damaged(name, 0, "the file is missing")
        size = self._disk.size(name)
        if size != wanted:
            raise Damaged(name, min(size, wanted), f"the file has {size} bytes instead of {wanted}")
        header = encode_segment_header(number, self._facts.disk_id, self._geometry)
        bad = [offset for offset in HEADER_COPIES if self._disk.read(name, offset, PAGE) != header]
        if len(bad) == len(HEADER_COPIES):
            raise Damaged(name, 0, "neither copy of its header belongs to this segment of this disk")
        return bad

    def _walk_segment(self, number: int) -> int | None:
        """Take in one segment; returns its successor, None if this is the last."""
        scan, name = self._scan, segment_name(number)
        bad_headers = self._check_file(number)
        successor = self._successor(number)
        if number < scan.proven.segment and successor is None:
            raise self._missing(number)
        end = self._link(successor) if successor is not None else None
        stored, data = self._data_of(number, end)
        blocks = self._order_of(number, end, data)
        if blocks == 0:
            # Opened, but the power went before a block of it was written, with the data of that flush.
            scan.truncated.append(f"{name}: the segment was begun and nothing of it was finished")
            return None
        scan.data += stored
        for offset in bad_headers:
            header = encode_segment_header(number, self._facts.disk_id, self._geometry)
            scan.rewrites.append((name, offset, header))
            scan.repairs.append(f"{name}: the header at byte {offset} was restored from its other copy")
        scan.end = Position(number, blocks, data)
        if end is None:
            return None
        # A segment is not written to before its predecessor is durable, and says where that ends.
        assert scan.end == end, f"{name} ends at {scan.end}, and segment {successor} says at {end}"
        return successor

    def _successor(self, number: int) -> int | None:
        for candidate in self._numbers:
            if candidate > number and self._is_sound(candidate):
                link = self._link(candidate)
                if link is not None and link.segment == number:
                    return candidate
        return None

    def _link(self, number: int) -> Position | None:
        """The end of the segment before this one, as its blocks tell; remembered."""
        if number not in self._links:
            self._links[number] = self._find_link(number)
        return self._links[number]

    def _find_link(self, number: int) -> Position | None:
        name = segment_name(number)
        for offset in self._geometry.copies(0):
            opening = decode_block(self._disk.read(name, offset, PAGE), self._seed, number, 0)
            if opening is not None and self._is_of_its_time(opening.run, number, 0, self._facts.start.blocks):
                return opening.before
        for block in self._valid_blocks(number):
            if self._is_of_its_time(block.run, number, block.number, self._facts.start.blocks):
                return block.before
        return None

    def _is_of_its_time(self, run: int, segment: int, at: int, start: int) -> bool:
        """Whether a run may have written here: behind the start of the last run only that run counts."""
        if (segment, at) >= (self._facts.start.segment, start):
            return run == self._facts.run
        return run <= self._facts.run

    def _missing(self, number: int) -> Damaged:
        """The damage for a synced successor of `number` that cannot be found."""
        later = [n for n in self._numbers if n > number]
        unsound = [n for n in later if not self._is_sound(n)]
        if unsound and unsound[0] <= max(self._scan.proven.segment, self._facts.last_segment):
            self._check_file(unsound[0])
        for candidate in later:
            link = self._link(candidate) if self._is_sound(candidate) else None
            if link is not None and link.segment not in self._numbers:
                return Damaged(segment_name(link.segment), 0, "the file is missing")
        last = self._scan.proven.segment
        if last not in self._numbers:
            return Damaged(segment_name(last), 0, "the file is missing")
        offset = self._geometry.copies(0)[0]
        return Damaged(segment_name(last), offset, "neither copy of its first order block verifies")

    # --- order ---

    def _order_of(self, number: int, end: Position | None, data: int) -> int:
        """Take in the order of a segment whose data end at `data`; returns how many of its blocks count.

        A bound block that is not proven counts only with all the data that were written before it (JRC2).
        """
        scan, name = self._scan, segment_name(number)
        proven = _proven_part(number, scan.proven, end).blocks
        limit = end.blocks if end is not None else self._geometry.order_blocks
        region = memoryview(self._disk.read(name, 0, self._geometry.data_start))
        highest = at = 0
        while at < limit:
            group, bad = self._group_at(number, region, at, limit)
            if bad is not None:
                if bad < proven:
                    offset = self._geometry.copies(bad)[0]
                    raise Damaged(name, offset, f"neither copy of order block {bad} verifies")
                self._note_torn_order(number, region, at)
                break
            if group[0].flags & BOUND and at >= proven and group[0].data_end > data:
                text = f"order block {at} was written with data that were not finished"
                scan.truncated.append(f"{name}: {text}; the order ends before it")
                break
            records = split_order_payload(b"".join(block.payload for block in group))
            if records is None:
                raise Damaged(name, self._geometry.copies(at)[0], "the order records do not fit their block")
            scan.order += records
            highest = max(highest, group[0].highest)
            if group[0].flags & PINNED:
                scan.pinned_segment = number
            scan.chain, scan.before = group[-1].checksum, group[-1].before
            self._mend(number, region, group)
            at += len(group)
        if at:
            scan.tail[number] = highest
        return at

    def _group_at(
        self, number: int, region: memoryview, at: int, limit: int
    ) -> tuple[list[JournalBlock], int | None]:
        """The blocks of the flush that begins at this block, or the number of the first bad one."""
        group: list[JournalBlock] = []
        chain = self._chain
        count = 1
        while len(group) < count:
            block = self._block_at(number, region, at + len(group), chain)
            if block is None or block.first != at or at + block.count > limit:
                return [], at + len(group)
            count, chain = block.count, block.checksum
            group.append(block)
        self._chain = chain
        return group, None

    def _block_at(self, number: int, region: memoryview, at: int, chain: bytes | None) -> JournalBlock | None:
        for offset in self._geometry.copies(at):
            block = decode_block(region[offset : offset + PAGE], self._seed, number, at)
            if (
                block is not None
                # The oldest segment hangs on a predecessor that is gone.
                and (chain is None or block.previous == chain)
                and self._is_of_its_time(block.run, number, at, self._facts.start.blocks)
            ):
                return block
        return None

    def _mend(self, number: int, region: memoryview, group: list[JournalBlock]) -> None:
        name = segment_name(number)
        for block in group:
            offsets = self._geometry.copies(block.number)
            pages = [bytes(region[offset : offset + PAGE]) for offset in offsets]
            if pages[0] == pages[1]:
                continue
            good = 0 if decode_block(pages[0], self._seed, number, block.number) == block else 1
            bad = offsets[1 - good]
            self._scan.rewrites.append((name, bad, pages[good]))
            self._scan.repairs.append(
                f"{name}: order block {block.number} at byte {bad} was restored from its other copy"
            )

    def _note_torn_order(self, number: int, region: memoryview, at: int) -> None:
        offsets = self._geometry.copies(at)
        if any(looks_like_block(region[o : o + PAGE], number, self._facts.run) for o in offsets):
            text = f"order block {at} at byte {offsets[0]} was not finished; the order ends before it"
            self._scan.truncated.append(f"{segment_name(number)}: {text}")

    # --- data ---

    def _data_of(self, number: int, end: Position | None) -> tuple[list[DataAt], int]:
        """The data of a segment, and the offset at which they end."""
        scan, name, start = self._scan, segment_name(number), self._geometry.data_start
        stored: list[DataAt] = []
        proven = _proven_part(number, scan.proven, end).data
        limit = end.data if end is not None else self._geometry.segment_bytes
        region = memoryview(self._disk.read(name, start, limit - start))
        at = start
        while at < limit:
            header = self._record_after(number, region, at, limit)
            if header is None or not _payload_verifies(region, header, start):
                where = header.offset if header else _where_it_should_be(region, at, start)
                if at < proven:
                    damage = Damaged(name, where, "a data record that was synced does not verify")
                    if not self._has_peers:
                        raise damage
                    scan.lost.append(damage.text)
                    at = self._sound_after(number, region, at, proven)
                    continue
                if looks_like_record(region, where - start, number, self._facts.run):
                    text = f"the data record at byte {where} was not finished; the data end before it"
                    scan.truncated.append(f"{name}: {text}")
                break
            if not header.flags & RELOCATED:
                stored.append(DataAt(header.mid, header.ts, header.count, header.digest, header.location))
            at = header.end
        return stored, at

    def _record_after(self, number: int, region: memoryview, at: int, limit: int) -> RecordHeader | None:
        """The record that follows the end of another: right there, or on the next page after a flush.

        Both can be there. 1. A flush writes records a and b; of the page they share all is stored, of the
        rest of b nothing. 2. Recovery cuts b off. 3. The next run begins on the next page. So of two headers
        that claim to follow a, the later run's is right.
        """
        start, found = self._geometry.data_start, None
        for offset in dict.fromkeys((at, page_after(at))):
            header = decode_record_header(region, offset - start, self._seed, number, offset)
            if (
                header is not None
                and header.previous == at
                and header.end <= limit
                and self._is_of_its_time(header.run, number, offset, self._facts.start.data)
                and (found is None or header.run > found.run)
            ):
                found = header
        return found

    def _sound_after(self, number: int, region: memoryview, at: int, proven: int) -> int:
        """Where to go on behind damage: before the next whole record, or where the proven part ends.

        The length of the damaged record may be unknown, so every place where a record can begin is looked at.
        A whole record that an earlier run had cut off may turn up: an envelope like any other.
        """
        start = self._geometry.data_start
        for offset in range(at, proven, RECORD_ALIGNMENT):
            header = decode_record_header(region, offset - start, self._seed, number, offset)
            if (
                header is not None
                and header.previous > at
                and header.end <= proven
                and _payload_verifies(region, header, start)
            ):
                return header.previous
        return proven

    # --- what is left ---

    def _sort_the_rest(self) -> None:
        """Sort the files outside the tail: referred to, ready for use again, or strays."""
        scan = self._scan
        tail_start = next(iter(scan.tail), None)
        for number in self._numbers:
            if number in scan.tail:
                continue
            name = segment_name(number)
            if (fault := self._fault(number)) is not None:
                if number <= self._facts.last_segment and number >= self._facts.tail_start:
                    raise fault
                scan.unsound[number] = fault
                self._put_aside(name)
            elif tail_start is not None and number < tail_start:
                scan.kept.append(number)
            else:
                scan.given_up.append(number)
        for name in map(spare_name, spare_numbers(self._names)):
            if self._disk.size(name) == self._geometry.segment_bytes:
                scan.spares.append(name)
            else:
                self._put_aside(name)

    def _put_aside(self, name: str) -> None:
        """Put a stray aside for an operator instead of deleting it."""
        new_name = f"{LOST_AND_FOUND}/{name}.{self._facts.run}"
        self._scan.strays.append((name, new_name))
        self._scan.repairs.append(f"{name}: not a sound segment and not needed; moved to {new_name}")


def _farther(a: Position, b: Position) -> Position:
    """The union of two claims: order and data of one segment may be known from different places."""
    if a.segment != b.segment:
        return max(a, b)
    return Position(a.segment, max(a.blocks, b.blocks), max(a.data, b.data))


def _proven_part(number: int, proven: Position, end: Position | None) -> Position:
    if number == proven.segment:
        return proven
    if number < proven.segment and end is not None:
        return end
    return NOWHERE


def _payload_verifies(region: memoryview, header: RecordHeader, start: int) -> bool:
    at = header.offset - start + RECORD_HEADER_BYTES
    payload = region[at : at + header.length]
    return payload_digest(header.mid, header.ts, header.count, payload) == header.digest


def _where_it_should_be(region: memoryview, at: int, start: int) -> int:
    """The likelier of the two places of the next record; a flush fills its last page with zeros."""
    here = region[at - start : at - start + RECORD_HEADER_BYTES]
    return at if any(here) else page_after(at)
