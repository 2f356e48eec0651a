"""The topic workload: subscribers with cursors of their own, under the same faults as the node workload.

Some subscriptions are durable and are found again by their name, whatever became of the client; some
end with their session. Now and then a subscriber unsubscribes and begins anew. In the end every
subscription that is left must have got every message since its beginning.
"""

from __future__ import annotations

from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.checkpoint import Checkpoints
from antiphon.sim.checkers.durability import Durability
from antiphon.sim.checkers.monotone import Monotone
from antiphon.sim.checkers.order import Order
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.restores import Restores
from antiphon.sim.checkers.topic import Topics
from antiphon.sim.checkers.total_topic import TotalTopic
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.workloads.client import ConsumerSession, ProducerSession, SimClient
from antiphon.sim.workloads.node import NodeRun
from antiphon.sim.workloads.process import ClientProcess
from antiphon.sim.workloads.speaker import Kept
from antiphon.wire.commands import CommandKind, ConfirmItem, OutcomeCode, StartKind, Subscribe, Unsubscribe
from antiphon.wire.frames import (
    DestinationCreate,
    DestinationOpen,
    Failed,
    SubscriptionFind,
    SubscriptionFound,
)

SETTINGS = (
    '{"retention":"consumed"}',
    '{"retention":0.02}',
    '{"retention":0.2,"retention_bytes":2000}',
    "{}",
)
NO_SUBSCRIPTION = "subscription.unknown"
_SUBSCRIBED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.EXISTS)
_SESSION_EXPIRY_SHORT_MS = 1_000
_AGE_SHORT_MS = 1_000


def too_old(state: ChannelState) -> list[str]:
    """What topics keep for a moment only, and still have."""
    return [
        f"{topic.name} keeps {topic.live.count} messages"
        for topic in state.directory.topics
        if topic.live.count and topic.retention.age_ms <= _AGE_SHORT_MS
    ]


class PublisherSession(ProducerSession):
    """Publishes to a topic that it makes first."""

    def __init__(self, client: SimClient, topic: str, name: str, share: int, settings: str) -> None:
        super().__init__(client, topic, name, share)
        self._settings = settings

    def destination_wish(self, request: int) -> DestinationOpen | DestinationCreate:
        return DestinationCreate(request=request, name=self.queue, settings=self._settings)


class SubscriberSession(ConsumerSession):
    """Subscribes, consumes, and sometimes begins anew; without a name, the subscription ends with it."""

    def __init__(self, client: SimClient, topic: str, name: str, settings: str) -> None:
        super().__init__(client, topic)
        self._name = name
        self._settings = settings
        self._subscribing = 0
        self._sought = 0

    @property
    def is_idle(self) -> bool:
        return super().is_idle and self.subscription > 0

    def destination_wish(self, request: int) -> DestinationOpen | DestinationCreate:
        return DestinationCreate(request=request, name=self.queue, settings=self._settings)

    def forget(self) -> None:
        super().forget()
        self.subscription = self._subscribing = 0

    def start(self) -> None:
        if self.subscription:
            super().start()
        elif not self._subscribing:
            self._subscribe()

    def _subscribe(self) -> None:
        wish = Subscribe(
            destination=self.destination,
            durable=bool(self._name),
            shared=False,
            name=self._name,
            client_id="",
            start=StartKind.LATEST,
            number=0,
        )
        self._subscribing = self.order_next(Kept(CommandKind.SUBSCRIBE, 1, wish.encode()))

    def settle(self, item: ConfirmItem) -> bool:
        if not super().settle(item):
            return False
        # Successes that follow each other are told as one.
        place = self._subscribing - item.number
        if self._subscribing and 0 <= place < item.count:
            self._subscribing = 0
            if item.code not in _SUBSCRIBED:
                return False
            self.subscription = item.sequence + place
            likely = self.client.habits.look_probability
            if self._name and likely and self.client.chance.random() < likely:
                self._seek()
            if self.is_ready:
                super().start()
        return True

    def on_done(self, request: int) -> None:
        if request == self._closing and self.client.chance.random() < 0.3:
            self.client.world.probe("client.unsubscribed")
            self._closing = 0
            end = Unsubscribe(subscription=self.subscription)
            self.order_next(Kept(CommandKind.UNSUBSCRIBE, 1, end.encode()))
            self.subscription = 0
            self._subscribe()
        else:
            super().on_done(request)

    def _seek(self) -> None:
        """Ask for the subscription that we know to be there."""
        self._sought = self.client.next_request(self)
        self.client.watch.on_sought(self._sought, self.id, self.subscription)
        self.client.say(SubscriptionFind(request=self._sought, session=self.id, name=self._name))

    def on_subscription(self, frame: SubscriptionFound) -> None:
        self.client.watch.on_found(frame.request, self.id, True)

    def on_failed(self, frame: Failed) -> bool:
        if frame.request == self._sought:
            self.client.watch.on_found(self._sought, self.id, frame.code != NO_SUBSCRIPTION)
            return True
        if frame.code == "subscription.in_use":
            # Our own former connection, most likely.
            self.attach_soon()
            return True
        return False


class TopicRun(NodeRun):
    """One run of the workload."""

    total_kind = TotalTopic

    def _checkers(self) -> list[Checker]:
        order, topics = Order(self.world), Topics(self.world)
        assert isinstance(self._total, TotalTopic), "a topic is judged as a topic"
        self._total.topics = topics
        return [
            order,
            topics,
            Durability(self.world, order, topics),
            Monotone(self.world),
            WriteBeforeSend(self.world),
            Checkpoints(self.world),
            Redeliveries(self.world),
            Restores(self.world),
            *self._of_time(topics),
            self._total,
        ]

    # Who acts.

    def _queue(self, number: int) -> str:
        return f"topic:t{number % self.profile.queues}"

    def _settings(self, number: int) -> str:
        return SETTINGS[(self.world.seed + number % self.profile.queues) % len(SETTINGS)]

    def _producer(self, number: int, share: int) -> ClientProcess:
        client = SimClient(f"producer{number}", self._hall, self.profile.clients)
        client.sessions.append(
            PublisherSession(client, self._queue(number), client.name, share, self._settings(number))
        )
        return client

    def _consumer(self, number: int) -> ClientProcess:
        client = SimClient(f"consumer{number}", self._hall, self.profile.clients)
        # One that ends with its session keeps messages until the session has expired.
        is_passing = self.profile.node.session_expiry_ms < _SESSION_EXPIRY_SHORT_MS and number % 2 == 1
        name = "" if is_passing else f"audit{number}"
        client.sessions.append(SubscriberSession(client, self._queue(number), name, self._settings(number)))
        return client

    # Act two.

    def _is_quiet(self) -> bool:
        if self.node.port_if_serving() is None or not all(client.is_idle for client in self._clients):
            return False
        return not any(self.node.backlogs().values()) and not self._left_behind()

    def _left_behind(self) -> list[str]:
        return [*super()._left_behind(), *too_old(self.node.state)]

    def _what_is_open(self) -> str:
        backlogs = self.node.backlogs() if self.node.is_up else {}
        words = [f"subscription {id} needs {count}" for id, count in backlogs.items() if count]
        return "; ".join([super()._what_is_open(), *words])
