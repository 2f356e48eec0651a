"""Runs of an archive in any order of events: killed at any point, overtaken, with retention at its heels.

The rule that is checked after every run that ends: what a source has in the archive is all that it was given
(of a deleted one, all up to some message), each once and in order, and an audit finds nothing wrong.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.pipeline.jobs.auditing import Auditing, audit_range
from antiphon.pipeline.jobs.files import file_pages
from antiphon.pipeline.jobs.folder import ORPHAN_S
from antiphon.pipeline.jobs.manifest import ArchiveSource
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.jobs.stage import CONNECTION, Archive

T = TypeVar("T")
NAMES = ("topic:x", "topic:y", "topic:z")
HOLD = "nightly"

events = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(NAMES), st.integers(1, 9)),
        st.tuples(st.just("publish"), st.sampled_from(NAMES), st.integers(1, 9)),
        st.tuples(st.just("run"), st.none(), st.just(0)),
        st.tuples(st.just("run"), st.none(), st.integers(1, 14)),
        st.tuples(st.just("overtaken"), st.none(), st.integers(1, 3)),
        st.tuples(st.just("retention"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("again"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("day"), st.none(), st.just(0)),
    ),
    max_size=25,
)


class Killed(BaseException):
    """The end of a job's process."""


class World:
    def __init__(self, place: Path) -> None:
        self.broker = Broker("a", "b")
        self.broker.page_rows = 3
        self.archive = Archive(place, self.broker)
        self.given: dict[ArchiveSource, list[int]] = {}
        self.sources: dict[str, ArchiveSource] = {}
        self.steps_left = 0
        for name in NAMES:
            self.create(name)
        self.archive.write = self.killable(self.archive.write)  # type: ignore[method-assign]
        self.archive.folder.add = self.killable(self.archive.folder.add)  # type: ignore[method-assign]
        self.broker.hold = self.killable(self.broker.hold)  # type: ignore[method-assign]
        self.run()

    def killable(self, step: Callable[..., T]) -> Callable[..., T]:
        """A step before and behind which a job may be killed."""

        def stepping(*words: Any, **more: Any) -> T:
            self.tick()
            done = step(*words, **more)
            self.tick()
            return done

        return stepping

    def tick(self) -> None:
        if self.steps_left:
            self.steps_left -= 1
            if not self.steps_left:
                raise Killed

    def create(self, name: str) -> None:
        made = self.broker.create(name, "b" if name == "topic:z" else "a")
        self.sources[name] = source = ArchiveSource(name, made.channel, made.id)
        self.given[source] = []

    def happen(self, event: str, name: str | None, count: int) -> None:
        match event, name:
            case "publish", str(name):
                self.given[self.sources[name]] += self.broker.publish(name, count)
            case "run", _:
                self.run(count)
            case "overtaken", _:
                self.archive.before_tasks = [lambda: None] * (count - 1) + [self.run]
                self.run()
                self.archive.before_tasks = []
            case "retention", str(name):
                # A short one: only the hold keeps anything.
                held = self.broker.held[HOLD][0]
                self.broker.trim(name, held[self.sources[name].channel] - 1)
            case "again", str(name):
                self.broker.delete(name)
                self.create(name)
            case "day", _:
                self.archive.now_s += ORPHAN_S + 1

    def run(self, kill_at: int = 0) -> None:
        """A run, which may be killed at its so-and-so-many-th step."""
        self.steps_left = kill_at
        try:
            said = self.archive.archive(*NAMES, hold_name=HOLD, round_rows=7, file_rows=4)
        except Killed:
            return
        finally:
            self.steps_left = 0
        assert said.lost == []
        self.check()

    def check(self) -> None:
        found: dict[ArchiveSource, list[int]] = {}
        for file in self.archive.files():
            for _, batches in file_pages(self.archive.folder, file):
                for batch in batches:
                    found.setdefault(file.source, []).extend(batch.column("sequence").to_pylist())
        for source, numbers in self.given.items():
            archived = found.pop(source, [])
            if source == self.sources[source.name]:
                assert archived == numbers
            else:
                assert archived == numbers[: len(archived)], "deleted before all of it was archived"
        assert not found

    def audit(self) -> None:
        ranges = self.archive.ranges
        said = Auditing(
            self.archive.folder,
            ["topic:*"],
            self.archive.run_tasks,
            ranges,
            CONNECTION,
            check=lambda task: audit_range(task, ranges),
        ).audit()
        assert said.problems == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events)
def test_every_message_is_archived_once_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, str | None, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("runs") / "archive")
    for event in said:
        world.happen(*event)
    world.run()
    world.audit()
