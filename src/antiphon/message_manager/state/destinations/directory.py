"""Directory: the destinations of a channel by id and by name, its families, and the subscriptions of both."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, TypeAlias

from antiphon.errors import InvalidName
from antiphon.ids import U64_MAX
from antiphon.message_manager.state.destinations.ages import Ages
from antiphon.message_manager.state.destinations.family import Family, Undecided
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.settings import channels_of, completed
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.temporaries import Temporaries, Temporary
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import Session
from antiphon.names import DestinationKind, parse_destination, temporary_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import CreateDestination

# The kinds of destination in the CREATE command.
KIND_QUEUE: Final = 1
KIND_TOPIC: Final = 2
_PREFIXES = {KIND_QUEUE: "queue:", KIND_TOPIC: "topic:"}
KIND_NAMES: Final[dict[int, DestinationKind]] = {KIND_QUEUE: "queue", KIND_TOPIC: "topic"}

# What is left of a temporary destination when it goes is lost, so nothing of it lies elsewhere either.
_TEMPORARY_SETTINGS: Final = {
    KIND_QUEUE: '{"dead_to":"nowhere"}',
    KIND_TOPIC: '{"dead_to":"nowhere","retention":"consumed"}',
}

Destination: TypeAlias = Queue | Topic


class Directory:
    """The destinations of a channel. Ids ascend in the order of creation and are never used twice."""

    __slots__ = (
        "_by_id",
        "_by_name",
        "_by_session",
        "_families",
        "_families_by_name",
        "_matchable",
        "_named",
        "_parts",
        "_subscriptions",
        "_topics",
        "ages",
        "temporaries",
        "undecided",
        "use",
        "version",
    )

    def __init__(self) -> None:
        self._by_id: dict[int, Destination] = {}
        self._by_name: dict[str, Destination] = {}
        self._topics: dict[int, Topic] = {}
        # Families are no destinations: they store nothing, and only consumers use them.
        self._families: dict[int, Family] = {}
        self._families_by_name: dict[str, Family] = {}
        self.undecided = Undecided()
        # The ids of the topics that a pattern may match, ascending.
        self._matchable = array("Q")
        self._parts: dict[int, tuple[str, ...]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        # Those with a name by their keys; those that are not durable by the sessions that have them, and id.
        self._named: dict[tuple[bool, str, str], Subscription] = {}
        self._by_session: dict[int, dict[int, Subscription]] = {}
        self.temporaries = Temporaries()
        self.use = SegmentUse()
        self.ages = Ages()
        # The number of the command that last made or removed a destination; temporary ones do not count, and
        # neither do the system's own.
        self.version = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def count(self, channel: str) -> int:
        """How many destinations this channel has; a spanning one counts in its first channel."""
        return len(self._by_id) - sum([channels[0] != channel for channels in self._parts.values()])

    def __iter__(self) -> Iterator[Destination]:
        """By id, ascending."""
        return iter(self._by_id.values())

    def after(self, id: int) -> Iterator[Destination]:
        """Those with a higher id, ascending: a page of very many begins where the page before it ended."""
        if not id:
            return iter(self)
        ids = list(self._by_id)
        return (self._by_id[later] for later in ids[bisect_right(ids, id) :])

    @property
    def topics(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def get(self, destination: int) -> Destination | None:
        return self._by_id.get(destination)

    def named(self, name: str) -> Destination | None:
        """Look up `queue:orders`."""
        return self._by_name.get(name)

    @property
    def families(self) -> Iterator[Family]:
        """By id, ascending."""
        return iter(self._families.values())

    @property
    def family_count(self) -> int:
        return len(self._families)

    def family(self, id: int) -> Family | None:
        return self._families.get(id)

    def family_named(self, name: str) -> Family | None:
        """Look up `topic:_MATCH.glob.prices.*`."""
        return self._families_by_name.get(name)

    def consumable(self, id: int) -> Destination | Family | None:
        """What consumers ask for: a destination or a family."""
        return self._by_id.get(id) or self._families.get(id)

    def spelled(self, wish: CreateDestination) -> str:
        """The full name in a CREATE; raises InvalidName."""
        prefix = _PREFIXES.get(wish.kind)
        if prefix is None:
            raise InvalidName(f"there is no destination of kind {wish.kind}")
        return str(parse_destination(prefix + wish.name))

    def create(self, id: int, kind: int, name: str, settings: str) -> Destination:
        """Raises DestinationError for settings that cannot be."""
        made = self._make(id, kind, name, settings)
        if not made.is_reserved:
            self.version = id
        return made

    def create_temporary(self, id: int, kind: int, channel: str, row: Session) -> Destination:
        """A destination that lives with this session (TMP1)."""
        made = self._make(id, kind, temporary_name(KIND_NAMES[kind], channel, id), _TEMPORARY_SETTINGS[kind])
        self.temporaries.add(Temporary(id, row.id, row.connection))
        return made

    def _make(self, id: int, kind: int, name: str, settings: str) -> Destination:
        is_topic = kind == KIND_TOPIC
        spelled = completed(settings, is_topic=is_topic)
        made: Destination
        if is_topic:
            made = Topic(
                id=id, name=name, settings=spelled, use=self.use, ages=self.ages, undecided=self.undecided
            )
        else:
            made = Queue(id=id, name=name, settings=spelled, use=self.use)
        self.add(made)
        return made

    def add(self, made: Destination) -> None:
        assert made.name not in self._by_name, f"{made.name} exists already"
        assert not self._by_id or made.id > next(reversed(self._by_id)), "ids of destinations do not ascend"
        self._by_id[made.id] = made
        self._by_name[made.name] = made
        if channels := channels_of(made.settings):
            self._parts[made.id] = channels
        if isinstance(made, Topic):
            self._topics[made.id] = made
            self.ages.look(made)
            for subscription in made.subscriptions.values():
                self._enter(subscription)
            if made.can_be_matched:
                self._matchable.append(made.id)
                self._look_at_undecided()

    def delete(self, gone: Destination, number: int) -> dict[int, Ranges]:
        """Remove a destination by command `number`, with its messages and subscriptions.

        Returns the messages that subscriptions of families needed.
        """
        lost: dict[int, Ranges] = {}
        if gone.id not in self.temporaries:
            self.version = number
        if isinstance(gone, Topic):
            for subscription in gone.subscriptions.values():
                self._strike(subscription)
            for family in gone.families:
                lost |= family.leave(gone)
            del self._topics[gone.id]
            if gone.can_be_matched:
                del self._matchable[bisect_left(self._matchable, gone.id)]
                self._look_at_undecided()
            self.ages.deleted(gone.id)
        gone.index.clear(gone.stored)
        del self._by_id[gone.id]
        del self._by_name[gone.name]
        self._parts.pop(gone.id, None)
        self.temporaries.remove(gone.id)
        return lost

    def due_ms(self) -> int | None:
        """The log time at which a message becomes too old or a family ends; 0: time must be marked first."""
        due = [family.due_ms() for family in self._families.values()]
        return min([ms for ms in (self.ages.due_ms(), *due) if ms is not None], default=None)

    # -- families ------------------------------------------------------------------

    def create_family(self, id: int, name: str) -> Family:
        made = Family(id=id, name=name)
        self.add_family(made)
        return made

    def add_family(self, made: Family) -> None:
        assert made.name not in self._families_by_name, f"{made.name} exists already"
        self._families[made.id] = made
        self._families_by_name[made.name] = made
        for subscription in made.subscriptions.values():
            self._enter(subscription)
        self._look_at_undecided()

    def topics_between(self, after: int, through: int = U64_MAX, most: int = U64_MAX) -> list[Topic]:
        """The topics with these ids that a pattern may match, in the order of their creation."""
        start = bisect_right(self._matchable, after)
        stop = min(bisect_right(self._matchable, through, start), start + most)
        return [self._topics[id] for id in self._matchable[start:stop]]

    def decide(self, family: Family, through: int, ids: Ranges) -> dict[int, Ranges]:
        """Decide about the topics through this id: of these ids belong to the family, the others do not.

        Returns the messages that each subscription of the family needs by that.
        """
        decided = self.topics_between(family.decided_through, through)
        back = family.decide(through, [topic for topic in decided if topic.id in ids])
        self._look_at_undecided()
        for topic in decided:
            topic.tidy()
        return back

    def _look_at_undecided(self) -> None:
        """Note which families have not decided about all topics."""
        if not self._families:
            return
        last = self._matchable[-1] if self._matchable else 0
        self.undecided.families = [one for one in self._families.values() if one.decided_through < last]
        for family in self._families.values():
            if family.own and family.decided_through >= last:
                family.own.clear()

    def end_idle_families(self, now_ms: int) -> None:
        """Log time is this: families that have been without a subscription for long are gone (FAM5)."""
        for family in [one for one in self._families.values() if one.is_over(now_ms)]:
            for topic in family.topics.values():
                topic.families = tuple([other for other in topic.families if other is not family])
            del self._families[family.id]
            del self._families_by_name[family.name]
            self.undecided.families = [one for one in self.undecided.families if one is not family]

    # -- subscriptions -----------------------------------------------------------

    def source(self, destination: int, subscription: int) -> Queue | Subscription | None:
        """The queue, or the subscription of the topic, from which messages are given out."""
        if subscription:
            found = self._subscriptions.get(subscription)
            return found if found is not None and found.destination == destination else None
        queue = self._by_id.get(destination)
        return queue if isinstance(queue, Queue) else None

    def subscription(self, id: int) -> Subscription | None:
        return self._subscriptions.get(id)

    def subscription_named(self, client_id: str, name: str, *, is_durable: bool) -> Subscription | None:
        """A durable subscription, or a shared one that is not durable."""
        return self._named.get((is_durable, client_id, name))

    def subscribe(self, subscription: Subscription) -> None:
        subscription.topic.subscribe(subscription)
        self._enter(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        self._strike(subscription)
        subscription.topic.unsubscribe(subscription)
        family = self._families.get(subscription.destination)
        if family is not None:
            for topic in self.topics_between(family.decided_through):
                topic.tidy()

    def join(self, subscription: Subscription, session: int) -> None:
        subscription.join(session)
        self._by_session.setdefault(session, {})[subscription.id] = subscription

    def leave(self, subscription: Subscription, session: int) -> bool:
        """Undo one `join`; was it the session's last?"""
        has_left = subscription.leave(session)
        if has_left:
            self._part(subscription, session)
        return has_left

    def leave_all(self, session: int) -> list[Subscription]:
        """Undo every `join` of a session; the subscriptions, in the order in which they were made."""
        left = [subscription for _, subscription in sorted(self._by_session.pop(session, {}).items())]
        for subscription in left:
            del subscription.members[session]
        return left

    def _part(self, subscription: Subscription, session: int) -> None:
        of_session = self._by_session[session]
        del of_session[subscription.id]
        if not of_session:
            del self._by_session[session]

    def _enter(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.id] = subscription
        if subscription.key is not None:
            self._named[subscription.key] = subscription
        for session in subscription.members:
            self._by_session.setdefault(session, {})[subscription.id] = subscription

    def _strike(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.id]
        if subscription.key is not None:
            del self._named[subscription.key]
        for session in subscription.members:
            self._part(subscription, session)
