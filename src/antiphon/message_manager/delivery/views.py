"""View: the free messages of one source that match one selector, or are of one consumer's message groups.

VIW1  Consumers with the same selector share a view. A message is evaluated once for all of them, unless it
      was given out and came back. Where messages have keys and consumers compete, each has a view of its own,
      with those that match and that are of no other consumer's groups (`message_groups`).
VIW2  A view takes nothing: a consumer's message is taken from the dispatcher's free ones, and is then in no
      view. What matched and is not free any more is forgotten when it is met.
VIW3  A view looks on only while it has no match to give, a part of a batch at a time, and within a measure of
      work for each step: rows and parts of the selector are counted, for machines have no clock.
VIW4  The messages of a subscription that do not match are gathered, to be skipped by the log; also while the
      subscription has no consumer (`Skimmer`). One proposal is under way at a time, unless many gather.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from antiphon.batch import Batch, ColumnId
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.message_groups import GroupShare
from antiphon.message_manager.delivery.ready import PRIORITIES, Ready
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.source import Source
from antiphon.ranges import Ranges
from antiphon.selectors import Selector

WORK_BYTES: Final = 1_600
"""A unit of work counts as so many bytes of deliveries. A flush of 8 MiB has room for 5,200 units, or about
half a millisecond, so that other queues hardly notice: a unit is one part of a selector for one row."""

BATCH_WORK: Final = 100
"""Units for reading and decoding a batch."""

BLOB_WORK: Final = 40
"""Units for decoding the properties of a row that has them as a blob."""

PIECE_WORK: Final = 300
"""Units for giving out matches of one batch: a piece of its own, which is cut, encoded and decoded."""

MATCH_WORK: Final = 30
"""Units for giving out one match: its values are copied from every column."""

ROWS_AT_ONCE: Final = 64
"""Rows of which those are looked for at once that are of a consumer's groups; more if more are wanted."""

SKIPPED_AT_ONCE: Final = 4_096
"""Ranges in one proposal to skip, and numbers that are proposed although an earlier proposal is under way."""

_RANGES_KEPT: Final = 1_024
_RANGES_AT_ONCE: Final = 32

_NONE: Final = Ranges()


class Found(NamedTuple):
    """The result of a search: free messages of one batch that match, and all free messages of their priority.

    Without any the search `is_over`, or came upon damage, or has done the work that it may do.
    """

    free: Ranges | None = None
    matching: Ranges = _NONE
    work: int = 0
    is_over: bool = False
    is_damaged: bool = False


class Searched(Protocol):
    """What a view needs of its dispatcher."""

    @property
    def ready(self) -> Ready: ...

    @property
    def source(self) -> Source: ...

    def look_at(self, priority: int) -> bool:
        """Make the next pending messages of a priority free; False when there are none."""

    def set_aside(self, number: int, error: ProtocolError) -> None:
        """Pass over a batch that cannot be read."""


class Skips:
    """The messages that a subscription does not want: not proposed yet, and proposed (VIW4)."""

    __slots__ = ("_gathered", "_proposed")

    def __init__(self) -> None:
        self._gathered = Ranges()
        self._proposed = Ranges()

    def gather(self, evaluated: Ranges, wanted: Ranges) -> None:
        self._gathered.add_all(evaluated.difference(wanted))

    def take(self, source: Source) -> Ranges:
        """The messages to skip now."""
        if not self._gathered or (self._proposed and self._gathered.count < SKIPPED_AT_ONCE):
            return Ranges()
        part = self._gathered.take_ranges(0, SKIPPED_AT_ONCE)
        self._gathered.remove(part.first, part.last + 1)
        part = source.still(part)
        self._proposed.add_all(part)
        return part

    def applied(self, proposed: Ranges) -> None:
        self._proposed.remove_all(proposed)


class Evaluated(NamedTuple):
    """Of the messages before `stop` those that match, and the work that it took."""

    found: Ranges
    stop: int
    work: int


def evaluate(
    selector: Selector | None, channel: str, batch: Batch, first: int, start: int, stop: int, work_max: int
) -> Evaluated:
    """Evaluate messages of one batch, whose row 0 is number `first`; at least one, as many as may be.

    Without a selector all match.
    """
    stop = min(stop, first + batch.count)
    if selector is None:
        return Evaluated(Ranges([(start, stop)]), stop, BATCH_WORK)
    row_work = work_of_row(selector, batch)
    # For less work than reading the batch took, it would be read too often.
    stop = min(stop, start + max(1, max(work_max, BATCH_WORK) // row_work))
    found = selector.match_rows(batch, start - first, stop - first, channel, first)
    return Evaluated(found, stop, BATCH_WORK + row_work * (stop - start))


def work_of_row(selector: Selector, batch: Batch) -> int:
    has_blobs = batch.column(ColumnId.PROPERTIES) is not None
    return selector.cost + (BLOB_WORK if has_blobs else 0)


class Skimmer:
    """A subscription with a selector and without a consumer: nobody takes its messages, some are skipped."""

    __slots__ = ("_channel", "_reached", "_selector", "is_held_up", "skips", "source")

    def __init__(self, source: Source, selector: Selector, channel: str) -> None:
        self.source = source
        self._selector = selector
        self._channel = channel
        # How far the messages are evaluated.
        self._reached = 0
        self.skips = Skips()
        # The next message lies in a record that is being mended.
        self.is_held_up = False

    def look_from(self, number: int) -> None:
        """Evaluate from this message on: a topic has joined, whose messages lie here and there."""
        self._reached = min(self._reached, number - 1)

    @property
    def has_more(self) -> bool:
        return self._reached < self.source.last and not self.is_held_up

    def skim(self, reader: BatchReader, work_max: int) -> int:
        """Evaluate messages; the work done (VIW3)."""
        work = 0
        while self.has_more and work < work_max:
            part, through = self.source.pending(self._reached, 1)
            if not part:
                self._reached = self.source.last if through is None else through
                continue
            start, stop = next(iter(part))
            stored = self.source.index.find(start)
            try:
                batch = reader.batch(stored)
            except ProtocolError:
                # A consumer that comes will pass the batch over, and an operator is told then.
                self._reached = stored.stop - 1
                continue
            if batch is None:
                self.is_held_up = True
                break
            done = evaluate(self._selector, self._channel, batch, stored.first, start, stop, work_max - work)
            self.skips.gather(Ranges([(start, done.stop)]), done.found)
            self._reached = done.stop - 1
            work += done.work
        return work


class View:
    """One selector at one source, or the share of one consumer; `skips`: the source is a subscription."""

    __slots__ = (
        "_again",
        "_channel",
        "_matched",
        "_scanned",
        "_skips",
        "consumers",
        "name",
        "selector",
        "share",
    )

    def __init__(
        self,
        name: object,
        selector: Selector | None,
        channel: str,
        *,
        skips: Skips | None = None,
        share: GroupShare | None = None,
    ) -> None:
        # Among the views of the source.
        self.name = name
        self.selector = selector
        self.share = share
        self._channel = channel
        self.consumers = 0
        # Free when they were evaluated, and matching.
        self._matched = Ranges()
        # By priority, how far the free messages were evaluated; and those that became free below that.
        self._scanned: dict[int, int] = {}
        self._again = Ranges()
        self._skips = skips

    @property
    def matched_count(self) -> int:
        """How many matches are known; some may be free no more."""
        return self._matched.count

    def freed(self, numbers: Ranges) -> None:
        """Note messages that became free: those below the evaluated ones are evaluated again."""
        if self._scanned:
            self._again.add_all(numbers.clip(0, max(self._scanned.values()) + 1))

    def look_anew(self) -> None:
        """Evaluate all free messages again: groups have lost their consumer."""
        self._scanned.clear()
        self._again.clear()
        self._matched.clear()

    def search(self, stage: Searched, reader: BatchReader, work_max: int, most: int) -> Found:
        """Find the next match, by priority and number; evaluates more messages where it must (VIW3).

        The consumer takes at most so many messages now.
        """
        ready, work = stage.ready, 0
        has_others = ready.has_others or bool(stage.source.rules.priorities)
        for priority in PRIORITIES if has_others else (PRIORITY_DEFAULT,):
            while True:
                free = ready.of(priority)
                matching = self._first(free, stage.source, has_others=has_others)
                if matching is not None:
                    return Found(free, matching, work + PIECE_WORK)
                if work and work >= work_max:
                    return Found(work=work)
                start = self._next_number(priority, free)
                if start is not None:
                    done = self._scan(priority, free, start, stage, reader, work_max - work, most)
                    if done is None:
                        return Found(work=work, is_damaged=True)
                    work += done
                elif not stage.look_at(priority):
                    break
        self._tidy(ready)
        return Found(work=work, is_over=True)

    def _first(self, free: Ranges, source: Source, *, has_others: bool) -> Ranges | None:
        """The first known matches, of one batch; None while a message before them may not be evaluated."""
        if self._again and free.intersection(self._again):
            return None
        matched, number = self._matched, None
        while matched and number is None:
            some = matched.take_ranges(0, _RANGES_AT_ONCE) if not has_others else matched
            number = _first_of_both(free, some)
            if number is None and has_others:
                return None
            if number is None:
                matched.remove(some.first, some.last + 1)
        if number is None:
            return None
        stop = source.index.find(number).stop
        return free.clip(number, stop).intersection(matched.clip(number, stop))

    def _next_number(self, priority: int, free: Ranges) -> int | None:
        """The lowest free message of a priority that is not evaluated."""
        start = free.next_from(self._scanned.get(priority, 0) + 1)
        again = free.intersection(self._again) if self._again else None
        # What became free may lie behind messages of its priority that were never evaluated.
        return min(again.first, start or again.first) if again else start

    def _scan(
        self,
        priority: int,
        free: Ranges,
        start: int,
        stage: Searched,
        reader: BatchReader,
        work_max: int,
        most: int,
    ) -> int | None:
        """Evaluate free messages of one batch from `start` on; the work done, None if it is damaged."""
        keyed = stage.source.rules.keyed.next_from(start) if self.selector is None else start
        if keyed != start:
            # Messages without a key need no reading.
            stop = free.run_stop(start)
            assert stop is not None, "a message that is evaluated is free"
            stop = stop if keyed is None else min(stop, keyed)
            run = Ranges([(start, stop)])
            self._evaluated(priority, run, stop, run)
            return 0
        stored = stage.source.index.find(start)
        try:
            batch = reader.batch(stored)
        except ProtocolError as error:
            stage.set_aside(start, error)
            return BATCH_WORK
        if batch is None:
            return None
        due = self._due(priority, free, start, stored.stop, batch)
        stop = due.last + 1
        if self.share is not None:
            stop = min(stop, start + max(ROWS_AT_ONCE, most))
        found, stop, work = evaluate(self.selector, self._channel, batch, stored.first, start, stop, work_max)
        own = found = found.intersection(due)
        if self.share is not None:
            own, stop, more = self.share.choose(batch, stored.first, found, stop, most)
            work += more
        due = due.clip(start, stop)
        if self._skips is not None:
            self._skips.gather(due, found)
        self._evaluated(priority, due, stop, own)
        return work

    def _evaluated(self, priority: int, due: Ranges, stop: int, found: Ranges) -> None:
        self._matched.add_all(found)
        self._again.remove_all(due)
        self._scanned[priority] = max(self._scanned.get(priority, 0), stop - 1)

    def _due(self, priority: int, free: Ranges, start: int, stop: int, batch: Batch) -> Ranges:
        """The free messages of a batch from `start` on that are to be evaluated at once.

        Others were given out between them. To evaluate a few of those, too, costs less than to begin again.
        """
        row_work = 0 if self.selector is None else work_of_row(self.selector, batch)
        scanned = self._scanned.get(priority, 0)
        if start <= scanned:
            due = free.clip(start, min(stop, scanned + 1)).intersection(self._again)
        else:
            due = free.clip(start, stop)
        for (_, end), (begin, _) in pairwise(due):
            if (begin - end) * row_work > BATCH_WORK:
                return due.clip(start, end)
        return due

    def _tidy(self, ready: Ready) -> None:
        """Forget messages that are free no more (VIW2)."""
        if len(self._again) + len(self._matched) > _RANGES_KEPT:
            free = ready.all()
            self._again = free.intersection(self._again)
            self._matched = free.intersection(self._matched)


def _first_of_both(free: Ranges, some: Ranges) -> int | None:
    """The first number that is in both; a few of `some` are mostly enough to find one."""
    for start, stop in some:
        number = free.next_from(start)
        if number is None or number < stop:
            return number
    return None
