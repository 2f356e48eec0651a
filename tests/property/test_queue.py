"""The queue's ranges and arrays against a dictionary that knows every message."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer

# Numbers near each other, so that commands meet; an operation picks its ranges below the end of the log.
pairs = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), min_size=1, max_size=4)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 12), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("acknowledge"), pairs),
        st.tuples(st.just("return"), pairs, st.booleans()),
    ),
    # Hypothesis prefers short lists; a short life of a queue shows little.
    min_size=12,
    max_size=40,
)


@dataclass
class Stored:
    batch: tuple[int, int, Location, int, int]
    weight: int
    count: int = 0


@dataclass
class Model:
    """The obvious queue: one entry per message."""

    live: dict[int, Stored] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0

    def live_of(self, numbers: Ranges) -> list[int]:
        return [number for number in numbers.numbers() if number in self.live]


def build(steps: list[tuple[object, ...]]) -> tuple[Queue, Model]:
    queue = Queue(id=1, name="queue:orders", settings="{}", use=SegmentUse())
    model = Model()
    next_number = 10
    for at, step in enumerate(steps):
        match step:
            case ("publish", int(count), int(gap), int(skip)):
                skip = min(skip, count - 1)
                first = next_number + gap
                next_number = first + count
                location, length = Location(at // 3, 100 * at, 1_000, at), 57 + 31 * count
                queue.publish(first, count, skip, location, at, length, bytes(16))
                batch = (first, count, location, at, length)
                for number in range(first + skip, first + count):
                    model.live[number] = Stored(batch, length // count)
                model.published += count - skip
            case ("acknowledge", list(wish)):
                numbers = Ranges((start, start + size) for start, size in wish)
                removed = queue.acknowledge(numbers)
                expected = model.live_of(numbers)
                assert list(removed.numbers()) == expected
                for number in expected:
                    del model.live[number]
                model.acknowledged += len(expected)
            case ("return", list(wish), bool(is_counted)):
                numbers = Ranges((start, start + size) for start, size in wish)
                back = queue.return_(numbers, is_counted=is_counted)
                assert list(back.numbers()) == model.live_of(numbers)
                for number in back.numbers():
                    model.live[number].count += is_counted
    return queue, model


@given(operations)
def test_a_queue_is_what_a_dictionary_of_its_messages_would_be(steps: list[tuple[object, ...]]) -> None:
    queue, model = build(steps)
    assert list(queue.live.numbers()) == sorted(model.live)
    for number, stored in model.live.items():
        assert tuple(queue.index.find(number)) == stored.batch
        assert queue.counts.of(number) == stored.count
    assert queue.bytes == sum(stored.weight for stored in model.live.values())
    assert (queue.published, queue.acknowledged) == (model.published, model.acknowledged)


@given(operations)
def test_what_was_published_is_live_or_acknowledged(steps: list[tuple[object, ...]]) -> None:
    queue, _ = build(steps)
    assert queue.published == queue.live.count + queue.acknowledged


@given(operations)
def test_a_segment_is_in_use_as_long_as_a_message_in_it_lives(steps: list[tuple[object, ...]]) -> None:
    queue, model = build(steps)
    expected: dict[int, int] = {}
    for _, _, location, _, length in sorted({stored.batch for stored in model.live.values()}):
        expected[location.segment] = expected.get(location.segment, 0) + length
    assert queue.index._use.by_segment() == expected
    assert len(queue.index) == len({stored.batch for stored in model.live.values()})


@given(operations, st.integers(0, 420), st.integers(1, 60))
def test_a_run_of_counts_is_as_long_as_the_counts_are_equal(
    steps: list[tuple[object, ...]], start: int, size: int
) -> None:
    queue, _ = build(steps)
    count, stop = queue.counts.run(start, start + size)
    assert start < stop <= start + size
    assert all(queue.counts.of(number) == count for number in range(start, stop))
    assert stop == start + size or queue.counts.of(stop) != count


@given(operations)
def test_a_queue_reads_back_as_it_was_written(steps: list[tuple[object, ...]]) -> None:
    queue, model = build(steps)
    logical, places = Writer(), Writer()
    queue.write_logical(logical)
    queue.write_places(places)
    use = SegmentUse()
    again = Queue.read_logical(Reader(logical.join()), queue.settings, use)
    again.read_places(Reader(places.join()), use)
    for number in model.live:
        assert again.index.find(number) == queue.index.find(number)
    second = Writer()
    again.write_logical(second)
    assert second.join() == logical.join()
    assert use.by_segment() == queue.index._use.by_segment()
