"""Laws of the fold: one log, one state; nothing applied twice; nothing lost between two consumers.

A run is a list of drawn steps. Sessions, destinations and numbers are few, so that steps meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from antiphon.bus.messages import Deliver
from antiphon.message_manager.delivery import dispatcher
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.manager import MessageManager
from antiphon.names import DEAD_QUEUE_NAME
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    AlterDestination,
    CommandKind,
    Outcome,
    OutcomeCode,
    PurgeDestination,
    Return,
    read_command,
)
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import (
    AT_ONCE,
    Client,
    delivers,
    of_node,
    proposals,
)

SESSIONS = (0xA1, 0xB2)

few = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        # session, destination, where to begin relative to what is next, how many, how much is confirmed
        st.tuples(st.just("publish"), few, few, st.integers(-6, 2), st.integers(1, 6), st.integers(0, 8)),
        # session, destination, first and length of two ranges, counted from the end of the log
        st.tuples(st.just("ack"), few, few, st.integers(1, 40), st.integers(1, 12), st.integers(1, 40)),
        st.tuples(st.just("return"), few, few, st.integers(1, 40), st.integers(1, 12), st.booleans()),
        st.tuples(st.just("alter"), few, st.integers(0, 2)),
        st.tuples(st.just("purge"), few),
        st.tuples(st.just("bury")),
        st.tuples(st.just("resume"), few),
        st.tuples(st.just("close"), few),
        st.tuples(st.just("restart"), few),
        st.tuples(st.just("create"), few),
        st.tuples(st.just("delete"), few),
        st.tuples(st.just("claim"), few),
        st.tuples(st.just("consume"), few, few, st.integers(1, 10)),
    ),
    # Hypothesis prefers short lists; nothing much happens in a short story.
    min_size=15,
    max_size=40,
)
Step = tuple[object, ...]


class Story:
    """Writes a log from drawn steps, and keeps a list of what was asked for, message by message."""

    def __init__(self) -> None:
        self.channel = RestoredChannel()
        self.clients = [Client(session) for session in SESSIONS]
        for client in self.clients:
            self.channel.order(client.open())
        self.queues = [self.channel.create(name) for name in ("one", "two")]
        self.flushed: list[Effect] = []
        # Sequence number -> (session, life, number): who asked for that message.
        self.asked: dict[int, tuple[int, int, int]] = {}
        self.lives = [0, 0]

    def tell(self, drawn: list[Step]) -> None:
        for step in drawn:
            getattr(self, f"_{step[0]}")(*step[1:])
            self.flushed += self.channel.flush()

    def _last(self, who: int) -> int:
        row = self.channel.manager.state.sessions.get(SESSIONS[who])
        return row.last if row is not None else 0

    def _publish(self, who: int, where: int, shift: int, count: int, unconfirmed: int) -> None:
        who %= 2
        client = self.clients[who]
        number = max(1, self._last(who) + 1 + shift)
        client.confirmed_through = max(0, min(number - 1, self._last(who) - unconfirmed))
        texts = [b"%d" % (number + at) for at in range(count)]
        command = client.publish(self.queues[where % 2] if where < 3 else 999, texts, number=number)
        first = self.channel.order(command)
        for at in range(count):
            self.asked[first + at] = (client.session, self.lives[who], number + at)

    def _ack(self, who: int, where: int, start: int, count: int, again: int) -> None:
        client = self.clients[who % 2]
        end = self.channel.next
        numbers = Ranges()
        for back in (start, again):
            numbers.add(max(1, end - back), max(1, end - back) + count)
        client.confirmed_through = 0
        number = self._last(who % 2) + 1
        self.channel.order(client.ack(self.queues[where % 2], *numbers, number=number))

    def _return(self, who: int, where: int, start: int, count: int, is_rejected: bool) -> None:
        client = self.clients[who % 2]
        client.number = self._last(who % 2) + 1
        client.confirmed_through = 0
        first = max(1, self.channel.next - start)
        numbers = (first, first + count)
        queue = self.queues[where % 2]
        back = client.reject(queue, numbers) if is_rejected else client.give_back(queue, numbers)
        self.channel.order(back)

    def _alter(self, where: int, limit: int) -> None:
        settings = f'{{"redelivery_limit":{limit}}}'
        alter = AlterDestination(destination=self.queues[where % 2], settings=settings)
        self.channel.order(of_node(alter))

    def _purge(self, where: int) -> None:
        self.channel.order(of_node(PurgeDestination(destination=self.queues[where % 2])))

    def _bury(self) -> None:
        """Order what the primary proposes, dead messages among it."""
        self.channel.now_ns += 1_000_000_000
        self.channel.order_proposals(self.channel.flush())

    def _resume(self, who: int) -> None:
        client = self.clients[who % 2]
        self.channel.order(client.resume(client.generation + 1), pid=1 + who)

    def _close(self, who: int) -> None:
        client = self.clients[who % 2]
        self.channel.order(client.close(), client.open())
        self.lives[who % 2] += 1

    def _restart(self, who: int) -> None:
        self.channel.open_producer(1 + who)

    def _create(self, where: int) -> None:
        self.queues[where % 2] = self.channel.create(("one", "two")[where % 2])

    def _delete(self, where: int) -> None:
        client = self.clients[0]
        client.number = self._last(0) + 1
        client.confirmed_through = 0
        self.channel.order(client.delete(self.queues[where % 2]))

    def _claim(self, who: int) -> None:
        self.channel.claim(1 + who % 2)

    def _consume(self, who: int, where: int, credit: int) -> None:
        client = self.clients[who % 2]
        self.channel.register(
            who, self.queues[where % 2], credit, session=client.session, generation=client.generation
        )


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
    story.tell(after)
    end = story.channel.mark()
    replica = story.channel.replica(state=state, after=n)
    assert replica.capture(end)[0] == story.channel.manager.capture(end)[0]


@given(steps)
def test_a_number_of_a_session_is_stored_at_most_once(drawn: list[Step]) -> None:
    story = Story()
    stored: set[tuple[int, int, int]] = set()
    seen: set[int] = set()
    for step in drawn:
        story.tell([step])
        for queue in story.channel.manager.state.directory:
            if queue.name == DEAD_QUEUE_NAME:
                # The primary moved these; no session asked for them.
                continue
            for sequence in queue.live.numbers():
                if sequence not in seen:
                    seen.add(sequence)
                    assert story.asked[sequence] not in stored, f"stored twice: {story.asked[sequence]}"
                    stored.add(story.asked[sequence])


@given(steps)
def test_what_was_published_is_live_acknowledged_dead_or_purged(drawn: list[Step]) -> None:
    story = Story()
    for step in drawn:
        story.tell([step])
        for row in story.channel.manager.destinations():
            gone = row["acknowledged"] + row["dead"] + row["purged"]
            assert row["published"] == row["messages"] + gone


@given(steps)
def test_every_message_asked_for_is_stored_or_has_an_outcome(drawn: list[Step]) -> None:
    """`Applied` without an exception means: it did what it asked. A duplicate is told its first place."""
    story = Story()
    places: dict[tuple[int, int, int], int] = {}
    for step in drawn:
        before = len(story.asked)
        story.channel.flush()
        getattr(story, f"_{step[0]}")(*step[1:])
        if not story.channel.manager.is_primary:
            continue
        outcomes: dict[int, Outcome] = {}
        for outcome in story.channel.exceptions():
            for number in range(outcome.first, outcome.first + outcome.count):
                assert number not in outcomes, "a number has one outcome"
                outcomes[number] = outcome
        for sequence in list(story.asked)[before:]:
            is_live = any(sequence in queue.live for queue in story.channel.manager.state.directory)
            assert is_live != (sequence in outcomes)
            who = story.asked[sequence]
            if is_live:
                places[who] = sequence
            elif outcomes[sequence].code == OutcomeCode.DUPLICATE and outcomes[sequence].original:
                first, _, _, original, _ = outcomes[sequence]
                assert places.get(who) in (None, original + sequence - first)


# -- delivery -----------------------------------------------------------------------------------------

delivery_steps = (
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("attach"), few, st.integers(0, 12), st.integers(0, 600)),
    st.tuples(st.just("detach"), few, st.integers(0, 12)),
    st.tuples(st.just("credit"), few, st.integers(0, 12), st.integers(0, 600)),
    st.tuples(st.just("ack"), few, st.integers(1, 8), st.booleans()),
    st.tuples(st.just("steal"), st.integers(1, 30), st.integers(1, 4)),
    st.tuples(st.just("give_back"), few, st.integers(1, 8), st.booleans()),
    st.tuples(st.just("order_returns")),
    st.tuples(st.just("new_term")),
)
deliveries = st.lists(st.one_of(*delivery_steps), min_size=25, max_size=60)


def waiting(given: dispatcher.Dispatcher) -> Ranges:
    """What is ready, and what a dispatcher has not looked at yet."""
    rest, through = given.source.pending(given._looked, 1 << 30)
    assert through is None
    return given.ready.all().union(rest)


@dataclass
class Holder:
    """A consumer as its client sees it."""

    credit: int
    credit_bytes: int
    delivered: int = 0
    delivered_bytes: int = 0
    # Sequence number -> delivery number, 0 if it was held before the term began.
    held: dict[int, int] = field(default_factory=dict)


class Hall:
    """Consumers of one queue in one session, driven by drawn steps; checks the promises at every step."""

    def __init__(self) -> None:
        self.channel = RestoredChannel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.queue = self.channel.create("orders")
        self.holders: dict[int, Holder] = {}
        self.acknowledged: set[int] = set()
        self.published = 0
        self.counts: dict[int, int] = {}
        # Returns that were proposed and are not ordered yet.
        self.returns: list[bytes] = []
        self.kept_back: set[int] = set()
        # What was given to a consumer that was done with it, for nothing.
        self.let_go: set[int] = set()
        self.claimed = 1
        self.next_consumer = 10
        self._publish(20)
        self._attach(0, 5, 1_000)
        self._attach(0, 5, 1_000)

    def act(self, step: Step) -> None:
        handler: Callable[..., None] = getattr(self, f"_{step[0]}")
        handler(*step[1:])
        self.settle()

    def live(self, drawn: list[Step]) -> None:
        """Take all steps; in the end everything has reached somebody."""
        for step in drawn:
            self.act(step)
        self.drain()

    def settle(self) -> list[Ranges]:
        """Take what the primary says and hold it against what we know; what it wants given back."""
        effects = self.channel.flush()
        returned = []
        for proposal in proposals(effects):
            header, payload = read_command(proposal.command)
            if header.kind == CommandKind.RETURN:
                self.returns.append(proposal.command)
                returned.append(Return.decode(payload).ranges)
        for deliver in delivers(effects):
            self._take_delivery(deliver)
        self._check_conservation()
        return returned

    def _take_delivery(self, deliver: Deliver) -> None:
        [target] = deliver.targets
        [taker] = target.takers
        holder = self.holders[taker.consumer]
        assert taker.first_delivery == holder.delivered + 1, "deliveries are numbered without gaps"
        for piece in deliver.pieces:
            for number in piece.sequences:
                assert number not in self.acknowledged, "an acknowledged message was pushed again"
                assert not any(number in other.held for other in self.holders.values()), "given twice"
                assert number not in self.kept_back, "given out before its return was ordered"
                # What an earlier primary may have given out is told as redelivered.
                was_given = number < self.claimed or number in self.let_go
                assert piece.redelivery_count == max(self.counts.get(number, 0), was_given)
                holder.delivered += 1
                holder.held[number] = holder.delivered
            holder.delivered_bytes += 50 * piece.count
        assert holder.delivered <= holder.credit
        assert holder.delivered_bytes < holder.credit_bytes + 50

    def _check_conservation(self) -> None:
        primary = self.channel.manager.primary
        stored = self.channel.manager.state.directory.get(self.queue)
        assert primary is not None and stored is not None
        assert stored.live.count == self.published - len(self.acknowledged)
        giver = primary.delivery.dispatcher(self.queue)
        if giver is None:
            return
        parts = [
            waiting(giver),
            giver.returning,
            giver.withheld,
            *(c.in_flight for c in giver.consumers.values()),
        ]
        together = Ranges()
        for part in parts:
            together.add_all(part)
        assert together == stored.live
        assert sum(part.count for part in parts) == stored.live.count
        for key, consumer in giver.consumers.items():
            assert list(consumer.in_flight.numbers()) == sorted(self.holders[key.consumer].held)

    def _pick(self, which: int) -> int | None:
        keys = list(self.holders)
        return keys[which % len(keys)] if keys else None

    def _publish(self, count: int) -> None:
        self.channel.order(self.client.publish(self.queue, [bytes(50)] * count))
        self.published += count

    def _attach(self, _: int, credit: int, credit_bytes: int) -> None:
        if len(self.holders) < 4:
            self.next_consumer += 1
            self.holders[self.next_consumer] = Holder(credit, credit_bytes)
            self.channel.register(self.next_consumer, self.queue, credit, credit_bytes=credit_bytes)

    def _detach(self, which: int, unseen: int) -> None:
        key = self._pick(which)
        if key is None:
            return
        self.settle()
        holder = self.holders.pop(key)
        seen_through = max(0, holder.delivered - unseen)
        seen = sorted(number for number, delivery in holder.held.items() if delivery <= seen_through)
        self.kept_back.update(seen)
        self.channel.unregister(key, seen_through)
        assert [number for ranges in self.settle() for number in ranges.numbers()] == seen

    def _credit(self, which: int, more: int, more_bytes: int) -> None:
        key = self._pick(which)
        if key is not None:
            holder = self.holders[key]
            holder.credit += more
            holder.credit_bytes += more_bytes
            self.channel.credit(key, holder.credit, holder.credit_bytes)

    def _take(self, which: int, count: int, is_latest_first: bool = False) -> list[int]:
        """Some of what a consumer holds leaves its hands."""
        key = self._pick(which)
        if key is None:
            return []
        held = self.holders[key].held
        taken = sorted(held, reverse=is_latest_first)[:count]
        for number in taken:
            del held[number]
        return taken

    def _ack(self, which: int, count: int, is_latest_first: bool) -> None:
        self._acknowledge(self._take(which, count, is_latest_first))

    def _acknowledge(self, numbers: list[int]) -> None:
        if numbers:
            self.acknowledged.update(numbers)
            first = self.channel.order(self.client.ack(self.queue, *Ranges((n, n + 1) for n in numbers)))
            assert self.channel.manager.state.outcomes.last < first, (
                "what a consumer holds it can acknowledge"
            )

    def _steal(self, back: int, count: int) -> None:
        """Acknowledge numbers whoever has them; some of them may never have been messages."""
        stored = self.channel.manager.state.directory.get(self.queue)
        assert stored is not None
        first = max(1, self.channel.next - back)
        for number in stored.live.clip(first, first + count).numbers():
            self.acknowledged.add(number)
            for holder in self.holders.values():
                holder.held.pop(number, None)
        self.channel.order(self.client.ack(self.queue, (first, first + count)))

    def _give_back(self, which: int, count: int, is_counted: bool) -> None:
        numbers = self._take(which, count)
        if numbers:
            pairs = Ranges((n, n + 1) for n in numbers)
            self.channel.order(self.client.give_back(self.queue, *pairs, counted=is_counted))
            for number in numbers:
                self.counts[number] = self.counts.get(number, 0) + is_counted

    def _order_returns(self) -> None:
        for command in self.returns:
            self.channel.order(command)
            for number in Return.decode(read_command(command)[1]).ranges.numbers():
                self.counts[number] = self.counts.get(number, 0) + 1
                self.kept_back.discard(number)
        self.returns.clear()

    def _new_term(self) -> None:
        self.settle()
        self.claimed = self.channel.next
        self.channel.claim(1)
        # The new term knows nothing of consumers that are gone: a failover does not count.
        self.kept_back.clear()
        for key, holder in self.holders.items():
            holder.delivered = holder.delivered_bytes = 0
            holder.held = dict.fromkeys(holder.held, 0)
            held = Ranges((n, n + 1) for n in holder.held)
            self.channel.register(key, self.queue, holder.credit, credit_bytes=holder.credit_bytes, held=held)

    def drain(self) -> None:
        """Nothing may be stuck: with enough credit everything is delivered and acknowledged."""
        self._attach(0, 0, 0)
        for _ in range(200):
            self._order_returns()
            for which in range(len(self.holders)):
                self._credit(which, 50, 5_000)
                self.settle()
                self._acknowledge(self._take(which, 1_000))
            self.settle()
            if len(self.acknowledged) == self.published:
                return
        raise AssertionError(f"{self.published - len(self.acknowledged)} messages were never delivered")


@given(deliveries)
def test_every_message_reaches_one_consumer_at_a_time_and_in_the_end_somebody(drawn: list[Step]) -> None:
    Hall().live(drawn)


@given(deliveries)
def test_it_does_so_when_little_of_the_backlog_is_looked_at_a_time(drawn: list[Step]) -> None:
    with mock.patch.object(dispatcher, "RANGES_READY", 2):
        Hall().live(drawn)


def test_the_outcomes_of_a_story_are_among_the_known_ones() -> None:
    """Keeps the strategy honest: a story with everything in it meets the outcomes it is meant to meet."""
    story = Story()
    drawn: list[Step] = [
        ("publish", 0, 0, 0, 5, 0),
        ("publish", 0, 0, -3, 5, 0),
        ("publish", 0, 0, 2, 5, 0),
        ("publish", 0, 3, 0, 1, 0),
        ("ack", 0, 0, 40, 12, 20),
    ]
    for step in drawn:
        getattr(story, f"_{step[0]}")(*step[1:])
    codes = {outcome.code for outcome in story.channel.exceptions()}
    assert codes == {OutcomeCode.DUPLICATE, OutcomeCode.GAP, OutcomeCode.NO_DESTINATION, OutcomeCode.ACK_LOST}
