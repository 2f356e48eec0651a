"""Nothing lost, nothing invented, nothing twice: the history of a topic as its subscribers saw it.

What `total_queue` asks of a queue holds for every subscription by itself: each message that it wanted,
by the order, reached an application of that subscription; and if it came again, it said so.
"""

from __future__ import annotations

from antiphon.sim.checkers.topic import Topics
from antiphon.sim.checkers.total_queue import TotalQueue
from antiphon.sim.checkers.watch import Holder
from antiphon.sim.world import World


class TotalTopic(TotalQueue):
    """Compares what went in with what came out, for each subscription."""

    promise = "total topic"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.topics: Topics | None = None
        self._times_of: dict[int, dict[int, int]] = {}
        self._first_copies_of: dict[int, set[int]] = {}

    def on_received(self, holder: Holder, sequence: int, body: bytes, redelivered: int) -> None:
        assert self.topics is not None, "the model of the topics watches, too"
        # 0 for the consumer of a queue.
        subscription = self.topics.subscription_of[holder.session, holder.consumer]
        # The base class counts over everybody; here it is counted for the subscription.
        self._times = self._times_of.setdefault(subscription, {})
        self._first_copies = self._first_copies_of.setdefault(subscription, set())
        super().on_received(holder, sequence, body, redelivered)

    @property
    def figures(self) -> dict[str, int]:
        received = [times for of_one in self._times_of.values() for times in of_one.values()]
        return super().figures | {
            "received": sum(received),
            "redelivered": sum(times - 1 for times in received),
            "subscriptions": len(self._times_of),
        }

    def at_quiet(self, facts: dict[int, int]) -> None:
        assert self.topics is not None, "the model of the topics watches, too"
        self._check_order()
        for id, subscription in self.topics.subscriptions.items():
            lost = sorted(subscription.wanted.difference(self._times_of.get(id, ())))
            if lost:
                self.fail(f"{len(lost)} messages never reached subscription {id}, the first is {lost[0]}")
