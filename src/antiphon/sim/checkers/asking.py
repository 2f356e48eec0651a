"""What nobody asked for is not sent: seen at the client ports, where credit enters and messages leave.

    asked     a consumer is sent no more than its client gave it credit for
    drained   when a client was told that a consumer is drained, nothing follows before it asks anew
    one       a consumer without a prefetch, whose client acknowledges before it asks, has one at a time

What a client has asked for counts from the step in which its client manager hears of it.
"""

from __future__ import annotations

from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Checker, Holder
from antiphon.sim.world import World


class Asked(Checker):
    """Counts what each consumer was given credit for, and what it was sent."""

    promise = "I32 asked"

    def __init__(self, world: World, *, is_one_by_one: bool) -> None:
        super().__init__(world)
        # Do clients acknowledge what they have before they ask for more?
        self._is_one_by_one = is_one_by_one
        self._asked: dict[Holder, int] = {}
        self._sent: dict[Holder, int] = {}
        # Those without a prefetch, on whichever connection: what they were sent and have not acknowledged.
        self._ones: set[tuple[int, int]] = set()
        self._has: dict[Holder, Ranges] = {}
        self._acknowledged: dict[int, Ranges] = {}

    def on_credit(self, node: int, holder: Holder, through: int, sent: int | None) -> None:
        if sent is None:
            self._asked[holder] = max(self._asked.get(holder, 0), through)
            return
        self._asked[holder], self._sent[holder] = through, sent
        if not through:
            self._ones.add((holder.session, holder.consumer))
        if (holder.session, holder.consumer) in self._ones:
            self._has[holder] = Ranges()

    def on_drained(self, node: int, holder: Holder) -> None:
        if holder in self._asked:
            is_unused = self._asked[holder] > self._sent[holder]
            self.world.probe("asking.drained_unused" if is_unused else "asking.drained_used")
            self._asked[holder] = self._sent[holder]

    def on_sent_through(self, node: int, holder: Holder, delivery: int) -> None:
        asked = self._asked.get(holder)
        if asked is None:
            # It was closed in the same step.
            return
        self._sent[holder] = delivery
        if delivery > asked:
            self.fail(f"{holder} was sent message {delivery}, and its client asked for {asked}")

    def on_handed_out(self, node: int, holder: Holder, sequence: int, count: int, redelivered: int) -> None:
        has = self._has.get(holder)
        if has is None or not self._is_one_by_one:
            return
        has.add(sequence, sequence + count)
        self.world.probe("asking.one_by_one")
        if has.count > 1:
            self.fail(f"{holder} asks for one message at a time, and has {has} unacknowledged")

    def on_kept(self, node: int, holder: Holder, numbers: Ranges) -> None:
        if holder in self._has:
            done = self._acknowledged.get(holder.session, Ranges())
            self._has[holder].add_all(numbers.difference(done))

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        self._acknowledged.setdefault(session, Ranges()).add_all(ranges)
        self._remove(session, ranges)

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        self._remove(session, numbers)

    def on_lost_told(self, node: int, holder: Holder, numbers: Ranges) -> None:
        if holder in self._has:
            self._has[holder].remove_all(numbers)

    def on_holder_gone(self, node: int, holder: Holder) -> None:
        for known in (self._asked, self._sent, self._has):
            known.pop(holder, None)

    def _remove(self, session: int, numbers: Ranges) -> None:
        for holder, has in self._has.items():
            if holder.session == session:
                has.remove_all(numbers)
