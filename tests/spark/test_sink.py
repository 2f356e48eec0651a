"""The sink on a real Spark: batch writes and micro-batches, columns, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import antiphon.blocking
from tests.spark.messages import consume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The first job of a session takes many seconds where others work, too.
pytestmark = pytest.mark.timeout(300)

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


def write(rows: DataFrame, servers: str, **options: Any) -> None:
    rows.write.format("antiphon").option("servers", servers).options(**options).mode("append").save()


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as body")


def bodies(connection: Connection, queue: str) -> list[Any]:
    return [message.body for message in consume(connection, queue)]


def test_a_batch_write_brings_every_row_with_all_its_columns(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue = name("queue")
    rows = spark.range(0, 1_000, 1, 3).selectExpr(
        "cast(cast(id as string) as binary) as body",
        "case when id % 2 = 0 then concat('k', id) end as key",
        "cast(id % 10 as int) as priority",
        "concat('c', id) as correlation_id",
        "'queue:answers' as reply_to",
        "'order' as type",
        "case when id % 3 > 0 then map('region', 'EU', 'row', cast(id as string)) end as properties",
    )
    write(rows, servers, destination=queue)
    found = {int(message.body): message for message in consume(connection, queue)}
    assert sorted(found) == list(range(1_000))
    for id, message in found.items():
        assert message.key == (f"k{id}" if id % 2 == 0 else None)
        assert message.priority == id % 10
        assert message.correlation_id == f"c{id}"
        assert (message.reply_to, message.type) == ("queue:answers", "order")
        assert message.properties == ({"region": "EU", "row": str(id)} if id % 3 else {})


def test_what_was_read_from_a_topic_is_written_to_another_as_it_was(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic, queue = name("topic"), name("queue")
    connection.admin().create(topic, retention=3600)
    said: list[Any] = [b"\xff\x00", "text", {"a": [1, None], "raw": b"x"}, [1.5, {"b": True}], None]
    properties = {"n": 3, "half": 0.5, "flag": True, "raw": b"\xff", "text": "ž"}
    with connection.session() as session, session.producer(topic) as producer:
        sent = [producer.send(body, properties=properties, key=f"k{n}") for n, body in enumerate(said)]
    frame = spark.read.format("antiphon").options(servers=servers, subscribe=topic).load()
    write(frame, servers, destination=queue)
    came = {message.key: message for message in consume(connection, queue)}
    assert [came[f"k{n}"].body for n in range(5)] == said
    for n, receipt in enumerate(sent):
        has = came[f"k{n}"].properties
        assert {name: has[name] for name in properties} == properties
        assert has["origin_message_id"] == receipt.message_id
        assert abs(has["origin_timestamp"] / 1000 - came[f"k{n}"].timestamp) < 600


def test_a_string_arrives_as_text_and_no_body_as_none(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue = name("queue")
    write(spark.sql("select * from values ('žluť'), (null), ('') as t(body)"), servers, destination=queue)
    assert sorted(bodies(connection, queue), key=repr) == sorted(["žluť", None, ""], key=repr)


def test_rows_say_where_they_go_and_the_option_overrides_them(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    first, second, third = name("queue"), name("queue"), name("queue")
    rows = spark.range(100).selectExpr(
        "cast(id as string) as body", f"if(id < 30, '{first}', '{second}') as destination"
    )
    write(rows, servers)
    assert len(bodies(connection, first)) == 30
    assert len(bodies(connection, second)) == 70
    write(rows, servers, destination=third)
    assert len(bodies(connection, third)) == 100


def test_the_same_version_of_an_application_is_written_once(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue, application = name("queue"), name("job")
    for version in (1, 1, 2, 1):
        write(numbers(spark, 50), servers, destination=queue, txnAppId=application, txnVersion=version)
    assert len(bodies(connection, queue)) == 100


def test_a_version_without_rows_was_not_remembered_and_an_older_one_got_in_later(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue = name("queue")
    for version, count in ((5, 0), (4, 30), (6, 10)):
        write(numbers(spark, count), servers, destination=queue, txnAppId=queue, txnVersion=version)
    assert len(bodies(connection, queue)) == 10


def test_a_job_without_a_name_is_another_job_every_time(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue = name("queue")
    write(numbers(spark, 50), servers, destination=queue)
    write(numbers(spark, 50), servers, destination=queue)
    assert len(bodies(connection, queue)) == 100


def test_a_million_rows_are_committed_at_once(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic = name("topic")
    with connection.session() as session, session.consumer(topic, durable=topic, shared=True, prefetch=1):
        write(numbers(spark, 1_000_000), servers, destination=topic)
        listed = connection.admin().destinations()
    (row,) = [row for row in listed if row["name"] == topic]
    assert row["published"] == 1_000_000


def test_what_a_failed_job_has_staged_is_never_seen(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue = name("queue")
    rows = spark.range(0, 1_000, 1, 2).selectExpr(
        "if(id = 999, cast(raise_error('the last row is bad') as string), cast(id as string)) as body"
    )
    with pytest.raises(Exception, match="the last row is bad"):
        write(rows, servers, destination=queue)
    assert bodies(connection, queue) == []


def test_at_least_once_sends_directly(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue, other = name("queue"), name("queue")
    write(numbers(spark, 5_000), servers, destination=queue, deliveryGuarantee="at-least-once")
    assert sorted(map(int, bodies(connection, queue))) == list(range(5_000))
    rows = numbers(spark, 100).selectExpr("body", f"if(body < '5', '{queue}', '{other}') as destination")
    write(rows, servers, deliveryGuarantee="at-least-once")
    assert len(bodies(connection, queue)) + len(bodies(connection, other)) == 100


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        # Seen on the driver, and by a task. All others: tests/unit/pipeline/test_sink.py.
        (["'x' as body", "'k' as kye"], r"Antiphon's sink has no column kye \(was key meant\?\)"),
        (["'x' as body", "cast(x'ff' as string) as key"], "column key has text that is not UTF-8"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_sentence(
    spark: SparkSession, servers: str, columns: list[str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        write(spark.range(1).selectExpr(*columns), servers, destination="queue:refused")


def test_what_is_wrong_with_a_stream_that_writes_shows_in_its_first_batch(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    """Not in `start()`, where the reference said that all options are refused."""
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    with connection.session() as session, session.producer(topic) as producer:
        producer.send(b"x")
    rows = spark.readStream.format("antiphon").options(
        servers=servers, subscribe=topic, startingOffsets="earliest"
    )
    writer = rows.load().select("body").writeStream.format("antiphon").trigger(availableNow=True)
    options = {"servers": servers, "desitnation": topic, "checkpointLocation": str(tmp_path)}
    query = writer.options(**options).start()
    with pytest.raises(Exception, match="no option desitnation; was destination meant"):
        query.awaitTermination(100)


def test_a_stream_is_written_once_though_its_checkpoint_forgets_the_last_batch(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    """What `kill -9` leaves when it comes between our commit and Spark's note of it."""
    queue = name("queue")
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    numbers(spark, 1_000).write.parquet(str(source / "1"))
    run_stream(spark, source, servers, queue, checkpoint)
    forget_last(checkpoint)
    numbers(spark, 500).write.parquet(str(source / "2"))
    run_stream(spark, source, servers, queue, checkpoint)
    found = bodies(connection, queue)
    assert len(found) == 1_500
    assert sorted(map(int, found)) == sorted([*range(1_000), *range(500)])


def test_rows_written_in_foreach_batch_are_known_by_application_and_version(
    spark: SparkSession, connection: Connection, servers: str, name: Name, tmp_path: Path
) -> None:
    queue, other = name("queue"), name("queue")
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    numbers(spark, 100).write.parquet(str(source / "1"))

    def both(rows: DataFrame, batch: int) -> None:
        for target in (queue, other):
            write(rows, servers, destination=target, txnAppId=target, txnVersion=batch)

    for _ in range(2):
        stream = spark.readStream.schema("body string").parquet(f"{source}/*")
        query = (
            stream.writeStream.foreachBatch(both)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        forget_last(checkpoint)
    assert len(bodies(connection, queue)) == 100
    assert len(bodies(connection, other)) == 100


def run_stream(spark: SparkSession, source: Path, servers: str, queue: str, checkpoint: Path) -> None:
    query = (
        spark.readStream.schema("body string")
        .parquet(f"{source}/*")
        .writeStream.format("antiphon")
        .option("servers", servers)
        .option("destination", queue)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60), "the query did not end"


def forget_last(checkpoint: Path) -> None:
    """Take back Spark's note that the last batch was written; the next run writes it again."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    for path in commits.glob(f".{last}.crc"):
        path.unlink()
