"""Held messages stay, and a reader with a hold reads exactly the messages there are.

    - from one number of the log to the next, no message goes that a hold needs, unless its position has
      passed
    - no message comes into a range that was read
    - a queue keeps no acknowledged message unless it is held
    - all replicas keep the same for every hold
    - a client reads from its position up to the number of its hold exactly these messages
    - a released hold begins again only by a command of its holder

The checker looks at the state after every entry, and remembers the earlier states itself.
"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.bus.messages import Entry
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.holds import HoldRow
from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World

_END = 1 << 64


class KeptByHold(NamedTuple):
    """The numbers that a hold keeps in one destination from its position on; `began` is where the hold
    began."""

    began: int
    position: int
    destination: int
    numbers: Ranges


def _numbers(destination: Destination, row: HoldRow) -> Ranges:
    """The numbers that a hold's reader has to read; an exclusive consumer's acknowledged ones do not
    count."""
    there = destination.live if row.consumes else destination.stored
    return there.clip(row.position, _END)


class Holdings(Checker):
    """Remembers, for every number of the log, the messages that each hold has kept."""

    promise = "I20 hold"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # After the last number that any replica has folded; and after each number.
        self._kept: dict[str, KeptByHold] = {}
        self._folded = 0
        self._after: dict[int, dict[str, KeptByHold]] = {}
        # Holders that were told of their release, and have not asked for a hold since.
        self._unwanted: set[str] = set()

    def on_hold_said(self, holder: str) -> None:
        self._unwanted.discard(holder)

    def on_hold_released(self, holder: str) -> None:
        self._unwanted.add(holder)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if entry.last > self._folded:
            now = {name: self._look(name, entry, state, row) for name, row in state.holds.rows.items()}
            self._folded, self._kept = entry.last, now
            self._after[entry.last] = now
            self._check_the_rest(node, state)
            return
        for name, known in self._after[entry.last].items():
            row = state.holds.rows.get(name)
            stored = state.directory.get(known.destination)
            if row is None or stored is None or row.position != known.position:
                self.fail(f"after {entry.last} node {node} does not know hold {name} as others do")
            if _numbers(stored, row) != known.numbers:
                self.fail(f"after {entry.last} node {node} keeps something else for {name} than others")
        if len(state.holds.rows) != len(self._after[entry.last]):
            self.fail(f"after {entry.last} node {node} has other holds than others")

    def _look(self, name: str, entry: Entry, state: ChannelState, row: HoldRow) -> KeptByHold:
        position, destination = row.position, row.destinations[0]
        found = state.directory.get(destination)
        if found is None:
            self.fail(f"{name} holds destination {destination}, which is not there")
        numbers = _numbers(found, row)
        before = self._kept.get(name)
        if before is None:
            self.world.probe("model.hold_began")
            if name in self._unwanted:
                self.fail(f"hold {name} lives again at {entry.first}, and its holder knows nothing of it")
            return KeptByHold(entry.first, position, destination, numbers)
        if position < before.position:
            self.fail(f"hold {name} has gone back from {before.position} to {position}")
        lost = before.numbers.clip(position, _END).difference(numbers)
        if lost:
            self.fail(f"at {entry.first}, {lost} went, which {name} holds from {position} on")
        gained = numbers.clip(0, entry.first).difference(before.numbers)
        if gained:
            self.fail(f"at {entry.first}, {gained} came, below what {name} might have read")
        if not isinstance(found, Topic) and numbers != found.live.clip(position, _END):
            self.world.probe("model.acknowledged_and_held")
        return KeptByHold(before.began, position, destination, numbers)

    def _check_the_rest(self, node: int, state: ChannelState) -> None:
        for one in state.directory:
            if isinstance(one, Topic):
                continue
            covering = [row.position for row in state.holds.rows.values() if row.covers(one.id)]
            kept = one.stored.difference(one.live)
            if kept and (not covering or kept.first < min(covering)):
                self.fail(f"node {node} keeps {kept} of {one.name}, which are acknowledged and not held")

    def on_range_read(self, holder: str, destination: int, start: int, stop: int, numbers: Ranges) -> None:
        known = self._kept.get(holder)
        if known is None or known.began > stop or known.destination != destination:
            # The hold has ended since, whether or not another has begun.
            self.world.probe("model.read_without_a_hold")
            return
        self.world.probe("model.read_under_a_hold")
        # Messages below the position may be gone: a command of the reader may be on its way.
        start = max(start, known.position)
        if numbers.clip(start, stop) != known.numbers.clip(start, stop):
            self.fail(
                f"{holder} read {numbers.clip(start, stop)} of {start} to {stop}, "
                f"and holds {known.numbers.clip(start, stop)}"
            )
