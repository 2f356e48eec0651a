"""Sink: what Spark writes becomes messages, each exactly once however often Spark tries.

    executors: rows  ->  outgoing  ->  staged, invisible;   driver: all parts of a batch  ->  one commit

    SNK1  All rows of a batch become visible at once, or none does.
    SNK2  A batch is committed once: the cluster remembers (query id, batch id), or txnAppId and txnVersion.
          Tasks tried twice, drivers that died, two drivers on one checkpoint change nothing.
    SNK3  Only what the driver names is committed: what a lost attempt has staged is never seen, and is
          dropped in time. A version without a row is remembered like any other, so that no older one gets in
          later.
    SNK4  With deliveryGuarantee=at-least-once rows are sent as they come, and again when Spark tries again.

Spark and its source promise that a replayed batch has the same rows. The cluster commits over several
channels (docs/design/transactions.md).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from antiphon.batch import Batch
from antiphon.blocking import Connection, Producer
from antiphon.blocking.face import PartWriter
from antiphon.client.aio.staging import APPLICATION_BYTES_MAX, StagedPart
from antiphon.errors import (
    AntiphonError,
    InvalidMessage,
    InvalidOption,
    LocalError,
    TransactionRolledBack,
)
from antiphon.ids import U64_MAX
from antiphon.names import parse_destination
from antiphon.pipeline.connections import connection, greet, patience
from antiphon.pipeline.options import SINK_OPTIONS, SOURCE_OPTIONS, ConnectionOptions, Given
from antiphon.pipeline.patience import AWAY

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

STREAM_LIMIT_S: Final = 3_600
"""How long the part of a micro-batch waits for its commit, and how long a killed driver's leavings stay."""

JOB_LIMIT_S: Final = 86_400
"""The same for a batch job, whose first task may end many hours before its last."""

COMMIT_ATTEMPTS: Final = 5
"""Attempts for a commit that was rolled back, which is most likely for good."""

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_TEXT: Final = ("string",)
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "destination": _TEXT,
    "key": _TEXT,
    "priority": _INTEGERS,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "type": _TEXT,
    "properties": tuple(
        f"map<string,{value}>" for value in ("string", "binary", "boolean", *_INTEGERS, "float", "double")
    ),
    "property_types": ("map<string,string>",),
    "body_kind": _TEXT,
    "ttl": (*_INTEGERS, "float", "double"),
    "delay": (*_INTEGERS, "float", "double"),
    "expires": ("timestamp",),
    "persistent": ("boolean",),
    "message_id": _TEXT,
    "timestamp": ("timestamp",),
    "channel": _TEXT,
    "sequence": _INTEGERS,
}
"""The allowed columns, with Spark's types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options of a writer."""

    connection: ConnectionOptions
    destination: str | None = None
    is_exact: bool = True
    application: str | None = None
    version: int | None = None
    query: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse and check everything that can be checked without asking the cluster."""
        given = Given(options)
        given.refuse_unknown(SINK_OPTIONS, SOURCE_OPTIONS, "sink")
        guarantee = given.word("deliveryGuarantee", ("exactly-once", "at-least-once"), "exactly-once")
        parsed = cls(
            connection=ConnectionOptions.of(given),
            destination=_destination(given.text("destination")),
            is_exact=guarantee == "exactly-once",
            application=_name(given, "txnAppId"),
            version=_version(given.text("txnVersion")),
            query=_name(given, "queryId"),
        )
        if (parsed.application is None) != (parsed.version is None):
            raise InvalidOption("txnAppId and txnVersion are given together, or not at all")
        if parsed.application is not None and not parsed.is_exact:
            raise InvalidOption("txnAppId is of no use with deliveryGuarantee=at-least-once")
        return parsed

    def refuse_in_stream(self) -> None:
        """A stream numbers its batches itself."""
        if self.application is not None:
            raise InvalidOption(
                "txnAppId and txnVersion are for df.write, also in foreachBatch;"
                " a stream is known by its query id and its batches"
            )

    def refuse_in_batch(self) -> None:
        if self.query is not None:
            raise InvalidOption("queryId is for writeStream; a batch write is named by txnAppId")


def _destination(text: str | None) -> str | None:
    if text is not None:
        try:
            parse_destination(text)
        except AntiphonError as error:
            raise InvalidOption(f"destination: {error}") from None
    return text


def _name(given: Given, option: str) -> str | None:
    text = given.text(option)
    # Some bytes of the name of an application are ours.
    if text is not None and len(text.encode()) > APPLICATION_BYTES_MAX - len(_JOB):
        raise InvalidOption(f"{option} has at most {APPLICATION_BYTES_MAX - len(_JOB)} bytes")
    return text


def _version(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= U64_MAX):
        raise InvalidOption(f"txnVersion is a whole number from 0 on; it was {text!r}")
    return int(text)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise unless these columns can be written."""
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in given.items():
        if name not in COLUMNS:
            near = get_close_matches(name, COLUMNS, n=1)
            meant = f" (was {near[0]} meant?)" if near else ""
            raise InvalidMessage(
                f"Antiphon's sink has no column {name}{meant}; there may be {', '.join(COLUMNS)}"
            )
        if kind.partition(" collate ")[0] not in COLUMNS[name]:
            raise InvalidMessage(f"column {name} is {' or '.join(COLUMNS[name])}; it was {kind}")
    if "property_types" in given and given.get("properties") != "map<string,string>":
        raise InvalidMessage(
            "column property_types is for properties that are map<string,string>; others say their type"
        )
    if "body" not in given:
        raise InvalidMessage("column body is missing: binary or string, what the messages say")
    if options.destination is None and "destination" not in given:
        raise InvalidOption(
            'destination is missing: an option such as "queue:alerts", or a column that says it for each row'
        )


# -- writers ----------------------------------------------------------------------------


_STREAM: Final = "spark/"
_JOB: Final = "spark-job/"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's message to the driver. An empty partition has no part."""

    application: str
    version: int
    partition: int
    rows: int
    part: StagedPart | None = None


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `df.writeStream`. In complete mode every batch sends the whole result anew."""
    parsed = SinkOptions.parse(options)
    parsed.refuse_in_stream()
    check_columns(schema, parsed)
    return StreamWriter(parsed)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `df.write`."""
    parsed = SinkOptions.parse(options)
    parsed.refuse_in_batch()
    check_columns(schema, parsed)
    if overwrite:
        raise InvalidOption('messages cannot be overwritten: write with .mode("append")')
    greet(parsed.connection)
    return BatchWriter(parsed)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. Spark makes one for every batch, and copies of it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task of an executor."""
        if not self._options.is_exact:
            return _write(self._options, iterator, "", 0, STREAM_LIMIT_S)
        query, batch = _batch_of_task(self._options.query)
        return _write(self._options, iterator, _STREAM + query, batch, STREAM_LIMIT_S)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks have ended well."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when something went wrong; perhaps after the commit."""
        _abort(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes one batch job. The driver makes one, which all tasks get copies of."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # A job without a name that is run again is another job.
        self._application = _JOB + (options.application or uuid.uuid4().hex)
        self._version = options.version or 0

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task of an executor."""
        return _write(self._options, iterator, self._application, self._version, JOB_LIMIT_S)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have ended well."""
        _commit(self._options, messages, self._version, self._application)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when something went wrong."""
        _abort(self._options, messages)


# -- on an executor -----------------------------------------------------------------------


def _batch_of_task(query_option: str | None) -> tuple[str, int]:
    """The query and batch of a task, from Spark's undocumented properties."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    query = query_option or query
    if not batch:
        raise LocalError(
            "this version of Spark does not tell a task the number of its batch,"
            " without which nothing can be written exactly once"
        )
    if not query:
        raise LocalError(
            "this version of Spark does not tell a task the id of its query: give the query a name of its own"
            " as option queryId, the same after every restart"
        )
    return query, int(batch)


def _write(
    options: SinkOptions,
    iterator: Iterator[pyarrow.RecordBatch],
    application: str,
    version: int,
    limit_s: int,
) -> Written:
    # Imported here: the driver's planning does without pyarrow.
    from antiphon.pipeline.outgoing import OutgoingRows

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    outgoing = OutgoingRows(options.destination, _wall_ms)
    batches = outgoing.take(iterator)
    first = next(batches, None)
    if first is None:
        return Written(application, version, partition, 0)
    waiting, timeout_s = patience(options.connection), max(1.0, options.connection.timeout_s)
    if not options.is_exact:
        opened = waiting.ask(lambda: connection(options.connection))
        _send(opened, chain((first,), batches), timeout_s)
        return Written(application, version, partition, outgoing.rows)
    with ExitStack() as stack:

        def begin() -> PartWriter:
            """A part with its first batch; until that is on its way all can be begun anew."""
            with ExitStack() as opening:
                staging = opening.enter_context(connection(options.connection).staging(application))
                writer = opening.enter_context(staging.writer(time_limit=limit_s, timeout=timeout_s))
                writer.write(*first)
                stack.push(opening.pop_all())
                return writer

        writer = waiting.ask(begin)
        for destination, batch in batches:
            writer.write(destination, batch)
        part = writer.seal()
    return Written(application, version, partition, outgoing.rows, part)


def _send(opened: Connection, batches: Iterator[tuple[str, Batch]], timeout_s: float) -> None:
    """Send rows as they come (SNK4); everything is stored when this returns."""
    with opened.session() as session:
        producers: dict[str, Producer] = {}
        for destination, run in groupby(batches, key=itemgetter(0)):
            producer = producers.get(destination)
            if producer is None:
                producer = producers[destination] = session.producer(destination)
            producer.send_batches((batch for _, batch in run), timeout=timeout_s)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


# -- on the driver --------------------------------------------------------------------------


def _commit(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    version: int,
    application: str = "",
) -> None:
    """Make visible what the tasks have written, unless that was done before (SNK1, SNK2).

    In a stream the tasks name the application, and batches without rows need not be remembered: their numbers
    rise, and a batch that is repeated is the same.
    """
    written = sorted(
        (message for message in messages if isinstance(message, Written)), key=lambda one: one.partition
    )
    parts = [message.part for message in written if message.part is not None]
    if not parts and (options.application is None or not options.is_exact):
        return
    if parts:
        (application,) = {message.application for message in written}
    told = {message.version for message in written}
    if told - {version}:
        raise LocalError(f"what was written for batch {sorted(told)} cannot be committed as {version}")
    waiting, rolled_back = patience(options.connection), 0
    while True:
        try:
            with connection(options.connection).staging(application) as staging:
                staging.commit(version, parts)
            return
        except (TransactionRolledBack, *AWAY) as error:
            # A channel may have been without a primary. The staged parts stay staged, and a version counts
            # once.
            rolled_back += isinstance(error, TransactionRolledBack)
            if rolled_back == COMMIT_ATTEMPTS:
                raise
            waiting.wait(error)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what will not be committed; parts that cannot be dropped go in time (SNK3)."""
    parts = [
        message.part for message in messages if isinstance(message, Written) and message.part is not None
    ]
    if not parts:
        return
    try:
        with connection(options.connection).staging(parts[0].application) as staging:
            staging.abort(parts)
    except AntiphonError:
        # Spark reports the first error; this one would hide it.
        return
