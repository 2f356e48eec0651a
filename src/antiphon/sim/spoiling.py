"""Spoiling: files with checkpoints that cannot be read, and with changed bits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal import checkpoints
from antiphon.journal.format import (
    PAGE,
    RECORD_HEADER_BYTES,
    SUPERBLOCK,
    checkpoint_name,
    checkpoint_numbers,
    segment_name,
)
from antiphon.journal.journal import Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.opening import Opening
from antiphon.journal.ports import Disk, Location
from antiphon.journal.recovery import Recovered
from antiphon.journal.superblock import SuperblockFile


def spoil_checkpoint(disk: Disk, which: int = -1, magic: bytes = b"") -> int:
    """Cut the state in a checkpoint, or give it another magic, and seal it anew; returns its number.

    `which` counts as in a list, the oldest first; 0 is returned if there is none.
    """
    numbers = checkpoint_numbers(disk.list_files())
    if not -len(numbers) <= which < len(numbers):
        return 0
    n = numbers[which]
    disk_id = SuperblockFile.load(disk).current.disk_id
    found = checkpoints.load(disk, disk_id, n)
    state = CheckpointState.decode(found.state)
    whole = bytes(state.manager_state)
    spoiled = replace(state, manager_state=magic + whole[len(magic) :] if magic else whole[:-1])
    buffers = checkpoints.encode(disk_id, n, found.digest, spoiled.encode(), found.segments)
    disk.write_whole(checkpoint_name(n), buffers)
    return n


def rot_superblock(disk: MemoryDisk) -> None:
    """Change a bit in every copy of the superblock."""
    for offset in range(0, disk.size(SUPERBLOCK), PAGE):
        disk.flip(SUPERBLOCK, offset + PAGE // 2, 1)


def rot_checkpoints(disk: MemoryDisk, newest: int | None) -> int:
    """Change a bit of the newest checkpoints, or of all of them; returns their count."""
    numbers = checkpoint_numbers(disk.list_files())
    if newest is not None:
        numbers = numbers[-newest:]
    for n in numbers:
        disk.flip(checkpoint_name(n), disk.size(checkpoint_name(n)) // 2, 1)
    return len(numbers)


def rot_envelopes(
    disk: MemoryDisk, mids: Iterable[Mid], chance: random.Random, journal: Journal | None = None
) -> set[Mid]:
    """Change a bit of some of these envelopes; returns the changed ones.

    An envelope stays as it is where damage would be taken for a torn write, and all that follows would be cut
    off, or the order that is bound to it. With the `journal` of a living node the bits change under it: in
    former segments only, which were synced beyond doubt; and pages that the node holds in its memory stay as
    they were read.
    """
    if not Journal.is_formatted(disk):
        return set()
    wanted = set(mids)
    found = Opening(disk, has_peers=True).found
    held = [one for one in found.data if one.mid in wanted]
    if journal is not None:
        former = journal.end_position.segment - 1
        held = [one for one in held if one.location.segment < former]
        disk.part_from_views()
        journal.read_anew()
    rotten: set[Mid] = set()
    for one in chance.sample(held, min(len(held), chance.randint(1, 5))):
        _flip(disk, one.location)
        if journal is None and not _loses(disk, found, {*rotten, one.mid}):
            _flip(disk, one.location)
        else:
            rotten.add(one.mid)
    return rotten


def _flip(disk: MemoryDisk, location: Location) -> None:
    disk.flip(segment_name(location.segment), location.offset + RECORD_HEADER_BYTES + location.length // 2, 1)


def _loses(disk: MemoryDisk, before: Recovered, lost: set[Mid]) -> bool:
    """Does a node that starts with this disk miss these envelopes, and nothing else?"""
    try:
        found = Opening(disk, has_peers=True).found
    except Damaged:
        return False
    return found.order == before.order and _mids(found) == _mids(before) - lost


def _mids(found: Recovered) -> set[Mid]:
    return {one.mid for one in found.data}
