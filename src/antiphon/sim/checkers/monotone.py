"""What only ever grows (I8).

promised, log_epoch and base of a commit server never go back, also across a crash; log_epoch is
never above promised; and an epoch once claimed is never claimed again.

What a server says and what its disk holds are watched apart. Two answers of one step may leave in any
order, the promise of a higher epoch before that of a lower one; both are true. But no later life may find
less than was said.
"""

from __future__ import annotations

from antiphon.bus.messages import BusMessage, CommitAcknowledge, Seal, SealOk, ServerStatus
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import World


class Monotone(Checker):
    """Watches what a commit server says and writes, and what each new life finds on its disk."""

    promise = "I8 monotone"
    hears = (CommitAcknowledge, Seal, SealOk)

    def __init__(self, world: World, disks: WriteBeforeSend | None = None) -> None:
        super().__init__(world)
        self._disks = disks
        self._seen: dict[tuple[int, str], int] = {}
        self._on_disk: dict[int, tuple[int, int, int]] = {}
        self._sealed: dict[int, tuple[int, int]] = {}
        self._life: dict[int, int] = {}
        self._damaged: set[int] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._life[node] = self._life.get(node, 0) + 1
        self._on_disk[node] = (found.promised, found.epoch_max, found.base)
        if node in self._damaged:
            # What is found now is not what was written. What was said stands.
            self._damaged.discard(node)
        else:
            self._rise(node, promised=found.promised, log_epoch=found.epoch_max, base=found.base)

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_replaced(self, node: int) -> None:
        self._seen = {key: value for key, value in self._seen.items() if key[0] != node}

    def on_durable(self, node: int, index: int) -> None:
        if self._disks is None:
            return
        image = self._disks.images[node]
        before, now = self._on_disk[node], (image.promised, image.epoch_max, image.base)
        if now == before:
            return
        self._on_disk[node] = now
        for name, old, new in zip(("promised", "log_epoch", "base"), before, now, strict=True):
            if new < old:
                self.fail(f"{name} on the disk of node {node} went back from {old:#x} to {new:#x}")
        if image.epoch_max > image.promised:
            self.fail(f"the disk of node {node} has a log of an epoch it never promised")

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, SealOk):
            self._promise(node, message.epoch)
            self._rise(node, base=message.base)
            if message.log_epoch:
                # None is said of a log that belongs to a former configuration; the disk tells which it is.
                self._rise(node, log_epoch=message.log_epoch)
        elif isinstance(message, CommitAcknowledge):
            if message.last and message.status is ServerStatus.OK:
                self._promise(node, message.epoch)
                self._rise(node, log_epoch=message.epoch)
        elif isinstance(message, Seal):
            claim = (node, self._life[node])
            if self._sealed.setdefault(message.epoch, claim) != claim:
                self.fail(f"node {node} claims epoch {message.epoch:#x} again in another life")

    def _promise(self, node: int, epoch: int) -> None:
        self._seen[node, "promised"] = max(self._seen.get((node, "promised"), 0), epoch)

    def _rise(self, node: int, **values: int) -> None:
        for name, value in values.items():
            before = self._seen.get((node, name), 0)
            if value < before:
                self.fail(f"{name} of node {node} went back from {before:#x} to {value:#x}")
            self._seen[node, name] = value
        if self._seen.get((node, "log_epoch"), 0) > self._seen.get((node, "promised"), 0):
            self.fail(f"node {node} has a log of an epoch it never promised")
