"""The applications' own ids: a message with an id that is remembered is not stored, and no other is left out.

    told     a client hears of a known id exactly when the order has an earlier message with the id, at the
             place that is told, which its destination remembers by log time
    stored   after every entry each replica has stored as many messages in every destination as the order has,
             without those with known ids
    kept     a message with a known id is in no destination

The ids and their times are read off the published batches and the marks of log time, by the model.
"""

from __future__ import annotations

from antiphon.bus.messages import Entry
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.ranges import Ranges
from antiphon.sim.checkers.model import Queues
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)


class IdsKept(Checker):
    """Compares what was stored, and what clients were told, with the ids in the model."""

    promise = "I36 ids"

    def __init__(self, world: World, model: Queues) -> None:
        super().__init__(world)
        self._model = model
        # By the last number of an entry: how many messages each destination has ever stored.
        self._stored: dict[int, dict[int, int]] = {}

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last not in self._stored:
            self._stored[entry.last] = self._model.stored_counts()

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        wanted = self._stored[entry.last]
        for store in state.directory:
            if store.id in wanted and store.published != wanted[store.id]:
                self.fail(
                    f"after {entry.last} node {node} has stored {store.published} messages in {store.name},"
                    f" and by the order and the ids in it {wanted[store.id]}"
                )
        known = [n for n in range(entry.first, entry.last + 1) if n in self._model.known]
        for number in known:
            if any(one.live.intersection(Ranges([(number, number + 1)])) for one in state.directory):
                self.fail(
                    f"{number} is stored at node {node}, and its id is that of {self._model.known[number]}"
                )

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        for row in range(count):
            place = self._model.place_of.get((session, number + row))
            first = None if place is None else self._model.known.get(place)
            if code == OutcomeCode.KNOWN:
                self.world.probe("ids.known")
                if first != sequence + row:
                    self.fail(
                        f"number {number + row} of session {session:#x} is called the same as"
                        f" {sequence + row}, and by its id it is {first or 'new'}"
                    )
            elif code in _STORED and first is not None:
                self.fail(
                    f"number {number + row} of session {session:#x} is called stored, and its id is that of "
                    f"{first}"
                )
