"""Ranges: what is stored, read by numbers, without consuming it.

Made for readers that keep account themselves of how far they are, such as a Spark source. A channel numbers
all that is ordered in it. Whoever has read a destination up to a number, reads on from there: now, later, or
in another process; the same range gives the same messages as long as they are kept.

Every page is checked here: that its bytes are those that the replica sent, and that it has as many messages
as the replica keeps in that part of the range.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from antiphon.batch import Batch
from antiphon.client.aio.block import Block, Duration, seconds
from antiphon.client.aio.holds import LIMIT_DEFAULT_S, Holding, HoldReport, make_hold, read_reports
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.transactions import look_at
from antiphon.errors import DestinationError, DestinationUnavailable, LocalError, ProtocolError, RangeLost
from antiphon.message import Handover, Message, messages_of
from antiphon.names import parse_destination
from antiphon.wire.frames import DestinationOpened, RangeTold
from antiphon.wire.frames import RangePage as PageFrame
from antiphon.wire.holds import ReleaseHold
from antiphon.wire.range_frames import PageContents, RangeAck, RangeLoss, RangeWanted, decode_page

PAGE_BYTES, PAGES_ON_THE_WAY = 1 << 20, 3
BROWSED_BYTES = 1 << 18
PAGES_AHEAD = 16
"""So many ends of pages are asked for at once; when half of them are used up, the next ones are."""

Match = Literal["glob", "regex"]


class RangeDestination(NamedTuple):
    """A destination to be read. What of it had been lost below number `since` is no loss."""

    name: str
    channel: str
    id: int
    since: int = 0


class DestinationHead(NamedTuple):
    """How far a destination goes: the lowest number that is kept, one behind the last that ever was.

    Of what had numbers up to `lost_through`, `lost` are gone, the last of which came at `lost_time_ms`.
    """

    id: int
    first: int
    next: int
    lost_through: int
    lost: int = 0
    lost_time_ms: int = 0


class ChannelHead(NamedTuple):
    """How far the destinations go that were asked for, all of them in one channel.

    `rows` and, about, `bytes` are what is kept of them at or above the number that was given.
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
    """Up to where so much lies, and how much it is."""

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
    """All there is up to number `through`, from where the page before ended."""

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
        # The highest number of each channel that was heard of: what is heard later is not older.
        self._floors: dict[str, int] = {}
        self._holding = Holding(make_scope, self._floors)
        # By channel, a question for news that nobody waits for at the moment, and its answer.
        self._waiting: dict[str, tuple[dict[str, Any], asyncio.Task[dict[str, Any]]]] = {}
        self.versions: dict[str, int] = {}
        """Of each channel that was listed, the number of the last change of what exists there."""

    # -- what there is ---------------------------------------------------------

    async def destinations(
        self, names: Iterable[str] = (), *, pattern: str | None = None, match: Match = "glob"
    ) -> tuple[RangeDestination, ...]:
        """Where destinations are, by their names or by a pattern for them.

        One that does not exist is a DestinationError. A pattern is held against whole names such as
        `topic:orders.eu`; nothing may match it. What exists later is found by asking again:
        `head.version` differs from `ranges.versions` of its channel then.

        >>> await ranges.destinations(pattern="topic:orders.*")
        (RangeDestination(name='topic:orders.eu', channel='a', id=17, since=0),)
        """
        if isinstance(names, str):
            raise LocalError("destinations takes a list of names")
        names = tuple(names)
        if (pattern is None) == (not names):
            raise LocalError("destinations are named, or found by a pattern: one of both")
        if pattern is not None:
            return await self._matching(_matcher(pattern, match))
        return tuple(await asyncio.gather(*map(self._named, dict.fromkeys(names))))

    async def _named(self, name: str) -> RangeDestination:
        name = str(parse_destination(name))
        link = self._scope.link
        request = link.core.open_destination(name, create=False)
        try:
            opened = await link.call(request, DestinationOpened, self._scope.timeout)
        except DestinationUnavailable:
            raise
        except DestinationError:
            raise DestinationError(f"there is no destination {name}") from None
        return RangeDestination(name, opened.channel, opened.destination)

    async def _matching(self, matches: Callable[[str], object]) -> tuple[RangeDestination, ...]:
        channels = await self.channels()
        listings = await asyncio.gather(*map(self._list, channels))
        return tuple(
            RangeDestination(name, channel, id)
            for channel, listing in zip(channels, listings, strict=True)
            for id, name in listing
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

    async def _list(self, channel: str) -> list[tuple[int, str]]:
        """All destinations of a channel, as they are at one number: if one is made meanwhile, anew."""
        while True:
            page = await self._ask(channel, {"question": "list", "after": 0})
            rows, version = page["rows"], page["version"]
            while page["more"] and page["version"] == version:
                page = await self._ask(channel, {"question": "list", "after": rows[-1][0]})
                rows += page["rows"]
            if page["version"] == version:
                self.versions[channel] = version
                return [(id, name) for id, name in rows]

    async def heads(
        self,
        destinations: Iterable[RangeDestination],
        above: Mapping[str, int] | None = None,
        *,
        wait: Duration = 0,
        channels: Iterable[str] = (),
        acks: bool = False,
    ) -> dict[str, ChannelHead]:
        """How far the destinations go, by channel; also for `channels` of which none is wanted yet.

        With `wait`, this returns when one of them goes beyond what `above` says for its channel, when what
        exists in a listed channel has changed, or when so many seconds are over. With `acks`, kept
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
        """As soon as one channel has news, all the others say how they are without waiting for any.

        What still waits there goes on waiting. Of most channels the same will be asked the next time; and
        nobody can take back what a server waits with, so new questions would pile up there.
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
        """Up to which number, `stop` at most, there are at most so many messages, or so many bytes.

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
        """The number from which on everything lies that was stored at this time of the channel or later.

        Some of it may be a little older.

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
        """All that is stored of these destinations from number `start` on and below `stop`, page by page.

        Some pages are fetched ahead. What is not kept any more is a RangeLost, unless it is allowed: then
        the pages say what they miss. With `acks` they also have the acknowledgements that were kept because
        of a hold that asked for it. With `live`, what is kept of a queue only because somebody holds it is
        left out: others have consumed it.

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

        Said again under the same name, it goes on from the new positions. It ends `limit` seconds after it
        was last said, or when it is released. To `consume` a queue is to be the only one who gets its
        messages: what the position has passed is acknowledged. With `acks`, acknowledgements are kept, too.

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
    """A part of the range that a page was asked for."""

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
    """One read: parts asked for ahead, as far as it is known where pages end, and given in their order."""

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
        # Where pages might end that were not asked for yet; the last one that was, ends at `_asked`.
        self._ends: deque[int] = deque()
        self._asked = start
        self._is_asking_ends = False
        # Up to where pages have been given.
        self._given = start

    @property
    def is_going_on(self) -> bool:
        return self._given < self._goal

    async def next(self) -> RangePage:
        """The next page."""
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
            # It was all or nothing: only now it is known where it ended.
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
        """Nobody waits for what is on its way."""
        for _, _, task in self._parts:
            if task.done() and not task.cancelled():
                task.exception()  # not to be reported either
            task.cancel()
        self._parts.clear()


async def browse(scope: SessionScope, destination: str, *, create: bool) -> AsyncIterator[Message]:
    """What a queue holds, or a topic keeps. A page is asked for when the one before it is used up."""
    await scope.core()
    # Not for the session: nothing will be ordered, and an application may look while nothing can be.
    link = scope.link
    opened = await link.call(
        link.core.open_destination(destination, create=create), DestinationOpened, scope.timeout
    )
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
            for message in messages_of(batch, handover):
                yield message
        start, more = page.through + 1, bool(page.ends)


def _contents(frame: PageFrame, start: int, ids: frozenset[int]) -> PageContents:
    """What a page has, if it is the one that was asked for."""
    page = decode_page(frame.page)
    at = start
    for id, first, count, _, _ in page.pieces:
        # Otherwise it is a page that somebody else has asked for, however whole it is.
        if id not in ids or first < at or first + count > page.through + 1:
            raise ProtocolError(f"a page of the range from {start} on has rows from {first} on")
        at = first + count
    if page.through + 1 < start:
        raise ProtocolError(f"a page through {page.through} of a range from {start} on")
    return page


def _once_each(destinations: Iterable[RangeDestination]) -> tuple[RangeDestination, ...]:
    """One that is named twice is read once; ids are a channel's own."""
    return tuple({(one.channel, one.id): one for one in destinations}.values())


def _batch(data: memoryview, count: int) -> Batch:
    # Its bytes are those that the replica keeps, and its texts were looked at when they came in.
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
    """The destination that does not exist any more, by its name."""
    names = [one.name for one in destinations if str(one.id) == error.text]
    return DestinationError(f"there is no destination {names[0]} any more") if names else error


def _matcher(pattern: str, match: str) -> Callable[[str], object]:
    """Does a whole name match?"""
    if match == "glob":
        return re.compile(_glob(pattern)).fullmatch
    if match != "regex":
        raise LocalError(f"match is 'glob' or 'regex'; it was {match!r}")
    try:
        import re2
    except ImportError:
        raise LocalError(
            "patterns of match='regex' need the package google-re2: pip install 'antiphon[spark]'"
        ) from None
    try:
        compiled: Any = re2.compile(pattern)
    except re2.error as error:
        raise LocalError(f"the pattern {pattern!r} is no regular expression of RE2: {error}") from None
    return lambda name: compiled.fullmatch(name)


def _glob(pattern: str) -> str:
    """`*` and `?` match any characters; everything else stands for itself."""
    return fnmatch.translate(pattern.replace("[", "[[]"))
