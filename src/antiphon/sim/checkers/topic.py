"""Every subscription of a topic gets every message, each for itself, held against an obvious model.

    - what is handed out to a subscription was published to its topic, at or after its start
    - after its acknowledgement was accepted, a message is never handed to that subscription again
    - a message of a subscription is in the hands of at most one living consumer
    - messages that nobody saw before come to a consumer in the order of their numbers
    - a topic keeps what a subscription needs, and the node's own books say the same

The model folds the committed commands with plain sets, as that of the queues does. Queues beside the topics
are that model's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.bus.messages import BusMessage, Deliver, Register
from antiphon.message_manager.state.destinations.directory import KIND_TOPIC
from antiphon.ranges import Ranges
from antiphon.sim.checkers.queue import Queues
from antiphon.sim.checkers.watch import Holder
from antiphon.sim.world import World
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    CreateDestination,
    Payload,
    Publish,
    Return,
    StartKind,
    Subscribe,
    Unsubscribe,
)

Held = tuple[int, int]
"""A message of a subscription: the subscription, and the message's number."""


@dataclass(slots=True)
class SubscriptionModel:
    """What a subscription wanted and what it has acknowledged, said plainly."""

    topic: int
    session: int
    start: int
    wanted: set[int] = field(default_factory=set)
    # With the number of the acknowledgement that was accepted.
    done: dict[int, int] = field(default_factory=dict)


class Topics(Queues):
    """Folds what is applied, and watches what is handed out."""

    promise = "I13 topic"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.subscriptions: dict[int, SubscriptionModel] = {}
        self.stored: dict[int, set[int]] = {}
        # By topic and number, in the order in which they came: how many bytes each message counts for.
        self.sizes: dict[int, dict[int, int]] = {}
        # Whose consumer it is: by the number in its session, and by its key at the primary.
        self.subscription_of: dict[tuple[int, int], int] = {}
        self._subscription_at: dict[tuple[int, int], int] = {}
        # With what each was and under which number it was ended.
        self._ended: dict[int, tuple[SubscriptionModel, int]] = {}
        self._durable: dict[tuple[str, str], int] = {}
        self._fresh_through: dict[Holder, int] = {}
        self._holding: dict[Held, Holder] = {}
        self._in_hand: dict[Holder, set[Held]] = {}

    # The model.

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        match payload:
            case Publish(destination=destination, batch=batch) if destination in self.stored:
                numbers = range(sequence + skip, sequence + header.count)
                self.sizes[destination].update(dict.fromkeys(numbers, len(batch) // header.count))
                self.stored[destination].update(numbers)
                for subscription in self.subscriptions.values():
                    if subscription.topic == destination:
                        subscription.wanted.update(n for n in numbers if n >= subscription.start)
            case Acknowledge(subscription=id, ranges=ranges) if id:
                if id in self.subscriptions:
                    subscription = self.subscriptions[id]
                    for number in sorted(subscription.wanted.intersection(ranges.numbers())):
                        subscription.done.setdefault(number, sequence)
            case Return(subscription=id, ranges=ranges) if id:
                for number in ranges.numbers():
                    self._let_go((id, number))
            case CreateDestination(kind=kind, name=name) if kind == KIND_TOPIC:
                if self._names.setdefault(name, sequence) == sequence:
                    self.stored[sequence] = set()
                    self.sizes[sequence] = {}
            case Subscribe():
                self._subscribe(payload, header.session, sequence)
            case Unsubscribe(subscription=id):
                self._end_subscription(id, sequence)
            case _:
                super()._do(payload, header, sequence, skip)

    def _subscribe(self, wish: Subscribe, session: int, sequence: int) -> None:
        key = (wish.client_id, wish.name)
        if wish.durable and key in self._durable:
            self.world.probe("model.subscription_exists")
            return
        if wish.durable:
            self._durable[key] = sequence
        assert wish.start == StartKind.LATEST, "the workload begins with what comes"
        owner = 0 if wish.durable else session
        self.subscriptions[sequence] = SubscriptionModel(wish.destination, owner, sequence + 1)

    def _end_subscription(self, id: int, sequence: int) -> None:
        ended = self.subscriptions.pop(id, None)
        if ended is not None:
            self.world.probe("model.subscription_ended")
            self._ended[id] = ended, sequence
            self._durable = {key: known for key, known in self._durable.items() if known != id}

    def _end_session(self, session: int, sequence: int) -> None:
        super()._end_session(session, sequence)
        for id in [id for id, known in self.subscriptions.items() if known.session == session]:
            self._end_subscription(id, sequence)

    # What leaves the node.

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            self.subscription_of[message.session, message.number] = message.subscription
            self._subscription_at[node, message.consumer] = message.subscription
        elif isinstance(message, Deliver) and message.destination in self.stored:
            for target in message.targets:
                for taker in target.takers:
                    self._check_delivery(node, self._subscription_at[target.node, taker.consumer], message)
        else:
            super().on_sent(node, message)

    def _check_delivery(self, node: int, id: int, message: Deliver) -> None:
        subscription = self.subscriptions.get(id)
        if subscription is None:
            subscription, ended_at = self._ended[id]
            if self._knows(node, ended_at):
                self.fail(f"node {node} delivers to subscription {id}, which has ended")
        for piece in message.pieces:
            for number in range(piece.first_sequence, piece.first_sequence + piece.count):
                at = subscription.done.get(number)
                if at is not None and self._knows(node, at):
                    self.fail(f"{number} is handed to subscription {id} after it was acknowledged there")
                if number not in subscription.wanted:
                    self.fail(f"{number} is handed to subscription {id}, which it is not for")

    def on_handed_out(self, node: int, holder: Holder, sequence: int, count: int, redelivered: int) -> None:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            super().on_handed_out(node, holder, sequence, count, redelivered)
            return
        in_hand = self._in_hand.setdefault(holder, set())
        for number in range(sequence, sequence + count):
            other = self._holding.get((id, number))
            if other is not None:
                self.fail(f"{number} of subscription {id} is handed to {holder} while {other} holds it")
            self._holding[id, number] = holder
            in_hand.add((id, number))
        if not redelivered:
            # What a consumer did not see is fresh for the next one; for the same one numbers only rise.
            before = self._fresh_through.get(holder, 0)
            if sequence <= before:
                self.fail(f"{sequence} comes to {holder} of subscription {id} behind {before}")
            self._fresh_through[holder] = sequence + count - 1

    def on_holder_gone(self, node: int, holder: Holder) -> None:
        super().on_holder_gone(node, holder)
        for held in sorted(self._in_hand.pop(holder, ())):
            del self._holding[held]

    def _is_done(self, holder: Holder, number: int) -> bool:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            return super()._is_done(holder, number)
        return id not in self.subscriptions or number in self.subscriptions[id].done

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        super().on_given_back(node, session, subscription, numbers)
        for number in numbers.numbers() if subscription else ():
            holder = self._holding.get((subscription, number))
            if holder is not None and holder.session == session:
                self._let_go((subscription, number))

    def on_lost_told(self, node: int, holder: Holder, numbers: Ranges) -> None:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            super().on_lost_told(node, holder, numbers)
            return
        for number in numbers.numbers():
            if self._holding.get((id, number)) == holder:
                self._let_go((id, number))

    def _let_go(self, held: Held) -> None:
        holder = self._holding.pop(held, None)
        if holder is not None:
            self._in_hand[holder].discard(held)

    def on_crashed(self, node: int) -> None:
        super().on_crashed(node)
        self._holding.clear()
        self._in_hand.clear()

    # The books.

    def at_quiet(self, facts: dict[int, int]) -> None:
        for id, subscription in self.subscriptions.items():
            if len(subscription.wanted) != len(subscription.done):
                missing = sorted(subscription.wanted.difference(subscription.done))
                self.fail(f"subscription {id} still needs {missing[:3]}")
        for topic, stored in self.stored.items():
            if facts.get(topic, -1) not in range(len(stored) + 1):
                self.fail(
                    f"the node keeps {facts.get(topic)} messages of topic {topic}; {len(stored)} were stored"
                )
        super().at_quiet({id: live for id, live in facts.items() if id not in self.stored})
