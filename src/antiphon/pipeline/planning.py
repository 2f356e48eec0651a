"""Planning: from where to where a query reads next, and in which parts.

Where it sits
    Spark's driver  ->  source  ->  PLANNING  ->  subscribed, ranges (client library)

What it promises
    P1  The same start and end give the same rows, however often and in however many parts they are read.
    P2  A start below which something was lost that the query had not read is told, with the numbers that
        are missing, and only then: what other destinations of the channel lost does not matter.
    P3  A trigger gets at most as many rows and bytes as were allowed, shared among channels by what waits
        there; every channel with something gets on by a row at least.
    P4  A start behind the end of a channel is refused: that is another cluster, or one that lost data.

What it leaves to others
    When it is called, and that offsets are kept, is Spark's. Rows are read by `reading`, and whether a
    part is complete is checked there once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import InvalidOption, RangeLost, RangeUnavailable
from antiphon.pipeline.holding import Holding
from antiphon.pipeline.offsets import EARLIEST, FIRST, LATEST, Offset
from antiphon.pipeline.options import SourceOptions, Starting
from antiphon.pipeline.subscribed import Subscribed

if TYPE_CHECKING:
    from antiphon.blocking.ranges import Ranges
    from antiphon.client.ranges import ChannelHead, RangeDestination

log = logging.getLogger("antiphon.pipeline")

SPAN_BYTES: Final = 64 * 1024 * 1024
"""A part of about so many bytes is a task of a second or so; a range of more is split without being asked."""

SPANS_MAX: Final = 1_000
"""More parts than these are not made of a range on our own account."""

CATCH_UP_S: Final = 5.0
"""How long a replica may take to come to the number where a query stood, before we say it is not there."""

POLL_S: Final = 0.1
"""How long a question for news waits at the broker, if it is the only one."""

POLL_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Span:
    """What one task reads: the numbers `[start, stop)` of one channel."""

    channel: str
    start: int
    stop: int
    destinations: tuple[RangeDestination, ...]
    allows_loss: bool
    has_acks: bool = False
    is_live: bool = False  # without what others have consumed


class Limit(NamedTuple):
    """How much a trigger may have; None: as much as there is."""

    rows: int | None = None
    bytes: int | None = None


NO_LIMIT = Limit()


class Planner:
    """The mind of one query: on the driver, one for each run."""

    def __init__(
        self,
        ranges: Ranges,
        options: SourceOptions,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ranges = ranges
        self._options = options
        self._now_s = now_s
        self._sleep = sleep
        self._subscribed = Subscribed(ranges, options)
        self._heads: dict[str, ChannelHead] = {}
        self._cap: Offset | None = None
        # By channel and name: through which number a loss was told.
        self._told: dict[tuple[str, str], int] = {}
        self._holding: Holding | None = None
        if options.subscription is not None:
            self._holding = Holding(
                ranges,
                options.subscription,
                options.subscription_limit_s,
                consume=options.mode == "consume",
                acks=options.has_acks,
            )

    # -- offsets ---------------------------------------------------------------

    def initial(self, default: Starting) -> Offset:
        """Where a query begins that never ran before."""
        options = self._options
        starting = options.starting or default
        if options.mode == "consume":
            starting = "earliest"
        self._heads = heads = self._subscribed.heads({})
        if options.starting_ms is not None:
            moment_ms = options.starting_ms
            start = self._not_before({channel: self._ranges.at_time(channel, moment_ms) for channel in heads})
        elif starting == "earliest":
            start = self._not_before({channel: head.first for channel, head in heads.items()})
        elif starting == "latest":
            start = Offset({channel: head.next for channel, head in heads.items()})
        else:
            start = self._given_start(starting)
        self._hold(start)
        if self._holding is not None and not isinstance(starting, Offset):
            # What went while nothing was held yet is no loss: the query begins with its hold.
            self._heads = self._subscribed.heads(start.channels)
            start = self._not_before(start.channels)
        return start

    def _given_start(self, given: Offset) -> Offset:
        """A start that the user wrote down, where -2 is the earliest and -1 the latest."""
        self._check_channels(given, "startingOffsets")
        numbers: dict[str, int] = {}
        earliest: dict[str, int] = {}
        for channel, number in given.channels.items():
            head = self._heads.get(channel)
            if number == EARLIEST and head is not None:
                earliest[channel] = numbers[channel] = head.first
            elif number == LATEST and head is not None:
                numbers[channel] = head.next
            else:
                numbers[channel] = max(FIRST, number)
        start = Offset(numbers, {**self._not_before(earliest).since, **given.since})
        self._check_start(start)
        return start

    def _check_channels(self, given: Offset, option: str) -> None:
        """A pattern may find something on a channel later; of names we know where they live."""
        subscribed = set(self._subscribed.channels)
        missing = sorted(subscribed - given.channels.keys())
        if missing:
            names = ", ".join(destination.name for destination in self._subscribed.on(missing[0]))
            raise InvalidOption(f"{option} has no number for channel {missing[0]}, where {names} lives")
        unknown = sorted(given.channels.keys() - subscribed)
        if unknown and self._options.pattern is None:
            raise InvalidOption(f"{option} names channel {unknown[0]}, on which nothing of subscribe lives")

    def _not_before(self, numbers: Mapping[str, int]) -> Offset:
        """Start at these numbers, and call no loss what was lost before now."""
        since = {}
        for channel, number in numbers.items():
            for destination in self._heads[channel].destinations if channel in self._heads else ():
                if destination.lost_through >= number:
                    name = self._subscribed.name_of(channel, destination.id)
                    since[name] = destination.lost_through + 1
        return Offset(numbers, since)

    def latest(self, start: Offset, limit: Limit = NO_LIMIT) -> Offset:
        """How far the next batch goes. If nothing is new it takes a moment, and the start comes back."""
        wait_s = 0.0 if self._cap is not None else self._poll_s()
        began_s = self._now_s()
        self._heads = heads = self._subscribed.heads(start.channels, wait_s)
        self._check_start(start)
        self._check_loss(start)
        ends = {channel: start.next(channel) for channel in {*start.channels, *heads}}
        if self._cap is not None:
            stops = {channel: min(head.next, self._cap.next(channel)) for channel, head in heads.items()}
        else:
            stops = {channel: head.next for channel, head in heads.items()}
        for channel, stop in self._within(start, stops, limit).items():
            ends[channel] = max(ends[channel], stop)
        end = Offset(
            ends, {name: number for name, number in start.since.items() if self._is_ahead(name, number, ends)}
        )
        if end == start and not heads:
            # Nothing matches the pattern, so nobody made us wait.
            self._sleep(max(0.0, wait_s - (self._now_s() - began_s)))
        self._hold(start)
        return end

    def _is_ahead(self, name: str, number: int, ends: Mapping[str, int]) -> bool:
        """Is the number from which a destination is wanted still to come?"""
        for destination in self._subscribed.destinations:
            if destination.name == name:
                return number > ends.get(destination.channel, FIRST)
        return False

    def _poll_s(self) -> float:
        """The more channels there are to be asked, the longer each question waits, if there is no news.

        Each is asked on its own, and when the first one's time is over the others once more. So a query
        asks no more often than ten times a second, whatever it reads.
        """
        questions = 2 * len(self._subscribed.watched) - 1
        return min(POLL_S_MAX, POLL_S * max(1, questions))

    def _within(self, start: Offset, stops: Mapping[str, int], limit: Limit) -> dict[str, int]:
        """The stops, pulled in where more waits than is allowed (P3)."""
        waiting = {channel: self._heads[channel] for channel in stops if stops[channel] > start.next(channel)}
        rows = sum(head.rows for head in waiting.values())
        size = sum(head.bytes for head in waiting.values())
        if (limit.rows is None or rows <= limit.rows) and (limit.bytes is None or size <= limit.bytes):
            return dict(stops)
        pulled = dict(stops)
        for channel, head in waiting.items():
            if head.rows:
                bound = self._ranges.bound(
                    channel,
                    self._subscribed.on(channel),
                    start.next(channel),
                    stops[channel],
                    rows=_share(limit.rows, head.rows, rows),
                    bytes=_share(limit.bytes, head.bytes, size),
                )
                pulled[channel] = bound.stop
        return pulled

    def newest(self) -> Offset | None:
        """Where the channels ended when they were asked last; nobody is asked for it."""
        if not self._heads:
            return None
        return Offset({channel: head.next for channel, head in self._heads.items()})

    def cap(self) -> None:
        """From now on nothing is given that came later: `AvailableNow`."""
        self._heads = heads = self._subscribed.heads({})
        self._cap = Offset({channel: head.next for channel, head in heads.items()})

    def end(self, start: Offset) -> Offset:
        """Where a read that is no stream ends."""
        options, heads = self._options, self._heads
        if options.ending_ms is not None:
            moment_ms = options.ending_ms
            stops = {
                channel: min(head.next, self._ranges.at_time(channel, moment_ms))
                for channel, head in heads.items()
            }
        elif options.ending == "latest":
            stops = {channel: head.next for channel, head in heads.items()}
        else:
            self._check_channels(options.ending, "endingOffsets")
            stops = {}
            for channel, number in options.ending.channels.items():
                head = heads.get(channel)
                if head is not None:
                    stops[channel] = head.next if number == LATEST else number
                    if stops[channel] > head.applied + 1:
                        raise RangeUnavailable(
                            f"endingOffsets is {number} for channel {channel},"
                            f" which ends at {head.applied + 1}"
                        )
        return Offset({channel: max(start.next(channel), stop) for channel, stop in stops.items()})

    # -- parts -----------------------------------------------------------------

    def spans(self, start: Offset, end: Offset) -> list[Span]:
        """Everything from start to end, in parts that may be read in any order, anywhere."""
        wanted = {
            channel: (start.next(channel), stop)
            for channel, stop in sorted(end.channels.items())
            if stop > start.next(channel)
        }
        if not wanted:
            return []
        if not self._heads:
            # After a restart the first thing may be to read again what was planned in the last life.
            self._heads = self._subscribed.heads(start.channels)
        self._check_start(start)
        self._check_loss(start)
        self._hold(start)
        gone = sorted(channel for channel in wanted if channel not in self._heads)
        for channel in gone:
            log.warning(
                "nothing that is subscribed is left on channel %s; its numbers are passed over", channel
            )
            del wanted[channel]
        return [
            Span(
                channel,
                first,
                stop,
                self._demanded(channel, start),
                not self._options.fails_on_loss,
                self._options.has_acks,
                self._options.mode == "consume",
            )
            for channel, first, stop in self._parts(wanted)
        ]

    def _demanded(self, channel: str, start: Offset) -> tuple[RangeDestination, ...]:
        """The destinations of a channel, each with the number from which nothing may be missing."""
        return tuple(
            destination._replace(since=start.since.get(destination.name, 0))
            for destination in self._subscribed.on(channel)
        )

    def _parts(self, wanted: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
        fewest = self._options.partitions_min or 1
        most_bytes = sum(self._heads[channel].bytes for channel in wanted)
        if fewest <= len(wanted) and most_bytes <= SPAN_BYTES:
            yield from ((channel, first, stop) for channel, (first, stop) in wanted.items())
            return
        sizes = {
            channel: self._ranges.bound(channel, self._subscribed.on(channel), first, stop)
            for channel, (first, stop) in wanted.items()
        }
        rows = sum(size.rows for size in sizes.values())
        by_bytes = -(-sum(size.bytes for size in sizes.values()) // SPAN_BYTES)
        parts = max(fewest, min(SPANS_MAX, by_bytes))
        for channel, (first, stop) in wanted.items():
            own = sizes[channel].rows
            yield from self._split(channel, first, stop, own, -(-parts * own // max(1, rows)))

    def _split(
        self, channel: str, first: int, stop: int, rows: int, parts: int
    ) -> Iterator[tuple[str, int, int]]:
        """Cut a range into so many parts of about as many rows; there are no parts without any."""
        destinations = self._subscribed.on(channel)
        while parts > 1 and rows > 1:
            cut = self._ranges.bound(channel, destinations, first, stop, rows=-(-rows // parts))
            if not first < cut.stop < stop:
                break
            yield channel, first, cut.stop
            first, rows, parts = cut.stop, rows - cut.rows, parts - 1
        yield channel, first, stop

    # -- what may have gone wrong ----------------------------------------------

    def _check_start(self, start: Offset) -> None:
        """P4; a replica that only lags behind is given time."""
        until_s = self._now_s() + CATCH_UP_S
        while beyond := [
            (channel, start.next(channel), head.applied)
            for channel, head in sorted(self._heads.items())
            if start.next(channel) > head.applied + 1
        ]:
            if self._now_s() >= until_s:
                channel, number, applied = beyond[0]
                raise RangeUnavailable(
                    f"the query stands before number {number} of channel {channel}, which ends at {applied}:"
                    " this is another cluster than the one it read before, or the cluster has lost data"
                )
            self._sleep(POLL_S)
            self._heads = self._subscribed.heads(start.channels)

    def _check_loss(self, start: Offset) -> None:
        """P2: fail, or say once what is passed over."""
        for channel, head in sorted(self._heads.items()):
            for destination in head.destinations:
                name = self._subscribed.name_of(channel, destination.id)
                first = max(start.next(channel), start.since.get(name, FIRST))
                if destination.lost_through < first:
                    continue
                if self._options.fails_on_loss:
                    raise RangeLost(
                        destination=name, channel=channel, first=first, last=destination.lost_through
                    )
                if self._told.get((channel, name), 0) < destination.lost_through:
                    self._told[channel, name] = destination.lost_through
                    log.warning(loss_text(name, channel, first, destination.lost_through))

    # -- the hold --------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        """Everything below is processed, and the query will not ask for it again."""
        if self._holding is not None:
            if not self._subscribed.destinations:
                self._heads = self._subscribed.heads(end.channels)
            self._holding.move(end.channels, self._subscribed.destinations)

    def _hold(self, start: Offset) -> None:
        """Say that everything from here on is needed, if that was not said in this run."""
        if self._holding is not None:
            positions = {channel: start.next(channel) for channel in self._subscribed.channels}
            self._holding.begin(positions, self._subscribed.destinations)

    def stop(self) -> None:
        """The run is over; its hold stays for the next one."""
        if self._holding is not None:
            self._holding.end()


def loss_text(name: str, channel: str, first: int, last: int) -> str:
    """One sentence on what is passed over, for the log."""
    return (
        f"skipped {last - first + 1} numbers of channel {channel}: the messages of {name} from {first} to"
        f" {last} are no longer stored, and failOnDataLoss is false"
    )


def _share(whole: int | None, part: int, total: int) -> int | None:
    """What falls to one of several, at least 1."""
    return None if whole is None else max(1, whole * part // max(1, total))
