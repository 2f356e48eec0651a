"""The journal's port: a directory of files that can be synced.

`runtime/disk.py` has the real disk, `memory_disk.py` one that can lose its power. The journal makes all
decisions about bytes, so both run the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from antiphon.errors import Damaged
from antiphon.ids import Mid

Buffer = bytes | bytearray | memoryview
Row = tuple[Mid, int, int, bytes, Buffer]
"""An envelope to write: its id, ts, count and digest, and its payload."""

IDENTITY: Final = Struct("<Q")


class Location(NamedTuple):
    """The place of a data record (segment, offset of its header, length of its payload) and its envelope.

    A place can be written again when its segment is used again, or after a crash. So a place alone does not
    name an envelope: every read compares the `identity`.
    """

    segment: int
    offset: int
    length: int
    identity: int


def identity_of(digest: bytes) -> int:
    return int(IDENTITY.unpack_from(digest)[0])


class Record(NamedTuple):
    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: memoryview


class Position(NamedTuple):
    """A place in the journal: all segments before, and in this one so many blocks and data to an offset."""

    segment: int
    blocks: int
    data: int


NOWHERE = Position(0, 0, 0)


class Referrer(Protocol):
    """The message manager, which refers to records of the journal."""

    def live_bytes_by_segment(self) -> dict[int, int]:
        """The bytes of each segment that are needed."""

    def records_in(self, segment: int) -> Sequence[Location]:
        """The records of a segment that are needed."""

    def relocated(self, old: Location, new: Location) -> None:
        """Note that a record was copied."""

    def damaged(self, place: Location, error: Damaged) -> None:
        """Note that a record cannot be read; raises the error if there are no other replicas."""


class Disk(Protocol):
    """One data directory. Names are plain file names, or `lost+found/` and a file name.

    Calls raise `StorageFailed` when the disk fails and `NoSpace` when it is full. After a failed write or
    sync the contents are unknown; the journal refuses to go on.
    """

    def list_files(self) -> list[str]:
        """The names of the files in the directory itself, sorted."""

    def create(self, name: str, size: int) -> None:
        """Make a file of `size` zero bytes, really written and durable; it appears whole or not at all."""

    def size(self, name: str) -> int:
        """The length of the file in bytes."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """A copy of the bytes; fewer than asked for only at the end of the file."""

    def view(self, name: str) -> memoryview:
        """The whole file, read-only and without a copy; later writes are seen through it."""

    def forget_view(self, name: str) -> bool:
        """Drop the view; False if a reader still holds a piece, which would change with the file."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other; durable only after a `sync` that began later."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; durable only after `sync_directory`."""

    def remove(self, name: str) -> None:
        """Remove a file; durable only after `sync_directory`."""

    def sync(self, names: Sequence[str]) -> None:
        """Return when everything written to these files before the call is durable."""

    def sync_directory(self) -> None:
        """Return when every creation, renaming and removal before the call is durable."""

    def write_whole(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace or create a file in one durable step: the old content or the new, never a mixture."""
