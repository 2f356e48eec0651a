"""Replay: messages of an archive are sent to a destination, each once.

    archive  ->  REPLAYING plans chunks, once  ->  Spark reads, filters, sorts  ->  the sink, chunk by chunk

RPY1  A chunk is written under the name of the replay and the chunk's number, which the cluster commits once:
      a replay that is killed and started again sends no message twice and leaves none out.
RPY2  The plan is written down before the first chunk. A run that goes on has the same chunks, though the
      archive has grown, or its files were joined.
RPY3  Bodies, kinds, properties with their types, keys and priorities are as they were, and messages of a
      channel keep their order. Their former ids, numbers, times and places are among the properties. Messages
      do not expire again.
RPY4  A file is read only if it is as it was written.
RPY5  No destination gets its own messages again while it still is the one that was archived.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from antiphon.errors import ArchiveDamaged, ArchiveError, DestinationError, DestinationUnavailable, LocalError
from antiphon.names import parse_destination
from antiphon.pipeline.columns import ARCHIVED, spark_schema
from antiphon.pipeline.jobs.folder import ArchiveFolder, create, replace_file
from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchiveSource, ArchiveState
from antiphon.pipeline.patience import PatientRanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION: Final = 1

CHUNK_ROWS: Final = 500_000
"""So many messages become visible at once, and are read again when a replay is killed."""

RATE_S: Final = 1.0
"""With a rate a chunk has about as many messages as that rate allows in this time."""

PARTITION_ROWS: Final = 50_000
NAME_BYTES_MAX: Final = 200

ORIGINS: Final = {
    "origin_destination": ("str", "destination"),
    "origin_channel": ("str", "channel"),
    "origin_sequence": ("i64", "cast(sequence as string)"),
    "origin_expires": ("i64", "cast(unix_millis(expires) as string)"),
}
"""Properties of a message that is replayed, with their types and what they are made of. The sink adds the id
and the time."""


class Chunk(NamedTuple):
    """All messages of a channel with numbers in `[start, stop)`, about so many."""

    channel: str
    start: int
    stop: int
    rows: int


class NumberRange(NamedTuple):
    """Numbers from first to last, of one channel or of all."""

    first: int
    last: int
    channel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What is replayed, and where to."""

    destination: str
    words: tuple[str, ...] = ("*",)
    where: str | None = None
    numbers: NumberRange | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def text(self) -> str:
        """What makes two replays the same."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay that was begun: its chunks, and the name under which the cluster knows them (RPY1, RPY2)."""

    settings: str
    cluster: str
    application: str
    sources: tuple[ArchiveSource, ...]
    chunks: tuple[Chunk, ...]

    def encode(self) -> bytes:
        return json.dumps({"v": VERSION, **asdict(self)}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, what: str) -> ReplayPlan:
        try:
            said = json.loads(data)
            if said.pop("v") != VERSION:
                raise ArchiveError(f"{what} is of another version of Antiphon")
            sources = tuple([ArchiveSource(*source) for source in said.pop("sources")])
            chunks = tuple([Chunk(*chunk) for chunk in said.pop("chunks")])
            return cls(**said, sources=sources, chunks=chunks)
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamaged(f"{what} is no plan of a replay: {error!r}") from None


@dataclass(slots=True)
class ReplaySummary:
    """What a replay has done, with the keys of the JSON that the command prints.

    `planned` counts messages before the conditions of `where` and of times; `rows` were sent in this run.
    """

    archive: str
    destination: str
    name: str
    dry_run: bool = False
    chunks: int = 0
    done_before: int = 0
    planned: int = 0
    bytes: int = 0
    rows: int = 0
    sources: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class ReplayWork(NamedTuple):
    """What Spark does for a replay."""

    begin: Callable[[], None]
    """Raises if the settings are not such as Spark understands."""
    check: Callable[[Sequence[ArchiveFile]], None]
    """Raises ArchiveDamaged unless files are as they were written (RPY4)."""
    send: Callable[[Sequence[ArchiveFile], Chunk, str, int], int]
    """Sends a chunk under an application and a version; how many messages it had."""


class Replaying:
    """One run of a replay."""

    def __init__(
        self,
        folder: ArchiveFolder,
        settings: ReplaySettings,
        ranges: PatientRanges,
        work: ReplayWork,
        *,
        name: str | None = None,
        rate: float | None = None,
        chunk_rows: int = CHUNK_ROWS,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        parse_destination(settings.destination)
        if rate is not None and not 0 < rate < math.inf:
            raise LocalError(f"a rate is a number of messages per second above 0; it was {rate:g}")
        name = name or xxh3_64_hexdigest(settings.text.encode())
        if len(name.encode()) > NAME_BYTES_MAX:
            raise LocalError(f"the name of a replay has at most {NAME_BYTES_MAX} bytes")
        self._folder = folder
        self._settings = settings
        self._ranges = ranges
        self._work = work
        self._rate = rate
        self._chunk_rows = chunk_rows if rate is None else max(1, min(chunk_rows, int(rate * RATE_S)))
        self._now_s = now_s
        self._sleep = sleep
        self._progress = progress
        self._notes = folder.replay_folder(name)
        self._summary = ReplaySummary(str(folder.root), settings.destination, name)
        self._checked: set[str] = set()

    def dry_run(self) -> ReplaySummary:
        """How much there is to replay; nothing is changed."""
        self._folder.require()
        state = self._folder.state()
        plan = self._known_plan() or self._new_plan(state)
        self._summary.dry_run = True
        self._tell(state, plan)
        return self._summary

    def replay(self) -> ReplaySummary:
        """Send what was not sent before."""
        began_s, summary = self._now_s(), self._summary
        self._folder.require()
        state = self._folder.state()
        self._sources(state)
        self._refuse_own(state)
        plan = self._known_plan()
        if plan is None:
            self._work.begin()
            create(self._notes / "plan.json", self._new_plan(state).encode())
            # Another run may have been quicker.
            plan = self._known_plan()
            assert plan is not None, "a plan was written"
        self._tell(state, plan)
        done = sum(chunk.rows for chunk in plan.chunks[: summary.done_before])
        self._progress(done, summary.planned)
        sent_s = self._now_s()
        for version in range(summary.done_before, len(plan.chunks)):
            chunk = plan.chunks[version]
            files = list(_overlapping(state, plan.sources, chunk))
            self._check(files)
            summary.rows += self._work.send(files, chunk, plan.application, version)
            replace_file(self._notes / "done.json", json.dumps({"chunks": version + 1}).encode() + b"\n")
            done += chunk.rows
            self._progress(done, summary.planned)
            if self._rate is not None:
                self._sleep(max(0.0, sent_s + summary.rows / self._rate - self._now_s()))
        summary.seconds = round(self._now_s() - began_s, 1)
        return summary

    # -- the plan ----------------------------------------------------------------

    def _sources(self, state: ArchiveState) -> list[ArchiveSource]:
        return self._folder.chosen(state, self._settings.words)

    def _refuse_own(self, state: ArchiveState) -> None:
        """RPY5."""
        settings = self._settings
        identity = self._folder.require()
        if identity.cluster != self._ranges.cluster():
            return
        try:
            named = self._ranges.destinations([settings.destination])
        except DestinationUnavailable:
            raise
        except DestinationError:
            return
        own = {ArchiveSource(one.name, one.channel, one.id) for one in named}
        if not own.isdisjoint(self._sources(state)):
            raise ArchiveError(
                f"{settings.destination} is one of those that were archived, and would get its own messages"
                " again: replay them to another destination"
            )

    def _known_plan(self) -> ReplayPlan | None:
        place = self._notes / "plan.json"
        try:
            plan = ReplayPlan.decode(place.read_bytes(), str(place))
        except FileNotFoundError:
            return None
        if plan.settings != self._settings.text:
            raise ArchiveError(
                f"the replay {self._summary.name} was begun with other words: {plan.settings};"
                " give this one another name"
            )
        if plan.cluster != (cluster := self._ranges.cluster()):
            raise ArchiveError(
                f"the replay {self._summary.name} was begun on cluster {plan.cluster}, and this is cluster"
                f" {cluster}: give this one another name"
            )
        return plan

    def _new_plan(self, state: ArchiveState) -> ReplayPlan:
        sources = tuple(self._sources(state))
        files = [file for source in sources for file in state.files.get(source, ())]
        wanted = self._settings.numbers
        chunks: list[Chunk] = []
        for channel in sorted({file.source.channel for file in files}):
            if wanted is None or wanted.channel in (None, channel):
                own = [file for file in files if file.source.channel == channel]
                chunks += _chunks(channel, own, wanted, self._chunk_rows)
        return ReplayPlan(
            self._settings.text,
            self._ranges.cluster(),
            f"replay/{uuid.uuid4().hex}",
            sources,
            tuple(chunks),
        )

    def _tell(self, state: ArchiveState, plan: ReplayPlan) -> None:
        summary = self._summary
        summary.sources = sorted({source.name for source in plan.sources})
        summary.chunks = len(plan.chunks)
        summary.planned = sum(chunk.rows for chunk in plan.chunks)
        summary.done_before = self._done()
        files = [file for chunk in plan.chunks for file in _overlapping(state, plan.sources, chunk)]
        summary.bytes = sum({file.path: file.size for file in files}.values())

    def _done(self) -> int:
        """How many chunks were noted as sent; a chunk more may have been, which the cluster knows."""
        try:
            return int(json.loads((self._notes / "done.json").read_bytes())["chunks"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            # To begin anew sends nothing twice (RPY1).
            return 0

    def _check(self, files: Iterable[ArchiveFile]) -> None:
        new = [file for file in files if file.path not in self._checked]
        self._work.check(new)
        self._checked |= {file.path for file in new}


def _chunks(
    channel: str, files: Sequence[ArchiveFile], wanted: NumberRange | None, rows_max: int
) -> Iterator[Chunk]:
    """A channel's numbers cut behind pages, so that each chunk has about as many messages."""
    first, stop = (wanted.first, wanted.last + 1) if wanted is not None else (0, 1 << 63)
    pieces = sorted(piece for file in files for piece in _pieces(file, first, stop, rows_max))
    # Pages of several destinations lie across each other: only ends are where a chunk may end.
    start, rows = min([begin for _, begin, _ in pieces], default=0), 0
    for (end, _, count), following in zip_longest(pieces, pieces[1:]):
        rows += count
        if following is None or (rows >= rows_max and following[0] > end):
            yield Chunk(channel, start, end, rows)
            start, rows = end, 0


def _pieces(file: ArchiveFile, first: int, stop: int, rows_max: int) -> Iterator[tuple[int, int, int]]:
    """The pages of a file within some numbers: where each ends and begins, and about how many rows it has."""
    start = file.start
    for page in file.pages:
        low, high = max(start, first), min(page.stop, stop)
        if low < high and page.rows:
            rows = -(-page.rows * (high - low) // (page.stop - start))
            parts = min(-(-rows // rows_max), high - low)
            for part in range(parts):
                begin, end = low + (high - low) * part // parts, low + (high - low) * (part + 1) // parts
                yield end, begin, rows * (part + 1) // parts - rows * part // parts
        start = page.stop


def _overlapping(
    state: ArchiveState, sources: Iterable[ArchiveSource], chunk: Chunk
) -> Iterator[ArchiveFile]:
    for source in sources:
        if source.channel == chunk.channel:
            for file in state.files.get(source, ()):
                if file.path and file.start < chunk.stop and chunk.start < file.stop:
                    yield file


# -- Spark ---------------------------------------------------------------------------------


def wanted_rows(frame: DataFrame, settings: ReplaySettings, chunk: Chunk) -> DataFrame:
    """The rows of a chunk that the settings want."""
    frame = frame.where(f"sequence >= {chunk.start} and sequence < {chunk.stop}")
    numbers = settings.numbers
    if numbers is not None:
        frame = frame.where(f"sequence >= {numbers.first} and sequence <= {numbers.last}")
    for bound, sign in ((settings.since_ms, ">="), (settings.until_ms, "<")):
        if bound is not None:
            frame = frame.where(f"timestamp {sign} timestamp_millis({bound})")
    return frame if settings.where is None else frame.where(settings.where)


def outgoing_rows(frame: DataFrame) -> DataFrame:
    """The rows as the sink takes them, with their origin among the properties (RPY3)."""
    values = ", ".join(f"'{name}', {made}" for name, (_, made) in ORIGINS.items())
    types = ", ".join(f"'{name}', '{kind}'" for name, (kind, _) in ORIGINS.items())
    # A message that was replayed before keeps its first origin.
    is_new = "(name, value) -> not map_contains_key(properties, name)"
    return frame.selectExpr(
        "coalesce(stored_body, body) as body",
        "body_kind",
        "key",
        "priority",
        "correlation_id",
        "reply_to",
        "type",
        "persistent",
        "message_id",
        "timestamp",
        "sequence",
        f"map_concat(properties, map_filter(map_filter(map({values}), {is_new}),"
        " (name, value) -> value is not null)) as properties",
        f"map_concat(property_types, map_filter(map_filter(map({types}), {is_new}),"
        " (name, value) -> name != 'origin_expires' or expires is not null)) as property_types",
    )


def archive_schema() -> str:
    """The schema of an archive's files, as Spark writes it."""
    return spark_schema(ARCHIVED.names)
