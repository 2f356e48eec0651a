"""Checkpoint files: the state after number n, beside the segments.

A checkpoint lists the segments of the payloads it refers to, and those are kept. The newest usable checkpoint
counts; the one before is kept for the case that the newest is damaged, earlier ones until the base has passed
them: one of them may be the newest that other nodes can be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from xxhash import xxh3_128

from antiphon.errors import Damaged, FormatMismatch
from antiphon.journal.format import (
    FORMAT_VERSION,
    SEAL_BYTES,
    checkpoint_name,
    checkpoint_numbers,
    seed_of,
)
from antiphon.journal.ports import Buffer, Disk

_MAGIC: Final = b"ANTIPCKP"
_HEADER = Struct("<8sI16sQ16sQI")
_SEGMENT = Struct("<I")

KEPT_ALWAYS: Final = 2
"""So many of the newest files are never dropped: if one is damaged, another is left."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after number n as it was on the disk; `segments` hold payloads it refers to."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """The head of a file; whether the state behind it is whole shows when it is read."""

    n: int
    digest: bytes
    size: int
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """The newest usable checkpoint, the one before it, earlier ones, and the problems of the others."""

    newest: Checkpoint | None
    older: Checkpoint | None
    earlier: tuple[CheckpointHead, ...]
    problems: list[str]
    # Unusable ones with a readable head: the segments that they refer to are kept.
    unused: tuple[CheckpointHead, ...] = ()


def encode(disk_id: bytes, n: int, digest: bytes, state: Buffer, segments: Sequence[int]) -> list[Buffer]:
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, disk_id, n, digest, len(state), len(segments))
    head = header + b"".join(_SEGMENT.pack(number) for number in sorted(segments))
    return [_checksum(disk_id, head, state), head, state]


def decode(disk_id: bytes, n: int, data: bytes) -> Checkpoint | str:
    """The checkpoint, or in words why it is none."""
    view = memoryview(data)[SEAL_BYTES:]
    if len(view) < _HEADER.size:
        return "it is too short"
    magic, version, _, found_n, digest, length, count = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        return "it does not begin like a checkpoint"
    body = _HEADER.size + count * _SEGMENT.size
    if len(view) != body + length:
        return f"it has {len(data)} bytes where its header promises {SEAL_BYTES + body + length}"
    if _checksum(disk_id, view[:body], view[body:]) != data[:SEAL_BYTES]:
        return "its checksum does not fit, or it belongs to another disk"
    if version != FORMAT_VERSION:
        # The bytes verify: no older file would be better.
        raise FormatMismatch(
            f"{checkpoint_name(n)} has format {version}, and this version of Antiphon reads format "
            f"{FORMAT_VERSION}: nothing was changed; start the version that wrote it"
        )
    if found_n != n:
        return f"it is the checkpoint of {found_n} under a wrong name"
    segments = tuple(number for (number,) in _SEGMENT.iter_unpack(view[_HEADER.size : body]))
    return Checkpoint(n, digest, bytes(view[body:]), segments)


def find(
    disk: Disk, disk_id: bytes, names: list[str], passed_over: Mapping[int, str] | None = None
) -> FoundCheckpoints:
    """The two newest that verify. Those in `passed_over` are not used, for the given reason."""
    valid: list[Checkpoint] = []
    earlier: list[CheckpointHead] = []
    unused: list[CheckpointHead] = []
    problems: list[str] = []
    for n in reversed(checkpoint_numbers(names)):
        name = checkpoint_name(n)
        if len(valid) == KEPT_ALWAYS:
            if (head := _head(disk, disk_id, n)) is not None:
                earlier.insert(0, head)
            continue
        why = (passed_over or {}).get(n)
        found = decode(disk_id, n, disk.read(name, 0, disk.size(name))) if why is None else why
        if isinstance(found, str):
            problems.append(f"{name} cannot be used: {found}")
            if (head := _head(disk, disk_id, n)) is not None:
                unused.insert(0, head)
        else:
            valid.append(found)
    newest, older = (*valid, None, None)[:2]
    return FoundCheckpoints(newest, older, tuple(earlier), problems, tuple(unused))


def _head(disk: Disk, disk_id: bytes, n: int) -> CheckpointHead | None:
    """The head of a file that the node does not begin with; None if not even that can be used."""
    name = checkpoint_name(n)
    head = disk.read(name, SEAL_BYTES, _HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, version, found_id, found_n, digest, length, count = _HEADER.unpack(head)
    body = SEAL_BYTES + _HEADER.size + count * _SEGMENT.size
    is_ours = (magic, version, found_id, found_n) == (_MAGIC, FORMAT_VERSION, disk_id, n)
    if not is_ours or disk.size(name) != body + length:
        return None
    listed = disk.read(name, SEAL_BYTES + _HEADER.size, count * _SEGMENT.size)
    return CheckpointHead(n, digest, length, tuple(number for (number,) in _SEGMENT.iter_unpack(listed)))


def load(disk: Disk, disk_id: bytes, n: int) -> Checkpoint:
    """The checkpoint at n; raises `Damaged` if it is missing or does not verify."""
    name = checkpoint_name(n)
    if name not in disk.list_files():
        raise Damaged(name, 0, "the file is missing")
    found = decode(disk_id, n, disk.read(name, 0, disk.size(name)))
    if isinstance(found, str):
        raise Damaged(name, 0, found)
    return found


def drop_before(disk: Disk, n: int) -> int:
    old = [number for number in checkpoint_numbers(disk.list_files())[:-KEPT_ALWAYS] if number < n]
    for number in old:
        disk.remove(checkpoint_name(number))
    return len(old)


def _checksum(disk_id: bytes, head: Buffer, state: Buffer) -> bytes:
    checksum = xxh3_128(seed=seed_of(disk_id))
    checksum.update(head)
    checksum.update(state)
    return checksum.digest()
