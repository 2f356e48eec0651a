"""Superblock: the two numbers that commit server and sequencer of a node may never forget.

Where it sits
    commit_server, sequencer  ->  SUPERBLOCK  ->  journal

What it promises
    P1  Neither number ever goes back.
    P2  Every record holds both, so that the newest one alone is enough.

What it leaves to others
    Waiting for the disk before anything is said that depends on them.
"""

from __future__ import annotations

from antiphon.bus.effects import Append, SuperblockRecord
from antiphon.bus.ports import JournalCounter


class Superblock:
    """The highest epoch promised, and the highest claimed by this node."""

    __slots__ = ("_counter", "epoch_claimed", "promised")

    def __init__(self, counter: JournalCounter, promised: int = 0, epoch_claimed: int = 0) -> None:
        self._counter = counter
        self.promised = promised
        self.epoch_claimed = epoch_claimed

    def promise(self, epoch: int) -> Append:
        """Never again listen to a sequencer of a lower epoch."""
        assert epoch > self.promised, f"epoch {epoch:#x} is promised after {self.promised:#x}"
        self.promised = epoch
        return self._record()

    def claim(self, epoch: int) -> Append:
        """Stand in this epoch, and never in it again."""
        assert epoch > self.epoch_claimed, f"epoch {epoch:#x} is claimed after {self.epoch_claimed:#x}"
        self.epoch_claimed = epoch
        return self._record()

    def _record(self) -> Append:
        record = SuperblockRecord(self.promised, self.epoch_claimed)
        return Append(self._counter.next(), record)
