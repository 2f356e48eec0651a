"""Family: the topics of a channel whose names match one pattern, seen as one topic.

FAM1  Whether a topic belongs to a family is decided once, by the log: the primary evaluates the name, the
      fold only hears the answer. All topics with ids through `decided_through` are decided.
FAM2  A subscription of a family needs every message of the family's topics that came after the subscription
      began, from the first one on: a topic that is not decided keeps all of them.
FAM3  live = the live messages of the family's topics, always.
FAM4  Everything that is done with a message through a family is counted by its topic.
FAM5  A family without a subscription ends after a while, by log time.

Numbers are unique in the channel, so that one floor and one set of exceptions serve all topics of a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from antiphon.errors import ProtocolError
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import StoredBatch
from antiphon.message_manager.state.destinations.owners import OwnedRun, Owners
from antiphon.message_manager.state.destinations.queue import DIGEST_BYTES
from antiphon.message_manager.state.destinations.rules import PLAIN, DeliveryRules
from antiphon.message_manager.state.destinations.settings import ReturnRules
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.names import parse_destination, pattern_of, shown_name
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

if TYPE_CHECKING:
    from antiphon.message_manager.state.destinations.topic import Topic
    from antiphon.message_manager.state.sessions import Session

FAMILIES_MAX: Final = 1_000
"""Families of one channel: every one of them decides about every new topic."""

IDLE_MS: Final = 60_000
"""For so long a family stays without a subscription: a client asks for the family first."""

NOT_IDLE: Final = -1

_MADE, _SUBSCRIBED, _UNSUBSCRIBED = b"\x01", b"\x02", b"\x03"
_DECIDED: Final = b"\x04"


class Family:
    """A family; `id` is the number of its CREATE. A `Subscription` knows no difference to a topic."""

    __slots__ = (
        "_owners",
        "decided_through",
        "digest",
        "id",
        "idle_since_ms",
        "last",
        "live",
        "name",
        "no_local",
        "own",
        "published",
        "rules",
        "subscriptions",
        "topics",
    )

    # There is nothing to set.
    settings = "{}"
    settings_version = 1

    # Each subscription has its own counts.
    counts = DeliveryCounts()

    # Since each topic has a delay of its own, a message that came back is looked at one by one.
    may_delay = True

    def __init__(self, *, id: int, name: str) -> None:
        self.id = id
        self.name = name
        self.decided_through = 0
        self.topics: dict[int, Topic] = {}
        # By id, which is the order in which they came; and those that are `no_local`.
        self.subscriptions: dict[int, Subscription] = {}
        self.no_local: dict[int, Subscription] = {}
        # By subscription, the messages of topics that are not decided which its own connection published.
        self.own: dict[int, Ranges] = {}
        self.live = Ranges()
        self.last = 0
        # Messages that ever were of the family, those of topics that have joined later among them.
        self.published = 0
        self.rules = PLAIN
        # The first mark of log time at which there was no subscription.
        self.idle_since_ms = NOT_IDLE
        self.digest = bytes(DIGEST_BYTES)
        self._owners = Owners()
        self._remember(_MADE + name.encode())

    def _remember(self, what: bytes) -> None:
        self.digest = blake2b(self.digest + what, digest_size=DIGEST_BYTES).digest()

    @property
    def pattern(self) -> tuple[str, str]:
        """The way of matching, and the pattern."""
        return pattern_of(self.name)

    @property
    def shown(self) -> str:
        return shown_name(self.name)

    # -- looking ---------------------------------------------------------------

    @property
    def index(self) -> Family:
        """The places of the messages: each topic has its own."""
        return self

    def find(self, sequence: int) -> StoredBatch:
        return self.topic_of(sequence).index.find(sequence)

    def topic_of(self, number: int) -> Topic:
        """The topic of a live message."""
        return self.topics[self._owners.of(number)]

    def by_topic(self, numbers: Ranges) -> list[tuple[Topic, Ranges]]:
        """These live messages, by topic."""
        return [(self.topics[id], some) for id, some in self._owners.sort_out(numbers).items()]

    def by_returns(self, numbers: Ranges) -> Iterator[tuple[ReturnRules, Ranges]]:
        for topic, some in self.by_topic(numbers):
            yield topic.returns, some

    def doomed(self, counts: DeliveryCounts) -> Ranges:
        """Those that came back too often, by the rules of their topics."""
        doomed = Ranges()
        for topic, some in self.by_topic(counts.counted().intersection(self.live)):
            doomed.add_all(counts.above(topic.returns.redelivery_limit).intersection(some))
        return doomed

    def living_runs(self) -> list[OwnedRun]:
        """Of which topic the live messages are."""
        return list(self._owners.living(self.live))

    # -- topics ------------------------------------------------------------------

    def decide(self, through: int, topics: list[Topic]) -> dict[int, Ranges]:
        """Decide all topics through this id: these belong here, and no others.

        Returns the messages that each subscription needs by that.
        """
        self._remember(_DECIDED + b"".join([topic.id.to_bytes(8, "little") for topic in topics]))
        self.decided_through = through
        joined = self._join(topics)
        self.published += joined.count
        if joined:
            self.last = max(self.last, joined.last)
        back = {}
        for subscription in self.subscriptions.values():
            own = self.own.get(subscription.id)
            gone = self.rules.lapsed if own is None else self.rules.lapsed.union(own)
            needed = subscription.regain(joined, gone)
            if needed:
                back[subscription.id] = needed
        return back

    def _join(self, topics: list[Topic]) -> Ranges:
        """Take in topics; returns their messages."""
        alone = (self,)
        for topic in topics:
            self.topics[topic.id] = topic
            others = topic.families
            topic.families = tuple(sorted((*others, self), key=lambda family: family.id)) if others else alone
        runs = sorted([OwnedRun(start, stop, topic.id) for topic in topics for start, stop in topic.live])
        self._owners.join(runs, self.live)
        joined = Ranges([(run.start, run.stop) for run in runs])
        self.live.add_all(joined)
        self.rules = self.rules.merge([topic.rules for topic in topics if topic.rules])
        return joined

    def leave(self, topic: Topic) -> dict[int, Ranges]:
        """A topic is deleted, with its messages; returns those that each subscription needed."""
        del self.topics[topic.id]
        gone = topic.live.copy()
        lost = {id: subscription.lose(gone) for id, subscription in self.subscriptions.items()}
        self.trimmed(gone)
        return {id: numbers for id, numbers in lost.items() if numbers}

    def published_by(
        self,
        topic: Topic,
        stored: Ranges,
        rules: DeliveryRules | None,
        first: int,
        skip: int,
        known: Ranges | None,
    ) -> None:
        """A topic of the family has stored rows of a batch; see `Topic.publish`."""
        for start, stop in stored:
            self.live.add(start, stop)
            self._owners.add(topic.id, start, stop)
        self.last = stored.last
        self.published += stored.count
        if rules is not None:
            self.rules = self.rules.note(rules, first, skip)
            if known:
                self.rules = self.rules.forget(known)

    def trimmed(self, numbers: Ranges) -> None:
        """Messages have left their topic, which no subscription needs any more."""
        self.live.remove_all(numbers)
        self._owners.let_go(numbers, self.live)
        if self.rules:
            self.rules = self.rules.forget(numbers)

    def expire(self, numbers: Ranges) -> dict[int, Ranges]:
        """The time of messages of a topic is over; returns those that each subscription needed."""
        gone = {id: subscription.lose(numbers) for id, subscription in self.subscriptions.items()}
        self.rules.lapse(numbers)
        return {id: some for id, some in gone.items() if some}

    def publishes_itself(self, publisher: Session, start: int, stop: int) -> None:
        """Note messages of a topic that is not decided, for the subscriptions that leave out their own."""
        for id, subscription in self.no_local.items():
            if subscription.is_own(publisher):
                self.own.setdefault(id, Ranges()).add(start, stop)

    @property
    def keeps_from(self) -> int | None:
        """The first number that a topic which is not decided keeps for subscriptions; None: there is none."""
        began = [subscription.begun for subscription in self.subscriptions.values()]
        return min(began) + 1 if began else None

    # -- subscriptions -------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self._enter(subscription)
        subscription.begin()
        self.idle_since_ms = NOT_IDLE
        kind = bytes((subscription.is_durable, subscription.is_shared, subscription.no_local))
        self._remember(_SUBSCRIBED + subscription.id.to_bytes(8, "little") + kind)

    def _enter(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.id] = subscription
        if subscription.no_local:
            self.no_local[subscription.id] = subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.id]
        self.no_local.pop(subscription.id, None)
        self.own.pop(subscription.id, None)
        self._remember(_UNSUBSCRIBED + subscription.id.to_bytes(8, "little"))
        for topic, _ in self.by_topic(subscription.needs(self.live)):
            topic.tidy()

    def acknowledged_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.acknowledged_by(subscription, some)

    def skipped_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.skipped_by(subscription, some)

    def buried_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.buried_by(subscription, some)

    def purged_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.purged_by(subscription, some)

    def dropped_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.dropped_by(subscription, some)

    def rejected_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.rejected_by(subscription, some)

    def returned_by(self, subscription: Subscription, numbers: Ranges) -> None:
        for topic, some in self.by_topic(numbers):
            topic.returned_by(subscription, some)

    # -- time ----------------------------------------------------------------------

    def is_over(self, now_ms: int) -> bool:
        """Log time is this: has the family been without a subscription for long enough (FAM5)?"""
        if self.subscriptions:
            return False
        if self.idle_since_ms == NOT_IDLE:
            self.idle_since_ms = now_ms
        return now_ms - self.idle_since_ms >= IDLE_MS

    def due_ms(self) -> int | None:
        """The log time at which the family ends; 0 if log time must be marked first."""
        if self.subscriptions:
            return None
        return 0 if self.idle_since_ms == NOT_IDLE else self.idle_since_ms + IDLE_MS

    # -- bytes -----------------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.u64(self.id)
        writer.text(self.name)
        for number in (self.decided_through, self.last, self.published):
            writer.u64(number)
        writer.i64(self.idle_since_ms)
        writer.raw(self.digest)
        self.rules.write(writer)
        writer.bytes_(Ranges([(id, id + 1) for id in self.topics]).encode())
        writer.count(len(self.own))
        for id, numbers in sorted(self.own.items()):
            writer.u64(id)
            writer.bytes_(numbers.encode())
        writer.count(len(self.subscriptions))
        for subscription in self.subscriptions.values():
            subscription.write(writer)

    @classmethod
    def read(cls, reader: Reader, topics: dict[int, Topic]) -> Family:
        """Read a family after the topics; whatever follows from those is derived anew."""
        family = cls(id=reader.u64(), name=reader.text())
        if not parse_destination(family.name).is_family:
            raise ProtocolError("a family without a pattern")
        family.decided_through, last, published = reader.u64(), reader.u64(), reader.u64()
        idle_since_ms, digest = reader.i64(), bytes(reader.raw(DIGEST_BYTES))
        rules = DeliveryRules.read(reader)
        ids = Ranges.decode(reader.bytes_())
        if ids.count > len(topics) or not all(id in topics for id in ids.numbers()):
            raise ProtocolError("a family with a topic that there is not")
        family._join([topics[id] for id in ids.numbers()])
        family.last, family.published, family.rules = last, published, rules
        family.idle_since_ms, family.digest = idle_since_ms, digest
        for _ in range(reader.count(8 + 4)):
            id = reader.u64()
            family.own[id] = Ranges.decode(reader.bytes_())
        for _ in range(reader.count(8 + 1 + 1 + 4 + 2 + 2 + 8 + 8 + 2 + 1 + 16 + 8 + 8 + 4 + 4 + 4)):
            family._enter(Subscription.read(reader, family))
        return family


class Undecided:
    """The families of a channel that have not decided about all topics yet; nearly always there are none."""

    __slots__ = ("families",)

    def __init__(self) -> None:
        self.families: list[Family] = []

    def of(self, topic: Topic) -> Iterable[Family]:
        """Those that have not decided about this topic."""
        if not topic.can_be_matched:
            return ()
        return [family for family in self.families if family.decided_through < topic.id]

    def kept_from(self, topic: Topic) -> int | None:
        """The number from which on the topic keeps everything, because a family may want it (FAM2)."""
        numbers = [number for family in self.of(topic) if (number := family.keeps_from) is not None]
        return min(numbers, default=None)
