"""Source: the interface that Spark calls; each call is handed on at once.

SRC1  A reader can be pickled at any time: it holds options, never a connection.
SRC2  An idle stream asks for news by waiting at the broker, and Spark asks no more often than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from antiphon.errors import InvalidOption
from antiphon.pipeline import connections
from antiphon.pipeline.columns import EVERY_COLUMN, spark_schema
from antiphon.pipeline.filters import EVERYTHING, narrow
from antiphon.pipeline.offsets import BadOffset, Offset, parse_offset
from antiphon.pipeline.options import SourceOptions
from antiphon.pipeline.planning import NO_LIMIT, Limit, Planner, TaskSpan

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class TaskPartition(InputPartition):
    """A span on its way to an executor."""

    def __init__(self, span: TaskSpan) -> None:
        super().__init__(span)
        self.span = span

    def __repr__(self) -> str:
        span = self.span
        return f"TaskPartition({span.channel}, {span.start} to {span.stop})"


def schema(options: Mapping[str, str]) -> str:
    """The columns; parsing the options here makes `load()` refuse wrong ones at once."""
    return spark_schema(SourceOptions.parse(options).wanted.names)


def batch_reader(options: Mapping[str, str], wanted: StructType) -> BatchSourceReader:
    """For `spark.read`."""
    parsed = SourceOptions.parse(options)
    parsed.refuse_in_batch()
    return BatchSourceReader(_choose(parsed, wanted))


def stream_reader(options: Mapping[str, str], wanted: StructType) -> StreamSourceReader:
    """For `spark.readStream`."""
    parsed = SourceOptions.parse(options)
    parsed.refuse_in_stream()
    return StreamSourceReader(_choose(parsed, wanted))


def _choose(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The columns of a schema that the user gives, which may be fewer and in another order."""
    known = options.wanted.names
    for field in schema.fields:
        if field.name not in known:
            raise InvalidOption(
                f"the schema has a column {field.name}; Antiphon's source has {', '.join(known)}"
            )
        kind = field.dataType.simpleString()
        if kind != EVERY_COLUMN[field.name] or not field.nullable:
            wrong = kind if field.nullable else f"{kind} NOT NULL"
            raise InvalidOption(
                f"the schema has {field.name} as {wrong}; it is {EVERY_COLUMN[field.name]}: cast it later"
            )
    names = tuple(schema.fieldNames())
    if len(set(names)) < len(names) or not names:
        raise InvalidOption("the schema names a column twice, or none at all")
    return replace(options, wanted=options.wanted._replace(names=names))


class _SourceReader:
    """The executor's side, common to batch and stream."""

    narrowed = EVERYTHING

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            assert partition.value is None, f"a part that we did not make: {partition!r}"
            # Spark makes this of a plan without any part.
            return iter(())
        # Imported here: only readers need Arrow, which takes a moment to load.
        from antiphon.pipeline.reading import read_span

        ranges = connections.ranges(self.options.connection)
        return read_span(ranges, partition.span, self.options.wanted, self.narrowed)

    def new_planner(self) -> Planner:
        # A driver that never reached the cluster most likely has a wrong address, and fails at once.
        return Planner(connections.ranges(self.options.connection, waits_at_first=False), self.options)


class _Pushing:
    """`pushFilters` of a reader, for Spark to call if `spark.sql.python.filterPushdown.enabled` is on.

    If it is off, as it is by default, Spark refuses readers that have a `pushFilters` of their own. Spark
    looks at `__func__` for that.
    """

    def __init__(self, reader: BatchSourceReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        reader = self._reader
        reader.narrowed, rest = narrow(filters, reader.options.has_acks)
        return rest


class BatchSourceReader(_SourceReader, DataSourceReader):
    """Reads once from a start to an end."""

    @property
    def pushFilters(self) -> _Pushing:
        return _Pushing(self)

    def partitions(self) -> Sequence[InputPartition]:
        planner = self.new_planner()
        try:
            start = planner.initial("earliest")
            extent = planner.narrow(start, planner.end(start), self.narrowed)
            return [TaskPartition(span) for span in planner.spans(*extent)]
        finally:
            planner.stop()


class StreamSourceReader(_SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. On the driver it has a planner, from the first call that needs one."""

    _planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = self.new_planner()
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial("latest").as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._plan().latest(_offset(start), self._limit(limit)).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.rows_max is not None:
            return ReadMaxRows(self.options.rows_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def _limit(self, limit: ReadLimit) -> Limit:
        """Spark knows one limit at a time; if the user gave two, both hold whenever Spark limits at all."""
        match limit:
            case ReadMaxRows():
                return Limit(limit.max_rows, self.options.bytes_max)
            case ReadMaxBytes():
                return Limit(self.options.rows_max, limit.max_bytes)
        return NO_LIMIT

    def reportLatestOffset(self) -> dict[str, Any] | None:
        planner = self._plan()
        newest, waiting = planner.newest(), planner.waiting
        if newest is None:
            return None
        # For the progress of the query only, not a position to read from.
        return newest.as_json() if waiting is None else {**newest.as_json(), "waiting": waiting}

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().cap()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TaskPartition(span) for span in self._plan().spans(_offset(start), _offset(end))]

    def commit(self, end: dict[str, Any]) -> None:
        self._plan().commit(_offset(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.stop()


def _offset(said: Any) -> Offset:
    try:
        return parse_offset(said)
    except BadOffset as error:
        raise InvalidOption(
            f"the checkpoint holds an offset that is not one of Antiphon's source: {error}"
        ) from None
