"""Families: what was published to topics that match a pattern reaches each of the pattern's subscriptions.

    complete   a subscription needs every message of a matching topic that was published since it began, also
               before the topic was decided, and until the topic is deleted; and no others
    decided    a decision of a primary names the topics whose names match, and no others
    named      a delivery names the topic of each of its messages

Names are matched here by Python's fnmatch, and not by the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from antiphon.bus.messages import BusMessage, Deliver, Entry
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import KIND_TOPIC
from antiphon.names import FAMILY
from antiphon.sim.checkers.model import Destinations, SubscriptionModel
from antiphon.sim.world import World
from antiphon.wire.commands import (
    CommandHeader,
    CreateDestination,
    DeleteDestination,
    MatchTopics,
    Payload,
    Publish,
    Subscribe,
)

_GLOB = f"{FAMILY}.glob."


@dataclass(slots=True)
class FamilyModel:
    """A pattern, and how far the order has decided about topics."""

    name: str
    decided_through: int = 0

    def matches(self, topic: str) -> bool:
        return fnmatchcase(topic, self.name.removeprefix(_GLOB))


class FamilyTopics(Destinations):
    """Queues, topics and families of a channel with several replicas."""

    promise = "I39 patterns"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.families: dict[int, FamilyModel] = {}
        # Of all that there ever were: a primary that is behind may still deliver.
        self._families_ever: set[int] = set()
        self._looked = 0
        # Of topics that there are, and of all that there ever were.
        self._topics: dict[int, str] = {}
        self._names_of: dict[int, str] = {}
        self._topic_of: dict[int, int] = {}

    def origins_of(self, topic: int) -> set[int]:
        """The topic, and the families that its name belongs to."""
        name = self._names_of.get(topic, "")
        return {topic, *[id for id, family in self.families.items() if name and family.matches(name)]}

    def may_be_wanted(self, topic: int, number: int) -> bool:
        return super().may_be_wanted(topic, number) or any(
            number >= one.start
            for one in self.subscriptions.values()
            if one.topic in self.families and self.families[one.topic].decided_through < topic
        )

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        match payload:
            case CreateDestination(kind=kind, name=name) if kind == KIND_TOPIC and name.startswith(_GLOB):
                if not any(family.name == name for family in self.families.values()):
                    self.families[sequence] = FamilyModel(name)
                    self._families_ever.add(sequence)
                return
            case MatchTopics():
                self._match(payload)
                return
            case DeleteDestination(destination=id) if id in self._topics:
                self._delete(id, sequence)
                return
            case Subscribe(destination=id) if id not in self.stored and id not in self.families:
                # The family ended, or the topic was deleted, before the command came.
                self.world.probe("families.subscribed_too_late")
                return
        super()._do(payload, header, sequence, skip)
        match payload:
            case CreateDestination(kind=kind, name=name) if kind == KIND_TOPIC and sequence in self.stored:
                self._topics[sequence] = self._names_of[sequence] = name
            case Publish(destination=id) if id in self._topics:
                numbers = range(sequence + skip, sequence + header.count)
                self._topic_of.update(dict.fromkeys(numbers, id))
                for family, model in self.families.items():
                    if model.matches(self._topics[id]) and model.decided_through < id:
                        self.world.probe("families.published_before_decided", self._count_of(family))

    def _count_of(self, family: int) -> int:
        return sum(one.topic == family for one in self.subscriptions.values())

    def _match(self, wish: MatchTopics) -> None:
        family = self.families.get(wish.family)
        if family is None or wish.term != self._term or wish.after != family.decided_through:
            self.world.probe("families.void_decision")
            return
        family.decided_through = wish.through
        for id, name in self._topics.items():
            if wish.after < id <= wish.through and (id in wish.topics) != family.matches(name):
                self.fail(f"topic {name} was decided wrongly for {family.name}")
        self.world.probe("families.decided")

    def _delete(self, id: int, sequence: int) -> None:
        self.world.probe("families.topic_deleted")
        stored = self.stored.pop(id)
        del self.sizes[id], self._names[self._topics.pop(id)]
        for one in self.subscriptions.values():
            for number in sorted(one.wanted & stored):
                if one.done.setdefault(number, sequence) == sequence:
                    # Nobody needs to get it any more.
                    self.expired.add(number)

    def wanting(self, topic: int) -> list[SubscriptionModel]:
        origins = self.origins_of(topic)
        return [one for one in self.subscriptions.values() if one.topic in origins]

    def _line_of(self, number: int) -> int:
        """A topic that joins a family brings messages below those that have come."""
        return self._topic_of.get(number, 0)

    def _needed_now(self, one: SubscriptionModel) -> int:
        """The messages of topics that the order has decided; the others are still to join."""
        family = self.families.get(one.topic)
        if family is None:
            return super()._needed_now(one)
        left = one.wanted.difference(one.done)
        return sum(self._topic_of[number] <= family.decided_through for number in left)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        super().on_folded(node, entry, state)
        if entry.last > self._looked:
            self._looked = entry.last
            for id in [id for id in self.families if state.directory.family(id) is None]:
                self.world.probe("families.ended")
                del self.families[id]
                if any(one.topic == id for one in self.subscriptions.values()):
                    self.fail(f"family {id} has ended, and has subscriptions")

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Deliver) and message.destination in self._families_ever:
            self._check_names(message)
            for target in message.targets:
                for taker in target.takers:
                    self._check_delivery(node, self._subscription_at[target.node, taker.consumer], message)
            return
        super().on_sent(node, message)

    def _check_names(self, message: Deliver) -> None:
        for name, piece in zip(message.topics, message.pieces, strict=True):
            for number in piece.sequences:
                right = self._names_of[self._topic_of[number]]
                if name != f"topic:{right}":
                    self.fail(f"{number} of topic {right} is delivered as one of {name}")
