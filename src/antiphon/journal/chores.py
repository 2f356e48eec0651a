"""Chores: slow work on files, for a worker thread while the journal goes on.

A `Chore` shares nothing with the journal but the disk; `chore_done` takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import NoSpace
from antiphon.journal.format import (
    HEADER_COPIES,
    Geometry,
    encode_segment_header,
    segment_name,
    spare_name,
)
from antiphon.journal.ports import Disk


@dataclass(slots=True)
class Chore:
    """Remove the files in `remove`, then make segment `number` ready, from `source` if there is one."""

    disk: Disk
    disk_id: bytes
    geometry: Geometry
    remove: tuple[str, ...] = ()
    number: int | None = None
    source: str | None = None
    # Why the segment could not be made; the removals are done all the same.
    no_space: NoSpace | None = None

    def run(self) -> None:
        """Blocking. An interruption at any moment leaves no live file in doubt."""
        for name in self.remove:
            self.disk.remove(name)
        if self.number is not None:
            try:
                self._prepare(self.number)
            except NoSpace as error:
                self.no_space = error

    def _prepare(self, number: int) -> None:
        # A file gets a segment's name only when its header is durable.
        spare, name = spare_name(number), segment_name(number)
        if self.source is None:
            self.disk.create(spare, self.geometry.segment_bytes)
        else:
            self.disk.rename(self.source, spare)
            self.disk.sync_directory()
        header = encode_segment_header(number, self.disk_id, self.geometry)
        for offset in HEADER_COPIES:
            self.disk.write(spare, offset, [header])
        self.disk.sync([spare])
        self.disk.rename(spare, name)
        self.disk.sync_directory()
