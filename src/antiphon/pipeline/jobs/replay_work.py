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
    wanted_rows,
)
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.session import JobSession, deliberate_errors, last_sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay_work(
    session: JobSession, folder: ArchiveFolder, settings: ReplaySettings, connection: ConnectionOptions
) -> ReplayWork:
    """Check files and send chunks in this session."""

    def begin() -> None:
        if settings.where is not None:
            _check_condition(session.spark, settings.where)

    def check(files: Sequence[ArchiveFile]) -> None:
        session.run(files, partial(_check_file, folder))

    def send(files: Sequence[ArchiveFile], chunk: Chunk, application: str, version: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        if not files:
            return 0
        spark = session.spark
        paths = [str(folder.place_of(file.path)) for file in files]
        frame = wanted_rows(spark.read.schema(archive_schema()).parquet(*paths), settings, chunk)
        parts = min(-(-chunk.rows // PARTITION_ROWS), spark.sparkContext.defaultParallelism)
        rows = outgoing_rows(frame)
        rows = rows.repartitionByRange(parts, "sequence") if parts > 1 else rows.coalesce(1)
        counted = Observation()
        rows = rows.sortWithinPartitions("sequence").observe(counted, count(lit(1)).alias("rows"))
        with deliberate_errors():
            (
                rows.write.format("antiphon")
                .options(**connection.texts)
                .options(destination=settings.destination, txnAppId=application, txnVersion=str(version))
                .mode("append")
                .save()
            )
        return int(counted.get["rows"])

    return ReplayWork(begin, check, send)


def _check_file(folder: ArchiveFolder, file: ArchiveFile) -> None:
    folder.kept(file)


def _check_condition(spark: SparkSession, where: str) -> None:
    """A condition that Spark does not understand is refused before anything is planned."""
    try:
        # Spark looks at it when it is asked for the columns.
        assert spark.createDataFrame([], archive_schema()).where(where).columns
    except AssertionError:
        raise
    except Exception as error:
        raise LocalError(f"where {where!r} is no condition: {last_sentence(error)}") from None
