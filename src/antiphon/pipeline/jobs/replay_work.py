"""Replay work: the part of a replay that Spark does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from antiphon.errors import LocalError
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.jobs.manifest import ArchiveFile
from antiphon.pipeline.jobs.replaying import (
    PARTITION_ROWS,
    Chunk,
    ReplaySettings,
    ReplayWork,
    archive_schema,
    outgoing_rows,
    sink_options,
    wanted_rows,
)
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.session import deliberate_errors, last_sentence, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay_work(
    session: SparkSession, folder: ArchiveFolder, settings: ReplaySettings, connection: ConnectionOptions
) -> ReplayWork:
    """Check files and send chunks in this session."""
    _check_condition(session, settings)

    def check(files: Sequence[ArchiveFile]) -> None:
        run_tasks(session, files, partial(_check_file, folder))

    def send(files: Sequence[ArchiveFile], chunk: Chunk, application: str, version: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        if not files:
            return 0
        paths = [str(folder.place_of(file.path)) for file in files]
        frame = wanted_rows(session.read.schema(archive_schema()).parquet(*paths), settings, chunk)
        parts = min(-(-chunk.rows // PARTITION_ROWS), session.sparkContext.defaultParallelism)
        rows = outgoing_rows(frame)
        rows = rows.repartitionByRange(parts, "sequence") if parts > 1 else rows.coalesce(1)
        counted = Observation()
        rows = rows.sortWithinPartitions("sequence").observe(counted, count(lit(1)).alias("rows"))
        with deliberate_errors():
            (
                rows.write.format("antiphon")
                .options(**sink_options(connection))
                .options(destination=settings.destination, txnAppId=application, txnVersion=str(version))
                .mode("append")
                .save()
            )
        return int(counted.get["rows"])

    return ReplayWork(check, send)


def _check_file(folder: ArchiveFolder, file: ArchiveFile) -> None:
    folder.kept(file)


def _check_condition(session: SparkSession, settings: ReplaySettings) -> None:
    """A condition that Spark does not understand is refused before anything is planned."""
    if settings.where is not None:
        frame = session.createDataFrame([], archive_schema())
        try:
            frame.where(settings.where).schema  # noqa: B018  (Spark looks at it now)
        except Exception as error:
            raise LocalError(f"where {settings.where!r} is no condition: {last_sentence(error)}") from None
