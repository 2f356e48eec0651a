"""Archiving: each message once, whatever happens between and within runs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import os
from pathlib import Path
from typing import Any

from antiphon.errors import ArchiveDamaged, ArchiveError, DestinationError, InvalidName, LocalError
from antiphon.pipeline.jobs.archiving import DAY_MS
from antiphon.pipeline.jobs.folder import ORPHAN_S, ArchiveFolder
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.jobs.stage import NOON_S, Archive


@pytest.fixture
def broker() -> Broker:
    return Broker("a", "b")


@pytest.fixture
def archive(tmp_path: Path, broker: Broker) -> Archive:
    return Archive(tmp_path / "archive", broker)


def test_a_run_archives_what_is_there_and_the_next_one_what_came_since(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:x")
    broker.create("topic:y", "b")
    numbers = [*broker.publish("topic:x", 10)]
    others = [*broker.publish("topic:y", 3)]
    said = archive.archive("topic:*")
    assert (said.rows, said.files, said.commits) == (13, 2, 1)
    numbers += broker.publish("topic:x", 5)
    said = archive.archive("topic:*")
    assert (said.rows, said.files) == (5, 1)
    assert archive.numbers() == numbers + others
    assert archive.archive("topic:*").commits == 0
    bodies = archive.rows()["body"].to_pylist()
    assert bodies[0] == b"body %d" % numbers[0]


def test_rows_have_every_column_and_stand_in_pages_as_they_came(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 10)
    broker.page_rows = 4
    archive.archive("topic:x")
    (file,) = archive.files()
    assert [page.rows for page in file.pages] == [4, 4, 2]
    assert file.pages[-1].stop == file.stop
    assert len({page.digest for page in file.pages}) == 3
    row = archive.rows().to_pylist()[0]
    assert (row["destination"], row["channel"], row["body_kind"], row["stored_body"]) == (
        "topic:x",
        "a",
        "bytes",
        None,
    )


def test_rounds_and_files_are_bounded(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    numbers = [*broker.publish("topic:x", 25)]
    said = archive.archive("topic:x", round_rows=10, file_rows=4, compacts=False)
    assert (said.rows, said.commits, said.files) == (25, 3, 8)
    assert archive.numbers() == numbers


def test_the_hold_moves_with_the_commits_and_idle_destinations_do_not_hold_it_up(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:idle")
    broker.publish("topic:idle", 1)
    broker.create("topic:x")
    (first, *_, last) = broker.publish("topic:x", 20)
    seen: list[int] = []
    archive.before_tasks = [lambda: seen.append(broker.held[said.hold][0]["a"])]
    job = archive.job("topic:*", hold_name="nightly")
    said = job._summary
    said.hold = "nightly"
    job.archive()
    assert seen == [2], "nothing has moved before the commit"
    assert broker.held["nightly"][0]["a"] == last + 1
    assert first > 2


def test_each_set_of_words_has_a_hold_of_its_own(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.create("topic:y")
    holds = {archive.archive(*words).hold for words in (["topic:x"], ["topic:y"], ["topic:x", "topic:y"])}
    assert len(holds) == 3
    assert archive.archive("topic:y", "topic:x").hold in holds


def test_files_of_a_killed_run_do_not_count_and_go_after_a_day(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    numbers = [*broker.publish("topic:x", 10)]

    def kill() -> None:
        raise KeyboardInterrupt

    archive.before_tasks = [kill]
    with pytest.raises(KeyboardInterrupt):
        archive.archive("topic:x")
    left = list(archive.folder.root.rglob("*.parquet"))
    assert len(left) == 1 and archive.files() == []
    archive.archive("topic:x")
    assert archive.numbers() == numbers
    assert left[0].exists()
    draft = archive.folder.root / "_antiphon" / "commits" / ".00000000000000000001.draft"
    draft.write_bytes(b"half")
    old = NOON_S - ORPHAN_S - 1
    os.utime(draft, (old, old))
    os.utime(left[0], (old, old))
    for place in archive.folder.root.rglob("*.parquet"):
        os.utime(place, (old, old))
    assert archive.archive("topic:x").dropped_files == 2
    assert archive.numbers() == numbers and not draft.exists()


def test_of_two_runs_at_once_one_commits_and_the_other_goes_on_from_there(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:x")
    numbers = [*broker.publish("topic:x", 10)]

    def overtake() -> None:
        assert archive.archive("topic:x").rows == 10

    archive.before_tasks = [overtake]
    said = archive.archive("topic:x")
    assert said.rows == 0 and archive.numbers() == numbers
    assert len(list(archive.folder.root.rglob("*.parquet"))) == 1, "the slower run took its file back"


def test_a_run_that_slept_until_its_files_were_swept_writes_them_again(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:x")
    numbers = [*broker.publish("topic:x", 10)]

    def sweep() -> None:
        assert archive.folder.drop_orphans(set(), NOON_S * 10) == 1

    archive.before_tasks = [sweep]
    assert archive.archive("topic:x").rows == 10
    assert archive.numbers() == numbers


def test_what_was_lost_between_two_runs_is_written_down(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 5)
    broker.trim("topic:x", 4)
    said = archive.archive("topic:x")
    assert said.lost == [], "what had gone before the first run is no loss"
    lost = broker.publish("topic:x", 5)
    kept = [*broker.publish("topic:x", 5)]
    broker.trim("topic:x", lost[-1])
    said = archive.archive("topic:x")
    assert said.lost == [{"name": "topic:x", "channel": "a", "first": lost[0], "last": lost[-1]}]
    assert said.rows == 5 and archive.numbers()[-5:] == kept
    assert archive.archive("topic:x").lost == [], "it is said once"
    assert [loss.last for loss in archive.folder.state().losses] == [lost[-1]]


def test_what_an_empty_topic_lost_after_its_first_run_is_a_loss(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    archive.archive("topic:x")
    lost = broker.publish("topic:x", 5)
    broker.trim("topic:x", lost[-1])
    said = archive.archive("topic:x")
    assert [(one["first"], one["last"]) for one in said.lost] == [(1, lost[-1])]


def test_rows_stand_under_the_date_of_log_time(archive: Archive, broker: Broker) -> None:
    today = int(NOON_S * 1000) // DAY_MS * DAY_MS
    broker.create("topic:x")
    numbers: list[int] = []
    for days_ago in (4, 1, 0):
        broker.mark("a", today - days_ago * DAY_MS + 1)
        numbers += broker.publish("topic:x", 3)
        broker.mark("a", today - days_ago * DAY_MS + 1_000)
    archive.archive("topic:x", compacts=False)
    assert [(file.date, file.rows) for file in archive.files()] == [
        ("2023-11-11", 3),
        ("2023-11-14", 3),
        ("2023-11-15", 3),
    ]
    assert archive.numbers() == numbers
    assert all(f"date={file.date}" in file.path for file in archive.files())


def test_a_destination_that_is_made_again_is_another_source(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    first = [*broker.publish("topic:x", 3)]
    archive.archive("topic:x")
    broker.delete("topic:x")
    said = archive.archive("topic:x")
    assert said.warnings == ["topic:x does not exist any more; the archive keeps what it has of it"]
    broker.create("topic:x", "b")
    second = [*broker.publish("topic:x", 4)]
    assert archive.archive("topic:x").rows == 4
    assert archive.numbers() == first + second
    assert len(archive.folder.state().files) == 2


def test_each_part_of_a_spanning_destination_is_a_source(archive: Archive, broker: Broker) -> None:
    for channel in ("a", "b"):
        broker.create("topic:wide", channel, is_part=True)
    numbers = [*broker.publish("a/topic:wide", 4)], [*broker.publish("b/topic:wide", 6)]
    for words in (["topic:wide"], ["topic:*", "topic:wide"]):
        archive.archive(*words)
        found = {(source.name, source.channel): source for source in archive.folder.state().files}
        assert list(found) == [("topic:wide", "a"), ("topic:wide", "b")]
    assert archive.numbers() == [*numbers[0], *numbers[1]]


def test_a_destination_that_is_deleted_during_a_run_holds_up_no_other(
    archive: Archive, broker: Broker
) -> None:
    broker.create("topic:x")
    broker.create("topic:y")
    broker.publish("topic:x", 3)
    numbers = [*broker.publish("topic:y", 3)]
    write, is_gone = archive.write, []

    def deleted(task: Any) -> Any:
        if task.source.name == "topic:x":
            if not is_gone:
                broker.delete("topic:x")
                is_gone.append(True)
            raise DestinationError("topic:x was deleted")
        return write(task)

    archive.write = deleted  # type: ignore[method-assign]
    said = archive.archive("topic:*")
    assert archive.numbers() == numbers
    assert said.warnings and "topic:x was deleted while it was archived" in said.warnings[0]


def test_mistakes_are_told_before_anything_is_made(archive: Archive, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="topic:none"):
        archive.archive("topic:none")
    with pytest.raises(LocalError, match="queue:_DMQ has a part on every channel"):
        archive.archive("queue:_DMQ")
    with pytest.raises(InvalidName):
        archive.archive("orders")
    with pytest.raises(LocalError, match="needs destinations"):
        archive.archive()
    broker.create("topic:x")
    archive.archive("topic:x")
    broker.id = "c2"
    with pytest.raises(ArchiveError, match="is of cluster c1, and this is cluster c2"):
        archive.archive("topic:x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ArchiveError, match="has files, and none of an archive"):
        Archive(tmp_path / "other", broker).archive("topic:x")


def test_a_dry_run_says_how_much_there_is_and_changes_nothing(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 7)
    said = archive.job("topic:x").dry_run()
    assert (said.rows, said.bytes, said.dry_run) == (7, 700, True)
    assert not archive.folder.root.exists() and broker.held == {}
    archive.archive("topic:x")
    assert archive.job("topic:x").dry_run().rows == 0


def test_small_files_are_joined_and_the_messages_stay(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    numbers: list[int] = []
    joined = 0
    for _ in range(70):
        numbers += broker.publish("topic:x", 2)
        joined += archive.archive("topic:x").joined_files
        assert archive.numbers() == numbers
    assert len(archive.files()) < 16
    assert joined < 3 * 70, "a file is rewritten a few times, not each time"
    assert archive.folder.state().number > 64, "one of the commits has repeated everything"


def test_damage_is_not_joined_into_a_sound_file(archive: Archive, broker: Broker) -> None:
    broker.create("topic:x")
    for _ in range(7):
        broker.publish("topic:x", 2)
        archive.archive("topic:x")
    place = archive.folder.place_of(archive.files()[2].path)
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    broker.publish("topic:x", 2)
    with pytest.raises(ArchiveDamaged, match="is not what was written"):
        archive.archive("topic:x")
    assert len(archive.files()) == 8, "and what was archived stays archived"


def test_a_full_disk_is_one_sentence(
    archive: Archive, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("topic:x")
    broker.publish("topic:x", 2)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("antiphon.pipeline.jobs.files.digest_of", full)
    with pytest.raises(ArchiveError, match="cannot be written: No space left on device"):
        archive.archive("topic:x")
    monkeypatch.undo()
    assert list(archive.folder.root.rglob("*.parquet")) == []
    assert archive.archive("topic:x").rows == 2


def test_an_archive_is_opened_by_its_folder(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="is no archive"):
        ArchiveFolder(tmp_path / "nothing").require()
