"""Image: the order of a channel as the records on one disk tell it.

The image is read from records alone, more plainly than the node's own recovery, so that the two can be
compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphon.bus.effects import DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.records import (
    LEARNED,
    BaseMoved,
    EntriesAppended,
    EntriesStaged,
    EpochStarted,
    decode_order,
)
from antiphon.ids import Mid
from antiphon.journal.recovery import Recovered

Record = DataRecord | OrderRecord | SuperblockRecord


@dataclass(slots=True)
class Image:
    """The contents that one node's disk gives back, or would if the power went now."""

    promised: int = 0
    epoch_claimed: int = 0
    epoch_max: int = 0
    base: int = 0
    log: list[Entry] = field(default_factory=list)
    mids: set[Mid] = field(default_factory=set)
    # Entries that count only when the start of their epoch follows them.
    staged: list[Entry] = field(default_factory=list)
    staged_epoch: int = 0
    # The configuration of the log.
    log_config: int = LEARNED

    @classmethod
    def of(cls, found: Recovered) -> Image:
        """The image that a new life has found."""
        image = cls(epoch_claimed=found.epoch_claimed, mids={stored.mid for stored in found.data})
        for body in found.order:
            image.add_order(body)
        image.promised = max(found.promised, image.epoch_max)
        return image

    @property
    def log_epoch(self) -> int:
        """The epoch that wrote the log; 0 if it was only learned."""
        return self.epoch_max if self.log_config != LEARNED else 0

    @property
    def has_config(self) -> bool:
        """May the configuration have changed in this log, or before it?"""
        return self.base > 0 or any(entry.kind is EntryKind.CONFIG for entry in self.log)

    @property
    def last(self) -> int:
        return self.log[-1].last if self.log else self.base

    def add(self, record: Record) -> None:
        match record:
            case SuperblockRecord():
                self.promised = record.promised
                self.epoch_claimed = record.epoch_claimed
            case DataRecord():
                self.mids.add(record.mid)
            case OrderRecord():
                self.add_order(record.body)

    def add_order(self, body: bytes) -> None:
        match decode_order(body):
            case EntriesAppended(log_epoch=epoch, prev=prev, entries=entries, envelopes=envelopes):
                self._put(epoch, prev, entries)
                self.mids.update([entries[at].mid for at, _ in envelopes])
            case EntriesStaged(epoch=epoch, prev=prev, entries=entries):
                if epoch != self.staged_epoch or not self.staged or self.staged[-1].last != prev:
                    self.staged, self.staged_epoch = [], epoch
                self.staged += entries
            case EpochStarted(epoch=epoch, keep_through=keep_through, entries=entries, config_id=config_id):
                self.log_config = config_id
                if entries and entries[0].first > keep_through + 1 and epoch == self.staged_epoch:
                    entries = (*self.staged, *entries)
                self._put(epoch, keep_through, entries)
                self.promised = max(self.promised, epoch)
            case BaseMoved(base=base, log_epoch=epoch, config_id=config_id):
                self._move_base(base)
                self.epoch_max, self.log_config = max(self.epoch_max, epoch), config_id

    def _move_base(self, base: int) -> None:
        log = self.log
        if log and log[0].first <= base < log[-1].last and not any(entry.last == base for entry in log):
            # The base came with a checkpoint of another node: this log was not the committed order.
            log.clear()
        self.base = max(self.base, base)
        self.log = [entry for entry in log if entry.first > base]

    def _put(self, epoch: int, prev: int, entries: Iterable[Entry]) -> None:
        self.epoch_max = epoch
        while self.log and self.log[-1].last > prev:
            self.log.pop()
        if self.last < prev:
            # The records between were released; they count only if a later base covers them.
            self.log.clear()
        self.log.extend(entry for entry in entries if entry.first > self.base)
