"""Replaying: chunks that are planned once, sent under their numbers, and go on where they were."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ArchiveDamaged, ArchiveError, InvalidName, LocalError
from antiphon.pipeline.jobs.files import file_pages
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchivePage, ArchiveSource
from antiphon.pipeline.jobs.replaying import (
    Chunk,
    NumberRange,
    Replaying,
    ReplaySettings,
    ReplayWork,
    _chunks,
)
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.jobs.stage import Archive

SETTINGS = ReplaySettings(destination="topic:again")


class Sink:
    """What the cluster remembers: versions that were committed, and the numbers they had."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.committed: dict[tuple[str, int], list[int]] = {}
        self.attempts = 0
        self.dies_after: int | None = None
        self.checked: list[str] = []
        self.now_s = 0.0

    @property
    def numbers(self) -> list[int]:
        return [number for numbers in self.committed.values() for number in numbers]

    @property
    def work(self) -> ReplayWork:
        return ReplayWork(lambda: None, self.check, self.send)

    def check(self, files: Sequence[ArchiveFile]) -> None:
        for file in files:
            self.checked.append(file.path)
            self.archive.folder.kept(file)

    def send(self, files: Sequence[ArchiveFile], chunk: Chunk, application: str, version: int) -> int:
        self.attempts += 1
        found = sorted(
            number
            for file in files
            for _, batches in file_pages(self.archive.folder, file)
            for batch in batches
            for number in batch.column("sequence").to_pylist()
            if chunk.start <= number < chunk.stop
        )
        self.committed.setdefault((application, version), found)
        if self.dies_after == self.attempts:
            raise KeyboardInterrupt
        return len(found)

    def replay(self, settings: ReplaySettings = SETTINGS, **more: Any) -> Any:
        return Replaying(
            self.archive.folder,
            settings,
            self.archive.ranges,
            self.work,
            **{"now_s": lambda: self.now_s, "sleep": self.sleep, "chunk_rows": 10, **more},
        ).replay()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def broker() -> Broker:
    broker = Broker("a", "b")
    broker.page_rows = 4
    return broker


@pytest.fixture
def archive(tmp_path: Path, broker: Broker) -> Archive:
    return Archive(tmp_path / "archive", broker)


@pytest.fixture
def sink(archive: Archive) -> Sink:
    return Sink(archive)


def fill(archive: Archive, broker: Broker) -> list[int]:
    """Two topics of a channel and one of another, which take turns; the numbers in order, by channel."""
    for name, channel in (("topic:x", "a"), ("topic:y", "a"), ("topic:z", "b")):
        broker.create(name, channel)
    numbers: list[int] = []
    for _ in range(4):
        numbers += [*broker.publish("topic:x", 7), *broker.publish("topic:y", 3)]
    others = [*broker.publish("topic:z", 9)]
    archive.archive("topic:*")
    return numbers + others


def test_every_message_is_sent_once_in_the_order_of_its_channel(
    archive: Archive, broker: Broker, sink: Sink
) -> None:
    numbers = fill(archive, broker)
    said = sink.replay()
    assert sink.numbers == numbers
    assert (said.rows, said.planned, said.chunks) == (49, 49, len(sink.committed))
    assert len(sink.committed) > 3
    assert sink.replay().rows == 0 and sink.numbers == numbers


@pytest.mark.parametrize("dies_after", [1, 2, 3])
def test_a_replay_that_is_killed_goes_on(
    archive: Archive, broker: Broker, sink: Sink, dies_after: int
) -> None:
    numbers = fill(archive, broker)
    sink.dies_after = dies_after
    with pytest.raises(KeyboardInterrupt):
        sink.replay()
    # The archive grows and its files are joined, and a further source matches.
    for _ in range(8):
        broker.publish("topic:x", 5)
        archive.archive("topic:*")
    broker.create("topic:new")
    broker.publish("topic:new", 3)
    archive.archive("topic:*")
    said = sink.replay(chunk_rows=3)
    assert said.done_before == dies_after - 1, "the chunk that was not noted is sent again, and known"
    assert sink.numbers == numbers
    assert len({application for application, _ in sink.committed}) == 1
    assert [version for _, version in sink.committed] == list(range(len(sink.committed)))


def test_another_name_replays_again_and_a_known_name_keeps_its_words(
    archive: Archive, broker: Broker, sink: Sink
) -> None:
    numbers = fill(archive, broker)
    sink.replay(name="one")
    sink.replay(name="two")
    assert sorted(sink.numbers) == sorted(numbers * 2)
    with pytest.raises(ArchiveError, match="was begun with other words"):
        sink.replay(ReplaySettings(destination="topic:again", where="key = 'a'"), name="two")
    broker.id = "c2"
    with pytest.raises(ArchiveError, match="begun on cluster c1, and this is cluster c2"):
        sink.replay(name="two")
    sink.replay()
    assert len(sink.numbers) == 3 * len(numbers), "another cluster may have them, too"


def test_sources_and_numbers_are_chosen(archive: Archive, broker: Broker, sink: Sink) -> None:
    numbers = fill(archive, broker)
    sink.replay(ReplaySettings(destination="topic:again", words=("topic:z",)))
    assert sink.numbers == numbers[-9:]
    sink.committed.clear()
    some = NumberRange(numbers[5], numbers[20], "a")
    said = sink.replay(ReplaySettings(destination="topic:again", numbers=some))
    assert sink.numbers == numbers[5:21]
    assert said.planned >= said.rows == 16
    with pytest.raises(ArchiveError, match="has nothing of topic:none"):
        sink.replay(ReplaySettings(destination="topic:again", words=("topic:none",)))


def test_a_rate_makes_small_chunks_and_waits(archive: Archive, broker: Broker, sink: Sink) -> None:
    fill(archive, broker)
    said = sink.replay(rate=5.0)
    assert said.chunks == len(sink.committed) >= 7
    assert all(len(numbers) < 15 for numbers in sink.committed.values()), "about as many as the rate"
    assert sink.now_s == pytest.approx(49 / 5)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LocalError, match="above 0"):
            sink.replay(rate=wrong)


def test_a_destination_does_not_get_its_own_messages(archive: Archive, broker: Broker, sink: Sink) -> None:
    fill(archive, broker)
    own = ReplaySettings(destination="topic:x")
    with pytest.raises(ArchiveError, match="would get its own messages again"):
        sink.replay(own)
    assert sink.replay(ReplaySettings(destination="topic:x", words=("topic:z",))).rows == 9
    broker.delete("topic:x")
    broker.create("topic:x")
    assert sink.replay(own).rows == 49, "it is another one now"


def test_a_damaged_file_is_not_replayed(archive: Archive, broker: Broker, sink: Sink) -> None:
    fill(archive, broker)
    place = archive.folder.place_of(archive.files()[0].path)
    place.write_bytes(place.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveDamaged, match="is not what was written"):
        sink.replay()
    assert sink.numbers == []


def test_a_file_is_checked_once_in_a_run(archive: Archive, broker: Broker, sink: Sink) -> None:
    fill(archive, broker)
    sink.replay()
    assert len(sink.checked) == len(set(sink.checked)) == 3


def test_a_dry_run_sends_and_notes_nothing(archive: Archive, broker: Broker, sink: Sink) -> None:
    fill(archive, broker)
    said = Replaying(archive.folder, SETTINGS, archive.ranges, sink.work).dry_run()
    assert (said.planned, said.dry_run, said.rows) == (49, True, 0)
    assert said.bytes == sum(file.size for file in archive.files())
    assert not (archive.folder.root / "_antiphon" / "replays").exists() and sink.attempts == 0


def test_mistakes_are_told(archive: Archive, broker: Broker, sink: Sink) -> None:
    with pytest.raises(ArchiveError, match="is no archive"):
        sink.replay()
    with pytest.raises(InvalidName):
        sink.replay(ReplaySettings(destination="again"))


pages = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 30)).map(lambda one: (one[0] + 1, min(one[1], one[0] + 1))),
    max_size=6,
)


@given(st.lists(st.tuples(st.integers(1, 60), pages), max_size=3), st.integers(1, 12), st.data())
def test_chunks_cover_every_number_once_and_none_outside(
    said: list[tuple[int, list[tuple[int, int]]]], rows_max: int, data: st.DataObject
) -> None:
    files = []
    for at, (start, lengths) in enumerate(said):
        stop, found = start, []
        for length, rows in lengths:
            stop += length
            found.append(ArchivePage(stop, rows, ""))
        rows = sum(page.rows for page in found)
        files.append(ArchiveFile(ArchiveSource(f"topic:{at}", "a", at), start, stop, "", rows, tuple(found)))
    wanted = data.draw(st.none() | st.builds(NumberRange, st.integers(1, 90), st.integers(90, 200)))
    chunks = list(_chunks("a", files, wanted, rows_max))
    for before, chunk in pairwise(chunks):
        assert before.stop == chunk.start
    first, last = (wanted.first, wanted.last) if wanted else (1, 1000)
    for file in files:
        start = file.start
        for page in file.pages:
            low, high = max(start, first), min(page.stop - 1, last)
            if page.rows and low <= high:
                assert chunks[0].start <= low and high < chunks[-1].stop
            start = page.stop
    assert all(chunk.start < chunk.stop and chunk.rows > 0 for chunk in chunks)
    assert all(chunk.start >= first and chunk.stop <= last + 1 for chunk in chunks)
