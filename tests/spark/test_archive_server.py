"""Archives beside a real server, without Spark: tasks are a loop. What servers do to messages meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import antiphon.blocking
from antiphon.pipeline import connections
from antiphon.pipeline.jobs.archiving import ArchiveSettings, ArchiveSummary, Archiving
from antiphon.pipeline.jobs.auditing import Auditing, AuditSummary
from antiphon.pipeline.jobs.choosing import connection_options
from antiphon.pipeline.jobs.folder import ArchiveFolder
from tests.processes import Server
from tests.spark.messages import consume
from tests.spark.tasks import loop

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection
WAIT_SECONDS = 60.0


class Jobs:
    """An archive of one destination."""

    def __init__(self, server: Server, folder: Path, name: str) -> None:
        self.options = connection_options(server.url)
        self.ranges = connections.ranges(self.options)
        self.folder = ArchiveFolder(folder)
        self.name = name

    def archive(self, **settings: Any) -> ArchiveSummary:
        made = ArchiveSettings(words=(self.name,), **settings)
        return Archiving(self.ranges, self.options, self.folder, made, loop).archive()

    def audit(self) -> AuditSummary:
        return Auditing(self.folder, [self.name], loop, self.ranges, self.options).audit()


def send(connection: Connection, name: str, count: int, **more: Any) -> None:
    with connection.session() as session, session.producer(name) as producer:
        for number in range(count):
            producer.send(f"{number}", **more)


def test_a_queue_that_is_consumed_between_runs_is_archived_whole(
    server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    queue = name("queue")
    jobs = Jobs(server, tmp_path / "archive", queue)
    send(connection, queue, 20)
    assert jobs.archive().rows == 20
    send(connection, queue, 30)
    assert len(consume(connection, queue, 0.2)) == 50
    said = jobs.archive()
    assert (said.rows, said.lost) == (30, [])
    checked = jobs.audit()
    assert (checked.problems, checked.rows) == ([], 50)


def test_a_topic_that_is_purged_or_cut_short_leaves_the_archive_as_it_is(
    server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3_600)
    jobs = Jobs(server, tmp_path / "archive", topic)
    send(connection, topic, 20)
    jobs.archive()
    connection.admin().purge(topic)
    send(connection, topic, 5)
    checked = jobs.audit()
    assert (checked.problems, checked.rows, checked.compared, checked.waiting) == ([], 20, 0, 5)
    assert jobs.archive().rows == 5
    checked = jobs.audit()
    assert (checked.problems, checked.rows, checked.compared) == ([], 25, 5)


def test_messages_that_expire_or_that_no_subscription_wants_are_no_problem(
    server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention="consumed")
    with connection.session() as session:
        some = session.consumer(topic, selector="n > 10")
        every = session.consumer(topic)
        with connection.session() as other, other.producer(topic) as producer:
            for number in range(20):
                producer.send(f"{number}", properties={"n": number}, ttl=0.05 if number % 3 == 0 else None)
        jobs = Jobs(server, tmp_path / "archive", topic)
        archived = jobs.archive(hold_limit_s=1.0)
        assert archived.rows >= 13
        assert jobs.audit().problems == []
        assert len(some.receive_many(20, timeout=0.5)) >= 6
        assert len(every.receive_many(20, timeout=0.5)) >= 13
    checked = jobs.audit()
    assert (checked.problems, checked.rows) == ([], archived.rows)


def test_what_the_hold_could_not_keep_is_lost_with_its_numbers(
    server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3_600)
    jobs = Jobs(server, tmp_path / "archive", topic)
    send(connection, topic, 20)
    hold = jobs.archive().hold
    with connection.ranges() as ranges:
        ranges.release(hold)
    send(connection, topic, 10)
    connection.admin().purge(topic)
    send(connection, topic, 5)
    said = jobs.archive()
    assert (said.rows, [one["name"] for one in said.lost]) == (5, [topic])
    assert [problem.what for problem in jobs.audit().problems] == ["lost"]
    assert jobs.archive().lost == []
