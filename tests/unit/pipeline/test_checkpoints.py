"""Checkpoints: a run that goes on where another one was, with other destinations or elsewhere."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from antiphon.errors import OtherCluster, RangeLost
from antiphon.pipeline.offsets import Offset, parse_offset
from antiphon.pipeline.planning import NO_LIMIT, Limit, Planner
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.test_planning import numbers, plan


class Query:
    """A query over its runs, with a checkpoint as Spark keeps it: offsets as text."""

    def __init__(self, broker: Broker, **options: str) -> None:
        self.broker = broker
        self.planner = plan(broker, **options)
        self.offsets = [json.dumps(self.planner.initial("earliest").as_json())]
        self.read: list[int] = []

    def restart(self, **options: str) -> None:
        self.planner = plan(self.broker, **options)

    def at(self, batch: int) -> Offset:
        return parse_offset(json.loads(self.offsets[batch]))

    def plan_batch(self, limit: Limit = NO_LIMIT) -> bool:
        """Write down how far the next batch goes; False if there is none."""
        end = json.dumps(self.planner.latest(self.at(-1), limit).as_json())
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def read_batch(self) -> list[int]:
        return numbers(self.broker, self.planner.spans(self.at(-2), self.at(-1)))

    def run(self, limit: Limit = NO_LIMIT) -> list[list[int]]:
        """All batches until there is nothing new."""
        batches = []
        while self.plan_batch(limit):
            batches.append(self.read_batch())
            self.read += batches[-1]
        return batches


def two_topics() -> Broker:
    """On channel a in turn: X has 3 to 12 and 23 to 32, Y 13 to 22 and 33 to 42."""
    broker = Broker()
    broker.create("topic:X")
    broker.create("topic:Y")
    for _ in range(2):
        broker.publish("topic:X", 10)
        broker.publish("topic:Y", 10)
    return broker


Y_ROWS = [*range(13, 23), *range(33, 43)]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"subscribe": "topic:X"}, {"subscribe": "topic:X,topic:Y"}),
        ({"subscribe": "topic:X"}, {"subscribePattern": "topic:.*"}),
        ({"subscribePattern": "topic:X.*"}, {"subscribePattern": "topic:*", "match": "glob"}),
    ],
    ids=["by name", "by a pattern instead", "by another pattern"],
)
def test_a_topic_added_to_a_checkpoint_on_the_same_channel_was_skipped(
    first: dict[str, str], then: dict[str, str]
) -> None:
    broker = two_topics()
    query = Query(broker, **first)
    query.run()
    assert query.read == [*range(3, 13), *range(23, 33)]
    query.restart(**then)
    query.read.clear()
    query.run()
    assert query.read == Y_ROWS
    # And from then on as if it had always been there.
    more = [*broker.publish("topic:Y", 2), *broker.publish("topic:X", 2)]
    query.read.clear()
    query.run()
    assert query.read == more
    assert "behind" not in json.loads(query.offsets[-1])


def test_a_topic_that_was_added_is_read_once_however_small_the_batches_are() -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X")
    query.run()
    query.restart(subscribe="topic:X,topic:Y")
    query.read.clear()
    limit = Limit(rows=3)
    more: list[int] = []
    while query.plan_batch(limit):
        rows = query.read_batch()
        assert len(rows) <= 4  # each of two gets on by a row at least
        query.read += rows
        if len(more) < 30:
            more += [*broker.publish("topic:X", 1), *broker.publish("topic:Y", 1)]
        # Killed and started again: the same batch has the same rows.
        query.restart(subscribe="topic:X,topic:Y")
        assert query.read_batch() == rows
    assert sorted(query.read) == [*Y_ROWS, *more]
    assert len(set(query.read)) == len(query.read)


def test_what_is_behind_stands_in_the_offset_until_it_has_caught_up() -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X")
    query.run()
    query.restart(subscribe="topic:X,topic:Y")
    query.plan_batch()
    assert query.at(-1) == Offset({"a": 33}, behind={"topic:Y": 13})
    assert query.read_batch() == []
    query.plan_batch(Limit(rows=4))
    # Rows are shared by what waits: Y has ten below number 33, and ten above.
    assert query.at(-1).behind == {"topic:Y": 17}
    query.plan_batch()
    assert query.at(-1) == Offset({"a": 43})


def test_a_batch_that_was_planned_without_the_new_topic_is_read_again_without_it() -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X")
    query.plan_batch()  # and killed
    query.restart(subscribe="topic:Y,topic:X")
    assert query.read_batch() == [*range(3, 13), *range(23, 33)]
    query.run()
    assert query.read == Y_ROWS


def test_a_batch_of_a_topic_that_is_no_longer_subscribed_is_read_again_unless_it_is_gone() -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X,topic:Y")
    query.plan_batch()
    query.restart(subscribe="topic:X")
    assert query.read_batch() == [*range(3, 43)]
    broker.delete("topic:Y")
    query.restart(subscribe="topic:X")
    assert query.read_batch() == [*range(3, 13), *range(23, 33)]


def test_a_query_that_changes_over_to_another_topic_of_the_channel_reads_all_of_it() -> None:
    query = Query(two_topics(), subscribe="topic:X")
    query.run()
    query.restart(subscribe="topic:Y")
    query.read.clear()
    query.run()
    assert query.read == Y_ROWS


def test_a_topic_added_on_another_channel_is_read_from_its_earliest_and_had_no_loss() -> None:
    broker = Broker("a", "b")
    broker.create("topic:X")
    broker.create("topic:Z", "b")
    broker.publish("topic:X", 3)
    broker.publish("topic:Z", 5)  # 2 to 6
    broker.trim("topic:Z", 3)
    query = Query(broker, subscribe="topic:X")
    query.run()
    query.restart(subscribe="topic:X,topic:Z")
    query.read.clear()
    query.run()
    assert query.read == [4, 5, 6]
    broker.publish("topic:Z", 3)
    broker.trim("topic:Z", 8)
    with pytest.raises(RangeLost, match="numbers 7 to 8"):
        query.run()


def test_what_a_new_topic_had_lost_before_is_no_loss_and_what_it_loses_later_is() -> None:
    broker = two_topics()
    broker.trim("topic:Y", 15)
    query = Query(broker, subscribe="topic:X")
    query.run()
    query.restart(subscribe="topic:X,topic:Y")
    query.plan_batch()
    assert query.at(-1).behind == {"topic:Y": 16}
    broker.trim("topic:Y", 17)
    with pytest.raises(RangeLost, match="numbers 16 to 17"):
        query.plan_batch()


def test_a_topic_that_a_pattern_finds_later_is_read_from_its_first_message_on() -> None:
    broker = Broker()
    broker.create("topic:X")
    query = Query(broker, subscribePattern="topic:.*")
    query.run()
    broker.create("topic:Y")
    made = broker.publish("topic:Y", 4)
    query.restart(subscribePattern="topic:.*")
    query.run()
    assert query.read == [*made]


def test_two_hundred_rows_of_another_cluster_were_read_with_a_foreign_checkpoint() -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X")
    query.run()
    other = two_topics()
    other.id = "c2"
    other.publish("topic:X", 200)
    query.broker = other
    query.restart(subscribe="topic:X")
    sentence = "the checkpoint belongs to cluster c1, and h:1 is cluster c2: give the query the servers"
    with pytest.raises(OtherCluster, match=sentence):
        query.plan_batch()
    with pytest.raises(OtherCluster, match=sentence):
        query.read_batch()
    given = json.dumps(query.at(-1).as_json())
    with pytest.raises(OtherCluster, match="startingOffsets belongs to cluster c1"):
        plan(other, subscribe="topic:X", startingOffsets=given).initial("earliest")


def test_a_checkpoint_of_version_1_goes_on_with_a_warning(caplog: Any) -> None:
    broker = two_topics()
    query = Query(broker, subscribe="topic:X")
    query.offsets = ['{"v": 1, "channels": {"a": 13}}']
    with caplog.at_level(logging.WARNING):
        query.run()
    assert query.read == [*range(23, 33)]
    (said,) = caplog.records
    assert "what is subscribed now is taken for that" in said.getMessage()
    assert json.loads(query.offsets[-1]) == {
        "v": 2, "cluster": "c1", "channels": {"a": 33}, "subscribed": "topic:X",
    }  # fmt: skip


def test_an_offset_taken_from_a_checkpoint_reads_what_that_query_would(caplog: Any) -> None:
    query = Query(two_topics(), subscribe="topic:X")
    query.run()
    given = query.offsets[-1]
    both = "topic:X,topic:Y"
    planner: Planner = plan(query.broker, subscribe=both, startingOffsets=given)
    start = planner.initial("earliest")
    assert numbers(query.broker, planner.spans(start, planner.end(start))) == Y_ROWS
    # Up to where a query is that has not caught up.
    query.restart(subscribe=both)
    query.plan_batch()
    query.plan_batch(Limit(rows=4))
    planner = plan(query.broker, subscribe=both, endingOffsets=query.offsets[-1])
    start = planner.initial("earliest")
    done = numbers(query.broker, planner.spans(start, planner.end(start)))
    assert sorted(done) == sorted([*range(3, 13), *range(23, 33), *range(13, 17)])
