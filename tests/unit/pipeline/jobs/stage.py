"""An archive in a folder, beside a broker in memory; tasks are a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from antiphon.pipeline.jobs.archiving import ArchiveSettings, ArchiveSummary, Archiving
from antiphon.pipeline.jobs.files import SpanTask, file_pages, write_range
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.jobs.manifest import ArchiveFile
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges, RetryPolicy
from tests.unit.pipeline.broker import Broker

CONNECTION = ConnectionOptions("127.0.0.1:1")
NOON_S = 1_700_049_600.0  # 2023-11-15, noon


class Archive:
    """What a test archives, and where."""

    def __init__(self, place: Path, broker: Broker) -> None:
        self.broker = broker
        self.folder = ArchiveFolder(place)
        self.ranges = PatientRanges(broker.reached, RetryPolicy(1, 0.1, sleep=lambda s: None))
        self.now_s = NOON_S
        self.tasks: list[Any] = []
        self.before_tasks: list[Callable[[], None]] = []

    def job(self, *words: str, **settings: Any) -> Archiving:
        return Archiving(
            self.ranges,
            CONNECTION,
            self.folder,
            ArchiveSettings(words=words, **settings),
            self.run_tasks,
            write=self.write,
            wall_s=lambda: self.now_s,
        )

    def archive(self, *words: str, **settings: Any) -> ArchiveSummary:
        return self.job(*words, **settings).archive()

    def write(self, task: SpanTask) -> ArchiveFile:
        return write_range(task, self.ranges)

    def run_tasks(self, tasks: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        self.tasks += tasks
        done = [work(task) for task in tasks]
        if self.before_tasks:
            self.before_tasks.pop(0)()
        return done

    def files(self) -> list[ArchiveFile]:
        return [file for files in self.folder.state().files.values() for file in files]

    def rows(self) -> pa.Table:
        return pa.Table.from_batches(
            [
                batch
                for file in self.files()
                for _, batches in file_pages(self.folder, file)
                for batch in batches
            ]
        )

    def numbers(self) -> list[int]:
        found: list[int] = self.rows()["sequence"].to_pylist()
        return found
