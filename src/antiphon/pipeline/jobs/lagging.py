"""Lag: how far readers are behind, in messages, bytes and time.

    holds, checkpoints, subscriptions  ->  LAGGING  ->  rows of a table, JSON, Prometheus' text; alarms

LAG1  A reader that has everything has a lag of 0 in every measure, however long ago that was.
LAG2  The time of a lag is the age of the oldest message that waits: by the clock of its sender, but within
      the marks of log time before and behind it, so that a wrong clock does no harm.
LAG3  What is not known is None and not 0: of durable subscriptions the messages are counted, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from antiphon.errors import LocalError
from antiphon.pipeline.check import checkpoint_offset
from antiphon.pipeline.offsets import Offset, parse_choice
from antiphon.pipeline.patience import PatientRanges
from antiphon.pipeline.subscribed import Subscribed

if TYPE_CHECKING:
    from antiphon.client.aio.holds import HoldReport
    from antiphon.client.aio.ranges import RangeDestination

FIRST_PAGE_BYTES: Final = 1
"""A page has one batch at least."""

STEP_MS: Final = 1_000

Kind = Literal["hold", "checkpoint", "subscription"]


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """How much waits for a reader in a channel, with the keys of the JSON that the command prints."""

    kind: Kind
    name: str
    channel: str
    position: int | None
    rows: int
    bytes: int | None
    seconds: float | None
    destinations: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LagLimits:
    """What is too much; None: nothing is."""

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None

    def alarms(self, lags: Iterable[ReaderLag]) -> list[str]:
        """A sentence for each measure that is beyond its limit."""
        said = []
        for lag in lags:
            place = f"{lag.kind} {lag.name} on channel {lag.channel}"
            for found, limit, unit in (
                (lag.rows, self.rows, "messages"),
                (lag.bytes, self.bytes, "bytes"),
                (lag.seconds, self.seconds, "s"),
            ):
                if limit is not None and found is not None and found > limit:
                    said.append(f"{place} is {found:,} {unit} behind, and {limit:,} are allowed")
        return said


class Lagging:
    """Asks a cluster how far its readers are."""

    def __init__(
        self,
        ranges: PatientRanges,
        destinations: Callable[[], Sequence[Mapping[str, Any]]],
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`destinations`: as administration lists them, with their subscriptions."""
        self._ranges = ranges
        self._destinations = destinations
        self._wall_s = wall_s

    def lags(self, names: Sequence[str] = (), checkpoints: Sequence[Path] = ()) -> list[ReaderLag]:
        """Of holds and subscriptions by name, and of checkpoints; without any, of all there are."""
        found: list[ReaderLag] = []
        if names or not checkpoints:
            found += self._named(names)
        for folder in checkpoints:
            found += self._checkpoint(folder)
        return found

    def _named(self, names: Sequence[str]) -> list[ReaderLag]:
        holds = [self._hold(one) for one in self._ranges.holds() if not names or one.name in names]
        subscriptions = [one for one in self._subscriptions() if not names or one.name in names]
        found = sorted([*holds, *subscriptions], key=lambda lag: (lag.kind, lag.name, lag.channel))
        missing = sorted({*names} - {lag.name for lag in found})
        if missing:
            raise LocalError(f"there is neither a hold nor a subscription {missing[0]!r}")
        return found

    # -- each kind -------------------------------------------------------------

    def _hold(self, hold: HoldReport) -> ReaderLag:
        seconds = 0.0
        if hold.rows:
            every = self._ranges.destinations(pattern="*")
            own = [
                one
                for one in every
                if one.channel == hold.channel and (not hold.destinations or one.name in hold.destinations)
            ]
            seconds = self._age_s(hold.channel, own, hold.position, is_live=hold.consume)
        return ReaderLag(
            "hold",
            hold.name,
            hold.channel,
            hold.position,
            hold.rows,
            hold.bytes if hold.rows else 0,
            seconds,
            hold.destinations,
        )

    def _subscriptions(self) -> list[ReaderLag]:
        return [
            ReaderLag(
                "subscription",
                subscription["name"],
                part["channel"],
                None,
                subscription["backlog"],
                None if subscription["backlog"] else 0,
                None if subscription["backlog"] else 0.0,
                (part["name"],),
            )
            for row in self._destinations()
            for part in row.get("parts") or [row]
            for subscription in part["subscriptions"]
            if subscription["durable"] or (subscription["shared"] and subscription["name"])
        ]

    def _checkpoint(self, folder: Path) -> list[ReaderLag]:
        offset = checkpoint_offset(folder)
        if not offset.subscribed:
            raise LocalError(f"the checkpoint {folder} does not say what its query reads: it is too old")
        cluster = self._ranges.cluster()
        if offset.cluster not in ("", cluster):
            raise LocalError(
                f"the checkpoint {folder} belongs to cluster {offset.cluster}, and this is cluster {cluster}"
            )
        subscribed = Subscribed(self._ranges, parse_choice(offset.subscribed))
        heads = subscribed.heads(offset.channels)
        return [
            self._query(folder, offset, channel, subscribed.on(channel), head.next)
            for channel, head in sorted(heads.items())
        ]

    def _query(
        self, folder: Path, offset: Offset, channel: str, destinations: Sequence[RangeDestination], stop: int
    ) -> ReaderLag:
        """Of one channel. Destinations that are behind their channel count from where they are."""
        by_start: dict[int, list[RangeDestination]] = {}
        for one in destinations:
            by_start.setdefault(offset.next_of(one.label, channel), []).append(one)
        rows, size, seconds = 0, 0, 0.0
        for start, own in by_start.items():
            if start < stop:
                bound = self._ranges.bound(channel, own, start, stop)
                rows, size = rows + bound.rows, size + bound.bytes
                if bound.rows:
                    seconds = max(seconds, self._age_s(channel, own, start))
        names = tuple([one.name for one in destinations])
        return ReaderLag("checkpoint", str(folder), channel, offset.next(channel), rows, size, seconds, names)

    # -- time ------------------------------------------------------------------

    def _age_s(
        self, channel: str, destinations: Sequence[RangeDestination], start: int, *, is_live: bool = False
    ) -> float:
        """The age of the first message from this number on (LAG2)."""
        now_ms = int(self._wall_s() * 1000)
        if not destinations:
            return 0.0
        stop = self._ranges.heads(destinations)[channel].next
        pages = self._ranges.read(
            channel,
            start,
            max(start, stop),
            destinations,
            allow_lost=True,
            live=is_live,
            page_bytes=FIRST_PAGE_BYTES,
        )
        first = next((piece for page in pages for piece in page.pieces), None)
        if first is None:
            return 0.0
        sent_ms = first.batch.timestamp_ms(0)
        after_ms = self._last_time(channel, first.first, now_ms)
        before_ms = self._last_time(channel, self._ranges.at_time(channel, after_ms) - 1, now_ms)
        stored_ms = min(max(sent_ms, before_ms), after_ms, now_ms)
        return round((now_ms - stored_ms) / 1000, 1)

    def _last_time(self, channel: str, number: int, now_ms: int) -> int:
        """The last time that does not lie behind this number: that of the first mark from it on, or now."""
        if self._ranges.at_time(channel, now_ms) <= number:
            return now_ms
        step = STEP_MS
        while step < now_ms and self._ranges.at_time(channel, now_ms - step) > number:
            step *= 2
        low, high = max(0, now_ms - step), now_ms
        while high - low > STEP_MS:
            middle = (low + high) // 2
            if self._ranges.at_time(channel, middle) <= number:
                low = middle
            else:
                high = middle
        return low


# -- Prometheus ----------------------------------------------------------------------------

_MEASURES: Final = (
    ("messages", "rows", "Messages that wait for a reader."),
    ("bytes", "bytes", "Bytes that wait for a reader."),
    ("seconds", "seconds", "Age of the oldest message that waits for a reader."),
)


def prometheus_text(lags: Sequence[ReaderLag]) -> str:
    """The lags in Prometheus' text format; what is not known is left out."""
    lines = []
    for name, attribute, help in _MEASURES:
        metric = f"antiphon_lag_{name}"
        lines += [f"# HELP {metric} {help}", f"# TYPE {metric} gauge"]
        for lag in lags:
            value = getattr(lag, attribute)
            if value is not None:
                labels = {"kind": lag.kind, "name": lag.name, "channel": lag.channel}
                if lag.kind == "subscription":
                    labels["destination"] = lag.destinations[0]
                said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
                lines.append(f"{metric}{{{said}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
