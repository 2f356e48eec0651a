"""The source on a real Spark: batch reads, columns, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import antiphon
import antiphon.blocking
from antiphon.pipeline import decode_body
from antiphon.pipeline.columns import ALL, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


def read(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return spark.read.format("antiphon").option("servers", servers).options(**options).load()


def send(connection: Connection, destination: str, bodies: list[Any]) -> list[int]:
    """Send, and tell the numbers that they got."""
    with connection.session() as session, session.producer(destination) as producer:
        return [receipt.sequence for receipt in producer.send_many(bodies)]


def offset(number: int) -> str:
    return json.dumps({"v": 1, "channels": {"a": number}})


def refusal(action: Callable[[], Any]) -> str:
    """What Spark says why it does not."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        action()
    return str(refused.value)


def test_every_message_is_a_row_with_all_that_its_sender_said(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    before = datetime.now(UTC) - timedelta(seconds=1)
    with connection.session() as session, session.producer(topic) as producer:
        plain = producer.send(b"\x00bytes")
        full = producer.send(
            "text",
            properties={"region": "EU", "count": 3, "ratio": 0.5, "new": True, "blob": b"\xff", "none": None},
            priority=7,
            key="k",
            correlation_id="c",
            reply_to="queue:answers",
            type="order",
        )
        empty = producer.send(None)
    frame = read(spark, servers, subscribe=topic)
    columns = [field.simpleString().replace(":", " ", 1) for field in frame.schema]
    assert columns == spark_schema(ALL.names).split(", ")
    rows = {row.sequence: row.asDict() for row in frame.collect()}
    assert sorted(rows) == [plain.sequence, full.sequence, empty.sequence]
    row = rows[full.sequence]
    assert before < row.pop("timestamp").replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(seconds=1)
    assert row == {
        "destination": topic,
        "channel": "a",
        "sequence": full.sequence,
        "message_id": full.message_id,
        "priority": 7,
        "key": "k",
        "correlation_id": "c",
        "reply_to": "queue:answers",
        "type": "order",
        "properties": {
            "region": "EU",
            "count": "3",
            "ratio": "0.5",
            "new": "true",
            "blob": "/w==",
            "none": None,
        },
        "property_types": {
            "region": "str",
            "count": "i64",
            "ratio": "f64",
            "new": "bool",
            "blob": "bytes",
            "none": "null",
        },
        "body_kind": "str",
        "expires": None,
        "persistent": True,
        "body": b"text",
    }
    assert (rows[plain.sequence]["body"], rows[plain.sequence]["body_kind"]) == (b"\x00bytes", "bytes")
    assert (rows[empty.sequence]["body"], rows[empty.sequence]["body_kind"]) == (None, "none")
    assert rows[plain.sequence]["properties"] == {} and rows[plain.sequence]["key"] is None


def test_a_range_of_numbers_and_parts_of_it(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic, other = name("topic"), name("topic")
    for one in (topic, other):
        connection.admin().create(one, retention=3600)
    numbers = []
    for start in range(0, 1000, 100):
        numbers += send(connection, topic, [b"%d" % n for n in range(start, start + 100)])
        send(connection, other, [b"x"] * 10)
    wanted = numbers[50:951]
    frame = read(
        spark,
        servers,
        subscribe=topic,
        startingOffsets=offset(wanted[0]),
        endingOffsets=offset(wanted[-1] + 1),
        minPartitions=5,
        includeBody="false",
    )
    assert "body" not in frame.columns
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.sequence for row in frame.select("sequence").collect()) == wanted


def test_what_a_queue_holds_is_read_without_taking_it(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    queue, topic = name("queue"), name("topic")
    connection.admin().create(topic, retention=3600)
    send(connection, queue, [b"a", b"b", b"c"])
    send(connection, topic, [b"d"])
    frame = read(spark, servers, subscribe=f"{queue},{topic}")
    assert sorted((row.destination, row.body) for row in frame.collect()) == sorted(
        [(queue, b"a"), (queue, b"b"), (queue, b"c"), (topic, b"d")]
    )
    with connection.session() as session, session.consumer(queue) as consumer:
        assert [message.body for message in consumer.receive_many(3, timeout=30)] == [b"a", b"b", b"c"]


def test_patterns_are_regular_expressions_or_globs(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    base = name("topic")
    for end in (".eu", ".us", "-x"):
        connection.admin().create(base + end, retention=3600)
        send(connection, base + end, [end.encode()])
    regex = read(spark, servers, subscribePattern=base.replace(".", r"\.") + r"\.(eu|us)")
    assert sorted(row.body for row in regex.select("body").collect()) == [b".eu", b".us"]
    glob = read(spark, servers, subscribePattern=base + ".e?", match="glob")
    assert [row.body for row in glob.select("body").collect()] == [b".eu"]
    assert read(spark, servers, subscribePattern="topic:nobody-.*").count() == 0


def test_one_view_in_sql(spark: SparkSession, connection: Connection, servers: str, name: Name) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    send(connection, topic, ["x"] * 7)
    spark.sql(
        f"CREATE TEMPORARY VIEW orders USING antiphon OPTIONS (servers '{servers}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT count(*) AS n FROM orders WHERE cast(body AS string) = 'x'").first().n == 7


def test_create_table_was_refused_for_an_option_that_spark_adds_itself(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    send(connection, topic, [b"x"] * 3)
    table = topic.replace("topic:", "t")
    options = f"servers '{servers}', subscribe '{topic}'"
    spark.sql(
        f"CREATE TABLE {table} USING antiphon COMMENT 'c' TBLPROPERTIES ('a' = 'b') OPTIONS ({options})"
    )
    try:
        # Spark does not give the table's options to its reader, and so they are said with the query.
        said = refusal(lambda: spark.sql(f"SELECT count(*) FROM {table}").collect())
        assert "servers is missing" in said and "SELECT … FROM table WITH (servers" in said
        given = f"WITH (servers = '{servers}', subscribe = '{topic}')"
        assert spark.sql(f"SELECT count(*) FROM {table} {given}").first()[0] == 3
        misspelled = options.replace("subscribe ", "subscrieb ")
        said = refusal(lambda: spark.sql(f"CREATE TABLE {table}x USING antiphon OPTIONS ({misspelled})"))
        assert "no option subscrieb; was subscribe meant?" in said
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_wrong_options_are_refused_when_the_frame_is_made(spark: SparkSession, servers: str) -> None:
    said = refusal(lambda: read(spark, servers, subscribe="topic:x", startingOffset="earliest"))
    assert "Antiphon's source has no option startingoffset; was startingOffsets meant?" in said
    said = refusal(lambda: read(spark, servers, subscribe="topic:x", password="hunter2"))
    assert "a password is not taken as an option" in said and "hunter2" not in said


def test_an_unknown_destination_is_named(spark: SparkSession, servers: str, name: Name) -> None:
    topic = name("topic")
    assert f"there is no destination {topic}" in refusal(read(spark, servers, subscribe=topic).count)


def test_a_cluster_that_cannot_be_reached_is_named_soon(spark: SparkSession) -> None:
    write = spark.range(1).selectExpr("'x' AS body").write.format("antiphon").mode("append")
    write = write.options(servers="127.0.0.1:1", destination="queue:x")
    for action in (read(spark, "127.0.0.1:1", subscribe="topic:x").count, write.save):
        began = time.monotonic()
        said = refusal(action)
        assert "no server could be reached. 127.0.0.1:1: Connection refused" in said
        assert time.monotonic() - began < 30


def test_reads_by_time_fit_together(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    numbers = send(connection, topic, [b"x"] * 5)
    moment = datetime.now(UTC).isoformat()
    numbers += send(connection, topic, [b"y"] * 5)
    before, after = (
        {row.sequence for row in read(spark, servers, subscribe=topic, **{option: moment}).collect()}
        for option in ("endingTimestamp", "startingTimestamp")
    )
    assert sorted([*before, *after]) == numbers
    # The start may be early, never late.
    assert set(numbers[5:]) <= after


def test_only_the_columns_that_were_chosen_are_there(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic = name("topic")
    (number,) = send(connection, topic, [{"total": 12.5, "raw": b"x"}])
    frame = read(spark, servers, subscribe=topic, columns="body_kind, body,sequence")
    assert frame.collect() == [("map", b'{"total":12.5,"raw":{"base64":"eA=="}}', number)]
    reader = spark.read.format("antiphon").options(servers=servers, subscribe=topic, bodyFormat="binary")
    ((body,),) = reader.schema("body binary").load().collect()
    assert decode_body(body, "map") == {"total": 12.5, "raw": b"x"}
    assert "has body as string; it is binary" in refusal(lambda: reader.schema("body string").load().count())


def test_a_filter_that_spark_hands_over_reads_only_what_it_asks_for(
    spark: SparkSession, connection: Connection, servers: str, name: Name
) -> None:
    topic, other = name("topic"), name("topic")
    numbers = send(connection, topic, [b"x"] * 20)
    send(connection, other, [b"y"] * 20)
    frame = read(spark, servers, subscribe=f"{topic},{other}")
    wanted = frame.where(frame.sequence >= numbers[5]).where(frame.sequence < numbers[9])
    by_name = frame.where(frame.destination == topic)
    by_time = frame.where(frame.timestamp < "2020-01-01")
    counts = []
    for is_pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", is_pushed)
        try:
            counts.append([one.count() for one in (wanted, by_name, by_time)])
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert counts == [[4, 20, 0]] * 2


def test_credentials_show_up_nowhere(
    spark: SparkSession,
    connection: Connection,
    servers: str,
    name: Name,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic, file, checkpoint = name("topic"), tmp_path / "password", tmp_path / "checkpoint"
    connection.admin().create(topic, retention=3600)
    send(connection, topic, [b"x"] * 3)
    file.write_text("hunter2")
    options = {"servers": servers, "subscribe": topic, "user": "u", "passwordFile": str(file)}
    frame = read(spark, **options)
    frame.explain(True)
    shown = frame._jdf.queryExecution().toString() + capfd.readouterr().out
    assert "antiphon" in shown
    rows = spark.readStream.format("antiphon").options(**options, startingOffsets="earliest").load()
    query = (
        rows.select("body")
        .writeStream.format("antiphon")
        .options(servers=servers, user="u", passwordFile=str(file), destination=name("queue"))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 3
    shown += str(query.recentProgress) + query._jsq.explainInternal(True)
    shown += "".join(one.read_text(errors="replace") for one in checkpoint.rglob("*") if one.is_file())
    shown += refusal(read(spark, **{**options, "subscribe": name("topic")}).count)
    assert str(file) not in shown and "hunter2" not in shown
