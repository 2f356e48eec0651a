"""Subscription: the cursor of one subscriber of a topic.

SBS1  The subscription needs the messages of its topic above `floor` that are not in `done`, and no others. It
      takes a few numbers whatever the backlog, and a range for each run of messages acknowledged out of turn.
SBS2  A message is acknowledged at most once; a second acknowledgement is told which were lost to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from antiphon.ids import U64_MAX
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import BatchIndex
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

if TYPE_CHECKING:
    from antiphon.message_manager.state.destinations.topic import Topic

NOT_COUNTED: Final = -1
"""The subscription begins with a number still to come: its backlog is not counted yet."""

_ABOVE_ALL: Final = U64_MAX + 1


class Subscription:
    """A subscription of a topic; `id` is the number of its SUBSCRIBE.

    A durable subscription has a name, unique for its client id; any other has a session and ends with it.
    """

    __slots__ = ("client_id", "counts", "done", "floor", "id", "session", "settled", "subscriber", "topic")

    def __init__(
        self, *, id: int, topic: Topic, session: int, subscriber: str, client_id: str, floor: int
    ) -> None:
        self.id = id
        self.topic = topic
        self.session = session
        # The name of a durable subscription.
        self.subscriber = subscriber
        self.client_id = client_id
        self.counts = DeliveryCounts()
        # All messages up to here are acknowledged, or were never wanted.
        self.floor = floor
        # Acknowledged above the floor, with the numbers between two such messages that are no messages of
        # this topic, so that neighbours melt into one range.
        self.done = Ranges()
        # Of all messages ever published to the topic, those that the subscription does not need.
        self.settled = NOT_COUNTED

    @property
    def is_durable(self) -> bool:
        return not self.session

    @property
    def is_exclusive(self) -> bool:
        return True

    @property
    def destination(self) -> int:
        return self.topic.id

    @property
    def name(self) -> str:
        return f"{self.topic.name}, subscription {self.subscriber or self.id}"

    @property
    def last(self) -> int:
        return self.topic.last

    @property
    def index(self) -> BatchIndex:
        return self.topic.index

    @property
    def backlog(self) -> int:
        if self.settled == NOT_COUNTED:
            return self.needs(self.topic.live).count
        return self.topic.published - self.settled

    def needs(self, stored: Ranges) -> Ranges:
        """The part of these stored messages that the subscription needs."""
        needed = stored.clip(self.floor + 1, _ABOVE_ALL)
        if self.done and needed:
            needed.remove_all(self.done)
        return needed

    def pending(self, after: int, ranges_max: int) -> tuple[Ranges, int | None]:
        """The needed messages above `after` in so many ranges; and the number they reach, None at the end."""
        part = self.topic.live.take_ranges(max(after, self.floor) + 1, ranges_max)
        through = part.last if len(part) == ranges_max else None
        return self.needs(part), through

    def acknowledge(self, numbers: Ranges) -> Ranges:
        """Acknowledge; returns the messages that were needed."""
        live = self.topic.live
        start, stop = (numbers.first, numbers.last + 1) if len(numbers) == 1 else (0, 0)
        if start > self.floor and live.covers(start, stop) and not self.done.clip(start, stop):
            # Nearly always so: a consumer acknowledges in the order of its deliveries.
            accepted = numbers
        else:
            accepted = self.needs(live.intersection(numbers))
            if not accepted:
                return accepted
        for start, stop in accepted:
            before = live.last_before(start)
            self.done.add(self.floor + 1 if before is None else max(before, self.floor) + 1, stop)
        if self.counts:
            self.counts.forget(accepted)
        if self.settled != NOT_COUNTED:
            self.settled += accepted.count
        self.advance()
        self.topic.acknowledged_by(self, accepted)
        return accepted

    def still(self, numbers: Ranges) -> Ranges:
        return self.needs(self.topic.live.intersection(numbers))

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Return messages; those still needed are returned, with their counts raised if `is_counted`."""
        back = self.still(numbers)
        if back and is_counted:
            self.counts.raise_(back)
            self.topic.returned_by(self, back)
        return back

    def begin(self) -> None:
        """Count the backlog when the subscription joins its topic."""
        if self.floor <= self.id:
            # All messages from now on are for the subscription.
            self.settled = self.topic.published - self.needs(self.topic.live).count
        self.advance()

    def advance(self) -> None:
        """Raise the floor to just below the first needed message, or to the end of the topic."""
        done, live = self.done, self.topic.live
        position: int | None = self.floor + 1
        while position is not None:
            number = live.next_from(position)
            if number is None:
                self.floor = max(self.floor, self.topic.last)
                break
            position = done.run_stop(number)
            self.floor = (number if position is None else position) - 1
        if done:
            done.remove(0, self.floor + 1)

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.u64(self.id)
        writer.u128(self.session)
        writer.text(self.subscriber)
        writer.text(self.client_id)
        writer.u64(self.floor)
        writer.i64(self.settled)
        writer.bytes_(self.done.encode())
        self.counts.write(writer)

    @classmethod
    def read(cls, reader: Reader, topic: Topic) -> Subscription:
        subscription = cls(
            id=reader.u64(),
            topic=topic,
            session=reader.u128(),
            subscriber=reader.text(),
            client_id=reader.text(),
            floor=reader.u64(),
        )
        subscription.settled = reader.i64()
        subscription.done = Ranges.decode(reader.bytes_())
        subscription.counts = DeliveryCounts.read(reader)
        return subscription
