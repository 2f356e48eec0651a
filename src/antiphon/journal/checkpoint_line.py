"""CheckpointLine: when the file of a checkpoint may be begun, and which segments its files need.

Where it sits
    storage (real or simulated)  ->  CHECKPOINT LINE  ->  storage

What it promises
    L1  A checkpoint's file is begun when every record that was gathered before it is durable. Its state may
        refer to any of them: were the file durable first, a crash between the two would leave a checkpoint
        that refers to places where nothing lies, or later another envelope.
    L2  From the moment a checkpoint is asked for, until its file is dropped, the segments that it refers to
        are needed. A file that is there can be begun with.
    L3  Files are dropped below a number, but never the two newest, as `checkpoints.drop_before` does it.

What it leaves to others
    Writing and dropping the files, which takes a thread or a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from antiphon.journal.checkpoints import KEPT_ALWAYS


class Wanted(Protocol):
    """A checkpoint that is to be written (`bus.effects.WriteCheckpoint`)."""

    @property
    def n(self) -> int:
        """After which number."""

    @property
    def segments(self) -> tuple[int, ...]:
        """The segments that it refers to."""


W = TypeVar("W", bound=Wanted)


class CheckpointLine(Generic[W]):
    """The checkpoints of one journal: those that wait for the disk, and what all of them need."""

    __slots__ = ("_segments", "_waiting", "_written")

    def __init__(self, found: Mapping[int, frozenset[int]]) -> None:
        # Of each checkpoint that is there or asked for, the segments that it refers to.
        self._segments = dict(found)
        # Those that are there, in ascending order.
        self._written = sorted(found)
        # With the index that must be durable before the file is begun.
        self._waiting: deque[tuple[int, W]] = deque()

    def ask(self, wanted: W, depends_on: int) -> None:
        """A checkpoint is to be written; the records up to `depends_on` were gathered before it."""
        self._segments[wanted.n] = frozenset(wanted.segments)
        self._waiting.append((depends_on, wanted))

    def due(self, durable_index: int) -> list[W]:
        """The checkpoints whose files may be begun now (L1); each is given once."""
        due: list[W] = []
        while self._waiting and self._waiting[0][0] <= durable_index:
            due.append(self._waiting.popleft()[1])
        return due

    def written(self, n: int) -> None:
        """The file of this checkpoint is durable."""
        self._written = sorted({*self._written, n})

    def release(self, before: int) -> set[int]:
        """Files below this number are dropped; returns the segments that the others need (L2, L3)."""
        for n in [n for n in self._written[:-KEPT_ALWAYS] if n < before]:
            self._written.remove(n)
            del self._segments[n]
        return set().union(*self._segments.values())
