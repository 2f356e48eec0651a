"""The source's driver side against a real cluster of several channels; no Spark is needed for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import antiphon
import antiphon.blocking
from antiphon.pipeline.jobs.archiving import ArchiveSettings, Archiving
from antiphon.pipeline.jobs.auditing import Auditing
from antiphon.pipeline.jobs.choosing import connection_options
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.offsets import Offset
from antiphon.pipeline.options import SourceOptions
from antiphon.pipeline.patience import PatientRanges, RetryPolicy
from antiphon.pipeline.planning import Limit, Planner
from antiphon.pipeline.reading import read_span
from tests.cluster_processes import ClusterProcess
from tests.spark.proxy import CountingProxy
from tests.spark.tasks import loop

CHANNELS = ("a", "b", "c")
SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    size = {"client_managers": 1, "message_managers": 2, "has_faults": False}
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterProcess(folder, options=("--channels", str(len(CHANNELS))), **size) as cluster:  # type: ignore[arg-type]
        yield cluster


def patient(ranges: antiphon.blocking.Ranges) -> PatientRanges:
    return PatientRanges(lambda: ranges, RetryPolicy(SECONDS, 1.0))


def planner(url: str, connection: antiphon.blocking.Connection, **options: str) -> Planner:
    parsed = SourceOptions.parse({"servers": url, **options})
    return Planner(patient(connection.ranges()), parsed)


def make(connection: antiphon.blocking.Connection, name: str, channel: str, count: int) -> None:
    connection.admin().create(name, retention=3600, channel=channel)
    with connection.session() as session, session.producer(name) as producer:
        producer.send_many([b"x" * 100] * count)


def read(
    connection: antiphon.blocking.Connection, planner: Planner, start: Offset, end: Offset
) -> list[tuple[str, int]]:
    """What tasks would read, by channel and number."""
    found = []
    with connection.ranges() as ranges:
        for span in planner.spans(start, end):
            for batch in read_span(patient(ranges), span):
                found += [(span.channel, number) for number in batch.column("sequence").to_pylist()]
    return found


def test_channels_share_a_trigger_and_destinations_that_come_later_are_found(cluster: ClusterProcess) -> None:
    with antiphon.blocking.connect(cluster.url) as connection:
        make(connection, "topic:share.a", "a", 900)
        make(connection, "topic:share.b", "b", 100)
        plan = planner(
            cluster.url, connection, subscribePattern="topic:share.*", match="glob", minPartitions="6"
        )
        start = plan.initial("earliest")
        end = plan.latest(start, Limit(rows=100))
        rows = read(connection, plan, start, end)
        assert [sum(channel == one for channel, _ in rows) for one in "ab"] == [90, 10]
        make(connection, "topic:share.c", "c", 50)
        seen, offset = rows, end
        deadline = time.monotonic() + SECONDS
        while len(seen) < 1050:
            assert time.monotonic() < deadline
            end = plan.latest(offset, Limit(rows=300))
            seen += read(connection, plan, offset, end)
            offset = end
        assert len(set(seen)) == len(seen) == 1050
        assert sorted(offset.channels) == ["a", "b", "c"]
        assert plan.latest(offset) == offset


@pytest.mark.parametrize("choice", ["subscribe", "subscribePattern"])
def test_a_spanning_topic_is_read_from_all_its_channels(cluster: ClusterProcess, choice: str) -> None:
    name = f"topic:spanning.{choice}"
    with antiphon.blocking.connect(cluster.url) as connection:
        connection.admin().create(name, retention=3600, channels=3)
        plan = planner(cluster.url, connection, **{choice: name})
        offset = plan.initial("earliest")
        with connection.session() as session:
            receipts = session.producer(name).send_many([antiphon.Row(b"", key=str(n)) for n in range(300)])
        seen: list[tuple[str, int]] = []
        deadline = time.monotonic() + SECONDS
        while len(seen) < 300:
            assert time.monotonic() < deadline
            end = plan.latest(offset, Limit(rows=40))
            seen += read(connection, plan, offset, end)
            offset = end
        assert sorted(seen) == sorted((one.channel, one.sequence) for one in receipts)
        assert {channel for channel, _ in seen} == {"a", "b", "c"}


def test_an_idle_query_over_all_channels_asks_at_most_twenty_times_a_second(cluster: ClusterProcess) -> None:
    with antiphon.blocking.connect(cluster.url) as connection:
        for channel in CHANNELS:
            make(connection, f"topic:idle.{channel}", channel, 1)
    with (
        CountingProxy(cluster.url.removeprefix("antiphon://")) as proxy,
        antiphon.blocking.connect(f"antiphon://{proxy.address}") as connection,
    ):
        plan = planner(proxy.address, connection, subscribePattern="topic:idle.*", match="glob")
        offset = plan.initial("latest")
        assert plan.latest(offset) == offset
        before, began = proxy.said, time.monotonic()
        while time.monotonic() < began + 3:
            assert plan.latest(offset) == offset
            plan.newest()
        assert 1 <= (proxy.said - before) / (time.monotonic() - began) <= 20


def test_an_archive_has_the_messages_of_all_channels(cluster: ClusterProcess, tmp_path: Path) -> None:
    options = connection_options(cluster.url)
    folder, names = ArchiveFolder(tmp_path / "archive"), [f"topic:archived.{channel}" for channel in CHANNELS]
    with antiphon.blocking.connect(cluster.url) as connection:
        ranges = patient(connection.ranges())
        for count, (name, channel) in enumerate(zip(names, CHANNELS, strict=True), 10):
            make(connection, name, channel, count)
        connection.admin().create("topic:archived.wide", retention=3600, channels=["a", "b"])
        with connection.session() as session, session.producer("topic:archived.wide") as producer:
            producer.send_many([antiphon.Row(b"wide", key=f"{number}") for number in range(20)])
        settings = ArchiveSettings(words=("topic:archived.*",), file_rows=4)
        for rows in (53, 5):
            said = Archiving(ranges, options, folder, settings, loop).archive()
            assert said.rows == rows
            with connection.session() as session, session.producer(names[1]) as producer:
                producer.send_many([b"more"] * 5)
        positions = {hold.channel: hold.position for hold in ranges.holds() if hold.name == said.hold}
        assert positions.keys() == set(CHANNELS)
        checked = Auditing(folder, ["*"], loop, ranges, options).audit()
    assert (checked.problems, checked.rows, checked.compared, checked.waiting) == ([], 58, 58, 5)
    assert [one["channel"] for one in checked.destinations] == [*CHANNELS, "a", "b"]
