"""How a topic keeps time and space: the steps that the property tests do not single out."""

from __future__ import annotations

import pytest

from antiphon.bus.ports import Location
from antiphon.message_manager.state.destinations import topic as module
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.destinations.subscription import NOT_COUNTED, Subscription
from antiphon.message_manager.state.destinations.topic import MARKS_MAX, Mark, Topic
from antiphon.ranges import Ranges

HOUR_MS = 3_600_000
EACH = 100


def make(settings: str = '{"retention":3600,"retention_bytes":1000000}') -> Topic:
    return Topic(id=1, name="topic:prices", settings=settings, use=SegmentUse())


def publish(topic: Topic, first: int, count: int = 1) -> None:
    topic.publish(first, count, 0, Location(1, first, 500, 7), 0, EACH * count, bytes(16))


def subscribe(topic: Topic, id: int, floor: int = 0) -> Subscription:
    subscription = Subscription(id=id, topic=topic, subscriber="", client_id="", floor=floor)
    topic.subscribe(subscription)
    return subscription


# -- age --------------------------------------------------------------------------------------------


def test_a_message_is_kept_for_the_whole_of_its_retention() -> None:
    """Its age counts from the first time the channel told after it came."""
    topic = make()
    publish(topic, 10)
    topic.time_passed(1_000)
    publish(topic, 11)
    topic.time_passed(2_000)
    topic.time_passed(999 + HOUR_MS)
    assert topic.live == Ranges([(10, 12)])
    topic.time_passed(1_000 + HOUR_MS)
    assert topic.live == Ranges([(11, 12)])
    topic.time_passed(2_000 + HOUR_MS)
    assert not topic.live
    assert (topic.published, topic.trimmed, topic.bytes, topic.fresh_bytes) == (2, 2, 0, 0)


def test_time_says_when_it_is_wanted() -> None:
    topic = make()
    assert topic.due_ms() is None
    publish(topic, 10)
    assert topic.due_ms() == 0, "nobody knows how old it is before time is told"
    topic.time_passed(1_000)
    assert topic.due_ms() == 1_000 + HOUR_MS
    publish(topic, 11)
    assert topic.due_ms() == 0
    topic.time_passed(5_000)
    assert topic.due_ms() == 1_000 + HOUR_MS
    topic.time_passed(1_000 + HOUR_MS)
    assert topic.due_ms() == 5_000 + HOUR_MS
    topic.time_passed(5_000 + HOUR_MS)
    assert topic.due_ms() is None


def test_what_is_kept_only_because_it_is_needed_wants_no_time() -> None:
    topic = make()
    subscribe(topic, 2)
    publish(topic, 10)
    topic.time_passed(0)
    topic.time_passed(HOUR_MS)
    assert topic.live.count == 1
    assert topic.due_ms() is None


def test_time_goes_by_the_newest_bytes_once_the_older_ones_are_too_many() -> None:
    topic = make(f'{{"retention":3600,"retention_bytes":{EACH}}}')
    publish(topic, 10)
    topic.time_passed(1_000)
    publish(topic, 11)
    topic.time_passed(9_000)
    assert topic.due_ms() == 9_000 + HOUR_MS


def test_an_hour_of_steady_traffic_takes_a_bounded_number_of_marks() -> None:
    topic = make()
    number = 10
    for second in range(3 * 3_600):
        publish(topic, number)
        topic.time_passed(second * 1_000)
        number += 2
        assert len(topic.marks) <= 2 * MARKS_MAX + 2
    kept_s = topic.live.count
    assert 3_600 <= kept_s <= 3_600 + 2 * 3_600 / MARKS_MAX + 1
    assert [mark.time_ms for mark in topic.marks] == sorted(mark.time_ms for mark in topic.marks)


def test_messages_before_a_pause_are_marked_when_it_begins() -> None:
    """However soon after the last mark: otherwise they would wait for traffic to become old."""
    topic = make()
    for number in range(10, 20):
        publish(topic, number)
        topic.time_passed(number)
    assert topic.marks[-1] == Mark(19, 19)
    topic.time_passed(19 + HOUR_MS)
    assert not topic.live


# -- bytes --------------------------------------------------------------------------------------------


def test_of_a_batch_that_is_too_large_the_last_messages_are_kept() -> None:
    topic = make(f'{{"retention":3600,"retention_bytes":{3 * EACH}}}')
    publish(topic, 10, count=10)
    assert topic.live == Ranges([(17, 20)])
    assert topic.bytes == topic.fresh_bytes == 3 * EACH
    publish(topic, 30, count=2)
    assert topic.live == Ranges([(19, 20), (30, 32)])


def test_what_a_subscriber_has_not_had_stays_beyond_the_bytes() -> None:
    topic = make(f'{{"retention":3600,"retention_bytes":{2 * EACH}}}')
    slow = subscribe(topic, 2)
    publish(topic, 10, count=10)
    assert topic.live.count == 10
    assert topic.fresh_bytes == 2 * EACH
    slow.acknowledge(Ranges([(10, 15), (16, 18)]))
    assert topic.live == Ranges([(15, 16), (18, 20)]), "what it left behind, and the last two"
    topic.unsubscribe(slow)
    assert topic.live == Ranges([(18, 20)])


def test_with_very_many_ranges_trimming_waits_until_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES_FEW", 100)
    topic = make(f'{{"retention":3600,"retention_bytes":{640 * EACH}}}')
    for number in range(1_000, 3_000, 2):
        before = topic.live.count
        publish(topic, number)
        assert topic.live.count in (before + 1, 640), "either nothing goes, or all that is too much"
        assert topic.live.count <= 640 + 640 // 63 + 1
    assert topic.published == 1_000


def test_nothing_is_kept_for_its_own_sake_if_that_is_asked_for() -> None:
    topic = make('{"retention":"consumed","retention_bytes":1000000}')
    publish(topic, 10)
    assert (topic.live.count, topic.trimmed) == (0, 1)
    one, other = subscribe(topic, 11, floor=11), subscribe(topic, 12, floor=12)
    publish(topic, 13, count=3)
    one.acknowledge(Ranges([(13, 15)]))
    assert topic.live.count == 3
    other.acknowledge(Ranges([(13, 14)]))
    assert topic.live == Ranges([(14, 16)])
    assert topic.due_ms() is None


# -- subscriptions ------------------------------------------------------------------------------------


def test_the_messages_are_stored_once_however_many_need_them() -> None:
    topic = make()
    for id in range(2, 30):
        subscribe(topic, id)
    publish(topic, 100, count=5)
    assert len(topic.index) == 1
    assert topic.bytes == 5 * EACH
    assert topic.index._use.by_segment() == {1: 5 * EACH}


def test_a_cursor_that_is_up_to_date_is_one_number() -> None:
    topic = make()
    subscription = subscribe(topic, 2)
    for number in range(10, 1_000, 3):
        publish(topic, number, count=2)
        subscription.acknowledge(Ranges([(number, number + 2)]))
        assert (subscription.floor, len(subscription.done)) == (number + 1, 0)


def test_a_start_in_the_future_waits_for_its_number() -> None:
    topic = make()
    subscription = subscribe(topic, 2, floor=19)
    publish(topic, 10, count=15)
    assert list(subscription.needs(topic.live)) == [(20, 25)]
    assert subscription.pending(0, 100) == (Ranges([(20, 25)]), None)
    assert subscription.floor == 19


def test_a_backlog_is_known_without_looking_at_what_is_kept() -> None:
    topic = make()
    publish(topic, 10, count=5)
    earliest, latest, future = (subscribe(topic, id, floor) for id, floor in ((20, 0), (21, 21), (22, 40)))
    publish(topic, 30, count=5)
    earliest.acknowledge(Ranges([(10, 12), (31, 32)]))
    assert [s.settled for s in (earliest, latest, future)] == [3, 5, NOT_COUNTED]
    assert [s.backlog for s in (earliest, latest, future)] == [7, 5, 0]
    publish(topic, 40, count=2)
    assert [s.backlog for s in (earliest, latest, future)] == [9, 7, 1]


def test_what_was_acknowledged_is_not_accepted_again() -> None:
    topic = make()
    subscription = subscribe(topic, 2)
    publish(topic, 10, count=10)
    assert subscription.acknowledge(Ranges([(14, 16)])).count == 2
    assert not subscription.acknowledge(Ranges([(14, 16)]))
    assert subscription.acknowledge(Ranges([(13, 17)])) == Ranges([(13, 14), (16, 17)])
    assert not subscription.acknowledge(Ranges([(1, 10), (20, 30)]))
    assert topic.acknowledged == 4
