"""A broker in memory that answers range reads as the client library does, and counts the questions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.batch import Batch
from antiphon.client.aio.holds import HoldReport
from antiphon.client.aio.ranges import (
    Bound,
    ChannelHead,
    DestinationHead,
    RangeDestination,
    RangePage,
    RangePiece,
)
from antiphon.errors import AntiphonError, DestinationError, RangeLost, RangeUnavailable
from antiphon.wire.range_frames import RangeLoss


@dataclass
class Channel:
    """A log: which destination has which numbers, and what is kept of them."""

    name: str
    last: int = 0
    version: int = 0
    kept: dict[int, int] = field(default_factory=dict)  # number -> destination id
    nexts: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    trimmed: dict[int, int] = field(default_factory=dict)
    marks: list[tuple[int, int]] = field(default_factory=list)  # (number, log time)

    def numbers(self, ids: set[int], start: int, stop: int) -> list[int]:
        return [n for n in sorted(self.kept) if start <= n < stop and self.kept[n] in ids]


ROW_BYTES = 100


class Broker:
    """Everything at once: the cluster, and the ranges of a connection to it."""

    def __init__(self, *channels: str) -> None:
        self.channels = {name: Channel(name) for name in channels or ("a",)}
        self.names: dict[str, RangeDestination] = {}
        self.versions: dict[str, int] = {}
        self.asked: list[str] = []
        self.waits: list[float] = []
        self.held: dict[str, tuple[dict[str, int], tuple[str, ...], float, bool]] = {}
        self.acknowledged: set[int] = set()  # and kept because of a hold
        self.closed = False
        self.id = "c1"
        self.away: list[AntiphonError] = []  # what the next questions find
        self.reports: list[HoldReport] = []
        self.page_rows = 0  # in a page; 0: everything in one

    # -- what others do --------------------------------------------------------

    def create(self, name: str, channel: str = "a", *, is_part: bool = False) -> RangeDestination:
        """A part is published to by its label, such as `b/topic:orders`."""
        log = self.channels[channel]
        log.last += 1
        log.version = log.last
        made = RangeDestination(name, channel, log.last, is_part=is_part)
        self.names[made.label] = made
        log.nexts[made.id] = 1
        return made

    def delete(self, name: str) -> None:
        gone = self.names.pop(name)
        log = self.channels[gone.channel]
        log.last += 1
        log.version = log.last
        log.kept = {number: id for number, id in log.kept.items() if id != gone.id}
        del log.nexts[gone.id]

    def publish(self, name: str, count: int = 1) -> range:
        to = self.names[name]
        log = self.channels[to.channel]
        numbers = range(log.last + 1, log.last + 1 + count)
        log.kept.update(dict.fromkeys(numbers, to.id))
        log.last += count
        log.nexts[to.id] = log.last + 1
        return numbers

    def trim(self, name: str, through: int) -> None:
        to = self.names[name]
        log = self.channels[to.channel]
        gone = [n for n, id in log.kept.items() if id == to.id and n <= through]
        for number in gone:
            del log.kept[number]
        log.trimmed[to.id] = log.trimmed.get(to.id, 0) + len(gone)
        if gone:
            log.lost[to.id] = max(log.lost.get(to.id, 0), *gone)

    def mark(self, channel: str, log_time_ms: int) -> None:
        log = self.channels[channel]
        log.last += 1
        log.marks.append((log.last, log_time_ms))

    def reached(self) -> Any:
        """The ranges of a connection to it, unless it is away."""
        if self.away:
            raise self.away.pop(0)
        return self

    # -- what the client library asks ------------------------------------------

    def cluster(self) -> str:
        self.asked.append("cluster")
        return self.id

    def destinations(
        self, names: Sequence[str] = (), pattern: str | None = None, match: str = "glob"
    ) -> tuple[RangeDestination, ...]:
        self.asked.append("list")
        self.versions = {name: log.version for name, log in self.channels.items()}
        if pattern is None:
            known = {found.name for found in self.names.values()}
            for name in names:
                if name not in known:
                    raise DestinationError(f"there is no {name}")
            return tuple(found for name in names for found in self.names.values() if found.name == name)
        is_match = re.compile(fnmatch.translate(pattern) if match == "glob" else pattern).fullmatch
        return tuple(found for _, found in sorted(self.names.items()) if is_match(found.name))

    def heads(
        self,
        destinations: Sequence[RangeDestination],
        above: Mapping[str, int] | None = None,
        wait: float = 0.0,
        channels: Sequence[str] = (),
        acks: bool = False,
    ) -> dict[str, ChannelHead]:
        named = sorted({*channels, *(d.channel for d in destinations)})
        self.asked.extend(f"head {name}" for name in named)
        self.waits.append(wait)
        return {name: self._head(name, destinations, (above or {}).get(name, 1)) for name in named}

    def _head(self, channel: str, destinations: Sequence[RangeDestination], above: int) -> ChannelHead:
        log = self.channels[channel]
        told = []
        for d in (d for d in destinations if d.channel == channel):
            if d.id not in log.nexts:
                raise DestinationError(f"{d.name} was deleted")
            kept = log.numbers({d.id}, 1, log.last + 1)
            following = log.nexts[d.id]
            lost = log.lost.get(d.id, 0)
            trimmed, time_ms = (log.trimmed.get(d.id, 0), 1_700_000_000_000) if lost else (0, 0)
            told.append(
                DestinationHead(d.id, kept[0] if kept else following, following, lost, trimmed, time_ms)
            )
        waiting = log.numbers({d.id for d in told}, above, log.last + 1)
        following = max((d.next for d in told), default=above)
        first = min((d.first for d in told if d.first < d.next), default=following)
        rows = len(waiting)
        return ChannelHead(
            channel, following, first, log.last, log.version, 0, rows, rows * ROW_BYTES, tuple(told)
        )  # fmt: skip

    def bound(
        self,
        channel: str,
        destinations: Sequence[RangeDestination],
        start: int,
        stop: int,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> Bound:
        self.asked.append(f"bound {channel}")
        numbers = self.channels[channel].numbers({d.id for d in destinations}, start, stop)
        most = min(
            len(numbers) if rows is None else rows, len(numbers) if bytes is None else bytes // ROW_BYTES
        )
        most = max(1, most)
        if most < len(numbers):
            return Bound(numbers[most - 1] + 1, most, most * ROW_BYTES)
        return Bound(stop, len(numbers), len(numbers) * ROW_BYTES)

    def at_time(self, channel: str, log_time_ms: int) -> int:
        self.asked.append(f"time {channel}")
        before = [number for number, time_ms in self.channels[channel].marks if time_ms < log_time_ms]
        return before[-1] + 1 if before else 1

    def read(
        self,
        channel: str,
        start: int,
        stop: int,
        destinations: Sequence[RangeDestination],
        allow_lost: bool = False,
        acks: bool = False,
        live: bool = False,
        page_bytes: int = 1 << 20,
    ) -> Iterator[RangePage]:
        self.asked.append(f"read {channel}")
        log = self.channels[channel]
        if stop > log.last + 1:
            raise RangeUnavailable(f"{stop} is beyond {log.last}")
        lost = []
        for d in destinations:
            first = max(start, d.since)
            if log.lost.get(d.id, 0) >= first:
                lost.append(RangeLoss(d.id, first, min(stop - 1, log.lost[d.id])))
                if not allow_lost:
                    raise RangeLost(d.name, channel, first, lost[-1].last)
        pieces = tuple(
            RangePiece(log.kept[n], n, 1, Batch.of_bodies([b"body %d" % n], 7, n, 1_700_000_000_000 + n))
            for n in log.numbers({d.id for d in destinations}, start, stop)
            if not (live and n in self.acknowledged)
        )
        cut = self.page_rows or max(1, len(pieces))
        pages = [pieces[at : at + cut] for at in range(0, len(pieces), cut)] or [()]
        for at, some in enumerate(pages):
            through = stop - 1 if at == len(pages) - 1 else some[-1].first
            yield RangePage(through, len(some), some, tuple(lost))
            lost = []

    def holds(self) -> tuple[HoldReport, ...]:
        self.asked.append("holds")
        return tuple(self.reports)

    def hold(
        self,
        name: str,
        positions: Mapping[str, int],
        destinations: Sequence[RangeDestination],
        limit: float = 86_400.0,
        consume: bool = False,
        acks: bool = False,
    ) -> None:
        self.asked.append("hold")
        known = self.held.get(name, ({}, (), 0.0, False))[0]
        merged = {c: max(n, known.get(c, 0)) for c, n in positions.items()}
        self.held[name] = ({**known, **merged}, tuple(d.name for d in destinations), limit, consume)
