"""The topic workload: subscribers with cursors of their own, under the faults of the node workload.

Some subscriptions are durable and are found again by their name; some end with their session; some are shared
by several clients. Now and then a subscriber unsubscribes and begins anew. In the end every subscription that
is left must have got every message since its beginning.
"""

from __future__ import annotations

from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.history import TotalTopic
from antiphon.sim.checkers.message_groups import GroupsKept
from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.order import Checkpoints, Durability, Monotone, Order
from antiphon.sim.checkers.redeliveries import Redeliveries
from antiphon.sim.checkers.restores import Restores
from antiphon.sim.checkers.rules import RulesKept
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.clients.process import ClientProcess
from antiphon.sim.clients.queues import RudeProducer, RudeSubscriber
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.clients.sharers import draw_sharing, sharers
from antiphon.sim.workloads.node import NodeRun

SETTINGS = (
    '{"retention":"consumed"}',
    '{"retention":0.02}',
    '{"retention":0.2,"retention_bytes":2000}',
    "{}",
)
_SESSION_EXPIRY_SHORT_MS = 1_000
_AGE_SHORT_MS = 1_000


def too_old(state: ChannelState) -> list[str]:
    """Messages that topics keep for a moment only, and still have."""
    return [
        f"{topic.name} keeps {topic.live.count} messages"
        for topic in state.directory.topics
        if topic.live.count and topic.retention.age_ms <= _AGE_SHORT_MS
    ]


class TopicRun(NodeRun):
    total_kind = TotalTopic

    def _checkers(self) -> list[Checker]:
        order, topics = Order(self.world), Topics(self.world)
        assert isinstance(self._total, TotalTopic), "a topic is judged as a topic"
        self._total.topics = topics
        self._model, self._total.expired = topics, topics.expired
        return [
            order,
            topics,
            Durability(self.world, order, topics),
            Monotone(self.world),
            WriteBeforeSend(self.world),
            Checkpoints(self.world),
            Redeliveries(self.world),
            RulesKept(self.world, self._log_time_of),
            GroupsKept(self.world),
            Restores(self.world),
            *self._of_time(topics),
            self._total,
        ]

    def _queue(self, number: int) -> str:
        return f"topic:t{number % self.profile.queues}"

    def _settings(self, number: int) -> str:
        return SETTINGS[(self.world.seed + number % self.profile.queues) % len(SETTINGS)]

    def _producer(self, number: int, share: int) -> ClientProcess:
        client = RudeClient(f"producer{number}", self._hall, self.profile.clients)
        RudeProducer(client, self._queue(number), share, self._settings(number))
        return client

    def _consumer(self, number: int) -> ClientProcess:
        client = RudeClient(f"consumer{number}", self._hall, self.profile.clients)
        # A subscription that ends with its session keeps messages until the session has expired.
        is_passing = self.profile.node.session_expiry_ms < _SESSION_EXPIRY_SHORT_MS and number % 2 == 1
        name = "" if is_passing else f"audit{number}"
        RudeSubscriber(client, self._queue(number), self._settings(number), name)
        return client

    def _consumers(self) -> list[ClientProcess]:
        kinds = draw_sharing(self.world.random("sharing")) if self._may_share else ()
        topics = [(self._queue(number), self._settings(number)) for number in range(self.profile.queues)]
        return [*super()._consumers(), *sharers(self._hall, self.profile.clients, topics, kinds)]

    def _backlogs(self) -> dict[int, int]:
        """The count of messages that each subscription still needs."""
        return {
            subscription.id: subscription.backlog
            for topic in self._state.directory.topics
            for subscription in topic.subscriptions.values()
        }

    def _is_quiet(self) -> bool:
        if self.node.port_if_serving() is None or not all(client.is_idle for client in self._clients):
            return False
        return not any(self._backlogs().values()) and not self._left_behind()

    def _left_behind(self) -> list[str]:
        return [*super()._left_behind(), *too_old(self._state)]

    def _what_is_open(self) -> str:
        backlogs = self._backlogs() if self.node.is_up else {}
        words = [f"subscription {id} needs {count}" for id, count in backlogs.items() if count]
        return "; ".join([super()._what_is_open(), *words])
