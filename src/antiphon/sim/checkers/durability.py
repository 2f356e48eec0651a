"""What was confirmed stays (I4), and every epoch begins with all that was committed (I10).

A command confirmed to a client has its place in the one order, the place it was told, now and for
ever; a node that comes back finds on its disk everything that was ever committed, and starts its new
epoch with it. That each confirmed message is finally delivered is `total_queue`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.bus.messages import BusMessage, Entry, EpochStart
from antiphon.sim.checkers.order import Order
from antiphon.sim.checkers.queue import Queues
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode


class Confirmations(Checker):
    """Compares what clients were told with the ghost log."""

    promise = "I4, I10 durability"

    def __init__(self, world: World, order: Order, queues: Queues) -> None:
        super().__init__(world)
        self._order = order
        self._queues = queues

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        if code == OutcomeCode.DUPLICATE and sequence == 0:
            # Forgotten because the client had confirmed hearing of it: ours never resend such a one.
            self.fail(f"number {number} of session {session:#x} is a duplicate of nobody knows what")
        if code not in (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE):
            return
        for row in range(count):
            place = self._queues.place_of.get((session, number + row))
            if place != sequence + row:
                self.fail(
                    f"number {number + row} of session {session:#x} was confirmed at {sequence + row}, "
                    f"and the order has it at {place}"
                )
            if self._order.covering(sequence + row) is None:
                self.fail(f"{sequence + row} was confirmed and never committed")


class Durability(Confirmations):
    """Compares the ghost log with each new life, too: of a node that is alone with its disk."""

    def on_sent(self, node: int, message: BusMessage) -> None:
        if not isinstance(message, EpochStart):
            return
        last = message.entries[-1].last if message.entries else message.from_seq - 1
        if last < self._order.committed_upto:
            self.fail(
                f"epoch {message.epoch:#x} begins with a log through {last}, "
                f"{self._order.committed_upto} was committed"
            )
        self._compare(node, message.entries)

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        last = found.last
        committed = self._order.committed_upto
        if last < committed:
            self.fail(f"node {node} came back with a log through {last}, {committed} was committed")
        self._compare(node, found.log)

    def _compare(self, node: int, entries: Sequence[Entry]) -> None:
        for entry in entries:
            known = self._order.committed.get(entry.first)
            if known is not None and known != entry:
                self.fail(f"node {node} has another entry at {entry.first} than was committed")
