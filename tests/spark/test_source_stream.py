"""The source on a real Spark, as a stream: checkpoints, limits, losses, holds, and how often it asks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import antiphon.blocking
from tests.processes import Server
from tests.spark.messages import consume
from tests.spark.proxy import CountingProxy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection

SECONDS = 100.0


def send(connection: Connection, destination: str, bodies: list[Any]) -> list[int]:
    """Send, and tell the numbers that they got."""
    with connection.session() as session, session.producer(destination) as producer:
        return [receipt.sequence for receipt in producer.send_many(bodies)]


class Stream:
    """A query that writes down what every batch brought, over all its runs."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.options = options
        self.batches: dict[int, list[int]] = {}
        self.acknowledged: list[Any] = []

    def start(self, once: bool, **more: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("antiphon").options(**{**self.options, **more})
        writer = (
            reader.load()
            .writeStream.option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self._take)
        )
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _take(self, rows: DataFrame, batch: int) -> None:
        if "acknowledged" in rows.columns:
            self.acknowledged += [row.acknowledged for row in rows.collect() if row.acknowledged is not None]
            rows = rows.where("acknowledged IS NULL")
        self.batches[batch] = sorted(row.sequence for row in rows.select("sequence").collect())

    def run(self, **more: Any) -> StreamingQuery:
        """All that is available now."""
        query = self.start(once=True, **more)
        assert query.awaitTermination(int(SECONDS))
        return query

    @property
    def seen(self) -> list[int]:
        return [number for _, numbers in sorted(self.batches.items()) for number in numbers]

    def offsets(self, batch: int) -> list[Any]:
        """What the checkpoint holds for a batch, behind Spark's own two lines."""
        lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return [json.loads(line) for line in lines[2:]]


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s; {query.lastProgress}"
        assert query.exception() is None
        query.awaitTermination(1)


def test_limited_batches_in_several_runs_read_every_number_once(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic, other = name("topic"), name("topic")
    for one in (topic, other):
        connection.admin().create(one, retention=3600)
    numbers = []
    for _ in range(5):
        numbers += send(connection, topic, [b"x"] * 50)
        send(connection, other, [b"y"] * 10)
    stream = Stream(
        spark,
        tmp_path,
        servers=servers,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=100,
    )
    query = stream.run()
    assert [len(rows) for _, rows in sorted(stream.batches.items())] == [100, 100, 50]
    assert stream.seen == numbers
    (said,) = stream.offsets(0)
    with connection.ranges() as ranges:
        cluster = ranges.cluster()
    channels = {"a": said["channels"]["a"]}
    assert said == {"v": 2, "cluster": cluster, "channels": channels, "subscribed": topic}
    assert numbers[99] < said["channels"]["a"] <= numbers[100]
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"])["channels"]["a"] >= numbers[-1] + 1
    # Another run goes on where this one ended, in another number of parts.
    numbers += send(connection, topic, [b"z"] * 120)
    stream.run(minPartitions=3)
    assert stream.seen == numbers
    assert len(stream.batches) == 5


def test_available_now_ends_although_producers_go_on(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    later: list[int] = []

    class Pursued(Stream):
        """With every batch comes as much as it took away."""

        def _take(self, rows: DataFrame, batch: int) -> None:
            super()._take(rows, batch)
            later.extend(send(connection, topic, [b"later"] * 10))

    stream = Pursued(
        spark,
        tmp_path,
        servers=servers,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=10,
    )
    first = send(connection, topic, [b"first"] * 30)
    stream.run()
    assert stream.seen == first
    assert len(later) == 30
    # Nothing of what came meanwhile is forgotten.
    waiting = list(later)
    stream.run()
    assert stream.seen == first + waiting


def test_a_range_that_was_read_never_gains_rows(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    """A transaction that began before the read and is committed after it has later numbers."""
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    stream = Stream(spark, tmp_path, servers=servers, subscribe=topic, startingOffsets="earliest")
    with connection.session(transacted=True) as transaction, transaction.producer(topic) as producer:
        producer.send_many([b"held back"] * 5)
        first = send(connection, topic, [b"first"] * 5)
        stream.run()
        assert stream.seen == first
        transaction.commit()
    (end,) = stream.offsets(0)
    again = spark.read.format("antiphon").options(
        servers=servers, subscribe=topic, endingOffsets=json.dumps(end)
    )
    assert sorted(row.sequence for row in again.load().select("sequence").collect()) == first
    stream.run()
    rest = stream.seen[len(first) :]
    assert stream.seen[: len(first)] == first
    assert len(rest) == 5 and min(rest) >= end["channels"]["a"]


def test_a_micro_batch_is_limited_in_bytes(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    numbers = [number for _ in range(8) for number in send(connection, topic, [b"x" * 10_000])]
    stream = Stream(
        spark,
        tmp_path,
        servers=servers,
        subscribe=topic,
        startingOffsets="earliest",
        maxBytesPerTrigger=45_000,
    )
    stream.run()
    assert [len(rows) for _, rows in sorted(stream.batches.items())] == [4, 4]
    assert stream.seen == numbers


def test_a_stream_follows_and_finds_destinations_that_are_made_later(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    base = name("topic")
    connection.admin().create(f"{base}.1", retention=3600)
    send(connection, f"{base}.1", [b"before"])
    stream = Stream(spark, tmp_path, servers=servers, subscribePattern=f"{base}.*", match="glob")
    query = stream.start(once=False)
    try:
        wait_until(lambda: stream.checkpoint.joinpath("offsets", "0").exists(), query)
        numbers = send(connection, f"{base}.1", [b"x"] * 3)
        wait_until(lambda: stream.seen == numbers, query)
        connection.admin().create(f"{base}.2", retention=3600)
        numbers += send(connection, f"{base}.2", [b"y"] * 3)
        wait_until(lambda: stream.seen == numbers, query)
    finally:
        query.stop()


def test_a_loss_fails_the_query_with_its_numbers_or_is_skipped_and_counted(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic, other = name("topic"), name("topic")
    connection.admin().create(topic, retention=3600, retention_bytes=50_000)
    connection.admin().create(other, retention=3600, retention_bytes=50_000)
    stream = Stream(spark, tmp_path, servers=servers, subscribe=topic, startingOffsets="earliest")
    first = send(connection, topic, [b"x" * 100] * 10)
    stream.run()
    assert stream.seen == first
    # What another topic on the channel loses is nobody's business here.
    for _ in range(4):
        send(connection, other, [b"x" * 1000] * 30)
    quiet = send(connection, topic, [b"x" * 100] * 10)
    stream.run()
    assert stream.seen == first + quiet
    lost = []
    for _ in range(4):
        lost += send(connection, topic, [b"x" * 1000] * 30)
    with connection.ranges() as ranges:
        ((head,),) = (h.destinations for h in ranges.heads(ranges.destinations([topic])).values())
    assert lost[0] <= head.lost_through < lost[-1]
    with pytest.raises(Exception) as failed:
        stream.run()
    assert f"messages of {topic} are not kept any more" in str(failed.value)
    assert f"numbers {quiet[-1] + 1} to {head.lost_through}" in str(failed.value)
    stream.run(failOnDataLoss="false")
    kept = [number for number in lost if number > head.lost_through]
    assert kept
    assert stream.seen == first + quiet + kept


def test_forty_rows_of_a_topic_added_to_a_checkpoint_were_never_read(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    one, added = name("topic"), name("topic")
    for topic in (one, added):
        connection.admin().create(topic, retention=3600)
    retained = send(connection, added, [b"y"] * 40)
    numbers = send(connection, one, [b"x"] * 10)
    stream = Stream(spark, tmp_path, servers=servers, subscribe=one, startingOffsets="earliest")
    stream.run()
    assert stream.seen == numbers
    stream.run(subscribe=f"{one},{added}", maxOffsetsPerTrigger=30)
    assert stream.seen == numbers + retained
    more = send(connection, added, [b"y"]) + send(connection, one, [b"x"])
    stream.run(subscribe=f"{one},{added}")
    assert stream.seen == numbers + retained + more


def test_a_checkpoint_used_against_another_cluster_read_its_rows(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    stream = Stream(spark, tmp_path, servers=servers, subscribe=topic, startingOffsets="earliest")
    stream.run()
    with Server(tmp_path / "data") as other, antiphon.blocking.connect(other.url) as elsewhere:
        elsewhere.admin().create(topic, retention=3600)
        for _ in range(40):
            send(elsewhere, topic, [b"x"] * 50)
        address = other.url.removeprefix("antiphon://")
        with pytest.raises(Exception, match=f"the checkpoint belongs to cluster .* and {address} is cluster"):
            stream.run(servers=address)
    assert stream.seen == []
    beyond = {"startingOffsets": '{"channels": {"a": 999999999}}'}
    with pytest.raises(Exception, match=r"number 999999999 of channel a, which ends at [0-9]+"):
        Stream(spark, tmp_path / "beyond", servers=servers, subscribe=topic, **beyond).run()


def test_a_server_that_was_away_for_more_than_ten_seconds_ended_the_query(
    spark: SparkSession, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    with Server(tmp_path / "data") as server, antiphon.blocking.connect(server.url) as connection:
        connection.admin().create(topic, retention=3600)
        numbers = send(connection, topic, [b"x"] * 10)
        address = server.url.removeprefix("antiphon://")
    stream = Stream(spark, tmp_path, servers=address, subscribe=topic, startingOffsets="earliest")
    port = ["--port", address.rpartition(":")[2]]
    with Server(tmp_path / "data", *port):
        query = stream.start(once=False)
        wait_until(lambda: stream.seen == numbers, query)
    try:
        # The client library itself waits for ten seconds before it says that nobody answers.
        wait_until(lambda: "no answer for" in str(query.lastProgress), query)
        with Server(tmp_path / "data", *port) as server:
            with antiphon.blocking.connect(server.url) as connection:
                numbers += send(connection, topic, [b"x"] * 10)
            wait_until(lambda: stream.seen == numbers, query)
            assert "waiting" not in str(query.lastProgress)
            query.stop()
    finally:
        query.stop()


def test_an_idle_stream_asks_at_most_twenty_times_a_second(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    with CountingProxy(servers) as proxy:
        stream = Stream(spark, tmp_path, servers=proxy.address, subscribe=topic, subscriptionName=topic[-20:])
        query = stream.start(once=False)
        try:
            wait_until(lambda: stream.checkpoint.joinpath("offsets", "0").exists(), query)
            numbers = send(connection, topic, [b"x"])
            wait_until(lambda: stream.seen == numbers, query)
            before, began = proxy.said, time.monotonic()
            query.awaitTermination(4)
            rate = (proxy.said - before) / (time.monotonic() - began)
        finally:
            query.stop()
    assert 1 <= rate <= 20


def a_subscription(
    spark: SparkSession, connection: Connection, servers: str, topic: str, folder: Path, limit_s: int
) -> Stream:
    """A query that has run once, with a hold on a topic of which only what somebody needs is kept."""
    connection.admin().create(topic, retention="consumed")
    options = {"subscribe": topic, "subscriptionName": topic[-20:], "subscriptionLimit": limit_s}
    stream = Stream(spark, folder, servers=servers, **options)
    stream.run()
    return stream


def test_a_subscription_keeps_what_the_query_has_not_read(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    stream = a_subscription(spark, connection, servers, topic, tmp_path, limit_s=600)
    with connection.ranges() as ranges:
        assert stream.options["subscriptionName"] in [hold.name for hold in ranges.holds()]
    # Nobody else needs these; without the hold they would be gone at once.
    numbers = send(connection, topic, [b"x"] * 10)
    stream.run()
    assert stream.seen == numbers


def test_a_query_that_is_gone_for_good_holds_nothing_after_its_limit(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    stream = a_subscription(spark, connection, servers, topic, tmp_path, limit_s=1)
    deadline = time.monotonic() + SECONDS
    with connection.ranges() as ranges:
        while stream.options["subscriptionName"] in [hold.name for hold in ranges.holds()]:
            assert time.monotonic() < deadline
            # Time passes for a channel when something happens on it.
            send(connection, topic, [b"x"])
    with pytest.raises(Exception, match="are not kept any more"):
        stream.run()


def test_a_consuming_query_takes_a_queue_and_acknowledges_what_it_committed(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    queue = name("queue")
    numbers = send(connection, queue, [b"%d" % n for n in range(10)])
    stream = Stream(
        spark,
        tmp_path,
        servers=servers,
        subscribe=queue,
        mode="consume",
        subscriptionName=queue[-20:],
        maxOffsetsPerTrigger=4,
    )
    stream.run()
    assert stream.seen == numbers
    assert consume(connection, queue) == []
    with connection.session() as session:
        stored = [message.sequence for message in session.browse(queue)]
    # The last batch is acknowledged when the next one begins, or the next run.
    assert stored == numbers[8:]
    numbers += send(connection, queue, [b"more"])
    stream.run()
    assert stream.seen == numbers
    with connection.session() as session:
        assert [message.sequence for message in session.browse(queue)] == numbers[10:]


def test_an_audit_sees_acknowledgements_beside_messages(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    queue = name("queue")
    numbers = send(connection, queue, [b"x"] * 5)
    stream = Stream(
        spark,
        tmp_path,
        servers=servers,
        subscribe=queue,
        startingOffsets="earliest",
        subscriptionName=queue[-20:],
        includeAcks="true",
    )
    stream.run()
    with connection.session() as session, session.consumer(queue) as consumer:
        assert len(consumer.receive_many(3, timeout=30)) == 3
    numbers += send(connection, queue, [b"y"])
    stream.run()
    assert stream.seen == numbers
    said = [
        number for one in stream.acknowledged for r in one.ranges for number in range(r.first, r.last + 1)
    ]
    assert said == numbers[:3]
    assert {one.subscription for one in stream.acknowledged} == {0}
