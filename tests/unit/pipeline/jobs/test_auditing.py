"""Auditing: each way in which an archive can be wrong is named, with its numbers, and nothing else is."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from antiphon.errors import ArchiveError
from antiphon.pipeline.jobs.auditing import AuditedFile, Auditing, AuditSummary, AuditTask, audit_range
from antiphon.pipeline.jobs.folder import digest_of
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchivePage
from antiphon.pipeline.jobs.row_digests import rows_digest
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.jobs.stage import CONNECTION, Archive


@pytest.fixture
def broker() -> Broker:
    broker = Broker("a")
    broker.page_rows = 4
    return broker


@pytest.fixture
def archive(tmp_path: Path, broker: Broker) -> Archive:
    return Archive(tmp_path / "archive", broker)


def audit(archive: Archive, *words: str, offline: bool = False) -> AuditSummary:
    ranges = None if offline else archive.ranges

    def check(task: AuditTask) -> AuditedFile:
        return audit_range(task, ranges)

    return Auditing(
        archive.folder, words or ("*",), archive.run_tasks, ranges, CONNECTION, check=check
    ).audit()


def told(said: AuditSummary) -> list[tuple[str, int, int]]:
    return [(problem.what, problem.first, problem.last) for problem in said.problems]


def forge(archive: Archive, change: Callable[[pa.Table], pa.Table], *, is_thorough: bool = False) -> None:
    """Change the rows of the first file, with a manifest that fits; if thorough also the pages' digests."""
    state, file = archive.folder.state(), archive.files()[0]
    place = archive.folder.place_of(file.path)
    table = change(pq.read_table(place))
    pq.write_table(table, place)
    digest, size = digest_of(place)
    pages: tuple[ArchivePage, ...] = file.pages
    if is_thorough:
        pages, start = (), file.start
        for page in file.pages:
            numbers = table["sequence"]
            own = table.filter(pc.and_(pc.greater_equal(numbers, start), pc.less(numbers, page.stop)))
            pages += (ArchivePage(page.stop, own.num_rows, rows_digest(own.to_batches())),)
            start = page.stop
    forged = replace(file, size=size, digest=digest, pages=pages, rows=table.num_rows)
    commit = state.next_commit("forgery", 1, [forged], [file.path])
    assert archive.folder.add(commit)


def without(*numbers: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.filter(pc.invert(pc.is_in(table["sequence"], pa.array(numbers, pa.int64()))))


def test_a_sound_archive_has_no_problems(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.create("queue:y")
    for _ in range(3):
        broker.publish("topic:x", 10)
        broker.publish("queue:y", 7)
        archive.archive("*:*")
    broker.publish("topic:x", 5)
    broker.page_rows = 3
    said = audit(archive)
    assert said.problems == []
    assert (said.rows, said.compared, said.waiting, said.files) == (51, 51, 5, 6)


def test_what_replicas_have_dropped_is_checked_by_the_archive_alone(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    numbers = broker.publish("topic:x", 10)
    archive.archive("topic:x")
    broker.trim("topic:x", numbers[5])
    said = audit(archive)
    assert (said.problems, said.rows, said.compared) == ([], 10, 4)
    broker.delete("topic:x")
    said = audit(archive)
    assert (said.problems, said.rows, said.compared) == ([], 10, 0)
    assert [one["exists"] for one in said.destinations] == [False]


def test_a_removed_file_is_named_with_its_range(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 10)
    archive.archive("topic:x")
    numbers = broker.publish("topic:x", 10)
    archive.archive("topic:x")
    archive.folder.place_of(archive.files()[1].path).unlink()
    for offline in (False, True):
        said = audit(archive, offline=offline)
        assert told(said) == [("damaged", numbers[0], numbers[-1])]
        assert "is missing" in said.problems[0].text


def test_any_flipped_byte_is_named_with_its_range(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    numbers = broker.publish("topic:x", 10)
    archive.archive("topic:x")
    place = archive.folder.place_of(archive.files()[0].path)
    sound = place.read_bytes()
    for at in range(0, len(sound), 97):
        changed = bytearray(sound)
        changed[at] ^= 0x20
        place.write_bytes(changed)
        assert told(audit(archive)) == [("damaged", 2, numbers[-1])]
    place.write_bytes(sound[:-1])
    assert told(audit(archive)) == [("damaged", 2, numbers[-1])]


def test_a_changed_manifest_is_a_problem(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 10)
    archive.archive("topic:x")
    place = archive.folder._place(1)
    place.write_bytes(place.read_bytes().replace(b"archive", b"ARCHIVE"))
    assert told(audit(archive)) == [("manifest", 0, 0)]


def test_rows_that_are_not_those_of_the_page_are_named(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    (first, *_) = broker.publish("topic:x", 10)
    archive.archive("topic:x")

    def shout(table: pa.Table) -> pa.Table:
        bodies = table["body"].to_pylist()
        bodies[5] = b"BODY"
        place = table.schema.get_field_index("body")
        return table.set_column(place, table.schema.field(place), pa.array(bodies, pa.binary()))

    forge(archive, shout)
    assert told(audit(archive)) == [("changed", first + 4, first + 7), ("changed", first + 5, first + 5)]
    assert told(audit(archive, offline=True)) == [("changed", first + 4, first + 7)]


def test_a_message_that_is_missing_is_named_even_if_the_manifest_agrees(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:x")
    (first, *_) = broker.publish("topic:x", 12)
    archive.archive("topic:x")
    forge(archive, without(first + 3, first + 4, first + 9), is_thorough=True)
    assert told(audit(archive)) == [
        ("missing", first + 3, first + 3),
        ("missing", first + 4, first + 4),
        ("missing", first + 9, first + 9),
    ]


def test_a_message_that_a_topic_never_had_is_named(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.create("queue:y")
    (first, *_) = broker.publish("topic:x", 8)
    (second, *_) = broker.publish("queue:y", 4)
    archive.archive("*:*")
    del broker.channels["a"].kept[first + 2]
    del broker.channels["a"].kept[second + 2]
    assert told(audit(archive)) == [("extra", first + 2, first + 2)], "a queue's message was consumed"


def test_a_message_that_is_there_twice_is_named(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    (first, *_) = broker.publish("topic:x", 8)
    archive.archive("topic:x")
    forge(
        archive,
        lambda table: pa.concat_tables([table.slice(0, 3), table.slice(2)]),
        is_thorough=True,
    )
    assert ("doubled", first + 2, first + 2) in told(audit(archive))


def test_messages_that_change_places_are_named(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    (first, *_) = broker.publish("topic:x", 8)
    archive.archive("topic:x")

    def exchange(table: pa.Table) -> pa.Table:
        ids = table["message_id"].to_pylist()
        ids[1], ids[2] = ids[2], ids[1]
        place = table.schema.get_field_index("message_id")
        return table.set_column(place, table.schema.field(place), pa.array(ids, pa.string()))

    forge(archive, exchange, is_thorough=True)
    assert ("order", first + 2, first + 2) in told(audit(archive, offline=True))


def test_order_is_looked_at_over_pages_and_files(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 8)
    archive.archive("topic:x")
    broker.publish("topic:x", 8)
    archive.archive("topic:x")

    def later(table: pa.Table) -> pa.Table:
        ids = [text.replace("@", "000@") for text in table["message_id"].to_pylist()]
        place = table.schema.get_field_index("message_id")
        return table.set_column(place, table.schema.field(place), pa.array(ids, pa.string()))

    forge(archive, later, is_thorough=True)
    second: ArchiveFile = archive.files()[1]
    assert told(audit(archive, offline=True)) == [("order", second.start, second.stop - 1)]


def test_ids_of_staged_messages_have_numbers_of_64_bits(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 8)
    archive.archive("topic:x")

    def stage(table: pa.Table) -> pa.Table:
        ids = [f"ID:{7:032x}-{(1 << 63) + at}@a" for at in range(table.num_rows)]
        place = table.schema.get_field_index("message_id")
        return table.set_column(place, table.schema.field(place), pa.array(ids, pa.string()))

    forge(archive, stage, is_thorough=True)
    assert audit(archive, offline=True).problems == []


def test_what_was_lost_before_it_was_archived_stays_a_problem(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 4)
    archive.archive("topic:x")
    lost = broker.publish("topic:x", 4)
    broker.trim("topic:x", lost[-1])
    broker.publish("topic:x", 4)
    archive.archive("topic:x")
    assert told(audit(archive)) == [("lost", lost[0], lost[-1])]


def test_only_the_named_destinations_are_looked_at(archive: Archive, broker: Broker) -> None:
    for name in ("topic:x", "topic:y"):
        broker.create(name)
        broker.publish(name, 4)
    archive.archive("topic:*")
    archive.folder.place_of(archive.files()[1].path).unlink()
    assert audit(archive, "topic:x").problems == []
    assert len(audit(archive, "topic:*").problems) == 1
    with pytest.raises(ArchiveError, match="has nothing of topic:z"):
        audit(archive, "topic:z")


def test_a_topic_without_a_message_is_sound(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    archive.archive("topic:x")
    assert audit(archive, "topic:x").problems == []
    broker.publish("topic:x", 3)
    said = audit(archive, "topic:x")
    assert (said.problems, said.waiting) == ([], 3)


def test_parts_of_a_spanning_destination_are_compared_each_with_its_own(tmp_path: Path) -> None:
    broker = Broker("a", "b")
    archive = Archive(tmp_path / "archive", broker)
    for channel in ("a", "b"):
        broker.create("topic:wide", channel, is_part=True)
    broker.publish("a/topic:wide", 4)
    broker.publish("b/topic:wide", 6)
    archive.archive("topic:wide")
    broker.publish("b/topic:wide", 1)
    said = audit(archive, "topic:wide")
    assert (said.problems, said.rows, said.compared, said.waiting) == ([], 10, 10, 1)


def test_another_cluster_cannot_vouch(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    archive.archive("topic:x")
    broker.id = "c2"
    with pytest.raises(ArchiveError, match="only its own cluster can vouch"):
        audit(archive)
