"""Selectors: a consumer gets the messages that its selector wants, and no others.

    wanted    every message that a primary gives to a consumer matches the consumer's selector
    told      the numbers of a delivery are those under which the order has its messages

Both are read off the published batches, and the selectors off the registrations: a message is evaluated here
as it was published, alone.
"""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.bus.messages import BusMessage, Deliver, Entry, Piece, Register
from antiphon.selectors import Selector, compile_selector
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World
from antiphon.wire.commands import Publish


class Selections(Checker):
    """Compares the deliveries to consumers with selectors with what was published."""

    promise = "I38 selectors"
    hears = (Deliver, Register)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._folded = 0
        # By number: the batch in which a message was published, and its row.
        self._published: dict[int, tuple[Batch, int]] = {}
        self._selectors: dict[tuple[int, int], Selector] = {}

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        for _, wish, sequence in commands_of(entry, payload):
            if isinstance(wish, Publish):
                batch = Batch.decode(bytes(wish.batch))
                if batch.has_properties:
                    self._published |= {sequence + row: (batch, row) for row in range(batch.count)}

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            self._selectors[node, message.consumer] = compile_selector(message.selector)
        elif isinstance(message, Deliver):
            takers = [(target.node, taker.consumer) for target in message.targets for taker in target.takers]
            wanted = [one for taker in takers if (one := self._selectors[taker]).text]
            for piece in message.pieces if wanted else ():
                self._check(wanted, piece)

    def _check(self, wanted: list[Selector], piece: Piece) -> None:
        given = Batch.decode(b"".join(piece.buffers))
        if given.has_gaps:
            self.world.probe("selectors.taken_here_and_there")
        for row, number in enumerate(piece.sequences):
            batch, at = self._published.get(number, (None, 0))
            if batch is None or given.body_bytes(row) != batch.body_bytes(at):
                self.fail(f"{number} is given out with the body of another message")
            for selector in wanted:
                if not selector.matches(batch, at, "a"):
                    self.fail(f"{number} is given to a consumer that wants {selector.text!r}")
                self.world.probe("selectors.wanted")
