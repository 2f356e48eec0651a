"""Planning: from where to where a query reads next, and in which parts.

    Spark's driver  ->  source  ->  PLANNING  ->  subscribed, ranges (client library)

    PLN1  The same start and end give the same rows, however often and in however many parts they are read.
    PLN2  A start below which something was lost that the query had not read is reported, with the missing
          numbers, and only then: losses of other destinations of the channel do not matter.
    PLN3  A trigger gets at most as many rows and bytes as were allowed, shared among channels by what waits
          there; every channel with something gets on by a row at least.
    PLN4  A start of another cluster is refused, and so is a start behind the end of a channel: that cluster
          lost data.
    PLN5  A destination that is new to a query is read from the earliest of its messages that is kept,
          wherever it lives. While it is behind its channel it is read beside it.
    PLN6  A batch that was planned under another subscription is read as it was planned (PLN1).

Spark calls the planner and keeps the offsets. `reading` reads the rows, and checks once more that a part is
complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import InvalidOption, OtherCluster, RangeLost, RangeUnavailable
from antiphon.pipeline.filters import Narrowed
from antiphon.pipeline.holding import QueryHold
from antiphon.pipeline.offsets import EARLIEST, FIRST, LATEST, Offset, parse_choice
from antiphon.pipeline.options import SourceOptions, Starting
from antiphon.pipeline.patience import NoAnswerNow, PatientRanges
from antiphon.pipeline.subscribed import Subscribed

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import ChannelHead, DestinationHead, RangeDestination

log = logging.getLogger("antiphon.pipeline")

SPAN_BYTES: Final = 32 * 1024 * 1024
SPAN_ROWS: Final = 250_000
"""A part of about so many bytes or rows is a task of half a second; a larger range is split by default."""

SPANS_MAX: Final = 1_000
"""The most parts that are made of a range by default."""

CATCH_UP_S: Final = 5.0
"""How long a replica may take to come to the number where a query stood, before that counts as lost."""

POLL_S: Final = 0.1
"""How long a question for news waits at the broker, if it is the only one."""

POLL_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """The part of one task: the numbers `[start, stop)` of one channel."""

    channel: str
    start: int
    stop: int
    destinations: tuple[RangeDestination, ...]
    allows_loss: bool
    has_acks: bool = False
    is_live: bool = False  # without what others have consumed


class Stretch(NamedTuple):
    """Destinations of a channel that are read from one number to another, all together."""

    channel: str
    start: int
    stop: int
    destinations: tuple[RangeDestination, ...]


class Limit(NamedTuple):
    """How much a trigger may have; None: as much as there is."""

    rows: int | None = None
    bytes: int | None = None


NO_LIMIT = Limit()


class Planner:
    """The planner of one query: on the driver, one for each run."""

    def __init__(
        self,
        ranges: PatientRanges,
        options: SourceOptions,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        is_former: bool = False,
    ) -> None:
        """`is_former`: for a batch that was planned under another subscription."""
        self._ranges = ranges
        self._options = options
        self._now_s = now_s
        self._sleep = sleep
        self._subscribed = Subscribed(ranges, options.choice, has_acks=options.has_acks, is_former=is_former)
        self._cluster = ""
        self._heads: dict[str, ChannelHead] = {}
        self._cap: Offset | None = None
        # (channel, name) -> through which number a loss was reported.
        self._told: dict[tuple[str, str], int] = {}
        self._holding: QueryHold | None = None
        if options.subscription is not None:
            self._holding = QueryHold(
                ranges,
                options.subscription,
                options.subscription_limit_s,
                consume=options.mode == "consume",
                acks=options.has_acks,
            )

    # -- offsets ---------------------------------------------------------------

    def initial(self, default: Starting) -> Offset:
        """The start of a query that never ran before."""
        options = self._options
        starting = options.starting or default
        if options.mode == "consume":
            starting = "earliest"
        self._heads = heads = self._subscribed.heads({})
        if not heads:
            # A name that does not exist is an error; a pattern may match nothing.
            log.warning("nothing matches subscribePattern %r yet", options.pattern)
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
            # Messages that went before the first hold are no loss: the query begins with its hold.
            self._heads = self._subscribed.heads(start.channels)
            start = self._not_before(start.channels)
        return self._signed(start)

    def _signed(self, offset: Offset) -> Offset:
        """The offset with the subscription and the cluster."""
        if not self._cluster:
            self._cluster = self._ranges.cluster()
        return replace(offset, cluster=self._cluster, subscribed=self._options.choice.text)

    def _given_start(self, given: Offset) -> Offset:
        """A start that the user wrote down, where -2 is the earliest and -1 the latest."""
        self._check_cluster(given, "startingOffsets")
        if not given.subscribed:
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
        start = replace(given, channels=numbers, since={**self._not_before(earliest).since, **given.since})
        self._check_start(start)
        return self._adopted(start)

    # -- a checkpoint of another run ---------------------------------------------

    def _check_cluster(self, offset: Offset, what: str = "the checkpoint") -> None:
        """PLN4: numbers of another cluster mean nothing here."""
        if not self._cluster:
            self._cluster = self._ranges.cluster()
        if offset.cluster and offset.cluster != self._cluster:
            raise OtherCluster(
                f"{what} belongs to cluster {offset.cluster}, and {self._options.connection.servers} is"
                f" cluster {self._cluster}: give the query the servers of its cluster, or a new checkpoint"
            )

    def _adopted(self, start: Offset) -> Offset:
        """The same position under the present subscription (PLN5)."""
        if start.subscribed == self._options.choice.text and start.cluster == self._cluster:
            return start
        if not start.subscribed:
            return self._signed(start)
        former = parse_choice(start.subscribed)
        before = set(former.names)
        if former.pattern is not None:
            listed = self._ranges.destinations(pattern=former.pattern, match=former.match)
            before = {destination.name for destination in listed}
        self._subscribed.look()
        self._heads = self._subscribed.heads(start.channels)
        return self._signed(self._with_new(start, before))

    def _with_new(self, start: Offset, before: set[str]) -> Offset:
        """The offset with all subscribed destinations, where `before` names the former ones."""
        labels = {destination.label for destination in self._subscribed.destinations}
        channels = dict(start.channels)
        behind = {label: number for label, number in start.behind.items() if label in labels}
        since = {label: number for label, number in start.since.items() if label in labels}
        for channel, head in self._heads.items():
            present = [(self._subscribed.name_of(channel, one.id), one) for one in head.destinations]
            new = [(name, one) for name, one in present if name not in before]
            if not new:
                continue
            if len(new) == len(present):
                # No other destination is read here, whatever number the channel had come to.
                channels[channel] = head.first
            for name, one in new:
                label = self._subscribed.label_of(channel, one.id)
                number = self._begin_with(label, one, channels.setdefault(channel, FIRST), behind)
                if one.lost_through >= number:
                    since[label] = one.lost_through + 1
                log.info("%s is new to the query and is read from number %d on", name, one.first)
        return Offset(channels, since, behind)

    def _begin_with(self, label: str, one: DestinationHead, number: int, behind: dict[str, int]) -> int:
        """Where a new destination begins, if this is the next number of its channel."""
        if one.first >= number:
            return number
        behind[label] = one.first
        return one.first

    def _check_channels(self, given: Offset, option: str) -> None:
        """A pattern may find something on a channel later; the channels of names are known."""
        subscribed = set(self._subscribed.channels)
        missing = sorted(subscribed - given.channels.keys())
        if missing:
            names = ", ".join(destination.name for destination in self._subscribed.on(missing[0]))
            raise InvalidOption(f"{option} has no number for channel {missing[0]}, where {names} lives")
        unknown = sorted(given.channels.keys() - subscribed)
        if unknown and self._options.pattern is None:
            raise InvalidOption(f"{option} names channel {unknown[0]}, on which nothing of subscribe lives")

    def _not_before(self, numbers: Mapping[str, int]) -> Offset:
        """Start at these numbers, and report no loss of before."""
        since = {}
        for channel, number in numbers.items():
            for destination in self._heads[channel].destinations if channel in self._heads else ():
                if destination.lost_through >= number:
                    label = self._subscribed.label_of(channel, destination.id)
                    since[label] = destination.lost_through + 1
        return Offset(numbers, since)

    def latest(self, start: Offset, limit: Limit = NO_LIMIT) -> Offset:
        """The end of the next batch. Without news the call takes a moment, and returns the start.

        While no node answers it does the same, and the query's progress says that it waits.
        """
        if self._cap is not None:
            # To report no news would end the run.
            return self._latest(start, limit)
        try:
            with self._ranges.without_waiting():
                return self._latest(start, limit)
        except NoAnswerNow:
            return start

    @property
    def waiting(self) -> str | None:
        """Since when and why no node answers, in words; None if one does."""
        return self._ranges.waiting

    def _latest(self, start: Offset, limit: Limit) -> Offset:
        self._check_cluster(start)
        if not start.subscribed:
            log.warning(
                "the checkpoint does not say what the query had subscribed to, nor in which cluster, as an"
                " older version wrote it: what is subscribed now is taken for that"
            )
        former, start = start, self._adopted(start)
        if former.subscribed not in ("", start.subscribed):
            # A batch of its own, without rows: from here on the offset says where new destinations begin.
            self._hold(start)
            return start
        wait_s = 0.0 if self._cap is not None or start.behind else self._poll_s()
        began_s = self._now_s()
        self._heads = heads = self._subscribed.heads(start.channels, wait_s)
        self._check_start(start)
        self._check_loss(start)
        if self._cap is not None:
            stops = {channel: min(head.next, self._cap.next(channel)) for channel, head in heads.items()}
        else:
            stops = {channel: head.next for channel, head in heads.items()}
        end = self._ahead(start, self._within(start, stops, limit))
        if end == start and not heads:
            # Nothing matches the pattern, so no broker made us wait.
            self._sleep(max(0.0, wait_s - (self._now_s() - began_s)))
        self._hold(start)
        return end

    def _ahead(self, start: Offset, stretches: list[Stretch]) -> Offset:
        """The position of a query that has read these stretches from `start` on."""
        ends = {channel: start.next(channel) for channel in {*start.channels, *self._heads}}
        channel_of = {one.label: one.channel for one in self._subscribed.destinations}
        behind = {label: number for label, number in start.behind.items() if label in channel_of}
        for stretch in stretches:
            late = [one.label for one in stretch.destinations if one.label in behind]
            if late:
                behind.update(dict.fromkeys(late, stretch.stop))
            else:
                ends[stretch.channel] = max(ends[stretch.channel], stretch.stop)
        behind = {label: number for label, number in behind.items() if number < ends[channel_of[label]]}
        end = replace(start, channels=ends, behind=behind)
        since = {
            label: number
            for label, number in start.since.items()
            if label in channel_of and number > end.next_of(label, channel_of[label])
        }
        return replace(end, since=since)

    def _poll_s(self) -> float:
        """How long a question for news waits: longer with more channels.

        Each channel is asked on its own, and when the first one's time is over the others once more. So a
        query asks no more often than ten times a second, whatever it reads.
        """
        questions = 2 * len(self._subscribed.watched) - 1
        return min(POLL_S_MAX, POLL_S * max(1, questions))

    def _within(self, start: Offset, stops: Mapping[str, int], limit: Limit) -> list[Stretch]:
        """Everything up to the stops, pulled in where more waits than is allowed (PLN3)."""
        waiting: list[tuple[Stretch, int, int]] = []
        for channel, stop in stops.items():
            stop = max(stop, start.next(channel))
            destinations = self._subscribed.on(channel)
            late = tuple([one for one in destinations if one.label in start.behind])
            head = self._heads[channel] if not late else None
            others = tuple([one for one in destinations if one.label not in start.behind])
            # A destination that is behind stays behind its channel, so the channel comes first.
            waiting.append(self._weighed(Stretch(channel, start.next(channel), stop, others), head))
            waiting += [
                self._weighed(Stretch(channel, start.behind[one.label], stop, (one,)), None) for one in late
            ]
        rows = sum(own for _, own, _ in waiting)
        size = sum(own for _, _, own in waiting)
        if (limit.rows is None or rows <= limit.rows) and (limit.bytes is None or size <= limit.bytes):
            return [stretch for stretch, _, _ in waiting]
        pulled: list[Stretch] = []
        ends: dict[str, int] = {}
        for stretch, own_rows, own_size in waiting:
            channel, first, _, destinations = stretch
            stop = min(stretch.stop, ends.get(channel, stretch.stop))
            if own_rows and first < stop:
                stop = self._ranges.bound(
                    channel,
                    destinations,
                    first,
                    stop,
                    rows=_share(limit.rows, own_rows, rows),
                    bytes=_share(limit.bytes, own_size, size),
                ).stop
            ends.setdefault(channel, stop)
            pulled.append(stretch._replace(stop=stop))
        return pulled

    def _weighed(self, stretch: Stretch, head: ChannelHead | None) -> tuple[Stretch, int, int]:
        """How many rows and bytes wait in a stretch; of a whole channel the head says it."""
        if stretch.start >= stretch.stop or not stretch.destinations:
            return stretch, 0, 0
        if head is not None:
            return stretch, head.rows, head.bytes
        bound = self._ranges.bound(stretch.channel, stretch.destinations, stretch.start, stretch.stop)
        return stretch, bound.rows, bound.bytes

    def newest(self) -> Offset | None:
        """Where the channels ended when they were asked last; no node is asked."""
        if not self._heads:
            return None
        return self._signed(Offset({channel: head.next for channel, head in self._heads.items()}))

    def cap(self) -> None:
        """Give nothing from now on that came later: `AvailableNow`."""
        self._heads = heads = self._subscribed.heads({})
        self._cap = Offset({channel: head.next for channel, head in heads.items()})

    def end(self, start: Offset) -> Offset:
        """The end of a read that is no stream."""
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
            self._check_cluster(options.ending, "endingOffsets")
            self._check_channels(options.ending, "endingOffsets")
            stops = {}
            for channel, number in options.ending.channels.items():
                head = heads.get(channel)
                if head is not None:
                    stops[channel] = head.next if number == LATEST else number
                    if isinstance(options.starting, Offset) and stops[channel] < start.next(channel):
                        raise InvalidOption(
                            f"startingOffsets is {start.next(channel)} for channel {channel}, which lies"
                            f" behind endingOffsets, {stops[channel]}"
                        )
                    if stops[channel] > head.applied + 1:
                        raise RangeUnavailable(
                            f"endingOffsets is {number} for channel {channel},"
                            f" which ends at {head.applied + 1}"
                        )
        behind = {} if options.ending == "latest" else options.ending.behind
        ends = {channel: max(start.next(channel), stop) for channel, stop in stops.items()}
        return self._signed(Offset(ends, behind=behind))

    def narrow(self, start: Offset, end: Offset, narrowed: Narrowed) -> tuple[Offset, Offset]:
        """Leave out what filters exclude: destinations, channels and numbers."""
        self._subscribed.keep(narrowed.keeps)
        kept = {(destination.channel, destination.id) for destination in self._subscribed.destinations}
        self._heads = {
            channel: head._replace(
                destinations=tuple([one for one in head.destinations if (channel, one.id) in kept])
            )
            for channel, head in self._heads.items()
            if channel in self._subscribed.channels
        }
        starts = {}
        for channel in self._heads:
            first, stop = start.next(channel), end.next(channel)
            starts[channel] = min(max(first, narrowed.first), max(first, stop))
        return (
            replace(
                start,
                channels=starts,
                behind={name: max(number, narrowed.first) for name, number in start.behind.items()},
            ),
            replace(
                end,
                channels={channel: min(end.next(channel), narrowed.stop) for channel in self._heads},
                behind={name: min(number, narrowed.stop) for name, number in end.behind.items()},
            ),
        )

    # -- parts -----------------------------------------------------------------

    def spans(self, start: Offset, end: Offset) -> list[TaskSpan]:
        """Everything from start to end, in parts that may be read in any order, anywhere."""
        if start == end:
            return []
        self._check_cluster(start)
        if start.subscribed not in ("", end.subscribed):
            return []
        if end.subscribed not in ("", self._options.choice.text):
            return self._former_spans(start, end)
        if not self._heads:
            # After a restart the first call may be to read again what the last run planned.
            self._heads = self._subscribed.heads(start.channels)
        self._check_start(start)
        self._check_loss(start)
        self._hold(start)
        for channel, stop in sorted(end.channels.items()):
            if stop > start.next(channel) and channel not in self._heads:
                log.warning(
                    "nothing that is subscribed is left on channel %s; its numbers are passed over", channel
                )
        return [
            TaskSpan(
                stretch.channel,
                stretch.start,
                stretch.stop,
                tuple([one._replace(since=self._whole_from(one, start)) for one in stretch.destinations]),
                not self._options.fails_on_loss,
                self._options.has_acks,
                self._options.mode == "consume",
            )
            for stretch in self._parts(self._lanes(start, end))
        ]

    def _whole_from(self, one: RangeDestination, start: Offset) -> int:
        """The number from which on a task must report losses; those below it were reported."""
        told = self._told.get((one.channel, one.name))
        return max(start.since.get(one.label, 0), 0 if told is None else told + 1)

    def _former_spans(self, start: Offset, end: Offset) -> list[TaskSpan]:
        """Parts of a batch that another run has planned under another subscription (PLN6)."""
        choice = parse_choice(end.subscribed)
        options = replace(
            self._options,
            names=choice.names,
            pattern=choice.pattern,
            match=choice.match,
            subscription=None,
        )
        planner = Planner(self._ranges, options, now_s=self._now_s, sleep=self._sleep, is_former=True)
        spans = planner.spans(start, end)
        self._subscribed.forget()
        self._heads = {}
        return spans

    def _lanes(self, start: Offset, end: Offset) -> list[Stretch]:
        """What lies between two offsets, of each channel first what keeps up with it."""
        stretches: list[Stretch] = []
        for channel in sorted(self._heads):
            together: dict[tuple[int, int], list[RangeDestination]] = {}
            for one in self._subscribed.on(channel):
                first, stop = start.next_of(one.label, channel), end.next_of(one.label, channel)
                if channel in end.channels and first < stop:
                    together.setdefault((first, stop), []).append(one)
            stretches += [Stretch(channel, *ends, tuple(ones)) for ends, ones in sorted(together.items())]
        return stretches

    def _parts(self, stretches: list[Stretch]) -> Iterator[Stretch]:
        fewest = self._options.partitions_min or 1
        heads = [self._heads[channel] for channel in {stretch.channel for stretch in stretches}]
        is_small = (
            sum(head.bytes for head in heads) <= SPAN_BYTES and sum(head.rows for head in heads) <= SPAN_ROWS
        )
        is_caught_up = len(heads) == len(stretches)
        if fewest <= len(stretches) and is_small and is_caught_up:
            yield from stretches
            return
        sizes = [
            self._ranges.bound(stretch.channel, stretch.destinations, stretch.start, stretch.stop)
            for stretch in stretches
        ]
        rows = sum(size.rows for size in sizes)
        by_bytes = -(-sum(size.bytes for size in sizes) // SPAN_BYTES)
        by_rows = -(-rows // SPAN_ROWS)
        parts = max(fewest, min(SPANS_MAX, max(by_bytes, by_rows)))
        for stretch, size in zip(stretches, sizes, strict=True):
            yield from self._split(stretch, size.rows, -(-parts * size.rows // max(1, rows)))

    def _split(self, stretch: Stretch, rows: int, parts: int) -> Iterator[Stretch]:
        """Cut a stretch into so many parts of about as many rows; there are no empty parts."""
        channel, first, stop, destinations = stretch
        while parts > 1 and rows > 1:
            cut = self._ranges.bound(channel, destinations, first, stop, rows=-(-rows // parts))
            if not first < cut.stop < stop:
                break
            yield stretch._replace(start=first, stop=cut.stop)
            first, rows, parts = cut.stop, rows - cut.rows, parts - 1
        yield stretch._replace(start=first)

    # -- what may have gone wrong ----------------------------------------------

    def _check_start(self, start: Offset) -> None:
        """PLN4; a replica that only lags behind is given time."""
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
        """PLN2: fail, or log once what is passed over."""
        for channel, head in sorted(self._heads.items()):
            for destination in head.destinations:
                name = self._subscribed.name_of(channel, destination.id)
                label = self._subscribed.label_of(channel, destination.id)
                first = max(start.next_of(label, channel), start.since.get(label, FIRST))
                if destination.lost_through < first:
                    continue
                more = _loss_in_words(destination, first)
                if self._options.fails_on_loss:
                    raise RangeLost(name, channel, first, destination.lost_through, more)
                if self._told.get((channel, name), 0) < destination.lost_through:
                    self._told[channel, name] = destination.lost_through
                    log.warning(loss_text(name, channel, first, destination.lost_through, more))

    # -- the hold --------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        """Everything below is processed, and the query will not ask for it again."""
        if self._holding is not None:
            if not self._subscribed.destinations:
                self._heads = self._subscribed.heads(end.channels)
            self._holding.move(end.channels, self._subscribed.destinations)

    def _hold(self, start: Offset) -> None:
        """Hold everything from here on, if this run has not done so."""
        if self._holding is not None:
            positions = {channel: start.next(channel) for channel in self._subscribed.channels}
            self._holding.begin(positions, self._subscribed.destinations)

    def stop(self) -> None:
        """The run is over; its hold stays for the next one."""
        if self._holding is not None:
            self._holding.end()


def loss_text(name: str, channel: str, first: int, last: int, more: str = "") -> str:
    """One sentence on what is passed over, for the log."""
    return (
        f"messages of {name} are not kept any more and are skipped, since failOnDataLoss is false:"
        f" numbers {first} to {last} of {channel}{more}"
    )


def _loss_in_words(head: DestinationHead, first: int) -> str:
    """How many messages a loss is, and of which time. Other destinations of the channel have numbers there,
    too.

    The number of lost messages is known; of a query that has read some of them, only an upper bound.
    """
    count = min(head.lost, head.lost_through - first + 1)
    most = "" if first <= head.id else "at most "
    said = f", {most}{count:,} message{'s' if count != 1 else ''}" if count else ""
    if head.lost_time_ms:
        moment = datetime.fromtimestamp(head.lost_time_ms // 1000, UTC)
        said += f", the last of them stored about {moment:%Y-%m-%d %H:%M:%S} UTC"
    return said


def _share(whole: int | None, part: int, total: int) -> int | None:
    """The share of one of several, at least 1."""
    return None if whole is None else max(1, whole * part // max(1, total))
