"""Which topics a mark of log time looks at; and what very many destinations cost. Counted, not measured."""

from __future__ import annotations

import tracemalloc

import pytest

from antiphon.bus.ports import Location
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import KIND_QUEUE, KIND_TOPIC, Directory
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.wire.holds import Hold

HOUR_MS = 3_600_000
TOPICS = 2_000
BYTES_PER_TOPIC_MAX = 2_048


def topics(count: int, settings: str = "{}") -> tuple[Directory, list[Topic]]:
    directory = Directory()
    made = [
        directory.create(id, KIND_TOPIC, f"topic:prices.{id:06d}", settings) for id in range(1, count + 1)
    ]
    return directory, [topic for topic in made if isinstance(topic, Topic)]


def publish(topic: Topic, first: int) -> None:
    topic.publish(first, 1, 0, Location(1, first, 500, 7), 0, 100, bytes(16))


def test_idle_topics_are_not_looked_at_while_time_passes() -> None:
    directory, made = topics(TOPICS)
    ages = directory.ages
    assert (ages.time_passed(1_000), ages.due_ms()) == (0, None)
    for number, topic in enumerate(made):
        publish(topic, TOPICS + 1 + number)
    assert ages.due_ms() == 0, "nobody knows how old the messages are before time is told"
    assert ages.time_passed(2_000) == TOPICS
    # All of them keep a message now.
    publish(made[7], 3 * TOPICS)
    assert ages.time_passed(3_000) == 1
    assert [ages.time_passed(second * 1_000) for second in range(4, 60)] == [0] * 56
    assert ages.due_ms() == 2_000 + HOUR_MS
    assert ages.time_passed(2_000 + HOUR_MS) == TOPICS
    assert [topic.name for topic in made if topic.live] == [made[7].name]
    assert ages.due_ms() == 3_000 + HOUR_MS
    assert ages.time_passed(3_000 + HOUR_MS) == 1
    assert not made[7].live
    assert ages.due_ms() is None


def test_a_shorter_and_a_longer_retention_count_from_then_on() -> None:
    directory, (shorter, longer) = topics(2)
    publish(shorter, 10)
    publish(longer, 11)
    directory.ages.time_passed(1_000)
    shorter.alter('{"retention":60,"retention_bytes":1000}')
    longer.alter('{"retention":7200,"retention_bytes":1000}')
    assert directory.ages.due_ms() == 61_000
    assert directory.ages.time_passed(61_000) == 1
    assert not shorter.live
    assert directory.ages.due_ms() == 1_000 + 2 * HOUR_MS
    assert directory.ages.time_passed(1_000 + HOUR_MS) == 0
    assert longer.live
    assert directory.ages.time_passed(1_000 + 2 * HOUR_MS) == 1
    assert not longer.live


def test_what_went_for_want_of_bytes_is_not_waited_for() -> None:
    directory, (topic,) = topics(1, '{"retention_bytes":100}')
    publish(topic, 10)
    directory.ages.time_passed(1_000)
    publish(topic, 11)
    directory.ages.time_passed(5_000)
    assert list(topic.live) == [(11, 12)]
    assert directory.ages.due_ms() == 5_000 + HOUR_MS


def test_a_busy_topic_at_its_limit_of_bytes_has_one_entry() -> None:
    directory, (topic,) = topics(1, '{"retention":86400,"retention_bytes":300}')
    for second in range(1, 500):
        publish(topic, 10 + second)
        assert directory.ages.time_passed(second * 1_000) == 1
        assert len(directory.ages._heap) <= 1
    assert directory.ages.due_ms() == topic.due_ms() == (497 + 86_400) * 1_000


def test_a_deleted_topic_is_not_waited_for() -> None:
    directory, (gone, new) = topics(2)
    publish(gone, 10)
    directory.ages.time_passed(1_000)
    publish(new, 11)
    directory.delete(gone, 12)
    directory.delete(new, 13)
    assert (directory.ages.due_ms(), directory.ages.time_passed(1_000 + HOUR_MS)) == (None, 0)


def test_a_page_of_destinations_begins_behind_the_one_before() -> None:
    directory, _ = topics(10)
    assert [one.id for one in directory.after(0)] == list(range(1, 11))
    assert [one.id for one in directory.after(7)] == [8, 9, 10]
    directory.delete(next(directory.after(7)), 20)
    assert [one.id for one in directory.after(7)] == [9, 10]
    assert list(directory.after(10)) == []


def test_a_new_destination_is_held_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ChannelState()
    for id in range(1, 11):
        state.directory.create(id, KIND_QUEUE, f"queue:{id}", "{}")
    everything = Hold(
        name="backup", position=5, limit_ms=1_000, consumes=False, acks=False, heard=0, destinations=()
    )
    state.holds.hold(everything, (), 20)
    looked_at: list[str] = []
    hold_from = Queue.hold_from

    def looking(queue: Queue, position: int | None) -> None:
        looked_at.append(queue.name)
        hold_from(queue, position)

    monkeypatch.setattr(Queue, "hold_from", looking)
    made = state.directory.create(21, KIND_QUEUE, "queue:new", "{}")
    state.holds.destination_made(made)
    assert (looked_at, made.held_from) == (["queue:new"], 5)
    looked_at.clear()
    state.directory.delete(made, 22)
    state.holds.destination_deleted(made.id, 22)
    assert looked_at == []


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_topic_takes_little_memory(is_restored: bool) -> None:
    def make() -> ChannelState:
        state = ChannelState()
        for id in range(1, TOPICS + 1):
            state.directory.create(id, KIND_TOPIC, f"topic:prices.EU.{id:06d}.close", "{}")
        return state

    # Whatever is made once for all topics is there before.
    _, data = make().capture()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        state = ChannelState.restore(data) if is_restored else make()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state.directory) == TOPICS
    assert (after - before) / TOPICS < BYTES_PER_TOPIC_MAX
