"""Consumer: one attached consumer, what it may still be given and what it holds.

Credit is absolute: "up to delivery number x, up to y bytes in all". A repeated or a late word about it
does no harm. Deliveries are numbered 1, 2, 3, … from the attachment on; bytes are those of bodies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.ranges import Ranges

if TYPE_CHECKING:
    from antiphon.message_manager.delivery.streams import Stream

_RUNS_SPARE: Final = 16


class ConsumerKey(NamedTuple):
    """Consumers are named by their client manager, which sits on this node."""

    node: int
    consumer: int


class Run(NamedTuple):
    """The deliveries delivery … delivery+count-1 were the messages sequence … sequence+count-1."""

    delivery: int
    sequence: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


_NO_RUN: Final = Run(0, 0, 0)


class Consumer:
    """Known only to the primary, and only as long as it is the primary."""

    __slots__ = (
        "_runs",
        "credit_bytes",
        "credit_messages",
        "delivered",
        "delivered_bytes",
        "destination",
        "drain_floor",
        "drain_through",
        "drained_through",
        "generation",
        "in_flight",
        "is_away",
        "key",
        "number",
        "session",
        "stream",
        "subscription",
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
    ) -> None:
        self.key = key
        # What its client calls it, and whether that client was lost and may come back.
        self.number = number
        self.is_away = False
        # What its client manager is sent; None if that knows no bounds.
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
        # Through which delivery number its credit is to be used up, by a state not before which number of
        # the log, and through which it was.
        self.drain_through = 0
        self.drain_floor = 0
        self.drained_through = 0
        self.in_flight = Ranges()
        self._runs: list[Run] = []

    @property
    def source(self) -> int:
        """The id of what it takes its messages from."""
        return self.subscription or self.destination

    @property
    def has_credit(self) -> bool:
        return (
            self.delivered < self.credit_messages
            and self.delivered_bytes < self.credit_bytes
            and not self.is_away
        )

    def grant(self, messages: int, bytes: int) -> None:
        """Credit never shrinks: a smaller figure is an older one."""
        self.credit_messages = max(self.credit_messages, messages)
        self.credit_bytes = max(self.credit_bytes, bytes)

    def drain(self, through: int, floor: int) -> bool:
        """It wants what is there now, up to this delivery number. False when that was answered before."""
        if through <= self.drained_through:
            return False
        self.drain_through = max(self.drain_through, through)
        self.drain_floor = max(self.drain_floor, floor)
        return True

    def use_up(self) -> int:
        """Nothing comes under the delivery numbers that are left to it; the last of them.

        They are passed over, and not taken back: credit that is said again or comes late stays used up.
        """
        self.delivered = max(self.delivered, self.drain_through)
        self.drained_through = self.drain_through
        return self.drain_through

    def hold(self, numbers: Ranges) -> None:
        """It has these from an earlier term; they come before delivery number 1."""
        self.in_flight.add_all(numbers)

    def give(self, start: int, stop: int, bytes: int) -> None:
        """The messages [start, stop) go to it now."""
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

    def give_fewer(self, first: int, count: int, rows: Iterable[tuple[int, int]]) -> int:
        """Of the deliveries first … first+count-1 only these rows go out, each a sequence and a count.

        None of the deliveries has reached the consumer. The rows get the last of their numbers; the first of
        those is returned.
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
        return bool(self.in_flight.clip(run.sequence, run.sequence + run.count))

    def forget(self, numbers: Ranges) -> int:
        """These are acknowledged or given back; how many of them it held."""
        in_flight = self.in_flight
        if len(numbers) == 1:
            held = in_flight.remove(numbers.first, numbers.last + 1)
        else:
            held = in_flight.remove_all(numbers)
        if held and not in_flight:
            self._runs.clear()
        return held

    def unseen(self, seen_through: int) -> Ranges:
        """What it holds of deliveries above `seen_through`: the application has not seen these."""
        unseen = Ranges()
        for delivery, sequence, count in self._runs:
            skip = max(0, seen_through + 1 - delivery)
            if skip < count:
                unseen.add(sequence + skip, sequence + count)
        return unseen.intersection(self.in_flight)
