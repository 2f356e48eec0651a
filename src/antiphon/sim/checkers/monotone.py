"""What only ever grows (I8).

promised, log_epoch and base of a commit server never go back, also across a crash; log_epoch is
never above promised; and an epoch once claimed is never claimed again.
"""

from __future__ import annotations

from antiphon.bus.messages import BusMessage, CommitAcknowledge, Seal, SealOk
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World


class Monotone(Checker):
    """Watches what a commit server says, and what each new life finds on its disk."""

    promise = "I8 monotone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[tuple[int, str], int] = {}
        self._sealed: dict[int, int] = {}
        self._life: dict[int, int] = {}

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._life[node] = self._life.get(node, 0) + 1
        self._rise(node, promised=found.promised, log_epoch=found.log_epoch, base=found.base)

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, SealOk):
            self._rise(node, promised=message.epoch, log_epoch=message.log_epoch, base=message.base)
        elif isinstance(message, CommitAcknowledge) and message.last:
            self._rise(node, promised=message.epoch, log_epoch=message.epoch)
        elif isinstance(message, Seal):
            life = self._life[node]
            if self._sealed.setdefault(message.epoch, life) != life:
                self.fail(f"node {node} claims epoch {message.epoch:#x} again in another life")

    def _rise(self, node: int, **values: int) -> None:
        for name, value in values.items():
            before = self._seen.get((node, name), 0)
            if value < before:
                self.fail(f"{name} of node {node} went back from {before:#x} to {value:#x}")
            self._seen[node, name] = value
        if self._seen.get((node, "log_epoch"), 0) > self._seen.get((node, "promised"), 0):
            self.fail(f"node {node} has a log of an epoch it never promised")
