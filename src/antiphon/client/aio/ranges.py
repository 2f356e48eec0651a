"""Ranges: stored messages, read by numbers, without consuming them.

Made for readers that keep account of their own progress, such as a Spark source. A channel numbers everything
that is ordered in it. A reader that has read a destination up to a number reads on from there: now, later, or
in another process; the same range gives the same messages as long as they are kept.

Every page is checked here: its bytes are those that the replica sent, and it has as many messages as the
replica keeps in that part of the range.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from antiphon.batch import Batch
from antiphon.client.aio.block import Block, Duration, seconds
from antiphon.client.aio.holds import LIMIT_DEFAULT_S, Holding, HoldReport, make_hold, read_reports
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.transactions import look_at
from antiphon.errors import DestinationError, DestinationUnavailable, LocalError, ProtocolError, RangeLost
from antiphon.message import Handover, Message, messages_of
from antiphon.names import Match, check_stored, parse_destination
from antiphon.selectors import Selector
from antiphon.selectors.name_patterns import compile_pattern
from antiphon.wire.frames import DestinationOpened, RangeTold
from antiphon.wire.frames import RangePage as PageFrame
from antiphon.wire.holds import ReleaseHold
from antiphon.wire.range_frames import PageContents, RangeAck, RangeLoss, RangeWanted, decode_page

PAGE_BYTES, PAGES_ON_THE_WAY = 1 << 20, 3
BROWSED_BYTES = 1 << 18
PAGES_AHEAD = 16
"""So many ends of pages are asked for at once; when half of them are used up, the next ones are."""


class RangeDestination(NamedTuple):
    """A destination to be read, or its part in this channel. Messages lost below `since` are no loss."""

    name: str
    channel: str
    id: int
    since: int = 0
    is_part: bool = False

    @property
    def label(self) -> str:
        """What tells the destination, or the part, from all others: `a/queue:orders` is a part."""
        return f"{self.channel}/{self.name}" if self.is_part else self.name


class DestinationHead(NamedTuple):
    """The extent of a destination: the lowest number that is kept, one behind the last that ever was.

    Of the numbers up to `lost_through`, `lost` are gone, the last of which came at `lost_time_ms`.
    """

    id: int
    first: int
    next: int
    lost_through: int
    lost: int = 0
    lost_time_ms: int = 0


class ChannelHead(NamedTuple):
    """The extent of the requested destinations of one channel.

    `rows` and, about, `bytes` are kept of them at or above the given number.
    """

    channel: str
    next: int
    first: int
    applied: int
    version: int
    log_time_ms: int
    rows: int
    bytes: int
    destinations: tuple[DestinationHead, ...]


class Bound(NamedTuple):
    """An end of a range, and the messages and bytes up to it."""

    stop: int
    rows: int
    bytes: int


class RangePiece(NamedTuple):
    """Messages of one destination: row r of the batch has the number first + r."""

    destination: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    batch: Batch


@dataclass(frozen=True, slots=True)
class RangePage:
    """All messages up to number `through`, from the end of the page before."""

    through: int
    rows: int
    pieces: tuple[RangePiece, ...]
    lost: tuple[RangeLoss, ...] = ()
    acks: tuple[RangeAck, ...] = ()


class Ranges(Block):
    """Reads what is stored; `connection.ranges` makes them.

    >>> async with connection.ranges() as ranges:
    ...     prices = await ranges.destinations(["topic:prices"])
    ...     for channel, head in (await ranges.heads(prices)).items():
    ...         async for page in ranges.read(channel, head.first, head.next, prices):
    ...             print(page.rows)
    """

    def __init__(self, make_scope: Callable[[], SessionScope]) -> None:
        self._scope = make_scope()
        self._is_closed = False
        # The highest number of each channel that was heard of: later answers are not older.
        self._floors: dict[str, int] = {}
        self._holding = Holding(make_scope, self._floors)
        # By channel, an open question for news that is not awaited at the moment, and its answer.
        self._waiting: dict[str, tuple[dict[str, Any], asyncio.Task[dict[str, Any]]]] = {}
        self.versions: dict[str, int] = {}
        """Of each channel that was listed, the number of the last change of what exists there."""

    # -- what there is ---------------------------------------------------------

    async def destinations(
        self, names: Iterable[str] = (), *, pattern: str | None = None, match: Match = "glob"
    ) -> tuple[RangeDestination, ...]:
        """Where destinations are, by their names or by a pattern for them; of a spanning one, all parts.

        A missing destination is a DestinationError. A pattern is compared with whole names such as
        `topic:orders.eu`; nothing may match it. Later destinations are found by asking again: `head.version`
        differs from `ranges.versions` of its channel then.

        >>> await ranges.destinations(pattern="topic:orders.*")
        (RangeDestination(name='topic:orders.eu', channel='a', id=17, since=0, is_part=False),)
        """
        if isinstance(names, str):
            raise LocalError("destinations takes a list of names")
        names = tuple(names)
        if (pattern is None) == (not names):
            raise LocalError("destinations are named, or found by a pattern: one of both")
        if pattern is not None:
            return await self._matching(compile_pattern(match, pattern))
        found = await asyncio.gather(*map(self._named, dict.fromkeys(names)))
        return tuple([one for parts in found for one in parts])

    async def _named(self, name: str) -> list[RangeDestination]:
        """The destination, or its parts."""
        parsed = parse_destination(name)
        check_stored(parsed)
        name = str(parsed)
        opened = await self._opened_as(name)
        if not opened.channels:
            return [RangeDestination(name, opened.channel, opened.destination)]
        parts = await asyncio.gather(*(self._opened_as(name, channel) for channel in opened.channels))
        return [RangeDestination(name, part.channel, part.destination, is_part=True) for part in parts]

    async def _opened_as(self, name: str, channel: str = "") -> DestinationOpened:
        link = self._scope.link
        request = link.core.open_destination(name, create=False, channel=channel)
        try:
            return await link.call(request, DestinationOpened, self._scope.timeout)
        except DestinationUnavailable:
            raise
        except DestinationError:
            raise DestinationError(f"there is no destination {name}") from None

    async def _matching(self, matches: Callable[[str], object]) -> tuple[RangeDestination, ...]:
        channels = await self.channels()
        listings = await asyncio.gather(*map(self._list, channels))
        return tuple(
            RangeDestination(name, channel, id, is_part=is_part)
            for channel, listing in zip(channels, listings, strict=True)
            for id, name, is_part in listing
            if not parse_destination(name).is_reserved and matches(name)
        )

    async def channels(self) -> tuple[str, ...]:
        """The channels of the system.

        >>> await ranges.channels()
        ('a', 'b')
        """
        return tuple((await self._ask("", {"question": "channels"}))["channels"])

    async def cluster(self) -> str:
        """The id of the cluster that answers: numbers mean something only together with it.

        >>> await ranges.cluster()
        '7c41f09a5b0e4d2e8a1f6c3d9b507e12'
        """
        return str((await self._ask("", {"question": "channels"}))["cluster"])

    async def _list(self, channel: str) -> list[tuple[int, str, bool]]:
        """All destinations of a channel, as they are at one number: if one is made meanwhile, anew."""
        while True:
            page = await self._ask(channel, {"question": "list", "after": 0})
            rows, parts, version = page["rows"], set(page["parts"]), page["version"]
            while page["more"] and page["version"] == version:
                page = await self._ask(channel, {"question": "list", "after": rows[-1][0]})
                rows += page["rows"]
                parts.update(page["parts"])
            if page["version"] == version:
                self.versions[channel] = version
                return [(id, name, id in parts) for id, name in rows]

    async def heads(
        self,
        destinations: Iterable[RangeDestination],
        above: Mapping[str, int] | None = None,
        *,
        wait: Duration = 0,
        channels: Iterable[str] = (),
        acks: bool = False,
    ) -> dict[str, ChannelHead]:
        """The extent of the destinations, by channel; also for `channels` of which none is wanted yet.

        With `wait`, this returns when one of them goes beyond its channel's number in `above`, when the
        destinations of a listed channel have changed, or when so many seconds are over. With `acks`, kept
        acknowledgements count like messages.

        >>> (await ranges.heads(prices, {"a": 5_000}, wait=0.1))["a"].next
        5012
        """
        above = above or {}
        wait_ms = int(seconds(wait, "wait") * 1000)
        wanted: dict[str, list[int]] = {channel: [] for channel in channels}
        destinations = _once_each(destinations)
        for destination in destinations:
            wanted.setdefault(destination.channel, []).append(destination.id)
        asked = {
            channel: {
                "question": "heads",
                "destinations": ids,
                "above": above.get(channel, 0),
                "version": self.versions.get(channel),
                "acks": acks,
            }
            for channel, ids in sorted(wanted.items())
        }
        if wait_ms and len(asked) > 1:
            answers = await self._first_news(asked, wait_ms, destinations)
        else:
            told = await asyncio.gather(
                *(self._ask(channel, question, wait_ms, destinations) for channel, question in asked.items())
            )
            answers = dict(zip(asked, told, strict=True))
        return {channel: _head(channel, answers[channel], above.get(channel, 0)) for channel in asked}

    async def _first_news(
        self, asked: dict[str, dict[str, Any]], wait_ms: int, destinations: Sequence[RangeDestination]
    ) -> dict[str, dict[str, Any]]:
        """As soon as one channel has news, the others answer at once.

        Questions that wait there go on waiting. Most channels will be asked the same the next time; and a
        question cannot be taken back from a server, so new ones would pile up there.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1000
        waiting = {channel: self._taken_up(channel, question) for channel, question in asked.items()}
        answers: dict[str, dict[str, Any]] = {}
        left_ms = wait_ms
        try:
            while True:
                for channel, task in waiting.items():
                    if task is None:
                        asking = self._ask(channel, asked[channel], left_ms, destinations)
                        waiting[channel] = task = loop.create_task(asking)
                        task.add_done_callback(look_at)
                tasks = [task for task in waiting.values() if task is not None]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for channel, task in waiting.items():
                    if task is not None and task.done():
                        answers[channel], waiting[channel] = task.result(), None
                if loop.time() >= until_s or any(
                    _has_news(answers[channel], asked[channel]) for channel in answers
                ):
                    break
                # The time of an earlier question was over, not that of this one.
                answers.clear()
                left_ms = max(0, int((until_s - loop.time()) * 1000))
        except BaseException:
            for task in waiting.values():
                if task is not None:
                    task.cancel()
            raise
        self._leave_waiting(asked, waiting)
        late = [channel for channel in asked if channel not in answers]
        told = await asyncio.gather(
            *(self._ask(channel, asked[channel], 0, destinations) for channel in late)
        )
        return {**answers, **dict(zip(late, told, strict=True))}

    def _taken_up(self, channel: str, question: dict[str, Any]) -> asyncio.Task[dict[str, Any]] | None:
        """A question that still waits for an answer, if it is the same."""
        known, task = self._waiting.pop(channel, (None, None))
        if task is None or task.done() or known != question:
            if task is not None:
                task.cancel()
            return None
        return task

    def _leave_waiting(
        self, asked: Mapping[str, dict[str, Any]], waiting: Mapping[str, asyncio.Task[dict[str, Any]] | None]
    ) -> None:
        for channel, task in waiting.items():
            if task is not None:
                self._taken_up(channel, {})  # of another call at the same time
                self._waiting[channel] = asked[channel], task

    async def bound(
        self,
        channel: str,
        destinations: Iterable[RangeDestination],
        start: int,
        stop: int,
        *,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> Bound:
        """The number, `stop` at most, up to which there are at most so many messages, or so many bytes.

        At least one message if only `rows` limit it, and one stored batch if `bytes` do.

        >>> await ranges.bound("a", prices, 1, 5_000, rows=100)
        Bound(stop=131, rows=100, bytes=25_600)
        """
        destinations = [one for one in _once_each(destinations) if one.channel == channel]
        question = {
            "question": "bound",
            "destinations": [one.id for one in destinations],
            "start": start,
            "stop": stop,
            "rows": rows,
            "bytes": bytes,
        }
        told = await self._ask(channel, question, 0, destinations)
        return Bound(told["stop"], told["rows"], told["bytes"])

    async def at_time(self, channel: str, log_time_ms: int) -> int:
        """The number from which on all messages lie that were stored at this time of the channel or later.

        Some of them may be a little older.

        >>> await ranges.at_time("a", 1_700_000_000_000)
        5012
        """
        told = await self._ask(channel, {"question": "time", "log_time_ms": log_time_ms})
        return int(told["number"])

    async def _ask(
        self,
        channel: str,
        question: dict[str, Any],
        wait_ms: int = 0,
        destinations: Iterable[RangeDestination] = (),
    ) -> dict[str, Any]:
        self._check()
        link = self._scope.link
        request = link.core.ask_range(channel, question, self._floors.get(channel, 0), wait_ms)
        try:
            told = await link.call(request, RangeTold, self._scope.timeout + wait_ms / 1000)
        except DestinationError as error:
            raise _gone(error, destinations) from None
        try:
            answer = json.loads(told.answer)
        except ValueError as error:
            raise ProtocolError(f"the answer to {question['question']!r} is not JSON: {error}") from None
        if not isinstance(answer, dict):
            raise ProtocolError(f"the answer to {question['question']!r} is of an unexpected form")
        if channel and "applied" in answer:
            self._floors[channel] = max(self._floors.get(channel, 0), answer["applied"])
        return answer

    # -- reading ---------------------------------------------------------------

    async def read(
        self,
        channel: str,
        start: int,
        stop: int,
        destinations: Iterable[RangeDestination],
        *,
        allow_lost: bool = False,
        acks: bool = False,
        live: bool = False,
        page_bytes: int = PAGE_BYTES,
    ) -> AsyncGenerator[RangePage, None]:
        """All stored messages of these destinations from number `start` on and below `stop`, page by page.

        Some pages are fetched ahead. A message that is not kept any more is a RangeLost, unless that is
        allowed: then the pages say what they miss. With `acks` they also have the acknowledgements that were
        kept because of a hold that asked for it. With `live`, messages of a queue that only a hold keeps are
        left out: others have consumed them.

        >>> async for page in ranges.read("a", 1, 5_000, prices):
        ...     for piece in page.pieces:
        ...         print(piece.first, piece.batch.bodies())
        """
        destinations = [one for one in _once_each(destinations) if one.channel == channel]
        if not destinations or not 0 < start <= stop:
            raise LocalError(
                f"a range from {start} to {stop} of {len(destinations)} destinations of {channel}"
            )
        if start == stop:
            return
        how = _Manner(self._floors.get(channel, 0), page_bytes, allow_lost, acks, live)
        reading = _Reading(self._scope, channel, start, stop, destinations, how)
        try:
            while reading.is_going_on:
                self._check()
                yield await reading.next()
        finally:
            reading.close()

    # -- holds -----------------------------------------------------------------

    async def hold(
        self,
        name: str,
        positions: Mapping[str, int],
        destinations: Iterable[RangeDestination],
        *,
        limit: Duration = LIMIT_DEFAULT_S,
        consume: bool = False,
        acks: bool = False,
    ) -> None:
        """Have everything of these destinations kept from `positions` on, which are one for each channel.

        A repeated call under the same name goes on from the new positions. The hold ends `limit` seconds
        after the last call, or when it is released. To `consume` a queue is to be the only reader that gets
        its messages: messages below the position are acknowledged. With `acks`, acknowledgements are kept,
        too.

        >>> await ranges.hold("nightly", {"a": 5_000}, prices)
        """
        self._check()
        limit_s = seconds(limit, "limit")
        wanted: dict[str, list[int]] = {channel: [] for channel in positions}
        for destination in _once_each(destinations):
            if destination.channel in wanted:
                wanted[destination.channel].append(destination.id)
        commands = {
            channel: make_hold(name, positions[channel], tuple(ids), limit_s, consume=consume, acks=acks)
            for channel, ids in wanted.items()
            if ids
        }
        await asyncio.gather(*(self._holding.say(channel, one) for channel, one in commands.items()))

    async def release(self, name: str, channels: Iterable[str] = ()) -> None:
        """End a hold, in these channels or in all.

        >>> await ranges.release("nightly")
        """
        self._check()
        names = tuple(channels) or await self.channels()
        await asyncio.gather(*(self._holding.say(channel, ReleaseHold(name=name)) for channel in names))

    async def holds(self) -> tuple[HoldReport, ...]:
        """All holds there are, in every channel.

        >>> [(hold.name, hold.rows) for hold in await ranges.holds()]
        [('nightly', 120)]
        """
        channels = await self.channels()
        told = await asyncio.gather(*(self._ask(channel, {"question": "holds"}) for channel in channels))
        return tuple(
            report
            for channel, one in zip(channels, told, strict=True)
            for report in read_reports(channel, one["holds"])
        )

    # -- the end ---------------------------------------------------------------

    def _check(self) -> None:
        if self._is_closed:
            raise LocalError("the ranges are closed")

    async def close(self) -> None:
        """Read no more. Holds stay.

        >>> await ranges.close()
        """
        self._is_closed = True
        for channel in list(self._waiting):
            self._taken_up(channel, {})
        await self._holding.close()

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._is_closed

    async def _opened(self) -> Ranges:
        self._scope.link.check()
        return self

    def __repr__(self) -> str:
        return "<Ranges>"


class _Part(NamedTuple):
    start: int
    stop: int
    task: asyncio.Task[PageFrame]


class _Manner(NamedTuple):
    """How a range is to be read, see `Ranges.read`."""

    floor: int
    page_bytes: int
    allow_lost: bool
    acks: bool
    live: bool


class _Reading:
    """One read: parts asked for ahead, as far as the ends of pages are known, and given in their order."""

    def __init__(
        self,
        scope: SessionScope,
        channel: str,
        start: int,
        stop: int,
        destinations: Sequence[RangeDestination],
        manner: _Manner,
    ) -> None:
        self._manner = manner
        self._scope = scope
        self._channel = channel
        self._goal = stop
        self._destinations = destinations
        self._wanted = tuple([RangeWanted(one.id, one.since) for one in destinations])
        self._ids = frozenset([one.id for one in destinations])
        self._parts: deque[_Part] = deque()
        # Possible ends of pages that were not asked for yet; the last page asked for ends at `_asked`.
        self._ends: deque[int] = deque()
        self._asked = start
        self._is_asking_ends = False
        # The end of the given pages.
        self._given = start

    @property
    def is_going_on(self) -> bool:
        return self._given < self._goal

    async def next(self) -> RangePage:
        self._go_ahead()
        start, stop, task = self._parts[0]
        try:
            frame = await task
        except DestinationError as error:
            raise _gone(error, self._destinations) from None
        self._parts.popleft()
        through, rows, ends, losses, pieces, acks = _contents(frame, start, self._ids)
        if losses and not self._manner.allow_lost:
            lost = losses[0]
            raise RangeLost(self._name(lost.destination), self._channel, lost.first, lost.last)
        if through + 1 > stop:
            raise ProtocolError(f"a page through {through} of a range from {start} to {stop}")
        if ends:
            self._is_asking_ends = False
        if not self._parts and stop == self._goal:
            # The page was all or nothing: only now its end is known.
            self._asked = through + 1
            self._ends.clear()
        elif through + 1 < stop:
            self._parts.appendleft(self._ask(through + 1, stop))
        last = self._ends[-1] if self._ends else self._asked
        self._ends.extend([end for end in ends if last < end <= self._goal])
        self._given = through + 1
        self._go_ahead()
        return RangePage(
            through,
            rows,
            tuple(
                [RangePiece(id, first, count, _batch(data, count)) for id, first, count, _, data in pieces]
            ),
            losses,
            acks,
        )

    def _go_ahead(self) -> None:
        """Ask for as many parts as may be on their way."""
        while self._asked < self._goal and len(self._parts) < PAGES_ON_THE_WAY:
            if self._ends:
                stop = self._ends.popleft()
            elif self._parts:
                return
            else:
                stop = self._goal
            part = self._ask(self._asked, stop)
            self._asked = stop
            self._parts.append(part)

    def _ask(self, start: int, stop: int) -> _Part:
        last = self._ends[-1] if self._ends else max(stop, self._asked) if stop < self._goal else 0
        ahead = 0
        if not self._is_asking_ends and len(self._ends) <= PAGES_AHEAD // 2 and last < self._goal:
            self._is_asking_ends, ahead = True, PAGES_AHEAD
        link = self._scope.link
        request = link.core.read_range(
            self._channel,
            (start, stop, self._goal),
            self._wanted,
            ahead=ahead,
            ahead_from=last,
            **self._manner._asdict(),
        )
        task = link.loop.create_task(link.call(request, PageFrame, self._scope.timeout))
        return _Part(start, stop, task)

    def _name(self, id: int) -> str:
        return next((one.name for one in self._destinations if one.id == id), str(id))

    def close(self) -> None:
        """Drop the pages on their way."""
        for _, _, task in self._parts:
            if task.done() and not task.cancelled():
                task.exception()  # not to be reported either
            task.cancel()
        self._parts.clear()


async def browse(
    scope: SessionScope, destination: str, selector: Selector, *, create: bool, channel: str = ""
) -> AsyncIterator[Message]:
    """The messages of a queue or topic that match. A page is asked for when the one before it is used up."""
    await scope.core()
    # Not for the session: nothing will be ordered, and an application may browse while nothing can be.
    link = scope.link
    opened = await link.call(
        link.core.open_destination(destination, create=create, channel=channel),
        DestinationOpened,
        scope.timeout,
    )
    for part in opened.channels:
        async for message in browse(scope, destination, selector, create=create, channel=part):
            yield message
    if opened.channels:
        return
    ids = frozenset([opened.destination])
    start, more = 1, True
    while more:
        link = scope.link
        request = link.core.browse(opened, start, BROWSED_BYTES)
        try:
            frame = await link.call(request, PageFrame, scope.timeout)
        except DestinationError as error:
            wanted = RangeDestination(destination, opened.channel, opened.destination)
            raise _gone(error, (wanted,)) from None
        page = _contents(frame, start, ids)
        for _, first, _, redelivery_count, data in page.pieces:
            handover = Handover(opened.channel, destination, first, redelivery_count)
            try:
                batch = Batch.decode(data)
            except ProtocolError:
                continue  # no consumer gets these messages either, and an operator is told then
            if selector.text:
                for row in selector.match_rows(batch, 0, batch.count, opened.channel).numbers():
                    yield Message(batch, row, handover)
                continue
            for message in messages_of(batch, handover):
                yield message
        start, more = page.through + 1, bool(page.ends)


def _contents(frame: PageFrame, start: int, ids: frozenset[int]) -> PageContents:
    """The contents of a page, if it is the one that was asked for."""
    page = decode_page(frame.page)
    at = start
    for id, first, count, _, _ in page.pieces:
        # Otherwise it is a page of another request, however whole it is.
        if id not in ids or first < at or first + count > page.through + 1:
            raise ProtocolError(f"a page of the range from {start} on has rows from {first} on")
        at = first + count
    if page.through + 1 < start:
        raise ProtocolError(f"a page through {page.through} of a range from {start} on")
    return page


def _once_each(destinations: Iterable[RangeDestination]) -> tuple[RangeDestination, ...]:
    """A destination that is named twice is read once; ids are a channel's own."""
    return tuple({(one.channel, one.id): one for one in destinations}.values())


def _batch(data: memoryview, count: int) -> Batch:
    # Its bytes are those that the replica keeps, and its texts were checked when they came in.
    batch = Batch.decode(data, trusted=True)
    if batch.count != count:
        raise ProtocolError(f"a batch of {batch.count} rows where {count} were announced")
    return batch


def _head(channel: str, told: dict[str, Any], above: int) -> ChannelHead:
    return ChannelHead(
        channel,
        max(told["next"], above),
        told["first"],
        told["applied"],
        told["version"],
        told["log_time_ms"],
        told["rows"],
        told["bytes"],
        tuple([DestinationHead(*row) for row in told["destinations"]]),
    )


def _has_news(told: dict[str, Any], question: dict[str, Any]) -> bool:
    """Is it more than was known, or other destinations? Else only the time was over."""
    has_more: bool = bool(told["destinations"]) and told["next"] > question["above"]
    return has_more or question["version"] not in (None, told["version"])


def _gone(error: DestinationError, destinations: Iterable[RangeDestination]) -> DestinationError:
    names = [one.name for one in destinations if str(one.id) == error.text]
    return DestinationError(f"there is no destination {names[0]} any more") if names else error
