"""What the sink is told, and the columns it is given: checked before anything is written."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antiphon.client.aio.staging import StagedPart
from antiphon.errors import (
    CommitUncertain,
    ConnectionFailed,
    InvalidMessage,
    InvalidOption,
    LocalError,
    NotConnected,
    Timeout,
    TransactionRolledBack,
)
from antiphon.pipeline import sink
from antiphon.pipeline.columns import BODY, COLUMNS
from antiphon.pipeline.patience import RetryPolicy
from antiphon.pipeline.sink import BatchWriter, StreamWriter, Written, batch_writer, stream_writer

OPTIONS = {"servers": "127.0.0.1:7420", "destination": "queue:alerts"}


@pytest.fixture(autouse=True)
def nobody_is_greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cluster here."""
    monkeypatch.setattr(sink, "greet", lambda _: None)


KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "tinyint": ByteType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
}


def kind_of(word: str) -> DataType:
    """What Spark's own reader of such words would need a session for."""
    if word.startswith("map<"):
        key, value = word[4:-1].split(",")
        return MapType(KINDS[key], KINDS[value])
    return KINDS[word]


def schema(columns: str) -> StructType:
    words = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, kind_of(kind)) for name, kind in words])


@pytest.mark.parametrize(
    "columns",
    [
        "body binary",
        "body string, key string, priority tinyint, correlation_id string, reply_to string, type string",
        "body string, destination string, priority bigint, properties map<string,string>",
        "body string, properties map<string,double>",
        ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **BODY}.items()),
    ],
)
def test_these_columns_can_be_written(columns: str) -> None:
    assert isinstance(batch_writer(OPTIONS, schema(columns), False), BatchWriter)
    assert isinstance(stream_writer(OPTIONS, schema(columns), False), StreamWriter)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("body string, colour int", "has no column colour; there may be body, destination, key"),
        ("body string, kye string", r"no column kye \(was key meant\?\)"),
        ("key string", "column body is missing"),
        ("body int", "column body is binary or string; it was int"),
        ("body string, priority string", "column priority is tinyint or .* it was string"),
        ("body string, key binary", "column key is string; it was binary"),
        ("body string, properties map<int,string>", "column properties is .* it was map<int,string>"),
        ("body string, ttl string", "column ttl is tinyint or .* it was string"),
        ("body string, acknowledged int", "has no column acknowledged"),
        ("body string, property_types map<string,string>", "property_types is for properties that are map"),
        ("body string, delay timestamp", "column delay is tinyint or .* it was timestamp"),
    ],
)
def test_other_columns_are_refused_by_name(columns: str, words: str) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(InvalidMessage, match=words):
            make(OPTIONS, schema(columns), False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"destination": ""}, "destination is missing"),
        ({"destination": "orders"}, "destination: "),
        ({"desitnation": "queue:a"}, "no option desitnation; was destination meant"),
        ({"subscribe": "queue:a"}, "subscribe is an option of Antiphon's source"),
        ({"deliveryGuarantee": "twice"}, "deliveryGuarantee is exactly-once or at-least-once"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion are given together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion are given together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is a whole number from 0 on"),
        ({"txnAppId": "a" * 256, "txnVersion": "1"}, "txnAppId has at most"),
        ({"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"}, "is of no use"),
        ({"servers": ""}, "servers is missing"),
        ({"password": "hunter2"}, "a password is not taken as an option"),
        ({"servers": "u:hunter2@h:1"}, "servers is a list of host:port"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], words: str) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(InvalidOption, match=words) as refused:
            make({**OPTIONS, **options}, schema("body string"), False)
        assert "hunter2" not in str(refused.value)


def test_each_kind_of_write_has_a_name_of_its_own() -> None:
    named = {**OPTIONS, "txnAppId": "nightly", "txnVersion": "7"}
    with pytest.raises(InvalidOption, match="txnAppId and txnVersion are for"):
        stream_writer(named, schema("body string"), False)
    with pytest.raises(InvalidOption, match="queryId is for writeStream"):
        batch_writer({**OPTIONS, "queryId": "q"}, schema("body string"), False)
    with pytest.raises(InvalidOption, match="messages cannot be overwritten"):
        batch_writer(OPTIONS, schema("body string"), True)
    first, second = (batch_writer(OPTIONS, schema("body string"), False) for _ in range(2))
    assert first._application != second._application, "a job that is run again is another job"
    assert pickle.loads(pickle.dumps(first))._application == first._application
    again = [batch_writer(named, schema("body string"), False) for _ in range(2)]
    assert {writer._application for writer in again} == {"spark-job/nightly"}


def test_a_task_that_is_not_told_its_batch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        told: ClassVar[dict[str, str]] = {}

        @classmethod
        def get(cls) -> Context:
            return cls()

        def getLocalProperty(self, name: str) -> str | None:
            return self.told.get(name)

    monkeypatch.setattr(sink, "TaskContext", Context)
    with pytest.raises(LocalError, match="does not tell a task the number of its batch"):
        sink._batch_of_task("mine")
    Context.told = {"streaming.sql.batchId": "5"}
    assert sink._batch_of_task("mine") == ("mine", 5)
    with pytest.raises(LocalError, match="as option queryId"):
        sink._batch_of_task(None)
    # Whoever does not want to be exact needs neither.
    at_least = stream_writer({**OPTIONS, "deliveryGuarantee": "at-least-once"}, schema("body string"), False)
    monkeypatch.setattr(Context, "partitionId", lambda _: 3, raising=False)
    assert at_least.write(iter(())) == Written("", 0, 3, 0)
    Context.told["sql.streaming.queryId"] = "abc"
    assert sink._batch_of_task(None) == ("abc", 5)


class Staging:
    """Stands for the cluster: it remembers what it was asked to commit, and may fail at first."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.commits: list[tuple[str, int, list[int]]] = []
        self.aborted: list[int] = []
        self.application = ""

    def staging(self, application: str) -> Staging:
        self.application = application
        return self

    def commit(self, version: int, parts: list[StagedPart]) -> str:
        self.commits.append((self.application, version, [part.id for part in parts]))
        if self.failures:
            raise self.failures.pop(0)
        return "committed"

    def abort(self, parts: list[StagedPart]) -> None:
        self.aborted += [part.id for part in parts]
        if self.failures:
            raise self.failures.pop(0)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None: ...


def serve(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> Staging:
    cluster = Staging(*failures)
    monkeypatch.setattr(sink, "connection", lambda _: cluster)
    monkeypatch.setattr(sink, "patience", lambda _: RetryPolicy(600, 0.0))
    return cluster


def written(partition: int, part: int | None, version: int = 3) -> Written:
    staged = None if part is None else StagedPart(part, "spark/q")
    return Written("spark/q", version, partition, 0 if part is None else 10, staged)


def test_parts_are_committed_in_the_order_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = serve(monkeypatch)
    writer = stream_writer(OPTIONS, schema("body string"), False)
    writer.commit([written(2, 20), written(0, 10), written(1, None)], 3)
    assert cluster.commits == [("spark/q", 3, [10, 20])]
    writer.commit([written(0, None)], 4)
    writer.commit([], 5)
    assert len(cluster.commits) == 1, "what has no rows needs no commit"
    with pytest.raises(LocalError, match=r"batch \[3\] cannot be committed as 9"):
        writer.commit([written(0, 10)], 9)


def test_a_commit_is_tried_again_while_a_channel_has_no_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = serve(monkeypatch, TransactionRolledBack("x"), CommitUncertain("y", transaction_id="z"))
    stream_writer(OPTIONS, schema("body string"), False).commit([written(0, 10)], 3)
    assert len(cluster.commits) == 3
    cluster = serve(monkeypatch, *(TransactionRolledBack("it is gone") for _ in range(9)))
    with pytest.raises(TransactionRolledBack, match="it is gone"):
        stream_writer(OPTIONS, schema("body string"), False).commit([written(0, 10)], 3)
    assert len(cluster.commits) == sink.COMMIT_ATTEMPTS


def test_a_commit_waits_for_a_cluster_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [ConnectionFailed("refused"), NotConnected("gone"), *(Timeout("silent") for _ in range(20))]
    cluster = serve(monkeypatch, *away)
    stream_writer(OPTIONS, schema("body string"), False).commit([written(0, 10)], 3)
    assert len(cluster.commits) == 23


def test_a_version_without_rows_was_not_remembered_and_an_older_one_got_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = serve(monkeypatch)
    named = {**OPTIONS, "txnAppId": "nightly", "txnVersion": "5"}
    empty = Written("spark-job/nightly", 5, 0, 0)
    batch_writer(named, schema("body string"), False).commit([empty])
    batch_writer(named, schema("body string"), False).commit([])  # no partition at all
    assert cluster.commits == [("spark-job/nightly", 5, [])] * 2
    # A job without a name is another one the next time.
    batch_writer(OPTIONS, schema("body string"), False).commit([])
    assert len(cluster.commits) == 2


def test_abort_drops_what_there_is_and_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = serve(monkeypatch, LocalError("unreachable"))
    writer: Any = stream_writer(OPTIONS, schema("body string"), False)
    writer.abort([None, written(0, 10), written(1, None)], 3)
    assert cluster.aborted == [10]
    writer.abort([None], 3)
