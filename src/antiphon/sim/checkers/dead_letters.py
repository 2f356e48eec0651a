"""Dead messages of a channel: each is moved once, as it was (I34).

moved     a message leaves its source by one accepted DEAD, which stores it in the dead queue in the same
          entry, with its body, its number there, and a count above the limit unless it was rejected
accounts  published = live + acknowledged + expired + dropped + dead + purged, for every queue on every
          replica after every entry; and the dead queue has got as many messages as have died
"""

from __future__ import annotations

import json

from antiphon.batch import Batch
from antiphon.bus.messages import Entry
from antiphon.dead import DELIVERY_COUNT, ORIGINAL_DESTINATION, ORIGINAL_SEQUENCE
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.names import DEAD_QUEUE_NAME
from antiphon.ranges import Ranges
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World
from antiphon.wire.commands import BuryMessages, DeadReason, Publish

_Moves = list[tuple[int, BuryMessages]]


class DeadLetters(Checker):
    """Compares what dead queues get with what was published."""

    promise = "I34 dead letters"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._folded = 0
        self._moves: _Moves = []
        self._bodies: dict[int, bytes] = {}
        # By number, where a message was published; by destination, how many had died when it was deleted, and
        # by which entry.
        self._homes: dict[int, int] = {}
        self._died: dict[int, int] = {}
        self._deleted: dict[int, tuple[int, int]] = {}
        # By source and number, the number of the command that moved it.
        self._dead: dict[tuple[int, int], int] = {}

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded or payload is None:
            return
        self._moves = []
        for _, wish, sequence in commands_of(entry, payload):
            if isinstance(wish, BuryMessages):
                self._moves.append((sequence, wish))
            elif isinstance(wish, Publish):
                batch = Batch.decode(wish.batch)
                for row in range(batch.count):
                    self._bodies[sequence + row] = bytes(batch.body_bytes(row))
                    self._homes[sequence + row] = wish.destination

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if entry.last > self._folded:
            self._folded = entry.last
            now = {one.id: one.dead for one in state.directory}
            for id in self._died.keys() - now.keys():
                self._deleted[id] = entry.last, self._died[id]
            self._died = now
            if self._moves:
                exceptions = state.outcomes.within(entry.first, entry.last)
                refused = Ranges([(one.first, one.first + one.count) for one in exceptions])
                for sequence, wish in self._moves:
                    if sequence not in refused:
                        self._check(sequence, wish, state)
                    else:
                        self.world.probe("dead.refused")
                self._moves = []
        self._check_accounts(node, entry, state)

    def _check(self, sequence: int, wish: BuryMessages, state: ChannelState) -> None:
        self.world.probe(f"dead.{wish.reason.name.lower()}")
        source = wish.subscription or wish.destination
        batch = Batch.decode(wish.batch)
        is_family = state.directory.family(wish.destination) is not None
        for row, number in enumerate(wish.numbers.numbers()):
            # Of a family, the topic to which the message was published.
            home = state.directory.get(self._homes[number] if is_family else wish.destination)
            assert home is not None, "the fold accepted messages of no destination"
            limit = json.loads(home.settings)["redelivery_limit"]
            before = self._dead.setdefault((source, number), sequence)
            if before != sequence:
                self.fail(f"{number} of {source} died at {before} and again at {sequence}")
            if bytes(batch.body_bytes(row)) != self._bodies[number]:
                self.fail(f"{number} of {source} died at {sequence} and has another body since")
            properties = batch.properties(row)
            if (properties[ORIGINAL_DESTINATION], properties[ORIGINAL_SEQUENCE]) != (home.name, number):
                self.fail(f"{number} of {source} died at {sequence} and names another origin: {properties}")
            count = properties[DELIVERY_COUNT]
            assert isinstance(count, int), "a count is a number"
            if wish.reason is DeadReason.LIMIT and not 0 < limit < count:
                self.fail(f"{number} of {source} came {count} times and died; its limit is {limit}")

    def _check_accounts(self, node: int, entry: Entry, state: ChannelState) -> None:
        died = sum([count for at, count in self._deleted.values() if at <= entry.last])
        for one in state.directory:
            died += one.dead
            if isinstance(one, Queue):
                gone = one.acknowledged + one.expired + one.dropped + one.dead + one.purged
                if one.published != one.live.count + gone:
                    self.fail(
                        f"after {entry.last} node {node} has {one.live.count} of {one.published} messages of "
                        f"{one.name}, and {gone} are gone"
                    )
        queue = state.directory.named(DEAD_QUEUE_NAME)
        buried = queue.published if queue is not None else 0
        if buried != died:
            self.fail(f"after {entry.last} node {node} has {buried} dead messages, and {died} have died")
