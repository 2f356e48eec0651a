"""Spoiling: checkpoints that verify and cannot be read, as a fault of the software would write them."""

from __future__ import annotations

from dataclasses import replace

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.journal import checkpoints
from antiphon.journal.format import checkpoint_name, checkpoint_numbers
from antiphon.journal.ports import Disk
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
