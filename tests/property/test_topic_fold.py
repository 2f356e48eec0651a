"""Laws of a log with topics in it: one state on every replica, and a restart that nobody notices.

A run is a list of drawn steps. Sessions, topics and subscriptions are few, so that steps meet.
"""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import AT_ONCE, Client, delivered

SESSIONS = (0xA1, 0xB2)
NAMES = ("", "", "audit", "ledger")
STARTS: tuple[str | int, ...] = ("latest", "earliest", 40)
# The second one lets go of everything soon, so that much is kept for subscriptions only.
SETTINGS = ("{}", '{"retention":1,"retention_bytes":900}')

few = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), few, few, st.integers(1, 6)),
        st.tuples(st.just("publish"), few, few, st.integers(1, 6)),
        st.tuples(st.just("subscribe"), few, few, few, st.integers(0, 2), st.booleans()),
        st.tuples(st.just("unsubscribe"), few, few),
        st.tuples(st.just("ack"), few, st.integers(0, 10), st.integers(1, 12)),
        st.tuples(st.just("give_back"), few, st.integers(0, 10), st.integers(1, 6)),
        st.tuples(st.just("attach"), few, st.integers(0, 12)),
        st.tuples(st.just("detach"), few, few),
        st.tuples(st.just("time"), st.integers(100, 700)),
        st.tuples(st.just("close"), few),
        st.tuples(st.just("delete"), few),
        st.tuples(st.just("claim"), few),
        st.tuples(st.just("move"), few),
    ),
    min_size=15,
    max_size=40,
)
Step = tuple[object, ...]


class Story:
    """Writes a log from drawn steps; consumers come and go meanwhile."""

    def __init__(self) -> None:
        self.channel = RestoredChannel()
        self.clients = [Client(session) for session in SESSIONS]
        for client in self.clients:
            self.channel.order(client.open())
        self.topics = [0, 0]
        for which in (0, 1):
            self._make(which)
        self.consumers: dict[int, int] = {}
        self.next_consumer = 10

    def tell(self, drawn: list[Step]) -> None:
        for step in drawn:
            getattr(self, f"_{step[0]}")(*step[1:])
            self.settle()

    def settle(self) -> None:
        effects = self.channel.flush()
        self.check_deliveries(delivered(effects))
        self.channel.order_proposals(effects)
        for row in self.channel.manager.destinations():
            found = self.channel.manager.state.directory.named(row["name"])
            assert isinstance(found, Topic)
            assert found.published == found.live.count + found.trimmed
            for subscription in found.subscriptions.values():
                # It ends with the last of its sessions, unless it is durable.
                assert bool(subscription.members) != subscription.is_durable
                assert all(self.channel.manager.state.sessions.has(one) for one in subscription.members)
                assert len(subscription.members) <= 1 or subscription.is_shared
        self.channel.flush()

    def check_deliveries(self, rows: list[tuple[int, int, bytes, int]]) -> None:
        """What is given out is needed by the subscription it is given out of."""
        for consumer, number, _, _ in rows:
            subscription = self.channel.manager.state.directory.subscription(self.consumers[consumer])
            assert subscription is not None
            needed = subscription.needs(Ranges([(number, number + 1)]))
            assert needed.count == 1 and number in subscription.topic.live

    def _make(self, which: int) -> None:
        self.topics[which] = self.channel.create_topic(("one", "two")[which], SETTINGS[which])

    def _pick(self, which: int) -> Subscription | None:
        directory = self.channel.manager.state.directory
        found = [s for topic in directory.topics for s in topic.subscriptions.values()]
        return found[which % len(found)] if found else None

    def _publish(self, who: int, where: int, count: int) -> None:
        client = self.clients[who % 2]
        self.channel.order(client.publish(self.topics[where % 2], [bytes(30)] * count))

    def _subscribe(self, who: int, where: int, name: int, start: int, is_shared: bool) -> None:
        client, shared = self.clients[who % 2], (True if NAMES[name] else "crew") if is_shared else False
        self.channel.order(
            client.subscribe(self.topics[where % 2], NAMES[name], STARTS[start], shared=shared)
        )

    def _unsubscribe(self, who: int, which: int) -> None:
        subscription = self._pick(which)
        if subscription is not None:
            self.channel.order(self.clients[who % 2].unsubscribe(subscription.id))

    def _ack(self, which: int, skip: int, count: int) -> None:
        self._speak_of("ack", which, skip, count)

    def _give_back(self, which: int, skip: int, count: int) -> None:
        self._speak_of("give_back", which, skip, count)

    def _speak_of(self, kind: str, which: int, skip: int, count: int) -> None:
        subscription = self._pick(which)
        if subscription is not None:
            needed = subscription.pending(0, 1 << 20)[0]
            first = (needed.first if needed else subscription.floor) + skip
            command = getattr(self.clients[which % 2], kind)
            self.channel.order(
                command(subscription.destination, (first, first + count), subscription=subscription.id)
            )

    def _attach(self, which: int, credit: int) -> None:
        subscription = self._pick(which)
        if subscription is not None:
            self.next_consumer += 1
            self.consumers[self.next_consumer] = subscription.id
            client = self.clients[which % 2]
            self.channel.register(
                self.next_consumer,
                subscription.destination,
                credit,
                session=client.session,
                subscription=subscription.id,
            )

    def _detach(self, which: int, seen: int) -> None:
        if self.consumers:
            key = list(self.consumers)[which % len(self.consumers)]
            self.channel.unregister(key, seen)

    def _time(self, ms: int) -> None:
        self.channel.pass_time(ms)

    def _close(self, who: int) -> None:
        client = self.clients[who % 2]
        self.channel.order(client.close(), client.open())
        client.number = 1

    def _delete(self, where: int) -> None:
        self.channel.order(self.clients[0].delete(self.topics[where % 2]))
        self._make(where % 2)

    def _claim(self, who: int) -> None:
        self.channel.claim(1)

    def _move(self, which: int) -> None:
        self.channel.move(which)


@given(steps)
def test_every_replica_has_the_same_digest(drawn: list[Step]) -> None:
    """The primary with its consumers, and a backup that keeps the bytes elsewhere and never delivers."""
    story = Story()
    story.tell(drawn)
    n = story.channel.mark()
    assert story.channel.replica().capture(n)[0] == story.channel.manager.capture(n)[0]


@given(steps, steps)
def test_to_restart_by_replay_is_never_to_have_stopped(before: list[Step], after: list[Step]) -> None:
    story = Story()
    story.tell(before)
    n = story.channel.mark()
    digest, state, segments = story.channel.manager.capture(n)
    restored = MessageManager("main", 1, story.channel.payloads, AT_ONCE)
    restored.restore(state)
    assert restored.capture(n) == (digest, state, segments)
    assert restored.live_bytes_by_segment() == story.channel.manager.live_bytes_by_segment()
    story.tell(after)
    end = story.channel.mark()
    replica = story.channel.replica(state=state, after=n)
    assert replica.capture(end)[0] == story.channel.manager.capture(end)[0]


@given(steps)
def test_in_the_end_every_subscriber_gets_what_it_needs_in_order(drawn: list[Step]) -> None:
    story = Story()
    story.tell(drawn)
    channel = story.channel
    channel.claim(1)  # consumers of before are gone
    keys = count(1)  # none is ever used twice
    for topic in list(channel.manager.state.directory.topics):
        for subscription in list(topic.subscriptions.values()):
            key = next(keys)
            expected = list(subscription.needs(topic.live).numbers())
            session = next(iter(subscription.members), SESSIONS[0])
            channel.register(key, topic.id, session=session, subscription=subscription.id)
            rows = delivered(channel.flush())
            assert [number for _, number, _, _ in rows] == expected
            channel.unregister(key, 0)
