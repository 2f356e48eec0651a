"""Planning: where a query starts, how far it goes, in which parts; and when it says what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import DestinationError, InvalidOption, RangeLost, RangeUnavailable
from antiphon.pipeline.filters import Narrowed
from antiphon.pipeline.offsets import Offset
from antiphon.pipeline.options import SourceOptions
from antiphon.pipeline.patience import PatientRanges, RetryPolicy
from antiphon.pipeline.planning import POLL_S, Limit, Planner, TaskSpan
from antiphon.pipeline.reading import read_span
from tests.unit.pipeline.broker import ROW_BYTES, Broker


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_sleep()


def plan(broker: Broker, clock: Clock | None = None, **options: str) -> Planner:
    clock = clock or Clock()
    if "subscribe" not in options and "subscribePattern" not in options:
        options["subscribe"] = "topic:orders"
    parsed = SourceOptions.parse({"servers": "h:1", **options})
    connection = parsed.connection
    patience = RetryPolicy(connection.timeout_s, connection.retry_s, now_s=clock.now, sleep=clock.sleep)
    ranges = PatientRanges(broker.reached, patience, waits_at_first=False)
    return Planner(ranges, parsed, now_s=clock.now, sleep=clock.sleep)


def orders() -> Broker:
    broker = Broker()
    broker.create("topic:orders")
    return broker


def numbers(broker: Broker, spans: list[TaskSpan]) -> list[int]:
    """What tasks would read."""
    found: list[int] = []
    for span in spans:
        for batch in read_span(broker, span):  # type: ignore[arg-type]
            found += batch.column("sequence").to_pylist()
    return found


# -- spanning destinations -----------------------------------------------------------------


def spanning() -> Broker:
    broker = Broker("a", "b")
    for channel in "ab":
        broker.create("topic:other", channel, is_part=True)
        broker.publish(f"{channel}/topic:other", 10)
        broker.create("topic:orders", channel, is_part=True)
    return broker


def test_the_parts_of_a_spanning_topic_are_read_up_to_a_number_for_each_channel() -> None:
    broker = spanning()
    planner = plan(broker)
    start = planner.initial("earliest")
    wanted = sorted([*broker.publish("a/topic:orders", 5), *broker.publish("b/topic:orders", 7)])
    end = planner.latest(start)
    assert end == Offset({"a": 18, "b": 20})
    assert sorted(numbers(broker, planner.spans(start, end))) == wanted
    # A third part of the rows at a time: each channel gets on, and nothing is missed.
    found: list[int] = []
    while start != end:
        step = planner.latest(start, Limit(rows=4))
        found += numbers(broker, planner.spans(start, step))
        start = step
    assert sorted(found) == wanted


def test_parts_that_are_new_to_a_query_catch_up_each_by_itself() -> None:
    broker = spanning()
    wanted = sorted([*broker.publish("a/topic:orders", 5), *broker.publish("b/topic:orders", 7)])
    for channel in "ab":
        broker.publish(f"{channel}/topic:other", 3)
    former = plan(broker, subscribe="topic:other")
    stood = former.latest(former.initial("latest"))
    both = plan(broker, subscribe="topic:other,topic:orders")
    start = both.latest(stood)
    assert start.behind == {"a/topic:orders": 13, "b/topic:orders": 13}
    found: list[int] = []
    while start != (end := both.latest(start, Limit(rows=4))):
        found += numbers(broker, both.spans(start, end))
        start = end
    assert sorted(found) == wanted
    assert start.behind == {}


def test_a_loss_of_one_part_is_told_of_that_part_and_no_loss_to_who_begins_behind_it() -> None:
    broker = spanning()
    for channel in "ab":
        broker.publish(f"{channel}/topic:orders", 5)
    broker.trim("b/topic:orders", 15)
    planner = plan(broker)
    start = planner.initial("earliest")
    assert start == Offset({"a": 13, "b": 16})
    two = plan(broker, subscribe="topic:other,topic:orders")
    assert two.initial("earliest").since == {"b/topic:orders": 16}
    with pytest.raises(
        RangeLost, match="messages of topic:orders are not kept any more: numbers 13 to 15 of b"
    ):
        planner.latest(Offset({"a": 13, "b": 13}, subscribed="topic:orders", cluster="c1"))


# -- where it starts -----------------------------------------------------------------------


def test_a_stream_begins_behind_what_is_there_and_a_batch_at_the_first_that_is_kept() -> None:
    broker = orders()
    broker.publish("topic:orders", 5)  # 2 to 6
    assert plan(broker).initial("latest") == Offset({"a": 7})
    assert plan(broker).initial("earliest") == Offset({"a": 2})
    assert plan(broker, startingOffsets="earliest").initial("latest") == Offset({"a": 2})


def test_a_stream_does_not_move_when_only_others_are_written_to() -> None:
    broker = orders()
    broker.create("topic:other")
    broker.publish("topic:orders", 2)
    planner = plan(broker)
    start = planner.initial("latest")
    broker.publish("topic:other", 100)
    assert planner.latest(start) == start


def test_numbers_that_the_user_wrote_down_are_taken() -> None:
    broker = orders()
    broker.publish("topic:orders", 5)
    assert plan(broker, startingOffsets='{"v":1,"channels":{"a":4}}').initial("latest") == Offset({"a": 4})
    assert plan(broker, startingOffsets='{"v":1,"channels":{"a":-2}}').initial("latest") == Offset({"a": 2})
    assert plan(broker, startingOffsets='{"v":1,"channels":{"a":-1}}').initial("latest") == Offset({"a": 7})


def test_numbers_are_wanted_for_exactly_the_channels_that_are_read() -> None:
    broker = Broker("a", "b")
    broker.create("topic:orders", "a")
    with pytest.raises(InvalidOption, match="no number for channel a, where topic:orders lives"):
        plan(broker, startingOffsets='{"v":1,"channels":{"b":1}}').initial("latest")
    with pytest.raises(InvalidOption, match="names channel b, on which nothing"):
        plan(broker, startingOffsets='{"v":1,"channels":{"a":1,"b":1}}').initial("latest")


def test_a_start_by_time_is_the_number_behind_the_last_mark_before_it() -> None:
    broker = orders()
    broker.publish("topic:orders", 2)  # 2, 3
    broker.mark("a", 1_000)  # 4
    broker.publish("topic:orders", 2)  # 5, 6
    broker.mark("a", 2_000)  # 7
    broker.publish("topic:orders", 1)  # 8
    early = plan(broker, startingTimestamp="1500", endingTimestamp="2500")
    start = early.initial("earliest")
    assert start == Offset({"a": 5})
    assert early.end(start) == Offset({"a": 8})
    # Where one read ends the next begins.
    assert plan(broker, startingTimestamp="2500").initial("earliest") == early.end(start)


def test_an_unknown_destination_is_named() -> None:
    with pytest.raises(DestinationError, match="there is no topic:odrers"):
        plan(orders(), subscribe="topic:orders,topic:odrers").initial("latest")


def test_a_start_behind_the_end_of_the_channel_is_another_cluster() -> None:
    broker = orders()
    with pytest.raises(
        RangeUnavailable, match="number 5000 of channel a, which ends at 1: this is another cluster"
    ):
        plan(broker).latest(Offset({"a": 5000}))
    with pytest.raises(RangeUnavailable):
        plan(broker, startingOffsets='{"v":1,"channels":{"a":5000}}').initial("latest")
    with pytest.raises(RangeUnavailable):
        plan(broker).spans(Offset({"a": 5000}), Offset({"a": 5001}))


def test_a_replica_that_only_lags_is_given_time() -> None:
    broker = orders()
    clock = Clock()
    clock.on_sleep = lambda: broker.publish("topic:orders", 10) and None  # type: ignore[func-returns-value]
    assert plan(broker, clock).latest(Offset({"a": 15})).next("a") >= 15


# -- how far it goes -----------------------------------------------------------------------


def test_the_end_is_the_end_of_the_channels() -> None:
    broker = Broker("a", "b")
    broker.create("topic:x", "a")
    broker.create("topic:y", "b")
    planner = plan(broker, subscribe="topic:x,topic:y")
    start = planner.initial("latest")
    broker.publish("topic:x", 3)
    end = planner.latest(start)
    assert end == Offset({"a": 5, "b": 1})
    assert planner.newest() == end


def test_rows_are_shared_among_channels_by_what_waits_there_and_each_gets_on() -> None:
    broker = Broker("a", "b", "c")
    for name, channel, count in (("topic:x", "a", 900), ("topic:y", "b", 99), ("topic:z", "c", 1)):
        broker.create(name, channel)
        broker.publish(name, count)
    planner = plan(broker, subscribe="topic:x,topic:y,topic:z")
    start = planner.initial("earliest")
    end = planner.latest(start, Limit(rows=100))
    assert {channel: end.next(channel) - start.next(channel) for channel in "abc"} == {
        "a": 90,
        "b": 9,
        "c": 1,
    }


def test_bytes_are_limited_and_both_limits_hold() -> None:
    broker = orders()
    broker.publish("topic:orders", 100)
    planner = plan(broker)
    start = planner.initial("earliest")
    assert planner.latest(start, Limit(bytes=10 * ROW_BYTES)).next("a") == start.next("a") + 10
    assert planner.latest(start, Limit(rows=20, bytes=10 * ROW_BYTES)).next("a") == start.next("a") + 10
    assert planner.latest(start, Limit(rows=5, bytes=10 * ROW_BYTES)).next("a") == start.next("a") + 5
    assert planner.latest(start, Limit(bytes=1)).next("a") == start.next("a") + 1


def test_limited_batches_come_to_the_end_and_miss_nothing() -> None:
    broker = orders()
    broker.create("topic:other")
    wanted = []
    for _ in range(7):
        wanted += broker.publish("topic:orders", 13)
        broker.publish("topic:other", 5)
    planner = plan(broker)
    offset, seen = planner.initial("earliest"), []
    while (end := planner.latest(offset, Limit(rows=10))) != offset:
        got = numbers(broker, planner.spans(offset, end))
        assert len(got) <= 10
        seen += got
        offset = end
    assert seen == wanted


def test_available_now_ends_although_producers_go_on() -> None:
    broker = Broker("a", "b")
    broker.create("topic:x", "a")
    wanted = list(broker.publish("topic:x", 25))
    planner = plan(broker, subscribePattern="topic:.*")
    planner.cap()
    offset, seen = planner.initial("earliest"), []
    while (end := planner.latest(offset, Limit(rows=10))) != offset:
        broker.publish("topic:x", 10)
        if "topic:y" not in broker.names:
            broker.create("topic:y", "b")
        broker.publish("topic:y", 10)
        seen += numbers(broker, planner.spans(offset, end))
        offset = end
    assert seen == wanted


# -- patterns ------------------------------------------------------------------------------


def test_a_destination_that_comes_later_is_read_from_its_first_message() -> None:
    broker = Broker("a", "b")
    broker.create("topic:o.1", "a")
    planner = plan(broker, subscribePattern="topic:o.*", match="glob")
    start = planner.initial("latest")
    broker.create("topic:o.2", "a")
    on_a = broker.publish("topic:o.2", 2)
    broker.create("topic:o.3", "b")
    on_b = broker.publish("topic:o.3", 2)
    end = planner.latest(start)
    assert end == Offset({"a": on_a[-1] + 1, "b": on_b[-1] + 1})
    assert sorted(numbers(broker, planner.spans(start, end))) == sorted([*on_a, *on_b])
    # Planned again by another life, with more destinations by now.
    broker.create("topic:o.4", "a")
    broker.publish("topic:o.4", 1)
    again = plan(broker, subscribePattern="topic:o.*", match="glob")
    assert sorted(numbers(broker, again.spans(start, end))) == sorted([*on_a, *on_b])


def test_a_pattern_may_match_nothing_for_a_while_and_does_not_ask_all_the_time() -> None:
    broker = Broker("a")
    clock = Clock()
    planner = plan(broker, clock, subscribePattern="topic:o.*")
    start = planner.initial("latest")
    assert start == Offset({})
    assert planner.latest(start) == start
    assert clock.now_s >= POLL_S or broker.waits[-1] >= POLL_S
    broker.create("topic:o")
    broker.publish("topic:o", 1)
    assert planner.latest(start) == Offset({"a": 3})


def test_a_deleted_destination_ends_who_named_it_and_not_who_matched_it() -> None:
    broker = Broker("a")
    broker.create("topic:o.1")
    broker.create("topic:o.2")
    named = plan(broker, subscribe="topic:o.1,topic:o.2")
    matched = plan(broker, subscribePattern="topic:o.*")
    start, matched_start = named.initial("latest"), matched.initial("latest")
    assert matched_start == start
    broker.delete("topic:o.1")
    new = broker.publish("topic:o.2", 1)
    with pytest.raises(DestinationError, match=r"topic:o\.1 was deleted"):
        named.latest(start)
    assert matched.latest(matched_start) == Offset({"a": new[-1] + 1})


# -- loss ----------------------------------------------------------------------------------


def test_a_loss_is_told_with_its_numbers_on_the_driver() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)  # 2 to 11
    planner = plan(broker)
    broker.trim("topic:orders", 6)
    with pytest.raises(RangeLost) as lost:
        planner.latest(Offset({"a": 4}))
    assert (lost.value.destination, lost.value.channel) == ("topic:orders", "a")
    assert (lost.value.first, lost.value.last) == (4, 6)
    with pytest.raises(RangeLost):
        plan(broker).spans(Offset({"a": 6}), Offset({"a": 9}))


def test_what_was_read_before_it_went_is_no_loss() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    broker.trim("topic:orders", 6)
    assert plan(broker).latest(Offset({"a": 7})) == Offset({"a": 12})


def test_what_other_destinations_lose_is_no_loss() -> None:
    broker = orders()
    broker.create("topic:other")
    start = plan(broker).initial("latest")
    broker.publish("topic:other", 5)
    broker.publish("topic:orders", 5)
    broker.publish("topic:other", 5)
    broker.trim("topic:other", 100)
    assert plan(broker).latest(start) == Offset({"a": 13})


def test_a_loss_during_the_read_is_told_on_the_executor() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    planner = plan(broker)
    start = planner.initial("earliest")
    spans = planner.spans(start, planner.latest(start))
    broker.trim("topic:orders", 4)
    with pytest.raises(RangeLost):
        numbers(broker, spans)


def test_without_fail_on_data_loss_it_goes_on_and_counts_what_it_skipped(caplog: Any) -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    planner = plan(broker, failOnDataLoss="false")
    broker.trim("topic:orders", 6)
    start = Offset({"a": 4}, cluster="c1", subscribed="topic:orders")
    with caplog.at_level(logging.WARNING):
        end = planner.latest(start)
        planner.latest(start)
        assert numbers(broker, planner.spans(start, end)) == [7, 8, 9, 10, 11]
    # Once, and not again by every task.
    assert [record.getMessage() for record in caplog.records] == [
        "messages of topic:orders are not kept any more and are skipped, since failOnDataLoss is false:"
        " numbers 4 to 6 of a, at most 3 messages, the last of them stored about 2023-11-14 22:13:20 UTC"
    ]


def test_a_loss_was_told_in_numbers_that_say_nothing_of_messages_or_time() -> None:
    broker = orders()
    broker.create("topic:other")
    broker.publish("topic:orders", 5)  # 3 to 7
    broker.publish("topic:other", 100)
    broker.publish("topic:orders", 5)  # 108 to 112
    planner = plan(broker)
    start = Offset({"a": 1}, cluster="c1", subscribed="topic:orders")
    broker.trim("topic:orders", 109)
    said = "numbers 1 to 109 of a, 7 messages, the last of them stored about 2023-11-14 22:13:20 UTC"
    with pytest.raises(RangeLost, match=said):
        planner.latest(start)
    # Of a query that has read some of them, it is not known which.
    with pytest.raises(RangeLost, match="numbers 5 to 109 of a, at most 7 messages"):
        planner.latest(Offset({"a": 5}, cluster="c1", subscribed="topic:orders"))


def test_a_loss_that_comes_after_planning_is_told_by_the_task(caplog: Any) -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    planner = plan(broker, failOnDataLoss="false")
    start = planner.initial("earliest")
    spans = planner.spans(start, planner.latest(start))
    broker.trim("topic:orders", 6)
    with caplog.at_level(logging.WARNING):
        assert numbers(broker, spans) == [*range(7, 12)]
    (record,) = caplog.records
    assert "numbers 2 to 6 of a" in record.getMessage()


def test_a_start_above_the_end_read_nothing_in_silence() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    planner = plan(broker, startingOffsets='{"channels": {"a": 9}}', endingOffsets='{"channels": {"a": 4}}')
    with pytest.raises(
        InvalidOption, match="startingOffsets is 9 for channel a, which lies behind endingOff"
    ):
        planner.end(planner.initial("earliest"))
    planner = plan(broker, startingOffsets='{"channels": {"a": 4}}', endingOffsets='{"channels": {"a": 4}}')
    assert planner.end(planner.initial("earliest")) == Offset({"a": 4})


def test_a_pattern_that_matches_nothing_yet_says_so(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        plan(orders(), subscribePattern="topic:eu.*").initial("latest")
    assert [one.getMessage() for one in caplog.records] == [
        "nothing matches subscribePattern 'topic:eu.*' yet"
    ]


def test_the_earliest_of_several_calls_no_loss_what_one_had_lost_before() -> None:
    broker = orders()
    broker.create("topic:short")
    broker.publish("topic:orders", 10)  # 3 to 12
    broker.publish("topic:short", 5)  # 13 to 17
    broker.trim("topic:short", 15)
    broker.trim("topic:orders", 4)
    planner = plan(broker, subscribe="topic:orders,topic:short")
    start = planner.initial("earliest")
    assert start == Offset({"a": 5}, {"topic:short": 16})
    end = planner.latest(start, Limit(rows=2))
    assert end == Offset({"a": 7}, {"topic:short": 16})
    assert numbers(broker, planner.spans(start, end)) == [5, 6]
    # Behind it the offset is the plain one again, and later losses are losses.
    last = planner.latest(end)
    assert last == Offset({"a": 18})
    broker.trim("topic:short", 16)
    with pytest.raises(RangeLost) as lost:
        plan(broker, subscribe="topic:orders,topic:short").spans(end, last)
    assert (lost.value.destination, lost.value.first, lost.value.last) == ("topic:short", 16, 16)


# -- parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_parts_are_about_even_and_together_the_whole(parts: int) -> None:
    broker = Broker("a", "b")
    broker.create("topic:x", "a")
    broker.create("topic:y", "b")
    wanted = [*broker.publish("topic:x", 70), *broker.publish("topic:y", 30)]
    planner = plan(broker, subscribe="topic:x,topic:y", minPartitions=str(parts))
    start = planner.initial("earliest")
    spans = planner.spans(start, planner.latest(start))
    assert len(spans) >= parts
    assert sorted(numbers(broker, spans)) == sorted(wanted)
    assert len({(span.channel, span.start) for span in spans}) == len(spans)


def test_many_small_rows_are_several_tasks_whatever_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.pipeline.planning.SPAN_ROWS", 30)
    broker = orders()
    wanted = broker.publish("topic:orders", 100)
    planner = plan(broker)
    start = planner.initial("earliest")
    spans = planner.spans(start, planner.latest(start))
    assert [span.stop - span.start for span in spans] == [25, 25, 25, 25]
    assert numbers(broker, spans) == [*wanted]


# -- filters -------------------------------------------------------------------------------


def test_filters_leave_out_numbers_destinations_and_channels() -> None:
    broker = Broker("a", "b")
    for name, channel in (("topic:x", "a"), ("topic:y", "a"), ("topic:z", "b")):
        broker.create(name, channel)
    published = {name: broker.publish(name, 10) for name in ("topic:x", "topic:y", "topic:z")}

    def left(narrowed: Narrowed) -> list[int]:
        broker.asked.clear()
        planner = plan(broker, subscribe="topic:x,topic:y,topic:z")
        start = planner.initial("earliest")
        return numbers(broker, planner.spans(*planner.narrow(start, planner.end(start), narrowed)))

    assert left(Narrowed(destinations=frozenset({"topic:y"}))) == [*published["topic:y"]]
    assert "read b" not in broker.asked
    assert left(Narrowed(channels=frozenset({"b"}))) == [*published["topic:z"]]
    assert left(Narrowed(first=5, stop=8)) == [5, 6, 7, 5, 6, 7]
    assert left(Narrowed(first=5, stop=8, prefixes=("topic:x",))) == [5, 6, 7]
    assert left(Narrowed(destinations=frozenset({"topic:other"}))) == []
    assert left(Narrowed(first=1_000)) == left(Narrowed(first=8, stop=5)) == []


def test_what_is_lost_below_a_filter_is_no_loss() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)  # 2 to 11
    planner = plan(broker, startingOffsets='{"v":1,"channels":{"a":2}}')
    start = planner.initial("earliest")
    broker.trim("topic:orders", 8)
    extent = planner.narrow(start, planner.end(start), Narrowed(first=9))
    assert numbers(broker, planner.spans(*extent)) == [9, 10, 11]


def test_nothing_between_start_and_end_is_no_part_and_no_question() -> None:
    broker = orders()
    planner = plan(broker)
    assert planner.spans(Offset({"a": 5}), Offset({"a": 5})) == []
    assert broker.asked == []


# -- questions -----------------------------------------------------------------------------


def test_an_idle_query_waits_at_the_broker_and_reports_from_memory() -> None:
    broker = Broker("a", "b", "c")
    for channel in broker.channels:
        broker.create(f"topic:{channel}", channel)
    planner = plan(broker, subscribePattern="topic:.*")
    start = planner.initial("latest")
    broker.asked.clear()
    for _ in range(10):
        planner.latest(start)
        planner.newest()
    # Three questions that wait for half a second, and two of them perhaps again: ten in a second at most.
    assert broker.waits[-10:] == [pytest.approx(5 * POLL_S)] * 10
    assert len(broker.asked) == 10 * 3


def test_a_busy_trigger_asks_once_to_plan() -> None:
    broker = orders()
    planner = plan(broker)
    offset = planner.initial("latest")
    broker.publish("topic:orders", 10)
    broker.asked.clear()
    end = planner.latest(offset)
    planner.spans(offset, end)
    assert broker.asked == ["head a"]


# -- holds ---------------------------------------------------------------------------------


def test_a_subscription_holds_from_the_start_and_moves_on_with_commits() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    planner = plan(broker, subscriptionName="nightly", subscriptionLimit="60")
    start = planner.initial("earliest")
    assert broker.held["nightly"] == ({"a": 2}, ("topic:orders",), 60.0, False)
    end = planner.latest(start, Limit(rows=4))
    broker.acknowledged.add(3)  # who only reads under a hold finds it all the same
    assert numbers(broker, planner.spans(start, end)) == [2, 3, 4, 5]
    planner.latest(end)
    # That Spark asks for more does not mean that it has written down what it has done.
    assert broker.asked.count("hold") == 1
    planner.commit(end)
    assert broker.held["nightly"][0] == {"a": 6}
    planner.stop()


def test_the_next_run_renews_the_hold_from_where_it_stands() -> None:
    broker = orders()
    broker.publish("topic:orders", 10)
    first = plan(broker, subscriptionName="nightly")
    start = first.initial("earliest")
    end = first.latest(start, Limit(rows=4))
    first.stop()
    broker.held.clear()
    again = plan(broker, subscriptionName="nightly")
    again.commit(start)
    assert broker.held["nightly"][0] == {"a": 2}
    again.spans(start, end)
    again.commit(end)
    assert broker.held["nightly"][0] == {"a": 6}
    again.stop()


def test_a_destination_that_comes_later_is_held_too() -> None:
    broker = orders()
    planner = plan(broker, subscribePattern="topic:.*", subscriptionName="nightly")
    start = planner.initial("latest")
    broker.create("topic:new")
    broker.publish("topic:new")
    planner.latest(start)
    assert broker.held["nightly"][1] == ("topic:new", "topic:orders")
    planner.stop()


def test_a_consuming_query_takes_the_queue_before_it_reads_and_starts_at_its_first_message() -> None:
    broker = Broker()
    broker.create("queue:work")
    broker.publish("queue:work", 3)
    planner = plan(broker, subscribe="queue:work", mode="consume", subscriptionName="spark")
    assert planner.initial("latest") == Offset({"a": 2})
    assert broker.held["spark"] == ({"a": 2}, ("queue:work",), 86_400.0, True)
    # What others have acknowledged may be kept for somebody else. It is not to be processed again.
    end = planner.latest(Offset({"a": 2}))
    (span,) = planner.spans(Offset({"a": 2}), end)
    assert span.is_live
    broker.acknowledged.add(3)
    assert numbers(broker, [span]) == [2, 4]
    planner.stop()


def test_a_hold_is_renewed_while_a_batch_takes_its_time() -> None:
    import threading

    broker = orders()
    renewed = threading.Event()
    planner = plan(broker, subscriptionName="nightly", subscriptionLimit="1")
    planner.initial("latest")
    hold = broker.hold

    def seen(*words: Any, **more: Any) -> None:
        hold(*words, **more)
        renewed.set()

    broker.hold = seen  # type: ignore[method-assign]
    assert renewed.wait(30)
    planner.stop()


@pytest.mark.parametrize("starting", ["earliest", "latest", "time"])
def test_what_went_before_the_first_hold_was_there_is_no_loss(starting: str) -> None:
    """A topic may lose messages all the time, also between two questions of ours."""
    broker = orders()
    broker.publish("topic:orders", 10)  # 2 to 11
    how = {"startingTimestamp": "1"} if starting == "time" else {"startingOffsets": starting}
    planner = plan(broker, subscriptionName="nightly", **how)
    hold = broker.hold

    def late(*words: Any, **more: Any) -> None:
        broker.publish("topic:orders", 10)  # 12 to 21
        broker.trim("topic:orders", 15)
        hold(*words, **more)

    broker.hold = late  # type: ignore[method-assign]
    start = planner.initial("latest")
    broker.hold = hold  # type: ignore[method-assign]
    end = planner.latest(start)
    assert numbers(broker, planner.spans(start, end)) == [*range(16, 22)]
    # From then on it would be one.
    broker.trim("topic:orders", 16)
    with pytest.raises(RangeLost):
        planner.latest(start)
    planner.stop()
