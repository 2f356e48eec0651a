"""CheckpointLine: when the file of a checkpoint may be begun, and which segments its files need.

Where it sits
    keeper  ->  CHECKPOINT LINE  ->  keeper

What it promises
    L1  A checkpoint's file is begun when every record that was gathered before it is durable. Its state may
        refer to any of them: were the file durable first, a crash between the two would leave a checkpoint
        that refers to places where nothing lies, or later another envelope.
    L2  From the moment a checkpoint is asked for, until its file is dropped, the segments that it refers to
        are needed. A file that is there can be begun with. A node that began with an older file writes the
        later ones again, with other places perhaps: until the new file of a number is durable, the segments
        of both are needed.
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

    __slots__ = ("_asked", "_files", "_waiting")

    def __init__(self, found: Mapping[int, frozenset[int]]) -> None:
        # Of each file that is there, the segments that it refers to.
        self._files = dict(found)
        # The same of each checkpoint that is asked for and whose file is not durable.
        self._asked: dict[int, frozenset[int]] = {}
        # With the index that must be durable before the file is begun.
        self._waiting: deque[tuple[int, W]] = deque()

    def ask(self, wanted: W, depends_on: int) -> None:
        """A checkpoint is to be written; the records up to `depends_on` were gathered before it."""
        self._asked[wanted.n] = frozenset(wanted.segments)
        self._waiting.append((depends_on, wanted))

    def due(self, durable_index: int) -> list[W]:
        """The checkpoints whose files may be begun now (L1); each is given once."""
        due: list[W] = []
        while self._waiting and self._waiting[0][0] <= durable_index:
            due.append(self._waiting.popleft()[1])
        return due

    def written(self, n: int) -> None:
        """The file of this checkpoint is durable, in place of the one that was there."""
        self._files[n] = self._asked.pop(n)

    def has_outdated(self, before: int) -> bool:
        """Would `release` drop a file?"""
        return any(n < before for n in sorted(self._files)[:-KEPT_ALWAYS])

    def release(self, before: int) -> set[int]:
        """Files below this number are dropped; returns the segments that the others need (L2, L3)."""
        for n in [n for n in sorted(self._files)[:-KEPT_ALWAYS] if n < before]:
            del self._files[n]
        return set().union(*self._files.values(), *self._asked.values())
