"""The jobs on archives, through Spark: archive, audit, replay."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import antiphon.blocking
from antiphon.cli.main import main
from antiphon.errors import ArchiveDamaged, ArchiveError
from antiphon.message import Message
from antiphon.pipeline import archive, archive_files, audit, replay
from antiphon.runtime.cluster_data import free_ports
from antiphon.values import Float32, Int8, Int16
from tests.processes import ANTIPHON, Server
from tests.spark.conftest import spark_environment
from tests.spark.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first job of a session takes many seconds where others work, too.
pytestmark = pytest.mark.timeout(300)

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


def test_an_archive_has_every_message_once_over_two_runs(
    spark: SparkSession, server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    numbers: list[int] = []
    for first in (0, 500):
        with connection.session() as session, session.producer(topic) as producer:
            receipts = producer.send_many([f"{number}" for number in range(first, first + 500)])
            numbers += [receipt.sequence for receipt in receipts]
        assert archive(server.url, [topic], tmp_path / "archive", spark=spark).rows == 500
    frame = spark.read.parquet(*archive_files(tmp_path / "archive", [topic]))
    rows = frame.orderBy("sequence").select("sequence", "body", "body_kind").collect()
    assert [row.sequence for row in rows] == numbers
    assert [row.body.decode() for row in rows] == [f"{number}" for number in range(1000)]
    assert {row.body_kind for row in rows} == {"str"}


BODIES: list[Any] = [
    b"\xff\x00",
    "text",
    {"a": [1, None], "raw": b"x", "small": Int8(3)},
    [1.5, {"b": float("inf")}, Int16(9)],
    None,
    b"",
    "",
]
PROPERTIES: dict[str, Any] = {
    "n": 3,
    "small": Int8(-3),
    "half": 0.5,
    "narrow": Float32(0.25),
    "flag": True,
    "raw": b"\xff",
    "text": "ž",
    "nothing": None,
}


def send_all_sorts(connection: Connection, topic: str, count: int) -> None:
    with connection.session() as session, session.producer(topic) as producer:
        for number in range(count):
            producer.send(
                BODIES[number % len(BODIES)],
                properties={**PROPERTIES, "number": number} if number % 3 else {},
                key=f"k{number}" if number % 2 else None,
                correlation_id=f"c{number}" if number % 5 else None,
                reply_to="queue:answers" if number % 7 else None,
                type="order" if number % 4 else None,
                priority=number % 10,
                ttl=3_600 if number % 6 == 0 else None,
            )


def everything(connection: Connection, topic: str) -> list[Message]:
    with (
        connection.session() as session,
        session.consumer(topic, start="earliest") as consumer,
    ):
        found: list[Message] = []
        while some := consumer.receive_many(10_000, timeout=1.0):
            found += some
    # A consumer gets the urgent ones first.
    return sorted(found, key=lambda message: message.sequence)


def typed(value: Any) -> Any:
    """A value with its type, and what is in it with theirs."""
    if isinstance(value, dict):
        return {name: typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), value


def said(message: Message) -> dict[str, Any]:
    """What a message says, with the types of values."""
    own = {name: value for name, value in message.properties.items() if not name.startswith("origin_")}
    return {
        "body": typed(message.body),
        "properties": typed(own),
        "key": message.key,
        "correlation_id": message.correlation_id,
        "reply_to": str(message.reply_to),
        "type": message.type,
        "priority": message.priority,
    }


def test_an_archived_topic_that_was_deleted_is_replayed_as_it_was(
    spark: SparkSession, server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic, again, folder = name("topic"), name("topic"), tmp_path / "archive"
    connection.admin().create(again, retention=3_600)
    for _ in range(2):
        send_all_sorts(connection, topic, 60)
        archive(server.url, [topic], folder, spark=spark)
    before = everything(connection, topic)
    assert len(before) == 120
    checked = audit([topic], folder, server.url, spark=spark)
    assert (checked.problems, checked.rows, checked.compared) == ([], 120, 120)
    with pytest.raises(ArchiveError, match="would get its own messages again"):
        replay(server.url, topic, folder, spark=spark)
    connection.admin().delete(topic)
    done = replay(server.url, again, folder, spark=spark)
    assert (done.rows, done.planned) == (120, 120)
    after = everything(connection, again)
    assert [said(message) for message in after] == [said(message) for message in before]
    for new, old in zip(after, before, strict=True):
        assert new.properties["origin_message_id"] == old.message_id
        assert new.properties["origin_sequence"] == old.sequence
        assert new.properties["origin_channel"] == old.channel
        assert new.properties["origin_destination"] == topic
        assert new.properties["origin_timestamp"] == round(old.timestamp * 1000)
        assert new.expires is None
        assert ("origin_expires" in new.properties) == (old.expires is not None)
    assert replay(server.url, again, folder, spark=spark).rows == 0, "done is done"
    some = replay(
        server.url,
        name("queue"),
        folder,
        spark=spark,
        where="key is not null and priority < 5",
        numbers=(before[10].sequence, before[49].sequence),
    )
    wanted = [one for one in before[10:50] if one.key is not None and one.priority < 5]
    assert 0 < some.rows == len(wanted)
    checked = audit([topic], folder, server.url, spark=spark)
    assert (checked.problems, checked.rows, checked.compared) == ([], 120, 0)
    damage_and_audit(spark, server, topic, folder, before)


def damage_and_audit(
    spark: SparkSession, server: Server, topic: str, folder: Path, messages: list[Message]
) -> None:
    """One byte, and then a file: the audit names the range, and a replay does not read it."""
    halves = [messages[:60], messages[60:]]
    files = sorted(folder.rglob("*.parquet"), key=lambda file: file.name)
    assert len(files) == 2
    sound = files[1].read_bytes()
    files[1].write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    (problem,) = audit([topic], folder, server.url, spark=spark).problems
    assert (problem.what, problem.destination) == ("damaged", topic)
    assert problem.first <= halves[1][0].sequence and problem.last == halves[1][-1].sequence
    with pytest.raises(ArchiveDamaged, match="is not what was written"):
        replay(server.url, "queue:never", folder, spark=spark)
    files[1].write_bytes(sound)
    files[0].unlink()
    (problem,) = audit([topic], folder, server.url, spark=spark).problems
    assert problem.last == halves[1][0].sequence - 1 or problem.last == halves[0][-1].sequence
    assert "is missing" in problem.text


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """A job's command, in the session that is active; Spark's own bars are left out."""
    code = main(["pipeline", *words])
    said = capsys.readouterr()
    return code, said.out, "".join(line for line in said.err.splitlines(True) if "[Stage" not in line)


def test_the_commands_say_what_they_did_and_what_is_wrong(
    spark: SparkSession,
    server: Server,
    connection: Connection,
    name: Name,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, again, folder = name("topic"), name("queue"), str(tmp_path / "archive")
    with connection.session() as session, session.producer(topic) as producer:
        numbers = [receipt.sequence for receipt in producer.send_many(["x"] * 9)]
    server_words = ("--url", server.url)
    place = f"{topic}: 9 messages, numbers {numbers[0]} to {numbers[-1]} of channel a"
    code, out, _ = run(capsys, "archive", *server_words, topic, "--to", folder, "--dry-run")
    assert code == 0 and out.splitlines()[0] == place and "would archive 9 messages of 1 dest" in out
    code, out, _ = run(capsys, "archive", *server_words, topic, "--to", folder, "--hold", topic)
    assert code == 0 and out.startswith(f"{place}\narchived 9 messages of 1 destination in 1 file of ")
    assert out.endswith(f"\nthe hold {topic} keeps what comes next\n")
    code, out, _ = run(capsys, "archive", *server_words, topic, "--to", folder, "--json")
    assert (code, json.loads(out)["rows"]) == (0, 0)
    code, out, err = run(capsys, "audit", *server_words, topic, "--archive", folder)
    assert (code, err) == (0, "")
    assert out == f"{place}; 9 compared with replicas\n9 messages in 1 file: every message once\n"
    replaying = ("replay", *server_words, again, "--from", folder)
    code, out, err = run(capsys, *replaying, "--where", "nonsense >")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("antiphon: where 'nonsense >' is no condition: ")
    code, out, err = run(capsys, *replaying, "--source", "topic:none")
    assert (code, err) == (1, f"antiphon: the archive {folder} has nothing of topic:none\n")
    some = (*replaying, "--range", f"a:{numbers[2]}-{numbers[5]}", "--name", "some")
    code, out, _ = run(capsys, *some, "--dry-run", "--json")
    assert (code, json.loads(out)["chunks"]) == (0, 1)
    assert run(capsys, *some) == (0, f"replayed 4 messages to {again}; the replay's name is some\n", "")
    assert run(capsys, *some)[1] == "the replay some was done before; --name NAME makes another one\n"
    (file,) = Path(folder).rglob("*.parquet")
    file.unlink()
    code, out, err = run(capsys, "audit", *server_words, topic, "--archive", folder)
    assert (code, out.splitlines()[-1]) == (1, "0 messages in 1 file: 1 problem")
    assert err == (
        f"antiphon: damaged: {topic}, numbers {numbers[0]} to {numbers[-1]} of channel a:"
        f" {file.relative_to(folder)} is missing\n"
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_jobs_do_the_same_on_a_master_with_two_workers(
    java: None, server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic, folder = name("topic"), str(tmp_path / "archive")
    send_all_sorts(connection, topic, 100)
    (tmp_path / "spark").mkdir()
    with free_ports() as next_port:
        port = next_port()
    with Standalone(tmp_path / "spark", port) as cluster:

        def job(*words: str) -> dict[str, Any]:
            done = subprocess.run(
                [*ANTIPHON, "pipeline", *words, "--json", "--url", server.url, "--master", cluster.url],
                capture_output=True,
                text=True,
                timeout=300,
                env={**os.environ, **spark_environment()},
            )
            assert done.returncode == 0, done.stderr
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        assert job("archive", topic, "--to", folder)["rows"] == 100
        assert job("audit", topic, "--archive", folder)["compared"] == 100
        again = name("topic")
        connection.admin().create(again, retention=3_600)
        assert job("replay", again, "--from", folder)["rows"] == 100
    before, after = everything(connection, topic), everything(connection, again)
    assert [said(message) for message in after] == [said(message) for message in before]
