"""The interfaces through which the bus machines look up written records.

Writing is an effect (`Append`), durability an event (`Synced`); looking up changes nothing, and is a call.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from antiphon.bus.log import CommitLog
from antiphon.bus.messages import Entry, FetchIdReply
from antiphon.ids import Mid
from antiphon.journal.ports import Location, Record, identity_of
from antiphon.wire.primitives import Buffer

__all__ = ["CommittedOrder", "JournalCounter", "Location", "Payloads", "Record", "identity_of"]


class Payloads(Protocol):
    """Payloads of envelopes this node has written, by id and by place."""

    def has(self, mid: Mid) -> bool:
        """Whether this envelope is written here and not yet given up."""

    def locate(self, mid: Mid) -> Location | None:
        """The place of a written envelope that has no number yet, or None."""

    def read(self, location: Location) -> memoryview:
        """The payload, its digest verified; raises `errors.Damaged` rather than return other bytes."""

    def record(self, location: Location) -> Record:
        """The whole envelope that lies there, verified; raises `errors.Damaged`."""

    def place(self, mid: Mid, first: int, count: int) -> Location:
        """Give an envelope its numbers: from now on it is found by them."""

    def location_of(self, first: int) -> Location | None:
        """The place of the envelope whose first number this is, if it was placed and not yet forgotten."""

    def discard(self, mid: Mid) -> None:
        """Drop an envelope that will never get a number, or that a checkpoint covers."""

    def copied(self, index: int) -> Location | None:
        """The place of the `CopyRecord` that was written under this index; its space is kept."""

    def forget_copies(self, upto: int) -> None:
        """Drop the copies up to this index, also those that are not written yet: a checkpoint refers to all
        that are needed."""


class CommittedOrder(Protocol):
    """The order as this node's commit server knows it."""

    @property
    def log(self) -> CommitLog:
        """The whole log; another epoch may yet cut off its end."""

    def committed_from(self, first: int, most: int) -> FetchIdReply | None:
        """The committed entries from number `first` on; None while the log cannot answer."""


class CopyState(Enum):
    MISSING = 0
    # In the journal, and not durable yet.
    WRITTEN = 1
    DURABLE = 2


class Stock(Protocol):
    """The envelopes that this node's data server has."""

    def stored(self, entry: Entry) -> CopyState:
        """Whether the envelope of an entry is here; what is known to be committed counts as durable."""

    def in_hand(self, mid: Mid) -> Buffer | None:
        """The payload of a written envelope, if it is in memory."""


class JournalCounter:
    """Numbers the durable records of one node: 1, 2, 3, … in the order they must reach the disk.

    All roles of a node share one counter, because one journal and one sync serve them all.
    """

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last
