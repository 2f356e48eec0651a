"""What the journal needs from the world: a directory of files that can be synced.

`runtime/disk.py` has the real one; `memory_disk.py` has one that can lose its power. Everything that
decides about bytes is the journal's, so that both halls run the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from antiphon.errors import Damaged
from antiphon.ids import Mid

Buffer = bytes | bytearray | memoryview
Row = tuple[Mid, int, int, bytes, Buffer]
"""An envelope that is to be written: its id, ts, count and digest, and its payload."""

IDENTITY: Final = Struct("<Q")


class Location(NamedTuple):
    """Where a data record lies: its segment, the offset of its header, the length of its payload; and which
    envelope lies there.

    A place can be written again when its segment is used again, or when a crash has cut off what was not
    durable. So a place alone does not name an envelope: what is read there is compared (`identity_of`).
    """

    segment: int
    offset: int
    length: int
    identity: int


def identity_of(digest: bytes) -> int:
    """The first 8 bytes of an envelope's digest, as a number."""
    return int(IDENTITY.unpack_from(digest)[0])


class Record(NamedTuple):
    """A data record as a whole: the envelope it holds."""

    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: memoryview


class Position(NamedTuple):
    """How far the journal reaches: all segments before this one, and in it so many order blocks and
    the data up to this offset of the file."""

    segment: int
    blocks: int
    data: int


NOWHERE = Position(0, 0, 0)


class Referrer(Protocol):
    """Whoever refers to records of the journal: the message manager."""

    def live_bytes_by_segment(self) -> dict[int, int]:
        """How much of each segment is needed."""

    def records_in(self, segment: int) -> Sequence[Location]:
        """The records of a segment that are needed."""

    def relocated(self, old: Location, new: Location) -> None:
        """One of them was copied."""

    def damaged(self, place: Location, error: Damaged) -> None:
        """One of them cannot be read. Raises the error if there is nobody to get it from."""


class Disk(Protocol):
    """One data directory. Names are plain file names, or `lost+found/` and a file name.

    Calls raise `StorageFailed` when the disk fails and `NoSpace` when it is full. After a failed
    write or sync nobody may rely on what the disk shows; the journal refuses to go on.
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
        """Let go of the view. False if somebody still holds a piece of it, who would then see the
        file change under his hands if it were written again."""

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
