"""No node speaks of a record before it is durable (I15).

A COMMIT_ACKNOWLEDGE, a SEAL_OK and a DATA_REPORT tell others to rely on this node's disk. When one is sent,
the records it speaks of must be covered by a finished sync that began after they were written. The same holds
for an applied envelope. A node that comes back must find at least those records.

The image is the commit server's log and the data server's ids as the disk would give them back if the power
went now, made from the records alone. Other checkers read these images, so this checker comes before them.
"""

from __future__ import annotations

from collections import deque

from antiphon.bus.messages import (
    BusMessage,
    CommitAcknowledge,
    DataReport,
    Entry,
    EntryKind,
    SealOk,
    ServerStatus,
)
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image, Record
from antiphon.sim.world import World


class WriteBeforeSend(Checker):
    """Compares every statement about the disk with the disk."""

    promise = "I15 write before send"
    hears = (CommitAcknowledge, DataReport, SealOk)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.images: dict[int, Image] = {}
        # How many lives of each node have begun.
        self.lives: dict[int, int] = {}
        self._written: dict[int, deque[tuple[int, Record]]] = {}
        # Nodes whose next life finds something else than what was written.
        self._damaged: set[int] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self.lives[node] = self.lives.get(node, 0) + 1
        image = self.images.get(node)
        if image is not None and node not in self._damaged:
            self._compare(node, image, found)
        self._damaged.discard(node)
        self.images[node] = found
        self._written[node] = deque()

    def on_crashed(self, node: int) -> None:
        self._written[node].clear()

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_replaced(self, node: int) -> None:
        self.images.pop(node, None)

    def on_appended(self, node: int, index: int, record: Record) -> None:
        self._written[node].append((index, record))

    def on_durable(self, node: int, index: int) -> None:
        written, image = self._written[node], self.images[node]
        while written and written[0][0] <= index:
            image.add(written.popleft()[1])

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, CommitAcknowledge):
            image = self.images[node]
            claims = message.status is ServerStatus.OK and message.last > 0
            if claims and (message.epoch != image.log_epoch or message.last > image.last):
                self.fail(
                    f"node {node} acknowledges epoch {message.epoch:#x} through {message.last}, its disk "
                    f"holds epoch {image.log_epoch:#x} through {image.last}"
                )
        elif isinstance(message, DataReport):
            mids = self.images[node].mids
            for item in message.items:
                if item.mid not in mids:
                    self.fail(f"node {node} reports envelope {tuple(item.mid)}, which its disk does not hold")
        elif isinstance(message, SealOk):
            image = self.images[node]
            if message.epoch > image.promised:
                self.fail(f"node {node} promises epoch {message.epoch:#x}, its disk says {image.promised:#x}")
            # A log of an epoch of a former configuration is told as one of none.
            is_former = message.log_epoch == 0 and image.has_config
            is_true = is_former or message.log_epoch == image.log_epoch
            if not is_true or message.last > image.last or message.base > image.base:
                self.fail(
                    f"node {node} seals a log of epoch {message.log_epoch:#x}, {message.base}.."
                    f"{message.last}; its disk holds epoch {image.log_epoch:#x}, {image.base}..{image.last}"
                )

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        # An applied entry is told to others as done, whether or not another node holds it, too.
        is_kept = payload is None or entry.mid in self.images[node].mids
        if entry.kind is EntryKind.DATA and not is_kept:
            self.fail(f"node {node} applies envelope {tuple(entry.mid)}, which its disk does not hold")

    def _compare(self, node: int, image: Image, found: Image) -> None:
        """Durable records must be found again; others may be."""
        if found.promised < image.promised or found.epoch_claimed < image.epoch_claimed:
            self.fail(f"node {node} forgot a promise or a claim that was durable")
        if found.epoch_max < image.epoch_max or found.base < image.base:
            self.fail(f"node {node} came back with an older epoch or base than was durable")
        if (found.epoch_max, found.log_config) != (image.epoch_max, image.log_config):
            # A later, unsynced epoch may have replaced entries that were never committed, and so may a server
            # that lost its vote.
            return
        kept = {entry.first: entry for entry in found.log}
        for entry in image.log:
            if entry.first > found.base and kept.get(entry.first) != entry:
                self.fail(f"node {node} lost the durable entry at {entry.first}")
