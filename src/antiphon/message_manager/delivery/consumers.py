"""Consumer: an attached consumer, its credit and the messages it holds.

Credit is absolute: "up to delivery number x, up to y bytes in all", so that a repeated or late `Credits` does
no harm. Deliveries are numbered 1, 2, 3, … from the attachment on; bytes are those of bodies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.ranges import Ranges
from antiphon.selectors import Selector

if TYPE_CHECKING:
    from antiphon.message_manager.delivery.streams import Stream
    from antiphon.message_manager.delivery.views import View

_RUNS_SPARE: Final = 16


class ConsumerKey(NamedTuple):
    """A consumer's name: its client manager's node, and the number which that gave it."""

    node: int
    consumer: int


class Run(NamedTuple):
    """The deliveries delivery … delivery+count-1 were the messages sequence … sequence+count-1."""

    delivery: int
    sequence: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


_NO_RUN: Final = Run(0, 0, 0)


class Consumer:
    """A consumer at the primary, for one term."""

    __slots__ = (
        "_runs",
        "credit_bytes",
        "credit_messages",
        "delivered",
        "delivered_bytes",
        "destination",
        "drain_through",
        "drained_through",
        "generation",
        "in_flight",
        "is_away",
        "key",
        "number",
        "selector",
        "session",
        "stream",
        "subscription",
        "view",
    )

    def __init__(
        self,
        *,
        key: ConsumerKey,
        session: int,
        generation: int,
        destination: int,
        subscription: int = 0,
        number: int = 0,
        stream: Stream | None = None,
        selector: Selector | None = None,
    ) -> None:
        self.key = key
        # Which messages the consumer wants, and those of its dispatcher that it may have; None: all.
        self.selector = selector
        self.view: View | None = None
        # The client's number of this consumer, and whether the client was lost and may come back.
        self.number = number
        self.is_away = False
        # None: deliveries have no window.
        self.stream = stream
        self.session = session
        self.generation = generation
        self.destination = destination
        self.subscription = subscription
        self.credit_messages = 0
        self.credit_bytes = 0
        # The last delivery number, and the bytes of bodies up to it.
        self.delivered = 0
        self.delivered_bytes = 0
        # A drain: through which delivery number credit is to be used up, the number that must be applied
        # before, and how far drains were answered.
        self.drain_through = 0
        self.drained_through = 0
        self.in_flight = Ranges()
        self._runs: list[Run] = []

    @property
    def source(self) -> int:
        return self.subscription or self.destination

    @property
    def has_credit(self) -> bool:
        return (
            self.delivered < self.credit_messages
            and self.delivered_bytes < self.credit_bytes
            and not self.is_away
        )

    @property
    def can_take(self) -> bool:
        """Can a message be given to the consumer now?"""
        return self.has_credit and (self.stream is None or self.stream.room > 0)

    def grant(self, messages: int, bytes: int) -> None:
        """Raise the credit; a smaller figure is an older one."""
        self.credit_messages = max(self.credit_messages, messages)
        self.credit_bytes = max(self.credit_bytes, bytes)

    def drain(self, through: int) -> bool:
        """False: a drain through this delivery number was answered before."""
        if through <= self.drained_through:
            return False
        self.drain_through = max(self.drain_through, through)
        return True

    def use_up(self) -> int:
        """Pass over the delivery numbers that are left of a drain; returns the last of them.

        The numbers are not taken back: credit that is repeated or late stays used up.
        """
        self.delivered = max(self.delivered, self.drain_through)
        self.drained_through = self.drain_through
        return self.drain_through

    def hold(self, numbers: Ranges) -> None:
        """Note messages held from an earlier term; they come before delivery number 1."""
        self.in_flight.add_all(numbers)

    def give(self, start: int, stop: int, bytes: int) -> None:
        count = stop - start
        runs = self._runs
        last = runs[-1] if runs else _NO_RUN
        if last.sequence + last.count == start and last.delivery + last.count == self.delivered + 1:
            runs[-1] = Run(last.delivery, last.sequence, last.count + count)
        else:
            if len(runs) > 2 * self.in_flight.count + _RUNS_SPARE:
                self._runs = runs = [run for run in runs if self._is_held(run)]
            runs.append(Run(self.delivered + 1, start, count))
        self.in_flight.add(start, stop)
        self.delivered += count
        self.delivered_bytes += bytes

    def give_some(self, numbers: Ranges, bytes: int) -> None:
        """Give messages that lie here and there."""
        for start, stop in numbers:
            self.give(start, stop, 0)
        self.delivered_bytes += bytes

    def give_fewer(self, first: int, count: int, rows: Iterable[tuple[int, int]]) -> int:
        """Renumber deliveries first … first+count-1, none of which arrived, of which only `rows` are left.

        Each row is a sequence and a count. The rows get the last numbers; returns the first of those.
        """
        rows, stop = list(rows), first + count
        number = begun = stop - sum([count for _, count in rows])
        before, between, behind = [], [], []
        for run in self._runs:
            if run.delivery < first:
                before.append(run._replace(count=min(run.count, first - run.delivery)))
            skip = max(0, stop - run.delivery)
            if skip < run.count:
                behind.append(Run(run.delivery + skip, run.sequence + skip, run.count - skip))
        for sequence, count in rows:
            between.append(Run(number, sequence, count))
            number += count
        self._runs = [*before, *between, *behind]
        return begun

    def _is_held(self, run: Run) -> bool:
        number = self.in_flight.next_from(run.sequence)
        return number is not None and number < run.sequence + run.count

    def forget(self, numbers: Ranges) -> int:
        """Drop messages that were acknowledged or returned; how many of them the consumer held."""
        in_flight = self.in_flight
        if len(numbers) == 1:
            held = in_flight.remove(numbers.first, numbers.last + 1)
        else:
            held = in_flight.remove_all(numbers)
        if held and not in_flight:
            self._runs.clear()
        return held

    def unseen(self, seen_through: int) -> Ranges:
        """The messages held of deliveries above `seen_through`, which the application has not seen."""
        unseen = Ranges()
        for delivery, sequence, count in self._runs:
            skip = max(0, seen_through + 1 - delivery)
            if skip < count:
                unseen.add(sequence + skip, sequence + count)
        return unseen.intersection(self.in_flight)
