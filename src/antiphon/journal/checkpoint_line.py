"""CheckpointLine: when the file of a checkpoint may be begun, and which segments the files need.

CPL1  A checkpoint's file is begun when every record gathered before it is durable: else, after a crash, its
      state might refer to places where nothing lies, or another envelope.
CPL2  The segments that a checkpoint refers to are needed from its request until its file is dropped. A node
      that began with an older file writes later ones again, perhaps with other places: until the new file of
      a number is durable, the segments of both are needed.
CPL3  Files are dropped below a number, but never the two newest, as by `checkpoints.drop_before`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from antiphon.journal.checkpoints import KEPT_ALWAYS


class Wanted(Protocol):
    """A checkpoint to write (`bus.effects.WriteCheckpoint`)."""

    @property
    def n(self) -> int:
        """The last number in the checkpoint."""

    @property
    def segments(self) -> tuple[int, ...]:
        """The segments that it refers to."""


W = TypeVar("W", bound=Wanted)


class CheckpointLine(Generic[W]):
    """The checkpoints of one journal: those that wait for the disk, and the segments that all need."""

    __slots__ = ("_asked", "_files", "waiting")

    def __init__(self, found: Mapping[int, frozenset[int]]) -> None:
        # The segments of each file.
        self._files = dict(found)
        # The segments of each checkpoint whose file is not durable yet.
        self._asked: dict[int, frozenset[int]] = {}
        # With the index that must be durable before the file is begun.
        self.waiting: deque[tuple[int, W]] = deque()

    def ask(self, wanted: W, depends_on: int) -> None:
        """Add a checkpoint; the records up to `depends_on` were gathered before it."""
        self._asked[wanted.n] = frozenset(wanted.segments)
        self.waiting.append((depends_on, wanted))

    def due(self, durable_index: int) -> list[W]:
        """The checkpoints whose files may be begun now (CPL1), each once."""
        due: list[W] = []
        while self.waiting and self.waiting[0][0] <= durable_index:
            due.append(self.waiting.popleft()[1])
        return due

    def written(self, n: int) -> None:
        """Note that the file of a checkpoint is durable, in place of an earlier one."""
        self._files[n] = self._asked.pop(n)

    def has_outdated(self, before: int) -> bool:
        return any(n < before for n in sorted(self._files)[:-KEPT_ALWAYS])

    def release(self, before: int) -> set[int]:
        """Drop the files below this number; returns the segments that the others need (CPL2, CPL3)."""
        for n in [n for n in sorted(self._files)[:-KEPT_ALWAYS] if n < before]:
            del self._files[n]
        return set().union(*self._files.values(), *self._asked.values())
