"""Subscription: the cursor of one subscriber of a topic, or of a family of topics.

SBS1  The subscription needs the messages of its topic above `floor` that are not in `done`, and no others. It
      takes a few numbers whatever the backlog, and a range for each run of messages acknowledged out of turn.
SBS2  A message is acknowledged at most once; a second acknowledgement is told which were lost to it.
SBS3  A message that the selector does not want is skipped by the log, and is then done without having been
      acknowledged; one that is the subscriber's own, if that is not wanted, when it is published.
SBS4  A subscription that is not durable has members, the sessions of its consumers, and ends with the last.
SBS5  When a topic joins a family, the subscription needs the topic's messages from its own beginning on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from antiphon.ids import U64_MAX
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.rules import DeliveryRules
from antiphon.message_manager.state.destinations.settings import ReturnRules
from antiphon.message_manager.state.destinations.source import BatchFinder
from antiphon.message_manager.state.sessions import Session
from antiphon.names import shown_name
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

NOT_COUNTED: Final = -1
"""The subscription begins with a number still to come: its backlog is not counted yet."""

_ABOVE_ALL: Final = U64_MAX + 1


class Subscribable(Protocol):
    """A topic, or a family of topics: what a subscription needs of it."""

    id: int
    name: str
    settings: str
    live: Ranges
    last: int
    published: int
    rules: DeliveryRules
    subscriptions: dict[int, Subscription]

    @property
    def index(self) -> BatchFinder: ...
    @property
    def may_delay(self) -> bool: ...
    def by_returns(self, numbers: Ranges) -> Iterable[tuple[ReturnRules, Ranges]]: ...
    def doomed(self, counts: DeliveryCounts) -> Ranges: ...
    def subscribe(self, subscription: Subscription) -> None: ...
    def unsubscribe(self, subscription: Subscription) -> None: ...
    def acknowledged_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def skipped_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def buried_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def purged_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def dropped_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def rejected_by(self, subscription: Subscription, numbers: Ranges) -> None: ...
    def returned_by(self, subscription: Subscription, numbers: Ranges) -> None: ...


class Subscription:
    """A subscription of a topic or a family; `id` is the number of its SUBSCRIBE.

    A durable or shared subscription has a name. The durable names of a client id are unique, and so are those
    of the others that are shared. Any number of consumers may have a shared subscription at once.
    """

    __slots__ = (
        "begun",
        "client_id",
        "connection",
        "counts",
        "done",
        "floor",
        "id",
        "is_durable",
        "is_shared",
        "members",
        "no_local",
        "selector",
        "settled",
        "skipped",
        "subscriber",
        "topic",
    )

    def __init__(
        self,
        *,
        id: int,
        topic: Subscribable,
        subscriber: str,
        client_id: str,
        floor: int,
        begun: int | None = None,
        is_durable: bool = False,
        is_shared: bool = False,
        selector: str = "",
        no_local: bool = False,
        connection: int = 0,
    ) -> None:
        self.id = id
        self.topic = topic
        # The name of a durable or shared subscription.
        self.subscriber = subscriber
        self.is_durable = is_durable
        self.is_shared = is_shared
        # How often each session has joined, if the subscription is not durable (SBS4).
        self.members: dict[int, int] = {}
        self.client_id = client_id
        # Which messages are wanted; the primary alone evaluates the selector.
        self.selector = selector
        # Is what the own connection publishes left out, see `is_own`?
        self.no_local = no_local
        self.connection = connection
        self.skipped = 0
        self.counts = DeliveryCounts()
        # All messages up to here are acknowledged, or were never wanted.
        self.floor = floor
        # Nothing up to here was ever wanted.
        self.begun = floor if begun is None else begun
        # Acknowledged above the floor, with the numbers between two such messages that are no messages of
        # this topic, so that neighbours melt into one range.
        self.done = Ranges()
        # Of all messages ever published to the topic, those that the subscription does not need.
        self.settled = NOT_COUNTED

    @property
    def is_exclusive(self) -> bool:
        return not self.is_shared

    # No other consumer waits: it is refused, or takes its share.
    is_one_by_one = False

    @property
    def key(self) -> tuple[bool, str, str] | None:
        """The identity of a subscription that has a name."""
        return (self.is_durable, self.client_id, self.subscriber) if self.subscriber else None

    def belongs_to(self, session: int, client_id: str) -> bool:
        """May consumers of this session have it?"""
        return self.client_id == client_id if self.is_durable else session in self.members

    def is_own(self, publisher: Session) -> bool:
        """Does a session publish for the subscriber itself: by the client id, or by the connection?"""
        if self.is_durable:
            return bool(self.client_id) and self.client_id == publisher.client_id
        return bool(self.connection) and self.connection == publisher.connection

    def join(self, session: int) -> None:
        self.members[session] = self.members.get(session, 0) + 1

    def leave(self, session: int) -> bool:
        """Undo one `join`; was it the session's last?"""
        self.members[session] -= 1
        if self.members[session]:
            return False
        del self.members[session]
        return True

    @property
    def destination(self) -> int:
        return self.topic.id

    @property
    def name(self) -> str:
        return f"{shown_name(self.topic.name)}, subscription {self.subscriber or self.id}"

    @property
    def last(self) -> int:
        return self.topic.last

    @property
    def rules(self) -> DeliveryRules:
        return self.topic.rules

    @property
    def index(self) -> BatchFinder:
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
        self._settle(accepted)
        self.topic.acknowledged_by(self, accepted)
        return accepted

    def drop(self, numbers: Ranges) -> Ranges:
        """Need those of these no longer that are non-persistent, and return them."""
        gone = self.lose(self.rules.transient.intersection(numbers))
        if gone:
            self.topic.dropped_by(self, gone)
        return gone

    def lose(self, numbers: Ranges) -> Ranges:
        """Need these no longer, though nobody acknowledged them; returns those that were needed."""
        gone = self.still(numbers)
        if gone:
            self._settle(gone)
        return gone

    def bury(self, numbers: Ranges) -> None:
        """Need these no longer: they are dead."""
        gone = self.still(numbers)
        if gone:
            self._settle(gone)
            self.topic.buried_by(self, gone)

    def purge(self, numbers: Ranges) -> Ranges:
        """Need none of these any longer; returns those that were needed."""
        gone = self.still(numbers)
        if gone:
            self._settle(gone)
            self.topic.purged_by(self, gone)
        return gone

    def doomed(self) -> Ranges:
        """The messages that are dead, and still needed."""
        return self.topic.doomed(self.counts).union(self.counts.rejected)

    @property
    def may_delay(self) -> bool:
        return self.topic.may_delay

    def by_returns(self, numbers: Ranges) -> Iterable[tuple[ReturnRules, Ranges]]:
        return self.topic.by_returns(numbers)

    def skip(self, numbers: Ranges) -> Ranges:
        """Pass over messages that are not wanted; returns those that were needed (SBS3)."""
        skipped = self.still(numbers)
        if skipped:
            self.skipped += skipped.count
            self._settle(skipped)
            self.topic.skipped_by(self, skipped)
        return skipped

    def _settle(self, numbers: Ranges) -> None:
        """Needed messages are done."""
        live = self.topic.live
        for start, stop in numbers:
            before = live.last_before(start)
            self.done.add(self.floor + 1 if before is None else max(before, self.floor) + 1, stop)
        if self.counts:
            self.counts.forget(numbers)
        if self.settled != NOT_COUNTED:
            self.settled += numbers.count
        self.advance()

    def still(self, numbers: Ranges) -> Ranges:
        return self.needs(self.topic.live.intersection(numbers))

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Return messages; those still needed are returned, with their counts raised if `is_counted`."""
        back = self.still(numbers)
        if back and is_counted:
            self.counts.raise_(back)
            self.topic.returned_by(self, back)
        return back

    def reject(self, numbers: Ranges) -> Ranges:
        """Mark those of these that are still needed as rejected for good, and return them."""
        rejected = self.still(numbers)
        if rejected:
            self.counts.rejected.add_all(rejected)
            self.topic.rejected_by(self, rejected)
        return rejected

    def begin(self) -> None:
        """Count the backlog when the subscription joins its topic."""
        lapsed = self.topic.rules.lapsed
        if lapsed:
            self.done.add_all(lapsed.clip(self.floor + 1, _ABOVE_ALL))
        if self.floor <= self.id:
            # All messages from now on are for the subscription.
            self.settled = self.topic.published - self.needs(self.topic.live).count
        self.advance()

    def regain(self, joined: Ranges, gone: Ranges) -> Ranges:
        """Need these messages of topics that have just joined, but for those that are gone (SBS5).

        Returns the messages that are needed now.
        """
        back = joined.clip(self.begun + 1, _ABOVE_ALL).difference(gone)
        if back and back.first <= self.floor:
            self.done.add(back.first, self.floor + 1)
            self.floor = back.first - 1
        self.done.remove_all(back)
        self.done.add_all(joined.difference(back).clip(self.floor + 1, _ABOVE_ALL))
        if self.settled != NOT_COUNTED:
            self.settled += joined.count - back.count
        self.advance()
        return back

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
        writer.bool_(self.is_durable)
        writer.bool_(self.is_shared)
        writer.count(len(self.members))
        for session, joined in sorted(self.members.items()):
            writer.u128(session)
            writer.u32(joined)
        writer.text(self.subscriber)
        writer.text(self.client_id)
        writer.u64(self.floor)
        writer.u64(self.begun)
        writer.text(self.selector)
        writer.bool_(self.no_local)
        writer.u128(self.connection)
        writer.u64(self.skipped)
        writer.i64(self.settled)
        writer.bytes_(self.done.encode())
        self.counts.write(writer)

    @classmethod
    def read(cls, reader: Reader, topic: Subscribable) -> Subscription:
        id, is_durable, is_shared = reader.u64(), reader.bool_(), reader.bool_()
        members = {reader.u128(): reader.u32() for _ in range(reader.count(16 + 4))}
        subscription = cls(
            id=id,
            topic=topic,
            subscriber=reader.text(),
            client_id=reader.text(),
            floor=reader.u64(),
            begun=reader.u64(),
            is_durable=is_durable,
            is_shared=is_shared,
            selector=reader.text(),
            no_local=reader.bool_(),
            connection=reader.u128(),
        )
        subscription.members = members
        subscription.skipped = reader.u64()
        subscription.settled = reader.i64()
        subscription.done = Ranges.decode(reader.bytes_())
        subscription.counts = DeliveryCounts.read(reader)
        return subscription
