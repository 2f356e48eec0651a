"""A part: the records gathered for one segment until a flush writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.journal.format import blocks_for
from antiphon.journal.ports import Buffer, Location, Position


@dataclass(slots=True)
class Part:
    segment: int
    # The end of the segment before this one.
    before: Position
    first_block: int
    # Where this flush's data begin, where the next record goes, where the last one ended.
    data_from: int
    data_at: int
    last_end: int
    # The sync position in its records.
    synced: Position
    first_index: int | None = None
    pending: dict[Location, Buffer] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    order: list[bytes] = field(default_factory=list)
    order_bytes: int = 0
    highest: int = 0
    flags: int = 0

    @property
    def block_count(self) -> int:
        # The first flush into a segment always writes a block, which tells where the segment before ended.
        if self.order or self.first_block == 0:
            return blocks_for(self.order_bytes)
        return 0

    @property
    def is_empty(self) -> bool:
        return not self.buffers and not self.order and self.first_block != 0

    @property
    def end(self) -> Position:
        return Position(self.segment, self.first_block + self.block_count, self.last_end)
