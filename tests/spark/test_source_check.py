"""`antiphon pipeline source-check`: shows what a query would find, and says in a sentence what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import xxhash

import antiphon.blocking
from antiphon.cli.main import main
from tests.processes import Server
from tests.spark.conftest import SOURCES, spark_environment

pytest.importorskip("pyarrow")

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command would say of another machine's Python is not the question here."""
    for name, text in spark_environment().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("antiphon.pipeline.java.why_not", lambda: None)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", "source-check", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, "--json", *words)
    return code, json.loads(out)


def topic_with(
    connection: Connection, name: Name, bodies: list[Any], **settings: Any
) -> tuple[str, list[int]]:
    topic = name("topic")
    connection.admin().create(topic, **{"retention": 3600, **settings})
    with connection.session() as session, session.producer(topic) as producer:
        return topic, [receipt.sequence for receipt in producer.send_many(bodies)]


def checkpoint(folder: Path, number: int, **more: Any) -> Path:
    """As Spark writes it: two lines of its own, and one for each source."""
    (folder / "offsets").mkdir(parents=True)
    for batch in (9, 10):
        said = json.dumps({"v": 2, "channels": {"a": number + batch - 10}, **more})
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{said}\n')
    return folder


def test_it_shows_heads_and_a_sample(
    server: Server, connection: Connection, name: Name, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, numbers = topic_with(connection, name, ["one", b"\xff", *["x"] * 8])
    code, said = asked(capsys, "--url", server.url, "--rows", "2", topic)
    assert code == 0 and said["problems"] == []
    (one,) = said["destinations"]
    assert (one["name"], one["first"], one["next"]) == (topic, numbers[0], numbers[-1] + 1)
    assert [(row["sequence"], row["body"], row["encoding"]) for row in said["sample"]] == [
        (numbers[0], "one", "text"),
        (numbers[1], "/w==", "base64"),
    ]
    assert said["channels"][0]["rows"] == 10
    code, out, _ = run(capsys, "--url", server.url, topic)
    assert code == 0
    assert f"{topic} on a: {numbers[0]} to {numbers[-1]}" in out and "one" in out


def test_without_a_name_it_shows_all_and_with_a_pattern_those_that_match(
    server: Server, connection: Connection, name: Name, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = {topic_with(connection, name, ["x"])[0] for _ in range(2)}
    _, said = asked(capsys, "--url", server.url)
    assert topics <= {one["name"] for one in said["destinations"]}
    wanted = min(topics)
    _, said = asked(capsys, "--url", server.url, "--pattern", wanted[:-1] + ".")
    assert [one["name"] for one in said["destinations"]] == [wanted]


def test_it_shows_holds_and_how_far_a_checkpoint_lags(
    server: Server, connection: Connection, name: Name, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, numbers = topic_with(connection, name, ["x"] * 10)
    with connection.ranges() as ranges:
        ranges.hold("nightly", {"a": numbers[4]}, ranges.destinations([topic]), limit=60)
    words = ("--url", server.url, topic, "--checkpoint", str(checkpoint(tmp_path, numbers[7])))
    code, said = asked(capsys, *words)
    assert code == 0
    assert (said["checkpoint"]["rows"], said["checkpoint"]["offset"]["channels"]) == (3, {"a": numbers[7]})
    (hold,) = said["holds"]
    assert (hold["name"], hold["position"], hold["rows"]) == ("nightly", numbers[4], 6)
    _, out, _ = run(capsys, *words)
    assert "3 messages" in out and f"nightly holds channel a from {numbers[4]} on: 6 messages" in out


def test_a_checkpoint_that_cannot_go_on_is_a_problem(
    server: Server, connection: Connection, name: Name, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, numbers = topic_with(connection, name, [b"x" * 1000] * 20, retention_bytes=20_000)
    for _ in range(4):
        with connection.session() as session, session.producer(topic) as producer:
            producer.send_many([b"x" * 1000] * 20)
    lost = checkpoint(tmp_path, numbers[3])
    code, _, err = run(capsys, "--url", server.url, topic, "--checkpoint", str(lost))
    assert code == 1
    assert f"messages of {topic} from number {numbers[3]} to " in err
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"v": 1, "channels": {"a": 888888888}}\n')
    code, _, err = run(capsys, "--url", server.url, topic, "--checkpoint", str(lost))
    assert code == 1
    assert "another cluster" in err
    foreign = checkpoint(tmp_path / "foreign", numbers[-1], cluster="c0ffee")
    code, _, err = run(capsys, "--url", server.url, topic, "--checkpoint", str(foreign))
    assert code == 1
    assert "the checkpoint belongs to cluster c0ffee, and this is cluster" in err
    code, _, err = run(capsys, "--url", server.url, topic, "--checkpoint", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (1, 1)
    assert "no checkpoint of a query can be read in" in err


def test_what_is_wrong_is_one_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "--url", server.url, "topic:nobody-made-it") == (
        1,
        "",
        "antiphon: there is no destination topic:nobody-made-it\n",
    )
    code, _, err = run(capsys, "--url", "antiphon://127.0.0.1:1")
    assert (code, err) == (1, "antiphon: no server could be reached. 127.0.0.1:1: Connection refused\n")
    code, _, err = run(capsys, "--url", server.url, "orders")
    assert (code, err) == (
        1,
        "antiphon: subscribe: destination 'orders' starts with neither queue: nor topic:\n",
    )


def test_without_java_it_shows_the_rest_and_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, out, err = run(capsys, "--url", server.url)
    assert code == 1 and "answers" in out
    assert err.startswith("antiphon: Spark needs Java 17 or later, and there is none;")
    assert err.count("\n") == 1


def test_without_the_extra_it_shows_the_rest_and_says_which_one_to_install(
    server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    """In a Python that has what a plain `pip install antiphon` brings, and no more."""
    topic, numbers = topic_with(connection, name, ["one"])
    for package in ("xxhash", "antiphon"):
        installed = distribution(package)
        metadata = Path(str(installed.locate_file(f"{package}-{installed.version}.dist-info")))
        (tmp_path / metadata.name).symlink_to(metadata)
    (tmp_path / "xxhash").symlink_to(Path(xxhash.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"}
    words = ("pipeline", "source-check", "--url", server.url)

    def bare(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            # -S: without the packages that are installed here.
            [sys.executable, "-S", "-m", "antiphon.cli.main", *words, *more],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )

    done = bare(topic)
    assert done.returncode == 1
    assert f"{topic} on a: {numbers[0]} to {numbers[0]}" in done.stdout
    missing = [line for line in done.stderr.splitlines() if "is not installed" in line]
    assert missing == [
        f"antiphon: {package} is not installed: pip install 'antiphon[spark]'"
        for package in ("pyspark", "pyarrow", "google-re2")
    ]
    done = bare("--pattern", "topic:.*")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "antiphon: patterns of match='regex' need the package google-re2: pip install 'antiphon[regex]'\n"
    )


def test_a_python_that_lacks_our_packages_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/false")
    code, _, err = run(capsys, "--url", server.url)
    assert code == 1
    assert (
        f"workers with /bin/false, which cannot import antiphon.pipeline: set PYSPARK_PYTHON={sys.executable}"
        in err
    )


@pytest.mark.long
def test_through_spark_it_shows_the_same(
    java: None, server: Server, connection: Connection, name: Name
) -> None:
    topic, numbers = topic_with(connection, name, ["one", "two"])
    words = ("pipeline", "source-check", "--url", server.url, "--json", topic)
    shown = []
    for more in ((), ("--master", "local[1]")):
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli.main", *words, *more],
            capture_output=True,
            timeout=110,
            env={**os.environ, **spark_environment()},
        )
        assert done.returncode == 0, done.stderr.decode()
        shown.append([(row["sequence"], row["body"]) for row in json.loads(done.stdout)["sample"]])
    assert shown[0] == shown[1] == [(numbers[0], "one"), (numbers[1], "two")]
