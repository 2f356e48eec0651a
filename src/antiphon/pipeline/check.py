"""Check: is everything there that a query needs? The first thing to run when something is wrong.

PCK1  The check goes the way of a query: the same connection, the same questions, the same rows.
PCK2  The check changes nothing: no hold, no acknowledgement, no destination.
PCK3  Faults of this machine are reported beside the findings, each in one sentence.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import LocalError
from antiphon.pipeline import connections, java
from antiphon.pipeline.offsets import BadOffset, Offset, parse_offset
from antiphon.pipeline.options import SourceOptions
from antiphon.pipeline.planning import TaskSpan
from antiphon.pipeline.session import EXTRA, deliberate_errors, package_version, spark_session
from antiphon.pipeline.subscribed import Subscribed

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import ChannelHead
    from antiphon.pipeline.patience import PatientRanges

PACKAGES: Final = ("pyspark", "pyarrow", "google-re2")
IMPORT_SECONDS: Final = 60


@dataclass(slots=True)
class CheckReport:
    """The findings, with the keys of the JSON that the command prints."""

    url: str
    packages: dict[str, str | None] = field(default_factory=dict)
    channels: list[dict[str, Any]] = field(default_factory=list)
    destinations: list[dict[str, Any]] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: dict[str, Any] | None = None
    sample: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check(
    options: SourceOptions, sample_rows: int, checkpoint: Path | None = None, master: str | None = None
) -> CheckReport:
    """Check everything. An error that makes checking impossible is raised."""
    report = CheckReport(options.connection.url, packages={name: package_version(name) for name in PACKAGES})
    report.problems += _machine_problems(report.packages)
    # A check does not wait.
    ranges = connections.ranges(replace(options.connection, timeout_s=0.0))
    subscribed = Subscribed(ranges, options.choice, has_acks=options.has_acks)
    start = Offset() if checkpoint is None else checkpoint_offset(checkpoint)
    heads = subscribed.heads(start.channels)
    _tell_heads(report, subscribed, heads)
    names = {destination.name for destination in subscribed.destinations}
    report.holds = [
        hold._asdict() for hold in ranges.holds() if not hold.destinations or names & {*hold.destinations}
    ]
    if checkpoint is not None:
        report.checkpoint = _lag(report, subscribed, start, heads)
        if start.cluster not in ("", cluster := ranges.cluster()):
            report.problems.append(
                f"the checkpoint belongs to cluster {start.cluster}, and this is cluster {cluster}"
            )
    if sample_rows and report.packages["pyarrow"]:
        if master is None:
            report.sample = _sample(ranges, subscribed, heads, options, sample_rows)
        else:
            report.sample = _sample_by_spark(options, sample_rows, master)
    return report


# -- this machine --------------------------------------------------------------------------


def _machine_problems(packages: Mapping[str, str | None]) -> list[str]:
    problems = [f"{name} is not installed: {EXTRA}" for name, found in packages.items() if found is None]
    no_java = java.why_not()
    if no_java is not None:
        problems.append(no_java)
    worker = os.environ.get("PYSPARK_PYTHON") or shutil.which("python3") or "python3"
    if all(packages.values()) and not _can_import(worker):
        problems.append(
            f"Spark would start its workers with {worker}, which cannot import antiphon.pipeline:"
            f" set PYSPARK_PYTHON={sys.executable}"
        )
    return problems


def _can_import(python: str) -> bool:
    words = [python, "-c", "import antiphon.pipeline.source, pyspark_antiphon"]
    try:
        return subprocess.run(words, capture_output=True, timeout=IMPORT_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


# -- the cluster ---------------------------------------------------------------------------


def _tell_heads(report: CheckReport, subscribed: Subscribed, heads: Mapping[str, ChannelHead]) -> None:
    for channel, head in sorted(heads.items()):
        said = head._asdict()
        del said["destinations"]
        report.channels.append(said)
        for one in head.destinations:
            name = subscribed.name_of(channel, one.id)
            report.destinations.append({"name": name, "channel": channel, **one._asdict()})


def checkpoint_offset(folder: Path) -> Offset:
    """The offset of a query: the end of the last batch that it began."""
    offsets = folder / "offsets"
    try:
        batches = sorted(int(file.name) for file in offsets.iterdir() if file.name.isdecimal())
        lines = (offsets / str(batches[-1])).read_text(encoding="utf-8").splitlines() if batches else []
    except OSError as error:
        raise LocalError(f"no checkpoint of a query can be read in {folder}: {error.strerror}") from None
    for line in lines:
        try:
            return parse_offset(json.loads(line))
        except (ValueError, BadOffset):
            # Spark's own lines, and the offsets of other sources.
            continue
    raise LocalError(f"there is no offset of Antiphon's source in the checkpoint {folder}")


def _lag(
    report: CheckReport, subscribed: Subscribed, start: Offset, heads: Mapping[str, ChannelHead]
) -> dict[str, Any]:
    """How much waits behind a checkpoint, and whether its query can go on at all."""
    for channel, head in sorted(heads.items()):
        number = start.next(channel)
        if number > head.applied + 1:
            report.problems.append(
                f"the checkpoint stands before number {number} of channel {channel}, which ends at"
                f" {head.applied}: it is of another cluster, or the cluster has lost data"
            )
        for one in report.destinations:
            label = subscribed.label_of(one["channel"], one["id"])
            first = max(start.next_of(label, channel), start.since.get(label, 1))
            if one["channel"] == channel and one["lost_through"] >= first:
                report.problems.append(
                    f"messages of {one['name']} from number {first} to {one['lost_through']} of channel"
                    f" {channel} are not kept any more, and the checkpoint has not read them"
                )
    return {
        "offset": start.as_json(),
        "rows": sum(head.rows for head in heads.values()),
        "bytes": sum(head.bytes for head in heads.values()),
    }


# -- a sample ------------------------------------------------------------------------------


def _sample(
    ranges: PatientRanges,
    subscribed: Subscribed,
    heads: Mapping[str, ChannelHead],
    options: SourceOptions,
    rows: int,
) -> list[dict[str, Any]]:
    """The first few messages that are kept, read as a task would."""
    from antiphon.pipeline.reading import read_span

    found: list[dict[str, Any]] = []
    for channel, head in sorted(heads.items()):
        destinations = subscribed.on(channel)
        if head.first < head.next and len(found) < rows:
            stop = ranges.bound(channel, destinations, head.first, head.next, rows=rows - len(found)).stop
            span = TaskSpan(channel, head.first, stop, destinations, allows_loss=True)
            for batch in read_span(ranges, span, options.wanted):
                found += batch.to_pylist()
    return [shown(row) for row in islice(found, rows)]


def _sample_by_spark(options: SourceOptions, rows: int, master: str) -> list[dict[str, Any]]:
    """The same through Spark itself, which takes a moment to start."""
    with spark_session(master, "antiphon source-check") as session, deliberate_errors():
        reader = session.read.format("antiphon").options(**options.connection.texts)
        if options.pattern is None:
            reader = reader.option("subscribe", ",".join(options.names))
        else:
            reader = reader.option("subscribePattern", options.pattern).option("match", options.match)
        frame = reader.option("failOnDataLoss", "false").load().limit(rows)
        return [shown(row.asDict()) for row in frame.collect()]


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON: times as text, a body as text or else in base64."""
    said = dict(row)
    for name, value in said.items():
        if isinstance(value, datetime):
            said[name] = value.isoformat()
        elif name in ("properties", "property_types"):
            said[name] = dict(value)
    body = said.get("body")
    if isinstance(body, bytes | bytearray):
        try:
            said["body"], said["encoding"] = bytes(body).decode(), "text"
        except UnicodeDecodeError:
            said["body"], said["encoding"] = base64.b64encode(body).decode(), "base64"
    return said
