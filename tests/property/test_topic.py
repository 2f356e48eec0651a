"""The topic's ranges, horizon and cursors against a dictionary that knows every message and who needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

AGE_MS = 1_000
BYTES = 2_000
SETTINGS = f'{{"retention":{AGE_MS // 1_000},"retention_bytes":{BYTES}}}'
CONSUMED = f'{{"retention":"consumed","retention_bytes":{BYTES}}}'

# Numbers near each other, so that operations meet; an operation picks its ranges below the end of the log.
pairs = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=4)
which = st.integers(0, 3)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 12), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("publish"), st.integers(1, 12), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("subscribe"), st.integers(-1, 300)),
        st.tuples(st.just("unsubscribe"), which),
        st.tuples(st.just("acknowledge"), which, pairs),
        # One or a few, above what is acknowledged in order.
        st.tuples(st.just("pluck"), which, st.integers(1, 15), st.integers(1, 3)),
        # What consumers do: the next few, in order.
        st.tuples(st.just("consume"), which, st.integers(1, 30)),
        st.tuples(st.just("return"), which, pairs, st.booleans()),
        st.tuples(st.just("time"), st.sampled_from((10, 250, 500))),
    ),
    min_size=15,
    max_size=45,
)
Steps = list[tuple[object, ...]]


@dataclass
class Stored:
    batch: tuple[int, int, Location, int, int]
    weight: int
    marked_ms: int | None = None
    # Too old or too much: from now on it is kept only for those who need it.
    is_beyond: bool = False


@dataclass
class Subscriber:
    start: int
    needs: set[int]
    counts: dict[int, int] = field(default_factory=dict)


@dataclass
class Model:
    """The obvious topic: one entry per message, a set of messages per subscriber."""

    age_ms: int
    kept: dict[int, Stored] = field(default_factory=dict)
    subscribers: dict[int, Subscriber] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0

    def publish(self, numbers: range, stored: Stored) -> None:
        for number in numbers:
            self.kept[number] = Stored(stored.batch, stored.weight, is_beyond=self.age_ms == 0)
            for subscriber in self.subscribers.values():
                if number >= subscriber.start:
                    subscriber.needs.add(number)
        self.published += len(numbers)
        newer = 0
        for number in sorted(self.kept, reverse=True):
            if not self.kept[number].is_beyond:
                newer += self.kept[number].weight
                self.kept[number].is_beyond = newer > BYTES
        self.trim()

    def tick(self, now_ms: int) -> None:
        for stored in self.kept.values():
            if stored.marked_ms is None:
                stored.marked_ms = now_ms
            stored.is_beyond = stored.is_beyond or now_ms - stored.marked_ms >= self.age_ms
        self.trim()

    def trim(self) -> None:
        for number in list(self.kept):
            is_needed = any(number in subscriber.needs for subscriber in self.subscribers.values())
            if self.kept[number].is_beyond and not is_needed:
                del self.kept[number]


class Run:
    """Does the same to a topic and to its model, and holds them against each other after every step."""

    def __init__(self, settings: str = SETTINGS) -> None:
        self.topic = Topic(id=1, name="topic:prices", settings=settings, use=SegmentUse())
        self.model = Model(0 if settings == CONSUMED else AGE_MS)
        self.next_number = 10
        self.now_ms = 5_000
        self.at = 0

    def do(self, steps: Steps) -> None:
        for step in steps:
            self.at += 1
            getattr(self, f"_{step[0]}")(*step[1:])
            self.check()

    def pick(self, which: int) -> tuple[Subscription, Subscriber] | None:
        ids = list(self.topic.subscriptions)
        if not ids:
            return None
        id = ids[which % len(ids)]
        return self.topic.subscriptions[id], self.model.subscribers[id]

    def _publish(self, count: int, gap: int, skip: int) -> None:
        skip = min(skip, count - 1)
        first = self.next_number + gap
        self.next_number = first + count
        location, length = Location(self.at // 3, 100 * self.at, 1_000, self.at), 57 + 31 * count
        self.topic.publish(first, count, skip, location, self.at, length, bytes(16))
        stored = Stored((first, count, location, self.at, length), length // count)
        self.model.publish(range(first + skip, first + count), stored)

    def _subscribe(self, start: int) -> None:
        """-1: from now on."""
        id = self.next_number
        self.next_number += 1
        first = id + 1 if start < 0 else start
        self.topic.subscribe(
            Subscription(id=id, topic=self.topic, subscriber="", client_id="", floor=max(0, first - 1))
        )
        needs = {number for number in self.model.kept if number >= first}
        self.model.subscribers[id] = Subscriber(first, needs)

    def _unsubscribe(self, which: int) -> None:
        picked = self.pick(which)
        if picked is not None:
            self.topic.unsubscribe(picked[0])
            del self.model.subscribers[picked[0].id]
            self.model.trim()

    def _acknowledge(self, which: int, wish: list[tuple[int, int]]) -> None:
        self._ack(which, Ranges((start, start + size) for start, size in wish))

    def _pluck(self, which: int, above: int, size: int) -> None:
        picked = self.pick(which)
        if picked is not None:
            first = picked[0].floor + above
            self._ack(which, Ranges([(first, first + size)]))

    def _consume(self, which: int, count: int) -> None:
        picked = self.pick(which)
        if picked is not None:
            self._ack(which, picked[0].pending(0, 1_000)[0].take(count))

    def _ack(self, which: int, numbers: Ranges) -> None:
        picked = self.pick(which)
        if picked is None:
            return
        subscription, subscriber = picked
        expected = sorted(subscriber.needs.intersection(numbers.numbers()))
        assert list(subscription.acknowledge(numbers).numbers()) == expected
        subscriber.needs.difference_update(expected)
        for number in expected:
            subscriber.counts.pop(number, None)
        self.model.acknowledged += len(expected)
        self.model.trim()

    def _return(self, which: int, wish: list[tuple[int, int]], is_counted: bool) -> None:
        picked = self.pick(which)
        if picked is None:
            return
        subscription, subscriber = picked
        numbers = Ranges((start, start + size) for start, size in wish)
        expected = sorted(subscriber.needs.intersection(numbers.numbers()))
        assert list(subscription.return_(numbers, is_counted=is_counted).numbers()) == expected
        for number in expected if is_counted else ():
            subscriber.counts[number] = subscriber.counts.get(number, 0) + 1

    def _time(self, ms: int) -> None:
        self.now_ms += ms
        self.next_number += 1
        self.topic.time_passed(self.now_ms)
        self.model.tick(self.now_ms)

    # -- what must be equal --------------------------------------------------------

    def check(self) -> None:
        topic, model = self.topic, self.model
        assert list(topic.live.numbers()) == sorted(model.kept)
        assert topic.bytes == sum(stored.weight for stored in model.kept.values())
        assert topic.fresh_bytes == sum(s.weight for s in model.kept.values() if not s.is_beyond)
        assert topic.published == model.published == topic.live.count + topic.trimmed
        assert topic.acknowledged == model.acknowledged
        for id, subscriber in model.subscribers.items():
            subscription = topic.subscriptions[id]
            assert list(subscription.needs(topic.live).numbers()) == sorted(subscriber.needs)
            assert subscription.backlog == len(subscriber.needs)
            assert list(in_pages(subscription).numbers()) == sorted(subscriber.needs)
            first = topic.live.next_from(subscription.floor + 1)
            assert first is None or first in subscriber.needs, "the floor could be higher"
            counted = {n: c for c, ranges in subscription.counts._by_count.items() for n in ranges.numbers()}
            assert counted == subscriber.counts


def in_pages(subscription: Subscription) -> Ranges:
    """What is pending, looked at in small parts, as a dispatcher does."""
    together = Ranges()
    after: int | None = 0
    while after is not None:
        part, after = subscription.pending(after, 2)
        assert part.intersection(together) == Ranges()
        together.add_all(part)
    return together


@given(operations)
@example(
    [
        ("subscribe", -1),
        ("publish", 9, 1, 0),
        ("publish", 9, 1, 0),
        ("acknowledge", 0, [(24, 5)]),
        ("time", 600),
    ]
)
def test_a_topic_is_what_a_dictionary_of_its_messages_would_be(steps: Steps) -> None:
    Run().do(steps)


@given(operations)
def test_so_is_one_that_keeps_nothing_for_its_own_sake(steps: Steps) -> None:
    Run(CONSUMED).do(steps)


@given(operations)
def test_a_segment_is_in_use_as_long_as_a_message_in_it_is_kept(steps: Steps) -> None:
    run = Run()
    run.do(steps)
    expected: dict[int, int] = {}
    for _, _, location, _, length in sorted({stored.batch for stored in run.model.kept.values()}):
        expected[location.segment] = expected.get(location.segment, 0) + length
    assert run.topic.index._use.by_segment() == expected
    for number, stored in run.model.kept.items():
        assert tuple(run.topic.index.find(number)) == stored.batch


@given(operations)
@example(
    [
        ("subscribe", -1),
        *[("publish", 3, 1, 0)] * 4,
        ("acknowledge", 0, [(16, 3)]),
        ("acknowledge", 0, [(20, 3)]),
    ]
)
def test_a_cursor_takes_no_more_than_what_was_left_behind_asks_for(steps: Steps) -> None:
    """Above the floor lie messages it needs and done ones in turns: no two done ranges follow each other."""
    run = Run()
    run.do(steps)
    for subscription in run.topic.subscriptions.values():
        needed = subscription.needs(run.topic.live)
        edges = [subscription.floor, *(start for start, _ in subscription.done)]
        assert all(needed.clip(before, after) for before, after in pairwise(edges))


def logical(topic: Topic) -> bytes:
    writer = Writer()
    topic.write_logical(writer)
    return writer.join()


@given(operations, operations)
def test_to_be_read_back_is_never_to_have_stopped(before: Steps, after: Steps) -> None:
    run = Run()
    run.do(before)
    use = SegmentUse()
    places = Writer()
    run.topic.write_places(places)
    again = Topic.read_logical(Reader(logical(run.topic)), run.topic.settings, use)
    again.read_places(Reader(places.join()), use)
    assert logical(again) == logical(run.topic)
    assert use.by_segment() == run.topic.index._use.by_segment()
    run.topic = again
    run.do(after)
    never_stopped = Run()
    never_stopped.do(before + after)
    assert logical(run.topic) == logical(never_stopped.topic)
    assert use.by_segment() == never_stopped.topic.index._use.by_segment()
